"""What mixtures of discrete data share: starts, shares in log space, criteria, standard errors.

A kernel is one function ``step(parameters) -> EMStep``: the objective of the parameters that it was
given (log likelihood plus the log density of the pseudo-counts) and the parameters that follow. The
search knows nothing else about them.

Source of the standard errors: McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2: the
inverse of the empirical information, taken back to probabilities by the delta method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.numerics.progress import followed
from consilience.numerics.random import stream
from consilience.parameters import check, number, whole

Arrays = dict[str, NDArray[Any]]
P = TypeVar("P")
C = TypeVar("C", bound="Classes")
START_ROWS = 20
"""Rows that a class starts from."""
START_COUNT = 0.1
"""Least pseudo-count of a start, so that no class begins with a probability of zero."""
# EM leaves the last bits of a slow climb undone, so that ends at one peak are not quite equal.
_SAME_PEAK = 1e-5
_SAME_PEAK_AT_LEAST = 0.05
EMPTY = 1e-9
"""Share of a class that is left empty."""
_SINGULAR = 1e-11
PSEUDO_COUNT_RULE = {"pseudo_count": number(0)}
SEARCH_RULES = {
    "n_init": whole(1),
    "n_init_iter": whole(0),
    "n_final": whole(1),
    "max_iter": whole(1),
    "tol": number(0),
}
"""What the settings of a search may be."""


class Classes(Protocol):
    """Parameters of a mixture, class by class."""

    @property
    def proportions(self) -> FloatArray:
        """Shares of the classes, (K,)."""

    @property
    def class_parameters(self) -> FloatArray:
        """Parameters of each class as one vector, (K, c)."""

    def take(self, classes: Any) -> Self:
        """These classes only, in this order, their shares scaled to sum to 1."""


class ClassMixture:
    """What a mixture of categories or of sequences says of records, by their `log_joint`."""

    proportions: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.proportions)

    def log_joint(self, records: Any) -> FloatArray:
        """Log share of each class plus log probability of each record in it, (n, K)."""
        raise NotImplementedError

    def label(self, records: Any) -> IntArray:
        """Most probable class of each record, (n,); ties go to the first class."""
        return self.log_joint(records).argmax(axis=1).astype(np.int64)

    def log_posterior(self, records: Any) -> tuple[FloatArray, FloatArray]:
        """Log posterior probabilities of the classes, (n, K), and log density of each record."""
        return log_shares(self.log_joint(records), self.proportions)


class EMStep(NamedTuple, Generic[P]):
    """One iteration of EM.

    Attributes
    ----------
    objective : float
        Log likelihood and log density of the pseudo-counts at the parameters that were given.
    log_likelihood : float
        At the parameters that were given.
    next : P
        Parameters after the M-step; their objective is at least as large.
    """

    objective: float
    log_likelihood: float
    next: P


@dataclass(frozen=True)
class Climb(Generic[P]):
    """EM from one start.

    Attributes
    ----------
    parameters : P
        The best ones, at which `objective` and `log_likelihood` are computed.
    objective, log_likelihood : float
    trace : (T,) array
        Objective at the start and after each iteration; it never falls but for rounding.
    n_iter : int
        Iterations.
    converged : bool
        Whether the last iteration raised the objective by at most `tol` of its size.
    """

    parameters: P
    objective: float
    log_likelihood: float
    trace: FloatArray
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class Search(Generic[P]):
    """The best of many starts.

    Attributes
    ----------
    best : Climb
        Its classes by falling share.
    start_spread : (F,) array
        Log likelihoods of the starts that were followed to their end, falling by objective: where
        they differ the likelihood has several peaks.
    n_dropped : int
        Classes that were left empty and are dropped.
    """

    best: Climb[P]
    start_spread: FloatArray
    n_dropped: int = 0


def climb(step: Callable[[P], EMStep[P]], start: P, *, max_iter: int, tol: float) -> Climb[P]:
    """Follow EM from one start.

    Parameters
    ----------
    step : callable
        One iteration, see :class:`EMStep`.
    start : P
        First parameters.
    max_iter : int
        Iterations at most.
    tol : float
        It ends where an iteration raises the objective by at most this share of its size.
    """
    current, done = start, step(start)
    trace = [done.objective]
    converged = False
    while len(trace) <= max_iter and not converged:
        proposed = done.next
        after = step(proposed)
        converged = after.objective - trace[-1] <= tol * abs(after.objective)
        current, done = proposed, after
        trace.append(after.objective)
    return Climb(
        current, done.objective, done.log_likelihood, np.asarray(trace), len(trace) - 1, converged
    )


def best_of_starts(
    step: Callable[[C], EMStep[C]],
    start: Callable[[int], C],
    *,
    n_init: int = 40,
    n_init_iter: int = 15,
    n_final: int = 4,
    tol: float = 1e-7,
    max_iter: int = 500,
) -> Search[C]:
    """Follow many starts a few iterations, the best of them to the end, and keep the best.

    Classes that the best one leaves empty are dropped, and it is followed again without them.

    Parameters
    ----------
    step : callable
        One iteration, see :class:`EMStep`.
    start : callable
        First parameters of each start by its number.
    n_init, n_init_iter : int
        Starts, and iterations of each.
    n_final : int
        Starts that are followed to the end.
    tol : float
        See :func:`climb`.
    max_iter : int
        Iterations of a start in all.

    Returns
    -------
    Search
        Of equally good starts the earlier one.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    check(SEARCH_RULES, locals())
    first = min(n_init_iter, max_iter)
    starts = followed(range(n_init), "starts", n_init)
    ends = [climb(step, start(i), max_iter=first, tol=tol) for i in starts]
    ends = sorted(ends, key=lambda end: -end.objective)[:n_final]
    for i, begun in enumerate(ends):
        if not begun.converged:
            rest = climb(step, begun.parameters, max_iter=max_iter - begun.n_iter, tol=tol)
            trace = np.concatenate([begun.trace, rest.trace[1:]])
            ends[i] = replace(rest, trace=trace, n_iter=len(trace) - 1)
    ends.sort(key=lambda end: -end.objective)
    best = ends[0]
    kept = np.flatnonzero(best.parameters.proportions > EMPTY)
    n_dropped = len(best.parameters.proportions) - len(kept)
    # Without the empty classes its end is one of a smaller model: climb on.
    if n_dropped:
        best = climb(step, best.parameters.take(kept), max_iter=max_iter, tol=tol)
    order = class_order(best.parameters.proportions, best.parameters.class_parameters)
    best = replace(best, parameters=best.parameters.take(order))
    return Search(best, np.array([end.log_likelihood for end in ends]), n_dropped)


def fit_mixture(
    data: Any,
    n_classes: int,
    em_step: Callable[..., Callable[[C], EMStep[C]]],
    random_start: Callable[..., C],
    purpose: str,
    *,
    seed: int,
    n_init: int = 40,
    pseudo_count: float = 0.1,
    **search: Any,
) -> Search[C]:
    """Fit a mixture from random starts, of which `purpose` names the stream of random numbers.

    One class has one peak, and so one start.
    """
    check({"n_classes": whole(1)} | PSEUDO_COUNT_RULE, locals())
    pseudo = float(pseudo_count)

    def start(number: int) -> C:
        rng = stream(seed, purpose, n_classes, number)
        return random_start(data, n_classes, rng, pseudo_count=pseudo)

    n_init = n_init if n_classes > 1 else min(n_init, 1)
    return best_of_starts(em_step(data, pseudo_count=pseudo), start, n_init=n_init, **search)


def draw_members(
    weights: ArrayLike, n_classes: int, rng: np.random.Generator, *, size: int = START_ROWS
) -> IntArray:
    """Rows from which each class starts.

    Symmetric random responsibilities, the usual start, leave all classes nearly equal.

    Parameters
    ----------
    weights : (P,) array
        Weight of each distinct row, not all zero.
    n_classes : int
        K.
    rng : numpy.random.Generator
    size : int
        Rows of a class; fewer where there are fewer distinct rows for each class.

    Returns
    -------
    members : (K, m) array of int
        Drawn with replacement, with probability proportional to weight.
    """
    w = np.asarray(weights, dtype=np.float64)
    rows = np.flatnonzero(w)
    ends = np.cumsum(w[rows])
    # Classes that start from the same few rows would be nearly equal.
    m = int(np.clip(len(rows) // n_classes, 1, size))
    drawn = np.searchsorted(ends, rng.random((n_classes, m)) * ends[-1], side="right")
    # Rounding may put a draw past the last row.
    return np.asarray(rows[np.minimum(drawn, len(rows) - 1)], dtype=np.int64)


def class_order(proportions: ArrayLike, class_parameters: ArrayLike) -> IntArray:
    """Order of classes: the largest first, equal ones by their parameters.

    Parameters
    ----------
    proportions : (K,) array
    class_parameters : (K, c) array

    Returns
    -------
    order : (K,) array of int
    """
    shares = np.asarray(proportions, dtype=np.float64)
    parameters = np.asarray(class_parameters, dtype=np.float64)
    return np.asarray(np.lexsort((*parameters.T[::-1], -shares)), dtype=np.int64)


def log_shares(joint: ArrayLike, proportions: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Log posterior probabilities of the classes, and log density of each row.

    Parameters
    ----------
    joint : (n, K) array
        Log share of a class plus log probability of a row in it; minus infinity is allowed.
    proportions : (K,) array
        What a row that no class allows gets as its posterior.

    Returns
    -------
    log_posterior : (n, K) array
    log_density : (n,) array
    """
    terms = np.asarray(joint, dtype=np.float64)
    peak = terms.max(axis=1)
    possible = np.isfinite(peak)
    safe = np.where(possible, peak, 0.0)
    with np.errstate(divide="ignore"):
        density = safe + np.log(np.exp(terms - safe[:, None]).sum(axis=1))
        prior = np.log(np.asarray(proportions, dtype=np.float64))
    shares = np.where(
        possible[:, None],
        terms - np.where(possible, density, 0.0)[:, None],
        prior[None, :],
    )
    return shares, np.where(possible, density, -np.inf)


def information(log_likelihood: float, n_parameters: int, n: float) -> tuple[float, float]:
    """AIC and BIC of a fit; smaller is better.

    Parameters
    ----------
    log_likelihood : float
        Without pseudo-counts.
    n_parameters : int
        Free parameters.
    n : float
        Sum of the weights.
    """
    # AIC = 2 q - 2 log L, BIC = q log n - 2 log L
    twice = -2.0 * log_likelihood
    return twice + 2.0 * n_parameters, twice + n_parameters * float(np.log(n))


def same_peak(log_likelihood: float) -> float:
    """How far ends of EM may be apart in log likelihood to be taken for the same peak."""
    return float(max(_SAME_PEAK * abs(log_likelihood), _SAME_PEAK_AT_LEAST))


def start_remarks(start_spread: ArrayLike) -> tuple[str, ...]:
    """A sentence where the starts that were followed ended on different peaks.

    Parameters
    ----------
    start_spread : (F,) array
        Log likelihoods, the kept start first.
    """
    values = np.asarray(start_spread, dtype=np.float64)
    near = int((np.abs(values - values[0]) <= same_peak(values[0])).sum())
    if near == values.size:
        return ()
    return (
        f"{near} of the {values.size} best starts ended at the kept likelihood: there are several "
        "peaks, and classes may change with random_state",
    )


def check_total_weight(total: float, record: str) -> None:
    """Refuse weights of which no BIC can be made.

    Raises
    ------
    DataError
        They sum to less than 1, the logarithm of which would reward parameters.
    """
    if total < 1:
        raise DataError(
            f"the weights sum to {total:.3g} and BIC takes the sum for the number of {record}s: "
            "scale the weights so that they count them"
        )


# --------------------------------------------------------------------------- standard errors


def logit_jacobian(blocks: Sequence[FloatArray]) -> FloatArray:
    """Derivatives of probabilities by their logits.

    Parameters
    ----------
    blocks : sequence of arrays
        Probabilities that add up to 1 in each block.

    Returns
    -------
    (q, q) array
        ``diag(p) - p p'`` of each block along the diagonal, q probabilities in all.
    """
    size = sum(p.size for p in blocks)
    full, begin = np.zeros((size, size)), 0
    for p in blocks:
        end = begin + p.size
        # dp / dlogit = diag(p) - p p'
        full[begin:end, begin:end] = np.diag(p) - np.outer(p, p)
        begin = end
    return full


def probability_errors(
    information: FloatArray, jacobian: FloatArray, free: NDArray[np.bool_]
) -> FloatArray:
    """Standard errors of all probabilities.

    Parameters
    ----------
    information : (q, q) array
        Empirical information of all logits.
    jacobian : (q, q) array
        Of :func:`logit_jacobian`.
    free : (q,) array of bool
        Logits that were fitted; the others are references, or known.

    Returns
    -------
    (q,) array
        0 where nothing was fitted, NaN throughout where the information has no inverse.
    """
    if not free.any():
        return np.zeros(len(free))
    inner = information[np.ix_(free, free)]
    scale = np.sqrt(np.diag(inner))
    if (scale == 0).any():
        return np.full(len(free), np.nan)
    # Scaled to a unit diagonal, so that what is singular does not depend on numbers of records.
    values, vectors = np.linalg.eigh(inner / np.outer(scale, scale))
    if values[0] <= _SINGULAR * values[-1]:
        return np.full(len(free), np.nan)
    # Delta method: J I^-1 J'
    root = jacobian[:, free] / scale @ (vectors / np.sqrt(values))
    return np.asarray(np.sqrt((root**2).sum(axis=1)))

"""Soft-impute: low-rank matrices from observed entries under a nuclear-norm penalty.

Minimises ``|X_O - M_O|^2 / 2 + alpha |M|_*``, where O are the observed entries and ``|M|_*`` is the
sum of the singular values (Mazumder, Hastie and Tibshirani 2010). Every fit carries a duality gap.
SOFT-IMPUTE+ refits the singular values without the penalty (Ya Le's Stanford thesis, chapter 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.kernels.low_rank import LowRankFit, check_ranks, thin_svd
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries

if TYPE_CHECKING:
    from consilience.completion.kernels.soft_impute_solvers import DenseSolver, SparseSolver


SOLVERS = ("auto", "dense", "als")
SMALLEST = 1e-3
"""Smallest penalty over :func:`alpha_max` that a path of ranks goes down to."""

_LARGE = 30_000_000  # entries of a matrix that is not formed unless asked for
_DENSE_RATE, _SPARSE_RATE = 2e10, 5e9  # operations in a second, of products and of compiled loops
_CERTIFICATE = 3e-3  # seconds in a sweep for what it costs to know when to end
_GUESS = 60  # rank that the costs are compared at, or a third of the shorter side
_CELLS = 1 << 21


def step_seconds(entries: Entries) -> tuple[float, float]:
    """Rough seconds of a step of the dense solver and of a sweep of the other one.

    The former costs about ``4 n p q + 10 q^3`` operations with ``q = min(n, p)``, and the number of
    steps grows as the density falls; the latter ``2 m k^2 + (n + p) k^3 / 3`` for m observed
    entries at rank k.

    Parameters
    ----------
    entries : Entries
    """
    n, p = entries.shape
    q = min(n, p)
    k = min(_GUESS, max(1, q // 3))
    dense = (4.0 * n * p * q + 10.0 * q**3) / _DENSE_RATE / np.sqrt(entries.density)
    return dense, (2.0 * entries.n_observed * k**2 + (n + p) * k**3 / 3.0) / _SPARSE_RATE


def choose_solver(entries: Entries) -> str:
    """The faster solver by shape and density, with what certificates cost: "dense" or "als".

    Parameters
    ----------
    entries : Entries
    """
    if entries.shape[0] * entries.shape[1] > _LARGE:
        return "als"
    dense, sparse = step_seconds(entries)
    return "dense" if dense <= sparse + _CERTIFICATE or entries.complete else "als"


def alpha_max(entries: Entries) -> float:
    """Smallest penalty under which the matrix is zero: the spectral norm of the observed entries.

    Parameters
    ----------
    entries : Entries
    """
    n, p = entries.shape
    if n * p <= _LARGE and min(n, p) <= 500:
        full = np.nan_to_num(entries.dense())
        gram = full.T @ full if n >= p else full @ full.T
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[-1])))
    from consilience.completion.kernels.soft_impute_solvers import SparseRest

    return SparseRest(entries).norm()


def soft_path(
    entries: Entries,
    alphas: Sequence[float] | FloatArray,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    max_rank: int | None = None,
    solver: str = "auto",
    start: LowRankFit | None = None,
) -> Iterator[LowRankFit]:
    """Fits of decreasing penalties, each from where the last one ended.

    Parameters
    ----------
    entries : Entries
    alphas : (q,) array
        Positive, decreasing.
    tol : float
        Relative duality gap at which a fit ends.
    max_iter : int
        Steps, or sweeps, of one fit.
    max_rank : int, optional
        Largest rank. Where it binds the problem is no longer convex, and the gap says nothing.
    solver : {"auto", "dense", "als"}
        The filled matrix, or the observed entries only; see :func:`choose_solver`. A complete
        matrix needs one singular value decomposition under either.
    start : LowRankFit, optional

    Yields
    ------
    fit : LowRankFit

    Raises
    ------
    ParameterError
        A setting out of its range.
    """
    alphas = _penalties(alphas)
    _check(entries, tol, max_iter, max_rank, solver, start)
    if entries.complete:
        return _complete_path(entries, alphas, max_rank)
    steps = [(float(alpha), max_rank) for alpha in alphas]
    return _fits(entries, steps, tol, max_iter, solver, start)


def rank_path(
    entries: Entries,
    ranks: Sequence[int],
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    solver: str = "auto",
    start: LowRankFit | None = None,
) -> Iterator[LowRankFit]:
    """Penalised fits by rank: at rank k the smallest penalty on a warm path that leaves rank k.

    That penalty is where another singular value would enter: the fixed point at which alpha is the
    singular value after the k-th of the filled matrix, found within 0.1%. Of a complete matrix it
    is the (k + 1)-th singular value itself; values that tie with it are kept, as zeros. Where no
    penalty above :data:`SMALLEST` leaves rank k (a tie of singular values, or so few entries that a
    lower rank explains them), the fit has the nearest lower rank that one leaves.

    Parameters
    ----------
    entries : Entries
    ranks : sequence of int
        Increasing, from 0 to min(n, p).
    tol : float
        Relative duality gap.
    max_iter : int
    solver : {"auto", "dense", "als"}
    start : LowRankFit, optional
        A penalised fit.

    Yields
    ------
    fit : LowRankFit

    Raises
    ------
    ParameterError
        A setting out of its range.
    """
    ranks = check_ranks(ranks, *entries.shape, increasing=True)
    _check(entries, tol, max_iter, None, solver, start)
    if entries.complete:
        return _complete_ranks(entries, ranks)
    return _fits(entries, [(None, rank) for rank in ranks], tol, max_iter, solver, start)


def unshrink(entries: Entries, fit: LowRankFit) -> LowRankFit:
    """Refit the singular values by least squares on the observed entries.

    Parameters
    ----------
    entries : Entries
    fit : LowRankFit

    Returns
    -------
    fit : LowRankFit
        A negative value turns the sign of its left vector. The criterion is half the sum of squared
        residuals; penalty and gap remain those of the shrunken fit.
    """
    return refit(entries, fit)[0]


def refit(entries: Entries, fit: LowRankFit) -> tuple[LowRankFit, IntArray, FloatArray]:
    """As :func:`unshrink`, and where the components come from.

    Returns
    -------
    found : LowRankFit
    order : (k,) array of int
        Component of `fit` that each component of `found` is.
    values : (k,) array
        Singular values with their signs.
    """
    values = refitted_values(entries, fit)
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[np.abs(values[order]) > 0.0]
    values = values[order]
    u = fit.u[:, order] * np.sign(values)
    found = replace(fit, u=u, s=np.abs(values), v=fit.v[:, order])
    rest = entries.values - found.at(entries.rows, entries.columns)
    return replace(found, objective=0.5 * float(rest @ rest)), order, values


def refitted_values(entries: Entries, fit: LowRankFit) -> FloatArray:
    """Least-squares weights of the ``u_k v_k'`` on the observed entries, with signs, (k,).

    Parameters
    ----------
    entries : Entries
    fit : LowRankFit
    """
    k = fit.rank
    gram, cross = np.zeros((k, k)), np.zeros(k)
    size = max(1, _CELLS // max(1, k))
    for first in range(0, entries.n_observed, size):
        part = slice(first, first + size)
        design = fit.u[entries.rows[part]] * fit.v[entries.columns[part]]
        gram += design.T @ design
        cross += design.T @ entries.values[part]
    return np.asarray(np.linalg.lstsq(gram, cross, rcond=1e-12)[0]) if k else cross


# ------------------------------------------------------------------ paths


def _solver(entries: Entries, solver: str, start: LowRankFit | None) -> DenseSolver | SparseSolver:
    if solver == "auto":
        solver = choose_solver(entries)
    if solver == "dense":
        from consilience.completion.kernels.soft_impute_solvers import DenseSolver

        return DenseSolver(entries, start)
    from consilience.completion.kernels.soft_impute_solvers import SparseSolver

    return SparseSolver(entries, start)


def _fits(
    entries: Entries,
    steps: Sequence[tuple[float | None, int | None]],
    tol: float,
    max_iter: int,
    solver: str,
    start: LowRankFit | None,
) -> Iterator[LowRankFit]:
    """Fits of penalties up to a rank, or of a rank with its smallest penalty where that is None."""
    top = alpha_max(entries)
    found: DenseSolver | SparseSolver | None = None
    for alpha, rank in steps:
        lam = top if alpha is None else alpha
        if rank == 0 or top == 0.0 or (alpha is not None and alpha >= top):
            (n, p), half = entries.shape, 0.5 * float(entries.values @ entries.values)
            nothing = np.zeros((n, 0)), np.zeros(0), np.zeros((p, 0))
            yield LowRankFit(*nothing, half, n_iter=1, gap=0.0, alpha=lam, capped=lam < top)
            continue
        found = found or _solver(entries, solver, start)
        yield found.solve(alpha, tol=tol, max_iter=max_iter, rank=rank, floor=SMALLEST * top)


def _complete_path(
    entries: Entries, alphas: FloatArray, max_rank: int | None
) -> Iterator[LowRankFit]:
    u, s, v = thin_svd(entries.dense())
    spent = 1
    for alpha in alphas:
        above = int((s > alpha).sum())
        k = above if max_rank is None else min(above, max_rank)
        loss = k * alpha**2 + float((s[k:] ** 2).sum())
        objective = 0.5 * loss + alpha * float((s[:k] - alpha).sum())
        found = LowRankFit(u[:, :k], s[:k] - alpha, v[:, :k], objective, n_iter=1, n_svd=spent)
        yield replace(found, gap=0.0, alpha=float(alpha), capped=above > k)
        spent = 0


def _complete_ranks(entries: Entries, ranks: list[int]) -> Iterator[LowRankFit]:
    u, s, v = thin_svd(entries.dense())
    size = int((s > max(entries.shape) * np.finfo(float).eps * s[0]).sum())
    spent = 1
    for rank in ranks:
        k = min(rank, size)
        alpha = float(s[k]) if k < len(s) else 0.0
        rest = np.minimum(s, alpha) if k < len(s) else np.zeros(1)
        objective = 0.5 * float(rest @ rest) + alpha * float((s[:k] - alpha).sum())
        found = u[:, :k], s[:k] - alpha, v[:, :k]
        yield LowRankFit(*found, objective, n_iter=1, n_svd=spent, gap=0.0, alpha=alpha)
        spent = 0


# ------------------------------------------------------------------ checks


def _penalties(alphas: Sequence[float] | FloatArray) -> FloatArray:
    allowed = "positive finite numbers, decreasing"
    try:
        found = np.asarray(alphas, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError.of("alphas", allowed, alphas) from None
    fits = found.ndim == 1 and len(found) and np.isfinite(found).all() and found.min() > 0.0
    if not fits or (np.diff(found) >= 0.0).any():
        raise ParameterError.of("alphas", allowed, alphas)
    return found


def _check(
    entries: Entries,
    tol: float,
    max_iter: int,
    max_rank: int | None,
    solver: str,
    start: LowRankFit | None,
) -> None:
    if solver not in SOLVERS:
        raise ParameterError.of("solver", '"auto", "dense" or "als"', solver)
    if not 0.0 < tol < 1.0:
        raise ParameterError.of("tol", "a number between 0 and 1", tol)
    if max_iter < 1:
        raise ParameterError.of("max_iter", "a whole number above 0", max_iter)
    if max_rank is not None and max_rank < 0:
        raise ParameterError.of("max_rank", "None or a whole number, 0 or more", max_rank)
    if start is not None and start.shape != entries.shape:
        raise DataError("the start must be a matrix of the same shape as the entries")

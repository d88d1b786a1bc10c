"""Mixtures of products of multinomials: the model of latent class analysis, by EM on patterns.

Within a class the columns are independent, so a row's probability is a product over the columns
that it has; a missing entry is left out of the product, which integrates it out exactly (missing at
random). Rows with the same entries are one pattern with a weight: an iteration costs patterns x
columns x classes, however many rows there are.

Source: Linzer and Lewis, *poLCA: An R package for polytomous variable latent class analysis*,
Journal of Statistical Software 42(10), 2011, equations 1 to 5, and its rule for missing entries.
Departure: pseudo-counts, so that EM finds the mode of a posterior with Dirichlet priors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels import mixtures
from consilience.clustering.kernels.mixtures import Arrays, ClassMixture, EMStep, Search
from consilience.exceptions import DataError
from consilience.numerics.ids import distinct_codes
from consilience.numerics.row_units import numbers_of
from consilience.parameters import check, whole

_TOLERANCE = 1e-8
_BLOCK = 4096


# --------------------------------------------------------------------------- data


@dataclass(frozen=True, eq=False)
class CategoryPatterns:
    """Distinct rows of a table of categories, with weights.

    Attributes
    ----------
    codes : (P, d) array of int32
        Level of each column, -1 where it is missing; in lexicographic order.
    weights : (P,) array
        Sum of the weights of the rows of each pattern.
    inverse : (n,) array of int
        Pattern of each row.
    n_levels : tuple of int
        Levels of each column.
    """

    codes: NDArray[np.int32]
    weights: FloatArray
    inverse: IntArray
    n_levels: tuple[int, ...]

    @property
    def n(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def n_distinct(self) -> int:
        """Distinct rows with an entry and a weight; at least 1."""
        telling = (self.weights > 0) & (self.codes >= 0).any(axis=1)
        return max(int(telling.sum()), 1)

    @property
    def starts(self) -> IntArray:
        """Place of each column's first level among the levels of all columns."""
        return np.cumsum([0, *self.n_levels[:-1]], dtype=np.int64)

    @property
    def occurring(self) -> NDArray[np.bool_]:
        """Levels that occur in a row with a weight, those of all columns one after the other."""
        seen = self.codes[self.weights > 0]
        found = np.zeros(sum(self.n_levels), dtype=bool)
        found[(seen + self.starts)[seen >= 0]] = True
        return found

    @property
    def n_occurring(self) -> tuple[int, ...]:
        """Levels of each column that occur in a row with a weight."""
        return tuple(np.add.reduceat(self.occurring, self.starts, dtype=np.int64).tolist())

    @classmethod
    def of(
        cls, codes: ArrayLike, n_levels: Sequence[int], weights: ArrayLike | None = None
    ) -> CategoryPatterns:
        """Collect the distinct rows.

        Parameters
        ----------
        codes : (n, d) array of int
            ``0 .. n_levels[j] - 1`` in column j, -1 where it is missing.
        n_levels : sequence of int
        weights : (n,) array, optional
            Not negative; 1 for every row if left out.

        Raises
        ------
        DataError
            A code is no level of its column, or the weights do not fit.
        """
        given = checked_codes(codes, n_levels)
        inverse, first = distinct_codes(given, n_levels)
        if weights is None:
            w = np.ones(len(given))
        else:
            w = numbers_of("weights", weights)
            if w.shape != (len(given),) or not np.isfinite(w).all() or (w < 0).any():
                raise DataError("weights need one finite number, not negative, for each row")
        if not w.sum() > 0:
            raise DataError("every weight is zero: no row is left to fit")
        total = np.asarray(np.bincount(inverse, weights=w, minlength=len(first)), dtype=np.float64)
        return cls(given[first], total, inverse, tuple(int(size) for size in n_levels))


def checked_codes(codes: ArrayLike, n_levels: Sequence[int]) -> NDArray[np.int32]:
    """Codes as int32, each a level of its column or -1.

    Raises
    ------
    DataError
    """
    given = np.asarray(codes)
    sizes = np.asarray(n_levels)
    if given.ndim != 2 or sizes.ndim != 1 or given.shape[1] != sizes.size or sizes.size == 0:
        raise DataError(f"codes need one column for each of {sizes.size} columns of the model")
    if not np.issubdtype(given.dtype, np.integer) or not (sizes >= 1).all():
        raise DataError("codes and numbers of levels must be integers, the latter at least 1")
    if given.size and ((given.min(axis=0) < -1).any() or (given.max(axis=0) >= sizes).any()):
        raise DataError("a code is no level of its column")
    return np.ascontiguousarray(given, dtype=np.int32)


# --------------------------------------------------------------------------- model


@dataclass(frozen=True, eq=False)
class MultinomialMixture(ClassMixture):
    """Classes of categorical rows: shares, and level probabilities of each column.

    Attributes
    ----------
    proportions : (K,) array
        Shares of the classes.
    probabilities : (K, L) array
        Level probabilities, the columns one after the other; they sum to 1 over each column.
    n_levels : tuple of int
        Levels of each column; L is their sum.
    """

    proportions: FloatArray
    probabilities: FloatArray
    n_levels: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Levels of each column, as local models of coded rows call them."""
        return self.n_levels

    @property
    def n_columns(self) -> int:
        """Columns of a row."""
        return len(self.n_levels)

    @property
    def class_parameters(self) -> FloatArray:
        """Level probabilities of each class as one vector, shape (K, L)."""
        return self.probabilities

    @property
    def columns(self) -> tuple[FloatArray, ...]:
        """Level probabilities by column, each (K, L_j)."""
        ends = np.cumsum(self.n_levels)[:-1]
        return tuple(np.split(self.probabilities, ends, axis=1))

    def take(self, classes: Any) -> MultinomialMixture:
        """These classes only, in this order, their shares scaled to sum to 1."""
        shares = self.proportions[classes]
        return MultinomialMixture(shares / shares.sum(), self.probabilities[classes], self.n_levels)

    def log_joint(self, codes: ArrayLike) -> FloatArray:
        """Log share of each class plus log probability of each row in it, shape (n, K).

        Columns are added one after the other: a row's value does not depend on other rows.
        """
        given = checked_codes(codes, self.n_levels)
        with np.errstate(divide="ignore"):
            joint = np.repeat(np.log(self.proportions)[None], len(given), axis=0)
            for j, levels in enumerate(self.columns):
                # A missing entry has code -1: the last row, which is zero.
                table = np.concatenate([np.log(levels.T), np.zeros((1, self.n_classes))])
                joint += table[given[:, j]]
        return joint

    def sample(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], IntArray]:
        """Draw rows and their classes.

        Parameters
        ----------
        n : int
        rng : numpy.random.Generator

        Returns
        -------
        codes : (n, d) array of int32
            Complete rows.
        classes : (n,) array of int
        """
        check({"n": whole(0)}, {"n": n})
        classes = rng.choice(self.n_classes, size=n, p=self.proportions / self.proportions.sum())
        codes = np.zeros((n, self.n_columns), dtype=np.int32)
        for j, levels in enumerate(self.columns):
            ends = np.cumsum(levels, axis=1)[classes]
            codes[:, j] = (rng.random((n, 1)) * ends[:, -1:] >= ends[:, :-1]).sum(axis=1)
        return codes, classes.astype(np.int64)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole model."""
        return {
            "proportions": self.proportions,
            "probabilities": self.probabilities,
            "n_levels": np.asarray(self.n_levels, dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> MultinomialMixture:
        """Rebuild a model from `to_arrays` of it, checking every number.

        Raises
        ------
        DataError
            The arrays are not those of a model: missing, wrong shapes, or no probabilities.
        """
        if set(arrays) != {"proportions", "probabilities", "n_levels"}:
            raise DataError("these arrays do not hold a mixture of multinomials")
        sizes = np.asarray(arrays["n_levels"])
        shares = np.asarray(arrays["proportions"], dtype=np.float64)
        levels = np.asarray(arrays["probabilities"], dtype=np.float64)
        if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer) or not (sizes >= 1).all():
            raise DataError("the levels of a mixture of multinomials must be counted by integers")
        if shares.ndim != 1 or levels.shape != (shares.size, sizes.sum()) or not levels.size:
            raise DataError("the arrays of a mixture of multinomials do not fit together")
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        sums = np.concatenate([[shares.sum()], np.add.reduceat(levels, starts, axis=1).ravel()])
        finite = np.isfinite(shares).all() and np.isfinite(levels).all()
        if not finite or (shares < 0).any() or (levels < 0).any():
            raise DataError("a probability of a mixture of multinomials is out of range")
        if not np.allclose(sums, 1.0, rtol=0.0, atol=_TOLERANCE):
            raise DataError("probabilities of a mixture of multinomials do not sum to 1")
        return cls(shares, levels, tuple(int(size) for size in sizes))


def parameter_count(data: CategoryPatterns, n_classes: int) -> int:
    """Free parameters of K classes.

    K - 1 shares, and for each class and column the levels that occur less one: a level that was
    declared and never seen has the probability of its pseudo-count.
    """
    return n_classes - 1 + n_classes * sum(max(size - 1, 0) for size in data.n_occurring)


# --------------------------------------------------------------------------- EM


def em_step(
    data: CategoryPatterns, *, pseudo_count: float
) -> Callable[[MultinomialMixture], EMStep[MultinomialMixture]]:
    """One iteration of EM on given data, as a function of the parameters.

    Parameters
    ----------
    data : CategoryPatterns
    pseudo_count : float
        Added to the expected count of every level in every class.
    """
    from consilience.clustering.kernels.compiled import expectation

    n_rows = sum(data.n_levels)
    places = np.where(data.codes >= 0, data.codes + data.starts, n_rows).astype(np.int32)
    places = np.ascontiguousarray(places)

    def step(model: MultinomialMixture) -> EMStep[MultinomialMixture]:
        k = model.n_classes
        table = np.zeros((n_rows + 1, k))
        with np.errstate(divide="ignore"):
            shares = np.log(model.proportions)
            table[:-1] = np.log(model.probabilities.T)
        found, counts = np.empty(k), np.empty((n_rows + 1, k))
        likelihood = float(expectation(places, data.weights, shares, table, found, counts))
        objective = likelihood
        if pseudo_count > 0:
            # log density of the Dirichlet priors, but for a constant
            objective += pseudo_count * float(table[:-1].sum())
        following = _model(found, counts[:-1].T, data, pseudo_count)
        return EMStep(objective, likelihood, following)

    return step


def _model(
    sizes: FloatArray, counts: FloatArray, data: CategoryPatterns, pseudo_count: float
) -> MultinomialMixture:
    """Mode of shares and level probabilities given counts, (K,) and (K, L)."""
    widths = np.asarray(data.n_levels)
    # Mode of the posterior with Dirichlet priors; 0 is the M-step of maximum likelihood.
    cells = np.maximum(counts, 0.0) + pseudo_count
    totals = np.repeat(np.add.reduceat(cells, data.starts, axis=1), widths, axis=1)
    even = np.broadcast_to(1.0 / np.repeat(widths, widths), cells.shape)
    # A class in which nothing of a column was seen knows nothing of it (only without pseudo-count).
    probabilities = np.divide(cells, totals, out=even.copy(), where=totals > 0)
    levels = np.ascontiguousarray(probabilities)
    return MultinomialMixture(sizes / sizes.sum(), levels, data.n_levels)


def random_start(
    data: CategoryPatterns, n_classes: int, rng: np.random.Generator, *, pseudo_count: float
) -> MultinomialMixture:
    """Each class from the counts of some twenty random rows, with equal shares."""
    members = mixtures.draw_members(data.weights, n_classes, rng)
    counts = np.zeros((n_classes, sum(data.n_levels)))
    for k, rows in enumerate(members):
        drawn = data.codes[rows]
        np.add.at(counts[k], (drawn + data.starts)[drawn >= 0], 1.0)
    return _model(np.ones(n_classes), counts, data, max(pseudo_count, mixtures.START_COUNT))


def fit_multinomial_mixture(
    data: CategoryPatterns,
    n_classes: int,
    *,
    seed: int = 0,
    **search: Any,
) -> Search[MultinomialMixture]:
    """Fit latent classes by EM from many starts.

    Parameters
    ----------
    data : CategoryPatterns
    n_classes : int
        At most the number of distinct rows.
    seed : int
        Every start has a stream of its own: more starts include those of fewer.
    pseudo_count : float
        Added to the expected count of every level in every class: EM then climbs the log
        likelihood plus ``pseudo_count`` times the sum of the logs of all level probabilities.
    n_init, **search
        See `best_of_starts`; with one class there is one start.

    Returns
    -------
    Search
        Classes of ``best.parameters`` by falling share.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    DataError
        There are fewer distinct rows than classes.
    """
    check({"n_classes": whole(1)}, locals())
    if n_classes > data.n_distinct:
        raise DataError(
            f"there are {data.n_distinct} distinct rows, fewer than {n_classes} classes"
        )
    kernel = em_step, random_start, "latent-classes"
    return mixtures.fit_mixture(data, n_classes, *kernel, seed=seed, **search)


# --------------------------------------------------------------------------- standard errors


@dataclass(frozen=True, eq=False)
class MixtureErrors:
    """Standard errors, NaN throughout where the rows do not tell the parameters apart.

    Attributes
    ----------
    proportions : (K,) array
    probabilities : (K, L) array
        The columns one after the other; NaN for a level that does not occur.
    """

    proportions: FloatArray
    probabilities: FloatArray


def mixture_errors(model: MultinomialMixture, data: CategoryPatterns) -> MixtureErrors:
    """Standard errors of shares and level probabilities at the fit.

    Parameters
    ----------
    model : MultinomialMixture
        Fitted to these rows.
    data : CategoryPatterns

    Notes
    -----
    The empirical information is the weighted sum of the outer products of the rows' scores, in
    logits of shares and of level probabilities; the delta method takes the inverse back. Source:
    Linzer and Lewis, *poLCA*, Journal of Statistical Software 42(10), 2011, standard error
    estimation, after McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2.

    The model is taken to be right, and pseudo-counts to be few against the counts. Close to 0 or 1
    a probability is not near normal, and its interval should not be read off its standard error.
    """
    k, n_levels = model.n_classes, int(np.sum(model.n_levels))
    by_class = [levels[c] for c in range(k) for levels in model.columns]
    jacobian = mixtures.logit_jacobian([model.proportions, *by_class])
    information = np.zeros((k + k * n_levels,) * 2)
    for begin in range(0, len(data.codes), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        scores = _scores(model, data.codes[part])
        # McLachlan and Peel 2000, chapter 2: empirical information
        information += scores.T @ (data.weights[part, None] * scores)
    # Of each set of logits one is the reference: the share of the first class, and the level that
    # has the largest probability in its column and class.
    free = [np.arange(k) > 0]
    occurring = np.split(data.occurring, data.starts[1:])
    for probabilities, seen in zip(by_class, occurring * k, strict=True):
        own = seen & (probabilities > 0)
        own[np.argmax(np.where(own, probabilities, -1.0))] = False
        free.append(own)
    errors = mixtures.probability_errors(information, jacobian, np.concatenate(free))
    levels = np.where(data.occurring, errors[k:].reshape(k, n_levels), np.nan)
    return MixtureErrors(errors[:k], levels)


def _scores(model: MultinomialMixture, codes: NDArray[np.int32]) -> FloatArray:
    """Derivatives of each row's log density by all logits, (n, K + K L)."""
    shares = np.exp(model.log_posterior(codes)[0])
    by_column = []
    for j, levels in enumerate(model.columns):
        told = codes[:, j] >= 0
        hits = (codes[:, j, None] == np.arange(levels.shape[1])) & told[:, None]
        # (n, K, L_j); a missing entry tells nothing of its column.
        apart = hits[:, None, :] - told[:, None, None] * levels[None]
        by_column.append(shares[:, :, None] * apart)
    by_level = np.concatenate(by_column, axis=2).reshape(len(codes), -1)
    return np.concatenate([shares - model.proportions, by_level], axis=1)

"""Local clustering models: parameters that label any row, and how a site fits them.

A model is arrays only. Its labels are computed feature by feature in one fixed order, never by a
matrix product, so the label of a row does not depend on which other rows are in the batch.

Rows are numbers, or coded: whole numbers that are the states of a sequence by time, or the level of
each categorical column; -1 is missing. Models of coded rows are mixtures of Markov chains, and
latent classes of categories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels.cell_suppression import Entries, Sums, suppress_cells
from consilience.clustering.kernels.markov_mixture import (
    PARTS,
    MarkovParameters,
    events_of,
    fit_markov_mixture,
)
from consilience.clustering.kernels.mixtures import Arrays, information
from consilience.clustering.kernels.multinomial_mixture import (
    CategoryPatterns,
    MultinomialMixture,
    fit_multinomial_mixture,
)
from consilience.clustering.kernels.sequences import Sequences
from consilience.exceptions import DataError
from consilience.numerics.parallel import one_thread
from consilience.parameters import LEFT_OUT, check, number, one_of, whole

ModelKind = Literal["kmeans", "gaussian_mixture"]
CovarianceType = Literal["diag", "full", "spherical", "tied"]
_COVARIANCE_TYPES: tuple[CovarianceType, ...] = get_args(CovarianceType)
_ROWS_PER_BLOCK = 4096
_EM_ITERATIONS = 200
_EM_TOLERANCE = 1e-7
_FIT_RULES = {
    "model": one_of(*get_args(ModelKind)),
    "covariance_type": one_of(*_COVARIANCE_TYPES),
    "n_clusters": whole(1),
    "n_init": whole(1),
    "min_records": whole(1),
    "trim": number(above=0) | LEFT_OUT,
}
PSEUDO_COUNT = 0.1
DRAWN_SHARE = 0.8
"""Share of the rows that a site draws in secret for each of its models."""
MODELS_IN_ALL = 8
"""Models of all sites together, about, unless a study says how many a site fits."""
MOST_EACH = 4


@dataclass(frozen=True)
class _ClassMeans:
    means: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        """Columns of a row."""
        return int(self.means.shape[1])


@dataclass(frozen=True)
class KMeansModel(_ClassMeans):
    """Class means; a row belongs to the nearest one.

    Attributes
    ----------
    means : array, shape (K, d)
        In lexicographic order.
    """

    @property
    def class_parameters(self) -> FloatArray:
        """Class means, shape (K, d)."""
        return self.means

    def label(self, X: ArrayLike) -> IntArray:
        """Class of each row of X, shape (n,); ties go to the first class."""
        return _label(X, self.n_features, lambda columns: -_squared_distances(columns, self.means))

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole model."""
        return {"means": self.means}


@dataclass(frozen=True)
class GaussianMixtureModel(_ClassMeans):
    """Gaussian classes with proportions; a row belongs to the class of highest posterior.

    Attributes
    ----------
    means : array, shape (K, d)
        In lexicographic order.
    covariances : array
        "diag": (K, d); "full": (K, d, d); "spherical": (K,); "tied": (d, d).
    proportions : array, shape (K,)
        Positive, sum to 1.
    covariance_type : {"diag", "full", "spherical", "tied"}
    """

    covariances: FloatArray
    proportions: FloatArray
    covariance_type: CovarianceType

    @property
    def class_parameters(self) -> FloatArray:
        """Mean and covariance of each class as one vector, shape (K, c).

        Entries are scaled so that the Euclidean distance of two covariances is their Frobenius
        distance: off-diagonal ones, kept once, by the square root of 2, a single variance by the
        square root of d. A tied covariance is left out, since it tells no class from another.
        """
        k, d = self.means.shape
        if self.covariance_type == "tied":
            return self.means
        if self.covariance_type == "spherical":
            spread = np.sqrt(d) * self.covariances[:, None]
        elif self.covariance_type == "diag":
            spread = self.covariances
        else:
            i, j = np.triu_indices(d)
            spread = self.covariances[:, i, j] * np.where(i == j, 1.0, np.sqrt(2.0))
        return np.concatenate([self.means, spread.reshape(k, -1)], axis=1)

    def label(self, X: ArrayLike) -> IntArray:
        """Class of each row of X, shape (n,); ties go to the first class."""
        roots = self._precision_roots()
        log_root = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        constant = (np.log(self.proportions) + log_root)[:, None]
        diagonal = self.covariance_type in ("diag", "spherical")

        def scores(columns: FloatArray) -> FloatArray:
            total = np.zeros((self.n_classes, columns.shape[1]))
            for i in range(self.n_features):
                z = np.zeros_like(total)
                for j in range(i if diagonal else 0, i + 1):
                    z += roots[:, i, j, None] * (columns[j] - self.means[:, j, None])
                total += z * z
            return np.asarray(constant - 0.5 * total)

        return _label(X, self.n_features, scores)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole model."""
        return {
            "means": self.means,
            "covariances": self.covariances,
            "proportions": self.proportions,
            "covariance_type": np.array(
                [_COVARIANCE_TYPES.index(self.covariance_type)], dtype=np.int64
            ),
        }

    def _precision_roots(self) -> FloatArray:
        """Lower triangular W_k with ``W_k covariance_k W_k' = I``, shape (K, d, d)."""
        k, d = self.means.shape
        if self.covariance_type in ("diag", "spherical"):
            variances = np.broadcast_to(self.covariances.reshape(k, -1), (k, d))
            return np.eye(d) / np.sqrt(variances)[:, :, None]
        full = np.broadcast_to(self.covariances, (k, d, d))
        return np.stack([np.linalg.inv(np.linalg.cholesky(c)) for c in full])


ClusterModel = KMeansModel | GaussianMixtureModel


@dataclass(frozen=True, eq=False)
class LocalFit:
    """What a site gets from fitting its own model.

    Attributes
    ----------
    model : local model or None
        None if fewer than two classes of ``min_records`` rows could be found: the site then
        contributes counts only.
    labels : array of int64, shape (n,)
        Own class of each row, 0 if there is no model, -1 for an outlying row or one left out.
    sums : Sums or None
        What the parameters of a model of coded rows are made of.
    start_spread : (m,) array
        Log likelihoods of the starts of EM that were followed to their end, of coded rows.
    """

    model: Any
    labels: IntArray
    sums: Sums | None = None
    start_spread: FloatArray = field(default_factory=lambda: np.empty(0))


def fit_cluster_model(
    X: ArrayLike,
    *,
    model: ModelKind = "kmeans",
    n_clusters: int,
    rng: np.random.Generator,
    n_init: int = 20,
    min_records: int = 1,
    trim: float | None = None,
    covariance_type: CovarianceType = "diag",
) -> LocalFit:
    """Fit one site's model.

    Parameters
    ----------
    X : array of float, shape (n, d)
        Rows of the site, without missing values.
    model : {"kmeans", "gaussian_mixture"}
        Kind of model.
    n_clusters : int
        Classes to look for; fewer are fitted if there are fewer distinct rows.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Restarts of k-means++.
    min_records : int
        A class with fewer rows makes the site fit one class fewer, until none is left.
    trim : float, optional
        A row is outlying when its distance to its own class mean exceeds the median by more than
        ``trim`` median absolute deviations; the model is fitted again without such rows.
    covariance_type : {"diag", "full", "spherical", "tied"}
        For Gaussian mixtures.

    Returns
    -------
    LocalFit

    Raises
    ------
    DataError
        If X is not a finite two-dimensional array with at least one column.
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    Source: Duan, Xiong, Liu, Liao and Cai (arXiv 2409.08396), section 2, step 1. The rules for
    small classes and outlying rows are ours. ``trim`` sees scattered outlying rows only: a group of
    them attracts a class mean and is near it, and with few classes whole true classes may be
    flagged instead. `outlying_rows`, which needs the models of the other sites, finds groups.
    """
    rows = _checked(X)
    check(_FIT_RULES, locals())
    seed = int(rng.integers(2**31 - 1))

    def fit(part: FloatArray) -> ClusterModel | None:
        distinct = np.unique(part, axis=0).shape[0]
        for k in range(min(n_clusters, distinct, len(part) // min_records), 1, -1):
            fitted: ClusterModel
            if model == "kmeans":
                fitted = KMeansModel(_kmeans_means(part, k, seed, n_init))
            else:
                found = _sklearn_mixture(part, k, seed, n_init, covariance_type)
                order = _ordered(found.means_)
                spread = found.covariances_
                if covariance_type != "tied":
                    spread = spread[order]
                # A share may underflow to 0, which has no logarithm.
                shares = np.maximum(found.weights_[order], np.finfo(np.float64).tiny)
                means = np.ascontiguousarray(found.means_[order])
                fitted = GaussianMixtureModel(means, spread, shares, covariance_type)
            if np.bincount(fitted.label(part), minlength=k).min() >= min_records:
                return fitted
        return None

    fitted = fit(rows)
    inlying = np.ones(rows.shape[0], dtype=bool)
    if trim is not None and rows.shape[0]:
        means = rows.mean(axis=0, keepdims=True) if fitted is None else fitted.means
        own = np.zeros(len(rows), dtype=np.int64) if fitted is None else fitted.label(rows)
        inlying = ~_far(np.sqrt(((rows - means[own]) ** 2).sum(axis=1)), trim)
        if not inlying.all():
            fitted = fit(rows[inlying])
    labels = np.full(rows.shape[0], -1, dtype=np.int64)
    labels[inlying] = 0 if fitted is None else fitted.label(rows[inlying])
    return LocalFit(fitted, labels)


def outlying_rows(
    X: ArrayLike, models: Sequence[ClusterModel], *, own: int | None, trim: float
) -> NDArray[np.bool_]:
    """Rows that are far from every class of every other site's model.

    A group of outlying rows attracts a class mean of its own site's model and is then near it; the
    models of the other sites do not know the group. A class that is rare at a site is known to
    some other site and stays.

    Parameters
    ----------
    X : array of float, shape (n, d)
        Rows of one site.
    models : sequence of ClusterModel
        All models.
    own : int, optional
        Which of them is the site's own and is left out (unless it is the only one).
    trim : float
        A row is outlying when its distance to the nearest class mean exceeds the site's median
        by more than ``trim`` median absolute deviations.

    Returns
    -------
    array of bool, shape (n,)
    """
    rows = _checked(X)
    check({"trim": number(above=0)}, {"trim": trim})
    others = [m for i, m in enumerate(models) if i != own] or list(models)
    if not others or rows.shape[0] == 0:
        return np.zeros(rows.shape[0], dtype=bool)
    columns = np.ascontiguousarray(rows.T)
    nearest = [_squared_distances(columns, m.means).min(axis=0) for m in others]
    return _far(np.sqrt(np.min(nearest, axis=0)), trim)


def bic(
    X: ArrayLike,
    n_clusters: int,
    *,
    model: ModelKind = "kmeans",
    rng: np.random.Generator,
    n_init: int = 20,
    covariance_type: CovarianceType = "diag",
) -> float:
    """Bayesian information criterion of a local model; smaller is better.

    Parameters
    ----------
    X : array of float, shape (n, d)
        Rows of the site.
    n_clusters : int
        Classes; not more than distinct rows.
    model : {"kmeans", "gaussian_mixture"}
        For k-means the likelihood is that of the Gaussian mixture with one common variance,
        maximised by EM from the k-means solution.
    rng, n_init, covariance_type
        As in `fit_cluster_model`.

    Returns
    -------
    float
        ``-2 log likelihood + parameters * log n``; infinite if there are fewer distinct rows than
        classes or the likelihood is unbounded (classes without spread).
    """
    rows = _checked(X)
    check({"model": _FIT_RULES["model"]}, {"model": model})
    # Equal rows have no spread: the likelihood has no bound.
    if np.unique(rows, axis=0).shape[0] < max(n_clusters, 2):
        return float("inf")
    seed = int(rng.integers(2**31 - 1))
    if model == "gaussian_mixture":
        return float(_sklearn_mixture(rows, n_clusters, seed, n_init, covariance_type).bic(rows))
    likelihood = _spherical_mixture_likelihood(rows, _kmeans_means(rows, n_clusters, seed, n_init))
    n, d = rows.shape
    # K - 1 shares, K d means and one variance
    return float(-2.0 * likelihood + (n_clusters * d + n_clusters) * np.log(n))


def _kmeans_means(rows: FloatArray, k: int, seed: int, n_init: int) -> FloatArray:
    from sklearn.cluster import KMeans

    # Without a tolerance it ends where no row changes its class.
    with one_thread():  # sums over threads would depend on how many there are
        fitted = KMeans(k, n_init=n_init, random_state=seed, tol=0.0).fit(rows)
    centres = fitted.cluster_centers_
    return np.ascontiguousarray(centres[_ordered(centres)], dtype=np.float64)


def _sklearn_mixture(
    rows: FloatArray, k: int, seed: int, n_init: int, covariance_type: CovarianceType
) -> Any:
    from sklearn.mixture import GaussianMixture

    # A class of equal rows would have no variance, and an unbounded likelihood.
    floor = 1e-6 * float(rows.var(axis=0).mean()) or 1e-12
    with one_thread():
        return GaussianMixture(
            k,
            covariance_type=covariance_type,
            n_init=n_init,
            random_state=seed,
            reg_covar=floor,
            max_iter=_EM_ITERATIONS,
        ).fit(rows)


def _ordered(centres: FloatArray) -> IntArray:
    """Lexicographic order of centres: results must not depend on how classes are numbered."""
    return np.lexsort(centres.T[::-1])


def _far(distance: FloatArray, trim: float) -> NDArray[np.bool_]:
    median = np.median(distance)
    deviation = np.median(np.abs(distance - median))
    return np.asarray(distance > median + trim * deviation)


def _spherical_mixture_likelihood(rows: FloatArray, means: FloatArray) -> float:
    """Largest log likelihood of a mixture with covariances sigma^2 I, from the given means."""
    from scipy.special import logsumexp

    n, d = rows.shape
    k = means.shape[0]
    squares = _squared_distances(rows.T, means).T
    variance = float(squares.min(axis=1).sum()) / (n * d)
    share = np.bincount(squares.argmin(axis=1), minlength=k) / n
    likelihood = -np.inf
    for _ in range(_EM_ITERATIONS):
        if variance <= 0.0:
            return -np.inf
        with np.errstate(divide="ignore"):
            joint = np.log(share) - 0.5 * (squares / variance + d * np.log(2 * np.pi * variance))
        total = logsumexp(joint, axis=1)
        previous, likelihood = likelihood, float(total.sum())
        if likelihood - previous <= _EM_TOLERANCE * abs(likelihood):
            break
        resp = np.exp(joint - total[:, None])
        mass = np.maximum(resp.sum(axis=0), np.finfo(np.float64).tiny)
        means = (resp.T @ rows) / mass[:, None]
        share = mass / n
        squares = _squared_distances(rows.T, means).T
        variance = float((resp * squares).sum()) / (n * d)
    return likelihood


def _squared_distances(columns: FloatArray, means: FloatArray) -> FloatArray:
    """Squared distances, shape (K, n), added up feature by feature in order."""
    total = np.zeros((means.shape[0], columns.shape[1]))
    for j in range(means.shape[1]):
        difference = columns[j] - means[:, j, None]
        total += difference * difference
    return total


def _label(X: ArrayLike, n_features: int, scores: Callable[[FloatArray], FloatArray]) -> IntArray:
    rows = _checked(X)
    if rows.shape[1] != n_features:
        raise DataError(f"the model has {n_features} features, the rows have {rows.shape[1]}")
    labels = np.empty(rows.shape[0], dtype=np.int64)
    for start in range(0, rows.shape[0], _ROWS_PER_BLOCK):
        block = np.ascontiguousarray(rows[start : start + _ROWS_PER_BLOCK].T)
        labels[start : start + _ROWS_PER_BLOCK] = scores(block).argmax(axis=0)
    return labels


def _checked(X: ArrayLike) -> FloatArray:
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise DataError("rows must form a two-dimensional array with at least one column")
    if not np.isfinite(rows).all():
        raise DataError("a column holds missing or infinite values: complete or drop those rows")
    return rows


# --------------------------------------------------------------------------- coded rows


CodedModel = MarkovParameters | MultinomialMixture
LocalModel = ClusterModel | CodedModel


def local_model_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> LocalModel:
    """Rebuild a local model of any kind from `to_arrays` of it, checking every number.

    Raises
    ------
    DataError
        If the arrays are not those of a model: missing, wrong shape, not finite, a variance or a
        proportion that is not positive.
    """
    keys = set(arrays)
    if keys == set(PARTS):
        return _with_classes(MarkovParameters.from_arrays(arrays))
    if keys == {"proportions", "probabilities", "n_levels"}:
        return _with_classes(MultinomialMixture.from_arrays(arrays))
    if keys not in ({"means"}, {"means", "covariances", "proportions", "covariance_type"}):
        raise DataError("these arrays do not hold a clustering model")
    means = np.asarray(arrays["means"], dtype=np.float64)
    if means.ndim != 2 or 0 in means.shape or not np.isfinite(means).all():
        raise DataError("the class means of a clustering model must be finite, one row per class")
    if keys == {"means"}:
        return KMeansModel(means)
    code = np.asarray(arrays["covariance_type"]).ravel()
    if code.size != 1 or int(code[0]) not in range(len(_COVARIANCE_TYPES)):
        raise DataError("the covariance type of a clustering model is unknown")
    kind = _COVARIANCE_TYPES[int(code[0])]
    k, d = means.shape
    shape = {"diag": (k, d), "full": (k, d, d), "spherical": (k,), "tied": (d, d)}[kind]
    covariances = np.asarray(arrays["covariances"], dtype=np.float64)
    proportions = np.asarray(arrays["proportions"], dtype=np.float64)
    if covariances.shape != shape or proportions.shape != (k,):
        raise DataError("the arrays of a clustering model do not fit together")
    if not np.isfinite(covariances).all() or not (proportions > 0).all():
        raise DataError("a clustering model has a covariance or proportion out of range")
    try:
        model = GaussianMixtureModel(means, covariances, proportions, kind)
        with np.errstate(invalid="raise", divide="raise"):
            model._precision_roots()
    except (np.linalg.LinAlgError, FloatingPointError):
        raise DataError("a covariance of a clustering model is not positive definite") from None
    return model


def _with_classes(model: CodedModel) -> CodedModel:
    if not np.isfinite(model.class_parameters).all() or not model.n_classes:
        raise DataError("a clustering model has a chance out of range")
    return model


def kind_of(model: LocalModel) -> str:
    """Kind of a model, as a study calls it; "" for models of numbers."""
    if isinstance(model, MarkovParameters):
        return "markov-mixture"
    return "latent-class" if isinstance(model, MultinomialMixture) else ""


# --------------------------------------------------------------------------- what rows hold


def row_of_cell(kind: str, sizes: Sequence[int]) -> IntArray:
    """Row of the table of counts that each cell is in.

    Parameters
    ----------
    kind : {"markov-mixture", "latent-class"}
    sizes : sequence of int
        Number of states S; or levels of each column.

    Returns
    -------
    (C,) int array
        First states and the steps that leave each state, C = S + S^2; or columns.
    """
    if kind == "markov-mixture":
        (s,) = sizes
        return np.repeat(np.arange(s + 1), s)
    return np.repeat(np.arange(len(sizes)), np.asarray(sizes, dtype=np.int64))


def entries_of(codes: NDArray[Any], kind: str, sizes: Sequence[int]) -> Entries:
    """What coded rows add to the cells of the table of counts.

    Steps over gaps add nothing, nor does the first state of a sequence that begins with a gap.
    """
    codes = np.asarray(codes, dtype=np.int64)
    rows = row_of_cell(kind, sizes)
    n, width = codes.shape
    if kind != "markov-mixture":
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        seen = codes >= 0
        cells = (codes + starts)[seen]
        return Entries(np.nonzero(seen)[0], cells, np.ones(len(cells)), rows)
    (s,) = sizes
    record = np.repeat(np.arange(n), width).reshape(n, width)
    begin = codes[:, :1] >= 0
    step = (codes[:, :-1] >= 0) & (codes[:, 1:] >= 0)
    cell = np.concatenate(
        [codes[:, :1][begin], (s + codes[:, :-1] * s + codes[:, 1:])[step].astype(np.int64)]
    )
    owner = np.concatenate([record[:, :1][begin], record[:, 1:][step]])
    pair, amount = np.unique(owner * len(rows) + cell, return_counts=True)
    return Entries(pair // len(rows), pair % len(rows), amount.astype(np.float64), rows)


def absorbing_rows(kind: str, sizes: Sequence[int]) -> NDArray[np.bool_] | None:
    """Rows whose totals follow from lengths of sequences: the steps that leave each state."""
    if kind != "markov-mixture":
        return None
    return np.arange(sizes[0] + 1) > 0


# --------------------------------------------------------------------------- fits


def models_each(n_sites: int) -> int:
    """Models that each site fits: about `MODELS_IN_ALL` over all sites, from one to four each.

    Two sites need several, since the weights of two models are always equal. More models make more
    label tuples, of which fewer are frequent: five sites of 100 to 300 rows did as well with two
    models each as with four, within the error (``replications/ensemble_clustering/categories``).
    """
    return min(MOST_EACH, max(1, -(-MODELS_IN_ALL // max(n_sites, 1))))


def drawn_rows(n: int, rng: np.random.Generator) -> IntArray:
    """Which of n rows a model is fitted on, (n,) of 0 and 1: `DRAWN_SHARE` of them, each once.

    Drawing as many with replacement would leave 55% of the rows: at small sites that costs more
    than everything else that protects records.
    """
    drawn = np.zeros(n, dtype=np.int64)
    drawn[rng.permutation(n)[: round(DRAWN_SHARE * n)]] = 1
    return drawn


def fit_coded_model(
    codes: NDArray[Any],
    sizes: Sequence[int],
    *,
    model: str,
    n_clusters: int,
    rng: np.random.Generator,
    n_init: int = 20,
    min_records: int = 1,
    max_share: float = 1.0,
    multiplicity: NDArray[Any] | None = None,
) -> LocalFit:
    """Fit one site's model, of parameters that rest on enough rows.

    Parameters
    ----------
    codes : (n, t) int array
        States by time, or levels by column; -1 is missing.
    sizes : sequence of int
        Number of states; or levels of each column.
    model : {"markov-mixture", "latent-class"}
    n_clusters : int
        Classes to look for.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Starts of EM, 15 iterations each; the best four go on.
    min_records : int
        A class of fewer rows makes the site fit one class fewer, until none is left; cells of the
        parameters to which fewer rows add are told together with others (`suppress_cells`).
    max_share : float
        Largest share of one row in what a cell is made of.
    multiplicity : (n,) int array, optional
        How often each row is drawn.

    Returns
    -------
    LocalFit

    Notes
    -----
    The parameters are those of EM where every cell rests on enough rows and no step is over a gap.
    """
    n = len(codes)
    often = np.ones(n) if multiplicity is None else np.asarray(multiplicity, dtype=np.float64)
    used = np.flatnonzero(often > 0)
    seed = int(rng.integers(2**31 - 1))
    part, often = np.asarray(codes)[used], often[used]
    telling = part[(part >= 0).any(axis=1)]
    distinct = len(np.unique(telling, axis=0)) if len(telling) else 0
    entries = entries_of(part, model, sizes)
    entries = entries._replace(amount=entries.amount * often[entries.record])
    rows = entries.row_of_cell
    for k in range(min(n_clusters, distinct, len(part) // max(min_records, 1)), 1, -1):
        found = _fitted(part, often, sizes, model, k, seed, n_init)
        # EM may empty a class: then one fewer is tried.
        if found is None or found[0].n_classes < k:
            continue
        told, spread = found
        shares = np.exp(told.log_posterior(part)[0])
        tables = suppress_cells(
            entries,
            shares,
            min_records=min_records,
            max_share=max_share,
            absorbing=absorbing_rows(model, sizes),
        )
        if min_records > 1:
            # The same model with parameters made of sums that rest on enough rows.
            if shares.sum(axis=0).min() < min_records or not tables.told.any(axis=1).all():
                continue
            chances = tables.chances(rows, PSEUDO_COUNT)
            chances = np.where(np.isnan(chances), 1.0 / np.bincount(rows)[rows], chances)
            proportions = often @ shares
            proportions = proportions / proportions.sum()
            if model == "markov-mixture":
                (s,) = sizes
                steps = chances[:, s:].reshape(-1, s, s)
                told = MarkovParameters(chances[:, :s], steps, proportions)
            else:
                levels = np.ascontiguousarray(chances)
                told = MultinomialMixture(proportions, levels, tuple(int(x) for x in sizes))
        labels = told.label(part)
        if np.bincount(labels, minlength=k).min() < min_records:
            continue
        everything = np.full(n, -1, dtype=np.int64)
        everything[used] = labels
        sums = tables.sums._replace(record=used[tables.sums.record])
        return LocalFit(told, everything, sums=sums, start_spread=spread)
    return LocalFit(None, np.zeros(n, dtype=np.int64))


def _fitted(
    codes: NDArray[Any],
    often: FloatArray,
    sizes: Sequence[int],
    kind: str,
    k: int,
    seed: int,
    n_init: int,
) -> tuple[CodedModel, FloatArray] | None:
    """Fit by EM, with the spread of the starts; None where the rows say too little."""
    if kind == "markov-mixture":
        events = events_of(Sequences.of(codes, sizes[0], weights=often))
        if int(events.telling.sum()) < k:
            return None
        chain = fit_markov_mixture(events, k, seed=seed, n_init=n_init, pseudo_count=PSEUDO_COUNT)
        return chain.best.parameters, chain.start_spread
    data = CategoryPatterns.of(codes, sizes, often)
    if k > data.n_distinct:
        return None
    found = fit_multinomial_mixture(data, k, seed=seed, n_init=n_init, pseudo_count=PSEUDO_COUNT)
    return found.best.parameters, found.start_spread


def coded_bic(
    codes: NDArray[Any],
    sizes: Sequence[int],
    n_clusters: int,
    *,
    model: str,
    rng: np.random.Generator,
    n_init: int = 20,
    min_records: int = 1,
    max_share: float = 1.0,
) -> float:
    """Bayesian information criterion of a local model; smaller is better.

    Parameters
    ----------
    codes, sizes, model, rng, n_init
        As in `fit_coded_model`.
    n_clusters : int
    min_records : int
        Rows that each class must have.
    max_share : float
        Largest share of one row in the log likelihood.

    Returns
    -------
    float
        NaN where the classes cannot be fitted or one is too small, or where one row makes most of
        the log likelihood.
    """
    seed = int(rng.integers(2**31 - 1))
    n = len(codes)
    found = _fitted(codes, np.ones(n), sizes, model, n_clusters, seed, n_init) if n else None
    if found is None or found[0].n_classes < n_clusters:
        return float("nan")
    fitted = found[0]
    if np.bincount(fitted.label(codes), minlength=n_clusters).min() < min_records:
        return float("nan")
    each = -fitted.log_posterior(codes)[1]
    total = float(each.sum())
    # A log likelihood that one row dominates would tell of that row.
    if not np.isfinite(total) or each.max() > max_share * total:
        return float("nan")

    def enough(those: NDArray[np.bool_]) -> bool:
        return int(those.any(axis=1).sum()) >= max(min_records, 1)

    # Free parameters that at least `min_records` rows tell of: of states that occur, and of steps
    # from states that are left; or of levels. Were those of fewer rows counted, a criterion beside
    # its log likelihood would tell whether somebody is in a state.
    rows = np.asarray(codes)
    if model == "markov-mixture":
        later = np.flip(np.logical_or.accumulate(np.flip(rows >= 0, axis=1), axis=1), axis=1)
        followed = np.pad(later[:, 1:], ((0, 0), (0, 1)))
        occur = sum(enough(rows == state) for state in range(sizes[0]))
        left = sum(enough((rows == state) & followed) for state in range(sizes[0]))
        free = max(occur - 1, 0) * (1 + left)
    else:
        free = sum(
            max(sum(enough(rows[:, [j]] == level) for level in range(size)) - 1, 0)
            for j, size in enumerate(sizes)
        )
    return information(-total, n_clusters - 1 + n_clusters * free, n)[1]

"""Probabilistic principal components with missing entries, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray
from consilience.completion.estimators.low_rank_base import Factors, LowRankFactoriser
from consilience.exceptions import DataError
from consilience.numerics.centring import Centre
from consilience.numerics.entries import Entries
from consilience.numerics.low_rank import check_ranks
from consilience.numerics.ppca import PPCAModel, from_moments, ppca_path

_CELLS = 4_000_000  # numbers of a batch of rows


class ProbabilisticPCA(LowRankFactoriser):
    """Normal density of rows: a mean, k common directions and one noise variance.

    Fits the likelihood of the observed entries, by a formula where the matrix is complete. What is
    missing is predicted by its mean given what is observed in the same row, so that scores are
    shrunken towards 0, the more the less is observed.

    Parameters
    ----------
    rank : int
        From 0 to min(n, p).
    tol : float
        With missing entries, a fit ends where a step raises the mean log-likelihood of an entry by
        at most this much.
    max_iter : int
        Steps.

    Attributes
    ----------
    components_ : (rank, p) array
        Orthonormal directions.
    mean_ : (p,) array
    noise_variance_ : float
        Of an entry.
    explained_variance_ : (rank,) array
        Variances of rows along the directions, noise included, decreasing.
    explained_variance_ratio_ : (rank,) array
        The same over the sum of the variances of all columns.
    singular_values_ : (rank,) array
        ``sqrt(n explained_variance_)``, with the rows that have an entry.
    log_likelihood_ : float
        Of all observed entries; NaN for a model that was not fitted to rows.
    model_ : PPCAModel
    n_components_ : int
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Tipping and Bishop, JRSS B 61 (1999). Variances are divided by n, as the likelihood
    wants it: ``sklearn.decomposition.PCA`` divides by n - 1. Entries must be missing at random.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import ProbabilisticPCA
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 1)) * [1.0, -1.0, 2.0] + 0.1 * rng.normal(size=(200, 3))
    >>> x[rng.random(x.shape) < 0.2] = np.nan
    >>> fit = ProbabilisticPCA(1).fit(x)
    >>> fit.components_.round(1)
    array([[ 0.4, -0.4,  0.8]])
    """

    def __init__(self, rank: int = 1, *, tol: float = 1e-7, max_iter: int = 2000) -> None:
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter

    # ------------------------------------------------------------------ fit

    def _factorise(self, entries: Entries) -> Factors:
        rank = check_ranks([self.rank], *entries.shape)[0]
        fit = next(ppca_path(entries, [rank], tol=self.tol, max_iter=self.max_iter))
        n = int((entries.row_counts > 0).sum())
        self._keep(fit.model, n, fit.log_likelihood)
        self.n_iter_, self.converged_ = max(1, fit.n_iter), fit.converged
        if not fit.converged:
            warnings.warn(
                f"the likelihood of rank {rank} still rose after {self.max_iter} steps: raise "
                "max_iter or tol, or take a lower rank",
                ConvergenceWarning,
                stacklevel=3,
            )
        return _factors(fit.model, fit.scores, n)

    def _keep(self, model: PPCAModel, n: int, log_likelihood: float) -> None:
        self.model_ = model
        self.noise_variance_ = model.noise
        self.explained_variance_ = model.variances + model.noise
        total = float(model.variances.sum()) + len(model.mean) * model.noise
        self.explained_variance_ratio_ = self.explained_variance_ / total
        self.log_likelihood_ = log_likelihood

    @classmethod
    def from_moments(
        cls,
        mean: ArrayLike,
        covariance: ArrayLike,
        n: int,
        rank: int,
        *,
        feature_names: Sequence[str] | None = None,
    ) -> Self:
        """Estimator of complete rows of which only the moments are known.

        Parameters
        ----------
        mean : (p,) array
        covariance : (p, p) array
            Divided by n.
        n : int
            Rows.
        rank : int
            From 0 to min(n, p).
        feature_names : sequence of p str, optional

        Raises
        ------
        ParameterError
            The rank is out of its range.
        DataError
            The moments are not those of any rows.
        """
        model = from_moments(
            np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64), n, rank
        )
        return cls.from_model(model, n, feature_names=feature_names)

    @classmethod
    def from_model(
        cls, model: PPCAModel, n: int, *, feature_names: Sequence[str] | None = None
    ) -> Self:
        """Estimator of a model that was fitted elsewhere; it has no rows of its own.

        Parameters
        ----------
        model : PPCAModel
        n : int
            Rows that it was fitted to.
        feature_names : sequence of p str, optional

        Raises
        ------
        DataError
            The names are not as many as the columns.
        """
        p = len(model.mean)
        made = cls(model.rank)
        made.n_features_in_ = p
        if feature_names is not None:
            if len(feature_names) != p:
                raise DataError(f"there are {len(feature_names)} names for {p} columns")
            made.feature_names_in_ = np.array([str(name) for name in feature_names], dtype=object)
        made._keep(model, n, float("nan"))
        made.n_iter_, made.converged_ = 1, True
        made._take(_factors(model, np.zeros((0, model.rank)), n), None)
        return made

    # ------------------------------------------------------------------ density

    def get_covariance(self) -> FloatArray:
        """Covariance matrix of a row, (p, p)."""
        check_is_fitted(self)
        return self.model_.covariance()

    def get_precision(self) -> FloatArray:
        """Inverse of the covariance matrix, (p, p)."""
        check_is_fitted(self)
        return self.model_.precision()

    def score_samples(self, X: Any) -> FloatArray:
        """Log-likelihood of the observed entries of each row, (m,).

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        check_is_fitted(self)
        rows = _batches(self._observed(X, reset=False))
        return np.concatenate([self.model_.log_likelihood(part) for part in rows])

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        y : None
            Ignored.
        """
        return float(self.score_samples(X).mean())

    def _project(self, entries: Entries) -> tuple[Centre, FloatArray]:
        scores = [self.model_.scores(part) for part in _batches(entries)]
        return _centre(self.model_, entries.shape[0]), np.concatenate(scores)


def _centre(model: PPCAModel, n: int) -> Centre:
    return Centre("columns", np.zeros(n), model.mean)


def _factors(model: PPCAModel, scores: FloatArray, n: int) -> Factors:
    k = model.rank
    return Factors(
        centre=_centre(model, len(scores)),
        scores=scores,
        components=np.ascontiguousarray(model.directions.T),
        singular_values=np.sqrt(n * (model.variances + model.noise)),
        penalty=np.zeros(k),
        scale=np.ones(k),
    )


def _batches(entries: Entries) -> Iterator[FloatArray]:
    """Rows with NaN where nothing is observed, some at a time."""
    n, p = entries.shape
    size = max(1, _CELLS // p)
    for begin in range(0, n, size):
        end = min(begin + size, n)
        part = slice(entries.indptr[begin], entries.indptr[end])
        rows = np.full((end - begin, p), np.nan)
        rows[entries.rows[part] - begin, entries.columns[part]] = entries.values[part]
        yield rows

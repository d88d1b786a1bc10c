"""Estimators of a low-rank matrix from its observed entries: centre, fit, rows, completion.

`LowRankFactoriser` is their base. A nuclear-norm penalty (`SoftImpute`), a given rank by truncation
(`HardImpute`) or by a spectral start and descent over spaces (`OptSpace`), and probabilistic
principal components (`ProbabilisticPCA`). `fitted_model` fits one by its name: what a search keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_input import (
    RowCompletion,
    observed_entries,
    row_weights,
)
from consilience.completion.kernels.hard_impute import MAX_ITER, TOL, hard_path, optspace_path
from consilience.completion.kernels.low_rank import LowRankFit, check_ranks
from consilience.completion.kernels.ppca import PPCAFit, PPCAModel, from_moments, ppca_path
from consilience.completion.kernels.soft_impute import rank_path, refit, soft_path
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Centre, Entries, centre_of
from consilience.numerics.row_units import check_units

# --- What estimators of a low-rank matrix with missing entries share: centre, rows, completion.


@dataclass(frozen=True, eq=False)
class Factors:
    """A fitted matrix: centre + scores times components.

    Parameters
    ----------
    centre : Centre
    scores : (n, k) array
        Of the rows that were fitted.
    components : (k, p) array
    singular_values : (k,) array
    penalty : (k,) array
        Ridge penalties under which a row's scores follow from its observed entries; zeros mean
        least squares.
    scale : (k,) array
        What the ridge scores are multiplied with.
    """

    centre: Centre
    scores: FloatArray
    components: FloatArray
    singular_values: FloatArray
    penalty: FloatArray
    scale: FloatArray

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Entries of the fitted matrix with its centre, (m,).

        Parameters
        ----------
        rows, columns : (m,) array of int
        """
        k = len(self.components)
        whole = LowRankFit(self.scores, np.ones(k), np.ascontiguousarray(self.components.T), 0.0)
        return whole.at(rows, columns) + self.centre.at(rows, columns)

    def project(self, entries: Entries) -> tuple[Centre, FloatArray]:
        """Centre and scores of other rows, from their observed entries."""
        centre = self.centre.of_rows(entries)
        scores = row_scores(centre.removed(entries), self.components.T, self.penalty)
        return centre, scores * self.scale


class LowRankFactoriser(
    RowCompletion, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base of the estimators of a low-rank matrix with missing entries.

    A subclass has a parameter `center` and writes :meth:`_solve`; one with a centre or scores of
    its own writes :meth:`_factorise`.

    Attributes
    ----------
    components_ : (n_components, p) array
    singular_values_ : (n_components,) array
        Decreasing.
    mean_ : (p,) array
        Column part of the centre.
    row_means_ : (n,) array
        Row part of the centre; zeros unless ``center="rows-and-columns"``.
    n_components_ : int
        Rank of the fit.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.
    """

    center: str
    components_: FloatArray
    singular_values_: FloatArray
    mean_: FloatArray
    row_means_: FloatArray
    n_components_: int
    n_iter_: int
    converged_: bool
    _factors: Factors

    # ------------------------------------------------------------------ what a subclass writes

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | float, FloatArray | float]:
        """Fit centred entries; set attributes of the estimator's own.

        Returns
        -------
        fit : LowRankFit
        penalty, scale : (k,) arrays or numbers
            Of :class:`Factors`.
        """
        raise NotImplementedError

    def _factorise(self, entries: Entries, weights: FloatArray | None = None) -> Factors:
        """Centre and fit."""
        centre = centre_of(entries, self.center, weights)
        rest = centre.removed(entries)
        if weights is not None:
            # w |x - Vt|^2 is the square of sqrt(w) x - V sqrt(w) t, whose singular values are those
            # of the table in which a row stands w times
            rest = rest.with_values(rest.values * np.sqrt(weights)[rest.rows])
        fit, penalty, scale = self._solve(rest)
        scores = fit.scores()
        if weights is not None:
            scores /= np.sqrt(np.where(weights > 0, weights, 1.0))[:, None]
        return Factors(
            centre=centre,
            scores=scores,
            components=np.ascontiguousarray(fit.v.T),
            singular_values=fit.s,
            penalty=np.zeros(fit.rank) + penalty,
            scale=np.ones(fit.rank) * scale,
        )

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the matrix.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            Nothing is observed, or a place of a sparse matrix is stored twice.
        """
        entries = observed_entries(self, X, reset=True)
        self._take(self._factorise(entries), entries)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> FloatArray:
        """Fit the matrix and give the scores of its rows, (n, n_components)."""
        return self.fit(X, y)._factors.scores.copy()

    def _take(self, factors: Factors, entries: Entries | None) -> None:
        """Keep a fit; without entries it knows no rows of its own."""
        self._factors = factors
        self._entries = entries
        self.components_ = factors.components
        self.singular_values_ = factors.singular_values
        self.mean_ = factors.centre.columns
        self.row_means_ = factors.centre.rows
        self.n_components_ = len(factors.components)

    # ------------------------------------------------------------------ rows

    def transform(self, X: Any) -> FloatArray:
        """Scores of rows from their observed entries.

        At the rows that were fitted they are the scores of the fit, up to its tolerance.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
            A row with nothing observed has scores 0.

        Returns
        -------
        scores : (m, n_components) array
        """
        check_is_fitted(self)
        return self._project(self._given(X))[1]

    def inverse_transform(self, X: Any) -> FloatArray:
        """Rows from scores.

        Parameters
        ----------
        X : (m, n_components) array

        Returns
        -------
        rows : (m, p) array
            Scores times components plus the column means. Row means are no part of the scores:
            with ``center="rows-and-columns"`` use :meth:`reconstruct`.

        Raises
        ------
        DataError
            No matrix of finite numbers, or another number of columns.
        """
        check_is_fitted(self)
        try:
            given = np.asarray(X)
            real = given.dtype.kind in "biufO" and not np.ma.is_masked(X)
            scores = given.astype(np.float64) if real else np.empty(0)
        except (TypeError, ValueError, OverflowError):
            scores = np.empty(0)
        fits = scores.ndim == 2 and scores.shape[1] == self.n_components_
        if not fits or not np.isfinite(scores).all():
            raise DataError(
                f"scores must be a matrix of finite numbers with {self.n_components_} columns, one "
                "for each component"
            )
        return self._in_own_units(scores @ self.components_ + self._factors.centre.columns)

    def _given(self, X: Any) -> Entries:
        """Entries of other rows, in the units of the fit."""
        return observed_entries(self, X, reset=False)

    def _in_own_units(self, rows: FloatArray) -> FloatArray:
        """Rows of the fit, (m, p), in the units in which rows are given."""
        return rows

    def _reconstructed(self, X: Any) -> FloatArray:
        if X is None:
            self._own_entries()
            centre, scores = self._factors.centre, self._factors.scores
        else:
            centre, scores = self._project(self._given(X))
        return self._in_own_units(scores @ self.components_ + centre.dense())

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        return self._factors.at(rows, columns)

    @property
    def factors_(self) -> Factors:
        """Everything from which the fitted matrix and the scores of new rows follow."""
        check_is_fitted(self)
        return self._factors

    def _project(self, entries: Entries) -> tuple[Centre, FloatArray]:
        return self._factors.project(entries)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _ended(self, fit: LowRankFit | PPCAFit, sentence: str, *, depth: int = 5) -> None:
        """Keep how a fit ended, and warn where it had not settled."""
        self.n_iter_, self.converged_ = max(1, fit.n_iter), fit.converged
        if not fit.converged:
            warnings.warn(sentence, ConvergenceWarning, stacklevel=depth)


def row_scores(entries: Entries, v: FloatArray, penalty: FloatArray) -> FloatArray:
    """Scores of each row by ridge regression of its observed entries on the components.

    Minimises ``|x_O - V_O t|^2 + t' diag(penalty) t``; without a penalty the shortest least-squares
    solution.

    Parameters
    ----------
    entries : Entries
        Centred, of a matrix with p columns.
    v : (p, k) array
        Orthonormal columns.
    penalty : (k,) array

    Returns
    -------
    scores : (n, k) array
    """
    n, p = entries.shape
    k = v.shape[1]
    scores = np.zeros((n, k))
    if k == 0:
        return scores
    v = np.ascontiguousarray(v)
    ridge = np.diag(penalty)
    whole = v.T @ v + ridge
    indptr = entries.indptr
    for i in range(n):
        part = slice(indptr[i], indptr[i + 1])
        x, columns = entries.values[part], entries.columns[part]
        if not len(x):
            continue
        loadings = v if len(x) == p else v[columns]
        if penalty.min() > 0:
            # (V_O' V_O + diag(penalty)) t = V_O' x_O
            gram = whole if len(x) == p else loadings.T @ loadings + ridge
            scores[i] = np.linalg.solve(gram, loadings.T @ x)
        elif len(x) == p and not penalty.any():
            # orthonormal columns: the regression is a projection
            scores[i] = loadings.T @ x
        else:
            # some penalties are 0: rows of roots beside the loadings, and the shortest solution
            roots = np.diag(np.sqrt(penalty))
            scores[i] = np.linalg.lstsq(
                np.vstack([loadings, roots]), np.concatenate([x, np.zeros(k)]), rcond=None
            )[0]
    return scores


class WeightedFactoriser(LowRankFactoriser):
    """Base of those whose fit is by least squares, so that rows can have weights."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the matrix.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.
        sample_weight : (n,) array, optional
            Weights of the rows, 0 or more: a whole number w counts a row w times.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            Nothing is observed, a place of a sparse matrix is stored twice, or the weights are not
            one number of 0 or more for each row.
        """
        entries = observed_entries(self, X, reset=True)
        if sample_weight is None:
            self._take(self._factorise(entries), entries)
            return self
        weights = row_weights(sample_weight, entries)
        judged = entries.take(weights[entries.rows] > 0)
        factors = self._factorise(judged, weights)
        if judged.n_observed < entries.n_observed:
            # rows that count for nothing have what the model says of any other row
            out = weights == 0
            centre, scores = factors.project(entries.take(out[entries.rows]))
            rows = np.where(out, centre.rows, factors.centre.rows)
            scores = np.where(out[:, None], scores, factors.scores)
            factors = replace(factors, centre=replace(factors.centre, rows=rows), scores=scores)
        self._take(factors, entries)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> FloatArray:
        """Fit the matrix and give the scores of its rows, (n, n_components)."""
        return self.fit(X, y, sample_weight)._factors.scores.copy()


# --- Low-rank matrix under a nuclear-norm penalty, from the observed entries, as an estimator.


class SoftImpute(WeightedFactoriser):
    """Fill the missing entries, shrink the singular values, repeat.

    Minimises ``1/2 |P_O(X - M)|_F^2 + alpha |M|_*`` over matrices M, where P_O keeps the observed
    entries and ``|M|_*`` is the sum of the singular values. The problem is convex, and the fit
    carries its relative duality gap.

    Parameters
    ----------
    alpha : float
        Penalty, above 0, in the units of singular values of the table.
    rank : int, optional
        In place of `alpha`: the smallest penalty that leaves this rank. With ``unshrink=True`` and
        a complete matrix that is the truncated singular value decomposition.
    unshrink : bool
        SOFT-IMPUTE+: refit the singular values to the observed entries by least squares.
    max_rank : int, optional
        Largest rank. Where it binds, the problem is no longer convex, which a warning says.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    solver : {"auto", "dense", "als"}
        "dense" fills the matrix and takes accelerated steps, "als" turns between the two factors
        and touches observed entries only; "auto" goes by shape and density.
    tol : float
        Relative duality gap at which the fit ends.
    max_iter : int
        Steps, or sweeps.

    Attributes
    ----------
    components_ : (n_components, p) array
        Right singular vectors.
    singular_values_ : (n_components,) array
        Decreasing.
    mean_ : (p,) array
        Column part of the centre.
    row_means_ : (n,) array
        Row part of the centre.
    n_components_ : int
        Rank of the fit.
    alpha_ : float
        Penalty of the fit.
    objective_ : float
        The criterion, or, unshrunk, one half the sum of squared residuals.
    gap_ : float
        Duality gap of the penalised fit over its criterion: a bound for how far it is from the
        minimum. NaN where `max_rank` binds.
    capped_ : bool
        Whether `max_rank` binds.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Mazumder, Hastie and Tibshirani, JMLR 11 (2010); Hastie, Mazumder, Lee and Zadeh, JMLR
    16 (2015) for the turns; Ya Le's Stanford thesis, chapter 3, for SOFT-IMPUTE+. Departures: the
    dense steps are accelerated, the turns solve each ridge regression and are mixed, both end by
    the duality gap.

    The scores of a row solve a ridge regression of its observed entries on the components with
    penalties ``alpha / singular value``: of the rows that were fitted, these are the fit's.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import SoftImpute
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> SoftImpute(0.1, unshrink=True).fit(x).complete()[0].round(2)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        rank: int | None = None,
        unshrink: bool = False,
        max_rank: int | None = None,
        center: str = "none",
        solver: str = "auto",
        tol: float = 1e-6,
        max_iter: int = 1000,
    ) -> None:
        self.alpha = alpha
        self.rank = rank
        self.unshrink = unshrink
        self.max_rank = max_rank
        self.center = center
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | float, FloatArray | float]:
        fit = self._penalised(entries)
        self.alpha_ = alpha = float(fit.alpha or 0.0)
        self.objective_ = fit.objective
        self.capped_ = fit.capped
        self.gap_ = float("nan") if fit.capped or fit.gap is None else fit.gap
        if fit.capped:
            warnings.warn(
                f"more than max_rank = {self.max_rank} singular values are above the penalty: the "
                "fit is a local minimum of that rank, without a certificate; raise max_rank or "
                "alpha",
                UserWarning,
                stacklevel=4,
            )
        self._ended(
            fit,
            f"soft imputation did not settle in {self.max_iter} iterations: raise max_iter, tol or "
            "alpha",
        )
        s = np.maximum(fit.s, np.finfo(float).tiny ** 0.25)
        if not self.unshrink:
            return fit, alpha / s, 1.0
        found, order, values = refit(entries, fit)
        self.objective_ = found.objective
        return found, alpha / s[order], values / s[order]

    def _penalised(self, entries: Entries) -> LowRankFit:
        settings: dict[str, Any] = {
            name: vars(self)[name] for name in ("tol", "max_iter", "solver")
        }
        if self.rank is None:
            (fit,) = soft_path(entries, [self.alpha], max_rank=self.max_rank, **settings)
            return fit
        if self.max_rank is not None:
            raise ParameterError("give SoftImpute rank or max_rank, not both")
        rank = check_ranks([self.rank], *entries.shape)[0]
        *_, fit = rank_path(entries, range(min(rank, 1), rank + 1), **settings)
        return fit


# --- Matrix of a given rank that is nearest to the observed entries, as an estimator.

_STARTS = ("zero", "path")


class HardImpute(WeightedFactoriser):
    """Fill the missing entries, truncate the singular value decomposition, repeat.

    Lowers ``1/2 |P_O(X - M)|_F^2`` over matrices M of a rank, where P_O keeps the observed entries.
    With a complete matrix it is the truncated singular value decomposition. Stopping early is part
    of the method: nothing bounds the missing entries, and the minimum itself may predict far worse.

    Parameters
    ----------
    rank : int
        From 0 to min(n, p).
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    start : {"zero", "path"}
        "zero" fits this rank at once, as a search over ranks does; "path" the ranks 1, 2, ... each
        from the one before, which is another local minimum where the rank is too large.
    solver : {"auto", "dense", "factored"}
        "dense" fills the matrix, "factored" multiplies with a sparse residual plus factors; "auto"
        goes by the shorter side and the share observed.
    tol : float
        A fit ends where truncating moves the filled matrix by at most this share of its norm,
        and small beside the residual too: a table without noise is fitted exactly. Scores of
        `transform` come from the observed entries by least squares: only with a small tolerance are
        they those of the fit at its own rows.
    max_iter : int
        Truncations for each rank.

    Attributes
    ----------
    components_ : (n_components, p) array
        Right singular vectors.
    singular_values_ : (n_components,) array
        Decreasing.
    mean_ : (p,) array
        Column part of the centre.
    row_means_ : (n,) array
        Row part of the centre.
    n_components_ : int
        Rank of the fit: below `rank` where further singular values are zero.
    objective_ : float
        One half the sum of squared residuals.
    n_iter_ : int
        Truncations at the last rank.
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Mazumder, Hastie and Tibshirani, JMLR 11 (2010), section 5; Ya Le's Stanford thesis,
    chapter 3. The minimum is a local one.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import HardImpute
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> HardImpute(1, tol=1e-6).fit(x).complete()[0].round(3)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        center: str = "none",
        start: str = "zero",
        solver: str = "auto",
        tol: float = TOL,
        max_iter: int = MAX_ITER,
    ) -> None:
        self.rank = rank
        self.center = center
        self.start = start
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | float, FloatArray | float]:
        if self.start not in _STARTS:
            raise ParameterError.of("start", '"zero" or "path"', self.start)
        rank = check_ranks([self.rank], *entries.shape)[0]
        first = rank if self.start == "zero" or entries.complete else min(rank, 1)
        ends: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter}
        ranks = range(first, rank + 1)
        *_, fit = hard_path(entries, ranks, solver=self.solver, warm=True, **ends)
        self.objective_ = fit.objective
        self._ended(
            fit,
            f"hard imputation of rank {rank} did not settle in {self.max_iter} iterations: raise "
            "max_iter or tol, or take a lower rank",
        )
        return fit, 0.0, 1.0


# --- Matrix of a given rank from a spectral start and descent over spaces, as an estimator.


class OptSpace(WeightedFactoriser):
    """Spectral start from trimmed entries, then descent over pairs of spaces.

    The criterion is that of `HardImpute`, where stopping early is part of the method too; start and
    descent differ, and so may the local minimum.

    Parameters
    ----------
    rank : int
        From 0 to min(n, p).
    center : {"none", "columns", "rows-and-columns"}
        What is taken off the observed entries first: nothing, column means, or a least-squares fit
        of a term for each row and one for each column.
    tol : float
        A fit ends where the gradient, as a change of the matrix, is at most this share of its norm,
        and small beside the residual too: a table without noise is fitted exactly. Scores of
        `transform` come from the observed entries by least squares: only with a small tolerance are
        they those of the fit at its own rows.
    max_iter : int
        Steps.

    Attributes
    ----------
    components_ : (n_components, p) array
        Right singular vectors.
    singular_values_ : (n_components,) array
        Decreasing.
    mean_ : (p,) array
        Column part of the centre.
    row_means_ : (n,) array
        Row part of the centre.
    n_components_ : int
        Rank of the fit: below `rank` where further singular values are zero.
    objective_ : float
        One half the sum of squared residuals.
    n_iter_ : int
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Keshavan, Montanari and Oh, IEEE Transactions on Information Theory 56 (2010), and JMLR
    11 (2010). Departures: directions are scaled and conjugate.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import OptSpace
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[0, 0] = np.nan
    >>> OptSpace(1, tol=1e-6).fit(x).complete()[0].round(3)
    array([ 1., -1.,  2.])
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        center: str = "none",
        tol: float = TOL,
        max_iter: int = MAX_ITER,
    ) -> None:
        self.rank = rank
        self.center = center
        self.tol = tol
        self.max_iter = max_iter

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | float, FloatArray | float]:
        fit = next(optspace_path(entries, [self.rank], tol=self.tol, max_iter=self.max_iter))
        self.objective_ = fit.objective
        self._ended(
            fit,
            f"OptSpace of rank {self.rank} did not settle in {self.max_iter} steps: raise max_iter "
            "or tol, or take a lower rank",
        )
        return fit, 0.0, 1.0


# --- Probabilistic principal components with missing entries, as an estimator.

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
    units_ : (2, p) array or None
        Centre and scale by which a model of sites prepares rows. They are given in their own units,
        and so are `mean_`, covariances and likelihoods; other attributes are those of prepared
        rows.
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

    def _factorise(self, entries: Entries, weights: FloatArray | None = None) -> Factors:
        rank = check_ranks([self.rank], *entries.shape)[0]
        fit = next(ppca_path(entries, [rank], tol=self.tol, max_iter=self.max_iter))
        n = int((entries.row_counts > 0).sum())
        self.units_: FloatArray | None = None
        self._keep(fit.model, n, fit.log_likelihood)
        self._ended(
            fit,
            f"the likelihood of rank {rank} still rose after {self.max_iter} steps: raise max_iter "
            "or tol, or take a lower rank",
            depth=4,
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
        cls,
        model: PPCAModel,
        n: int,
        *,
        feature_names: Sequence[str] | None = None,
        units: FloatArray | None = None,
    ) -> Self:
        """Estimator of a model that was fitted elsewhere; it has no rows of its own.

        Parameters
        ----------
        model : PPCAModel
        n : int
            Rows that it was fitted to.
        feature_names : sequence of p str, optional
        units : (2, p) array, optional
            Centre and scale of each column before the fit. Then rows are given as they were before
            that, and those in other units are refused.

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
        made.units_ = None if units is None else np.asarray(units, dtype=np.float64)
        made.mean_ = made._in_own_units(model.mean)
        return made

    # ------------------------------------------------------------------ density

    def get_covariance(self) -> FloatArray:
        """Covariance matrix of a row, (p, p)."""
        check_is_fitted(self)
        if self.units_ is None:
            return self.model_.covariance()
        return self.model_.covariance() * np.outer(self.units_[1], self.units_[1])

    def get_precision(self) -> FloatArray:
        """Inverse of the covariance matrix, (p, p)."""
        check_is_fitted(self)
        if self.units_ is None:
            return self.model_.precision()
        return self.model_.precision() / np.outer(self.units_[1], self.units_[1])

    def score_samples(self, X: Any) -> FloatArray:
        """Log-likelihood of the observed entries of each row, (m,).

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        check_is_fitted(self)
        entries = self._given(X)
        found = np.concatenate([self.model_.log_likelihood(part) for part in _batches(entries)])
        if self.units_ is None:
            return found
        # the density of values is that of scaled ones over the scale
        logs = np.log(self.units_[1])[entries.columns]
        return found - np.bincount(entries.rows, weights=logs, minlength=len(found))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-likelihood of the rows.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        y : None
            Ignored.
        sample_weight : (m,) array, optional
            Weights of the rows, 0 or more.
        """
        found = self.score_samples(X)
        if sample_weight is None:
            return float(found.mean())
        return float(np.average(found, weights=row_weights(sample_weight, self._given(X))))

    def _given(self, X: Any) -> Entries:
        entries = super()._given(X)
        if self.units_ is None:
            return entries
        own, scale = self.units_
        spread = scale * np.sqrt(np.diag(self.model_.covariance()))
        check_units(entries.dense(), self.mean_, spread, getattr(self, "feature_names_in_", None))
        at = entries.columns
        return entries.with_values((entries.values - own[at]) / scale[at])

    def _in_own_units(self, rows: FloatArray) -> FloatArray:
        return rows if self.units_ is None else np.asarray(rows * self.units_[1] + self.units_[0])

    def _project(self, entries: Entries) -> tuple[Centre, FloatArray]:
        scores = [self.model_.scores(part) for part in _batches(entries)]
        return self._factors.centre.of_rows(entries), np.concatenate(scores)


def _factors(model: PPCAModel, scores: FloatArray, n: int) -> Factors:
    k = model.rank
    return Factors(
        centre=Centre("columns", np.zeros(len(scores)), model.mean),
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


# --- Low-rank models by name, fitted to observed entries: what is kept after a search.

BY_RANK: dict[str, Callable[..., LowRankFactoriser]] = {
    "hard": HardImpute,
    "soft-unshrunk": partial(SoftImpute, unshrink=True),
    "optspace": OptSpace,
    "ppca": lambda rank, center: ProbabilisticPCA(rank),  # it has a mean of its own
}
"""Estimators of a given rank by name."""

_LEAST = 1e-12  # of the largest variance of a direction: ridge penalties stay finite


@dataclass(frozen=True, eq=False)
class FittedMatrix:
    """A fit of low rank.

    Attributes
    ----------
    factors : Factors
    rank : int
    alpha : float
        Penalty; NaN for a model without one.
    gap : float
        Relative duality gap; NaN where there is none.
    capped : bool
        Whether a limit on the rank bound the fit.
    """

    factors: Factors
    rank: int
    alpha: float = float("nan")
    gap: float = float("nan")
    capped: bool = False


def fitted_model(
    model: str, value: float, entries: Entries, *, center: str, max_rank: int | None = None
) -> FittedMatrix:
    """Fit a model of the package.

    Parameters
    ----------
    model : {"soft", "soft-unshrunk", "hard", "optspace", "ppca"}
    value : float
        Penalty of "soft", rank of the others.
    entries : Entries
    center : {"none", "columns", "rows-and-columns"}
        "ppca" has a mean of its own.
    max_rank : int, optional
        Of "soft".

    Raises
    ------
    ParameterError
        Another model.
    """
    if model not in ("soft", *BY_RANK):
        raise ParameterError.of("model", "soft, soft-unshrunk, hard, optspace or ppca", model)
    made: LowRankFactoriser = SoftImpute(value, center=center, max_rank=max_rank)
    if model != "soft":
        made = BY_RANK[model](rank=int(value), center=center)
    made.fit(entries)
    factors, rank = made.factors_, int(made.n_components_)
    if isinstance(made, ProbabilisticPCA) and rank:
        # A conditional mean is a ridge regression of the row's values on the directions.
        variances, noise = made.model_.variances, made.model_.noise
        floor = _LEAST * max(float(variances.max()), float(noise))
        factors = replace(factors, penalty=noise / np.maximum(variances, floor))
    if not isinstance(made, SoftImpute):
        return FittedMatrix(factors, rank)
    capped = model == "soft" and bool(made.capped_)
    alpha = float(value) if model == "soft" else made.alpha_
    return FittedMatrix(factors, rank, alpha, float(made.gap_), capped)

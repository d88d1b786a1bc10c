"""What estimators of a low-rank matrix with missing entries share: centre, rows, completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_input import observed_entries, places
from consilience.exceptions import DataError
from consilience.numerics.centring import Centre, centre_of
from consilience.numerics.entries import Entries
from consilience.numerics.low_rank import LowRankFit

__all__ = ["Factors", "LowRankFactoriser", "row_scores"]


def _numbers(given: Any) -> FloatArray | None:
    """An array of real numbers; None of anything else."""
    if np.ma.is_masked(given):
        return None
    try:
        found = np.asarray(given)
        return found.astype(np.float64) if found.dtype.kind in "biufO" else None
    except (TypeError, ValueError, OverflowError):
        return None


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

    @classmethod
    def of(
        cls,
        centre: Centre,
        fit: LowRankFit,
        *,
        penalty: FloatArray | None = None,
        scale: FloatArray | None = None,
    ) -> Factors:
        """Factors of a fit by its singular vectors, by default with least-squares scores."""
        return cls(
            centre=centre,
            scores=fit.scores(),
            components=np.ascontiguousarray(fit.v.T),
            singular_values=fit.s,
            penalty=np.zeros(fit.rank) if penalty is None else penalty,
            scale=np.ones(fit.rank) if scale is None else scale,
        )

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Entries of the fitted matrix with its centre, (m,).

        Parameters
        ----------
        rows, columns : (m,) array of int
        """
        k = len(self.components)
        whole = LowRankFit(self.scores, np.ones(k), np.ascontiguousarray(self.components.T), 0.0)
        return whole.at(rows, columns) + self.centre.at(rows, columns)


class LowRankFactoriser(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimators of a low-rank matrix with missing entries.

    A subclass has a parameter `center` and writes :meth:`_solve`; one with a centre or scores of
    its own writes :meth:`_factorise`.

    Attributes
    ----------
    components_ : (n_components_, p) array
    singular_values_ : (n_components_,) array
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
    _factors: Factors
    _entries: Entries | None

    # ------------------------------------------------------------------ what a subclass writes

    def _solve(self, entries: Entries) -> tuple[LowRankFit, FloatArray | None, FloatArray | None]:
        """Fit centred entries; set attributes of the estimator's own.

        Returns
        -------
        fit : LowRankFit
        penalty, scale : (k,) arrays or None
            Of :class:`Factors`.
        """
        raise NotImplementedError

    def _factorise(self, entries: Entries) -> Factors:
        """Centre and fit."""
        centre = centre_of(entries, self.center)
        fit, penalty, scale = self._solve(centre.removed(entries))
        return Factors.of(centre, fit, penalty=penalty, scale=scale)

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
        entries = self._observed(X, reset=True)
        self._take(self._factorise(entries), entries)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> FloatArray:
        """Fit the matrix and give the scores of its rows, (n, n_components_)."""
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
        scores : (m, n_components_) array
        """
        check_is_fitted(self)
        return self._project(self._observed(X, reset=False))[1]

    def inverse_transform(self, X: Any) -> FloatArray:
        """Rows from scores.

        Parameters
        ----------
        X : (m, n_components_) array

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
        scores = _numbers(X)
        fits = scores is not None and scores.ndim == 2 and scores.shape[1] == self.n_components_
        if scores is None or not fits or not np.isfinite(scores).all():
            raise DataError(
                f"scores must be a matrix of finite numbers with {self.n_components_} columns, one "
                "for each component"
            )
        return np.asarray(scores @ self.components_ + self.mean_)

    def reconstruct(self, X: Any = None) -> FloatArray:
        """The low-rank matrix with its centre.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
        """
        check_is_fitted(self)
        if X is None:
            self._own_entries()
            centre, scores = self._factors.centre, self._factors.scores
        else:
            centre, scores = self._project(self._observed(X, reset=False))
        return scores @ self.components_ + centre.dense()

    def complete(self, X: Any = None) -> FloatArray:
        """The matrix with its missing entries filled by the fit, the observed ones kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
        """
        check_is_fitted(self)
        entries = self._own_entries() if X is None else self._observed(X, reset=False)
        full = self.reconstruct(None if X is None else entries)
        full[entries.rows, entries.columns] = entries.values
        return full

    def predict_entries(self, rows: Any, columns: Any) -> FloatArray:
        """Entries of the fitted matrix.

        Parameters
        ----------
        rows, columns : (m,) array of int
            Places in the matrix that was fitted.

        Returns
        -------
        entries : (m,) array

        Raises
        ------
        DataError
            Lists of unequal length, or places outside the matrix.
        """
        check_is_fitted(self)
        return self._factors.at(*places(rows, columns, self._own_entries().shape))

    @property
    def factors_(self) -> Factors:
        """Everything from which the fitted matrix and the scores of new rows follow."""
        check_is_fitted(self)
        return self._factors

    def _own_entries(self) -> Entries:
        if self._entries is None:
            raise DataError("this model was not fitted to rows of its own: give it rows as X")
        return self._entries

    def _project(self, entries: Entries) -> tuple[Centre, FloatArray]:
        found = self._factors
        centre = found.centre.of_rows(entries)
        scores = row_scores(centre.removed(entries), found.components.T, found.penalty)
        return centre, scores * found.scale

    # ------------------------------------------------------------------ input

    def _observed(self, X: Any, *, reset: bool) -> Entries:
        return observed_entries(self, X, reset=reset)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


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
            gram = whole if len(x) == p else loadings.T @ loadings + ridge
            scores[i] = np.linalg.solve(gram, loadings.T @ x)
        elif len(x) == p and not penalty.any():
            scores[i] = loadings.T @ x
        else:
            roots = np.diag(np.sqrt(penalty))
            scores[i] = np.linalg.lstsq(
                np.vstack([loadings, roots]), np.concatenate([x, np.zeros(k)]), rcond=None
            )[0]
    return scores

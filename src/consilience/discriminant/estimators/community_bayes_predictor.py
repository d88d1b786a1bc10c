"""Community Bayes with a linear base as arrays: for sites, and for rows that come later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.discriminant.kernels.multinomial import log_softmax
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.ids import as_ids, ids_from_arrays, ids_to_arrays


class CommunityBayesPredictor:
    """Posteriors from one multinomial logistic regression for each community of features.

    Parameters
    ----------
    communities : sequence of L arrays of int
        Features of each; every feature belongs to one community.
    coefs : sequence of L arrays, shapes (K, q_l)
        In the units of the table (after `scaling`). With two classes a row of zeros for the first
        will do.
    intercepts : (L, K) array
    priors : (K,) array
        Shares of the classes in the rows of the fit.
    classes : (K,) array
        Ascending labels: whole numbers or texts.
    feature_names : sequence of p str, optional
    scaling : (3, p) array, optional
        What fills missing cells, then centre and scale of each column, as a study's preparation
        applied; then tables are given in their own units.

    Attributes
    ----------
    classes_ : (K,) array
    priors_ : (K,) array
    communities_ : tuple of L arrays of int
    n_communities_ : int
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if names were given.

    Raises
    ------
    DataError
        The parts do not fit together.

    Notes
    -----
    Source: Le and Hastie, arXiv 1407.4543: posteriors of communities are multiplied and divided by
    the prior, ``sum_l log p(k | x_l) + (1 - L) log pi_k``.
    """

    def __init__(
        self,
        *,
        communities: Sequence[ArrayLike],
        coefs: Sequence[ArrayLike],
        intercepts: ArrayLike,
        priors: ArrayLike,
        classes: ArrayLike,
        feature_names: Sequence[str] | None = None,
        scaling: ArrayLike | None = None,
    ) -> None:
        self.communities_ = tuple(np.asarray(part, dtype=np.int64) for part in communities)
        self.coefs = tuple(np.asarray(coef, dtype=np.float64) for coef in coefs)
        self.intercepts = np.asarray(intercepts, dtype=np.float64)
        self.priors_ = np.atleast_1d(np.asarray(priors, dtype=np.float64))
        labels = np.asarray(classes)
        self.classes_ = labels if labels.dtype.kind in "iubU" else _labels(labels)
        self.scaling = None if scaling is None else np.asarray(scaling, dtype=np.float64)
        self._check()
        self.n_communities_ = len(self.communities_)
        self.n_features_in_ = sum(len(part) for part in self.communities_)
        if feature_names is not None:
            if len(feature_names) != self.n_features_in_:
                raise DataError("a predictor needs one name for each of its columns")
            self.feature_names_in_ = np.array([str(name) for name in feature_names], dtype=object)

    def _check(self) -> None:
        k, n = len(self.priors_), len(self.communities_)
        fits = k >= 2 and n >= 1 and self.classes_.shape == (k,) and self.priors_.shape == (k,)
        fits &= len(self.coefs) == n and self.intercepts.shape == (n, k)
        fits = fits and all(
            part.ndim == 1 and len(part) and coef.shape == (k, len(part))
            for part, coef in zip(self.communities_, self.coefs, strict=True)
        )
        if not fits:
            raise DataError("the parts of a predictor do not fit together")
        features = np.sort(np.concatenate(self.communities_))
        numbers = (self.intercepts, self.priors_, *self.coefs)
        if not (features == np.arange(len(features))).all():
            raise DataError("each feature of a predictor belongs to exactly one community")
        if not all(np.isfinite(value).all() for value in numbers) or not (self.priors_ > 0).all():
            raise DataError("the numbers of a predictor must be finite, its priors positive")
        if len(set(self.classes_.tolist())) != k:
            raise DataError("the classes of a predictor must differ")
        if self.scaling is not None:
            fits = self.scaling.shape == (3, len(features))
            if not fits or not np.isfinite(self.scaling).all() or not (self.scaling[2] > 0).all():
                raise DataError("the scaling of a predictor does not fit its columns")

    # -------------------------------------------------------------- predicting

    def contributions(self, X: ArrayLike) -> FloatArray:
        """What each community says for each class: ``log p(k | x_l) - log pi_k``, (n, L, K).

        Parameters
        ----------
        X : (n, p) array or data frame

        Raises
        ------
        DataError
            Not the columns of the fit, or no finite numbers.
        """
        rows = self._rows(X)
        found = np.empty((len(rows), self.n_communities_, len(self.priors_)))
        for place, (part, coef) in enumerate(zip(self.communities_, self.coefs, strict=True)):
            eta = self.intercepts[place] + np.zeros((len(rows), 1))
            for column, weights in zip(part.tolist(), coef.T, strict=True):
                eta = eta + rows[:, column, None] * weights  # a row's sum does not see other rows
            found[:, place] = log_softmax(eta)
        return found - np.log(self.priors_)

    def predict_log_proba(self, X: ArrayLike) -> FloatArray:
        """Log-posteriors, (n, K).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        return log_softmax(self._scores(X))

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Posteriors, (n, K).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Scores of the classes, (n, K); with two classes the log-odds of the second, (n,).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable class of each row, (n,).

        Parameters
        ----------
        X : (n, p) array or data frame
        """
        return np.asarray(self.classes_[self._scores(X).argmax(axis=1)])

    def _scores(self, X: ArrayLike) -> FloatArray:
        return np.asarray(self.contributions(X).sum(axis=1) + np.log(self.priors_))

    def _rows(self, X: ArrayLike) -> FloatArray:
        names = getattr(X, "columns", None)
        if names is not None and hasattr(self, "feature_names_in_"):
            wanted = self.feature_names_in_.tolist()
            if [str(name) for name in names] != wanted:
                raise DataError(
                    f"the columns must be {', '.join(wanted)}, in this order: "
                    "rename or reorder the table"
                )
        try:
            rows = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError):  # their own words would show a value
            raise DataError("the table must hold numbers") from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"the table must have {self.n_features_in_} columns")
        if self.scaling is not None:
            fill, centre, scale = self.scaling
            rows = (np.where(np.isnan(rows), fill, rows) - centre) / scale
        if not np.isfinite(rows).all():
            raise DataError("the table has missing or infinite values: fill or drop these rows")
        return rows

    # -------------------------------------------------------------- keeping

    def with_names(
        self, feature_names: Sequence[str] | None, scaling: ArrayLike | None = None
    ) -> CommunityBayesPredictor:
        """Same predictor for tables with these columns, prepared by `scaling`.

        Parameters
        ----------
        feature_names : sequence of str or None
        scaling : (3, p) array, optional
            As in the class.
        """
        return CommunityBayesPredictor(
            communities=self.communities_,
            coefs=self.coefs,
            intercepts=self.intercepts,
            priors=self.priors_,
            classes=self.classes_,
            feature_names=feature_names,
            scaling=scaling,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        sizes = [len(part) for part in self.communities_]
        arrays: dict[str, NDArray[Any]] = {
            "sizes": np.array(sizes, dtype=np.int64),
            "features": np.concatenate(self.communities_),
            "coefs": np.concatenate(self.coefs, axis=1),
            "intercepts": self.intercepts,
            "priors": self.priors_,
            **ids_to_arrays("classes", as_ids(self.classes_, len(self.classes_), "classes")),
        }
        if self.classes_.dtype.kind == "b":
            arrays["classes_are_booleans"] = np.ones(1, dtype=np.int64)
        if self.scaling is not None:
            arrays["scaling"] = self.scaling
        if hasattr(self, "feature_names_in_"):
            arrays.update(ids_to_arrays("names", self.feature_names_in_.astype(np.str_)))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CommunityBayesPredictor:
        """Rebuild a predictor from `to_arrays` of it.

        Raises
        ------
        DataError
            The arrays are not those of a predictor.
        """
        try:
            sizes = np.asarray(arrays["sizes"], dtype=np.int64)
            bounds = np.cumsum([0, *sizes.tolist()])
            features = np.asarray(arrays["features"], dtype=np.int64)
            coefs = np.asarray(arrays["coefs"], dtype=np.float64)
            fits = sizes.ndim == 1 and (sizes > 0).all() and features.shape == (bounds[-1],)
            if not fits or coefs.ndim != 2 or coefs.shape[1] != bounds[-1]:
                raise DataError("these arrays do not hold a predictor")
            parts = {name: np.asarray(arrays[name]) for name in ("intercepts", "priors")}
            classes = ids_from_arrays("classes", arrays)
            if "classes_are_booleans" in arrays:
                classes = classes.astype(bool)
        except (KeyError, ValueError, TypeError):
            raise DataError("these arrays do not hold a predictor") from None
        named = "names_text" in arrays
        return cls(
            communities=[features[i:j] for i, j in pairwise(bounds)],
            coefs=[coefs[:, i:j] for i, j in pairwise(bounds)],
            classes=classes,
            feature_names=ids_from_arrays("names", arrays).tolist() if named else None,
            scaling=arrays.get("scaling"),
            **parts,
        )


def linear_parts(fitted: Any, n_classes: int) -> tuple[FloatArray, FloatArray]:
    """Coefficients (K, q) and intercepts (K,) of a logistic regression, in the table's units.

    Parameters
    ----------
    fitted : classifier
        scikit-learn's ``LogisticRegression``, alone or after ``StandardScaler`` in a pipeline.
    n_classes : int
        K.

    Raises
    ------
    ParameterError
        Another base.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    steps = [step for _, step in fitted.steps] if hasattr(fitted, "steps") else [fitted]
    *before, last = steps
    known = isinstance(last, LogisticRegression) and len(last.classes_) == n_classes
    if not known or len(before) > 1 or not all(isinstance(b, StandardScaler) for b in before):
        raise ParameterError(
            "only logistic regression, alone or after StandardScaler, has a predictor of arrays: "
            "keep the classifier itself"
        )
    coef, intercept = np.asarray(last.coef_, float), np.asarray(last.intercept_, float)
    if len(coef) == 1:  # two classes: the log-odds of the second
        coef, intercept = np.vstack([0.0 * coef, coef]), np.append(0.0, intercept)
    for scaler in before:
        if scaler.scale_ is not None:
            coef = coef / scaler.scale_
        if scaler.with_mean:
            intercept = intercept - coef @ scaler.mean_
    return coef, intercept


def _labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as whole numbers or texts, where they are neither."""
    return as_ids(labels, len(labels), "classes")

"""What searches over held-out entries share: the curve, the choice, the model that is kept."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray
from consilience.completion.estimators.entry_input import observed_entries, places
from consilience.completion.estimators.setting_types import check_settings
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryCurve, GridEdgeWarning, check_rule


class EntrySearch(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the searches.

    A subclass has the parameters `rule` and `refit` and writes :meth:`_search`, :meth:`_refitted`
    and :meth:`_tell`.

    Attributes
    ----------
    curve_ : EntryCurve
        Mean squared error per held-out entry, by parameter and fold.
    minimiser_ : float or int
        Parameter with the smallest mean error, at an edge of the grid too.
    one_standard_error_ : float or int
        Simplest parameter within one standard error of the smallest mean error.
    at_edge_ : bool
        Whether the smallest error lies where the grid ends though the problem goes on.
    best_estimator_ : estimator
        Fitted to all entries, with the parameter that the rule keeps; at an artificial edge too.
        Only with ``refit=True``.
    remarks_ : tuple of str
        What was noticed.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.
    """

    rule: str
    refit: bool
    best_estimator_: Any
    _entries: Entries

    def _search(self, entries: Entries) -> EntryCurve:
        """Errors at held-out entries."""
        raise NotImplementedError

    def _refitted(self, entries: Entries, value: Any) -> Any:
        """Estimator of a parameter, fitted to all entries."""
        raise NotImplementedError

    def _tell(self, value: Any, chosen: Any) -> None:
        """Set attributes of the search's own.

        Parameters
        ----------
        value : float or int
            What is kept.
        chosen : float, int or None
            The same, or None at an artificial edge.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose by held-out entries, and fit all entries with what was chosen.

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
            The matrix cannot be used, or has one row or one column.

        Warns
        -----
        GridEdgeWarning
            The smallest error lies where the grid ends though the problem goes on.
        """
        check_settings(self)
        check_rule(self.rule)
        entries = observed_entries(self, X, reset=True)
        _check_size(entries)
        self.curve_ = curve = self._search(entries)
        self._entries = entries
        self.minimiser_ = curve.best
        self.one_standard_error_ = curve.best_one_standard_error
        self.at_edge_ = curve.at_edge
        value = curve.parameters[curve.place(self.rule)].item()
        remark = curve.edge_remark()
        self.remarks_ = () if remark is None else (remark,)
        if hasattr(self, "best_estimator_"):
            del self.best_estimator_
        if self.refit:
            self.best_estimator_ = self._refitted(entries, value)
        self._tell(value, None if curve.at_edge else value)
        if remark is not None:
            warnings.warn(remark, GridEdgeWarning, stacklevel=2)
        return self

    # ------------------------------------------------------------------ answers of the model

    def transform(self, X: Any) -> FloatArray:
        """As of the model that is kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        return np.asarray(self._ask("transform", X))

    def inverse_transform(self, X: Any) -> FloatArray:
        """As of the model that is kept.

        Parameters
        ----------
        X : (m, k) array
        """
        return np.asarray(self._model().inverse_transform(X))

    def reconstruct(self, X: Any = None) -> FloatArray:
        """The matrix that the model gives.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
        """
        model = self._model()
        return np.asarray(model.reconstruct() if X is None else self._ask("reconstruct", X))

    def complete(self, X: Any = None) -> FloatArray:
        """The matrix with its missing entries filled by the model, the observed ones kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
        """
        self._model()
        entries = self._entries if X is None else observed_entries(self, X, reset=False)
        full = self.reconstruct(None if X is None else entries).copy()
        full[entries.rows, entries.columns] = entries.values
        return full

    def predict_entries(self, rows: Any, columns: Any) -> FloatArray:
        """Entries of the fitted matrix.

        Parameters
        ----------
        rows, columns : (m,) array of int

        Returns
        -------
        entries : (m,) array
        """
        model = self._model()
        if hasattr(model, "predict_entries"):
            return np.asarray(model.predict_entries(rows, columns))
        i, j = places(rows, columns, self._entries.shape)
        return np.asarray(model.reconstruct()[i, j])

    def _model(self) -> Any:
        check_is_fitted(self, "curve_")
        if not hasattr(self, "best_estimator_"):
            raise DataError("no model was kept: search with refit=True")
        return self.best_estimator_

    def _ask(self, name: str, X: Any) -> Any:
        model = self._model()
        if not hasattr(model, name):
            raise AttributeError(f"{type(model).__name__} has no {name}")
        return getattr(model, name)(readable(model, observed_entries(self, X, reset=False)))

    @property
    def _n_features_out(self) -> int:
        model = self._model()
        known = getattr(model, "_n_features_out", None)
        return len(model.get_feature_names_out()) if known is None else int(known)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def readable(model: Any, entries: Entries) -> Any:
    """Entries as a model takes them: those of this package as they are, others a dense matrix.

    Parameters
    ----------
    model : estimator
    entries : Entries
    """
    ours = type(model).__module__.startswith("consilience.completion.estimators.")
    return entries if ours else entries.dense()


def parameter_name(estimator: Any, given: str | None, usual: tuple[str, ...], what: str) -> str:
    """Which parameter of an object a search sets.

    Parameters
    ----------
    estimator : object
    given : str or None
        What the caller says.
    usual : tuple of str
        What it may be called, the first of these that it has.
    what : str
        What the parameter is, for the error.

    Raises
    ------
    ParameterError
        It has none of them.
    """
    if given is not None or not hasattr(estimator, "get_params") or isinstance(estimator, type):
        return given or usual[0]
    known = estimator.get_params(deep=True)
    found = [name for name in usual if name in known]
    if not found:
        raise ParameterError(
            f"{type(estimator).__name__} has no parameter called {', '.join(usual)}: say with "
            f"parameter= which of its parameters is {what}"
        )
    return found[0]


def _check_size(entries: Entries) -> None:
    n, p = entries.shape
    if n < 2 or p < 2:
        short = "one row (n_samples = 1)" if n < 2 else "one column (n_features = 1)"
        raise DataError(
            f"the matrix has {short}: entries of it cannot be held out, for nothing would be left "
            "to predict them from"
        )

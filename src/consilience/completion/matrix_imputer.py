"""A completion model as a step of a pipeline: gaps filled, what is observed kept."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import has_fit_parameter

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators import entry_input
from consilience.completion.estimators.entry_input import RowCompletion
from consilience.completion.selection import NuclearNormCV
from consilience.exceptions import ParameterError
from consilience.numerics.held_out_entries import copied


class MatrixImputer(OneToOneFeatureMixin, RowCompletion, TransformerMixin, BaseEstimator):
    """Fill the missing entries of rows by a model of the whole matrix.

    Columns come out as many, and in the same order, as they go in; observed entries stay as they
    are. Use it in a pipeline, and search over the parameters of the model by their names
    (``estimator__rank``): :meth:`score` needs no scorer.

    Parameters
    ----------
    estimator : estimator, optional
        A completion model or search of this package, or an object with ``fit(X)``, where NaN is
        missing, and ``reconstruct(X)``, the matrix that it makes of rows with gaps. By default
        ``NuclearNormCV(random_state=0)``: soft-impute with the penalty by held-out entries.

    Attributes
    ----------
    estimator_ : estimator
        The fitted model.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    See Also
    --------
    NuclearNormCV, RankCV : Searches over held-out entries, without a pipeline.
    EMLift : Gives ``reconstruct`` to an estimator that needs complete data.

    Notes
    -----
    Rows are filled from their own observed entries, those that were fitted as well as new ones. A
    row with nothing observed gets the column part of the centre, and so does a column of which
    nothing was observed. Fills carry no noise: variances of filled columns are too small.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from consilience import HardImpute, MatrixImputer
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(90, 12))
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> search = GridSearchCV(MatrixImputer(HardImpute()), {"estimator__rank": [1, 2, 3]}, cv=3)
    >>> search.fit(X).best_params_
    {'estimator__rank': 2}
    """

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.
        sample_weight : (n,) array, optional
            Weights of the rows, for a model whose ``fit`` takes them.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            The model lacks ``fit`` or ``reconstruct``, or takes no weights of rows.
        DataError
            The table cannot be used.
        """
        model = self._model()
        given: dict[str, Any] = {}
        if sample_weight is not None:
            if not has_fit_parameter(model, "sample_weight"):
                raise ParameterError(
                    f"{type(model).__name__} takes no sample_weight: leave it out, or take "
                    "SoftImpute, HardImpute or OptSpace as estimator"
                )
            given["sample_weight"] = sample_weight
        entries = entry_input.observed_entries(self, X, reset=True)
        self.estimator_ = model.fit(entry_input.readable(model, entries), **given)
        self._entries = entries
        return self

    def _model(self) -> Any:
        if self.estimator is None:
            return NuclearNormCV(random_state=0)
        lacking = [what for what in ("fit", "reconstruct") if not hasattr(self.estimator, what)]
        if isinstance(self.estimator, type) or lacking:
            raise ParameterError(
                "estimator must be an object with fit and reconstruct, but "
                f"{type(self.estimator).__name__} was given: EMLift gives these to an estimator "
                "that needs complete data"
            )
        return copied(self.estimator)

    def transform(self, X: Any) -> FloatArray:
        """Rows with their gaps filled, (m, p).

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
            Of a sparse matrix what is not stored is filled.
        """
        return self.complete(X)

    def _reconstructed(self, X: Any) -> FloatArray:
        model = self.estimator_
        if X is None:
            return np.array(model.reconstruct(), dtype=np.float64)
        entries = entry_input.observed_entries(self, X, reset=False)
        return np.array(model.reconstruct(entry_input.readable(model, entries)), dtype=np.float64)

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        if hasattr(self.estimator_, "predict_entries"):
            return np.asarray(self.estimator_.predict_entries(rows, columns))
        return np.asarray(self.reconstruct()[rows, columns])

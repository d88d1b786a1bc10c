"""Any learner on a tall table that is fitted split by split, close to its fit of all rows.

Source: Le, *A General Algorithm for Distributed Learning* (Stanford, 2020, chapter 1). Departures:
the reference rows are rows of the table by default; a penalty is that of the table as a whole; a
guard may return plain averaging.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from consilience.arrays import FloatArray
from consilience.averaging.estimators.conventions import innermost, settled, steps_of
from consilience.averaging.tall.fitting import fit_table
from consilience.averaging.tall.passes import Settings
from consilience.averaging.tall.tables import HeldTable, ParquetTable
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.reference_average import averaged
from consilience.numerics.row_units import of_arrow

_BLOCK = 65_536
_FLOATS = [np.float64, np.float32]


@dataclasses.dataclass(eq=False, repr=False)
class _ReferenceAveraging(BaseEstimator):
    """What both estimators share."""

    _task: ClassVar[Any]
    _default: ClassVar[type[Any]]
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"columns": UNUSED}

    estimator: Any = None
    _: dataclasses.KW_ONLY
    n_splits: int = 8
    penalties: Sequence[float] | None = None
    reference: Any = "rows"
    n_reference: int | None = None
    schedule: str = "adaptive"
    rho: float = 1.0
    exponent: float = 0.9
    max_rounds: int = 20
    patience: int = 2
    holdout: float = 0.2
    convention: str = "auto"
    guard: bool = True
    n_jobs: int | None = None
    random_state: Any = None
    checkpoint: Any = None
    progress: bool = False

    def fit(
        self, X: Any, y: Any, *, sample_weight: Any = None, columns: Sequence[str] | None = None
    ) -> Any:
        """Fit the table split by split.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or frame, or path of a Parquet file or of a folder of them
            A frame may hold text: then the steps of a pipeline before its learner are fitted once,
            on all rows.
        y : (n,) array, or name of the Parquet column
        sample_weight : (n,) array, or name of the Parquet column, optional
            Weights of the rows, not negative. Rows of weight 0 are left out; splits, penalties,
            held-out losses and averages count a row by its weight.
        columns : sequence of str, optional
            Features of a Parquet data set: all columns but `y` by default. No others are read.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or does not fit the learner.
        DataError
            The table cannot be used.
        RunError
            The checkpoint is of other settings or another table, or cannot be written.

        Warns
        -----
        UserWarning
            The reference rows, the splits or the learner keep the rounds from the fit of all rows.
        """
        table, levels = self._opened(X, y, sample_weight, columns)
        found = fit_table(
            table,
            self._settings(),
            levels=levels,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
            checkpoint=self.checkpoint,
            progress=self.progress,
        )
        self._learner = found.learner
        self.estimators_ = found.models
        self.split_sizes_ = found.sizes
        self.history_ = found.history
        self.chosen_round_ = self.n_iter_ = found.choice.round
        self.kept_ = found.choice.kept
        self.reason_ = found.choice.reason
        self.remarks_ = found.remarks
        self.reference_ = found.reference
        if self._task == "classification":
            self.classes_ = found.levels
        if self.penalties is not None:
            self.penalty_ = float(found.history["penalties"][found.choice.track])
        # Averages of coefficients, where all splits have the same ones.
        for name in ("coef_", "intercept_"):
            self.__dict__.pop(name, None)
            parts = [np.asarray(getattr(f, name, np.nan), dtype=float) for f in found.models]
            same = len({part.shape for part in parts}) == 1
            if found.learner.is_linear and same and all(hasattr(f, name) for f in found.models):
                setattr(self, name, averaged(parts, found.sizes))
        return self

    def _opened(
        self, X: Any, y: Any, weight: Any, columns: Sequence[str] | None
    ) -> tuple[HeldTable | ParquetTable, NDArray[Any] | None]:
        """The table, and the levels of the target where they are known at once."""
        classes = self._task == "classification"
        self._encoder: Any = None
        if isinstance(X, str | os.PathLike):
            if not isinstance(y, str) or not isinstance(weight, str | None):
                raise ParameterError(
                    "y and sample_weight must be the name of a column where X is a Parquet data set"
                )
            stored = ParquetTable(X, y, columns, weight=weight, classes=classes)
            self.n_features_in_ = stored.n_columns
            self.feature_names_in_ = np.array(stored.names, dtype=object)
            if stored.n_rows < 2:
                raise DataError("the Parquet data set has fewer than two rows")
            return stored, None
        if columns is not None:
            raise ParameterError("columns= is for Parquet data sets: choose columns of X itself")
        X = of_arrow(X)
        if hasattr(X, "columns") and self._needs_names(X):
            validate_data(self, X, skip_check_array=True)
            self._encoder = self._fitted_encoder(X)
            X, y = check_X_y(
                self._encoded(X), y, dtype=_FLOATS, ensure_min_samples=2, y_numeric=not classes
            )
        else:
            X, y = validate_data(
                self,
                X,
                y,
                accept_sparse="csr",
                dtype=_FLOATS,
                ensure_min_samples=2,
                y_numeric=not classes,
            )
            if sparse.issparse(X) and not X.has_canonical_format:
                X = X.copy()  # not in place: the matrix is the caller's
                X.sum_duplicates()
        if weight is not None:
            weight = _check_sample_weight(weight, X, dtype=float, ensure_non_negative=True)
            if not weight.all():
                X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
            if X.shape[0] < 2:
                raise DataError("fewer than two rows have a weight above 0: check sample_weight")
        if not classes:
            return HeldTable(X, np.asarray(y, dtype=float), weight), None
        check_classification_targets(y)
        levels, codes = np.unique(y, return_inverse=True)
        if len(levels) < 2:
            raise DataError("the target holds one class only: give rows of at least two classes")
        return HeldTable(X, codes.astype(float), weight), levels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ------------------------------------------------------------------ columns by name

    def _needs_names(self, X: Any) -> bool:
        """Whether a frame holds what is no number, or the pipeline chooses columns by name."""
        text = any(getattr(kind, "kind", "O") not in "biuf" for kind in X.dtypes)
        return text or any(hasattr(step, "transformers") for _, step in steps_of(self.estimator))

    def _fitted_encoder(self, X: Any) -> Any:
        """Steps before the learner, fitted on all rows: few rows may lack a level."""
        steps = list(steps_of(self.estimator))
        if not steps:
            raise DataError(
                "X holds columns that are no numbers: give a pipeline that encodes them, as "
                "make_pipeline(make_column_transformer((OneHotEncoder(), ['city']), "
                "remainder='passthrough'), Ridge()), or leave them out"
            )
        given = self.random_state
        seed = int(given) if isinstance(given, int | np.integer) else 0
        names = [f"{name}-{i}" for i, (name, _) in enumerate(steps)]
        encoder = Pipeline(
            [(name, settled(clone(step), seed)) for name, (_, step) in zip(names, steps)]
        )
        if any(get_tags(step).target_tags.required for _, step in encoder.steps):
            raise ParameterError(
                "a step of the pipeline cannot be fitted without the response: encode such columns "
                "beforehand"
            )
        return encoder.fit(X)

    def _encoded(self, X: Any) -> Any:
        rows = self._encoder.transform(X)
        return rows.toarray() if hasattr(rows, "toarray") else rows

    def _settings(self) -> Settings:
        reference = self.reference
        if not isinstance(reference, str):
            # The user's rows in the order of the columns.
            names = getattr(self, "feature_names_in_", None)
            if names is not None and hasattr(reference, "columns"):
                missing = [name for name in names if name not in reference.columns]
                if missing:
                    raise ParameterError(f"the reference rows have no column {missing[0]!r}")
                reference = reference[list(names)]
            if self._encoder is not None:
                reference = self._encoded(reference)
            if sparse.issparse(reference):
                reference = reference.tocsr().astype(float)
            else:
                reference = np.array(reference, dtype=float)
        given: dict[str, Any] = {
            field.name: getattr(self, field.name, None) for field in dataclasses.fields(Settings)
        }
        estimator = self._default() if self.estimator is None else self.estimator
        own: dict[str, Any] = {
            "estimator": estimator if self._encoder is None else innermost(estimator),
            "task": self._task,
            "penalties": () if self.penalties is None else tuple(map(float, self.penalties)),
            "reference": reference,
            "guard": bool(self.guard),
        }
        return Settings(**given | own)

    def _average(self, X: Any) -> FloatArray:
        """Average of the splits' predictions, (n, q)."""
        check_is_fitted(self)
        X = of_arrow(X)
        if self._encoder is None:
            X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=_FLOATS)
        else:
            validate_data(self, X, reset=False, skip_check_array=True)
            X = check_array(self._encoded(X), dtype=_FLOATS)
        found = []
        for at in range(0, X.shape[0], _BLOCK):
            x = X[at : at + _BLOCK].astype(float)
            predictions = [self._learner.predict(fitted, x) for fitted in self.estimators_]
            found.append(averaged(predictions, self.split_sizes_))
        return np.concatenate(found)


class ReferenceAveragingRegressor(RegressorMixin, _ReferenceAveraging):
    """Regression of a tall table, split by split, close to the fit of all rows.

    Parameters
    ----------
    estimator : estimator, optional
        What to aim at: the fit of this estimator to all rows together. By default
        ``Ridge()``, or ``LogisticRegression()`` in classification.
        Pipelines are possible; their transformers are fitted once, on the reference rows (on all
        rows of a frame that holds text, or whose columns they choose by name).
    n_splits : int
        Splits of the table; fewer where a split would have fewer than ten rows.
    penalties : sequence of float, optional
        Values of the estimator's penalty (``alpha``, ``C``), in the units of the whole table. All
        of them are fitted in one run, and held-out rows choose.
    reference : {"rows", "moments"} or (m, p) array, sparse matrix or frame
        Reference rows: drawn from the table, normal rows with the table's means and covariances,
        or the user's.
    n_reference : int, optional
        By default a twentieth of the rows of a split, from 5 to 20 for each column.
    schedule : {"adaptive", "fixed", "asynchronous"}
        Weight of the pseudo-rows in round k: ``rho * k**exponent``, or `rho`; asynchronously each
        split goes on as soon as it is through, on a virtual clock that `random_state` decides.
    rho : float
        In units of the mean squared length of the table's rows.
    exponent : float
        In [0, 1).
    max_rounds : int
        0 is plain averaging.
    patience : int
        Rounds without a gain in held-out loss after which a penalty is given up.
    holdout : float
        Share of each split that is held out during the trial (20,000 rows in all at most). The
        models that are kept are fitted to all rows.
    convention : {"auto", "sum", "normalised", "rows", "trees"}
        How the learner weighs rows against its penalty; needed for learners that are not known.
    guard : bool
        Probe the learner's stability on three splits, measure held-out loss, and return plain
        averaging unless the best round gains more than one standard error. Without it the last
        round is returned.
    n_jobs : int, optional
        As in joblib, whose ``parallel_config`` chooses the backend (processes, threads, dask, ray).
    random_state : int, RandomState or None
    checkpoint : path, optional
        Folder for the state after each round: a fit with the same settings goes on from there.
    progress : bool
        On stderr.

    Attributes
    ----------
    estimators_ : list of B fitted estimators
        One for each split; predictions are their average.
    split_sizes_ : (B,) array
        Weights of the average: rows of each split, or the sum of their weights.
    coef_, intercept_ : arrays
        Averages over the splits, where the learner is linear and without preprocessing.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Where X has names.
    chosen_round_, n_iter_ : int
        0 is plain averaging.
    kept_ : bool
        Whether a refit is kept.
    reason_ : {"gain", "no-gain", "not-separable", "not-measured"}
    penalty_ : float
        Chosen penalty, where `penalties` are given.
    history_ : dict of arrays
        By round: weights ``rhos`` (K + 1,), relative ``movement`` of the average, ``influence`` of
        each split (K + 1, B), ``gains`` in held-out loss and ``gain_errors`` (g, K + 1) by penalty;
        ``base_loss`` (g,) of averaging; ``probes``; facts of the reference rows; CPU
        seconds of all fits.
    reference_ : (m, p) array, or sparse matrix where X is one
    remarks_ : tuple of str
        What was warned of.

    Notes
    -----
    Rows in memory are dealt out to the splits like cards; rows of a mapped file and of a Parquet
    data set stay in their order. Workers send back predictions, and models only once, at the end.

    References
    ----------
    Le, *A General Algorithm for Distributed Learning* (Stanford, 2020), chapter 1, algorithms 1, 2.
    """

    _task = "regression"
    _default = Ridge

    def predict(self, X: Any) -> FloatArray:
        """Average of the splits' predictions.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or frame

        Returns
        -------
        (n,) array
        """
        return np.asarray(self._average(X)[:, 0])


class ReferenceAveragingClassifier(ClassifierMixin, _ReferenceAveraging):
    """Classification of a tall table, split by split, close to the fit of all rows.

    Parameters and attributes are those of :class:`ReferenceAveragingRegressor`; the learner needs
    ``predict_proba``, and held-out loss is the log loss.

    Attributes
    ----------
    classes_ : (q,) array
    estimators_ : list of B fitted estimators
        For positions of ``classes_``; their probabilities are averaged, so ``coef_``, the average
        of coefficients, describes the result but does not give its probabilities.
    """

    _task = "classification"
    _default = LogisticRegression

    def predict_proba(self, X: Any) -> FloatArray:
        """Average of the splits' probabilities.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or frame

        Returns
        -------
        (n, q) array
            In the order of ``classes_``.
        """
        return self._average(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Most probable class.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or frame

        Returns
        -------
        (n,) array
        """
        best = np.argmax(self._average(X), axis=1)
        return np.asarray(self.classes_[best])

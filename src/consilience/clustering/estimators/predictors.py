"""The result of ensemble clustering as a predictor for new rows and for sites that join late."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import AnyArray, FloatArray, IntArray
from consilience.clustering.estimators import local_models
from consilience.clustering.estimators.category_codes import (
    levels_from_arrays,
    levels_to_arrays,
    missing_cells,
)
from consilience.clustering.estimators.local_models import ClusterModel, CodedModel, kind_of
from consilience.clustering.kernels.ensemble import assign
from consilience.clustering.kernels.mixtures import Arrays
from consilience.exceptions import DataError
from consilience.numerics.row_units import check_names, read_rows

_UNKNOWN = (
    "{count} cells of {where} hold a value that is not one of the {n} levels of the study: correct "
    "them, or leave them empty"
)


class _Predictor:
    """Label rows by all local models, then by the nearest final centre."""

    models: tuple[Any, ...]

    def _take_map(self, features: FloatArray, centres: FloatArray) -> None:
        """Keep features T and final centres that fit the models."""
        self.features = np.asarray(features, dtype=np.float64)
        self.centres = np.asarray(centres, dtype=np.float64)
        self._n_classes = tuple(m.n_classes for m in self.models)
        if not (
            self.features.ndim == 2
            and self.centres.ndim == 2
            and self.features.shape[0] == sum(self._n_classes)
            and self.centres.shape[1] == self.features.shape[1]
            and self.centres.shape[0] > 0
        ):
            raise DataError("features and centres of a predictor do not fit its models")
        if not (np.isfinite(self.features).all() and np.isfinite(self.centres).all()):
            raise DataError("features and centres of a predictor must be finite")
        self.classes_ = np.arange(self.centres.shape[0])

    @abstractmethod
    def _rows(self, X: Any) -> AnyArray:
        """Rows as the models take them."""

    def label(self, X: Any) -> IntArray:
        """Label tuples of the rows under all models, shape (n, M)."""
        rows = self._rows(X)
        return np.stack([model.label(rows) for model in self.models], axis=1)

    def _predicted(self, X: Any) -> IntArray:
        return assign(self.label(X), self._n_classes, self.features, self.centres)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        arrays: Arrays = {"features": self.features, "centres": self.centres}
        arrays["n_models"] = np.array([len(self.models)], dtype=np.int64)
        for m, model in enumerate(self.models):
            arrays.update({f"model{m}.{key}": value for key, value in model.to_arrays().items()})
        return arrays


def _models_in(arrays: Mapping[str, AnyArray]) -> list[Any]:
    """Models of a predictor from its arrays; `KeyError` or `IndexError` where there are none."""
    parts: dict[str, Arrays] = {}
    # Keys are model0.means, model0.proportions, model1.means, ...
    for key, value in arrays.items():
        owner, dot, name = key.partition(".")
        if dot and owner.startswith("model"):
            parts.setdefault(owner, {})[name] = value
    count = int(np.asarray(arrays["n_models"]).ravel()[0])
    return [local_models.local_model_from_arrays(parts[f"model{m}"]) for m in range(count)]


class EnsemblePredictor(_Predictor):
    """Label rows by all local models, then by the nearest final centre.

    Parameters
    ----------
    models : sequence of M models
        Local models in the order of the exchange.
    features : array, shape (q, r)
        T: the features of a row are the sum of the rows of T of its M labels; q is the number of
        classes of all models together.
    centres : array, shape (K, r)
        Final centres.
    feature_names : sequence of str, optional
        Names of the d columns.
    scaling : array, shape (3, d), optional
        What fills missing cells, then centre and scale of each column; rows are taken as they are
        without it.

    Attributes
    ----------
    n_features_in_ : int
        d.
    feature_names_in_ : array of str, shape (d,)
        Only if names were given.
    classes_ : array of int64, shape (K,)
        ``0 .. K - 1``.

    Raises
    ------
    DataError
        If models, features, centres and names do not fit together.

    Notes
    -----
    Source: arXiv 2409.08396, section 2: features are rows of the ensemble distance matrix, here in
    the exact form of `consilience.clustering.kernels.ensemble`.
    """

    def __init__(
        self,
        models: Sequence[ClusterModel],
        features: FloatArray,
        centres: FloatArray,
        *,
        feature_names: Sequence[str] | None = None,
        scaling: FloatArray | None = None,
    ) -> None:
        self.models = tuple(models)
        if not self.models or len({m.n_features for m in self.models}) != 1:
            raise DataError("a predictor needs models of the same columns")
        self.n_features_in_ = self.models[0].n_features
        self._take_map(features, centres)
        self.scaling = None if scaling is None else np.asarray(scaling, dtype=np.float64)
        if self.scaling is not None and self.scaling.shape != (3, self.n_features_in_):
            raise DataError("the scaling of a predictor does not fit its columns")
        if feature_names is not None:
            if len(feature_names) != self.n_features_in_:
                raise DataError("a predictor needs one name for each of its columns")
            self.feature_names_in_ = np.array([str(name) for name in feature_names])

    def predict(self, X: ArrayLike) -> IntArray:
        """Final class of each row.

        Parameters
        ----------
        X : array or data frame, shape (n, d)
            Columns as in the exchange: with a scaling in the units of the encoded columns, without
            one in the units in which the models were fitted.

        Returns
        -------
        array of int64, shape (n,)
            Classes ``0 .. K - 1``. A row's class does not depend on the other rows.

        Raises
        ------
        DataError
            If columns are missing, in another order or of other names, or a value is missing.
        """
        return self._predicted(X)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole predictor, names as UTF-8 bytes."""
        arrays = super().to_arrays()
        if self.scaling is not None:
            arrays["scaling"] = self.scaling
        if hasattr(self, "feature_names_in_"):
            encoded = [str(name).encode("utf-8") for name in self.feature_names_in_]
            arrays["names"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            arrays["name_lengths"] = np.array([len(name) for name in encoded], dtype=np.int64)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> EnsemblePredictor | CodedPredictor:
        """Rebuild a predictor from `to_arrays` of it, or of one of coded rows.

        Raises
        ------
        DataError
            If the arrays are not those of a predictor.
        """
        if "n_levels" in arrays:
            return CodedPredictor.from_arrays(arrays)
        try:
            models = _models_in(arrays)
            features, centres = arrays["features"], arrays["centres"]
            names = None
            if "names" in arrays:
                data = np.asarray(arrays["names"], dtype=np.uint8).tobytes()
                bounds = np.cumsum([0, *np.asarray(arrays["name_lengths"], dtype=np.int64)])
                names = [data[i:j].decode("utf-8") for i, j in pairwise(bounds)]
        except (KeyError, IndexError, UnicodeDecodeError):
            raise DataError("these arrays do not hold a predictor") from None
        if any(kind_of(m) for m in models):
            raise DataError("a predictor needs models of the same columns")
        scaling = arrays.get("scaling")
        return cls(models, features, centres, feature_names=names, scaling=scaling)

    def _rows(self, X: ArrayLike) -> FloatArray:
        named = getattr(self, "feature_names_in_", None)
        rows = read_rows(X, self.n_features_in_, None if named is None else named.tolist())
        if self.scaling is None:
            return rows
        fill, centre, scale = self.scaling
        # The same operations as in the exchange, so that labels are the same to the last bit.
        filled = np.where(np.isnan(rows), fill, rows)
        return np.asarray((filled - centre) / scale)


class CodedPredictor(_Predictor):
    """Label sequences, or rows of categories, by all local models, then by the nearest centre.

    Parameters
    ----------
    models : sequence of M models
        Local models of one kind, in the order of the exchange.
    features : array, shape (q, r)
        T: the features of a row are the sum of the rows of T of its M labels.
    centres : array, shape (K, r)
        Final centres.
    levels : sequence of sequences of str
        The states (one entry); or the levels of each column.
    columns : sequence of str
        Names of the columns: time points, or categorical columns.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of str
    classes_ : (K,) array of int64
    levels_ : tuple of tuples of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(
        self,
        models: Sequence[CodedModel],
        features: FloatArray,
        centres: FloatArray,
        *,
        levels: Sequence[Sequence[str]],
        columns: Sequence[str],
    ) -> None:
        self.models = tuple(models)
        self.levels_ = tuple(tuple(str(level) for level in known) for known in levels)
        sizes = tuple(len(known) for known in self.levels_)
        if len({kind_of(m) for m in self.models}) != 1 or {m.sizes for m in self.models} != {sizes}:
            raise DataError("a predictor needs models of one kind, of the same states or levels")
        self.sequences = kind_of(self.models[0]) == "markov-mixture"
        self._take_map(features, centres)
        if not self.sequences and len(columns) != len(sizes):
            raise DataError("columns of a predictor do not fit its models")
        self.feature_names_in_ = np.array([str(name) for name in columns])
        self.n_features_in_ = len(columns)

    def predict(self, X: Any) -> IntArray:
        """Final class of each row.

        Parameters
        ----------
        X : data frame or (n, t) array
            Sequences: one column per time point, as many as there are; what is missing at the end
            is no part of the sequence. Categories: the columns of the study in their order.
            Cells are levels, as text or numbers; None and NaN are missing.

        Returns
        -------
        (n,) array of int64
            Classes ``0 .. K - 1``. A row's class does not depend on the other rows.

        Raises
        ------
        DataError
            Columns are missing or in another order, or a cell is no level of the study.
        """
        return self._predicted(X)

    def _rows(self, X: Any) -> IntArray:
        wanted = self.feature_names_in_.tolist()
        check_names(X, wanted)
        cells = np.asarray(X, dtype=object)
        if cells.ndim != 2 or (not self.sequences and cells.shape[1] != len(wanted)):
            raise DataError(f"the table must have {len(wanted)} columns")
        missing = missing_cells(cells)
        codes = np.full(cells.shape, -1, dtype=np.int64)
        for j in range(cells.shape[1]):
            known = self.levels_[0 if self.sequences else j]
            seen = np.flatnonzero(~missing[:, j])
            codes[seen, j] = _places([cells[i, j] for i in seen], known)
            count = int((codes[seen, j] < 0).sum())
            if count:
                where = wanted[j] if j < len(wanted) else f"column {j + 1}"
                raise DataError(_UNKNOWN.format(count=count, where=where, n=len(known)))
        return codes

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole predictor, texts as UTF-8 bytes."""
        arrays = super().to_arrays()
        arrays["n_levels"] = np.array([len(known) for known in self.levels_], dtype=np.int64)
        arrays["n_columns"] = np.array([self.n_features_in_], dtype=np.int64)
        arrays |= levels_to_arrays(tuple(np.array(known) for known in self.levels_), "levels")
        return arrays | levels_to_arrays((self.feature_names_in_.astype(np.str_),), "columns")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CodedPredictor:
        """Rebuild a predictor from `to_arrays` of it.

        Raises
        ------
        DataError
            If the arrays are not those of a predictor.
        """
        try:
            models = _models_in(arrays)
            sizes = tuple(int(n) for n in np.asarray(arrays["n_levels"]))
            levels = levels_from_arrays(arrays, sizes, "levels")
            n_columns = int(np.asarray(arrays["n_columns"]).ravel()[0])
            (columns,) = levels_from_arrays(arrays, (n_columns,), "columns")
            features, centres = arrays["features"], arrays["centres"]
        except (KeyError, IndexError, ValueError, UnicodeDecodeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError("these arrays do not hold a predictor") from None
        if not all(kind_of(m) for m in models):
            raise DataError("a predictor needs models of one kind, of the same states or levels")
        return cls(
            models,
            features,
            centres,
            levels=[[str(level) for level in known] for known in levels],
            columns=[str(name) for name in columns],
        )


def _places(cells: Sequence[Any], levels: Sequence[str]) -> IntArray:
    """Place of each cell among the levels, -2 in none; as numbers where all levels are numbers."""
    by_text = {level: i for i, level in enumerate(levels)}
    numbers = [_number(level) for level in levels]
    by_number = {x: i for i, x in enumerate(numbers) if x is not None}
    if len(by_number) < len(levels):
        by_number = {}
    found = []
    for cell in cells:
        place = by_text.get(str(cell), -2)
        number = _number(cell) if place < 0 else None
        # A level 1 may be read as 1.0 from a table of numbers.
        found.append(by_number.get(number, -2) if number is not None else place)
    return np.asarray(found, dtype=np.int64)


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None

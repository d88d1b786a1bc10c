"""The result of ensemble clustering as a predictor for new rows and for sites that join late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.estimators.cluster_models import Arrays, ClusterModel, model_from_arrays
from consilience.clustering.estimators.coded_predictor import CodedPredictor
from consilience.clustering.kernels.ensemble import assign
from consilience.exceptions import DataError


class EnsemblePredictor:
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
        self.features = np.asarray(features, dtype=np.float64)
        self.centres = np.asarray(centres, dtype=np.float64)
        if not self.models or len({m.n_features for m in self.models}) != 1:
            raise DataError("a predictor needs models of the same columns")
        self.n_features_in_ = self.models[0].n_features
        self._n_classes = tuple(m.n_classes for m in self.models)
        shapes_fit = (
            self.features.ndim == 2
            and self.centres.ndim == 2
            and self.features.shape[0] == sum(self._n_classes)
            and self.centres.shape[1] == self.features.shape[1]
            and self.centres.shape[0] > 0
        )
        if not shapes_fit:
            raise DataError("features and centres of a predictor do not fit its models")
        if not (np.isfinite(self.features).all() and np.isfinite(self.centres).all()):
            raise DataError("features and centres of a predictor must be finite")
        self.classes_ = np.arange(self.centres.shape[0])
        self.scaling = None if scaling is None else np.asarray(scaling, dtype=np.float64)
        if self.scaling is not None and self.scaling.shape != (3, self.n_features_in_):
            raise DataError("the scaling of a predictor does not fit its columns")
        if feature_names is not None:
            if len(feature_names) != self.n_features_in_:
                raise DataError("a predictor needs one name for each of its columns")
            self.feature_names_in_ = np.array([str(name) for name in feature_names])

    def label(self, X: ArrayLike) -> IntArray:
        """Label tuples of the rows under all models, shape (n, M)."""
        rows = self._rows(X)
        return np.stack([model.label(rows) for model in self.models], axis=1)

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
        return assign(self.label(X), self._n_classes, self.features, self.centres)

    def to_arrays(self) -> Arrays:
        """Numeric arrays that hold the whole predictor, names as UTF-8 bytes."""
        arrays: Arrays = {"features": self.features, "centres": self.centres}
        arrays["n_models"] = np.array([len(self.models)], dtype=np.int64)
        for m, model in enumerate(self.models):
            arrays.update({f"model{m}.{key}": value for key, value in model.to_arrays().items()})
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
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, value in arrays.items():
            owner, dot, name = key.partition(".")
            if dot:
                parts.setdefault(owner, {})[name] = value
        try:
            count = int(np.asarray(arrays["n_models"]).ravel()[0])
            models = [model_from_arrays(parts[f"model{m}"]) for m in range(count)]
            features, centres = arrays["features"], arrays["centres"]
            names = _decoded(arrays) if "names" in arrays else None
        except (KeyError, IndexError, UnicodeDecodeError):
            raise DataError("these arrays do not hold a predictor") from None
        scaling = arrays.get("scaling")
        return cls(models, features, centres, feature_names=names, scaling=scaling)

    def _rows(self, X: ArrayLike) -> FloatArray:
        names = getattr(X, "columns", None)
        if names is not None and hasattr(self, "feature_names_in_"):
            given, wanted = [str(name) for name in names], self.feature_names_in_.tolist()
            if given != wanted:
                raise DataError(
                    f"the columns must be {', '.join(wanted)}, in this order: "
                    "rename or reorder the table"
                )
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"the table must have {self.n_features_in_} columns")
        if self.scaling is None:
            return rows
        fill, centre, scale = self.scaling
        # The same operations as in the exchange, so that labels are the same to the last bit.
        filled = np.where(np.isnan(rows), fill, rows)
        return np.asarray((filled - centre) / scale)


def _decoded(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    data = np.asarray(arrays["names"], dtype=np.uint8).tobytes()
    bounds = np.cumsum([0, *np.asarray(arrays["name_lengths"], dtype=np.int64)])
    return [data[i:j].decode("utf-8") for i, j in pairwise(bounds)]

"""Prediction by several sites' models together: their average, weighted by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.ids import ids_from_arrays, ids_to_arrays
from consilience.numerics.row_units import read_rows

Portable = Mapping[str, Any]


class CollaborativePredictor:
    """Average of the models of one group, for new rows.

    Parameters
    ----------
    models : sequence of models
        In the form in which they travel (``wire.estimators``).
    sizes : array, shape (M,)
        Rows behind each model: its weight.
    feature_names : sequence of str, optional
        Names of the p columns.
    levels : sequence of str, optional
        Levels of the response; none in regression.
    scaling : array, shape (3, p), optional
        What fills missing cells, then centre and scale of each column, as the preparation applied.
    standards : array, shape (2, p + 1), optional
        Centres and scales of columns and response at this site, where every site standardised by
        its own.
    reach : array, shape (2,), optional
        Least and largest prediction of a numeric response, on the scale of the models: what lies
        beyond is cut. A linear model is off without bound where the columns take values that its
        site has never seen.

    Raises
    ------
    DataError
        The parts do not fit together.

    Notes
    -----
    Source: Ye, Ghanadan and Ding (2022), "unpooled" use: ``sum n_j f_j(x) / sum n_j``.
    """

    def __init__(
        self,
        models: Sequence[Portable],
        sizes: ArrayLike,
        *,
        feature_names: Sequence[str],
        levels: Sequence[str] = (),
        scaling: FloatArray | None = None,
        standards: FloatArray | None = None,
        reach: FloatArray | None = None,
    ) -> None:
        self.models = tuple(dict(m) for m in models)
        self.sizes = np.asarray(sizes, dtype=float)
        self.levels = tuple(str(level) for level in levels)
        self.feature_names_in_ = np.array([str(name) for name in feature_names])
        self.n_features_in_ = len(self.feature_names_in_)
        self.scaling = scaling
        self.standards = standards
        self.reach = reach
        p = self.n_features_in_
        fits = len(self.models) == len(self.sizes) > 0 and bool((self.sizes > 0).all())
        fits &= scaling is None or np.shape(scaling) == (3, p)
        fits &= standards is None or np.shape(standards) == (2, p + 1)
        fits &= reach is None or (np.shape(reach) == (2,) and not self.levels)
        if not fits:
            raise DataError("a predictor needs models, each with its rows, of the same columns")
        if self.levels:
            self.classes_ = np.array(self.levels)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predictions for new rows.

        Parameters
        ----------
        X : array or data frame, shape (n, p)
            Encoded columns as in the exchange, in their own units.

        Returns
        -------
        array, shape (n,)
            Numbers in the units of the response, or levels.

        Raises
        ------
        DataError
            Columns that are not those of the exchange, or a model that cannot be used.
        """
        prediction = self._average(X)
        if self.levels:
            return np.asarray(self.classes_[prediction.argmax(axis=1)])
        values = prediction[:, 0]
        if self.reach is not None:
            values = np.clip(values, *self.reach)
        if self.standards is not None:
            values = values * self.standards[1, -1] + self.standards[0, -1]
        return values

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Probabilities of the levels, shape (n, K); only where the response has levels."""
        if not self.levels:
            raise DataError("probabilities are for responses with levels: use predict")
        prediction = self._average(X)
        return np.asarray(prediction / prediction.sum(axis=1, keepdims=True))

    def _average(self, X: ArrayLike) -> FloatArray:
        from consilience.learners.foreign_models import predict_all

        rows = self._rows(X)
        found = predict_all(
            self.models,
            rows,
            n_features=self.n_features_in_,
            n_outputs=max(1, len(self.levels)),
        )
        for i, prediction in enumerate(found):
            if isinstance(prediction, str):
                raise DataError(f"model {i + 1} of the group cannot be used: {prediction}")
        share = self.sizes / self.sizes.sum()
        return np.asarray(sum(w * f for w, f in zip(share, found, strict=True)))

    def _rows(self, X: ArrayLike) -> FloatArray:
        rows = read_rows(X, self.n_features_in_, self.feature_names_in_.tolist())
        if self.scaling is not None:
            fill, centre, scale = self.scaling
            rows = (np.where(np.isnan(rows), fill, rows) - centre) / scale
        if self.standards is not None:
            rows = (rows - self.standards[0, :-1]) / self.standards[1, :-1]
        if not np.isfinite(rows).all():
            raise DataError("the table has missing or infinite values: fill or drop these rows")
        return rows

    # ------------------------------------------------------------------ keeping

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Numeric arrays that hold the whole predictor, texts and bytes as numbers."""
        from consilience.wire.codec import pack

        names = ids_to_arrays("names", self.feature_names_in_)
        levels = ids_to_arrays("levels", np.array(self.levels, dtype=np.str_))
        arrays: dict[str, NDArray[Any]] = {
            "models": np.frombuffer(pack(self.models), dtype=np.uint8),
            "sizes": self.sizes,
            "names": names["names_text"],
            "name_lengths": names["names_lengths"],
            "levels": levels["levels_text"],
            "level_lengths": levels["levels_lengths"],
        }
        if self.scaling is not None:
            arrays["scaling"] = np.asarray(self.scaling)
        if self.reach is not None:
            arrays["reach"] = np.asarray(self.reach)
        if self.standards is not None:
            arrays["standards"] = np.asarray(self.standards)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CollaborativePredictor:
        """Rebuild a predictor from `to_arrays` of it.

        Raises
        ------
        DataError
            The arrays are not those of a predictor.
        """
        from consilience.exceptions import WireError
        from consilience.wire.codec import unpack

        try:
            models = unpack(np.asarray(arrays["models"], dtype=np.uint8).tobytes())
            names, levels = (
                ids_from_arrays(
                    kind,
                    {
                        f"{kind}_text": arrays[kind],
                        f"{kind}_lengths": arrays[f"{kind[:-1]}_lengths"],
                    },
                ).tolist()
                for kind in ("names", "levels")
            )
            sizes = arrays["sizes"]
        except (KeyError, ValueError, WireError):
            raise DataError("these arrays do not hold a predictor") from None
        if not isinstance(models, tuple) or not all(isinstance(m, dict) for m in models):
            raise DataError("these arrays do not hold a predictor")
        return cls(
            models,
            sizes,
            feature_names=names,
            levels=levels,
            scaling=arrays.get("scaling"),
            standards=arrays.get("standards"),
            reach=arrays.get("reach"),
        )

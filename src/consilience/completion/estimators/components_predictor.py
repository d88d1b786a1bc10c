"""Common components as a predictor: scores of new rows, and what is missing in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.completion.estimators.gap_rows import GapRows
from consilience.exceptions import DataError
from consilience.numerics.ppca import PPCAModel

_FOREIGN = "these arrays do not hold a predictor"


class ComponentsPredictor:
    """Scores, reconstruction and missing values of rows under probabilistic principal components.

    Parameters
    ----------
    model : PPCAModel
    table : GapRows
        Names and units of the columns.

    Attributes
    ----------
    components_ : (k, p) array
        Orthonormal, in the units of the fit.
    mean_ : (p,) array
        In the units of the table.
    noise_variance_ : float
    n_components_ : int
    feature_names_in_ : (p,) array of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(self, model: PPCAModel, table: GapRows) -> None:
        self.model, self.table = model, table
        p, k = len(table.names), len(model.variances)
        if model.mean.shape != (p,) or model.directions.shape != (p, k):
            raise DataError(_FOREIGN)
        self.components_ = np.ascontiguousarray(model.directions.T)
        self.mean_ = table.in_units(model.mean[None, :])[0]
        self.noise_variance_ = model.noise
        self.n_components_ = k
        self.feature_names_in_ = table.names

    def transform(self, X: Any) -> FloatArray:
        """Expected scores given the values that a row has, (m, k); 0 for a row without any.

        Parameters
        ----------
        X : (m, p) array or data frame
            In the units of the table; NaN is missing. A data frame may have further columns.
        """
        return self.model.scores(self._rows(X))

    def reconstruct(self, X: Any) -> FloatArray:
        """Rows as their components have them, (m, p), in the units of the table.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        return self.table.in_units(self.model.reconstruct(self._rows(X)))

    def complete(self, X: Any) -> FloatArray:
        """Rows with their gaps filled, (m, p), and the values that they have as they are.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        given = np.asarray(self._chosen(X), dtype=np.float64)
        return np.asarray(np.where(np.isnan(given), self.reconstruct(X), given))

    def score_samples(self, X: Any) -> FloatArray:
        """Logarithm of the density of the values that a row has, (m,): low for unusual rows.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        return self.model.log_likelihood(self._rows(X))

    def _chosen(self, X: Any) -> Any:
        names = getattr(X, "columns", None)
        wanted = self.feature_names_in_.tolist()
        if names is not None and set(wanted) <= set(names):
            return X[wanted]
        return X

    def _rows(self, X: Any) -> FloatArray:
        return self.table.read(self._chosen(X)).dense()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {
            "mean": self.model.mean,
            "directions": self.model.directions,
            "variances": self.model.variances,
            "noise": np.array([self.model.noise]),
            **self.table.to_arrays(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        try:
            mean, v, variances = (
                np.asarray(arrays[k]) for k in ("mean", "directions", "variances")
            )
            model = PPCAModel(mean, v, variances, float(np.asarray(arrays["noise"])[0]))
        except (KeyError, IndexError, ValueError, TypeError):
            raise DataError(_FOREIGN) from None
        return cls(model, GapRows.from_arrays(arrays))

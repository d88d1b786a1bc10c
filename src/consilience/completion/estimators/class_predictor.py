"""Classes of new rows with gaps, by the nearest centre over the coordinates that a row has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.gap_rows import GapRows
from consilience.exceptions import DataError
from consilience.numerics.observed_kmeans import nearest_centres


class ClassPredictor:
    """Take rows to the nearest of some centres.

    Parameters
    ----------
    centres : (k, p) array
        In the units in which distances are measured.
    means : (p,) array
        Of the columns, in the same units: where a row without a value is taken to be.
    table : GapRows
        Names and units of the columns.

    Attributes
    ----------
    cluster_centers_ : (k, p) array
        In the units of the table.
    feature_names_in_ : (p,) array of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(self, centres: ArrayLike, means: ArrayLike, table: GapRows) -> None:
        self.centres = np.asarray(centres, dtype=np.float64)
        self.means = np.asarray(means, dtype=np.float64)
        self.table = table
        p = len(table.names)
        if self.centres.ndim != 2 or self.centres.shape[1] != p or self.means.shape != (p,):
            raise DataError("these arrays do not hold a predictor")
        self.cluster_centers_ = table.in_units(self.centres)
        self.feature_names_in_ = table.names

    def predict(self, X: Any) -> IntArray:
        """Class of each row.

        Parameters
        ----------
        X : (m, p) array or data frame
            In the units of the table; NaN is missing. A row without a value goes to the class
            nearest to the means of the columns.

        Returns
        -------
        (m,) array of int
        """
        return nearest_centres(self.table.read(X), self.centres, self.means)[0]

    def transform(self, X: Any) -> FloatArray:
        """Distances to the centres, (m, k), over the values of a row and scaled up to all p."""
        entries = self.table.read(X)
        squares = nearest_centres(entries, self.centres, self.means)[1]
        counts, p = entries.row_counts, entries.shape[1]
        share = np.where(counts > 0, counts, p) / p
        return np.asarray(np.sqrt(squares / share[:, None]))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {"centres": self.centres, "means": self.means, **self.table.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        if "centres" not in arrays or "means" not in arrays:
            raise DataError("these arrays do not hold a predictor")
        return cls(arrays["centres"], arrays["means"], GapRows.from_arrays(arrays))

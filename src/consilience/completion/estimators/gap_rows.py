"""Tables with gaps as predictors take them: names and units of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.entries import Entries
from consilience.numerics.ids import ids_from_arrays, ids_to_arrays

_NOT_NUMBERS = "the table must hold numbers, with NaN where one is missing"


class GapRows:
    """Reads tables whose columns a predictor knows.

    Parameters
    ----------
    names : (p,) array of str
    units : (2, p) array
        Centre and scale that were applied to each column before the fit.

    Raises
    ------
    DataError
        Names and units do not fit together.
    """

    def __init__(self, names: NDArray[Any], units: FloatArray) -> None:
        self.names = np.array([str(name) for name in names], dtype=np.str_)
        self.units = np.asarray(units, dtype=np.float64)
        if self.units.shape != (2, len(self.names)) or not (self.units[1] > 0).all():
            raise DataError("these arrays do not hold a predictor")

    def read(self, X: Any) -> Entries:
        """Observed entries of a table, in the units of the fit.

        Parameters
        ----------
        X : (m, p) array or data frame
            NaN is missing.

        Raises
        ------
        DataError
            Other columns, infinite values or no numbers.
        """
        names = getattr(X, "columns", None)
        if names is not None and [str(name) for name in names] != self.names.tolist():
            raise DataError(
                f"the columns must be {', '.join(self.names[:10])}"
                f"{' and others' if len(self.names) > 10 else ''}, in this order: rename or "
                "reorder the table"
            )
        try:
            rows = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(_NOT_NUMBERS) from None
        if rows.ndim != 2 or rows.shape[1] != len(self.names):
            raise DataError(f"the table must have {len(self.names)} columns")
        if np.isinf(rows).any():
            raise DataError(_NOT_NUMBERS)
        scaled = (rows - self.units[0]) / self.units[1]
        i, j = np.nonzero(~np.isnan(scaled))
        return Entries(rows.shape, i.astype(np.int64), j.astype(np.int64), scaled[i, j])

    def in_units(self, rows: FloatArray) -> FloatArray:
        """Rows of the fit, (m, p), in the units of the table."""
        return np.asarray(rows * self.units[1] + self.units[0])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {"units": self.units, **ids_to_arrays("columns", self.names)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        if "units" not in arrays:
            raise DataError("these arrays do not hold a predictor")
        return cls(ids_from_arrays("columns", arrays), arrays["units"])

"""What a site keeps of a regression: a predictor of new rows, with limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.ids import ids_from_arrays, ids_to_arrays
from consilience.regression.kernels import FAMILIES, family_of

_FOREIGN = "these arrays do not hold a predictor"


class RegressionPredictor:
    """Means of new rows under a fitted regression.

    Parameters
    ----------
    family : str
    names : (m,) array of str
        Prepared columns.
    coefficients : (m + 1,) array
        The constant first, then those of the columns in the units of the fit.
    covariance : (m + 1, m + 1) array
    df : float
        Degrees of freedom of limits; infinite for normal ones.
    level : float
        Of limits.
    units : (2, m) array, optional
        Centre and scale that were applied to each column before the fit.

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(
        self,
        *,
        family: str,
        names: NDArray[Any],
        coefficients: FloatArray,
        covariance: FloatArray,
        df: float,
        level: float,
        units: ArrayLike | None = None,
    ) -> None:
        m = len(names)
        plain = np.array([[0.0], [1.0]]).repeat(m, axis=1)
        self.family, self.df, self.level = family, df, level
        self.feature_names_in_ = np.array([str(name) for name in names], dtype=np.str_)
        self.coefficients = np.asarray(coefficients, dtype=float)
        self.covariance = np.asarray(covariance, dtype=float)
        self.units = plain if units is None else np.asarray(units, dtype=float)
        shapes = (self.coefficients.shape, self.covariance.shape, self.units.shape)
        if shapes != ((m + 1,), (m + 1, m + 1), (2, m)) or family not in FAMILIES:
            raise DataError(_FOREIGN)
        if not 0 < level < 1 or not df > 0:
            raise DataError(_FOREIGN)

    def predict(self, X: Any, offset: ArrayLike | None = None) -> FloatArray:
        """Mean response of each row, (n,).

        Parameters
        ----------
        X : (n, m) array or data frame
            Prepared columns in the units of the table; a data frame may have further columns.
        offset : (n,) array or a number, optional
            Of a fit with an offset; 0 unless given.
        """
        return self.mean_of(self._rows(X), offset)

    def limits(self, X: Any, offset: ArrayLike | None = None) -> FloatArray:
        """Lower and upper limit of the mean response of each row, (n, 2).

        Parameters
        ----------
        X : (n, m) array or data frame
        offset : (n,) array or a number, optional
        """
        from scipy.stats import t  # scipy.stats takes long to load

        rows = self._rows(X)
        design = np.column_stack([np.ones(len(rows)), rows])
        eta = design @ self.coefficients + self._offset(offset, len(design))
        error = np.sqrt(np.einsum("ij,jk,ik->i", design, self.covariance, design))
        # the limits of t with infinite degrees of freedom are those of the normal distribution
        half = float(t.ppf((1 + self.level) / 2, self.df)) * error
        return np.stack([family_of(self.family).mean(eta + s * half) for s in (-1, 1)], axis=1)

    def mean_of(self, x: FloatArray, offset: ArrayLike | None = None) -> FloatArray:
        """Mean response of rows in the units of the fit."""
        constant, slopes = self.coefficients[0], self.coefficients[1:]
        eta = x @ slopes + (constant + self._offset(offset, len(x)))
        return family_of(self.family).mean(eta)

    @staticmethod
    def _offset(offset: ArrayLike | None, n: int) -> FloatArray:
        try:
            found = np.asarray(0.0 if offset is None else offset, dtype=float)
        except (TypeError, ValueError):
            raise DataError("the offset must be numbers") from None
        if found.shape not in ((), (n,)) or not np.isfinite(found).all():
            raise DataError("the offset must be one finite number, or one for each row")
        return found

    def _rows(self, X: Any) -> FloatArray:
        wanted, names = self.feature_names_in_.tolist(), getattr(X, "columns", None)
        if names is not None:
            missing = [name for name in wanted if name not in set(names)]
            if missing:
                raise DataError(f"the table lacks column {missing[0]!r}: add it")
            X = X[wanted]
        try:
            rows = np.asarray(X, dtype=float)
        except (TypeError, ValueError):
            raise DataError("the table must hold numbers") from None
        if rows.ndim != 2 or rows.shape[1] != len(wanted) or not np.isfinite(rows).all():
            raise DataError(f"the table must have {len(wanted)} columns of finite numbers")
        return np.asarray((rows - self.units[0]) / self.units[1])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {
            "family": np.array([FAMILIES.index(self.family)]),
            "coefficients": self.coefficients,
            "covariance": self.covariance,
            "limits": np.array([-1.0 if math.isinf(self.df) else self.df, self.level]),
            "units": self.units,
            **ids_to_arrays("columns", self.feature_names_in_),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        wanted = ("family", "coefficients", "covariance", "limits", "units")
        if any(name not in arrays for name in wanted):
            raise DataError(_FOREIGN)
        place, limits = np.ravel(arrays["family"]), np.ravel(arrays["limits"])
        if len(place) != 1 or not 0 <= place[0] < len(FAMILIES) or len(limits) != 2:
            raise DataError(_FOREIGN)
        return cls(
            family=FAMILIES[int(place[0])],
            names=ids_from_arrays("columns", arrays),
            coefficients=arrays["coefficients"],
            covariance=arrays["covariance"],
            df=math.inf if limits[0] < 0 else float(limits[0]),
            level=float(limits[1]),
            units=arrays["units"],
        )

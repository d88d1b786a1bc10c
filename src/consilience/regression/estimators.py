"""What a site keeps of a regression: a predictor of new rows, with limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.ids import ids_from_arrays, ids_to_arrays
from consilience.regression.kernels import COX, FAMILIES, family_of

_FOREIGN = "these arrays do not hold a predictor"
_STEEP = 700.0
"""Logarithm of a hazard ratio; the exponential of more is no number."""


class Survival(NamedTuple):
    """Probabilities of no event until some times, (n, t) each; NaN after all were last seen.

    Attributes
    ----------
    share : array
    error : array
        Standard error of the share: of the coefficients, and of the baseline hazard.
    low, high : array
        Limits at the predictor's level, of the logarithm of the cumulative hazard.
    """

    share: FloatArray
    error: FloatArray
    low: FloatArray
    high: FloatArray


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
    baseline : (k + 1, m + 3) array, optional
        Of a Cox regression: hazard of the site's rows by time (:func:`regression.cox.baseline`).

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
        baseline: ArrayLike | None = None,
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
        self.baseline = np.empty((0, m + 3)) if baseline is None else np.asarray(baseline, float)
        if not 0 < level < 1 or not df > 0 or self.baseline.shape[1:] != (m + 3,):
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
        rows = self._rows(X)
        design = np.column_stack([np.ones(len(rows)), rows])
        eta = design @ self.coefficients + self._offset(offset, len(design))
        half = self._quantile() * self._error(design)
        return np.stack([family_of(self.family).mean(eta + s * half) for s in (-1, 1)], axis=1)

    def _error(self, directions: FloatArray) -> FloatArray:
        """Standard error of each line's product with the coefficients."""
        inside = np.einsum("...j,jk,...k->...", directions, self.covariance, directions)
        return np.asarray(np.sqrt(np.maximum(inside, 0.0)))

    def _quantile(self) -> float:
        from scipy.stats import t  # scipy.stats takes long to load

        # t with infinite degrees of freedom is the normal distribution
        return float(t.ppf((1 + self.level) / 2, self.df))

    def predict_survival(
        self, X: Any, times: ArrayLike, offset: ArrayLike | None = None
    ) -> Survival:
        """Probability of no event until each time, at the site that keeps this predictor.

        With the site's cumulative hazard H0 at linear predictor 0 it is ``exp(-H0(t) exp(eta))``.
        The variance of the cumulative hazard is, by the delta method,
        ``exp(2 eta) (sum d / S0^2 + q' V q)`` with ``q = H0(t) x - sum d xbar / S0`` and V the
        covariance of the coefficients (Tsiatis 1981; Therneau and Grambsch 2000, section 10.2).

        Parameters
        ----------
        X : (n, m) array or data frame
            Prepared columns in the units of the table; a data frame may have further columns.
        times : (t,) array or a number
            In the unit of the fit, not below 0.
        offset : (n,) array or a number, optional
            Of a fit with an offset; 0 unless given.

        Returns
        -------
        Survival

        Raises
        ------
        DataError
            The fit is no Cox regression, or a time is below 0 or no finite number.
        """
        if self.family != COX:
            raise DataError(f"a {self.family} fit has no baseline hazard: fit family = 'cox'")
        if not len(self.baseline):
            raise DataError("this predictor has no baseline hazard: run the study again for one")
        at = np.atleast_1d(np.asarray(times))
        if at.dtype.kind not in "iuf":
            raise DataError("times must be numbers")
        if at.ndim != 1 or not (np.isfinite(at) & (at >= 0)).all():
            raise DataError("times must be finite numbers of at least 0")
        rows = self._rows(X)
        design = np.column_stack([np.ones(len(rows)), rows])
        eta = design @ self.coefficients + self._offset(offset, len(design))
        lines = np.vstack([np.zeros(self.baseline.shape[1]), self.baseline])
        place = np.searchsorted(lines[:, 0], at, side="right") - 1
        hazard, variance, pull = lines[place, 1], lines[place, 2], lines[place, 3:]
        hazard = np.where(at > lines[-1, 0], np.nan, hazard)
        away = hazard[:, None] * design[:, None, :]
        away[..., 1:] -= pull
        away[..., 0] = 0.0  # the constant is in the baseline as it is in the predictor
        # Beyond this nobody is left, and before it, the share of all is 1.
        risk = np.exp(np.minimum(eta, _STEEP))[:, None]
        whole, error = risk * hazard, risk * np.hypot(np.sqrt(variance), self._error(away))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            wide = np.where(whole > 0, self._quantile() * error / whole, whole)
            low, high = (np.exp(-whole * np.exp(s * wide)) for s in (1, -1))
        share = np.exp(-whole)
        return Survival(share, share * error, low, high)

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
            **({"baseline": self.baseline} if len(self.baseline) else {}),
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
            baseline=arrays.get("baseline"),
        )

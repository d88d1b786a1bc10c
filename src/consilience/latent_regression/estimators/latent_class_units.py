"""Between the units of a table and those in which latent classes are fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Units:
    """Centres and scales of columns and target.

    Attributes
    ----------
    centre, scale : (p,) arrays
        Of the columns.
    target_centre, target_scale : float
    intercept : bool
        Whether a column of ones comes first in the design, F = p + 1 then.
    """

    centre: FloatArray
    scale: FloatArray
    target_centre: float
    target_scale: float
    intercept: bool

    @property
    def n_columns(self) -> int:
        """Columns of the design: F."""
        return len(self.centre) + int(self.intercept)

    def design(self, x: FloatArray) -> FloatArray:
        """Rows as the classes see them, (n, F)."""
        rows = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        if not self.intercept:
            return np.ascontiguousarray(rows)
        return np.column_stack([np.ones(len(rows)), rows])

    def target(self, y: FloatArray) -> FloatArray:
        """Outcomes as the classes see them, (n,)."""
        scaled: FloatArray = np.asarray(y, dtype=np.float64) - self.target_centre
        return scaled / self.target_scale

    def outcome(self, values: FloatArray) -> FloatArray:
        """Outcomes in the units of the table."""
        return np.asarray(values * self.target_scale + self.target_centre)

    def raw(
        self, mean: FloatArray, covariance: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coefficients in the units of the table.

        Parameters
        ----------
        mean : (K, F) array
        covariance : (K, F, F) array

        Returns
        -------
        coefficients : (K, p) array
        intercepts : (K,) array
        covariance : (K, p + 1, p + 1) array
            The intercept first.
        """
        p, extra = len(self.centre), int(self.intercept)
        matrix = np.zeros((p + 1, p + extra))
        if self.intercept:
            matrix[0, 0] = self.target_scale
        slopes = self.target_scale / self.scale
        matrix[np.arange(1, p + 1), np.arange(extra, p + extra)] = slopes
        matrix[0, extra:] = -slopes * self.centre
        values = mean @ matrix.T
        with np.errstate(over="ignore"):  # of units that are too large for a variance
            spread = matrix @ covariance @ matrix.T
        return values[:, 1:], values[:, 0] + self.target_centre, spread


def units_of(
    x: FloatArray,
    y: FloatArray,
    weight: FloatArray,
    *,
    standardize: bool,
    intercept: bool,
) -> Units:
    """Units of a table.

    Parameters
    ----------
    x : (n, p) array
    y : (n,) array
        Finite where the weight is not 0.
    weight : (n,) array
    standardize : bool
        Whether columns are centred (where there is an intercept) and scaled one by one; otherwise
        all are divided by one number. The target is scaled in any case, and centred where there is
        an intercept.
    intercept : bool
    """
    used = weight > 0
    share = weight[used] / weight[used].sum()
    if standardize:
        centre, scale = _moments(x[used], share, intercept)
    else:
        # One scale for all keeps their relative sizes, and sums in range.
        centre, each = _moments(x[used], share, False)
        scale = np.full(x.shape[1], each.max(initial=0.0) or 1.0)
    middle, spread = _moments(y[used, None], share, intercept)
    return Units(centre, scale, float(middle[0]), float(spread[0]), intercept)


def _moments(values: FloatArray, share: FloatArray, centred: bool) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of columns, whatever their size; 1 where they are constant."""
    largest = np.abs(values).max(axis=0, initial=0.0)
    largest = np.where(largest > 0, largest, 1.0)
    parts = values / largest
    mean = share @ parts if centred else np.zeros(values.shape[1])
    away = parts - mean
    spread = np.sqrt(share @ (away * away))
    # A constant column leaves only what rounding makes of it.
    spread = np.where(spread > 1e-13, spread, 1.0)
    return mean * largest, spread * largest

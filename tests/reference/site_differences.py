"""Differences of tables between sites, term by term, and limits by trying one scale after another.

Written from the definitions. A row of chances p told of n draws has the covariance
(diag(p) - p p') / n, and (diag(q) - q q') / (n - 1) of the observed shares q estimates it without
bias. What is compared of two rows are some linear functions of each: single cells, and a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def functions_of(alone: NDArray[np.bool_], together: NDArray[np.bool_]) -> FloatArray:
    """One line for each number that is compared of a row of chances."""
    lines = [np.eye(len(alone))[i] for i in range(len(alone)) if alone[i]]
    if together.any():
        lines.append(together.astype(float))
    return np.array(lines).reshape(-1, len(alone))


def squared_difference(p: FloatArray, q: FloatArray, lines: FloatArray) -> float:
    return float(sum((line @ p - line @ q) ** 2 for line in lines))


def error_of(shares: FloatArray, n: float, lines: FloatArray) -> float:
    """Expected squared length of the error of what is compared, of one row."""
    covariance = (np.diag(shares) - np.outer(shares, shares)) / (n - 1)
    return float(np.trace(lines @ covariance @ lines.T))


def limits_by_trial(
    value_of: Callable[[FloatArray], float],
    tables: FloatArray,
    draws: Sequence[FloatArray],
    errors: FloatArray,
    estimate: float,
    scales: FloatArray,
) -> tuple[float, float]:
    """Smallest and largest scale of the tables at which an estimate is in neither tail.

    `value_of` is the mean square of tables; in the draw b at the scale t it is that of t times the
    tables plus the error of the draw, less `errors`. Below the median of t = 0 an estimate counts
    as this median for the upper end.
    """
    errors_of_draws = np.array(draws) - np.mean(draws, axis=0)
    middle = np.mean([value_of(e) for e in errors_of_draws] - errors)

    def simulated(scale: float) -> FloatArray:
        found = np.array([value_of(scale * tables + e) for e in errors_of_draws])
        return np.asarray(found - errors - middle)

    held = max(estimate, float(np.median(simulated(0.0))))
    low = high = np.nan
    for scale in scales:
        found = simulated(scale)
        if np.isnan(low) and (found >= estimate).mean() >= 0.025:
            low = scale
        if (found <= held).mean() >= 0.025:
            high = scale
    return float(low), float(high)

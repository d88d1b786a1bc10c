"""Rounding of means over records, to about what one record changes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray


def coarse(
    mean: FloatArray,
    variance: FloatArray,
    effective: FloatArray,
    dominated: NDArray[np.bool_],
    largest: FloatArray | float = 0.0,
    chance: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Round D to the influence of one record or a fifth of its error, Q and the number coarsely.

    Parameters
    ----------
    mean, variance, effective : arrays of one shape
        Weighted means D, their squared standard errors Q, effective numbers of records.
    dominated : bool array
        Where one record makes most of Q.
    largest : array
        D is rounded to no less than this, and Q to its square.
    chance : (2, ...) array, optional
        Numbers in [0, 1), by which D and Q are rounded up or down: that what is told of two
        questions differs then does not say that they differ at any row.

    Returns
    -------
    mean, variance, effective : arrays
    """
    if chance is not None:
        variance = variance * 1.1 ** (chance[1] - 0.5)
    error = np.sqrt(np.nan_to_num(variance))
    influence = error / np.sqrt(np.maximum(np.nan_to_num(effective), 1.0))
    steps = step_above(np.maximum(np.maximum(influence, error / 5), np.nan_to_num(largest)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps_of = mean / steps
        whole = np.round(steps_of) if chance is None else np.floor(steps_of + chance[0])
        rounded_mean = np.where(steps > 0, whole * steps, mean)
        square = step_above(np.nan_to_num(largest) ** 2)
        fine = np.where(square > 0, np.ceil(variance / square) * square, _digits(variance, 2))
    # Where one record makes most of Q, only its order of magnitude is told.
    blunt = np.where(dominated, step_above(np.nan_to_num(variance)), fine)
    # A count of the rows on one side of a line would tell where a row lies.
    return rounded_mean, blunt, _on_grid(effective)


def by_entity(parts: FloatArray, entities: NDArray[np.int64]) -> FloatArray:
    """Sums over the records of each entity, (entities, ...) of (n, ...)."""
    of = np.unique(entities, return_inverse=True)[1].ravel()
    sums = np.zeros((int(of.max(initial=-1)) + 1, *parts.shape[1:]))
    np.add.at(sums, of, parts)
    return sums


def largest_move(parts: FloatArray, total: FloatArray, least: FloatArray | None) -> FloatArray:
    """Most that any entity moves each mean, or `least` where that is more.

    Parameters
    ----------
    parts : (entities, ...) array
        Squares of the entities' sums of weighted deviations.
    total : array
        Sums of weights.
    least : array, optional
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.nan_to_num(np.sqrt(parts.max(axis=0, initial=0.0)) / total)
    return np.asarray(moved if least is None else np.maximum(moved, least))


def step_above(x: FloatArray) -> FloatArray:
    """Smallest of 1, 2, 5 times a power of ten that is at least x; 0 for 0, 1 for infinity."""
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    power = 10.0 ** np.floor(np.log10(safe))
    lead = safe / power
    step = np.where(lead <= 1, 1.0, np.where(lead <= 2, 2.0, np.where(lead <= 5, 5.0, 10.0)))
    with np.errstate(over="ignore"):
        return np.asarray(np.where(x > 0, step * power, 0.0))


_GRID = np.array([1.0, 1.5, 2.0, 3.0, 5.0, 7.0])


def _on_grid(x: FloatArray) -> FloatArray:
    """Largest of 1, 1.5, 2, 3, 5, 7 times a power of ten that is not above x."""
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    power = 10.0 ** np.floor(np.log10(safe) + 1e-12)
    lead = safe / power * (1 + 1e-12)
    place = np.searchsorted(_GRID, lead, side="right") - 1
    return np.asarray(np.where(np.isfinite(x) & (x > 0), _GRID[np.maximum(place, 0)] * power, x))


def _digits(x: FloatArray, digits: int) -> FloatArray:
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    unit = 10.0 ** (np.floor(np.log10(safe)) - (digits - 1))
    return np.asarray(np.where(np.isfinite(x) & (x > 0), np.round(safe / unit) * unit, x))

"""The rows of a site as reference averaging wants them, and which of them are held out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteContext, SiteData, State
from consilience.methods.phases.protected_rows import (
    drawing_seed,
    made_constant,
    with_common_levels,
    without_thin,
)
from consilience.methods.reference_averaging.messages import Settings
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    y : (n,) array
    weight : (n,) array or None
    kept, held : int arrays
        Rows that are fitted when some are held out, and those.
    seed : int
    thin : int array
        Columns that were made constant.
    few : int array
        Columns in which few of the held-out rows, or of the others, differ: constant in the fits
        that do not see the held-out rows, so that two fits do not differ by these few.
    """

    x: FloatArray
    y: FloatArray
    weight: FloatArray | None
    kept: IntArray
    held: IntArray
    seed: int
    thin: IntArray
    few: IntArray

    def of(self, trajectory: int) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Rows of a trajectory: all (0), or all but the held-out ones (1)."""
        if trajectory == 0 or not len(self.held):
            return self.x, self.y, self.weight
        weight = None if self.weight is None else self.weight[self.kept]
        return self._kept_x, self.y[self.kept], weight

    @cached_property
    def _kept_x(self) -> FloatArray:
        return made_constant(self.x, self.few)[self.kept]

    def evidence(self, trajectory: int) -> int:
        """Rows on which a released fit rests: those of the two fits' difference where fewer."""
        if not len(self.held):
            return len(self.x)
        return min(len(self.kept), len(self.held)) if trajectory == 0 else len(self.kept)


def rows_of(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Take the rows as the method wants them.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or rows that cannot be used.
    """
    if data.target is None:
        raise DataError("the study names no target column")
    x, weight, y = data.features, data.weight, _response(data, s)
    used = _used(y, weight, s, site.limits)
    if not used.all():
        x, y = x[used], y[used]
        weight = None if weight is None else weight[used]
    if not len(y):
        raise DataError("no row of the site can take part")
    if state is None:
        seed = drawing_seed(data, site, "reference averaging")
        x, thin = without_thin(x, site.limits)
    else:
        seed, thin = int(state["seed"]), np.asarray(state["thin"])
        x = made_constant(x, thin)
    kept, held = _split(y, x.shape[1], s, site.limits, seed)
    if state is None:
        parts = [without_thin(x[part], site.limits)[1] for part in (kept, held) if len(held)]
        few = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    else:
        few = np.asarray(state["few"])
    return Rows(x, y, weight, kept, held, seed, thin, few)


def _response(data: SiteData, s: Settings) -> FloatArray:
    """Response as numbers: positions of levels where it has levels."""
    target = np.asarray(data.target)
    if not s.levels:
        return np.asarray(target, dtype=float)
    if s.levels not in data.levels.values():
        raise DataError("the levels of the response are not those that were declared")
    y = np.full(len(target), -1.0)
    for i, level in enumerate(s.levels):
        y[target == level] = i
    if (y < 0).any():
        raise DataError("the target holds values outside its declared levels")
    return y


def _used(
    y: FloatArray, weight: FloatArray | None, s: Settings, limits: Limits
) -> NDArray[np.bool_]:
    """Which rows take part."""
    used = np.ones(len(y), dtype=bool) if weight is None else weight > 0
    if s.levels:
        used[used] = with_common_levels(y[used], len(s.levels), limits)
    return used


def _split(
    y: FloatArray, p: int, s: Settings, limits: Limits, seed: int
) -> tuple[IntArray, IntArray]:
    """Rows that are fitted, and rows that are held out where there are enough of both."""
    everything = np.arange(len(y), dtype=np.int64)
    sizes = _held_sizes(y, p, s, limits)
    if not sum(sizes.values()):
        return everything, everything[:0]
    order = stream(seed, "held out").permutation(len(y))
    chosen = [order[y[order] == level][:size] for level, size in sizes.items()] if s.levels else []
    held = np.sort(np.concatenate(chosen) if s.levels else order[: sizes[-1.0]])
    return np.setdiff1d(everything, held), held


def _held_sizes(y: FloatArray, p: int, s: Settings, limits: Limits) -> dict[float, int]:
    """Rows to hold out, by level of the response; none where either part would be too small.

    Where records are protected a level is held out in enough rows or in none: the fits of all rows
    and of part of them differ by these rows.
    """
    least = limits.min_records if limits.min_records > 1 else 1
    if s.levels:
        counts = np.bincount(y.astype(np.int64), minlength=len(s.levels))
        sizes = {float(i): int(s.holdout * n) for i, n in enumerate(counts)}
        sizes = {i: size if size >= least else 0 for i, size in sizes.items()}
    else:
        sizes = {-1.0: int(s.holdout * len(y))}
    total = sum(sizes.values())
    if limits.min_records > 1:
        # As many rows as the rule for linear models asks of the parameters of a fit.
        least = max(least, 2 * (p + 1) * (len(s.levels) if len(s.levels) > 2 else 1))
    return sizes if total >= least and len(y) - total >= least else {}


def held_size(data: SiteData, s: Settings, limits: Limits) -> int:
    """Rows that a site holds out."""
    y = _response(data, s)
    y = y[_used(y, data.weight, s, limits)]
    return sum(_held_sizes(y, data.features.shape[1], s, limits).values())

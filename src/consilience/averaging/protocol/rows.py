"""The rows of a site as reference averaging wants them, and which of them are held out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.averaging.protocol.messages import Settings
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State
from consilience.protocol.phases.holdout import (
    class_codes,
    drawing_seed,
    held_out,
    made_constant,
    with_common_levels,
    without_thin,
)
from consilience.wire.disclosure import Limits


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


def fitted_and_held(
    data: SiteData, s: Settings, site: SiteContext, state: State | None = None
) -> Rows:
    """Take the rows that count, and hold some of them out.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or rows that cannot be used.
    """
    y, used = _used(data, s, site.limits)
    at = np.flatnonzero(used)
    if not len(at):
        raise DataError("no row of the site can take part")
    x, weight = data.features, data.weight
    if not used.all():
        x, y = x[at], y[at]
        weight = None if weight is None else weight[at]
    if state is None:
        seed = drawing_seed(data, site, "reference averaging")
        x, thin = without_thin(x, site.limits)
    else:
        seed, thin = int(state["seed"]), np.asarray(state["thin"])
        x = made_constant(x, thin)
    held = np.searchsorted(at, held_rows(data, s, site.limits, seed))
    kept = np.setdiff1d(np.arange(len(y)), held)
    if state is None:
        parts = [without_thin(x[part], site.limits)[1] for part in (kept, held) if len(held)]
        few = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    else:
        few = np.asarray(state["few"])
    return Rows(x, y, weight, kept, held, seed, thin, few)


def held_rows(data: SiteData, s: Settings, limits: Limits, seed: int = 0) -> IntArray:
    """Positions of the rows that are held out; none where either part would be too small."""
    y, used = _used(data, s, limits)
    at = np.flatnonzero(used)
    cells = np.where(used, y if s.levels else 0, -1).astype(np.int64)
    order = at[stream(seed, "held out").permutation(len(at))]
    (held,) = held_out(data, cells, [s.holdout], limits, order=order)
    least = limits.min_records
    if least > 1:
        # As many rows as the rule for linear models asks of the parameters of a fit.
        p = data.features.shape[1]
        least = max(least, 2 * (p + 1) * (len(s.levels) if len(s.levels) > 2 else 1))
    return held if min(len(held), len(at) - len(held)) >= least else held[:0]


def _used(data: SiteData, s: Settings, limits: Limits) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Response as numbers (positions of levels, where it has them), and which rows take part."""
    if data.target is None:
        raise DataError("the study names no target column")
    used = np.ones(data.n_rows, dtype=bool) if data.weight is None else data.weight > 0
    if not s.levels:
        return np.asarray(data.target, dtype=float), used
    y = class_codes(data, s.levels).astype(float)
    used[used] = with_common_levels(y[used], len(s.levels), limits)
    return y, used

"""The rows of a site as community Bayes wants them: which train, which choose, which test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteContext, SiteData, State
from consilience.methods.federated_community_bayes.messages import Settings
from consilience.methods.phases.protected_rows import drawing_seed, made_constant, without_thin
from consilience.numerics.random import stream
from consilience.wire.disclosure import Limits

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEFT_OUT, TRAINING, CHOOSING, TEST = -1, 0, 1, 2


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with their class and their part.

    Attributes
    ----------
    x : (n, p) array
    codes : (n,) int array
        Position of each row's level.
    part : (n,) int array
        Training, choosing, test, or left out because the class has too few rows.
    seed : int
    thin : int array
        Columns that were made constant, since few training rows differ in them.
    """

    x: FloatArray
    codes: IntArray
    part: IntArray
    seed: int
    thin: IntArray

    def of(self, part: int) -> tuple[FloatArray, IntArray]:
        """Features and classes of a part."""
        chosen = self.part == part
        return self.x[chosen], self.codes[chosen]


def rows_of(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Take the rows as the method wants them.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or missing values.
    """
    codes = _codes(data, s)
    if not np.isfinite(data.features).all():
        raise DataError("features have missing values: say in [preparation] what becomes of them")
    seed = drawing_seed(data, site, "community bayes") if state is None else int(state["seed"])
    part = _parts(codes, s, site.limits, seed)
    if state is None:
        thin = without_thin(data.features[part == TRAINING], site.limits)[1]
    else:
        thin = np.asarray(state["thin"], dtype=np.int64)
    return Rows(made_constant(data.features, thin), codes, part, seed, thin)


def _codes(data: SiteData, s: Settings) -> IntArray:
    if data.target is None:
        raise DataError("the study names no target column")
    if s.levels not in data.levels.values():
        raise DataError("the levels of the response are not those that were declared")
    target = np.asarray(data.target)
    codes = np.full(len(target), -1, dtype=np.int64)
    for k, level in enumerate(s.levels):
        codes[target == level] = k
    if (codes < 0).any():
        raise DataError("the target holds values outside its declared levels")
    return codes


def _parts(codes: IntArray, s: Settings, limits: Limits, seed: int) -> IntArray:
    """Part of each row: the same shares of every class.

    Other shares make another draw, so that two runs do not differ by the few rows that one holds
    out and the other does not. A class whose training rows would be too few takes no part. A part
    that would hold too few rows is not held out at all, since figures of it could not leave.
    """
    least = limits.min_records if limits.min_records > 1 else 1
    counts = np.bincount(codes, minlength=len(s.levels))
    sizes = np.stack([(share * counts).astype(np.int64) for share in (s.choosing, s.holdout)])
    takes_part = counts - sizes.sum(axis=0) >= least
    sizes[:, ~takes_part] = 0
    sizes[sizes.sum(axis=1) < least] = 0
    part = np.full(len(codes), LEFT_OUT, dtype=np.int64)
    order = stream(seed, "parts", f"{s.choosing:g}", f"{s.holdout:g}").permutation(len(codes))
    for k in np.flatnonzero(takes_part & (counts > 0)):
        mine = order[codes[order] == k]
        ends = np.cumsum(sizes[:, k])
        part[mine] = TRAINING
        part[mine[: ends[0]]] = CHOOSING
        part[mine[ends[0] : ends[1]]] = TEST
    return part

"""The rows of a site as community Bayes wants them: which train, which choose, which test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes.messages import Settings
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State
from consilience.protocol.phases.holdout import (
    class_codes,
    drawing_seed,
    held_out,
    made_constant,
    require_numbers,
    with_common_levels,
    without_thin,
)

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


def by_part(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Sort the rows into parts.

    A class whose training rows would be too few takes no part. A part that would hold too few rows
    is not held out at all, since figures of it could not leave.

    Parameters
    ----------
    state : dict, optional
        What the offer found: the seed of the draws and the thin columns.

    Raises
    ------
    DataError
        No response, levels that are not the declared ones, or missing values.
    """
    codes = class_codes(data, s.levels)
    require_numbers(data)
    seed = drawing_seed(data, site, "community bayes") if state is None else int(state["seed"])
    order = stream(seed, "parts", f"{s.choosing:g}", f"{s.holdout:g}").permutation(len(codes))
    cells = np.where(with_common_levels(codes, len(s.levels), site.limits), codes, -1)
    shares = [s.choosing, s.holdout]
    choosing, test = held_out(data, cells, shares, site.limits, order=order, spare=1)
    part = np.where(cells >= 0, TRAINING, LEFT_OUT)
    part[choosing], part[test] = CHOOSING, TEST
    if state is None:
        thin = without_thin(data.features[part == TRAINING], site.limits)[1]
    else:
        thin = np.asarray(state["thin"], dtype=np.int64)
    return Rows(made_constant(data.features, thin), codes, part, seed, thin)

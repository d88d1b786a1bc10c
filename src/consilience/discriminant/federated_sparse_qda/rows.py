"""The rows of a site as the method wants them: classes that are large enough, and rows held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_sparse_qda.messages import Settings
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData, State
from consilience.protocol.phases.holdout import (
    class_codes,
    drawing_seed,
    held_out,
    require_numbers,
    with_common_levels,
)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    codes : (n,) int array
        Class of each row, -1 in classes of too few rows.
    cells : (n,) int array
        The same, -1 also for rows that are held out.
    held : (h,) int array
        Rows that are held out.
    seed : int
        From which they follow where no record is protected.
    """

    x: FloatArray
    codes: IntArray
    cells: IntArray
    held: IntArray
    seed: int

    @property
    def kept(self) -> IntArray:
        """Rows of the moments."""
        return np.flatnonzero(self.cells >= 0)


def by_class(data: SiteData, s: Settings, site: SiteContext, state: State | None = None) -> Rows:
    """Sort rows into classes and hold some of every class out.

    Parameters
    ----------
    state : dict, optional
        What the offer found: streams are other ones in each step, and the same rows are held out in
        all.

    Raises
    ------
    DataError
        No classes, or others than the study's.
    """
    codes = class_codes(data, s.levels)
    require_numbers(data)
    codes = np.where(with_common_levels(codes, len(s.levels), site.limits), codes, -1)
    seed = drawing_seed(data, site, "sparse qda") if state is None else int(state["seed"])
    order = stream(seed, "held out").permutation(len(codes))
    (held,) = held_out(data, codes, [s.holdout], site.limits, order=order, spare=2)
    cells = codes.copy()
    cells[held] = -1
    return Rows(data.features, codes, cells, held, seed)

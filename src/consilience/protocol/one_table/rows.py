"""Rows of the one table: which are fitted, and which are held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.protocol.phases.holdout import held_out
from consilience.protocol.phases.protected_rows import class_codes, drawing_seed, require_numbers

LEAST = 2
"""Rows of a class that a fit needs."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    y : (n,) int array
        Class of each row: position among `levels`.
    groups : (n,) int array or None
        Entity of each row: those of one entity are held out, and judged in cross-validation,
        together.
    names, levels : tuples of str
    fitted, held : int arrays
        Positions of the rows.
    seed : int
        Of whatever an estimator draws.
    """

    x: FloatArray
    y: IntArray
    groups: IntArray | None
    names: tuple[str, ...]
    levels: tuple[str, ...]
    fitted: IntArray
    held: IntArray
    seed: int

    @property
    def table(self) -> tuple[FloatArray, NDArray[np.str_], IntArray | None]:
        """Columns, classes by name and groups of the rows that are fitted."""
        groups = None if self.groups is None else self.groups[self.fitted]
        return self.x[self.fitted], np.array(self.levels)[self.y[self.fitted]], groups

    def fewest_entities(self) -> float:
        """Entities behind the fitted rows of the class with fewest; infinite where not known."""
        if self.groups is None:
            return np.inf
        y, groups = self.y[self.fitted], self.groups[self.fitted]
        return min(len(np.unique(groups[y == k])) for k in np.unique(y))


def fitted_and_held(
    data: SiteData, levels: tuple[str, ...], holdout: float, site: SiteContext
) -> Rows:
    """Check the rows and choose those that are held out.

    Raises
    ------
    DataError
        No target, levels that are not the declared ones, or too few rows.
    """
    y = class_codes(data, levels)
    require_numbers(data)
    least = site.limits.min_records
    if len(y) < max(least, 2 * LEAST):
        raise _refusal("the table has fewer rows than the policy lets anything rest on")
    counts = np.bincount(y, minlength=len(levels))
    lacking = [level for level, n in zip(levels, counts, strict=True) if 0 < n < LEAST]
    if lacking:
        sentence = f"a class has fewer than {LEAST} rows: add rows, or leave out its level"
        raise DataError(f"class {lacking[0]!r} of the target: {sentence}", public=sentence)
    if (counts > 0).sum() < 2:
        raise _refusal("the rows are all of one class: a classifier needs two")
    groups = None
    if data.entity is not None:
        groups = _by_appearance(data.entity)
    seed = drawing_seed(data, site, "one table")
    draws = stream(seed, "held out")
    if groups is not None and least == 1:
        held = _whole_entities(y, groups, holdout, draws)
    else:
        order = draws.permutation(len(y))
        (held,) = held_out(data, y, [holdout], site.limits, order=order, spare=LEAST)
    if groups is not None and len(np.unique(groups[held])) < site.limits.min_entities:
        held = held[:0]
    fitted = np.setdiff1d(np.arange(len(y)), held)
    return Rows(data.features, y, groups, data.feature_names, levels, fitted, held, seed)


def _by_appearance(entity: NDArray[np.str_]) -> IntArray:
    """Numbers of the entities, in the order of their first rows."""
    _, first, which = np.unique(entity, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[which.ravel()]


def _whole_entities(
    y: IntArray, groups: IntArray, share: float, draws: np.random.Generator
) -> IntArray:
    """Rows of entities to hold out where no record is protected, up to the share asked for."""
    wanted, held = int(share * len(y)), np.zeros(len(y), dtype=bool)
    counts = np.bincount(y)
    left = counts.copy()
    for one in draws.permutation(int(groups.max()) + 1):
        of = groups == one
        if held.sum() + of.sum() > wanted:
            continue
        after = left - np.bincount(y[of], minlength=len(left))
        if (after[counts > 0] >= LEAST).all():
            held |= of
            left = after
    return np.flatnonzero(held)


def _refusal(sentence: str) -> DataError:
    return DataError(sentence, public=sentence)

"""Rows by which two runs differ are told of like a release: their moments follow from the two.

Who subtracts the sums of one run from those of another has the sums over the rows in between, which
nobody released. If one of these rows alone has a 0/1 property, its other columns follow. So rows
that stay out take others with them, chosen such that what leaves of all rows might leave of these,
too (`covering`); and a column of which that cannot be had is not told again (`failing`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.wire.evidence import Limits
from consilience.wire.moment_facts import (
    Coded,
    coded_within,
    left_over,
    moment_facts,
    unsafe_columns,
)
from consilience.wire.usual_values import hardly_apart

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_POOL = 20_000
"""Rows among which is chosen; a count that is rare among so many is rather not told."""
_GROWTH = 1.3


def covering(
    x: FloatArray, order: IntArray, limits: Limits, coded: Sequence[Coded] = ()
) -> IntArray:
    """Choose some rows whose moments may leave, if those of all may; at most a quarter of them.

    Which rows these are depends on all rows and their order alone, so that their number says
    nothing of those that stay out for another reason.

    Parameters
    ----------
    x : (n, p) array
        Columns that were told of these rows.
    order : (n,) int array
        Rows in a secret order, the same one in every run.
    limits : Limits
    coded : sequence of Coded

    Returns
    -------
    (k,) int array
        At least `min_records` rows, where there are four times as many.
    """
    n, least = len(x), limits.min_records
    if not x.shape[1] or n < 4 * least:
        return order[:0]
    pool, most = order[:_POOL], n // 4
    picked = _of_each_count(x[pool], least, most)
    rest = np.flatnonzero(~picked)
    begun = np.flatnonzero(picked)
    allowed = moment_facts(x[pool], limits=limits, coded=coded).unsafe
    size, best, fewest = max(len(begun), least), begun, x.size
    while True:
        rows = pool[np.concatenate([begun, rest[: size - len(begun)]])]
        bad = int((moment_facts(x[rows], limits=limits, coded=coded).unsafe & ~allowed).sum())
        if bad < fewest:
            best, fewest = rows, bad
        if not bad or size >= min(most, len(pool)):
            return best
        size = min(int(np.ceil(_GROWTH * size)), most)


def _of_each_count(x: FloatArray, least: int, most: int) -> BoolArray:
    """Pick rows, in their order, so that enough are in each count, of them and of the others."""
    levels = _levels(x)
    joint = levels.T.astype(float) @ levels
    pairs = itertools.combinations_with_replacement(range(levels.shape[1]), 2)
    picked = np.zeros(len(x), dtype=bool)
    # Rare counts first: their rows serve the others.
    for i, j in sorted((p for p in pairs if joint[p] >= 2 * least), key=lambda p: joint[p]):
        cell = levels[:, i] & levels[:, j]
        # Half as many again as needed: some of these may share a value of another column.
        short = int(min(1.5 * least, joint[i, j] // 2)) - int((cell & picked).sum())
        short = min(short, most - int(picked.sum()))
        if short > 0:
            picked[np.flatnonzero(cell & ~picked)[:short]] = True
    return picked


def _levels(x: FloatArray) -> BoolArray:
    """Rows with either value of columns of two values, and off the usual value of others."""
    found = []
    for column in x.T:
        values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
        usual = values[np.argmax(counts)] if len(values) else np.nan
        off = (column != usual) & ~np.isnan(column)
        found += [off, column == usual] if len(values) == 2 else [off]
    return np.array(found, dtype=bool).T.reshape(len(x), -1)


@dataclass(frozen=True, eq=False)
class View:
    """Rows whose sums follow from what runs tell, and of which columns.

    Attributes
    ----------
    rows : (n,) bool array
    told : (p,) bool array
        Columns whose sums and squares follow.
    joint : (p,) bool array
        Those whose products with one another do.
    fixed : (p,) bool array
        Those that an earlier run told of these rows, whatever this one does.
    """

    rows: BoolArray
    told: BoolArray
    joint: BoolArray
    fixed: BoolArray


def failing(
    x: FloatArray,
    views: Sequence[View],
    asked: BoolArray,
    limits: Limits,
    coded: Sequence[Coded] = (),
) -> BoolArray:
    """Columns of which a run tells nothing, for the sake of what it would tell with earlier ones.

    All that runs tell of the rows of a view is judged like one release of all its columns.

    Parameters
    ----------
    x : (n, p) array
        Columns that earlier runs told, or that this one asks for.
    views : sequence of View
    asked : (p,) bool array
    limits : Limits
    coded : sequence of Coded

    Returns
    -------
    (p,) bool array
    """
    hidden = np.zeros(len(asked), dtype=bool)
    while True:
        bad = np.zeros((len(asked), len(asked)), dtype=bool)
        for view in views:
            columns = np.flatnonzero(view.told & (view.fixed | ~asked | ~hidden))
            joint = view.joint[columns] & (view.fixed | ~hidden)[columns]
            if (asked & ~hidden)[columns].any() and view.rows.any():
                part = _bad(
                    x[np.ix_(view.rows, columns)], joint, limits, coded_within(coded, columns)
                )
                bad[np.ix_(columns, columns)] |= part
        bad &= (asked & ~hidden)[:, None] | (asked & ~hidden)
        alone = asked & ~hidden & (bad & ~(asked & ~hidden)).any(axis=1)
        alone |= asked & ~hidden & np.diagonal(bad)
        if not alone.any():
            pairs = bad & (asked & ~hidden) & (asked & ~hidden)[:, None]
            if not pairs.any():
                return hidden
            # Of those that are asked for together the worst gives way, the last of equal ones.
            faults = pairs.sum(axis=0)
            alone[len(faults) - 1 - int(np.argmax(faults[::-1]))] = True
        hidden |= alone


def _bad(x: FloatArray, joint: BoolArray, limits: Limits, coded: Sequence[Coded]) -> BoolArray:
    """Pairs of columns of which not both may be told, and on the diagonal columns that may not."""
    alone = unsafe_columns(x, limits=limits, coded=coded)
    bad = np.diag(alone) | hardly_apart(x, limits.min_records)
    places = np.flatnonzero(joint & ~alone)
    inside = coded_within(coded, places)
    unsafe = moment_facts(x[:, places], limits=limits, coded=inside).unsafe
    bad[np.ix_(places, places)] |= unsafe
    for group in coded:  # levels of one category have nobody in common, as everybody knows
        bad[np.ix_(group.columns, group.columns)] &= np.eye(len(group.columns), dtype=bool)
    free = np.flatnonzero(~alone)
    for columns in left_over(x[:, free], limits.min_records, coded_within(coded, free)):
        last = free[columns]
        bad[np.ix_(last[-1:], last[:-1])] = bad[np.ix_(last[:-1], last[-1:])] = True
    return bad

"""Rows by which two runs differ are told of like a release: their moments follow from the two.

Who subtracts the sums of one run from those of another has the sums over the rows in between, which
nobody released. If one of these rows alone has a 0/1 property, its other columns follow. So rows
that stay out take others with them, chosen such that what leaves of all rows might leave of these,
too (`covering`); and a column of which that cannot be had is not told again (`failing`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.wire.evidence import Limits
from consilience.wire.moment_facts import Coded, moment_facts

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


def failing(
    x: FloatArray,
    groups: IntArray,
    told: BoolArray,
    now: BoolArray,
    limits: Limits,
    coded: Sequence[Coded] = (),
) -> BoolArray:
    """Columns of which nothing may be told, for the sake of the rows by which runs differ.

    Parameters
    ----------
    x : (n, p) array
        Columns that an earlier run told.
    groups : (n,) int array
        Rows that no run tells apart have one number; -1 for rows of no run.
    told : (g, p) bool array
        Whether some run tells a column of a group.
    now : (n,) bool array
        Rows of this run.
    limits : Limits
    coded : sequence of Coded

    Returns
    -------
    (p,) bool array
    """
    withheld = moment_facts(x[now], limits=limits, coded=coded).unsafe
    bad = np.zeros_like(withheld)
    for group, columns in enumerate(told):
        rows = groups == group
        if not (rows.any() and columns.any()) or np.array_equal(rows, now):
            continue  # no longer in the table, so that nobody can tell; in no run; or just this one
        unsafe = moment_facts(x[rows], limits=limits, coded=coded).unsafe
        bad |= unsafe & ~withheld & columns[:, None] & columns
    hidden = np.diagonal(bad).copy()
    while (left := bad & ~hidden[:, None] & ~hidden).any():
        hidden[np.argmax(left.sum(axis=0))] = True
    return hidden

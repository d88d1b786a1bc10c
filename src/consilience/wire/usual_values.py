"""Values that many records share: how many records are beside them, in columns and in their sums.

Whoever knows n, sums and sums of products of columns about one point knows them about every other.
A sum of (u - a)(v - b), for two columns or sums of columns u and v, rests on the records of which
neither u is a nor v is b: on few, where nearly all have a usual value of either.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray


def at_most(column: FloatArray, parts: int, within: FloatArray | None = None) -> int:
    """A number of records that no value of a column has more than.

    Values that are as near as the larger of what is said `within` are one.

    Records that are a multiple of a part of the column apart are a group of `parts` records: a
    value is in so many groups, and once more in each pair of equal ones within a group.
    """
    n = len(column)
    step = max(-(-n // parts), 1)
    pairs = 0
    for lag in range(step, n, step):
        one, other = column[lag:], column[: n - lag]
        same = one == other
        if within is not None:
            same |= np.abs(one - other) <= np.maximum(within[lag:], within[: n - lag])
        pairs += int(np.count_nonzero(same))
    return min(step, n) + pairs


def present(column: FloatArray) -> FloatArray:
    """Values that are there."""
    gaps = np.isnan(column)
    return column[~gaps] if gaps.any() else column


def others(column: FloatArray, least: int) -> int:
    """Records with another value than the one that most have, if several have it.

    Parameters
    ----------
    column : (n,) array
        NaN where a value is missing.
    least : int
        The number is exact where it is below, and a bound otherwise.
    """
    known = present(column)
    n = len(known)
    bound = at_most(known, 3)
    if n - bound >= least:
        return n - bound
    if n >= 2 * least:  # what more than half have is at the median
        most = int((known == np.partition(known, n // 2)[n // 2]).sum())
    else:
        most = int(np.unique(known, return_counts=True)[1].max(initial=0))
    return n - most if most > 1 else n


def beside_two(column: FloatArray, least: int) -> int:
    """Records beside those of the two most common values; all of a column of two.

    The sum of (x - a)(x - b) is over these.
    """
    found = int((~np.isnan(column)).sum())
    for value in _spikes(column, least):
        rest = others(column[column != value], least)
        found = min(found, rest) if rest else found
    return found


def off_both(x: FloatArray, least: int, spiked: IntArray | None = None) -> IntArray:
    """Fewest records that are at none of two values that several have, by pair of columns, (p, p).

    Values of one column and of the other, or of their sum or difference; also two values of a sum
    or of a difference. Of all columns, or of those that have such values.

    The sum of (x - a)(y - b) is over these; and over those at neither x = a nor y - x = b or
    y + x = b the sum of (x - a)(y - x - b), which follows from the same sums, as does that of
    (y - x - a)(y + x - b).
    """
    n, p = x.shape
    found = np.full((p, p), n, dtype=np.int64)
    for j in range(p) if spiked is None else spiked:
        for value in _spikes(x[:, j], least):
            rest = x[(x[:, j] != value) & ~np.isnan(x[:, j])]
            for k in (k for k in range(p) if k != j):
                at = (rest[:, k], *(_added(rest, j, rest[:, [k]], s)[:, 0] for s in (-1.0, 1.0)))
                found[j, k] = min(found[j, k], *(others(one, least) for one in at))
    look = x
    if n > max(_LONG, 8 * least):
        look = x[np.random.default_rng(n).integers(n, size=_LONG // 8)]
    for j, sign in itertools.product(range(1, p), (-1.0, 1.0)):
        for k in _may_have_half(_added(look, j, look[:, :j], sign), least, len(look) < n):
            form = _added(x, j, x[:, [k]], sign)[:, 0]
            for value in _spikes(form, least):
                rest = x[(form != value) & ~np.isnan(form)]
                sums = (_added(rest, j, rest[:, [k]], s)[:, 0] for s in (-1.0, 1.0))
                counts = (others(one, least) for one in (rest[:, j], rest[:, k], *sums))
                found[j, k] = min(found[j, k], *counts)
    return np.minimum(found, found.T)


def _added(x: FloatArray, j: int, columns: FloatArray, sign: float) -> FloatArray:
    """Whole numbers, equal where column j plus or minus another is but for rounding, (n, q)."""
    column = x[:, [j]]
    # From the least value, so that what is far from nought keeps its digits.
    column, columns = (v - np.fmin.reduce(v, axis=0, initial=np.inf) for v in (column, columns))
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = (np.fmax.reduce(np.abs(one), axis=0, initial=0.0) for one in (column, columns))
        unit = _DIGITS * sum(sizes)
        return np.asarray(np.rint((column + sign * columns) / np.where(unit > 0, unit, 1.0)))


def _may_have_half(columns: FloatArray, least: int, some: bool) -> IntArray:
    """Columns of which a value may have nearly half of the records, as `_spikes` has it.

    By a bound, that of `at_most`. Where these are `some` of many records, a value that half of all
    have has .35 of five hundred but once in a billion times.
    """
    n = len(columns)
    step = max(-(-n // 5), 1)
    pairs = sum(
        (columns[lag:] == columns[: n - lag]).sum(axis=0) for lag in range(step, n, step)
    ) + np.zeros(columns.shape[1])
    known = n - np.isnan(columns).sum(axis=0)
    enough = 0.7 * known if some else known - least
    return np.flatnonzero(2 * (min(step, n) + pairs) > enough)


def hardly_apart(x: FloatArray, least: int) -> NDArray[np.bool_]:
    """Pairs of columns that differ by one and the same number in all but few records, (p, p).

    Or add up to one: sums over the one less those over the other are sums over these few.
    """
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    look = x[: max(_LOOK, 4 * least)]
    for j in range(p):
        for sign in (-1.0, 1.0):
            # A look at some of the records settles most pairs.
            for k in _mostly_one(_added(look, j, look[:, :j], sign), least):
                if others(_added(x, j, x[:, [k]], sign)[:, 0], least) < least:
                    found[j, k] = found[k, j] = True
    return found


def _mostly_one(columns: FloatArray, least: int) -> IntArray:
    """Columns that may have one value in all but fewer than `least` records: all where unclear."""
    n, p = columns.shape
    if n < 2 * least or np.isnan(columns).any():
        return np.arange(p)
    # In so many of two halves, record by record, a value that all but few have is in both.
    half = n // 2
    alike = (columns[:half] == columns[half : 2 * half]).sum(axis=0) > half - least
    # What more than half of the records have is at the median.
    near = np.flatnonzero(alike)
    if not len(near):
        return near
    middle = np.partition(columns[:, near], n // 2, axis=0)[n // 2]
    return np.asarray(near[n - (columns[:, near] == middle).sum(axis=0) < least])


_LOOK, _LONG = 100, 4096
"""Records: of `_LOOK`, fewer than `least` are away from a value that all but so few have."""
_DIGITS = 1e-11
"""Of the largest values: sums that are nearer to each other are one value."""


def _spikes(column: FloatArray, least: int) -> FloatArray:
    """Values of several records without which fewer than `least` might be left of another column.

    Of two values at which two columns leave so few elsewhere, one has nearly half of the records.
    """
    known = present(column)
    n = len(known)
    if 2 * at_most(known, 3) <= n - least:
        return np.zeros(0)
    if n >= 3 * least:  # more than a third of the records: it is at one of two places
        places = [n // 3, n - 1 - n // 3]
        values = np.unique(np.partition(known, places)[places])
        counts = np.array([(known == value).sum() for value in values])
    else:
        values, counts = np.unique(known, return_counts=True)
    return np.asarray(values[(counts > 1) & (2 * counts > n - least)])

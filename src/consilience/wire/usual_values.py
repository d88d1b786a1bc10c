"""Values that many records have in a column, and how many records lie elsewhere.

A sum rests on the records that differ from the point it is taken about, and whoever knows n and the
means of columns can take it about any point. So columns are looked at about their means, about
their medians, and about values that several records have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray


def about(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns about their means and about their medians; one without any value is all gaps.

    Where one record alone lies at the median, what is taken is halfway to the next one: only a
    value that several records share is a usual one.
    """
    gaps = np.isnan(x)
    known = np.where(gaps.all(axis=0), 0.0, x)
    # A column with an infinite value is no number about its mean: it is withheld.
    with np.errstate(invalid="ignore"):
        if gaps.any():
            mean, middle = np.nanmean(known, axis=0), np.nanmedian(known, axis=0)
        else:
            mean, middle = x.mean(axis=0), np.median(x, axis=0)
        single = (x == middle).sum(axis=0) == 1
        above = np.where(x > middle, x, np.inf).min(axis=0, initial=np.inf)
        moved = single & np.isfinite(above)
        middle = np.where(moved, middle / 2 + np.where(moved, above, 0.0) / 2, middle)
        return x - mean, x - middle


def others(column: FloatArray, least: int) -> int:
    """Records with another value than the one that most have, if several have it.

    Parameters
    ----------
    column : (n,) array
        NaN where a value is missing.
    least : int
        The number is exact where it is below, and a bound otherwise.
    """
    known = column[~np.isnan(column)]
    n = len(known)
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


def off_both(x: FloatArray, least: int) -> IntArray:
    """Fewest records that are at none of two values that several have, one of each column, (p, p).

    The sum of (x - a)(y - b) is over these; and over those at neither x = a nor y - x = b or
    y + x = b the sum of (x - a)(y - x - b), which follows from the same sums.
    """
    n, p = x.shape
    found = np.full((p, p), n, dtype=np.int64)
    for j in range(p):
        for value in _spikes(x[:, j], least):
            rest = x[(x[:, j] != value) & ~np.isnan(x[:, j])]
            own = rest[:, j]
            for k in (k for k in range(p) if k != j):
                at = (rest[:, k], rest[:, k] - own, rest[:, k] + own)
                found[j, k] = min(found[j, k], *(others(one, least) for one in at))
    return np.minimum(found, found.T)


def hardly_apart(x: FloatArray, least: int) -> NDArray[np.bool_]:
    """Pairs of columns that differ by one and the same number in all but few records, (p, p).

    Or add up to one: sums over the one less those over the other are sums over these few.
    """
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    for j in range(p):
        for k in range(j):
            found[j, k] = found[k, j] = any(
                # A look at some of the records settles most pairs.
                others(_between(x[:_FIRST, j], x[:_FIRST, k], sign), least) < least
                and others(_between(x[:, j], x[:, k], sign), least) < least
                for sign in (-1.0, 1.0)
            )
    return found


def _between(first: FloatArray, second: FloatArray, sign: float) -> FloatArray:
    return np.asarray(first + sign * second)


_FIRST = 2000


def _spikes(column: FloatArray, least: int) -> FloatArray:
    """Values of several records without which fewer than `least` might be left of another column.

    Of two values at which two columns leave so few elsewhere, one has nearly half of the records.
    """
    known = column[~np.isnan(column)]
    n = len(known)
    if n >= 3 * least:  # more than a third of the records: it is at one of two places
        places = [n // 3, n - 1 - n // 3]
        values = np.unique(np.partition(known, places)[places])
        counts = np.array([(known == value).sum() for value in values])
    else:
        values, counts = np.unique(known, return_counts=True)
    return np.asarray(values[(counts > 1) & (2 * counts > n - least)])

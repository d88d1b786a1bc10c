"""What is taken off a matrix before a low rank is fitted: column means, or means of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries

CENTRES = ("none", "columns", "rows-and-columns")
_TOLERANCE = 1e-12
_MAX_ITER = 2000


@dataclass(frozen=True, eq=False)
class Centre:
    """An additive matrix: entry (i, j) is ``rows[i] + columns[j]``.

    Parameters
    ----------
    kind : {"none", "columns", "rows-and-columns"}
    rows : (n,) array
        Zero unless both sides are centred; then of mean zero over the rows with an entry, and zero
        for the others.
    columns : (p,) array
        A column without an entry has the mean of the others.
    """

    kind: str
    rows: FloatArray
    columns: FloatArray

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Entries, (m,)."""
        return np.asarray(self.rows[rows] + self.columns[columns])

    def dense(self) -> FloatArray:
        """The matrix, (n, p)."""
        return self.rows[:, None] + self.columns

    def removed(self, entries: Entries) -> Entries:
        """The entries less the centre."""
        if self.kind == "none":
            return entries
        return entries.with_values(entries.values - self.at(entries.rows, entries.columns))

    def of_rows(self, entries: Entries) -> Centre:
        """The same columns with the row means of other rows.

        Parameters
        ----------
        entries : Entries
            Of a matrix with the same columns; nothing need be observed.
        """
        rows = np.zeros(entries.shape[0])
        if self.kind == "rows-and-columns":
            rest = entries.values - self.columns[entries.columns]
            rows = _means(entries.rows, rest, entries.row_counts)
        return Centre(self.kind, rows, self.columns)


def check_center(center: str) -> None:
    """Refuse what is no centre.

    Parameters
    ----------
    center : {"none", "columns", "rows-and-columns"}

    Raises
    ------
    ParameterError
    """
    if center not in CENTRES:
        raise ParameterError.of("center", '"none", "columns" or "rows-and-columns"', center)


_FEW_VALUES = 25  # stars, halves of them, or points from 0 to 20
_MUCH_MISSING = 0.5
_PIECE = 1 << 16


def rating_values(entries: Entries) -> int:
    """Number of distinct values of a table like ratings, 0 of any other.

    Like ratings is a table with 2 to 25 distinct values, half of it missing or more: its rows
    differ in their level, and so do its columns, before any rank is fitted.

    Parameters
    ----------
    entries : Entries
    """
    if entries.density > 1.0 - _MUCH_MISSING:
        return 0
    seen = entries.values[:0]
    for first in range(0, entries.n_observed, _PIECE):  # most tables show it in the first piece
        seen = np.union1d(seen, entries.values[first : first + _PIECE])
        if len(seen) > _FEW_VALUES:
            return 0
    return len(seen) if len(seen) > 1 else 0


def centre_of(entries: Entries, kind: str, weights: FloatArray | None = None) -> Centre:
    """Least-squares centre of the observed entries.

    Parameters
    ----------
    entries : Entries
    kind : {"none", "columns", "rows-and-columns"}
        "rows-and-columns" fits ``r_i + c_j`` by turns of means of rows and of columns.
    weights : (n,) array, optional
        Of the rows, above 0 where they have an entry.

    Raises
    ------
    ParameterError
        Another word.
    """
    check_center(kind)
    n, p = entries.shape
    rows, columns = np.zeros(n), np.zeros(p)
    if kind == "none":
        return Centre(kind, rows, columns)
    every = None if weights is None else weights[entries.rows]
    sizes = entries.column_counts if every is None else _sums(entries.columns, every, p)
    columns = _means(entries.columns, entries.values, sizes, every)
    if kind == "rows-and-columns":
        rows, columns = _both(entries, columns, sizes, weights)
    # A column without an entry says nothing: it gets what a column of this table is like.
    empty = entries.column_counts == 0
    if empty.any() and not empty.all():
        columns[empty] = columns[~empty].mean()
    return Centre(kind, rows, columns)


def _sums(places: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(places, weights=values, minlength=size), dtype=np.float64)


def _means(
    places: IntArray, values: FloatArray, sizes: NDArray[Any], weights: FloatArray | None = None
) -> FloatArray:
    """Means by place, 0 where nothing is; `sizes` are numbers of values, or sums of weights."""
    sums = _sums(places, values if weights is None else values * weights, len(sizes))
    return np.asarray(sums / np.where(sizes > 0, sizes, 1))


def _both(
    entries: Entries, columns: FloatArray, sizes: NDArray[Any], weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    i, j, x = entries.rows, entries.columns, entries.values
    every = None if weights is None else weights[i]
    small = _TOLERANCE * (np.abs(x).max() + np.finfo(float).tiny)
    rows = np.zeros(entries.shape[0])
    # Turns of the two normal equations: each is a mean over rows or over columns.
    for _ in range(_MAX_ITER):
        rows = _means(i, x - columns[j], entries.row_counts)
        after = _means(j, x - rows[i], sizes, every)
        change = np.abs(after - columns).max()
        columns = after
        if change <= small:
            break
    # r + c and (r - a) + (c + a) fit equally well: the rows' mean is put to 0, into the columns.
    seen = entries.row_counts > 0
    level = float(np.average(rows[seen], weights=None if weights is None else weights[seen]))
    rows = np.where(seen, rows - level, 0.0)
    columns = np.where(entries.column_counts > 0, columns + level, 0.0)
    return rows, columns

"""What is taken off a matrix before a low rank is fitted: column means, or means of both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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


def centre_of(entries: Entries, kind: str) -> Centre:
    """Least-squares centre of the observed entries.

    Parameters
    ----------
    entries : Entries
    kind : {"none", "columns", "rows-and-columns"}
        "rows-and-columns" fits ``r_i + c_j`` by turns of means of rows and of columns.

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
    columns = _means(entries.columns, entries.values, entries.column_counts)
    if kind == "rows-and-columns":
        rows, columns = _both(entries, columns)
    # A column without an entry says nothing: it gets what a column of this table is like.
    empty = entries.column_counts == 0
    if empty.any() and not empty.all():
        columns[empty] = columns[~empty].mean()
    return Centre(kind, rows, columns)


def _means(places: IntArray, values: FloatArray, counts: IntArray) -> FloatArray:
    sums = np.bincount(places, weights=values, minlength=len(counts))
    return np.asarray(sums / np.maximum(counts, 1))


def _both(entries: Entries, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    i, j, x = entries.rows, entries.columns, entries.values
    small = _TOLERANCE * (np.abs(x).max() + np.finfo(float).tiny)
    rows = np.zeros(entries.shape[0])
    # Turns of the two normal equations: each is a mean over rows or over columns.
    for _ in range(_MAX_ITER):
        rows = _means(i, x - columns[j], entries.row_counts)
        after = _means(j, x - rows[i], entries.column_counts)
        change = np.abs(after - columns).max()
        columns = after
        if change <= small:
            break
    # r + c and (r - a) + (c + a) fit equally well: the rows' mean is put to 0, into the columns.
    seen = entries.row_counts > 0
    level = float(rows[seen].mean())
    rows = np.where(seen, rows - level, 0.0)
    columns = np.where(entries.column_counts > 0, columns + level, 0.0)
    return rows, columns

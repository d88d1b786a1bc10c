"""The observed entries of a matrix, from a table with gaps, a sparse matrix or triplets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError

_INFINITE = (
    "there are infinite entries: replace them by numbers, or by blanks where they are missing"
)
_NOTHING = "no entry of the matrix is observed: there is nothing to learn from"


@dataclass(frozen=True, eq=False, repr=False)
class Entries:
    """Observed entries of an (n, p) matrix, sorted by row, then column, each once.

    Build one with :meth:`of` or :meth:`from_triplets`, which check; the constructor trusts its
    caller. The arrays are shared, never changed.

    Parameters
    ----------
    shape : (int, int)
        n and p.
    rows, columns : (m,) array of int
        Places of the observed entries.
    values : (m,) array
    """

    shape: tuple[int, int]
    rows: IntArray
    columns: IntArray
    values: FloatArray

    def __repr__(self) -> str:
        n, p = self.shape
        return f"Entries({self.n_observed} observed of {n} x {p})"

    @property
    def n_observed(self) -> int:
        """Number m of observed entries."""
        return len(self.values)

    @property
    def density(self) -> float:
        """Share of the entries that is observed."""
        return self.n_observed / max(1, self.shape[0] * self.shape[1])

    @property
    def complete(self) -> bool:
        """Whether every entry is observed."""
        return self.n_observed == self.shape[0] * self.shape[1]

    @cached_property
    def indptr(self) -> IntArray:
        """Where each row begins, (n + 1,): row i is ``indptr[i]:indptr[i + 1]``."""
        return _pointer(self.row_counts)

    @cached_property
    def row_counts(self) -> IntArray:
        """Observed entries of each row, (n,)."""
        return np.bincount(self.rows, minlength=self.shape[0]).astype(np.int64)

    @cached_property
    def column_counts(self) -> IntArray:
        """Observed entries of each column, (p,)."""
        return np.bincount(self.columns, minlength=self.shape[1]).astype(np.int64)

    @cached_property
    def _by_columns(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.columns, kind="stable").astype(np.int64)
        return order, _pointer(self.column_counts)

    def by_columns(self) -> tuple[IntArray, IntArray]:
        """Order of the entries by column, then row.

        Returns
        -------
        order : (m,) array of int
            ``values[order]`` goes through the columns.
        indptr : (p + 1,) array of int
            Column j is ``order[indptr[j]:indptr[j + 1]]``.
        """
        return self._by_columns

    def dense(self) -> FloatArray:
        """The matrix, (n, p), with NaN where nothing is observed."""
        # NaN, not 0: what is dense is read by estimators that take NaN for missing.
        full = np.full(self.shape, np.nan)
        full[self.rows, self.columns] = self.values
        return full

    def mask(self) -> BoolArray:
        """Which entries are observed, (n, p)."""
        seen = np.zeros(self.shape, dtype=np.bool_)
        seen[self.rows, self.columns] = True
        return seen

    def take(self, chosen: BoolArray) -> Entries:
        """Some of the entries, in a matrix of the same shape.

        Parameters
        ----------
        chosen : (m,) array of bool
        """
        return Entries(self.shape, self.rows[chosen], self.columns[chosen], self.values[chosen])

    def with_values(self, values: FloatArray) -> Entries:
        """Other values at the same places.

        Parameters
        ----------
        values : (m,) array
        """
        return Entries(self.shape, self.rows, self.columns, values)

    def csr(self) -> Any:
        """A ``scipy.sparse.csr_array`` that stores the observed entries, zeros too."""
        from scipy.sparse import csr_array

        return csr_array((self.values, self.columns, self.indptr), shape=self.shape)

    @classmethod
    def of(cls, X: Any) -> Entries:
        """Observed entries of a matrix.

        Parameters
        ----------
        X : (n, p) array, data frame, masked array, scipy sparse matrix or Entries
            NaN and masked entries are missing; of a sparse matrix the stored entries are observed,
            stored zeros too, stored NaN not.

        Raises
        ------
        DataError
            Not a matrix of real numbers, an infinite entry, duplicated places in a sparse matrix,
            or nothing observed.
        """
        if isinstance(X, Entries):
            return X
        if hasattr(X, "tocoo"):
            # A stored zero is an observed zero; what is not stored was not observed.
            stored = X.tocoo()
            if len(stored.shape) != 2:
                raise DataError(f"a matrix is needed, but the table has {len(stored.shape)} axes")
            return cls.from_triplets(stored.row, stored.col, stored.data, stored.shape)
        full = _dense(X)
        if np.isinf(full).any():
            raise DataError(_INFINITE)
        rows, columns = np.nonzero(~np.isnan(full))
        if not len(rows):
            raise DataError(_NOTHING)
        n, p = full.shape
        values = np.ascontiguousarray(full[rows, columns])
        return cls((n, p), rows.astype(np.int64), columns.astype(np.int64), values)

    @classmethod
    def from_triplets(
        cls,
        rows: ArrayLike,
        columns: ArrayLike,
        values: ArrayLike,
        shape: tuple[int, int] | None = None,
        *,
        duplicates: str = "refuse",
    ) -> Entries:
        """Observed entries from places and values, in any order.

        Parameters
        ----------
        rows, columns : (m,) array of int
            Counted from 0.
        values : (m,) array
            NaN means missing.
        shape : (int, int), optional
            By default the smallest that holds every place.
        duplicates : {"refuse", "mean"}
            What to do with a place that is given more than once.

        Raises
        ------
        DataError
            Unequal lengths, places outside the shape, a value that is not a finite number, nothing
            observed, or duplicates where these are refused.
        ParameterError
            Another word for `duplicates`.
        """
        if duplicates not in ("refuse", "mean"):
            raise ParameterError.of("duplicates", '"refuse" or "mean"', duplicates)
        i, j, x = _places(rows, "rows"), _places(columns, "columns"), _numbers(values)
        if x.ndim != 1 or not len(i) == len(j) == len(x):
            raise DataError(
                "rows, columns and values of triplets must be three lists of one length"
            )
        if np.isinf(x).any():
            raise DataError(_INFINITE)
        if not len(i):
            raise DataError(_NOTHING)
        n, p = (i.max() + 1, j.max() + 1) if shape is None else shape
        n, p = int(n), int(p)
        if i.min() < 0 or j.min() < 0 or i.max() >= n or j.max() >= p:
            raise DataError(f"triplets name places outside the {n} x {p} matrix")
        seen = ~np.isnan(x)
        if not seen.any():
            raise DataError(_NOTHING)
        i, j, x = i[seen], j[seen], x[seen]
        # By row, then column: kernels go through rows without an index of their own.
        order = np.lexsort((j, i))
        i, j, x = i[order], j[order], x[order]
        first = np.concatenate(([True], (np.diff(i) != 0) | (np.diff(j) != 0)))
        extra = len(x) - int(first.sum())
        if extra and duplicates == "refuse":
            raise DataError(
                f"{extra} of {len(x)} triplets repeat the place of another one: drop them, or "
                'average them with duplicates = "mean"'
            )
        if extra:
            starts = np.flatnonzero(first)
            # Sorted, so equal places stand together and each sum is over one run of them.
            x = np.add.reduceat(x, starts) / np.diff(np.append(starts, len(x)))
            i, j = i[starts], j[starts]
        return cls((n, p), i, j, x)


def _pointer(counts: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _dense(X: Any) -> FloatArray:
    if isinstance(X, np.ma.MaskedArray):
        full = _numbers(X.data)
        full = np.where(np.ma.getmaskarray(X), np.nan, full)
    elif hasattr(X, "to_numpy") and hasattr(X, "columns"):
        try:
            full = np.asarray(X.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
        except TypeError:  # a frame of another library: its blanks are NaN already
            full = _numbers(X.to_numpy())
        except ValueError:
            raise DataError(_NOT_NUMBERS) from None
    else:
        full = _numbers(X)
    if full.ndim != 2:
        raise DataError(
            f"a matrix is needed, with rows and columns, but the table has {full.ndim} axes"
        )
    return full


_NOT_NUMBERS = "the entries must be real numbers, with NaN where one is missing"


def _numbers(values: Any) -> FloatArray:
    """Values as floats, without copying those that are."""
    found = np.asarray(values)
    # numpy would drop the imaginary parts with no more than a warning.
    if np.iscomplexobj(found):
        raise DataError(_NOT_NUMBERS)
    try:
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(_NOT_NUMBERS) from None


def _places(places: ArrayLike, name: str) -> IntArray:
    found = np.asarray(places)
    whole = found.dtype.kind in "iu" or (
        found.dtype.kind == "f" and bool((np.isfinite(found) & (found == np.floor(found))).all())
    )
    if found.ndim != 1 or not (whole or not len(found)):
        raise DataError(f"{name} of triplets must be a list of whole numbers, counted from 0")
    return found.astype(np.int64)


# --- What is taken off a matrix before a low rank is fitted: column means, or means of both sides.

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


def rating_values(entries: Entries, fewest: int = 1) -> int:
    """Number of distinct values of a table like ratings, 0 of any other.

    Like ratings is a table with 2 to 25 distinct values, half of it missing or more: its rows
    differ in their level, and so do its columns, before any rank is fitted.

    Parameters
    ----------
    entries : Entries
    fewest : int
        Values of fewer rows do not count, as long as fewer than so many rows have one: then no few
        rows decide what a site says of its table.
    """
    if entries.density > 1.0 - _MUCH_MISSING:
        return 0
    if fewest > 1:
        order = np.argsort(entries.values, kind="stable")  # of equal values by row
        values, rows = entries.values[order], entries.rows[order]
        other = np.append(True, np.diff(values) != 0)
        place = np.cumsum(other) - 1
        counts = np.bincount(place[other | np.append(True, np.diff(rows) != 0)])
        if len(np.unique(rows[(counts < fewest)[place]])) >= fewest:
            return 0
        found = int((counts >= fewest).sum())
        return found if 1 < found <= _FEW_VALUES else 0
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

"""Names for types of arrays, a test of numbers, and pyarrow, for all rooms."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TextArray = NDArray[np.str_]


class Library:
    """A library that is imported when something of it is first used: most runs need no pyarrow."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)  # a second time it is found without a look for the library
        return found


# pyarrow has no types, so nothing is lost by it.
pa: Any = Library("pyarrow")
pc: Any = Library("pyarrow.compute")
pq: Any = Library("pyarrow.parquet")
pat: Any = Library("pyarrow.types")
pa_csv: Any = Library("pyarrow.csv")


_TURNED = 4096
"""Rows of a table that are turned into columns at a time, and stay in a processor's cache."""


class SideBySide:
    """A table (n, p) and further columns (n,) after it, read like one table that nobody copied.

    What asks for a column, or for some rows, gets these; of all that knows of arrays only, such as
    functions of numpy, it is a copy with each column in one piece. `flags` are of that.
    """

    dtype, ndim = np.dtype(np.float64), 2
    flags = SimpleNamespace(f_contiguous=True, c_contiguous=False)

    def __init__(self, x: FloatArray, more: Sequence[FloatArray]) -> None:
        self._x, self._more = x, tuple(more)
        self.shape = len(x), x.shape[1] + len(self._more)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> Iterator[FloatArray]:
        """One column after the other."""
        return (self[:, j] for j in range(self.shape[1]))

    def __getitem__(self, key: Any) -> Any:
        """Some rows, or some columns of these, as a copy; of all rows a column, or neighbours."""
        p = self._x.shape[1]
        if isinstance(key, tuple) and isinstance(key[0], slice) and key[0] != slice(None):
            return self[key[0]][:, key[1]]
        if isinstance(key, tuple) and not isinstance(key[0], slice):
            if np.ndim(key[0]) == np.ndim(key[1]) == 1:
                raise TypeError("rows and columns of a table side by side are given by np.ix_")
            if np.ndim(key[1]) == 0:
                return self[:, key[1]][key[0]]
            return np.ascontiguousarray(self[np.ravel(key[0])][:, np.ravel(key[1])])
        if not isinstance(key, tuple):
            if isinstance(key, slice) and key == slice(None):
                return self
            parts = (one[key][..., None] for one in self._more)
            return np.concatenate([self._x[key], *parts], axis=-1)
        columns = np.arange(self.shape[1])[key[1]]
        if columns.ndim == 0:
            # A view in either case, so that nobody takes a column for a copy of his own.
            return self._x[:, columns] if columns < p else self._more[columns - p][:]
        if isinstance(key[1], slice) and key[1].step in (None, 1):
            first, stop, _ = key[1].indices(self.shape[1])
            more = self._more[max(first - p, 0) : max(stop - p, 0)]
            return side_by_side(self._x[:, first : min(stop, p)], more)
        found = np.empty((len(self), len(columns)), order="F")
        for place, j in enumerate(columns):
            found[:, place] = self[:, j]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """All in one piece."""
        p, found = self._x.shape[1], np.empty(self.shape, order="F")
        for start in range(0, len(found), _TURNED):
            found[start : start + _TURNED, :p] = self._x[start : start + _TURNED]
        for place, column in enumerate(self._more, p):
            found[:, place] = column
        return found


def side_by_side(x: FloatArray, more: Sequence[FloatArray]) -> FloatArray:
    """Such a table, for what reads columns and blocks of rows."""
    return cast(FloatArray, SideBySide(x, more))


def as_floats(x: Any) -> FloatArray:
    """Numbers as an array; a table with columns beside it as it is."""
    return cast(FloatArray, x) if isinstance(x, SideBySide) else np.asarray(x, dtype=float)


def by_column(x: FloatArray) -> FloatArray:
    """A table with each column in one piece."""
    return x if x.flags.f_contiguous else np.asfortranarray(x)


AT_ONCE = 1 << 16
"""Rows that are looked at together, so that of a long table no further one is made."""


def ends_of(x: FloatArray) -> FloatArray:
    """Least and largest value of each column (2, p); of no row infinite ones."""
    low, high = np.full(x.shape[1], np.inf), np.full(x.shape[1], -np.inf)
    for start in range(0, len(x), AT_ONCE):
        some = x[start : start + AT_ONCE]
        np.minimum(low, some.min(axis=0), out=low)
        np.maximum(high, some.max(axis=0), out=high)
    return np.stack([low, high])


def all_finite(column: FloatArray) -> bool:
    """Whether no value of (n,) is missing or infinite."""
    with np.errstate(all="ignore"):
        # A sum of squares is quick, and finite only where all values are.
        return bool(np.isfinite(column @ column) or np.isfinite(column).all())

"""Tables that are read split by split: arrays, memory-mapped files and Parquet data sets.

A *part* is what a worker gets: arrays where they are in memory, else a description small enough to
send anywhere, from which the worker reads its own rows. Whoever reads a part gets floats in C
order (or sparse rows, where the table is sparse), the response, as numbers or as positions of the
levels, and the weights of the rows or None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError, ParameterError

Array = NDArray[Any]

ROWS_A_SPLIT = 10
"""A split has at least this many rows: a table of fewer rows is cut into fewer splits."""

_BATCH = 16_384


Rows = tuple[Any, Array, FloatArray | None]


class Part(Protocol):
    """One split of a table."""

    def read(self) -> Rows:
        """Columns (n, p), response (n,) and weights (n,) or None."""


def positions(y: Array, levels: Array | None) -> Array:
    """Response as floats: numbers as they are, classes as positions of their levels."""
    if levels is None:
        return np.asarray(y, dtype=float)
    return np.asarray(np.searchsorted(levels, y), dtype=float)


def number_of_splits(wanted: int, n_rows: int) -> int:
    """As many as wanted, but at least `ROWS_A_SPLIT` rows in each, and at least one split."""
    return max(1, min(wanted, n_rows // ROWS_A_SPLIT))


def even_sizes(n_rows: int, n_splits: int) -> list[int]:
    """Rows of each split: equal, the first ones with one more where it does not come out even."""
    return [n_rows // n_splits + (b < n_rows % n_splits) for b in range(n_splits)]


# --------------------------------------------------------------------------- in memory


@dataclass(frozen=True, eq=False)
class HeldPart:
    """Rows in memory; views of the whole table, which joblib maps for other processes."""

    x: Any
    y: Array
    weight: FloatArray | None = None

    def read(self) -> Rows:
        """Columns, response and weights."""
        # A copy of its own: where a backend has put the rows must not show in the last bits.
        weight = None if self.weight is None else np.array(self.weight)
        if hasattr(self.x, "tocsr"):
            return self.x.astype(float), np.array(self.y), weight
        return np.array(self.x, dtype=float, order="C"), np.array(self.y), weight

    def __sizeof__(self) -> int:
        # What a backend that sends parts asks, to send each of them once.
        values = self.x.data.nbytes + self.x.indices.nbytes if hasattr(self.x, "tocsr") else 0
        return int((values or self.x.nbytes) + self.y.nbytes)


@dataclass(frozen=True, eq=False)
class MappedPart:
    """Rows of a file that holds one array, as `numpy.memmap` has opened it."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    rows: tuple[int, int]
    y: Array
    weight: FloatArray | None = None

    def read(self) -> Rows:
        """Columns, response and weights."""
        first, last = self.rows
        held = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        return np.array(held[first:last], dtype=float, order="C"), self.y, self.weight


class HeldTable:
    """A table whose rows are in memory, or in a file that is mapped into memory.

    Parameters
    ----------
    x : (n, p) array or sparse matrix in row order
    y : (n,) array
        Classes as positions of their levels.
    weight : (n,) array, optional

    Notes
    -----
    Rows in memory are dealt out like cards, so that a sorted table gives splits that are alike, and
    without a copy unless they are sparse. Rows of a mapped file stay in their order, so that a
    worker reads one stretch.
    """

    def __init__(self, x: Any, y: Array, weight: FloatArray | None = None) -> None:
        self.x, self.y, self.weight = x, y, weight
        self.n_rows, self.n_columns = x.shape

    def parts(self, n_splits: int) -> list[Part]:
        """The splits."""
        file, w = _file_of(self.x), self.weight
        if file is None:
            cards = [slice(b, None, n_splits) for b in range(n_splits)]
            return [HeldPart(self.x[c], self.y[c], None if w is None else w[c]) for c in cards]
        ends = np.cumsum([0, *even_sizes(self.n_rows, n_splits)]).tolist()
        return [
            MappedPart(*file, (a, b), self.y[a:b], None if w is None else w[a:b])
            for a, b in pairwise(ends)
        ]


def _file_of(x: Any) -> tuple[str, str, tuple[int, ...], int] | None:
    """File, type, shape and offset of an array that is a stretch of a mapped file, else None."""
    root: Any = None
    base: Any = x
    while base is not None:
        # A slice of a mapped file says the offset of the whole: only the innermost one is right.
        root = base if isinstance(base, np.memmap) else root
        base = getattr(base, "base", None)
    if root is None or root.filename is None or not x.flags.c_contiguous or x.dtype != root.dtype:
        return None
    offset = int(root.offset) + x.ctypes.data - root.ctypes.data
    return os.fspath(root.filename), x.dtype.str, x.shape, offset


# --------------------------------------------------------------------------- Parquet


@dataclass(frozen=True)
class Stretch:
    """Rows `first` to `last` of one row group of a file."""

    path: str
    group: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """Rows of a Parquet data set; only the named columns are read."""

    stretches: tuple[Stretch, ...]
    features: tuple[str, ...]
    target: str
    weight: str | None = None
    levels: Array | None = None
    classes: bool = False

    def read(self) -> Rows:
        """Columns, response and weights; raw classes as long as the levels are not known.

        Raises
        ------
        DataError
            A file has changed, a column holds missing or infinite values, or a weight is negative.
        """
        n = sum(s.last - s.first for s in self.stretches)
        # Column by column into place: no second copy of the split.
        x = np.empty((n, len(self.features)))
        y: list[Array] = []
        weights: list[FloatArray] = []
        at = 0
        wanted = [*self.features, self.target, *([self.weight] if self.weight else [])]
        for stretch in self.stretches:
            for batch in _batches(stretch, wanted):
                to = at + batch.num_rows
                for j, name in enumerate(self.features):
                    x[at:to, j] = _numbers(batch.column(j), name)
                target = batch.column(len(self.features))
                y.append(self._classes(target) if self.classes else _numbers(target, self.target))
                if self.weight:
                    weights.append(_numbers(batch.column(len(wanted) - 1), self.weight))
                at = to
        # Another writer may have been at the file meanwhile.
        if at != n:
            raise DataError("the Parquet data set has changed since its rows were counted")
        if not self.weight:
            return x, np.concatenate(y), None
        weight = np.concatenate(weights)
        if (weight < 0).any():
            raise DataError(
                f"weights in column {self.weight!r} are negative: they must be 0 or more"
            )
        return x, np.concatenate(y), weight

    def _classes(self, column: Any) -> Array:
        import pyarrow as pa

        kind = column.type
        text = pa.types.is_dictionary(kind) or not pa.types.is_primitive(kind)
        raw = np.asarray(column.to_pylist() if text else column.to_numpy(False))
        _check_gaps(column, raw, self.target)
        return raw if self.levels is None else positions(raw, self.levels)


def _numbers(column: Any, name: str) -> FloatArray:
    """A column as floats."""
    values = np.asarray(column.to_numpy(zero_copy_only=False), dtype=float)
    _check_gaps(column, values, name)
    return values


def _check_gaps(column: Any, values: Array, name: str) -> None:
    if column.null_count or (values.dtype.kind == "f" and not np.isfinite(values).all()):
        raise DataError(
            f"column {name!r} holds missing or infinite values: fill them in, or leave the rows "
            "out, before the data set is written"
        )


def _batches(stretch: Stretch, columns: Sequence[str]) -> Any:
    """Record batches of a stretch, cut to its rows; what lies behind it is not decoded."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(stretch.path, memory_map=True) as file:
        at = 0
        for batch in file.iter_batches(
            batch_size=_BATCH, row_groups=[stretch.group], columns=list(columns), use_threads=False
        ):
            first, last = max(stretch.first - at, 0), min(stretch.last - at, batch.num_rows)
            if first < last:
                # Columns come in the file's order: ours is that of the data set's first file.
                yield batch.slice(first, last - first).select(list(columns))
            at += batch.num_rows
            if at >= stretch.last:
                break


class ParquetTable:
    """A Parquet file, or a folder of them: only its schema and row counts are read at first.

    Parameters
    ----------
    path : path
        A file, or a folder whose ``*.parquet`` files are taken in the order of their paths.
    target : str
    columns : sequence of str, optional
        Features; all other columns of the files by default.
    weight : str, optional
        Column of the weights; no feature by default.
    classes : bool
        Whether the target is a class.

    Raises
    ------
    DataError
        No files, files with different columns, columns that are not numbers.
    ParameterError
        A named column does not exist.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: str,
        columns: Sequence[str] | None = None,
        *,
        weight: str | None = None,
        classes: bool = False,
    ) -> None:
        path = Path(path)
        files = [path]
        if path.is_dir():
            files = sorted(
                file
                for file in path.rglob("*.parquet")
                if file.is_file()
                and not any(name.startswith((".", "_")) for name in file.relative_to(path).parts)
            )
            if not files:
                raise DataError(f"{path} holds no *.parquet files: give the folder of a data set")
        elif not path.is_file():
            raise DataError(f"{path} does not exist: give a Parquet file or a folder of them")
        self.target, self.weight, self.classes = target, weight, classes
        self.names: tuple[str, ...] = ()
        groups: list[tuple[str, int, int]] = []
        for file in files:
            # Footers only: no row is read yet.
            names, rows = _facts(file, target, weight, columns)
            if self.names and set(names) != set(self.names):
                raise DataError(
                    f"{file} has other columns than {files[0]}: "
                    "give the files of one table, or name the columns"
                )
            self.names = self.names or names
            groups += [(os.fspath(file), g, n) for g, n in enumerate(rows) if n]
        self._groups = groups
        self.n_rows = sum(n for _, _, n in groups)
        self.n_columns = len(self.names)

    @property
    def largest_group(self) -> int:
        """Rows of the largest row group."""
        return max((n for _, _, n in self._groups), default=0)

    def parts(self, n_splits: int) -> list[Part]:
        """Stretches of rows, in the order of the files."""
        found: list[Part] = []
        group, used = 0, 0
        for size in even_sizes(self.n_rows, n_splits):
            stretches = []
            while size:
                path, number, rows = self._groups[group]
                taken = min(size, rows - used)
                stretches.append(Stretch(path, number, used, used + taken))
                size, used = size - taken, used + taken
                if used == rows:
                    group, used = group + 1, 0
            found.append(
                ParquetPart(
                    tuple(stretches), self.names, self.target, self.weight, classes=self.classes
                )
            )
        return found


def with_levels(parts: Sequence[Part], levels: Array) -> list[Part]:
    """Parts of a Parquet data set that give positions of the levels."""
    return [replace(p, levels=levels) if isinstance(p, ParquetPart) else p for p in parts]


def _facts(
    file: Path, target: str, weight: str | None, columns: Sequence[str] | None
) -> tuple[tuple[str, ...], list[int]]:
    """Names of the features, and rows of each row group, from the file's footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file} cannot be read as Parquet: {type(error).__name__}") from error
    others = (target, weight) if weight else (target,)
    names = tuple(n for n in schema.names if n not in others) if columns is None else tuple(columns)
    for name in (*others, *names):
        if name not in schema.names:
            raise ParameterError(f"{file} has no column {name!r}: its columns are {schema.names}")
    if len({*others, *names}) < len(others) + len(names) or not names:
        raise ParameterError(
            "columns must be different columns, at least one, without the target and the weights"
        )
    for name in (*names, *others[1:]):
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            raise DataError(
                f"column {name!r} is of type {kind}, not a number: encode it before the data set "
                "is written, or leave it out with columns="
            )
    return names, [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]

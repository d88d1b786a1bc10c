"""Large files in blocks: neither the file nor the text of its numbers is in memory as a whole.

Of a Parquet file columns are read as they are asked for, and not kept (`ParquetColumns`).

Numbers of many digits take some twenty bytes as text, and eight as numbers. A column of them is
kept as numbers, with the texts of those cells that are written otherwise than Arrow writes their
number: so the text of every cell can be had as it stands in the file, and nothing is guessed.

A file that raises any doubt is left to the reader of whole files, which can say what is wrong.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray, pa, pa_csv, pat, pc, pq
from consilience.sites.encoding import check_header, fail
from consilience.sites.source_files import LOOK, binary_form, wide_encoding

if TYPE_CHECKING:
    from consilience.sites.source import Csv

LARGE = 1 << 25
"""Bytes of a file that is read in blocks."""
_SHORT = 8
"""Characters a cell up to which texts take no more than numbers."""
_OTHERS = 8
"""One cell of so many, at most, may be written otherwise than Arrow writes its number."""
_PIECE = 1 << 20
_WIDE = 256
"""Columns from which lines are taken apart here."""
_LINES, _FEW = 16, 16
"""Lengths of the first line that are then taken apart at a time, and cells of a column that may be
written otherwise however few there are."""
_NO_MARK = "\x01"
"""What is in no line; one that has it is looked at in another way."""


@dataclass(frozen=True, eq=False)
class Spelling:
    """How the numbers of a column are written.

    Attributes
    ----------
    places : (k,) int array
        Cells that are written otherwise than Arrow writes their number.
    others : pyarrow.Array
        Their texts.
    """

    places: IntArray
    others: Any

    def texts(self, numbers: Any) -> Any:
        """Text of every cell of a column of numbers."""
        found = pc.cast(numbers, pa.string()).combine_chunks()
        if not len(self.places):
            return pa.chunked_array([found])
        other = np.zeros(len(found), dtype=bool)
        other[self.places] = True
        return pa.chunked_array([pc.replace_with_mask(found, pa.array(other), self.others)])


@dataclass(frozen=True, eq=False)
class Blocks:
    """A table that was read in blocks.

    Attributes
    ----------
    frame : pyarrow.Table
    spellings : dict of int to Spelling
        Of the columns, by place, that are texts and kept as numbers.
    content_hash : str
        SHA-256 of the file's bytes.
    """

    frame: Any
    spellings: dict[int, Spelling]
    content_hash: str


def read_blocks(reader: Csv, path: Path) -> Blocks | None:
    """Read a large CSV file in blocks; None where the whole file is to be looked at.

    Parameters
    ----------
    reader : Csv
    path : Path

    Raises
    ------
    DataError
        The first line has another separator, or no names.
    """
    settings = reader.source
    if (
        path.stat().st_size < LARGE
        or reader.separator == "whitespace"
        or settings.decimal != "."
        or codecs.lookup(settings.encoding).name != "utf-8"
    ):
        return None
    try:
        with path.open("rb") as file:
            head = file.read(LOOK + 1)
            quoted = _holds(file, head, settings.quote.encode())
        line = min((i for i in (head.find(b"\n"), head.find(b"\r")) if i >= 0), default=0)
        if (
            not line
            or head.isspace()
            or binary_form(head) not in ("", "csv")
            or wide_encoding(head)
        ):
            return None
        if settings.separator is None:
            reader.check_separator(head)
        with path.open("rb") as file:
            return _read(reader, file, reader.options(line, quoted, threads=False), line)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None


def _holds(file: BinaryIO, head: bytes, mark: bytes) -> bool:
    found = bool(mark) and mark in head
    while mark and not found and (piece := file.read(_PIECE)):
        found = mark in piece
    return found


def _read(reader: Csv, file: BinaryIO, options: dict[str, Any], line: int) -> Blocks | None:
    names, quoted = list(reader.source.column_names), options["parse_options"].newlines_in_values
    if not names:
        if quoted:
            with pa_csv.open_csv(pa.PythonFile(file, mode="r"), **options) as stream:
                names = list(stream.schema.names)
        else:  # Arrow would look in a whole block for the types of all columns
            first = file.read(line).decode("utf-8-sig")
            names = first.split(options["parse_options"].delimiter)
        check_header(names, reader.where)
    ways = [_by_columns] if quoted or len(names) < _WIDE else [_by_lines, _by_columns]
    for way in ways:
        with _Watched(file.name, reader.source.quote.encode()) as watched:
            columns = way(reader, watched, names, options, line)
            # What is hashed is what was read, from the first byte to the last.
            if columns is None or watched.read(1) or (watched.quoted and not quoted):
                continue
        frame = pa.Table.from_arrays([column.finished() for column in columns], names=names)
        pa.default_memory_pool().release_unused()
        spellings = {j: one for j, column in enumerate(columns) if (one := column.spelling())}
        return Blocks(frame, spellings, watched.hashed.hexdigest())
    return None


def _by_columns(
    reader: Csv, watched: _Watched, names: list[str], options: dict[str, Any], _: int
) -> list[_Column] | None:
    """Read columns as Arrow takes them apart."""
    columns = [_Column() for _ in names]
    convert = reader.as_texts(names)
    with pa_csv.open_csv(
        pa.PythonFile(watched, mode="r"), convert_options=convert, **options
    ) as stream:
        if list(stream.schema.names) != names:
            return None
        for batch in stream:
            # A block is a piece of the file, whose rows are about as long as those of the rest.
            blocks = max(watched.size / options["read_options"].block_size, 1)
            expected = int(1.2 * batch.num_rows * blocks)
            for column, cells in zip(columns, batch.columns, strict=True):
                column.add(cells, expected)
    return columns


def _by_lines(
    reader: Csv, watched: _Watched, names: list[str], options: dict[str, Any], line: int
) -> list[_Column] | None:
    """Read lines without quotes, and take them apart here; None where Arrow is to do so."""
    mark, found = options["parse_options"].delimiter.encode(), _Rows(len(names))
    header = reader.source.header or not reader.source.column_names
    with pa_csv.open_csv(
        pa.PythonFile(watched, mode="r"),
        pa_csv.ReadOptions(
            use_threads=False, block_size=max(_PIECE, _LINES * line), column_names=["line"]
        ),
        pa_csv.ParseOptions(delimiter=_NO_MARK, quote_char=False),
        pa_csv.ConvertOptions(column_types={"line": pa.string()}),
    ) as stream:
        for batch in stream:
            cells = _split(batch.column(0), mark, len(names))
            if cells is None:
                return None
            if header:
                if cells[: len(names)].to_pylist() != names and not reader.source.column_names:
                    return None
                cells, header = cells[len(names) :], False
            if not len(cells):
                continue  # a file may have no rows
            if not found._length and batch.nbytes <= _SHORT * batch.num_rows * len(names):
                return None  # numbers would take more than the texts
            found.add(cells, int(1.05 * watched.size * batch.num_rows / batch.nbytes))
            # Pieces of texts of so few rows take more than the texts themselves.
            if 4 * found.is_text.sum() > len(names):
                return None
    return found.finished()


def _split(lines: Any, mark: bytes, p: int) -> Any | None:
    """Cells of lines, row after row, of which empty ones are missing; None unless all have p."""
    _, offsets, content = lines.buffers()
    starts = np.frombuffer(offsets, np.int32, count=lines.offset + len(lines) + 1)[lines.offset :]
    text = np.frombuffer(content or b"", np.uint8)[starts[0] : starts[-1]]
    starts, kept = starts - starts[0], text != ord(mark)
    found = np.flatnonzero(~kept)
    if len(found) != (p - 1) * len(lines):
        return None
    marks = found.reshape(len(lines), p - 1)
    if (marks[:, 0] < starts[:-1]).any() or (marks[:, -1] >= starts[1:]).any():
        return None
    # Where cells begin, and how many separators are before them, which are left out.
    begins = np.column_stack([starts[:-1], marks])
    begins -= np.add.outer(np.arange(len(lines)) * (p - 1), np.maximum(np.arange(p) - 1, 0))
    begins = np.append(begins.ravel(), kept.sum()).astype(np.int32)
    there = np.diff(begins) > 0
    gaps = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    buffers = [gaps, pa.py_buffer(begins), pa.py_buffer(text[kept])]
    return pa.Array.from_buffers(pa.string(), len(there), buffers)


def to_numpy(column: Any) -> NDArray[Any]:
    """An array of Arrow, or several in a row, as one of numpy.

    Numbers and truth values without gaps are read where they lie: Arrow would load pandas for it.
    """
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return to_numpy(column.chunk(0))
        return np.asarray(column.to_numpy())
    kind, end = column.type, column.offset + len(column)
    if column.null_count or not (
        pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)
    ):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    content = column.buffers()[1]
    if not end:
        return np.zeros(0, dtype=kind.to_pandas_dtype())
    if not pat.is_boolean(kind):
        return np.frombuffer(content, dtype=kind.to_pandas_dtype(), count=end)[column.offset :]
    bits = np.unpackbits(np.frombuffer(content, np.uint8), count=end, bitorder="little")
    return bits[column.offset :].astype(bool)


class ParquetColumns:
    """A large Parquet file as a table whose columns are read when they are asked for.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    content_hash : str
        SHA-256 of the file's bytes.
    schema : pyarrow.Schema

    Raises
    ------
    pyarrow.ArrowException, OSError
        The file is no Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")  # of a file that is replaced, the one that was hashed is read
        hashed = hashlib.sha256()
        self._state = self._now()
        while piece := self._file.read(_PIECE):
            hashed.update(piece)
        self.content_hash, self._where = hashed.hexdigest(), str(path)
        self._parquet = pq.ParquetFile(self._file)
        self.num_rows: int = self._parquet.metadata.num_rows
        self.schema = self._parquet.schema_arrow
        self._as_read = list(self.schema.names)
        self._other: dict[int, Any] = {}

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> Iterator[Any]:
        """The columns, one after the other."""
        return map(self.column, self.column_names)

    def column(self, name: str) -> Any:
        """Read a column.

        Raises
        ------
        DataError
            The file is damaged, or was written to.
        """
        place = self.column_names.index(name)
        if place in self._other:
            return self._other[place]
        as_read, found = self._as_read[place], None
        with suppress(pa.ArrowException, OSError):
            found = self._read(as_read)
            pa.default_memory_pool().release_unused()
        if self._now() != self._state:
            raise fail(f"{self._where} was written to while it was read: begin again")
        if found is None:
            raise fail(f"{self._where} is not a readable Parquet file: copy it again")
        return without_views(found)

    def _read(self, name: str) -> Any:
        groups = range(self._parquet.num_row_groups)
        chunks = (
            chunk
            for i in groups
            for chunk in self._parquet.read_row_group(i, [name], use_threads=False)[name].chunks
        )
        kind = self._parquet.schema_arrow.field(name).type
        if not (pat.is_integer(kind) or pat.is_floating(kind)):
            return pa.chunked_array(chunks, kind)
        # Numbers go into one array: many small ones would leave the memory in pieces.
        values, end = np.empty(self.num_rows, dtype=kind.to_pandas_dtype()), 0
        empty: list[IntArray] = []
        for chunk in chunks:
            if chunk.null_count:
                empty.append(np.flatnonzero(to_numpy(chunk.is_null())) + end)
                chunk = pc.fill_null(chunk, pa.scalar(0).cast(kind))
            values[end : end + len(chunk)] = to_numpy(chunk)
            end += len(chunk)
        return _numbers(kind, values, empty)

    def rename_columns(self, names: list[str]) -> ParquetColumns:
        """The same with other names."""
        made = copy(self)
        kept = zip(names, self.schema, strict=True)
        made.schema = pa.schema([one.with_name(name) for name, one in kept])
        return made

    def set_column(self, place: int, name: str, column: Any) -> ParquetColumns:
        """The same with another column."""
        made = copy(self)
        made.schema = self.schema.set(place, pa.field(name, column.type))
        made._other = {**self._other, place: pa.chunked_array([column])}
        return made


def read_columns(path: Path) -> ParquetColumns | None:
    """A large Parquet file of plain columns; None where the whole file is to be looked at."""
    if path.stat().st_size < LARGE:
        return None
    with suppress(pa.ArrowException, OSError):
        made = ParquetColumns(path)
        names = made.column_names
        if made.num_rows and len(set(names)) == len(names) > 0:
            return made
    return None


def without_views(column: Any) -> Any:
    """The same where texts are views, as polars writes them: Arrow computes little of these."""
    is_coded = pat.is_dictionary(column.type)
    kind = column.type.value_type if is_coded else column.type
    if not (pat.is_string_view(kind) or pat.is_binary_view(kind)):
        return column
    whole = pa.large_string() if pat.is_string_view(kind) else pa.large_binary()
    if not is_coded:
        return column.cast(whole)
    coded = [
        pa.DictionaryArray.from_arrays(one.indices, one.dictionary.cast(whole))
        for one in column.chunks
    ]
    return pa.chunked_array(coded, type=pa.dictionary(column.type.index_type, whole))


class _Watched:
    """A file that is hashed while it is read."""

    def __init__(self, name: str, quote: bytes) -> None:
        self._file, self._quote = Path(name).open("rb"), quote  # noqa: SIM115
        self.hashed, self.quoted = hashlib.sha256(), False
        self.size = Path(name).stat().st_size

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.hashed.update(piece)
        self.quoted = self.quoted or (bool(self._quote) and self._quote in piece)
        return piece

    def close(self) -> None:
        pass  # Arrow closes what it reads; the last bytes are asked for after that.

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()


class _Column:
    """Cells of one column as they come: as numbers as long as that gives their texts back."""

    def __init__(self) -> None:
        self._texts: list[Any] = []
        self._values: FloatArray | None = np.empty(0)
        self._empty: list[IntArray] = []
        self._places: list[IntArray] = []
        self._others: list[Any] = []
        self._length = 0

    def add(self, cells: Any, expected: int) -> None:
        """Take the next cells, which are texts; so many are expected in all."""
        numbers = None if self._values is None else self._as_numbers(cells)
        if numbers is None:
            self.add_texts(cells)
        else:
            self._put(numbers, expected)
            self._length += len(cells)

    def add_texts(self, cells: Any) -> None:
        """Take the next cells as texts, which the column is from now on."""
        if self._values is not None and self._length:
            self._texts = self.spelled().texts(self.finished()).chunks
        self._values = None
        self._texts.append(cells)
        self._length += len(cells)

    def hold(self, values: FloatArray) -> None:
        """Let numbers stand where others put them."""
        self._values, self._length = values, len(values)

    def note(self, empty: IntArray, places: IntArray, others: Any) -> None:
        """Note which cells are empty, and which are written otherwise."""
        if len(empty):
            self._empty.append(empty)
        if len(places):
            self._places.append(places)
            self._others.append(others)

    def _as_numbers(self, cells: Any) -> Any | None:
        there = len(cells) - cells.null_count
        if (pc.sum(pc.binary_length(cells)).as_py() or 0) <= _SHORT * there:
            return None
        try:
            numbers = pc.cast(cells, pa.float64())
        except pa.ArrowInvalid:  # whose message would show a cell, so it is not passed on
            return None
        other = pc.indices_nonzero(pc.not_equal(pc.cast(numbers, pa.string()), cells))
        places = to_numpy(other).astype(np.int64)
        if _OTHERS * len(places) > there:
            return None
        empty = to_numpy(pc.indices_nonzero(cells.is_null())).astype(np.int64)
        self.note(empty + self._length, places + self._length, cells.take(other))
        return numbers

    def _put(self, numbers: Any, expected: int) -> None:
        # Into one array for all: many small ones would leave the memory in pieces.
        values, end = self._values, self._length + len(numbers)
        if values is None or end > len(values):
            grown = np.empty(max(expected, 2 * end))
            grown[: self._length] = self.values
            self._values = values = grown
        if numbers.null_count:
            numbers = numbers.fill_null(float("nan"))
        values[self._length : end] = to_numpy(numbers)

    @property
    def values(self) -> FloatArray:
        """The numbers so far."""
        return np.empty(0) if self._values is None else self._values[: self._length]

    def spelled(self) -> Spelling:
        """The texts of cells that are written otherwise, so far."""
        places = np.concatenate([np.zeros(0, dtype=np.int64), *self._places])
        return Spelling(places, pa.concat_arrays([pa.nulls(0, pa.string()), *self._others]))

    def spelling(self) -> Spelling | None:
        """How the column's numbers are written; None where it is kept as texts."""
        return None if self._values is None or not self._length else self.spelled()

    def finished(self) -> Any:
        """All cells, as texts or as numbers in one piece."""
        if self._values is None or not self._length:
            return pa.chunked_array(self._texts, pa.string())
        return _numbers(pa.float64(), self.values, self._empty)


class _Rows:
    """Cells of many columns, row after row.

    For each column Arrow sets aside as much as for a whole block, however many there are. Here the
    cells of a block are one array, and the numbers of all columns are another. Short numbers are
    kept as numbers, too: pieces of texts of a few rows would take more.
    """

    def __init__(self, n_columns: int) -> None:
        self._columns = [_Column() for _ in range(n_columns)]
        self._values = np.empty((n_columns, 0))
        self._length = 0
        self._counts = np.zeros((2, n_columns), dtype=np.int64)  # written otherwise, and not empty
        self.is_text = np.zeros(n_columns, dtype=bool)

    def add(self, cells: Any, expected: int) -> None:
        """Take the next rows; so many are expected in all."""
        places = np.arange(len(cells)).reshape(-1, len(self._columns))
        length, end = self._length, self._length + len(places)
        if end > self._values.shape[1]:
            grown = np.empty((len(self._columns), max(expected, end + end // 4)))
            grown[:, :length] = self._values[:, :length]
            self._values = grown
        asked = np.flatnonzero(~self.is_text)
        asked = asked[_are_numbers(cells, places[:, asked])]
        texts = _taken(cells, places[:, asked])
        numbers = pc.cast(texts, pa.float64())
        empty = _by_column(texts.is_null(), len(asked))
        others = _by_column(pc.not_equal(pc.cast(numbers, pa.string()), texts), len(asked))
        self._counts[1, asked] += len(places)
        for k, rows in others.items():
            self._counts[0, asked[k]] += len(rows)
        for k, rows in empty.items():
            self._counts[1, asked[k]] -= len(rows)
        count, there = self._counts[:, asked]
        fine = _OTHERS * count <= np.maximum(there, _OTHERS * _FEW)
        found = np.frombuffer(numbers.buffers()[1], count=len(texts)).reshape(len(places), -1)
        self._values[asked[fine], length:end] = found.T[fine]
        none = np.zeros(0, dtype=np.int64)
        for k in (k for k in {**empty, **others} if fine[k]):
            gaps, odd = empty.get(k, none), others.get(k, none)
            self._values[asked[k], gaps + length] = np.nan
            spelled = _taken(texts, odd * len(asked) + k)
            self._columns[asked[k]].note(gaps + length, odd + length, spelled)
        left = ~self.is_text
        left[asked[fine]] = False
        for j in np.flatnonzero(left):
            self._columns[j].hold(self._values[j, :length])
        self.is_text |= left
        for j in np.flatnonzero(self.is_text):
            self._columns[j].add_texts(_taken(cells, places[:, j]))
        self._length = end

    def finished(self) -> list[_Column]:
        """The columns."""
        for j in np.flatnonzero(~self.is_text):
            self._columns[j].hold(self._values[j, : self._length])
        return self._columns


def _are_numbers(cells: Any, places: IntArray) -> BoolArray:
    """Columns, by the places of their cells, of which all cells are numbers."""
    try:
        pc.cast(_taken(cells, places), pa.float64())
    except pa.ArrowInvalid:  # whose message would show a cell, so it is not passed on
        half = places.shape[1] // 2
        parts = [places[:, :half], places[:, half:]] if half else []
        return np.concatenate([_are_numbers(cells, one) for one in parts] or [np.zeros(1, bool)])
    return np.ones(places.shape[1], dtype=bool)


def _taken(cells: Any, places: IntArray) -> Any:
    """Cells at some places, or all as they are."""
    if places.size == len(cells):
        return cells
    return cells.take(_numbers(pa.int64(), np.ascontiguousarray(places).ravel(), []).chunk(0))


def _by_column(mask: Any, n_columns: int) -> dict[int, IntArray]:
    """Rows in which a mask, row after row, is true, of the columns in which it ever is."""
    places = to_numpy(pc.indices_nonzero(mask)).astype(np.int64)
    rows, columns = np.divmod(places, max(n_columns, 1))
    order = np.argsort(columns, kind="stable")
    found, first = np.unique(columns[order], return_index=True)
    return dict(zip(found.tolist(), np.split(rows[order], first[1:]), strict=False))


def _numbers(kind: Any, values: NDArray[Any], empty: list[IntArray]) -> Any:
    """A column of numbers in one piece, of which some cells are empty."""
    there = None
    if empty:
        bits = np.ones(len(values), dtype=bool)
        bits[np.concatenate(empty)] = False
        there = pa.py_buffer(np.packbits(bits, bitorder="little"))
    buffers = [there, pa.py_buffer(values)]
    return pa.chunked_array([pa.Array.from_buffers(kind, len(values), buffers)])

"""Reading a site's table: from a file, a database or memory.

Cells of a CSV file stay text until the study says which columns are numbers: nothing is guessed.
No error of this module shows the content of a cell, not even to the site itself: a row number is
enough to find it.

Arrow reads CSV files as text, row by row as they stand; its own messages show cells and are never
passed on.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import pa, pa_csv, pat, pc, pq
from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.sites.encoding import (
    UNREADABLE,
    check_header,
    code_check,
    fail,
    is_number,
    plain_text,
    row_list,
)
from consilience.sites.source_blocks import (
    ParquetColumns,
    Spelling,
    read_blocks,
    read_columns,
    to_numpy,
    without_views,
)
from consilience.sites.source_files import (
    SEPARATORS,
    binary_form,
    decimal_of,
    has_marks,
    lines,
    separator_of,
    wide_encoding,
)

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))$"
_FORMATS = {
    "csv": "csv", "txt": "csv", "data": "csv", "dat": "csv", "tsv": "csv",
    "parquet": "parquet", "pq": "parquet",
    "arrow": "arrow", "feather": "arrow", "ipc": "arrow",
    # The last three are not read: what is said of them is said where they would be.
    "xlsx": "excel", "xlsm": "excel", "xls": "excel", "xlsb": "excel", "ods": "excel",
    "dta": "stata", "sav": "spss", "zsav": "spss",
}  # fmt: skip


_CALLED = {
    "parquet": "a Parquet file",
    "arrow": "an Arrow or Feather file",
    "excel": "an Excel workbook",
    "stata": "a file of Stata",
    "spss": "a file of SPSS",
}


# --------------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a site's table is, and how it is written: the ``[source]`` of a site file.

    Parameters
    ----------
    path : str, optional
        File; relative to the site file. ``${NAME}`` is taken from the environment.
    format : {"csv", "parquet", "arrow", "excel", "stata", "spss"}, optional
        By the ending of the file name where it is not given; ``.gz`` is unpacked.
    separator : str, optional
        One character, ``"tab"`` or ``"whitespace"`` (one or more blanks or tabs). A comma by
        default, a tab for ``.tsv``.
    header : bool
        Whether the first row of a CSV file holds column names.
    column_names : sequence of str
        Names of all columns, in order; needed without a header, replace a header otherwise.
    encoding : str
    quote : str
        One character, or empty for none.
    decimal : {".", ","}
    url : str, optional
        ``sqlite:PATH`` or ``postgresql://...``; ``${NAME}`` is taken from the environment.
    query : str, optional
        SQL that gives the table.
    sheet : str, optional
        Of an Excel workbook; needed where several sheets hold cells.
    labels : bool or sequence of str
        Whether value labels of Stata and SPSS are read as texts in place of their values, or the
        columns in which they are.

    Raises
    ------
    StudyError
        A setting is missing, unknown or contradicts another.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    path: str | None = None
    format: Literal["csv", "parquet", "arrow", "excel", "stata", "spss"] | None = None
    separator: str | None = None
    header: bool = True
    column_names: tuple[str, ...] = ()
    encoding: str = "utf-8"
    quote: str = '"'
    decimal: Literal[".", ","] = "."
    url: str | None = None
    query: str | None = None
    sheet: str | None = None
    labels: bool | tuple[str, ...] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_names", tuple(self.column_names))
        if not isinstance(self.labels, bool):
            object.__setattr__(self, "labels", tuple(self.labels))
        if (self.path is None) == (self.url is None):
            raise StudyError("[source] needs either a path or a url with a query")
        if (self.url is None) != (self.query is None):
            raise StudyError("[source] url and query belong together: give both or neither")
        if not self.header and not self.column_names:
            raise StudyError("[source] header = false needs column_names, in the file's order")
        twice = _repeated(self.column_names)
        if twice is not None:
            raise StudyError(f"[source] names {twice} of column_names are equal")
        separator = self.separator
        if separator is not None and separator not in (*SEPARATORS, "whitespace"):
            _one_character("separator", separator, "one character, 'tab' or 'whitespace'")
        if self.quote:
            _one_character("quote", self.quote, "one character or empty")
        if self.decimal not in (".", ","):
            raise ParameterError.of("[source] decimal", "'.' or ','", self.decimal)
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise StudyError(f"[source] encoding {self.encoding!r} is not known") from None


def _one_character(name: str, value: str, allowed: str) -> None:
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise ParameterError.of(f"[source] {name}", allowed, value)


def _repeated(names: tuple[str, ...] | list[str]) -> str | None:
    """Positions, from 1, of the first two equal names, as a phrase."""
    seen: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if name in seen:
            return f"{seen[name]} and {place}"
        seen[name] = place
    return None


def expand(text: str) -> str:
    """Replace ``${NAME}`` by the environment's value and a leading ``~`` by the home directory.

    Raises
    ------
    DataError
        The environment has no such variable.
    """
    for name in _VARIABLE.findall(text):
        if not os.environ.get(name):
            raise DataError(
                f"the site file uses ${{{name}}}, which is not set: "
                f"set the environment variable {name}, or write the path out",
                public=UNREADABLE,
            )
    return os.path.expanduser(_VARIABLE.sub(lambda m: os.environ[m.group(1)], text))


# --------------------------------------------------------------------------- the table


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read.

    Attributes
    ----------
    frame : pyarrow.Table or ParquetColumns
    content_hash : str
        SHA-256 of the file's bytes, or of the columns for a query or a table in memory.
    description : str
        For the person at the site.
    decimal : str
        Decimal mark of numbers in text.
    labelled : frozenset of str
        Columns whose texts are value labels.
    spellings : mapping of int to Spelling
        Columns of texts, by place, that are kept as numbers.
    """

    frame: Any  # pyarrow.Table or ParquetColumns
    content_hash: str
    description: str
    decimal: str = "."
    labelled: frozenset[str] = frozenset()
    spellings: Mapping[int, Spelling] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.frame.num_rows)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(self.frame.column_names)

    def kind(self, name: str) -> str:
        """``"text"``, ``"number"``, ``"boolean"``, ``"empty"`` or, for others, their type."""
        if self._spelling(name) is not None:
            return "text"
        kind = self.frame.schema.field(name).type
        kind = kind.value_type if pat.is_dictionary(kind) else kind
        if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
            return "text"
        if pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
            return "number"
        if pat.is_boolean(kind):
            return "boolean"
        # Without what is inside: the keys of records in memory are part of their Arrow type.
        return "empty" if pat.is_null(kind) else re.split(r"[<\[]", str(kind))[0]

    def numbers(
        self, name: str, codes: tuple[str, ...] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Read a column as numbers.

        Parameters
        ----------
        name : str
        codes : tuple of str
            Texts that stand for a missing value; those that are numbers are compared as numbers.

        Returns
        -------
        values : (n,) float array
            NaN where the cell is empty, holds a missing code or is no number. Not to be written
            to: it may be the table itself.
        wrong : int array
            Positions of the cells that are no number.
        """
        wrong = np.zeros(0, dtype=np.int64)
        # No missing code but a number is the text of a number.
        kept = self._spelling(name) is not None
        column = self.frame.column(name) if kept else self._plain(name)
        if self.kind(name) == "text" and not kept:
            column = self._trimmed(column, codes)
            if self.decimal == ",":
                # A point is then no decimal mark: what has one is no number, not another one.
                column = pc.replace_substring(column, ".", "?")
                column = pc.replace_substring(column, ",", ".")
            if (whole := _as_numbers(column)) is not None:
                column = whole
            else:
                lower = pc.utf8_lower(column)
                fine = pc.is_in(lower, value_set=pa.array(["false", "true"], type=lower.type))
                # Most cells decide, so that no single one does how the others are read.
                if 2 * (pc.sum(fine).as_py() or 0) > len(column) - column.null_count:
                    column = pc.equal(lower, "true")
                else:
                    fine = pc.match_substring_regex(column, _NUMBER)
                wrong = np.flatnonzero(
                    to_numpy(pc.and_(pc.is_valid(column), pc.invert(pc.fill_null(fine, False))))
                )
                column = pc.if_else(fine, column, pa.scalar(None, column.type))
        if column.type != pa.float64():
            column = pc.cast(column, pa.float64(), safe=False)
        values: NDArray[np.float64] = np.asarray(to_numpy(column), dtype=np.float64)
        # -9, -9.0 and -9.00 are one code, as they are one number.
        numeric = [float(code) for code in codes if is_number(code)]
        if numeric:
            values = np.where(np.isin(values, numeric), np.nan, values)
        return values, wrong

    def plain_numbers(self, name: str) -> NDArray[np.float64] | None:
        """A column of texts as numbers, NaN where a cell is empty; None unless all others are some.

        Texts like nan are none (`is_number`). Beside decimal commas a point is one, too.
        """
        if self._spelling(name) is not None:
            kept = self.frame.column(name)
            return None if pc.any(pc.is_nan(kept)).as_py() else to_numpy(kept)
        column = self._trimmed(self._plain(name), ())
        if self.decimal == ",":
            column = pc.replace_substring(column, ",", ".")
        values = _as_numbers(column)
        return None if values is None or pc.any(pc.is_nan(values)).as_py() else to_numpy(values)

    def why_wrong(self, name: str, wrong: NDArray[np.int64]) -> str:
        """What to do about cells that are no number, if that can be told; else empty.

        Parameters
        ----------
        name : str
        wrong : int array
            Positions, as `numbers` returns them.
        """
        if name in self.labelled:
            return (
                "its value labels are read as texts, so set labels = false in [source], or to a "
                "list of the other columns, "
            )
        cells = self._plain(name).take(wrong).to_pylist()
        if self.decimal == "." and has_marks(cells, ","):
            return "set decimal = ',' in [source], as some are written so, "
        if self.decimal == "," and has_marks(cells, "."):
            return (
                "decimal in [source] is ',' and some are written with a point, so write all with "
                "one mark and thousands without any, "
            )
        return ""

    def categories(
        self, name: str, codes: tuple[str, ...] = ()
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Read a column as categories.

        Returns
        -------
        positions : (n,) int array
            Position among the distinct texts; -1 where the cell is missing.
        texts : tuple of str
            Distinct texts without blanks around them; whole numbers have no decimals.
        """
        column = self._plain(name)
        if self.kind(name) == "text":
            column = self._trimmed(column, codes)
        elif self.kind(name) not in ("number", "boolean"):
            column = pc.cast(column, pa.string())
        encoded = pc.dictionary_encode(column).combine_chunks()
        positions = to_numpy(pc.fill_null(pc.cast(encoded.indices, pa.int64()), -1))
        values = encoded.dictionary.to_pylist()
        is_text = self.kind(name) == "text"
        texts = tuple(map(str.strip if is_text else plain_text, values))
        missing = np.fromiter(map(code_check(("", *codes)), texts), bool, len(texts))
        if not is_text:
            missing |= np.array([value != value for value in values], dtype=bool)
        kept = np.where(missing, -1, np.arange(len(texts))).astype(np.int64)
        kept = np.append(kept, -1)  # position -1 stays -1
        return kept[positions], texts

    def with_texts(self, name: str, positions: NDArray[np.int64], texts: Sequence[str]) -> Table:
        """The same table with other texts in a column; -1 is an empty cell. The hash stays."""
        column = pa.array(texts, pa.string()).take(pa.array(positions, mask=positions < 0))
        place = self.names.index(name)
        frame = self.frame.set_column(place, name, column)
        left = {at: one for at, one in self.spellings.items() if at != place}
        return replace(self, frame=frame, spellings=left)

    def cells(self, name: str) -> Any:
        """A column as it was read."""
        column, spelling = self.frame.column(name), self._spelling(name)
        return column if spelling is None else spelling.texts(column)

    def _spelling(self, name: str) -> Spelling | None:
        return self.spellings.get(self.frame.schema.get_field_index(name))

    def _plain(self, name: str) -> Any:
        """Return a column without a dictionary."""
        column = self.cells(name)
        return pc.cast(column, column.type.value_type) if pat.is_dictionary(column.type) else column

    @staticmethod
    def _trimmed(column: Any, codes: tuple[str, ...]) -> Any:
        """Strip blanks; empty cells and missing codes become null."""
        column = pc.utf8_trim_whitespace(column)
        empty = pc.is_in(column, value_set=pa.array(["", *codes], type=column.type))
        return pc.if_else(empty, pa.scalar(None, column.type), column)


def _as_numbers(column: Any) -> Any | None:
    """Numbers of texts, if all that are not null are some."""
    try:
        return pc.cast(column, pa.float64())
    except pa.ArrowInvalid:  # whose message would show the cell, so it is not passed on
        return None


# --------------------------------------------------------------------------- reading


def read_source(source: object, base: Path | None = None) -> Table:
    """Read a table.

    Parameters
    ----------
    source : Source, table of pandas, polars or pyarrow, mapping of name to column, path, or Table
        The index of a DataFrame is not a column. A path is that of a file that `Source` reads.
    base : Path, optional
        Directory that relative paths start from; the current one by default.

    Raises
    ------
    DataError
        The table is missing, unreadable, empty, ragged, or has repeated column names.
    MissingExtraError
        A database or a file of another program is asked for, and what reads it is not installed.
    """
    if isinstance(source, Table):
        return source
    base = Path() if base is None else Path(base)
    if isinstance(source, str | os.PathLike):
        source = Source(path=os.fspath(source))
    if isinstance(source, Source):
        if source.url is not None:
            from consilience.sites.source_database import read_query

            frame, where = read_query(expand(source.url), str(source.query), base)
            return finished(frame, None, where)
        return _read_file(source, base)
    return _from_memory(source)


def finished(
    frame: Any,
    content_hash: str | None,
    where: str,
    decimal: str = ".",
    labelled: frozenset[str] = frozenset(),
    spellings: Mapping[int, Spelling] | None = None,
) -> Table:
    """Check names and size of a table that was read; without a hash, take that of its columns."""
    names = _distinct(frame.column_names, where)
    if not names or frame.num_rows == 0:
        raise fail(f"{where} has no rows: a site needs at least one")
    if isinstance(frame, ParquetColumns):
        frame = frame.rename_columns(names)
    else:
        frame = pa.table([without_views(column) for column in frame.columns], names=names)
    known = content_hash or column_hash(frame)
    return Table(frame, known, where, decimal, labelled, spellings or {})


def source_path(source: Source, base: Path) -> Path | None:
    """Return the file that a source names; None where it is a database."""
    return None if source.path is None else base / expand(str(source.path))


def _read_file(source: Source, base: Path) -> Table:
    path = base / expand(str(source.path))
    if not path.exists():
        raise fail(f"there is no file {path}: check path in [source]")
    if not path.is_file():
        raise fail(f"{path} is not a file: name one file in [source]")
    packed = path.suffix.lower() == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    form = source.format or _FORMATS.get(ending.lower().lstrip("."))
    reader = Csv(
        source, source.separator or ("tab" if ending.lower() == ".tsv" else ","), str(path)
    )
    if form == "csv" and not packed and source.sheet is None and source.labels is True:
        found = read_blocks(reader, path)
        if found is not None:
            named = found.frame, found.content_hash, str(path)
            return finished(*named, source.decimal, spellings=found.spellings)
    if form == "parquet" and not packed and source.sheet is None and source.labels is True:
        columns = read_columns(path)
        if columns is not None:
            return finished(columns, columns.content_hash, str(path), source.decimal)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise fail(f"{path} cannot be read: {error.strerror}") from None
    # Of the file as it lies there, packed or not: a steward can compute the same with sha256sum.
    content_hash = hashlib.sha256(data).hexdigest()
    if form is None:
        raise fail(f"the ending of {path} says nothing: set format in [source]")
    if packed:
        import gzip
        import zlib

        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            raise fail(f"{path} is not a whole gzip file: copy it again") from None
    if not data or data.isspace():
        raise fail(f"{path} is empty: check path in [source]")
    if source.sheet is not None and form != "excel":
        raise fail(f"{path} has no sheets, as only workbooks do: take sheet out of [source]")
    if source.labels is not True and form not in ("stata", "spss"):
        raise fail(f"{path} has no value labels: take labels out of [source]")
    if (seems := binary_form(data)) not in ("", form):
        raise fail(f"{path} is {_CALLED[seems]}: set format = {seems!r} in [source]")
    if form in ("stata", "spss") and not seems:
        raise fail(f"{path} is not {_CALLED[form]}, whatever its name says: set format in [source]")
    labelled: frozenset[str] = frozenset()
    if form == "csv":
        frame = reader.read(data)
    elif form == "parquet":
        frame = _parse(_parquet, data, f"{path} is not a readable Parquet file")
    elif form == "arrow":
        frame = _parse(_arrow, data, f"{path} is not a readable Arrow or Feather file")
    else:
        from consilience.sites import source_files as own

        readers = {"excel": own.read_excel, "stata": own.read_stata, "spss": own.read_spss}
        frame, labelled = readers[form](source, data, str(path))
    return finished(frame, content_hash, str(path), source.decimal, labelled)


def _parse(parser: Any, data: bytes, sentence: str) -> Any:
    """Parse, without passing on what a library says about the content."""
    try:
        return parser(data)
    except (pa.ArrowException, OSError, ValueError):
        raise fail(f"{sentence}: check path and format in [source]") from None


def _parquet(data: bytes) -> Any:
    return pq.read_table(pa.BufferReader(data))


def _arrow(data: bytes) -> Any:
    from pyarrow import feather, ipc

    if data[:4] == b"FEA1" or data[:6] == b"ARROW1":
        return feather.read_table(pa.BufferReader(data))
    return ipc.open_stream(pa.BufferReader(data)).read_all()


# --------------------------------------------------------------------------- memory


def _from_memory(source: object) -> Table:
    where = f"the {type(source).__name__} that was given"
    # Polars and others by Arrow; pandas has its own way, in which NaN is missing.
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "items"):
        try:
            source = pa.table(source)
        except (pa.ArrowException, TypeError, ValueError):  # their own words may show a cell
            raise fail(f"{where} cannot be read by Arrow: give a pyarrow table") from None
    if isinstance(source, pa.Table):
        columns = dict(zip(_distinct(source.column_names, where), source.columns, strict=True))
    elif hasattr(source, "items") and hasattr(source, "columns"):
        names = _distinct(list(source.columns), where)
        columns = dict(zip(names, (values for _, values in source.items()), strict=True))
    elif isinstance(source, Mapping):
        columns = dict(zip(_distinct(list(source), where), source.values(), strict=True))
    else:
        raise fail(
            f"a site's table cannot be a {type(source).__name__}: give a pandas DataFrame, "
            "a polars or pyarrow table, a mapping of names to columns, or the path of a file"
        )
    arrays = {name: _array(name, values) for name, values in columns.items()}
    if len({len(a) for a in arrays.values()}) > 1:
        raise fail(f"{where} has columns of different lengths")
    return finished(pa.table(arrays), None, where)


def _distinct(names: list[Any], where: str) -> list[str]:
    texts = [str(name).strip() for name in names]
    twice = _repeated(texts)
    if twice is not None:
        # Not the name itself: where the first row is no header, it is a cell.
        raise fail(
            f"columns {twice} of {where} have the same name: give every column its own "
            "(or, if the first row holds data, set header = false)"
        )
    return texts


def _array(name: str, values: Any) -> Any:
    """Turn one column into Arrow; NaN and None are missing."""
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return values
    flat = getattr(values, "ndim", 1) == 1 and hasattr(values, "__len__")
    if isinstance(values, str | bytes | Mapping) or not flat:
        raise fail(f"column {name!r} is not a sequence of cells")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise fail(
            f"column {name!r} holds cells of several types: make them all numbers or all texts"
        ) from None


def column_hash(frame: Any) -> str:
    """SHA-256 of names, types and cells, however the table is cut into chunks."""
    digest = hashlib.sha256()
    for name, column in zip(frame.column_names, frame.columns, strict=True):
        # With lengths, so that no two tables run into the same bytes.
        digest.update(f"{len(name)}:{name}:{column.type}:{len(column)};".encode())
        for part in _bytes_of(column):
            digest.update(part)
    return digest.hexdigest()


def _bytes_of(column: Any) -> tuple[bytes, ...]:
    if pat.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    # Empty cells have no content: what lies behind them in memory must not enter.
    gaps = column.null_count > 0
    there = to_numpy(pc.is_valid(column)) if gaps else np.ones(len(column), dtype=bool)
    valid = np.packbits(there).tobytes()
    if pat.is_null(column.type):
        return (valid,)
    if pat.is_boolean(column.type) or pat.is_integer(column.type) or pat.is_floating(column.type):
        if gaps:
            column = pc.fill_null(column, pa.scalar(0).cast(column.type))
        return valid, to_numpy(column).tobytes()
    if pat.is_nested(column.type) or pat.is_interval(column.type):
        return valid, repr(column.to_pylist()).encode()
    raw = pat.is_binary(column.type) or pat.is_large_binary(column.type)
    if raw or pat.is_fixed_size_binary(column.type):
        filled = pc.fill_null(pc.cast(column, pa.large_binary()), b"")
    else:
        filled = pc.fill_null(pc.cast(column, pa.large_string()), "")
    lengths = to_numpy(pc.binary_length(filled)).astype("<i8").tobytes()
    content = b"".join(_content(chunk) for chunk in filled.chunks)
    return valid, lengths, content


def _content(chunk: Any) -> bytes:
    """Characters of a large-string array, without its neighbours in the buffer."""
    _, offsets, data = chunk.buffers()
    if data is None or len(chunk) == 0:
        return b""
    ends = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return data.to_pybytes()[ends[0] : ends[-1]] if len(ends) else b""


# --------------------------------------------------------------------------------------- CSV files


_BLOCK, _LINES = 1 << 20, 1 << 10
"""Bytes of a block at least, and in lengths of the first line: what is done for each column of a
block takes longer than a few cells."""


@dataclass(frozen=True)
class Csv:
    """Reader of one CSV file; every cell becomes text.

    Parameters
    ----------
    source : Source
    separator : str
        As in `Source`.
    where : str
        Name of the file in errors.
    """

    source: Source
    separator: str
    where: str

    def read(self, data: bytes) -> Any:
        """Return a pyarrow Table; blank lines are no rows.

        Raises
        ------
        DataError
            The bytes are no CSV file, or rows differ in length.
        """
        if codecs.lookup(self.source.encoding).name != "utf-8":
            try:
                data = data.decode(self.source.encoding).encode()
            except UnicodeDecodeError as error:
                before = data[: error.start].decode(self.source.encoding, "ignore")
                raise self._badly_encoded(before) from None
        elif found := wide_encoding(data):
            raise fail(f"{self.where} is {found} text: set encoding = {found!r} in [source]")
        if self.source.separator is None:
            self.check_separator(data)
        if self.separator == "whitespace":
            data = _single_blanks(data, self.source.quote)
        return self._table(data, self._names(data))

    def _badly_encoded(self, before: str) -> DataError:
        line = 1 + (before.count("\n") or before.count("\r"))
        return fail(
            f"line {line} of {self.where} is not {self.source.encoding} text: set encoding in "
            "[source], for example 'latin-1'"
        )

    def check_separator(self, data: bytes) -> None:
        """Refuse a file whose first lines have another separator only, and propose it."""
        first = lines(data)
        usual = SEPARATORS.get(self.separator, self.separator)
        found = separator_of(first)
        if not found or usual in first[0] or SEPARATORS.get(found, found) == usual:
            return
        comma = decimal_of(first, found) == "," and self.source.decimal == "."
        decimal = " and decimal = ','" if comma else ""
        raise fail(
            f"the first line of {self.where} has {found!r} between its cells, and no "
            f"{usual!r}: set separator = {found!r}{decimal} in [source], or {usual!r} if it has "
            "one column"
        )

    def _options(
        self, data: bytes, threads: bool, ragged: list[Any] | None = None
    ) -> dict[str, Any]:
        line = min((i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0), default=len(data))
        quote = self.source.quote
        quoted = bool(quote) and quote.encode() in data
        return self.options(line, quoted, threads=threads, ragged=ragged)

    def options(
        self, line: int, quoted: bool, *, threads: bool, ragged: list[Any] | None = None
    ) -> dict[str, Any]:
        """Settings of Arrow for a file with so many bytes in its first line.

        Parameters
        ----------
        line : int
        quoted : bool
            Whether the file holds a quote.
        threads : bool
        ragged : list, optional
            Gets the rows whose number of cells is wrong; then they are no error.
        """

        def skip(row: Any) -> str:
            if ragged is not None:
                ragged.append((row.expected_columns, row.actual_columns, row.number))
            return "skip"

        quote = self.source.quote
        delimiter = {**SEPARATORS, "whitespace": " "}.get(self.separator, self.separator)
        names = list(self.source.column_names) or None
        return {
            "read_options": pa_csv.ReadOptions(
                use_threads=threads,
                block_size=max(_BLOCK, _LINES * line),
                column_names=names,
                skip_rows_after_names=1 if names and self.source.header else 0,
            ),
            "parse_options": pa_csv.ParseOptions(
                delimiter=delimiter,
                quote_char=quote or False,
                newlines_in_values=quoted,
                # Arrow decodes a row before it hands it over, and prints what goes wrong there.
                invalid_row_handler=None if ragged is None else skip,
            ),
        }

    def _names(self, data: bytes) -> list[str]:
        if self.source.column_names:
            return list(self.source.column_names)
        names: list[str] = []
        for skips in (False, True):
            options = self._options(data, False, [] if skips else None)
            try:
                with pa_csv.open_csv(pa.BufferReader(data), **options) as reader:
                    names = list(reader.schema.names)
            except (pa.ArrowException, UnicodeDecodeError):
                self._require_text(data)
            if names:
                break
        else:
            raise self._not_csv()
        check_header(names, self.where)
        return names

    @staticmethod
    def as_texts(names: list[str]) -> Any:
        """Settings of Arrow by which every cell is text, and an empty one is missing."""
        return pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            null_values=[""],
        )

    def _table(self, data: bytes, names: list[str]) -> Any:
        convert = self.as_texts(names)

        def read(threads: bool, ragged: list[Any] | None = None) -> Any:
            options = self._options(data, threads, ragged)
            return pa_csv.read_csv(pa.BufferReader(data), convert_options=convert, **options)

        try:
            return read(True)
        except pa.ArrowException:
            self._require_text(data)
        ragged: list[Any] = []
        with suppress(pa.ArrowException):
            read(False, ragged)
        raise self._ragged(ragged) if ragged else self._not_csv()

    def _require_text(self, data: bytes) -> None:
        """Refuse bytes that are no text, and say where."""
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise self._badly_encoded(data[: error.start].decode()) from None

    def _not_csv(self) -> DataError:
        return fail(f"{self.where} is not a readable CSV file: check separator and quote")

    def _ragged(self, rows: list[Any]) -> DataError:
        # Arrow counts the header as row 1; people count rows of data.
        shift = 1 if self.source.header else 0
        numbers = sorted(number - shift for _, _, number in rows if number is not None)
        expected, found = rows[0][0], rows[0][1]
        return fail(
            f"{self.where} has {len(rows)} rows whose number of cells differs from the "
            f"{expected} column names ({found} in the first{row_list(numbers)}): "
            "check separator, quote and column_names in [source]"
        )


def _single_blanks(data: bytes, quote: str) -> bytes:
    """Put one blank between cells; blanks inside quotes stay."""
    mark = re.escape(quote.encode())
    if quote and quote.encode() in data:
        pattern = re.compile(mark + rb"[^" + mark + rb"]*" + mark + rb"|[ \t]+")
        data = pattern.sub(lambda m: b" " if m.group()[:1] in b" \t" else m.group(), data)
    else:
        data = re.sub(rb"[ \t]+", b" ", data)
    return re.sub(rb"(?:^ )|(?: (?=[\r\n]|\Z))|(?<=[\r\n]) ", b"", data)

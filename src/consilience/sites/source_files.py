"""Tables in files of Excel, Stata and SPSS, as `source.py` asks for them.

What these programs keep beside a number is turned into what a text file would say: value labels
become texts, user-missing values become empty cells, a day without a time becomes a date. Cells of
several types in one column of a sheet become text, as in a text file, so that the rules for text
judge them and no cell is lost.

Messages of openpyxl, pandas and ReadStat may show cells, so none is passed on.

How a file is written: of a text, encoding, separator and decimal mark by its first lines.

Nothing here decides how a table is read: what is found is proposed, to a person or in a new site
file. Nothing that is found shows a cell.
"""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import io
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import pa, pat, pc
from consilience.exceptions import DataError, MissingExtraError
from consilience.sites.encoding import check_header, fail, plain_text, row_list

if TYPE_CHECKING:
    from consilience.sites.source import Source

SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";"}
LOOK = 1 << 16
"""Bytes at the beginning of a file by which its form is guessed."""
LINES = 20
"""By which the separator is guessed."""
TEXTS = (".csv", ".txt", ".data", ".dat", ".tsv")

_COMMA = re.compile(r"[+-]?\d+,\d+")
_POINT = re.compile(r"[+-]?\d+\.\d+")
# What the first line of a table may have between its names, in the order of how usual it is.
_CANDIDATES = (",", ";", "tab", "|")


@dataclass(frozen=True)
class Form:
    """How a text file seems to be written, in the words of ``[source]``.

    Attributes
    ----------
    encoding, separator, decimal : str
    """

    encoding: str
    separator: str
    decimal: str

    def settings(self, separator: str = ",") -> dict[str, str]:
        """What differs from the defaults, of which the separator follows from the ending."""
        found = {"encoding": self.encoding, "separator": self.separator, "decimal": self.decimal}
        usual = {"encoding": "utf-8", "separator": separator, "decimal": "."}
        return {name: value for name, value in found.items() if value != usual[name]}


def form_of(data: bytes) -> Form:
    """Guess the form of a file.

    Parameters
    ----------
    data : bytes
        The whole file: a letter that is no UTF-8 may stand at its end.

    Raises
    ------
    DataError
        Some numbers have a decimal comma and some a point: either would be read wrongly.
    """
    encoding = encoding_of(data)
    rows = lines(data, encoding)
    separator = separator_of(rows, blanks=True) or ","
    commas, points = _marks(rows, separator)
    if commas and points:
        raise DataError(
            f"numbers have a comma in {_named(commas)} and a point in {_named(points)}, so the "
            "decimal mark cannot be told: write all with one mark, and thousands without any"
        )
    return Form(encoding, separator, "," if commas else ".")


def guessed(path: Path) -> dict[str, str]:
    """Settings of ``[source]`` for a file of text that differ from the defaults; none for others.

    Raises
    ------
    OSError
        It cannot be read.
    DataError
        Its decimal mark cannot be told.
    """
    ending = path.suffix.lower()
    if ending not in TEXTS or not path.is_file():
        return {}
    try:
        form = form_of(path.read_bytes())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return form.settings("tab" if ending == ".tsv" else ",")


_BINARY = (
    (rb"PAR1", "parquet"),
    (rb"ARROW1|FEA1", "arrow"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "excel"),  # an old one, or one with a password
    (rb"<stata_dta>|[\x66-\x73][\x01\x02]\x01", "stata"),
    (rb"\$FL[23]@\(#\)|.{8}ENCRYPTEDSAV", "spss"),
)


def binary_form(data: bytes) -> str:
    """Format of a file that is no text, as in ``[source]``, by its first bytes; empty otherwise."""
    if data[:2] == b"PK":
        return "excel" if b"xl/workbook." in data else ""
    head = data[:LOOK]
    return next((name for start, name in _BINARY if re.match(start, head, re.DOTALL)), "")


def wide_encoding(data: bytes) -> str:
    """Encoding of two bytes a letter, by its mark or by where the zeros are; empty where none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = data[:LOOK:2].count(0), data[1:LOOK:2].count(0)
    if 4 * max(even, odd) < max(len(data[:LOOK]), 1):
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"


def encoding_of(data: bytes) -> str:
    """Guess an encoding: UTF-8 where it can be, else that of western Windows."""
    if wide := wide_encoding(data):
        return wide
    for encoding in ("utf-8", "cp1252"):
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def lines(data: bytes, encoding: str = "utf-8") -> list[str]:
    """The lines at the beginning that are whole and not blank."""
    text = data[:LOOK].decode(encoding, "replace").removeprefix("\ufeff")
    found = text.splitlines()
    # Half of a number may be another one.
    whole = found[:-1] if len(data) > LOOK and len(found) > 1 else found
    return [line for line in whole if line.strip()]


def separator_of(rows: list[str], *, blanks: bool = False) -> str:
    """What stands between the cells of all lines alike; empty where nothing does, or one line is.

    Parameters
    ----------
    rows : list of str
    blanks : bool
        Whether blanks may be it.
    """
    rows = rows[:LINES]
    for name in _CANDIDATES if len(rows) > 1 else ():
        each = {len(row) for row in _cells(rows, name)}
        if len(each) == 1 and max(each) > 1:
            return name
    each = {len(line.split()) for line in rows}
    return "whitespace" if blanks and len(rows) > 1 and len(each) == 1 and max(each) > 1 else ""


def decimal_of(rows: list[str], separator: str) -> str:
    """The decimal mark of the numbers below a first line: a comma only where no point is one."""
    commas, points = _marks(rows, separator)
    return "," if commas and not points else "."


def _marks(rows: list[str], separator: str) -> tuple[list[int], list[int]]:
    """Positions, from 1, of columns with numbers that have a comma, and of those with a point."""
    found: tuple[set[int], set[int]] = set(), set()
    for row in _cells(rows[1:], separator) if separator != "," else ():
        for place, cell in enumerate(row, start=1):
            for pattern, places in zip((_COMMA, _POINT), found, strict=True):
                if pattern.fullmatch(cell.strip(' "')):
                    places.add(place)
    return sorted(found[0]), sorted(found[1])


def _named(places: list[int]) -> str:
    shown = ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")
    return f"column{'s' * (len(places) > 1)} {shown}"


def has_marks(cells: Iterable[str], mark: str) -> bool:
    """Whether some cells are numbers with this decimal mark, and none is one with the other."""
    this, other = (_COMMA, _POINT) if mark == "," else (_POINT, _COMMA)
    stripped = [cell.strip(' "') for cell in cells]
    return any(map(this.fullmatch, stripped)) and not any(map(other.fullmatch, stripped))


def _cells(rows: list[str], separator: str) -> list[list[str]]:
    if separator == "whitespace":
        return [row.split() for row in rows]
    try:
        return list(csv.reader(rows, delimiter=SEPARATORS.get(separator, separator)))
    except csv.Error:  # a cell without end: whatever is between them, it is not this
        return []


Read = tuple["pa.Table", frozenset[str]]
"""A table, and its columns whose texts are value labels."""

# What the readers raise on a file that is damaged.
_DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,  # of XML
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PROTECTED = "is protected by a password: save it without one, in a folder that only the site reads"


def read_excel(source: Source, data: bytes, where: str) -> Read:
    """Read a sheet of a workbook; its first row that is not blank holds the names of the columns.

    Parameters
    ----------
    source : Source
    data : bytes
    where : str
        Name of the file in errors.

    Raises
    ------
    DataError
        No workbook, or no plain table: merged cells, columns without a name, formulas without a
        value, or a sheet that is not named.
    MissingExtraError
        openpyxl is not installed.
    """
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise fail(f"{where} {_PROTECTED}")
        raise fail(f"{where} is a workbook of an old Excel (.xls): save it as .xlsx")
    if not data.startswith(b"PK"):
        raise fail(
            f"{where} is not an Excel workbook, whatever its name says: set format in [source], "
            "or save it as .xlsx"
        )
    if b"xl/workbook.xml" not in data:
        raise fail(f"{where} is not an Excel workbook of the kind .xlsx: save it as one")
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise MissingExtraError("files", "reading an Excel workbook") from None
    try:
        with warnings.catch_warnings():  # they show cells
            warnings.simplefilter("ignore")
            book = _Book(source, data, where)
            rows = book.rows(1 if source.header else 0)
    except DataError:  # a sentence of our own
        raise
    except _DAMAGED:
        raise _unreadable(where, "Excel (.xlsx)") from None
    return _sheet(source, rows, book.where), frozenset()


class _Book:
    """A workbook, and the sheet of it that a source means."""

    def __init__(self, source: Source, data: bytes, where: str) -> None:
        from openpyxl.reader.excel import ExcelReader

        self._data = data
        reader = ExcelReader(io.BytesIO(data), read_only=True, keep_links=False)
        reader.read()
        self._archive = reader.archive
        self._path = {sheet.name: rel.target for sheet, rel in reader.parser.find_sheets()}
        sheets = {sheet.title: sheet for sheet in reader.wb.worksheets}
        names = ", ".join(map(repr, sheets))
        if source.sheet is not None and source.sheet not in sheets:
            raise fail(f"{where} has no sheet {source.sheet!r}: set sheet in [source] to {names}")
        filled = list(sheets) if source.sheet is None else [source.sheet]
        if len(filled) > 1:
            filled = [name for name in filled if any(map(_filled, _rows(sheets[name])))]
        if len(filled) > 1:
            raise fail(
                f"{where} has {len(filled)} sheets with cells: set sheet in [source] to one of "
                f"{', '.join(map(repr, filled))}"
            )
        self._name = (filled or list(sheets))[0]
        self._sheet = sheets[self._name]
        self.where = f"{where}, sheet {self._name!r}," if len(sheets) > 1 else where

    def rows(self, first: int) -> list[list[Any]]:
        """Values of the rows that are not blank; of formulas, what Excel stored.

        Parameters
        ----------
        first : int
            Which of them is row 1 in errors.
        """
        self._check_merged()
        rows: list[list[Any]] = []
        formulas: dict[int, tuple[int, list[int]]] = {}
        for i, row in enumerate(_rows(self._sheet)):
            values = [_value(cell) for cell in row]
            if any(value is not None for value in values):
                if found := [j for j, value in enumerate(values) if _is_formula(value)]:
                    formulas[i] = (len(rows), found)
                rows.append(values)
        lacking = self._put_values(rows, formulas) if formulas else []
        if lacking:
            raise fail(
                f"{self.where} holds formulas without a stored value in {len(lacking)} "
                f"cell{'s' * (len(lacking) > 1)}"
                f"{row_list([place + 1 - first for place in dict.fromkeys(lacking)])}: open it in "
                "Excel, which computes them, and save it"
            )
        return rows

    def _put_values(
        self, rows: list[list[Any]], formulas: dict[int, tuple[int, list[int]]]
    ) -> list[int]:
        """Put the value of each formula in its place; returns the rows of those without one."""
        from openpyxl import load_workbook

        content = io.BytesIO(self._data)
        book = load_workbook(content, read_only=True, data_only=True, keep_links=False)
        lacking = []
        for i, row in enumerate(_rows(book[self._name], values_only=False)):
            place, columns = formulas.get(i, (0, []))
            for j in columns:
                rows[place][j] = _value(row[j].value)
                # An empty text that Excel stored is of this type.
                lacking += [place] if row[j].value is None and row[j].data_type != "str" else []
        return lacking

    def _check_merged(self) -> None:
        merged = re.compile(rb"<(?:\w+:)?mergeCell\s[^>]*?ref=\"([A-Z0-9:]+)\"")
        found, rest = [], b""
        with self._archive.open(self._path[self._name]) as text:
            while block := text.read(1 << 20):
                rest = rest[-200:] + block
                found += merged.findall(rest)
        if found:
            shown = ", ".join(one.decode() for one in list(dict.fromkeys(found))[:3])
            raise fail(
                f"{self.where} has merged cells ({shown}{', ...' if len(found) > 3 else ''}), of "
                "which all but one are empty: unmerge them, and write into each what it holds"
            )


def _rows(sheet: Any, *, values_only: bool = True) -> Iterator[Any]:
    # What a file says of its own size is often wrong.
    sheet.reset_dimensions()
    found: Iterator[Any] = sheet.iter_rows(values_only=values_only)
    return found


def _filled(row: Any) -> bool:
    return any(_value(cell) is not None for cell in row)


def _is_formula(value: Any) -> bool:
    # A text that begins so is read again as what it is.
    return value.startswith("=") if isinstance(value, str) else hasattr(value, "ref")


def _value(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _sheet(source: Source, rows: list[list[Any]], where: str) -> Any:
    """Make a table of the rows of a sheet, as a text file's would be."""
    width = max((j + 1 for row in rows for j, v in enumerate(row) if v is not None), default=0)
    rows = [[*row[:width], *[None] * (width - len(row))] for row in rows]
    names = [plain_text(v) if v is not None else "" for v in rows[0]] if rows else []
    if source.header:
        rows = rows[1:]
    if source.column_names:
        if rows and len(source.column_names) != width:
            raise fail(
                f"{where} has {width} columns, and column_names in [source] has "
                f"{len(source.column_names)}: give one name for each column"
            )
        names = list(source.column_names)
    else:
        empty = [str(j) for j, name in enumerate(names, start=1) if not name]
        if empty:
            shown = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
            raise fail(
                f"{where} has no name for column{'s' * (len(empty) > 1)} {shown} in its first row "
                "that is not blank: write one into each cell of it, and nothing above"
            )
        check_header(names, where)
    columns = [_column([row[j] for row in rows], source.decimal) for j in range(len(names))]
    return pa.Table.from_arrays(columns, names=names)


_DATES = (dt.date, dt.datetime)


def _column(cells: list[Any], decimal: str = ".") -> Any:
    """One column in Arrow: numbers, truth values or dates where all cells are, else texts."""
    there = [cell for cell in cells if cell is not None]
    if not there:
        return pa.nulls(len(cells))
    if all(isinstance(cell, bool) for cell in there):
        return pa.array(cells, pa.bool_())
    if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in there):
        return pa.array([np.nan if c is None else float(c) for c in cells], from_pandas=True)
    if all(isinstance(cell, _DATES) for cell in there):
        moments = [c if type(c) is not dt.date else dt.datetime(*c.timetuple()[:3]) for c in cells]
        return _moments(pa.array(moments, pa.timestamp("us")))
    return pa.array([None if c is None else _text(c, decimal) for c in cells], pa.string())


def _text(cell: Any, decimal: str = ".") -> str:
    if isinstance(cell, dt.datetime):
        cell = cell.date() if cell.time() == dt.time() else cell.replace(tzinfo=None)
    if isinstance(cell, float) and decimal != ".":
        return plain_text(cell).replace(".", decimal)
    return plain_text(cell)


def _moments(column: Any) -> Any:
    """Days where no time is another than midnight; seconds where these do."""
    for kind in (pa.date32(), pa.timestamp("s")):
        shorter = column.cast(kind, safe=False)
        if pc.all(pc.equal(shorter.cast(column.type), column)).as_py() is not False:
            return shorter
    return column


# --------------------------------------------------------------------------- Stata and SPSS


def read_stata(source: Source, data: bytes, where: str) -> Read:
    """Read a ``.dta`` of Stata; ``.`` and ``.a`` to ``.z`` are missing.

    Raises
    ------
    DataError
        It is damaged, or two values of a column have one label.
    """
    import pandas as pd

    def read(**more: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pd.read_stata(io.BytesIO(data), **more)

    try:
        frame = read(convert_categoricals=False)
        columns = {str(name): _series(values) for name, values in frame.items()}
    except _DAMAGED:
        raise _unreadable(where, "Stata (.dta)") from None
    wanted = _with_labels(source, list(columns), where)
    twice = None
    try:
        named: Any = read(columns=wanted) if wanted else {}
    except ValueError:
        twice = next((name for name in wanted if not _reads(read, name)), wanted[0])
    if twice is not None:
        raise _one_label(where, twice)
    labelled = set()
    for name in wanted:
        kind = named[name].dtype
        if isinstance(kind, pd.CategoricalDtype) and any(
            isinstance(v, str) for v in kind.categories
        ):
            texts = np.array([*map(_text, kind.categories), None], dtype=object)
            columns[name] = pa.array(texts[named[name].cat.codes.to_numpy()], pa.string())
            labelled.add(name)
    return pa.table(columns), frozenset(labelled)


def _reads(read: Callable[..., Any], name: str) -> bool:
    try:
        read(columns=[name])
    except ValueError:
        return False
    return True


def read_spss(source: Source, data: bytes, where: str) -> Read:
    """Read a ``.sav`` or ``.zsav`` of SPSS; values that it declares missing are.

    Raises
    ------
    DataError
        It is damaged or protected, or two values of a column have one label.
    MissingExtraError
        pyreadstat is not installed.
    """
    if b"ENCRYPTEDSAV" in data[:64]:
        raise fail(f"{where} {_PROTECTED}")
    try:
        import pyreadstat
    except ImportError:
        raise MissingExtraError("files", "reading a file of SPSS") from None
    encoding = None if source.encoding == "utf-8" else source.encoding
    try:
        found, about = pyreadstat.read_sav(
            io.BytesIO(data), output_format="dict", encoding=encoding
        )
    except (*_DAMAGED, pyreadstat.ReadstatError, pyreadstat.PyreadstatError):
        raise _unreadable(where, "SPSS (.sav)") from None
    names = list(found)
    columns, labelled = {}, set()
    wanted = set(_with_labels(source, names, where))
    for name, cells in found.items():
        cells = [None if cell != cell else cell for cell in cells]
        labels = about.variable_value_labels.get(name, {}) if name in wanted else {}
        seen = set(cells) - {None}
        if seen & set(labels):
            shown = {value: labels.get(value, _text(value)) for value in seen}
            if len({text.strip() for text in shown.values()}) < len(shown):
                raise _one_label(where, name)
            cells = [shown.get(cell) for cell in cells]
            labelled.add(name)
        columns[name] = _column(cells)
    return pa.table(columns), frozenset(labelled)


def _with_labels(source: Source, names: list[str], where: str) -> list[str]:
    """Columns whose labels are read."""
    if isinstance(source.labels, bool):
        return names if source.labels else []
    for place, name in enumerate(source.labels, start=1):
        if name not in names:
            raise fail(
                f"name {place} of labels in [source] is no column of {where}: correct it there"
            )
    return list(source.labels)


def _series(values: Any) -> Any:
    column = pa.array(values, from_pandas=True)
    return _moments(column) if pat.is_timestamp(column.type) else column


def _unreadable(where: str, kind: str) -> Exception:
    return fail(f"{where} is not a whole file of {kind}: open it there and save it again")


def _one_label(where: str, name: str) -> Exception:
    return fail(
        f"two values of column {name!r} in {where} have the same label: give them labels of their "
        "own, or set labels in [source] to the other columns with labels, or to false"
    )

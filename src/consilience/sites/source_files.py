"""Tables in files of Excel, Stata and SPSS, as `source.py` asks for them.

What these programs keep beside a number is turned into what a text file would say: value labels
become texts, user-missing values become empty cells, a day without a time becomes a date. Cells of
several types in one column of a sheet become text, as in a text file, so that the rules for text
judge them and no cell is lost.

Messages of openpyxl, pandas and ReadStat may show cells, so none is passed on.
"""

from __future__ import annotations

import datetime as dt
import io
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.exceptions import DataError, MissingExtraError
from consilience.sites.cells import check_header, fail, plain_text, row_list

if TYPE_CHECKING:
    import pyarrow as pa

    from consilience.sites.source import Source

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
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.types as t

    column = pa.array(values, from_pandas=True)
    return _moments(column) if t.is_timestamp(column.type) else column


def _unreadable(where: str, kind: str) -> Exception:
    return fail(f"{where} is not a whole file of {kind}: open it there and save it again")


def _one_label(where: str, name: str) -> Exception:
    return fail(
        f"two values of column {name!r} in {where} have the same label: give them labels of their "
        "own, or set labels in [source] to the other columns with labels, or to false"
    )

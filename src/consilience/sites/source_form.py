"""How a file is written: of a text, encoding, separator and decimal mark by its first lines.

Nothing here decides how a table is read: what is found is proposed, to a person or in a new site
file. Nothing that is found shows a cell.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from consilience.exceptions import DataError

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

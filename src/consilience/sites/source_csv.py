"""Reading CSV files as text, row by row as they stand.

Arrow's reader does the work; its own messages show cells and are never passed on.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import DataError
from consilience.sites.source import SEPARATORS, Source, fail, is_number, row_list


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
        data = self._as_utf8(data)
        if self.separator == "whitespace":
            data = _single_blanks(data, self.source.quote)
        return self._table(data, self._names(data))

    def _as_utf8(self, data: bytes) -> bytes:
        if codecs.lookup(self.source.encoding).name == "utf-8":
            return data
        try:
            return data.decode(self.source.encoding).encode()
        except UnicodeDecodeError as error:
            before = data[: error.start].decode(self.source.encoding, "ignore")
            raise self._badly_encoded(before) from None

    def _badly_encoded(self, before: str) -> DataError:
        line = 1 + (before.count("\n") or before.count("\r"))
        return fail(
            f"line {line} of {self.where} is not {self.source.encoding} text: set encoding in "
            "[source], for example 'latin-1'"
        )

    def _options(
        self, data: bytes, threads: bool, ragged: list[Any] | None = None
    ) -> dict[str, Any]:
        import pyarrow.csv as csv

        def skip(row: Any) -> str:
            if ragged is not None:
                ragged.append((row.expected_columns, row.actual_columns, row.number))
            return "skip"

        # A block must hold at least one row, however wide the table.
        line = min((i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0), default=len(data))
        quote = self.source.quote
        names = list(self.source.column_names) or None
        return {
            "read_options": csv.ReadOptions(
                use_threads=threads,
                block_size=max(1 << 20, 8 * line),
                column_names=names,
                skip_rows_after_names=1 if names and self.source.header else 0,
            ),
            "parse_options": csv.ParseOptions(
                delimiter=self._delimiter,
                quote_char=quote or False,
                newlines_in_values=bool(quote) and quote.encode() in data,
                # Arrow decodes a row before it hands it over, and prints what goes wrong there.
                invalid_row_handler=None if ragged is None else skip,
            ),
        }

    @property
    def _delimiter(self) -> str:
        if self.separator == "whitespace":
            return " "
        return SEPARATORS.get(self.separator, self.separator)

    def _names(self, data: bytes) -> list[str]:
        import pyarrow as pa
        import pyarrow.csv as csv

        if self.source.column_names:
            return list(self.source.column_names)
        names: list[str] = []
        for skips in (False, True):
            options = self._options(data, False, [] if skips else None)
            try:
                with csv.open_csv(pa.BufferReader(data), **options) as reader:
                    names = list(reader.schema.names)
            except (pa.ArrowException, UnicodeDecodeError):
                self._require_text(data)
            if names:
                break
        else:
            raise self._not_csv()
        if _look_like_data(names):
            raise fail(
                f"the first row of {self.where} holds numbers, not column names: "
                "set header = false and column_names in [source]"
            )
        return names

    def _table(self, data: bytes, names: list[str]) -> Any:
        import pyarrow as pa
        import pyarrow.csv as csv

        convert = csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            null_values=[""],
        )

        def read(threads: bool, ragged: list[Any] | None = None) -> Any:
            options = self._options(data, threads, ragged)
            return csv.read_csv(pa.BufferReader(data), convert_options=convert, **options)

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


def _look_like_data(names: list[str]) -> bool:
    """Whether a header is a row of numbers (0, 1, 2, ... are names that pandas gives)."""
    numbers = [name for name in names if is_number(name)]
    if not numbers or [int(n) for n in numbers if n.isdecimal()] == list(range(len(numbers))):
        return False
    return len(numbers) == len(names) or any(not n.isdecimal() for n in numbers)


def _single_blanks(data: bytes, quote: str) -> bytes:
    """Put one blank between cells; blanks inside quotes stay."""
    mark = re.escape(quote.encode())
    if quote and quote.encode() in data:
        pattern = re.compile(mark + rb"[^" + mark + rb"]*" + mark + rb"|[ \t]+")
        data = pattern.sub(lambda m: b" " if m.group()[:1] in b" \t" else m.group(), data)
    else:
        data = re.sub(rb"[ \t]+", b" ", data)
    return re.sub(rb"(?:^ )|(?: (?=[\r\n]|\Z))|(?<=[\r\n]) ", b"", data)

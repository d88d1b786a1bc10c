"""What a run leaves at a site, and how a person at the site reads it.

``labels.csv`` has one line for each row of the table as it was read: its position, its id where the
study names an id column, whether it was kept, and one column for each per-row output.
``reading.json`` says what became of the table: rows read, kept and dropped, and why.

Large tables are written by `csv_lines`: the bytes that Python's ``csv`` writes, several times as
fast. Numbers are shown as ``repr`` shows them, the shortest text that reads as the same number.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import pa, pc
from consilience.exceptions import ProtocolError, RunError, WireError
from consilience.protocol.method import SiteData, get_method
from consilience.sites.site_store import File, SiteStore
from consilience.wire.codec import pack, pack_parts, unpack

if TYPE_CHECKING:
    import pandas as pd

ROWS = "rows.bin"
TABLE = "labels.csv"
PREDICTOR = "predictor.bin"
PROVENANCE = "provenance.json"
READING = "reading.json"
USED = "used.bin"
"""Which rows a run uses, where the guard over runs left some out."""
MANY_ROWS = 2000
"""Tables of so many rows are written in another way; the bytes are the same."""
RESERVED = frozenset((ROWS, TABLE, PREDICTOR, PROVENANCE, READING, USED))


@dataclass(frozen=True, eq=False)
class Left:
    """What a run left at a site, for runs that follow it.

    Attributes
    ----------
    method, content_hash : str
    arrays : dict
        Of the predictor.
    rows : int array
        Positions of the kept rows.
    values : dict of str to array
        Outputs with one entry for each of them.
    """

    method: str
    content_hash: str
    arrays: dict[str, Any]
    rows: np.ndarray
    values: dict[str, Any]

    @property
    def predictor(self) -> Any:
        """The predictor."""
        return get_method(self.method).predictor.from_arrays(self.arrays)


@dataclass(frozen=True)
class SiteOutput:
    """Outputs of one run at one site.

    Parameters
    ----------
    home : SiteStore
    run : str
    """

    home: SiteStore
    run: str

    def _rows(self) -> dict[str, Any]:
        return self._read(ROWS, lambda data: unpack(data, max_bytes=1 << 40), "rows", "columns")

    def _read(self, name: str, decode: Callable[[bytes], Any], *keys: str) -> dict[str, Any]:
        """Read a file; `DamageError` where it is not what a run leaves."""
        data = self.home.read_output(self.run, name)
        try:
            read = decode(data)
        except (WireError, ValueError, RecursionError):
            read = None
        if not isinstance(read, dict) or not set(keys) <= read.keys():
            raise self.home.damaged("outputs", self.run, name)
        return read

    @property
    def labels(self) -> np.ndarray:
        """Class of each kept row, in input order; -1 marks an outlier."""
        return self.values("labels")

    @property
    def rows(self) -> np.ndarray:
        """Position of each kept row in the table as it was read."""
        return np.asarray(self._rows()["rows"])

    def values(self, name: str) -> np.ndarray:
        """Return an output with one entry for each kept row."""
        columns = self._rows()["columns"]
        if name not in columns:
            raise RunError(f"run {self.run} has no output {name!r} here: {', '.join(columns)}")
        return np.asarray(columns[name])

    def to_frame(self, name: str) -> pd.DataFrame:
        """Read a table that the run left here, such as ``"coefficients"``."""
        import pandas as pd

        return pd.read_csv(io.BytesIO(self.home.read_output(self.run, f"{name}.csv")))

    @property
    def predictor(self) -> Any:
        """The predictor that this run left: an object with ``predict(X)``."""
        method = get_method(self.provenance["method"])
        if method.predictor is None:
            raise RunError(f"method {method.name!r} leaves no predictor")
        return method.predictor.from_arrays(self.arrays)

    def left(self) -> Left:
        """Everything that a run which follows this one may use."""
        provenance = self._read(PROVENANCE, json.loads, "method", "content_hash")
        rows: dict[str, Any] = {"rows": np.empty(0, dtype=np.int64), "columns": {}}
        if ROWS in self.home.output_names(self.run):
            rows = self._rows()
        return Left(
            provenance["method"],
            provenance["content_hash"],
            self.arrays,
            np.asarray(rows["rows"]),
            rows["columns"],
        )

    @property
    def arrays(self) -> dict[str, Any]:
        """Arrays of the predictor that this run left."""
        return self._read(PREDICTOR, lambda data: unpack(data, max_bytes=1 << 40))

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the outputs come from: run, study, method, rows read and kept, content hash."""
        return self._read(PROVENANCE, json.loads, "method", "rows_read", "rows_kept")


def encode_outputs(
    outputs: dict[str, Any], earlier: dict[str, Any], data: SiteData
) -> dict[str, File]:
    """Turn what a step put out into files.

    Parameters
    ----------
    outputs : dict
        Arrays with one entry per kept row, or objects with ``to_arrays``.
    earlier : dict
        Per-row outputs of earlier steps of the run, which stay in the table.
    data : SiteData

    Raises
    ------
    ProtocolError
        An array that does not have one entry per row.
    """
    files: dict[str, File] = {}
    # Steps put out one column each: the table grows over the rounds of a run.
    columns = dict(earlier)
    rows, order = data.rows, None
    if (rows[1:] < rows[:-1]).any():
        # Rows that were matched with other sites' are in another order than in the table.
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
    for name, value in outputs.items():
        if hasattr(value, "to_arrays"):
            files[PREDICTOR] = pack(value.to_arrays())
        elif isinstance(value, np.ndarray) and len(value) == data.n_rows:
            # What nobody can write in stays as it is until it is packed.
            others = value.flags.writeable or not value.flags.owndata
            columns[name] = value[order] if order is not None else value.copy() if others else value
        else:
            raise ProtocolError(f"site output {name!r} does not have one entry for each row")
    if columns:
        # In the order of the table, so that this run and the next one have one order of rows.
        whole = {"rows": rows, "columns": columns}
        pack_parts(whole)  # to see that it can be: columns may be long, and are packed when written
        files[ROWS] = partial(pack, whole)
        ids = data.id if data.id is None or order is None else data.id[order]
        files[TABLE] = partial(_table, columns, rows, max(data.n_read, data.n_rows), ids)
    return files


def encode_table(name: str, columns: Mapping[str, Any]) -> dict[str, bytes]:
    """Turn a table of a step into ``<name>.csv``.

    Raises
    ------
    ProtocolError
        Columns of different lengths, or the name of another file.
    """
    # A step names its tables: none may write over the files of the house, or leave the folder.
    if f"{name}.csv" in RESERVED or not name.isidentifier():
        raise ProtocolError(f"a site table cannot be called {name!r}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    plain = [[v.item() if isinstance(v, np.generic) else v for v in c] for c in columns.values()]
    try:
        writer.writerows(zip(*plain, strict=True))
    except ValueError:
        raise ProtocolError(f"site table {name!r} has columns of different lengths") from None
    return {f"{name}.csv": text.getvalue().encode()}


def _table(
    columns: dict[str, np.ndarray], rows: NDArray[np.int64], n: int, ids: NDArray[Any] | None
) -> bytes:
    text = io.StringIO()
    named = [] if ids is None else ["id"]
    csv.writer(text, lineterminator="\n").writerow(["row", *named, "kept", *columns])
    # A line for every row that was read, also for those left out: people look rows up by position.
    kept = np.zeros(n, dtype=np.int64)
    kept[rows] = 1
    by_row = [*([] if ids is None else [ids]), *columns.values()]
    if n >= MANY_ROWS and all(quick(values) for values in by_row):
        every, place = [np.arange(n), *by_row], [None, *(rows for _ in by_row)]
        at = 1 + len(named)
        every.insert(at, kept)
        place.insert(at, None)
        return text.getvalue().encode() + csv_lines(every, place)
    filled: list[list[Any]] = [kept.tolist()]
    for values in by_row:
        cells: list[Any] = values.tolist()
        if len(rows) < n:
            cells = [""] * n
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                cells[row] = value
        filled.append(cells)
    if named:
        filled.insert(0, filled.pop(1))
    csv.writer(text, lineterminator="\n").writerows(zip(range(n), *filled, strict=True))
    return text.getvalue().encode()


# -------------------------------------------------------------------------- CSV of what stays here

_BLOCK = 65536
_PLAIN = (1e-4, 1e10)
"""Sizes of fractions that Arrow and Python show alike: no exponent, and a decimal point."""


def quick(values: NDArray[Any]) -> bool:
    """Whether `lines` knows a column: float64, int64, or texts that need no quotes."""
    if values.ndim != 1 or not values.dtype.isnative:
        return False
    if values.dtype.kind == "U":
        # One search for all cells: a mark inside a cell would need quotes.
        found = "\0".join(values.tolist())
        return not any(mark in found for mark in ',"\r\n')
    return values.dtype in (np.dtype(np.float64), np.dtype(np.int64))


def csv_lines(columns: Sequence[NDArray[Any]], places: Sequence[NDArray[np.int64] | None]) -> bytes:
    """Return one line for each row, without a header.

    Parameters
    ----------
    columns : sequence of (n,) or (m,) arrays
        Columns that are `quick`; at least two.
    places : sequence of (m,) int arrays or None
        Rows of the cells of a column, in increasing order; its other cells are empty. None where
        it has a cell in every row.
    """
    n = max(len(c) for c in columns)
    texts = []
    for values, rows in zip(columns, places, strict=True):
        cells = _texts(values)
        if rows is not None and len(rows) < n:
            where = np.full(n, len(rows))
            where[rows] = np.arange(len(rows))
            cells = pa.concat_arrays([cells, pa.array([""], pa.string())]).take(pa.array(where))
        texts.append(cells)
    found: list[bytes | memoryview] = []
    # Offsets of Arrow's texts have 32 bits: blocks stay far below 2 GB.
    for start in range(0, n, _BLOCK):
        joined = pc.binary_join_element_wise(*(t.slice(start, _BLOCK) for t in texts), ",")
        ends = pa.array([0, len(joined)], pa.int32())
        whole = pc.binary_join(pa.ListArray.from_arrays(ends, joined), "\n")
        # Buffers are copied once, when all are joined.
        found += [memoryview(whole[0].as_buffer()), b"\n"]
    return b"".join(found)


def _texts(values: NDArray[Any]) -> Any:
    """Cells of a column as texts."""
    if values.dtype.kind == "U":
        return pa.array(values.tolist(), pa.string())
    cells = pc.cast(pa.array(values), pa.string())
    if values.dtype.kind != "f":
        return cells
    size = np.abs(values)
    alike = (size >= _PLAIN[0]) & (size < _PLAIN[1])
    # Python writes 3.0 where Arrow writes 3.
    alike &= np.floor(values) != values
    if alike.all():
        return cells
    other = pa.array([repr(value) for value in values[~alike].tolist()], pa.string())
    return pc.replace_with_mask(cells, pa.array(~alike), other)

"""Lines of large tables: the bytes that Python's ``csv`` writes, several times as fast.

Numbers are shown as ``repr`` shows them, the shortest text that reads as the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 65536
_PLAIN = (1e-4, 1e10)
"""Sizes of fractions that Arrow and Python show alike: no exponent, and a decimal point."""


def quick(values: NDArray[Any]) -> bool:
    """Whether `lines` knows a column: float64, int64, or texts that need no quotes."""
    if values.ndim != 1 or not values.dtype.isnative:
        return False
    if values.dtype.kind == "U":
        found = "\0".join(values.tolist())
        return not any(mark in found for mark in ',"\r\n')
    return values.dtype in (np.dtype(np.float64), np.dtype(np.int64))


def lines(columns: Sequence[NDArray[Any]], places: Sequence[NDArray[np.int64] | None]) -> bytes:
    """Return one line for each row, without a header.

    Parameters
    ----------
    columns : sequence of (n,) or (m,) arrays
        Columns that are `quick`; at least two.
    places : sequence of (m,) int arrays or None
        Rows of the cells of a column, in increasing order; its other cells are empty. None where
        it has a cell in every row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    n = max(len(c) for c in columns)
    texts = []
    for values, rows in zip(columns, places, strict=True):
        cells = _texts(values)
        if rows is not None and len(rows) < n:
            where = np.full(n, len(rows))
            where[rows] = np.arange(len(rows))
            cells = pa.concat_arrays([cells, pa.array([""], pa.string())]).take(pa.array(where))
        texts.append(cells)
    found = []
    for start in range(0, n, _BLOCK):
        joined = pc.binary_join_element_wise(*(t.slice(start, _BLOCK) for t in texts), ",")
        ends = pa.array([0, len(joined)], pa.int32())
        whole = pc.binary_join(pa.ListArray.from_arrays(ends, joined), "\n")
        found.append(bytes(whole[0].as_buffer()) + b"\n")
    return b"".join(found)


def _texts(values: NDArray[Any]) -> pa.Array:
    """Cells of a column as texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.dtype.kind == "U":
        return pa.array(values.tolist(), pa.string())
    cells = pc.cast(pa.array(values), pa.string())
    if values.dtype.kind != "f":
        return cells
    size = np.abs(values)
    alike = (size >= _PLAIN[0]) & (size < _PLAIN[1])
    alike[alike] = values[alike] % 1 != 0
    if alike.all():
        return cells
    other = pa.array([repr(value) for value in values[~alike].tolist()], pa.string())
    return pc.replace_with_mask(cells, pa.array(~alike), other)

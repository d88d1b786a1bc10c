"""What is in each row of a table, as one number: by it rows are known again in later runs.

The number follows from the values and the names of the columns; neither the order of rows or
columns, nor the type as which a value was read (4, 4.0 and "4"), nor the format of the file enters.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.sites.row_history import mixed
from consilience.sites.source import Table, is_number

Content = NDArray[np.uint64]


def row_content(table: Table, names: tuple[str, ...], unit: str | None = None) -> Content:
    """Return a number for each row.

    Parameters
    ----------
    table : Table
    names : tuple of str
        Columns to look at.
    unit : str, optional
        Column of a long table: all rows with one value in it are one, in the order in which these
        values first occur.

    Returns
    -------
    (n,) uint64 array

    Raises
    ------
    DataError
        The table has not all these columns.
    """
    if gone := [name for name in names if name not in table.names]:
        sentence = "the site's table lacks a column that it had in earlier runs"
        raise DataError(
            f"{sentence} ({gone[0]!r}), so its rows are not known again: put the column back, or "
            "give the table another data_id in the policy if it is about other people",
            public=sentence,
        )
    content = np.zeros(table.n_rows, dtype=np.uint64)
    for name in names:
        content += mixed(_cells(table, name) ^ _of_text(name))
    content = mixed(content)
    if unit is None:
        return content
    positions, _ = table.categories(unit)
    first = np.unique(positions, return_index=True)[1]
    rank = np.argsort(np.argsort(first))
    together = np.zeros(len(first), dtype=np.uint64)
    np.add.at(together, rank[np.unique(positions, return_inverse=True)[1].ravel()], content)
    return together


def _cells(table: Table, name: str) -> Content:
    """A number for each cell of a column; of empty cells the same."""
    if table.kind(name) in ("number", "boolean"):
        return _of_numbers(table.numbers(name)[0])
    positions, texts = table.categories(name)
    known = [_of_numbers(np.array([float(t)]))[0] if is_number(t) else _of_text(t) for t in texts]
    empty = _of_numbers(np.array([np.nan]))[0]
    return np.array([*known, empty], dtype=np.uint64)[positions]


def _of_numbers(values: NDArray[np.float64]) -> Content:
    """Bits of numbers; there is one zero and one NaN."""
    return np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)


def _of_text(text: str) -> np.uint64:
    data = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(data, "little"))

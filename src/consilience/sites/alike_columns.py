"""Which prepared columns hardly differ from another that was asked for, in this run or before.

Sums over the one less sums over the other are sums over the few rows in which they differ (smoker
and ever smoker). So of a later one nothing is told, as of a column in which few rows differ; that
they are equal looks the same.

Of a column that may leave the home keeps one number for each of 16 `least` heaps of rows, its
sketch: two columns that differ in fewer than `least` rows differ in fewer heaps than that. Some
that differ in a row or two more may be taken for alike; that errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.privacy.row_history import mixed
from consilience.wire.usual_values import others

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Keys = NDArray[np.uint64]

KEPT = "columns of all releases"
"""Name under which sketches are kept."""
_HEAPS = 16
_MISSING = np.uint64(0x7FF8_0000_0000_0001)


def hidden(
    prepared: Mapping[str, tuple[str, FloatArray]],
    keys: Keys,
    known: Mapping[str, Any],
    least: int,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Find columns of which nothing may be told.

    Parameters
    ----------
    prepared : mapping of str to (str, (n,) array)
        By name: the column of the table that it is made from, and its values in all rows.
    keys : (n,) uint64 array
        Of the rows, the same ones for the same content.
    known : mapping
        What was kept: by name the source and sketches (1 or 2, heaps).
    least : int

    Returns
    -------
    hidden : tuple of str
    kept : dict
        With the others added.
    """
    kept = {name: (str(of), np.asarray(lines)) for name, (of, lines) in known.items()}
    found = []
    heaps = _heaps(keys, least)
    for name, (source, column) in prepared.items():
        if others(column, least) < least:
            continue  # it is withheld by itself
        lines = _sketches(column, keys, *heaps)
        if name in kept and np.array_equal(kept[name][1], lines):
            continue
        if any(of != source and _alike(lines, there, least) for of, there in kept.values()):
            found.append(name)
        else:
            kept[name] = (source, lines)
    return tuple(found), {name: [of, lines] for name, (of, lines) in kept.items()}


def _heaps(keys: Keys, least: int) -> tuple[IntArray, IntArray]:
    """Rows heap by heap, and where each heap starts and the last one ends."""
    heaps = _HEAPS * least
    heap = (keys % np.uint64(heaps)).astype(np.int16 if heaps < 1 << 15 else np.int64)
    return np.argsort(heap, kind="stable"), np.append(
        0, np.cumsum(np.bincount(heap, minlength=heaps))
    )


def _sketches(column: FloatArray, keys: Keys, order: IntArray, bounds: IntArray) -> Keys:
    """One number a heap of rows, (1, heaps); of two values also turned around, (2, heaps)."""
    values = np.unique(column[~np.isnan(column)][:64])
    variants = [column]
    if len(values) <= 2:
        values = np.unique(column[~np.isnan(column)])
        if len(values) == 2:
            high = np.where(np.isnan(column), np.nan, column == values[1])
            variants = [high, 1.0 - high]
    lines = []
    for one in variants:
        bits = np.where(np.isnan(one), _MISSING, (one + 0.0).view(np.uint64))
        total = np.concatenate([[np.uint64(0)], np.cumsum(mixed(keys ^ mixed(bits))[order])])
        lines.append(np.diff(total[bounds]))
    return np.array(lines, dtype=np.uint64)


def _alike(first: Keys, second: Keys, least: int) -> bool:
    """Whether fewer than `least` heaps differ, turned around or not."""
    if first.shape[1] != second.shape[1]:  # the policy had another limit then
        return False
    return min(int((a != b).sum()) for a in first for b in second) < least

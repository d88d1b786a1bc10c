"""Sums of products by class and block of columns, with what each of them rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.wire.evidence import Limits
from consilience.wire.moment_facts import Coded, coded_within, moment_facts

Place = tuple[int, slice]


def block_facts(
    x: FloatArray,
    cells: IntArray,
    n_cells: int,
    blocks: Sequence[IntArray],
    entities: NDArray[Any] | None,
    limits: Limits,
    coded: Sequence[Coded] = (),
) -> tuple[FloatArray, list[tuple[Place, dict[str, Any]]]]:
    """Sums of products about class means, and the evidence of each class and block.

    Of rows with gaps (NaN) the facts are those of the pairs of values that are there, and the
    number of rows is that of the column with the fewest values. The sums are over these pairs too.

    Cells are judged as `moment_facts` says: about means, about medians, and as counts.

    Returns
    -------
    value : (n_cells, m) array
        Upper triangles of the blocks, one after the other; 0 for classes without rows.
    facts : list of (place, facts)
        Place of a class and block in `value`; records behind it, columns, and facts of its cells.
    """
    sizes = [len(block) * (len(block) + 1) // 2 for block in blocks]
    ends = np.cumsum([0, *sizes])
    value = np.zeros((n_cells, int(ends[-1])))
    facts: list[tuple[Place, dict[str, Any]]] = []
    for k in range(n_cells):
        members = np.flatnonzero(cells == k)
        if not len(members):
            continue
        own = x[members]
        behind = None if entities is None else len(np.unique(np.asarray(entities)[members]))
        for b, block in enumerate(blocks):
            part = own[:, block]
            gaps = np.isnan(part)
            if gaps.all(axis=0).any():
                part = part[:0]  # a column without any value: the block rests on no row
            place = k, slice(int(ends[b]), int(ends[b + 1]))
            upper = np.triu_indices(len(block))
            there = _centred(part)
            products = there.T @ there
            value[place] = ((products + products.T) / 2)[upper]
            within = coded_within(coded, block)
            facts.append((place, _of_block(part, behind, limits, within)))
    return value, facts


def _centred(part: FloatArray) -> FloatArray:
    """Rows about their means, 0 where there is no value."""
    if not len(part):
        return part
    if np.isnan(part).any():
        return np.asarray(np.nan_to_num(part - np.nanmean(part, axis=0)))
    return np.asarray(part - part.mean(axis=0))


def _of_block(
    part: FloatArray, entities: int | None, limits: Limits, coded: Sequence[Coded]
) -> dict[str, Any]:
    judged = moment_facts(part, limits=limits, coded=coded)
    upper = np.triu_indices(part.shape[1])
    # What gives way for another cell's sake rests on no more than that one.
    records = np.where(judged.unsafe, 1, judged.records)
    found: dict[str, Any] = {
        "n_records": int((~np.isnan(part)).sum(axis=0).min(initial=len(part))),
        "n_columns": part.shape[1],
        "records": records[upper],
        "share": judged.share[upper],
    }
    if entities is not None:
        found["entities"] = np.full(len(upper[0]), entities, dtype=np.int64)
    return found


def numbers_in(value: Any) -> int:
    """How many numbers are in a nest of arrays."""
    if isinstance(value, Mapping):
        return sum(numbers_in(item) for item in value.values())
    if isinstance(value, tuple | list):
        return sum(numbers_in(item) for item in value)
    return int(np.size(value))


def has_numbers(value: Any) -> bool:
    """Whether anything but gaps is in a nest of arrays."""
    if isinstance(value, Mapping):
        return any(has_numbers(item) for item in value.values())
    if isinstance(value, tuple | list):
        return any(has_numbers(item) for item in value)
    return not bool(np.isnan(np.asarray(value, dtype=float)).all())

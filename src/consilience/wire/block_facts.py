"""Sums of products by class and block of columns, with what each of them rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.wire.cell_facts import product_facts

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Place = tuple[int, slice]


def block_facts(
    x: FloatArray,
    cells: IntArray,
    n_cells: int,
    blocks: Sequence[IntArray],
    entities: NDArray[Any] | None,
) -> tuple[FloatArray, list[tuple[Place, dict[str, Any]]]]:
    """Sums of products about class means, and the evidence of each class and block.

    Of rows with gaps (NaN) the facts are those of the pairs of values that are there, and the
    number of rows is that of the column with the fewest values. The sums are over these pairs too.

    Cells are judged about the class's means, as they are sent, and about its medians: sums about
    one point tell those about any other, and about the median a value that most rows share is zero.

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
            centred, judged = _about(part)
            place = k, slice(int(ends[b]), int(ends[b + 1]))
            upper = np.triu_indices(len(block))
            there = np.nan_to_num(centred) if gaps.any() else centred
            products = there.T @ there
            value[place] = ((products + products.T) / 2)[upper]
            facts.append((place, _of_block(centred, judged, behind)))
    return value, facts


def _about(part: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows about their means and about their medians."""
    if not len(part):
        return part, part
    if np.isnan(part).any():
        return part - np.nanmean(part, axis=0), part - np.nanmedian(part, axis=0)
    return part - part.mean(axis=0), part - np.median(part, axis=0)


def _of_block(centred: FloatArray, judged: FloatArray, entities: int | None) -> dict[str, Any]:
    upper = np.triu_indices(centred.shape[1])
    records, share = product_facts(centred)
    also, share_also = product_facts(judged)
    fewer = np.where((records == 0) | (also == 0), records + also, np.minimum(records, also))
    found: dict[str, Any] = {
        "n_records": int((~np.isnan(centred)).sum(axis=0).min(initial=len(centred))),
        "n_columns": centred.shape[1],
        "records": fewer[upper],
        "share": np.maximum(share, share_also)[upper],
    }
    if entities is not None:
        found["entities"] = np.full(len(upper[0]), entities, dtype=np.int64)
    return found


def unsafe_pairs(part: FloatArray, *, min_records: int, max_share: float) -> NDArray[np.bool_]:
    """Pairs of columns of a group of rows whose sum of products may not leave.

    Parameters
    ----------
    part : (n, q) array
        NaN where a value is missing. A pair without a row that has both may not leave either.
    min_records : int
    max_share : float

    Returns
    -------
    (q, q) bool array
    """
    q = part.shape[1]
    seen = (~np.isnan(part)).astype(float)
    if not len(part) or not seen.any(axis=0).all():
        return np.ones((q, q), dtype=bool)
    facts = _of_block(*_about(part), None)
    records, share = facts["records"], facts["share"]
    upper = np.triu_indices(q)
    unsafe = np.zeros((q, q), dtype=bool)
    unsafe[upper] = ((records > 0) & (records < min_records)) | ~(share <= max_share)
    unsafe |= seen.T @ seen == 0
    return np.asarray(unsafe | unsafe.T)


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

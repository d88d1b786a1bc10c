"""What the cells of sums rest on: records behind each, and the largest share of one record.

And sums by class whose additions go in one order, however records are split over sites.

Of weighted records, such as those of classes that overlap, `chance_facts` says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray

_FIRST = 64
_BLOCK, _CELLS = 512, 1 << 22
"""Columns, and cells, that are looked at together at most; two columns always are."""


def by_blocks(facts: Callable[[FloatArray], tuple[Any, ...]], x: FloatArray) -> tuple[Any, ...]:
    """Facts of each column of (n, d), of so many columns at a time that they fit into memory."""
    # Never one column alone, which would be added up in another order.
    size = max(2, min(_BLOCK, _CELLS // max(len(x), 1)))
    starts = range(0, max(x.shape[1] - 1, 1), size)
    ends = (*starts[1:], x.shape[1])
    found = [facts(x[:, start:end]) for start, end in zip(starts, ends, strict=True)]
    return found[0] if len(found) == 1 else tuple(map(np.concatenate, zip(*found, strict=True)))


def cell_facts(x: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """Sum, records of the smaller group and largest share, for each column of (n, d)."""
    total, records, share = by_blocks(_cell_facts, x)
    return total, records, share


def _cell_facts(x: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    present = ~np.isnan(x)
    size = np.where(present, np.abs(x), 0.0)
    total = np.where(present, x, 0.0).sum(axis=0)
    if not len(x):
        empty = np.zeros(x.shape[1])
        return total, empty.astype(np.int64), empty
    nonzero = (size > 0).sum(axis=0)
    low = np.min(np.where(present, x, np.inf), axis=0)
    high = np.max(np.where(present, x, -np.inf), axis=0)
    n_low = ((x == low) & present).sum(axis=0)
    n_high = ((x == high) & present).sum(axis=0)
    n = present.sum(axis=0)
    two_valued = (n_low + n_high == n) & (low < high)
    records = np.where(two_valued, np.minimum(n_low, n_high), nonzero)
    # In units of the largest, so that the sum cannot overflow: the largest share is one over it.
    peak = size.max(axis=0)
    with np.errstate(invalid="ignore"):  # an infinite contribution dominates, see `dominated`
        whole = np.divide(size, peak, out=np.zeros_like(size), where=peak > 0).sum(axis=0)
    share = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole != 0)
    return total, records, np.asarray(share)


def product_facts(x: FloatArray, first: int | None = None) -> tuple[IntArray, FloatArray]:
    """Records and largest share of each cell of ``x'x``, for rows x (n, p).

    With `first`, cells that none of the first so many columns is in are left at 0.
    """
    n_first = x.shape[1] if first is None else first
    if len(x) and np.isfinite(x).all():
        return _by_matrices(x, n_first)
    p = x.shape[1]
    records, share = np.zeros((p, p), dtype=np.int64), np.zeros((p, p))
    for j in range(n_first):
        _, records[j], share[j] = cell_facts(x * x[:, [j]])
        records[:, j], share[:, j] = records[j], share[j]
    return records, share


def _by_matrices(x: FloatArray, n_first: int) -> tuple[IntArray, FloatArray]:
    """The same for finite rows, with most sums as products of matrices."""
    p = x.shape[1]
    peak_of = np.abs(x).max(axis=0)
    # In units of the largest of each column, so that no sum can overflow.
    size = np.abs(x) / np.where(peak_of > 0, peak_of, 1.0)
    nonzero = (x != 0).astype(float)
    records, whole = np.zeros((p, p), dtype=np.int64), np.zeros((p, p))
    for sums, of in ((records, nonzero), (whole, size)):
        found = of[:, :n_first].T @ of
        sums[:n_first] = np.rint(found) if sums is records else found
        sums[:, :n_first] = sums[:n_first].T
    peak = np.zeros((p, p))
    with np.errstate(over="ignore"):
        for j in range(n_first):
            peak[j, j:] = peak[j:, j] = (size[:, j:] * size[:, [j]]).max(axis=0)
            first = x[:_FIRST, j:] * x[:_FIRST, [j]]
            few = ((first == first.min(axis=0)) | (first == first.max(axis=0))).all(axis=0)
            places = j + np.flatnonzero(few)  # of these products two values have shown so far
            if len(places):
                _, found, _ = cell_facts(x[:, places] * x[:, [j]])
                records[j, places] = records[places, j] = found
    share = np.divide(peak, whole, out=np.zeros_like(whole), where=whole != 0)
    return records, share


def facts_with_counts(x: FloatArray) -> tuple[IntArray, FloatArray]:
    """Facts of products; of two columns of two values the smallest cell that anybody is in.

    With a column of ones among the columns, sums of products tell all four cells.
    """
    records, share = product_facts(x)
    if not len(x):
        return records, share
    # Counts of two marked groups tell the cells of their table:
    # docs/adr/0003-zero-cells-and-complements.md.
    low, high = x.min(axis=0), x.max(axis=0)
    two = np.flatnonzero(((x == low) | (x == high)).all(axis=0) & (low < high))
    if len(two) < 2:
        return records, share
    up = (x[:, two] == high[two]).astype(float)
    both = np.rint(up.T @ up).astype(np.int64)
    ones = np.diagonal(both)
    cells = np.stack(
        [both, ones[:, None] - both, ones - both, len(x) - ones[:, None] - ones + both]
    )
    found = np.where(cells > 0, cells, len(x)).min(axis=0)
    records[np.ix_(two, two)] = np.where(np.eye(len(two)) > 0, records[np.ix_(two, two)], found)
    return records, share


def class_facts(
    ways: Sequence[FloatArray], cells: IntArray, entities: IntArray, n_cells: int, n_marks: int
) -> tuple[IntArray, FloatArray, IntArray]:
    """Records, largest share and entities behind the packed sums of each class.

    Parameters
    ----------
    ways : sequence of (n, p) arrays
        The same records in one or two systems of coordinates: the worse facts count.
    cells : (n,) int array
        Class of each record, -1 for none.
    entities : (n,) int array
    n_cells, n_marks : int

    Returns
    -------
    records, share, entities : (n_cells, p (p + 1) / 2 + n_marks) arrays
        Marks rest on all records of the class.
    """
    upper = np.triu_indices(ways[0].shape[1])
    products = len(upper[0])
    shape = (n_cells, products + n_marks)
    records, share = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    behind = np.zeros(shape, dtype=np.int64)
    for k in range(n_cells):
        members = np.flatnonzero(cells == k)
        if not len(members):
            continue
        found, largest = facts_with_counts(ways[0][members])
        for other in ways[1:]:
            also, share_also = facts_with_counts(other[members])
            found = np.where((found == 0) | (also == 0), found + also, np.minimum(found, also))
            largest = np.maximum(largest, share_also)
        # Marks are facts of the class as a whole; only the products are judged cell by cell.
        records[k] = len(members)
        records[k, :products], share[k, :products] = found[upper], largest[upper]
        behind[k] = len(np.unique(entities[members]))
    return records, share, behind


_BLOCKS_AT_ONCE = 1 << 10


def sums_by_class(
    x: FloatArray, extra: FloatArray, cells: IntArray, n_cells: int, blocks: IntArray | None
) -> FloatArray:
    """Upper triangles of ``x'x`` and sums of further columns by class.

    Parameters
    ----------
    x : (n, p) array
    extra : (n, q) array
    cells : (n,) int array
        Class of each record, -1 for none.
    n_cells : int
    blocks : (n,) int array or None
        Records are added within each block first, then blocks by pairs (0 with 1, 2 with 3, and
        these sums again): a run of 2^j blocks that starts at a multiple of 2^j is one node.

    Returns
    -------
    (n_cells, p (p + 1) / 2 + q) array
    """
    upper = np.triu_indices(x.shape[1])
    width = len(upper[0]) + extra.shape[1]
    where = np.zeros(len(x), dtype=np.int64) if blocks is None else np.asarray(blocks)
    order = np.lexsort((cells, where))
    order = order[cells[order] >= 0]
    n_blocks = int(where.max(initial=0)) + 1
    nodes = []
    for first in range(0, n_blocks, _BLOCKS_AT_ONCE):
        size = min(_BLOCKS_AT_ONCE, n_blocks - first)
        low, high = np.searchsorted(where[order], (first, first + size))
        part = np.zeros((size * n_cells, width))
        rows = order[low:high]
        if len(rows):
            place = (where[rows] - first) * n_cells + cells[rows]
            starts = np.flatnonzero(np.diff(place, prepend=-1))
            a = x[rows]
            terms = np.concatenate([a[:, upper[0]] * a[:, upper[1]], extra[rows]], axis=1)
            part[place[starts]] = np.add.reduceat(terms, starts, axis=0)
        nodes.append(added_by_pairs(part.reshape(size, n_cells, width)))
    return added_by_pairs(np.stack(nodes))


def added_by_pairs(parts: FloatArray) -> FloatArray:
    """Sum over the first axis, by pairs of neighbours; one without a neighbour waits."""
    while len(parts) > 1:
        paired = parts[0 : len(parts) - 1 : 2] + parts[1::2]
        parts = paired if len(parts) % 2 == 0 else np.concatenate([paired, parts[-1:]])
    return np.asarray(parts[0])


# ---------------------------------------------------------------------------- records with weights


def chance_facts(
    record: IntArray, group: IntArray, weight: FloatArray, amount: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Records behind each sum, and the largest share of one record.

    Parameters
    ----------
    record, group : (m,) int arrays
        Which record adds to which sum; in several entries if it adds several things.
    weight : (m,) array
        Share of the record that belongs to the class of the sum, 0 to 1: as much of a record as
        this counts.
    amount : (m,) array
        What it adds, at least 0.

    Returns
    -------
    records : (G,) int array
        Sum of the weights of the records that add something, rounded down, though not to 0.
    share : (G,) array
    """
    n_groups = int(group.max(initial=-1)) + 1
    pair, place = np.unique(record * max(n_groups, 1) + group, return_inverse=True)
    most = np.zeros(len(pair))
    np.maximum.at(most, place.ravel(), np.where(amount > 0, weight, 0.0))
    added = np.bincount(place.ravel(), weights=amount, minlength=len(pair))
    of = pair % max(n_groups, 1)
    weights = np.bincount(of, weights=most, minlength=n_groups)
    total = np.bincount(of, weights=added, minlength=n_groups)
    largest = np.zeros(n_groups)
    np.maximum.at(largest, of, added)
    records = np.where(weights > 0, np.maximum(np.floor(weights + 1e-9), 1), 0).astype(np.int64)
    share = np.divide(largest, total, out=np.zeros(n_groups), where=total > 0)
    return records, share

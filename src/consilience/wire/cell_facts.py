"""What the cells of sums rest on: records behind each, and the largest share of one record.

And sums by class whose additions go in one order, however records are split over sites.

Of weighted records, such as those of classes that overlap, `chance_facts` says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray

HARDLY = 0.01
"""Of a smaller share nobody asks how small it is."""
LOOK = 1024
"""Records after which it is looked whether a bound settles all cells."""
_FIRST = 64
_GLANCE, _TOP = 8, 32
_ROUNDING, _TINY = 1e-9, 1e-300
_SAFE = 1e150
"""Products of smaller numbers do not overflow."""
_AT_ONCE = 1 << 17
"""Cells that are added at a time."""


def cell_facts(
    x: FloatArray, about: FloatArray | None = None
) -> tuple[FloatArray, IntArray, FloatArray, IntArray]:
    """Sum, records of the smaller group, largest share and known values, for each column (n, d).

    Or of the squares of the columns about a point (d,). No more than a column is copied at a time.
    """
    n, d = x.shape
    # A column by itself, and columns that are in one piece each, numpy adds up by pairs.
    alone = d == 1 or (x.flags.f_contiguous and not x.flags.c_contiguous)
    total = np.zeros(d) if alone else _sums(x, about)
    gaps = np.isnan(total)
    if gaps.any():  # a sum of which a value is missing is no number
        total = _sums(x, about, known=True)
    records, share = np.zeros(d, dtype=np.int64), np.zeros(d)
    known = np.full(d, n, dtype=np.int64)
    for j in range(d):
        column = head = size = np.empty(0)  # the one before goes first
        column = _column(x, j, about)
        if alone:
            with np.errstate(invalid="ignore", over="ignore"):
                total[j] = column.sum()
            gaps[j] = np.isnan(total[j])
        if gaps[j] and (missing := np.isnan(column)).any():
            total[j] = np.where(missing, 0.0, column).sum() if alone else total[j]
            column = column[~missing]
        known[j] = len(column)
        if not len(column):
            continue
        low, high = column.min(), column.max()
        head = column[:_FIRST]
        records[j] = len(column) - np.count_nonzero(column == 0)
        if low < high and ((head == low) | (head == high)).all():
            ends = np.count_nonzero(column == low), np.count_nonzero(column == high)
            records[j] = min(ends) if sum(ends) == len(column) else records[j]
        peak = float(max(high, -low))
        with np.errstate(invalid="ignore", over="ignore"):
            some = float(np.abs(column[:LOOK]).sum())
        if peak < HARDLY * some < np.inf:
            share[j] = peak / some  # of all of them it has no more
            continue
        size = np.abs(column, out=column if column.flags.owndata else None)
        share[j] = _largest_part(size, peak)
    return total, records, share, known


def _column(x: FloatArray, j: int, about: FloatArray | None) -> FloatArray:
    """A column in one piece, or its squares about a point."""
    if about is None:
        return np.ascontiguousarray(x[:, j])
    away = np.asarray(x[:, j] - about[j])
    with np.errstate(over="ignore"):
        np.square(away, out=away)
    return away


def _sums(x: FloatArray, about: FloatArray | None, *, known: bool = False) -> FloatArray:
    """Sum of each column, or of its squares about a point; of the values that are there, if asked.

    Rows are added one after the other, in blocks of any size: so no sum depends on how many there
    are.
    """
    n, d = x.shape
    total, size = np.zeros(d), max(_AT_ONCE // max(d, 1), 16)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, n, size):
            part = x[start : start + size]
            room = np.empty((len(part) + 1, d))
            room[0], room[1:] = total, part if about is None else part - about
            if about is not None:
                np.square(room[1:], out=room[1:])
            if known:
                room[1:][np.isnan(room[1:])] = 0.0
            total = room[not start :].sum(axis=0)
    return total


def _largest_part(size: FloatArray, peak: float) -> float:
    """Largest share of one record in a sum of sizes, which are lost; `peak` is the largest."""
    if not peak > 0:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        whole = float(size.sum()) / peak
        if not 1000 < whole < np.inf:
            # To all digits where a policy may ask how large it is. In units of the largest, so that
            # the sum cannot overflow; an infinite contribution dominates, see `dominated`.
            whole = float(np.divide(size, peak, out=size).sum())
    return 1.0 / whole


def product_facts(
    x: FloatArray,
    first: int | None = None,
    *,
    centre: FloatArray | None = None,
    below: float = 0.0,
    ends: FloatArray | None = None,
    at_centre: IntArray | None = None,
) -> tuple[IntArray, FloatArray]:
    """Records and largest share of each cell of ``x'x``, for rows x (n, p).

    Parameters
    ----------
    x : (n, p) array
    first : int, optional
        Cells that none of the first so many columns is in are left at 0.
    centre : (p,) array, optional
        Taken off the rows.
    below : float
        Shares that are below it may be bounds: no rule asks how far.
    ends : (2, p) array, optional
        Least and largest value of each column, where they are known.
    at_centre : (p,) int array, optional
        Records at the centre of each column, where they are known.
    """
    n_first = x.shape[1] if first is None else first
    if len(x) and below > 0:
        ends = np.stack([x.min(axis=0), x.max(axis=0)]) if ends is None else ends
        if (np.abs(ends) < _SAFE).all():
            middle = np.zeros(x.shape[1]) if centre is None else centre
            return _by_bounds(x, n_first, middle, below, ends, at_centre)
    if centre is not None:
        with np.errstate(invalid="ignore"):
            x = x - centre
    if len(x) and np.isfinite(x).all():
        return _by_matrices(x, n_first)
    p = x.shape[1]
    records, share = np.zeros((p, p), dtype=np.int64), np.zeros((p, p))
    for j in range(n_first):
        _, records[j], share[j], _ = cell_facts(x * x[:, [j]])
        records[:, j], share[:, j] = records[j], share[j]
    return records, share


def _by_bounds(
    x: FloatArray,
    n_first: int,
    centre: FloatArray,
    below: float,
    ends: FloatArray,
    at_centre: IntArray | None,
) -> tuple[IntArray, FloatArray]:
    """The same for finite rows, whose products are looked at only where no bound is small enough.

    A product is at most 1 in units of the largest entries of its columns, and a sum of sizes over
    some of the rows at most that over all.
    """
    p = x.shape[1]
    peak_of = np.abs(ends - centre).max(axis=0)
    unit = np.where(peak_of > 0, peak_of, 1.0)

    def sizes() -> Iterator[FloatArray]:
        for start in range(0, len(x), LOOK):
            part = np.subtract(x[start : start + LOOK].T, centre[:, None], order="C")
            yield np.divide(np.abs(part, out=part), unit[:, None], out=part)

    whole, unclear = np.zeros((n_first, p)), np.ones((n_first, p), dtype=bool)
    for size in sizes():
        whole += size[:n_first] @ size.T
        unclear = whole * below < 1
        if not unclear.any():
            break
    most = np.ones((n_first, p))
    if unclear.any():
        # The largest is at most the eighth root of the sum of eighth powers.
        powers = np.full((n_first, p), _TINY)
        for size in sizes():
            for _ in range(3):
                np.square(size, out=size)
            powers += size[:n_first] @ size.T
        most = powers**0.125 * (1 + _ROUNDING)
        unclear = whole * below < most
    share = np.zeros((p, p))
    bound = np.divide(most, whole, out=np.zeros_like(whole), where=whole > 0)
    share[:n_first] = np.where(unclear, 0.0, bound)
    share[:, :n_first] = share[:n_first].T
    if at_centre is None:
        at_centre = np.zeros(p, dtype=np.int64)
        for start in range(0, len(x), LOOK):
            there = x[start : start + LOOK] == centre
            if there.any():
                at_centre += there.sum(axis=0)
    zero, some = at_centre, np.flatnonzero(at_centre)
    counts = np.zeros((len(some), len(some)))
    for start in range(0, len(x) if len(some) else 0, LOOK):
        marks = (x[start : start + LOOK][:, some] == centre[some]).astype(float)
        counts += marks.T @ marks
    both = np.zeros((p, p), dtype=np.int64)
    both[np.ix_(some, some)] = counts
    records = len(x) - zero[:, None] - zero + both
    records[n_first:, n_first:] = 0
    head = x[:_FIRST] - centre
    maybe = _hardly_vary(head, n_first)
    for j in np.flatnonzero((maybe | np.triu(unclear)).any(axis=1)).tolist():
        near, own = j + np.flatnonzero(unclear[j, j:]), x[:, j] - centre[j]
        few = np.flatnonzero(maybe[j])
        first = head[:, few] * head[:, [j]]
        few = few[((first == first.min(axis=0)) | (first == first.max(axis=0))).all(axis=0)]
        for k in few.tolist():  # two values have shown so far
            _, found, *_ = cell_facts(((x[:, k] - centre[k]) * own)[:, None])
            records[j, k] = records[k, j] = found[0]
        if len(near):
            size = np.abs(own) / unit[j]
            # Beside its few largest entries no product is larger than the next one.
            top = np.argpartition(size, -_TOP)[-_TOP:] if len(x) > _TOP else np.arange(len(x))
            beside = np.abs(x[top][:, near] - centre[near]) / unit[near]
            most = (beside * size[top, None]).max(axis=0)
            most = np.maximum(most, size[top].min()) / np.maximum(whole[j, near], _TINY)
            share[j, near] = most
            near = near[~(most * (1 + _ROUNDING) < below)]
        if len(near):
            all_of = np.abs(x[:, near] - centre[near]) / unit[near]
            all_of *= size[:, None]
            total = all_of.sum(axis=0)
            peak = all_of.max(axis=0)
            share[j, near] = np.divide(peak, total, out=np.zeros(len(near)), where=total > 0)
        share[j:, j] = share[j, j:]
    return records, share


def _hardly_vary(head: FloatArray, n_first: int) -> BoolArray:
    """Cells (j, k), k >= j, whose products take at most two values in the first few records."""
    look, p = np.ascontiguousarray(head[:_GLANCE].T), head.shape[1]
    found = np.zeros((n_first, p), dtype=bool)
    size = max(1, 4 * _AT_ONCE // max(look.size, 1))
    for start in range(0, n_first, size):
        part = look[start : min(start + size, n_first), None] * look[start:]
        low, high = part.min(axis=2, keepdims=True), part.max(axis=2, keepdims=True)
        found[start : start + size, start:] = ((part == low) | (part == high)).all(axis=2)
    return np.triu(found)


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
                _, found, *_ = cell_facts(x[:, places] * x[:, [j]])
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


@dataclass(frozen=True, eq=False)
class Judged:
    """Ones, and columns about several centres beside one another: read by blocks, never copied.

    Attributes
    ----------
    x : (n, p) array
    centres : (k, p) array
    ends : (2, p) array
        Least and largest value of each column, or numbers beyond them.
    """

    x: FloatArray
    centres: FloatArray
    ends: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Records and columns."""
        return len(self.x), 1 + self.centres.size

    @property
    def peaks(self) -> FloatArray:
        """What no entry of a column is larger than, (q,)."""
        away = np.abs(self.ends[:, None] - self.centres).max(axis=0)
        return np.concatenate([[1.0], away.ravel()])

    def blocks(self, size: int) -> Iterator[tuple[slice, FloatArray]]:
        """Sizes of the entries of some records after the others, turned into columns (q, m)."""
        n, p = self.x.shape
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            turned = np.ascontiguousarray(self.x[part].T)
            block = np.ones((self.shape[1], part.stop - start))
            for k, centre in enumerate(self.centres):
                np.subtract(turned, centre[:, None], out=block[1 + k * p : 1 + (k + 1) * p])
            yield part, np.abs(block, out=block)

    def sizes(self, columns: IntArray) -> FloatArray:
        """Sizes of the entries of some columns, (n, len(columns))."""
        found = np.ones((len(self.x), len(columns)))
        there = columns > 0
        of, centre = (
            (columns[there] - 1) % self.x.shape[1],
            self.centres.ravel()[columns[there] - 1],
        )
        found[:, there] = np.abs(self.x[:, of] - centre)
        return found


def largest_share(
    rows: FloatArray | Judged, weights: FloatArray, first: int | None = None
) -> float:
    """Largest share of one record in any cell of weighted cross-products, or a bound below 1%.

    A product is at most that of the largest entries of its columns, and a sum over some of the
    records at most that over all: where the one is below 1% of the other, nobody has more, and the
    records of the cell are not looked at one by one.

    Parameters
    ----------
    rows : (n, q) array or Judged
    weights : (n, k) array
        The cells are ``sum_i w_ik x_ij x_il`` for each column of weights.
    first : int, optional
        Only cells in which one of so many first columns is.
    """
    top = 0.0
    for weight in np.abs(weights).T:
        if not isinstance(rows, Judged):
            top = max(top, _by_sight(np.abs(rows), weight, first))
            continue
        bound, unclear = _share_bound(rows, weight, first)
        top = max(top, bound)
        if len(unclear):
            near = None if first is None else int((unclear < first).sum())
            top = max(top, _by_sight(rows.sizes(unclear), weight, near))
    return top


def _share_bound(rows: Judged, weight: FloatArray, first: int | None) -> tuple[float, IntArray]:
    """A bound of shares in the cells where it is below 1%, and the columns of all other cells."""
    peaks = rows.peaks
    most = peaks[:first, None] * peaks * weight.max(initial=0.0)
    whole, clear = np.zeros_like(most), most == 0
    for part, block in rows.blocks(LOOK):
        block *= np.sqrt(weight[part])
        whole += block[:first] @ block.T
        clear = most <= HARDLY * whole
        if clear.all():
            break
    bound = np.divide(most, whole, out=np.zeros_like(most), where=clear & (whole > 0))
    lost = np.argwhere(~clear)
    columns = np.unique([*np.arange(first or 0), *lost.ravel()]) if len(lost) else lost.ravel()
    return float(bound.max(initial=0.0)), np.asarray(columns, dtype=np.int64)


def _by_sight(size: FloatArray, weight: FloatArray, first: int | None) -> float:
    """Largest share, of sizes (n, q) which are overwritten: cells are looked at where need be."""
    size *= np.sqrt(weight)[:, None]  # in place: rows may be many
    peak_of = size.max(axis=0, initial=0.0)
    size /= np.where(peak_of > 0, peak_of, 1.0)  # so that no sum can overflow
    whole = size[:, :first].T @ size
    bound = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
    top = float(bound[bound < HARDLY].max(initial=0.0))
    for j in range(len(whole)):
        near = j + np.flatnonzero(bound[j, j:] >= HARDLY)
        if len(near):
            peak = (size[:, near] * size[:, [j]]).max(axis=0)
            top = max(top, float((peak / whole[j, near]).max()))
    return top


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

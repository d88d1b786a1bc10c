"""Tables of counts by class, made of sums of which each rests on enough records.

A record (a sequence, a row of categories) adds to cells of a table: one row for what happens first
and one for the steps that leave each state, or one row for each categorical column. Cells to which
few records add are counted together with others of their row, so that everything which is told is
made of sums over disjoint events, each of at least `min_records` records of which none adds more
than a given share. See ``docs/proofs/markov-models.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.wire.cell_facts import chance_facts

WITHHELD, OWN, TOGETHER, HIDDEN, LARGEST = range(5)
"""What is shown in a cell: nothing, its own sum, an equal part of the sum of small cells, a guess
that depends on no small cell, and its own sum with that of small cells less the guess."""
GUESS = 0.25
"""Records, as a part of `min_records`, that are guessed for the small cells of a row in all."""


class Entries(NamedTuple):
    """What records add to the cells of a table.

    Attributes
    ----------
    record, cell : (m,) int arrays
        Each pair once.
    amount : (m,) array
        At least 0.
    row_of_cell : (C,) int array
        Row of the table that each cell is in.
    """

    record: IntArray
    cell: IntArray
    amount: FloatArray
    row_of_cell: IntArray


class Sums(NamedTuple):
    """What went into sums: record, sum, weight of the record, and what it adds; all (m,)."""

    record: IntArray
    group: IntArray
    weight: FloatArray
    amount: FloatArray


@dataclass(frozen=True, eq=False)
class ReleasedTables:
    """Tables that may be told.

    Attributes
    ----------
    values : (K, C) array
        Counts by class; those of small cells are with others of their row.
    told : (K, R) bool array
        Rows of which something is told; the others are 0.
    kinds : (K, C) int array
        What is shown in each cell: `WITHHELD`, `OWN`, `TOGETHER`, `HIDDEN` or `LARGEST`.
    sums : Sums
        What `values` is made of.
    """

    values: FloatArray
    told: BoolArray
    kinds: IntArray
    sums: Sums

    def chances(self, row_of_cell: IntArray, pseudo_count: float = 0.0) -> FloatArray:
        """Shares within each row, (K, C); NaN in rows that are not told.

        Parameters
        ----------
        row_of_cell : (C,) int array
        pseudo_count : float
            Added to every cell.
        """
        cells = self.values + pseudo_count
        n_rows = self.told.shape[1]
        totals = np.stack([np.bincount(row_of_cell, each, n_rows) for each in cells])
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = cells / totals[:, row_of_cell]
        return np.where(self.told[:, row_of_cell], shares, np.nan)


def suppress_cells(
    entries: Entries,
    shares: FloatArray,
    *,
    min_records: int,
    max_share: float,
    absorbing: BoolArray | None = None,
    joining: bool = True,
) -> ReleasedTables:
    """Add up what records add to cells, by class, so that no sum rests on few records.

    Parameters
    ----------
    entries : Entries
    shares : (n, K) array
        Share of each record in each class; at most 1 in all.
    min_records : int
        1 keeps every cell by itself.
    max_share : float
        Largest share of one record in a sum.
    absorbing : (R,) bool array, optional
        Rows whose totals follow from what is known of the records, such as the steps of sequences
        of one length: what cannot be told is then counted in the class's largest cell of these
        rows, so that no total shows it.
    joining : bool
        Whether rows that are not safe in some classes go together over these classes.

    Returns
    -------
    ReleasedTables

    Notes
    -----
    A cell is *safe* if it rests on enough records. In a row that is safe as a whole, the cells that
    are not go together and share their sum equally, or, where they are not safe together, are
    counted in the largest safe cell; what is then shown in them is taken off it, and is the same
    whether something is in them or not. Rows that are not safe in some classes go together over
    these classes by the same rule, which then have one row in common.
    """
    n_classes, n_cells = shares.shape[1], len(entries.row_of_cell)
    # No record is protected: every cell by itself.
    if min_records <= 1:
        own = np.arange(n_classes * n_cells).reshape(n_classes, n_cells)
        sums = _sums(entries, shares, own)
        values = _totals(sums.group, sums.amount, own.size).reshape(own.shape)
        told = _row_totals(values, entries.row_of_cell) > 0
        kinds = np.where(told[:, entries.row_of_cell], OWN, WITHHELD)
        return ReleasedTables(values, told, kinds, _dense(sums))
    table = _Table(entries, min_records, max_share)
    rows = entries.row_of_cell
    plans = [table.plan(share[entries.record]) for share in shares.T]
    group, target, spread, kinds, pending = (np.stack(each) for each in zip(*plans, strict=True))
    # Numbers of sums over all classes.
    offsets = n_cells * np.arange(n_classes)[:, None]
    group, target = (np.where(each >= 0, each + offsets, -1) for each in (group, target))
    if joining and pending.any():
        # Over the classes in which a row is pending.
        common = table.plan((shares @ pending)[entries.record, rows[entries.cell]])
        base = n_classes * n_cells
        use = pending[:, rows] & ~common.pending[rows]
        group = np.where(use, np.where(common.group >= 0, common.group + base, -1), group)
        target = np.where(use, np.where(common.target >= 0, common.target + base, -1), target)
        sharing = np.maximum(use.sum(axis=0), 1)  # none of them knows its part
        spread = np.where(use, common.spread / sharing, spread)
        kinds = np.where(use, common.kinds, kinds)
        pending = pending & common.pending
    left = pending[:, rows]
    group, target, spread = (
        np.where(left, x, y) for x, y in ((-1, group), (-1, target), (0, spread))
    )
    kinds = np.where(left, WITHHELD, kinds)
    if absorbing is not None:
        # What is left of each class is counted in its largest cell of absorbing rows.
        left = left & absorbing[rows]
        for k, share in enumerate(shares.T):
            weight = share[entries.record]
            own = (group[k] == k * n_cells + np.arange(n_cells)) & absorbing[rows]
            if not own.any() or not left[k].any():
                continue
            sizes = _totals(entries.cell, entries.amount * weight, n_cells)
            largest = int(np.argmax(np.where(own, sizes, -1.0)))
            joined = np.where((group[k] == k * n_cells + largest) | left[k], 0, -1)
            if table.safe(joined[entries.cell], weight, 1)[0]:
                group[k, left[k]] = k * n_cells + largest
                kinds[k, largest] = LARGEST
    sums = _sums(entries, shares, group)
    size = (n_classes + 1) * n_cells
    totals = _totals(sums.group, sums.amount, size)
    values = np.where(target >= 0, totals[np.maximum(target, 0)] * spread, 0.0)
    told = _row_totals(values, rows) > 0
    kinds = np.where(told[:, rows], kinds, WITHHELD)
    # Hidden cells show the same whatever is in them, taken off the largest cell of the row.
    for k, cells in product(range(n_classes), table.rows):
        hidden = cells[kinds[k, cells] == HIDDEN]
        if len(hidden):
            largest = cells[np.argmax(values[k, cells])]
            # The largest cell stays above what is guessed.
            part = min(GUESS * min_records, values[k, largest] / 2)
            values[k, hidden] = part / len(hidden)
            values[k, largest] -= part
    return ReleasedTables(values, told, kinds, _dense(sums))


class _Plan(NamedTuple):
    """For one class: the sum in which each cell is counted, and where cells take theirs from.

    Attributes
    ----------
    group, target : (C,) int arrays
        Sums are numbered by the first of their cells; -1 in none.
    spread : (C,) array
        Part of the sum that is shown in the cell.
    kinds : (C,) int array
    pending : (R,) bool array
        Rows that add up to something, but to too little.
    """

    group: IntArray
    target: IntArray
    spread: FloatArray
    kinds: IntArray
    pending: BoolArray


class _Table:
    """Rules for one set of entries."""

    def __init__(self, entries: Entries, min_records: int, max_share: float) -> None:
        self.entries = entries
        self.min_records = min_records
        self.max_share = max_share
        self.rows = [
            np.flatnonzero(entries.row_of_cell == row)
            for row in range(int(entries.row_of_cell.max(initial=-1)) + 1)
        ]

    def plan(self, weight: FloatArray) -> _Plan:
        """Plan for one class, in which entries have weights (m,)."""
        e = self.entries
        n_cells = len(e.row_of_cell)
        totals = _totals(e.cell, e.amount * weight, n_cells)
        safe = self.safe(e.cell, weight, n_cells)
        safe_row = self.safe(e.row_of_cell[e.cell], weight, len(self.rows))
        group = np.where(safe, np.arange(n_cells), -1)
        rest = np.where(safe, -1, n_cells + e.row_of_cell)
        safe_rest = self.safe(rest[e.cell], weight, n_cells + len(self.rows))[n_cells:]
        target, spread = group.copy(), safe.astype(float)
        kinds = np.where(safe, OWN, HIDDEN)
        pending = np.zeros(len(self.rows), dtype=bool)
        for row, cells in enumerate(self.rows):
            unsafe = cells[~safe[cells]]
            if not safe_row[row]:
                pending[row] = bool(totals[cells].sum() > 0)
                group[cells], target[cells], spread[cells] = -1, -1, 0.0
                kinds[cells] = WITHHELD
            # Together they rest on enough records: each shows an equal part.
            elif len(unsafe) and safe_rest[row]:
                kinds[unsafe] = TOGETHER
                group[unsafe] = target[unsafe] = unsafe[0]
                spread[unsafe] = 1.0 / len(unsafe)
            # They do not: the largest safe cell takes them in, and they show a guess.
            elif len(unsafe):
                known = cells[safe[cells]]
                largest = known[np.argmax(totals[known])] if len(known) else cells[0]
                group[unsafe] = largest
                members = np.isin(np.arange(n_cells), cells)
                joined = np.where(members & (group == largest), 0, -1)
                if not self.safe(joined[e.cell], weight, 1)[0]:
                    # Not with it either: the whole row is one sum.
                    group[cells], target[cells] = largest, -1
                    target[largest] = largest
                spread[cells] = (target[cells] >= 0).astype(float)
                kinds[cells[target[cells] < 0]] = HIDDEN
                kinds[cells[np.argmax(np.where(target[cells] >= 0, totals[cells], -1.0))]] = LARGEST
        return _Plan(group, target, spread, kinds, pending)

    def safe(self, group: IntArray, weight: FloatArray, n_groups: int) -> BoolArray:
        """Which sums rest on enough records; entries of group -1 are in none."""
        e = self.entries
        used = (group >= 0) & (weight > 0) & (e.amount > 0)
        records, share = chance_facts(
            e.record[used], group[used], weight[used], e.amount[used] * weight[used]
        )
        found = np.zeros(n_groups, dtype=bool)
        found[: len(records)] = (records >= self.min_records) & (share <= self.max_share)
        return found


def _sums(entries: Entries, shares: FloatArray, group: IntArray) -> Sums:
    """Everything that goes into the sums, records of several classes in one sum joined."""
    parts = []
    for share, of in zip(shares.T, group, strict=True):
        weight, to = share[entries.record], of[entries.cell]
        used = (to >= 0) & (weight > 0) & (entries.amount > 0)
        parts.append(
            (entries.record[used], to[used], weight[used], entries.amount[used], entries.cell[used])
        )
    record, to, weight, amount, cell = (np.concatenate(each) for each in zip(*parts, strict=True))
    # A record that is in several classes of one sum counts once, with all its weight there.
    width, cells = int(to.max(initial=0)) + 1, len(entries.row_of_cell)
    key = (record * width + to) * cells + cell
    pair, place = np.unique(key, return_inverse=True)
    joined = np.bincount(place.ravel(), weight, minlength=len(pair))
    each = np.zeros(len(pair))
    each[place.ravel()] = amount
    owner, place_of = np.divmod(pair // cells, width)
    return Sums(owner, place_of, np.minimum(joined, 1.0), joined * each)


def _dense(sums: Sums) -> Sums:
    """Number the sums that occur 0, 1, ..."""
    group = np.unique(sums.group, return_inverse=True)[1]
    return sums._replace(group=group.ravel().astype(np.int64))


def _totals(group: IntArray, amount: FloatArray, n_groups: int) -> FloatArray:
    return np.bincount(group, amount, minlength=n_groups).astype(np.float64)


def _row_totals(values: FloatArray, row_of_cell: IntArray) -> FloatArray:
    n_rows = int(row_of_cell.max(initial=-1)) + 1
    return np.stack([_totals(row_of_cell, each, n_rows) for each in values])

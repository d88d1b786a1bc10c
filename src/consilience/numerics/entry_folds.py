"""Folds of scattered entries: which observed entries are held out together.

A fit can say nothing of a row or column whose entries are all held out, so folds leave something of
each. An entry that is alone in its row or its column is never held out: only a mean could predict
it, whatever the model. For every other row and column that random folds might empty, two of its
entries are chosen as a *pair* that must fall in different folds. An entry is in one pair of its row
and one of its column at most, so pairs form chains and even rings, and folds dealt out in turn
along these satisfy all pairs at once, with equal sizes.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import BoolArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.parameters import is_whole

NEVER = -1  # fold of an entry that is never held out
_FEW = 8  # rows and columns up to this many entries get a pair without waiting for an accident


def entry_folds(entries: Entries, n_splits: int, rng: np.random.Generator) -> IntArray:
    """Draw folds of scattered entries.

    Sizes differ by one at most, and no fold holds all entries of a row or column that has two or
    more. The draw is uniform apart from that: every matrix has such folds.

    Parameters
    ----------
    entries : Entries
        m observed entries.
    n_splits : int
        Number of folds, 2 or more, at most the number of entries that may be held out.
    rng : numpy Generator

    Returns
    -------
    (m,) array of int
        Fold of each entry from 0, or -1 for one that is alone in its row or column: it is never
        held out.

    Raises
    ------
    ParameterError
        `n_splits` is out of its range.
    DataError
        Every entry is alone in its row or column, as in a matrix of one row or one column.
    """
    free = np.flatnonzero(~alone(entries))
    if len(free) < 2:
        raise DataError(
            "every observed entry is alone in its row or its column: none can be held out, for "
            "nothing would be left to predict it from"
        )
    if not (is_whole(n_splits) and 2 <= n_splits <= len(free)):
        most = f"a whole number from 2 to {len(free)}, the number of entries that may be held out"
        raise ParameterError.of("n_splits", most, n_splits)
    lines = _lines(entries)
    counts = [np.bincount(line, minlength=size) for line, size in lines]
    paired = [(count >= 2) & (count <= _FEW) for count in counts]
    folds = np.full(entries.n_observed, NEVER, dtype=np.int64)
    while True:
        # Rejection of whole draws would never end on sparse tables; pairs make each pass succeed in
        # more rows and columns.
        folds[free] = _deal(entries, free, paired, n_splits, rng)
        emptied = [_emptied(line, count, folds) for (line, _), count in zip(lines, counts)]
        if not any(found.any() for found in emptied):
            return folds
        # each pass gives pairs to more rows and columns, and those that have one are never emptied
        paired = [mine | found for mine, found in zip(paired, emptied)]


def block_folds(
    entries: Entries, n_splits: int, blocks: IntArray, rng: np.random.Generator
) -> IntArray:
    """Draw folds in which the entries of a row in one block of columns are held out together.

    Parameters
    ----------
    entries : Entries
        m observed entries.
    n_splits : int
        Number of folds, 2 or more.
    blocks : (p,) array of int
        Block of each column, from 0.
    rng : numpy Generator

    Returns
    -------
    (m,) array of int
        Fold of each entry, or -1 where a fold would hold all of its row or column.

    Raises
    ------
    ParameterError, DataError
        As `entry_folds`, of the parts of rows in place of entries.
    """
    shape = (entries.shape[0], int(blocks.max()) + 1)
    parts, of = np.unique(entries.rows * shape[1] + blocks[entries.columns], return_inverse=True)
    rows, columns = np.divmod(parts, shape[1])
    units = Entries(shape, rows, columns, np.zeros(len(parts)))
    folds = entry_folds(units, n_splits, rng)[of]
    # Parts of a block are spread over folds, those that a sparse column has may not be.
    counts = entries.column_counts
    folds[_emptied(entries.columns, counts, folds)[entries.columns]] = NEVER
    return folds


def row_folds(entries: Entries, n_splits: int, rng: np.random.Generator) -> IntArray:
    """Deal the entries of each row into folds, for a model that knows the columns already.

    Parameters
    ----------
    entries : Entries
        m observed entries.
    n_splits : int
    rng : numpy Generator

    Returns
    -------
    (m,) array of int
        Fold of each entry from 0, or -1 for one that is alone in its row. A fold holds no more than
        one entry of a row more than another.
    """
    order = rng.permutation(entries.n_observed)
    order = order[np.argsort(entries.rows[order], kind="stable")]
    rows = entries.rows[order]
    place = np.arange(len(order)) - entries.indptr[rows]
    folds = np.empty(len(order), dtype=np.int64)
    # each row begins elsewhere, so that short rows do not fill the first folds alone
    folds[order] = (place + rng.integers(n_splits, size=entries.shape[0])[rows]) % n_splits
    folds[entries.row_counts[entries.rows] == 1] = NEVER
    return folds


def held_out_part(entries: Entries, share: float, rng: np.random.Generator) -> BoolArray:
    """Draw scattered entries to set aside, once.

    Parameters
    ----------
    entries : Entries
        m observed entries.
    share : float
        Share of the entries, above 0 and below 1.
    rng : numpy Generator

    Returns
    -------
    (m,) array of bool
        About ``share * m`` entries, fewer where rows and columns with few entries do not allow it:
        every row and column keeps one.

    Raises
    ------
    ParameterError
        `share` is out of its range.
    DataError
        No entry can be set aside.
    """
    if not 0.0 < share < 1.0:
        raise ParameterError.of("share", "above 0 and below 1", share)
    wanted = max(1, round(share * entries.n_observed))
    left_row, left_column = entries.row_counts.tolist(), entries.column_counts.tolist()
    rows, columns = entries.rows.tolist(), entries.columns.tolist()
    held = np.zeros(entries.n_observed, dtype=np.bool_)
    found = 0
    # In a random order, each taken unless its row or column would be left with nothing.
    for e in rng.permutation(entries.n_observed).tolist():
        i, j = rows[e], columns[e]
        if left_row[i] > 1 and left_column[j] > 1:
            left_row[i] -= 1
            left_column[j] -= 1
            held[e] = True
            found += 1
            if found == wanted:
                break
    if not found:
        raise DataError("no entry can be held out: each is alone in its row or its column")
    return held


def alone(entries: Entries) -> BoolArray:
    """Entries that are the only one of their row or of their column.

    Parameters
    ----------
    entries : Entries

    Returns
    -------
    (m,) array of bool
    """
    return np.asarray(
        (entries.row_counts[entries.rows] == 1) | (entries.column_counts[entries.columns] == 1)
    )


def _lines(entries: Entries) -> list[tuple[IntArray, int]]:
    """Row and column of each entry, with the numbers of rows and columns."""
    return [(entries.rows, entries.shape[0]), (entries.columns, entries.shape[1])]


def _emptied(line: IntArray, count: IntArray, folds: IntArray) -> BoolArray:
    """Rows (or columns) of two entries or more that one fold holds all of."""
    least = np.full(len(count), np.iinfo(np.int64).max)
    most = np.full(len(count), NEVER - 1)
    np.minimum.at(least, line, folds)
    np.maximum.at(most, line, folds)
    return np.asarray((count >= 2) & (least == most) & (most != NEVER))


def _deal(
    entries: Entries,
    free: IntArray,
    paired: list[BoolArray],
    n_splits: int,
    rng: np.random.Generator,
) -> IntArray:
    """Folds of the entries `free`, with pairs for the rows and columns of `paired`."""
    chains = _chains(entries, free, paired, rng)
    in_chains = np.zeros(entries.n_observed, dtype=np.bool_)
    in_chains[[e for chain, _ in chains for e in chain]] = True
    rest = rng.permutation(free[~in_chains[free]])
    # Dealt out in turn, so that sizes differ by one at most, whatever the chains.
    turn = rng.permutation(n_splits)[np.arange(len(free)) % n_splits]
    n_chained = len(free) - len(rest)
    folds = np.full(entries.n_observed, NEVER, dtype=np.int64)
    folds[rest] = rng.permutation(turn[n_chained:])
    start = 0
    for chain, ring in chains:
        mine = turn[start : start + len(chain)].copy()
        if ring and mine[0] == mine[-1]:  # only where n_splits is odd: then three folds are at hand
            mine[[-2, -1]] = mine[[-1, -2]]
        folds[chain] = mine
        start += len(chain)
    return folds[free]


def _chains(
    entries: Entries, free: IntArray, paired: list[BoolArray], rng: np.random.Generator
) -> list[tuple[list[int], bool]]:
    """Chains of entries whose neighbours are pairs, and whether the last is paired with the first.

    Pairs of rows and pairs of columns alternate along a chain, so a ring has an even length.
    """
    may = np.zeros(entries.n_observed, dtype=np.bool_)
    may[free] = True
    partners = [
        _partners(line, chosen, may, rng) for (line, _), chosen in zip(_lines(entries), paired)
    ]
    todo = set(partners[0]) | set(partners[1])
    chains: list[tuple[list[int], bool]] = []
    ends = [e for e in sorted(todo) if (e in partners[0]) != (e in partners[1])]
    for first in [*_shuffled(ends, rng), *_shuffled(sorted(todo), rng)]:
        if first not in todo:
            continue
        chain, axis = [first], 0 if first in partners[0] else 1
        todo.remove(first)
        while (following := partners[axis].get(chain[-1])) in todo:
            chain.append(following)
            todo.remove(following)
            axis = 1 - axis
        chains.append((chain, following == first and len(chain) > 2))
    return chains


def _partners(
    line: IntArray, chosen: BoolArray, may: BoolArray, rng: np.random.Generator
) -> dict[int, int]:
    """Two random entries of every chosen row (or column), each naming the other."""
    inside = np.flatnonzero(chosen[line])
    if not len(inside):
        return {}
    # a row that keeps an entry which is never held out cannot be emptied
    safe = np.zeros(len(chosen), dtype=np.bool_)
    safe[line[inside[~may[inside]]]] = True
    inside = rng.permutation(inside[~safe[line[inside]]])
    inside = inside[np.argsort(line[inside], kind="stable")]
    starts = np.flatnonzero(np.diff(line[inside], prepend=-1))
    found: dict[int, int] = {}
    for a, b in zip(inside[starts].tolist(), inside[starts + 1].tolist()):
        found[a], found[b] = b, a
    return found


def _shuffled(items: list[int], rng: np.random.Generator) -> list[int]:
    return [items[k] for k in rng.permutation(len(items))]

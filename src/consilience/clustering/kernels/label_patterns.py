"""Label patterns: distinct tuples of labels with counts, at one site and over all sites.

Every model labels every subject, so a subject is a tuple of M labels. All that ensemble clustering
needs is how often each tuple occurs. Tuples are kept in lexicographic order: the table of a set of
subjects does not depend on the order of rows or sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError

LabelArray = NDArray[np.integer[Any]]
How = Literal["exact", "merged", "coarsened", "none"]

_WORD_LIMIT = 2**62
_BLOCK_CELLS = 1 << 22  # 32 MB of doubles: blocks stay in memory that any site has
_MIN_COVERED = 0.5


@dataclass(frozen=True)
class PatternTable:
    """Distinct label tuples and how many subjects have each.

    Attributes
    ----------
    patterns : array of uint8, uint16 or int64, shape (P, M)
        Distinct tuples in lexicographic order; column m holds classes ``0 .. n_classes[m] - 1``.
    counts : array of int64, shape (P,)
        Subjects with each tuple.
    n_classes : tuple of int, length M
        Classes of each model.
    """

    patterns: LabelArray
    counts: IntArray
    n_classes: tuple[int, ...]

    @property
    def n_subjects(self) -> int:
        """Subjects behind the table."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class SiteSummary:
    """What a site may send about its label tuples.

    Attributes
    ----------
    table : PatternTable
        Every count is at least ``min_records``; empty when nothing may be sent.
    how : {"exact", "merged", "coarsened", "none"}
        Counts of true tuples; rare tuples counted with their nearest frequent one; tuples cut to
        the labels of the first models and completed from the models; or nothing.
    n_moved : int
        Subjects counted under a tuple that is not their own.
    prefix_length : int
        Models whose labels were kept before completion (M unless coarsened).
    cells : array of int64
        Row of ``table`` under which each subject is counted, -1 if nothing is sent (`coarsen`:
        for each tuple of the table that it was given).
    """

    table: PatternTable
    how: How
    n_moved: int
    prefix_length: int
    cells: IntArray


def as_labels(labels: ArrayLike, n_classes: Sequence[int]) -> LabelArray:
    """Check labels and store them in the smallest type that holds them.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Class of every subject under every model.
    n_classes : sequence of int, length M
        Classes of each model.

    Raises
    ------
    DataError
        If the shape does not fit ``n_classes`` or a label is not a class of its model.
    """
    given = np.asarray(labels)
    sizes = np.asarray(n_classes, dtype=np.int64)
    if given.ndim != 2 or given.shape[1] != sizes.size or sizes.size == 0:
        raise DataError(f"labels need one column for each of {sizes.size} models")
    if not np.issubdtype(given.dtype, np.integer):
        raise DataError("labels must be integers")
    if given.shape[0] and ((given.min(axis=0) < 0).any() or (given.max(axis=0) >= sizes).any()):
        raise DataError("a label lies outside the classes of its model")
    largest = int(sizes.max())
    dtype = np.uint8 if largest <= 256 else np.uint16 if largest <= 65536 else np.int64
    return given.astype(dtype, copy=False)


def distinct_patterns(
    labels: ArrayLike, n_classes: Sequence[int], counts: ArrayLike | None = None
) -> tuple[PatternTable, IntArray]:
    """Collect the distinct label tuples.

    Tuples become mixed-radix integers; more models than fit into one 62-bit word take several
    words, joined one after the other, so the order is lexicographic and there is no hashing.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Class of every subject under every model.
    n_classes : sequence of int, length M
        Classes of each model.
    counts : array of int, shape (N,), optional
        Subjects behind each row; 1 unless given.

    Returns
    -------
    table : PatternTable
        The P distinct tuples.
    inverse : array of int64, shape (N,)
        Row of the table for each subject.
    """
    rows = as_labels(labels, n_classes)
    n = rows.shape[0]
    code, size = np.zeros(n, dtype=np.int64), 1
    for first, last, radix in _words(n_classes):
        word = np.zeros(n, dtype=np.int64)
        for m in range(first, last):
            word *= n_classes[m]
            word += rows[:, m]
        if size * radix > _WORD_LIMIT:
            values, word = np.unique(word, return_inverse=True)
            radix = max(values.size, 1)
        if size * radix > _WORD_LIMIT:
            values, code = np.unique(code, return_inverse=True)
            size = max(values.size, 1)
        code = code * radix + word
        size *= radix
    _, where, inverse = np.unique(code, return_index=True, return_inverse=True)
    amount = None if counts is None else np.asarray(counts, dtype=np.float64)
    total = np.bincount(inverse, weights=amount, minlength=where.size)
    table = PatternTable(rows[where], total.astype(np.int64), tuple(int(k) for k in n_classes))
    return table, inverse.astype(np.int64, copy=False)


def merge_tables(tables: Sequence[PatternTable]) -> PatternTable:
    """Unite the tables of several sites; counts of equal tuples add up.

    Raises
    ------
    DataError
        If there is no table, or the tables belong to different models.
    """
    if not tables or any(t.n_classes != tables[0].n_classes for t in tables):
        raise DataError("pattern tables must exist and belong to the same models")
    stacked = np.concatenate([t.patterns for t in tables])
    counts = np.concatenate([t.counts for t in tables])
    return distinct_patterns(stacked, tables[0].n_classes, counts)[0]


def label_columns(patterns: LabelArray, n_classes: Sequence[int]) -> IntArray:
    """Column of the one-hot matrix Z for each label, shape (P, M): label plus model offset."""
    return patterns.astype(np.int64) + _offsets(n_classes)


def one_hot(patterns: LabelArray, n_classes: Sequence[int]) -> FloatArray:
    """Dense one-hot matrix Z of label tuples, shape (P, q), q = sum of ``n_classes``."""
    z = np.zeros((patterns.shape[0], int(sum(n_classes))))
    np.put_along_axis(z, label_columns(patterns, n_classes), 1.0, axis=1)
    return z


def co_occurrence(table: PatternTable) -> FloatArray:
    """Gamma = Z' diag(counts) Z: subjects by pairs of labels, of all pairs of models.

    Parameters
    ----------
    table : PatternTable
        P distinct tuples of M labels.

    Returns
    -------
    array of float, shape (q, q)
        Whole numbers, exact up to 2^53; block (s, t) is the contingency table of models s and t.
    """
    q = int(sum(table.n_classes))
    gamma = np.zeros((q, q))
    step = max(1, _BLOCK_CELLS // q)
    for start in range(0, table.counts.size, step):
        z = one_hot(table.patterns[start : start + step], table.n_classes)
        gamma += z.T @ (z * table.counts[start : start + step, None])
    return gamma


def merge_rare(
    table: PatternTable, class_distances: Sequence[FloatArray], min_records: int
) -> tuple[PatternTable, IntArray]:
    """Count each rare tuple with the nearest frequent one.

    The distance of two tuples is the sum over models of ``B_m[l, l'] / |B_m|`` (Frobenius norm):
    known from the models alone. Models whose classes all coincide contribute 0. Ties go to the
    first frequent tuple in lexicographic order.

    Parameters
    ----------
    table : PatternTable
        Tuples of one site.
    class_distances : sequence of M arrays (K_m, K_m)
        Distances B_m between the classes of each model.
    min_records : int
        Tuples with fewer subjects are rare.

    Returns
    -------
    merged : PatternTable
        The frequent tuples with all subjects; empty if no tuple is frequent.
    target : array of int64, shape (P,)
        Row of ``merged`` for each tuple of ``table`` (-1 everywhere if it is empty).
    """
    _check_min_records(min_records)
    frequent = table.counts >= min_records
    n_frequent = int(frequent.sum())
    target = np.full(table.counts.size, -1, dtype=np.int64)
    if n_frequent == 0:
        return _take(table, np.flatnonzero(frequent), table.counts[frequent]), target
    target[frequent] = np.arange(n_frequent)
    kept = table.patterns[frequent]
    rare = np.flatnonzero(~frequent)
    scaled = [_scaled(b) for b in class_distances]
    step = max(1, _BLOCK_CELLS // n_frequent)
    for start in range(0, rare.size, step):
        part = rare[start : start + step]
        distance = np.zeros((part.size, n_frequent))
        for m, b in enumerate(scaled):
            distance += b[table.patterns[part, m]][:, kept[:, m]]
        # equal distances differ by rounding, which must not choose between them
        target[part] = np.round(distance, 9).argmin(axis=1)
    counts = np.bincount(target, weights=table.counts, minlength=n_frequent).astype(np.int64)
    return _take(table, np.flatnonzero(frequent), counts), target


def complete_prefixes(prefixes: LabelArray, class_parameters: Sequence[FloatArray]) -> LabelArray:
    """Complete the labels of the first models to labels under all models.

    The class of a further model is the one nearest to the mean of the classes that the prefix
    names: no subject is looked at.

    Parameters
    ----------
    prefixes : array of int, shape (P, L)
        Labels under the first L models, L at least 1.
    class_parameters : sequence of M arrays (K_m, d)
        Class parameters of all models.

    Returns
    -------
    array of int, shape (P, M)
        The prefixes, continued.
    """
    length = prefixes.shape[1]
    centre = np.zeros((prefixes.shape[0], class_parameters[0].shape[1]))
    for m in range(length):
        centre += class_parameters[m][prefixes[:, m]]
    centre /= length
    columns = [prefixes[:, m].astype(np.int64) for m in range(length)]
    for beta in class_parameters[length:]:
        squares = ((centre[:, None, :] - beta[None, :, :]) ** 2).sum(axis=2)
        scale = float(squares.max(initial=0.0)) or 1.0
        columns.append(np.round(squares / scale, 9).argmin(axis=1))
    return np.stack(columns, axis=1)


def coarsen(
    table: PatternTable, class_parameters: Sequence[FloatArray], min_records: int
) -> SiteSummary:
    """Cut tuples to the labels of the first models until cells reach ``min_records``.

    The longest prefix is taken whose frequent cells hold at least half of the subjects (failing
    that, the longest one with a frequent cell); rare cells are counted with the nearest frequent
    one, and `complete_prefixes` fills in the other labels.

    Parameters
    ----------
    table : PatternTable
        Tuples of one site.
    class_parameters : sequence of M arrays (K_m, d)
        Class parameters of all models.
    min_records : int
        Smallest count of a cell.

    Returns
    -------
    SiteSummary
        ``how`` is "none" with an empty table if even the first model's classes are too small.
    """
    _check_min_records(min_records)
    n, chosen = table.n_subjects, 0
    for length in range(1, len(table.n_classes) + 1):
        counts = _prefix_table(table, length).counts
        covered = int(counts[counts >= min_records].sum())
        if covered >= _MIN_COVERED * n and covered > 0:
            chosen = length
        elif covered > 0 and chosen == 0:
            chosen = -length
        elif covered == 0:
            break
    chosen = abs(chosen)
    if chosen == 0:
        empty = _take(table, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        return SiteSummary(empty, "none", 0, 0, np.full(table.counts.size, -1, dtype=np.int64))
    cut = table.patterns[:, :chosen]
    prefixes, prefix_of = distinct_patterns(cut, table.n_classes[:chosen], table.counts)
    distances = [class_distances(beta) for beta in class_parameters[:chosen]]
    merged, target = merge_rare(prefixes, distances, min_records)
    completed = complete_prefixes(merged.patterns, class_parameters)
    result, row_of = distinct_patterns(completed, table.n_classes, merged.counts)
    own, _ = distinct_patterns(
        np.concatenate([result.patterns, table.patterns]),
        table.n_classes,
        np.concatenate([0 * result.counts, table.counts]),
    )
    stayed = int(own.counts[_rows_of(own, result)].sum())
    return SiteSummary(result, "coarsened", n - stayed, chosen, row_of[target][prefix_of])


def summarise_site(
    labels: ArrayLike,
    class_parameters: Sequence[FloatArray],
    min_records: int,
) -> SiteSummary:
    """Counts of label tuples that a site may send.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Class of every subject of the site under every model, without outlying subjects.
    class_parameters : sequence of M arrays (K_m, d)
        Class parameters of all models.
    min_records : int
        Smallest count of a cell; 1 sends the exact table.

    Returns
    -------
    SiteSummary
        Counts of at least ``min_records``, or nothing.

    Notes
    -----
    Only the counts are approximate. Subjects are labelled at their site from their true tuples.
    """
    _check_min_records(min_records)
    n_classes = [beta.shape[0] for beta in class_parameters]
    table, tuple_of = distinct_patterns(labels, n_classes)
    rare = table.counts < min_records
    if not rare.any():
        how: How = "exact" if table.counts.size else "none"
        return SiteSummary(table, how, 0, len(n_classes), tuple_of)
    if rare.all():
        coarse = coarsen(table, class_parameters, min_records)
        return replace(coarse, cells=coarse.cells[tuple_of])
    merged, target = merge_rare(table, [class_distances(b) for b in class_parameters], min_records)
    n_moved = int(table.counts[rare].sum())
    return SiteSummary(merged, "merged", n_moved, len(n_classes), target[tuple_of])


def class_distances(class_parameters: ArrayLike) -> FloatArray:
    """Euclidean distances B between the classes of one model.

    Parameters
    ----------
    class_parameters : array of float, shape (K, d)
        One row per class.

    Returns
    -------
    array of float, shape (K, K)
        Symmetric, zero diagonal.
    """
    beta = np.asarray(class_parameters, dtype=np.float64)
    if beta.ndim != 2 or not np.isfinite(beta).all():
        raise DataError("class parameters must be finite, one row per class")
    squares = np.stack([((beta - row) ** 2).sum(axis=1) for row in beta]) if len(beta) else None
    return np.zeros((0, 0)) if squares is None else np.sqrt(np.maximum(squares, squares.T))


def _offsets(n_classes: Sequence[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.asarray(n_classes, dtype=np.int64))[:-1]])


def _words(n_classes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of models (first, last, radix) whose labels fit into one integer."""
    words, first, radix = [], 0, 1
    for m, size in enumerate(n_classes):
        if radix * size > _WORD_LIMIT:
            words.append((first, m, radix))
            first, radix = m, 1
        radix *= int(size)
    words.append((first, len(n_classes), radix))
    return words


def _prefix_table(table: PatternTable, length: int) -> PatternTable:
    cut = table.patterns[:, :length]
    return distinct_patterns(cut, table.n_classes[:length], table.counts)[0]


def _take(table: PatternTable, rows: IntArray, counts: IntArray) -> PatternTable:
    return PatternTable(table.patterns[rows], counts, table.n_classes)


def _rows_of(table: PatternTable, part: PatternTable) -> IntArray:
    """Rows of ``table`` that hold the tuples of ``part``, all of which are in it."""
    _, inverse = distinct_patterns(np.concatenate([table.patterns, part.patterns]), table.n_classes)
    return inverse[table.counts.size :]


def _scaled(distances: FloatArray) -> FloatArray:
    norm = float(np.linalg.norm(distances))
    return distances / norm if norm > 0 else np.zeros_like(distances)


def _check_min_records(min_records: int) -> None:
    if isinstance(min_records, bool) or not isinstance(min_records, int) or min_records < 1:
        raise ParameterError.of("min_records", "an integer of at least 1", min_records)

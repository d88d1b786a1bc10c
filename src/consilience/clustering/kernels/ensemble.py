"""Ensemble distance of many clustering models, from counts of label patterns alone.

Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*
(arXiv 2409.08396), section 2: co-distance matrices, agreement matrix, spectral weights, ensemble
distance. The N x N matrices of the paper are never formed. With Z the one-hot matrix of all labels
(N x q, blocks Z_m), B_m the class distances and Gamma = Z'Z,

* ``D^(m) = Z_m B_m Z_m'``, so ``<D^(s), D^(t)>`` is the sum over block (s, t) of
  ``(Gamma B) * (B Gamma)`` with B block-diagonal;
* the ensemble distance is ``D~ = Z A Z'``, ``A = blockdiag(w_m B_m / |D^(m)|)``;
* rows i and j of D~ have the inner product ``z_i' Q z_j``, ``Q = A Gamma A = T T'``.

K-means on the rows of D~ is therefore weighted K-means on ``z' T`` over distinct tuples z.

Every model labels every subject, so a subject is a tuple of M labels, and all that is needed is how
often each tuple occurs. Tuples are kept in lexicographic order: the table of a set of subjects does
not depend on the order of rows or sites.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.ids import distinct_codes
from consilience.parameters import check, whole

LabelArray = NDArray[np.integer[Any]]
How = Literal["exact", "merged", "coarsened", "none"]
_BLOCK_CELLS = 1 << 22  # 32 MB of doubles: blocks stay in memory that any site has
LEAST_COVERED = 0.5
"""Share of the rows whose tuple, or cut tuple, must be frequent to be counted at that length."""
Weighting = Literal["spectral", "centred", "equal"]
_ROWS_PER_BLOCK = 1 << 14
_EIGENVALUE_FLOOR = 0.01


# --------------------------------------------------------------------------- label patterns


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
    prefix_length : int
        Models whose labels were kept before completion (M unless coarsened).
    cells : array of int64
        Row of ``table`` under which each subject is counted, -1 if nothing is sent (`coarsen`:
        for each tuple of the table that it was given).
    """

    table: PatternTable
    how: How
    prefix_length: int
    cells: IntArray


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
    n = given.shape[0]
    if n and ((given.min(axis=0) < 0).any() or (given.max(axis=0) >= sizes).any()):
        raise DataError("a label lies outside the classes of its model")
    # The smallest type that holds them.
    largest = int(sizes.max())
    dtype = np.uint8 if largest <= 256 else np.uint16 if largest <= 65536 else np.int64
    rows: LabelArray = given.astype(dtype, copy=False)
    inverse, where = distinct_codes(rows, n_classes)
    amount = None if counts is None else np.asarray(counts, dtype=np.float64)
    total = np.bincount(inverse, weights=amount, minlength=where.size)
    table = PatternTable(rows[where], total.astype(np.int64), tuple(int(k) for k in n_classes))
    return table, inverse


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
    return patterns.astype(np.int64) + np.cumsum([0, *n_classes])[:-1]


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
    check({"min_records": whole(1)}, {"min_records": min_records})
    frequent = table.counts >= min_records
    n_frequent = int(frequent.sum())
    target = np.full(table.counts.size, -1, dtype=np.int64)
    kept = table.patterns[frequent]
    if n_frequent == 0:
        return replace(table, patterns=kept, counts=table.counts[frequent]), target
    target[frequent] = np.arange(n_frequent)
    rare = np.flatnonzero(~frequent)
    # Models whose classes all coincide contribute nothing.
    scaled = [b / (np.linalg.norm(b) or 1.0) for b in class_distances]
    step = max(1, _BLOCK_CELLS // n_frequent)
    for start in range(0, rare.size, step):
        part = rare[start : start + step]
        distance = np.zeros((part.size, n_frequent))
        for m, b in enumerate(scaled):
            distance += b[table.patterns[part, m]][:, kept[:, m]]
        # equal distances differ by rounding, which must not choose between them
        target[part] = np.round(distance, 9).argmin(axis=1)
    counts = np.bincount(target, weights=table.counts, minlength=n_frequent).astype(np.int64)
    return replace(table, patterns=kept, counts=counts), target


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
    check({"min_records": whole(1)}, {"min_records": min_records})
    n, chosen = table.n_subjects, 0
    for length in range(1, len(table.n_classes) + 1):
        cut = table.patterns[:, :length]
        counts = distinct_patterns(cut, table.n_classes[:length], table.counts)[0].counts
        covered = int(counts[counts >= min_records].sum())
        if covered >= LEAST_COVERED * n and covered > 0:
            chosen = length
        # Failing half of the subjects, the longest prefix with any frequent cell.
        elif covered > 0 and chosen == 0:
            chosen = -length
        elif covered == 0:
            break
    chosen = abs(chosen)
    if chosen == 0:
        empty = replace(table, patterns=table.patterns[:0], counts=table.counts[:0])
        return SiteSummary(empty, "none", 0, np.full(table.counts.size, -1, dtype=np.int64))
    cut = table.patterns[:, :chosen]
    prefixes, prefix_of = distinct_patterns(cut, table.n_classes[:chosen], table.counts)
    distances = [class_distances(beta) for beta in class_parameters[:chosen]]
    merged, target = merge_rare(prefixes, distances, min_records)
    completed = complete_prefixes(merged.patterns, class_parameters)
    result, row_of = distinct_patterns(completed, table.n_classes, merged.counts)
    return SiteSummary(result, "coarsened", chosen, row_of[target][prefix_of])


def summarise_site(
    labels: ArrayLike, class_parameters: Sequence[FloatArray], min_records: int
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
    check({"min_records": whole(1)}, {"min_records": min_records})
    n_classes = [beta.shape[0] for beta in class_parameters]
    table, tuple_of = distinct_patterns(labels, n_classes)
    rare = table.counts < min_records
    if not rare.any():
        how: How = "exact" if table.counts.size else "none"
        return SiteSummary(table, how, len(n_classes), tuple_of)
    if rare.all():
        coarse = coarsen(table, class_parameters, min_records)
        return replace(coarse, cells=coarse.cells[tuple_of])
    merged, target = merge_rare(table, [class_distances(b) for b in class_parameters], min_records)
    return SiteSummary(merged, "merged", len(n_classes), target[tuple_of])


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
    if not len(beta):
        return np.zeros((0, 0))
    squares = np.stack([((beta - row) ** 2).sum(axis=1) for row in beta])
    return np.sqrt(np.maximum(squares, squares.T))


def turns(owners: Sequence[Hashable]) -> IntArray:
    """Order of models in which sites take turns: the first of every site, then the second.

    Parameters
    ----------
    owners : sequence of length M
        Site of each model; sites are in the order in which they occur.

    Returns
    -------
    (M,) int array
    """
    rounds = [list(owners[:m]).count(owner) for m, owner in enumerate(owners)]
    return np.argsort(rounds, kind="stable").astype(np.int64)


def summarise_by_turns(
    labels: ArrayLike,
    class_parameters: Sequence[FloatArray],
    owners: Sequence[Hashable],
    min_records: int,
) -> SiteSummary:
    """Counts of label tuples that a site may send, cut to few models where tuples are rare.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Class of every row of the site under every model.
    class_parameters : sequence of M arrays (K_m, d)
        Class parameters of all models.
    owners : sequence of length M
        Site of each model.
    min_records : int
        Smallest count of a cell; 1 sends the exact table.

    Returns
    -------
    SiteSummary
        As of `summarise_site` where at least half of the rows have a frequent tuple. Otherwise
        tuples are cut to the labels of the first models (`coarsen`), sites taking turns.

    Notes
    -----
    With many models, tuples of labels are nearly as many as rows. Counting all rows with the one or
    two tuples that happen to be frequent (`merge_rare`) then tells hardly anything of the site.
    Tuples that are cut to the labels of few models are frequent, and models of several sites say
    more than as many of one.
    """
    given = np.asarray(labels)
    n_classes = [len(beta) for beta in class_parameters]
    table, _ = distinct_patterns(given, n_classes)
    covered = int(table.counts[table.counts >= min_records].sum())
    if covered >= LEAST_COVERED * len(given):
        return summarise_site(given, class_parameters, min_records)
    order = turns(owners)
    turned, tuple_of = distinct_patterns(given[:, order], [n_classes[m] for m in order])
    coarse = coarsen(turned, [class_parameters[m] for m in order], min_records)
    if coarse.how == "none":
        # No class of the first model is frequent, so neither is any whole tuple.
        nothing = replace(table, patterns=table.patterns[:0], counts=table.counts[:0])
        return replace(coarse, table=nothing, cells=coarse.cells[tuple_of])
    back = coarse.table.patterns[:, np.argsort(order)]
    result, row_of = distinct_patterns(back, n_classes, coarse.table.counts)
    return replace(coarse, table=result, cells=row_of[coarse.cells[tuple_of]])


# --------------------------------------------------------------------------- ensemble distance


@dataclass(frozen=True)
class Ensemble:
    """All that the coordinator derives from models and counts.

    Attributes
    ----------
    n_subjects : int
        Subjects behind the counts.
    n_classes : tuple of int, length M
        Classes of each model.
    norms : array, shape (M,)
        Frobenius norms of the co-distance matrices D^(m); 0 marks a degenerate model, which puts
        all subjects into one class, or whose classes coincide.
    agreement : array, shape (M, M)
        Cosines of the co-distance matrices (correlations for "centred" weights); zero rows for
        degenerate models.
    weights : array, shape (M,)
        Nonnegative, squares sum to 1 (all 0 if every model is degenerate).
    features : array, shape (q, r)
        T: a subject's features are the sum of the rows of T of its M labels.
    eigenvalues : array, shape (q,)
        Eigenvalues of D~, in descending order of their absolute values.
    """

    n_subjects: int
    n_classes: tuple[int, ...]
    norms: FloatArray
    agreement: FloatArray
    weights: FloatArray
    features: FloatArray
    eigenvalues: FloatArray


def build_ensemble(
    table: PatternTable, class_parameters: Sequence[FloatArray], *, weighting: Weighting = "centred"
) -> Ensemble:
    """Weights, features and spectrum of the ensemble distance.

    Parameters
    ----------
    table : PatternTable
        Label tuples of all sites with counts.
    class_parameters : sequence of M arrays (K_m, d_m)
        Class parameters beta of each model.
    weighting : {"spectral", "centred", "equal"}
        See `model_weights`.

    Returns
    -------
    Ensemble

    Raises
    ------
    DataError
        If there is no subject, or models and table do not fit.
    ParameterError
        For an unknown weighting.
    """
    distances = [class_distances(beta) for beta in class_parameters]
    if tuple(len(b) for b in distances) != table.n_classes:
        raise DataError("the pattern table does not have the classes of the models")
    if table.n_subjects == 0:
        raise DataError("no site contributed a count of label patterns")
    gamma = co_occurrence(table)
    products = inner_products(gamma, distances)
    # |D^(m)|, section 2 of the paper
    norms = np.sqrt(np.diag(products))
    valid = norms > 0
    if weighting == "centred":
        counts = np.split(np.diag(gamma), np.cumsum(table.n_classes)[:-1])
        totals = np.array([c @ b @ c for c, b in zip(counts, distances, strict=True)])
        # <D - mean, D' - mean'> = <D, D'> - sum(D) sum(D') / N^2
        products = products - np.outer(totals, totals) / float(table.n_subjects) ** 2
    # Cosines of the co-distance matrices, or correlations.
    root = np.sqrt(np.where(valid, np.diag(products), 1.0))
    agreement = products / np.outer(root, root) * np.outer(valid, valid)
    np.fill_diagonal(agreement, valid.astype(np.float64))
    weights = model_weights(agreement, valid, weighting)
    scale = np.divide(weights, norms, out=np.zeros_like(norms), where=valid)
    # A = blockdiag(w_m B_m / |D^(m)|), so that D~ = Z A Z'
    a = _block_diagonal([c * b for c, b in zip(scale, distances, strict=True)])
    return Ensemble(
        n_subjects=table.n_subjects,
        n_classes=table.n_classes,
        norms=norms,
        agreement=agreement,
        weights=weights,
        features=features_of(a, gamma),
        eigenvalues=ensemble_eigenvalues(a, gamma),
    )


def inner_products(gamma: FloatArray, distances: Sequence[FloatArray]) -> FloatArray:
    """Frobenius inner products of the co-distance matrices.

    Parameters
    ----------
    gamma : array, shape (q, q)
        Counts of pairs of labels.
    distances : sequence of M arrays (K_m, K_m)
        Class distances B_m.

    Returns
    -------
    array, shape (M, M)
        ``<D^(s), D^(t)> = sum(B_s * (C_st B_t C_st'))``, numerators of the agreement matrix G of
        section 2 of the paper.
    """
    b = _block_diagonal(distances)
    # sum((Gamma B) * (B Gamma)) over each block
    right = gamma @ b
    starts = np.cumsum([0, *(len(b) for b in distances)])[:-1]
    return np.add.reduceat(np.add.reduceat(right * right.T, starts, axis=0), starts, axis=1)


def model_weights(
    agreement: FloatArray, valid: NDArray[np.bool_], weighting: Weighting
) -> FloatArray:
    """Weights of the models in the ensemble distance.

    Parameters
    ----------
    agreement : array, shape (M, M)
        Cosines for "spectral", correlations for "centred".
    valid : array of bool, shape (M,)
        False for degenerate models, which get weight 0.
    weighting : {"spectral", "centred", "equal"}
        "spectral": absolute first eigenvector of the cosines (section 2 of the paper).
        "centred": first eigenvector of the correlations, sign fixed by its sum, negative entries
        set to 0, since disagreement with the others is no evidence. "equal": all the same.
        Two models always weigh the same.

    Returns
    -------
    array, shape (M,)
        Nonnegative with squares summing to 1; all 0 if no model is valid.

    Raises
    ------
    ParameterError
        For an unknown weighting.

    Notes
    -----
    Matrices of distances have nonnegative entries and thus large cosines even when unrelated, so
    the source's weights hardly discriminate. In simulations (``replications/ensemble_clustering/
    weighting``) "centred" equals "spectral" when all models are informative and is far better
    when some are not. It is worse when the models that agree on something else than the classes
    are as many as the informative ones and agree better: no weighting can then tell which is meant.
    """
    if weighting not in get_args(Weighting):
        raise ParameterError.of("weighting", f"one of {get_args(Weighting)}", weighting)
    weights = np.zeros(valid.size)
    kept = np.flatnonzero(valid)
    # All models are degenerate: nothing tells subjects apart.
    if kept.size == 0:
        return weights
    if weighting == "equal" or kept.size <= 2:
        weights[kept] = 1.0  # two models always have the same weight: nothing tells them apart
        return np.asarray(weights / np.sqrt(kept.size))
    _, vectors = np.linalg.eigh(agreement[np.ix_(kept, kept)])
    first = vectors[:, -1]
    if weighting == "spectral":
        weights[kept] = np.abs(first)
    else:
        weights[kept] = np.maximum(first if first.sum() >= 0 else -first, 0.0)
    return np.asarray(weights / np.linalg.norm(weights))


def features_of(a: FloatArray, gamma: FloatArray) -> FloatArray:
    """T with ``T T' = A Gamma A``, numerically null directions removed.

    Parameters
    ----------
    a : array, shape (q, q)
        Block-diagonal matrix of scaled class distances.
    gamma : array, shape (q, q)
        Counts of pairs of labels.

    Returns
    -------
    array, shape (q, r)
        Columns by descending eigenvalue; the largest entry of each column is positive.
    """
    # Q = A Gamma A = T T'
    q = a @ gamma @ a
    values, vectors = np.linalg.eigh((q + q.T) / 2)
    order = np.argsort(-values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    # rounding leaves null directions at about q * eps of the largest eigenvalue, of either sign
    floor = 8 * len(values) * np.finfo(np.float64).eps * max(float(values[0]), 0.0)
    kept = values > floor
    t = vectors[:, kept] * np.sqrt(values[kept])
    if t.shape[1]:
        largest = np.abs(t).argmax(axis=0)
        t *= np.where(t[largest, np.arange(t.shape[1])] < 0, -1.0, 1.0)
    return np.asarray(t)


def ensemble_eigenvalues(a: FloatArray, gamma: FloatArray) -> FloatArray:
    """Eigenvalues of D~ = Z A Z' from a q x q problem.

    The nonzero eigenvalues of ``Z A Z'`` are those of ``R' A R`` with ``Gamma = R R'``.

    Returns
    -------
    array, shape (q,)
        In descending order of absolute values; the other N - q are 0.
    """
    values, vectors = np.linalg.eigh(gamma)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    # R' A R with Gamma = R R'
    inner = root.T @ a @ root
    spectrum = np.linalg.eigvalsh((inner + inner.T) / 2)
    return spectrum[np.argsort(-np.abs(spectrum), kind="stable")]


def pattern_features(features: FloatArray, table: PatternTable) -> FloatArray:
    """Features of each distinct tuple, shape (P, r): sums of M rows of T."""
    columns = label_columns(table.patterns, table.n_classes)
    phi = np.zeros((columns.shape[0], features.shape[1]))
    for m in range(columns.shape[1]):
        phi += features[columns[:, m]]
    return phi


def assign(
    labels: LabelArray, n_classes: Sequence[int], features: FloatArray, centres: FloatArray
) -> IntArray:
    """Final class of each label tuple: the nearest centre in the space of T.

    Scores are sums of M entries of the q x K table ``T centres'``, always added in the order of
    the models: a subject's class does not depend on which other rows are in the batch.

    Parameters
    ----------
    labels : array of int, shape (N, M)
        Labels under all models.
    n_classes : sequence of int, length M
        Classes of each model.
    features : array, shape (q, r)
        T.
    centres : array, shape (K, r)
        Final centres.

    Returns
    -------
    array of int64, shape (N,)
        Classes ``0 .. K - 1``; ties go to the first.
    """
    scores = features @ centres.T
    # argmin |x - c|^2 = argmax x'c - |c|^2 / 2
    half = 0.5 * (centres**2).sum(axis=1)
    bounds = np.cumsum([0, *n_classes])
    tables = [np.ascontiguousarray(scores[i:j]) for i, j in pairwise(bounds)]
    result = np.empty(labels.shape[0], dtype=np.int64)
    for start in range(0, labels.shape[0], _ROWS_PER_BLOCK):
        block = labels[start : start + _ROWS_PER_BLOCK]
        total = np.tile(-half, (block.shape[0], 1))
        for m, values in enumerate(tables):
            total += values.take(block[:, m], axis=0)
        result[start : start + _ROWS_PER_BLOCK] = total.argmax(axis=1)
    return result


def n_clusters_by_eigenvalues(eigenvalues: FloatArray, max_clusters: int) -> int:
    """Number of classes from the spectrum of the ensemble distance.

    Distances between K groups have one positive and about K - 1 negative eigenvalues of order N;
    what the models disagree on adds small ones. The rule takes the largest ratio of successive
    absolute eigenvalues, where everything below 1% of the first counts as 1%.

    Parameters
    ----------
    eigenvalues : array, shape (q,)
        From `ensemble_eigenvalues`.
    max_clusters : int
        Largest number considered, at least 2.

    Returns
    -------
    int
        Between 2 and ``max_clusters``; ties go to the smaller. One class cannot be told: the first
        eigenvalue of a distance matrix always stands alone.

    Notes
    -----
    Source: arXiv 2409.08396, section 2.6, leaves the rule open. Without the floor, models that
    agree well make noise eigenvalues of wildly different sizes and the rule fails in half of the
    imbalanced data sets; with it, it finds K in 84 to 100% of them. It understates K when models
    with more classes than there are split them differently at every site and the classes overlap
    (homogeneous, sigma^2 = .3, 8 classes fitted, 5 true: 28%).
    """
    if max_clusters < 2:
        raise ParameterError.of("max_clusters", "at least 2", max_clusters)
    sizes = np.zeros(max_clusters + 1)
    given = np.abs(eigenvalues[: max_clusters + 1])
    sizes[: given.size] = given
    if sizes[0] == 0.0:
        return 2
    floored = np.maximum(sizes, _EIGENVALUE_FLOOR * sizes[0])
    return int(np.argmax(np.round(floored[1:-1] / floored[2:], 9))) + 2


def _block_diagonal(blocks: Sequence[FloatArray]) -> FloatArray:
    bounds = np.cumsum([0, *(len(b) for b in blocks)])
    result = np.zeros((bounds[-1], bounds[-1]))
    for block, i, j in zip(blocks, bounds[:-1], bounds[1:], strict=True):
        result[i:j, i:j] = block
    return result

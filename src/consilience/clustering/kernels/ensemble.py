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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels.label_patterns import (
    LabelArray,
    PatternTable,
    class_distances,
    co_occurrence,
    label_columns,
)
from consilience.exceptions import DataError, ParameterError

__all__ = [
    "Ensemble",
    "Weighting",
    "agreement_matrix",
    "assign",
    "build_ensemble",
    "class_distances",
    "ensemble_eigenvalues",
    "features_of",
    "inner_products",
    "model_weights",
    "n_clusters_by_eigenvalues",
    "pattern_features",
]

Weighting = Literal["spectral", "centred", "equal"]

_ROWS_PER_BLOCK = 1 << 14
_EIGENVALUE_FLOOR = 0.01


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
        Frobenius norms of the co-distance matrices D^(m); 0 marks a degenerate model.
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

    @property
    def degenerate(self) -> NDArray[np.bool_]:
        """Models that put all subjects into one class (or whose classes coincide)."""
        return np.asarray(self.norms == 0.0)


def build_ensemble(
    table: PatternTable,
    class_parameters: Sequence[FloatArray],
    *,
    weighting: Weighting = "centred",
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
    norms = np.sqrt(np.diag(products))
    agreement = agreement_matrix(gamma, distances, centred=weighting == "centred")
    weights = model_weights(agreement, norms > 0, weighting)
    scale = np.divide(weights, norms, out=np.zeros_like(norms), where=norms > 0)
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
    right = gamma @ b
    return _block_sums(right * right.T, distances)


def agreement_matrix(
    gamma: FloatArray, distances: Sequence[FloatArray], *, centred: bool
) -> FloatArray:
    """Cosines of the co-distance matrices, or correlations.

    Parameters
    ----------
    gamma : array, shape (q, q)
        Counts of pairs of labels.
    distances : sequence of M arrays (K_m, K_m)
        Class distances B_m.
    centred : bool
        Subtract each co-distance matrix's mean over its N^2 entries first.

    Returns
    -------
    array, shape (M, M)
        Unit diagonal; rows and columns of degenerate models are 0.
    """
    products = inner_products(gamma, distances)
    valid = np.diag(products) > 0
    if centred:
        counts = np.diag(gamma)
        bounds = np.cumsum([0, *(len(b) for b in distances)])
        per_model = [counts[i:j] for i, j in pairwise(bounds)]
        n = float(per_model[0].sum())
        totals = np.array([c @ b @ c for c, b in zip(per_model, distances, strict=True)])
        products = products - np.outer(totals, totals) / n**2
    root = np.sqrt(np.where(valid, np.diag(products), 1.0))
    g = products / np.outer(root, root) * np.outer(valid, valid)
    np.fill_diagonal(g, valid.astype(np.float64))
    return np.asarray(g)


def model_weights(
    agreement: FloatArray, valid: NDArray[np.bool_], weighting: Weighting
) -> FloatArray:
    """Weights of the models in the ensemble distance.

    Parameters
    ----------
    agreement : array, shape (M, M)
        From `agreement_matrix`: cosines for "spectral", correlations for "centred".
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
    absolute eigenvalues, where everything below 1 % of the first counts as 1 %.

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
    imbalanced data sets; with it, it finds K in 84 to 100 % of them. It understates K when models
    with more classes than there are split them differently at every site and the classes overlap
    (homogeneous, sigma^2 = .3, 8 classes fitted, 5 true: 28 %).
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


def _block_sums(matrix: FloatArray, blocks: Sequence[FloatArray]) -> FloatArray:
    starts = np.cumsum([0, *(len(b) for b in blocks)])[:-1]
    return np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)

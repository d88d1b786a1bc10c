"""Ensemble clustering as a textbook would write it: N x N matrices and loops over subjects."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def co_distance(labels: NDArray[np.int64], class_parameters: Matrix) -> Matrix:
    n = len(labels)
    result = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a, b = class_parameters[labels[i]], class_parameters[labels[j]]
            result[i, j] = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    return result


def co_distance_by_matrix(labels: NDArray[np.int64], class_parameters: Matrix) -> Matrix:
    """The same with library calls, for sizes where loops over pairs take minutes."""
    features = class_parameters[labels]
    squares = (features**2).sum(axis=1)
    gram = features @ features.T
    return np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0))


def agreement(matrices: list[Matrix], centred: bool = False) -> Matrix:
    if centred:
        matrices = [d - d.mean() if d.any() else d for d in matrices]
    m = len(matrices)
    g = np.zeros((m, m))
    for s in range(m):
        for t in range(m):
            norms = np.linalg.norm(matrices[s]) * np.linalg.norm(matrices[t])
            if norms > 0:
                g[s, t] = np.sum(matrices[s] * matrices[t]) / norms
    return g


def spectral_weights(matrices: list[Matrix]) -> Matrix:
    _, vectors = np.linalg.eigh(agreement(matrices))
    return np.abs(vectors[:, -1])


def ensemble_distance(matrices: list[Matrix], weights: Matrix) -> Matrix:
    total = np.zeros_like(matrices[0])
    for d, w in zip(matrices, weights, strict=True):
        norm = np.linalg.norm(d)
        if norm > 0:
            total += w * d / norm
    return total


def prediction_strength(first: list[int], second: list[int]) -> float:
    """Least share of pairs of a class that stay together, by loops over pairs; both directions."""

    def one_way(mine: list[int], other: list[int]) -> float:
        shares = []
        for k in set(mine):
            rows = [i for i, label in enumerate(mine) if label == k]
            pairs = [(i, j) for i in rows for j in rows if i < j]
            if pairs:
                shares.append(sum(other[i] == other[j] for i, j in pairs) / len(pairs))
        return min(shares)

    return (one_way(first, second) + one_way(second, first)) / 2


def adjusted_rand(first: list[int], second: list[int]) -> float:
    n = len(first)
    both = a_pairs = b_pairs = 0
    for i in range(n):
        for j in range(i):
            in_a, in_b = first[i] == first[j], second[i] == second[j]
            both += in_a and in_b
            a_pairs += in_a
            b_pairs += in_b
    expected = a_pairs * b_pairs / (n * (n - 1) / 2)
    largest = (a_pairs + b_pairs) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)

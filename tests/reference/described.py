"""Textbook descriptions of pooled rows, row by row, and what follows from figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def moments(values: Sequence[float]) -> tuple[int, float, float]:
    """Number, mean and standard deviation of the values that are there."""
    there = [v for v in values if not math.isnan(v)]
    mean = math.fsum(there) / len(there)
    return len(there), mean, math.sqrt(math.fsum((v - mean) ** 2 for v in there) / (len(there) - 1))


def quantile(values: Sequence[float], share: float) -> float:
    """Hyndman and Fan (1996), definition 1: the smallest value with so many at or below it."""
    ordered = sorted(v for v in values if not math.isnan(v))
    for i, value in enumerate(ordered, start=1):
        if i / len(ordered) >= share - 1e-12:
            return value
    return ordered[-1]


def difference_of_means(first: Sequence[float], second: Sequence[float]) -> float:
    """Austin (2009), for a continuous variable."""
    _, m1, s1 = moments(first)
    _, m2, s2 = moments(second)
    return (m1 - m2) / math.sqrt((s1**2 + s2**2) / 2)


def difference_of_shares(first: Sequence[float], second: Sequence[float]) -> float:
    """Yang and Dalton (2012): the first level left out, S inverted."""
    t, c = np.asarray(first)[1:], np.asarray(second)[1:]
    k = len(t)
    s = np.zeros((k, k))
    for i in range(k):
        for j in range(k):
            if i == j:
                s[i, j] = (t[i] * (1 - t[i]) + c[i] * (1 - c[i])) / 2
            else:
                s[i, j] = -(t[i] * t[j] + c[i] * c[j]) / 2
    return float(np.sqrt((t - c) @ np.linalg.solve(s, t - c)))


def follows(told: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Which sums over cells are combinations of sums that are told.

    Parameters
    ----------
    told : (k, cells) array
        What each figure adds for a row of each cell.
    asked : (m, cells) array

    Returns
    -------
    (m,) bool array
    """
    told = np.asarray(told, dtype=float)
    sizes = np.abs(told).max(axis=1, keepdims=True)
    _, values, basis = np.linalg.svd(told / np.where(sizes > 0, sizes, 1), full_matrices=False)
    basis = basis[values > 1e-9 * values.max(initial=1e-300)]
    left = asked - asked @ basis.T @ basis
    return np.asarray(np.abs(left).max(axis=1) < 1e-7)

"""Entries predicted from the rest of their row, and normal moments with gaps: one at a time."""

from __future__ import annotations

import numpy as np


def squared_errors(fitted: np.ndarray, judged: np.ndarray, rank: int) -> np.ndarray:
    """Every entry of `judged` by least squares on the other entries of its row.

    Directions are right singular vectors of the centred fitted rows.
    """
    mean = fitted.mean(axis=0)
    v = np.linalg.svd(fitted - mean, full_matrices=True)[2][:rank].T
    errors = np.empty(judged.shape)
    for i, row in enumerate(judged - mean):
        for j in range(len(row)):
            others = np.arange(len(row)) != j
            z = np.linalg.lstsq(v[others], row[others], rcond=None)[0]
            errors[i, j] = (row[j] - v[j] @ z) ** 2
    return errors


def normal_em(x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance by expectation and maximisation, row by row, as the module says."""
    n, p = x.shape
    mean, spread = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    covariance = np.diag(spread**2)
    share = n / (n + p)
    for _ in range(steps):
        used = share * covariance + (1 - share) * np.diag(np.diag(covariance))
        first, second = np.zeros(p), np.zeros((p, p))
        for row in x:
            seen, gone = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
            full, more = row.copy(), np.zeros((p, p))
            slope = used[np.ix_(gone, seen)] @ np.linalg.inv(used[np.ix_(seen, seen)])
            full[gone] = mean[gone] + slope @ (row[seen] - mean[seen])
            more[np.ix_(gone, gone)] = used[np.ix_(gone, gone)] - slope @ used[np.ix_(seen, gone)]
            first += full
            second += np.outer(full, full) + more
        mean = first / n
        covariance = second / n - np.outer(mean, mean)
    return mean, covariance

"""Rank correlations that may leave a site."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.wire.disclosure import Limits, Released, cross_products

FloatArray = NDArray[np.float64]


def class_ranks(x: FloatArray, limits: Limits) -> Released:
    """Release Spearman's correlations of the rows of a class; an empty matrix if rows < 2p.

    Parameters
    ----------
    x : (n, p) array
    limits : Limits

    Notes
    -----
    NaN where a column differs from its most common value in few rows, and where two columns of two
    values each have a small group of rows in common: their correlation would tell its size.
    """
    from scipy.stats import rankdata

    n, p = x.shape
    if n < max(2 * p, limits.min_records, 2):
        return cross_products(np.empty((0, 0)))
    ranks = rankdata(x, axis=0) - (n + 1) / 2.0
    norms = np.sqrt((ranks**2).sum(axis=0))
    released = cross_products(ranks / np.where(norms > 0, norms, 1.0))
    if limits.min_records <= 1:
        return released
    few = np.array([0 < n - _most_common(x[:, j]) < limits.min_records for j in range(p)])
    released = released.withhold_unsafe(limits)
    hidden = few[:, None] | few[None, :] | thin_pairs(x, limits)
    return released.withhold(hidden | np.isnan(released.value))


def thin_pairs(x: FloatArray, limits: Limits) -> NDArray[np.bool_]:
    """Pairs of columns of two values each of which some combination is in few rows, (p, p)."""
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    if limits.min_records <= 1 or not len(x):
        return found
    low, high = x.min(axis=0), x.max(axis=0)
    two = np.flatnonzero(((x == low) | (x == high)).all(axis=0) & (low < high))
    up = (x[:, two] == high[two]).astype(float)
    for first in (up, 1.0 - up):
        for second in (up, 1.0 - up):
            together = np.rint(first.T @ second)
            few = (together > 0) & (together < limits.min_records)
            found[np.ix_(two, two)] |= few
    return found


def _most_common(column: FloatArray) -> int:
    return int(np.unique(column, return_counts=True)[1].max())

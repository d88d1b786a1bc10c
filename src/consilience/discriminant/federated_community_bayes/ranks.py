"""Rank correlations that may leave a site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.wire.disclosure import Limits, Released, cross_products
from consilience.wire.moment_facts import Coded, moment_facts


def class_ranks(x: FloatArray, limits: Limits, coded: Sequence[Coded] = ()) -> Released:
    """Release Spearman's correlations of the rows of a class; an empty matrix if rows < 2p.

    Parameters
    ----------
    x : (n, p) array
    limits : Limits
    coded : sequence of Coded
        What of the columns are levels of one category.

    Notes
    -----
    NaN where the moments of two columns could not leave: of columns of two values their correlation
    would tell the size of small groups.
    """
    from scipy.stats import rankdata

    n, p = x.shape
    if n < max(2 * p, limits.min_records, 2):
        return cross_products(np.empty((0, 0)), limits=limits)
    ranks = rankdata(x, axis=0) - (n + 1) / 2.0
    norms = np.sqrt((ranks**2).sum(axis=0))
    ranks = ranks / np.where(norms > 0, norms, 1.0)
    released = cross_products(ranks, limits=limits, coded=coded)
    if limits.min_records <= 1:
        return released
    released = released.withhold_unsafe(limits)
    hidden = moment_facts(x, limits=limits, coded=coded).unsafe
    return released.withhold(hidden | np.isnan(released.value))


def thin_pairs(x: FloatArray, limits: Limits, coded: Sequence[Coded] = ()) -> NDArray[np.bool_]:
    """Pairs of columns of two values each of which some combination is in few rows or none, (p, p).

    Levels of one category are no such pair: that no row has both is known.
    """
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    if limits.min_records <= 1 or not len(x):
        return found
    low, high = x.min(axis=0), x.max(axis=0)
    two = np.flatnonzero(((x == low) | (x == high)).all(axis=0) & (low < high))
    up = (x[:, two] == high[two]).astype(float)
    for first in (up, 1.0 - up):
        for second in (up, 1.0 - up):
            few = np.rint(first.T @ second) < limits.min_records
            found[np.ix_(two, two)] |= few
    for group in coded:
        found[np.ix_(group.columns, group.columns)] = False
    alone = np.zeros(p, dtype=bool)
    alone[two] = np.minimum(up.sum(axis=0), len(x) - up.sum(axis=0)) < limits.min_records
    found[np.arange(p), np.arange(p)] = alone
    return found

"""Phase `bootstrap_pairs`: agreement of two runs on disjoint halves of every site's rows.

Each site halves its rows at random, the method runs on either half within the same asks as the main
run, and each site compares the two labellings of *all* its rows. What leaves is one adjusted Rand
index for each pair, rounded by the size of the smallest class in either labelling; rows of classes
below `min_records` are left out of it, since one of them could move the index a lot. A cross-table
of the two labellings would hold small cells off its diagonal, and leaving those out would flatter
the agreement.

The halves are drawn from the site's *secret* stream and kept in its state: were they known, the
class means of many halves would be linear equations in the rows, enough of them to solve for every
cell.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
<the method's asks carry both halves>
                            <-  agreement (pairs)                     AGGREGATE
==============================  ==================================================

The same is done with every column permuted within the site: that *null* keeps the margins and
destroys what columns have in common, and stability is only evidence where it exceeds its null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.numerics.agreement import adjusted_rand_index
from consilience.wire.disclosure import Limits, Released, rounded

_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def halves(rng: np.random.Generator, n: int) -> tuple[IntArray, IntArray]:
    """Draw two disjoint halves of n rows, each in ascending order."""
    order = rng.permutation(n).astype(np.int64)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])


def permuted(rng: np.random.Generator, x: FloatArray) -> FloatArray:
    """Permute each column by itself."""
    return rng.permuted(x, axis=0)


def released_agreement(first: IntArray, second: IntArray, limits: Limits) -> Released:
    """Release the agreement of two labellings of the same rows; -1 leaves a row out.

    Parameters
    ----------
    first, second : (n,) int array
    limits : Limits

    Returns
    -------
    Released
        Adjusted Rand index over the rows in classes of at least `min_records` rows in both, or NaN
        where there are none, or only one class in both: then there is nothing to agree on. Where a
        class holds just `min_records` rows, one record can decide whether its rows take part.
    """
    kept = (first >= 0) & (second >= 0)
    while True:
        small = np.zeros(len(kept), dtype=bool)
        for labels in (first, second):
            classes, counts = np.unique(labels[kept], return_counts=True)
            small |= kept & np.isin(labels, classes[counts < limits.min_records])
        if not small.any():
            break
        kept &= ~small
    sizes = [np.unique(labels[kept], return_counts=True)[1] for labels in (first, second)]
    if not kept.any() or max(len(counts) for counts in sizes) == 1:
        return rounded(float("nan"), n_records=0, step=1.0)
    smallest = min(int(counts.min()) for counts in sizes)
    value = adjusted_rand_index(first[kept], second[kept])
    return rounded(value, n_records=smallest, step=rounding_step(smallest))


def rounding_step(n_records: int) -> float:
    """Round figure that is at least a hundredth and at least ``1/n_records``."""
    return next((step for step in _STEPS if step * n_records >= 1), 1.0)


@dataclass(frozen=True)
class Stability:
    """Agreement of pairs of runs on disjoint halves.

    Attributes
    ----------
    mean, low, high : float
        Mean over pairs of the size-weighted mean over sites, with the smallest and largest pair.
    null_mean, null_low, null_high : float
        The same with columns permuted.
    null_reached : int
        Pairs with permuted columns that agree at least as well as the mean of the others.
    pairs, null_pairs : int
        Pairs of either kind of which some site said something.
    """

    mean: float
    low: float
    high: float
    null_mean: float
    null_low: float
    null_high: float
    null_reached: int
    pairs: int
    null_pairs: int


def pool(agreements: FloatArray, null: FloatArray, sizes: FloatArray) -> Stability | None:
    """Pool agreements (pairs, sites) with weights `sizes` (sites).

    NaN marks a site that said nothing of a pair. A pair of which nobody said anything is left out;
    None if none is left on either side.
    """
    observed, permuted_ = weighted(agreements, sizes), weighted(null, sizes)
    if not len(observed) or not len(permuted_):
        return None
    return Stability(
        float(observed.mean()),
        float(observed.min()),
        float(observed.max()),
        float(permuted_.mean()),
        float(permuted_.min()),
        float(permuted_.max()),
        int((permuted_ >= observed.mean()).sum()),
        len(observed),
        len(permuted_),
    )


def weighted(agreements: FloatArray, sizes: FloatArray) -> FloatArray:
    """Mean over sites by pair, of those that said something."""
    said = ~np.isnan(agreements)
    weight = (said * sizes).sum(axis=1)
    total = (np.where(said, agreements, 0.0) * sizes).sum(axis=1)
    return np.asarray(total[weight > 0] / weight[weight > 0])

"""Phase `bootstrap_pairs`: agreement of two runs on disjoint halves of every site's rows.

Each site halves its rows at random, the method runs on either half within the same asks as the main
run, and each site compares the two labellings of *all* its rows. What leaves is one adjusted Rand
index for each pair, rounded so that one record hardly moves it; a cross-table of the two labellings
would hold small cells off its diagonal, and leaving those out would flatter the agreement.

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
from numpy.typing import NDArray

from consilience.wire.disclosure import Released, rounded

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def halves(rng: np.random.Generator, n: int) -> tuple[IntArray, IntArray]:
    """Draw two disjoint halves of n rows, each in ascending order."""
    order = rng.permutation(n).astype(np.int64)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])


def permuted(rng: np.random.Generator, x: FloatArray) -> FloatArray:
    """Permute each column by itself."""
    return rng.permuted(x, axis=0)


def released_agreement(value: float, n_records: int) -> Released:
    """Release one agreement, rounded to a step of at least ``1/n`` and a hundredth."""
    step = next((s for s in _STEPS if s * n_records >= 1), 1.0)
    return rounded(value, n_records=n_records, step=step)


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
    n_pairs : int
    """

    mean: float
    low: float
    high: float
    null_mean: float
    null_low: float
    null_high: float
    null_reached: int
    n_pairs: int


def pool(agreements: FloatArray, null: FloatArray, sizes: FloatArray) -> Stability:
    """Pool agreements (pairs, sites) with weights `sizes` (sites)."""
    weights = sizes / sizes.sum()
    observed, permuted_ = agreements @ weights, null @ weights
    return Stability(
        float(observed.mean()),
        float(observed.min()),
        float(observed.max()),
        float(permuted_.mean()),
        float(permuted_.min()),
        float(permuted_.max()),
        int((permuted_ >= observed.mean()).sum()),
        len(observed),
    )

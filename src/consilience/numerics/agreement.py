"""Agreement of two partitions (pair counts, adjusted Rand index) and of chains (R-hat)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError


class PairCounts(NamedTuple):
    """Unordered pairs of subjects by whether two partitions put them together.

    Attributes
    ----------
    both : int
        Together in both partitions.
    first_only, second_only : int
        Together in one partition only.
    neither : int
        Together in neither.
    """

    both: int
    first_only: int
    second_only: int
    neither: int


def contingency_table(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None
) -> IntArray:
    """Count subjects by their labels in two partitions.

    Parameters
    ----------
    first, second : array of shape (n,)
        Labels of any kind that sorts; equal labels mean the same class.
    weights : array of int of shape (n,), optional
        How many subjects each row stands for (patterns with counts).

    Returns
    -------
    array of int64 of shape (classes of first, classes of second)
        Rows and columns in ascending order of the labels.

    Raises
    ------
    DataError
        If the lengths differ.
    """
    a, b = np.asarray(first).ravel(), np.asarray(second).ravel()
    if a.shape != b.shape:
        raise DataError(f"two partitions have different lengths: {a.size} and {b.size}")
    names_a, code_a = np.unique(a, return_inverse=True)
    names_b, code_b = np.unique(b, return_inverse=True)
    # Weights are added, never repeated rows: a pattern may stand for millions of subjects.
    table = np.zeros((names_a.size, names_b.size), dtype=np.int64)
    amount = 1 if weights is None else np.asarray(weights, dtype=np.int64)
    np.add.at(table, (code_a, code_b), amount)
    return table


def pair_counts(table: ArrayLike) -> PairCounts:
    """Count pairs of subjects from a contingency table (exact integers, any size).

    Parameters
    ----------
    table : array of int of shape (I, J)
        Subjects by class in the first and in the second partition.

    Raises
    ------
    DataError
        If the table is not two-dimensional or holds a negative count.
    """
    counts = np.asarray(table)
    if counts.ndim != 2 or (counts.size and counts.min() < 0):
        raise DataError("a contingency table needs two dimensions and no negative counts")

    def pairs(cells: NDArray[np.int64]) -> int:
        return sum(int(c) * (int(c) - 1) // 2 for c in cells.ravel())

    # Python's integers: pairs of 10^10 subjects do not fit into 64 bits.
    both = pairs(counts)
    rows, columns = pairs(counts.sum(axis=1)), pairs(counts.sum(axis=0))
    everything = pairs(np.array([counts.sum()]))
    return PairCounts(both, rows - both, columns - both, everything - rows - columns + both)


def adjusted_rand_from_table(table: ArrayLike) -> float:
    """Adjusted Rand index of a contingency table.

    Parameters
    ----------
    table : array of int of shape (I, J)
        Subjects by class in the first and in the second partition.

    Returns
    -------
    float
        1 for equal partitions, about 0 for unrelated ones. Two partitions that are both trivial
        in the same way (one class, or every subject alone) count as equal; so does no subject.

    Notes
    -----
    Source: Hubert and Arabie, *Comparing partitions*, J. Classification 2 (1985), equation (5).
    """
    both, first_only, second_only, neither = pair_counts(table)
    if first_only == 0 and second_only == 0:
        return 1.0
    # integers until the last division: cells of 10^6 subjects have pairs of 10^12
    # Hubert and Arabie (1985), equation 5, in the four counts of pairs.
    numerator = 2 * (both * neither - first_only * second_only)
    denominator = (both + first_only) * (first_only + neither) + (both + second_only) * (
        second_only + neither
    )
    return numerator / denominator


def prediction_strength(table: ArrayLike) -> float:
    """How surely rows that share a class of one partition share one of the other, (I, J) counts.

    Returns
    -------
    float
        Least over classes of either partition of the share of pairs of its rows that lie in one
        class of the other one, mean of both directions; NaN if no class has a pair.

    Notes
    -----
    Source: Tibshirani and Walther, *Cluster validation by prediction strength*, J. Comput. Graph.
    Stat. 14 (2005), equation (2.1), who judge one direction and take the largest number of classes
    for which it is above .8 to .9.
    """
    counts = np.asarray(table, dtype=np.float64)
    least = []
    for cells in (counts, counts.T):
        total = cells.sum(axis=0)
        paired = total > 1
        together = (cells * (cells - 1)).sum(axis=0)[paired]
        least.append((together / (total * (total - 1))[paired]).min(initial=np.inf))
    return float(np.mean(least)) if np.isfinite(least).all() else float("nan")


def adjusted_rand_index(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Adjusted Rand index of two label vectors (see `adjusted_rand_from_table`)."""
    return adjusted_rand_from_table(contingency_table(first, second, weights))


def scale_reduction(chains: Sequence[FloatArray]) -> float:
    """Potential scale reduction of chains, each split in two.

    Parameters
    ----------
    chains : sequence of C (S, ...) arrays
        By draw; what is shorter in some chains (shares of fewer classes) is filled up with 0.
        Several components count as one: their variances are added up.

    Returns
    -------
    float
        ``sqrt((n - 1)/n + B/(n W))`` over the 2C halves of n draws, W the mean of their variances
        and B/n the variance of their means. Infinite where no half varies and the means differ,
        1 where nothing varies, NaN of one chain or of fewer than four draws.

    References
    ----------
    Gelman, Carlin, Stern, Dunson, Vehtari, Rubin, *Bayesian Data Analysis*, 3rd edition, 2013,
    equations (11.3) and (11.4).
    """
    flat = [np.asarray(chain, dtype=np.float64).reshape(len(chain), -1) for chain in chains]
    n = min(map(len, flat), default=0) // 2
    if len(flat) < 2 or n < 2:
        return float("nan")
    width = max(chain.shape[1] for chain in flat)
    wide = [np.pad(chain, ((0, 0), (0, width - chain.shape[1]))) for chain in flat]
    halves = np.stack([part for chain in wide for part in (chain[:n], chain[-n:])])
    within = float(halves.var(axis=1, ddof=1).mean(axis=0).sum())
    between = float(halves.mean(axis=1).var(axis=0, ddof=1).sum())
    if within == 0.0:
        return 1.0 if between == 0.0 else float("inf")
    return float(np.sqrt((n - 1) / n + between / within))

"""Tests of two-way tables: Pearson's chi-square, Cramér's V, and association within strata.

Sources: Pearson, Philosophical Magazine 50 (1900), without Yates' correction; Cramér, Mathematical
Methods of Statistics (1946); Landis, Heyman and Koch, International Statistical Review 46 (1978),
general association (also in Agresti, Categorical Data Analysis, chapter 8 of the third edition).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError


class ChiSquareTest(NamedTuple):
    """Statistic, degrees of freedom and p-value of a chi-square test."""

    statistic: float
    df: int
    p_value: float


def expected_counts(table: FloatArray) -> FloatArray:
    """Counts under independence: n_i+ n_+j / n, (r, c); 0 in a table without rows."""
    n = max(table.sum(), 1.0)
    return np.asarray(np.outer(table.sum(axis=1), table.sum(axis=0)) / n)


def pearson(table: FloatArray) -> ChiSquareTest:
    """Test independence by the sum of (n_ij - e_ij)^2 / e_ij (Pearson, 1900).

    Parameters
    ----------
    table : (r, c) array
        Levels without any rows take no part.

    Returns
    -------
    ChiSquareTest
        Where only one level of a column has rows: 0 on 0 degrees of freedom, p-value 1.
    """
    # An empty level has expected counts of 0, by which nothing can be divided.
    used = table[table.any(axis=1)][:, table.any(axis=0)]
    expected = expected_counts(used)
    df = max(used.shape[0] - 1, 0) * max(used.shape[1] - 1, 0)
    statistic = float(((used - expected) ** 2 / expected).sum()) if df else 0.0
    return chi_square_test(statistic, df)


def cramers_v(table: FloatArray) -> float:
    """Strength of association, sqrt(chi2 / (n min(r - 1, c - 1))) in [0, 1] (Cramér, 1946).

    Levels without rows take no part; NaN where a column has only one other.
    """
    smaller = min(table.any(axis=1).sum(), table.any(axis=0).sum()) - 1
    if smaller < 1:
        return float("nan")
    # at most 1, but for rounding
    return float(np.sqrt(min(pearson(table).statistic / (table.sum() * smaller), 1.0)))


def within_strata(tables: FloatArray) -> ChiSquareTest:
    """Test association within strata: Cochran, Mantel and Haenszel for nominal columns.

    With d the sum over strata of observed less expected counts, and V the sum of their covariances
    when the margins n_i+ and n_+j of each stratum are fixed,

        cov(n_ij, n_i'j') = n_i+ (1[i = i'] n - n_i'+) n_+j (1[j = j'] n - n_+j') / (n^2 (n - 1)),

    the statistic is d' V^- d on as many degrees of freedom as V has rank: (r - 1)(c - 1) unless the
    strata share too few levels (Landis, Heyman and Koch, 1978).

    Parameters
    ----------
    tables : (strata, r, c) array

    Returns
    -------
    ChiSquareTest
        Where no stratum can show an association: 0 on 0 degrees of freedom, p-value 1.
    """
    size = int(np.prod(tables.shape[1:]))
    away, spread = np.zeros(size), np.zeros((size, size))
    for table in tables:
        n = table.sum()
        if n < 2:
            continue
        p, q = table.sum(axis=1) / n, table.sum(axis=0) / n
        # n_ij - n_i+ n_+j / n
        away += (table - n * np.outer(p, q)).ravel()
        # the covariance, as a product of one matrix for rows and one for columns
        spread += n**2 / (n - 1) * np.kron(np.diag(p) - np.outer(p, p), np.diag(q) - np.outer(q, q))
    values, vectors = np.linalg.eigh(spread)
    # V has no inverse: each margin is fixed
    kept = values > 1e-10 * max(values.max(initial=0.0), 1e-300)
    df = int(kept.sum())
    statistic = float(((vectors.T @ away)[kept] ** 2 / values[kept]).sum())
    return chi_square_test(statistic, df)


def chi_square_test(statistic: float, df: int) -> ChiSquareTest:
    """Chance of a larger value of the chi-square distribution; p-value 1 on 0 degrees."""
    from scipy.stats import chi2  # scipy.stats takes long to load

    return ChiSquareTest(statistic, df, float(chi2.sf(statistic, df)) if df else 1.0)


def holm(p_values: FloatArray) -> FloatArray:
    """Adjust p-values for their number (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    found = np.empty(len(p_values))
    found[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return found


# --- Agreement of two partitions (pair counts, adjusted Rand index) and of chains (R-hat).


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

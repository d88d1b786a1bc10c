"""Tests of two-way tables: Pearson's chi-square, Cramér's V, and association within strata.

Sources: Pearson, Philosophical Magazine 50 (1900), without Yates' correction; Cramér, Mathematical
Methods of Statistics (1946); Landis, Heyman and Koch, International Statistical Review 46 (1978),
general association (also in Agresti, Categorical Data Analysis, chapter 8 of the third edition).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import FloatArray


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

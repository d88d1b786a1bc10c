"""Errors of entries that are predicted from the rest of their row, from second moments alone.

Let V be p x k orthonormal directions and P = I - V V'. Least squares on all other entries of a row
predict its entry j with the error ``(P (x - mean))_j / P_jj``: nobody has to see the row. Over n
rows with mean m and covariance matrix S (divided by n) the squares sum to

    n [P M P]_jj / P_jj^2,   M = S + (m - mean)(m - mean)',

a function of the moments of the rows. All ranks take one decomposition and one product of p x p
matrices.

Least squares, and not the conditional mean under a model with one noise variance: under that the
best rank is the largest as soon as columns differ in their noise, since every further direction
makes up for it (`tests/completion/kernels/test_rest_of_row.py` has both).

Source: Bro, Kjeldahl, Smilde and Kiers, *Cross-validation of component models*, Analytical and
Bioanalytical Chemistry 390 (2008), on entries of rows that were left out; Ya Le's Stanford thesis,
chapter 3, on held-out entries and the factor 1 / (1 - v'v), which is 1 / P_jj.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import DataError

_ALONE = 1e-9  # a column of which a direction consists: nothing of it is in the others


@dataclass(frozen=True, eq=False)
class Moments:
    """Rows of a group, as far as second moments tell.

    Attributes
    ----------
    n : float
        Rows.
    mean : (p,) array
    products : (p, p) array
        Sums of products of deviations from the mean.
    """

    n: float
    mean: FloatArray
    products: FloatArray

    @property
    def covariance(self) -> FloatArray:
        """Products divided by the rows, (p, p)."""
        return np.asarray((self.products + self.products.T) / (2 * self.n))


def directions_of(fitted: Moments) -> FloatArray:
    """Principal directions of some rows, the one of the largest variance first, (p, p)."""
    return np.asarray(np.linalg.eigh(fitted.covariance)[1][:, ::-1])


def rest_of_row_errors(
    mean: FloatArray, directions: FloatArray, judged: Moments, max_rank: int
) -> FloatArray:
    """Squared errors of the entries of some rows, by rank.

    Parameters
    ----------
    mean : (p,) array
        Of the rows to which the directions were fitted.
    directions : (p, p) array
        Orthonormal columns.
    judged : Moments
        Rows whose entries are predicted, each from the others of its row.
    max_rank : int
        At most p - 1: with p directions nothing is left to predict.

    Returns
    -------
    (max_rank + 1,) array
        Sums over the n p entries at ranks 0, 1, ..., `max_rank`.

    Raises
    ------
    DataError
        One column, or a rank out of range.
    """
    p = len(mean)
    if p < 2 or not 0 <= max_rank < p:
        raise DataError("entries are predicted from others of their row: give two columns or more")
    gap = judged.mean - mean
    m = judged.products / judged.n + np.outer(gap, gap)
    q = directions.T @ m @ directions
    # Pairs of directions above a rank, counted from the last: each adds itself and those after it.
    after = directions @ np.tril(q, -1)
    added = 2 * directions * after + directions**2 * np.diag(q)
    left = np.cumsum(added[:, ::-1], axis=1)[:, ::-1][:, : max_rank + 1]
    free = np.cumsum((directions**2)[:, ::-1], axis=1)[:, ::-1][:, : max_rank + 1]
    alone = free < _ALONE
    squares = np.maximum(left, 0.0) / np.where(alone, 1.0, free) ** 2
    squares = np.where(alone, np.diag(m)[:, None], squares)  # least squares of least norm: the mean
    return np.asarray(judged.n * squares.sum(axis=0))

"""Expected values of missing coordinates given the observed ones: normal, mixture, factor models.

A row with nothing observed gets the mean of the model. Rows with equally many gaps are computed
together, in systems of the size of their gaps.

Mean and covariance of rows with missing entries: the normal density of largest likelihood.

Expectation and maximisation in turn: missing entries are replaced by what is expected of them given
the others of their row, and their products by the expected products. Where entries are missing at
random (whether one is missing may depend on what is observed), this is consistent, and the matrix
is positive semidefinite, neither of which holds of moments over pairs of observed columns. Complete
rows give their own moments.

Source: Little and Rubin, *Statistical Analysis with Missing Data*, 2nd edition (2002), section
11.2.1. Departure: what is expected of missing entries rests on covariances that are made smaller by
n / (n + p), else few rows of many columns predict their own noise; the limit of many rows is the
same.

Errors of entries that are predicted from the rest of their row, from second moments alone.

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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError

# --- Expected values of missing coordinates given the observed ones

_LARGEST = 1 << 22  # numbers in the systems that are solved at a time


def normal_given_observed(
    x: FloatArray, seen: BoolArray, mean: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Conditional means under one normal density, and the density of what is observed.

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    mean : (p,) array
    covariance : (p, p) array
        Positive definite.

    Returns
    -------
    filled : (n, p) array
        Observed values, and means of the others given these.
    log_density : (n,) array
        Of the observed coordinates; 0 for a row without any.
    """
    precision = np.linalg.inv(covariance)
    free = np.full(len(x), np.linalg.slogdet(covariance)[1])
    step = np.where(seen, x - mean, 0.0)
    pulled = step @ precision
    for rows, gaps in _batches(seen):
        blocks = precision[gaps[:, :, None], gaps[:, None, :]]
        right = np.take_along_axis(pulled[rows], gaps, axis=1)
        # x_g - mean_g = -K_gg^-1 K_gs (x_s - mean_s), with K the inverse covariance matrix
        step[rows[:, None], gaps] = -np.linalg.solve(blocks, right[:, :, None])[:, :, 0]
        # log |S_ss| = log |S| + log |K_gg|
        free[rows] += np.linalg.slogdet(blocks)[1]
    squares = ((step @ precision) * step).sum(axis=1)
    constant = seen.sum(axis=1) * np.log(2 * np.pi)
    return np.where(seen, x, mean + step), -0.5 * (squares + free + constant)


def mixture_given_observed(
    x: FloatArray,
    seen: BoolArray,
    weights: FloatArray,
    means: FloatArray,
    covariances: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Conditional means under a mixture of normal densities, and its classes' probabilities.

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    weights : (k,) array
    means : (k, p) array
    covariances : (k, p, p) array

    Returns
    -------
    filled : (n, p) array
        Observed values, and means of the others given these.
    probabilities : (n, k) array
        Of the classes given the observed coordinates.
    """
    fills, logs = [], []
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        filled, log_density = normal_given_observed(x, seen, mean, covariance)
        fills.append(filled)
        with np.errstate(divide="ignore"):
            logs.append(np.log(weight) + log_density)
    scores = np.array(logs).T
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    expected = np.einsum("ik,kij->ij", probabilities, np.array(fills))
    return np.where(seen, x, expected), probabilities


def factors_given_observed(
    x: FloatArray,
    seen: BoolArray,
    mean: FloatArray,
    components: FloatArray,
    noise: FloatArray,
) -> FloatArray:
    """Expected factors of rows under factor analysis, (n, k).

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    mean : (p,) array
    components : (k, p) array
        The covariance is ``components' components + diag(noise)``.
    noise : (p,) array
    """
    k = len(components)
    weights = seen / noise
    outer = (components[:, None, :] * components[None, :, :]).reshape(k * k, -1)
    # (I + L_s D_s^-1 L_s') z = L_s D_s^-1 (x_s - mean_s)
    systems = np.eye(k) + (weights @ outer.T).reshape(-1, k, k)
    right = (weights * np.where(seen, x - mean, 0.0)) @ components.T
    return np.asarray(np.linalg.solve(systems, right[:, :, None])[:, :, 0])


def _batches(seen: BoolArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows with equally many gaps, and the places of these, (r, g)."""
    counts = (~seen).sum(axis=1)
    for g in np.unique(counts[counts > 0]):
        alike = np.flatnonzero(counts == g)
        for rows in np.array_split(alike, -(-len(alike) * int(g) ** 2 // _LARGEST)):
            yield rows, np.nonzero(~seen[rows])[1].reshape(len(rows), g)


# --- Mean and covariance of rows with missing entries: the normal density of largest likelihood.

_ROWS, _CELLS = 256, 4_000_000  # rows at a time, and numbers of their matrices


@dataclass(frozen=True, eq=False)
class NormalMoments:
    """A normal density, as estimated from rows with gaps.

    Attributes
    ----------
    mean : (p,) array
    covariance : (p, p) array
        Of the largest likelihood: divided by n, with what missing entries may be expected to vary.
    n_iter : int
    converged : bool
    """

    mean: FloatArray
    covariance: FloatArray
    n_iter: int
    converged: bool


def normal_moments(x: FloatArray, *, tol: float = 1e-6, max_iter: int = 200) -> NormalMoments:
    """Estimate mean and covariance matrix of rows with missing entries.

    Parameters
    ----------
    x : (n, p) array
        NaN where an entry is missing.
    tol : float
        Iterations end when no entry of the covariance matrix changes by more than this, in units of
        the standard deviations of its columns.
    max_iter : int

    Raises
    ------
    DataError
        A column has no value.
    """
    x = np.asarray(x, dtype=np.float64)
    n, p = x.shape
    gaps = np.isnan(x)
    if not n or gaps.all(axis=0).any():
        raise DataError("a column has no value at all: leave it out")
    if not gaps.any():
        mean = x.mean(axis=0)
        return NormalMoments(mean, _products(x - mean) / n, 0, True)
    mean, spread = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    unit = np.where(spread > 0, spread, 1.0)
    z = (x - mean) / unit
    centre, covariance = np.zeros(p), np.diag((spread > 0).astype(float))
    rows = np.argsort(gaps.sum(axis=1), kind="stable")[int((~gaps.any(axis=1)).sum()) :]
    n_iter, converged = 0, False
    while n_iter < max_iter and not converged:
        n_iter += 1
        filled, more = _expected(z, rows, centre, covariance, n / (n + p))
        centre = filled.mean(axis=0)
        # expected products: those of expected values, plus their covariances
        after = (_products(filled - centre) + more) / n
        converged = bool(np.abs(after - covariance).max() <= tol)
        covariance = after
    units = np.outer(unit, unit)
    return NormalMoments(mean + unit * centre, covariance * units, n_iter, converged)


def _products(x: FloatArray) -> FloatArray:
    found = x.T @ x
    return np.asarray((found + found.T) / 2)


def _expected(
    z: FloatArray,
    rows: NDArray[np.int64],
    centre: FloatArray,
    covariance: FloatArray,
    share: float,
) -> tuple[FloatArray, FloatArray]:
    """Rows with expected values in their gaps, and the sum of the covariances of these values.

    With K the inverse of the covariance matrix, gaps g have the covariance matrix ``K_gg^-1`` given
    the other entries s, and the mean ``centre_g - K_gg^-1 K_gs (z_s - centre_s)``.

    Parameters
    ----------
    z : (n, p) array
    rows : int array
        Rows with gaps, those with the fewest first.
    centre, covariance : arrays
    share : float
        Factor of the covariances.
    """
    varies = np.diag(covariance) > 0
    # smaller by n / (n + p), the diagonal kept: the departure named above
    used = share * covariance + np.diag(np.where(varies, (1 - share) * np.diag(covariance), 1.0))
    precision = np.linalg.inv(used)
    filled, more = np.array(z), np.zeros_like(used)
    start = 0
    while start < len(rows):
        some = rows[start : start + _ROWS]
        widest = int(np.isnan(z[some[-1]]).sum())
        some = some[: max(1, _CELLS // widest**2)]
        gaps = np.isnan(z[some])
        at = np.argsort(~gaps, axis=1, kind="stable")[:, : int(gaps.sum(axis=1).max())]
        own = np.take_along_axis(gaps, at, axis=1)  # the rest of a line fills it up
        both = own[:, :, None] & own[:, None, :]
        block = np.where(both, precision[at[:, :, None], at[:, None, :]], 0.0)
        spread = np.linalg.inv(block + np.eye(at.shape[1]) * ~own[:, :, None])
        left = np.where(gaps, 0.0, z[some] - centre)
        pull = np.take_along_axis(left @ precision, at, axis=1) * own
        expected = centre[at] - np.einsum("ijk,ik->ij", spread, pull)
        line = np.broadcast_to(some[:, None], at.shape)
        filled[line[own], at[own]] = expected[own]
        known = both & varies[at][:, :, None] & varies[at][:, None, :]
        pairs = np.broadcast_arrays(at[:, :, None], at[:, None, :])
        np.add.at(more, (pairs[0][known], pairs[1][known]), spread[known])
        start += len(some)
    return filled, (more + more.T) / 2


# --- Errors of entries that are predicted from the rest of their row, from second moments alone.

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


def conditional_entry_errors(
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
    # M = S + (m - mean)(m - mean)'
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

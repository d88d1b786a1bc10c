"""Mean and covariance of rows with missing entries: the normal density of largest likelihood.

Expectation and maximisation in turn: missing entries are replaced by what is expected of them given
the others of their row, and their products by the expected products. Where entries are missing at
random (whether one is missing may depend on what is observed), this is consistent, and the matrix
is positive semidefinite, neither of which holds of moments over pairs of observed columns. Complete
rows give their own moments.

Source: Little and Rubin, *Statistical Analysis with Missing Data*, 2nd edition (2002), section
11.2.1. Departure: what is expected of missing entries rests on covariances that are made smaller by
n / (n + p), else few rows of many columns predict their own noise; the limit of many rows is the
same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError

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

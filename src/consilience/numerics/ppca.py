"""Probabilistic principal components: the model, its closed form, conditional means.

A row is ``x = mean + W z + e`` with ``z ~ N(0, I_k)`` and ``e ~ N(0, noise I_p)``. With complete
rows the maximum of the likelihood is a formula of the mean and the covariance matrix, so that sums
and sums of products are all that it needs. With missing entries see `ppca_em.py`.

Source: Tipping and Bishop, *Probabilistic principal component analysis*, JRSS B 61 (1999), section
3. Departures: the noise variance is at least ``NOISE_FLOOR`` times the largest eigenvalue, so that
conditional means exist where the rows are fewer than the columns, and rank p is rank p - 1 with a
column of zeros: both give the covariance matrix of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.low_rank import flip_signs
from consilience.numerics.ranks import check_ranks

NOISE_FLOOR = 1e-10  # of the largest eigenvalue: conditional means keep about six digits
_CELLS = 2_000_000  # numbers of the matrices of a batch of rows
_LOG_2PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class PPCAModel:
    """Normal density of rows with k common directions and one noise variance.

    Attributes
    ----------
    mean : (p,) array
    directions : (p, k) array
        Orthonormal columns; the entry of the largest size in each is positive.
    variances : (k,) array
        Variances along them without noise, decreasing: ``W = directions sqrt(variances)``.
    noise : float
        Noise variance of an entry, above 0.
    """

    mean: FloatArray
    directions: FloatArray
    variances: FloatArray
    noise: float

    @property
    def rank(self) -> int:
        """Number of directions."""
        return len(self.variances)

    @property
    def loadings(self) -> FloatArray:
        """W, (p, k)."""
        return self.directions * np.sqrt(self.variances)

    def covariance(self) -> FloatArray:
        """Covariance matrix of a row, (p, p)."""
        common = (self.directions * self.variances) @ self.directions.T
        return np.asarray(common + self.noise * np.eye(len(self.mean)))

    def precision(self) -> FloatArray:
        """Inverse of the covariance matrix, (p, p)."""
        shares = self.variances / (self.variances + self.noise)
        common = (self.directions * shares) @ self.directions.T
        return np.asarray((np.eye(len(self.mean)) - common) / self.noise)

    # ------------------------------------------------------------------ given what is observed

    def scores(self, x: FloatArray) -> FloatArray:
        """Expected coordinates along `directions` given the observed entries, (n, k).

        A row with nothing observed has the coordinates 0: those of the mean.

        Parameters
        ----------
        x : (n, p) array
            Rows, with NaN where an entry is missing.
        """
        return np.concatenate([z for _, z, _ in self._posterior(x)] or [np.zeros((0, self.rank))])

    def reconstruct(self, x: FloatArray) -> FloatArray:
        """Expected rows without their noise given the observed entries, (n, p).

        At a missing entry this is its conditional mean, as the noise of entries is independent:
        ``mean_m + C_mo C_oo^-1 (x_o - mean_o)`` with C the covariance matrix.

        Parameters
        ----------
        x : (n, p) array
            Rows, with NaN where an entry is missing.
        """
        return np.asarray(self.mean + self.scores(x) @ self.directions.T)

    def log_likelihood(self, x: FloatArray) -> FloatArray:
        """Logarithm of the density of the observed entries of each row, (n,).

        Parameters
        ----------
        x : (n, p) array
            Rows, with NaN where an entry is missing.
        """
        parts = []
        for chunk, z, log_det in self._posterior(x):
            observed = ~np.isnan(chunk)
            r = np.where(observed, chunk - self.mean, 0.0)
            # r' C_oo^-1 r, from the residual where nothing is lost to rounding: with the expected
            # z it is |r - W z|^2 / noise + |z|^2, the minimum over z.
            left = np.where(observed, r - z @ self.directions.T, 0.0)
            squares = (left**2).sum(axis=1) / self.noise
            kept = self.variances > 0
            squares += (z[:, kept] ** 2 / self.variances[kept]).sum(axis=1)
            m = observed.sum(axis=1)
            parts.append(-0.5 * (m * _LOG_2PI + m * np.log(self.noise) + log_det + squares))
        return np.concatenate(parts or [np.zeros(0)])

    def _posterior(self, x: FloatArray) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Rows in batches, their expected coordinates and ``log |I + W_o'W_o / noise|``."""
        x = np.asarray(x, dtype=np.float64)
        k, p = self.rank, len(self.mean)
        if x.ndim != 2 or x.shape[1] != p:
            raise DataError(f"rows must have the model's {p} columns, but have shape {x.shape}")
        w = self.loadings / np.sqrt(self.noise)
        outer = (w[:, :, None] * w[:, None, :]).reshape(p, k * k)
        size = max(1, _CELLS // max(1, k * k, p))
        for start in range(0, len(x), size):
            chunk = x[start : start + size]
            observed = ~np.isnan(chunk)
            r = np.where(observed, chunk - self.mean, 0.0)
            gram = (observed.astype(np.float64) @ outer).reshape(len(chunk), k, k) + np.eye(k)
            z = np.linalg.solve(gram, (r @ w)[:, :, None])[:, :, 0]
            log_det = np.linalg.slogdet(gram)[1] if k else np.zeros(len(chunk))
            yield chunk, z * np.sqrt(self.variances / self.noise), log_det


# ------------------------------------------------------------------ complete rows


def from_moments(mean: FloatArray, covariance: FloatArray, n: int, rank: int) -> PPCAModel:
    """Model of the largest likelihood for complete rows with these moments.

    Parameters
    ----------
    mean : (p,) array
    covariance : (p, p) array
        Sums of products of deviations from the mean **divided by n**, positive semidefinite.
    n : int
        Rows.
    rank : int
        From 0 to min(n, p).

    Raises
    ------
    ParameterError
        A rank is out of its range.
    DataError
        The moments are not finite, not symmetric or not positive semidefinite.

    Notes
    -----
    Tipping and Bishop (1999), equations 7 and 8.
    """
    return path_from_moments(mean, covariance, n, [rank])[0]


def path_from_moments(
    mean: FloatArray, covariance: FloatArray, n: int, ranks: Sequence[int]
) -> list[PPCAModel]:
    """Models of several ranks from one decomposition, as `from_moments`.

    Parameters
    ----------
    mean : (p,) array
    covariance : (p, p) array
        Divided by n.
    n : int
    ranks : sequence of int

    Raises
    ------
    ParameterError, DataError
        As in `from_moments`.
    """
    mean = np.asarray(mean, dtype=np.float64)
    covariance = np.asarray(covariance, dtype=np.float64)
    p = len(mean)
    checked = check_ranks(ranks, n, p)
    values, vectors = _decomposed(covariance, p)
    if values[-1] < -1e-8 * max(values[0], 0.0):
        raise DataError(
            "the covariance matrix is not positive semidefinite, as happens where pairs of columns "
            "are observed in different rows: repair it first (nearest_covariance)"
        )
    return [_truncated(mean, np.maximum(values, 0.0), vectors, rank) for rank in checked]


def nearest_covariance(covariance: FloatArray) -> tuple[FloatArray, float]:
    """Positive semidefinite matrix nearest to a symmetric one, and how much was taken away.

    Parameters
    ----------
    covariance : (p, p) array

    Returns
    -------
    (p, p) array
        The same matrix where no eigenvalue is negative.
    float
        Sum of the sizes of negative eigenvalues over that of all eigenvalues.

    Raises
    ------
    DataError
        The matrix is not finite or not symmetric.
    """
    covariance = np.asarray(covariance, dtype=np.float64)
    values, vectors = _decomposed(covariance, len(covariance))
    if values[-1] >= 0:
        return covariance, 0.0
    kept = np.maximum(values, 0.0)
    return (vectors * kept) @ vectors.T, float((kept - values).sum() / np.abs(values).sum())


def principal(mean: FloatArray, loadings: FloatArray, noise: float) -> PPCAModel:
    """Model of any loadings, (p, k): the likelihood does not see a rotation of them.

    Parameters
    ----------
    mean : (p,) array
    loadings : (p, k) array
    noise : float
    """
    u, s, _ = np.linalg.svd(loadings, full_matrices=False)
    k = loadings.shape[1]
    directions, variances = np.zeros(loadings.shape), np.zeros(k)
    directions[:, : len(s)], variances[: len(s)] = u, s**2
    return PPCAModel(np.asarray(mean), _flipped(directions), variances, float(noise))


def floor_of(largest: float) -> float:
    """Smallest noise variance beside a largest eigenvalue.

    Parameters
    ----------
    largest : float
    """
    return max(NOISE_FLOOR * largest, float(np.finfo(np.float64).tiny) ** 0.5)


def _decomposed(covariance: FloatArray, p: int) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues, decreasing, and vectors of a symmetric matrix."""
    if covariance.shape != (p, p) or p == 0:
        raise DataError(f"the covariance matrix must be {p} x {p}, but is {covariance.shape}")
    if not np.isfinite(covariance).all():
        raise DataError("the covariance matrix has entries that are not finite numbers")
    if np.abs(covariance - covariance.T).max() > 1e-8 * np.abs(covariance).max():
        raise DataError("the covariance matrix is not symmetric")
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return values[::-1], vectors[:, ::-1]


def _truncated(mean: FloatArray, values: FloatArray, vectors: FloatArray, rank: int) -> PPCAModel:
    rest = values[rank:] if rank < len(values) else values[-1:]
    noise = max(float(rest.mean()), floor_of(float(values[0])))
    variances = np.maximum(values[:rank] - noise, 0.0)
    return PPCAModel(mean, _flipped(vectors[:, :rank]), variances, noise)


def _flipped(directions: FloatArray) -> FloatArray:
    """The entry of the largest size in each column is positive."""
    return flip_signs(directions, np.zeros(directions.shape[1]), directions)[2]

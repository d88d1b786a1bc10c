"""Probabilistic principal components: the model, its closed form, conditional means, and EM.

A row is ``x = mean + W z + e`` with ``z ~ N(0, I_k)`` and ``e ~ N(0, noise I_p)``. With complete
rows the maximum of the likelihood is a formula of the mean and the covariance matrix, so that sums
and sums of products are all that it needs. With missing entries see `ppca_path`.

Source: Tipping and Bishop, *Probabilistic principal component analysis*, JRSS B 61 (1999), section
3. Departures: the noise variance is at least ``NOISE_FLOOR`` times the largest eigenvalue, so that
conditional means exist where the rows are fewer than the columns, and rank p is rank p - 1 with a
column of zeros: both give the covariance matrix of the sample.

With missing entries `ppca_path` maximises the likelihood of the observed entries, which is right
where entries are missing at random. Expectations of the hidden coordinates of a row follow from
its observed entries alone; given them, each column is a regression on the coordinates. Between
steps the coordinates are brought back to mean 0 and covariance I, and the loadings take up what
was removed: the likelihood rises in every step, and more so than without.

Source: Tipping and Bishop, *Probabilistic principal component analysis*, JRSS B 61 (1999), appendix
B; the step in between is parameter expansion as in Liu, Rubin and Wu, *Parameter expansion to
accelerate EM*, Biometrika 85 (1998). Departure: the noise variance is bounded from below as
above, since the likelihood has no maximum where a rank fits the observed entries exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.kernels.low_rank import LowRankFit, check_ranks, check_steps, flip_signs
from consilience.exceptions import DataError
from consilience.numerics.entries import Entries
from consilience.numerics.random import stream

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


TOL = 1e-5
MAX_ITER = 500
_SPARSE = 0.2  # share observed below which products go over the observed entries only


@dataclass(frozen=True, eq=False)
class PPCAFit:
    """A model and the rows that it was fitted to.

    Attributes
    ----------
    model : PPCAModel
    scores : (n, k) array
        Expected coordinates along the model's directions.
    log_likelihood : float
        Of all observed entries.
    n_iter : int
    converged : bool
    """

    model: PPCAModel
    scores: FloatArray
    log_likelihood: float
    n_iter: int
    converged: bool

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.model.rank

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Expected entries without their noise, (m,): conditional means of missing ones.

        Parameters
        ----------
        rows, columns : (m,) array of int
        """
        k = self.rank
        fit = LowRankFit(self.scores, np.ones(k), self.model.directions, 0.0)
        return fit.at(rows, columns) + self.model.mean[columns]


def ppca_path(
    entries: Entries, ranks: Sequence[int], *, tol: float = TOL, max_iter: int = MAX_ITER
) -> Iterator[PPCAFit]:
    """Models of increasing rank, each started from the one before.

    Parameters
    ----------
    entries : Entries
        As they are: the model has a mean of its own.
    ranks : sequence of int
        Increasing, from 0 to min(n, p).
    tol : float
        A fit ends where a step raises the mean log-likelihood of an entry by at most this much.
    max_iter : int
        Steps for each rank.

    Yields
    ------
    PPCAFit
        A column without an entry has the mean of the other columns' means, and no loadings.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    checked = check_ranks(ranks, *entries.shape, increasing=True)
    check_steps(tol, max_iter)
    if entries.complete:
        return _closed_path(entries, checked)
    return _path(entries, checked, tol, max_iter)


def _closed_path(entries: Entries, ranks: list[int]) -> Iterator[PPCAFit]:
    n = entries.shape[0]
    x = entries.values.reshape(entries.shape)
    mean = x.mean(axis=0)
    for model in path_from_moments(mean, (x - mean).T @ (x - mean) / n, n, ranks):
        total = float(model.log_likelihood(x).sum())
        yield PPCAFit(model, model.scores(x), total, 0, True)


def _path(entries: Entries, ranks: list[int], tol: float, max_iter: int) -> Iterator[PPCAFit]:
    data = _Data.of(entries)
    state = data.start()
    rng = stream(0, "ppca")
    for rank in ranks:
        wanted = min(rank, max(data.shape[1] - 1, 0))  # rank p has the density of rank p - 1
        extra = wanted - state.w.shape[1]
        if extra > 0:
            new = rng.standard_normal((len(state.w), extra)) * np.sqrt(0.1 * state.noise)
            state = _State(
                state.mean, np.hstack([state.w, new * (data.counts > 0)[:, None]]), state.noise
            )
        state, n_iter, converged = _climb(data, state, tol, max_iter)
        yield data.fit(state, rank, n_iter, converged)


@dataclass(frozen=True, eq=False)
class _State:
    """Mean in centred units, loadings and noise variance."""

    mean: FloatArray
    w: FloatArray
    noise: float


@dataclass(frozen=True, eq=False)
class _Data:
    """Observed entries as a matrix of zeros and ones, and one of their centred values."""

    entries: Entries
    shape: tuple[int, int]
    mask: Any
    values: Any
    squares: FloatArray
    counts: IntArray
    rows: IntArray
    row_squares: FloatArray
    centre: FloatArray

    @classmethod
    def of(cls, entries: Entries) -> _Data:
        """Entries less the means of their columns, with squares by column and row."""
        counts = entries.column_counts
        sums = np.bincount(entries.columns, weights=entries.values, minlength=entries.shape[1])
        seen = counts > 0
        centre = np.where(seen, sums / np.maximum(counts, 1), 0.0)
        centre[~seen] = centre[seen].mean()
        rest = entries.values - centre[entries.columns]
        squares = np.zeros(entries.shape[1])
        np.add.at(squares, entries.columns, rest**2)
        by_row = np.zeros(entries.shape[0])
        np.add.at(by_row, entries.rows, rest**2)
        rows = np.flatnonzero(entries.row_counts)
        mask = entries.with_values(np.ones(len(rest))).csr()[rows]
        values = entries.with_values(rest).csr()[rows]
        if entries.density > _SPARSE:
            mask, values = mask.toarray(), values.toarray()
        return cls(
            entries, entries.shape, mask, values, squares, counts, rows, by_row[rows], centre
        )

    @property
    def floor(self) -> float:
        """Smallest noise variance: no eigenvalue is above the sum of the variances."""
        return floor_of(float((self.squares / np.maximum(self.counts, 1)).sum()))

    def start(self) -> _State:
        """Rank 0."""
        p = self.shape[1]
        noise = max(float(self.squares.sum() / self.entries.n_observed), self.floor)
        return _State(np.zeros(p), np.zeros((p, 0)), noise)

    def fit(self, state: _State, rank: int, n_iter: int, converged: bool) -> PPCAFit:
        """The model in the units of the entries, its scores, its likelihood."""
        p, k = self.shape[1], state.w.shape[1]
        loadings = np.hstack([state.w, np.zeros((p, rank - k))])
        model = principal(state.mean + self.centre, loadings, state.noise)
        turned = _State(state.mean, model.loadings[:, :k], state.noise)
        scores = np.zeros((self.shape[0], rank))
        total = 0.0
        for part, z, _, log_likelihood in _expected(self, turned):
            scores[self.rows[part], :k] = z * np.sqrt(model.variances[:k])
            total += log_likelihood
        return PPCAFit(model, scores, total, n_iter, converged)


# ------------------------------------------------------------------ steps


def _climb(data: _Data, state: _State, tol: float, max_iter: int) -> tuple[_State, int, bool]:
    """Steps of one rank until the likelihood stands still."""
    if state.w.shape[1] == 0:
        return state, 0, True  # column means and one variance are the maximum already
    before = -np.inf
    for n_iter in range(1, max_iter + 1):
        new, found = _step(data, state)
        if found - before <= tol * data.entries.n_observed:
            return state, n_iter, True
        state, before = new, found
    return state, max_iter, False


def _step(data: _Data, state: _State) -> tuple[_State, float]:
    """State after one step, and the log-likelihood of the one before it."""
    (p, k), n = state.w.shape, len(data.rows)
    seconds, firsts = np.zeros((p, (k + 1) ** 2)), np.zeros((p, k + 1))
    spread, log_likelihood = np.zeros((k + 1, k + 1)), 0.0
    for part, z, covariance, found in _expected(data, state):
        with_one = np.hstack([z, np.ones((len(z), 1))])
        second = with_one[:, :, None] * with_one[:, None, :]
        second[:, :k, :k] += covariance
        seconds += data.mask[part].T @ second.reshape(len(z), -1)
        firsts += data.values[part].T @ with_one
        spread += second.sum(axis=0)
        log_likelihood += found
    seen = data.counts > 0
    beta = np.zeros((p, k + 1))
    systems = seconds[seen].reshape(-1, k + 1, k + 1)
    beta[seen] = np.linalg.solve(systems, firsts[seen][:, :, None])[:, :, 0]
    left = float((data.squares - (beta * firsts).sum(axis=1)).sum())
    middle = spread[:k, k] / n
    root = np.linalg.cholesky(spread[:k, :k] / n - np.outer(middle, middle))
    w, mean = beta[:, :k], beta[:, k]
    noise = max(left / data.entries.n_observed, data.floor)
    return _State(mean + w @ middle, w @ root, noise), log_likelihood


def _expected(data: _Data, state: _State) -> Iterator[tuple[slice, FloatArray, FloatArray, float]]:
    """For batches of rows: expected z, its covariances, log-likelihood of what is observed.

    Notes
    -----
    With ``M = W_o'W_o + noise I`` and ``b = W_o'(x_o - mean_o)``: ``z = M^-1 b``, covariance
    ``noise M^-1``, and ``r' C^-1 r = (r'r - b'z) / noise``, ``|C| = noise^(o - k) |M|``.
    """
    p, k = state.w.shape
    outer = (state.w[:, :, None] * state.w[:, None, :]).reshape(p, k * k)
    shifted = state.w * state.mean[:, None]
    size = max(1, _CELLS // max(1, k * k, p))
    for begin in range(0, len(data.rows), size):
        part = slice(begin, begin + size)
        mask, values = data.mask[part], data.values[part]
        gram = (mask @ outer).reshape(mask.shape[0], k, k) + state.noise * np.eye(k)
        inverse = np.linalg.inv(gram)
        b = values @ state.w - mask @ shifted
        z = np.einsum("nij,nj->ni", inverse, b)
        squares = data.row_squares[part].sum() - 2.0 * (values @ state.mean).sum()
        squares += (mask @ state.mean**2).sum() - (b * z).sum()
        m = float(mask.sum())
        log_det = np.linalg.slogdet(gram)[1].sum() + (m - k * len(z)) * np.log(state.noise)
        yield (
            part,
            z,
            state.noise * inverse,
            float(-0.5 * (m * _LOG_2PI + log_det + squares / state.noise)),
        )

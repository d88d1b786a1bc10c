"""Matrices of a rank that are near the observed entries: fill, truncate, repeat.

Lowers ``1/2 |P_O(X - M)|_F^2`` over matrices of rank k at most, where P_O keeps the observed
entries. Fill the missing entries from the present M, the first time with zeros, truncate the
singular value decomposition of the filled matrix to k values, repeat.

Nothing bounds the missing entries, so that the minimum itself may predict far worse than zeros
where the rank is above what the entries can bear, or where they are few for some rows: stopping
early is part of the method, and so is the start. The default tolerance is that of the source's
software (a relative change of 1e-5 in squares). A fit goes on beyond it while its steps are not
small beside the residual either: then what is left is no noise, and a table without any is fitted
exactly. Each rank starts from zero; ``warm=True`` starts from the rank before, which needs fewer
truncations, but hands on what ran away.

Source: Mazumder, Hastie and Tibshirani, *Spectral regularization algorithms for learning large
incomplete matrices*, JMLR 11 (2010), section 5 (hard thresholds), and Ya Le's Stanford thesis,
chapter 3. Departures: the matrix that is filled is extrapolated by Nesterov's momentum, which
starts again wherever the criterion rises; large matrices are never filled, but multiplied as a
sparse residual plus factors, with power iterations in place of decompositions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from consilience.arrays import FloatArray
from consilience.completion.kernels.low_rank import (
    LowRankFit,
    check_ranks,
    check_steps,
    flip_signs,
    thin_svd,
)
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.random import stream

TOL = 3e-3  # in squares 1e-5
MAX_ITER = 500
_SMALL_SIDE = 400  # up to here a Gram matrix is decomposed
_DENSE_SIDE = 1500  # up to here for matrices that are mostly observed
_POWERS = 8  # power iterations for a new direction
_OF_RESIDUAL = 0.03  # a larger step is no noise: what is left still falls
_EXACT = 1e-8  # ... down to this share of the norm
_ZERO = 1e-12  # singular values below this share of the largest are rounding errors


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix ``a b'``, and its values at the observed entries.

    Parameters
    ----------
    a : (n, k) array
    b : (p, k) array
    at : (m,) array
    """

    a: FloatArray
    b: FloatArray
    at: FloatArray

    @property
    def square(self) -> float:
        """Sum of squares of all entries."""
        return float(((self.a.T @ self.a) * (self.b.T @ self.b)).sum())


class _Engine(Protocol):
    """How a matrix is filled and truncated."""

    def truncated(self, now: Product, before: Product, ahead: float, rank: int) -> Product:
        """Truncation of the matrix filled from ``now + ahead (now - before)``."""

    def distance(self, new: Product, now: Product, before: Product, ahead: float) -> float:
        """Frobenius distance of a matrix from the one that filled."""


def hard_path(
    entries: Entries,
    ranks: Sequence[int],
    *,
    tol: float = TOL,
    max_iter: int = MAX_ITER,
    warm: bool = False,
    start: LowRankFit | None = None,
    solver: str = "auto",
) -> Iterator[LowRankFit]:
    """Fits of increasing rank.

    Parameters
    ----------
    entries : Entries
        Centred, if that is wanted.
    ranks : sequence of int
        Increasing, from 0 to min(n, p).
    tol : float
        A fit ends where truncating moves the matrix that filled by at most this share of its norm,
        and by at most .03 of the norm of the residual or 1e-8 of its own.
    max_iter : int
        Truncations for each rank.
    warm : bool
        Whether a rank starts from the one before it, or from zero.
    start : LowRankFit, optional
        Where the first rank of a warm path starts.
    solver : {"auto", "dense", "factored"}
        "dense" decomposes the smaller Gram matrix of the filled matrix, "factored" never fills it;
        "auto" goes by the shorter side and the share observed.

    Yields
    ------
    LowRankFit
        Of a lower rank than asked for where further singular values are zero.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    checked = check_ranks(ranks, *entries.shape, increasing=True)
    check_steps(tol, max_iter)
    if solver not in ("auto", "dense", "factored"):
        raise ParameterError.of("solver", '"auto", "dense" or "factored"', solver)
    if entries.complete and solver != "factored":
        return _complete_path(entries, checked)
    return _path(entries, checked, tol, max_iter, warm, start, solver)


def _complete_path(entries: Entries, ranks: list[int]) -> Iterator[LowRankFit]:
    """Truncations of one decomposition."""
    x = entries.values.reshape(entries.shape)
    u, s, v = thin_svd(x, max(ranks, default=0))
    kept = int((s > _ZERO * s[0]).sum()) if len(s) else 0
    for rank in ranks:
        k = min(rank, kept)
        left = 0.5 * max(float((x**2).sum() - (s[:k] ** 2).sum()), 0.0)
        yield LowRankFit(u[:, :k], s[:k], v[:, :k], left, n_iter=1, n_svd=int(rank == ranks[0]))


def _path(
    entries: Entries,
    ranks: list[int],
    tol: float,
    max_iter: int,
    warm: bool,
    start: LowRankFit | None,
    solver: str,
) -> Iterator[LowRankFit]:
    n, p = entries.shape
    engine = _Dense(entries) if _is_dense(entries, solver) else _Factored(entries)
    now = zero = Product(np.zeros((n, 0)), np.zeros((p, 0)), np.zeros(entries.n_observed))
    if warm and start is not None:
        now = Product(start.scores(), start.v, start.at(entries.rows, entries.columns))
    for rank in ranks:
        now = now if warm else zero
        if rank == 0:
            yield fit_of(now.a[:, :0], now.b[:, :0], _half_square(entries.values))
            continue
        now, n_iter, converged = _descend(entries, engine, now, rank, tol, max_iter)
        objective = _half_square(entries.values - now.at)
        yield fit_of(now.a, now.b, objective, n_iter=n_iter, n_svd=n_iter, converged=converged)


def _descend(
    entries: Entries, engine: _Engine, now: Product, rank: int, tol: float, max_iter: int
) -> tuple[Product, int, bool]:
    """Truncations of one rank until they stand still."""
    before, pace, value = now, 1.0, np.inf
    for n_iter in range(1, max_iter + 1):
        faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * pace**2))
        ahead = (pace - 1.0) / faster
        new = engine.truncated(now, before, ahead, rank)
        found = _half_square(entries.values - new.at)
        if found > value and ahead > 0:
            pace, before = 1.0, now
            continue
        step = engine.distance(new, now, before, ahead)
        pace, before, now, value = faster, now, new, found
        if has_settled(step, np.sqrt(new.square), np.sqrt(2.0 * found), tol):
            return now, n_iter, True
    return now, max_iter, False


def has_settled(step: float, norm: float, residual: float, tol: float) -> bool:
    """Whether a descent may end: by its last step, beside the matrix and beside what is left.

    Parameters
    ----------
    step : float
        By how much the matrix moves, Frobenius norm; or its gradient.
    norm : float
        Of the matrix.
    residual : float
        Norm of the differences from the observed entries.
    tol : float
        Largest step as a share of the norm.
    """
    return step <= tol * norm and (step <= _OF_RESIDUAL * residual or step <= _EXACT * norm)


def _is_dense(entries: Entries, solver: str) -> bool:
    if solver != "auto":
        return solver == "dense"
    side = min(entries.shape)
    return side <= _SMALL_SIDE or (side <= _DENSE_SIDE and entries.density > 0.3)


def _half_square(values: FloatArray) -> float:
    return 0.5 * float(values @ values)


def fit_of(a: FloatArray, b: FloatArray, objective: float, **found: Any) -> LowRankFit:
    """The matrix ``a b'`` by its singular vectors.

    Parameters
    ----------
    a : (n, k) array
    b : (p, k) array
    objective : float
    **found
        Other fields of `LowRankFit`.
    """
    if a.shape[1] == 0:
        return LowRankFit(a, np.zeros(0), b, objective, **found)
    qa, ra = np.linalg.qr(a)
    qb, rb = np.linalg.qr(b)
    u, s, vt = np.linalg.svd(ra @ rb.T)
    kept = s > _ZERO * s[0]
    u, s, v = flip_signs(qa @ u[:, : len(s)][:, kept], s[kept], qb @ vt[: len(s)][kept].T)
    return LowRankFit(u, s, v, objective, **found)


# ------------------------------------------------------------------ engines


class _Dense:
    """Fills the matrix and decomposes its smaller Gram matrix."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.seen = entries.mask()
        self.values = np.zeros(entries.shape)
        self.values[entries.rows, entries.columns] = entries.values
        self.filler = np.zeros(entries.shape)

    def truncated(self, now: Product, before: Product, ahead: float, rank: int) -> Product:
        from scipy.linalg import eigh

        self.filler = (now.a * (1.0 + ahead)) @ now.b.T
        if ahead > 0:
            self.filler -= (before.a * ahead) @ before.b.T
        filled = np.where(self.seen, self.values, self.filler)
        tall = filled.shape[0] >= filled.shape[1]
        gram = filled.T @ filled if tall else filled @ filled.T
        leading = [len(gram) - rank, len(gram) - 1]
        own = np.asarray(eigh(gram, subset_by_index=leading)[1][:, ::-1])
        a, b = (filled @ own, own) if tall else (own, filled.T @ own)
        self.found = a @ b.T
        return Product(a, b, self.found[self.entries.rows, self.entries.columns])

    def distance(self, new: Product, now: Product, before: Product, ahead: float) -> float:
        return float(np.linalg.norm(self.found - self.filler))


class _Factored:
    """Multiplies with a sparse residual plus factors; warm power iterations."""

    def __init__(self, entries: Entries) -> None:
        from scipy.sparse import csr_array

        self.entries = entries
        self.residual = csr_array(entries.csr(), copy=True)
        self.rng = stream(0, "hard-impute")

    def truncated(self, now: Product, before: Product, ahead: float, rank: int) -> Product:
        left = np.hstack([now.a * (1.0 + ahead), before.a * -ahead])
        right = np.hstack([now.b, before.b])
        self.residual.data = self.entries.values - (1.0 + ahead) * now.at + ahead * before.at
        across = self.residual.T
        extra = max(rank - now.b.shape[1], 0)
        v = np.hstack([now.b[:, :rank], self.rng.standard_normal((len(now.b), extra))])
        v = np.linalg.qr(v)[0]
        for _ in range(_POWERS if extra else 1):
            u = np.linalg.qr(self.residual @ v + left @ (right.T @ v))[0]
            v = np.linalg.qr(across @ u + right @ (left.T @ u))[0]
        a = self.residual @ v + left @ (right.T @ v)
        found = LowRankFit(a, np.ones(rank), v, 0.0)
        return Product(a, v, found.at(self.entries.rows, self.entries.columns))

    def distance(self, new: Product, now: Product, before: Product, ahead: float) -> float:
        left = np.hstack([new.a, now.a * -(1.0 + ahead), before.a * ahead])
        right = np.hstack([new.b, now.b, before.b])
        return float(np.linalg.norm(np.linalg.qr(left)[1] @ np.linalg.qr(right)[1].T))


# --- Matrices of a rank that are near the observed entries: a spectral start, then descent.
#
# Minimises ``F(U, V) = min_S 1/2 |P_O(X - U S V')|_F^2`` over pairs of k-dimensional spaces. The
# start is the truncated singular value decomposition of the observed entries with zeros elsewhere,
# after rows and columns with more than twice the average number of entries were left out. Every
# rank has a start of its own. The criterion is that above, and so is what is said there
# about minima that predict badly and about stopping early.
#
# Source: Keshavan, Montanari and Oh, *Matrix completion from a few entries*, IEEE Transactions on
# Information Theory 56 (2010), section I.C, and *Matrix completion from noisy entries*, JMLR 11
# (2010). Departures: gradients are scaled by S (as natural units of the two spaces) and combined to
# conjugate directions, steps begin with the minimiser of the criterion along the tangent, and S
# comes from conjugate gradients in place of a system of k^2 equations.

_DENSE = 0.2  # share observed above which products go over whole matrices
_SLOPE = 1e-4  # share of the promised decrease that a step must keep
_HALVINGS = 30


def optspace_path(
    entries: Entries, ranks: Sequence[int], *, tol: float = TOL, max_iter: int = MAX_ITER
) -> Iterator[LowRankFit]:
    """Fits of increasing rank, each from its own spectral start.

    Parameters
    ----------
    entries : Entries
        Centred, if that is wanted.
    ranks : sequence of int
        Increasing, from 0 to min(n, p).
    tol : float
        A fit ends where the gradient, as a change of the matrix, is at most this share of its norm,
        and at most .03 of the norm of the residual or 1e-8 of its own.
    max_iter : int
        Steps for each rank.

    Yields
    ------
    LowRankFit
        Of a lower rank than asked for where further singular values are zero.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    checked = check_ranks(ranks, *entries.shape, increasing=True)
    check_steps(tol, max_iter)
    return _spectral_path(entries, checked, tol, max_iter)


def _spectral_path(
    entries: Entries, ranks: list[int], tol: float, max_iter: int
) -> Iterator[LowRankFit]:
    places = _Places.of(entries)
    u, v = _spectral(entries, max(ranks, default=0))
    for rank in ranks:
        point = _Point.at(places, u[:, :rank], v[:, :rank], np.zeros((rank, rank)))
        n_iter, converged = 0, True
        if rank:
            point, n_iter, converged = _descend_spaces(places, point, tol, max_iter)
        yield fit_of(
            point.u @ point.s, point.v, point.value, n_iter=n_iter, n_svd=1, converged=converged
        )


def _spectral(entries: Entries, rank: int) -> tuple[FloatArray, FloatArray]:
    """Singular vectors of the trimmed entries with zeros where nothing is observed."""
    n, p = entries.shape
    m = entries.n_observed
    kept = (entries.row_counts <= 2.0 * m / n)[entries.rows]
    kept &= (entries.column_counts <= 2.0 * m / p)[entries.columns]
    trimmed = entries.take(kept)
    if min(n, p) <= _SMALL_SIDE or 2 * rank > min(n, p):
        u, _, v = thin_svd(np.nan_to_num(trimmed.dense()), rank)
        return u, v
    from scipy.sparse.linalg import svds

    first = np.ones(min(n, p)) / np.sqrt(min(n, p))
    u, s, vt = svds(trimmed.csr(), k=max(rank, 1), v0=first)
    order = np.argsort(-s)[:rank]
    return u[:, order], vt[order].T


@dataclass(frozen=True, eq=False)
class _Places:
    """Products of matrices that are zero where nothing is observed."""

    entries: Entries
    mask: FloatArray | None
    values: Any

    @classmethod
    def of(cls, entries: Entries) -> _Places:
        if entries.density <= _DENSE:
            return cls(entries, None, entries.csr())
        return cls(entries, entries.mask().astype(np.float64), np.nan_to_num(entries.dense()))

    def observed(self, a: FloatArray, b: FloatArray) -> Any:
        """``P_O(a b')``."""
        if self.mask is not None:
            return (a @ b.T) * self.mask
        fit = LowRankFit(a, np.ones(a.shape[1]), b, 0.0)
        return self.entries.with_values(fit.at(self.entries.rows, self.entries.columns)).csr()

    def residual(self, a: FloatArray, b: FloatArray) -> Any:
        """``P_O(a b' - X)``."""
        found = self.observed(a, b)
        if self.mask is not None:
            return found - self.values
        found.data = found.data - self.values.data  # scipy's difference would drop exact zeros
        return found


def _inner(a: Any, b: Any) -> float:
    """Sum of products of two matrices of `_Places`."""
    if isinstance(a, np.ndarray):
        return float((a * b).sum())
    return float(a.data @ b.data)  # the same places in the same order


@dataclass(frozen=True, eq=False)
class _Point:
    """Two spaces with their best S, the residual ``P_O(U S V' - X)`` and the criterion."""

    u: FloatArray
    v: FloatArray
    s: FloatArray
    residual: Any
    value: float

    @classmethod
    def at(cls, places: _Places, u: FloatArray, v: FloatArray, s: FloatArray) -> _Point:
        """Best S by conjugate gradients from a guess."""
        s = s.copy()
        residual = places.residual(u @ s, v)
        r = -(u.T @ (residual @ v))
        small = 1e-20 * float(((u.T @ (places.values @ v)) ** 2).sum())
        d, square = r, float((r**2).sum())
        for _ in range(2 * len(s) ** 2 + 20):
            if square <= small:
                break
            ahead = u.T @ (places.observed(u @ d, v) @ v)
            step = square / max(float((d * ahead).sum()), np.finfo(np.float64).tiny)
            s, r = s + step * d, r - step * ahead
            square, last = float((r**2).sum()), square
            d = r + (square / last) * d
        residual = places.residual(u @ s, v)
        return cls(u, v, s, residual, 0.5 * _inner(residual, residual))


def _descend_spaces(
    places: _Places, point: _Point, tol: float, max_iter: int
) -> tuple[_Point, int, bool]:
    """Conjugate directions on the two spaces until the gradient is small."""
    last: tuple[FloatArray, FloatArray, FloatArray, FloatArray, float] | None = None
    for n_iter in range(1, max_iter + 1):
        # ``R V`` and ``R'U`` off the spaces: the gradient as changes of the matrix
        gu = _off(point.residual @ point.v, point.u)
        gv = _off(point.residual.T @ point.u, point.v)
        size = float((gu**2).sum() + (gv**2).sum())
        norm = float(np.linalg.norm(point.s))
        if has_settled(np.sqrt(size), norm, np.sqrt(2.0 * point.value), tol):
            return point, n_iter, True
        inverse = np.linalg.pinv(point.s, rcond=1e-10)
        scaled_u, scaled_v = gu @ inverse, gv @ inverse.T
        du, dv = -scaled_u, -scaled_v
        if last is not None:
            old_u, old_v, before_u, before_v, before = last
            change = float((gu * (gu - _off(before_u, point.u))).sum())
            change += float((gv * (gv - _off(before_v, point.v))).sum())
            share = max(change / before, 0.0)
            du, dv = du + share * _off(old_u, point.u), dv + share * _off(old_v, point.v)
        new = _along(places, point, du, dv, gu, gv)
        if new is None and last is not None:
            last = None  # not downhill: the gradient itself, next time
            continue
        if new is None:
            return point, n_iter, True  # no step lowers the criterion: rounding errors are left
        last = (du, dv, gu, gv, size)
        point = new
    return point, max_iter, False


def _off(x: FloatArray, basis: FloatArray) -> FloatArray:
    return np.asarray(x - basis @ (basis.T @ x))


def _along(
    places: _Places,
    point: _Point,
    du: FloatArray,
    dv: FloatArray,
    gu: FloatArray,
    gv: FloatArray,
) -> _Point | None:
    """A point lower down in a direction, or None."""
    us, vs = point.u @ point.s, point.v @ point.s.T
    tangent = places.observed(np.hstack([du, us]), np.hstack([vs, dv]))
    slope = _inner(point.residual, tangent)
    if not slope < 0:
        return None
    step = -slope / max(_inner(tangent, tangent), np.finfo(np.float64).tiny)
    for _ in range(_HALVINGS):
        new = _Point.at(places, _moved(point.u, step * du), _moved(point.v, step * dv), point.s)
        if new.value <= point.value + _SLOPE * step * slope:
            return new
        step *= 0.5
    return None


def _moved(basis: FloatArray, by: FloatArray) -> FloatArray:
    """Orthonormal basis of ``basis + by``, nearest to it; `by` is off the basis."""
    values, vectors = np.linalg.eigh(np.eye(basis.shape[1]) + by.T @ by)
    return np.asarray((basis + by) @ ((vectors / np.sqrt(values)) @ vectors.T))

"""Matrices of a rank that are near the observed entries: a spectral start, then descent.

Minimises ``F(U, V) = min_S 1/2 |P_O(X - U S V')|_F^2`` over pairs of k-dimensional spaces. The
start is the truncated singular value decomposition of the observed entries with zeros elsewhere,
after rows and columns with more than twice the average number of entries were left out. Every rank
has a start of its own. The criterion is that of `hard_impute.py`, and so is what is said there
about minima that predict badly and about stopping early.

Source: Keshavan, Montanari and Oh, *Matrix completion from a few entries*, IEEE Transactions on
Information Theory 56 (2010), section I.C, and *Matrix completion from noisy entries*, JMLR 11
(2010). Departures: gradients are scaled by S (as natural units of the two spaces) and combined to
conjugate directions, steps begin with the minimiser of the criterion along the tangent, and S comes
from conjugate gradients in place of a system of k^2 equations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.completion.kernels.hard_impute import fit_of, has_settled
from consilience.completion.kernels.low_rank import LowRankFit, check_ranks, check_steps, thin_svd
from consilience.numerics.entries import Entries

TOL = 3e-3  # as of hard imputation: stopping early is part of the method
MAX_ITER = 500
_DENSE = 0.2  # share observed above which products go over whole matrices
_SMALL_SIDE = 400
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
    return _path(entries, checked, tol, max_iter)


def _path(entries: Entries, ranks: list[int], tol: float, max_iter: int) -> Iterator[LowRankFit]:
    places = _Places.of(entries)
    u, v = _spectral(entries, max(ranks, default=0))
    for rank in ranks:
        point = _Point.at(places, u[:, :rank], v[:, :rank], np.zeros((rank, rank)))
        n_iter, converged = 0, True
        if rank:
            point, n_iter, converged = _descend(places, point, tol, max_iter)
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


def _descend(places: _Places, point: _Point, tol: float, max_iter: int) -> tuple[_Point, int, bool]:
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

"""Soft-impute on a filled matrix: accelerated steps, the Gram matrix of the shorter side.

With the fill Z (observed entries kept, the others free) the penalised criterion is the minimum over
the free entries of ``min_M |Z - M|^2 / 2 + alpha |M|_*``, whose gradient is ``Z - M`` there and has
Lipschitz constant 1: soft-impute is the plain gradient method, and is accelerated here.

`dual_value` is a lower bound of the criterion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray
from consilience.completion.kernels import soft_impute_kernels as kernels
from consilience.completion.kernels.low_rank import LowRankFit, flip_signs, thin_svd
from consilience.numerics.entries import Entries


def dual_value(loss: float, cross: float, alpha: float, norm: float) -> float:
    """Dual criterion at the best multiple of a residual.

    The dual of ``|X_O - M_O|^2 / 2 + alpha |M|_*`` is ``<Y, X> - |Y|^2 / 2`` over matrices Y that
    are zero where nothing is observed and have spectral norm at most alpha.

    Parameters
    ----------
    loss : float
        Sum of squared residuals.
    cross : float
        Product of the residual with the observed entries.
    alpha : float
    norm : float
        A bound of the spectral norm of the residual.
    """
    if loss <= 0.0:
        return 0.0
    c = cross / loss
    if norm > 0.0:
        c = min(c, alpha / norm)
    return c * cross - 0.5 * c * c * loss


def relative_gap(objective: float, dual: float) -> float:
    """Duality gap over the criterion; 0 where the criterion is."""
    return max(0.0, 1.0 - dual / objective) if objective > 0.0 else 0.0


_GRAM = 5e-4  # penalties below this times the largest singular value need LAPACK's own values
_STILL = 5  # steps over which the criterion of a capped rank must not change
_NEAR = 5.0  # a cheap gap below this times the tolerance is worth an exact one


@dataclass(eq=False)
class Prox:
    """Singular values of a fill, shrunken, and the map that shrinks it.

    Parameters
    ----------
    s : (k,) array
        After the penalty, positive, decreasing.
    v : (p, k) array
        Right singular vectors.
    weights : (k,) array
        Shrunken over former singular values.
    alpha : float
    capped : bool
        More singular values were above the penalty.
    """

    s: FloatArray
    v: FloatArray
    weights: FloatArray
    alpha: float
    capped: bool


def shrink(z: FloatArray, alpha: float | None, rank: int | None, floor: float = 0.0) -> Prox:
    """Soft-threshold the singular values of a matrix that is at least as long as wide.

    Parameters
    ----------
    z : (n, p) array
    alpha : float or None
        None: the singular value after the first `rank`, so that as many remain.
    rank : int, optional
        Keep at most so many.
    floor : float
        Smallest penalty where `alpha` is None.
    """
    values, vectors = np.linalg.eigh(z.T @ z)
    s, v = np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]
    least = _level(s, alpha, rank, floor)
    if least < _GRAM * s[0]:
        _, s, v = thin_svd(z, accuracy=0.0)
        least = _level(s, alpha, rank, floor)
    above = int((s > least).sum())
    k = above if rank is None else min(above, rank)
    kept = s[:k]
    return Prox(kept - least, v[:, :k], 1.0 - least / kept, least, above > k)


def _level(s: FloatArray, alpha: float | None, rank: int | None, floor: float) -> float:
    if alpha is not None:
        return alpha
    return max(floor, float(s[rank]) if rank is not None and rank < len(s) else 0.0)


class DenseSolver:
    """State of a warm path: the fill and the last two matrices.

    Parameters
    ----------
    entries : Entries
    start : LowRankFit, optional
        The first fill.
    """

    def __init__(self, entries: Entries, start: LowRankFit | None = None) -> None:
        full, seen = np.nan_to_num(entries.dense()), entries.mask().astype(np.float64)
        self.flipped = full.shape[0] < full.shape[1]
        if self.flipped:
            full, seen = np.ascontiguousarray(full.T), np.ascontiguousarray(seen.T)
        self.x, self.seen = full, seen
        if start is None:
            self.new = np.zeros_like(full)
        else:
            dense = start.dense()
            self.new = np.ascontiguousarray(dense.T if self.flipped else dense)
        self.old = self.new.copy()
        self.ends: list[tuple[float, FloatArray]] = []
        self.momentum = 1.0
        self.z = np.empty_like(full)
        self.r = np.empty_like(full)

    def solve(
        self,
        alpha: float | None,
        *,
        tol: float,
        max_iter: int,
        rank: int | None = None,
        floor: float = 0.0,
    ) -> LowRankFit:
        """Fit one penalty, or the smallest penalty with a rank, from where the last one ended.

        Parameters
        ----------
        alpha : float or None
            None: the penalty at which another singular value would enter after `rank`.
        tol : float
            Relative duality gap.
        max_iter : int
        rank : int, optional
        floor : float
            Smallest penalty where `alpha` is None.
        """
        self._begin(alpha)
        before, exact_below, objectives = np.inf, np.inf, [np.inf] * _STILL
        n_svd = 0
        while True:
            prox = shrink(self.z, alpha, rank, floor)
            n_svd += 1
            self.old, self.new = self.new, self.old
            self._apply(prox)
            loss, cross, moved, turned = kernels.weigh(
                self.x, self.seen, self.z, self.new, self.old
            )
            value = 0.5 * loss + prox.alpha * float(prox.s.sum())
            bound = prox.alpha + np.sqrt(moved)
            gap = relative_gap(value, dual_value(loss, cross, prox.alpha, bound))
            if tol < gap <= min(_NEAR * tol, exact_below) and not prox.capped:
                exact_below = 0.5 * gap
                dual = dual_value(loss, cross, prox.alpha, self._norm())
                gap = min(gap, relative_gap(value, dual))
                n_svd += 1
            still = prox.capped and objectives[-_STILL] - value <= tol * value
            steady = alpha is not None or abs(prox.alpha - before) <= 1e-3 * prox.alpha
            converged = steady and (gap <= tol or still)
            objectives.append(value)
            if converged or len(objectives) == max_iter + _STILL:
                break
            before = prox.alpha
            self._ahead(restart=turned > 0.0)
        if alpha is not None:
            self.ends = [*self.ends[-1:], (alpha, self.new.copy())]
        return self._fit(prox, value, len(objectives) - _STILL, n_svd, converged, gap)

    def _begin(self, alpha: float | None) -> None:
        """Go on along the line through the last two fits of a path, as fast as before."""
        if alpha is None:
            self.ends, self.momentum = [], 1.0
        elif len(self.ends) == 2:
            (first, behind), (second, last) = self.ends
            if first > second > alpha:
                share = min(1.0, (second - alpha) / (first - second))
                self.new[:] = last + share * (last - behind)
        self.old[:] = self.new
        kernels.fill(self.x, self.seen, self.new, self.old, 0.0, self.z)

    def _ahead(self, restart: bool) -> None:
        """Next fill by Nesterov's momentum, begun anew where it points uphill."""
        if restart:
            self.momentum = 1.0
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * self.momentum**2))
        beta, self.momentum = (self.momentum - 1.0) / following, following
        kernels.fill(self.x, self.seen, self.new, self.old, beta, self.z)

    def _apply(self, prox: Prox) -> None:
        """The shrunken fill, into ``new``."""
        p = self.z.shape[1]
        k = len(prox.s)
        if 2 * k < p:
            np.matmul((self.z @ prox.v) * prox.weights, prox.v.T, out=self.new)
        else:
            np.matmul(self.z, (prox.v * prox.weights) @ prox.v.T, out=self.new)

    def _norm(self) -> float:
        """Largest singular value of the residual."""
        from scipy.linalg import eigh

        kernels.residual(self.x, self.seen, self.new, self.r)
        p = self.r.shape[1]
        top = eigh(self.r.T @ self.r, eigvals_only=True, subset_by_index=[p - 1, p - 1])
        return float(np.sqrt(max(0.0, top[0])))

    def _fit(
        self, prox: Prox, objective: float, n_iter: int, n_svd: int, converged: bool, gap: float
    ) -> LowRankFit:
        u = (self.z @ prox.v) * (prox.weights / prox.s)
        left, right = (prox.v, u) if self.flipped else (u, prox.v)
        u, s, v = flip_signs(left, prox.s, right)
        return LowRankFit(
            u, s, v, objective, n_iter, n_svd, converged, gap, prox.alpha, prox.capped
        )

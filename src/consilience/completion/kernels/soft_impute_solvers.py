"""The two solvers of soft-impute: on a filled matrix, and never a dense residual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.completion.kernels import soft_impute_kernels as kernels
from consilience.completion.kernels.low_rank import LowRankFit, flip_signs, thin_svd
from consilience.numerics.entries import Entries

# --- Soft-impute on a filled matrix: accelerated steps, the Gram matrix of the shorter side.
#
# With the fill Z (observed entries kept, the others free) the penalised criterion is the minimum
# over the free entries of ``min_M |Z - M|^2 / 2 + alpha |M|_*``, whose gradient is ``Z - M`` there
# and has Lipschitz constant 1: soft-impute is the plain gradient method, and is accelerated here.
#
# `dual_value` is a lower bound of the criterion.


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
_STEADY = 5  # steps over which the criterion of a capped rank must not change
_WORTH = 5.0  # a cheap gap below this times the tolerance is worth an exact one


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
        before, exact_below, objectives = np.inf, np.inf, [np.inf] * _STEADY
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
            if tol < gap <= min(_WORTH * tol, exact_below) and not prox.capped:
                exact_below = 0.5 * gap
                dual = dual_value(loss, cross, prox.alpha, self._norm())
                gap = min(gap, relative_gap(value, dual))
                n_svd += 1
            still = prox.capped and objectives[-_STEADY] - value <= tol * value
            steady = alpha is not None or abs(prox.alpha - before) <= 1e-3 * prox.alpha
            converged = steady and (gap <= tol or still)
            objectives.append(value)
            if converged or len(objectives) == max_iter + _STEADY:
                break
            before = prox.alpha
            self._ahead(restart=turned > 0.0)
        if alpha is not None:
            self.ends = [*self.ends[-1:], (alpha, self.new.copy())]
        return self._fit(prox, value, len(objectives) - _STEADY, n_svd, converged, gap)

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


# --- For large sparse matrices: alternating ridge regressions, never a dense residual.
#
# A matrix ``A B'`` of enough columns has ``alpha (|A|^2 + |B|^2) / 2`` at least ``alpha |A B'|_*``,
# with equality for balanced factors: rows of A and of B are ridge regressions by turns (Hastie,
# Mazumder, Lee and Zadeh 2015, section 2). Anderson's mixing of the last factors makes the turns
# converge in tens of sweeps; while the factors hardly move, so do the curvatures of the
# regressions, and a sweep is Newton's step with Cholesky's factors from before, at a fifth of the
# cost. Columns come in by a soft-impute step on the residual plus low rank form (their section 3),
# so that the factors are as narrow as the solution.

_WINDOW = 8  # factors that are mixed
_NEAR = 0.05  # relative change of one side within which the other keeps its curvatures
_WITHIN = 0.3  # the same change over the square root of the penalty
_ROOM = 1 << 25  # numbers in Cholesky's factors that are kept
_FARTHEST = 1024.0  # plain steps in one
_CHECK = 5  # sweeps between certificates
_LANCZOS = 150
_ROUGH = 1e-5  # accuracy of a search for directions
_ROUNDING = 1e-9  # of a bound over the criterion
_STILL = 1e-3  # relative change of a penalty that counts as none


class SparseRest:
    """The residual, zero where nothing is observed, as a sparse matrix.

    Parameters
    ----------
    entries : Entries
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.matrix = entries.csr()
        self.matrix.data = entries.values.copy()
        self.loss = self.cross = float(entries.values @ entries.values)

    def set(self, a: FloatArray, b: FloatArray) -> None:
        """Take the residual of ``a b'``."""
        e = self.entries
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        self.loss, self.cross = kernels.residuals(
            e.rows, e.columns, e.values, a, b, self.matrix.data
        )

    def norm(self, accuracy: float = 1e-8) -> float:
        """Largest singular value by Lanczos's method, the length of the Ritz residual added."""
        return self.outside(None, None, accuracy=accuracy)[0]

    def outside(
        self,
        u: FloatArray | None,
        v: FloatArray | None,
        *,
        accuracy: float,
        above: float = np.inf,
        further: int = 0,
    ) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        """Leading singular values of what is left when some directions are projected out.

        Parameters
        ----------
        u, v : (n, k) and (p, k) arrays, optional
            Orthonormal columns that are projected out.
        accuracy : float
            Relative, of the square of the largest singular value.
        above : float
            Vectors are wanted for singular values above this.
        further : int
            Singular values after the largest that are wanted, roughly.

        Returns
        -------
        norm : float
            Largest singular value, the length of the Ritz residual added.
        s : (t,) array
            Ritz values, decreasing.
        left, right : (n, q) and (p, q) arrays
            Vectors of those above.
        """
        n = self.matrix.shape[0]
        exponent = int(np.frexp(np.abs(self.matrix.data).max(initial=0.0))[1])
        scale = np.ldexp(1.0, min(-exponent, 1000))
        matrix = self.matrix * scale  # a power of 2: exact, and fourth powers stay in range
        above *= scale
        steps = min(max(_LANCZOS, 2 * further + 1), n)
        basis, diagonal, off = np.empty((steps, n)), np.zeros(steps), np.zeros(steps)
        tiny = np.finfo(float).tiny
        q = _without(np.random.default_rng(0).normal(size=n), u)
        q /= max(float(np.linalg.norm(q)), tiny)
        for k in range(steps):
            basis[k] = q
            w = _without(matrix @ _without(matrix.T @ q, v), u)
            diagonal[k] = q @ w
            for _ in range(2):
                w -= basis[: k + 1].T @ (basis[: k + 1] @ w)
            off[k] = np.linalg.norm(w)
            last = off[k] <= 1e-14 * diagonal.max() + tiny or k + 1 == steps
            if last or (k + 1) % _CHECK == 0:
                top, vector = _top(diagonal[: k + 1], off[:k])
                rest = float(off[k] * abs(vector[-1]))
                if last or (k >= 2 * further and rest <= accuracy * top):
                    break
            q = w / off[k]
        s, vectors = np.sqrt(np.maximum([top], 0.0)), vector[:, None]
        if np.isfinite(above) or further:
            beside = np.diag(off[:k], 1)
            values, vectors = np.linalg.eigh(np.diag(diagonal[: k + 1]) + beside + beside.T)
            s, vectors = np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]
        left = basis[: k + 1].T @ vectors[:, s > above]
        right = _without(matrix.T @ left, v) / s[s > above]
        return float(np.sqrt(max(0.0, top) + rest) / scale), s / scale, left, right


def _top(diagonal: FloatArray, off: FloatArray) -> tuple[float, FloatArray]:
    """Largest eigenvalue of a tridiagonal matrix with its vector."""
    from scipy.linalg import eigh_tridiagonal

    k = len(diagonal) - 1
    if not k:
        return float(diagonal[0]), np.ones(1)
    values, vectors = eigh_tridiagonal(diagonal, off, select="i", select_range=(k, k))
    return float(values[0]), np.asarray(vectors[:, 0])


def _without(x: FloatArray, basis: FloatArray | None) -> FloatArray:
    if basis is None or not basis.shape[1]:
        return np.asarray(x)
    return np.asarray(x - basis @ (basis.T @ x))


class _Side:
    """Ridge regressions of the rows, or of the columns, with Cholesky's factors from before.

    Parameters
    ----------
    indptr, indices, values : arrays
        Entries of each row (column) and where they lie in the other direction.
    rank : int
        Columns of the factors.
    """

    def __init__(self, indptr: IntArray, indices: IntArray, values: FloatArray, rank: int) -> None:
        self.entries = indptr, indices, values
        groups, size = -(-(len(indptr) - 1) // kernels.LANES), rank * (rank + 1) // 2
        # room for the factors, and for what mixing keeps of this side then
        self.kept = groups * kernels.LANES * (size + 2 * _WINDOW * rank) <= _ROOM
        self.factors = np.empty((groups if self.kept else 1, size, kernels.LANES))
        self.at: FloatArray | None = None

    def step(
        self, own: FloatArray, other: FloatArray, alpha: float, *, exact: bool
    ) -> tuple[FloatArray, float, bool]:
        """Regress on rows of `other`, or step towards that with the factors of an `other` nearby.

        Returns
        -------
        new : (n, k) array
        loss : float
            Sum of squared residuals before the step.
        exact : bool
            The regression itself.
        """
        exact = exact or not self.kept or self.at is None or not _near(other, self.at, alpha)
        new = np.empty_like(own)
        loss = kernels.ridge_step(*self.entries, other, alpha, exact, self.factors, own, new)
        if exact:
            self.at = other
        return new, loss, exact


def _near(new: FloatArray, old: FloatArray, alpha: float) -> bool:
    """Whether factors of a regression on `old` serve one on `new`.

    Where a row has fewer entries than there are columns, nothing but the ridge bounds its step.
    """
    moved = float(np.linalg.norm(new - old))
    return moved <= min(_NEAR * float(np.linalg.norm(old)), _WITHIN * np.sqrt(alpha))


class _Mixing:
    """Anderson's mixing of the fixed-point iteration of A above B.

    Parameters
    ----------
    rank : int
        Columns of A and B.
    first, end : int
        Rows that are mixed. Where that of A is always exact, A does not matter: B alone saves room.
    """

    def __init__(self, rank: int, first: int, end: int) -> None:
        size = (end - first) * rank
        self.first = first
        self.moved = np.empty((_WINDOW, size))  # between points, and between their steps
        self.turned = np.empty((_WINDOW, size))
        self.last: tuple[FloatArray, FloatArray] | None = None
        self.count = 0

    def next(self, point: FloatArray, plain: FloatArray) -> FloatArray:
        """Next point from the present one and where the iteration takes it."""
        now = point[self.first :].ravel()
        step = plain[self.first :].ravel() - now
        last, self.last = self.last, (now, step)
        if last is None:
            return plain
        place = self.count % _WINDOW
        np.subtract(now, last[0], out=self.moved[place])
        np.subtract(step, last[1], out=self.turned[place])
        self.count += 1
        moved, turned = self.moved[: self.count], self.turned[: self.count]
        gram = turned @ turned.T
        gram[np.diag_indices_from(gram)] += 1e-10 * np.trace(gram) + np.finfo(float).tiny
        weights = np.linalg.solve(gram, turned @ step)
        found = plain.copy()
        found[self.first :] -= (weights @ moved + weights @ turned).reshape(-1, plain.shape[1])
        return found


class _Reach:
    """Longer and longer steps along the fixed-point iteration of A above B.

    Mixing is drawn to any fixed point, a saddle as well, and fails at once beside one. There the
    plain steps grow geometrically, and so do these, up to a limit.
    """

    def __init__(self) -> None:
        self.times = 1.0

    def next(self, point: FloatArray, plain: FloatArray) -> FloatArray:
        """Next point from the present one and where the iteration takes it."""
        self.times = min(2.0 * self.times, _FARTHEST)
        return np.asarray(point + self.times * (plain - point))


class _Bracket:
    """Penalties between which the fixed point lies at which a singular value would enter."""

    def __init__(self) -> None:
        self.low, self.high = 0.0, np.inf

    def next(self, lam: float, edge: float) -> float:
        """Next penalty, from the present one and where a singular value would enter from here."""
        if abs(edge - lam) <= _STILL * lam:
            return lam
        if edge > lam:
            self.low = max(self.low, lam)
        else:
            self.high = min(self.high, lam)
        if np.isfinite(self.high) and self.high - self.low <= _STILL * self.high:
            return self.high
        if self.low < edge < self.high:
            return edge
        return float(np.sqrt(self.low * self.high))


class SparseSolver:
    """State of a warm path: singular vectors and values, residuals at the observed entries.

    Parameters
    ----------
    entries : Entries
    start : LowRankFit, optional
    """

    def __init__(self, entries: Entries, start: LowRankFit | None = None) -> None:
        n, p = entries.shape
        self.entries = entries
        order, self.pointer = entries.by_columns()
        self.turned = entries.rows[order], entries.values[order]
        self.u, self.s, self.v = np.zeros((n, 0)), np.zeros(0), np.zeros((p, 0))
        if start is not None:
            self.u, self.s, self.v = start.u, start.s, start.v
        self.rest = SparseRest(entries)
        self.rest.set(self.u * self.s, self.v)

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
            Sweeps over the rows and the columns.
        rank : int, optional
            Largest rank.
        floor : float
            Smallest penalty where `alpha` is None.
        """
        sweeps, searches, bracket = 0, 0, _Bracket()
        if rank is not None and rank < len(self.s):  # A start may have a larger one.
            self.u, self.s, self.v = self.u[:, :rank], self.s[:rank], self.v[:, :rank]
            self.rest.set(self.u * self.s, self.v)
        lam = self._edge(rank, floor) if alpha is None else alpha
        while True:
            cut = self._enter(lam, rank) and alpha is not None
            spent, dual, still = self._turns(
                lam, tol, max(1, max_iter - sweeps), may_grow=alpha is not None, cut=cut
            )
            sweeps, searches = sweeps + max(1, spent), searches + 2  # none with no column
            objective = self._polish(lam)
            dual = max(dual, self._bound(objective, lam, tol)[1])
            gap = relative_gap(objective, dual)
            done = gap <= tol or (cut and still)
            following = lam if alpha is not None else bracket.next(lam, self._edge(rank, floor))
            done = done and abs(following - lam) <= _STILL * lam
            if done or sweeps >= max_iter:
                break
            lam = following
        found = flip_signs(self.u, self.s, self.v)
        capped = cut and gap > tol
        return LowRankFit(
            *found, objective, max(1, sweeps), sweeps + searches, done, gap, lam, capped
        )

    # ------------------------------------------------------------------ parts

    def _enter(self, lam: float, rank: int | None) -> bool:
        """A soft-impute step to the directions that a penalty lets in; whether a rank cut some."""
        self._polish(lam)
        _, s, left, right = self.rest.outside(self.u, self.v, accuracy=_ROUGH, above=lam)
        s = s[s > lam]
        most = min(self.entries.shape) if rank is None else rank
        free = max(0, most - len(self.s))
        cut = rank is not None and len(s) > free
        self.u = np.hstack([self.u, left[:, :free]])
        self.v = np.hstack([self.v, right[:, :free]])
        self.s = np.concatenate([self.s, s[:free] - lam])
        self.rest.set(self.u * self.s, self.v)
        return cut

    def _turns(
        self, lam: float, tol: float, max_iter: int, *, may_grow: bool, cut: bool
    ) -> tuple[int, float, bool]:
        """Ridge regressions by turns until the gap is small or a direction is missing.

        Where the largest rank has cut directions off, the gap stays open: turns end when the
        criterion changes no more, and no bound is looked for.

        Returns
        -------
        sweeps : int
        dual : float
            Best lower bound of the criterion that was met.
        still : bool
            The criterion changes no more.
        """
        e, rest = self.entries, self.rest
        (n, p), k = e.shape, len(self.s)
        rows = _Side(e.indptr, e.columns, e.values, k)
        columns = _Side(self.pointer, *self.turned, k)
        mixed = k, 0 if rows.kept else n, n + p
        point = np.concatenate([self.u, self.v]) * np.sqrt(self.s)
        a, b = point[:n], point[n:]
        plain, plain_exact = point, True
        ahead: _Mixing | _Reach = _Mixing(*mixed)
        best, last, dual, still = np.inf, np.inf, -np.inf, False
        sweeps = checked = 0
        exact = False  # whether the next sweep must be regressions
        while sweeps < max_iter and k:
            sweeps += 1
            trial, _, of_rows = rows.step(point[:n], point[n:], lam, exact=exact)
            following, loss, of_columns = columns.step(point[n:], trial, lam, exact=exact)
            squares = float((trial**2).sum() + (point[n:] ** 2).sum())
            objective = 0.5 * loss + 0.5 * lam * squares
            if not objective <= best and not (point is plain and of_rows and plain_exact):
                if point is not plain:
                    at_once = isinstance(ahead, _Mixing) and ahead.count <= 1
                    ahead = _Reach() if at_once else _Mixing(*mixed)
                else:
                    following, _, plain_exact = columns.step(b, a, lam, exact=True)
                    plain = np.concatenate([a, following])
                point, exact = plain, True
                continue
            if not np.isfinite(objective):  # rounding has eaten the ridge: no further
                break
            a, b, best, exact = trial, point[n:], objective, False
            plain, plain_exact = np.concatenate([a, following]), of_columns
            if sweeps - checked >= _CHECK:  # the sweep that was due may have been refused
                checked = sweeps
                still = last - best <= tol * best
                last = best
                if still and (cut or not may_grow):
                    break
                if not cut:
                    rest.set(a, b)
                    norm, bound = self._bound(best, lam, tol)
                    dual = max(dual, bound)
                    if best - dual <= tol * best:
                        break
                    if may_grow and norm > lam * (1.0 + tol) and self._lacking(a, b, lam):
                        break
            point = ahead.next(point, plain)
        self._take(a, b)
        return sweeps, dual, still

    def _bound(self, objective: float, lam: float, tol: float) -> tuple[float, float]:
        """Largest singular value of the residual, and the lower bound that it gives.

        A bound above the criterion itself tells that the value was another one near the largest.
        """
        rest = self.rest
        for accuracy in (min(1e-8, 0.01 * tol), 0.0):
            norm = rest.norm(accuracy)
            bound = dual_value(rest.loss, rest.cross, lam, norm)
            if bound <= objective * (1.0 + _ROUNDING):
                break
        return norm, min(bound, objective)

    def _lacking(self, a: FloatArray, b: FloatArray, lam: float) -> bool:
        """Whether a direction outside the factors would lower the criterion."""
        left, right = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
        return self.rest.outside(left, right, accuracy=_ROUGH)[0] > lam * (1.0 + _STILL)

    def _take(self, a: FloatArray, b: FloatArray) -> None:
        """Singular vectors and values of ``a b'``, and its residual."""
        (qa, ra), (qb, rb) = np.linalg.qr(a), np.linalg.qr(b)
        left, self.s, right = np.linalg.svd(ra @ rb.T)
        self.u, self.v = qa @ left, qb @ right.T
        self.rest.set(self.u * self.s, self.v)

    def _polish(self, lam: float) -> float:
        """A soft-impute step within the columns, which makes superfluous ones exactly zero."""
        if len(self.s):
            step = self.rest.matrix @ self.v + (self.u * self.s) @ (self.v.T @ self.v)
            u, s, vt = np.linalg.svd(step, full_matrices=False)
            k = int((s > lam).sum())
            self.u, self.s, self.v = u[:, :k], s[:k] - lam, (self.v @ vt.T)[:, :k]
            self.rest.set(self.u * self.s, self.v)
        return float(0.5 * self.rest.loss + lam * self.s.sum())

    def _edge(self, rank: int | None, floor: float) -> float:
        """Penalty at which a further singular value would enter."""
        if rank is None or rank >= min(self.entries.shape):
            return floor
        after = rank - len(self.s)
        s = self.rest.outside(self.u, self.v, accuracy=0.1 * _STILL, further=after)[1]
        return max(floor, float(s[after]) if after < len(s) else 0.0)

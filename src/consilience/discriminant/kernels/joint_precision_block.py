"""Precision matrices of K classes within one block of features.

The problem is that of `joint_precision`. An iteration takes one proximal Newton step by coordinate
descent, which finds the support (all of it while few pairs are linked, else its border), and Newton
steps on that support, by conjugate gradients preconditioned with ``D -> T D T / n_k``. Coordinate
descent alone stalls on real data at small penalties, Newton alone does not know the support.

Where conjugate gradients need many steps, as where features share strong factors and most pairs are
linked, alternating directions (ADMM) by eigendecomposition go in their place, accelerated by
Anderson's method; they go on from where the solutions before lead, with a step that suits how far
that was from the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import DataError

# --- Acceleration of fixed-point iterations.

MEMORY = 6
"""Differences that are kept."""


class Anderson:
    """Anderson's acceleration, type II, of a fixed-point iteration (Walker and Ni 2011, SINUM).

    Parameters
    ----------
    size : int
        Numbers of the state.
    """

    def __init__(self, size: int) -> None:
        self._residuals, self._values = np.empty((MEMORY, size)), np.empty((MEMORY, size))
        self._products = np.zeros((MEMORY, MEMORY))
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._n = 0

    def next(self, residual: FloatArray, value: FloatArray) -> FloatArray:
        """The next state from ``value = F(state)`` and ``residual = value - state``."""
        from scipy.linalg.lapack import dposv

        last, self._last = self._last, (residual.copy(), value.copy())
        if last is None:
            return value.copy()
        place = self._n % MEMORY
        np.subtract(residual, last[0], out=self._residuals[place])
        np.subtract(value, last[1], out=self._values[place])
        self._n += 1
        u = min(self._n, MEMORY)
        differences = self._residuals[:u]
        self._products[place, :u] = self._products[:u, place] = differences @ differences[place]
        products = self._products[:u, :u].copy()
        # A little of a ridge: differences become alike near the end.
        products.flat[:: u + 1] += 1e-10 * products.trace()
        _, weights, info = dposv(products, differences @ residual)
        return value.copy() if info else np.asarray(value - weights @ self._values[:u])


Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

DIRECT = 160
"""Free numbers up to which the Newton equations are solved by elimination."""

DENSE, NEAR = 0.15, 1.5
"""Share of linked pairs from which coordinate descent leaves groups to Newton's method whose
``|a t - g|`` (lam where they vanish) is above this many lam."""

SLOW, FAR = 0.05, 0.05
"""A block is hard where an iteration leaves more than this share of its gap, or where it starts
with more than this relative gap: then coordinate descent takes all pairs and Newton's steps are
repeated. Where an iteration of a hard block is slow, alternating directions go first."""

BURST = 60
"""Steps of the first burst of alternating directions; later ones are up to four times as long."""

STEEP, LONGEST = 8, 150
"""Conjugate gradients of the first Newton step from which a block is left to alternating
directions, and their steps before it is handed back."""

REACH, SPREAD = 3.0, 30.0
"""``rho`` of alternating directions over ``n_k`` and the squared geometric mean of the eigenvalues
of W: `REACH` where nothing is linked, by a factor of `SPREAD` smaller where all is. Where few
entries may move, they do on the scale of the diagonal; where all may, on that of the smallest
eigenvalues."""

REACHES = 0.3, 15.0
"""Limits of what takes its place once a fit has told how far it was from its start."""

OFTEN, NEAR_TARGET = 8, 4.0
"""Steps of alternating directions after which the gap is computed in any case; and where it is
expected to be within this many times what is wanted, at every step."""

OVER = 1.6
"""Relaxation of alternating directions."""

SMALL, SMALL_STEPS, SMALL_LINKED = 16, 5, 0.25
"""Features of a block that one compiled loop tries first, its iterations before it hands over, and
the share of pairs that may be linked at the start. It saves the overhead of many small blocks with
few links, but with many links its coordinate descent is slow."""


def pair_norms(matrices: FloatArray) -> FloatArray:
    """Euclidean norm over the first axis, shape (q, q) of (K, q, q)."""
    return np.sqrt(np.einsum("kij,kij->ij", matrices, matrices))


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise ``sum_k n_k (tr(S_k T_k) - logdet T_k) + lam P(T)`` over one block."""

    s: FloatArray
    n: FloatArray
    lam: float

    def __post_init__(self) -> None:
        # One memory layout, for which the loops are compiled.
        object.__setattr__(self, "s", np.ascontiguousarray(self.s, dtype=np.float64))
        object.__setattr__(self, "n", np.ascontiguousarray(self.n, dtype=np.float64))
        object.__setattr__(self, "lam", float(self.lam))

    @property
    def scale(self) -> float:
        """Gaps are relative to ``q sum_k n_k``."""
        return float(self.s.shape[1] * self.n.sum())


@dataclass(eq=False)
class Point:
    """Precision matrices with what belongs to them."""

    t: FloatArray
    factor: FloatArray
    log_det: FloatArray
    norms: FloatArray
    objective: float
    w: FloatArray | None = None


@dataclass(eq=False)
class Solution:
    """What became of one block."""

    t: FloatArray
    log_det: FloatArray
    objective: float
    dual: float
    n_iter: int
    solvers: dict[str, int] = field(default_factory=dict)
    gamma: FloatArray | None = None
    reach: float | None = None

    @property
    def gap(self) -> float:
        """Primal minus dual value."""
        return self.objective - self.dual


def symmetric_inverse(factors: FloatArray) -> FloatArray:
    """Inverses from lower Cholesky factors."""
    from scipy.linalg.lapack import dpotri

    out = np.empty_like(factors)
    for k, factor in enumerate(factors):
        inverse, _ = dpotri(factor, lower=1)
        lower = np.tril(inverse)
        out[k] = lower + np.tril(lower, -1).T
    return out


def cholesky(matrices: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Lower factors and log-determinants, None where a matrix is not positive definite."""
    from scipy.linalg.lapack import dpotrf

    factors = np.empty_like(matrices)
    for k, matrix in enumerate(matrices):
        factor, info = dpotrf(matrix, lower=1, clean=1)
        if info != 0:
            return None
        factors[k] = factor
    diagonal = np.diagonal(factors, axis1=1, axis2=2)
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
        return None
    return factors, 2.0 * np.log(diagonal).sum(axis=1)


def penalty(norms: FloatArray) -> float:
    """``P(T)`` over ordered pairs."""
    return float(norms.sum() - np.trace(norms))


def evaluate(problem: Problem, t: FloatArray) -> Point | None:
    """Objective at ``t``, None outside the cone."""
    found = cholesky(t)
    if found is None:
        return None
    factor, log_det = found
    norms = pair_norms(t)
    # Equation 4 of the source.
    trace = np.einsum("kij,kij->k", problem.s, t)
    value = float(problem.n @ (trace - log_det)) + problem.lam * penalty(norms)
    return Point(t, factor, log_det, norms, value)


def inverse_of(point: Point) -> FloatArray:
    """Inverses at a point, computed once."""
    if point.w is None:
        point.w = symmetric_inverse(point.factor)
    return point.w


def dual_value(problem: Problem, point: Point) -> float:
    """Value of a feasible point of the dual, ``sum_k n_k (logdet W_k + q)``.

    ``Gamma_k = n_k (T_k^{-1} - S_k)`` without its diagonal, each group scaled to a norm of at most
    lam; groups of the support, whose norm is lam at the optimum, are also tried on the sphere: the
    gap then vanishes with the square of the distance, not with the distance.
    """
    n, lam = problem.n[:, None, None], problem.lam
    gamma = n * (inverse_of(point) - problem.s)
    diagonal = np.arange(gamma.shape[1])
    gamma[:, diagonal, diagonal] = 0.0
    norms = pair_norms(gamma)
    safe = np.where(norms > 0, norms, 1.0)
    ball = np.minimum(1.0, lam / safe)
    sphere = np.where(point.norms > 0, lam / safe, ball)
    best = -np.inf
    for factor in (sphere, ball):
        scaled = gamma * factor
        for _ in range(4):
            # W_k = S_k + Gamma_k / n_k must be positive definite: Gamma shrinks until it is.
            found = cholesky(problem.s + scaled / n)
            if found is not None:
                value = float(problem.n @ (found[1] + gamma.shape[1]))
                best = max(best, value)
                break
            scaled *= 0.97
    return best


def gradient(problem: Problem, point: Point) -> FloatArray:
    """Gradient of the smooth part."""
    return problem.n[:, None, None] * (problem.s - inverse_of(point))


def search(problem: Problem, point: Point, d: FloatArray, slope: float, keep: Mask) -> Point | None:
    """Backtrack from the full step; groups of ``keep`` that turn around become zero."""
    step = 1.0
    # Near the minimum a value falls by less than it is rounded.
    rounding = 1e-13 * (abs(point.objective) + problem.scale)
    for _ in range(40):
        t = point.t + step * d
        turned = keep & (np.einsum("kij,kij->ij", t, point.t) <= 0)
        if turned.any():
            t[:, turned] = 0.0
        found = evaluate(problem, t)
        if found is not None:
            bound = point.objective + 1e-4 * step * slope
            if found.objective <= bound + (rounding if -slope < 1e3 * rounding else 0.0):
                return found
        step *= 0.5
    return None


def coordinate_step(problem: Problem, point: Point, g: FloatArray, *, whole: bool) -> Point:
    """One proximal Newton step on the pairs that are free, by two sweeps of coordinate descent.

    Free are, with the diagonal, those that violate their condition, and the support. Where the
    support is dense, of it only the groups that are near zero: Newton's method on the support moves
    the others better.
    """
    from consilience.discriminant.kernels.joint_precision_kernels import sweeps

    linked, w = point.norms > 0, inverse_of(point)
    q = len(linked)
    free = ~linked & (pair_norms(g) > problem.lam)
    if not whole and np.count_nonzero(linked) - q > DENSE * q * (q - 1):
        diagonal = np.diagonal(w, axis1=1, axis2=2)
        curve = w * w + diagonal[:, :, None] * diagonal[:, None, :]
        curve *= problem.n[:, None, None]
        linked = linked & (pair_norms(curve * point.t - g) <= NEAR * problem.lam)
    free |= linked
    np.fill_diagonal(free, True)
    rows, columns = np.nonzero(free)
    start = np.searchsorted(rows, np.arange(q + 1))
    d = np.zeros_like(g)
    sweeps(g, w, point.t, problem.n, problem.lam, start, columns, 2, 2, 0.0, d)
    moved = penalty(pair_norms(point.t + d)) - penalty(point.norms)
    slope = float(np.einsum("kij,kij->", g, d)) + problem.lam * moved
    if not slope < 0:
        return point
    return search(problem, point, d, slope, np.zeros_like(free)) or point


class Support:
    """Newton's equations where groups that are zero stay zero; there the penalty is smooth."""

    def __init__(self, problem: Problem, point: Point, g: FloatArray) -> None:
        self.problem, self.point = problem, point
        off = point.norms > 0
        np.fill_diagonal(off, False)
        self.mask = off | np.eye(len(off), dtype=bool)
        safe = np.where(off, point.norms, 1.0)
        self.unit = np.where(off, point.t / safe, 0.0)
        self.stiff = np.where(off, problem.lam / safe, 0.0)
        self.residual = -(g + problem.lam * self.unit) * self.mask

    def hessian(self, d: FloatArray) -> FloatArray:
        """Second derivative of the objective in direction ``d``."""
        w = inverse_of(self.point)
        # W D W of the smooth part, and the penalty across each group.
        out = self.problem.n[:, None, None] * np.matmul(np.matmul(w, d), w)
        along = np.einsum("kij,kij->ij", self.unit, d)
        out += self.stiff * (d - self.unit * along)
        out *= self.mask
        return out

    def precondition(self, r: FloatArray, shrink: FloatArray) -> FloatArray:
        """``T R T / n_k`` on the support, with stiff directions damped on both sides."""
        t = self.point.t
        r = self._damped(r, shrink)
        out = np.matmul(np.matmul(t, r), t)
        out /= self.problem.n[:, None, None]
        return self._damped(out * self.mask, shrink)

    def _damped(self, r: FloatArray, shrink: FloatArray) -> FloatArray:
        along = self.unit * np.einsum("kij,kij->ij", self.unit, r)
        return np.where(self.stiff > 0, along + shrink * (r - along), r)

    def solve(self, precision: float, enough: float, max_iter: int) -> tuple[FloatArray, int]:
        """Newton direction by conjugate gradients.

        Stops where the squared error, in the norm of the preconditioner, is this share of what it
        was, or enough (which counts from a hundredth on); also returns the number of steps.
        """
        # Directions across a group, where the penalty is curved, are damped.
        diagonal = np.diagonal(inverse_of(self.point), axis1=1, axis2=2)
        n = self.problem.n
        curve = np.einsum("k,ki,kj->ij", n, diagonal, diagonal) / len(n)
        shrink = np.sqrt(curve / (curve + self.stiff))
        d = np.zeros_like(self.residual)
        r = self.residual.copy()
        z = self.precondition(r, shrink)
        direction = z.copy()
        rz = first = float(np.vdot(r, z))
        for i in range(max_iter):
            if rz <= max(precision * first, min(1e-2 * first, enough)) or rz <= 0:
                return d, i
            h = self.hessian(direction)
            length = rz / float(np.vdot(direction, h))
            d += length * direction
            r -= length * h
            z = self.precondition(r, shrink)
            rz, last = float(np.vdot(r, z)), rz
            direction *= rz / last
            direction += z
        return d, max_iter

    def eliminate(self) -> FloatArray | None:
        """Newton direction by elimination, for few free numbers."""
        from scipy.linalg.lapack import dpotrf, dpotrs

        problem, w = self.problem, inverse_of(self.point)
        i, j = np.nonzero(np.triu(self.mask))
        m, classes = len(i), len(problem.n)
        twice = np.where(i == j, 0.5, 1.0)
        h = np.zeros((classes, m, classes, m))
        for k in range(classes):
            v = w[k]
            # Second derivatives of -logdet by pairs of entries.
            both = v[np.ix_(i, i)] * v[np.ix_(j, j)] + v[np.ix_(i, j)] * v[np.ix_(j, i)]
            h[k, :, k, :] = problem.n[k] * both * twice[:, None] * twice[None, :]
        unit, stiff = self.unit[:, i, j], self.stiff[i, j]
        place = np.arange(m)
        for k in range(classes):
            for other in range(classes):
                across = (1.0 if k == other else 0.0) - unit[k] * unit[other]
                h[k, place, other, place] += np.where(i == j, 0.0, stiff * across)
        size = classes * m
        matrix = h.reshape(size, size)
        right = (self.residual[:, i, j] * twice).reshape(size)
        factor, info = dpotrf(matrix, lower=1, clean=0)
        if info != 0:
            return None
        found = dpotrs(factor, right, lower=1)[0].reshape(classes, m)
        d = np.zeros_like(self.residual)
        d[:, i, j] = found
        d[:, j, i] = found
        return d


def newton_step(
    problem: Problem,
    point: Point,
    g: FloatArray,
    enough: float,
    precision: float = 1e-4,
    most: int = 200,
) -> tuple[Point, float, int]:
    """One Newton step on the support: the new point, the squared decrement, conjugate gradients."""
    support = Support(problem, point, g)
    free = len(problem.n) * (np.count_nonzero(support.mask) + len(support.mask)) // 2
    d, steps = support.eliminate() if free <= DIRECT else None, 0
    if d is None:
        d, steps = support.solve(precision, enough, most)
    d = 0.5 * (d + d.transpose(0, 2, 1))
    decrement = float(np.vdot(support.residual, d))
    keep = support.mask.copy()
    np.fill_diagonal(keep, False)
    found = search(problem, point, d, -decrement, keep) if decrement > 0 else None
    return (point, 0.0, steps) if found is None else (found, decrement, steps)


@dataclass(eq=False)
class Alternation:
    """What alternating directions found: a point, if one was positive definite, and its bound."""

    point: Point | None
    gamma: FloatArray
    dual: float
    n_steps: int
    reach: float


def off_diagonal(problem: Problem, w: FloatArray) -> FloatArray:
    """``Gamma_k = n_k (W_k - S_k)`` without its diagonal."""
    gamma = problem.n[:, None, None] * (w - problem.s)
    diagonal = np.arange(gamma.shape[1])
    gamma[:, diagonal, diagonal] = 0.0
    return gamma


def reach_of(moved: float, gamma_moved: float, base: float) -> float:
    """What to put in place of `REACH` from how far a solution was from its start.

    Douglas and Rachford's iteration has ``rho |T_0 - T|^2 + |Gamma_0 - Gamma|^2 / rho`` to take
    off, least where ``rho`` is the ratio of the two norms. The next start is similar, not the same:
    half of the way there from `REACH`, in logarithms, is gone.

    Parameters
    ----------
    moved, gamma_moved : float
        The two norms.
    base : float
        ``rho`` of a reach of 1.
    """
    if not (moved > 0 and gamma_moved > 0):
        return REACH
    return float(np.clip(np.sqrt(REACH * gamma_moved / (moved * base)), *REACHES))


def alternate(
    problem: Problem,
    point: Point,
    t: FloatArray,
    gamma: FloatArray,
    *,
    target: float,
    most: int,
    reach: float = REACH,
) -> Alternation:
    """Alternating directions from ``t`` and ``gamma`` until the gap is at most ``target``.

    They split the smooth part, minimised by eigendecompositions, from the penalty, minimised group
    by group (Boyd et al. 2011, section 6.5; Danaher, Wang and Witten 2014). One vector holds their
    state, ``T + Gamma / rho``, as in Douglas and Rachford's form, and Anderson's method (type II)
    extrapolates it over the last differences: without it they need two to ten times the steps. The
    groups that the penalty cuts off are a feasible ``Gamma``, so the bound takes a factorisation.

    Parameters
    ----------
    problem : Problem
    point : Point
        Where ``rho`` is taken from.
    t, gamma : ndarray of shape (K, q, q)
        Start, of which ``t`` need not be positive definite.
    target : float
        Gap to reach.
    most : int
        Steps at most.
    reach : float
        ``rho``, in the units of `REACH`.
    """
    from consilience.discriminant.kernels import joint_precision_kernels as loops

    n, (classes, q) = problem.n, t.shape[:2]
    # Units in which one rho suits all pairs: features of unit pooled variance.
    sd = np.sqrt(n @ np.diagonal(problem.s, axis1=1, axis2=2) / n.sum())
    units = np.outer(sd, sd)
    s, lam = problem.s / units, problem.lam / units
    np.fill_diagonal(lam, 0.0)
    share = (np.count_nonzero(point.norms) - q) / (q * (q - 1))
    spread = float(n @ (point.log_det + 2 * np.log(sd).sum())) / (q * float(n.sum()))
    base = SPREAD**-share * float(n.mean()) * float(np.exp(-2 * spread))
    rho = reach * base
    state = loops.packed(t * units + gamma / units / rho)
    z, moved, new = np.empty_like(state), np.empty_like(state), np.empty_like(state)
    x, w = np.empty_like(s), np.empty_like(s)
    past = Anderson(state.size)
    found: Point | None = None
    best, steps = -np.inf, 0
    gap, size, factor, expected = np.inf, np.inf, np.inf, 0.0
    while steps < most:
        steps += 1
        loops.shrink(state, s, n, lam, rho, z, x)
        checked = expected <= NEAR_TARGET * target or steps % OFTEN == 0 or steps == most
        if checked:
            loops.slack(state, z, s, n, rho, w)
            bound = cholesky(w)
            if bound is not None:
                best = max(best, float(n @ (bound[1] + q + 2 * np.log(sd).sum())))
            found = evaluate(problem, loops.unpacked(z, q) / units) or found
            gap = np.inf if found is None else found.objective - best
            if gap <= target:
                break
        values, vectors = np.linalg.eigh(x)
        # The root of the equation of each eigenvalue.
        values = (values + np.sqrt(values * values + 4 * rho * n[:, None])) / (2 * rho)
        vectors *= np.sqrt(values)[:, None, :]
        loops.advance(np.matmul(vectors, vectors.transpose(0, 2, 1)), z, state, OVER, moved, new)
        state = past.next(moved.ravel(), new.ravel()).reshape(classes, -1)
        # The gap is quadratic in T - Z; it falls on as it did in the last step.
        last, size = size, float(np.vdot(moved, moved))
        factor = gap / size if checked and size > 0 else factor
        expected = factor * size * min(1.0, size / last) if np.isfinite(factor) else 0.0
    slack = off_diagonal(problem, w * units)
    if found is not None:
        reach = reach_of(
            float(np.linalg.norm((found.t - t) * units)),
            float(np.linalg.norm((slack - gamma) / units)),
            base,
        )
    return Alternation(found, slack, best, steps, reach)


def admm_burst(problem: Problem, point: Point, steps: int, target: float = 0.0) -> Point:
    """Alternating directions from a point; the point itself unless the value falls."""
    gamma = off_diagonal(problem, inverse_of(point))
    found = alternate(problem, point, point.t, gamma, target=target, most=steps).point
    return found if found is not None and found.objective < point.objective else point


def solve_compiled(problem: Problem, t: FloatArray, *, tol: float, max_iter: int) -> Solution:
    """Proximal Newton in one compiled loop, for blocks of few features."""
    from consilience.discriminant.kernels.joint_precision_kernels import solve_small

    t, log_det = np.array(t, order="C"), np.empty(len(problem.n))
    objective, dual, n_iter = solve_small(
        problem.s, problem.n, problem.lam, t, tol, max_iter, log_det
    )
    return Solution(t, log_det, objective, dual, n_iter, {"small": n_iter})


def is_small(point: Point) -> bool:
    """Whether the compiled loop goes first: few features, and few links or hardly any pair."""
    q = len(point.norms)
    linked = np.count_nonzero(point.norms) - q
    return bool(q <= 4 or (q <= SMALL and linked <= SMALL_LINKED * q * (q - 1)))


Ahead = tuple[FloatArray, FloatArray, float]


def solve_dense(
    problem: Problem, point: Point, ahead: Ahead, *, tol: float, max_iter: int
) -> Solution:
    """Alternating directions as far as they go; the point itself unless the value falls."""
    most = min(LONGEST, max_iter)
    t, gamma, reach = ahead
    target = tol * problem.scale
    found = alternate(problem, point, t, gamma, target=target, most=most, reach=reach)
    at = point if found.point is None or found.point.objective > point.objective else found.point
    used = {"admm": found.n_steps}
    told = found.n_steps, used, found.gamma, found.reach
    return Solution(at.t, at.log_det, at.objective, found.dual, *told)


def solve_block(
    problem: Problem, t: FloatArray, *, tol: float, max_iter: int, ahead: Ahead | None = None
) -> Solution:
    """Minimise from ``t`` until the gap is at most ``tol q sum_k n_k``.

    Where ``ahead`` has the matrices, ``Gamma`` and the reach to expect, alternating directions go
    first.
    Below ``tol = 1e-12`` the gap is mostly rounding, and Newton steps follow that it cannot judge.
    """
    point = evaluate(problem, t)
    if point is None:
        diagonal = np.diagonal(problem.s, axis1=1, axis2=2)
        point = evaluate(problem, np.stack([np.diag(1.0 / row) for row in diagonal]))
    if point is None:
        raise DataError("a variance is not positive")
    if ahead is not None:
        found = solve_dense(problem, point, ahead, tol=tol, max_iter=max_iter)
        left = max_iter - found.n_iter
        if found.gap > tol * problem.scale and left > 0:
            found = solve_general(problem, found.t, tol=tol, max_iter=left)
    elif is_small(point):
        found = solve_compiled(problem, point.t, tol=tol, max_iter=min(max_iter, SMALL_STEPS))
        if found.gap > tol * problem.scale and max_iter > SMALL_STEPS:
            found = solve_general(problem, found.t, tol=tol, max_iter=max_iter)
    else:
        found = solve_general(problem, point.t, tol=tol, max_iter=max_iter)
    point = evaluate(problem, found.t)
    if tol >= 1e-12 or found.gap > tol * problem.scale or point is None:
        return found
    for _ in range(2):  # two exact steps on the support that was found
        point, _, _ = newton_step(problem, point, gradient(problem, point), 0.0, 1e-20)
    used = {**found.solvers, "newton": found.solvers.get("newton", 0) + 2}
    dual = max(found.dual, dual_value(problem, point))
    return Solution(point.t, point.log_det, point.objective, dual, found.n_iter, used)


def solve_general(problem: Problem, t: FloatArray, *, tol: float, max_iter: int) -> Solution:
    """Coordinate descent, Newton on the support and alternating directions in turn."""
    point = evaluate(problem, t)
    if point is None:
        raise DataError("the start is not positive definite")
    used = {"coordinate": 0, "newton": 0, "admm": 0}
    best, stuck, n_iter = -np.inf, 0, 0
    target = tol * problem.scale
    enough = 0.05 * target
    gap, hard = np.inf, False
    while n_iter < max_iter:
        n_iter += 1
        best = max(best, dual_value(problem, point))
        gap, last = point.objective - best, gap
        if n_iter > 1 and (gap <= target or stuck > 2):
            break
        if hard and gap > SLOW * last:
            used["admm"] += 1
            point = admm_burst(problem, point, BURST * min(used["admm"], 4), target)
        hard = hard or gap > (SLOW * last if n_iter > 2 else FAR * problem.scale)
        before = point
        if n_iter == 1:  # what is linked already moves together with the penalty
            g = gradient(problem, point)
            moved, _, steps = newton_step(problem, point, g, enough, most=STEEP)
            used["newton"] += 1
            if steps == STEEP:
                ahead = point.t, off_diagonal(problem, inverse_of(point)), REACH
                found = solve_dense(problem, point, ahead, tol=tol, max_iter=max_iter - 1)
                used["admm"] += found.n_iter
                n_iter, best = n_iter + found.n_iter, max(best, found.dual)
                if found.gap <= target:
                    return replace(found, n_iter=n_iter, solvers=used)
                moved = evaluate(problem, found.t) or moved
            point = moved
        point = coordinate_step(problem, point, gradient(problem, point), whole=hard)
        used["coordinate"] += 1
        for _ in range(3):
            point, decrement, _ = newton_step(problem, point, gradient(problem, point), enough)
            used["newton"] += 1
            if decrement < (target if hard else 1e-2 * problem.scale):
                break
        stuck = stuck + 1 if point is before else 0
    return Solution(point.t, point.log_det, point.objective, best, n_iter, used)

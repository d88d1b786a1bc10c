"""One block of joint precision matrices: proximal Newton, Newton on the support, certificate.

An iteration takes one proximal Newton step by coordinate descent, which finds the support (all of
it while few pairs are linked, else its border), and Newton steps on that support, by conjugate
gradients preconditioned with ``D -> T D T / n_k``. Coordinate descent alone stalls on real data at
small penalties, Newton alone does not know the support. Where both are slow, a burst of alternating
directions (ADMM) goes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from consilience.discriminant.kernels.joint_precision_moments import Floats, pair_norms
from consilience.exceptions import DataError

Mask = NDArray[np.bool_]

DIRECT = 320
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

SMALL, SMALL_STEPS, SMALL_LINKED = 16, 5, 0.25
"""Features of a block that one compiled loop tries first, its iterations before it hands over, and
the share of pairs that may be linked at the start. It saves the overhead of many small blocks with
few links, but with many links its coordinate descent is slow."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise ``sum_k n_k (tr(S_k T_k) - logdet T_k) + lam P(T)`` over one block."""

    s: Floats
    n: Floats
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

    t: Floats
    factor: Floats
    log_det: Floats
    norms: Floats
    objective: float
    w: Floats | None = None


@dataclass(eq=False)
class Solution:
    """What became of one block."""

    t: Floats
    log_det: Floats
    objective: float
    dual: float
    n_iter: int
    solvers: dict[str, int] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Primal minus dual value."""
        return self.objective - self.dual


def symmetric_inverse(factors: Floats) -> Floats:
    """Inverses from lower Cholesky factors."""
    out = np.empty_like(factors)
    for k, factor in enumerate(factors):
        inverse, _ = dpotri(factor, lower=1)
        lower = np.tril(inverse)
        out[k] = lower + np.tril(lower, -1).T
    return out


def cholesky(matrices: Floats) -> tuple[Floats, Floats] | None:
    """Lower factors and log-determinants, None where a matrix is not positive definite."""
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


def penalty(norms: Floats) -> float:
    """``P(T)`` over ordered pairs."""
    return float(norms.sum() - np.trace(norms))


def evaluate(problem: Problem, t: Floats) -> Point | None:
    """Objective at ``t``, None outside the cone."""
    found = cholesky(t)
    if found is None:
        return None
    factor, log_det = found
    norms = pair_norms(t)
    trace = np.einsum("kij,kij->k", problem.s, t)
    value = float(problem.n @ (trace - log_det)) + problem.lam * penalty(norms)
    return Point(t, factor, log_det, norms, value)


def inverse_of(point: Point) -> Floats:
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
            found = cholesky(problem.s + scaled / n)
            if found is not None:
                value = float(problem.n @ (found[1] + gamma.shape[1]))
                best = max(best, value)
                break
            scaled *= 0.97
    return best


def support_of(point: Point) -> Mask:
    """Pairs whose group is not zero, with the diagonal."""
    mask = point.norms > 0
    np.fill_diagonal(mask, True)
    return mask


def gradient(problem: Problem, point: Point) -> Floats:
    """Gradient of the smooth part."""
    return problem.n[:, None, None] * (problem.s - inverse_of(point))


def search(problem: Problem, point: Point, d: Floats, slope: float, keep: Mask) -> Point | None:
    """Backtrack from the full step; groups of ``keep`` that turn around become zero."""
    step = 1.0
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


def free_pairs(problem: Problem, point: Point, g: Floats, *, whole: bool) -> Mask:
    """Pairs whose groups a proximal Newton step may change, with the diagonal.

    Those that violate their condition, and the support. Where the support is dense, of it only the
    groups that are near zero: Newton's method on the support moves the others better.
    """
    linked = point.norms > 0
    q = len(linked)
    free = ~linked & (pair_norms(g) > problem.lam)
    if not whole and np.count_nonzero(linked) - q > DENSE * q * (q - 1):
        w = inverse_of(point)
        diagonal = np.diagonal(w, axis1=1, axis2=2)
        curve = w * w + diagonal[:, :, None] * diagonal[:, None, :]
        curve *= problem.n[:, None, None]
        free |= linked & (pair_norms(curve * point.t - g) <= NEAR * problem.lam)
    else:
        free |= linked
    np.fill_diagonal(free, True)
    return free


def coordinate_step(problem: Problem, point: Point, g: Floats, *, whole: bool) -> Point:
    """One proximal Newton step on the pairs that are free, by two sweeps of coordinate descent."""
    from consilience.discriminant.kernels.joint_precision_kernels import sweeps

    free = free_pairs(problem, point, g, whole=whole)
    rows, columns = np.nonzero(free)
    start = np.searchsorted(rows, np.arange(len(free) + 1))
    d = np.zeros_like(g)
    w = inverse_of(point)
    sweeps(g, w, point.t, problem.n, problem.lam, start, columns, 2, 2, 0.0, d)
    moved = penalty(pair_norms(point.t + d)) - penalty(point.norms)
    slope = float(np.einsum("kij,kij->", g, d)) + problem.lam * moved
    if not slope < 0:
        return point
    return search(problem, point, d, slope, np.zeros_like(free)) or point


@dataclass(eq=False)
class Support:
    """Newton's equations where groups that are zero stay zero."""

    problem: Problem
    point: Point
    mask: Mask
    unit: Floats
    stiff: Floats
    residual: Floats

    @classmethod
    def of(cls, problem: Problem, point: Point, g: Floats) -> Support:
        """Gradient and curvature on the support; there the penalty is smooth."""
        mask = support_of(point)
        off = mask.copy()
        np.fill_diagonal(off, False)
        safe = np.where(off, point.norms, 1.0)
        unit = np.where(off, point.t / safe, 0.0)
        stiff = np.where(off, problem.lam / safe, 0.0)
        return cls(problem, point, mask, unit, stiff, -(g + problem.lam * unit) * mask)

    def hessian(self, d: Floats) -> Floats:
        """Second derivative of the objective in direction ``d``."""
        w = inverse_of(self.point)
        out = self.problem.n[:, None, None] * np.matmul(np.matmul(w, d), w)
        along = np.einsum("kij,kij->ij", self.unit, d)
        out += self.stiff * (d - self.unit * along)
        out *= self.mask
        return out

    def damping(self) -> Floats:
        """Factor for directions across a group, where the penalty is curved."""
        w, n = inverse_of(self.point), self.problem.n
        diagonal = np.diagonal(w, axis1=1, axis2=2)
        curve = np.einsum("k,ki,kj->ij", n, diagonal, diagonal) / len(n)
        return np.sqrt(curve / (curve + self.stiff))

    def precondition(self, r: Floats, shrink: Floats) -> Floats:
        """``T R T / n_k`` on the support, with stiff directions damped on both sides."""
        t = self.point.t
        r = self._damped(r, shrink)
        out = np.matmul(np.matmul(t, r), t)
        out /= self.problem.n[:, None, None]
        return self._damped(out * self.mask, shrink)

    def _damped(self, r: Floats, shrink: Floats) -> Floats:
        along = self.unit * np.einsum("kij,kij->ij", self.unit, r)
        return np.where(self.stiff > 0, along + shrink * (r - along), r)

    def solve(self, precision: float, enough: float, max_iter: int) -> tuple[Floats, int]:
        """Newton direction by conjugate gradients.

        Stops where the squared error, in the norm of the preconditioner, is this share of what it
        was, or enough (which counts from a hundredth on); also returns the number of steps.
        """
        shrink = self.damping()
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

    def eliminate(self) -> Floats | None:
        """Newton direction by elimination, for few free numbers."""
        problem, w = self.problem, inverse_of(self.point)
        i, j = np.nonzero(np.triu(self.mask))
        m, classes = len(i), len(problem.n)
        twice = np.where(i == j, 0.5, 1.0)
        h = np.zeros((classes, m, classes, m))
        for k in range(classes):
            v = w[k]
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
        from scipy.linalg import cho_solve

        found = cho_solve((factor, True), right).reshape(classes, m)
        d = np.zeros_like(self.residual)
        d[:, i, j] = found
        d[:, j, i] = found
        return d


def newton_step(
    problem: Problem, point: Point, g: Floats, enough: float, precision: float = 1e-4
) -> tuple[Point, float]:
    """One Newton step on the support: the new point and the squared decrement."""
    support = Support.of(problem, point, g)
    free = len(problem.n) * (np.count_nonzero(support.mask) + len(support.mask)) // 2
    d = support.eliminate() if free <= DIRECT else None
    if d is None:
        d, _ = support.solve(precision, enough, 200)
    d = 0.5 * (d + d.transpose(0, 2, 1))
    decrement = float(np.vdot(support.residual, d))
    keep = support.mask.copy()
    np.fill_diagonal(keep, False)
    found = search(problem, point, d, -decrement, keep) if decrement > 0 else None
    return (point, 0.0) if found is None else (found, decrement)


def admm_burst(problem: Problem, point: Point, steps: int) -> Point:
    """Alternating directions from a point and its gradient, on features of unit pooled variance.

    The way out where many groups near zero keep Newton's method from finding the support; returns
    the point itself unless the value falls. ``rho`` starts at the mean of n_k and follows the
    residuals.
    """
    n = problem.n[:, None, None]
    sd = np.sqrt(problem.n @ np.diagonal(problem.s, axis1=1, axis2=2) / problem.n.sum())
    units = np.outer(sd, sd)
    s, lam = problem.s / units, problem.lam / units
    np.fill_diagonal(lam, 0.0)
    rho = float(problem.n.mean())
    z = point.t * units
    u = n * (inverse_of(point) / units - s) / rho
    for _ in range(steps):
        values, vectors = np.linalg.eigh(rho * (z - u) - n * s)
        values = (values + np.sqrt(values * values + 4 * rho * problem.n[:, None])) / (2 * rho)
        t = np.matmul(vectors * values[:, None, :], vectors.transpose(0, 2, 1))
        shifted = t + u
        norms = pair_norms(shifted)
        last, z = z, shifted * np.maximum(0.0, 1 - lam / rho / np.where(norms > 0, norms, 1.0))
        u = shifted - z
        primal, dual = np.linalg.norm(t - z), rho * np.linalg.norm(z - last)
        change = 2.0 if primal * rho > 10 * dual else 0.5 if dual > 10 * primal * rho else 1.0
        rho, u = rho * change, u / change
    z = z / units
    found = evaluate(problem, 0.5 * (z + z.transpose(0, 2, 1)))
    return found if found is not None and found.objective < point.objective else point


def solve_compiled(problem: Problem, t: Floats, *, tol: float, max_iter: int) -> Solution:
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


def solve_block(problem: Problem, t: Floats, *, tol: float, max_iter: int) -> Solution:
    """Minimise from ``t`` until the gap is at most ``tol q sum_k n_k``.

    Below ``tol = 1e-12`` the gap is mostly rounding, and Newton steps follow that it cannot judge.
    """
    point = evaluate(problem, t)
    if point is None:
        diagonal = np.diagonal(problem.s, axis1=1, axis2=2)
        point = evaluate(problem, np.stack([np.diag(1.0 / row) for row in diagonal]))
    if point is None:
        raise DataError("a variance is not positive")
    if is_small(point):
        found = solve_compiled(problem, point.t, tol=tol, max_iter=min(max_iter, SMALL_STEPS))
        if found.gap > tol * problem.scale and max_iter > SMALL_STEPS:
            found = solve_general(problem, found.t, tol=tol, max_iter=max_iter)
    else:
        found = solve_general(problem, point.t, tol=tol, max_iter=max_iter)
    return polish(problem, found) if tol < 1e-12 and found.gap <= tol * problem.scale else found


def polish(problem: Problem, solution: Solution) -> Solution:
    """Two exact Newton steps on the support that was found."""
    point = evaluate(problem, solution.t)
    if point is None:
        return solution
    for _ in range(2):
        point, _ = newton_step(problem, point, gradient(problem, point), 0.0, 1e-20)
    dual = max(solution.dual, dual_value(problem, point))
    used = {**solution.solvers, "newton": solution.solvers.get("newton", 0) + 2}
    return replace(
        solution,
        t=point.t,
        log_det=point.log_det,
        objective=point.objective,
        dual=dual,
        solvers=used,
    )


def solve_general(problem: Problem, t: Floats, *, tol: float, max_iter: int) -> Solution:
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
            point = admm_burst(problem, point, BURST * min(used["admm"], 4))
        hard = hard or gap > (SLOW * last if n_iter > 2 else FAR * problem.scale)
        before = point
        if n_iter == 1:  # what is linked already moves together with the penalty
            point, _ = newton_step(problem, point, gradient(problem, point), enough)
            used["newton"] += 1
        point = coordinate_step(problem, point, gradient(problem, point), whole=hard)
        used["coordinate"] += 1
        for _ in range(3):
            point, decrement = newton_step(problem, point, gradient(problem, point), enough)
            used["newton"] += 1
            if decrement < (target if hard else 1e-2 * problem.scale):
                break
        stuck = stuck + 1 if point is before else 0
    return Solution(point.t, point.log_det, point.objective, best, n_iter, used)

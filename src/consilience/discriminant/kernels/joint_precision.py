"""Precision matrices of K classes that share their zeros, with a certificate.

Minimises ``sum_k n_k (tr(S_k T_k) - logdet T_k) + lam sum_{j != j'} |(T_1,jj', ..., T_K,jj')|_2``
over ordered pairs, the diagonal free (Le and Hastie, arXiv 1407.4543, equation 4; the joint
graphical lasso of Danaher, Wang and Witten, JRSS B 2014, with a group penalty only). Screening
splits the features exactly into blocks, each of which is solved alone; the gap between the value
and a feasible point of the dual says how far the result can be from the minimum.

A group of entries ``(T_1,jj', ..., T_K,jj')`` can only be other than zero within the connected
components of ``|(n_k S_k,jj')_k|_2 > lam`` (the covariance thresholding of Witten, Friedman and
Simon, JCGS 2011, and Mazumder and Hastie, JMLR 2012, for groups). So nothing of size p x p is
needed before the blocks are known.

In a block an iteration takes one proximal Newton step by coordinate descent, which finds the
support (all of it while few pairs are linked, else its border), and Newton steps on that support,
by conjugate gradients preconditioned with ``D -> T D T / n_k``. Coordinate descent alone stalls on
real data at small penalties, Newton alone does not know the support.

Where conjugate gradients need many steps, as where features share strong factors and most pairs are
linked, alternating directions (ADMM) by eigendecomposition go in their place, accelerated by
Anderson's method; they go on from where the solutions before lead, with a step that suits how far
that was from the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.discriminant.kernels.anderson import Anderson
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import ordered_map
from consilience.parameters import check, number, whole

Indices = NDArray[np.intp]

TILE = 512
"""Features of one side of a tile."""

ROUNDING = 1e-12


class ClassMoments(Protocol):
    """Numbers of rows and covariance matrices of K classes, by blocks and tiles."""

    @property
    def n(self) -> FloatArray:
        """Rows of each class, shape (K,)."""

    @property
    def n_features(self) -> int:
        """Number of features p."""

    @property
    def diagonal(self) -> FloatArray:
        """Variances ``S_k,jj`` with divisor n_k, shape (K, p)."""

    def block(self, features: Indices) -> FloatArray:
        """Covariances among some features, shape (K, q, q)."""

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Moments that are computed from rows when they are asked for.

    Parameters
    ----------
    n : ndarray of shape (K,)
    means : ndarray of shape (K, p)
    centred : tuple of ndarray of shape (n_k, p)
        Rows of each class minus the mean of the class.
    diagonal : ndarray of shape (K, p)
        Variances, with the floor.
    floor : ndarray of shape (K, p), optional
        What is added to the variances, as where a column is constant within a class.
    """

    n: FloatArray
    means: FloatArray
    centred: tuple[FloatArray, ...]
    diagonal: FloatArray
    floor: FloatArray | None = None

    @classmethod
    def of(cls, x: FloatArray, codes: NDArray[np.integer], n_classes: int) -> RowMoments:
        """Centre the rows of each class.

        Parameters
        ----------
        x : ndarray of shape (n, p)
        codes : ndarray of int of shape (n,)
            Class of each row, 0 to ``n_classes - 1``.
        n_classes : int

        Raises
        ------
        DataError
            Where a class has no row.
        """
        x = np.asarray(x, dtype=np.float64)
        parts = [x[codes == k] for k in range(n_classes)]
        n = np.array([len(part) for part in parts], dtype=np.float64)
        if (n == 0).any():
            raise DataError(f"class {int(np.argmin(n))} has no row: a class needs rows")
        means = np.stack([part.mean(axis=0) for part in parts])
        centred = tuple(part - mean for part, mean in zip(parts, means, strict=True))
        diagonal = np.stack([np.einsum("ij,ij->j", c, c) / len(c) for c in centred])
        return cls(n, means, centred, diagonal)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.means.shape[1])

    def block(self, features: Indices) -> FloatArray:
        """Covariances among some features, shape (K, q, q)."""
        out = np.empty((len(self.n), len(features), len(features)))
        for k, rows in enumerate(self.centred):
            part = rows if len(features) == self.n_features else rows[:, features]
            np.divide(part.T @ part, self.n[k], out=out[k])
        if self.floor is not None:
            place = np.arange(len(features))
            out[:, place, place] += self.floor[:, features]
        return out

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""
        products = (part[:, rows].T @ part[:, columns] for part in self.centred)
        return np.asarray(np.sqrt(sum(np.square(product) for product in products)))


def pair_norms(matrices: FloatArray) -> FloatArray:
    """Euclidean norm over the first axis, shape (q, q) of (K, q, q)."""
    return np.sqrt(np.einsum("kij,kij->ij", matrices, matrices))


def tiles(p: int) -> list[tuple[slice, slice]]:
    """Tiles on and above the diagonal."""
    cuts = [slice(start, min(start + TILE, p)) for start in range(0, p, TILE)]
    return [(a, b) for i, a in enumerate(cuts) for b in cuts[i:]]


def components(moments: ClassMoments, lam: float) -> Indices:
    """Label of the component of each feature, shape (p,), exact.

    Parameters
    ----------
    moments : ClassMoments
    lam : float
        Penalty; features are linked where ``|(n_k S_k,jj')_k|_2 > lam``.

    Notes
    -----
    Memory is one tile, its links, and one label for each feature. Labels follow the smallest
    feature of each component. Norms within rounding of lam count as equal to it, so that the
    largest penalty gives single features however its tiles were added up.
    """
    bound = lam * (1 + ROUNDING)
    labels = np.arange(moments.n_features)
    for rows, columns in tiles(moments.n_features):
        linked = moments.norms(rows, columns) > bound
        if rows == columns:
            linked = np.triu(linked, 1)
        i, j = np.nonzero(linked)
        if i.size:
            labels = merged(labels, i + rows.start, j + columns.start)
    return labels


def merged(labels: Indices, i: Indices, j: Indices) -> Indices:
    """Labels after the components of ``i`` and ``j`` became one, in order of first features."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of labels, not of features.
    a, b = labels[i], labels[j]
    if (a == b).all():
        return labels
    p = len(labels)
    graph = coo_array((np.ones(len(a), dtype=bool), (a, b)), shape=(p, p))
    _, found = connected_components(graph, directed=False)
    _, first, inverse = np.unique(found[labels], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[inverse], dtype=np.intp)


def largest_penalty(moments: ClassMoments) -> float:
    """Smallest lam with diagonal precision matrices: the largest ``|(n_k S_k,jj')_k|_2``.

    Parameters
    ----------
    moments : ClassMoments
    """
    largest = 0.0
    for rows, columns in tiles(moments.n_features):
        tile = moments.norms(rows, columns)
        if rows == columns:
            np.fill_diagonal(tile, 0.0)
        largest = max(largest, float(tile.max()))
    return largest


# --------------------------------------------------------------------------- one block


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


# --------------------------------------------------------------------------- all blocks


_ALLOWED = {"lam": number(0), "tol": number(above=0), "max_iter": whole(1)}

MOST_STEPS = 200
"""Iterations of a block at most, unless given."""
LARGE = 60
"""Features of a block that is worth a worker of its own."""


@dataclass(frozen=True, eq=False)
class JointPrecision:
    """Precision matrices by blocks, and how exact they are.

    Parameters
    ----------
    lam : float
        Penalty.
    n : ndarray of shape (K,)
        Rows of each class.
    n_features : int
    blocks : tuple of ndarray of int of shape (q,)
        Connected features, each sorted, in order of first features. Other features are single.
    precisions : tuple of ndarray of shape (K, q, q)
        Precision matrices of each block.
    diagonal : ndarray of shape (K, p)
        ``1 / S_k,jj`` of single features, NaN inside blocks.
    log_det : ndarray of shape (K,)
        Log-determinants of the whole precision matrices.
    objective, dual : float
        Value, and that of a feasible point of the dual.
    gap : float
        Their difference: the value is at most this far above the minimum.
    relative_gap : float
        ``gap / (p sum_k n_k)``.
    penalty_norm : float
        ``P(T)``, the sum of group norms over ordered pairs.
    n_links : int
        Pairs ``j < j'`` whose group is not zero.
    n_iter : int
        Largest number of iterations of a block.
    solvers : dict
        Steps of each kind over all blocks.
    duals : tuple of (ndarray of shape (K, q, q) or None)
        ``Gamma`` of the blocks that alternating directions solved, from which the next fit starts.
    reaches : tuple of (float or None)
        What suits these blocks as the reach of the next fit.
    """

    lam: float
    n: FloatArray
    n_features: int
    blocks: tuple[Indices, ...]
    precisions: tuple[FloatArray, ...]
    diagonal: FloatArray
    log_det: FloatArray
    objective: float
    dual: float
    gap: float
    relative_gap: float
    penalty_norm: float
    n_links: int
    n_iter: int
    solvers: dict[str, int] = field(default_factory=dict)
    duals: tuple[FloatArray | None, ...] = ()
    reaches: tuple[float | None, ...] = ()

    def dense(self) -> FloatArray:
        """Whole precision matrices, shape (K, p, p)."""
        out = np.zeros((len(self.n), self.n_features, self.n_features))
        place = np.arange(self.n_features)
        out[:, place, place] = self.diagonal
        for block, precision in zip(self.blocks, self.precisions, strict=True):
            out[:, block[:, None], block[None, :]] = precision
        return out

    def links(self) -> tuple[Indices, FloatArray]:
        """Linked pairs ``j < j'``, shape (n_links, 2), and their entries, shape (n_links, K)."""
        pairs: list[Indices] = [np.empty((0, 2), dtype=np.intp)]
        entries: list[FloatArray] = [np.empty((0, len(self.n)))]
        for block, precision in zip(self.blocks, self.precisions, strict=True):
            i, j = np.nonzero(np.triu(pair_norms(precision), 1))
            pairs.append(np.stack([block[i], block[j]], axis=1))
            entries.append(precision[:, i, j].T)
        found = np.concatenate(pairs)
        order = np.lexsort((found[:, 1], found[:, 0]))
        return found[order], np.concatenate(entries)[order]


def fit_precisions(
    moments: ClassMoments,
    lam: float,
    *,
    start: JointPrecision | None = None,
    before: Sequence[JointPrecision] = (),
    tol: float = 1e-8,
    max_iter: int = MOST_STEPS,
    max_block: int | None = None,
    n_jobs: int | None = 1,
) -> JointPrecision:
    """Fit the precision matrices of all classes at one penalty.

    Parameters
    ----------
    moments : ClassMoments
        Every variance must be positive.
    lam : float
        Penalty, not negative; 0 gives the inverses of the covariance matrices.
    start : JointPrecision, optional
        A fit at another penalty, from which the iteration starts.
    before : sequence of JointPrecision
        Up to two fits before that one, the last first: dense blocks start where all of them lead.
    tol : float
        Relative gap to reach.
    max_iter : int
        Largest number of iterations of a block; where it is reached, the gap says so.
    max_block : int, optional
        Refuse blocks with more features than this.
    n_jobs : int, optional
        Blocks at the same time, as in joblib.

    Raises
    ------
    ParameterError
        Where a parameter is out of range, or a block is larger than ``max_block``.
    DataError
        Where a variance is not positive, or lam = 0 and a covariance matrix is singular.
    """
    check(_ALLOWED, {"lam": lam, "tol": tol, "max_iter": max_iter})
    n, p, variances = moments.n, moments.n_features, moments.diagonal
    bad = ~(np.isfinite(variances) & (variances > 0))
    if bad.any():
        k, j = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(
            f"feature {j} has no positive variance in class {k} (numbered from 0): leave it out, "
            "or give it a variance"
        )
    # Exact: between two components no entry of the minimum differs from zero.
    labels = components(moments, lam)
    # Components of two features or more, in order of first features.
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    blocks = [block for block in np.split(order, cuts) if len(block) > 1]
    # Refused before anything of their size is made.
    largest = max((len(block) for block in blocks), default=0)
    if max_block is not None and largest > max_block:
        alpha = lam / float(np.sum(n))
        raise ParameterError(
            f"the largest block has {largest} of {p} features at alpha = {alpha:.6g} (lam = "
            f"{lam:.6g}), more than max_block = {max_block}: raise alpha or max_block"
        )
    parts = [moments.block(block) for block in blocks]
    tasks: list[tuple[Any, ...]] = [
        (problem, block, _start(block, variances[:, block], start), tol, max_iter, ahead)
        for block, part in zip(blocks, parts, strict=True)
        for problem in [Problem(part, n, lam)]
        for ahead in [_ahead(problem, block, variances[:, block], start, before)]
    ]
    if n_jobs != 1 and sum(len(block) >= LARGE for block in blocks) > 1:
        solutions = ordered_map(_solve, tasks, n_jobs=n_jobs)
    else:
        solutions = [_solve(task) for task in tasks]
    # Features without a link have the inverse of their variance.
    diagonal, single = 1.0 / variances, np.ones(p, dtype=bool)
    for block in blocks:
        single[block] = False
    diagonal[:, ~single] = np.nan
    log_det = np.log(diagonal[:, single]).sum(axis=1)
    objective = dual = float(n @ (single.sum() - log_det))
    solvers: Counter[str] = Counter()
    norm, n_links = 0.0, 0
    for solution in solutions:
        log_det = log_det + solution.log_det
        objective += solution.objective
        dual += solution.dual
        norms = pair_norms(solution.t)
        np.fill_diagonal(norms, 0.0)
        norm += float(norms.sum())
        n_links += int(np.count_nonzero(norms)) // 2
        solvers.update(solution.solvers)
    # Blocks add up: so do their gaps, without the cancellation of large values.
    gap = float(sum(solution.gap for solution in solutions))
    return JointPrecision(
        lam=float(lam),
        n=n,
        n_features=p,
        blocks=tuple(blocks),
        precisions=tuple(solution.t for solution in solutions),
        diagonal=diagonal,
        log_det=log_det,
        objective=objective,
        dual=dual,
        gap=gap,
        relative_gap=gap / float(p * n.sum()),
        penalty_norm=norm,
        n_links=n_links,
        n_iter=max((solution.n_iter for solution in solutions), default=0),
        solvers=dict(solvers),
        duals=tuple(solution.gamma for solution in solutions),
        reaches=tuple(solution.reach for solution in solutions),
    )


def _start(block: Indices, variances: FloatArray, start: JointPrecision | None) -> FloatArray:
    """Block-diagonal start: earlier precision matrices where they lie inside the block."""
    place = np.arange(len(block))
    out = np.zeros((len(variances), len(block), len(block)))
    out[:, place, place] = 1.0 / variances
    if start is None:
        return out
    for i, at, own in _inside(block, start):
        out[:, at[:, None], at] = start.precisions[i][:, own[:, None], own]
    return out


def _inside(block: Indices, fit: JointPrecision) -> list[tuple[int, Indices, Indices]]:
    """Blocks of a fit that reach into a block: which, places in the block, and in their own."""
    found = []
    for place, earlier in enumerate(fit.blocks):
        at = np.searchsorted(block, earlier)
        shared = (at < len(block)) & (block[np.minimum(at, len(block) - 1)] == earlier)
        if shared.any():
            found.append((place, at[shared], np.flatnonzero(shared)))
    return found


def _ahead(
    problem: Problem,
    block: Indices,
    variances: FloatArray,
    start: JointPrecision | None,
    before: Sequence[JointPrecision],
) -> Ahead | None:
    """What to expect of a block of whose parts alternating directions solved one; else None."""
    if start is None or not start.duals or problem.lam <= 0:
        return None
    solved = [i for i, _, _ in _inside(block, start) if start.duals[i] is not None]
    if not solved:
        return None
    reach = start.reaches[max(solved, key=lambda i: len(start.blocks[i]))] or REACH
    fits = [start]
    for fit in before:
        if not fits[-1].lam < fit.lam:
            break
        fits.append(fit)
    if not problem.lam < start.lam:
        fits = fits[:1]
    # On a geometric path T goes on along log lam, and Gamma, whose norms are lam, along lam.
    lams = np.array([problem.lam] + [fit.lam for fit in fits])
    t = [_start(block, variances, fit) for fit in fits]
    gamma = [_slack(problem, block, fit) for fit in fits]
    return onward(np.log(lams), t), onward(lams, gamma), reach


def onward(at: FloatArray, values: list[FloatArray]) -> FloatArray:
    """Value at ``at[0]`` from those at ``at[1:]``: by a line, half of the way to a parabola.

    Parameters
    ----------
    at : ndarray of shape (m + 1,)
        Falling or rising.
    values : list of m ndarrays
        One to three.
    """
    if len(values) == 1:
        return values[0]
    steps = at[:-1] - at[1:]
    share = min(1.0, steps[0] / steps[1])
    step = share * (values[0] - values[1])
    if len(values) == 2:
        return np.asarray(values[0] + step)
    last = share * steps[1] / steps[2] * (values[1] - values[2])
    return np.asarray(values[0] + step + 0.5 * (step - last))


def _slack(problem: Problem, block: Indices, fit: JointPrecision) -> FloatArray:
    """``Gamma`` of an earlier fit; ``-n_k S_k`` between features that it did not link."""
    out = off_diagonal(problem, np.zeros_like(problem.s))
    for i, at, own in _inside(block, fit):
        gamma = fit.duals[i] if fit.duals else None
        if gamma is None:
            found = cholesky(fit.precisions[i])
            if found is None:
                continue
            w = symmetric_inverse(found[0])[:, own[:, None], own]
            part = Problem(problem.s[:, at[:, None], at], problem.n, fit.lam)
            out[:, at[:, None], at] = off_diagonal(part, w)
        else:
            out[:, at[:, None], at] = gamma[:, own[:, None], own]
    return out


def _solve(task: tuple[Problem, Indices, FloatArray, float, int, Ahead | None]) -> Solution:
    """One block; picklable, so that workers can be processes."""
    problem, block, t, tol, max_iter, ahead = task
    if problem.lam > 0:
        return solve_block(problem, t, tol=tol, max_iter=max_iter, ahead=ahead)
    # Without a penalty: the inverses.
    factors = []
    for k, s in enumerate(problem.s):
        found = cholesky(s[None])
        factor = None if found is None else found[0][0]
        # Singular also where a pivot is nothing but rounding beside its diagonal element.
        if (
            factor is None
            or (np.diag(factor) < 1e-7 * np.sqrt(np.einsum("ij,ij->i", factor, factor))).any()
        ):
            raise DataError(
                f"the covariance matrix of class {k} (numbered from 0) is singular over the "
                f"{len(block)} features linked to feature {int(block[0])}: lam = 0 has no "
                "solution, give a positive lam"
            )
        factors.append(factor)
    lower = np.stack(factors)
    log_det = -2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    value = float(problem.n @ (len(block) - log_det))
    return Solution(symmetric_inverse(lower), log_det, value, value, 1, {"inverse": 1})

"""Standard errors of a joint model whose columns are held by several parties.

With ``X = [1, X_a, X_b]``, weights ``W`` and scores ``s`` at the joint fit, the linear predictor
of a new subject ``x = (1, x_a, x_b)`` has sandwich variance ``sum_i c_i^2 s_i^2`` where ``c = X v``
and ``(X'WX) v = x``. (Zhang, Yang and Ding 2025, *Journal of the Royal Statistical Society B*,
section 4, use local parts instead; these leave out the covariance of the two parts and are no valid
variance where the parties' columns are correlated.)

Solving for c with one number a row
-----------------------------------
The initiator holds ``D = [1, X_a, M]``, M = X_b B the messages of the training, and is told
``B' x_b`` for each target. ``initiator_solution`` solves ``(D'WD) v = (1, x_a, B'x_b)``: the best
``c`` in the span of D in the norm of W (a Galerkin solution). It sends ``W c``. The partner's
equation has the residual ``r = x_b - X_b' W c``; ``partner_residual`` returns its size and new
directions ``G^{-1} r``, ``G = X_b'WX_b`` off the constant, which become further columns of M. The
next Galerkin solution is exact on them too. That is the conjugate gradient method on the Schur
complement ``S`` of the system (see :mod:`consilience.assisted.kernels.joint_glm`), with full
orthogonalisation, started from the space that the training revealed, and shared by all targets;
it ends after at most rank(X_b) - k further columns.

What remains is known: ``x'(X'WX)^- x = c'Wc + r' S^- r``, and ``S >= (1 - rho^2) G``, rho the
largest canonical correlation below 1, so that

``c'Wc <= true model-based variance <= c'Wc + r'G^- r / (1 - rho^2)``.

A target is *certified* where ``sqrt(r'G^- r / c'Wc) <= 1e-8``. Where the rank budget ends earlier
the upper bound gives a *factor* on the model-based error. The bound is exact for the true rho;
``largest_correlation`` estimates rho from the Ritz values of S on the messages, which bound rho
*from below*. So ``1 - rho^2`` is taken as half of the least Ritz value, and as .05 if that is less
(rho at least .975). That is an assumption: nobody who sees less than all of X_b can rule out a
larger correlation in a direction that no message touched, where the partner may even hold a copy of
a column of the initiator. With bare Ritz values 16% of the bounds fail on random designs.

A coefficient of the initiator is *shared* where its column lies in the joint span of others: then
``X'WX`` is singular and the target is no combination of its rows. It shows as a column of M that
depends on ``[1, X_a]`` and earlier messages with a combination that the target does not satisfy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, qr, solve_triangular

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import DEPENDENT, gram, independent_columns
from consilience.exceptions import DataError, ParameterError

CERTIFIED = 1e-8
WIDEST = 1.5  # a factor above this is not reported
_CONSISTENT = 1e-6  # mismatch of a target with a dependence, in units of the columns


@dataclass(frozen=True)
class Solution:
    """The initiator's solution for m targets.

    Parameters
    ----------
    c : ndarray of shape (n, m)
    weighted : ndarray of shape (n, m)
        ``W c``, what the partners are sent.
    se_model, se_sandwich : ndarray of shape (m,)
        ``sqrt(c'Wc)`` and ``sqrt(sum c_i^2 s_i^2)``, without a factor for small n.
    estimable : ndarray of bool, shape (m,)
        False where the target contradicts a dependence among the columns.
    rank : int
        Rank of the design.
    """

    c: FloatArray
    weighted: FloatArray
    se_model: FloatArray
    se_sandwich: FloatArray
    estimable: NDArray[np.bool_]
    rank: int


def initiator_solution(
    design: FloatArray, w: FloatArray, s: FloatArray, targets: FloatArray
) -> Solution:
    """Solve ``(D'WD) v = x`` and form ``c = D v``.

    Parameters
    ----------
    design : ndarray of shape (n, q)
        ``[1, X_a, M]``; may have dependent columns.
    w, s : ndarray of shape (n,)
        Second and first derivatives of the loss at the joint fit, each times the record's prior
        weight (0 for held-out rows).
    targets : ndarray of shape (m, q)
        ``(1, x_a, B'x_b)`` of new subjects, ``(0, e_j, 0)`` for a coefficient.

    Raises
    ------
    DataError
        Shapes that do not fit, or a negative weight.
    """
    design, targets = np.asarray(design, dtype=float), np.atleast_2d(targets)
    if targets.shape[1] != design.shape[1] or w.shape != design.shape[:1] or np.any(w < 0):
        raise DataError("a target needs one number per column of the design, weights at least 0")
    root = np.sqrt(w)
    tall = design * root[:, None]
    units = np.sqrt(np.einsum("ij,ij->j", tall, tall))
    units[units == 0] = 1.0
    tall /= units
    x = (targets / units).T
    kept, triangle = independent_columns(tall)
    if triangle is None:
        (triangle,) = qr(tall[:, kept], mode="r", check_finite=False)
        triangle = triangle[: int(kept.sum())]
    # D'WD = R'R, so c'Wc = x'(R'R)^-1 x = |R'^-1 x|^2
    u = solve_triangular(triangle, x[kept], trans="T")
    estimable = np.ones(x.shape[1], dtype=bool)
    if not kept.all():
        # Column j is D_kept gamma, so a target must have x_j = gamma' x_kept.
        inner = tall[:, kept].T @ tall[:, ~kept]
        gamma = solve_triangular(triangle, solve_triangular(triangle, inner, trans="T"))
        gap = np.max(np.abs(x[~kept] - gamma.T @ x[kept]), axis=0)
        estimable = gap <= _CONSISTENT * np.linalg.norm(x, axis=0)
    # (D'WD) v = x
    v = solve_triangular(triangle, u) / units[kept, None]
    c = design[:, kept] @ v
    return Solution(
        c=c,
        weighted=w[:, None] * c,
        se_model=np.linalg.norm(u, axis=0),
        se_sandwich=np.linalg.norm(c * s[:, None], axis=0),
        estimable=estimable,
        rank=int(kept.sum()),
    )


@dataclass(frozen=True)
class Residual:
    """What a partner answers to ``W c`` of m targets.

    Parameters
    ----------
    rest : ndarray of shape (m,)
        ``r'G^- r``: variance that its equations still hide, before the division by 1 - rho^2.
    relative : ndarray of shape (m,)
        Its root, relative to ``sqrt(c'Wc)``.
    estimable : ndarray of bool, shape (m,)
        False where the target contradicts a dependence among the partner's own columns.
    directions : ndarray of shape (p_b, k)
        Coefficients of new messages, orthonormal in G, those that matter most first.
    rank : int
        Rank of the partner's columns.
    """

    rest: FloatArray
    relative: FloatArray
    estimable: NDArray[np.bool_]
    directions: FloatArray
    rank: int


def partner_residual(
    x_b: FloatArray,
    w: FloatArray,
    weighted: FloatArray,
    targets: FloatArray,
    most: int | None = None,
    enough: float = CERTIFIED,
) -> Residual:
    """Residual of a partner's equations, and directions that reduce it.

    Parameters
    ----------
    x_b : ndarray of shape (n, p_b)
        Columns, centred as in the training.
    w : ndarray of shape (n,)
        Second derivatives at the joint fit times prior weights.
    weighted : ndarray of shape (n, m)
        ``W c`` as received.
    targets : ndarray of shape (m, p_b)
        New subjects' columns, centred by the same means; zeros for the initiator's coefficients.
    most : int, optional
        Most directions to return.
    enough : float
        Relative size of what may be left of a target along the directions that are returned.
    """
    x_b, targets = np.asarray(x_b, dtype=float), np.atleast_2d(targets)
    weighted = np.asarray(weighted, dtype=float)
    if targets.shape != (weighted.shape[1], x_b.shape[1]) or weighted.shape[0] != x_b.shape[0]:
        raise DataError("each target needs one row of columns and one column of W c")
    total = float(w.sum())
    mean = (w @ x_b) / total
    spread = np.sqrt(np.maximum(w @ (x_b - mean) ** 2 / total, 0.0))
    live = spread > DEPENDENT * np.sqrt(spread**2 + mean**2)
    scale = np.where(live, spread, 1.0)
    z = (x_b - mean) / scale
    kept, triangle = independent_columns(z, w / total, live=live)
    if triangle is None:
        triangle = cholesky(gram(z[:, kept], w), check_finite=False)
    else:
        triangle = triangle * math.sqrt(total)
    # The constant is in the initiator's span, so 1'Wc is the target's own constant.
    constant = weighted.sum(axis=0)
    x = (targets - np.outer(constant, mean)) / scale
    # r = x_b - X_b'Wc, in standardised columns
    r = x.T - z.T @ weighted
    positive = w > 0
    size = np.einsum("ij,ij,i->j", weighted[positive], weighted[positive], 1 / w[positive])
    size = np.where(size > 0, size, 1.0)
    # |white|^2 = r'G^- r
    white = solve_triangular(triangle, r[kept], trans="T", check_finite=False)
    rest = np.einsum("ij,ij->j", white, white)
    estimable = np.ones(x.shape[0], dtype=bool)
    if not kept.all():
        gamma = np.linalg.solve(triangle.T @ triangle, z[:, kept].T @ (w[:, None] * z[:, ~kept]))
        gap = np.max(np.abs(x[:, ~kept] - x[:, kept] @ gamma), axis=1)
        estimable = gap <= _CONSISTENT * np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    left, values, _ = np.linalg.svd((white / np.sqrt(size))[:, estimable], full_matrices=False)
    count = int(np.sum(values > CERTIFIED))
    if enough > CERTIFIED:
        # the fewest leading directions off which no target has more than enough
        along = np.square(left.T @ (white / np.sqrt(size))[:, estimable])
        gone = np.cumsum(np.vstack([np.zeros((1, along.shape[1])), along]), axis=0)
        short = ((gone[-1] - gone) > enough**2).any(axis=1)
        count = min(count, int(short.sum()))
    count = count if most is None else min(count, most)
    directions = np.zeros((x_b.shape[1], count))
    # G^-1 r, those of the largest singular values first
    directions[kept] = solve_triangular(triangle, left[:, :count], check_finite=False)
    return Residual(
        rest=rest,
        relative=np.sqrt(rest / size),
        estimable=estimable,
        directions=directions / scale[:, None],
        rank=int(kept.sum()),
    )


def ritz_values(design: FloatArray, w: FloatArray, owner: NDArray[np.int64]) -> FloatArray:
    """Ritz values of the Schur complement on the messages, increasing.

    ``[1, X_a]`` are the first columns of `design`, the messages of `owner` the last. The values lie
    above the eigenvalues ``1 - rho_j^2`` that they approximate; those of shared directions (below
    1e-8) are left out.
    """
    k = owner.size
    own = design.shape[1] - k
    if k == 0:
        return np.zeros(0)
    root = np.sqrt(w)[:, None]
    q, _ = np.linalg.qr(root)
    m = design[:, own:] * root
    m = m - q @ (q.T @ m)
    basis = np.zeros_like(m)
    first = 0
    for each in np.unique(owner):  # an orthonormal basis of each owner's messages
        mine = m[:, owner == each]
        mine = mine / np.maximum(np.linalg.norm(mine, axis=0), 1e-300)
        left, values, _ = np.linalg.svd(mine, full_matrices=False)
        left = left[:, values > DEPENDENT * values[0]]
        basis[:, first : first + left.shape[1]] = left
        first += left.shape[1]
    basis = basis[:, :first]
    tall = design[:, :own] * root
    tall = tall / np.maximum(np.linalg.norm(tall, axis=0), 1e-300)
    kept, _ = independent_columns(tall)
    a, _ = np.linalg.qr(tall[:, kept])
    off = basis - a @ (a.T @ basis)
    # messages off [1, X_a]: S in the coordinates of an orthonormal basis of M
    values = eigh(off.T @ off, eigvals_only=True)
    return np.asarray(values[values > DEPENDENT])


def largest_correlation(ritz: FloatArray, *, margin: float = 0.5, most: float = 0.05) -> float:
    """Careful estimate of the largest canonical correlation below 1 from Ritz values.

    ``1 - rho^2`` is the least Ritz value times `margin`, at most `most`. Ritz values alone err on
    the other side (see the module's description), so this is an assumption and no bound. NaN
    without messages.
    """
    if ritz.size == 0:
        return math.nan
    return math.sqrt(1 - min(margin * float(ritz[0]), most))


def bounded_factor(se_model: FloatArray, rest: FloatArray, rho: float) -> FloatArray:
    """Factor on the model-based error that covers what the partners' equations still hide.

    ``sqrt(1 + rest / ((1 - rho^2) se^2))``; NaN where it exceeds 1.5 or rho is not known.
    """
    if not 0 <= rho < 1:
        return np.full(np.shape(se_model), math.nan)
    size = np.maximum(np.asarray(se_model) ** 2, 1e-300)
    # true variance <= c'Wc + r'G^- r / (1 - rho^2)
    factor = np.sqrt(1 + np.asarray(rest) / ((1 - rho**2) * size))
    return np.where(factor <= WIDEST, factor, math.nan)


def enough_for(accuracy: float, rho: float) -> float:
    """Relative size of what may be left where the factor is to be at most ``1 + accuracy``.

    The inverse of `bounded_factor`; NaN where rho is not known.
    """
    return math.sqrt(((1 + accuracy) ** 2 - 1) * (1 - rho**2))


def local_errors(
    x: FloatArray, w: FloatArray, s: FloatArray, targets: FloatArray, *, constant: bool
) -> tuple[FloatArray, FloatArray]:
    """Model-based and sandwich variances ``sigma^2`` of a party's own part, each of shape (m,).

    The initiator includes the constant (``constant=True``; targets are then ``x_a`` alone).
    """
    x, targets = np.asarray(x, dtype=float), np.atleast_2d(targets)
    if constant:
        x = np.column_stack([np.ones(x.shape[0]), x])
        targets = np.column_stack([np.ones(targets.shape[0]), targets])
    solution = initiator_solution(x, w, s, targets)
    return solution.se_model**2, solution.se_sandwich**2


def contraction(changes: FloatArray) -> float:
    """Largest canonical correlation below 1, from the changes of eta in plain alternation.

    Changes fall by ``rho^2`` a round; the largest of the last three ratios is taken. It approaches
    rho from below.

    Raises
    ------
    ParameterError
        Fewer than 5 rounds.
    """
    changes = np.asarray(changes, dtype=float)
    if changes.size < 5:
        raise ParameterError.of("rounds", "at least 5 for an inflated interval", changes.size)
    return math.sqrt(min(float(np.max(changes[-3:] / changes[-4:-1])), 1.0))


def inflated(sigma_a2: FloatArray, sigma_b2: FloatArray, rho: float) -> FloatArray:
    """Upper bound ``sqrt((sigma_a^2 + sigma_b^2)/(1 - rho))`` of the model-based error.

    Only for *model-based* local variances: with sandwich parts it is no bound.

    Raises
    ------
    ParameterError
        rho outside [0, 1).
    """
    if not 0 <= rho < 1:
        raise ParameterError.of("rho", "at least 0 and below 1", rho)
    return np.asarray(np.sqrt((np.asarray(sigma_a2) + np.asarray(sigma_b2)) / (1 - rho)))

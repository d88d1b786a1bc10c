"""One generalised linear model on the columns of several parties, by messages of one number a row.

The initiator holds the response ``y`` and ``X_a``, each partner a block ``X_b`` (centred over all
rows). The loss is a family's of :mod:`consilience.assisted.kernels.glm` at ``eta = 1 b0 + X_a
beta_a + sum_b X_b beta_b``. In plain alternation (Zhang, Yang and Ding 2025, *Journal of the Royal
Statistical Society B*, algorithm 2) a party fits its own block with the others' part as an offset,
and sends its linear predictor. Three ways are built here, with the same messages:

``none``
    Plain alternation: the error of eta contracts by the squared largest canonical correlation
    below 1 in each round.
``anderson``
    Anderson acceleration (Walker and Ni 2011, *SIAM J. Numer. Anal.* 49) of the offsets that the
    initiator sends; a cycle that raises the objective is undone.
``span`` (not in the source)
    The initiator refits on ``[1, X_a, M]``, where the columns of M are *all* messages so far.

Why span is a Krylov method
---------------------------
Normal case, one partner. Write ``Q`` for the projection off ``[1, X_a]`` and ``S = X_b' Q X_b`` for
the Schur complement of the pooled normal equations with ``a`` eliminated: the pooled ``beta_b``
solves ``S beta_b = X_b' Q y``. After a refit the residual ``r`` is orthogonal to ``[1, X_a, M]``.
The partner's local fit moves its coefficients by ``d = (X_b'X_b)^{-1} X_b' r``: the gradient of the
Schur problem, preconditioned by ``X_b'X_b``. The refit minimises over the span of all ``d`` so far.
That is the preconditioned conjugate gradient method, with full orthogonalisation instead of its
three-term recurrence. The eigenvalues of the preconditioned operator are ``1 - rho_j^2``, rho_j the
canonical correlations of the two column spaces, so the number of rounds is at most the number of
*distinct* ones below 1 (at most rank(X_b)), and before that the error falls at least by
``(1 - g)/(1 + g)``, ``g = sqrt(1 - rho^2)``, against ``rho^2`` of alternation. Directions that
both hold (rho_j = 1) are null vectors of S in which the right hand side has no part: they cost
nothing. No choice of messages that are local fits to what was sent does better in this case, since
the predictor of any such scheme lies in the same Krylov space and span takes its best point.

In a general family the same holds with the weights ``W`` at the solution, up to terms of the
square of the present error, because a local fit from the joint eta is a Newton step of the block
plus such terms, and the refit leaves a score that is orthogonal to all of ``[1, X_a, M]``. Since
no earlier message is dropped, dominant eigenvalues are removed one after the other and the rate
improves from round to round (superlinear convergence as of conjugate gradients, until rounding);
what is *guaranteed* is that the deviance never rises, and that the fit is the pooled one once the
messages span the column space: a local fit that can still lower the loss moves in a direction
which is not in ``[1, X_a, M]``, so each message adds a dimension.

A message is the *change* of the partner's part, from the joint fit to its own full local fit. The
span is that of the full predictors, but changes are nearly orthogonal to one another, where
successive predictors agree in all but the last digits. The partner learns its own present part
from one number per earlier message (``weights_for``). Its first message is a full local fit:
a single Newton step there leaves far more deviance, later the two agree.

With a ridge penalty the same is exact: the penalty of the partner's part is a quadratic form in the
Gram matrix of its coefficient vectors, so a message is accompanied by its inner products with the
earlier ones (``inner``). An L1 part has no such form; there Anderson acceleration takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh, lstsq, qr, solve_triangular

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import (
    DEPENDENT,
    Family,
    Penalty,
    fit,
    gram,
    independent_columns,
)
from consilience.assisted.kernels.local_fits import (
    Design,
    Newton,
    Partner,
    Problem,
    State,
    as_columns,
    has_l1,
    ridge_strength,
)
from consilience.exceptions import DataError, ParameterError


class SpanModel:
    """The initiator's side of ``span``: refits on ``[1, X_a, M]``, M the messages so far.

    Parameters
    ----------
    x_a : ndarray of shape (n, p_a)
    y : ndarray of shape (n,)
    family : Family
    weights : ndarray of shape (n,), optional
        Records of weight 0 take no part, but have a linear predictor.
    penalty : Penalty, optional
        Ridge only.
    offset : ndarray of shape (n,), optional
        Part of every linear predictor.

    Attributes
    ----------
    coef_a, intercept, eta, deviance
        The present fit. Round 0, the initiator's own model, is fitted on construction.
    objective : float
        Deviance plus penalty.
    owner : ndarray of int, shape (k,)
        Whose message each column of M came from.

    Raises
    ------
    ParameterError
        A penalty with an L1 part.
    """

    def __init__(
        self,
        x_a: FloatArray,
        y: FloatArray,
        family: Family,
        *,
        weights: FloatArray | None = None,
        penalty: Penalty | None = None,
        state: Mapping[str, NDArray[Any]] | None = None,
        offset: FloatArray | None = None,
    ) -> None:
        if has_l1(penalty):
            raise ParameterError.of("penalty", "without an L1 part for span", penalty)
        x_a = as_columns(x_a, y)
        self._problem = Problem.of(y, family, weights)
        self._strength, self._newton = ridge_strength(penalty), Newton(self._problem)
        if state is None:
            of: dict[str, Any] = {"offset": offset, "weights": weights, "penalty": penalty}
            alone = fit(x_a, self._problem.y, family, **of)
            self._design = Design(x_a, self._problem.v, alone.kept)
            self.owner = np.zeros(0, dtype=np.int64)
            self._r = np.zeros((0, 0))  # messages = Q r, Q the orthonormal columns of the design
            self._inner = np.zeros((0, 0))  # Gram of the coefficient vectors behind the messages
            self._theta = self._design.inner(alone.coef, alone.intercept)
            self.eta = alone.eta
        else:
            self._design = Design(x_a, self._problem.v, np.array(state["kept"], dtype=bool))
            for column in np.asarray(state["q"], dtype=float):
                self._design.append(column)
            self.owner = np.array(state["owner"])
            self._r, self._inner = np.array(state["r"]), np.array(state["inner"])
            self._theta, self.eta = np.array(state["theta"]), np.array(state["eta"])
            self._newton.hessian = np.array(state["hessian"])
            self._newton.reference = np.array(state["reference"])
        self._publish()

    def to_state(self) -> State:
        """Arrays from which ``SpanModel(..., state=...)`` goes on."""
        return {
            "kept": self._design.kept,
            # columns as rows, which is how they lie in memory
            "q": self._design.added.T,
            "owner": self.owner,
            "r": self._r,
            "inner": self._inner,
            "theta": self._theta,
            "eta": self.eta,
            "hessian": self._newton.hessian,
            "reference": self._newton.reference,
        }

    @property
    def messages(self) -> FloatArray:
        """The messages in the span, as they were received, shape (n, k)."""
        return np.asarray(self._design.added @ self._r)

    @property
    def rank(self) -> int:
        """Rank of the initiator's own columns, without the intercept."""
        return self._design.own - 1

    def add(self, message: FloatArray, owner: int, inner: FloatArray | None = None) -> bool:
        """Take a message into the span.

        Parameters
        ----------
        message : ndarray of shape (n,)
        owner : int
        inner : ndarray of shape (k_owner + 1,), optional
            With a ridge penalty: inner products of the coefficients behind this message with
            those behind the owner's earlier ones, and with themselves.

        Returns
        -------
        bool
            False if the message has nothing new: its residual on ``[1, X_a, M]`` (on M, with a
            ridge penalty) is below 1e-8 of its size, or of the size of the owner's part of eta.
        """
        message = np.asarray(message, dtype=float)
        if message.shape != self._problem.y.shape or not np.all(np.isfinite(message)):
            raise DataError("a message must be one finite number per record")
        mine = np.flatnonzero(self.owner == owner)
        if self._strength and (inner is None or np.shape(inner) != (mine.size + 1,)):
            raise DataError("a ridge penalty needs one inner product per kept message")
        v, design = self._problem.v, self._design
        # lengths in the metric of the weights: rows of weight 0 do not count
        size = math.sqrt(float(v @ message**2))
        if size == 0.0:
            return False
        q = design.added
        # Gram-Schmidt, twice: message = size (Q row + rest)
        rest, row = message / size, np.zeros(q.shape[1])
        for _ in range(2):
            part = q.T @ (v * rest)
            rest, row = rest - q @ part, row + part
        left = math.sqrt(float(v @ rest**2))
        part_size = float(np.linalg.norm(self._r[:, mine] @ self.weights_for(owner)))
        # a small change of a large part has fewer digits of its own
        least = DEPENDENT * max(1.0, part_size / size)
        if left < least:
            return False
        if not self._newton.hessian.size:
            self._newton.refresh(design, self.eta, self._ridge())
        design.append(rest / left)
        cross = self._newton.cross(design)
        if not self._strength and not self._is_new(left, cross, least):
            design.width -= 1
            return False
        self._newton.extend(cross)
        k = row.size
        r = np.zeros((k + 1, k + 1))
        # [M, m] = [Q, q] R, a column more
        r[:k, :k], r[:k, k], r[k, k] = self._r, size * row, size * left
        self._r = r
        wider = np.zeros((k + 1, k + 1))
        wider[:k, :k] = self._inner
        mine = np.append(mine, k)
        if self._strength:
            wider[k, mine] = wider[mine, k] = inner
        self._inner = wider
        self.owner = np.append(self.owner, owner)
        self._theta = np.append(self._theta, 0.0)
        return True

    def _is_new(self, left: float, cross: FloatArray, least: float) -> bool:
        """Whether the last column, `left` of a message, depends on the columns before it."""
        pivot = self._newton.pivot(cross)
        if pivot > 1e-4:  # such a pivot of a Gram matrix still has half of its digits
            return left * pivot >= least
        v, design = self._problem.v, self._design
        rest = design.added[:, -1]
        factor = cho_factor(design.gram(v)[:-1, :-1], lower=True, check_finite=False)
        for _ in range(2):
            off = cho_solve(factor, design.slope(v * rest)[:-1], check_finite=False)
            rest = rest - design.eta(np.append(off, 0.0))
        return left * math.sqrt(float(v @ rest**2)) >= least

    def refit(self, share: float = 1e-6) -> None:
        """Fit ``[1, X_a, M]`` from the present fit; the objective never rises.

        The error of eta is left at about `share` of the first step. While messages come 1e-2 is
        enough; ``refit(share=0)`` once they have ended.
        """
        self._theta, self.eta, _ = self._newton.minimise(
            self._design, self.eta, self._theta, self._ridge(), share
        )
        self._publish()

    def _ridge(self) -> FloatArray | None:
        """Penalty matrix of all columns, where there is a penalty."""
        mine, own, width = self._design.ridge(self._strength), self._design.own, self._design.width
        if mine is None:
            return None
        ridge = np.zeros((width, width))
        ridge[:own, :own] = mine
        if width > own:
            # weights of messages are R^-1 times those of the orthonormal columns
            back = np.linalg.inv(self._r)
            ridge[own:, own:] = self._strength * back.T @ self._inner @ back
        return ridge

    def _publish(self) -> None:
        self.coef_a, self.intercept = self._design.raw(self._theta)
        self.objective = self.deviance = self._problem.deviance(self.eta)
        ridge = self._ridge()
        if ridge is not None:
            self.objective += self._problem.total * float(self._theta @ ridge @ self._theta)

    @property
    def theta(self) -> FloatArray:
        """Weights of the messages as they were received, shape (k,)."""
        return np.asarray(np.linalg.solve(self._r, self._theta[self._design.own :]))

    def weights_for(self, owner: int) -> FloatArray:
        """Weights that combine this owner's messages, in their order, into its part of eta."""
        return np.asarray(self.theta[self.owner == owner])

    def part_of(self, owner: int) -> FloatArray:
        """Return this owner's part of eta, shape (n,)."""
        mine = self.owner == owner
        q = self._design.added
        return np.asarray(q @ (self._r[:, mine] @ self.weights_for(owner)))

    def offset_for(self, owner: int) -> FloatArray:
        """The linear predictor without this owner's part, shape (n,)."""
        return np.asarray(self.eta - self.part_of(owner))


class Alternation:
    """The initiator's side of plain alternation (``depth=0``) or Anderson acceleration.

    Parameters
    ----------
    x_a, y, family, weights, penalty, offset
        As in :class:`SpanModel`; any penalty.
    n_partners : int
        Partners answer in the order 0, 1, ...; ``receive`` after the last closes a cycle.
    depth : int
        Number of earlier cycles that Anderson acceleration mixes.

    Attributes
    ----------
    coef_a, intercept, eta, deviance, objective
        The best fit at the end of a cycle; the objective never rises.
    accepted : bool
        False where the last cycle raised the objective and was undone.
    """

    def __init__(
        self,
        x_a: FloatArray,
        y: FloatArray,
        family: Family,
        n_partners: int,
        *,
        weights: FloatArray | None = None,
        penalty: Penalty | None = None,
        depth: int = 0,
        state: Mapping[str, NDArray[Any]] | None = None,
        offset: FloatArray | None = None,
    ) -> None:
        self._own = Partner(x_a, y, family, weights=weights, penalty=penalty, state=state)
        self._problem, self._weights = self._own._problem, weights
        self._offset = np.zeros(self._problem.y.size) if offset is None else offset
        self.depth, self.n_partners, self.accepted = depth, n_partners, True
        if state is not None:
            self._sent, self._now = np.array(state["sent"]), np.array(state["now"])
            self._past, self._best = np.array(state["past"]), np.array(state["best"])
            self._penalties, self.coef_a = np.array(state["penalties"]), np.array(state["coef_a"])
            self.objective, self.deviance, self.intercept = (float(u) for u in state["values"])
            self.eta = self._best.sum(axis=1)
            return
        n = self._problem.y.size
        # Column 0: the initiator's part with intercept and offset, 1 + o: that of partner o.
        self._sent = self._now = np.zeros((n, 1 + n_partners))
        self._penalties, self.objective = np.zeros(n_partners), math.inf
        self._past = np.zeros((0, 2, n, 1 + n_partners))  # (points sent, answers)
        self._own.begin()
        self._refit()
        self._close(begin=True)

    def to_state(self) -> State:
        """Arrays from which ``Alternation(..., state=...)`` goes on."""
        return {
            **self._own.to_state(),
            "sent": self._sent,
            "now": self._now,
            "past": self._past,
            "best": self._best,
            "penalties": self._penalties,
            "coef_a": self.coef_a,
            "values": np.array([self.objective, self.deviance, self.intercept]),
        }

    def part_of(self, owner: int) -> FloatArray:
        """Return this owner's part of eta, shape (n,); -1 is the initiator with all else."""
        return np.asarray(self._now[:, 1 + owner])

    def offset_for(self, owner: int) -> FloatArray:
        """What this partner is sent: the linear predictor without its own part, shape (n,)."""
        return np.asarray(np.delete(self._now, 1 + owner, axis=1).sum(axis=1))

    def receive(self, message: FloatArray, owner: int, penalty: float = 0.0) -> None:
        """Take a partner's linear predictor and refit the own columns.

        `penalty` is the partner's penalty in the units of the deviance (``LocalFit.penalty``).
        """
        self._now[:, 1 + owner] = message
        self._penalties[owner] = penalty
        self._refit()
        if owner == self.n_partners - 1:
            self._close()

    def _refit(self) -> None:
        answer = self._own.respond(self._now[:, 1:].sum(axis=1) + self._offset)
        self._fitted = answer
        self._now[:, 0] = answer.message + answer.intercept + self._offset

    def _close(self, *, begin: bool = False) -> None:
        """End of a cycle: accept it or undo it, and choose what to send next."""
        eta = self._now.sum(axis=1)
        deviance = self._problem.deviance(eta)
        objective = deviance + self._fitted.penalty + float(self._penalties.sum())
        # a rise of this size is rounding
        slack = 1e-12 * (1 + abs(objective))
        self.accepted = objective <= self.objective + slack
        if not self.accepted:
            self._now, self._past = self._best.copy(), self._past[:0]
            self._sent = self._now.copy()
            return
        self.eta, self.deviance, self.objective = eta, deviance, objective
        self.coef_a, self.intercept = self._fitted.beta, self._fitted.intercept
        self._best = self._now.copy()
        if self.depth and not begin:
            pair = np.stack([self._sent, self._now])[None]
            self._past = np.concatenate([self._past, pair])[-(self.depth + 1) :]
            self._now = self._best.copy()
            if self._past.shape[0] > 1:
                # Anderson's point: the mixture of answers whose differences from the points are
                # least. The first partner answers before its own column is used: it is no part.
                keep = np.arange(self.n_partners + 1) != 1
                root = np.sqrt(self._problem.v)[:, None]
                # f_k = g(x_k) - x_k (Walker and Ni 2011, algorithm AA)
                rest = ((self._past[:, 1] - self._past[:, 0]) * root)[:, :, keep]
                change = np.diff(rest, axis=0).reshape(rest.shape[0] - 1, -1).T
                # least |f_k - dF gamma|, then x = g(x_k) - dG gamma
                mix = lstsq(change, rest[-1].ravel(), cond=1e-10)[0]
                self._now -= np.tensordot(mix, np.diff(self._past[:, 1], axis=0), 1)
        self._sent = self._now.copy()


# --- Standard errors of a joint model whose columns are held by several parties.
#
# With ``X = [1, X_a, X_b]``, weights ``W`` and scores ``s`` at the joint fit, the linear predictor
# of a new subject ``x = (1, x_a, x_b)`` has sandwich variance ``sum_i c_i^2 s_i^2`` where ``c = X
# v`` and ``(X'WX) v = x``. (Zhang, Yang and Ding 2025, *Journal of the Royal Statistical Society
# B*, section 4, use local parts instead; these leave out the covariance of the two parts and are no
# valid variance where the parties' columns are correlated.)
#
# Solving for c with one number a row
# -----------------------------------
# The initiator holds ``D = [1, X_a, M]``, M = X_b B the messages of the training, and is told
# ``B' x_b`` for each target. ``initiator_solution`` solves ``(D'WD) v = (1, x_a, B'x_b)``: the best
# ``c`` in the span of D in the norm of W (a Galerkin solution). It sends ``W c``. The partner's
# equation has the residual ``r = x_b - X_b' W c``; ``partner_residual`` returns its size and new
# directions ``G^{-1} r``, ``G = X_b'WX_b`` off the constant, which become further columns of M. The
# next Galerkin solution is exact on them too. That is the conjugate gradient method on the Schur
# complement ``S`` of the system (see :mod:`consilience.assisted.kernels.joint_glm`), with full
# orthogonalisation, started from the space that the training revealed, and shared by all targets;
# it ends after at most rank(X_b) - k further columns.
#
# What remains is known: ``x'(X'WX)^- x = c'Wc + r' S^- r``, and ``S >= (1 - rho^2) G``, rho the
# largest canonical correlation below 1, so that
#
# ``c'Wc <= true model-based variance <= c'Wc + r'G^- r / (1 - rho^2)``.
#
# A target is *certified* where ``sqrt(r'G^- r / c'Wc) <= 1e-8``. Where the rank budget ends earlier
# the upper bound gives a *factor* on the model-based error. The bound is exact for the true rho;
# ``largest_correlation`` estimates rho from the Ritz values of S on the messages, which bound rho
# *from below*. So ``1 - rho^2`` is taken as half of the least Ritz value, and as .05 if that is
# less (rho at least .975). That is an assumption: nobody who sees less than all of X_b can rule out
# a larger correlation in a direction that no message touched, where the partner may even hold a
# copy of a column of the initiator. With bare Ritz values 16% of the bounds fail on random designs.
#
# A coefficient of the initiator is *shared* where its column lies in the joint span of others: then
# ``X'WX`` is singular and the target is no combination of its rows. It shows as a column of M that
# depends on ``[1, X_a]`` and earlier messages with a combination that the target does not satisfy.

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

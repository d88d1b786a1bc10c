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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, lstsq

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import DEPENDENT, Family, Penalty, fit
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

"""One generalised linear model on the columns of several parties, by messages of one number a row.

The initiator holds the response ``y`` and ``X_a``, each partner a block ``X_b`` (centred over all
rows). The loss is a family's of :mod:`consilience.numerics.glm` at ``eta = 1 b0 + X_a beta_a +
sum_b X_b beta_b``. In plain alternation (Zhang, Yang and Ding 2025, *Journal of the Royal
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
earlier ones (``inner``). An L1 part has no such form; there ``fit_jointly`` uses Anderson.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lstsq

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.glm import (
    DEPENDENT,
    Family,
    Fit,
    Penalty,
    fit,
    independent_columns,
)

FloatArray = NDArray[np.float64]
State = dict[str, NDArray[Any]]
ACCELERATIONS = ("span", "anderson", "none")
_BLOCK = 2048  # rows per block of a Gram matrix: a block stays in the cache
_SHARE = 1e-4  # a local fit stops when what is left is this share of its first step
_FLOOR = 1e-12  # ... or of the linear predictor
_SLACK = 1e-14  # rise of a mean loss that is rounding


def gram(x: FloatArray, w: FloatArray) -> FloatArray:
    """``x' diag(w) x`` for weights of at least 0, block by block."""
    total = np.zeros((x.shape[1], x.shape[1]))
    root = np.sqrt(w)
    for start in range(0, x.shape[0], _BLOCK):
        part = x[start : start + _BLOCK] * root[start : start + _BLOCK, None]
        total += part.T @ part
    return total


def working_weights(family: Family, y: FloatArray, eta: FloatArray) -> FloatArray:
    """Second derivatives of the loss; the expected ones where the observed may be negative."""
    return family.expected_weight(eta) if family.mask else family.weight(y, eta)


class _Design:
    """``[1, standardised independent columns]`` with room for messages, column by column."""

    def __init__(
        self, x: FloatArray, v: FloatArray, kept: NDArray[np.bool_] | None, *, penalised: bool
    ) -> None:
        n, p = x.shape
        self.mean = v @ x
        spread = np.sqrt(np.maximum(v @ (x * x) - self.mean**2, 0.0))
        size = np.sqrt(spread**2 + self.mean**2)
        live = spread > DEPENDENT * size
        if np.any(spread <= 1e-4 * size):  # the difference above has lost its digits
            spread = np.sqrt(v @ (x - self.mean) ** 2)
            live = spread > DEPENDENT * size
        self.scale = np.where(live, spread, 1.0)
        if kept is None:
            z = (x - self.mean) / self.scale
            kept = np.ones(p, bool) if penalised else independent_columns(z, v, live=live)[0]
        self.kept = kept
        index = np.flatnonzero(kept)
        self.own = 1 + index.size
        self.values = np.empty((n, self.own), order="F")
        self.values[:, 0] = 1.0
        for place, j in enumerate(index, start=1):
            np.subtract(x[:, j], self.mean[j], out=self.values[:, place])
            self.values[:, place] /= self.scale[j]
        self.width = self.own

    @property
    def matrix(self) -> FloatArray:
        """View of the columns in use."""
        return self.values[:, : self.width]

    def append(self, column: FloatArray) -> None:
        if self.width == self.values.shape[1]:
            wider = np.empty((self.values.shape[0], self.width + 8), order="F")
            wider[:, : self.width] = self.values
            self.values = wider
        self.values[:, self.width] = column
        self.width += 1

    def raw(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Coefficients and intercept in the units of the columns."""
        coef = np.zeros(self.kept.size)
        coef[self.kept] = theta[1 : self.own] / self.scale[self.kept]
        return coef, float(theta[0] - self.mean @ coef)

    def inner(self, coef: FloatArray, intercept: float) -> FloatArray:
        """Inverse of `raw`."""
        own = (coef * self.scale)[self.kept]
        return np.concatenate([[intercept + self.mean @ coef], own])

    def ridge(self, strength: float) -> FloatArray:
        """Penalty matrix of the own columns."""
        matrix = np.zeros((self.own, self.own))
        index = np.arange(1, self.own)
        matrix[index, index] = strength / self.scale[self.kept] ** 2
        return matrix


@dataclass
class _Problem:
    """What stays fixed during local fits: response, family, weights that sum to 1."""

    y: FloatArray
    family: Family
    v: FloatArray
    total: float

    @classmethod
    def of(cls, y: FloatArray, family: Family, weights: FloatArray | None) -> _Problem:
        y = np.asarray(y, dtype=float)
        w = np.ones(y.size) if weights is None else np.asarray(weights, dtype=float)
        if w.shape != y.shape or np.any(w < 0) or not np.any(w > 0):
            raise DataError("the weights must be one number of at least 0 per record, not all 0")
        total = float(w.sum())
        # What a record without weight holds must not matter, not even as infinity times 0.
        y = y if np.all(w > 0) else np.where(w > 0, y, y[int(np.argmax(w > 0))])
        return cls(y, family, w / total, total)

    def value(self, eta: FloatArray) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.v @ self.family.loss(self.y, eta))

    def deviance(self, eta: FloatArray) -> float:
        return self.total * self.family.deviance(self.y, eta, self.v)


class _Newton:
    """Newton steps whose Hessian is kept while it contracts well, also when columns are added."""

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.hessian = np.zeros((0, 0))  # without the penalty
        self.reference = np.zeros(0)  # v times the weights at which it was taken
        self.careful = False
        self._factor: Any = None

    def refresh(self, x: FloatArray, eta: FloatArray, ridge: FloatArray | None) -> None:
        """Take the Hessian at `eta`; a positive surrogate where it is not positive definite."""
        fam, v, y = self.problem.family, self.problem.v, self.problem.y
        safe = fam.safe_weight(y, eta)
        for floor in (-1.0, 0.0, 1e-9, 1e-6, 1e-3):
            if floor < 0 and self.careful:
                continue
            observed = working_weights(fam, y, eta)
            w = observed if floor < 0 else np.maximum(safe, floor * float(np.max(safe)))
            self.reference = v * w
            self.hessian = gram(x, self.reference)
            if self.factorise(ridge):
                return
        raise DataError("the fit broke down: the covariates' scales lie too far apart")

    def factorise(self, ridge: FloatArray | None) -> bool:
        matrix = self.hessian if ridge is None else self.hessian + ridge
        top = float(np.max(np.diag(matrix), initial=0.0))
        self._factor = None
        if not 0 < top < math.inf:
            return False
        try:
            factor = cho_factor(matrix, lower=True, check_finite=False)
        except LinAlgError:
            return False
        if np.min(np.diag(factor[0])) ** 2 > 1e-15 * top:
            self._factor = factor
        return self._factor is not None

    def extend(self, x: FloatArray) -> None:
        """Add the last column of `x` to the Hessian, at the weights of the rest."""
        if self.hessian.size:
            cross = x.T @ (self.reference * x[:, -1])
            size = cross.size
            wider = np.empty((size, size))
            wider[:-1, :-1] = self.hessian
            wider[-1] = wider[:, -1] = cross
            self.hessian, self._factor = wider, None

    def solve(self, rhs: FloatArray) -> FloatArray:
        return np.asarray(cho_solve(self._factor, rhs, check_finite=False))

    def minimise(
        self,
        x: FloatArray,
        offset: FloatArray | float,
        theta: FloatArray,
        ridge: FloatArray | None = None,
        share: float = _SHARE,
        max_iter: int = 60,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Minimise from `theta`: solution, linear predictor, decrement of the first step."""
        p = self.problem
        eta = offset + x @ theta

        def penalty(at: FloatArray) -> float:
            return 0.0 if ridge is None else 0.5 * float(at @ ridge @ at)

        value = p.value(eta) + penalty(theta)
        if self.hessian.shape[0] != theta.size or not self.factorise(ridge):
            self.refresh(x, eta, ridge)
        first, last, fresh = 0.0, math.inf, False
        for _ in range(max_iter):
            slope = x.T @ (p.v * p.family.score(p.y, eta))
            slope += 0.0 if ridge is None else ridge @ theta
            step = -self.solve(slope)
            length = math.sqrt(max(-float(slope @ step), 0.0))
            first = first or length
            if length > 0.2 * last and not fresh:  # the old Hessian contracts too slowly
                self.refresh(x, eta, ridge)
                fresh, last = True, math.inf
                continue
            move = x @ step
            size = 1.0
            while size > 1e-12:
                trial = p.value(eta + size * move) + penalty(theta + size * step)
                if trial <= value + _SLACK * (1 + abs(value)):
                    break
                size *= 0.5
            if size <= 1e-12:
                if fresh or length <= 1e-7 * (1 + abs(value)):
                    break  # rounding: no lower value can be found
                self.refresh(x, eta, ridge)
                fresh = True
                continue
            theta, eta, value = theta + size * step, eta + size * move, trial
            if size < 1.0:
                self.careful = size < 0.2
                self.refresh(x, eta, ridge)
                self.careful, fresh, last = False, True, math.inf
                continue
            rate = min(length / last, 0.5) if last < math.inf else 0.5
            scale = math.sqrt(max(float(self.reference @ (eta * eta)), 0.0))
            if rate * length <= max(share * first, _FLOOR * scale):
                break
            last, fresh = length, False
        return theta, eta, first


def _ridge_strength(penalty: Penalty | None) -> float:
    return 0.0 if penalty is None else penalty.alpha * (1 - penalty.l1_ratio)


def _has_l1(penalty: Penalty | None) -> bool:
    return penalty is not None and penalty.alpha * penalty.l1_ratio > 0


def _columns(x: FloatArray, y: FloatArray) -> FloatArray:
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or x.shape[0] != np.shape(y)[0]:
        raise DataError("the covariates must have one row per record of the response")
    return x


@dataclass(frozen=True)
class LocalFit:
    """A partner's answer.

    Parameters
    ----------
    beta : ndarray of shape (p_b,)
        Coefficients of the local fit, in the units of the columns.
    intercept : float
        Intercept of the local fit; not part of the message, the initiator refits its own.
    direction : ndarray of shape (p_b,)
        `beta` less the partner's present coefficients: what a span message is made of.
    message : ndarray of shape (n,)
        ``x_b @ direction``.
    gain : float
        Deviance that the local fit can gain, to second order (the squared Newton decrement).
    inner : ndarray of shape (k + 1,)
        Inner products of `direction` with the earlier directions and itself (for ridge).
    penalty : float
        The penalty at `beta`, in the units of the deviance.
    """

    beta: FloatArray
    intercept: float
    direction: FloatArray
    message: FloatArray
    gain: float
    inner: FloatArray
    penalty: float


class Partner:
    """A partner's side: its own columns, the response it was given, offsets that it receives.

    Parameters
    ----------
    x_b : ndarray of shape (n, p_b)
        Columns, centred over all rows.
    y : ndarray of shape (n,)
        Response, or the masked response with a masked family.
    family : Family
    weights : ndarray of shape (n,), optional
    penalty : Penalty, optional

    Attributes
    ----------
    betas : ndarray of shape (p_b, k)
        Coefficients behind each message that was kept (``keep``).
    """

    def __init__(
        self,
        x_b: FloatArray,
        y: FloatArray,
        family: Family,
        *,
        weights: FloatArray | None = None,
        penalty: Penalty | None = None,
        state: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.x_b = _columns(x_b, y)
        self.penalty = penalty
        self._weights = weights
        self._problem = _Problem.of(y, family, weights)
        kept = None if state is None else np.asarray(state["kept"], dtype=bool)
        self._design = _Design(self.x_b, self._problem.v, kept, penalised=penalty is not None)
        self._newton = _Newton(self._problem)
        self.betas = np.zeros((self.x_b.shape[1], 0))
        self.last, self._intercept = np.zeros(self.x_b.shape[1]), 0.0
        if state is not None:
            self.betas, self.last = np.array(state["betas"]), np.array(state["last"])
            self._intercept = float(state["intercept"])
            self._newton.hessian = np.array(state["hessian"])
            self._newton.reference = np.array(state["reference"])

    def to_state(self) -> State:
        """Arrays from which ``Partner(..., state=...)`` goes on."""
        return {
            "kept": self._design.kept,
            "betas": self.betas,
            "last": self.last,
            "intercept": np.array(self._intercept),
            "hessian": self._newton.hessian,
            "reference": self._newton.reference,
        }

    @property
    def rank(self) -> int:
        """Numerical rank of the columns."""
        return int(self._design.kept.sum())

    def begin(self) -> None:
        """Start from a fit without an offset: what the initiator does in round 0."""
        alone = fit(
            self.x_b,
            self._problem.y,
            self._problem.family,
            weights=self._weights,
            penalty=self.penalty,
        )
        self.last, self._intercept = alone.coef, alone.intercept

    def respond(self, offset: FloatArray, combination: FloatArray | None = None) -> LocalFit:
        """Fit the own columns with an intercept and with the others' part as an offset.

        Parameters
        ----------
        offset : ndarray of shape (n,)
            Linear predictor without this partner's part.
        combination : ndarray of shape (k,), optional
            Weights of the kept messages in the joint fit (span). Without it the fit starts at the
            last local fit and the message is the whole linear predictor.
        """
        offset = np.asarray(offset, dtype=float)
        now = np.zeros_like(self.last) if combination is None else self.betas @ combination
        start = now if combination is not None else self.last
        x, strength = self._design.matrix, _ridge_strength(self.penalty)
        if _has_l1(self.penalty):
            local = fit(
                self.x_b,
                self._problem.y,
                self._problem.family,
                offset=offset,
                weights=self._weights,
                start=(start, self._intercept) if np.any(start) else None,
                penalty=self.penalty,
            )
            beta, intercept, gain = local.coef, local.intercept, math.nan
        else:
            theta = self._design.inner(start, self._intercept if combination is None else 0.0)
            ridge = self._design.ridge(strength) if strength else None
            theta, _, first = self._newton.minimise(x, offset, theta, ridge)
            beta, intercept = self._design.raw(theta)
            gain = self._problem.total * first**2
        self.last, self._intercept = beta, intercept
        direction = beta - now
        inner = np.append(self.betas.T @ direction, direction @ direction)
        penalty = 0.0 if self.penalty is None else self.penalty.value(beta)
        return LocalFit(
            beta,
            intercept,
            direction,
            self.x_b @ direction,
            gain,
            inner,
            2 * self._problem.total * penalty,
        )

    def keep(self, direction: FloatArray) -> None:
        """Note the coefficients of a message that the initiator took into its span."""
        self.betas = np.column_stack([self.betas, direction])

    def revealed_with(self, direction: FloatArray) -> int:
        """Numerical rank (1e-8) of the kept messages and `direction`, in the scale of the columns.

        The record of what a party revealed is kept elsewhere, over all runs; this counts one fit.
        """
        units = self._design.scale[:, None]
        every = (
            np.column_stack([self.betas, direction])[self._design.kept] * units[self._design.kept]
        )
        size = np.linalg.norm(every, axis=0)
        every = every[:, size > 0] / size[size > 0]
        if not every.size:
            return 0
        root = np.linalg.cholesky(gram(self._design.matrix, self._problem.v)[1:, 1:])
        values = np.linalg.svd(root.T @ every, compute_uv=False)
        return int(np.sum(values > DEPENDENT * values[0]))

    def gain(self, offset: FloatArray, beta: FloatArray) -> float:
        """Deviance that one more local fit could still gain at `beta`, to second order.

        It is the squared Newton decrement of the (ridge penalised) loss in the own columns and the
        intercept, with the Hessian at the joint fit; NaN with an L1 penalty.
        """
        if _has_l1(self.penalty):
            return math.nan
        p, x = self._problem, self._design.matrix
        eta = np.asarray(offset, dtype=float) + self.x_b @ beta
        strength = _ridge_strength(self.penalty)
        ridge = self._design.ridge(strength) if strength else None
        newton = _Newton(p)
        newton.refresh(x, eta, ridge)
        slope = x.T @ (p.v * p.family.score(p.y, eta))
        if ridge is not None:
            slope += ridge @ self._design.inner(beta, 0.0)
        return p.total * float(slope @ newton.solve(slope))


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
    ) -> None:
        if _has_l1(penalty):
            raise ParameterError.of("penalty", "without an L1 part for span", penalty)
        x_a = _columns(x_a, y)
        self._problem = _Problem.of(y, family, weights)
        self._strength = _ridge_strength(penalty)
        alone: Fit | None = None
        if state is None:
            alone = fit(x_a, self._problem.y, family, weights=weights, penalty=penalty)
        kept = np.array(state["kept"], dtype=bool) if alone is None and state else None
        self._design = _Design(
            x_a,
            self._problem.v,
            kept if alone is None else alone.kept,
            penalised=penalty is not None,
        )
        self._newton = _Newton(self._problem)
        self.owner = np.zeros(0, dtype=np.int64)
        self._r = np.zeros((0, 0))  # messages = Q r, Q the orthonormal columns of the design
        self._inner = np.zeros((0, 0))  # Gram of the coefficient vectors behind the messages
        if alone is not None:
            self._theta = self._design.inner(alone.coef, alone.intercept)
            self.eta = alone.eta
        elif state is not None:
            self._restore(state)
        self._publish()

    def _restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        for column in np.asarray(state["q"], dtype=float).T:
            self._design.append(column)
        self.owner = np.array(state["owner"])
        self._r, self._inner = np.array(state["r"]), np.array(state["inner"])
        self._theta, self.eta = np.array(state["theta"]), np.array(state["eta"])
        self._newton.hessian = np.array(state["hessian"])
        self._newton.reference = np.array(state["reference"])

    def to_state(self) -> State:
        """Arrays from which ``SpanModel(..., state=...)`` goes on."""
        return {
            "kept": self._design.kept,
            "q": self._design.matrix[:, self._design.own :],
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
        return np.asarray(self._design.matrix[:, self._design.own :] @ self._r)

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
            ridge penalty) is below 1e-8 of its size.
        """
        message = np.asarray(message, dtype=float)
        if message.shape != self._problem.y.shape or not np.all(np.isfinite(message)):
            raise DataError("a message must be one finite number per record")
        v, design = self._problem.v, self._design
        size = math.sqrt(float(v @ message**2))
        if size == 0.0:
            return False
        q = design.matrix[:, design.own :]
        rest, row = message / size, np.zeros(q.shape[1])
        for _ in range(2):
            part = q.T @ (v * rest)
            rest, row = rest - q @ part, row + part
        left = math.sqrt(float(v @ rest**2))
        if left < DEPENDENT or (not self._strength and self._novelty(rest) < DEPENDENT):
            return False
        design.append(rest / left)
        self._newton.extend(design.matrix)
        k = row.size
        r = np.zeros((k + 1, k + 1))
        r[:k, :k], r[:k, k], r[k, k] = self._r, size * row, size * left
        self._r = r
        wider = np.zeros((k + 1, k + 1))
        wider[:k, :k] = self._inner
        mine = np.append(np.flatnonzero(self.owner == owner), k)
        if self._strength:
            if inner is None or np.shape(inner) != mine.shape:
                raise DataError("a ridge penalty needs one inner product per kept message")
            wider[k, mine] = wider[mine, k] = inner
        self._inner = wider
        self.owner = np.append(self.owner, owner)
        self._theta = np.append(self._theta, 0.0)
        return True

    def _novelty(self, message: FloatArray) -> float:
        """Size of what is left of a message off all columns of the design."""
        v, x = self._problem.v, self._design.matrix
        factor = cho_factor(gram(x, v), lower=True, check_finite=False)
        for _ in range(2):
            message = message - x @ cho_solve(factor, x.T @ (v * message), check_finite=False)
        return math.sqrt(float(v @ message**2))

    def refit(self, share: float = _SHARE) -> None:
        """Fit ``[1, X_a, M]`` from the present fit; the objective never rises."""
        ridge = self._ridge() if self._strength else None
        self._theta, self.eta, _ = self._newton.minimise(
            self._design.matrix, 0.0, self._theta, ridge, share
        )
        self._publish()

    def _ridge(self) -> FloatArray:
        own, width = self._design.own, self._design.width
        ridge = np.zeros((width, width))
        ridge[:own, :own] = self._design.ridge(self._strength)
        if width > own:
            back = np.linalg.inv(self._r)
            ridge[own:, own:] = self._strength * back.T @ self._inner @ back
        return ridge

    def _publish(self) -> None:
        self.coef_a, self.intercept = self._design.raw(self._theta)
        self.deviance = self._problem.deviance(self.eta)
        extra = 0.0
        if self._strength:
            extra = self._problem.total * float(self._theta @ self._ridge() @ self._theta)
        self.objective = self.deviance + extra

    @property
    def theta(self) -> FloatArray:
        """Weights of the messages as they were received, shape (k,)."""
        phi = self._theta[self._design.own :]
        return np.linalg.solve(self._r, phi) if phi.size else phi

    def weights_for(self, owner: int) -> FloatArray:
        """Weights that combine this owner's messages, in their order, into its part of eta."""
        return np.asarray(self.theta[self.owner == owner])

    def part_of(self, owner: int) -> FloatArray:
        """Return this owner's part of eta, shape (n,)."""
        mine = self.owner == owner
        q = self._design.matrix[:, self._design.own :]
        return np.asarray(q @ (self._r[:, mine] @ self.weights_for(owner)))

    def offset_for(self, owner: int) -> FloatArray:
        """The linear predictor without this owner's part, shape (n,)."""
        return np.asarray(self.eta - self.part_of(owner))


class Alternation:
    """The initiator's side of plain alternation (``depth=0``) or Anderson acceleration.

    Parameters
    ----------
    x_a, y, family, weights, penalty
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
    ) -> None:
        self._own = Partner(x_a, y, family, weights=weights, penalty=penalty, state=state)
        self._problem, self._weights = self._own._problem, weights
        self.depth, self.n_partners = depth, n_partners
        self.accepted = True
        n = self._problem.y.size
        if state is not None:
            self._restore(state)
            return
        # Column 0 is the initiator's part with the intercept, column 1 + o that of partner o.
        self._now = np.zeros((n, 1 + n_partners))
        self._penalties = np.zeros(n_partners)
        self._past = np.zeros((0, 2, n, 1 + n_partners))  # (points sent, answers)
        self.objective = math.inf
        self._own.begin()
        self._refit()
        self._sent = self._now
        self._close(begin=True)

    def _restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sent, self._now = np.array(state["sent"]), np.array(state["now"])
        self._past, self._best = np.array(state["past"]), np.array(state["best"])
        self._penalties, self.coef_a = np.array(state["penalties"]), np.array(state["coef_a"])
        self.objective, self.deviance, self.intercept = (float(u) for u in state["values"])
        self.eta = self._best.sum(axis=1)

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
        answer = self._own.respond(self._now[:, 1:].sum(axis=1))
        self._fitted = answer
        self._now[:, 0] = answer.message + answer.intercept

    def _close(self, *, begin: bool = False) -> None:
        """End of a cycle: accept it or undo it, and choose what to send next."""
        eta = self._now.sum(axis=1)
        deviance = self._problem.deviance(eta)
        objective = deviance + self._fitted.penalty + float(self._penalties.sum())
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
            self._now = self._extrapolate()
        self._sent = self._now.copy()

    def _extrapolate(self) -> FloatArray:
        """Anderson's point: the mixture of answers whose differences from the points are least."""
        if self._past.shape[0] < 2:
            return self._best.copy()
        root = np.sqrt(self._problem.v)[:, None]
        # The first partner answers before its own column is used: it is no part of the point.
        keep = np.arange(self.n_partners + 1) != 1
        rest = ((self._past[:, 1] - self._past[:, 0]) * root)[:, :, keep]
        change = np.diff(rest, axis=0).reshape(rest.shape[0] - 1, -1).T
        mix = lstsq(change, rest[-1].ravel(), cond=1e-10)[0]
        return np.asarray(self._best - np.tensordot(mix, np.diff(self._past[:, 1], axis=0), 1))


@dataclass(frozen=True)
class JointFit:
    """A joint fit and its course.

    Parameters
    ----------
    eta : ndarray of shape (n,)
    coef_a : ndarray of shape (p_a,)
    intercept : float
        Of the model with the partners' columns less `centres`.
    betas : list of ndarray of shape (p_b,)
        Each partner's coefficients. Where columns are shared they are one solution of many.
    directions : list of ndarray of shape (p_b, k)
        Coefficients behind each message that counted.
    messages : list of ndarray of shape (n, k)
    centres : list of ndarray of shape (p_b,)
    rounds : int
        Cycles over the partners.
    deviances : ndarray of shape (rounds + 1,)
        After the initiator's own fit and after each round, of the fit that would be reported.
    objectives : ndarray of shape (rounds + 1,)
        With the penalty.
    changes : ndarray of shape (rounds,)
        Change of eta relative to its size, both in 2-norm over rows with weight.
    stopped : str
        ``converged`` (small change), ``rounds``, ``rank`` (no partner may send more) or ``nothing
        new`` (no partner has more to send).
    rank : list of int
        Dimensions of each partner's column space that its messages span.
    gains : list of float
        Deviance that one more local fit of each partner could still gain, to second order.
    acceleration : str
        What was used: a penalty with an L1 part turns ``span`` into ``anderson``.
    """

    eta: FloatArray
    coef_a: FloatArray
    intercept: float
    betas: list[FloatArray]
    directions: list[FloatArray]
    messages: list[FloatArray]
    centres: list[FloatArray]
    rounds: int
    deviances: FloatArray
    objectives: FloatArray
    changes: FloatArray
    stopped: str
    rank: list[int]
    gains: list[float]
    acceleration: str

    def predict(self, x_a: FloatArray, x_partners: Sequence[FloatArray]) -> FloatArray:
        """Linear predictor of new rows."""
        eta = self.intercept + np.asarray(x_a, dtype=float) @ self.coef_a
        for x_b, centre, beta in zip(x_partners, self.centres, self.betas):
            eta = eta + (np.asarray(x_b, dtype=float) - centre) @ beta
        return np.asarray(eta)


@dataclass
class _Course:
    """What the rounds were like, and when to stop."""

    model: SpanModel | Alternation
    rows: NDArray[np.bool_]
    tol: float
    loss_tol: float
    deviances: list[float] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._note()

    def _note(self) -> None:
        self.deviances.append(self.model.deviance)
        self.objectives.append(self.model.objective)
        self._eta = self.model.eta

    def close(self) -> bool:
        """Note a round; True if it changed next to nothing."""
        before = self._eta
        self._note()
        eta = self.model.eta[self.rows]
        size = float(np.linalg.norm(eta)) or 1.0
        self.changes.append(float(np.linalg.norm(eta - before[self.rows])) / size)
        if isinstance(self.model, Alternation) and not self.model.accepted:
            return False
        drop = self.objectives[-2] - self.objectives[-1]
        return self.changes[-1] <= self.tol or drop <= self.loss_tol * abs(self.objectives[-1])


def fit_jointly(
    x_a: FloatArray,
    partners: Sequence[FloatArray],
    y: FloatArray,
    family: Family,
    *,
    acceleration: str = "span",
    n_rounds: int = 50,
    tol: float = 1e-6,
    loss_tol: float = 1e-14,
    weights: FloatArray | None = None,
    penalty: Penalty | None = None,
    max_rank: int | Sequence[int] | None = None,
) -> JointFit:
    """Run the whole exchange in one process, each side with its own columns only.

    Parameters
    ----------
    x_a : ndarray of shape (n, p_a)
    partners : sequence of ndarray of shape (n, p_b)
    y : ndarray of shape (n,)
    family : Family
    acceleration : {"span", "anderson", "none"}
    n_rounds : int
        Most cycles over the partners.
    tol : float
        Stop at this relative change of eta in a round.
    loss_tol : float
        Stop at this relative decrease of the objective. The source's 1e-10 leaves an error of eta
        near 1e-5, since the objective is flat to second order.
    weights : ndarray of shape (n,), optional
        0 for held-out rows: they take no part, but messages carry them.
    penalty : Penalty, optional
        Applies to every party's coefficients.
    max_rank : int or one per partner, optional
        Most dimensions of its column space that a partner's messages may span.

    Raises
    ------
    ParameterError
        An unknown acceleration, or a negative limit.
    DataError
        Shapes that do not fit.
    """
    if acceleration not in ACCELERATIONS:
        raise ParameterError.of("acceleration", f"one of {', '.join(ACCELERATIONS)}", acceleration)
    if acceleration == "span" and _has_l1(penalty):
        acceleration = "anderson"
    limits = _limits(max_rank, len(partners))
    centres = [np.mean(np.asarray(x_b, dtype=float), axis=0) for x_b in partners]
    sides = [
        Partner(np.asarray(x_b, float) - centre, y, family, weights=weights, penalty=penalty)
        for x_b, centre in zip(partners, centres)
    ]
    model: SpanModel | Alternation
    if acceleration == "span":
        model = SpanModel(x_a, y, family, weights=weights, penalty=penalty)
    else:
        depth = 6 if acceleration == "anderson" else 0
        model = Alternation(
            x_a, y, family, len(sides), weights=weights, penalty=penalty, depth=depth
        )
    rows = np.ones(np.size(y), bool) if weights is None else np.asarray(weights) > 0
    course = _Course(model, rows, tol, loss_tol)
    stopped, rounds = "rounds", 0
    betas = [np.zeros(side.x_b.shape[1]) for side in sides]
    while rounds < n_rounds:
        if isinstance(model, SpanModel):
            verdicts = [_span_turn(model, o, side, limits[o]) for o, side in enumerate(sides)]
        else:
            verdicts, answers = _plain_turns(model, sides, limits)
        if all(verdict != "new" for verdict in verdicts):
            stopped = "rank" if "rank" in verdicts else "nothing new"
            break
        rounds += 1
        if isinstance(model, Alternation) and model.accepted:
            betas = answers
        if course.close():
            stopped = "converged"
            break
    if isinstance(model, SpanModel):
        model.refit(share=0.0)
        betas = [side.betas @ model.weights_for(o) for o, side in enumerate(sides)]
    parts = [side.x_b @ beta for side, beta in zip(sides, betas)]
    return JointFit(
        eta=model.eta,
        coef_a=model.coef_a,
        intercept=model.intercept,
        betas=betas,
        directions=[side.betas for side in sides],
        messages=[side.x_b @ side.betas for side in sides],
        centres=centres,
        rounds=rounds,
        deviances=np.array(course.deviances),
        objectives=np.array(course.objectives),
        changes=np.array(course.changes),
        stopped=stopped,
        rank=[side.betas.shape[1] for side in sides],
        gains=[side.gain(model.eta - part, b) for side, part, b in zip(sides, parts, betas)],
        acceleration=acceleration,
    )


def _limits(max_rank: int | Sequence[int] | None, n_partners: int) -> list[float]:
    given = [max_rank] * n_partners if max_rank is None or np.ndim(max_rank) == 0 else max_rank
    limits = [math.inf if each is None else float(each) for each in given]  # type: ignore[union-attr]
    if len(limits) != n_partners or any(each < 0 for each in limits):
        raise ParameterError.of("max_rank", "at least 0, one number or one per partner", max_rank)
    return limits


def _span_turn(model: SpanModel, owner: int, side: Partner, limit: float) -> str:
    """One partner's turn: ``new``, ``rank`` (it may not send) or ``nothing new``."""
    if side.betas.shape[1] >= min(limit, side.rank):
        return "rank" if limit < side.rank else "nothing new"
    answer = side.respond(model.offset_for(owner), model.weights_for(owner))
    if not model.add(answer.message, owner, answer.inner):
        return "nothing new"
    side.keep(answer.direction)
    model.refit()
    return "new"


def _plain_turns(
    model: Alternation, sides: Sequence[Partner], limits: Sequence[float]
) -> tuple[list[str], list[FloatArray]]:
    """One cycle of alternation; nobody sends where one partner may not."""
    answers: list[FloatArray] = []
    verdicts: list[str] = []
    for owner, side in enumerate(sides):
        answer = side.respond(model.offset_for(owner))
        if side.betas.shape[1] < side.rank:
            count = side.revealed_with(answer.beta)
            if count > limits[owner]:
                return ["rank"] * len(sides), answers
            if count > side.betas.shape[1]:
                side.keep(answer.beta)
        model.receive(answer.message, owner, answer.penalty)
        answers.append(answer.beta)
        verdicts.append("new")
    return verdicts, answers

"""Fits of one party's own columns within a joint model, and what a partner sends.

A party's local fit takes the others' part as an offset and starts where it left off, so most cost
of a Newton step, the Gram matrix, is spared: the Hessian is kept as long as it contracts well.
Rows of weight 0 take no part. :mod:`consilience.assisted.kernels.joint_glm` puts the parties
together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import (
    DEPENDENT,
    Columns,
    Family,
    Penalty,
    fit,
    standard_units,
)
from consilience.exceptions import DataError

State = dict[str, NDArray[Any]]
_FULL = 1e-6  # a local fit stops when its error is about this share of its first step
_NEAR = 0.05  # ... where a refit follows that takes the best combination anyway
_FLOOR = 1e-12  # ... or of the linear predictor
_MOST_STEPS = 60
_SLACK = 1e-14  # rise of a mean loss that is rounding


def working_weights(family: Family, y: FloatArray, eta: FloatArray) -> FloatArray:
    """Second derivatives of the loss; the expected ones where the observed may be negative."""
    return family.expected_weight(eta) if family.mask else family.weight(y, eta)


class Design:
    """``[1, standardised independent columns]`` with room for messages, column by column."""

    def __init__(self, x: FloatArray, v: FloatArray, kept: NDArray[np.bool_] | None) -> None:
        if kept is None:
            kept = standard_units(x, v)[2]
        # as where columns were chosen before, to the last bit
        self.mean, self.scale, self.kept, _ = standard_units(x, v, kept)
        self.width = self.own = 1 + int(self.kept.sum())
        self.x = x
        self._room = np.empty((len(x), 0), order="F")

    @cached_property
    def columns(self) -> Columns:
        """The own columns, once they are asked for."""
        return Columns.of(self.x, self.mean, self.scale, self.kept)

    @property
    def added(self) -> FloatArray:
        """View of the columns that were added."""
        return self._room[:, : self.width - self.own]

    def append(self, column: FloatArray) -> None:
        """Add a column that stays as it is."""
        k = self.width - self.own
        if k == self._room.shape[1]:
            # room for eight messages at once: no copy for each
            wider = np.empty((len(self.x), k + 8), order="F")
            wider[:, :k] = self._room
            self._room = wider
        self._room[:, k] = column
        self.width += 1

    def eta(self, theta: FloatArray) -> FloatArray:
        """Product of all columns with coefficients, (n,)."""
        found = self.columns.eta(theta[: self.own])
        return found + self.added @ theta[self.own :] if self.width > self.own else found

    def slope(self, score: FloatArray) -> FloatArray:
        """Product of numbers by record (n,) with all columns."""
        return np.append(self.columns.slope(score), score @ self.added)

    def gram(self, w: FloatArray) -> FloatArray:
        """``D' diag(w) D`` of all columns D, for weights of at least 0."""
        found = np.empty((self.width, self.width))
        found[: self.own, : self.own] = self.columns.gram(w)
        for j, column in enumerate(self.added.T, self.own):
            found[j] = found[:, j] = self.slope(w * column)
        return found

    def raw(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Coefficients and intercept in the units of the columns."""
        coef = np.zeros(self.kept.size)
        coef[self.kept] = theta[1 : self.own] / self.scale[self.kept]
        return coef, float(theta[0] - self.mean @ coef)

    def inner(self, coef: FloatArray, intercept: float) -> FloatArray:
        """Inverse of `raw`."""
        own = (coef * self.scale)[self.kept]
        return np.concatenate([[intercept + self.mean @ coef], own])

    def ridge(self, strength: float) -> FloatArray | None:
        """Penalty matrix of the own columns, where there is a penalty."""
        if not strength:
            return None
        return np.diag(np.append(0.0, strength / self.scale[self.kept] ** 2))


@dataclass
class Problem:
    """What stays fixed during local fits: response, family, weights that sum to 1."""

    y: FloatArray
    family: Family
    v: FloatArray
    total: float

    @classmethod
    def of(cls, y: FloatArray, family: Family, weights: FloatArray | None) -> Problem:
        """Check the weights and scale them; a response without weight is replaced."""
        y = np.asarray(y, dtype=float)
        w = np.ones(y.size) if weights is None else np.asarray(weights, dtype=float)
        if w.shape != y.shape or np.any(w < 0) or not np.any(w > 0):
            raise DataError("the weights must be one number of at least 0 per record, not all 0")
        total = float(w.sum())
        # What a record without weight holds must not matter, not even as infinity times 0.
        y = y if np.all(w > 0) else np.where(w > 0, y, y[int(np.argmax(w > 0))])
        return cls(y, family, w / total, total)

    def value(self, eta: FloatArray) -> float:
        """Weighted mean loss."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.v @ self.family.loss(self.y, eta))

    def deviance(self, eta: FloatArray) -> float:
        """Deviance with the weights as they were given."""
        return self.total * self.family.deviance(self.y, eta, self.v)


class Newton:
    """Newton steps whose Hessian is kept while it contracts well, also when columns are added."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.hessian = np.zeros((0, 0))  # without the penalty
        self.reference = np.zeros(0)  # v times the weights at which it was taken
        self.careful = False
        self._factor: Any = None

    def refresh(self, design: Design, eta: FloatArray, ridge: FloatArray | None) -> None:
        """Take the Hessian at `eta`; a positive surrogate where it is not positive definite."""
        fam, v, y = self.problem.family, self.problem.v, self.problem.y
        safe = fam.safe_weight(y, eta)
        for floor in (-1.0, 0.0, 1e-9, 1e-6, 1e-3):
            if floor < 0 and self.careful:
                continue
            observed = working_weights(fam, y, eta)
            w = observed if floor < 0 else np.maximum(safe, floor * float(np.max(safe)))
            self.reference = v * w
            self.hessian = design.gram(self.reference)
            if self.factorise(ridge):
                return
        raise DataError("the fit broke down: the covariates' scales lie too far apart")

    def factorise(self, ridge: FloatArray | None) -> bool:
        """Factorise the Hessian with the penalty; False where it is not positive definite."""
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

    def cross(self, design: Design) -> FloatArray:
        """Products of the last column that was added with all, at the weights of the Hessian."""
        return design.slope(self.reference * design.added[:, -1])

    def pivot(self, cross: FloatArray) -> float:
        """Relative size of the last column off the others, in the metric of the Hessian."""
        if self._factor is None and not self.factorise(None):
            return 0.0
        # Schur complement of the last column: its squared length off the others
        left = cross[-1] - cross[:-1] @ self.solve(cross[:-1])
        return math.sqrt(max(float(left) / float(cross[-1]), 0.0))

    def extend(self, cross: FloatArray) -> None:
        """Add a column to the Hessian."""
        wider = np.empty((cross.size, cross.size))
        wider[:-1, :-1] = self.hessian
        wider[-1] = wider[:, -1] = cross
        self.hessian, self._factor = wider, None

    def solve(self, rhs: FloatArray) -> FloatArray:
        """Apply the inverse of the Hessian."""
        return np.asarray(cho_solve(self._factor, rhs, check_finite=False))

    def minimise(
        self,
        design: Design,
        eta: FloatArray,
        theta: FloatArray,
        ridge: FloatArray | None,
        share: float,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Minimise from `theta`, where `eta` is the linear predictor with any offset.

        Stops when the error of eta is about `share` of the first step. Returns the solution, its
        linear predictor, and the Newton decrement of the first step.
        """
        p = self.problem

        def penalty(at: FloatArray) -> float:
            return 0.0 if ridge is None else 0.5 * float(at @ ridge @ at)

        value = p.value(eta) + penalty(theta)
        if self.hessian.shape[0] != theta.size or not self.factorise(ridge):
            self.refresh(design, eta, ridge)
        first, last, fresh = 0.0, math.inf, False
        for _ in range(_MOST_STEPS):
            # gradient of the weighted mean loss
            slope = design.slope(p.v * p.family.score(p.y, eta))
            slope += 0.0 if ridge is None else ridge @ theta
            step = -self.solve(slope)
            # Newton decrement: the length of the step in the metric of the Hessian
            length = math.sqrt(max(-float(slope @ step), 0.0))
            first = first or length
            if length > 0.2 * last and not fresh:  # the old Hessian contracts too slowly
                self.refresh(design, eta, ridge)
                fresh, last = True, math.inf
                continue
            move = design.eta(step)
            size = 1.0
            while size > 1e-12:
                trial = p.value(eta + size * move) + penalty(theta + size * step)
                if trial <= value + _SLACK * (1 + abs(value)):
                    break
                size *= 0.5
            if size <= 1e-12:
                if fresh or length <= 1e-7 * (1 + abs(value)):
                    break  # rounding: no lower value can be found
                self.refresh(design, eta, ridge)
                fresh = True
                continue
            theta, eta, value = theta + size * step, eta + size * move, trial
            if size < 1.0:
                self.careful = size < 0.2
                self.refresh(design, eta, ridge)
                self.careful, fresh, last = False, True, math.inf
                continue
            # what is still to come is about rate / (1 - rate) of this step
            rate = min(length / last, 0.5) if last < math.inf else 0.5
            scale = math.sqrt(max(float(self.reference @ (eta * eta)), 0.0))
            if rate * length <= max(share * first, _FLOOR * scale):
                break
            last, fresh = length, False
        return theta, eta, first


def ridge_strength(penalty: Penalty | None) -> float:
    """Factor of half the sum of squared coefficients, beside the mean loss."""
    return 0.0 if penalty is None else penalty.alpha * (1 - penalty.l1_ratio)


def has_l1(penalty: Penalty | None) -> bool:
    """Whether absolute coefficients are penalised."""
    return penalty is not None and penalty.alpha * penalty.l1_ratio > 0


def as_columns(x: FloatArray, y: FloatArray) -> FloatArray:
    """Check the shape of a party's columns."""
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
    new : bool
        False where the message is below 1e-8 of the partner's present part: it is rounding, and
        should not be sent.
    """

    beta: FloatArray
    intercept: float
    direction: FloatArray
    message: FloatArray
    gain: float
    inner: FloatArray
    penalty: float
    new: bool


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
        self.x_b, self.penalty, self._weights = as_columns(x_b, y), penalty, weights
        self._problem = Problem.of(y, family, weights)
        p = self.x_b.shape[1]
        # with a penalty all columns are kept
        kept = None if penalty is None else np.ones(p, bool)
        kept = kept if state is None else np.asarray(state["kept"], dtype=bool)
        self._design = Design(self.x_b, self._problem.v, kept)
        self._newton = Newton(self._problem)
        self.betas, self.last, self._intercept = np.zeros((p, 0)), np.zeros(p), 0.0
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
        p = self._problem
        alone = fit(self.x_b, p.y, p.family, weights=self._weights, penalty=self.penalty)
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
        offset, p = np.asarray(offset, dtype=float), self._problem
        # own coefficients in the joint fit: those behind the messages, by their weights
        now = np.zeros_like(self.last) if combination is None else self.betas @ combination
        start = self.last if combination is None else now
        design, present = self._design, 0.0
        if has_l1(self.penalty):
            local = fit(
                self.x_b,
                p.y,
                p.family,
                offset=offset,
                weights=self._weights,
                start=(start, self._intercept) if np.any(start) else None,
                penalty=self.penalty,
            )
            beta, intercept, gain = local.coef, local.intercept, math.nan
        else:
            theta = design.inner(start, self._intercept if combination is None else 0.0)
            ridge = design.ridge(ridge_strength(self.penalty))
            part, share = design.eta(theta), _FULL
            if combination is not None:
                present = math.sqrt(float(p.v @ part**2))
                share = _NEAR if self.betas.size else _FULL
            theta, _, first = self._newton.minimise(design, offset + part, theta, ridge, share)
            beta, intercept = design.raw(theta)
            # deviance: twice the loss, of which half the squared decrement is gained
            gain = p.total * first**2
        self.last, self._intercept = beta, intercept
        # the change only: successive predictors agree in all but the last digits
        direction = beta - now
        message = self.x_b @ direction
        penalty = 0.0 if self.penalty is None else self.penalty.value(beta)
        return LocalFit(
            beta=beta,
            intercept=intercept,
            direction=direction,
            message=message,
            gain=gain,
            # last row of the Gram matrix of coefficient vectors, for a ridge penalty
            inner=np.append(self.betas.T @ direction, direction @ direction),
            penalty=2 * p.total * penalty,
            new=math.sqrt(float(p.v @ message**2)) > DEPENDENT * present,
        )

    def keep(self, direction: FloatArray) -> None:
        """Note the coefficients of a message that the initiator took into its span."""
        self.betas = np.column_stack([self.betas, direction])

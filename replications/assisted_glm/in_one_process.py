"""A joint GLM in one process, each side with its own columns only.

What the messages of ``consilience.assisted.glm`` do between sites is done here by calls, on the
same kernels: for tables, tests and benchmarks that need many fits and no federation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import DEPENDENT, Family, Penalty
from consilience.assisted.kernels.joint_glm import Alternation, SpanModel
from consilience.assisted.kernels.local_fits import (
    LocalFit,
    Newton,
    Partner,
    has_l1,
    ridge_strength,
)
from consilience.exceptions import ParameterError

__all__ = [
    "ACCELERATIONS",
    "Alternation",
    "JointFit",
    "LocalFit",
    "Partner",
    "SpanModel",
    "fit_jointly",
]


ACCELERATIONS = ("span", "anderson", "none")
_FIRST = 1e-4  # error of eta after a refit, as a share of its first step
_LATER = 1e-2


class Side(Partner):
    """A partner that also says what it revealed, and what is left to gain."""

    def revealed_with(self, direction: FloatArray) -> int:
        """Numerical rank (1e-8) of the kept messages and `direction`, in the scale of the columns.

        The record of what a party revealed is kept elsewhere, over all runs; this counts one fit.
        """
        units = self._design.scale[:, None]
        every = (np.column_stack([self.betas, direction]) * units)[self._design.kept]
        size = np.linalg.norm(every, axis=0)
        every = every[:, size > 0] / size[size > 0]
        if not every.size:
            return 0
        # lengths in the space of the messages, not of the coefficients
        root = np.linalg.cholesky(self._design.gram(self._problem.v)[1:, 1:])
        values = np.linalg.svd(root.T @ every, compute_uv=False)
        return int(np.sum(values > DEPENDENT * values[0]))

    def gain(self, offset: FloatArray, beta: FloatArray) -> float:
        """Deviance that one more local fit could still gain at `beta`, to second order.

        It is the squared Newton decrement of the (ridge penalised) loss in the own columns and the
        intercept, with the Hessian at the joint fit; NaN with an L1 penalty.
        """
        if has_l1(self.penalty):
            return math.nan
        p, design = self._problem, self._design
        eta = np.asarray(offset, dtype=float) + self.x_b @ beta
        ridge = design.ridge(ridge_strength(self.penalty))
        newton = Newton(p)
        newton.refresh(design, eta, ridge)
        slope = design.slope(p.v * p.family.score(p.y, eta))
        if ridge is not None:
            slope += ridge @ design.inner(beta, 0.0)
        return p.total * float(slope @ newton.solve(slope))


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
    look_ahead: bool
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
        if drop <= self.loss_tol * abs(self.objectives[-1]):
            return True
        ahead = 1.0
        if self.look_ahead and len(self.changes) > 1 and self.changes[-2] > 0:
            # What is still to come if the changes go on to fall as they did.
            rate = min(self.changes[-1] / self.changes[-2], 0.99)
            ahead = max(1.0, rate / (1 - rate))
        return ahead * self.changes[-1] <= self.tol


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
        Stop at this relative change of eta in a round; with an acceleration, also the change that
        is still to come if the last two go on as a geometric series must be that small.
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
    if acceleration == "span" and has_l1(penalty):
        acceleration = "anderson"
    limits = _limits(max_rank, len(partners))
    centres = [np.mean(np.asarray(x_b, dtype=float), axis=0) for x_b in partners]
    sides = [
        Side(np.asarray(x_b, float) - centre, y, family, weights=weights, penalty=penalty)
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
    course = _Course(model, rows, tol, loss_tol, acceleration != "none")
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
    return _collected(course, sides, betas, centres, (rounds, stopped, acceleration))


def _collected(
    course: _Course,
    sides: list[Side],
    betas: list[FloatArray],
    centres: list[FloatArray],
    end: tuple[int, str, str],
) -> JointFit:
    model = course.model
    rounds, stopped, acceleration = end
    return JointFit(
        eta=model.eta,
        coef_a=model.coef_a,
        intercept=model.intercept,
        betas=betas,
        directions=[side.betas for side in sides],
        messages=[side.x_b @ side.betas for side in sides],
        centres=centres,
        rounds=rounds,
        # The last refit went on to the end; the round is worth what it reached.
        deviances=np.array([*course.deviances[:-1], model.deviance]),
        objectives=np.array([*course.objectives[:-1], model.objective]),
        changes=np.array(course.changes),
        stopped=stopped,
        rank=[side.betas.shape[1] for side in sides],
        gains=[side.gain(model.eta - side.x_b @ b, b) for side, b in zip(sides, betas)],
        acceleration=acceleration,
    )


def _limits(max_rank: int | Sequence[int] | None, n_partners: int) -> list[float]:
    if max_rank is None:
        return [math.inf] * n_partners
    each = [max_rank] * n_partners if isinstance(max_rank, int) else list(max_rank)
    limits = [float(limit) for limit in each]
    if len(limits) != n_partners or any(each < 0 for each in limits):
        raise ParameterError.of("max_rank", "at least 0, one number or one per partner", max_rank)
    return limits


def _span_turn(model: SpanModel, owner: int, side: Side, limit: float) -> str:
    """One partner's turn: ``new``, ``rank`` (it may not send) or ``nothing new``."""
    if side.betas.shape[1] >= min(limit, side.rank):
        return "rank" if limit < side.rank else "nothing new"
    answer = side.respond(model.offset_for(owner), model.weights_for(owner))
    if not (answer.new and model.add(answer.message, owner, answer.inner)):
        return "nothing new"
    side.keep(answer.direction)
    model.refit(_FIRST if model.owner.size <= 2 else _LATER)
    return "new"


def _plain_turns(
    model: Alternation, sides: Sequence[Side], limits: Sequence[float]
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

"""From replies to the result of an assisted GLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.glm.messages import GAP, Settings, Turned
from consilience.assisted.glm.result import AssistedGLMResult
from consilience.exceptions import StudyError
from consilience.protocol.method import CoordinatorContext

if TYPE_CHECKING:
    from consilience.assisted.glm import AssistedGLM

INTERCEPT = "(intercept)"


class Course:
    """What the coordinator sees of a training.

    Attributes
    ----------
    stopped : str
    who : str
        Whose policy ended the training, if one did.
    rounds : int
    """

    def __init__(self, s: Settings) -> None:
        self._initiator = s.initiator
        self.stopped, self.who, self.rounds = "rounds", "", 0
        self.revealed: dict[str, tuple[int, int]] = {}
        self.gains: dict[str, float] = {}
        self._numbers = 0
        self._table: dict[str, list[Any]] = {
            name: [] for name in ("round", "partner", "deviance", "change", "numbers_sent")
        }

    def begin(self, partner: str, rank: int) -> None:
        """Note a partner's rank."""
        self.revealed[partner] = (0, int(rank))

    def rank(self, site: str) -> int:
        """Linearly independent columns of a site, as it said."""
        return self.revealed[site][1]

    def known(self, partner: str, known: int) -> None:
        """Note how many directions of a partner are known."""
        self.revealed[partner] = (int(known), self.revealed[partner][1])

    def partner(self, partner: str, given: Any, n: int) -> None:
        """Note a contribution; the starting point that came before it counts too."""
        self.known(partner, given.known)
        self.gains[partner] = _number(given.gain.value["gain"])
        self._numbers += n + (0 if given.spent or given.done else n)
        if given.spent:
            self.who = partner

    def initiator(self, turned: Turned, owner: str | None, round_: int) -> None:
        """Note the joint fit after a turn."""
        self.revealed[self._initiator] = (int(turned.known), int(turned.rank))
        if owner is None and round_:
            return
        change = float(turned.course.value["change"])
        line = (
            round_,
            owner or "",
            float(turned.course.value["deviance"]),
            change if change >= 0 else np.nan,
            self._numbers,
        )
        for values, value in zip(self._table.values(), line, strict=True):
            values.append(value)

    def table(self) -> dict[str, Any]:
        """Rounds as columns."""
        kinds: dict[str, Any] = {"round": np.int64, "numbers_sent": np.int64, "partner": "U80"}
        return {k: np.array(v, dtype=kinds.get(k, np.float64)) for k, v in self._table.items()}


def fitted_result(
    ctx: CoordinatorContext,
    method: AssistedGLM,
    s: Settings,
    course: Course,
    concluded: Any,
    complete: bool,
) -> AssistedGLMResult:
    """Result of a fit."""
    fit = {k: _number(v) for k, v in concluded.fit.value.items()}
    table = {k: _numbers(v) for k, v in concluded.coefficients.value.items()}
    counts = concluded.records.value
    bins = np.asarray(concluded.calibration.value)
    _note(ctx, method, s, course)
    _note_absent(ctx, s, concluded)
    return AssistedGLMResult(
        initiator=s.initiator,
        partners=s.partners,
        family=s.family,
        response=s.response,
        flip=s.flip if s.masked else 0.0,
        n_records=int(counts["train"]),
        n_holdout=int(counts["held"]),
        n_new=int(counts["new"]),
        acceleration=s.acceleration,
        stopped=course.stopped,
        rounds=course.rounds,
        rounds_table=course.table(),
        revealed={site: course.revealed[site] for site in (s.initiator, *s.partners)},
        deviance={k: fit[f"deviance_{k}"] for k in ("null", "alone", "joint")},
        holdout={
            **{k: fit[f"holdout_{k}"] for k in ("null", "alone", "joint")},
            "alone_minus_joint": fit["gain"],
            "error": fit["gain_error"],
        },
        pseudo_r2={k: fit[f"r2_{k}"] for k in ("alone", "joint")},
        auc={k: fit[f"auc_{k}"] for k in ("alone", "joint")},
        coefficients=_coefficients(concluded, table),
        alone={"estimate": table["alone"], "error": table["alone_error"]},
        calibration={
            way: {
                "predicted": bins[i, :, 0],
                "observed": bins[i, :, 1],
                "records": np.full(bins.shape[1], counts["held"] / bins.shape[1]),
            }
            for i, way in enumerate(("alone", "joint"))
        },
        intervals={
            "kind": s.interval,
            "level": s.level,
            "n_new": int(counts["new"]),
            "certified": int(concluded.intervals.value["certified"]),
            "bounded": int(concluded.intervals.value["bounded"]),
            "mean_width": _number(concluded.intervals.value["mean_width"]),
        },
        remaining=_remaining(course, complete=complete and not s.alpha),
        penalty={"alpha": s.alpha, "l1_ratio": s.l1_ratio},
        complete=complete,
        masking=s.masking,
    )


def _remaining(course: Course, *, complete: bool) -> float:
    """Deviance that the partners could still gain: nothing where all of their directions joined."""
    if complete:
        return 0.0
    return float(sum(course.gains.values())) if course.gains else float("nan")


def _coefficients(concluded: Any, table: dict[str, FloatArray]) -> dict[str, Any]:
    """Table of the initiator's coefficients."""
    from scipy.stats import norm

    with np.errstate(all="ignore"):
        z = table["estimate"] / table["error"]
    z = np.where(np.isfinite(z), z, np.nan)
    return {
        "name": np.array(concluded.names),
        "estimate": table["estimate"],
        "error": table["error"],
        "z": z,
        "p": 2 * norm.sf(np.abs(z)),
        "status": np.array(concluded.status),
        "factor": table["factor"],
    }


def _note(ctx: CoordinatorContext, method: AssistedGLM, s: Settings, course: Course) -> None:
    """Say what a reader of the result should mind."""
    if course.stopped == "rank" and course.who:
        ctx.note(
            f"The policy of {course.who} lets no further direction of its columns be known: the "
            'training ended there. It may grant more by max_revealed_rank, for instance "full".'
        )
    if s.acceleration != method.acceleration:
        ctx.note(
            "A penalty with an L1 part is fitted by alternation with Anderson's acceleration: the "
            "span of messages has no such penalty."
        )
    if s.interval == "paper" and not s.alpha:
        ctx.note(
            'Limits by interval = "paper" add up what the own columns of each party give: they do '
            "not hold their level where the columns of the parties are related."
        )
    if s.interval == "inflated" and not s.alpha:
        few = course.rounds < 5 or len(s.partners) != 1
        ctx.note(
            'No limits were given: interval = "inflated" needs one partner and at least 5 rounds.'
            if few
            else 'Limits by interval = "inflated" are on the safe side only where the variance '
            "function of the family is right."
        )
    if s.masked and s.flip >= 0.3:
        ctx.note(
            f"Flips with probability {s.flip:g} can cost more than a partner is worth: compare "
            "with the initiator's own model."
        )


def _note_absent(ctx: CoordinatorContext, s: Settings, concluded: Any) -> None:
    """Say why limits or coefficients are not there."""
    counts, intervals = concluded.records.value, concluded.intervals.value
    without = counts["new"] and not intervals["certified"]
    if s.interval in ("inflated", "paper") and not s.alpha and without:
        ctx.note(
            f"Limits of interval = {s.interval!r} rest on variances of each person at the partner, "
            'which leave only where its policy says max_revealed_rank = "full".'
        )
    if not concluded.names:
        ctx.note(
            f"The coefficients of {s.initiator} stay there: they are more than half as many as the "
            "training rows."
        )
    elif s.names and concluded.names[0] != INTERCEPT:
        ctx.note(
            f"The coefficients of {s.initiator} are numbered in the order of its columns: their "
            "names leave where its policy says share_names = true."
        )


def predicted_result(
    ctx: CoordinatorContext, method: AssistedGLM, given: Any, predicted: Any
) -> AssistedGLMResult:
    """Result of a run that predicts new people: the followed fit, with what was predicted here."""
    import dataclasses

    before = ctx.follows
    if not isinstance(before, AssistedGLMResult):
        raise StudyError("predictions follow a run of this method: name it in [follows]")
    facts = predicted.records.value
    revealed = dict(before.revealed)
    for partner, reply in given.items():
        revealed[partner] = (int(reply.known), int(reply.rank))
    return dataclasses.replace(
        before,
        n_new=int(facts["new"]),
        revealed=revealed,
        intervals={
            "kind": before.intervals["kind"],
            "level": float(method.level),
            "n_new": int(facts["new"]),
            "certified": int(facts["certified"]),
            "bounded": 0,
            "mean_width": float(facts["mean_width"]) if facts["certified"] else float("nan"),
        },
        followed=ctx.follows_run,
    )


def _number(value: Any) -> float:
    return float("nan") if float(value) == GAP else float(value)


def _numbers(values: Any) -> FloatArray:
    found = np.asarray(values, dtype=float)
    return np.where(found == GAP, np.nan, found)

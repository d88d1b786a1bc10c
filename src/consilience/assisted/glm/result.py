"""Result of an assisted GLM, and how the coordinator comes to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.glm.messages import GAP, INTERCEPT, OPENED, WAYS, Settings, Turned
from consilience.assisted.kernels.sandwich import enough, quantile
from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Replies, Step
from consilience.protocol.next_study import Asked, Led
from consilience.protocol.result import Frame, Result, lines, of_rows
from consilience.wire.sealing import senders

if TYPE_CHECKING:
    import pandas as pd

AT_ONCE = "at once"
Turns = Generator[Ask, Replies, Any]


@dataclass(frozen=True, eq=False)
class AssistedGLMResult(Result):
    """A GLM on the columns of several parties, as the coordinator knows it.

    The partners' coefficients, and predictions for single rows, stay at the sites
    (``run.site(name).to_frame("coefficients")``, ``run.site(initiator).values("prediction")``).

    Attributes
    ----------
    initiator : str
    partners : tuple of str
    family : str
    response : {"share", "masked", "none"}
        "none" where no partner needed one.
    flip : float
        Probability with which the masked response was flipped; 0 otherwise.
    n_records, n_holdout, n_new : int
        Rows of the training, held out, and without a response; -1 for a few.
    acceleration : str
    stopped : str
        "converged", "rounds", "rank" (a policy lets no further direction be known), "nothing new"
        or "at once" (a party opened its columns: the first message had all that the fit needs).
    rounds : int
    rounds_table : dict
        By contribution: ``round``, ``partner``, ``deviance``, ``change`` (NaN within a round) and
        ``numbers_sent`` so far, both ways.
    revealed : dict of site to (int, int)
        Directions known of the site's columns, and how many there are.
    deviance : dict
        ``null``, ``alone``, ``joint``, on the training rows.
    holdout : dict
        Mean deviance of a held-out row: ``null``, ``alone``, ``joint``; ``alone_minus_joint`` with
        its standard ``error``.
    pseudo_r2, auc : dict
        ``alone``, ``joint``.
    own_coefficients : dict
        Of the initiator: ``name``, ``estimate``, ``error``, ``z``, ``p``, ``status``, ``factor``.
        Shared coefficients have no estimate: only their sum over the parties is known. Where
        directions of a partner stay hidden, ``least`` and ``spread``: robust errors, and those of
        a right model, as if these had nothing to do with the own columns (see `limits_if`).
    alone : dict
        ``estimate``, ``error`` of the initiator's own model.
    calibration : dict
        By model: ``predicted``, ``observed`` by part of the held-out rows; withheld parts are NaN.
    intervals : dict
        ``kind``, ``level``, ``certified`` (predicted rows with limits), ``n_new``, ``mean_width``.
    remaining : float
        Deviance that one more local fit of the partners could still gain.
    penalty : dict
    complete : bool
        Whether all directions are known, so that the fit is the pooled one on all rows.
    followed : str
        Run whose model predicted new people here; empty for a fit.
    errors : {"hc1", "hc3"}
        What makes up for small samples in standard errors.
    n_clusters : int
        Clusters of rows that depend on one another; 0 where the initiator names none.
    n_held_clusters : int
        Clusters of the held-out rows, likewise.
    offset : bool
        Whether the linear predictor has an offset, from a column of the initiator.
    courses : dict of partner to str
        "opened": it opened its columns. "fitted": it fitted all columns, as the initiator opened
        its own. "turns". "earlier": only what earlier runs told of its columns took part.
    earlier : dict of partner to int
        Directions of its columns that earlier runs had told, and that the fit had from the start.
    correlation : float
        Largest canonical correlation of the initiator's columns with what it knows of the
        partners': what to think of when `limits_if` asks for one. NaN where nothing stays hidden.
    """

    often = ("partners", "stopped", "rounds", "deviance", "holdout", "auc", "intervals")

    initiator: str
    partners: tuple[str, ...]
    family: str
    response: str
    flip: float
    n_records: int
    n_holdout: int
    n_new: int
    acceleration: str
    stopped: str
    rounds: int
    rounds_table: dict[str, Any]
    revealed: dict[str, tuple[int, int]]
    deviance: dict[str, float]
    holdout: dict[str, float]
    pseudo_r2: dict[str, float]
    auc: dict[str, float]
    own_coefficients: dict[str, Any] = field(metadata={"stored": "coefficients"})
    alone: dict[str, Any]
    calibration: dict[str, Any]
    intervals: dict[str, Any]
    remaining: float
    penalty: dict[str, float]
    complete: bool = False
    followed: str = ""
    masking: str = "link"
    errors: str = "hc1"
    n_clusters: int = 0
    n_held_clusters: int = 0
    offset: bool = False
    courses: dict[str, str] = field(default_factory=dict)
    earlier: dict[str, int] = field(default_factory=dict)
    correlation: float = math.nan

    def next_studies(self, asked: Asked) -> Led:
        """Sentences alone: other people, or another party, have tables that no run knows."""
        if self.followed:
            yield "People were predicted: nothing is left to ask of this fit."
        elif self.untrained:
            yield "There is no joint model to go on with: it takes a larger max_revealed_rank."
        else:
            yield (
                "New people of these parties are predicted by a study by this method that follows "
                "this run: [follows] with its id."
            )
            yield (
                "Whether another party's columns would add to these is asked by the method "
                "assistance-test, in a study that follows this run."
            )

    def summary(self) -> str:
        """Return a few sentences: what the partners add, and how far the fit got."""
        with_ = " and ".join(self.partners)
        if self.followed:
            return (
                f"{self.n_new} people were predicted with the columns of {with_} and the model of "
                f"run {self.followed}; the predictions are at {self.initiator}.{self._people()}"
            )
        if self.untrained:
            known = " and ".join(f"{k} of {r} of {site}" for site, (k, r) in self.revealed.items())
            return (
                f"There is no joint model of {self.initiator} with {with_}: before the first round "
                "a party had revealed as many directions of its columns as its policy allows; "
                f"sketches of tests count too (known are {known}). What the partners would add is "
                "not known. It takes a larger max_revealed_rank, at the party that ended the "
                "training, or more columns there."
            )
        gain, error = self.holdout["alone_minus_joint"], self.holdout["error"]
        said = (
            f"deviance {self.deviance['alone']:.4g} alone and {self.deviance['joint']:.4g} with "
            f"{with_}, on {self.n_records} training rows"
        )
        if not np.isfinite(gain):
            said = f"The joint model of {self.initiator}: {said} (nothing was held out)."
        else:
            verdict = "shows no clear difference to"
            # A partner that brings nothing leaves differences that are rounding.
            if abs(gain) > max(self.gain_reach * error, 1e-9 * abs(self.holdout["alone"])):
                verdict = "predicts better than" if gain > 0 else "predicts worse than"
            said = (
                f"On {self.n_holdout} held-out rows the joint model {verdict} the model of "
                f"{self.initiator} alone: mean deviance {self.holdout['joint']:.4f} against "
                f"{self.holdout['alone']:.4f} (difference {gain:.4f}, standard error {error:.4f}); "
                f"{said}."
            )
        how = {
            "converged": "the training converged",
            "nothing new": "the training ended when nothing new could come",
            "rounds": "the training stopped at the limit of rounds, before it converged",
            "rank": "a policy ended the training before it converged",
            AT_ONCE: "the joint fit was complete, since a party opened its columns",
        }[self.stopped]
        known = ", ".join(f"{k} of {r} directions of {s}" for s, (k, r) in self.revealed.items())
        noun = "round" if self.rounds == 1 else "rounds"
        if self.earlier:
            had = " and ".join(f"{k} directions of {s}" for s, k in self.earlier.items())
            said += f" What earlier runs had told ({had}) was in the fit from the start."
        said += f" After {self.rounds} {noun} {how}; revealed: {known}."
        if self.complete and self.stopped in ("rank", "rounds") and not self.penalty.get("alpha"):
            said += " All directions were known by then, which completed the joint fit."
        elif self.stopped in ("rank", "rounds") and np.isfinite(self.remaining):
            more = f"{self.remaining:.3g}"
            said += f" One more fit by the partners would lower the deviance by {more} or more."
        if self.stopped == "rank" and not self.rounds and not self.complete:
            said += " More takes a larger max_revealed_rank at the party that ended the training."
        return f"{said} {self._inference(with_)}{self._people()}"

    def _people(self) -> str:
        """What is said of each new person's response, whatever is hidden of the columns."""
        kinds = {
            "limits": f"limits of that response at level {self.intervals['level']:g}",
            "probabilities": "two probabilities, of which one is calibrated, and one between",
        }
        if not self.responses:
            return ""
        new = "a few people" if self.n_new < 0 else f"{self.n_new} people"
        return (
            f" For each of {new} without a response {self.initiator} has {kinds[self.responses]}, "
            "from the rows that were held out; this needs no further direction."
        )

    @property
    def responses(self) -> str:
        """What the initiator has for each new person's response: "probabilities" or "limits".

        Empty where nobody is new, or too few rows were held out.
        """
        held = self.n_held_clusters or self.n_holdout
        if not (self.n_new and held):
            return ""
        if self.family == "binomial":
            return "probabilities"
        return "limits" if enough(float(self.intervals["level"]), held) else ""

    @property
    def gain_reach(self) -> float:
        """Standard errors to either side of the gain on held-out rows that make 95%."""
        return quantile(0.95, self.n_held_clusters)

    @property
    def reach(self) -> float:
        """Standard errors to either side of a coefficient that make 95%."""
        return quantile(0.95, self.n_clusters)

    @property
    def untrained(self) -> bool:
        """Whether a policy ended the training before any partner's message came into the model."""
        nothing = not any(self.rounds_table.get("partner", ()))
        return self.stopped == "rank" and self.rounds == 0 and not self.complete and nothing

    @property
    def kind(self) -> str:
        """What standard errors are for, in words; nothing for rows on their own by HC1."""
        words = [f"by {self.n_clusters} clusters"] if self.n_clusters else []
        words += ["HC3"] if self.errors == "hc3" else []
        return f" ({', '.join(words)})" if words else ""

    def _inference(self, with_: str) -> str:
        if self.penalty.get("alpha"):
            return "Penalised coefficients have no intervals."
        if self.intervals["kind"] != "joint":
            return 'Coefficients have standard errors by interval = "joint" only.'
        status = [str(word) for word in self.own_coefficients["status"]]
        exact, wider, shared = (status.count(w) for w in ("identified", "bounded", "shared"))
        if self.complete:
            less = f"; {shared} cannot be told from those of other columns and have none"
            return (
                f"All directions of {with_} are known, so coefficients have standard errors"
                f"{self.kind}{less if shared else ''}."
            )
        if exact or wider:
            return (
                f"{exact + wider} of {len(status)} coefficients have standard errors{self.kind}, "
                f"{wider} of them widened by a bound for the directions that stay hidden."
            )
        return (
            "Not all directions are known, so coefficients have no standard errors: more may be "
            'granted by max_revealed_rank, for instance "full". '
            + (
                "Their limits, if what is hidden is no more related to the own columns than what "
                "is known, are in the report."
                if self.bounded
                else "They have no limits either: several partners could still gain."
            )
        )

    @property
    def bounded(self) -> bool:
        """Whether `limits_if` has a bound: one partner hides, or there is no more to gain."""
        hide = [known < rank for known, rank in map(self.revealed.__getitem__, self.partners)]
        return sum(hide) <= 1 or self.stopped in ("converged", "nothing new")

    def limits_if(self, correlation: float | None = None) -> pd.DataFrame:
        """Limits of coefficients without a standard error, if what is hidden is not too close.

        Parameters
        ----------
        correlation : float, optional
            From 0 to below 1: the largest correlation that is thought possible of a combination of
            the initiator's columns with one of what the partner keeps back (several partners: all
            of them together), both off all that the initiator knows of it (a canonical correlation,
            in the weights of the fit). By default that with what the initiator knows
            (`correlation` of the result).

        Returns
        -------
        DataFrame
            By coefficient: ``estimate``, ``lower``, ``upper`` at the level of the intervals, and
            ``zero_at``, the least correlation whose limits reach 0 (1: none does). NaN where there
            is a standard error, or no bound: a shared column. ``docs/proofs/hidden-directions.md``
            proves the bound, for families other than the normal one to first order.

        Raises
        ------
        ParameterError
            A correlation below 0, or of 1 and more: then there are no limits.
        DataError
            Several partners could still gain: what one could alone does not bound it.
        """
        if correlation is None:
            correlation = self.correlation
        elif (
            isinstance(correlation, bool | str)
            or not np.isreal(correlation)
            or (np.ndim(correlation) or not 0 <= correlation < 1)
        ):
            raise ParameterError.of("correlation", "at least 0 and below 1", correlation)
        if not self.bounded:
            raise DataError(
                "limits beside hidden columns of several partners need a training that has "
                "settled: let it go on by n_rounds, or by max_revealed_rank at the parties"
            )
        found = self.own_coefficients
        estimate, least, spread = (
            np.asarray(found.get(k, np.full(len(found["name"]), np.nan)), dtype=float)
            for k in ("estimate", "least", "spread")
        )
        reach = quantile(float(self.intervals["level"]), self.n_clusters)

        def half(r: Any) -> FloatArray:
            # error / sqrt(1 - r^2), and the way to the fit on all columns (Cauchy and Schwarz)
            way = spread * r / (1 - r**2) * math.sqrt(self.remaining)
            return np.asarray(reach * least / np.sqrt(1 - r**2) + way)

        # by halving: half rises from its value at 0 without end
        low, high = np.zeros(len(estimate)), np.ones(len(estimate))
        for _ in range(50):
            middle = (low + high) / 2
            beyond = half(middle) >= np.abs(estimate)
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        zero_at = np.where(np.abs(estimate) <= half(0.0), 0.0, high)
        zero_at = np.where(np.isnan(half(0.0)), np.nan, zero_at)
        limits = half(correlation)
        return lines(
            {
                "name": list(found["name"]),
                "estimate": np.where(np.isnan(limits), np.nan, estimate),
                "lower": estimate - limits,
                "upper": estimate + limits,
                "zero_at": zero_at,
            }
        )

    @Frame
    def coefficients(self) -> pd.DataFrame:
        """The initiator's coefficients, those of its own model beside the joint one."""
        # A result that was read back has its keys in the order of the alphabet.
        names = {"name": "name", "estimate": "estimate", "error": "error", "z": "z"}
        names |= {"p": "p_value", "status": "status", "factor": "factor"}
        frame = lines({new: list(self.own_coefficients[old]) for old, new in names.items()})
        frame["alone"] = list(self.alone.get("estimate", ()))
        frame["alone_error"] = list(self.alone.get("error", ()))
        return frame

    @Frame
    def models(self) -> pd.DataFrame:
        """The constant, the initiator's own model and the joint one: how well they fit."""
        told = {"deviance": self.deviance, "held_out_deviance": self.holdout}
        told |= {"pseudo_r2": self.pseudo_r2, "auc": self.auc}
        kinds = ("null", "alone", "joint")
        return lines(
            {name: [by.get(kind, math.nan) for kind in kinds] for name, by in told.items()},
            model=kinds,
        )

    @Frame
    def training(self) -> pd.DataFrame:
        """The deviance after every contribution, with how many numbers were sent so far."""
        names = ("round", "partner", "deviance", "change", "numbers_sent")
        return lines({name: list(self.rounds_table.get(name, ())) for name in names})

    @Frame
    def directions(self) -> pd.DataFrame:
        """Directions known of each party's columns, of all that these have."""
        rows = ((site, *known) for site, known in sorted(self.revealed.items()))
        return of_rows(rows, "site", "known", "of")

    @Frame
    def calibrated(self) -> pd.DataFrame:
        """Held-out rows by predicted mean: what was predicted and what was observed."""
        parts = (
            (model, part, said, seen)
            for model, by in sorted(self.calibration.items())
            for part, (said, seen) in enumerate(
                zip(by["predicted"], by["observed"], strict=True), 1
            )
        )
        return of_rows(parts, "model", "part", "predicted", "observed")


class Course:
    """What the coordinator sees of a training.

    Attributes
    ----------
    s : Settings
    stopped : str
    who : str
        Whose policy ended the training, if one did.
    rounds : int
    revealed : dict of site to (int, int)
        Directions known of its columns, and how many there are.
    """

    def __init__(self, ctx: CoordinatorContext, s: Settings) -> None:
        self.ctx, self.s = ctx, s
        self.stopped, self.who, self.rounds = "rounds", "", 0
        self.revealed: dict[str, tuple[int, int]] = {}
        self.gains: dict[str, float] = {}
        self._numbers = 0
        self.lines: list[tuple[Any, ...]] = []
        # what came before the first turn, or instead of one: partner, numbers so far
        self.before: list[tuple[str, int]] = []
        self.earlier: dict[str, int] = {}

    def ask(self, step: Step, site: str, **fields: Any) -> Turns:
        """Ask one site about a run with these settings."""
        known = {"rows": self.ctx.n_matched}
        if site in self.revealed:
            known["rank"] = self.revealed[site][1]
        message = step.request(settings=self.s, **fields)
        return (yield from one(self.ctx, step.name, message, site, known))

    def known(self, partner: str, known: int) -> None:
        """Note how many directions of a partner are known."""
        self.revealed[partner] = (int(known), self.revealed[partner][1])

    def opened(self, partner: str, given: Any) -> None:
        """Note columns that came before the first turn."""
        came = int(given.known)
        self.known(partner, came)
        if self.s.course(partner) != OPENED:
            self.earlier[partner] = came
        self._numbers += self.ctx.n_matched * came
        self.before.append((partner, self._numbers))
        if self.s.opened:
            self.stopped, self.rounds = AT_ONCE, 1

    def fitted(self, partner: str, given: Any) -> None:
        """Note the part of a partner that fitted all columns; the initiator's came before it."""
        self.known(partner, given.known)
        self._numbers += self.ctx.n_matched * (1 + self.revealed[self.s.initiator][1])
        self.before.append((partner, self._numbers))
        self.stopped, self.rounds = AT_ONCE, 1

    def partner(self, partner: str, given: Any) -> None:
        """Note a contribution; the starting point that came before it counts too."""
        self.known(partner, given.known)
        self.gains[partner] = float(_numbers(given.gain.value["gain"]))
        # the starting point, and the answer if one came
        self._numbers += self.ctx.n_matched * (1 if given.spent or given.done else 2)
        if given.spent:
            self.who = partner

    def initiator(self, turned: Turned, owner: str, round_: int) -> None:
        """Note the joint fit after a turn, to which its owner contributed if there is one."""
        self.revealed[self.s.initiator] = (int(turned.known), int(turned.rank))
        if owner or not round_:
            deviance, change = (float(turned.course.value[k]) for k in ("deviance", "change"))
            # -1 stands for a turn within a round
            change = change if change >= 0 else np.nan
            self.lines.append((round_, owner, deviance, change, self._numbers))


def one(
    ctx: CoordinatorContext, step: str, message: Any, site: str, known: Mapping[str, int]
) -> Turns:
    """Ask one site, of which something is known; stop where it does not answer.

    What others sealed for it only this site can judge: where it refuses, they are named.
    """
    replies = yield Ask(step, message, to=(site,), known={site: known})
    sealed = sorted({sender for of in senders(message).values() for sender in of})
    if replies.missing and sealed:
        why = replies[site]
        words = f"{why.reason} (it was asked about what {' and '.join(sealed)} sealed for it)"
        replies = Replies({site: dataclasses.replace(why, reason=words)}, replies.rounds)
    return ctx.require(replies, at_least=1)[site]


def fitted_result(
    course: Course, acceleration: str, concluded: Any, complete: bool
) -> AssistedGLMResult:
    """Result of a fit, for which some acceleration was asked."""
    from scipy.stats import norm, t

    s, both = course.s, ("alone", "joint")
    fit = {k: float(_numbers(v)) for k, v in concluded.fit.value.items()}
    table = {k: _numbers(v) for k, v in concluded.coefficients.value.items()}
    counts = {k: int(v) for k, v in concluded.records.value.items()}
    clusters = counts["clusters"]
    intervals, bins = concluded.intervals.value, np.asarray(concluded.calibration.value)
    with np.errstate(all="ignore"):
        z = table["estimate"] / table["error"]
    z = np.where(np.isfinite(z), z, np.nan)
    gains = float(sum(course.gains.values())) if course.gains else float("nan")
    _note(course, acceleration, concluded)
    names = ("round", "partner", "deviance", "change", "numbers_sent")
    lines = _lines(course, fit)
    rounds = dict(zip(names, map(np.array, zip(*lines, strict=True)), strict=True))
    rounds["partner"] = rounds["partner"].astype("U80")
    return AssistedGLMResult(
        initiator=s.initiator,
        partners=s.partners,
        family=s.family,
        response=s.response if s.told else "none",
        flip=s.flip if s.masked else 0.0,
        n_records=counts["train"],
        n_holdout=counts["held"],
        n_new=counts["new"],
        acceleration=s.acceleration,
        stopped=course.stopped,
        rounds=course.rounds,
        rounds_table=rounds,
        revealed={site: course.revealed[site] for site in (s.initiator, *s.partners)},
        deviance={k: fit[f"deviance_{k}"] for k in WAYS},
        holdout={
            **{k: fit[f"holdout_{k}"] for k in WAYS},
            "alone_minus_joint": fit["gain"],
            "error": fit["gain_error"],
        },
        pseudo_r2={k: fit[f"r2_{k}"] for k in both},
        auc={k: fit[f"auc_{k}"] for k in both},
        own_coefficients={
            "name": np.array(concluded.names),
            **{k: table[k] for k in ("estimate", "error", "factor", "least", "spread")},
            "z": z,
            "p": 2 * (t(clusters - 1) if clusters else norm).sf(np.abs(z)),
            "status": np.array(concluded.status),
        },
        alone={"estimate": table["alone"], "error": table["alone_error"]},
        calibration={
            way: {
                "predicted": bins[i, :, 0],
                "observed": bins[i, :, 1],
                "records": np.full(bins.shape[1], counts["held"] / bins.shape[1]),
            }
            for i, way in enumerate(both)
        },
        intervals={
            "kind": s.interval,
            "level": s.level,
            "n_new": counts["new"],
            "certified": int(intervals["certified"]),
            "bounded": int(intervals["bounded"]),
            "mean_width": float(_numbers(intervals["mean_width"])),
        },
        # Nothing is left to gain where all of the partners' directions joined.
        remaining=0.0 if course.stopped == AT_ONCE or (complete and not s.alpha) else gains,
        penalty={"alpha": s.alpha, "l1_ratio": s.l1_ratio},
        complete=complete,
        masking=s.masking,
        errors=s.errors,
        n_clusters=clusters,
        n_held_clusters=counts["held_clusters"],
        offset=bool(concluded.offset),
        courses={partner: s.course(partner) for partner in s.partners},
        earlier=course.earlier,
        correlation=fit["correlation"],
    )


def _lines(course: Course, fit: Mapping[str, float]) -> list[tuple[Any, ...]]:
    """Lines of the table of rounds, with what came before the first turn or instead of one."""
    if not course.before:
        return course.lines
    at_once = course.stopped == AT_ONCE
    # deviances of a masked response compare with one another only
    own = at_once or not course.s.masked
    lines: list[tuple[Any, ...]] = [(0, "", fit["deviance_alone"], np.nan, 0)] if own else []
    for partner, numbers in course.before if at_once else course.before[-1:]:
        joint = course.lines[0][2] if course.lines else fit["deviance_joint"]
        lines.append((int(at_once), partner, joint, np.nan, numbers))
    return [*lines, *course.lines[1:]]


def _note(course: Course, acceleration: str, concluded: Any) -> None:
    """Say what a reader of the result should mind, and why limits or coefficients are missing."""
    ctx, s = course.ctx, course.s
    if course.stopped == "rank" and course.who:
        ctx.note(
            f"The policy of {course.who} lets no further direction of its columns be known: the "
            'training ended there. It may grant more by max_revealed_rank, for instance "full".'
        )
    if s.acceleration != acceleration and course.stopped != AT_ONCE:
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
    ctx: CoordinatorContext, level: float, given: Any, predicted: Any
) -> AssistedGLMResult:
    """Result of a run that predicts new people: the followed fit, with what was predicted here."""
    before = ctx.follows
    if not isinstance(before, AssistedGLMResult):
        raise StudyError("predictions follow a run of this method: name it in [follows]")
    facts = predicted.records.value
    revealed = {site: (int(reply.known), int(reply.rank)) for site, reply in given.items()}
    return dataclasses.replace(
        before,
        n_new=int(facts["new"]),
        revealed={**before.revealed, **revealed},
        intervals={
            **before.intervals,
            "level": float(level),
            "n_new": int(facts["new"]),
            "certified": int(facts["certified"]),
            "bounded": 0,
            "mean_width": float(facts["mean_width"]) if facts["certified"] else float("nan"),
        },
        followed=ctx.follows_run,
    )


def _numbers(values: Any) -> FloatArray:
    """Numbers as they crossed the wire, NaN for those that there are none of."""
    found = np.asarray(values, dtype=float)
    return np.where(found == GAP, np.nan, found)

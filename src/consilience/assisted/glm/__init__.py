"""A GLM on the columns of several parties, by whatever their policies let cross, with intervals.

======================================  ==================================================
coordinator                             site
======================================  ==================================================
prepare (phases opening, align_ids)
offer: OfferRequest                 ->  all; Offered: may all directions be known,
                                        more than now; how many are known     PUBLIC
open: OpenRequest                   ->  a partner that opens its columns, or of which
                                        earlier runs told, for the initiator's eyes:
                                    <-  Finished: X_b, or along these (n, k)   PER_RECORD
where all partners open: conclude, below
include: IncludeRequest             ->  initiator: takes them into the span
for each partner that needs it
share: ShareRequest                 ->  initiator
                                    <-  Shared: response (n)               PER_RECORD,
                                        for the partner's eyes; NaN where held out
  or share_masked                   <-  MaskedShared: flipped response     NOISED
receive: ReceiveRequest             ->  partner; Received: rank            PUBLIC
where the initiator opens its columns to the only partner
hand_over: HandOverRequest          ->  initiator, for the partner's eyes:
                                    <-  HandedOver: X_a (n, p)             PER_RECORD
                                        its means, who is new              MODEL
fit: FitRequest                     ->  partner: fits all columns, for the initiator's eyes:
                                    <-  Fitted: X_b beta_b (n)             PER_RECORD
                                        standard errors                    MODEL
                                        or why there is no fit             PUBLIC
else, in rounds, each partner in turn
turn: TurnRequest                   ->  initiator: takes the contribution into the span,
  owner, contribution (n)               refits, for the next partner's eyes:
                                    <-  Turned: own part (n)               PER_RECORD
                                        others' part (n), weights          PER_RECORD, MODEL
                                        deviance, change                   MODEL
contribute: ContributeRequest       ->  partner: full local fit with that as an offset,
  own, others, weights                  for the initiator's eyes:
                                    <-  Contributed: X_b d (n)             PER_RECORD
in the end, for each partner
settle, finish                      ->  partner: where its coefficients stand
                                    <-  Finished: the directions left (n, r - k), if its
                                        policy lets all be known           PER_RECORD
where a policy keeps directions back, a few times for each partner
aim: AimRequest                     ->  initiator: takes in what the partner sent at last; the
                                        targets' solutions so far, for the partner's eyes
                                    <-  Aimed: own part (n, m)             PER_RECORD
refine: RefineRequest               ->  partner, for the initiator's eyes:
                                    <-  Refined: X_b d (n, k)              PER_RECORD
                                        what is still hidden (m)           MODEL
conclude: ConcludeRequest           ->  initiator: comparison, intervals, predictions
                                    <-  Concluded: own coefficients, fit   MODEL
                                        calibration                        AGGREGATE
tell, record                        ->  partner keeps its own coefficients and errors;
                                        nothing, if it gets no response and the
                                        initiator's policy does not share it
a run that follows one predicts new people
part: PartRequest                   ->  partner: X_b along known directions (n, k)
predict: PredictRequest             ->  initiator keeps predictions and limits
======================================  ==================================================

Source: Zhang, Yang and Ding, *Additive-effect assisted learning* (2025), stage 2 (algorithm 2).
Departures: ``acceleration="span"`` refits on all messages so far (``assisted.kernels.joint_glm``),
where the source alternates; a partner sees its own weights only; a masked response is fitted by the
link ``q + (1 - 2q) expit(eta)``, where the source fits a plain logit (``masking="as_printed"``);
intervals come from the sandwich of the joint design, which one block of further directions
completes, where the source's local ones do not cover (``interval="paper"``); held-out rows compare
the models, and join the fit where all directions are known, without a further message; a party
whose policy lets all of its columns be known sends them at once (`AssistedGLM.courses`), and what
earlier runs told of a partner's columns is in the fit from the start.

Absence: every site is needed in every round; a run with a directory is resumed, and no result is
given of a training that did not end. Leakage: a partner that opens its columns, or tells what
earlier
runs told, knows nothing new, and the initiator knows these columns; where the initiator's policy
grants ``share_response`` it knows its coefficients, and with them what they tell of the response.
Another one knows the response of the training rows, or a masked one,
case weights and an offset if there are any, and for each message one combination of the initiator's
columns and one of the other partners' columns together, or all of the initiator's columns where
that party opened them; the initiator one combination of a partner's columns for each message. Each
party's ledger counts them over all runs. After as many as there are independent columns, all of the
columns' span is known. The coordinator knows how deviances fall, the initiator's coefficients with
standard errors, how well the models fit and predict, calibration where groups are large enough,
how closely the initiator's columns are related to what it knows, numbers of rows, of their clusters
and of intervals, and keyed hashes of the ids, of which all sites know the common ones; a third
party sees neither a response nor a linear predictor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.assisted.glm import inference, one_message, prediction, training
from consilience.assisted.glm.messages import EARLIER, FITTED, OPENED, SEPARATED, TURNS, Settings
from consilience.assisted.glm.prediction import AssistedPredictor
from consilience.assisted.glm.result import (
    AssistedGLMResult,
    Course,
    Turns,
    fitted_result,
    one,
    predicted_result,
)
from consilience.assisted.phases import NOTHING
from consilience.exceptions import ParameterError
from consilience.numerics.families import NAMES, family
from consilience.parameters import allows, just, number, one_of, whole
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    Offer,
    Planned,
    Step,
    register,
)
from consilience.protocol.phases.holdout import say_share
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

_PLANNED = {
    OPENED: ("all of its columns, at once", "nothing", "1", ""),
    FITTED: ("one direction", "all of its columns, and the response", "1", "exact"),
    TURNS: ("one direction a round", "one direction a round, and the response", "", ""),
    EARLIER: ("no new direction", "nothing", "0", "none"),
}
"""By course: what the partner reveals, what the initiator does, rounds, errors."""
REFINEMENTS, TO_ACCURACY = 3, 9
"""Exchanges for standard errors where not all directions are known: more, with fewer directions
each, where some accuracy is enough."""
STEPS: tuple[Step, ...] = (
    *one_message.STEPS,
    *training.STEPS,
    *inference.STEPS,
    *prediction.STEPS,
)


@register
@dataclass(frozen=True, kw_only=True)
class AssistedGLM(Method[AssistedGLMResult]):
    """Fit one GLM on the initiator's and the partners' columns.

    Parameters
    ----------
    family : {"binomial", "normal", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie"}
        Distribution, or loss, of the response.
    response : {"share", "masked"}
        What partners get: the response as it is, or (0 and 1 only) with flips. There is no default:
        whoever owns the response decides. Partners that open their columns get none, and where all
        do it need not be said.
    flip : float
        Probability of a flip; epsilon is ``log((1 - flip) / flip)``.
    masking : {"link", "as_printed"}
        How a masked response is fitted.
    acceleration : {"span", "anderson", "none"}
        "span" refits on all contributions so far; the others alternate, as the source does, with
        Anderson's acceleration or plainly.
    alpha : float
        Penalty of every party's coefficients; 0 is none.
    l1_ratio : float
        Kind of the penalty: ridge at 0, lasso at 1.
    n_rounds : int
        Most turns of each partner.
    tol : float
        Relative change of the linear predictor in a round at which the training ends.
    holdout : float
        Share of the rows kept out of the training, to compare with the initiator's own model;
        protected sites hold out one or two fifths, or nothing.
    exchange : {"auto", "turns"}
        "auto": a party whose policy lets all directions of its columns be known sends them at once
        (see `courses`). "turns": parties take turns in any case.
    interval : {"joint", "inflated", "paper", "none"}
        "joint" needs partners whose policy lets all directions be known. "inflated" needs
        ``acceleration="none"``, one partner and at least 5 rounds; "paper" does not cover in
        general. Both need variances of the partner's rows, which tell all of its directions: its
        policy must let all be known.
    level : float
        Of the intervals.
    interval_accuracy : float
        Of "joint": relative accuracy of standard errors that is enough. Above 0, an initiator whose
        policy lets all be known asks for so many directions and no more; 0 goes on to exact errors.
        Partners that open their columns send them all: by "turns" they do not.
    errors : {"hc1", "hc3"}
        Robust standard errors: "hc3" makes more of rows with large values, and of few clusters.
        Both are by clusters where the initiator's columns name one.
    power : float
        Of the variance function, for "tweedie".
    """

    family: str = allows(one_of(*NAMES), default="binomial")
    response: Literal["share", "masked", ""] = allows(
        one_of("share", "masked") | just(""), default=""
    )
    flip: float = allows(number(above=0, below=0.5), default=0.1)
    masking: Literal["link", "as_printed"] = allows(one_of("link", "as_printed"), default="link")
    acceleration: Literal["span", "anderson", "none"] = allows(
        one_of("span", "anderson", "none"), default="span"
    )
    alpha: float = allows(number(0), default=0.0)
    l1_ratio: float = allows(number(0, 1), default=0.0)
    n_rounds: int = allows(whole(1, 1000), default=30)
    tol: float = allows(number(above=0, below=1), default=1e-6)
    holdout: float = allows(number(0, 0.9), default=0.2)
    exchange: Literal["auto", "turns"] = allows(one_of("auto", "turns"), default="auto")
    interval: Literal["joint", "inflated", "paper", "none"] = allows(
        one_of("joint", "inflated", "paper", "none"), default="joint"
    )
    level: float = allows(number(above=0, below=1), default=0.95)
    interval_accuracy: float = allows(number(0, 0.5), default=0.0)
    errors: Literal["hc1", "hc3"] = allows(one_of("hc1", "hc3"), default="hc1")
    power: float = 1.5

    name: ClassVar[str] = "assisted-glm"
    version: ClassVar[int] = 15
    title: ClassVar[str] = "What do a partner's columns add to my model, and with what certainty?"
    partition: ClassVar[Literal["rows", "columns"]] = "columns"
    steps: ClassVar[tuple[Step, ...]] = STEPS
    absence: ClassVar[str] = (
        "Every site is needed in every round; a run with a directory can be resumed."
    )
    tolerates: ClassVar[dict[str, Literal["quorum", "all", "any"]]] = {
        step.name: "all" for step in STEPS
    }
    settles: ClassVar[frozenset[str]] = frozenset(("acceleration",))
    leakage: ClassVar[str] = (
        "Partners that open their columns, or tell what earlier runs told, know nothing new, and "
        "the initiator knows these columns; where it grants share_response they know their "
        "coefficients, which can tell the response. Others know the response, or a masked "
        "one, case weights and an offset if there "
        "are any, and along one direction for each message the columns of the initiator, and of "
        "the other partners together, or all columns of an initiator that opens them; the "
        "initiator knows those of each partner along one direction for each message. The "
        "coordinator knows how deviances fall, the initiator's coefficients with standard errors, "
        "how well the models fit and predict, calibration where groups are large enough, how "
        "closely the initiator's columns are related to what it knows, and numbers of rows, of "
        "their clusters and of intervals; and keyed hashes of the ids, of which all sites know the "
        "common ones."
    )
    Result: ClassVar[type[AssistedGLMResult]] = AssistedGLMResult
    predictor: ClassVar[Any] = AssistedPredictor

    def check_together(self) -> None:
        """Check parameters that do not go together; raise `ParameterError`."""
        family(self.family, power=self.power)
        if self.response == "masked" and self.family != "binomial":
            raise ParameterError(
                f"response = 'masked' flips a response of 0 and 1, and the family is "
                f"{self.family!r}: use 'binomial', or response = 'share'"
            )
        if self.interval == "inflated" and self.acceleration != "none":
            raise ParameterError(
                "interval = 'inflated' reads the parties' correlation from plain rounds: "
                "set acceleration = 'none', or interval = 'joint'"
            )

    def courses(self, initiator: str, offers: Mapping[str, Offer]) -> dict[str, str]:
        """How each partner takes part, by what the policies let be known.

        Parameters
        ----------
        initiator : str
        offers : mapping of site to Offer
            Of all parties.

        Returns
        -------
        dict of partner to str
            "opened": it sends all of its columns, and gets nothing (its coefficients, where the
            initiator grants ``share_response``). "fitted": the only partner gets
            the initiator's columns and fits all. "turns". "earlier": no response is given, and it
            sends what earlier runs told of its columns.

        Raises
        ------
        ParameterError
            A partner needs a response, and nobody said whether it gets one.
        """
        partners = [site for site in offers if site != initiator]
        lasso = bool(self.alpha and self.l1_ratio)
        span = self.acceleration == "span"
        at_once = self.exchange == "auto" and span and self.interval in ("joint", "none")
        found = {p: OPENED if at_once and offers[p].opens else TURNS for p in partners}
        if lasso and set(found.values()) != {OPENED}:
            # beside turns a penalty with an L1 part has no span that columns could join
            found = dict.fromkeys(partners, TURNS)
        if len(partners) == 1 and found[partners[0]] == TURNS and self.response and at_once:
            opens = offers[initiator].opens and offers[partners[0]].room
            found[partners[0]] = FITTED if opens else TURNS
        if not self.response:
            for p in partners:
                if found[p] == TURNS and span and not lasso and not offers[p].room:
                    found[p] = EARLIER
        waiting = [p for p in partners if found[p] == TURNS]
        if waiting and not self.response:
            raise ParameterError(
                f"{' and '.join(waiting)} needs the response to fit its columns: set response = "
                "'share' to give it, or 'masked' to give one of 0 and 1 with flips"
            )
        return found

    def plan(self, initiator: str, offers: Mapping[str, Offer]) -> list[Planned]:
        """How each partner would take part; see `courses`."""
        by_partner = self.courses(initiator, offers)
        complete = all(offers[p].opens for p in by_partner)
        joint = self.interval == "joint" and not self.alpha
        at_end = "exact" if complete else "exact, or bounded" if offers[initiator].opens else "none"
        lines = []
        for partner, course in by_partner.items():
            said = _PLANNED[course]
            rounds = f"up to {self.n_rounds}" if course == TURNS else said[2]
            errors = said[3] or at_end
            if self.interval not in ("joint", "none"):
                errors = f"by interval = {self.interval!r}"
            lines.append(Planned(partner, said[0], said[1], rounds, errors if joint else "none"))
        return lines

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Train, conclude; or predict with what an earlier run left."""
        if ctx.follows is not None:
            return (yield from self._predict(ctx))
        course = Course(ctx, self._settings(ctx))
        say_share(ctx, course.s.holdout)
        offers = yield from self._offers(course)
        by_partner = self.courses(ctx.initiator, offers)
        courses = tuple(by_partner[p] for p in course.s.partners)
        course.s = s = dataclasses.replace(course.s, courses=courses)
        rest = yield from self._before_turns(course, offers)
        fitted: tuple[Any, ...] = ()
        if s.those(FITTED):
            fitted = yield from self._fit_there(course)
        elif s.those(TURNS):
            yield from self._train(course)
        elif not s.opened:
            course.stopped = "rank"
        if not (s.opened or fitted):
            rest = yield from self._finish(course)
        asker = ctx.initiator
        complete = bool(rest) and all(r.complete for r in rest)
        left: tuple[Any, ...] = ()
        # exact errors need all directions; else the ones that matter most
        refines = not (complete or fitted or s.those(EARLIER))
        if self.interval == "joint" and not self.alpha and refines:
            left = yield from self._refine(course, rest)
        concluded = yield from course.ask(
            inference.conclude,
            asker,
            rest=relayed(tuple(r.rest.value for r in rest), Disclosure.PER_RECORD),
            variances=relayed(tuple(r.variances.value for r in rest), Disclosure.PER_RECORD),
            left=relayed(left, Disclosure.MODEL),
            part=relayed(tuple(r.part.value for r in fitted), Disclosure.PER_RECORD),
            errors=relayed(tuple(r.errors.value for r in fitted), Disclosure.MODEL),
            hidden=sum(r - k for site, (k, r) in course.revealed.items() if site in s.partners),
            complete=complete,
        )
        for partner in s.partners:
            told = yield from course.ask(inference.tell, asker, partner=partner)
            yield from course.ask(inference.record, partner, place=told.place)
        return fitted_result(course, self.acceleration, concluded, complete)

    # ------------------------------------------------------------------ parts of the exchange

    def _settings(self, ctx: CoordinatorContext) -> Settings:
        texts = ("family", "response", "masking", "interval", "exchange", "errors")
        numbers = ("power", "flip", "alpha", "l1_ratio", "tol", "holdout", "level")
        of_intervals = ("interval_accuracy",)
        # The span of messages has no penalty with an L1 part.
        lasso = self.alpha and self.l1_ratio and self.acceleration == "span"
        own: dict[str, Any] = {name: getattr(self, name) for name in texts}
        own |= {name: float(getattr(self, name)) for name in (*numbers, *of_intervals)}
        return Settings(
            **own,
            acceleration="anderson" if lasso else self.acceleration,
            split_seed=int(ctx.rng.integers(2**31)),
            initiator=ctx.initiator,
            partners=ctx.partners,
            names=ctx.at == f"site:{ctx.initiator}",
        )

    @staticmethod
    def _offers(course: Course) -> Turns:
        """Ask every party what its policy lets be known."""
        ctx = course.ctx
        sites = (ctx.initiator, *course.s.partners)
        request, known = one_message.offer.request(), {"rows": ctx.n_matched}
        replies = yield Ask("offer", request, to=sites, known=dict.fromkeys(sites, known))
        offers = ctx.require(replies, at_least=len(sites))
        for site, offer in offers.items():
            course.revealed[site] = (int(offer.known), int(offer.rank))
        return offers

    @staticmethod
    def _before_turns(course: Course, offers: Mapping[str, Offer]) -> Turns:
        """Have partners send their columns, or what is known of them; give others the response.

        Returns
        -------
        list of Finished
            What the partners sent, where nobody takes turns.
        """
        s, asker, sent = course.s, course.ctx.initiator, []
        share, receive = training.share, training.receive
        if s.masked:
            share, receive = training.share_masked, training.receive_masked
        # first, so that nothing but what is shared is ever fitted
        shared = {}
        for partner in s.told:
            shared[partner] = yield from course.ask(share, asker, partner=partner)
        for partner in s.partners:
            # no span of messages, nothing to join
            joins = s.acceleration == "span" and offers[partner].known and not s.those(FITTED)
            if s.course(partner) == OPENED or joins:
                given = yield from course.ask(one_message.open_columns, partner)
                course.opened(partner, given)
                sent.append(given)
                if not s.opened:
                    of = {"owner": partner, "rest": given.rest}
                    yield from course.ask(one_message.include, asker, **of)
        for partner, given in shared.items():
            of = {name: getattr(given, name) for name in ("response", "weights", "offset")}
            yield from course.ask(receive, partner, **of)
        return sent

    @staticmethod
    def _fit_there(course: Course) -> Turns:
        """Have the partner fit all columns."""
        (partner,), asker = course.s.partners, course.ctx.initiator
        handed = yield from course.ask(one_message.hand_over, asker, partner=partner)
        course.known(asker, handed.known)
        of = {"own": handed.own, "place": handed.place}
        fitted = yield from course.ask(one_message.fit, partner, **of)
        if fitted.unfit:
            separated = fitted.unfit == SEPARATED
            raise training.endless_fit() if separated else inference.too_many_columns()
        course.fitted(partner, fitted)
        return (fitted,)

    @staticmethod
    def _finish(course: Course) -> Turns:
        """Have partners send what was never sent, if their policy lets it be known."""
        s, asker, rest = course.s, course.ctx.initiator, []
        for partner in s.partners:
            settled = yield from course.ask(training.settle, asker, partner=partner)
            answer = yield from course.ask(training.finish, partner, place=settled.place)
            rest.append(answer)
            course.known(partner, answer.known)
        return rest

    def _train(self, course: Course) -> Turns:
        """Take turns until the fit has settled, or nothing more may or can be said."""
        s, asker = course.s, course.ctx.initiator
        nothing = {
            "contribution": relayed(NOTHING, Disclosure.PER_RECORD),
            "beside": relayed(NOTHING, Disclosure.MODEL),
        }
        turning = s.those(TURNS)
        turned = yield from course.ask(
            training.turn, asker, owner="", partner=turning[0], closes=False, **nothing
        )
        course.initiator(turned, "", 0)
        for round_ in range(1, self.n_rounds + 1):
            new = spent = False
            for place, partner in enumerate(turning):
                if turned.spent:
                    course.stopped, course.who = "rank", asker
                    return
                start = {"own": turned.own, "others": turned.others, "place": turned.place}
                given = yield from course.ask(training.contribute, partner, **start)
                course.partner(partner, given)
                came = not (given.spent or given.done)
                spent |= given.spent
                # the initiator answers with the start of the next one: one message a turn
                turned = yield from course.ask(
                    training.turn,
                    asker,
                    owner=partner if came else "",
                    partner=turning[(place + 1) % len(turning)],
                    closes=place == len(turning) - 1,
                    **{name: getattr(given, name) if came else nothing[name] for name in nothing},
                )
                new |= turned.added or (came and s.acceleration != "span")
                course.initiator(turned, partner if came else "", round_)
            if not new:
                course.stopped = "rank" if spent else "nothing new"
                return
            course.rounds = round_
            if turned.converged:
                # Where a partner had more to say and may not, what settled is not the joint fit.
                course.stopped = "rank" if spent else "converged"
                return
        course.stopped = "rounds"

    @staticmethod
    def _refine(course: Course, rest: list[Any]) -> Turns:
        """Ask the partners for the directions that standard errors need most.

        Parameters
        ----------
        course : Course
        rest : list of Finished
            What each partner sent when the training ended.

        Returns
        -------
        tuple
            What is left at each partner, as it came; empty where the initiator may not ask.
        """
        # who opened its columns hides nothing
        asker, partners = course.ctx.initiator, course.s.those(TURNS)
        none = relayed(np.empty((0, 0)), Disclosure.PER_RECORD)
        # Who sent all that was left comes first: what the others hide is judged beside it.
        of = zip(course.s.partners, rest, strict=True)
        finished = {s: r.rest for s, r in of if r.complete and s in partners}
        order = sorted(partners, key=lambda partner: partner not in finished)
        left: dict[str, Any] = {}
        owner, more = "", none
        most = TO_ACCURACY if course.s.interval_accuracy else REFINEMENTS
        for turn in range(most + 1):
            came = 0
            for partner in order:
                more_of = {"owner": owner, "more": more, "rest": finished.pop(partner, none)}
                aimed = yield from course.ask(inference.aim, asker, partner=partner, **more_of)
                owner, more = "", none
                if aimed.spent:
                    return ()
                course.known(asker, aimed.known)
                aim = {"own": aimed.own, "others": aimed.others, "place": aimed.place}
                last = turn == most
                refined = yield from course.ask(inference.refine, partner, last=last, **aim)
                left[partner] = refined.left.value
                course.known(partner, refined.known)
                if refined.n_more:
                    owner, more, came = partner, refined.more, came + refined.n_more
            # no partner may or can send more
            if not came:
                break
        return tuple(left[partner] for partner in partners)

    def _predict(self, ctx: CoordinatorContext) -> Turns:
        """Predict new people with what the followed run left at the sites."""
        part = prediction.part.request(initiator=ctx.initiator)
        parts = yield Ask("part", part, to=ctx.partners)
        given = ctx.require(parts, at_least=len(ctx.partners))
        request = prediction.predict.request(
            level=float(self.level),
            partners=tuple(given),
            part=relayed(tuple(r.part.value for r in given.values()), Disclosure.PER_RECORD),
            shift=relayed(tuple(r.shift.value for r in given.values()), Disclosure.MODEL),
        )
        predicted = yield from one(ctx, "predict", request, ctx.initiator, {})
        return predicted_result(ctx, self.level, given, predicted)


__all__ = ["AssistedGLM", "AssistedGLMResult"]

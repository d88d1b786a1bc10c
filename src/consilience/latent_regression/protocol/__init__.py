"""Regression in latent classes for agents, entities and events, from rounds of class sums.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
offer: Offer                    ->  sorts events into agents and entities, holds some out
                                <-  Offered: cross-products of 1, features, response;
                                    entities, agents                        AGGREGATE
begin: Begin                    ->  puts every entity into a class: by a fit of its own
  centre, scale (p + 1), sigma2     events (local), or by chance (random)
                                <-  Sums, as below
round: Round, 1 .. R            ->  takes each entity's own part out of the classes, draws
  smoothed sums (k, d), psi (k),    its label from their block likelihoods and its agent's
  sigma2, delta2, alpha, beta       counts
  own: used, decay, weight,     <-  Sums: (k, d) of the released classes    AGGREGATE
    mapping (k)                     status (k)                              PUBLIC
                                    labels moved, fit of beta, rounded      AGGREGATE
curve: Curve                    ->  events are held out from several classes, `per_record`:
                                <-  Curved: cross-products with squares     AGGREGATE
conclude: Conclude              ->  keeps labels, probabilities and a predictor; judges
  mean (K, F), covariance           its held-out events
  (K, F, F), psi, sigma2, beta  <-  Concluded: 15 means with errors, rounded AGGREGATE
keep: Conclude                  ->  "auto", classes not ahead: keeps one class instead
                                <-  Kept: nothing
==================================  ====================================================

``Sums`` hold, by class, the upper triangle of the cross-products of (1, features, response) over
the class's events, the number of its entities, and of tables of agents. The coordinator smooths
them, ``totals <- (1 - gamma) totals + gamma sum_b sums_b``, draws what the classes share (sigma2,
delta2, psi, beta), starts with 2K classes, merges to K by the exact gain in marginal likelihood,
and averages classes and label probabilities over the last rounds.

Phases: opening, agree_levels, standardise (before all methods).

Source: Yang, Carette, Jimbo, Maruyama, *Federated Latent Class Regression for Hierarchical Data*
(arXiv 2206.10783), algorithms 1 to 3. Departures:

* The likelihood of an entity's events is one closed form, centred at the class mean (there: a
  product over events, with a predictive variance divided by sigma^2 and matrices that are advanced
  before they are used; proof in docs/proofs/latent-classes.md).
* Entities of each class are counted and sent (N^k is needed for the prior; algorithm 3 leaves it
  out), and an entity's own part is taken out of the classes exactly: sites know its weight.
* psi is drawn from table counts of all agents ("exact"); the source's shortcut favours large
  agents, and stays as an option.
* Sites start from a fit of their own (local): fewer rounds, and sums that tell of fewer changes.
  The answer then depends on which agents share a site, as a Gibbs sampler does on its start. After
  a random start it does not, where no sums are withheld: one site with all events is the central
  run.
* A learning rate that makes labels jump to and fro is seen and lowered.
* Predictions average over an entity's classes; intervals are those of the mixture.

With masked sums all sites are one, of which the coordinator knows totals (`masked.py`).

Absence: a site that misses the offer or the beginning is left out, down to the quorum. One that
misses a round is in the sums by what it sent before, fading (or for good, with `server_cache`), the
others stand for it by their share of events; it is asked again in the next round it is drawn for.
One that misses the end keeps no outputs and is not in the held-out figures.

Leakage: the coordinator knows sums of squares and products of features and response, numbers of
entities, and how these are spread over agents: of all events once, and of every released class of
every site in each round; of sites with `per_record` also sums of products with squares of the
features, of all events once. It also knows the share of labels that moved, how well a few values of
beta fit, and mean errors, log scores and intervals on held-out events, all rounded. All sites know
the smoothed sums of all, and the model. Under a policy that protects records, entities move between
released classes only in groups whose own class sums could leave (`min_records` events, twice the
columns, `min_entities` entities, no cell of few events or of one), so that no sums and differences
of these releases of a run, the sum of all events included, tell of fewer
(docs/proofs/class-sums.md). Sums with squares may. Labels never leave; how many moved, and which
classes are withheld, is told of whole groups.

What this does not prevent: a coordinator may make classes up. In a run it learns where enough
events lie beyond a line, bounded by 1,000 rounds and by groups that stay whole; from the figures of
the end, answered once and rounded to what one entity does to them, the mean response of an entity
that it has set apart, to an eighth of the responses' spread at best. Histories are those of a run:
runs with other columns, classes or seeds release sums over other groups, whose differences may be
of single entities. Their number is bounded by the policy only (`max_runs`, approved studies).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.latent_regression.estimators.latent_class_predictor import LatentClassPredictor
from consilience.latent_regression.protocol import masked
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.coordinator import BETAS, Rounds, survey_of
from consilience.latent_regression.protocol.messages import (
    MAX_CLASSES,
    MAX_ROUNDS,
    Begin,
    Curve,
    Offer,
    Settings,
)
from consilience.latent_regression.protocol.result import LatentClassRegressionResult, build_result
from consilience.parameters import FLAG, LEFT_OUT, allows, just, number, one_of, whole
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, Replies, register
from consilience.protocol.phases.holdout import say_share
from consilience.protocol.phases.secure_sums import ALL
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

AUTO_START = 18
MOST_ROUNDS = 25
"""Rounds before classes are merged, unless given."""
SHARE = number(above=0, high=1)


@register
@dataclass(frozen=True, kw_only=True)
class LatentClassRegression(Method[LatentClassRegressionResult]):
    """Find classes of entities with a regression each, over the events of all sites.

    Parameters
    ----------
    n_classes : int or "auto"
        Number of classes K; "auto" starts with many and merges while the marginal likelihood rises.
        One class is kept in their place where held-out events are no evidence of kinds (or show
        degrees), unless classes save more than a standard error of one ridge's squared error there
        and have a higher log score.
    n_start : int, optional
        Classes at the beginning: 2K unless given, 18 for "auto".
    start : {"local", "random"}
        Classes at the beginning: from a fit of every site's own, or by chance. Sites that are a
        single agent with few entities have nothing to fit: use "random". By chance, and where no
        sums are withheld, the answer does not depend on which agents share a site.
    rounds : int or "auto"
        Rounds before classes are merged: 25 after a random start; after a local one as many as the
        noise falls in, from 6 to 25.
    settle_rounds : int
        Rounds after merging.
    average_rounds : int
        Rounds after these, over which classes and probabilities are averaged.
    learning_rate : float or "auto"
        gamma in (0, 1]; .5 with everyone present, .2 where a quarter or less reports. It is lowered
        where labels jump to and fro.
    adapt_rate : bool
        Whether it is lowered.
    participation : float
        Share of the sites that is asked in each round, drawn anew.
    server_cache : bool
        Add up the last sums of all sites instead of scaling up those of the round.
    concentration : {"exact", "shortcut"}
        How psi is drawn: from table counts, or the source's shortcut.
    noise : float or "draw"
        Standard deviation of the noise in the units of the target.
    prior_scale : float or "draw"
        Prior standard deviation of coefficients of standardised columns, per standard deviation of
        the target.
    alpha : float, optional
        Concentration of the shares; the number of classes unless given.
    beta : float or "grid"
        Concentration of agents' shares.
    fit_intercept : bool
        Whether each class has an intercept.
    holdout : float
        Share of the events of each site that measures the classes, in [0, .5]; every entity keeps
        an event (at protected sites every entity name does: with two agents it may be at the other
        one). Protected sites hold out one or two fifths, or nothing, and so do all with masked
        sums: all sites, or none.
    level : float
        Of intervals.

    Notes
    -----
    The study names the columns ``entity`` and ``target``, and ``agent`` where sites hold more than
    one agent; without it each site is one. A target of 0 and 1 is regressed as it is: predictions
    are then estimates of chances that may lie outside [0, 1].
    """

    n_classes: int | str = allows(whole(1, MAX_CLASSES // 2) | just("auto"), default=4)
    n_start: int | None = allows(whole(1, MAX_CLASSES) | LEFT_OUT, default=None)
    start: str = allows(one_of("local", "random"), default="local")
    rounds: int | str = allows(whole(0, MAX_ROUNDS // 2) | just("auto"), default="auto")
    settle_rounds: int = allows(whole(0, MAX_ROUNDS // 4), default=10)
    average_rounds: int = allows(whole(1, MAX_ROUNDS // 4), default=10)
    learning_rate: float | str = allows(SHARE | just("auto"), default="auto")
    adapt_rate: bool = allows(FLAG, default=True)
    participation: float = allows(SHARE, default=1.0)
    server_cache: bool = allows(FLAG, default=False)
    concentration: str = allows(one_of("exact", "shortcut"), default="exact")
    noise: float | str = allows(number(above=0) | just("draw"), default="draw")
    prior_scale: float | str = allows(number(above=0) | just("draw"), default="draw")
    alpha: float | None = allows(number(above=0) | LEFT_OUT, default=None)
    beta: float | str = allows(number(above=0) | just("grid"), default="grid")
    fit_intercept: bool = allows(FLAG, default=True)
    holdout: float = allows(number(0, 0.5), default=0.1)
    level: float = allows(number(above=0, below=1), default=0.9)

    name: ClassVar[str] = "latent-class-regression"
    version: ClassVar[int] = 14
    title: ClassVar[str] = "Which classes of entities follow which regression?"
    steps = (
        at_site.offer,
        at_site.begin,
        at_site.round_,
        at_site.curve,
        at_site.conclude,
        at_site.keep,
        *masked.STEPS,
    )
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {
        "round": "any",
        "curve": "any",
        "conclude": "any",
        "keep": "any",
    }
    absence: ClassVar[str] = (
        "A site that misses the offer or the beginning is left out of it, down to the quorum. One "
        "that misses a round is in the sums by what it sent before, and is asked again. One that "
        "misses the end keeps no outputs and is not in the held-out figures; one that misses only "
        "that one class is kept in their place keeps them. With masked sums a "
        "site that is lost after the first of them stops the run."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows sums of squares and products of features and response, and numbers "
        "of entities and how they are spread over agents: of all events once, of each released "
        "class of each site in every round; of sites with per_record, once, also sums of products "
        "with squares of the features. It also knows the share of labels that moved, how "
        "well a few values of beta fit, and mean errors, log scores and intervals on held-out "
        "events, all rounded. Protected sites release classes that change by groups of "
        "min_records events of min_entities entities only, within a run: several runs on the same "
        "events are bounded by max_runs. All sites know the smoothed sums and the model. Labels "
        "never leave. With masked sums the coordinator knows this of all sites together, which "
        "sites tell a figure, and how many could hold events out."
    )
    Result = LatentClassRegressionResult
    predictor: ClassVar[Any] = LatentClassPredictor
    roles: ClassVar[tuple[str, ...]] = ("target", "agent", "entity", "weight")
    foreign_models: ClassVar[bool] = True  # classes are models, by which rows are drawn

    def check_together(self) -> None:
        """Refuse fewer classes at the beginning than in the end."""
        if not isinstance(self.n_classes, str) and self.n_classes > (self.n_start or MAX_CLASSES):
            most = f"a whole number from n_classes to {MAX_CLASSES}"
            raise ParameterError.of("n_start", most, self.n_start)

    def cannot_mask(self) -> str:
        """Say what it needs of single sites."""
        return masked.refusal(self)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are entities, features and a numeric response."""
        columns = ctx.columns
        if columns.target is None or columns.entity is None:
            raise StudyError(
                "latent-class-regression needs a response and entities: name them as target and "
                "entity in [data]"
            )
        if not columns.features and not self.fit_intercept:
            raise StudyError("without features and intercept there is nothing to regress on")
        if columns.levels.get(columns.target):
            raise StudyError(
                f"column {columns.target!r} has declared levels and latent-class-regression needs "
                "numbers: give 0 and 1 for two levels, without declaring them"
            )
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "coefficients mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, begin, rounds, merging, rounds, conclude."""
        wanted = None if isinstance(self.n_classes, str) else self.n_classes
        start = AUTO_START if wanted is None else 2 * wanted if wanted > 1 else 1
        s = Settings(
            n_cells=start if self.n_start is None else self.n_start,
            start=self.start,
            concentration=self.concentration,
            fit_intercept=self.fit_intercept,
            holdout=float(self.holdout),
            level=float(self.level),
        )
        if ctx.masks is not None:
            s = yield from masked.held_out(ctx, s)
        say_share(ctx, s.holdout)
        asked, all_tell = Offer(settings=s), False
        if ctx.masks is None:
            offered = ctx.require((yield Ask("offer", asked)))
        else:
            offered, all_tell = yield from masked.offered(ctx, asked)
        survey = survey_of(offered, s, len(ctx.feature_names))
        if survey is None:
            raise QuorumError(
                "no site has enough events to tell the moments of its columns: let larger sites "
                "take part, drop columns that few events have, and join values that few have"
            )
        rounds = Rounds(self, ctx, s, survey)
        message = Begin(
            settings=s,
            centre=relayed(survey.centre, Disclosure.AGGREGATE),
            scale=relayed(survey.scale, Disclosure.AGGREGATE),
            sigma2=relayed(survey.sigma2, Disclosure.AGGREGATE),
        )
        if ctx.masks is None:
            ask = Ask("begin", message, to=survey.sites, known=survey.told)
            rounds.begin(ctx.require((yield ask)))
        else:
            rounds.known = survey.told[ALL] if all_tell else {}
            totals = yield from masked.sums(ctx, "begin_total", message, rounds.known)
            rounds.begin(totals)
        if not (rounds.sums.counts > 0).any():
            raise QuorumError(
                "no site has a class that is large enough to be sent: ask for fewer classes or "
                "columns, or let sites with more events take part"
            )

        given = None if isinstance(self.rounds, str) else self.rounds
        for i in range(MOST_ROUNDS if given is None else given):
            yield from self._round(ctx, rounds)
            if given is None and self.start == "local" and rounds.settled(i + 1):
                break
        rounds.merge(wanted)
        rounds.merged_at = rounds.round
        grid = BETAS if isinstance(self.beta, str) else ()
        for i in range(self.settle_rounds):
            ask_beta = grid if i in (0, self.settle_rounds - 1) else ()
            yield from self._round(ctx, rounds, betas=ask_beta)
            if wanted is None and i == self.settle_rounds // 2:
                merged = len(rounds.path)
                rounds.merge(None)  # what merging left blurred may be clear by now
                if len(rounds.path) > merged:
                    rounds.merged_at = rounds.round
        for _ in range(self.average_rounds):
            yield from self._round(ctx, rounds, keep=True)

        # What sites averaged was after all mergers: the way is the same from every site.
        ending = rounds.ending()
        to = tuple(sorted(rounds.standing)) if ctx.masks is None else ctx.masks.roster
        # Classes follow a curve: they are to be ahead of one regression with squares, too.
        # Not with masked sums: those of sites that tell, off the offers' of all, are of the others.
        if s.holdout and rounds.n_features and len(ending.mean) > 1 and ctx.masks is None:
            ask = Ask("curve", Curve(settings=s), to=to, known=survey.told)
            rounds.set_curve(ctx.require((yield ask), at_least=0))
        last = ending.message(rounds)
        if ctx.masks is None:
            asked_of_all = Ask("conclude", dict.fromkeys(to, last), to=to)
            concluded = ctx.require((yield asked_of_all), at_least=0)
        else:
            concluded = yield from masked.concluded(ctx, last)
        result = build_result(ctx, rounds, ending, concluded)
        if not (wanted is None and result.one_is_enough):
            return result
        one = rounds.one_class(ending)
        to = to if ctx.masks is not None else tuple(sorted(concluded))  # others keep nothing
        end = Ask("keep", dict.fromkeys(to, one.message(rounds)), to=to)
        kept = ctx.require((yield end), at_least=0)
        missing = [site for site in to if site not in kept]
        if missing:
            ctx.note(f"Not one class but those that were judged are kept at {', '.join(missing)}.")
        return build_result(ctx, rounds, one, concluded, n_replaced=result.n_classes)

    def _round(
        self,
        ctx: CoordinatorContext,
        rounds: Rounds,
        *,
        keep: bool = False,
        betas: tuple[float, ...] = (),
    ) -> Generator[Ask, Replies, None]:
        """One round over the sites that are drawn for it."""
        messages = rounds.ask(keep=keep, betas=betas)
        present: Mapping[str, Any]
        if ctx.masks is None:
            replies = yield Ask("round", messages, to=tuple(messages), known=rounds.survey.told)
            # Of a few that were drawn all may be missing: the others stand for them once more.
            present = ctx.require(replies, at_least=int(len(messages) == len(rounds.standing)))
        else:
            message = messages[ALL]
            present = yield from masked.sums(ctx, "round_total", message, rounds.known)
        if betas:
            rounds.set_beta(present, betas)
        rounds.hear(present, keep=keep)

"""Community Bayes over sites: communities of features from pooled ranks, one classifier for each.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
offer: Offer                    ->  splits its rows: training, choosing, test
  settings                      <-  Offered: training (K) by class,
                                    choosing, test rows                 AGGREGATE
ranks: Rank                     ->  ranks its training rows within each class
                                <-  Ranks: Spearman (p, p) by class     AGGREGATE
one-shot
fit: Fit                        ->  fits each community to its own training rows
  communities                   <-  Fitted: coefficients, curvature
                                    by community, packed                MODEL
exact, in place of it
slopes: Slope, rounds 1 .. R    ->  sums loss, gradient and curvature of its rows
  coefficients by community     <-  Slopes: by community, packed        AGGREGATE,
                                    with consent (per_record)
judge: Judge                    ->  judges numbers of communities, choosing rows
  models (a, m - 1, p + 1)      <-  Judged: log losses (a), rounded     AGGREGATE
conclude: Conclude              ->  keeps a predictor, judges test rows
  communities, coefficients     <-  Judged: log losses, shares of wrong
  models (3, m - 1, p + 1)          predictions, rounded                AGGREGATE
==================================  ====================================================

Ranks are averaged over sites by rows of the class, ``R_k = 2 sin(pi/6 rho_k)``; features are joined
by linkage of ``|(n_k R_k,ij)_k|``. The base is a multinomial logistic regression with a ridge: C
times the sum of losses plus half the squared coefficients, intercepts free. Communities of all
candidate numbers are fitted at once, since they are nodes of one tree. *One-shot*: each site's loss
is replaced by its parabola at the minimum of its loss and the penalty, and the sum of parabolas and
penalty is minimised; this differs from the pooled fit by terms of the order of one over a site's
rows. *Exact*: Newton's method on the sums of the sites, equal to the pooled fit of the training
rows to 1e-8 (protected sites leave rare classes out, and put means in columns of few values).
Combined, ``sum_l log p(k | x_l) + (1 - L) log pi_k`` is one linear model: sites judge that.

Phases: opening, agree_levels, standardise (before all methods).

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes* (arXiv
1407.4543), section on community Bayes; parabolas after Lin and Xi, *Aggregated estimating equation
estimation* (Statistics and Its Interface 4, 2011). Departures:

* Ranks are those within a site. Shifts between sites, which pooled ranks would take for
  correlation, do not show; where sites are alike and have twice as many rows as columns, hardly
  anything is lost (docs/proofs/community-fits.md).
* The number of communities is chosen on rows that sites hold out, by log loss, not by folds: one
  round, and no fit of nearly the same rows.
* A site that lacks classes speaks of the odds between those it has. Where sites differ in what they
  could tell of a community, its evidence is relative to the class frequencies behind its fit.

Absence: a site that misses the offer is left out, down to the quorum. One that misses the ranks or
the fits is not in them; one that misses a round of sums is in no later one, and the fit goes on to
the minimum of the others. One that misses the end keeps no outputs and is not in the figures.

Leakage, one-shot (the only way at sites whose policy is strict): the coordinator knows numbers of
training rows by class, of choosing and of test rows, Spearman matrices of classes with rows >= 2
columns, and of each community the coefficients of a fit of all training rows and the curvature
there, if rows >= 2 parameters, the effective rows behind the curvature are as many as parameters,
and no row makes half of a cell; of all fits together at most half as many numbers as the training
rows have cells, asked once in a run. It chooses columns and the penalty, never coefficients. A fit
of rows that are nearly separate rests on the few at the boundary: its effective rows are few, and
it stays. Choosing rows answer for at most 20 models of the coordinator's, once in a run, by log
losses with standard errors, bounded, of models no larger than 10 in the mean square, each rounded
to what any row could do to it, at a place only the site knows, and only if the rows are at least
twice the coefficients; test rows answer for three, so and by shares of wrong predictions to within
`min_records` rows (so do choosing rows at sites that protect no record). So a run tells the
coordinator 23 smooth means to the precision of a row, and of three planes of its choice beyond
which about how many tens of test rows lie. Runs add up: their number is bounded by the policy
(`max_runs`, approved studies); rows are held out by one deal of the table for all runs. All sites
know the model. With pooled scaling the coordinator also knows means and spreads of the columns.

Leakage, masked sums (`masked.py`): the coordinator knows how many sites could tell each class,
correlation, fit and set of figures, and of what all of them tell the totals: training rows by
class, choosing and test rows, correlations weighed by rows, to a whole number at each site,
curvatures and slopes of communities, sums of figures and of their squares. The exact fit asks for
the same consent.

Leakage, exact: in every round the coordinator chooses coefficients. At steep ones loss, gradient
and curvature are sums over the rows near a plane, and differences of two rounds are single rows. No
rule of size stops that, so sites answer only where their policy lets values of single records leave
(`per_record`: presets consortium and simulation).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.classes import CommunitiesResult, SitesMethod, SitesResult
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.discriminant.federated_community_bayes import masked, messages, pooling
from consilience.discriminant.federated_community_bayes.pooling import Survey, Tree
from consilience.discriminant.federated_community_bayes.site import STEPS
from consilience.discriminant.kernels import multinomial
from consilience.discriminant.kernels.communities import Linkage
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.parameters import allows, just, one_of, several, whole
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Replies, register
from consilience.protocol.phases.holdout import say_share
from consilience.protocol.phases.secure_sums import ALL
from consilience.protocol.result import Frame, of_rows
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    import pandas as pd

Answers = Generator[Ask, Replies, Any]
AGGREGATE, MODEL = Disclosure.AGGREGATE, Disclosure.MODEL

_GRID = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedCommunityBayesResult(SitesResult, CommunitiesResult):
    """Communities of features, their classifiers, and what they are worth.

    Levels are those with training rows. The rules that test rows judge are "communities", "one
    community" (the base without communities, where it has a fit) and "class frequencies"; protected
    sites round numbers of wrong rows to about `min_records` rows.

    Attributes
    ----------
    n_fitted, n_choosing, n_held : (B,) int arrays
        Training, choosing and test rows of each site.
    how : {"one-shot", "exact"}
    rounds_run : int
        Rounds of sums, of the exact fit.
    linkage : str
    similarity : (p, p) array
    ranks_told : (B', K) bool array
        Sites (those that answered) by declared level: whether they told rank correlations.
    candidate_loss, candidate_gain, candidate_gain_se : (a,) arrays
        Mean log loss on choosing rows, and by how much it is below that of the first candidate.
    cv_rows : int
        Choosing rows of sites that tell numbers of wrong ones.
    slopes : tuple of L (1 or m, q) arrays
        One row for two classes: log odds of the second. In the units of the prepared columns.
    intercepts : tuple of L (1 or m,) arrays
    community_rows : (L,) array
        Training rows behind each community's fit.
    error_rows : int
        Test rows of the sites that tell `errors`.
    site_log_loss : (B, j) array
    """

    n_fitted: IntArray
    n_choosing: IntArray
    n_held: IntArray
    how: str
    rounds_run: int
    linkage: str
    similarity: FloatArray
    ranks_told: NDArray[np.bool_]
    candidate_loss: FloatArray
    candidate_gain: FloatArray
    candidate_gain_se: FloatArray
    cv_rows: int
    slopes: tuple[FloatArray, ...] = field(metadata={"stored": "coefficients"})
    intercepts: tuple[FloatArray, ...]
    community_rows: FloatArray
    error_rows: int
    site_log_loss: FloatArray

    @property
    def n_communities(self) -> int:
        """Number of communities that is kept."""
        return len(self.communities)

    @property
    def error_rates(self) -> FloatArray:
        """Share of test rows that each rule predicts wrongly."""
        return np.asarray(self.errors / (self.error_rows or np.nan))

    def community_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the features of each community."""
        return self.communities_names

    def to_estimator(self) -> CommunityBayesPredictor:
        """Return the classifier, for rows in the columns' own units, which it prepares.

        Of five rows or more it refuses those that are prepared already or in other units.
        """
        return CommunityBayesPredictor(
            communities=self.communities,
            rows=list(zip(self.slopes, self.intercepts, strict=True)),
            priors=self.priors,
            classes=np.array(self.levels),
            feature_names=self.feature_names,
            scaling=self.scaling if self.scaling.size else None,
        )

    def summary(self) -> str:
        """Return a few plain sentences that answer the study's question."""
        n, held, sites = self.n_communities, int(self.n_held.sum()), len(self.sites)
        where = ALL if self.masked else f"{sites} {'sites' if sites != 1 else 'site'}"
        was = "was given" if self.fixed else f"was chosen on {int(self.n_choosing.sum())} rows"
        parts = "one community" if n == 1 else f"{n} communities"
        judged = "No test rows tell what it is worth."
        figures = np.array([self.log_loss, self.error_rates]).T
        if held and np.isfinite(figures[0]).any():
            said = (
                np.array([rule, f" {loss:.3f}", f" {wrong:.1%} wrong"])[[True, *known]]
                for rule, (loss, wrong), known in zip(
                    self.judged, figures, np.isfinite(figures), strict=True
                )
            )
            what = "Of" if np.isnan(figures[0, 0]) else "Mean log loss on"
            words = "; ".join(one[0] + ",".join(one[1:]) for one in said)
            judged = f"{what} {held} test rows: {words}."
        sentences = [
            f"{len(self.feature_names)} features fall into {parts} (the number {was}); "
            f"{int(self.n_fitted.sum())} training rows of {where} tell {len(self.levels)} classes "
            f"of {self.target_name} apart.",
            judged,
            "The fit is that of the pooled training rows."
            if self.how == "exact"
            else "The fit joins one fit of each site by their curvature, near that of pooled rows.",
        ]
        return " ".join((*sentences, *self.remarks))

    @Frame
    def coefficients(self) -> pd.DataFrame:
        """One line for each community, feature and class: the coefficient."""
        rows = (
            (number, self.feature_names[j], level, slopes[k, place])
            for number, (columns, slopes) in enumerate(
                zip(self.communities, self.slopes, strict=True), 1
            )
            for k, level in enumerate(self.levels[1:] if len(slopes) == 1 else self.levels)
            for place, j in enumerate(columns)
        )
        return of_rows(rows, "community", "feature", "class", "coefficient")


@register
@dataclass(frozen=True, kw_only=True)
class FederatedCommunityBayes(SitesMethod[FederatedCommunityBayesResult]):
    """Classify by communities of features, over rows that are split over sites.

    Parameters
    ----------
    n_communities : int or "auto"
        Number of communities; "auto" has `candidates` judged on rows that the sites hold out.
    candidates : sequence of int
        Numbers to compare, at most 20; 1 to 20 in growing steps unless given.
    C : float
        Inverse strength of the ridge: C times the sum of losses of all training rows, plus half the
        squared coefficients.
    fit : {"auto", "one-shot", "exact"}
        How the base is fitted over the sites: from one fit of each site, or by rounds of sums,
        exactly as on the pooled rows, where every site's policy lets values of single records
        leave. "auto" is exact where one person holds all data (simulation), else one-shot.
    linkage : {"average", "complete", "single"}
        How features are joined, by their rank correlations within the classes.
    choosing : float
        Share of each class's rows that choose the number of communities: 0, .1, .2, .3 or .4.
    holdout : float
        Share of each class's rows that judge the classifier in the end, likewise. Protected sites
        hold out one or two fifths, or nothing, for each.
    max_rounds : int
        Rounds of the exact fit at most.

    Notes
    -----
    The penalty means the same for all features only on one scale: set [preparation] standardize to
    "pooled". Sites need a class with twice as many training rows as columns to tell its ranks.

    With masked sums all sites are one: each has every class, and what one of them keeps back is in
    no total. Figures of choosing and test rows need rows of twice the coefficients at every site.
    """

    n_communities: int | str = allows(whole(1) | just("auto"), default="auto")
    candidates: tuple[int, ...] = allows(
        several(whole(1), most=messages.MAX_CANDIDATES), default=()
    )
    C: float = allows(messages.C, default=1.0)
    fit: str = allows(one_of("auto", "one-shot", "exact"), default="auto")
    linkage: str = allows(one_of(*get_args(Linkage)), default="average")
    choosing: float = allows(messages.SHARE, default=0.2)
    holdout: float = allows(messages.SHARE, default=0.2)
    max_rounds: int = allows(whole(1, messages.MAX_ROUNDS), default=50)

    name: ClassVar[str] = "federated-community-bayes"
    version: ClassVar[int] = 6
    title: ClassVar[str] = "Which groups of features tell the classes apart, each by itself?"
    steps = (*STEPS, *masked.STEPS)
    tolerates: ClassVar = {**SitesMethod.tolerates, "keep": "any"}
    absence: ClassVar[str] = (
        "A site that misses the offer is left out, down to the quorum. One that misses the ranks "
        "or the fits is not in them; one that misses a round of sums is in no later one. One that "
        "misses the end keeps no outputs and is not in the figures. With masked sums a site that "
        "is lost between the scaling of the columns and the last total stops the run until it is "
        "back."
    )
    settles: ClassVar[frozenset[str]] = frozenset(("choosing",))
    leakage: ClassVar[str] = (
        "The coordinator knows each site's training rows by class and numbers of choosing and "
        "test rows, its rank correlations within large classes, the coefficients and curvature of "
        "its own fit of each community (rows at least twice the parameters, at most half as many "
        "numbers as cells), and, of a few models, log losses with standard errors and shares of "
        "wrong predictions, rounded. The exact fit tells loss, gradient and curvature at "
        "coefficients of the coordinator's choice, which can single rows out: only where policies "
        "let values of single records leave. With pooled scaling it also knows means and spreads "
        "of the columns. All sites know the model. With masked sums the coordinator knows "
        "totals: training rows by class, rank correlations weighed by rows, curvatures and slopes "
        "of each community, log losses, their squares and wrong predictions of a few models, "
        "rounded; and how many sites could tell each of them."
    )
    Result = FederatedCommunityBayesResult
    predictor: ClassVar[Any] = CommunityBayesPredictor
    masks_sums: ClassVar[bool] = True

    def check_together(self) -> None:
        """Check that rows choose, where the number of communities is chosen."""
        if self.n_communities == "auto" and not self.choosing > 0:
            raise ParameterError.of(
                "choosing", "above 0 where the number of communities is chosen", self.choosing
            )

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that classes and features go together, and units, where sums are masked."""
        super().admit(ctx)
        if ctx.secure and ctx.preparation.standardize != "pooled":
            raise StudyError(
                "masked sums of curvatures have a fixed resolution: set [preparation] standardize "
                'to "pooled"'
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, ranks, fits, judging, conclusion."""
        p = len(ctx.feature_names)
        chooses = isinstance(self.n_communities, str)
        wanted = self._wanted(p)
        s = messages.Settings(
            levels=tuple(ctx.columns.levels[str(ctx.columns.target)]),
            c=float(self.C),
            choosing=float(self.choosing) if chooses else 0.0,
            holdout=float(self.holdout),
        )
        say_share(ctx, s.choosing, s.holdout)
        masks, several = ctx.masks is not None, len(wanted) > 1
        ranks = masked.ranks_of_all if masks else self._ranks
        survey, tables = yield from ranks(ctx, s, several)
        told = sorted(tables)
        counts = np.stack([survey.counts[site] for site in told])
        pooled = pooling.pool_ranks([tables[site] for site in told], counts, p)
        # The base without communities is fitted too: it says what communities gain.
        tree = pooling.tree_of(survey, pooled, told, tuple(sorted({1, *wanted})), self.linkage)
        exact = self.fit == "exact" or (
            self.fit == "auto" and set(ctx.presets.values()) <= {"simulation"}
        )
        way = self._exact if exact else masked.one_shot if masks else self._one_shot
        fitted, rounds = yield from way(ctx, survey, tree)
        cuts = tree.among(fitted, wanted, survey.total)
        made = {n: pooling.Candidate.of(c, fitted, survey.priors, p) for n, c in cuts.items()}
        numbers = [n for n in wanted if n in made]
        if not numbers:
            raise QuorumError(
                "some community has no fit that may leave a site: ask for more communities, lower "
                "C, or let larger sites take part"
            )
        judged: Mapping[str, messages.Judged] = {}
        classes = relayed(survey.classes, AGGREGATE)
        if len(numbers) > 1:  # which is best on rows that no fit has seen
            models = relayed(np.stack([made[n].model for n in numbers]), MODEL)
            message = messages.Judge(settings=s, classes=classes, models=models)
            judged = yield from (masked.judged if masks else self._judged)(ctx, message, survey)
        choice = pooling.Choice.of(judged, survey, len(numbers))
        kept = made[numbers[choice.index]]
        nothing = np.zeros_like(kept.model)
        nothing[:, 0] = pooling.contrast_of(np.log(survey.priors))
        rules = {
            "communities": kept.model,
            **({"one community": made[1].model} if 1 in made else {}),
            "class frequencies": nothing,
        }
        last = messages.Conclude(
            settings=s,
            classes=classes,
            priors=relayed(survey.priors, AGGREGATE),
            communities=relayed(kept.communities, AGGREGATE),
            coefficients=relayed(kept.phis, MODEL),
            models=relayed(np.stack(list(rules.values())), MODEL),
        )
        concluded = yield from (masked.concluded if masks else self._concluded)(ctx, last, survey)
        rows = [multinomial.as_rows(phi) for phi in kept.phis]
        counts = np.stack([survey.counts[site] for site in survey.sites])
        return FederatedCommunityBayesResult(
            levels=tuple(s.levels[k] for k in survey.classes),
            feature_names=ctx.feature_names,
            target_name=str(ctx.columns.target),
            sites=survey.sites,
            n_by_site=counts[:, survey.classes],
            n_by_class=survey.by_class[survey.classes],
            n_fitted=counts.sum(axis=1),
            n_choosing=np.array([survey.choosing[site] for site in survey.sites]),
            priors=survey.priors,
            how="exact" if exact else "one-shot",
            rounds_run=rounds,
            C=float(self.C),
            linkage=self.linkage,
            tree=tree.merges,
            similarity=tree.similarity,
            ranks_told=pooled.told,
            candidates=np.array(numbers, dtype=np.int64),
            candidate_loss=choice.loss,
            candidate_gain=choice.gain,
            candidate_gain_se=choice.gain_se,
            chosen=choice.index,
            fixed=not chooses,
            communities=kept.communities,
            slopes=tuple(coefficients for coefficients, _ in rows),
            intercepts=tuple(intercepts for _, intercepts in rows),
            community_rows=kept.rows,
            judged=tuple(rules),
            cv_errors=choice.errors,
            cv_rows=choice.rows,
            **pooling.figures_of_test_rows(survey, concluded, len(rules)),
            scaling=np.zeros((0, 0)) if ctx.scaling is None else np.asarray(ctx.scaling),
            remarks=(
                *ctx.notes,
                *pooling.remarks_of(survey, pooled, tree, numbers, made, choice),
            ),
        )

    def _judged(self, ctx: CoordinatorContext, asked: messages.Judge, survey: Survey) -> Answers:
        """What sites with choosing rows say of the candidates."""
        sites = tuple(site for site in survey.sites if survey.choosing[site])
        return ctx.require((yield Ask("judge", asked, to=sites)), at_least=0)

    def _concluded(
        self, ctx: CoordinatorContext, end: messages.Conclude, survey: Survey
    ) -> Answers:
        """What sites that keep the classifier say of it."""
        return ctx.require((yield Ask("conclude", end, to=survey.sites)), at_least=0)

    def _ranks(self, ctx: CoordinatorContext, s: messages.Settings, several: bool) -> Answers:
        """Rows of the sites, and the rank correlations of those that told them."""
        offered = ctx.require((yield Ask("offer", messages.Offer(settings=s))))
        survey = pooling.survey_of(s, offered, chooses=several)
        small = [site for site in offered if site not in survey.sites]
        if len(survey.sites) < ctx.quorum:
            raise QuorumError(
                f"{len(survey.sites)} sites have enough training rows of some class and the study "
                f"needs {ctx.quorum}: {', '.join(small)} have not"
            )
        replies = ctx.require((yield Ask("ranks", messages.Rank(settings=s), to=survey.sites)))
        return survey, {site: reply.tables.value for site, reply in replies.items()}

    def _wanted(self, p: int) -> tuple[int, ...]:
        """Numbers of communities to compare, ascending."""
        wanted: tuple[int, ...] = (int(self.n_communities),) if self.n_communities != "auto" else ()
        wanted = wanted or tuple(sorted(self.candidates)) or tuple(n for n in _GRID if n <= p)
        if max(wanted) > p:
            allowed = f"at most {p}, the number of columns"
            raise ParameterError.of("n_communities", allowed, max(wanted))
        return wanted

    # ------------------------------------------------------------------ fits

    def _one_shot(self, ctx: CoordinatorContext, survey: Survey, tree: Tree) -> Answers:
        """One fit of each site, joined by their curvature."""
        communities, s = relayed(tree.communities, AGGREGATE), survey.settings
        message = messages.Fit(settings=s, communities=communities)
        ask = Ask("fit", message, to=survey.sites, known=survey.told)
        replies = dict(sorted(ctx.require((yield ask)).items()))
        counts = np.stack([survey.counts[site][survey.classes] for site in replies])
        fitted = []
        for c, columns in enumerate(tree.communities):
            fits = [np.asarray(reply.fits.value[c]) for reply in replies.values()]
            fitted.append(pooling.combine(fits, counts, len(columns), s.ridge))
        if all(made.phi is None for made in fitted):
            raise QuorumError(
                "no site could tell a fit of any community (rows at least twice the parameters, "
                "classes that are not nearly separate): ask for more communities, lower C, or let "
                "larger sites take part"
            )
        return fitted, 0

    def _exact(self, ctx: CoordinatorContext, survey: Survey, tree: Tree) -> Answers:
        """Newton's method on the sums of all sites."""
        sites, s, rounds = survey.sites, survey.settings, 0
        descent = pooling.Descent([len(c) for c in tree.communities], len(survey.classes), s.ridge)
        while descent.active and rounds < self.max_rounds:
            rounds += 1
            active = descent.active
            message = messages.Slope(
                settings=s,
                round=rounds,
                classes=relayed(survey.classes, AGGREGATE),
                communities=relayed(tuple(tree.communities[c] for c in active), AGGREGATE),
                coefficients=relayed(tuple(descent.asked[c] for c in active), MODEL),
            )
            if ctx.masks is not None:
                told = yield from masked.slopes(ctx, message, survey)
            else:
                ask = Ask("slopes", message, to=sites, known=survey.told)
                told = {site: r.sums.value for site, r in ctx.require((yield ask)).items()}
            if len(told) < len(sites):
                sites = tuple(sorted(told))
                descent.restart()
            for i, c in enumerate(active):
                descent.hear(c, [np.asarray(told[site][i]) for site in sites], survey.total)
        if descent.active:
            ctx.note(f"The fit had not settled after {rounds} rounds: give a smaller C.")
        rows = np.sum([survey.counts[site][survey.classes] for site in sites], axis=0).astype(float)
        return [pooling.Combined(phi, rows) for phi in descent.phi], rounds

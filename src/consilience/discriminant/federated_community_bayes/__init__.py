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

Leakage, exact: in every round the coordinator chooses coefficients. At steep ones loss, gradient
and curvature are sums over the rows near a plane, and differences of two rounds are single rows. No
rule of size stops that, so sites answer only where their policy lets values of single records leave
(`per_record`: presets consortium and simulation).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.discriminant.federated_community_bayes.messages import (
    LARGEST_C,
    MAX_CANDIDATES,
    MAX_ROUNDS,
    SHARES,
    SMALLEST_C,
    Fit,
    Judge,
    Judged,
    Offer,
    Rank,
    Settings,
    Slope,
)
from consilience.discriminant.federated_community_bayes.pooling import (
    Combined,
    Descent,
    Survey,
    combine,
    pool_ranks,
    pooled_figures,
    survey_of,
    tree_of,
)
from consilience.discriminant.federated_community_bayes.result import (
    Chosen,
    FederatedCommunityBayesResult,
    build_result,
    conclude_message,
)
from consilience.discriminant.federated_community_bayes.site import STEPS
from consilience.discriminant.kernels.communities import Linkage
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.parameters import Allowed, allows, is_number, just, number, one_of, several, whole
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, Replies, register
from consilience.protocol.phases.holdout import say_share
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure

Answers = Generator[Ask, Replies, Any]
AGGREGATE, MODEL = Disclosure.AGGREGATE, Disclosure.MODEL

_GRID = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
_SHARE = Allowed(lambda v: is_number(v) and v in SHARES, "a share of 0, .1, .2, .3 or .4")


@register
@dataclass(frozen=True, kw_only=True)
class FederatedCommunityBayes(Method):
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
    """

    n_communities: int | str = allows(whole(1) | just("auto"), default="auto")
    candidates: tuple[int, ...] = allows(several(whole(1), most=MAX_CANDIDATES), default=())
    C: float = allows(number(SMALLEST_C, LARGEST_C), default=1.0)
    fit: str = allows(one_of("auto", "one-shot", "exact"), default="auto")
    linkage: str = allows(one_of(*get_args(Linkage)), default="average")
    choosing: float = allows(_SHARE, default=0.2)
    holdout: float = allows(_SHARE, default=0.2)
    max_rounds: int = allows(whole(1, MAX_ROUNDS), default=50)

    name: ClassVar[str] = "federated-community-bayes"
    version: ClassVar[int] = 3
    title: ClassVar[str] = "Which groups of features tell the classes apart, each by itself?"
    steps = STEPS
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {
        "judge": "any",
        "conclude": "any",
    }
    absence: ClassVar[str] = (
        "A site that misses the offer is left out, down to the quorum. One that misses the ranks "
        "or the fits is not in them; one that misses a round of sums is in no later one. One that "
        "misses the end keeps no outputs and is not in the figures."
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
        "of the columns. All sites know the model."
    )
    Result = FederatedCommunityBayesResult
    predictor: ClassVar[Any] = CommunityBayesPredictor
    roles: ClassVar[tuple[str, ...]] = ("target", "entity")
    foreign_models: ClassVar[bool] = True  # they are judged by held-out rows

    def __post_init__(self) -> None:
        grid = self.candidates
        listed = tuple(grid) if isinstance(grid, list | tuple | np.ndarray) else (grid,)
        plain = tuple(v.item() if isinstance(v, np.generic) else v for v in listed)
        object.__setattr__(self, "candidates", plain)

    def check_together(self) -> None:
        """Check that rows choose, where the number of communities is chosen."""
        if self.n_communities == "auto" and not self.choosing > 0:
            raise ParameterError.of(
                "choosing", "above 0 where the number of communities is chosen", self.choosing
            )

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are features, and a response with levels."""
        target = ctx.columns.target
        if target is None or not ctx.columns.features:
            raise StudyError(
                "federated-community-bayes needs features and a response: name them in [data]"
            )
        if len(ctx.columns.levels.get(target, ())) < 2:
            raise StudyError(
                f"federated-community-bayes tells classes apart: declare the levels of {target!r}"
            )
        if ctx.columns.weight is not None:
            raise StudyError(
                "federated-community-bayes counts every row once: leave weight out of [data]"
            )
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "coefficients mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Offer, ranks, fits, judging, conclusion."""
        p = len(ctx.feature_names)
        wanted = self._wanted(p)
        s = self._settings(ctx)
        say_share(ctx, s.choosing, s.holdout)
        offered = ctx.require((yield Ask("offer", Offer(settings=s.to_json()))))
        survey = survey_of(s, offered, chooses=len(wanted) > 1)
        small = [site for site in offered if site not in survey.sites]
        if len(survey.sites) < ctx.quorum:
            raise QuorumError(
                f"{len(survey.sites)} sites have enough training rows of some class and the study "
                f"needs {ctx.quorum}: {', '.join(small)} have not"
            )
        tables = ctx.require((yield Ask("ranks", Rank(settings=s.to_json()), to=survey.sites)))
        pooled = pool_ranks(
            [tables[site].tables.value for site in sorted(tables)],
            np.stack([survey.counts[site] for site in sorted(tables)]),
            p,
        )
        # The base without communities is fitted too: it says what communities gain.
        numbers = tuple(sorted({1, *wanted}))
        tree = tree_of(survey, pooled, sorted(tables), numbers, self.linkage)
        exact = self.fit == "exact" or (
            self.fit == "auto" and set(ctx.presets.values()) <= {"simulation"}
        )
        fitted, rounds = yield from (self._exact if exact else self._one_shot)(ctx, survey, tree)
        chosen = Chosen.of(tree.among(fitted, wanted, survey.total), fitted, survey, p, wanted)
        if len(chosen.candidates) > 1:
            chosen = yield from self._best(ctx, survey, chosen)
        message = conclude_message(s, survey, chosen)
        concluded = ctx.require((yield Ask("conclude", message, to=survey.sites)), at_least=0)
        how = "exact" if exact else "one-shot"
        return build_result(self, ctx, survey, pooled, tree, chosen, concluded, how, rounds)

    def _settings(self, ctx: CoordinatorContext) -> Settings:
        chooses = self.n_communities == "auto"
        return Settings(
            levels=tuple(ctx.columns.levels[str(ctx.columns.target)]),
            c=float(self.C),
            choosing=float(self.choosing) if chooses else 0.0,
            holdout=float(self.holdout),
        )

    def _wanted(self, p: int) -> tuple[int, ...]:
        """Numbers of communities to compare, ascending.

        Raises
        ------
        ParameterError
            More communities than columns.
        """
        if not isinstance(self.n_communities, str):
            listed: tuple[int, ...] = (int(self.n_communities),)
        else:
            listed = tuple(sorted(self.candidates)) or tuple(n for n in _GRID if n <= p)
        if max(listed) > p:
            allowed = f"at most {p}, the number of columns"
            raise ParameterError.of("n_communities", allowed, max(listed))
        return listed

    # ------------------------------------------------------------------ fits

    def _one_shot(self, ctx: CoordinatorContext, survey: Survey, tree: Any) -> Answers:
        """One fit of each site, joined by their curvature."""
        communities = tree.communities
        message = Fit(
            settings=survey.settings.to_json(), communities=relayed(communities, AGGREGATE)
        )
        ask = Ask("fit", message, to=survey.sites, known=survey.told)
        replies = ctx.require((yield ask))
        sites = sorted(replies)
        counts = np.stack([survey.counts[site][survey.classes] for site in sites])
        fitted = []
        for c, columns in enumerate(communities):
            fits = [np.asarray(replies[site].fits.value[c]) for site in sites]
            made = combine(fits, counts, len(columns), survey.settings.ridge)
            fitted.append(made)
        if all(made.phi is None for made in fitted):
            raise QuorumError(
                "no site could tell a fit of any community (rows at least twice the parameters, "
                "classes that are not nearly separate): ask for more communities, lower C, or let "
                "larger sites take part"
            )
        return fitted, 0

    def _exact(self, ctx: CoordinatorContext, survey: Survey, tree: Any) -> Answers:
        """Newton's method on the sums of all sites."""
        communities, sites = tree.communities, survey.sites
        m, n = len(survey.classes), survey.total
        descent = Descent([len(c) for c in communities], m, survey.settings.ridge)
        rounds = 0
        while descent.active and rounds < self.max_rounds:
            rounds += 1
            active = descent.active
            message = Slope(
                settings=survey.settings.to_json(),
                round=rounds,
                classes=relayed(survey.classes, AGGREGATE),
                communities=relayed(tuple(communities[c] for c in active), AGGREGATE),
                coefficients=relayed(tuple(descent.asked[c] for c in active), MODEL),
            )
            ask = Ask("slopes", message, to=sites, known=survey.told)
            replies = ctx.require((yield ask))
            if len(replies) < len(sites):
                sites = tuple(sorted(replies))
                descent.restart()
            for i, c in enumerate(active):
                descent.hear(c, [np.asarray(replies[site].sums.value[i]) for site in sites], n)
        if descent.active:
            ctx.note(f"The fit had not settled after {rounds} rounds: give a smaller C.")
        rows = np.sum([survey.counts[site][survey.classes] for site in sites], axis=0).astype(float)
        places = tuple(i for i, site in enumerate(survey.sites) if site in sites)
        return [Combined(phi, rows, places) for phi in descent.phi], rounds

    # ------------------------------------------------------------------ the number of communities

    def _best(self, ctx: CoordinatorContext, survey: Survey, chosen: Chosen) -> Answers:
        """Which number of communities is best on rows that no fit has seen."""
        message = Judge(
            settings=survey.settings.to_json(),
            classes=relayed(survey.classes, AGGREGATE),
            models=relayed(chosen.models, MODEL),
        )
        sites = tuple(site for site in survey.sites if survey.choosing[site])
        replies: dict[str, Judged] = ctx.require(
            (yield Ask("judge", message, to=sites)), at_least=0
        )
        told = {site: (r.losses.value, r.errors.value) for site, r in replies.items()}
        figures, errors = pooled_figures(told, survey.choosing, len(chosen.candidates))
        return chosen.best(figures, errors, {site: r.wrong.value for site, r in replies.items()})

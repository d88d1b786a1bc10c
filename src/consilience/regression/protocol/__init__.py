"""One regression over the rows of all sites, exactly, with standard errors and tests.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
moments: Request                ->
  settings                      <-  Moments: rows, means (f), products (t) of columns,
                                    response, offset and weight             AGGREGATE
sums: Coefficients, rounds 1..R ->  (exact; not for gaussian with errors of the model
  coefficients                      and no weight)
                                <-  Sums: figures (4), score (q), curvature (q, q),
                                    squares, expected (q, q) if needed      AGGREGATE
own-fit: OwnFitRequest          ->  (one-shot, in place of rounds)
                                <-  OwnFit: coefficients and curvature          MODEL
judge: Judge                    ->  (binomial and Cox, if asked for)
  coefficients, cuts (c)        <-  Judged: counts (d), expected (e)        AGGREGATE
                                    calibration, or pairs of rows in order
                                    of a Cox regression (f), drift (g)      MODEL
conclude: Conclude              ->  keeps the model and the fitted values of its rows
                                <-  Concluded                                  PUBLIC
==================================  ====================================================

With masked sums two steps take the place of the first one (below), and the coordinator knows
totals over sites alone.

A Cox regression has a baseline hazard for each site (stratified by site), so risk sets are within
sites and its sums are those of sites, too (`regression/cox.py`); the times are no column of it. At
a site that protects records follow-up ends where few are at risk (`regression/cox.py`).

Gaussian regressions follow from the moments: one round. For the other families Newton's method runs
over the sums of all sites as it would over the pooled rows, from where the moments say that the fit
would be if the columns were normal, and ends where the pooled fit does; with weights, or an offset
beside a curved loss, it finds the model of constants first. The one-shot way adds up the sites' own
log likelihoods as parabolas about their own fits (Jordan, Lee and Yang, JASA 114 (2019), section
2.1, with all sites' curvatures): it differs from the exact fit by the order of one over the rows of
a site.

Sources: McCullagh and Nelder, *Generalized Linear Models* (1989), and of Cox regressions Cox, *JRSS
B* 34 (1972), and Efron, *JASA* 72 (1977); for errors, tests and heterogeneity see
`regression/kernels.py`. Phases: opening, agree_levels, standardise (before all
methods).

Rule: the moments are judged by the rule for moments of columns (docs/proofs/told-moments.md), the
response being one column among them, and beside what other runs told. Sums at coefficients let out
more (docs/proofs/community-fits.md): a policy grants them by `per_record`. A column that a site
withholds stops the run with a sentence, unless the study says which gives way.

Absence: a site that misses the moments is not in the fit, down to the quorum; one that misses a
round of sums stops the run. One that misses the end keeps no model.
Leakage: see `PooledRegression.leakage`.

With masked sums all sites are one, of which totals are known.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
totals: Request                 ->
  settings                      <-  Totals: rows, sums (f) of columns, response,
                                    offset and weight                       AGGREGATE
products: Centre                ->
  columns in use, pooled means  <-  Products (t) about the pooled means     AGGREGATE
sums: Coefficients, rounds 1..R ->
                                <-  Sums, as of sums in plain               AGGREGATE
==================================  ====================================================

Each reply is judged at the site as in a run in plain, and leaves masked (phase `secure_sums`). A
coefficient is solved from totals alone, so the fit is that of a run in plain; what compares sites
is not known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ProtocolError, QuorumError, StudyError, listed
from consilience.numerics.block_moments import square_of
from consilience.parameters import FLAG, allows, number, one_of, plain
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    Replies,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.phases.moments import point
from consilience.protocol.phases.secure_sums import (
    ALL,
    MASKED,
    WRONG,
    note_cut,
    refused_for,
    total,
)
from consilience.regression import kernels
from consilience.regression.cox import TIES
from consilience.regression.estimators import RegressionPredictor
from consilience.regression.kernels import Pool
from consilience.regression.protocol import coordinator, messages, site
from consilience.regression.protocol.coordinator import Survey
from consilience.regression.protocol.result import PooledRegressionResult
from consilience.regression.protocol.site import moments
from consilience.wire.disclosure import Limits, relayed, replaced
from consilience.wire.message import Disclosure, is_gram


def refusal(method: PooledRegression) -> str:
    """Say what of a study needs more of a site than parts of sums; empty where nothing does."""
    needs = {
        "fits no Cox regression from masked sums: choose another family": method.family
        == kernels.COX,
        "adds up fits of single sites, which are no sums over rows: set fit to 'exact'": (
            method.settings.one_shot
        ),
        "takes each site's rows for its constant: set site_effects to false": method.site_effects,
        "judges risks site by site: set performance to false": method.performance,
        "takes each site for a cluster: set errors to 'model', 'HC0' or 'HC1'": (
            method.errors == "cluster"
        ),
        "leaves out single sites by what they tell: set when_withheld to 'stop' or "
        "'without-column'": method.when_withheld == "without-site",
    }
    return refused_for(needs)


# --------------------------------------------------------------------------- at a site


@step("totals", once=True, summed=True)
def totals(
    message: messages.Request, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Totals, State]:
    """Tell rows and sums of the columns of which `moments` tells."""
    own, state = moments(message, data, state, site)
    sums = replaced(own.means, own.n.value * own.means.value)
    return messages.Totals(n=own.n, totals=sums), state


@step("products", once=True, summed=True)
def products(
    message: messages.Centre, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Products, State]:
    """Tell products of columns in use about the pooled means."""
    columns: IntArray = np.asarray(message.columns.value, dtype=np.int64)
    told = list(state.get("told", ()))
    if not (np.diff(columns) > 0).all() or not set(columns.tolist()) <= set(told):
        sentence = "the columns in use are not among those that the site has told sums of"
        raise ProtocolError.shared(sentence)
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the question goes on with other settings than the totals")
    own, state = moments(messages.Request(settings=message.settings), data, state, site)
    means = own.means.value[~np.isnan(own.means.value)]
    kept = [*map(told.index, columns.tolist()), *range(len(told), len(means))]
    if len(message.mean.value) != len(kept):
        raise ProtocolError("pooled means of other columns than those in use")
    # About the site's own means, and moved: rounding far away would depend on single rows.
    away = means[kept] - message.mean.value
    square = square_of(own.products.value, len(means))[np.ix_(kept, kept)]
    moved = square + own.n.value * np.outer(away, away)
    told_of = replaced(own.products, moved[np.triu_indices(len(kept))])
    about = np.append(columns, message.mean.value[: len(columns)])
    return messages.Products(products=told_of), {**state, "about": about}


STEPS = (totals, products)


# --------------------------------------------------------------------------- at the coordinator


def surveyed(
    ctx: CoordinatorContext, method: PooledRegression, settings: messages.Settings
) -> Generator[Ask, Replies, Survey]:
    """Columns that take part, and what totals say of them.

    Raises
    ------
    QuorumError
        Some sites withhold a column and the study says to stop; or too little is left.
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    request = messages.Request(settings=settings)
    first = yield from total(ctx, Ask("totals", request), messages.Totals)
    told = first.told["totals"] == len(first.sites)
    n, p = float(first.values["n"]), len(ctx.feature_names)
    gone = tuple(ctx.feature_names[j] for j in np.flatnonzero(~told[:p]))
    if gone and method.when_withheld == "stop":
        raise QuorumError(
            f"some sites may not tell {listed(gone)}: a count behind it, or behind its products "
            "with others or with the weight, is too small, one row dominates, or the columns are "
            'too many for the rows. Leave it out, or set when_withheld to "without-column"'
        )
    beside = (ctx.columns.target, ctx.columns.offset, ctx.columns.weight)
    names = (*ctx.feature_names, *filter(None, beside))
    mean = np.where(told, first.values["totals"] / n, np.nan)
    centre = messages.Centre(
        settings=settings,
        columns=relayed(np.flatnonzero(told[:p]).astype(np.int64), _AGGREGATE),
        mean=point(mean[told], np.array(names)[told]),
    )
    asked = Ask("products", centre, to=first.sites)
    second = yield from total(ctx, asked, messages.Products, at_least=len(first.sites))
    squares = np.diag(square_of(second.values["products"], int(told.sum()))) / n
    note_cut(ctx, [name for name, one in zip(names, told, strict=True) if one], squares)
    moments = messages.Moments(
        n=relayed(int(n), _AGGREGATE),
        means=relayed(mean, _AGGREGATE),
        products=relayed(second.values["products"], _AGGREGATE),
    )
    if moments.check(request, {"p": p}):
        raise ProtocolError(WRONG)
    survey = coordinator.survey_of(ctx, method, settings, {ALL: moments})
    withheld = {"some sites": gone} if gone else {}
    return dataclasses.replace(survey, members=first.sites, withheld=withheld)


def summed(
    ctx: CoordinatorContext, survey: Survey, asked: Ask
) -> Generator[Ask, Replies, messages.Sums]:
    """Totals of sums at coefficients, as if one site told them.

    Raises
    ------
    ProtocolError
        The totals are those of no rows.
    """
    found = yield from total(ctx, asked, messages.Sums, at_least=len(survey.members))
    # A figure that some site keeps back is not told of the others: it would be of other rows.
    whole = {
        name: np.where(found.told[name] == len(found.sites), value, np.nan)
        for name, value in found.values.items()
    }
    reply = messages.Sums(**{name: relayed(v, _AGGREGATE) for name, v in whole.items()})
    if reply.check(asked.message, {}) or not is_gram(reply.curvature.value):
        raise ProtocolError(WRONG)
    return reply


_AGGREGATE, _MODEL = Disclosure.AGGREGATE, Disclosure.MODEL
_SETTLED = 1e-9
"""Newton step, in standard deviations of the columns, after which nothing is asked any more."""
_NEAR = 0.3
"""Newton step of the coefficients below which alpha moves, too."""
_TAKEN_BACK = ("poisson", "gamma")
"""Families whose mean grows without bound, so that a far start is many steps away."""
_SMALL_ALPHA = 0.1
"""Below it steps of alpha are measured in tenths, above it in alphas."""
_LONGEST = 2.0
"""Newton step of a Cox regression, in standard deviations of the columns, that is not cut."""
_RUNS_AWAY = 15
"""Rounds after which steps that do not get small mean that columns separate the rows."""


@register
@dataclass(frozen=True, kw_only=True)
class PooledRegression(Method[PooledRegressionResult]):
    """Fit one generalised linear model to the rows of all sites.

    The target of the study is the response. With ``family = "binomial"`` it is 0 or 1, or has two
    declared levels, of which the second counts as 1.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson", "gamma", "negative-binomial", "cox"}
        With identity, logit and log links; "cox": a Cox regression of the hazard of an event, each
        site with a baseline hazard of its own (stratified by site).
    site_effects : bool
        A constant for each site (fixed effects), in place of a common one.
    errors : {"model", "HC0", "HC1", "cluster"}
        Standard errors of the model, robust ones, or robust ones with sites as clusters.
    ridge : float
        Half of it times the squared slopes is added to minus the log likelihood at dispersion 1
        (gaussian: to half the sum of squares), in the units of the prepared columns.
    fit : {"exact", "one-shot"}
        Rounds of sums over all rows, or one round of the sites' own fits; gaussian is always exact.
    when_withheld : {"stop", "without-column", "without-site"}
        Where a site may not tell a column: stop, fit without that column everywhere, or without the
        rows of that site.
    weights : {"precision", "frequency"}
        What the weight column of the study means, if it names one: how precise a row is (its
        variance is one over its weight of the others'), or how many alike it stands for.
    alpha : float
        Of the negative binomial, whose variance is ``mean + alpha mean^2``; 0: it is estimated.
    performance : bool
        Of a binomial fit, ask each site for counts of events in bands of predicted risk and for a
        recalibration, in one more round; of a Cox fit for the concordance, that is the share of
        pairs of its rows in order of which it is known who had the event first, and for a test
        of proportional hazards.
    dispersion : {"likelihood", "moments"}
        How: by maximum likelihood, together with the coefficients, or so that Pearson's sum is its
        degrees of freedom. A site that protects records tells what the first needs only where each
        count has `min_records` rows.
    time : str
        Of a Cox regression: the column among the features that holds how long each row was watched,
        until the event or until last seen. The target is 1 where the event was seen.
    ties : {"efron", "breslow"}
        Of a Cox regression: how events at one time count. A site that protects records keeps to the
        first way that it was asked for.
    level : float
        Of the limits of coefficients.

    Notes
    -----
    In a study with masked sums coefficients, errors and tests are the same, and nothing is told of
    single sites: without ``site_effects``, ``performance``, one-shot and Cox fits, errors by
    cluster, and ``when_withheld = "without-site"``.

    An offset column of the study is part of the linear predictor with the coefficient 1, such as
    the logarithm of the time that a person was watched.

    Under ``strict`` every site can take part in a gaussian regression without weights, with errors
    of the model or by cluster. Other families, weights and HC errors need sums at coefficients
    (`per_record`, as under ``consortium``), other families without weights by
    ``fit = "one-shot"`` the grant `foreign_models`.
    """

    family: str = allows(one_of(*kernels.FAMILIES), default="gaussian")
    site_effects: bool = allows(FLAG, default=False)
    errors: str = allows(one_of(*kernels.ERRORS), default="model")
    ridge: float = allows(number(0), default=0.0)
    fit: str = allows(one_of(*messages.FITS), default="exact")
    when_withheld: str = allows(one_of("stop", "without-column", "without-site"), default="stop")
    weights: str = allows(one_of(*messages.WEIGHTS), default="precision")
    alpha: float = allows(number(0), default=0.0)
    dispersion: str = allows(one_of(*kernels.DISPERSIONS), default="likelihood")
    performance: bool = allows(FLAG, default=False)
    time: str = allows(messages.NAME, default="")
    ties: str = allows(one_of(*TIES), default="efron")
    level: float = allows(number(above=0, below=1), default=0.95)

    name: ClassVar[str] = "pooled-regression"
    version: ClassVar[int] = 17
    title: ClassVar[str] = "Which columns explain the response, over the rows of all sites?"
    steps = (*site.STEPS, *STEPS)
    absence: ClassVar[str] = (
        "A site that misses the moments is not in the fit, down to the quorum. One that misses a "
        "round of sums, or of own fits, or with masked sums that of products, stops the run. One "
        "that does not judge its risks is left out there. One that misses the end keeps no model."
    )
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {
        "products": "all",
        "sums": "all",
        "own-fit": "all",
        "judge": "any",
        "conclude": "any",
    }
    leakage: ClassVar[str] = (
        "The coordinator knows numbers of rows, means and cross-products of columns, response, "
        "offset and weight at each site. Families other than gaussian, weights and HC errors tell "
        "in up to 30 rounds also loss, score and curvature of each site's rows at coefficients "
        "that the coordinator chooses, for HC errors squared scores, for a gamma regression with "
        "weights and for negative binomial ones expected curvature, for these also an equation of "
        "alpha with its derivatives (sums over response or weight alone, for deviance and "
        "likelihood, only where each value of a number that repeats has enough rows): steep "
        "coefficients can single out rows, so a site tells such sums only where its policy lets "
        "values of single records leave. The one-shot fit tells coefficients and curvature "
        "of each site's own fit instead. Where the study asks for performance, sites tell by the "
        "same grants rows with and without an event in bands of predicted risk, expected numbers, "
        "and intercept and slope of a recalibration. A Cox regression tells nothing of times but "
        "what follows from the order of events and others at a site: the same sums over risk sets, "
        "until fewer people are at risk than the policy asks for and by one way with ties in all "
        "runs, the likelihood without columns only where many orders are possible; so it is with "
        "performance, for which sites tell sums over rows of pairs in order and of pairs that can "
        "be compared, and scores and curvatures in which late events count more. With masked sums "
        "the coordinator knows rows, column sums, products and sums at coefficients of all sites "
        "together, of none alone. All sites know the model."
    )
    Result = PooledRegressionResult
    predictor: ClassVar[Any] = RegressionPredictor
    follows: ClassVar[tuple[str, ...]] = ("meta-clustering",)
    tells: ClassVar = "moments"
    masks_sums: ClassVar[bool] = True
    roles: ClassVar[tuple[str, ...]] = ("target", "entity", "weight", "offset")

    def cannot_mask(self) -> str:
        """What compares sites, or takes them one by one."""
        return refusal(self)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are a response and columns, and that the settings go together."""
        columns = ctx.columns
        levels = columns.levels.get(columns.target or "", ())
        if columns.target is None or not columns.features:
            fault = "a pooled regression needs a response and columns: name target and features"
        elif self.settings.one_shot and (columns.weight or columns.offset):
            fault = "one-shot fits know neither weights nor an offset: set fit to 'exact'"
        elif self.settings.one_shot and self.settings.estimate:
            fault = "one-shot fits of the negative binomial need its alpha: give it"
        elif (self.alpha or self.dispersion != "likelihood") and self.family != kernels.NEGATIVE:
            fault = "alpha and dispersion are of the negative binomial: leave them out"
        elif self.performance and (self.family not in ("binomial", kernels.COX) or columns.weight):
            fault = "performance is of a binomial or Cox fit without weights: set it to false"
        elif fault := self._fault_of_times(ctx):
            pass
        elif levels and (self.family not in ("binomial", kernels.COX) or len(levels) != 2):
            fault = (
                "only a binomial regression has a response of levels, and of two: leave out the "
                f"levels of {columns.target}, or set family to 'binomial'"
            )
        elif self.settings.squares and self.settings.one_shot:
            fault = "HC errors need sums over rows: set fit to 'exact', or errors to 'cluster'"
        elif _parted(ctx):
            fault = (
                "the meta-clustering that this study follows put its sites into different groups: "
                "name sites of one group in [sites], in a study for each"
            )
        elif ctx.preparation.standardize == "site":
            fault = (
                "coefficients mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )
        else:
            return
        raise StudyError.shared(fault)

    def _fault_of_times(self, ctx: CoordinatorContext) -> str:
        """What does not go together in a Cox regression; empty where all does."""
        if self.family != kernels.COX:
            given = self.time or self.ties != "efron"
            return "time and ties are of family = 'cox': leave them out" if given else ""
        columns = ctx.columns
        numbers = [name for name in columns.features if name not in columns.levels]
        if self.time not in numbers:
            given = f", but {self.time!r} was given" if self.time else ""
            return (
                "a Cox regression needs time, a feature that is a number, one of "
                f"{', '.join(numbers) or 'none that are named'}{given}"
            )
        if len(columns.features) < 2:
            return "a Cox regression needs another feature than the time, to explain with"
        if self.site_effects:
            return "each site has a baseline hazard in a Cox regression: leave site_effects out"
        if self.errors == "HC1":
            return "robust errors of a Cox regression are 'HC0'"
        if ctx.preparation.missing not in ("refuse", "complete-rows"):
            return (
                "times that are missing cannot be filled in: set [preparation] missing to "
                '"complete-rows"'
            )
        return ""

    def check_rows(self, data: SiteData) -> None:
        """Look for responses and times that the family does not have."""
        site.check_rows(data, self.settings)

    def withheld(self, data: SiteData, limits: Limits) -> tuple[str, ...]:
        """Features whose sums, or sums of products with others, rest on too little."""
        if self.when_withheld != "stop" or limits.min_records <= 1:
            return ()
        offset, weighted = data.offset is not None, data.weight is not None
        settings = dataclasses.replace(self.settings, offset=offset, weighted=weighted)
        return site.withheld(data, settings, limits)

    @property
    def settings(self) -> messages.Settings:
        """What of the parameters every question states."""
        return messages.Settings(
            family=self.family,
            site_effects=self.site_effects,
            errors=self.errors,
            fit=self.fit,
            weights=self.weights,
            alpha=self.alpha,
            dispersion=self.dispersion,
            performance=self.performance,
            time=self.time,
            ties=self.ties,
        )

    def grant(self, roles: Collection[str]) -> str:
        """Fits of the sites, or sums at coefficients; moments alone need nothing."""
        asks = dataclasses.replace(
            self.settings, offset="offset" in roles, weighted="weight" in roles
        )
        return "foreign_models" if asks.one_shot else "per_record" if asks.by_rounds else ""

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Moments, fit, end."""
        names = ctx.columns
        settings = dataclasses.replace(
            self.settings, offset=names.offset is not None, weighted=names.weight is not None
        )
        if ctx.masks is None:
            told = ctx.require((yield Ask("moments", messages.Request(settings=settings))))
            survey = coordinator.survey_of(ctx, self, settings, told)
        else:
            survey = yield from surveyed(ctx, self, settings)
            told = dict.fromkeys(survey.members)
        try:
            if settings.one_shot:
                survey, pool = yield from self._own_fits(ctx, survey)
                null, rounds, alpha = survey.null, 2, self.alpha
                null = pool.without_slopes() if null.bare else null
            else:
                null, pool, rounds, alpha = yield from self._by_sums(ctx, survey)
            judged = yield from self._judged(ctx, survey, pool)
            rounds += bool(judged)
            rounds += survey.masked  # two for the moments
            fit = coordinator.Fitted(null, pool, rounds, alpha, judged)
            result, model = coordinator.build_result(ctx, self, survey, fit)
        except np.linalg.LinAlgError:
            raise QuorumError(
                "the sums of the sites do not add up to a regression: columns nearly depend on one "
                "another; leave one out, or add a ridge"
            ) from None
        message = messages.Conclude(
            settings=settings, sites=survey.members, model=relayed(model, _MODEL)
        )
        # A site that is not in the fit has no constant of its own.
        to = survey.sites if self.site_effects else tuple(sorted(told))
        ctx.require((yield Ask("conclude", message, to=to)), at_least=0)
        return result

    def _by_sums(
        self, ctx: CoordinatorContext, survey: Survey
    ) -> Generator[Ask, Replies, tuple[Pool, Pool, int, float]]:
        """The model of constants, the fit, the rounds that they took, and alpha."""
        null, turn, settings, alpha = survey.null, 0, survey.settings, survey.alpha
        if self.family == "gaussian":
            if settings.weighted:
                null, turn = (yield from self._asked(ctx, survey, null.theta, 1, alpha)), 1
            null = null.at(null.theta + null.step(slopes=False))
            pool = null.at(null.theta + null.step())
            if settings.squares:
                turn += 1
                pool = yield from self._asked(ctx, survey, pool.theta, turn, alpha)
            return null, pool, 1 + turn, 0.0
        if null.bare:
            null = yield from self._asked(ctx, survey, null.theta, 1, alpha)
            start = null.theta + _short(null.step())
            pool, turn, _ = yield from self._newton(ctx, survey, start, 1, alpha)
            return null, pool, 1 + turn, 0.0
        by_rounds = settings.weighted or settings.offset
        start = null.theta if by_rounds else survey.start()
        if by_rounds and not settings.estimate:
            null, turn, _ = yield from self._newton(
                ctx, survey, null.theta, 0, alpha, slopes=False, estimate=False
            )
            start = null.theta + null.step()
        # A start that long tails mislead has a loss above that of no slopes, and is taken back.
        before = None if by_rounds or self.family not in _TAKEN_BACK else survey.null
        pool, turn, alpha = yield from self._newton(
            ctx, survey, start, turn, alpha, estimate=bool(settings.estimate), last=before
        )
        if settings.estimate:  # tests of slopes hold alpha where the fit has it
            null = survey.null_at(alpha)
            if by_rounds:
                null, turn, _ = yield from self._newton(
                    ctx, survey, null.theta, turn, alpha, slopes=False, estimate=False
                )
        return null, pool, 1 + turn, alpha if self.family == kernels.NEGATIVE else 0.0

    def _newton(
        self,
        ctx: CoordinatorContext,
        survey: Survey,
        theta: FloatArray,
        first: int,
        alpha: float,
        *,
        slopes: bool = True,
        estimate: bool = False,
        last: Pool | None = None,
    ) -> Generator[Ask, Replies, tuple[Pool, int, float]]:
        """Newton's method on the sums of all sites; steps are halved where the loss rises.

        Alpha moves with the coefficients once these are near: losses at two of them are not
        compared.
        """
        for turn in range(first + 1, messages.MAX_ROUNDS + 1):
            pool = yield from self._asked(ctx, survey, theta, turn, alpha)
            if last is not None and not pool.objective <= last.objective + 1e-9 * abs(
                last.objective
            ):
                theta = (theta + last.theta) / 2
                continue
            step = pool.step(slopes=slopes)
            size = float(np.abs(step).max())
            if estimate and size < _NEAR:
                step, other = coordinator.step_of_alpha(survey, pool, step, alpha)
                # Near 0 the last digits of alpha are rounding, and change nothing.
                moved = abs(other - alpha) / max(alpha, _SMALL_ALPHA)
                size = max(float(np.abs(step).max()), moved)
                if size < _SETTLED:
                    return pool, turn, alpha
                last, alpha, theta = None, other, theta + step
                continue
            if size < _SETTLED:
                return pool.at(theta + step), turn, alpha
            if turn - first >= _RUNS_AWAY and size > 0.1:
                break
            last, theta = pool, theta + (_short(step) if pool.bare else step)
        else:
            if estimate and float(np.abs(step).max()) < _NEAR:
                raise QuorumError(
                    f"alpha had not settled after {messages.MAX_ROUNDS} rounds, near {alpha:.2g}: "
                    "give it, or set family to 'poisson' where it is nearly 0"
                )
            raise QuorumError(
                f"the fit had not settled after {messages.MAX_ROUNDS} rounds: put the columns on "
                "one scale, or add a ridge"
            )
        steep = np.abs(step[pool.n_constants :])
        at = survey.names[int(np.argmax(steep))] if steep.max() > 0.1 else "a constant"
        if pool.bare:
            raise QuorumError(
                f"the fit runs away along {at}: at each event those who have it are at one end of "
                "the column, so the likelihood rises without end; leave the column out, join "
                "levels, or add a ridge"
            )
        raise QuorumError(
            f"the fit runs away along {at}: its rows are separated (one value of the response "
            "alone beyond some value, or in a level); leave the column out, join levels, or add a "
            "ridge"
        )

    def _asked(
        self, ctx: CoordinatorContext, survey: Survey, theta: FloatArray, turn: int, alpha: float
    ) -> Generator[Ask, Replies, Pool]:
        """One round of sums at coefficients of the model."""
        pool = survey.null
        message = messages.Coefficients(
            settings=survey.settings,
            round=turn,
            sites=survey.members,
            **survey.coefficients(theta),
            alpha=relayed(np.array([alpha]), _MODEL),
            **survey.frame(),
        )
        ask = Ask("sums", message, to=survey.members)
        if survey.masked:
            replies = {ALL: (yield from summed(ctx, survey, ask))}
        else:
            replies = ctx.require((yield ask), at_least=len(survey.sites))
        pieces = tuple(
            survey.heard(b, theta[pool.places(b)], replies[name])
            for b, name in enumerate(survey.sites)
        )
        return dataclasses.replace(pool, pieces=pieces)

    def _judged(
        self, ctx: CoordinatorContext, survey: Survey, pool: Pool
    ) -> Generator[Ask, Replies, dict[str, messages.Judged]]:
        """What sites say of the risks that the fit predicts, by site; nothing unless asked for."""
        if not self.performance:
            return {}
        message = messages.Judge(
            settings=survey.settings,
            sites=survey.sites,
            cuts=relayed(survey.cuts(pool), _MODEL),
            **survey.coefficients(pool.theta),
            **survey.frame(),
        )
        return ctx.require((yield Ask("judge", message, to=survey.sites)), at_least=0)

    def _own_fits(
        self, ctx: CoordinatorContext, survey: Survey
    ) -> Generator[Ask, Replies, tuple[Survey, Pool]]:
        """One round of own fits, added up as parabolas."""
        message = messages.OwnFitRequest(settings=survey.settings, **survey.frame())
        ask = Ask("own-fit", message, to=survey.sites)
        replies = ctx.require((yield ask), at_least=len(survey.sites))
        without = [name for name in survey.sites if not len(replies[name].fit.value)]
        if without:
            ctx.note(
                f"No fit of their own may leave, so not in the result: {', '.join(without)} (too "
                "few rows for the columns, separated rows, or a constant column)."
            )
            left = len(survey.sites) - len(without)
            if left < ctx.quorum:
                raise QuorumError(
                    f"{left} sites tell a fit of their own and the study needs {ctx.quorum} "
                    f"(without one: {', '.join(without)}): take fewer columns, or lower the quorum"
                )
            survey = coordinator.without_sites(self, survey, without)
        q = len(survey.names) + survey.settings.constants
        pieces = tuple(
            survey.with_expected(
                b, messages.unpacked(replies[name].fit.value, survey.counted(b), q)
            )
            for b, name in enumerate(survey.sites)
        )
        pool = dataclasses.replace(survey.null, pieces=pieces)
        start = dataclasses.replace(pool, pieces=tuple(p.at(np.zeros(q)) for p in pieces))
        return survey, pool.at(start.step()) if math.isfinite(start.objective) else start


def _short(step: FloatArray) -> FloatArray:
    """A step that no risk overflows by, where a likelihood rises without end."""
    return step * min(1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST))


def _parted(ctx: CoordinatorContext) -> bool:
    """Whether the run that this one follows put its sites into different groups, or none."""
    groups = getattr(ctx.follows, "groups", None)
    return groups is not None and not any(set(ctx.sites) <= set(group) for group in groups)

"""Community Bayes with masked sums: all sites are one, of which totals are known.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
possible: Offer                 ->  splits its rows: training, choosing, test
                                <-  Possible: each class, each rank correlation in it,
                                    choosing and test rows                     AGGREGATE
rank_totals: SharedRanks        ->
  what all sites can tell       <-  RankTotals: training rows (m), held-out rows,
                                    rows times Spearman (m, t)                 AGGREGATE
one-shot
fits_possible: Fit              ->  fits each community to its own training rows
  communities                   <-  FitsPossible: each fit                     AGGREGATE
fit_totals: SharedFits          ->
  places of communities         <-  FitTotals: slope and curvature, packed         MODEL
exact, in place of them
slope_totals: Slope, 1 .. R     ->  sums loss, gradient and curvature of its rows
  coefficients by community     <-  SlopeTotals: packed; with consent (per_record)
                                                                               AGGREGATE
judge_possible: Judge           ->  judges numbers of communities, choosing rows
                                <-  FiguresPossible: each log loss             AGGREGATE
judge_total: SharedFigures      ->
                                <-  FigureTotals: losses and squares (a)       AGGREGATE
test_possible: Conclude         ->  judges the classifier on test rows
                                <-  FiguresPossible                            AGGREGATE
test_total: SharedFigures       ->
                                <-  FigureTotals: and wrong predictions (a)    AGGREGATE
keep: Conclude                  ->  keeps the predictor
                                <-  Kept                                          PUBLIC
==================================  ====================================================

Each reply but the last is judged at the site as that of the run in plain, and leaves masked (phase
`secure_sums`). How many sites tell a class, a correlation, a fit or figures is known first, and
this coordinator asks for what all of them tell: a total of some could be one site's own.

The minimum of the sum of the sites' parabolas needs their curvatures and slopes as totals only, and
so do the exact fit, and figures of rows. What is no sum over rows has digits from which a site's
numbers could be found (docs/proofs/secure-sums.md). So correlations count to a whole number of
rows, sums of figures to what any one row could do to them, squares are about 0. A site's own fit is
its minimum whatever its curvature is, which says how much it counts: there each row has a factor
that only the site knows, and a fit leaves only where its columns have ten different rows or more.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.federated_community_bayes import messages, pooling
from consilience.discriminant.federated_community_bayes import site as at_site
from consilience.discriminant.federated_community_bayes.pooling import Survey, Tree
from consilience.discriminant.federated_community_bayes.site import CHOOSING, TEST, TRAINING
from consilience.exceptions import DisclosureError, ProtocolError, QuorumError
from consilience.parameters import plain
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    asked_at_most,
    step,
)
from consilience.protocol.phases import holdout
from consilience.protocol.phases.secure_sums import (
    ALL,
    MASKED,
    WRONG,
    Totals,
    require_masks,
    total,
)
from consilience.wire import disclosure
from consilience.wire.disclosure import Released, aggregate, relayed, replaced
from consilience.wire.message import Disclosure

LEAST_ROWS = 10
"""Of a class whose ranks are told: fewer have correlations on a grid as coarse as the rounding."""
LEAST_DIFFERENT = 10
"""Different rows, in the columns of a community, behind a fit: of fewer all could be tried."""
FACTORS = 0.75, 1.25
"""Of rows in the curvature of a fit, uniform: a fit that is little else than the shares of the
classes would otherwise tell each site's rows by class as fractions of them."""
_AGGREGATE = Disclosure.AGGREGATE

# --------------------------------------------------------------------------- at a site


def _require(offered: bool) -> None:
    """Check a question before any look at the rows: that it is refused tells nothing of them."""
    if not offered:
        sentence = "the study asks for more, or for less, than this site said it could tell"
        raise ProtocolError.shared(sentence)


def _in_numbers(sums: FloatArray) -> FloatArray:
    """Put what is no number, at made-up coefficients, above all totals: refused it tells whose."""
    return sums if np.isfinite(sums).all() else np.full_like(sums, 2.0**90)


def _classes_of(state: State, classes: Released) -> None:
    _require("classes" in state and np.array_equal(classes.value, state["classes"]))


def fits_of(
    message: messages.Fit, data: SiteData, state: State, site: SiteContext
) -> messages.Fitted:
    """Fits with curvatures in which each row counts by a factor of the site's own."""
    rows = at_site.by_part(data, message.settings, site, state)
    # The same ones in all units, runs and sets of columns: other ones would even out.
    low, high = FACTORS
    factors = low + (high - low) * holdout.independent(data, "factors")
    return at_site.fits_of(message, rows, factors[rows.part == TRAINING], data, site)


def _ranks(rows: at_site.Rows, k: int, data: SiteData, site: SiteContext) -> tuple[Any, FloatArray]:
    """What rank correlations rest on, and rows times each of them, whole (k, t); NaN: withheld."""
    x = holdout.made_constant(data.in_own_units()[0], rows.thin)
    training, (first, second) = rows.part == TRAINING, np.triu_indices(x.shape[1], 1)
    tables, found = [], np.full((k, len(first)), np.nan)
    for of in range(k):
        inside = x[training & (rows.codes == of)]
        table = at_site.class_ranks(inside, site.limits, data.coded)
        tables.append(table)
        if len(inside) >= LEAST_ROWS and table.value.size:
            found[of] = np.rint(len(inside) * table.value[first, second])
    return disclosure.bundle(tables), found


@step("possible", once=True, summed=True)
def possible(
    message: messages.Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Possible, State]:
    """Count this site where it could tell a class, a correlation, or figures of a part."""
    require_masks(site)
    s, rows = message.settings, at_site.by_part(data, message.settings, site)
    k, p = len(s.levels), rows.x.shape[1]
    there = np.bincount(rows.of(TRAINING)[1], minlength=k) > 0
    pairs = ~np.isnan(_ranks(rows, k, data, site)[1])
    parts = np.array(
        [at_site.may_judge(int((rows.part == of).sum()), p, k, site) for of in (CHOOSING, TEST)]
    )
    every = aggregate(np.ones(data.n_rows))
    reply = messages.Possible(
        *(replaced(every, marks.astype(float)) for marks in (there, pairs, parts))
    )
    could = {"classes": np.flatnonzero(there), "pairs": pairs, "parts": parts}
    return reply, {"settings": plain(s), "seed": rows.seed, "thin": rows.thin, "could": could}


@step("rank_totals", once=True, summed=True)
def rank_totals(
    message: messages.SharedRanks, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.RankTotals, State]:
    """Tell rows and rank correlations, weighed by rows, that every site can tell."""
    require_masks(site)
    could, k = state.get("could", {"classes": ()}), len(message.settings.levels)
    classes: IntArray = np.asarray(message.classes.value, dtype=np.int64)
    _require(len(classes) > 0 and np.array_equal(classes, could["classes"]))
    alike = message.pairs.shape == could["pairs"][classes].shape
    _require(alike and not (message.pairs & ~could["pairs"][classes]).any())
    # Held out by some sites alone, asked for or not, a part would be the difference of two runs.
    held_out = np.array([message.settings.choosing > 0, message.settings.holdout > 0])
    _require(not ((message.parts | held_out) & ~could["parts"]).any())
    rows = at_site.by_part(data, message.settings, site, state)
    training = np.where(rows.part == TRAINING, rows.codes, -1)
    counts = disclosure.cell_counts(training, k)
    held = disclosure.cell_counts(np.where(rows.part > TRAINING, rows.part - CHOOSING, -1), 2)
    evidence, ranks = _ranks(rows, k, data, site)
    reply = messages.RankTotals(
        counts=replaced(counts, counts.value[classes]),
        held=replaced(held, np.where(message.parts, held.value, np.nan)),
        ranks=replaced(evidence, np.where(message.pairs, ranks[classes], np.nan)),
    )
    return reply, {**state, "classes": classes, "parts": message.parts}


@step("fits_possible", once=True, summed=True)
def fits_possible(
    message: messages.Fit, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FitsPossible, State]:
    """Count this site where it could tell the fit of a community."""
    require_masks(site)
    _require("classes" in state)
    own = fits_of(message, data, state, site)
    x = at_site.by_part(data, message.settings, site, state).of(TRAINING)[0]
    communities = message.communities.value
    able = [
        fit.size > 0 and len(np.unique(x[:, columns], axis=0)) >= LEAST_DIFFERENT
        for fit, columns in zip(own.fits.value, communities, strict=True)
    ]
    marks = replaced(aggregate(np.ones(data.n_rows)), np.array(able, dtype=float))
    asked = {"communities": communities, "fits": np.flatnonzero(able)}
    return messages.FitsPossible(marks), {**state, **asked}


@step("fit_totals", once=True, summed=True)
def fit_totals(
    message: messages.SharedFits, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FitTotals, State]:
    """Tell slope and curvature of the parabolas of communities that every site can tell."""
    require_masks(site)
    places: IntArray = np.asarray(message.places.value, dtype=np.int64)
    ascending = len(places) > 0 and bool((np.diff(places) > 0).all())
    _require(ascending and bool(np.isin(places, state.get("fits", ())).all()))
    s, communities = message.settings, state["communities"]
    asked = messages.Fit(settings=s, communities=relayed(communities, _AGGREGATE))
    own = fits_of(asked, data, state, site)
    parts = []
    for place in places.tolist():
        q, fit = len(communities[place]), own.fits.value[place]
        size = messages.n_parameters(q, len(state["classes"]))
        phi, curvature = messages.unpacked(fit, size, size)
        slope = pooling.slope_at_zero(phi, curvature, q, s.ridge)
        parts.append(messages.packed(slope, curvature=curvature))
    return messages.FitTotals(replaced(own.fits, _in_numbers(np.concatenate(parts)))), state


@step("slope_totals", tally=asked_at_most("rounds", messages.MAX_ROUNDS), summed=True)
def slope_totals(
    message: messages.Slope, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.SlopeTotals, State]:
    """Add up what `slopes` tells."""
    require_masks(site)
    _classes_of(state, message.classes)
    own, state = at_site.slopes_(message, data, state, site)
    sums = _in_numbers(np.concatenate([np.zeros(0), *own.sums.value]))
    return messages.SlopeTotals(sums=replaced(own.sums, sums)), state


def _figures(
    message: messages.Judge | messages.Conclude,
    part: int,
    data: SiteData,
    state: State,
    site: SiteContext,
) -> messages.FigureTotals:
    """Sums of figures over the rows of a part; a gap where one may not leave."""
    require_masks(site)
    _classes_of(state, message.classes)
    _require(bool(state["parts"][part - CHOOSING]))
    rows, limits = at_site.by_part(data, message.settings, site, state), site.limits
    models, y = at_site.asked_of(rows, part, message)
    values, shares, said = at_site.figures_of(rows, part, models, y, least=limits.min_records)
    means = disclosure.weighted_means(values, limits=limits, entities=np.arange(len(y)))
    sums, squares, wrong = values.sum(axis=0), (values**2).sum(axis=0), len(y) * np.array(shares)
    if limits.min_records > 1:
        # To what any row could do, at a place of the site's own, and the same steps at all sites.
        reach, at = at_site.reach_of(len(models), part), at_site.shifts_of(said, rows.seed, part)
        sums = reach * np.rint(sums / reach + at)
        squares = reach**2 * np.ceil(squares / reach**2)
        wrong = limits.min_records * np.rint(wrong / limits.min_records + at)
    gaps, untold = np.isnan(means.mean.value), [at_site.UNTOLD] * len(models)
    if part == TEST:
        step = min(1.0, max(limits.min_records, 1) / len(y))
        untold = [disclosure.rounded(v, n_records=len(y), step=step) for v in shares]
    return messages.FigureTotals(
        losses=replaced(means.mean, np.where(gaps, np.nan, sums)),
        squares=replaced(means.variance, np.where(gaps, np.nan, squares)),
        wrong=replaced(disclosure.bundle(untold), wrong if part == TEST else np.nan * wrong),
    )


def _could_judge(
    message: messages.Judge | messages.Conclude,
    part: int,
    data: SiteData,
    state: State,
    site: SiteContext,
) -> tuple[messages.FiguresPossible, State]:
    """Count this site where it could tell a figure, and keep the models for the next question."""
    could = ~np.isnan(_figures(message, part, data, state, site).losses.value)
    marks = replaced(aggregate(np.ones(data.n_rows)), could.astype(float))
    kept = {"models": message.models.value, "part": part, "figures": could}
    return messages.FiguresPossible(marks), {**state, "judged": kept}


def _judge(
    message: messages.SharedFigures, part: int, data: SiteData, state: State, site: SiteContext
) -> messages.FigureTotals:
    """Figures of the models that were asked for last."""
    require_masks(site)
    asked = state.get("judged", {"part": None})
    _require(asked["part"] == part and asked["figures"].shape == message.told.shape)
    _require(not (message.told & ~asked["figures"]).any())
    models = relayed(asked["models"], Disclosure.MODEL)
    judge = messages.Judge(message.settings, relayed(state["classes"], _AGGREGATE), models)
    own, hidden = _figures(judge, part, data, state, site), ~message.told
    return messages.FigureTotals(
        own.losses.withhold(hidden), own.squares.withhold(hidden), own.wrong
    )


@step("judge_possible", once=True, summed=True)
def judge_possible(
    message: messages.Judge, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FiguresPossible, State]:
    """Count this site where it could tell figures of candidates."""
    if len(message.models.value) > messages.MAX_CANDIDATES:
        raise DisclosureError.shared("more numbers of communities than a site judges")
    return _could_judge(message, CHOOSING, data, state, site)


@step("judge_total", once=True, summed=True)
def judge_total(
    message: messages.SharedFigures, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FigureTotals, State]:
    """Judge numbers of communities on the choosing rows."""
    return _judge(message, CHOOSING, data, state, site), state


@step("test_possible", once=True, summed=True)
def test_possible(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FiguresPossible, State]:
    """Count this site where it could tell figures of the classifier."""
    at_site.require_three(message)
    return _could_judge(message, TEST, data, state, site)


@step("test_total", once=True, summed=True)
def test_total(
    message: messages.SharedFigures, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.FigureTotals, State]:
    """Judge the classifier on the test rows."""
    return _judge(message, TEST, data, state, site), state


@step("keep", once=True)
def keep(
    message: messages.Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Kept, State]:
    """Keep the classifier."""
    require_masks(site)
    _classes_of(state, message.classes)
    rows = at_site.by_part(data, message.settings, site, state)
    at_site.keep_model(message, rows, state["classes"], data, site)
    return messages.Kept(), {}


STEPS = (
    possible,
    rank_totals,
    fits_possible,
    fit_totals,
    slope_totals,
    judge_possible,
    judge_total,
    test_possible,
    test_total,
    keep,
)


# --------------------------------------------------------------------------- at the coordinator


def _total(
    ctx: CoordinatorContext, of: str, message: Any, reply: type
) -> Generator[Ask, Replies, Totals]:
    """A total over all that contributed to those before: without one it would tell its part."""
    n, ask = len(ctx.masks.roster), Ask(of, message, to=ctx.masks.roster)
    return (yield from total(ctx, ask, reply, at_least=n, tellers=n))


def _marks(found: Totals, name: str) -> IntArray:
    """How many sites could tell something."""
    marks = np.rint(found.values[name]).astype(np.int64)
    if not ((marks >= 0) & (marks <= len(found.sites))).all():
        raise ProtocolError(WRONG)
    return marks


def ranks_of_all(
    ctx: CoordinatorContext, s: messages.Settings, chooses: bool
) -> Generator[Ask, Replies, tuple[Survey, dict[str, tuple[FloatArray, ...]]]]:
    """Rows of all sites, as if one had them, and its rank correlations by level.

    Parameters
    ----------
    ctx : CoordinatorContext
    s : Settings
    chooses : bool
        Whether numbers of communities are compared.

    Raises
    ------
    QuorumError
        Some site cannot tell a class that others have, or has too few choosing rows.
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    found = yield from _total(ctx, "possible", messages.Offer(settings=s), messages.Possible)
    sites = len(found.sites)
    having, pairs, judging = (_marks(found, name) for name in ("classes", "pairs", "parts"))
    classes = np.flatnonzero(having == sites)
    if (some := (having > 0) & (having < sites)).any():
        raise QuorumError(
            f"some site has too few training rows of class {s.levels[int(np.argmax(some))]!r}, and "
            "a masked total is of all sites: hold out fewer rows, leave the class out, or leave "
            "sums = 'secure' out of the study"
        )
    asked_parts, judges = np.array([chooses, s.holdout > 0]), judging == sites
    if chooses and not judges[0]:
        raise QuorumError(
            "some site has too few choosing rows (twice the coefficients of all columns) to judge "
            "numbers of communities, and a masked total is of all sites: give n_communities"
        )
    if asked_parts[1] and not judges[1]:
        # Beside a run without test rows the difference would be those of the sites that have some.
        raise QuorumError(
            "some site has too few test rows (twice the coefficients of all columns) to judge the "
            "model, and a masked total is of all sites: set holdout to 0"
        )
    told, parts = pairs[classes] == sites, asked_parts
    request = messages.SharedRanks(s, relayed(classes, _AGGREGATE), told, parts)
    values = (yield from _total(ctx, "rank_totals", request, messages.RankTotals)).values
    counts, held, ranks = (np.rint(values[name]) for name in ("counts", "held", "ranks"))
    if not (counts > 0).all() or (held < 0).any() or (np.abs(ranks) > counts[:, None]).any():
        raise ProtocolError(WRONG)
    p, by_level = len(ctx.feature_names), np.zeros(len(s.levels), dtype=np.int64)
    by_level[classes] = counts
    tables = [np.empty((0, 0))] * len(s.levels)
    for k, own, known, n in zip(classes, ranks, told, counts, strict=True):
        if known.any():
            table = np.diag(np.full(p, 0.5))
            table[np.triu_indices(p, 1)] = np.where(known, own / n, np.nan)
            tables[k] = table + table.T
    reply = messages.Offered(*(relayed(v, _AGGREGATE) for v in (by_level, *held.astype(np.int64))))
    return pooling.survey_of(s, {ALL: reply}, chooses=chooses), {ALL: tuple(tables)}


def _split(sums: FloatArray, sizes: list[int]) -> list[FloatArray]:
    """Packed sums of communities, of so many numbers each."""
    if len(sums) != sum(sizes):
        raise ProtocolError(WRONG)
    return np.split(sums, np.cumsum(sizes)[:-1])


def one_shot(
    ctx: CoordinatorContext, survey: Survey, tree: Tree
) -> Generator[Ask, Replies, tuple[list[pooling.Combined], int]]:
    """Minimise the sum of the sites' parabolas, where every site can tell its own.

    Raises
    ------
    QuorumError
        Of no community.
    ProtocolError
        The totals are those of no rows.
    """
    s, m = survey.settings, len(survey.classes)
    communities = relayed(tree.communities, _AGGREGATE)
    asked = messages.Fit(settings=s, communities=communities)
    found = yield from _total(ctx, "fits_possible", asked, messages.FitsPossible)
    places = np.flatnonzero(_marks(found, "fits") == len(found.sites))
    if not len(places):
        raise QuorumError(
            "no community has a fit that every site could tell (rows at least twice the "
            "parameters, classes that are not nearly separate, ten different rows in its columns): "
            "ask for more communities, lower C, or let larger sites take part"
        )
    request = messages.SharedFits(s, relayed(places, _AGGREGATE))
    found = yield from _total(ctx, "fit_totals", request, messages.FitTotals)
    rows = survey.by_class[survey.classes].astype(float)
    fitted = [pooling.Combined(None, 0.0 * rows)] * len(tree.communities)
    widths = [len(tree.communities[c]) for c in places]
    parts = _split(found.values["sums"], [messages.n_numbers(q, m) for q in widths])
    for c, q, part in zip(places, widths, parts, strict=True):
        if not messages.is_packed(part, q, m, survey.total):
            raise ProtocolError(WRONG)
        size = messages.n_parameters(q, m)
        right, left = messages.unpacked(part, size, size)
        fitted[c] = pooling.minimum_of(left, right, rows, q, s.ridge)
    return fitted, 0


def slopes(
    ctx: CoordinatorContext, message: messages.Slope, survey: Survey
) -> Generator[Ask, Replies, dict[str, list[FloatArray]]]:
    """Sums at some coefficients, by community, as if one site told them."""
    found = yield from _total(ctx, "slope_totals", message, messages.SlopeTotals)
    m, widths = len(survey.classes), [len(c) for c in message.communities.value]
    parts = _split(found.values["sums"], [1 + messages.n_numbers(q, m) for q in widths])
    pairs = zip(parts, widths, strict=True)
    if not all(v[0] >= 0 and messages.is_packed(v[1:], q, m, survey.total) for v, q in pairs):
        raise ProtocolError(WRONG)
    return {ALL: parts}


def _figures_of_all(
    ctx: CoordinatorContext, part: str, message: messages.Judge | messages.Conclude, n: int
) -> Generator[Ask, Replies, dict[str, messages.Judged]]:
    """Figures of models over the n rows of all sites, as if one told them.

    Standard errors are those of rows about the mean of all sites.
    """
    found = yield from _total(ctx, f"{part}_possible", message, messages.FiguresPossible)
    told = _marks(found, "losses") == len(found.sites)
    if not told.all():
        rows = {"judge": "choosing", "test": "test"}[part]
        ctx.note(f"At some site one of the {rows} rows makes most of a figure, which nobody tells.")
    request = messages.SharedFigures(message.settings, told)
    found = yield from _total(ctx, f"{part}_total", request, messages.FigureTotals)
    means = np.where(told, found.values["losses"] / n, np.nan)
    squares = np.maximum(np.where(told, found.values["squares"] / n, np.nan) - means**2, 0.0) / n
    wrong = np.where(found.told["wrong"] > 0, found.values["wrong"] / n, np.nan)
    figures = (means, squares, tuple(map(float, wrong)))
    return {ALL: messages.Judged(*(relayed(value, _AGGREGATE) for value in figures))}


def judged(
    ctx: CoordinatorContext, message: messages.Judge, survey: Survey
) -> Generator[Ask, Replies, dict[str, messages.Judged]]:
    """Figures of the candidates over the choosing rows of all sites."""
    return (yield from _figures_of_all(ctx, "judge", message, survey.choosing[ALL]))


def concluded(
    ctx: CoordinatorContext, message: messages.Conclude, survey: Survey
) -> Generator[Ask, Replies, dict[str, messages.Judged]]:
    """Have the classifier kept, after figures over the test rows of all sites."""
    found, n, sites = {}, survey.test[ALL], ctx.sites
    if n:
        found = yield from _figures_of_all(ctx, "test", message, n)
        sites = ctx.sites
    kept = ctx.require((yield Ask("keep", message, to=sites)), at_least=0)
    for site in (site for site in sites if site not in kept):
        ctx.note(f"{site} did not take the model at the end.")
    return found

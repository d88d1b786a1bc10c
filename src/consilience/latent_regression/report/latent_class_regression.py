"""Report of latent class regression: which classes, who is in them, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.latent_regression.report import latent_evidence
from consilience.latent_regression.report.latent_evidence import (
    CLASSES,
    NULL,
    OWN,
    PLUS_MINUS,
    RELEASES,
    RIDGE,
    chance,
    class_name,
    count_words,
    over_sites,
    release_shares,
    restless,
    site_counts,
    site_shares,
)
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.figures_latent import merge_round
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    Tone,
    listed,
    numbers,
    percent,
    plural,
    site_name,
)

MISSED_COVERAGE = 0.03
"""How far coverage may be from its level, beside chance, before the report says so."""


# --------------------------------------------------------------------------- who belongs where


def members(run: Any, result: Any) -> Block:
    """How many entities of each site belong to each class."""
    shares = site_shares(result)
    gaps = ~np.isfinite(shares)
    text = [
        "Which entity belongs to which class is known at its own site only, where classes.csv has "
        "every entity with the probability of its class: consilience site outputs, with the site's "
        f"own file and the run {run.info.run}.",
    ]
    if gaps.any():
        everything = np.asarray(gaps.all(axis=1))
        silent = [site_name(s) for s, g in zip(result.sites, everything, strict=True) if g]
        partly = np.asarray(gaps.any(axis=1)) & ~everything
        some = [site_name(s) for s, g in zip(result.sites, partly, strict=True) if g]
        if some:
            text.append(
                f"Of some classes {listed(some)} sent no sum: they have no entity of the class, or "
                "too few to be told."
            )
        if silent:
            text.append(f"No count came from {listed(silent)}.")
    if counted_words(result):
        text.append(
            "Where the shares of a site do not add up to 100 %, the rest of its entities are in "
            "groups too small for a sum, or between classes; they have their class at the site all "
            "the same."
        )
    text.append(_concentration(result))
    picture = Picture(
        "latent-members",
        latent_evidence.plot_latent_members(result),
        "Share of each site's entities by class; above the line the shares among entities of an "
        "agent that nobody has seen.",
        f"Map of {plural(len(result.sites), 'site')} by "
        f"{plural(int(result.n_classes), 'class', 'classes')}. The table below has the counts.",
    )
    counts = site_counts(result)
    rows = tuple(
        (
            site_name(site),
            count_words(result.n_agents[i]),
            count_words(result.n_entities[i]),
            count_words(result.n_events[i]),
            *(count_words(v) for v in counts[i]),
        )
        for i, site in enumerate(result.sites)
    )
    head = (
        *("site", "agents", "entities", "events"),
        *(class_name(k) for k in range(int(result.n_classes))),
    )
    note = f"{DASH}: none, or too few to be told." if gaps.any() else ""
    return Block(
        "Who belongs where",
        tuple(text),
        picture=picture,
        folded=(Table("Entities by site and class", head, rows, note),),
    )


def _concentration(result: Any) -> str:
    """What beta says of agents."""
    beta = float(result.beta)
    if not math.isfinite(beta):
        return ""
    words = f"{beta:.2g}"
    if beta < 1:
        return (
            f"Agents differ much: the concentration of their mixtures is {words}, so most entities "
            "of an agent are in the same class."
        )
    if beta > 20:
        return (
            f"Agents hardly differ: the concentration of their mixtures is {words}, so whose an "
            "entity is says little about its class."
        )
    return (
        f"Agents differ to some degree in their mixture of classes: its concentration is {words} "
        "(small: one class an agent; large: the same mixture everywhere)."
    )


# --------------------------------------------------------------------------- held-out error


@dataclass(frozen=True)
class Saved:
    """Squared error that the classes save over another model, in shares of that model's.

    Attributes
    ----------
    share : float
    half : float
        Half of a 95 % interval; NaN where nothing tells.
    among : str
        What the interval is over: entities or sites.
    """

    share: float
    half: float = math.nan
    among: str = "entities"

    @property
    def clear(self) -> int:
        """1 where the classes are better beyond chance, -1 where they are worse, else 0."""
        known = math.isfinite(self.half) and abs(self.share) > self.half
        return int(math.copysign(1, self.share)) if known else 0

    @property
    def interval(self) -> str:
        """The interval in brackets, after a blank; nothing where there is none."""
        if not math.isfinite(self.half):
            return ""
        low, high = percent(self.share - self.half), percent(self.share + self.half)
        return f" (95 % interval over {self.among} {low} to {high})"


def saved(result: Any) -> Saved:
    """What the classes save over one ridge for all: sites say by how much, with its error."""
    gain, weight = _weighted(result, result.heldout_gain)
    if not len(gain):
        return saved_over(result, RIDGE)
    told = np.isfinite(np.asarray(result.heldout_gain, dtype=float))
    ridge = np.asarray(result.heldout_mse, dtype=float)[:, RIDGE]
    unit = over_sites(result, np.where(told, ridge, np.nan))
    error, part = _weighted(result, np.where(told, result.heldout_gain_error, np.nan))
    # The events of a site with one entity deviate from their own mean by nothing, taken together.
    if len(error) < len(gain) or not (error > 0).all():
        return saved_over(result, RIDGE)
    # error of a weighted mean over independent sites
    half = Z95 * float(np.sqrt((part**2 * error**2).sum()))
    return Saved(float(weight @ gain) / unit, half / unit)


def saved_over(result: Any, model: int) -> Saved:
    """What they save over a model of which sites tell no error: an interval over three or more."""
    from scipy.stats import t

    mse = np.asarray(result.heldout_mse, dtype=float)
    unit = over_sites(result, mse[:, model])
    difference, weight = _weighted(result, (mse[:, model] - mse[:, CLASSES]) / unit)
    n = len(difference)
    if not n:
        return Saved(math.nan)
    share = float(weight @ difference)
    if n < 3:
        return Saved(share)
    # between sites, by the spread of their differences
    error = np.sqrt(((weight * (difference - share)) ** 2).sum() * n / (n - 1))
    return Saved(share, float(t.isf(0.025, n - 1) * error), "sites")


def _weighted(result: Any, values: Any) -> tuple[FloatArray, FloatArray]:
    """Values of the sites that tell one, and their shares of the events of these sites."""
    values = np.asarray(values, dtype=float)
    weight = np.nan_to_num(np.asarray(result.heldout_weight, dtype=float))
    told = np.isfinite(values) & (weight > 0)
    return values[told], weight[told] / max(float(weight[told].sum()), np.finfo(float).tiny)


def n_telling(result: Any) -> int:
    """Sites that held events out and tell what the classes lost on them."""
    mse = np.asarray(result.heldout_mse, dtype=float)[:, CLASSES]
    return int((np.isfinite(mse) & (np.nan_to_num(result.heldout_weight) > 0)).sum())


def coverage_words(result: Any) -> tuple[str, bool]:
    """What the intervals cover, and whether that is what they promise."""
    covered, level = over_sites(result, result.coverage), float(result.level)
    if not math.isfinite(covered):
        return "", True
    width = numbers([over_sites(result, result.interval_width)])[0]
    fits = abs(covered - level) <= MISSED_COVERAGE + float(np.nan_to_num(chance(result)[0]))
    words = (
        f"Intervals of {percent(level, 0)} held {percent(covered)} of the held-out events; "
        f"they are {width} wide on average, in units of the target."
    )
    return words, fits


def held_out(result: Any) -> Block:
    """Error on held-out events beside simpler models, with coverage."""
    text = [
        "Of each entity some events were held out: they took part in no class. Each site says what "
        "the classes lose on them, where an entity has the probabilities of its classes, beside "
        "three simpler models: the mean alone, one ridge regression for all events, and a ridge "
        "regression for each entity, drawn towards the common one.",
    ]
    covered, fits = coverage_words(result)
    text.append(covered)
    score = np.asarray(result.heldout_log_score, dtype=float)
    gain = over_sites(result, score[:, 1] - score[:, 0])
    if math.isfinite(gain):
        text.append(
            f"The classes' log score is {abs(gain):.3g} nats an event "
            f"{'above' if gain >= 0 else 'below'} that of the one ridge, which is given its own "
            "normal distribution."
        )
    warning = (
        ""
        if fits
        else "The intervals do not cover what they promise: do not use them for decisions."
    )
    shares = latent_evidence.unexplained(result)[0]
    picture = Picture(
        "latent-held-out",
        latent_evidence.plot_latent_held_out(result),
        "Left: squared error on held-out events, in shares of that of the mean alone (further left "
        "is better). Right: share of the events within their interval, with a 95 % interval of "
        "chance.",
        f"Dots for {plural(len(result.sites), 'site')}; over all sites the classes leave "
        f"{percent(float(shares[CLASSES]))} of the variance, one ridge "
        f"{percent(float(shares[RIDGE]))}. The table below has the numbers.",
    )
    return Block(
        "Held-out error beside simpler models",
        tuple(t for t in text if t),
        warning,
        picture,
        tables=(_error_table(result),),
    )


def _error_table(result: Any) -> Table:
    mse = np.asarray(result.heldout_mse, dtype=float)
    score = np.asarray(result.heldout_log_score, dtype=float)
    width, covered = np.asarray(result.interval_width, float), np.asarray(result.coverage, float)
    every = [mse[:, NULL], mse[:, RIDGE], mse[:, OWN], mse[:, CLASSES]]
    columns = [numbers([over_sites(result, v), *v]) for v in every]
    columns.append(_gains(result))
    scores = [numbers([over_sites(result, v), *v]) for v in score.T]
    cover = [percent(v) for v in (over_sites(result, covered), *covered)]
    wide = numbers([over_sites(result, width), *width])
    held = np.asarray(result.heldout_effective, dtype=float)
    events = [count_words(v) for v in (np.nansum(held) or math.nan, *held)]
    names = ("all sites", *(site_name(s) for s in result.sites))
    rows = tuple(zip(names, events, *columns, *scores, cover, wide, strict=True))
    head = (
        *("site", "held-out events", "mean alone", "one ridge", "ridge for each entity"),
        *("classes", "saved over one ridge", "log score, one ridge", "log score, classes"),
        *(f"within {percent(float(result.level), 0)} interval", "mean width"),
    )
    note = (
        "Mean squared errors and mean log scores of a held-out event; of log scores the larger is "
        "better. Saved: with half of a 95 % interval, in which the events of an entity count "
        "together. Sites are weighted by the events that they did not hold out; those that protect "
        "records round their figures to what one entity may change, and the number of held-out "
        "events down."
    )
    if not np.isfinite(mse).all():
        note += (
            f" {DASH}: the site held out no events, or withheld a mean that few of them dominate."
        )
    return Table("Held-out events by site", head, rows, note)


def _gains(result: Any) -> tuple[str, ...]:
    """What each site's classes save over one ridge with half of an interval, all sites first."""
    unit = over_sites(result, np.asarray(result.heldout_mse, dtype=float)[:, RIDGE])
    total = saved(result)
    value = np.array([total.share * unit, *np.asarray(result.heldout_gain, dtype=float)])
    error = np.asarray(result.heldout_gain_error, dtype=float)
    half = np.array([total.half * unit, *np.where(error > 0, Z95 * error, np.nan)])
    words = numbers([*value, *half])
    pairs = zip(words[: len(value)], words[len(value) :], strict=True)
    return tuple(v if h == DASH else f"{v} {PLUS_MINUS} {h}" for v, h in pairs)


# --------------------------------------------------------------------------- releases


def release_counts(result: Any) -> FloatArray:
    """Class sums that each site released anew, repeated and withheld over all rounds, (B, 3)."""
    return np.stack(
        [np.asarray(getattr(result, name), dtype=float).sum(axis=0) for name, _ in RELEASES],
        axis=1,
    )


def counted_words(result: Any) -> str:
    """How many entities the sums of the last rounds hold; nothing where they hold all of them."""
    held, everyone = float(np.sum(result.class_sizes)), float(np.nansum(result.n_entities))
    # Sites that did not tell how many they have are in neither number, or in the first only.
    if not everyone or not np.isfinite(np.asarray(result.n_entities)).all():
        return ""
    if held > everyone - 0.5:
        return ""
    return (
        f"Of {everyone:,.0f} entities the sums of the last rounds held {held:,.0f} on average "
        f"({percent(held / everyone)}). The others are predicted by the classes all the same."
    )


def releases(result: Any) -> Block:
    """Which class sums each site sent anew, as before, and left out, round by round."""
    counts = release_counts(result)
    told = np.asarray(result.reported, dtype=bool)
    counted = counted_words(result)
    text = [
        "Where a policy protects records, a class sum leaves the site only if it rests on enough "
        "events of at least three entities. From one round to the next, entities are counted in "
        "another class only in groups that are as large; whoever has no such company is left out "
        "with others until there is some. So no two sums, of whichever rounds, differ by a few "
        "entities. A sum whose entities did not change is the same as before.",
        *([counted] if counted else []),
    ]
    never = [
        site_name(s)
        for s, n in zip(result.sites, counts[:, 0] + counts[:, 1], strict=True)
        if not n
    ]
    warning = ""
    if never:
        warning = (
            f"{listed(never)} released no class sum at all: the classes are those of the other "
            "sites."
        )
    shares = release_shares(result)
    fresh = float(np.nanmean(shares["released"])) if counts.sum() else float("nan")
    picture = Picture(
        "latent-releases",
        latent_evidence.plot_latent_releases(result),
        "Share of a site's class sums in each round that were new, the same as before, or left out."
        + (" Dashed: classes were merged." if merge_round(result) is not None else ""),
        f"Maps of {plural(len(result.sites), 'site')} by {plural(len(told), 'round')}; "
        f"{percent(fresh)} of the sums were new. The table below has the counts.",
    )
    rows = tuple(
        (
            site_name(site),
            f"{int(told[:, i].sum()):,} of {len(told):,}",
            *(f"{v:,.0f}" for v in counts[i]),
            percent(counts[i, 0] / counts[i].sum() if counts[i].sum() else float("nan")),
        )
        for i, site in enumerate(result.sites)
    )
    head = ("site", "rounds reported", "new", "as before", "left out", "share new")
    return Block(
        "Which sums were new",
        tuple(text),
        warning,
        picture,
        tables=(Table("Class sums by site, over all rounds", head, rows),),
    )


# ----------------------------------------------------------------------------------------- the page


HARDLY = 0.01
"""Share of the error below which a difference is called none."""


class LatentClassRegressionReport(MethodReport):
    """Words, tables and figures on regressions in latent classes."""

    def headline(self, run: Run) -> Headline:
        """How many classes, and whether they predict better than simpler models."""
        result = _result(run)
        text, tone = _verdict(result)
        more = [_beside_own(result), coverage_words(result)[0], *_cautions(result), *_notes(result)]
        return Headline(text, tone, tuple(m for m in more if m))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Classes, agents, entities, events, noise, gain."""
        result = _result(run)
        facts = [
            ("classes", f"{int(result.n_classes)}"),
            ("agents", _total(result.n_agents)),
            ("entities", _total(result.n_entities)),
            ("events", _total(result.n_events)),
            ("rounds of labels", f"{int(result.rounds_run):,}"),
            ("noise (standard deviation)", numbers([result.sigma])[0]),
        ]
        if n_telling(result):
            facts.append(("held-out error saved over one ridge", percent(saved(result).share)))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Classes, members, held-out error, rounds, releases."""
        result = _result(run)
        blocks = [latent_evidence.classes(result), members(run, result)]
        if n_telling(result):
            blocks.append(held_out(result))
        if int(result.rounds_run):
            blocks.append(latent_evidence.rounds(run, result))
        if np.size(result.reported):
            blocks.append(releases(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """What was withheld and repeated."""
        result = _result(run)
        counts = release_counts(result)
        total, by_kind = counts.sum(), counts.sum(axis=0)
        words = []
        if total:
            words.append(
                f"Of {total:,.0f} class sums that the rounds asked for, {by_kind[0]:,.0f} were "
                f"new, {by_kind[1]:,.0f} ({percent(by_kind[1] / total)}) the same as before, and "
                f"{by_kind[2]:,.0f} ({percent(by_kind[2] / total)}) too small and left out."
            )
        words.append(
            "Labels of entities and predictions stay at the sites. The sums of many rounds are "
            "many sums of nearly the same events; that entities change class only in groups, at "
            "sites that protect records, is what stands against their differences. There is no "
            "noise."
        )
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What classes cannot say."""
        return _limits(_result(run))


def _result(run: Run) -> LatentClassRegressionResult:
    if not isinstance(run.result, LatentClassRegressionResult):
        raise TypeError("the run is not one of latent class regression")
    return run.result


def _total(values: Any) -> str:
    return f"{np.nansum(np.asarray(values, dtype=float)):,.0f}"


# --------------------------------------------------------------------------- headline


def _verdict(result: LatentClassRegressionResult) -> tuple[str, Tone]:
    """The answer and how sure it may sound."""
    k = int(result.n_classes)
    n_sites = int((np.asarray(result.n_entities) > 0).sum()) or len(result.sites)
    who = f"{_total(result.n_entities)} entities at {plural(n_sites, 'site')}"
    target = drawing.short(result.target_name, 40)
    if not n_telling(result):
        return (
            f"{_found(k, who, target)} Not measured: no held-out events tell whether they predict "
            "better than simpler models.",
            "caution",
        )
    if k == 1:
        return _found(k, who, target), "plain"
    gain = saved(result)
    if gain.share <= 0:
        return (
            f"No gain: {plural(k, 'class', 'classes')} in {who} predict held-out events no better "
            f"than one ridge regression for all ({percent(-gain.share)} more squared error).",
            "caution",
        )
    chance = ", which chance may do as well" if math.isfinite(gain.half) and not gain.clear else ""
    text = (
        f"{_found(k, who, target)} On held-out events their squared error is "
        f"{percent(gain.share)} below that of one ridge regression for all{gain.interval}{chance}."
    )
    behind = _better(saved_over(result, OWN)) < 0
    sure = gain.clear > 0 and not behind and not _cautions(result)
    return text, "good" if sure else "plain"


def _found(k: int, who: str, target: str) -> str:
    if k == 1:
        return f"One regression describes {target} of all {who}: no further class was found."
    return f"{k} regressions describe {target} of {who}."


def _beside_own(result: LatentClassRegressionResult) -> str:
    """How the classes do beside a ridge for each entity."""
    if not n_telling(result) or int(result.n_classes) == 1:
        return ""
    own = saved_over(result, OWN)
    if not math.isfinite(own.share):
        return ""
    if not _better(own):
        return (
            "Beside a ridge regression for each entity there is no clear difference: the classes "
            f"save {percent(own.share)} of its squared error{own.interval}."
        )
    if _better(own) > 0:
        return (
            "A ridge regression for each entity does worse: the classes save "
            f"{percent(own.share)} of its squared error{own.interval}."
        )
    return (
        "A ridge regression for each entity predicts better: the classes lose "
        f"{percent(-own.share)} more{own.interval}. Entities differ in more than a few kinds: a "
        "mixed model may be what is wanted."
    )


def _better(own: Saved) -> int:
    """1 where the classes do better, -1 where they do worse, 0 where neither is clear."""
    if abs(own.share) < HARDLY or not math.isfinite(own.share):
        return 0
    return own.clear if math.isfinite(own.half) else int(math.copysign(1, own.share))


def _cautions(result: LatentClassRegressionResult) -> list[str]:
    """What stands against the classes."""
    words = []
    if restless(result) > latent_evidence.RESTLESS:
        words.append(
            f"{percent(restless(result), 0)} of the entities still moved in the last rounds: the "
            "classes had not settled."
        )
    if not coverage_words(result)[1]:
        words.append("The intervals do not cover what they promise.")
    null = over_sites(result, np.asarray(result.heldout_mse, dtype=float)[:, NULL])
    classes = over_sites(result, np.asarray(result.heldout_mse, dtype=float)[:, CLASSES])
    ridge = over_sites(result, np.asarray(result.heldout_mse, dtype=float)[:, RIDGE])
    if math.isfinite(null) and min(classes, ridge) >= null:
        words.append("Neither the classes nor one ridge predict better than the mean alone.")
    return words


def _notes(result: LatentClassRegressionResult) -> list[str]:
    return [drawing.short(r, 500).rstrip(".") + "." for r in result.remarks]


# --------------------------------------------------------------------------- limits


def _limits(result: LatentClassRegressionResult) -> list[str]:
    known = [
        "Classes describe how the target goes with the columns within groups of entities. They are "
        "not causes: what a column's change would do is another question.",
        "Intervals of coefficients hold for the classes as they are, with their number given. "
        "Another number of classes, or another start, may group the entities otherwise.",
        "An entity is in one class for all of its events, and all classes share one noise. Where "
        "entities differ by degrees rather than by kinds, a mixed model is as good or better; on "
        "the grouped data that are examples here it is.",
        "Classes have no names and no order but their size: class 1 of another run may be another "
        "class.",
        "A target of 0 and 1 is regressed as a number. Predictions may then leave the range from "
        "0 to 1, and intervals are no more than rough.",
        "The 95 % interval of what the classes save speaks of more events of these sites' "
        "entities, with the classes as they are; of other sites it does not speak.",
        "Error on held-out events is that of entities which have other events in the fit. For new "
        "entities and new agents it is larger, and their intervals wider.",
        "Each round's class sums are further sums of nearly the same events. That entities change "
        "class only in groups, at sites that protect records, bounds what their differences tell "
        "of one within this run; that there are few runs on the same events is the policy's part.",
        "A site that lies about its sums moves every class.",
    ]
    if result.concentration == "shortcut":
        known.append(
            "Mixtures were updated by the shortcut of the source, which favours large agents where "
            'agents are of unequal size: concentration = "exact" does not.'
        )
    return known


REPORT = LatentClassRegressionReport

"""Report of latent class regression: which classes, who is in them, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.latent_regression.report import latent_evidence, latent_sites
from consilience.latent_regression.report.figures_latent_sites import (
    CLASSES,
    NULL,
    OWN,
    RIDGE,
    over_sites,
)
from consilience.latent_regression.report.latent_evidence import restless
from consilience.latent_regression.report.latent_sites import (
    Saved,
    coverage_words,
    n_telling,
    release_counts,
    saved,
    saved_over,
)
from consilience.report import drawing
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Tone,
    numbers,
    percent,
    plural,
)

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
        blocks = [latent_evidence.classes(result), latent_sites.members(run, result)]
        if n_telling(result):
            blocks.append(latent_sites.held_out(result))
        if int(result.rounds_run):
            blocks.append(latent_evidence.rounds(run, result))
        if np.size(result.reported):
            blocks.append(latent_sites.releases(result))
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

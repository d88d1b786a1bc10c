"""Report of reference averaging: did the rounds help, what did they cost, and who took part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.averaging.report import reference_evidence, reference_sites
from consilience.averaging.report.figures_reference import (
    best_round,
    curve,
    differences,
    measured,
    n_rounds,
    over_sites,
)
from consilience.averaging.report.reference_evidence import (
    LOSSES,
)
from consilience.averaging.report.reference_sites import probe_words
from consilience.report import drawing
from consilience.report.drawing import Z95
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Tone,
    listed,
    percent,
    plural,
    site_name,
    size,
)

BYTES_OF_A_NUMBER = 8


class ReferenceAveragingReport(MethodReport):
    """Words, tables and figures on the rounds of a black-box learner."""

    def headline(self, run: Run) -> Headline:
        """Say which of the four outcomes came, and where something simpler would do."""
        result = _result(run)
        text, tone = _verdict(result)
        more = [_why_not(result), _beside_own(result), _exact(run, result)]
        weak = [r for r in result.remarks if "rank" in r or "dependent" in r]
        return Headline(text, tone, tuple(m for m in (*more, *weak) if m))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Learner, rows, rounds, gain."""
        result = _result(run)
        facts = [
            ("learner", drawing.short(result.estimator.partition("(")[0], 30)),
            ("rows", f"{int(np.sum(result.sizes)):,}"),
            ("rounds of refits", f"{n_rounds(result):,}"),
            ("round that is kept", _round_name(int(result.chosen_round))),
            ("reference rows", f"{int(result.n_reference):,}"),
        ]
        if result.kept and measured(result):
            gain, error = _gain(result)
            facts.append(
                ("saved over averaging", f"{percent(-gain)} (standard error {percent(error)})")
            )
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Rounds, comparison, penalties, probe, influence, contributions, reference, model."""
        result = _result(run)
        blocks = []
        if n_rounds(result):
            blocks.append(reference_evidence.rounds(run, result))
        if np.isfinite(differences(result)[0]).any():
            blocks.append(reference_evidence.comparison(result))
        if len(result.penalties) > 1 and np.isfinite(result.base_loss).any():
            blocks.append(reference_evidence.penalties(result))
        blocks += [
            reference_sites.probe(result),
            reference_sites.influence(result),
            reference_sites.contributions(result),
            reference_sites.reference(result),
        ]
        if np.size(result.coefficients):
            blocks.append(reference_sites.coefficients(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """What sites kept back, and how often they said how a fit of their rows looks."""
        result = _result(run)
        words = []
        if measured(result):
            held = np.asarray(result.held) > 0
            told = np.isfinite(np.asarray(result.local_losses, dtype=float)).all(axis=1)
            without = _names(result, ~held)
            if without:
                words.append(
                    f"{without} had too few rows to hold some out: the other sites say what the "
                    "rounds gained."
                )
            if (held & ~told).any():
                words.append(
                    f"{_names(result, held & ~told)} kept back a loss at the end, which few rows "
                    "dominate."
                )
        gaps = {x.field for x in run.transcript if x.verdict == "withheld"}
        if n_rounds(result) and gaps == {"probe"}:
            words.append(
                "These gaps are the probe of the learner, which is made in the first round only; "
                "nothing was kept back."
            )
        if n_rounds(result) and result.linear:
            words.append(
                "Predictions of a linear learner at so many rows are its coefficients. Each round "
                "is one more fit of the same rows, towards another target: several of them tell "
                "what the products of a site's columns are (for a ridge, exactly)."
            )
        return words

    def limits(self, run: Run) -> Sequence[str]:
        """What the rounds cannot do."""
        return _limits(_result(run))


def _names(result: ReferenceAveragingResult, which: NDArray[np.bool_]) -> str:
    return listed([site_name(s) for s, w in zip(result.sites, which, strict=True) if w])


def _result(run: Run) -> ReferenceAveragingResult:
    if not isinstance(run.result, ReferenceAveragingResult):
        raise TypeError("the run is not one of reference averaging")
    return run.result


# --------------------------------------------------------------------------- headline


def _verdict(result: ReferenceAveragingResult) -> tuple[str, Tone]:
    """Headline and its tone, by outcome."""
    learner = drawing.short(result.estimator, 60)
    if result.reason == "not-separable":
        return (
            f"Plain averaging is returned: {learner} does not behave as a sum of a loss and a "
            "penalty, so refits towards the average do not lead to the fit of all rows, and none "
            f"were run. {probe_words(result)}",
            "caution",
        )
    if not measured(result):
        what = (
            f"the fits of round {int(result.chosen_round)} are returned"
            if result.kept
            else "plain averaging is returned"
        )
        return (
            f"Not measured: no held-out rows tell what the refits of {learner} are worth, and "
            f"{what}.",
            "caution",
        )
    what = LOSSES.get(result.loss, result.loss)
    if not result.kept:
        least = best_round(result)
        found = (
            "no round of refits lost less than averaging the sites' own fits"
            if least == 0
            else f"round {least}, the best of {n_rounds(result)}, is not better than averaging the "
            f"sites' own fits by more than a standard error ({_versus(result, least)})"
        )
        return f"No gain: on held-out rows {found}. Plain averaging is returned.", "plain"
    gain, error = _gain(result)
    text = (
        f"The rounds help: after {plural(int(result.chosen_round), 'round')} of refits the {what} "
        f"on held-out rows is {percent(-gain)} below that of averaging the sites' own fits "
        f"(standard error {percent(error)})."
    )
    if -gain > Z95 * error:
        return text, "good"
    return f"{text} That is more than one standard error, but chance may do as much.", "plain"


def _why_not(result: ReferenceAveragingResult) -> str:
    """What makes a learner fail the probe."""
    if result.reason != "not-separable":
        return ""
    if result.convention == "trees":
        return "Forests, boosting and single trees are of this kind."
    return (
        "Other learners fail so under a wrong convention of weights, or where the solver stops "
        "early: give a smaller tolerance."
    )


def _gain(result: ReferenceAveragingResult, at: int | None = None) -> tuple[float, float]:
    """Held-out loss of a round less that of averaging, and its error, in shares."""
    k = int(result.chosen_round) if at is None else at
    gain, error = curve(result)
    return float(gain[k]), float(error[k])


def _versus(result: ReferenceAveragingResult, k: int) -> str:
    gain, error = _gain(result, k)
    return f"{percent(gain)}, standard error {percent(error)}"


def _beside_own(result: ReferenceAveragingResult) -> str:
    """How what is kept does beside the fit of each site on its own."""
    saved, error = differences(result)
    mean, its_error = over_sites(result, saved[:, 0], error[:, 0])
    if not math.isfinite(mean):
        return ""
    low, high = mean - Z95 * its_error, mean + Z95 * its_error
    interval = f"95 % interval {percent(low)} to {percent(high)} of the loss of averaging"
    whose = "sites' own fits, each at its own site"
    told, n = int(np.isfinite(saved[:, 0]).sum()), len(result.sites)
    where = "" if told == n else f" (at the {told} of {plural(n, 'site')} that tell)"
    if low > 0:
        return (
            f"It predicts better than the {whose}{where}: they lose {percent(mean)} more "
            f"({interval})."
        )
    if high < 0:
        return (
            f"It predicts worse than the {whose}{where}: they lose {percent(-mean)} less (95 % "
            f"interval {percent(-high)} to {percent(-low)} of the loss of averaging). The sites "
            "differ in more than their rows, and one fit for all of them may not be what is wanted."
        )
    return (
        f"Beside the {whose}{where}, there is no clear difference: they lose {percent(abs(mean))} "
        f"{'more' if mean >= 0 else 'less'} ({interval}, above 0 where they lose more)."
    )


def _exact(run: Run, result: ReferenceAveragingResult) -> str:
    """Where sums of cross-products give the pooled fit, say so, with what they would cost."""
    if not result.least_squares:
        return ""
    p = len(result.feature_names)
    needed = BYTES_OF_A_NUMBER * len(result.sites) * (p + 2) * (p + 3) // 2
    sent = sum(line.bytes for line in run.transcript if line.direction == "from-site")
    if sent and needed > sent:
        return ""
    words = (
        f"There is an exact way: the learner is linear in {plural(p, 'column')} with squared loss, "
        "so the cross-products of columns and response, summed over the sites, give the fit of all "
        f"rows itself, in one round and about {size(needed)} in all"
    )
    if sent:
        words += f" in place of {size(sent)}"
    if result.reference_kind == "moments":
        words += "; those of the columns were sent anyway, to draw the reference rows"
    return words + "."


def _round_name(k: int) -> str:
    return "plain averaging" if k == 0 else str(k)


# --------------------------------------------------------------------------- limits


def _limits(result: ReferenceAveragingResult) -> list[str]:
    known = [
        "Near the fit of all rows is not always better. Where rows are spread over the sites at "
        "random, the plain average is close to it already, and it takes noise away: where the fit "
        "of all rows is overfitted, by a weak penalty on many columns, averaging predicts better.",
        "The rounds aim at one fit for all sites. Where the relationship itself differs between "
        "sites, that is the wrong target: meta clustering asks whether it does.",
        "The round is chosen by the same held-out rows that its gain is told on, so the gain of "
        "the best of many rounds is a little too good.",
        "Rounds lead to the fit of all rows only for a learner that minimises a loss plus a "
        "penalty, and only in directions in which the reference rows vary.",
        "The result is an average of fits: no standard errors, no tests, no intervals.",
        "Every round is one more fit of the same rows. What all of them together tell of a row is "
        "not bounded by rules on one of them, and there is no noise.",
        "A site says itself what the rounds are worth on its rows, and sends the predictions it "
        "chooses: one that lies can move the average by its share of the rows.",
    ]
    if result.linear and not result.least_squares:
        known.append(
            "For a linear learner with another loss, sums of gradients and second derivatives over "
            "the sites would reach the fit of all rows exactly, with a few rounds of Newton's "
            "method; where there are few columns that is cheaper than these rounds."
        )
    if result.levels:
        known.append(
            "Probabilities are averaged, so what is returned is not a model of the learner's own "
            "form; predicted probabilities lie closer together than those of a single fit."
        )
    if result.schedule == "asynchronous":
        known.append(
            "Sites do not wait for one another, so another run with the same seed may take them in "
            "another order and stop elsewhere on the way to the same fit."
        )
    if not math.isfinite(float(np.nansum(result.base_loss))) or not measured(result):
        known.append(
            "Without held-out rows nothing guards against rounds that make predictions worse."
        )
    return known


REPORT = ReferenceAveragingReport

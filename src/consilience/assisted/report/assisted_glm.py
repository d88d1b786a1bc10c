"""Report of the assisted GLM: what training with partners gains, and what it told about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import chi2

from consilience.assisted.glm.result import AssistedGLMResult
from consilience.assisted.report import assisted_evidence
from consilience.assisted.report.assisted_evidence import (
    FEW_HELD_OUT,
    asker,
    count,
    ending,
    few,
    gain,
    others,
    penalised,
    signed,
    untrained,
    useless,
)
from consilience.report.run import Run
from consilience.report.sections import (
    Block,
    Headline,
    MethodReport,
    Tone,
    equals,
    number,
    numbers,
    plural,
    site_name,
)

LEVEL = 0.05


class AssistedGLMReport(MethodReport):
    """Words, tables and figures on the joint model."""

    def headline(self, run: Run) -> Headline:
        """Say what joint training gains on records that took no part in it."""
        result = _result(run)
        if result.followed:
            return Headline(
                f"{count(result.n_new, 'person', 'people').capitalize()} were predicted with the "
                f"columns of {others(result)} and the model of an earlier run; the predictions "
                f"are at {asker(result)}.",
                more=tuple(_what_left(result)),
            )
        text, tone = _verdict(result)
        said = "" if untrained(result) or useless(result) else _in_training(result)
        more = (said, ending(result), *_what_left(result))
        return Headline(text, tone, tuple(m for m in more if m))

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Records, rounds of training, deviance."""
        result = _result(run)
        new = [("people predicted", few(result.n_new))] if result.n_new else []
        if result.followed:
            return [*new, ("model of run", result.followed)]
        facts = [
            ("records in training", few(result.n_records)),
            ("held out", few(result.n_holdout)),
            ("rounds of training", str(result.rounds)),
            *new,
        ]
        if math.isfinite(result.pseudo_r2.get("joint", math.nan)):
            facts.append(("pseudo R2, alone", f"{result.pseudo_r2['alone']:.3f}"))
            facts.append(("pseudo R2, joint", f"{result.pseudo_r2['joint']:.3f}"))
        return facts

    def evidence(self, run: Run) -> Sequence[Block]:
        """Comparison, calibration, coefficients, convergence, predictions."""
        result = _result(run)
        if result.followed:
            return [assisted_evidence.predictions(result)]
        blocks = [assisted_evidence.comparison(result)]
        if assisted_evidence.shows_calibration(result):
            blocks.append(assisted_evidence.calibration(result))
        if len(result.coefficients["name"]):
            blocks.append(assisted_evidence.coefficients(result))
        blocks.append(assisted_evidence.training(result))
        if result.n_new:
            blocks.append(assisted_evidence.predictions(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """Response sent, ranks revealed."""
        result = _result(run)
        return [*([] if result.followed else _response(result)), *_ranks(result)]

    def limits(self, run: Run) -> Sequence[str]:
        """What stage 2 does not protect, and what its figures do not say."""
        return _limits(_result(run))


def _result(run: Run) -> AssistedGLMResult:
    if not isinstance(run.result, AssistedGLMResult):
        raise TypeError("the run is not an assisted GLM")
    return run.result


# --------------------------------------------------------------------------- headline


def _verdict(result: AssistedGLMResult) -> tuple[str, Tone]:
    """Headline and its tone."""
    value, low, high = gain(result)
    whom = others(result)
    if untrained(result):
        return (
            f"No joint model: before the first round a party had revealed as much of its columns "
            f"as it allows. What is said below of a joint model is {asker(result)}'s own.",
            "caution",
        )
    if useless(result):
        return (
            f"The joint model with {whom} is of no use: it fits even the records that it was "
            "trained on worse than a constant.",
            "caution",
        )
    if not math.isfinite(value):
        return (
            f"A joint model with {whom} was fitted, but no record was held out: whether it "
            f"predicts better than {asker(result)}'s own is not known.",
            "caution",
        )
    interval = (
        f"{signed(value)} (95 % interval {signed(low)} to {signed(high)})"
        if math.isfinite(low)
        else f"{signed(value)} (standard error not known)"
    )
    base = f"on {count(result.n_holdout, 'held-out record')}, deviance per record"
    if math.isfinite(low) and low > 0:
        tone: Tone = "good" if result.n_holdout >= FEW_HELD_OUT else "caution"
        less = numbers([value, low, high])
        return (
            f"Training with {whom} predicts better than {asker(result)} alone: {base} is lower by "
            f"{less[0]} (95 % interval {less[1]} to {less[2]}).",
            tone,
        )
    if math.isfinite(high) and high < 0:
        return (
            f"Training with {whom} predicts worse than {asker(result)} alone: {base} changes by "
            f"{_negated(value, low, high)}.",
            "caution",
        )
    return (
        f"No evidence that training with {whom} predicts better than {asker(result)} alone: {base} "
        f"saved {interval}.",
        "plain" if math.isfinite(low) else "caution",
    )


def _in_training(result: AssistedGLMResult) -> str:
    """Whether the deviance of the training records falls by more than chance.

    By the likelihood ratio on the rank of all the partners' columns: with columns that the
    initiator has too, fewer are new, and the p-value is too large rather than too small.
    """
    known = result.family in ("binomial", "poisson") and result.response == "share"
    fall = result.deviance["alone"] - result.deviance["joint"]
    df = sum(result.revealed[p][1] for p in result.partners)
    if not known or penalised(result) or not math.isfinite(fall) or not df:
        return ""
    p = float(chi2.sf(max(fall, 0.0), df))
    what = f"by {number(fall)} with at most {plural(df, 'further coefficient')}"
    if p < LEVEL:
        return (
            f"On the training records the deviance falls {what}, which chance seldom does "
            f"(likelihood ratio, p {equals(p)}, if the model is right)."
        )
    return (
        f"On the training records, too, the deviance falls no more than by chance: {what} "
        f"(likelihood ratio, p {equals(p)})."
    )


def _negated(value: float, low: float, high: float) -> str:
    a, b, c = numbers([-value, -high, -low])
    return f"+{a} (95 % interval +{b} to +{c})"


def _what_left(result: AssistedGLMResult) -> list[str]:
    words = _ranks(result)
    return [*words[:4], *([f"{len(words) - 4} more parties: see below."] if len(words) > 4 else [])]


def _ranks(result: AssistedGLMResult) -> list[str]:
    words = []
    for site, ranks in sorted(result.revealed.items()):
        k, r = (int(v) for v in ranks)
        if r:
            words.append(f"{site_name(site)} has revealed {k} of {r} directions of its columns.")
    return words


def _response(result: AssistedGLMResult) -> list[str]:
    if result.response != "masked":
        return [
            f"The partners received the response itself of every training record: {asker(result)} "
            "chose to share it."
        ]
    epsilon = math.log((1 - result.flip) / result.flip) if 0 < result.flip < 1 else math.nan
    return [
        f"The partners received a masked response: each of the two values was flipped with "
        f"probability {result.flip:g}, once per record (epsilon {number(epsilon)})."
    ]


# --------------------------------------------------------------------------- limits


def _limits(result: AssistedGLMResult) -> list[str]:
    known = [
        "Training is not differentially private. Every message holds an exact value for each "
        "record, and an epsilon spent on the test of a partner does not cover it.",
        "What a message shows is one direction of the sender's column space, for every record. "
        "After as many independent ones as the columns have rank, whoever knows a few values of a "
        "column can work out all of them; before that, a share of about k of r of its variation.",
        "The limit on revealed directions counts directions, not what a reader already knows: "
        "columns known from elsewhere, or shared, make the rest easier to work out.",
    ]
    known.append(
        "A partner gets the others' part of the predictor and knows its own, so it knows what the "
        "joint model predicts for every record."
    )
    if result.response == "masked":
        known.append("The mask hides single responses within its epsilon, not what is predicted.")
    else:
        known.append("The partners know the response of every training record.")
    known += [
        "All parties learn which of their records the others hold too: those that take part.",
        "The model is additive on the scale of the link: effects that arise only from columns of "
        "two parties together are not in it.",
        "Standard errors of the joint model allow for any variance of the response; they do not "
        "allow for a wrong form of the mean.",
        "A party that sends what it did not fit can spoil the joint model; the held-out "
        "comparison shows the loss, not the cause.",
    ]
    if penalised(result):
        known.append("After a penalised fit there are no valid intervals, and none are given.")
    return known


REPORT = AssistedGLMReport

"""Report of the assisted GLM: what training with partners gains, and what it told about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2

from consilience.assisted.glm.result import AssistedGLMResult
from consilience.assisted.report import figures_assisted
from consilience.report.drawing import Z95
from consilience.report.run import Run
from consilience.report.sections import (
    DASH,
    Block,
    Headline,
    MethodReport,
    Picture,
    Table,
    Tone,
    equals,
    listed,
    number,
    numbers,
    p_value,
    percent,
    plural,
    site_name,
)

STOPPED = {
    "converged": "training converged",
    "rounds": "training had used all its rounds and not converged",
    "rank": "training stopped, since a party had revealed as much of its columns as it allows",
    "nothing new": "training ended, since no message held anything new",
}
ACCELERATION = {
    "span": "the initiator refitted its model on its columns and all messages so far",
    "anderson": "the initiator extrapolated from its last predictors (Anderson's method)",
    "none": "the parties fitted in turn, each with the others' part as an offset",
}
STATUS = {
    "identified": "identified",
    "shared": "shared: only the sum over the parties is determined",
    "bounded": "bounded: the error is at most this",
    "not certified": "not certified: no error, since the messages allowed were too few",
    "penalised": "penalised: shrunk on purpose, so no error",
}
EXPLAINED = {
    "shared": "Shared: a partner holds the same column, or one that follows from it. How the "
    "effect is divided between the parties is arbitrary, so no coefficient is given; predictions "
    "are not affected. The constant may be part of such a sum.",
    "bounded": "Bounded: the messages allowed were too few to compute the standard error exactly. "
    "The one given is a bound, too large by the factor at most.",
    "not certified": "Not certified: an exact standard error needs more directions of the "
    "partners' columns than their limits let out, and none is given. Nor is it known then whether "
    "a partner holds the same column: the estimate may be one part of a sum.",
}
INTERVALS = {
    "joint": "joint: the same as the sandwich interval of a model of all columns together",
    "inflated": "inflated: an upper bound, if the variance function is right",
    "paper": "as the source has them: each party's own part, by Bonferroni",
}
FEW_HELD_OUT = 50
LEVEL = 0.05
LIMITS_OF_MESSAGES = (
    "Training is not differentially private. Every message holds an exact value for each "
    "record, and an epsilon spent on the test of a partner does not cover it.",
    "What a message shows is one direction of the sender's column space, for every record. "
    "After as many independent ones as the columns have rank, whoever knows a few values of a "
    "column can work out all of them; before that, a share of about k of r of its variation.",
    "The limit on revealed directions counts directions, not what a reader already knows: "
    "columns known from elsewhere, or shared, make the rest easier to work out.",
    "A partner gets the others' part of the predictor and knows its own, so it knows what the "
    "joint model predicts for every record.",
)
LIMITS_OF_MODELS = (
    "All parties learn which of their records the others hold too: those that take part.",
    "The model is additive on the scale of the link: effects that arise only from columns of "
    "two parties together are not in it.",
    "Standard errors of the joint model allow for any variance of the response; they do not "
    "allow for a wrong form of the mean.",
    "A party that sends what it did not fit can spoil the joint model; the held-out "
    "comparison shows the loss, not the cause.",
)
NO_INTERVALS = "After a penalised fit there are no valid intervals, and none are given."


# --------------------------------------------------------------------------- words


def few(n: int) -> str:
    """Number of records; too few of them are not told."""
    return "a few" if n < 0 else f"{n:,}"


def count(n: int, one: str, many: str = "") -> str:
    """Number and noun; too few are not told."""
    return f"a few {many or one + 's'}" if n < 0 else plural(n, one, many)


def others(result: AssistedGLMResult) -> str:
    """Names of the partners."""
    return listed([site_name(p) for p in result.partners])


def asker(result: AssistedGLMResult) -> str:
    """Name of the initiator."""
    return site_name(result.initiator)


def gain(result: AssistedGLMResult) -> tuple[float, float, float]:
    """Held-out deviance that the joint model saves per record, and its 95 % interval."""
    value = float(result.holdout.get("alone_minus_joint", math.nan))
    error = float(result.holdout.get("error", math.nan))
    return value, value - Z95 * error, value + Z95 * error


def untrained(result: AssistedGLMResult) -> bool:
    """Whether no partner's message came into the model."""
    return result.rounds == 0 and result.stopped == "rank"


def useless(result: AssistedGLMResult) -> bool:
    """Whether the joint model fits the records that it was trained on worse than a constant."""
    return bool(result.deviance["joint"] > result.deviance["null"])


def penalised(result: AssistedGLMResult) -> bool:
    """Whether coefficients are shrunk on purpose."""
    return any(float(v or 0) > 0 for k, v in result.penalty.items() if k.startswith("alpha"))


def signed(value: float) -> str:
    """Write a number with its sign, three digits or so."""
    text = number(abs(value))
    return f"\N{MINUS SIGN}{text}" if value < 0 else text


def minus(text: str) -> str:
    """Write minus signs as such."""
    return text.replace("-", "\N{MINUS SIGN}")


def ending(result: AssistedGLMResult) -> str:
    """Say how training ended, and what was lost."""
    said = STOPPED.get(result.stopped, f"training stopped: {result.stopped}")
    text = f"After {plural(result.rounds, 'round')}, {said}"
    if result.stopped == "rank" and math.isfinite(result.remaining):
        lost = number(float(result.remaining))
        text += f"; one more fit at the partners would still lower the deviance by {lost}"
    return text + "."


# --------------------------------------------------------------------------- evidence


def comparison(result: AssistedGLMResult) -> Block:
    """Deviances in training and on held-out records, with the error of their difference."""
    tables, some = [_deviances(result)], count(result.n_holdout, "record")
    text, warning = [], ""
    if math.isfinite(gain(result)[0]):
        text.append(
            f"{asker(result)}'s own model and the joint one were fitted to the same records and "
            f"tried on {some} that neither had seen."
        )
        tables.append(_held_out(result))
        if result.n_holdout < FEW_HELD_OUT:
            warning = f"Only {some} were held out: the interval is rough."
    else:
        warning = (
            "No record was held out. The joint model fits the training records at least as well "
            "by construction, which says nothing of new ones."
        )
    if result.n_holdout and result.calibration and not shows_calibration(result):
        text.append(
            "No calibration is shown: the held-out records are too few for groups of a size that "
            f"the rules of {asker(result)} let out."
        )
    if result.response == "masked":
        text.append(
            f"{asker(result)}'s own model is fitted to the true response, the joint one to what "
            "the mask leaves: with much masking a partner can cost more than it brings."
        )
    if useless(result):
        warning = (
            "The joint model fits its training records worse than a constant: with a masked "
            "response, there are too few records for the mask; else the fit came to no end. More "
            "records, less masking or a ridge help."
        )
    return Block("Is the joint model better?", tuple(text), warning, tables=tuple(tables))


def _deviances(result: AssistedGLMResult) -> Table:
    names = {"null": "constant only", "alone": f"{asker(result)} alone", "joint": "joint model"}
    rows = []
    with_auc = any(math.isfinite(float(result.auc.get(k, math.nan))) for k in ("alone", "joint"))
    fitted = numbers([float(result.deviance.get(k, math.nan)) for k in names])
    held = numbers([float(result.holdout.get(k, math.nan)) for k in names])
    for i, (key, words) in enumerate(names.items()):
        # a constant explains nothing and ranks nobody
        r2 = float(result.pseudo_r2.get(key, 0.0 if key == "null" else math.nan))
        auc = float(result.auc.get(key, 0.5 if key == "null" else math.nan))
        r2_said = f"{r2:z.3f}" if math.isfinite(r2) else DASH
        auc_said = (f"{auc:.3f}" if math.isfinite(auc) else DASH,) if with_auc else ()
        rows.append((words, fitted[i], r2_said, held[i], *auc_said))
    head = (
        *("model", "deviance, training", "pseudo R2, training", "deviance per held-out record"),
        *(("AUC, held out",) if with_auc else ()),
    )
    note = (
        f"Training: {count(result.n_records, 'record')}. Pseudo R2: share of the constant's "
        "deviance that is gone. On training records the larger model always looks better; what "
        "counts is the held-out column."
    )
    return Table("Deviance", head, tuple(rows), note)


def _held_out(result: AssistedGLMResult) -> Table:
    value, low, high = gain(result)
    error = float(result.holdout["error"])
    less = numbers([value, error, low, high])
    said = "a gain" if low > 0 else "a loss" if high < 0 else "no clear difference"
    row = ("alone less joint", minus(less[0]), less[1], minus(f"{less[2]} to {less[3]}"), said)
    head = ("held-out deviance per record", "saved", "standard error", "95 % interval", "says")
    note = (
        "The error is that of the mean of paired differences, record by record, with both "
        "models as they are: it holds the chance in the held-out records only."
    )
    return Table("Held-out comparison", head, (row,), note)


def shows_calibration(result: AssistedGLMResult) -> bool:
    """Whether two groups of held-out records at least came with their mean response."""
    return any(np.isfinite(t["observed"]).sum() > 1 for t in result.calibration.values())


def calibration(result: AssistedGLMResult) -> Block:
    """Observed against predicted means."""
    text = [
        "The held-out records were sorted by prediction and cut into groups. In each, the mean "
        "prediction should equal the mean response: points on the diagonal."
    ]
    if any(np.isnan(t["observed"]).any() for t in result.calibration.values()):
        text.append("Groups with too few records of a kind are withheld by the initiator's rules.")
    rows, gaps = [], []
    names = {"alone": f"{asker(result)} alone", "joint": "joint model"}
    for key, words in names.items():
        if key not in result.calibration:
            continue
        table = {k: np.asarray(v, dtype=float) for k, v in result.calibration[key].items()}
        pairs = zip(numbers(table["predicted"]), numbers(table["observed"]), strict=True)
        rows += [
            (f"{words}, group {i + 1}", p, o, f"{round(float(table['records'][i])):,}")
            for i, (p, o) in enumerate(pairs)
        ]
        # Mean distance of observed from predicted means, weighted by records.
        gap, n = np.abs(table["predicted"] - table["observed"]), table["records"]
        known = np.isfinite(gap) & (n > 0)
        mean = float(np.average(gap[known], weights=n[known])) if known.any() else math.nan
        gaps.append(f"{words}: mean distance {number(mean)}")
    caption = "Observed against predicted means; the line is perfect calibration."
    if result.family == "binomial":
        caption += " Bars: 95 % intervals of each observed share."
    picture = Picture(
        "calibration",
        figures_assisted.plot_assisted_calibration(result),
        caption,
        f"Points beside a diagonal. {', '.join(gaps)}.",
    )
    head = ("group", "mean prediction", "mean observed", "records")
    table_ = Table("Calibration", head, tuple(rows))
    return Block("Are the predictions calibrated?", tuple(text), picture=picture, folded=(table_,))


def coefficients(result: AssistedGLMResult) -> Block:
    """The initiator's coefficients beside those of its own model."""
    found = result.coefficients
    status = [str(s) for s in found["status"]]
    text = [
        f"Coefficients of {asker(result)}'s columns, beside those of its own model. With a "
        "partner's columns in the model they mean something else: the effect at equal values of "
        "the partner's columns.",
        "The partners' coefficients stay with the partners.",
    ]
    if result.complete and result.response == "share":
        text.append(
            "All directions of the partners' columns are known here, so this is the model of all "
            "columns together, fitted in the end to all records with a response, held-out ones "
            "included."
        )
    text += [words for kind, words in EXPLAINED.items() if kind in status]
    warning = ""
    if penalised(result):
        warning = "The fit is penalised: coefficients are shrunk on purpose, and have no intervals."
    drawn = figures_assisted.shown_coefficients(result)
    caption = (
        "Blue: joint model; orange squares: the initiator alone; bars: 95 % intervals, dotted "
        "where they are bounds. Open circles: no interval can be given."
    )
    if len(drawn) < len(status):
        caption += f" Of {len(status)} coefficients the {len(drawn)} with the largest |z|."
    clear = int(np.sum(np.abs(np.nan_to_num(np.asarray(found["z"], dtype=float))) > Z95))
    picture = Picture(
        "coefficients",
        figures_assisted.plot_assisted_coefficients(result),
        caption,
        f"Dots with intervals for {plural(len(drawn), 'coefficient')}; in the joint model "
        f"{clear} of {len(status)} lie more than {Z95} standard errors from zero. The table below "
        "has the numbers.",
    )
    used = sorted(set(status), key=list(STATUS).index) if set(status) <= set(STATUS) else []
    notes = "; ".join(STATUS[s] for s in used if s != "identified")
    table = _coefficient_table(result, f"{notes[0].upper()}{notes[1:]}." if notes else "")
    return Block("What the model says", tuple(text), warning, picture, (table,))


def _coefficient_table(result: AssistedGLMResult, note: str) -> Table:
    rows = []
    found, alone = result.coefficients, result.alone
    for i, (name, status) in enumerate(zip(found["name"], found["status"], strict=True)):
        estimate, error, z, p, factor = (
            float(found[k][i]) for k in ("estimate", "error", "z", "p", "factor")
        )
        own, said = float(alone["estimate"][i]), str(status)
        inferred = (number(error), minus(f"{z:z.2f}"), p_value(p))
        if said not in figures_assisted.INFERRED:
            inferred = (DASH, DASH, DASH)
        row = (site_name(str(name)), DASH if said == "shared" else signed(estimate), *inferred)
        if said == "bounded" and math.isfinite(factor):
            said += f", factor {factor:.3f}"
        beside = (signed(own) if math.isfinite(own) else DASH, number(float(alone["error"][i])))
        rows.append((*row, said, *beside))
    head = (
        *("column", "joint", "standard error", "z", "p", "status"),
        *("alone", "its standard error"),
    )
    return Table("Coefficients", head, tuple(rows), note)


def training(result: AssistedGLMResult) -> Block:
    """Deviance and change by round, against numbers sent."""
    table = result.rounds_table
    rounds = np.atleast_1d(table["round"])
    how = ACCELERATION.get(result.acceleration, result.acceleration)
    text = [
        "In each round a partner fits its columns to the response, with everybody else's part as "
        "an offset, and sends its part of the predictor: one number for each record. Between "
        f"messages {how}.",
        ending(result),
    ]
    warning = ""
    if result.stopped == "rounds":
        warning = "Training had not converged: the joint model is not yet that of all columns."
    if result.stopped == "rank":
        warning = (
            "The joint model is not the one that all columns together would give: a party's limit "
            "on revealed directions stopped it short."
        )
    if not len(rounds):
        return Block("How training went", tuple(text), warning)
    sent, deviance = (np.asarray(table[k], dtype=float) for k in ("numbers_sent", "deviance"))
    picture = Picture(
        "rounds",
        figures_assisted.plot_assisted_rounds(result),
        "Left: deviance of the joint model after each message, on the response that was trained "
        "on; dashed: the initiator alone, in round 0. "
        "Right: how far the predictor still moved, against all numbers sent so far.",
        f"Falling lines over {plural(result.rounds, 'round')}; the deviance ends at "
        f"{number(float(deviance[-1]))} after {int(sent[-1]):,} numbers.",
    )
    change = np.asarray(table["change"], dtype=float)
    rows = tuple(
        (
            str(int(rounds[i])),
            site_name(str(table["partner"][i])) or "(alone)",
            said,
            f"{change[i]:.1e}" if math.isfinite(change[i]) else DASH,
            f"{int(sent[i]):,}",
        )
        for i, said in enumerate(numbers(deviance))
    )
    head = ("round", "partner", "deviance", "relative change", "numbers sent so far")
    folded = (Table("Every round", head, rows),)
    return Block("How training went", tuple(text), warning, picture, folded=folded)


def predictions(result: AssistedGLMResult) -> Block:
    """People without a known response."""
    found = result.intervals
    kind = str(found.get("kind", ""))
    text = [
        f"The mean response of {count(result.n_new, 'person', 'people')} without a known response "
        f"was predicted. The predictions stay at {asker(result)}."
    ]
    warning = {
        "paper": "Intervals from each party's own part are not valid in general: where the "
        "parties' columns are correlated they can be far too narrow.",
        "inflated": "These are bounds only if the variance function of the family is right.",
    }.get(kind, "")
    n, certified = result.n_new, int(found.get("certified", 0))
    bounded = int(found.get("bounded", 0))
    if kind not in INTERVALS or not (certified or bounded):
        text.append(
            "There are no intervals: none were asked for, none are valid after a penalised fit, or "
            "a party's limit on revealed directions left out what they need."
        )
        return Block("New people", tuple(text))
    row = (
        INTERVALS[kind],
        percent(float(found.get("level", math.nan)), 0),
        few(certified),
        few(bounded),
        few(n - certified - bounded) if min(n, certified, bounded) >= 0 else DASH,
        number(float(found.get("mean_width", math.nan))),
    )
    head = ("intervals", "level", "certified", "bounded", "none", "mean width")
    note = (
        "Intervals of the mean response, not of single responses. Certified: computed exactly. "
        "Bounded: wider than that by what the messages allowed could not settle."
    )
    table = Table("Intervals for new people", head, (row,), note)
    return Block("New people", tuple(text), warning, tables=(table,))


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
            return [predictions(result)]
        blocks = [comparison(result)]
        if shows_calibration(result):
            blocks.append(calibration(result))
        if len(result.coefficients["name"]):
            blocks.append(coefficients(result))
        blocks.append(training(result))
        if result.n_new:
            blocks.append(predictions(result))
        return blocks

    def handling(self, run: Run) -> Sequence[str]:
        """Response sent, ranks revealed."""
        result = _result(run)
        if result.followed:
            return _ranks(result)
        if result.response == "masked":
            flip = result.flip
            # Warner 1965
            epsilon = math.log((1 - flip) / flip) if 0 < flip < 1 else math.nan
            words = (
                "The partners received a masked response: each of the two values was flipped with "
                f"probability {flip:g}, once per record (epsilon {number(epsilon)})."
            )
        else:
            words = (
                "The partners received the response itself of every training record: "
                f"{asker(result)} chose to share it."
            )
        return [words, *_ranks(result)]

    def limits(self, run: Run) -> Sequence[str]:
        """What stage 2 does not protect, and what its figures do not say."""
        result = _result(run)
        masked = result.response == "masked"
        return [
            *LIMITS_OF_MESSAGES,
            "The mask hides single responses within its epsilon, not what is predicted."
            if masked
            else "The partners know the response of every training record.",
            *LIMITS_OF_MODELS,
            *([NO_INTERVALS] if penalised(result) else []),
        ]


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
        more = numbers([-value, -high, -low])
        return (
            f"Training with {whom} predicts worse than {asker(result)} alone: {base} changes by "
            f"+{more[0]} (95 % interval +{more[1]} to +{more[2]}).",
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
    # twice the log likelihood ratio is about chi-squared
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


def _what_left(result: AssistedGLMResult) -> list[str]:
    words = _ranks(result)
    return [*words[:4], *([f"{len(words) - 4} more parties: see below."] if len(words) > 4 else [])]


def _ranks(result: AssistedGLMResult) -> list[str]:
    return [
        f"{site_name(site)} has revealed {int(k)} of {int(r)} directions of its columns."
        for site, (k, r) in sorted(result.revealed.items())
        if int(r)
    ]


REPORT = AssistedGLMReport

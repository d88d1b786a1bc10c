"""Evidence of the assisted GLM, block by block: comparison, calibration, coefficients, training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.assisted.glm.result import AssistedGLMResult
from consilience.assisted.report import figures_assisted
from consilience.report.drawing import Z95
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
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
INTERVALS = {
    "joint": "joint: the same as the sandwich interval of a model of all columns together",
    "inflated": "inflated: an upper bound, if the variance function is right",
    "paper": "as the source has them: each party's own part, by Bonferroni",
}
FEW_HELD_OUT = 50


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
    value = gain(result)[0]
    tables = [_deviances(result)]
    text = [
        f"{asker(result)}'s own model and the joint one were fitted to the same records and tried "
        f"on {count(result.n_holdout, 'record')} that neither had seen."
    ]
    warning = ""
    if not math.isfinite(value):
        text = []
        warning = (
            "No record was held out. The joint model fits the training records at least as well "
            "by construction, which says nothing of new ones."
        )
    else:
        tables.append(_held_out(result))
        if result.n_holdout < FEW_HELD_OUT:
            some = count(result.n_holdout, "record")
            warning = f"Only {some} were held out: the interval is rough."
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
        r2 = float(result.pseudo_r2.get(key, 0.0 if key == "null" else math.nan))
        auc = float(result.auc.get(key, 0.5 if key == "null" else math.nan))
        rows.append(
            (
                words,
                fitted[i],
                f"{r2:z.3f}" if math.isfinite(r2) else DASH,
                held[i],
                *([f"{auc:.3f}" if math.isfinite(auc) else DASH] if with_auc else []),
            )
        )
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
    row = (
        "alone less joint",
        minus(less[0]),
        less[1],
        minus(f"{less[2]} to {less[3]}"),
        said,
    )
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
    text = (
        "The held-out records were sorted by prediction and cut into groups. In each, the mean "
        "prediction should equal the mean response: points on the diagonal.",
        *(
            ["Groups with too few records of a kind are withheld by the initiator's rules."]
            if any(np.isnan(t["observed"]).any() for t in result.calibration.values())
            else []
        ),
    )
    rows = []
    names = {"alone": f"{asker(result)} alone", "joint": "joint model"}
    for key, words in names.items():
        table = result.calibration.get(key)
        if table is None:
            continue
        predicted = numbers(np.asarray(table["predicted"], dtype=float))
        observed = numbers(np.asarray(table["observed"], dtype=float))
        rows += [
            (f"{words}, group {i + 1}", p, o, f"{round(float(n)):,}")
            for i, (p, o, n) in enumerate(
                zip(predicted, observed, np.asarray(table["records"]), strict=True)
            )
        ]
    caption = "Observed against predicted means; the line is perfect calibration."
    if result.family == "binomial":
        caption += " Bars: 95 % intervals of each observed share."
    gaps = {key: _miscalibration(result.calibration[key]) for key in result.calibration}
    said = ", ".join(f"{names.get(k, k)}: mean distance {number(g)}" for k, g in gaps.items())
    picture = Picture(
        "calibration",
        figures_assisted.plot_assisted_calibration(result),
        caption,
        f"Points beside a diagonal. {said}.",
    )
    head = ("group", "mean prediction", "mean observed", "records")
    return Block(
        "Are the predictions calibrated?",
        text,
        picture=picture,
        folded=(Table("Calibration", head, tuple(rows)),),
    )


def _miscalibration(table: Any) -> float:
    """Mean distance of observed from predicted means, weighted by records."""
    gap = np.abs(np.asarray(table["predicted"]) - np.asarray(table["observed"]))
    n = np.asarray(table["records"], dtype=float)
    known = np.isfinite(gap) & (n > 0)
    return float(np.average(gap[known], weights=n[known])) if known.any() else math.nan


def coefficients(result: AssistedGLMResult) -> Block:
    """The initiator's coefficients beside those of its own model."""
    found, alone = result.coefficients, result.alone
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
    if "shared" in status:
        text.append(
            "Shared: a partner holds the same column, or one that follows from it. How the effect "
            "is divided between the parties is arbitrary, so no coefficient is given; predictions "
            "are not affected. The constant may be part of such a sum."
        )
    if "bounded" in status:
        text.append(
            "Bounded: the messages allowed were too few to compute the standard error exactly. "
            "The one given is a bound, too large by the factor at most."
        )
    if "not certified" in status:
        text.append(
            "Not certified: an exact standard error needs more directions of the partners' columns "
            "than their limits let out, and none is given. Nor is it known then whether a partner "
            "holds the same column: the estimate may be one part of a sum."
        )
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
    table = _coefficient_table(found, alone, status)
    if notes:
        table = Table(table.caption, table.head, table.rows, f"{notes[0].upper()}{notes[1:]}.")
    return Block("What the model says", tuple(text), warning, picture, (table,))


def _coefficient_table(found: Any, alone: Any, status: Sequence[str]) -> Table:
    rows = []
    for i, name in enumerate(found["name"]):
        shared, bare = status[i] == "shared", status[i] not in ("identified", "bounded")
        estimate, error = (float(found[k][i]) for k in ("estimate", "error"))
        factor = float(found["factor"][i])
        own, own_error = float(alone["estimate"][i]), float(alone["error"][i])
        said = status[i]
        if said == "bounded" and math.isfinite(factor):
            said += f", factor {factor:.3f}"
        rows.append(
            (
                site_name(str(name)),
                DASH if shared else signed(estimate),
                DASH if bare else number(error),
                DASH if bare else minus(f"{float(found['z'][i]):z.2f}"),
                DASH if bare else p_value(float(found["p"][i])),
                said,
                signed(own) if math.isfinite(own) else DASH,
                number(own_error),
            )
        )
    head = (
        *("column", "joint", "standard error", "z", "p", "status"),
        *("alone", "its standard error"),
    )
    return Table("Coefficients", head, tuple(rows))


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
    sent = np.asarray(table["numbers_sent"], dtype=float)
    picture = Picture(
        "rounds",
        figures_assisted.plot_assisted_rounds(result),
        "Left: deviance of the joint model after each message, on the response that was trained "
        "on; dashed: the initiator alone, in round 0. "
        "Right: how far the predictor still moved, against all numbers sent so far.",
        f"Falling lines over {plural(result.rounds, 'round')}; the deviance ends at "
        f"{number(float(np.asarray(table['deviance'], dtype=float)[-1]))} after "
        f"{int(sent[-1]):,} numbers.",
    )
    change = [float(c) for c in np.asarray(table["change"], dtype=float)]
    rows = tuple(
        (
            str(int(r)),
            site_name(str(p)) or "(alone)",
            d,
            f"{c:.1e}" if math.isfinite(c) else DASH,
            f"{int(s):,}",
        )
        for r, p, d, c, s in zip(
            rounds,
            table["partner"],
            numbers(np.asarray(table["deviance"], dtype=float)),
            change,
            sent,
            strict=True,
        )
    )
    head = ("round", "partner", "deviance", "relative change", "numbers sent so far")
    return Block(
        "How training went",
        tuple(text),
        warning,
        picture,
        folded=(Table("Every round", head, rows),),
    )


def predictions(result: AssistedGLMResult) -> Block:
    """People without a known response."""
    found = result.intervals
    kind = str(found.get("kind", ""))
    text = [
        f"The mean response of {count(result.n_new, 'person', 'people')} without a known response "
        f"was predicted. The predictions stay at {asker(result)}.",
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

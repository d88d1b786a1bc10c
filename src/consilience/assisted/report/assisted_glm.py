"""Report of the assisted GLM: what training with partners gains, and what it told about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import chi2

from consilience.assisted.glm.result import AssistedGLMResult
from consilience.assisted.report import figures_assisted
from consilience.report import sections
from consilience.report.charts import minus
from consilience.report.sections import DASH, Run, TemplateReport, number, numbers, site_name

Row = tuple[str, ...]
TOLD = {
    "opened": ("all of its columns, at once", "nothing"),
    "fitted": ("its part of the predictor", "all of its columns, and the response"),
    "turns": ("one direction a round", "one direction a round, and the response"),
    "earlier": ("no new direction", "nothing"),
}
"""By course: what the partner told, and what it was told."""


def few(n: int) -> str:
    """Number of records; too few of them are not told."""
    return "a few" if n < 0 else f"{n:,}"


def signed(value: float) -> str:
    """Write a number with its sign, three digits or so."""
    return ("\N{MINUS SIGN}" if value < 0 else "") + number(abs(value))


def known(value: float, form: str) -> str:
    """Write a number in some form; a dash for what is not known."""
    return f"{value:{form}}" if math.isfinite(value) else DASH


class AssistedGLMReport(TemplateReport[AssistedGLMResult]):
    """Words, tables and figures on the joint model."""

    kind = AssistedGLMResult

    def context(self, result: AssistedGLMResult, run: Run) -> dict[str, Any]:
        """What is found out before anything is said, and the rows of tables."""
        value, error = (
            float(result.holdout.get(k, math.nan)) for k in ("alone_minus_joint", "error")
        )
        low, high = value - result.gain_reach * error, value + result.gain_reach * error
        found = {
            "asker": site_name(result.initiator),
            "others": sections.listed([site_name(p) for p in result.partners]),
            "figures": figures_assisted,
            "isfinite": math.isfinite,
            "signed": signed,
            "few": few,
            "new_row": _new_row(result),
            "ranks": [
                (site, int(k), int(r)) for site, (k, r) in sorted(result.revealed.items()) if r
            ],
            # coefficients that are shrunk on purpose
            "penalised": any(v > 0 for k, v in result.penalty.items() if k.startswith("alpha")),
            # Warner 1965
            "epsilon": math.log((1 - result.flip) / result.flip) if result.flip else math.nan,
        }
        if result.followed:
            return found
        observed = [np.asarray(t["observed"]) for t in result.calibration.values()]
        return found | {
            "gain": (value, low, high),
            "deviance_rows": _deviances(result),
            "held_out_row": _held_out(value, error, low, high),
            # no partner's message came into the model
            "untrained": result.untrained,
            # it fits the records that it was trained on worse than a constant
            "useless": result.deviance["joint"] > result.deviance["null"],
            "chance": _chance(result),
            # two groups of held-out records at least came with their mean response
            "calibrated": any(np.isfinite(o).sum() > 1 for o in observed),
            "withheld": any(np.isnan(o).any() for o in observed),
            "groups": _groups(result),
            "status": [str(s) for s in result.own_coefficients["status"]],
            "told_rows": [
                (site_name(p), *TOLD.get(course, (DASH, DASH)))
                for p, course in sorted(result.courses.items())
            ],
            "coefficients": _coefficients(result),
            "limits_if": _limits_if(result),
            "clear": int(
                (np.abs(np.nan_to_num(result.own_coefficients["z"])) > result.reach).sum()
            ),
            "rounds": _rounds(result),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Records, rounds of training, deviance."""
        result = self.read(run)
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
            facts += [(f"pseudo R2, {k}", f"{result.pseudo_r2[k]:.3f}") for k in ("alone", "joint")]
        return facts


def _chance(result: AssistedGLMResult) -> tuple[float, int, float] | None:
    """Fall of the training records' deviance, at most so many coefficients, and its p-value.

    By the likelihood ratio on the rank of all the partners' columns: with columns that the
    initiator has too, fewer are new, and the p-value is too large rather than too small.
    """
    fall = result.deviance["alone"] - result.deviance["joint"]
    df = sum(result.revealed[p][1] for p in result.partners)
    if result.n_clusters:  # records of a cluster are not independent
        return None
    if result.family not in ("binomial", "poisson") or result.response == "masked":
        return None
    # twice the log likelihood ratio is about chi-squared
    return (fall, df, float(chi2.sf(max(fall, 0.0), df))) if math.isfinite(fall) and df else None


def _deviances(result: AssistedGLMResult) -> list[Row]:
    """Model by model; a constant explains nothing and ranks nobody."""
    asker = site_name(result.initiator)
    names = {"null": "constant only", "alone": f"{asker} alone", "joint": "joint model"}
    columns = [
        numbers([float(of.get(k, math.nan)) for k in names])
        for of in (result.deviance, result.holdout)
    ]
    r2, auc = (
        {k: float(of.get(k, math.nan)) for k in names} | {"null": chance}
        for of, chance in ((result.pseudo_r2, 0.0), (result.auc, 0.5))
    )
    columns.insert(1, tuple(known(v, "z.3f") for v in r2.values()))
    if math.isfinite(auc["alone"]) or math.isfinite(auc["joint"]):
        columns.append(tuple(known(v, ".3f") for v in auc.values()))
    return list(zip(names.values(), *columns, strict=True))


def _held_out(value: float, error: float, low: float, high: float) -> Row:
    said = "a gain" if low > 0 else "a loss" if high < 0 else "no clear difference"
    saved, error_said, *ends = numbers([value, error, low, high])
    return ("alone less joint", minus(saved), error_said, minus(" to ".join(ends)), said)


def _groups(result: AssistedGLMResult) -> tuple[list[Row], list[str]]:
    """Predicted and observed means by group, and how far they lie apart."""
    rows: list[Row] = []
    gaps = []
    names = {"alone": f"{site_name(result.initiator)} alone", "joint": "joint model"}
    for key in (k for k in names if k in result.calibration):
        table = {k: np.asarray(v, dtype=float) for k, v in result.calibration[key].items()}
        pairs = zip(numbers(table["predicted"]), numbers(table["observed"]), strict=True)
        rows += [
            (f"{names[key]}, group {i + 1}", p, o, f"{round(float(table['records'][i])):,}")
            for i, (p, o) in enumerate(pairs)
        ]
        # mean distance of observed from predicted means, weighted by records
        gap, n = np.abs(table["predicted"] - table["observed"]), table["records"]
        some = np.isfinite(gap) & (n > 0)
        mean = float(np.average(gap[some], weights=n[some])) if some.any() else math.nan
        gaps.append(f"{names[key]}: mean distance {number(mean)}")
    return rows, gaps


def _coefficients(result: AssistedGLMResult) -> list[Row]:
    rows: list[Row] = []
    found, alone = result.own_coefficients, result.alone
    for i, (name, status) in enumerate(zip(found["name"], found["status"], strict=True)):
        estimate, error, z, p, factor = (
            float(found[k][i]) for k in ("estimate", "error", "z", "p", "factor")
        )
        own, said = float(alone["estimate"][i]), str(status)
        inferred = (number(error), minus(f"{z:z.2f}"), sections.p_value(p))
        if said not in figures_assisted.INFERRED:
            inferred = (DASH, DASH, DASH)
        row = (site_name(str(name)), DASH if said == "shared" else signed(estimate), *inferred)
        if said == "bounded" and math.isfinite(factor):
            said += f", factor {factor:.3f}"
        beside = (signed(own) if math.isfinite(own) else DASH, number(float(alone["error"][i])))
        rows.append((*row, said, *beside))
    return rows


def _limits_if(result: AssistedGLMResult) -> list[Row]:
    """Coefficients whose errors depend on what is hidden, and on how much of it."""
    if not (0 <= result.correlation < 1 and result.bounded):
        return []
    found, least = result.limits_if(), result.own_coefficients["least"]
    return [
        (
            site_name(name),
            signed(estimate),
            number(float(error)),
            f"{signed(low)} to {signed(high)}",
            DASH if zero >= 1 else f"{zero:.2f}",
        )
        for (name, estimate, low, high, zero), error in zip(
            found.itertuples(index=False), least, strict=True
        )
        if math.isfinite(low)
    ]


def _rounds(result: AssistedGLMResult) -> list[Row]:
    table = {k: np.atleast_1d(v) for k, v in result.rounds_table.items()}
    return [
        (
            f"{table['round'][i]:.0f}",
            site_name(str(table["partner"][i])) or "(alone)",
            deviance,
            known(float(table["change"][i]), ".1e"),
            f"{int(table['numbers_sent'][i]):,}",
        )
        for i, deviance in enumerate(numbers(table["deviance"]))
    ]


def _new_row(result: AssistedGLMResult) -> Row | None:
    """Intervals of new people, but for what they are."""
    found, n = result.intervals, result.n_new
    certified, bounded = (int(found.get(k, 0)) for k in ("certified", "bounded"))
    if not (certified or bounded):
        return None
    return (
        sections.percent(float(found.get("level", math.nan)), 0),
        few(certified),
        few(bounded),
        few(n - certified - bounded) if min(n, certified, bounded) >= 0 else DASH,
        number(float(found.get("mean_width", math.nan))),
    )


REPORT = AssistedGLMReport

"""Report of the assistance test: is a partner of use, at what price, and could it be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.assisted.report import figures_assisted
from consilience.assisted.report.figures_assisted import KINDS, power_at, power_axis, tested_kinds
from consilience.assisted.test import AssistanceTestResult
from consilience.report.sections import (
    DASH,
    Run,
    TemplateReport,
    equals,
    listed,
    numbers,
    p_value,
    percent,
    site_name,
)

ENOUGH_POWER = 0.8


class AssistanceTestReport(TemplateReport[AssistanceTestResult]):
    """Words, tables and figures on whether partners are of use."""

    kind = AssistanceTestResult

    def context(self, result: AssistanceTestResult, run: Run) -> dict[str, Any]:
        """Who is of use, what could have been seen, and the rows of tables."""
        p = {q: _combined(result, q) for q in result.partners}
        tested = [q for q in p if math.isfinite(p[q])]
        kinds, powers = tested_kinds(result), {q: power_at(result, q) for q in p}
        found = {q: [(f, c) for f, c in powers[q] if math.isfinite(c)] for q in p}
        most = {q: max(c for _, c in found[q]) for q in p if found[q]}

        def p_values(partners: Sequence[str]) -> str:
            said = [f"p {equals(p[q])}" for q in partners]
            alike = len(said) > 1 and len(set(said)) == 1
            return f"{said[0]} each" if alike else listed(said)

        return {
            "ENOUGH": ENOUGH_POWER,
            "figures": figures_assisted,
            "names": lambda partners: listed([site_name(q) for q in partners]),
            "p_values": p_values,
            "name": KINDS.get(result.test, result.test),
            "untested": [q for q in p if q not in tested],
            "useful": [q for q in tested if result.useful.get(q)],
            "not_useful": [q for q in tested if not result.useful.get(q)],
            # of no use, and hardly any effect of the grid would have been found
            "weak": [q for q in most if most[q] < ENOUGH_POWER and not result.useful.get(q)],
            "found": found,
            "noisy": [q for q in p if result.epsilon.get(q) is not None],
            "kinds": [KINDS[k] for k in kinds],
            "least": min((_combined(result, q, k) for q in p for k in kinds), default=math.nan),
            "tests": _tests(result, kinds),
            "draws": _draws(result, kinds),
            "powered": [q for q in p if power_axis(result, q)[2].size],
            "powers": [(site_name(q), f"{f:g}", percent(c, 0)) for q in p for f, c in powers[q]],
            "prices": _prices(result),
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Records, directions, draws, and the combined p-value of a single partner."""
        result = self.read(run)
        facts = [
            ("records in common", f"{result.n_records:,}"),
            ("directions sent in each draw", str(result.n_directions)),
            ("draws", str(result.n_draws)),
        ]
        if len(result.partners) == 1:
            p = _combined(result, result.partners[0])
            facts.append((f"p ({KINDS.get(result.test, result.test)} test)", p_value(p)))
        return facts


def _combined(result: AssistanceTestResult, partner: str, kind: str = "") -> float:
    test = result.tests.get(partner, {}).get(kind or result.test, {})
    return float(test.get("combined", math.nan))


def _tests(result: AssistanceTestResult, kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """By partner and kind: statistic, degrees of freedom and p-value."""
    rows = []
    for partner in result.partners:
        for kind in (k for k in kinds if k in result.tests[partner]):
            test = result.tests[partner][kind]
            p = float(test["combined"])
            ends = (_range(np.asarray(test[k], dtype=float)) for k in ("statistic", "df"))
            said = DASH if not math.isfinite(p) else "yes" if p < result.level else "no"
            name = KINDS[kind] + (" (decides)" if kind == result.test else "")
            rows.append((site_name(partner), name, *ends, p_value(p), said))
    return rows


def _range(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return DASH
    return " to ".join(dict.fromkeys((f"{known.min():.4g}", f"{known.max():.4g}")))


def _draws(result: AssistanceTestResult, kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """p-values of every draw, where there are several."""
    rows = []
    for partner in result.partners if result.n_draws > 1 else ():
        p = {k: np.atleast_1d(test["p"]) for k, test in result.tests[partner].items()}
        for d in range(max((len(p[k]) for k in kinds if k in p), default=0)):
            cells = [p_value(float(p[k][d])) if k in p else DASH for k in kinds]
            rows.append((f"{site_name(partner)}, draw {d + 1}", *cells))
    return rows


def _prices(result: AssistanceTestResult) -> list[tuple[str, ...]]:
    """What each partner spent."""
    spent = {p: result.epsilon.get(p) for p in result.partners}
    loose, scale = (
        numbers([math.nan if spent[p] is None else of[p] for p in spent])
        for of in (result.loose_epsilon, result.scale)
    )
    return [
        (
            site_name(p),
            "no noise" if epsilon is None else f"{epsilon:.4g}",
            loose[i],
            scale[i],
            percent(float(result.reliability.get(p, math.nan)), 0),
            f"{int(result.revealed.get(p, 0))} of {int(result.n_columns.get(p, 0))}",
        )
        for i, (p, epsilon) in enumerate(spent.items())
    ]


REPORT = AssistanceTestReport

"""Report of a description; its sentences stand in ``describe.j2``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from consilience.describe.protocol.result import ALL, NOTABLE, DescribeResult, indented
from consilience.describe.report import figures_describe as figures
from consilience.report.charts import short
from consilience.report.run import Run
from consilience.report.sections import number, p_value, percent, site_name
from consilience.report.words import TemplateReport

MOST_SAID = 6
"""Sentences on curves that the answer has."""
SHOWN = 6
"""Sites with a column of their own in Table 1; of more the page shows the pooled column."""


class DescribeReport(TemplateReport[DescribeResult]):
    """Words, Table 1 and figures on a description."""

    kind = DescribeResult

    def context(self, result: DescribeResult, run: Run) -> dict[str, Any]:
        """Rows of tables, and names that fit a line."""
        frame = result.to_frame()
        heads = list(frame.columns)
        if len(result.sites) > SHOWN:
            heads = [head for head in heads if head not in result.sites]
        found = [(*result.largest(name), name, *result.sites_test(name)) for name in result.columns]
        told = sorted((one for one in found if np.isfinite(one[0])), key=lambda one: -one[0])
        tests = result.tests if result.pairs else None
        missing = [(name, result.missing(name)) for name in result.columns]
        return {
            "heads": ["", *(head if head == ALL else site_name(head) for head in heads)],
            "lines": [
                (_line(name), *map(str, line))
                for name, line in zip(frame.index, frame[heads].to_numpy(), strict=True)
            ],
            "notable": [short(name, 40) for name in result.differing],
            "compared": len(told),
            "bound": NOTABLE,
            "differences": [
                (
                    short(name, 40),
                    number(size),
                    site_name(a),
                    site_name(b),
                    f"{test} {number(statistic)}",
                    p_value(p),
                )
                for size, a, b, name, test, statistic, p in told
            ],
            "tests": []
            if tests is None
            else [
                (
                    f"{short(t['first'], 25)} and {short(t['second'], 25)}",
                    t["test"],
                    number(t["statistic"]),
                    f"{t['df']:,}",
                    p_value(t["p_value"]),
                    number(t["Cramér's V"]),
                )
                for _, t in tests.iterrows()
                if t["df"]
            ],
            "missing": [
                (
                    short(name, 40),
                    f"{int(np.nansum(rows)):,}",
                    percent(float(np.nansum(rows) / result.n[~np.isnan(rows)].sum())),
                )
                for name, rows in missing
                if np.nansum(rows) > 0
            ],
            "binned": figures.binned(result),
            "of_curves": [
                sentence for i in range(len(result.curves)) for sentence in result.said_of_curve(i)
            ][:MOST_SAID],
            "drawn": figures.drawn_curves(result),
            "curve_names": [
                f"{short(time, 30)} until {short(event, 30)}"
                + "".join(f", by {short(name, 30)}" for name in by)
                for time, event, *by in result.curves
            ],
            "log_rank": [
                (
                    f"{short(t['time'], 25)} until {short(t['event'], 25)}",
                    _compared(t),
                    f"{t['events']:,.0f}",
                    number(t["statistic"]),
                    f"{t['df']:,}",
                    p_value(t["p_value"]),
                )
                for _, t in result.log_rank.iterrows()
                if t["df"]
            ]
            if result.curves
            else [],
            "medians": list(_medians(result)),
            "plot_curves": figures.plot_curves,
            "hidden": [short(sentence, 300) for sentence in result.withheld()],
            "plot_distributions": figures.plot_distributions,
            "plot_differences": figures.plot_differences,
            "cut": len(result.sites) > SHOWN,
            "n_pairs": math.comb(len(result.sites), 2),
            "most_pairs": figures.MOST_PAIRS,
        }

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Rows, sites and columns."""
        result = self.read(run)
        return (
            ("rows", f"{int(result.n.sum()):,}"),
            ("columns of numbers", f"{len(result.number_names):,}"),
            ("columns of categories", f"{len(result.level_names):,}"),
        )


def _compared(test: Any) -> str:
    groups = short(test["groups"], 25)
    if test["test"] == "sites":
        return f"sites, within {groups}" if groups else "sites"
    return groups + (" within sites" if test["test"] == "within sites" else ", all rows as one")


def _medians(result: DescribeResult) -> Iterator[tuple[str, ...]]:
    """Rows and medians of each curve, over the sites that tell it."""
    for i, (time, event, *by) in enumerate(result.curves):
        told = ~np.isnan(result.ended[i]).all(axis=(1, 2, 3))
        for k, group in enumerate(result.groups(i)):
            cells, middle = result.ended[i][told, k], result.curve(i, group).median()
            bounds = f"{middle.low:.4g} to {middle.high:.4g}"
            yield (
                f"{short(time, 25)} until {short(event, 25)}",
                short(f"{by[0]}: {group}", 40) if by else "all",
                f"{told.sum():,}",
                f"{np.nansum(cells):,.0f}",
                f"{np.nansum(cells[:, 0]):,.0f}",
                "not reached" if np.isnan(middle.value) else f"{middle.value:.4g}",
                bounds if np.isfinite(middle.high) else f"above {middle.low:.4g}",
            )


def _line(name: str) -> str:
    """Head of a line of Table 1: of a long name the end goes, not what it is a line of."""
    column, comma, what = indented(name).rpartition(", ")
    return f"{short(column, 34)}{comma}{short(what, 40)}"


REPORT = DescribeReport

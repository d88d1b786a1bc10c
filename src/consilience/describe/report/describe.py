"""Report of a description; its sentences stand in ``describe.j2``.

Figures of a description: distributions, curves of times, and in which columns sites differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.arrays import FloatArray
from consilience.describe.kernels import below
from consilience.describe.protocol.result import ALL, NOTABLE, DescribeResult, indented
from consilience.report import charts
from consilience.report.charts import short
from consilience.report.sections import Run, TemplateReport, number, p_value, percent, site_name

MOST = 40
"""Columns of a figure; the page has a table of all."""
_PANELS = 24
_CURVES = 6
MOST_PAIRS = 300
"""Pairs of sites up to which each has a mark; of more, shares of the pairs have."""
_NAMED = len(charts.CLASS_COLOURS)


def common_bins(result: Any, column: str) -> tuple[FloatArray, FloatArray]:
    """Edges that all sites with bins of a column tell, and rows from one to the next.

    The outer bins come first and last; nothing where no site tells bins.
    """
    lines = [line for line in result.bin_counts.get(column, ()) if not np.isnan(line).all()]
    if not lines:
        return np.empty(0), np.empty(0)
    told = [below(result.edges[column], line) for line in lines]
    shared = sorted(set.intersection(*(set(cuts.tolist()) for cuts, _ in told)))
    edges = np.asarray(shared, dtype=float)
    under = sum(rows[np.isin(cuts, edges)] for cuts, rows in told)
    total = sum(float(np.nansum(line)) for line in lines)
    return edges, np.diff(np.concatenate([[0.0], np.asarray(under, dtype=float), [total]]))


def binned(result: Any) -> list[str]:
    """Numbers with bins of which at least one has two edges."""
    return [name for name in result.number_names if len(common_bins(result, name)[0]) > 1]


def plot_distributions(result: Any) -> Figure:
    """Draw numbers over all sites as histograms, and each site as a line.

    Parameters
    ----------
    result : DescribeResult

    Returns
    -------
    matplotlib.figure.Figure
        Shares of rows by unit of the column. What lies beyond the outer edges is not drawn: how far
        it reaches is not known.
    """
    names = binned(result)[:_PANELS]
    named = len(result.sites) <= _NAMED
    with charts.style():
        fig, axes = charts.panels(max(len(names), 1), 1.0 + 1.7 * -(-max(len(names), 1) // 3), 3)
        for ax, name in zip(axes, names, strict=False):
            edges, rows = common_bins(result, name)
            heights = rows[1:-1] / rows.sum() / np.diff(edges)
            ax.stairs(heights, edges, fill=True, color=charts.RULE, label="all sites")
            for i, (site, line) in enumerate(
                zip(result.sites, result.bin_counts[name], strict=True)
            ):
                if result.masked or np.isnan(line).all():
                    continue
                cuts, under = below(result.edges[name], line)
                if len(cuts) > 1:
                    colour = charts.CLASS_COLOURS[i] if named else charts.MUTED
                    look: dict[str, Any] = {"color": colour, "linewidth": 1.1 if named else 0.4}
                    shares = np.diff(under) / np.nansum(line) / np.diff(cuts)
                    look |= {"label": charts.label(site, 24)} if named else {}
                    ax.stairs(shares, cuts, baseline=None, **look)
            ax.set_title(charts.label(name, 28), loc="left")
            ax.set_yticks([])
            charts.bare(ax, "")
        if names:
            charts.shared_legend(fig, axes[0], ncols=4)
        else:
            axes[0].set_axis_off()
    return fig


def plot_curves(result: Any) -> Figure:
    """Draw curves of times until an event over all sites, a line for each group.

    Parameters
    ----------
    result : DescribeResult

    Returns
    -------
    matplotlib.figure.Figure
        Shares without an event with limits of level .95, as far as bins reach. Behind them, paler,
        all Kaplan-Meier curves that the numbers in the bins allow.
    """
    drawn = drawn_curves(result)
    # Two curves of one event have a title each: by their groups, or by their times.
    kinds = [(event, *by) for _, event, *by in (result.curves[i] for i in drawn)]
    with charts.style():
        fig, axes = charts.panels(max(len(drawn), 1), 0.6 + 2.9 * max(len(drawn), 1), 1)
        for ax, (i, groups) in zip(axes, drawn.items(), strict=False):
            time, event, *by = result.curves[i]
            for k, (group, found) in enumerate(groups.items()):
                colour = charts.CLASS_COLOURS[k]
                known = np.isfinite(found.share)
                at, share = np.append(0.0, found.at), np.append(1.0, found.share)
                width = found.at[-1] / 250 * (k - (len(groups) - 1) / 2)
                least, most = (np.append(1.0, one[known]) for one in (found.least, found.most))
                ax.fill_between(at[: known.sum() + 1], least, most, color=colour, alpha=0.18, lw=0)
                name = charts.label(group, 24) if by else "all people"
                ax.plot(at, share, "o-", color=colour, markersize=4, linewidth=1.2, label=name)
                ax.vlines(found.at + width, found.low, found.high, color=colour, linewidth=1.0)
            ax.set_ylim(0, 1.02)
            ax.set_xlim(left=0)
            ax.yaxis.set_major_formatter(charts.SHARES)
            ax.set_xlabel(charts.label(time, 40))
            title = f"{charts.label(event, 28 if by else 40)}: share without it"
            title += f", by {charts.label(by[0], 20)}" if by else ""
            if kinds.count((event, *by)) > 1:
                title += f" ({charts.label(time, 24)})"
            ax.set_title(title, loc="left")
            charts.bare(ax, "y")
            if by:
                ax.legend(title=charts.label(by[0], 24), loc="upper right")
        if not drawn:
            axes[0].set_axis_off()
    return fig


def drawn_curves(result: Any) -> dict[int, dict[str, Any]]:
    """Curves that some site tells, with those groups of which something is known."""
    found = {}
    for i in range(len(result.curves))[:_CURVES]:
        lines = {group: result.curve(i, group) for group in result.groups(i)[:_NAMED]}
        told = {g: line for g, line in lines.items() if np.isfinite(line.share).any()}
        if told:
            found[i] = told
    return found


def plot_differences(result: Any) -> Figure:
    """Draw standardised differences between sites, a mark for each two of them.

    Parameters
    ----------
    result : DescribeResult

    Returns
    -------
    matplotlib.figure.Figure
        Columns with the largest differences first. Of many pairs the smallest, every further
        twentieth by size, and the largest.
    """
    s = len(result.sites)
    pairs = list(itertools.combinations(range(s), 2))
    sizes = np.abs(result.difference_matrices)
    largest = np.array([result.largest(name)[0] for name in result.columns])
    shown = [j for j in np.argsort(-np.nan_to_num(largest, nan=-1.0), kind="stable")]
    shown = [j for j in shown if np.isfinite(largest[j])][:MOST]
    with charts.style():
        fig, ax = charts.sheet(0.27 * len(shown) + 0.9)
        for at, j in enumerate(shown):
            own = np.array([sizes[j, a, b] for a, b in pairs])
            own = own[np.isfinite(own)]
            # A mark for each pair of hundreds of sites would be a page of megabytes.
            if len(pairs) > MOST_PAIRS:
                own = np.quantile(own, np.linspace(0, 1, 21))
            ax.hlines(at, 0, own.max(), color=charts.RULE, linewidth=1.4)
            charts.marks(
                ax, own, np.full(len(own), at), "o", charts.PAPER, charts.MUTED, 4, clip_on=False
            )
            charts.marks(ax, [own.max()], [at], "o", charts.BLUE, charts.BLUE, 5.5, zorder=3)
        ax.axvline(NOTABLE, color=charts.INK, linewidth=0.9, linestyle=":")
        ax.set_yticks(range(len(shown)), [charts.label(result.columns[j], 34) for j in shown])
        ax.set_ylim(max(len(shown), 1) - 0.5, -0.5)
        ax.set_xlim(left=0)
        ax.set_xlabel("standardised difference between two sites")
        charts.bare(ax)
    return fig


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
            "binned": binned(result),
            "of_curves": [
                sentence for i in range(len(result.curves)) for sentence in result.said_of_curve(i)
            ][:MOST_SAID],
            "drawn": drawn_curves(result),
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
            "plot_curves": plot_curves,
            "hidden": [short(sentence, 300) for sentence in result.withheld()],
            "plot_distributions": plot_distributions,
            "plot_differences": plot_differences,
            "cut": len(result.sites) > SHOWN,
            "n_pairs": math.comb(len(result.sites), 2),
            "most_pairs": MOST_PAIRS,
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

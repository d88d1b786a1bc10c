"""Figures of classes over sites: shares, targets, stability, weights, votes, eigenvalues.

Each `plot_*` takes an `EnsembleClusteringResult` and returns a Matplotlib figure, as in
`consilience.report.figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.report import charts
from consilience.report.charts import Part

_HATCHES = ("", "////", "....")


def class_style(k: int) -> dict[str, Any]:
    """Colour and hatch of class `k`; colours return with another hatch."""
    turn = k // len(charts.CLASS_COLOURS)
    return {
        "facecolor": charts.CLASS_COLOURS[k % len(charts.CLASS_COLOURS)],
        "hatch": _HATCHES[turn % len(_HATCHES)],
    }


# --------------------------------------------------------------------------- classes


def plot_class_shares(result: Any) -> Figure:
    """Draw the share of every class at every site, as stacked bars.

    Parameters
    ----------
    result : EnsembleClusteringResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = sorted(result.class_sizes_by_site)
    sizes = {name: np.asarray(result.class_sizes_by_site[name], dtype=float) for name in names}
    rows = [("all sites", np.asarray(result.class_sizes, dtype=float)), *sizes.items()]
    with charts.style():
        per_row = result.n_clusters if result.n_clusters <= 12 else 10
        legend_rows = -(-result.n_clusters // per_row)
        fig, ax = charts.sheet(0.31 * len(rows) + 0.75 + 0.22 * legend_rows)
        shares = [
            np.array([row[k] / max(row.sum(), 1.0) for _, row in rows])
            for k in range(result.n_clusters)
        ]
        heads = "class {}" if result.n_clusters <= 6 else "{}"
        parts = [Part(heads.format(k), v, class_style(k)) for k, v in enumerate(shares)]
        charts.stacked_bars(ax, parts, len(rows), height=0.74, linewidth=0.8)
        left = np.zeros(len(rows))
        for k, share in enumerate(shares):
            for i in np.flatnonzero(share > 0.045):
                face, box = class_style(k)["facecolor"], None
                if k >= len(charts.CLASS_COLOURS):
                    box = {"facecolor": face, "edgecolor": "none", "pad": 1.2}
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
                look |= {"bbox": box, "color": charts.letters_on(face)}
                ax.text(float(left[i] + share[i] / 2), int(i), f"{share[i]:.0%}", **look)
            left = left + share
        ticks = [f"{charts.label(name, 26)} ({int(row.sum()):,})" for name, row in rows]
        ax.set_yticks(range(len(rows)), ticks)
        ax.axhline(0.5, color=charts.MUTED, linewidth=0.8)
        ax.set_xlim(0, 1)
        ax.set_xticks(np.linspace(0, 1, 6), [f"{v:.0%}" for v in np.linspace(0, 1, 6)])
        ax.set_xlabel("share of the site's rows (number of rows in brackets)")
        charts.bare(ax)
        charts.legend(fig, ncols=per_row, handlelength=1.2, columnspacing=1.2)
    return fig


def plot_target_by_class(result: Any) -> Figure:
    """Draw the target's mean in every class, over all sites and at each.

    Parameters
    ----------
    result : EnsembleClusteringResult
        With a numeric target column.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = sorted(result.target_means_by_site)
    k = result.n_clusters
    few = len(names) <= 6
    with charts.style():
        fig, ax = charts.sheet(0.42 * k + (1.25 if few else 1.0))
        for i, name in enumerate(names):
            # Many marks on one line are kept apart; the same for the same site.
            spread = 0.0 if few else 0.5 * ((i * 0.618034) % 1.0) - 0.25
            charts.marks(
                ax,
                np.asarray(result.target_means_by_site[name], dtype=float),
                np.arange(k) + spread,
                "osv^Pd"[i] if few else "o",
                charts.PAPER if few else "none",
                charts.MUTED,
                6.5 if few else 3.5,
                label=charts.label(name) if few else "one site" if i == 0 else None,
            )
        ax.plot(
            result.target_means,
            np.arange(k),
            linestyle="none",
            marker="|",
            markersize=15,
            markeredgewidth=3,
            color=charts.BLUE,
            label="all sites",
        )
        ax.set_yticks(range(k), [f"class {j}" for j in range(k)])
        ax.set_ylim(k - 0.5, -0.5)
        ax.set_xlabel(f"mean of {charts.label(result.target)}")
        charts.bare(ax)
        charts.legend(fig, ncols=4 if len(names) == 6 else 6, handletextpad=0.3)
    return fig


# --------------------------------------------------------------------------- evidence


def plot_one_cloud(result: Any) -> Figure:
    """Draw how clearly classes of one half divide the other, beside what has no classes.

    Parameters
    ----------
    result : EnsembleClusteringResult
        Of a run with ``stability_pairs > 0``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    s = result.stability_figures
    at = [value for value in s["apart_by_site"].values() if not np.isnan(value)]
    rows: list[tuple[str, float, float, float, str, str]] = []
    for name, key in (
        (f"above {result.without_classes}", "apart"),
        ("above unrelated columns", "related"),
    ):
        if not np.isnan(s[key]):
            # Sites end at ten, so what rests on such a site is at least that.
            least = "at least " if not rows and max(at, default=0) >= 10 else ""
            rows.append((name, 0.0, s[key], s[key], charts.BLUE, f"{least}{s[key]:.1f}"))
    lowest = min([-2.0, *at, *(row[3] for row in rows)]) - 0.3
    words = "standard deviations above the mean of drawn rows"
    return _dots(rows, at, (lowest, None), words, shaded=1.645)


def _dots(
    rows: Sequence[tuple[str, float, float, float, str, str]],
    sites: Sequence[float],
    ends: tuple[float, float | None],
    words: str,
    shaded: float | None = None,
) -> Figure:
    """A dot, with its text, on a line for each of a few figures; a tick for each site at the first.

    Rows are name, ends of the line, place of the dot, colour and text.
    """
    n = max(len(rows), 1)
    with charts.style():
        fig, ax = charts.sheet(0.42 * n + 1.0)
        if shaded is not None:
            ax.axvspan(ends[0], shaded, color=charts.RULE, alpha=0.6, linewidth=0)
        for i, (_, low, high, at, colour, text) in enumerate(rows):
            ax.plot([low, high], [i, i], color=colour, linewidth=3, solid_capstyle="butt")
            ax.plot([at], [i], marker="o", color=colour, markersize=8)
            charts.note(ax, text, (at, i), (0, 7), ha="center", fontsize=9)
        # Sites with the same value stand above one another.
        values = sorted(sites)
        below = [values[:i].count(value) for i, value in enumerate(values)]
        step = 0.09 if max(below, default=0) < 4 else 0.36 / max(below)
        heights = 0.22 + step * np.array(below)
        ax.plot(values, heights, "|", color=charts.BLUE, markersize=4, markeredgewidth=1)
        ax.set_yticks(range(len(rows)), [row[0] for row in rows])
        ax.set_ylim(n - 0.55, -0.65)
        ax.set_xlim(*ends)
        ax.set_xlabel(words)
        charts.bare(ax)
    return fig


def plot_stability(result: Any) -> Figure:
    """Draw the agreement of runs on disjoint halves, beside sites alone.

    Parameters
    ----------
    result : EnsembleClusteringResult
        Of a run with ``stability_pairs > 0``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    s = result.stability_figures
    rows = [("all sites together", s["low"], s["high"], s["mean"], charts.BLUE)]
    for name, key in (
        ("one site's classes, on all rows", "ported_mean"),
        ("each site alone, on its own rows", "alone_mean"),
    ):
        if key in s:
            rows.append((name, s[key], s[key], s[key], charts.ORANGE))
    lowest = min([0.0, *(row[1] for row in rows), *s["by_site"].values()])
    words = "agreement: 0 as good as guessing, 1 the same classes (adjusted Rand index)"
    dots = [(*row, f"{row[3]:.2f}") for row in rows]
    return _dots(dots, list(s["by_site"].values()), (lowest - 0.04, 1.03), words)


def plot_weights(result: Any) -> Figure:
    """Draw the weight of every local model and how far the models agree pairwise.

    Parameters
    ----------
    result : EnsembleClusteringResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    m = len(result.weights)
    agreement = np.asarray(result.agreement, dtype=float)
    low = float(np.floor(min(0.9, agreement.min(initial=1.0)) * 10) / 10)
    with charts.style():
        tall = min(0.3 if m <= 30 else 0.2, 14 / m) * m + 1.15
        fig, (left, right) = charts.panels(2, tall, 2, width_ratios=(1, 1.25))
        at = np.arange(m) + 0.5
        left.hlines(at, 0, result.weights, color=charts.BLUE, linewidth=2)
        left.plot(result.weights, at, "o", color=charts.BLUE, markersize=5)
        left.axvline(1 / np.sqrt(m), color=charts.MUTED, linestyle="--", linewidth=1)
        left.set_xlim(0, max(1.12 * np.max(result.weights), 1.12 / np.sqrt(m)))
        left.set_xlabel("weight (dashed: all equal)")
        size = 9.5 if m <= 30 else 8 if m <= 70 else 5
        names = [f"{i + 1}  {charts.label(name, 22)}" for i, name in enumerate(result.model_names)]
        left.set_yticks(at, names, fontsize=size)
        edge = charts.PAPER if m <= 20 else "none"
        mesh = charts.heat_map(right, agreement, (low, 1), edgecolor=edge, rasterized=m > 60)
        if m <= 10:
            charts.in_cells(right, agreement, "{:.2f}".format, mesh)
        some = np.arange(0, m, 1 if m <= 20 else 5 if m <= 60 else 20)
        right.set_xticks(some + 0.5, [str(i + 1) for i in some])
        right.set_yticks(some + 0.5, [str(i + 1) for i in some])
        right.set_xlabel("agreement of the models, by number")
        for ax in (left, right):
            ax.set_ylim(m, 0)
            charts.bare(ax, "x" if ax is left else "")
        place: Any = {"location": "right", "shrink": min(1.0, 3 / tall), "aspect": 26}
        charts.colour_bar(fig, mesh, right, **place)
    return fig


def plot_votes(result: Any) -> Figure:
    """Draw the sites' votes on the number of classes, and the criterion behind each vote.

    Parameters
    ----------
    result : EnsembleClusteringResult
        Of a run that held a vote.

    Returns
    -------
    matplotlib.figure.Figure
    """
    scores = {name: np.asarray(v, dtype=float) for name, v in sorted(result.vote_scores.items())}
    most = max((len(v) for v in scores.values()), default=1)
    cast = [v for v in result.votes.values() if v > 0]
    numbers = np.arange(1, most + 1)
    few = len(scores) <= 6
    with charts.style():
        fig, (left, right) = charts.panels(2, 3.3, 2, width_ratios=(1, 1.4))
        counts = np.array([cast.count(int(n)) for n in numbers])
        left.bar(numbers, counts, color=charts.BLUE, width=0.6)
        left.set_yticks(charts.whole_ticks(int(counts.max(initial=1))))
        left.set_ylabel("sites that vote for it")
        for i, (name, values) in enumerate(scores.items()):
            if not np.isfinite(values).any():
                continue
            best, worst = np.nanmin(values), np.nanmax(values)
            height = (values - best) / (worst - best if worst > best else 1.0)
            colour = charts.CLASS_COLOURS[i] if few else charts.MUTED
            right.plot(
                np.arange(1, len(values) + 1),
                height,
                color=colour,
                marker="osv^Pd"[i] if few else "",
                markersize=4,
                linewidth=1.4 if few else 0.7,
                label=charts.label(name, 22) if few else None,
            )
            right.plot(
                result.votes[name] or np.nan, 0, "o", mfc="none", mec=charts.INK, markersize=9
            )
        right.set_ylabel("BIC: 0 best, 1 worst of the site")
        for ax in (left, right):
            ax.set_xticks(numbers)
            ax.set_xlabel("number of classes")
            charts.bare(ax, "y")
        if few:
            charts.legend(fig, loc="outside upper right", fontsize=8.5, ncols=3)
    return fig


def plot_eigenvalues(result: Any) -> Figure:
    """Draw the leading eigenvalues of the ensemble distance, relative to the first.

    Parameters
    ----------
    result : EnsembleClusteringResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    sizes = np.abs(np.asarray(result.eigenvalues, dtype=float))
    sizes = sizes / sizes[0] if len(sizes) and sizes[0] > 0 else sizes
    at = np.arange(1, len(sizes) + 1)
    inside = at <= result.n_clusters_by_eigenvalues
    with charts.style():
        fig, ax = charts.sheet(2.5)
        ax.bar(at[inside], sizes[inside], color=charts.BLUE, width=0.6)
        ax.bar(
            at[~inside],
            sizes[~inside],
            color=charts.RULE,
            edgecolor=charts.MUTED,
            width=0.6,
            hatch="//",
        )
        for x, value in zip(at.tolist(), sizes.tolist(), strict=True):
            text = f"{value:.2f}" if value >= 0.005 else "0"
            ax.text(x, value + 0.02, text, ha="center", fontsize=8.5)
        ax.set_xticks(at)
        ax.set_ylim(0, 1.12)
        ax.set_xlabel("eigenvalue, in order of size")
        ax.set_ylabel("size, the first = 1")
        charts.bare(ax, "y")
    return fig

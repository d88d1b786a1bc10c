"""Figures of wide classification: the choice of a candidate, and what communities say of a row.

Each `plot_*` takes a fitted estimator or the result of a run and returns a Matplotlib figure, as in
`figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from consilience.arrays import FloatArray, IntArray
from consilience.report import drawing
from consilience.report.figures_latent import share_words
from consilience.report.wide_reading import (
    Candidates,
    Contributions,
    candidates_of,
    contributions_of,
)

MOST_COMMUNITIES = 16
"""Communities of which the contribution is drawn; of more, those that say most."""
AXES = {
    "alpha": "penalty for a row (alpha): less linked to the right",
    "communities": "number of communities",
}


# --------------------------------------------------------------------------- the choice


def plot_candidates(fitted: Any) -> Figure:
    """Draw the error by penalty or by number of communities, and what was chosen.

    Parameters
    ----------
    fitted : SparseQDA, CommunityBayesClassifier, a result of their methods, or Candidates

    Returns
    -------
    matplotlib.figure.Figure
    """
    found = candidates_of(fitted)
    order = np.argsort(found.values)
    panels = _panels(found)
    with drawing.style():
        fig = Figure(figsize=(drawing.WIDTH, 1.1 + 1.6 * len(panels)))
        fig.set_layout_engine("constrained")
        axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for ax, panel in zip(axes, panels, strict=True):
            if panel == "error":
                _errors(ax, found, order)
            elif panel == found.loss_name:
                _line(ax, found.values[order], found.loss[order], panel)
            else:
                _line(ax, found.values[order], found.links[order], panel)
                ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
                ax.set_ylim(bottom=0)
            if found.chosen >= 0:
                ax.axvline(
                    found.values[found.chosen],
                    color=drawing.ORANGE,
                    linewidth=1.3,
                    linestyle="--",
                    label=f"chosen: {_value(found, found.chosen)}",
                )
            drawing.bare(ax, "y")
        _scale(axes[-1], found)
        fig.align_ylabels(axes)
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            fig.legend(handles, labels, loc="outside upper left", ncols=3)
    return fig


def _panels(found: Candidates) -> list[str]:
    """What is known of the candidates."""
    panels = []
    if np.isfinite(found.errors).any() or not np.isfinite(found.loss).any():
        panels.append("error")
    if np.isfinite(found.loss).any():
        panels.append(found.loss_name)
    if found.links.size:
        panels.append("linked pairs")
    return panels


def _line(ax: Axes, at: FloatArray, values: FloatArray, words: str) -> None:
    ax.plot(at, values, "o-", color=drawing.BLUE, markersize=3.5)
    ax.set_ylabel(words)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _value(found: Candidates, at: int) -> str:
    value = float(found.values[at])
    return f"{value:.3g}" if found.kind == "alpha" else f"{value:,.0f}"


def _errors(ax: Axes, found: Candidates, order: IntArray) -> None:
    at, error, half = found.values[order], found.errors[order], found.spread[order]
    known = np.isfinite(error)
    bars = known & np.isfinite(half)
    ax.vlines(
        at[bars],
        (error - half)[bars],
        (error + half)[bars],
        color=drawing.BLUE,
        linewidth=1.1,
        alpha=0.6,
    )
    words = f"error by {found.among}" + (", with its standard error" if bars.any() else "")
    ax.plot(at[known], error[known], "o-", color=drawing.BLUE, markersize=4, label=words)
    ax.yaxis.set_major_formatter(FuncFormatter(share_words))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.set_ylabel("error")


def _scale(ax: Axes, found: Candidates) -> None:
    ax.set_xlabel(AXES.get(found.kind, found.kind))
    ax.tick_params(which="minor", length=0)
    if found.kind == "alpha" and (found.values > 0).all():
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    elif found.values.max() > 30 * max(found.values.min(), 1.0):
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))


# --------------------------------------------------------------------------- one row


def plot_contributions(
    fitted: Any, row: Any = None, *, versus: tuple[Any, Any] | None = None
) -> Figure:
    """Draw what each community says of one row: how far it speaks for one class against another.

    Parameters
    ----------
    fitted : CommunityBayesClassifier or Contributions
    row : (p,) or (1, p) array or frame of one row
        What is to be explained.
    versus : tuple of two classes, optional
        By default the two of highest probability.

    Returns
    -------
    matplotlib.figure.Figure
        A bar for each community, from the strongest to the weakest, and the way from the prior to
        the sum.
    """
    found = contributions_of(fitted, row)
    a, b = _two(found, versus)
    names, values = gaps(found, a, b)
    high = np.cumsum(values)
    low = high - values
    with drawing.style():
        fig, ax = drawing.sheet(0.25 * (len(names) + 1) + 1.0)
        at = np.arange(len(names))
        for some, colour, level in (
            (values >= 0, drawing.BLUE, found.levels[a]),
            (values < 0, drawing.ORANGE, found.levels[b]),
        ):
            ax.barh(
                at[some],
                values[some],
                left=low[some],
                height=0.62,
                color=colour,
                label=f"for {drawing.label(level, 24)}",
            )
        end = float(high[-1])
        ax.barh(len(names), end, height=0.62, color=drawing.INK)
        ax.vlines(high, at + 0.31, at + 0.69, color=drawing.MUTED, linewidth=0.8)
        ax.axvline(0, color=drawing.INK, linewidth=0.9)
        ends = np.concatenate([np.maximum(low, high), [max(end, 0.0)]])
        for i, (value, x) in enumerate(zip([*values, end], ends, strict=True)):
            text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
            ax.annotate(
                text,
                (float(x), i),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        ticks = [*names, "sum: log odds"]
        ax.set_yticks(range(len(ticks)), [drawing.label(name, 36) for name in ticks])
        ax.set_ylim(len(names) + 0.6, -0.6)
        ax.margins(x=0.12)
        ax.set_xlabel(
            f"log odds of {drawing.label(found.levels[a], 24)} against "
            f"{drawing.label(found.levels[b], 24)}"
        )
        drawing.bare(ax)
        fig.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return fig


def _two(found: Contributions, versus: tuple[Any, Any] | None) -> tuple[int, int]:
    if versus is not None:
        a, b = (found.levels.index(str(level)) for level in versus)
        return a, b
    total = found.values.sum(axis=0) + found.prior
    first, second = np.argsort(-total, kind="stable")[:2]
    return int(first), int(second)


def gaps(found: Contributions, a: int, b: int) -> tuple[list[str], FloatArray]:
    """Log odds of two classes by prior and communities, the strongest first; the rest in one."""
    gap = found.values[:, a] - found.values[:, b]
    order = np.argsort(-np.abs(gap), kind="stable")
    shown, rest = order[:MOST_COMMUNITIES], order[MOST_COMMUNITIES:]
    if len(rest) == 1:
        shown, rest = order, rest[:0]
    names = ["prior", *(found.names[i] for i in shown)]
    values = [found.prior[a] - found.prior[b], *gap[shown]]
    if len(rest):
        names.append(f"{len(rest):,} more")
        values.append(float(gap[rest].sum()))
    return names, np.asarray(values, dtype=float)


# --------------------------------------------------------------------------- rules


def plot_rules(names: Sequence[str], rates: FloatArray, ends: FloatArray) -> Figure:
    """Draw how many held-out rows each rule puts into a wrong class, with intervals.

    Parameters
    ----------
    names : sequence of str
    rates : (m,) array
        NaN where it is not told.
    ends : (m, 2) array
        Ends of the intervals; NaN where there are none.

    Returns
    -------
    matplotlib.figure.Figure
    """
    known = [j for j in range(len(rates)) if np.isfinite(rates[j])]
    with drawing.style():
        fig, ax = drawing.sheet(0.3 * len(known) + 0.75)
        for i, j in enumerate(known):
            colour = drawing.BLUE if j == 0 else drawing.MUTED
            if np.isfinite(ends[j]).all():
                ax.hlines(i, ends[j, 0], ends[j, 1], color=colour, linewidth=1.6)
            ax.plot(rates[j], i, "o", color=colour, markersize=6)
        ax.set_yticks(range(len(known)), [drawing.label(names[j], 34) for j in known])
        ax.set_ylim(len(known) - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(FuncFormatter(share_words))
        words = "held-out rows in a wrong class"
        ax.set_xlabel(words + ", with 95 % intervals" * bool(np.isfinite(ends[known]).any()))
        drawing.bare(ax)
    return fig

"""Figures of meta clustering: maps of pairs of sites, and the tree of merges.

Each `plot_*` takes a `MetaClusteringResult` and returns a Matplotlib figure, as in `figures`. Sites
stand in the same order in all maps: by group, and within a group as the merges put them together.
Names are drawn where they fit, groups where names do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.kernels.site_comparison import LONE_THRESHOLD as THRESHOLD
from consilience.report import drawing

NAMES_IN_MAP = 42
NAMES_IN_LIST = 80
NUMBERS_IN_MAP = 12
LARGE_GROUP_THRESHOLD = 0.5
_SPAN = 4.0
_STRAIGHT = 60.0  # range of heights up to which the axis of merges is linear


# --------------------------------------------------------------------------- order of sites


def leaf_order(result: Any) -> IntArray:
    """Order of the sites in the tree of merges: what merges together stands together."""
    n = len(result.sites)
    ids = np.asarray(result.merges.get("ids", ()), dtype=np.int64).reshape(-1, 2)
    if n < 2 or len(ids) != n - 1:
        return np.arange(n)
    members: list[list[int]] = [[i] for i in range(n)]
    for a, b in ids:
        # the larger cluster first; ties as the merges have them
        first, second = (a, b) if len(members[a]) >= len(members[b]) else (b, a)
        members.append(members[first] + members[second])
    return np.asarray(members[-1], dtype=np.int64)


def site_order(result: Any) -> IntArray:
    """Order of the sites in maps and lists: by group, then as in the tree of merges."""
    place = np.argsort(leaf_order(result))
    return np.lexsort((place, np.asarray(result.labels)))


def pairs(values: FloatArray) -> FloatArray:
    """Entries above the diagonal of a symmetric matrix."""
    found = np.asarray(values, dtype=float)
    return found[np.triu_indices(len(found), 1)] if found.ndim == 2 else np.zeros(0)


def runs(labels: IntArray) -> list[tuple[int, int, int]]:
    """First position, end and group of each run of equal labels."""
    cuts = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    return [(a, b, int(labels[a])) for a, b in itertools.pairwise(cuts) if len(labels)]


def group_ticks(labels: IntArray, smallest: float) -> tuple[list[float], list[str]]:
    """Middle and name of each run that is wide enough to carry a name."""
    found = [(a, b, g) for a, b, g in runs(labels) if b - a >= smallest * len(labels)]
    words = "group {}" if len(found) <= 6 else "{}"
    return [(a + b) / 2 for a, b, _ in found], [words.format(g) for _, _, g in found]


# --------------------------------------------------------------------------- maps


def plot_pairwise_tests(result: Any) -> Figure:
    """Draw the test of every pair of sites as a map of colours, ordered by group.

    Parameters
    ----------
    result : MetaClusteringResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    scale = Normalize(THRESHOLD - _SPAN, THRESHOLD + _SPAN)
    ticks = [-2.0, 0.0, THRESHOLD, 4.0]
    return _map(
        result, result.z, drawing.DIVERGING, scale, ticks, "z of the test of two sites", "{:z.1f}"
    )


def plot_together(result: Any) -> Figure:
    """Draw how often each pair of sites fell into one group when rows were drawn again.

    Parameters
    ----------
    result : MetaClusteringResult
        Of a run with ``stability_runs > 0``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    words = "share of resamples in one group"
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    return _map(result, result.together, drawing.RISING, Normalize(0, 1), ticks, words, "{:.0%}")


def plot_dissimilarity(result: Any) -> Figure:
    """Draw the dissimilarity of every pair of sites, ordered by group.

    Parameters
    ----------
    result : MetaClusteringResult
        Of a run with ``rule="spectral"``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    known = pairs(result.dissimilarity)
    known = known[np.isfinite(known)]
    # a few very unlike pairs must not wash out all others
    top = float(np.quantile(known, 0.95)) if len(known) else 0.0
    top = top if top > 0 else 1.0
    words = "dissimilarity, in units of the loss"
    return _map(
        result, result.dissimilarity, drawing.RISING, Normalize(0, top), None, words, "{:.2g}"
    )


def _map(
    result: Any,
    values: FloatArray,
    colours: Colormap,
    scale: Normalize,
    ticks: Sequence[float] | None,
    words: str,
    text: str,
) -> Figure:
    order = site_order(result)
    n = len(order)
    shown = np.array(values, dtype=float)[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    named = n <= NAMES_IN_MAP
    side = float(np.clip(0.42 * n, 1.5, 5.0))
    with drawing.style():
        fig, ax = drawing.sheet(
            side + 1.1 + (0.5 if named else 0), width=min(drawing.WIDTH, side + 3.3)
        )
        _hatched(ax, shown)
        mesh: Any
        if named:
            mesh = ax.pcolormesh(
                shown, cmap=colours, norm=scale, edgecolor=drawing.PAPER, linewidth=0.6
            )
        else:
            mesh = ax.imshow(
                np.ma.masked_invalid(shown),
                cmap=colours,
                norm=scale,
                extent=(0, n, n, 0),
                interpolation="none",
                zorder=2,
            )
        if n <= NUMBERS_IN_MAP:
            _numbers(ax, shown, colours, scale, text)
        _borders(ax, np.asarray(result.labels)[order])
        _site_ticks(ax, result, order, named)
        ax.set_xlim(0, n)
        ax.set_ylim(n, 0)
        ax.set_aspect("equal")
        drawing.bare(ax, "")
        bar = fig.colorbar(
            mesh,
            ax=ax,
            location="bottom",
            shrink=0.8,
            aspect=30,
            pad=0.03,
            extend=_open(scale, shown),
        )
        if ticks is not None:
            bar.set_ticks(
                list(ticks), labels=[f"{t:g}".replace("-", "\N{MINUS SIGN}") for t in ticks]
            )
        bar.set_label(words)
        bar.outline.set_visible(False)
    return fig


def _open(scale: Normalize, shown: FloatArray) -> str:
    """Which ends of the colour scale hold values beyond it."""
    known = shown[np.isfinite(shown)]
    low = bool((known < (scale.vmin or 0.0)).any())
    high = bool((known > (scale.vmax or 0.0)).any())
    return {(False, False): "neither", (True, False): "min", (False, True): "max"}.get(
        (low, high), "both"
    )


def _hatched(ax: Axes, shown: FloatArray) -> None:
    """Hatch what is not known, under the cells that are; the diagonal stays plain."""
    n = len(shown)
    if np.isnan(shown).sum() > n:
        ax.add_patch(
            Rectangle(
                (0, 0),
                n,
                n,
                facecolor=drawing.RULE,
                edgecolor=drawing.MUTED,
                hatch="////",
                linewidth=0,
            )
        )
    if n <= NAMES_IN_MAP:
        for i in range(n):
            ax.add_patch(
                Rectangle((i, i), 1, 1, facecolor=drawing.RULE, edgecolor="none", linewidth=0)
            )
    else:
        ax.plot([0, n], [0, n], color=drawing.RULE, linewidth=max(0.6, 360 / n), zorder=1.5)


def _numbers(ax: Axes, shown: FloatArray, colours: Colormap, scale: Normalize, text: str) -> None:
    for i, j in np.argwhere(np.isfinite(shown)).tolist():
        red, green, blue, _ = colours(scale(shown[i, j]))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        value = shown[i, j]
        words = text.format(value) if abs(value) < 1000 else f"{value:.0e}"
        ax.text(
            j + 0.5,
            i + 0.5,
            words.replace("-", "\N{MINUS SIGN}"),
            ha="center",
            va="center",
            fontsize=8.5,
            color="#ffffff" if dark else "#000000",
            zorder=4,
        )


def _borders(ax: Axes, labels: IntArray) -> None:
    """Frame the groups."""
    for start, end, _ in runs(labels):
        size = end - start
        ax.add_patch(
            Rectangle(
                (start, start),
                size,
                size,
                fill=False,
                edgecolor=drawing.INK,
                linewidth=1.8 if len(labels) <= 100 else 1.0,
                zorder=5,
                clip_on=False,
            )
        )


def _site_ticks(ax: Axes, result: Any, order: IntArray, named: bool) -> None:
    labels = np.asarray(result.labels)[order]
    n = len(order)
    at, words = group_ticks(labels, 0.0 if n <= 12 else 0.04)
    if n <= 6:
        words = [w.removeprefix("group ") for w in words] if len(words) > 2 else words
    ax.set_xticks(at, words)
    ax.xaxis.tick_top()
    if not named:
        ax.set_yticks(at, words)
        return
    size = 9 if n <= 24 else 8
    ax.set_yticks(
        np.arange(n) + 0.5, [drawing.label(result.sites[i], 26) for i in order], fontsize=size
    )


# --------------------------------------------------------------------------- merges


def plot_merges(result: Any) -> Figure:
    """Draw the sequence of merges as a tree, each merge with its mean z and its threshold.

    Parameters
    ----------
    result : MetaClusteringResult
        With two sites or more.

    Returns
    -------
    matplotlib.figure.Figure
    """
    ids = np.asarray(result.merges["ids"], dtype=np.int64).reshape(-1, 2)
    heights = np.asarray(result.merges["heights"], dtype=float)
    thresholds = np.asarray(result.merges["thresholds"], dtype=float)
    n = len(ids) + 1
    order = leaf_order(result)
    known = heights[np.isfinite(heights)]
    low = float(min(known.min(initial=0.0), 0.0)) - 0.6
    high = float(max(known.max(initial=0.0), THRESHOLD + 1.0))
    straight = high - low <= _STRAIGHT
    low, beyond = (low, high + 0.12 * (high - low)) if straight else (1.5 * low, 2.2 * high)
    x = np.concatenate([np.full(n, low), np.where(np.isfinite(heights), heights, beyond)])
    y = np.concatenate([np.argsort(order) + 0.5, np.zeros(n - 1)])
    made = np.arange(n - 1) < n - result.n_clusters
    named = n <= NAMES_IN_LIST
    with drawing.style():
        fig, ax = drawing.sheet((0.2 * n + 1.5) if named else 8.0)
        for step, (a, b) in enumerate(ids):
            node = n + step
            y[node] = (y[a] + y[b]) / 2
            line: Any = {
                "color": drawing.INK if made[step] else drawing.MUTED,
                "linewidth": 1.3 if named else 0.6,
            }
            ax.plot(
                [x[a], x[node], x[node], x[b]],
                [y[a], y[a], y[b], y[b]],
                linestyle="-" if made[step] else (0, (3, 2)),
                zorder=2,
                **line,
            )
        if named:
            ax.hlines(y[n:], x[n:], thresholds, color=drawing.RULE, linewidth=1, zorder=1.2)
            ax.plot(
                thresholds,
                y[n:],
                "|",
                color=drawing.MUTED,
                markersize=8,
                zorder=2.5,
                label="threshold of the merge",
            )
        _merge_marks(ax, x[n:], y[n:], made, heights <= thresholds, 6.5 if named else 3.5)
        for at, text, dash in (
            (THRESHOLD, f"{THRESHOLD:g}: two single sites", "-"),
            (LARGE_GROUP_THRESHOLD, f"{LARGE_GROUP_THRESHOLD:g}: large groups", ":"),
        ):
            ax.axvline(
                at, color=drawing.ORANGE, linestyle=dash, linewidth=1.2, zorder=1, label=text
            )
        _merge_axes(ax, result, order, (low, beyond, high), bool(np.isinf(heights).any()))
        fig.legend(loc="outside upper center", ncols=3, fontsize=8.5, handletextpad=0.5)
    return fig


def _merge_marks(
    ax: Axes, x: FloatArray, y: FloatArray, made: Any, below: Any, size: float
) -> None:
    kinds = (
        (made & below, "o", drawing.BLUE, drawing.BLUE, "merged"),
        (made & ~below, "D", drawing.ORANGE, drawing.ORANGE, "merged, though above its threshold"),
        (~made & ~below, "o", drawing.PAPER, drawing.MUTED, "not merged"),
        (~made & below, "D", drawing.PAPER, drawing.BLUE, "not merged, though below its threshold"),
    )
    for which, marker, face, edge, words in kinds:
        if which.any():
            ax.plot(
                x[which],
                y[which],
                linestyle="none",
                marker=marker,
                markersize=size,
                markerfacecolor=face,
                markeredgecolor=edge,
                markeredgewidth=1.3,
                label=words,
                zorder=3,
            )


def _merge_axes(
    ax: Axes, result: Any, order: IntArray, ends: tuple[float, float, float], infinite: bool
) -> None:
    low, beyond, high = ends
    n = len(order)
    limit = beyond if infinite else high
    if high - low <= _STRAIGHT:
        ax.set_xlim(low, limit + 0.04 * (limit - low))
        ticks = np.asarray(MaxNLocator(6).tick_values(low, high))
    else:
        ax.set_xscale("symlog", linthresh=4, linscale=1.2)
        ax.set_xlim(low, limit * 1.4)
        ticks = np.array([-1e6, -1e4, -1e2, -10, -4, 0, 4, 10, 1e2, 1e3, 1e4, 1e5, 1e6])
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    words = [f"{t:g}".replace("-", "\N{MINUS SIGN}") for t in ticks]
    if infinite:
        ticks, words = np.append(ticks, beyond), [*words, "no pair to\ncompare"]
    ax.set_xticks(ticks, words)
    ax.minorticks_off()
    labels = np.asarray(result.labels)[order]
    if n <= NAMES_IN_LIST:
        names = [
            f"{drawing.label(result.sites[i], 24)} \N{MIDDLE DOT} {g}"
            for i, g in zip(order, labels, strict=True)
        ]
        ax.set_yticks(np.arange(n) + 0.5, names, fontsize=9 if n <= 40 else 8)
        ax.set_ylabel("site \N{MIDDLE DOT} group")
    else:
        ax.set_yticks(*group_ticks(labels, 0.04))
    ax.set_ylim(n, 0)
    ax.set_xlabel("mean z between the two parts that meet")
    drawing.bare(ax)

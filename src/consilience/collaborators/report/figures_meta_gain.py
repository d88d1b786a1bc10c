"""Figures of meta clustering: what could have been seen, what was gained, how many groups.

Each `plot_*` takes a `MetaClusteringResult` and returns a Matplotlib figure, as in `figures_meta`,
which has the order of the sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from consilience.arrays import FloatArray, IntArray
from consilience.collaborators.report.figures_meta import (
    NAMES_IN_LIST,
    group_ticks,
    pairs,
    site_order,
)
from consilience.report import drawing

ENOUGH_POWER = 0.8
"""Power from which a pair counts as able to show a difference; the result says the same."""
GAINS = {
    "own_minus_group": "group's model\ninstead of own",
    "group_minus_all": "model of all sites\ninstead of group's",
    "all_minus_shifted": "site's intercept added\nto model of all sites",
}
"""Differences of losses; positive where the second of the two models is better."""
POWER_WORDS = (
    "in different groups",
    "in one group, and a difference would show",
    "in one group, too few rows to tell",
    "could not be compared both ways",
)
"""What may be known of a pair."""


# --------------------------------------------------------------------------- power


def power_counts(result: Any) -> tuple[int, int, int]:
    """Pairs that could have been told apart, that hardly could, and that could not be compared.

    The first have a chance of 80 % or more of being told apart if each one's model were of no use
    to the other.
    """
    usable = np.isfinite(pairs(result.z))
    strong = usable & (pairs(result.power) >= ENOUGH_POWER)
    return int(strong.sum()), int((usable & ~strong).sum()), int((~usable).sum())


def power_kinds(result: Any) -> IntArray:
    """What is known of each pair of sites, as numbers of `POWER_WORDS`."""
    labels = np.asarray(result.labels)
    same = pairs((labels[:, None] == labels[None, :]).astype(float)) > 0
    able = pairs(result.power) >= ENOUGH_POWER
    kinds = np.where(same, np.where(able, 1, 2), 0)
    # newcomers may have been compared in one direction, which says nothing of power
    known = np.isfinite(pairs(result.z)) & ~(same & np.isnan(pairs(result.detectable)))
    return np.where(known, kinds, 3)


def plot_detectable(result: Any) -> Figure:
    """Draw which differences the pairs of sites within groups could have shown.

    Parameters
    ----------
    result : MetaClusteringResult
        With at least one pair within a group that could be compared.

    Returns
    -------
    matplotlib.figure.Figure
    """
    kinds = power_kinds(result)
    shown = np.clip(np.nan_to_num(pairs(result.detectable), nan=30.0), 1e-3, 30.0)
    within = shown[(kinds == 1) | (kinds == 2)]
    low, high = float(within.min(initial=0.05)), float(within.max(initial=1.0))
    bins = np.geomspace(low * 0.9, high * 1.1, 29)
    with drawing.style():
        fig = Figure(figsize=(drawing.WIDTH, 3.7))
        fig.set_layout_engine("constrained")
        top, ax = fig.subplots(2, 1, height_ratios=(0.14, 1))
        _power_bar(top, np.bincount(kinds, minlength=len(POWER_WORDS)).tolist())
        ax.hist(
            [shown[kinds == 1], shown[kinds == 2]],
            bins=bins.tolist(),
            stacked=True,
            color=[drawing.BLUE, drawing.ORANGE],
            hatch=["", "////"],
            edgecolor=drawing.PAPER,
            linewidth=0.5,
        )
        if result.margin > 0:
            ax.axvline(result.margin, color=drawing.INK, linestyle=":", linewidth=1.2)
            ax.annotate(
                "margin",
                (result.margin, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8.5,
            )
        ax.set_xscale("log")
        ax.set_xlim(min(bins[0], result.margin or 1.0) * 0.65, bins[-1])
        ends = ax.get_xlim()
        some = [
            t
            for t in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
            if ends[0] <= t <= ends[1]
        ]
        ax.set_xticks(some, [_share(t) for t in some])
        ax.minorticks_off()
        ax.set_yticks(drawing.whole_ticks(int(ax.get_ylim()[1])))
        ax.set_ylabel("pairs within groups")
        ax.set_xlabel("difference seen with a chance of 80 %, share of the response variance")
        drawing.bare(ax, "y")
        fig.legend(loc="outside upper center", ncols=2, handlelength=1.4)
    return fig


def _power_bar(ax: Axes, counts: Sequence[int]) -> None:
    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": drawing.MUTED},
        {"facecolor": drawing.BLUE},
        {"facecolor": drawing.ORANGE, "hatch": "////"},
        {"facecolor": drawing.RULE, "hatch": "xxxx"},
    )
    left = 0.0
    for count, look, words in zip(counts, looks, POWER_WORDS, strict=True):
        if count:
            share = count / sum(counts)
            text = f"{count:,} {'pair' if count == 1 else 'pairs'}: {words}"
            place: dict[str, Any] = {"left": left, "height": 0.8, "label": text}
            ax.barh(0, share, edgecolor=drawing.PAPER, linewidth=0.6, **place, **look)
            left += share
    ax.set_xlim(0, 1)
    ax.set_xticks([])
    ax.set_yticks([])
    drawing.bare(ax, "")


def _share(value: float, _: object = None) -> str:
    text = f"{100 * value:.3g} %"
    return text.replace("-", "\N{MINUS SIGN}")


# --------------------------------------------------------------------------- gain


def gains(result: Any) -> list[str]:
    """Differences of losses that are known for at least one site, in the order they are told."""
    asked = [key for key in GAINS if key in result.gain]
    if result.n_clusters == 1:
        asked = [key for key in asked if key != "group_minus_all"]  # the group is all sites
    return [key for key in asked if np.isfinite(result.gain[key]).any()]


def plot_gain(result: Any) -> Figure:
    """Draw what working together saves at each site, with 95 % intervals.

    Parameters
    ----------
    result : MetaClusteringResult
        With `gain`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    keys = gains(result)
    order = site_order(result)
    n = len(order)
    named = n <= NAMES_IN_LIST
    with drawing.style():
        fig = Figure(figsize=(drawing.WIDTH, (0.2 * n + 1.5) if named else 8.0))
        fig.set_layout_engine("constrained", w_pad=0.12)
        axes = fig.subplots(1, len(keys), sharey=True, squeeze=False)[0]
        for ax, key in zip(axes, keys, strict=True):
            unit = np.asarray(result.target_variance, dtype=float)[order]
            value = np.asarray(result.gain[key], dtype=float)[order] / unit
            error = np.asarray(result.gain[f"{key}_error"], dtype=float)[order] / unit
            _dots(ax, value, error, named)
            mean, its_error = result.overall_gain(key)
            if np.isfinite(mean):
                ax.axvspan(
                    mean - drawing.Z95 * its_error,
                    mean + drawing.Z95 * its_error,
                    color=drawing.BLUE,
                    alpha=0.14,
                    linewidth=0,
                )
                ax.axvline(mean, color=drawing.BLUE, linewidth=1.4)
            ax.axvline(0, color=drawing.INK, linewidth=0.9)
            ax.set_xlim(*_gain_limits(value, error, mean, its_error))
            ax.set_title(GAINS[key])
            ax.xaxis.set_major_formatter(FuncFormatter(_share))
            ax.locator_params(axis="x", nbins=4)
            drawing.bare(ax)
        axes[0].set_ylim(n, 0)
        if named:
            names = [drawing.label(result.sites[i], 24) for i in order]
            axes[0].set_yticks(np.arange(n) + 0.5, names, fontsize=9 if n <= 40 else 8)
        else:
            axes[0].set_yticks(*group_ticks(np.asarray(result.labels)[order], 0.04))
        fig.supxlabel(
            "loss saved, share of the response variance (right of 0: better)", fontsize=9.5
        )
    return fig


def _dots(ax: Axes, value: FloatArray, error: FloatArray, named: bool) -> None:
    at = np.arange(len(value)) + 0.5
    low, high = value - drawing.Z95 * error, value + drawing.Z95 * error
    kinds: tuple[tuple[Any, str, str, str], ...] = (
        (low > 0, "o", drawing.BLUE, drawing.BLUE),
        (high < 0, "s", drawing.ORANGE, drawing.ORANGE),
        (~((low > 0) | (high < 0)), "o", drawing.PAPER, drawing.MUTED),
    )
    for which, marker, face, edge in kinds:
        some = which & np.isfinite(value)
        ax.hlines(at[some], low[some], high[some], color=edge, linewidth=1.4 if named else 0.5)
        ax.plot(
            value[some],
            at[some],
            linestyle="none",
            marker=marker,
            markersize=5.5 if named else 2.5,
            markerfacecolor=face,
            markeredgecolor=edge,
            zorder=3,
        )


def _gain_limits(
    value: FloatArray, error: FloatArray, mean: float, its_error: float
) -> tuple[float, float]:
    """Range that holds nearly all intervals, zero and the overall interval."""
    known = np.isfinite(value) & np.isfinite(error)
    low, high = value[known] - drawing.Z95 * error[known], value[known] + drawing.Z95 * error[known]
    cut = 0.0 if known.sum() <= 20 else 0.02
    ends = (
        [0.0, float(np.quantile(low, cut)), float(np.quantile(high, 1 - cut))]
        if known.any()
        else [0.0]
    )
    if np.isfinite(mean) and np.isfinite(its_error):
        ends += [mean - drawing.Z95 * its_error, mean + drawing.Z95 * its_error]
    width = max(ends) - min(ends) or 0.02
    return min(ends) - 0.05 * width, max(ends) + 0.05 * width


# --------------------------------------------------------------------------- number of groups


def plot_spectrum(result: Any) -> Figure:
    """Draw the eigenvalues of the normalised similarity, with the gap after the K-th.

    Parameters
    ----------
    result : MetaClusteringResult
        Of a run with ``rule="spectral"``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    k = result.n_clusters
    values = np.asarray(result.eigenvalues, dtype=float)[: max(12, k + 2)]
    at = np.arange(1, len(values) + 1)
    with drawing.style():
        fig, ax = drawing.sheet(2.7)
        if k < len(values):
            ax.axhspan(values[k], values[k - 1], color=drawing.RULE, alpha=0.7, linewidth=0)
            middle = (values[k] + values[k - 1]) / 2
            words = f"gap {values[k - 1] - values[k]:.2f}"
            ax.text(len(values) + 0.45, middle, words, ha="right", va="center", fontsize=8.5)
        for inside, face in ((at <= k, drawing.BLUE), (at > k, drawing.PAPER)):
            ax.vlines(
                at[inside],
                min(0.0, values.min(initial=0.0)),
                values[inside],
                color=drawing.MUTED,
                linewidth=1,
            )
            edge = drawing.BLUE if face == drawing.BLUE else drawing.MUTED
            ax.plot(at[inside], values[inside], "o", markerfacecolor=face, markeredgecolor=edge)
        ax.set_xticks(at)
        ax.set_xlim(0.5, len(values) + 0.5)
        ax.set_xlabel("eigenvalue, in order of size")
        ax.set_ylabel("eigenvalue")
        drawing.bare(ax, "y")
    return fig


def plot_held_out_loss(result: Any) -> Figure:
    """Draw the held-out loss by number of groups.

    Parameters
    ----------
    result : MetaClusteringResult
        Of a run with ``n_clusters="cv"``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    losses = np.asarray(result.cv_losses, dtype=float)
    at = np.arange(1, len(losses) + 1)
    chosen = at == result.n_clusters
    with drawing.style():
        fig, ax = drawing.sheet(2.6)
        ax.plot(at, losses, color=drawing.MUTED, linewidth=1.2)
        ax.plot(
            at[~chosen],
            losses[~chosen],
            "o",
            markerfacecolor=drawing.PAPER,
            markeredgecolor=drawing.MUTED,
        )
        ax.plot(at[chosen], losses[chosen], "o", color=drawing.BLUE, markersize=8)
        step = max(1, len(losses) // 12)
        ax.set_xticks(at[::step])
        ax.set_xlabel("number of groups")
        ax.set_ylabel("held-out loss")
        drawing.bare(ax, "y")
    return fig

"""Figures of meta clustering: pairs of sites, merges, what could be seen, what was gained.

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

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.collaborators.kernels import ENOUGH_POWER
from consilience.collaborators.kernels import LONE_THRESHOLD as THRESHOLD
from consilience.report import charts

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


def same_group(result: Any) -> BoolArray:
    """Whether the two sites of each pair share a group."""
    labels = np.asarray(result.labels)
    return pairs((labels[:, None] == labels[None, :]).astype(float)) > 0


def runs(labels: IntArray) -> list[tuple[int, int, int]]:
    """First position, end and group of each run of equal labels."""
    cuts = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    return [(a, b, int(labels[a])) for a, b in itertools.pairwise(cuts) if len(labels)]


def group_ticks(labels: IntArray, smallest: float) -> tuple[list[float], list[str]]:
    """Middle and name of each run that is wide enough to carry a name."""
    found = [(a, b, g) for a, b, g in runs(labels) if b - a >= smallest * len(labels)]
    words = "group {}" if len(found) <= 6 else "{}"
    return [(a + b) / 2 for a, b, _ in found], [words.format(g) for _, _, g in found]


def _list_sites(ax: Axes, result: Any, order: IntArray, words: str) -> None:
    """Name the lines of a list: each site, or where they are many each group."""
    labels, n = np.asarray(result.labels)[order], len(order)
    if n > NAMES_IN_LIST:
        ax.set_yticks(*group_ticks(labels, 0.04))
        return
    sites = [charts.label(result.sites[i], 24) for i in order]
    names = [words.format(site=s, group=g) for s, g in zip(sites, labels, strict=True)]
    ax.set_yticks(np.arange(n) + 0.5, names, fontsize=9 if n <= 40 else 8)


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
        result, result.z, charts.DIVERGING, scale, ticks, "z of the test of two sites", "{:z.1f}"
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
    return _map(result, result.together, charts.RISING, Normalize(0, 1), ticks, words, "{:.0%}")


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
        result, result.dissimilarity, charts.RISING, Normalize(0, top), None, words, "{:.2g}"
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
    with charts.style():
        fig, ax = charts.sheet(
            side + 1.1 + (0.5 if named else 0), width=min(charts.WIDTH, side + 3.3)
        )
        # Hatch what is not known, under the cells that are; the diagonal stays plain.
        if np.isnan(shown).sum() > n:
            lines: dict[str, Any] = {"edgecolor": charts.MUTED, "hatch": "////"}
            ax.add_patch(Rectangle((0, 0), n, n, facecolor=charts.RULE, linewidth=0, **lines))
        if named:
            plain: dict[str, Any] = {"facecolor": charts.RULE, "edgecolor": "none", "linewidth": 0}
            for i in range(n):
                ax.add_patch(Rectangle((i, i), 1, 1, **plain))
        else:
            ax.plot([0, n], [0, n], color=charts.RULE, linewidth=max(0.6, 360 / n), zorder=1.5)
        mesh: Any
        look: dict[str, Any] = {"cmap": colours, "norm": scale}
        if named:
            mesh = ax.pcolormesh(shown, edgecolor=charts.PAPER, linewidth=0.6, **look)
        else:
            look |= {"extent": (0, n, n, 0), "interpolation": "none"}
            mesh = ax.imshow(np.ma.masked_invalid(shown), zorder=2, **look)
        if n <= NUMBERS_IN_MAP:
            charts.in_cells(
                ax,
                shown,
                lambda v: text.format(v) if abs(v) < 1000 else f"{v:.0e}",
                mesh,
                zorder=4,
            )
        labels = np.asarray(result.labels)[order]
        frame: dict[str, Any] = {"linewidth": 1.8 if n <= 100 else 1.0, "zorder": 5}
        frame |= {"fill": False, "edgecolor": charts.INK, "clip_on": False}
        for start, end, _ in runs(labels):
            ax.add_patch(Rectangle((start, start), end - start, end - start, **frame))
        at, names = group_ticks(labels, 0.0 if n <= 12 else 0.04)
        if len(names) > 2 and n <= 6:  # no room for the word before each number
            names = [name.removeprefix("group ") for name in names]
        ax.set_xticks(at, names)
        ax.xaxis.tick_top()
        if named:
            sites = [charts.label(result.sites[i], 26) for i in order]
            ax.set_yticks(np.arange(n) + 0.5, sites, fontsize=9 if n <= 24 else 8)
        else:
            ax.set_yticks(at, names)
        ax.set_xlim(0, n)
        ax.set_ylim(n, 0)
        ax.set_aspect("equal")
        charts.bare(ax, "")
        # Which ends of the scale hold values beyond it.
        known = shown[np.isfinite(shown)]
        low, high = (known < (scale.vmin or 0.0)).any(), (known > (scale.vmax or 0.0)).any()
        beyond = ("neither", "max", "min", "both")[2 * int(low) + int(high)]
        place: dict[str, Any] = {"shrink": 0.8, "aspect": 30, "pad": 0.03, "extend": beyond}
        named_ticks = ticks and (ticks, [charts.minus(f"{t:g}") for t in ticks])
        charts.colour_bar(fig, mesh, ax, words, named_ticks, **place)
    return fig


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
    # merges without a pair to compare stand beyond all others
    x = np.concatenate([np.full(n, low), np.where(np.isfinite(heights), heights, beyond)])
    y = np.concatenate([np.argsort(order) + 0.5, np.zeros(n - 1)])
    made = np.arange(n - 1) < n - result.n_clusters
    named = n <= NAMES_IN_LIST
    with charts.style():
        fig, ax = charts.sheet((0.2 * n + 1.5) if named else 8.0)
        for step, (a, b) in enumerate(ids):
            node = n + step
            y[node] = (y[a] + y[b]) / 2
            line: dict[str, Any] = {"color": charts.INK, "linestyle": "-"}
            if not made[step]:
                line = {"color": charts.MUTED, "linestyle": (0, (3, 2))}
            along, across = [x[a], x[node], x[node], x[b]], [y[a], y[a], y[b], y[b]]
            ax.plot(along, across, linewidth=1.3 if named else 0.6, zorder=2, **line)
        if named:
            ax.hlines(y[n:], x[n:], thresholds, color=charts.RULE, linewidth=1, zorder=1.2)
            bar: dict[str, Any] = {"markersize": 8, "label": "threshold of the merge"}
            ax.plot(thresholds, y[n:], "|", color=charts.MUTED, zorder=2.5, **bar)
        below, size = heights <= thresholds, 6.5 if named else 3.5
        kinds: tuple[tuple[Any, ...], ...] = (
            (made & below, "o", charts.BLUE, charts.BLUE, "merged"),
            (
                made & ~below,
                "D",
                charts.ORANGE,
                charts.ORANGE,
                "merged, though above its threshold",
            ),
            (~made & ~below, "o", charts.PAPER, charts.MUTED, "not merged"),
            (
                ~made & below,
                "D",
                charts.PAPER,
                charts.BLUE,
                "not merged, though below its threshold",
            ),
        )
        for which, sign, face, edge, words in kinds:
            if which.any():
                more = {"markeredgewidth": 1.3, "label": words, "zorder": 3}
                charts.marks(ax, x[n:][which], y[n:][which], sign, face, edge, size, **more)
        for at, text, dash in (
            (THRESHOLD, f"{THRESHOLD:g}: two single sites", "-"),
            (LARGE_GROUP_THRESHOLD, f"{LARGE_GROUP_THRESHOLD:g}: large groups", ":"),
        ):
            line = {"color": charts.ORANGE, "linestyle": dash, "linewidth": 1.2}
            ax.axvline(at, zorder=1, label=text, **line)
        infinite = bool(np.isinf(heights).any())
        limit = beyond if infinite else high
        if high - low <= _STRAIGHT:
            ax.set_xlim(low, limit + 0.04 * (limit - low))
            ticks = np.asarray(MaxNLocator(6).tick_values(low, high))
        else:
            ax.set_xscale("symlog", linthresh=4, linscale=1.2)
            ax.set_xlim(low, limit * 1.4)
            ticks = np.array([-1e6, -1e4, -1e2, -10, -4, 0, 4, 10, 1e2, 1e3, 1e4, 1e5, 1e6])
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        words = [charts.minus(f"{t:g}") for t in ticks]
        if infinite:
            ticks, words = np.append(ticks, beyond), [*words, "no pair to\ncompare"]
        ax.set_xticks(ticks, words)
        ax.minorticks_off()
        _list_sites(ax, result, order, "{site} \N{MIDDLE DOT} {group}")
        if named:
            ax.set_ylabel("site \N{MIDDLE DOT} group")
        ax.set_ylim(n, 0)
        ax.set_xlabel("mean z between the two parts that meet")
        charts.bare(ax)
        charts.legend(fig, ncols=3, fontsize=8.5, handletextpad=0.5)
    return fig


# -------------------------------------------------------------------------------------------- gains


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

    The first have a chance of 80% or more of being told apart if each one's model were of no use
    to the other.
    """
    usable = np.isfinite(pairs(result.z))
    strong = usable & (pairs(result.power) >= ENOUGH_POWER)
    return int(strong.sum()), int((usable & ~strong).sum()), int((~usable).sum())


def power_kinds(result: Any) -> IntArray:
    """What is known of each pair of sites, as numbers of `POWER_WORDS`."""
    same, able = same_group(result), pairs(result.power) >= ENOUGH_POWER
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
    # equal widths on the logarithmic axis
    bins = np.geomspace(low * 0.9, high * 1.1, 29)
    with charts.style():
        fig, (top, ax) = charts.panels(2, 3.7, height_ratios=(0.14, 1))
        counts = np.bincount(kinds, minlength=len(POWER_WORDS)).tolist()
        looks: tuple[dict[str, Any], ...] = (
            {"facecolor": charts.MUTED},
            {"facecolor": charts.BLUE},
            {"facecolor": charts.ORANGE, "hatch": "////"},
            {"facecolor": charts.RULE, "hatch": "xxxx"},
        )
        left = 0.0
        for count, colour, words in zip(counts, looks, POWER_WORDS, strict=True):
            if count:
                share = count / sum(counts)
                text = f"{count:,} {'pair' if count == 1 else 'pairs'}: {words}"
                bar: dict[str, Any] = {"left": left, "height": 0.8, "label": text}
                top.barh(0, share, edgecolor=charts.PAPER, linewidth=0.6, **bar, **colour)
                left += share
        top.set_xlim(0, 1)
        top.set_xticks([])
        top.set_yticks([])
        charts.bare(top, "")
        look: dict[str, Any] = {"color": [charts.BLUE, charts.ORANGE], "hatch": ["", "////"]}
        look |= {"edgecolor": charts.PAPER, "linewidth": 0.5}
        parts = [shown[kinds == 1], shown[kinds == 2]]
        ax.hist(parts, bins=bins.tolist(), stacked=True, **look)
        if result.margin > 0:
            ax.axvline(result.margin, color=charts.INK, linestyle=":", linewidth=1.2)
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "right"}
            charts.note(ax, "margin", (result.margin, 1), (-4, 0), va="top", **place)
        ax.set_xscale("log")
        ax.set_xlim(min(bins[0], result.margin or 1.0) * 0.65, bins[-1])
        ends = ax.get_xlim()
        known = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        some = [t for t in known if ends[0] <= t <= ends[1]]
        ax.set_xticks(some, [charts.share(t) for t in some])
        ax.minorticks_off()
        ax.set_yticks(charts.whole_ticks(int(ax.get_ylim()[1])))
        ax.set_ylabel("pairs within groups")
        ax.set_xlabel("difference seen with a chance of 80%, share of the response variance")
        charts.bare(ax, "y")
        charts.legend(fig, ncols=2, handlelength=1.4)
    return fig


# --------------------------------------------------------------------------- gain


def gains(result: Any) -> list[str]:
    """Differences of losses that are known for at least one site, in the order they are told."""
    asked = [key for key in GAINS if key in result.gain]
    if result.n_clusters == 1:
        asked = [key for key in asked if key != "group_minus_all"]  # the group is all sites
    return [key for key in asked if np.isfinite(result.gain[key]).any()]


def plot_gain(result: Any) -> Figure:
    """Draw what working together saves at each site, with 95% intervals.

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
    with charts.style():
        tall = (0.2 * n + 1.5) if named else 8.0
        fig, axes = charts.panels(len(keys), tall, len(keys), layout={"w_pad": 0.12}, sharey=True)
        for ax, key in zip(axes, keys, strict=True):
            unit = np.asarray(result.target_variance, dtype=float)[order]
            value = np.asarray(result.gain[key], dtype=float)[order] / unit
            error = np.asarray(result.gain[f"{key}_error"], dtype=float)[order] / unit
            overall = result.overall_gain(key)
            charts.savings(ax, np.arange(n) + 0.5, value, error, overall, named)
            ax.set_xlim(*_gain_limits(value, error, *overall))
            ax.set_title(GAINS[key])
            ax.locator_params(axis="x", nbins=4)
            charts.bare(ax)
        axes[0].set_ylim(n, 0)
        _list_sites(axes[0], result, order, "{site}")
        fig.supxlabel(
            "reduction of loss, share of the response variance (right of 0: better)", fontsize=9.5
        )
    return fig


def _gain_limits(
    value: FloatArray, error: FloatArray, mean: float, its_error: float
) -> tuple[float, float]:
    """Range that holds nearly all intervals, zero and the overall interval."""
    known = np.isfinite(value) & np.isfinite(error)
    low, high = value[known] - charts.Z95 * error[known], value[known] + charts.Z95 * error[known]
    # of many sites the few widest intervals may run out of the picture
    cut = 0.0 if known.sum() <= 20 else 0.02
    ends = [0.0]
    if known.any():
        ends += [float(np.quantile(low, cut)), float(np.quantile(high, 1 - cut))]
    if np.isfinite(mean) and np.isfinite(its_error):
        ends += [mean - charts.Z95 * its_error, mean + charts.Z95 * its_error]
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
    with charts.style():
        fig, ax = charts.sheet(2.7)
        if k < len(values):
            ax.axhspan(values[k], values[k - 1], color=charts.RULE, alpha=0.7, linewidth=0)
            middle = (values[k] + values[k - 1]) / 2
            words = f"gap {values[k - 1] - values[k]:.2f}"
            ax.text(len(values) + 0.45, middle, words, ha="right", va="center", fontsize=8.5)
        for inside, face in ((at <= k, charts.BLUE), (at > k, charts.PAPER)):
            foot = min(0.0, values.min(initial=0.0))
            ax.vlines(at[inside], foot, values[inside], color=charts.MUTED, linewidth=1)
            edge = charts.BLUE if face == charts.BLUE else charts.MUTED
            ax.plot(at[inside], values[inside], "o", markerfacecolor=face, markeredgecolor=edge)
        ax.set_xticks(at)
        ax.set_xlim(0.5, len(values) + 0.5)
        ax.set_xlabel("eigenvalue, in order of size")
        ax.set_ylabel("eigenvalue")
        charts.bare(ax, "y")
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
    with charts.style():
        fig, ax = charts.sheet(2.6)
        ax.plot(at, losses, color=charts.MUTED, linewidth=1.2)
        hollow: dict[str, Any] = {
            "markerfacecolor": charts.PAPER,
            "markeredgecolor": charts.MUTED,
        }
        ax.plot(at[~chosen], losses[~chosen], "o", **hollow)
        ax.plot(at[chosen], losses[chosen], "o", color=charts.BLUE, markersize=8)
        step = max(1, len(losses) // 12)
        ax.set_xticks(at[::step])
        ax.set_xlabel("number of groups")
        ax.set_ylabel("held-out loss")
        charts.bare(ax, "y")
    return fig

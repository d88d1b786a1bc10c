"""Figures of classes of sequences and of tables of categories.

Each `plot_*` takes a fitted estimator, a result, or labels beside sequences, and returns a
Matplotlib figure, as in `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from consilience.arrays import FloatArray, IntArray
from consilience.clustering.kernels.sequences import Sequences
from consilience.exceptions import DataError, ParameterError
from consilience.parameters import check, whole
from consilience.report import charts

MOST_CLASSES = 12
"""Classes of which a figure is drawn."""
MOST_NUMBERS = 8
"""States up to which the numbers stand in the cells."""
MOST_LINES = 200
"""Sequences of one class that are drawn."""
MOST_LEVELS = 48
"""Levels of all columns of a map of item profiles; of more, the columns that differ most."""
_ACROSS = 3


# --------------------------------------------------------------------------- what is read


@dataclass(frozen=True, eq=False)
class Chains:
    """Classes of sequences: first states and steps.

    Attributes
    ----------
    states : tuple of S str
    initial : (K, S) array
    transition : (K, S, S) array
        NaN where nothing is known of a step or of a state.
    shares : (K,) array
    """

    states: tuple[str, ...]
    initial: FloatArray
    transition: FloatArray
    shares: FloatArray

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.initial)

    def by_time(self, length: int) -> FloatArray:
        """Chances of the states at the time points 1 to `length`, (K, length, S)."""
        steps = np.nan_to_num(self.transition)
        found = [self.initial]
        for _ in range(length - 1):
            found.append(np.einsum("ka,kab->kb", np.nan_to_num(found[-1]), steps))
        total = np.stack(found, axis=1)
        sums = total.sum(axis=2, keepdims=True)
        return np.asarray(np.divide(total, sums, out=np.full_like(total, np.nan), where=sums > 0))


def chains_of(fitted: Any) -> Chains:
    """Read classes of sequences from an estimator or a result.

    Raises
    ------
    ParameterError
        There are none in it.
    """
    if len(getattr(fitted, "states", None) or ()) and hasattr(fitted, "class_transition"):
        return Chains(
            tuple(str(state) for state in fitted.states),
            np.asarray(fitted.class_initial, float),
            np.asarray(fitted.class_transition, float),
            _shares(fitted),
        )
    names = ("states_", "initial_", "transition_", "proportions_")
    if not all(hasattr(fitted, name) for name in names):
        raise ParameterError.of("fitted", "a fit with classes of sequences", type(fitted).__name__)
    states, *arrays = (getattr(fitted, name) for name in names)
    return Chains(tuple(str(state) for state in states), *(np.asarray(a, float) for a in arrays))


def _shares(result: Any) -> FloatArray:
    """Shares of the classes over all sites."""
    sizes = np.asarray(result.class_sizes, float)
    return sizes / max(float(sizes.sum()), 1.0)


@dataclass(frozen=True, eq=False)
class Items:
    """Classes of rows of categories: chances of the levels of each column.

    Attributes
    ----------
    columns : tuple of d str
    levels : tuple of d tuples of str
    chances : tuple of (K, L_j) arrays
    shares : (K,) array
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    chances: tuple[FloatArray, ...]
    shares: FloatArray


def items_of(fitted: Any) -> Items:
    """Read item profiles from an estimator or a result.

    Raises
    ------
    ParameterError
        There are none in it.
    """
    known = getattr(fitted, "category_levels", None)
    if known:
        means = np.asarray(fitted.class_means, float)
        ends = np.cumsum([len(levels) for levels in known.values()])[:-1]
        return Items(
            tuple(str(name) for name in known),
            tuple(tuple(str(level) for level in levels) for levels in known.values()),
            tuple(np.split(means, ends, axis=1)),
            _shares(fitted),
        )
    if not all(hasattr(fitted, name) for name in ("levels_", "class_probabilities_")):
        raise ParameterError.of("fitted", "a fit with item profiles", type(fitted).__name__)
    d = len(fitted.levels_)
    names = getattr(fitted, "feature_names_in_", [f"column {j + 1}" for j in range(d)])
    return Items(
        tuple(str(name) for name in names),
        tuple(tuple(str(level) for level in known) for known in fitted.levels_),
        tuple(np.asarray(each, float) for each in fitted.class_probabilities_),
        np.asarray(fitted.proportions_, float),
    )


@dataclass(frozen=True, eq=False)
class Told:
    """Sequences with the class of each.

    Attributes
    ----------
    wide : (n, t) array of int
        -1 where nothing was seen.
    labels : (n,) array of int
        -1 is no class.
    states : tuple of str
    times : tuple of str
        Names of the time points.
    """

    wide: IntArray
    labels: IntArray
    states: tuple[str, ...]
    times: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes, the last one that occurs included."""
        return int(self.labels.max(initial=-1)) + 1


def told_of(fitted: Any, x: Any) -> Told:
    """Read sequences, and their classes by an estimator or as they are given.

    Parameters
    ----------
    fitted : estimator with `predict`, or (n,) array of int
    x : what `MarkovMixture.fit` takes

    Raises
    ------
    DataError
        There is not one label for each sequence, or no state was seen in any.
    """
    from consilience.clustering.estimators.mixture import column_names, sequences_of

    own = getattr(fitted, "states_", None)
    sequences: Sequences = sequences_of(x, None if own is None else own.tolist())
    labels = fitted.predict(x) if hasattr(fitted, "predict") else fitted
    labels = np.asarray(labels)
    if labels.shape != (len(sequences),) or labels.dtype.kind not in "iu":
        raise DataError("labels must be whole numbers, one for each sequence")
    wide = np.asarray(sequences.to_wide(), dtype=np.int64)
    if not wide.size:
        raise DataError("no state was seen in any sequence: there is nothing to draw")
    names = sequences.states or tuple(range(sequences.n_states))
    columns = column_names(x)
    times = list(range(1, wide.shape[1] + 1)) if columns is None else list(columns)
    return Told(
        wide,
        labels.astype(np.int64),
        tuple(str(name) for name in names),
        tuple(str(time) for time in times)[: wide.shape[1]],
    )


# --------------------------------------------------------------------------- what panels share


def state_colours(n_states: int) -> list[tuple[float, float, float]]:
    """Return one colour for each state; after eight they return lighter, then darker."""
    found = []
    for code in range(n_states):
        turn, place = divmod(code, len(charts.CLASS_COLOURS))
        colour = np.array(to_rgb(charts.CLASS_COLOURS[place]))
        if turn % 3 == 1:
            colour = 0.5 + colour / 2
        elif turn % 3 == 2:
            colour = 0.55 * colour
        found.append(tuple(float(v) for v in colour))
    return found  # type: ignore[return-value]


def _panels(
    n: int, height: float, more: float, across: int = _ACROSS, **settings: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `n` panels, row by row; `more` inches for what stands around them."""
    if not 0 < n <= MOST_CLASSES:
        raise ParameterError.of("fitted", f"1 to {MOST_CLASSES} classes", n)
    columns = min(n, across)
    rows = -(-n // columns)
    width = charts.WIDTH if columns > 1 else 0.62 * charts.WIDTH
    return charts.panels(n, height * rows + more, columns, width, **settings)


def _title(ax: Axes, k: int, words: str) -> None:
    ax.set_title(f"class {k}: {words}" if words else f"class {k}", loc="left")


def _percent(share: float) -> str:
    return f"{share:.0%}" if np.isfinite(share) else ""


def _legend(fig: Figure, states: Sequence[str], *, unseen: bool = False) -> None:
    """Put the colours of the states above the panels."""
    handles = [
        Patch(facecolor=colour, label=charts.label(name, 18))
        for name, colour in zip(states, state_colours(len(states)), strict=True)
    ]
    if unseen:
        handles.append(Patch(facecolor=charts.RULE, label="not seen"))
    columns = max(2, min(len(handles), _in_a_line(states)))
    look: Any = {"loc": "outside upper left", "handlelength": 1.1, "columnspacing": 1.3}
    charts.legend(fig, handles=handles, ncols=columns, **look)


def _in_a_line(states: Sequence[str]) -> int:
    """How many names of states a line of the legend takes."""
    return 84 // (max(len(charts.short(name, 18)) for name in states) + 6)


def _legend_height(states: Sequence[str]) -> float:
    return 0.22 * -(-(len(states) + 1) // max(2, _in_a_line(states))) + 0.1


def _time_axis(ax: Axes, times: Sequence[str], across: int) -> None:
    """Name some of the time points."""
    room = max(2, (7 if across > 1 else 9) - max(len(charts.short(t, 8)) for t in times) // 2)
    step = max(1, -(-len(times) // room))
    places = range(0, len(times), step)
    ax.set_xticks(places, [charts.label(times[i], 8) for i in places])


# --------------------------------------------------------------------------- states by time


def plot_state_distribution(fitted: Any, X: Any = None, *, length: int = 24) -> Figure:
    """Draw which states each class is in, by time.

    Parameters
    ----------
    fitted : MarkovMixture, a result over sequences, or an (n,) array of labels
    X : table, list of lists or Sequences, optional
        The sequences. Shares are those of the sequences of each class whose state was seen at the
        time. Without them the figure shows what the classes' chains say: ``u T^(t-1)``.
    length : int
        Time points that are drawn where no sequences are given.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ParameterError
        No class, more than twelve, or nothing to draw them from.
    DataError
        There is not one label for each sequence.
    """
    if X is None:
        check({"length": whole(1)}, {"length": length})
        chains = chains_of(fitted)
        states, times = chains.states, tuple(str(t) for t in range(1, length + 1))
        shares = chains.by_time(length)
        titles = [_percent(share) for share in chains.shares]
    else:
        told = told_of(fitted, X)
        states, times = told.states, told.times
        shares = _seen_shares(told.wide, told.labels, told.n_classes, len(states))
        sizes = np.bincount(told.labels[told.labels >= 0], minlength=told.n_classes)
        titles = [f"{n:,} ({_percent(n / max(sizes.sum(), 1))})" for n in sizes]
    with charts.style():
        more = 0.35 + _legend_height(states)
        fig, axes = _panels(len(shares), 1.55, more, sharey=True, sharex=True)
        places = np.arange(len(times))
        for k, (ax, share, words) in enumerate(zip(axes, shares, titles, strict=True)):
            bottom = np.zeros(len(places))
            ax.set_facecolor(charts.RULE)
            for colour, part in zip(state_colours(len(states)), np.nan_to_num(share).T):
                ax.bar(places, part, width=1.0, bottom=bottom, color=colour, linewidth=0)
                bottom = bottom + part
            _title(ax, k, words)
            ax.set_xlim(-0.5, len(places) - 0.5)
            ax.set_ylim(0, 1)
            ax.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
            _time_axis(ax, times, len(axes))
            charts.bare(ax, "")
        axes[0].set_ylabel("share of the class")
        fig.supxlabel("time", fontsize=9.5)
        _legend(fig, states)
    return fig


def _seen_shares(wide: IntArray, labels: IntArray, k: int, s: int) -> FloatArray:
    """Shares of the states among those that were seen, (K, t, S); NaN where none was."""
    counts = np.zeros((k, wide.shape[1], s))
    rows, times = np.nonzero((wide >= 0) & (labels >= 0)[:, None])
    np.add.at(counts, (labels[rows], times, wide[rows, times]), 1.0)
    total = counts.sum(axis=2, keepdims=True)
    return np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0)


# --------------------------------------------------------------------------- steps


def plot_transitions(fitted: Any) -> Figure:
    """Draw the chances of first states and of steps in each class as maps of colours.

    Parameters
    ----------
    fitted : MarkovMixture, or a result over sequences

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each class: its first states above, then a row for each present state with
        the chances of the next one, in percent. The scale of colours is stretched near 0, since
        most sequences stay where they are for most of the time. Of an estimator, a row of equal
        numbers is that of a state from which nothing was seen; of a result such a row is grey.

    Raises
    ------
    ParameterError
        No class, or more than twelve.
    """
    chains = chains_of(fitted)
    s = len(chains.states)
    with charts.style():
        longest = max(len(charts.short(name, 14)) for name in chains.states)
        fig, axes = _panels(
            chains.n_classes,
            0.21 * max(s, 4) + 0.62,
            0.075 * longest + 0.55,
            across=_ACROSS if s <= 6 else 2,
            sharey=True,
            sharex=True,
        )
        for k, ax in enumerate(axes):
            mesh = _steps(ax, chains, k)
            _title(ax, k, _percent(chains.shares[k]))
        words = "chance of the next state (below) given the present one (left), %"
        ticks = ([0, 0.05, 0.2, 0.5, 1.0], ["0%", "5%", "20%", "50%", "100%"])
        charts.colour_bar(fig, mesh, axes, words, ticks, shrink=0.5)
    return fig


def _steps(ax: Axes, chains: Chains, k: int) -> Any:
    """Draw one class: first states, a space, steps."""
    s = len(chains.states)
    shades = charts.RISING.with_extremes(bad=charts.RULE)
    beside = np.arange(s + 1)
    mesh: Any = None
    for values, top in ((chains.initial[k][None, :], 0.0), (chains.transition[k], 1.35)):
        mesh = ax.pcolormesh(
            beside,
            top + np.arange(len(values) + 1),
            np.ma.masked_invalid(values),
            cmap=shades,
            norm=PowerNorm(0.5, 0.0, 1.0),
            edgecolor=charts.PAPER,
            linewidth=0.6,
        )
        for i, j in np.argwhere((np.nan_to_num(values) >= 0.005) & (s <= MOST_NUMBERS)).tolist():
            share = float(values[i, j])
            look: Any = {"ha": "center", "va": "center", "fontsize": 8.5}
            look["color"] = charts.letters_on(mesh.to_rgba(share)[:3])
            ax.text(j + 0.5, top + i + 0.5, f"{100 * share:.0f}", **look)
    names = [charts.label(name, 14) for name in chains.states]
    ax.set_yticks([0.5, *(1.85 + np.arange(s))], ["first state", *names], fontsize=8.5)
    ax.set_xticks(np.arange(s) + 0.5, names, rotation=90, fontsize=8.5)
    ax.set_ylim(s + 1.35, 0)
    charts.bare(ax, "")
    return mesh


# --------------------------------------------------------------------------- single sequences


def plot_sequence_index(fitted: Any, X: Any) -> Figure:
    """Draw every sequence as a line in the colours of its states, class by class.

    Parameters
    ----------
    fitted : estimator with `predict` (MarkovMixture, a site's predictor), or (n,) array of labels
    X : table, list of lists or Sequences

    Returns
    -------
    matplotlib.figure.Figure
        Lines of a class are sorted from the first state on; of more than 200, every so many-th is
        drawn. The height of a class says nothing; its size stands above it. This shows records: it
        is for those who hold them.

    Raises
    ------
    ParameterError
        No class, or more than twelve.
    DataError
        There is not one label for each sequence.
    """
    told = told_of(fitted, X)
    k, s = told.n_classes, len(told.states)
    seen = told.wide >= 0
    # What is missing after the last state is no part of a sequence.
    inside = seen[:, ::-1].cumsum(axis=1)[:, ::-1] > 0
    unseen = bool((inside & ~seen)[told.labels >= 0].any())
    shown = np.where(inside & ~seen, s, np.where(seen, told.wide, -1))
    colours = ListedColormap([*state_colours(s), to_rgb(charts.RULE)])
    with charts.style():
        more = 0.35 + _legend_height(told.states)
        fig, axes = _panels(k, 1.9, more, sharex=True)
        for c, ax in enumerate(axes):
            rows = np.flatnonzero(told.labels == c)
            order = rows[np.lexsort(told.wide[rows].T[::-1])]
            drawn = min(len(order), MOST_LINES)
            some = order[np.linspace(0, len(order) - 1, drawn).astype(int)]
            if drawn:
                image = np.ma.masked_less(shown[some], 0)
                ax.imshow(
                    image, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=s
                )
            cut = f", {len(some)} drawn" if len(some) < len(order) else ""
            _title(ax, c, f"{len(order):,}{cut}")
            ax.set_yticks([])
            ax.set_xlim(-0.5, len(told.times) - 0.5)
            _time_axis(ax, told.times, len(axes))
            charts.bare(ax, "")
        fig.supxlabel("time", fontsize=9.5)
        _legend(fig, told.states, unseen=unseen)
    return fig


# --------------------------------------------------------------------------- categories


def plot_item_profiles(fitted: Any) -> Figure:
    """Draw the chance of every level of every column in each class as a map of colours.

    Parameters
    ----------
    fitted : LatentClassAnalysis, or a result over categories

    Returns
    -------
    matplotlib.figure.Figure
        Of many columns those whose levels differ most between classes.

    Raises
    ------
    ParameterError
        There are no item profiles in it.
    """
    items = items_of(fitted)
    kept = shown_items(items)
    names, chances, ends = [], [], []
    for j in kept:
        for place, level in enumerate(items.levels[j]):
            column = charts.label(items.columns[j], 24) if place == 0 else ""
            names.append(f"{column}   {charts.label(level, 20)}")
            chances.append(items.chances[j][:, place])
        ends.append(len(names))
    values = np.array(chances)
    p, k = values.shape
    with charts.style():
        fig, ax = charts.sheet(0.24 * p + 1.0, width=min(charts.WIDTH, 4.0 + 0.62 * k))
        ax.set_facecolor(charts.RULE)
        mesh = charts.heat_map(ax, values, (0, 1), linewidth=0.6)
        charts.in_cells(ax, values, lambda v: f"{100 * v:.0f}", mesh)
        for end in ends[:-1]:
            ax.axhline(end, color=charts.MUTED, linewidth=0.8)
        heads = [f"class {c}\n{_percent(items.shares[c])}".rstrip() for c in range(k)]
        charts.cell_axes(ax, names, heads)
        ticks = ([0, 0.5, 1.0], ["0%", "50%", "100%"])
        charts.colour_bar(fig, mesh, ax, "share of the class with the level, %", ticks)
    return fig


def shown_items(items: Items) -> list[int]:
    """Return the columns that are drawn: all, or those that differ most between classes."""
    apart = [_apart(each, items.shares) for each in items.chances]
    kept: list[int] = []
    room = MOST_LEVELS
    for j in np.argsort(-np.array(apart), kind="stable").tolist():
        if len(items.levels[j]) <= room or not kept:
            kept.append(j)
            room -= len(items.levels[j])
    return sorted(kept)


def _apart(chances: FloatArray, shares: FloatArray) -> float:
    """Variance of the chances between classes, over the levels."""
    weight = np.nan_to_num(shares)[:, None]
    mean = (np.nan_to_num(chances) * weight).sum(axis=0) / max(float(weight.sum()), 1e-300)
    return float(np.nansum(weight * (chances - mean) ** 2))


# --------------------------------------------------------------------------- sites


def plot_site_differences(result: Any) -> Figure:
    """Draw how far sites are apart in each class, in the common classes and in those found alone.

    Parameters
    ----------
    result : EnsembleClusteringResult
        Over sequences or categories, with at least two sites that told of a class.

    Returns
    -------
    matplotlib.figure.Figure
        Root mean square of the distances (Frobenius) over classes and pairs of sites without the
        error of counting, with its interval; as counted, single distances as small dots, and what
        equal sites would give as a grey stroke.

    Raises
    ------
    ParameterError
        There are no differences in it.
    """
    found = getattr(result, "differences", {})
    if not found or not len(found["pairs"]):
        raise ParameterError.of("result", "one with differences of sites", type(result).__name__)
    words = {"initial": "first states", "transition": "steps", "levels": "levels"}
    parts = [words.get(part, part) for part in found["parts"]]
    kinds = (("ensemble", "common classes", charts.BLUE), ("local", "alone", charts.ORANGE))
    ticks, at = [], []
    with charts.style():
        fig, ax = charts.sheet(0.62 * len(parts) + 0.7)
        for i, part in enumerate(parts):
            for j, (kind, name, colour) in enumerate(kinds):
                y = 2.6 * i + j
                single = np.asarray(found[kind], dtype=float)[i].ravel()
                single = single[np.isfinite(single)]
                ax.plot(single, np.full(len(single), y), "o", color=colour, ms=3, alpha=0.35)
                mean, low, high = (
                    float(np.asarray(found[f"{kind}_{end}"], dtype=float)[i])
                    for end in ("estimate", "low", "high")
                )
                ax.hlines(y, low, high, color=colour, linewidth=2.0)
                # Whole also on the axis.
                look: Any = {"markersize": 7, "markeredgecolor": charts.INK, "clip_on": False}
                ax.plot(mean, y, "o", color=colour, **look)
                ticks.append(f"{part}, {name}")
                at.append(y)
            chance = float(np.asarray(found["chance"], dtype=float)[i])
            if np.isfinite(chance):
                ax.vlines(chance, 2.6 * i - 0.45, 2.6 * i + 1.45, color=charts.MUTED, linewidth=2)
        ax.set_yticks(at, ticks)
        ax.set_ylim(max(at) + 0.7, -0.7)
        ax.set_xlim(left=0)
        ax.set_xlabel("distance of two sites in a class")
        charts.bare(ax)
    return fig

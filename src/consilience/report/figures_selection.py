"""Figures of held-out entries: the error by rank, penalty or number of clusters, and the models.

Each `plot_*` takes a search, a curve, a fitted estimator or the result of a run and returns a
Matplotlib figure, as in `figures`. What figures and words read is a `Curve`: one form for curves,
searches and results.

Evidence in reports on held-out entries: the curve, the choice, what can be believed of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.report import charts, figures_selection
from consilience.report.charts import minus, short
from consilience.report.figures import feature_names
from consilience.report.sections import (
    DASH,
    Block,
    Picture,
    Table,
    listed,
    numbers,
    percent,
    plural,
    site_name,
)

KINDS = {
    "rank": ("rank", "rank of the model"),
    "alpha": ("penalty", "penalty (alpha): simpler to the right"),
    "n_clusters": ("number of clusters", "number of clusters"),
}
"""A candidate in words, and the axis along which candidates are drawn, by their kind."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Error on held-out entries by candidate.

    Attributes
    ----------
    kind : str
        "rank", "alpha", "n_clusters", or the name of another parameter.
    values : (A,) array
        The candidates, from the smallest to the largest.
    error : (A,) array
        Mean squared error of an entry that was held out; NaN where it is not known.
    se : (A,) array
        Its standard error over the folds; NaN where it is not known.
    folds : (F, A) array
        The same by fold; without lines where folds are not known.
    minimum : int
        Place of the smallest error; -1 where there is none.
    simplest : int
        Place of the simplest candidate within a standard error of it; -1 where it is not known.
    at_edge : bool
        Whether the smallest error is at an end of the grid beyond which candidates exist.
    n_entries : int
        Entries that were held out, all folds together; 0 where it is not known.
    names : tuple of str
        What candidates are called that are no numbers, such as estimators; then `values` are their
        places.
    """

    kind: str
    values: FloatArray
    error: FloatArray
    se: FloatArray
    folds: FloatArray
    minimum: int
    simplest: int = -1
    at_edge: bool = False
    n_entries: int = 0
    names: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether any error is known."""
        return self.minimum >= 0

    @property
    def name(self) -> str:
        """What a candidate is, in words."""
        return KINDS.get(self.kind, (self.kind.replace("_", " "), ""))[0]

    def words(self, place: int) -> str:
        """Write a candidate: "rank 6", "penalty 0.31", "3 clusters"."""
        if self.names:
            return short(self.names[place])
        value = value_words(self.kind, float(self.values[place]))
        if self.kind == "n_clusters":
            return f"{value} cluster" + "s" * (value != "1")
        return f"{self.name} {value}"

    @property
    def flat(self) -> IntArray:
        """Places whose error is within a standard error of the smallest."""
        if not self.known:
            return np.empty(0, dtype=np.int64)
        least, bar = float(self.error[self.minimum]), float(self.se[self.minimum])
        # Of one fold there is no standard error: then only equals of the smallest are near it.
        limit = least + (bar if math.isfinite(bar) else 0.0)
        return np.flatnonzero(self.error <= limit)


def value_words(kind: str, value: float) -> str:
    """Write the value of a candidate."""
    return f"{value:,.0f}" if value == round(value) and kind != "alpha" else f"{value:.3g}"


def curve_of(fitted: Any) -> Curve:
    """Read errors on held-out entries by candidate.

    Parameters
    ----------
    fitted : a search (RankCV, NuclearNormCV, ClusterCountCV), an EntryCurve, a result, or Curve
        Or a LeaveOneOut, which has no folds.

    Raises
    ------
    ParameterError
        Nothing was held out in it.
    """
    if isinstance(fitted, Curve):
        return fitted
    found = getattr(fitted, "curve_", None)
    if found is None:
        found = getattr(fitted, "curve", None) or fitted
        found = found() if callable(found) else found
    if isinstance(found, Curve):
        return found
    if hasattr(found, "parameters") and hasattr(found, "n_entries"):
        return _of_leave_one_out(found)
    if not (hasattr(found, "parameters") and hasattr(found, "mean")):
        wanted = "a search over held-out entries, its curve, or a result with one"
        raise ParameterError.of("fitted", wanted, type(fitted).__name__)
    return made(
        str(found.parameter),
        found.parameters,
        found.mean,
        found.se,
        found.errors,
        places=(int(found.minimiser), int(found.one_standard_error)),
        at_edge=bool(found.at_edge),
        n_entries=int(np.nansum(np.asarray(found.n_held, dtype=float))),
    )


def _of_leave_one_out(found: Any) -> Curve:
    values = np.asarray(found.parameters)
    errors = np.asarray(found.errors, dtype=float)
    known = np.isfinite(errors)
    best = int(np.argmin(np.where(known, errors, np.inf))) if known.any() else -1
    return made(
        "rank" if values.dtype.kind in "iu" else "alpha",
        values,
        errors,
        np.full(len(values), np.nan),
        (),
        places=(best, -1),
        n_entries=int(found.n_entries),
    )


def made(
    kind: str,
    values: ArrayLike,
    error: ArrayLike,
    se: ArrayLike,
    folds: ArrayLike,
    *,
    places: tuple[int, int] = (-1, -1),
    at_edge: bool = False,
    n_entries: int = 0,
) -> Curve:
    """Put candidates into order.

    Parameters
    ----------
    kind, values, error, se, folds, at_edge, n_entries
        As in `Curve`, in any order of the candidates.
    places : tuple of two int
        Of the smallest error and the simplest candidate near it, among `values` as they are given;
        -1 where there is none.
    """
    given = np.asarray(values).reshape(-1)
    named = given.dtype.kind not in "iuf"
    # Names have no places on an axis: they stand in the order in which they were given.
    value = np.arange(float(len(given))) if named else given.astype(float)
    # Searches keep candidates from the simplest on, which for penalties is the largest.
    order = np.argsort(value, kind="stable")
    mean = np.asarray(error, dtype=float).reshape(-1)[order]
    by_fold = np.asarray(folds, dtype=float)
    by_fold = by_fold[:, order] if by_fold.ndim == 2 else np.empty((0, len(value)))
    minimum, simplest = (int(np.flatnonzero(order == at)[0]) if at >= 0 else -1 for at in places)
    return Curve(
        kind,
        value[order],
        np.where(np.isfinite(mean), mean, np.nan),
        np.asarray(se, dtype=float).reshape(-1)[order],
        by_fold,
        minimum,
        simplest,
        at_edge and minimum >= 0,
        n_entries,
        tuple(str(name) for name in given) if named else (),
    )


def curves_of(fitted: Any) -> dict[str, Curve]:
    """Read one curve, or several by their names.

    Parameters
    ----------
    fitted : what `curve_of` takes, or a mapping of names to it

    Raises
    ------
    ParameterError
        The curves are not of the same parameter.
    """
    if not isinstance(fitted, Mapping):
        return {"": curve_of(fitted)}
    found = {str(name): curve_of(one) for name, one in fitted.items()}
    kinds = {curve.kind for curve in found.values()}
    if len(kinds) != 1:
        raise ParameterError.of("fitted", "curves of one parameter", ", ".join(sorted(kinds)))
    return found


COLOURS = (charts.BLUE, "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c")
MOST_CURVES = len(COLOURS)
STEEP = 6.0
"""Range of a curve over its standard error at the minimum from which the bottom is drawn again."""
MOST_BARS = 60
"""Components of which the variance is drawn."""
MOST_ROWS, MOST_COLUMNS = 30, 12
"""Columns and components of a map of loadings; of more, those that weigh most."""


# --------------------------------------------------------------------------- the curve


def plot_entry_curve(fitted: Any) -> Figure:
    """Draw the error on held-out entries by candidate, with its standard error.

    Parameters
    ----------
    fitted : RankCV, NuclearNormCV, ClusterCountCV, EntryCurve, or a result with such a curve
        Or a mapping of names to several of them, over the same parameter.

    Returns
    -------
    matplotlib.figure.Figure
        Marks show the smallest error and the simplest candidate within a standard error of it. A
        minimum at an end of the grid beyond which candidates exist is said to be one. Where the
        curve is steep, its bottom is drawn again beside it.

    Raises
    ------
    ParameterError
        Nothing was held out; more than five curves, or curves of different parameters.
    """
    curves = curves_of(fitted)
    if not 0 < len(curves) <= MOST_CURVES:
        raise ParameterError.of("fitted", f"1 to {MOST_CURVES} curves", len(curves))
    first = next(iter(curves.values()))
    near = _bottom(first) if len(curves) == 1 else None
    with charts.style():
        n = 2 if near is not None else 1
        fig, axes = charts.panels(n, 3.1, n)
        for ax in axes:
            for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
                _curve(ax, curve, colour, name)
            _candidate_axis(ax, first)
            charts.bare(ax, "y")
        for curve in curves.values():
            if curve.at_edge:
                _edge(axes[0], curve)
        axes[0].set_ylabel("squared error of a held-out entry")
        if near is not None:
            _look_at(axes[1], first, *near)
        charts.shared_legend(fig, axes[0], ncols=2)
    return fig


def _curve(ax: Axes, curve: Curve, colour: str, name: str) -> None:
    at, error, se = curve.values, curve.error, curve.se
    words = charts.label(name, 40)
    many = bool(words)
    for fold in curve.folds if not many else ():
        ax.plot(at, fold, "-", color=charts.MUTED, linewidth=0.6, alpha=0.35, zorder=1)
    bars = charts.errors_by_candidate(ax, at, error, se, colour, linewidth=1.4)
    told = words or "error" + ", with its standard error" * bool(bars.any())
    dot = 3.5 if len(at) <= 30 else 2.0
    ax.plot(at, error, "o-", color=colour, markersize=dot, linewidth=1.3, label=told)
    if not curve.known:
        return
    smallest = f"smallest: {charts.label(curve.words(curve.minimum), 40)}"
    smallest += ", no choice" if curve.at_edge else ""
    _mark(ax, curve, curve.minimum, "D", charts.ORANGE, "" if many else smallest)
    if curve.simplest >= 0 and not curve.at_edge and not many:
        _within(ax, curve)


def _edge(ax: Axes, curve: Curve) -> None:
    left = curve.minimum == 0
    at = (float(curve.values[curve.minimum]), float(curve.error[curve.minimum]))
    look: Any = {"ha": "left" if left else "right", "va": "bottom", "color": charts.INK}
    arrow = {"arrowstyle": "-|>", "color": charts.MUTED, "linewidth": 0.9}
    charts.note(ax, "the grid ends here", at, (10 if left else -10, 20), arrowprops=arrow, **look)


def _mark(ax: Axes, curve: Curve, place: int, sign: str, colour: str, words: str) -> None:
    look: Any = {"markeredgewidth": 0.7, "zorder": 4, "label": words or "_nolegend_"}
    at = [curve.values[place]], [curve.error[place]]
    charts.marks(ax, *at, sign, colour, charts.INK, 7, **look)


def _within(ax: Axes, curve: Curve) -> None:
    """Mark the simplest candidate within a standard error, and the line that it stays under."""
    limit = float(curve.error[curve.minimum] + curve.se[curve.minimum])
    if np.isfinite(limit):
        ax.axhline(limit, color=charts.MUTED, linewidth=0.9, linestyle=":")
    if curve.simplest != curve.minimum:
        words = f"simplest within a standard error: {charts.label(curve.words(curve.simplest), 40)}"
        _mark(ax, curve, curve.simplest, "s", charts.GREEN, words)


def _candidate_axis(ax: Axes, curve: Curve) -> None:
    ax.set_xlabel(KINDS.get(curve.kind, ("", curve.name))[1] or curve.name)
    ax.tick_params(which="minor", length=0)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    if curve.names:
        labels = [charts.label(name, 16) for name in curve.names]
        ax.set_xticks(curve.values, labels)
    elif curve.kind == "alpha" and (curve.values > 0).all() and len(curve.values) > 1:
        charts.log_axis(ax, "{:g}".format)
        # Decades alone would leave a short axis with one tick.
        narrow = curve.values.max() < 30 * curve.values.min()
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    elif curve.kind != "alpha":
        ax.xaxis.set_major_locator(MaxNLocator(8 if len(curve.values) > 15 else 15, integer=True))


def _bottom(curve: Curve) -> tuple[int, int] | None:
    """Return the first and last candidate near the minimum, where the rest hides it."""
    if not curve.known or curve.names or len(curve.values) < 6:
        return None
    known = np.isfinite(curve.error)
    window = _window(curve)
    if float(np.ptp(curve.error[known])) < STEEP * window:
        return None
    near = known & (curve.error <= curve.error[curve.minimum] + window)
    low = high = curve.minimum
    while low > 0 and near[low - 1]:
        low -= 1
    while high + 1 < len(near) and near[high + 1]:
        high += 1
    low, high = (
        max(0, min(low, curve.minimum - 2)),
        min(len(near) - 1, max(high, curve.minimum + 2)),
    )
    return (low, high) if high - low < len(near) - 1 else None


def _window(curve: Curve) -> float:
    """How far above the smallest error is still near."""
    bar, at = float(np.nan_to_num(curve.se[curve.minimum])), curve.minimum
    sides = (curve.error[: at + 1], curve.error[at:])
    rises = [float(np.nanmax(side) - curve.error[at]) for side in sides]
    # Of a curve that rises on both sides the flatter one is to be seen.
    rise = min(rises) if min(rises) > 0 else max(rises)
    return max(4.0 * bar, 0.04 * rise)


def _look_at(ax: Axes, curve: Curve, low: int, high: int) -> None:
    """Cut an axis to the candidates from `low` to `high`."""
    shown = slice(low, high + 1)
    inner = curve.error[shown]
    # A neighbour far above the others would press the bottom flat: its line leaves the drawing.
    inner = inner[inner <= curve.error[curve.minimum] + 3.0 * _window(curve)]
    bars = np.nan_to_num(curve.se[curve.minimum])
    bottom, top = float(np.nanmin(inner - bars)), float(np.nanmax(inner + bars))
    room = 0.08 * (top - bottom) or 0.1 * abs(top) or 1.0
    ax.set_ylim(bottom - room, top + room)
    first, last = float(curve.values[low]), float(curve.values[high])
    if ax.get_xscale() == "log":
        ratio = (last / first) ** 0.06
        ax.set_xlim(first / ratio, last * ratio)
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        side = 0.05 * (last - first)
        ax.set_xlim(first - side, last + side)
    ax.set_title("the bottom of the curve", loc="left", color=charts.MUTED)


# --------------------------------------------------------------------------- rules


def plot_set_aside(names: Sequence[str], errors: FloatArray, se: FloatArray) -> Figure:
    """Draw root mean squared errors of entries that took no part, by rule, with intervals.

    Parameters
    ----------
    names : sequence of str
        The rule that was fitted first.
    errors, se : (m,) arrays
        Mean squared errors and their standard errors; NaN where they are not told.

    Returns
    -------
    matplotlib.figure.Figure
    """
    half = charts.Z95 * np.asarray(se, dtype=float)
    ends = np.sqrt(np.column_stack([np.maximum(errors - half, 0.0), errors + half]))
    words = "root mean squared error of cells that took no part"
    with charts.style():
        fig, _ = charts.rules(names, np.sqrt(errors), ends, words)
    return fig


# --------------------------------------------------------------------------- leave-one-out


def plot_leave_one_out(found: Any, *, beside: Any = None, truth: float | None = None) -> Figure:
    """Draw the one-step leave-one-out error by rank or penalty.

    Parameters
    ----------
    found : LeaveOneOut, a RankCV with cv="one-step", or a mapping of names to several
        As of both variants.
    beside : a search over held-out entries or its curve, optional
        Folds over the same candidates.
    truth : float, optional
        A candidate that is known to be right, as in simulations; drawn as a dashed line.

    Returns
    -------
    matplotlib.figure.Figure
    """
    named = found if isinstance(found, Mapping) else {"one-step leave-one-out": found}
    curves = {str(name): curve_of(one) for name, one in named.items()}
    if beside is not None:
        curves["folds, with the standard error"] = curve_of(beside)
    figure = plot_entry_curve(curves)
    if truth is not None:
        with charts.style():
            for ax in figure.axes:
                ax.axvline(truth, color=charts.MUTED, linewidth=1.0, linestyle="--", zorder=0)
    return figure


# --------------------------------------------------------------------------- the model


def plot_singular_values(fitted: Any) -> Figure:
    """Draw what each component of a low-rank model carries.

    Parameters
    ----------
    fitted : a fitted factoriser (HardImpute, SoftImpute, ...), a search, or a result
        With singular values, or with shares of the variance.

    Returns
    -------
    matplotlib.figure.Figure
        Shares of the variance with their sum where they are known, else singular values. Where
        variances of components beyond the model are known, these are drawn in grey.

    Raises
    ------
    ParameterError
        There is neither in it.
    """
    model = getattr(fitted, "best_estimator_", fitted)
    shares, kept = _shares(model)
    values = shares if shares.size else _attribute(model, "singular_values")
    if values is None or not values.size:
        raise ParameterError.of("fitted", "a fit with singular values", type(fitted).__name__)
    values = values[: max(MOST_BARS, kept)]
    at, first = np.arange(1, len(values) + 1), slice(0, kept if shares.size else None)
    with charts.style():
        fig, ax = charts.sheet(2.5, min(charts.WIDTH, 3.4 + 0.25 * len(values)))
        ax.bar(at[first], values[first], width=0.7, color=charts.BLUE, label="each component")
        if shares.size:
            if kept < len(values):
                beyond = values[kept:]
                words = "not in the model"
                ax.bar(at[kept:], beyond, width=0.7, color=charts.RULE, label=words)
            total = np.cumsum(values)
            ax.plot(at, total, "o-", color=charts.ORANGE, markersize=4, label="sum")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
            ax.set_ylabel("share of the variance")
            charts.legend(fig, loc="outside upper left", ncols=3)
        else:
            ax.set_ylabel("singular value")
        ax.set_xlabel("component")
        ax.set_ylim(bottom=0)
        ax.set_xlim(0.4, len(values) + 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        charts.bare(ax, "y")
    return fig


def _shares(model: Any) -> tuple[FloatArray, int]:
    """Return shares of the variance by component, and how many are in the model."""
    shares = _attribute(model, "explained_variance_ratio")
    kept = 0 if shares is None else len(shares)
    # Of a result over sites also what lies beyond the model.
    # An estimator's variances are those of its components alone.
    spectrum = None if hasattr(model, "fit") else _attribute(model, "variances")
    if spectrum is not None and spectrum.sum() > 0:
        return spectrum / spectrum.sum(), kept
    return (np.empty(0) if shares is None else shares), kept


def plot_loadings(fitted: Any) -> Figure:
    """Draw the weight of every column in every component as a map of colours.

    Parameters
    ----------
    fitted : a fitted factoriser, a search, or a result with components

    Returns
    -------
    matplotlib.figure.Figure
        Of many columns those with the largest weights; the same of components, from the first on.

    Raises
    ------
    ParameterError
        There are no components in it.
    """
    model = getattr(fitted, "best_estimator_", fitted)
    weights = _attribute(model, "components")
    if weights is None or weights.ndim != 2 or not weights.size:
        raise ParameterError.of("fitted", "a fit with components", type(fitted).__name__)
    names, shown = shown_loadings(feature_names(model), weights)
    top = float(np.abs(shown).max()) or 1.0
    p, k = shown.shape
    with charts.style():
        fig, ax = charts.sheet(0.27 * p + 1.0, width=min(charts.WIDTH, 4.2 + 0.5 * k))
        mesh = charts.heat_map(ax, shown, (-top, top), cmap=charts.DIVERGING)
        charts.in_cells(ax, shown, "{:+z.2f}".format, mesh)
        heads = [str(j + 1) for j in range(k)]
        charts.cell_axes(ax, [charts.label(name, 34) for name in names], heads)
        words = "weight in the component:\nnegative (blue) or positive (orange)"
        charts.colour_bar(fig, mesh, ax, words)
    return fig


def shown_loadings(names: tuple[str, ...], weights: FloatArray) -> tuple[list[str], FloatArray]:
    """Return the columns that weigh most in the first components, and their weights, (p, k)."""
    first = weights[:MOST_COLUMNS].T
    # Chosen by weight, shown in the table's own order.
    order = np.argsort(-np.abs(first).max(axis=1), kind="stable")[:MOST_ROWS]
    kept = np.sort(order)
    return [names[j] for j in kept], first[kept]


def _attribute(model: Any, name: str) -> FloatArray | None:
    """Return an attribute of an estimator (with its underscore) or of a result."""
    found = getattr(model, f"{name}_", getattr(model, name, None))
    return None if found is None or not np.size(found) else np.asarray(found, dtype=float)


RULES = {
    "minimum": "the candidate with the smallest error was taken",
    "one-standard-error": "the simplest candidate within a standard error of the smallest error "
    "was taken",
}
KNOWN = (
    "Held-out entries are scattered over the table. The error applies to missing entries like "
    "these: not to whole missing rows or columns, nor to entries that are missing because of their "
    "values.",
    "Noise is assumed to be independent between entries. If neighbours share noise (time series, "
    "images, measurements in batches), too large a number is chosen, and no figure here shows it.",
    "Rows that occur twice, or nearly, predict one another: then, too, too large a number is "
    "chosen.",
    "The training sets of the folds overlap, so standard errors tend to be too small.",
)


# --------------------------------------------------------------------------- words


def predicted(curve: Curve, place: int) -> float:
    """Share of the simplest candidate's error that another one saves; NaN where it is not known.

    The simplest one predicts by means (rank 0, one cluster) where it is among the candidates.
    """
    if place < 0 or curve.kind not in ("rank", "n_clusters"):
        return math.nan
    # Rank 0 and one cluster predict by means: only they can be called that.
    first = {"rank": 0.0, "n_clusters": 1.0}[curve.kind]
    if curve.values[0] != first or not curve.error[0] > 0:
        return math.nan
    return float(1.0 - curve.error[place] / curve.error[0])


def near_words(curve: Curve) -> str:
    """Name the candidates that are within a standard error of the best."""
    # At an end of the grid neighbours say nothing of what lies beyond it.
    flat = [i for i in curve.flat if i != curve.minimum]
    if curve.at_edge or not flat or not math.isfinite(float(curve.se[curve.minimum])):
        return ""
    values = [value_words(curve.kind, float(curve.values[i])) for i in flat]
    if curve.kind == "alpha" and len(values) > 1:
        ends = (value_words("alpha", float(curve.values[i])) for i in curve.flat[[0, -1]])
        return (
            f"Penalties from {' to '.join(ends)} are within a standard error of the smallest "
            "error: the curve does not tell them apart."
        )
    is_are = "is" if len(values) == 1 else "are"
    many = "s" if len(values) > 1 and curve.name == "rank" else ""
    return (
        f"{curve.name.capitalize()}{many} {listed(values)} {is_are} within a standard error of the "
        "smallest error: the curve does not tell them apart."
    )


def edge_words(curve: Curve) -> str:
    """Say that the smallest error is where the grid ends."""
    if not curve.at_edge:
        return ""
    return (
        f"The smallest error is at the end of the grid, {curve.words(curve.minimum)}, and beyond "
        "it nothing was tried: this is no choice. Run the study again with a longer grid."
    )


def cautions(curve: Curve) -> list[str]:
    """What stands against the choice."""
    found = [edge_words(curve)]
    if not curve.known:
        found.append("No errors on held-out entries are known: nothing was chosen by them.")
    return [words for words in found if words]


# --------------------------------------------------------------------------- blocks


def choice(
    curve: Curve,
    chosen: int,
    rule: str,
    title: str,
    text: Sequence[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Block:
    """Show the error by candidate, and what was chosen.

    Parameters
    ----------
    curve : Curve
    chosen : int
        Place among the curve's candidates; -1 where nothing was chosen.
    rule : str
    title : str
    text : sequence of str
        Said first.
    columns : mapping of str to sequence of str, optional
        More columns of the table by their heads, in the order of the curve.
    """
    said = [*text]
    if curve.known:
        entries = f"{curve.n_entries:,} entries" if curve.n_entries else "Entries"
        said.append(
            f"{entries} were held out and predicted from the others; "
            f"{RULES.get(rule, 'one was taken')}."
        )
        said += [words for words in (near_words(curve),) if words]
    picture = None
    if curve.known:
        least = numbers([float(curve.error[curve.minimum])])[0]
        picture = Picture(
            f"selection-{curve.kind.replace('_', '-')}",
            figures_selection.plot_entry_curve(curve),
            "Mean squared error of a held-out entry by candidate; bars are standard errors"
            + (", thin lines parts of the entries." if len(curve.folds) > 1 else "."),
            f"Curve over {plural(len(curve.values), 'candidate')}, the smallest error {least} at "
            f"{curve.words(curve.minimum)}. The table below has the numbers.",
        )
    table = _table(curve, chosen, columns or {})
    return Block(title, tuple(said), edge_words(curve), picture, folded=(table,))


def _table(curve: Curve, chosen: int, columns: Mapping[str, Sequence[str]]) -> Table:
    marks = [
        "chosen" if i == chosen else "smallest" if i == curve.minimum else ""
        for i in range(len(curve.values))
    ]
    gains = [percent(predicted(curve, i)) for i in range(len(curve.values))]
    cells: dict[str, Sequence[str]] = {
        curve.name: [value_words(curve.kind, float(v)) for v in curve.values],
        "error": _precise(curve.error),
        "standard error": _precise(curve.se),
    }
    if any(gain != DASH for gain in gains):
        cells["less than the first by"] = gains
    cells |= dict(columns)
    cells[""] = marks
    kept = {head: column for head, column in cells.items() if any(c != DASH for c in column)}
    kept = {head: column for head, column in kept.items() if head or any(column)}
    rows = tuple(tuple(column[i] for column in kept.values()) for i in range(len(marks)))
    note = f"{DASH}: not told." if any(DASH in row for row in rows) else ""
    return Table("Error by candidate", tuple(kept), rows, note)


def _precise(values: Sequence[float] | np.ndarray) -> tuple[str, ...]:
    """Write errors with four digits or so: neighbours on a flat curve must be told apart."""
    # By the largest of the curve: its values are compared down the column.
    known = np.asarray(values, dtype=float)
    finite = np.abs(known[np.isfinite(known)])
    top = float(finite.max(initial=0.0))
    decimals = 4 if top < 10 else 3 if top < 100 else 1
    if top and top < 0.01:
        return tuple(minus(f"{v:.3e}") if math.isfinite(v) else DASH for v in known)
    return tuple(f"{v:,.{decimals}f}" if math.isfinite(v) else DASH for v in known)


def loadings(result: object, weights: np.ndarray, text: Sequence[str]) -> Block:
    """Show what the components are made of."""
    p = weights.shape[1]
    shown = min(p, figures_selection.MOST_ROWS)
    caption = (
        "Weight of each column in each component; the component that carries most stands first."
    )
    if shown < p:
        caption = f"The {shown} of {p:,} columns that weigh most. {caption}"
    picture = Picture(
        "selection-loadings",
        figures_selection.plot_loadings(result),
        caption,
        f"Map of colours of {plural(shown, 'column')} in {plural(len(weights), 'component')}.",
    )
    return Block("What the components are made of", tuple(text), picture=picture)


def by_site(
    curve: Curve, errors: Mapping[str, np.ndarray], entries: Mapping[str, int], chosen: int
) -> Table | None:
    """Show what each site's own entries say.

    Parameters
    ----------
    curve : Curve
    errors : mapping of str to (A,) array
        Sums of squared errors by site, in the order of the curve; NaN where they are not told.
    entries : mapping of str to int
    chosen : int
        Place among the curve's candidates; -1 where nothing was chosen.
    """
    rows = []
    for site in sorted(errors):
        mean = np.asarray(errors[site], dtype=float) / max(int(entries.get(site, 0)), 1)
        known = np.isfinite(mean)
        own = value_words(curve.kind, curve.values[np.nanargmin(mean)]) if known.any() else DASH
        at_choice = _precise(mean)[chosen] if chosen >= 0 else DASH
        rows.append((site_name(site), f"{entries.get(site, 0):,}", at_choice, own))
    if not rows:
        return None
    head = ("site", "held-out entries", "error at the choice", f"its own smallest: {curve.name}")
    note = f"{DASH}: not told." if any(DASH in row for row in rows) else ""
    return Table("Errors by site", head, tuple(rows), note)

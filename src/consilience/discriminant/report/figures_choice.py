"""Figures of wide classification: the choice of a candidate, and what communities say of a row.

Each `plot_*` takes a fitted estimator or the result of a run and returns a Matplotlib figure, as in
`consilience.report.figures`. What figures and words read (`Network`, `Candidates`, `Tree`,
`Contributions`) is one form for estimators and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.report import charts
from consilience.report.charts import short
from consilience.report.figures import feature_names


@dataclass(frozen=True, eq=False)
class Network:
    """Linked features, the strongest link first.

    Attributes
    ----------
    names : tuple of str
        All features.
    levels : tuple of str
        Classes.
    pairs : (m, 2) int array
        Links as places among `names`.
    strength : (m,) array
        Norm over the classes of the entries of the precision matrices.
    partial : (m, K) array
        Partial correlations by class; NaN where they are not known.
    """

    names: tuple[str, ...]
    levels: tuple[str, ...]
    pairs: IntArray
    strength: FloatArray
    partial: FloatArray


@dataclass(frozen=True, eq=False)
class Candidates:
    """Penalties, or numbers of communities, that were compared.

    Attributes
    ----------
    kind : {"alpha", "communities"}
    values : (A,) array
    errors : (A,) array
        Share of rows that were classified wrongly where they took no part; NaN where unknown.
    spread : (A,) array
        Standard error; NaN where unknown.
    chosen : int
        Place of the one that was chosen; -1 where it is not known.
    links : (A,) array
        Linked pairs of features; empty for communities.
    among : str
        Where the rows were: "cross-validation", ...
    loss : (A,) array
        Mean loss of the same rows; empty where it is not known.
    loss_name : str
        What the loss is.
    """

    kind: str
    values: FloatArray
    errors: FloatArray
    spread: FloatArray
    chosen: int
    links: FloatArray
    among: str
    loss: FloatArray = field(default_factory=lambda: np.empty(0))
    loss_name: str = "log loss"


@dataclass(frozen=True, eq=False)
class Tree:
    """Merges of features into communities.

    Attributes
    ----------
    names : tuple of str
    merges : (p - 1, 4) array
        As scipy has them: two nodes, their distance, number of features.
    n_communities : int
        Where the tree is cut.
    """

    names: tuple[str, ...]
    merges: FloatArray
    n_communities: int


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each community says for each class of one row, on the log scale.

    Attributes
    ----------
    names : tuple of str
        Communities.
    levels : tuple of str
        Classes.
    values : (L, K) array
    prior : (K,) array
    """

    names: tuple[str, ...]
    levels: tuple[str, ...]
    values: FloatArray
    prior: FloatArray


def network_of(fitted: Any) -> Network:
    """Read the links of an estimator or a result.

    Parameters
    ----------
    fitted : SparseQDA, a result with links, or Network

    Raises
    ------
    ParameterError
        There are no links in it.
    """
    if isinstance(fitted, Network):
        return fitted
    if hasattr(fitted, "interactions_"):
        found = fitted.interactions_
        return Network(
            feature_names(fitted),
            tuple(str(level) for level in found.classes),
            np.asarray(found.pairs),
            np.asarray(found.strength),
            np.asarray(found.partial_correlation),
        )
    if hasattr(fitted, "pairs") and hasattr(fitted, "strength"):
        strength = np.asarray(fitted.strength, dtype=float)
        order = np.argsort(-strength, kind="stable")
        return Network(
            tuple(fitted.feature_names),
            tuple(fitted.levels),
            np.asarray(fitted.pairs, dtype=np.int64).reshape(-1, 2)[order],
            strength[order],
            np.asarray(fitted.partial, dtype=float).reshape(-1, len(fitted.levels))[order],
        )
    raise ParameterError.of("fitted", "a fit with linked features", type(fitted).__name__)


def tree_of(fitted: Any) -> Tree:
    """Read the merges of an estimator or a result.

    Parameters
    ----------
    fitted : CommunityBayesClassifier, a result with a tree, or Tree

    Raises
    ------
    ParameterError
        There is no tree in it.
    """
    if isinstance(fitted, Tree):
        return fitted
    for merges, communities in (("tree_", "communities_"), ("tree", "communities")):
        if hasattr(fitted, merges) and hasattr(fitted, communities):
            return Tree(
                feature_names(fitted),
                np.asarray(getattr(fitted, merges), dtype=float).reshape(-1, 4),
                len(getattr(fitted, communities)),
            )
    raise ParameterError.of("fitted", "a fit with a tree of features", type(fitted).__name__)


def candidates_of(fitted: Any) -> Candidates:
    """Read what was compared.

    Parameters
    ----------
    fitted : SparseQDA, CommunityBayesClassifier, a result of their methods, or Candidates

    Raises
    ------
    ParameterError
        Nothing was compared in it.
    """
    if isinstance(fitted, Candidates):
        return fitted
    if hasattr(fitted, "path_"):
        path = fitted.path_
        chosen = int(np.flatnonzero(path.alphas == fitted.alpha_)[0])
        return Candidates(
            "alpha",
            path.alphas,
            path.cv_error,
            path.cv_se,
            chosen,
            np.asarray(path.n_links, dtype=float),
            "cross-validation",
        )
    if hasattr(fitted, "cv_results_"):
        return _of_communities(fitted)
    if hasattr(fitted, "cv_errors"):
        return _of_result(fitted)
    raise ParameterError.of("fitted", "a fit that compared candidates", type(fitted).__name__)


def _of_communities(fitted: Any) -> Candidates:
    """Read what a classifier compared, under the chosen parameters of its base."""
    table = fitted.cv_results_
    kept = [i for i, params in enumerate(table["params"]) if params == fitted.best_params_]
    values, error, spread, loss = (
        np.asarray(table[name], dtype=float)[kept]
        for name in ("n_communities", "error", "error_se", "log_loss")
    )
    chosen = np.flatnonzero(values == fitted.n_communities_)
    where = int(chosen[0]) if len(chosen) else -1
    among = "cross-validation"
    return Candidates("communities", values, error, spread, where, np.empty(0), among, loss)


DENSITY = "likelihood"
"""Choice by the densities of rows, in a result over sites."""
AMONG = {
    DENSITY: "the density of each site's rows under models of the others",
    "sites": "the sites, each judging models of the others",
    "holdout": "rows that sites held out",
}
"""Who judged, by the name of the choice in a result over sites."""


def _of_result(result: Any) -> Candidates:
    values = np.asarray(result.candidates, dtype=float)
    wrong = np.asarray(result.cv_errors, dtype=float)
    n = int(np.sum(result.cv_rows))
    rate = wrong / n if n and len(wrong) == len(values) else np.full(len(values), np.nan)
    given = np.asarray(getattr(result, "cv_se", np.empty(0)), dtype=float)
    # Without folds: rows are judged one by one, and the error is that of a share.
    spread = given if len(given) == len(values) else np.sqrt(rate * (1.0 - rate) / max(n, 1))
    linked = hasattr(result, "n_links")
    told = getattr(result, "candidate_loss", getattr(result, "cv_log_loss", np.empty(0)))
    loss = np.asarray(told, dtype=float)
    if hasattr(result, "choice"):
        among = AMONG.get(result.choice, "number")
        if getattr(result, "masked", False):
            among = among.replace("site's", "group's")
    else:
        among = "the choosing rows" if hasattr(result, "candidate_loss") else "cross-validation"
    return Candidates(
        "alpha" if linked else "communities",
        values,
        rate,
        spread,
        int(result.chosen),
        np.asarray(result.n_links, dtype=float) if linked else np.empty(0),
        among,
        loss if len(loss) == len(values) else np.empty(0),
        "minus log density" if getattr(result, "choice", "") == DENSITY else "log loss",
    )


def contributions_of(fitted: Any, row: Any = None) -> Contributions:
    """Read what communities say of one row.

    Parameters
    ----------
    fitted : CommunityBayesClassifier or Contributions
    row : (p,) or (1, p) array or frame of one row

    Raises
    ------
    ParameterError
        Another number of rows.
    """
    if isinstance(fitted, Contributions):
        return fitted
    one = row if hasattr(row, "columns") else np.asarray(row, dtype=float).reshape(1, -1)
    values = np.asarray(fitted.contributions(one))
    if len(values) != 1:
        raise ParameterError.of("row", "one row", len(values))
    names = feature_names(fitted)
    return Contributions(
        tuple(community_words(names, members) for members in fitted.communities_),
        tuple(str(level) for level in fitted.classes_),
        values[0],
        np.log(np.asarray(fitted.priors_)),
    )


def community_words(names: Sequence[str], members: Any, most: int = 2) -> str:
    """Name a community by its first features."""
    first = [short(names[j], 20) for j in members[:most]]
    more = len(members) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


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
    with charts.style():
        fig, axes = charts.panels(len(panels), 1.1 + 1.6 * len(panels), sharex=True)
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
                value = float(found.values[found.chosen])
                written = f"{value:.3g}" if found.kind == "alpha" else f"{value:,.0f}"
                charts.chosen(ax, value, f"chosen: {written}")
            charts.bare(ax, "y")
        _scale(axes[-1], found)
        fig.align_ylabels(axes)
        charts.shared_legend(fig, axes[0], ncols=3)
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
    ax.plot(at, values, "o-", color=charts.BLUE, markersize=3.5)
    ax.set_ylabel(words)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _errors(ax: Axes, found: Candidates, order: IntArray) -> None:
    at, error, half = found.values[order], found.errors[order], found.spread[order]
    known = np.isfinite(error)
    look: Any = {"linewidth": 1.1, "alpha": 0.6}
    bars = charts.errors_by_candidate(ax, at, error, half, charts.BLUE, **look)
    words = f"error by {found.among}" + (", with its standard error" if bars.any() else "")
    ax.plot(at[known], error[known], "o-", color=charts.BLUE, markersize=4, label=words)
    ax.yaxis.set_major_formatter(charts.SHARES)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.set_ylabel("error")


def _scale(ax: Axes, found: Candidates) -> None:
    ax.set_xlabel(AXES.get(found.kind, found.kind))
    ax.tick_params(which="minor", length=0)
    if found.kind == "alpha" and (found.values > 0).all():
        charts.log_axis(ax, "{:g}".format)
    elif found.values.max() > 30 * max(found.values.min(), 1.0):
        charts.log_axis(ax, "{:,.0f}".format)
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
    with charts.style():
        fig, ax = charts.sheet(0.25 * (len(names) + 1) + 1.0)
        at = np.arange(len(names))
        for some, colour, level in (
            (values >= 0, charts.BLUE, found.levels[a]),
            (values < 0, charts.ORANGE, found.levels[b]),
        ):
            ax.barh(
                at[some],
                values[some],
                left=low[some],
                height=0.62,
                color=colour,
                label=f"for {charts.label(level, 24)}",
            )
        end = float(high[-1])
        ax.barh(len(names), end, height=0.62, color=charts.INK)
        ax.vlines(high, at + 0.31, at + 0.69, color=charts.MUTED, linewidth=0.8)
        ax.axvline(0, color=charts.INK, linewidth=0.9)
        ends = np.concatenate([np.maximum(low, high), [max(end, 0.0)]])
        for i, (value, x) in enumerate(zip([*values, end], ends, strict=True)):
            text = charts.minus(f"{value:+.2f}")
            charts.note(ax, text, (float(x), i), (4, 0), va="center")
        ticks = [*names, "sum: log odds"]
        ax.set_yticks(range(len(ticks)), [charts.label(name, 36) for name in ticks])
        ax.set_ylim(len(names) + 0.6, -0.6)
        ax.margins(x=0.12)
        ax.set_xlabel(
            f"log odds of {charts.label(found.levels[a], 24)} against "
            f"{charts.label(found.levels[b], 24)}"
        )
        charts.bare(ax)
        charts.legend(fig, *ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
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
    with charts.style():
        fig, ax = charts.rules(names, rates, ends, "held-out rows in a wrong class")
        ax.xaxis.set_major_formatter(charts.SHARES)
    return fig

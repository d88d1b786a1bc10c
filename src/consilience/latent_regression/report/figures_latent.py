"""Figures of latent classes: their coefficients, and the way to them.

Each `plot_*` takes a `LatentClassRegressionResult` or a fitted `LatentClassRegressor` and returns a
Matplotlib figure, as in `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray, IntArray
from consilience.latent_regression.protocol.result import CLASSES, MIXED, NULL, RIDGE
from consilience.report import charts
from consilience.report.charts import NAMED, Z95

MOST_PANELS = 12
"""Coefficients that are drawn; of more, those in which the classes differ most."""
PANELS_IN_A_ROW = 4
INTERCEPT = "intercept"
LEVEL = 0.95
"""Of intervals of the coefficients of an estimator, which has none of its own."""
FIRST = 1
"""Number of the first class in what sites write."""


# --------------------------------------------------------------------------- reading what is fitted


@dataclass(frozen=True, eq=False)
class Fitted:
    """Classes of a result or of an estimator, by one name.

    Attributes
    ----------
    names : tuple of str
        The intercept first, if there is one, then the features.
    values, errors : (K, len(names)) arrays
        Coefficients in the units of the columns, and their standard errors.
    shares : (K,) array
        Share of each class among new entities.
    level : float
        Of intervals of coefficients.
    first : int
        Number of the first class: as sites count them in their outputs, or as in arrays.
    """

    names: tuple[str, ...]
    values: FloatArray
    errors: FloatArray
    shares: FloatArray
    level: float
    first: int

    @property
    def z(self) -> float:
        """Half width of an interval, in standard errors."""
        from scipy.stats import norm

        return float(norm.ppf(0.5 + self.level / 2))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.values)

    @property
    def mean(self) -> FloatArray:
        """Mean coefficient over new entities, of the classes that have one."""
        known = np.isfinite(self.values)
        weight = np.where(known, self.shares[:, None], 0.0)
        total = np.maximum(weight.sum(axis=0), np.finfo(float).tiny)
        return np.asarray((weight * np.where(known, self.values, 0.0)).sum(axis=0) / total)


def fitted_classes(fitted: Any) -> Fitted:
    """Read the classes of a result, or of a fitted estimator.

    Parameters
    ----------
    fitted : LatentClassRegressionResult or LatentClassRegressor
    """
    if federated(fitted):
        names: Sequence[str] = fitted.feature_names
        slopes, at = fitted.slopes, fitted.intercepts
        errors = np.column_stack([fitted.intercept_errors, fitted.coefficient_errors])
        shares, level, start = fitted.class_shares, float(fitted.level), FIRST
    else:
        slopes, at = fitted.coef_, fitted.intercept_
        given = getattr(fitted, "feature_names_in_", None)
        names = [f"x{j}" for j in range(np.shape(slopes)[1])] if given is None else given
        errors = np.sqrt(np.diagonal(fitted.coef_covariance_, axis1=1, axis2=2))
        shares, level, start = fitted.class_shares_, LEVEL, 0
    values = np.column_stack([at, slopes]).astype(float)
    first = 0 if fitted.fit_intercept else 1
    return Fitted(
        names=(INTERCEPT, *map(str, names))[first:],
        values=values[:, first:],
        errors=np.asarray(errors, dtype=float)[:, first:],
        shares=np.asarray(shares, dtype=float),
        level=level,
        first=start,
    )


def federated(fitted: Any) -> bool:
    """Whether it is the result of a run over sites, not an estimator."""
    return hasattr(fitted, "trace_sigma")


def most_telling(classes: Fitted, most: int = MOST_PANELS) -> IntArray:
    """Places of the coefficients in which the classes differ most beside their errors, in order.

    The intercept, where there is one, is always among them.
    """
    spread = np.nan_to_num((classes.values - classes.mean) ** 2) * classes.shares[:, None]
    known = np.isfinite(classes.errors)
    noise = np.where(known, classes.errors, 0.0) ** 2
    size = noise.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    telling = spread.sum(axis=0) / np.maximum(size, np.finfo(float).tiny)
    if classes.names[0] == INTERCEPT:
        telling[0] = np.inf
    return np.sort(np.argsort(-telling, kind="stable")[:most])


def merge_round(fitted: Any) -> float | None:
    """Where classes were merged, between two rounds or sweeps; None where they were not.

    Parameters
    ----------
    fitted : LatentClassRegressionResult or LatentClassRegressor
    """
    if federated(fitted):
        return float(fitted.merged_at) + 0.5 if np.size(fitted.merge_path) else None
    falls = -np.diff(np.asarray(fitted.trace_["n_classes"], dtype=float))
    if not np.size(fitted.merge_path_) or not (falls > 0).any():
        return None
    return float(np.argmax(falls)) + 1.5


# --------------------------------------------------------------------------- the classes


def plot_latent_coefficients(fitted: Any) -> Figure:
    """Draw the coefficients of every class with intervals, one panel for each column.

    Parameters
    ----------
    fitted : LatentClassRegressionResult or LatentClassRegressor

    Returns
    -------
    matplotlib.figure.Figure
    """
    classes = fitted_classes(fitted)
    shown = most_telling(classes)
    k = classes.n_classes
    columns = min(len(shown), PANELS_IN_A_ROW)
    lines = -(-len(shown) // columns)
    with charts.style():
        tall, room = lines * (0.2 * min(k, 24) + 0.75) + 0.35, (0.08, 0.06, 0.12)
        layout = dict(zip(("h_pad", "w_pad", "wspace"), room, strict=True))
        fig, axes = charts.panels(len(shown), tall, columns, layout=layout, sharey=True)
        for ax, j in zip(axes, shown, strict=True):
            _coefficient(ax, classes, int(j))
        axes[0].set_ylim(k - 0.5, -0.5)
        step = max(1, -(-k // 24))
        ticks = range(0, k, step)
        words = "class {}" if k <= 24 else "{}"
        axes[0].set_yticks(ticks, [words.format(i + classes.first) for i in ticks])
        handles, labels = axes[0].get_legend_handles_labels()
        for ax in axes[1:]:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles.append(handle)
                    labels.append(label)
        charts.legend(fig, handles, labels, ncols=3, handletextpad=0.3)
    return fig


def _coefficient(ax: Axes, classes: Fitted, j: int) -> None:
    value, error = classes.values[:, j], np.nan_to_num(classes.errors[:, j])
    low, high = value - classes.z * error, value + classes.z * error
    at, level = np.arange(len(value)), f"{100 * classes.level:g}%"
    slope = classes.names[j] != INTERCEPT
    clear = (low > 0) | (high < 0) if slope else np.ones(len(value), dtype=bool)
    if slope:
        ax.axvline(0, color=charts.INK, linewidth=0.9)
    mean = float(classes.mean[j])
    ax.axvline(mean, color=charts.ORANGE, linewidth=1.2, linestyle="--", label="mean over classes")
    for some, face, words in (
        (clear, charts.BLUE, f"{level} interval without 0" if slope else None),
        (~clear, charts.PAPER, f"{level} interval with 0"),
    ):
        which = some & np.isfinite(value)
        if not which.any():
            continue
        ax.hlines(at[which], low[which], high[which], color=charts.BLUE, linewidth=1.4)
        size = 5.5 if len(value) <= 24 else 3
        look = ("o", face, charts.BLUE, size)
        charts.marks(ax, value[which], at[which], *look, label=words, zorder=3)
    ax.set_title(charts.label(classes.names[j], 20), loc="left")
    ax.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    charts.bare(ax)


# --------------------------------------------------------------------------- the way to them


TRACES = (
    ("log_marginal", "log marginal\nlikelihood"),
    ("sigma", "noise sd"),
    ("moved", "labels\nmoved"),
    ("n_classes", "classes"),
    ("learning_rate", "learning rate"),
)
_TRACE_FIELDS = {
    "log_marginal": "trace_log_marginal",
    "sigma": "trace_sigma",
    "moved": "trace_moved",
    "n_classes": "trace_classes",
    "learning_rate": "learning_rates",
}


def traces(fitted: Any) -> dict[str, FloatArray]:
    """Traces of a result by round, or of an estimator by sweep; only those that it has.

    Parameters
    ----------
    fitted : LatentClassRegressionResult or LatentClassRegressor
    """
    if not federated(fitted):
        found = {name: fitted.trace_[name] for name, _ in TRACES if name in fitted.trace_}
        return {name: np.asarray(values, dtype=float) for name, values in found.items()}
    lines = {}
    for name, field in _TRACE_FIELDS.items():
        values = np.asarray(getattr(fitted, field), dtype=float)
        # The beginning, round 0, has no labels that moved and no learning rate.
        before = np.full(1 + int(fitted.rounds_run) - len(values), np.nan)
        lines[name] = np.concatenate([before, values])
    return {name: values for name, values in lines.items() if np.isfinite(values).any()}


def plot_latent_traces(fitted: Any, averaged: int = 0) -> Figure:
    """Draw likelihood, noise, moving labels, classes and learning rate by round or sweep.

    Parameters
    ----------
    fitted : LatentClassRegressionResult or LatentClassRegressor
    averaged : int, default 0
        Last rounds over which labels were averaged; they are shaded.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lines = traces(fitted)
    n = max((len(v) for v in lines.values()), default=0)
    cut, of_sites = merge_round(fitted), federated(fitted)
    first = 0 if of_sites else 1
    last = first + n - 1
    with charts.style():
        rows = max(len(lines), 1)
        fig, axes = charts.panels(rows, 0.95 * rows + 0.6, sharex=True)
        named = [(name, words) for name, words in TRACES if name in lines]
        for ax, (name, words) in zip(axes, named, strict=False):
            if name == "moved" and of_sites:
                words = "entities\nthat moved"
            _trace(ax, name, lines[name], first)
            ax.set_ylabel(words, fontsize=8.5)
            if cut is not None:
                charts.chosen(ax, cut)
            if averaged:
                charts.shaded(ax, last - averaged + 0.5, last + 0.5)
            charts.bare(ax, "y")
        if cut is not None:
            late = cut > 0.6 * last
            look: Any = {"ha": "right" if late else "left", "va": "bottom"}
            look["xycoords"] = ("data", "axes fraction")
            charts.note(axes[0], "classes merged", (cut, 1.0), (-4 if late else 4, 2), **look)
        fig.align_ylabels(axes)
        axes[-1].set_xlabel("round (0: the beginning)" if of_sites else "sweep")
        axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes[-1].set_xlim(first - 0.5, last + 0.5)
    return fig


def _trace(ax: Axes, name: str, values: FloatArray, first: int) -> None:
    at = np.arange(first, len(values) + first)
    if name in ("n_classes", "learning_rate"):
        ax.step(at, values, where="mid", color=charts.BLUE, linewidth=1.4)
        ax.set_ylim(0, 1.15 * float(np.nanmax(values)))
    else:
        ax.plot(at, values, color=charts.BLUE, linewidth=1.4)
    if name == "n_classes":
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    elif name == "moved":
        ax.set_ylim(0, 1.1 * max(float(np.nanmax(values)), 0.01))
        ax.yaxis.set_major_formatter(charts.SHARES)
        ax.yaxis.set_major_locator(MaxNLocator(3))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(3))
    if len(values) == 1:
        ax.plot(at, values, "o", color=charts.BLUE)


WRITTEN = 30
"""Sites, and half as many classes, up to which a map has its numbers in it."""


# --------------------------------------------------------------------------- who belongs where


def site_shares(result: Any) -> FloatArray:
    """Share of each class among the entities of each site, (B, K); NaN where no sum was sent.

    Where a class of a site is too small for its sum to leave, the others' shares are still of all
    entities of the site, so they do not add up to one.
    """
    counts = site_counts(result)
    n = np.asarray(result.n_entities, dtype=float)[:, None]
    n = np.where(np.isfinite(n) & (n > 0), n, np.nan)
    return np.asarray(counts / n)


def site_counts(result: Any) -> FloatArray:
    """Entities of each site by class, (B, K); NaN where there are none, or too few to be told."""
    counts = np.asarray(result.site_class_sizes, dtype=float)
    return np.where(counts > 0, counts, np.nan)


def plot_latent_members(result: Any) -> Figure:
    """Draw which share of each site's entities belongs to which class.

    Parameters
    ----------
    result : LatentClassRegressionResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = site_shares(result)
    # New entities of no known agent stand first: what the model holds for everybody.
    values = np.vstack([np.asarray(result.class_shares, dtype=float)[None, :], shares])
    n, k = values.shape
    wide = min(charts.WIDTH, 3.4 + 0.62 * k)
    with charts.style():
        fig, ax = charts.sheet(_tall(n), width=wide)
        ax.set_facecolor(charts.RULE)
        top = float(np.nanmax(values, initial=0.05))
        mesh = charts.heat_map(ax, values, (0, top), linewidth=0.8 * (n <= NAMED))
        if n <= WRITTEN and k <= WRITTEN // 2:
            charts.in_cells(ax, values, "{:.0%}".format, mesh, missing="\N{EN DASH}")
        names = [charts.label(s, 24) for s in result.sites]
        if n <= NAMED:
            ax.set_yticks(np.arange(n) + 0.5, ["new entities", *names])
        else:
            ax.set_yticks([0.5], ["new entities"])
            ax.set_ylabel(f"{n - 1:,} sites, in the order of their names")
        ax.axhline(1, color=charts.INK, linewidth=0.9)
        ax.set_ylim(n, 0)
        head = "class {}" if k <= 8 else "{}"
        ax.set_xticks(np.arange(k) + 0.5, [head.format(j + FIRST) for j in range(k)])
        ax.xaxis.tick_top()
        charts.bare(ax, "")
        words = "share of the site's entities (grey: none, or too few to be told)"
        bar = charts.colour_bar(fig, mesh, ax, words, shrink=0.6, aspect=30, pad=0.03)
        bar.ax.xaxis.set_major_formatter(charts.SHARES)
    return fig


def _tall(n: int) -> float:
    """Height of a figure with one line for each of n sites, in inches."""
    return 0.27 * n + 1.35 if n <= NAMED else 8.0


# --------------------------------------------------------------------------- what they are worth


def over_sites(result: Any, values: FloatArray) -> float:
    """Mean of a figure of each site over held-out events; NaN where no site tells."""
    return float(result.pooled(np.asarray(values, dtype=float)[:, None])[0])


def unexplained(result: Any) -> FloatArray:
    """Held-out squared error in shares of that of the mean alone, all sites first, (B + 1, 4)."""
    mse = np.asarray(result.heldout_mse, dtype=float)
    total = np.array([over_sites(result, column) for column in mse.T])
    every = np.vstack([total, mse])
    return np.asarray(every / every[:, [NULL]])


MARKS: tuple[tuple[int, str, str, str, str], ...] = (
    (RIDGE, "s", charts.PAPER, charts.MUTED, "one ridge for all"),
    (MIXED, "^", charts.PAPER, charts.MUTED, "mixed model"),
    (CLASSES, "D", charts.BLUE, charts.BLUE, "classes"),
)


def plot_latent_held_out(result: Any) -> Figure:
    """Draw the held-out error beside simpler models, and what the intervals cover, by site.

    Parameters
    ----------
    result : LatentClassRegressionResult
        With held-out events at one site at least.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = unexplained(result)
    n = len(shares)
    at, size = np.arange(n), 6.5 if n <= NAMED else 3.0
    with charts.style():
        room, ratios = {"w_pad": 0.1}, [1.7, 1.0]
        fig, (left, right) = charts.panels(
            2, _tall(n) - 0.1, 2, layout=room, sharey=True, width_ratios=ratios
        )
        left.hlines(at, np.nanmin(shares[:, :3], axis=1, initial=1.0), 1.0, color=charts.RULE)
        for column, marker, face, edge, words in MARKS:
            charts.marks(left, shares[:, column], at, marker, face, edge, size, label=words)
        left.axvline(1, color=charts.INK, linewidth=0.9)
        left.set_xlim(0, max(1.06, min(2.0, 1.06 * float(np.nanmax(shares[:, :3], initial=1.0)))))
        left.xaxis.set_major_formatter(charts.SHARES)
        left.set_xlabel("squared error, share of that of the mean alone")
        _coverage(right, result, size)
        charts.site_axis(left, result.sites, ["all sites"])
        for ax in (left, right):
            ax.axhline(0.5, color=charts.MUTED, linewidth=0.8)
            charts.bare(ax)
        charts.legend(fig, ncols=3, handletextpad=0.3)
    return fig


def chance(result: Any) -> FloatArray:
    """Half of a 95% interval of chance around the level, all sites first, (B + 1,).

    NaN where nobody says how many events were held out.
    """
    level = float(result.level)
    n = np.asarray(result.heldout_effective, dtype=float)
    n = np.where(np.isfinite(result.coverage), n, np.nan)
    n = np.concatenate([[np.nansum(n)], n])
    n = np.where(n > 0, n, np.nan)
    # standard error of a share of n events
    return np.asarray(Z95 * np.sqrt(level * (1 - level) / n))


def _coverage(ax: Axes, result: Any, size: float) -> None:
    level = float(result.level)
    covered = np.asarray(result.coverage, dtype=float)
    covered = np.concatenate([[over_sites(result, covered)], covered])
    at, half = np.arange(len(covered)), chance(result)
    known, sized = np.isfinite(covered), np.isfinite(covered) & np.isfinite(half)
    # a share has no interval below 0 or above 1, whatever the normal approximation says
    low, high = np.clip([covered - half, covered + half], 0.0, 1.0)
    ax.hlines(at[sized], low[sized], high[sized], color=charts.BLUE, linewidth=1.4)
    ax.plot(covered[known], at[known], "D", color=charts.BLUE, markersize=size)
    ax.axvline(level, color=charts.ORANGE, linewidth=1.4)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center"}
    ax.annotate(f"wanted: {level:.0%}", (level, 1.0), va="bottom", fontsize=8.5, **place)
    ax.xaxis.set_major_formatter(charts.SHARES)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.set_xlabel("events within their interval")


# --------------------------------------------------------------------------- releases


RELEASES = (("released", "new"), ("repeated", "as before"), ("withheld", "left out"))


def release_shares(result: Any) -> dict[str, FloatArray]:
    """Share of a round's class sums that a site sent anew, as before, left out, (R, B) each.

    NaN where the site sent nothing in that round.
    """
    counts = {name: np.asarray(getattr(result, name), dtype=float) for name, _ in RELEASES}
    total = sum(counts.values())
    told = np.asarray(result.reported, dtype=bool) & (total > 0)
    return {
        name: np.where(told, values / np.where(told, total, 1.0), np.nan)
        for name, values in counts.items()
    }


def plot_latent_releases(result: Any) -> Figure:
    """Draw which part of its class sums each site sent anew, as before, or left out by round.

    Parameters
    ----------
    result : LatentClassRegressionResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    shares = release_shares(result)
    r, n = shares["released"].shape
    cut = merge_round(result)
    with charts.style():
        across = len(RELEASES)
        fig, axes = charts.panels(across, 0.2 * min(n, 34) + 1.5, across, sharey=True)
        for ax, (name, words) in zip(axes, RELEASES, strict=True):
            edges = (np.arange(r + 1) - 0.5, np.arange(n + 1) - 0.5)
            shown = np.ma.masked_invalid(shares[name].T)
            mesh = ax.pcolormesh(*edges, shown, cmap=charts.RISING, vmin=0, vmax=1)
            ax.set_facecolor(charts.PAPER)
            ax.set_title(words)
            ax.set_xlabel("round")
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if cut is not None:
                charts.chosen(ax, cut)
            charts.bare(ax, "")
        if n <= 34:
            names = [charts.label(s, 24) for s in result.sites]
            axes[0].set_yticks(range(n), names, fontsize=9)
        else:
            axes[0].set_yticks([])
            axes[0].set_ylabel(f"{n:,} sites, in the order of their names")
        axes[0].set_ylim(n - 0.5, -0.5)
        words = "share of the site's class sums in that round (empty: it did not report)"
        bar = charts.colour_bar(fig, mesh, axes, words, shrink=0.5, aspect=30, pad=0.05)
        bar.ax.xaxis.set_major_formatter(charts.SHARES)
    return fig

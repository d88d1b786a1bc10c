"""Figures in the report of latent class regression, and what they show.

Each `plot_*` takes a `LatentClassRegressionResult` and returns a Matplotlib figure, as in
`figures`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray
from consilience.latent_regression.protocol.result import CLASSES, NULL, OWN, RIDGE
from consilience.latent_regression.report.figures_latent import FIRST, merge_round
from consilience.report import charts
from consilience.report.charts import NAMED, Z95

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
    values = np.asarray(values, dtype=float)
    weight = np.where(np.isfinite(values), np.nan_to_num(result.heldout_weight), 0.0)
    if not weight.sum() > 0:
        return float("nan")
    return float((weight * np.nan_to_num(values)).sum() / weight.sum())


def unexplained(result: Any) -> FloatArray:
    """Held-out squared error in shares of that of the mean alone, all sites first, (B + 1, 4)."""
    mse = np.asarray(result.heldout_mse, dtype=float)
    total = np.array([over_sites(result, column) for column in mse.T])
    every = np.vstack([total, mse])
    return np.asarray(every / every[:, [NULL]])


MARKS: tuple[tuple[int, str, str, str, str], ...] = (
    (RIDGE, "s", charts.PAPER, charts.MUTED, "one ridge for all"),
    (OWN, "^", charts.PAPER, charts.MUTED, "a ridge for each entity"),
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

"""Figures of results: each `plot_*` takes a result and returns a Matplotlib figure.

Figures are made without ``pyplot``, so none stays open behind the reader's back: show one in a
notebook by naming it, save it with ``figure.savefig("x.png")``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from consilience.arrays import FloatArray
from consilience.report import charts
from consilience.report.charts import Part
from consilience.wire.transcript import Line

DISCLOSURE_COLOURS = {
    "public": "#8c8c8c",
    "aggregate": charts.BLUE,
    "model": charts.ORANGE,
    "per-record": "#d55e00",
    "noised": charts.GREEN,
}
# --------------------------------------------------------------------------- classes


def profile_values(result: Any) -> tuple[FloatArray, bool]:
    """Return what the profile map shows, (p, K), and whether it is in standard deviations.

    Columns that were not put on a common scale cannot be compared in their own units: each is then
    shown by its differences from the mean over classes, relative to the largest of them.
    """
    scaled = np.asarray(result.class_means_scaled, dtype=float).T
    own = np.asarray(result.class_means, dtype=float).T
    if not np.array_equal(scaled, own, equal_nan=True):
        # A column that every site holds constant was not scaled, and tells no classes apart.
        constant = (
            np.ptp(own, axis=1) <= 1e-9 * np.abs(own).max(axis=1) if own.shape[1] > 1 else False
        )
        return np.where(np.reshape(constant, (-1, 1)), 0.0, scaled), True
    weights = np.asarray(result.class_sizes, dtype=float) * ~np.isnan(own)
    # Sites withhold means of small classes: a column's mean is over what is told.
    centre = (np.nan_to_num(own) * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    shift = own - centre[:, None]
    largest = np.max(np.abs(np.nan_to_num(shift)), axis=1, initial=0.0)[:, None]
    return shift / np.where(largest > 0, largest, 1.0), False


def plot_class_profiles(result: Any) -> Figure:
    """Draw the mean of every column in every class as a map of colours, with the numbers in it.

    Parameters
    ----------
    result : EnsembleClusteringResult

    Returns
    -------
    matplotlib.figure.Figure
    """
    values, standard = profile_values(result)
    p, k = values.shape
    shown = np.abs(values[np.isfinite(values)])
    top = float(np.ceil(max(1.0, shown.max(initial=0.0)) * 2) / 2) if standard else 1.0
    with charts.style():
        fig, ax = charts.sheet(0.3 * p + 1.0, width=min(charts.WIDTH, 4.2 + 0.62 * k))
        ax.set_facecolor(charts.RULE)
        # Symmetric about 0, so that the middle of the scale is the mean.
        mesh = charts.heat_map(ax, values, (-top, top), cmap=charts.DIVERGING)
        charts.in_cells(ax, values, "{:+z.1f}".format, mesh, missing="\N{EN DASH}")
        heads = [f"class {j}" if k <= 8 else str(j) for j in range(k)]
        charts.cell_axes(ax, [charts.label(n, 34) for n in result.feature_names], heads)
        what = "standard deviations from the mean" if standard else "relative to the row's largest"
        # As few as stand side by side under a map of one or two classes.
        ticks = np.linspace(-top, top, 5)
        named = ticks, [charts.minus(f"{value:g}") for value in ticks]
        charts.colour_bar(fig, mesh, ax, f"below (blue) or above (orange) the mean:\n{what}", named)
    return fig


# --------------------------------------------------------------------------- every method


def feature_names(fitted: Any) -> tuple[str, ...]:
    """Names of the features of an estimator or a result."""
    given = getattr(fitted, "feature_names_in_", getattr(fitted, "feature_names", None))
    if given is None:
        return tuple(f"x{j}" for j in range(fitted.n_features_in_))
    return tuple(str(name) for name in given)


def bytes_by_site(transcript: Iterable[Line]) -> dict[str, dict[str, int]]:
    """Bytes that left each site, by class of disclosure; sites in name order."""
    # What reached a site is the coordinator's doing, and says nothing of the site's records.
    lines = [line for line in transcript if line.direction == "from-site"]
    found: dict[str, dict[str, int]] = {site: {} for site in sorted({x.site for x in lines})}
    for line in lines:
        of_site = found[line.site]
        of_site[line.disclosure] = of_site.get(line.disclosure, 0) + line.bytes
    return found


def plot_disclosure(transcript: Iterable[Line]) -> Figure:
    """Draw how many bytes left each site, by class of disclosure.

    Parameters
    ----------
    transcript : iterable of Line
        Of a run.

    Returns
    -------
    matplotlib.figure.Figure
    """
    sent = bytes_by_site(transcript)
    names = list(sent)
    used = [c for c in DISCLOSURE_COLOURS if any(c in row for row in sent.values())]
    with charts.style():
        fig, ax = charts.sheet(0.29 * len(names) + 0.95)
        # Hatches too: two of the colours are one in black and white.
        hatches = {"model": "////", "per-record": "xxxx"}
        parts = [
            Part(
                kind,
                np.array([sent[n].get(kind, 0) for n in names]) / 1000,
                {"color": DISCLOSURE_COLOURS[kind], "hatch": hatches.get(kind, "")},
            )
            for kind in used
        ]
        left = charts.stacked_bars(ax, parts, len(names), height=0.7, linewidth=0.6)
        for i, total in enumerate(left):
            charts.note(ax, f"{total:,.1f}", (total, i), (4, 0), va="center")
        ax.set_yticks(range(len(names)), [charts.label(n, 26) for n in names])
        ax.set_xlim(0, max(1.1 * left.max(initial=0.0), 0.1))
        ax.set_xlabel("kilobytes that left the site")
        charts.bare(ax)
        if used:
            charts.legend(fig, ncols=len(used), handlelength=1.2)
    return fig

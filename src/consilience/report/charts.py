"""Kinds of picture that the figures are made of: maps, intervals, bars, curves, panels, notes.

Each draws on axes of `drawing` and knows no result. A figure of a wing says which of its result's
arrays go into which kind, and in which words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.report import drawing
from consilience.report.drawing import BLUE, INK, MUTED, ORANGE, PAPER, RULE, WIDTH, Z95

NAMED = 60
"""Sites up to which each is named on an axis."""


# --------------------------------------------------------------------------- sheets, axes, words


def panels(
    n: int, height: float, across: int = 1, width: float = WIDTH, layout: Any = None, **axes: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `n` panels, row by row with `across` in each, `height` inches in all.

    ``layout`` goes to Matplotlib's constrained layout, what else is given to its ``subplots``.
    """
    fig = Figure(figsize=(width, height))
    fig.set_layout_engine("constrained", **(layout or {}))
    # Rounded up: the last row may be short, and its empty places are hidden.
    rows = -(-n // across)
    found = list(fig.subplots(rows, across, squeeze=False, **axes).ravel())
    for ax in found[n:]:
        ax.set_visible(False)
    return fig, found[:n]


def minus(text: str) -> str:
    """Write the sign of a number as it is printed."""
    return text.replace("-", "\N{MINUS SIGN}")


def share(value: float, _: object = None) -> str:
    """Write a share on an axis."""
    return minus(f"{100 * value:.3g} %")


SHARES = FuncFormatter(share)
"""Ticks that are shares."""


def note(
    ax: Axes, text: str, at: tuple[float, float], by: tuple[float, float], **look: Any
) -> None:
    """Write beside a point, so many points to the right and up."""
    look = {"fontsize": 8.5, **look}
    ax.annotate(text, at, xytext=by, textcoords="offset points", **look)


def marks(
    ax: Axes, x: Any, y: Any, sign: str, face: str, edge: str, size: float, **more: Any
) -> None:
    """Draw marks without a line, with a face and an edge."""
    colours: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge}
    ax.plot(x, y, linestyle="none", marker=sign, markersize=size, **colours, **more)


def site_axis(
    ax: Axes, sites: Sequence[str], always: Sequence[str] = (), fontsize: float | None = None
) -> None:
    """Give a line to each site from the top down, and its name where there is room for all.

    `always` are lines above them that are named in any case.
    """
    n = len(always) + len(sites)
    # Of more sites names would run into one another: the page has a table of them.
    if n <= NAMED:
        names = [*always, *(drawing.label(site, 24) for site in sites)]
        ax.set_yticks(range(n), names, fontsize=fontsize)
    else:
        ax.set_yticks(range(len(always)), always)
        ax.set_ylabel(f"{len(sites):,} sites, in the order of their names")
    ax.set_ylim(n - 0.5, -0.5)


def log_axis(ax: Axes, words: Callable[[float], str]) -> None:
    """Make the axis across logarithmic, with ticks in words at the decades alone."""
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: words(v)))


def shared_legend(fig: Figure, ax: Axes, **look: Any) -> None:
    """Put what one panel names above all of them."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside upper left", **look)


# --------------------------------------------------------------------------- maps of colours


def heat_map(ax: Axes, values: FloatArray, ends: tuple[float, float], **look: Any) -> Any:
    """Draw a matrix as coloured cells, the first row on top; what is not known stays bare.

    Returns
    -------
    mappable
        For `colour_bar`.
    """
    look = {"cmap": drawing.RISING, "vmin": ends[0], "vmax": ends[1], "edgecolor": PAPER, **look}
    mesh = ax.pcolormesh(np.ma.masked_invalid(values), **look)
    ax.set_ylim(len(values), 0)
    return mesh


def in_cells(
    ax: Axes,
    values: FloatArray,
    write: Callable[[float], str],
    dark: Callable[[float], bool],
    *,
    missing: str = "",
    fontsize: float = 8.5,
    **look: Any,
) -> None:
    """Write the numbers of a map into its cells, white where these are dark."""
    for i, j in np.ndindex(*values.shape):
        v = float(values[i, j])
        known = bool(np.isfinite(v))
        if known or missing:
            colour = INK if not known else "#ffffff" if dark(v) else "#000000"
            words = minus(write(v)) if known else missing
            place: Any = {"ha": "center", "va": "center", "fontsize": fontsize, "color": colour}
            ax.text(j + 0.5, i + 0.5, words, **place, **look)


def cell_axes(ax: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name the rows of a map on the left and its columns above it."""
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.xaxis.tick_top()
    drawing.bare(ax, "")


def colour_bar(
    fig: Figure, mesh: Any, ax: Any, words: str = "", ticks: Any = None, **place: Any
) -> Any:
    """Draw the scale of a map below it; `ticks` are numbers and their names."""
    place = {"location": "bottom", "shrink": 0.7, "aspect": 34, "pad": 0.02, **place}
    bar = fig.colorbar(mesh, ax=ax, **place)
    if ticks is not None:
        bar.set_ticks(list(ticks[0]), labels=ticks[1])
    if words:
        bar.set_label(words)
    bar.outline.set_visible(False)
    return bar


# --------------------------------------------------------------------------- intervals


def by_sign(ax: Axes, at: Any, value: FloatArray, error: FloatArray, named: bool) -> None:
    """Draw values with 95 % intervals across: above 0, below 0, or neither, by colour and mark."""
    low, high = value - Z95 * error, value + Z95 * error
    kinds: tuple[tuple[Any, str, str, str], ...] = (
        (low > 0, "o", BLUE, BLUE),
        (high < 0, "s", ORANGE, ORANGE),
        (~((low > 0) | (high < 0)), "o", PAPER, MUTED),
    )
    for which, sign, face, edge in kinds:
        some = which & np.isfinite(value)
        ax.hlines(at[some], low[some], high[some], color=edge, linewidth=1.4 if named else 0.5)
        marks(ax, value[some], at[some], sign, face, edge, 5.5 if named else 2.5, zorder=3)


def savings(
    ax: Axes, at: Any, value: FloatArray, error: FloatArray, overall: Any, named: bool
) -> None:
    """Draw what each site saves with its interval, and the mean of all as a band behind."""
    by_sign(ax, at, value, error, named)
    mean, its_error = overall
    if np.isfinite(mean):
        ends = (mean - Z95 * its_error, mean + Z95 * its_error)
        ax.axvspan(*ends, color=BLUE, alpha=0.14, linewidth=0)
        ax.axvline(mean, color=BLUE, linewidth=1.4)
    ax.axvline(0, color=INK, linewidth=0.9)
    ax.xaxis.set_major_formatter(SHARES)


def rules(
    names: Sequence[str], values: FloatArray, ends: FloatArray, words: str
) -> tuple[Figure, Axes]:
    """Draw a known value for each rule with its interval; the first rule stands out.

    Parameters
    ----------
    names : sequence of m str
    values : (m,) array
        Rules of NaN are left out.
    ends : (m, 2) array
        NaN where there is no interval.
    words : str
        What the values are.
    """
    known = [j for j in range(len(names)) if np.isfinite(values[j])]
    fig, ax = drawing.sheet(0.3 * len(known) + 0.75)
    for i, j in enumerate(known):
        colour = BLUE if j == 0 else MUTED
        if np.isfinite(ends[j]).all():
            ax.hlines(i, ends[j, 0], ends[j, 1], color=colour, linewidth=1.6)
        ax.plot(values[j], i, "o", color=colour, markersize=6)
    ax.set_yticks(range(len(known)), [drawing.label(names[j], 34) for j in known])
    ax.set_ylim(len(known) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(words + ", with 95 % intervals" * bool(np.isfinite(ends[known]).any()))
    drawing.bare(ax)
    return fig, ax


# --------------------------------------------------------------------------- bars and curves


class Part(NamedTuple):
    """One colour of stacked bars: a value for each bar."""

    words: str
    values: FloatArray
    look: dict[str, Any]


def stacked_bars(ax: Axes, parts: Iterable[Part], n: int, **look: Any) -> FloatArray:
    """Draw `n` bars across from the top down, part after part; return where they end."""
    left = np.zeros(n)
    for part in parts:
        style: dict[str, Any] = {"edgecolor": PAPER, **look, **part.look}
        ax.barh(range(n), part.values, left=left, label=part.words, **style)
        left = left + part.values
    ax.set_ylim(n - 0.5, -0.5)
    return left


def errors_by_candidate(
    ax: Axes, at: Any, error: FloatArray, half: FloatArray, colour: str, **look: Any
) -> NDArray[np.bool_]:
    """Draw upright intervals where both figures are known; return where that is."""
    bars = np.isfinite(error) & np.isfinite(half)
    ax.vlines(at[bars], (error - half)[bars], (error + half)[bars], color=colour, **look)
    return bars


def chosen(ax: Axes, at: float, words: str | None = None) -> None:
    """Mark what was chosen, or where something was cut, by a dashed line."""
    ax.axvline(at, color=ORANGE, linewidth=1.3, linestyle="--", label=words)


def shaded(ax: Axes, low: float, high: float) -> None:
    """Shade a range across."""
    ax.axvspan(low, high, color=RULE, alpha=0.5, linewidth=0)

"""Kinds of picture that the figures are made of: maps, intervals, bars, curves, panels, notes.

Each knows no result: a figure of a wing says which of its result's arrays go into which kind, and
in which words. What all of them share stands first: colours, letters, a bare sheet.

Colours are those of Okabe and Ito (2008), which people with any kind of colour blindness can tell
apart; whatever a colour says is said by a number, a place or a hatch too.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from consilience.arrays import FloatArray

# The report turns these four into the page's own colours, for light, dark and print.
INK, MUTED, RULE, PAPER = "#1b1f24", "#5c6670", "#d5dae0", "#fefefe"
BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"
CLASS_COLOURS = (
    BLUE,
    ORANGE,
    GREEN,
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c8c8c",
    "#f0e442",
)
DIVERGING = LinearSegmentedColormap.from_list(
    "below-above", ["#2166ac", "#92c5de", "#f7f7f7", "#fdb863", "#b35806"], N=21
)
RISING = LinearSegmentedColormap.from_list("rising", ["#f7f9fb", "#9fc3df", "#0b4f8a"], N=21)

WIDTH, NARROW = 7.6, 4.4
"""Inches of a drawing, and of its form for a telephone."""
_ROOM: ContextVar[float] = ContextVar("room", default=WIDTH)
Z95 = 1.96
"""Half width of a 95% interval, in standard errors."""
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "grid.color": RULE,
    "hatch.color": PAPER,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "consilience",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}
NAMED = 60
"""Sites up to which each is named on an axis."""


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of all figures, for as long as the block lasts."""
    # For a block only: settings of the person's own figures stay as they are.
    with matplotlib.rc_context(_SETTINGS):
        yield


@contextmanager
def narrow() -> Iterator[None]:
    """Draw for a telephone, for as long as the block lasts: slim sheets, panels in more rows."""
    token = _ROOM.set(NARROW)
    try:
        yield
    finally:
        _ROOM.reset(token)


def room() -> float:
    """Inches that a drawing may be wide."""
    return _ROOM.get()


def short(text: object, width: int = 30) -> str:
    """Cut a name of another party to `width` letters, without control signs."""
    # Signs that XML does not allow would make the whole drawing unreadable.
    clean = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", str(text))
    if len(clean) > width:
        # The end stays: names of sites often differ only there.
        clean = clean[: width - 9] + "\N{HORIZONTAL ELLIPSIS}" + clean[-8:]
    return clean


def label(text: object, width: int = 30) -> str:
    """Make a name fit to be drawn: short, and never read as mathematics."""
    # Between two dollar signs Matplotlib sets mathematics, whoever wrote the name.
    return short(text, width).replace("$", r"\$")


def sheet(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Return a figure of one drawing, in inches; no wider than there is room."""
    fig = Figure(figsize=(min(width, room()), height))
    fig.set_layout_engine("constrained")
    return fig, fig.subplots()


def bare(ax: Axes, grid: Literal["x", "y", "both", ""] = "x") -> None:
    """Take away what carries no information; keep lines across the axis that is read."""
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(which="both", length=0)
    if grid:
        ax.grid(axis=grid)


def whole_ticks(top: int) -> Sequence[int]:
    """Whole numbers from 0 to `top`, about six of them."""
    return range(0, top + 1, max(1, -(-top // 6)))


# --------------------------------------------------------------------------- sheets, axes, words


def panels(
    n: int, height: float, across: int = 1, width: float = WIDTH, layout: Any = None, **axes: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `n` panels, row by row with `across` in each, `height` inches in all.

    ``layout`` goes to Matplotlib's constrained layout, what else is given to its ``subplots``.
    Where there is less room than `width`, fewer are side by side and the figure is higher.
    """
    # Rounded up: the last row may be short, and its empty places are hidden.
    rows = -(-n // across)
    if across > 1 and room() < width:
        # As wide as they would be; those with a width of their own stand one below the other.
        own = axes.pop("width_ratios", None) is not None
        across = 1 if own else max(1, round(across * room() / width))
        height *= -(-n // across) / rows
        rows = -(-n // across)
    fig = Figure(figsize=(min(width, room()), height))
    fig.set_layout_engine("constrained", **(layout or {}))
    found = list(fig.subplots(rows, across, squeeze=False, **axes).ravel())
    for i, ax in enumerate(found[n:], n):
        ax.set_visible(False)
        if axes.get("sharex"):  # The one above is the lowest of its column.
            found[i - across].tick_params(labelbottom=True)
    return fig, found[:n]


def legend(fig: Figure, *what: Any, ncols: int, **look: Any) -> None:
    """Name colours and marks above all panels, in no more columns than there is room for."""
    if "title" in look:
        look["title"] = textwrap.fill(look["title"], int(13 * room()))
    for across in range(ncols, 0, -1):
        made = fig.legend(*what, **{"loc": "outside upper center", "ncols": across, **look})
        if made.get_window_extent().width <= fig.bbox.width or across == 1:
            break
        made.remove()
    if across < ncols:
        lines = -(-len(made.get_texts()) // across) - -(-len(made.get_texts()) // ncols)
        fig.set_figheight(fig.get_figheight() + 0.2 * lines)


def fit(fig: Figure) -> bool:
    """Break titles and names of axes that are longer than there is room, and make up for it.

    Returns
    -------
    bool
        Whether it can be read: names of many columns have no room beside one another.
    """
    fig.draw_without_rendering()
    wide, boxes, lines = fig.bbox.width, [ax.bbox for ax in fig.axes], 0
    legible = True
    for ax, box in zip(fig.axes, boxes, strict=True):
        middle, level = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        # Beside another panel a line keeps to its own.
        beside = sum(other.y0 < level < other.y1 for other in boxes) > 1
        most = box.width if beside else 2 * min(middle, wide - middle)
        titles = [one for one in ax.get_children() if isinstance(one, Text) and one not in ax.texts]
        lines += sum(_broken(text, most) for text in (*titles, ax.xaxis.label))
        _broken(ax.yaxis.label, box.height, upright=True)
        if not isinstance(ax.xaxis.get_major_locator(), MaxNLocator):
            legible &= not _crowded(ax, 0)
        elif _crowded(ax, 3):
            ax.locator_params(axis="x", nbins=3)
    fig.set_figheight(fig.get_figheight() + 0.16 * lines)
    return legible


def _crowded(ax: Axes, gap: float) -> bool:
    """Whether words along an axis are nearer to one another than so many pixels."""
    boxes = [tick.get_window_extent() for tick in ax.get_xticklabels() if tick.get_text()]
    ends = sorted((box.x0, box.x1) for box in boxes)
    return any(b[0] < a[1] + gap for a, b in itertools.pairwise(ends))


def _broken(text: Text, most: float, *, upright: bool = False) -> int:
    """Break a line longer than `most` pixels; return how many lines there are more."""
    box = text.get_window_extent()
    long = box.height if upright else box.width
    if long <= most:
        return 0
    letters = max(map(len, text.get_text().splitlines()))
    words = " ".join(text.get_text().split())
    text.set_text(textwrap.fill(words, max(12, int(0.95 * letters * most / long))))
    return text.get_text().count("\n")


def minus(text: str) -> str:
    """Write the sign of a number as it is printed."""
    return text.replace("-", "\N{MINUS SIGN}")


def share(value: float, _: object = None) -> str:
    """Write a share on an axis."""
    return minus(f"{100 * value:.3g}%")


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
        names = [*always, *(label(site, 24) for site in sites)]
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
        legend(fig, handles, labels, loc="outside upper left", **look)


def wilson(share: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray]:
    """95% interval of a share of `n` records, by Wilson's formula; NaN for no records."""
    # Wilson 1927: (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    z2 = Z95**2
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = Z95 * np.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return middle - half, middle + half


# --------------------------------------------------------------------------- maps of colours


def heat_map(ax: Axes, values: FloatArray, ends: tuple[float, float], **look: Any) -> Any:
    """Draw a matrix as coloured cells, the first row on top; what is not known stays bare.

    Returns
    -------
    mappable
        For `colour_bar`.
    """
    look = {"cmap": RISING, "vmin": ends[0], "vmax": ends[1], "edgecolor": PAPER, **look}
    # Masked, so that an unknown cell shows the paper and not a colour of the scale.
    mesh = ax.pcolormesh(np.ma.masked_invalid(values), **look)
    ax.set_ylim(len(values), 0)
    return mesh


def letters_on(face: Any) -> str:
    """Black or white, whichever stands out more from a colour (WCAG 2.2, relative luminance)."""
    channels = np.asarray(to_rgb(face))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    # Both stand out alike where (1 + .05) / (L + .05) = (L + .05) / .05.
    return "#ffffff" if linear @ (0.2126, 0.7152, 0.0722) < 0.179 else "#000000"


def in_cells(
    ax: Axes,
    values: FloatArray,
    write: Callable[[float], str],
    mesh: Any,
    *,
    missing: str = "",
    fontsize: float = 8.5,
    **look: Any,
) -> None:
    """Write the numbers of a map into its cells, white where the colours of `mesh` are dark."""
    for i, j in np.ndindex(*values.shape):
        v = float(values[i, j])
        known = bool(np.isfinite(v))
        if known or missing:
            colour = letters_on(mesh.to_rgba(v)[:3]) if known else INK
            words = minus(write(v)) if known else missing
            place: Any = {"ha": "center", "va": "center", "fontsize": fontsize, "color": colour}
            ax.text(j + 0.5, i + 0.5, words, **place, **look)


def cell_axes(ax: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name the rows of a map on the left and its columns above it."""
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.xaxis.tick_top()
    bare(ax, "")


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
    """Draw values with 95% intervals across: above 0, below 0, or neither, by colour and mark."""
    low, high = value - Z95 * error, value + Z95 * error
    kinds: tuple[tuple[Any, str, str, str], ...] = (
        (low > 0, "o", BLUE, BLUE),
        (high < 0, "s", ORANGE, ORANGE),
        (~((low > 0) | (high < 0)), "o", PAPER, MUTED),
    )
    for which, sign, face, edge in kinds:
        # A value without an error is drawn by its mark alone.
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
    # An empty line would look like an error of 0.
    known = [j for j in range(len(names)) if np.isfinite(values[j])]
    fig, ax = sheet(0.3 * len(known) + 0.75)
    for i, j in enumerate(known):
        colour = BLUE if j == 0 else MUTED
        if np.isfinite(ends[j]).all():
            ax.hlines(i, ends[j, 0], ends[j, 1], color=colour, linewidth=1.6)
        # Whole also on the axis.
        ax.plot(values[j], i, "o", color=colour, markersize=6, clip_on=False)
    ax.set_yticks(range(len(known)), [label(names[j], 34) for j in known])
    ax.set_ylim(len(known) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(words + ", with 95% intervals" * bool(np.isfinite(ends[known]).any()))
    bare(ax)
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
        # A new array: the parts drawn before keep where they began.
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

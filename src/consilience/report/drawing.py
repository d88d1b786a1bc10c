"""What all figures share: colours, letters, a bare sheet.

Colours are those of Okabe and Ito (2008), which people with any kind of colour blindness can tell
apart; whatever a colour says is said by a number, a place or a hatch too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

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

WIDTH = 7.6
Z95 = 1.96
"""Half width of a 95 % interval, in standard errors."""
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


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of all figures, for as long as the block lasts."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def short(text: object, width: int = 30) -> str:
    """Cut a name of another party to `width` letters, without control signs."""
    clean = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", str(text))
    if len(clean) > width:
        clean = clean[: width - 9] + "\N{HORIZONTAL ELLIPSIS}" + clean[-8:]
    return clean


def label(text: object, width: int = 30) -> str:
    """Make a name fit to be drawn: short, and never read as mathematics."""
    return short(text, width).replace("$", r"\$")


def sheet(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Return a figure of one drawing, in inches."""
    fig = Figure(figsize=(width, height))
    fig.set_layout_engine("constrained")
    return fig, fig.subplots()


def bare(ax: Axes, grid: Literal["x", "y", "both", ""] = "x") -> None:
    """Take away what carries no information; keep lines across the axis that is read."""
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    if grid:
        ax.grid(axis=grid)


def whole_ticks(top: int) -> Sequence[int]:
    """Whole numbers from 0 to `top`, about six of them."""
    return range(0, top + 1, max(1, -(-top // 6)))

"""The five sections of a report: generic, with slots that a method's own module may fill.

A method whose report says more than its summary and table has a module of its name in the folder
``report`` of its wing, with a subclass of `MethodReport`, called ``REPORT``; every other
method gets `MethodReport` itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.figure import Figure

# Under its own name too, for the pages of wings: they import no engine.
from consilience.engines.federation import Run as Run
from consilience.parameters import table_size
from consilience.protocol import BUILT_IN
from consilience.report.charts import minus, short

Tone = Literal["plain", "good", "caution"]
DASH = "\N{EN DASH}"
MOST_NAMES = 80
"""Columns up to which all are named in the question."""
_NUMBER = re.compile(
    r"(< )?[+\-\u2212]?[\d,]*\.?\d+(e[+\-\u2212]?\d+)?\s?(%|B|kB)?|\u2013|withheld|"
)


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row is its heading."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers only, and is set to the right."""
        columns = range(len(self.head))
        return tuple(all(_NUMBER.fullmatch(row[j]) for row in self.rows) for j in columns)


@dataclass(frozen=True)
class Picture:
    """A figure with its words: `alt` says what it shows to those who cannot see it."""

    name: str
    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True)
class Block:
    """A heading with words, a warning, a figure and tables under it."""

    title: str
    text: tuple[str, ...] = ()
    warning: str = ""
    picture: Picture | None = None
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Headline:
    """The answer in a sentence, and how sure it may sound."""

    text: str
    tone: Tone = "plain"
    more: tuple[str, ...] = ()


class MethodReport:
    """What a method may say in its report beside what is said of every run.

    Every slot reads the run and returns words, tables and figures; none computes anything new from
    data.
    """

    def headline(self, run: Run) -> Headline:
        """Answer in a sentence."""
        first, _, rest = run.result.summary().partition(". ")
        return Headline(first.rstrip(".") + ".", more=(rest,) if rest else ())

    def evidence(self, run: Run) -> Sequence[Block]:
        """Evidence with its uncertainty."""
        return (Block("Result", tables=(frame_table(run.result.to_frame(), "Result"),)),)

    def facts(self, run: Run) -> Sequence[tuple[str, str]]:
        """Key figures: label and value (rows, revealed rank, ...)."""
        return ()

    def handling(self, run: Run) -> Sequence[str]:
        """What the sites' rules did to what left them, in sentences."""
        return ()

    def limits(self, run: Run) -> Sequence[str]:
        """Known limits of the method, in sentences."""
        return ()


def report_of(method: str) -> MethodReport:
    """Return what a method says in its report; the generic words where it has no module."""
    if method not in BUILT_IN:
        return MethodReport()
    wing = BUILT_IN[method].split(".")[1]
    room = "consilience.report" if wing == "protocol" else f"consilience.{wing}.report"
    name = f"{room}.{re.sub(r'[^a-z0-9]', '_', method)}"
    # Looked for, not tried: an error inside the module must not look like its absence.
    if importlib.util.find_spec(name) is None:
        return MethodReport()
    found: MethodReport = importlib.import_module(name).REPORT()
    return found


# --------------------------------------------------------------------------- words and numbers


def number(value: Any) -> str:
    """Write a number for people: three digits or so, a dash for what is not known."""
    if value is None or isinstance(value, bool | str | list | tuple | dict):
        return plain(value)
    if isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu"):
        return minus(f"{int(value):,}")
    return numbers([value])[0]


def numbers(values: Iterable[Any], gap: str = DASH) -> tuple[str, ...]:
    """Write numbers of one kind with the same number of decimals; `gap` for NaN."""
    known = [float(v) for v in values]
    largest = max((abs(v) for v in known if math.isfinite(v)), default=0.0)
    if largest and not 1e-4 <= largest < 1e9:
        return tuple(minus(f"{v:.2e}") if math.isfinite(v) else gap for v in known)
    # Three digits of the largest: a column of numbers has one scale.
    power = math.floor(math.log10(largest)) if largest else 0
    decimals = min(6, max(1 if power < 4 else 0, 2 - power))
    return tuple(minus(f"{v:z,.{decimals}f}") if math.isfinite(v) else gap for v in known)


def with_error(value: float, error: float) -> str:
    """Write a number with its standard error."""
    if not math.isfinite(value):
        return DASH
    # Together, so that value and error have the same decimals.
    first, *rest = numbers([value, error] if math.isfinite(error) else [value])
    return f"{first} \N{PLUS-MINUS SIGN} {rest[0]}" if rest else first


def plain(value: Any) -> str:
    """Write a parameter or a setting as people would."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        if not value:
            return "none"
        if size := table_size(value):
            return size
        deep = any(isinstance(v, list | tuple) for v in value)
        return ("; " if deep else ", ").join(plain(v) for v in value)
    if isinstance(value, dict):
        return "; ".join(f"{k}: {plain(v)}" for k, v in value.items())
    return str(value)


def percent(value: float, decimals: int = 1) -> str:
    """Write a share as a percentage; a dash for what is not known."""
    if not math.isfinite(value):
        return DASH
    return minus(f"{100 * value:z.{decimals}f}%")


def p_value(p: float) -> str:
    """Write a p-value with two digits that count; small ones only as small."""
    if not math.isfinite(p):
        return DASH
    # More digits than the approximation behind a p-value has would promise too much.
    if p < 0.0001:
        return "< 0.0001"
    return f"{p:.4f}" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def site_name(site: str) -> str:
    """Name of a site, short enough for a table."""
    return short(site, 60)


def equals(p: float) -> str:
    """Write a p-value with its sign of equality."""
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"


def size(n: int) -> str:
    """Write a number of bytes."""
    return f"{n:,} B" if n < 10_000 else f"{n / 1000:,.1f} kB"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names; of many, the first and how many more."""
    names = [str(n) for n in names]
    # One more takes no more room than its number.
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def plural(n: int, one: str, many: str = "") -> str:
    """Number and noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def frame_table(frame: Any, caption: str) -> Table:
    """Turn a data frame into a table."""
    head = (str(frame.index.name or ""), *(str(c) for c in frame.columns))
    columns = []
    for name in frame.columns:
        values = list(frame[name])
        floats = bool(values) and all(isinstance(v, float) for v in values)
        columns.append(numbers(values) if floats else tuple(number(v) for v in values))
    rows = tuple(zip((str(i) for i in frame.index), *columns, strict=True))
    return Table(caption, head, rows)

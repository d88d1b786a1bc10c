"""The five sections of a report: generic, with slots that a method's own module may fill.

A method whose report says more than its summary and table has a module of its name in the folder
``report`` of its wing, with a subclass of `MethodReport`, called ``REPORT``; every other
method gets `MethodReport` itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, nodes
from matplotlib.figure import Figure

# Under its own name too, for the pages of wings: they import no engine.
from consilience.engines.federation import Run as Run
from consilience.parameters import table_size
from consilience.protocol import BUILT_IN
from consilience.report import sections
from consilience.report.charts import Z95, minus, short

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


# --- Sentences of reports: they stand in a template, where a writer can edit them.
#
# A method's report has a template beside its module, with a Jinja macro for each slot that the
# method fills. What comes out is plain text, which the page escapes. Blank lines part paragraphs;
# any other break of lines is a space.
#
# ``headline()``
#     ``{% call answer("good") %}The answer.{% endcall %}``: a first paragraph, and further ones.
# ``evidence()``
#     ``{% call block("Title") %}...{% endcall %}`` for each part of the page: paragraphs, and among
#     them ``{{ table(caption, head, rows, note) }}``, ``{{ folded(...) }}``, ``{{ warn("...") }}``,
#     ``{% call figure("name", plot(result), alt) %}The caption.{% endcall %}``.
# ``handling()``, ``limits()``
#     A paragraph for each sentence.
#
# `result`, `run` and what the report's `context` returns are at hand, and so are the functions that
# write numbers and names (`number`, `percent`, `plural`, `listed`, ...).

R = TypeVar("R")
SLOTS = frozenset(
    {"headline", "evidence", "handling", "limits", "methods", "question", "disclosure"}
)
SILENT = frozenset({"handling", "limits"})
"""Slots of which a method need not have anything to say."""
WRITERS = ("number", "numbers", "percent", "p_value", "equals", "site_name", "listed", "plural")


class TemplateReport(MethodReport, Generic[R]):
    """A report whose sentences stand in a template beside the module of its class.

    Attributes
    ----------
    kind : type
        Class of the results that it reads.
    template : str
        Name of the template; by default that of the module, ``<module>.j2``.
    """

    kind: type[R]
    template: ClassVar[str] = ""

    def context(self, result: R, run: Run) -> dict[str, Any]:
        """Return what the sentences need to know beside `result` and `run`."""
        return {}

    def read(self, run: Run) -> R:
        """Return the result, checked."""
        if not isinstance(run.result, self.kind):
            raise TypeError(f"the result of the run is no {self.kind.__name__}")
        return run.result

    def headline(self, run: Run) -> Headline:
        """Answer in a sentence."""
        return self._collect("headline", run)[0]

    def evidence(self, run: Run) -> Sequence[Block]:
        """Evidence with its uncertainty."""
        return self._collect("evidence", run)

    def handling(self, run: Run) -> Sequence[str]:
        """What the sites' rules did to what left them."""
        return self._collect("handling", run)

    def limits(self, run: Run) -> Sequence[str]:
        """Known limits of the method."""
        return self._collect("limits", run)

    def _collect(self, slot: str, run: Run) -> list[Any]:
        """What a slot of the template builds, or its paragraphs where it builds nothing."""
        module, result = Path(inspect.getfile(type(self))), self.read(run)
        facts = {"run": run, "result": result, **self.context(result, run)}
        return said(module.parent / (self.template or f"{module.stem}.j2"), slot, facts)


def said(template: Path, slot: str, facts: dict[str, Any]) -> list[Any]:
    """What a slot of a template builds of facts, or its paragraphs where it builds nothing.

    Raises
    ------
    ValueError
        The template lacks the slot, or has a macro that nothing calls.
    """
    page = _Page()
    _check_macros(template)
    found = _environment(template.parent).get_template(template.name)
    spoken = getattr(found.make_module({**page.builders(), **facts}), slot, None)
    if spoken is None:
        if slot in SILENT:
            return []
        raise ValueError(f"the template {template.name} has no macro {slot!r}: write one")
    text = str(spoken())
    # What a slot builds by calls counts; blank lines between these are no paragraphs.
    return page.made or paragraphs(text)


@cache
def _check_macros(template: Path) -> None:
    """Refuse a macro that is no slot and that nothing calls: the name of one is misspelt."""
    tree = _environment(template.parent).parse(template.read_text(encoding="utf-8"))
    called = {one.name for one in tree.find_all(nodes.Name)}
    lost = sorted({one.name for one in tree.find_all(nodes.Macro)} - called - SLOTS)
    if lost:
        raise ValueError(
            f"the template {template.name} has a macro {lost[0]!r} that nothing calls and that is "
            f"no slot: call it, or correct its name ({', '.join(sorted(SLOTS))})"
        )


class _Page:
    """What the calls of a template build, in their order."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._parts: dict[str, Any] = {}

    def builders(self) -> dict[str, Callable[..., str]]:
        return {
            name: getattr(self, name)
            for name in ("answer", "block", "table", "folded", "warn", "figure")
        }

    def answer(self, tone: Tone, caller: Callable[[], str]) -> str:
        first, *more = paragraphs(caller())
        self.made.append(Headline(first, tone, tuple(more)))
        return ""

    def block(self, title: str, caller: Callable[[], str] = str) -> str:
        self._parts = {"tables": (), "folded": ()}
        # The caller adds tables and figures to the parts while its text is made: it comes first.
        text = tuple(paragraphs(caller()))
        self.made.append(Block(" ".join(title.split()), text, **self._parts))
        return ""

    def table(self, caption: str, head: Sequence[str], rows: Any, note: str = "") -> str:
        """Add a table; long notes may have breaks of lines."""
        return self._add("tables", Table(caption, tuple(head), tuple(rows), " ".join(note.split())))

    def folded(self, caption: str, head: Sequence[str], rows: Any, note: str = "") -> str:
        """Add a table that opens on demand."""
        return self._add("folded", Table(caption, tuple(head), tuple(rows), " ".join(note.split())))

    def _add(self, where: str, table: Table) -> str:
        self._parts[where] += (table,)
        return ""

    def warn(self, text: str) -> str:
        self._parts["warning"] = " ".join(text.split())
        return ""

    def figure(self, name: str, figure: Figure, alt: str, caller: Callable[[], str]) -> str:
        caption = " ".join(caller().split())
        if "picture" in self._parts:
            raise ValueError(f"a block has one figure: open another block for {name!r}")
        self._parts["picture"] = Picture(name, figure, caption, " ".join(alt.split()))
        return ""


def paragraphs(text: str) -> list[str]:
    """Split at blank lines; the sign of a number is written as it is printed."""
    found = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [re.sub(r"(?<![\w.=-])-(?=\d)", "\N{MINUS SIGN}", part) for part in found if part]


@cache
def _environment(folder: Path) -> Environment:
    """Templates of one folder. Nothing is escaped here: the page does it, once."""
    made = Environment(  # noqa: S701
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {name: getattr(sections, name) for name in WRITERS}
    made.globals |= {"short": short, "DASH": DASH, "Z95": Z95, "zip": zip}
    return made

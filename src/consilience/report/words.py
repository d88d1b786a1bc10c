"""Sentences of reports: they stand in a template, where a writer can edit them.

A method's report has a template beside its module, with a Jinja macro for each slot that the method
fills. What comes out is plain text, which the page escapes. Blank lines part paragraphs; any other
break of lines is a space.

``headline()``
    ``{% call answer("good") %}The answer.{% endcall %}``: a first paragraph, and further ones.
``evidence()``
    ``{% call block("Title") %}...{% endcall %}`` for each part of the page: paragraphs, and among
    them ``{{ table(caption, head, rows, note) }}``, ``{{ folded(...) }}``, ``{{ warn("...") }}``,
    ``{% call figure("name", plot(result), alt) %}The caption.{% endcall %}``.
``handling()``, ``limits()``
    A paragraph for each sentence.

`result`, `run` and what the report's `context` returns are at hand, and so are the functions that
write numbers and names (`number`, `percent`, `plural`, `listed`, ...).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, nodes
from matplotlib.figure import Figure

from consilience.engines.federation import Run
from consilience.report import sections
from consilience.report.charts import Z95, short
from consilience.report.sections import Block, Headline, MethodReport, Picture, Table, Tone

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
    made.globals |= {"short": short, "DASH": sections.DASH, "Z95": Z95, "zip": zip}
    return made

"""One self-contained HTML file per run: no network, nothing but this file.

What the page of every method says: who was asked, known limits, how to repeat the run.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import consilience
from consilience.engines.federation import Run, load_run
from consilience.exceptions import ParameterError
from consilience.parameters import parameter_docs, table_size
from consilience.protocol.method import Method, get_method
from consilience.report import charts, disclosure, sections
from consilience.report.sections import (
    MOST_NAMES,
    Block,
    MethodReport,
    listed,
    number,
    plain,
)
from consilience.wire.files import atomic_write

# --------------------------------------------------------------------------- question


ROLES = {
    "features": "columns that the method works on",
    "target": "target",
    "id": "id",
    "agent": "agent",
    "entity": "entity",
    "weight": "weight",
    "cluster": "cluster",
    "offset": "offset",
    "sequence": "sequence",
}


def question(run: Run, method: type[Method]) -> list[Block]:
    """What was asked, of whom, and of which columns."""
    asked = run.info.settings
    columns, preparation = asked.get("columns") or {}, asked.get("preparation") or {}
    given = [role for role in ROLES if columns.get(role)]
    rows = [(ROLES[role], _named(columns[role]), _levels(columns, role)) for role in given]
    if not any(levels for *_, levels in rows):
        rows = [row[:2] for row in rows]  # type: ignore[misc]
    # What a parameter means stands in the method's docstring, and nowhere twice.
    meanings, parameters = meanings_of(method), _parameters(run, method)
    indicators = sorted((preparation.get("indicators") or {}).items())
    facts = {
        "roles": [f"{site} is {role}" for site, role in sorted((asked.get("roles") or {}).items())],
        "columns": columns,
        "preparation": preparation,
        "indicators": [(name, [f"{name} = {v}" for v in values]) for name, values in indicators],
        "described": rows,
        "settings": [
            (name, number(value) or "none", meanings.get(name, "")) for name, value in parameters
        ],
    }
    return _said("question", run, facts)


def _said(slot: str, run: Run, facts: dict[str, Any]) -> list[Block]:
    return sections.said(Path(__file__).with_suffix(".j2"), slot, {"run": run, **facts})


def _named(columns: Any) -> str:
    """Names of columns; of very many (pixels, words) the first and how many more."""
    if isinstance(columns, list | tuple):
        names = [str(name) for name in columns]
        return listed(names, 24) if len(names) > MOST_NAMES else ", ".join(names)
    return plain(columns)


def _levels(columns: dict[str, Any], role: str) -> str:
    levels = columns.get("levels") or {}
    named = columns[role] if isinstance(columns[role], list | tuple) else [columns[role]]
    return "; ".join(f"{c}: {plain(levels[c])}" for c in named if c in levels)


def _parameters(run: Run, method: type[Method]) -> list[tuple[str, Any]]:
    """Parameters in the order of the method, which files do not keep."""
    order = [f.name for f in dataclasses.fields(method)]  # type: ignore[arg-type]
    given = run.info.parameters
    return sorted(
        given.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)
    )


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """Read what each parameter means from the docstring of a class, such as a method's."""
    # Marks of code and of emphasis are for the page of Python.
    marks = re.compile(r"(?<![\w*])\*(\w+)\*(?![\w*])")
    docs = parameter_docs(inspect.getdoc(kind) or "")
    return {name: marks.sub(r"\1", text.replace("`", "")) for name, (_, text) in docs.items()}


# --------------------------------------------------------------------------- limits


def limits(run: Run, method: type[Method], own: MethodReport) -> list[Block]:
    """Notes of the run, limits of the method, and how to repeat the run."""
    libraries = [(k, v) for k, v in sorted(run.info.libraries.items()) if k != "lock"]
    facts = {"own": own.limits(run), "absence": method.absence, "libraries": libraries}
    return _said("limits", run, facts)


def repeat_code(run: Run, method: type[Method]) -> str:
    """Return the call in Python that repeats the run over a federation."""
    name = method.__name__
    home = "consilience" if hasattr(consilience, name) else method.__module__
    given = ", ".join(
        f"{key}={key if table_size(value) else repr(value)}" for key, value in _changed(run, method)
    )
    return f"from {home} import {name}\n\n{name}({given}).run(federation, seed={run.info.seed})"


def _changed(run: Run, method: type[Method]) -> list[tuple[str, Any]]:
    """Parameters that are not the defaults: what is to be read, and retyped."""
    defaults = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in dataclasses.fields(method)  # type: ignore[arg-type]
    }
    return [
        (key, value)
        for key, value in _parameters(run, method)
        if key not in defaults or not _is_same(defaults[key], value)
    ]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal as files keep them, where a tuple is a list."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def methods_paragraph(run: Run) -> str:
    """Describe a run as the methods section of a paper would, with its references.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    str
        A paragraph on data, method, settings and what left the sites, and a line for each
        reference.
    """
    method, asked = method_of(run), run.info.settings
    own = sections.report_of(run.info.method)
    known = [f"{value} {name}" for name, value in own.facts(run) if name.startswith("rows")]
    changed = [f"{key} = {number(value)}" for key, value in _changed(run, method)]
    facts = {
        "roles": sorted((asked.get("roles") or {}).items()),
        "columns": asked.get("columns") or {},
        "preparation": asked.get("preparation") or {},
        "rows": known[0] if known else "",
        "changed": changed,
        "source": source(method),
        "presets": sorted(set(run.presets.values())),
        **disclosure.in_short(run),
    }
    return "\n\n".join(
        sections.said(Path(__file__).with_suffix(".j2"), "methods", {"run": run, **facts})
    )


def source(method: type[Method]) -> str:
    """Return what a paper cites for a method, as the method's file names it; "" where nothing."""
    found = re.search(r"^Sources?: (.*?)(?=\n\n|\Z)", ladder(method), re.M | re.S)
    cited = " ".join(found.group(1).split()) if found else ""
    # What follows is about this software.
    cited = re.split(r"\s(?:Departures|Phases):|; (?:[\w ,]+ )?see `|; the second round", cited)[0]
    # Nor does a paper cite a module of it.
    cited = re.sub(r"`[^`]*`|\*", "", cited).strip(" .;,")
    return "" if cited == "any textbook" else cited


def ladder(method: type[Method]) -> str:
    """Return the exchange as the method's file states it."""
    return inspect.cleandoc(sys.modules[method.__module__].__doc__ or method.__doc__ or "")


def method_of(run: Run) -> type[Method]:
    """Return the run's method."""
    return get_method(run.info.method)


_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_TEMPLATES = Path(__file__).parent / "templates"
_FONT = re.compile(r"font(?:-size)?: ([\d.]+)px")
SMALLEST = 9
"""Pixels of the smallest letters of a drawing on a narrow page."""
PHONE = 350
"""Pixels that a telephone of 400 leaves a drawing; wider ones are drawn for it anew."""
_COLOURS = {
    charts.INK: "var(--ink)",
    charts.MUTED: "var(--muted)",
    charts.RULE: "var(--rule)",
    charts.PAPER: "var(--paper)",
}


def write(run: Run | str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a finished run.

    Parameters
    ----------
    run : Run or path
        A run, or its directory; a purged one will do.
    path : path, optional
        File, or directory to put ``report.html`` into; by default the run's directory.

    Returns
    -------
    Path
        The file. The same run gives the same bytes.

    Raises
    ------
    ParameterError
        The run has no directory and no path is given.
    RunError
        The run cannot be read, is not finished, or the file cannot be written.
    """
    found = run if isinstance(run, Run) else load_run(run)
    if path is None and found.directory is None:
        raise ParameterError.of("path", "a file name, since the run has no directory", path)
    target = Path(found.directory or "." if path is None else path)
    if target.is_dir():
        target = target / "report.html"
    # A page that is half written would look like a whole one.
    atomic_write(target, render(found).encode())
    return target


@dataclass(frozen=True, eq=False)
class Report:
    """The report of a run: a notebook shows the page.

    Parameters
    ----------
    run : Run
    """

    run: Run

    @property
    def html(self) -> str:
        """The whole page."""
        return render(self.run)

    @property
    def figures(self) -> dict[str, Figure]:
        """Figures of the page by name, drawn anew each time: whoever restyles one has its own."""
        own, method = sections.report_of(self.run.info.method), method_of(self.run)
        blocks = (*own.evidence(self.run), *disclosure.disclosure(self.run, method, own))
        return {b.picture.name: b.picture.figure for b in blocks if b.picture is not None}

    def axes(self, kind: str | None = None) -> Axes | NDArray[Any]:
        """Draw one of `figures`, by default the first, and return its axes; see `Result.plot`.

        Parameters
        ----------
        kind : str, optional
            Name of the figure.

        Returns
        -------
        Axes or array of Axes
            Those of the figure, without those of colour bars.

        Raises
        ------
        ParameterError
            There is no such figure.
        """
        # On use: it looks for a screen.
        import matplotlib.pyplot as plt

        figures = self.figures
        name = next(iter(figures)) if kind is None else kind
        if name not in figures:
            raise ParameterError.of("kind", f"one of {', '.join(figures)}", kind)
        figure = figures[name]
        # Letters are dark on any notebook.
        figure.set_facecolor(charts.PAPER)
        plt.figure(figure)
        drawn = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
        return np.array(drawn) if drawn[1:] else drawn[0]

    def save(self, path: str | Path | None = None) -> Path:
        """Write the page as `write` does, and return its file.

        Parameters
        ----------
        path : path, optional
            File, or directory to put ``report.html`` into; by default the run's directory.

        Returns
        -------
        Path
        """
        return write(self.run, path)

    def short(self) -> Markup:
        """The answer, the main table and the remarks, as a notebook shows a run."""
        said = sections.report_of(self.run.info.method).headline(self.run)
        parts = [Markup("<p><strong>{}</strong></p>").format(said.text)]
        parts += [Markup("<p>{}</p>").format(sentence) for sentence in said.more]
        frame = self.run.result.to_frame()
        parts.append(Markup(frame.to_html(escape=True, border=0, max_rows=_ROWS)))
        parts += [Markup("<p><em>Note.</em> {}</p>").format(note) for note in self.run.notes]
        return Markup("\n").join(parts)

    def __repr__(self) -> str:
        return f"Report of run {self.run.info.run}: save() writes it, figures has its pictures"

    def _repr_html_(self) -> str:
        # In a frame of its own, so that neither the page's style nor the notebook's leaks.
        frame = '<iframe srcdoc="{}" title="{}" style="width:100%;height:42em;border:0"></iframe>'
        return str(Markup(frame).format(self.html, f"Report of run {self.run.info.run}"))


_ROWS = 30
"""Of the main table that a notebook shows of a run."""


def render(run: Run) -> str:
    """Return the report as text."""
    method = method_of(run)
    own = sections.report_of(run.info.method)
    evidence, left = list(own.evidence(run)), disclosure.disclosure(run, method, own)
    with charts.narrow():
        slim = (*own.evidence(run), *disclosure.disclosure(run, method, own))
    narrow = {b.picture.name: b.picture.figure for b in slim if b.picture}
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts: dict[str, Any] = {
        "info": run.info,
        "title": method.title,
        "style": Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "simulated": disclosure.simulated(run),
        "headline": own.headline(run),
        "facts": [*own.facts(run), *disclosure.key_figures(run)],
        "question": question(run, method),
        "evidence": evidence,
        # The one figure that stands with the answer.
        "key": next((block for block in evidence if block.picture), None),
        "silent": sections.listed(sorted({x[0] for x in disclosure.in_short(run)["silent"]}), 6),
        "disclosure": left,
        "limits": limits(run, method, own),
        "ladder": ladder(method),
        "phases": disclosure.phases(run, method),
        "head": run.transcript[-1].chain if run.transcript else "",
        "n_lines": len(run.transcript),
        "methods": methods_paragraph(run),
        "code": repeat_code(run, method),
        "drawings": lambda picture: drawings(picture, narrow.get(picture.name)),
    }
    return environment.get_template("report.html").render(facts)


def drawings(picture: sections.Picture, narrow: Figure | None) -> Markup:
    """Draw a picture, and its narrow form for a telephone where it would not fit there."""
    found = inline_svg(picture.figure, picture.name, picture.alt)
    if narrow is None or 'class="wide"' not in found:
        return found
    with charts.style():
        if not charts.fit(narrow):
            return found
    slim = inline_svg(narrow, f"{picture.name}-narrow", picture.alt)
    return Markup('<div class="broad">{}</div><div class="slim">{}</div>').format(found, slim)


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """Draw a figure as an ``<svg>`` element that takes the page's colours and letters.

    Parameters
    ----------
    figure : Figure
    name : str
        Goes before every id, so that several drawings on one page do not share any.
    alt : str
        What the figure shows.
    """
    drawn = io.BytesIO()
    with charts.style(), warnings.catch_warnings():
        # Letters are drawn by the browser, so it does not matter which ones Matplotlib's font has.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawn, format="svg", bbox_inches="tight", pad_inches=0.04, metadata=nothing)
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in list(root.iter()):
        for part in list(parent):
            # A style inside an inlined drawing would hold for the whole page: style.css has it.
            if part.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(part)
    # Several drawings share one page: their ids, and what points to them, must differ.
    for element in root.iter():
        _adapt(element, name)
    width = float(root.get("viewBox", "0 0 1 1").split()[2])
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    # Points of the drawing as pixels of the page: letters have the size of the text. Where there is
    # less room, the smallest ones stay legible.
    points = [float(size) for size in _FONT.findall(drawn.getvalue().decode())]
    least = min(1.0, SMALLEST * 3 / 4 / min(points, default=SMALLEST))
    pixels = width * 4 / 3
    root.set("style", f"width:{pixels:.0f}px;--least:{pixels * least:.0f}px")
    if pixels * least > PHONE:
        root.set("class", "wide")
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adapt(element: ElementTree.Element, name: str) -> None:
    """Make ids, links, colours and letters of one element fit into the page."""
    for key, value in element.attrib.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == f"{{{_XLINK}}}href" and value.startswith("#"):
            value = f"#{name}-{value[1:]}"
        else:
            value = value.replace("url(#", f"url(#{name}-")
        if key == "style":
            for colour, variable in _COLOURS.items():
                value = value.replace(colour, variable)
            value = re.sub(r"'DejaVu Sans'(, '[^']*')*(, sans-serif)?", "var(--sans)", value)
        element.set(key, value)

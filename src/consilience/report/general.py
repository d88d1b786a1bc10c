"""What the page of every method says: who was asked, known limits, how to repeat the run."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import consilience
from consilience.engines.federation import Run
from consilience.parameters import table_size
from consilience.protocol.method import Method, get_method
from consilience.report import disclosure, sections, words
from consilience.report.sections import (
    MOST_NAMES,
    Block,
    MethodReport,
    listed,
    number,
    plain,
)

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
    meanings, parameters = parameter_docs(method), _parameters(run, method)
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
    return words.said(Path(__file__).with_suffix(".j2"), slot, {"run": run, **facts})


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


def parameter_docs(method: type[Any]) -> dict[str, str]:
    """Read what each parameter means from the docstring of a class, such as a method's."""
    found: dict[str, list[str]] = {}
    lines = (inspect.getdoc(method) or "").splitlines()
    start = lines.index("Parameters") + 2 if "Parameters" in lines else len(lines)
    name = ""
    for line in lines[start:]:
        if line.startswith("---"):
            break
        if line.startswith(" ") and name:
            found[name].append(line.strip())
        elif ":" in line:
            name = line.split(":")[0].strip()
            found[name] = []
    # Marks of code and of emphasis are for the page of Python.
    marks = re.compile(r"(?<![\w*])\*(\w+)\*(?![\w*])")
    return {
        name: marks.sub(r"\1", " ".join(words).replace("`", "")) for name, words in found.items()
    }


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
        words.said(Path(__file__).with_suffix(".j2"), "methods", {"run": run, **facts})
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

"""Pages of the documentation site that are made from the code: names of Python, keys of files."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel

import consilience
from consilience.parameters import rules_of
from consilience.protocol.method import Method, all_methods
from consilience.sites import study as files
from consilience.sites.own_columns import LongColumns, SiteColumns, Unit
from consilience.sites.policy import PRESETS, Policy
from consilience.sites.source import Source

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"

KEYS: dict[str, list[tuple[str, Any, str]]] = {
    "Study file": [
        ("", files.Study, "top-level"),
        ("[data]", files.Data, "data-columns-by-role"),
        ("[preparation]", files.PreparationTable, "preparation-what-every-site-does-first"),
        ("[sites]", files.Sites, "sites"),
        ("[coordinator]", files.Coordinator, "coordinator-and-follows"),
        ("[follows]", files.Follows, "coordinator-and-follows"),
        ("[reference]", files.Reference, "reference-public-rows"),
    ],
    "Site file": [
        ("", files.SiteFile, "the-site-file"),
        ("[source]", Source, "source-where-the-table-is"),
        ("[columns]", SiteColumns, "columns-how-the-site-differs-from-the-study"),
        ("[columns.units.NAME]", Unit, "columns-how-the-site-differs-from-the-study"),
        ("[columns.long]", LongColumns, "columns-how-the-site-differs-from-the-study"),
        ("[trust]", files.Trust, "trust"),
        ("[retention]", files.Retention, "retention"),
        ("[release]", files.Release, "release"),
        ("[partners]", files.Partners, "partners"),
    ],
}
"""Tables of the two files: how they are written, what reads them, where the guide explains them."""


# --------------------------------------------------------------------------- Python


def groups() -> list[dict[str, Any]]:
    """Groups of docs/site/api.toml, and one of public names that are in none."""
    listed: list[dict[str, Any]] = tomllib.loads(
        (ROOT / "docs" / "site" / "api.toml").read_text("utf-8")
    )["group"]
    named = {name for group in listed for name in group.get("names", ())}
    # The error that all others are is shown with them.
    public = {name for name in dir(consilience) if not name.startswith("__")} - {"ConsilienceError"}
    for name in sorted(named - public):
        raise SystemExit(f"docs/site/api.toml shows {name!r}, which is no public name")
    more = sorted(public - named)
    return [*listed, {"title": "More", "names": more}] if more else listed


def _slug(title: str) -> str:
    return "api/" + re.sub(r"\W+", "-", title.lower())


def _short(path: str) -> str:
    return path.removeprefix("consilience.")


def group_pages() -> list[str]:
    """Pages of the groups, in order."""
    return [_slug(group["title"]) for group in groups()]


def opening() -> str:
    """What the section `Reference` begins with: where to look, and every name of Python."""
    lines = [
        "| you look for | read |",
        "|---|---|",
        "| a key of a study file or a site file | [keys of the files](/keys.md) |",
        "| a command and its options | [command line](reference/command-line.md) |",
        "| the number with which a command ends | [exit codes](reference/exit-codes.md) |",
        "| a word | [glossary](glossary.md) |",
        "| the paper of a method | [sources](sources.md) |",
        "",
        "## Python",
        "",
        "| | names |",
        "|---|---|",
    ]
    for group in groups():
        named = [(name, f"consilience.{name}") for name in group.get("names", ())]
        named += [(_short(path), path) for path in group.get("modules", ())]
        listed = ", ".join(f"[`{name}`](/api/{path}.rst)" for name, path in named)
        lines.append(f"| [{group['title']}](/{_slug(group['title'])}.rst) | {listed} |")
    return "\n".join([*lines, ""])


def pages() -> dict[str, str]:
    """Pages by name with ending."""
    made = {"keys.md": key_page()}
    shown: set[int] = set()
    for group in groups():
        rows, inner = [], []
        named = [(name, f"consilience.{name}") for name in group.get("names", ())]
        for name, path in named:
            thing = getattr(consilience, name)
            shown.add(id(thing))
            made[f"api/{path}.rst"] = _page(path, thing)
            rows.append((f":doc:`{name} </api/{path}>`", _first(thing)))
            inner.append(f"/api/{path}")
        for path in group.get("modules", ()):
            module = importlib.import_module(path)
            made[f"api/{path}.rst"] = _module_page(path, module, shown)
            rows.append((f":doc:`{_short(path)} </api/{path}>`", _first(module)))
            inner.append(f"/api/{path}")
        parts = [_title(group["title"], "="), _table(("name", "what"), rows), _toctree(inner)]
        made[f"{_slug(group['title'])}.rst"] = "\n".join(parts)
    return made


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def _toctree(inner: list[str]) -> str:
    return "\n".join([".. toctree::", "   :hidden:", "", *(f"   {name}" for name in inner), ""])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [head, *rows]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join([*lines, ""])


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _page(path: str, thing: Any) -> str:
    name = path.rpartition(".")[2]
    parts = [_title(name, "=")]
    if not isinstance(thing, type):
        return "\n".join([*parts, f".. autofunction:: {path}", ""])
    parts += _class(path, thing)
    if issubclass(thing, Method):
        parts += _method(thing)
    return "\n".join(parts)


def _members(thing: type) -> list[str]:
    """Public members that the package itself defines and describes."""
    found = []
    for base in thing.__mro__:
        if not base.__module__.startswith("consilience"):
            continue
        for name, value in vars(base).items():
            inner = getattr(value, "__func__", value)
            described = callable(inner) or isinstance(value, property)
            if name.startswith("_") or not described or name in found or isinstance(inner, type):
                continue
            if inspect.getdoc(value):
                found.append(name)
    return found


def _class(path: str, thing: type) -> list[str]:
    lines = [f".. autoclass:: {path}"]
    kept = _members(thing)
    if issubclass(thing, Method) and thing is not Method:
        # The rest is for those who write methods, and stands there.
        kept = [name for name in kept if name in ("run", "from_parameters", "validate")]
    lines.append("")
    for name in kept:
        kind = "property" if isinstance(getattr(thing, name), property) else "method"
        lines += [f"   .. auto{kind}:: {path}.{name}"]
    return [*lines, ""]


def _method(kind: type[Method]) -> list[str]:
    """What a method declares beside its docstring."""
    from consilience.cli.main import ladder

    doc = inspect.getdoc(inspect.getmodule(kind)) or ""
    parts = [_title("Parameters: defaults and what is allowed", "-")]
    rules = rules_of(kind)
    rows: list[tuple[str, ...]] = []
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        rule = rules[item.name].words if item.name in rules else ""
        rows.append((f"``{item.name}``", _default(item), rule.replace("*", r"\*")))
    parts.append(_table(("parameter", "default", "must be"), rows) if rows else "It has none.\n")
    parts += [f'In a study file: ``method = "{kind.name}"``, version {kind.version}.\n']
    result = kind.Result
    parts += [_title("Result", "-"), "``run.result`` is of this class.\n"]
    parts += _class(f"{result.__module__}.{result.__qualname__}", result)
    told = {"When a site does not answer": kind.absence, "What the coordinator knows": kind.leakage}
    for title, text in told.items():
        parts += [_title(title, "-"), f"{_escaped(text)}\n"]
    parts += [
        _title("Exchange", "-"),
        "::\n",
        *(f"   {row}" for row in ladder(doc).splitlines()),
        "",
    ]
    return parts


def _escaped(text: str) -> str:
    return re.sub(r"([*|\\])", r"\\\1", text)


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return f"``{item.default!r}``"
    if item.default_factory is not dataclasses.MISSING:
        return f"``{item.default_factory()!r}``"
    return "required"


def _module_page(path: str, module: types.ModuleType, shown: set[int]) -> str:
    listed = getattr(module, "__all__", None)
    names = listed or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == path
        and id(value) not in shown
    ]
    parts = [_title(_short(path), "="), f".. automodule:: {path}\n"]
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            parts += _class(f"{path}.{name}", thing)
        else:
            parts += [f".. autofunction:: {path}.{name}", ""]
    return "\n".join(parts)


# --------------------------------------------------------------------------- keys of files


def key_page() -> str:
    """Every key of the two files with its type and default; meanings are those of the guide."""
    guide = (GUIDE / "study-file.md").read_text("utf-8")
    parts = [
        "# Keys of the study file and the site file\n",
        "Every key that is read, from the code that reads it. An unknown key is an error. Examples",
        "and rules are in [the guide](guide/study-file.md).\n",
    ]
    for title, tables in KEYS.items():
        parts.append(f"## {title}\n")
        for written, model, anchor in tables:
            head = f"`{written}`" if written else "Top level"
            where = f"[Explained in the guide](guide/study-file.md#{anchor})"
            parts += [f"### {title}: {head}\n", f"{where}.\n", *_key_table(model, guide), ""]
        if title == "Study file":
            parts += _parameter_table()
    steward = "[Explained in the steward's guide](guide/site-steward.md#policy)"
    parts += ["### Site file: `[policy]`\n", f"{steward}.\n", *_policy_table(), ""]
    return "\n".join(parts)


def _key_table(model: Any, guide: str) -> Iterator[str]:
    meant = _meanings(model.__name__, guide)
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    hints = typing.get_type_hints(model, include_extras=True)
    for name, key, default in defaults(model):
        bounds = _bounds(model, name)
        cell = f"{typed(hints[name])}{bounds}".replace("|", r"\|")
        # Links of the guide's tables lead from where they stand.
        text = re.sub(r"\]\(#", "](guide/study-file.md#", meant.get(key, ""))
        text = re.sub(r"\]\((?!guide/|\.\./)([\w-]+\.md)", r"](guide/\1", text)
        yield f"| `{key}` | {cell} | {default} | {text} |"


def defaults(model: Any) -> Iterator[tuple[str, str, str]]:
    """Name of the attribute, key and default of each field of a table."""
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            told = "required" if info.is_required() else shown(info.default)
            yield name, str(info.validation_alias or name), told
        return
    for item in dataclasses.fields(model):
        made = item.default_factory
        missing = item.default is dataclasses.MISSING and made is dataclasses.MISSING
        value: Any = made() if made is not dataclasses.MISSING else item.default
        yield item.name, item.name, "required" if missing else shown(value)


def _meanings(name: str, guide: str) -> dict[str, str]:
    """Meanings by key, from the table of the guide."""
    found = re.search(rf"<!-- keys: {name} -->\n(.*?)<!-- end keys -->", guide, re.DOTALL)
    lines = found[1].splitlines()[2:] if found else []
    cells = [
        re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|")) for line in lines
    ]
    return {row[0].strip().strip("`"): row[2].strip() for row in cells}


def shown(value: Any) -> str:
    """A default as the pages write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace('"', '\\"')
        return f'`"{escaped}"`'
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return "see below"
    if isinstance(value, dict | tuple):
        return "empty" if not value else repr(value)
    return repr(value)


_PLAIN = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "any",
}


def typed(hint: Any) -> str:
    """A type in words of TOML."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return typed(inner[0])
    if origin is Literal:
        return ", ".join(f"`{shown(value).strip('`')}`" for value in inner)
    if origin in (Union, types.UnionType):
        options = dict.fromkeys(typed(one) for one in inner if one is not type(None))
        return " or ".join(options)
    if origin is tuple:
        return f"list of {_several(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table" if inner[1] is Any else f"table of {_several(inner[1])} by name"
    return "key or list of keys" if getattr(hint, "__name__", "") == "KeyList" else "table"


def _several(hint: Any) -> str:
    """The same for more than one of a kind."""
    word = typed(hint)
    plural = {
        "text": "texts",
        "whole number": "whole numbers",
        "number": "numbers",
        "table": "tables",
    }
    return plural.get(word, word)


def _bounds(model: Any, name: str) -> str:
    """Limits that pydantic checks."""
    if not issubclass(model, BaseModel):
        return ""
    words = {"ge": "at least", "gt": "above"}
    told = [
        f", {words[key]} {getattr(one, key):g}"
        for one in model.model_fields[name].metadata
        for key in words
        if isinstance(getattr(one, key, None), int | float)
    ]
    return "".join(told)


def _policy_table() -> Iterator[str]:
    presets = {preset: Policy.from_settings(preset) for preset in PRESETS}
    yield f"| key | must be | {' | '.join(f'`{p}`' for p in presets)} |"
    yield "|---|---|" + "---|" * len(presets)
    rules = rules_of(Policy)
    for item in dataclasses.fields(Policy):
        rule = rules[item.name].words if item.name in rules else ""
        if item.name == "preset":
            rule = f"one of {', '.join(PRESETS)}"
        if item.name == "approved_studies":
            rule = "a list of hashes of studies"
        values = " | ".join(shown(getattr(policy, item.name)) for policy in presets.values())
        yield f"| `{item.name}` | {rule} | {values} |"


def _parameter_table() -> Iterator[str]:
    yield "### Study file: `[parameters]`\n"
    yield "Those of the method; each page has their defaults and what is allowed.\n"
    yield from ("| `method` | parameters |", "|---|---|")
    for name, kind in all_methods().items():
        listed = ", ".join(f"`{item.name}`" for item in dataclasses.fields(kind))  # type: ignore[arg-type]
        page = f"/api/consilience.{kind.__name__}.rst"
        yield f"| [`{name}`]({page}) | {listed or 'none'} |"
    yield ""

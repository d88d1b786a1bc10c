"""Values as TOML, for files that people go on with."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(name: str) -> str:
    """A name as a key."""
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: object) -> str:
    """Text, a number, a truth value, a day, a list (or tuple) or a table as TOML on one line."""
    if isinstance(value, str):
        # JSON's texts are TOML's, but for halves of a sign that are written apart, and one code.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        inner = (f"{toml_key(name)} = {toml_value(one)}" for name, one in value.items())
        return "{ " + ", ".join(inner) + " }"
    return json.dumps(value)


def toml_lines(pairs: Mapping[str, Any]) -> str:
    """Keys and values, a line for each that is not empty."""
    kept = {name: value for name, value in pairs.items() if value not in ((), "", None)}
    return "".join(f"{toml_key(name)} = {toml_value(value)}\n" for name, value in kept.items())


def study_text(settings: Mapping[str, Any], remark: str) -> str:
    """Write a study file: what is asked, with a remark of whole lines above it.

    Parameters
    ----------
    settings : mapping
        As the file has them, table by table; what is empty is left out.
    remark : str
    """
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    head = {name: value for name, value in settings.items() if name not in tables}
    tables = {"parameters": {}, **tables}
    data = dict(tables["data"])
    levels = data.pop("levels", {})
    kept = f"\n[data.levels]\n{toml_lines(levels)}" if levels else ""
    settled = toml_lines(tables.pop("parameters")) or (
        f"# As they are by default; 'consilience methods {head['method']}' lists them.\n"
    )
    above = "".join(f"# {line}\n" for line in remark.splitlines())
    text = f"{above}\n{toml_lines(head)}\n[parameters]\n{settled}\n[data]\n{toml_lines(data)}{kept}"
    del tables["data"]
    return text + "".join(
        f"\n[{name}]\n{toml_lines(table)}"
        for name, table in tables.items()
        if table or name in ("preparation", "sites")
    )

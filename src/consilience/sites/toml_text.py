"""Values as TOML, for files that people go on with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(name: str) -> str:
    """A name as a key."""
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: object) -> str:
    """Text, a number, a truth value, a list (or tuple) or a table as TOML on one line."""
    if isinstance(value, str):
        # JSON's texts are TOML's, but for halves of a sign that are written apart, and one code.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        inner = (f"{toml_key(name)} = {toml_value(one)}" for name, one in value.items())
        return "{ " + ", ".join(inner) + " }"
    return json.dumps(value)

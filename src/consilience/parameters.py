"""Parameters declared as data: what each may be, in code and in words, checked in one place.

A method or settings that cross the wire declare them with their fields::

    @dataclass(frozen=True, kw_only=True)
    class Search(Method):
        rank: int | None = allows(whole(0) | LEFT_OUT, default=None)

and an estimator, whose ``__init__`` only stores, as a table that ``fit`` goes through::

    check({"alpha": number(above=0)}, vars(self))
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.exceptions import ParameterError

RULE = "allowed"
"""Key of the rule in the metadata of a field."""


@dataclass(frozen=True)
class Allowed:
    """What a parameter may be.

    Attributes
    ----------
    holds : callable
        Whether it holds of a value of any type.
    words : str
        What follows "must be".
    """

    holds: Callable[[Any], bool]
    words: str

    def __or__(self, other: Allowed) -> Allowed:
        """Allow what either of two rules does."""
        return Allowed(lambda v: self.holds(v) or other.holds(v), f"{self.words}, or {other.words}")

    def but(self, holds: Callable[[Any], bool], words: str) -> Allowed:
        """Ask for one thing more."""
        return Allowed(lambda v: self.holds(v) and holds(v), f"{self.words}{words}")


def table_size(value: Any) -> str:
    """Size of a parameter that is rows of numbers ("40 rows of 2 numbers"); else an empty text.

    People want to see the size only of such a one.
    """
    first = value[0] if isinstance(value, list | tuple) and value else None
    if not isinstance(first, list | tuple) or any(isinstance(v, str) for v in first):
        return ""
    n, width = len(value), len(first)
    return f"{n:,} row{'s' * (n != 1)} of {width:,} number{'s' * (width != 1)}"


def is_whole(value: object) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a finite number; True and False are none."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        return real and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number that no float can hold
        return False


def just(*values: Any) -> Allowed:
    """Allow some values, of their own type: 1 is not True."""
    words = " or ".join(filter(None, (", ".join(map(repr, values[:-1])), repr(values[-1]))))
    return Allowed(lambda v: any(type(v) is type(one) and v == one for one in values), words)


def one_of(*choices: str) -> Allowed:
    """Allow some texts."""
    return Allowed(lambda v: isinstance(v, str) and v in choices, f"one of {', '.join(choices)}")


LEFT_OUT = Allowed(lambda v: v is None, "left out")
FLAG = Allowed(lambda v: isinstance(v, bool | np.bool_), "true or false")


def whole(low: int, high: int | None = None) -> Allowed:
    """Allow whole numbers between two, both included."""
    words = f"of at least {low}" if high is None else f"from {low} to {high}"
    return Allowed(
        lambda v: is_whole(v) and low <= v and (high is None or v <= high),
        f"a whole number {words}",
    )


def number(
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Allowed:
    """Allow finite numbers from `low` to `high`, or above one and below another."""
    words = [
        f"{word} {bound:g}"
        for word, bound in (
            ("of at least", low),
            ("above", above),
            ("at most", high),
            ("below", below),
        )
        if bound is not None
    ]
    if low is not None and high is not None:
        words = [f"from {low:g} to {high:g}"]

    def holds(v: Any) -> bool:
        return (
            is_number(v)
            and (low is None or v >= low)
            and (high is None or v <= high)
            and (above is None or v > above)
            and (below is None or v < below)
        )

    return Allowed(
        holds,
        " ".join(["a finite number" if not words else "a number", " and ".join(words)]).strip(),
    )


def several(
    rule: Allowed, least: int = 0, most: int | None = None, *, different: bool = True
) -> Allowed:
    """Allow lists and tuples of what a rule allows."""
    words = f"{least} to {most}" if most is not None else f"at least {least}"
    kind = "different values" if different else "values"

    def holds(v: Any) -> bool:
        if not isinstance(v, list | tuple):
            return False
        fine = len(v) >= least and (most is None or len(v) <= most) and all(map(rule.holds, v))
        return fine and (not different or len(set(v)) == len(v))

    return Allowed(holds, f"{words} {kind}, each {rule.words}")


def allows(rule: Allowed, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a dataclass with what it may be."""
    return dataclasses.field(default=default, metadata={RULE: rule})


def rules_of(declared: type | object) -> dict[str, Allowed]:
    """Rules of the fields of a dataclass."""
    fields = dataclasses.fields(declared)  # type: ignore[arg-type]
    return {f.name: f.metadata[RULE] for f in fields if RULE in f.metadata}


def plain(record: object) -> dict[str, Any]:
    """Fields of a dataclass by name, for a state or a file."""
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}  # type: ignore[arg-type]


def closest(name: str, names: Iterable[str]) -> str:
    """End of a sentence on a name that is not known: the one that was meant, or all of them."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": known are {', '.join(names)}" if names else ": there are none"


def check(rules: Mapping[str, Allowed], values: Mapping[str, Any]) -> None:
    """Check values by their rules, in the order of these.

    Raises
    ------
    ParameterError
        Of the first that is not allowed.
    """
    for name, rule in rules.items():
        if not rule.holds(values[name]):
            raise ParameterError.of(name, rule.words, values[name])


def parameter_docs(doc: str) -> dict[str, tuple[str, str]]:
    """Return type and text of each parameter from a numpydoc docstring.

    Parameters
    ----------
    doc : str
        Docstring without indentation.
    """
    lines = doc.splitlines()
    found: dict[str, tuple[str, list[str]]] = {}
    current: list[str] = []
    inside = False
    for i, line in enumerate(lines):
        # Sections of numpydoc are known by the line under their names.
        underlined = i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1].strip())
        if underlined and not line.startswith(" "):
            inside = line.strip() == "Parameters"
        elif inside and line.startswith(" "):
            current.append(line.strip())
        elif inside and (match := re.fullmatch(r"([\w, ]+?)\s*:\s*(.+)", line)):
            current = []
            for name in match[1].split(","):
                found[name.strip()] = (match[2], current)
    return {name: (typed, " ".join(text)) for name, (typed, text) in found.items()}

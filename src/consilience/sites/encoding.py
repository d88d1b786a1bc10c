"""Which prepared columns a study's features become: the same at every site, known in advance.

Texts of cells as numbers, names and missing values, and sentences about a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError, StudyError
from consilience.protocol.method import Columns, Preparation
from consilience.wire.moment_facts import Coded

UNREADABLE = "the site's table cannot be read; the site's own log says why"


def is_number(text: str) -> bool:
    """Whether a text is a finite or infinite number."""
    try:
        return float(text) == float(text) and "_" not in text
    except ValueError:
        return False


def code_check(codes: tuple[str, ...]) -> Callable[[str], bool]:
    """Return whether a text is one of the missing codes, as a number where both are numbers."""
    whole, numbers = frozenset(codes), frozenset(float(c) for c in codes if is_number(c))
    if not numbers:
        return whole.__contains__
    return lambda text: text in whole or (is_number(text) and float(text) in numbers)


def plain_text(value: object) -> str:
    """Text of a cell: ``4.0`` and ``4`` are both ``"4"``."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def fail(sentence: str) -> DataError:
    """Error about the whole table, which says nothing to others."""
    return DataError(sentence, public=UNREADABLE)


def row_list(numbers: Any) -> str:
    """``"; rows 3, 7, 9, ..."``, counted from 1 at the first row of data."""
    shown = [str(int(n)) for n in numbers[:5]]
    if not shown:
        return ""
    more = ", ..." if len(numbers) > 5 else ""
    return f"; {'row' if len(numbers) == 1 else 'rows'} {', '.join(shown)}{more}"


def check_header(names: list[str], where: str) -> None:
    """Refuse a row of numbers as the names of columns."""
    if _look_like_data(names):
        raise fail(
            f"the first row of {where} holds numbers, not column names: "
            "set header = false and column_names in [source]"
        )


def _look_like_data(names: list[str]) -> bool:
    """Whether a header is a row of numbers (0, 1, 2, ... are names that pandas gives)."""
    numbers = [name for name in names if is_number(name)]
    if not numbers or [int(n) for n in numbers if n.isdecimal()] == list(range(len(numbers))):
        return False
    return len(numbers) == len(names) or any(not n.isdecimal() for n in numbers)


@dataclass(frozen=True)
class Encoding:
    """How one feature column becomes prepared columns.

    Attributes
    ----------
    column : str
    kind : {"number", "indicator", "levels"}
    values : tuple of str
        Values or levels with a 0/1 column each.
    """

    column: str
    kind: Literal["number", "indicator", "levels"]
    values: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the prepared columns."""
        if self.kind == "number":
            return (self.column,)
        return tuple(f"{self.column}={value}" for value in self.values)


def encodings(columns: Columns, preparation: Preparation) -> tuple[Encoding, ...]:
    """How the study's features are encoded; the same at every site.

    Raises
    ------
    StudyError
        Roles, levels and preparation contradict each other.
    """
    _check_levels(columns)
    for name in preparation.indicators:
        if name not in columns.features:
            raise StudyError(f"[preparation] indicators names {name!r}, which is not a feature")
    plan = tuple(_encoding(name, columns, preparation) for name in columns.features)
    names = _names(plan, preparation)
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise StudyError(f"two prepared columns would be called {twice[0]!r}: rename one column")
    return plan


def feature_names(columns: Columns, preparation: Preparation) -> tuple[str, ...]:
    """Names of the prepared columns, known before any table is read.

    Raises
    ------
    StudyError
        Roles, levels and preparation contradict each other.
    """
    return _names(encodings(columns, preparation), preparation)


def _names(plan: tuple[Encoding, ...], preparation: Preparation) -> tuple[str, ...]:
    names = [name for one in plan for name in one.names]
    if preparation.missing == "indicator":
        names += [f"{one.column}_missing" for one in plan if one.kind == "number"]
    return tuple(names)


def coded_of(plan: tuple[Encoding, ...], columns: Columns) -> tuple[Coded, ...]:
    """Prepared columns that are levels of one category, for the rules of what may leave."""
    found, place = [], 0
    for one in plan:
        if one.kind != "number":
            levels = columns.levels.get(one.column, ())
            places = tuple(range(place, place + len(one.names)))
            # Columns of all levels add up to one: the last follows from the others, whether told or
            # not.
            found.append(Coded(places, 0 < len(levels) <= len(set(one.values))))
        place += len(one.names)
    return tuple(found)


def _encoding(name: str, columns: Columns, preparation: Preparation) -> Encoding:
    levels = columns.levels.get(name)
    if name in preparation.indicators:
        wanted = tuple(plain_text(v) for v in preparation.indicators[name])
        if not wanted or (levels and -2 in match(wanted, levels)):
            raise StudyError(f"[preparation] indicators of {name!r} must be some of its levels")
        return Encoding(name, "indicator", wanted)
    if levels is None:
        return Encoding(name, "number")
    # A coding is the study's to choose: sites that each chose their own would add up different
    # things.
    if preparation.categorical == "refuse":
        raise StudyError(
            f"feature {name!r} has declared levels and the study does not say how to code it: "
            "set [preparation] categorical to 'treatment' or 'onehot', or name indicators"
        )
    return Encoding(
        name, "levels", levels[1:] if preparation.categorical == "treatment" else levels
    )


def by_role(columns: Columns) -> dict[str, Encoding]:
    """How target, offset and weight are coded where moments are told: levels but for the first."""
    found = {}
    for role in ("target", "offset", "weight"):
        name = getattr(columns, role)
        if name is not None:
            levels = columns.levels.get(name, ())
            found[role] = Encoding(name, "levels" if levels else "number", tuple(levels[1:]))
    return found


def _check_levels(columns: Columns) -> None:
    allowed = {*columns.features, *columns.sequence[:1], columns.target}
    for name, levels in columns.levels.items():
        if name not in allowed:
            raise StudyError(f"column {name!r} is no category in its role: it needs no levels")
        # 4 and 4.0 would be one level with two codes.
        keys = [float(v) if is_number(v) else v for v in levels]
        twice = [level for level, key in zip(levels, keys, strict=True) if keys.count(key) > 1]
        if twice:
            raise StudyError(f"levels of {name!r} name {twice[0]!r} twice")
        if len(levels) < 2:
            raise StudyError(f"levels of {name!r} must be at least two different values")
    if columns.sequence and columns.sequence[0] not in columns.levels:
        raise StudyError("a sequence needs states: declare them as levels of its columns")


def match(texts: Iterable[str], levels: tuple[str, ...]) -> NDArray[np.int64]:
    """Position of each text among the levels, -2 where it is none of them.

    Compared as numbers where all levels are numbers; true and false are also 1 and 0.
    """
    numeric = all(is_number(level) for level in levels)
    by_text = {level: i for i, level in enumerate(levels)}
    by_number = {float(level): i for i, level in enumerate(levels)} if numeric else {}
    words = {level.lower(): i for i, level in enumerate(levels)}
    truth = {"true": by_number.get(1.0, -2), "false": by_number.get(0.0, -2)}
    # Only where the levels are true and false themselves do their spellings (True, TRUE) count.
    if set(words) <= set(truth):
        truth |= words
    places = []
    for text in texts:
        place = by_text.get(text, -2)
        if place < 0 and is_number(text):
            place = by_number.get(float(text), -2)
        places.append(place if place >= 0 else truth.get(text.lower(), -2))
    return np.asarray(places, dtype=np.int64)


def of_few(value: NDArray[Any], unknown: NDArray[np.bool_], least: int) -> NDArray[np.bool_]:
    """Rows whose value fewer than `least` rows have, if these rows together are fewer, too.

    Indicators of one value after the other, in several runs, would leave them over.
    """
    _, which, times = np.unique(value, return_inverse=True, return_counts=True)
    rare = (times < least)[which.ravel()] & ~unknown
    return rare if np.count_nonzero(rare) < least else np.zeros_like(rare)


def by_name(
    plan: Iterable[Encoding], features: NDArray[np.float64], levels: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[list[Any], NDArray[np.float64]]]:
    """Name of each prepared column, with its coding and its values (`loaded.Everyone`)."""
    named = [
        (name, [one.column, one.kind, list(one.values), list(levels.get(one.column, ()))])
        for one in plan
        for name in one.names
    ]
    return {n: (of, x) for (n, of), x in zip(named, features.T, strict=False)}

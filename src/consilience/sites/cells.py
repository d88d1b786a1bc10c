"""Texts of cells as numbers, names and missing values, and sentences about a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from consilience.exceptions import DataError

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

"""Small things that the methods of one table share."""

from __future__ import annotations

from typing import Any

from consilience.exceptions import ParameterError


def counted(n: int, noun: str, several: str = "") -> str:
    """Number and noun: "no pairs", "1 pair", "2 pairs"."""
    return f"{n or 'no'} {noun if n == 1 else several or noun + 's'}"


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Check a parameter that is a whole number.

    Raises
    ------
    ParameterError
    """
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and value > most):
        allowed = f"a whole number of at least {least}"
        raise ParameterError.of(name, allowed + (f" and at most {most}" if most else ""), value)

"""Simulated and loaded data."""

from __future__ import annotations

from typing import get_args

from consilience.exceptions import ParameterError


def check_choice(name: str, value: object, kind: object) -> None:
    """Check that a parameter is one of the values of a `Literal`; raise `ParameterError`."""
    if value not in get_args(kind):
        raise ParameterError.of(name, f"one of {get_args(kind)}", value)


def check_least(least: float, **values: float) -> None:
    """Check that parameters are not below a number, NaN included; raise `ParameterError`."""
    for name, value in values.items():
        if not value >= least:
            raise ParameterError.of(name, f"at least {least:g}", value)

"""Parameters of the assisted GLM: their ranges, and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.assisted.kernels.families import NAMES, family
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from consilience.assisted.glm import AssistedGLM

CHOICES = {
    "family": NAMES,
    "response": ("share", "masked", ""),
    "masking": ("link", "as_printed"),
    "acceleration": ("span", "anderson", "none"),
    "interval": ("joint", "inflated", "paper", "none"),
}


def check_parameters(method: AssistedGLM) -> None:
    """Check each parameter, and those that must go together; raise `ParameterError`."""
    for name, allowed in CHOICES.items():
        if getattr(method, name) not in allowed:
            shown = ", ".join(repr(a) for a in allowed if a)
            raise ParameterError.of(name, f"one of {shown}", getattr(method, name))
    numbers = (
        ("flip", 0 < _number(method.flip) < 0.5, "a number between 0 and 0.5"),
        ("alpha", 0 <= _number(method.alpha) < float("inf"), "a number of at least 0"),
        ("l1_ratio", 0 <= _number(method.l1_ratio) <= 1, "a number from 0 to 1"),
        (
            "n_rounds",
            isinstance(method.n_rounds, int) and 1 <= _number(method.n_rounds) <= 1000,
            "a whole number from 1 to 1000",
        ),
        ("tol", 0 < _number(method.tol) < 1, "a number between 0 and 1"),
        ("holdout", 0 <= _number(method.holdout) <= 0.9, "a number from 0 to 0.9"),
        ("level", 0 < _number(method.level) < 1, "a number between 0 and 1"),
    )
    for name, fine, allowed_range in numbers:
        if not fine:
            raise ParameterError.of(name, allowed_range, getattr(method, name))
    family(method.family, power=method.power)
    if method.response == "masked" and method.family != "binomial":
        raise ParameterError(
            f"response = 'masked' flips a response of 0 and 1, and the family is "
            f"{method.family!r}: use 'binomial', or response = 'share'"
        )
    if method.interval == "inflated" and method.acceleration != "none":
        raise ParameterError(
            "interval = 'inflated' reads the parties' correlation from plain rounds: "
            "set acceleration = 'none', or interval = 'joint'"
        )


def _number(value: object) -> float:
    """A number as it is, anything else as one that is in no range."""
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fine else float("nan")  # type: ignore[arg-type]

"""Parameters of latent class regression: what is allowed, and what follows from what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.exceptions import ParameterError
from consilience.latent_regression.protocol.messages import MAX_CLASSES, MAX_ROUNDS

if TYPE_CHECKING:
    from consilience.latent_regression.protocol import LatentClassRegression

AUTO_START = 18
MOST_ROUNDS = 25
"""Rounds before classes are merged, unless given."""
STARTS = ("local", "random")
CONCENTRATIONS = ("exact", "shortcut")


def check_parameters(method: LatentClassRegression) -> None:
    """Check the parameters.

    Raises
    ------
    ParameterError
    """
    most = MAX_CLASSES // 2
    if method.n_classes != "auto" and not _whole(method.n_classes, 1, most):
        raise ParameterError.of(
            "n_classes", f"a whole number from 1 to {most}, or 'auto'", method.n_classes
        )
    least = 1 if isinstance(method.n_classes, str) else method.n_classes
    if method.n_start is not None and not _whole(method.n_start, least, MAX_CLASSES):
        raise ParameterError.of(
            "n_start", f"a whole number from n_classes to {MAX_CLASSES}", method.n_start
        )
    for name, choices in (("start", STARTS), ("concentration", CONCENTRATIONS)):
        if getattr(method, name) not in choices:
            raise ParameterError.of(name, f"one of {', '.join(choices)}", getattr(method, name))
    if method.rounds != "auto" and not _whole(method.rounds, 0, MAX_ROUNDS // 2):
        raise ParameterError.of(
            "rounds", f"a whole number from 0 to {MAX_ROUNDS // 2}, or 'auto'", method.rounds
        )
    for name, low in (("settle_rounds", 0), ("average_rounds", 1)):
        if not _whole(getattr(method, name), low, MAX_ROUNDS // 4):
            allowed = f"a whole number from {low} to {MAX_ROUNDS // 4}"
            raise ParameterError.of(name, allowed, getattr(method, name))
    _check_numbers(method)


def _check_numbers(method: LatentClassRegression) -> None:
    rules: tuple[tuple[str, str, float, float, str], ...] = (
        ("learning_rate", "auto", 0.0, 1.0, "above 0 and at most 1, or 'auto'"),
        ("participation", "", 0.0, 1.0, "above 0 and at most 1"),
        ("noise", "draw", 0.0, np.inf, "a positive number, or 'draw'"),
        ("prior_scale", "draw", 0.0, np.inf, "a positive number, or 'draw'"),
        ("beta", "grid", 0.0, np.inf, "a positive number, or 'grid'"),
    )
    for name, word, above, most, allowed in rules:
        value = getattr(method, name)
        if not (word and value == word) and not (_real(value) and above < value <= most):
            raise ParameterError.of(name, allowed, value)
        if _real(value) and not np.isfinite(value):
            raise ParameterError.of(name, allowed, value)
    if method.alpha is not None and not (_real(method.alpha) and 0 < method.alpha < np.inf):
        raise ParameterError.of("alpha", "a positive number, or left out", method.alpha)
    if not (_real(method.holdout) and 0 <= method.holdout <= 0.5):
        raise ParameterError.of("holdout", "a share from 0 to .5", method.holdout)
    if not (_real(method.level) and 0 < method.level < 1):
        raise ParameterError.of("level", "between 0 and 1", method.level)
    for name in ("adapt_rate", "server_cache", "fit_intercept"):
        if not isinstance(getattr(method, name), bool):
            raise ParameterError.of(name, "true or false", getattr(method, name))


def default_rate(participation: float) -> float:
    """Learning rate by the share of the sites that reports: .5 for all, .2 for few."""
    return float(np.clip(0.2 + 0.4 * (participation - 0.25), 0.2, 0.5))


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Settings that several estimators share, as far as their kind goes.

Each solver knows the range of its own settings. It compares numbers, so what is none must not reach
it: a text would give Python's own sentence, a fraction a loop without an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from consilience.exceptions import ParameterError

_MOST_STEPS = 2**31 - 1  # compiled loops count in 32 or 64 bits
_MOST_STARTS = 1_000_000
_SINGLE = ("center", "start", "solver", "unshrink", "accelerate", "rule", "refit")


def check_settings(estimator: Any) -> None:
    """Refuse settings of an estimator that are of another kind than its solver compares.

    Parameters
    ----------
    estimator : estimator
        Its attributes `tol`, `max_iter`, `n_init`, `max_rank`, `n_jobs`, words and switches are
        looked at where it has them. None passes where it is the default.

    Raises
    ------
    ParameterError
        A number is no number or no whole one, or there is an array for a word or a switch.
    """
    given = vars(estimator)
    for name, (fits, allowed) in _RULES.items():
        if name in given and not fits(given[name]) and not _by_default(estimator, name):
            raise ParameterError.of(name, allowed, given[name])


def _by_default(estimator: Any, name: str) -> bool:
    """Whether a setting is None, and is so by default."""
    if getattr(estimator, name) is not None:
        return False
    defaults: Mapping[str, Any] = type(estimator).__init__.__kwdefaults__ or {}
    return name in defaults and defaults[name] is None


def _number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int):
        return abs(value) <= _MOST_STEPS
    return isinstance(value, float | np.floating | np.integer)


def _whole(most: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return whole and bool(value <= most)

    return fits


def _jobs(value: Any) -> bool:
    return _whole(_MOST_STEPS)(value) and value != 0 and value >= -_MOST_STEPS


def _single(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and getattr(value, "shape", ()) == ()


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tol": (_number, "a number, 0 or more"),
    "max_iter": (_whole(_MOST_STEPS), f"a whole number from 1 to {_MOST_STEPS}"),
    "n_init": (_whole(_MOST_STARTS), f"a whole number from 1 to {_MOST_STARTS}"),
    "n_jobs": (_jobs, "None or a whole number other than 0"),
    "max_rank": (_whole(_MOST_STEPS), "None or a whole number, 0 or more"),
    **{name: (_single, "a single value") for name in _SINGLE},
}

"""Products of tests by turns: in full in `make test-nightly`, by rotation elsewhere.

A method that meets every fault at every end is a product of three. Few faults need three things at
once to be found, so `make test` and `.ci/run` take of each combination of the others one value of
the last factor, the next one in the next rotation, marked ``turn``; of three factors each pair with
the last one occurs, as long as none of the others has fewer values than it. The rest is marked
``nightly``.

The rotation is the number of the day; the last lines of a run say it, and
``CONSILIENCE_ROTATION=N`` repeats it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

VARIABLE = "CONSILIENCE_ROTATION"


def rotation() -> int:
    """Return the number of this run; the workers of one run agree, also over midnight."""
    text = os.environ.setdefault(VARIABLE, str(datetime.now(UTC).toordinal()))
    if not text.isdecimal():
        raise pytest.UsageError(f"{VARIABLE} must be a whole number, not {text!r}")
    return int(text)


def by_turns(
    *factors: Mapping[str, Any] | Iterable[Any], names: str | Iterable[str]
) -> pytest.MarkDecorator:
    """Parametrise by all combinations, of which each of the first factors meets one of the last.

    Parameters
    ----------
    *factors : mapping of id to value, or iterable of values
    names : str or iterable of str
        Of the test's arguments, as for ``parametrize``.
    """
    listed = [dict(f) if isinstance(f, Mapping) else {str(v): v for v in f} for f in factors]
    found = []
    for places in itertools.product(*(range(len(factor)) for factor in listed)):
        keys = [list(factor)[place] for factor, place in zip(listed, places, strict=True)]
        values = [factor[key] for factor, key in zip(listed, keys, strict=True)]
        turn = (sum(places[:-1]) + rotation()) % len(listed[-1])
        marks = pytest.mark.turn if places[-1] == turn else pytest.mark.nightly
        found.append(pytest.param(*values, id="-".join(keys), marks=marks))
    return pytest.mark.parametrize(names, found)


def one_in(
    days: int, factor: Mapping[str, Any] | Iterable[Any], names: str
) -> pytest.MarkDecorator:
    """Parametrise by all values, each of which has its turn once in so many days."""
    listed = factor if isinstance(factor, Mapping) else {str(v): v for v in factor}
    found = []
    for place, (key, value) in enumerate(listed.items()):
        marks = pytest.mark.turn if (place + rotation()) % days == 0 else pytest.mark.nightly
        found.append(pytest.param(value, id=key, marks=marks))
    return pytest.mark.parametrize(names, found)

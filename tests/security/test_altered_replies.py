"""A hostile site alters each value of each reply of each method, one at a time.

Whatever it sends ends in a result, in which the site counts as absent and is named, or in one of
the package's own errors. `make test` tries a few values of every method, others in each rotation;
`make test-nightly` tries them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from consilience.testing.recalling import Rehearsal
from tests.exchange.cases import CASES, Case
from tests.rotation import rotation

FEW = 5
MANY = 700


def rehearsed(case: Case) -> Rehearsal:
    """The study, which goes on without one site where the rows are split."""
    federation = case.factory()
    n_sites = len(federation.engine.sites)
    rows = federation.partition == "rows" and n_sites > 1
    return Rehearsal(case.method, case.factory, quorum=n_sites - 1 if rows else None)


def faults(rehearsal: Rehearsal, altered: Sequence[Any]) -> dict[str, str]:
    found = {}
    for key, done, message in altered:
        with np.errstate(all="ignore"):
            fault = rehearsal.fault(key, message)
        if fault:
            found[f"round {key[0]}, {done}"] = fault
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_few_values_by_turns(name: str) -> None:
    rehearsal = rehearsed(CASES[name])
    altered = list(rehearsal.altered_values())
    step = len(altered) // FEW
    assert faults(rehearsal, altered[rotation() % step :: step]) == {}


@pytest.mark.nightly
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_value(name: str) -> None:
    """All of them; of the two thousand of the longest cases, each in one of a few rotations."""
    rehearsal = rehearsed(CASES[name])
    altered = list(rehearsal.altered_values())
    step = -(-len(altered) // MANY)
    assert faults(rehearsal, altered[rotation() % step :: step]) == {}

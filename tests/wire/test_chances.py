"""Chances within classes: what they rest on, and the gate at its boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DisclosureError, ProtocolError
from consilience.sites.gate import review
from consilience.sites.policy import Policy
from consilience.wire.cell_facts import chance_facts
from consilience.wire.disclosure import Released, bundle, chances
from consilience.wire.message import Model, message


@message("test/chances", version=1)
class Told:
    value: Released = Model("*nest")


def released(n: int, *, weight: float = 1.0, largest: float = 1.0, in_class: int = 20) -> Released:
    """A sum of n records, one of which adds `largest`."""
    record = np.arange(n)
    amount = np.where(record == 0, largest, 1.0) * weight
    sums = (record, np.zeros(n, dtype=np.int64), np.full(n, weight), amount)
    return chances(np.ones((1, 1)), cells=np.zeros(in_class, dtype=np.int64), sums=sums)


def passes(value: Released) -> bool:
    try:
        review(Told(value=value), Policy(preset="strict"), {})
    except DisclosureError:
        return False
    return True


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ({"n": 10}, True),
        ({"n": 9}, False),
        # As much of a record as belongs to the class counts.
        ({"n": 20, "weight": 0.5}, True),
        ({"n": 19, "weight": 0.5}, False),
        ({"n": 11, "largest": 10.0}, True),
        ({"n": 11, "largest": 10.1}, False),
        ({"n": 10, "in_class": 9}, False),
    ],
)
def test_the_gate_at_its_boundary(given: dict[str, Any], good: bool) -> None:
    assert passes(released(**given)) is good
    assert passes(bundle([released(40), released(**given)])) is good


def test_a_record_counts_once_in_a_sum_and_adds_all_it_has() -> None:
    record = np.array([0, 0, 1])
    group = np.array([0, 0, 0])
    records, share = chance_facts(record, group, np.ones(3), np.array([2.0, 3.0, 5.0]))
    assert records.tolist() == [2]
    assert share.tolist() == [0.5]


def test_a_trace_of_a_record_is_a_record() -> None:
    records, _ = chance_facts(np.zeros(1, int), np.zeros(1, int), np.array([1e-9]), np.ones(1))
    assert records.tolist() == [1]


def test_numbers_without_classes_are_refused() -> None:
    nothing = (np.empty(0, int), np.empty(0, int), np.empty(0), np.empty(0))
    with pytest.raises(ProtocolError, match="records in their classes"):
        chances(np.ones(1), cells=np.empty(0, dtype=np.int64), sums=nothing)
    assert passes(chances((), cells=np.empty(0, dtype=np.int64), sums=nothing))

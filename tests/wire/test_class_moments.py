"""Sums of products by class and block, and linked columns: values, evidence, rules of the gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DisclosureError, ProtocolError
from consilience.sites.gate import review
from consilience.sites.policy import Policy
from consilience.wire.disclosure import Limits, Released, class_moments, linked
from consilience.wire.message import Aggregate, Disclosure, message
from consilience.wire.moment_facts import moment_facts

STRICT, SIMULATION = Policy(), Policy.from_settings("simulation")
NO_LIMITS = SIMULATION.limits


@message("test-class-moments/reply", version=1)
class Reply:
    value: Any = Aggregate("*anything", gaps=True)


def passes(released: Released, policy: Policy = STRICT) -> bool:
    try:
        review(Reply(value=released), policy, {})
    except DisclosureError as error:
        assert not any(c.isdigit() for c in error.public.replace("10 records", ""))
        return False
    return True


def normal(n: int, p: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, p))


def made(x: np.ndarray, cells: Any = 0, limits: Limits | None = None, **given: Any) -> Released:
    settings: dict[str, Any] = {
        "cells": np.broadcast_to(cells, len(x)).astype(np.int64),
        "n_cells": 1 + int(np.max(cells)),
        "blocks": [np.arange(x.shape[1])],
        "limits": STRICT.limits if limits is None else limits,
    }
    return class_moments(x, **{**settings, **given})


# --------------------------------------------------------------------------- values


def test_values() -> None:
    x = normal(90, 5) + 3.0
    cells = np.arange(90) % 3 - 1
    blocks = [np.array([0, 3]), np.array([1, 2, 4])]
    released = class_moments(x, cells=cells, n_cells=2, blocks=blocks, limits=STRICT.limits)
    assert released.disclosure is Disclosure.AGGREGATE and released.value.shape == (2, 3 + 6)
    for k in range(2):
        place = 0
        for block in blocks:
            part = x[cells == k][:, block]
            part = part - part.mean(axis=0)
            for i in range(len(block)):
                for j in range(i, len(block)):
                    wanted = part[:, i] @ part[:, j]
                    assert released.value[k, place] == pytest.approx(wanted, rel=1e-12)
                    place += 1
    assert passes(released)


def test_a_class_without_rows_and_no_block() -> None:
    x = normal(40, 3)
    nobody = made(x, 0, n_cells=3)
    assert not nobody.value[1:].any() and np.isfinite(nobody.value).all()
    assert made(x, 0, blocks=[]).value.shape == (1, 0)


def test_a_column_in_two_blocks() -> None:
    blocks = [np.array([0, 1]), np.array([1, 2])]
    with pytest.raises(ProtocolError, match="no column in common"):
        made(normal(40, 3), blocks=blocks)


# --------------------------------------------------------------------------- what is withheld


@pytest.mark.parametrize(("n", "p", "told"), [(10, 5, True), (9, 2, False), (20, 10, True)])
def test_rows_of_a_class(n: int, p: int, told: bool) -> None:
    assert np.isfinite(made(normal(n, p)).value).all() == told
    one_more = made(normal(n, p + 1))
    assert np.isnan(one_more.value).all() or n >= max(10, 2 * (p + 1))
    assert np.isfinite(made(normal(n, p + 9), limits=NO_LIMITS).value).all()


def test_each_block_and_class_by_itself() -> None:
    """A class of 20 rows tells a block of ten columns, not one of eleven; one of 30 both."""
    x, cells = normal(50, 21), np.array([0] * 20 + [1] * 30)
    blocks = [np.arange(10), np.arange(10, 21)]
    released = class_moments(x, cells=cells, n_cells=2, blocks=blocks, limits=STRICT.limits)
    told = np.isfinite(released.value)
    assert told[0, :55].all() and not told[0, 55:].any() and told[1].all()
    assert passes(released)


@pytest.mark.parametrize(("ones", "told"), [(9, False), (10, True), (31, False), (30, True)])
def test_indicators_are_counts(ones: int, told: bool) -> None:
    x = normal(40, 2)
    x[:, 1] = np.arange(40) < ones
    assert np.isfinite(made(x).value).all() == told


@pytest.mark.parametrize("origin", [0.0, 5.0, -1e6])
def test_a_column_that_few_rows_have_is_seen_from_any_origin(origin: float) -> None:
    x = normal(40, 2) + origin
    x[:, 1] = origin
    x[:9, 1] += normal(9, 1)[:, 0]
    assert np.isnan(made(x).value).all()
    x[9:18, 1] += normal(9, 1, 1)[:, 0]
    assert np.isfinite(made(x).value).all()


def test_one_row_that_rules_a_cell() -> None:
    x = normal(60, 3)
    x[0, 1] = 100.0
    assert np.isnan(made(x).value).all()
    # Neither column is ruled, their product is.
    y = np.c_[normal(60, 1), np.zeros((60, 2))]
    y[:30, 1], y[30:, 2] = normal(30, 1, 1)[:, 0], normal(30, 1, 2)[:, 0]
    y[0, 1] = y[0, 2] = 2.5
    assert np.isfinite(made(y[:, [0, 1]]).value).all()
    assert np.isfinite(made(y[:, [0, 2]]).value).all()
    assert np.isnan(made(y).value).all()


def test_entities() -> None:
    x = normal(40, 2)
    assert np.isnan(made(x, entities=np.arange(40) % 2).value).all()
    assert np.isfinite(made(x, entities=np.arange(40) % 3).value).all()


def test_the_gate_asks_the_same_of_what_another_policy_let_out() -> None:
    """A step that withholds by other limits than the site's is stopped at the gate."""
    assert not passes(made(normal(9, 2), limits=NO_LIMITS))
    assert not passes(made(normal(20, 11), limits=NO_LIMITS))
    ruled = normal(60, 2)
    ruled[0, 1] = 100.0
    assert not passes(made(ruled, limits=NO_LIMITS))
    assert passes(made(ruled, limits=NO_LIMITS), SIMULATION)
    assert passes(made(normal(20, 10), limits=NO_LIMITS))


# --------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("sizes", "largest", "good"),
    [
        ((20, 30), 10, True),
        ((20, 30), 11, False),
        ((20, 0), 10, True),
        ((9, 30), 2, False),
        ((10, 30), 5, True),
        ((10, 30), 6, False),
    ],
)
def test_linked_columns_are_at_most_half_the_rows_of_every_class(
    sizes: tuple[int, int], largest: int, good: bool
) -> None:
    labels = np.concatenate([np.ones(largest, int), [2, 2, 0, 0, 0]])
    cells = np.repeat([0, 1], sizes)
    released = linked(labels, cells=cells, n_cells=2)
    np.testing.assert_array_equal(released.value, labels)
    assert passes(released) is good
    assert passes(released, SIMULATION)


def test_no_links_rest_on_nothing() -> None:
    """A site that says nothing says so with zeros, whatever its rows."""
    assert passes(linked(np.zeros(30, int), cells=np.full(5, -1), n_cells=2))
    assert passes(linked(np.zeros(30, int), cells=np.zeros(10, int), n_cells=1))
    assert not passes(linked(np.zeros(30, int), cells=np.zeros(9, int), n_cells=1))
    # Links without rows behind them cannot be.
    assert not passes(linked(np.ones(30, int), cells=np.full(90, -1), n_cells=2))


def test_many_columns_without_a_link_are_no_component() -> None:
    """Controls: the label 0 is no component, any other is."""
    cells = np.zeros(20, int)
    assert passes(linked(np.zeros(5000, int), cells=cells, n_cells=1))
    assert not passes(linked(np.full(5000, 7), cells=cells, n_cells=1))
    assert passes(linked(np.arange(5000), cells=cells, n_cells=1))


# --------------------------------------------------------------------------- missing values


def unsafe_pairs(x: np.ndarray, min_records: int, max_share: float = 0.5) -> np.ndarray:
    return moment_facts(x, limits=Limits(min_records, max_share)).unsafe


def gappy(n: int, p: int, seen: int, column: int = 0) -> np.ndarray:
    """Rows of bounded numbers, of which the last lack one."""
    x = 2.0 + np.sin(np.arange(n)[:, None] * np.linspace(1.1, 2.7, p))
    x[seen:, column] = np.nan
    return x


def test_sums_are_over_the_pairs_that_are_there() -> None:
    x = gappy(60, 3, 40) + 5.0
    got = made(x)
    centred = x - np.nanmean(x, axis=0)
    wanted = [np.nansum(centred[:, i] * centred[:, j]) for i in range(3) for j in range(i, 3)]
    np.testing.assert_allclose(got.value[0], wanted, rtol=1e-12)
    assert passes(got)


@pytest.mark.parametrize(("seen", "p", "told"), [(10, 3, True), (9, 3, False), (11, 6, False)])
def test_a_column_counts_the_rows_that_have_a_value(seen: int, p: int, told: bool) -> None:
    x = gappy(60, p, seen)
    assert np.isfinite(made(x).value).all() == told
    assert np.isfinite(made(x, limits=NO_LIMITS).value).all()


def test_pairs_of_few_rows_stop_a_block() -> None:
    """Each column has 34 values and the two together eight."""
    x = normal(60, 2)
    x[34:, 0] = np.nan
    x[:26, 1] = np.nan
    assert np.isnan(made(x).value).all()
    assert unsafe_pairs(x, 10).tolist() == [[False, True], [True, False]]
    assert not unsafe_pairs(x, 8).any()


def test_one_value_that_dominates_among_gaps() -> None:
    x = gappy(60, 2, 20)
    x[3, 0] = 1e3
    assert np.isnan(made(x).value).all()
    assert unsafe_pairs(x, 10)[0, 0]


def test_columns_without_values_and_pairs_without_rows() -> None:
    x = gappy(60, 2, 0)
    assert np.isnan(made(x).value).all()
    assert unsafe_pairs(x, 1, 1.0).all()
    x = normal(60, 2)
    x[:30, 0], x[30:, 1] = np.nan, np.nan
    unsafe = unsafe_pairs(x, 1, 1.0)
    assert unsafe.tolist() == [[False, True], [True, False]]
    assert unsafe_pairs(np.empty((0, 2)), 1, 1.0).all()

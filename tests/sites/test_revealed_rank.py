"""The ledger of revealed directions adds up, forgets nothing, and lets nothing leave uncounted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.exceptions import ProtocolError, RunError
from consilience.sites.revealed_rank import RevealedRank, column_factor, rank_of

NAMES = tuple("abcdef")


def columns(seed: int = 0, n: int = 60, p: int = 6, scales: Any = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, p)) * scales


def counted(x: np.ndarray, *releases: np.ndarray, names: tuple[str, ...] = NAMES) -> int:
    factor = column_factor(x)
    known = RevealedRank()
    for directions in releases:
        known = known.after(names, np.reshape(directions, (len(names), -1)), factor)
    return known.count(factor, names)


def known_share(released: np.ndarray, target: np.ndarray) -> float:
    """Share of a vector's energy in the span of released vectors."""
    if not released.size:
        return 0.0
    left, size, _ = np.linalg.svd(released / np.linalg.norm(released, axis=0), full_matrices=False)
    left = left[:, size > 1e-14 * size[0]]
    return float(np.sum((left.T @ target) ** 2) / np.sum(target**2))


# --------------------------------------------------------------------------- counting


def test_nothing_is_known_at_first() -> None:
    factor = column_factor(columns())
    assert RevealedRank().count(factor, NAMES) == 0
    assert rank_of(factor) == 6
    assert RevealedRank().union(RevealedRank()).columns == ()


@given(st.integers(0, 10**6), st.lists(st.integers(1, 3), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_random_directions_add_up_to_the_rank(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    releases = [rng.normal(size=(6, k)) for k in sizes]
    assert counted(columns(seed), *releases) == min(sum(sizes), 6)


@given(st.integers(0, 10**6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_what_is_in_the_span_does_not_count_again(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(6, k))
    inside = known @ rng.normal(size=(k, 4))
    x = columns(seed)
    assert counted(x, known, inside, known[:, ::-1] * 1e6, -inside) == k


@given(st.integers(0, 10**6), st.permutations(range(5)))
@settings(max_examples=40, deadline=None)
def test_order_and_grouping_do_not_matter(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(6, 3)) @ rng.normal(size=(3, 5))
    x = columns(seed)
    one_by_one = counted(x, *(directions[:, j] for j in order))
    assert one_by_one == counted(x, directions) == 3


@given(st.integers(0, 10**6), st.lists(st.floats(-8, 8), min_size=6, max_size=6))
@settings(max_examples=40, deadline=None)
def test_units_of_columns_do_not_matter(seed: int, powers: list[float]) -> None:
    """The same numbers leave, from columns in other units: sixteen powers of ten apart."""
    rng = np.random.default_rng(seed)
    units = 10.0 ** np.array(powers)
    directions = rng.normal(size=(6, 2)) @ rng.normal(size=(2, 3))
    more = rng.normal(size=(6, 1))
    x = columns(seed)
    for scale in (1.0, units):
        given_ = directions / np.reshape(scale, (-1, 1)), more / np.reshape(scale, (-1, 1))
        assert counted(x * scale, *given_) == 3
        assert rank_of(column_factor(x * scale)) == 6


@pytest.mark.parametrize(("distance", "new"), [(1e-4, True), (2e-8, True), (5e-9, False)])
def test_a_direction_is_new_beyond_the_tolerance(distance: float, new: bool) -> None:
    first, other = np.eye(6)[0], np.eye(6)[1]
    assert counted(np.eye(7)[:, :6], first, first + distance * other) == 1 + new


def test_small_steps_are_counted_one_by_one() -> None:
    """Each message is 1e-5 off the span of those before: a joint rank misses some."""
    basis = np.eye(6)
    messages = [basis[0], *(basis[j - 1] + 1e-5 * basis[j] for j in range(1, 5))]
    joint = np.linalg.svd(np.column_stack(messages), compute_uv=False)
    assert (joint > 1e-8 * joint[0]).sum() < 5, "what a joint rank would miss"
    assert counted(columns(), *messages) == 5


def test_directions_that_todays_columns_do_not_show_count_when_they_do() -> None:
    """Two columns are equal today: their difference tells nothing now, and something later."""
    x = columns()
    equal = x.copy()
    equal[:, 1] = equal[:, 0]
    today, later = column_factor(equal), column_factor(x)
    difference = np.eye(6)[:, [0]] - np.eye(6)[:, [1]]
    known = RevealedRank().after(NAMES, difference, today)
    assert (known.count(today, NAMES), rank_of(today)) == (0, 5)
    assert (known.count(later, NAMES), rank_of(later)) == (1, 6)


def test_nearly_cancelled_columns_hide_no_direction() -> None:
    """A long direction that the columns cancel carries a short one: the short one is counted."""
    x = columns()
    x[:, 1] = x[:, 0]
    factor = column_factor(x)
    long = np.array([1.0, -1.0, 0, 0, 0, 0])
    known = RevealedRank().after(NAMES, long[:, None], factor)
    known = known.after(NAMES, (long + 1e-9 * np.eye(6)[3])[:, None], factor)
    assert known.count(factor, NAMES) == 1


def test_constant_columns_and_few_rows() -> None:
    x = columns()
    x[:, 2] = 0.1 + 0.2
    assert rank_of(column_factor(x)) == 5
    assert counted(x, np.eye(6)[2]) == 0
    few = columns(n=4)
    assert rank_of(column_factor(few)) == 3
    assert counted(few, np.random.default_rng(1).normal(size=(6, 5))) == 3
    assert rank_of(column_factor(columns(n=1))) == 0
    assert rank_of(np.empty((0, 0))) == 0


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_rows_may_change_between_runs(seed: int) -> None:
    """What both runs tell of the rows that they share is what the ledger counts."""
    rng = np.random.default_rng(seed)
    x, d1, d2 = columns(seed, n=80), rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    first, second = column_factor(x[:50]), column_factor(x[20:])
    known = RevealedRank().after(NAMES, d1, first).after(NAMES, d2, second)
    shared = x[20:50]
    told = np.c_[shared @ d1, shared @ d2]
    assert known.count(second, NAMES) == np.linalg.matrix_rank(told) == 4


def test_other_columns_count_too() -> None:
    """Other names may be the same facts in another coding."""
    x = columns()
    factor = column_factor(x)
    known = RevealedRank().after(("u", "v"), np.array([[1.0], [2.0]]), factor[:, :2])
    assert known.count(factor, NAMES) == 1
    known = known.after(NAMES, np.eye(6)[:, :2], factor)
    assert known.count(factor, NAMES) == 3
    known = known.after(NAMES[::-1], np.eye(6)[:, :2], factor)
    assert known.count(factor, NAMES) == 5
    assert known.after(("w",), np.ones((1, 1))).after(("z",), np.ones((1, 1))).count(
        factor, NAMES
    ) == rank_of(factor)


def test_a_mixed_direction_does_not_make_its_parts_known() -> None:
    x = columns(p=2)
    both, one = ("a", "b"), ("a",)
    known = RevealedRank().after(both, np.ones((2, 1)), column_factor(x))
    alone, leaving = known.admit(one, np.ones((1, 1)), column_factor(x[:, :1]))
    assert alone.count(column_factor(x), both) == 2
    np.testing.assert_array_equal(leaving, [[1.0]])


# --------------------------------------------------------------------------- what leaves


@pytest.mark.parametrize("distance", [1e-7, 9e-9, 1e-9, 1e-11, 1e-13, 3e-15])
def test_a_small_difference_tells_no_direction_that_is_not_counted(distance: float) -> None:
    """Two messages differ by little: double precision would tell the difference's direction.

    Without the replacement the difference has 1 / (1e-16 / distance)^2 of its energy, nearly all.
    """
    x = columns(3, n=200)
    x = x - x.mean(axis=0)
    rng = np.random.default_rng(4)
    first, hidden = rng.normal(size=6), rng.normal(size=6)
    hidden -= first * (first @ hidden) / (first @ first)
    second = first + distance * hidden
    factor = column_factor(x)
    known, sent = RevealedRank().admit(NAMES, np.c_[first, second], factor)
    released = x @ sent
    released = np.c_[released[:, 0], released[:, 1] - released[:, 0]]
    released = released[:, np.linalg.norm(released, axis=0) > 0]
    count = known.count(factor, NAMES)
    target = x @ hidden
    target = target - released[:, 0] * (target @ released[:, 0]) / np.sum(released[:, 0] ** 2)
    naive = np.c_[x @ first, x @ second - x @ first]
    assert known_share(naive, target) > 0.9, "without the replacement the direction is told"
    share = known_share(released, target)
    assert share > 0.999 if count == 2 else share < 0.3  # rounding: .005 for a random vector
    np.testing.assert_allclose(x @ sent[:, 1], x @ second, rtol=0, atol=3e-8 * np.abs(x).max())


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_what_leaves_is_close_to_what_was_asked(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    asked = rng.normal(size=(6, k)) @ rng.normal(size=(k, 9)) * 10.0 ** rng.integers(-6, 6, 9)
    x = columns(seed)
    known, sent = RevealedRank().admit(NAMES, asked, column_factor(x))
    assert known.directions.shape[1] == k
    error = np.linalg.norm(x @ (sent - asked), axis=0) / np.linalg.norm(x @ asked, axis=0)
    assert error.max() < 1e-7


def test_the_same_direction_again_has_the_same_bytes() -> None:
    directions = np.random.default_rng(0).normal(size=(6, 5))
    known, first = RevealedRank().admit(NAMES, directions, column_factor(columns()))
    again, second = known.admit(NAMES, directions, column_factor(columns()))
    np.testing.assert_array_equal(first, directions)
    np.testing.assert_array_equal(second, directions)
    np.testing.assert_array_equal(again.directions, known.directions)


def test_no_direction_at_all() -> None:
    zero = np.zeros((6, 2))
    known, sent = RevealedRank().admit(NAMES, zero, column_factor(columns()))
    assert known.directions.shape == (6, 0)
    np.testing.assert_array_equal(sent, zero)


# --------------------------------------------------------------------------- the ledger


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_union_and_ledger(seed: int, k: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    x, names = columns(seed), ("e", "f", "g", "h")
    factor, other = column_factor(x), column_factor(columns(seed + 1, p=4))
    one = RevealedRank().after(NAMES, rng.normal(size=(6, k)), factor)
    two = one.after(names, rng.normal(size=(4, m)), other)
    for known in (one.union(two), two.union(one), two.union(two)):
        assert known.directions.shape[1] == two.directions.shape[1] == min(k + m, 8)
        again = RevealedRank.from_ledger(json.loads(json.dumps({"runs": [], **known.to_ledger()})))
        assert again.columns == known.columns
        np.testing.assert_array_equal(again.directions, known.directions)
        np.testing.assert_array_equal(again.scales, known.scales)


def test_an_empty_ledger() -> None:
    assert RevealedRank.from_ledger({"runs": ["r"]}).columns == ()
    assert RevealedRank.from_ledger(RevealedRank().to_ledger()).directions.shape == (0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ["a"]},
        {"columns": ["a", "a"]},
        {"columns": [1, 2]},
        {"columns": None},
        {"scales": [1.0]},
        {"scales": [1.0, 0.0]},
        {"scales": [1.0, float("nan")]},
        {"scales": "x"},
        {"directions": [[1.0]]},
        {"directions": [[2.0, 0.0]]},
        {"directions": [[1.0, 0.0], [1.0, 0.0]]},
        {"directions": [[1.0, 0.0], [1.0]]},
        {"directions": [[float("nan"), 0.0]]},
        {"directions": None},
    ],
    ids=repr,
)
def test_a_damaged_ledger_is_no_clean_slate(change: dict[str, Any]) -> None:
    entry = {"columns": ["a", "b"], "scales": [1.0, 2.0], "directions": [[1.0, 0.0]]}
    assert RevealedRank.from_ledger({"revealed": entry}).directions.shape == (2, 1)
    with pytest.raises(RunError, match="damaged"):
        RevealedRank.from_ledger({"revealed": {**entry, **change}})


@pytest.mark.parametrize("entry", [None, [], 3, {}, {"columns": []}], ids=repr)
def test_an_entry_of_another_form_is_damaged(entry: Any) -> None:
    with pytest.raises(RunError, match="damaged"):
        RevealedRank.from_ledger({"revealed": entry})


@pytest.mark.parametrize(
    ("names", "directions", "factor"),
    [
        (("a",), np.ones((2, 1)), None),
        (("a", "a"), np.ones((2, 1)), None),
        (("a", "b"), np.ones(2), None),
        (("a", "b"), np.full((2, 1), np.inf), None),
        (("a", "b"), np.ones((2, 1)), np.eye(3)),
        (("a", "b"), np.ones((2, 1)), np.full((2, 2), np.nan)),
    ],
)
def test_releases_that_do_not_fit(names: Any, directions: Any, factor: Any) -> None:
    with pytest.raises(ProtocolError):
        RevealedRank().after(names, directions, factor)


def test_without_a_factor_coefficients_alone_say_what_is_new() -> None:
    first, near = np.array([[1.0], [0.0]]), np.array([[1.0], [1e-9]])
    known, leaving = RevealedRank().after(("a", "b"), first).admit(("a", "b"), near)
    assert known.directions.shape == (2, 1)
    np.testing.assert_array_equal(leaving, first)

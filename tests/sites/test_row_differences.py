"""Rows between two runs: which others stay out with them, and which columns are not told again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from consilience.sites.row_differences import View, covering, failing
from consilience.wire.disclosure import Limits
from consilience.wire.moment_facts import Coded, moment_facts

LIMITS = Limits(min_records=10)


def table(
    seed: int, n: int, shares: tuple[float, ...] = (0.2, 0.5), numbers: int = 1
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    flags = [(rng.random(n) < share) * 1.0 for share in shares]
    return np.column_stack([*flags, *(rng.normal(50, 9, n).round(1) for _ in range(numbers))])


def fewest(x: np.ndarray, flags: int) -> int:
    """The smallest cell of one flag or of two."""
    counts = [len(x)]
    for i, j in itertools.combinations_with_replacement(range(flags), 2):
        for a, b in itertools.product((0, 1), repeat=2):
            if i != j or a == b:
                counts.append(int(((x[:, i] == a) & (x[:, j] == b)).sum()))
    return min(counts)


@pytest.mark.parametrize("seed", range(5))
def test_what_leaves_of_all_rows_might_leave_of_the_cover_and_of_the_others(seed: int) -> None:
    x = table(seed, 600, (0.15, 0.4, 0.6), 2)
    order = np.random.default_rng(seed).permutation(600)
    cover = covering(x, order, LIMITS)
    others = np.setdiff1d(np.arange(600), cover)
    assert len(np.unique(cover)) == len(cover) <= 150
    assert fewest(x[cover], 3) >= 10 and fewest(x[others], 3) >= 10
    allowed = moment_facts(x, limits=LIMITS).unsafe
    for rows in (cover, others):
        assert not (moment_facts(x[rows], limits=LIMITS).unsafe & ~allowed).any()
    np.testing.assert_array_equal(cover, covering(x, order, LIMITS))


def test_levels_of_a_category_are_covered_with_the_rest() -> None:
    level = np.random.default_rng(0).integers(4, size=400)
    x = np.column_stack([level == 1, level == 2]).astype(float)
    cover = covering(x, np.arange(400), LIMITS, [Coded((0, 1), False)])
    assert min(np.bincount(np.minimum(level[cover], 3) % 3)) >= 10


def test_numbers_take_the_first_rows_in_order() -> None:
    x = table(1, 300, (), 2)
    order = np.random.default_rng(3).permutation(300)
    cover = covering(x, order, LIMITS)
    assert 15 <= len(cover) <= 40
    np.testing.assert_array_equal(np.sort(cover), np.sort(order[: len(cover)]))


def test_a_cover_is_a_quarter_at_most() -> None:
    x = table(6, 200, (0.3, 0.4, 0.5, 0.6, 0.35, 0.45))
    assert 40 <= len(covering(x, np.arange(200), LIMITS)) <= 50


def test_of_few_rows_there_is_no_cover() -> None:
    assert not len(covering(table(0, 39), np.arange(39), LIMITS))
    assert not len(covering(np.zeros((300, 0)), np.arange(300), LIMITS))


def views(groups: np.ndarray, *told: list[bool]) -> list[View]:
    """A view for each group: columns that are told of it, with products."""
    return [
        View(groups == g, np.array(t), np.array(t), np.zeros(len(t), dtype=bool))
        for g, t in enumerate(told)
    ]


def test_a_count_that_two_parts_cannot_share_is_left_to_the_columns() -> None:
    """Fifteen of 300: the cover takes none of them for their own sake, and the column fails."""
    x = table(2, 300, (0.5, 0.5))
    x[:, 0] = np.arange(300) < 15
    cover = covering(x, np.arange(300)[::-1].copy(), LIMITS)
    assert len(cover) <= 75
    groups = np.isin(np.arange(300), cover).astype(np.int64)
    every = np.ones(3, dtype=bool)
    bad = failing(x, views(groups, [True] * 3, [True] * 3), every, LIMITS)
    assert bad.tolist() == [True, False, False]


def test_columns_fail_by_groups_in_which_they_are_told() -> None:
    x, every = table(4, 400, (0.3, 0.5)), np.ones(3, dtype=bool)
    groups = np.zeros(400, dtype=np.int64)
    groups[np.flatnonzero(x[:, 0] == 1)[:3]] = 1
    groups[np.flatnonzero(x[:, 0] == 0)[:40]] = 1
    both = views(groups, [True] * 3, [True] * 3)
    assert failing(x, both, every, LIMITS).tolist() == [True, False, False]
    assert not failing(x, views(groups, [True] * 3, [False, True, True]), every, LIMITS).any()
    assert not failing(x, both[:1], every, LIMITS).any()
    # What is told anyway is not withheld, and what is not asked for cannot be.
    assert not failing(x, both, np.array([False, True, True]), LIMITS).any()


@pytest.mark.parametrize("products", [True, False])
def test_of_a_pair_that_fails_one_column_stays(products: bool) -> None:
    """Both have enough of each value in the group, and few have both; means may leave."""
    x = table(5, 400, (0.5, 0.5), 0)
    rows = np.flatnonzero
    part = np.concatenate(
        [
            rows((x[:, 0] == 1) & (x[:, 1] == 0))[:20],
            rows((x[:, 0] == 0) & (x[:, 1] == 1))[:20],
            rows(x.all(axis=1))[:4],
            rows(~x.any(axis=1))[:20],
        ]
    )
    inside = np.isin(np.arange(400), part)
    every, none = np.ones(2, dtype=bool), np.zeros(2, dtype=bool)
    view = View(inside, every, every & products, none)
    bad = failing(x, [view], every, LIMITS)
    assert bad.tolist() == [False, products], "of equal faults the last"
    fixed = View(inside, every, every & products, np.array([False, True]))
    assert failing(x, [fixed], np.array([True, False]), LIMITS).tolist() == [products, False]


def test_a_pair_that_stays_for_the_sake_of_three_is_looked_at_again() -> None:
    """A column that is withheld itself keeps no pair of others back."""
    x = table(7, 400, (0.4, 0.5, 0.5), 0)
    x[:5, 0] = 1 - x[:5, 0]
    every = np.ones(3, dtype=bool)
    groups = np.zeros(400, dtype=np.int64)
    groups[rows_of_cell(x, 1, 2)[:-4]] = 1
    bad = failing(x, views(1 - groups, [True] * 3, [True] * 3), every, LIMITS)
    left = np.flatnonzero(~bad)
    for group in (0, 1):
        own = x[groups == group][:, left]
        assert not moment_facts(own, limits=LIMITS).unsafe.any()


def rows_of_cell(x: np.ndarray, i: int, j: int) -> np.ndarray:
    return np.flatnonzero((x[:, i] == 1) & (x[:, j] == 1))


@pytest.mark.parametrize("rest", [0, 3, 30])
def test_disjoint_columns_leave_nobody_over_or_many(rest: int) -> None:
    """Three arms, each as a column of 0 and 1: who is in none of them."""
    arm = np.repeat([0, 1, 2, 3], [150, 120, 130 - rest, rest])
    x = np.column_stack([arm == k for k in range(3)]).astype(float)
    every = np.ones(3, dtype=bool)
    view = View(np.ones(400, dtype=bool), every, ~every, ~every)
    assert failing(x, [view], every, LIMITS).any() == (rest < 10)
    assert not failing(x, [view], every, LIMITS, [Coded((0, 1, 2), rest == 0)]).any() or rest == 3


def test_numbers_that_hardly_differ_are_not_both_told() -> None:
    x = table(8, 300, (), 3)
    x[:, 2] = 40.0 - x[:, 0]
    x[:7, 2] += 3.0
    every = np.ones(3, dtype=bool)
    view = View(np.ones(300, dtype=bool), every, ~every, ~every)
    assert failing(x, [view], every, LIMITS).tolist() == [False, False, True]
    x[:12, 2] += 1.0 + np.arange(12)
    assert not failing(x, [view], every, LIMITS).any()

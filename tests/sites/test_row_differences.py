"""Rows between two runs: which others stay out with them, and which columns are not told again."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError
from consilience.sites import row_guard
from consilience.sites.row_guard import View, failing
from consilience.wire.disclosure import Limits
from consilience.wire.moment_facts import Coded, moment_facts

LIMITS = Limits(min_records=10)


def table(
    seed: int, n: int, shares: tuple[float, ...] = (0.2, 0.5), numbers: int = 1
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    flags = [(rng.random(n) < share) * 1.0 for share in shares]
    return np.column_stack([*flags, *(rng.normal(50, 9, n).round(1) for _ in range(numbers))])


def views(groups: np.ndarray, *told: list[bool]) -> list[View]:
    """A view for each group: columns that are told of it, with products."""
    return [
        View(groups == g, np.array(t), np.array(t), np.zeros(len(t), dtype=bool))
        for g, t in enumerate(told)
    ]


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


@pytest.mark.parametrize("few", [0, 4, 30])
def test_rows_that_are_those_of_a_value_are_refused(few: int) -> None:
    """Rows of another run within a view are a column of it, which cannot be left out."""
    x, every = table(9, 400, (0.4, 0.5), 1), np.ones(3, dtype=bool)
    inside = (x[:, 0] == 1) & (x[:, 1] == 1)
    inside[np.flatnonzero(inside)[:few]] = False
    view = View(np.ones(400, dtype=bool), every, every, every, inside)
    if few < 10:
        with pytest.raises(DataError, match="differ from those of earlier runs"):
            failing(x, [view], np.zeros(3, dtype=bool), LIMITS)
        fixed = View(view.rows, every, every, ~every, inside)
        assert failing(x, [fixed], every, LIMITS)[:2].any(), "asked columns give way"
    else:
        assert not failing(x, [view], np.zeros(3, dtype=bool), LIMITS).any()


def test_a_rare_value_far_down_the_table_is_seen() -> None:
    """Rows of a run that are those of a value, but for some, are a view, wherever they stand."""
    rare = np.arange(400) >= 340
    inside, every = rare & (np.arange(400) % 3 > 0), np.ones(1, dtype=bool)
    told = row_guard._Told(["a"], rare[:, None] * 1.0, every[None], every[None], every, ())
    rows = np.ones(400, dtype=bool)
    found = row_guard._between(told, rows, inside, every, every, every, every, 10)
    assert [view.rows.tolist() for view in found] == [(rare & ~inside).tolist()]


@pytest.mark.parametrize("ones", [5, 60])
def test_of_many_rows_some_are_looked_at_and_all_where_these_are_too_few(ones: int) -> None:
    """A rare value that none of the looked-at rows has is counted in all of them."""
    x = np.column_stack([np.zeros(60_000), np.random.default_rng(0).normal(size=60_000)])
    x[1 : 3 * ones : 3, 0] = 1.0
    every = np.ones(2, dtype=bool)
    view = View(np.ones(60_000, dtype=bool), every, every, ~every)
    assert failing(x, [view], every, LIMITS).tolist() == [ones < 10, False]


def test_of_more_columns_than_may_be_told_the_first_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that stay by themselves take no place, and pairs of the rest are not looked at."""
    x = np.random.default_rng(1).normal(size=(200, 300))
    x[:, [0, 3]] = 1.0
    compared = []
    bad = row_guard._bad
    monkeypatch.setattr(
        row_guard, "_bad", lambda own, *a: compared.append(own.shape[1]) or bad(own, *a)
    )
    every = np.ones(300, dtype=bool)
    hidden = failing(x, views(np.zeros(200), [True] * 300), every, LIMITS)
    told = LIMITS.columns_for(200, products=True)
    assert np.flatnonzero(~hidden).tolist() == [1, 2, *range(4, told + 2)]
    assert max(compared) == told < 200

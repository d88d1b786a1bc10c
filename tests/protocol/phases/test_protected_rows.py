"""What a strict site does to its rows before it fits them, and that other sites leave theirs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.protocol.method import SiteData
from consilience.protocol.phases.holdout import (
    drawing_seed,
    with_common_levels,
    without_thin,
)
from consilience.wire.disclosure import Limits

STRICT, OPEN = Limits(10, 0.5, 3), Limits(1, 1.0, 1)


@dataclasses.dataclass
class Context:
    """As much of a site's context as draws need."""

    limits: Limits
    rng: np.random.Generator


def rows(seed: int = 0, n: int = 40, **changes: Any) -> SiteData:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    data = SiteData(x, ("a", "b", "c"), np.arange(n), target=x @ np.ones(3))
    return dataclasses.replace(data, **changes)


def seed_of(data: SiteData, limits: Limits, rng_seed: int = 1, purpose: str = "a purpose") -> int:
    context: Any = Context(limits, np.random.default_rng(rng_seed))
    return drawing_seed(data, context, purpose)


# --------------------------------------------------------------------------- draws


def test_draws_of_a_strict_site_follow_from_its_rows_alone() -> None:
    data = rows()
    assert seed_of(data, STRICT, 1) == seed_of(data, STRICT, 2), "whatever the public stream says"
    assert 0 <= seed_of(data, STRICT) < 2**63
    x, y = np.array(data.features), np.array(data.target)
    x[7, 1] = np.nextafter(x[7, 1], 9)
    assert seed_of(dataclasses.replace(data, features=x), STRICT) != seed_of(data, STRICT)
    y[3] += 1e-12
    assert seed_of(dataclasses.replace(data, target=y), STRICT) != seed_of(data, STRICT)
    assert seed_of(data, STRICT, purpose="another") != seed_of(data, STRICT)


def test_draws_of_an_open_site_are_public() -> None:
    """Then a run can be repeated by whoever holds all rows."""
    assert seed_of(rows(0), OPEN, 1) == seed_of(rows(5), OPEN, 1)
    assert seed_of(rows(0), OPEN, 1) != seed_of(rows(0), OPEN, 2)


def test_texts_are_a_target_too() -> None:
    found = {
        seed_of(rows(target=np.array(["a", "b"] * 20)), STRICT),
        seed_of(rows(target=np.array(["b", "a"] * 20)), STRICT),
        seed_of(rows(target=np.array(["aa", "b"] * 20)), STRICT),
    }
    assert len(found) == 3


def test_seeds_are_spread() -> None:
    """Of 200 tables that differ in one cell no two have one seed, and halves are even.

    A share of 1/2 of 200 has a standard error of .035.
    """
    seeds = []
    for i in range(200):
        x = np.array(rows().features)
        x[0, 0] = i
        seeds.append(seed_of(rows(features=x), STRICT))
    assert len(set(seeds)) == 200
    assert abs(np.mean([s % 2 for s in seeds]) - 0.5) < 4 * 0.035


# --------------------------------------------------------------------------- thin columns


@pytest.mark.parametrize(("differ", "thin"), [(0, True), (1, True), (9, True), (10, False)])
@pytest.mark.parametrize("common", [0.0, 1.0, -7.5])
def test_columns_in_which_few_rows_differ(differ: int, thin: bool, common: float) -> None:
    x = np.array(rows().features)
    x[:, 1] = common
    x[:differ, 1] = common + 1.0 + np.arange(differ)
    kept, columns = without_thin(x, STRICT)
    assert columns.tolist() == ([1] if thin else [])
    if thin:
        assert np.unique(kept[:, 1]).size == 1
        assert kept[0, 1] == common
        np.testing.assert_array_equal(kept[:, [0, 2]], x[:, [0, 2]])
    else:
        np.testing.assert_array_equal(kept, x)


def test_the_table_itself_is_not_changed() -> None:
    x = np.array(rows().features)
    x[:, 1] = (np.arange(40) < 3).astype(float)
    before = x.copy()
    kept, _ = without_thin(x, STRICT)
    np.testing.assert_array_equal(x, before)
    assert kept is not x


def test_columns_of_all_different_values_stay() -> None:
    """Numbers that nobody shares are no thin column: many rows differ from any one value."""
    x = np.array(rows().features)
    kept, columns = without_thin(x, STRICT)
    assert not columns.size
    np.testing.assert_array_equal(kept, x)


def test_a_table_smaller_than_the_limit() -> None:
    """Fewer rows than min_records: every column is thin, and none stays."""
    x = np.array(rows(n=6).features)
    kept, columns = without_thin(x, STRICT)
    assert columns.tolist() == [0, 1, 2]
    assert all(np.unique(kept[:, j]).size == 1 for j in range(3))


def test_an_open_site_leaves_columns_as_they_are() -> None:
    x = np.array(rows().features)
    x[:, 1] = (np.arange(40) < 3).astype(float)
    kept, columns = without_thin(x, OPEN)
    assert kept is x and not columns.size


def test_thin_by_the_limit_of_the_policy() -> None:
    x = np.array(rows().features)
    x[:, 1] = (np.arange(40) < 12).astype(float)
    assert without_thin(x, STRICT)[1].tolist() == []
    assert without_thin(x, Limits(13, 0.5, 3))[1].tolist() == [1]


@pytest.mark.parametrize("n", [5, 10, 11, 30, 200])
def test_thin_columns_are_those_of_a_plain_count(n: int) -> None:
    """Whatever settles a column sooner: few levels, all different, gaps in few rows and in most."""
    rng = np.random.default_rng(n)
    few = np.minimum(rng.integers(0, 12, size=(n, 40)), rng.integers(0, 12, size=40)).astype(float)
    gaps = np.where(rng.random((n, 40)) < rng.random(40), np.nan, rng.normal(size=(n, 40)))
    x = np.hstack([few, gaps, rng.normal(size=(n, 5))])
    counts = [np.unique(column, return_counts=True)[1].max() for column in x.T]
    expected = [j for j, most in enumerate(counts) if n - most < STRICT.min_records]
    assert (0 < len(expected) < 85) is (n > 10)
    with np.errstate(invalid="ignore"):
        assert without_thin(x, STRICT)[1].tolist() == expected


def test_empty_tables() -> None:
    kept, columns = without_thin(np.empty((0, 3)), STRICT)
    assert kept.shape == (0, 3) and columns.tolist() == [0, 1, 2]
    assert without_thin(np.empty((5, 0)), STRICT)[0].shape == (5, 0)


# --------------------------------------------------------------------------- levels


def test_rows_of_rare_levels_are_left_out() -> None:
    y = np.array([0.0] * 30 + [1.0] * 9 + [2.0] * 10)
    kept = with_common_levels(y, 3, STRICT)
    assert kept.sum() == 40
    assert not kept[y == 1].any() and kept[y != 1].all()
    assert with_common_levels(y, 3, OPEN).all()


def test_levels_that_nobody_has() -> None:
    y = np.array([3.0] * 20)
    assert with_common_levels(y, 6, STRICT).all()
    assert with_common_levels(np.empty(0), 3, STRICT).shape == (0,)


def test_all_levels_are_rare() -> None:
    assert not with_common_levels(np.arange(9.0), 9, STRICT).any()

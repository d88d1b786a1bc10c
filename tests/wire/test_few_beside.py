"""No sum of products of columns rests on few records beside usual values: against all values."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.wire.disclosure import Limits
from consilience.wire.few_beside import FewBeside
from tests.reference.few_beside import off_some

STRICT = Limits(min_records=10, min_entities=3)


def too_few(entities: np.ndarray) -> bool:
    return len(entities) < STRICT.min_records or len(set(entities)) < STRICT.min_entities


def few_beside(x: np.ndarray, entities: np.ndarray, chosen: np.ndarray) -> bool:
    return FewBeside(x, entities, STRICT)(chosen)


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns of a few kinds, of 12 to 50 records of 3 to 12 entities."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(12, 50))
    entities = np.sort(rng.integers(0, rng.integers(3, 13), size=n))
    x = np.empty((n, 3))
    for j in range(3):
        kind = rng.integers(7)
        if kind == 0:
            x[:, j] = rng.normal(size=n)
        elif kind == 1:
            x[:, j] = rng.random(n) < rng.choice([0.3, 0.5])
        elif kind == 2:
            x[:, j] = rng.choice(3, size=n, p=rng.dirichlet([2, 2, 1])) / 7
        elif kind == 3:
            x[:, j] = rng.integers(0, 12, size=n)
        elif kind == 4:
            x[:, j] = rng.permuted(np.where(np.arange(n) < n / 2, 0.0, rng.normal(size=n)))
        elif kind == 5:  # constant within an entity
            x[:, j] = rng.integers(0, 2, size=12)[entities]
        else:  # nearly a copy of another
            x[:, j] = x[:, j - 1] if j else 0.1
            some = rng.integers(0, n, size=rng.choice([0, 3, 15]))
            x[some, j] += rng.normal(size=len(some))
    return x, entities


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_rule_is_that_of_the_textbook(columns: int) -> None:
    verdicts = []
    for seed in range(60):
        x, entities = table(seed)
        x = x[:, :columns]
        chosen = np.flatnonzero(entities != 1)
        verdicts.append(off_some(x, entities, chosen))
        assert few_beside(x, entities, chosen) == verdicts[-1], seed
    assert 5 <= sum(verdicts) <= 55


@pytest.mark.parametrize("few", [0, 2, 15])
@pytest.mark.parametrize("made", ["two sums", "two differences", "a sum and a difference"])
def test_sums_and_differences_are_beside_each_other(made: str, few: int) -> None:
    rng = np.random.default_rng(few)
    u, sign = rng.normal(size=60), np.where(np.arange(60) % 2, 1.0, -1.0)
    v = {"two sums": sign - u, "two differences": u - sign, "a sum and a difference": sign * u}[
        made
    ]
    v[:few] = rng.normal(size=few)
    x, entities = np.column_stack([u, v]), np.arange(60) % 12
    assert few_beside(x, entities, np.arange(60)) == (few == 2)
    assert off_some(x, entities, np.arange(60)) == (few == 2)


def levels_and_more(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two categories of three or four levels but for their last, and another column."""
    rng = np.random.default_rng(seed)
    n = 400
    one, other = rng.integers(0, 4, size=n), rng.integers(0, 3, size=n)
    last = one == 3
    kind, value = seed % 3, 1.0
    if kind == 0:  # few of the last level are of another's last, or none
        other[last] = rng.integers(0, 2, size=last.sum())
        other[np.flatnonzero(last)[: rng.choice([0, 2, 15])]] = 2
        value = rng.normal(size=n)
    elif kind == 1:  # or beside a usual value of a column
        value = np.where(last, 0.0, rng.normal(size=n))
        value[np.flatnonzero(last)[: rng.choice([0, 2, 15])]] = 0.7
    else:  # or have a mark
        value = np.where(last, 0, rng.integers(0, 2, size=n))
        value[np.flatnonzero(last)[: rng.choice([0, 2, 15])]] = 1
    marks = [one == 0, one == 1, one == 2, other == 0, other == 1]
    return np.column_stack([*marks, np.full(n, value)]).astype(float), np.arange(n) % 50


def test_levels_that_are_left_out_are_marks_too() -> None:
    verdicts = []
    for seed in range(18):
        x, entities = levels_and_more(seed)
        verdicts.append(off_some(x, entities, np.arange(400)))
        # as weights leave them
        rounded = 0.3 * x * (1 + 1e-15 * np.random.default_rng(seed).integers(2, size=x.shape))
        for values in (x, rounded):
            assert few_beside(values, entities, np.arange(400)) == verdicts[-1], seed
    assert {True, False} == set(verdicts)


def test_so_many_sets_of_marks_that_not_all_are_looked_at() -> None:
    """Of each of twelve levels two parts: either it or they are left out, and so on for all."""
    part = np.arange(600) % 24
    x = np.column_stack([part // 2 == k for k in range(12)])
    x = np.column_stack([x, *(part == k for k in range(24))]).astype(float)
    assert few_beside(x, np.arange(600) % 50, np.arange(600))
    assert not few_beside(x[:, 12:], np.arange(600) % 50, np.arange(600))


def test_a_value_of_a_sum_is_usual_where_one_of_its_columns_is_constant_in_the_group() -> None:
    x = np.c_[np.repeat([0.0, 21.0], 10), np.r_[np.arange(10) + 0.1, np.arange(10) - 20.9]]
    assert few_beside(x, np.arange(20), np.arange(10))
    x[10:, 1] += 0.05
    assert not few_beside(x, np.arange(20), np.arange(10))


def test_disjoint_groups_that_pass_do_so_together() -> None:
    passed = 0
    for seed in range(3000):
        x, entities = table(seed)
        first = entities < np.median(entities)
        groups = np.flatnonzero(first), np.flatnonzero(~first)
        if not any(too_few(entities[g]) or few_beside(x, entities, g) for g in groups):
            passed += 1
            assert not few_beside(x, entities, np.arange(len(x))), seed
    assert passed >= 10


@pytest.mark.parametrize(
    ("n", "others", "few"), [(11, 0.0, True), (11, 0.5, False), (12, 0.0, False)]
)
def test_a_value_is_usual_if_a_record_outside_the_group_shares_it(
    n: int, others: float, few: bool
) -> None:
    """Of eleven different values two may be known from others: nine are left."""
    x = np.r_[np.arange(n), np.arange(n) + others][:, None].astype(float)
    assert few_beside(x, np.arange(2 * n), np.arange(n)) is few

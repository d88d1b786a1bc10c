"""Equations and steps that all records keep to but few, whatever the columns are."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.wire import digits
from consilience.wire.digits import finer_between, off_grid
from consilience.wire.disclosure import Limits
from consilience.wire.equations import equations, outweighed
from consilience.wire.moment_facts import Coded

LIMITS = Limits(max_detection=1.0)


def joint(x: np.ndarray) -> np.ndarray:
    return np.ones(x.shape[1], dtype=bool)


@pytest.mark.parametrize("n", [50, 300])
@pytest.mark.parametrize("few", [0, 1, 5, 9, 10])
@pytest.mark.parametrize("whole", [False, True])
def test_linear_equations_of_all_records_but_few(n: int, few: int, whole: bool) -> None:
    """Found where fewer than ten records break them, nobody included."""
    rng = np.random.default_rng(few)
    x = rng.normal(size=(n, 7))
    x = np.rint(3 * x) if whole else x
    x[:, 3] = 2.0 - x[:, 0] + 3 * x[:, 5]
    x[:few, 3] += rng.integers(1, 9, few)
    assert equations(x, joint(x), LIMITS) == ([[0, 3, 5]] if few < 10 else [])


@pytest.mark.parametrize("few", [0, 1, 9, 10])
def test_two_equations_one_of_which_holds_but_for_few(few: int) -> None:
    rng = np.random.default_rng(few)
    x = rng.integers(0, 90, size=(300, 4)).astype(float)
    x[:150, 1] = x[:150, 0] + 7
    x[150 + few :, 3] = 2 * x[150 + few :, 2]
    assert equations(x, joint(x), LIMITS) == ([[0, 1, 2, 3]] if few < 10 else [])
    assert not equations(x, np.array([True, True, True, False]), LIMITS)


@pytest.mark.parametrize("few", [0, 1, 9, 10, 40])
@pytest.mark.parametrize("made", ["total or none", "one of two", "circle", "ratio"])
def test_equations_of_second_degree(made: str, few: int) -> None:
    """Found where some records break them, but few: squares of columns are told."""
    rng = np.random.default_rng(few)
    x = rng.uniform(1, 3, size=(300, 5)).round(2)
    first, second, marked = x[:, 0], x[:, 2], rng.random(300) < 0.42
    x[:, 3] = {
        "total or none": np.where(marked, 0.0, first + second),
        "one of two": np.where(marked, first + second, 2 * first - second),
        "circle": np.sqrt(20 - first**2 - second**2),
        "ratio": second / first,
    }[made]
    x[:few, 3] += rng.normal(size=few)
    x[:, 4] = x[:, 1] ** 2
    found = equations(x, joint(x), LIMITS)
    assert bool(found) == (0 < few < 10)
    assert not found or {0, 2, 3} <= set(found[0])
    assert not equations(x, np.arange(5) != 2, LIMITS), "without products of one of them"


@pytest.mark.parametrize(("n", "flagged"), [(500, 40), (2000, 40), (10_000, 100)])
def test_a_column_that_few_of_a_sample_have_hides_no_equation(n: int, flagged: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.uniform(1, 3, size=(n, 4))
    x[:, 2] = np.where(rng.random(n) < 0.4, 0.0, x[:, 0] + x[:, 1])
    x[:, 3] = rng.permutation(n) < flagged
    assert not equations(x, joint(x), LIMITS)
    x[7, 2] = 1.7
    assert {0, 1, 2} <= set(equations(x, joint(x), LIMITS)[0])
    assert equations(x[8:], joint(x), LIMITS, some=True), "one of the others may break it"


def test_of_many_columns_products_of_linear_equations_only() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 3, size=(2000, 16))
    x[:, 3] = np.where(rng.random(2000) < 0.42, 0.0, x[:, 0] + x[:, 2])
    x[7, 3] = 1.7
    assert not equations(x, joint(x), LIMITS)
    assert equations(x[:, :15], joint(x[:, :15]), LIMITS)


def test_a_combination_that_is_mostly_one_records() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    x[:, 2] = x[:, 0] - x[:, 1] + 0.01 * rng.normal(size=200)
    for more, found in ((0.05, []), (1.0, [[0, 1, 2]])):
        x[3, 2] = x[3, 0] - x[3, 1] + more
        assert equations(x, joint(x), LIMITS) == found
    assert outweighed(x, 1.0) is None


def test_columns_that_keep_to_nothing_but_their_coding() -> None:
    rng = np.random.default_rng(2)
    kind = rng.integers(0, 3, 400)
    levels = (kind[:, None] == np.arange(3)).astype(float)
    x = np.column_stack([levels, rng.normal(size=(400, 2)), rng.random(400) < 0.4, kind > 0])
    coded = [Coded((0, 1, 2), whole=True)]
    assert not equations(x[:, :6], joint(x[:, :6]), LIMITS, coded)
    assert equations(x, joint(x), LIMITS, coded)
    doses = np.where(rng.random((400, 3)) < 0.6, 0.0, rng.integers(1, 6, (400, 3)))
    assert not equations(doses, joint(doses), LIMITS)


def test_nothing_is_looked_for_where_records_are_not_protected() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2)).repeat(2, axis=1)
    assert equations(x, joint(x), LIMITS)
    assert not equations(x, joint(x), Limits(min_records=1))


@pytest.mark.parametrize("n", [50, 1000])
@pytest.mark.parametrize("few", [0, 1, 9, 10])
def test_steps_that_nobody_would_list(n: int, few: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        step, origin = rng.uniform(0.1, 5, size=2)
        column = origin + step * rng.integers(0, 40, n)
        column[:few] += step * rng.uniform(0.1, 0.9, few)
        found = off_grid(column, 10)
        assert (found is not None) == (0 < few < 10)
        if found is not None:
            assert np.flatnonzero(found.off).tolist() == list(range(few))
            assert off_grid(found.rounded(column), 10) is None
            assert (np.abs(found.rounded(column) - column) <= step / 2 + 1e-9).all()


@pytest.mark.parametrize("few", [0, 3, 9, 10])
def test_a_handful_rules_out_no_step_that_all_records_keep_to(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(few)
    for step in (1.0, 0.1, 1 / 7, 20.0):
        column = rng.integers(0, 90, 300) * step
        column[:few] += step * rng.uniform(0.1, 0.9, few)
        found = off_grid(rng.permutation(column), 10)
        with monkeypatch.context() as patch:
            patch.setattr(digits, "_HANDFUL", 0)
            slow = off_grid(column, 10)
        assert (found is None) == (slow is None) == (few in (0, 10))
        assert found is None or slow is None or found.off.sum() == slow.off.sum() == few


@pytest.mark.parametrize("pairs", [1, 2, digits._PAIRS])
def test_steps_of_sums_and_differences(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where few pairs are looked at together."""
    monkeypatch.setattr(digits, "_PAIRS", pairs)
    rng = np.random.default_rng(1)
    born = rng.uniform(1930, 1990, 300).round(2)
    x = np.column_stack([born, born + rng.integers(1, 30, 300), rng.normal(size=300).round(2)])
    assert not finer_between(x, 10).any()
    x[5, 1] += 0.4
    assert np.argwhere(finer_between(x, 10)).tolist() == [[0, 1], [1, 0]]
    x[:, 1] = 100 - x[:, 1]
    assert np.argwhere(finer_between(x, 10)).tolist() == [[0, 1], [1, 0]]
    x[:12, 1] += 0.1
    assert not finer_between(x, 10).any()

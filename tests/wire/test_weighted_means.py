"""Weighted means: the formula, what is withheld, and how coarse they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DisclosureError, ProtocolError
from consilience.sites.gate import review
from consilience.sites.policy import Policy
from consilience.wire.digits import step_above
from consilience.wire.disclosure import (
    Limits,
    Released,
    WeightedMeans,
    aggregate,
    count,
    model,
    stacked,
    weighted_means,
)
from consilience.wire.message import Aggregate, message
from tests.reference import meta_clustering_naive as naive

STRICT = Limits()
OPEN = Limits(min_records=1, max_share=1.0, min_entities=1)


@message("test-weighted-means/cells", version=1)
class Cells:
    value: Any = Aggregate("*anything", gaps=True)


def passes(released: Released) -> bool:
    review(Cells(value=released), Policy(), {})
    return True


def values(found: WeightedMeans) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return found.mean.value, found.variance.value, found.effective.value


def drawn(n: int = 60, columns: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, columns)) + 0.3, rng.uniform(0.1, 1.0, size=(n, columns))


def test_formula_where_no_record_is_protected() -> None:
    d, h = drawn()
    mean, variance, effective = values(weighted_means(d, h, limits=OPEN))
    for j in range(4):
        expected = naive.excess(d[:, j].tolist(), h[:, j].tolist())
        np.testing.assert_allclose([mean[j], variance[j], effective[j]], expected, rtol=1e-12)
    plain = weighted_means(d[:, 0], limits=OPEN)
    np.testing.assert_allclose(plain.mean.value, d[:, 0].mean())
    np.testing.assert_allclose(plain.variance.value, d[:, 0].var() / 60)
    np.testing.assert_allclose(plain.effective.value, 60)


def leading(x: np.ndarray) -> np.ndarray:
    return x / 10.0 ** np.floor(np.log10(x))


@pytest.mark.parametrize("seed", range(5))
def test_what_leaves_a_strict_site_is_rounded_to_the_influence_of_a_record(seed: int) -> None:
    d, h = drawn(seed=seed)
    exact = values(weighted_means(d, h, limits=OPEN))
    mean, variance, effective = values(weighted_means(d, h, limits=STRICT))
    error = np.sqrt(exact[1])
    influence = np.maximum(error / np.sqrt(exact[2]), error / 5)
    power = 10.0 ** np.floor(np.log10(influence))
    step = power * np.select([leading(influence) <= k for k in (1, 2, 5)], [1, 2, 5], 10)
    assert (step >= influence).all()
    np.testing.assert_allclose(mean / step, np.round(mean / step), atol=1e-6)
    assert (np.abs(mean - exact[0]) <= step / 2 * (1 + 1e-9)).all()
    # At most half of the standard error of D itself: a fiftieth of its variance.
    assert (step <= 2.5 * error / 5 * (1 + 1e-9)).all()
    np.testing.assert_allclose(variance, exact[1], rtol=0.051)
    np.testing.assert_allclose(leading(variance) * 10, np.round(leading(variance) * 10), atol=1e-6)
    grid = leading(effective)
    assert all(np.isclose(g, [1, 1.5, 2, 3, 5, 7]).any() for g in grid)
    assert (effective <= exact[2] * (1 + 1e-9)).all() and (effective > exact[2] / 1.7).all()


def test_a_record_moves_the_mean_by_a_step_at_most() -> None:
    """Moved within the spread of the others: the released mean stays, or goes one step."""
    d, _ = drawn(100, 1, seed=3)
    base = weighted_means(d, limits=STRICT)
    step = 10.0 ** np.floor(np.log10(np.sqrt(base.variance.value / base.effective.value)))
    moved = []
    for r in range(100):
        other = d.copy()
        other[r] = 0.3 + (d[r] - 0.3) * -1
        moved.append(weighted_means(other, limits=STRICT).mean.value - base.mean.value)
    assert np.abs(moved).max() <= 10 * step  # a step is 1, 2, 5 or 10 times this power of ten
    assert (np.abs(moved) < 1e-12).mean() > 0.2


def test_the_square_of_one_record_does_not_show_in_the_variance() -> None:
    """It makes 80% of Q: Q is rounded up to 1, 2 or 5 times a power of ten."""
    d = np.tile([0.5, 1.5], 50)[:, None] + 0.01 * np.arange(100)[:, None]
    for outlier in (20.0, 23.0, 26.0):
        d[3] = outlier
        exact, strict = (weighted_means(d, limits=limits) for limits in (OPEN, STRICT))
        assert strict.variance.value >= exact.variance.value
        assert np.isclose(leading(strict.variance.value), [1, 2, 5]).any()
        assert passes(strict.variance)


@pytest.mark.parametrize("factor", [1e3, 1e-4, 1e-12])
def test_units_do_not_matter(factor: float) -> None:
    d, h = drawn(seed=7)
    first = values(weighted_means(d, h, limits=STRICT))
    again = values(weighted_means(factor * d, h, limits=STRICT))
    np.testing.assert_allclose(again[0], factor * first[0], rtol=1e-9)
    np.testing.assert_allclose(again[1], factor**2 * first[1], rtol=1e-9)
    np.testing.assert_array_equal(again[2], first[2])


def withheld(d: np.ndarray, h: np.ndarray | None = None, limits: Limits = STRICT) -> list[bool]:
    found = values(weighted_means(d, h, limits=limits))
    gaps = [np.isnan(part) for part in found]
    np.testing.assert_array_equal(gaps[0], gaps[1])
    np.testing.assert_array_equal(gaps[0], gaps[2])
    return gaps[0].tolist()


def test_cells_that_are_small_or_dominated_are_withheld() -> None:
    d, h = drawn(60, 6)
    d[:, 1] = np.nan
    d[:, 2] = (np.arange(60) < 9).astype(float)  # an indicator of nine records
    d[:, 3] = (np.arange(60) < 10).astype(float)  # of ten
    d[0, 4] = 1e6
    d[5, 5] = np.nan
    assert withheld(d) == [False, True, True, False, True, True]
    assert withheld(d, limits=OPEN) == [False, True, False, False, False, True]
    few = np.zeros((60, 6))
    few[:9] = 1.0
    assert withheld(drawn(60, 6)[0], few) == [True] * 6
    assert withheld(drawn(60, 6)[0], np.zeros((60, 6))) == [True] * 6
    one = np.full((60, 6), 1e-3)
    one[7] = 1.0
    assert withheld(drawn(60, 6)[0], one) == [True] * 6
    assert withheld(drawn(60, 6)[0], np.full((60, 6), 1e-300)) == [True] * 6  # squares are 0
    assert withheld(np.tile([[1e200], [-1e200]], (30, 1))) == [True]  # Q overflows
    for found in (weighted_means(d, h, limits=STRICT), weighted_means(d, few, limits=STRICT)):
        for part in (found.mean, found.variance, found.effective):
            assert passes(part)


def test_constant_losses() -> None:
    mean, variance, effective = values(weighted_means(np.full((50, 1), 2.5), limits=STRICT))
    assert (mean[0], variance[0], effective[0]) == (2.5, 0.0, 50.0)
    mean, variance, _ = values(weighted_means(np.zeros((50, 1)), limits=STRICT))
    assert (mean[0], variance[0]) == (0.0, 0.0)


def test_steps_are_1_2_or_5_times_a_power_of_ten() -> None:
    x = np.array([0.0, 0.01, 0.011, 1.0, 1.5, 2.0, 3.0, 5.0, 6.0, 70.0, np.inf])
    steps = [0.0, 0.01, 0.02, 1.0, 2.0, 2.0, 5.0, 5.0, 10.0, 100.0, 1.0]
    np.testing.assert_allclose(step_above(x), steps, rtol=1e-12)


def test_no_records() -> None:
    assert withheld(np.empty((0, 2))) == [True, True]


def test_stacked_cells_keep_their_evidence() -> None:
    d, _ = drawn()
    parts = [weighted_means(part, limits=STRICT).mean for part in (d, d[:30])]
    both = stacked(parts)
    assert both.value.shape == (2, 4)
    np.testing.assert_array_equal(both.value[1], parts[1].value)
    assert both.evidence is not None and both.evidence.records is not None
    assert both.evidence.records.tolist() == [[60] * 4, [30] * 4]
    assert passes(both)
    # Too few records in one of many cells stop the whole.
    few = weighted_means(d[:9], limits=OPEN).mean
    with pytest.raises(DisclosureError, match="fewer than 10 records"):
        passes(stacked([parts[0], few]))
    ruled = aggregate(np.concatenate([d[:20], [[1e6] * 4]]), mean=True)
    with pytest.raises(DisclosureError, match="one record"):
        passes(stacked([parts[0], ruled]))


def test_stacked_refuses_what_is_no_sum() -> None:
    for parts in ([], [count(50)], [model((), kind="summary", n_records=50)]):
        with pytest.raises(ProtocolError):
            stacked(parts)
    series = aggregate(
        np.ones((50, 2)), cells=np.zeros(50, dtype=np.int64), n_cells=1, series="again"
    )
    with pytest.raises(ProtocolError):
        stacked([series, series])
    with pytest.raises((ProtocolError, ValueError)):
        stacked([aggregate(np.ones((50, 2))), aggregate(np.ones((50, 3)))])

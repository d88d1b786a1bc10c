"""Sums of a Cox regression at one site are those of the textbook, however tied and weighted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DataError
from consilience.regression import cox, kernels, performance
from tests.reference import cox as textbook


def drawn(n: int, seed: int, values: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, 2)), rng.random(n) < 0.4])
    time = np.ceil(rng.exponential(np.exp(-x @ [0.5, -0.3, 0.4])) * values / 2)
    return x, time, (rng.random(n) < 0.6).astype(float)


def rows_of(x: np.ndarray, time: np.ndarray, event: np.ndarray, **more: Any) -> kernels.Rows:
    m = x.shape[1]
    return kernels.Rows(kernels.Design(x, np.zeros(m), np.ones(m)), event, time=time, **more)


@pytest.mark.parametrize("beside", ["", "offset", "weight", "frequency"])
@pytest.mark.parametrize("ties", cox.TIES)
def test_sums_are_those_of_the_textbook(ties: str, beside: str) -> None:
    x, time, event = drawn(40, 1)
    rng = np.random.default_rng(2)
    offset = rng.normal(size=40) if beside == "offset" else None
    weight = rng.uniform(0.5, 3, 40) if beside == "weight" else None
    weight = rng.integers(1, 4, 40).astype(float) if beside == "frequency" else weight
    rows = rows_of(x, time, event, offset=offset, weight=weight, frequency=beside == "frequency")
    times = weight.astype(int) if beside == "frequency" else np.ones(40, dtype=int)
    again = [np.repeat(one, times, axis=0) for one in (x, time, event)]
    how: dict[str, Any] = {"ties": ties, "offset": offset}
    how["weight"] = None if beside == "frequency" else weight
    null = textbook.sums(*again, np.zeros(3), **how)[0]
    for theta in (np.zeros(3), np.array([0.8, -1.5, 0.3])):
        loss, slope, curve, residual = textbook.sums(*again, theta, **how)
        piece, own = cox.summed(rows, theta, ties=ties, squares=True)
        np.testing.assert_allclose(piece.loss, loss - null, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(piece.constant, null, rtol=1e-11)
        np.testing.assert_allclose(piece.score, slope, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(piece.curvature, curve, rtol=1e-10, atol=1e-10)
        w = np.ones(len(residual)) if how["weight"] is None else weight
        meat = residual.T @ (w[:, None] ** 2 * residual)
        np.testing.assert_allclose(piece.squares, meat, rtol=1e-10, atol=1e-10)
        # what rows add, by which a site judges them, adds up to what it tells
        np.testing.assert_allclose(-own.gap @ x, slope, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(own.curvature.sum(axis=0), np.diag(curve), rtol=1e-9)
        np.testing.assert_allclose(own.lost.sum(), piece.loss, atol=1e-10)
    fit = cox.fit_alone(rows, ties)
    assert fit is not None
    np.testing.assert_allclose(fit.theta, textbook.fit(*again, **how), rtol=1e-8, atol=1e-10)


def test_no_fit_alone_where_the_likelihood_rises_without_end() -> None:
    x, time, event = drawn(40, 3)
    assert cox.fit_alone(rows_of(x, time, 0 * event), "efron") is None
    assert cox.fit_alone(rows_of(x * [1, 1, 0], time, event), "efron") is None
    rises = np.column_stack([x, event])
    assert cox.fit_alone(rows_of(rises, time, event), "efron") is None


def test_few_orders_are_told_from_one_another_and_many_are_not() -> None:
    for n, few in ((60, True), (400, False)):
        x, _, event = drawn(n, 4)
        different = rows_of(x, np.arange(1.0, n + 1), event)
        assert cox.few_orders(different) is few
    x, _, event = drawn(400, 4)
    assert cox.few_orders(rows_of(x, np.ceil(np.arange(1.0, 401) / 100), event))


def test_weights_of_frequency_make_no_more_terms_than_memory_has() -> None:
    x, time, event = np.ones((4, 1)), np.array([1.0, 2.0, 2.0, 3.0]), np.ones(4)
    rows = rows_of(x, time, event, weight=np.full(4, 1e9), frequency=True)
    with pytest.raises(DataError, match="set ties to 'breslow'"):
        cox.summed(rows, np.zeros(1))
    assert np.isfinite(cox.summed(rows, np.zeros(1), ties="breslow")[0].loss)


@pytest.mark.parametrize("beside", ["", "offset", "weight"])
def test_follow_up_ends_where_few_are_at_risk(beside: str) -> None:
    x, time, event = drawn(60, 7)
    rng = np.random.default_rng(8)
    offset = rng.normal(size=60) if beside == "offset" else None
    weight = rng.uniform(0.1, 3, 60) if beside == "weight" else None
    risk = np.ones(60) if offset is None else np.exp(offset)
    risk = risk if weight is None else risk * weight
    counts = []
    for least in (1, 5, 10, 25):
        rows = performance.until_few(rows_of(x, time, event, offset=offset, weight=weight), least)
        expected = textbook.until_few(time, event, np.zeros(60), least, risk)
        np.testing.assert_array_equal(rows.y, expected)
        ended = np.isinf(rows.time)
        np.testing.assert_array_equal(rows.time[~ended], time[~ended])
        assert not rows.y[ended].any()
        assert time[ended].min(initial=99) > time[~ended].max(initial=0)
        counts.append(int(expected.sum()))
    assert counts[0] == event.sum() and counts[0] > counts[1] > counts[2] > counts[3]


def test_people_of_tiny_risks_do_not_stand_beside_few() -> None:
    """Of 200 people four fifths have next to no risk: the others end it where they are few."""
    x, time, event = drawn(200, 9, values=4000)
    small = np.arange(200) % 5 > 0
    rows = rows_of(x, time, event, offset=np.where(small, -40.0, 0.0))
    end = np.sort(time[~small])[-10]
    np.testing.assert_array_equal(np.isinf(performance.until_few(rows, 10).time), time > end)
    flat = rows_of(x, time, event)
    assert np.isinf(performance.until_few(flat, 10).time).sum() == 9
    # beside somebody of a huge risk all others count for nothing, and it has ended at once
    first = np.where(time == time.min(), 9.0, 0.0)
    assert np.isinf(performance.until_few(rows_of(x, time, event, offset=first), 10).time).all()


def test_events_that_tell_are_all_at_no_coefficients_and_few_at_steep_ones() -> None:
    x, time, event = drawn(4000, 10, values=4000)
    rows = rows_of(x * [1.0, 100.0, 1.0], time, event)
    told = {}
    for far in (0.0, 1.0, 2.0, 4.0):
        piece = cox.summed(rows, np.array([0.0, 0.0, far]))[0]
        told[far] = performance.events_that_tell(rows, piece) / event.sum()
    assert 0.8 < told[0.0] <= 1.001 and told[0.0] > told[1.0] > told[2.0] > 0.2 > told[4.0]
    assert performance.is_steep(rows, piece, 10) and performance.is_steep(rows, piece, 1)
    # as many whatever units and weights are, and of columns that depend on one another
    turned = x @ np.array([[1.0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
    for other, theta, more in (
        (x, [0.0, 0, 1], {"weight": np.full(4000, 0.2)}),
        (turned, [0.0, 0, 1, 0], {}),
    ):
        again = rows_of(other, time, event, **more)
        piece = cox.summed(again, np.array(theta))[0]
        found = performance.events_that_tell(again, piece) / event.sum()
        assert found == pytest.approx(told[1.0], rel=1e-6)
    nothing = rows_of(np.ones((40, 2)), time[:40], event[:40])
    assert performance.events_that_tell(nothing, cox.summed(nothing, np.zeros(2))[0]) == 0

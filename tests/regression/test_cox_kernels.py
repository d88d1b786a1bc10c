"""Sums of a Cox regression at one site are those of the textbook, however tied and weighted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DataError
from consilience.regression import cox, kernels
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

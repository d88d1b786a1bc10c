from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.sampling import (
    SMALLEST_RATE,
    excess,
    expected_moves,
    next_rate,
    own_weights,
    smoothed,
)


def test_own_weights_are_those_of_the_smoothed_sums() -> None:
    rng = np.random.default_rng(0)
    amounts = rng.normal(size=6)
    totals, own = None, None
    for rate in (0.5, 0.5, 0.3, 1.0, 0.2):
        labels = rng.integers(0, 3, size=6)
        labels[2] = -1
        new = np.zeros(3)
        np.add.at(new, labels[labels >= 0], amounts[labels >= 0])
        first = totals is None
        totals = smoothed(totals, new, rate)
        decay, weight = (0.0, 1.0) if first else (1 - rate, rate)
        own = own_weights(own, labels, decay, weight, n_classes=3)
        np.testing.assert_allclose(totals, amounts @ own, atol=1e-12)


def test_weights_refuse_labels_that_do_not_fit() -> None:
    with pytest.raises(DataError):
        own_weights(None, np.array([0, 1]), 0.0, 1.0)
    with pytest.raises(DataError):
        own_weights(np.zeros((2, 2)), np.array([0, 2]), 0.5, 0.5)
    with pytest.raises(DataError):
        own_weights(np.zeros((3, 2)), np.array([0, 1]), 0.5, 0.5)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, np.nan])
def test_rates_outside_their_range(rate: float) -> None:
    with pytest.raises(ParameterError, match="learning_rate"):
        smoothed(np.zeros(2), np.ones(2), rate)


def test_chance_moves_are_no_excess() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(4), size=4000)
    first, second = ((rng.random((4000, 1)) > p.cumsum(axis=1)).sum(axis=1) for _ in range(2))
    moved = float((first != second).sum())
    # about 60% move; the standard error of the share is 0.008
    assert excess(moved, expected_moves(p), 4000) < 0.025
    assert excess(moved, expected_moves(np.eye(4)[first]), 4000) > 0.5


def test_the_rate_is_lowered_where_labels_jump() -> None:
    start = [0.9, 0.8, 0.8, 0.7]
    assert next_rate([*start, 0.8], 1.0) == (1.0, False)
    assert next_rate([*start, 0.8, 0.6], 1.0) == (0.5, True)
    assert next_rate([*start, 0.4, 0.3, 0.3], 1.0) == (1.0, False)
    assert next_rate([0.9, 0.9, 0.9, 0.9, 0.05, 0.02, 0.02, 0.003], 1.0) == (1.0, False)
    assert next_rate([0.5] * 8, SMALLEST_RATE) == (SMALLEST_RATE, True)
    assert next_rate([0.5] * 8, 0.01) == (0.01, True)


def test_a_few_labels_that_jump_for_ever_are_seen() -> None:
    assert next_rate([0.3, 0.1, *[0.006] * 5], 1.0) == (1.0, False)
    assert next_rate([0.3, 0.1, *[0.006] * 6], 1.0) == (0.5, True)


def test_while_the_noise_falls_labels_may_move() -> None:
    moved = [0.05] * 8
    assert next_rate(moved, 0.2, list(np.geomspace(2.0, 1.0, 8))) == (0.2, False)
    assert next_rate(moved, 0.2, [1.0] * 8) == (0.1, True)

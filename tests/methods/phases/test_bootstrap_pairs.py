from __future__ import annotations

import numpy as np
import pytest

from consilience.methods.phases.bootstrap_pairs import halves, permuted, pool, released_agreement


@pytest.mark.parametrize("n", [0, 1, 2, 7, 50])
def test_halves_are_disjoint_and_complete(n: int) -> None:
    a, b = halves(np.random.default_rng(n), n)
    assert sorted([*a, *b]) == list(range(n))
    assert abs(len(a) - len(b)) <= 1
    assert list(a) == sorted(a)


def test_permuting_keeps_the_margins_and_breaks_what_columns_share() -> None:
    x = np.repeat(np.arange(500.0)[:, None], 2, axis=1)
    y = permuted(np.random.default_rng(0), x)
    np.testing.assert_array_equal(np.sort(y, axis=0), x)
    # Correlation of independent permutations: standard error 1/sqrt(499) = 0.045.
    assert abs(np.corrcoef(y.T)[0, 1]) < 0.18


@pytest.mark.parametrize(
    ("n", "step"),
    [(1000, 0.01), (100, 0.01), (99, 0.02), (20, 0.05), (10, 0.1), (2, 0.5), (1, 1.0)],
)
def test_agreement_is_rounded_to_what_one_record_moves(n: int, step: float) -> None:
    made = released_agreement(0.123456, n)
    assert made.evidence is not None
    assert made.evidence.step == step
    assert made.value == pytest.approx(round(0.123456 / step) * step)


def test_pooling_weighs_sites_by_size() -> None:
    observed = np.array([[1.0, 0.0], [0.5, 0.5]])
    null = np.array([[0.0, 0.2], [0.1, 0.1]])
    pooled = pool(observed, null, np.array([30.0, 10.0]))
    assert (pooled.mean, pooled.low, pooled.high) == pytest.approx((0.625, 0.5, 0.75))
    assert (pooled.null_mean, pooled.null_low, pooled.null_high) == pytest.approx(
        (0.075, 0.05, 0.1)
    )
    assert pooled.n_pairs == 2

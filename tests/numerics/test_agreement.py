from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import pair_confusion_matrix

from consilience.exceptions import DataError
from consilience.numerics import two_way_tables as ag
from consilience.numerics.random import stream
from tests.reference.ensemble_naive import adjusted_rand, prediction_strength
from tests.reference.latent_class import scale_reduction


@pytest.mark.parametrize("seed", range(20))
def test_equals_scikit_learn_and_the_definition(seed):
    rng = stream(seed, "ari")
    n = int(rng.integers(2, 60))
    a = rng.integers(0, rng.integers(1, 6), size=n)
    b = np.where(rng.random(n) < 0.5, a, rng.integers(0, 4, size=n))
    value = ag.adjusted_rand_index(a, b)
    assert value == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    assert value == pytest.approx(adjusted_rand(a.tolist(), b.tolist()), abs=1e-12)
    ((neither, second), (first, both)) = pair_confusion_matrix(a, b) // 2
    expected = ag.PairCounts(both, first, second, neither)
    assert ag.pair_counts(ag.contingency_table(a, b)) == expected


@pytest.mark.parametrize("seed", range(8))
def test_prediction_strength_equals_the_definition(seed):
    rng = stream(seed, "strength")
    n = int(rng.integers(8, 60))
    a, b = rng.integers(0, 3, size=n), rng.integers(0, rng.integers(1, 4), size=n)
    wanted = prediction_strength(a.tolist(), b.tolist())
    assert ag.prediction_strength(ag.contingency_table(a, b)) == pytest.approx(wanted, abs=1e-13)


def test_prediction_strength_is_that_of_the_class_that_falls_apart():
    # The second class of one partition is cut in halves by the other.
    assert ag.prediction_strength([[50, 0, 0], [0, 10, 10]]) == pytest.approx((1 + 90 / 190) / 2)
    assert ag.prediction_strength(np.diag([5, 5, 1])) == 1, "a single row has no pair"
    assert np.isnan(ag.prediction_strength(np.eye(3))), "nor have others"
    assert np.isnan(ag.prediction_strength(np.empty((0, 0))))


def test_large_counts_stay_exact():
    table = np.array([[10**9, 1], [2, 10**9]])
    assert 0.99 < ag.adjusted_rand_from_table(table) < 1.0
    assert ag.adjusted_rand_index([0, 1], ["a", "b"], weights=[10**9, 10**9]) == 1.0


def test_lengths_and_tables_are_checked():
    with pytest.raises(DataError):
        ag.adjusted_rand_index([0, 1], [0])
    with pytest.raises(DataError):
        ag.pair_counts(np.array([[-1]]))


def test_scale_reduction_is_that_of_the_textbook() -> None:
    rng = stream(0, "chains")
    for n in (4, 7, 20):
        chains = [rng.normal(c / 2, 1.0 + c, size=n) for c in range(3)]
        assert ag.scale_reduction(chains) == pytest.approx(scale_reduction(chains), rel=1e-12)


def test_scale_reduction_tells_chains_apart() -> None:
    rng = stream(1, "chains")
    same = [rng.normal(size=(40, 6)) for _ in range(4)]
    # of 8 halves with 20 draws of 6 components: standard deviation about .01
    assert abs(ag.scale_reduction(same) - 1) < 0.05
    assert ag.scale_reduction([same[0], same[1] + 3]) > 1.5
    drifting = [chain + np.linspace(0, 6, 40)[:, None] for chain in same]
    assert ag.scale_reduction(drifting) > 1.5
    # what only one chain has is 0 in the others
    assert ag.scale_reduction([same[0], same[1][:, :3]]) == pytest.approx(
        ag.scale_reduction([same[0], same[1] * [1, 1, 1, 0, 0, 0]])
    )


def test_scale_reduction_where_nothing_varies_or_tells() -> None:
    still, other = np.ones((8, 1)), np.zeros((8, 1))
    assert ag.scale_reduction([still, still]) == 1
    assert ag.scale_reduction([still, other]) == np.inf
    assert np.isnan(ag.scale_reduction([still])) and np.isnan(ag.scale_reduction([still[:3]] * 2))

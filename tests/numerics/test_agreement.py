from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import pair_confusion_matrix

from consilience.exceptions import DataError
from consilience.numerics import agreement as ag
from consilience.numerics.random import stream
from tests.reference.ensemble_naive import adjusted_rand


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


def test_large_counts_stay_exact():
    table = np.array([[10**9, 1], [2, 10**9]])
    assert 0.99 < ag.adjusted_rand_from_table(table) < 1.0
    assert ag.adjusted_rand_index([0, 1], ["a", "b"], weights=[10**9, 10**9]) == 1.0


def test_lengths_and_tables_are_checked():
    with pytest.raises(DataError):
        ag.adjusted_rand_index([0, 1], [0])
    with pytest.raises(DataError):
        ag.pair_counts(np.array([[-1]]))

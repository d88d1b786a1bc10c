from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import ParameterError
from consilience.numerics.random import stream
from replications.ensemble_clustering.simulate import simulate_gaussian_sites


def test_classes_have_the_stated_moments():
    sim = simulate_gaussian_sites(3, rng=stream(0), variance=0.3, sizes=(20000, 20000))
    assert set(np.unique(sim.means)) == {-1.0, 1.0}
    for rows, truth in zip(sim.tables, sim.classes, strict=True):
        # standard error of a share .003, of a variance .001 and of a mean .009: five of each
        np.testing.assert_allclose(np.bincount(truth) / 20000, 0.2, atol=0.015)
        noise = rows - sim.means[truth]
        assert noise.var() == pytest.approx(0.3, abs=0.005)
        np.testing.assert_allclose(rows[truth == 2].mean(axis=0), sim.means[2], atol=0.045)


def test_imbalanced_sites_differ():
    sim = simulate_gaussian_sites(20, rng=stream(1), design="imbalanced")
    shares = np.array([np.bincount(c, minlength=5) / c.size for c in sim.classes])
    # Dirichlet(1) shares of 5 classes have a standard deviation of .163; over 100 shares the
    # standard error is about .015. Equal proportions would give about .02.
    assert 0.1 < shares.std() < 0.23
    assert all(50 <= c.size <= 500 for c in sim.classes)


def test_outlying_rows():
    sim = simulate_gaussian_sites(10, rng=stream(2), design="outliers", variance=0.05)
    outlying = [(c == -1).sum() for c in sim.classes]
    assert sum(n > 0 for n in outlying) == 2
    for rows, classes in zip(sim.tables, sim.classes, strict=True):
        flagged = classes == -1
        if flagged.any():
            assert flagged.sum() == round(0.2 * (~flagged).sum())
            assert np.abs(np.abs(rows[flagged].mean(axis=0)) - 5).max() < 0.4


def test_means_are_distinct_and_draws_repeat():
    for seed in range(20):
        sim = simulate_gaussian_sites(1, rng=stream(seed), n_classes=4, n_features=2)
        assert len(np.unique(sim.means, axis=0)) == 4
    a, b = (simulate_gaussian_sites(2, rng=stream(3)).tables[1] for _ in range(2))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    [{"design": "x"}, {"variance": 0.0}, {"sizes": (9, 3)}, {"n_classes": 5, "n_features": 2}],
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(ParameterError):
        simulate_gaussian_sites(2, rng=stream(0), **options)

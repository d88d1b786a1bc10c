"""Designs with many features: precisions, means, transforms, the least possible error."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, spearmanr

from consilience.datasets.simulate_wide import (
    _transformed,
    community_classes,
    simulate_separate_groups,
    sparse_precision_classes,
)
from consilience.exceptions import ParameterError
from consilience.numerics.random import stream


@pytest.mark.parametrize("p", [8, 20, 40])
def test_block_design(p):
    made = sparse_precision_classes(p, rng=stream(p))
    precision = np.linalg.inv(made.covariances)
    np.testing.assert_allclose(np.diagonal(precision, axis1=1, axis2=2), 1.0)
    np.testing.assert_allclose(precision[0], np.eye(p), atol=1e-12)
    np.testing.assert_allclose(precision[1, :4, :4], 0.8 + 0.2 * np.eye(4), atol=1e-12)
    assert np.abs(precision[1, 4:, :4]).max() < 1e-12
    np.testing.assert_allclose(
        made.means @ made.means.T, np.diag((made.means**2).sum(axis=1)), atol=1e-12
    )
    np.testing.assert_allclose(
        np.linalg.norm(made.means, axis=1), [1.0, np.trace(made.covariances[1]) / p]
    )
    np.testing.assert_allclose(
        np.linalg.norm(sparse_precision_classes(p, rng=stream(0), norm=3.0).means, axis=1), 3.0
    )


@pytest.mark.parametrize("structure", ["full", "decreasing", "block"])
def test_community_designs(structure):
    made = community_classes(structure, rng=stream(0), n_blocks=2)
    sigma = made.covariances[0]
    np.testing.assert_array_equal(np.diag(sigma), 1.0)
    expected = {"full": 0.5, "decreasing": 0.5**9, "block": 0.0}[structure]
    assert sigma[3, 12] == pytest.approx(expected)
    assert sigma[3, 4] == 0.5
    np.testing.assert_allclose(made.means @ made.means.T, 2.25 * np.eye(3), atol=1e-12)
    x, y = made.draw([40_000, 0, 20_000], rng=stream(1))
    assert np.bincount(y, minlength=3).tolist() == [40_000, 0, 20_000]
    # standard errors .005 to .007 of each of 256 covariances
    np.testing.assert_allclose(np.cov(x[y == 0].T), sigma, atol=0.03)
    np.testing.assert_allclose(x[y == 2].mean(axis=0), made.means[2], atol=0.03)


def test_transforms_keep_mean_variance_and_ranks():
    through = ("none", "power", "cdf")
    made = community_classes("decreasing", rng=stream(2), transforms=through)
    plain = community_classes("decreasing", rng=stream(2))
    x, y = made.draw(100_000, rng=stream(3))
    z, _ = plain.draw(100_000, rng=stream(3))
    for k in range(3):
        rows = y == k
        # 100,000 rows: standard error .003 of a mean; of a variance .005, after the power
        # (whose fourth moment is 10395 / 225) .02
        np.testing.assert_allclose(x[rows].mean(axis=0), made.means[k], atol=0.014)
        np.testing.assert_allclose(x[rows].var(axis=0), 1.0, atol=0.11 if k == 1 else 0.025)
        ranks = spearmanr(np.column_stack([x[rows, 0], z[rows, 0]])).statistic
        assert ranks == pytest.approx(1.0, abs=1e-8)  # ties by rounding
    assert np.abs(x[y == 0] - z[y == 0]).max() == 0.0
    assert np.abs(x[y == 2] - z[y == 2]).max() > 0.5


def test_scores_are_log_densities():
    made = community_classes("block", rng=stream(4), n_features=4, n_classes=2, n_blocks=2)
    x, _ = made.draw(50, rng=stream(5))
    expected = np.column_stack(
        [multivariate_normal(made.means[k], made.covariances[k]).logpdf(x) for k in (0, 1)]
    )
    found = made.scores(x)
    np.testing.assert_allclose(np.diff(found, axis=1), np.diff(expected, axis=1), atol=1e-10)


@pytest.mark.parametrize("transform", ["power", "cdf"])
def test_scores_of_transformed_rows_are_log_densities(transform):
    """Density of the normal row behind, over the slope of the transform by differences."""
    made = community_classes(
        "full", rng=stream(6), n_features=1, n_classes=1, norm=0.7, transforms=(transform,)
    )
    mean = made.means[0]
    z = mean + np.linspace(-1.2, 1.2, 100)[:, None]  # not at the mean: the power has a pole there

    def through(rows):
        return _transformed(rows, transform, mean, np.ones(1))

    slope = (through(z + 1e-5) - through(z - 1e-5))[:, 0] / 2e-5
    expected = -0.5 * (z - mean)[:, 0] ** 2 - np.log(slope)
    np.testing.assert_allclose(made.scores(through(z))[:, 0], expected, atol=1e-5)


def test_rows_at_and_beyond_the_ends_of_the_cdf_transform():
    made = community_classes("full", rng=stream(6), n_features=3, transforms=("cdf",) * 3)
    x, _ = made.draw(5000, rng=stream(10))  # some end where the cdf is 1 to the last digit
    assert np.isfinite(made.scores(x).max(axis=1)).all()
    assert (made.scores([[50.0, 0.0, 0.0]]) == -np.inf).all()


def test_nothing_beats_the_best_possible_class():
    """Two normal classes with one covariance: the error is known."""
    made = community_classes("full", rng=stream(7), n_features=6, n_classes=2)
    x, y = made.draw(100_000, rng=stream(8))
    gap = made.means[1] - made.means[0]
    distance = np.sqrt(gap @ np.linalg.solve(made.covariances[0], gap))
    from scipy.stats import norm

    # 200,000 rows: standard error .001
    error = (made.predict(x) != y).mean()
    assert error == pytest.approx(norm.cdf(-distance / 2), abs=0.004)


def test_separate_groups():
    x, y = simulate_separate_groups(20_000, 3, rng=stream(9), group=4)
    assert x.shape == (40_000, 12) and np.bincount(y).tolist() == [20_000, 20_000]
    inside = np.kron(np.eye(3), np.ones((4, 4)))
    # 20,000 rows: standard error .007
    np.testing.assert_allclose(
        np.corrcoef(x[y == 1].T), 0.7 * inside + 0.3 * np.eye(12), atol=0.035
    )


def test_same_stream_same_rows():
    drawn = [
        sparse_precision_classes(8, rng=(rng := stream(seed))).draw(5, rng=rng)[0]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.allclose(drawn[0], drawn[2])


def test_settings_out_of_range():
    rng = stream(0)
    with pytest.raises(ParameterError, match="block"):
        sparse_precision_classes(3, rng=rng)
    for wrong in ((0.0, 1.0), (-0.4, 0.0)):
        with pytest.raises(ParameterError, match="correlations"):
            sparse_precision_classes(8, rng=rng, correlations=wrong)
    with pytest.raises(ParameterError, match="structure"):
        community_classes("ring", rng=rng)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_blocks"):
        community_classes("block", rng=rng, n_blocks=5)
    with pytest.raises(ParameterError, match="transforms"):
        community_classes("full", rng=rng, transforms=("power",))
    with pytest.raises(ParameterError, match="correlation"):
        community_classes("full", rng=rng, correlation=1.0)
    with pytest.raises(ParameterError, match="n_classes"):
        community_classes("full", rng=rng, n_classes=17)
    with pytest.raises(ParameterError, match="n_per_class"):
        community_classes("full", rng=rng).draw(-1, rng=rng)
    with pytest.raises(ParameterError, match="n_groups"):
        simulate_separate_groups(5, 0, rng=rng)

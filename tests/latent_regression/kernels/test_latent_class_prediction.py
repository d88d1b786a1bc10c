"""Predictions under latent classes: weights, moments and intervals of mixtures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels import prediction
from consilience.latent_regression.kernels.latent_class import Totals, classes_of
from consilience.numerics.random import stream
from tests.reference import latent_class_model as textbook


def mixture_quantile(weights, means, sds, q):
    """A quantile as one end of an interval; upper ones are lower ones of the mirrored mixture."""
    w, m, s = prediction._checked(weights, means, sds)
    return prediction._lower(w, m, s, q) if q <= 0.5 else -prediction._lower(w, -m, s, 1 - q)


def some_classes(seed=0, k=3, f=4, sigma2=0.3):
    rng = stream(seed)
    x = rng.standard_normal((k, 9, f))
    y = rng.standard_normal((k, 9))
    totals = Totals(
        np.einsum("knf,kng->kfg", x, x),
        np.einsum("knf,kn->kf", x, y),
        (y**2).sum(axis=1),
        np.full(k, 9.0),
        np.full(k, 3.0),
    )
    return classes_of(totals, sigma2, 1.7), x, y


# --------------------------------------------------------------------------- one class


@pytest.mark.parametrize("sigma2", [0.01, 0.3, 1.0, 9.0])
def test_prediction_is_the_density_of_one_more_event(sigma2):
    classes, x, y = some_classes(sigma2=sigma2)
    rows = stream(1).standard_normal((6, 4))
    mean, variance = prediction.class_predictions(rows, classes)
    for i, row in enumerate(rows):
        for k in range(3):
            more = np.vstack([x[k], row])
            for at in (-1.0, 0.4):
                both = textbook.log_marginal_dense(more, np.append(y[k], at), sigma2, 1.7)
                before = textbook.log_marginal_dense(x[k], y[k], sigma2, 1.7)
                found = norm.logpdf(at, mean[i, k], np.sqrt(variance[i, k]))
                assert found == pytest.approx(both - before, rel=1e-8, abs=1e-9)
    assert (variance > sigma2).all()


def test_prediction_does_not_depend_on_the_other_rows():
    classes, *_ = some_classes(2, k=5, f=7)
    rows = stream(3).standard_normal((50, 7))
    together = prediction.class_predictions(rows, classes)
    for i in (0, 17, 49):
        alone = prediction.class_predictions(rows[i : i + 1], classes)
        np.testing.assert_array_equal(together[0][i], alone[0][0])
        np.testing.assert_array_equal(together[1][i], alone[1][0])
    mean, variance = prediction.class_predictions(rows[:0], classes)
    assert mean.shape == variance.shape == (0, 5)
    with pytest.raises(DataError):
        prediction.class_predictions(rows[:, :6], classes)


# --------------------------------------------------------------------------- weights


def test_weights_of_the_unseen():
    counts = np.array([[3, 0, 1], [0, 0, 0]])
    base = np.array([0.5, 0.3, 0.2])
    found = prediction.unseen_weights(counts, base, 2.0)
    np.testing.assert_allclose(found[0], (counts[0] + 2.0 * base) / 6.0, rtol=1e-15)
    np.testing.assert_allclose(found[1], base, rtol=1e-15)
    # the next ball of the urn
    labels = [0, 0, 0, 2]
    for k in range(3):
        urn = textbook.log_labels([*labels, k], 2.0 * base) - textbook.log_labels(labels, 2 * base)
        assert np.log(found[0, k]) == pytest.approx(urn, abs=1e-12)
    np.testing.assert_allclose(prediction.unseen_weights(counts[0], base, 2.0), found[0])
    with pytest.raises(ParameterError):
        prediction.unseen_weights(counts, base, 0.0)


def test_weights_after_events():
    prior = np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    likelihood = np.array([[-1.0, -2.0, -0.5], [-9000.0, -9001.0, -9900.0]])
    found = prediction.posterior_weights(prior, likelihood)
    plain = np.exp(prior[0] + likelihood[0])
    np.testing.assert_allclose(found[0], plain / plain.sum(), rtol=1e-13)
    np.testing.assert_allclose(found[1, :2], [1 / (1 + np.exp(-1)), 1 / (1 + np.e)], rtol=1e-12)
    impossible = np.array([[-np.inf, 0.0, -np.inf]])
    np.testing.assert_array_equal(
        prediction.posterior_weights(impossible, likelihood[:1]), [[0, 1, 0]]
    )
    for wrong in (np.full((1, 3), -np.inf), np.array([[np.nan, 0.0, 0.0]])):
        with pytest.raises(DataError):
            prediction.posterior_weights(wrong, likelihood[:1])


# --------------------------------------------------------------------------- mixtures


def mixtures(seed, n=60, k=4, spread=1.0):
    rng = stream(seed, "mixtures")
    weights = rng.dirichlet(np.full(k, 0.5), n)
    return weights, 3 * rng.standard_normal((n, k)), np.exp(spread * rng.standard_normal((n, k)))


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.5, 0.77, 0.95, 1 - 1e-6])
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_quantiles_are_the_textbooks(q, spread):
    weights, means, sds = mixtures(1, spread=spread)
    found = mixture_quantile(weights, means, sds, q)
    expected = np.array([textbook.quantile(*row, q) for row in zip(weights, means, sds)])
    tail = np.minimum(norm.cdf(found[:, None], means, sds), norm.sf(found[:, None], means, sds))
    density = (weights * norm.pdf(found[:, None], means, sds)).sum(axis=1)
    # where the cdf is flat its own rounding moves the root; elsewhere 1e-10 of the smallest sd
    rounding = 4e-16 * np.maximum(tail.max(axis=1), 1e-16) / density
    room = 1e-10 * np.minimum(sds.min(axis=1), 1.0) + 1e-14 * np.abs(expected) + 8 * rounding
    assert (np.abs(found - expected) <= room).all()


@given(st.integers(0, 100_000), st.floats(0.5, 0.999))
@settings(max_examples=60, deadline=None)
def test_interval_holds_its_level(seed, level):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 9))
    weights = rng.dirichlet(np.full(k, 10.0 ** rng.uniform(-2, 1)), 5)
    means = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((5, k))
    sds = 10.0 ** rng.uniform(-4, 4, (5, k))
    low, high = prediction.mixture_interval(weights, means, sds**2, level)
    assert (low <= high).all()
    scaled = weights / weights.sum(axis=1, keepdims=True)
    below = (scaled * norm.cdf(low[:, None], means, sds)).sum(axis=1)
    above = (scaled * norm.sf(high[:, None], means, sds)).sum(axis=1)
    # a step of the cdf of 1 in 1e-11 of the smallest sd, or in the spacing of numbers
    step = 1e-10 + 1e-15 * np.abs(means).max() / sds.min()
    np.testing.assert_allclose(below, (1 - level) / 2, atol=step)
    np.testing.assert_allclose(above, (1 - level) / 2, atol=step)


def test_one_class_alone():
    for weight in ([1.0, 0.0, 0.0], [1.0, 1e-320, 0.0]):
        weights = np.array([weight])
        means, sds = np.array([[2.0, -1e9, np.nan]]), np.array([[3.0, 1e-9, np.nan]])
        for q in (1e-9, 0.05, 0.5, 0.9):
            found = mixture_quantile(weights, means, sds, q)
            assert found[0] == pytest.approx(norm.ppf(q, 2.0, 3.0), rel=1e-13, abs=1e-9)


def test_spreads_of_any_size():
    part = 1.0 - 1e-9
    cases = [
        ([0.5, 0.5], [0.0, 1.0], [1e-12, 1e-12], 0.15, norm.ppf(0.3) * 1e-12),
        ([0.5, 0.5], [0.0, 0.0], [1e-150, 1e150], 0.8, norm.ppf(0.6) * 1e150),
        ([0.5, 0.5], [0.0, 0.0], [1e-150, 1e150], 0.4, norm.ppf(0.3) * 1e-150),
        ([0.3, 0.7], [-1e8, 1e8], [1.0, 1.0], 0.3 * 0.2, -1e8 + norm.ppf(0.2)),
        ([0.3, 0.7], [-1e8, 1e8], [1.0, 1.0], 0.3 + 0.7 * 0.2, 1e8 + norm.ppf(0.2)),
        ([1e-9, part], [1e6, 0.0], [1e-3, 1.0], 0.05, norm.ppf(0.05 / part)),
        ([1e-9, part], [-1e6, 0.0], [1e6, 1.0], 0.5, norm.ppf((0.5 - 8.41345e-10) / part)),
        ([0.4, 0.6], [1.0, 5.0], [0.0, 0.0], 0.2, 1.0),
        ([0.4, 0.6], [1.0, 5.0], [0.0, 0.0], 0.7, 5.0),
    ]
    for weights, means, sds, q, expected in cases:
        rows = [np.array([row]) for row in (weights, means, sds)]
        found = mixture_quantile(*rows, q)[0]
        assert found == pytest.approx(expected, rel=2e-15, abs=1e-10 * min(sds))


def test_between_two_classes_any_point_splits_the_mass():
    weights, means, sds = np.array([[0.25, 0.75]]), np.array([[0.0, 1e3]]), np.array([[1.0, 1.0]])
    found = mixture_quantile(weights, means, sds, 0.25)
    assert 8.0 < found[0] < 1e3 - 8.0


def test_a_single_class_does_not_cover_a_mixture():
    # the interval of the most probable class as a negative control
    rng = stream(5)
    weights = rng.dirichlet(np.ones(4), 4000)
    means, sds = 2 * rng.standard_normal((4000, 4)), np.full((4000, 4), 0.5)
    label = (rng.random((4000, 1)) > weights.cumsum(axis=1)).sum(axis=1)
    y = means[np.arange(4000), label] + 0.5 * rng.standard_normal(4000)
    low, high = prediction.mixture_interval(weights, means, sds**2, 0.9)
    inside = np.mean((low <= y) & (y <= high))
    assert inside == pytest.approx(0.9, abs=0.019)  # standard error .0047
    most = means[np.arange(4000), weights.argmax(axis=1)]
    assert np.mean(np.abs(y - most) <= norm.ppf(0.95) * 0.5) < 0.75


@pytest.mark.parametrize(
    ("weights", "means", "sds"),
    [
        ([[0.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]),
        ([[-0.1, 1.1]], [[0.0, 1.0]], [[1.0, 1.0]]),
        ([[0.5, 0.5]], [[np.nan, 1.0]], [[1.0, 1.0]]),
        ([[0.5, 0.5]], [[0.0, 1.0]], [[1.0, -1.0]]),
        ([[0.5, 0.5]], [[0.0, 1.0]], [[1.0]]),
        ([0.5, 0.5], [0.0, 1.0], [1.0, 1.0]),
    ],
)
def test_mixtures_that_are_none(weights, means, sds):
    with pytest.raises(DataError):
        mixture_quantile(weights, means, sds, 0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.2, np.nan])
def test_levels(level):
    one = np.ones((1, 1))
    with pytest.raises(ParameterError):
        prediction.mixture_interval(one, one, one, level)

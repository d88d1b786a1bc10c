"""Designs for reference averaging: signal, sites that differ, words."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import ParameterError
from consilience.numerics.random import stream
from replications.reference_averaging.simulate import (
    simulate_curved_rows,
    simulate_split_rows,
    simulate_texts,
    simulate_unlike_sites,
    split_evenly,
)


def test_signal_of_the_source():
    data = simulate_split_rows(20_000, 60, 10, rng=stream(0))
    assert [x.shape for x, _ in data.tables] == [(2000, 60)] * 10
    assert (data.coef != 0).sum() == 12
    np.testing.assert_allclose(data.coef[:12], np.sqrt(2 * np.log(60) / 2000))
    assert data.noise == pytest.approx(2 * (data.coef**2).sum())
    x, y = data.pooled
    # 20,000 rows: standard error of a covariance .007, of the residual variance 1%
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(60), atol=0.035)
    assert (y - x @ data.coef).var() == pytest.approx(data.noise, rel=0.05)


def test_exact_r2_is_that_of_fresh_rows():
    data = simulate_split_rows(200_000, 20, 4000, rng=stream(1))
    x, y = data.pooled
    for wrong, intercept in ((0.0, 0.0), (0.02, 0.03)):
        coef = data.coef + wrong
        lost = y - intercept - x @ coef
        # error of the ratio of two variances at 200,000 rows: .003
        assert data.r2(coef, intercept) == pytest.approx(1 - (lost**2).mean() / y.var(), abs=0.012)
    assert data.r2(data.coef) == pytest.approx(1 / 3)  # noise is twice the signal
    assert data.r2(np.zeros(20)) == pytest.approx(0.0)


def test_logistic_response_has_noise_in_its_log_odds():
    data = simulate_split_rows(200_000, 10, 4000, rng=stream(2), response="logistic")
    x, y = data.pooled
    assert set(np.unique(y)) == {0.0, 1.0}
    eta = x @ data.coef  # standard deviation .43
    for low, high in ((-9, -0.3), (-0.3, 0.3), (0.3, 9)):
        chosen = (eta > low) & (eta < high)
        noise = np.sqrt(data.noise) * stream(3).standard_normal(chosen.sum())
        expected = (1 / (1 + np.exp(-(eta[chosen] + noise)))).mean()
        # at least 45,000 rows: standard error .0025
        assert y[chosen].mean() == pytest.approx(expected, abs=0.01)


def test_same_stream_same_rows():
    first, again, other = (
        simulate_split_rows(100, 5, 2, rng=stream(seed)).pooled for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_unlike_sites_differ_in_size_place_and_effect():
    data = simulate_unlike_sites(40, 3, rng=stream(6), sizes=(200, 400), heterogeneity=0.5)
    assert data.sizes.min() >= 200
    assert data.sizes.max() <= 400
    assert len(set(data.sizes)) > 20
    means = np.array([x.mean(axis=0) for x, _ in data.tables])
    fits = np.array(
        [np.linalg.lstsq(x - x.mean(axis=0), y - y.mean(), rcond=None)[0] for x, y in data.tables]
    )
    # standard deviations over 120 cells: relative error .065
    assert means.std() == pytest.approx(1.0, rel=0.25)
    assert (fits - data.coef).std() == pytest.approx(0.5, rel=0.25)
    alike = simulate_unlike_sites(40, 3, rng=stream(6), sizes=(200, 400), shift=0, heterogeneity=0)
    assert np.array([x.mean(axis=0) for x, _ in alike.tables]).std() < 0.1


def test_collinear_columns_share_one_factor():
    data = simulate_unlike_sites(1, 4, rng=stream(7), sizes=(20_000, 20_000), collinearity=0.8)
    found = np.corrcoef(data.tables[0][0].T)[np.triu_indices(4, 1)]
    np.testing.assert_allclose(found, 0.8, atol=0.015)  # standard error .0025


def test_curved_rows_are_those_of_the_formula():
    x, y = simulate_curved_rows(50_000, 7, rng=stream(8), noise=4.0)
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    rest = y - (mean + 10 * x[:, 3] + 5 * x[:, 4])
    assert rest.var() == pytest.approx(4.0, rel=0.03)  # standard error .6%
    assert abs(rest.mean()) < 0.05
    assert x.min() >= 0
    assert x.max() <= 1


def test_texts_are_sparse_rows_of_length_one():
    data = simulate_texts(4000, 3000, rng=stream(9), noise_ratio=1.0)
    assert data.x.shape == (4000, 3000)
    assert data.x.nnz < 0.02 * 4000 * 3000
    np.testing.assert_allclose(np.asarray(data.x.multiply(data.x).sum(axis=1)).ravel(), 1.0)
    documents = np.bincount(data.x.indices, minlength=3000)
    assert documents[:30].mean() > 20 * documents[-1000:].mean()  # one over the rank
    eta = data.x @ data.coef
    assert np.sum(data.coef != 0) == pytest.approx(60, abs=5 * np.sqrt(60))
    assert (data.y - eta).var() == pytest.approx(eta.var(), rel=0.12)  # standard error 2.2%
    assert data.noise == pytest.approx(eta.var())


def test_topics_are_directions_in_which_documents_vary():
    top = []
    for topics in (1, 10):
        x = simulate_texts(1500, 2000, rng=stream(10), n_topics=topics, length=200).x.toarray()
        x -= x.mean(axis=0)
        values = np.linalg.eigvalsh(x @ x.T)
        top.append(values[-9:].sum() / values.sum())
    assert top[1] > 2 * top[0]


@pytest.mark.parametrize(("n_rows", "n_sites"), [(10, 3), (7, 7), (100, 1), (23, 5)])
def test_even_parts_cover_all_rows(n_rows, n_sites):
    parts = split_evenly(n_rows, n_sites)
    sizes = [part.stop - part.start for part in parts]
    assert np.concatenate([np.arange(n_rows)[part] for part in parts]).tolist() == list(
        range(n_rows)
    )
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: simulate_split_rows(10, 5, 3, rng=stream(0)),
        lambda: simulate_split_rows(10, 4, 2, rng=stream(0)),
        lambda: simulate_split_rows(10, 5, 0, rng=stream(0)),
        lambda: simulate_split_rows(10, 5, 2, rng=stream(0), response="poisson"),
        lambda: simulate_unlike_sites(0, 2, rng=stream(0)),
        lambda: simulate_unlike_sites(2, 0, rng=stream(0)),
        lambda: simulate_unlike_sites(2, 2, rng=stream(0), sizes=(5, 4)),
        lambda: simulate_unlike_sites(2, 2, rng=stream(0), collinearity=1.0),
        lambda: simulate_unlike_sites(2, 2, rng=stream(0), heterogeneity=-1.0),
        lambda: simulate_curved_rows(5, 4, rng=stream(0)),
        lambda: simulate_texts(0, 5, rng=stream(0)),
        lambda: simulate_texts(5, 5, rng=stream(0), share_of_words=0.0),
        lambda: simulate_texts(5, 5, rng=stream(0), length=0.0),
        lambda: split_evenly(3, 4),
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ParameterError):
        wrong()

"""Means given what is observed: row by row from the textbook."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.completion.kernels import conditional_normal
from consilience.completion.kernels.conditional_normal import (
    factors_given_observed,
    mixture_given_observed,
    normal_given_observed,
)
from tests.reference import observed_kmeans as textbook


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows with every number of gaps, and all kinds of fills in them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5))
    seen = rng.random(x.shape) < 0.6
    seen[0], seen[1] = True, False
    return np.where(seen, x, rng.normal(size=x.shape) * 100), seen


def covariance(seed: int, p: int = 5) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(p, p))
    return root @ root.T + np.eye(p)


@pytest.mark.parametrize("largest", [None, 20])
def test_normal(
    rows: tuple[np.ndarray, np.ndarray],
    largest: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if largest is not None:
        monkeypatch.setattr(conditional_normal, "_LARGEST", largest)
    x, seen = rows
    mean, spread = np.arange(5.0), covariance(1)
    filled, log_density = normal_given_observed(x, seen, mean, spread)
    for i in range(len(x)):
        row = np.where(seen[i], x[i], np.nan)
        expected, density = textbook.normal_slowly(row, mean, spread)
        np.testing.assert_allclose(filled[i], expected, atol=1e-10)
        assert log_density[i] == pytest.approx(density, abs=1e-10)


def test_mixture(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, seen = rows
    weights, means = np.array([0.2, 0.8]), np.array([np.zeros(5), np.arange(5.0)])
    spreads = np.array([covariance(2), covariance(3)])
    filled, probabilities = mixture_given_observed(x, seen, weights, means, spreads)
    for i in range(len(x)):
        row = np.where(seen[i], x[i], np.nan)
        expected, odds = textbook.mixture_slowly(row, weights, means, spreads)
        np.testing.assert_allclose(filled[i], expected, atol=1e-10)
        np.testing.assert_allclose(probabilities[i], odds, atol=1e-10)


def test_factors_give_the_normal_mean(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, seen = rows
    rng = np.random.default_rng(4)
    mean, components, noise = np.arange(5.0), rng.normal(size=(2, 5)), rng.uniform(0.5, 2, 5)
    factors = factors_given_observed(x, seen, mean, components, noise)
    signal = mean + factors @ components
    spread = components.T @ components + np.diag(noise)
    expected = normal_given_observed(x, seen, mean, spread)[0]
    np.testing.assert_allclose(signal[~seen], expected[~seen], atol=1e-10)
    np.testing.assert_allclose(factors[1], 0.0)

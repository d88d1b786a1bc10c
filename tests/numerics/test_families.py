"""Losses, scores and weights of the families against formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from tests.numerics.family_data import CASES, FLIP, MASKED, draw, of, plain
from tests.reference import glm as textbook

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("case", CASES)
def test_derivatives_and_means(case: str) -> None:
    _, y, _, _ = draw(case)
    eta = np.linspace(-3, 3, y.size)
    fam, kind = of(case), plain(case)
    name = kind.pop("name")
    gap = fam.loss(y, eta) - textbook.loss(name, y, eta, **kind)
    assert np.allclose(gap, 0, atol=1e-12)
    assert np.allclose(fam.score(y, eta), textbook.score(name, y, eta, **kind), atol=1e-12)
    assert np.allclose(fam.weight(y, eta), textbook.weight(name, y, eta, **kind), atol=1e-8)
    # The least deviance at each y is 0: no linear predictor goes below.
    at = [fam.deviance(y, np.full(y.size, c), np.eye(y.size)[0]) for c in np.linspace(-9, 9, 2001)]
    assert min(at) > -1e-12


@pytest.mark.parametrize("case", ["binomial", MASKED, "poisson", "gamma", "tweedie"])
def test_expected_weight_is_the_mean_of_the_observed_one(case: str) -> None:
    fam = of(case)
    eta = np.linspace(-2, 2, 9)
    if case in ("binomial", MASKED):
        one = FLIP + (1 - 2 * FLIP) * expit(eta) if case == MASKED else expit(eta)
        mean = one * fam.weight(np.ones(9), eta) + (1 - one) * fam.weight(np.zeros(9), eta)
    else:
        # These weights are linear in y, so their mean is the weight at the mean.
        mean = fam.weight(np.exp(eta), eta)
    assert np.allclose(fam.expected_weight(eta), mean, rtol=1e-12)

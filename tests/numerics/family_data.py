"""Responses of every family, for tests of losses and of fits."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from consilience.numerics.families import NAMES, family

MASKED = "masked"
CASES = (*NAMES, MASKED)
FLIP = 0.2


def of(case: str):
    return family("binomial", mask=FLIP) if case == MASKED else family(case)


def plain(case: str) -> dict:
    return {"name": "binomial", "mask": FLIP} if case == MASKED else {"name": case}


def draw(case: str, n: int = 400, p: int = 4, seed: int = 1):
    """Covariates, response, offset, whole weights with zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    offset = 0.3 * rng.normal(size=n)
    weights = rng.integers(0, 3, n).astype(float)
    eta = 0.3 + x[:, :3] @ np.array([0.5, -0.4, 0.2]) + offset
    return x, response(case, eta, rng), offset, weights


def response(case: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = eta.size
    if case in ("binomial", MASKED):
        y = (rng.uniform(size=n) < expit(eta)).astype(float)
        return np.where(rng.uniform(size=n) < FLIP, 1 - y, y) if case == MASKED else y
    if case == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    if case == "gamma":
        return rng.gamma(2, np.exp(eta) / 2)
    if case == "tweedie":
        return np.where(rng.uniform(size=n) < 0.3, 0.0, rng.gamma(2, np.exp(eta) / 1.4))
    if case == "normal":
        return eta + rng.normal(size=n)
    return eta + 2 * rng.standard_t(3, size=n)

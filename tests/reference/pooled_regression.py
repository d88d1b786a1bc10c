"""Textbook regression on pooled rows: likelihoods maximised as they stand, one row at a time.

Written from McCullagh and Nelder (1989): the log likelihood of each family, its derivatives by
finite sums over rows, and Cochran's (1954) Q from separate fits.
"""

from __future__ import annotations

import math

import numpy as np


def mean_of(family: str, eta: float) -> float:
    if family == "gaussian":
        return eta
    return 1 / (1 + math.exp(-eta)) if family == "binomial" else math.exp(eta)


def derivatives(family: str, y: float, eta: float) -> tuple[float, float, float]:
    """Score, observed and expected weight of one row, at dispersion 1."""
    mu = mean_of(family, eta)
    if family == "gamma":
        # log f = -(y / mu + log mu) + ..., with mu = e^eta
        return 1 - y / mu, y / mu, 1.0
    weight = {"gaussian": 1.0, "binomial": mu * (1 - mu), "poisson": mu}[family]
    return mu - y, weight, weight


def sums(family, design, y, theta):
    """Score, observed and expected information, and sum of squared scores."""
    q = design.shape[1]
    score, observed, expected, squares = (np.zeros(s) for s in (q, (q, q), (q, q), (q, q)))
    for row, one in zip(design, y, strict=True):
        s, w, e = derivatives(family, one, float(row @ theta))
        score += s * row
        observed += w * np.outer(row, row)
        expected += e * np.outer(row, row)
        squares += s**2 * np.outer(row, row)
    return score, observed, expected, squares


def fit(family, design, y, ridge=None):
    """Coefficients at the optimum; `ridge` is the penalty of each coefficient."""
    penalty = np.zeros(design.shape[1]) if ridge is None else np.asarray(ridge)
    theta = np.zeros(design.shape[1])
    if family != "gaussian":
        start = y.mean()
        theta[0] = math.log(start / (1 - start)) if family == "binomial" else math.log(start)
    for _ in range(40):
        score, observed, _, _ = sums(family, design, y, theta)
        theta = theta - np.linalg.solve(observed + np.diag(penalty), score + penalty * theta)
    return theta


def dispersion(family, design, y, theta):
    """Pearson's estimate; 1 where the family has none."""
    if family in ("binomial", "poisson"):
        return 1.0
    total = 0.0
    for row, one in zip(design, y, strict=True):
        mu = mean_of(family, float(row @ theta))
        total += (one - mu) ** 2 / (1.0 if family == "gaussian" else mu**2)
    return total / (len(y) - len(theta))


def covariance(family, design, y, theta, errors, sites):
    """Of the coefficients, without a ridge."""
    n, k = design.shape
    _, observed, expected, squares = sums(family, design, y, theta)
    bread = np.linalg.inv(observed)
    if errors == "model":
        return dispersion(family, design, y, theta) * np.linalg.inv(expected)
    if errors in ("HC0", "HC1"):
        return bread @ squares @ bread * (n / (n - k) if errors == "HC1" else 1.0)
    names = sorted(set(sites.tolist()))
    meat = np.zeros((k, k))
    for name in names:
        u = sums(family, design[sites == name], y[sites == name], theta)[0]
        meat += np.outer(u, u)
    g = len(names)
    return bread @ meat @ bread * g / (g - 1) * (n - 1) / (n - k)


def cochran(family, x, y, sites, scale):
    """Q of each slope from separate fits with errors of the model at a common dispersion."""
    estimates, errors = [], []
    for name in sorted(set(sites.tolist())):
        design = np.column_stack([np.ones((sites == name).sum()), x[sites == name]])
        theta = fit(family, design, y[sites == name])
        _, _, expected, _ = sums(family, design, y[sites == name], theta)
        estimates.append(theta[1:])
        errors.append(np.sqrt(scale * np.diag(np.linalg.inv(expected)))[1:])
    b, se = np.array(estimates), np.array(errors)
    centre = (b / se**2).sum(axis=0) / (1 / se**2).sum(axis=0)
    return b, se, ((b - centre) ** 2 / se**2).sum(axis=0)

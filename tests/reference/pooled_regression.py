"""Textbook regression on pooled rows: likelihoods maximised as they stand, one row at a time.

Written from McCullagh and Nelder (1989): the log likelihood of each family, its derivatives by
finite sums over rows, and Cochran's (1954) Q from separate fits.
"""

from __future__ import annotations

import math

import numpy as np

ALPHA = 0.6
"""Of the negative binomial."""


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
    if family == "negative-binomial":
        # log f = y log mu - (y + 1 / alpha) log(1 + alpha mu) + ...
        over = 1 + ALPHA * mu
        return (mu - y) / over, mu * (1 + ALPHA * y) / over**2, mu / over
    weight = {"gaussian": 1.0, "binomial": mu * (1 - mu), "poisson": mu}[family]
    return mu - y, weight, weight


def slope_in_alpha(y, mean, alpha):
    """Derivative in alpha of the negative binomial log likelihood.

    log f = sum_{j < y} log(1 + alpha j) - (y + 1 / alpha) log(1 + alpha mu) + y log mu - log y!
    """
    total = 0.0
    for one, mu in zip(y, mean, strict=True):
        total += sum(j / (1 + alpha * j) for j in range(int(one)))
        total += math.log1p(alpha * mu) / alpha**2 - (one + 1 / alpha) * mu / (1 + alpha * mu)
    return total


def sums(family, design, y, theta, offset=None, weight=None):
    """Score, observed and expected information, and sum of squared scores.

    `weight` is the precision of each row: its log likelihood counts so many times.
    """
    q = design.shape[1]
    offset = np.zeros(len(y)) if offset is None else offset
    weight = np.ones(len(y)) if weight is None else weight
    score, observed, expected, squares = (np.zeros(s) for s in (q, (q, q), (q, q), (q, q)))
    for row, one, o, v in zip(design, y, offset, weight, strict=True):
        s, w, e = derivatives(family, one, float(row @ theta) + o)
        score += v * s * row
        observed += v * w * np.outer(row, row)
        expected += v * e * np.outer(row, row)
        squares += (v * s) ** 2 * np.outer(row, row)
    return score, observed, expected, squares


def fit(family, design, y, ridge=None, **beside):
    """Coefficients at the optimum; `ridge` is the penalty of each coefficient."""
    penalty = np.zeros(design.shape[1]) if ridge is None else np.asarray(ridge)
    theta = np.zeros(design.shape[1])
    if family != "gaussian":
        start = y.mean()
        theta[0] = math.log(start / (1 - start)) if family == "binomial" else math.log(start)
    for _ in range(40):
        score, observed, _, _ = sums(family, design, y, theta, **beside)
        theta = theta - np.linalg.solve(observed + np.diag(penalty), score + penalty * theta)
    return theta


def dispersion(family, design, y, theta, offset=None, weight=None):
    """Pearson's estimate; 1 where the family has none."""
    offset = np.zeros(len(y)) if offset is None else offset
    weight = np.ones(len(y)) if weight is None else weight
    if family in ("binomial", "poisson", "negative-binomial"):
        return 1.0
    total = 0.0
    for row, one, o, v in zip(design, y, offset, weight, strict=True):
        mu = mean_of(family, float(row @ theta) + o)
        total += v * (one - mu) ** 2 / (1.0 if family == "gaussian" else mu**2)
    return total / (len(y) - len(theta))


def covariance(family, design, y, theta, errors, sites, ridge=None, **beside):
    """Of the coefficients; with a ridge by clusters only, each of which bears it by its rows."""
    n, k = design.shape
    penalty = np.zeros(k) if ridge is None else np.asarray(ridge)
    _, observed, expected, squares = sums(family, design, y, theta, **beside)
    bread = np.linalg.inv(observed + np.diag(penalty))
    if errors == "model":
        return dispersion(family, design, y, theta, **beside) * np.linalg.inv(expected)
    if errors in ("HC0", "HC1"):
        return bread @ squares @ bread * (n / (n - k) if errors == "HC1" else 1.0)
    names = sorted(set(sites.tolist()))
    meat = np.zeros((k, k))
    for name in names:
        own = sites == name
        of = {what: values[own] for what, values in beside.items()}
        u = sums(family, design[own], y[own], theta, **of)[0]
        u = u + penalty * theta * own.sum() / n
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

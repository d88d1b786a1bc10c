"""Textbook generalised linear models: losses written through the mean, minimised by BFGS.

Nothing is shared with the kernels. Derivatives come from a complex step, so only the
losses below have to be right.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def loss(name: str, y: np.ndarray, eta: np.ndarray, *, power: float = 1.5, mask: float = 0.0):
    """Loss of each record (analytic in eta, so eta may be complex)."""
    if name == "normal":
        return (y - eta) ** 2 / 2
    if name == "binomial":
        shown = mask + (1 - 2 * mask) / (1 + np.exp(-eta))
        return -(y * np.log(shown) + (1 - y) * np.log(1 - shown))
    mu = np.exp(eta)
    if name == "poisson":
        return mu - y * eta
    if name == "gamma":
        return np.log(mu) + y / mu
    if name == "tweedie":
        return mu ** (2 - power) / (2 - power) - y * mu ** (1 - power) / (1 - power)
    r = y - eta
    if name == "log-cosh":
        return np.log(np.cosh(0.3 * r)) / 0.3
    if name == "pseudo-huber":
        return np.sqrt(1 + r**2) - 1
    raise ValueError(name)


def objective(name, x, y, offset, weights, beta, *, ridge=0.0, power=1.5, mask=0.0):
    """Weighted mean loss plus ``ridge/2 |slopes|^2``; beta holds the constant first."""
    eta = beta[0] + x @ beta[1:] + offset
    each = loss(name, y, eta, power=power, mask=mask)
    return np.sum(weights * each) / np.sum(weights) + ridge / 2 * np.sum(beta[1:] ** 2)


def fit(name, x, y, offset, weights, *, ridge=0.0, power=1.5, mask=0.0, start=None):
    """Constant and slopes at the minimum."""
    options = {"ridge": ridge, "power": power, "mask": mask}
    dimension = x.shape[1] + 1

    def value(beta):
        return objective(name, x, y, offset, weights, beta, **options)

    def gradient(beta):
        steps = np.eye(dimension) * 1e-30j
        return np.array([value(beta + step).imag / 1e-30 for step in steps])

    start = np.zeros(dimension) if start is None else start
    found = minimize(value, start, jac=gradient, method="BFGS", options={"gtol": 1e-10})
    return found.x


def weight(name, y, eta, *, power=1.5, mask=0.0):
    """Second derivative of the loss by central differences of complex-step derivatives."""

    def slope(at):
        return loss(name, y, at + 1e-30j, power=power, mask=mask).imag / 1e-30

    h = 1e-5
    return (slope(eta + h) - slope(eta - h)) / (2 * h)


def score(name, y, eta, *, power=1.5, mask=0.0):
    """First derivative of the loss by a complex step."""
    return loss(name, y, eta + 1e-30j, power=power, mask=mask).imag / 1e-30

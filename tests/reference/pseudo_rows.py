"""Slow minimisers of mean own loss + penalty + rho times mean loss on the pseudo-rows.

Rows carry weights: the mean own loss is their weighted mean. Penalties are per mean loss and never
touch intercepts. Returned are coefficients (p,) and an intercept, or (q, p) and (q,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

Rows = tuple[Any, Any, Any]


def mass_of(x: Any, y: Any, weight: Any, a: Any, target: Any, rho: float) -> Rows:
    """All rows, their responses, and weights by which the objective is a plain sum."""
    x, a = np.asarray(x), np.asarray(a)
    own = np.asarray(weight) / np.sum(weight)
    pseudo = np.full(len(a), rho / len(a))
    return np.vstack([x, a]), np.concatenate([y, target]), np.concatenate([own, pseudo])


def ridge(rows: Rows, penalty: float) -> tuple[np.ndarray, float]:
    """Squares + penalty |beta|^2, by the normal equations of columns with a one."""
    x, y, mass = rows
    z = np.column_stack([x, np.ones(len(x))])
    shrink = np.diag([penalty] * x.shape[1] + [0.0])
    beta = np.linalg.solve(z.T @ (z * mass[:, None]) + shrink, z.T @ (mass * y))
    return beta[:-1], float(beta[-1])


def elastic_net(rows: Rows, penalty: float, share: float) -> tuple[np.ndarray, float]:
    """Half squares + penalty (share |beta|_1 + (1 - share)/2 |beta|^2), column after column."""
    x, y, mass = rows
    p = x.shape[1]
    beta, intercept = np.zeros(p), 0.0
    for _ in range(20_000):
        before = beta.copy()
        intercept = float((mass * (y - x @ beta)).sum() / mass.sum())
        for j in range(p):
            rest = y - intercept - x @ beta + x[:, j] * beta[j]
            inner = float((mass * x[:, j] * rest).sum())
            size = float((mass * x[:, j] ** 2).sum()) + penalty * (1 - share)
            beta[j] = np.sign(inner) * max(abs(inner) - penalty * share, 0.0) / size
        if np.abs(beta - before).max() < 1e-14:
            break
    return beta, intercept


def _newton(
    rows: Rows, penalty: float, slope_and_curve: Callable[[Any, Any], tuple[Any, Any]]
) -> tuple[np.ndarray, float]:
    """Loss of a linear predictor + penalty/2 |beta|^2, by damped Newton steps."""
    x, y, mass = rows
    z = np.column_stack([x, np.ones(len(x))])
    shrink = np.diag([penalty] * x.shape[1] + [0.0])
    beta = np.zeros(z.shape[1])
    for _ in range(500):
        slope, curve = slope_and_curve(z @ beta, y)
        gradient = z.T @ (mass * slope) + shrink @ beta
        step = np.linalg.solve(z.T @ (z * (mass * curve)[:, None]) + shrink, gradient)
        beta = beta - step * min(1.0, 1.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-13:
            break
    return beta[:-1], float(beta[-1])


def logistic(rows: Rows, penalty: float) -> tuple[np.ndarray, float]:
    """Log loss of shares of the second level; pseudo-rows have probabilities as responses."""

    def parts(eta: Any, y: Any) -> tuple[Any, Any]:
        share = 1 / (1 + np.exp(-eta))
        return share - y, share * (1 - share)

    return _newton(rows, penalty, parts)


def poisson(rows: Rows, penalty: float) -> tuple[np.ndarray, float]:
    """Mean - y log(mean) under a log link."""
    return _newton(rows, penalty, lambda eta, y: (np.exp(eta) - y, np.exp(eta)))


def gamma(rows: Rows, penalty: float) -> tuple[np.ndarray, float]:
    """Y/mean + log(mean) under a log link."""
    return _newton(rows, penalty, lambda eta, y: (1 - y * np.exp(-eta), y * np.exp(-eta)))


def tweedie(rows: Rows, penalty: float, power: float = 1.5) -> tuple[np.ndarray, float]:
    """Half deviance of the power under a log link."""

    def parts(eta: Any, y: Any) -> tuple[Any, Any]:
        up, down = np.exp((2 - power) * eta), y * np.exp((1 - power) * eta)
        return up - down, (2 - power) * up - (1 - power) * down

    return _newton(rows, penalty, parts)


def softmax(
    x: Any, y: Any, weight: Any, a: Any, target: Any, rho: float, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Log loss of several levels + penalty/2 |beta|^2; `target` has a probability per level."""
    x, a = np.asarray(x), np.asarray(a)
    q, p = target.shape[1], x.shape[1]
    own = np.asarray(weight) / np.sum(weight)
    z = np.vstack([x, a])
    mass = np.vstack([np.eye(q)[y] * own[:, None], target * rho / len(a)])

    def objective(theta: Any) -> tuple[float, Any]:
        beta, intercept = theta[: q * p].reshape(q, p), theta[q * p :]
        eta = z @ beta.T + intercept
        logs = eta - np.log(np.exp(eta).sum(axis=1, keepdims=True))
        slope = np.exp(logs) * mass.sum(axis=1, keepdims=True) - mass
        gradient = np.concatenate([(slope.T @ z + penalty * beta).ravel(), slope.sum(axis=0)])
        return float(-(mass * logs).sum() + penalty / 2 * (beta**2).sum()), gradient

    found = minimize(
        objective, np.zeros(q * p + q), jac=True, method="BFGS", options={"gtol": 1e-10}
    ).x
    intercept = found[q * p :]
    return found[: q * p].reshape(q, p), intercept - intercept.mean()

"""Coefficients of one party where a part of the others' columns is hidden, by all of the columns.

Fits from the definitions, in the metric of their weights: nothing here is known to a party alone,
and nothing is shared with the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Hidden:
    """What is hidden of the others' columns `b`, beside `a` and the known `m` of them."""

    estimate: np.ndarray  # without what is hidden
    least: np.ndarray  # its HC1 errors, with the parameters of all columns
    spread: np.ndarray  # errors of a right model with dispersion 1
    gain: float  # deviance that the hidden columns gain alone, to second order
    correlation: float  # largest canonical one of a with the hidden columns, off m
    known: float  # the same of a with m
    joint: np.ndarray  # estimate with all columns
    joint_spread: np.ndarray  # to first order: at the weights of the fit without them


def derivatives(family: str, y: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minus the first derivative of the loss in eta, and the second."""
    mean = np.exp(eta)
    match family:
        case "normal":  # (y - eta)^2 / 2
            return y - eta, np.ones(len(y))
        case "binomial":  # log(1 + e^eta) - y eta
            chance = mean / (1 + mean)
            return y - chance, chance * (1 - chance)
        case "poisson":  # e^eta - y eta
            return y - mean, mean
        case "gamma":  # y e^-eta + eta
            return y / mean - 1, y / mean
    raise ValueError(family)


def fitted(x: np.ndarray, y: np.ndarray, family: str) -> np.ndarray:
    """Coefficients of least loss: Newton's method, halved where a step raises the gradient."""
    beta = np.zeros(x.shape[1])
    if family in ("poisson", "gamma"):
        beta[0] = np.log(y.mean())
    for _ in range(50):
        e, w = derivatives(family, y, x @ beta)
        step = np.linalg.solve(x.T @ (w[:, None] * x), x.T @ e)
        size, before = 1.0, np.linalg.norm(x.T @ e)
        while np.linalg.norm(x.T @ derivatives(family, y, x @ (beta + size * step))[0]) > before:
            size /= 2
            if size < 1e-3:
                return beta
        beta = beta + size * step
    return beta


def residuals(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Columns x less their projection on columns z."""
    return x - z @ np.linalg.pinv(z) @ x


def canonical(x: np.ndarray, z: np.ndarray) -> float:
    """Largest canonical correlation: the largest cosine between the two spans."""
    bases = []
    for block in (x, z):
        left, size, _ = np.linalg.svd(block, full_matrices=False)
        bases.append(left[:, size > 1e-8 * size.max()])
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).max(initial=0.0))


def hidden(
    a: np.ndarray, b: np.ndarray, m: np.ndarray, y: np.ndarray, family: str = "normal"
) -> Hidden:
    """Both fits, of y on (1, a, m) and on (1, a, b), and what lies between them."""
    n, p = a.shape
    one = np.ones((n, 1))
    beta = fitted(np.hstack([one, a, m]), y, family)
    e, w = derivatives(family, y, np.hstack([one, a, m]) @ beta)
    root = np.sqrt(w)[:, None]
    one, a, b, m, e = root, root * a, root * b, root * m, e / root[:, 0]
    u = residuals(b, np.hstack([one, m]))
    left, size, _ = np.linalg.svd(u, full_matrices=False)
    u = left[:, size > 1e-8 * size.max()]
    known, whole = np.hstack([one, a, m]), np.hstack([one, a, m, u])
    inverse, full = np.linalg.inv(known.T @ known), np.linalg.inv(whole.T @ whole)
    meat = sum(e[i] ** 2 * np.outer(known[i], known[i]) for i in range(n))
    covariance = n / (n - whole.shape[1]) * inverse @ meat @ inverse
    off = [residuals(x, one) for x in (a, m)]
    return Hidden(
        estimate=beta[: p + 1],
        least=np.sqrt(np.diag(covariance))[: p + 1],
        spread=np.sqrt(np.diag(inverse))[: p + 1],
        gain=float(np.sum((u.T @ e) ** 2)),
        correlation=canonical(residuals(a, np.hstack([one, m])), u),
        known=canonical(off[0], off[1]),
        joint=fitted(whole / root, y, family)[: p + 1],
        joint_spread=np.sqrt(np.diag(full))[: p + 1],
    )

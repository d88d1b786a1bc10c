"""Coefficients of one party where a part of the other's columns is hidden, by all of the columns.

Least squares, from the definitions: nothing here is known to a party alone, and nothing is shared
with the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Hidden:
    """What is hidden of the columns `b`, beside the columns `a` and the known ones `m`."""

    estimate: np.ndarray  # without what is hidden
    least: np.ndarray  # its HC1 errors, with the parameters of all columns
    spread: np.ndarray  # errors of a right model with variance 1
    gain: float  # squares that the hidden columns take from the residuals, a staying as it is
    correlation: float  # largest canonical one of a with the hidden columns, off m
    known: float  # the same of a with m
    joint: np.ndarray  # estimate with all columns
    joint_spread: np.ndarray


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


def hidden(a: np.ndarray, b: np.ndarray, m: np.ndarray, y: np.ndarray) -> Hidden:
    """Both fits, of y on (1, a, m) and on (1, a, b), and what lies between them."""
    n, p = a.shape
    one = np.ones((n, 1))
    u = residuals(b, np.hstack([one, m]))
    left, size, _ = np.linalg.svd(u, full_matrices=False)
    u = left[:, size > 1e-8 * size.max()]
    known, whole = np.hstack([one, a, m]), np.hstack([one, a, m, u])
    inverse, full = np.linalg.inv(known.T @ known), np.linalg.inv(whole.T @ whole)
    beta = inverse @ known.T @ y
    e = y - known @ beta
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
        joint=(full @ whole.T @ y)[: p + 1],
        joint_spread=np.sqrt(np.diag(full))[: p + 1],
    )

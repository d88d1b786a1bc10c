"""One regression with squares, and own coefficients about it, event by event."""

from __future__ import annotations

import math

import numpy as np


def curve_ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Ridge of penalty 1 on (1, x, x^2), the prior as further rows."""
    design = np.c_[np.ones(len(x)), x, x**2]
    q = design.shape[1]
    rows, response = np.r_[design, np.eye(q)], np.r_[y, np.zeros(q)]
    return np.asarray(np.linalg.lstsq(rows, response, rcond=None)[0])


def own_about_curve(
    known: tuple[np.ndarray, np.ndarray],
    x: np.ndarray,
    curve: np.ndarray,
    spread: np.ndarray,
    noise: float,
) -> tuple[float, float]:
    """Mean and variance of an entity's event at x, from the joint normal of all its events.

    Its own coefficients of (1, x) have the covariance `spread` about those of the curve.
    """
    z = np.r_[np.ones((len(known[0]) + 1, 1)).T, np.r_[known[0], x[None]].T].T
    mean = np.c_[z, z[:, 1:] ** 2] @ curve
    joint = z @ spread @ z.T + noise * np.eye(len(z))
    weight = np.linalg.solve(joint[:-1, :-1], joint[:-1, -1]) if len(z) > 1 else np.empty(0)
    found = mean[-1] + weight @ (known[1] - mean[:-1])
    return float(found), float(joint[-1, -1] - weight @ joint[:-1, -1])


def log_normal(y: float, mean: float, variance: float) -> float:
    """Log density."""
    return -0.5 * (math.log(2 * math.pi * variance) + (y - mean) ** 2 / variance)

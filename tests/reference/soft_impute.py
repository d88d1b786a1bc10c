"""Textbook soft-impute: fill, decompose, shrink, repeat, on dense matrices, nothing accelerated.

Written from Mazumder, Hastie and Tibshirani 2010, algorithm 1; nothing is shared with
``consilience.numerics``. Missing entries are NaN.
"""

from __future__ import annotations

import numpy as np


def shrink(z: np.ndarray, alpha: float) -> np.ndarray:
    """Soft-thresholded singular values."""
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    return (u * np.maximum(s - alpha, 0.0)) @ vt


def soft_impute(x: np.ndarray, alpha: float, steps: int = 5000) -> np.ndarray:
    """The minimiser, by plain iteration until nothing moves."""
    seen = ~np.isnan(x)
    m = np.zeros_like(x)
    for _ in range(steps):
        after = shrink(np.where(seen, x, m), alpha)
        moved = np.abs(after - m).max()
        m = after
        if moved < 1e-12:
            break
    return m


def objective(x: np.ndarray, m: np.ndarray, alpha: float) -> float:
    """Half the squared residuals plus the penalty."""
    rest = np.where(np.isnan(x), 0.0, x - m)
    return 0.5 * (rest**2).sum() + alpha * np.linalg.norm(m, "nuc")


def gap(x: np.ndarray, m: np.ndarray, alpha: float) -> float:
    """Relative duality gap at the residual, scaled until it is feasible."""
    full = np.where(np.isnan(x), 0.0, x)
    rest = np.where(np.isnan(x), 0.0, x - m)
    y = rest * min(1.0, alpha / np.linalg.norm(rest, 2))
    dual = (y * full).sum() - 0.5 * (y**2).sum()
    value = objective(x, m, alpha)
    return (value - dual) / value


def unshrink(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Singular values refitted to the observed entries by least squares."""
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    kept = np.flatnonzero(s > 1e-9 * s[0])
    i, j = np.nonzero(~np.isnan(x))
    design = np.array([u[i, k] * vt[k, j] for k in kept]).T
    weights = np.linalg.lstsq(design, x[i, j], rcond=None)[0]
    return (u[:, kept] * weights) @ vt[kept]


def smallest_penalty(x: np.ndarray, rank: int, penalties: np.ndarray) -> float:
    """Smallest of decreasing penalties whose solution has a rank."""
    found = np.nan
    for alpha in penalties:
        s = np.linalg.svd(soft_impute(x, alpha), compute_uv=False)
        if (s > 1e-7 * s[0]).sum() == rank:
            found = float(alpha)
    return found

"""Textbook one-step leave-one-out: for each entry two regressions without it, nothing shared."""

from __future__ import annotations

import numpy as np


def hard(x: np.ndarray, rank: int) -> np.ndarray:
    """Least squares of a row on the columns' vectors, of a column on the rows' vectors."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], vt[:rank].T
    out = np.empty(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            others, rows = np.arange(x.shape[1]) != j, np.arange(x.shape[0]) != i
            a = np.linalg.lstsq(v[others], x[i, others], rcond=None)[0]  # u_i D
            b = np.linalg.lstsq(u[rows], x[rows, j], rcond=None)[0]  # D v_j
            out[i, j] = a @ (b / s)
    return out


def soft(x: np.ndarray, alpha: float) -> np.ndarray:
    """Ridge regressions on the factors ``U S^1/2`` and ``V S^1/2``."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    kept = s > alpha
    root = np.sqrt(s[kept] - alpha)
    a, b = u[:, kept] * root, vt[kept].T * root
    out = np.empty(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            others, rows = np.arange(x.shape[1]) != j, np.arange(x.shape[0]) != i
            out[i, j] = ridge(b[others], x[i, others], alpha) @ ridge(a[rows], x[rows, j], alpha)
    return out


def ridge(design: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    k = design.shape[1]
    rows = np.vstack([design, np.sqrt(alpha) * np.eye(k)])
    return np.linalg.lstsq(rows, np.concatenate([y, np.zeros(k)]), rcond=None)[0]


def printed(x: np.ndarray, rank: int, i: int, j: int) -> float:
    """The source's update of both sides, with ``1 + c`` and ``X^(k) - X (1 + 2 c)``."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], vt[:rank].T
    fit, c, d = (u[i] * s) @ v[j], v[j] @ v[j], u[i] @ u[i]
    a = s * u[i] + v[j] * (fit - x[i, j] * (1 + 2 * c)) / (1 + c)
    b = s * v[j] + u[i] * (fit - x[i, j] * (1 + 2 * d)) / (1 + d)
    return float(a @ (b / s))

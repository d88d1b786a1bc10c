"""Textbook matrices of a rank: fill, whole decomposition, truncate, without any haste."""

from __future__ import annotations

import numpy as np


def fill_and_truncate(
    x: np.ndarray, rank: int, start: np.ndarray, *, tol: float = 1e-11, max_iter: int = 20_000
) -> np.ndarray:
    """Matrix near the entries of x that are not NaN."""
    seen = ~np.isnan(x)
    m = start
    for _ in range(max_iter):
        u, s, vt = np.linalg.svd(np.where(seen, x, m), full_matrices=False)
        new = (u[:, :rank] * s[:rank]) @ vt[:rank]
        if np.linalg.norm(new - m) <= tol * np.linalg.norm(new):
            return new
        m = new
    return m


def objective(x: np.ndarray, m: np.ndarray) -> float:
    return 0.5 * np.nansum((x - m) ** 2)


def stationarity(x: np.ndarray, m: np.ndarray, rank: int) -> float:
    """Residual along the tangent space of the matrices of a rank, over the norm of the matrix."""
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    u, v = u[:, :rank], vt[:rank].T
    r = np.where(np.isnan(x), 0.0, m - x)
    tangent = u @ (u.T @ r) + (r @ v) @ v.T - u @ (u.T @ r @ v) @ v.T
    return float(np.linalg.norm(tangent) / np.linalg.norm(s[:rank]))


def spaces_descent(x: np.ndarray, rank: int, *, steps: int = 5000, tol: float = 1e-9) -> np.ndarray:
    """OptSpace as printed: trimmed spectral start, S from k^2 equations, plain gradient steps."""
    seen = ~np.isnan(x)
    trimmed = np.where(seen, x, 0.0)
    trimmed[seen.sum(axis=1) > 2 * seen.sum() / x.shape[0]] = 0.0
    trimmed[:, seen.sum(axis=0) > 2 * seen.sum() / x.shape[1]] = 0.0
    left, _, right = np.linalg.svd(trimmed, full_matrices=False)
    u, v = left[:, :rank], right[:rank].T
    step = 1.0
    s, value = best_s(x, u, v)
    for _ in range(steps):
        r = np.where(seen, u @ s @ v.T - x, 0.0)
        gu, gv = r @ v @ s.T, r.T @ u @ s
        gu, gv = gu - u @ (u.T @ gu), gv - v @ (v.T @ gv)
        size = (gu**2).sum() + (gv**2).sum()
        if np.sqrt(size) <= tol * np.linalg.norm(s) ** 2:
            break
        while True:
            nu, nv = np.linalg.qr(u - step * gu)[0], np.linalg.qr(v - step * gv)[0]
            ns, found = best_s(x, nu, nv)
            if found <= value - 0.5 * step * size or step < 1e-16:
                break
            step /= 2
        u, v, s, value = nu, nv, ns, found
        step *= 2
    return u @ s @ v.T


def best_s(x: np.ndarray, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares over k x k matrices between two spaces."""
    i, j = np.nonzero(~np.isnan(x))
    design = np.einsum("ma,mb->mab", u[i], v[j]).reshape(len(i), -1)
    s = np.linalg.lstsq(design, x[i, j], rcond=None)[0].reshape(u.shape[1], v.shape[1])
    return s, objective(x, u @ s @ v.T)

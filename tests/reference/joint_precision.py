"""Textbook joint precision matrices: proximal gradient on dense matrices, nothing screened.

Nothing is shared with the kernels: eigenvalues instead of factors, first order steps
instead of Newton's, one step size for all pairs, so that the group prox is a plain shrinkage.
"""

from __future__ import annotations

import numpy as np


def penalty(t: np.ndarray) -> float:
    """Group norms over ordered pairs."""
    norms = np.sqrt((t**2).sum(axis=0))
    return norms.sum() - np.trace(norms)


def objective(s: np.ndarray, n: np.ndarray, lam: float, t: np.ndarray) -> float:
    """Value; infinite outside the cone."""
    total = lam * penalty(t)
    for k in range(len(n)):
        values = np.linalg.eigvalsh(t[k])
        if values[0] <= 0:
            return np.inf
        total += n[k] * (np.trace(s[k] @ t[k]) - np.log(values).sum())
    return total


def shrink(t: np.ndarray, by: float) -> np.ndarray:
    """Every group towards zero by a length; the diagonal stays."""
    norms = np.sqrt((t**2).sum(axis=0))
    factor = np.maximum(0.0, 1 - by / np.maximum(norms, 1e-300))
    np.fill_diagonal(factor, 1.0)
    return t * factor


def proximal_gradient(
    s: np.ndarray, n: np.ndarray, lam: float, *, tol: float = 1e-12, max_iter: int = 20_000
) -> np.ndarray:
    """Minimise from the diagonal with backtracking, until the certificate is small."""
    t = np.stack([np.diag(1 / np.diag(m)) for m in s])
    value, step = objective(s, n, lam, t), 1.0 / n.max()
    for iteration in range(max_iter):
        gradient = np.stack([n[k] * (s[k] - np.linalg.inv(t[k])) for k in range(len(n))])
        smooth = value - lam * penalty(t)
        while True:
            new = shrink(t - step * gradient, step * lam)
            found = objective(s, n, lam, new)
            d = new - t
            model = smooth + (gradient * d).sum() + (d * d).sum() / (2 * step)
            if found - lam * penalty(new) <= model + 1e-13 * abs(value):
                break
            step /= 2
        t, value = new, found
        step *= 1.2
        if iteration % 20 == 0 and gap(s, n, lam, t) <= tol * s.shape[1] * n.sum():
            break
    return t


def gap(s: np.ndarray, n: np.ndarray, lam: float, t: np.ndarray) -> float:
    """Value minus that of the dual at ``W_k = S_k + Gamma_k / n_k``, Gamma clipped pair by pair."""
    classes, p, _ = s.shape
    gamma = np.stack([n[k] * (np.linalg.inv(t[k]) - s[k]) for k in range(classes)])
    for i in range(p):
        for j in range(p):
            norm = np.linalg.norm(gamma[:, i, j])
            gamma[:, i, j] *= 0.0 if i == j else min(1.0, lam / norm) if norm > 0 else 1.0
    dual = 0.0
    for k in range(classes):
        values = np.linalg.eigvalsh(s[k] + gamma[k] / n[k])
        if values[0] <= 0:
            return np.inf
        dual += n[k] * (np.log(values).sum() + p)
    return objective(s, n, lam, t) - dual


def components(s: np.ndarray, n: np.ndarray, lam: float) -> list[list[int]]:
    """Connected features by walking from each one."""
    _, p, _ = s.shape
    left, found = set(range(p)), []
    while left:
        reached = [min(left)]
        left -= set(reached)
        for i in reached:
            near = {j for j in left if np.linalg.norm(n * s[:, i, j]) > lam}
            reached.extend(sorted(near))
            left -= near
        found.append(sorted(reached))
    return found


def alternating_directions(
    s: np.ndarray,
    n: np.ndarray,
    lam: float,
    t: np.ndarray,
    gamma: np.ndarray,
    rho: float,
    *,
    over: float,
    steps: int,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """ADMM with relaxation (Boyd et al. 2011, sections 3.4.3 and 6.5): all ``Z`` and ``Gamma``.

    ``U = Gamma / rho`` is the scaled dual variable; class by class, nothing is accelerated.
    """
    z, u = t, gamma / rho
    all_z, all_gamma = [], []
    for _ in range(steps):
        smooth = np.empty_like(z)
        for k in range(len(n)):
            values, vectors = np.linalg.eigh(rho * (z[k] - u[k]) - n[k] * s[k])
            root = (values + np.sqrt(values**2 + 4 * rho * n[k])) / (2 * rho)
            smooth[k] = vectors @ np.diag(root) @ vectors.T
        relaxed = over * smooth + (1 - over) * z
        z, before = shrink(relaxed + u, lam / rho), u
        u = before + relaxed - z
        all_z.append(z)
        all_gamma.append(rho * u)
    return all_z, all_gamma


def anderson(states: list[np.ndarray], values: list[np.ndarray], memory: int) -> np.ndarray:
    """Anderson's next state, by least squares over affine combinations (Walker and Ni 2011).

    Weights that add up to 1 make the combined residual of the last states smallest; the next state
    is that combination of their values.
    """
    states, values = states[-memory - 1 :], values[-memory - 1 :]
    residuals = np.array(values) - np.array(states)
    # The last weight is 1 minus the others.
    design = (residuals[:-1] - residuals[-1]).T
    weights = np.linalg.lstsq(design, -residuals[-1], rcond=None)[0]
    weights = np.append(weights, 1 - weights.sum())
    return weights @ np.array(values)

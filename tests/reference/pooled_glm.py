"""Textbook fit on all columns in one place: Newton from zero, and sandwiches (HC1, HC3, clusters).

Losses come from ``tests.reference.glm``; derivatives are complex steps of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference import glm
from tests.reference.assisted_glm import score_weight


@dataclass(frozen=True)
class Pooled:
    """Coefficients (constant first), predictors of all rows, and the sandwich."""

    design: np.ndarray
    coef: np.ndarray
    eta: np.ndarray
    covariance: np.ndarray
    deviance_loss: float

    def error(self, target: np.ndarray) -> float:
        return float(np.sqrt(target @ self.covariance @ target))

    def estimable(self, target: np.ndarray) -> bool:
        back = np.linalg.pinv(self.design, rcond=1e-10) @ self.design
        return bool(np.linalg.norm(back @ target - target) < 1e-7 * np.linalg.norm(target))


def fit(
    blocks: list[np.ndarray],
    y: np.ndarray,
    name: str,
    *,
    used: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    ridge: float = 0.0,
    mask: float = 0.0,
    errors: str = "hc1",
    cluster: np.ndarray | None = None,
    offset: np.ndarray | None = None,
) -> Pooled:
    """Fit on rows `used`; columns may depend on each other (least norm of the coefficients)."""
    design = np.column_stack([np.ones(len(y)), *blocks])
    used = np.ones(len(y), dtype=bool) if used is None else used
    v = np.ones(len(y)) if weights is None else weights
    off = np.zeros(len(y)) if offset is None else offset
    x, y, v = design[used], y[used], v[used]
    beta = _newton(x, y, v, name, ridge, mask, off[used])
    eta = x @ beta + off[used]
    s, w = _derivatives(name, y, eta, mask)
    bread = np.linalg.pinv(x.T @ ((v * w)[:, None] * x), rcond=1e-11, hermitian=True)
    cluster = None if cluster is None else cluster[used]
    covariance = sandwich(x, v * w, v * s, bread, errors, cluster)
    loss = float(v @ glm.loss(name, y, eta, mask=mask))
    return Pooled(design, beta, design @ beta + off, covariance, loss)


def sandwich(
    x: np.ndarray,
    w: np.ndarray,
    s: np.ndarray,
    bread: np.ndarray,
    errors: str = "hc1",
    cluster: np.ndarray | None = None,
) -> np.ndarray:
    """Covariance of the coefficients, cluster by cluster; a record without one is its own."""
    n, rank = len(x), np.linalg.matrix_rank(x)
    of = np.arange(n) if cluster is None else cluster
    names, meat = np.unique(of), np.zeros((x.shape[1], x.shape[1]))
    g = len(names)
    for name in names:
        xg, wg, sg = (part[of == name] for part in (x, w, s))
        if errors == "hc3":  # what a fit without the cluster would have moved, to one step
            sg = np.linalg.solve(np.eye(len(sg)) - wg[:, None] * (xg @ bread @ xg.T), sg)
        u = xg.T @ sg
        meat += np.outer(u, u)
    if errors == "hc3":
        factor = 1.0 if cluster is None else (g - 1) / g
    else:
        factor = n / (n - rank) if cluster is None else g / (g - 1) * (n - 1) / (n - rank)
    return factor * bread @ meat @ bread


def _derivatives(
    name: str, y: np.ndarray, eta: np.ndarray, mask: float
) -> tuple[np.ndarray, np.ndarray]:
    if mask:  # expected second derivative
        return score_weight(name, y, eta, mask)
    return glm.score(name, y, eta), glm.weight(name, y, eta)


def _newton(
    x: np.ndarray,
    y: np.ndarray,
    v: np.ndarray,
    name: str,
    ridge: float,
    mask: float,
    off: np.ndarray,
) -> np.ndarray:
    penalty = v.sum() * ridge * np.diag([0.0] + [1.0] * (x.shape[1] - 1))

    def value(b: np.ndarray) -> float:
        return float(v @ glm.loss(name, y, x @ b + off, mask=mask)) + b @ penalty @ b / 2

    beta = np.zeros(x.shape[1])
    for _ in range(200):
        s, w = _derivatives(name, y, x @ beta + off, mask)
        hessian = x.T @ ((v * w)[:, None] * x) + penalty
        step = np.linalg.pinv(hessian, rcond=1e-12, hermitian=True)
        step = step @ (x.T @ (v * s) + penalty @ beta)
        size, now = 1.0, value(beta)
        # Near the minimum differences of objectives are rounding: a full step is fine then.
        while value(beta - size * step) > now + 1e-12 * (1 + abs(now)) and size > 1e-8:
            size /= 2
        beta = beta - size * step
        if np.max(np.abs(x @ step)) < 1e-11 * (1 + np.max(np.abs(x @ beta))):
            return beta
    raise RuntimeError("the textbook fit did not converge")

"""Textbook versions of joint fits over two parties: dense algebra, one step after the other."""

from __future__ import annotations

import numpy as np


def loss(name: str, y: np.ndarray, eta: np.ndarray, mask: float = 0.0) -> np.ndarray:
    if name == "binomial" and mask:
        p = mask + (1 - 2 * mask) / (1 + np.exp(-eta))
        return -(y * np.log(p) + (1 - y) * np.log(1 - p))
    if name == "binomial":
        return np.log(1 + np.exp(eta)) - y * eta
    if name == "poisson":
        return np.exp(eta) - y * eta
    if name == "normal":
        return (y - eta) ** 2 / 2
    if name == "log-cosh":
        return np.log(np.cosh(0.3 * (y - eta))) / 0.3
    if name == "pseudo-huber":
        return np.sqrt(1 + (y - eta) ** 2) - 1
    raise ValueError(name)


def score_weight(
    name: str, y: np.ndarray, eta: np.ndarray, mask: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of the loss; expected second derivative for a masked response."""
    if name == "binomial":
        p = 1 / (1 + np.exp(-eta))
        shown = mask + (1 - 2 * mask) * p
        slope = (1 - 2 * mask) * p * (1 - p)
        return (shown - y) * slope / (shown * (1 - shown)), slope**2 / (shown * (1 - shown))
    if name == "poisson":
        return np.exp(eta) - y, np.exp(eta)
    if name == "normal":
        return eta - y, np.ones_like(y)
    r = y - eta
    if name == "log-cosh":
        return -np.tanh(0.3 * r), 0.3 / np.cosh(0.3 * r) ** 2
    if name == "pseudo-huber":
        return -r / np.sqrt(1 + r**2), (1 + r**2) ** -1.5
    raise ValueError(name)


def newton(
    x: np.ndarray,
    y: np.ndarray,
    name: str,
    offset: np.ndarray | float = 0.0,
    ridge: float = 0.0,
    mask: float = 0.0,
) -> np.ndarray:
    """Minimise sum of losses + n ridge/2 |coefficients but the first|^2, from zero, halving steps.

    `x` has its constant as the first column; a singular Hessian gets a pseudo-inverse.
    """
    beta = np.zeros(x.shape[1])
    penalty = y.size * ridge * np.diag([0.0] + [1.0] * (x.shape[1] - 1))

    def value(b: np.ndarray) -> float:
        return float(np.sum(loss(name, y, offset + x @ b, mask)) + b @ penalty @ b / 2)

    for _ in range(200):
        s, w = score_weight(name, y, offset + x @ beta, mask)
        hessian = x.T @ np.diag(w) @ x + penalty if y.size < 300 else x.T @ (w[:, None] * x)
        hessian = hessian if y.size < 300 else hessian + penalty
        step = np.linalg.pinv(hessian, rcond=1e-12) @ (x.T @ s + penalty @ beta)
        size = 1.0
        while value(beta - size * step) > value(beta) and size > 1e-8:
            size /= 2
        beta = beta - size * step
        if np.max(np.abs(x @ step)) < 1e-13 * (1 + np.max(np.abs(x @ beta))):
            break
    return beta


def with_constant(*blocks: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(blocks[0].shape[0]), *blocks])


def pooled(
    blocks: list[np.ndarray], y: np.ndarray, name: str, ridge: float = 0.0, mask: float = 0.0
) -> np.ndarray:
    """Linear predictor of the maximum likelihood fit on all columns."""
    x = with_constant(*blocks)
    return x @ newton(x, y, name, ridge=ridge, mask=mask)


def alternation(
    x_a: np.ndarray, x_b: np.ndarray, y: np.ndarray, name: str, rounds: int
) -> list[np.ndarray]:
    """Full local fits in turn, each with its own constant: predictors after 0, 1, ... rounds."""
    a, b = with_constant(x_a), with_constant(x_b)
    part_a = a @ newton(a, y, name)
    etas = [part_a]
    for _ in range(rounds):
        beta_b = newton(b, y, name, offset=part_a)
        message = x_b @ beta_b[1:]
        part_a = a @ newton(a, y, name, offset=message)
        etas.append(part_a + message)
    return etas


def conjugate_gradients(
    matrix: np.ndarray, rhs: np.ndarray, preconditioner: np.ndarray, steps: int
) -> list[np.ndarray]:
    """Preconditioned conjugate gradients from zero (Golub and Van Loan, algorithm 11.5.1)."""
    x, r = np.zeros_like(rhs), rhs.copy()
    z = preconditioner @ r
    p, rz = z.copy(), float(r @ z)
    found = []
    for _ in range(steps):
        q = matrix @ p
        alpha = rz / float(p @ q)
        x, r = x + alpha * p, r - alpha * q
        z = preconditioner @ r
        rz, old = float(r @ z), rz
        p = z + rz / old * p
        found.append(x)
    return found


def least_squares_by_cg(
    x_a: np.ndarray, x_b: np.ndarray, y: np.ndarray, steps: int
) -> list[np.ndarray]:
    """Predictors of least squares, by conjugate gradients on the equations of b alone.

    The constant is eliminated with a; the preconditioner is b's own normal matrix, centred.
    """
    a = with_constant(x_a)
    off = np.eye(y.size) - a @ np.linalg.pinv(a)
    centred = x_b - x_b.mean(axis=0)
    schur, rhs = x_b.T @ off @ x_b, x_b.T @ off @ y
    betas = conjugate_gradients(schur, rhs, np.linalg.inv(centred.T @ centred), steps)
    return [x_b @ beta + (np.eye(y.size) - off) @ (y - x_b @ beta) for beta in betas]


def sandwich(
    x: np.ndarray, w: np.ndarray, s: np.ndarray, target: np.ndarray
) -> tuple[float, float]:
    """Model-based and sandwich standard error of ``target' beta``."""
    bread = np.linalg.pinv(x.T @ (w[:, None] * x), rcond=1e-11)
    meat = x.T @ (s[:, None] ** 2 * x)
    return (
        float(np.sqrt(target @ bread @ target)),
        float(np.sqrt(target @ bread @ meat @ bread @ target)),
    )


def estimable(x: np.ndarray, target: np.ndarray) -> bool:
    """Whether the target is a combination of the rows of x."""
    return bool(
        np.linalg.norm(np.linalg.pinv(x, rcond=1e-10) @ x @ target - target)
        < 1e-7 * np.linalg.norm(target)
    )


def canonical_correlations(x_a: np.ndarray, x_b: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weighted canonical correlations of two blocks off the constant, decreasing."""
    centred = [np.sqrt(w)[:, None] * (x - w @ x / w.sum()) for x in (x_a, x_b)]
    q_a, q_b = (np.linalg.qr(x)[0] for x in centred)
    return np.linalg.svd(q_a.T @ q_b, compute_uv=False)

"""Reference averaging as a textbook would write it: explicit matrices, one row at a time.

Written from the formulas, not from the library's code. A site is a pair (x, y); no intercepts
unless a column of ones is among the columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Site = tuple[Matrix, Vector]


# --------------------------------------------------------------------------- ridge


def second_moment(x: Matrix) -> Matrix:
    """X'X / n, row by row."""
    total = np.zeros((x.shape[1], x.shape[1]))
    for row in x:
        total += np.outer(row, row)
    return total / len(x)


def cross_moment(x: Matrix, y: Vector) -> Vector:
    total = np.zeros(x.shape[1])
    for row, value in zip(x, y, strict=True):
        total += row * value
    return total / len(x)


def ridge(x: Matrix, y: Vector, lam: float) -> Vector:
    """Minimise the mean of (y - x'b)^2 plus lam |b|^2."""
    v = second_moment(x) + lam * np.eye(x.shape[1])
    return np.linalg.solve(v, cross_moment(x, y))


def ridge_refit(site: Site, a: Matrix, target: Vector, rho: float, lam: float) -> Vector:
    """Own mean loss, rho times the mean loss on the pseudo-rows, and the penalty once."""
    x, y = site
    left = second_moment(x) + lam * np.eye(x.shape[1]) + rho * second_moment(a)
    return np.linalg.solve(left, cross_moment(x, y) + rho * cross_moment(a, target))


def shares(sites: list[Site]) -> list[float]:
    total = sum(len(y) for _, y in sites)
    return [len(y) / total for _, y in sites]


def mean_coefficients(sites: list[Site], betas: list[Vector]) -> Vector:
    found = np.zeros_like(betas[0])
    for w, beta in zip(shares(sites), betas, strict=True):
        found = found + w * beta
    return found


def ridge_average(sites: list[Site], lam: float) -> Vector:
    """Plain averaging: AVGM, iteration 0."""
    return mean_coefficients(sites, [ridge(x, y, lam) for x, y in sites])


def ridge_global(sites: list[Site], lam: float) -> Vector:
    """(sum w_b V_b)^-1 sum w_b V_b beta_b, which is the fit of all rows."""
    p = sites[0][0].shape[1]
    left, right = np.zeros((p, p)), np.zeros(p)
    for w, (x, y) in zip(shares(sites), sites, strict=True):
        v = second_moment(x) + lam * np.eye(p)
        left += w * v
        right += w * v @ ridge(x, y, lam)
    return np.linalg.solve(left, right)


def ridge_fixed_point(sites: list[Site], a: Matrix, rho: float, lam: float) -> Vector:
    """Q^-1 sum w_b Q_b beta_b with Q_b = (V_b + rho U)^-1 V_b."""
    p = a.shape[1]
    u = second_moment(a)
    q, right = np.zeros((p, p)), np.zeros(p)
    for w, (x, y) in zip(shares(sites), sites, strict=True):
        v = second_moment(x) + lam * np.eye(p)
        q_b = np.linalg.solve(v + rho * u, v)
        q += w * q_b
        right += w * q_b @ ridge(x, y, lam)
    return np.linalg.solve(q, right)


def ridge_rounds(
    sites: list[Site], a: Matrix, lam: float, rhos: list[float]
) -> tuple[list[Vector], list[list[Vector]]]:
    """Synchronous rounds with weights rhos[0], rhos[1], ...; averages and sites' fits by round."""
    betas = [ridge(x, y, lam) for x, y in sites]
    averages, fits = [mean_coefficients(sites, betas)], [betas]
    for rho in rhos:
        target = a @ averages[-1]
        betas = [ridge_refit(site, a, target, rho, lam) for site in sites]
        averages.append(mean_coefficients(sites, betas))
        fits.append(betas)
    return averages, fits


def adaptive_rhos(n_rounds: int, c: float = 1.0, exponent: float = 0.9) -> list[float]:
    return [c * k**exponent for k in range(1, n_rounds + 1)]


def ridge_asynchronous(
    sites: list[Site],
    a: Matrix,
    lam: float,
    arrivals: list[int],
    rho: float,
    exponent: float = 0.0,
) -> list[Vector]:
    """One site at a time, as they arrive; each counts its own rounds."""
    betas = [ridge(x, y, lam) for x, y in sites]
    counts = [0] * len(sites)
    averages = [mean_coefficients(sites, betas)]
    for b in arrivals:
        counts[b] += 1
        target = a @ averages[-1]
        betas[b] = ridge_refit(sites[b], a, target, rho * counts[b] ** exponent, lam)
        averages.append(mean_coefficients(sites, betas))
    return averages


# --------------------------------------------------------------------------- logistic regression


def logistic(x: Matrix, y: Vector, weight: Vector, lam: float = 0.0, steps: int = 60) -> Vector:
    """Weighted sum of log-losses plus lam |b|^2 / 2, by plain Newton steps with halving."""
    beta = np.zeros(x.shape[1])

    def objective(b: Vector) -> float:
        total = lam * float(b @ b) / 2
        for row, value, w in zip(x, y, weight, strict=True):
            eta = float(row @ b)
            total += w * (float(np.logaddexp(0.0, eta)) - value * eta)
        return total

    for _ in range(steps):
        gradient, hessian = lam * beta, lam * np.eye(len(beta))
        for row, value, w in zip(x, y, weight, strict=True):
            chance = 1.0 / (1.0 + math.exp(-float(row @ beta)))
            gradient = gradient + w * (chance - value) * row
            hessian = hessian + w * chance * (1 - chance) * np.outer(row, row)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while objective(beta - size * step) > objective(beta) + 1e-15 and size > 1e-6:
            size /= 2
        beta = beta - size * step
        if np.abs(size * step).max() < 1e-12:
            break
    return beta


def probabilities(x: Matrix, beta: Vector) -> Vector:
    return np.array([1.0 / (1.0 + math.exp(-float(row @ beta))) for row in x])


def pseudo_data(site: Site, a: Matrix, chance: Vector, rho: float) -> tuple[Matrix, Vector, Vector]:
    """Own rows of weight 1/n; every reference row once as 1 and once as 0, by its probability."""
    x, y = site
    rows, values, weights = [*x], [*y], [1.0 / len(x)] * len(x)
    for row, c in zip(a, chance, strict=True):
        rows += [row, row]
        values += [1.0, 0.0]
        weights += [rho / len(a) * c, rho / len(a) * (1 - c)]
    return np.array(rows), np.array(values), np.array(weights)


def logistic_rounds(
    sites: list[Site], a: Matrix, rhos: list[float], lam: float = 0.0
) -> tuple[list[Vector], list[Vector]]:
    """Averaged probabilities at the reference, and averaged coefficients, by round."""
    betas = [logistic(x, y, np.full(len(y), 1 / len(y)), lam) for x, y in sites]
    chances: list[Vector] = []
    averages: list[Vector] = []
    for rho in [None, *rhos]:
        if rho is not None:
            betas = [logistic(*pseudo_data(site, a, chances[-1], rho), lam) for site in sites]
        chances.append(mean_coefficients(sites, [probabilities(a, beta) for beta in betas]))
        averages.append(mean_coefficients(sites, betas))
    return chances, averages


# --------------------------------------------------------------------------- lasso


def lasso(x: Matrix, y: Vector, weight: Vector, lam: float, sweeps: int = 5000) -> Vector:
    """(1 / (2 sum w)) sum w (y - x'b)^2 + lam |b|_1, one coefficient at a time."""
    total = float(sum(weight))
    beta = np.zeros(x.shape[1])
    for _ in range(sweeps):
        largest = 0.0
        for j in range(x.shape[1]):
            inner, square = 0.0, 0.0
            for row, value, w in zip(x, y, weight, strict=True):
                rest = value - float(row @ beta) + row[j] * beta[j]
                inner += w * row[j] * rest / total
                square += w * row[j] ** 2 / total
            new = math.copysign(max(abs(inner) - lam, 0.0), inner) / square if square > 0 else 0.0
            largest = max(largest, abs(new - beta[j]))
            beta[j] = new
        if largest < 1e-11:
            break
    return beta


def lasso_refit(site: Site, a: Matrix, target: Vector, rho: float, lam: float) -> Vector:
    """Weights 1/n and rho/m sum to 1 + rho, so the penalty of the mean loss is lam / (1 + rho)."""
    x, y = site
    weight = np.array([1.0 / len(x)] * len(x) + [rho / len(a)] * len(a))
    return lasso(np.vstack([x, a]), np.concatenate([y, target]), weight, lam / (1 + rho))


def lasso_rounds(sites: list[Site], a: Matrix, lam: float, rhos: list[float]) -> list[Vector]:
    betas = [lasso(x, y, np.ones(len(y)), lam) for x, y in sites]
    averages = [mean_coefficients(sites, betas)]
    for rho in rhos:
        target = a @ averages[-1]
        betas = [lasso_refit(site, a, target, rho, lam) for site in sites]
        averages.append(mean_coefficients(sites, betas))
    return averages

"""Textbook probabilistic principal components: row by row, with matrices of observed columns."""

from __future__ import annotations

import numpy as np


def maximum(x: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance matrix of a row and noise variance of complete rows, by their formula."""
    mean = x.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    noise = values[: x.shape[1] - rank].mean()
    top, directions = values[x.shape[1] - rank :], vectors[:, x.shape[1] - rank :]
    w = directions @ np.diag(np.sqrt(top - noise))
    return mean, w @ w.T + noise * np.eye(x.shape[1]), float(noise)


def log_likelihood(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Of the entries of each row that are not NaN."""
    out = np.zeros(len(x))
    for i, row in enumerate(x):
        o = ~np.isnan(row)
        c, r = covariance[np.ix_(o, o)], (row - mean)[o]
        out[i] = -0.5 * (o.sum() * np.log(2 * np.pi) + np.linalg.slogdet(c)[1])
        out[i] -= 0.5 * r @ np.linalg.solve(c, r)
    return out


def filled(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Missing entries by their mean given the observed ones of the row."""
    out = x.copy()
    for i, row in enumerate(x):
        o, m = ~np.isnan(row), np.isnan(row)
        across = covariance[np.ix_(m, o)]
        out[i, m] = mean[m] + across @ np.linalg.solve(covariance[np.ix_(o, o)], (row - mean)[o])
    return out


def em_step(
    x: np.ndarray, mean: np.ndarray, w: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """One plain step: hidden coordinates of each row, then one regression for each column."""
    k = w.shape[1]
    z, zz = np.zeros((len(x), k)), np.zeros((len(x), k, k))
    for i, row in enumerate(x):
        o = ~np.isnan(row)
        inverse = np.linalg.inv(w[o].T @ w[o] + noise * np.eye(k))
        z[i] = inverse @ w[o].T @ (row - mean)[o]
        zz[i] = noise * inverse + np.outer(z[i], z[i])
    new_mean, new_w, left = mean.copy(), w.copy(), 0.0
    for j in range(x.shape[1]):
        o = ~np.isnan(x[:, j])
        system = np.zeros((k + 1, k + 1))
        system[:k, :k] = zz[o].sum(axis=0)
        system[:k, k] = system[k, :k] = z[o].sum(axis=0)
        system[k, k] = o.sum()
        right = np.append(z[o].T @ x[o, j], x[o, j].sum())
        beta = np.linalg.solve(system, right)
        new_w[j], new_mean[j] = beta[:k], beta[k]
        r = x[o, j] - beta[k]
        left += (r**2).sum() - 2 * r @ z[o] @ beta[:k] + beta[:k] @ system[:k, :k] @ beta[:k]
    return new_mean, new_w, left / (~np.isnan(x)).sum()

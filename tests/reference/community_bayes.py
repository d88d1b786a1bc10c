"""Community Bayes step by step, as in arXiv 1407.4543: loops, no cache, no shortcut."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone


def average_ranks(column):
    """Rank of each number, equal numbers sharing the average of their ranks."""
    return np.array(
        [(column < value).sum() + ((column == value).sum() + 1) / 2 for value in column]
    )


def spearman_slowly(x):
    x = np.asarray(x, dtype=float)
    p = x.shape[1]
    found = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            a, b = average_ranks(x[:, i]), average_ranks(x[:, j])
            a, b = a - a.mean(), b - b.mean()
            if a.any() and b.any():
                found[i, j] = (a @ b) / np.sqrt((a @ a) * (b @ b))
    return found


def skeptic_slowly(x):
    rho = spearman_slowly(x)
    p = len(rho)
    return np.array(
        [[1.0 if i == j else 2 * np.sin(np.pi / 6 * rho[i, j]) for j in range(p)] for i in range(p)]
    )


def similarity_slowly(matrices, n):
    p = len(matrices[0])
    found = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            found[i, j] = np.sqrt(
                sum((nk * np.asarray(m)[i, j]) ** 2 for nk, m in zip(n, matrices, strict=True))
            )
    return found


def communities_slowly(similar, n_communities, linkage):
    """Merge the nearest two clusters until L are left."""
    distance = similar.max() - similar
    clusters = [[j] for j in range(len(similar))]
    how = {"average": np.mean, "complete": np.max, "single": np.min}[linkage]
    while len(clusters) > n_communities:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]
        a, b = min(pairs, key=lambda ab: how(distance[np.ix_(clusters[ab[0]], clusters[ab[1]])]))
        clusters[b] = sorted(clusters[b] + clusters[a])
        del clusters[a]
    return sorted(clusters)


def community_bayes(x, y, base, n_communities, linkage, new):
    """Posterior of each class at new rows: (m, K)."""
    classes = np.unique(y)
    matrices = [skeptic_slowly(x[y == k]) for k in classes]
    n = [int((y == k).sum()) for k in classes]
    parts = communities_slowly(similarity_slowly(matrices, n), n_communities, linkage)
    priors = np.array(n) / len(y)
    score = np.zeros((len(new), len(classes)))
    for part in parts:
        fitted = clone(base).fit(x[:, part], y)
        score += np.log(fitted.predict_proba(new[:, part]))
    score += (1 - len(parts)) * np.log(priors)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)

"""K-means with gaps step by step: distances over observed entries, k-POD, criteria, fills."""

from __future__ import annotations

import itertools

import numpy as np


def column_means(x):
    return np.array(
        [np.nanmean(c) if not np.isnan(c).all() else np.nanmean(x) for c in np.asarray(x).T]
    )


def cost(row, centre):
    return sum((a - b) ** 2 for a, b in zip(row, centre, strict=True) if not np.isnan(a))


def nearest(x, centres):
    return np.array([int(np.argmin([cost(row, c) for c in centres])) for row in x])


def centre_of(x, members):
    """Mean of what is observed, coordinate by coordinate; else the column's."""
    means = column_means(x)
    centre = []
    for j in range(x.shape[1]):
        seen = [x[i, j] for i in members if not np.isnan(x[i, j])]
        centre.append(np.mean(seen) if seen else means[j])
    return np.array(centre)


def lloyd_slowly(x, centres, steps=500):
    """From given centres to labels that stay; no class may lose its rows."""
    labels = None
    for _ in range(steps):
        new = nearest(x, centres)
        if labels is not None and (new == labels).all():
            break
        labels = new
        centres = np.array([centre_of(x, np.flatnonzero(labels == c)) for c in range(len(centres))])
    return centres, labels, inertia(x, centres, labels)


def inertia(x, centres, labels):
    return sum(cost(row, centres[c]) for row, c in zip(x, labels, strict=True))


def kpod_slowly(x, centres, fills=5000, tol=1e-6):
    """Chi, Chi and Baraniuk 2016, algorithm 1, from given centres."""
    filled = np.where(np.isnan(x), column_means(x), x)
    last = np.inf
    for _ in range(fills):
        centres, labels, _ = lloyd_slowly(filled, centres)
        total = inertia(x, centres, labels)
        if last - total <= tol * total:
            break
        last = total
        filled = np.where(np.isnan(x), centres[labels], x)
    return centres, labels, total


def best_partition(x, k):
    """Smallest sum of squares over all ways to put the rows into at most k classes."""
    best = np.inf
    for labels in itertools.product(range(k), repeat=len(x)):
        if labels[0] != 0:
            continue
        labels = np.array(labels)
        centres = [centre_of(x, np.flatnonzero(labels == c)) for c in range(k)]
        best = min(best, inertia(x, centres, labels))
    return best


# ------------------------------------------------------------------ criteria


def dispersion(x, labels):
    return sum(
        ((x[labels == c] - x[labels == c].mean(axis=0)) ** 2).sum() for c in np.unique(labels)
    )


def krzanowski_lai_slowly(w, p, k):
    """`w[k]` is the dispersion of k classes."""

    def difference(k):
        return (k - 1) ** (2 / p) * w[k - 1] - k ** (2 / p) * w[k]

    return abs(difference(k) / difference(k + 1))


def hartigan_slowly(w, n, k):
    return (w[k] / w[k + 1] - 1) * (n - k - 1)


def jump_slowly(w, n, p, k):
    def height(k):
        return 0.0 if k == 0 else (w[k] / (n * p)) ** (-p / 2)

    return height(k) - height(k - 1)


# ------------------------------------------------------------------ means given what is observed


def normal_slowly(row, mean, covariance):
    """Conditional mean of the gaps, and the log density of the rest."""
    gaps = np.isnan(row)
    seen = ~gaps
    filled = np.where(gaps, mean, row)
    if not seen.any():
        return filled, 0.0
    block = covariance[np.ix_(seen, seen)]
    step = row[seen] - mean[seen]
    filled[gaps] = mean[gaps] + covariance[np.ix_(gaps, seen)] @ np.linalg.inv(block) @ step
    squares = step @ np.linalg.inv(block) @ step
    log_density = -0.5 * (squares + np.log(np.linalg.det(2 * np.pi * block)))
    return filled, log_density


def mixture_slowly(row, weights, means, covariances):
    parts = [normal_slowly(row, m, c) for m, c in zip(means, covariances, strict=True)]
    odds = np.array([w * np.exp(p[1]) for w, p in zip(weights, parts, strict=True)])
    return sum(o * p[0] for o, p in zip(odds / odds.sum(), parts, strict=True)), odds / odds.sum()


def lift_slowly(x, fit, rounds):
    """Fill with the means of the columns, fit, refill: the filled table after some rounds."""
    filled = np.where(np.isnan(x), column_means(x), x)
    for _ in range(rounds):
        filled = np.where(np.isnan(x), fit(filled), x)
    return filled

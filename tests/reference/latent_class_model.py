"""Classes of a latent class regression as a textbook would write them: events, not sums.

Written from the formulas, not from the library's code. A class is a pair (x, y) of its events.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import invgamma, multivariate_normal, norm

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Events = tuple[Matrix, Vector]

# --------------------------------------------------------------------------- marginal likelihood


def log_marginal_by_events(x: Matrix, y: Vector, sigma2: float, delta2: float) -> float:
    """Chain rule: each event given those before it, eqs. (4), (8), (9) of the source, corrected."""
    precision = np.eye(x.shape[1]) / delta2
    linear = np.zeros(x.shape[1])
    total = 0.0
    for row, value in zip(x, y, strict=True):
        covariance = np.linalg.inv(precision)
        mean = row @ covariance @ linear
        total += norm.logpdf(value, mean, math.sqrt(sigma2 + row @ covariance @ row))
        precision = precision + np.outer(row, row) / sigma2
        linear = linear + row * value / sigma2
    return total


def log_marginal_dense(x: Matrix, y: Vector, sigma2: float, delta2: float) -> float:
    """All events at once, as one multivariate normal."""
    covariance = sigma2 * np.eye(len(y)) + delta2 * x @ x.T
    return float(multivariate_normal.logpdf(y, np.zeros(len(y)), covariance))


def log_marginal_noise(x: Matrix, y: Vector, df: float, scale: float, delta2: float) -> float:
    """The same over ``sigma2 ~ InvGamma(df/2, df scale/2)``, on a fine grid of its logarithm.

    In the axes of the covariance of the events, whose variances are sigma2 + delta2 v.
    """
    values, axes = np.linalg.eigh(x @ x.T)
    u = np.linspace(-25.0, 15.0, 2_001)
    s = np.exp(u)
    logs = invgamma(df / 2, scale=df * scale / 2).logpdf(s) + u
    for value, along in zip(np.maximum(values, 0.0), axes.T @ y, strict=True):
        logs += norm.logpdf(along, 0.0, np.sqrt(s + delta2 * value))
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum() * (u[1] - u[0])))


# --------------------------------------------------------------------------- partitions


def log_labels(labels: Sequence[int], concentrations: Sequence[float]) -> float:
    """Dirichlet-multinomial by the chain rule: Polya's urn, one label after the other."""
    balls = [float(a) for a in concentrations]
    total = 0.0
    for label in labels:
        total += math.log(balls[label] / sum(balls))
        balls[label] += 1.0
    return total


def log_partition(labels: Sequence[int], n_classes: int, alpha: float) -> float:
    """Sum of the probabilities of all labellings that put the same entities together."""
    same = np.equal.outer(labels, labels)
    each = [alpha / n_classes] * n_classes
    return math.log(
        sum(
            math.exp(log_labels(other, each))
            for other in itertools.product(range(n_classes), repeat=len(labels))
            if (np.equal.outer(other, other) == same).all()
        )
    )


def log_partition_of_counts(counts: Sequence[int], alpha: float) -> float:
    """The same without the enumeration: one labelling times the number of namings."""
    k = len(counts)
    labels = [c for c, size in enumerate(counts) for _ in range(size)]
    used = sum(size > 0 for size in counts)
    return log_labels(labels, [alpha / k] * k) + math.log(math.perm(k, used))


# --------------------------------------------------------------------------- merging


def log_joint(
    classes: Sequence[Events],
    counts: Sequence[int],
    sigma2: float,
    delta2: float,
    alpha: float,
    df: float | None = None,
) -> float:
    """Log density of the events and probability of the partition.

    With `df` classes have their own noise around sigma2.
    """
    parts = [part for part in classes if len(part[1])]
    if df is None:
        data = sum(log_marginal_dense(x, y, sigma2, delta2) for x, y in parts)
    else:
        data = sum(log_marginal_noise(x, y, df, sigma2, delta2) for x, y in parts)
    return data + log_partition_of_counts(counts, alpha)


def joined(
    classes: Sequence[Events], counts: Sequence[int], a: int, b: int
) -> tuple[list[Events], list[int]]:
    """Classes with b put into a, and b left behind without events."""
    parts, sizes = list(classes), list(counts)
    x, y = parts[a][0], parts[a][1]
    parts[a] = (np.vstack([x, parts[b][0]]), np.concatenate([y, parts[b][1]]))
    parts[b] = (np.zeros((0, x.shape[1])), np.zeros(0))
    sizes[a], sizes[b] = sizes[a] + sizes[b], 0
    return parts, sizes


def merge_gain(
    classes: Sequence[Events],
    counts: Sequence[int],
    a: int,
    b: int,
    variances: tuple[float, float],
    alpha: float,
    df: float | None = None,
) -> float:
    after = joined(classes, counts, a, b)
    before = log_joint(classes, counts, *variances, alpha, df)
    return log_joint(*after, *variances, alpha, df) - before


def merge_down(
    classes: Sequence[Events],
    counts: Sequence[int],
    variances: tuple[float, float],
    alpha: float,
    n_classes: int,
    df: float | None = None,
) -> tuple[list[set[int]], list[float]]:
    """Greedy merging; every gain of every pair anew each time."""
    groups = {k: {k} for k in range(len(counts))}
    parts, sizes = list(classes), list(counts)
    path = []
    while len(groups) > n_classes:
        pairs = itertools.combinations(sorted(groups), 2)
        gains = {pair: merge_gain(parts, sizes, *pair, variances, alpha, df) for pair in pairs}
        (a, b), gain = max(gains.items(), key=lambda item: item[1])
        parts, sizes = joined(parts, sizes, a, b)
        groups[a] |= groups.pop(b)
        path.append(gain)
    order = sorted(groups, key=lambda k: (-sizes[k], k))
    return [groups[k] for k in order], path


# --------------------------------------------------------------------------- mixtures


def quantile(weights: Vector, means: Vector, sds: Vector, q: float) -> float:
    """Root of the mixture's cdf, or of its survival function above the median."""
    ends = means + sds * norm.ppf(q)
    low, high = float(ends.min()), float(ends.max())
    if low == high:
        return low

    def excess(at: float) -> float:
        if q > 0.5:
            return (1.0 - q) - float(weights @ norm.sf((at - means) / sds))
        return float(weights @ norm.cdf((at - means) / sds)) - q

    room = 1e-9 * (high - low)
    return float(brentq(excess, low - room, high + room, xtol=1e-300, rtol=1e-15, maxiter=10_000))


def total_variance(means: Sequence[Vector], covariances: Sequence[Matrix]) -> Matrix:
    """Law of total variance for one of R normals, all equally likely."""
    centre = sum(means) / len(means)
    within = sum(covariances) / len(covariances)
    between = sum(np.outer(m - centre, m - centre) for m in means) / len(means)
    return within + between

"""Meta clustering as a textbook would write it: one pair, one row, one cluster at a time.

Written from the formulas, not from the library's code. Missing pairs are NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def pooled_covariance(tables: list[Matrix]) -> tuple[Matrix, Matrix, float]:
    """S, S* and l from the rows of all sites."""
    p = tables[0].shape[1]
    s = np.zeros((p, p))
    freedom = -len(tables)
    for x in tables:
        centre = sum(row for row in x) / len(x)
        for row in x:
            s += np.outer(row - centre, row - centre)
        freedom += len(x)
    s /= freedom
    shrink = min(1.0, p / freedom)
    return s, (1 - shrink) * s + shrink * np.diag(np.diag(s)), shrink


def overlap_weights(x: Matrix, i: int, j: int, tables: list[Matrix]) -> list[float]:
    """Weights of rows x of site j against site i."""
    s, shrunk, _ = pooled_covariance(tables)
    m_i, m_j = tables[i].mean(axis=0), tables[j].mean(axis=0)
    delta = m_i - m_j
    g = np.linalg.solve(shrunk, delta)
    noise = np.trace(np.linalg.solve(shrunk, s)) * (1 / len(tables[i]) + 1 / len(tables[j]))
    f = max(0.0, 1 - noise / float(delta @ g)) if delta @ g > 0 else 0.0
    return [1 / (1 + math.exp(-f * float((row - (m_i + m_j) / 2) @ g))) for row in x]


def excess(d: list[float], h: list[float]) -> tuple[float, float, float]:
    """D, Q and the effective number of rows."""
    total = sum(h)
    mean = sum(b * a for a, b in zip(d, h, strict=True)) / total
    q = sum(b**2 * (a - mean) ** 2 for a, b in zip(d, h, strict=True)) / total**2
    return mean, q, total**2 / sum(b**2 for b in h)


def pairwise(
    excess_: Matrix,
    variance: Matrix,
    effective: Matrix,
    n: list[int],
    var_y: list[float],
    tau: float = 0.03,
    min_effective: float = 20,
) -> tuple[Matrix, Matrix, Matrix]:
    """w, se and z."""
    size = len(n)
    w, se, z = (np.zeros((size, size)) for _ in range(3))
    for i in range(size):
        for j in range(size):
            if i == j:
                continue
            if min(effective[i, j], effective[j, i]) < min_effective:
                w[i, j] = se[i, j] = z[i, j] = math.nan
                continue
            both = n[i] + n[j]
            w[i, j] = excess_[i, j] + excess_[j, i]
            se[i, j] = math.sqrt(
                variance[i, j] * (1 + n[i] / both) + variance[j, i] * (1 + n[j] / both)
            )
            z[i, j] = (w[i, j] - tau * (var_y[i] + var_y[j])) / se[i, j]
    return w, se, z


def upper(excess_: Matrix, variance: Matrix, effective: Matrix, n: list[int], var_y: list[float]):
    """Bound of the loss of each site with each other's model, 95%, in shares of its variance."""
    from scipy.stats import t

    size = len(n)
    bound = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            if i != j:
                se = math.sqrt(variance[i, j] * (1 + n[i] / (n[i] + n[j])))
                quantile = t.ppf(0.95, effective[i, j] - 1)
                bound[i, j] = (excess_[i, j] + quantile * se) / var_y[j]
    return bound


def alike(bound: Matrix, i: int, j: int, tolerance: float) -> bool:
    """Evidence: both know their bound, and both bounds are small enough."""
    return bool(bound[i, j] <= tolerance and bound[j, i] <= tolerance)


def half_alike(evidence: Matrix | None, a: list[int], b: list[int]) -> bool:
    """Whether half of the pairs between a and b, or within where they overlap, have evidence."""
    if evidence is None:
        return True
    pairs = [(i, j) for i in a for j in b if i != j]
    return 2 * sum(bool(evidence[i, j]) for i, j in pairs) >= len(pairs)


def without_doubtful(evidence: Matrix, clusters: list[list[int]]) -> list[list[int]]:
    """The member with the smallest share of evidence leaves, one at a time."""
    clusters = [sorted(c) for c in clusters]
    while True:
        shares = []
        for k, c in enumerate(clusters):
            for site in c:
                others = [o for o in c if o != site]
                if others and not half_alike(evidence, [site], others):
                    share = sum(bool(evidence[site, o]) for o in others) / len(others)
                    shares.append((share, site, k))
        if not shares:
            return clusters
        _, site, k = min(shares)
        clusters[k].remove(site)
        clusters.append([site])


def mean_between(z: Matrix, a: list[int], b: list[int]) -> float:
    values = [z[i, j] for i in a for j in b if i != j and not math.isnan(z[i, j])]
    return sum(values) / len(values) if values else math.inf


def threshold(a: list[int], b: list[int]) -> float:
    return 0.5 + 1.35 / math.sqrt(min(len(a), len(b)))


def merge_once(z: Matrix, clusters: list[list[int]], rule: bool, evidence: Matrix | None = None):
    """The pair to merge, clusters being in order of their first members; None if there is none."""
    best = None
    for a in range(len(clusters)):
        for b in range(a + 1, len(clusters)):
            mean = mean_between(z, clusters[a], clusters[b])
            if rule and mean > threshold(clusters[a], clusters[b]):
                continue
            if rule and not half_alike(evidence, clusters[a], clusters[b]):
                continue
            if best is None or mean < best[0]:
                best = (mean, a, b)
    return best


def merge_all(z: Matrix, evidence: Matrix | None = None):
    """Every merge as (members of a, members of b, height), and after how many the rule stops."""
    clusters = [[i] for i in range(len(z))]
    steps, stop = [], None
    while len(clusters) > 1:
        best = merge_once(z, clusters, stop is None, evidence)
        if best is None:
            stop = len(steps)
            continue
        mean, a, b = best
        steps.append((sorted(clusters[a]), sorted(clusters[b]), mean))
        joined = sorted(clusters[a] + clusters[b])
        clusters = sorted([c for k, c in enumerate(clusters) if k not in (a, b)] + [joined])
    return steps, len(steps) if stop is None else stop


def partition_after(steps, n_sites: int, n_merges: int) -> list[list[int]]:
    clusters = [[i] for i in range(n_sites)]
    for a, b, _ in steps[:n_merges]:
        clusters = sorted([c for c in clusters if c not in (a, b)] + [sorted(a + b)])
    return clusters


def relocated(
    z: Matrix, clusters: list[list[int]], max_moves: int, evidence: Matrix | None = None
) -> list[list[int]]:
    """Move one site at a time, that of the largest gain, to the cluster of smallest mean z."""
    clusters = [list(c) for c in clusters]
    for _ in range(max_moves):
        best = None
        for site in range(len(z)):
            home = next(k for k, c in enumerate(clusters) if site in c)
            if len(clusters[home]) == 1:
                continue
            others = [
                mean_between(z, [site], c) if half_alike(evidence, [site], c) else math.inf
                for c in clusters
            ]
            own = others[home]
            target = min(range(len(clusters)), key=lambda k: others[k])
            gain = own - others[target] if math.isfinite(others[target]) else 0.0
            if gain > 1e-9 * max(1.0, abs(others[target])) and (best is None or gain > best[0]):
                best = (gain, site, home, target)
        if best is None:
            break
        _, site, home, target = best
        clusters[home].remove(site)
        clusters[target].append(site)
    return clusters


def labels_of(clusters: list[list[int]]) -> list[int]:
    """Largest cluster first, then by first member."""
    ordered = sorted(clusters, key=lambda c: (-len(c), min(c)))
    labels = {site: k for k, c in enumerate(ordered) for site in c}
    return [labels[site] for site in range(len(labels))]


def cluster(z: Matrix, n_clusters: int | None = None, evidence: Matrix | None = None) -> list[int]:
    steps, stop = merge_all(z) if evidence is None else merge_all(z, evidence)
    cut = stop if n_clusters is None else len(z) - n_clusters
    clusters = partition_after(steps, len(z), cut)
    # clusters are looked at in the order of their labels
    clusters = sorted(clusters, key=lambda c: (-len(c), min(c)))
    if evidence is None or n_clusters is not None:
        return labels_of(relocated(z, clusters, 3 * len(z)))
    moved = relocated(z, clusters, 3 * len(z), evidence)
    return labels_of(without_doubtful(evidence, moved))


def source_dissimilarity(cross: Matrix, own: list[float]) -> Matrix:
    v = np.zeros_like(cross)
    for i in range(len(own)):
        for j in range(len(own)):
            if i != j:
                v[i, j] = abs(cross[i, j] - own[j]) + abs(cross[j, i] - own[i])
    return v


def reference_dissimilarity(predictions: Matrix) -> Matrix:
    size, points = predictions.shape
    v = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            v[i, j] = (
                2
                * sum((predictions[i, a] - predictions[j, a]) ** 2 for a in range(points))
                / points
            )
    return v


def self_tuning(v: Matrix) -> Matrix:
    size = len(v)
    k = min(max(size // 3, 2), 7)
    s = np.ones((size, size))
    reach = []
    for i in range(size):
        others = sorted(v[i, j] for j in range(size) if j != i)
        reach.append(others[min(k, len(others)) - 1])
    for i in range(size):
        for j in range(size):
            if v[i, j] > 0:
                s[i, j] = math.exp(-v[i, j] / math.sqrt(reach[i] * reach[j]))
    return s


def spectral(s: Matrix, max_clusters: int, seed: int) -> tuple[list[float], list[int]]:
    """Eigenvalues (descending) and labels, with scikit-learn's K-means."""
    from sklearn.cluster import KMeans

    size = len(s)
    degree = [sum(s[i, j] for j in range(size)) for i in range(size)]
    laplacian = np.array(
        [[s[i, j] / math.sqrt(degree[i] * degree[j]) for j in range(size)] for i in range(size)]
    )
    values, vectors = np.linalg.eigh(laplacian)
    order = np.argsort(-values)
    gaps = [
        values[order[k - 1]] - values[order[k]] for k in range(1, min(max_clusters, size - 1) + 1)
    ]
    n_clusters = gaps.index(max(gaps)) + 1
    rows = vectors[:, order[:n_clusters]]
    rows = np.array([row / math.sqrt(sum(u * u for u in row)) for row in rows])
    found = KMeans(n_clusters, n_init=20, random_state=seed).fit_predict(rows)
    members = [[i for i in range(size) if found[i] == k] for k in range(n_clusters)]
    return [float(value) for value in values[order]], labels_of(members)


def excess_losses(d: Matrix, h: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """As `excess` for each column of arrays: mean, squared standard error, effective rows."""
    total = h.sum(axis=0)
    mean = (h * d).sum(axis=0) / total
    variance = np.square(h * (d - mean) / total).sum(axis=0)
    return mean, variance, total**2 / np.square(h).sum(axis=0)

"""Textbook sketch tests and prices: record by record, all signs, no shared code."""

from __future__ import annotations

from itertools import product

import numpy as np

from tests.reference import glm


def epsilon(directions: np.ndarray, scale: float, geometry: str, bound: float) -> float:
    """Supremum of ``|T'd|_1 / scale`` over differences d of two records, sign by sign."""
    largest = 0.0
    for signs in product((-1.0, 1.0), repeat=directions.shape[1]):
        reached = directions @ np.array(signs)
        if geometry == "box":
            length = sum(abs(v) for v in reached) * bound
        else:
            length = 2 * bound * np.sqrt(sum(v * v for v in reached))
        largest = max(largest, length)
    return largest / scale


def worst_difference(directions: np.ndarray, geometry: str, bound: float) -> np.ndarray:
    """Difference of two records at which the supremum is reached."""
    best, at = -1.0, np.zeros(directions.shape[0])
    for signs in product((-1.0, 1.0), repeat=directions.shape[1]):
        reached = directions @ np.array(signs)
        if geometry == "box":
            d = bound * np.sign(reached)
        else:
            d = 2 * bound * reached / np.linalg.norm(reached)
        change = np.sum(np.abs(directions.T @ d))
        if change > best:
            best, at = change, d
    return at


def sketch_test(name, x_a, z, y, *, mask=0.0, cluster=None, offset=0.0):
    """Statistics of the Wald test (plain and HC3) and of the score test, by explicit sums."""
    n, t = z.shape
    of = np.arange(n) if cluster is None else cluster
    both = np.column_stack([x_a, z])
    zero, one = np.zeros(n), np.ones(n)

    beta = glm.fit(name, both, y, zero + offset, one, mask=mask)
    d = np.column_stack([one, both])
    eta = d @ beta + offset
    s, w = glm.score(name, y, eta, mask=mask), glm.weight(name, y, eta, mask=mask)
    j = sum(w[i] * np.outer(d[i], d[i]) for i in range(n)) / n
    inverse = np.linalg.inv(j)

    def squares(rows):
        sums = [rows[of == name].sum(axis=0) for name in np.unique(of)]
        return sum(np.outer(u, u) for u in sums)

    def wald(scores):
        k = squares(scores[:, None] * d) / n
        v = inverse @ k @ inverse
        theta = beta[-t:]
        return n * theta @ np.linalg.inv(v[-t:, -t:]) @ theta

    left_out = s.copy()
    for name_of in np.unique(of):
        g = of == name_of
        hat = w[g, None] * (d[g] @ inverse @ d[g].T) / n
        left_out[g] = np.linalg.solve(np.eye(g.sum()) - hat, s[g])

    alone = glm.fit(name, x_a, y, zero + offset, one, mask=mask)
    a = np.column_stack([one, x_a])
    eta0 = a @ alone + offset
    s0, w0 = glm.score(name, y, eta0, mask=mask), glm.weight(name, y, eta0, mask=mask)
    rest = z - a @ np.linalg.inv(a.T @ np.diag(w0) @ a) @ a.T @ np.diag(w0) @ z
    total = rest.T @ s0
    h0 = np.diag(a @ np.linalg.inv(a.T @ np.diag(w0) @ a) @ a.T @ np.diag(w0))
    score = total @ np.linalg.inv(squares((s0 / np.sqrt(1 - h0))[:, None] * rest)) @ total
    return {"wald": wald(s), "wald_hc3": wald(left_out), "score": score}


def flipped_scores(name, x_a, z, y, signs, cluster=None):
    """Score statistics of residuals with other signs, one after another; identity link and others.

    To first order a fit to the scores e leaves ``e - W A (A'WA)^-1 A'e``.
    """
    n = len(y)
    zero, one = np.zeros(n), np.ones(n)
    alone = glm.fit(name, x_a, y, zero, one)
    a = np.column_stack([one, x_a])
    s, w = glm.score(name, y, a @ alone), np.diag(glm.weight(name, y, a @ alone))
    hat = w @ a @ np.linalg.inv(a.T @ w @ a) @ a.T
    rest = z - hat.T @ z
    h = np.diag(hat)
    of = np.arange(n) if cluster is None else cluster
    found = []
    for g in signs:
        e = g[of] * s / np.sqrt(1 - h)
        e = e - hat @ e
        total = sum(rest[i] * e[i] for i in range(n))
        rows = rest * (e / np.sqrt(1 - h))[:, None]
        sums = [rows[of == c].sum(axis=0) for c in np.unique(of)]
        spread = sum(np.outer(u, u) for u in sums)
        found.append(total @ np.linalg.inv(spread) @ total)
    return np.array(found)

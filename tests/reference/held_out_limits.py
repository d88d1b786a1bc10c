"""Limits from held-out rows, written out: one new person and one candidate value at a time."""

from __future__ import annotations

import numpy as np


def response_accepted(scores: np.ndarray, weights: np.ndarray, score: float, level: float) -> bool:
    """Whether a new person with this score stays within limits of a level.

    Its rank among the held-out rows: the share of the weight of rows with a smaller score, its own
    weight of 1 in the sum, must be below the level.
    """
    smaller = sum(w for s, w in zip(scores, weights, strict=True) if s < score)
    return smaller < level * (sum(weights) + 1) - 1e-9


def isotonic_at(x: np.ndarray, y: np.ndarray, w: np.ndarray, at: float) -> float:
    """Isotonic regression of y on x at a value of x that is there, by the min-max formula."""
    points = sorted(set(x.tolist()))
    i = points.index(at)
    best = -np.inf
    for a in range(i + 1):
        least = np.inf
        for b in range(i, len(points)):
            within = (x >= points[a]) & (x <= points[b])
            least = min(least, float((w * y)[within].sum() / w[within].sum()))
        best = max(best, least)
    return best


def venn_abers(eta: np.ndarray, y: np.ndarray, w: np.ndarray, new: float) -> tuple[float, float]:
    """Isotonic regression with the new person in it, its response 0, then 1."""
    low, high = (
        isotonic_at(np.append(eta, new), np.append(y, label), np.append(w, 1.0), new)
        for label in (0.0, 1.0)
    )
    return low, high

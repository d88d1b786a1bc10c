"""Limits of single responses, and calibrated probabilities, from rows that a model has not seen.

They hold whatever the model is, also one of which some columns stay hidden: all that they need is
that held-out rows and new people are exchangeable.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray
from consilience.numerics.families import Family


def enough(level: float, n_held: int) -> bool:
    """Whether so many held-out rows, or clusters of them, can give limits of this level."""
    return (n_held + 1) * (1 - level) >= 1 - 1e-9


def response_limits(
    fam: Family,
    eta: FloatArray,
    y: FloatArray,
    new: FloatArray,
    level: float,
    weights: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Split conformal limits of the response of new people.

    The score of a row is its residual over what the family says of the spread at its mean. The
    limits are where a new person's score is the quantile of those of held-out rows, the new one
    among them at infinity (Lei and others 2018, *JASA* 113, section 2.2; with rows in clusters each
    cluster counts as one: Lee, Barber and Willett 2023, section 3).

    Parameters
    ----------
    fam : Family
        Not "binomial": see `calibrated`.
    eta, y : (h,) array
        Linear predictor and response of the held-out rows.
    new : (m,) array
        Linear predictor of the new people, by the same model.
    level : float
        Least coverage, on average over draws of held-out rows and new people.
    weights : (h,) array, optional
        What each row counts; by default 1. One over the size of its cluster, in clusters.

    Returns
    -------
    low, high : (m,) array
        Within the range of the family; whole numbers for counts, of which one at least is within.
        NaN where the rows are too few.
    """
    scores = np.abs(y - fam.mean(eta)) / _spread(fam, eta)
    order = np.argsort(scores, kind="stable")
    counts = np.ones(len(y)) if weights is None else weights[order]
    reached = np.cumsum(counts) >= level * (counts.sum() + 1) - 1e-9
    if not reached.any():
        return np.full(len(new), np.nan), np.full(len(new), np.nan)
    reach = scores[order][int(reached.argmax())] * _spread(fam, new)
    mean = fam.mean(new)
    low, high = mean - reach, mean + reach
    if fam.name in ("poisson", "gamma", "tweedie"):
        low = np.maximum(low, 0.0)
    if fam.name == "poisson":
        low, high = np.ceil(low - 1e-9), np.floor(high + 1e-9)
        # where no whole number is that near the mean, the nearest one: it covers no less
        low, high = (np.where(low > high, np.rint(mean), end) for end in (low, high))
    return low, high


def _spread(fam: Family, eta: FloatArray) -> FloatArray:
    """Standard deviation of the response by the family, up to a constant: ``|dmu/deta| / w^.5``."""
    if fam.name not in ("poisson", "gamma", "tweedie"):
        return np.ones(len(eta))
    return np.asarray(fam.mean(eta) / np.sqrt(fam.expected_weight(eta)))


def calibrated(
    eta: FloatArray, y: FloatArray, new: FloatArray, weights: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Two probabilities of the response 1 of each new person, of which one is calibrated.

    Isotonic regression of the responses on the linear predictor, over the held-out rows and the new
    person with the response 0, then 1 (inductive Venn-Abers predictors: Vovk, Petej and Fedorova
    2015, section 4).

    Parameters
    ----------
    eta, y : (h,) array
        Linear predictor, or anything that rises with it, and response (0 or 1) of the held-out
        rows.
    new : (m,) array
        The same of the new people, by the same model.
    weights : (h,) array, optional
        What each row counts, beside 1 of the new person; by default 1.

    Returns
    -------
    low, high : (m,) array
        0 and 1 where nothing was held out.
    """
    points, of = np.unique(eta, return_inverse=True)
    counts = np.ones(len(y)) if weights is None else weights
    sizes = np.bincount(of, weights=counts, minlength=len(points)).tolist()
    sums = np.bincount(of, weights=counts * y, minlength=len(points)).tolist()
    below, above = _blocks(sizes, sums), _blocks(sizes[::-1], sums[::-1], falling=True)
    asked, back = np.unique(new, return_inverse=True)
    first = np.searchsorted(points, asked, "left")
    tied = np.searchsorted(points, asked, "right") > first
    found = np.empty((len(asked), 2))
    known: dict[tuple[int, bool], list[float]] = {}
    for i, (at, tie) in enumerate(zip(first.tolist(), tied.tolist(), strict=True)):
        if (at, tie) not in known:
            size, total = (sizes[at], sums[at]) if tie else (0.0, 0.0)
            rest = len(sizes) - at - tie
            known[at, tie] = [
                _joined(below, at - 1, above, rest - 1, size + 1.0, total + label)
                for label in (0.0, 1.0)
            ]
        found[i] = known[at, tie]
    return found[back, 0], found[back, 1]


Blocks = tuple[list[float], list[float], list[int]]


def _blocks(sizes: list[float], sums: list[float], falling: bool = False) -> Blocks:
    """Isotonic regression of all first parts of a sequence at once.

    Its last block for the part that ends at j has ``size[j]`` and ``total[j]``, and the one before
    it is the last one of the part that ends at ``before[j]``.
    """
    size, total, before = list(sizes), list(sums), list(range(-1, len(sizes) - 1))
    sign = -1.0 if falling else 1.0
    for j in range(len(size)):
        while (k := before[j]) >= 0 and sign * (total[k] * size[j] - total[j] * size[k]) >= 0:
            size[j], total[j], before[j] = size[j] + size[k], total[j] + total[k], before[k]
    return size, total, before


def _joined(
    below: Blocks, left: int, above: Blocks, right: int, size: float, total: float
) -> float:
    """Mean of the block that a middle one ends in, between two regressions (pool adjacent)."""
    while True:
        if left >= 0 and below[1][left] * size >= total * below[0][left]:
            size, total, left = size + below[0][left], total + below[1][left], below[2][left]
        elif right >= 0 and above[1][right] * size <= total * above[0][right]:
            size, total, right = size + above[0][right], total + above[1][right], above[2][right]
        else:
            return total / size

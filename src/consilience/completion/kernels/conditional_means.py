"""Expected values of missing coordinates given the observed ones: normal, mixture, factor models.

A row with nothing observed gets the mean of the model. Rows with equally many gaps are computed
together, in systems of the size of their gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray

_LARGEST = 1 << 22  # numbers in the systems that are solved at a time


def normal_given_observed(
    x: FloatArray, seen: BoolArray, mean: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Conditional means under one normal density, and the density of what is observed.

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    mean : (p,) array
    covariance : (p, p) array
        Positive definite.

    Returns
    -------
    filled : (n, p) array
        Observed values, and means of the others given these.
    log_density : (n,) array
        Of the observed coordinates; 0 for a row without any.
    """
    precision = np.linalg.inv(covariance)
    free = np.full(len(x), np.linalg.slogdet(covariance)[1])
    step = np.where(seen, x - mean, 0.0)
    pulled = step @ precision
    for rows, gaps in _batches(seen):
        blocks = precision[gaps[:, :, None], gaps[:, None, :]]
        right = np.take_along_axis(pulled[rows], gaps, axis=1)
        step[rows[:, None], gaps] = -np.linalg.solve(blocks, right[:, :, None])[:, :, 0]
        free[rows] += np.linalg.slogdet(blocks)[1]
    squares = ((step @ precision) * step).sum(axis=1)
    constant = seen.sum(axis=1) * np.log(2 * np.pi)
    return np.where(seen, x, mean + step), -0.5 * (squares + free + constant)


def mixture_given_observed(
    x: FloatArray,
    seen: BoolArray,
    weights: FloatArray,
    means: FloatArray,
    covariances: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Conditional means under a mixture of normal densities, and its classes' probabilities.

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    weights : (k,) array
    means : (k, p) array
    covariances : (k, p, p) array

    Returns
    -------
    filled : (n, p) array
        Observed values, and means of the others given these.
    probabilities : (n, k) array
        Of the classes given the observed coordinates.
    """
    fills, logs = [], []
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        filled, log_density = normal_given_observed(x, seen, mean, covariance)
        fills.append(filled)
        with np.errstate(divide="ignore"):
            logs.append(np.log(weight) + log_density)
    scores = np.array(logs).T
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    expected = np.einsum("ik,kij->ij", probabilities, np.array(fills))
    return np.where(seen, x, expected), probabilities


def factors_given_observed(
    x: FloatArray,
    seen: BoolArray,
    mean: FloatArray,
    components: FloatArray,
    noise: FloatArray,
) -> FloatArray:
    """Expected factors of rows under factor analysis, (n, k).

    Parameters
    ----------
    x : (n, p) array
        Any number where nothing is observed.
    seen : (n, p) array of bool
    mean : (p,) array
    components : (k, p) array
        The covariance is ``components' components + diag(noise)``.
    noise : (p,) array
    """
    k = len(components)
    weights = seen / noise
    outer = (components[:, None, :] * components[None, :, :]).reshape(k * k, -1)
    systems = np.eye(k) + (weights @ outer.T).reshape(-1, k, k)
    right = (weights * np.where(seen, x - mean, 0.0)) @ components.T
    return np.asarray(np.linalg.solve(systems, right[:, :, None])[:, :, 0])


def _batches(seen: BoolArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows with equally many gaps, and the places of these, (r, g)."""
    counts = (~seen).sum(axis=1)
    for g in np.unique(counts[counts > 0]):
        alike = np.flatnonzero(counts == g)
        for rows in np.array_split(alike, -(-len(alike) * int(g) ** 2 // _LARGEST)):
            yield rows, np.nonzero(~seen[rows])[1].reshape(len(rows), g)

"""Predictions under latent classes: normal mixtures, their weights and intervals.

Source: arXiv 2206.10783, eq. (4), whose variance is here ``sigma2 + x'D^-1 x``, and algorithm 2.
Departures: the classes of an entity are averaged over, not sampled, and intervals are those of the
mixture: the interval of a single class does not cover what other classes may say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.parameters import check, number

if TYPE_CHECKING:
    from consilience.latent_regression.kernels.latent_class import Classes


_ROOT2 = math.sqrt(2.0)
_PEAK = 1.0 / math.sqrt(2.0 * math.pi)
_EPS = float(np.finfo(np.float64).eps)
_NOTHING = 1e-17  # of the tail: a weight below its rounding
_FINE = 1e-11  # width of what a quantile is shown to lie in, in the smallest sd
_WHOLE = 8.5  # sds above a mean where the cdf is 1 to rounding
_STEPS = 2200  # halvings from the largest to the smallest double


# --------------------------------------------------------------------------- one class


def class_predictions(x: FloatArray, classes: Classes) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of an event's y under each class.

    Parameters
    ----------
    x : (n, F) array
    classes : Classes
        K classes.

    Returns
    -------
    mean : (n, K) array
        ``x'm_k``.
    variance : (n, K) array
        ``sigma2 + x'D_k^-1 x``.

    Raises
    ------
    DataError
        Rows of another width than the classes have.
    """
    rows = np.ascontiguousarray(x, dtype=np.float64)
    k, f = classes.mean.shape
    if rows.ndim != 2 or rows.shape[1] != f:
        raise DataError(f"events need {f} columns each to be predicted")
    root = np.linalg.inv(np.asarray(classes.cholesky))  # |L^-1 x|^2 cannot become negative
    mean, variance = np.empty((len(rows), k)), np.empty((len(rows), k))
    means = np.ascontiguousarray(classes.mean.T)
    lower = np.ascontiguousarray(np.moveaxis(root, 0, 2))
    # eq. 4 with its variance read as sigma2 + x'D^-1 x
    noise = np.full(k, classes.sigma2, dtype=np.float64)
    _kernels()[0](rows, means, lower, noise, mean, variance)
    return mean, variance


def unseen_weights(agent_counts: ArrayLike, base: ArrayLike, beta: float) -> FloatArray:
    """Prior weights of the classes for an entity that has not been seen.

    Parameters
    ----------
    agent_counts : (.., K) array
        Seen entities of its agent in each class; zeros for an agent that has not been seen.
    base : (K,) array
        psi; sum 1.
    beta : float
        Positive.

    Returns
    -------
    (.., K) array
        ``(N_i^k + beta psi_k) / (sum_k N_i^k + beta)``.

    Raises
    ------
    ParameterError
        beta that is not positive.
    """
    check({"beta": number(above=0)}, locals())
    counts = np.asarray(agent_counts, dtype=np.float64)
    psi = np.asarray(base, dtype=np.float64)
    # Chinese restaurant of the agent: the next entity given those that were seen
    return np.asarray((counts + beta * psi) / (counts.sum(axis=-1, keepdims=True) + beta))


def posterior_weights(log_prior: ArrayLike, log_likelihood: ArrayLike) -> FloatArray:
    """Weights of the classes after events were observed.

    Parameters
    ----------
    log_prior, log_likelihood : (E, K) arrays
        ``-inf`` for a class that is impossible.

    Returns
    -------
    (E, K) array
        Rows sum to 1.

    Raises
    ------
    DataError
        A row without a possible class, or values that are not numbers.
    """
    logs = np.asarray(log_prior, dtype=np.float64) + np.asarray(log_likelihood, dtype=np.float64)
    most = logs.max(axis=-1, keepdims=True, initial=-np.inf)
    if not np.isfinite(most).all():
        raise DataError("no class is possible for an entity: its weights are not defined")
    # relative to the largest: none overflows, one is 1
    weights = np.exp(logs - most)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


# --------------------------------------------------------------------------- mixtures


def mixture_interval(
    weights: ArrayLike, means: ArrayLike, variances: ArrayLike, level: float
) -> tuple[FloatArray, FloatArray]:
    """Central intervals of normal mixtures.

    Parameters
    ----------
    weights, means, variances : (n, K) arrays
    level : float
        Probability inside, between 0 and 1; as much is left out below as above.

    Returns
    -------
    lower, upper : (n,) arrays

    Raises
    ------
    ParameterError
        A level outside (0, 1).
    DataError
        As `mixture_quantile`.
    """
    check({"level": number(above=0, below=1)}, locals())
    w, m, s = _checked(weights, means, np.sqrt(np.asarray(variances, dtype=np.float64)))
    tail = (1.0 - level) / 2.0
    return _lower(w, m, s, tail), -_lower(w, -m, s, tail)


def _checked(*arrays: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    w, m, s = (np.ascontiguousarray(each, dtype=np.float64) for each in arrays)
    if w.ndim != 2 or w.shape != m.shape or w.shape != s.shape:
        raise DataError("weights, means and spreads of mixtures must be tables of one shape")
    # what has no weight may be anything
    used = w != 0
    if not (np.isfinite(w).all() and np.isfinite(m[used]).all() and np.isfinite(s[used]).all()):
        raise DataError("weights, means and spreads of mixtures must be finite")
    if (w < 0).any() or (s[used] < 0).any() or not used.any(axis=1).all():
        raise DataError("every mixture needs positive weights and spreads that are not negative")
    return w, m, s


def _lower(w: FloatArray, m: FloatArray, s: FloatArray, tail: float) -> FloatArray:
    from scipy.special import ndtri

    found = np.empty(len(w))
    _kernels()[1](w, m, s, tail, float(ndtri(tail)), found)
    return found


# --------------------------------------------------------------------------- compiled


def _predict(x: Any, means: Any, lower: Any, sigma2: Any, mean: Any, variance: Any) -> None:
    """All classes of an event at once; class is the last axis of everything."""
    f, k = means.shape
    part = np.empty(k)
    for i in range(len(x)):
        for c in range(k):
            mean[i, c] = 0.0
            variance[i, c] = sigma2[c]
        for row in range(f):
            for c in range(k):
                mean[i, c] += x[i, row] * means[row, c]
                part[c] = 0.0
            for column in range(row + 1):
                for c in range(k):
                    part[c] += lower[row, column, c] * x[i, column]
            for c in range(k):
                variance[i, c] += part[c] * part[c]


def _quantiles(w: Any, m: Any, s: Any, tail: float, z: float, found: Any) -> None:
    """Quantile of each row's mixture at `tail`; z is the standard normal's."""
    n, k = w.shape
    weight, mean, sd = np.empty(k), np.empty(k), np.empty(k)
    for i in range(n):
        total = 0.0
        for c in range(k):
            total += w[i, c]
        # weights sum to 1 to rounding only
        goal = tail * total
        used, centre, least, low, high = 0, 0.0, np.inf, np.inf, -np.inf
        for c in range(k):
            if w[i, c] > _NOTHING * goal:
                weight[used], mean[used], sd[used] = w[i, c], m[i, c], s[i, c]
                centre += w[i, c] / total * m[i, c]
                least = min(least, s[i, c])
                end = m[i, c] + z * s[i, c]  # the quantile lies between those of the classes
                low, high = min(low, end), max(high, end)
                used += 1
        square = 0.0
        for c in range(used):
            square += weight[c] / total * (sd[c] ** 2 + (mean[c] - centre) ** 2)
        at, last = centre + z * math.sqrt(square), np.inf
        for _ in range(_STEPS):
            if not low < at < high:
                at = 0.5 * low + 0.5 * high
                last = high - low
                if not low < at < high:
                    break
            below, density = 0.0, 0.0
            for c in range(used):
                if at - mean[c] >= _WHOLE * sd[c]:
                    below += weight[c]
                elif sd[c] > 0.0:
                    u = (at - mean[c]) / sd[c]
                    below += weight[c] * 0.5 * math.erfc(-u / _ROOT2)
                    density += weight[c] * _PEAK * math.exp(-0.5 * u * u) / sd[c]
            if below < goal:
                low = at
            else:
                high = at
            fine = max(_FINE * least, 4.0 * _EPS * abs(at))
            if high - low <= fine:
                break
            step = (goal - below) / density if density > 0.0 else np.inf
            if not abs(step) < 0.5 * last:  # Newton does not converge here: halve
                at = np.nan
                continue
            last = abs(step)
            if last < 0.25 * fine:  # about to arrive: bring the other end near, too
                step = 0.5 * fine if below < goal else -0.5 * fine
            at += step
        found[i] = 0.5 * low + 0.5 * high


@cache
def _kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    # On use: it loads numba.
    from consilience.numerics.compilation import compiled

    return compiled(_predict, fastmath=()), compiled(_quantiles, fastmath=())

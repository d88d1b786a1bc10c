"""Weighted K-means on distinct points: the last step of ensemble clustering.

The work is done by scikit-learn's Lloyd iterations on the features of the distinct label tuples.
An own kernel in label space was measured against it and is not needed: 6 x 10^4 patterns of 50
models, 20 restarts, take about two CPU seconds (see benchmarks/README.md).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MAX_ITERATIONS = 300
_SAME = 1e-9  # points closer than this, relative to the largest coordinate, count as one


class FewerClustersWarning(UserWarning):
    """There are fewer distinct points than classes were asked for."""


@dataclass(frozen=True)
class WeightedKMeans:
    """Classes of weighted points, in descending order of their weight.

    Attributes
    ----------
    centres : array, shape (K, r)
        Weighted means.
    labels : array of int64, shape (P,)
        Class of each point.
    sizes : array, shape (K,)
        Weight of each class.
    inertia : float
        Weighted sum of squared distances to the own centre.
    n_iter : int
        Lloyd iterations of the best restart.
    """

    centres: FloatArray
    labels: IntArray
    sizes: FloatArray
    inertia: float
    n_iter: int


def weighted_kmeans(
    points: FloatArray,
    weights: ArrayLike,
    n_clusters: int,
    *,
    rng: np.random.Generator | None = None,
    n_init: int = 20,
    starts: FloatArray | None = None,
) -> WeightedKMeans:
    """Best of several runs of K-means on weighted points.

    Parameters
    ----------
    points : array, shape (P, r)
        For instance the features of distinct label tuples.
    weights : array, shape (P,)
        Subjects with each tuple; positive.
    n_clusters : int
        K.
    rng : numpy.random.Generator, optional
        Source of the k-means++ starts; needed unless ``starts`` is given.
    n_init : int
        Restarts; a single one may end far from the best solution.
    starts : array, shape (n_init, K, r), optional
        Explicit starting centres instead of k-means++.

    Returns
    -------
    WeightedKMeans
        An empty class is re-seeded at the farthest point. With fewer distinct points than K, each
        is its own class.

    Warns
    -----
    FewerClustersWarning
        If there are fewer distinct points than classes.

    Raises
    ------
    DataError
        If there is no point, or a weight is not positive.
    ParameterError
        If ``n_clusters`` or ``n_init`` is below 1, or neither ``rng`` nor ``starts`` is given.
    """
    amount = np.asarray(weights, dtype=np.float64)
    if points.ndim != 2 or amount.shape != (points.shape[0],) or not (amount > 0).all():
        raise DataError("weighted points need one positive weight each")
    if points.shape[0] == 0:
        raise DataError("there is no point to cluster")
    if n_clusters < 1:
        raise ParameterError.of("n_clusters", "at least 1", n_clusters)
    if starts is None and (rng is None or n_init < 1):
        raise ParameterError.of("n_init", "at least 1, with a generator", n_init)
    groups = _few_distinct(points, n_clusters)
    if groups is not None:
        labels, n_iter = groups, 0
        if labels.max() + 1 < n_clusters:
            warnings.warn(
                f"only {labels.max() + 1} distinct label patterns for {n_clusters} classes: "
                "each is its own class",
                FewerClustersWarning,
                stacklevel=2,
            )
    else:
        labels, n_iter = _lloyd(points, amount, n_clusters, rng, n_init, starts)
    return _described(points, amount, labels, n_iter)


def _lloyd(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator | None,
    n_init: int,
    starts: FloatArray | None,
) -> tuple[IntArray, int]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    def settings(init: object, runs: int, seed: int) -> KMeans:
        return KMeans(
            n_clusters,
            init=init,
            n_init=runs,
            max_iter=_MAX_ITERATIONS,
            tol=0.0,
            random_state=seed,
            algorithm="lloyd",
        )

    with threadpool_limits(1):  # sums over threads would depend on how many there are
        if starts is None:
            seed = 0 if rng is None else int(rng.integers(2**31 - 1))
            best = settings("k-means++", n_init, seed).fit(points, sample_weight=weights)
        else:
            runs = [settings(s, 1, 0).fit(points, sample_weight=weights) for s in starts]
            best = min(runs, key=lambda run: run.inertia_)
    return np.asarray(best.labels_, dtype=np.int64), int(best.n_iter_)


def _described(
    points: FloatArray, weights: FloatArray, labels: IntArray, n_iter: int
) -> WeightedKMeans:
    """Number the classes by descending weight, ties by the first point, and compute centres."""
    names, first, code = np.unique(labels, return_index=True, return_inverse=True)
    sizes = np.bincount(code, weights=weights, minlength=names.size).astype(np.float64)
    order = np.lexsort((first, -sizes))
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    final = rank[code].astype(np.int64)
    member = np.zeros((order.size, points.shape[0]))
    member[final, np.arange(points.shape[0])] = weights
    centres = (member @ points) / sizes[order, None]
    inertia = sum(
        float(weights[final == k] @ ((points[final == k] - c) ** 2).sum(axis=1))
        for k, c in enumerate(centres)
    )
    return WeightedKMeans(centres, final, sizes[order], inertia, n_iter)


def _few_distinct(points: FloatArray, n_clusters: int) -> IntArray | None:
    """Groups of equal points if there are at most ``n_clusters`` of them, else None.

    Points are compared by a fixed projection on a line: distinct points almost surely stay so.
    """
    scale = float(np.abs(points).max(initial=0.0))
    if points.shape[1] == 0 or scale == 0.0:
        return np.zeros(points.shape[0], dtype=np.int64)
    direction = stream(0, "distinct points").standard_normal(points.shape[1])
    place = points @ direction
    order = np.argsort(place, kind="stable")
    step = np.diff(place[order]) > _SAME * scale
    if int(step.sum()) + 1 > n_clusters:
        return None
    groups = np.empty(points.shape[0], dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(step)])
    return groups

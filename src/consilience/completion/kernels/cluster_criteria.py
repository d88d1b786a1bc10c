"""Numbers of classes by criteria that look at complete tables, to compare with held-out entries.

``W_k`` is the sum of squares about the centres of k classes by k-means. A criterion whose choice
would lie where the grid ends chooses nothing: its `choice` is None. Calinski-Harabasz and the
silhouette know no single class; at k = 1 they are not defined, and NaN. Source: the papers that
each function names, as they are compared in Ya Le's Stanford thesis, chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import observed_kmeans_path
from consilience.numerics.two_way_tables import prediction_strength

NAMES = ("calinski-harabasz", "silhouette", "krzanowski-lai", "hartigan", "jump", "gap")
"""Criteria that look at one partition for each number of classes."""
_STRONG = 0.8  # prediction strength of classes that are there


@dataclass(frozen=True, eq=False)
class Partitions:
    """A complete table in 1, ..., K classes.

    Parameters
    ----------
    x : (n, p) array
    labels : (K, n) array of int
        Row k - 1: the classes 0, ..., k - 1 of the rows.
    dispersions : (K,) array
        ``W_1, ..., W_K``.
    """

    x: FloatArray
    labels: IntArray
    dispersions: FloatArray

    @property
    def n_clusters(self) -> IntArray:
        """1, ..., K."""
        return np.arange(1, len(self.labels) + 1)

    @classmethod
    def of(
        cls, x: FloatArray, max_clusters: int, *, rng: np.random.Generator, n_init: int = 10
    ) -> Partitions:
        """Classes by k-means, each number of them also started from the one before.

        Parameters
        ----------
        x : (n, p) array
        max_clusters : int
            K, below the number of rows.
        rng : numpy.random.Generator
        n_init : int

        Raises
        ------
        DataError
            Entries are missing or infinite, or there are no more rows than classes.
        """
        entries = Entries.of(x)
        if not entries.complete:
            raise DataError(
                "criteria for the number of classes need a complete table: drop the rows with "
                "missing entries, or choose by held-out entries, which needs none"
            )
        if not 1 <= max_clusters < len(x):
            raise ParameterError.of(
                "max_clusters", f"from 1 to {len(x) - 1}, below the number of rows", max_clusters
            )
        numbers = range(1, max_clusters + 1)
        fits = list(observed_kmeans_path(entries, numbers, rng=rng, n_init=n_init))
        return cls(
            x=np.asarray(x, dtype=np.float64),
            labels=np.array([fit.labels for fit in fits]),
            dispersions=np.array([fit.inertia for fit in fits]),
        )


@dataclass(frozen=True, eq=False)
class Criterion:
    """Values of a criterion, and what it chooses.

    Attributes
    ----------
    name : str
    n_clusters : (K,) array of int
    values : (K,) array
        NaN where the criterion is not defined.
    choice : int or None
        Number of classes; None where the grid ends before the rule holds.
    se : (K,) array or None
        Of the gap its simulation error.
    """

    name: str
    n_clusters: IntArray
    values: FloatArray
    choice: int | None
    se: FloatArray | None = None


def calinski_harabasz(found: Partitions) -> Criterion:
    """Sum of squares between over within classes, each for a degree of freedom: largest, k >= 2.

    Parameters
    ----------
    found : Partitions

    Returns
    -------
    Criterion
        Source: Calinski and Harabasz 1974.
    """
    from sklearn.metrics import calinski_harabasz_score

    values = _by_labels(found, lambda labels: calinski_harabasz_score(found.x, labels))
    return _largest("calinski-harabasz", found, values)


def silhouette(found: Partitions) -> Criterion:
    """Mean silhouette of the rows: largest, k >= 2.

    Parameters
    ----------
    found : Partitions

    Returns
    -------
    Criterion
        Source: Rousseeuw 1987.
    """
    from sklearn.metrics import silhouette_score

    values = _by_labels(found, lambda labels: silhouette_score(found.x, labels))
    return _largest("silhouette", found, values)


def krzanowski_lai(found: Partitions) -> Criterion:
    """``|DIFF_k / DIFF_(k+1)|``, ``DIFF_k = (k-1)^(2/p) W_(k-1) - k^(2/p) W_k``: largest, k >= 2.

    Parameters
    ----------
    found : Partitions

    Returns
    -------
    Criterion
        Not defined at the last k. Source: Krzanowski and Lai 1988.
    """
    k, p = found.n_clusters, found.x.shape[1]
    # k^(2/p) W_k, whose steps are DIFF_k
    scaled = k ** (2.0 / p) * found.dispersions
    differences = scaled[:-1] - scaled[1:]  # DIFF of 2, ..., K
    values = np.full(len(k), np.nan)
    below = differences[1:]
    ratio = np.full(len(below), np.nan)
    np.divide(differences[:-1], below, out=ratio, where=below != 0)
    values[1:-1] = np.abs(ratio)
    return _largest("krzanowski-lai", found, values)


def hartigan(found: Partitions, *, threshold: float = 10.0) -> Criterion:
    """``(W_k / W_(k+1) - 1) (n - k - 1)``: the first k >= 1 where it is at most 10.

    Parameters
    ----------
    found : Partitions
    threshold : float

    Returns
    -------
    Criterion
        Not defined at the last k. Source: Hartigan 1975, pages 90 and 91.
    """
    k, w = found.n_clusters, found.dispersions
    values = np.full(len(k), np.nan)
    ratio = np.full(len(k) - 1, np.inf)
    np.divide(w[:-1], w[1:], out=ratio, where=w[1:] > 0)
    ratio[w[:-1] == 0] = 1.0
    # (W_k / W_(k+1) - 1) (n - k - 1)
    values[:-1] = (ratio - 1) * (len(found.x) - k[:-1] - 1)
    return _first("hartigan", found, values, values[:-1] <= threshold)


def jump(found: Partitions, *, power: float | None = None) -> Criterion:
    """``d_k^-Y - d_(k-1)^-Y`` of ``d_k = W_k / (n p)``, where 1 / d_0 is 0: largest, k >= 1.

    Parameters
    ----------
    found : Partitions
    power : float, optional
        Y, by default p / 2.

    Returns
    -------
    Criterion
        Values are over the largest ``d_k^-Y``, so that no power is too large for a number. Source:
        Sugar and James 2003.
    """
    w = found.dispersions
    y = found.x.shape[1] / 2 if power is None else power
    positive = w > 0
    if not positive.all():  # as many classes as distinct rows: all of the rise is there
        heights = np.where(positive, 0.0, 1.0)
    else:
        heights = np.exp(-y * (np.log(w) - np.log(w.min())))
    # d_k^-Y - d_(k-1)^-Y, over the largest; 1 / d_0 counts as 0
    values = np.diff(heights, prepend=0.0)
    return _largest("jump", found, values)


def gap(
    found: Partitions,
    *,
    rng: np.random.Generator,
    n_references: int = 20,
    n_init: int = 10,
    reference: str = "axes",
) -> Criterion:
    """Mean ``log W_k`` of tables without classes, minus that of the table.

    The choice is the first k >= 1 with ``gap_k >= gap_(k+1) - s_(k+1)``.

    Parameters
    ----------
    found : Partitions
    rng : numpy.random.Generator
        Draws of the tables.
    n_references : int
        B tables without classes.
    n_init : int
        Starts of k-means on each.
    reference : {"axes", "box"}
        Uniform numbers over the ranges along the principal axes, or over those of the columns.

    Returns
    -------
    Criterion
        `se` is s, the standard deviation over the tables times ``sqrt(1 + 1/B)``. Source:
        Tibshirani, Walther and Hastie 2001.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if n_references < 2:
        raise ParameterError.of("n_references", "a whole number from 2 on", n_references)
    if reference not in ("axes", "box"):
        raise ParameterError.of("reference", '"axes" or "box"', reference)
    centred = found.x - found.x.mean(axis=0)
    principal = reference == "axes"
    axes = np.linalg.svd(centred, full_matrices=False)[2] if principal else np.eye(found.x.shape[1])
    along = centred @ axes.T
    low, high = along.min(axis=0), along.max(axis=0)
    logs = np.empty((n_references, len(found.labels)))
    for b in range(n_references):
        table = rng.uniform(low, high, size=(len(found.x), len(axes))) @ axes
        none = Partitions.of(table, len(found.labels), rng=rng, n_init=n_init)
        logs[b] = _logs(none.dispersions)
    # gap_k: mean of log W_k without classes, minus log W_k
    values = logs.mean(axis=0) - _logs(found.dispersions)
    # s_k = sd_k sqrt(1 + 1/B): the simulation error belongs to it
    se = logs.std(axis=0) * np.sqrt(1 + 1 / n_references)
    # the first k with gap_k >= gap_(k+1) - s_(k+1)
    holds = values[:-1] >= values[1:] - se[1:]
    return _first("gap", found, values, holds, se)


def strength(
    x: FloatArray,
    max_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 10,
    n_splits: int = 10,
) -> Criterion:
    """Prediction strength: how surely classes of one half of the rows are those of the other.

    The choice is the largest k whose strength, with a standard error added, is .8 or more.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    max_clusters : int
        K, below half the number of rows.
    rng : numpy.random.Generator
        Of halves and starts.
    n_init : int
    n_splits : int
        Random halves.

    Returns
    -------
    Criterion
        `values` are means over halves, of both directions (see
        :func:`consilience.numerics.two_way_tables.prediction_strength`). Source: Tibshirani and
        Walther 2005.
    """
    n, found = len(x), np.empty((n_splits, max_clusters))
    for split in range(n_splits):
        order = rng.permutation(n)
        halves = [x[order[: n // 2]], x[order[n // 2 :]]]
        own = [Partitions.of(half, max_clusters, rng=rng, n_init=n_init) for half in halves]
        for k in range(1, max_clusters + 1):
            both = []
            for here, there in ((0, 1), (1, 0)):
                mine, theirs = own[here].labels[k - 1], own[there].labels[k - 1]
                centres = np.stack([halves[there][theirs == c].mean(axis=0) for c in range(k)])
                away = ((halves[here][:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
                table = np.zeros((k, k))
                np.add.at(table, (mine, away), 1)
                both.append(prediction_strength(table))
            found[split, k - 1] = np.nan_to_num(np.mean(both))
    values = found.mean(axis=0)
    se = found.std(axis=0, ddof=1) / np.sqrt(n_splits)
    choice = int(np.flatnonzero(values + se >= _STRONG)[-1]) + 1
    last = choice == max_clusters and max_clusters > 1
    numbers = np.arange(1, max_clusters + 1)
    return Criterion("prediction-strength", numbers, values, None if last else choice, se)


def all_criteria(
    x: FloatArray,
    max_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 10,
    n_references: int = 20,
) -> dict[str, Criterion]:
    """Every criterion of `NAMES` by its name.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    max_clusters : int
    rng : numpy.random.Generator
    n_init, n_references : int

    Raises
    ------
    DataError, ParameterError
        As :meth:`Partitions.of`.
    """
    found = Partitions.of(x, max_clusters, rng=rng, n_init=n_init)
    each = (calinski_harabasz, silhouette, krzanowski_lai, hartigan, jump)
    results = [criterion(found) for criterion in each]
    results.append(gap(found, rng=rng, n_references=n_references, n_init=n_init))
    return {result.name: result for result in results}


# ------------------------------------------------------------------ parts


def _by_labels(found: Partitions, score: Callable[[IntArray], float]) -> FloatArray:
    """A score of the labels, NaN where it is not defined."""
    n, values = len(found.x), np.full(len(found.labels), np.nan)
    for place, labels in enumerate(found.labels):
        if 2 <= len(np.unique(labels)) < n and found.dispersions[place] > 0:
            values[place] = score(labels)
    return values


def _largest(name: str, found: Partitions, values: FloatArray) -> Criterion:
    """Choose the largest value, unless it is the last one that is defined."""
    known = np.flatnonzero(~np.isnan(values))
    choice = None
    if len(known):
        best = int(known[values[known].argmax()])
        choice = None if best == known[-1] else int(found.n_clusters[best])
    return Criterion(name, found.n_clusters, values, choice)


def _first(
    name: str,
    found: Partitions,
    values: FloatArray,
    holds: NDArray[np.bool_],
    se: FloatArray | None = None,
) -> Criterion:
    places = np.flatnonzero(holds)
    choice = int(found.n_clusters[places[0]]) if len(places) else None
    return Criterion(name, found.n_clusters, values, choice, se)


def _logs(dispersions: FloatArray) -> FloatArray:
    """Logarithms; of nothing that of the smallest number."""
    return np.log(np.maximum(dispersions, np.finfo(np.float64).tiny))

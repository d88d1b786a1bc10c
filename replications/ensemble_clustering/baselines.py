"""Baselines of the source: consensus clustering, k-FED, local models, pooled k-means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.clustering.kernels.ensemble import PatternTable, assign, one_hot
from consilience.numerics.observed_kmeans import weighted_kmeans

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def consensus(
    table: PatternTable,
    labels: Sequence[IntArray],
    n_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 20,
) -> list[IntArray]:
    """Consensus clustering: K-means on Z / sqrt(M), by distinct tuples.

    Parameters
    ----------
    table : PatternTable
        Label tuples of all sites with counts.
    labels : sequence of arrays (n_m, M)
        Label tuples of the rows of each site.
    n_clusters : int
        K.
    rng : numpy.random.Generator
        Source of the starts.
    n_init : int
        Restarts.

    Returns
    -------
    list of arrays (n_m,)
        Classes of the rows of each site.

    Notes
    -----
    Source: Li, Ding and Jordan, *Solving consensus and semi-supervised clustering problems using
    nonnegative matrix factorization*, ICDM 2007.
    """
    scale = 1.0 / np.sqrt(len(table.n_classes))
    points = scale * one_hot(table.patterns, table.n_classes)
    found = weighted_kmeans(points, table.counts, n_clusters, rng=rng, n_init=n_init)
    identity = scale * np.eye(points.shape[1])
    return [assign(z, table.n_classes, identity, found.centres) for z in labels]


def k_fed(site_means: Sequence[FloatArray], n_clusters: int) -> tuple[FloatArray, list[IntArray]]:
    """k-FED: one round of assignment of all local centres to well separated ones.

    Parameters
    ----------
    site_means : sequence of arrays (K_m, d)
        Centres of the local k-means of each site.
    n_clusters : int
        K.

    Returns
    -------
    centres : array, shape (K, d)
        Means of the local centres of each group.
    groups : list of arrays (K_m,)
        Group of each local centre: a row's class is the group of its own local centre.

    Notes
    -----
    Source: Dennis, Li and Smith, *Heterogeneity for the win: one-shot federated clustering*,
    ICML 2021, algorithm 2. The seeds are one site's centres (the first site with K of them, else
    with the most), then the farthest local centre until there are K.
    """
    everything = np.concatenate(list(site_means))
    start = max(range(len(site_means)), key=lambda m: min(len(site_means[m]), n_clusters))
    seeds = list(site_means[start][:n_clusters])
    while len(seeds) < n_clusters:
        gaps = ((everything[:, None, :] - np.stack(seeds)[None]) ** 2).sum(axis=2).min(axis=1)
        seeds.append(everything[int(gaps.argmax())])
    squares = ((everything[:, None, :] - np.stack(seeds)[None]) ** 2).sum(axis=2)
    group = squares.argmin(axis=1)
    centres = np.stack(
        [
            everything[group == k].mean(axis=0) if (group == k).any() else seeds[k]
            for k in range(n_clusters)
        ]
    )
    bounds = np.cumsum([len(means) for means in site_means])[:-1]
    return centres, [np.asarray(part, dtype=np.int64) for part in np.split(group, bounds)]


def pooled(
    tables: Sequence[FloatArray],
    n_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 20,
) -> list[IntArray]:
    """K-means on the rows of all sites together: what nobody may do."""
    rows = np.concatenate(list(tables))
    found = weighted_kmeans(rows, np.ones(len(rows)), n_clusters, rng=rng, n_init=n_init)
    bounds = np.cumsum([len(part) for part in tables])[:-1]
    return [np.asarray(part, dtype=np.int64) for part in np.split(found.labels, bounds)]

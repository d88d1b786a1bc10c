"""K-means of a table with gaps by filling, as an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.completion.estimators.observed_kmeans import ObservedKMeans
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import MAX_ITER, ClusterFit, kpod


class KPOD(ObservedKMeans):
    """K-means of a table with gaps: fill with the own centre, k-means, again.

    The criterion is that of :class:`ObservedKMeans`. What is filled in holds a row in its class, so
    that the sum of squares mostly ends higher at the same number of starts.

    Parameters
    ----------
    n_clusters : int
        At most the number of rows that have an entry.
    n_init : int
        Starts from greedy k-means++ on the table filled with the means of its columns.
    max_iter : int
        Fills of one start, and iterations of k-means between two of them.
    tol : float
        A start ends where a fill lowers the sum of squares by no more than this share of it.
    random_state : int, RandomState or None
        Draws of the starts.

    Attributes
    ----------
    labels_ : (n,) array of int
        Class of each row on the filled table, the largest class first. :meth:`predict` looks at
        observed coordinates only and can differ, also for the rows that were fitted.
    cluster_centers_, counts_, inertia_, column_means_, converged_
        As in :class:`ObservedKMeans`; centres are means of the filled table.
    n_iter_ : int
        Fills of the best start.
    n_features_in_, feature_names_in_
        As in :class:`ObservedKMeans`.

    Notes
    -----
    Source: Chi, Chi and Baraniuk, *k-POD: a method for k-means clustering of missing data*, The
    American Statistician 2016, algorithm 1. Departure: rows with nothing observed stay outside.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 10,
        max_iter: int = MAX_ITER,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_clusters, n_init=n_init, max_iter=max_iter, tol=tol, random_state=random_state
        )

    def _solve(self, entries: Entries, rng: np.random.Generator) -> ClusterFit:
        return kpod(
            entries,
            self.n_clusters,
            rng=rng,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
        )

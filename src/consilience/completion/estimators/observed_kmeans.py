"""K-means of a table with gaps, over observed coordinates or by filling, as estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_input import (
    RowCompletion,
    observed_entries,
    row_weights,
)
from consilience.completion.estimators.predictors import scaled_up
from consilience.numerics import observed_kmeans as solvers
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import FewerClustersWarning
from consilience.numerics.random import seed_of, stream

# --- K-means of a table with gaps, as an estimator.


class ObservedKMeans(
    RowCompletion, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator
):
    """K-means over the coordinates that each row has.

    Minimises the sum of squares of the observed entries about the centre of their row's class. On a
    complete table that is k-means.

    Parameters
    ----------
    n_clusters : int
        At most the number of rows that have an entry.
    n_init : int
        Starts from greedy k-means++, of which the best is kept.
    max_iter : int
        Iterations of one start.
    tol : float
        A start ends where an iteration lowers the sum of squares by no more than this share of it;
        0 goes on until no row changes its class.
    random_state : int, RandomState or None
        Draws of the starts.

    Attributes
    ----------
    labels_ : (n,) array of int
        Class of each row, the largest class first.
    cluster_centers_ : (n_clusters, p) array
        Means of what the rows of a class have. A coordinate that none of them has stands at the
        mean of its column.
    counts_ : (n_clusters,) array of int
        Rows with an entry in each class; 0 where there are fewer distinct rows than classes.
    inertia_ : float
        Sum of squares over the observed entries.
    column_means_ : (p,) array
        Means of the observed entries: what a row with nothing observed is predicted by. A column
        with nothing observed stands at the mean of all entries.
    n_iter_ : int
        Iterations of the best start.
    converged_ : bool
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    See Also
    --------
    KPOD : Another way to the same minimum.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3, where k-means is fitted to tables with held-out
    entries by k-POD (Chi, Chi and Baraniuk 2016). Departure: distances over observed coordinates
    take the place of fills, because these hold a row in its class.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import ObservedKMeans
    >>> x = np.array([[0.0, 0.1], [0.2, np.nan], [5.0, 5.1], [np.nan, 4.9], [0.1, 0.0]])
    >>> ObservedKMeans(2, random_state=0).fit_predict(x)
    array([0, 0, 1, 1, 0])
    """

    _solver: ClassVar[Callable[..., solvers.ClusterFit]] = staticmethod(solvers.observed_kmeans)

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 10,
        max_iter: int = solvers.MAX_ITER,
        tol: float = 0.0,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the classes.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range.
        DataError
            Nothing is observed, a place of a sparse matrix is stored twice, or there are more
            classes than rows with an entry.

        Warns
        -----
        ConvergenceWarning
            The best start ended at `max_iter`.
        FewerClustersWarning
            There are fewer distinct rows than classes.
        """
        self._entries = entries = observed_entries(self, X, reset=True)
        fit = self._solver(
            entries,
            self.n_clusters,
            rng=stream(seed_of(self.random_state), "clusters"),
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
        )
        self._fit = fit
        self.labels_ = fit.labels
        self.cluster_centers_ = fit.centres
        self.counts_ = fit.sizes
        self.inertia_ = fit.inertia
        self.column_means_ = fit.column_means
        self.n_iter_ = fit.n_iter
        self.converged_ = fit.converged
        if not self.converged_:
            sentence = f"no start settled within max_iter = {self.max_iter}: raise it"
            warnings.warn(sentence, ConvergenceWarning, stacklevel=2)
        if not self.counts_.all():
            sentence = (
                f"there are fewer distinct rows than n_clusters = {self.n_clusters}: "
                f"{int((self.counts_ == 0).sum())} classes are empty"
            )
            warnings.warn(sentence, FewerClustersWarning, stacklevel=2)
        return self

    # ------------------------------------------------------------------ rows

    def predict(self, X: Any) -> IntArray:
        """Class whose centre is nearest over the coordinates that a row has, (m,).

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
            A row with nothing observed goes to the class nearest to the means of the columns.
        """
        return self._nearest(X)[1]

    def transform(self, X: Any) -> FloatArray:
        """Distances to the centres, (m, n_clusters).

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
            Squares over the coordinates that a row has are scaled up to all p, as in
            ``sklearn.metrics.pairwise.nan_euclidean_distances``. A row with nothing observed
            has the distances of the means of the columns.
        """
        entries, _, squares = self._nearest(X)
        return scaled_up(entries, squares)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the sum of squares of the rows' observed entries about their nearest centre.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        y : None
            Ignored.
        sample_weight : (m,) array, optional
            Weights of the rows, 0 or more.
        """
        entries, labels, squares = self._nearest(X)
        own = squares[np.arange(len(labels)), labels]
        if sample_weight is not None:
            own = own * row_weights(sample_weight, entries)
        return -float(own[entries.row_counts > 0].sum())

    def _reconstructed(self, X: Any) -> FloatArray:
        if X is None:
            return self._fit.dense()
        entries, labels, _ = self._nearest(X)
        found = self.cluster_centers_[labels]
        found[entries.row_counts == 0] = self.column_means_
        return np.asarray(found)

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        return self._fit.at(rows, columns)

    def _nearest(self, X: Any) -> tuple[Entries, IntArray, FloatArray]:
        check_is_fitted(self)
        entries = observed_entries(self, X, reset=False)
        return entries, *solvers.nearest_centres(entries, self.cluster_centers_, self.column_means_)

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)


# --- K-means of a table with gaps by filling, as an estimator.


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

    _solver = staticmethod(solvers.kpod)

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 10,
        max_iter: int = solvers.MAX_ITER,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_clusters, n_init=n_init, max_iter=max_iter, tol=tol, random_state=random_state
        )

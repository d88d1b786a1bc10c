"""K-means of a table with gaps: over observed coordinates, and by filling (k-POD).

Both minimise ``sum over observed (i, j) of (x_ij - c_{class(i), j})^2``. K-means on observed
coordinates takes each row to the centre that is nearest over the coordinates that it has, and each
centre to the means of what its rows have. K-POD fills the gaps with the row's own centre and runs
k-means on the filled table, again and again (Chi, Chi and Baraniuk 2016): what is filled in holds
a row in its class, so that it needs more starts for the same minimum.

Centres begin at rows, drawn as in greedy k-means++ with squares over observed
entries; gaps begin at the means of the columns. A coordinate that no row of a class has stands
at the mean of its column, and that of a column without an entry at the mean of all entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.parameters import check, number, whole

MAX_ITER = 300


@dataclass(frozen=True, eq=False)
class ClusterFit:
    """Classes of rows with gaps, in descending order of their size.

    Attributes
    ----------
    centres : (k, p) array
    labels : (n,) array of int
        Of k-means the nearest centre over the coordinates that the row has, the first of equal
        ones; of k-POD the nearest on the filled table, which can be another one. A row without an
        entry is in the class whose centre is nearest to the means of the columns.
    sizes : (k,) array of int
        Rows with an entry in each class; 0 where there are fewer distinct rows than classes.
    inertia : float
        Sum of squares over observed entries.
    column_means : (p,) array
        Means of the observed entries: what a row without an entry is predicted by.
    seen : (n,) array of bool
        Whether the row has an entry.
    n_iter : int
        Iterations of the best start: of Lloyd's algorithm, or fills of k-POD.
    converged : bool
        Whether the best start ended before the limit.
    """

    centres: FloatArray
    labels: IntArray
    sizes: IntArray
    inertia: float
    column_means: FloatArray
    seen: BoolArray
    n_iter: int
    converged: bool

    @property
    def n_clusters(self) -> int:
        """Number k of classes that were asked for."""
        return len(self.centres)

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Predicted entries at places, (m,).

        Parameters
        ----------
        rows, columns : (m,) arrays of int
        """
        found = self.centres[self.labels[rows], columns]
        return np.where(self.seen[rows], found, self.column_means[columns])

    def dense(self) -> FloatArray:
        """The matrix of predicted entries, (n, p)."""
        found = self.centres[self.labels]
        found[~self.seen] = self.column_means
        return found


def column_means(entries: Entries) -> FloatArray:
    """Means of the observed entries of each column, (p,); of all where a column has none.

    Parameters
    ----------
    entries : Entries
    """
    sums = np.bincount(entries.columns, weights=entries.values, minlength=entries.shape[1])
    counts = entries.column_counts
    return np.where(counts > 0, sums / np.maximum(counts, 1), entries.values.mean())


def observed_kmeans(
    entries: Entries,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 10,
    max_iter: int = MAX_ITER,
    tol: float = 0.0,
    starts: Sequence[FloatArray] = (),
) -> ClusterFit:
    """Best of several runs of k-means on observed coordinates.

    Parameters
    ----------
    entries : Entries
        Of an (n, p) matrix.
    n_clusters : int
        k, at most the number of rows that have an entry.
    rng : numpy.random.Generator
        Draws of the starts.
    n_init : int
        Starts from k-means++.
    max_iter : int
        Iterations of one start.
    tol : float
        A start ends where an iteration lowers the sum of squares by no more than this share of it;
        0 goes on until no row changes its class.
    starts : sequence of (m, p) arrays
        Further starts, m <= k: missing centres are drawn as in k-means++.

    Returns
    -------
    ClusterFit
        A class that loses its rows gets the row farthest from its centre, as long as there is one
        that is not at its centre.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    from consilience.numerics import observed_kmeans_kernels as kernels

    table = _Rows.of(entries)
    _check(table, n_clusters, n_init, len(starts), max_iter, tol)
    first, given = table.begin(n_clusters, n_init, starts)
    places = entries.indptr, entries.columns, table.values, table.rows
    shares = _shares(rng, len(first), n_clusters)
    return table.fit(*kernels.best_of(*places, first, given, shares, max_iter, float(tol)))


def observed_kmeans_path(
    entries: Entries,
    n_clusters: Sequence[int],
    *,
    rng: np.random.Generator,
    n_init: int = 10,
    max_iter: int = MAX_ITER,
    tol: float = 0.0,
) -> Iterator[ClusterFit]:
    """Fits for increasing numbers of classes, each also started from the one before.

    Their sums of squares never rise along the path.

    Parameters
    ----------
    entries : Entries
    n_clusters : sequence of int
        Increasing.
    rng, n_init, max_iter, tol
        As for :func:`observed_kmeans`.

    Yields
    ------
    ClusterFit

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if not len(n_clusters) or (np.diff(np.asarray(n_clusters)) <= 0).any():
        raise ParameterError.of("n_clusters", "increasing whole numbers", list(n_clusters))
    before: list[FloatArray] = []
    for k in n_clusters:
        fit = observed_kmeans(
            entries, k, rng=rng, n_init=n_init, max_iter=max_iter, tol=tol, starts=before
        )
        # From the last centres and one more row the sum of squares cannot rise.
        before = [fit.centres]
        yield fit


def kpod(
    entries: Entries,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int = 10,
    max_iter: int = MAX_ITER,
    tol: float = 1e-6,
    starts: Sequence[FloatArray] = (),
) -> ClusterFit:
    """Best of several runs of k-POD: fill with the own centre, k-means, again.

    Parameters
    ----------
    entries : Entries
    n_clusters : int
    rng : numpy.random.Generator
    n_init : int
        Starts: k-POD is sticky, ten or more are needed.
    max_iter : int
        Fills of one start, and iterations of k-means between two of them.
    tol : float
        A start ends where a fill lowers the sum of squares by no more than this share of it.
    starts : sequence of (m, p) arrays
        Further starts, m <= k: missing centres are drawn as in k-means++.

    Returns
    -------
    ClusterFit

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    from consilience.numerics import observed_kmeans_kernels as kernels

    table = _Rows.of(entries)
    _check(table, n_clusters, n_init, len(starts), max_iter, tol)
    first, given = table.begin(n_clusters, n_init, starts)
    p = entries.shape[1]
    full = np.zeros((len(table.seen), p))
    full[entries.rows, entries.columns] = table.values
    gaps = ~entries.mask()
    # K-POD works on the filled table, so every row has all p columns.
    kept = full[table.seen].ravel()
    indptr = np.concatenate(([0], np.cumsum(np.where(table.seen, p, 0)))).astype(np.int64)
    columns = np.tile(np.arange(p), len(table.rows))
    filled = indptr, columns, kept, gaps[table.seen].ravel(), table.rows
    shares = _shares(rng, len(first), n_clusters)
    return table.fit(*kernels.best_pod(*filled, first, given, shares, max_iter, float(tol)))


def nearest_centres(
    entries: Entries, centres: FloatArray, means: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Classes of rows, and their sums of squares to every centre.

    Parameters
    ----------
    entries : Entries
        Of an (n, p) matrix.
    centres : (k, p) array
    means : (p,) array
        Stands in for a row without an entry.

    Returns
    -------
    labels : (n,) array of int
    squares : (n, k) array
        Over the coordinates that the row has, or all p for a row without any.
    """
    from consilience.numerics import observed_kmeans_kernels as kernels

    moved = np.ascontiguousarray((centres - means).T)
    squares = np.empty((entries.shape[0], len(centres)))
    values = entries.values - means[entries.columns]
    kernels.squares(entries.indptr, entries.columns, values, moved, squares)
    squares[entries.row_counts == 0] = (moved**2).sum(axis=0)
    return squares.argmin(axis=1).astype(np.int64), squares


# ------------------------------------------------------------------ parts


@dataclass(frozen=True, eq=False)
class _Rows:
    """What both algorithms start from: values minus the means of their columns."""

    entries: Entries
    means: FloatArray
    values: FloatArray
    seen: BoolArray
    rows: IntArray

    @classmethod
    def of(cls, entries: Entries) -> _Rows:
        means = column_means(entries)
        seen = entries.row_counts > 0
        values = entries.values - means[entries.columns]
        return cls(entries, means, values, seen, np.flatnonzero(seen).astype(np.int64))

    def begin(
        self, k: int, n_init: int, starts: Sequence[FloatArray]
    ) -> tuple[FloatArray, IntArray]:
        """Places for the centres of every start, (s, p, k), and how many of them are given."""
        p = len(self.means)
        first = np.zeros((n_init + len(starts), p, k))
        given = np.zeros(len(first), dtype=np.int64)
        for place, centres in enumerate(starts, start=n_init):
            if np.ndim(centres) != 2 or centres.shape[1] != p or len(centres) > k:
                raise ParameterError.of("starts", "arrays (m, p) with m <= k", np.shape(centres))
            first[place, :, : len(centres)] = (centres - self.means).T
            given[place] = len(centres)
        return first, given

    def fit(
        self, moved: FloatArray, labels: IntArray, inertia: float, n_iter: int, converged: bool
    ) -> ClusterFit:
        """The answer of the compiled loops, the largest class first."""
        k = moved.shape[1]
        sizes = np.bincount(labels[self.seen], minlength=k)
        # Classes are numbered by size: two runs with the same classes give the same labels.
        order = np.argsort(-sizes, kind="stable")
        place = np.empty(k, dtype=np.int64)
        place[order] = np.arange(k)
        moved = moved.T[order]
        moved[sizes[order] == 0] = moved[0]  # an empty class: ties go to the first
        nearest_to_means = (moved**2).sum(axis=1).argmin()
        found = np.where(self.seen, place[labels], nearest_to_means).astype(np.int64)
        return ClusterFit(
            centres=moved + self.means,
            labels=found,
            sizes=sizes[order].astype(np.int64),
            inertia=float(inertia),
            column_means=self.means,
            seen=self.seen,
            n_iter=int(n_iter),
            converged=bool(converged),
        )


def _shares(rng: np.random.Generator, n_starts: int, k: int) -> FloatArray:
    """Uniform numbers for the draws of every start."""
    return rng.random((n_starts, k, 2 + int(np.log(k))))


def _check(
    table: _Rows, n_clusters: int, n_init: int, n_starts: int, max_iter: int, tol: float
) -> None:
    rules = {"n_clusters": whole(1), "n_init": whole(0 if n_starts else 1), "max_iter": whole(1)}
    check(rules | {"tol": number(0)}, locals())
    if n_clusters > len(table.rows):
        raise DataError(
            f"n_clusters = {n_clusters} is more than the rows with an observed entry (n_samples = "
            f"{len(table.rows)}): ask for fewer"
        )

"""K-means of a table with gaps, over observed coordinates and by filling (k-POD), and of points.

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

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import stream
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


# --- Weighted K-means on distinct points: the last step of ensemble clustering.
#
# All restarts iterate together, so that a step is two matrix products whatever their number. One
# scikit-learn fit per start was measured first: it needs no less time on many patterns, and several
# times as much on few, where its fixed cost per fit dominates (see benchmarks/README.md).

_MAX_ITERATIONS = 300
_RESEED_ROUNDS = 20
_ROWS_PER_BLOCK = 4096
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
    check({"n_clusters": whole(1), "n_init": whole(1)}, locals())
    if starts is None and rng is None:
        raise ParameterError.of("rng", "a generator unless starts are given", rng)
    if starts is not None and np.shape(starts)[1:] != (n_clusters, points.shape[1]):
        raise ParameterError.of("starts", "of shape (n_init, K, r)", np.shape(starts))
    groups = _few_distinct(points, n_clusters)
    if groups is not None:
        labels, n_iter = groups, 0
    else:
        with one_thread():  # sums over threads would depend on how many there are
            middle = (amount @ points) / amount.sum()
            centred = points - middle
            if starts is None and rng is not None:
                centres = _plus_plus(centred, amount, n_clusters, rng, n_init)
            else:
                centres = np.asarray(starts, dtype=np.float64) - middle
            labels, n_iter = _lloyd(centred, amount, centres)
    result = _described(points, amount, labels, n_iter)
    if len(result.centres) < n_clusters:
        warnings.warn(
            f"only {len(result.centres)} distinct label patterns for {n_clusters} classes: "
            "each is its own class",
            FewerClustersWarning,
            stacklevel=2,
        )
    return result


def _lloyd(points: FloatArray, weights: FloatArray, centres: FloatArray) -> tuple[IntArray, int]:
    """Lloyd iterations of all starts at once; returns labels and iterations of the best one."""
    n_starts = len(centres)
    labels = np.full((points.shape[0], n_starts), -1, dtype=np.int64)
    n_iter = np.zeros(n_starts, dtype=np.int64)
    active = np.arange(n_starts)
    for _ in range(_MAX_ITERATIONS):
        found, sums, sizes = _assign_and_sum(points, weights, centres[active])
        for i in np.flatnonzero((sizes == 0).any(axis=1)):
            found[:, i], sums[i], sizes[i] = _without_empty(
                points, weights, centres[active[i]], found[:, i], sizes[i]
            )
        n_iter[active] += 1
        moved = (found != labels[:, active]).any(axis=0)
        labels[:, active] = found
        full = sizes > 0
        means = sums / np.where(full, sizes, 1.0)[:, :, None]
        centres[active] = np.where(full[:, :, None], means, centres[active])
        active = active[moved]
        if active.size == 0:
            break
    # sum of squares between classes: the larger, the smaller the one within them
    between = np.zeros(n_starts)
    for start in range(n_starts):
        size = np.bincount(labels[:, start], weights=weights, minlength=centres.shape[1])
        between[start] = size @ (centres[start] ** 2).sum(axis=1)
    largest = float(np.abs(between).max()) or 1.0
    # Rounded, so that the first of equally good starts wins whatever the last bits are.
    best = int(np.argmax(np.round(between / largest, 12)))
    return labels[:, best], int(n_iter[best])


def _assign_and_sum(
    points: FloatArray, weights: FloatArray, centres: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Nearest centres of R starts, weighted sums and weights of their classes."""
    n_starts, k, r = centres.shape
    flat = centres.reshape(n_starts * k, r)
    half = 0.5 * (flat**2).sum(axis=1)
    labels = np.empty((points.shape[0], n_starts), dtype=np.int64)
    sums, sizes = np.zeros_like(flat), np.zeros(n_starts * k)
    offsets = k * np.arange(n_starts)
    for start in range(0, points.shape[0], _ROWS_PER_BLOCK):
        block = points[start : start + _ROWS_PER_BLOCK]
        # Minus half the squared distance, without the point's own square, which no comparison
        # needs.
        scores = block @ flat.T - half
        nearest = scores.reshape(-1, n_starts, k).argmax(axis=2)
        labels[start : start + _ROWS_PER_BLOCK] = nearest
        member = np.zeros((block.shape[0], n_starts * k))
        amount = weights[start : start + _ROWS_PER_BLOCK, None]
        np.put_along_axis(member, nearest + offsets, amount, axis=1)
        sums += member.T @ block
        sizes += member.sum(axis=0)
    return labels, sums.reshape(n_starts, k, r), sizes.reshape(n_starts, k)


def _without_empty(
    points: FloatArray,
    weights: FloatArray,
    centres: FloatArray,
    labels: IntArray,
    sizes: FloatArray,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Put the centre of each empty class of one start at the farthest point and assign again.

    No point is moved by hand: the outcome is the same whether equal points come as one point with
    a weight or as many. Points that differ by rounding only may leave a class empty for good.
    """
    centres = centres.copy()
    sums = np.zeros_like(centres)
    for _ in range(_RESEED_ROUNDS):
        distance = ((points - centres[labels]) ** 2).sum(axis=1)
        for empty in np.flatnonzero(sizes == 0):
            centres[empty] = points[int(distance.argmax())]
            distance = np.minimum(distance, ((points - centres[empty]) ** 2).sum(axis=1))
        found, found_sums, amounts = _assign_and_sum(points, weights, centres[None])
        labels, sizes = found[:, 0], amounts[0]
        sums = found_sums[0]
        if (sizes > 0).all():
            break
    return labels, sums, sizes


def _plus_plus(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_init: int,
) -> FloatArray:
    """Greedy k-means++ starts, shape (n_init, K, r).

    Each centre after the first is the best of a few points drawn with probabilities proportional
    to weight times squared distance to the nearest centre (Arthur and Vassilvitskii, SODA 2007).
    """
    # As many as scikit-learn draws, so that starts are of the same quality.
    n_trials = 2 + int(np.log(n_clusters))
    squares = (points**2).sum(axis=1)
    first = rng.choice(points.shape[0], size=n_init, p=weights / weights.sum())
    chosen = [first]
    nearest = _squared(points, squares, first)
    for _ in range(1, n_clusters):
        cumulative = np.cumsum(weights[:, None] * nearest, axis=0)
        draws = rng.random((n_trials, n_init)) * cumulative[-1]
        candidates = np.stack(
            [np.searchsorted(cumulative[:, i], draws[:, i], "right") for i in range(n_init)], axis=1
        )
        candidates = np.minimum(candidates, points.shape[0] - 1)
        trials = [np.minimum(nearest, _squared(points, squares, c)) for c in candidates]
        best = np.stack([weights @ trial for trial in trials]).argmin(axis=0)
        chosen.append(candidates[best, np.arange(n_init)])
        nearest = np.stack([trials[t][:, i] for i, t in enumerate(best)], axis=1)
    return points[np.stack(chosen, axis=1)]


def _squared(points: FloatArray, squares: FloatArray, rows: IntArray) -> FloatArray:
    """Squared distances of all points to some of them, shape (P, rows)."""
    cross = points @ points[rows].T
    return np.asarray(np.maximum(squares[:, None] + squares[rows] - 2.0 * cross, 0.0))


def _described(
    points: FloatArray, weights: FloatArray, labels: IntArray, n_iter: int
) -> WeightedKMeans:
    """Number the classes by descending weight, ties by the first point, and compute centres."""
    names, first, code = np.unique(labels, return_index=True, return_inverse=True)
    sizes = np.bincount(code, weights=weights, minlength=names.size).astype(np.float64)
    # Ties by the first point: the numbering does not depend on the start that won.
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
    # A fixed direction: the same points are found equal in every process.
    direction = stream(0, "distinct points").standard_normal(points.shape[1])
    place = points @ direction
    order = np.argsort(place, kind="stable")
    step = np.diff(place[order]) > _SAME * scale
    if int(step.sum()) + 1 > n_clusters:
        return None
    groups = np.empty(points.shape[0], dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(step)])
    return groups

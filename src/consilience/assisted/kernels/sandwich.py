"""Sandwich covariance of the coefficients of a GLM, also where columns depend on one another.

With ``J = D' diag(w) D`` and ``K = D' diag(s^2) D`` (s and w first and second derivatives of the
loss at the fit), the covariance is ``J^- K J^-`` (Huber 1967; White 1980), times ``n / (n - rank)``
in small samples (HC1: MacKinnon and White 1985). HC3 (the same) divides each score by ``1 - h``, h
the record's leverage ``w d'J^-d``: where a few records have large values HC1 is too small.

Where records of a cluster depend on one another, K is the sum of ``u u'`` over the clusters, ``u``
the sum of ``s d`` in one (Liang and Zeger 1986). Beside HC1 stands the factor ``G / (G - 1) (n - 1)
/ (n - rank)`` for G clusters (CV1); beside HC3 the jackknife that leaves out a cluster at a time,
to one step (CV3: MacKinnon, Nielsen and Webb, *J. Econometrics* 232 (2023)):
``(G - 1) / G`` times the sum for ``u = (I - J_g J^-)^-1 u``, ``J_g`` the cluster's part of J.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.assisted.kernels.glm import gram, row_blocks
from consilience.exceptions import DataError
from consilience.numerics.families import Family

Errors = Literal["hc1", "hc3"]
_ALONE = 1 - 1e-10  # leverage above which a score says nothing of an error
_DEPENDENT = 1e-13  # of squared lengths: columns that agree to about seven digits


@dataclass(frozen=True, eq=False)
class Sandwich:
    """Covariances of the coefficients of a design.

    Attributes
    ----------
    covariance : (d, d) array
        Sandwich, with the factor for small samples.
    model : (d, d) array
        ``J^-``: right where the variance function is.
    null : (d, m) array
        Orthonormal combinations of coefficients that change no linear predictor, in units in which
        every column has length 1: what only their sum with another column's coefficient tells.
    lengths : (d,) array
        Those units.
    rank : int
    n_clusters : int
        0 where records are on their own.
    errors : {"hc1", "hc3"}
    """

    covariance: FloatArray
    model: FloatArray
    null: FloatArray
    lengths: FloatArray
    rank: int
    n_clusters: int = 0
    errors: Errors = "hc1"

    def beyond(self, left_over: int, hidden: int) -> FloatArray:
        """Covariance beside `hidden` columns that nobody knows; degrees of freedom without them.

        Leverages of hidden columns are taken to be spread evenly.
        """
        power = 2 if self.errors == "hc3" else 1
        return self.covariance * (left_over / (left_over - hidden)) ** power

    def identified(self, combinations: FloatArray) -> NDArray[np.bool_]:
        """Whether combinations of coefficients (m, d) mean something on their own."""
        scaled = np.asarray(combinations) / self.lengths
        size = np.linalg.norm(scaled, axis=1)
        return np.asarray(np.linalg.norm(scaled @ self.null, axis=1) <= 1e-6 * size)

    def variance(self, combinations: FloatArray) -> FloatArray:
        """Variance of each combination (m, d) of coefficients."""
        c = np.asarray(combinations)
        found = np.empty(len(c))
        for rows in row_blocks(len(c)):
            found[rows] = np.einsum("id,id->i", c[rows] @ self.covariance, c[rows])
        return found


def quantile(level: float, n_clusters: int = 0) -> float:
    """Half width of an interval in standard errors: normal, or of t with G - 1 for G clusters."""
    from scipy.stats import norm, t

    of = t(n_clusters - 1) if n_clusters else norm
    return float(of.ppf((1 + level) / 2))


def sandwich(
    design: FloatArray,
    y: FloatArray,
    eta: FloatArray,
    family: Family,
    weights: FloatArray | None = None,
    errors: Errors = "hc1",
    cluster: NDArray[np.int64] | None = None,
) -> Sandwich:
    """Compute the covariances at a fit.

    Parameters
    ----------
    design : (n, d) array
    y, eta : (n,) arrays
    family : Family
    weights : (n,) array, optional
        Case weights; rows of weight 0 take no part.
    errors : {"hc1", "hc3"}
    cluster : (n,) int array, optional
        Number of each record's cluster.

    Raises
    ------
    DataError
        There is one cluster only.
    """
    v = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=float)
    used = v > 0
    d = design
    if not used.all():
        d, y, eta, v = design[used], y[used], eta[used], v[used]
    # observed second derivatives; under a mask they may be negative
    w = family.expected_weight(eta) if family.mask else family.weight(y, eta)
    w, s = v * w, v * family.score(y, eta)
    # J = D'diag(w)D
    second = gram(d, w)
    # in units of the columns' lengths, so that dependence does not hang on those of the table
    lengths = np.sqrt(np.diag(second))
    lengths = np.where(lengths > 0, lengths, 1.0)
    outer = np.outer(lengths, lengths)
    size, turn = np.linalg.eigh(second / outer)
    kept = size > _DEPENDENT * size.max(initial=0.0) * max(d.shape[1], 1)
    rank = int(kept.sum())
    # J^-: no inverse along combinations that change no predictor
    root = turn[:, kept] / np.sqrt(size[kept])
    inverse = root @ root.T
    n, groups = (
        len(y),
        None if cluster is None else np.unique(cluster[used], return_inverse=True)[1],
    )
    n_clusters = 0 if groups is None else int(groups.max()) + 1
    if n_clusters == 1:
        raise DataError(
            "all rows are in one cluster: errors need at least two",
            public="all rows are in one cluster: errors need at least two",
        )
    if errors == "hc3":
        rows, turned = score_rows(d @ (root / lengths[:, None]), s, groups, w), root
        scores = rows.T @ rows
        factor = (n_clusters - 1) / n_clusters if n_clusters else 1.0
    else:
        turned, rows = inverse, d if groups is None else score_rows(d, s, groups)
        # K is the sum of rows' squares
        scores = gram(rows, s * s if groups is None else np.ones(len(rows))) / outer
        factor = n / max(n - rank, 1)
        factor *= n_clusters / (n_clusters - 1) * (n - 1) / n if n_clusters else 1.0
    return Sandwich(
        covariance=factor * (turned @ scores @ turned.T) / outer,
        model=inverse / outer,
        null=turn[:, ~kept],
        lengths=lengths,
        rank=rank,
        n_clusters=n_clusters,
        errors=errors,
    )


def score_rows(
    columns: FloatArray,
    s: FloatArray,
    groups: NDArray[np.int64] | None = None,
    w: FloatArray | None = None,
) -> FloatArray:
    """Scores times columns, by record or summed by cluster.

    Parameters
    ----------
    columns : (n, d) array
    s : (n,) array
        First derivatives of the loss.
    groups : (n,) int array, optional
        Clusters 0 to G - 1, each with a record.
    w : (n,) array, optional
        Second derivatives in whose metric the columns are orthonormal: each row is then the step
        of a fit without its record, or cluster.

    Returns
    -------
    (n, d) or (G, d) array
    """
    if w is not None and groups is None:
        s = s / (1 - np.minimum(w * np.einsum("ij,ij->i", columns, columns), _ALONE))
    rows = columns * s[:, None]
    if groups is None:
        return np.asarray(rows)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sums = np.add.reduceat(rows[order], starts, axis=0)
    if w is not None:
        tall = columns * np.sqrt(w)[:, None]
        for g, members in enumerate(np.split(order, starts[1:])):
            # (I - J_g)^-1 u, J_g = V diag(h) V'
            _, size, turn = np.linalg.svd(tall[members], full_matrices=False)
            h = np.minimum(size**2, _ALONE)
            sums[g] += (h / (1 - h) * (turn @ sums[g])) @ turn
    return np.asarray(sums)


# --- Limits of single responses, and calibrated probabilities, from rows that a model has not seen.
#
# They hold whatever the model is, also one of which some columns stay hidden: all that they need is
# that held-out rows and new people are exchangeable.


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

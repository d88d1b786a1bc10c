"""Do two sites follow the same function, and which groups of sites do: pairwise tests, clusters.

Source of the exchange: Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning* (JCGS
2022), section 2: site i's model is scored on the rows of site j, and the dissimilarity of two sites
is ``|e_ij - e_j| + |e_ji - e_i|``. The tests here keep that sum but take cross-fitted losses for
the training errors and drop the absolute values, so that its mean is about 0 where the functions
are equal, whatever the method, the noise and the sizes (derived and measured in
docs/proofs/pairwise-test.md). The overlap weights are those of Li, Morgan and Zaslavsky (JASA
2018) with a linear discriminant score for the propensity.

Matrices are [i, j]: the model of site i on the rows of site j.

The default rule is average linkage on the signed z of `pairwise_tests`: two
clusters A and B are merged while their mean z is at most ``.5 + 1.35 / sqrt(min(|A|, |B|))``, so
that a mean over many pairs must come closer to the margin than a single z (see
docs/proofs/pairwise-test.md). The number of clusters is where merging stops.

A small z is not enough to join: with a huge standard error it says nothing. So a merge needs
*evidence* too, upper bounds of the losses (`evidence_of`), in half of the pairs between both parts,
and every member of a cluster has it with half of the other members. A pair that was not compared,
or whose bound is above the tolerance, is neither same nor different.

The spectral rule is that of Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning*
(JCGS 2022), section 2: normalised Laplacian, top K eigenvectors, rows of unit length, K-means (Ng,
Jordan and Weiss, NIPS 2002), with the scale of Zelnik-Manor and Perona (NIPS 2004) by default. The
source's criterion (3) for K is not used: at K = 1 the rows of unit length are all equal, its first
term is 0, and K = 1 always wins. K is where the eigenvalues have their largest gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.parameters import LEFT_OUT, check, number, whole

LONE_THRESHOLD = 1.85
"""Mean z up to which a single site joins a cluster, or two are one: .5 + 1.35 / sqrt(1)."""
CONFIDENCE = 0.95
"""Of the one-sided bound of a loss that joins two sites."""
ENOUGH_EVIDENCE = 0.5
"""Share of pairs that must have evidence where clusters merge, and for each member of one."""
ENOUGH_POWER = 0.8
"""Power from which a pair counts as able to show a difference."""

_CONSTANT = 1e-12  # standard deviations below this, relative to the means, are rounding
_MAX_Z = 1e6
_CLEAR = 1.645  # one-sided 5%
_FORGIVEN = 0.25  # of the rival's loss, whatever the standard error
_MAX_EXPONENT = 700.0  # exp of more overflows


@dataclass(frozen=True)
class Pooled:
    """Shrunk pooled covariance of the predictors, as `overlap_weights_all` needs it.

    Attributes
    ----------
    inverse : array, shape (p, p)
        Inverse of S* = (1 - l) S + l diag(S); rows and columns of predictors that are constant
        within every site are 0.
    trace : float
        tr(S*^-1 S); the number of predictors that vary if nothing was shrunk.
    shrink : float
        l, from 0 (S as it is) to 1 (variances only).
    """

    inverse: FloatArray
    trace: float
    shrink: float


@dataclass(frozen=True)
class PairwiseTests:
    """Evidence for a difference between each pair of sites; all arrays (L, L) and symmetric.

    Attributes
    ----------
    difference : array
        w_ij = D_ij + D_ji; diagonal 0, NaN where not comparable.
    standard_error : array
        Of w_ij; diagonal 0, NaN where not comparable.
    margin : array
        tau (Var y_i + Var y_j): differences up to this count as none.
    z : array
        (w - margin) / standard error, within +-1e6; diagonal 0, NaN where not comparable.
    comparable : array of bool
        Both directions have enough effective rows and finite losses; diagonal True.
    growth : array
        For `power` and `detectable`: noise variances by effective rows, summed over both sites.
    upper : array
        U_ij, not symmetric: 95% bound of what site j loses with the model of site i, in shares of
        Var y_j; diagonal 0, NaN where not comparable.
    """

    difference: FloatArray
    standard_error: FloatArray
    margin: FloatArray
    z: FloatArray
    comparable: BoolArray
    growth: FloatArray
    upper: FloatArray

    def only(self, cells: Any) -> PairwiseTests:
        """Tests of some of the sites, by rows and columns as of `numpy.ix_`."""
        return PairwiseTests(*(getattr(self, f.name)[cells] for f in fields(self)))


def shrunk_covariance(
    covariances: ArrayLike, sizes: ArrayLike, means: ArrayLike | None = None
) -> Pooled:
    """Pool the sites' covariances and shrink them towards their diagonal.

    Parameters
    ----------
    covariances : array, shape (L, p, p) or (L, p)
        Centred cross-products of each site divided by its n; or only the variances, where no full
        matrix is known: then l = 1.
    sizes : array, shape (L,)
        Rows n_i.
    means : array, shape (L, p), optional
        Site means; with them a predictor that is constant within all sites up to rounding is told
        from one that varies little.

    Returns
    -------
    Pooled
        S has N - L degrees of freedom; l = min(1, p / (N - L)).

    Raises
    ------
    DataError
        If the shapes do not fit, or a value is not finite.
    """
    moments = np.asarray(covariances, dtype=np.float64)
    n = np.asarray(sizes, dtype=np.float64)
    if moments.ndim not in (2, 3) or n.shape != moments.shape[:1] or n.size == 0:
        raise DataError("pooling covariances needs one matrix, or one row of variances, per site")
    if moments.ndim == 3 and moments.shape[1] != moments.shape[2]:
        raise DataError("pooling covariances needs square matrices")
    if not np.isfinite(moments).all() or not (n > 0).all():
        raise DataError("pooling covariances needs finite moments and positive sizes")
    # N - L: the mean of each site was estimated
    freedom = max(float(n.sum()) - n.size, 1.0)
    pooled = np.tensordot(n, moments, axes=(0, 0)) / freedom
    p = moments.shape[1]
    # l = min(1, p / (N - L)): of few rows the inverse of S would be mostly noise
    shrink = 1.0 if moments.ndim == 2 else min(1.0, p / freedom)
    deviations = np.sqrt(np.maximum(pooled if moments.ndim == 2 else np.diagonal(pooled), 0.0))
    floor = np.zeros(p) if means is None else _CONSTANT * np.abs(np.asarray(means)).max(axis=0)
    varies = np.flatnonzero(deviations > floor)
    inverse = np.zeros((p, p))
    if varies.size == 0:
        return Pooled(inverse, 0.0, shrink)
    scale = np.outer(deviations[varies], deviations[varies])
    if moments.ndim == 2:
        correlation = np.eye(varies.size)
    else:
        correlation = pooled[np.ix_(varies, varies)] / scale
    # on the scale of correlations the condition number does not depend on the units
    inner = np.linalg.inv((1.0 - shrink) * correlation + shrink * np.eye(varies.size))
    inner = (inner + inner.T) / 2.0
    inverse[np.ix_(varies, varies)] = inner / scale
    return Pooled(inverse, float(np.sum(inner * correlation)), shrink)


def overlap_weights_all(
    x: FloatArray, j: int, means: FloatArray, sizes: ArrayLike, pooled: Pooled
) -> FloatArray:
    """Weights of site j's rows in its comparison with each site i.

    ``h = 1 / (1 + exp(-f (x - (m_i + m_j)/2)' g))``, ``g = S*^-1 (m_i - m_j)``: rows of j that
    could as well be rows of i count most. f, the share of the squared distance of the means that is
    not sampling noise, makes the weights equal where the sites' predictors do not differ.

    Parameters
    ----------
    x : array, shape (n, p)
        Predictors of site j.
    j : int
        Position of the site in ``means``.
    means : array, shape (L, p)
        Means of the predictors, by site.
    sizes : array, shape (L,)
        Rows, by site.
    pooled : Pooled
        From `shrunk_covariance`.

    Returns
    -------
    array, shape (n, L)
        Between 0 and 1; column j is 1/2.
    """
    n = np.asarray(sizes, dtype=np.float64)
    delta = means - means[j]
    # g = S*^-1 (m_i - m_j), the linear discriminant of the two sites' predictors
    direction = delta @ pooled.inverse
    distance = np.einsum("ip,ip->i", delta, direction)
    noise = pooled.trace * (1.0 / n + 1.0 / n[j])
    factor = np.zeros(len(n))
    apart = distance > 0.0
    # f: what of the squared distance of the means is not sampling noise
    factor[apart] = np.maximum(0.0, 1.0 - noise[apart] / distance[apart])
    score = factor * ((x - means[j]) @ direction.T - distance / 2.0)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(score, -_MAX_EXPONENT, _MAX_EXPONENT))))


def pairwise_tests(
    excess: FloatArray,
    variance: FloatArray,
    effective: FloatArray,
    sizes: ArrayLike,
    target_variance: ArrayLike,
    *,
    margin: float = 0.03,
    min_effective: float = 20.0,
    own_loss: ArrayLike | None = None,
) -> PairwiseTests:
    """Test each pair of sites for a difference beyond the equivalence margin.

    ``w_ij = D_ij + D_ji``,
    ``se_ij^2 = Q_ij (1 + n_i/(n_i+n_j)) + Q_ji (1 + n_j/(n_i+n_j))``,
    ``z_ij = (w_ij - margin (Var y_i + Var y_j)) / se_ij``.

    Parameters
    ----------
    excess, variance, effective : array, shape (L, L)
        D, Q and effective rows, [i, j] = model of i on the rows of j; the diagonals are not read.
    sizes : array, shape (L,)
        Rows n_i.
    target_variance : array, shape (L,)
        Var y_i; for classification the mean loss of the site's best constant prediction.
    margin : float
        Equivalence margin tau, as a share of the variance of y: .03 tolerates 3 points of R^2.
    min_effective : float
        Pairs with fewer effective rows in either direction are not comparable.
    own_loss : array, shape (L,), optional
        Mean cross-fitted loss of each site's own model, for the power only. Without it the variance
        of y is taken, which is larger: less power is claimed than there is.

    Returns
    -------
    PairwiseTests

    Raises
    ------
    DataError
        If the shapes do not fit.
    ParameterError
        If ``margin`` or ``min_effective`` is negative.
    """
    n = np.asarray(sizes, dtype=np.float64)
    spread = np.asarray(target_variance, dtype=np.float64)
    square = (n.size, n.size)
    if not (np.shape(excess) == np.shape(variance) == np.shape(effective) == square):
        raise DataError("pairwise tests need three square matrices with one row per site")
    if spread.shape != n.shape:
        raise DataError("pairwise tests need the variance of the target of every site")
    noise = spread if own_loss is None else np.asarray(own_loss, dtype=np.float64)
    if noise.shape != n.shape:
        raise DataError("pairwise tests need the own loss of every site, or of none")
    check({"margin": number(0), "min_effective": number(0)}, locals())
    share = n[:, None] / (n[:, None] + n[None, :])  # n_i / (n_i + n_j)
    # Q holds the models fixed, but they are estimates too
    inflated = variance * (1.0 + share)
    # tau (Var y_i + Var y_j)
    tolerated = margin * (spread[:, None] + spread[None, :])
    usable = np.isfinite(excess) & np.isfinite(variance) & (variance >= 0.0)
    usable &= effective >= min_effective
    comparable = usable & usable.T & np.isfinite(tolerated)
    # w_ij = D_ij + D_ji, without the absolute values of the source: about 0 in equal sites
    difference = np.where(comparable, excess + excess.T, np.nan)
    standard_error = np.sqrt(np.where(comparable, inflated + inflated.T, np.nan))
    z = _bounded_ratio(difference - tolerated, standard_error)
    by_rows = noise[None, :] / np.where(comparable, effective, np.nan)
    growth = by_rows + by_rows.T
    upper = upper_losses(excess, variance, effective, n, spread)
    upper = np.where(comparable, upper, np.nan)
    for matrix in (difference, standard_error, z, growth, upper):
        np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(comparable, True)
    return PairwiseTests(difference, standard_error, tolerated, z, comparable, growth, upper)


def upper_losses(
    excess: FloatArray,
    variance: FloatArray,
    effective: FloatArray,
    sizes: ArrayLike,
    target_variance: ArrayLike,
) -> FloatArray:
    """One-sided bound of what each site loses with each other's model, in its own units.

    ``U_ij = (D_ij + t sqrt(Q_ij (1 + n_i/(n_i+n_j)))) / Var y_j`` with t the 95% quantile of
    Student's distribution on m_ij - 1 degrees of freedom, m the effective rows.

    Parameters
    ----------
    excess, variance, effective, sizes, target_variance
        As in `pairwise_tests`.

    Returns
    -------
    array, shape (L, L)
        NaN where a value is not known or fewer than two rows are effective.
    """
    from scipy.special import stdtrit

    n = np.asarray(sizes, dtype=np.float64)
    unit = np.asarray(target_variance, dtype=np.float64)
    share = n[:, None] / (n[:, None] + n[None, :])  # n_i / (n_i + n_j)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(effective > 1.0, effective - 1.0, np.nan)
        error = np.sqrt(variance * (1.0 + share))
        return np.asarray((excess + stdtrit(freedom, CONFIDENCE) * error) / unit[None, :])


def evidence_of(upper: FloatArray, tolerance: float) -> BoolArray:
    """Pairs that may be joined: in both directions the loss is surely below the tolerance.

    Parameters
    ----------
    upper : array, shape (L, L)
        As of `upper_losses`.
    tolerance : float
        In shares of the variance of y; 1 is what the best constant prediction loses.

    Returns
    -------
    array of bool, shape (L, L)
        Symmetric; diagonal True. What is not known is no evidence.
    """
    with np.errstate(invalid="ignore"):
        found = np.asarray((upper <= tolerance) & (upper <= tolerance).T)
    np.fill_diagonal(found, True)
    return found


def power(
    target_difference: ArrayLike,
    margin_total: ArrayLike,
    standard_error: ArrayLike,
    threshold: float = LONE_THRESHOLD,
    growth: ArrayLike = 0.0,
) -> FloatArray:
    """Chance that a pair with a true difference is told apart: P(z > threshold).

    A pair that differs has a larger standard error than one that does not. With B the growth, at
    the difference w ``se(w)^2 = se^2 + 3 B w`` and ``Var w = se^2 + 8 B w`` (first order, least
    squares; docs/proofs/pairwise-test.md).

    Parameters
    ----------
    target_difference : array
        True w, in squared units of y: twice the mean squared difference of the two functions.
    margin_total : array
        tau (Var y_i + Var y_j), as in `PairwiseTests.margin`.
    standard_error : array
        Standard error of a pair that does not differ.
    threshold : float
        Largest z at which the two sites would be merged; positive.
    growth : array
        `PairwiseTests.growth`. With 0 the standard error is taken as it is, and the power comes
        out far too high.

    Returns
    -------
    array
        By the normal approximation; NaN stays NaN.
    """
    from scipy.special import ndtr

    target, error = np.asarray(target_difference, dtype=np.float64), np.asarray(standard_error)
    beyond = target - _critical(margin_total, error, threshold, growth)
    spread = np.sqrt(error**2 + 8.0 * np.asarray(growth) * np.maximum(target, 0.0))
    return np.asarray(ndtr(_bounded_ratio(beyond, spread)))


def detectable(
    margin_total: ArrayLike,
    standard_error: ArrayLike,
    power: float = 0.8,
    threshold: float = LONE_THRESHOLD,
    growth: ArrayLike = 0.0,
) -> FloatArray:
    """Smallest true w that is told apart with the given power.

    Parameters
    ----------
    margin_total, standard_error, threshold, growth
        As in `power`.
    power : float
        From .5 to below 1.

    Returns
    -------
    array
        In squared units of y.

    Raises
    ------
    ParameterError
        If ``power`` is out of its range.
    """
    from scipy.special import ndtri

    check({"power": number(0.5, below=1)}, locals())
    error, slope = np.asarray(standard_error, dtype=np.float64), 8.0 * np.asarray(growth)
    return _crossing(
        _critical(margin_total, error, threshold, growth), float(ndtri(power)), error, slope
    )


def way_of_predicting(gain: Mapping[str, FloatArray], alone: BoolArray) -> NDArray[np.str_]:
    """How each site should predict: with its group, unless that is clearly worse for it.

    Clearly worse than a rival (its own model, a constant) is a mean held-out loss that is higher by
    more than 1.645 standard errors of the paired difference, or by more than a quarter of the
    rival's loss: with few rows or wild losses the standard error alone would forgive anything.
    Of own model and constant it is the constant, unless that is clearly worse: held-out rows are
    few, and a model that does as well on them may be far off on others.

    Parameters
    ----------
    gain : mapping of str to (L,) array
        ``own``, ``group``, ``constant``, ``own_minus_group`` and ``constant_minus_group``, the last
        two and the first and third with ``..._error``; NaN where not known, which speaks against
        nobody.
    alone : (L,) array of bool
        Sites without company: the group is the own model.

    Returns
    -------
    (L,) array of str
        "group", "own" or "constant".
    """
    worse = np.zeros(len(gain["own"]), dtype=bool)
    for rival in ("own", "constant"):
        lost = -gain[f"{rival}_minus_group"]
        allowed = np.fmin(_CLEAR * gain[f"{rival}_minus_group_error"], _FORGIVEN * gain[rival])
        worse |= lost > allowed
    # The standard error of a difference is at most the sum of those of its parts.
    error = np.fmin(
        gain["own_minus_group_error"] + gain["constant_minus_group_error"],
        gain["own_error"] + gain["constant_error"],
    )
    simple = gain["constant"] - gain["own"] <= np.fmin(_CLEAR * error, _FORGIVEN * gain["own"])
    worse |= alone & simple
    return np.asarray(np.where(worse, np.where(simple, "constant", "own"), "group"))


def source_dissimilarity(cross_loss: FloatArray, own_loss: ArrayLike) -> FloatArray:
    """Dissimilarity of the source: ``v_ij = |e_ij - e_j| + |e_ji - e_i|``, ``v_ii = 0``.

    Parameters
    ----------
    cross_loss : array, shape (L, L)
        Mean loss of model i on the rows of j; the diagonal is not read.
    own_loss : array, shape (L,)
        Training error of each site's own model.

    Returns
    -------
    array, shape (L, L)
        NaN where either loss is.
    """
    # |e_ij - e_j| of the source, with its training errors
    apart = np.abs(cross_loss - np.asarray(own_loss, dtype=np.float64)[None, :])
    result = apart + apart.T
    np.fill_diagonal(result, 0.0)
    return result


def reference_dissimilarity(predictions: FloatArray) -> FloatArray:
    """Dissimilarity from predictions on common points: twice the mean squared difference.

    Parameters
    ----------
    predictions : array, shape (L, a) or (L, a, q)
        Predictions of each site's model at the a points, with q outputs (summed over).

    Returns
    -------
    array, shape (L, L)
        ``v_ij = 2 mean_a |f_i(a) - f_j(a)|^2``.
    """
    values = np.asarray(predictions, dtype=np.float64)
    n_sites, n_points = values.shape[:2]
    flat = values.reshape(n_sites, -1)
    result = np.empty((n_sites, n_sites))
    for i in range(n_sites):  # by differences: the expanded square loses small distances
        result[i] = 2.0 * np.square(flat - flat[i]).sum(axis=1) / n_points
    return result


def _critical(
    margin_total: ArrayLike, error: FloatArray, threshold: float, growth: ArrayLike
) -> FloatArray:
    """Observed w at which z reaches the threshold."""
    return _crossing(np.asarray(margin_total), threshold, error, 3.0 * np.asarray(growth))


def _crossing(start: FloatArray, steps: float, error: FloatArray, slope: FloatArray) -> FloatArray:
    """The w with ``w - start = steps * sqrt(error^2 + slope * w)``, for steps >= 0."""
    half = steps**2 * slope / 2.0
    return np.asarray(start + half + np.sqrt(half**2 + steps**2 * (error**2 + slope * start)))


def _bounded_ratio(numerator: FloatArray, error: FloatArray) -> FloatArray:
    """Ratio within +-1e6; 0/0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where((numerator == 0.0) & (error == 0.0), 0.0, numerator / error)
    return np.asarray(np.clip(ratio, -_MAX_Z, _MAX_Z))


# ---------------------------------------------------------------------------------- groups of sites


Scale = Literal["self-tuning"] | float

_N_INIT = 20
_MOVES_PER_SITE = 3
_GAIN = 1e-9  # smaller falls of a mean z are rounding


@dataclass(frozen=True)
class Merges:
    """All L - 1 merges, from single sites to one cluster.

    Attributes
    ----------
    ids : array of int64, shape (L - 1, 2)
        Clusters merged, numbered as scipy does: 0 to L - 1 are the sites, L + s is the result of
        merge s. The cluster with the first member comes first.
    heights : array, shape (L - 1,)
        Mean z over comparable pairs; +inf where no pair is comparable. Not always ascending.
    thresholds : array, shape (L - 1,)
        Largest mean z at which the rule would have merged these two.
    stop : int
        Number of merges that the rule makes; the others only complete the tree.
    """

    ids: IntArray
    heights: FloatArray
    thresholds: FloatArray
    stop: int


@dataclass(frozen=True)
class Clustering:
    """Clusters of sites by the default rule.

    Attributes
    ----------
    labels : array of int64, shape (L,)
        0 is the largest cluster; clusters of one size in the order of their first member.
    merges : Merges
        How they came about, before single sites moved to the cluster of smallest mean z.
    """

    labels: IntArray
    merges: Merges


@dataclass(frozen=True)
class Spectral:
    """Clusters of sites by the spectral rule of the source.

    Attributes
    ----------
    labels : array of int64, shape (L,)
        Numbered as in `Clustering`.
    eigenvalues : array, shape (L,)
        Of the normalised similarity matrix, in descending order; the first is 1.
    """

    labels: IntArray
    eigenvalues: FloatArray


def merge_threshold(size: ArrayLike) -> FloatArray:
    """Largest mean z at which two clusters merge, by the size of the smaller one."""
    return np.asarray(0.5 + (LONE_THRESHOLD - 0.5) / np.sqrt(np.asarray(size, dtype=np.float64)))


def linkage(z: FloatArray, evidence: BoolArray | None = None) -> Merges:
    """Average linkage over comparable pairs, with a threshold that depends on the sizes.

    Among pairs of clusters with mean z at most their threshold the smallest mean is merged; ties
    go to the pair with the first member in site order. When no pair is left (``stop``), merging
    goes on by the smallest mean until one cluster remains, clusters without a comparable pair
    between them last.

    Parameters
    ----------
    z : array, shape (L, L)
        Symmetric; NaN where not comparable; the diagonal is not read.
    evidence : array of bool, shape (L, L), optional
        Pairs that may be joined, as of `evidence_of`: the rule merges two clusters only where half
        of the pairs between them may. All unless given.

    Returns
    -------
    Merges

    Raises
    ------
    DataError
        If ``z`` is not square and symmetric, or holds an infinite value.
    """
    total, pairs = _sums_and_counts(z)
    n_sites = len(total)
    n_merges = max(n_sites - 1, 0)
    ids = np.zeros((n_merges, 2), dtype=np.int64)
    heights, thresholds = np.zeros(n_merges), np.zeros(n_merges)
    tree = _Tree(total, pairs, _evident(evidence, n_sites))
    stop = n_merges
    for step in range(n_merges):
        a, b = tree.closest()
        if tree.by_rule and a < 0:
            stop = step
            tree.leave_rule()
            a, b = tree.closest()
        if a < 0:
            a, b = (int(slot) for slot in np.flatnonzero(tree.alive)[:2])
        ids[step] = tree.number[a], tree.number[b]
        heights[step] = tree.mean(a, b)
        thresholds[step] = merge_threshold(min(tree.size[a], tree.size[b]))
        tree.merge(a, b, n_sites + step)
    return Merges(ids, heights, thresholds, stop)


def cut(ids: IntArray, n_merges: int) -> IntArray:
    """Labels after the first merges.

    Parameters
    ----------
    ids : array of int64, shape (L - 1, 2)
        As in `Merges`.
    n_merges : int
        From 0 (every site alone) to L - 1.

    Returns
    -------
    array of int64, shape (L,)
        Numbered as in `Clustering`.
    """
    n_sites = len(ids) + 1
    members = [[site] for site in range(n_sites)]
    labels = np.arange(n_sites)
    for a, b in ids[:n_merges]:
        members.append(members[a] + members[b])
        labels[members[-1]] = n_sites + len(members)
    return _numbered(labels)


def cluster(
    z: FloatArray,
    n_clusters: int | None = None,
    max_clusters: int | None = None,
    evidence: BoolArray | None = None,
) -> Clustering:
    """Merge, cut and relocate.

    Parameters
    ----------
    z : array, shape (L, L)
        As in `linkage`.
    n_clusters : int, optional
        K, where it is given; otherwise merging stops by the rule.
    max_clusters : int, optional
        Upper bound for the K of the rule.
    evidence : array of bool, shape (L, L), optional
        As in `linkage`. Where the number of clusters is given, or cut by ``max_clusters``, sites
        are joined without it.

    Returns
    -------
    Clustering

    Raises
    ------
    DataError
        As `linkage`.
    ParameterError
        If ``n_clusters`` is not between 1 and L, or ``max_clusters`` is below 1.
    """
    n_sites = len(z)
    if n_sites == 0:
        raise DataError("there is no site to cluster")
    rules = {"max_clusters": whole(1) | LEFT_OUT, "n_clusters": whole(1, n_sites) | LEFT_OUT}
    check(rules, locals())
    merges = linkage(z, evidence)
    wanted = n_sites - merges.stop
    by_rule = n_clusters is None and (max_clusters is None or wanted <= max_clusters)
    if n_clusters is not None:
        wanted = n_clusters
    elif max_clusters is not None:
        wanted = min(wanted, max_clusters)
    labels = cut(merges.ids, n_sites - wanted)
    if evidence is None or not by_rule:
        return Clustering(relocate(z, labels), merges)
    placed = relocate(z, labels, evidence)
    # Members leave that have evidence with fewer than half of the others, the worst first.
    now, joined = placed.copy(), evidence & ~np.eye(n_sites, dtype=bool)
    while True:
        same = now[:, None] == now[None, :]
        others = same.sum(axis=1) - 1
        # members of one stay: they have nobody to have evidence with
        share = np.where(others > 0, (joined & same).sum(axis=1) / np.maximum(others, 1), 1.0)
        worst = int(share.argmin())
        if share[worst] >= ENOUGH_EVIDENCE:
            break
        now[worst] = now.max() + 1
    found = _numbered(now)
    # those that left may be more clusters than are wanted: then they stay where they were
    fits = max_clusters is None or int(found.max()) < max_clusters
    return Clustering(found if fits else placed, merges)


def relocate(z: FloatArray, labels: ArrayLike, evidence: BoolArray | None = None) -> IntArray:
    """Move sites to the cluster of smallest mean z, one at a time, the largest gain first.

    Only members of a cluster of two or more move, so K stays. A site without a comparable pair in
    its own cluster goes to any cluster where it has one.

    Parameters
    ----------
    z : array, shape (L, L)
        As in `linkage`.
    labels : array of int, shape (L,)
        Clusters 0 to K - 1.
    evidence : array of bool, shape (L, L), optional
        As in `linkage`: a site moves only where it has evidence with half of the members.

    Returns
    -------
    array of int64, shape (L,)
        Numbered as in `Clustering`.

    Raises
    ------
    DataError
        As `linkage`, or if there is not one label per site.
    """
    now = np.array(labels, dtype=np.int64)
    total, pairs = _sums_and_counts(z)
    n_sites = len(total)
    if now.shape != (n_sites,) or now.size == 0 or now.min() < 0:
        raise DataError("every site needs a cluster, numbered from 0")
    sites = np.arange(n_sites)
    member = (now[:, None] == np.arange(now.max() + 1)).astype(np.float64)
    sums, counts = total @ member, pairs @ member
    joined = _evident(evidence, n_sites)
    np.fill_diagonal(joined, 0.0)
    evident = joined @ member
    for _ in range(_MOVES_PER_SITE * n_sites):  # means need not fall with every move
        mean = np.where(counts > 0, sums / np.maximum(counts, 1.0), np.inf)
        # members beside the site itself
        others = np.bincount(now, minlength=mean.shape[1]) - (
            now[:, None] == np.arange(mean.shape[1])
        )
        mean[evident < ENOUGH_EVIDENCE * others] = np.inf
        target = mean.argmin(axis=1)
        own, other = mean[sites, now], mean[sites, target]
        known = np.isfinite(other)
        gain = np.zeros(n_sites)
        gain[known] = own[known] - other[known]
        gain[np.bincount(now, minlength=mean.shape[1])[now] == 1] = 0.0
        site = int(gain.argmax())
        if not gain[site] > _GAIN * max(1.0, abs(other[site])):
            break
        left, entered = now[site], target[site]
        for matrix, values in ((sums, total), (counts, pairs), (evident, joined)):
            matrix[:, left] -= values[:, site]
            matrix[:, entered] += values[:, site]
        now[site] = entered
    return _numbered(now)


def join(
    z_new: FloatArray,
    labels: ArrayLike,
    threshold: float = LONE_THRESHOLD,
    evidence: BoolArray | None = None,
) -> IntArray:
    """Clusters of newcomers: that of smallest mean z, if it is small enough.

    Parameters
    ----------
    z_new : array, shape (m, L)
        Tests of each newcomer against the L sites that have a cluster; NaN where not comparable.
    labels : array of int, shape (L,)
        Clusters 0 to K - 1.
    threshold : float
        Largest mean z at which a newcomer joins.
    evidence : array of bool, shape (m, L), optional
        Pairs that may be joined: a newcomer needs half of the members. All unless given.

    Returns
    -------
    array of int64, shape (m,)
        -1 for a newcomer that joins none.
    """
    groups = np.asarray(labels, dtype=np.int64)
    mean = _mean_by_cluster(np.atleast_2d(z_new), groups)
    if evidence is not None:
        member = (groups[:, None] == np.arange(groups.max() + 1)).astype(np.float64)
        enough = np.atleast_2d(evidence).astype(np.float64) @ member
        mean[enough < ENOUGH_EVIDENCE * member.sum(axis=0)] = np.inf
    best = mean.argmin(axis=1)
    return np.where(mean[np.arange(len(mean)), best] <= threshold, best, -1)


def similarity(v: FloatArray, scale: Scale = "self-tuning") -> FloatArray:
    """``exp(-v_ij / scale)``, or with the self-tuning scale sqrt(v_i(k) v_j(k)).

    Parameters
    ----------
    v : array, shape (L, L)
        Dissimilarities, symmetric and nonnegative; NaN where not known.
    scale : "self-tuning" or float
        v_i(k) is the dissimilarity of site i to its k-th neighbour, k = L // 3 within 2 and 7.

    Returns
    -------
    array, shape (L, L)
        Diagonal 1; 0 where v is not known.

    Raises
    ------
    DataError
        If ``v`` is not square, symmetric and nonnegative.
    ParameterError
        If the scale is neither "self-tuning" nor a positive number.
    """
    v = np.array(v, dtype=np.float64)
    if v.ndim != 2 or v.shape[0] != v.shape[1] or (v < 0.0).any():
        raise DataError("dissimilarities need a square matrix without negative values")
    if not np.allclose(v, v.T, rtol=1e-8, atol=0.0, equal_nan=True):
        raise DataError("dissimilarities need a symmetric matrix")
    v[np.isnan(v)] = np.inf
    np.fill_diagonal(v, 0.0)
    n_sites = len(v)
    if scale == "self-tuning":
        # The 7th neighbour of Zelnik-Manor and Perona is too far off among few sites.
        neighbour = min(int(np.clip(n_sites // 3, 2, 7)), n_sites - 1)
        known = np.isfinite(v).sum(axis=1) - 1  # position 0 of a sorted row is the site itself
        own = np.sort(v, axis=1)[np.arange(n_sites), np.minimum(neighbour, known)]
        widths = np.sqrt(own)[:, None] * np.sqrt(own)[None, :]
    elif isinstance(scale, int | float) and 0.0 < scale < np.inf:
        widths = np.full_like(v, scale)
    else:
        raise ParameterError.of("scale", '"self-tuning" or a positive number', scale)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.exp(-np.where(v == 0.0, 0.0, v / widths)))


def spectral(
    v: FloatArray,
    *,
    rng: np.random.Generator,
    scale: Scale = "self-tuning",
    n_clusters: int | None = None,
    max_clusters: int = 10,
) -> Spectral:
    """Spectral clustering of the sites, as in the source.

    Parameters
    ----------
    v : array, shape (L, L)
        Dissimilarities, as in `similarity`.
    rng : numpy.random.Generator
        Source of the 20 starts of K-means.
    scale : "self-tuning" or float
        As in `similarity`.
    n_clusters : int, optional
        K; by default where the eigenvalues have their largest gap, from 1 to
        min(``max_clusters``, L - 1). Two sites are therefore always one cluster.
    max_clusters : int
        Upper bound for the K of the gap.

    Returns
    -------
    Spectral

    Raises
    ------
    DataError, ParameterError
        As `similarity` and `cluster`.
    """
    if len(v) == 0:
        raise DataError("there is no site to cluster")
    s = similarity(v, scale)
    n_sites = len(s)
    check({"max_clusters": whole(1), "n_clusters": whole(1, n_sites) | LEFT_OUT}, locals())
    root = np.sqrt(s.sum(axis=1))
    # D^-1/2 S D^-1/2 (Ng, Jordan and Weiss 2002)
    values, vectors = np.linalg.eigh(s / root[:, None] / root[None, :])
    values, vectors = values[::-1].copy(), vectors[:, ::-1]
    if n_clusters is None:
        # The largest gap of the eigenvalues stands in for the source's criterion (3).
        bound = max(min(max_clusters, n_sites - 1), 1)
        n_clusters = (
            1 if n_sites == 1 else int(np.argmax(values[:bound] - values[1 : bound + 1])) + 1
        )
    if n_clusters in (1, n_sites):
        labels = np.arange(n_sites) if n_clusters > 1 else np.zeros(n_sites, dtype=np.int64)
        return Spectral(labels, values)
    top = vectors[:, :n_clusters]
    # rows of unit length, before K-means
    lengths = np.linalg.norm(top, axis=1, keepdims=True)
    points = top / np.where(lengths > 0.0, lengths, 1.0)
    found = weighted_kmeans(points, np.ones(n_sites), n_clusters, rng=rng, n_init=_N_INIT)
    return Spectral(_numbered(found.labels), values)


def join_similar(similarity_new: FloatArray, labels: ArrayLike) -> IntArray:
    """Clusters of newcomers by the largest mean similarity (a sum would favour large clusters).

    Parameters
    ----------
    similarity_new : array, shape (m, L)
        Similarity of each newcomer to the L sites that have a cluster.
    labels : array of int, shape (L,)
        Clusters 0 to K - 1.

    Returns
    -------
    array of int64, shape (m,)
    """
    mean = _mean_by_cluster(-np.atleast_2d(similarity_new), np.asarray(labels, dtype=np.int64))
    return np.asarray(mean.argmin(axis=1))


class _Tree:
    """Sums of z and numbers of comparable pairs between clusters, with the best partner of each.

    A cluster lives in the slot of its first member. Sums are updated, not computed anew, and only
    clusters whose best partner was merged look for another: a merge costs about O(L).
    """

    def __init__(self, total: FloatArray, pairs: FloatArray, evident: FloatArray) -> None:
        n = len(total)
        self.total, self.pairs, self.evident = total, pairs, evident
        self.alive = np.ones(n, dtype=bool)
        self.size = np.ones(n, dtype=np.int64)
        self.number = np.arange(n)
        self.by_rule = True
        self._partner = np.zeros(n, dtype=np.int64)
        self._best = np.full(n, np.inf)
        for slot in range(n):
            self._search(slot)

    def mean(self, a: int, b: int) -> float:
        count = self.pairs[a, b]
        return float(self.total[a, b] / count) if count > 0 else np.inf

    def closest(self) -> tuple[int, int]:
        """Slots (a < b) of the next merge; (-1, -1) if no pair may merge."""
        a = int(self._best.argmin())
        if not np.isfinite(self._best[a]):
            return -1, -1
        return a, int(self._partner[a])

    def leave_rule(self) -> None:
        """Go on without thresholds."""
        self.by_rule = False
        for slot in np.flatnonzero(self.alive):
            self._search(int(slot))

    def merge(self, a: int, b: int, number: int) -> None:
        for matrix in (self.total, self.pairs, self.evident):
            matrix[a] += matrix[b]
            matrix[:, a] = matrix[a]
        self.alive[b] = False
        self.size[a] += self.size[b]
        self.number[a] = number
        self._best[b] = np.inf
        self._search(a)
        # merging changes what a is to the clusters before it
        before = np.flatnonzero(self.alive[:a])
        value = self._allowed(a, before)
        stale = (self._partner[before] == a) | (self._partner[before] == b)
        better = ~stale & (
            (value < self._best[before])
            | ((value == self._best[before]) & (a < self._partner[before]) & np.isfinite(value))
        )
        self._best[before[better]] = value[better]
        self._partner[before[better]] = a
        between = np.flatnonzero(self.alive[a + 1 : b]) + a + 1
        lost = between[self._partner[between] == b]
        for slot in (*before[stale], *lost):
            self._search(int(slot))

    def _search(self, slot: int) -> None:
        others = np.flatnonzero(self.alive[slot + 1 :]) + slot + 1
        self._best[slot] = np.inf
        if others.size:
            value = self._allowed(slot, others)
            first = int(value.argmin())
            self._best[slot], self._partner[slot] = value[first], others[first]

    def _allowed(self, slot: int, others: IntArray) -> FloatArray:
        count = self.pairs[slot, others]
        value = np.where(count > 0, self.total[slot, others] / np.maximum(count, 1.0), np.inf)
        if not self.by_rule:
            return value
        limit = merge_threshold(np.minimum(self.size[slot], self.size[others]))
        # of all pairs, not of the comparable ones: what was not compared is no evidence
        needed = ENOUGH_EVIDENCE * self.size[slot] * self.size[others]
        allowed = (value <= limit) & (self.evident[slot, others] >= needed)
        return np.where(allowed, value, np.inf)


def _evident(evidence: BoolArray | None, n_sites: int) -> FloatArray:
    """Evidence as numbers that can be summed over clusters; everywhere where none was given."""
    if evidence is None:
        return np.ones((n_sites, n_sites))
    found = np.array(evidence, dtype=np.float64)
    if found.shape != (n_sites, n_sites) or not np.array_equal(found, found.T):
        raise DataError("evidence needs a symmetric matrix with one row per site")
    return found


def _sums_and_counts(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    z = np.array(z, dtype=np.float64)
    if z.ndim != 2 or z.shape[0] != z.shape[1]:
        raise DataError("z needs a square matrix with one row per site")
    np.fill_diagonal(z, np.nan)
    if np.isinf(z).any():
        raise DataError("z needs finite values, or NaN where two sites are not comparable")
    if not np.allclose(z, z.T, rtol=1e-8, atol=1e-12, equal_nan=True):
        raise DataError("z needs a symmetric matrix")
    known = ~np.isnan(z)
    return np.where(known, z, 0.0), known.astype(np.float64)


def _mean_by_cluster(z: FloatArray, labels: IntArray) -> FloatArray:
    """Mean over the comparable members of each cluster, (m, K); +inf where there is none."""
    if labels.shape != z.shape[1:] or labels.size == 0 or labels.min() < 0:
        raise DataError("every site needs a cluster, numbered from 0")
    member = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
    known = ~np.isnan(z)
    count = known.astype(np.float64) @ member
    total = np.where(known, z, 0.0) @ member
    return np.where(count > 0, total / np.maximum(count, 1.0), np.inf)


def _numbered(labels: IntArray) -> IntArray:
    """Number clusters by size, largest first, then by first member."""
    _, first, inverse, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.lexsort((first, -counts))] = np.arange(len(first))
    return rank[inverse]

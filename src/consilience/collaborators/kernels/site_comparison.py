"""Do two sites follow the same function? Weights, losses and pairwise tests.

Source of the exchange: Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning* (JCGS
2022), section 2: site i's model is scored on the rows of site j, and the dissimilarity of two sites
is ``|e_ij - e_j| + |e_ji - e_i|``. The tests here keep that sum but take cross-fitted losses for
the training errors and drop the absolute values, so that its mean is about 0 where the functions
are equal, whatever the method, the noise and the sizes (derived and measured in
docs/proofs/pairwise-test.md). The overlap weights are those of Li, Morgan and Zaslavsky (JASA
2018) with a linear discriminant score for the propensity.

Matrices are [i, j]: the model of site i on the rows of site j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import BoolArray, FloatArray
from consilience.exceptions import DataError, ParameterError

__all__ = [
    "LONE_THRESHOLD",
    "ExcessLoss",
    "PairwiseTests",
    "Pooled",
    "detectable",
    "excess_loss",
    "overlap_weights_all",
    "pairwise_tests",
    "power",
    "reference_dissimilarity",
    "shrunk_covariance",
    "source_dissimilarity",
]


LONE_THRESHOLD = 1.85
"""Mean z up to which a single site joins a cluster: .5 + 1.35 / sqrt(1)."""

_CONSTANT = 1e-12  # standard deviations below this, relative to the means, are rounding
_MAX_Z = 1e6
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


class ExcessLoss(NamedTuple):
    """How much worse foreign models predict the rows of one site than its own, cross-fitted.

    Attributes
    ----------
    mean : array, shape (L,)
        D_ij, in squared units of y; NaN where nothing could be computed.
    variance : array, shape (L,)
        Q_ij, sampling variance of the mean with both models held fixed.
    effective : array, shape (L,)
        (sum h)^2 / sum h^2, the number of rows that the weights leave.
    """

    mean: FloatArray
    variance: FloatArray
    effective: FloatArray


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
    """

    difference: FloatArray
    standard_error: FloatArray
    margin: FloatArray
    z: FloatArray
    comparable: BoolArray
    growth: FloatArray


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
    freedom = max(float(n.sum()) - n.size, 1.0)
    pooled = np.tensordot(n, moments, axes=(0, 0)) / freedom
    p = moments.shape[1]
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
    direction = delta @ pooled.inverse
    distance = np.einsum("ip,ip->i", delta, direction)
    noise = pooled.trace * (1.0 / n + 1.0 / n[j])
    factor = np.zeros(len(n))
    apart = distance > 0.0
    factor[apart] = np.maximum(0.0, 1.0 - noise[apart] / distance[apart])
    score = factor * ((x - means[j]) @ direction.T - distance / 2.0)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(score, -_MAX_EXPONENT, _MAX_EXPONENT))))


def excess_loss(d: FloatArray, h: FloatArray) -> ExcessLoss:
    """Weighted mean of loss differences, its variance and the effective number of rows.

    ``D = sum h d / sum h``, ``Q = sum h^2 (d - D)^2 / (sum h)^2``.

    Parameters
    ----------
    d : array, shape (n, L)
        Loss of each foreign model minus the cross-fitted loss of the own one, by row.
    h : array, shape (n, L)
        Weights, nonnegative.

    Returns
    -------
    ExcessLoss
        A column of ``d`` with a value that is not finite has mean and variance NaN.

    Raises
    ------
    DataError
        If the shapes differ.
    """
    d, h = np.asarray(d, dtype=np.float64), np.asarray(h, dtype=np.float64)
    if d.ndim != 2 or d.shape != h.shape:
        raise DataError("losses and weights need the same shape (rows, models)")
    largest = h.max(axis=0, initial=0.0)
    weights = h / np.where(largest > 0.0, largest, 1.0)  # squares of tiny weights underflow
    total, squares = weights.sum(axis=0), np.square(weights).sum(axis=0)
    usable = (total > 0.0) & np.isfinite(d).all(axis=0)
    safe = np.where(total > 0.0, total, 1.0)
    values = np.where(usable, d, 0.0)
    mean = (weights * values).sum(axis=0) / safe
    # with (w/W)^2 written as a product, losses up to 1e150 do not overflow on the way
    variance = np.square(weights * (values - mean) / safe).sum(axis=0)
    effective = np.where(total > 0.0, total**2 / np.where(squares > 0.0, squares, 1.0), 0.0)
    return ExcessLoss(
        mean=np.where(usable, mean, np.nan),
        variance=np.where(usable, variance, np.nan),
        effective=effective,
    )


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
    resolution: ArrayLike | None = None,
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
    resolution : array, shape (L,), optional
        By site, the size of a loss difference that rounding alone can make (for instance 1e-24
        times the mean square of y). Smaller differences with no standard error count as 0: two
        sites whose y is the same constant do not differ.

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
    if not margin >= 0.0:
        raise ParameterError.of("margin", "at least 0", margin)
    if not min_effective >= 0.0:
        raise ParameterError.of("min_effective", "at least 0", min_effective)
    share = n[:, None] / (n[:, None] + n[None, :])  # n_i / (n_i + n_j)
    inflated = variance * (1.0 + share)
    tolerated = margin * (spread[:, None] + spread[None, :])
    usable = np.isfinite(excess) & np.isfinite(variance) & (variance >= 0.0)
    usable &= effective >= min_effective
    comparable = usable & usable.T & np.isfinite(tolerated)
    difference = np.where(comparable, excess + excess.T, np.nan)
    standard_error = np.sqrt(np.where(comparable, inflated + inflated.T, np.nan))
    beyond = difference - tolerated
    if resolution is not None:
        blur = np.asarray(resolution, dtype=np.float64)
        blurred = blur[:, None] + blur[None, :]
        beyond = np.where((np.abs(beyond) <= blurred) & (standard_error <= blurred), 0.0, beyond)
    z = _bounded_ratio(beyond, standard_error)
    by_rows = noise[None, :] / np.where(comparable, effective, np.nan)
    growth = by_rows + by_rows.T
    for matrix in (difference, standard_error, z, growth):
        np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(comparable, True)
    return PairwiseTests(difference, standard_error, tolerated, z, comparable, growth)


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

    if not 0.5 <= power < 1.0:
        raise ParameterError.of("power", "at least .5 and below 1", power)
    error, slope = np.asarray(standard_error, dtype=np.float64), 8.0 * np.asarray(growth)
    return _crossing(
        _critical(margin_total, error, threshold, growth), float(ndtri(power)), error, slope
    )


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

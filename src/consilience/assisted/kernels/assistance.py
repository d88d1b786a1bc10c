"""Is a partner's data of any use: sketches, their price, and tests of what they add.

The partner sends ``Z = X_b T + E`` with random unit directions T and Laplace noise E; the
initiator tests whether the columns of Z improve its own model. Source: Zhang, Yang and Ding
(2025), *Additive-Effect Assisted Learning*, Journal of the Royal Statistical Society B, section 3.
The degrees of freedom are the columns of Z that were kept, p-values come from the survival
function, and epsilon is the exact supremum for the T that was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import chdtrc, chdtri

from consilience.arrays import FloatArray
from consilience.assisted.kernels import glm
from consilience.assisted.kernels.sandwich import score_rows
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.families import Family, Penalty

Geometry = Literal["box", "ball"]

MOST_DIRECTIONS = 15  # 2**14 sign patterns are enumerated for epsilon
FEW = 1_000  # records, or clusters, up to which the score statistic is compared with flipped ones
N_FLIPS = 999
_EDGE = 0.99  # of these, beyond which the chi-squared tail goes on
RARE = 10.0  # records of the rarer class per parameter below which the plain Wald test is liberal


def draw_directions(p: int, t: int, rng: np.random.Generator) -> FloatArray:
    """Draw t directions uniform on the unit sphere of dimension p: array (p, t), unit columns."""
    if not (p >= 1 and 1 <= t <= MOST_DIRECTIONS):
        raise ParameterError.of("directions", f"between 1 and {MOST_DIRECTIONS}", t)
    directions = rng.standard_normal((p, t))
    # normal, then of unit length: uniform on the sphere
    return np.asarray(directions / np.linalg.norm(directions, axis=0))


def sensitivity(directions: FloatArray, *, geometry: Geometry = "box", bound: float = 1.0) -> float:
    """Largest change of a record's sketch in L1, over all pairs of records within the bound.

    Parameters
    ----------
    directions : ndarray of shape (p, t)
        T; t at most 15.
    geometry : {"box", "ball"}
        Records in a cube of side `bound`, or in a Euclidean ball of radius `bound`.
    bound : float
        Public; taken from the data it would void the price.

    Returns
    -------
    float
        ``max |T s|_1 bound`` (box) or ``2 bound max |T s|_2`` (ball) over all signs s: for a
        difference d of two records, ``|T'd|_1 = max_s d'T s``, and the supremum over d is a dual
        norm of ``T s``.

    Raises
    ------
    ParameterError
        More than 15 directions, an unknown geometry or a bound that is not positive.
    """
    directions = np.asarray(directions, dtype=float)
    if directions.ndim != 2 or not 1 <= directions.shape[1] <= MOST_DIRECTIONS:
        raise ParameterError.of(
            "directions", f"an array with 1 to {MOST_DIRECTIONS} columns", directions.shape
        )
    if geometry not in ("box", "ball"):
        raise ParameterError.of("geometry", "'box' or 'ball'", geometry)
    if not 0 < bound < math.inf:
        raise ParameterError.of("bound", "a positive finite number", bound)
    t = directions.shape[1]
    largest = 0.0
    patterns = np.arange(2 ** (t - 1))  # s and -s give the same norm: the last sign stays +
    for part in np.array_split(patterns, max(1, patterns.size // 1024)):
        signs = 1.0 - 2.0 * ((part[None, :] >> np.arange(t)[:, None]) & 1)
        reached = directions @ signs
        if geometry == "box":
            # box: d in [-1, 1]^p, so max_d d'Ts = |Ts|_1
            norms = np.sum(np.abs(reached), axis=0)
        else:
            # ball: |d| <= 2B, so max_d d'Ts = 2B |Ts|_2
            norms = 2 * np.sqrt(np.sum(reached**2, axis=0))
        largest = max(largest, float(np.max(norms)))
    return largest * bound


def noise_scale(
    directions: FloatArray, epsilon: float, *, geometry: Geometry = "box", bound: float = 1.0
) -> float:
    """Scale of the Laplace noise at which the sketch has price `epsilon`: `sensitivity` / epsilon.

    The price is the supremum of the log ratio of densities for this T, so no smaller one is true.
    """
    return sensitivity(directions, geometry=geometry, bound=bound) / _positive("epsilon", epsilon)


def loose_epsilon(
    directions: FloatArray, scale: float, *, geometry: Geometry = "box", bound: float = 1.0
) -> float:
    """Price by the source's bound for any T: ``t sqrt(p)`` (box) or ``2 t B`` (ball) over scale."""
    p, t = np.shape(directions)
    reach = math.sqrt(p) if geometry == "box" else 2.0
    return t * reach * bound / _positive("scale", scale)


def to_box(x: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> tuple[FloatArray, int]:
    """Map columns from public bounds to [0, 1]; what lies outside is moved to the bound.

    Parameters
    ----------
    x : array of shape (n, p)
    lower, upper : array of shape (p,)
        Public bounds.

    Returns
    -------
    boxed : ndarray of shape (n, p)
    n_clipped : int
        Records with some value outside.

    Raises
    ------
    DataError
        Values that are not finite.
    ParameterError
        A lower bound that is not below its upper bound.
    """
    x = _finite(x)
    lower = np.broadcast_to(np.asarray(lower, dtype=float), x.shape[1:])
    upper = np.broadcast_to(np.asarray(upper, dtype=float), x.shape[1:])
    if not (np.all(np.isfinite(lower)) and np.all(np.isfinite(upper)) and np.all(lower < upper)):
        raise ParameterError("bounds must be finite, each lower bound below its upper bound")
    outside = np.any((x < lower) | (x > upper), axis=1)
    return np.clip((x - lower) / (upper - lower), 0.0, 1.0), int(outside.sum())


def clip_to_ball(x: ArrayLike, bound: float) -> tuple[FloatArray, int]:
    """Shorten records longer than `bound` to that length: records (n, p), how many were."""
    x = _finite(x)
    bound = _positive("bound", bound)
    length = np.linalg.norm(x, axis=1)
    long = length > bound
    factor = np.where(long, bound / np.where(long, length, 1.0), 1.0)
    return x * factor[:, None], int(long.sum())


@dataclass(frozen=True)
class SketchTest:
    """Tests that the partner's sketch adds nothing to the initiator's model.

    Parameters
    ----------
    kept : ndarray of bool, shape (t,)
        Columns of the sketch that do not depend on the others and on the initiator's own.
    df : int
        Number of kept columns: degrees of freedom of every statistic.
    wald, wald_hc3, score, lr : float
        Statistics; NaN where one cannot be computed.
    p_wald, p_wald_hc3, p_score, p_lr : float
    minority_per_parameter : float
        Records of the rarer class per parameter of the full model; NaN without classes.
    warnings : tuple of str
    """

    kept: NDArray[np.bool_]
    df: int
    wald: float
    wald_hc3: float
    score: float
    lr: float
    p_wald: float
    p_wald_hc3: float
    p_score: float
    p_lr: float
    minority_per_parameter: float
    warnings: tuple[str, ...] = ()


def sketch_test(
    x_a: ArrayLike,
    z: ArrayLike,
    y: ArrayLike,
    family: Family,
    *,
    weights: ArrayLike | None = None,
    penalty: Penalty | None = None,
    given: ArrayLike | None = None,
    cluster: ArrayLike | None = None,
    offset: ArrayLike | None = None,
) -> SketchTest:
    """Test whether the columns of a sketch improve the initiator's own model.

    Parameters
    ----------
    x_a : array of shape (n, p_a)
        The initiator's covariates, without a constant.
    z : array of shape (n, t)
        The partner's sketch.
    y : array of shape (n,)
    family : Family
    weights : array of shape (n,), optional
        Records of weight 0 take no part (an agreed subset).
    penalty : Penalty, optional
        For the fits; score and weights of the variance are taken without it. No likelihood ratio
        is given then.
    given : array of shape (n, q), optional
        Further columns of the null model: what is known of other partners' columns.
    cluster : int array of shape (n,), optional
        Number of each record's cluster, within which records depend on one another.
    offset : array of shape (n,), optional
        Part of the linear predictor of both models with coefficient 1.

    Returns
    -------
    SketchTest

    Notes
    -----
    With ``D = (1, X_a, Z)`` of the kept columns, ``J = D'diag(w)D`` (observed weights),
    ``K = D'diag(s^2)D`` and ``V = J^-1 K J^-1``, the Wald statistic is
    ``theta' V_ZZ^-1 theta`` for the coefficients theta of Z. ``wald_hc3`` divides each score by one
    minus the record's leverage in the weighted design. The score test takes the null fit on
    ``A = (1, X_a)``: ``Zr = Z - A (A'W0 A)^-1 A'W0 Z``, ``S = Zr's0``, statistic
    ``S'(Zr'diag(s0^2 / (1 - h0))Zr)^-1 S`` with the leverages h0 of the null design (a residual has
    1 - h0 of the variance of its error: HC2 of MacKinnon and White 1985); it keeps its level where
    classes are rare. With up to `FEW` records its p-value is that of `flip_p`, which also keeps it
    with few records a parameter; with more the statistic is chi-squared. The likelihood ratio is
    divided by a moment estimate of the dispersion where the family has one, and is valid under a
    correct model only. All four are the same in every coordinate system of the kept columns, so
    they are computed in the standardised ones.

    With clusters, K is the sum of ``u u'`` over them, ``u`` the sum of ``s d`` in one, or the step
    of a fit without it (``wald_hc3``); the score's variance is the sum of ``u u'``, ``u`` the sum
    of ``Zr s0 / sqrt(1 - h0)``; signs are drawn for whole clusters. The likelihood
    ratio knows nothing of clusters.
    """
    z = np.asarray(z, dtype=float)
    x_a = np.asarray(x_a, dtype=float)
    if x_a.ndim != 2 or z.ndim != 2 or x_a.shape[0] != z.shape[0]:
        raise DataError("covariates and sketch must be two tables of the same records")
    if given is not None:
        x_a = np.column_stack([x_a, np.asarray(given, dtype=float)])
    full = glm.make_problem(np.hstack([x_a, z]), y, family, offset, weights, None)
    design, y = glm.make_design(full), full.y
    d, kept = design.columns, design.kept[x_a.shape[1] :]
    (n, m), df = d.shape, int(kept.sum())
    notes, minority = [], math.nan
    if family.name == "binomial":
        ones = int(np.sum(y == 1))
        minority = min(ones, n - ones) / m
    if minority < RARE:
        notes.append(
            f"{minority:.1f} records of the rarer class per parameter: the plain Wald test "
            "rejects too often, decide by the score test"
        )
    if df < kept.size:
        notes.append(f"{kept.size - df} columns of the sketch depend on others and were left out")
    if penalty is not None and penalty.alpha * math.sqrt(n) > 0.1:
        notes.append("the penalty is not small beside 1/sqrt(n): the level is not guaranteed")
    if df == 0:
        notes.append("every column of the sketch depends on the initiator's own: nothing is tested")
        return SketchTest(kept, 0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, minority, tuple(notes))
    if m >= n:
        nan = math.nan
        notes.append("there are as many parameters as records: no variance can be computed")
        return SketchTest(kept, df, nan, nan, nan, nan, nan, nan, nan, nan, minority, tuple(notes))
    groups, n_groups = None, n
    if cluster is not None:
        used = np.ones(len(z), dtype=bool) if weights is None else np.asarray(weights) > 0
        groups = np.unique(np.asarray(cluster)[used], return_inverse=True)[1]
        n_groups = int(groups.max()) + 1
    if n_groups <= df + 1:
        nan = math.nan
        notes.append("there are hardly more clusters than directions: no variance can be computed")
        return SketchTest(kept, df, nan, nan, nan, nan, nan, nan, nan, nan, minority, tuple(notes))
    # the null model's design: the columns before the sketch
    own = m - df
    null = replace(
        design,
        x=design.x[:, : own - 1],
        shift=design.shift[: own - 1],
        scale=design.scale[: own - 1],
        kept=design.kept & (np.cumsum(design.kept) < own),
        back=design.back[: own - 1, : own - 1],
    )
    theta, alone, troubles = _fitted(full, null, penalty, None)
    theta, joint, more = _fitted(full, design, penalty, np.append(theta, np.zeros(df)))
    s, w = full.w * family.score(y, joint), full.w * family.weight(y, joint)
    # D L'^-1, orthonormal in the metric of w, where J = LL'
    inverse = _solved(d.T @ (d * w[:, None]), np.eye(m))
    root = _root(inverse)
    rows = (score_rows(d @ root, s, groups, each) for each in (None, w))
    # rows of scores times J^-1, of which V_ZZ is the sum of squares
    plain, careful = (each @ root[own:].T for each in rows)
    wald, wald_hc3 = (_quadratic(theta[own:], each.T @ each) for each in (plain, careful))
    s, w = full.w * family.score(y, alone), full.w * family.weight(y, alone)
    a, weighted = d[:, :own], d[:, :own] * w[:, None]
    # Zr = Z - A (A'W0 A)^-1 A'W0 Z
    solved = _solved(a.T @ weighted, weighted.T)
    rest = d[:, own:] - a @ (solved @ d[:, own:])
    # A residual of the null fit has 1 - h0 of the variance of its error.
    leverage = np.minimum(np.einsum("ij,ji->i", a, solved), 1 - 1e-10)
    # S = Zr's0, its variance Zr'diag(s0^2 / (1 - h0))Zr
    scores = score_rows(rest, s / np.sqrt(1 - leverage), groups)
    score = _quadratic(rest.T @ s, scores.T @ scores)
    flipped = np.empty(0)
    if n_groups <= FEW and not math.isnan(score):
        # Always the same signs, so that a p-value can be computed again.
        signs = np.random.default_rng(FEW).choice([-1.0, 1.0], size=(N_FLIPS, n_groups))
        flipped = flipped_scores(a, solved, rest, s, leverage, signs, groups)
    lr = math.nan
    if not (penalty and penalty.alpha):
        lr = family.deviance(y, alone, full.w) - family.deviance(y, joint, full.w)
        known = family.name in ("binomial", "poisson")
        lr = lr * n if known else lr * (n - m) / _dispersion(full, joint)
    statistics = (wald, wald_hc3, score, lr)
    p = [float(chdtrc(df, max(each, 0.0))) for each in statistics]
    p[2] = flip_p(score, flipped, df)
    notes += dict.fromkeys(troubles + more)
    return SketchTest(kept, df, *statistics, p[0], p[1], p[2], p[3], minority, tuple(notes))


def flipped_scores(
    a: FloatArray,
    solved: FloatArray,
    rest: FloatArray,
    s: FloatArray,
    leverage: FloatArray,
    signs: FloatArray,
    groups: NDArray[np.int64] | None = None,
) -> FloatArray:
    """Score statistics where the sketch adds nothing: residuals with signs drawn anew.

    Parameters
    ----------
    a : (n, k) array
        Null design A.
    solved : (k, n) array
        ``(A'W0 A)^-1 A'W0``.
    rest : (n, t) array
        Zr, the sketch less what A explains of it.
    s : (n,) array
        Scores s0 of the null fit.
    leverage : (n,) array
        h0.
    signs : (B, G) array
        g, -1 or 1, of each cluster; of each record where there are none.
    groups : (n,) int array, optional
        Clusters 0 to G - 1.

    Returns
    -------
    (B,) array

    Notes
    -----
    Wild bootstrap with the null imposed: ``e = g s0 / sqrt(1 - h0)`` for signs g is fitted again to
    first order, ``e - W0 A (A'W0 A)^-1 A'e``, and tested as the scores are. Source: Davidson and
    Flachaire, *The wild bootstrap, tamed at last*, J. Econometrics 146 (2008), section 3; with one
    sign for a cluster, Cameron, Gelbach and Miller, Review of Economics and Statistics 90 (2008).
    """
    t, size = rest.shape[1], np.sqrt(1 - leverage)
    e, scaled = s / size, rest / size[:, None]
    # Z'e and A'e by cluster; what a refit takes away of the scores, Zr'W0 A (A'W0 A)^-1 of each.
    total, fitted, own = (score_rows(columns, e, groups) for columns in (rest, a, scaled))
    taken = [score_rows(solved.T, scaled[:, j], groups) for j in range(t)]
    found = []
    for some in np.array_split(signs, max(1, signs.size * t // 500_000)):
        moved = some @ fitted
        # scores by draw and cluster, one array for each column of the sketch
        u = np.stack([some * own[:, j] - moved @ taken[j].T for j in range(t)], axis=1)
        found.append(_quadratics(some @ total, u @ u.transpose(0, 2, 1)))
    return np.concatenate(found)


def flip_p(statistic: float, flipped: FloatArray, df: int) -> float:
    """Share of statistics of flipped residuals that are as large.

    Of chi-squared if half of them are missing.

    Beyond their 99th percentile the chi-squared tail goes on from it.
    """
    tail = float(chdtrc(df, max(statistic, 0.0)))
    known = flipped[~np.isnan(flipped)]
    if len(known) <= len(flipped) / 2:
        return tail
    edge = float(np.quantile(known, _EDGE))
    # few clusters have few different signs: equal but for rounding is equal
    least = statistic * (1 - 1e-9)
    if least <= edge:
        return float((1 + (known >= least).sum()) / (1 + len(known)))
    beyond = float(chdtrc(df, edge))
    return (1 - _EDGE) * (tail / beyond if beyond else 1.0)


def _fitted(
    problem: glm.Problem, design: glm.Design, penalty: Penalty | None, start: FloatArray | None
) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Coefficients in the design's columns, linear predictor, and what went wrong."""
    if penalty is not None and penalty.alpha > 0:
        x, coef = problem.x[:, design.kept], np.zeros(design.kept.size)
        found = glm.fit(
            x,
            problem.y,
            problem.family,
            offset=problem.offset,
            weights=problem.w,
            penalty=penalty,
        )
        coef[design.kept] = found.coef
        notes = (found.note,) if found.note else ()
        return design.theta(coef, found.intercept), found.eta, notes
    if start is None:
        start = np.zeros(1 + design.x.shape[1])
        start[0] = problem.family.start(problem.y, problem.w) - float(problem.w @ problem.offset)
        if problem.family.mask:
            plain = replace(problem, family=replace(problem.family, mask=0.0))
            start = glm.newton(plain, design, start, 1e-6, 30)[0]
    theta, _, converged, separated = glm.newton(problem, design, start, 1e-10, 100)
    notes = () if converged else ("a fit did not converge",)
    if separated:
        notes = ("the covariates separate the response: the Wald tests have no meaning",)
    return theta, design.eta(theta) + problem.offset, notes


def _dispersion(problem: glm.Problem, eta: FloatArray) -> float:
    """What twice the fall of the loss is divided by to be about chi-squared."""
    fam, s = problem.family, problem.family.score(problem.y, eta)
    if fam.name in ("log-cosh", "pseudo-huber"):
        # E s^2 / E w, where errors do not depend on the covariates
        return float((problem.w @ s**2) / (problem.w @ fam.weight(problem.y, eta)))
    # Pearson: mean of squared standardised residuals
    return float(problem.w @ (s**2 / fam.expected_weight(eta)))


def _solved(matrix: FloatArray, rhs: FloatArray) -> FloatArray:
    """``matrix^-1 rhs``; NaN where the matrix is not positive definite."""
    try:
        return np.asarray(cho_solve(cho_factor(matrix), rhs))
    except LinAlgError:
        return np.full_like(rhs, math.nan)


def _root(inverse: FloatArray) -> FloatArray:
    """Matrix whose square it is, ``root root'``; NaN where it is not positive definite."""
    try:
        return np.asarray(np.linalg.cholesky(inverse))
    except np.linalg.LinAlgError:
        return np.full_like(inverse, math.nan)


def _quadratic(v: FloatArray, matrix: FloatArray) -> float:
    """``v' matrix^-1 v`` in the scale of the matrix's diagonal; NaN where it is singular."""
    return float(_quadratics(v[None], matrix[None])[0])


def _quadratics(v: FloatArray, matrices: FloatArray) -> FloatArray:
    """Compute the same for vectors (B, t) and matrices (B, t, t)."""
    size = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    fine = np.isfinite(size).all(axis=1) & (size > 0).all(axis=1)
    size, found = size[fine], np.full(len(v), math.nan)
    values, turn = np.linalg.eigh(matrices[fine] / (size[:, :, None] * size[:, None, :]))
    along = np.einsum("bij,bi->bj", turn, v[fine] / size)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (along**2 / values).sum(axis=1)
    found[fine] = np.where(values[:, 0] > 1e-15, squares, math.nan)
    return found


def cauchy_combine(p_values: ArrayLike) -> float:
    """Combine p-values of tests under any dependence.

    The mean of ``tan((1/2 - p) pi)`` is compared with the Cauchy distribution (Liu and Xie 2020,
    *Journal of the American Statistical Association* 115, equation 2). NaN values are left out;
    all NaN give NaN.
    """
    p = np.asarray(p_values, dtype=float).ravel()
    p = p[~np.isnan(p)]
    if np.any((p < 0) | (p > 1)):
        raise ParameterError("p-values must lie between 0 and 1")
    if p.size == 0:
        return math.nan
    if p.size == 1:
        return float(p[0])
    if np.min(p) < 1e-300:
        return 0.0
    # a p-value of 1 would be minus infinity
    p = np.minimum(p, 1 - 1e-15)
    # cot(pi p) = tan((1/2 - p) pi), but exact for small p.
    return float(np.arctan2(1.0, np.mean(1 / np.tan(np.pi * p))) / np.pi)


def residual_covariance(x_a: ArrayLike, z: ArrayLike) -> FloatArray:
    """Covariance of the sketch's columns given (1, x_a): (t, t), denominator the residual df."""
    z = np.asarray(z, dtype=float)
    a = np.column_stack([np.ones(len(z)), np.asarray(x_a, dtype=float)])
    coef, _, rank, _ = np.linalg.lstsq(a, z, rcond=None)
    rest = z - a @ coef
    return np.asarray(rest.T @ rest / max(len(z) - int(rank), 1))


def reliability(residual: ArrayLike, scale: float) -> float:
    """Share of the signal that noise leaves in a sketch, between 0 and 1.

    Parameters
    ----------
    residual : array of shape (t,) or (t, t)
        Residual variances of the columns of Z given the initiator's covariates, or their
        covariance (`residual_covariance`), with the noise in them.
    scale : float
        Scale of the Laplace noise, 0 for none; its variance is ``2 scale^2``.

    Notes
    -----
    With residual covariance ``S`` of Z and ``S - 2 scale^2 I`` of the noiseless sketch, a signal
    ``g`` in the whitened noiseless sketch keeps ``g'(S - 2 scale^2 I)^{1/2} S^-1
    (S - 2 scale^2 I)^{1/2} g`` of its noncentrality ``g'g``. Averaged over the directions of g this
    is the mean of ``1 - 2 scale^2 / (eigenvalues of S)``. An eigenvalue below the noise variance
    counts 0.
    """
    if not scale >= 0:
        raise ParameterError.of("scale", "at least 0", scale)
    residual = np.asarray(residual, dtype=float)
    if scale == 0:
        return 1.0
    # mean of 1 - 2 scale^2 / eigenvalue
    values = np.linalg.eigvalsh(residual) if residual.ndim == 2 else residual
    noise = 2 * scale**2
    shares = np.where(values > noise, 1 - noise / np.where(values > noise, values, 1.0), 0.0)
    return float(np.mean(shares)) if shares.size else 0.0


def power(n: int, df: int, effect: float, reliability: float, level: float = 0.05) -> float:
    """Approximate power of the tests against a signal of a given size.

    Parameters
    ----------
    n : int
        Records.
    df : int
        Columns of the sketch that are tested.
    effect : float
        Noncentrality per record of the noiseless sketch: about the fall of the deviance per record
        (over the dispersion) that its columns would bring to the initiator's model. Of a signal
        that the partner's p_b columns carry evenly, t random directions catch ``t / p_b``.
    reliability : float
        Share that the noise leaves (`reliability`).
    level : float

    Returns
    -------
    float
        Probability that a noncentral chi-squared variable with `df` degrees of freedom and
        noncentrality ``n effect reliability`` exceeds the critical value. First-order: the signal
        is small (local alternatives), the variance function right, n large.
    """
    if not (n >= 1 and df >= 0 and effect >= 0 and 0 <= reliability <= 1 and 0 < level < 1):
        raise ParameterError(
            "power needs at least one record, an effect of at least 0, a reliability between 0 "
            "and 1 and a level between 0 and 1"
        )
    if df == 0:
        return 0.0
    noncentrality = n * effect * reliability
    if noncentrality == 0:
        return level
    from scipy.stats import ncx2

    return float(min(max(ncx2.sf(chdtri(df, level), df, noncentrality), 0.0), 1.0))


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ParameterError.of(name, "a positive finite number", value)
    return float(value)


def _finite(x: ArrayLike) -> FloatArray:
    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or not np.all(np.isfinite(x)):
        raise DataError("records must be a table of finite numbers")
    return x

"""Degrees inside classes: own coefficients of an entity, and noise with long tails.

Given its class k an entity has ``y = X w_k + Z b + noise``, Z some columns of X, with
``b ~ N(0, sigma2 G)``. An event's noise is ``N(0, sigma2 / l)``; it is t noise of nu degrees of
freedom where ``l ~ Gamma(nu/2, nu/2)``. Without b the entity is ``N(X w_k, sigma2 H)`` with
``H = diag(1/l) + Z G Z'``, and rows ``R X`` and ``R y`` with ``R'R = H^-1`` are those of a model
without degrees: labels are drawn with their sums, at the same price. R is a product of one step
``I - c v v'`` for each column of Z (Sherman, Morrison).

Sources: mixed model in a mixture, Verbeke and Lesaffre, *A linear mixed-effects model with
heterogeneity in the random-effects population*, JASA 91, 1996; t noise, Lange, Little and Taylor,
*Robust statistical modeling using the t distribution*, JASA 84, 1989; prior of G, Huang and Wand,
*Simple marginally noninformative prior distributions for covariance matrices*, Bayesian Analysis 8,
2013; its size, Liu and Sabatti, *Generalised Gibbs sampler*, Biometrika 87, 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.latent_regression.kernels.latent_class import Blocks, plain

RATIO_PRIOR = 1.0
"""A of the half t of a standard deviation in G: of own coefficients, in those of the noise."""
RATIO_DF = 2.0
"""Degrees of freedom of that half t, Huang and Wand's nu: correlations are uniform a priori."""
NOISE_DFS: FloatArray = np.array([2.0, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100])
"""Grid of the degrees of freedom nu of the noise, all alike likely a priori."""
START_RATIO = 0.1
"""G at first, times I: with as much as the noise has, random slopes keep classes from parting."""
_TAIL_PARTS = 64


@dataclass(frozen=True, eq=False)
class Degrees:
    """What entities have of their own, as a sweep has drawn it.

    Attributes
    ----------
    columns : (q,) array of int
        Of the design, those of Z.
    ratio : (q, q) array
        G.
    scale : (q,) array
        Huang and Wand's a: ``G ~ IW(nu + q - 1, 2 nu diag(1/a))``, ``a ~ IG(1/2, 1/A^2)``.
    precision : (N,) array, optional
        l of each row of the blocks; without it the noise is normal.
    df : float
        nu of the noise; infinite where it is normal.
    """

    columns: IntArray
    ratio: FloatArray
    scale: FloatArray
    precision: FloatArray | None = None
    df: float = np.inf

    @property
    def none(self) -> bool:
        """Whether classes are regressions with one normal noise."""
        return not len(self.columns) and self.precision is None and bool(np.isinf(self.df))

    @classmethod
    def start(cls, columns: IntArray, n_rows: int, *, tails: bool) -> Degrees:
        """Begin with small own coefficients, and with t noise of 4 degrees."""
        q, tail = len(columns), (np.ones(n_rows), 4.0) if tails else ()
        return cls(columns, START_RATIO * np.eye(q), np.ones(q), *tail)

    def spread(self, n_features: int) -> FloatArray:
        """G among all columns of the design, (F, F)."""
        full = np.zeros((n_features, n_features))
        full[np.ix_(self.columns, self.columns)] = self.ratio
        return full


NO_DEGREES = Degrees(np.zeros(0, dtype=np.int64), np.zeros((0, 0)), np.zeros(0))


class View(NamedTuple):
    """Blocks as degrees make them.

    Attributes
    ----------
    scaled : Blocks
        Rows times the root of l.
    white : Blocks
        Rows times R.
    log_det : (E,) array
        ``log |H|`` of each entity; an event counts as often as its weight says.
    """

    scaled: Blocks
    white: Blocks
    log_det: FloatArray


def view_of(blocks: Blocks, degrees: Degrees) -> View:
    """Rows that have independent normal noise, given what entities have of their own.

    Parameters
    ----------
    blocks : Blocks
    degrees : Degrees
    """
    from consilience.latent_regression.kernels import compiled

    def summed(x: FloatArray, y: FloatArray) -> Blocks:
        e, f = blocks.cross.shape
        products, cross, squares = np.zeros((e, f, f)), np.zeros((e, f)), np.zeros(e)
        compiled.sum_blocks(
            x, y, blocks.weight, blocks.start, products, cross, squares, np.zeros(e)
        )
        return replace(blocks, x=x, y=y, products=products, cross=cross, squares=squares)

    scaled, log_det = blocks, np.zeros(blocks.n_entities)
    if degrees.precision is not None:
        root = np.sqrt(degrees.precision)
        scaled = summed(blocks.x * root[:, None], blocks.y * root)
        log_det -= by_entity(blocks, blocks.weight * np.log(degrees.precision))
    if not len(degrees.columns):
        return View(scaled, scaled, log_det)
    x, y = scaled.x.copy(), scaled.y.copy()
    own = np.ascontiguousarray(x[:, degrees.columns] @ np.linalg.cholesky(degrees.ratio))
    compiled.whiten(x, y, own, plain(blocks.start, np.int64), log_det)
    return View(scaled, summed(x, y), log_det)


def draw_degrees(
    degrees: Degrees,
    blocks: Blocks,
    view: View,
    coefficients: FloatArray,
    sigma2: FloatArray,
    rng: np.random.Generator,
) -> tuple[Degrees, float]:
    """Draw G, then nu and l, given labels, the classes' coefficients and the noise.

    Own coefficients are integrated out for the size of G; they are drawn then, and forgotten: the
    shape of G, and residuals, hang on them.

    Parameters
    ----------
    degrees : Degrees
    blocks : Blocks
    view : View
        Of them, under `degrees`.
    coefficients : (E, F) array
        Drawn, those of each entity's class.
    sigma2 : (E,) array
        Variance of the noise of each entity's class.
    rng : numpy.random.Generator

    Returns
    -------
    degrees : Degrees
    bonus : float
        Log density of l under its prior, plus the entropy of its posterior: with it the log density
        of events given l bounds that of the events. 0 where the noise is normal.
    """
    j, ratio, scale = degrees.columns, degrees.ratio, degrees.scale
    own = np.zeros((blocks.n_entities, len(j)))
    if len(j):
        s = view.scaled.products
        z = s[:, j][:, :, j]
        t = view.scaled.cross[:, j] - np.einsum("ejf,ef->ej", s[:, j], coefficients)
        t /= np.sqrt(sigma2)[:, None]
        ratio = ratio * _size(ratio, scale, z, t, rng)
        root = np.linalg.cholesky(ratio)
        inner = np.eye(len(j)) + root.T @ z @ root
        # b = sqrt(sigma2) L v with v ~ N(inner^-1 L't, inner^-1), L L' = G
        noise = rng.standard_normal(t.shape)[..., None]
        turned = np.swapaxes(np.linalg.cholesky(inner), 1, 2)
        v = np.linalg.solve(inner, (t @ root)[..., None]) + np.linalg.solve(turned, noise)
        own = v[..., 0] @ root.T
        for i in range(len(j)):
            stretch = np.ones(len(j))
            stretch[i] = _stretch(i, own, ratio, scale, z, t, rng)
            own, ratio = own * stretch, ratio * np.outer(stretch, stretch)
        ratio, scale = _draw_ratio(own[blocks.n > 0], scale, rng)
        own *= np.sqrt(sigma2)[:, None]
    if degrees.precision is None:
        return replace(degrees, ratio=ratio, scale=scale), 0.0
    owner = np.repeat(np.arange(blocks.n_entities), np.diff(blocks.start))
    total = coefficients.copy()
    total[:, j] += own
    squares = (blocks.y - np.einsum("nf,nf->n", blocks.x, total[owner])) ** 2 / sigma2[owner]
    precision, df, bonus = _draw_tails(squares, blocks.weight, rng)
    return Degrees(j, ratio, scale, precision, df), bonus


def mean_degrees(drawn: Sequence[Degrees]) -> Degrees:
    """Average over sweeps; the degrees of freedom as logarithms."""
    first, n = drawn[0], len(drawn)
    weights = [d.precision for d in drawn if d.precision is not None]
    precision = np.asarray(sum(weights)) / n if weights else None
    ratio = np.asarray(sum(d.ratio for d in drawn)) / n
    df = float(np.exp(np.mean([np.log(d.df) for d in drawn])))
    return replace(first, ratio=ratio, precision=precision, df=df)


def _size(
    ratio: FloatArray, scale: FloatArray, z: FloatArray, t: FloatArray, rng: np.random.Generator
) -> float:
    """Draw the factor c of ``c G``, own coefficients integrated out.

    A move along a ray keeps the posterior if c has its density times ``c^(q(q+1)/2) dc/c``.
    """
    q = len(ratio)
    root = np.linalg.cholesky(ratio)
    values, vectors = np.linalg.eigh(root.T @ z @ root)
    values = np.maximum(values, 0.0)
    squares = np.einsum("eji,ej->ei", vectors, t @ root) ** 2
    inverse = np.diagonal(np.linalg.inv(ratio))
    rate = RATIO_DF * float((inverse / scale).sum())

    def log_density(u: float) -> float:
        c = np.exp(u)
        grown = 1.0 + c * values
        fit = 0.5 * float((c * squares / grown - np.log(grown)).sum())
        # inverse Wishart along the ray, and the Jacobian q(q+1)/2
        prior = -0.5 * q * (RATIO_DF + 2 * q) * u - rate * np.exp(-u)
        return fit + float(prior) + 0.5 * q * (q + 1) * u

    return float(np.exp(slice_step(log_density, 0.0, rng)))


def _stretch(
    i: int,
    own: FloatArray,
    ratio: FloatArray,
    scale: FloatArray,
    z: FloatArray,
    t: FloatArray,
    rng: np.random.Generator,
) -> float:
    """Draw the factor c of an own coefficient and its row and column of G, the rest as they are.

    Without it small variances hardly move: G is drawn given coefficients that are as small. The
    density is that of events and of G, times ``c^(q+1) dc/c``; that of own coefficients given G
    stays the same.
    """
    q = len(ratio)
    mine = own[:, i]
    square = float((mine**2 * z[:, i, i]).sum())
    rest = t[:, i] - np.einsum("ek,ek->e", z[:, i], own) + z[:, i, i] * mine
    linear = float((mine * rest).sum())
    rate = RATIO_DF * float(np.linalg.inv(ratio)[i, i]) / scale[i]

    def log_density(u: float) -> float:
        c = np.exp(u)
        fit = linear * c - 0.5 * square * c * c
        return float(fit - (RATIO_DF + q - 1) * u - rate * np.exp(-2.0 * u))

    return float(np.exp(slice_step(log_density, 0.0, rng)))


def slice_step(log_density: Callable[[float], float], at: float, rng: np.random.Generator) -> float:
    """One step of a slice sampler with stepping out (Neal, Annals of Statistics 31, 2003)."""
    level = log_density(at) - rng.standard_exponential()
    low = at - rng.random()
    high = low + 1.0
    while log_density(low) > level:
        low -= 1.0
    while log_density(high) > level:
        high += 1.0
    while True:
        new = low + (high - low) * rng.random()
        if log_density(new) >= level:
            return new
        low, high = (new, high) if new < at else (low, new)


def _draw_ratio(
    own: FloatArray, scale: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw G given own coefficients (E, q) over the root of the noise, then a given G."""
    q = own.shape[1]
    df = RATIO_DF + q - 1 + len(own)
    rate = own.T @ own + 2.0 * RATIO_DF * np.diag(1.0 / scale)
    # G^-1 ~ Wishart(df, rate^-1), by Bartlett's factor
    lower = np.tril(rng.standard_normal((q, q)), -1)
    lower[np.diag_indices(q)] = np.sqrt(rng.chisquare(df - np.arange(q)))
    # rate^-1 = C'^-1 C^-1, so that G^-1 = M M' with M = C'^-1 A, and G = M'^-1 M^-1
    half = np.linalg.solve(lower, np.linalg.cholesky(rate).T)
    ratio = half.T @ half
    inverse = np.diagonal(np.linalg.inv(ratio))
    shape = 0.5 * (RATIO_DF + q)
    drawn = (RATIO_DF * inverse + RATIO_PRIOR**-2) / rng.standard_gamma(shape, q)
    return ratio, drawn


def _draw_tails(
    squares: FloatArray, weight: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, float, float]:
    """Draw nu with l integrated out, then l, given squared residuals over sigma2."""
    from scipy.special import digamma, gammaln

    logs = np.array([row_log_density(squares, weight, df).sum() for df in NOISE_DFS])
    shares = np.exp(logs - logs.max()).cumsum()
    df = float(NOISE_DFS[np.searchsorted(shares, rng.random() * shares[-1], side="right")])
    # the events that a row stands for have its residual, and one l
    shape, rate = 0.5 * (df + weight), 0.5 * (df + squares)
    precision = np.maximum(rng.standard_gamma(shape) / rate, np.finfo(np.float64).tiny)
    prior = 0.5 * df * np.log(0.5 * df) - gammaln(0.5 * df)
    prior = prior + (0.5 * df - 1.0) * np.log(precision) - 0.5 * df * precision
    entropy = shape - np.log(rate) + gammaln(shape) + (1.0 - shape) * digamma(shape)
    return precision, df, float((prior + entropy).sum())


class Own(NamedTuple):
    """Own coefficients of entities given those of their class, ``b | w ~ N(u - A w, sigma2 C)``.

    Attributes
    ----------
    mean : (.., q) array
        u.
    felt : (.., q, F) array
        A.
    spread : (.., q, q) array
        C.
    """

    mean: FloatArray
    felt: FloatArray
    spread: FloatArray

    def take(self, at: IntArray) -> Own:
        """Those of some entities."""
        return Own(*(part[at] for part in self))


def own_of(scaled: Blocks, degrees: Degrees) -> Own:
    """Posterior of own coefficients, ``C = (G^-1 + Z'LZ)^-1``, ``u = C Z'Ly``, ``A = C Z'LX``.

    Parameters
    ----------
    scaled : Blocks
        Of a view.
    degrees : Degrees
    """
    j, root = degrees.columns, np.linalg.cholesky(degrees.ratio)
    s = scaled.products
    inner = np.eye(len(j)) + root.T @ s[:, j][:, :, j] @ root
    spread = root @ np.linalg.solve(inner, np.broadcast_to(root.T, inner.shape))
    felt = spread @ s[:, j]
    return Own(np.einsum("ejk,ek->ej", spread, scaled.cross[:, j]), felt, spread)


def tail_variances(df: float) -> FloatArray:
    """Variances of equally likely normals whose mixture is t noise of sigma2 = 1; [1] if normal."""
    from scipy.special import gammaincinv

    if np.isinf(df):
        return np.ones(1)
    at = (np.arange(_TAIL_PARTS) + 0.5) / _TAIL_PARTS
    return np.asarray(0.5 * df / gammaincinv(0.5 * df, at), dtype=np.float64)


def row_log_density(squares: FloatArray, weight: FloatArray, df: float) -> FloatArray:
    """Log density of rows of t noise with sigma2 = 1: a row of weight w is w equal events.

    Parameters
    ----------
    squares : array
        Squared residuals over sigma2, times the weight.
    weight : array
    df : float
        nu; infinite: the noise is normal.
    """
    from scipy.special import gammaln

    if np.isinf(df):
        return np.asarray(-0.5 * (weight * np.log(2.0 * np.pi) + squares))
    # l of the row integrated out: a multivariate t of its w events
    ends = gammaln(0.5 * (df + weight)) - gammaln(0.5 * df) - 0.5 * weight * np.log(df * np.pi)
    return np.asarray(ends - 0.5 * (df + weight) * np.log1p(squares / df))


def by_entity(blocks: Blocks, values: FloatArray) -> FloatArray:
    """Sum numbers of rows by entity, (E,)."""
    ends = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(ends[blocks.start[1:]] - ends[blocks.start[:-1]])

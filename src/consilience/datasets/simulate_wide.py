"""Simulated classes with many features: designs for sparse QDA and for community Bayes.

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*,
arXiv 1407.4543, simulations; the transforms are those of Liu, Lafferty and Wasserman, *The
nonparanormal*, JMLR 10 (2009), section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.datasets import check_choice, check_least
from consilience.exceptions import ParameterError

Structure = Literal["full", "decreasing", "block"]
Transform = Literal["none", "power", "cdf"]

POWER = 3.0
"""Exponent of the symmetric power transform."""
CDF_CENTRE, CDF_WIDTH = 0.05, 0.4
"""Mean and standard deviation of the Gaussian cdf transform."""

_NODES = 200
_EDGE = 1e-13  # nearer to 0 or 1 a level of the cdf is lost in the rounding of its row


@dataclass(frozen=True, eq=False)
class WideClasses:
    """Classes of normal rows, whose features may pass through a monotone transform.

    Attributes
    ----------
    means : (K, p) array
    covariances : (K, p, p) array
    transforms : tuple of K str
        ``"none"``, ``"power"`` or ``"cdf"``; each keeps the mean and variance of a feature.
    priors : (K,) array
        Shares of the classes.
    """

    means: FloatArray
    covariances: FloatArray
    transforms: tuple[str, ...]
    priors: FloatArray

    @property
    def n_classes(self) -> int:
        """Number K of classes."""
        return len(self.means)

    @property
    def n_features(self) -> int:
        """Number p of features."""
        return int(self.means.shape[1])

    def draw(
        self, n_per_class: int | Sequence[int], *, rng: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Draw rows, class after class.

        Parameters
        ----------
        n_per_class : int or sequence of K int
        rng : numpy.random.Generator

        Returns
        -------
        x : (n, p) array
        y : (n,) array of int
            Class 0 to K - 1.

        Raises
        ------
        ParameterError
            A negative number of rows, or one too many or too few of them.
        """
        sizes = np.broadcast_to(np.asarray(n_per_class, dtype=np.int64), (self.n_classes,))
        if (sizes < 0).any():
            raise ParameterError.of("n_per_class", "0 or more", n_per_class)
        parts = []
        for k, size in enumerate(sizes.tolist()):
            factor = np.linalg.cholesky(self.covariances[k])
            z = self.means[k] + rng.standard_normal((size, self.n_features)) @ factor.T
            parts.append(_transformed(z, self.transforms[k], self.means[k], self._sd(k)))
        return np.concatenate(parts), np.repeat(np.arange(self.n_classes), sizes)

    def scores(self, x: ArrayLike) -> FloatArray:
        """Log of prior times density, up to a constant: the largest is the best possible class.

        Parameters
        ----------
        x : (n, p) array

        Returns
        -------
        (n, K) array
            ``-inf`` where a class has no rows.
        """
        rows = np.asarray(x, dtype=np.float64)
        found = np.empty((len(rows), self.n_classes))
        for k in range(self.n_classes):
            z, slope = _original(rows, self.transforms[k], self.means[k], self._sd(k))
            factor = np.linalg.cholesky(self.covariances[k])
            # |L^-1 (z - mu)|^2 is the Mahalanobis distance, 2 sum log L_jj is log det Sigma
            off = np.linalg.solve(factor, (z - self.means[k]).T)
            with np.errstate(invalid="ignore"):
                found[:, k] = -0.5 * (off**2).sum(axis=0) - np.log(np.diag(factor)).sum() - slope
        # behind such a row the class has no normal one
        found[np.isnan(found)] = -np.inf
        return found + np.log(self.priors)

    def predict(self, x: ArrayLike) -> IntArray:
        """Class of the largest score: its error is the least that any classifier has.

        Parameters
        ----------
        x : (n, p) array

        Returns
        -------
        (n,) array of int
        """
        return self.scores(x).argmax(axis=1).astype(np.int64)

    def _sd(self, k: int) -> FloatArray:
        return np.sqrt(np.diagonal(self.covariances[k]))


# --------------------------------------------------------------------------- sparse QDA


def sparse_precision_classes(
    n_features: int,
    *,
    rng: np.random.Generator,
    correlations: Sequence[float] = (0.0, 0.8),
    block: int = 4,
    norm: float | None = None,
) -> WideClasses:
    """Classes whose precision matrices differ in one block: the source's block design.

    Precisions are 1 on the diagonal and `correlations` of the class off it within the first
    `block` features. Means are orthogonal, in random directions.

    Parameters
    ----------
    n_features : int
        p (the source: 8, 20, 40 and 100, with 50, 200, 800 and 1500 rows a class).
    rng : numpy.random.Generator
        Draws the directions of the means.
    correlations : sequence of K float
        Off-diagonal precision of each class, in (-1 / (block - 1), 1).
    block : int
        Features in the block, from 2 to p.
    norm : float, optional
        Length of the means; by default ``trace(Sigma_k) / p``. The source does not print its
        means, on which the level of the errors depends, but hardly their differences.

    Returns
    -------
    WideClasses

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    k = len(correlations)
    if not 2 <= block <= n_features:
        raise ParameterError.of("block", f"from 2 to {n_features} features", block)
    if not 1 <= k <= n_features:
        raise ParameterError.of("correlations", "one number for each of K <= p classes", k)
    least = -1.0 / (block - 1)
    if not all(least < rho < 1 for rho in correlations):
        raise ParameterError.of("correlations", f"in ({least:.3g}, 1)", tuple(correlations))
    precisions = np.tile(np.eye(n_features), (k, 1, 1))
    for precision, rho in zip(precisions, correlations, strict=True):
        # 1 + (block - 1) rho > 0 and rho < 1: positive definite
        precision[:block, :block] += rho * (1.0 - np.eye(block))
    covariances: FloatArray = np.asarray(np.linalg.inv(precisions), dtype=np.float64)
    lengths: FloatArray = np.trace(covariances, axis1=1, axis2=2) / n_features
    if norm is not None:
        lengths = np.full(k, float(norm))
    means = np.asarray(lengths[:, None] * _orthogonal(k, n_features, rng), dtype=np.float64)
    return WideClasses(means, covariances, ("none",) * k, np.full(k, 1.0 / k))


# --------------------------------------------------------------------------- community Bayes


def community_classes(
    structure: Structure,
    *,
    rng: np.random.Generator,
    n_blocks: int = 4,
    n_features: int = 16,
    n_classes: int = 3,
    correlation: float = 0.5,
    norm: float = 1.5,
    transforms: Sequence[Transform] | None = None,
) -> WideClasses:
    """Classes with one correlation matrix and different means: the source's three-class designs.

    Parameters
    ----------
    structure : {"full", "decreasing", "block"}
        All correlations are `correlation`; its power ``|i - j|``; `correlation` within blocks and
        0 between them.
    rng : numpy.random.Generator
        Draws the directions of the means, which are orthogonal.
    n_blocks : int
        A divisor of p (the source: 2, 4 and 8; read as sizes of blocks these do not give its
        errors).
    n_features, n_classes : int
        p and K (the source: 16 and 3, with 20 rows a class).
    correlation : float
        In [0, 1).
    norm : float
        Length of the means: with the length that the source prints nothing comes near its table,
        with 1.5 all of it does.
    transforms : sequence of K of {"none", "power", "cdf"}, optional
        What the features of each class pass through; none by default. The source's example 2 is
        ``("none", "power", "cdf")``.

    Returns
    -------
    WideClasses

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    check_choice("structure", structure, Structure)
    if not 1 <= n_classes <= n_features:
        raise ParameterError.of("n_classes", f"from 1 to {n_features} features", n_classes)
    if not 0 <= correlation < 1:
        raise ParameterError.of("correlation", "in [0, 1)", correlation)
    through = ("none",) * n_classes if transforms is None else tuple(transforms)
    if len(through) != n_classes or not set(through) <= set(get_args(Transform)):
        raise ParameterError.of("transforms", f"{n_classes} of {get_args(Transform)}", transforms)
    place = np.arange(n_features)
    if structure == "decreasing":
        sigma = correlation ** np.abs(place[:, None] - place)
    else:
        count = n_blocks if structure == "block" else 1
        if count < 1 or n_features % count:
            raise ParameterError.of("n_blocks", f"a divisor of {n_features} features", n_blocks)
        size = n_features // count
        together = place[:, None] // size == place // size
        sigma = np.where(together, correlation, 0.0) + (1.0 - correlation) * np.eye(n_features)
    means = norm * _orthogonal(n_classes, n_features, rng)
    return WideClasses(
        means,
        np.tile(sigma, (n_classes, 1, 1)),
        through,
        np.full(n_classes, 1.0 / n_classes),
    )


def simulate_separate_groups(
    n_per_class: int,
    n_groups: int,
    *,
    rng: np.random.Generator,
    group: int = 5,
    n_classes: int = 2,
    correlation: float = 0.7,
    shift: float = 0.4,
) -> tuple[FloatArray, IntArray]:
    """Simulate rows whose groups of features are independent given the class.

    For tests and guides: the right communities are known, and everything else is simple.

    Parameters
    ----------
    n_per_class : int
    n_groups : int
        Groups of `group` features each.
    rng : numpy.random.Generator
    group, n_classes : int
    correlation : float
        Within a group, in [0, 1).
    shift : float
        Standard deviation of a class's mean in each feature.

    Returns
    -------
    x : (n_classes * n_per_class, n_groups * group) array
    y : (n_classes * n_per_class,) array of int

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    check_least(1, n_per_class=n_per_class, n_groups=n_groups, group=group)
    if not 0 <= correlation < 1:
        raise ParameterError.of("correlation", "in [0, 1)", correlation)
    n, p = n_classes * n_per_class, n_groups * group
    y = np.repeat(np.arange(n_classes), n_per_class)
    common = np.repeat(rng.standard_normal((n, n_groups)), group, axis=1)
    own = rng.standard_normal((n, p))
    means = shift * rng.standard_normal((n_classes, p))
    x = means[y] + np.sqrt(correlation) * common + np.sqrt(1.0 - correlation) * own
    return x, y.astype(np.int64)


def _orthogonal(k: int, p: int, rng: np.random.Generator) -> FloatArray:
    """K orthogonal directions of length 1, uniform on the sphere: (K, p)."""
    q, r = np.linalg.qr(rng.standard_normal((p, k)))
    # with a positive diagonal of R the factor Q is uniform (Haar), and not only orthogonal
    return np.asarray((q * np.sign(np.diag(r))).T)


# --------------------------------------------------------------------------- transforms


def _transformed(z: FloatArray, transform: str, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Monotone transform of each feature that keeps its mean and variance."""
    if transform == "none":
        return z
    u = (z - mean) / sd
    if transform == "power":
        return mean + sd * np.sign(u) * np.abs(u) ** POWER / _power_sd()
    from scipy.special import ndtr

    centre, spread = _cdf_moments(mean, sd)
    return mean + sd * (ndtr((z - CDF_CENTRE) / CDF_WIDTH) - centre) / spread


def _original(
    x: FloatArray, transform: str, mean: FloatArray, sd: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Normal rows behind transformed ones (NaN where there are none), and the log slope there."""
    if transform == "none":
        return x, np.zeros(len(x))
    u = (x - mean) / sd
    if transform == "power":
        v = np.sign(u) * (np.abs(u) * _power_sd()) ** (1.0 / POWER)
        with np.errstate(divide="ignore"):
            # log density of x is that of v less the log slope of x in v
            slope = np.log(POWER / _power_sd()) + (POWER - 1.0) * np.log(np.abs(v))
        return mean + sd * v, slope.sum(axis=1)
    from scipy.special import ndtri

    centre, spread = _cdf_moments(mean, sd)
    level = centre + spread * u
    inside = (level > -_EDGE) & (level < 1 + _EDGE)
    v = np.where(inside, ndtri(np.clip(level, _EDGE, 1 - _EDGE)), np.nan)
    slope = np.log(sd / spread) - np.log(CDF_WIDTH) - 0.5 * (v**2 + np.log(2.0 * np.pi))
    return CDF_CENTRE + CDF_WIDTH * v, slope.sum(axis=1)


def _power_sd() -> float:
    """Standard deviation of a standard normal after the power: ``sqrt(E |u|^(2 a))``."""
    from scipy.special import gamma

    return float(np.sqrt(2.0**POWER * gamma(POWER + 0.5) / np.sqrt(np.pi)))


def _cdf_moments(mean: FloatArray, sd: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of the cdf of each feature, by quadrature."""
    from scipy.special import ndtr

    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    values = ndtr((mean[:, None] + sd[:, None] * nodes - CDF_CENTRE) / CDF_WIDTH)
    centre = values @ weights
    return centre, np.sqrt(((values - centre[:, None]) ** 2) @ weights)

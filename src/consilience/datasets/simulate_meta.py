"""Simulated sites whose regression functions fall into groups: designs for meta clustering.

Source of the named designs: Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning*,
Journal of Computational and Graphical Statistics (2022), simulation study and applications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.datasets import check_choice
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    import pandas as pd

Grouping = Literal["homogeneous", "two-groups", "one-odd", "unique"]
Shape = Literal["linear", "nonlinear"]
Errors = Literal["normal", "t3"]
Tampering = Literal["sign", "shift", "scale", "permute", "noise"]

NONLINEAR_FEATURES = 5
"""Predictors that the non-linear functions look at."""
ATTEMPTS = 1000
"""Draws of a function before a separation counts as out of reach."""


@dataclass(frozen=True, eq=False)
class GroupedSites:
    """Rows of several sites, and which of them share a regression function.

    Attributes
    ----------
    features : tuple of L arrays (n_i, p)
    responses : tuple of L arrays (n_i,)
    signals : tuple of L arrays (n_i,)
        True regression function at the rows.
    groups : int array, shape (L,)
        Equal for sites with equal functions; numbered from 0 in order of first appearance.
    hidden : float array, shape (L,), or None
        A site's value of the variable that may not be used, in the fairness design.
    """

    features: tuple[FloatArray, ...]
    responses: tuple[FloatArray, ...]
    signals: tuple[FloatArray, ...]
    groups: IntArray
    hidden: FloatArray | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites, whose alphabetical order is their order."""
        width = len(str(len(self.groups)))
        return tuple(f"site-{i + 1:0{width}d}" for i in range(len(self.groups)))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return tuple(f"x{j + 1}" for j in range(self.features[0].shape[1]))

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return one table per site, with columns x1, x2, ... and y."""
        import pandas as pd

        return {
            name: pd.DataFrame(x, columns=list(self.feature_names)).assign(y=y)
            for name, x, y in zip(self.names, self.features, self.responses, strict=True)
        }


# --------------------------------------------------------------------------- general designs


def simulate_functions(
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    design: Grouping = "homogeneous",
    shape: Shape = "linear",
    n_features: int = 5,
    noise: float = 1.0,
    errors: Errors = "normal",
    separation: float = 1.0,
    drift: float = 0.0,
) -> GroupedSites:
    """Sites with equal functions, two groups, one odd site, or all different.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each of the L sites.
    rng : numpy.random.Generator
        Source of all draws.
    design : {"homogeneous", "two-groups", "one-odd", "unique"}
        One function; two, for the first half of the sites (rounded up) and the rest; two, the
        second one for the last site alone; or a function for each site.
    shape : {"linear", "nonlinear"}
        Linear in all predictors, or four pieces of the first five: a sine, a product, a square
        and a sign. The pieces are uncorrelated with variance 1 for standard normal predictors.
    n_features : int
        p; at least 5 for ``shape="nonlinear"``.
    noise : float
        Variance of the errors; the variance of a function is 1.
    errors : {"normal", "t3"}
        Their distribution, scaled to that variance.
    separation : float
        Least mean squared difference between two functions, in [0, 2]. Two functions without
        anything in common differ by 2.
    drift : float
        Standard deviation of the sites' means of each predictor, in standard deviations of the
        predictor within a site.

    Returns
    -------
    GroupedSites

    Raises
    ------
    ParameterError
        A setting is out of its range, or so many functions so far apart were not found.

    Notes
    -----
    A function is a unit vector of coefficients drawn uniformly; one that is closer than
    `separation` to an earlier one is drawn again.
    """
    _check_sizes(sizes)
    check_choice("design", design, Grouping)
    check_choice("shape", shape, Shape)
    check_choice("errors", errors, Errors)
    least = NONLINEAR_FEATURES if shape == "nonlinear" else 1
    if n_features < least:
        raise ParameterError.of("n_features", f"at least {least} for this shape", n_features)
    for name, value in (("noise", noise), ("drift", drift)):
        if not value >= 0:
            raise ParameterError.of(name, "0 or more", value)
    groups = _groups(design, len(sizes))
    coefficients = _unit_vectors(
        int(groups.max()) + 1, 4 if shape == "nonlinear" else n_features, separation, rng
    )
    features, signals, responses = [], [], []
    for size, group in zip(sizes, groups, strict=True):
        centre = drift * rng.standard_normal(n_features)
        x = centre + rng.standard_normal((size, n_features))
        pieces = x
        if shape == "nonlinear":
            # mean 0 and variance 1, uncorrelated for standard normal x
            wave = np.sin(2.0 * x[:, 0]) / np.sqrt((1.0 - np.exp(-8.0)) / 2.0)
            square = (np.square(x[:, 3]) - 1.0) / np.sqrt(2.0)
            pieces = np.column_stack([wave, x[:, 1] * x[:, 2], square, np.sign(x[:, 4])])
        signal = pieces @ coefficients[group]
        # t with 3 degrees of freedom has variance 3
        heavy = errors == "t3"
        drawn = rng.standard_t(3, size) / np.sqrt(3.0) if heavy else rng.standard_normal(size)
        features.append(x)
        signals.append(signal)
        responses.append(signal + np.sqrt(noise) * drawn)
    return GroupedSites(tuple(features), tuple(responses), tuple(signals), groups)


def _check_sizes(sizes: Sequence[int]) -> None:
    if len(sizes) < 1 or min(sizes) < 1:
        raise ParameterError.of("sizes", "at least one site with at least one row", list(sizes))


def _groups(design: Grouping, n_sites: int) -> IntArray:
    place = np.arange(n_sites)
    if design == "unique":
        return place
    if design == "two-groups":
        return (place >= (n_sites + 1) // 2).astype(np.int64)
    if design == "one-odd":
        return ((place == n_sites - 1) & (n_sites > 1)).astype(np.int64)
    return np.zeros(n_sites, dtype=np.int64)


def _unit_vectors(
    count: int, dimension: int, separation: float, rng: np.random.Generator
) -> FloatArray:
    """Vectors of length 1 whose squared distances are at least `separation`, shape (count, d)."""
    if not 0 <= separation <= 2:
        raise ParameterError.of("separation", "in [0, 2]", separation)
    found: list[FloatArray] = []
    for _ in range(ATTEMPTS * count):
        draw = rng.standard_normal(dimension)
        draw /= np.linalg.norm(draw)
        if all(np.square(draw - other).sum() >= separation for other in found):
            found.append(draw)
        if len(found) == count:
            return np.stack(found)
    raise ParameterError.of("separation", f"within reach of {count} functions", separation)


# --------------------------------------------------------------------------- designs of the source


def simulate_fairness(
    influence: float,
    *,
    rng: np.random.Generator,
    n_sites: int = 50,
    n_rows: int = 50,
) -> GroupedSites:
    """Learners that differ by a variable which may not be used (the source's Table 1).

    ``y = x1 + 2 x2 - 2 x3 + 2 x4 + b r + e`` with standard normal predictors, error and r; a
    learner's r is the same in all its rows.

    Parameters
    ----------
    influence : float
        b.
    rng : numpy.random.Generator
    n_sites, n_rows : int
        L, and rows of each learner.

    Returns
    -------
    GroupedSites
        `hidden` holds r; every learner is a group of its own, unless b is 0.
    """
    _check_sizes([n_rows] * n_sites)
    hidden = rng.standard_normal(n_sites)
    coefficients = np.array([1.0, 2.0, -2.0, 2.0])
    features = rng.standard_normal((n_sites, n_rows, 4))
    signals = features @ coefficients + influence * hidden[:, None]
    responses = signals + rng.standard_normal(signals.shape)
    groups = _groups("unique" if influence else "homogeneous", n_sites)
    return GroupedSites(tuple(features), tuple(responses), tuple(signals), groups, hidden)


# --------------------------------------------------------------------------- tampering


def tamper(
    y: FloatArray,
    how: Tampering,
    *,
    amount: float = 1.0,
    rng: np.random.Generator,
) -> FloatArray:
    """Change a response as a faulty or hostile site might.

    Parameters
    ----------
    y : (n,) array
    how : {"sign", "shift", "scale", "permute", "noise"}
        Flip the sign; add `amount` standard deviations; multiply by `amount` around the mean;
        permute; or replace by normal noise of the same mean and standard deviation.
    amount : float
        For "shift" and "scale".
    rng : numpy.random.Generator
        For "permute" and "noise".

    Returns
    -------
    (n,) array

    Raises
    ------
    ParameterError
        An unknown way, or an amount that is not finite.

    Notes
    -----
    The source flips signs; the other ways are ours.
    """
    check_choice("how", how, Tampering)
    if not np.isfinite(amount):
        raise ParameterError.of("amount", "finite", amount)
    y = np.asarray(y, dtype=np.float64)
    if how == "sign":
        return -y
    if how == "shift":
        return y + amount * y.std()
    if how == "scale":
        return y.mean() + amount * (y - y.mean())
    if how == "permute":
        return rng.permutation(y)
    return y.mean() + y.std() * rng.standard_normal(y.shape)

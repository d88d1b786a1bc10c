"""Simulated tables for choosing a rank or a number of clusters by held-out entries.

Source: Ya Le's Stanford thesis, chapter 3 (joint with Hastie), simulations. Its tables of low rank
are those of Perry's Stanford thesis *Cross-validation for unsupervised learning* (2009) and of Owen
and Perry, *Bi-cross-validation of the SVD*, Annals of Applied Statistics 3 (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.datasets import check_choice, check_least
from consilience.exceptions import ParameterError

Factors = Literal["gaussian", "sparse"]
Noise = Literal["white", "coloured", "heavy"]
ClusterDesign = Literal["plane", "line", "correlated", "heavy"]

SINGULAR_VALUES = (10.0, 9.0, 8.0, 7.0, 6.0, 5.0)
"""Of the signal, over ``sqrt(p)`` and with factors whose expected length is 1."""
HEAVY_NOISE, COLOURED_NOISE, HEAVY_CLUSTERS = 3, 3, 5
"""Degrees of freedom: t of heavy noise, inverse chi-squared variances, t of heavy clusters."""

_PLANE = ((0.0, 0.0), (2.5, 2.5), (5.0, 5.0), (-2.5, -2.5), (-5.0, -5.0))
_CORRELATIONS = (-0.1, 0.0, 0.1, 0.3, 0.5)
_DIMENSIONS = 10
_STEP = 3.5  # between neighbouring means of the line, in each coordinate
_SPREAD = 2.0  # standard deviation of the coordinates of drawn means


# --------------------------------------------------------------------------- low rank


@dataclass(frozen=True, eq=False)
class LowRankTable:
    """A table of low rank and noise.

    Attributes
    ----------
    x : (n, p) array
        Signal and noise; NaN where an entry is missing.
    signal : (n, p) array
    rank : int
        Number of singular values of the signal.
    """

    x: FloatArray
    signal: FloatArray
    rank: int

    def error(self, fitted: FloatArray) -> float:
        """Mean squared distance of a fit from the signal, over all entries.

        Parameters
        ----------
        fitted : (n, p) array

        Returns
        -------
        float
        """
        return float(((fitted - self.signal) ** 2).mean())


def simulate_low_rank(
    n_rows: int = 50,
    n_columns: int = 100,
    *,
    rng: np.random.Generator,
    singular_values: Sequence[float] = SINGULAR_VALUES,
    factors: Factors = "gaussian",
    noise: Noise = "white",
    sparsity: float = 0.1,
    observed: float = 1.0,
) -> LowRankTable:
    """Simulate ``sqrt(p) U D V' + E``, the source's design of rank.

    Parameters
    ----------
    n_rows, n_columns : int
        n and p.
    rng : numpy.random.Generator
    singular_values : sequence of k float
        Diagonal of D, at most ``min(n, p)`` of them, 0 or more.
    factors : {"gaussian", "sparse"}
        Entries of U and V are normal with variance 1/n and 1/p; or that divided by `sparsity`
        with this probability, else 0.
    noise : {"white", "coloured", "heavy"}
        Independent, with expectation 0 and variance 1: normal; normal with variances
        ``(s_i + t_j) / 2`` of row i and column j, where 1/s_i and 1/t_j are chi-squared with 3
        degrees of freedom; t with 3 degrees of freedom over ``sqrt(3)``.
    sparsity : float
        In (0, 1].
    observed : float
        Share of the entries that are observed, drawn without replacement, in (0, 1].

    Returns
    -------
    LowRankTable

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    d = np.asarray(singular_values, dtype=np.float64)
    check_choice("factors", factors, Factors)
    check_choice("noise", noise, Noise)
    check_least(1, n_rows=n_rows, n_columns=n_columns)
    if d.ndim != 1 or len(d) > min(n_rows, n_columns) or not (d >= 0).all():
        wanted = f"at most {min(n_rows, n_columns)} numbers of 0 or more"
        raise ParameterError.of("singular_values", wanted, tuple(d.ravel().tolist()))
    for name, value in (("sparsity", sparsity), ("observed", observed)):
        if not 0 < value <= 1:
            raise ParameterError.of(name, "in (0, 1]", value)
    share = sparsity if factors == "sparse" else 1.0
    u, v = (_factor(size, len(d), share, rng) for size in (n_rows, n_columns))
    # sqrt(p): singular values of the signal beside those of noise, which grow so
    signal = np.sqrt(n_columns) * (u * d) @ v.T
    x = signal + _noise(n_rows, n_columns, noise, rng)
    if observed < 1:
        # one entry at least is observed
        missing = rng.permutation(x.size)[max(round(observed * x.size), 1) :]
        x.ravel()[missing] = np.nan
    return LowRankTable(x, signal, len(d))


def _factor(size: int, rank: int, share: float, rng: np.random.Generator) -> FloatArray:
    # expected length 1, whatever share of the entries is 0
    drawn = rng.standard_normal((size, rank)) / np.sqrt(share * size)
    if share < 1:
        drawn *= rng.random((size, rank)) < share
    return drawn


def _noise(n: int, p: int, noise: Noise, rng: np.random.Generator) -> FloatArray:
    if noise == "heavy":
        scale = np.sqrt(1.0 - 2.0 / HEAVY_NOISE)
        return np.asarray(scale * rng.standard_t(HEAVY_NOISE, size=(n, p)))
    drawn = rng.standard_normal((n, p))
    if noise == "white":
        return drawn
    rows, columns = (1.0 / rng.chisquare(COLOURED_NOISE, size=size) for size in (n, p))
    scale = (COLOURED_NOISE - 2.0) / 2.0  # E 1 / chi2_v is 1 / (v - 2)
    return np.asarray(drawn * np.sqrt(scale * (rows[:, None] + columns)))


# --------------------------------------------------------------------------- clusters


@dataclass(frozen=True, eq=False)
class ClusterTable:
    """Rows in clusters.

    Attributes
    ----------
    x : (n, p) array
        Rows cluster by cluster.
    labels : (n,) array of int
    means : (K, p) array
    """

    x: FloatArray
    labels: IntArray
    means: FloatArray

    @property
    def n_clusters(self) -> int:
        """Number K of clusters that rows were drawn from."""
        return len(self.means)


def simulate_clusters(
    design: ClusterDesign, *, rng: np.random.Generator, n_per_cluster: int = 20
) -> ClusterTable:
    """Simulate five clusters of the same size, the source's designs of the number of clusters.

    Parameters
    ----------
    design : {"plane", "line", "correlated", "heavy"}
        *plane* (the source's first): two dimensions, means from (-5, -5) to (5, 5) in steps of
        2.5. *line*: ten dimensions, means 3.5 apart in each. *correlated*: ten dimensions, means
        normal with variance 4, and within the clusters all correlations -.1, 0, .1, .3 and .5.
        *heavy*: independent coordinates that are t with 5 degrees of freedom, around means like
        those of the third design; the source does not print them. Variances are 1 everywhere.
    rng : numpy.random.Generator
    n_per_cluster : int

    Returns
    -------
    ClusterTable

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    check_choice("design", design, ClusterDesign)
    check_least(1, n_per_cluster=n_per_cluster)
    k = len(_PLANE)
    if design == "plane":
        means = np.array(_PLANE)
    elif design == "line":
        means = np.repeat(_STEP * np.arange(k)[:, None], _DIMENSIONS, axis=1)
    else:
        means = _SPREAD * rng.standard_normal((k, _DIMENSIONS))
    labels = np.repeat(np.arange(k), n_per_cluster)
    size = (len(labels), means.shape[1])
    if design == "heavy":
        scale = np.sqrt(1.0 - 2.0 / HEAVY_CLUSTERS)
        around = scale * rng.standard_t(HEAVY_CLUSTERS, size=size)
    else:
        around = rng.standard_normal(size)
    if design == "correlated":
        p = _DIMENSIONS
        for j, rho in enumerate(_CORRELATIONS):
            # rows times L' have covariance L L'
            factor = np.linalg.cholesky(np.full((p, p), rho) + (1.0 - rho) * np.eye(p))
            around[labels == j] @= factor.T
    return ClusterTable(means[labels] + around, labels.astype(np.int64), means)

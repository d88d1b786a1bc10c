"""Simulated federations: the designs of the papers behind the methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError

Design = Literal["homogeneous", "imbalanced", "outliers"]


@dataclass(frozen=True)
class SimulatedSites:
    """Rows of several sites with the truth behind them.

    Attributes
    ----------
    tables : tuple of M arrays (n_m, p)
        Rows of each site, in random order.
    classes : tuple of M arrays of int64 (n_m,)
        True class of each row; -1 for an outlying row.
    means : array, shape (K, p)
        Class means.
    """

    tables: tuple[FloatArray, ...]
    classes: tuple[IntArray, ...]
    means: FloatArray


def simulate_gaussian_sites(
    n_sites: int,
    *,
    rng: np.random.Generator,
    design: Design = "homogeneous",
    variance: float = 0.1,
    n_classes: int = 5,
    n_features: int = 10,
    sizes: tuple[int, int] = (50, 500),
) -> SimulatedSites:
    """Gaussian classes shared by all sites, in proportions that may differ by site.

    Parameters
    ----------
    n_sites : int
        M.
    rng : numpy.random.Generator
        Source of all draws.
    design : {"homogeneous", "imbalanced", "outliers"}
        Equal class proportions; proportions of each site from Dirichlet(1, ..., 1); the same with
        one site in five (at least one) receiving outlying rows, 20 % of its size, around a mean
        with entries -5 or 5.
    variance : float
        sigma^2 of every feature within a class.
    n_classes, n_features : int
        K and p; every entry of a class mean is -1 or 1 with equal probability.
    sizes : (int, int)
        Smallest and largest number of regular rows of a site, uniform between them.

    Returns
    -------
    SimulatedSites

    Raises
    ------
    ParameterError
        If a number is out of its range, or K means cannot be distinct.

    Notes
    -----
    Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*
    (arXiv 2409.08396), section 4. Departure: a mean equal to an earlier one is drawn again (for
    K = 5, p = 10 one data set in a hundred would otherwise have two identical classes).
    """
    if design not in get_args(Design):
        raise ParameterError.of("design", f"one of {get_args(Design)}", design)
    if n_sites < 1:
        raise ParameterError.of("n_sites", "at least 1", n_sites)
    if not variance > 0:
        raise ParameterError.of("variance", "positive", variance)
    if not 1 <= sizes[0] <= sizes[1]:
        raise ParameterError.of("sizes", "an ascending pair of positive integers", sizes)
    means = _distinct_sign_means(n_classes, n_features, rng)
    spread = float(np.sqrt(variance))
    n_outlying = max(1, round(0.2 * n_sites)) if design == "outliers" else 0
    with_outliers = set(rng.permutation(n_sites)[:n_outlying].tolist())
    tables, classes = [], []
    for site in range(n_sites):
        size = int(rng.integers(sizes[0], sizes[1] + 1))
        equal = np.full(n_classes, 1.0 / n_classes)
        shares = equal if design == "homogeneous" else rng.dirichlet(np.ones(n_classes))
        truth = rng.choice(n_classes, size=size, p=shares).astype(np.int64)
        centres = means[truth]
        if site in with_outliers:
            extra = round(0.2 * size)
            far = 5.0 * rng.choice([-1.0, 1.0], size=n_features)
            truth = np.concatenate([truth, np.full(extra, -1, dtype=np.int64)])
            centres = np.concatenate([centres, np.tile(far, (extra, 1))])
        rows = centres + spread * rng.standard_normal(centres.shape)
        order = rng.permutation(truth.size)
        tables.append(rows[order])
        classes.append(truth[order])
    return SimulatedSites(tuple(tables), tuple(classes), means)


def _distinct_sign_means(n_classes: int, n_features: int, rng: np.random.Generator) -> FloatArray:
    if n_features < 1 or n_classes < 1 or (n_features < 60 and n_classes > 2**n_features):
        raise ParameterError.of("n_classes", "between 1 and 2^n_features", n_classes)
    means: list[FloatArray] = []
    while len(means) < n_classes:
        draw = rng.choice([-1.0, 1.0], size=n_features)
        if not any(np.array_equal(draw, other) for other in means):
            means.append(draw)
    return np.stack(means)

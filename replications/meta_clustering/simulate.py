"""The source's Simulations 1 and 2: two groups of learners with regression functions of their own.

Ye, Ghanadan and Ding, *Meta Clustering for Collaborative Learning*, Journal of Computational and
Graphical Statistics (2022), simulation study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.datasets.simulate_meta import GroupedSites, _check_sizes, _groups
from consilience.exceptions import ParameterError


def simulate_linear_groups(
    n_features: int,
    snr: float,
    *,
    rng: np.random.Generator,
    n_sites: int = 20,
    n_rows: int = 50,
    standardize: bool = True,
) -> GroupedSites:
    """Two groups with coefficients of their own (the source's Simulation 1).

    Parameters
    ----------
    n_features : int
        p; predictors and both coefficient vectors are standard normal.
    snr : float
        The errors have variance p^2 / snr, as printed; the functions' variance is about p, so the
        ratio of the variances is about snr / p.
    rng : numpy.random.Generator
    n_sites, n_rows : int
        L, half of them (rounded up) in each group, and rows of each learner.
    standardize : bool
        Predictors and response to mean 0 and variance 1 at each learner, as in the source.

    Returns
    -------
    GroupedSites
        `signals` are in the units of the responses.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    _check_sizes([n_rows] * n_sites)
    if n_features < 1:
        raise ParameterError.of("n_features", "at least 1", n_features)
    if not snr > 0:
        raise ParameterError.of("snr", "positive", snr)
    groups = _groups("two-groups", n_sites)
    coefficients = rng.standard_normal((2, n_features))
    features, signals, responses = [], [], []
    for group in groups:
        x = rng.standard_normal((n_rows, n_features))
        signal = x @ coefficients[group]
        y = signal + n_features / np.sqrt(snr) * rng.standard_normal(n_rows)
        if standardize:
            x = (x - x.mean(axis=0)) / x.std(axis=0)
            centre, scale = y.mean(), y.std()
            signal, y = (signal - centre) / scale, (y - centre) / scale
        features.append(x)
        signals.append(signal)
        responses.append(y)
    return GroupedSites(tuple(features), tuple(responses), tuple(signals), groups)


def simulate_friedman_groups(
    sizes: Sequence[int] = (100,) * 20,
    *,
    rng: np.random.Generator,
    n_features: int = 500,
    noise: float = 0.01,
) -> GroupedSites:
    """Two groups with non-linear functions of four of many predictors (the source's Simulation 2).

    With ``u = x2 x3 - 1 / (x2 x4)`` the first half of the learners (rounded up) follows
    ``sqrt(x1^2 + u^2)`` and the rest ``arctan(u / x1)``; x1 is uniform on (0, 100), x2 on
    (40 pi, 560 pi), x3 on (0, 1), x4 on (1, 11), and the other predictors are standard normal.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each learner.
    rng : numpy.random.Generator
    n_features : int
        p, at least 4.
    noise : float
        Variance of the errors.

    Returns
    -------
    GroupedSites

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    _check_sizes(sizes)
    if n_features < 4:
        raise ParameterError.of("n_features", "at least 4", n_features)
    if not noise >= 0:
        raise ParameterError.of("noise", "0 or more", noise)
    groups = _groups("two-groups", len(sizes))
    low = np.array([0.0, 40.0 * np.pi, 0.0, 1.0])
    high = np.array([100.0, 560.0 * np.pi, 1.0, 11.0])
    features, signals, responses = [], [], []
    for size, group in zip(sizes, groups, strict=True):
        x = np.column_stack(
            [rng.uniform(low, high, (size, 4)), rng.standard_normal((size, n_features - 4))]
        )
        u = x[:, 1] * x[:, 2] - 1.0 / (x[:, 1] * x[:, 3])
        signal = np.hypot(x[:, 0], u) if group == 0 else np.arctan2(u, x[:, 0])
        features.append(x)
        signals.append(signal)
        responses.append(signal + np.sqrt(noise) * rng.standard_normal(size))
    return GroupedSites(tuple(features), tuple(responses), tuple(signals), groups)

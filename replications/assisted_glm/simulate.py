"""Parties with given canonical correlations, opposed columns, or more columns than records.

Source of the named designs: Zhang, Yang and Ding, *Additive-Effect Assisted Learning*, Journal of
the Royal Statistical Society B (2025), simulation study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.arrays import FloatArray
from consilience.datasets import check_choice, check_least
from consilience.datasets.simulate_assisted import Errors, Family, SplitColumns, _split
from consilience.exceptions import ParameterError


def simulate_canonical(
    n_records: int,
    correlations: Sequence[float],
    *,
    rng: np.random.Generator,
    n_columns: tuple[int, int] | None = None,
    family: Family = "binomial",
    signal: float = 1.0,
    rotate: bool = True,
    errors: Errors = "normal",
) -> SplitColumns:
    """Simulate two parties with given canonical correlations between their columns.

    Parameters
    ----------
    n_records : int
    correlations : sequence of k floats in [0, 1)
        Canonical correlations of the population; the remaining ones are 0.
    rng : numpy.random.Generator
    n_columns : (int, int), optional
        Columns of a and of b, each at least k; k each by default.
    family : str
    signal : float
        Standard deviation of the linear predictor that independent columns would give;
        coefficients are normal with equal variances.
    rotate : bool
        Columns of each party mixed by a random rotation; otherwise column j of a belongs to
        column j of b.
    errors : {"normal", "t3"}

    Returns
    -------
    SplitColumns
        Parties "a" (columns "a1", ...) and "b" ("b1", ...), every column standard normal.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    c = np.asarray(correlations, dtype=np.float64)
    if c.ndim != 1 or not np.all((c >= 0) & (c < 1)):
        raise ParameterError.of("correlations", "numbers in [0, 1)", list(correlations))
    p_a, p_b = n_columns or (c.size, c.size)
    if min(p_a, p_b) < max(c.size, 1):
        raise ParameterError.of("n_columns", f"at least {max(c.size, 1)} each", n_columns)
    if not signal >= 0:
        raise ParameterError.of("signal", "0 or more", signal)
    check_choice("family", family, Family)
    check_least(1, n_records=n_records)
    beta = signal / np.sqrt(p_a + p_b) * rng.standard_normal(p_a + p_b)
    x_a = rng.standard_normal((n_records, p_a))
    x_b = rng.standard_normal((n_records, p_b))
    x_b[:, : c.size] = c * x_a[:, : c.size] + np.sqrt(1.0 - c * c) * x_b[:, : c.size]
    if rotate:
        x_a, x_b = x_a @ _rotation(p_a, rng), x_b @ _rotation(p_b, rng)
    names = (*(f"a{j + 1}" for j in range(p_a)), *(f"b{j + 1}" for j in range(p_b)))
    split = {"a": list(range(p_a)), "b": list(range(p_a, p_a + p_b))}
    return _split(np.column_stack([x_a, x_b]), names, split, beta, family, errors, rng)


def simulate_opposed(
    n_records: int,
    *,
    rng: np.random.Generator,
    correlation: float = 0.9,
    n_columns: int = 3,
    n_targets: int = 1,
    family: Family = "binomial",
    signal: float = 1.0,
    errors: Errors = "normal",
) -> tuple[SplitColumns, dict[str, FloatArray]]:
    """Simulate pairs of like columns, and new subjects whose columns point opposite ways.

    Column j of b resembles column j of a. For a new subject with ``x_b = -x_a`` the variances of
    the two parts do not add up: their covariance, which no party sees alone, decides.

    Parameters
    ----------
    n_records : int
    rng : numpy.random.Generator
    correlation : float
        Between the columns of a pair, in [0, 1).
    n_columns : int
        Pairs.
    n_targets : int
        m, new subjects.
    family, signal, errors
        See `simulate_canonical`.

    Returns
    -------
    data : SplitColumns
    targets : dict of party to (m, p) array
        Standard normal for a, and its negative for b.
    """
    data = simulate_canonical(
        n_records,
        [correlation] * n_columns,
        rng=rng,
        family=family,
        signal=signal,
        rotate=False,
        errors=errors,
    )
    x = rng.standard_normal((n_targets, n_columns))
    return data, {"a": x, "b": -x}


def simulate_wide(
    n_records: int = 100,
    *,
    rng: np.random.Generator,
    n_columns: tuple[int, int, int] = (200, 200, 100),
    n_effects: int = 5,
    size: float = 1.0,
    family: Family = "binomial",
    rho: float = 0.25,
    errors: Errors = "normal",
) -> SplitColumns:
    """Simulate more columns than records, of which few matter.

    Parameters
    ----------
    n_records : int
    rng : numpy.random.Generator
    n_columns : (int, int, int)
        Columns that a alone, b alone and both hold.
    n_effects : int
        Columns of each of the three kinds that matter (all of them where there are fewer).
    size : float
        Their coefficients, with random signs.
    family : str
    rho : float
        Neighbouring columns of a kind have correlation rho, those k apart rho^k.
    errors : {"normal", "t3"}

    Returns
    -------
    SplitColumns
        Columns "a1", ..., "b1", ... and, held by both, "s1", ...; every one standard normal.

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if min(n_columns) < 0 or n_columns[0] + n_columns[2] < 1 or n_columns[1] + n_columns[2] < 1:
        raise ParameterError.of("n_columns", "at least one column for each party", n_columns)
    if not 0 <= rho < 1:
        raise ParameterError.of("rho", "in [0, 1)", rho)
    check_choice("family", family, Family)
    check_least(1, n_records=n_records)
    names: list[str] = []
    blocks: list[FloatArray] = []
    betas: list[FloatArray] = []
    for kind, p in zip("abs", n_columns, strict=True):
        x = rng.standard_normal((n_records, p))
        for j in range(1, p):  # an autoregression along the columns
            x[:, j] = rho * x[:, j - 1] + np.sqrt(1.0 - rho * rho) * x[:, j]
        beta = np.zeros(p)
        chosen = rng.permutation(p)[:n_effects]
        beta[chosen] = size * rng.choice([-1.0, 1.0], chosen.size)
        names += [f"{kind}{j + 1}" for j in range(p)]
        blocks.append(x)
        betas.append(beta)
    p_a, p_b, p_s = n_columns
    shared = list(range(p_a + p_b, p_a + p_b + p_s))
    split = {"a": [*range(p_a), *shared], "b": [*range(p_a, p_a + p_b), *shared]}
    return _split(
        np.column_stack(blocks), tuple(names), split, np.concatenate(betas), family, errors, rng
    )


def _rotation(size: int, rng: np.random.Generator) -> FloatArray:
    """Uniformly distributed rotation; without the signs, QR would favour some."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)), dtype=np.float64)

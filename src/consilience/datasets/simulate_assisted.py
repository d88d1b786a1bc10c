"""Simulated parties that hold different columns on the same records: designs for assisted learning.

Source of the named designs: Zhang, Yang and Ding, *Additive-Effect Assisted Learning*, Journal of
the Royal Statistical Society B (2025), simulation study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    import pandas as pd

Family = Literal["normal", "binomial", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie"]
Effects = Literal["null", "power"]
Errors = Literal["normal", "t3"]

SETTINGS: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    1: (tuple(range(1, 7)), tuple(range(7, 13))),
    2: ((1, 2, 3, 4, *range(9, 13)), (5, 6, 7, 8, *range(9, 13))),
    3: ((1, 2, *range(5, 13)), (3, 4, *range(5, 13))),
}
"""Numbers of the columns that parties a and b hold; 12 columns, of which 0, 4 or 8 are shared."""
N_COLUMNS = 12
LOG_LINK = ("poisson", "gamma", "tweedie")
"""Families whose mean is ``exp(eta)``."""
GAMMA_SHAPE = 2.0
TWEEDIE_POWER, TWEEDIE_DISPERSION = 1.5, 1.0


@dataclass(frozen=True, eq=False)
class SplitColumns:
    """One set of records whose columns are held by several parties.

    Attributes
    ----------
    columns : dict of party to (n, p) array
        Party "a" also holds the response.
    names : dict of party to tuple of p str
        A name that two parties have stands for the same column.
    y : (n,) array
    eta : (n,) array
        True linear predictor.
    coefficients : dict of name to float
        True coefficients; the intercept is 0.
    family : str
    """

    columns: Mapping[str, FloatArray]
    names: Mapping[str, tuple[str, ...]]
    y: FloatArray
    eta: FloatArray
    coefficients: Mapping[str, float]
    family: str

    @property
    def pooled(self) -> FloatArray:
        """Every column once, in the order of `coefficients`: (n, q)."""
        held = {
            name: column
            for party, names in self.names.items()
            for name, column in zip(names, self.columns[party].T, strict=True)
        }
        return np.column_stack([held[name] for name in self.coefficients])

    def rows(self, chosen: ArrayLike | slice) -> SplitColumns:
        """Return the same parties with some of the records: places, a bool array or a slice."""
        where = chosen if isinstance(chosen, slice) else np.asarray(chosen)
        return SplitColumns(
            {party: x[where] for party, x in self.columns.items()},
            self.names,
            self.y[where],
            self.eta[where],
            self.coefficients,
            self.family,
        )

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return one table per party: ``id``, its columns, and at party "a" the response ``y``."""
        import pandas as pd

        width = len(str(len(self.y)))
        ids = [f"r{i + 1:0{width}d}" for i in range(len(self.y))]
        made = {}
        for party, x in self.columns.items():
            table = pd.DataFrame(x, columns=list(self.names[party]))
            table.insert(0, "id", ids)
            made[party] = table.assign(y=self.y) if party == "a" else table
        return made


# --------------------------------------------------------------------------- designs


def simulate_setting(
    setting: int,
    n_records: int,
    *,
    rng: np.random.Generator,
    family: Family = "binomial",
    effects: Effects = "null",
    rho: float = 0.0,
    coefficients: ArrayLike | None = None,
    errors: Errors = "normal",
) -> SplitColumns:
    """Simulate the source's twelve columns, split in one of its three ways.

    ``X = Z S`` with independent uniform entries of Z on (0, 1) and S the symmetric root of the
    matrix with entries ``rho^|i - j|``.

    Parameters
    ----------
    setting : {1, 2, 3}
        Columns of the parties: six each (1); four each and four that both hold (2); two each and
        eight that both hold (3). See `SETTINGS`.
    n_records : int
    rng : numpy.random.Generator
        Source of all draws, in the order coefficients, columns, response.
    family : str
        See `draw_response`.
    effects : {"null", "power"}
        Coefficients .5 (.1 with a log link), but 0 for what b alone holds; or all drawn from
        N(0, .5^2) for "binomial" and N(0, .1^2) for other families.
    rho : float
        In [0, 1); the source uses 0, .1 and .25.
    coefficients : (12,) array, optional
        In place of those of `effects`, for instance to draw more records of one population.
    errors : {"normal", "t3"}
        See `draw_response`.

    Returns
    -------
    SplitColumns
        Parties "a" and "b", columns "x1" to "x12".

    Raises
    ------
    ParameterError
        A setting is out of its range.
    """
    if setting not in SETTINGS:
        raise ParameterError.of("setting", f"one of {tuple(SETTINGS)}", setting)
    if effects not in get_args(Effects):
        raise ParameterError.of("effects", f"one of {get_args(Effects)}", effects)
    if not 0 <= rho < 1:
        raise ParameterError.of("rho", "in [0, 1)", rho)
    _check_family(family)
    held_by_a, held_by_b = SETTINGS[setting]
    if coefficients is not None:
        beta = np.asarray(coefficients, dtype=np.float64)
        if beta.shape != (N_COLUMNS,):
            raise ParameterError.of("coefficients", f"{N_COLUMNS} numbers", beta.shape)
    elif effects == "null":
        size = 0.1 if family in LOG_LINK else 0.5
        beta = np.where(np.isin(np.arange(1, N_COLUMNS + 1), held_by_a), size, 0.0)
    else:
        beta = (0.5 if family == "binomial" else 0.1) * rng.standard_normal(N_COLUMNS)
    place = np.arange(N_COLUMNS)
    root = _symmetric_root(rho ** np.abs(place[:, None] - place[None, :]).astype(np.float64))
    x = rng.uniform(size=(_records(n_records), N_COLUMNS)) @ root
    names = tuple(f"x{j + 1}" for j in range(N_COLUMNS))
    split = {"a": [j - 1 for j in held_by_a], "b": [j - 1 for j in held_by_b]}
    return _split(x, names, split, beta, family, errors, rng)


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
    _check_family(family)
    beta = signal / np.sqrt(p_a + p_b) * rng.standard_normal(p_a + p_b)
    x_a = rng.standard_normal((_records(n_records), p_a))
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
    _check_family(family)
    names: list[str] = []
    blocks: list[FloatArray] = []
    betas: list[FloatArray] = []
    for kind, p in zip("abs", n_columns, strict=True):
        x = rng.standard_normal((_records(n_records), p))
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


# --------------------------------------------------------------------------- responses


def draw_response(
    family: Family,
    eta: FloatArray,
    *,
    rng: np.random.Generator,
    errors: Errors = "normal",
) -> FloatArray:
    """Draw a response for given linear predictors.

    Parameters
    ----------
    family : str
        "binomial" (0 or 1), "poisson", "gamma" (shape 2) and "tweedie" (power 1.5, dispersion 1)
        with log link; "normal", "log-cosh" and "pseudo-huber": `eta` plus an error of variance 1.
    eta : (n,) array
    rng : numpy.random.Generator
    errors : {"normal", "t3"}
        Distribution of that error; Student's t with 3 degrees of freedom is scaled.

    Returns
    -------
    (n,) array

    Raises
    ------
    ParameterError
        An unknown family or error.
    """
    _check_family(family)
    if errors not in get_args(Errors):
        raise ParameterError.of("errors", f"one of {get_args(Errors)}", errors)
    eta = np.asarray(eta, dtype=np.float64)
    if family == "binomial":
        return (rng.uniform(size=eta.shape) * (1.0 + np.exp(-eta)) < 1.0).astype(np.float64)
    if family == "poisson":
        return rng.poisson(np.exp(eta)).astype(np.float64)
    if family == "gamma":
        return rng.gamma(GAMMA_SHAPE, np.exp(eta) / GAMMA_SHAPE)
    if family == "tweedie":
        return _compound_poisson(np.exp(eta), rng)
    if errors == "t3":
        return eta + rng.standard_t(3, eta.shape) / np.sqrt(3.0)
    return eta + rng.standard_normal(eta.shape)


def _compound_poisson(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Sum of a Poisson number of gamma variables with variance dispersion * mean^power."""
    p, phi = TWEEDIE_POWER, TWEEDIE_DISPERSION
    number = rng.poisson(mean ** (2.0 - p) / (phi * (2.0 - p)))
    shape = number * (2.0 - p) / (p - 1.0)
    scale = phi * (p - 1.0) * mean ** (p - 1.0)
    # A gamma variable of shape 0 is 0, but the generator need not take that shape.
    return np.where(number > 0, rng.gamma(np.maximum(shape, 1.0), scale), 0.0)


# --------------------------------------------------------------------------- pieces


def _split(
    x: FloatArray,
    names: tuple[str, ...],
    split: Mapping[str, Sequence[int]],
    beta: FloatArray,
    family: Family,
    errors: Errors,
    rng: np.random.Generator,
) -> SplitColumns:
    eta = x @ beta
    return SplitColumns(
        {party: np.ascontiguousarray(x[:, list(held)]) for party, held in split.items()},
        {party: tuple(names[j] for j in held) for party, held in split.items()},
        draw_response(family, eta, rng=rng, errors=errors),
        eta,
        dict(zip(names, beta.tolist(), strict=True)),
        family,
    )


def _symmetric_root(matrix: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(matrix)
    root: FloatArray = (vectors * np.sqrt(values)) @ vectors.T
    return root


def _rotation(size: int, rng: np.random.Generator) -> FloatArray:
    """Uniformly distributed rotation; without the signs, QR would favour some."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)), dtype=np.float64)


def _records(n_records: int) -> int:
    if n_records < 1:
        raise ParameterError.of("n_records", "at least 1", n_records)
    return n_records


def _check_family(family: str) -> None:
    if family not in get_args(Family):
        raise ParameterError.of("family", f"one of {get_args(Family)}", family)

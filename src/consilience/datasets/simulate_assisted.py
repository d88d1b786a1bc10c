"""Simulated parties that hold different columns on the same records: designs for assisted learning.

Source of the named designs: Zhang, Yang and Ding, *Additive-Effect Assisted Learning*, Journal of
the Royal Statistical Society B (2025), simulation study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.datasets import check_choice, check_least
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
        columns = {party: x[where] for party, x in self.columns.items()}
        return replace(self, columns=columns, y=self.y[where], eta=self.eta[where])

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
    check_choice("effects", effects, Effects)
    if not 0 <= rho < 1:
        raise ParameterError.of("rho", "in [0, 1)", rho)
    check_choice("family", family, Family)
    check_least(1, n_records=n_records)
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
    # S S = R with R_ij = rho^|i - j|, and S symmetric: the source's root
    values, vectors = np.linalg.eigh(rho ** np.abs(place[:, None] - place).astype(np.float64))
    root = (vectors * np.sqrt(values)) @ vectors.T
    x = rng.uniform(size=(n_records, N_COLUMNS)) @ root
    names = tuple(f"x{j + 1}" for j in range(N_COLUMNS))
    split = {"a": [j - 1 for j in held_by_a], "b": [j - 1 for j in held_by_b]}
    return _split(x, names, split, beta, family, errors, rng)


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
    check_choice("family", family, Family)
    check_choice("errors", errors, Errors)
    eta = np.asarray(eta, dtype=np.float64)
    if family == "binomial":
        # u < 1 / (1 + e^-eta), without the division
        return (rng.uniform(size=eta.shape) * (1.0 + np.exp(-eta)) < 1.0).astype(np.float64)
    if family == "poisson":
        return rng.poisson(np.exp(eta)).astype(np.float64)
    if family == "gamma":
        # mean shape * scale = e^eta
        return rng.gamma(GAMMA_SHAPE, np.exp(eta) / GAMMA_SHAPE)
    if family == "tweedie":
        return _compound_poisson(np.exp(eta), rng)
    if errors == "t3":
        # t with 3 degrees of freedom has variance 3 / (3 - 2)
        return eta + rng.standard_t(3, eta.shape) / np.sqrt(3.0)
    return eta + rng.standard_normal(eta.shape)


def _compound_poisson(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Sum of a Poisson number of gamma variables with variance dispersion * mean^power."""
    p, phi = TWEEDIE_POWER, TWEEDIE_DISPERSION
    # Jorgensen 1987: Poisson rate, gamma shape and scale of a Tweedie variable
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

"""Simulated treatment paths of patients at a few hospitals, for demonstrations.

Which path a patient is on is known to nobody. Hospitals see the paths in different proportions.
`draw_chains` draws from any Markov classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.datasets import check_least
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from pandas import DataFrame

HOSPITALS = ("aspen", "birch", "cedar")
STATES = ("pause", "diet", "tablets", "insulin")
PATHS = ("settled", "stepping up", "on and off")
"""Stays on diet or tablets; goes from diet to tablets to insulin; stops and begins again."""
OUTCOME = "admitted"
INITIAL = np.array([[0.1, 0.5, 0.4, 0.0], [0.1, 0.7, 0.2, 0.0], [0.4, 0.3, 0.3, 0.0]])
"""Chances of the first state, by path."""
TRANSITION = np.array(
    [
        [[0.6, 0.3, 0.1, 0.0], [0.0, 0.9, 0.1, 0.0], [0.0, 0.05, 0.95, 0.0], [0.0, 0.0, 0.1, 0.9]],
        [[0.5, 0.4, 0.1, 0.0], [0.0, 0.7, 0.3, 0.0], [0.0, 0.0, 0.75, 0.25], [0.0, 0.0, 0.0, 1.0]],
        [[0.5, 0.2, 0.3, 0.0], [0.4, 0.5, 0.1, 0.0], [0.4, 0.0, 0.6, 0.0], [0.5, 0.0, 0.1, 0.4]],
    ]
)
"""Chances of the next state (last axis) given the present one, by path."""
SHARES = np.array([[0.6, 0.25, 0.15], [0.45, 0.35, 0.2], [0.35, 0.3, 0.35]])
"""Shares of the paths, by hospital."""
RISK = np.array([0.08, 0.25, 0.5])
"""Chance to be admitted in the year after, by path."""


def simulate_treatments(
    seed: int = 0,
    *,
    n_patients: int = 240,
    lengths: tuple[int, int] = (8, 16),
    missing: float = 0.05,
) -> dict[str, DataFrame]:
    """Simulate the treatment of patients, month by month, at three hospitals.

    Parameters
    ----------
    seed : int
    n_patients : int
        Of each hospital.
    lengths : (int, int)
        Fewest and most months that a patient is followed.
    missing : float
        Chance that nothing was recorded in a month.

    Returns
    -------
    dict of str to pandas.DataFrame
        By hospital, one row a patient: month1, month2, ... (empty where nothing was recorded, or
        the patient is no longer followed), path, admitted (0, 1). The path is what a study would
        like to know, and no study has.

    Raises
    ------
    ParameterError
        No patient, or another number out of its range.
    """
    check_least(1, n_patients=n_patients)
    if not 1 <= lengths[0] <= lengths[1]:
        raise ParameterError.of("lengths", "a fewest and a most of at least 1", lengths)
    if not 0 <= missing < 1:
        raise ParameterError.of("missing", "at least 0 and below 1", missing)
    import pandas as pd

    rng = np.random.default_rng(seed)
    names = np.array([*STATES, None], dtype=object)
    tables = {}
    for site, shares in zip(HOSPITALS, SHARES, strict=True):
        path = rng.choice(len(PATHS), size=n_patients, p=shares)
        length = rng.integers(lengths[0], lengths[1] + 1, size=n_patients)
        codes = draw_chains(INITIAL, TRANSITION, path, length, rng)
        # the last name, None: months that were lost look like those after the end
        codes[rng.random(codes.shape) < missing] = -1
        admitted = (rng.random(n_patients) < RISK[path]).astype(int)
        months = [f"month{t}" for t in range(1, codes.shape[1] + 1)]
        table = pd.DataFrame(names[codes], columns=months)
        table["path"] = np.array(PATHS)[path]
        table[OUTCOME] = admitted
        tables[site] = table
    return tables


def draw_chains(
    initial: FloatArray,
    transition: FloatArray,
    label: NDArray[Any],
    length: NDArray[Any],
    rng: np.random.Generator,
) -> IntArray:
    """Draw one chain for each label: (n, longest), -1 after the end of a chain.

    Parameters
    ----------
    initial, transition : (K, S) and (K, S, S) arrays
    label, length : (n,) arrays of int
    rng : numpy.random.Generator
    """
    longest = int(np.max(length, initial=0))
    # one step of all chains at once, not one chain after the other
    wide = np.full((len(label), longest), -1, dtype=np.int64)
    for t in range(longest):
        rows = np.flatnonzero(length > t)
        own = label[rows]
        chances = initial[own] if t == 0 else transition[own, wide[rows, t - 1]]
        wide[rows, t] = draw_categories(chances, rng)
    return wide


def draw_categories(chances: FloatArray, rng: np.random.Generator) -> IntArray:
    """One category for each row of chances."""
    running = np.cumsum(chances, axis=1)
    # chances need not sum to 1: a mark between 0 and their sum
    mark = rng.random(len(chances))[:, None] * running[:, -1:]
    return np.minimum((running <= mark).sum(axis=1), chances.shape[1] - 1).astype(np.int64)

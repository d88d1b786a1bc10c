"""Simulated sequences of states at several sites whose subjects fall into Markov classes.

Source: Duan, Xiong, Liu, Liao and Cai, *Federated One-Shot Ensemble Clustering*
(arXiv 2409.08396), sequence data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.datasets.simulate_treatments import draw_categories, draw_chains
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from pandas import DataFrame


TWO_SITES = (2164, 3158)
LONG = (20, 40)
SHORT = (4, 16)


@dataclass(frozen=True, eq=False)
class SimulatedSequences:
    """Sequences of several sites with the truth behind them.

    Attributes
    ----------
    wide : (n, longest) array of int
        States 0 to S - 1 of all sequences, site after site; -1 where nothing was seen and after the
        end.
    site : (n,) array of int
        Site of each sequence, from 0.
    label : (n,) array of int
        True class of each sequence.
    initial, transition : (K, S) and (K, S, S) arrays
        Chances of the first state and of the next state given the present one, the same at every
        site.
    proportions : (M, K) array
        Shares of the classes at each site.
    """

    wide: IntArray
    site: IntArray
    label: IntArray
    initial: FloatArray
    transition: FloatArray
    proportions: FloatArray

    @property
    def n_sites(self) -> int:
        """M."""
        return len(self.proportions)

    @property
    def n_states(self) -> int:
        """S."""
        return self.initial.shape[1]

    def at(self, site: int) -> IntArray:
        """States of one site's sequences, (n_m, longest)."""
        return self.wide[self.site == site]

    def oracle(self) -> IntArray:
        """Most probable class of each sequence under the true parameters of its site, (n,).

        No rule that labels a sequence from its states can be expected to do better.
        """
        state = self.initial[None].repeat(len(self.wide), axis=0)
        with np.errstate(divide="ignore"):
            score = np.log(self.proportions)[self.site]
        for t in range(self.wide.shape[1]):
            if t:
                state = np.einsum("nka,kab->nkb", state, self.transition)
            rows = np.flatnonzero(self.wide[:, t] >= 0)
            seen = state[rows, :, self.wide[rows, t]]
            with np.errstate(divide="ignore"):
                score[rows] += np.log(seen)
            state[rows] = np.eye(self.n_states)[self.wide[rows, t]][:, None, :]
        return score.argmax(axis=1).astype(np.int64)

    def to_frame(self, site: int | None = None) -> DataFrame:
        """Return a wide table of states named ``a``, ``b`` and so on, columns ``t1``, ``t2``, ...

        A cell is empty where nothing was seen.
        """
        import pandas as pd

        wide = self.wide if site is None else self.at(site)
        names = np.array([*state_names(self.n_states), None], dtype=object)
        return pd.DataFrame(names[wide], columns=[f"t{t}" for t in range(1, wide.shape[1] + 1)])


def state_names(n_states: int) -> tuple[str, ...]:
    """Names of simulated states: letters, or numbered where there are more than 26."""
    if n_states <= 26:
        return tuple("abcdefghijklmnopqrstuvwxyz"[:n_states])
    width = len(str(n_states - 1))
    return tuple(f"s{code:0{width}d}" for code in range(n_states))


def simulate_sequences(
    *,
    rng: np.random.Generator,
    sizes: Sequence[int] = TWO_SITES,
    n_classes: int = 4,
    n_states: int = 5,
    lengths: tuple[int, int] = LONG,
    proportions: ArrayLike | float | None = None,
    concentration: float = 1.0,
    missing: float = 0.0,
) -> SimulatedSequences:
    """Sequences of Markov classes shared by all sites, in proportions that may differ by site.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all draws.
    sizes : sequence of int
        Sequences of each site; the default is that of the source's two sites.
    n_classes, n_states : int
        K and S.
    lengths : (int, int)
        Shortest and longest sequence, uniform between them; `LONG` is 20 to 40, `SHORT` 4 to 16.
    proportions : (M, K) array, (K,) array or float, optional
        Shares of the classes by site, or the concentration of a Dirichlet distribution that each
        site's are drawn from; equal by default.
    concentration : float
        Of the Dirichlet distributions that initial and transition chances are drawn from; small
        values make classes that differ more.
    missing : float
        Chance that a state was not seen.

    Returns
    -------
    SimulatedSequences

    Raises
    ------
    ParameterError
        If a number is out of its range.

    Notes
    -----
    Source: arXiv 2409.08396, sequence data, for the sizes, lengths, K and S. Departure: the
    parameters behind the source's sequences are not printed; here they are Dirichlet draws.
    """
    _check(sizes, n_classes, n_states, lengths, concentration, missing)
    shares = _shares(proportions, len(sizes), n_classes, rng)
    initial = rng.dirichlet(np.full(n_states, float(concentration)), n_classes)
    transition = rng.dirichlet(np.full(n_states, float(concentration)), (n_classes, n_states))
    site = np.repeat(np.arange(len(sizes)), np.asarray(sizes, dtype=np.int64))
    label = draw_categories(shares[site], rng)
    length = rng.integers(lengths[0], lengths[1] + 1, size=len(site))
    wide = draw_chains(initial, transition, label, length, rng)
    if missing:
        wide[rng.random(wide.shape) < missing] = -1
    return SimulatedSequences(
        wide,
        site.astype(np.int64),
        label,
        initial,
        transition,
        shares,
    )


def _shares(
    proportions: ArrayLike | float | None, m: int, k: int, rng: np.random.Generator
) -> FloatArray:
    if proportions is None:
        return np.full((m, k), 1.0 / k)
    given = np.asarray(proportions, dtype=np.float64)
    allowed = "a positive number, or shares of the classes that sum to 1"
    if given.ndim == 0:
        if not (np.isfinite(given) and given > 0):
            raise ParameterError.of("proportions", allowed, proportions)
        return np.asarray(rng.dirichlet(np.full(k, float(given)), m))
    if given.shape not in ((k,), (m, k)) or not (given >= 0).all():
        raise ParameterError.of("proportions", allowed, proportions)
    if (abs(given.sum(axis=-1) - 1) > 1e-9).any():
        raise ParameterError.of("proportions", allowed, proportions)
    return np.broadcast_to(given, (m, k)).copy()


def _check(
    sizes: Sequence[int],
    n_classes: int,
    n_states: int,
    lengths: tuple[int, int],
    concentration: float,
    missing: float,
) -> None:
    if len(sizes) == 0 or any(size < 0 for size in sizes):
        raise ParameterError.of("sizes", "one number of sequences for each site", sizes)
    for name, value in (("n_classes", n_classes), ("n_states", n_states)):
        if value < 1:
            raise ParameterError.of(name, "an integer of at least 1", value)
    if len(lengths) != 2 or not 0 <= lengths[0] <= lengths[1]:
        raise ParameterError.of("lengths", "a shortest and a longest length", lengths)
    if not concentration > 0:
        raise ParameterError.of("concentration", "positive", concentration)
    if not 0 <= missing < 1:
        raise ParameterError.of("missing", "at least 0 and below 1", missing)

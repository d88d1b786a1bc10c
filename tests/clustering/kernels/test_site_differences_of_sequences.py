"""Coverage of intervals of site differences where steps come in sequences.

Two sites, three classes, five states; at the second site every class has been moved part of the way
towards other chances. Intervals take steps to be independent and classes to be given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.clustering.kernels.cell_suppression import OWN, WITHHELD
from consilience.clustering.kernels.site_differences import SiteTables, site_differences
from consilience.datasets.simulate_treatments import draw_chains

K, S = 3, 5
ROWS = np.repeat(np.arange(S + 1), S)
PARTS = {"initial": np.array([0]), "transition": np.arange(1, S + 1)}


def chains(rng: np.random.Generator, moved: float) -> tuple[np.ndarray, np.ndarray]:
    """Chances of two sites: initial (2, K, S) and steps (2, K, S, S)."""
    initial = rng.dirichlet(np.ones(S), K)
    steps = 0.5 * np.eye(S) + 0.5 * rng.dirichlet(np.ones(S), (K, S))
    other = rng.dirichlet(np.ones(S), (K, S))
    return np.stack([initial] * 2), np.stack([steps, (1 - moved) * steps + moved * other])


def drawn(
    site: int, n: int, chances: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """States and classes of sequences of 10 to 20 time points."""
    label = rng.integers(K, size=n)
    length = rng.integers(10, 21, size=n)
    return draw_chains(chances[0][site], chances[1][site], label, length, rng), label


def counted(codes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chances (K, C) and numbers (K, rows) of the sequences of each class."""
    counts = np.zeros((K, S + 1, S))
    np.add.at(counts, (label, 0, codes[:, 0]), 1)
    for before, after in zip(codes.T[:-1], codes.T[1:], strict=True):
        seen = after >= 0
        np.add.at(counts, (label[seen], before[seen] + 1, after[seen]), 1)
    numbers = counts.sum(axis=2)
    return (counts / np.maximum(numbers, 1)[..., None]).reshape(K, -1), numbers


def interval(sites: list[tuple[np.ndarray, np.ndarray]], seed: int) -> dict[str, Any]:
    chances, numbers = (np.stack(each) for each in zip(*sites, strict=True))
    known = SiteTables(chances, np.full(chances.shape, OWN), numbers)
    nothing = SiteTables(
        np.full(chances.shape, np.nan), np.full(chances.shape, WITHHELD), np.zeros(numbers.shape)
    )
    return site_differences(known, nothing, ROWS, PARTS, rng=np.random.default_rng(seed))


def apart(chances: np.ndarray) -> float:
    """Root mean square over classes of the distance of the steps of two sites, (2, K, S, S)."""
    return float(np.sqrt(((chances[0] - chances[1]) ** 2).sum(axis=(1, 2)).mean()))


def within(told: dict[str, Any], name: str, truth: float) -> tuple[bool, bool]:
    """Whether the truth is below the interval of steps, and above it."""
    return truth < told[f"{name}_low"][1] - 1e-12, truth > told[f"{name}_high"][1] + 1e-12


def classes_given(moved: float, n: int, replicates: int) -> np.ndarray:
    """Misses below and above, (replicates, 2)."""
    rng = np.random.default_rng(17)
    misses = []
    for seed in range(replicates):
        chances = chains(rng, moved)
        sites = [counted(*drawn(site, n, chances, rng)) for site in range(2)]
        misses.append(within(interval(sites, seed), "ensemble", apart(chances[1])))
    return np.array(misses)


@pytest.mark.parametrize("moved", [0.0, 0.15, 0.6])
@pytest.mark.parametrize("n", [60, 600])
def test_steps_within_sequences_leave_the_coverage(moved: float, n: int) -> None:
    """Given the classes, what leaves a state are draws one after the other: as if independent.

    400 replicates: Monte Carlo error .011 at .95, two of them are allowed.
    """
    covered = 1 - classes_given(moved, n, 400).any(axis=1).mean()
    assert covered >= 0.95 - 2 * np.sqrt(0.95 * 0.05 / 400)

"""Differences of tables of chances between sites, and their intervals."""

from __future__ import annotations

import numpy as np

from consilience.numerics.site_differences import SiteTables, pooled_chances, site_differences
from consilience.numerics.told_tables import OWN, TOGETHER

ROWS = np.zeros(4, dtype=np.int64)
PARTS = {"initial": np.array([0])}


def tables(chances: np.ndarray, n: float, kinds: np.ndarray | None = None) -> SiteTables:
    """Tables of one row, of two sites and one class."""
    found = np.full(chances.shape, OWN) if kinds is None else kinds
    return SiteTables(chances, found, np.full((*chances.shape[:2], 1), n))


def compared(ensemble: SiteTables, seed: int = 0) -> dict[str, float]:
    told = site_differences(
        ensemble, ensemble, ROWS, PARTS, rng=np.random.default_rng(seed), n_bootstrap=200
    )
    return {name: float(told[f"ensemble_{name}"][0]) for name in ("mean", "low", "high")}


def test_what_rounding_leaves_of_a_row_is_no_difference() -> None:
    """Cells told together differ by the remainder of the row, which is the error of rounding."""
    kinds = np.array([[[TOGETHER] * 4], [[TOGETHER] * 4]])
    chances = np.array([[[0.2, 0.2, 0.2, 0.2]], [[0.3, 0.3, 0.3, 0.3]]])
    told = compared(tables(chances, 10, kinds))
    assert max(told.values()) < 1e-12
    assert np.allclose(pooled_chances(tables(chances, 10, kinds), ROWS), 0.25)


def test_squares_are_too_large_by_the_errors_and_intervals_lie_below() -> None:
    """Tables of 100, told to .02 as at sites: .0800 between the truths, errors add .0140.

    The mean of squares over 200 draws has a standard error of .0033; four of them are allowed.
    """
    rng = np.random.default_rng(3)
    truth = np.array([[0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.4, 0.1]])
    squares, middles = [], []
    for seed in range(200):
        drawn = np.stack([rng.multinomial(100, p) for p in truth])[:, None] / 100
        told = compared(tables(np.round(drawn / 0.02) * 0.02, 100), seed)
        squares.append(told["mean"] ** 2)
        middles.append((told["low"] ** 2 + told["high"] ** 2) / 2)
    assert abs(np.mean(squares) - 0.094) < 0.0132
    assert np.mean(middles) < np.mean(squares)

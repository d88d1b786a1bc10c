"""Differences of tables of chances between sites, and their intervals."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from consilience.clustering.kernels import site_differences as room
from consilience.clustering.kernels.cell_suppression import OWN, TOGETHER, WITHHELD
from consilience.clustering.kernels.site_differences import (
    SiteTables,
    pooled_probabilities,
    site_differences,
)
from tests.reference.site_differences import (
    error_of,
    functions_of,
    limits_by_trial,
    squared_difference,
)
from tests.rotation import by_turns

ROWS = np.zeros(4, dtype=np.int64)
PARTS = {"initial": np.array([0])}


def tables(chances: np.ndarray, n: float, kinds: np.ndarray | None = None) -> SiteTables:
    """Tables of one row, of two sites and one class."""
    found = np.full(chances.shape, OWN) if kinds is None else kinds
    return SiteTables(chances, found, np.full((*chances.shape[:2], 1), n))


def nothing_like(known: SiteTables) -> SiteTables:
    return SiteTables(
        np.full(known.chances.shape, np.nan),
        np.full(known.kinds.shape, WITHHELD),
        np.zeros(known.numbers.shape),
    )


def compared(ensemble: SiteTables, seed: int = 0) -> dict[str, float]:
    told = site_differences(
        ensemble, ensemble, ROWS, PARTS, rng=np.random.default_rng(seed), n_bootstrap=200
    )
    return {
        name: float(told[f"ensemble_{name}"][0]) for name in ("mean", "estimate", "low", "high")
    }


def test_what_rounding_leaves_of_a_row_is_no_difference() -> None:
    """Cells told together differ by the remainder of the row, which is the error of rounding."""
    kinds = np.array([[[TOGETHER] * 4], [[TOGETHER] * 4]])
    chances = np.array([[[0.2, 0.2, 0.2, 0.2]], [[0.3, 0.3, 0.3, 0.3]]])
    told = compared(tables(chances, 10, kinds))
    assert max(told.values()) < 1e-12
    assert np.allclose(pooled_probabilities(tables(chances, 10, kinds), ROWS), 0.25)


def test_squares_are_too_large_by_the_errors_and_the_estimate_is_not() -> None:
    """Tables of 100, told to .02 as at sites: .0800 between the truths, errors add .0140.

    The mean of squares over 200 draws has a standard error of .0033; four of them are allowed.
    """
    rng = np.random.default_rng(3)
    truth = np.array([[0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.4, 0.1]])
    squares, estimates = [], []
    for seed in range(200):
        drawn = np.stack([rng.multinomial(100, p) for p in truth])[:, None] / 100
        told = compared(tables(np.round(drawn / 0.02) * 0.02, 100), seed)
        squares.append(told["mean"] ** 2)
        estimates.append(told["estimate"] ** 2)
    assert abs(np.mean(squares) - 0.094) < 0.0132
    assert abs(np.mean(estimates) - 0.080) < 0.0132


def test_equal_tables_have_an_interval_from_zero_to_what_errors_may_hide() -> None:
    same = np.array([[[0.4, 0.3, 0.2, 0.1]], [[0.4, 0.3, 0.2, 0.1]]])
    told = compared(tables(same, 100))
    assert told["mean"] == told["estimate"] == told["low"] == 0
    assert 0.03 < told["high"] < 0.4  # equal sites of 100 differ by .118 on average


# ----------------------------------------------------------------------- the textbook's form


def several(seed: int) -> tuple[SiteTables, np.ndarray, dict[str, np.ndarray]]:
    """Three sites, two classes, rows of 4, 3 and 3 cells; some cells are told together."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(3), (4, 3, 3))
    numbers = rng.integers(20, 200, size=(3, 2, 3)).astype(float)
    chances = np.concatenate(
        [
            np.stack(
                [
                    [rng.multinomial(int(n), rng.dirichlet(np.ones(size))) / n for n in per_class]
                    for per_class in numbers[:, :, row]
                ]
            )
            for row, size in enumerate((4, 3, 3))
        ],
        axis=2,
    )
    kinds = np.full(chances.shape, OWN)
    kinds[0, 0, 1:3] = kinds[2, 1, 4:6] = TOGETHER
    kinds[1, 1, 7:] = WITHHELD
    chances[1, 1, 7:] = np.nan
    parts = {"first": np.array([0]), "others": np.array([1, 2])}
    return SiteTables(chances, kinds, numbers), rows, parts


def frame_of(known: SiteTables, rows: np.ndarray, parts: dict[str, np.ndarray]) -> room._Frame:
    pairs = list(combinations(range(len(known.chances)), 2))
    views = [room._view(known, nothing_like(known), rows, pair) for pair in pairs]
    inside = room._inside(rows)
    in_parts = np.stack([np.isin(rows, each) for each in parts.values()], axis=1).astype(float)
    return room._Frame(rows, inside, in_parts, np.minimum(inside.T @ in_parts, 1), pairs, views)


@pytest.mark.parametrize("seed", range(3))
def test_squares_and_their_errors_equal_the_textbook(seed: int) -> None:
    known, rows, parts = several(seed)
    frame = frame_of(known, rows, parts)
    squares = frame.squares(known.chances[None])[0]
    errors = frame.errors(known.chances[None], known.numbers)[0]
    for i, mine in enumerate(parts.values()):
        for j, (s, t) in enumerate(frame.pairs):
            for k in range(2):
                gap = error = 0.0
                for row in mine:
                    cells = rows == row
                    kinds = known.kinds[[s, t], k][:, cells]
                    if (kinds == WITHHELD).any():
                        continue
                    lines = functions_of((kinds == OWN).all(axis=0), (kinds != OWN).any(axis=0))
                    p, q = known.chances[s, k, cells], known.chances[t, k, cells]
                    gap += squared_difference(p, q, lines)
                    for site, shares in ((s, p), (t, q)):
                        error += error_of(shares, known.numbers[site, k, row], lines)
                assert squares[i, j, k] == pytest.approx(gap, abs=1e-12)
                assert errors[i, j, k] == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize(("n", "far"), [(40, 0.0), (40, 0.3), (400, 0.3)])
def test_limits_equal_those_of_trial(n: int, far: float) -> None:
    """One scale after the other in steps of .02, with the same draws."""
    rng = np.random.default_rng(n)
    base = np.array([0.4, 0.3, 0.2, 0.1])
    truth = np.stack([base, (1 - far) * base + far * base[::-1]])
    known = tables(np.stack([rng.multinomial(n, p) for p in truth])[:, None] / n, n)
    frame = frame_of(known, ROWS, PARTS)
    used = np.ones((1, 1, 1), dtype=bool)
    draws = room._drawn(known, ROWS, np.random.default_rng(1), 81)
    scaled = room._Scaled.of(known, frame, used, np.random.default_rng(1), 81)
    both = np.eye(4)

    def value_of(chances: np.ndarray) -> float:
        return squared_difference(chances[0, 0], chances[1, 0], both)

    errors = np.array([error_of(d[0, 0], n, both) + error_of(d[1, 0], n, both) for d in draws])
    estimate = value_of(known.chances) - sum(error_of(p[0], n, both) for p in known.chances)
    steps = np.arange(0.0, 3.0, 0.02)
    low, high = limits_by_trial(value_of, known.chances, draws, errors, estimate, steps)
    found = scaled.limits(np.array([estimate]))
    scales = [float(np.sqrt(limit[0] / scaled.apart[0])) for limit in found]
    # Of 81 draws the quantiles are the third from either end, as in the trial.
    assert np.allclose(scales, (low, high), atol=0.021)
    assert low < high < 2.9


def test_the_most_likely_way_apart_reaches_its_target() -> None:
    known, rows, parts = several(1)
    frame = frame_of(known, rows, parts)
    used = ~np.isnan(frame.squares(known.chances[None])[0])
    apart = room._mean(frame.squares(known.chances[None]), used)[0]
    moved = room._stretched(known, frame, used, 1.3 * apart)
    reached = room._mean(frame.squares(moved[None]), used)[0]
    assert (reached >= 1.3 * apart).all() and (reached < 2 * apart).all()
    assert np.allclose(np.nan_to_num(moved @ frame.in_rows)[0], 1)
    drawn_together = room._shrunk(known, frame, apart, 0.5 * apart)
    assert np.allclose(room._mean(frame.squares(drawn_together[None]), used)[0], 0.5 * apart)


def test_ratio_of_exact_figures_and_of_figures_that_may_be_zero() -> None:
    def limits(over: tuple[float, ...], under: tuple[float, ...]) -> list[float]:
        found = room._ratio_limits(
            tuple(np.array([x]) for x in over), tuple(np.array([x]) for x in under)
        )
        return [float(x[0]) for x in found]

    assert np.allclose(limits((2, 2, 2), (4, 4, 4)), [0.5, 0.5])
    # Small errors: the delta method, .5 * sqrt(.02^2 + .01^2) with relative half widths.
    low, high = limits((2, 1.96, 2.04), (4, 3.96, 4.04))
    assert (high - low) / 2 == pytest.approx(0.5 * np.hypot(0.02, 0.01), rel=0.02)
    assert limits((2, 1, 3), (4, 0, 8))[1] == np.inf and limits((0, 0, 3), (4, 2, 8))[0] == 0
    low, high = limits((2, 1, 3), (-1, 0, 0.5))
    assert 0 < low < high == np.inf
    assert np.isnan(limits((np.nan,) * 3, (4, 2, 8))).all()


# ----------------------------------------------------------------------- coverage


def truths(
    rng: np.random.Generator, shape: tuple[int, int, int], target: float
) -> tuple[np.ndarray, float]:
    """Chances (M, K, R, 5) at a mean square of `target`, or as far apart as can be.

    Each site is on the way from common chances to its own.
    """
    m, k, r = shape
    base = rng.dirichlet(np.ones(5), size=(k, r))
    own = rng.dirichlet(np.ones(5), size=shape)
    gap = own - own.mean(axis=0)
    square = (gap**2).sum() * 2 / ((m - 1) * k)
    part = min(1.0, float(np.sqrt(target / square)))
    return base + part * (own - base), part**2 * square


def coverage(
    shape: tuple[int, int, int], n: int, times: float, replicates: int, seed: int = 5
) -> tuple[float, float]:
    """Share of intervals that miss the truth below, and above.

    True mean squares are `times` those that equal sites would give in the middle.
    """
    m, k, r = shape
    rng = np.random.default_rng(seed)
    rows, parts = np.repeat(np.arange(r), 5), {"rows": np.arange(r)}
    missed = np.zeros(2)
    for _ in range(replicates):
        truth, square = truths(rng, shape, times * 2 * r * 0.64 / n)
        seen = (rng.multinomial(n, truth) / n).reshape(m, k, -1)
        known = SiteTables(seen, np.full(seen.shape, OWN), np.full(shape, float(n)))
        told = site_differences(known, nothing_like(known), rows, parts, rng=rng)
        low, high = (float(told[f"ensemble_{end}"][0]) ** 2 for end in ("low", "high"))
        missed += square < low - 1e-12, square > high + 1e-12
    return tuple(missed / replicates)


INITIAL, STEPS, LEVELS = 1, 5, 3
"""Rows of five cells: first states, steps from five states, three columns of five levels."""
NONE, SMALL, LARGE = 0.0, 1.0, 6.0


def enough(replicates: int) -> float:
    """95% less two Monte Carlo errors."""
    return float(0.95 - 2 * np.sqrt(0.95 * 0.05 / replicates))


@pytest.mark.parametrize(("n", "times"), [(30, NONE), (30, LARGE), (1000, LARGE)])
def test_intervals_hold_the_truth(n: int, times: float) -> None:
    assert 1 - sum(coverage((2, 1, INITIAL), n, times, 200)) >= enough(200)


SHAPES = [(2, 1, INITIAL), (2, 3, STEPS), (4, 1, STEPS), (4, 3, INITIAL), (2, 3, LEVELS)]


@by_turns(SHAPES, [30, 1000], [NONE, SMALL, LARGE], names="shape, n, times")
def test_intervals_hold_the_truth_everywhere(
    shape: tuple[int, int, int], n: int, times: float
) -> None:
    """A basic bootstrap on squares, which was here before, covers .89 to .91 at (2, 1, INITIAL)."""
    assert 1 - sum(coverage(shape, n, times, 200)) >= enough(200)

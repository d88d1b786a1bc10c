"""Starts, order and criteria of mixtures, on kernels that are known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from consilience.clustering.kernels.mixtures import (
    EMPTY,
    PSEUDO_COUNT_RULE,
    START_ROWS,
    EMStep,
    best_of_starts,
    class_order,
    climb,
    draw_members,
    information,
    log_shares,
    start_remarks,
)
from consilience.exceptions import ParameterError
from consilience.parameters import check


def halving(x: float) -> EMStep[float]:
    """Climbs to a peak at 0, halving the distance to it."""
    return EMStep(-10.0 - abs(x), -9.0 - abs(x), x / 2)


# ------------------------------------------------------------------ climbing


def test_a_climb_tells_the_objective_of_what_it_gives() -> None:
    done = climb(halving, 8.0, max_iter=4, tol=0.0)
    assert (done.parameters, done.n_iter, done.converged) == (0.5, 4, False)
    assert (done.objective, done.log_likelihood) == (-10.5, -9.5)
    np.testing.assert_array_equal(done.trace, [-18, -14, -12, -11, -10.5])


def test_a_climb_ends_at_a_relative_change() -> None:
    done = climb(halving, 8.0, max_iter=100, tol=1e-3)
    assert done.converged
    changes = np.abs(np.diff(done.trace)) / np.abs(done.trace[1:])
    assert changes[-1] <= 1e-3
    assert (changes[:-1] > 1e-3).all()
    assert climb(halving, 8.0, max_iter=0, tol=1.0).n_iter == 0
    assert climb(halving, 0.0, max_iter=5, tol=0.0).converged


@dataclass(frozen=True)
class Peaks:
    """Parameters of a mixture whose first class stands at `place`."""

    place: float
    proportions: np.ndarray

    @property
    def class_parameters(self) -> np.ndarray:
        return np.arange(len(self.proportions), dtype=float)[:, None]

    def take(self, classes: Any) -> Peaks:
        shares = self.proportions[classes]
        return Peaks(self.place, shares / shares.sum())


def two_peaks(given: Peaks) -> EMStep[Peaks]:
    """From above 1 the climb ends at 2 with the objective -5, else at 0 with -10."""
    peak, height = (2.0, -5.0) if given.place > 1 else (0.0, -10.0)
    objective = height - abs(given.place - peak)
    return EMStep(objective, objective + 1.0, replace(given, place=(given.place + peak) / 2))


SETTINGS: dict[str, Any] = {
    "n_init": 7,
    "n_init_iter": 1,
    "n_final": 3,
    "tol": 1e-9,
    "max_iter": 100,
}


def starts(number: int) -> Peaks:
    places = (0.4, 0.3, 2.5, 0.2, 0.1, -0.5, -0.6)
    return Peaks(places[number], np.array([0.25, 0.75]))


def test_the_best_peak_wins_and_the_spread_is_told() -> None:
    found = best_of_starts(two_peaks, starts, **SETTINGS)
    best = found.best
    assert best.parameters.place == pytest.approx(2.0, abs=1e-6)
    np.testing.assert_array_equal(best.parameters.proportions, [0.75, 0.25])
    np.testing.assert_allclose(found.start_spread, [-4.0, -9.0, -9.0], atol=1e-6)
    assert best.n_iter == len(best.trace) - 1
    assert best.trace[0] == -5.5
    assert (np.diff(best.trace) >= 0).all()
    assert best.converged
    assert found.n_dropped == 0
    assert not best_of_starts(two_peaks, starts, **SETTINGS | {"max_iter": 3}).best.converged
    assert best_of_starts(two_peaks, starts, **SETTINGS | {"max_iter": 3}).best.n_iter == 3


def test_empty_classes_are_dropped() -> None:
    found = best_of_starts(
        two_peaks, lambda number: Peaks(2.5, np.array([0.3, EMPTY / 2, 0.7])), **SETTINGS
    )
    np.testing.assert_allclose(found.best.parameters.proportions, [0.7, 0.3])
    assert found.n_dropped == 1


# ------------------------------------------------------------------ starts


def test_members_follow_the_weights() -> None:
    weights = np.array([0.0, 3.0, 1.0, 0.0])
    members = np.concatenate(
        [draw_members(weights, 2, np.random.default_rng(s)).ravel() for s in range(4000)]
    )
    assert set(members.tolist()) == {1, 2}
    # 8,000 draws: standard error .005.
    assert (members == 1).mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(("n", "k", "size"), [(1000, 3, START_ROWS), (30, 3, 10), (2, 5, 1)])
def test_classes_start_from_fewer_rows_of_a_small_table(n: int, k: int, size: int) -> None:
    members = draw_members(np.ones(n), k, np.random.default_rng(0))
    assert members.shape == (k, size)
    assert members.max() < n


# ------------------------------------------------------------------ order, shares, criteria


def test_order_is_by_share_then_by_parameters() -> None:
    shares = [0.2, 0.4, 0.2, 0.2]
    parameters = [[1.0, 5.0], [9.0, 9.0], [0.5, 7.0], [1.0, 4.0]]
    np.testing.assert_array_equal(class_order(shares, parameters), [1, 2, 3, 0])


def test_shares_in_log_space() -> None:
    joint = np.array([[-1000.0, -1001.0], [-math.inf, -2.0], [-math.inf, -math.inf]])
    shares, density = log_shares(joint, [0.25, 0.75])
    np.testing.assert_allclose(np.exp(shares[0]), np.array([math.e, 1]) / (math.e + 1))
    np.testing.assert_allclose(np.exp(shares[1]), [0.0, 1.0])
    np.testing.assert_allclose(np.exp(shares[2]), [0.25, 0.75])
    np.testing.assert_allclose(density, [-1000 + math.log1p(math.exp(-1)), -2.0, -math.inf])


def test_information_criteria() -> None:
    assert information(-100.0, 7, math.exp(2)) == (pytest.approx(214.0), pytest.approx(214.0))
    assert information(-100.0, 7, 1000.0)[1] == pytest.approx(200 + 7 * math.log(1000))


def test_remarks() -> None:
    assert start_remarks([-100.0, -100.04]) == ()
    assert start_remarks([-1e5, -1e5 - 0.9]) == ()
    assert len(start_remarks([-100.0, -100.06])) == 1
    assert "2 of the 3 best starts" in start_remarks([-100.0, -103.0, -100.0])[0]


@pytest.mark.parametrize("wrong", [-0.1, math.inf, math.nan, True, "1", None])
def test_pseudo_counts_are_finite_numbers(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="pseudo_count"):
        check(PSEUDO_COUNT_RULE, {"pseudo_count": wrong})

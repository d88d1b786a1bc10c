"""Replies of ensemble clustering that no site could have made are refused by the site's name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import QuorumError
from consilience.methods.ensemble_clustering import comparing, outcomes
from consilience.methods.ensemble_clustering.pooling import check_profiles

ROWS = np.array([0, 0, 1, 1])  # two columns of two levels
GOOD: dict[str, Any] = {
    "chances": np.array([[0.5, 0.5, 0.2, 0.8], [0.1, 0.9, np.nan, np.nan]]),
    "kinds": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "numbers": np.array([[40.0, 40.0], [30.0, 0.0]]),
}


def said(**changes: Any) -> Any:
    """A reply with some fields changed."""
    fields = {f"{prefix}{name}": value for prefix in ("", "local_") for name, value in GOOD.items()}
    return SimpleNamespace(
        **{name: SimpleNamespace(value=value) for name, value in (fields | changes).items()}
    )


def put(name: str, place: tuple[int, int], value: float) -> np.ndarray:
    changed = GOOD[name.removeprefix("local_")].astype(float)
    changed[place] = value
    return changed


def test_what_a_site_can_say_is_taken() -> None:
    found = comparing._checked("a", said(), 2, ROWS)
    np.testing.assert_array_equal(found["local_chances"], GOOD["chances"])


@pytest.mark.parametrize("prefix", ["", "local_"])
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("numbers", (0, 0), np.nan),
        ("numbers", (0, 0), np.inf),
        ("numbers", (0, 0), 1e19),
        ("numbers", (0, 0), -1.0),
        ("chances", (0, 0), 1.1),
        ("chances", (0, 0), np.nan),  # its kind says that it is told
        ("kinds", (0, 0), 5.0),
    ],
)
def test_chances_that_cannot_be(
    prefix: str, name: str, place: tuple[int, int], value: float
) -> None:
    reply = said(**{prefix + name: put(name, place, value)})
    with pytest.raises(QuorumError, match="site a sent chances that do not fit the classes"):
        comparing._checked("a", reply, 2, ROWS)


def profile(means: Any, targets: Any) -> Any:
    return SimpleNamespace(
        means=SimpleNamespace(value=means), target_means=SimpleNamespace(value=targets)
    )


@pytest.mark.parametrize(
    ("means", "targets"),
    [
        (np.zeros((2, 2)), np.zeros(3)),
        (np.zeros((3, 1)), np.zeros(3)),
        (np.zeros((3, 2)), np.zeros(2)),
        (np.full((3, 2), np.inf), np.zeros(3)),
        (np.zeros((3, 2)), np.full(3, -np.inf)),
    ],
)
def test_means_that_cannot_be(means: Any, targets: Any) -> None:
    check_profiles({"a": profile(np.full((3, 2), np.nan), np.zeros(3))}, 3, 2)
    with pytest.raises(QuorumError, match="site b sent means that do not fit the classes"):
        check_profiles({"b": profile(means, targets)}, 3, 2)


@pytest.mark.parametrize(
    "shares", [np.ones((2, 2)), np.zeros((2, 2)), np.full((3, 2), 0.5), np.full((2, 2), 1.5)]
)
def test_outcomes_that_cannot_be(shares: np.ndarray) -> None:
    def reply(values: np.ndarray) -> Any:
        kinds = np.ones(values.shape, dtype=np.int64)
        return SimpleNamespace(
            target_shares=SimpleNamespace(value=values), target_kinds=SimpleNamespace(value=kinds)
        )

    outcomes._checked("a", reply(np.array([[0.3, 0.7], [0.5, 0.5]])), 2, 2)
    with pytest.raises(QuorumError, match="site a sent outcomes that do not fit the levels"):
        outcomes._checked("a", reply(shares), 2, 2)

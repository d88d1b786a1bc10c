"""Replies of ensemble clustering that no site could have made are not accepted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.clustering.protocol.messages import (
    AGREEMENTS,
    Compared,
    CompareRequest,
    Map,
    Profile,
    Settings,
)
from consilience.clustering.protocol.one_cloud import COMPARISONS
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.wire.replies import refusal

SETTINGS = Settings("latent-class", "diag", 2, 2, 1, 1, None, 0)
COMPARE = CompareRequest(settings=SETTINGS, local=True)
KNOWN = {"p": 4, "F": 2, "K": 2}  # two columns of two levels
GOOD: dict[str, Any] = {
    "chances": np.array([[0.5, 0.5, 0.2, 0.8], [0.1, 0.9, np.nan, np.nan]]),
    "kinds": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "numbers": np.array([[40.0, 40.0], [30.0, 0.0]]),
}
SAID = {f"{prefix}{name}": value for prefix in ("", "local_") for name, value in GOOD.items()}


def of_classes(**changes: Any) -> str:
    return refusal(Compared, {**SAID, "start_spread": np.zeros(1), **changes}, COMPARE, KNOWN)


def put(name: str, place: tuple[int, int], value: float) -> np.ndarray:
    changed = np.array(GOOD[name])
    changed[place] = value
    return changed


def test_what_a_site_can_say_is_taken() -> None:
    assert of_classes() == ""
    nothing = {f"local_{name}": GOOD[name][:0] for name in GOOD}
    assert of_classes(**nothing) == ""


@pytest.mark.parametrize("prefix", ["", "local_"])
@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("numbers", (0, 0), np.nan, "not finite"),
        ("numbers", (0, 0), np.inf, "not finite"),
        ("numbers", (0, 0), 1e19, "between 0 and"),
        ("numbers", (0, 0), -1.0, "between 0 and"),
        ("chances", (0, 0), 1.1, "between 0 and 1"),
        ("chances", (0, 0), np.nan, "do not fit"),  # its kind says that it is told
        ("kinds", (0, 0), 5, "between 0 and 4"),
    ],
)
def test_chances_that_cannot_be(
    prefix: str, name: str, place: tuple[int, int], value: float, words: str
) -> None:
    assert words in of_classes(**{prefix + name: put(name, place, value)})


@pytest.mark.parametrize(
    "changes",
    [
        {"chances": GOOD["chances"][:, :3]},
        {name: value[:, :2] for name, value in GOOD.items()},
        {"numbers": np.ones((2, 3))},
        {"kinds": GOOD["kinds"][:0]},
        {name: np.tile(value, (2, 1)) for name, value in GOOD.items()},
    ],
)
def test_chances_of_other_tables(changes: dict[str, Any]) -> None:
    assert of_classes(**changes)


MAP = Map(
    features=relayed((np.eye(3),), Disclosure.MODEL),
    centres=relayed((np.eye(3),), Disclosure.MODEL),
    fewer=relayed((), Disclosure.MODEL),
)


def test_a_map_has_one_class_fewer_for_all_halves_or_none() -> None:
    def fits(halves: list[int], fewer: list[int]) -> bool:
        return dataclasses.replace(
            MAP,
            centres=relayed(tuple(np.eye(3)[:k] for k in (3, *halves)), Disclosure.MODEL),
            fewer=relayed(tuple(np.eye(3)[:k] for k in fewer), Disclosure.MODEL),
        ).same_halves()

    assert fits([3, 2], [2, 1]) and fits([3, 3], []) and fits([1, 3], [1, 2])
    for fewer in ([2], [3, 2], [2, 2, 2], [1, 2]):
        assert not fits([3, 3], fewer)


def profile(
    means: Any = (3, 2), targets: Any = 3, shares: np.ndarray | None = None, **more: Any
) -> str:
    table = np.zeros((0, 2)) if shares is None else shares
    fields = {
        "means": np.zeros(means) if isinstance(means, tuple) else means,
        "target_means": np.zeros(targets) if isinstance(targets, int) else targets,
        "target_shares": table,
        "target_kinds": np.ones(table.shape, dtype=np.int64),
        **dict.fromkeys(AGREEMENTS, ()),
        **dict.fromkeys((*COMPARISONS, "between", "cloud_between"), float("nan")),
        **more,
    }
    return refusal(Profile, fields, MAP, {"p": 2, "K": 2})


@pytest.mark.parametrize(
    ("means", "targets"),
    [
        ((2, 2), 3),
        ((3, 1), 3),
        ((3, 2), 2),
        (np.full((3, 2), np.inf), 3),
        ((3, 2), np.full(3, -np.inf)),
    ],
)
def test_means_that_cannot_be(means: Any, targets: Any) -> None:
    assert profile(np.full((3, 2), np.nan)) == ""
    assert profile(means, targets).startswith("ensemble-clustering/profile.")


@pytest.mark.parametrize(
    "shares", [np.ones((3, 2)), np.zeros((3, 2)), np.full((2, 2), 0.5), np.full((3, 2), 1.5)]
)
def test_outcomes_that_cannot_be(shares: np.ndarray) -> None:
    assert profile(shares=np.array([[0.3, 0.7], [0.5, 0.5], [np.nan, np.nan]])) == ""
    assert profile(shares=shares)


@pytest.mark.parametrize("said", [(0.5,), (1.5,), ("x",), 0.5])
def test_agreements_of_pairs_that_there_are_not(said: Any) -> None:
    assert profile(agreement=said)
    of_pairs = dataclasses.replace(MAP, centres=relayed((np.eye(3),) * 3, Disclosure.MODEL))
    assert of_pairs.lengths() == {"k": 3, "pairs": 1}

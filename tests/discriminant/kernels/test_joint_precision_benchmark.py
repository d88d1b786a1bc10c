from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).parents[3] / "benchmarks" / "results" / "joint_precision.json"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(STORED.read_text())
    return result


def test_ten_times_as_fast_as_gglasso_where_screening_splits(stored: dict[str, Any]) -> None:
    case = stored["cases"]["chain, p = 200, .6 of the largest penalty"]
    assert case["ratio_total"] >= 10


def test_never_slower_than_gglasso_along_a_path_of_100_features_or_more(
    stored: dict[str, Any],
) -> None:
    paths = {name: case for name, case in stored["cases"].items() if "path" in name}
    large = [case for name, case in paths.items() if not name.startswith("dense, p = 10")]
    assert len(large) >= 4
    assert min(case["ratio_smallest"] for case in large) >= 1
    assert len(paths) > len(large) and min(case["ratio_total"] for case in paths.values()) >= 1
    assert max(case["our_largest_gap"] for case in paths.values()) <= stored["gap"]
    assert all(len(case["our_seconds"]) == 20 for case in paths.values())


def test_a_thousand_features_take_less_than_two_seconds(stored: dict[str, Any]) -> None:
    alone = next(run for run in stored["alone"] if run["features"] == 1_000)
    assert alone["largest_penalty_seconds"] + alone["fit_seconds"] < 2
    assert alone["relative_gap"] <= 1e-8

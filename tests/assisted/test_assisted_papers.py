"""Small slices of the replications of assisted learning: the same code on a few data sets.

The tables themselves, with their Monte Carlo errors, are in ``replications/assisted_glm``. Bounds
here are wide enough for few replicates and still fail where the mathematics is wrong.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from replications.assisted_glm.coverage.run import one as coverage
from replications.assisted_glm.first_order.run import one as first_order
from replications.assisted_glm.masked.run import one as masked
from replications.assisted_glm.new_people.run import one as new_people
from replications.assisted_glm.size_power.run import one as sketch
from replications.assisted_glm.training.run import one as training
from replications.assisted_glm.wide.run import one as wide
from tests.rotation import by_turns

pytestmark = pytest.mark.replication
TABLES = Path(__file__).parents[2] / "replications" / "assisted_glm"


def stored(table: str, line: str) -> list[dict[str, str]]:
    with (TABLES / table / "result.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["line"] == line]


@pytest.mark.parametrize("setting", [1, 3])
def test_size_of_the_score_test(setting: int) -> None:
    cells = [sketch("null", "binomial", setting, 300, 0.0, seed) for seed in range(200)]
    rejected = [cell[noise, 2]["score"] < 0.05 for cell in cells for noise in (0.0, 0.5)]
    # standard error .011 to .015; the table has .04 to .06
    assert 0.005 < np.mean(rejected) < 0.10


def test_power_of_the_score_test() -> None:
    cells = [sketch("power", "binomial", 1, 2000, 0.0, seed) for seed in range(40)]
    power = {noise: np.mean([c[noise, 5]["score"] < 0.05 for c in cells]) for noise in (0.0, 0.5)}
    assert power[0.0] > 0.8
    assert 0.05 < power[0.5] < power[0.0]


@pytest.mark.parametrize("rho", [0.1, 0.25])
def test_power_with_related_columns_is_the_stored_one(rho: float) -> None:
    """Other data sets of the same design: every statistic's share agrees with the table."""
    n_sets = 150
    cells = [sketch("power", "binomial", 1, 300, rho, seed) for seed in range(5000, 5000 + n_sets)]
    rows = stored("size_power", f"power binomial setting 1 n 300 rho {rho}")
    assert len(rows) == 15
    for row in (row for row in rows if row["t"] in ("1", "5")):
        for name in ("wald", "score", "wald_hc3", "lr"):
            power = float(row[name])
            seen = np.mean([c[float(row["noise"]), int(row["t"])][name] < 0.05 for c in cells])
            # both are estimates; 48 comparisons, so four standard errors
            error = np.sqrt(power * (1 - power) * (1 / n_sets + 1 / int(row["replicates"])))
            assert abs(seen - power) < 4 * error, (name, row["noise"], row["t"])


@pytest.mark.parametrize(
    ("design", "most"),
    [
        ("setting 1 binomial", 4),
        ("setting 2 poisson", 4),
        ("setting 3 normal", 4),
        ("six pairs with correlation 0.9", 6),
        ("all correlations 0.9", 6),
    ],
)
def test_rounds(design: str, most: int) -> None:
    found = training(design, 0)
    assert found["span"]["to_1e-06"] <= most
    assert found["span"]["to_1e-06"] <= found["none"]["to_1e-06"]
    assert found["span"]["final"] <= found["none"]["final"] + 1e-12


def test_rounds_on_connections(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("nsl_kdd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_DATA", str(folder.parent))
        found = training("NSL-KDD", 0)
    assert found["span"]["to_1e-06"] <= 9
    assert found["none"]["to_1e-06"] > 40


@pytest.mark.parametrize(("kind", "setting"), [("binomial", 2), ("poisson", 1), ("normal", 3)])
def test_one_round_beats_fifty_first_order_ones(kind: str, setting: int) -> None:
    """On the columns as they are, as in the source; standardised ones are in the table."""
    found = first_order(kind, setting, 0)
    for baseline in ("FedSGD", "FedBCD"):
        end = found[f"{baseline}, as they are", 50]
        assert found["span", 1]["gap"] < end["best"] <= end["gap"]
        assert end["inside"] == 1.0


def test_coverage_where_parts_oppose() -> None:
    """The joint interval holds; the local sandwich, the negative control, does not."""
    sets = [coverage("binomial", "opposed", 300, seed) for seed in range(200)]
    # five new subjects a data set: standard error .009; the table has .95 and .52
    assert 0.91 < np.mean([one["joint"] for one in sets]) < 0.985
    assert np.mean([one["local"] for one in sets]) < 0.7
    assert max(one["to_oracle"] for one in sets) < 1e-6


def test_coverage_with_a_masked_response() -> None:
    """The plain logit is the wrong link, and the more records the worse its coverage."""
    sets = [masked("strong", 0.2, 20_000, seed) for seed in range(30)]
    right = np.mean([one["right link"]["covered"] for one in sets])
    printed = np.mean([one["as printed"]["covered"] for one in sets])
    assert right > 0.88  # standard error about .02; the table has .95
    assert printed < 0.8


@by_turns(["300 + 300", "200 + 200 + 100"], ["normal", "binomial"], names="design, kind")
def test_more_columns_than_records(kind: Literal["normal", "binomial"], design: str) -> None:
    """Joint training ends at the pooled lasso fit, and is worth more than a's own columns."""
    rows = {row["way"]: row for row in stored("wide", f"{kind} {design} lasso")}
    sets = [wide(kind, design, "lasso", seed) for seed in range(2)]
    for found in sets:
        assert found["Anderson"]["distance"] < 1e-6
        assert found["Anderson"]["to_1e-06"] <= float(rows["Anderson"]["to_1e-06_most"])
        assert found["Anderson"]["to_1e-06"] <= found["plain"]["to_1e-06"]
        assert found["plain"]["rises"] == found["Anderson"]["rises"] == 0
        assert abs(found["Anderson"]["gap"]) < 1e-8
        assert found["pooled"]["distance"] < 1e-6  # each column once, or twice: the same lasso
    gains = [found["alone"]["fresh"] - found["Anderson"]["fresh"] for found in sets]
    # two data sets: a wide bound; the table has the mean and its error
    spread = float(rows["Anderson"]["gain_se"]) * np.sqrt(int(rows["Anderson"]["replicates"]))
    assert abs(np.mean(gains) - float(rows["Anderson"]["gain"])) < 4 * spread / np.sqrt(2)


@pytest.mark.parametrize("line", ["lognormal", "another link"])
def test_new_people_at_default_policies(line: str) -> None:
    runs = [new_people(line, seed) for seed in range(5000, 5006)]
    if line == "lognormal":
        # 6 runs of 160 held-out rows: standard error .007; the table has .954
        assert 0.92 < np.mean([run["covered"] for run in runs]) < 0.985
        return
    off = [
        np.mean(run["seen"] - np.where(run["seen"] == 1, run["high"], run["low"])) for run in runs
    ]
    # standard error .015; the table has .0014
    assert abs(np.mean(off)) < 0.06

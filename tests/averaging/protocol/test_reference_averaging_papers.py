"""Small slices of the replications of reference averaging: the same code on a few data sets.

The tables themselves, with their Monte Carlo errors, are in ``replications/reference_averaging``.
Bounds here are wide enough for one or two data sets and still fail where the weights, the penalty
or the average are wrong.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from consilience.numerics.random import stream
from replications.reference_averaging.guard.run import guarded, probe, unguarded
from replications.reference_averaging.lasso.by_moments import curves
from replications.reference_averaging.lasso.run import closed
from replications.reference_averaging.lasso.run import one as lasso
from replications.reference_averaging.logistic.run import one as logistic
from replications.reference_averaging.ridge.run import one as ridge
from replications.reference_averaging.simulate import simulate_split_rows
from replications.reference_averaging.sparse_text.run import one as texts
from replications.reference_averaging.study import ADAPTIVE, FIXED
from tests.stored_figures import check_stored_figures

pytestmark = pytest.mark.replication
TABLES = Path(__file__).parents[3] / "replications" / "reference_averaging"
BOTH = {weights.name: weights for weights in (FIXED[1.0], ADAPTIVE)}


@pytest.mark.parametrize(
    "table", sorted(path.parent.name for path in TABLES.glob("*/expected.csv"))
)
def test_stored_figures_are_those_expected(table: str) -> None:
    check_stored_figures(TABLES / table)


@pytest.mark.parametrize("learner", ["ridge", "lasso", "logistic"])
def test_stored_runs_keep_what_is_clear(learner: str) -> None:
    """Nine in ten of the runs, over all designs, whose true gain exceeds two standard errors."""
    with (TABLES / "guard" / "result.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["line"] == f"guarded: {learner}"]
    clear = sum(int(row["beyond"]) for row in rows)
    kept = sum(int(row["beyond"]) * float(row["kept_beyond"] or 0) for row in rows)
    assert clear >= 10
    assert kept >= 0.9 * clear - 1e-6


def test_ridge_reaches_the_closed_form_and_the_global_fit() -> None:
    found = ridge("unlike", "moments", 1000)
    assert found["synchronous"] < 1e-8
    assert found["asynchronous"] < 1e-8
    assert found["adaptive_1000"] < 0.06
    assert found["product_10000"] == pytest.approx(1.0, abs=0.02)
    assert found["common_count"] < found["own_count"]  # sites come at unequal paces


def test_logistic_regression_comes_nearer() -> None:
    found = logistic(20_000, 90, 20, 1.0, BOTH, 1000)
    start = found["rho 1", 0]
    assert found["rho 1", 20] < 0.75 * start
    assert found["k^0.9", 20] < 0.75 * found["rho 1", 20]
    assert found["k^0.9", 20] < found["k^0.9", 5] < found["k^0.9", 1] < start


def test_lasso_closes_part_of_the_gap() -> None:
    """The learner's rounds close it, and the quick rounds from second moments are the same."""
    penalties = (0.02, 0.01, 0.005)
    found = lasso(8000, 60, 20, BOTH, penalties, 1000)
    assert 0.1 < closed(found, "rho 1", 20) < closed(found, "k^0.9", 20) < 0.95
    data = simulate_split_rows(8000, 60, 20, rng=stream(1000, "lasso", 20))
    reference = stream(1000, "reference", 20).standard_normal((60, 60))
    quick = curves(data, reference, BOTH, penalties, 20)
    for name, values in found.items():
        np.testing.assert_allclose(quick[name], values, atol=1e-6)


@pytest.mark.parametrize("name", ["ridge", "lasso", "logistic"])
def test_probe_of_separable_learners(name: str) -> None:
    assert probe(name, True, 1000)["change"] <= 1e-6
    assert probe(name, False, 1000)["separable"]


@pytest.mark.parametrize("name", ["tree", "forest", "boosting"])
def test_probe_of_the_others(name: str) -> None:
    found = probe(name, False, 1000)
    assert found["change"] >= 1e-2
    assert not found["separable"]


def test_unguarded_trees_get_worse_and_guarded_ones_do_not() -> None:
    found = unguarded("tree", 1000)
    assert found["k^0.9/10"] < found["k^0.9/0"] - 0.02
    kept = guarded("tree", "curved", 1000)
    assert kept["judged"] == 1.0
    assert kept["drop"] <= 1e-12


def test_guard_keeps_a_clear_gain() -> None:
    found = guarded("ridge", "sorted", 1000)
    assert found["kept"] == 1.0
    assert found["drop"] < -0.1


def test_sparse_rows_stay_sparse() -> None:
    line = "ridge, 30,000 texts"
    row = texts(line, 3000, 4000, 1500, 5, 1000)[1]
    assert row["r2_5"] > row["r2_0"] + 0.002
    assert row["r2_5"] < row["r2_pooled"] + 0.02

"""NSL-KDD split by columns: what the page of the example says, from its own study files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience import Run
from examples.nsl_kdd.make_tables import NETWORK, party_tables, write_tables
from examples.pooled_fit import against_truth, chances, compare, read_all
from tests.examples.columns import Workspace


@pytest.fixture(scope="module")
def space(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("nsl-kdd")
    write_tables(data_dir("nsl_kdd"), root / "tables")
    return Workspace.of("nsl_kdd", root)


@pytest.fixture(scope="module")
def fitted(space: Workspace) -> Run:
    return space.run("fit")


def test_tables_of_the_two_parties(data_dir: Callable[[str], Path]) -> None:
    tables = party_tables(data_dir("nsl_kdd"))
    host, network = tables["host"], tables["network"]
    assert host["dos"].value_counts().to_dict() == {0: 5000, 1: 5000}
    assert tables["new/truth"]["dos"].value_counts().to_dict() == {0: 1000, 1: 1000}
    assert host.shape == (10000, 12)
    assert list(network.columns) == ["connection", *NETWORK]
    assert set(host["connection"]) == set(network["connection"])
    assert not set(host["connection"]) & set(tables["new/host"]["connection"])
    # Limits in the network's site file hold by definition; here nothing is cut by them.
    counts = network[["count", "srv_count"]]
    assert counts.to_numpy().min() >= 0
    assert counts.to_numpy().max() == 511
    assert network[NETWORK[2:]].to_numpy().min() >= 0
    assert network[NETWORK[2:]].to_numpy().max() <= 1


def test_training_takes_at_most_nine_rounds_to_the_pooled_fit(
    space: Workspace, fitted: Run
) -> None:
    found = compare(space.study("fit"), space.files("fit"), fitted)
    asked = fitted.result.rounds_table["round"][-1]  # the last one may tell nothing new
    assert found["rounds"] in (asked - 1, asked)
    assert asked <= 9
    assert found["numbers_sent"] == 2 * 10000 * asked
    assert found["eta"] < 1e-6
    assert found["error"] < 1e-6
    assert found["deviance"] == pytest.approx(found["deviance_pooled"], rel=1e-9)
    assert fitted.result.revealed == {"host": (9, 10), "network": (9, 9)}
    deviances = np.asarray(fitted.result.rounds_table["deviance"])
    assert (np.diff(deviances) <= 1e-9 * deviances[0]).all()


def test_gain_on_connections_held_out(fitted: Run) -> None:
    holdout = fitted.result.holdout
    assert holdout["alone"] == pytest.approx(0.290, abs=0.0005)
    assert holdout["joint"] == pytest.approx(0.215, abs=0.0005)
    assert holdout["error"] == pytest.approx(0.024, abs=0.0005)


def test_new_connections_are_predicted(space: Workspace, fitted: Run) -> None:
    run = space.run("predict", "new", follows=fitted)
    assert run.result.n_new == run.result.intervals["certified"] == 2000
    truth = pd.read_csv(space.root / "tables/new/truth.csv", index_col=0)["dos"]
    truth.index = truth.index.astype(str)
    found = against_truth(run, space.root / "homes/host", truth)
    # A share of .96 of 2,000 has a standard error of .0044.
    assert found["right"] == pytest.approx(0.961, abs=0.013)
    assert found["deviance"] < fitted.result.holdout["alone"]


def test_plain_alternation_takes_far_more_rounds(space: Workspace, fitted: Run) -> None:
    """Rounds as measured: 9 with the span, 13 with Anderson acceleration, 80 without."""
    rounds = {
        way: space.run(
            "fit",
            files={
                name: file.model_copy(update={"home": str(space.root / way / name)})
                for name, file in space.files("fit", max_revealed_rank="full").items()
            },
            acceleration=way,
            n_rounds=200,
        ).result
        for way in ("anderson", "none")
    }
    assert fitted.result.rounds < rounds["anderson"].rounds < 20
    assert rounds["none"].rounds > 60
    final = fitted.result.deviance["joint"]
    assert final <= rounds["none"].deviance["joint"] * (1 + 1e-9)


def test_how_often_the_partner_is_found(space: Workspace) -> None:
    """Shares over 100 draws have a standard error of at most .05."""
    whole = read_all(space.study("test"), space.files("test"))
    shares = {
        e: chances(whole, "host", epsilon=e, n_directions=2, n_draws=100) for e in (1.0, 8.0, None)
    }
    assert shares[1.0] < 0.2
    assert 0.68 < shares[8.0] < 0.95
    assert shares[None] > 0.97

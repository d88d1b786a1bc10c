"""Heart disease split by columns: what the page of the example says, from its own study files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience import Run
from consilience.engines.study_check import check_sites
from consilience.engines.study_run import method_of
from examples.heart_columns.make_tables import CARDIOLOGY, CLINIC, party_tables, write_tables
from examples.pooled_fit import (
    against_truth,
    chances,
    compare,
    read_all,
    splits,
    without_levels,
)
from tests.examples.columns import Workspace

STUDIES = ["test", "test-plain", "fit", "predict", "cleveland/test", "cleveland/fit"]


@pytest.fixture(scope="module")
def space(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("heart-columns")
    write_tables(data_dir("heart"), root / "tables")
    return Workspace.of("heart_columns", root)


@pytest.fixture(scope="module")
def fitted(space: Workspace) -> Run:
    return space.run("fit")


def test_tables_of_the_two_parties(data_dir: Callable[[str], Path]) -> None:
    tables = party_tables(data_dir("heart"))
    assert {name: len(table) for name, table in tables.items()} == {
        "clinic": 820,
        "cardiology": 765,
        "cleveland/clinic": 303,
        "cleveland/cardiology": 303,
        "new/clinic": 100,
        "new/cardiology": 100,
        "new/truth": 100,
    }
    clinic, cardiology = tables["clinic"], tables["cardiology"]
    assert list(clinic.columns) == ["patient", *CLINIC, "disease"]
    assert list(cardiology.columns) == ["patient", *CARDIOLOGY]
    assert clinic["patient"].is_unique
    assert cardiology["patient"].is_unique
    assert list(clinic["patient"]) != list(cardiology["patient"])
    assert not set(clinic["patient"]) & set(tables["new/clinic"]["patient"])
    assert tables["new/clinic"]["disease"].isna().all()
    # Values stay with their patients: line 5 of the Hungarian file.
    line = (data_dir("heart") / "processed.hungarian.data").read_text().splitlines()[4].split(",")
    rows = pd.concat([cardiology, tables["new/cardiology"]]).set_index("patient")
    assert rows.loc["hungarian-005", "thalach"] == float(line[7])


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_run(space: Workspace, name: str) -> None:
    sites = "new" if name == "predict" else ""
    study = space.study(name)
    checks = check_sites(study, space.files(name, sites), method_of(study))
    assert [check.error for check in checks] == [None, None]
    common = {"predict": 100, "cleveland/test": 303, "cleveland/fit": 303}.get(name, 751)
    for check in checks:
        assert f"{common} rows have a counterpart at every site." in check.remarks


def test_no_party_is_told_the_columns_of_the_other(space: Workspace, fitted: Run) -> None:
    said = " ".join(str(line) for line in fitted.transcript)
    assert not any(name in said for name in [*CLINIC, *CARDIOLOGY, "disease"])
    assert "restecg" not in str(fitted.result.to_frame())


def test_fit_is_the_pooled_one(space: Workspace, fitted: Run) -> None:
    found = compare(space.study("fit"), space.files("fit"), fitted)
    assert found["rounds"] <= 5
    assert found["eta"] < 1e-6
    assert found["error"] < 1e-6
    assert found["deviance"] == pytest.approx(found["deviance_pooled"], rel=1e-9)
    assert found["held_out"] == pytest.approx(found["held_out_pooled"], rel=1e-6)
    assert fitted.result.stopped == "converged"
    assert fitted.result.revealed == {"clinic": (6, 6), "cardiology": (5, 5)}


def test_gain_on_patients_held_out(fitted: Run) -> None:
    """Over many splits .96 alone and .88 joint; two fifths held out, as here, is harder."""
    holdout = fitted.result.holdout
    assert holdout["alone_minus_joint"] == pytest.approx(0.095, abs=0.0005)
    assert holdout["error"] == pytest.approx(0.042, abs=0.0005)
    assert holdout["joint"] == pytest.approx(0.924, abs=0.0005)


def test_cleveland_alone_does_not_gain(space: Workspace) -> None:
    run = space.run("cleveland/fit")
    holdout = run.result.holdout
    assert holdout["alone_minus_joint"] < 1.96 * holdout["error"]
    assert holdout["joint"] == pytest.approx(0.938, abs=0.0005)
    # One class of the ECG has four patients, and the training rows have both sorts of them.
    plain = space.run("cleveland/fit", alpha=0.0).result.holdout
    assert plain["alone"] == pytest.approx(0.996, abs=0.0005)
    assert plain["joint"] == pytest.approx(0.951, abs=0.0005)


def test_new_patients_are_predicted_with_intervals(space: Workspace, fitted: Run) -> None:
    run = space.run("predict", "new", follows=fitted)
    assert run.result.n_new == run.result.intervals["certified"] == 100
    truth = pd.read_csv(space.root / "tables/new/truth.csv", index_col=0)["disease"]
    found = against_truth(run, space.root / "homes/clinic", truth)
    # 100 people: a share of .82 has a standard error of .04.
    assert found["people"] == 100
    assert found["right"] > 0.75
    assert found["width"] == pytest.approx(0.165, abs=0.01)
    low, high = (run.site("clinic").values(name) for name in ("lower", "upper"))
    assert (low < high).all()
    assert low.min() >= 0
    assert high.max() <= 1
    # Nothing of the cardiology's is revealed beyond what the fit had.
    assert run.result.revealed == fitted.result.revealed


def test_new_patients_get_the_pooled_prediction(space: Workspace, fitted: Run) -> None:
    run = space.run("predict", "new", follows=fitted)
    left = pd.read_csv(space.root / "homes/clinic/outputs" / run.info.run / "labels.csv")
    eta = left.set_index("id")["linear_predictor"]
    known = read_all(space.study("fit"), space.files("fit"))
    new = read_all(space.study("predict"), space.files("predict", "new")).columns
    from consilience.assisted.kernels.glm import family, fit

    pooled = fit(known.scaled.to_numpy(), known.y.to_numpy(), family("binomial"))
    scaled = (new - known.columns.mean()) / known.columns.std(ddof=0)
    expected = pooled.intercept + scaled.to_numpy() @ pooled.coef
    np.testing.assert_allclose(eta.loc[new.index], expected, rtol=1e-8, atol=1e-8)


def test_a_limit_on_directions_costs_deviance_and_errors(space: Workspace, tmp_path: Path) -> None:
    """One direction of five is kept back: same deviance to 1e-9; two told: not the best fit."""
    for limit, gap in (("default", 1e-9), (1, None)):
        files = space.files("fit")
        files["cardiology"] = files["cardiology"].model_copy(
            update={"policy": {**files["cardiology"].policy, "max_revealed_rank": limit}}
        )
        files = {
            name: file.model_copy(update={"home": str(tmp_path / str(limit) / name)})
            for name, file in files.items()
        }
        run = space.run("fit", files=files)
        result = run.result
        found = compare(space.study("fit"), files, run)
        assert result.stopped == "rank"
        assert not result.complete
        assert result.revealed["cardiology"][0] == (4 if limit == "default" else 1)
        lost = found["deviance"] - found["deviance_pooled"]
        if gap is not None:
            assert lost < gap
        else:
            assert 0.1 < lost < 1.0  # .349 as measured
        assert not (np.asarray(result.coefficients["status"]) == "identified").all()


def test_the_priced_test_charges_its_price_once(space: Workspace) -> None:
    first = space.run("test")
    again = space.run("test")
    assert first.result.epsilon == {"cardiology": 8.0}
    assert first.result.n_columns == {"cardiology": 5}
    assert first.result.revealed["cardiology"] >= 2
    ledger = space.root / "homes/cardiology/ledger/heart-cardiology.json"
    assert sum(json.loads(ledger.read_text())["epsilon"].values()) == 8.0
    assert first.result.tests["cardiology"]["score"]["p"] == pytest.approx(
        again.result.tests["cardiology"]["score"]["p"]
    )


def test_how_often_the_partner_is_found(space: Workspace) -> None:
    """Shares over 200 draws have a standard error of at most .035."""
    whole = read_all(space.study("test"), space.files("test"))
    shares = {e: chances(whole, "clinic", epsilon=e, n_directions=2) for e in (1.0, 8.0, None)}
    assert shares[1.0] == pytest.approx(0.065, abs=0.05)
    assert shares[8.0] == pytest.approx(0.585, abs=0.1)
    assert shares[None] == pytest.approx(0.91, abs=0.06)


def test_gain_over_many_splits(space: Workspace) -> None:
    """Pooled or with numeric codings there is a gain; at Cleveland with indicators hardly."""
    pooled = splits(read_all(space.study("fit"), space.files("fit")), "clinic")
    assert pooled["alone"] == pytest.approx(0.96, abs=0.02)
    assert pooled["joint"] == pytest.approx(0.88, abs=0.02)
    files = space.files("cleveland/fit")
    alone = splits(read_all(space.study("cleveland/fit"), files), "clinic")
    plain = {name: without_levels(file) for name, file in files.items()}
    numeric = splits(read_all(space.study("cleveland/fit"), plain), "clinic")
    assert alone["gain"] < 0.06
    assert numeric["gain"] > 0.09

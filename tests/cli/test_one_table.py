"""Studies with one site and an estimator as their method, from files on disk to files on disk."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from consilience.discriminant.estimators import sparse_qda_fit
from consilience.engines.federation import load_run
from tests.cli.workspace import call, sentence, without_report

METHODS = ("sparse-qda", "community-bayes")
PARAMETERS = {
    "sparse-qda": "n_alphas = 4\nsmallest = 0.1\ncv = 3\n",
    "community-bayes": "candidates = [1, 3]\ncv = 2\n",
}


@dataclass
class Clinic:
    """A study file, a site file and the table of breast cancer of scikit-learn in a directory."""

    root: Path
    method: str
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        names = [str(name).replace(" ", "_") for name in found.feature_names[:10]]
        self.columns = tuple(names)
        path = self.root / "data" / "clinic.csv"
        path.parent.mkdir()
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["patient", *names, "diagnosis"])
            for i, (x, y) in enumerate(zip(found.data, found.target, strict=True)):
                label = ("malignant", "benign")[y]
                writer.writerow([f"p{i:03d}", *(f"{v:.10g}" for v in x[:10]), label])
        site = self.root / "sites" / "clinic.toml"
        site.parent.mkdir()
        site.write_text(
            'name = "clinic"\nhome = "../homes/clinic"\n[source]\npath = "../data/clinic.csv"\n'
            '[columns.offered]\n"*" = "number"\npatient = "id"\n'
            'diagnosis = ["malignant", "benign"]\n[policy]\nforeign_models = true\n',
            encoding="utf-8",
        )
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "study.toml"

    @property
    def out(self) -> Path:
        return self.root / "runs" / "one"

    def write(
        self,
        *,
        parameters: str | None = None,
        sites: str = '"clinic"',
        levels: str = 'diagnosis = ["benign", "malignant"]',
    ) -> None:
        given = PARAMETERS[self.method] if parameters is None else parameters
        features = ", ".join(f'"{name}"' for name in self.columns)
        self.file.write_text(
            f'name = "cells"\nmethod = "{self.method}"\nseed = 5\n\n[parameters]\n{given}\n'
            f'[data]\nfeatures = [{features}]\ntarget = "diagnosis"\nid = "patient"\n\n'
            f"[data.levels]\n{levels}\n\n[sites]\nnames = [{sites}]\n",
            encoding="utf-8",
        )


@pytest.fixture(scope="module", params=METHODS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    """A workspace in which the study ran once."""
    space = Clinic(tmp_path_factory.mktemp("cells"), request.param)
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Of 114 rows that were held out, ")
    assert "round 3, fit: 1 of 1 sites (clinic)" in result.stderr
    assert (space.out / "report.html").stat().st_size > 1000
    return space


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_check_says_that_the_study_can_run(ran: Clinic) -> None:
    said = call("check", ran.file)
    assert said.exit_code == 0, said.output
    assert "1, of which 1 must answer" in said.stdout
    assert "The study can run." in said.stdout
    assert "569" in said.stdout


def test_check_says_how_long_fits_take_where_that_is_long(
    ran: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten columns take no time; where an eigendecomposition takes a minute, they do."""
    assert "Fits take" not in call("check", ran.file).stdout
    monkeypatch.setattr(sparse_qda_fit, "TINY", 0)
    monkeypatch.setattr(sparse_qda_fit, "eigen_seconds", lambda q: 60.0)
    said = " ".join(call("check", ran.file).stdout.split())
    # Four penalties, and no estimate for communities.
    found = re.search(r"Fits take up to about (\d+) (minutes|hours) on a machine", said)
    assert (found is not None) == (ran.method == "sparse-qda")


def test_show_and_json_say_the_same(ran: Clinic) -> None:
    shown = call("show", ran.out)
    assert shown.exit_code == 0
    result = load_run(ran.out).result
    # Lines are wrapped to the width of the terminal.
    assert " ".join(result.summary().split()) in " ".join(shown.stdout.split())
    for rule in result.judged:  # type: ignore[attr-defined]
        assert rule in shown.stdout
    said = json.loads(call("show", ran.out, "--json").stdout)
    assert said["result"]["n"] == 569 and said["result"]["n_held"] == 114
    assert said["result"]["judged"][0] == ran.method


def test_report_is_written_again(ran: Clinic) -> None:
    path = ran.root / "again.html"
    assert call("report", ran.out, "--out", path, "--open", "no").exit_code == 0
    page = path.read_text(encoding="utf-8")
    assert page == (ran.out / "report.html").read_text(encoding="utf-8")
    assert "clinic" in page and "p000" not in page


def test_predictions_stay_at_the_site(ran: Clinic) -> None:
    name = json.loads((ran.out / "run.json").read_text())["run"]
    shown = call("site", "outputs", ran.root / "sites" / "clinic.toml", name)
    assert shown.exit_code == 0, shown.output
    files = {"labels.csv", "predictions.csv", "confusion.csv", "rules.csv"}
    files |= (
        {"interactions.csv", "path.csv"}
        if ran.method == "sparse-qda"
        else {"communities.csv", "tree.csv", "candidates.csv"}
    )
    folder = ran.root / "homes" / "clinic" / "outputs" / name
    for file in files:
        assert file in shown.output
        assert (folder / file).is_file()
    rows = table(folder / "predictions.csv")
    truth = {row["patient"]: row["diagnosis"] for row in table(ran.root / "data" / "clinic.csv")}
    assert {row["id"]: row["diagnosis"] for row in rows} == truth
    held = [row for row in rows if row["held_out"] == "1"]
    wrong = sum(row["prediction"] != row["diagnosis"] for row in held)
    assert int(table(folder / "rules.csv")[0]["errors"]) == wrong < 20
    labels = table(folder / "labels.csv")
    assert [row["id"] for row in labels] == [row["id"] for row in rows]
    # Nothing of a row is in the directory of the run.
    for path in ran.out.rglob("*"):
        if path.is_file():
            assert b"p000" not in path.read_bytes(), path


def test_a_run_goes_on_and_ends_with_the_same_bytes(ran: Clinic) -> None:
    again = ran.root / "runs" / "two"
    with without_report():
        assert call("run", ran.file, "--out", again, "--quiet").exit_code == 0
    for name in ("result.json", "result.npz"):
        assert (again / name).read_bytes() == (ran.out / name).read_bytes()
    (again / "result.json").unlink()
    resumed = call("run", ran.file, "--out", again, "--resume", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert (again / "result.json").read_bytes() == (ran.out / "result.json").read_bytes()


def test_the_predictor_predicts_new_rows(ran: Clinic) -> None:
    from consilience.sites.outputs import SiteOutput
    from consilience.sites.site_store import DiskStore

    name = json.loads((ran.out / "run.json").read_text())["run"]
    left = SiteOutput(DiskStore(ran.root / "homes" / "clinic"), name)
    rows = table(ran.root / "data" / "clinic.csv")
    x = np.array([[float(row[column]) for column in ran.columns] for row in rows])
    kinds = np.array(["benign", "malignant"])
    np.testing.assert_array_equal(left.predictor.predict(x), kinds[left.labels])


# --- sentences --------------------------------------------------------------------------------


@pytest.fixture(params=METHODS)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Clinic:
    return Clinic(tmp_path, request.param)


@pytest.mark.parametrize("command", ["check", "run"])
def test_more_than_one_site_is_a_sentence(space: Clinic, command: str) -> None:
    space.write(sites='"clinic", "other"')
    result = call(command, space.file)
    assert result.exit_code == 2
    assert f"use the method 'federated-{space.method}'" in sentence(result)
    assert not (space.root / "runs").exists()


def test_levels_that_are_not_declared_are_a_sentence(space: Clinic) -> None:
    space.write(levels="")
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code != 0
    assert "diagnosis" in sentence(result)
    space.write(levels='diagnosis = ["benign", "in doubt"]')
    result = call("run", space.file, "--out", space.root / "runs" / "two")
    assert result.exit_code != 0
    assert "declare all levels" in sentence(result)
    assert "malignant" not in result.output


def test_a_wrong_parameter_is_a_sentence(space: Clinic) -> None:
    space.write(parameters="holdout = 0.8")
    for command in ("check", "run"):
        result = call(command, space.file)
        assert result.exit_code == 2
        assert "holdout must be a number from 0 to 0.5" in sentence(result)
    space.write(parameters="depth = 3")
    assert "has no parameter 'depth'" in sentence(call("check", space.file))


def test_methods_for_one_table_stand_in_a_group_of_their_own() -> None:
    said = call("methods").stdout
    several, one = said.split("For the table of one site")
    for name in METHODS:
        assert f"\n{name} " in one and f"\n{name} " not in several
        shown = call("methods", name).stdout
        assert f"For several sites: federated-{name}" in shown
    assert "\nmean-and-sd " in several

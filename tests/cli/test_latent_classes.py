"""The demonstration of latent class regression: from files to classes that stay at a site."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from consilience.datasets.simulate_wards import KINDS, SLOPES
from consilience.engines.federation import load_run
from tests.cli.workspace import call

DEMO = "latent-class-regression"
STUDY = f"consilience-demo/{DEMO}.toml"


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demonstration ran once."""
    folder = tmp_path_factory.mktemp("latent")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = call("demo", DEMO, "--quiet")
    assert result.exit_code == 0, result.output
    assert "(Simulated" in result.output
    return folder


def run_of(space: Path) -> Path:
    return next(space.glob("consilience-demo/runs/*"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_demo_runs_under_the_strict_policy_and_writes_a_report(space: Path) -> None:
    run = load_run(run_of(space))
    assert set(run.presets.values()) == {"strict"}
    assert run.result.n_classes == 4  # type: ignore[attr-defined]
    page = (run_of(space) / "report.html").read_text(encoding="utf-8")
    for words in (
        "Which entities belong to which class",
        "How the rounds went",
        "Which class sums were sent anew",
    ):
        assert f"<h3>{words}</h3>" in page


def test_classes_at_a_site_are_the_kinds_that_nobody_told_the_study(space: Path) -> None:
    run = run_of(space).name
    result = load_run(run_of(space)).result
    slopes = result.slopes  # type: ignore[attr-defined]
    # Each class is told by the kind that its slopes are nearest to, in units of their spread.
    near = [int(np.argmin(np.abs(SLOPES - row).sum(axis=1))) for row in slopes]
    assert sorted(near) == [0, 1, 2, 3]
    right = total = 0
    for site in ("aspen", "birch", "cedar", "elm"):
        home = space / "consilience-demo"
        patients = table(home / f"homes/{site}/outputs/{run}/classes.csv")
        kinds = {row["patient"]: row["kind"] for row in table(home / f"data/{site}.csv")}
        assert {row["entity"] for row in patients} == set(kinds)
        right += sum(KINDS[near[int(p["class"]) - 1]] == kinds[p["entity"]] for p in patients)
        total += len(patients)
    # A patient of eight visits is not always told apart from one of another kind.
    assert right / total > 0.9, Counter(near)


def test_study_runs_again_to_the_same_bytes(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(space)
    first = run_of(space)
    assert call("check", STUDY).exit_code == 0
    again = call("run", STUDY, "--out", "again", "--json", "--quiet")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["result"]["n_classes"] == 4
    for name in ("result.json", "result.npz"):
        assert (space / "again" / name).read_bytes() == (first / name).read_bytes()


def test_outputs_of_a_site_are_shown_there(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(space)
    shown = call("site", "outputs", "consilience-demo/sites/aspen.toml", run_of(space).name)
    assert shown.exit_code == 0, shown.output
    assert "classes.csv" in shown.output
    said = call("show", run_of(space)).stdout
    assert "4 classes" in said


def test_a_study_without_entities_is_refused_in_a_sentence(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(space)
    text = Path(STUDY).read_text(encoding="utf-8").replace('entity = "patient"\n', "")
    Path("consilience-demo/other.toml").write_text(text, encoding="utf-8")
    result = call("run", "consilience-demo/other.toml", "--quiet")
    assert result.exit_code != 0
    assert "entity" in result.stderr
    assert "Traceback" not in result.output

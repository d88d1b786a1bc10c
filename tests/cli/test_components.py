"""Components over sites from files with empty cells, and missing = "keep" elsewhere."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from consilience.engines.federation import load_run
from tests.cli.workspace import call, sentence

SITES = ("east", "north", "west")
FEATURES = tuple(f"v{j}" for j in range(8))


@dataclass
class Clinics:
    """Tables of three sites with a tenth of their cells empty or marked, and a study."""

    root: Path

    def __post_init__(self) -> None:
        rng = np.random.default_rng(8)
        mix = 2.0 * np.linalg.qr(rng.normal(size=(8, 3)))[0].T
        for site in SITES:
            x = rng.normal(size=(200, 3)) @ mix + 0.6 * rng.normal(size=(200, 8))
            cells = np.array([f"{v:.6f}" for v in x.ravel()]).reshape(x.shape)
            cells[rng.random(x.shape) < 0.05] = ""
            cells[rng.random(x.shape) < 0.05] = "-99"
            path = self.root / "data" / f"{site}.csv"
            path.parent.mkdir(exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["patient", *FEATURES])
                writer.writerows([f"{site}{i}", *row] for i, row in enumerate(cells.tolist()))
            home = self.root / "sites" / f"{site}.toml"
            home.parent.mkdir(exist_ok=True)
            home.write_text(
                f'name = "{site}"\nhome = "../homes/{site}"\n[source]\n'
                f'path = "../data/{site}.csv"\n[columns]\nmissing_codes = {{ "*" = -99 }}\n'
                'offered = { patient = "id", "*" = "number" }\n[policy]\nforeign_models = true\n',
                encoding="utf-8",
            )
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "study.toml"

    @property
    def out(self) -> Path:
        return self.root / "runs" / "one"

    def write(self, method: str = "federated-pca", missing: str = "keep") -> Path:
        listed = ", ".join(f'"{name}"' for name in FEATURES)
        names = ", ".join(f'"{name}"' for name in SITES)
        self.file.write_text(
            f'name = "components"\nmethod = "{method}"\nseed = 3\n[data]\nfeatures = [{listed}]\n'
            f'id = "patient"\n[preparation]\nmissing = "{missing}"\nstandardize = "pooled"\n'
            f"[sites]\nnames = [{names}]\n",
            encoding="utf-8",
        )
        return self.file


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Clinics:
    """A workspace in which the study ran once."""
    space = Clinics(tmp_path_factory.mktemp("components"))
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("8 columns of 600 rows at 3 sites share 3 components")
    return space


def test_check_shows_what_is_missing(ran: Clinics) -> None:
    said = call("check", ran.file)
    assert said.exit_code == 0, said.output
    assert "missing = 'keep'" in said.stdout and "The study can run." in said.stdout


def test_the_run_is_read_again(ran: Clinics) -> None:
    found = load_run(ran.out)
    assert found.scaling is not None and np.isnan(found.scaling[0]).all()
    assert "NaN" not in (ran.out / "context.json").read_text(encoding="utf-8")
    again = call("run", ran.file, "--out", ran.out, "--resume")
    assert again.exit_code == 0, again.output
    assert call("show", ran.out).exit_code == 0
    told = json.loads(call("show", ran.out, "--json").stdout)
    assert told["result"]["rank"] == 3
    report = (ran.out / "report.html").read_text(encoding="utf-8")
    assert "Missing values stay missing" in report and "east7" not in report


def test_completed_tables_stay_at_the_site(ran: Clinics) -> None:
    name = json.loads((ran.out / "run.json").read_text())["run"]
    folder = ran.root / "homes" / "north" / "outputs" / name
    shown = call("site", "outputs", ran.root / "sites" / "north.toml", name)
    assert shown.exit_code == 0 and "completed.csv" in shown.output
    with (folder / "completed.csv").open(encoding="utf-8", newline="") as file:
        full = list(csv.DictReader(file))
    with (ran.root / "data" / "north.csv").open(encoding="utf-8", newline="") as file:
        given = list(csv.DictReader(file))
    assert [row["id"] for row in full] == [row["patient"] for row in given]
    for row, cells in zip(full, given, strict=True):
        for feature in FEATURES:
            value = float(row[feature])
            assert np.isfinite(value)
            if cells[feature] not in ("", "-99"):
                assert value == pytest.approx(float(cells[feature]), abs=1e-9)
    assert "component_3" in (folder / "labels.csv").read_text(encoding="utf-8").splitlines()[0]


def test_methods_that_take_gaps_are_listed() -> None:
    said = call("methods")
    listed = said.stdout[said.stdout.index("With missing cells") :]
    assert "federated-pca" in listed and "mean-and-sd" not in listed
    assert "Works with missing cells" in call("methods", "federated-pca").stdout
    assert "Works with missing cells" not in call("methods", "mean-and-sd").stdout


@pytest.mark.parametrize("command", ["check", "run"])
def test_other_methods_refuse_gaps_before_anything_runs(command: str, tmp_path: Path) -> None:
    space = Clinics(tmp_path)
    space.write(method="mean-and-sd")
    result = call(command, space.file)
    assert result.exit_code == 2
    assert "needs a value in every cell" in sentence(result)
    assert not (tmp_path / "homes").exists()

"""Studies of one table with gaps: from files on disk to files on disk."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from consilience.engines.federation import load_run
from tests.cli.workspace import call, sentence, without_report

KINDS = ("cluster-count", "matrix-completion", "triplets")
PARAMETERS = {
    "cluster-count": "n_clusters = [1, 2, 3, 4]\nn_init = 2\nn_splits = 2\n",
    "matrix-completion": 'model = "hard"\ngrid = [0, 1, 2, 3]\n',
    "triplets": 'model = "hard"\ngrid = [0, 1, 2, 3]\ncenter = "rows-and-columns"\n',
}
FEATURES = ("alcohol", "ash", "hue", "proline", "phenols", "magnesium")


@dataclass
class Cellar:
    """A study file, a site file and a table of three kinds of rows, with blanks."""

    root: Path
    kind: str

    def __post_init__(self) -> None:
        rng = np.random.default_rng(12)
        centres = 4 * rng.normal(size=(3, len(FEATURES)))
        x = centres[np.arange(90) % 3] + rng.normal(size=(90, len(FEATURES)))
        x[rng.random(x.shape) < 0.15] = np.nan
        self.x = x
        path = self.root / "data" / "wines.csv"
        path.parent.mkdir()
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            if self.kind == "triplets":
                writer.writerow(["wine", "measure", "value"])
                for i, j in zip(*np.nonzero(~np.isnan(x)), strict=True):
                    writer.writerow([f"w{i:03d}", FEATURES[j], f"{x[i, j]:.8g}"])
            else:
                writer.writerow(["wine", *FEATURES])
                for i, row in enumerate(x):
                    cells = ("" if np.isnan(v) else f"{v:.8g}" for v in row)
                    writer.writerow([f"w{i:03d}", *cells])
        site = self.root / "sites" / "cellar.toml"
        site.parent.mkdir()
        site.write_text(
            'name = "cellar"\nhome = "../homes/cellar"\n[source]\npath = "../data/wines.csv"\n'
            '[columns.offered]\n"*" = "number"\nwine = "id"\nmeasure = "id"\n'
            "[policy]\nforeign_models = true\n",
            encoding="utf-8",
        )
        self.write()

    @property
    def method(self) -> str:
        return "matrix-completion" if self.kind == "triplets" else self.kind

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
        sites: str = '"cellar"',
        missing: str = "keep",
        data: str = "",
    ) -> None:
        given = PARAMETERS[self.kind] if parameters is None else parameters
        features = ", ".join(f'"{name}"' for name in FEATURES)
        named = f'features = [{features}]\nid = "wine"'
        if self.kind == "triplets":
            named = 'agent = "wine"\nentity = "measure"\ntarget = "value"'
        self.file.write_text(
            f'name = "wines"\nmethod = "{self.method}"\nseed = 5\n\n[parameters]\n{given}\n'
            f'[data]\n{data or named}\n\n[preparation]\nmissing = "{missing}"\n\n'
            f"[sites]\nnames = [{sites}]\n",
            encoding="utf-8",
        )


@pytest.fixture(scope="module", params=KINDS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cellar:
    """A workspace in which the study ran once."""
    space = Cellar(tmp_path_factory.mktemp("wines"), request.param)
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code == 0, result.output
    starts = "3 classes in 90 rows" if space.kind == "cluster-count" else "Held-out entries choose"
    assert result.stdout.startswith(starts), result.stdout
    assert "search: 1 of 1 sites (cellar)" in result.stderr
    assert (space.out / "report.html").stat().st_size > 1000
    return space


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_check_says_that_the_study_can_run(ran: Cellar) -> None:
    said = call("check", ran.file)
    assert said.exit_code == 0, said.output
    assert "The study can run." in said.stdout


def test_show_and_json_say_the_same(ran: Cellar) -> None:
    shown = call("show", ran.out)
    assert shown.exit_code == 0, shown.output
    result = load_run(ran.out).result
    assert " ".join(result.summary().split()) in " ".join(shown.stdout.split())
    said = json.loads(call("show", ran.out, "--json").stdout)
    assert said["result"]["shape"] == [90, 6]
    assert said["result"]["chosen"] == result.chosen  # type: ignore[attr-defined]


def test_report_is_written_again(ran: Cellar) -> None:
    path = ran.root / "again.html"
    assert call("report", ran.out, "--out", path, "--open", "no").exit_code == 0
    page = path.read_text(encoding="utf-8")
    assert page == (ran.out / "report.html").read_text(encoding="utf-8")
    assert "cellar" in page and "w000" not in page


def test_what_was_found_stays_at_the_site(ran: Cellar) -> None:
    name = json.loads((ran.out / "run.json").read_text())["run"]
    shown = call("site", "outputs", ran.root / "sites" / "cellar.toml", name)
    assert shown.exit_code == 0, shown.output
    files = {
        "cluster-count": {"labels.csv", "classes.csv", "curve.csv"},
        "matrix-completion": {"completed.csv", "scores.csv", "loadings.csv", "curve.csv"},
        "triplets": {"completed.csv", "scores.csv", "loadings.csv", "curve.csv", "labels.csv"},
    }[ran.kind]
    folder = ran.root / "homes" / "cellar" / "outputs" / name
    for file in files:
        assert file in shown.output
        assert (folder / file).is_file()
    if ran.kind == "cluster-count":
        found = [int(row["labels"]) for row in table(folder / "labels.csv")]
        assert len({tuple(sorted(set(found[k::3]))) for k in range(3)}) == 3
    elif ran.kind == "matrix-completion":
        filled = table(folder / "completed.csv")
        assert [row["wine"] for row in filled] == [f"w{i:03d}" for i in range(90)]
        read = np.array([[float(row[name]) for name in FEATURES] for row in filled])
        there = ~np.isnan(ran.x)
        np.testing.assert_allclose(read[there], ran.x[there], rtol=1e-6)
        assert np.isfinite(read).all()
    else:
        cells = table(folder / "completed.csv")
        assert len(cells) == 90 * 6 and set(cells[0]) == {"wine", "measure", "value", "observed"}
        assert sum(row["observed"] == "1" for row in cells) == (~np.isnan(ran.x)).sum()
    # Nothing of a row is in the directory of the run.
    for path in ran.out.rglob("*"):
        if path.is_file():
            assert b"w000" not in path.read_bytes(), path


def test_a_run_goes_on_and_ends_with_the_same_bytes(ran: Cellar) -> None:
    again = ran.root / "runs" / "two"
    with without_report():
        assert call("run", ran.file, "--out", again, "--quiet").exit_code == 0
    for name in ("result.json", "result.npz"):
        assert (again / name).read_bytes() == (ran.out / name).read_bytes()
    (again / "result.json").unlink()
    resumed = call("run", ran.file, "--out", again, "--resume", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert (again / "result.json").read_bytes() == (ran.out / "result.json").read_bytes()


# --- sentences --------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Cellar:
    return Cellar(tmp_path, request.param)


def test_more_than_one_site_is_a_sentence(space: Cellar) -> None:
    space.write(sites='"cellar", "other"')
    several = "ensemble-clustering" if space.kind == "cluster-count" else "federated-pca"
    for command in ("check", "run"):
        result = call(command, space.file)
        assert result.exit_code == 2
        assert f"use the method '{several}'" in sentence(result)
    assert not (space.root / "runs").exists()


@pytest.mark.parametrize("kind", ["cluster-count", "matrix-completion"])
def test_blanks_that_are_not_kept_are_a_sentence(kind: str, tmp_path: Path) -> None:
    space = Cellar(tmp_path, kind)
    space.write(missing="refuse")
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code != 0
    assert "has no value in" in result.output or "missing values" in result.output


def test_repeated_triplets_are_counted_in_the_site_s_log(tmp_path: Path) -> None:
    space = Cellar(tmp_path, "triplets")
    path = space.root / "data" / "wines.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, *lines[1:4]]) + "\n", encoding="utf-8")
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code != 0
    assert 'average them with duplicates = "mean"' in sentence(result)
    log = (space.root / "homes" / "cellar" / "log.jsonl").read_text(encoding="utf-8")
    assert f"3 of {len(lines) + 2} triplets repeat the place of another one" in log
    space.write(parameters=PARAMETERS["triplets"] + 'duplicates = "mean"\n')
    assert call("run", space.file, "--out", space.root / "runs" / "two").exit_code == 0


def test_a_wrong_parameter_is_a_sentence(space: Cellar) -> None:
    space.write(parameters="n_splits = 1")
    for command in ("check", "run"):
        result = call(command, space.file)
        assert result.exit_code == 2
        assert "n_splits must be a whole number from 2 to 20" in sentence(result)
    space.write(parameters="depth = 3")
    assert "has no parameter 'depth'" in sentence(call("check", space.file))


def test_a_study_that_names_no_matrix_is_a_sentence(space: Cellar) -> None:
    if space.kind == "triplets":
        space.write(data='agent = "wine"\ntarget = "value"')
    else:
        space.write(data='features = ["ash", "hue"]\ntarget = "proline"', missing="complete-rows")
    result = call("run", space.file, "--out", space.out)
    assert result.exit_code == 2
    assert f"{space.method} takes a matrix" in sentence(result)


def test_methods_for_one_table_name_the_method_for_several() -> None:
    said = call("methods").stdout
    _, one = said.split("For the table of one site")
    for name, several in (
        ("cluster-count", "ensemble-clustering"),
        ("matrix-completion", "federated-pca"),
    ):
        assert f"\n{name} " in one
        shown = call("methods", name).stdout
        assert f"For several sites: {several}" in shown
        assert "Works with missing cells" in shown
        assert "search: Search" in shown

"""``consilience doctor``, and what a shell completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from consilience.cli import doctor
from consilience.cli.main import app
from tests.cli.workspace import Workspace, call, sentence


def test_nothing_is_in_the_way(tmp_path: Path) -> None:
    found = call("doctor", "--folder", tmp_path)
    assert found.exit_code == 0, found.output
    assert found.stdout.endswith("Nothing is in the way.\n")
    assert f"Folder {tmp_path}: can be written" in " ".join(found.stdout.split())
    assert list(tmp_path.iterdir()) == []


def test_for_programs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a;b\n1,5;CANARY\n")
    found = call("doctor", tmp_path / "t.csv", "--json", "--folder", tmp_path / "none")
    told = json.loads(found.stdout)
    assert found.exit_code == 7
    assert not told["ok"]
    by_name = {one["about"]: one for one in told["findings"]}
    assert by_name[f"Folder {tmp_path / 'none'}"]["state"] == "wrong"
    table = by_name[f"Table {tmp_path / 't.csv'}"]
    assert table["state"] == "ok"
    assert table["said"] == "1 rows of 2 columns, separator = ';', decimal = ','"
    assert "1 thing is in the way" in sentence(found)
    assert "CANARY" not in found.output


def test_site_files_and_keys(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    assert call("site", "keys", tmp_path / "key").exit_code == 0
    files = [tmp_path / "sites" / "lyon.toml", space.file]
    found = call("doctor", *files, "--key", tmp_path / "key", "--folder", tmp_path)
    assert found.exit_code == 0, found.output
    assert "Table of lyon: 40 rows of 3 columns" in found.stdout
    (tmp_path / "data" / "lyon.csv").write_bytes(b"")
    (tmp_path / "key" / "consilience.key").chmod(0o644)
    found = call("doctor", *files, "--key", tmp_path / "key", "--folder", tmp_path)
    assert found.exit_code == 7
    assert "2 things are in the way" in sentence(found)
    said = " ".join(found.stdout.split())
    assert "other users of this machine may read the key file" in said
    assert "lyon.csv is empty" in said


def test_parts_that_are_absent_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"consilience": "1", "numpy": "2.1", "flwr": "1.40.9"}
    needs = ["numpy", "flwr<1.42,>=1.41; extra == 'flower'", "opendp>=0.16; extra == 'privacy'"]

    def version(name: str) -> str:
        if name not in own:
            raise PackageNotFoundError(name)
        return own[name]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", lambda _: needs)
    found = {one.about.split(",")[0]: one for one in doctor._parts()}
    assert found["consilience 1"].state is doctor.State.ok
    assert found["Part flower"].state is doctor.State.absent
    assert found["Part flower"].said.startswith("flwr is 1.40.9, and <1.42,>=1.41 is needed")
    assert found["Part privacy"].said == (
        "opendp is not installed: pip install 'consilience[privacy]'"
    )
    own.pop("numpy")
    assert next(doctor._parts()).state is doctor.State.wrong


@pytest.mark.parametrize(
    ("own", "bounds", "fine"),
    [
        ("1.10.0", ">=1.9", True),
        ("1.9", ">=1.9.0", True),
        ("2.0rc1", "<2", False),
        ("1.41.3", ">=1.41,<1.42", True),
        ("0.21.0", ">=0.13,<0.21", False),
    ],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, own: str, bounds: str, fine: bool) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: own)
    assert (doctor._lacking("x", bounds) == "") is fine


def test_every_part_has_its_purpose() -> None:
    import tomllib

    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
    parts = set(project["project"]["optional-dependencies"]) - {"docs", "dev"}
    assert parts == set(doctor.EXTRAS)


def test_a_clock_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(doctor.time, "time", lambda: now)
    assert doctor._clock(now - 29).state is doctor.State.ok
    assert "differs by 31 s" in doctor._clock(now - 31).said
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    assert "before this release" in doctor._clock(0.0).said


# --- completion


def completed(words: str) -> list[str]:
    """What bash would be told for the last of these words."""
    program = Path(sys.executable).with_name("consilience")
    facts = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    environment = {**os.environ, **facts, "_CONSILIENCE_COMPLETE": "complete_bash"}
    return subprocess.run(
        [program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_commands_options_and_methods_are_completed() -> None:
    assert completed("consilience tr") == ["transcript"]
    assert completed("consilience site ou") == ["outputs"]
    assert completed("consilience run --re") == ["--resume", "--retry-refused"]
    assert completed("consilience init mea") == ["mean-and-sd"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, tmp_path: Path) -> None:
    script = call("completion", shell).stdout
    assert "_CONSILIENCE_COMPLETE" in script
    if (program := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(script, encoding="utf-8")
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_runs_its_script(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(call("completion", "bash").stdout, encoding="utf-8")
    program = Path(sys.executable).with_name("consilience")
    asked = (
        f"source {tmp_path}/script; COMP_WORDS=(consilience meth); COMP_CWORD=1; "
        f'_consilience_completion {program}; echo "${{COMPREPLY[@]}}"; complete -p consilience'
    )
    said = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        "methods",
        "complete -o default -F _consilience_completion consilience",
    ]


def test_unknown_shell() -> None:
    assert call("completion", "csh").exit_code == 2
    assert app.info.name == "consilience"

"""The examples in deploy/: units that systemd accepts, hardened, with commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from consilience.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/usr/local/lib/consilience/bin/consilience"


def setting(unit: Path, name: str) -> list[str]:
    text = unit.read_text(encoding="utf-8")
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def unknown(words: list[str]) -> list[str]:
    """Options of a command line that the program does not have; the command must exist."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"there is no command {name}"
        command = found
    known = {option for one in command.params for option in one.opts}
    required = {
        one.opts[0] for one in command.params if isinstance(one, click.Option) and one.required
    }
    given = {word for word in words if word.startswith("-")}
    return sorted(given - known) + sorted(required - given)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_commands_exist(unit: Path) -> None:
    (line,) = setting(unit, "ExecStart")
    line = line.removeprefix("/bin/sh -c ").strip("'").split("exec ")[-1].removesuffix(" $resume")
    words = shlex.split(line)
    assert words[0] == PROGRAM
    assert unknown(words[1:]) == []


def test_options_that_do_not_exist_are_found() -> None:
    """Negative control."""
    assert unknown(["site", "watch", "site.toml", "--folder", "x", "--kee", "y"]) == [
        "--kee",
        "--key",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_hardened(unit: Path) -> None:
    for name, value in (
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("CapabilityBoundingSet", ""),
    ):
        assert setting(unit, name) == [value], name
    (user,) = setting(unit, "User")
    assert user.startswith("consilience-")
    for path in setting(unit, "ReadWritePaths"):
        assert path == "/srv/consilience/shared"
    # Keys and passwords are no part of a unit, which everybody may read.
    settings = [line for line in unit.read_text().splitlines() if not line.startswith("#")]
    assert not re.search(r"password|secret|ed25519", "\n".join(settings), re.IGNORECASE)


def test_units_are_accepted_by_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    program = Path(sys.executable).parent / "consilience"
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text(encoding="utf-8").replace(PROGRAM, str(program))
        (tmp_path / path.name).write_text(text)
        if "@" in path.name:
            (tmp_path / path.name.replace("@", "@north")).symlink_to(path.name)
    bad = tmp_path / "bad.service"
    bad.write_text(f"[Service]\nProtectSystm=strict\nExecStart={program} --help\n")
    complaints = {}
    for path in sorted(tmp_path.iterdir()):
        if "@." not in path.name:
            done = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", f"./{path.name}"],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            complaints[path.name] = done.stderr
    control = complaints.pop("bad.service")
    assert "ProtectSystm" in control and str(tmp_path) in control
    assert len(complaints) == 6
    assert {name: said for name, said in complaints.items() if str(tmp_path) in said} == {}


def test_the_container_has_no_root_and_its_files_are_there() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    (user,) = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    assert "0" not in user
    images = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    # By name only: where images come from is the business of who builds them.
    assert len(set(images)) == 1 and "/" not in images[0] and not images[0].endswith("latest")
    assert "--require-hashes" in text


def test_every_file_is_in_the_readme() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in UNITS:
        assert f"`systemd/{path.name}`" in text

"""The guide to deploying is followed word by word, from an empty machine.

What needs root is stood in for by ``machine.py``: users are not made, and services are started as
the test's own user with the units' own command lines. Paths of the machine lie in a directory.
Installing and building an image need a network and are not done: their commands are compared with
what is in the repository.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

from tests.docs.machine import placed
from tests.test_deploy import unknown

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "deploy.md"
SHIMS = ("sudo", "groupadd", "useradd", "chgrp", "install", "systemctl", "journalctl")

_BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [m[3] for m in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")) if m[1] == kind]


def test_every_block_is_of_a_known_kind() -> None:
    kinds = [m[1] for m in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    assert set(kinds) == {"install", "run", "container"} and kinds.count("run") >= 15


def shims(folder: Path) -> Path:
    folder.mkdir()
    program = ROOT / "tests" / "docs" / "machine.py"
    for name in SHIMS:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{program.read_text(encoding='utf-8')}")
        path.chmod(0o755)
    return folder


def test_the_guide_is_followed_word_by_word(tmp_path: Path) -> None:
    machine, work = tmp_path / "machine", tmp_path / "repository"
    work.mkdir()
    (work / "deploy").symlink_to(ROOT / "deploy")
    own = Path(sys.executable).parent
    (machine / "usr/local/lib/consilience").mkdir(parents=True)
    (machine / "usr/local/lib/consilience/bin").symlink_to(own)
    env = {
        **os.environ,
        "MACHINE": str(machine),
        "PATH": f"{shims(tmp_path / 'shims')}{os.pathsep}{own}{os.pathsep}{os.environ['PATH']}",
    }
    script = placed("\n".join(["set -eux", *blocks("run")]), machine)
    done = subprocess.run(
        ["bash", "-c", script], cwd=work, env=env, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stdout.count("watching") >= 2, "health names both sites"
    run = machine / "var/lib/consilience-coordinator/runs/heights"
    assert json.loads((run / "run.json").read_text())["sites"] == ["north", "south"]
    for name in ("result.json", "report.html"):
        assert (run / name).is_file()
    assert (machine / "var/backups/consilience/north.tar.gz").stat().st_size > 1000
    # The journal is one JSON object a line, and no line of it is a mistake.
    for name in ("consilience-site@north", "consilience-site@south", "consilience-run@heights"):
        text = (machine / "log" / name).read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert lines and {line["level"] for line in lines} == {"info"}, text
        assert "ed25519" not in text
    # Others of this machine read neither key nor state, and the group shares the folder.
    for site in ("north", "south"):
        key = machine / "etc/consilience" / site / "keys/consilience.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE((machine / "etc/consilience" / site).stat().st_mode) == 0o700
    shared = machine / "srv/consilience/shared"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o2770
    beats = sorted((shared / "health").glob("*.msg"))
    assert [path.stem for path in beats] == ["north", "south"]
    for path in (shared / "health", *beats):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o060 == 0o060 and not mode & 0o007, oct(mode)
    assert not list((shared / "runs").glob("*")), "what a run left is removed when it ends"


def test_what_is_installed_is_there() -> None:
    (text,) = blocks("install")
    assert "--require-hashes" in text and (ROOT / "requirements.lock").is_file()
    assert "/usr/local/lib/consilience" in text
    # As the Makefile does it, without a network for the build.
    assert "--no-deps --no-build-isolation" in text
    assert "--no-deps --no-build-isolation" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_container_runs_a_command_that_exists() -> None:
    (text,) = blocks("container")
    build, run = (shlex.split(line) for line in text.splitlines())
    assert (ROOT / build[build.index("--file") + 1]).is_file()
    tag = build[build.index("--tag") + 1]
    assert unknown(run[run.index(tag) + 1 :]) == []
    assert {"--read-only", "--rm"} <= set(run)

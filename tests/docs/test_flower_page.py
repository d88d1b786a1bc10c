"""The guide on Flower is followed word by word, in an empty directory."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_keys_pages import GUIDES, section

PAGE = "flower.md"
TRIAL = "## A trial on one machine"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def program(words: list[str], port: int) -> list[str]:
    said = [word.replace("9092", str(port)) for word in words]
    return [str(Path(sys.executable).parent / "consilience"), *said]


def fenced(text: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block."""
    found: list[tuple[str, str]] = []
    language, lines = None, []  # type: tuple[str | None, list[str]]
    for line in text.splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:], []
            else:
                found.append((language, "\n".join(lines) + "\n"))
                language = None
        elif language is not None:
            lines.append(line)
    return found


@contextmanager
def staying(words: list[list[str]], port: int, folder: Path) -> Iterator[None]:
    """The programs that stay, ended in order."""
    started = []
    try:
        for number, one in enumerate(words):
            with open(folder / f"program-{number}.log", "wb") as log:
                started.append(
                    subprocess.Popen(program(one, port), cwd=folder, stdout=log, stderr=log)
                )
        yield
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)


@pytest.mark.flower
def test_the_trial(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    text = section(PAGE, TRIAL)
    blocks = fenced(text)
    (script,) = (content for language, content in blocks if language == "python")
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    lines = [line for language, content in blocks if not language for line in content.splitlines()]
    keys, *stay, check, run = [shlex.split(line)[1:] for line in lines]
    port = free_port()
    made = subprocess.run(
        program(keys, port), cwd=tmp_path, check=True, capture_output=True, text=True
    )
    study, site = made.stdout.split("# each site file:\n")
    in_study, in_site = (content for language, content in blocks if language == "toml")
    (tmp_path / "study.toml").write_text(in_study + study)
    for name in ("ash", "birch"):
        (tmp_path / "sites" / f"{name}.toml").write_text(in_site.replace("ash", name) + site)
    with staying(stay, port, tmp_path):
        end = time.monotonic() + 90
        while True:
            asked = subprocess.run(
                program(check, port), cwd=tmp_path, capture_output=True, text=True
            )
            if asked.returncode == 0 or time.monotonic() > end:
                break
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert asked.stdout.count("can take part") == 2
        assert "load no app" in " ".join(asked.stdout.split())
        done = subprocess.run(program(run, port), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join((tmp_path / "program-0.log").read_text().split())
    assert "load no app" in said and "stock SuperNode would execute" in said
    (over_flower,) = (tmp_path / "runs").iterdir()
    here = program(["run", "study.toml", "--out", "here", "--quiet"], port)
    # The homes know the study's earlier run; the same rows give the same answer again.
    subprocess.run(here, cwd=tmp_path, check=True, capture_output=True)
    for name in ("result.json", "result.npz"):
        assert (over_flower / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert (over_flower / "report.html").is_file()


def test_keys_of_a_site_of_its_own(tmp_path: Path) -> None:
    lines = re.findall(r"^ +(consilience .*)$", (GUIDES / PAGE).read_text(), re.MULTILINE)
    said = [
        subprocess.run(
            program(shlex.split(line)[1:], 0),
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in lines
    ]
    assert len(said) == 2
    assert said[0].startswith("ecdsa-sha2-nistp384 ") and said[0].endswith(" ash\n")
    assert said[1].startswith("ed25519:")

"""``consilience site queue | preview | release | refuse``: what a steward sees and decides."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import QuorumError
from consilience.sites.loaders import file_site
from consilience.sites.site import Site
from consilience.sites.site_store import NOT_RELEASED, DiskStore
from consilience.sites.study import SiteFile
from consilience.wire.envelope import Reply
from tests.cli.test_site import CANARY, Workspace, run_cli
from tests.sites.test_site import OPEN, after, opening

REQUEST = dataclasses.replace(OPEN, site="boston", message=opening(("x", "y")))
SECOND = dataclasses.replace(after(REQUEST), site="boston")


class Held:
    """A site that holds its replies: one was released, one waits."""

    def __init__(self, root: Path) -> None:
        self.space = Workspace(root)
        self.toml = self.space.site_toml("boston")
        self.toml.write_text(self.toml.read_text() + "[release]\nhold = true\n")
        self.site: Site = file_site(SiteFile.load(self.toml))
        self.site.answer(REQUEST.to_bytes())
        assert self.site.home.jobs.release("run-1", 1, 1)
        self.site.answer(SECOND.to_bytes())

    def call(self, command: str, *words: str, code: int = 0) -> str:
        done = run_cli(command, str(self.toml), *words)
        assert done.exit_code == code, done.output
        said = done.stdout if code == 0 else done.stderr
        assert "Traceback" not in done.output
        if code:
            assert said.count("\n") == 1, "one sentence"
        return said

    def said(self) -> Any:
        found = self.site.answer(SECOND.to_bytes())
        return Reply.from_bytes(found) if isinstance(found, bytes) else found


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def test_what_waits_is_listed(held: Held) -> None:
    lines = held.call("queue").splitlines()
    assert re.fullmatch(
        r"run-1/2-1: round 2, step testing\.class-sums of testing-class-sums, \d+ bytes, "
        r"waiting since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ",
        lines[0],
    )
    assert lines[1:] == ["  sums  aggregate  2x2"]
    (job,) = json.loads(held.call("queue", "--json"))
    assert set(job) == {
        "job", "run", "method", "round", "attempt", "step", "since", "bytes", "fields"
    }  # fmt: skip
    assert (job["job"], job["round"], job["fields"]) == (
        "run-1/2-1",
        2,
        [{"class": "aggregate", "field": "sums", "shape": "2x2"}],
    )


def test_a_preview_shows_what_confirm_shows_and_no_value(held: Held) -> None:
    lines = held.call("preview", "run-1/2-1").splitlines()
    assert lines[0] == "run run-1, round 2, step testing.class-sums of method testing-class-sums"
    about = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
    assert about["features"] and re.fullmatch(r"(\S+, )?hash \S+", about["study"])
    lines = [line for line in lines if ": " not in line]
    assert lines[1].split() == ["field", "class", "shape", "bytes", "rule", "verdict", "epsilon"]
    assert lines[2].split()[:3] == ["sums", "aggregate", "2x2"]
    assert str(int(CANARY)) not in held.call("preview", "2-1")
    assert "at a terminal only" in held.call("preview", "2-1", "--values", code=2)


def test_values_are_shown_at_the_stewards_own_terminal(held: Held) -> None:
    ours, theirs = pty.openpty()
    # The method of these tests is none that an installed package would know.
    command = "import consilience.testing.fakes; from consilience.cli.site import app; app()"
    words = [sys.executable, "-c", command, "preview", str(held.toml), "2-1", "--values"]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode == 0, said
    numbers = re.findall(rb"-?\d+\.\d*(?:e[+-]\d+)?", said.split(b"sums =")[1])
    assert max(float(number) for number in numbers) > 20 * CANARY, "sums over 40 rows"


def test_what_was_answered_is_listed(held: Held) -> None:
    lines = held.call("transcript").splitlines()
    assert re.fullmatch(
        r"run-1: round 1, step opening\.read of testing-class-sums, \d+ bytes, waits", lines[0]
    )
    assert lines[-1].split()[:4] == ["sums", "aggregate", "for", "coordinator"]
    assert lines[-1].endswith("2x2") and str(int(CANARY)) not in "".join(lines)
    held.call("refuse", "2-1", "--reason", "too fine")
    (one,) = json.loads(held.call("transcript", "run-1", "--step", "testing.class-sums", "--json"))
    assert (one["outcome"], one["reason"], one["fields"]) == ("refused", NOT_RELEASED, [])
    assert "nothing was answered" in held.call("transcript", "--method", "elsewhere")
    assert "no records of run 'run-2'" in held.call("transcript", "run-2", code=7)


def test_release(held: Held) -> None:
    assert held.call("release", "run-1/2-1") == "released run-1/2-1\n"
    assert held.said().status == "reply"
    assert held.call("queue") == "no reply waits\n"
    assert json.loads(held.call("queue", "--json")) == []
    assert held.call("release", "--all") == "no reply waits\n"
    assert "was released before: it is no longer held" in held.call("release", "run-1/2-1", code=7)
    held.site.sent("run-1", 2, 1)
    assert "released before, and has been sent" in held.call("refuse", "run-1/2-1", code=7)


def test_release_all(held: Held) -> None:
    third = dataclasses.replace(REQUEST, run="run-2")
    held.site.answer(third.to_bytes())
    assert held.call("release", "--all") == "released run-1/2-1\nreleased run-2/1-1\n"


def test_refuse(held: Held) -> None:
    assert held.call("refuse", "2-1", "--reason", "not before\x1b[2J May") == "refused run-1/2-1\n"
    said = held.said()
    assert (said.status, said.reason) == ("refused", NOT_RELEASED)
    assert "was refused before" in held.call("release", "run-1/2-1", code=7)


def test_names_of_jobs(held: Held) -> None:
    assert "no job '9-9' waits here: those that do are run-1/2-1" in held.call(
        "release", "9-9", code=7
    )
    second = dataclasses.replace(REQUEST, run="run-2")
    held.site.answer(second.to_bytes())
    held.site.home.jobs.release("run-2", 1, 1)
    held.site.answer(
        dataclasses.replace(SECOND, run="run-2").to_bytes(),
    )
    assert "several runs have a job '2-1'" in held.call("preview", "2-1", code=7)
    assert held.call("release", "run-2/2-1") == "released run-2/2-1\n"
    assert "name jobs, or give --all" in held.call("release", code=2)
    assert "name jobs, or give --all" in held.call("release", "2-1", "--all", code=2)


def test_a_site_where_nothing_ran(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    done = run_cli("queue", str(space.site_toml("boston")))
    assert done.exit_code == 7 and "nothing ran here" in done.stderr
    assert not (tmp_path / "boston" / "home").exists()


def test_looking_does_not_disturb_a_watch(held: Held) -> None:
    """The commands write nothing but the decision."""
    home = Path(held.site.home.path)  # type: ignore[attr-defined]
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.is_file()}
    held.call("queue")
    held.call("preview", "2-1")
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.is_file()} == before
    held.call("release", "2-1")
    after_it = {p: p.stat().st_mtime_ns for p in home.rglob("*") if p.is_file()}
    assert {p.name for p in after_it if before.get(p) != after_it[p]} == {"2-1.json"}


# --------------------------------------------------------------------------- with a watch


@contextmanager
def steward(toml: Path, *command: str, times: int = 3) -> Iterator[list[str]]:
    """Somebody who decides by the command line as soon as something waits."""
    over, decided = threading.Event(), list[str]()
    jobs = DiskStore(SiteFile.load(toml).home_path).jobs

    def decide() -> None:
        while not over.wait(0.02) and len(decided) < times:
            for job in jobs.waiting():
                done = run_cli(command[0], str(toml), job.name, *command[1:])
                decided.append(done.output)

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        yield decided
    finally:
        over.set()
        thread.join()


def test_a_watch_sends_what_is_released(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    holding = space.process("boston", "--hold")
    with space.watching("leeds"), steward(space.site_toml("boston"), "release") as decided:
        run = space.run()
    holding.send_signal(signal.SIGTERM)
    said = holding.communicate(timeout=60)[0]
    assert run.result.n == 80
    assert len(decided) == 3
    assert np.isclose(run.result.mean[0], CANARY, atol=1)
    lines = [line for line in said.splitlines() if "round 2" in line]
    assert lines[0] == (
        "run r1, round 2, step sums: held for the steward: 'consilience site queue' lists what "
        "waits"
    )
    assert lines[1].startswith("run r1, round 2, step sums: replied with ")
    assert len(lines) == 2, "each is said once"


def test_the_coordinator_hears_of_a_refusal_and_not_why(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    toml = space.site_toml("boston")
    toml.write_text(toml.read_text() + "[release]\nhold = true\n")
    holding = space.process("boston")
    reason = ("refuse", "--reason", "ward 7 is not final")
    with (
        space.watching("leeds"),
        steward(toml, *reason, times=1),
        pytest.raises(QuorumError, match=f"boston refused: {NOT_RELEASED}") as caught,
    ):
        space.run()
    holding.terminate()
    said = holding.communicate(timeout=60)[0]
    assert "ward 7" not in str(caught.value) and "ward 7" not in said
    assert not [p for p in space.folder.rglob("*.msg") if b"ward 7" in p.read_bytes()]
    (job,) = DiskStore(tmp_path / "boston" / "home").jobs.all()
    assert (job.state, job.facts["reason"]) == ("sent", "ward 7 is not final")


@pytest.mark.parametrize("how", ["--hold", "file"])
def test_confirm_and_holding_are_two_ways(tmp_path: Path, how: str) -> None:
    space = Workspace(tmp_path)
    toml = space.site_toml("boston")
    if how == "file":
        toml.write_text(toml.read_text() + '[release]\nhold = "per-record"\n')
    more = ["--confirm"] + (["--hold"] if how == "--hold" else [])
    done = run_cli(*space.watch_arguments("boston", "--once", *more))
    assert done.exit_code == 2
    assert "leave --confirm out" in done.stderr


def test_a_wrong_word_for_holding_is_an_error(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    toml = space.site_toml("boston")
    toml.write_text(toml.read_text() + '[release]\nhold = "sometimes"\n')
    done = run_cli("queue", str(toml))
    assert done.exit_code == 2 and "hold" in done.stderr


def test_a_damaged_job_hides_no_other(held: Held) -> None:
    """It is named, and ends the command with 7; what waits beside it is listed and released."""
    jobs = held.space.root / "boston" / "home" / "jobs"
    held.site.answer(dataclasses.replace(REQUEST, run="run-2").to_bytes())
    path = jobs / "run-2" / "1-1.json"
    path.write_text("{")
    for command, words in (("queue", ()), ("queue", ("--json",)), ("release", ("--all",))):
        done = run_cli(command, str(held.toml), *words)
        assert done.exit_code == 7
        assert "run-1/2-1" in done.stdout
        assert done.stderr == f"{path} is damaged: restore it from a copy, or remove it\n"
    assert f"{path} is damaged" in held.call("release", "run-2/1-1", code=7)
    assert held.said().status == "reply"

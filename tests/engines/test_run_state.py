"""The state of a run: what its file says, what its lock says, and what a person is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from consilience.engines import rundir
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.engines.rundir import BEGUN, FAILED, FINISHED, RUNNING, STOPPED, state_file
from consilience.engines.study_run import state_of
from consilience.exceptions import QuorumError, RunError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.testing.fakes import Failing, array_loader, federation_of
from consilience.wire import files
from tests.cli.workspace import call

X = np.random.default_rng(4).normal(size=(30, 2))


def federation(homes: Path | None = None) -> Federation:
    if homes is None:
        return federation_of({"a": X, "b": X + 1})
    sites = [
        Site(name, array_loader(X), home=DiskStore(homes / f"home-{name}")) for name in ("a", "b")
    ]
    return Federation(LocalEngine(sites), Columns(features=("x0", "x1")))


def test_a_run_that_goes_well(tmp_path: Path) -> None:
    out = tmp_path / "run"
    seen = []
    federation().run(MeanAndSD(), seed=1, out=out, on_event=lambda k, f: seen.append(state_of(out)))
    assert set(seen) == {(RUNNING, "")}
    assert state_of(out) == (FINISHED, "")
    state, version, facts = state_file(out).read()
    assert (state, version, facts["reason"]) == (FINISHED, 2, "")
    federation().run(MeanAndSD(), seed=1, out=out, resume=True)
    assert state_file(out).read()[:2] == (FINISHED, 4)


def test_a_run_that_fails_says_why_until_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(QuorumError) as caught:
        federation().run(Failing(), seed=1, out=out)
    assert state_of(out) == (FAILED, str(caught.value))
    shown = call("status", out)
    assert shown.exit_code == 0
    assert "failed: " in shown.stdout and "--resume" in shown.stdout
    assert json.loads(call("status", out, "--json").stdout)["state"] == FAILED
    with rundir.RunStore(rundir.read_info(out), out).at_work():
        assert state_file(out).read().facts["reason"] == ""


def test_an_error_that_nobody_foresaw_is_named_without_its_text(tmp_path: Path) -> None:
    def fail(kind: str, facts: object) -> None:
        raise ValueError("918273.6455")

    with pytest.raises(ValueError, match="9182"):
        federation().run(MeanAndSD(), seed=1, out=tmp_path, on_event=fail)
    assert state_of(tmp_path) == (FAILED, "ValueError")


def test_who_interrupts_a_run_stops_it(tmp_path: Path) -> None:
    def interrupt(kind: str, facts: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation().run(MeanAndSD(), seed=1, out=tmp_path, on_event=interrupt)
    assert state_of(tmp_path) == (STOPPED, "")
    assert state_file(tmp_path).read().state == STOPPED


SCRIPT = """
import sys, time
from pathlib import Path
from consilience.protocol.mean_and_sd import MeanAndSD
from tests.engines.test_run_state import federation

def wait(kind, facts):
    if facts.get("round") == 2:
        print("here", flush=True)
        time.sleep(60)

out = Path(sys.argv[1])
federation(out.parent).run(MeanAndSD(), seed=1, out=out, on_event=wait)
"""


def test_a_run_whose_process_died_has_stopped(tmp_path: Path) -> None:
    """Never running, whatever its file says."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert state_of(out) == (RUNNING, "")
        assert '"state": "running"' in call("status", out, "--json").stdout
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert state_file(out).read().state == RUNNING
    assert state_of(out) == (STOPPED, "")
    assert '"state": "stopped"' in call("status", out, "--json").stdout
    run = federation(tmp_path).run(MeanAndSD(), seed=1, out=out, resume=True)
    assert run.result.n == 60
    assert state_of(out) == (FINISHED, "")


def test_runs_of_before_there_were_states(tmp_path: Path) -> None:
    federation().run(MeanAndSD(), seed=1, out=tmp_path)
    (tmp_path / "state.json").unlink()
    assert state_of(tmp_path) == (FINISHED, "")
    (tmp_path / "result.json").unlink()
    assert state_of(tmp_path) == (STOPPED, "")


def test_a_result_that_is_whole_is_a_finished_run(tmp_path: Path) -> None:
    """Killed between the result and the state."""
    federation().run(MeanAndSD(), seed=1, out=tmp_path)
    (tmp_path / "state.json").write_text('{"facts": {}, "state": "running", "version": 1}')
    assert state_of(tmp_path) == (FINISHED, "")


def test_a_run_that_was_only_begun(tmp_path: Path) -> None:
    federation().run(MeanAndSD(), seed=1, out=tmp_path / "other")
    store = rundir.RunStore.create(rundir.read_info(tmp_path / "other"), tmp_path / "run")
    assert state_of(tmp_path / "run") == (BEGUN, "")
    store.close()
    assert state_of(tmp_path / "run") == (STOPPED, "")


def test_a_damaged_state_is_not_written_over(tmp_path: Path) -> None:
    federation().run(MeanAndSD(), seed=1, out=tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(RunError, match=r"state.json is damaged: restore it from a copy, or remove"):
        federation().run(MeanAndSD(), seed=1, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="is damaged"):
        state_of(tmp_path)
    assert (tmp_path / "state.json").read_text() == "{"
    (tmp_path / "state.json").unlink()
    federation().run(MeanAndSD(), seed=1, out=tmp_path, resume=True)


def test_a_full_disk_keeps_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state cannot be written either: the error told is the one that came first."""
    real = files.os.replace

    def replace(source: str, target: str, **where: int) -> None:
        if target != "run.json" and full:
            raise OSError(28, "No space left on device")
        real(source, target, **where)

    full: list[bool] = []
    monkeypatch.setattr(files.os, "replace", replace)

    def fill(kind: str, facts: object) -> None:
        full.append(True)

    with pytest.raises(RunError, match=r"context\.json: the disk is full"):
        federation().run(MeanAndSD(), seed=1, out=tmp_path, on_event=fill)
    assert state_of(tmp_path) == (STOPPED, "")

"""``consilience health`` and ``status --json --watch``: what an operator looks at."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest

from consilience.cli import status as command
from consilience.engines import study_run
from consilience.engines.rundir import read_info
from consilience.sites.site_store import DiskStore
from tests.cli.test_site import Workspace, run_cli
from tests.cli.workspace import Workspace as LocalWorkspace
from tests.cli.workspace import call, ran_once, sentence


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> LocalWorkspace:
    """Ran once, to be read only."""
    return ran_once(tmp_path_factory.mktemp("ran"))


def look(workspace: Workspace, *more: str) -> tuple[int, str, str]:
    done = call("health", workspace.study_toml, "--folder", workspace.folder, *more)
    return done.exit_code, done.stdout, done.stderr


def test_health_of_a_federation(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    code, table, said = look(workspace)
    assert code == 9 and "2 of 2 sites need attention: boston, leeds" in said
    assert table.count("there is no heartbeat") == 2
    with workspace.watching("boston", "leeds") as processes:
        for process in processes.values():
            assert process.stdout is not None and "watching" in process.stdout.readline()
        for _ in range(600):
            code, table, said = look(workspace, "--json")
            if code == 0:
                break
            threading.Event().wait(0.05)
        found = json.loads(table)
        assert code == 0 and found["well"] and said == ""
        assert [one["site"] for one in found["sites"]] == ["boston", "leeds"]
        assert all(one["state"] == "watching" and one["age"] < 60 for one in found["sites"])
        code, table, said = look(workspace)
        assert code == 0 and "watching" in table
    # Killed, not stopped: silent once its heartbeats are missed; here the last is a minute old.
    assert run_cli(*workspace.watch_arguments("boston", "--once")).exit_code == 0
    code, table, said = look(workspace)
    assert code == 9 and "1 of 2 sites need attention: boston" in said
    assert "boston: its watch was stopped" in table
    (workspace.folder / "health" / "leeds.msg").write_bytes(b"damaged")
    assert "leeds: " in look(workspace)[1]


def test_heartbeats_can_be_left_out(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    arguments = workspace.watch_arguments("boston", "--once", "--heartbeat", "0")
    assert run_cli(*arguments).exit_code == 0
    assert not (workspace.folder / "health").exists()


def test_mistakes(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    missing = call("health", workspace.study_toml, "--folder", tmp_path / "none")
    assert missing.exit_code == 9 and "there is no folder" in sentence(missing)
    workspace.study_toml.write_text(workspace.study_toml.read_text().split("[sites.keys]")[0])
    keyless = call("health", workspace.study_toml, "--folder", workspace.folder)
    assert keyless.exit_code == 2 and "no public key" in sentence(keyless)


def test_status_for_programs(
    ran: LocalWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(call("status", "--json").stdout) == []
    space = ran.copied(tmp_path)
    one = json.loads(call("status", space.out, "--json").stdout)
    assert (one["state"], one["waiting"], one["waiting_for"]) == ("finished", 0, [])
    assert one["sites"] == one["answered"] == ["boston", "lyon", "osaka"]
    assert json.loads(call("status", "--json").stdout)[0]["run"] == one["run"]
    watched = call("status", space.out, "--json", "--watch")
    assert watched.exit_code == 0 and len(watched.stdout.splitlines()) == 1


def test_status_watched_until_the_run_ends(
    ran: LocalWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is told of, and the end ends it."""
    space = ran.copied(tmp_path)
    last = study_run.progress_of(space.out, read_info(space.out))
    first = {**last, "state": "running", "round": 1, "waiting_for": ["lyon"], "waiting": 1}
    looks = iter([first, first, first, {**first, "round": 2}, {**first, "round": 2}, last])
    monkeypatch.setattr(study_run, "progress_of", lambda path, info: next(looks, last))
    done = call("status", space.out, "--watch", "--json", "--every", "0.05")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0] == first and lines[-1] == last
    # A line when something changed, and no line twice.
    assert len(lines) <= 3 and all(a != b for a, b in itertools.pairwise(lines))


def test_status_names_what_waits_at_sites_here(ran: LocalWorkspace, tmp_path: Path) -> None:
    space = ran.copied(tmp_path)
    run = json.loads((space.out / "run.json").read_text())["run"]
    home = DiskStore(tmp_path / "homes" / "lyon")
    for name in (run, "another"):
        state = home.jobs.state(name, 2, 1)
        assert state.move("computed", "held", method="m", step="s", since=0.0, fields=[], bytes=1)
    done = call("status", space.out, "--sites", tmp_path / "sites", "--json")
    assert json.loads(done.stdout)["held"] == {"lyon": [f"{run}/2-1"]}
    told = call("status", space.out, "--sites", tmp_path / "sites").stdout
    assert "Held at lyon" in told and "another" not in told
    missing = call("status", space.out, "--sites", tmp_path / "none")
    assert missing.exit_code == 2 and "--sites" in sentence(missing)


def test_times_are_told_in_the_unit_of_which_two_have_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command.time, "time", lambda: 1e9)
    for seconds, told in (
        (-3, "0 seconds ago"),
        (119, "119 seconds ago"),
        (120, "2 minutes ago"),
        (7199, "120 minutes ago"),
        (7200, "2 hours ago"),
        (172800, "2 days ago"),
    ):
        assert command._ago(1e9 - seconds) == told
    assert command._ago(None) == "never"

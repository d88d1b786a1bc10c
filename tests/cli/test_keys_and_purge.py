"""Keys that follow, and purging by age, as people call them."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path

import pytest

from consilience.exceptions import QuorumError
from consilience.sites.site_store import DiskStore, sole
from consilience.sites.study import Study
from consilience.wire.keys import KeyList, today
from consilience.wire.signing import SigningKey
from tests.cli.test_site import Workspace as Federated
from tests.cli.workspace import SITES, Workspace, call

DAY = 86400.0


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


def age(*paths: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in paths:
        os.utime(path, (then, then))


# --- keys -------------------------------------------------------------------------------------


def test_rotate_and_retire(tmp_path: Path) -> None:
    place = tmp_path / "k"
    assert call("site", "keys", place, "--rotate").exit_code == 2
    old = call("site", "keys", place).stdout.strip()
    early = call("site", "keys", place, "--retire")
    assert early.exit_code == 2 and "no key follows" in early.stderr
    both = call("site", "keys", place, "--rotate", "--retire")
    assert both.exit_code == 2 and "one at a time" in both.stderr
    rotated = call("site", "keys", place, "--rotate")
    assert rotated.exit_code == 0 and rotated.stdout.count("\n") == 1
    line = rotated.stdout.strip()
    keys = KeyList.of(tomllib.loads(f'k = ["{old}", {line}]')["k"])
    assert call("site", "keys", place, "--rotate").stdout == rotated.stdout
    assert call("site", "keys", place).stdout.strip() == old, "the old one signs"
    retired = call("site", "keys", place, "--retire")
    assert retired.exit_code == 0 and retired.stdout == rotated.stdout
    assert old in retired.stderr
    assert call("site", "keys", place).stdout.strip() == keys.publics[1]
    said = "".join(r.output for r in (rotated, retired))
    assert "PRIVATE" not in said


def test_a_study_with_the_printed_line_has_the_same_hash(space: Workspace) -> None:
    place = space.root / "keys"
    old = call("site", "keys", place).stdout.strip()
    others = "\n".join(f'{s} = "{SigningKey.generate().public}"' for s in SITES[1:])
    space.write(more=f'[sites.keys]\n{SITES[0]} = "{old}"\n{others}')
    before = Study.load(space.file).hash()
    line = call("site", "keys", place, "--rotate").stdout.strip()
    space.write(more=f'[sites.keys]\n{SITES[0]} = ["{old}", {line}]\n{others}')
    assert Study.load(space.file).hash() == before
    assert f"Hash    {before}" in call("check", space.file).stdout


def test_check_says_when_keys_end(space: Workspace) -> None:
    key = SigningKey.generate().public
    space.write(more=f'[coordinator]\nkey = {{ key = "{key}", until = {today()} }}')
    said = " ".join(call("check", space.file).stdout.split())
    assert f"the last key of the coordinator ends on {today()}" in said
    space.write(more=f'[coordinator]\nkey = {{ key = "{key}", until = 2020-01-01 }}')
    said = " ".join(call("check", space.file).stdout.split())
    assert "every key of the coordinator has ended" in said
    space.write(more=f'[coordinator]\nkey = "{key}"')
    assert "key of" not in call("check", space.file).stdout


# --- purge at a site --------------------------------------------------------------------------


def records(space: Workspace, site: str) -> list[str]:
    return sorted(path.name for path in (space.root / "homes" / site / "runs").iterdir())


def test_purge_of_old_runs_at_a_site(space: Workspace) -> None:
    assert call("run", space.file).exit_code == 0
    assert call("run", space.file).exit_code == 0
    old, new = records(space, "lyon")
    folder = space.root / "homes" / "lyon" / "runs" / old
    age(*folder.iterdir(), folder, days=40)
    toml = space.root / "sites" / "lyon.toml"
    looked = call("site", "purge", toml, "--older-than", 30, "--dry-run")
    assert looked.stdout == f"would drop the records of run {old} at site lyon\n"
    assert records(space, "lyon") == [old, new]
    home = DiskStore(space.root / "homes" / "lyon")
    with sole(home):
        busy = call("site", "purge", toml, "--older-than", 30)
        assert busy.exit_code == 7 and "another process serves the home" in busy.stderr
        assert call("site", "purge", toml, "--older-than", 30, "--dry-run").exit_code == 0
    done = call("site", "purge", toml, "--older-than", 30)
    assert done.stdout.startswith(f"dropped the records of run {old} at site lyon")
    assert records(space, "lyon") == [new]
    assert old in call("site", "outputs", toml).stdout
    purged = [line for line in home.read_log() if line["event"] == "purged"]
    assert [(line["run"], line["reason"][:14]) for line in purged] == [(old, "by the steward")]
    assert "no records to drop" in call("site", "purge", toml, "--older-than", 30).stdout


def test_purge_at_a_site_wants_a_run_or_an_age(space: Workspace) -> None:
    assert call("run", space.file).exit_code == 0
    toml = space.root / "sites" / "lyon.toml"
    (run,) = records(space, "lyon")
    for words in ((), (run, "--older-than", 3)):
        wrong = call("site", "purge", toml, *words)
        assert wrong.exit_code == 2 and "one of them" in wrong.stderr
    assert call("site", "purge", toml, "--older-than", -1).exit_code == 2
    assert call("site", "purge", toml, "../ledger").exit_code == 7
    assert (
        f"would drop the records of run {run} "
        in call("site", "purge", toml, run, "--dry-run").stdout
    )
    assert "no records" in call("site", "purge", toml, "never", "--dry-run").stdout
    assert records(space, "lyon") == [run]


# --- purge at the coordinator -----------------------------------------------------------------


def test_purge_of_old_runs_at_the_coordinator(space: Workspace) -> None:
    for _ in range(3):
        assert call("run", space.file).exit_code == 0
    runs = space.root / "runs"
    ended, stopped, recent = sorted(runs.iterdir())
    (stopped / "result.json").unlink()
    age(ended / "result.json", stopped / "journal" / "log", days=40)
    shared = space.root / "shared"
    for path in (ended, stopped, recent):
        (shared / "runs" / path.name / "asks").mkdir(parents=True)
        (shared / "runs" / path.name / "asks" / "1-1-lyon.msg").write_bytes(b"x")
    (shared / "runs" / f".{ended.name}.closed").mkdir()
    left = sorted(p.name for p in (shared / "runs").iterdir())
    words = ("purge", runs, "--older-than", 30, "--folder", shared)
    said = call(*words, "--dry-run").stdout
    assert f"would drop the payloads of {ended}" in said and "kept" in said
    assert (ended / "journal").is_dir()
    assert sorted(p.name for p in (shared / "runs").iterdir()) == left
    said = " ".join(call(*words).stdout.split())
    assert f"kept {stopped}: it has not ended" in said
    assert f"dropped the payloads of {ended}" in said and recent.name not in said
    assert not (ended / "journal").exists()
    assert (stopped / "journal").is_dir() and (recent / "journal").is_dir()
    assert sorted(p.name for p in (shared / "runs").iterdir()) == sorted(
        [stopped.name, recent.name]
    )
    events = (ended / "events.jsonl").read_text().splitlines()
    assert json.loads(events[-1])["event"] == "purged"
    assert call("show", ended).exit_code == 0
    assert call("transcript", ended, "--verify").exit_code == 0
    assert "nothing to drop" in call(*words).stdout
    assert call(*words, "--force").exit_code == 0
    assert not (stopped / "journal").exists()
    assert "nothing to drop" in call("purge", "--older-than", 30).stdout


def test_purge_at_the_coordinator_wants_a_run_or_an_age(space: Workspace) -> None:
    assert call("run", space.file).exit_code == 0
    (run,) = (space.root / "runs").iterdir()
    assert call("purge").exit_code == 2
    assert call("purge", "nowhere", "--older-than", 1).exit_code == 7
    assert call("purge", run, "--folder", "nowhere").exit_code == 9
    assert "Would drop" in call("purge", run, "--dry-run").stdout
    assert (run / "journal").is_dir()
    shared = space.root / "shared"
    (shared / "runs" / run.name).mkdir(parents=True)
    said = " ".join(call("purge", run, "--folder", shared).stdout.split())
    assert "and what it had left in" in said
    assert not (shared / "runs" / run.name).exists()


def test_a_run_at_work_is_not_purged(space: Workspace) -> None:
    from consilience.engines import rundir

    assert call("run", space.file).exit_code == 0
    (run,) = (space.root / "runs").iterdir()
    store = rundir.RunStore(rundir.read_info(run), run)
    try:
        busy = call("purge", run, "--force")
        assert busy.exit_code == 7 and "at work" in busy.stderr
        assert "at work" in call("purge", "--older-than", 0, "--force").stdout
    finally:
        store.close()
    assert (run / "journal").is_dir()


# --- with processes ---------------------------------------------------------------------------


def test_a_site_changes_its_key_and_an_approved_study_goes_on(tmp_path: Path) -> None:
    """As in the guide: rotate, have it listed, retire, watch again; with a retention besides."""
    space = Federated(tmp_path)
    place, toml = space.root / "boston" / "keys", space.site_toml("boston")
    assert call("site", "approve", toml, space.study_toml).exit_code == 0
    old = space.keys["boston"].public
    with space.watching("boston", "leeds"):
        assert space.run(run_id="r1").result.n == 80
        line = call("site", "keys", place, "--rotate").stdout.strip()
        assert space.run(run_id="r2").result.n == 80, "the old key signs"
    text = space.study_toml.read_text()
    with_both = text.replace(f'boston = "{old}"', f'boston = ["{old}", {line}]')
    assert call("site", "keys", place, "--retire").exit_code == 0

    folder = space.root / "boston" / "home" / "runs" / "r1"
    age(*folder.iterdir(), folder, days=40)
    toml.write_text(toml.read_text() + "[retention]\ndays = 30\n")
    with space.watching("boston", "leeds") as processes:
        with pytest.raises(QuorumError, match="not signed by boston"):
            space.run(run_id="r3", deadline=5.0)
        assert with_both != text
        space.study_toml.write_text(with_both)
        assert space.run(run_id="r4").result.n == 80
        processes["boston"].terminate()
        said, _ = processes["boston"].communicate(timeout=60)
    assert "run r1: purged: last asked 40 days ago" in said
    assert not folder.exists() and (folder.parent / "r2").is_dir()

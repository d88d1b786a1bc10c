"""Damaged files of a home: what needs them is refused, in a message, and the rest goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.cli.logs import LogLevel, as_line
from consilience.exceptions import DamageError, RunError
from consilience.sites.site import APPROVED, PURGED, TABLES, Site
from consilience.sites.site_store import NOT_RELEASED, DiskStore, MemoryStore
from consilience.sites.steward import old_runs, purge_old
from consilience.wire.envelope import Reply, Request
from tests.rotation import by_turns
from tests.sites.test_site import OPEN, after, ask, site

RUN = OPEN.run
SECOND = after(OPEN)
OTHER = dataclasses.replace(OPEN, run="other")
OF_RUN = "what the site keeps of this run is damaged: its steward can restore it, or purge the run"
OF_DATA = (
    "what the site keeps of this data set is damaged: nothing is answered on it before its steward "
    "has restored it"
)


def altered(path: Path) -> None:
    data = path.read_bytes()
    at = len(data) * 2 // 3
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def instead(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


DAMAGES: dict[str, Callable[[Path], None]] = {
    "altered": altered,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "directory": instead(Path.mkdir),
    "pipe": instead(os.mkfifo),
    "link to itself": instead(lambda path: path.symlink_to(path)),
}
FILES = {
    "the answer itself": (OPEN, f"runs/{RUN}/000001-001.record"),
    "the answer before": (SECOND, f"runs/{RUN}/000001-001.record"),
    "rows": (SECOND, f"outputs/{RUN}/rows.bin"),
}


def lines(one: Site, event: str) -> list[str]:
    return [line["reason"] for line in one.home.read_log() if line["event"] == event]


def begun(path: Path) -> Site:
    one = site(home=DiskStore(path))
    ask(one, OPEN)
    one.home.write_outputs(RUN, {"rows.bin": b"\x82\xa4rows\x90\xa7columns\x80"})
    return one


@by_turns(DAMAGES, FILES, names=("damage", "file"))
def test_only_the_damaged_run_is_refused(
    damage: Callable[[Path], None], file: tuple[Request, str], tmp_path: Path
) -> None:
    """In a message to who asked; the steward reads which file; restored, all is as before."""
    request, name = file
    wanted = begun(tmp_path / "whole").answer(request.to_bytes())
    one, path = begun(tmp_path / "home"), tmp_path / "home" / name
    shutil.copy(path, tmp_path / "copy")
    damage(path)
    for again in (one, site(home=DiskStore(tmp_path / "home"))):
        said = ask(again, request)
        assert (said.status, said.message, said.verdicts) == ("refused", b"", ())
        assert said.reason == OF_RUN
        assert (said.run, said.round, said.attempt) == (RUN, request.round, request.attempt)
        ((run, sentence),) = again.take_damages()
        assert (
            run == RUN and sentence.startswith(str(path)) and "restore it from a copy" in sentence
        )
        assert again.take_damages() == []
        assert lines(again, "damaged")[-1] == sentence
        line = as_line("damaged", LogLevel.warning, {"run": RUN, "reason": sentence})
        assert json.loads(line)["code"] == "damaged" and str(path) not in line
        assert ask(again, OTHER).status == "reply"
        assert ask(again, dataclasses.replace(SECOND, run="other")).status == "reply"
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    shutil.move(tmp_path / "copy", path)
    assert one.answer(request.to_bytes()) == wanted, "nothing was kept of the refusals"


# Ledgers are text that a steward may read: they have no checksum.
@by_turns(
    {name: damage for name, damage in DAMAGES.items() if name != "altered"},
    ["default", TABLES, PURGED, APPROVED],
    names=("damage", "ledger"),
)
def test_a_damaged_ledger_is_told_and_stops_what_is_on_its_data(
    damage: Callable[[Path], None], ledger: str, tmp_path: Path
) -> None:
    home = DiskStore(tmp_path)
    one = site(home=home)
    name = one.policy.data_id if ledger == "default" else ledger
    ask(one, OPEN)
    home.write_ledger(PURGED, {"runs": ["gone"]})
    home.write_ledger(TABLES, {"gone": "a hash"})
    if ledger == APPROVED:
        home.write_ledger(APPROVED, {"studies": []})
    path = tmp_path / "ledger" / f"{name}.json"
    whole = path.read_bytes()
    damage(path)
    said = ask(one, OTHER)
    assert (said.status, said.reason) == ("refused", OF_DATA)
    ((run, sentence),) = one.take_damages()
    assert (
        run == "other"
        and sentence.startswith(str(path))
        and "what was spent is counted in it" in sentence
    )
    assert ask(one, OPEN).status == "reply", "what was said before is said again"
    with pytest.raises(DamageError):
        home.ledger(name)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.write_bytes(whole)
    assert ("has approved" in ask(one, OTHER).reason) is (ledger == APPROVED)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_was_drawn_once_is_not_drawn_again(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    home = DiskStore(tmp_path)
    home.write_kept("d", "noise", {"x": 0.25})
    (path,) = (tmp_path / "kept" / "d").iterdir()
    damage(path)
    with pytest.raises(DamageError, match="without a new price") as raised:
        home.kept("d", "noise")
    assert raised.value.public == OF_DATA


@pytest.mark.parametrize("what", [".record", ".bin"])
def test_a_home_in_memory(what: str) -> None:
    home = MemoryStore()
    one = site(home=home)
    ask(one, OPEN)
    home.write_kept("d", "noise", {"x": 0.25})
    folder = "kept" if what == ".bin" else "runs"
    for parts, data in home.files.items():
        if parts[0] == folder and parts[2].endswith(what):
            home.files[parts] = data[:-1] + bytes([data[-1] ^ 1])
    if what == ".bin":
        with pytest.raises(DamageError, match="without a new price"):
            home.kept("d", "noise")
        return
    said = ask(one, SECOND)
    assert (said.status, said.reason) == ("refused", OF_RUN)
    assert ask(one, OTHER).status == "reply"
    assert len(one.take_damages()) == 1


@pytest.mark.parametrize("file", ["a file", "a link"])
def test_a_run_that_cannot_be_written_is_refused_alone(file: str, tmp_path: Path) -> None:
    one = site(home=DiskStore(tmp_path))
    ask(one, OTHER)
    path = tmp_path / "runs" / RUN
    path.symlink_to(path) if file == "a link" else path.write_bytes(b"")
    assert ask(one, OPEN).reason == OF_RUN
    ((_, sentence),) = one.take_damages()
    assert f"purge run {RUN}" in sentence
    assert ask(one, dataclasses.replace(SECOND, run="other")).status == "reply"
    one.purge(RUN)
    assert not path.exists() and not path.is_symlink()
    assert "purged" in ask(one, OPEN).reason


def test_a_home_that_fails_as_a_whole_still_ends_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is no damage: nothing is refused for good that could be answered later."""
    from consilience.wire import files

    one = site(home=DiskStore(tmp_path))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match="the disk is full") as raised:
        one.answer(OPEN.to_bytes())
    assert not isinstance(raised.value, DamageError)


# --------------------------------------------------------------------------- held replies, purge


def held_at(path: Path) -> tuple[Site, Path]:
    """Two runs whose first reply waits; the job of one of them is damaged."""
    one = site(home=DiskStore(path), hold="all")
    for request in (OPEN, OTHER):
        assert not isinstance(one.answer(request.to_bytes()), bytes)
    job = path / "jobs" / RUN / "1-1.json"
    os.truncate(job, 10)
    return one, job


def test_a_damaged_job_hides_no_other(tmp_path: Path) -> None:
    one, path = held_at(tmp_path)
    jobs = one.home.jobs
    assert [job.run for job in jobs.waiting()] == ["other"]
    assert [str(error) for error in jobs.damages()] == [
        f"{path} is damaged: restore it from a copy, or remove it"
    ]
    assert jobs.refuse("other", 1, 1)
    found = one.answer(OTHER.to_bytes())
    assert isinstance(found, bytes) and Reply.from_bytes(found).reason == NOT_RELEASED
    path.unlink()
    assert [job.run for job in jobs.waiting()] == []
    assert not isinstance(one.answer(OPEN.to_bytes()), bytes), "it is held still"
    assert [job.run for job in jobs.waiting()] == [RUN]


def test_a_job_without_its_facts_is_damaged(tmp_path: Path) -> None:
    one, path = held_at(tmp_path)
    path.write_text('{"state": "held", "version": 1, "facts": {}}')
    assert len(one.home.jobs.damages()) == 1
    assert [job.run for job in one.home.jobs.all()] == ["other"]


def test_noting_that_a_reply_has_left_fails_for_its_run_only(tmp_path: Path) -> None:
    one, path = held_at(tmp_path)
    one.sent(RUN, 1, 1)
    ((run, sentence),) = one.take_damages()
    assert run == RUN and str(path) in sentence


def test_retention_goes_on_past_what_is_damaged(tmp_path: Path) -> None:
    """A run of which is not known whether its reply waits is kept; the others go."""
    one, _ = held_at(tmp_path)
    assert one.home.jobs.refuse("other", 1, 1)
    later = 1e11
    assert list(old_runs(one.home, 30, now=later)) == ["other"]
    loop = tmp_path / "runs" / "other" / "000009-001.record"
    loop.symlink_to(loop)
    assert list(purge_old(one, 30, now=later)) == ["other"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUN]


def test_a_run_that_cannot_be_purged_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = site(home=DiskStore(tmp_path))
    for request in (OPEN, OTHER):
        ask(one, request)
    real = one.purge

    def purge(run: str) -> None:
        if run == "other":
            raise RunError("no")
        real(run)

    monkeypatch.setattr(one, "purge", purge)
    with pytest.raises(RunError, match="no"):
        purge_old(one, 30, now=1e11)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]
    told: list[str] = []
    assert purge_old(one, 30, now=1e11, on_error=lambda run, error: told.append(run)) == {}
    assert told == ["other"]


# --------------------------------------------------------------------------- outputs, log


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"method": "m"}', "\udcff"])
def test_damaged_provenance_is_named(text: str, tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    home.write_outputs(RUN, {"provenance.json": text.encode(errors="surrogateescape")})
    found = Site("a", lambda *_: None, home=home).output(RUN)  # type: ignore[arg-type]
    with pytest.raises(DamageError, match=r"outputs/run-1/provenance\.json is damaged: restore it"):
        _ = found.provenance
    for name in ("predictor.bin", "rows.bin"):
        home.write_outputs(RUN, {name: text.encode(errors="surrogateescape")})
        with pytest.raises(DamageError, match=f"{name} is damaged"):
            _ = found.arrays if name == "predictor.bin" else found.labels


def test_a_damaged_line_of_the_log_hides_no_other(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    home.log("first")
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(b"\xff{\n[1]\n")
    home.log("last")
    events = [line["event"] for line in home.read_log()]
    assert events == ["first", *["a line that cannot be read"] * 2, "last"]


def test_what_a_killed_process_left_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    from consilience.sites.site_store import sole

    home = DiskStore(tmp_path)
    for folder in ("runs", "outputs", "jobs"):
        (tmp_path / folder / RUN / ".x.part").mkdir(parents=True)
    with sole(home):
        pass

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.engines import rundir
from consilience.engines.federation import load_run
from consilience.engines.rundir import RunInfo, RunStore, check_resumable, read_info
from consilience.exceptions import QuorumError, RunError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.testing.fakes import federation_of

TABLES = {f"s{i}": np.random.default_rng(i).normal(size=(30 + i, 2)) for i in range(2)}

INFO = RunInfo(
    run="r",
    name="study",
    study="hash",
    method="mean-and-sd",
    method_version=1,
    parameters={},
    release="1",
    libraries=rundir.libraries(),
    seed=3,
    sites=("a", "b"),
    engine="local",
)


def test_info_comes_back(tmp_path: Path) -> None:
    store = RunStore.create(INFO, tmp_path / "run")
    store.close()
    assert read_info(tmp_path / "run") == INFO


def test_a_directory_holds_one_run(tmp_path: Path) -> None:
    RunStore.create(INFO, tmp_path).close()
    with pytest.raises(RunError, match="already holds a run: go on with it by --resume"):
        RunStore.create(INFO, tmp_path)


def hold(path: Path, ready: Any, done: Any) -> None:
    store = RunStore(INFO, path)
    ready.set()
    done.wait(30)
    store.close()


def test_two_coordinators_on_one_directory(tmp_path: Path) -> None:
    RunStore.create(INFO, tmp_path).close()
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RunError, match="another coordinator is at work"):
            RunStore(INFO, tmp_path)
    finally:
        done.set()
        other.join(60)
    RunStore(INFO, tmp_path).close()


def test_two_coordinators_in_one_process(tmp_path: Path) -> None:
    first = RunStore.create(INFO, tmp_path)
    with pytest.raises(RunError, match="another coordinator"):
        RunStore(INFO, tmp_path)
    first.close()
    RunStore(INFO, tmp_path).close()


@pytest.mark.parametrize(
    "change",
    [{"release": "2"}, {"method": "other"}, {"method_version": 2}, {"study": "other"}],
)
def test_another_version_or_study_is_not_resumed(change: dict[str, Any]) -> None:
    what = next(iter(change)).replace("_", " ")
    with pytest.raises(RunError, match=f"was begun with {what}"):
        check_resumable(Path("run"), INFO, replace(INFO, **change))
    check_resumable(Path("run"), INFO, INFO)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no run"),
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "has schema None and this release reads 1"),
        ('{"schema": 2}', "has schema 2 and this release reads 1"),
        ('{"schema": 1}', "is damaged"),
        ('{"schema": 1, "sites": ["a"], "run": "r"}', "is damaged"),
    ],
)
def test_a_damaged_run_file(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=words):
        read_info(tmp_path)


def finished(path: Path) -> Any:
    return MeanAndSD().run(federation_of(TABLES), seed=1, out=path)


def test_a_run_is_loaded_from_its_directory(tmp_path: Path) -> None:
    run = finished(tmp_path)
    loaded = load_run(tmp_path)
    assert loaded.result.to_files() == run.result.to_files()
    assert loaded.transcript == run.transcript
    assert (loaded.notes, loaded.presets, loaded.info) == (run.notes, run.presets, run.info)


def test_an_unfinished_run_is_not_loaded(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(RunError, match="has not ended"):
        load_run(tmp_path)


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    with pytest.raises(QuorumError) as failed:
        few = federation_of({"a": TABLES["s0"][:3]}, policy="strict")
        MeanAndSD().run(few, seed=1, out=tmp_path)
    with pytest.raises(RunError, match=r"the run in .* failed: ") as told:
        load_run(tmp_path)
    assert str(failed.value) in str(told.value)


@pytest.mark.parametrize("name", ["context.json", "result.npz", "transcript.jsonl"])
def test_a_damaged_run_is_named(tmp_path: Path, name: str) -> None:
    finished(tmp_path)
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(RunError):
        load_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunError):
        load_run(tmp_path)


def test_purge_drops_payloads_and_keeps_what_a_steward_reads(tmp_path: Path) -> None:
    run = finished(tmp_path)
    rundir.purge(tmp_path)
    rundir.purge(tmp_path)
    assert not (tmp_path / "journal").exists()
    assert load_run(tmp_path).transcript == run.transcript
    with pytest.raises(RunError, match="holds no run"):
        rundir.purge(tmp_path / "elsewhere")


def test_run_ids_are_new(tmp_path: Path) -> None:
    ids = {rundir.new_run_id("study") for _ in range(20)}
    assert len(ids) == 20
    assert all(i.startswith("study-") for i in ids)


def test_a_full_disk_is_told_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    federation = federation_of(TABLES)
    plain = os.fsync
    left = [6]

    def fsync(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(RunError, match="the disk is full: free some space"):
            MeanAndSD().run(federation, seed=1, out=tmp_path / "run")
    resumed = MeanAndSD().run(federation, out=tmp_path / "run", resume=True)
    assert resumed.result.to_files() == finished(tmp_path / "other").result.to_files()


def test_what_is_waited_for_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the coordinator as often a round with many sites; two waits for a site's record."""
    import os

    from consilience.sites.site_store import DiskStore

    found = []
    for n_sites in (2, 7):
        drawn = np.random.default_rng(n_sites).normal(size=(n_sites, 30, 2))
        federation = federation_of({f"s{i}": x for i, x in enumerate(drawn)})
        for site in federation.engine.members.values():  # type: ignore[attr-defined]
            site.home = DiskStore(tmp_path / f"{n_sites}" / site.name)
        waits, plain = [0], os.fsync

        def fsync(handle: int, waits: list[int] = waits, plain: Any = plain) -> None:
            waits[0] += 1
            plain(handle)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            MeanAndSD().run(federation, seed=1, out=tmp_path / f"run-{n_sites}")
        found.append(waits[0])
    opening, rounds, record = 2 * 2, 3, 2  # rows of the run, and the ledger
    assert found[1] - found[0] == 5 * (opening + rounds * record)
    assert found[0] - 2 * (opening + rounds * record) <= 15 + 4 * rounds


def test_events_are_outside_the_chain(tmp_path: Path) -> None:
    finished(tmp_path)
    kinds = [json.loads(x)["event"] for x in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "ask"
    assert kinds[-1] == "done"
    assert kinds.count("arrived") == 6


def test_a_transcript_that_lost_its_end_is_noticed(tmp_path: Path) -> None:
    """Whole lines missing at the end leave the chain intact: the end itself is kept elsewhere."""
    run = MeanAndSD().run(federation_of(TABLES), seed=1, out=tmp_path / "run")
    path = tmp_path / "run" / "transcript.jsonl"
    assert rundir.read_lines(tmp_path / "run") == run.transcript
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="does not end as the run left it"):
        load_run(tmp_path / "run")

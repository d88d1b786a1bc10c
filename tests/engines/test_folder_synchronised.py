"""The folder engine over a slow and lossy synchroniser: never wrong, never stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, Mailbox, Place, watch
from consilience.engines.folder.mailbox import Schedule
from consilience.engines.folder.site import Watcher
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire.envelope import Reply, Request
from consilience.wire.signing import SigningKey
from tests.engines.synchroniser import FAULTS, LosesFirst, Synchroniser
from tests.faults.cases import CASES, SITES, loader
from tests.granted import GRANTED
from tests.rotation import by_turns

AGAIN = 0.05
POLL = 0.02


class Parties:
    """A folder, a home and keys for each party."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = {name: root / f"at-{name}" for name in ("coordinator", *SITES)}
        for folder in self.folders.values():
            folder.mkdir()
        self.coordinator = SigningKey.generate()
        self.keys = {name: SigningKey.generate() for name in SITES}
        self.sites = {
            s: Site(s, loader(s), policy=GRANTED, home=DiskStore(root / f"home-{s}")) for s in SITES
        }
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def engine(self, **settings: Any) -> FolderEngine:
        public = {name: key.public for name, key in self.keys.items()}
        settings = {"poll": POLL, "again": AGAIN, **settings}
        return FolderEngine(
            self.folders["coordinator"], SITES, self.coordinator, public, **settings
        )

    def watcher(self, name: str, *, folder: str = "", again: float = AGAIN) -> Watcher:
        def note(kind: str, facts: dict[str, Any]) -> None:
            self.events.append((name, kind, facts))

        where = self.folders[folder or name]
        trusted = [self.coordinator.public]
        return Watcher(self.sites[name], where, self.keys[name], trusted, note, again=again)

    @contextmanager
    def watching(self) -> Iterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=watch,
                args=(self.sites[name], self.folders[name]),
                kwargs={
                    "key": self.keys[name],
                    "coordinators": [self.coordinator.public],
                    "stop": stop,
                    "poll": POLL,
                    "again": AGAIN,
                },
            )
            for name in SITES
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def synchronised(self, *, seed: int, rate: float) -> Synchroniser:
        others = [self.folders[name] for name in SITES]
        return Synchroniser(self.folders["coordinator"], others, seed=seed, rate=rate)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


@by_turns(["mean-and-sd, standardised", "ensemble-clustering"], [1, 2, 3], names=("name", "seed"))
def test_same_bytes_through_a_lossy_synchroniser(parties: Parties, name: str, seed: int) -> None:
    """More than half of the changes meet a fault, a third one after which nothing has arrived.

    Waits double from 0.05 s, so within the deadline a file is written some 12 times. All are lost
    with probability 0.32^12, about 1e-6; there are some 40 files.
    """
    case = CASES[name]
    engine = parties.engine()
    with parties.synchronised(seed=seed, rate=0.09) as synchroniser, parties.watching():
        there = Federation(engine, case.columns, case.preparation, deadline=240.0).run(
            case.method(), seed=11, run_id="run"
        )
    sites = [Site(s, loader(s), policy=GRANTED) for s in SITES]
    here = Federation(LocalEngine(sites), case.columns, case.preparation).run(
        case.method(), seed=11, run_id="run"
    )
    assert there.result.to_files() == here.result.to_files()
    assert there.notes == here.notes, "no site was absent"
    met = sum(synchroniser.done[fault] for fault in FAULTS)
    assert met >= 3, synchroniser.done
    named = [note for note in engine.notes if note.startswith("conflicting copy")]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("again", [AGAIN, 3600.0])
def test_what_is_lost_is_written_again(parties: Parties, again: float) -> None:
    """Control: a synchroniser that loses each file once stops a run that writes nothing again."""
    engine = parties.engine(again=again)
    federation = Federation(
        engine, CASES["mean-and-sd"].columns, deadline=60.0 if again == AGAIN else 1.0
    )
    others = [parties.folders[name] for name in SITES]
    with LosesFirst(parties.folders["coordinator"], others), parties.watching():
        if again == AGAIN:
            assert federation.run(MeanAndSD(), seed=1).result.n == 130
        else:
            with pytest.raises(QuorumError, match="no reply within the deadline"):
                federation.run(MeanAndSD(), seed=1)


# ------------------------------------------------------------------ one fault at a time


def _ask(parties: Parties, engine: FolderEngine, site: str = SITES[0]) -> Place:
    """An ask of a step that every site refuses: enough where only the way counts."""
    body = Request("r1", "s", "mean-and-sd", 1, "0", 1, 1, 0, 0, "sums", site, 1, b"").to_bytes()
    engine.open_run("r1")
    engine.send({(1, site): body})
    return Place("r1", 1, 1, site)


def _until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


def test_an_ask_without_reply_is_written_again_ever_more_rarely(parties: Parties) -> None:
    engine = parties.engine(again=0.02)
    place = _ask(parties, engine)
    path = parties.folders["coordinator"] / "runs" / "r1" / "asks" / place.file
    whole, written = path.read_bytes(), [path.stat().st_ino, path.stat().st_mtime_ns]
    times = []
    for _ in range(3):

        def is_anew(before: list[int] = written) -> bool:
            engine._look((1, place.site), 60.0)
            return [path.stat().st_ino, path.stat().st_mtime_ns] != before

        began = time.monotonic()
        _until(is_anew)
        times.append(time.monotonic() - began)
        written = [path.stat().st_ino, path.stat().st_mtime_ns]
        assert path.read_bytes() == whole
    assert times[1] >= 0.02 and times[2] >= 0.06


def test_the_last_reply_of_a_run_is_written_again(parties: Parties) -> None:
    engine = parties.engine()
    place = _ask(parties, engine)
    watcher = parties.watcher(place.site, folder="coordinator", again=0.02)
    assert watcher.once() == 1
    path = parties.folders["coordinator"] / "runs" / "r1" / "replies" / place.file
    whole, written = path.read_bytes(), path.stat().st_mtime_ns

    def is_anew() -> bool:
        assert watcher.once() == 0
        return path.stat().st_mtime_ns != written

    _until(is_anew)
    assert path.read_bytes() == whole
    assert parties.sites[place.site].computed == 1


def test_an_earlier_reply_is_written_again_only_when_it_is_asked_for_anew(
    parties: Parties,
) -> None:
    engine = parties.engine()
    place = _ask(parties, engine)
    later = Place("r1", 2, 1, place.site)
    body = Request("r1", "s", "mean-and-sd", 1, "0", 2, 1, 0, 0, "sums", place.site, 1, b"")
    box = Mailbox(parties.folders["coordinator"], parties.coordinator, "ask")
    readers = [parties.keys[place.site].public]
    box.put(later, parties.coordinator.public, body.to_bytes(), readers=readers)
    watcher = parties.watcher(place.site, folder="coordinator", again=0.02)
    assert watcher.once() == 2
    path, last = box.path(place, "reply"), box.path(later, "reply")
    first, second = path.stat().st_mtime_ns, last.stat().st_mtime_ns

    def is_last_anew() -> bool:
        watcher.once()
        return last.stat().st_mtime_ns != second

    _until(is_last_anew)
    assert path.stat().st_mtime_ns == first
    asked = box.path(place, "ask")
    asked.write_bytes(asked.read_bytes())

    def is_first_anew() -> bool:
        watcher.once()
        return path.stat().st_mtime_ns != first

    _until(is_first_anew)


def test_a_file_that_is_removed_all_the_time_is_not_written_all_the_time(parties: Parties) -> None:
    engine = parties.engine(again=60.0)
    place = _ask(parties, engine)
    path = parties.folders["coordinator"] / "runs" / "r1" / "asks" / place.file
    repaired = 0
    for _ in range(20):
        path.unlink(missing_ok=True)
        engine._look((1, place.site), 60.0)
        repaired += path.exists()
    assert repaired == 3, "three at once, then after waits that double"


def test_a_file_that_grows_while_it_is_copied_is_noted_once(parties: Parties) -> None:
    engine = parties.engine()
    place = _ask(parties, engine)
    assert parties.watcher(place.site, folder="coordinator").once() == 1
    run = parties.folders["coordinator"] / "runs" / "r1"
    path, asked = run / "replies" / place.file, run / "asks" / place.file
    whole, whole_ask = path.read_bytes(), asked.read_bytes()
    for size in range(40, len(whole), 15):
        path.write_bytes(whole[:size])
        assert engine._look((1, place.site), 60.0) is None
    assert len(engine.notes) == 1 and "not complete" in engine.notes[0]
    path.write_bytes(whole)
    found = engine._look((1, place.site), 60.0)
    assert found is not None and Reply.from_bytes(found.data or b"").site == place.site

    path.unlink()
    watcher = parties.watcher(place.site, folder="coordinator")
    parties.events.clear()
    for size in range(40, len(whole_ask), 15):
        asked.write_bytes(whole_ask[:size])
        assert watcher.once() == 0
    assert [kind for _, kind, _ in parties.events] == ["ignored"]
    asked.write_bytes(whole_ask)
    assert watcher.once() == 1


COPIES = (
    "1-1-ash (conflicted copy 2026-11-21).msg",
    "1-1-ash.sync-conflict-20261121-101500-ABCDEFG.msg",
    "1-1-ash.msg (Somebody's conflicted copy)",
    "1-1-ash.msg~",
    "1-1-ash.msg.tmp",
    "1-1-ASH.msg",
    "1-1-ash.MSG",
)


def test_conflicting_copies_are_named_once_and_never_read(parties: Parties) -> None:
    engine = parties.engine(keep_files=True)
    place = _ask(parties, engine, "ash")
    run = parties.folders["coordinator"] / "runs" / "r1"
    asked = (run / "asks" / place.file).read_bytes()
    for name in COPIES:
        (run / "asks" / name).write_bytes(asked)
    watcher = parties.watcher("ash", folder="coordinator")
    assert watcher.once() == 1
    watcher._listed = 0.0
    assert watcher.once() == 0
    named = [facts["file"] for _, kind, facts in parties.events if kind == "conflict"]
    assert sorted(named) == sorted(f"asks/{name}" for name in COPIES)
    log = parties.sites["ash"].home.read_log()
    assert sum(line["event"] == "conflict" for line in log) == len(COPIES)

    path = run / "replies" / place.file
    whole = path.read_bytes()
    for name in COPIES:
        (run / "replies" / name).write_bytes(whole)
    path.unlink()
    assert engine._look((1, "ash"), 60.0) is None, "a copy is no reply"
    for _ in range(2):
        engine._name_conflicts(at_once=True)
    noted = [note for note in engine.notes if note.startswith("conflicting copy")]
    assert len(noted) == len(set(noted)) == 2 * len(COPIES)
    assert all("not read" in note for note in noted)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_alone_is_no_ask(parties: Parties, name: str) -> None:
    """Nor is a name in other capitals, where the file system says that it is another file."""
    engine = parties.engine()
    place = _ask(parties, engine, "ash")
    path = parties.folders["coordinator"] / "runs" / "r1" / "asks" / place.file
    path.rename(path.with_name(name))
    watcher = parties.watcher("ash", folder="coordinator")
    assert watcher._box.places("ash") == [] and watcher.once() == 0
    assert engine._look((1, "ash"), 60.0) is None
    assert watcher.once() == 1, "the ask itself came again"


def test_names_of_copies_cannot_steer_a_terminal_or_fill_the_notes(parties: Parties) -> None:
    engine = parties.engine(keep_files=True)
    place = _ask(parties, engine, "ash")
    replies = parties.folders["coordinator"] / "runs" / "r1" / "replies"
    for number in range(50):
        (replies / f"1-1-ash conflict \x1b[2J\n{number}").write_bytes(b"")
    engine._name_conflicts(at_once=True)
    assert len(engine.notes) == 20
    assert all(note.isprintable() for note in engine.notes)
    assert place.site == "ash"


def test_other_names_are_no_conflicts(parties: Parties) -> None:
    engine = parties.engine()
    _ask(parties, engine, "ash")
    box, asks = engine._box, parties.folders["coordinator"] / "runs" / "r1" / "asks"
    for name in ("1-1-ashes.msg", "1-1-ash.msg.part", ".1-1-ash.msg.tmp", "notes.txt", "1-2-ash"):
        (asks / name).write_bytes(b"")
    assert box.conflicts("r1", SITES) == []


def test_a_run_whose_empty_folder_was_not_copied_is_answered(parties: Parties) -> None:
    engine = parties.engine()
    place = _ask(parties, engine)
    replies = parties.folders["coordinator"] / "runs" / "r1" / "replies"
    replies.rmdir()
    watcher = parties.watcher(place.site, folder="coordinator", again=0.05)
    assert watcher.once() == 0 and not replies.exists()
    _until(lambda: watcher.once() == 1)
    assert (replies / place.file).is_file()


def test_waits_double_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    unseen = Schedule.for_unseen(30.0)
    assert not unseen.is_due("k"), "what was never written is not written again"
    unseen.start("k")
    for wait in (30.0, 60.0, 120.0, 240.0):
        now += wait - 1.0
        assert not unseen.is_due("k")
        unseen.start("k")
        now += 1.0
        assert unseen.is_due("k")
        unseen.done("k")
    for _ in range(45):
        unseen.done("k")
    now += 4 * 3600.0 - 1.0
    assert not unseen.is_due("k")
    now += 1.0
    assert unseen.is_due("k")
    unseen.done("k")
    now += 1e9
    assert not unseen.is_due("k"), "after a week it has had its chance"
    unseen.keep(())
    assert not unseen.is_due("k")
    spoilt = Schedule.for_spoilt()
    for _ in range(3):
        assert spoilt.is_due("k")
        spoilt.done("k")
    assert not spoilt.is_due("k")
    now += 0.5
    assert spoilt.is_due("k")

"""The folder engine: the same results as the local one, and nothing accepted that is not signed."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, Mailbox, Place, watch
from consilience.engines.folder.mailbox import Looked
from consilience.engines.folder.site import Watcher
from consilience.engines.local import LocalEngine
from consilience.engines.signed import pause
from consilience.exceptions import (
    EngineError,
    ParameterError,
    QuorumError,
    RunError,
    StudyError,
    WireError,
)
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Preparation
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore, MemoryStore, sole
from consilience.wire.codec import digest
from consilience.wire.envelope import Reply, Request
from consilience.wire.signing import SigningKey
from tests.engines.lying import heard, lie
from tests.faults.cases import CASES, SITES, Case, loader
from tests.granted import EVERYTHING

POLL = 0.02


class Parties:
    """Keys, homes and watching threads around one folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "shared"
        self.folder.mkdir()
        self.root = root
        self.coordinator = SigningKey.generate()
        self.keys = {name: SigningKey.generate() for name in SITES}
        self.sites = {
            name: Site(name, loader(name), policy=EVERYTHING, home=DiskStore(root / f"home-{name}"))
            for name in SITES
        }
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def engine(self, sites: tuple[str, ...] = SITES, **settings: Any) -> FolderEngine:
        settings = {"poll": POLL, "keep_files": True, **settings}
        public = {name: self.keys[name].public for name in sites}
        return FolderEngine(self.folder, sites, self.coordinator, public, **settings)

    def federation(self, case: Case = CASES["mean-and-sd"], **settings: Any) -> Federation:
        engine = settings.pop("engine", None) or self.engine(case.sites)
        return Federation(engine, case.columns, case.preparation, **settings)

    def watcher(self, name: str) -> Watcher:
        def note(kind: str, facts: dict[str, Any]) -> None:
            self.events.append((name, kind, facts))

        trusted = [self.coordinator.public]
        return Watcher(self.sites[name], self.folder, self.keys[name], trusted, note)

    @contextmanager
    def watching(self, *names: str) -> Iterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=watch,
                args=(self.sites[name], self.folder),
                kwargs={
                    "key": self.keys[name],
                    "coordinators": [self.coordinator.public],
                    "stop": stop,
                    "poll": POLL,
                    "on_event": lambda k, f, n=name: self.events.append((n, k, f)),
                },
            )
            for name in (names or SITES)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def ask(self, *, run: str = "r1", round_: int = 1, site: str = SITES[0]) -> tuple[Place, bytes]:
        """An ask of a step that every site refuses: enough where only the way counts."""
        body = Request(
            run, "s", "mean-and-sd", 1, "0", round_, 1, 0, 0, "sums", site, 1, b""
        ).to_bytes()
        return Place(run, round_, 1, site), body


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


# ------------------------------------------------------------------ results


@pytest.mark.parametrize(
    # What seals has other bytes in each run: `tests/exchange` compares engines with fixed secrets.
    "name",
    [n for n, case in CASES.items() if not case.draws_secrets and not case.seals],
)
def test_same_bytes_as_the_local_engine(parties: Parties, name: str) -> None:
    case = CASES[name]
    with parties.watching():
        there = parties.federation(case).run(case.method(), seed=11, run_id="run")
    sites = [Site(s, loader(s), policy=EVERYTHING) for s in case.sites]
    here = Federation(LocalEngine(sites), case.columns, case.preparation).run(
        case.method(), seed=11, run_id="run"
    )
    assert there.result.to_files() == here.result.to_files()
    salted = {"digest", "chain", "protection"}
    lines = [
        [{k: v for k, v in vars(line).items() if k not in salted} for line in run.transcript]
        for run in (here, there)
    ]
    assert lines[0] == lines[1]
    assert {line.protection for line in here.transcript} == {"open"}


def test_public_streams_do_not_depend_on_the_engine(parties: Parties) -> None:
    case = CASES["secret-draws"]
    with parties.watching():
        there = parties.federation(case).run(case.method(), seed=4)
    sites = [Site(s, loader(s)) for s in SITES]
    here = Federation(LocalEngine(sites), case.columns).run(case.method(), seed=4)
    assert (there.result.public == here.result.public).all()
    assert (there.result.secret != here.result.secret).all()


def test_files_of_a_finished_run_are_removed(parties: Parties) -> None:
    with parties.watching():
        parties.federation(engine=parties.engine(keep_files=False)).run(MeanAndSD(), seed=1)
    assert list((parties.folder / "runs").iterdir()) == []


def test_other_users_may_read_what_the_umask_leaves(parties: Parties) -> None:
    engine = parties.engine()
    place, body = parties.ask()
    before = os.umask(0o027)
    try:
        engine.open_run("r1")
        engine.send({(1, place.site): body})
    finally:
        os.umask(before)
    mode = (parties.folder / "runs" / "r1" / "asks" / place.file).stat().st_mode & 0o777
    assert mode == 0o640


def test_looks_become_rarer_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    waits = [pause(clock - waited, 0.5) for waited in (0.0, 0.01, 1.0, 4.0, 5.0, 3600.0)]
    assert waits == pytest.approx([0.002, 0.002, 0.1, 0.4, 0.5, 0.5])


def test_a_site_whose_reply_does_not_fit_is_left_out_and_told(parties: Parties) -> None:
    ash, birch = (parties.sites[name] for name in SITES)
    lie(birch, "sums", n=-1)
    with parties.watching():
        run = parties.federation(quorum=1).run(MeanAndSD(), seed=11)
        end = time.monotonic() + 20
        while not heard(birch) and time.monotonic() < end:
            time.sleep(POLL)
    assert run.result.n == len(loader(SITES[0])(CASES["mean-and-sd"].columns, Preparation()).rows)
    assert any(f"{birch.name} was absent" in n and "not accepted" in n for n in run.notes)
    assert len(heard(birch)) == 1 and not heard(ash)


# ------------------------------------------------------------------ what the coordinator accepts


def _answered(parties: Parties, site: str = SITES[0]) -> tuple[FolderEngine, Place, Path]:
    """An ask that is out and answered, and where the reply lies."""
    engine = parties.engine()
    engine.open_run("r1")
    place, body = parties.ask(site=site)
    engine.send({(1, site): body})
    assert parties.watcher(site).once() == 1
    return engine, place, parties.folder / "runs" / "r1" / "replies" / place.file


def _collect(engine: FolderEngine, site: str, deadline: float = 0.1) -> Any:
    (arrival,) = engine.collect(frozenset({(1, site)}), wait="all", deadline=deadline)
    return arrival


def _flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda d: b"", "not a signed message"),
    "truncated": (lambda d: d[:-1], "damaged or not complete"),
    "cut in the signature": (lambda d: d[:60], "damaged or not complete"),
    "altered body": (lambda d: _flip(d, len(d) - 3), "damaged or not complete"),
    "altered signature": (lambda d: _flip(d, 60), "damaged or not complete"),
    "altered checksum": (lambda d: _flip(d, 25), "damaged or not complete"),
    "longer": (lambda d: d + b"x", "damaged or not complete"),
    "not ours": (lambda d: b"hello", "not a signed message"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_reply_is_set_aside_until_the_right_one_comes(
    parties: Parties, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage, cause = DAMAGE[name]
    engine, place, path = _answered(parties)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        arrival = _collect(engine, place.site)
    assert arrival.data is None
    assert arrival.reason.startswith("no reply within the deadline")
    assert cause in arrival.reason
    assert cause in engine.notes[0] and len(engine.notes) == 1
    assert cause in caplog.text
    engine.send({(1, place.site): parties.ask()[1]})
    path.write_bytes(whole)
    assert Reply.from_bytes(_collect(engine, place.site).data).site == place.site


def test_a_site_repairs_its_own_reply(parties: Parties) -> None:
    engine, place, path = _answered(parties)
    whole = path.read_bytes()
    watcher = parties.watcher(place.site)
    assert watcher.once() == 0
    for spoil in (lambda: path.write_bytes(whole[:50]), path.unlink):
        spoil()
        assert watcher.once() == 1
        assert path.read_bytes() == whole
    assert parties.sites[place.site].computed == 1
    assert _collect(engine, place.site).data is not None


def test_the_coordinator_repairs_its_own_ask(parties: Parties) -> None:
    engine = parties.engine()
    engine.open_run("r1")
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    path = parties.folder / "runs" / "r1" / "asks" / place.file
    whole = path.read_bytes()
    for spoil in (lambda: path.write_bytes(whole[:50]), path.unlink):
        spoil()
        engine.collect(frozenset(), wait="all", deadline=1.0)
        assert engine._look((1, place.site), 60.0) is None
        assert path.read_bytes() == whole


def test_alterations_within_a_tick_of_the_clock_are_seen(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stamps that never change, as when file and alteration fall into one tick."""
    monkeypatch.setattr(Mailbox, "stamp", lambda box, place, direction: (1, 1, 1, 1))
    engine = parties.engine()
    engine.open_run("r1")
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    watcher = parties.watcher(place.site)
    watcher.once()
    run, key = parties.folder / "runs" / "r1", (1, place.site)
    asked, replied = run / "asks" / place.file, run / "replies" / place.file
    whole = asked.read_bytes(), replied.read_bytes()
    asked.write_bytes(_flip(whole[0], 60))
    replied.write_bytes(_flip(whole[1], 60))
    assert engine._look(key, 60.0) is None
    assert replied.read_bytes() != whole[1]
    time.sleep(0.2)  # longer than a look is trusted
    engine._repair(engine._waiting[key])
    assert asked.read_bytes() == whole[0]
    assert watcher.once() == 1
    assert replied.read_bytes() == whole[1]
    time.sleep(0.2)
    assert _collect(engine, place.site).data is not None


def test_looks_are_trusted_ever_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    looked = Looked()
    assert not looked.holds("k", 1)
    assert looked.note("k", 1)
    for trust in (0.05, 0.1, 0.2, 0.4):
        assert looked.holds("k", 1)
        assert not looked.holds("k", 2)
        now += 0.99 * trust
        assert looked.holds("k", 1)
        now += 0.02 * trust
        assert not looked.holds("k", 1)
        assert not looked.note("k", 1)
    assert looked.note("k", 2)
    now += 0.06
    assert not looked.holds("k", 2)


def test_replies_of_other_places_sites_and_keys_are_set_aside(parties: Parties) -> None:
    engine, place, path = _answered(parties)
    whole = path.read_bytes()
    ask = (parties.folder / "runs" / "r1" / "asks" / place.file).read_bytes()
    body = parties.ask()[1]
    about = digest(ask)
    reply = whole[-100:]
    public = parties.coordinator.public
    site_key = parties.keys[place.site]

    def sealed(
        key: SigningKey, where: Place, coordinator: str = public, about: str = about
    ) -> bytes:
        return key.seal(where.context("reply", coordinator, about), reply, readers=[public])

    forged = {
        "another site's key": sealed(parties.keys[SITES[1]], place),
        "another site's reply": sealed(parties.keys[SITES[1]], Place("r1", 1, 1, SITES[1])),
        "another run": sealed(site_key, Place("r2", 1, 1, place.site)),
        "another round": sealed(site_key, Place("r1", 2, 1, place.site)),
        "another attempt": sealed(site_key, Place("r1", 1, 2, place.site)),
        "another coordinator": sealed(site_key, place, SigningKey.generate().public),
        "another ask": sealed(site_key, place, about=digest(b"")),
        "the ask, turned back": ask,
    }
    for what, data in forged.items():
        engine.send({(1, place.site): body})
        path.write_bytes(data)
        arrival = _collect(engine, place.site, 0.0)
        assert arrival.data is None, what
        assert f"not signed by {place.site}" in arrival.reason, what
    engine.send({(1, place.site): body})
    path.write_bytes(sealed(site_key, place))
    assert _collect(engine, place.site).data == reply


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_set_aside(parties: Parties, kind: str) -> None:
    engine, place, path = _answered(parties)
    kept = path.rename(path.with_suffix(".kept"))
    if kind == "link":
        path.symlink_to(kept)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    arrival = _collect(engine, place.site, 0.0)
    assert arrival.data is None and "no file" in arrival.reason


def test_a_reply_that_is_there_beats_a_deadline_that_has_passed(parties: Parties) -> None:
    engine, place, _ = _answered(parties)
    assert _collect(engine, place.site, 0.0).data is not None


def test_deadline_quorum_and_waiting_for_any(parties: Parties) -> None:
    with parties.watching(SITES[0]):
        run = parties.federation(quorum=1, deadline=0.5).run(MeanAndSD(), seed=1)
        assert run.result.n == 60
        assert any("no reply within the deadline" in note for note in run.notes)
        with pytest.raises(QuorumError, match="birch-2 was absent: no reply within the deadline"):
            parties.federation(deadline=0.3).run(MeanAndSD(), seed=1)
    engine, place, _ = _answered(parties)
    other, body = parties.ask(site=SITES[1])
    engine.send({(1, other.site): body})
    keys = frozenset({(1, site) for site in SITES})
    assert [a.key for a in engine.collect(keys, wait="any", deadline=60.0)] == [(1, place.site)]


def test_asking_again_is_harmless(parties: Parties) -> None:
    _engine, place, path = _answered(parties)
    reply, asked = path.read_bytes(), path.parents[1] / "asks" / place.file
    before = asked.stat()
    again = parties.engine()
    again.open_run("r1")
    again.send({(1, place.site): parties.ask()[1]})
    assert asked.stat().st_ino == before.st_ino
    watcher = parties.watcher(place.site)
    asked.write_bytes(asked.read_bytes())
    assert watcher.once() == 0
    path.unlink()
    assert watcher.once() == 1
    assert path.read_bytes() == reply
    assert parties.sites[place.site].computed == 1


def test_a_second_question_at_an_answered_place_is_refused(parties: Parties) -> None:
    engine, place, _path = _answered(parties)
    other = Request("r1", "s", "mean-and-sd", 1, "0", 1, 1, 0, 0, "sums", place.site, 2, b"")
    engine.send({(1, place.site): other.to_bytes()})
    arrival = _collect(engine, place.site, 0.0)
    assert arrival.data is None
    engine.send({(1, place.site): other.to_bytes()})
    assert parties.watcher(place.site).once() == 1
    reply = Reply.from_bytes(_collect(engine, place.site).data)
    assert "already answered to another question" in reply.reason


# ------------------------------------------------------------------ what a site accepts


def _ignored(parties: Parties, watcher: Watcher) -> str:
    assert watcher.once() == 0
    _site, kind, facts = parties.events.pop()
    assert kind == "ignored"
    assert not parties.events
    return str(facts["reason"])


def test_asks_that_no_trusted_coordinator_signed_are_ignored(parties: Parties) -> None:
    site = SITES[0]
    watcher, stranger = parties.watcher(site), SigningKey.generate()
    place, body = parties.ask()
    path = parties.folder / "runs" / "r1" / "asks" / place.file
    (path.parents[1] / "replies").mkdir(parents=True)
    path.parent.mkdir()
    public, own = parties.coordinator.public, [parties.keys[site].public]
    right, later = place.context("ask", public, ""), parties.ask(round_=2)[1]
    for key, context in (
        (stranger, place.context("ask", stranger.public, "")),
        (stranger, place.context("ask", public, "")),
        (parties.coordinator, Place("r1", 1, 1, SITES[1]).context("ask", public, "")),
        (parties.coordinator, Place("r2", 1, 1, site).context("ask", public, "")),
        (parties.coordinator, place.context("reply", public, "")),
    ):
        path.write_bytes(key.seal(context, body, readers=own))
        assert "no coordinator that this site trusts" in _ignored(parties, watcher)
        assert watcher.once() == 0 and not parties.events, "noted once, until it changes"
    for data, reason in (
        (b"", "not a signed message"),
        (path.read_bytes()[:-2], "damaged"),
        (parties.coordinator.seal(right, b"no request", readers=own), "not a"),
        (parties.coordinator.seal(right, later, readers=own), "for another place"),
        (parties.coordinator.seal(right, body), "it is not sealed"),
    ):
        path.write_bytes(data)
        assert reason in _ignored(parties, watcher)
    assert parties.sites[site].computed == 0
    assert list((path.parents[1] / "replies").iterdir()) == []
    log = (parties.root / f"home-{site}" / "log.jsonl").read_text()
    assert log.count('"event": "ignored"') == 10


def test_a_run_belongs_to_the_coordinator_that_began_it(parties: Parties) -> None:
    _engine, place, _path = _answered(parties)
    second = SigningKey.generate()
    site = parties.sites[place.site]
    trusted = [parties.coordinator.public, second.public]
    watcher = Watcher(site, parties.folder, parties.keys[place.site], trusted)
    follow, body = parties.ask(round_=2)
    own = [parties.keys[place.site].public]
    Mailbox(parties.folder, second, "ask").put(follow, second.public, body, readers=own)
    assert watcher.once() == 0
    Mailbox(parties.folder, parties.coordinator, "ask").put(
        follow, parties.coordinator.public, body, readers=own
    )
    assert watcher.once() == 1


def test_names_that_lead_elsewhere_are_not_looked_at(parties: Parties) -> None:
    place, body = parties.ask()
    runs = parties.folder / "runs"
    context = place.context("ask", parties.coordinator.public, "")
    sealed = parties.coordinator.seal(context, body, readers=[parties.keys[place.site].public])
    for run in ("..x", ".hidden", "a..b", "-r", "r" * 101, "sp ace"):
        (runs / run / "asks").mkdir(parents=True)
        (runs / run / "replies").mkdir()
        (runs / run / "asks" / place.file).write_bytes(sealed)
    (runs / "r1" / "replies").mkdir(parents=True)
    (runs / "r1" / "asks").mkdir()
    for name in (
        f"01-1-{place.site}.msg",
        f"0-1-{place.site}.msg",
        f"1-1-{place.site}.msg.part",
        f"1-1-{SITES[1]}.msg",
        f".1-1-{place.site}.msg",
        f"1-1-x-{place.site}.msg",
    ):
        (runs / "r1" / "asks" / name).write_bytes(sealed)
    (runs / "file").write_bytes(b"")
    assert parties.watcher(place.site).once() == 0
    assert parties.events == []
    with pytest.raises(RunError):
        parties.engine().open_run("../elsewhere")
    for bad in ("../x", "a/b", "", "a..b", ".a"):
        with pytest.raises(StudyError):
            Place("r1", 1, 1, bad)


def test_a_message_larger_than_the_policy_reads_is_ignored(parties: Parties) -> None:
    _engine, place, _ = _answered(parties)
    box = Mailbox(parties.folder, parties.keys[place.site], "reply", max_bytes=1024)
    big = Place("r1", 9, 1, place.site)
    Mailbox(parties.folder, parties.coordinator, "ask").put(
        big, parties.coordinator.public, bytes(200_000), readers=()
    )
    with pytest.raises(WireError, match="more than"):
        box.take(big, parties.coordinator.public, parties.coordinator.public)


def test_a_reply_that_the_folder_does_not_take_is_tried_again(parties: Parties) -> None:
    engine = parties.engine()
    engine.open_run("r1")
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    path = parties.folder / "runs" / "r1" / "replies" / place.file
    path.mkdir()
    watcher = parties.watcher(place.site)
    assert watcher.once() == watcher.once() == 0
    assert [kind for _, kind, _ in parties.events] == ["unsent"]
    key, trusted = parties.keys[place.site], [parties.coordinator.public]
    with pytest.raises(RunError, match="cannot write"):
        site = parties.sites[place.site]
        watch(site, parties.folder, key=key, coordinators=trusted, once=True)
    assert list(path.parent.iterdir()) == [path], "nothing half-written"
    path.rmdir()
    assert watcher.once() == 1
    assert watcher.unsent == {}
    assert parties.sites[place.site].computed == 1


def test_a_closed_run_is_not_answered(parties: Parties) -> None:
    _engine, place, path = _answered(parties)
    shutil.rmtree(path.parent)
    assert parties.watcher(place.site).once() == 0
    assert "closed" in parties.events[-1][2]["reason"]
    assert not path.parent.exists()


def test_one_process_for_a_home(parties: Parties) -> None:
    with (
        sole(parties.sites[SITES[0]].home),
        pytest.raises(RunError, match="another process serves the home"),
    ):
        watch(
            parties.sites[SITES[0]],
            parties.folder,
            key=parties.keys[SITES[0]],
            coordinators=[parties.coordinator.public],
            once=True,
        )
    watch(
        parties.sites[SITES[0]],
        parties.folder,
        key=parties.keys[SITES[0]],
        coordinators=[parties.coordinator.public],
        once=True,
    )


def test_a_site_in_memory_needs_no_lock(parties: Parties) -> None:
    site = Site(SITES[0], loader(SITES[0]), home=MemoryStore())
    key, trusted = parties.keys[SITES[0]], [parties.coordinator.public]
    assert watch(site, parties.folder, key=key, coordinators=trusted, once=True) == 0


def test_a_folder_that_cannot_be_read_is_said_once(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = parties.watcher(SITES[0])

    def broken() -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(watcher._box, "runs", broken)
    assert watcher.once() == watcher.once() == 0
    assert [(kind, facts["reason"]) for _, kind, facts in parties.events] == [
        ("unreachable", "Input/output error")
    ]


# ------------------------------------------------------------------ settings


def test_settings_are_checked(parties: Parties, tmp_path: Path) -> None:
    public = {name: key.public for name, key in parties.keys.items()}
    key = parties.coordinator
    with pytest.raises(EngineError, match="there is no folder"):
        FolderEngine(tmp_path / "none", SITES, key, public)
    with pytest.raises(StudyError, match="no public key of site 'ash'"):
        FolderEngine(parties.folder, SITES, key, {SITES[1]: public[SITES[1]]})
    with pytest.raises(StudyError, match="is not a public key"):
        FolderEngine(parties.folder, SITES, key, {**public, "ash": "ed25519:AAAA"})
    with pytest.raises(ParameterError, match="poll"):
        FolderEngine(parties.folder, SITES, key, public, 0)
    with pytest.raises(StudyError, match="not allowed"):
        FolderEngine(parties.folder, ["../a"], key, {"../a": public["ash"]})
    with pytest.raises(EngineError, match="was not put"):
        parties.engine().collect(frozenset({(1, "ash")}), wait="all", deadline=1.0)
    site = parties.sites["ash"]
    with pytest.raises(StudyError, match="trusts no coordinator"):
        watch(site, parties.folder, key=parties.keys["ash"], coordinators=[], once=True)
    with pytest.raises(StudyError, match="is not a public key"):
        watch(site, parties.folder, key=parties.keys["ash"], coordinators=["x"], once=True)


def test_the_watch_asks_whether_to_stop_and_never_waits_for_it(parties: Parties) -> None:
    """Waiting for an event holds a lock that a signal handler would need to set it."""

    class Flag:
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 3

    site, key = parties.sites["ash"], parties.keys["ash"]
    trusted = [parties.coordinator.public]
    assert watch(site, parties.folder, key=key, coordinators=trusted, stop=Flag(), poll=0.01) == 0


def test_replies_of_one_look_come_in_the_order_of_sites(parties: Parties) -> None:
    """Sets of names have another order in each process: journals would differ."""
    names = [f"s{i:02d}" for i in range(12)]
    public = dict.fromkeys(names, parties.keys[SITES[0]].public)
    engine = FolderEngine(parties.folder, names, parties.coordinator, public)
    engine.open_run("r1")
    engine.send({(1, name): parties.ask(site=name)[1] for name in reversed(names)})
    late = engine.collect(frozenset((1, name) for name in names), wait="all", deadline=0.0)
    assert [arrival.key for arrival in late] == [(1, name) for name in names]

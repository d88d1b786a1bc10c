"""Attacks on what surrounds the gate: checks before a run, held replies, files, memory, nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.assisted.test.site import NoisySketched
from consilience.engines import health as heartbeat
from consilience.engines.federation import Federation
from consilience.engines.flower import join
from consilience.engines.flower.handler import HOME_FAILED, OTHER_COORDINATOR, Content
from consilience.engines.flower.keys import make_federation, make_node_key
from consilience.engines.folder import FolderEngine, Mailbox, mailbox, watch
from consilience.engines.folder.coordinator import remove_files
from consilience.engines.folder.site import MOST_NEW, MOST_NEW_BYTES, NAMED
from consilience.engines.health import heartbeat_of
from consilience.engines.local import LocalEngine
from consilience.engines.signed import Place
from consilience.exceptions import PrivacyError, RunError
from consilience.sites.loaders import file_site
from consilience.sites.site import APPROVED, Site
from consilience.sites.site_store import DiskStore, holds, sole
from consilience.sites.study import SiteFile, Study
from consilience.testing.fakes import array_loader
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Request
from consilience.wire.files import AppendLog
from consilience.wire.keys import KeyList
from consilience.wire.message import Disclosure
from consilience.wire.signing import SigningKey
from tests.engines.flower_parties import Parties as OverFlower
from tests.engines.test_flower_desk import asked, ignored, query
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, SITES, loader
from tests.rotation import by_turns
from tests.sites.test_site import OPEN, X, after, ask, sums

ALONE = "rare-value"
SITE_FILE = """
name = "north"
home = "home"
[source]
path = "table.csv"
[columns.offered]
"*" = "number"
[policy]
preset = "strict"
"""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


# ------------------------------------------------------------------ a coordinator's check


@pytest.fixture
def file(tmp_path: Path) -> SiteFile:
    """A site whose table holds one value, and one text among numbers, in one row only."""
    rows = [f"{20 + i},{('cold', 'flu')[i % 2]},{i}" for i in range(200)]
    rows[77] = f"93,{ALONE},{ALONE}"
    (tmp_path / "table.csv").write_text("\n".join(["age,illness,note", *rows]) + "\n")
    (tmp_path / "north.toml").write_text(SITE_FILE)
    return SiteFile.load(tmp_path / "north.toml")


def study(where: Path, features: list[str], levels: list[str] | None = None) -> Study:
    more = ""
    if levels is not None:
        more = f'[data.levels]\nillness = {json.dumps(levels)}\n[preparation]\ncategorical="onehot"'
    path = where / "study.toml"
    text = f'name="x"\nmethod="mean-and-sd"\n[data]\nfeatures={json.dumps(features)}\n{more}\n'
    path.write_text(text + '[sites]\nnames=["north"]\n')
    return Study.load(path)


def told(file: SiteFile, asked: Study) -> dict[str, Any]:
    return join.check_here(file, asked.canonical())


def test_a_check_is_no_oracle_for_single_values(file: SiteFile, tmp_path: Path) -> None:
    """Whether some row holds another value than those of a list: asked as often as one likes."""
    features = ["age", "illness"]
    without = told(file, study(tmp_path, features, ["cold", "flu"]))
    assert without == told(file, study(tmp_path, features, ["cold", "flu", ALONE]))
    assert without["able"] and set(without["kinds"]) == set(features)


def test_a_check_counts_nothing(file: SiteFile, tmp_path: Path) -> None:
    """Texts among numbers: of few cells nothing is told, and of many not how many."""
    asked = study(tmp_path, ["age", "note"])
    assert told(file, asked)["kinds"]["note"] == "number"
    table = tmp_path / "table.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *(f"{row}{ALONE}" for row in rows[:12]), *rows[12:]]))
    assert told(file, asked)["kinds"]["note"] == "text"


def test_a_check_names_the_columns_that_are_not_there(file: SiteFile, tmp_path: Path) -> None:
    said = told(file, study(tmp_path, ["age", "weight", "size"]))
    assert not said["able"] and "weight, size" in said["said"][0]


def test_a_study_that_is_not_approved_is_checked_no_further(
    file: SiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that the steward has approved is checked to the end."""
    approved = study(tmp_path, ["age", "illness"], ["cold", "flu"])
    file_site(file).home.write_ledger(APPROVED, {"studies": [approved.hash()]})
    assert not told(file, approved)["able"], "one row does not fit"
    monkeypatch.setattr("consilience.engines.study_check.read_source", None)
    with pytest.raises(PrivacyError, match="has approved"):
        told(file, study(tmp_path, ["age"]))


# ------------------------------------------------------------------ held replies


def test_values_for_each_record_are_held_with_noise_too() -> None:
    noisy = NoisySketched(z=relayed(X, Disclosure.NOISED), rank=2, known=2, scale=1.0, loose=1.0)
    assert holds("per-record", noisy)


# ------------------------------------------------------------------ files and memory


def test_other_users_of_the_machine_read_nothing(tmp_path: Path) -> None:
    """Under the usual umask: journals hold every reply, a site's log the causes of refusals."""
    case = CASES["mean-and-sd"]
    sites = [Site(name, loader(name), home=DiskStore(tmp_path / name)) for name in SITES]
    federation = Federation(LocalEngine(sites), case.columns, case.preparation)
    federation.run(case.method(), seed=11, out=tmp_path / "run")
    sites[0].home.log("refused", reason="a value that the message of an exception held")
    files = {p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size}
    assert {"log", "log.jsonl", "transcript.jsonl"} <= {path.name for path in files}
    assert not [p for p in files if stat.S_IMODE(p.stat().st_mode) & 0o077]


def test_many_runs_do_not_fill_the_memory_with_rows() -> None:
    """Rows of runs that were asked long ago are read again, with the same answer."""
    read: list[str] = []

    def load(*settings: Any) -> Any:
        read.append("")
        return array_loader(X)(*settings)

    one = Site("a", load)
    opened = [dataclasses.replace(OPEN, run=f"run-{number}") for number in range(8)]
    for request in opened:
        ask(one, request)
    assert len(one._prepared) <= 2
    assert len(read) == len(opened)
    wanted = sums(ask(Site("a", array_loader(X), home=one.home), after(opened[0])))
    assert (sums(ask(one, after(opened[1]))) == wanted).all() and len(read) == len(opened) + 1


# ------------------------------------------------------------------ a shared folder


def test_a_run_that_cannot_be_looked_into_stops_no_other(parties: Parties) -> None:
    """One link in the folder, by whoever may write there."""
    evil = parties.folder / "runs" / "evil"
    evil.mkdir(parents=True)
    for name in ("asks", "replies"):
        (evil / name).symlink_to(evil / name)
    watcher = parties.watcher(SITES[0])
    place, body = parties.ask()
    box = Mailbox(parties.folder, parties.coordinator, "ask")
    readers = [parties.keys[SITES[0]].public]
    box.put(place, parties.coordinator.public, body, readers=readers)
    box.path(place, "reply").parent.mkdir()
    assert watcher.once() == 1
    watcher.once()
    said = [facts for _, kind, facts in parties.events if kind == "unreachable"]
    assert [facts["run"] for facts in said] == ["evil"]


def put_out(parties: Parties) -> tuple[FolderEngine, Path, bytes]:
    """A run with one ask that nobody has answered yet, and its folder."""
    engine = parties.engine()
    engine.open_run("r1")
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    return engine, parties.folder / "runs" / "r1", body


class Work:
    """What looks into a folder and the site's own log cost, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        for name, where, what in (
            ("listed", os, "listdir"),
            ("logged", AppendLog, "append"),
            ("verified", SigningKey, "unseal"),
        ):
            monkeypatch.setattr(where, what, self._counted(name, getattr(where, what)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.done[name] += 1
            return real(*given, **named)

        return call

    def of(self, look: Callable[[], object]) -> tuple[object, Counter[str]]:
        self.done.clear()
        return look(), self.done.copy()


def flooded(parties: Parties, runs: int) -> None:
    """Runs with an ask to the first site, half of them signed, by nobody known."""
    stranger = SigningKey.generate()
    for number in range(runs):
        place, body = parties.ask(run=f"junk-{number:04d}")
        path = parties.folder / "runs" / place.run / "asks" / place.file
        path.parent.mkdir(parents=True)
        readers = [parties.keys[place.site].public]
        body = stranger.seal(place.context("ask", stranger.public, ""), body, readers=readers)
        path.write_bytes(body if number % 2 else os.urandom(200))


def put(parties: Parties, run: str, round_: int = 1) -> FolderEngine:
    engine = parties.engine()
    engine.open_run(run)
    place, body = parties.ask(run=run, round_=round_)
    engine.send({(round_, place.site): body})
    return engine


def test_a_flood_of_runs_starves_nobody(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: what a look costs does not grow with it, and how many looks an honest ask waits."""
    flooded(parties, 5000)
    engine = put(parties, "real")
    watcher, work = parties.watcher(SITES[0]), Work(monkeypatch)
    answered, logged = [], 0
    for _ in range(-(-5001 // MOST_NEW)):
        written, cost = work.of(watcher.once)
        answered.append(written)
        logged += cost["logged"]
        assert cost["verified"] <= MOST_NEW + 5
        assert cost["listed"] <= 3 * MOST_NEW + 10, "one of each run, two for copies"
    assert sum(map(int, answered)) == 1
    assert logged <= NAMED + 10
    assert not watcher.is_behind
    # A run that is known, and one that was not there before, have their answer at once.
    put(parties, "real", round_=2)
    assert watcher.once() == 1
    put(parties, "later")
    assert watcher.once() == 1
    # The coordinator looks at its own run only.
    key = frozenset({(1, SITES[0])})
    arrivals, cost = work.of(lambda: engine.collect(key, wait="all", deadline=5.0))
    assert [arrival.data is None for arrival in arrivals] == [False]  # type: ignore[attr-defined]
    assert cost["listed"] + cost["verified"] <= 5
    ignored = [facts for _, kind, facts in parties.events if kind == "ignored"]
    assert len(ignored) == NAMED + 1 and "more files" in ignored[-1]["reason"]


def test_a_flood_of_messages_in_one_run_starves_nobody(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under names that an honest ask could have, some as large as a message may be."""
    engine = put(parties, "real")
    asks = parties.folder / "runs" / "real" / "asks"
    for number in range(3, 1500):
        path = asks / f"{number}-1-{SITES[0]}.msg"
        path.write_bytes(b"")
        if number % 3 == 0:
            os.truncate(path, 1 << 28)
    watcher, work = parties.watcher(SITES[0]), Work(monkeypatch)
    read = 0
    real = mailbox.Mailbox._read

    def counted(box: Mailbox, parts: tuple[str, ...]) -> bytes | None:
        nonlocal read
        path = parties.folder.joinpath(*parts)
        read += path.stat().st_size if path.exists() else 0
        return b"" if path.exists() and path.stat().st_size > 1 << 20 else real(box, parts)

    monkeypatch.setattr(mailbox.Mailbox, "_read", counted)
    assert watcher.once() == 1
    assert read <= MOST_NEW_BYTES + (2 << 28)
    body = parties.ask(run="real", round_=2)[1]
    engine.send({(2, SITES[0]): body})
    written, cost = work.of(watcher.once)
    assert written == 1 and cost["verified"] <= MOST_NEW + 5


def test_a_single_look_answers_what_is_there(parties: Parties) -> None:
    """``--once`` goes through all of it; watching goes on without a pause until it has."""
    flooded(parties, 2 * MOST_NEW + 1)
    put(parties, "real")
    key, trusted = parties.keys[SITES[0]], [parties.coordinator.public]
    site = parties.sites[SITES[0]]
    assert watch(site, parties.folder, key=key, coordinators=trusted, once=True) == 1


def elsewhere(root: Path) -> Path:
    """A folder outside of the shared one."""
    (root / "private" / "health").mkdir(parents=True)
    return root / "private"


@pytest.mark.parametrize("replaced", ["runs/r1/replies", "runs/r1", "runs"])
def test_a_site_writes_nothing_outside_the_folder(parties: Parties, replaced: str) -> None:
    """A directory of the folder that is exchanged for a link, with the site's own rights."""
    put_out(parties)
    path, private = parties.folder / replaced, parties.root / "private"
    path.rename(private)
    path.symlink_to(private)
    before = sorted(private.rglob("*"))
    watcher = parties.watcher(SITES[0])
    assert watcher.once() == watcher.once() == 0
    assert sorted(private.rglob("*")) == before
    ((_, kind, facts),) = parties.events
    assert kind == ("unsent" if path.name == "replies" else "unreachable")
    assert "a link is in the way" in facts["reason"]


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # Names of sockets are short.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def endless(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


def a_hard_link(path: Path) -> None:
    other = path.with_name(".other")
    other.write_bytes(b"private")
    os.link(other, path)
    other.unlink()


def odd_names(path: Path) -> None:
    path.mkdir()
    for name in (b"1-1-ash (conflicted copy\x1b[2J\n).msg", b"1-1-ash.sync-conflict\xff.msg"):
        (path / os.fsdecode(name)).write_bytes(b"x")


def of_another_age(path: Path) -> None:
    path.write_bytes(b"x" * 300)
    os.utime(path, (-(10**9), 10**11))


HOSTILE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "endless": endless,
    "hard link": a_hard_link,
    "directory": lambda path: (path / "deep" / "er").mkdir(parents=True),
    "odd names": odd_names,
    "loop": lambda path: path.symlink_to(path),
    "nowhere": lambda path: path.symlink_to("/nonexistent/x"),
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "of another age": of_another_age,
}


@by_turns(
    HOSTILE,
    ["", "asks", "replies", "asks/1-1-ash.msg", "asks/9-1-ash.msg", "replies/1-1-ash.msg"],
    names=("make", "place"),
)
def test_whatever_lies_in_the_folder_stops_no_other_run(
    parties: Parties, make: Callable[[Path], None], place: str
) -> None:
    """And what either end says of it steers no terminal; the coordinator removes it all."""
    engine, run, _ = put_out(parties)
    target = run / place
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    make(target)
    put(parties, "other")
    watcher = parties.watcher(SITES[0])
    for _ in range(3):
        watcher.once()
    assert (parties.folder / "runs" / "other" / "replies" / f"1-1-{SITES[0]}.msg").is_file()
    (arrival,) = engine.collect(frozenset({(1, SITES[0])}), wait="all", deadline=0.05)
    engine._name_conflicts(at_once=True)
    said = [*engine.notes, arrival.reason, *(str(facts) for _, _, facts in parties.events)]
    assert all(text.isprintable() for text in said)
    assert arrival.data or arrival.reason.startswith("no reply within the deadline")
    assert remove_files(parties.folder, "r1")
    assert [path.name for path in (parties.folder / "runs").iterdir()] == ["other"]


def test_a_site_goes_on_where_the_link_was(parties: Parties) -> None:
    engine, run, _ = put_out(parties)
    (run / "replies").rmdir()
    (run / "replies").symlink_to(elsewhere(parties.root))
    watcher = parties.watcher(SITES[0])
    assert watcher.once() == 0 and watcher.unsent
    (run / "replies").unlink()
    (run / "replies").mkdir()
    assert watcher.once() == 1
    assert parties.sites[SITES[0]].computed == 1
    (arrival,) = engine.collect(frozenset({(1, SITES[0])}), wait="all", deadline=5.0)
    assert arrival.data


def test_the_coordinator_writes_reads_and_removes_nothing_outside(parties: Parties) -> None:
    """And says why there is no reply, although the right one lies where the link leads."""
    engine, run, body = put_out(parties)
    assert parties.watcher(SITES[0]).once() == 1
    private = elsewhere(parties.root)
    for name in ("asks", "replies"):
        (run / name).rename(private / name)
        (run / name).symlink_to(private / name)
    before = {path: path.read_bytes() for path in private.rglob("*.msg")}
    assert len(before) == 2
    (arrival,) = engine.collect(frozenset({(1, SITES[0])}), wait="all", deadline=0.1)
    assert arrival.data is None and "a link" in arrival.reason
    with pytest.raises(RunError, match="a link is in the way"):
        engine.send(
            {(2, SITES[0]): dataclasses.replace(Request.from_bytes(body), round=2).to_bytes()}
        )
    with pytest.raises(RunError, match="a link is in the way"):
        os.symlink(private, parties.folder / "runs" / "r2")
        engine.open_run("r2")
    remove_files(parties.folder, "r1")
    remove_files(parties.folder, "r2")
    assert list((parties.folder / "runs").iterdir()) == []
    assert {path: path.read_bytes() for path in private.rglob("*.msg")} == before


def test_a_heartbeat_is_written_and_read_in_the_folder_only(tmp_path: Path) -> None:
    key, shared = SigningKey.generate(), tmp_path / "shared"
    shared.mkdir()
    private = elsewhere(tmp_path)
    beat = heartbeat_of(Site("a", array_loader(X)), "watching")
    heartbeat.write(private, beat, key)
    (shared / "health").symlink_to(private / "health")
    before = sorted(private.rglob("*"))
    with pytest.raises(RunError, match="a link is in the way"):
        heartbeat.write(shared, dataclasses.replace(beat, held=1), key)
    (found,) = heartbeat.health(shared, {"a": KeyList.of(key.public)}, "mean-and-sd")
    assert found.state == "unknown" and found.age is None
    assert sorted(private.rglob("*")) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_no_file_in_the_place_of_a_heartbeat_ends_the_look_at_others(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    key = SigningKey.generate()
    for name in SITES:
        beat = heartbeat_of(Site(name, loader(name)), "watching")
        heartbeat.write(tmp_path, beat, key)
    path = tmp_path / heartbeat.FOLDER / f"{SITES[0]}.msg"
    path.unlink()
    make(path)
    keys = {name: KeyList.of(key.public) for name in SITES}
    found = heartbeat.health(tmp_path, keys, "mean-and-sd")
    assert [one.state for one in found] == ["unknown", "watching"]


def test_a_heartbeat_does_not_tell_how_much_a_run_has_left(tmp_path: Path) -> None:
    beat = heartbeat_of(Site("a", array_loader(X), home=DiskStore(tmp_path)), "watching")
    assert beat.free % (1 << 26) == 0


# ------------------------------------------------------------------ nodes over Flower


def test_a_node_that_is_no_site_reads_no_study() -> None:
    """Whoever reaches the port may register a node."""
    heard: list[object] = []

    def stranger(content: Mapping[str, object]) -> Content:
        heard.append(content["kind"])
        return {"status": "ignored", "reason": "no"}

    parties = OverFlower()
    parties.server.connect(stranger)
    able = {"able": True, "said": []}
    for name in SITES:
        parties.server.connect(parties.desk(name, check=lambda text: able).handle)
    found = parties.engine().ask_everyone("check", {"study": "of ours"}, seconds=6.0)
    assert None not in found.values()
    assert heard == ["hello"]


def test_two_processes_of_a_stock_node_do_not_work_in_one_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would read the same budget, and the later one write its own charge only."""
    stock = pytest.importorskip("consilience.engines.flower.stock")
    coordinator, key = SigningKey.generate(), SigningKey.generate()
    key.save(tmp_path / "keys")
    (tmp_path / "table.csv").write_text("x\n1\n")
    path = tmp_path / "north.toml"
    path.write_text(f'{SITE_FILE}[trust]\ncoordinators = ["{coordinator.public}"]\n')
    place = Place("run", 1, 1, "north")
    request = dataclasses.replace(OPEN, run="run", site="north")
    asking = place.context("ask", coordinator.public, "")
    envelope = coordinator.seal(asking, request.to_bytes(), readers=[key.public])
    content: Content = {
        "kind": "ask",
        "run": "run",
        "round": 1,
        "attempt": 1,
        "site": "north",
        "envelope": envelope,
    }
    monkeypatch.setattr(stock, "unpacked", lambda message: message)
    context = SimpleNamespace(node_config={"site": str(path), "keys": str(tmp_path / "keys")})
    with sole(file_site(SiteFile.load(path)).home):
        assert stock._answer(content, context)["reason"] == HOME_FAILED
    assert stock._answer(content, context)["status"] == "reply"


def test_a_question_that_is_carried_again_is_told_nothing_new() -> None:
    """By whoever runs the server: a site would read its table, and say how it is, every time."""
    parties, read = OverFlower(), []

    def check(text: str) -> dict[str, Any]:
        read.append(text)
        return {"able": True, "said": []}

    desk = parties.desk(SITES[0], check=check)
    for kind in ("hello", "check"):
        asked = query(parties, parties.coordinator, kind, study="of ours")
        assert desk.handle(asked) == desk.handle(asked)
        other = query(parties, parties.coordinator, kind, number="b2" * 16, study="of ours")
        assert desk.handle(other) != desk.handle(asked)
    assert len(read) == 2


def test_no_coordinator_follows_the_run_of_another() -> None:
    """What a run left at a site is for who began it; ids of runs are no secret."""
    parties, second, name = OverFlower(), SigningKey.generate(), SITES[0]
    desk = parties.desk(name, parties.coordinator.public, second.public)

    def opened(key: SigningKey, run: str, follows: str) -> dict[str, Any]:
        message = decode_message(OPEN.message)
        message = encode_message(dataclasses.replace(message, follows=follows))
        request = dataclasses.replace(OPEN, run=run, site=name, message=message)
        return desk.handle(asked(parties, key, Place.of(request), request.to_bytes()))

    assert opened(parties.coordinator, "first", "")["status"] == "reply"
    assert ignored(opened(second, "second", "first")) == OTHER_COORDINATOR
    assert opened(second, "third", "made-here")["status"] == "reply"
    assert opened(parties.coordinator, "fourth", "first")["status"] == "reply"


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000])
def test_nobody_else_puts_files_into_a_home_or_among_keys(tmp_path: Path, umask: int) -> None:
    """A file of a job or a ledger that another user exchanges would decide for the steward."""
    os.umask(umask)
    DiskStore(tmp_path / "homes" / "north")
    SigningKey.generate().save(tmp_path / "keys")
    make_federation(tmp_path / "all", ["north"])
    make_node_key(tmp_path / "node", "north")
    for path in ("homes/north", "keys", "all", "all/coordinator", "all/sites/north", "node"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700
    secret = [p for p in tmp_path.rglob("*") if p.suffix in (".key", ".secret")]
    assert len(secret) == 8
    assert not [p for p in secret if stat.S_IMODE(p.stat().st_mode) & 0o077]

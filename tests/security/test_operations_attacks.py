"""Attacks on what surrounds the gate: checks before a run, held replies, files, memory, nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.flower import join
from consilience.engines.flower.desk import HOME_FAILED, OTHER_COORDINATOR
from consilience.engines.flower.keys import make_federation, make_node_key
from consilience.engines.flower.link import Content
from consilience.engines.folder import Mailbox, heartbeat
from consilience.engines.health import heartbeat_of
from consilience.engines.local import LocalEngine
from consilience.engines.signed import Place
from consilience.exceptions import PrivacyError
from consilience.methods.assistance_test.messages import NoisySketched
from consilience.sites.home import DiskHome, sole
from consilience.sites.jobs import holds
from consilience.sites.loaders import file_site
from consilience.sites.site import APPROVED, Site
from consilience.sites.study import SiteFile, Study
from consilience.testing.fakes import array_loader
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.keys import KeyList
from consilience.wire.message import Disclosure
from consilience.wire.signing import SigningKey
from tests.engines.flower_parties import Parties as OverFlower
from tests.engines.test_flower_desk import asked, ignored, query
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, SITES, loader
from tests.sites.test_site import OPEN, X, after, ask, sums

ALONE = "rare-value"
SITE_FILE = """
name = "north"
home = "home"
[source]
path = "table.csv"
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
    assert told(file, study(tmp_path, ["age", "note"]))["kinds"]["note"] == "text"


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
    sites = [Site(name, loader(name), home=DiskHome(tmp_path / name)) for name in SITES]
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


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_no_file_in_the_place_of_a_heartbeat_ends_the_look_at_others(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    key = SigningKey.generate()
    for name in SITES:
        beat = heartbeat_of(Site(name, loader(name)), "watching")
        heartbeat.write(tmp_path, beat, key)
    path = heartbeat.path_of(tmp_path, SITES[0])
    path.unlink()
    make(path)
    keys = {name: KeyList.of(key.public) for name in SITES}
    found = heartbeat.health(tmp_path, keys, "mean-and-sd")
    assert [one.state for one in found] == ["unknown", "watching"]


def test_a_heartbeat_does_not_tell_how_much_a_run_has_left(tmp_path: Path) -> None:
    beat = heartbeat_of(Site("a", array_loader(X), home=DiskHome(tmp_path)), "watching")
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
    DiskHome(tmp_path / "homes" / "north")
    SigningKey.generate().save(tmp_path / "keys")
    make_federation(tmp_path / "all", ["north"])
    make_node_key(tmp_path / "node", "north")
    for path in ("homes/north", "keys", "all", "all/coordinator", "all/sites/north", "node"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700
    secret = [p for p in tmp_path.rglob("*") if p.suffix in (".key", ".secret")]
    assert len(secret) == 8
    assert not [p for p in secret if stat.S_IMODE(p.stat().st_mode) & 0o077]

"""What must not work: names that lead elsewhere, bombs, forged limits, other people's messages.

Beside the attacks in `test_attacks`, which go through whole runs, and the folder's own tests.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from consilience.engines import health
from consilience.engines.federation import load_run
from consilience.engines.folder import Mailbox, Place
from consilience.engines.folder.site import Watcher
from consilience.engines.health import read as read_heartbeat
from consilience.engines.signed import check_site
from consilience.exceptions import (
    ConsilienceError,
    ParameterError,
    ProtocolError,
    RunError,
    StudyError,
    WireError,
)
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import get_method
from consilience.sites.outputs import TABLE, SiteOutput, encode_table
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore, MemoryStore, Record, SiteStore
from consilience.sites.study import SiteFile, Study
from consilience.testing.fakes import federation_of
from consilience.wire.codec import MAX_EMPTY, decode_message, pack, unpack
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import message_type
from consilience.wire.signing import SigningKey
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, SITES
from tests.sites.test_site import OPEN
from tests.sites.test_study import STUDY

ELSEWHERE = [
    "",
    ".",
    "..",
    "../x",
    "x/../../y",
    "/etc/passwd",
    "a/b",
    "a\\..\\b",
    "..\\x",
    "a..b",
    ".hidden",
    "x\0y",
    "x\ny",
    "-rf",
    "~root",
    "%2e%2e%2fx",
    "．．/x",
    "\u202ex",
    "x" * 300,
]
HARMLESS = {"%2e%2e%2fx", "x\ny", "~root", "-rf", "\u202ex", "a\\..\\b", "..\\x", "a..b", "x" * 300}
"""Names that are odd, and yet one name of one file: outputs may have them."""


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def loader(*_: Any, **__: Any) -> Any:
    raise AssertionError("the table was read")


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("run", ELSEWHERE)
def test_run_ids_at_a_home(run: str, tmp_path: Path) -> None:
    home = DiskStore(tmp_path / "in" / "home")
    for use in (
        lambda: home.record(run, 1, 1),
        lambda: home.commit(run, Record(1, 1, "", b"")),
        lambda: home.series(run),
        lambda: home.write_outputs(run, {"x": b""}),
        lambda: home.read_output(run, "x"),
        lambda: home.output_names(run),
        lambda: home.purge(run),
        lambda: home.jobs.state(run, 1, 1).read(),
    ):
        with pytest.raises(RunError, match="not allowed"):
            use()
    assert not everything(tmp_path)


@pytest.mark.parametrize("home", [MemoryStore, DiskStore], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("run", ELSEWHERE)
def test_run_ids_in_a_request(run: str, home: type[Any], tmp_path: Path) -> None:
    kept: SiteStore = home(tmp_path / "home") if home is DiskStore else home()
    site = Site("a", loader, home=kept)
    with pytest.raises(RunError, match="not allowed"):
        site.answer(dataclasses.replace(OPEN, run=run).to_bytes())
    assert site.computed == 0 and not kept.read_log() and not everything(tmp_path)


@pytest.mark.parametrize("run", ELSEWHERE[1:])
def test_run_ids_of_a_coordinator(run: str, tmp_path: Path) -> None:
    tables = {name: np.random.default_rng(i).normal(size=(30, 2)) for i, name in enumerate("ab")}
    with pytest.raises(ConsilienceError):
        MeanAndSD().run(federation_of(tables), seed=1, out=tmp_path / "in" / "run", run_id=run)
    assert not {p for p in everything(tmp_path) if "in" not in p.relative_to(tmp_path).parts}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_sites_and_studies(name: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError):
        check_site(name)
    with pytest.raises(StudyError):
        Place("run", 1, 1, name)
    for text in (
        STUDY.replace('name = "s"', f"name = {json.dumps(name)}"),
        STUDY.replace('"west"', json.dumps(name)),
    ):
        (tmp_path / "study.toml").write_text(text, encoding="utf-8")
        with pytest.raises(StudyError):
            Study.load(tmp_path / "study.toml")
    if name != "a..b":  # one name of one file
        with pytest.raises(ParameterError):
            Policy(data_id=name)


@pytest.mark.parametrize("name", [name for name in ELSEWHERE if name not in HARMLESS])
def test_outputs_and_tables(name: str, tmp_path: Path) -> None:
    home = DiskStore(tmp_path / "home")
    (tmp_path / "x").write_bytes(b"of somebody else")
    for use in (
        lambda: home.write_outputs("run", {name: b"x"}),
        lambda: home.read_output("run", name),
        lambda: home.read_output("run", f"../../../{name or 'x'}"),
        lambda: SiteOutput(home, "run").to_frame(f"../{name}"),
    ):
        with pytest.raises(RunError):
            use()
    with pytest.raises(ProtocolError):
        encode_table(name, {"column": [1.0]})
    assert everything(tmp_path) == {tmp_path / "x"}


def test_a_table_of_a_step_replaces_no_other_output() -> None:
    assert TABLE.endswith(".csv")
    with pytest.raises(ProtocolError):
        encode_table(TABLE.removesuffix(".csv"), {"column": [1.0]})
    assert set(encode_table("coefficients", {"column": [1.0]})) == {"coefficients.csv"}


NOT_METHODS = [*ELSEWHERE, "os", "os.system", "consilience.protocol.mean_and_sd", "__import__"]


@pytest.mark.parametrize("name", NOT_METHODS)
def test_methods(name: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no method is called"):
        get_method(name)
    site = Site("a", loader)
    reply = Reply.from_bytes(site.answer(dataclasses.replace(OPEN, method=name).to_bytes()))  # type: ignore[arg-type]
    assert reply.status == "refused" and "Traceback" not in reply.reason
    assert not name or len(name) < 3 or name not in reply.reason, "a name from outside comes back"
    (tmp_path / "study.toml").write_text(
        STUDY.replace('"ensemble-clustering"', json.dumps(name)), encoding="utf-8"
    )
    with pytest.raises(StudyError):
        get_method(Study.load(tmp_path / "study.toml").method)


@pytest.mark.parametrize("name", NOT_METHODS)
def test_the_method_of_a_run_directory(name: str, tmp_path: Path) -> None:
    tables = {site: np.random.default_rng(i).normal(size=(30, 2)) for i, site in enumerate("ab")}
    MeanAndSD().run(federation_of(tables), seed=1, out=tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "method": name}))
    with pytest.raises(StudyError, match="no method is called"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", NOT_METHODS)
def test_messages_and_their_fields(name: str) -> None:
    with pytest.raises(WireError):
        message_type(name)
    raw = unpack(OPEN.message)
    with pytest.raises(WireError):
        decode_message(msgpack.packb({**raw, "m": name}))
    with pytest.raises(WireError):
        decode_message(msgpack.packb({**raw, "f": {**raw["f"], name: 1}}))


@pytest.mark.parametrize("key", ["__class__", "__init__", "__dict__", "self", "cls", "$", "$array"])
def test_keys_that_mean_something_to_python(key: str) -> None:
    for kind in (Request, Reply):
        raw = unpack(OPEN.to_bytes() if kind is Request else REPLY.to_bytes())
        with pytest.raises(WireError):
            kind.from_bytes(msgpack.packb({**raw, key: "x"}))
    raw = unpack(OPEN.message)
    with pytest.raises(WireError):
        decode_message(msgpack.packb({**raw, "f": {**raw["f"], key: "x"}}))
    with pytest.raises(RunError):
        Record.from_bytes(msgpack.packb({**vars(Record(1, 1, "", b"")), key: "x"}))


def test_steps_of_another_method_and_no_steps(tmp_path: Path) -> None:
    for step in (*ELSEWHERE, "__class__", "coordinate", "fit", "draw"):
        site = Site("a", loader)
        request = dataclasses.replace(OPEN, step=step, round=2, after_round=1, after_attempt=1)
        reply = Reply.from_bytes(site.answer(request.to_bytes()))  # type: ignore[arg-type]
        assert reply.status == "refused" and site.computed == 1


# ------------------------------------------------------------------ bombs


REPLY = Reply("run-1", 1, 1, "step", "a", "refused", b"", "no", ())


def array(**changes: Any) -> dict[str, Any]:
    return {"$": "array", "d": "<f8", "s": [2], "b": bytes(16), **changes}


BOMBS = {
    "huge shape, few bytes": array(s=[1 << 30]),
    "huge product of small numbers": array(s=[1 << 8] * 8),
    "a product that overflows to the right size": array(s=[1 << 32, 1 << 32, 2]),
    "empty, and yet huge": array(s=[0, 1 << 30], b=b""),
    "empty, and over 64 bits": array(s=[1 << 30, 0, 1 << 30, 1 << 30], b=b""),
    "negative": array(s=[-2]),
    "two negatives": array(s=[-1, -2]),
    "one minus one": array(s=[-1, 2]),
    "too many dimensions": array(s=[1] * 64, b=bytes(8)),
    "shape of numbers that are none": array(s=[float("nan")]),
    "shape of truths": array(s=[True, True]),
    "shape that is an array": array(s=array()),
    "strides": array(t=[0]),
    "strides in the dtype": array(d="(2,2)<f8"),
    "dtype with fields": array(d="f8,f8"),
    "dtype of objects": array(d="|O8"),
    "dtype of another size": array(d="<f2", s=[8]),
    "dtype of texts": array(d="<U4", s=[1]),
    "dtype of raw bytes": array(d="|V16", s=[1]),
    "dtype of the other order": array(d=">f8"),
    "dtype with white space": array(d=" <f8"),
    "list for bytes": array(b=[0] * 16),
    "array for bytes": array(b=array()),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_arrays_that_are_none(bomb: dict[str, Any]) -> None:
    data = msgpack.packb(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(WireError):
        Request.from_bytes(msgpack.packb({**unpack(OPEN.to_bytes()), "message": bomb}))
    # In a field of a message, however deep: no site ever gets to its step.
    site = Site("a", loader)
    raw = unpack(OPEN.message)
    message = msgpack.packb({**raw, "f": {**raw["f"], "columns": [bomb]}})
    said = site.answer(dataclasses.replace(OPEN, message=message).to_bytes())
    assert Reply.from_bytes(said).status == "refused"  # type: ignore[arg-type]


def test_small_empty_arrays_are_arrays() -> None:
    for shape in ((0,), (0, 5), (5, 0), (0, 0, 3), (0, MAX_EMPTY // 8)):
        assert unpack(pack(np.empty(shape))).shape == shape


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 500_000 + b"\xc0",
        b"\x81\xa1a" * 300_000 + b"\xc0",
        b"\x91\x81\xa1a" * 200_000 + b"\xc0",
        b"\xdc\xff\xff" * 100_000,
        b"\xdd\x00\x0f\x42\x40" * 100_000,
        b"\xdf\x7f\xff\xff\xff" * 100_000,
        b"\xdb\xff\xff\xff\xff" + bytes(100_000),
        b"\xc6\xff\xff\xff\xff" + bytes(100_000),
        b"\xc9\x7f\xff\xff\xff\x01" + bytes(100_000),
    ],
    ids=["lists", "maps", "both", "wide", "wider", "wide maps", "text", "bytes", "extension"],
)
def test_deep_and_wide_structures_claim_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        for read in (unpack, decode_message, Request.from_bytes, Reply.from_bytes):
            with pytest.raises(WireError):
                read(data)
        with pytest.raises(RunError):
            Record.from_bytes(data)
        # Lists that declare many items reserve room before these come, as deep as msgpack goes:
        # 1024 levels of at most 8 bytes an item, of which nothing is ever touched.
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


def test_memory_of_many_small_items_is_bounded() -> None:
    """Twelve million empty lists in 12 MB would take a gigabyte."""
    million = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000
    data = b"\x9c" + million * 12
    with pytest.raises(WireError, match="items was refused"):
        unpack(data)


def test_numbers_over_64_bits_and_odd_ones() -> None:
    for seed in (0, 2**63 - 1, 2**64 - 1, -(2**63)):
        site = Site("a", loader)
        request = dataclasses.replace(OPEN, seed=seed, round=2**63, attempt=2**64 - 1)
        said = site.answer(request.to_bytes())
        assert Reply.from_bytes(said).status == "refused"  # type: ignore[arg-type]


# ------------------------------------------------------------------ forged limits


SECTIONS = {
    "policy": '[policy]\npreset = "simulation"\n',
    "release": "[release]\nhold = false\n",
    "trust": '[trust]\ncoordinators = ["x"]\n',
    "source": '[source]\npath = "/etc/passwd"\n',
    "retention": "[retention]\ndays = 1\n",
    "home": '[home]\npath = "/"\n',
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_study_has_no_say_in_what_sites_decide(section: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY + SECTIONS[section])
    with pytest.raises(StudyError, match=section):
        Study.load(tmp_path / "study.toml")
    (tmp_path / "study.toml").write_text(STUDY)
    good = Study.load(tmp_path / "study.toml")
    content = json.loads(good.canonical())
    assert Study.from_canonical(good.canonical()).hash() == good.hash()
    with pytest.raises(StudyError):
        Study.from_canonical(json.dumps({**content, section: {"preset": "simulation"}}))


def test_a_study_for_a_site_file_and_a_site_file_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    with pytest.raises(StudyError):
        SiteFile.load(tmp_path / "study.toml")


@pytest.mark.parametrize("place", ["", "runs", "runs/r1", "runs/r1/asks", "health"])
def test_files_of_a_site_in_the_shared_folder_are_nothing(place: str, tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    for folder in ("runs/r1/asks", "runs/r1/replies", "health"):
        (parties.folder / folder).mkdir(parents=True, exist_ok=True)
    for name in ("site.toml", "ash.toml", "policy.json", "consilience.key", "default.json"):
        (parties.folder / place / name).write_text('[policy]\npreset = "simulation"\n')
    site = parties.sites[SITES[0]]
    before = site.policy
    assert parties.watcher(SITES[0]).once() == 0
    assert site.policy == before and not parties.events and not site.home.ledger("default")


def test_a_request_has_no_field_for_limits() -> None:
    for name in ("policy", "limits", "preset", "min_records", "hold", "approved_studies", "home"):
        with pytest.raises(WireError, match="declared fields"):
            Request.from_bytes(pack({**unpack(OPEN.to_bytes()), name: "simulation"}))
    names = {field.name for field in dataclasses.fields(Request)}
    assert not names & {field.name for field in dataclasses.fields(Policy)}


# ------------------------------------------------------------------ other people's messages


def recorded(parties: Parties) -> list[tuple[Place, str, bytes, str]]:
    """Every message of two runs: place, direction, bytes, and digest of what a reply is about."""
    case = CASES["secret-draws"]
    for run in ("first", "second"):
        with parties.watching():
            parties.federation(case).run(case.method(), seed=5, run_id=run)
    found = []
    for path in sorted((parties.folder / "runs").glob("*/*/*.msg")):
        round_, attempt, site = path.stem.split("-", 2)
        place = Place(path.parents[1].name, int(round_), int(attempt), site)
        found.append((place, path.parent.name, path.read_bytes(), ""))
    return found


def test_no_message_is_one_at_another_place(parties: Parties) -> None:
    """All messages of two runs, each put in the place of every other one."""
    found = recorded(parties)
    assert len(found) == 2 * 3 * 2 * len(SITES)  # runs, rounds, directions
    public = parties.coordinator.public
    accepted = 0
    for (place, kind, _, _), (origin, said, data, _) in itertools.product(found, repeat=2):
        path = parties.folder / "runs" / place.run / kind / place.file
        keep = path.read_bytes()
        path.write_bytes(data)
        try:
            if kind == "asks":
                box = Mailbox(parties.folder, parties.keys[place.site], "reply")
                got = box.take(place, public, (public,))
            else:
                box = Mailbox(parties.folder, parties.coordinator, "ask")
                ask = Mailbox(parties.folder, parties.keys[place.site], "reply")
                about = ask.digest(place)
                key = parties.keys[place.site].public
                got = box.take(place, public, (key,), about=about)
            assert got is not None
            assert (place, kind) == (origin, said), "a message was taken at another place"
            accepted += 1
        except WireError:
            assert (place, kind) != (origin, said)
        finally:
            path.write_bytes(keep)
    assert accepted == len(found)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def test_a_coordinator_of_another_study_that_is_trusted_too(parties: Parties) -> None:
    """It may run its own study; of the other's run it can neither ask, go on nor replay."""
    second, site = SigningKey.generate(), parties.sites[SITES[0]]
    found = recorded(parties)
    trusted = [parties.coordinator.public, second.public]
    watcher = Watcher(site, parties.folder, parties.keys[site.name], trusted)
    watcher.once()
    computed = site.computed
    box = Mailbox(parties.folder, second, "ask")
    readers = [parties.keys[site.name].public]
    for place, kind, _, _ in found:
        if kind != "asks" or place.site != site.name:
            continue
        reader = Mailbox(parties.folder, parties.keys[site.name], "reply")
        body = reader.take(place, trusted[0], (trusted[0],))
        assert body is not None
        request = Request.from_bytes(body[0])
        for changes in (
            {},
            {"round": request.round + 10},
            {"attempt": request.attempt + 1},
            {"study": "another"},
        ):
            asked = dataclasses.replace(request, **changes)
            box.put(Place.of(asked), second.public, asked.to_bytes(), readers=readers)
        # The same in a run of its own: what it follows is not there.
        own = dataclasses.replace(request, run=f"own-{request.round}")
        (parties.folder / "runs" / own.run / "replies").mkdir(parents=True, exist_ok=True)
        box.put(Place.of(own), second.public, own.to_bytes(), readers=readers)
    watcher.once()
    replies = parties.folder / "runs" / "first" / "replies"
    ours = {f"{p.file}" for p, kind, _, _ in found if kind == "replies" and p.run == "first"}
    assert {p.name for p in replies.iterdir()} == ours, "another's run was answered"
    for path in sorted((parties.folder / "runs").glob("own-*/replies/*.msg")):
        record = site.home.record(path.parents[1].name, int(path.name.split("-")[0]), 1)
        assert record is not None
        said = Reply.from_bytes(record.reply)
        # Only the opening of a run of its own is a question that may be asked.
        assert said.status == ("reply" if said.round == 1 else "refused"), said
    assert site.computed == computed + 3


def test_a_heartbeat_is_of_its_site_only(parties: Parties) -> None:
    from consilience.engines.health import write
    from consilience.wire.keys import KeyList

    first, second = SITES
    beat = health.heartbeat_of(parties.sites[first], "watching", every=60.0, busy=0.0, unsent=0)
    write(parties.folder, beat, parties.keys[first])
    read_heartbeat(parties.folder, first, KeyList.of(parties.keys[first].public))
    (source,) = (parties.folder / "health").glob("*.msg")
    (parties.folder / "health" / f"{second}.msg").write_bytes(source.read_bytes())
    for keys in (parties.keys[first].public, parties.keys[second].public):
        with pytest.raises(WireError):
            read_heartbeat(parties.folder, second, KeyList.of(keys))
    with pytest.raises(ConsilienceError):
        read_heartbeat(parties.folder, "../x", KeyList.of(parties.keys[first].public))

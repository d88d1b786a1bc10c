"""Whoever carries messages reads none: all files of a shared folder, all bytes at a Flower server.

The attacker has everything that was carried, the format, every public key, and (as an insider) the
private key of one site or of another coordinator. What it looks for is known from the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.engines.base import Arrival, Engine, Key
from consilience.engines.flower.handler import Content, query_context
from consilience.engines.signed import Place
from consilience.exceptions import WireError
from consilience.wire.codec import decode_message, digest, pack, plain_fields
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import iterate_fields
from consilience.wire.signing import Context, SigningKey
from tests.engines.fake_link import FakeSuperLink
from tests.engines.flower_parties import Parties as OverFlower
from tests.engines.flower_parties import collect
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, SITES

NAMES = ("mean-and-sd", "secret-draws")
Told = list[tuple[bytes, bytes]]
"""Every request and every reply, as the two ends know them."""


def listened(engine: Engine) -> Told:
    """Have an engine note what it is given to carry and what it brings; nothing else changes."""
    told, sent = [], {}
    send, bring = engine.send, engine.collect

    def note(requests: Mapping[Key, bytes]) -> None:
        sent.update(requests)
        send(requests)

    def hear(keys: frozenset[Key], **waiting: Any) -> list[Arrival]:
        found = bring(keys, **waiting)
        told.extend((sent[one.key], one.data) for one in found if one.data is not None)
        return found

    engine.send, engine.collect = note, hear  # type: ignore[method-assign]
    return told


def secrets_of(told: Told) -> dict[str, bytes]:
    """Encoded content of each field whose audience is not everybody, where chance cannot make it.

    Numbers of a few bytes are found in any long file: of these the whole message speaks.
    """
    found: dict[str, bytes] = {}
    for asked, answered in told:
        for said in (Request.from_bytes(asked), Reply.from_bytes(answered)):
            if not said.message:
                continue
            message = decode_message(said.message)
            plain = plain_fields(message)
            found[f"{said.step}, {type(said).__name__}"] = said.message
            for name, spec, _ in iterate_fields(message):
                value = plain[name]
                data = value.tobytes() if isinstance(value, np.ndarray) else pack(value)
                if spec.audience != "all" and len(data) >= 8:
                    found[f"{said.step}, {type(message).__name__}.{name}"] = data
    return found


def readings(data: bytes) -> Iterator[object]:
    """What somebody without a key makes of a file: every envelope or message that begins in it."""
    for at in range(min(len(data), 400)):
        for read in (Request.from_bytes, Reply.from_bytes, decode_message):
            try:
                yield read(data[at:])
            except WireError:
                continue


def check_hidden(carried: list[bytes], told: Told) -> None:
    """Nothing that was said is in what was carried, and nothing of it can be decoded."""
    wanted = secrets_of(told)
    assert len(wanted) >= 4 and any("." in name.partition(", ")[2] for name in wanted)
    assert sum(len(data) for data in carried) > sum(len(reply) for _, reply in told)
    for data in carried:
        assert not [name for name, content in wanted.items() if content in data]
        assert not list(readings(data))


def of_the_folder(parties: Parties) -> list[bytes]:
    return [path.read_bytes() for path in sorted(parties.folder.rglob("*")) if path.is_file()]


class Tapped(FakeSuperLink):
    """A server that keeps what it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.carried: list[Content] = []

    def fates(self, content: Content) -> list[tuple[float, Content]]:
        self.carried.append(content)
        return super().fates(content)

    def bytes_of(self, kind: type = bytes) -> list[bytes]:
        return [v for c in self.carried for v in c.values() if isinstance(v, kind)]


@pytest.fixture
def over_flower() -> OverFlower:
    parties = OverFlower()
    parties.server = Tapped()
    parties.clock = parties.server.clock
    return parties


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


# ------------------------------------------------------------------ readers without a key


@pytest.mark.parametrize("name", NAMES)
def test_readers_of_the_folder_read_no_field(parties: Parties, name: str) -> None:
    case = CASES[name]
    engine = parties.engine()
    told = listened(engine)
    with parties.watching():
        run = parties.federation(case, engine=engine).run(case.method(), seed=11, run_id="run")
    files = of_the_folder(parties)
    rounds = max(line.round for line in run.transcript)
    assert len(told) == rounds * len(SITES) and len(files) == 2 * len(told), "the whole run"
    check_hidden(files, told)
    for line in run.transcript:
        reader = "coordinator" if line.direction == "from-site" else line.site
        assert line.protection == f"sealed to {reader}"


@pytest.mark.parametrize("name", NAMES)
def test_the_server_reads_no_field(over_flower: OverFlower, name: str) -> None:
    parties, case = over_flower, CASES[name]
    engine = parties.engine()
    told = listened(engine)
    parties.connect()
    run = parties.federation(case, engine=engine).run(case.method(), seed=11, run_id="run")
    assert len(told) == max(line.round for line in run.transcript) * len(SITES)
    check_hidden(parties.server.bytes_of(), told)  # type: ignore[attr-defined]
    assert {line.protection for line in run.transcript} == {
        "sealed to coordinator", *(f"sealed to {site}" for site in SITES)
    }  # fmt: skip


def test_the_server_reads_no_check(over_flower: OverFlower) -> None:
    """Neither a study nor what a site says of its columns."""
    parties, study, said = over_flower, "the text of a study", "types of columns"
    for name in SITES:
        check = {"able": True, "said": [said]}
        parties.server.connect(parties.desk(name, check=lambda text, told=check: told).handle)
    found = parties.engine().ask_everyone("check", {"study": study}, seconds=6.0)
    assert all(one is not None and one.said["said"] == [said] for one in found.values())
    for data in parties.server.bytes_of():  # type: ignore[attr-defined]
        assert study.encode() not in data and said.encode() not in data


def test_nobody_on_the_way_reads_that_or_why_a_site_refuses(parties: Parties) -> None:
    engine = parties.engine()
    told = listened(engine)
    engine.open_run("r1")
    sizes = []
    for site in SITES:
        place, body = parties.ask(site=site)
        engine.send({(1, site): body})
        assert parties.watcher(site).once() == 1
        (arrival,) = engine.collect(frozenset({(1, site)}), wait="all", deadline=1.0)
        reply = Reply.from_bytes(arrival.data or b"")
        assert reply.status == "refused" and len(reply.reason) > 20
        for data in of_the_folder(parties):
            assert reply.reason.encode() not in data and b"refused" not in data
        sizes.append((parties.folder / "runs" / "r1" / "replies" / place.file).stat().st_size)
    assert len(told) == 2 and len({len(reply) for _, reply in told}) == 2
    assert len(set(sizes)) == 1, "whole blocks: names and reasons of other lengths do not show"


# ------------------------------------------------------------------ readers with another key


def opened_by(key: SigningKey, publics: list[str], data: bytes, contexts: list[Context]) -> int:
    count = 0
    for public in publics:
        for context in contexts:
            try:
                key.unseal(data, public=public, context=context)
            except WireError as error:
                assert "\n" not in str(error) and len(str(error)) < 300
            else:
                count += 1
    return count


def test_a_site_and_another_coordinator_open_nothing_of_others(parties: Parties) -> None:
    """With their own keys, as anybody in every context of the run."""
    case = CASES["mean-and-sd"]
    with parties.watching():
        parties.federation(case).run(case.method(), seed=11, run_id="run")
    second = SigningKey.generate()
    public = parties.coordinator.public
    publics = [public, *(key.public for key in parties.keys.values()), second.public]
    folder = parties.folder / "runs" / "run"
    asks = sorted(path for path in (folder / "asks").iterdir() if path.stem[0] in "12")
    places = [Place("run", int(p.stem[0]), 1, p.stem.split("-", 2)[2]) for p in asks]
    abouts = {place: digest(path.read_bytes()) for place, path in zip(places, asks, strict=True)}
    contexts = [place.context("ask", public, "") for place in places]
    contexts += [place.context("reply", public, abouts[place]) for place in places]
    opened: dict[str, int] = {}
    for path in [*asks, *(folder / "replies" / path.name for path in asks)]:
        data, own = path.read_bytes(), path.stem.split("-", 2)[2]
        for who, key in {**parties.keys, "second": second}.items():
            found = opened_by(key, publics, data, contexts)
            opened[who] = opened.get(who, 0) + found
            assert not found or (who == own and path.parent.name == "asks"), "its own asks only"
    assert opened == {**{site: len(asks) // 2 for site in SITES}, "second": 0}


def test_a_site_whose_key_is_not_listed_is_told_nothing_and_told_of(
    over_flower: OverFlower,
) -> None:
    """It answers a greeting for no site; what is carried to it all the same says nothing to it."""
    parties = over_flower
    parties.connect(SITES[1])
    engine = parties.engine()
    _, body = parties.ask(site=SITES[1])
    engine.send({(1, SITES[1]): body})
    assert collect(engine, SITES[1], deadline=60.0)[0].data is not None
    (ask,) = [c for c in parties.server.carried if c.get("kind") == "ask"]  # type: ignore[attr-defined]
    parties.keys[SITES[1]] = SigningKey.generate()
    answer = parties.desk(SITES[1]).handle(ask)
    assert answer == {
        "status": "ignored", "reason": "it is sealed for another key than this site's"
    }  # fmt: skip


def test_a_greeting_is_answered_for_the_eyes_of_who_asked(over_flower: OverFlower) -> None:
    """How a site is: its release, its free disk. The greeting itself is for any node, and empty."""
    parties = over_flower
    parties.connect()
    assert None not in parties.engine().ask_everyone("hello", {}, seconds=6.0).values()
    greetings = [c for c in parties.server.carried if c.get("kind") == "hello"]  # type: ignore[attr-defined]
    answers = [c for c in parties.server.carried if c.get("status")]  # type: ignore[attr-defined]
    assert len(greetings) == len(answers) == len(SITES)
    for content in answers:
        assert b"watching" not in content["envelope"] and b"release" not in content["envelope"]
    context = query_context(greetings[0]["query"], "ask", parties.coordinator.public)
    with pytest.raises(WireError, match="it is not sealed"):
        parties.keys[SITES[0]].unseal(
            greetings[0]["envelope"], public=parties.coordinator.public, context=context
        )

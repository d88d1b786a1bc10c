"""Engines over a site with a damaged home: who asks is told, and other runs go on."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import watch
from consilience.engines.local import LocalEngine
from consilience.engines.signed import Place
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.loaders import file_site
from consilience.sites.site import COORDINATORS, Site
from consilience.sites.site_store import DiskStore
from consilience.sites.study import SiteFile
from consilience.wire.codec import decode_message, encode_message
from tests.engines.flower_parties import Parties as OverFlower
from tests.engines.test_flower_desk import OPENING, asked, reply_in
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, SITES, loader
from tests.sites.test_damage import OF_DATA, OF_RUN
from tests.sites.test_site import OPEN

ASH = SITES[0]


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def put(parties: Parties, run: str, round_: int = 1) -> Place:
    """Put an ask that every site refuses, and wait for nothing."""
    engine = parties.engine()
    engine.open_run(run)
    place, body = parties.ask(run=run, round_=round_)
    engine.send({(round_, ASH): body})
    return place


def said(parties: Parties, kind: str) -> list[dict[str, object]]:
    return [facts for _, found, facts in parties.events if found == kind]


def restarted(parties: Parties) -> None:
    parties.sites[ASH] = Site(ASH, loader(ASH), home=DiskStore(parties.root / f"home-{ASH}"))


def once(parties: Parties) -> int:
    """What ``consilience site watch --once`` does; it raises where the command ends with 7."""
    return watch(
        parties.sites[ASH],
        parties.folder,
        key=parties.keys[ASH],
        coordinators=[parties.coordinator.public],
        once=True,
        on_event=lambda kind, facts: parties.events.append((ASH, kind, facts)),
        retention=365,
    )


def test_a_watch_refuses_the_damaged_run_and_answers_the_others(parties: Parties) -> None:
    """At every start; the coordinator has its answer long before the deadline."""
    with parties.watching():
        parties.federation().run(MeanAndSD(), seed=1, run_id="r1")
    record = parties.root / f"home-{ASH}" / "runs" / "r1" / "000001-001.record"
    os.truncate(record, 20)
    reply = parties.folder / "runs" / "r1" / "replies" / f"1-1-{ASH}.msg"
    reply.unlink()
    for number in range(2):
        restarted(parties)
        parties.events.clear()
        other = put(parties, f"other-{number}")
        assert once(parties) == 2 - number
        assert {facts["run"]: facts["outcome"] for facts in said(parties, "answered")} == {
            f"other-{number}": "refused",
            **({} if number else {"r1": "refused"}),
        }
        assert (reply.parent.parent.parent / other.run / "replies" / other.file).is_file()
        if not number:
            (told,) = said(parties, "damaged")
            assert str(told["reason"]).startswith(f"{record} is damaged: restore it from a copy")
            assert [f["reason"] for f in said(parties, "answered") if f["run"] == "r1"] == [OF_RUN]


def test_the_coordinator_of_a_damaged_run_hears_of_it(parties: Parties) -> None:
    """In place of silence until the deadline."""

    def damage(kind: str, facts: dict[str, object]) -> None:
        if kind == "ask" and facts["round"] == 2:
            for path in (parties.root / f"home-{ASH}" / "runs").rglob("000001-001.record"):
                os.truncate(path, 20)

    with parties.watching(), pytest.raises(QuorumError, match=f"{ASH} refused: {OF_RUN}"):
        parties.federation(deadline=10.0, quorum=2).run(MeanAndSD(), seed=1, on_event=damage)


def test_without_its_list_of_coordinators_a_site_answers_nobody(parties: Parties) -> None:
    """It tells whoever it trusts, and goes on where it was when the list is there again."""
    put(parties, "r1")
    assert once(parties) == 1
    path = parties.root / f"home-{ASH}" / "ledger" / f"{COORDINATORS}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    restarted(parties)
    put(parties, "r2")
    computed = parties.sites[ASH].computed
    assert once(parties) == 1 and parties.sites[ASH].computed == computed
    assert said(parties, "answered")[-1]["reason"] == OF_DATA
    assert str(path) in str(said(parties, "damaged")[-1]["reason"])
    path.write_bytes(whole)
    put(parties, "r3")
    assert once(parties) == 1
    assert said(parties, "answered")[-1]["reason"] != OF_DATA


def test_a_damaged_queue_does_not_keep_a_watch_from_starting(parties: Parties) -> None:
    site = parties.sites[ASH] = Site(
        ASH, loader(ASH), home=DiskStore(parties.root / f"home-{ASH}"), hold="all"
    )
    site.answer(OPENING)
    job = parties.root / f"home-{ASH}" / "jobs" / "r1" / "1-1.json"
    job.write_bytes(b"{")
    put(parties, "r2")
    assert once(parties) == 1
    assert [facts["reason"] for facts in said(parties, "damaged")] == [
        f"{job} is damaged: restore it from a copy, or remove it"
    ]


def test_a_desk_refuses_the_damaged_run_and_answers_the_others(tmp_path: Path) -> None:
    parties = OverFlower()
    parties.sites[ASH] = Site(ASH, loader(ASH), home=DiskStore(tmp_path))
    desk, (place, _) = parties.desk(ASH), parties.ask()
    content = asked(parties, parties.coordinator, place, OPENING)
    first = desk.handle(content)
    for path, reason in (
        ("runs/r1/000001-001.record", OF_RUN),
        (f"ledger/{COORDINATORS}.json", OF_DATA),
    ):
        whole = (tmp_path / path).read_bytes()
        os.truncate(tmp_path / path, 20)
        parties.events.clear()
        answer = reply_in(parties, desk.handle(content), place, OPENING)
        assert (answer.status, answer.reason) == ("refused", reason)
        (told,) = [facts for _, kind, facts in parties.events if kind == "damaged"]
        assert str(tmp_path / path) in told["reason"]
        (tmp_path / path).write_bytes(whole)
        assert desk.handle(content) == first


def test_in_one_process_the_run_goes_on_without_the_site(tmp_path: Path) -> None:
    case = CASES["mean-and-sd"]
    sites = [Site(name, loader(name), home=DiskStore(tmp_path / name)) for name in SITES]

    def damage(kind: str, facts: dict[str, object]) -> None:
        if kind == "ask" and facts["round"] == 2:
            os.truncate(tmp_path / ASH / "runs" / "r1" / "000001-001.record", 20)

    federation = Federation(LocalEngine(sites), case.columns, case.preparation)
    with pytest.raises(QuorumError, match=f"{ASH} refused: {OF_RUN}"):
        federation.run(MeanAndSD(), seed=1, run_id="r1", on_event=damage)
    assert federation.run(MeanAndSD(), seed=1, run_id="r2")


def test_a_refusal_is_never_longer_than_a_reply_may_say(parties: Parties) -> None:
    """Names come from a study: the site could not read its own reply, and its watch ended."""
    opening = decode_message(OPEN.message)
    columns = {**json.loads(opening.columns), "features": ["n" * 3000]}
    opened = dataclasses.replace(opening, columns=json.dumps(columns))
    request = dataclasses.replace(OPEN, run="r1", site=ASH, message=encode_message(opened))
    (parties.root / "t.csv").write_text("x,y\n1,2\n")
    text = f'name = "{ASH}"\nhome = "home"\n[source]\npath = "t.csv"\n[columns]\noffered = {{}}\n'
    (parties.root / "site.toml").write_text(text)
    parties.sites[ASH] = file_site(SiteFile.load(parties.root / "site.toml"))
    engine = parties.engine()
    engine.open_run("r1")
    engine.send({(1, ASH): request.to_bytes()})
    assert once(parties) == 1
    (facts,) = said(parties, "answered")
    assert facts["outcome"] == "refused" and len(str(facts["reason"])) < 2000

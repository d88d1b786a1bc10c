"""The Flower engine over a SuperLink in this process: it loses, delays, repeats and alters."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from consilience.engines.flower import Delivered, Desk, FlowerEngine, LinkLost
from consilience.engines.flower import coordinator as module
from consilience.engines.flower.handler import NOT_TRUSTED, Content, query_context
from consilience.exceptions import EngineError, ParameterError, QuorumError, StudyError
from consilience.sites.site import Site
from consilience.testing import check_engine
from consilience.testing.fakes import SilentSite, members
from consilience.testing.recalling import SEED
from consilience.wire.codec import digest
from consilience.wire.keys import KeyList, today
from consilience.wire.signing import SigningKey, unseal
from tests.engines.fake_link import FakeLink, FakeSuperLink, Trouble, fake_flower
from tests.engines.flower_parties import Parties, collect, here
from tests.engines.lying import heard, lie
from tests.exchange.cases import CASES as METHOD_CASES
from tests.faults.cases import SITES, loader
from tests.rotation import by_turns

ASH, BIRCH = SITES
DAY = 86400.0
TROUBLES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lost": {"lose": 0.3},
    "late": {"delay": 0.7, "longest": 60.0},
    "twice": {"repeat": 0.7},
    "reordered": {"delay": 0.5, "reorder": True},
    "altered": {"alter": 0.3},
    "all": {"lose": 0.2, "delay": 0.3, "repeat": 0.3, "alter": 0.2, "reorder": True},
}


undisturbed = functools.cache(here)


@functools.cache
def computed_without_trouble() -> dict[str, int]:
    """How often each site computed."""
    calm = Parties()
    calm.connect()
    calm.run()
    return {name: site.computed for name, site in calm.sites.items()}


@pytest.fixture
def parties() -> Parties:
    return Parties()


# ------------------------------------------------------------------ results


@pytest.mark.parametrize(
    "check",
    [
        check_engine.check_round_trip,
        check_engine.check_order,
        check_engine.check_repeated_asks,
        check_engine.check_silent_sites,
        check_engine.check_waiting_for_any,
        check_engine.check_refusals,
        check_engine.check_errors,
    ],
    ids=lambda check: check.__name__,
)
def test_promises_of_every_engine_amid_trouble(check: Any) -> None:
    """Without trouble, and with large messages, they are checked in `tests/exchange`."""

    def engine(sites: Any) -> Any:
        trouble = Trouble(delay=0.5, longest=1.0, repeat=0.5, reorder=True, seed=8)
        return fake_flower(sites, FakeSuperLink(trouble))

    check(engine)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_on_the_way_changes_no_byte(trouble: str, seed: int) -> None:
    parties = Parties(Trouble(seed=seed, **TROUBLES[trouble]))
    parties.connect()
    there, wanted = parties.run(deadline=DAY), undisturbed()
    assert there.result.to_files() == wanted.result.to_files()
    salted = {"digest", "chain", "protection"}
    lines = [
        [{k: v for k, v in vars(line).items() if k not in salted} for line in run.transcript]
        for run in (wanted, there)
    ]
    assert lines[0] == lines[1]
    assert {line.protection for line in wanted.transcript} == {"open"}
    for name, site in parties.sites.items():
        assert site.computed == computed_without_trouble()[name], "each question is computed once"


@by_turns(
    [n for n, c in METHOD_CASES.items() if not c.asynchronous], range(10), names=("name", "seed")
)
def test_trouble_changes_no_result_of_any_method(name: str, seed: int) -> None:
    case = METHOD_CASES[name]
    federation = case.factory()
    server = FakeSuperLink(Trouble(seed=seed, **TROUBLES["all"]))
    with fake_flower(list(members(federation).values()), server) as engine:
        moved = dataclasses.replace(federation, engine=engine, deadline=DAY)
        found = case.method.run(moved, seed=SEED)
    assert found.result.to_files() == case.record.run.result.to_files()


def test_a_site_whose_reply_does_not_fit_is_left_out_and_told(parties: Parties) -> None:
    lie(parties.sites[BIRCH], "sums", n=-1)
    parties.connect()
    run = parties.run(quorum=1)
    assert any(f"{BIRCH} was absent" in n and "not accepted" in n for n in run.notes)
    assert len(heard(parties.sites[BIRCH])) == 1 and not heard(parties.sites[ASH])


def test_each_question_is_computed_once_however_often_it_is_asked() -> None:
    parties = Parties(Trouble(repeat=1.0))
    parties.connect()
    parties.run()
    asks = [node for node, kind in parties.server.handled if kind == "ask"]
    assert len(asks) == 2 * sum(site.computed for site in parties.sites.values())


def test_a_secret_that_was_seen_is_not_drawn_anew() -> None:
    parties = Parties(Trouble(lose=0.4, seed=5))
    parties.connect()
    parties.run("secret-draws", deadline=DAY)  # the method compares what it is told twice


def test_answers_that_come_twice_are_taken_once(parties: Parties) -> None:
    """A server may also give more than it was asked for."""

    class Generous(FakeLink):
        def pull(self, ids: Any) -> list[Delivered]:
            found = super().pull(ids)
            spoilt = [Delivered(one.id, {"status": "reply", "envelope": b"?"}) for one in found]
            return [*found, *spoilt, *found, *spoilt, Delivered("unasked", {}), Delivered("", None)]

    parties.connect()
    public = {name: key.public for name, key in parties.keys.items()}
    engine = FlowerEngine(
        lambda: Generous(parties.server), SITES, parties.coordinator, public, clock=parties.clock
    )
    there = parties.run(engine=engine, deadline=DAY)
    assert there.result.to_files() == undisturbed().result.to_files()


# ------------------------------------------------------------------ the link


def test_a_lost_link_is_opened_again_and_the_run_goes_on(parties: Parties) -> None:
    for node, name in zip(parties.connect(), SITES, strict=True):
        left = [3]

        def handle(content: Mapping[str, object], desk: Any = node.handle, left: Any = left) -> Any:
            left[0] -= 1
            if left[0] == 0:
                parties.server.lost(refusing=2)
            return desk(content)

        node.handle = handle
        assert name in SITES
    there = parties.run(deadline=DAY)
    assert there.result.to_files() == undisturbed().result.to_files()
    assert parties.server.opened == 2 + len(parties.told("link lost")) // 3 - 1
    assert parties.server.ended == [False] * (parties.server.opened - 1) + [True]
    assert {fact["reason"] for fact in parties.told("link lost")} == {
        "the SuperLink is gone",
        "the SuperLink is not there",
    }


def test_a_link_that_breaks_at_once_each_time_is_tried_ever_less_often(parties: Parties) -> None:
    class Broken(FakeLink):
        def nodes(self) -> tuple[int, ...]:
            raise LinkLost("the line is down")

    tried: list[float] = []

    def open_link() -> FakeLink:
        tried.append(parties.clock.now)
        return Broken(parties.server)

    public = {name: key.public for name, key in parties.keys.items()}
    engine = FlowerEngine(open_link, SITES, parties.coordinator, public, clock=parties.clock)
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    (arrival,) = collect(engine, place.site, deadline=600.0)
    assert arrival.data is None and "the line is down" in arrival.reason
    assert len(tried) < 30, "doubling to half a minute"
    assert tried[-1] - tried[-2] >= module.AGAIN_LAST


def test_a_link_that_worked_is_opened_again_soon(parties: Parties) -> None:
    parties.connect(ASH)
    parties.server.lost(refusing=8)
    with pytest.raises(LinkLost):
        parties.server.open().nodes()
    engine = parties.engine()
    engine.send({(1, ASH): parties.ask()[1]})
    assert collect(engine, ASH, deadline=DAY)[0].data is not None
    began = parties.clock.now
    parties.server.lost()
    engine.send({(1, ASH): parties.ask(round_=2)[1]})
    assert collect(engine, ASH, deadline=DAY)[0].data is not None
    assert parties.clock.now - began < 2 * module.AGAIN_FIRST + 1


def test_a_coordinator_that_finds_no_server_says_so(parties: Parties) -> None:
    parties.server.lost(refusing=1)
    engine = parties.engine()
    with pytest.raises(LinkLost, match="not there"):
        engine.require_link()
    engine.require_link()
    engine.close()
    assert parties.server.ended == [False]


# ------------------------------------------------------------------ who is there


def test_a_site_that_comes_late(parties: Parties) -> None:
    parties.connect(ASH)
    engine = parties.engine()
    for site in SITES:
        engine.send({(1, site): parties.ask(site=site)[1]})
    (first,) = collect(engine, *SITES, deadline=DAY, wait="any")
    assert first.key == (1, ASH) and first.data is not None
    parties.clock.sleep(3600.0)
    parties.connect(BIRCH)
    (second,) = collect(engine, BIRCH, deadline=DAY)
    assert second.data is not None


def test_sites_that_are_silent_past_the_deadline(parties: Parties) -> None:
    parties.connect(ASH)
    began = parties.clock.now
    with pytest.raises(QuorumError, match="birch-2 was absent: no reply within 30 seconds") as said:
        parties.run(deadline=30.0)
    assert "it is not connected to the SuperLink" in str(said.value)
    assert 30.0 <= parties.clock.now - began < 32.0
    assert parties.run(quorum=1, deadline=30.0).result.n == 60


def test_a_reply_that_is_there_beats_a_deadline_that_has_passed(parties: Parties) -> None:
    parties.connect(ASH)
    engine = parties.engine()
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    parties.clock.sleep(3600.0)
    assert collect(engine, place.site, deadline=1.0)[0].data is not None


def test_a_node_that_dies_with_a_question_in_hand(parties: Parties) -> None:
    node, _ = parties.connect()
    parties.run()
    node.dies, node.back_after = True, 45.0
    engine = parties.engine()
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    (arrival,) = collect(engine, place.site, deadline=DAY)
    assert arrival.data is not None
    node.dies, node.back_after = True, None
    engine.send({(1, place.site): parties.ask(round_=2)[1]})
    (arrival,) = collect(engine, place.site, deadline=300.0)
    assert arrival.data is None and "not connected" in arrival.reason


def test_a_site_that_is_back_under_another_number(parties: Parties) -> None:
    node, _ = parties.connect()
    engine = parties.engine()
    place, body = parties.ask()
    node.dies = True  # the server lists it for a minute
    engine.send({(1, place.site): body})
    collect(engine, place.site, deadline=5.0)
    parties.connect(ASH)
    began = parties.clock.now
    engine.send({(1, place.site): body})
    (arrival,) = collect(engine, place.site, deadline=DAY)
    assert arrival.data is not None
    assert parties.clock.now - began <= module.REPEAT_FIRST + module.HELLO_AGAIN + 2


def _garbage(content: Mapping[str, object]) -> Content:
    return {"status": "reply", "site": ASH, "envelope": b"forged"}


STRANGERS: dict[str, Any] = {
    "says nothing": lambda content: {},
    "forges": _garbage,
    "nonsense": lambda content: {"status": 7, "site": [ASH], "envelope": 3},
    "echo": lambda content: {**content, "status": "reply", "site": ASH},
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_nodes_that_are_no_site_get_no_question(parties: Parties, stranger: str) -> None:
    one = parties.server.connect(STRANGERS[stranger])
    parties.connect()
    assert parties.run().result.to_files() == undisturbed().result.to_files()
    asked = {node for node, kind in parties.server.handled if kind == "ask"}
    assert one.id not in asked
    assert [fact["node"] for fact in parties.told("stranger")] == [one.id]


def test_a_site_of_another_study_is_a_stranger(parties: Parties) -> None:
    other = SigningKey.generate()
    site = Site(ASH, loader(ASH))
    parties.server.connect(Desk(site, other, [parties.coordinator.public]).handle)
    parties.connect(BIRCH)
    with pytest.raises(QuorumError, match="a node there that answers for no site of the study"):
        parties.run(deadline=30.0)
    assert site.computed == 0


def test_a_site_that_comes_to_trust_the_coordinator_is_let_in(parties: Parties) -> None:
    wary = parties.server.connect(parties.desk(ASH, SigningKey.generate().public).handle)
    parties.connect(BIRCH)
    engine = parties.engine()
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    (arrival,) = collect(engine, ASH, deadline=60.0)
    assert arrival.data is None
    (said,) = parties.told("stranger")
    assert said["reason"] == f"it set the greeting aside: {NOT_TRUSTED}"
    wary.handle = parties.desk(ASH).handle
    engine.send({(1, place.site): body})
    (arrival,) = collect(engine, ASH, deadline=DAY)
    assert arrival.data is not None


def test_two_nodes_for_one_site_do_not_take_turns(parties: Parties) -> None:
    first, second, _ = parties.connect(ASH, ASH, BIRCH)
    assert parties.run().result.to_files() == undisturbed().result.to_files()
    assert [fact["site"] for fact in parties.told("double")] == [ASH]
    asked = [
        n for n, kind in parties.server.handled if kind == "ask" and n in (first.id, second.id)
    ]
    assert set(asked) == {second.id}
    engine = parties.engine()
    place, body = parties.ask()
    engine.send({(1, place.site): body})
    collect(engine, ASH, deadline=DAY)
    parties.server.disconnect(second)
    engine.send({(1, place.site): parties.ask(round_=2)[1]})
    (arrival,) = collect(engine, ASH, deadline=DAY)
    assert arrival.data is not None, "the other one is asked when the newer one has left"


def test_a_greeting_that_the_server_does_not_take_is_sent_again(parties: Parties) -> None:
    refused: list[int] = []

    class Full(FakeLink):
        def push(self, node: int, content: Content, *, seconds: float) -> str:
            if refused.count(node) < 2:
                refused.append(node)
                return ""
            return super().push(node, content, seconds=seconds)

    parties.connect()
    public = {name: key.public for name, key in parties.keys.items()}
    engine = FlowerEngine(
        lambda: Full(parties.server), SITES, parties.coordinator, public, clock=parties.clock
    )
    began = parties.clock.now
    assert parties.run(engine=engine, deadline=60.0).result.n > 60
    assert len(refused) == 4
    assert parties.clock.now - began < 10.0, "at the next looks, not when a greeting is too old"


def test_a_greeting_that_dies_with_the_node_is_repeated(parties: Parties) -> None:
    (node,) = parties.connect(ASH)
    node.dies, node.back_after = True, 1.0
    engine, began = parties.engine(), parties.clock.now
    engine.send({(1, ASH): parties.ask()[1]})
    assert collect(engine, ASH, deadline=DAY)[0].data is not None
    assert parties.clock.now - began < module.HELLO_REPEAT + module.HELLO_AGAIN + 2


def test_a_site_whose_key_has_ended_is_not_heard(parties: Parties) -> None:
    old, new = parties.keys[ASH], SigningKey.generate()
    yesterday = (today() - timedelta(days=1)).isoformat()
    follows = {"key": new.public, "endorsement": old.endorse(new.public)}
    listed = {
        ASH: KeyList.of([{"key": old.public, "until": yesterday}, follows]),
        BIRCH: parties.keys[BIRCH].public,
    }
    (node,) = parties.connect(ASH)
    engine = FlowerEngine(
        parties.server.open, SITES, parties.coordinator, listed, clock=parties.clock
    )
    engine.send({(1, ASH): parties.ask()[1]})
    assert collect(engine, ASH, deadline=60.0)[0].data is None
    assert parties.sites[ASH].computed == 0
    parties.keys[ASH] = new
    node.handle = parties.desk(ASH).handle
    engine.send({(1, ASH): parties.ask()[1]})
    assert collect(engine, ASH, deadline=DAY)[0].data is not None


# ------------------------------------------------------------------ what comes back


def _replies(parties: Parties) -> tuple[FlowerEngine, bytes, bytes]:
    """An engine with an open ask, the ask, and the site's true reply."""
    engine = parties.engine()
    place, body = parties.ask()
    return engine, body, parties.sites[place.site].answer(body)


def test_replies_of_other_places_sites_and_keys_are_set_aside(parties: Parties) -> None:
    engine, body, reply = _replies(parties)
    place, public = parties.ask()[0], parties.coordinator.public
    own = parties.keys[ASH]
    ask = parties.coordinator.seal(place.context("ask", public, ""), body, readers=[own.public])
    about = digest(ask)

    def sealed(
        key: SigningKey, where: Any = place, coordinator: str = public, about: str = about
    ) -> bytes:
        return key.seal(where.context("reply", coordinator, about), reply, readers=[public])

    def other(**where: Any) -> Any:
        return parties.ask(**where)[0]

    forged: dict[str, Any] = {
        "another site's key": sealed(parties.keys[BIRCH]),
        "another site's reply": sealed(parties.keys[BIRCH], other(site=BIRCH)),
        "another run": sealed(own, other(run="r2")),
        "another round": sealed(own, other(round_=2)),
        "another attempt": sealed(own, other(attempt=2)),
        "another coordinator": sealed(own, place, SigningKey.generate().public),
        "another ask": sealed(own, about=digest(b"")),
        "the ask, turned back": ask,
        "not sealed": own.seal(place.context("reply", public, about), reply),
        "nothing": b"",
        "cut": sealed(own)[:-1],
        "no bytes": 7,
    }
    node = parties.connect(ASH)[0]
    greet = node.handle

    def say(envelope: Any) -> None:
        def handle(content: Mapping[str, object]) -> Content:
            if content["kind"] == "hello":
                return greet(content)
            return {"status": "reply", "envelope": envelope}

        node.handle = handle

    for what, envelope in forged.items():
        say(envelope)
        engine.send({(1, ASH): body})
        (arrival,) = collect(engine, ASH, deadline=5.0)
        assert arrival.data is None, what
    say(sealed(own))
    engine.send({(1, ASH): body})
    (arrival,) = collect(engine, ASH, deadline=5.0)
    assert arrival.data == reply


def test_words_of_others_are_not_repeated(parties: Parties) -> None:
    node = parties.connect(ASH)[0]
    greet = node.handle
    said: dict[str, Any] = {}
    node.handle = lambda content: greet(content) if content["kind"] == "hello" else said
    engine = parties.engine()
    for reason, wanted in (
        ("\x1b[2J 37.25", "it was not understood"),
        ({"a": 1}, "it was not understood"),
        (NOT_TRUSTED, NOT_TRUSTED),
    ):
        said.update(status="ignored", reason=reason)
        engine.send({(1, ASH): parties.ask()[1]})
        (arrival,) = collect(engine, ASH, deadline=5.0)
        assert arrival.data is None
        assert f"the site set the message aside: {wanted})" in arrival.reason
    assert "37.25" not in "".join(engine.notes)


def test_a_site_whose_disk_fails_is_asked_again(parties: Parties) -> None:
    parties.sites[ASH] = SilentSite(ASH, loader(ASH))
    node = parties.connect(ASH)[0]
    engine = parties.engine()
    engine.send({(1, ASH): parties.ask()[1]})
    (arrival,) = collect(engine, ASH, deadline=120.0)
    assert "the site could not keep its record" in arrival.reason
    asked = sum(kind == "ask" for _, kind in parties.server.handled)
    assert 5 <= asked <= 12, "ever less often"
    parties.sites[ASH] = Site(ASH, loader(ASH))
    node.handle = parties.desk(ASH).handle
    engine.send({(1, ASH): parties.ask()[1]})
    assert collect(engine, ASH, deadline=60.0)[0].data is not None


def test_what_is_held_is_asked_for_again_ever_less_often(parties: Parties) -> None:
    node = parties.connect(ASH)[0]
    desk, released = node.handle, parties.clock.now + 1800.0

    def handle(content: Mapping[str, object]) -> Content:
        if content["kind"] == "hello" or parties.clock.now >= released:
            return desk(content)
        return {"status": "held"}

    node.handle = handle
    engine = parties.engine()
    engine.send({(1, ASH): parties.ask()[1]})
    (arrival,) = collect(engine, ASH, deadline=600.0)
    assert "its reply waits for the steward's release" in arrival.reason
    engine.send({(1, ASH): parties.ask()[1]})
    (arrival,) = collect(engine, ASH, deadline=DAY)
    assert arrival.data is not None
    assert parties.clock.now < released + module.HELD_LAST + 2
    assert sum(kind == "ask" for _, kind in parties.server.handled) < 45
    assert {fact["site"] for fact in parties.told("held")} == {ASH}


# ------------------------------------------------------------------ questions of no run


def test_everyone_is_asked_who_they_are(parties: Parties) -> None:
    parties.connect(ASH)
    parties.server.connect(STRANGERS["forges"])
    engine = parties.engine()
    began = parties.clock.now
    found = engine.ask_everyone("hello", {}, seconds=20.0)
    assert found[BIRCH] is None and found[ASH] is not None
    assert found[ASH] is not None
    said = found[ASH].said
    assert said["site"] == ASH and said["state"] == "watching"
    assert 20.0 <= parties.clock.now - began < 21.0
    parties.connect(BIRCH)
    began = parties.clock.now
    assert None not in engine.ask_everyone("hello", {}, seconds=20.0).values()
    assert parties.clock.now - began < 1.0, "no longer than needed"
    assert parties.server.opened == 1


def test_everyone_is_asked_again_when_the_link_is_lost(parties: Parties) -> None:
    parties.connect()
    parties.server.lost()
    assert None not in parties.engine().ask_everyone("hello", {}, seconds=20.0).values()


@pytest.mark.parametrize(
    "text",
    [b"[]", b"7", b"no json", b"[" * 100_000, b'{"site": "birch-2"}', b'{"no": "site"}', b"\xff"],
    ids=lambda text: repr(text[:20]),
)
def test_a_site_cannot_upset_the_coordinator_by_what_it_signs(
    parties: Parties, text: bytes
) -> None:
    def handle(content: Mapping[str, object]) -> Content:
        asked = parties.coordinator.public
        envelope = content["envelope"]
        assert isinstance(envelope, bytes)
        query = str(content["query"])
        body = unseal(envelope, public=asked, context=query_context(query, "ask", asked))
        context = query_context(query, "reply", asked, digest(body))
        sealed = parties.keys[ASH].seal(context, text, readers=[asked])
        return {"status": "reply", "site": ASH, "envelope": sealed}

    parties.server.connect(handle)
    assert parties.engine().ask_everyone("hello", {}, seconds=1.0)[ASH] is None


def test_a_check_goes_to_the_site_and_comes_back_signed(parties: Parties) -> None:
    def check(text: str) -> dict[str, Any]:
        return {"able": text == "a study", "said": [], "kinds": {"x": "number"}}

    parties.server.connect(parties.desk(ASH, check=check).handle)
    parties.connect(BIRCH)
    found = parties.engine().ask_everyone("check", {"study": "a study"}, seconds=5.0)
    assert found[ASH] is not None
    assert found[ASH].said == {"site": ASH, "able": True, "said": [], "kinds": {"x": "number"}}
    assert found[BIRCH] is None, "a desk without a checker sets it aside"


# ------------------------------------------------------------------ settings


def test_settings_are_checked(parties: Parties) -> None:
    public = {name: key.public for name, key in parties.keys.items()}
    server, key = parties.server, parties.coordinator
    with pytest.raises(StudyError, match="no public key of site 'ash'"):
        FlowerEngine(server.open, SITES, key, {BIRCH: public[BIRCH]})
    with pytest.raises(StudyError, match="is not a public key"):
        FlowerEngine(server.open, SITES, key, {**public, ASH: "ed25519:AAAA"})
    with pytest.raises(ParameterError, match="poll"):
        FlowerEngine(server.open, SITES, key, public, poll=0)
    with pytest.raises(EngineError, match="was not put"):
        parties.engine().collect(frozenset({(1, ASH)}), wait="all", deadline=1.0)


def test_a_run_that_ends_well_ends_flowers_run_well(parties: Parties) -> None:
    parties.connect()
    parties.run()
    assert parties.server.ended == [True]


# ------------------------------------------------------------------ the fake itself


def test_the_fake_gives_errors_as_the_server_does() -> None:
    server = FakeSuperLink()
    node = server.connect(lambda content: {"status": "ignored", "reason": ""})
    link = server.open()
    assert link.push(7, {"kind": "x"}, seconds=1.0) == ""
    one = link.push(node.id, {"kind": "x"}, seconds=1.0)
    assert [d.fault for d in link.pull([one])] == [""]
    assert [d.fault for d in link.pull([one, "none"])] == ["error 3", "error 3"]
    node.dies = True
    two = link.push(node.id, {"kind": "x"}, seconds=30.0)
    assert link.pull([two]) == []
    assert link.nodes() == (node.id,)
    server.clock.sleep(30.0)
    assert [d.fault for d in link.pull([two])] == ["error 3"]
    server.clock.sleep(60.0)
    assert link.nodes() == () and link.push(node.id, {"kind": "x"}, seconds=1.0) == ""
    server.lost(refusing=1)
    for call in (link.nodes, server.open):
        with pytest.raises(LinkLost):
            call()
    server.open().close(well=True)
    assert server.ended == [True]


def test_the_same_seed_is_the_same_trouble() -> None:
    def trace(seed: int) -> str:
        parties = Parties(Trouble(seed=seed, **TROUBLES["all"]))
        parties.connect()
        parties.run(deadline=DAY)
        return json.dumps([parties.server.handled, parties.clock.now])

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)

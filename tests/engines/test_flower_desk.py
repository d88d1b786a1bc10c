"""What a site's desk takes, and that nothing leaves it but replies and a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.engines.federation import Federation
from consilience.engines.flower import Desk
from consilience.engines.flower import handler as module
from consilience.engines.flower.handler import (
    HOME_FAILED,
    IGNORED,
    NOT_OURS,
    NOT_TRUSTED,
    OTHER_COORDINATOR,
    OTHER_KEY,
    TOO_LARGE,
    UNFORESEEN,
    Content,
    query_context,
)
from consilience.engines.health import Heartbeat
from consilience.engines.signed import Place
from consilience.exceptions import DataError, RunError, StudyError, WireError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore, MemoryStore
from consilience.testing.fakes import FakeEngine
from consilience.wire.codec import digest
from consilience.wire.envelope import Reply, Request
from consilience.wire.keys import KeyList, today
from consilience.wire.signing import SigningKey
from tests.engines.flower_parties import Parties, here
from tests.faults.cases import CASES, SITES, loader

ASH, BIRCH = SITES
CANARY = "918273.6455"


@pytest.fixture
def parties() -> Parties:
    return Parties()


def asked(
    parties: Parties, key: SigningKey, place: Place, body: bytes, **changes: Any
) -> dict[str, Any]:
    """What an engine sends for a question, signed by a key and sealed for the place's site."""
    readers = [parties.keys[place.site].public]
    envelope = key.seal(place.context("ask", key.public, ""), body, readers=readers)
    return {
        "kind": "ask",
        "run": place.run,
        "round": place.round,
        "attempt": place.attempt,
        "site": place.site,
        "envelope": envelope,
        **changes,
    }


def query(
    parties: Parties, key: SigningKey, kind: str, number: str = "a1" * 16, **body: Any
) -> dict[str, Any]:
    text = json.dumps({"kind": kind, **body}, sort_keys=True).encode()
    readers = None if kind == "hello" else [each.public for each in parties.keys.values()]
    envelope = key.seal(query_context(number, "ask", key.public), text, readers=readers)
    return {"kind": kind, "query": number, "envelope": envelope}


def ignored(answer: Mapping[str, object]) -> str:
    """The one thing that the answer says."""
    assert set(answer) == {"status", "reason"} and answer["status"] == "ignored", answer
    assert answer["reason"] in IGNORED
    return str(answer["reason"])


def reply_in(parties: Parties, answer: Content, place: Place, body: bytes) -> Reply:
    assert set(answer) == {"status", "envelope"} and answer["status"] == "reply", answer
    envelope = answer["envelope"]
    assert isinstance(envelope, bytes)
    asking = asked(parties, parties.coordinator, place, body)
    context = place.context("reply", parties.coordinator.public, digest(asking["envelope"]))
    public = parties.keys[place.site].public
    return Reply.from_bytes(parties.coordinator.unseal(envelope, public=public, context=context))


def opening(site: str = ASH) -> bytes:
    """A real first question, which makes the site read its table."""
    case = CASES["mean-and-sd"]
    engine = FakeEngine([Site(s, loader(s)) for s in SITES])
    Federation(engine, case.columns, case.preparation).run(MeanAndSD(), seed=1, run_id="r1")
    return engine.requests[1, site]


OPENING = opening()


# ------------------------------------------------------------------ what is answered


def test_an_ask_is_answered_and_signed_for_its_place(parties: Parties) -> None:
    place, _ = parties.ask()
    content = asked(parties, parties.coordinator, place, OPENING)
    desk = parties.desk(ASH)
    first = desk.handle(content)
    assert reply_in(parties, first, place, OPENING).status == "reply"
    assert desk.handle(content) == first, "asked again, the same bytes"
    assert parties.sites[ASH].computed == 1
    ((_, kind, facts), _) = parties.events
    assert kind == "answered" and facts["run"] == "r1" and facts["bytes"] > 0


def test_hello_tells_little_and_is_signed(parties: Parties) -> None:
    answer = parties.desk(ASH).handle(query(parties, parties.coordinator, "hello"))
    assert set(answer) == {"status", "site", "envelope"} and answer["site"] == ASH
    body = json.dumps({"kind": "hello"}).encode()
    context = query_context("a1" * 16, "reply", parties.coordinator.public, digest(body))
    envelope = answer["envelope"]
    assert isinstance(envelope, bytes)
    public = parties.keys[ASH].public
    said = json.loads(parties.coordinator.unseal(envelope, public=public, context=context))
    assert set(said) == {field.name for field in fields(Heartbeat)}


# ------------------------------------------------------------------ hostile content


def hostile() -> dict[str, tuple[Any, str]]:
    """Content that is no message, by what is wrong with it, and the word for it."""
    parties = Parties()
    place, body = parties.ask()
    good = asked(parties, parties.coordinator, place, body)
    hello = query(parties, parties.coordinator, "hello")
    check = query(parties, parties.coordinator, "check")
    context, own = place.context("ask", parties.coordinator.public, ""), [parties.keys[ASH].public]
    unsealed = parties.coordinator.seal(context, body)
    elsewhere = parties.coordinator.seal(context, body, readers=[parties.keys[BIRCH].public])
    found: dict[str, tuple[Any, str]] = {
        "nothing": ({}, NOT_OURS),
        "no mapping": (["kind", "ask"], NOT_OURS),
        "None": (None, NOT_OURS),
        "no number of a question": ({**hello, "query": None}, NOT_OURS),
        "a short number": ({**hello, "query": "a1"}, NOT_OURS),
        "a number with a slash": ({**hello, "query": "../" + "a" * 29}, NOT_OURS),
        "another number": ({**hello, "query": "b2" * 16}, NOT_TRUSTED),
        "a check as a hello": (
            {**query(parties, parties.coordinator, "check"), "kind": "hello"},
            NOT_OURS,
        ),
        "a hello as an ask": ({**good, "envelope": hello["envelope"]}, NOT_OURS),
        "an ask as a hello": ({**hello, "envelope": good["envelope"]}, NOT_OURS),
        "an ask as a check": ({**check, "envelope": good["envelope"]}, NOT_TRUSTED),
        "an ask that is not sealed": ({**good, "envelope": unsealed}, NOT_OURS),
        "an ask for another reader": ({**good, "envelope": elsewhere}, OTHER_KEY),
        "text for an envelope": ({**good, "envelope": "text"}, NOT_OURS),
        "no envelope": ({k: v for k, v in good.items() if k != "envelope"}, NOT_OURS),
        "an empty envelope": ({**good, "envelope": b""}, NOT_OURS),
        "a cut envelope": ({**good, "envelope": good["envelope"][:-1]}, NOT_OURS),
        "too large": ({**good, "envelope": bytes(200_000)}, TOO_LARGE),
        "a foreign site": ({**good, "site": BIRCH}, NOT_OURS),
        "a foreign run": ({**good, "run": "r2"}, NOT_TRUSTED),
        "another round": ({**good, "round": 2}, NOT_TRUSTED),
        "another attempt": ({**good, "attempt": 2}, NOT_TRUSTED),
        "a run that leads elsewhere": ({**good, "run": "../../etc"}, NOT_OURS),
        "a site that leads elsewhere": ({**good, "site": "../ash"}, NOT_OURS),
    }
    for name in ("kind", "run", "round", "attempt", "site"):
        for wrong in (None, True, -1, 0, 2.5, 10**30, b"x", [], {}, "", "\x00", "x" * 10_000):
            if name == "kind" or not (wrong is True and name in ("round", "attempt")):
                found[f"{name} is {wrong!r:.20}"] = ({**good, name: wrong}, NOT_OURS)
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    found["deep"] = ({**good, "run": deep, "envelope": deep}, NOT_OURS)
    signed = {
        "no request": b"\x93\x01\x02\x03",
        "empty": b"",
        "deep request": b"\x91" * 20_000,
        "deep text": b"[" * 20_000,
        "an ask for another place": parties.ask(round_=2)[1],
        "an ask for another site": parties.ask(site=BIRCH)[1],
    }
    for what, inner in signed.items():
        found[f"signed: {what}"] = (asked(parties, parties.coordinator, place, inner), NOT_OURS)
    for what, text in {"text": b"no json", "list": b"[]", "deep": b"[" * 20_000}.items():
        envelope = parties.coordinator.seal(
            query_context("a1" * 16, "ask", parties.coordinator.public), text
        )
        found[f"hello of {what}"] = ({**hello, "envelope": envelope}, NOT_OURS)
    for what, study in {"no study": None, "a list": [1]}.items():
        content = query(parties, parties.coordinator, "check", study=study)
        found[f"check of {what}"] = (content, NOT_OURS)
    stranger = SigningKey.generate()
    found["signed by a stranger"] = (asked(parties, stranger, place, body), NOT_TRUSTED)
    found["hello of a stranger"] = (query(parties, stranger, "hello"), NOT_TRUSTED)
    public = parties.coordinator.public
    for what, context in {
        "in another's name": place.context("ask", public, ""),
        "as a reply": place.context("reply", stranger.public, ""),
    }.items():
        envelope = stranger.seal(context, body, readers=own)
        found[f"signed {what}"] = ({**good, "envelope": envelope}, NOT_TRUSTED)
    about = digest(good["envelope"])
    turned = parties.keys[ASH].seal(place.context("reply", public, about), body, readers=own)
    found["its own reply, turned back"] = ({**good, "envelope": turned}, NOT_TRUSTED)
    for content, _ in found.values():
        if isinstance(content, dict):
            content["_parties"] = parties
    return found


HOSTILE = hostile()


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_message_is_set_aside_in_a_few_words(what: str) -> None:
    content, wanted = HOSTILE[what]
    made = content.get("_parties") if isinstance(content, dict) else None
    parties = made or Parties()
    # Small, so that "too large" need not be.
    site = Site(ASH, loader(ASH), policy=Policy(max_message_bytes=1 << 16))
    parties.sites[ASH] = site
    sent = {k: v for k, v in content.items() if k != "_parties"} if made else content
    answer = parties.desk(ASH).handle(sent)
    assert ignored(answer) == (wanted)
    assert site.computed == 0
    assert site.home.ledger("_coordinators") == {}, "no run is bound by what is set aside"


def test_an_ask_at_another_place_is_not_answered(parties: Parties) -> None:
    """Everything that a server could do with an envelope that it has seen."""
    desk, (place, _) = parties.desk(ASH), parties.ask()
    good = asked(parties, parties.coordinator, place, OPENING)
    assert desk.handle(good)["status"] == "reply"
    for change in ({"run": "r2"}, {"round": 2}, {"attempt": 2}):
        assert ignored(desk.handle({**good, **change})) == NOT_TRUSTED
    assert ignored(parties.desk(BIRCH).handle(good)) == NOT_OURS
    assert ignored(parties.desk(BIRCH).handle({**good, "site": BIRCH})) == NOT_TRUSTED
    assert parties.sites[ASH].computed == 1 and parties.sites[BIRCH].computed == 0


def test_a_run_belongs_to_the_coordinator_that_began_it(parties: Parties) -> None:
    second = SigningKey.generate()
    desk = parties.desk(ASH, parties.coordinator.public, second.public)
    place, _ = parties.ask()
    assert desk.handle(asked(parties, parties.coordinator, place, OPENING))["status"] == "reply"
    follow, body = parties.ask(round_=2)
    assert ignored(desk.handle(asked(parties, second, follow, body))) == OTHER_COORDINATOR
    assert ignored(desk.handle(asked(parties, second, place, OPENING))) == OTHER_COORDINATOR
    other, its = parties.ask(run="r2")
    assert desk.handle(asked(parties, second, other, its))["status"] == "reply", (
        "its own run it may begin"
    )
    assert desk.handle(asked(parties, parties.coordinator, follow, body))["status"] == "reply"


def test_keys_of_a_coordinator_that_end_and_follow(parties: Parties) -> None:
    old, new = parties.coordinator, SigningKey.generate()
    yesterday = (today() - timedelta(days=1)).isoformat()
    follows = {"key": new.public, "endorsement": old.endorse(new.public)}
    place, body = parties.ask()
    both = parties.desk(ASH, KeyList.of([old.public, follows]))
    assert both.handle(asked(parties, old, place, body))["status"] == "reply"
    ended = parties.desk(ASH, KeyList.of([{"key": old.public, "until": yesterday}, follows]))
    follow, after = parties.ask(round_=2)
    assert ignored(ended.handle(asked(parties, old, follow, after))) == NOT_TRUSTED
    assert ignored(ended.handle(query(parties, old, "hello"))) == NOT_TRUSTED
    assert ended.handle(asked(parties, new, follow, after))["status"] == "reply", "the run goes on"
    with pytest.raises(StudyError, match="ended"):
        parties.desk(ASH, KeyList.of([{"key": old.public, "until": yesterday}]))


def test_a_reply_to_a_follower_key_is_bound_to_that_key(parties: Parties) -> None:
    old, new = parties.coordinator, SigningKey.generate()
    follows = {"key": new.public, "endorsement": old.endorse(new.public)}
    desk, (place, body) = parties.desk(ASH, KeyList.of([old.public, follows])), parties.ask()
    answer = desk.handle(asked(parties, new, place, body))
    envelope = answer["envelope"]
    assert isinstance(envelope, bytes)
    about = digest(asked(parties, new, place, body)["envelope"])
    context = place.context("reply", new.public, about)
    new.unseal(envelope, public=parties.keys[ASH].public, context=context)
    with pytest.raises(WireError, match="not sealed for this party's key"):
        old.unseal(envelope, public=parties.keys[ASH].public, context=context)


# ------------------------------------------------------------------ nothing else leaves


class FailingStore(MemoryStore):
    """A home in which one thing fails with an error that quotes a value."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__()
        self.what, self.error = what, error

    def record(self, *place: Any) -> Any:
        return self._fail("record") or super().record(*place)

    def commit(self, *place: Any) -> None:
        self._fail("commit")
        super().commit(*place)

    def ledger(self, data_id: str) -> Any:
        self._fail("ledger")
        return super().ledger(data_id)

    def write_ledger(self, *given: Any) -> None:
        self._fail("write_ledger")
        super().write_ledger(*given)

    def log(self, event: str, **facts: Any) -> None:
        self._fail("log")
        super().log(event, **facts)

    def _fail(self, what: str) -> None:
        if self.what == what or self.what == "all":
            raise self.error


ERRORS = {
    "ours": RunError(f"cannot write /homes/{CANARY}"),
    "the system's": OSError(28, f"No space left: {CANARY}"),
    "anyone's": ValueError(f"bad value {CANARY}"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("what", ["record", "commit", "ledger", "write_ledger", "log", "all"])
def test_no_text_of_an_error_of_the_home_leaves(what: str, error: str) -> None:
    parties = Parties(homes={ASH: FailingStore(what, ERRORS[error])})
    desk, (place, _) = parties.desk(ASH), parties.ask()
    for content in (
        asked(parties, parties.coordinator, place, OPENING),
        query(parties, parties.coordinator, "hello"),
        query(parties, parties.coordinator, "check", study="s"),
        {"kind": "ask"},
    ):
        answer = desk.handle(content)
        assert CANARY not in repr(answer)
        if answer["status"] == "reply" and "site" not in answer:
            said = reply_in(parties, answer, place, OPENING)
            assert CANARY not in repr(said)
        elif answer["status"] == "ignored":
            assert ignored(answer) in (HOME_FAILED, UNFORESEEN, NOT_OURS)
    assert CANARY not in repr([facts for _, _, facts in parties.events])


@pytest.mark.parametrize(
    "error",
    [ValueError(CANARY), KeyError(CANARY), DataError(CANARY), MemoryError(CANARY)],
    ids=repr,
)
def test_no_text_of_an_error_of_the_loader_leaves(parties: Parties, error: Exception) -> None:
    def fail(*given: Any, **more: Any) -> Any:
        raise error

    parties.sites[ASH] = Site(ASH, fail)
    place, _ = parties.ask()
    answer = parties.desk(ASH).handle(asked(parties, parties.coordinator, place, OPENING))
    said = reply_in(parties, answer, place, OPENING)
    assert said.status == "refused" and CANARY not in repr(said) and CANARY not in repr(answer)
    assert CANARY in repr(parties.sites[ASH].home.read_log()), "the site's own log says why"


@pytest.mark.parametrize(
    "error",
    [ValueError(CANARY), DataError(CANARY), RecursionError(CANARY), OSError(CANARY)],
    ids=repr,
)
def test_no_text_of_an_error_of_a_check_leaves(parties: Parties, error: Exception) -> None:
    def check(text: str) -> dict[str, Any]:
        raise error

    desk = parties.desk(ASH, check=check)
    parties.server.connect(desk.handle)
    answer = desk.handle(query(parties, parties.coordinator, "check", study="s"))
    assert CANARY not in repr(answer)
    found = parties.engine().ask_everyone("check", {"study": "s"}, seconds=1.0)
    assert CANARY not in repr(found)
    if isinstance(error, DataError):
        assert found[ASH] is not None
        assert found[ASH].said == {"site": ASH, "able": False, "said": [error.public]}
    else:
        assert ignored(answer) == UNFORESEEN
    assert CANARY in repr(parties.sites[ASH].home.read_log())


def test_a_terminal_that_is_gone_keeps_no_reply_back(parties: Parties) -> None:
    def gone(kind: str, facts: dict[str, Any]) -> None:
        raise BrokenPipeError(CANARY)

    desk, (place, _) = parties.desk(ASH, on_event=gone), parties.ask()
    answer = desk.handle(asked(parties, parties.coordinator, place, OPENING))
    assert reply_in(parties, answer, place, OPENING).status == "reply"
    assert ignored(desk.handle({})) == NOT_OURS


def test_the_log_cannot_be_filled_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_LOGGED", 5)
    parties = Parties(homes={ASH: DiskStore(tmp_path)})
    desk, (place, body) = parties.desk(ASH), parties.ask()
    for k in range(50):
        desk.handle({"kind": "ask"})
        desk.handle(asked(parties, parties.coordinator, place, body, site=f"{k}/"))
    lines = [line for line in parties.sites[ASH].home.read_log() if line["event"] == "ignored"]
    assert len(lines) == 5
    assert len({line["reason"] for line in lines}) == 5


def test_a_desk_without_coordinators_is_not_opened(parties: Parties) -> None:
    with pytest.raises(StudyError, match="trusts no coordinator"):
        Desk(parties.sites[ASH], parties.keys[ASH], [])


# ------------------------------------------------------------------ what waits for the steward


def test_a_held_reply_does_not_leave_before_it_is_released(parties: Parties) -> None:
    site = parties.sites[ASH] = Site(ASH, loader(ASH), hold="all")
    desk, (place, _) = parties.desk(ASH), parties.ask()
    content = asked(parties, parties.coordinator, place, OPENING)
    for _ in range(2):
        assert desk.handle(content) == {"status": "held"}
    assert site.computed == 1
    assert [kind for _, kind, _ in parties.events] == ["held"]
    site.home.jobs.release("r1", 1, 1)
    assert reply_in(parties, desk.handle(content), place, OPENING).status == "reply"
    assert reply_in(parties, desk.handle(content), place, OPENING).status == "reply"
    assert site.computed == 1


def test_a_held_reply_that_is_refused_leaves_as_a_refusal(parties: Parties) -> None:
    site = parties.sites[ASH] = Site(ASH, loader(ASH), hold="all")
    desk, (place, _) = parties.desk(ASH), parties.ask()
    content = asked(parties, parties.coordinator, place, OPENING)
    assert desk.handle(content) == {"status": "held"}
    site.home.jobs.refuse("r1", 1, 1, "not now")
    assert reply_in(parties, desk.handle(content), place, OPENING).status == "refused"
    assert site.computed == 1


def test_a_run_waits_for_the_steward_and_goes_on(parties: Parties) -> None:
    site = parties.sites[ASH] = Site(ASH, loader(ASH), hold="all")
    parties.connect()
    passed = parties.clock.sleep

    def sleep(seconds: float, /) -> None:
        passed(seconds)
        for job in site.home.jobs.waiting():
            if parties.clock.now >= released[0]:
                site.home.jobs.release(job.run, job.round, job.attempt)
                released[0] = parties.clock.now + 500.0

    released = [parties.clock.now + 500.0]
    parties.clock.sleep = sleep  # type: ignore[method-assign]
    there = parties.run(deadline=86400.0)
    assert there.result.to_files() == here().result.to_files()
    assert {fact["site"] for fact in parties.told("held")} == {ASH}


# ------------------------------------------------------------------ anything at all

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=200)
)
_ANY = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_NAMES = st.sampled_from(["kind", "run", "round", "attempt", "site", "envelope", "query", "x"])
_PLAUSIBLE = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["ask", "hello", "check"]) | _ANY,
        "envelope": st.binary(max_size=400) | _ANY,
    },
    optional={
        "run": st.sampled_from(["r1", "..", ""]) | _ANY,
        "round": st.integers(-2, 3) | _ANY,
        "attempt": st.just(1) | _ANY,
        "site": st.just(ASH) | _ANY,
        "query": st.text("0123456789abcdef", min_size=32, max_size=32) | _ANY,
    },
)
FUZZED = Parties()
FUZZED_DESK = FUZZED.desk(ASH, check=lambda text: {"able": True})


@settings(max_examples=120)
@given(st.dictionaries(_NAMES, _ANY) | _PLAUSIBLE)
def test_whatever_comes_is_set_aside(content: dict[str, Any]) -> None:
    assert ignored(FUZZED_DESK.handle(content)) != UNFORESEEN
    assert FUZZED.sites[ASH].computed == 0


@settings(max_examples=80)
@given(
    st.sampled_from(["ask", "hello", "check"]),
    st.binary(max_size=300) | _ANY.map(lambda value: json.dumps(value, default=str).encode()),
)
def test_whatever_is_signed_is_answered_or_set_aside(kind: str, body: bytes) -> None:
    """A coordinator that a site trusts may still send nonsense."""
    place, key = Place("r1", 1, 1, ASH), FUZZED.coordinator
    content = asked(FUZZED, key, place, body)
    if kind != "ask":
        readers = None if kind == "hello" else [FUZZED.keys[ASH].public]
        envelope = key.seal(query_context("a1" * 16, "ask", key.public), body, readers=readers)
        content = {"kind": kind, "query": "a1" * 16, "envelope": envelope}
    assert ignored(FUZZED_DESK.handle(content)) == NOT_OURS


@settings(max_examples=60)
@given(st.data())
def test_whatever_is_asked_gets_a_refusal_at_most(data: Any) -> None:
    """Requests of the right form with any content."""
    texts = st.text(max_size=20)
    method = data.draw(st.sampled_from(["mean-and-sd", "no-such", "", "../x"]))
    step = data.draw(st.sampled_from(["sums", "opening.read", "", "no-such"]))
    numbers = st.integers(0, 3)
    fields = (data.draw(texts), method, data.draw(numbers), data.draw(texts))
    drawn = [data.draw(numbers) for _ in range(3)]
    round_ = data.draw(st.integers(1, 10**6))
    run = f"run{data.draw(st.integers(0, 10**9))}"
    body = Request(
        run, *fields, round_, 1, drawn[0], drawn[1], step, ASH, drawn[2], data.draw(st.binary())
    ).to_bytes()
    place = Place(run, round_, 1, ASH)
    answer = FUZZED_DESK.handle(asked(FUZZED, FUZZED.coordinator, place, body))
    if answer["status"] == "reply":
        assert reply_in(FUZZED, answer, place, body).status == "refused"
    else:
        assert ignored(answer) == NOT_OURS

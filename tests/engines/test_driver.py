from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.engines.base import Arrival
from consilience.engines.rundir import read_info
from consilience.engines.study_run import progress_of
from consilience.exceptions import EngineError, ProtocolError, QuorumError, RunError
from consilience.protocol.mean_and_sd import MeanAndSD, SumsRequest
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Preparation
from consilience.protocol.phases.opening import TOLD
from consilience.testing.fakes import (
    Asynchronous,
    ClassSums,
    FakeEngine,
    Findings,
    Question,
    federation_of,
    members,
    scripted,
)
from consilience.wire.envelope import Request
from tests.engines.lying import altered, heard
from tests.rotation import by_turns

TABLES = {name: np.random.default_rng(ord(name)).normal(size=(40, 2)) for name in "abc"}
POOLED = Preparation(standardize="pooled")


def federation(**settings: Any) -> Any:
    return federation_of(TABLES, **settings)


def fake(federated: Any) -> FakeEngine:
    assert isinstance(federated.engine, FakeEngine)
    return federated.engine


WANTED = MeanAndSD().run(federation(preparation=POOLED), seed=1).result.to_files()


# --------------------------------------------------------------------------- what arrives


def test_a_reply_that_comes_twice_counts_once() -> None:
    """Counted twice, it would take the place of another site's."""
    script: Any = {(r, s): "duplicate" for r in range(1, 6) for s in "ab"}
    run = MeanAndSD().run(scripted(federation(preparation=POOLED), script), seed=1)
    assert run.result.to_files() == WANTED
    assert run.result.n == 120


def test_order_of_arrival_does_not_matter() -> None:
    run = MeanAndSD().run(scripted(federation(preparation=POOLED), reverse=True), seed=1)
    assert run.result.to_files() == WANTED


def test_what_was_not_asked_for_is_ignored() -> None:
    class Chatty(FakeEngine):
        def collect(self, keys: Any, *, wait: str, deadline: float) -> list[Arrival]:
            arrivals = super().collect(keys, wait=wait, deadline=deadline)
            strangers = [Arrival((99, "a"), b"x"), Arrival((1, "z"), b"x")]
            return [*strangers, *arrivals, *strangers]

    plain = federation(preparation=POOLED)
    chatty = dataclasses.replace(plain, engine=Chatty(members(plain).values()))
    assert MeanAndSD().run(chatty, seed=1).result.to_files() == WANTED


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"\x00" * 1000])
def test_bytes_that_are_no_reply_count_as_absence(data: bytes, tmp_path: Path) -> None:
    script: Any = {(2, "b"): lambda reply: data}
    run = MeanAndSD().run(scripted(federation(quorum=2), script), seed=1, out=tmp_path)
    assert run.result.n == 80
    assert any("b was absent" in n and "not accepted" in n for n in run.notes)
    assert "rejected" in (tmp_path / "events.jsonl").read_text()
    line = next(x for x in run.transcript if x.verdict == "absent")
    assert (line.round, line.site, line.disclosure) == (2, "b", "public")


# --------------------------------------------------------------------------- what does not fit

UNFIT = altered("sums", n=-735173517351)


def test_a_site_whose_reply_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    federated = scripted(federation(quorum=2), {(2, "b"): UNFIT})
    run = MeanAndSD().run(federated, seed=1, out=tmp_path)
    without = scripted(federation(quorum=2), {(2, "b"): "returns"})
    assert run.result.to_files() == MeanAndSD().run(without, seed=1).result.to_files()
    why = "mean-and-sd/sums.n: numbers that do not lie at 0 or above"
    assert run.notes == (f"Site b was absent in one round: its reply was not accepted: {why}.",)
    (line,) = heard(fake(federated).members["b"])
    assert line == (
        "The coordinator did not accept the reply to sums in round 2 and counts this site as "
        f"absent there: {why}."
    )
    assert not any(heard(fake(federated).members[name]) for name in "ac")
    assert "735173517351" not in (tmp_path / "events.jsonl").read_text() + str(run.transcript)


@pytest.mark.parametrize("method", [MeanAndSD(), Asynchronous()], ids=["in order", "as they come"])
def test_with_an_unfit_reply_a_killed_run_resumes_to_the_same(method: Any, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    alter = UNFIT if method.name == "mean-and-sd" else altered("testing.pull", n=0)

    def lying() -> Any:
        return scripted(federation(quorum=2), {(2, "b"): alter})

    whole = method.run(lying(), seed=1, out=tmp_path / "whole", run_id="r")
    assert any("b was absent" in note for note in whole.notes)
    # Where sites are heard as they come, what comes first follows the journal of each run.
    in_order = method.name == "mean-and-sd"
    for position in range(1, 40, 3):
        federated, out, left = lying(), tmp_path / str(position), [position]

        def count(kind: str, facts: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        try:
            method.run(federated, seed=1, out=out, on_event=count, run_id="r")
            break
        except Killed:
            run = method.run(federated, out=out, resume=True)
        if in_order:
            assert run.result.to_files() == whole.result.to_files()
            assert run.notes == whole.notes
        (out / "result.json").unlink()
        again = method.run(federated, out=out, resume=True)
        assert again.result.to_files() == run.result.to_files()
        assert again.transcript == run.transcript
        assert len(heard(fake(federated).members["b"])) <= 1
    assert position > 6


def test_a_site_that_cannot_be_told_is_left_out_all_the_same(tmp_path: Path) -> None:
    class Deaf(FakeEngine):
        def send(self, requests: Any) -> None:
            if any(Request.from_bytes(data).step == TOLD for data in requests.values()):
                raise EngineError("the folder is gone")
            super().send(requests)

    plain = federation(quorum=2)
    deaf = Deaf(members(plain).values(), {(2, "b"): UNFIT})
    run = MeanAndSD().run(dataclasses.replace(plain, engine=deaf), seed=1, out=tmp_path)
    assert run.result.n == 80
    assert "not told" in (tmp_path / "events.jsonl").read_text()


def test_asked_again_a_site_that_lied_takes_part(tmp_path: Path) -> None:
    federated = scripted(federation(), {(2, "b"): UNFIT})
    with pytest.raises(QuorumError, match="b was absent: its reply was not accepted"):
        MeanAndSD().run(federated, seed=1, out=tmp_path)
    fake(federated).script = {}
    run = MeanAndSD().run(federated, out=tmp_path, resume=True, retry_refused=True)
    assert run.result.to_files() == MeanAndSD().run(federation(), seed=1).result.to_files()


# --------------------------------------------------------------------------- asking again


@by_turns([1, 2, 3, 4, 5], ["absent", "returns", "late", "refused"], names=("round_", "action"))
def test_asked_again_a_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, round_: int, action: Any
) -> None:
    federated = scripted(federation(preparation=POOLED), {(round_, "b"): action})
    with pytest.raises(QuorumError, match="b "):
        MeanAndSD().run(federated, seed=1, out=tmp_path)
    with pytest.raises(QuorumError, match="b "):
        MeanAndSD().run(federated, out=tmp_path, resume=True)
    fake(federated).script = {}
    asked = len(fake(federated).requests)
    run = MeanAndSD().run(federated, out=tmp_path, resume=True, retry_refused=True)
    assert run.result.to_files() == WANTED
    verdicts = [line.verdict for line in run.transcript]
    assert verdicts.count("asked-again") == 1
    assert verdicts.count("refused" if action == "refused" else "absent") == 1
    assert len(fake(federated).requests) >= asked


def test_only_those_who_did_not_answer_are_asked_again(tmp_path: Path) -> None:
    federated = scripted(federation(), {(2, "b"): "refused"})
    with pytest.raises(QuorumError):
        MeanAndSD().run(federated, seed=1, out=tmp_path)
    computed = {name: site.computed for name, site in fake(federated).members.items()}
    fake(federated).script = {}
    MeanAndSD().run(federated, out=tmp_path, resume=True, retry_refused=True)
    new = {n: s.computed - computed[n] for n, s in fake(federated).members.items()}
    assert new == {"a": 1, "b": 2, "c": 1}, "b answers round 2 again, everybody round 3"


def test_refused_twice_then_agreed(tmp_path: Path) -> None:
    federated = scripted(federation(preparation=POOLED), {(3, "b"): "refused"})
    for again in (False, True, True):
        with pytest.raises(QuorumError, match="steward did not release"):
            MeanAndSD().run(federated, seed=1, out=tmp_path, resume=again, retry_refused=again)
    fake(federated).script = {}
    run = MeanAndSD().run(federated, out=tmp_path, resume=True, retry_refused=True)
    assert run.result.to_files() == WANTED
    assert [x.verdict for x in run.transcript].count("asked-again") == 3
    (tmp_path / "result.json").unlink()
    replayed = MeanAndSD().run(federated, out=tmp_path, resume=True)
    assert replayed.transcript == run.transcript


def test_a_quorum_that_went_on_is_not_disturbed_by_asking_again(tmp_path: Path) -> None:
    """A refusal that the run could bear is asked again from its round on."""
    federated = scripted(federation(quorum=2), {(2, "b"): "refused"})
    assert MeanAndSD().run(federated, seed=1, out=tmp_path).result.n == 80
    fake(federated).script = {}
    run = MeanAndSD().run(federated, out=tmp_path, resume=True, retry_refused=True)
    assert run.result.n == 120


def test_nothing_to_ask_again(tmp_path: Path) -> None:
    first = MeanAndSD().run(federation(), seed=1, out=tmp_path)
    again = MeanAndSD().run(federation(), out=tmp_path, resume=True, retry_refused=True)
    assert again.transcript == first.transcript


# --------------------------------------------------------------------------- waiting for any


def test_an_asynchronous_run_resumes_from_its_journal(tmp_path: Path) -> None:
    """Killed after each event: what had crossed stays, and the end replays to the same bytes."""

    class Killed(Exception):
        pass

    for position in range(3, 20, 4):
        out = tmp_path / str(position)
        federated = federation()
        left = [position]

        def count(kind: str, facts: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        with pytest.raises(Killed):
            Asynchronous().run(federated, seed=1, out=out, on_event=count)
        before = (out / "transcript.jsonl").read_bytes()
        run = Asynchronous().run(federated, out=out, resume=True)
        assert (out / "transcript.jsonl").read_bytes().startswith(before)
        (out / "result.json").unlink()
        again = Asynchronous().run(federated, out=out, resume=True)
        assert again.result.to_files() == run.result.to_files()
        assert again.transcript == run.transcript


def test_the_virtual_clock_follows_the_seed() -> None:
    def order(seed: int) -> list[str]:
        run = Asynchronous().run(federation(), seed=seed)
        return [x.site for x in run.transcript if x.field == "n"]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(6)}) > 1


def test_replies_that_wait_are_delivered_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Also to a run that was killed before it could use them."""

    class AllAtOnce(FakeEngine):
        def collect(self, keys: Any, *, wait: str, deadline: float) -> list[Arrival]:
            self._compute()
            ready = sorted((k for k in keys if k in self._arrived), key=lambda k: k[1])
            return [self._arrived.pop(key)[1] for key in ready[::-1]]

    plain = federation()
    federated = dataclasses.replace(plain, engine=AllAtOnce(members(plain).values()))
    run = Asynchronous(turns=1).run(federated, seed=1, out=tmp_path / "whole")
    assert [x.site for x in run.transcript if x.field == "n"] == ["c", "b", "a"]

    class Killed(Exception):
        pass

    arrived: list[str] = []

    def stop(kind: str, facts: Any) -> None:
        arrived.extend([facts["site"]] if kind == "arrived" and facts["round"] == 2 else [])
        if len(arrived) == 3:
            raise Killed

    plain = federation()
    federated = dataclasses.replace(plain, engine=AllAtOnce(members(plain).values()))
    with pytest.raises(Killed):
        Asynchronous(turns=1).run(federated, seed=1, out=tmp_path / "killed", on_event=stop)
    resumed = Asynchronous(turns=1).run(federated, out=tmp_path / "killed", resume=True)
    assert resumed.result.to_files() == run.result.to_files()


# --------------------------------------------------------------------------- errors of a method


class Odd(ClassSums):
    """A method whose exchange is given; not registered, so no site could answer it."""

    name: ClassVar[str] = "testing-class-sums"
    asks: ClassVar[Any] = None

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        replies = yield self.asks
        return replies


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Ask("no-such", Question()), "asks for unknown step 'no-such'"),
        (Ask("testing.class-sums", SumsRequest()), "is asked with SumsRequest"),
        (Ask("testing.class-sums", {}, to=()), "is asked of no site"),
    ],
)
def test_asks_of_a_wrong_form(ask: Ask, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "asks", ask)
    with pytest.raises(ProtocolError, match=words):
        Odd().run(federation(), seed=1)


def test_a_result_of_a_wrong_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def coordinate(self: Any, ctx: CoordinatorContext) -> Exchange:
        return {"n": 3}
        yield

    monkeypatch.setattr(MeanAndSD, "coordinate", coordinate)
    with pytest.raises(ProtocolError, match="method 'mean-and-sd' returned dict"):
        MeanAndSD().run(federation(), seed=1)


def test_a_site_that_still_owes_a_reply_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.testing.fakes import Guess
    from consilience.wire.disclosure import relayed
    from consilience.wire.message import Disclosure

    def coordinate(self: Any, ctx: CoordinatorContext) -> Exchange:
        guess = Guess(guess=relayed(np.zeros(2), Disclosure.AGGREGATE))
        yield Ask("testing.pull", guess, wait="any")
        yield Ask("testing.pull", guess, wait="any")
        return Findings({})

    monkeypatch.setattr(Asynchronous, "coordinate", coordinate)
    with pytest.raises(ProtocolError, match="asked while it still owes a reply"):
        Asynchronous().run(federation(), seed=1)


def test_a_method_that_asks_otherwise_than_its_journal(tmp_path: Path) -> None:
    """Same study hash, other code: found out at the first ask that differs."""
    first = dataclasses.replace(federation(), study="one-study")
    ClassSums(edges=((0.0,), (0.5,))).run(first, seed=1, out=tmp_path)
    (tmp_path / "result.json").unlink()
    info = json.loads((tmp_path / "run.json").read_text())
    info["parameters"] = {"edges": [[0.0], [0.7]]}
    (tmp_path / "run.json").write_text(json.dumps(info))
    with pytest.raises(RunError, match="round 3 asks something else"):
        ClassSums(edges=((0.0,), (0.7,))).run(first, out=tmp_path, resume=True)


def test_who_has_answered_is_written_down_before_the_others_have(tmp_path: Path) -> None:
    """Of sites that answer in their own time, perhaps days apart."""
    answered: list[list[str]] = []

    class Apart(FakeEngine):
        apart = True

        def collect(self, keys: Any, *, wait: str, deadline: float) -> list[Arrival]:
            assert wait == "any"
            answered.append(progress_of(tmp_path, read_info(tmp_path))["answered"])
            first = min(keys)
            return super().collect(frozenset({first}), wait=wait, deadline=deadline)

    plain = federation(preparation=POOLED)
    apart = dataclasses.replace(plain, engine=Apart(members(plain).values()))
    run = MeanAndSD().run(apart, seed=1, out=tmp_path)
    assert run.result.to_files() == WANTED
    assert answered[:3] == [[], ["a"], ["a", "b"]]

"""Replies that wait for the steward: what leaves, when, and what a crash leaves of it."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consilience.engines import local
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import ParameterError, QuorumError, RunError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.phases.opening import Heard
from consilience.sites import site_store as home_module
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import (
    HELD,
    NOT_RELEASED,
    REFUSED,
    RELEASED,
    SENT,
    DiskStore,
    Held,
    Hold,
    Jobs,
    MemoryStore,
    holds,
)
from consilience.sites.steward import old_runs
from consilience.testing.fakes import Question, RowsReply
from consilience.wire import files as states
from consilience.wire.disclosure import per_record
from consilience.wire.envelope import Reply, Request
from tests.faults.cases import CASES, PARTNER_KEY, SITES, Case, loader
from tests.sites.test_site import OPEN, after, opening, site, sums

RUN = OPEN.run
MAKERS: dict[str, Callable[[Path], MemoryStore | DiskStore]] = {
    "memory": lambda path: MemoryStore(),
    "disk": lambda path: DiskStore(path / "home"),
}


@pytest.fixture(params=MAKERS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | DiskStore:
    return MAKERS[request.param](tmp_path)


def held(asked: Site, request: Request) -> Held:
    found = asked.answer(request.to_bytes())
    assert isinstance(found, Held)
    return found


def reply(asked: Site, request: Request) -> Reply:
    found = asked.answer(request.to_bytes())
    assert isinstance(found, bytes)
    return Reply.from_bytes(found)


def released(asked: Site, request: Request) -> Reply:
    held(asked, request)
    assert asked.home.jobs.release(request.run, request.round, request.attempt)
    return reply(asked, request)


def state(home: MemoryStore | DiskStore, round_: int, attempt: int = 1) -> str:
    return home.jobs.state(RUN, round_, attempt).read().state


# --------------------------------------------------------------------------- release


def test_a_held_reply_leaves_when_it_is_released(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    wanted = site().answer(OPEN.to_bytes())
    assert held(one, OPEN) == Held(RUN, 1, 1, OPEN.step)
    assert held(one, OPEN) and one.computed == 1, "asked again, it is not computed again"
    (job,) = home.jobs.waiting()
    assert (job.name, job.state, job.facts["step"]) == (f"{RUN}/1-1", HELD, OPEN.step)
    assert home.jobs.release(RUN, 1, 1)
    assert one.answer(OPEN.to_bytes()) == wanted
    assert (state(home, 1), one.computed) == (RELEASED, 1)
    one.sent(RUN, 1, 1)
    one.sent(RUN, 1, 1)
    assert state(home, 1) == SENT
    assert one.answer(OPEN.to_bytes()) == wanted, "what has left is repeated"
    (line,) = [line for line in home.read_log() if line["event"] == "sent"]
    assert (line["run"], line["round"], line["outcome"]) == (RUN, 1, RELEASED)
    assert home.jobs.waiting() == []


def test_what_waits_is_described_without_a_value(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    released(one, OPEN)
    held(one, after(OPEN))
    (job,) = home.jobs.waiting()
    facts = dict(job.facts)
    assert facts.pop("since") > 1.7e9
    assert facts.pop("bytes") > 100
    assert facts == {
        "method": OPEN.method,
        "step": "testing.class-sums",
        "fields": [{"field": "sums", "class": "aggregate", "shape": "2x2"}],
    }


def test_without_holding_there_is_no_trace_of_it(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    one = site(home=home)
    for request in (OPEN, after(OPEN)):
        assert reply(one, request).status == "reply"
        one.sent(request.run, request.round, request.attempt)
    assert not (tmp_path / "jobs").exists()
    assert home.jobs.all() == []


def test_holding_that_is_switched_on_or_off_later(home: MemoryStore | DiskStore) -> None:
    first = reply(site(home=home), OPEN)
    holding = site(home=home, hold="all")
    assert reply(holding, OPEN) == first, "what has left before is repeated"
    held(holding, after(OPEN))
    held(site(home=home), after(OPEN))  # what was held waits, whatever is said now


# --------------------------------------------------------------------------- what is held


def test_only_values_for_each_record_may_be_held() -> None:
    record = RowsReply(values=per_record(np.zeros(3)))
    public = Question()
    assert [holds("per-record", c) for c in (record, public, None)] == [True, False, False]
    assert [holds("all", c) for c in (record, public, None)] == [True, True, False]
    assert not holds("all", Heard()), "nobody waits for it"
    assert [holds("none", c) for c in (record, public, None)] == [False, False, False]


def test_a_refusal_of_the_site_itself_is_not_held(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    wrong = dataclasses.replace(OPEN, message=opening(("nope",)))
    assert reply(one, wrong).reason == "a column is missing"
    assert home.jobs.all() == []


# --------------------------------------------------------------------------- refuse


def test_a_refusal_leaves_instead_and_the_state_goes_back(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    released(one, OPEN)
    second = after(OPEN)
    held(one, second)
    before = home.record(RUN, 1, 1)
    assert home.jobs.refuse(RUN, 2, 1, "not before\nthe board has met")
    said = reply(one, second)
    assert (said.status, said.reason, said.message, said.verdicts) == (
        "refused",
        NOT_RELEASED,
        b"",
        (),
    )
    assert home.jobs.state(RUN, 2, 1).read().facts["reason"] == "not before the board has met"
    record = home.record(RUN, 2, 1)
    assert record is not None and before is not None
    kept = ("state", "transforms", "opening", "study", "method")
    assert [getattr(record, k) for k in kept] == [getattr(before, k) for k in kept]
    one.sent(RUN, 2, 1)
    assert state(home, 2) == SENT
    restarted = site(home=home, hold="all")
    assert reply(restarted, second) == said
    again = dataclasses.replace(second, attempt=2, after_round=2)
    np.testing.assert_array_equal(sums(released(restarted, again)), sums(reply_of(second)))


def reply_of(request: Request) -> Reply:
    """What a site without holding says."""
    one = site()
    reply(one, OPEN)
    return reply(one, request)


def test_a_run_whose_opening_is_refused_was_not_opened(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    held(one, OPEN)
    assert home.jobs.refuse(RUN, 1, 1)
    assert reply(one, OPEN).reason == NOT_RELEASED
    assert reply(one, after(OPEN)).reason == "the run was not opened at this site"


def test_a_decision_is_made_once(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    assert not home.jobs.release(RUN, 1, 1), "nothing is there"
    held(one, OPEN)
    assert home.jobs.refuse(RUN, 1, 1)
    assert not home.jobs.release(RUN, 1, 1)
    assert not home.jobs.refuse(RUN, 1, 1)
    assert state(home, 1) == REFUSED
    assert reply(one, OPEN).status == "refused"


def test_a_long_reason_is_not_cut(home: MemoryStore | DiskStore) -> None:
    held(site(home=home, hold="all"), OPEN)
    with pytest.raises(ParameterError, match="at most 300 characters, but '301'"):
        home.jobs.refuse(RUN, 1, 1, "x" * 301)
    assert state(home, 1) == HELD


# --------------------------------------------------------------------------- what rests on it


def test_what_follows_a_held_reply_is_refused(home: MemoryStore | DiskStore) -> None:
    """Else an aggregate could tell of a reply that the steward has not let out."""
    one = site(home=home, hold="all")
    held(one, OPEN)
    said = reply(one, after(OPEN))
    assert said.reason == "the answer that this question follows waits for the steward"
    assert one.computed == 2
    home.jobs.release(RUN, 1, 1)
    assert released(one, after(OPEN, attempt=2)).status == "reply"


def test_what_follows_a_refused_reply_builds_on_the_state_before(
    home: MemoryStore | DiskStore,
) -> None:
    """Also when the site hears of the decision by this question."""
    one = site(home=home, hold="all")
    released(one, OPEN)
    held(one, after(OPEN))
    home.jobs.refuse(RUN, 2, 1)
    third = after(after(OPEN))
    found = released(site(home=home, hold="all"), third)
    np.testing.assert_array_equal(sums(found), sums(reply_of(after(OPEN))))
    record = home.record(RUN, 2, 1)
    assert record is not None and Reply.from_bytes(record.reply).status == "refused"


# --------------------------------------------------------------------------- the home


def test_a_purged_run_leaves_no_job(home: MemoryStore | DiskStore) -> None:
    one = site(home=home, hold="all")
    held(one, OPEN)
    assert old_runs(home, 0.0, now=1e12) == {}, "what waits is not purged by age"
    one.purge(RUN)
    assert home.jobs.all() == []
    assert not home.jobs.release(RUN, 1, 1)


@pytest.mark.parametrize("name", ["1.json", "1-x.json", "a-1.json", ".1-1.json.lock", "x"])
def test_other_files_are_no_jobs(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_bytes(b"x")
    assert Jobs(tmp_path).all() == []


def test_a_damaged_job_lets_nothing_leave(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    one = site(home=home, hold="all")
    held(one, OPEN)
    path = tmp_path / "jobs" / RUN / "1-1.json"
    path.write_bytes(path.read_bytes()[:-5])
    said = reply(one, OPEN)
    assert said.status == "refused" and "is damaged" in said.reason and not said.message
    assert home.jobs.waiting() == []
    (damage,) = home.jobs.damages()
    assert str(damage) == f"{path} is damaged: restore it from a copy, or remove it"
    path.unlink()
    held(one, OPEN)
    assert [job.name for job in home.jobs.waiting()] == [f"{RUN}/1-1"]


def test_names_do_not_lead_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="characters that are not allowed"):
        Jobs(tmp_path).release("../other", 1, 1)


# --------------------------------------------------------------------------- the local engine


def federation(case: Case, hold: Hold, *, refuse: bool = False) -> Federation:
    """The case's sites in this process, with a steward who decides as soon as something waits."""
    policy = Policy(
        preset="consortium", share_response=True, max_revealed_rank="full", max_runs=None
    )
    sites = []
    for name in case.sites:
        one = Site(name, loader(name), policy=policy, partner_key=PARTNER_KEY, hold=hold)
        if hold != "none":
            _decide_at_once(one, refuse)
        sites.append(one)
    return Federation(LocalEngine(sites), case.columns, case.preparation, **case.settings)


def _decide_at_once(one: Site, refuse: bool) -> None:
    real = one.answer

    def answer(data: bytes) -> bytes | Held:
        for job in one.home.jobs.waiting():
            place = (job.run, job.round, job.attempt)
            assert one.home.jobs.refuse(*place) if refuse else one.home.jobs.release(*place)
        return real(data)

    one.answer = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].draws_secrets])
def test_the_local_engine_waits_for_the_steward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of message can be held, sealed ones too."""
    monkeypatch.setattr(local, "_POLL", 0.001)
    case = CASES[name]
    wanted = federation(case, "none").run(case.method(), seed=3)
    holding = federation(case, "all")
    run = holding.run(case.method(), seed=3)
    if not case.seals:  # then what is drawn is drawn anew at other sites
        assert run.result.to_files() == wanted.result.to_files()
    replies = [line for line in run.transcript if line.direction == "from-site"]
    engine = holding.engine
    assert isinstance(engine, LocalEngine)
    for site_name, one in engine.members.items():
        rounds = {line.round for line in replies if line.site == site_name}
        jobs = one.home.jobs.all()
        assert {job.round for job in jobs} == rounds and rounds
        assert {job.state for job in jobs} == {SENT}


def test_the_local_engine_hears_of_a_refusal() -> None:
    case = CASES["mean-and-sd"]
    with pytest.raises(QuorumError, match=f"ash, birch-2 refused: {NOT_RELEASED}"):
        federation(case, "all", refuse=True).run(case.method(), seed=3)


def test_a_steward_who_decides_nothing_is_an_absent_site() -> None:
    sites = [Site(name, loader(name), hold="all") for name in SITES]
    case = CASES["mean-and-sd"]
    patient = Federation(LocalEngine(sites), case.columns, case.preparation, deadline=0.05)
    with pytest.raises(QuorumError, match="it waits for the site's steward"):
        patient.run(MeanAndSD(), seed=3)


# --------------------------------------------------------------------------- any order, any crash


class Killed(BaseException):
    """What a test raises where the process would be gone."""


@contextmanager
def dying(at: int, *, done: bool) -> Iterator[list[int]]:
    """Die at one of the next durable writes, before or after it."""
    count = [0]
    real = home_module.atomic_write

    def write(path: Path, data: bytes, **settings: int) -> None:
        count[0] += 1
        if count[0] == at and not done:
            raise Killed
        real(path, data, **settings)
        if count[0] == at:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home_module, "atomic_write", write)
        patch.setattr(states, "atomic_write", write)
        yield count


REQUESTS = [OPEN, after(OPEN), after(after(OPEN))]


@functools.cache
def wanted() -> list[bytes | Held]:
    undisturbed = site()
    return [undisturbed.answer(r.to_bytes()) for r in REQUESTS]


class Steward(RuleBasedStateMachine):
    """A site, a coordinator and two stewards; the model knows what was decided, and no more."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="jobs-"))
        self.site = site(home=DiskStore(self.root), hold="all")
        self.requests = REQUESTS
        self.wanted = wanted()
        self.decided: dict[int, str] = {}
        self.said: dict[int, bytes] = {}
        self.asked: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def open(self) -> int:
        """The question at hand: the first without a reply; a refusal ends the line."""
        return len(self.said)

    @property
    def can_ask(self) -> bool:
        return self.open < len(self.requests) and REFUSED not in self.decided.values()

    def _check(self, number: int, found: bytes | Held) -> None:
        if isinstance(found, Held):
            assert number not in self.decided, "it is decided"
            assert number not in self.said
            return
        assert number in self.decided, "it left before it was decided"
        if self.decided[number] == RELEASED:
            assert found == self.wanted[number]
        else:
            assert Reply.from_bytes(found).reason == NOT_RELEASED
        assert self.said.setdefault(number, found) == found, "two things were said"

    @precondition(lambda self: self.can_ask)
    @rule()
    def ask(self) -> None:
        self.asked.add(self.open)
        self._check(self.open, self.site.answer(self.requests[self.open].to_bytes()))

    @precondition(lambda self: self.can_ask)
    @rule(at=st.integers(1, 4), done=st.booleans())
    def ask_and_die(self, at: int, done: bool) -> None:
        number = self.open
        with dying(at, done=done):
            try:
                self._check(number, self.site.answer(self.requests[number].to_bytes()))
            except Killed:
                self.restart()

    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        if self.said:
            number = data.draw(st.sampled_from(sorted(self.said)))
            self._check(number, self.site.answer(self.requests[number].to_bytes()))

    @rule()
    def restart(self) -> None:
        self.site = site(home=DiskStore(self.root), hold="all")

    @rule(to=st.sampled_from([RELEASED, REFUSED]), dies=st.sampled_from(["", "before", "after"]))
    def decide(self, to: str, dies: str) -> None:
        """A steward decides on what the list shows, in a process of its own."""
        jobs = DiskStore(self.root).jobs
        for job in jobs.waiting():
            number = job.round - 1
            assert number not in self.decided
            decide = jobs.release if to == RELEASED else jobs.refuse
            with dying(1 if dies else 0, done=dies == "after"):
                try:
                    assert decide(job.run, job.round, job.attempt)
                except Killed:
                    if dies == "before":
                        return
            self.decided[number] = to

    @rule(to=st.sampled_from([RELEASED, REFUSED]))
    def decide_too_late(self, to: str) -> None:
        jobs = DiskStore(self.root).jobs
        for number in self.decided:
            decide = jobs.release if to == RELEASED else jobs.refuse
            assert not decide(RUN, number + 1, 1)

    @rule(dies=st.booleans(), done=st.booleans())
    def sent(self, dies: bool, done: bool) -> None:
        for number in self.said:
            with dying(1 if dies else 0, done=done):
                try:
                    self.site.sent(RUN, number + 1, 1)
                except Killed:
                    self.restart()
                    return

    @invariant()
    def what_is_listed_is_undecided(self) -> None:
        if hasattr(self, "root"):
            jobs = DiskStore(self.root).jobs
            assert {job.round - 1 for job in jobs.waiting()}.isdisjoint(self.decided)
            for job in jobs.all():
                decision = self.decided.get(job.round - 1)
                assert job.state in ({HELD} if decision is None else {decision, SENT})


TestSteward = Steward.TestCase
TestSteward.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

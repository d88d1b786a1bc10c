"""Runs with a steward: what is held leaves when it is released, as it is or as a refusal."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import Mailbox, Place
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError
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
    Job,
)
from consilience.wire.envelope import Reply, Request
from tests.engines.test_folder import Parties
from tests.faults.cases import CASES, PARTNER_KEY, SITES, loader

ASH, BIRCH = SITES
REASON = "the table of ward 7 is not final, says Dr Quill"
Decide = Callable[[DiskStore, Job], bool]


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def holding(parties: Parties, hold: Hold = "all", name: str = ASH) -> Site:
    """A site of the parties that holds its replies, as a process that has just begun."""
    home = DiskStore(parties.root / f"home-{name}")
    policy = Policy(preset="consortium", max_runs=None)
    parties.sites[name] = Site(name, loader(name), policy=policy, home=home, hold=hold)
    return parties.sites[name]


def release(home: DiskStore, job: Job) -> bool:
    return home.jobs.release(job.run, job.round, job.attempt)


def refuse(home: DiskStore, job: Job) -> bool:
    return home.jobs.refuse(job.run, job.round, job.attempt, REASON)


class Steward(threading.Thread):
    """Decides on what is held, as another process would; notes what had left until then."""

    def __init__(self, parties: Parties, decide: Decide, name: str = ASH) -> None:
        super().__init__()
        self._parties, self._decide, self._site = parties, decide, name
        self.home = DiskStore(parties.root / f"home-{name}")
        self.decided: list[str] = []
        self.too_early: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.01):
            for job in self.home.jobs.waiting():
                time.sleep(0.1)  # some looks of the watch, in which the reply must stay
                mine = f"{job.round}-{job.attempt}-{self._site}.msg"
                folder = self._parties.folder / "runs" / job.run
                if any(path.name == mine for path in folder.glob("replies/*")):
                    self.too_early.append(job.name)
                assert self._decide(self.home, job)
                self.decided.append(job.name)


@contextmanager
def steward(parties: Parties, decide: Decide = release, name: str = ASH) -> Iterator[Steward]:
    thread = Steward(parties, decide, name)
    thread.start()
    try:
        yield thread
    finally:
        thread.over.set()
        thread.join()
    assert not thread.too_early


def here(name: str) -> Any:
    """The same run in one process, nothing held."""
    case = CASES[name]
    policy = Policy(preset="consortium", max_runs=None)
    engine = LocalEngine([Site(s, loader(s), policy=policy) for s in SITES])
    return Federation(engine, case.columns, case.preparation).run(
        case.method(), seed=11, run_id="run"
    )


def told(parties: Parties, kind: str) -> list[dict[str, Any]]:
    return [facts for name, said, facts in list(parties.events) if (name, said) == (ASH, kind)]


# ------------------------------------------------------------------ released


@pytest.mark.parametrize("name", ["mean-and-sd", "ensemble-clustering"])
def test_a_run_whose_every_reply_is_released_late_gives_the_same_bytes(
    parties: Parties, name: str
) -> None:
    holding(parties)
    case = CASES[name]
    with steward(parties) as who, parties.watching():
        there = parties.federation(case).run(case.method(), seed=11, run_id="run")
    clean = here(name)
    assert there.result.to_files() == clean.result.to_files()
    asked = [line for line in clean.transcript if line.site == ASH and line.direction == "to-site"]
    rounds = {line.round for line in asked}
    assert who.decided == [f"run/{round_}-1" for round_ in sorted(rounds)]
    assert parties.sites[ASH].computed == len(rounds)
    assert [facts["round"] for facts in told(parties, "held")] == sorted(rounds)
    assert {job.state for job in who.home.jobs.all()} == {SENT}


def test_a_secret_that_waited_is_not_drawn_anew(parties: Parties) -> None:
    holding(parties)
    case = CASES["secret-draws"]
    with steward(parties), parties.watching():
        parties.federation(case).run(case.method(), seed=11, run_id="run")
    assert parties.sites[ASH].computed == 3  # the method compares what it was sent twice


def test_where_nothing_is_held_there_are_no_jobs(parties: Parties) -> None:
    with parties.watching():
        parties.federation().run(CASES["mean-and-sd"].method(), seed=11, run_id="run")
    for name in SITES:
        assert not (parties.root / f"home-{name}" / "jobs").exists()


def test_only_values_of_records_are_held_where_the_site_says_so(parties: Parties) -> None:
    holding(parties, "per-record")
    with steward(parties) as who, parties.watching():
        parties.federation().run(CASES["mean-and-sd"].method(), seed=11, run_id="run")
    assert who.decided == []  # sums and counts only


def test_released_twice_leaves_once(parties: Parties) -> None:
    site, body = holding(parties), _opening(parties)
    watcher = parties.watcher(ASH)
    assert watcher.once() == 0
    (job,) = site.home.jobs.waiting()
    home = DiskStore(parties.root / f"home-{ASH}")
    assert release(home, job)
    assert not release(home, job)
    assert not refuse(home, job)
    assert watcher.once() == 1
    assert watcher.once() == 0
    assert not release(home, job)
    assert not refuse(home, job)
    assert watcher.once() == 0
    assert home.jobs.all()[0].state == SENT
    assert Reply.from_bytes(site.answer(body)).status == "reply"  # type: ignore[arg-type]
    assert site.computed == 1


# ------------------------------------------------------------------ refused


def _refuse_round(number: int) -> Decide:
    return lambda home, job: (refuse if job.round == number else release)(home, job)


@pytest.mark.parametrize("round_", [1, 2])
def test_a_refused_reply_is_a_refusal_to_the_coordinator(parties: Parties, round_: int) -> None:
    holding(parties)
    out = parties.root / "out"
    with steward(parties, _refuse_round(round_)), parties.watching():
        run = parties.federation(quorum=1).run(
            CASES["mean-and-sd"].method(), seed=11, run_id="run", out=out
        )
    (refused,) = [line for line in run.transcript if line.verdict == "refused"]
    assert (refused.site, refused.round, refused.rule) == (ASH, round_, NOT_RELEASED)
    assert run.result.n == 70  # the other site's rows
    _is_nowhere(REASON, parties.folder, out)
    log = (parties.root / f"home-{ASH}" / "jobs").rglob("*.json")
    assert any(REASON in path.read_text() for path in log)


def test_after_a_refusal_the_site_is_where_it_was_and_may_be_asked_again(parties: Parties) -> None:
    holding(parties)
    case, out = CASES["mean-and-sd"], parties.root / "out"
    with parties.watching():
        with steward(parties, _refuse_round(2)), pytest.raises(QuorumError):
            parties.federation(case).run(case.method(), seed=11, run_id="run", out=out)
        with steward(parties):
            run = parties.federation(case).run(
                case.method(), out=out, resume=True, retry_refused=True
            )
    assert run.result.to_files() == here("mean-and-sd").result.to_files()
    names = [job.name for job in DiskStore(parties.root / f"home-{ASH}").jobs.all()]
    assert "run/2-1" in names and "run/2-2" in names


def _is_nowhere(text: str, *folders: Path) -> None:
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert text.encode() not in path.read_bytes(), path


# ------------------------------------------------------------------ restarts


def _opening(parties: Parties) -> bytes:
    """Put the first ask of a run into the folder, by a coordinator that soon gives up."""
    case = CASES["mean-and-sd"]
    with pytest.raises(QuorumError):
        parties.federation(case, deadline=0.05).run(case.method(), seed=11, run_id="run")
    box = Mailbox(parties.folder, parties.keys[ASH], "reply", max_bytes=1 << 24)
    public = parties.coordinator.public
    found = box.take(Place("run", 1, 1, ASH), public, (public,))
    assert found is not None
    return found[0]


@pytest.mark.parametrize("decide", [release, refuse])
@pytest.mark.parametrize("when", ["while it watches", "while nobody watches"])
def test_a_watcher_that_is_started_again(parties: Parties, decide: Decide, when: str) -> None:
    body = _opening(parties)
    first = holding(parties)
    watcher = parties.watcher(ASH)
    assert watcher.once() == 0
    record = first.home.record("run", 1, 1)
    assert record is not None
    home = DiskStore(parties.root / f"home-{ASH}")
    (job,) = home.jobs.waiting()
    reply = parties.folder / "runs" / "run" / "replies" / f"1-1-{ASH}.msg"
    for _ in range(2):  # started again while it waits
        second = holding(parties)
        watcher = parties.watcher(ASH)
        assert watcher.once() == 0
        assert watcher.once() == 0
        assert not reply.exists()
        assert second.computed == 0
    if when == "while nobody watches":
        assert decide(home, job)
        holding(parties, "none")  # what was held waits on, whatever the site file says now
        watcher = parties.watcher(ASH)
    else:
        assert watcher.once() == 0
        assert decide(home, job)
    assert watcher.once() == 1
    assert reply.is_file()
    assert parties.sites[ASH].computed == 0
    said = parties.sites[ASH].answer(body)
    assert isinstance(said, bytes)
    if decide is release:
        assert said == record.reply
    else:
        assert (Reply.from_bytes(said).status, Reply.from_bytes(said).reason) == (
            "refused",
            NOT_RELEASED,
        )
        assert Reply.from_bytes(said).message == b""
    assert home.jobs.all()[0].state == SENT


def test_what_waits_waits_on_where_holding_was_switched_off(parties: Parties) -> None:
    _opening(parties)
    holding(parties)
    assert parties.watcher(ASH).once() == 0
    holding(parties, "none")
    assert parties.watcher(ASH).once() == 0
    assert not list((parties.folder / "runs" / "run" / "replies").glob(f"*-{ASH}.msg"))


def test_a_decision_after_the_run_was_closed_sends_nothing(parties: Parties) -> None:
    holding(parties)
    case = CASES["mean-and-sd"]
    with parties.watching():
        engine = parties.engine(keep_files=False)
        federation = parties.federation(case, engine=engine, quorum=1, deadline=2.0)
        federation.run(case.method(), seed=11, run_id="run")
        home = DiskStore(parties.root / f"home-{ASH}")
        (job,) = home.jobs.waiting()
        assert release(home, job)
        time.sleep(0.2)
    assert not (parties.folder / "runs" / "run").exists()
    assert home.jobs.all()[0].state == RELEASED


# ------------------------------------------------------------------ in one process


def test_the_local_engine_waits_for_the_steward(parties: Parties) -> None:
    site, case = holding(parties), CASES["mean-and-sd"]
    engine = LocalEngine([site, parties.sites[BIRCH]])
    with steward(parties) as who:
        run = Federation(engine, case.columns, case.preparation).run(
            case.method(), seed=11, run_id="run"
        )
    assert run.result.to_files() == here("mean-and-sd").result.to_files()
    assert len(who.decided) == site.computed


@pytest.mark.parametrize("hold", ["per-record", "all"])
def test_messages_for_another_sites_eyes_wait_too(parties: Parties, hold: Hold) -> None:
    case, rules = CASES["assisted-glm"], {"share_response": True, "max_revealed_rank": "full"}
    policy = Policy(preset="consortium", max_runs=None, **rules)  # type: ignore[arg-type]
    sites = {}
    for name in SITES:
        home = DiskStore(parties.root / f"home-{name}")
        sites[name] = Site(
            name,
            loader(name),
            policy=policy,
            home=home,
            partner_key=PARTNER_KEY,
            hold=hold if name == ASH else "none",
        )
    engine = LocalEngine(list(sites.values()))
    with steward(parties) as who:
        Federation(engine, case.columns, case.preparation, **case.settings).run(
            case.method(), seed=11, run_id="run"
        )
    jobs = who.home.jobs.all()
    assert {job.state for job in jobs} == {SENT}
    classes = [{field["class"] for field in job.facts["fields"]} for job in jobs]
    assert classes, "a study over columns shares values of records"
    if hold == "all":
        assert len(jobs) == sites[ASH].computed
    else:
        assert 0 < len(jobs) < sites[ASH].computed
        assert all("per-record" in found for found in classes)


def test_the_local_engine_goes_on_without_a_site_whose_steward_is_away(parties: Parties) -> None:
    site, case = holding(parties), CASES["mean-and-sd"]
    engine = LocalEngine([site, parties.sites[BIRCH]])
    run = Federation(engine, case.columns, case.preparation, quorum=1, deadline=0.3).run(
        case.method(), seed=11, run_id="run"
    )
    absent = {line.site: line.rule for line in run.transcript if line.verdict == "absent"}
    assert absent == {ASH: "no reply within the deadline: it waits for the site's steward"}
    assert [job.state for job in site.home.jobs.all()] == [HELD]


def test_a_question_that_follows_a_held_answer_is_refused(parties: Parties) -> None:
    """The state behind it could tell of what has not left."""
    body = _opening(parties)
    site = holding(parties)
    assert isinstance(site.answer(body), Held)
    opening = Request.from_bytes(body)
    after = dataclasses.replace(
        opening, round=2, after_round=1, after_attempt=1, step="sums", message=b""
    )
    said = site.answer(after.to_bytes())
    assert isinstance(said, bytes)
    assert (
        Reply.from_bytes(said).reason
        == "the answer that this question follows waits for the steward"
    )
    assert site.home.jobs.state("run", 1, 1).read().state == HELD
    assert site.home.jobs.refuse("run", 1, 1)
    assert Reply.from_bytes(site.answer(body)).status == "refused"  # type: ignore[arg-type]
    assert site.home.jobs.state("run", 1, 1).read().state == REFUSED

"""What waits for the steward, when everything around it dies: nothing leaves before its release.

A site that holds its replies, and its steward's command, are processes of their own. Each is killed
at every boundary of a run (computing, holding, releasing or refusing, sending), or finds the disk
full there, and is started again. What leaves in the end is what leaves in a run without faults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation, Run
from consilience.engines.folder import FolderEngine, watch
from consilience.exceptions import QuorumError
from consilience.sites.site import Site
from consilience.sites.site_store import HELD, NOT_RELEASED, REFUSED, RELEASED, SENT, DiskStore, Job
from consilience.wire.envelope import Reply
from consilience.wire.signing import SigningKey
from tests.faults import held_parties
from tests.faults.cases import CASES, SITES, loader
from tests.faults.held_parties import ASH, POLL, REASON, Action

pytestmark = pytest.mark.faults

BIRCH = SITES[1]
PATIENCE = 60.0
CASE = CASES["mean-and-sd"]
DECIDED = {RELEASED, REFUSED, SENT}
"""States of a job in which its message may be written (again, once it was sent)."""


class Stage:
    """A folder, two homes, keys; the site that holds is a process, the other one a thread."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "shared"
        self.folder.mkdir()
        self.keys = {}
        for name in ("keys", *(f"keys-{site}" for site in SITES)):
            self.keys[name] = SigningKey.generate()
            self.keys[name].save(root / name)
        self.home = DiskStore(root / f"home-{ASH}")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([held_parties.__name__])
        self.ends: Counter[int] = Counter()

    def process(self, target: Any, *args: Any) -> Any:
        started = self._context.Process(target=target, args=(self.root, *args))
        started.start()
        return started

    @contextmanager
    def other_site(self) -> Iterator[None]:
        stop = threading.Event()
        home = DiskStore(self.root / f"home-{BIRCH}")
        site = Site(BIRCH, loader(BIRCH), policy=held_parties.POLICY, home=home)
        settings = {
            "key": self.keys[f"keys-{BIRCH}"],
            "coordinators": [self.keys["keys"].public],
            "stop": stop,
            "poll": POLL,
        }
        thread = threading.Thread(target=watch, args=(site, self.folder), kwargs=settings)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def run(
        self, run: str, refused: tuple[int, ...] = (), action: Action = "", at: int = 0
    ) -> tuple[Run, dict[str, bytes]]:
        """Run the case with a steward, started again whatever dies; returns what left, too.

        Raises
        ------
        QuorumError
            As the coordinator does.
        """
        public = {site: self.keys[f"keys-{site}"].public for site in SITES}
        engine = FolderEngine(self.folder, SITES, self.keys["keys"], public, POLL)
        federation = Federation(engine, CASE.columns, CASE.preparation, quorum=1, deadline=PATIENCE)
        done: list[Run] = []
        short: list[QuorumError] = []

        def coordinate() -> None:
            try:
                done.append(federation.run(CASE.method(), seed=11, run_id=run, out=self.root / run))
            except QuorumError as error:
                short.append(error)

        coordinator = threading.Thread(target=coordinate)
        site = self.process(held_parties.keep_watch, f"trace-{run}", action, at)
        coordinator.start()
        while coordinator.is_alive():
            if not site.is_alive():
                self.ends[site.exitcode] += 1
                site = self.process(held_parties.keep_watch, f"trace-{run}")
            for job in self.home.jobs.waiting():
                if job.run == run:
                    self.decide(job, refused)
            coordinator.join(POLL)
        site.terminate()  # It ends after the answer in hand.
        site.join(PATIENCE)
        self.ends[site.exitcode] += 1
        if short:
            raise short[0]
        assert done, "the run did not end"
        return done[0], self.left(run)

    def decide(self, job: Job, refused: tuple[int, ...]) -> None:
        jobs, key = self.home.jobs, (job.run, job.round, job.attempt)
        if job.round in refused:
            assert jobs.refuse(*key, REASON)
        else:
            assert jobs.release(*key)

    def left(self, run: str) -> dict[str, bytes]:
        """Replies that left, by round, with the name of the run taken out."""
        found = {}
        for job in (job for job in self.home.jobs.all() if job.run == run):
            record = self.home.record(run, job.round, job.attempt)
            assert record is not None
            assert job.state in DECIDED
            reply = dataclasses.replace(Reply.from_bytes(record.reply), run="run")
            found[f"{job.round}-{job.attempt}"] = reply.to_bytes()
        return found

    def boundaries(self, run: str) -> list[tuple[int, str, str]]:
        """Number and file of each boundary, and what the job of a message said then."""
        lines = [line.split() for line in (self.root / f"trace-{run}").read_text().splitlines()]
        return [(int(number), name, state) for number, name, state in lines]

    def check_nothing_left_early(self, run: str) -> None:
        """Each message was written when its job was decided, and the reason in none of them."""
        sent = [state for _, name, state in self.boundaries(run) if name.endswith(f"-{ASH}.msg")]
        assert sent
        assert set(sent) <= DECIDED, sent
        for path in (p for p in self.root.rglob("*") if p.is_file()):
            if f"home-{ASH}" not in str(path):
                assert REASON.encode() not in path.read_bytes(), path


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("queue"))


def _name(*words: object) -> str:
    return "-".join(str(word) for word in ("run", *words))


def _lines(run: Run) -> list[dict[str, Any]]:
    drop = {"run", "chain", "digest"}  # salted by the run
    return [{k: v for k, v in vars(line).items() if k not in drop} for line in run.transcript]


@pytest.mark.parametrize("action", ["kill", "after", "full"])
@pytest.mark.parametrize("refused", [(), (1,), (2,)], ids=["released", "refused-1", "refused-2"])
def test_a_site_that_dies_at_every_boundary(
    stage: Stage, refused: tuple[int, ...], action: Action
) -> None:
    clean_name = _name(*refused, "clean", action)
    with stage.other_site():
        clean, left = stage.run(clean_name, refused)
        stage.check_nothing_left_early(clean_name)
        for number, reply in left.items():
            said = Reply.from_bytes(reply)
            assert (said.status == "refused") == (int(number[0]) in refused)
            assert said.reason in ("", NOT_RELEASED)
        boundaries = stage.boundaries(clean_name)
        assert any("/jobs/" in name for _, name, _ in boundaries)
        # What follows the last message may not be come to: the run is over by then.
        last = max(at for at, name, _ in boundaries if name.endswith(".msg"))
        moments = [at for at, _, _ in boundaries if at <= last]
        # After one boundary the disk is as before the next: "after" is for the last one.
        moments = moments[-1:] if action == "after" else moments
        before = stage.ends[-signal.SIGKILL]
        for at in moments:
            name = _name(*refused, action, at)
            run, again = stage.run(name, refused, action, at)
            where = (at, boundaries[at - 1])
            assert run.result.to_files() == clean.result.to_files(), where
            assert _lines(run) == _lines(clean), where
            assert again == left, where
            stage.check_nothing_left_early(name)
    assert moments
    if action != "full":  # a message that the folder does not take is written again later
        assert stage.ends[-signal.SIGKILL] - before == len(moments)


@pytest.mark.parametrize("action", ["kill", "after", "full"])
@pytest.mark.parametrize("how", ["release", "refuse"])
def test_a_steward_who_dies_while_deciding(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str, action: Action
) -> None:
    """The job is as it was, or decided; who decides again is told which."""
    refused = (1, 2) if how == "refuse" else ()
    seen: set[int] = set()

    def decide(job: Job, _: tuple[int, ...]) -> None:
        key = (job.run, job.round, job.attempt)
        command = stage.process(held_parties.decide, key, how, action, 1)
        command.join(PATIENCE)
        if action == "full":
            assert command.exitcode not in (0, 3, None)
        else:
            assert command.exitcode == -signal.SIGKILL
        state = stage.home.jobs.state(*key).read().state
        assert state in (DECIDED if action == "after" else {HELD})
        again = stage.process(held_parties.decide, key, how, "", 0)
        again.join(PATIENCE)
        assert again.exitcode == (3 if action == "after" else 0)
        seen.add(job.round)

    monkeypatch.setattr(stage, "decide", decide)
    name = _name(*refused, "steward", action)
    with stage.other_site():
        run, left = stage.run(name, refused)
    assert seen == {int(number[0]) for number in left}
    statuses = {Reply.from_bytes(reply).status for reply in left.values()}
    assert statuses == ({"refused"} if how == "refuse" else {"reply"})
    assert run.result.n == (70 if how == "refuse" else 130)  # type: ignore[attr-defined]
    stage.check_nothing_left_early(name)


def test_two_stewards_who_decide_differently_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them decides, the other is told; what leaves is what the first one said."""
    decided: dict[int, str] = {}

    def decide(job: Job, _: tuple[int, ...]) -> None:
        key = (job.run, job.round, job.attempt)
        both = {
            how: stage.process(held_parties.decide, key, how, "", 0)
            for how in ("release", "refuse")
        }
        for command in both.values():
            command.join(PATIENCE)
        codes = {how: command.exitcode for how, command in both.items()}
        assert sorted(codes.values()) == [0, 3], codes
        (decided[job.round],) = [how for how, code in codes.items() if code == 0]

    monkeypatch.setattr(stage, "decide", decide)
    name = _name("both")
    # Refused after it took part, the site is missed: the run ends with a report of the quorum.
    with stage.other_site(), contextlib.suppress(QuorumError):
        stage.run(name)
    left = stage.left(name)
    said = {int(number[0]): Reply.from_bytes(reply).status for number, reply in left.items()}
    assert said == {r: {"release": "reply", "refuse": "refused"}[how] for r, how in decided.items()}
    stage.check_nothing_left_early(name)

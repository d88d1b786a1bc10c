"""Whatever is killed, frozen or full: the run goes on and ends as if nothing had been.

Coordinator and sites are processes of their own (see `zygote`) around one folder. A clean run lists
the boundaries: every ask, record, reply, journal entry. Then one process is killed at each of them,
started again, and result and transcript are compared with those of the clean run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import load_run
from consilience.sites.home import DiskHome
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply
from consilience.wire.signing import SigningKey
from consilience.wire.transcript import read_transcript
from tests.faults.cases import CASES, SITES

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
FIRST = SITES[0]
Lines = list[dict[str, Any]]


class Stage:
    """A folder, two homes, keys, and the processes around them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "shared").mkdir()
        for name in ("keys", *(f"keys-{site}" for site in SITES)):
            SigningKey.generate().save(root / name)
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.sites: dict[str, int] = {}
        self.living: set[int] = set()

    # -------------------------------------------------------------- processes

    def start(self, role: str, **spec: Any) -> int:
        who = spec.get("site", role)
        spec.setdefault("trace", f"trace-{who}")
        spec.setdefault("log", f"log-{who}")
        pid = int(self._ask(do="start", role=role, root=str(self.root), **spec))
        self.living.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        code = self.ended(pid, PATIENCE)
        assert code is not None, f"a process hangs: {self.said()}"
        return code

    def ended(self, pid: int, seconds: float) -> int | None:
        """Exit code (or minus the signal), or None while the process lives."""
        code: int | None = self._ask(do="wait", pid=pid, seconds=seconds)
        if code is not None:
            self.living.discard(pid)
        return code

    def wait_until_stopped(self, pid: int) -> None:
        assert self._ask(do="wait", pid=pid, seconds=PATIENCE, stopped=True) == "stopped"

    def start_site(self, name: str, **spec: Any) -> int:
        self.sites[name] = self.start("site", site=name, **spec)
        return self.sites[name]

    def stop_site(self, name: str) -> None:
        pid = self.sites.pop(name)
        os.kill(pid, signal.SIGTERM)
        assert self.wait(pid) == 0, self.said()

    def run(self, case: str, run: str, **spec: Any) -> int:
        return self.wait(self.start("coordinator", case=case, run=run, **spec))

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(PATIENCE)

    def said(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()}" for p in sorted(self.root.glob("log-*")))

    def _ask(self, **command: Any) -> Any:
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(command) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())

    # -------------------------------------------------------------- what they left

    def traced(self, trace: str) -> list[list[str]]:
        path = self.root / trace
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def boundaries(self, trace: str) -> list[tuple[int, str]]:
        """Number and name of every boundary that a process came to."""
        return [(int(w[1]), w[2]) for w in self.traced(trace) if w[0] == "begin"]

    def result(self, run: str) -> dict[str, bytes]:
        return {
            name: (self.root / run / name).read_bytes() for name in ("result.json", "result.npz")
        }

    def transcript(self, run: str, *, without: tuple[str, ...] = ()) -> Lines:
        """Lines without the run's id and what hangs on it; the chain itself is verified."""
        lines = read_transcript(self.root / run / "transcript.jsonl")
        drop = {"run", "chain", *without}
        return [{k: v for k, v in vars(line).items() if k not in drop} for line in lines]

    def check_like(self, case: str, run: str, clean: str) -> None:
        """Result, transcript and what sites did are those of an undisturbed run."""
        secret = CASES[case].draws_secrets
        without = ("digest",) if secret or CASES[case].seals else ()
        assert self.transcript(run, without=without) == self.transcript(clean, without=without)
        if secret:
            self.check_first_release(run)
        else:
            assert self.result(run) == self.result(clean)
        self.check_computed_once(run)
        folder = self.root / "shared" / "runs"
        assert not (folder / run).exists(), "the files of a finished run are removed"

    def check_first_release(self, run: str) -> None:
        """The result holds the numbers of the record from which the first reply was made."""
        result: Any = load_run(self.root / run).result
        for row, site in zip(result.secret, SITES, strict=True):
            record = DiskHome(self.root / f"home-{site}").record(run, 2, 1)
            assert record is not None
            drawn = decode_message(Reply.from_bytes(record.reply).message)
            assert (drawn.secret == row).all()

    def check_computed_once(self, run: str) -> None:
        """No step is computed after its record was written, and no reply has two contents."""
        for site in SITES:
            recorded: set[str] = set()
            contents: dict[str, set[str]] = defaultdict(set)
            for words in self.traced(f"trace-{site}"):
                if words[0] == "compute" and words[1] == run:
                    record = (
                        f"home-{site}/runs/{run}/{int(words[2]):06d}-{int(words[3]):03d}.record"
                    )
                    assert record not in recorded, f"{site} computed {words[2:]} again"
                elif words[0] == "file" and f"/{run}/" in words[2]:
                    recorded.add(words[2])
                    if words[2].endswith((".record", ".msg")):
                        contents[words[2]].add(words[3])
            several = {name for name, found in contents.items() if len(found) > 1}
            assert not several, f"{site} said two things in {several}"
            assert contents or site in self.silent

    silent: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def common_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        for site in SITES:
            stage.start_site(site)
        # Ledgers go over all runs: what a run says of known directions stays the same once each
        # case has run.
        for case in (case for case in CASES if CASES[case].seals):
            assert stage.run(case, f"{_clean(case)}-first") == 0, stage.said()
        for case in CASES:
            clean = _clean(case)
            assert stage.run(case, clean, trace=f"trace-{clean}") == 0, stage.said()
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(common_stage: Stage) -> Stage:
    """A stage that has seen every case run undisturbed, with all its sites at work."""
    for site in SITES:
        if common_stage.sites.get(site) not in common_stage.living:
            common_stage.start_site(site)
    return common_stage


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage whose sites the test starts itself."""
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.close()


def _clean(case: str) -> str:
    return "clean-" + "".join(c for c in case if c.isalnum())


# ------------------------------------------------------------------ kill -9


def _moments(boundaries: list[tuple[int, str]], action: str) -> list[tuple[int, str]]:
    """Boundaries at which an action leaves something else on disk than its neighbours do.

    After boundary k and before k + 1 the disk is the same, so "kill" covers every state but the
    last; only records can be torn, and of the event log, which nothing depends on, one is enough.
    """
    events = [b for b in boundaries if b[1].endswith("events.jsonl")]
    rest = [b for b in boundaries if not b[1].endswith("events.jsonl")]
    if action == "after":
        return boundaries[-1:]
    if action == "torn":
        return sorted(events[:1] + [b for b in rest if b[1].endswith(("/log", ".jsonl"))])
    return sorted(events[:1] + rest)


@pytest.mark.parametrize("action", ["kill", "torn", "after"])
@pytest.mark.parametrize("case", CASES)
def test_a_coordinator_killed_at_every_boundary(stage: Stage, case: str, action: str) -> None:
    clean = _clean(case)
    moments = _moments(stage.boundaries(f"trace-{clean}"), action)
    for at, name in moments:
        run = f"{clean}-{action}-{at}"
        code = stage.run(case, run, action=action, at=at)
        assert code == -signal.SIGKILL, (at, name, stage.said())
        assert stage.run(case, run, resume=True) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)
    assert moments


@pytest.mark.parametrize("action", ["kill", "torn", "after"])
@pytest.mark.parametrize("case", CASES)
def test_a_site_killed_at_every_boundary(stage: Stage, case: str, action: str) -> None:
    clean = _clean(case)
    stage.stop_site(FIRST)
    stage.start_site(FIRST, trace=f"trace-{action}-{clean}")
    assert stage.run(case, f"{clean}-count-{action}") == 0
    stage.stop_site(FIRST)
    boundaries = stage.boundaries(f"trace-{action}-{clean}")
    assert any(name.endswith(".record") for _, name in boundaries)
    assert any(name.endswith(".msg") for _, name in boundaries)
    # What a site writes after its last reply (a note that the files are gone, if it looked in
    # between) may or may not happen: only moments that every run comes to can be waited for.
    last = max(at for at, name in boundaries if name.endswith(".msg"))
    boundaries = [b for b in boundaries if b[0] <= last]
    moments = [b for b in boundaries if action != "torn" or b[1].endswith(".jsonl")]
    for at, name in moments:
        run = f"{clean}-site-{action}-{at}"
        doomed = stage.start_site(FIRST, action=action, at=at)
        coordinator = stage.start("coordinator", case=case, run=run)
        assert stage.wait(doomed) == -signal.SIGKILL, (at, name, stage.said())
        stage.start_site(FIRST)
        assert stage.wait(coordinator) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)
        stage.stop_site(FIRST)


def test_both_ends_killed_again_and_again(stage: Stage) -> None:
    """Neither end ever lives longer than some boundaries, and yet the run comes to its end."""
    case, run = "secret-draws", "again"
    rng = random.Random(8)
    stage.stop_site(FIRST)
    deaths: dict[str, int] = defaultdict(int)
    coordinator = site = None
    while True:
        if site is None:
            # A step that puts out files needs six boundaries: with fewer it would never end.
            site = stage.start_site(FIRST, action="kill", at=rng.randrange(1, 10))
        if coordinator is None:
            spec = {"action": "kill", "at": rng.randrange(1, 20), "resume": True}
            coordinator = stage.start("coordinator", case=case, run=run, **spec)
        if (code := stage.ended(coordinator, 0.05)) is not None:
            coordinator = None
            if code == 0:
                break
            assert code == -signal.SIGKILL, stage.said()
            deaths["coordinator"] += 1
        if (code := stage.ended(site, 0.05)) is not None:
            site = None
            assert code == -signal.SIGKILL, stage.said()
            deaths["site"] += 1
        assert sum(deaths.values()) < 100, "no progress"
    if site is not None:
        stage.stop_site(FIRST)
    assert deaths["coordinator"] >= 3 and deaths["site"] >= 2, deaths
    stage.check_like(case, run, _clean(case))


def test_the_check_sees_a_number_drawn_anew(own_stage: Stage) -> None:
    """Negative control: a site that loses its record and its reply says something else."""
    for site in SITES:
        own_stage.start_site(site)
    case, run = "secret-draws", "lost"
    killed = own_stage.start("coordinator", case=case, run=run, action="kill", at=10_000)
    own_stage.wait(killed)
    own_stage.check_computed_once(run)
    home = own_stage.root / f"home-{FIRST}" / "runs" / run
    for record in home.iterdir():
        record.unlink()
    (own_stage.root / run / "journal" / "log").unlink()
    (own_stage.root / run / "transcript.jsonl").unlink()
    assert own_stage.run(case, run, resume=True) == 0
    with pytest.raises(AssertionError, match=r"computed|two things"):
        own_stage.check_computed_once(run)


# ------------------------------------------------------------------ frozen


def test_a_frozen_coordinator_goes_on(stage: Stage) -> None:
    case = "mean-and-sd"
    clean = _clean(case)
    for at, _ in _moments(stage.boundaries(f"trace-{clean}"), "kill")[::7]:
        run = f"frozen-{at}"
        pid = stage.start("coordinator", case=case, run=run, action="stop", at=at, deadline=30.0)
        stage.wait_until_stopped(pid)
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        assert stage.wait(pid) == 0, stage.said()
        stage.check_like(case, run, clean)


def test_a_coordinator_that_slept_past_the_deadline_takes_what_is_there(stage: Stage) -> None:
    case = "mean-and-sd"
    clean = _clean(case)
    (at,) = [
        k for k, name in stage.boundaries(f"trace-{clean}") if name.endswith(f"/1-1-{FIRST}.msg")
    ]
    pid = stage.start("coordinator", case=case, run="slept", action="stop", at=at + 1, deadline=1.0)
    stage.wait_until_stopped(pid)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    # The second ask was not out while the coordinator slept: its site has the whole deadline.
    assert stage.wait(pid) == 0, stage.said()
    stage.check_like(case, "slept", clean)


def test_a_site_frozen_past_the_deadline_is_absent_and_may_be_asked_again(stage: Stage) -> None:
    case, deadline = "mean-and-sd", 2.0
    os.kill(stage.sites[FIRST], signal.SIGSTOP)
    stage.wait_until_stopped(stage.sites[FIRST])
    assert stage.run(case, "late", deadline=deadline) == 8
    assert "no reply within the deadline" in (stage.root / "log-coordinator").read_text()
    os.kill(stage.sites[FIRST], signal.SIGCONT)
    assert stage.run(case, "late", resume=True, deadline=deadline) == 8, "what was noted stays"
    again = {"resume": True, "retry_refused": True, "deadline": deadline}
    assert stage.run(case, "late", **again) == 0, stage.said()
    assert stage.result("late") == stage.result(_clean(case))


def test_a_site_that_never_answers(own_stage: Stage) -> None:
    own_stage.start_site(FIRST)
    own_stage.silent = (SITES[1],)
    assert own_stage.run("mean-and-sd", "two-needed", deadline=0.5) == 8
    assert own_stage.run("mean-and-sd", "one-enough", deadline=0.5, quorum=1) == 0
    run: Any = load_run(own_stage.root / "one-enough")
    assert run.result.n == 60
    absent = [line for line in run.transcript if line.verdict == "absent"]
    assert [(line.site, line.round, line.rule) for line in absent] == [
        (SITES[1], 1, "no reply within the deadline")
    ]
    own_stage.check_computed_once("one-enough")


# ------------------------------------------------------------------ files in disorder


def _gremlin(folder: Path, run: str, seed: int, stop: threading.Event) -> None:
    """Duplicate, swap, cut, alter and remove files; each path suffers three times at most."""
    rng = random.Random(seed)
    suffered: dict[Path, int] = defaultdict(int)
    while not stop.is_set():
        found = [p for p in (folder / "runs" / run).glob("*/[!.]*") if suffered[p] < 3]
        for path in rng.sample(found, len(found)):
            suffered[path] += 1
            try:
                data = path.read_bytes()
                deed = rng.randrange(5)
                if deed == 0:
                    round_ = int(path.name.split("-")[0]) + rng.randrange(2)
                    for site in SITES:
                        for box in ("asks", "replies"):
                            (path.parents[1] / box / f"{round_}-1-{site}.msg").write_bytes(data)
                elif deed == 1:
                    other = rng.choice(found)
                    spare = other.read_bytes()
                    other.write_bytes(data)
                    path.write_bytes(spare)
                elif deed == 2:
                    path.write_bytes(data[: rng.randrange(len(data) or 1)])
                elif deed == 3:
                    at = rng.randrange(len(data) or 1)
                    path.write_bytes(data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :])
                else:
                    path.unlink()
            except FileNotFoundError:
                continue
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(6))
def test_disorder_in_the_folder_changes_nothing(stage: Stage, seed: int) -> None:
    case = list(CASES)[seed % len(CASES)]
    run, stop = f"disorder-{seed}", threading.Event()
    gremlin = threading.Thread(target=_gremlin, args=(stage.root / "shared", run, seed, stop))
    gremlin.start()
    try:
        assert stage.run(case, run) == 0, stage.said()
    finally:
        stop.set()
        gremlin.join()
    loose = CASES[case].draws_secrets or CASES[case].seals
    clean, without = _clean(case), ("digest",) if loose else ()
    assert stage.transcript(run, without=without) == stage.transcript(clean, without=without)
    if CASES[case].draws_secrets:
        stage.check_first_release(run)
    else:
        assert stage.result(run) == stage.result(clean)


# ------------------------------------------------------------------ full disks


def _parts(folder: Path) -> set[Path]:
    return set(folder.rglob("*.part"))


def _last_line(path: Path) -> str:
    return path.read_text().splitlines()[-1]


def test_a_full_disk_at_the_coordinator(stage: Stage) -> None:
    case = "mean-and-sd"
    clean = _clean(case)
    for at, name in _moments(stage.boundaries(f"trace-{clean}"), "kill"):
        run = f"full-{at}"
        log = f"log-{run}"
        assert stage.run(case, run, action="full", at=at, log=log) == 7, (at, name)
        said = (stage.root / log).read_text()
        assert said.count("\n") == 1 and "the disk is full: free some space" in said
        assert not _parts(stage.root / run), "something half-written is left"
        assert not _parts(stage.root / "shared" / "runs" / run), "something half-written is left"
        assert stage.run(case, run, resume=True) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)


def test_a_full_disk_at_a_site(stage: Stage) -> None:
    case = "secret-draws"
    clean = _clean(case)
    stage.stop_site(FIRST)
    stage.start_site(FIRST, trace="trace-full-count")
    assert stage.run(case, "full-count") == 0
    stage.stop_site(FIRST)
    for at, name in stage.boundaries("trace-full-count"):
        parts = _parts(stage.root / f"home-{FIRST}")
        run, log = f"full-site-{at}", f"log-full-site-{at}"
        pid = stage.start_site(FIRST, action="full", at=at, log=log)
        coordinator = stage.start("coordinator", case=case, run=run)
        if name.startswith("shared/"):
            # The reply is kept in the home and tried again while the site goes on.
            assert stage.wait(coordinator) == 0, (at, name, stage.said())
            stage.stop_site(FIRST)
        else:
            assert stage.wait(pid) == 7, (at, name, stage.said())
            said = (stage.root / log).read_text()
            assert said.count("\n") == 1 and "the disk is full: free some space" in said
            assert _parts(stage.root / f"home-{FIRST}") <= parts, "something half-written is left"
            stage.start_site(FIRST)
            assert stage.wait(coordinator) == 0, (at, name, stage.said())
            stage.stop_site(FIRST)
        stage.check_like(case, run, clean)


# ------------------------------------------------------------------ other versions


def _edit(change: dict[str, Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        info = json.loads((path / "run.json").read_bytes())
        (path / "run.json").write_text(json.dumps({**info, **change}))

    return edit


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 99}, "has schema 99"),
        ({"release": "9.9"}, "was begun with release '9.9'"),
        ({"method_version": 99}, "was begun with method version 99"),
        ({"study": "x"}, "was begun with study 'x'"),
    ],
)
def test_a_run_of_another_version_is_refused(
    stage: Stage, change: dict[str, Any], says: str
) -> None:
    run = f"version-{next(iter(change))}"
    assert stage.run("mean-and-sd", run, action="kill", at=12) == -signal.SIGKILL
    _edit(change)(stage.root / run)
    before = {p: p.read_bytes() for p in (stage.root / run).rglob("*") if p.is_file()}
    log = f"log-{run}"
    assert stage.run("mean-and-sd", run, resume=True, log=log) == 7
    assert says in _last_line(stage.root / log)
    after = {p: p.read_bytes() for p in (stage.root / run).rglob("*") if p.is_file()}
    assert after == before


def test_a_second_coordinator_in_the_same_run_directory(stage: Stage) -> None:
    pid = stage.start("coordinator", case="mean-and-sd", run="held", action="stop", at=12)
    stage.wait_until_stopped(pid)
    assert stage.run("mean-and-sd", "held", resume=True, log="log-held") == 7
    assert "another coordinator is at work" in _last_line(stage.root / "log-held")
    os.kill(pid, signal.SIGCONT)
    assert stage.wait(pid) == 0
    stage.check_like("mean-and-sd", "held", _clean("mean-and-sd"))

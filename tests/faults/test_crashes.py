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
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import load_run
from tests.faults.cases import CASES, SITES
from tests.faults.stage import FIRST, Stage, clean_run
from tests.rotation import rotation

pytestmark = pytest.mark.faults


# ------------------------------------------------------------------ kill -9

SHORTEST = "mean-and-sd"


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


def _chosen(moments: list[tuple[int, str]], turn: int | None) -> list[tuple[int, str]]:
    """All moments, or one of them by turns."""
    assert moments
    return moments if turn is None else [moments[turn % len(moments)]]


def _kill_the_coordinator(stage: Stage, case: str, action: str, turn: int | None) -> None:
    clean = clean_run(case)
    for at, name in _chosen(_moments(stage.boundaries(f"trace-{clean}"), action), turn):
        run = f"{clean}-{action}-{at}-{turn}"
        code = stage.run(case, run, action=action, at=at)
        assert code == -signal.SIGKILL, (at, name, stage.said())
        assert stage.run(case, run, resume=True) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)


def _kill_a_site(stage: Stage, case: str, action: str, turn: int | None) -> None:
    clean = clean_run(case)
    count = f"{clean}-count-{action}-{turn}"
    stage.stop_site(FIRST)
    stage.start_site(FIRST, trace=f"trace-{count}")
    assert stage.run(case, count) == 0
    stage.stop_site(FIRST)
    boundaries = stage.boundaries(f"trace-{count}")
    assert any(name.endswith(".record") for _, name in boundaries)
    # What a site writes after its last reply (a note that the files are gone, if it looked in
    # between) may or may not happen: only moments that every run comes to can be waited for.
    last = max(at for at, name in boundaries if name.endswith(".msg"))
    for at, name in _chosen([b for b in boundaries if b[0] <= last], turn):
        run = f"{clean}-site-{action}-{at}-{turn}"
        doomed = stage.start_site(FIRST, action=action, at=at)
        coordinator = stage.start("coordinator", case=case, run=run)
        assert stage.wait(doomed) == -signal.SIGKILL, (at, name, stage.said())
        stage.start_site(FIRST)
        assert stage.wait(coordinator) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)
        stage.stop_site(FIRST)


KILLS: dict[str, Callable[[Stage, str, str, int | None], None]] = {
    "coordinator": _kill_the_coordinator,
    FIRST: _kill_a_site,
}
# A site appends to no file in an undisturbed run: nothing of its own can be torn.
ENDS = [("kill", "coordinator"), ("kill", FIRST), ("torn", "coordinator")]
ENDS += [("after", "coordinator"), ("after", FIRST)]


@pytest.mark.parametrize("action", ["kill", "torn", "after"])
@pytest.mark.parametrize("case", CASES)
def test_one_end_killed_at_a_boundary(stage: Stage, case: str, action: str) -> None:
    """The other end, and another boundary, by turns: `test_matrix` kills both at each of them."""
    turn = rotation() + list(CASES).index(case)
    ends = [who for deed, who in ENDS if deed == action]
    KILLS[ends[turn % len(ends)]](stage, case, action, turn // 2)


@pytest.mark.parametrize(("action", "who"), ENDS)
@pytest.mark.parametrize("case", [SHORTEST])
def test_a_short_run_killed_at_every_boundary(
    stage: Stage, case: str, action: str, who: str
) -> None:
    KILLS[who](stage, case, action, None)


@pytest.mark.nightly
@pytest.mark.parametrize(("action", "who"), ENDS)
@pytest.mark.parametrize("case", [case for case in CASES if case != SHORTEST])
def test_killed_at_every_boundary(stage: Stage, case: str, action: str, who: str) -> None:
    KILLS[who](stage, case, action, None)


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
    stage.check_like(case, run, clean_run(case))


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
    clean = clean_run(case)
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
    clean = clean_run(case)
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
    assert stage.result("late") == stage.result(clean_run(case))


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


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.nightly] if n > 2 else []) for n in range(12)]
)
def test_disorder_in_the_folder_changes_nothing(stage: Stage, number: int) -> None:
    seed = 12 * rotation() + number
    case = list(CASES)[seed % len(CASES)]
    run, stop = f"disorder-{seed}", threading.Event()
    gremlin = threading.Thread(target=_gremlin, args=(stage.root / "shared", run, seed, stop))
    gremlin.start()
    try:
        assert stage.run(case, run) == 0, stage.said()
    finally:
        stop.set()
        gremlin.join()
    clean, without = clean_run(case), CASES[case].loose
    assert stage.transcript(run, without=without) == stage.transcript(clean, without=without)
    if CASES[case].draws_secrets:
        stage.check_first_release(run)
    else:
        assert stage.result(run) == stage.result(clean)


# ------------------------------------------------------------------ full disks


def _parts(folder: Path) -> set[Path]:
    return set(folder.rglob("*.part"))


def _parts_for_good(folder: Path, seconds: float = 10.0) -> set[Path]:
    """Half-written files that stay: a site that is alive may be writing one at this moment."""
    until = time.monotonic() + seconds
    while (found := _parts(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _last_line(path: Path) -> str:
    return path.read_text().splitlines()[-1]


def test_a_full_disk_at_the_coordinator(stage: Stage) -> None:
    case = "mean-and-sd"
    clean = clean_run(case)
    for at, name in _moments(stage.boundaries(f"trace-{clean}"), "kill"):
        run = f"full-{at}"
        log = f"log-{run}"
        assert stage.run(case, run, action="full", at=at, log=log) == 7, (at, name)
        said = (stage.root / log).read_text()
        assert said.count("\n") == 1 and "the disk is full: free some space" in said
        assert not _parts(stage.root / run), "something half-written is left"
        shared = stage.root / "shared" / "runs" / run
        assert not _parts_for_good(shared), "something half-written is left"
        assert stage.run(case, run, resume=True) == 0, (at, name, stage.said())
        stage.check_like(case, run, clean)


def test_a_full_disk_at_a_site(stage: Stage) -> None:
    case = "secret-draws"
    clean = clean_run(case)
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
    stage.check_like("mean-and-sd", "held", clean_run("mean-and-sd"))

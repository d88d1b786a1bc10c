"""Every fault at every boundary, or every message, of every method, in one run for each fault.

A fault at one end, of one kind, meets each method by turns, and all of them at night.

A process that is killed, frozen or out of disk space at a boundary meets the same at the next one
when it goes on; a message that is damaged is damaged once, whoever wrote it. So one run has the
fault everywhere, and each pair of fault and method is one test. Result, transcript and what sites
did are compared with those of an undisturbed run; no test waits for a time.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.cases import CASES, SITES
from tests.faults.stage import PATIENCE, Stage, clean_run
from tests.faults.zygote import DAMAGES
from tests.rotation import by_turns, rotation

pytestmark = pytest.mark.faults

COORDINATOR = "coordinator"
EVERYBODY = (COORDINATOR, *SITES)
PAUSE = 0.03
HOURS = {
    "coordinator ahead": {COORDINATOR: [5.0], SITES[0]: [-5.0]},
    "coordinator behind": {COORDINATOR: [-5.0], SITES[0]: [5.0], SITES[1]: [72.0]},
    "jumping": {who: [0.0, 30.0, -30.0, 1.0] for who in EVERYBODY},
}


@pytest.fixture
def alone(stage: Stage) -> Iterator[Stage]:
    """The stage without its sites: the test starts them itself, and none is left behind."""
    for site in SITES:
        stage.stop_site(site)
    try:
        yield stage
    finally:
        for pid in list(stage.living):
            os.kill(pid, signal.SIGKILL)
            stage.ended(pid, PATIENCE)
        stage.sites.clear()


class Cast:
    """The three processes of one run, started again until the coordinator has ended well."""

    def __init__(self, stage: Stage, case: str, run: str, spec: dict[str, dict[str, Any]]) -> None:
        self.stage, self.case, self.run, self.spec = stage, case, run, spec
        self.pids: dict[str, int] = {}
        self.codes: dict[str, list[int]] = {who: [] for who in EVERYBODY}

    def start(self, who: str) -> None:
        given = {
            "seen": f"seen-{self.run}-{who}",
            # A trace for each run and for each process, since sites number from 1 again.
            "log": f"log-{self.run}-{who}",
            **self.spec.get(who, {}),
        }
        if who == COORDINATOR:
            given |= {"trace": f"trace-{self.run}", "case": self.case, "run": self.run}
            given["resume"] = bool(self.codes[who])
            self.pids[who] = self.stage.start(COORDINATOR, **given)
        else:
            self.pids[who] = self.stage.start_site(who, **given)

    def play(self, expected: int) -> None:
        """Go on until the run has ended; `expected` is how those end who meet the fault."""
        for who in (*SITES, COORDINATOR):
            self.start(who)
        end = time.monotonic() + 4 * PATIENCE
        while True:
            for who in EVERYBODY:
                code = self.stage.ended(self.pids[who], 0.0)
                if code is None:
                    continue
                self.codes[who].append(code)
                if who == COORDINATOR and code == 0:
                    self.dismiss(expected)
                    return
                assert code == expected, (who, code, self.stage.said())
                self.start(who)
            assert time.monotonic() < end, f"no end: {self.codes} {self.stage.said()}"
            time.sleep(0.002)

    def dismiss(self, expected: int) -> None:
        for site in SITES:
            pid = self.stage.sites.pop(site)
            if pid in self.stage.living:
                os.kill(pid, signal.SIGTERM)
                # A site may meet its last fault after the coordinator has ended.
                self.codes[site].append(self.stage.wait(pid))
                assert self.codes[site][-1] in (0, expected), self.stage.said()


def acted_on(stage: Stage, trace: str, run: str) -> set[str]:
    """Names of what a process met its faults at, in this run."""
    return {
        words[2].replace(f"/{run}/", "/*/").replace(f"{run}/", "*/")
        for words in stage.traced(trace)
        if words[0] == "fault" and run in words[2]
    }


def written(stage: Stage, trace: str, run: str) -> set[str]:
    """Names of what a process wrote of a run, a note of times aside."""
    return {
        words[2].replace(f"/{run}/", "/*/").replace(f"{run}/", "*/")
        for words in stage.traced(trace)
        if words[0] == "begin" and run in words[2]
    }


def messages(stage: Stage, case: str) -> tuple[set[str], set[str]]:
    """Names of all asks and of all replies of a case."""
    clean = clean_run(case)
    names = written(stage, f"trace-{clean}", clean)
    asks = {name for name in names if name.endswith(".msg")}
    return asks, {name.replace("/asks/", "/replies/") for name in asks}


def run_of(case: str, *words: str) -> str:
    return "-".join((clean_run(case).replace("clean", "matrix"), *words)).replace(" ", "-")


# ------------------------------------------------------------------ processes


@pytest.mark.parametrize("case", CASES)
def test_every_process_is_killed_at_every_boundary(alone: Stage, case: str) -> None:
    run = run_of(case, "restarts")
    cast = Cast(alone, case, run, {who: {"action": "kill", "at": 0} for who in EVERYBODY})
    cast.play(-signal.SIGKILL)
    alone.check_like(case, run, clean_run(case))
    met = acted_on(alone, f"trace-{run}", run)
    assert met == written(alone, f"trace-{clean_run(case)}", clean_run(case))
    replies = messages(alone, case)[1]
    for site in CASES[case].sites:
        own = {name for name in replies if name.endswith(f"-{site}.msg")}
        assert own and own <= acted_on(alone, f"trace-{site}", run)


@by_turns(CASES.keys(), EVERYBODY[:2], names=("case", "who"))
def test_the_disk_is_full_at_every_boundary(alone: Stage, case: str, who: str) -> None:
    run = run_of(case, "full", who)
    cast = Cast(alone, case, run, {who: {"action": "full", "at": 0}})
    cast.play(7)
    alone.check_like(case, run, clean_run(case))
    said = (alone.root / f"log-{run}-{who}").read_text().splitlines()
    assert len(said) == cast.codes[who].count(7) > 5
    assert all("the disk is full: free some space" in line for line in said)
    # An ask of the coordinator that is tried again while the process goes on is no boundary twice.
    if who == COORDINATOR:
        met = acted_on(alone, f"trace-{run}", run)
        assert met == written(alone, f"trace-{clean_run(case)}", clean_run(case))
    else:
        replies = {name for name in messages(alone, case)[1] if name.endswith(f"-{who}.msg")}
        assert replies <= acted_on(alone, f"trace-{who}", run)


@by_turns(CASES.keys(), EVERYBODY[:2], names=("case", "who"))
def test_frozen_and_thawed_at_every_boundary(alone: Stage, case: str, who: str) -> None:
    run, clean = run_of(case, "frozen", who), clean_run(case)
    trace = f"trace-{run}-frozen"
    for site in SITES:
        spec = {"action": "stop", "at": 0, "trace": trace} if site == who else {}
        alone.start_site(site, **spec)
    spec = {"action": "stop", "at": 0, "trace": trace} if who == COORDINATOR else {}
    coordinator = alone.start(COORDINATOR, case=case, run=run, **spec)
    frozen = coordinator if who == COORDINATOR else alone.sites[who]
    freezes = 0
    while coordinator in alone.living and (code := alone.stopped_or_ended(frozen)) != 0:
        if code == "stopped":
            freezes += 1
            time.sleep(PAUSE)  # The others go on, as far as they come.
            os.kill(frozen, signal.SIGCONT)
        else:
            assert code is None, (code, alone.said())
        if frozen != coordinator:
            code = alone.ended(coordinator, 0.0)
            assert code in (None, 0), alone.said()
    if who != COORDINATOR:
        alone.let_go(frozen)
        # Its part of what `check_computed_once` reads.
        with open(alone.root / f"trace-{who}", "a") as file:
            file.write((alone.root / trace).read_text())
    alone.check_like(case, run, clean)
    assert freezes == len(alone.boundaries(trace)) > 5


# ------------------------------------------------------------------ messages


@pytest.mark.parametrize("case", CASES)
def test_every_message_is_damaged_somehow(alone: Stage, case: str) -> None:
    """One truncated, the next altered, duplicated, reordered, from another one on each day."""
    _damaged(alone, case, "by turns")


@pytest.mark.nightly
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("case", CASES)
def test_every_message_is_damaged(alone: Stage, case: str, damage: str) -> None:
    _damaged(alone, case, damage)


def _damaged(alone: Stage, case: str, damage: str) -> None:
    run = run_of(case, damage)
    asks, replies = messages(alone, case)
    spec = {"damage": damage, "turn": rotation()}
    Cast(alone, case, run, dict.fromkeys(EVERYBODY, spec)).play(0)
    alone.check_like(case, run, clean_run(case))
    assert asks and acted_on(alone, f"trace-{run}", run) == asks
    for site in CASES[case].sites:
        own = {name for name in replies if name.endswith(f"-{site}.msg")}
        assert own and acted_on(alone, f"trace-{site}", run) == own


@pytest.mark.parametrize("case", CASES)
def test_a_message_that_never_arrives_whole_is_reported(alone: Stage, case: str) -> None:
    """Also the control of the tests above: damage that stays is not overlooked."""
    run = run_of(case, "always-altered")
    alone.start_site(SITES[0], damage="altered", always=True)
    alone.start_site(SITES[1])
    log = f"log-{run}"
    # The quorum is everybody: without this site there is no result.
    assert alone.run(case, run, deadline=1.5, log=log) == 8, alone.said()
    said = (alone.root / log).read_text()
    assert said.count("\n") == 1 and SITES[0] in said and "no reply within the deadline" in said
    assert acted_on(alone, f"trace-{SITES[0]}", run), "nothing was damaged"
    assert not (alone.root / run / "result.json").exists()


# ------------------------------------------------------------------ clocks


@by_turns(CASES.keys(), HOURS.keys(), names=("case", "hours"))
def test_clocks_are_hours_apart(alone: Stage, case: str, hours: str) -> None:
    run, wrong = run_of(case, hours), HOURS[hours]
    Cast(alone, case, run, {who: {"shift": shift} for who, shift in wrong.items()}).play(0)
    alone.check_like(case, run, clean_run(case))
    asks, replies = messages(alone, case)
    assert acted_on(alone, f"trace-{run}", run) == asks
    for site in set(SITES) & set(wrong):
        own = {name for name in replies if name.endswith(f"-{site}.msg")}
        assert acted_on(alone, f"trace-{site}", run) == own
    # The clocks were wrong where somebody reads them, not only in the test.
    first = (alone.root / run / "events.jsonl").read_text().splitlines()[0]
    said = json.loads(first)["time"]
    assert abs(said - time.time()) > 3000 or hours == "jumping"

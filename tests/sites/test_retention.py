"""What a site keeps only to answer again goes after some days; the rest stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import watch
from consilience.engines.local import LocalEngine
from consilience.exceptions import ParameterError, QuorumError, RunError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.site import PURGED, Site
from consilience.sites.site_store import DiskStore, MemoryStore, sole
from consilience.sites.steward import DAY, old_runs, purge_old, purge_run
from consilience.wire.signing import SigningKey
from tests.faults.cases import CASES, SITES, loader


class Sites:
    """Two sites with homes on disk, and runs on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sites = {s: Site(s, loader(s), home=DiskStore(root / s)) for s in SITES}

    def run(self, run_id: str, *, days_ago: float = 0.0, seed: int = 1) -> None:
        federation = Federation(
            LocalEngine(list(self.sites.values())), CASES["mean-and-sd"].columns
        )
        federation.run(MeanAndSD(), seed=seed, run_id=run_id)
        for folder in self.root.glob(f"*/runs/{run_id}"):
            age(folder, days_ago)

    def kept(self, site: str) -> list[str]:
        return sorted(path.name for path in (self.root / site / "runs").iterdir())

    def log(self, site: str, event: str = "purged") -> list[dict[str, Any]]:
        text = (self.root / site / "log.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["event"] == event]


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def test_runs_not_asked_for_some_days_go_and_the_rest_stays(sites: Sites) -> None:
    for run_id, days in (("old", 31.0), ("recent", 29.0), ("new", 0.0)):
        sites.run(run_id, days_ago=days)
    site = sites.sites["ash"]
    ledgers = {p.name: p.read_bytes() for p in (sites.root / "ash" / "ledger").iterdir()}
    outputs = site.home.output_names("old")
    assert list(old_runs(site.home, 30)) == ["old"]
    assert sites.kept("ash") == ["new", "old", "recent"], "looking drops nothing"
    assert list(purge_old(site, 30)) == ["old"]
    assert sites.kept("ash") == ["new", "recent"]
    assert purge_old(site, 30) == {}
    for name, before in ledgers.items():
        assert (sites.root / "ash" / "ledger" / name).read_bytes() == before
    assert site.home.output_names("old") == outputs
    assert site.home.ledger(PURGED) == {"runs": ["old"]}
    (line,) = sites.log("ash")
    answered = sites.log("ash", "answered")
    # What left outlives the records that told it.
    assert {one["run"] for one in answered} == {"old"} and answered[-1]["outcome"] == "left"
    assert "totals: aggregate for coordinator, 3, released by sum" in [
        said for one in answered for said in one["told"]
    ]
    assert line["run"] == "old" and line["reason"].startswith("retention: last asked 31.0 days ago")
    with pytest.raises(QuorumError, match="ash refused: the records of this run were purged"):
        sites.run("old")


def test_one_late_question_keeps_a_run(sites: Sites) -> None:
    sites.run("r", days_ago=40.0)
    folder = sites.root / "ash" / "runs" / "r"
    last = max(folder.glob("*.record"))
    os.utime(last, (time.time() - 5 * DAY,) * 2)
    assert old_runs(sites.sites["ash"].home, 30) == {}
    assert list(old_runs(sites.sites["ash"].home, 4)) == ["r"]


def test_a_clock_that_was_ahead_purges_nothing(sites: Sites) -> None:
    sites.run("r", days_ago=-400.0)
    assert old_runs(sites.sites["ash"].home, 0) == {}


def test_the_log_comes_first(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, the run is purged and noted once more: never dropped without a note."""
    sites.run("r", days_ago=40.0)
    site = sites.sites["ash"]

    class KilledError(BaseException):
        pass

    def killed(run: str) -> None:
        raise KilledError

    monkeypatch.setattr(site, "purge", killed)
    with pytest.raises(KilledError):
        purge_old(site, 30)
    assert sites.kept("ash") == ["r"] and len(sites.log("ash")) == 1
    monkeypatch.undo()
    assert list(purge_old(site, 30)) == ["r"]
    assert sites.kept("ash") == [] and len(sites.log("ash")) == 2


def test_what_is_no_run_is_left_alone(sites: Sites) -> None:
    sites.run("r", days_ago=40.0)
    runs = sites.root / "ash" / "runs"
    for name in (".hidden", "a..b", "sp ace"):
        (runs / name).mkdir()
        age(runs / name, 400.0)
    (runs / "file").write_text("")
    os.utime(runs / "file", (0, 0))
    assert list(purge_old(sites.sites["ash"], 30)) == ["r"]
    assert len(sites.kept("ash")) == 4
    with pytest.raises(RunError):
        purge_run(sites.sites["ash"], "../ledger", "by hand")
    assert (sites.root / "ash" / "ledger").is_dir()
    with pytest.raises(ParameterError, match="days"):
        old_runs(sites.sites["ash"].home, -1.0)


def test_a_home_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Site(s, loader(s), home=MemoryStore()) for s in SITES]
    Federation(LocalEngine(members), CASES["mean-and-sd"].columns).run(
        MeanAndSD(), seed=1, run_id="r"
    )
    home = members[0].home
    assert set(home.recorded()) == {"r"}
    assert old_runs(home, 30) == {}
    assert list(purge_old(members[0], 30, now=time.time() + 31 * DAY)) == ["r"]
    assert home.recorded() == {}


def test_the_watch_purges_at_its_start_and_once_a_day(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    site, key, coordinator = sites.sites["ash"], SigningKey.generate(), SigningKey.generate()
    # Time passes by itself too: a thread pool that is left waits by this clock.
    now, real = 1000.0 - time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now + real())
    said: list[tuple[str, dict[str, Any]]] = []
    kept: list[list[str]] = []

    class Flag:
        """Lets a look happen, then time pass."""

        def is_set(self) -> bool:
            nonlocal now
            kept.append(sites.kept("ash"))
            if len(kept) == 2:
                sites.run("second", days_ago=40.0)
                now += DAY - 60.0
            elif len(kept) == 4:
                now += 120.0
            return len(kept) > 5

    sites.run("first", days_ago=40.0)
    sites.run("young", days_ago=1.0)
    watch(
        site,
        folder,
        key=key,
        coordinators=[coordinator.public],
        stop=Flag(),
        poll=0.001,
        on_event=lambda kind, facts: said.append((kind, facts)),
        retention=30,
    )
    assert kept[0] == ["first", "young"]
    assert kept[1] == ["young"]
    assert kept[3] == ["second", "young"], "not before a day has passed"
    assert kept[5] == ["young"]
    assert [facts["run"] for kind, facts in said if kind == "purged"] == ["first", "second"]
    sites.run("third", days_ago=400.0)
    watch(site, folder, key=key, coordinators=[coordinator.public], once=True)
    assert sites.kept("ash") == ["third", "young"], "without a retention nothing goes"


def test_one_process_holds_a_home(sites: Sites) -> None:
    home = sites.sites["ash"].home
    with sole(home), pytest.raises(RunError, match="another process serves the home"), sole(home):
        pass
    with sole(home), sole(MemoryStore()):
        pass

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import joblib
import numpy as np
import pytest

from consilience.engines.base import Arrival, Engine
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError, RunError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns
from consilience.sites.site import Site
from consilience.sites.site_store import MemoryStore
from consilience.testing import CheckFailed, check_engine
from consilience.testing.fakes import (
    ClassSums,
    FakeEngine,
    SilentSite,
    array_loader,
    federation_of,
    members,
)
from tests.sites.homes import record_files

TABLES = {f"s{i}": np.random.default_rng(i).normal(size=(30 + i, 2)) for i in range(3)}


def local(sites: Sequence[Site]) -> AbstractContextManager[Engine]:
    return nullcontext(LocalEngine(sites))


def test_the_promises_of_every_engine() -> None:
    check_engine.check_engine(local)


def broken(change: Any) -> Any:
    """A factory of engines with one method replaced."""

    class Broken(LocalEngine):
        pass

    for name, function in change.items():
        setattr(Broken, name, function)
    return lambda sites: nullcontext(Broken(sites))


def altered_replies(self: Any, keys: Any, *, wait: str, deadline: float) -> list[Arrival]:
    arrivals = LocalEngine.collect(self, keys, wait=wait, deadline=deadline)
    return [
        Arrival(a.key, None if a.data is None else a.data.replace(b"the gate refused", b"?"), "")
        for a in arrivals
    ]


def nothing_said(self: Any, keys: Any, *, wait: str, deadline: float) -> list[Arrival]:
    arrivals = LocalEngine.collect(self, keys, wait=wait, deadline=deadline)
    return [Arrival(a.key, a.data, "") for a in arrivals]


def new_each_time(self: Any, requests: Any) -> None:
    for site in self.members.values():
        for parts in record_files(site.home):
            del site.home.files[parts]
        site.policy = type(site.policy)(preset="consortium")
        self._calls = getattr(self, "_calls", 0) + 1
    LocalEngine.send(self, requests)
    if self._calls > 3:
        for site in self.members.values():
            site.policy = type(site.policy)(preset="simulation")


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (check_engine.check_refusals, {"collect": altered_replies}),
        (check_engine.check_silent_sites, {"collect": nothing_said}),
        (check_engine.check_repeated_asks, {"send": new_each_time}),
        (check_engine.check_order, {"collect": lambda self, keys, **rest: []}),
    ],
)
def test_a_broken_engine_is_found_out(check: Any, change: Any) -> None:
    with pytest.raises(CheckFailed):
        check(broken(change))


def test_two_sites_of_one_name() -> None:
    sites = [Site(name, array_loader(TABLES["s0"])) for name in ("a", "b", "a")]
    with pytest.raises(StudyError, match="two sites are called 'a'"):
        LocalEngine(sites)


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_backends_give_the_same_bytes(backend: str) -> None:
    """Also for a method that no package announces: other processes are told where it is."""
    for method in (MeanAndSD(), ClassSums(edges=((0.0,), (0.5,)))):
        wanted = method.run(federation_of(TABLES), seed=0).result.to_files()
        with joblib.parallel_config(backend=backend, n_jobs=2):
            assert method.run(federation_of(TABLES), seed=0).result.to_files() == wanted


def test_a_site_with_a_failing_disk_is_absent_and_the_others_answer() -> None:
    sites = [Site("a", array_loader(TABLES["s0"])), SilentSite("b", array_loader(TABLES["s1"]))]
    from consilience.engines.federation import Federation

    federation = Federation(LocalEngine(sites), Columns(features=("x0",)), quorum=1)
    run = MeanAndSD().run(federation, seed=0)
    assert run.result.n == 30
    assert any("b was absent" in note for note in run.notes)


def test_steps_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib
    import threadpoolctl

    from consilience.sites import step_runner as module

    seen: list[int] = []
    plain = module._answered

    def watched(work: Any, counted: dict[str, Any]) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return plain(work, counted)

    monkeypatch.setattr(module, "_answered", watched)
    with threadpoolctl.threadpool_limits(2):
        MeanAndSD().run(federation_of(TABLES), seed=0)
        with joblib.parallel_config("threading", n_jobs=3):
            MeanAndSD().run(federation_of(TABLES), seed=0)
    assert set(seen) == {1}


def test_the_fake_engine_without_a_script_changes_nothing() -> None:
    federation = federation_of(TABLES)
    wanted = MeanAndSD().run(federation, seed=0).result.to_files()
    import dataclasses

    fake = FakeEngine(members(federation_of(TABLES)).values())
    found = MeanAndSD().run(dataclasses.replace(federation, engine=fake), seed=0)
    assert found.result.to_files() == wanted
    assert fake.missed == []
    assert len(fake.requests) == len(fake.replies) == 9


def test_a_refusal_says_its_own_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Everybody is told a public sentence; who has the sites in his process sees the whole one."""
    tables = {name: {"x": [1.0, 2.0, 3.0]} for name in ("a", "b")} | {"c": {"y": [1.0, 2.0, 3.0]}}
    federation = Federation.local(tables, columns=Columns(features=("x",)), quorum=3)
    with pytest.raises(QuorumError) as told:
        federation.run(MeanAndSD(), seed=1)
    (said,) = [record.getMessage() for record in caplog.records]
    why = federation.log("c")[-1]["reason"]
    assert why not in str(told.value)
    assert said == f"site c refused step 'opening.read': {why}"


def test_a_site_that_cannot_keep_its_record_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStore):
        def commit(self, *_: Any) -> None:
            raise RunError("the disk is full")

    sites = [Site("a", array_loader(np.ones((9, 2))), home=Full())]
    federation = Federation(LocalEngine(sites), Columns(features=("x0", "x1")))
    with pytest.raises(QuorumError):
        federation.run(MeanAndSD(), seed=1)
    assert [record.getMessage() for record in caplog.records] == [
        "site a cannot answer: the disk is full"
    ]

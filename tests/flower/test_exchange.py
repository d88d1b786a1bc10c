"""Every method gives the same bytes over a real SuperLink, and the engine keeps every promise."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.study import Study
from consilience.testing import check_engine
from consilience.testing.fakes import array_loader, members
from consilience.testing.recalling import SEED
from tests.exchange.cases import CASES, Case
from tests.exchange.test_engines import CHECKS
from tests.rotation import one_in

if TYPE_CHECKING:
    from tests.flower.deployment import Deployment

pytestmark = pytest.mark.flower

IN_ORDER = {name: case for name, case in CASES.items() if not case.asynchronous}


@one_in(8, IN_ORDER, "case")
def test_same_bytes_as_in_one_process(case: Case, deployment: Deployment) -> None:
    wanted, federation = case.record.run, case.factory()
    with deployment.serving(list(members(federation).values())) as engine:
        found = case.method.run(dataclasses.replace(federation, engine=engine), seed=SEED)
    assert found.result.to_files() == wanted.result.to_files()
    lines = [
        [dataclasses.replace(x, run="", digest="", chain="", protection="") for x in run.transcript]
        for run in (wanted, found)
    ]
    assert lines[0] == lines[1]


def test_masked_sums_have_the_bytes_of_one_process(deployment: Deployment) -> None:
    names = ("ash", "birch", "cedar", "a", "b")
    study = Study.from_settings(
        {
            "name": "masked",
            "method": "mean-and-sd",
            "sums": "secure",
            "data": {"features": ["x0", "x1"]},
            "preparation": {"standardize": "pooled"},
            "sites": {"names": list(names), "keys": {s: deployment.public[s] for s in names}},
        }
    )
    approved = Policy(approved_studies=(study.hash(),))

    def sites() -> list[Site]:
        rows = {s: np.random.default_rng(i).normal(size=(40, 2)) for i, s in enumerate(names)}
        return [Site(s, array_loader(x), policy=approved) for s, x in rows.items()]

    local = Federation.from_study(study, engine=LocalEngine(sites()))
    wanted = MeanAndSD().run(local, seed=SEED)
    with deployment.serving(sites()) as engine:
        found = MeanAndSD().run(Federation.from_study(study, engine=engine), seed=SEED)
    assert found.result.to_files() == wanted.result.to_files()
    left = {x.disclosure for x in found.transcript if x.direction == "from-site"}
    assert left == {"masked", "public"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_promise(check: Any, deployment: Deployment) -> None:
    check(deployment.serving)


def test_silent_sites(deployment: Deployment) -> None:
    # Long enough for the others on a busy machine: the deadline is waited out.
    check_engine.check_silent_sites(deployment.serving, deadline=8.0)

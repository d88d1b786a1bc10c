from __future__ import annotations

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.protocol.phases.opening import Open
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.testing.fakes import array_loader, federation_of, scripted

X = np.random.default_rng(1).normal(size=(40, 2))


def test_settings_come_back() -> None:
    import dataclasses
    import json

    columns = Columns(features=("a",), target="y", levels={"y": ("no", "yes")})
    preparation = Preparation(categorical="onehot", indicators={"a": (4,)})
    message = Open(
        columns=json.dumps(dataclasses.asdict(columns)),
        preparation=json.dumps(dataclasses.asdict(preparation)),
        study="",
        partition="rows",
        follows="",
    )
    assert message.settings()[0] == columns
    assert message.settings()[1].categorical == "onehot"


def test_a_site_with_other_columns_is_left_out_and_named() -> None:
    def renamed(columns: Columns, preparation: Preparation) -> SiteData:
        return SiteData(X, ("x0", "x1=4"), np.arange(40))

    sites = [Site("a", array_loader(X)), Site("b", renamed)]
    federation = Federation(LocalEngine(sites), Columns(features=("x0", "x1")), quorum=1)
    run = MeanAndSD().run(federation, seed=0)
    assert run.result.n == len(X)
    assert any("b was absent" in n and "other columns than the study" in n for n in run.notes)
    assert "did not accept the reply to opening.read in round 1" in str(vars(sites[1].home))


def test_sites_that_do_not_open_are_left_out() -> None:
    tables = {"a": X, "b": X + 1, "c": X + 2}
    federation = scripted(federation_of(tables, quorum=2), {(1, "b"): "returns"})
    run = MeanAndSD().run(federation, seed=0)
    assert run.result.n == 80
    assert {line.site for line in run.transcript if line.round > 1} == {"a", "c"}


def test_presets_are_told() -> None:
    run = MeanAndSD().run(
        federation_of({"a": X}, policy=Policy.from_settings("simulation")), seed=0
    )
    assert run.presets == {"a": "simulation"}
    assert run.notes[0].startswith("Simulation")
    assert MeanAndSD().run(federation_of({"a": X}), seed=0).notes == ()


def test_a_missing_column_is_told_without_its_name_elsewhere() -> None:
    federation = Federation(LocalEngine([Site("a", array_loader(X))]), Columns(features=("gone",)))
    with pytest.raises(QuorumError, match="a refused: a column is missing"):
        MeanAndSD().run(federation, seed=0)

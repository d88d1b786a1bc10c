from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.exceptions import StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns
from consilience.testing.fakes import federation_of, scripted

X = np.random.default_rng(1).normal(size=(40, 2))
COLUMNS = Columns(
    features=("x0", "x1"), target="y", sequence=("t",), levels={"y": ("1", "2"), "t": ("3", "4")}
)


def federation(**foreign: tuple[str, ...]) -> Federation:
    roles = {name: {"foreign_levels": names} for name, names in foreign.items()}
    made = federation_of({"a": X, "b": X + 1, "c": X + 2}, roles=roles, quorum=2)
    return dataclasses.replace(made, columns=COLUMNS)


def test_all_within() -> None:
    run = MeanAndSD().run(federation(), seed=0)
    lines = [line for line in run.transcript if line.step == "agree-levels.confirm"]
    assert {line.disclosure for line in lines} == {"public"}
    assert run.result.n == 120


def test_columns_and_sites_are_named() -> None:
    with pytest.raises(StudyError) as stopped:
        MeanAndSD().run(federation(a=("t",), c=("y", "t")), seed=0)
    for words in ("column t: values outside the declared levels at a", "y", "at c", "own log"):
        assert words in str(stopped.value)
    assert "at b" not in str(stopped.value)


def test_a_site_that_did_not_confirm_takes_part_no_more() -> None:
    run = MeanAndSD().run(scripted(federation(c=("y",)), {(2, "c"): "returns"}), seed=0)
    assert {line.site for line in run.transcript if line.round > 2} == {"a", "b"}

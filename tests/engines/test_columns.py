"""Federations in memory whose sites hold different columns: what does not go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.assisted.test import AssistanceTest
from consilience.engines.federation import Federation, over_columns
from consilience.exceptions import ConsilienceError, ParameterError, QuorumError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation
from tests.protocol.columns import KEY, columns_of, federation, policy, tables

METHOD = AssistanceTest(n_directions=2)
CLINIC = Columns(features=["a"], id="id", target="y")
LAB = Columns(features=["b"], id="pid")
BOTH = {"clinic": CLINIC, "lab": LAB}
NOTHING: dict[str, Any] = {"clinic": None, "lab": None}


def test_settings() -> None:
    common, own, key, left = over_columns(NOTHING, BOTH, {"name": "trial"})
    assert common == Columns(id="id")
    assert own["lab"].rename == {"id": "pid"} and own["clinic"].rename == {}
    assert own["lab"].features == ("b",) and own["lab"].target is None
    assert own["clinic"].target == "y"
    assert len(key) == 32
    assert left == {
        "name": "trial",
        "partition": "columns",
        "roles": {"clinic": "initiator", "lab": "partner"},
        "at": "site:clinic",
    }


def test_settings_that_are_given() -> None:
    given = {"at": "third-party", "partner_key": KEY, "bounds": {"lab": {"b": (0, 1)}}}
    _, own, key, left = over_columns(NOTHING, BOTH, given)
    assert key == KEY and left["at"] == "third-party"
    assert own["lab"].bounds == {"b": (0, 1)} and own["clinic"].bounds == {}
    roles = {"lab": "partner", "clinic": "initiator"}
    assert over_columns(NOTHING, BOTH, {"roles": roles})[3]["roles"] == roles
    assert over_columns(NOTHING, BOTH, {})[2] != over_columns(NOTHING, BOTH, {})[2]


WRONG: dict[str, tuple[dict[str, Columns], dict[str, Any], str]] = {
    "a site without columns": ({"clinic": CLINIC}, {}, "name different sites"),
    "columns of a stranger": ({**BOTH, "spa": LAB}, {}, "name different sites"),
    "no id": ({**BOTH, "lab": Columns(features=["b"])}, {}, "site 'lab' name no id"),
    "no target": ({"clinic": LAB, "lab": LAB}, {}, "0 sites have a target"),
    "two targets": ({"clinic": CLINIC, "lab": CLINIC}, {}, "2 sites have a target"),
    "other roles": (BOTH, {"roles": {"clinic": "partner", "lab": "initiator"}}, "contradict"),
    "some roles": (BOTH, {"roles": {"clinic": "initiator"}}, "contradict"),
    "at a stranger": (BOTH, {"at": "site:spa"}, "at is 'site:spa'"),
    "at a bare name": (BOTH, {"at": "clinic"}, "at is 'clinic'"),
    "bounds of a stranger": (BOTH, {"bounds": {"spa": {"b": (0, 1)}}}, "bounds name 'spa'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_go_together(name: str) -> None:
    columns, settings, says = WRONG[name]
    with pytest.raises(StudyError, match=says):
        over_columns(NOTHING, columns, settings)


def test_one_site_is_no_federation_over_columns() -> None:
    with pytest.raises(StudyError, match="at least two sites"):
        over_columns({"clinic": None}, {"clinic": CLINIC}, {})


@pytest.mark.parametrize("limits", [(1.0, 0.0), (0.0, 0.0), (0.0, np.inf), (np.nan, 1.0)])
def test_bounds_that_are_none(limits: tuple[float, float]) -> None:
    with pytest.raises(ParameterError, match="bounds of b"):
        over_columns(NOTHING, BOTH, {"bounds": {"lab": {"b": limits}}})


def test_methods_for_the_other_partition() -> None:
    made = tables(sites=("clinic", "lab"))
    with pytest.raises(StudyError, match="'mean-and-sd' is for sites that share columns"):
        federation(made).run(MeanAndSD(), seed=1)
    over_rows = Federation.local(made, columns=Columns(features=["a"], id="id"))
    with pytest.raises(StudyError, match="'assistance-test' is for sites that share rows"):
        over_rows.run(METHOD, seed=1)


def test_over_rows_takes_no_settings_of_columns() -> None:
    with pytest.raises((ConsilienceError, TypeError), match="partner_key"):
        Federation.local({"a": {"x": [1.0]}}, columns=Columns(features=["x"]), partner_key=KEY)


def test_a_site_that_has_not_its_columns_is_named() -> None:
    made = tables(sites=("clinic", "lab"))
    columns = columns_of(made)
    columns["lab"] = Columns(features=["lab_0", "gone"], id="id")
    fed = federation(made, columns=columns)
    with pytest.raises(QuorumError, match="lab refused: a column: it is not in") as caught:
        METHOD.run(fed, seed=1)
    # Names of a partner's columns are its own, also in a refusal.
    assert "gone" not in str(caught.value)
    assert "'gone' is not in" in str(fed.log("lab"))


@pytest.mark.parametrize("fault", ["missing", "text", "infinite", "bounds"])
def test_a_table_that_does_not_fit_is_said_without_names(fault: str) -> None:
    made = tables(sites=("clinic", "lab"))
    cells = [str(v) for v in made["lab"]["lab_1"]]
    cells[7] = {"missing": "", "text": "canary-7", "infinite": "inf"}.get(fault, cells[7])
    made["lab"]["lab_1"] = np.array(cells)
    settings = {"bounds": {"lab": {"lab_x": (0, 1)}}} if fault == "bounds" else {}
    fed = federation(made, **settings)
    with pytest.raises(QuorumError, match="lab refused: ") as caught:
        METHOD.run(fed, seed=1)
    assert "lab_" not in str(caught.value) and "canary" not in str(caught.value)
    assert "lab_" in str(fed.log("lab"))


def test_own_categories_and_preparation() -> None:
    """Each site codes, fills and scales its own columns; nobody hears of the levels."""
    made = tables(sites=("clinic", "lab"))
    kind = np.array(["red", "green", "blue"])[np.arange(120) % 3]
    made["lab"] = {**made["lab"], "kind": kind}
    made["lab"]["lab_0"] = np.where(np.arange(120) % 10 == 0, np.nan, made["lab"]["lab_0"])
    columns = columns_of(made)
    columns["lab"] = Columns(
        features=["lab_0", "lab_1", "kind"], id="id", levels={"kind": ["blue", "green", "red"]}
    )
    fed = federation(
        made,
        columns=columns,
        preparation=Preparation(
            missing="aggregated-mean", categorical="treatment", standardize="site"
        ),
    )
    run = METHOD.run(fed, seed=1)
    assert run.result.n_records == 120
    assert run.result.n_columns == {"lab": 4}
    said = " ".join(str(line) for line in run.transcript) + run.result.summary()
    assert not any(word in said for word in ("kind", "green", "lab_0"))


def test_values_outside_the_declared_levels_stop_the_run_without_names() -> None:
    made = tables(sites=("clinic", "lab"))
    made["lab"] = {**made["lab"], "kind": np.array(["red", "green", "blue"])[np.arange(120) % 3]}
    columns = columns_of(made)
    columns["lab"] = Columns(features=["lab_0", "kind"], id="id", levels={"kind": ["blue", "red"]})
    fed = federation(made, columns=columns, preparation=Preparation(categorical="onehot"))
    with pytest.raises(QuorumError, match="outside its declared levels") as caught:
        METHOD.run(fed, seed=1)
    assert "kind" not in str(caught.value) and "green" not in str(caught.value)
    assert "kind" in str(fed.log("lab"))


@pytest.mark.parametrize("at", ["site:clinic", "site:lab", "third-party"])
def test_where_the_coordinator_runs_changes_no_result(at: str) -> None:
    made = tables(sites=("clinic", "lab"))
    plain = METHOD.run(federation(made), seed=1)
    run = METHOD.run(federation(made, at=at), seed=1)
    assert run.result.to_files() == plain.result.to_files()
    assert run.info.settings["at"] == at


def test_without_consent_to_values_for_each_record() -> None:
    fed = federation(tables(sites=("clinic", "lab")), policy=policy(per_record=False))
    with pytest.raises(QuorumError, match="no partner sent a sketch"):
        METHOD.run(fed, seed=1)

"""Two ordinary runs on one table, and the difference of what they tell.

The rows of the second one are not quite those of the first: a column more has missing values, or
the table was corrected between them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation, Preparation
from consilience.engines.federation import Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError, QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import get_method
from consilience.sites.loaders import memory_site
from consilience.sites.policy import Policy
from consilience.sites.row_history import row_content
from consilience.sites.site_store import MemoryStore
from consilience.sites.source import read_source
from consilience.sites.study import Study
from tests.granted import granted

FEATURES = ("age", "pressure", "rate")
LEAST = 10
COMPLETE = Preparation(missing="complete-rows")


def table(n: int = 300, lacking: tuple[int, ...] = (17, 203)) -> pd.DataFrame:
    """People, of whom some have no value in the column ``scan``."""
    rng = np.random.default_rng(3)
    found = pd.DataFrame({name: rng.normal(50, 9, n).round(1) for name in FEATURES})
    found["scan"] = rng.normal(size=n)
    found.loc[list(lacking), "scan"] = np.nan
    return found


class Clinic:
    """One site through several studies, whose table may change."""

    def __init__(self, policy: str | Policy = "strict") -> None:
        self.policy, self.home = policy, MemoryStore()

    def run(self, source: pd.DataFrame, features: tuple[str, ...], **roles: Any) -> Run:
        """Ask for mean and standard deviation of complete rows."""
        site = memory_site("clinic", source, self.policy)
        site.home = self.home
        federation = Federation(
            LocalEngine([site]), Columns(features=features, **roles), COMPLETE, quorum=1
        )
        return MeanAndSD().run(federation, seed=1)

    def log(self) -> str:
        return " ".join(str(line.get("said", "")) for line in self.home.read_log())


def totals(run: Run) -> tuple[int, np.ndarray]:
    """Rows and sums of the first three columns."""
    n = int(run.result.n)
    return n, n * run.result.mean[:3]


def test_two_sets_of_columns_tell_no_two_people() -> None:
    """Sums with and without a column that two people lack differed by these two.

    *Control*: where no record is protected they still do.
    """
    people = table()
    two = people.loc[[17, 203], list(FEATURES)].sum().to_numpy()
    for policy, n_missing in (("simulation", 2), ("strict", LEAST)):
        clinic = Clinic(policy)
        first, all_sums = totals(clinic.run(people, FEATURES))
        second, sums = totals(clinic.run(people, (*FEATURES, "scan")))
        assert first == 300
        if policy == "simulation":
            assert first - second == n_missing
            np.testing.assert_allclose(all_sums - sums, two, rtol=1e-9)
        else:
            assert first - second == 300 // 4 + n_missing
            assert "rows are not used" in clinic.log()
            # It is answered, and the same way again.
            again = totals(clinic.run(people, (*FEATURES, "scan")))
            assert again[0] == second
            np.testing.assert_array_equal(again[1], sums)


@pytest.mark.parametrize("order", ["fewer rows first", "more rows first"])
def test_a_corrected_table_tells_nobody(order: str) -> None:
    """One person corrected, one added, one gone, rows in another order, as another file."""
    before = table(lacking=())
    after = before.copy()
    after.loc[5, "age"] += 1.0
    after = pd.concat([after.drop(index=44), after.iloc[[9]] + 1.0])
    after = after.sample(frac=1.0, random_state=2).astype({"age": str})
    tables = [before, after] if order == "more rows first" else [after, before]
    clinic = Clinic()
    told = [totals(clinic.run(one, FEATURES)) for one in tables]
    one, other = (set(map(tuple, t[list(FEATURES)].astype(float).to_numpy())) for t in tables)
    assert told[0][0] == 300
    lost = told[0][0] - told[1][0]
    # Two rows are not there any more, nobody knows of which part.
    assert lost == 300 // 4 + LEAST + 1, "a quarter and ten, and of those who are gone one"
    assert len(one - other) < LEAST


def test_people_of_a_long_table_are_known_by_all_their_rows() -> None:
    """Another value at one time makes another person; another order of rows does not."""
    visits = pd.DataFrame(
        {"person": ["a", "b", "a", "c", "b"], "time": [1, 1, 2, 1, 2], "x": [1.0, 2, 3, 4, 5]}
    )

    def people(rows: pd.DataFrame) -> list[int]:
        return [int(n) for n in row_content(read_source(rows), tuple(rows), "person")]

    before = people(visits)
    assert len(set(before)) == 3
    assert people(visits.iloc[[0, 4, 3, 2, 1]]) == [before[0], before[1], before[2]]
    later = people(visits.assign(x=[1.0, 2, 9, 4, 5]))
    assert later[0] != before[0] and later[1:] == before[1:]
    assert people(visits.iloc[:4])[1] != before[1], "a time less"


def test_a_column_that_is_gone_is_said() -> None:
    clinic = Clinic()
    clinic.run(table(), FEATURES)
    clinic.run(table().assign(more=1.0), FEATURES)
    with pytest.raises(QuorumError, match="lacks a column that it had in earlier runs"):
        clinic.run(table().drop(columns="scan"), FEATURES)


def test_where_no_row_may_be_used_that_is_said() -> None:
    """Nine of nineteen lack a value: without one more the others are too few as well."""
    people = table(19, lacking=tuple(range(9)))
    people[list(FEATURES)] = np.c_[np.arange(19), np.arange(19) * 5 % 19, np.arange(19) * 7 % 19]
    clinic = Clinic()
    assert totals(clinic.run(people, FEATURES))[0] == 19
    with pytest.raises(QuorumError, match="differ from those of earlier runs by fewer than this"):
        clinic.run(people, (*FEATURES, "scan"))
    assert totals(clinic.run(people, FEATURES))[0] == 19


def test_many_missing_rows_cost_few_others() -> None:
    """Some of those who stay out have no gap; where models of others are granted none of them."""
    people = table(lacking=tuple(range(0, 300, 3)))
    complete = people.dropna()
    rows = {}
    for policy in (Policy(), Policy(foreign_models=True)):
        clinic = Clinic(policy)
        clinic.run(people, FEATURES)
        n, sums = totals(clinic.run(people, (*FEATURES, "scan")))
        rows[policy.foreign_models] = n
    assert len(complete) - 300 // 4 <= rows[False] < len(complete) == rows[True]
    np.testing.assert_allclose(sums, complete[list(FEATURES)].sum(), rtol=1e-12)


# ----------------------------------------------------------------------------- approved studies


@pytest.mark.parametrize(
    ("method", "parameters", "others"),
    [
        ("ensemble-clustering", {"n_clusters": 2, "stability_pairs": 1}, {"n_init": 3}),
        ("reference-averaging", {"estimator": "ridge"}, {"estimator": "lasso(alpha=0.001)"}),
    ],
)
def test_an_approval_is_of_the_parameters_too(
    method: str, parameters: dict[str, Any], others: dict[str, Any]
) -> None:
    """Who names the approved study and asks with other parameters is refused."""
    rows = table(lacking=()).assign(scan=lambda t: t["age"] + t["scan"])
    study = Study.from_settings(
        {
            "name": "approved",
            "method": method,
            "seed": 1,
            "parameters": parameters,
            "data": {"features": list(FEATURES), "target": "scan"},
            "sites": {"names": ["east", "west"]},
        }
    )
    policy = Policy(preset="consortium", approved_studies=(study.hash(),))
    federation = Federation.local(
        {"east": rows[:150], "west": rows[150:]}, columns=study.columns, policy=granted(policy)
    )
    federation = dataclasses.replace(
        federation, study=study.hash(), study_text=study.canonical(), quorum=2
    )
    made = get_method(method)
    made.from_parameters(parameters).run(federation, seed=1)
    with pytest.raises(ConsilienceError, match="not what the approved study says"):
        made.from_parameters(parameters | others).run(federation, seed=1)

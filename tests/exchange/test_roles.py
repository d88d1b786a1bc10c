"""A method says which roles it uses; what stands in columns of the others changes no byte."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from consilience.collaborators.protocol import MetaClustering
from consilience.engines.federation import Federation
from consilience.exceptions import ConsilienceError
from consilience.protocol import BUILT_IN
from consilience.protocol.method import ROLES, Columns, Method, SiteData, get_method
from consilience.sites.outputs import READING
from consilience.testing.fakes import FakeEngine, members, scripted, with_data, with_fixed_secrets
from consilience.testing.recalling import SEED
from tests.exchange.cases import CASES
from tests.granted import GRANTED

OVER_ROWS = sorted(
    name
    for name, case in CASES.items()
    if case.method.partition == "rows" and type(case.method).roles != ROLES
)


def odd(data: SiteData, roles: Collection[str]) -> SiteData:
    """Gaps, numbers below 0, empty names and states that nobody declared, in these roles."""
    n = data.n_rows
    weight = np.where(np.arange(n) % 3 == 0, np.nan, -1.0 - np.arange(n))
    names = np.where(np.arange(n) % 2 == 0, "", [f"nobody-{i}" for i in range(n)])
    columns: dict[str, dict[str, Any]] = {
        "target": {"target": weight, "target_name": "odd"},
        "agent": {"agent": names},
        "entity": {"entity": names, "entity_name": "odd"},
        "weight": {"weight": weight},
        "cluster": {"cluster": names},
        "offset": {"offset": weight},
        "sequence": {"sequence": np.full((n, 2), -1), "sequence_names": ("odd", "odder")},
    }
    changes: dict[str, Any] = {}
    for role in roles:
        changes |= columns[role]
    return dataclasses.replace(data, **changes)


def unread(data: SiteData, roles: Collection[str]) -> SiteData:
    changes: dict[str, Any] = dict.fromkeys(roles)
    if "sequence" in roles:
        changes["sequence_names"] = ()
    return dataclasses.replace(data, **changes)


def replies(method: Method, federation: Federation, change: Callable[..., SiteData]) -> Any:
    """What the sites say, byte for byte, with this change of their rows."""
    for i, name in enumerate(members(federation)):
        federation = with_data(federation, name, change)
        with_fixed_secrets(members(federation)[name], i)
    made = scripted(federation)
    method.run(made, seed=SEED, run_id="roles")
    return dict(cast(FakeEngine, made.engine).replies)


@pytest.mark.parametrize("name", OVER_ROWS)
def test_roles_without_use_change_nothing(name: str) -> None:
    case = CASES[name]
    unused = [role for role in ROLES if role not in type(case.method).roles]
    plain, other = (
        replies(case.method, case.factory(), partial(change, roles=unused))
        for change in (unread, odd)
    )
    assert plain == other


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("reference-averaging", "weight"),
        ("meta-clustering", "target"),
        ("ensemble-clustering of sequences", "sequence"),
        ("latent-class-regression", "entity"),
        ("federated-pca", "entity"),
        ("federated-sparse-qda", "entity"),
        ("sparse-qda", "entity"),
    ],
)
def test_roles_in_use_change_something(name: str, role: str) -> None:
    """Control: the same cells in a role that is used are seen."""
    case = CASES[name]
    assert role in type(case.method).roles
    plain = replies(case.method, case.factory(), lambda data: data)
    with contextlib.suppress(ConsilienceError):  # a refusal shows that they are seen, too
        assert replies(case.method, case.factory(), partial(odd, roles=[role])) != plain


def test_a_weight_without_use_is_not_read_from_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps and numbers below 0 in it stop nothing. *Control*: where it is read they do."""
    rng = np.random.default_rng(3)
    tables = {}
    for name in ("ash", "birch", "cedar"):
        x = rng.normal(size=(60, 2))
        tables[name] = {"x0": x[:, 0], "x1": x[:, 1], "y": x[:, 0] + rng.normal(size=60)}
        tables[name]["w"] = np.where(np.arange(60) % 2, np.nan, -1.0)
    columns = Columns(features=("x0", "x1"), target="y", weight="w")
    method = MetaClustering(candidates="linear", gain_folds=0, stability_runs=0)

    def rows_kept() -> int:
        made = Federation.local(tables, columns=columns, policy=GRANTED)
        told = members(made)["ash"].home.read_output(method.run(made, seed=1).info.run, READING)
        return int(json.loads(told)["rows_kept"])

    assert rows_kept() == 60
    monkeypatch.setattr(MetaClustering, "roles", ROLES)
    with pytest.raises(ConsilienceError, match="weights that are not positive"):
        rows_kept()


def test_the_page_names_the_roles_that_methods_use() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/study-file.md").read_text(encoding="utf-8")
    found = {}
    for line in page.partition("| method | roles it uses |")[2].partition("\n\n")[0].splitlines():
        methods, _, roles = line.strip("|").partition("|")
        for name in re.findall(r"`([\w-]+)`", methods):
            found[name] = set(re.findall(r"`([\w-]+)`", roles))
    kinds = (get_method(name) for name in BUILT_IN)
    assert found == {kind.name: set(kind.roles) for kind in kinds if kind.partition == "rows"}

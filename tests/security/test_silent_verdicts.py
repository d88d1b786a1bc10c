"""Nobody and a few people look the same: in what leaves, in what is refused, in how much is sent.

Every method over rows is run on tables that differ by a few people at one site. Where that changes
no figure that may be told, its replies are the same bytes; where it does, gaps, refusals, verdicts
and sizes are the same ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.methods.base import Columns, Method, SiteData
from consilience.methods.federated_pca import groups
from consilience.methods.meta_clustering import rows as views
from consilience.methods.phases import holdout
from consilience.numerics.random import stream
from consilience.sites.loaders import memory_site
from consilience.sites.own_columns import SiteColumns
from consilience.testing.fakes import FakeEngine, members, rows_of, scripted, with_fixed_secrets
from consilience.testing.record import SEED
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply
from tests.exchange.cases import CASES

Table = dict[str, list[str]]
Change = Callable[[Table], Table]
FEW = (1, 9)
ODD = "unheard of"
RARE = "hardly ever"
OVER_ROWS = [
    name
    for name, case in CASES.items()
    if case.method.partition == "rows" and not case.asynchronous
]
CODED = ("ensemble-clustering of sequences", "ensemble-clustering of categories")
OF_NUMBERS = [name for name in OVER_ROWS if name not in (*CODED, "class-sums")]
MATRICES = ("cluster-count", "matrix-completion")
FITTED = [
    *MATRICES,
    "ensemble-clustering",
    "ensemble-clustering by held-out entries",
    "ensemble-clustering of categories",
    "latent-class-regression",
    "latent-class-regression of some in each round",
    "sparse-qda",
]
"""Methods that fit whatever columns there are: any row moves their classes and what is chosen."""
KEEPING = [
    "cluster-count",
    "ensemble-clustering of sequences",
    "federated-pca with gaps",
    "matrix-completion",
]
WITH_LEVELS = [
    *CODED,
    "community-bayes",
    "federated-community-bayes",
    "federated-community-bayes exact",
    "federated-sparse-qda",
    "federated-sparse-qda by blocks",
    "sparse-qda",
]


@pytest.fixture(autouse=True)
def _one_deal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal rows by their place: a table with one more is dealt anew, which tells nothing of it."""

    def uniform(data: SiteData, *label: str | int) -> Any:
        return stream(0, *label).random(1000)[data.rows]

    monkeypatch.setattr(holdout, "_secret", lambda data: "5e" * 32)
    monkeypatch.setattr(holdout, "uniform", uniform)
    monkeypatch.setattr(views, "uniform", uniform)
    monkeypatch.setattr(groups, "_seed", lambda data, site: 0)


# --------------------------------------------------------------------------- federations of tables


def named(columns: Columns, data: SiteData, roles: tuple[str, ...]) -> Columns:
    """Roles with names for all columns that a site has."""
    there = {r: r for r in roles if getattr(data, r) is not None}
    return dataclasses.replace(
        columns, **{r: name for r, name in there.items() if getattr(columns, r) is None}
    )


def table_of(data: SiteData, columns: Columns) -> Table:
    """Rows of a site as texts of a table."""
    found: Table = {}
    for name in columns.features:
        levels = columns.levels.get(name)
        if levels is None:
            cells = data.features[:, data.feature_names.index(name)]
            found[name] = ["" if np.isnan(cell) else repr(float(cell)) for cell in cells]
        else:
            places = [data.feature_names.index(f"{name}={level}") for level in levels]
            found[name] = [levels[i] for i in data.features[:, places].argmax(axis=1)]
    for role in ("target", "id", "agent", "entity", "weight"):
        name, cells = getattr(columns, role), getattr(data, role)
        if name is not None:
            found[name] = [c if isinstance(c, str) else repr(float(c)) for c in cells.tolist()]
    states = (*columns.levels.get(columns.sequence[0], ()), "") if columns.sequence else ()
    for j, name in enumerate(columns.sequence):
        assert data.sequence is not None
        found[name] = [states[state] for state in data.sequence[:, j]]
    return found


def listed(columns: Columns) -> SiteColumns:
    """A site's own list: what a study names, as what it names it."""
    offered: dict[str, Any] = dict.fromkeys(columns.used(), "number")
    offered |= {name: "id" for name in (columns.id, columns.agent, columns.entity) if name}
    offered |= columns.levels
    if columns.sequence:
        offered |= dict.fromkeys(columns.sequence, columns.levels[columns.sequence[0]])
    return SiteColumns(offered=offered)


def told(
    method: Method, case: Federation, here: Change, there: Change = dict, *, own_list: bool = False
) -> dict[Any, Reply]:
    """What the sites of a case answer over tables that were changed, the first site's by `here`."""
    columns = case.columns
    there_now = tuple(name for name in columns.features if name != "more")
    rows = rows_of(
        dataclasses.replace(case, columns=dataclasses.replace(columns, features=there_now))
    )
    own = listed(columns) if own_list else None
    sites = []
    for i, (name, site) in enumerate(members(case).items()):
        plain = dataclasses.replace(columns, features=columns_of(rows[name], columns))
        table = (there if i else here)(table_of(rows[name], plain))
        sites.append(with_fixed_secrets(memory_site(name, table, site.policy, own=own), i))
    federation = scripted(dataclasses.replace(case, engine=LocalEngine(sites)))
    with contextlib.suppress(ConsilienceError):
        method.run(federation, seed=SEED, run_id="one")
    engine = federation.engine
    assert isinstance(engine, FakeEngine)
    return {key: Reply.from_bytes(raw) for key, raw in engine.replies.items()}


def columns_of(data: SiteData, columns: Columns) -> tuple[str, ...]:
    """Features of the study that the site has; others are put in by a change."""
    there = {name.partition("=")[0] for name in data.feature_names}
    return tuple(name for name in columns.features if name in there)


def ready(name: str) -> tuple[Method, Federation]:
    """A case whose columns all have names."""
    case = CASES[name].factory()
    roles = ("id",) if name in MATRICES else ("id", "entity")
    columns = named(case.columns, next(iter(rows_of(case).values())), roles)
    return CASES[name].method, dataclasses.replace(case, columns=columns)


# --------------------------------------------------------------------------- the same bytes


def more_rows(column: str, cell: str, few: int) -> Change:
    """Put rows at the end that are like others but for one cell."""

    def change(table: Table) -> Table:
        made = {name: [*cells, *cells[:few]] for name, cells in table.items()}
        made[column][len(table[column]) :] = [cell] * few
        return made

    return change


def other_cells(column: str, cell: str, few: int) -> Change:
    """Put something else into some cells of a column."""

    def change(table: Table) -> Table:
        return {**table, column: [cell] * few + table[column][few:]}

    return change


def odd_rows(case: Federation) -> list[tuple[str, str]]:
    """Columns, and cells for which a row is left out."""
    columns = case.columns
    kept = case.preparation.missing == "keep"
    found = [] if kept else [(name, cell) for name in columns.features[:1] for cell in (ODD, "")]
    if columns.target is not None:
        found += [(columns.target, ODD), (columns.target, "")]
    return found + [(name, "") for name in (columns.agent, columns.entity) if name is not None]


@pytest.mark.parametrize("name", OVER_ROWS)
def test_odd_rows_are_as_if_they_were_not_there(name: str) -> None:
    """A text among numbers, a level that nobody declared, an empty cell: in no row, or in a few."""
    method, case = ready(name)
    before = told(method, case, dict)
    assert all(reply.status == "reply" for reply in before.values())
    assert before
    for column, cell in odd_rows(case):
        for few in FEW:
            assert told(method, case, more_rows(column, cell, few)) == before, (column, cell, few)


@pytest.mark.parametrize("name", KEEPING)
def test_odd_cells_are_as_if_they_were_empty(name: str) -> None:
    method, case = ready(name)
    for column in (*case.columns.features[:1], *case.columns.sequence[:2]):
        for few in FEW:
            empty = told(method, case, other_cells(column, "", few))
            assert all(reply.status == "reply" for reply in empty.values())
            assert told(method, case, other_cells(column, ODD, few)) == empty, (column, few)


# --------------------------------------------------------------------------- the same pattern


def pattern(value: Any) -> Any:
    """Everything about a reply but the numbers in it."""
    if isinstance(value, Released):
        return pattern(value.value)
    if dataclasses.is_dataclass(value):
        return [(f.name, pattern(getattr(value, f.name))) for f in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return [pattern(item) for item in value]
    if isinstance(value, dict):
        return {key: pattern(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return (value.shape, np.isnan(value).tolist())
    if isinstance(value, np.ndarray):
        return (value.shape, (value == 0).tolist())
    if isinstance(value, float):
        return np.isnan(value)
    if isinstance(value, int):
        return value == 0
    return value


def patterns(replies: dict[Any, Reply], *, fitted: bool = False) -> dict[Any, Any]:
    found = {}
    for key, reply in replies.items():
        if fitted:
            found[key] = (reply.step, reply.status, reply.reason)
            continue
        said = pattern(decode_message(reply.message)) if reply.message else reply.reason
        verdicts = [{**v, "epsilon": 0} for v in reply.verdicts]
        found[key] = (reply.step, reply.status, len(reply.message), verdicts, said)
    return found


def with_column(cells: Callable[[int], list[str]]) -> Change:
    def change(table: Table) -> Table:
        return {**table, "more": cells(len(next(iter(table.values()))))}

    return change


def rarely_one(few: int) -> Callable[[int], list[str]]:
    return lambda n: ["1"] * few + ["0"] * (n - few)


def rarely_another(few: int) -> Callable[[int], list[str]]:
    return lambda n: [repr(1.5 + i / 7) for i in range(few)] + ["2.5"] * (n - few)


def rarely_empty(few: int) -> Callable[[int], list[str]]:
    return lambda n: [""] * few + usual(n)[few:]


def usual(n: int) -> list[str]:
    return [repr(float(x)) for x in np.random.default_rng(5).normal(size=n).round(3)]


KINDS = {"0/1": rarely_one, "one value": rarely_another, "gaps": rarely_empty}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_column_in_which_a_few_differ_leaves_as_one_in_which_nobody_does(
    name: str, kind: str
) -> None:
    method, case = ready(name)
    features = (*case.columns.features, "more")
    case = dataclasses.replace(case, columns=dataclasses.replace(case.columns, features=features))
    if kind == "gaps" and case.preparation.missing == "refuse":
        rules = dataclasses.replace(case.preparation, missing="aggregated-mean")
        case = dataclasses.replace(case, preparation=rules)
    made = KINDS[kind]
    there = with_column(lambda n: usual(n) if kind != "0/1" else rarely_one(n // 2)(n))
    fitted = name in FITTED
    nobody = patterns(told(method, case, with_column(made(0)), there), fitted=fitted)
    assert nobody
    for few in FEW:
        found = patterns(told(method, case, with_column(made(few)), there), fitted=fitted)
        assert found == nobody, few


@pytest.mark.parametrize("own_list", [False, True])
@pytest.mark.parametrize("name", WITH_LEVELS)
def test_a_level_that_a_few_have_is_as_one_that_nobody_has(name: str, own_list: bool) -> None:
    method, case = ready(name)
    column, levels = next(iter(case.columns.levels.items()))
    columns = dataclasses.replace(
        case.columns, levels={**case.columns.levels, column: (*levels, RARE)}
    )
    case = dataclasses.replace(case, columns=columns)
    fitted = name in FITTED
    nobody = patterns(told(method, case, dict, own_list=own_list), fitted=fitted)
    assert nobody
    for few in FEW:
        found = told(method, case, other_cells(column, RARE, few), own_list=own_list)
        assert patterns(found, fitted=fitted) == nobody, few

"""What a site offers to studies: a list in its own file, which answers what is asked beyond it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.completion.federated_pca import FederatedPCA
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Method, Preparation, SiteData
from consilience.sites.loaders import file_site, memory_site
from consilience.sites.own_columns import SiteColumns, propose
from consilience.sites.prepare import Loaded, load_with_report
from consilience.sites.source import Source, read_source
from consilience.sites.study import SiteFile
from consilience.testing.recalling import record_of
from consilience.wire.envelope import Reply

RNG = np.random.default_rng(3)
N = 60
TABLE = pd.DataFrame(
    {
        "pid": np.arange(1000, 1000 + N),
        "name": [f"person {i}" for i in range(N)],
        "age": RNG.integers(20, 90, N),
        "dose": np.round(RNG.gamma(2.0, size=N), 1),
        "sex": ["f", "m"] * 27 + ["f"] * 6,
        "stage": [1] * 30 + [2] * 25 + [3] * 5,
        "empty": [None] * N,
        "seen": pd.date_range("2020-01-01", periods=N),
        "t1": ["home"] * 40 + ["ward"] * 20,
        "t2": ["home"] * 55 + ["ward"] * 5,
    }
)
OFFER: dict[str, Any] = {"*": "number", "pid": "id", "name": "none", "sex": ["f", "m"]}
OFFER |= {"stage": [1, 2, 3]}


def load(
    columns: Columns, table: pd.DataFrame = TABLE, *, few: int = 10, **preparation: Any
) -> Loaded:
    own = SiteColumns(offered=OFFER)
    rules = Preparation(**preparation)
    return load_with_report(read_source(table), columns, rules, own, min_records=few)


def test_the_proposal() -> None:
    found = propose(read_source(TABLE), SiteColumns(rename={"years": "age"}), 10)
    assert found.offered == {
        "years": "number",
        "dose": "number",
        "sex": ("f", "m"),
        "stage": (1, 2),
        "t1": ("home", "ward"),
        "t2": ("home", "ward"),  # 20 rows have it in another column of the kind
    }
    assert set(found.left_out) == {"pid", "name", "empty", "seen"}
    assert found.rare == {"stage": 1}


@pytest.mark.parametrize("n_apart", [0, 1, 9, 10, 60])
def test_a_column_that_hardly_differs_from_an_earlier_one_is_left_out(n_apart: int) -> None:
    """Sums over one less sums over the other would be sums over the few that differ."""
    rng = np.random.default_rng(5)
    n = 400
    apart = rng.permutation(n)[:n_apart]
    table = pd.DataFrame({"age": rng.normal(60, 9, n).round(1)})
    table["smoker"] = (rng.random(n) < 0.4).astype(int)
    table["other"] = (rng.random(n) < 0.4).astype(int)
    table["kind"] = rng.choice(["a", "b", "c"], n)
    for name in ("age", "smoker", "kind"):
        table[f"{name}2"] = table[name]
    table.loc[apart, "age2"] += 1
    table.loc[apart, "smoker2"] = 1 - table["smoker"][apart]
    table["never"] = 1 - table["smoker2"]
    table.loc[apart, "kind2"] = "d"
    found = propose(read_source(table), SiteColumns(), 10)
    few = n_apart < 10
    gone = {"age2", "smoker2", "never"} if few else {"never"}
    assert set(found.left_out) == gone, "of texts there are many in a sequence: a remark"
    assert found.left_out["never"].startswith(f"as smoker{'2' * (not few)} in all but fewer than")
    gone_by_level = [int((table["kind"][apart] == level).sum()) for level in "abc"]
    assert set(found.alike) == ({"kind2"} if min(gone_by_level) < 10 else set())
    remark = "# as kind in all but fewer than 10 rows: unless they are times"
    assert (remark in found.to_toml()) is bool(found.alike)


def test_the_proposal_is_lines_of_a_site_file(tmp_path: Path) -> None:
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\nhome = "h"\n[source]\npath = "t.csv"\n[columns]\nrename = {}\n')
    with pytest.raises(StudyError, match="'consilience site offer SITE_TOML' proposes"):
        file_site(SiteFile.load(file))
    lines = propose(read_source(TABLE), SiteColumns(), 10).to_toml()
    file.write_text(file.read_text() + lines)
    site = file_site(SiteFile.load(file))
    loaded = site._loader(Columns(features=("age", "stage")), Preparation())
    assert isinstance(loaded, Loaded)
    assert loaded.data.n_rows == N - 5  # those of the rare stage take no part
    assert "# pid" in lines and "# without 1 rarer value" in lines


def test_a_misspelt_column_is_told_at_the_site_alone(tmp_path: Path) -> None:
    own = SiteColumns(offered={"age": "number", "creatinine": "number", "secret": "none"})
    with pytest.raises(DataError, match="did you mean 'creatinine', which is on offer") as told:
        own.check_offer(Columns(features=("age", "creatinin")), Preparation())
    assert told.value.public == "column creatinin: the site does not offer it"
    for name in ("secrets", "zzz"):
        with pytest.raises(DataError, match=r"add it to \[columns.offered\]"):
            own.check_offer(Columns(features=(name,)), Preparation())


@pytest.mark.parametrize(
    ("columns", "preparation", "rule"),
    [
        (Columns(features=("age", "name")), {}, "column name: the site does not offer it"),
        (Columns(features=("pid",)), {}, "column pid: the site offers it as an id only"),
        (Columns(features=("age",), target="pid"), {}, "column pid: .* as an id only"),
        (Columns(features=("age",), entity="stage"), {}, "column stage: .* not offer it as an id"),
        (Columns(features=("sex",)), {}, "column sex: .* by its levels, not as a number: declare"),
        (
            Columns(features=("age",)),
            {"indicators": {"age": (44,)}},
            "column age: the site does not offer its values as levels",
        ),
        (
            Columns(features=("stage",)),
            {"indicators": {"stage": (7,)}},
            "column stage: an indicator is of a value that the site does not offer",
        ),
        (Columns(target="age", levels={"age": ("1", "2")}), {}, "column age: .* as levels"),
    ],
)
def test_whatever_is_not_on_offer_is_refused_whatever_the_table_holds(
    columns: Columns, preparation: dict[str, Any], rule: str
) -> None:
    said = set()
    for table in (TABLE, TABLE.iloc[:30], TABLE[["age"]]):
        with pytest.raises(DataError) as caught:
            load(columns, table, **preparation)
        said.add(caught.value.public)
    assert len(said) == 1
    assert re.fullmatch(f".*{rule}.*", said.pop())


def test_what_is_on_offer_may_be_named() -> None:
    columns = Columns(features=("age", "sex"), target="stage", id="pid", levels={"sex": ("f", "m")})
    data = load(columns, categorical="treatment").data
    assert data.feature_names == ("age", "sex=m") and data.n_rows == N
    one = Columns(features=("stage",))
    assert load(one, indicators={"stage": (1, 2)}).data.features.sum() == 55


def told(count: int, columns: Columns, **preparation: Any) -> Any:
    """What a study is told of a table in which `count` rows have something odd."""
    table = TABLE.copy().astype({"stage": str})
    table.loc[table.index < count, "stage"] = "unknown"
    table.loc[table.index < count, "dose"] = np.nan
    try:
        data = load(columns, table, **preparation).data
    except DataError as error:
        return error.public
    return data.feature_names, data.foreign_levels


OFFERED = {"stage": ("1", "2"), "sex": ("f", "m")}
STAGED = Columns(features=("age", "stage"), levels={"stage": ("1", "2", "3")})


@pytest.mark.parametrize(
    ("columns", "preparation"),
    [
        (Columns(features=("age", "stage")), {}),  # text where the study wants numbers
        (STAGED, {"categorical": "treatment"}),  # a level that the study did not declare
        (Columns(features=("age", "dose")), {}),  # no value, which the study refuses
        (Columns(features=("age", "dose")), {"missing": "complete-rows"}),
        (Columns(features=("age",), target="dose"), {}),
    ],
)
def test_none_and_a_few_look_the_same(columns: Columns, preparation: dict[str, Any]) -> None:
    assert told(0, columns, **preparation) == told(1, columns, **preparation)
    assert told(0, columns, **preparation) == told(9, columns, **preparation)


@pytest.mark.parametrize("few", [1, 10])
def test_many_are_told(few: int) -> None:
    table = TABLE.astype({"stage": str})
    table.loc[: few - 1, "stage"] = "unknown"
    own = SiteColumns()  # a site that has no list, under another preset
    columns = Columns(features=("age", "stage"))
    with pytest.raises(DataError, match="holds text"):
        load_with_report(read_source(table), columns, Preparation(), own, min_records=few)
    staged = load_with_report(
        read_source(table), STAGED, Preparation(categorical="onehot"), own, min_records=few
    )
    assert staged.data.foreign_levels == ("stage",)


LEVELS = ("1", "2", "3")


@pytest.mark.parametrize("rows", [0, 1, 9, 25])
@pytest.mark.parametrize("declared", [LEVELS[:2], LEVELS[1:], LEVELS])
def test_a_list_of_levels_answers_whatever_the_table_holds(
    declared: tuple[str, ...], rows: int
) -> None:
    """Else a study that leaves levels out would count, by yes and no, to `min_records`."""
    table = TABLE.assign(stage=np.where(TABLE.index < rows, 3, 1))
    columns = Columns(features=("age", "stage"), levels={"stage": declared})
    loaded = load(columns, table, categorical="treatment")
    undeclared = tuple(level for level in LEVELS if level not in declared)
    assert loaded.data.foreign_levels == ("stage",) * bool(undeclared)
    (stage,) = (column for column in loaded.report.columns if column.name == "stage")
    assert stage.foreign == undeclared


def replies_to(method: Method, odd: dict[str, Any]) -> dict[Any, Reply]:
    """All that leaves a site where six rows hold something odd, by round and site."""
    tables = {name: TABLE.astype({"stage": str, "dose": str}) for name in ("a", "b")}
    for column, what in odd.items():
        tables["a"].loc[:5, column] = what
    own = SiteColumns(offered={**OFFER, "stage": ["1", "2"]})
    columns = Columns(features=("age", "dose", "stage", "sex"), levels=OFFERED)
    rules = Preparation(categorical="treatment", missing="complete-rows")

    def federation() -> Federation:
        engine = LocalEngine([memory_site(name, tables[name], own=own) for name in tables])
        return Federation(engine, columns, rules)

    replies = record_of(method, federation).replies
    return {key: dataclasses.replace(Reply.from_bytes(d), run="") for key, d in replies.items()}


@pytest.mark.parametrize("method", [FederatedPCA(), MeanAndSD()])
@pytest.mark.parametrize(
    "odd", [{"stage": "unknown"}, {"dose": "text"}, {"dose": "inf"}, {"stage": "9", "dose": "x"}]
)
def test_what_is_odd_in_a_few_rows_leaves_as_if_it_were_not_there(
    method: Method, odd: dict[str, Any]
) -> None:
    """Byte for byte, in every message of the run."""
    assert replies_to(method, odd) == replies_to(method, dict.fromkeys(odd))


def of_person(who: int, table: pd.DataFrame) -> SiteData | str:
    """What a study learns that asks by an indicator whether somebody is in the table."""
    columns = Columns(features=("age", "pid"))
    rules = Preparation(indicators={"pid": (who,)})
    try:
        read = read_source(table)
        return load_with_report(read, columns, rules, SiteColumns(), min_records=10).data
    except DataError as error:
        return error.public


def test_no_indicator_tells_who_is_in_the_table() -> None:
    """Also where a site has no list: a value of none and one of few rows are refused alike."""
    answers = {of_person(who, TABLE) for who in (1000, 1030, 5)}
    assert answers == {"column pid: an indicator is of a value that fewer than 10 rows have"}


def test_few_rows_are_left_out_for_the_sites_own_eyes() -> None:
    table = TABLE.astype({"dose": float})
    table.loc[3:6, "dose"] = np.nan
    loaded = load(Columns(features=("age", "dose")), table)
    assert loaded.data.n_rows == N - 4
    assert loaded.report.dropped_by == {"dose": 4}
    odd = load(Columns(features=("stage", "age")), TABLE.replace({"stage": {3: 8}}))
    assert "Column stage: 5 values count as missing" in " ".join(odd.report.sentences())
    assert odd.data.n_rows == N - 5


@pytest.mark.parametrize("offer", ["numbers", 3, [], [1, 1], {"a": 1}, ["a", []], True])
def test_an_offer_that_is_none(offer: Any) -> None:
    with pytest.raises(ParameterError, match='"number", "id", "none" or a list'):
        SiteColumns(offered={"age": offer})


def test_a_site_file_with_features_of_its_own_offers_nothing_over_rows(tmp_path: Path) -> None:
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    file = tmp_path / "site.toml"
    own = json.dumps(["age"])
    file.write_text(
        f'name = "a"\nhome = "h"\n[source]\npath = "t.csv"\n[columns]\nfeatures = {own}\n'
    )
    with pytest.raises(DataError, match="the site does not offer it"):
        file_site(SiteFile.load(file))._loader(Columns(features=("age",)), Preparation())


def test_decimal_commas_are_numbers_on_offer_too(tmp_path: Path) -> None:
    text = "bmi;stage\n" + "".join(f"{18 + i % 23},{i % 10};{1 + i % 2}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(text + "NA;1\n")
    own = SiteColumns(missing_codes={"*": "NA"})
    for decimal, bmi in ((",", "number"), (".", None)):
        source = Source(path="t.csv", separator=";", decimal=decimal)
        offered = propose(read_source(source, tmp_path), own, 10).offered
        assert offered.get("bmi") == bmi
        assert offered["stage"] == (1, 2)


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([*range(18, 48), 999, 999], (999,)),
        ([*range(18, 48), 999], ()),  # one alone is an outlier, or a slip
        ([*range(18, 48), 888, 888, 999, 999, -9, -9], (-9, 888, 999)),
        ([*range(40), -9, -9], (-9,)),
        ([*range(-4, 40), -9, -9], ()),
        ([*range(20, 95), 99, 99], ()),  # an age
        ([*range(900, 990), 999, 999], ()),
        ([0, 1, 2, 3, 9, 9] * 9, ()),
        ([999.0] * 50, ()),
    ],
)
def test_codes_far_beyond_all_other_numbers_are_suspected(
    values: list[int], codes: tuple[int, ...]
) -> None:
    table = pd.DataFrame({"x": [*values, *[np.nan] * 3]})
    found = propose(read_source(table), SiteColumns(), 10)
    assert found.codes.get("x", ()) == codes
    assert ("# x: " in found.to_toml()) >= bool(codes)
    again = SiteColumns(missing_codes={"x": codes})
    assert not propose(read_source(table), again, 10).codes

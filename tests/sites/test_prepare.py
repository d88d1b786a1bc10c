from __future__ import annotations

import dataclasses
import json
import mmap
import traceback
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from consilience.exceptions import DataError, ParameterError, StudyError
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.sites.encoding import feature_names
from consilience.sites.own_columns import SiteColumns, Unit
from consilience.sites.prepare import Loaded, _as_block, load_with_report
from consilience.sites.source import read_source
from consilience.wire.moment_facts import Coded

CANARY = "CANARY7731"
REMEDY = '; missing = "complete-rows" in [preparation] would leave such rows out'

NAN = float("nan")


def loaded(
    table: dict[str, Any],
    columns: Columns,
    site: SiteColumns | None = None,
    partition: Any = "rows",
    **preparation: Any,
) -> Loaded:
    rules = Preparation(**preparation)
    return load_with_report(read_source(table), columns, rules, site, partition=partition)


def load(*table: Any, **options: Any) -> SiteData:
    return load_with_report(*table, **options).data


def features(table: dict[str, Any], *names: str, **options: Any) -> SiteData:
    return loaded(table, Columns(features=names or tuple(table)), **options).data


def refused(action: Callable[[], object], public: str, *words: str) -> None:
    """The action is refused with these words, without a canary, and with this public sentence."""
    with pytest.raises(DataError) as caught:
        action()
    error = caught.value
    for word in words:
        assert word in str(error)
    told = "".join(traceback.format_exception(error))
    messages = "\n".join(line for line in told.splitlines() if not line.startswith("    "))
    assert CANARY not in messages
    assert error.public == public


@pytest.mark.parametrize("order", ["abcd", "dcba", "ac", "bd", "adb", "c"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_columns_are_put_side_by_side_wherever_they_lie(order: str, layout: Any) -> None:
    values = np.array(np.random.default_rng(0).normal(size=(1300, 4)), order=layout)
    table = {name: values[:, j] for j, name in enumerate("abcd")}
    found = features(table, *order).features
    np.testing.assert_array_equal(found, values[:, ["abcd".index(name) for name in order]])


def test_columns_that_no_table_holds_together_are_read_one_by_one() -> None:
    # Any two columns are evenly apart, and two in memory of different kinds are terabytes apart.
    apart = [np.frombuffer(mmap.mmap(-1, 8 * 1300)), np.random.default_rng(0).normal(size=1300)]
    assert _as_block(apart) is None
    found = features(dict(zip("ab", apart, strict=True)), "a", "b").features
    np.testing.assert_array_equal(found, np.column_stack(apart))
    together = np.zeros((1300, 2))
    assert _as_block([together[:, 0], together[:, 1]]) is not None


# --- names and units


def test_rename_and_units() -> None:
    site = SiteColumns(rename={"weight": "lb"}, units={"weight": Unit(scale=0.5, offset=1.0)})
    data = features({"lb": [2.0, 4.0], "weight": ["x", "y"]}, "weight", site=site)
    assert data.feature_names == ("weight",)
    assert data.features.tolist() == [[2.0], [3.0]]


def test_recode() -> None:
    """Spellings of the site become the study's; the rows are known by what is in the table."""
    table = {"Geschlecht": ["w", "W", "m", "NA", "x"], "ill": [1, 2, 2, 1, 2]}
    columns = Columns(features=("sex", "ill"), levels={"sex": ("F", "M")})
    site = SiteColumns(
        rename={"sex": "Geschlecht"},
        recode={"sex": {"w": "F", "W": "F", "m": "M", "NA": "M"}, "ill": {"2.0": 0}},
        missing_codes={"sex": "NA"},
        offered={"sex": ["F", "M"], "ill": "number"},
    )
    found = loaded(table, columns, site, missing="complete-rows", categorical="onehot")
    assert found.data.features.T.tolist() == [[1, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert found.data.rows.tolist() == [0, 1, 2]
    assert found.data.content_hash == read_source(table).content_hash
    long, number = {name: cells * 5 for name, cells in table.items()}, Columns(features=("ill",))
    known = [
        load_with_report(read_source(long), number, Preparation(), own, min_records=9).everyone
        for own in (site, dataclasses.replace(site, recode={}))
    ]
    assert known[0] is not None and known[1] is not None
    assert np.array_equal(known[0](()).content(), known[1](()).content())
    for recode in ({"other": {"a": "b"}}, {"when": {"a": "b"}}):
        own = SiteColumns(recode=recode)
        with pytest.raises(StudyError, match=r"\[columns\] recode names '"):
            load(
                read_source({"ill": [1, 2], "when": [date(2020, 1, 1)] * 2}),
                Columns(features=("ill",)),
                Preparation(),
                own,
            )


def test_names_can_be_swapped() -> None:
    site = SiteColumns(rename={"a": "b", "b": "a"})
    assert features({"a": [1], "b": [2]}, "a", "b", site=site).features.tolist() == [[2.0, 1.0]]


def test_kept_cells_stay_empty_in_features_only() -> None:
    data = loaded(HOLES, Columns(features=("a", "b")), missing="keep").data
    assert data.n_rows == len(HOLES["a"])
    assert np.isnan(data.features).any()
    assert data.feature_names == ("a", "b")
    public = "column y: missing values, which the study refuses" + REMEDY
    refused(lambda: loaded(HOLES, Columns(features=("a",), target="y"), missing="keep"), public)


def test_missing_codes_come_before_units() -> None:
    site = SiteColumns(units={"a": {"scale": 10}}, missing_codes={"*": "?", "a": [-1, "NA"]})  # type: ignore[dict-item]
    data = features({"a": ["-1", "-1.0", "?", "NA", "2"]}, site=site, missing="aggregated-mean")
    np.testing.assert_array_equal(data.features[:, 0], [NAN, NAN, NAN, NAN, 20])


def test_codes_of_one_column_do_not_touch_another() -> None:
    site = SiteColumns(missing_codes={"a": 0})
    data = features({"a": [0, 1], "b": [0, 1]}, site=site, missing="complete-rows")
    assert data.features.tolist() == [[1.0, 1.0]]
    assert data.rows.tolist() == [1]


def test_unknown_column() -> None:
    def act() -> None:
        features({"thalac": [1], CANARY: [2]}, "thalach")

    refused(act, "column thalach: it is not in the site's table", "'thalach'", "'thalac'")
    site = SiteColumns(rename={"a": "alter"})
    refused(
        lambda: features({"Alter": [1]}, "a", site=site),
        "column a: it is not in the site's table",
        "as 'alter'",
        "closest name is 'Alter'",
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"units": {"aa": {"scale": 2}}}, "closest name is 'a'"),
        ({"missing_codes": {"aa": 1}}, "closest name is 'a'"),
        ({"units": {"c": {"scale": 2}}}, "does not use as a number"),
        ({"rename": {"a": "x", "c": "x"}}, "two names"),
        ({"units": {"a": {"scale": 0}}}, "scale"),
        ({"units": {"a": {"offset": float("inf")}}}, "offset"),
    ],
)
def test_bad_site_columns(settings: dict[str, Any], words: str) -> None:
    columns = Columns(features=("a", "c"), levels={"c": ("x", "y")})
    with pytest.raises((StudyError, ParameterError), match=words):
        loaded({"a": [1], "c": ["x"]}, columns, SiteColumns(**settings), categorical="onehot")


# --- numbers


def test_text_in_a_numeric_column() -> None:
    table = {"a": ["1", CANARY, "3", CANARY], "b": [1, 2, 3, 4]}
    refused(
        lambda: features(table),
        "column a: text where the study expects numbers; a category needs declared levels",
        "2 cells",
        "rows 2, 4",
        "missing_codes",
    )


@pytest.mark.parametrize("cells", [[1.0, np.inf], ["1", "-inf"], ["1", "1e999"], [1e308, 1e308]])
def test_infinite_values(cells: list[Any]) -> None:
    site = SiteColumns(units={"a": Unit(scale=10.0 if cells[0] == 1e308 else 1.0)})
    refused(lambda: features({"a": cells}, site=site), "column a: infinite values", "infinite")


def test_other_types() -> None:
    refused(
        lambda: features({"a": [date(2020, 1, 1)]}),
        "column a: its type is not a number",
        "date32",
    )
    refused(
        lambda: loaded({"a": [[1], [2]]}, Columns(id="a")),
        "column a: its type is neither text nor a number",
    )


def test_booleans_are_numbers() -> None:
    assert features({"a": [True, False]}).features.tolist() == [[1.0], [0.0]]


def test_constant_columns_are_kept_and_reported() -> None:
    got = loaded({"a": [1, 1], "b": [1, 2]}, Columns(features=("a", "b")))
    assert got.data.features.shape == (2, 2)
    assert got.report.constant == ("a",)


# --- missing


HOLES: dict[str, Any] = {
    "a": [1.0, None, 3.0, 4.0],
    "b": [1.0, 2.0, None, 4.0],
    "y": [0, 1, 1, None],
}


def test_refuse() -> None:
    refused(
        lambda: features(HOLES),
        "column a, b, y: missing values, which the study refuses" + REMEDY,
        "1 of 4 rows; row 2",
        "so do b, y",
    )


def test_complete_rows() -> None:
    got = loaded(HOLES, Columns(features=("a", "b"), target="y"), missing="complete-rows")
    assert got.data.rows.tolist() == [0]
    assert got.data.n_read == 4
    assert got.data.target is not None
    assert got.data.target.tolist() == [0.0]
    assert got.report.dropped_by == {"a": 1, "b": 1, "y": 1}
    assert got.report.dropped_rows.tolist() == [1, 2, 3]
    assert got.report.rows_read == 4
    assert got.report.rows_kept == 1


def test_complete_rows_looks_only_at_columns_of_the_study() -> None:
    assert features(HOLES, "a", missing="complete-rows").n_rows == 3


def test_no_complete_row() -> None:
    table = {"a": [1, None], "b": [None, 1]}
    refused(lambda: features(table, missing="complete-rows"), "no row is complete", "a, b")


def test_aggregated_mean_leaves_holes() -> None:
    data = features(HOLES, "a", "b", missing="aggregated-mean")
    np.testing.assert_array_equal(np.isnan(data.features), [[0, 0], [1, 0], [0, 1], [0, 0]])


def test_indicator() -> None:
    columns = Columns(features=("a", "c", "b"), levels={"c": ("x", "y")})
    table = {**HOLES, "c": ["x", "y", None, "x"]}
    data = loaded(table, columns, missing="indicator", categorical="treatment").data
    assert data.feature_names == ("a", "c=y", "b", "a_missing", "b_missing")
    np.testing.assert_array_equal(data.features[:, 3:], [[0, 0], [1, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(data.features[:, 1], [0, 1, NAN, 0])


@pytest.mark.parametrize("cells", [0, 8, 100, 1 << 25])
def test_columns_put_aside_by_and_by_are_the_same(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.sites.prepare._ASIDE", cells)
    monkeypatch.setattr("consilience.sites.prepare._TURNED", 3)
    x, y = np.arange(8.0), np.array([1.5, NAN, 2, 3, NAN, 5, 6, 7])
    table = {"x": x, "c": ["a", "b", "c", "a"] * 2, "y": y}
    columns = Columns(features=tuple(table), levels={"c": ["a", "b", "c"]})
    data = loaded(table, columns, missing="indicator", categorical="treatment").data
    c = np.array(table["c"])
    wanted = [x, c == "b", c == "c", y, np.isnan(x), np.isnan(y)]
    np.testing.assert_array_equal(data.features, np.array(wanted, dtype=float).T)


@pytest.mark.parametrize("rule", ["refuse", "aggregated-mean", "indicator"])
@pytest.mark.parametrize("role", ["target", "agent", "entity", "weight", "cluster", "offset"])
def test_only_features_can_be_filled(role: str, rule: str) -> None:
    columns = Columns(features=("a",), **{role: "z"})
    table = {"a": [1, 2], "z": [None, 2]}
    refused(
        lambda: loaded(table, columns, missing=rule),
        "column z: missing values, which the study refuses" + REMEDY,
    )
    assert loaded(table, columns, missing="complete-rows").data.rows.tolist() == [1]


# --- categories


def test_treatment_and_onehot() -> None:
    columns = Columns(features=("c", "a"), levels={"c": ("x", "y", "z")})
    table = {"c": ["y", "z", "x", None], "a": [1, 2, 3, 4]}
    onehot = loaded(table, columns, categorical="onehot", missing="aggregated-mean").data
    assert onehot.feature_names == ("c=x", "c=y", "c=z", "a")
    np.testing.assert_array_equal(
        onehot.features, [[0, 1, 0, 1], [0, 0, 1, 2], [1, 0, 0, 3], [NAN, NAN, NAN, 4]]
    )
    treatment = loaded(table, columns, categorical="treatment", missing="complete-rows").data
    assert treatment.feature_names == ("c=y", "c=z", "a")
    assert treatment.features.tolist() == [[1, 0, 1], [0, 1, 2], [0, 0, 3]]
    assert onehot.coded == (Coded((0, 1, 2), True),)
    assert treatment.coded == (Coded((0, 1), False),)
    for wanted, whole in ((["x", "z"], False), (["z", "x", "y"], True)):
        chosen = loaded(table, columns, indicators={"c": wanted}, missing="complete-rows").data
        assert chosen.coded == (Coded(tuple(range(len(wanted))), whole),)
    undeclared = Columns(features=("a", "c"))
    chosen = loaded(table, undeclared, indicators={"c": ["x"]}, missing="complete-rows").data
    assert chosen.coded == (Coded((1,), False),)


@pytest.mark.parametrize(
    ("cells", "levels"),
    [
        ([1, 2, 2], (1, 2)),
        ([1.0, 2.0, 2.0], ("1", "2")),
        (["1.0", "2", "2.00"], (1, 2)),
        (["f", " m", "m "], ("f", "m")),
        ([False, True, True], (0, 1)),
        ([False, True, True], (False, True)),
        (["FALSE", "true", "True"], ("false", "true")),
        (pa.array(["f", "m", "m"]).dictionary_encode(), ("f", "m")),
    ],
)
def test_levels_are_the_same_however_written(cells: Any, levels: tuple[Any, ...]) -> None:
    columns = Columns(features=("c",), levels={"c": levels})
    data = loaded({"c": cells}, columns, categorical="treatment").data
    assert data.foreign_levels == ()
    assert data.features[:, 0].tolist() == [0, 1, 1]


def test_text_levels_are_compared_as_text() -> None:
    columns = Columns(features=("c",), levels={"c": ("1", "1a")})
    data = loaded({"c": ["1", "1.0"]}, columns, categorical="onehot").data
    assert data.foreign_levels == ("c",)


def test_foreign_levels_do_not_stop_the_reading() -> None:
    columns = Columns(features=("c", "a"), target="y", levels={"c": ("x", "z"), "y": ("p", "q")})
    table = {"c": ["x", CANARY, "z"], "a": [1, 2, 3], "y": ["p", "q", CANARY]}
    for rule in ("refuse", "complete-rows"):
        got = loaded(table, columns, categorical="onehot", missing=rule)
        assert got.data.foreign_levels == ("c", "y")
        np.testing.assert_array_equal(got.data.features, [[1, 0, 1], [NAN, NAN, 2], [0, 1, 3]])
        assert got.data.target is not None
        assert got.data.target.tolist() == ["p", "q", ""]
        # Which ones is for the site's own report only.
        column = next(c for c in got.report.columns if c.name == "c")
        assert (column.foreign, column.n_foreign) == ((CANARY,), 1)


def test_foreign_states_are_told_of_the_column_that_holds_them() -> None:
    """The exchange asks about the column that declares the states, a site's report about each."""
    columns = Columns(sequence=("t0", "t1", "t2"), levels={"t0": ("p", "q")})
    table = {"t0": ["p", "q", "q"], "t1": ["p", CANARY, CANARY], "t2": [CANARY, "p", "q"]}
    got = loaded(table, columns)
    assert got.data.foreign_levels == ("t0",)
    counts = {column.name: column.n_foreign for column in got.report.columns}
    assert counts == {"t0": 0, "t1": 2, "t2": 1}


def test_a_missing_code_is_no_foreign_level() -> None:
    columns = Columns(features=("c",), levels={"c": ("1", "2")})
    site = SiteColumns(missing_codes={"c": [9]})
    got = loaded({"c": ["1", "9.0"]}, columns, site, categorical="onehot", missing="complete-rows")
    assert got.data.foreign_levels == ()
    assert got.data.rows.tolist() == [0]


def test_indicators_compare_numbers() -> None:
    columns = Columns(features=("a", "cp", "b"))
    table = {"a": [1, 2, 3], "cp": ["4.0", "3", ""], "b": [1, 2, 3]}
    data = loaded(table, columns, indicators={"cp": (4, 3)}, missing="aggregated-mean").data
    assert data.feature_names == ("a", "cp=4", "cp=3", "b")
    np.testing.assert_array_equal(data.features[:, 1:3], [[1, 0], [0, 1], [NAN, NAN]])


def test_indicators_compare_text() -> None:
    data = features({"c": ["x", "y", "4.0"]}, indicators={"c": ("x", "4")})
    assert data.feature_names == ("c=x", "c=4")
    assert data.features.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_numeric_indicators_are_strict() -> None:
    refused(
        lambda: features({"c": ["4", CANARY]}, indicators={"c": (4,)}),
        "column c: text where the study expects numbers; a category needs declared levels",
    )


def test_indicators_of_declared_levels() -> None:
    columns = Columns(features=("c",), levels={"c": (1, 4)})
    data = loaded({"c": [4, 1, 7]}, columns, indicators={"c": (4,)}).data
    assert data.foreign_levels == ("c",)
    np.testing.assert_array_equal(data.features[:, 0], [1, 0, NAN])


@pytest.mark.parametrize(
    ("columns", "rules", "words"),
    [
        (Columns(features=("c",), levels={"c": ("x", "y")}), {}, "how to code"),
        (Columns(features=("c",), levels={"c": ("x",)}), {}, "two different"),
        (Columns(features=("c",), levels={"c": ("1", "1.0")}), {}, "name '1' twice"),
        (Columns(id="c", levels={"c": ("x", "y")}), {}, "no category in its role"),
        (Columns(features=("c",)), {"indicators": {"d": (1,)}}, "not a feature"),
        (Columns(features=("c",)), {"indicators": {"c": ()}}, "some of its levels"),
        (
            Columns(features=("c",), levels={"c": ("x", "y")}),
            {"indicators": {"c": ("z",)}},
            "some of its levels",
        ),
        (Columns(features=("c", "c_missing")), {"missing": "indicator"}, "'c_missing'"),
        (Columns(features=("c", "c=4")), {"indicators": {"c": (4,)}}, "'c=4'"),
        (Columns(sequence=("s", "t")), {}, "sequence needs states"),
    ],
)
def test_contradictions_of_a_study(columns: Columns, rules: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        feature_names(columns, Preparation(**rules))


# --- other roles


def test_target_with_and_without_levels() -> None:
    number = loaded({"y": ["1", "0"]}, Columns(target="y")).data.target
    assert number is not None
    assert number.dtype == float
    levels = loaded({"y": [1.0, 0.0]}, Columns(target="y", levels={"y": (0, 1)})).data.target
    assert levels is not None
    assert levels.tolist() == ["1", "0"]
    refused(
        lambda: loaded({"y": [CANARY]}, Columns(target="y")),
        "column y: text where the study expects numbers; a category needs declared levels",
        "declare levels",
    )


def test_agents_and_entities_are_text() -> None:
    columns = Columns(features=("a",), agent="s", entity="d")
    data = loaded({"a": [1, 2], "s": [1.0, 2.0], "d": ["007", " 8 "]}, columns).data
    assert data.agent is not None
    assert data.entity is not None
    assert data.agent.tolist() == ["1", "2"]
    assert data.entity.tolist() == ["007", "8"]


@pytest.mark.parametrize("cells", [[1, 0], [1, -2]])
def test_weights_are_positive(cells: list[float]) -> None:
    refused(
        lambda: loaded({"a": [1, 2], "w": cells}, Columns(features=("a",), weight="w")),
        "column w: weights that are not positive",
        "row 2",
    )


def test_sequences() -> None:
    columns = Columns(sequence=("s1", "s2"), levels={"s1": ("in", "out")})
    table = {"s1": ["in", "out", None, "in"], "s2": ["out", "out", "in", CANARY]}
    got = loaded(table, columns, missing="aggregated-mean")
    assert got.data.sequence is not None
    assert got.data.sequence.tolist() == [[0, 1], [1, 1], [-1, 0], [0, -1]]
    assert got.data.foreign_levels == ("s1",)
    assert got.data.sequence_names == ("s1", "s2")
    assert loaded(table, columns, missing="complete-rows").data.n_rows == 3
    refused(
        lambda: loaded(table, columns),
        "column s1: missing values, which the study refuses" + REMEDY,
    )


IDS: dict[str, Any] = {"a": [1, 2, 3, None], "id": ["p", "p", None, "q"]}


def test_ids_over_rows_are_counted() -> None:
    columns = Columns(features=("a",), id="id")
    got = loaded(IDS, columns, missing="complete-rows")
    assert got.data.id is not None
    assert got.data.id.tolist() == ["p", "p", ""]
    assert (got.report.missing_ids, got.report.duplicate_ids) == (1, 1)
    assert got.report.dropped_ids is not None
    assert got.report.dropped_ids.tolist() == ["q"]
    assert got.report.dropped_by == {"a": 1}


def test_rows_without_an_id_of_their_own_are_left_out_over_columns() -> None:
    columns = Columns(features=("a",), id="id")
    table = {"a": [1, 2, 3, 4, 5], "id": ["p", None, CANARY, CANARY, "q"]}
    found = loaded(table, columns, partition="columns")
    assert found.data.rows.tolist() == [0, 4]
    assert (found.report.missing_ids, found.report.duplicate_ids) == (1, 2)
    assert found.report.dropped_by == {"id": 3}
    assert CANARY not in " ".join(found.report.sentences())
    refused(
        lambda: loaded({"a": [1, 2], "id": [CANARY, CANARY]}, columns, partition="columns"),
        "column id: no row has an id of its own",
        "every id is missing or repeated",
    )
    # The repeated id is in a row that is dropped.
    table = {"a": [1, None, 3], "id": ["p", "p", None]}
    data = loaded(table, columns, partition="columns", missing="complete-rows").data
    assert data.rows.tolist() == [0]
    with pytest.raises(StudyError, match="needs an id column"):
        loaded({"a": [1]}, Columns(features=("a",)), partition="columns")


def test_over_columns_a_site_names_its_own_and_keeps_rows_without_a_target() -> None:
    own = SiteColumns(
        features=("a", "k"), target="y", levels={"k": ("u", "v")}, bounds={"a": (0.0, 9.0)}
    )
    table = read_source(
        {"a": [1.0, 2.0, 3.0], "k": ["u", "v", "v"], "y": [0, None, 1], "id": [1, 2, 3]}
    )
    rules = Preparation(categorical="treatment", indicators={"elsewhere": (1,)})
    data = load(table, Columns(id="id"), rules, own, partition="columns")
    assert data.feature_names == ("a", "k=v")
    assert np.isnan(data.target).tolist() == [False, True, False]
    np.testing.assert_array_equal(data.bounds, [[0.0, 0.0], [9.0, 1.0]])
    with pytest.raises(StudyError, match="lists no features"):
        load(table, Columns(id="id"), rules, SiteColumns(), partition="columns")
    # A column may be a feature and the cluster; a row without a cluster is in none.
    own = SiteColumns(features=("a", "k"), cluster="k", levels={"k": ("u", "v")})
    assert load(table, Columns(id="id"), rules, own, partition="columns").cluster.tolist() == [
        *("u", "v", "v")
    ]
    own = SiteColumns(features=("a",), cluster="y")
    with pytest.raises(DataError, match="'y' has no value in 1 of 3 rows"):
        load(table, Columns(id="id"), rules, own, partition="columns")
    with pytest.raises(ParameterError, match="the lower one first"):
        SiteColumns(bounds={"a": (1.0, 1.0)})


# --- the whole


def test_arrays_cannot_be_written_and_hash_travels() -> None:
    table = read_source({"a": [1.0, 2.0]})
    data = load(table, Columns(features=("a",)), Preparation())
    assert data.content_hash == table.content_hash
    with pytest.raises(ValueError, match="read-only"):
        data.features[0, 0] = 3


def test_report_is_plain_and_says_all() -> None:
    columns = Columns(features=("a", "c"), id="id", levels={"c": ("x", "y")})
    table = {"a": [1, 1, None], "c": ["x", "w", "y"], "id": ["p", "p", "q"]}
    report = loaded(table, columns, categorical="onehot", missing="complete-rows").report
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["dropped_rows"] == [2]
    assert plain["columns"][0]["missing"] == 1
    assert plain["columns"][1]["kind"] == "text"
    said = " ".join(report.sentences())
    for words in ("3 rows read, 2 kept", "a has no value", "c: 1 rows", "w", "repeat an id"):
        assert words in said


def test_no_error_shows_a_cell() -> None:
    """Every column in every role, with a canary in every kind of cell."""
    cells: list[Any] = [
        [CANARY, "1", ""],
        [f"{CANARY}e5", "inf", "2"],
        pa.array([CANARY, "1", None]).dictionary_encode(),
        [[CANARY], ["1"], None],
        [{CANARY: 1}, None, None],
        [CANARY.encode(), b"", None],
    ]
    shown = 0
    for column in cells:
        for columns in (
            Columns(features=("z",)),
            Columns(features=("z",), levels={"z": ("1", "2")}),
            Columns(target="z"),
            Columns(weight="z"),
            Columns(id="z"),
            Columns(agent="z"),
            Columns(sequence=("z",), levels={"z": ("1", "2")}),
        ):
            for rule in ("refuse", "complete-rows"):
                try:
                    loaded({"z": column}, columns, categorical="onehot", missing=rule)
                except DataError as error:
                    shown += 1
                    assert CANARY not in str(error)
                    assert CANARY not in error.public
    assert shown > 20

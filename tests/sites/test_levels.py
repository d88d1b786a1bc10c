"""Which levels a site has, and what of a table stops a study: never what a few rows hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DataError
from consilience.protocol.method import Columns, Preparation
from consilience.sites.own_columns import SiteColumns
from consilience.sites.prepare import Loaded, load_with_report
from consilience.sites.source import read_source

N = 100
COMMON = ("p", "q")
RARE = ("r", "s", "t", "u", "v")


def cells(*rare: str, each: int = 4) -> list[str]:
    """A column of two common levels, and some rare ones."""
    found = [COMMON[i % 2] for i in range(N)]
    for i, level in enumerate(rare):
        found[i * each : (i + 1) * each] = [level] * each
    return found


def load(
    columns: dict[str, list[Any]],
    levels: tuple[str, ...] = COMMON,
    *,
    few: int = 10,
    own: SiteColumns | None = None,
    **rules: Any,
) -> Loaded:
    """Prepare a table whose first column has levels."""
    first = next(iter(columns))
    table = read_source({**columns, "x": np.arange(len(columns[first])) / 7})
    roles = Columns(features=(*columns, "x"), levels={first: levels})
    preparation = Preparation(categorical="onehot", **rules)
    return load_with_report(table, roles, preparation, own, min_records=few)


def test_rare_levels_are_counted_each_by_itself() -> None:
    """Together 20 rows have one: of a sum a study could ask, level by level, how many there are."""
    found = load({"c": cells(*RARE)})
    assert found.data.foreign_levels == ()
    assert found.data.n_rows == N - 20
    assert "Column c: 20 values count as missing" in " ".join(found.report.sentences())
    many = load({"c": cells("r", each=10)})
    assert many.data.foreign_levels == ("c",)
    (report,) = (column for column in many.report.columns if column.name == "c")
    assert (report.foreign, report.n_foreign) == (("r",), 10)


@pytest.mark.parametrize("declared", [(), ("r",), ("r", "t", "v"), RARE, ("nobody", "r")])
def test_no_study_moves_a_row_by_what_it_declares(declared: tuple[str, ...]) -> None:
    """A rare level is not there, declared or not: else two runs would differ by its rows."""
    found = load({"c": cells(*RARE)}, (*COMMON, *declared))
    assert found.data.foreign_levels == ()
    np.testing.assert_array_equal(found.data.rows, np.arange(20, N))


def test_where_no_record_is_protected_every_level_is_there() -> None:
    found = load({"c": cells(*RARE)}, (*COMMON, *RARE), few=1)
    assert found.data.n_rows == N and found.data.features[:, 2:7].sum() == 20
    assert load({"c": cells("r", each=1)}, few=1).data.foreign_levels == ("c",)


def test_where_every_level_is_rare_the_log_of_the_site_says_why_no_row_is_complete() -> None:
    with pytest.raises(DataError, match=r"or values that fewer than 10 rows have$") as caught:
        load({"c": cells()[:18]})
    assert caught.value.public == "fewer than 10 rows are complete"


def test_one_number_is_one_level() -> None:
    """Six rows have 7 and six 7.0, which are 12 rows of one level."""
    numbers = ["1", "2"] * 44 + ["7"] * 6 + ["7.0"] * 6
    assert load({"c": numbers}, ("1", "2")).data.foreign_levels == ("c",)
    assert load({"c": numbers}, ("1", "2", "7")).data.n_rows == N
    texts = ["a", "b"] * 44 + ["7"] * 6 + ["7.0"] * 6
    assert load({"c": texts}, ("a", "b")).data.foreign_levels == ()


def listing(*levels: str) -> SiteColumns:
    return SiteColumns(offered={"*": "number", "c": levels})


@pytest.mark.parametrize("rare", [(), ("r",), RARE])
@pytest.mark.parametrize("each", [0, 1, 4, 18])
def test_a_list_of_the_sites_own_answers_for_the_table(rare: tuple[str, ...], each: int) -> None:
    """Whatever rows there are: a study has to declare what is listed, and nothing else is there."""
    own = listing(*COMMON, "r")
    column = cells(*rare, each=each)
    undeclared = load({"c": column}, own=own, missing="complete-rows").data
    assert undeclared.foreign_levels == ("c",)
    for declared in (("r",), ("r", "t")):
        found = load({"c": column}, (*COMMON, *declared), own=own, missing="complete-rows").data
        assert found.foreign_levels == ()
        assert found.n_rows == sum(cell in (*COMMON, "r") for cell in column)


def test_states_are_those_that_enough_rows_have_at_one_time() -> None:
    """Not at all times together, or a study would count by the times that it names."""
    times = {f"t{j}": cells("r" if j else "s", each=9) for j in range(6)}
    roles = Columns(sequence=tuple(times), levels={"t0": COMMON})
    rules = Preparation(missing="keep")

    def states(least: int) -> Any:
        return load_with_report(read_source(times), roles, rules, min_records=least).data

    rare = states(10)
    assert rare.foreign_levels == ()
    assert (rare.sequence[:9] == -1).all() and (rare.sequence[9:] >= 0).all()
    assert states(9).foreign_levels == ("t0",)
    times["t3"] = cells("r", each=10)
    assert states(10).foreign_levels == ("t0",)


# ----------------------------------------------------------------------------- missing values


def lacking(**gaps: range) -> dict[str, list[Any]]:
    """Columns of numbers that lack a value in some rows."""
    column = {name: list(np.arange(N) % 13 + 0.5) for name in gaps}
    for name, rows in gaps.items():
        for row in rows:
            column[name][row] = None
    return {"c": cells(), **column}


def test_missing_values_are_counted_column_by_column() -> None:
    """27 rows lack some value, and no column lacks ten: none is asked about together."""
    three = lacking(u=range(9), v=range(9, 18), w=range(18, 27))
    assert load(three).data.n_rows == N - 27
    with pytest.raises(DataError) as caught:
        load(lacking(u=range(9), v=range(9, 19)))
    assert caught.value.public.startswith("column v: missing values, which the study refuses")
    with pytest.raises(DataError) as caught:
        load(lacking(u=range(1), v=range(1)), few=1)
    assert caught.value.public.startswith("column u, v: missing values, which the study refuses")


def test_rows_of_rare_levels_are_no_missing_values_of_the_table() -> None:
    """Otherwise the refusal would rest on rows of several rare levels together."""
    assert load({"c": cells(*RARE, each=9)}).data.n_rows == N - 45


@pytest.mark.parametrize("rule", ["refuse", "complete-rows"])
def test_too_few_rows_are_refused_in_the_same_words_however_few(rule: str) -> None:
    said = set()
    for left in (0, 1, 9):
        gaps = {f"u{j}": range(9 * j, 9 * j + 9) for j in range(10)} | {"v": range(90, N - left)}
        with pytest.raises(DataError) as caught:
            load(lacking(**gaps), few=11, missing=rule)
        said.add(caught.value.public)
    assert said == {"fewer than 11 rows are complete"}
    small = {name: column[:8] for name, column in lacking(u=range(3)).items()}
    assert load(small, own=listing(*COMMON), missing="complete-rows").data.n_rows == 5


@pytest.mark.parametrize(("n_odd", "fine"), [(0, True), (9, True), (10, False)])
def test_columns_of_true_and_false_are_read_so_whatever_else_a_few_cells_hold(
    n_odd: int, fine: bool
) -> None:
    column = ["maybe"] * n_odd + ["True", "false"] * N
    if not fine:
        with pytest.raises(DataError, match="holds text"):
            load({"c": cells() * 2 + cells()[:n_odd], "u": column})
        return
    data = load({"c": cells() * 2 + cells()[:n_odd], "u": column}).data
    assert data.n_rows == 2 * N and data.features[:, 2].sum() == N

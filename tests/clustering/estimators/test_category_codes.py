"""Levels and codes of categorical columns, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.clustering.estimators.category_codes import (
    codes_of,
    columns_of,
    declared_levels,
    learned_levels,
    levels_from_arrays,
    levels_to_arrays,
    missing_cells,
)
from consilience.exceptions import DataError, ParameterError

NAT = np.datetime64("NaT")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (np.array(["a", "nan"]), [False, False]),
        (np.array([1, -1]), [False, False]),
        (np.array([1.0, np.nan]), [False, True]),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), [False, True]),
        (np.array(["a", None, np.nan, pd.NA, pd.NaT, NAT], dtype=object), [False] + [True] * 5),
    ],
)
def test_missing_cells(cells: np.ndarray, expected: list[bool]) -> None:
    assert missing_cells(cells).tolist() == expected


def coded(X: Any, levels: Any = None) -> tuple[list[list[int]], list[list[Any]]]:
    columns, own = columns_of(X)
    names = [str(name) for name in getattr(X, "columns", range(len(columns)))]
    given = declared_levels(levels, names)
    known = learned_levels(
        columns, [a if a is not None else b for a, b in zip(given, own, strict=True)], names
    )
    return codes_of(columns, known, names).tolist(), [levels.tolist() for levels in known]


def test_columns_of_every_kind() -> None:
    frame = pd.DataFrame(
        {
            "text": ["b", None, "a"],
            "whole": pd.array([3, pd.NA, 1], dtype="Int64"),
            "real": [2.5, np.nan, -1.0],
            "yes": pd.array([True, pd.NA, False], dtype="boolean"),
            "sorted": pd.Categorical(["low", None, "high"], categories=["low", "mid", "high"]),
            "day": pd.to_datetime(["2021-01-01", None, "2020-01-01"]),
        }
    )
    codes, known = coded(frame)
    assert codes == [[1, 1, 1, 1, 0, 1], [-1] * 6, [0, 0, 0, 0, 2, 0]]
    assert known[:5] == [["a", "b"], [1, 3], [-1.0, 2.5], [False, True], ["low", "mid", "high"]]


def test_text_and_numbers_that_look_alike_stay_apart() -> None:
    table = np.array([["1"], ["2"]], dtype=object)
    columns, _ = columns_of(table)
    with pytest.raises(DataError, match="column 0 holds a level"):
        codes_of(columns, (np.array([1, 2]),), ["0"])
    assert coded(np.array([[1], [2]]), [[2.0, 1.0]])[0] == [[1], [0]]


@pytest.mark.parametrize("values", [[1, "a"], [["a"], "a"], [{}, {}]])
def test_what_is_no_category_is_refused(values: list[Any]) -> None:
    column = np.empty(2, dtype=object)
    column[:] = values
    with pytest.raises(DataError, match="column 0"):
        learned_levels([column], [None], ["0"])


def test_a_list_in_a_cell_is_no_level() -> None:
    column = np.empty(2, dtype=object)
    column[:] = [["a"], "a"]
    with pytest.raises(DataError, match="no category"):
        codes_of([column], (np.array(["a"]),), ["0"])


def test_declared_levels_by_name_and_by_place() -> None:
    names = ["x", "y"]
    assert declared_levels(None, names) == [None, None]
    by_name = declared_levels({"y": ("b", "a")}, names)
    assert by_name[0] is None
    assert by_name[1] is not None
    assert by_name[1].tolist() == ["b", "a"]
    for wrong in ({"z": ["a"]}, [["a"]], {"x": []}, {"x": ["a", "a"]}):
        with pytest.raises(ParameterError, match="levels"):
            declared_levels(wrong, names)


def test_levels_as_arrays() -> None:
    levels = (np.array(["a", "ä"]), np.array([1, 5]), np.array([0.5]), np.array([False, True]))
    arrays = levels_to_arrays(levels)
    assert all(array.dtype.kind in "iuf" for array in arrays.values())
    again = levels_from_arrays(arrays, [2, 2, 1, 2])
    assert [known.tolist() for known in again] == [["a", "ä"], [1, 5], [0.5], [0, 1]]
    assert codes_of([np.array([True])], again[3:], ["yes"]).tolist() == [[1]]
    for wrong in ([2, 2, 1, 3], [2, 2, 1, 2, 1]):
        with pytest.raises(DataError):
            levels_from_arrays(arrays, wrong)
    with pytest.raises(DataError):
        levels_from_arrays(arrays | {"levels_1": np.array([5, 5])}, [2, 2, 1, 2])

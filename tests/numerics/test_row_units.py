"""Tables in other units than a model's are refused, unusual rows are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from consilience.exceptions import DataError
from consilience.numerics.row_units import check_units, read_rows

CENTRE, SCALE = np.array([14.0, 0.1, 650.0, 0.0]), np.array([3.5, 0.014, 350.0, 0.0])
Z = np.random.default_rng(0).standard_normal((40, 4))
ROWS = Z * SCALE + CENTRE


def test_rows_in_the_units_of_the_model_pass() -> None:
    check_units(ROWS, CENTRE, SCALE)
    check_units(ROWS + 3.0 * SCALE, CENTRE, SCALE)  # another population
    check_units(np.where(Z > 1.0, np.nan, ROWS), CENTRE, SCALE)
    check_units(np.zeros_like(ROWS), np.full(4, 2.0), np.full(4, 5.0))  # counts, all of them 0
    check_units(Z, np.zeros(4), np.ones(4))  # columns that have such units


def test_fewer_than_five_rows_tell_nothing() -> None:
    check_units(Z[:4], CENTRE, SCALE)
    check_units(1000.0 * ROWS[:4], CENTRE, SCALE)


def test_prepared_rows_are_refused() -> None:
    for rows in (Z, Z[:5], np.where(Z > 1.0, np.nan, Z)):
        with pytest.raises(DataError, match="looks prepared already"):
            check_units(rows, CENTRE, SCALE)


def test_a_column_in_other_units_is_named_by_its_name_alone() -> None:
    wrong = ROWS * [1.0, 1000.0, 1.0, 1.0]
    with pytest.raises(DataError, match=r"standard deviations .* in column b: give rows"):
        check_units(wrong, CENTRE, SCALE, list("abcd"))
    with pytest.raises(DataError, match="in column number 2:"):
        check_units(wrong, CENTRE, SCALE)
    wrong[:25, 1] = 0.1  # most of them are in the right ones
    check_units(wrong, CENTRE, SCALE)


def test_rows_of_every_kind_of_table() -> None:
    cells = {"a": [1, None, 3], "b": [1.5, 2.0, 3.0]}
    expected = [[1, 1.5], [np.nan, 2], [3, 3]]

    class Foreign:
        columns = ("a", "b")

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table(cells).__arrow_c_stream__(requested_schema)

    nullable = pd.DataFrame(cells).astype({"a": "Int64"})
    for given in (pd.DataFrame(cells), nullable, pa.table(cells), Foreign(), expected):
        np.testing.assert_array_equal(read_rows(given, 2, ["a", "b"]), expected)
    coded = pa.table({**cells, "a": pa.array([1, None, 3]).dictionary_encode()})
    np.testing.assert_array_equal(read_rows(coded, 2), expected)
    for kind in (pa.timestamp("us"), pa.date32(), pa.duration("s")):  # that is missing is no number
        dates = pa.table({"a": pa.array([0, None, 3], kind)})
        assert np.isnan(read_rows(dates, 1)[:, 0]).tolist() == [False, True, False]
    for given in (nullable[["b", "a"]], pa.table(cells).select(["b", "a"])):
        with pytest.raises(DataError, match="must be a, b, in this order"):
            read_rows(given, 2, ["a", "b"])
    with pytest.raises(DataError, match="must hold numbers") as error:
        read_rows(pa.table({"a": ["secret"]}), 1)
    assert "secret" not in str(error.value)
    with pytest.raises(DataError, match="must have 3 columns"):
        read_rows(nullable, 3)

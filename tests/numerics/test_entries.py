"""Observed entries of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries, rating_values

X = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [0.0, 5.0, 6.0]])


def test_a_table_with_gaps() -> None:
    entries = Entries.of(X)
    assert entries.shape == (3, 3)
    assert entries.rows.tolist() == [0, 0, 2, 2, 2]
    assert entries.columns.tolist() == [0, 2, 0, 1, 2]
    assert entries.values.tolist() == [1, 3, 0, 5, 6]
    assert entries.n_observed == 5
    assert entries.density == pytest.approx(5 / 9)
    assert not entries.complete
    assert entries.indptr.tolist() == [0, 2, 2, 5]
    assert entries.column_counts.tolist() == [2, 1, 2]
    np.testing.assert_array_equal(entries.dense(), X)
    np.testing.assert_array_equal(entries.mask(), ~np.isnan(X))


def test_order_by_columns() -> None:
    entries = Entries.of(X)
    order, indptr = entries.by_columns()
    assert entries.values[order].tolist() == [1, 0, 5, 3, 6]
    assert indptr.tolist() == [0, 2, 3, 5]


def test_stored_entries_of_a_sparse_matrix_are_observed_zeros_too() -> None:
    stored = sparse.csr_matrix(([2.0, 0.0, np.nan], ([0, 1, 1], [1, 0, 1])), shape=(2, 3))
    entries = Entries.of(stored)
    assert entries.rows.tolist() == [0, 1]
    assert entries.values.tolist() == [2, 0]
    back = entries.csr()
    assert back.nnz == 2 and back.shape == (2, 3)


def test_other_containers() -> None:
    pd = pytest.importorskip("pandas")
    masked = np.ma.masked_invalid(X)
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [2.0, 3.0]})
    np.testing.assert_array_equal(Entries.of(masked).dense(), X)
    np.testing.assert_array_equal(Entries.of(frame).dense(), [[1, 2], [np.nan, 3]])
    np.testing.assert_array_equal(Entries.of([[1, 2], [3, 4]]).dense(), [[1, 2], [3, 4]])
    entries = Entries.of(X)
    assert Entries.of(entries) is entries


def test_part_of_the_entries() -> None:
    entries = Entries.of(X)
    part = entries.take(entries.values > 2)
    assert part.shape == entries.shape
    assert part.values.tolist() == [3, 5, 6]
    assert entries.with_values(entries.values + 1).values.tolist() == [2, 4, 1, 6, 7]


def test_triplets_in_any_order() -> None:
    entries = Entries.from_triplets([2, 0, 2], [1, 0, 0], [5, 1, 7])
    assert entries.shape == (3, 2)
    assert entries.values.tolist() == [1, 7, 5]
    wide = Entries.from_triplets([0.0], [1.0], [np.float32(4)], shape=(2, 5))
    assert wide.shape == (2, 5)


def test_repeated_triplets_are_refused_with_their_number_or_averaged() -> None:
    triplets = ([0, 1, 0, 0], [1, 0, 1, 1], [1.0, 9.0, 2.0, 6.0])
    with pytest.raises(DataError, match="2 of 4 triplets repeat"):
        Entries.from_triplets(*triplets)
    assert Entries.from_triplets(*triplets, duplicates="mean").values.tolist() == [3, 9]
    with pytest.raises(ParameterError, match="duplicates"):
        Entries.from_triplets(*triplets, duplicates="sum")
    twice = sparse.coo_matrix(([1.0, 2.0], ([0, 0], [0, 0])), shape=(2, 2))
    with pytest.raises(DataError, match="1 of 2 triplets repeat"):
        Entries.of(twice)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[1.0, np.inf]], "infinite"),
        ([[np.nan, np.nan]], "no entry"),
        (np.zeros((0, 3)), "no entry"),
        ([1.0, 2.0], "a matrix is needed"),
        ([["a", "b"]], "real numbers"),
        ([[1j]], "real numbers"),
        (sparse.csr_matrix((2, 3)), "no entry"),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(table: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Entries.of(table)


@pytest.mark.parametrize(
    ("rows", "columns", "values", "words"),
    [
        ([0, 1], [0], [1.0, 2.0], "one length"),
        ([0.5], [0], [1.0], "whole numbers"),
        ([-1], [0], [1.0], "outside"),
        ([3], [0], [1.0], "outside"),
        ([0], [0], [np.inf], "infinite"),
        ([], [], [], "no entry"),
    ],
)
def test_bad_triplets(rows: Any, columns: Any, values: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Entries.from_triplets(rows, columns, values, shape=(3, 3))


def test_no_value_in_words() -> None:
    assert repr(Entries.of(X)) == "Entries(5 observed of 3 x 3)"


def test_values_of_few_rows_do_not_decide_whether_a_table_is_like_ratings() -> None:
    x = np.full((100, 8), np.nan)
    x[:, :3] = np.arange(300).reshape(100, 3) % 5 + 1.0
    for fewest, odd, expected in (
        (1, 20, 25),
        (1, 21, 0),
        (10, 0, 5),
        (10, 1, 5),
        (10, 9, 5),
        (10, 10, 0),
        (40, 30, 5),
        (61, 0, 0),  # each value has 60 rows
    ):
        table = x.copy()
        table[:odd, 0] = 10.5 + np.arange(odd)
        assert rating_values(Entries.of(table), fewest) == expected, (fewest, odd)
    x[:40, 3] = 6.0  # in one column more
    assert rating_values(Entries.of(x), 40) == 6
    assert rating_values(Entries.of(x), 41) == 5
    x[:20, 4] = x[:20, 5] = 7.0  # 40 entries of 20 rows
    assert rating_values(Entries.of(x), 21) == 6
    x[:, 4:6] = 1.0
    assert rating_values(Entries.of(x), 10) == 0

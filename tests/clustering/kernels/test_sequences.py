"""Sequences of coded states: ways in, views, and what differs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.clustering.kernels.sequences import (
    LONGEST_GAP,
    Sequences,
    coded,
    column,
    distinct_rows,
)
from consilience.exceptions import DataError, ParameterError

A, B, C = "abc"
LATE, WEST = np.datetime64("9999-12-31"), timezone(timedelta(hours=-5))


def rows(sequences: Sequences) -> list[list[int]]:
    """Codes of each sequence."""
    return [piece.tolist() for piece in np.split(sequences.codes, sequences.offsets[1:-1])][
        : len(sequences)
    ]


# ------------------------------------------------------------------ wide tables and lists


def test_what_is_missing_at_the_end_is_no_part() -> None:
    found = Sequences.of([[0, -1, 2, -1, -1], [-1, 1, -1, -1, 0], [-1] * 5, [1, 1, 1, 1, 1]])
    assert rows(found) == [[0, -1, 2], [-1, 1, -1, -1, 0], [], [1] * 5]
    assert found.n_states == 3
    assert found.lengths.tolist() == [3, 5, 0, 5]
    assert found.owners.tolist() == [0] * 3 + [1] * 5 + [3] * 5
    assert found.to_wide().tolist() == [
        [0, -1, 2, -1, -1],
        [-1, 1, -1, -1, 0],
        [-1] * 5,
        [1] * 5,
    ]
    assert Sequences.of([[0, 1]], 4).n_states == 4
    assert Sequences.of([[0, 1]], states=["x", "y", "z"]).n_states == 3


def test_tables_without_rows_or_columns() -> None:
    assert len(Sequences.of(np.zeros((0, 4), dtype=int))) == 0
    nothing = Sequences.of(np.zeros((3, 0), dtype=int), 2)
    assert nothing.lengths.tolist() == [0, 0, 0]
    assert nothing.to_wide().shape == (3, 0)
    assert nothing.to_lists() == [[], [], []]
    part, inverse = nothing.distinct()
    assert len(part) == 1
    assert inverse.tolist() == [0, 0, 0]
    assert len(Sequences.of(np.zeros((0, 4), dtype=int)).distinct()[0]) == 0


def test_lists() -> None:
    found = Sequences.from_lists([[B, None, A, float("nan")], [], [np.nan, C]])
    assert found.states == (A, B, C)
    assert rows(found) == [[1, -1, 0], [], [-1, 2]]
    assert found.to_lists() == [[B, None, A], [], [None, C]]
    declared = Sequences.from_lists([[B]], [C, B])
    assert (rows(declared), declared.n_states) == ([[1]], 2)
    assert Sequences.from_lists([[10, 2], [2.5]]).states == (2, 2.5, 10)


def test_alphabets() -> None:
    codes, names = coded([2, "b", None, "a", 10], None)
    assert names == (2, 10, "a", "b")
    assert codes.tolist() == [0, 3, -1, 2, 1]
    with pytest.raises(DataError, match="2 cells hold a state that is not the 1 known state"):
        coded(["a", "secret", "secret"], ["a"])
    with pytest.raises(DataError, match="a number or a text"):
        coded([["a"]], None)
    with pytest.raises(DataError, match="no state was seen"):
        coded([None], None)
    with pytest.raises(DataError, match="infinity, which is no state"):
        coded([1.0, float("inf")], None)
    for wrong in (["a", "a"], [], ["a", None], 3, [["a"]]):
        with pytest.raises(ParameterError, match="states must be a list of different states"):
            coded(["a"], wrong)


def test_another_alphabet() -> None:
    found = Sequences.from_lists([[A, None, B]])
    larger = found.renamed([C, B, A])
    assert rows(larger) == [[2, -1, 1]]
    assert larger.to_lists() == found.to_lists()
    assert found.renamed((A, B)) is found
    assert rows(Sequences.of([[1, 0]]).renamed([A, B, C])) == [[1, 0]]
    with pytest.raises(DataError, match="1 cell holds a state that is not the 1 known state"):
        found.renamed([A])
    with pytest.raises(DataError, match="2 cells"):
        Sequences.of([[2, 0, 2]]).renamed([A, B])


# ------------------------------------------------------------------ long tables


def test_long_tables() -> None:
    found = Sequences.from_long([2, 1, 1, 2, 2], [5, 3, 1, 0, 1], [C, B, A, A, None])
    assert found.ids is not None
    assert found.ids.tolist() == [1, 2]
    assert rows(found) == [[0, -1, 1], [0, -1, -1, -1, -1, 2]]
    order = Sequences.from_long([2, 1, 1, 2, 2], [5, 3, 1, 0, 1], [C, B, A, A, None], gaps=False)
    assert rows(order) == [[0, 1], [0, -1, 2]]
    begun = Sequences.from_long(["x", "y", "y"], [2, 0, 1], [A, A, B], start=-1)
    assert rows(begun) == [[-1, -1, -1, 0], [-1, 0, 1]]


def test_times() -> None:
    dates = np.array(["2020-01-05", "2020-01-01", "2020-03-01"], dtype="datetime64[D]")
    assert rows(Sequences.from_long([1, 1, 1], dates, [B, A, C])) == [[0, 1, 2]]
    assert rows(Sequences.from_long([1, 1], [0.5, 0.25], [A, B])) == [[1, 0]]
    assert rows(Sequences.from_long([1, 1], [3.0, 1.0], [A, B])) == [[1, -1, 0]]
    assert rows(Sequences.from_long([1, 1], np.array([3, 1], dtype=object), [A, B])) == [[1, -1, 0]]


@pytest.mark.parametrize(
    ("ids", "times", "settings", "message"),
    [
        ([1, 1], [2, 2], {}, "1 pair of id and time occurs twice"),
        ([1, 1], [1, np.nan], {}, "a time is missing"),
        ([1, 1], ["x", "y"], {}, "numbers or dates"),
        ([1, 1], np.array(["x", "y"]), {}, "numbers or dates"),
        ([1, 1], [True, False], {}, "numbers or dates"),
        ([1, 1], np.array([1, None], dtype=object), {}, "a time is missing"),
        ([1, 1], np.ma.masked_array([1, 2], [0, 1]), {}, "a time is missing"),
        ([1, 1], [Decimal("sNaN"), 1], {}, "a time is missing"),
        (np.ma.masked_array([1, 2], [0, 1]), [0, 1], {}, "an id is missing"),
        ([1, 1], [[0], [1, 2]], {}, "columns of one length"),
        ([[1], [1, 2]], [0, 1], {}, "columns of one length"),
        ([1, 1], np.ma.masked_array(np.zeros(2, "i8,i8"), [0, 1]), {}, "several fields"),
        ([1, 1], pd.Series([np.zeros(2), np.zeros(2)]), {}, "several values"),
        (pd.Series([np.zeros(2), np.zeros(2)]), [0, 1], {}, "several values"),
        ([1, 1], [LATE, datetime(2020, 1, 1, tzinfo=WEST)], {}, "a time zone"),
        ([1, 1], [0, 10**6], {}, "999,999 unseen time points in a row"),
        ([1, 1], [0, LONGEST_GAP + 2], {}, "1,001 unseen"),
        ([1, 1], [5, LONGEST_GAP], {"start": -LONGEST_GAP}, "1,005 unseen"),
        ([1, np.nan], [0, 1], {}, "an id is missing"),
        (["a", np.nan], [0, 1], {}, "an id is missing"),
        (["a", None], [0, 1], {}, "an id is missing"),
        (["a", 1], [0, 1], {}, "all numbers or all texts"),
        (np.array([1, "a"], dtype=object), [0, 1], {}, "all numbers or all texts"),
        ([1, 1], [1e19, -1e19], {}, "too large to be counted"),
        ([1, 1], [2**60, 2**60 + 1], {}, "too large to be counted"),
        ([1, 1], [0, np.inf], {}, "infinite"),
        ([1, 1], [[0], [1]], {}, "columns of one length"),
        ([1, 1], [10**30, 1], {}, "a time is too large"),
        ([1, 1], [10**400, 1.5], {}, "a time is too large"),
        ([1, 1], [np.timedelta64(2, "D"), np.timedelta64(3, "h")], {}, "numbers or dates"),
        ([1, 1], np.array([np.timedelta64(2, "D"), 3], dtype=object), {}, "numbers or dates"),
        ([1, 1], [timedelta(2), timedelta(1)], {}, "numbers or dates"),
        ([1, 1], [np.datetime64("2020-01-01"), 3], {}, "numbers or dates, all of one kind"),
        ([1, 1], [np.datetime64("2020-01-01"), np.datetime64("NaT")], {}, "a time is missing"),
        ([1, 1], [LATE, np.datetime64("2020-01-01T00:00:00.000000001")], {}, "no unit"),
        ([1, 1], [datetime.max.replace(tzinfo=WEST), datetime.now(UTC)], {}, "years 1 to 9999"),
        ([1, 1], np.array(["2020-01-01", "x"], dtype=object), {}, "numbers or dates"),
        ([1, 1], [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2)], {}, "a time zone"),
        ([1, 1], [date(2020, 1, 1), None], {}, "a time is missing"),
        ([1, 1], [0, 1], {"start": 1}, "before the start"),
        ([1, 1], [0.5, 1], {"start": 0}, "whole numbers"),
        ([1, 1, 2], [0, 1, 2], {}, "one length"),
    ],
)
def test_long_tables_that_are_refused(ids: Any, times: Any, settings: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Sequences.from_long(ids, times, [A, B], **settings)


@pytest.mark.parametrize("start", ["1", 1.5, np.timedelta64(1, "D"), True, np.nan, 10**30])
def test_starts_that_are_refused(start: Any) -> None:
    with pytest.raises(ParameterError, match="start must be a whole number"):
        Sequences.from_long([1, 1], [2, 3], [A, B], start=start)
    assert rows(Sequences.from_long([1, 1], [2, 3], [A, B], start=1)) == [[-1, 0, 1]]


def test_dates_of_any_kind_give_the_order() -> None:
    days = pd.date_range("2020-03-27", periods=4, freq="D")[[2, 0, 3, 1]]
    zone = timezone(timedelta(hours=-3))
    given = [
        days,
        days.tz_localize("Europe/Paris"),
        list(days),
        list(days.to_numpy()),
        np.array([day.to_datetime64().astype("M8[D]") for day in days], dtype=object),
        [days[0], *days[1:3].to_numpy().astype("M8[h]"), days[3].date()],
        pd.Series(days.tz_localize("Europe/Paris")),
        [day.date() for day in days],
        [day.to_pydatetime().replace(tzinfo=zone) for day in days],
    ]
    for times in given:
        assert rows(Sequences.from_long([1] * 4, times, [C, A, B, B])) == [[0, 1, 2, 1]]
    # By the instant, not by the clock.
    late = [datetime(2020, 1, 1, 12, tzinfo=zone), datetime(2020, 1, 1, 14, tzinfo=UTC)]
    assert rows(Sequences.from_long([1, 1], late, [A, B])) == [[1, 0]]
    large = [2**60 + 1, 2**60]
    assert rows(Sequences.from_long([1, 1], large, [A, B], gaps=False)) == [[1, 0]]
    larger = np.array([2**64 - 1, 2**64 - 2], dtype=object)
    assert rows(Sequences.from_long([1, 1], larger, [A, B], gaps=False)) == [[1, 0]]


@pytest.mark.parametrize(
    "soon",
    [np.datetime64("2020-01-02", "ns"), pd.Timestamp("2020-01-02").as_unit("ns"), date(2020, 1, 2)],
)
def test_dates_of_several_units_are_not_wrapped(soon: Any) -> None:
    """9999-12-31 stands for "not ended" in many tables; in nanoseconds it would be 1816."""
    for late in (LATE, datetime(9999, 12, 31)):
        boxed = np.empty(2, dtype=object)
        boxed[:] = [late, soon]
        for times in ([late, soon], boxed):
            assert rows(Sequences.from_long([1, 1], times, [A, B])) == [[1, 0]]


def test_fractions_of_many_digits_in_several_units() -> None:
    instant = "2020-01-01T00:00:00.00000000"
    times = [np.datetime64("2020-01-02"), np.datetime64(f"{instant}2"), pd.Timestamp(f"{instant}1")]
    assert rows(Sequences.from_long([1] * 3, times, [C, B, A])) == [[0, 1, 2]]
    far = [np.datetime64("300000-01-01"), np.datetime64("2020-01-01T00", "s")]
    assert rows(Sequences.from_long([1, 1], far, [A, B])) == [[1, 0]]


def test_masked_dates_give_the_order() -> None:
    days = np.array(["2020-01-03", "2020-01-02", "2020-01-01"], dtype="M8[ns]")
    seen = np.ma.masked_array(days, [False, False, False])
    assert rows(Sequences.from_long([1] * 3, seen, [C, B, A])) == [[0, 1, 2]]
    small = np.ma.masked_array(np.array([3, 1], "M8[ns]"))
    assert rows(Sequences.from_long([1, 1], small, [A, B])) == [[1, 0]]  # no gap between them
    hidden = np.ma.masked_array(days, [True, False, False])
    assert column(hidden).tolist() == [None, *days[1:]]
    names = Sequences.from_long(np.ma.masked_array([2, 1]), [0, 0], [A, B]).ids
    assert names is not None
    assert names.dtype == np.int64


def test_no_rows_at_all() -> None:
    for times in ([], np.array([], dtype=object)):
        none = Sequences.from_long([], times, [], states=[A], start=1)
        assert len(none) == 0


def test_masked_states_were_not_seen() -> None:
    state = np.ma.masked_array([A, B, C], [False, True, False])
    assert rows(Sequences.from_long([1, 1, 1], [0, 1, 2], state)) == [[0, -1, 1]]


# ------------------------------------------------------------------ views


def test_some_of_them() -> None:
    found = Sequences.of([[0, 1, -1], [2, -1, -1], [1, 1, 1]], weights=[1, 2, 3], ids=np.arange(3))
    some = found.take([2, 0, 2])
    assert rows(some) == [[1, 1, 1], [0, 1], [1, 1, 1]]
    assert some.weights is not None
    assert some.weights.tolist() == [3, 1, 3]
    assert some.ids is not None
    assert some.ids.tolist() == [2, 0, 2]
    assert rows(found.take(np.array([False, True, False]))) == [[2]]
    assert len(found.take(np.array([], dtype=int))) == 0


def test_trimmed() -> None:
    raw = Sequences(np.array([0, -1, -1, -1, 1]), np.array([0, 2, 3, 5, 5]), 2)
    assert rows(raw.trimmed()) == [[0], [], [-1, 1], []]
    assert raw.trimmed().trimmed() is not raw
    clean = Sequences.of([[0, 1]])
    assert clean.trimmed() is clean


@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(-1, 1), max_size=3), max_size=12),
    n_states=st.sampled_from([2, 300, 70_000]),
)
def test_distinct(parts: list[list[int]], n_states: int) -> None:
    codes = np.array([code for part in parts for code in part], dtype=np.int64)
    codes[codes == 1] = n_states - 1
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    given_ = Sequences(codes, offsets, n_states, np.arange(1.0, len(parts) + 1))
    part, inverse = given_.distinct()
    assert rows(part.take(inverse)) == rows(given_)
    listed = rows(part)
    assert listed == sorted(listed, key=lambda row: (len(row), row))
    assert len({tuple(row) for row in listed}) == len(listed)
    assert part.weights is not None
    for place, weight in enumerate(part.weights):
        assert weight == sum(i + 1 for i, which in enumerate(inverse) if which == place)


def test_distinct_rows_of_large_numbers() -> None:
    values = np.array([2**40, 1, 2**40, 1, 256, 0, 0, 256])
    places, inverse = distinct_rows(values, np.array([0, 2, 4, 6, 8]))
    assert inverse.tolist() == [2, 2, 1, 0]
    assert len(places) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 2], [0, 2], 2), "outside -1 to 1"),
        (([0, -2], [0, 2], 2), "outside -1 to 1"),
        (([0, 1], [0, 1], 2), "lead from 0 to the number of codes"),
        (([0, 1], [], 2), "lead from 0"),
        (([0, 1], [0, 2, 1, 2], 2), "not decrease"),
        (([0.5, 1], [0, 2], 2), "codes must be a list of whole numbers"),
        (([0, 1], [0, 2], 2, [-1.0]), "weights must be finite"),
        (([0, 1], [0, 2], 2, ["x"]), "weights must hold numbers"),
        (([0, 1], [0, 2], 2, [1.0, 1.0]), "one for each sequence"),
        (([0, 1], [0, 2], 2, None, ["a"]), "one name of its own"),
        (([0, 1], [0, 2], 2, None, ["a", "a"]), "one name of its own"),
        (([0, 1], [0, 2], 2, None, None, np.arange(2)), "ids must be one"),
    ],
)
def test_arrays_that_do_not_fit(arguments: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Sequences(*arguments)


def test_other_refusals() -> None:
    with pytest.raises(ParameterError, match="n_states"):
        Sequences(np.array([0]), np.array([0, 1]), 0)
    with pytest.raises(DataError, match="two-dimensional array of whole numbers"):
        Sequences.of([[0.5, 1.0]])
    with pytest.raises(DataError, match="two-dimensional"):
        Sequences.of([0, 1])

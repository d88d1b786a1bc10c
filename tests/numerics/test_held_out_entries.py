"""Errors at held-out entries: the curve, and the search over any path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import (
    EntryCurve,
    held_out_errors,
    held_out_predictions,
)

X = np.random.default_rng(0).normal(size=(8, 6))
X[0, 0] = np.nan
ENTRIES = Entries.of(X)
FOLDS = entry_folds(ENTRIES, 4, np.random.default_rng(1))


@dataclass
class Shrunken:
    """Column means of the training part times each parameter."""

    parameters: Sequence[Any] = (0.0, 0.5, 1.0)
    parameter: str = "share"
    natural: tuple[bool, bool] = (True, False)

    def predictions(self, train: Entries, rows: Any, columns: Any) -> Iterator[Any]:
        means = np.nanmean(train.dense(), axis=0)
        for share in self.parameters:
            yield share * means[columns]


@dataclass
class Growing(Shrunken):
    starts: list[Any] = field(default_factory=list)

    def go_on(
        self, train: Entries, parameters: Sequence[Any], start: Any, rows: Any, columns: Any
    ) -> Iterator[tuple[Any, Any]]:
        self.starts.append(start)
        for share in parameters:
            yield share * np.nanmean(train.dense(), axis=0)[columns], share


def textbook(shares: Sequence[float]) -> np.ndarray:
    """The same errors, entry by entry."""
    errors = np.zeros((4, len(shares)))
    for f in range(4):
        train = X.copy()
        held = f == FOLDS
        train[ENTRIES.rows[held], ENTRIES.columns[held]] = np.nan
        for k, share in enumerate(shares):
            squares = [
                (X[i, j] - share * np.nanmean(train[:, j])) ** 2
                for i, j, g in zip(ENTRIES.rows, ENTRIES.columns, FOLDS, strict=True)
                if g == f
            ]
            errors[f, k] = np.mean(squares)
    return errors


def test_errors_are_means_over_each_fold() -> None:
    curve = held_out_errors(ENTRIES, Shrunken(), FOLDS)
    np.testing.assert_allclose(curve.errors, textbook((0.0, 0.5, 1.0)), rtol=1e-12)
    assert curve.n_held.tolist() == np.bincount(FOLDS).tolist()
    assert curve.parameter == "share" and curve.natural == (True, False)
    assert curve.parameters.tolist() == [0, 0.5, 1]


def test_predictions_of_single_entries() -> None:
    folds = FOLDS.copy()
    folds[3] = -1
    curve, predicted = held_out_predictions(ENTRIES, Shrunken(), folds)
    assert predicted.shape == (ENTRIES.n_observed, 3)
    assert np.isnan(predicted[3]).all() and np.isfinite(np.delete(predicted, 3, axis=0)).all()
    squares = (predicted - ENTRIES.values[:, None]) ** 2
    for f in range(4):
        np.testing.assert_allclose(squares[folds == f].mean(axis=0), curve.errors[f])


def test_standard_errors_of_tables_are_sums_over_pairs_in_one_row_or_column() -> None:
    folds = np.where(np.arange(len(FOLDS)) % 7 == 0, -1, FOLDS)
    curve, predictions = held_out_predictions(ENTRIES, Growing(parameters=(0.0, 0.5)), folds)
    grown = held_out_errors(
        ENTRIES,
        Growing(parameters=(0.0,)),
        folds,
        grow=lambda found: [0.5] if len(found.parameters) == 1 else [],
    )
    held = np.flatnonzero(folds >= 0)
    for k in range(2):
        squares = (predictions[held, k] - ENTRIES.values[held]) ** 2
        away, total = squares - squares.mean(), 0.0
        for e, a in zip(held, away, strict=True):
            for f, b in zip(held, away, strict=True):
                same = (
                    ENTRIES.rows[e] == ENTRIES.rows[f] or ENTRIES.columns[e] == ENTRIES.columns[f]
                )
                total += a * b * same
        single = float(away @ away)
        wanted = np.sqrt(max(total, single)) / len(held)
        assert curve.table_se is not None and grown.table_se is not None
        assert curve.table_se[k] == pytest.approx(wanted, rel=1e-12)
        assert grown.table_se[k] == pytest.approx(wanted, rel=1e-12)


def test_gains_are_shares_of_the_errors_of_columns() -> None:
    """Of the simplest parameter; means over held entries, whatever a column's size."""
    folds = np.where(np.arange(len(FOLDS)) % 7 == 0, -1, FOLDS)
    curve, predictions = held_out_predictions(ENTRIES, Growing(parameters=(0.0, 0.5)), folds)
    grown = held_out_errors(
        ENTRIES,
        Growing(parameters=(0.0,)),
        folds,
        grow=lambda found: [0.5] if len(found.parameters) == 1 else [],
    )
    held = folds >= 0
    squares = (predictions[held] - ENTRIES.values[held, None]) ** 2
    columns, wanted = ENTRIES.columns[held], 0.0
    assert curve.column_errors is not None and grown.column_errors is not None
    for j in np.unique(columns):
        first, second = squares[columns == j].sum(axis=0)
        wanted += (columns == j).mean() * (1.0 - second / first)
        means = squares[columns == j].mean(axis=0)
        np.testing.assert_allclose(curve.column_errors[:, j], means, rtol=1e-12)
    np.testing.assert_allclose(grown.column_errors, curve.column_errors, rtol=1e-12)
    assert curve.column_gain is not None and grown.column_gain is not None
    np.testing.assert_allclose(curve.column_gain, [0.0, wanted], rtol=1e-12)
    np.testing.assert_allclose(grown.column_gain, curve.column_gain, rtol=1e-12)


def test_the_simplest_is_left_only_where_columns_gain() -> None:
    errors = [[3.0, 2.0, 2.5], [3.0, 2.0, 2.5]]
    lost, won = np.array([0.0, -0.01, 0.2]), np.array([0.0, 0.01, 0.2])
    assert curve_of(errors).minimiser == 1
    assert curve_of(errors, column_gain=won).minimiser == 1
    assert curve_of(errors, column_gain=lost).minimiser == 0
    # ranks from 2 on: nothing says that the smallest of them is none
    assert curve_of(errors, (False, True), column_gain=lost).minimiser == 1


def test_number_of_workers_does_not_matter() -> None:
    one = held_out_errors(ENTRIES, Shrunken(), FOLDS)
    import joblib

    with joblib.parallel_config("threading"):
        two = held_out_errors(ENTRIES, Shrunken(), FOLDS, n_jobs=2)
    assert (one.errors == two.errors).all()


def test_a_grid_that_grows_goes_on_where_it_stopped() -> None:
    path = Growing()
    curve = held_out_errors(
        ENTRIES,
        path,
        FOLDS,
        grow=lambda so_far: [1.5, 2.0] if len(so_far.parameters) == 3 else [],
        natural=lambda first, last: (first == 0.0, last == 2.0),
    )
    np.testing.assert_allclose(curve.errors, textbook((0.0, 0.5, 1.0, 1.5, 2.0)), rtol=1e-12)
    assert path.starts == [None] * 4 + [1.0] * 4
    assert curve.natural == (True, True)


def test_a_path_that_cannot_grow_says_so() -> None:
    with pytest.raises(ParameterError, match="ends with its parameters"):
        held_out_errors(ENTRIES, Shrunken(), FOLDS, grow=lambda curve: [2.0])


class Wrong(Shrunken):
    kind = "short"

    def predictions(self, train: Entries, rows: Any, columns: Any) -> Iterator[Any]:
        if self.kind == "few":
            yield np.zeros(len(rows))
        elif self.kind == "many":
            yield from [np.zeros(len(rows))] * 4
        elif self.kind == "short":
            yield np.zeros(len(rows) - 1)
        else:
            yield np.full(len(rows), np.nan)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("few", "1 predictions for 3"), ("many", "more"), ("short", "every"), ("nan", "finite")],
)
def test_predictions_are_checked(kind: str, words: str) -> None:
    path = Wrong()
    path.kind = kind
    with pytest.raises(DataError, match=words):
        held_out_errors(ENTRIES, path, FOLDS)


@pytest.mark.parametrize(
    ("folds", "words"),
    [
        (FOLDS[1:], "one number for each"),
        (FOLDS * 2, "without gaps"),
        (np.zeros_like(FOLDS), "nothing is left"),
        (np.full_like(FOLDS, -1), "numbered from 0"),
    ],
)
def test_folds_are_checked(folds: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        held_out_errors(ENTRIES, Shrunken(), folds)


# ------------------------------------------------------------------ the curve


def curve_of(errors: Any, natural: tuple[bool, bool] = (True, True), **more: Any) -> EntryCurve:
    errors = np.asarray(errors, dtype=float)
    parameters = np.arange(errors.shape[1])
    n_held = np.full(len(errors), 10)
    return EntryCurve("rank", parameters, errors, n_held, natural, **more)


def test_mean_and_standard_error() -> None:
    curve = curve_of([[4.0, 1.0, 2.0], [2.0, 3.0, 2.0]])
    np.testing.assert_allclose(curve.mean, [3, 2, 2])
    np.testing.assert_allclose(curve.se, [1, 1, 0])
    assert (curve.minimiser, curve.best) == (1, 1)  # of equal ones the simplest
    assert curve.one_standard_error == 0  # 3 <= 2 + 1
    assert curve.place("minimum") == 1 and curve.place("one-standard-error") == 0


def test_errors_that_differ_by_rounding_are_one() -> None:
    assert curve_of([[3.0, 2.0, 2.0 - 1e-12]]).best == 1
    assert curve_of([[3.0, 2.0, 2.0 - 1e-8]]).best == 2
    # exact fits of a table without noise
    assert curve_of([[3.0, 1e-14, 1e-20]]).best == 1
    assert curve_of([[3.0, 1e-10, 1e-14]]).best == 2
    assert curve_of([[0.0, 0.0]]).best == 0


def test_unequal_folds_are_weighted() -> None:
    curve = EntryCurve.of_sums("rank", [0, 1], [[30.0, 3.0], [10.0, np.nan]], [30, 5])
    np.testing.assert_allclose(curve.errors, [[1, 0.1], [2, np.nan]])
    np.testing.assert_allclose(curve.mean, [40 / 35, 0.1])
    assert np.isnan(curve.se[1]) and curve.minimiser == 1


def test_one_fold_has_no_standard_error_unless_one_is_given() -> None:
    assert np.isnan(curve_of([[2.0, 1.0]]).se).all()
    assert curve_of([[2.0, 1.0]]).one_standard_error == 1
    assert curve_of([[2.0, 1.0]], given_se=np.array([0.5, 1.0])).one_standard_error == 0


def test_nothing_known() -> None:
    curve = curve_of([[np.nan, np.nan]], (False, False))
    assert (curve.minimiser, curve.best, curve.edge) == (-1, None, None)
    assert curve.one_standard_error == -1


@pytest.mark.parametrize(
    ("errors", "natural", "edge"),
    [
        ([[1.0, 2.0, 3.0]], (False, False), "first"),
        ([[1.0, 2.0, 3.0]], (True, False), None),
        ([[3.0, 2.0, 1.0]], (True, False), "last"),
        ([[3.0, 2.0, 1.0]], (True, True), None),
        ([[3.0, 1.0, 2.0]], (False, False), None),
        ([[1.0]], (True, False), "last"),
        ([[1.0]], (True, True), None),
    ],
)
def test_artificial_edges(errors: Any, natural: tuple[bool, bool], edge: str | None) -> None:
    curve = curve_of(errors, natural)
    assert curve.edge == edge and curve.at_edge is (edge is not None)
    remark = curve.edge_remark()
    assert (remark is None) == (edge is None)
    if edge is not None and len(errors[0]) > 1:
        assert ("simpler" if edge == "first" else "more complex") in str(remark)


def test_table_of_the_curve() -> None:
    table = curve_of([[4.0, 1.0], [2.0, 3.0]]).to_frame()
    assert list(table) == ["rank", "error", "standard_error", "fold_0", "fold_1"]
    assert table["error"].tolist() == [3, 2]


def test_rule_is_checked() -> None:
    with pytest.raises(ParameterError, match="rule"):
        curve_of([[1.0]]).place("best")

"""What may leave of squared errors of held-out entries."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from consilience.completion.one_table.entry_study import Search, Searched
from consilience.protocol.phases.entry_errors import (
    entry_seed,
    few_missing,
    merged,
    nothing_released,
    released_errors,
    squared_errors_by_row,
    two_digits,
)
from consilience.wire.disclosure import Limits
from tests.wire.replies import refusal

OPEN = Limits(min_records=1, max_share=1.0, min_entities=1)


def drawn(
    n: int = 100, p: int = 4, f: int = 5, a: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, folds and squared errors of the entries of a complete table."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(n), p)
    return rows, rng.permutation(np.arange(n * p) % f), rng.chisquare(2, (n * p, a))


def test_sums_by_row_and_fold() -> None:
    rows, folds, squares = drawn()
    folds = np.where(np.arange(len(folds)) == 7, -1, folds)
    found = squared_errors_by_row(rows, folds, squares, (100, 5))
    for row in (0, 1, 99):
        for fold in range(5):
            mine = (rows == row) & (folds == fold)
            if mine.any():
                np.testing.assert_allclose(found[row, fold], squares[mine].sum(axis=0))
            else:
                assert np.isnan(found[row, fold]).all()
    np.testing.assert_allclose(np.nansum(found, axis=(0, 1)), squares[folds >= 0].sum(axis=0))


def test_where_nothing_is_protected_every_fold_leaves() -> None:
    rows, folds, squares = drawn()
    by_row = squared_errors_by_row(rows, folds, squares, (100, 5))
    found = released_errors(by_row, folds, n_missing=0, limits=OPEN)
    means = np.stack([squares[folds == f].mean(axis=0) for f in range(5)])
    entries = found.entries.value
    np.testing.assert_allclose(found.errors.value / entries[:, None], means)
    np.testing.assert_allclose(found.se.value, means.std(axis=0, ddof=1) / np.sqrt(5))
    assert entries.tolist() == [80] * 5 and entries.dtype == float


def test_a_fold_that_one_row_dominates_goes_with_another() -> None:
    rows, folds, squares = drawn()
    squares[3] = squares[folds == folds[3]].sum(axis=0) * 1.2
    by_row = squared_errors_by_row(rows, folds, squares, (100, 5))
    found = released_errors(by_row, folds, n_missing=0, limits=Limits())
    lines = len(found.errors.value)
    assert 1 <= lines < 5
    np.testing.assert_allclose(found.errors.value.sum(axis=0), squares.sum(axis=0))
    assert found.entries.value.sum() == 400
    evidence = found.errors.evidence
    assert evidence is not None and evidence.share is not None and evidence.records is not None
    assert (evidence.share <= 0.5).all() and (evidence.records >= 10).all()
    # The errors behind the bars are those of all folds, told to two digits.
    means = np.stack([squares[folds == f].mean(axis=0) for f in range(5)])
    se = means.std(axis=0, ddof=1) / np.sqrt(5)
    np.testing.assert_array_equal(found.se.value, two_digits(se))


def test_nothing_leaves_where_one_row_makes_most_of_everything() -> None:
    rows, folds, squares = drawn()
    squares[3] = 1e6
    by_row = squared_errors_by_row(rows, folds, squares, (100, 5))
    found = released_errors(by_row, folds, n_missing=0, limits=Limits())
    assert found.errors.value.shape == (0, 3) and np.isnan(found.se.value).all()
    assert nothing_released(3).entries.value.shape == (0,)


@pytest.mark.parametrize(("n", "lines"), [(100, 5), (18, 5), (17, 3), (12, 3), (11, 2), (9, 0)])
def test_there_are_never_more_figures_than_rows(n: int, lines: int) -> None:
    rows, folds, squares = drawn(n=n, p=40, a=3)
    by_row = squared_errors_by_row(rows, folds, squares, (n, 5))
    found = released_errors(by_row, folds, n_missing=0, limits=Limits())
    assert len(found.errors.value) == lines
    if lines:
        assert (lines + 1) * 3 <= n


@pytest.mark.parametrize("n_folds", [2, 3, 5, 7, 10, 20])
def test_lines_of_fewer_rows_are_unions_of_lines_of_more(n_folds: int) -> None:
    """So that two runs, of which one asks for more candidates, cannot be subtracted."""
    rows, folds, squares = drawn(n=2000, p=2, f=n_folds, a=30)
    by_row = squared_errors_by_row(rows, folds, squares, (2000, n_folds))
    found = []
    for a in (1, 2, 30):
        for n in (2000, 200, 100, 60):
            few = Limits(min_records=2, max_share=1.0)
            part = by_row[:n, :, :a]
            if (lines := released_errors(part, folds, n_missing=0, limits=few)).errors.value.size:
                found.append((n, lines.errors.value[:, 0]))
    for n in (2000, 200, 100, 60):
        same = sorted((line for m, line in found if m == n), key=len, reverse=True)
        for fine, coarse in itertools.pairwise(same):
            left = list(fine)
            for value in coarse:  # neighbours, in their order
                total = 0.0
                while left and total < value * (1 - 1e-12):
                    total += left.pop(0)
                assert total == pytest.approx(value)
            assert not left


def test_few_missing_cells_are_counted_as_if_they_were_there() -> None:
    rows, folds, squares = drawn()
    keep = np.arange(400) >= 4
    by_row = squared_errors_by_row(rows[keep], folds[keep], squares[keep], (100, 5))
    told = released_errors(by_row, folds[keep], n_missing=4, limits=Limits()).entries.value
    assert told.sum() == 400
    many = released_errors(by_row, folds[keep], n_missing=12, limits=Limits()).entries.value
    assert many.sum() == 396
    assert few_missing(9, Limits()) and not few_missing(10, Limits())
    assert not few_missing(0, Limits()) and not few_missing(1, OPEN)


def test_lines_are_put_together_by_sums() -> None:
    values = np.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(merged(values, 1), values.sum(axis=0, keepdims=True))
    np.testing.assert_allclose(merged(values, 2).sum(axis=0), values.sum(axis=0))
    np.testing.assert_array_equal(merged(values, 5), values)


def test_the_seed_is_a_digest_of_protected_values_and_public_otherwise() -> None:
    class Site:
        limits = Limits()
        rng: Any = None

    values = np.arange(12.0).reshape(4, 3)
    first = entry_seed(values, Site(), "one")  # type: ignore[arg-type]
    assert first == entry_seed(values.copy(), Site(), "one")  # type: ignore[arg-type]
    others = {
        entry_seed(values, Site(), "two"),  # type: ignore[arg-type]
        entry_seed(values.reshape(3, 4), Site(), "one"),  # type: ignore[arg-type]
        entry_seed(values + 1e-9, Site(), "one"),  # type: ignore[arg-type]
    }
    assert first not in others and len(others) == 3 and first >= 0
    Site.limits, Site.rng = OPEN, np.random.default_rng(3)
    wanted = int(np.random.default_rng(3).integers(2**63 - 1))
    assert entry_seed(values, Site(), "one") == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "entries", "fine"),
    [
        (1e190, 5.0, True),
        (1e260, 5.0, False),
        (np.nan, 5.0, False),
        (-1.0, 5.0, False),
        (1.0, 5.5, False),
        (1.0, 0.0, False),
        (1.0, 2.0**51, False),
    ],
)
def test_told_errors_may_be_those_of_large_entries(size: float, entries: float, fine: bool) -> None:
    fields = {
        "n_rows": 9,
        "n_columns": 4,
        "n_observed": 30,
        "errors": np.full((2, 3), size),
        "entries": np.full(2, entries),
        "se": np.ones(3),
        "final": np.zeros(0),
        "final_entries": 0,
        "sizes": np.zeros(0),
        "centres": np.zeros((0, 0)),
        "figures": {},
    }
    request = Search(settings={"n_splits": 2}, names=("a", "b", "c"))
    assert (refusal(Searched, fields, request, {"p": 4}) == "") is fine
    assert refusal(Searched, fields, request, {"p": 5}), "other columns than the study's"
    one = Search(settings={"n_splits": 1}, names=("a", "b", "c"))
    assert refusal(Searched, fields, one, {"p": 4}), "more folds than were asked for"

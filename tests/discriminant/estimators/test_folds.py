"""Folds: numbers, groups, splitters, row numbers and masks, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import (
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
)

from consilience import CommunityBayesClassifier, SparseQDA
from consilience.discriminant.estimators.folds import folds_of
from consilience.exceptions import ConsilienceError, DataError, ParameterError
from consilience.numerics.random import stream

X = stream(0).standard_normal((40, 3))
Y = np.repeat([0, 1, 2], [20, 13, 7])
GROUPS = np.arange(40) // 2


def same(found: Any, wanted: Any) -> None:
    wanted = list(wanted)
    assert len(found) == len(wanted)
    for (a, b), (c, d) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)


def test_a_number_is_stratified_folds_of_rows_or_groups() -> None:
    same(folds_of(4, X, Y), StratifiedKFold(4).split(X, Y))
    same(folds_of(np.int64(4), X, Y), StratifiedKFold(4).split(X, Y))
    same(folds_of(None, X, Y), StratifiedKFold(5).split(X, Y))
    same(folds_of(5, X, Y, GROUPS), StratifiedGroupKFold(5).split(X, Y, GROUPS))
    for _, test in folds_of(5, X, Y, GROUPS):
        assert not np.isin(GROUPS[np.setdiff1d(np.arange(40), test)], GROUPS[test]).any()
    three = GROUPS % 3
    same(folds_of(5, X, Y, three), StratifiedGroupKFold(3).split(X, Y, three))
    names = [f"speaker {g}" for g in GROUPS]
    same(folds_of(5, X, Y, names), StratifiedGroupKFold(5).split(X, Y, names))


@pytest.mark.filterwarnings("ignore:The least populated class")
def test_fewer_folds_where_classes_are_small() -> None:
    same(folds_of(10, X, Y), StratifiedKFold(10).split(X, Y))
    same(folds_of(99, X, Y), StratifiedKFold(20).split(X, Y))
    same(folds_of(10, X, Y, every_class=True), StratifiedKFold(7).split(X, Y))
    rare = np.where(np.arange(40) == 3, 3, Y)
    same(folds_of(10, X, rare, every_class=True), StratifiedKFold(2).split(X, rare))
    same(folds_of(10, X, Y, GROUPS, every_class=True), folds_of(10, X, Y, GROUPS))


def test_splitters_pairs_and_masks() -> None:
    same(folds_of(LeaveOneGroupOut(), X, Y, GROUPS), LeaveOneGroupOut().split(X, Y, GROUPS))
    given = list(KFold(3).split(X))
    same(folds_of(given, X, Y), given)
    same(folds_of((pair for pair in given), X, Y), given)
    same(folds_of([(a.tolist(), b.tolist()) for a, b in given], X, Y), given)
    masks = [tuple(np.isin(np.arange(40), rows) for rows in pair) for pair in given]
    same(folds_of(masks, X, Y), given)
    same(folds_of([(a.tolist(), b.tolist()) for a, b in masks], X, Y), given)
    held = PredefinedSplit(np.where(np.arange(40) < 9, 0, -1))
    same(folds_of(held, X, Y), [(np.arange(9, 40), np.arange(9))])


ALL = np.arange(40)


@pytest.mark.parametrize(
    ("cv", "groups", "kind", "sentence"),
    [
        (True, None, ParameterError, "at least 2 folds.* but True was given"),
        (False, None, ParameterError, "at least 2 folds.* but False was given"),
        (1, None, ParameterError, "at least 2 folds.* but 1 was given"),
        (-3, GROUPS, ParameterError, "at least 2 folds.* but -3 was given"),
        (5.0, None, ParameterError, "at least 2 folds.* but 5.0 was given"),
        ("5", None, ParameterError, "at least 2 folds.* but '5' was given"),
        ([], None, ParameterError, "at least 2 folds.* but 'no fold' was given"),
        (StratifiedKFold(21), None, ParameterError, "StratifiedKFold, cannot split these rows"),
        (LeaveOneGroupOut(), None, ParameterError, "LeaveOneGroupOut, cannot split .*groups"),
        (5, GROUPS[:-1], ParameterError, "one entry for each row"),
        (5, np.zeros(40), ParameterError, "two groups"),
        ([3, 4], None, ParameterError, "fold 1 of cv must be a pair"),
        ([(ALL, ALL[:4]), (ALL, ALL, ALL)], None, ParameterError, "fold 2 of cv must be a pair"),
        ([(ALL, [])], None, DataError, "fold 1 of the cross-validation holds out no rows"),
        ([(ALL > 40, ALL > 3)], None, DataError, "fold 1 .* trains on no rows"),
        ([(ALL, ALL[:9] > 3)], None, ParameterError, "from 0 to 39, or masks of 40 booleans"),
        ([(ALL, [40])], None, ParameterError, "from 0 to 39"),
        ([(ALL, [-1])], None, ParameterError, "from 0 to 39"),
        ([(ALL, [0.5])], None, ParameterError, "from 0 to 39"),
        ([(ALL, [[1, 2]])], None, ParameterError, "from 0 to 39"),
        ([(ALL, (ALL > 9).astype(int))], None, ParameterError, "holds out a row twice"),
    ],
)
def test_what_is_refused(cv: Any, groups: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        folds_of(cv, X, Y, groups)
    assert "\n" not in str(caught.value)


def test_classes_of_one_row_have_no_folds() -> None:
    with pytest.raises(DataError, match="every class has one row only"):
        folds_of(2, X[:3], np.arange(3), every_class=True)


# ------------------------------------------------------------------ both estimators


def noisy() -> tuple[Any, Any]:
    """Four rows of each of 30 speakers, who lie together: classes are noise, speakers are not."""
    rng = stream(1)
    x = np.repeat(rng.standard_normal((30, 3)), 4, axis=0) + 0.05 * rng.standard_normal((120, 3))
    return x, rng.integers(2, size=120)


def wrong_by_fold(model: Any, x: Any, y: Any, **more: Any) -> Any:
    fit = model.fit(x, y, **more)
    return fit.path_.cv_wrong if isinstance(fit, SparseQDA) else fit.cv_results_["fold_wrong"]


MODELS = {
    "sparse QDA": lambda cv: SparseQDA(alphas=[0.3, 0.01], cv=cv),
    "community Bayes": lambda cv: CommunityBayesClassifier(candidates=[1, 3], cv=cv),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_masks_judge_as_row_numbers_do(model: Any) -> None:
    x, y = noisy()
    numbers = list(StratifiedKFold(3).split(x, y))
    masks = [tuple(np.isin(np.arange(120), rows) for rows in pair) for pair in numbers]
    wanted = wrong_by_fold(model(numbers), x, y)
    assert wanted.sum() > 0
    np.testing.assert_array_equal(wrong_by_fold(model(masks), x, y), wanted)
    np.testing.assert_array_equal(wrong_by_fold(model(3), x, y), wanted)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_groups_are_held_out_together_with_a_number(model: Any) -> None:
    x, y = noisy()
    groups = stream(2).permutation(120) % 30
    whole = wrong_by_fold(model(StratifiedGroupKFold(4)), x, y, groups=groups)
    found = wrong_by_fold(model(4), x, y, groups=groups)
    np.testing.assert_array_equal(found, whole)
    assert (found != wrong_by_fold(model(4), x, y)).any()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("cv", [True, 1, 5.0, [], [(ALL, ALL > 50)], [3]])
def test_both_refuse_in_one_sentence(model: Any, cv: Any) -> None:
    with pytest.raises(ConsilienceError) as caught:
        model(cv).fit(*noisy())
    assert "\n" not in str(caught.value) and "n_splits" not in str(caught.value)

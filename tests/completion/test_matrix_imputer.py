"""MatrixImputer in pipelines and grid searches, and the score of every completion model."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience import (
    EMLift,
    HardImpute,
    MatrixImputer,
    NuclearNormCV,
    ObservedKMeans,
    OptSpace,
    ProbabilisticPCA,
    SoftImpute,
)
from consilience.completion.estimators import entry_input
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import row_folds


@parametrize_with_checks([MatrixImputer(SoftImpute()), MatrixImputer(HardImpute(center="columns"))])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def table(n: int = 60, p: int = 8, rank: int = 2, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p)) + 0.2 * rng.normal(size=(n, p))
    x[rng.random(x.shape) < 0.2] = np.nan
    x[3] = np.nan
    x[4, 1:] = np.nan
    return x


X = table()
MODELS: dict[str, Any] = {
    "soft": SoftImpute(1.0, center="rows-and-columns"),
    "hard": HardImpute(2),
    "lift": EMLift(PCA(1), tol=1e-10),
    "search": NuclearNormCV([4.0, 1.0, 0.2], cv=2, random_state=0),
}


# ------------------------------------------------------------------ filling


def test_gaps_are_filled_and_what_is_observed_stays() -> None:
    filled = MatrixImputer().fit(X[:40]).transform(X[40:])
    seen = np.isfinite(X[40:])
    assert filled.shape == X[40:].shape and np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[seen], X[40:][seen])


@pytest.mark.parametrize("name", MODELS)
def test_fills_are_those_of_the_model(name: str) -> None:
    imputer = MatrixImputer(MODELS[name])
    own = clone(MODELS[name]).fit(X)
    np.testing.assert_array_equal(imputer.fit_transform(X), own.complete(X))
    np.testing.assert_array_equal(imputer.reconstruct(), own.reconstruct())
    rows, columns = np.array([0, 3]), np.array([1, 2])
    cells = imputer.predict_entries(rows, columns)
    np.testing.assert_allclose(cells, own.predict_entries(rows, columns))
    assert not hasattr(imputer.estimator, "n_features_in_")  # a copy was fitted


def test_frames_keep_their_names_and_sparse_tables_are_read_as_observed_entries() -> None:
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    imputer = MatrixImputer(SoftImpute(1.0)).set_output(transform="pandas").fit(frame)
    filled = imputer.transform(frame)
    assert list(filled.columns) == list(frame.columns) == list(imputer.get_feature_names_out())
    stored = np.isfinite(X)
    sparse = csr_array((X[stored], np.nonzero(stored)), shape=X.shape)
    np.testing.assert_allclose(MatrixImputer(SoftImpute(1.0)).fit_transform(sparse), filled)


def test_a_grid_search_without_a_scorer_finds_the_rank_and_a_pipeline_the_classes() -> None:
    grid = {"estimator__rank": [1, 2, 3]}
    search = GridSearchCV(MatrixImputer(HardImpute()), grid, cv=3).fit(table(120, 20, seed=1))
    assert search.best_params_ == {"estimator__rank": 2}
    y = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) > 0
    pipe = make_pipeline(MatrixImputer(SoftImpute()), LogisticRegression())
    found = GridSearchCV(pipe, {"matriximputer__estimator__alpha": [0.5, 2.0]}, cv=3).fit(X, y)
    assert found.best_score_ > 0.8


class Means:
    """A model of another hand: the means of the columns."""

    def fit(self, X: np.ndarray) -> Self:
        self.means = np.nanmean(X, axis=0)
        return self

    def reconstruct(self, X: np.ndarray | None = None) -> np.ndarray:
        return np.tile(self.means, (60 if X is None else len(X), 1))


def test_any_object_that_reconstructs_rows_will_do() -> None:
    imputer = MatrixImputer(Means()).fit(X)
    assert imputer.transform(X)[3] == pytest.approx(np.nanmean(X, axis=0))
    assert imputer.predict_entries([0], [2]) == pytest.approx(np.nanmean(X[:, 2]))
    assert imputer.score(X) == pytest.approx(-np.nanmean((X - np.nanmean(X, 0))[few(X)] ** 2))


def few(x: np.ndarray) -> np.ndarray:
    """Rows with two entries or more."""
    return np.asarray(np.isfinite(x).sum(axis=1) > 1)


def test_what_is_no_model_of_a_matrix_with_gaps_is_refused() -> None:
    for wrong in (PCA(), SoftImpute, "soft"):
        with pytest.raises(ParameterError, match="fit and reconstruct"):
            MatrixImputer(wrong).fit(X)
    for model in (ObservedKMeans(2), None):
        with pytest.raises(ParameterError, match="takes no sample_weight"):
            MatrixImputer(model).fit(X, sample_weight=np.ones(len(X)))


# ------------------------------------------------------------------ the score


def slow_score(model: Any, x: np.ndarray, weights: np.ndarray) -> float:
    """Row by row, fold by fold, entry by entry."""
    entries = Entries.of(x)
    folds = row_folds(entries, 5, np.random.default_rng(0))
    total = counted = 0.0
    for i in range(len(x)):
        for fold in range(5):
            row = x[i].copy()
            mine = entries.columns[(entries.rows == i) & (folds == fold)]
            row[mine] = np.nan
            whole = x.copy()  # beside other rows: the fit does not depend on them
            whole[i] = row
            for j in mine:
                total += weights[i] * (model.reconstruct(whole)[i, j] - x[i, j]) ** 2
                counted += weights[i]
    return -total / counted


@pytest.mark.parametrize("name", MODELS)
def test_score_is_the_error_of_entries_from_the_rest_of_their_row(name: str) -> None:
    rows, weights = X[:9], np.arange(9.0)
    model = clone(MODELS[name]).fit(X[9:])
    slow = slow_score(model, rows, weights)
    assert model.score(rows, sample_weight=weights) == pytest.approx(slow, rel=1e-7)
    assert MatrixImputer(MODELS[name]).fit(X[9:]).score(rows) == model.score(rows)
    assert model.score(rows) == pytest.approx(model.score(rows, sample_weight=np.full(9, 3.0)))


def test_batches_of_rows_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SoftImpute(1.0).fit(X)
    whole = model.score(X)
    monkeypatch.setattr(entry_input, "_SCORE_CELLS", 7 * X.shape[1])
    assert model.score(X) == pytest.approx(whole, rel=1e-12)


def test_folds_within_rows_are_even_and_leave_a_row_something() -> None:
    entries = Entries.of(X)
    folds = row_folds(entries, 5, np.random.default_rng(3))
    for i in range(len(X)):
        mine = folds[entries.rows == i]
        if len(mine) == 1:
            assert mine[0] == -1
        elif len(mine):
            sizes = np.bincount(mine, minlength=5)
            assert sizes.max() - sizes.min() <= 1
    assert np.bincount(folds[folds >= 0]).max() < 1.3 * entries.n_observed / 5


def test_a_score_needs_two_entries_of_a_row_that_counts() -> None:
    model = SoftImpute(1.0).fit(X)
    with pytest.raises(DataError, match="two entries"):
        model.score(X[4:5])
    with pytest.raises(DataError, match="two entries"):
        model.score(X[3:6], sample_weight=[0.0, 1.0, 0.0])
    with pytest.raises(DataError, match="one for each row"):
        model.score(X, sample_weight=[1.0])


def test_a_density_scores_by_its_likelihood_with_weights_of_rows() -> None:
    model = ProbabilisticPCA(1).fit(X)
    rows = model.score_samples(X[:3])
    weighted = model.score(X[:3], sample_weight=[1, 0, 3])
    assert weighted == pytest.approx((rows[0] + 3 * rows[2]) / 4)


def test_classes_score_by_their_sum_of_squares_with_weights_of_rows() -> None:
    model = ObservedKMeans(2, random_state=0).fit(X)
    twice = model.score(np.vstack([X[:3], X[2:3]]))
    assert model.score(X[:3], sample_weight=[1, 1, 2]) == pytest.approx(twice)


# ------------------------------------------------------------------ weights of rows


@pytest.mark.parametrize("center", ["none", "columns", "rows-and-columns"])
@pytest.mark.parametrize(
    "model",
    [
        SoftImpute(2.0, tol=1e-12),
        SoftImpute(2.0, tol=1e-12, solver="als", unshrink=True),
        HardImpute(1, tol=1e-9, max_iter=20_000),
        OptSpace(1, tol=1e-9, max_iter=20_000),
    ],
)
def test_a_row_of_weight_two_stands_twice_and_one_of_weight_zero_not_at_all(
    model: Any, center: str
) -> None:
    times = np.random.default_rng(2).integers(0, 4, size=len(X))
    model = clone(model).set_params(center=center)
    weighted = clone(model).fit(X, sample_weight=times)
    repeated = clone(model).fit(np.repeat(X, times, axis=0))
    np.testing.assert_allclose(weighted.singular_values_, repeated.singular_values_, rtol=1e-5)
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, atol=1e-5)
    own = np.repeat(weighted.reconstruct(), times, axis=0)
    np.testing.assert_allclose(own, repeated.reconstruct(), atol=1e-4)
    out = times == 0
    np.testing.assert_allclose(
        weighted.reconstruct()[out], weighted.reconstruct(X[out]), atol=1e-12
    )


@pytest.mark.parametrize(
    "weights", [[1.0], np.full(60, -1.0), np.full(60, np.nan), ["a"] * 60, np.zeros(60)]
)
def test_weights_are_numbers_of_zero_or_more_one_for_each_row(weights: Any) -> None:
    with pytest.raises(DataError, match="sample_weight"):
        SoftImpute(1.0).fit(X, sample_weight=weights)

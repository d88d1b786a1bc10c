"""Folds of entries and errors over them, for any estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from consilience import ClusterCountCV, EntrywiseKFold, HardImpute, RankCV, cross_validate_entries
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries

rng = np.random.default_rng(0)
X = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 8)) + 0.1 * rng.normal(size=(20, 8))
X[rng.random(X.shape) < 0.1] = np.nan


def test_every_entry_is_held_out_once() -> None:
    folds = EntrywiseKFold(4, random_state=0)
    seen = np.zeros(X.shape)
    for train, held in folds.split(X):
        assert train.n_observed + held.n_observed == np.isfinite(X).sum()
        assert np.isnan(train.dense()[held.rows, held.columns]).all()
        seen[held.rows, held.columns] += 1
    np.testing.assert_array_equal(seen, np.isfinite(X))
    assert folds.get_n_splits(X) == 4


def test_an_integer_seed_draws_the_same_folds_each_time() -> None:
    folds = EntrywiseKFold(4, random_state=1)
    assert (folds.folds(X) == folds.folds(X)).all()
    drawn = EntrywiseKFold(4, random_state=np.random.default_rng(1))
    assert (drawn.folds(X) != drawn.folds(X)).any()
    old = EntrywiseKFold(4, random_state=np.random.RandomState(3))
    assert (old.folds(X) == EntrywiseKFold(4, random_state=3).folds(X)).all()
    assert set(EntrywiseKFold(4).folds(X)) == {0, 1, 2, 3}
    with pytest.raises(ParameterError, match="random_state"):
        EntrywiseKFold(random_state="a").folds(X)


def test_folds_of_a_sparse_matrix_are_of_its_stored_entries() -> None:
    entries = Entries.of(X)
    stored = sparse.coo_matrix((entries.values, (entries.rows, entries.columns)), shape=X.shape)
    folds = EntrywiseKFold(3, random_state=0)
    assert (folds.folds(stored) == folds.folds(X)).all()


class ColumnMeans:
    """No estimator of scikit-learn: just the two methods, and a scale."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.fits = 0

    def fit(self, X: Any) -> ColumnMeans:
        self.fits += 1
        self.shape = X.shape
        self.means = np.nanmean(X, axis=0)
        return self

    def reconstruct(self) -> Any:
        return np.tile(self.scale * self.means, (self.shape[0], 1))


def test_any_object_with_fit_and_reconstruct() -> None:
    models = [ColumnMeans(0.0), ColumnMeans(1.0), ColumnMeans(2.0)]
    curve = cross_validate_entries(X + 10, models, EntrywiseKFold(3, random_state=0))
    assert curve.best == 1 and curve.parameters.tolist() == [0, 1, 2]
    assert curve.errors.shape == (3, 3)
    assert curve.mean[0] == pytest.approx(np.nanmean((X + 10) ** 2))
    assert [model.fits for model in models] == [0, 0, 0]  # copies are fitted
    assert not curve.at_edge


def test_mapping_of_values_to_estimators_is_the_search_over_an_object() -> None:
    folds = EntrywiseKFold(3, random_state=0)
    curve = cross_validate_entries(X, {k: HardImpute(k) for k in (1, 2, 3)}, folds)
    search = RankCV(HardImpute(), ranks=[1, 2, 3], cv=folds, refit=False).fit(X)
    assert curve.parameters.tolist() == [1, 2, 3] and curve.best == 2
    np.testing.assert_array_equal(curve.errors, search.curve_.errors)


def test_few_observed_entries_reach_the_estimator_as_a_sparse_matrix() -> None:
    class Told(ColumnMeans):
        def fit(self, X: Any) -> Told:
            if not sparse.issparse(X):
                raise AssertionError("dense")
            return self

        def predict_entries(self, rows: Any, columns: Any) -> Any:
            return np.zeros(len(rows))

    few = sparse.random(200, 30, density=0.05, random_state=0)
    curve = cross_validate_entries(few, [Told(1.0)], 2)
    assert curve.mean[0] == pytest.approx((few.data**2).mean(), rel=0.05)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([], "path must be"),
        ({None: HardImpute(1), (1, 2): HardImpute(2)}, "keys of a path must be numbers or words"),
        ("hard", "path must be"),
        ([object()], "path must be"),
        (HardImpute(1), "path must be"),
    ],
)
def test_what_is_no_path(path: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        cross_validate_entries(X, path)


def test_reconstruction_of_another_shape_is_refused() -> None:
    class Half(ColumnMeans):
        def reconstruct(self) -> Any:
            return super().reconstruct()[:10]

    with pytest.raises(ParameterError, match="20 x 8, but it gave 10 x 8"):
        cross_validate_entries(X, [Half(1.0)])


def test_bad_folds() -> None:
    with pytest.raises(ParameterError, match="folds"):
        cross_validate_entries(X, [ColumnMeans(1.0)], "five")
    with pytest.raises(DataError, match="one number for each"):
        cross_validate_entries(X, [ColumnMeans(1.0)], np.array([0, 1]))
    with pytest.raises(ParameterError, match="folds must be between 2 and 143, "):
        cross_validate_entries(X, [ColumnMeans(1.0)], 161)


def test_labels_that_are_no_whole_numbers_are_not_printed() -> None:
    labels = np.arange(X.size) % 5 + 0.125
    with pytest.raises(ParameterError, match=r"folds must be .* float64 of shape \(160,\)") as said:
        cross_validate_entries(X, [ColumnMeans(1.0)], labels)
    assert "0.125" not in str(said.value) and len(str(said.value)) < 150


def test_blocks_of_columns() -> None:
    """One class of two blocks of like columns: scattered entries cut it, blocks do not."""
    rng = np.random.default_rng(3)
    shared = np.repeat(rng.standard_normal((100, 2)), 5, axis=1)
    x = np.sqrt(0.8) * shared + np.sqrt(0.2) * rng.standard_normal((100, 10))
    search = ClusterCountCV(n_clusters=4, cv=5, random_state=0).fit(x)
    assert search.n_clusters_ == 4
    assert any("EntrywiseKFold(blocks=" in remark for remark in search.remarks_)
    for blocks in (5, [7] * 5 + [2] * 5):
        folds = EntrywiseKFold(5, blocks=blocks, random_state=0)
        assert repr(folds) == f"EntrywiseKFold(n_splits=5, blocks={blocks}, random_state=0)"
        search.set_params(cv=folds).fit(x)
        assert search.n_clusters_ == 1
    rows = [EntrywiseKFold(5, blocks=b, random_state=0).folds(x) for b in (5, [7] * 5 + [2] * 5)]
    assert (rows[0].reshape(100, 2, 5) == rows[0].reshape(100, 2, 5)[:, :, :1]).all()
    assert sorted(np.bincount(rows[0])) == sorted(np.bincount(rows[1]))


@pytest.mark.parametrize("blocks", [0, -1, 1.5, "a", [1, 2], [[1] * 10], True])
def test_no_such_blocks(blocks: Any) -> None:
    with pytest.raises(ParameterError, match="blocks must be"):
        EntrywiseKFold(2, blocks=blocks).folds(np.ones((4, 10)))

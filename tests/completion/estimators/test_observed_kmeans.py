"""K-means and k-POD of tables with gaps as estimators."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import nan_euclidean_distances
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.completion.estimators.observed_kmeans import KPOD, ObservedKMeans
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import FewerClustersWarning
from tests.reference import observed_kmeans as textbook

BOTH = pytest.mark.parametrize("kind", [ObservedKMeans, KPOD])


@parametrize_with_checks([ObservedKMeans(), KPOD()])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """Three classes, a fifth of the entries missing, one row with nothing observed."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) + 10 * np.ones(4) * (np.arange(60) % 3)[:, None]
    x[rng.random(x.shape) < 0.2] = np.nan
    x[5] = np.nan
    return x


# ------------------------------------------------------------------ answers


@BOTH
def test_classes_and_predictions(kind: Any, table: np.ndarray) -> None:
    fit = kind(3, random_state=0).fit(table)
    seen = np.arange(60) != 5
    truth = (np.arange(60) % 3)[seen]
    pairs = set(zip(truth.tolist(), fit.labels_[seen].tolist(), strict=True))
    assert len(pairs) == 3
    np.testing.assert_array_equal(fit.predict(table), fit.labels_)
    assert fit.score(table) == pytest.approx(-fit.inertia_, rel=1e-6)
    np.testing.assert_allclose(fit.column_means_, textbook.column_means(table))


@BOTH
def test_distances_are_those_of_scikit_learn(kind: Any, table: np.ndarray) -> None:
    fit = kind(3, random_state=0).fit(table)
    far = fit.transform(table)
    expected = nan_euclidean_distances(table, fit.cluster_centers_)
    seen = np.arange(60) != 5
    np.testing.assert_allclose(far[seen], expected[seen], atol=1e-10)
    to_means = np.linalg.norm(fit.cluster_centers_ - fit.column_means_, axis=1)
    np.testing.assert_allclose(far[5], to_means)
    np.testing.assert_array_equal(far.argmin(axis=1), fit.predict(table))


@BOTH
def test_reconstruct_and_complete(kind: Any, table: np.ndarray) -> None:
    fit = kind(3, random_state=0).fit(table)
    matrix = fit.reconstruct()
    np.testing.assert_array_equal(matrix[5], fit.column_means_)
    np.testing.assert_array_equal(matrix[6], fit.cluster_centers_[fit.labels_[6]])
    np.testing.assert_array_equal(fit.reconstruct(table), matrix)
    whole, gaps = fit.complete(), np.isnan(table)
    np.testing.assert_array_equal(whole[~gaps], table[~gaps])
    np.testing.assert_array_equal(whole[gaps], matrix[gaps])
    np.testing.assert_array_equal(fit.complete(table[:7]), whole[:7])
    rows, columns = np.nonzero(gaps)
    np.testing.assert_array_equal(fit.predict_entries(rows, columns), matrix[gaps])


def test_complete_table_is_k_means(table: np.ndarray) -> None:
    x = np.delete(np.nan_to_num(table), 5, axis=0)
    ours = ObservedKMeans(4, random_state=0).fit(x)
    theirs = KMeans(4, n_init=20, random_state=0).fit(x)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-10)


@BOTH
def test_forms_of_the_same_table(kind: Any, table: np.ndarray) -> None:
    """Sparse with stored zeros, frames, masked arrays and entries; names of the columns."""
    x = np.round(table)
    plain = kind(3, random_state=0).fit(x)
    rows, columns = np.nonzero(~np.isnan(x))
    stored = sparse.coo_array((x[rows, columns], (rows, columns)), shape=x.shape)
    assert (stored.data == 0).any()
    frame = pd.DataFrame(x, columns=list("abcd"))
    masked = np.ma.masked_array(np.nan_to_num(x), np.isnan(x))
    for form in (stored, stored.tocsr(), stored.tocsc(), frame, masked, Entries.of(x)):
        again = kind(3, random_state=0).fit(form)
        np.testing.assert_array_equal(again.cluster_centers_, plain.cluster_centers_)
        np.testing.assert_array_equal(again.predict(form), plain.labels_)
    named = kind(3, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(named.transform(frame).columns) == [f"{kind.__name__.lower()}{k}" for k in range(3)]
    assert list(named.feature_names_in_) == list("abcd")


@BOTH
def test_draws(kind: Any, table: np.ndarray) -> None:
    first, second = (kind(5, random_state=3, n_init=1).fit(table) for _ in range(2))
    assert first.cluster_centers_.tobytes() == second.cluster_centers_.tobytes()
    state = np.random.RandomState(3)
    np.testing.assert_array_equal(
        kind(5, random_state=state, n_init=1).fit(table).labels_, first.labels_
    )
    copy = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(copy.predict(table), first.predict(table))
    assert clone(first).get_params() == first.get_params()


def test_in_a_pipeline(table: np.ndarray) -> None:
    line = make_pipeline(StandardScaler(), ObservedKMeans(3, random_state=0))
    assert set(line.fit_predict(table)) == {0, 1, 2}


# ------------------------------------------------------------------ tables that are bad


@BOTH
def test_nothing_observed(kind: Any, table: np.ndarray) -> None:
    with pytest.raises(DataError, match="no entry"):
        kind(2).fit(np.full((4, 3), np.nan))
    fit = kind(2, random_state=0).fit(table)
    blank = np.full((2, 4), np.nan)
    np.testing.assert_array_equal(fit.predict(blank), fit.predict(fit.column_means_[None])[[0, 0]])
    np.testing.assert_array_equal(fit.reconstruct(blank), [fit.column_means_] * 2)
    np.testing.assert_array_equal(fit.complete(blank), [fit.column_means_] * 2)
    assert fit.score(blank) == 0.0


@BOTH
def test_refusals(kind: Any, table: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="n_clusters"):
        kind(0).fit(table)
    with pytest.raises(DataError, match="n_clusters = 60"):
        kind(60).fit(table)  # one of the sixty rows has no entry
    with pytest.raises(DataError, match="triplets repeat"):
        doubled = sparse.coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
        kind(1).fit(doubled)
    with pytest.raises(NotFittedError):
        kind(2).predict(table)
    fit = kind(2, random_state=0).fit(table)
    with pytest.raises(ValueError, match="features"):
        fit.predict(table[:, :3])
    with pytest.raises(DataError, match="columns"):
        fit.predict(Entries.of(table[:, :3]))
    for rows, columns in (([0, 1], [0]), ([0], [4]), ([-1], [0]), ([0.5], [0])):
        with pytest.raises(DataError):
            fit.predict_entries(rows, columns)


@BOTH
def test_warnings(kind: Any) -> None:
    x = np.repeat([[0.0, 1.0], [5.0, np.nan]], 5, axis=0)
    with pytest.warns(FewerClustersWarning, match="2 classes are empty"):
        fit = kind(4, random_state=0).fit(x)
    np.testing.assert_array_equal(fit.counts_, [5, 5, 0, 0])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    x[rng.random(x.shape) < 0.3] = np.nan
    with pytest.warns(ConvergenceWarning, match="max_iter = 1"):
        kind(6, max_iter=1, n_init=1, random_state=0).fit(x)


def test_kpod_holds_rows_in_their_class() -> None:
    """Its own labels are those of the filled table; over what is observed they can differ."""
    rng = np.random.default_rng(1)
    differ = 0
    for seed in range(10):
        x = rng.normal(size=(80, 4)) + 1.5 * rng.normal(size=(3, 4))[np.arange(80) % 3]
        x[rng.random(x.shape) < 0.5] = np.nan
        fit = KPOD(3, n_init=1, random_state=seed).fit(x)
        differ += int((fit.predict(x) != fit.labels_).sum())
    assert differ > 0

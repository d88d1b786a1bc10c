"""Number of classes by held-out entries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.utils.estimator_checks import check_estimator

from consilience import ClusterCountCV, EMLift, GridEdgeWarning
from consilience.exceptions import DataError, ParameterError

rng = np.random.default_rng(0)
TRUTH = np.repeat([0, 1, 2], 25)
X = 3.0 * rng.normal(size=(3, 8))[TRUTH] + rng.normal(size=(75, 8))
X[rng.random(X.shape) < 0.1] = np.nan


@pytest.mark.parametrize("model", ["observed-kmeans", "kpod"])
def test_each_model_finds_the_classes(model: str) -> None:
    search = ClusterCountCV(model, n_clusters=5, cv=5, n_init=5, random_state=0).fit(X)
    assert search.best_n_clusters_ == search.n_clusters_ == 3
    assert adjusted_rand_score(TRUTH, search.labels_) > 0.9
    assert search.cluster_centers_.shape == (3, 8)
    assert adjusted_rand_score(search.predict(X), search.labels_) == 1.0
    assert search.transform(X).shape == (75, 3)
    full = search.complete()
    np.testing.assert_array_equal(full[np.isfinite(X)], X[np.isfinite(X)])
    assert np.isfinite(full).all()


def test_one_class_is_a_natural_edge() -> None:
    noise = np.random.default_rng(1).normal(size=(40, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GridEdgeWarning)
        search = ClusterCountCV(n_clusters=4, cv=5, random_state=0).fit(noise)
    assert search.best_n_clusters_ == 1


def test_minimum_at_the_end_is_no_choice() -> None:
    with pytest.warns(GridEdgeWarning, match="n_clusters = 3"):
        search = ClusterCountCV(n_clusters=[1, 3], cv=5, random_state=0).fit(X)
    assert search.best_n_clusters_ is None and search.n_clusters_ == 3
    assert set(search.labels_) == {0, 1, 2}


def test_auto_grid_grows() -> None:
    draw = np.random.default_rng(0)
    many = 6.0 * draw.normal(size=(12, 20))[np.repeat(np.arange(12), 6)]
    many += draw.normal(size=many.shape)
    search = ClusterCountCV(cv=5, random_state=0, refit=False).fit(many)
    assert search.best_n_clusters_ == 12
    assert search.curve_.parameters.tolist() == list(range(1, 16))


def test_lifted_mixture() -> None:
    mixture = EMLift(GaussianMixture(covariance_type="diag", random_state=0))
    search = ClusterCountCV(mixture, n_clusters=[2, 3, 4], cv=5, random_state=0)
    labels = search.fit_predict(X)
    assert search.best_n_clusters_ == 3
    assert adjusted_rand_score(TRUTH, labels) > 0.9


def test_same_seed_same_answer() -> None:
    one = ClusterCountCV(n_clusters=4, cv=3, random_state=5).fit(X)
    two = ClusterCountCV(n_clusters=4, cv=3, random_state=5).fit(X)
    np.testing.assert_array_equal(one.curve_.errors, two.curve_.errors)
    np.testing.assert_array_equal(one.labels_, two.labels_)


def test_rows_without_an_entry_have_a_class_and_count_for_nothing() -> None:
    x = X.copy()
    x[3], x[:, 6] = np.nan, np.nan
    search = ClusterCountCV(n_clusters=5, cv=5, random_state=0).fit(x)
    assert search.best_n_clusters_ == 3 and len(search.labels_) == 75
    with pytest.raises(ParameterError, match="from 1 to 74"):
        ClusterCountCV(n_clusters=75).fit(x)


def test_settings_are_checked() -> None:
    for settings, words in (
        ({"n_clusters": [0, 1]}, "from 1 to 75"),
        ({"estimator": "kmeans"}, "estimator must be"),
        ({"estimator": EMLift}, "EMLift gives these"),
        ({"n_init": 0}, "n_init"),
    ):
        with pytest.raises(ParameterError, match=words):
            ClusterCountCV(**settings).fit(X)  # type: ignore[arg-type]


def test_scikit_learn_conventions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(ClusterCountCV())


def test_nothing_of_an_earlier_fit_is_left() -> None:
    x = np.random.default_rng(0).normal(size=(20, 4))
    search = ClusterCountCV(n_clusters=[1, 2], cv=2, n_init=1, random_state=0).fit(x)
    assert len(search.labels_) == 20
    search.set_params(refit=False).fit(x[:15])
    assert not hasattr(search, "labels_") and not hasattr(search, "cluster_centers_")


def test_one_class_of_correlated_columns_is_said_and_other_models_find_it() -> None:
    rng = np.random.default_rng(0)
    x = np.sqrt(0.5) * (rng.normal(size=(100, 1)) + rng.normal(size=(100, 5)))
    search = ClusterCountCV(n_clusters=5, cv=5, random_state=0).fit(x)
    assert search.n_clusters_ > 1
    assert any("one class with correlated columns" in remark for remark in search.remarks_)
    found = search.compare()
    assert (found["gap"].choice, found["prediction-strength"].choice) == (1, 1)
    full = ClusterCountCV("gaussian-mixture-full", n_clusters=2, cv=5, random_state=0).fit(x)
    assert full.best_n_clusters_ == 1 and full.remarks_ == ()
    assert full.predict(x).tolist() == [0] * 100
    x[0, 0] = np.nan
    with pytest.raises(DataError, match="complete"):
        ClusterCountCV(n_clusters=2, cv=3, random_state=0).fit(x).compare()


def test_scaled_columns_are_told_in_their_own_units() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    x = (4.0 * rng.normal(size=(3, 6)))[labels] + rng.normal(size=(90, 6))
    x *= np.geomspace(1.0, 1e4, 6)
    search = ClusterCountCV(n_clusters=5, cv=5, scale="columns", random_state=0).fit(x)
    assert search.best_n_clusters_ == 3
    means = [x[search.labels_ == k].mean(axis=0) for k in range(3)]
    np.testing.assert_allclose(search.cluster_centers_, means)
    assert search.predict(x).tolist() == search.labels_.tolist()
    assert {c.choice for c in search.compare().values()} == {3}


def test_heavy_tails_within_classes_are_said() -> None:
    rng = np.random.default_rng(0)
    skewed = np.exp(rng.normal(size=(100, 5)))
    search = ClusterCountCV(n_clusters=4, cv=5, random_state=0).fit(skewed)
    assert any("heavy tails" in remark for remark in search.remarks_)
    three = 3.0 * rng.normal(size=(3, 8))[np.arange(100) % 3] + rng.normal(size=(100, 8))
    assert ClusterCountCV(n_clusters=4, cv=5, random_state=0).fit(three).remarks_ == ()

"""Models of complete tables on tables with missing entries: the loop, each model, bad tables."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, PCA, FactorAnalysis, TruncatedSVD
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.completion.estimators.em_imputation import EMLift
from consilience.completion.estimators.observed_kmeans import ObservedKMeans
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from tests.reference import observed_kmeans as textbook

MODELS = {
    "pca": PCA(n_components=3),
    "svd": TruncatedSVD(n_components=3),
    "nmf": NMF(n_components=3, max_iter=2000),
    "factors": FactorAnalysis(n_components=3),
    "mixture": GaussianMixture(n_components=2, reg_covar=1e-2, random_state=0),
    "tied": GaussianMixture(n_components=2, covariance_type="tied", reg_covar=1e-2),
    "diagonal": GaussianMixture(n_components=4, covariance_type="diag"),
    "spherical": GaussianMixture(n_components=4, covariance_type="spherical"),
    "kmeans": KMeans(n_clusters=6, n_init=5),
    "scaled": make_pipeline(StandardScaler(), PCA(n_components=3)),
}


@parametrize_with_checks(
    [
        EMLift(PCA()),
        EMLift(NMF(n_components=1)),
        EMLift(FactorAnalysis(n_components=1), max_iter=8),
        EMLift(GaussianMixture(), max_iter=8),
        EMLift(KMeans(n_clusters=3)),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def low_rank(seed: int = 0, n: int = 80, p: int = 12, noise: float = 0.1) -> np.ndarray:
    """Non-negative, three factors."""
    rng = np.random.default_rng(seed)
    signal = rng.gamma(1.0, size=(n, 3)) @ rng.gamma(1.0, size=(3, p))
    return signal + noise * np.abs(rng.normal(size=(n, p)))


def with_gaps(x: np.ndarray, seed: int = 1, share: float = 0.15) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(x.shape) < share, np.nan, x)


# ------------------------------------------------------------------ the loop


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_textbook(rounds: int) -> None:
    """Truncated singular value decompositions, so many rounds."""
    x = with_gaps(low_rank())

    def project(filled: np.ndarray) -> np.ndarray:
        u, s, v = np.linalg.svd(filled, full_matrices=False)
        return (u[:, :3] * s[:3]) @ v[:3]

    model = TruncatedSVD(n_components=3, algorithm="arpack")
    with pytest.warns(ConvergenceWarning, match=f"max_iter = {rounds}"):
        lift = EMLift(model, accelerate=False, max_iter=rounds, tol=0).fit(x)
    np.testing.assert_allclose(lift.complete(), textbook.lift_slowly(x, project, rounds), atol=1e-9)
    assert lift.n_iter_ == rounds
    assert not lift.converged_


@pytest.mark.parametrize("name", MODELS)
def test_complete_table_takes_one_fit(name: str) -> None:
    x = low_rank()
    lift = EMLift(MODELS[name]).fit(x)
    assert (lift.n_iter_, lift.converged_, lift.change_) == (1, True, 0.0)
    np.testing.assert_array_equal(lift.complete(), x)
    plain = clone(MODELS[name])
    if "random_state" in plain.get_params():
        plain.set_params(random_state=plain.random_state or 0)
    plain.fit(x)
    if hasattr(plain, "transform"):
        np.testing.assert_array_equal(lift.transform(x), plain.transform(x))
    else:
        np.testing.assert_array_equal(lift.predict(x), plain.predict(x))


@pytest.mark.parametrize("name", MODELS)
def test_fills_settle_and_are_better_than_means(name: str) -> None:
    """By half of the variance where the model is right, at all where it has centres only."""
    x = low_rank()
    gappy = with_gaps(x)
    gaps = np.isnan(gappy)
    lift = EMLift(MODELS[name]).fit(gappy)
    assert lift.converged_
    error = np.mean((lift.complete() - x)[gaps] ** 2)
    by_means = np.mean((x - lift.column_means_)[gaps] ** 2)
    share = 0.95 if name in ("diagonal", "spherical", "kmeans") else 0.5
    assert error < share * by_means
    rows, columns = np.nonzero(gaps)
    np.testing.assert_array_equal(lift.predict_entries(rows, columns), lift.reconstruct()[gaps])
    np.testing.assert_array_equal(lift.complete()[~gaps], gappy[~gaps])


@pytest.mark.parametrize("name", MODELS)
def test_rows_again(name: str) -> None:
    """Rows that were fitted, given anew, are filled as in the fit, up to what tol leaves open."""
    x = with_gaps(low_rank())
    lift = EMLift(MODELS[name], tol=1e-6, max_iter=1000).fit(x)
    deviation = np.nanstd(x)
    assert np.abs(lift.complete(x) - lift.complete()).max() < 1e-3 * deviation
    np.testing.assert_allclose(lift.complete(x[:5]), lift.complete(x)[:5], atol=1e-3 * deviation)


def test_principal_components_reach_a_minimum() -> None:
    """At the end no refit of scores or components lowers the sum of squares by what matters."""
    x = with_gaps(low_rank())
    gaps = np.isnan(x)
    lift = EMLift(PCA(n_components=3), tol=1e-9, max_iter=5000).fit(x)
    left = np.where(gaps, 0.0, x - lift.reconstruct())
    model = lift.estimator_
    scores = model.transform(lift.complete())
    size = np.linalg.norm(np.nan_to_num(x))
    assert np.linalg.norm(left @ model.components_.T) < 1e-7 * size
    assert np.linalg.norm(left.T @ scores) / np.linalg.norm(scores) < 1e-7 * size
    assert np.abs(left.sum(axis=0)).max() < 1e-7 * size


def test_means_given_observed() -> None:
    """Factors and mixtures: by the textbook from the fitted parameters."""
    x = with_gaps(low_rank())
    factors = EMLift(FactorAnalysis(n_components=2)).fit(x)
    mixture = EMLift(GaussianMixture(n_components=2, reg_covar=0.1, random_state=0)).fit(x)
    model, other = factors.estimator_, mixture.estimator_
    for i in range(0, len(x), 9):
        gaps = np.isnan(x[i])
        expected, _ = textbook.normal_slowly(x[i], model.mean_, model.get_covariance())
        np.testing.assert_allclose(factors.complete()[i], expected, atol=1e-8)
        expected, odds = textbook.mixture_slowly(
            x[i], other.weights_, other.means_, other.covariances_
        )
        np.testing.assert_allclose(mixture.reconstruct()[i][gaps], expected[gaps], atol=1e-8)
        assert mixture.predict(x[i : i + 1])[0] == odds.argmax()


def test_k_means_is_k_means_on_observed_coordinates() -> None:
    rng = np.random.default_rng(0)
    x = with_gaps(rng.normal(size=(60, 5)) + 8 * np.eye(3, 5)[np.arange(60) % 3])
    lift = EMLift(KMeans(n_clusters=3, n_init=5, random_state=0), tol=1e-10).fit(x)
    ours = ObservedKMeans(3, random_state=0).fit(x)
    np.testing.assert_allclose(lift.reconstruct(), ours.reconstruct(), atol=1e-6)
    np.testing.assert_array_equal(lift.predict(x), lift.estimator_.labels_)


def test_accelerated_fills_are_the_same() -> None:
    """In a fraction of the fits."""
    x = with_gaps(low_rank())
    model = PCA(n_components=3)
    fast, slow = (
        EMLift(model, accelerate=a, tol=1e-7, max_iter=2000).fit(x) for a in (True, False)
    )
    assert fast.converged_
    assert slow.converged_
    assert fast.n_iter_ < 0.3 * slow.n_iter_
    np.testing.assert_allclose(fast.complete(), slow.complete(), atol=1e-3)


@pytest.mark.parametrize("name", ["nmf", "mixture", "factors", "kmeans"])
def test_start_does_not_stay_in_the_settings(name: str) -> None:
    lift = EMLift(MODELS[name]).fit(with_gaps(low_rank()))
    assert lift.n_iter_ > 1
    fitted, given = lift.estimator_.get_params(), MODELS[name].get_params()
    fitted.pop("random_state")
    given.pop("random_state")
    assert fitted == given
    assert not hasattr(MODELS[name], "n_features_in_")


def test_draws_without_a_seed_settle() -> None:
    x = with_gaps(low_rank())
    first, second = (EMLift(TruncatedSVD(n_components=2)).fit(x) for _ in range(2))
    assert first.converged_
    np.testing.assert_array_equal(first.complete(), second.complete())


# ------------------------------------------------------------------ doors


def test_own_function() -> None:
    class Middle(BaseEstimator):
        def fit(self, X: Any, y: Any = None) -> Any:
            self.middle_ = np.median(X, axis=0)
            return self

    def medians(fitted: Any, filled: np.ndarray) -> np.ndarray:
        return np.tile(fitted.middle_, (len(filled), 1))

    x = with_gaps(low_rank())
    lift = EMLift(Middle(), reconstruct_with=medians).fit(x)
    assert lift.converged_
    np.testing.assert_array_equal(lift.reconstruct()[0], lift.estimator_.middle_)
    for method in ("transform", "inverse_transform", "predict", "fit_transform"):
        assert not hasattr(lift, method)


def test_forms_of_the_same_table() -> None:
    x = with_gaps(np.round(low_rank()))
    plain = EMLift(PCA(n_components=2)).fit(x)
    rows, columns = np.nonzero(~np.isnan(x))
    stored = sparse.coo_array((x[rows, columns], (rows, columns)), shape=x.shape)
    frame = pd.DataFrame(x, columns=[f"v{j}" for j in range(x.shape[1])])
    for form in (stored, stored.tocsr(), frame, Entries.of(x)):
        again = EMLift(PCA(n_components=2)).fit(form)
        np.testing.assert_array_equal(again.complete(), plain.complete())
        np.testing.assert_array_equal(again.transform(form), plain.transform(x))
    assert list(plain.get_feature_names_out()) == ["pca0", "pca1"]
    back = plain.inverse_transform(plain.transform(x))
    assert np.abs(back - plain.reconstruct()).max() < 1e-2 * np.nanstd(x)


def test_rows_and_columns_with_nothing_observed() -> None:
    x = with_gaps(low_rank())
    x[4], x[:, 2] = np.nan, np.nan
    for name in ("pca", "factors", "mixture", "kmeans", "nmf"):
        lift = EMLift(MODELS[name], max_iter=2000).fit(x)
        assert np.isfinite(lift.complete()).all()
        blank = np.full((1, x.shape[1]), np.nan)
        assert np.isfinite(lift.complete(blank)).all()
    pca = EMLift(PCA(n_components=1)).fit(x)
    np.testing.assert_allclose(pca.complete()[:, 2], np.nanmean(x))


def test_refusals() -> None:
    x = with_gaps(low_rank())
    with pytest.raises(DataError, match="Negative values in data passed to NMF"):
        EMLift(NMF(n_components=1)).fit(x - 1)
    with pytest.raises(ParameterError, match="give reconstruct_with"):
        EMLift(LinearRegression()).fit(x)
    with pytest.raises(ParameterError, match="reconstruct_with"):
        EMLift(PCA(), reconstruct_with="mean").fit(x)
    with pytest.raises(ParameterError, match="estimator"):
        EMLift("pca").fit(x)
    for settings in ({"max_iter": 0}, {"max_iter": 1.5}, {"tol": -1}, {"tol": np.nan}):
        with pytest.raises(ParameterError, match=next(iter(settings))):
            EMLift(PCA(), **settings).fit(x)
    with pytest.raises(DataError, match="no entry"):
        EMLift(PCA()).fit(np.full((3, 3), np.nan))
    with pytest.raises(DataError, match="finite matrix"):
        EMLift(PCA(), reconstruct_with=lambda fitted, filled: filled[:1]).fit(x)
    with pytest.raises(DataError, match="not all entries are finite"):
        EMLift(PCA(), reconstruct_with=lambda fitted, filled: filled * np.nan).fit(x)
    with pytest.raises(NotFittedError):
        EMLift(PCA()).reconstruct()


def test_last_fit_is_heard() -> None:
    model = GaussianMixture(n_components=3, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Best performing initialization"):
        EMLift(model).fit(low_rank())
    with pytest.warns(ConvergenceWarning, match="Maximum number of iterations 2"):
        EMLift(NMF(n_components=3, max_iter=2)).fit(low_rank())


def test_non_negative_factors_settle_where_full_fits_would() -> None:
    """Steps go on from fill to fill: at the end a full fit changes nothing that matters."""
    x = with_gaps(low_rank())
    lift = EMLift(NMF(n_components=3, max_iter=2000, tol=1e-8), tol=1e-7, max_iter=1000).fit(x)
    assert lift.converged_
    model, filled = lift.estimator_, lift.complete()
    again = NMF(n_components=3, init="custom", max_iter=5000, tol=1e-6)
    scores = again.fit_transform(filled, W=model.transform(filled), H=model.components_.copy())
    assert np.abs(scores @ again.components_ - lift.reconstruct()).max() < 1e-3 * np.nanstd(x)

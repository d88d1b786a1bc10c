"""Hard tables, the same for every estimator of a matrix with missing entries and every search."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from consilience import (
    KPOD,
    ClusterCountCV,
    HardImpute,
    NuclearNormCV,
    ObservedKMeans,
    OptSpace,
    ProbabilisticPCA,
    RankCV,
    SoftImpute,
)
from consilience.exceptions import DataError, ParameterError

MODELS: dict[str, Callable[[], Any]] = {
    "HardImpute": lambda: HardImpute(2),
    "SoftImpute, dense": lambda: SoftImpute(1.0, solver="dense"),
    "SoftImpute, als": lambda: SoftImpute(1.0, solver="als"),
    "SoftImpute, unshrunk": lambda: SoftImpute(1.0, unshrink=True),
    "OptSpace": lambda: OptSpace(2),
    "ProbabilisticPCA": lambda: ProbabilisticPCA(2),
    "KPOD": lambda: KPOD(3, random_state=0),
    "ObservedKMeans": lambda: ObservedKMeans(3, random_state=0),
}
SEARCHES: dict[str, Callable[[], Any]] = {
    "RankCV": lambda: RankCV(ranks=[1, 2, 3], random_state=0),
    "NuclearNormCV": lambda: NuclearNormCV(4, random_state=0),
    "ClusterCountCV": lambda: ClusterCountCV(n_clusters=[1, 2, 3], n_init=2, random_state=0),
}
EVERY = {**MODELS, **SEARCHES}


def ratings() -> np.ndarray:
    """Whole numbers from 1 to 5, a fifth of them missing."""
    rng = np.random.default_rng(0)
    x = np.clip(np.round(3.0 + rng.normal(size=(12, 2)) @ rng.normal(size=(2, 8))), 1, 5)
    x[rng.random(x.shape) < 0.2] = np.nan
    return x


def unseen() -> np.ndarray:
    x = ratings()
    x[4], x[:, 3] = np.nan, np.nan
    return x


def filled() -> np.ndarray:
    return np.nan_to_num(ratings(), nan=3.0)


def fitted(model: Any, x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x)


@pytest.mark.parametrize("name", EVERY)
def test_a_place_that_is_stored_twice_is_one_sentence(name: str) -> None:
    x = np.nan_to_num(ratings(), nan=2.0)
    rows, columns = (place.ravel() for place in np.indices(x.shape))
    twice = sparse.coo_matrix(
        (
            np.append(x.ravel(), 4.0),
            (np.append(rows, rows[5]), np.append(columns, columns[5])),
        ),
        shape=x.shape,
    )
    with pytest.raises(DataError, match="1 of 97 triplets"):
        EVERY[name]().fit(twice)


@pytest.mark.parametrize("table", [unseen, filled, lambda: ratings()[:, :3], lambda: ratings()[:3]])
@pytest.mark.parametrize("name", EVERY)
def test_every_model_gives_a_finite_matrix(name: str, table: Callable[[], np.ndarray]) -> None:
    """Rows and columns never seen, nothing missing, few columns, few rows."""
    x = table()
    found = fitted(EVERY[name](), x).reconstruct()
    assert found.shape == x.shape
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", EVERY)
def test_whole_numbers_are_ratings_dense_and_sparse(name: str) -> None:
    x = ratings()
    rows, columns = np.nonzero(~np.isnan(x))
    whole = x[rows, columns].astype(np.int32)
    stored = sparse.coo_matrix((whole, (rows, columns)), shape=x.shape)
    expected = fitted(EVERY[name](), x).reconstruct()
    np.testing.assert_allclose(fitted(EVERY[name](), stored).reconstruct(), expected, atol=1e-8)
    complete = filled()
    np.testing.assert_array_equal(
        fitted(EVERY[name](), complete.astype(np.int8)).reconstruct(),
        fitted(EVERY[name](), complete).reconstruct(),
    )


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_one_row_and_one_column(name: str, shape: tuple[int, int]) -> None:
    x = np.arange(1.0, 1.0 + shape[0] * shape[1]).reshape(shape)
    if x.size > 2:
        x.ravel()[2] = np.nan
    model = MODELS[name]()
    asked = {"rank": 1, "n_clusters": 1}
    model.set_params(**{key: asked[key] for key in asked if key in model.get_params()})
    found = fitted(model, x).reconstruct()
    assert found.shape == shape
    assert np.isfinite(found).all()


@pytest.mark.parametrize("shape", [(1, 8), (8, 1)])
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_need_two_rows_and_two_columns(name: str, shape: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="entries of it cannot be held out"):
        SEARCHES[name]().fit(np.ones(shape))


@pytest.mark.parametrize("model", [HardImpute, OptSpace, ProbabilisticPCA])
def test_a_rank_above_both_sides_is_one_sentence(model: Any) -> None:
    with pytest.raises(ParameterError, match="from 0 to 8, as there are 12 rows and 8 columns"):
        model(9).fit(ratings())


@pytest.mark.parametrize("model", [KPOD, ObservedKMeans])
def test_more_classes_than_rows_is_one_sentence(model: Any) -> None:
    with pytest.raises(DataError, match="more than the rows with an observed entry"):
        model(12).fit(unseen())


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    "settings",
    [
        {"rule": np.array([1.0, 2.0])},
        {"refit": np.array([True, False])},
        {"refit": sparse.eye(2)},
        {"n_jobs": "two"},
        {"n_jobs": 0},
        {"n_jobs": 1.5},
    ],
)
def test_settings_of_another_kind_are_one_sentence(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))):
        SEARCHES[name]().set_params(**settings).fit(ratings())


@pytest.mark.parametrize(
    "scores",
    [
        "x",
        [["a", "b"]],
        [[1, 2], [3]],
        [[np.nan, 1.0]],
        None,
        [[1j, 2.0]],
        [[10**400, 1]],
        np.array([["2020", "2021"]], dtype="M8[Y]"),
        np.ma.masked_array(np.ones((1, 2)), [[True, False]]),
    ],
)
def test_scores_that_are_no_numbers_are_one_sentence(scores: Any) -> None:
    model = HardImpute(2).fit(ratings())
    with pytest.raises(DataError, match="finite numbers with 2 columns"):
        model.inverse_transform(scores)


def test_nothing_stays_of_an_earlier_fit() -> None:
    search = fitted(NuclearNormCV(4, random_state=0), ratings())
    assert search.rank_ >= 0
    fitted(search.set_params(refit=False), ratings())
    assert not any(hasattr(search, name) for name in ("rank_", "n_iter_", "best_estimator_"))


def test_a_failed_fit_leaves_the_model_of_before_with_its_own_entries() -> None:
    x = ratings()
    search = fitted(RankCV(ranks=[1, 2], random_state=0), x)
    before = search.complete()
    with pytest.raises(ParameterError, match="rule"):
        search.set_params(rule="bad").fit(x[:, :5])
    assert search.n_features_in_ == 8
    with pytest.raises(ParameterError, match="cv"):
        search.set_params(rule="minimum", cv="bad").fit(6.0 - x)
    np.testing.assert_array_equal(search.complete(), before)

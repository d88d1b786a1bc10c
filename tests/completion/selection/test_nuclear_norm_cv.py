"""Penalty by held-out entries."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from consilience import EntrywiseKFold, GridEdgeWarning, NuclearNormCV, RankCV, SoftImpute
from consilience.completion.kernels.soft_impute import alpha_max
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries


def low_rank(noise: float = 0.5, missing: float = 0.2, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 15)) + noise * rng.normal(size=(40, 15))
    x[rng.random(x.shape) < missing] = np.nan
    return x


X = low_rank()
TOP = alpha_max(Entries.of(X))


def test_auto_grid_starts_where_nothing_is_left_and_ends_beyond_the_minimum() -> None:
    search = NuclearNormCV(cv=3, random_state=0).fit(X)
    alphas = search.curve_.parameters
    assert alphas[0] == pytest.approx(TOP)
    np.testing.assert_allclose(alphas[1:] / alphas[:-1], 10 ** (-1 / 6))
    assert alphas[-1] < search.best_alpha_ == search.alpha_ < alphas[0]
    assert search.curve_.mean[0] == pytest.approx(np.nanmean(X**2))


def test_kept_model_is_soft_impute_at_the_penalty() -> None:
    search = NuclearNormCV(cv=3, random_state=0).fit(X)
    alone = SoftImpute(search.alpha_).fit(X)
    np.testing.assert_allclose(search.reconstruct(), alone.reconstruct())
    np.testing.assert_allclose(search.transform(X), alone.transform(X))
    assert search.rank_ == alone.n_components_
    full = search.complete()
    np.testing.assert_array_equal(full[np.isfinite(X)], X[np.isfinite(X)])


def test_auto_grid_grows_for_little_noise() -> None:
    clean = low_rank(noise=0.05, missing=0.1)
    search = NuclearNormCV(cv=3, random_state=0, refit=False).fit(clean)
    assert len(search.curve_.parameters) > 10
    whole = NuclearNormCV(search.curve_.parameters, cv=3, random_state=0, refit=False).fit(clean)
    # both walks end at a gap of 1e-4 of the criterion
    np.testing.assert_allclose(search.curve_.mean, whole.curve_.mean, rtol=0.02)


def test_given_penalties() -> None:
    number = NuclearNormCV(6, cv=3, random_state=0, refit=False).fit(X)
    np.testing.assert_allclose(number.curve_.parameters, TOP * np.geomspace(1, 0.01, 6))
    with pytest.warns(GridEdgeWarning, match="alpha = 10: this is no choice, try more complex"):
        given = NuclearNormCV([10.0, TOP, 40.0], cv=3, random_state=0).fit(X)
    np.testing.assert_allclose(given.curve_.parameters, sorted([10.0, 40.0, TOP])[::-1])
    assert given.best_alpha_ is None and given.alpha_ == 10
    assert given.best_estimator_.alpha == 10


def test_noise_alone_leaves_nothing_and_that_is_a_natural_edge() -> None:
    noise = np.random.default_rng(3).normal(size=(60, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GridEdgeWarning)
        search = NuclearNormCV(random_state=0, rule="one-standard-error").fit(noise)
    assert search.rank_ == 0
    assert search.best_alpha_ == pytest.approx(alpha_max(Entries.of(noise)))


def test_unshrunk_fits_are_judged_and_kept() -> None:
    search = NuclearNormCV(cv=3, unshrink=True, random_state=0).fit(X)
    shrunken = NuclearNormCV(cv=3, random_state=0).fit(X)
    assert search.best_estimator_.unshrink
    assert search.curve_.mean.min() < shrunken.curve_.mean.min()
    assert search.rank_ == 3


def test_largest_rank() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = NuclearNormCV([10.0, 5.0, 1.0], max_rank=2, random_state=0).fit(X)
    assert search.rank_ == 2


def test_center() -> None:
    search = NuclearNormCV(cv=3, center="rows-and-columns", random_state=0).fit(X + 50)
    assert search.best_alpha_ < search.curve_.parameters[0]
    assert search.curve_.mean.min() < np.nanvar(X)


def test_one_step() -> None:
    from consilience.completion.kernels.low_rank import leave_one_out_soft

    full = low_rank(missing=0.0)
    alphas = [40.0, 20.0, 10.0, 5.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GridEdgeWarning)
        search = NuclearNormCV(alphas, cv="one-step", refit=False).fit(full)
    np.testing.assert_allclose(search.curve_.mean, leave_one_out_soft(full, alphas).errors)
    with pytest.raises(ValueError, match="unshrink = False alone"):
        NuclearNormCV(cv="one-step", unshrink=True).fit(full)


@pytest.mark.parametrize(
    ("settings", "x", "words"),
    [
        ({"alphas": 1}, X, "alphas must be"),
        ({"alphas": [0.0, 1.0]}, X, "above 0"),
        ({"alphas": "lots"}, X, "alphas must be"),
        ({"alphas": [[1.0]]}, X, "alphas must be"),
        ({"center": "rows"}, X, "center must be"),
        ({}, np.zeros((5, 5)), "all observed entries are 0"),
        ({"center": "columns"}, np.ones((5, 5)), "explains every observed entry"),
    ],
)
def test_one_sentence(settings: dict[str, Any], x: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NuclearNormCV(**settings).fit(x)


def test_scikit_learn_conventions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(NuclearNormCV())


def test_one_step_is_enough_where_nothing_is_left() -> None:
    search = NuclearNormCV([2 * TOP, 4 * TOP], cv=3, random_state=0).fit(X)
    assert (search.rank_, search.best_estimator_.n_iter_, search.n_iter_) == (0, 1, 1)


# ------------------------------------------------------------------ the centre of ratings


def stars(values: int = 5, missing: float = 0.6, seed: int = 0) -> np.ndarray:
    """Ratings with levels of people and of films."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 1)) + rng.normal(size=20) + 0.5 * rng.normal(size=(60, 20))
    x = np.clip(np.round(x * values / 5) + values // 2, 1, values)
    x[0, :values] = np.arange(1, values + 1) if values <= 20 else x[0, :values]
    return np.where(rng.random(x.shape) < missing, np.nan, x)


def test_ratings_are_centred_by_rows_and_columns_and_the_search_says_so() -> None:
    x = stars()
    search = NuclearNormCV(5, cv=3, random_state=0).fit(x)
    given = NuclearNormCV(5, cv=3, center="rows-and-columns", random_state=0).fit(x)
    assert search.center_ == "rows-and-columns" == search.best_estimator_.center
    assert search.remarks_[0].startswith("the table looks like ratings (5 distinct values, ")
    np.testing.assert_array_equal(search.reconstruct(), given.reconstruct())
    assert not any("ratings" in remark for remark in given.remarks_)
    none = NuclearNormCV(5, cv=3, center="none", random_state=0).fit(x)
    assert search.curve_.mean.min() < 0.8 * none.curve_.mean.min()


@pytest.mark.parametrize(
    "x",
    [
        X,
        stars(missing=0.3),
        np.where(np.isnan(stars()), np.nan, np.random.default_rng(0).normal(size=(60, 20))),
        np.where(np.isnan(stars()), np.nan, 1.0),
        np.where(np.isnan(stars()), np.nan, np.arange(1200).reshape(60, 20) % 26),
    ],
)
def test_other_tables_are_left_as_they_are(x: np.ndarray) -> None:
    search = NuclearNormCV(3, cv=2, refit=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GridEdgeWarning)
        assert search.fit(x).center_ == "none"


def test_a_model_with_a_mean_of_its_own_is_given_no_centre() -> None:
    for model in ("ppca", SoftImpute(unshrink=True)):
        search = RankCV(model, ranks=[1, 2], cv=2, random_state=0, refit=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert search.fit(stars()).center_ == "none"
    with pytest.raises(ParameterError, match='one of "auto", "none"'):
        RankCV("ppca", center="mean").fit(X)


def test_noise_along_columns_is_told_by_whole_stretches() -> None:
    """Of 40 tables 37 after this search, and none of 40 of white noise; one here."""
    along = np.linalg.cholesky(0.8 ** np.abs(np.subtract.outer(np.arange(20), np.arange(20))))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 20)) + rng.normal(size=(100, 20)) @ along.T

    def told(table: np.ndarray, cv: object) -> bool:
        search = NuclearNormCV(10, center="columns", cv=cv, random_state=0).fit(table)
        return any("whole stretches of 10" in remark for remark in search.remarks_)

    assert told(x, 5)
    assert not told(x[:, rng.permutation(20)], 5)
    # whoever holds out stretches is not told to
    assert not told(x, EntrywiseKFold(5, blocks=10, random_state=0))


def departing(seed: int, what: str) -> np.ndarray:
    """Rank 3 with noise that is as it should be, or not."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 20))
    if what == "heavy":
        return np.asarray(x + rng.standard_t(3, (100, 20)))
    noise = rng.normal(size=(100, 20))
    return np.asarray(x + noise * (np.geomspace(0.3, 5.0, 20) if what == "unequal" else 1.0))


def test_assumptions_are_tested_after_the_search() -> None:
    """Of 20 tables each: heavy tails in 20, unequal noise in 20, nothing where all is as it should.

    What a penalty leaves spreads equally over columns whatever their noise, so that only refitted
    values tell unequal noise.
    """
    for seed in range(3):
        for unshrink in (False, True):
            search = NuclearNormCV(unshrink=unshrink, random_state=0)
            assert search.fit(departing(seed, "white")).remarks_ == ()
        search = NuclearNormCV(random_state=0).fit(departing(seed, "heavy"))
        assert any("heavy tails" in remark for remark in search.remarks_)
        search = NuclearNormCV(unshrink=True, random_state=0).fit(departing(seed, "unequal"))
        assert any(remark.endswith('scale="columns"') for remark in search.remarks_)


def test_a_refitted_rank_that_is_no_low_one_is_said_though_columns_are_scaled() -> None:
    """Refitted singular values predict the columns of little noise best with most components."""
    ranks = []
    for seed in range(4):
        search = NuclearNormCV(unshrink=True, scale="columns", random_state=0)
        search.fit(departing(seed, "unequal"))
        ranks.append(search.rank_)
        said = any(remark.endswith('compare with RankCV("hard")') for remark in search.remarks_)
        assert said == (search.rank_ > 10)
    assert max(ranks) > 10

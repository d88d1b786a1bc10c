"""Rank by held-out entries."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import check_estimator

from consilience import (
    EMLift,
    EntrywiseKFold,
    GridEdgeWarning,
    HardImpute,
    NuclearNormCV,
    RankCV,
)
from consilience.completion.selection import noise_of, spreads_of
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryCurve


def low_rank(
    n: int = 40, p: int = 15, rank: int = 3, noise: float = 0.3, missing: float = 0.2, seed: int = 0
) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p)) + noise * rng.normal(size=(n, p))
    x[rng.random(x.shape) < missing] = np.nan
    return x


X = low_rank()


@pytest.mark.parametrize(
    "model",
    ["hard", "soft-unshrunk", "optspace", "ppca"],
)
def test_each_model_finds_the_rank_and_completes_the_matrix(model: str) -> None:
    search = RankCV(model, ranks=range(6), cv=3, random_state=0).fit(X)
    assert search.best_rank_ == search.rank_ == 3
    assert search.best_estimator_.n_components_ == 3
    assert search.transform(X).shape == (40, 3)
    full = search.complete()
    np.testing.assert_array_equal(full[np.isfinite(X)], X[np.isfinite(X)])
    assert np.isfinite(full).all()
    np.testing.assert_allclose(
        search.reconstruct()[[0, 5], [1, 2]], search.predict_entries([0, 5], [1, 2])
    )
    scores = search.transform(X)
    assert search.inverse_transform(scores).shape == X.shape


def test_auto_grid_grows_until_the_minimum_lies_inside() -> None:
    x = low_rank(50, 40, rank=11, noise=0.05, missing=0.0)
    search = RankCV("hard", cv=3, random_state=0).fit(x)
    assert search.best_rank_ == 11
    assert search.curve_.parameters.tolist() == list(range(16))
    given = RankCV("hard", ranks=range(16), cv=3, random_state=0, refit=False).fit(x)
    # further ranks are fitted as on one walk
    np.testing.assert_allclose(search.curve_.errors, given.curve_.errors, rtol=1e-9)


def test_minimum_at_the_edge_of_a_grid_is_no_choice() -> None:
    search = RankCV("hard", ranks=[0, 1, 2], random_state=0)
    with pytest.warns(GridEdgeWarning, match="rank = 2: this is no choice, try more complex"):
        search.fit(X)
    assert search.best_rank_ is None
    assert search.rank_ == search.minimiser_ == 2 and search.at_edge_
    assert search.transform(X).shape == (40, 2)
    assert search.remarks_[0] == search.curve_.edge_remark()
    with pytest.warns(GridEdgeWarning, match="simpler"):
        RankCV("hard", ranks=[3, 4, 5], random_state=0, refit=False).fit(X)


def test_noise_alone_has_rank_0_and_that_is_a_natural_edge() -> None:
    x = np.random.default_rng(1).normal(size=(40, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GridEdgeWarning)
        search = RankCV("hard", random_state=0).fit(x)
    assert search.best_rank_ == 0
    assert search.transform(x).shape == (40, 0)


@pytest.mark.parametrize("model", ["hard", "optspace"])
def test_full_rank_is_never_tried(model: str) -> None:
    # at full rank the gaps keep what they were filled with: the error would be that of rank 0
    x = np.random.default_rng(5).normal(size=(20, 8))
    search = RankCV(model, ranks=8, random_state=5).fit(x)
    assert search.curve_.parameters.tolist() == list(range(8))
    assert search.curve_.natural == (True, True)
    assert search.best_rank_ == 0
    assert search.remarks_ == (
        "rank 8, full rank, was left out: it fits every table and predicts nothing",
    )


def test_columns_of_unequal_noise_are_said_and_can_be_scaled() -> None:
    rng = np.random.default_rng(1)
    signal = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 20))
    spread = np.geomspace(0.3, 5.0, 20)
    x = signal + spread * rng.normal(size=(100, 20))
    plain = RankCV("hard", random_state=0).fit(x)
    assert plain.best_rank_ != 3
    assert any('compare with scale="columns"' in remark for remark in plain.remarks_)
    x[rng.random(x.shape) < 0.05] = np.nan
    search = RankCV("hard", scale="columns", random_state=0).fit(x)
    assert search.best_rank_ == 3 and search.remarks_ == ()
    spread = np.nanstd(x, axis=0)
    curve = RankCV("hard", random_state=0).fit(x / spread).curve_
    assert curve.column_errors is not None
    noise = np.clip(np.sqrt(curve.column_errors[curve.minimiser]), 0.1, 1.0)
    assert noise.max() == 1.0 and noise.min() < 0.6
    np.testing.assert_allclose(search.scale_, spread * noise)
    by_hand = RankCV("hard", random_state=0).fit(x / search.scale_)
    np.testing.assert_allclose(search.curve_.errors, by_hand.curve_.errors)
    # answers are in the units of the table
    np.testing.assert_allclose(search.reconstruct(), by_hand.reconstruct() * search.scale_)
    np.testing.assert_allclose(search.transform(x), by_hand.transform(x / search.scale_))
    back = by_hand.inverse_transform(search.transform(x)) * search.scale_
    np.testing.assert_allclose(search.inverse_transform(search.transform(x)), back)
    full = search.complete(x)
    np.testing.assert_allclose(full[np.isfinite(x)], x[np.isfinite(x)])
    rows, columns = [0, 5], [1, 2]
    np.testing.assert_allclose(
        search.predict_entries(rows, columns), search.reconstruct()[rows, columns]
    )
    with pytest.raises(ParameterError, match="scale must be"):
        RankCV(scale="rows").fit(x)


def test_columns_in_far_smaller_units_are_scaled_too() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3)) * [1.0, 1e-13, 0.0]
    spread = spreads_of(Entries.of(x))
    np.testing.assert_allclose(spread, [*x.std(axis=0)[:2], 1.0], rtol=1e-12)


def test_refitted_ranks_are_found_in_units_of_the_noise() -> None:
    """In all of 16 tables; in units of spreads in 8 of them.

    With the rank found in .8 of all tables less than 10 of 16 would be seen once in 37 times.
    """
    found, by_spread = [], []
    for seed in range(16):
        rng = np.random.default_rng([seed, 27])
        x = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 20))
        x += np.exp(rng.normal(size=20) * 2.0) * rng.normal(size=x.shape)
        search = RankCV(
            "soft-unshrunk", scale="columns", center="columns", refit=False, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GridEdgeWarning)
            found.append(search.fit(x).minimiser_)
            search.set_params(scale="none").fit(x / x.std(axis=0))
        by_spread.append(search.minimiser_)
    assert sum(2 <= rank <= 4 for rank in found) >= 10
    # the control
    assert sum(2 <= rank <= 4 for rank in by_spread) < 10


def test_noise_alone_penalties_and_one_step_leave_columns_in_units_of_their_spread() -> None:
    rng = np.random.default_rng(3)
    noise = np.geomspace(1.0, 9.0, 12) * rng.normal(size=(60, 12))
    ranked = low_rank(60, 12, rank=2, noise=0.5, missing=0.0)
    for search, x in (
        (RankCV("hard", ranks=3, scale="columns", random_state=0), noise),
        (RankCV("hard", ranks=3, cv="one-step", scale="columns"), ranked),
        (NuclearNormCV(4, unshrink=True, scale="columns", random_state=0), ranked),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GridEdgeWarning)
            np.testing.assert_allclose(search.fit(x).scale_, x.std(axis=0))
    # a remark of both searches is said once
    search = RankCV("hard", ranks=12, scale="columns", random_state=0).fit(ranked)
    assert (search.scale_ < ranked.std(axis=0)).any()
    assert sum("full rank, was left out" in remark for remark in search.remarks_) == 1


def test_columns_that_are_never_held_out_do_not_rule() -> None:
    rng = np.random.default_rng(5)
    spread = np.where(np.arange(20) < 4, 4.0, 1.0)
    x = rng.normal(size=(100, 3)) @ rng.normal(size=(3, 20)) + spread * rng.normal(size=(100, 20))
    entries = Entries.of(x)
    folds = np.where(entries.columns < 4, -1, EntrywiseKFold(5, random_state=0).folds(entries))
    search = RankCV("hard", scale="columns", center="columns", cv=folds).fit(x)
    np.testing.assert_allclose(search.scale_[:4], x.std(axis=0)[:4])
    assert search.minimiser_ == 3  # 7, if their noise were taken for none


def test_columns_that_others_predict_exactly_do_not_rule_alone() -> None:
    by_column = np.array([[1.0, 1.0, 1.1], [1e-9, 0.25, 1.2]])
    errors, held = by_column.mean(axis=1)[None], np.array([300])
    curve = EntryCurve("rank", np.arange(2), errors, held, (True, False), column_errors=by_column)
    np.testing.assert_allclose(noise_of(curve), [0.1, 0.5, 1.0])
    worse = dataclasses.replace(curve, errors=errors[:, ::-1])
    assert noise_of(worse) is None
    # ranks from 1 on: the smallest of them is something
    np.testing.assert_allclose(
        noise_of(dataclasses.replace(worse, natural=(False, False))), [1.0, 1.0, 1.0]
    )


@pytest.mark.parametrize("spread", ["one hundredfold", "two tenfold", "lognormal"])
def test_noise_of_any_scales_has_rank_0(spread: str) -> None:
    """In all of 40 tables (of 100 in .98 or more); by errors alone in 26, 37 and 39.

    With a rank 0 in .95 of all tables less than 36 of 40 would be seen once in 20 times.
    """
    found, by_errors = [], []
    for seed in range(40):
        rng = np.random.default_rng([seed, 26])
        units = np.ones(20)
        if spread == "lognormal":
            units = np.exp(2.0 * rng.normal(size=20))
        else:
            units[: 1 if spread == "one hundredfold" else 2] = 100.0 if "one" in spread else 10.0
        x = units * rng.normal(size=(100, 20))
        search = RankCV("hard", ranks=3, center="columns", refit=False, random_state=0).fit(x)
        found.append(search.minimiser_)
        by_errors.append(int(search.curve_.mean.argmin()))
    assert found.count(0) >= 36
    if spread == "one hundredfold":  # the control: without the look at columns
        assert by_errors.count(0) <= 32


def test_the_last_rank_below_full_is_said() -> None:
    x = low_rank(200, 4, rank=3, noise=0.05, missing=0.0)
    search = RankCV("ppca", ranks=3, random_state=0).fit(x)
    assert search.best_rank_ == 3
    assert any(remark.startswith("rank 3 is the last one") for remark in search.remarks_)


def test_a_refitted_rank_that_is_no_low_one_is_said() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 9)) @ rng.normal(size=(9, 14))
    hard, scale = 'compare with RankCV("hard")', 'compare with scale="columns"'
    for model, highest, scaled, expected in (
        ("soft-unshrunk", 10, "columns", {hard}),
        ("soft-unshrunk", 10, "none", {scale}),
        ("soft-unshrunk", 4, "columns", set()),
        ("hard", 10, "columns", set()),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GridEdgeWarning)
            search = RankCV(model, ranks=highest, scale=scaled, random_state=0).fit(x)
        assert (search.rank_ > 7) == (highest > 7)
        low = [said for said in search.remarks_ if "is no low rank" in said]
        assert {end for end in (hard, scale) for said in low if said.endswith(end)} == expected


def test_rule_of_one_standard_error() -> None:
    x = low_rank(30, 12, rank=3, noise=1.0, seed=5)
    least = RankCV("hard", random_state=0).fit(x)
    simple = RankCV("hard", random_state=0, rule="one-standard-error").fit(x)
    assert simple.rank_ == simple.one_standard_error_ == least.one_standard_error_
    assert simple.rank_ <= least.rank_
    assert simple.best_estimator_.n_components_ == simple.rank_


def test_center_is_taken_off_and_put_back() -> None:
    search = RankCV("hard", center="columns", random_state=0).fit(X + 100)
    assert search.best_rank_ == 3
    assert abs(search.reconstruct()[np.isfinite(X)] - 100 - X[np.isfinite(X)]).mean() < 0.3
    assert search.best_estimator_.center == "columns"


def test_sparse_and_dense_and_entries_give_the_same() -> None:
    entries = Entries.of(X)
    stored = sparse.csr_matrix((entries.values, (entries.rows, entries.columns)), shape=X.shape)
    dense = RankCV(random_state=0, ranks=5).fit(X)
    for given in (stored, entries):
        found = RankCV(random_state=0, ranks=5).fit(given)
        np.testing.assert_array_equal(found.curve_.errors, dense.curve_.errors)
        np.testing.assert_allclose(found.complete(), dense.complete())


def test_names_go_in_and_come_out() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(15)])
    search = RankCV(random_state=0, ranks=5).fit(frame).set_output(transform="pandas")
    table = search.transform(frame)
    assert list(table) == ["rankcv0", "rankcv1", "rankcv2"]
    assert search.feature_names_in_.tolist() == list(frame)


def test_lifted_estimators_can_be_searched() -> None:
    x = low_rank(20, 8, rank=2, noise=0.1, missing=0.0)
    search = RankCV(EMLift(PCA(), tol=1e-2), ranks=[1, 2, 3], cv=3, random_state=0).fit(x)
    assert search.best_rank_ == 2
    assert search.best_estimator_.estimator_.n_components == 2
    assert search.transform(x).shape == (20, 2)


def test_parameter_of_an_object() -> None:
    search = RankCV(HardImpute(), parameter="rank", ranks=[1, 2, 3, 4], random_state=0).fit(X)
    assert search.best_rank_ == 3
    with pytest.raises(ParameterError, match="no parameter 'k'"):
        RankCV(HardImpute(), parameter="k").fit(X)
    with pytest.raises(ParameterError, match="EMLift gives these"):
        RankCV(PCA()).fit(X)


@pytest.mark.parametrize("model", ["hard", "soft-unshrunk", "optspace", "ppca"])
def test_given_folds_may_empty_a_row_and_a_column(model: str) -> None:
    entries = Entries.of(X)
    folds = np.arange(entries.n_observed) % 3
    folds[entries.rows == 0] = 0
    folds[entries.columns == 1] = 1
    errors = RankCV(model, ranks=range(4), cv=folds).fit(X).curve_.errors
    assert np.isfinite(errors).all()
    assert errors[:, 3].sum() < errors[:, 0].sum()


def test_folds_may_be_given() -> None:
    folds = EntrywiseKFold(3, random_state=0)
    drawn = RankCV(ranks=4, cv=3, random_state=0).fit(X).curve_.errors
    for cv in (folds, folds.folds(X)):
        given = RankCV(ranks=4, cv=cv).fit(X).curve_.errors
        np.testing.assert_array_equal(given, drawn)


def test_number_of_workers_does_not_matter() -> None:
    import joblib

    one = RankCV(ranks=4, random_state=0).fit(X)
    with joblib.parallel_config("threading"):
        two = RankCV(ranks=4, random_state=0, n_jobs=2).fit(X)
    np.testing.assert_array_equal(one.curve_.errors, two.curve_.errors)


# ------------------------------------------------------------------ one step


def test_one_step_is_the_mean_over_every_entry() -> None:
    from consilience.completion.kernels.low_rank import leave_one_out_hard

    x = low_rank(20, 10, missing=0.0)
    search = RankCV(cv="one-step", ranks=range(6), refit=False).fit(x)
    np.testing.assert_allclose(search.curve_.mean, leave_one_out_hard(x, range(6)).errors)
    assert search.curve_.n_held.tolist() == [200]
    assert (search.curve_.se > 0).all()
    printed = RankCV(cv="one-step-as-printed", refit=False).fit(x)
    assert printed.curve_.parameters.tolist() == list(range(10))
    assert printed.minimiser_ == 3


def test_one_step_needs_a_complete_matrix_and_hard() -> None:
    with pytest.raises(DataError, match="complete"):
        RankCV(cv="one-step").fit(X)
    with pytest.raises(ParameterError, match='estimator = "hard" alone'):
        RankCV("ppca", cv="one-step").fit(low_rank(missing=0.0))
    with pytest.raises(ParameterError, match="cv must be"):
        RankCV(cv="loo").fit(low_rank(missing=0.0))


# ------------------------------------------------------------------ what comes in


def test_empty_rows_and_columns_are_completed_by_the_centre() -> None:
    x = X.copy()
    x[4], x[:, 7] = np.nan, np.nan
    search = RankCV("hard", center="columns", ranks=5, random_state=0).fit(x)
    assert search.best_rank_ == 3
    assert np.isfinite(search.complete()).all()


def test_whole_numbers_and_constant_matrices() -> None:
    ratings = np.random.default_rng(0).integers(1, 6, size=(20, 8))
    assert RankCV(random_state=0).fit(ratings).rank_ >= 0
    assert RankCV(random_state=0).fit(np.zeros((10, 5))).best_rank_ == 0


@pytest.mark.parametrize(
    ("settings", "x", "words"),
    [
        ({"ranks": [16]}, X, "from 0 to 15"),
        ({"ranks": [0.5]}, X, "whole numbers"),
        ({"ranks": "all"}, X, "auto"),
        ({"estimator": "lasso"}, X, "estimator must be"),
        ({"rule": "best"}, X, "rule must be"),
        ({"center": "both"}, X, "center must be"),
        ({"cv": 1}, X, "cv must be between 2 and"),
        ({"cv": 2.5}, X, "cv must be"),
        ({}, np.ones((1, 4)), "n_samples = 1"),
        ({}, np.ones((4, 1)), "n_features = 1"),
        ({}, np.full((3, 3), np.nan), "no entry"),
        ({}, sparse.coo_matrix(([1.0, 2.0], ([0, 0], [0, 0])), shape=(3, 3)), "1 of 2 triplets"),
    ],
)
def test_one_sentence(settings: dict[str, Any], x: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RankCV(**settings).fit(x)


def test_no_model_without_refit() -> None:
    search = RankCV(ranks=4, random_state=0, refit=False).fit(X)
    with pytest.raises(DataError, match="refit=True"):
        search.transform(X)


def test_scikit_learn_conventions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(RankCV())

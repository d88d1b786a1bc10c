"""SoftImpute and what every low-rank estimator shares: rows, completion, input of all forms."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.completion.estimators.low_rank import (
    LowRankFactoriser,
    SoftImpute,
)
from consilience.completion.kernels.soft_impute import rank_path, unshrink
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import CENTRES, Entries


@parametrize_with_checks(
    [
        SoftImpute(),
        SoftImpute(unshrink=True, center="columns"),
        SoftImpute(center="rows-and-columns", solver="als"),
        SoftImpute(rank=1, unshrink=True),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 20)) + 0.3 * rng.normal(size=(40, 20))
    return x + rng.normal(size=(40, 1)) + np.arange(20.0) / 5.0


@pytest.fixture(scope="module")
def x(whole: np.ndarray) -> np.ndarray:
    seen = np.random.default_rng(1).random(whole.shape) < 0.7
    seen[4], seen[:, 6] = False, False
    return np.where(seen, whole, np.nan)


SETTINGS = [
    {"alpha": 3.0},
    {"alpha": 3.0, "solver": "als"},
    {"alpha": 3.0, "unshrink": True},
    {"rank": 3, "unshrink": True},
    {"rank": 3},
]


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize("center", CENTRES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_own_rows_have_the_scores_of_the_fit(
    x: np.ndarray, settings: dict[str, Any], center: str
) -> None:
    model = SoftImpute(**settings, center=center, tol=1e-12)
    scores = model.fit_transform(x)
    assert model.gap_ <= 1e-12
    np.testing.assert_allclose(model.transform(x), scores, atol=1e-6)
    np.testing.assert_allclose(model.reconstruct(x), model.reconstruct(), atol=1e-6)
    np.testing.assert_allclose(scores[4], 0.0, atol=1e-12)  # nothing observed


def test_scores_solve_the_ridge_problem(x: np.ndarray) -> None:
    model = SoftImpute(3.0).fit(x)
    row = np.full((1, 20), np.nan)
    row[0, [0, 3, 8, 11]] = [1.0, -2.0, 0.5, 3.0]
    v = model.components_[:, [0, 3, 8, 11]].T
    ridge = np.diag(3.0 / model.singular_values_)
    expected = np.linalg.solve(v.T @ v + ridge, v.T @ row[0, [0, 3, 8, 11]])
    np.testing.assert_allclose(model.transform(row)[0], expected, atol=1e-10)


def test_a_batch_does_not_matter(x: np.ndarray) -> None:
    model = SoftImpute(3.0).fit(x)
    one_by_one = np.vstack([model.transform(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(model.transform(x), one_by_one)


def test_a_complete_matrix_at_a_rank_is_a_truncation(whole: np.ndarray) -> None:
    model = SoftImpute(rank=2, unshrink=True).fit(whole)
    u, s, vt = np.linalg.svd(whole, full_matrices=False)
    truncated = (u[:, :2] * s[:2]) @ vt[:2]
    np.testing.assert_allclose(model.reconstruct(), truncated, atol=1e-10)
    np.testing.assert_allclose(model.reconstruct(whole), truncated, atol=1e-10)
    np.testing.assert_allclose(model.inverse_transform(model.transform(whole)), truncated)
    assert model.alpha_ == pytest.approx(s[2])


def test_parts_make_up_the_matrix(x: np.ndarray) -> None:
    model = SoftImpute(2.0, center="rows-and-columns").fit(x)
    scores = model.transform(x)
    made = scores @ model.components_ + model.mean_ + model.row_means_[:, None]
    np.testing.assert_allclose(made, model.reconstruct(), atol=2e-2)
    norms = np.linalg.norm(model.fit_transform(x), axis=0)
    np.testing.assert_allclose(norms, model.singular_values_)
    np.testing.assert_allclose(
        model.components_ @ model.components_.T, np.eye(model.n_components_), atol=1e-10
    )


def test_completion_keeps_what_is_observed(x: np.ndarray, whole: np.ndarray) -> None:
    model = SoftImpute(1.5, center="rows-and-columns", unshrink=True).fit(x)
    for filled in (model.complete(), model.complete(x)):
        seen = ~np.isnan(x)
        np.testing.assert_array_equal(filled[seen], x[seen])
        assert not np.isnan(filled).any()
    missing = np.isnan(x)
    missing[4], missing[:, 6] = False, False
    error = np.mean((model.complete() - whole)[missing] ** 2)
    assert error < 0.25 * np.var(whole[missing])  # noise .09, variance of the entries about 5


def test_entries(x: np.ndarray) -> None:
    model = SoftImpute(1.5, center="columns").fit(x)
    np.testing.assert_allclose(
        model.predict_entries([0, 39], [19, 6]), model.reconstruct()[[0, 39], [19, 6]], atol=1e-12
    )
    assert model.predict_entries([], []).shape == (0,)
    for rows, columns in (([0], [20]), ([-1], [0]), ([40], [0]), ([0, 1], [0]), ([0.5], [0])):
        with pytest.raises(DataError):
            model.predict_entries(rows, columns)


def test_rows_without_entries_are_the_centre(x: np.ndarray) -> None:
    model = SoftImpute(1.5, center="columns").fit(x)
    blank = np.full((2, 20), np.nan)
    np.testing.assert_array_equal(model.transform(blank), np.zeros((2, model.n_components_)))
    np.testing.assert_allclose(model.reconstruct(blank), [model.mean_, model.mean_])


# ------------------------------------------------------------------ forms of input


def test_forms_of_input_agree(x: np.ndarray) -> None:
    expected = SoftImpute(2.0).fit(x)
    i, j = np.nonzero(~np.isnan(x))
    forms = [
        pd.DataFrame(x),
        pd.DataFrame(x).convert_dtypes(),
        np.ma.masked_invalid(x),
        sparse.coo_array((x[i, j], (i, j)), shape=x.shape),
        sparse.csc_matrix((x[i, j], (i, j)), shape=x.shape),
        Entries.of(x),
        x.tolist(),
    ]
    for form in forms:
        model = SoftImpute(2.0).fit(form)
        np.testing.assert_array_equal(model.singular_values_, expected.singular_values_)
        np.testing.assert_array_equal(model.transform(form), expected.transform(x))


def test_stored_zeros_are_observed() -> None:
    rows, columns = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    values = np.where(columns == 2, 0.0, 1.0 + rows)
    stored = sparse.csr_array((values, (rows, columns)), shape=(6, 4))
    model = SoftImpute(0.1).fit(stored)
    np.testing.assert_allclose(model.reconstruct()[:, 2], 0.0, atol=1e-12)
    np.testing.assert_array_equal(model.complete(), values.reshape(6, 4))


def test_names_and_frames(x: np.ndarray) -> None:
    frame = pd.DataFrame(x, columns=[f"joke {j}" for j in range(20)], index=range(100, 140))
    model = SoftImpute(3.0).set_output(transform="pandas")
    scores = model.fit_transform(frame)
    assert list(scores.columns) == [f"softimpute{k}" for k in range(model.n_components_)]
    assert list(scores.index) == list(frame.index)
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame.rename(columns={"joke 0": "joke"}))


def test_in_a_pipeline(x: np.ndarray) -> None:
    pipeline = make_pipeline(StandardScaler(), SoftImpute(3.0), StandardScaler())
    seen = np.delete(x, 6, axis=1)
    assert pipeline.fit_transform(seen).shape[0] == 40


def test_fits_are_repeated_to_the_bit(x: np.ndarray) -> None:
    model = SoftImpute(2.0, center="rows-and-columns", unshrink=True)
    np.testing.assert_array_equal(
        model.fit(x).reconstruct(), clone(model).fit(x.copy()).reconstruct()
    )


# ------------------------------------------------------------------ ranks, caps, warnings


def test_a_rank_is_the_fit_of_the_path(x: np.ndarray) -> None:
    entries = Entries.of(x)
    *_, fit = rank_path(entries, [1, 2, 3])
    model = SoftImpute(rank=3, unshrink=True).fit(entries)
    np.testing.assert_array_equal(model.reconstruct(), unshrink(entries, fit).dense())
    assert (model.n_components_, model.rank, model.unshrink) == (3, 3, True)
    again = clone(model).fit(x)
    np.testing.assert_array_equal(again.reconstruct(), model.reconstruct())


def test_rank_zero_is_the_centre(x: np.ndarray) -> None:
    for model in (SoftImpute(rank=0, center="columns"), SoftImpute(1e6, center="columns")):
        model.fit(x)
        assert model.transform(x).shape == (40, 0)
        np.testing.assert_array_equal(model.reconstruct(), np.tile(model.mean_, (40, 1)))


def test_a_rank_that_binds_is_said(x: np.ndarray) -> None:
    with pytest.warns(UserWarning, match="max_rank = 2") as caught:
        model = SoftImpute(0.5, max_rank=2).fit(x)
    assert caught[0].filename == __file__
    assert model.capped_
    assert np.isnan(model.gap_)
    assert model.n_components_ == 2


def test_a_fit_cut_short_is_said(x: np.ndarray) -> None:
    with pytest.warns(ConvergenceWarning, match="did not settle in 2 iterations"):
        model = SoftImpute(0.5, max_iter=2).fit(x)
    assert not model.converged_
    assert model.gap_ > 1e-6


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": 0.0}, "alphas must be positive"),
        ({"alpha": -1.0}, "alphas must be positive"),
        ({"center": "rows"}, "center must be"),
        ({"solver": "svd"}, "solver must be"),
        ({"rank": 21}, "rank must be"),
        ({"rank": 2, "max_rank": 3}, "rank or max_rank, not both"),
        ({"tol": 0}, "tol must be"),
        ({"max_iter": 0}, "max_iter must be"),
    ],
)
def test_settings_out_of_range(x: np.ndarray, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        SoftImpute(**settings).fit(x)


def test_tables_that_cannot_be_used(x: np.ndarray) -> None:
    with pytest.raises(DataError, match="nothing to learn from"):
        SoftImpute().fit(np.full((3, 2), np.nan))
    with pytest.raises(DataError, match="infinite entries"):
        SoftImpute().fit(np.where(np.isnan(x), np.inf, x))
    twice = sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    with pytest.raises(DataError, match="1 of 3 triplets repeat"):
        SoftImpute().fit(twice)
    model = SoftImpute().fit(x)
    with pytest.raises(ValueError, match="features"):
        model.transform(x[:, :4])
    with pytest.raises(DataError, match="columns"):
        model.transform(Entries.of(x[:, :4]))
    with pytest.raises(DataError, match="one for each component"):
        model.inverse_transform(np.ones((2, 99)))
    for ask in (model.__class__().transform, SoftImpute().reconstruct):
        with pytest.raises(NotFittedError):
            ask(x)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1, 1)])
@pytest.mark.parametrize("center", CENTRES)
def test_one_row_or_column(shape: tuple[int, int], center: str) -> None:
    x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    if x.size > 1:
        x.flat[2] = np.nan
    model = SoftImpute(0.1, center=center).fit(x)
    assert np.isfinite(model.complete()).all()
    assert model.transform(x).shape[0] == shape[0]


def test_a_model_without_rows_of_its_own_asks_for_rows(x: np.ndarray) -> None:
    model = SoftImpute(3.0).fit(x)
    other = SoftImpute(3.0)
    other.n_features_in_ = 20
    LowRankFactoriser._take(other, model.factors_, None)
    np.testing.assert_array_equal(other.transform(x), model.transform(x))
    for ask in (other.reconstruct, other.complete):
        with pytest.raises(DataError, match="give it rows as X"):
            ask()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.array([["a name", "1"], ["2", "3"]]), "must be real numbers"),
        (pd.DataFrame({"u": ["a name", "2"], "v": [1.0, 2.0]}), "must be real numbers"),
        (np.array([[7531.0 + 1j, 2.0], [1.0, 2.0]]), "Complex data not supported"),
        (np.array([7531.0, 2.0, 3.0]), "Reshape your data"),
        (np.array([[1e150, 7531.0], [1.0, 2.0]]), "above 1e[+]100"),
        (np.array([[np.inf, 7531.0], [1.0, 2.0]]), "infinite entries"),
    ],
)
def test_what_is_no_matrix_is_refused_in_one_line_without_its_values(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        SoftImpute().fit(given)
    told = str(caught.value)
    assert "a name" not in told and "7531" not in told and "\n" not in told

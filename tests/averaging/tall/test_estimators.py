"""The estimators as scikit-learn sees them: `check_estimator`, one test for each of its checks."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.exceptions import DataError, ParameterError, RunError
from consilience.numerics.random import stream
from tests.averaging.tall.tables import classes, frame, regression

FEW = {"n_splits": 3, "max_rounds": 2}


SPLITS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "repeated rows are dealt to other splits"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [ReferenceAveragingRegressor(**FEW), ReferenceAveragingClassifier(**FEW)],
    expected_failed_checks=lambda _: SPLITS,
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def far(estimator: Any, pooled: Any) -> float:
    """Distance of coefficients relative to the pooled ones."""
    away = np.linalg.norm(estimator.coef_ - pooled.coef_)
    return float(away / np.linalg.norm(pooled.coef_))


@pytest.mark.parametrize(
    "learner",
    # At its default tolerance lasso's own error shows from round 50 on.
    [Ridge(alpha=30), LinearRegression(), Lasso(alpha=0.2, tol=1e-10, max_iter=10**5)],
)
def test_rounds_come_close_to_the_fit_of_all_rows(learner: Any) -> None:
    x, y = regression(240)
    pooled = learner.fit(x, y)
    plain, some, many = (
        ReferenceAveragingRegressor(
            learner, n_splits=6, max_rounds=rounds, guard=False, random_state=0
        ).fit(x, y)
        for rounds in (0, 50, 200)
    )
    # Distance times rho tends to a constant and rho grows by 4^.9 = 3.5 from round 50 to 200; a
    # wrong weight or penalty leaves a distance that does not shrink.
    assert far(many, pooled) < 0.4 * far(some, pooled)
    assert far(many, pooled) < 0.2 * far(plain, pooled)
    assert plain.chosen_round_ == 0 and many.chosen_round_ == 200
    np.testing.assert_allclose(many.predict(x), x @ many.coef_ + many.intercept_, rtol=1e-9)


def test_classes_come_close_to_the_fit_of_all_rows() -> None:
    x, y = classes(400, q=3)
    learner = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000)
    pooled = learner.fit(x, y).predict_proba(x)
    settings = {"n_splits": 8, "guard": False, "random_state": 0}
    plain = ReferenceAveragingClassifier(learner, max_rounds=0, **settings).fit(x, y)
    refit = ReferenceAveragingClassifier(learner, max_rounds=60, **settings).fit(x, y)
    away = [np.abs(e.predict_proba(x) - pooled).max() for e in (plain, refit)]
    # 1/rho at round 60 is .025; wrong weights leave a fixed distance of the size of plain's.
    assert away[1] < 0.15 * away[0]
    assert list(refit.classes_) == ["ash", "birch", "cedar"]
    assert set(refit.predict(x)) <= set(refit.classes_)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_weighted_rounds_come_close_to_the_weighted_fit_of_all_rows(task: str) -> None:
    x, y = regression(240) if task == "regression" else classes(400, q=3)
    weight = stream(5, "weights", task).integers(0, 4, len(y)).astype(float)
    weight[:80] *= 5
    if task == "regression":
        pooled, kind = Ridge(alpha=30), ReferenceAveragingRegressor
    else:
        pooled, kind = LogisticRegression(tol=1e-8, max_iter=1000), ReferenceAveragingClassifier
    plain, refit, guarded = (
        kind(pooled, n_splits=6, max_rounds=k, guard=guard, random_state=0).fit(
            x, y, sample_weight=weight
        )
        for k, guard in ((0, False), (60, False), (6, True))
    )
    name = "predict" if task == "regression" else "predict_proba"
    wanted = getattr(clone(pooled).fit(x, y, sample_weight=weight), name)(x)
    unweighted = getattr(clone(pooled).fit(x, y), name)(x)
    away = [np.abs(getattr(e, name)(x) - wanted).max() for e in (plain, refit)]
    # 1/rho is .025 in round 60.
    assert away[1] < 0.15 * away[0] and away[1] < 0.1 * np.abs(unweighted - wanted).max()
    assert sum(refit.split_sizes_) == weight.sum()
    # Held-out loss of the averages: by hand, on what the trial left out.
    assert np.isfinite(guarded.history_["base_loss"]).all()


def test_rows_of_weight_0_are_left_out() -> None:
    x, y = regression(120)
    weight = np.repeat([1.0, 0.0], 60)
    settings = {"n_splits": 3, "max_rounds": 3, "random_state": 0}
    one = ReferenceAveragingRegressor(**settings).fit(x, y, sample_weight=weight)
    other = ReferenceAveragingRegressor(**settings).fit(x[:60], y[:60])
    # Sums with weights of one differ from sums without in the last bits.
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-9)
    with pytest.raises(DataError, match="fewer than two rows have a weight"):
        ReferenceAveragingRegressor().fit(x, y, sample_weight=np.eye(120)[0])
    with pytest.raises(ValueError, match="Negative values"):
        ReferenceAveragingRegressor().fit(x, y, sample_weight=-weight)


def towns(n: int = 300) -> tuple[pd.DataFrame, np.ndarray]:
    """A frame with text, one level of which three rows have, and a column of categories."""
    x, y = regression(n)
    town = stream(6, "towns").choice(["Ely", "Rye", "Wells"], n).astype(object)
    town[:3] = "Bath"
    table = frame(x, y).drop(columns="y")
    ward = pd.Categorical(np.where(x[:, 0] > 0, "high", "low"))
    return table.assign(town=town, ward=ward), y + 5.0 * (town == "Rye")


def encoded(alpha: float = 1.0) -> Any:
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["town", "ward"]), remainder=StandardScaler()
    )
    return make_pipeline(encoder, Ridge(alpha=alpha))


def test_columns_of_text_are_encoded_once_on_all_rows() -> None:
    table, y = towns()
    with pytest.warns(UserWarning, match="reference set has rank 10"):
        fitted = ReferenceAveragingRegressor(
            encoded(), n_splits=5, max_rounds=40, guard=False, random_state=0
        ).fit(table, y)
    pooled = encoded().fit(table, y)
    plain = ReferenceAveragingRegressor(encoded(), n_splits=5, max_rounds=0, random_state=0).fit(
        table, y
    )
    # No reference row is of the town of three rows: so says the warning.
    known = table[table["town"] != "Bath"]
    away = [np.linalg.norm(e.predict(known) - pooled.predict(known)) for e in (plain, fitted)]
    assert away[1] < 0.2 * away[0]  # rho = 28 in round 40
    assert list(fitted.feature_names_in_) == list(table.columns)
    # Rows by themselves, in a search, and after a pickle.
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict(table.iloc[:7]), fitted.predict(table)[:7])
    search = GridSearchCV(
        ReferenceAveragingRegressor(encoded(), n_splits=3, max_rounds=2, random_state=0),
        {"estimator__ridge__alpha": [0.1, 1e6]},
        cv=3,
    ).fit(table, y)
    assert search.best_params_ == {"estimator__ridge__alpha": 0.1}


def test_columns_of_numbers_may_be_chosen_by_name() -> None:
    x, y = regression(200)
    table = frame(x, y).drop(columns="y")
    chosen = make_pipeline(make_column_transformer(("passthrough", ["x1", "x0"])), Ridge())
    fitted = ReferenceAveragingRegressor(
        chosen, n_splits=4, reference=table.iloc[:30, ::-1], random_state=0
    ).fit(table, y)
    assert fitted.coef_.shape == (2,)
    np.testing.assert_array_equal(fitted.reference_, table.iloc[:30][["x1", "x0"]])


def test_text_without_an_encoder_is_one_sentence() -> None:
    table, y = towns()
    with pytest.raises(DataError, match="columns that are no numbers: give a pipeline"):
        ReferenceAveragingRegressor().fit(table, y)
    needs_y = make_pipeline(TargetEncoder(), Ridge())
    with pytest.raises(ParameterError, match="without the response"):
        ReferenceAveragingRegressor(needs_y).fit(table[["town"]], y)


def test_a_split_without_a_class() -> None:
    """Sorted by class in a mapped file or here in small splits: some see one class only."""
    x, y = classes(60)
    order = np.argsort(y)
    # Dealt out to 6 splits, then the rare class thinned: some splits lack it.
    rare = np.flatnonzero(y[order] == "birch")[2:]
    x, y = np.delete(x[order], rare, axis=0), np.delete(y[order], rare)
    fitted = ReferenceAveragingClassifier(
        LogisticRegression(C=1.0), n_splits=3, guard=False, max_rounds=5, random_state=0
    ).fit(x, y)
    chances = fitted.predict_proba(x)
    assert chances.shape == (len(x), 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)


# ------------------------------------------------------------------ sparse rows


def words(n: int, p: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Counts in a tenth of the cells, and a response of a tenth of the columns."""
    rng = stream(seed, "words")
    x = sparse.random(n, p, 0.1, format="csr", rng=rng, data_rvs=lambda k: 1.0 + rng.poisson(1, k))
    return x, x @ (rng.standard_normal(p) * (rng.random(p) < 0.1)) + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize("kind", ["by row", "by column", "cells in parts"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_sparse_rows_are_fitted_as_the_same_rows_in_full(
    task: str, weighted: bool, kind: str
) -> None:
    x, y = words(300, 12)
    weight = stream(1).integers(1, 4, 300).astype(float) if weighted else None
    rows: Any = sparse.csc_array(x) if kind == "by column" else x
    if kind == "cells in parts":
        parts = np.repeat(x.data, 2) * np.tile([0.25, 0.75], x.nnz)
        rows = sparse.csr_matrix((parts, np.repeat(x.indices, 2), 2 * x.indptr), shape=x.shape)
    settings: dict[str, Any] = {"n_splits": 3, "max_rounds": 4, "random_state": 0}
    if task == "regression":
        model: Any = ReferenceAveragingRegressor(Ridge(3.0, solver="lsqr", tol=1e-13), **settings)
    else:
        learner = LogisticRegression(C=0.1, tol=1e-12)  # the guard takes round 0
        model = ReferenceAveragingClassifier(learner, guard=False, **settings)
        y = (y > np.median(y)).astype(int)
    full = clone(model).fit(x.toarray(), y, sample_weight=weight)
    found = model.fit(rows, y, sample_weight=weight)
    assert found.chosen_round_ == full.chosen_round_
    assert found.chosen_round_ > 0
    assert rows.nnz == x.nnz * (2 if kind == "cells in parts" else 1)  # it is the caller's
    np.testing.assert_allclose(found.coef_, full.coef_, atol=2e-6)
    assert sparse.issparse(found.reference_)
    np.testing.assert_array_equal(found.reference_.toarray(), full.reference_)
    for name in ("reference_rank", "reference_needed_rank"):
        assert found.history_[name] == full.history_[name]
    np.testing.assert_allclose(found.predict(rows), full.predict(x.toarray()), atol=1e-5)
    if not weighted:  # the reference rows of the user, with or without zeros
        for own in (x[:60], x[:60].toarray()):
            again = clone(model).set_params(reference=own).fit(rows, y)
            assert again.reference_.shape == (60, 12)


def test_wide_sparse_rows_are_never_filled_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise MemoryError("rows in full")

    x, y = words(900, 2400)
    x, y, new, expected = x[:600], y[:600], x[600:], y[600:]
    for kind in (sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.csc_array):
        monkeypatch.setattr(kind, "toarray", refused)
    model = ReferenceAveragingRegressor(
        Lasso(0.1), n_splits=3, n_reference=300, max_rounds=3, random_state=0
    )
    with pytest.warns(UserWarning, match="fewer rows than columns"):
        model.fit(x, y)
    plain = clone(model).set_params(max_rounds=0).fit(x, y)
    assert model.kept_
    assert model.score(new, expected) > plain.score(new, expected)
    for backend in ("threading", "loky"):
        with parallel_config(backend, n_jobs=2):
            again = clone(model).fit(x, y)
        np.testing.assert_array_equal(again.coef_, model.coef_)


def test_sparse_rows_and_what_would_fill_them(tmp_path: Path) -> None:
    x, y = words(200, 10)
    model = ReferenceAveragingRegressor(n_splits=2, checkpoint=tmp_path, random_state=0)
    with pytest.raises(ParameterError, match="take 'rows'"):
        clone(model).set_params(reference="moments").fit(x, y)
    model.fit(x, y)
    other = x.copy()
    other.data[3] += 1.0
    with pytest.raises(RunError, match="another data"):
        clone(model).fit(other, y)
    x.data[0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        ReferenceAveragingRegressor().fit(x, y)


def test_clone_and_pickle() -> None:
    x, y = regression(120)
    estimator = ReferenceAveragingRegressor(Ridge(alpha=2.0), n_splits=4, random_state=3)
    fitted = clone(estimator).fit(x, y)
    assert clone(fitted).get_params(deep=False).keys() == estimator.get_params(deep=False).keys()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))


def test_in_a_pipeline_and_a_search() -> None:
    x, y = regression(200)
    inner = ReferenceAveragingRegressor(Ridge(), n_splits=4, max_rounds=3, random_state=0)
    pipeline = make_pipeline(StandardScaler(), inner)
    assert pipeline.fit(x, y).score(x, y) > 0.5
    grid = {"estimator__alpha": [0.1, 1e5], "n_splits": [2, 4]}
    search = GridSearchCV(inner, grid, cv=3).fit(x, y)
    assert search.best_params_["estimator__alpha"] == 0.1


def test_preprocessing_inside_is_frozen() -> None:
    x, y = regression(300)
    learner = make_pipeline(StandardScaler(), Ridge(alpha=30))
    fitted = ReferenceAveragingRegressor(
        learner, n_splits=5, guard=False, max_rounds=40, random_state=0
    ).fit(x, y)
    first = [model.steps[0][1].mean_ for model in fitted.estimators_]
    assert all((mean == first[0]).all() for mean in first)
    np.testing.assert_allclose(first[0], fitted.reference_.mean(axis=0))
    scaled = fitted.estimators_[0].steps[0][1].transform(x)
    pooled = Ridge(alpha=30).fit(scaled, y).predict(scaled)
    plain = ReferenceAveragingRegressor(
        learner, n_splits=5, guard=False, max_rounds=0, random_state=0
    ).fit(x, y)
    away = [np.linalg.norm(e.predict(x) - pooled) for e in (plain, fitted)]
    assert away[1] < 0.2 * away[0]  # rho = 28 in round 40


def test_names_of_a_frame() -> None:
    x, y = regression(120)
    table = frame(x, y).drop(columns="y")
    fitted = ReferenceAveragingRegressor(n_splits=3, random_state=0).fit(table, y)
    assert list(fitted.feature_names_in_) == list(table.columns)
    assert fitted.predict(table).shape == (120,)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(table.iloc[:, ::-1])


def test_reference_rows_of_a_frame_are_put_in_order() -> None:
    x, y = regression(120)
    table = frame(x, y).drop(columns="y")
    shuffled = table.iloc[:40, ::-1]
    fitted = ReferenceAveragingRegressor(n_splits=3, reference=shuffled, random_state=0)
    np.testing.assert_array_equal(fitted.fit(table, y).reference_, x[:40])
    with pytest.raises(ParameterError, match="no column 'x0'"):
        ReferenceAveragingRegressor(reference=table.drop(columns="x0")).fit(table, y)


def test_few_rows_make_fewer_splits() -> None:
    x, y = regression(35)
    fitted = ReferenceAveragingRegressor(Ridge(), n_splits=8, random_state=0).fit(x, y)
    assert list(fitted.split_sizes_) == [12, 12, 11]
    one = ReferenceAveragingRegressor(Ridge(alpha=2), n_splits=8, random_state=0)
    x, y = x[:15], y[:15]
    np.testing.assert_allclose(one.fit(x, y).coef_, Ridge(alpha=2).fit(x, y).coef_, rtol=1e-12)
    assert one.reason_ == "not-measured" and not one.kept_


def test_a_grid_of_penalties_is_one_run() -> None:
    x, y = regression(400, 30)
    alphas = [1e-3, 20.0, 1e6]
    fitted = ReferenceAveragingRegressor(
        Ridge(), n_splits=4, penalties=alphas, max_rounds=8, random_state=0
    ).fit(x, y)
    assert fitted.history_["gains"].shape[0] == 3
    assert fitted.penalty_ in (1e-3, 20.0)
    alone = ReferenceAveragingRegressor(
        Ridge(alpha=fitted.penalty_),
        n_splits=4,
        guard=False,
        max_rounds=fitted.chosen_round_,
        random_state=0,
    ).fit(x, y)
    np.testing.assert_allclose(fitted.coef_, alone.coef_, rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"schedule": "weekly"}, "schedule must be one of"),
        ({"rho": 0.0}, "rho must be"),
        ({"exponent": 1.0}, "exponent must be"),
        ({"n_splits": 0}, "n_splits must be"),
        ({"patience": 0}, "patience must be"),
        ({"max_rounds": -1}, "max_rounds must be"),
        ({"holdout": 1.0}, "holdout must be"),
        ({"n_reference": 0}, "n_reference must be"),
        ({"reference": "own"}, "reference must be"),
        ({"reference": np.ones((5, 2))}, "they need 6 columns"),
        ({"reference": np.full((5, 6), np.nan)}, "missing or infinite"),
        ({"convention": "guess"}, "convention"),
        ({"estimator": LogisticRegression()}, "not for regression"),
        ({"estimator": LinearRegression(), "penalties": [1.0]}, "no penalty"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], sentence: str) -> None:
    x, y = regression(60)
    with pytest.raises(ParameterError, match=sentence):
        ReferenceAveragingRegressor(**settings).fit(x, y)


def test_labels_instead_of_probabilities() -> None:
    from sklearn.svm import LinearSVC

    x, y = classes(100)
    with pytest.raises(ParameterError, match="labels, not probabilities"):
        ReferenceAveragingClassifier(LinearSVC(), convention="sum").fit(x, y)


def test_missing_predictions() -> None:
    from sklearn.base import BaseEstimator, RegressorMixin

    class Lost(RegressorMixin, BaseEstimator):
        def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
            return self

        def predict(self, x: Any) -> Any:
            return np.full(len(x), np.nan)

    x, y = regression(60)
    with pytest.raises(DataError, match="finite"):
        ReferenceAveragingRegressor(Lost(), convention="sum", random_state=0).fit(x, y)


def test_one_class_only() -> None:
    x, _ = classes(60)
    with pytest.raises(DataError, match="one class only"):
        ReferenceAveragingClassifier().fit(x, np.zeros(60))


def test_the_same_seed_gives_the_same_fit() -> None:
    x, y = regression(200)
    one, two, other = (
        ReferenceAveragingRegressor(n_splits=5, random_state=seed).fit(x, y) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert not np.array_equal(one.reference_, other.reference_)

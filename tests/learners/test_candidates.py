"""Candidates by name, with settings, and as objects."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

from consilience.exceptions import ParameterError
from consilience.learners.candidates import NAMES, as_text, build, folds, label
from consilience.wire.estimators import is_memorising, type_name

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * [1, 100, 0.01]
Y = X[:, 0] + X[:, 1] / 100
LEVELS = (Y > 0).astype(int)

CARRY_ROWS = {"knn", "svr", "svm", "gaussian-process", "kernel-ridge"}


def made(text: str, task: Any = "regression", min_records: int = 1, seed: int = 0) -> Any:
    return build(text, task, min_records=min_records, seed=seed)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_fits_and_predicts(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = made(name).fit(X, Y)
        assert np.isfinite(fitted.predict(X)).all()
        assert np.corrcoef(fitted.predict(X), Y)[0, 1] > 0.7
        assert is_memorising(type_name(fitted)) == (name in CARRY_ROWS)
        if name == "kernel-ridge":
            with pytest.raises(ParameterError, match="numeric responses"):
                made(name, "classification")
            return
        chances = made(name, "classification").fit(X, LEVELS).predict_proba(X)
    assert chances.shape == (60, 2)
    assert (chances.argmax(axis=1) == LEVELS).mean() > 0.7


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("extra-trees", "ada-boost")])
def test_units_of_the_response_do_not_matter(name: str) -> None:
    """Penalties and widths are relative: y in other units gives the same predictions in them.

    Not looked at where splits are drawn at random: their ties follow rounding.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = made(name).fit(X, Y).predict(X)
        again = made(name).fit(X, 1024.0 * Y).predict(X)
    tolerance = 1e-2 if name in ("lasso", "elastic-net", "mlp", "gaussian-process") else 1e-6
    np.testing.assert_allclose(again / 1024.0, first, atol=tolerance * np.std(Y))


def test_settings() -> None:
    assert made("random-forest(n_estimators=7, max_depth=2)").get_params()["max_depth"] == 2
    assert made("mlp(hidden_layer_sizes=(4, 2))").regressor[-1].hidden_layer_sizes == (4, 2)
    assert made("ridge(alphas=(1.0, 2.0))")[-1].alphas == (1.0, 2.0)
    assert made(" linear ( fit_intercept = False )").fit_intercept is False
    with pytest.raises(ParameterError, match="does not know"):
        made("random-forest(trees=3)")


def test_draws_leaves_and_neighbours_are_those_of_the_site() -> None:
    forest = made("random-forest", min_records=10, seed=5)
    assert forest.min_samples_leaf == 10
    assert forest.random_state == 5
    assert made("random-forest(min_samples_leaf=25)", min_records=10).min_samples_leaf == 25
    assert made("knn", min_records=15)[-1].n_neighbors == 15
    inner = made("bagging", min_records=10).estimator
    assert inner.min_samples_leaf == 10
    given = BaggingRegressor(DecisionTreeRegressor(), n_jobs=4, random_state=1)
    built = made(as_text(given), min_records=10, seed=9)
    assert built.n_jobs is None
    assert built.random_state == built.estimator.random_state == 9
    assert built.estimator.min_samples_leaf == 10


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        ("linear", "linear"),
        ("lasso(cv=3)", "lasso(cv=3)"),
        ({"name": "lasso"}, "lasso"),
        ({"name": "mlp", "hidden_layer_sizes": (3,)}, "mlp(hidden_layer_sizes=(3,))"),
    ],
)
def test_texts(candidate: Any, text: str) -> None:
    assert as_text(candidate) == text
    assert label(text) == text
    assert as_text(as_text(candidate)) == text


def test_objects_travel_as_text() -> None:
    pipeline = make_pipeline(StandardScaler(), Ridge(3.0))
    text = as_text(pipeline)
    assert as_text(text) == text
    assert "Ridge(alpha=3.0)" in label(text)
    built = made(text)
    assert built[-1].alpha == 3.0
    np.testing.assert_allclose(
        built.fit(X, Y).predict(X), make_pipeline(StandardScaler(), Ridge(3.0)).fit(X, Y).predict(X)
    )
    fitted = as_text(LinearRegression().fit(X, Y))
    assert not hasattr(made(fitted), "coef_"), "a candidate brings settings, no fit"


def test_objects_are_told_apart() -> None:
    several = [RandomForestRegressor(max_depth=d) for d in (2, 3)]
    several += [make_pipeline(StandardScaler(), m) for m in (Ridge(), Lasso())]
    labels = [label(as_text(m)) for m in several]
    assert len(set(labels)) == 4
    long = make_pipeline(*(StandardScaler() for _ in range(20)), Ridge())
    assert len(label(as_text(long))) <= 150


def test_folds() -> None:
    for text in ("linear", "ridge", "lasso", "elastic-net", "lasso(cv=3)"):
        assert folds(text) == 10
    for text in ("random-forest", "knn", "mlp(alpha=1.0)"):
        assert folds(text) == 5
    for linear in (LinearRegression(), Lasso(), ElasticNet(), LogisticRegression()):
        assert folds(as_text(make_pipeline(StandardScaler(), linear))) == 10
    assert folds(as_text(RandomForestRegressor())) == 5


HOSTILE = [
    "linear(__import__('os'))",
    "linear(fit_intercept=__import__('os').system('true'))",
    "linear(fit_intercept=[x for x in (1,)])",
    "linear(fit_intercept=open('/etc/passwd'))",
    "linear(**{'fit_intercept': True})",
    "linear(*(1,))",
    "linear(fit_intercept=True)(fit_intercept=False)",
    "linear()[0]",
    "linear(); print(1)",
    "linear(\n)\nimport os",
    "linear(a=1, a=2)",
    "linear(a=2**10**10)",
    "linear(a='" + "x" * 10 + "\x00')",
    "linear(a=" + "(" * 3000 + ")" * 3000 + ")",
    "linear(a=" + "-" * 30_000 + "1)",
    "linear(",
    "linear)",
    "(linear)",
    "",
    "object:",
    "object:LinearRegression",
    "object:LinearRegression:",
    "object:LinearRegression:not base64",
    "object::UEsDBAo=",
    "__import__('os')",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: t[:40])
def test_texts_that_are_no_candidates(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        as_text(text)
    assert len(str(caught.value)) < 1000
    with pytest.raises(ParameterError):
        made(text)


@pytest.mark.parametrize("candidate", [None, 3, LinearRegression, object(), b"linear", ["linear"]])
def test_things_that_are_no_candidates(candidate: Any) -> None:
    with pytest.raises(ParameterError, match="candidates"):
        as_text(candidate)


def test_an_estimator_off_the_list() -> None:
    class Mine(LinearRegression):
        pass

    with pytest.raises(ParameterError, match="Mine does not travel"):
        as_text(Mine())


def test_task_and_estimator_fit() -> None:
    with pytest.raises(ParameterError, match="is not for classification"):
        made(as_text(Ridge()), "classification")
    with pytest.raises(ParameterError, match="is not for regression"):
        made(as_text(LogisticRegression()))
    with pytest.raises(ParameterError, match="gives no probabilities"):
        made(as_text(LinearSVC()), "classification")


@pytest.mark.parametrize(
    "text", ["random-forest(n_estimators=1000000000)", "mlp(max_iter=20000)", "lasso(cv=101)"]
)
def test_settings_that_would_keep_a_site_busy(text: str) -> None:
    with pytest.raises(ParameterError, match="at most"):
        made(text)

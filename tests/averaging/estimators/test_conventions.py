"""Every family of the table, against textbook objectives and against itself."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest
from glum import GeneralizedLinearRegressor, GeneralizedLinearRegressorCV
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    Lasso,
    LassoCV,
    LassoLars,
    LassoLarsIC,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR, LinearSVC, LinearSVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from consilience.averaging.estimators import conventions as c
from consilience.averaging.estimators.proximal_fit import Learner, separable
from consilience.exceptions import ParameterError
from tests.reference import pseudo_rows as textbook

Glm = GeneralizedLinearRegressor
TOL = 1e-10
N, P, M, TOTAL, RHO = 90, 3, 40, 400.0, 1.7
_rng = np.random.default_rng(20)
X = _rng.normal(size=(N, P)) @ np.diag([1.0, 0.6, 1.5]) + [0.3, 0.0, -0.2]
A = 1.2 * _rng.normal(size=(M, P))
WEIGHT = _rng.integers(1, 4, size=N).astype(float)
Y = X @ [1.0, -0.5, 0.2] + 0.7 + _rng.normal(size=N)
POSITIVE = np.exp(0.4 * Y)
COUNTS = _rng.poisson(POSITIVE).astype(float)
TWO = (Y > 0.6).astype(int)
THREE = np.digitize(Y, [0.0, 1.2])
WEIGHTS = float(WEIGHT.sum())

RESPONSES: dict[str, Any] = {
    "y": Y,
    "positive": POSITIVE,
    "counts": COUNTS,
    "two": TWO,
    "three": THREE,
    "share": TWO.astype(float),
}


def learner_of(estimator: Any, response: str = "y", **settings: Any) -> Learner:
    levels = {"two": 2, "three": 3}.get(response)
    task: Any = "classification" if levels else "regression"
    settings = {"reference": A, "n_total": TOTAL, **settings}
    return Learner(estimator, task=task, n_levels=levels or 1, **settings)


def targets(response: str) -> np.ndarray:
    """Averaged predictions that are not those of any fit of the own rows."""
    other = np.random.default_rng(3).normal(size=M) * 0.5 + A @ [0.4, 0.2, -0.6]
    if response == "y":
        return other[:, None]
    if response in ("positive", "counts"):
        return np.exp(0.4 * other)[:, None]
    share = 1 / (1 + np.exp(-other))
    if response == "share":
        return share[:, None]
    if response == "two":
        return np.column_stack([1 - share, share])
    return np.column_stack([1 - share, share * 0.7, share * 0.3])


# --------------------------------------------------------------------------- textbook objectives

C = 3.0
TEXTBOOK = [
    (Ridge(25.0, tol=TOL), "y", lambda r: textbook.ridge(r, 25.0 / TOTAL)),
    (
        Ridge(25.0, solver="sag", tol=TOL, max_iter=100_000),
        "y",
        lambda r: textbook.ridge(r, 0.0625),
    ),
    (LinearRegression(), "y", lambda r: textbook.ridge(r, 0.0)),
    (Lasso(0.2, tol=TOL), "y", lambda r: textbook.elastic_net(r, 0.2, 1.0)),
    (Lasso(0.2, tol=TOL, precompute=True), "y", lambda r: textbook.elastic_net(r, 0.2, 1.0)),
    (LassoLars(0.2), "y", lambda r: textbook.elastic_net(r, 0.2, 1.0)),
    (
        ElasticNet(0.3, l1_ratio=0.4, tol=TOL),
        "y",
        lambda r: textbook.elastic_net(r, 0.3, 0.4),
    ),
    (
        LogisticRegression(C=C, tol=TOL, max_iter=10_000),
        "two",
        lambda r: textbook.logistic(r, 1 / (C * TOTAL)),
    ),
    (
        LogisticRegression(C=0.02, solver="newton-cholesky", tol=TOL),
        "two",
        lambda r: textbook.logistic(r, 1 / (0.02 * TOTAL)),
    ),
    (
        LogisticRegression(C=0.02, solver="saga", tol=1e-9, max_iter=100_000),
        "two",
        lambda r: textbook.logistic(r, 1 / (0.02 * TOTAL)),
    ),
    (PoissonRegressor(alpha=0.3, tol=TOL), "counts", lambda r: textbook.poisson(r, 0.3)),
    (GammaRegressor(alpha=0.3, tol=TOL), "positive", lambda r: textbook.gamma(r, 0.3)),
    (TweedieRegressor(power=1.5, alpha=0.3, tol=TOL), "counts", lambda r: textbook.tweedie(r, 0.3)),
    (
        Glm(family="normal", alpha=0.3, gradient_tol=TOL),
        "y",
        lambda r: textbook.ridge(r, 0.3),  # half squares + alpha/2 |beta|^2
    ),
    (
        Glm(family="normal", alpha=0.3, l1_ratio=0.4, gradient_tol=TOL),
        "y",
        lambda r: textbook.elastic_net(r, 0.3, 0.4),
    ),
    (
        Glm(family="poisson", alpha=0.3, gradient_tol=TOL),
        "counts",
        lambda r: textbook.poisson(r, 0.3),
    ),
    (
        Glm(family="binomial", alpha=0.3, gradient_tol=TOL),
        "share",
        lambda r: textbook.logistic(r, 0.3),
    ),
]


@pytest.mark.parametrize(
    ("estimator", "response", "solution"),
    TEXTBOOK,
    ids=lambda v: "" if callable(v) else " ".join(repr(v).split())[:70],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_refit_minimises_the_textbook_objective(
    estimator: Any, response: str, solution: Any, weighted: bool
) -> None:
    weight = WEIGHT if weighted else np.ones(N)
    # Copies are exact where weights are whole.
    rho = 2.0 * M / weight.sum() if isinstance(estimator, LassoLars) else RHO
    target = targets(response)
    fitted = learner_of(estimator, response).fit(
        X, RESPONSES[response], weight=WEIGHT if weighted else None, target=target, rho=rho
    )
    rows = textbook.mass_of(X, RESPONSES[response], weight, A, target[:, -1], rho)
    coef, intercept = solution(rows)
    np.testing.assert_allclose(np.ravel(fitted.coef_), coef, atol=2e-6)
    np.testing.assert_allclose(np.ravel(fitted.intercept_), intercept, atol=2e-6)


def test_several_levels_minimise_the_textbook_objective() -> None:
    estimator = LogisticRegression(C=C, tol=TOL, max_iter=10_000)
    target = targets("three")
    fitted = learner_of(estimator, "three").fit(X, THREE, weight=WEIGHT, target=target, rho=RHO)
    coef, intercept = textbook.softmax(X, THREE, WEIGHT, A, target, RHO, 1 / (C * TOTAL))
    np.testing.assert_allclose(fitted.coef_, coef, atol=2e-6)
    np.testing.assert_allclose(fitted.intercept_ - fitted.intercept_.mean(), intercept, atol=2e-6)


@pytest.mark.parametrize("estimator", [SGDRegressor(), MLPRegressor()], ids=["sgd", "mlp"])
def test_learners_that_take_steps_divide_by_rows(estimator: Any) -> None:
    assert c.convention_of(estimator).name == "rows"


def test_steps_of_stochastic_gradients_lead_to_the_textbook_objective() -> None:
    """Small steps for long; under another convention they lead 10 times as far away."""
    estimator = SGDRegressor(
        alpha=0.5, learning_rate="constant", eta0=2e-4, max_iter=3000, tol=None, average=2000
    )
    target = targets("y")
    coef, _ = textbook.ridge(textbook.mass_of(X, Y, WEIGHT, A, target[:, 0], RHO), 0.5)
    away = {}
    for name in ("auto", "sum", "normalised"):
        learner = learner_of(estimator, convention=name)
        fitted = learner.fit(X, Y, weight=WEIGHT, target=target, rho=RHO)
        away[name] = np.abs(fitted.coef_ - coef).max()
    assert away["auto"] < 5e-3
    assert min(away["sum"], away["normalised"]) > 10 * away["auto"]


# --------------------------------------------------------------------------- each family by itself

DOUBLED = [
    (Ridge(30.0), "y", "alpha"),
    (Lasso(0.1, tol=TOL), "y", "alpha"),
    (LassoLars(0.1), "y", "alpha"),
    (QuantileRegressor(alpha=0.05, quantile=0.3), "y", "alpha"),
    (PoissonRegressor(alpha=0.2, tol=TOL), "counts", "alpha"),
    (LinearSVR(C=0.3, tol=TOL, max_iter=1_000_000, epsilon=0.1), "y", "C"),
    (SVR(C=0.3, tol=TOL, gamma=0.3), "y", "C"),
    (KernelRidge(alpha=2.0, kernel="rbf", gamma=0.3), "y", "alpha"),
    (
        MLPRegressor(hidden_layer_sizes=(4,), alpha=20.0, solver="lbfgs", max_iter=5000, tol=TOL),
        "y",
        "alpha",
    ),
    (LogisticRegression(C=0.3, solver="liblinear", tol=TOL), "two", "C"),
    (LogisticRegression(C=0.3, tol=TOL, max_iter=1000), "three", "C"),
    (LogisticRegression(C=0.3, l1_ratio=1, solver="saga", tol=1e-9, max_iter=90_000), "two", "C"),
    (Glm(family="gamma", alpha=0.3, gradient_tol=TOL), "positive", "alpha"),
    (GaussianNB(), "three", ""),
    (DecisionTreeRegressor(max_depth=4), "y", ""),
    (DecisionTreeClassifier(max_depth=3), "two", ""),
    (GradientBoostingRegressor(n_estimators=10), "y", ""),
]


@pytest.mark.parametrize(("estimator", "response", "name"), DOUBLED, ids=lambda v: repr(v)[:70])
def test_own_rows_once_more_are_a_smaller_penalty(estimator: Any, response: str, name: str) -> None:
    """With the own rows as pseudo-rows the mean loss counts 1 + rho times, the penalty once."""
    y = RESPONSES[response]
    levels = {"two": 2, "three": 3}.get(response)
    target = np.eye(levels)[y] if levels else y[:, None].astype(float)
    rho = 1.0  # whole copies for the learner without weights
    learner = learner_of(estimator, response, reference=X)
    found = learner.predict(learner.fit(X, y, target=target, rho=rho), A)
    plain = clone(estimator).set_params(
        **({"random_state": 0} if "random_state" in estimator.get_params() else {})
    )
    if name:
        value = getattr(estimator, name)
        pooled = TOTAL / N if learner.convention.name == "sum" else 1.0
        factor = pooled * (1 + rho)
        plain.set_params(**{name: value * factor if name == "C" else value / factor})
    wanted = learner.predict(plain.fit(X, y), A)
    # The surface of the network has no single minimum: steps of two paths differ in last digits.
    tolerance = 1e-3 if isinstance(estimator, MLPRegressor) else 2e-6
    np.testing.assert_allclose(found, wanted, atol=tolerance)


@pytest.mark.parametrize("name", c.CONVENTIONS)
def test_the_table_says_what_the_types_take(name: str) -> None:
    module, _, kind = name.rpartition(".")
    estimator = getattr(importlib.import_module(module), kind)()
    convention = c.convention_of(estimator)
    signature = inspect.signature(estimator.fit).parameters
    assert ("sample_weight" in signature) == convention.weights
    settings = estimator.get_params()
    assert not convention.penalty or convention.penalty in settings
    assert not convention.warm or "warm_start" in settings
    if "alpha" in settings and convention.name == "sum":
        quantile = kind in ("GradientBoostingRegressor",)
        assert convention.penalty == "alpha" or quantile
    assert convention.inverse == (convention.penalty == "C")


# --------------------------------------------------------------------------- the probe

SEPARABLE = [
    (Ridge(25.0), "y"),
    (LinearRegression(), "y"),
    (Lasso(0.1, tol=TOL), "y"),
    (ElasticNet(0.1, tol=TOL), "y"),
    (LassoLars(0.1), "y"),
    (LogisticRegression(tol=TOL, max_iter=10_000), "two"),
    (LogisticRegression(tol=TOL, max_iter=10_000), "three"),
    (LogisticRegression(solver="newton-cholesky", tol=TOL), "three"),
    (PoissonRegressor(tol=TOL, solver="newton-cholesky"), "counts"),
    (GammaRegressor(tol=TOL, solver="newton-cholesky"), "positive"),
    (TweedieRegressor(power=1.5, tol=TOL, solver="newton-cholesky"), "counts"),
    (Glm(family="poisson", alpha=0.1, gradient_tol=TOL), "counts"),
    (Glm(family="binomial", alpha=0.1, l1_ratio=1.0, gradient_tol=TOL), "share"),
    (KernelRidge(kernel="rbf"), "y"),
    (LinearSVR(tol=TOL, max_iter=1_000_000), "y"),
    (SVR(tol=TOL), "y"),
    (make_pipeline(StandardScaler(), Ridge(3.0)), "y"),
]


@pytest.mark.parametrize(("estimator", "response"), SEPARABLE, ids=lambda v: repr(v)[:70])
def test_own_predictions_change_nothing(estimator: Any, response: str) -> None:
    learner = learner_of(estimator, response)
    change, permuted = learner.probe(
        X,
        RESPONSES[response],
        weight=WEIGHT if learner.convention.weights else None,
        rng=np.random.default_rng(1),
    )
    assert change <= 1e-6
    assert separable(change, permuted)
    assert learner.convention.separable


def test_loose_tolerances_pass_the_probe() -> None:
    for estimator, response in ((LogisticRegression(), "two"), (PoissonRegressor(), "counts")):
        learner = learner_of(estimator, response)
        assert separable(*learner.probe(X, RESPONSES[response], rng=np.random.default_rng(1)))


NOT_SEPARABLE = [
    (DecisionTreeRegressor(), "y"),
    (DecisionTreeRegressor(max_depth=4), "y"),
    (DecisionTreeClassifier(max_depth=4), "two"),
    (RandomForestRegressor(30), "y"),
    (RandomForestRegressor(30, min_samples_leaf=10), "y"),
    (RandomForestClassifier(30, min_samples_leaf=5), "three"),
    (ExtraTreesRegressor(30), "y"),
    (GradientBoostingRegressor(), "y"),
    (GradientBoostingClassifier(n_estimators=30), "two"),
    (HistGradientBoostingRegressor(max_iter=30, min_samples_leaf=5), "y"),
    (HistGradientBoostingClassifier(max_iter=30, min_samples_leaf=5), "two"),
    (BaggingRegressor(), "y"),
    (KNeighborsRegressor(5), "y"),
    (GaussianNB(), "two"),
]


@pytest.mark.parametrize(("estimator", "response"), NOT_SEPARABLE, ids=lambda v: repr(v)[:70])
def test_learners_that_do_not_separate_are_found_out(estimator: Any, response: str) -> None:
    learner = learner_of(estimator, response)
    change, permuted = learner.probe(X, RESPONSES[response], rng=np.random.default_rng(1))
    assert change >= 1e-2
    assert not separable(change, permuted)
    assert learner.convention.separable is False


WRONG = [
    (Ridge(40.0), "y", "normalised"),
    (Ridge(150.0), "y", "rows"),
    (Lasso(0.1, tol=TOL), "y", "sum"),
    (Lasso(0.1, tol=TOL), "y", "rows"),
    (LogisticRegression(C=0.05), "two", "normalised"),
    (LogisticRegression(C=0.05), "two", "rows"),
    (PoissonRegressor(alpha=0.3), "counts", "sum"),
    (Glm(family="poisson", alpha=0.3), "counts", "rows"),
    (LassoLars(0.1), "y", "sum"),
]


@pytest.mark.parametrize(("estimator", "response", "wrong"), WRONG, ids=lambda v: repr(v)[:50])
def test_a_wrong_convention_is_caught_by_the_probe(
    estimator: Any, response: str, wrong: str
) -> None:
    y = RESPONSES[response]
    rng = np.random.default_rng(1)
    right = learner_of(estimator, response).probe(X, y, rng=rng)
    assert separable(*right)
    declared = learner_of(estimator, response, convention=wrong).probe(X, y, rng=rng)
    assert declared[0] > 1e-2
    assert not separable(*declared)


# --------------------------------------------------------------------------- refusals


class Unknown(RegressorMixin, BaseEstimator):
    """A learner of somebody's own, without weights."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, x: Any, y: Any) -> Any:
        self.inner_ = Ridge(self.alpha).fit(x, y)
        return self

    def predict(self, x: Any) -> Any:
        return self.inner_.predict(x)


def test_unknown_learners_need_a_convention() -> None:
    with pytest.raises(ParameterError, match=r"Unknown weighs rows.*give convention 'sum'"):
        learner_of(Unknown())
    told = c.convention_of(Unknown(), "sum")
    assert (told.name, told.penalty, told.weights) == ("sum", "alpha", False)
    assert c.convention_of(Unknown(), "trees").penalty == ""


@pytest.mark.parametrize(
    ("estimator", "response", "phrase"),
    [
        (RidgeCV(), "y", "RidgeCV chooses by the rows"),
        (LassoCV(), "y", "penalties="),
        (LassoLarsIC(), "y", "fixed settings"),
        (LogisticRegressionCV(use_legacy_attributes=False), "two", "chooses"),
        (GeneralizedLinearRegressorCV(), "y", "chooses"),
        (Glm(alpha_search=True), "y", "chooses"),
        (GridSearchCV(Ridge(), {"alpha": [1.0]}), "y", "chooses"),
        (make_pipeline(StandardScaler(), RidgeCV()), "y", "chooses"),
        (TransformedTargetRegressor(Ridge()), "y", "transform the response beforehand"),
        (GaussianProcessRegressor(), "y", "give convention"),
        (LinearSVC(), "two", "LinearSVC returns labels, not probabilities"),
        (SGDClassifier(), "two", "returns labels"),
        (Ridge(), "two", "not for classification"),
        (LogisticRegression(), "y", "not for regression"),
        (Ridge(np.ones(3)), "y", "alpha of Ridge must be one number"),
        (MLPRegressor(early_stopping=True), "y", "set early_stopping=False"),
        (SGDRegressor(early_stopping=True), "y", "set early_stopping=False"),
        (HistGradientBoostingRegressor(early_stopping=True), "y", "set early_stopping=False"),
        (GradientBoostingRegressor(n_iter_no_change=3), "y", "n_iter_no_change=None"),
        (Glm(scale_predictors=True), "y", "set scale_predictors=False"),
        (LogisticRegression(class_weight="balanced"), "two", "weights instead"),
        (make_pipeline(StandardScaler(), "passthrough"), "y", "must be a scikit-learn estimator"),
    ],
    ids=lambda v: repr(v)[:60],
)
def test_what_cannot_be_used_is_refused(estimator: Any, response: str, phrase: str) -> None:
    with pytest.raises(ParameterError, match=phrase):
        learner_of(estimator, response)


def test_a_convention_that_there_is_not() -> None:
    with pytest.raises(ParameterError, match="convention must be auto or one of"):
        learner_of(Ridge(), convention="mean")


def test_stopping_by_the_number_of_rows_is_switched_off() -> None:
    settled = c.settled(HistGradientBoostingRegressor(), 3)
    assert settled.early_stopping is False
    assert settled.random_state == 3
    nested = c.settled(BaggingRegressor(MLPRegressor(warm_start=True), n_jobs=2), 5)
    assert nested.n_jobs is None
    assert nested.estimator.random_state == 5
    assert nested.estimator.warm_start is False


def test_networks_by_batches_and_by_all_rows_differ() -> None:
    assert c.convention_of(MLPClassifier()).name == "rows"
    assert c.convention_of(MLPClassifier(solver="lbfgs")).name == "sum"


def test_classifiers_without_weights_are_known() -> None:
    assert not c.convention_of(KNeighborsClassifier()).weights

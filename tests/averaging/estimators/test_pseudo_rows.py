"""Fits with pseudo-rows: what goes in, what is kept from round to round, what comes out."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from glum import GeneralizedLinearRegressor
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.feature_selection import SelectKBest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeClassifier

from consilience.averaging.estimators.conventions import stacked
from consilience.averaging.estimators.proximal_fit import Learner, separable
from consilience.exceptions import DataError, ParameterError
from consilience.wire.estimators import encode, n_parameters

N, P, M = 120, 3, 30
_rng = np.random.default_rng(8)
X = _rng.normal(loc=[1.0, 0.0, -2.0], size=(N, P))
A = _rng.normal(size=(M, P)) * 1.3
WEIGHT = _rng.uniform(0.2, 3.0, size=N)
Y = X @ [0.8, -0.5, 0.3] + _rng.normal(size=N)
TWO = (Y > 0.2).astype(int)
THREE = np.digitize(Y, [-0.5, 0.8])
TARGET = (A @ [0.5, 0.1, -0.2] + 0.3)[:, None]


def regression(estimator: Any, **settings: Any) -> Learner:
    return Learner(estimator, task="regression", **{"reference": A, **settings})


def classification(estimator: Any, q: int = 2, **settings: Any) -> Learner:
    settings = {"reference": A, **settings}
    return Learner(estimator, task="classification", n_levels=q, **settings)


def chances(q: int) -> np.ndarray:
    raw = np.exp(np.column_stack([A @ [0.3 * k, -0.2, 0.1 * k] for k in range(q)]))
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


# --------------------------------------------------------------------------- meaning


@pytest.mark.parametrize(
    "estimator",
    [Ridge(3.0), Lasso(0.1), LinearRegression(), SVR(gamma=0.2), KernelRidge(alpha=2.0)],
    ids=repr,
)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_one_site_alone_is_the_estimator_itself(estimator: Any, weight: Any) -> None:
    learner = regression(estimator)
    fitted = learner.fit(X, Y, weight=weight)
    wanted = estimator.fit(X, Y, sample_weight=weight).predict(A)
    np.testing.assert_allclose(learner.predict(fitted, A)[:, 0], wanted, rtol=1e-9, atol=1e-9)


def test_a_penalty_means_what_it_means_for_all_rows() -> None:
    whole = Ridge(30.0).fit(np.vstack([X] * 5), np.tile(Y, 5))
    part = regression(Ridge(30.0), n_total=5 * N).fit(X, Y)
    np.testing.assert_allclose(part.coef_, whole.coef_, rtol=1e-10)
    whole = LogisticRegression(C=0.1, tol=1e-10).fit(np.vstack([X] * 5), np.tile(TWO, 5))
    part = classification(LogisticRegression(C=0.1, tol=1e-10), n_total=5 * N).fit(X, TWO)
    np.testing.assert_allclose(part.coef_, whole.coef_, rtol=1e-5)


def test_weights_matter_by_their_sum() -> None:
    """Rows of weight two are rows twice; of weight zero, rows that are not there."""
    weight = np.array([0.0, 1.0, 2.0] * (N // 3))
    at = np.repeat(np.arange(N), weight.astype(int))
    for estimator in (Ridge(3.0), Lasso(0.05, tol=1e-12)):
        learner = regression(estimator, n_total=500.0)
        one = learner.fit(X, Y, weight=weight, target=TARGET, rho=2.0)
        other = learner.fit(X[at], Y[at], target=TARGET, rho=2.0)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-9)


def test_another_penalty() -> None:
    base = regression(Ridge(1.0), n_total=300.0)
    other = base.with_penalty(50.0)
    wanted = regression(Ridge(50.0), n_total=300.0).fit(X, Y, target=TARGET, rho=1.0)
    found = other.fit(X, Y, target=TARGET, rho=1.0)
    np.testing.assert_array_equal(found.coef_, wanted.coef_)
    np.testing.assert_array_equal(
        base.fit(X, Y).coef_, regression(Ridge(), n_total=300.0).fit(X, Y).coef_
    )
    assert base.penalty_name == "alpha"
    with pytest.raises(ParameterError, match="no penalty to choose"):
        regression(RandomForestRegressor()).with_penalty(1.0)


def test_no_penalty_stays_no_penalty() -> None:
    fitted = regression(GeneralizedLinearRegressor(family="normal", gradient_tol=1e-10)).fit(X, Y)
    np.testing.assert_allclose(fitted.coef_, LinearRegression().fit(X, Y).coef_, rtol=1e-8)
    learner = classification(LogisticRegression(C=np.inf, tol=1e-10))
    change, _ = learner.probe(X, TWO, rng=np.random.default_rng(0))
    assert change < 1e-6


# --------------------------------------------------------------------------- from round to round

WARM = [
    (Lasso(0.02, tol=1e-10), Y),
    (ElasticNet(0.05, tol=1e-10), Y),
    (PoissonRegressor(tol=1e-10), np.exp(Y)),
    (GammaRegressor(tol=1e-10), np.exp(Y)),
    (TweedieRegressor(power=1.5, tol=1e-10), np.exp(Y)),
    (GeneralizedLinearRegressor(family="poisson", alpha=0.1, gradient_tol=1e-10), np.exp(Y)),
    (
        GeneralizedLinearRegressor(family="normal", alpha=0.1, l1_ratio=1, gradient_tol=1e-10),
        Y,
    ),
    (LogisticRegression(tol=1e-10), TWO),
    (LogisticRegression(tol=1e-10), THREE),
    (LogisticRegression(tol=1e-10, fit_intercept=False), TWO),
    (LogisticRegression(solver="saga", tol=1e-9, max_iter=10_000), TWO),
]


@pytest.mark.parametrize(("estimator", "y"), WARM, ids=lambda v: repr(v)[:60])
def test_a_start_changes_the_way_and_not_the_end(estimator: Any, y: np.ndarray) -> None:
    classes = y.dtype.kind == "i"
    q = int(y.max()) + 1
    learner = classification(estimator, q) if classes else regression(estimator)
    learner = make_piped(learner, estimator, classes, q)
    first = learner.fit(X, y)
    start = learner.start_of(first)
    assert start is not None
    before = {key: value.copy() for key, value in start.items()}
    target = chances(q) if classes else np.exp(TARGET)
    cold = learner.fit(X, y, target=target, rho=1.5)
    warm = learner.fit(X, y, target=target, rho=1.5, start=start)
    np.testing.assert_allclose(
        learner.at_reference(warm), learner.at_reference(cold), rtol=1e-6, atol=1e-7
    )
    for key, value in start.items():
        np.testing.assert_array_equal(value, before[key])
    inner = warm.steps[-1][1]
    assert inner.warm_start is False
    again = learner.fit(X, y, target=target, rho=1.5, start=learner.start_of(warm))
    assert np.max(again.steps[-1][1].n_iter_) <= np.max(cold.steps[-1][1].n_iter_)


def make_piped(learner: Learner, estimator: Any, classes: bool, q: int) -> Learner:
    """The same behind frozen scaling, where the solvers need few steps."""
    piped = make_pipeline(StandardScaler(), estimator)
    return classification(piped, q) if classes else regression(piped)


@pytest.mark.parametrize(
    ("estimator", "name", "wanted"),
    [
        (LogisticRegression(), "tol", 1e-4 / 5),
        (Lasso(tol=1e-3), "tol", 1e-3 / 5),
        (PoissonRegressor(tol=2e-10), "tol", 1e-10),
        (GeneralizedLinearRegressor(), "gradient_tol", 1e-4 / 5),
        (LogisticRegression(solver="liblinear"), "tol", 1e-4),
        (Ridge(), "tol", 1e-4),
    ],
    ids=lambda v: repr(v)[:50],
)
def test_the_own_rows_keep_their_tolerance(
    monkeypatch: pytest.MonkeyPatch, estimator: Any, name: str, wanted: float
) -> None:
    seen = []
    kind = type(estimator)
    fit = kind.fit

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(getattr(self, name))
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(kind, "fit", spy)
    classes = kind is LogisticRegression
    learner = classification(estimator) if classes else regression(estimator)
    y, target = (TWO, chances(2)) if classes else (np.exp(Y), np.exp(TARGET))
    fitted = learner.fit(X, y, target=target, rho=4.0)
    assert seen == [pytest.approx(wanted)]
    assert getattr(fitted, name) == getattr(estimator, name)


def test_warm_rounds_do_not_come_to_rest_early() -> None:
    """Forty rounds at the default tolerance end where forty rounds from nothing end."""
    rng = np.random.default_rng(4)
    sites = []
    for _ in range(4):
        x = rng.normal(size=(200, 6)) + 0.7 * rng.normal(size=6)
        sites.append((x, (rng.random(200) < 1 / (1 + np.exp(-3.0 * x[:, 0]))).astype(int)))
    a = 1.5 * rng.normal(size=(120, 6))
    learner = classification(LogisticRegression(max_iter=1000), reference=a, n_total=800.0)
    ends = {}
    for warm in (False, True):
        fits = [learner.fit(*site) for site in sites]
        for k in range(1, 41):
            average = np.mean([learner.at_reference(fit) for fit in fits], axis=0)
            fits = [
                learner.fit(
                    *site,
                    target=average,
                    rho=k**0.9,
                    start=learner.start_of(fit) if warm else None,
                )
                for site, fit in zip(sites, fits, strict=True)
            ]
        ends[warm] = np.mean([fit.coef_[0] for fit in fits], axis=0)
    exact = LogisticRegression(tol=1e-10, max_iter=1000)
    pooled = exact.fit(*map(np.concatenate, zip(*sites, strict=True))).coef_[0]
    assert np.linalg.norm(ends[True] - ends[False]) < 0.1 * np.linalg.norm(ends[False] - pooled)


def test_a_start_of_another_shape_is_left_out() -> None:
    few = classification(LogisticRegression(), 3)
    first = few.fit(X[THREE > 0], THREE[THREE > 0])  # two of three levels
    start = few.start_of(first)
    warm = few.fit(X, THREE, target=chances(3), rho=1.0, start=start)
    cold = few.fit(X, THREE, target=chances(3), rho=1.0)
    np.testing.assert_array_equal(warm.coef_, cold.coef_)
    assert regression(Ridge()).start_of(regression(Ridge()).fit(X, Y)) is None
    assert few.start_of(DummyClassifier().fit(X, TWO)) is None


def test_fits_leave_everything_as_it_was() -> None:
    x, a, target = X.copy(), A.copy(), TARGET.copy()
    for estimator in (
        Ridge(copy_X=False),
        Lasso(0.1, copy_X=False),
        LinearRegression(copy_X=False),
    ):
        learner = regression(estimator, reference=a)
        first = learner.fit(x, Y)
        coef = first.coef_.copy()
        again = learner.fit(x, Y, target=target, rho=1.0)
        learner.fit(x[:50], Y[:50], target=target, rho=3.0)
        once_more = learner.fit(x, Y, target=target, rho=1.0)
        np.testing.assert_array_equal(again.coef_, once_more.coef_)
        np.testing.assert_array_equal(first.coef_, coef)
        assert first.copy_X
    for found, kept in ((x, X), (a, A), (target, TARGET)):
        np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("estimator", [KNeighborsRegressor(3), SVR(), KernelRidge()], ids=repr)
def test_learners_that_keep_rows_keep_their_own(estimator: Any) -> None:
    learner = regression(estimator)
    first = learner.fit(X, Y, target=TARGET, rho=1.0)
    before = learner.predict(first, A)
    learner.fit(X + 1.0, -Y, target=-TARGET, rho=1.0)
    np.testing.assert_array_equal(learner.predict(first, A), before)


def test_threads_may_share_a_learner() -> None:
    learner = regression(Lasso(0.02, tol=1e-10))
    parts = [(X[i::4], Y[i::4]) for i in range(4)] * 4

    def fit(part: Any) -> np.ndarray:
        return np.asarray(learner.fit(*part, target=TARGET, rho=1.0).coef_)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fit, parts))
    for coef, part in zip(found, parts, strict=True):
        np.testing.assert_array_equal(coef, fit(part))


def test_a_learner_goes_to_another_process() -> None:
    learner = classification(make_pipeline(StandardScaler(), LogisticRegression()))
    again = pickle.loads(pickle.dumps(learner))
    one, two = (part.fit(X, TWO, target=chances(2), rho=1.0) for part in (learner, again))
    np.testing.assert_array_equal(learner.predict(one, A), again.predict(two, A))


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_stacks(by_column: bool, reuse: bool) -> None:
    tall = np.random.default_rng(0).normal(size=(1300, P))
    for blocks in ([X, A], [tall, A, A], [X.astype(np.float32), A]):
        found = stacked(blocks, by_column=by_column, reuse=reuse)
        np.testing.assert_array_equal(found, np.concatenate(blocks))
        assert found.flags.f_contiguous == by_column
    mixed = stacked([sparse.csr_matrix(X), A], by_column=by_column, reuse=reuse)
    assert mixed.format == ("csc" if by_column else "csr")
    np.testing.assert_array_equal(mixed.toarray(), np.concatenate([X, A]))


@pytest.mark.parametrize(
    ("estimator", "tolerance"),
    [(Ridge(2.0, solver="sparse_cg", tol=1e-12), 1e-8), (Lasso(0.05, tol=1e-12), 1e-8)],
    ids=repr,
)
def test_sparse_rows(estimator: Any, tolerance: float) -> None:
    x, a = np.where(np.abs(X) < 0.7, 0.0, X), np.where(np.abs(A) < 0.7, 0.0, A)
    dense = regression(estimator, reference=a).fit(x, Y, target=TARGET, rho=2.0)
    learner = regression(estimator, reference=sparse.csr_matrix(a))
    found = learner.fit(sparse.csr_matrix(x), Y, target=TARGET, rho=2.0)
    np.testing.assert_allclose(found.coef_, dense.coef_, atol=tolerance)
    assert learner.at_reference(found).shape == (M, 1)
    change, permuted = learner.probe(sparse.csr_matrix(x), Y, rng=np.random.default_rng(0))
    assert separable(change, permuted)


# --------------------------------------------------------------------------- preprocessing


def test_preprocessing_is_fitted_on_the_reference_rows_and_never_again() -> None:
    learner = regression(make_pipeline(StandardScaler(), MinMaxScaler(), Ridge(3.0)))
    first = learner.fit(X, Y)
    later = learner.fit(X + 7.0, Y, target=TARGET, rho=3.0)
    assert isinstance(first, Pipeline)
    for fitted in (first, later):
        np.testing.assert_allclose(fitted.steps[0][1].mean_, A.mean(axis=0))
        scaled = fitted.steps[0][1].transform(A)
        np.testing.assert_allclose(fitted.steps[1][1].data_min_, scaled.min(axis=0))
    by_hand = StandardScaler().fit(A)
    rows = MinMaxScaler().fit(by_hand.transform(A)).transform(by_hand.transform(X))
    np.testing.assert_allclose(first.predict(X), Ridge(3.0).fit(rows, Y).predict(rows))
    np.testing.assert_allclose(learner.at_reference(first), learner.predict(first, A), rtol=1e-12)
    portable = encode(first, n_features=P, classes=None)
    assert portable["form"] == "linear"
    assert n_parameters(portable) == P + 1


def test_pipelines_in_pipelines_and_columns() -> None:
    inner = Pipeline([("scale", StandardScaler()), ("learner", MinMaxScaler())])
    columns = ColumnTransformer(
        [("squares", PolynomialFeatures(2), [0, 1])], remainder="passthrough"
    )
    for estimator in (
        Pipeline(
            [("scale", inner), ("fit", Pipeline([("scale", StandardScaler()), ("r", Ridge())]))]
        ),
        make_pipeline("passthrough", columns, None, Ridge()),
        make_pipeline(PCA(2, svd_solver="randomized"), Ridge()),
    ):
        learner = regression(estimator)
        change, permuted = learner.probe(X, Y, rng=np.random.default_rng(0))
        assert change < 1e-9
        assert separable(change, permuted)


def test_kernels_have_one_scale() -> None:
    fitted = regression(SVR()).fit(X * 9.0, Y)
    assert fitted.gamma == pytest.approx(1.0 / (P * A.var()))


class Targets(BaseEstimator):
    """A transformer that needs the response."""

    def fit(self, x: Any, y: Any) -> Any:
        return self

    def transform(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("estimator", "reference", "phrase"),
    [
        (
            make_pipeline(SelectKBest(k=1), Ridge()),
            A,
            "SelectKBest cannot be fitted on the reference",
        ),
        (make_pipeline(Targets(), Ridge()), A, "must not need the response"),
        (
            make_pipeline(ColumnTransformer([("s", StandardScaler(), ["age"])]), Ridge()),
            A,
            "nor names of columns",
        ),
        (make_pipeline(StandardScaler(), Ridge()), None, "give reference rows, or leave it out"),
    ],
    ids=["select", "targets", "names", "none"],
)
def test_preprocessing_that_cannot_be_frozen(estimator: Any, reference: Any, phrase: str) -> None:
    with pytest.raises(ParameterError, match=phrase):
        regression(estimator, reference=reference)


@pytest.mark.parametrize(
    "reference",
    [np.full((3, P), np.nan), np.empty((0, P)), np.ones(4)],
    ids=["nan", "none", "flat"],
)
def test_reference_rows_that_are_none(reference: np.ndarray) -> None:
    with pytest.raises(DataError, match="table of finite numbers"):
        regression(Ridge(), reference=reference)


# --------------------------------------------------------------------------- levels


def test_a_site_that_sees_one_level_only() -> None:
    learner = classification(LogisticRegression(), 3)
    only = np.full(40, 2)
    first = learner.fit(X[:40], only)
    wanted = np.tile([0.0, 0.0, 1.0], (M, 1))
    np.testing.assert_array_equal(learner.at_reference(first), wanted)
    assert learner.start_of(first) is None
    later = learner.fit(X[:40], only, target=chances(3), rho=2.0)
    found = learner.at_reference(later)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    weight = np.where(THREE == 1, 1.0, 0.0)  # rows of other levels count nothing
    np.testing.assert_array_equal(
        learner.at_reference(learner.fit(X, THREE, weight=weight))[:, 1], np.ones(M)
    )


def test_levels_that_a_site_lacks_have_chance_zero_until_others_tell() -> None:
    learner = classification(LogisticRegression(), 3)
    seen = THREE > 0
    first = learner.at_reference(learner.fit(X[seen], THREE[seen]))
    assert (first[:, 0] == 0).all()
    later = learner.at_reference(learner.fit(X[seen], THREE[seen], target=chances(3), rho=5.0))
    assert (later[:, 0] > 0.01).all()


def test_a_level_that_nobody_gives_a_chance() -> None:
    target = np.column_stack([chances(2), np.zeros(M)])
    learner = classification(LogisticRegression(tol=1e-10), 3)
    found = learner.fit(X, TWO, target=target, rho=1.0)
    wanted = classification(LogisticRegression(tol=1e-10)).fit(X, TWO, target=chances(2), rho=1.0)
    np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-10)
    assert (learner.at_reference(found)[:, 2] == 0).all()


@pytest.mark.parametrize(
    "estimator",
    [DecisionTreeClassifier(), KNeighborsClassifier(1), ExtraTreesClassifier(1)],
    ids=repr,
)
def test_labels_are_not_probabilities(estimator: Any) -> None:
    learner = classification(estimator)
    fitted = learner.fit(X, TWO)
    with pytest.raises(ParameterError, match="returns labels, not probabilities"):
        learner.at_reference(fitted)
    assert learner.predict(fitted, A[:5]).shape == (5, 2)


def test_certain_logistic_probabilities_are_no_labels() -> None:
    learner = classification(LogisticRegression(C=np.inf))
    fitted = learner.fit(X, TWO)
    fitted.coef_ *= 1e6
    assert learner.predict(fitted, X).shape == (N, 2)


# --------------------------------------------------------------------------- forests


class Spy(RegressorMixin, BaseEstimator):
    """Keeps what it was fitted with."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        self.seen_ = (x, y, sample_weight)
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), np.nan)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_weights_of_trees_sum_to_the_rows(weight: Any) -> None:
    learner = regression(Spy(), convention="trees", n_total=1000.0)
    spy = learner.fit(X, Y, weight=weight, target=TARGET, rho=3.0)
    weights = spy.seen_[2]
    assert weights.sum() == pytest.approx(N + M)
    assert weights[N:].sum() / weights[:N].sum() == pytest.approx(3.0)
    np.testing.assert_array_equal(spy.seen_[0], np.concatenate([X, A]))
    np.testing.assert_array_equal(spy.seen_[1], np.concatenate([Y, TARGET[:, 0]]))


@pytest.mark.parametrize(
    ("convention", "own", "pseudo", "alpha"),
    [
        ("sum", 1.0, 3.0 * N / M, 7.0 * N / 1000),
        ("normalised", 1.0, 3.0 * N / M, 7.0 / 4),
        ("rows", (N + M) / N, 3.0 * (N + M) / M, 7.0),
    ],
)
def test_weights_and_penalties_of_the_conventions(
    convention: str, own: float, pseudo: float, alpha: float
) -> None:
    learner = regression(Spy(7.0), convention=convention, n_total=1000.0)
    spy = learner.fit(X, Y, target=TARGET, rho=3.0)
    np.testing.assert_allclose(spy.seen_[2], [own] * N + [pseudo] * M)
    assert spy.alpha == pytest.approx(alpha)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_share_of_rows_to_draw_is_a_share_of_all_rows(share: float) -> None:
    forest = RandomForestRegressor(3, max_samples=share)
    fitted = regression(forest, n_total=5000.0).fit(X, Y, target=TARGET, rho=20.0)
    for tree in fitted.estimators_:
        assert tree.tree_.weighted_n_node_samples[0] == pytest.approx(share * (N + M), abs=1.0)
    forest = RandomForestClassifier(3, max_samples=share)
    fitted = classification(forest).fit(X, TWO, weight=WEIGHT, target=chances(2), rho=20.0)
    for tree in fitted.estimators_:
        assert tree.tree_.weighted_n_node_samples[0] == pytest.approx(share * (N + M), abs=1.0)


# --------------------------------------------------------------------------- faults


class Wrong(ClassifierMixin, BaseEstimator):
    """A classifier with a column too many."""

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x: Any) -> Any:
        return np.full((len(x) - 1, len(self.classes_)), 0.5)


def test_predictions_that_are_none() -> None:
    learner = regression(Spy(), convention="sum")
    with pytest.raises(DataError, match="not finite"):
        learner.at_reference(learner.fit(X, Y))
    learner = classification(Wrong(), convention="sum")
    with pytest.raises(DataError, match="one prediction for each row"):
        learner.at_reference(learner.fit(X, TWO))


@pytest.mark.parametrize(
    ("weight", "target", "phrase"),
    [
        (-WEIGHT, TARGET, "not negative"),
        (WEIGHT[1:], TARGET, "one number for each row"),
        (np.zeros(N), TARGET, "positive weight"),
        (None, TARGET[1:], "finite numbers of shape"),
        (None, TARGET * np.nan, "finite numbers of shape"),
    ],
)
def test_faults_of_weights_and_averages(weight: Any, target: Any, phrase: str) -> None:
    with pytest.raises(DataError, match=phrase):
        regression(Ridge()).fit(X, Y, weight=weight, target=target, rho=1.0)


def test_other_faults() -> None:
    with pytest.raises(ParameterError, match="needs reference rows"):
        regression(Ridge(), reference=None).fit(X, Y, target=TARGET, rho=1.0)
    with pytest.raises(DataError, match="must be probabilities"):
        classification(GaussianNB()).fit(X, TWO, target=2 * chances(2) - 0.9, rho=1.0)
    with pytest.raises(ParameterError, match="2 or more"):
        classification(LogisticRegression(), 1)


def test_the_rule_of_the_probe() -> None:
    assert separable(9e-3, 0.0)
    assert not separable(1.1e-2, 4e-4)
    assert separable(1.1e-2, 6e-4)
    assert not separable(0.05, 0.3)  # a learner that is all noise excuses nothing

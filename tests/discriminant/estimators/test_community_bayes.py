"""Community Bayes: the textbook, the base alone, cached fits, choices, what sklearn expects."""

from __future__ import annotations

import pickle
import warnings
from typing import Any, ClassVar

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, PredefinedSplit, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience import CommunityBayesClassifier
from consilience.datasets.simulate_wide import community_classes, simulate_separate_groups
from consilience.discriminant.estimators.community_bayes import default_base
from consilience.discriminant.estimators.community_bayes_fit import CommunityCV, SeparationWarning
from consilience.discriminant.kernels.communities import cut
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from tests.reference.community_bayes import community_bayes

pytestmark = pytest.mark.filterwarnings(
    "ignore::consilience.discriminant.estimators.community_bayes_fit.SeparationWarning"
)


@parametrize_with_checks([CommunityBayesClassifier(candidates=[1])])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def three() -> Any:
    """Three classes of 30, 20 and 10 rows with 8 features, and new rows."""
    made = community_classes("block", rng=stream(0), n_features=8, n_blocks=4)
    return (*made.draw([30, 20, 10], rng=stream(1)), made.draw(40, rng=stream(2))[0])


# ------------------------------------------------------------------ the textbook


LINKAGES = ["average", "complete", "single"]
BASES = [LogisticRegression(C=0.5), GaussianNB(), LinearDiscriminantAnalysis()]


@pytest.mark.parametrize(
    ("base", "n_communities", "linkage"),
    [  # every two of the three meet
        (BASES[(i + j) % 3], n_communities, linkage)
        for i, n_communities in enumerate([1, 2, 5, 8])
        for j, linkage in enumerate(LINKAGES)
    ],
)
def test_the_textbook(three: Any, base: Any, n_communities: int, linkage: Any) -> None:
    x, y, new = three
    fit = CommunityBayesClassifier(base, n_communities=n_communities, linkage=linkage).fit(x, y)
    expected = community_bayes(x, y, base, n_communities, linkage, new)
    np.testing.assert_allclose(fit.predict_proba(new), expected, atol=1e-12)
    assert fit.n_communities_ == len(fit.communities_) == len(fit.estimators_) == n_communities


@pytest.mark.parametrize(
    "base",
    [
        None,
        LogisticRegression(C=1e4, max_iter=2000),
        RandomForestClassifier(10, random_state=0),
        KNeighborsClassifier(3),
        DecisionTreeClassifier(random_state=0),
    ],
)
def test_one_community_is_the_base(three: Any, base: Any) -> None:
    """Bases that say 0 and 1 included."""
    x, y, new = three
    fit = CommunityBayesClassifier(base, n_communities=1).fit(x, y)
    alone = (default_base() if base is None else clone(base)).fit(x, y)
    np.testing.assert_allclose(fit.predict_proba(new), alone.predict_proba(new), atol=1e-12)
    np.testing.assert_array_equal(fit.communities_[0], np.arange(8))


@pytest.mark.parametrize("n_communities", [1, 3, 8])
def test_naive_bayes_is_the_same_in_any_communities(three: Any, n_communities: int) -> None:
    x, y, new = three
    base = GaussianNB(var_smoothing=0.0)
    fit = CommunityBayesClassifier(base, n_communities=n_communities).fit(x, y)
    np.testing.assert_allclose(
        fit.predict_proba(new), base.fit(x, y).predict_proba(new), atol=1e-12
    )


def test_contributions_and_the_prior_make_the_scores(three: Any) -> None:
    x, y, new = three
    fit = CommunityBayesClassifier(n_communities=3).fit(x, y)
    parts = fit.contributions(new)
    assert parts.shape == (len(new), 3, 3)
    scores = parts.sum(axis=1) + np.log(fit.priors_)
    np.testing.assert_allclose(fit.decision_function(new), scores, atol=1e-12)
    odds = np.log(fit.predict_proba(new)[:, 1] / fit.predict_proba(new)[:, 0])
    np.testing.assert_allclose(odds, scores[:, 1] - scores[:, 0], atol=1e-10)
    one = fit.estimators_[1].predict_proba(new[:, fit.communities_[1]])
    np.testing.assert_allclose(parts[:, 1], np.log(one / fit.priors_), atol=1e-12)
    np.testing.assert_array_equal(fit.predict(new), fit.classes_[scores.argmax(axis=1)])


def test_monotone_transforms_leave_the_communities(three: Any) -> None:
    x, y, _ = three
    moved = np.column_stack([np.exp(x[:, :4]), x[:, 4:] ** 3])
    first, second = (CommunityBayesClassifier(n_communities=4).fit(rows, y) for rows in (x, moved))
    np.testing.assert_allclose(first.similarity_, second.similarity_, atol=1e-12)
    assert first.communities_names_ == second.communities_names_


def test_communities_of_the_design_are_found() -> None:
    x, y = simulate_separate_groups(150, 4, rng=stream(3))
    for linkage in ("average", "complete", "single"):
        fit = CommunityBayesClassifier(n_communities=4, linkage=linkage).fit(x, y)
        assert [part.tolist() for part in fit.communities_] == [
            list(range(5 * g, 5 * g + 5)) for g in range(4)
        ]


def test_features_that_only_interact_are_one_community() -> None:
    """Correlations of opposite sign in two classes: none over all rows, strong within each."""
    rng = stream(14)
    x, y = rng.standard_normal((1200, 6)), np.tile([0, 1], 600)
    sign = np.where(y == 0, 1.0, -1.0)
    x[:, 4] = 0.8 * sign * x[:, 1] + 0.6 * x[:, 4]
    (x, new), (y, right) = np.split(x, [400]), np.split(y, [400])
    base = QuadraticDiscriminantAnalysis()
    assert abs(np.corrcoef(x[:, 1], x[:, 4])[0, 1]) < 0.1
    fit = CommunityBayesClassifier(base, n_communities=5).fit(x, y)
    assert (1, 4) in {tuple(part.tolist()) for part in fit.communities_}
    apart = CommunityBayesClassifier(base, n_communities=6).fit(x, y)
    # the sign of their product is right with probability 1/2 + asin(.8) / pi = .795, one of them
    # tells nothing: 800 new rows, standard errors .014 and .018
    assert fit.score(new, right) > 0.74
    assert abs(apart.score(new, right) - 0.5) < 0.07


def test_communities_lower_the_error_where_they_are_there_and_not_where_not() -> None:
    """Logistic regression almost without a penalty, 20 rows of each of three classes.

    Over 12 runs the standard error of the mean difference is about .012; the source's difference
    in its design of blocks of four is .075, and 20 runs gave .071. Where all features are of equal
    correlation, which is no community, 20 runs gave .015.
    """
    gain: dict[str, list[float]] = {"block": [], "full": []}
    for run in range(12):
        for structure in ("block", "full"):
            rng = stream(run)
            made = community_classes(structure, rng=rng)
            x, y = made.draw(20, rng=rng)
            new, right = made.draw(1000, rng=rng)
            base = LogisticRegression(C=1e4, solver="newton-cholesky")
            fit = CommunityBayesClassifier(base, candidates=range(1, 17)).fit(x, y)
            gain[structure].append(fit.score(new, right) - base.fit(x, y).score(new, right))
    assert np.mean(gain["block"]) > 0.035
    assert abs(np.mean(gain["full"])) < 0.035


# ------------------------------------------------------------------ cross-validation


class Counting(ClassifierMixin, BaseEstimator):
    """Naive Bayes that counts its fits, and the columns it saw."""

    seen: ClassVar[list[int]] = []

    def fit(self, X: Any, y: Any) -> Counting:
        Counting.seen.append(X.shape[1])
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        return self.inner_.predict_proba(X)

    def predict(self, X: Any) -> Any:
        return self.inner_.predict(X)


def test_a_community_is_fitted_once(three: Any) -> None:
    """All cuts of 8 features have 15 communities: 15 fits a fold, 36 without the cache."""
    x, y, _ = three
    Counting.seen.clear()
    fit = CommunityBayesClassifier(Counting(), cv=3).fit(x, y)
    assert len(Counting.seen) == 3 * 15 + fit.n_communities_ == fit.n_fits_
    Counting.seen.clear()
    CommunityBayesClassifier(Counting(), cv=3, candidates=[8, 1, 8]).fit(x, y)
    assert sorted(Counting.seen)[: 3 * 8] == [1] * 24  # 8 single features and one of all, a fold


def test_folds_are_the_textbook_on_their_own_rows(three: Any) -> None:
    x, y, _ = three
    cv = StratifiedKFold(4, shuffle=True, random_state=0)
    base = GaussianNB()
    fit = CommunityBayesClassifier(base, cv=cv, candidates=[1, 3, 8]).fit(x, y)
    table = fit.cv_results_
    assert table["n_communities"].tolist() == [1, 3, 8]
    wrong, loss = np.zeros((3, 4)), np.zeros((3, 4))
    for f, (train, test) in enumerate(cv.split(x, y)):
        for i, number in enumerate([1, 3, 8]):
            p = community_bayes(x[train], y[train], base, number, "average", x[test])
            wrong[i, f] = (p.argmax(axis=1) != y[test]).mean()
            loss[i, f] = -np.log(p[np.arange(len(test)), y[test]]).mean()
    np.testing.assert_allclose(table["fold_error"], wrong, atol=1e-12)
    np.testing.assert_allclose(table["fold_log_loss"], loss, atol=1e-10)
    np.testing.assert_array_equal(table["fold_rows"], 15)
    np.testing.assert_array_equal(table["fold_wrong"], np.rint(15 * wrong))
    np.testing.assert_allclose(table["log_loss"], loss.mean(axis=1), atol=1e-10)
    np.testing.assert_allclose(table["error_se"], wrong.std(axis=1, ddof=1) / 2, atol=1e-12)
    assert fit.n_communities_ == [1, 3, 8][int(wrong.mean(axis=1).argmin())]
    assert fit.base_error_ == pytest.approx(wrong[0].mean())


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_workers_do_not_change_the_answer(three: Any, backend: str) -> None:
    x, y, new = three
    one = CommunityBayesClassifier(cv=3).fit(x, y)
    with joblib.parallel_config(backend):
        two = CommunityBayesClassifier(cv=3, n_jobs=2).fit(x, y)
    np.testing.assert_array_equal(one.predict_proba(new), two.predict_proba(new))
    np.testing.assert_array_equal(one.cv_results_["log_loss"], two.cv_results_["log_loss"])


def judged(errors: Any) -> CommunityCV:
    """Errors by number of communities (2, 3, 5) and fold, of 10 rows each."""
    errors = np.array(errors, dtype=float)[None]
    return CommunityCV(
        ({},), np.array([2, 3, 5]), errors, errors / 7, np.full(errors.shape[2], 10), 0
    )


def test_ties_and_the_rule_of_one_standard_error() -> None:
    even = judged([[3, 3, 3], [1, 2, 3], [2, 1, 3]])
    assert even.choose("error", one_standard_error=False) == (0, 3)
    # the least mean is .2 with standard error .1 / sqrt(3) = .058: .26 is not within it
    assert judged([[3, 3, 2], [1, 2, 3], [2, 1, 3]]).choose("error", one_standard_error=True) == (
        0,
        3,
    )
    assert judged([[2, 2, 3], [1, 2, 3], [2, 1, 3]]).choose("error", one_standard_error=True) == (
        0,
        2,
    )
    assert judged([[2, 2, 3], [1, 2, 3], [2, 1, 3]]).choose(
        "log_loss", one_standard_error=False
    ) == (0, 3)
    single = judged([[3], [2], [1]])
    assert single.choose("error", one_standard_error=False) == (0, 5)
    assert np.isnan(single.standard_error("error")).all()
    with pytest.raises(ParameterError, match="two folds"):
        single.choose("error", one_standard_error=True)


def test_parameters_of_the_base_are_chosen_too(three: Any) -> None:
    x, y, _ = three
    grid = {"logisticregression__C": [1e-6, 1.0]}
    fit = CommunityBayesClassifier(param_grid=grid, candidates=[1, 4], scoring="log_loss").fit(x, y)
    assert fit.best_params_ == {"logisticregression__C": 1.0}
    assert all(f[-1].C == 1.0 for f in fit.estimators_)
    table = fit.cv_results_
    assert [p["logisticregression__C"] for p in table["params"]] == [1e-6, 1e-6, 1.0, 1.0]
    assert table["n_communities"].tolist() == [1, 4, 1, 4]
    place = int(np.argmin(table["log_loss"]))
    assert table["n_communities"][place] == fit.n_communities_
    fixed = CommunityBayesClassifier(param_grid=grid, n_communities=4, scoring="log_loss").fit(x, y)
    assert fixed.n_communities_ == 4 and not hasattr(fixed, "base_error_")
    assert fixed.best_params_ == {"logisticregression__C": 1.0}


def test_groups_are_held_out_together() -> None:
    """Copies of one row are a group: a base that remembers rows is caught only by such folds."""
    rng = stream(4)
    x = np.repeat(rng.standard_normal((30, 4)), 4, axis=0) + 1e-6 * rng.standard_normal((120, 4))
    y = np.repeat(rng.integers(2, size=30), 4)
    group = np.repeat(np.arange(30), 4)
    base = KNeighborsClassifier(1)
    shuffled = StratifiedKFold(5, shuffle=True, random_state=0)
    leaky = CommunityBayesClassifier(base, candidates=[1], cv=shuffled, param_grid={"p": [1, 2]})
    assert leaky.fit(x, y).base_error_ < 0.05
    for cv in (5, GroupKFold(5)):
        honest = clone(leaky).set_params(cv=cv).fit(x, y, groups=group)
        # y is noise: the standard error of 30 groups is .09
        assert honest.base_error_ > 0.2


def test_a_validation_set_in_place_of_folds(three: Any) -> None:
    x, y, _ = three
    rows = np.where(np.arange(60) % 2 == 0, 0, -1)
    fit = CommunityBayesClassifier(cv=PredefinedSplit(rows)).fit(x, y)
    assert fit.cv_results_["fold_rows"].tolist() == [30]
    assert np.isnan(fit.cv_results_["error_se"]).all()


# ------------------------------------------------------------------ separation


def test_separable_communities_are_flagged() -> None:
    """The first two features separate, the others are noise of 40 rows."""
    rng = stream(5)
    y = np.repeat([0, 1], 20)
    common = rng.standard_normal((40, 2)) * 0.01
    x = np.column_stack([y + common[:, 0], y + common[:, 0] * 2, rng.standard_normal((40, 4))])
    x[:, 3:] += 3 * x[:, [2]]
    with pytest.warns(SeparationWarning, match="1 of 2 communities"):
        fit = CommunityBayesClassifier(n_communities=2).fit(x, y)
    assert [fit.communities_[i].tolist() for i in fit.separable_] == [[0, 1]]
    mixed = x.copy()
    mixed[[0, 20]] = mixed[[20, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not len(CommunityBayesClassifier(n_communities=2).fit(mixed, y).separable_)
    # trees that remember their rows are flagged too, but they have no coefficients to warn of
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = CommunityBayesClassifier(DecisionTreeClassifier(), n_communities=2).fit(mixed, y)
    assert len(tree.separable_) >= 1


def test_a_penalty_does_not_hide_that_classes_are_separable() -> None:
    """A heavy ridge makes errors where a plane makes none."""
    x = np.column_stack([np.linspace(-1, 1, 40) ** 3, np.zeros(40)])
    y = (np.arange(40) >= 35).astype(int)
    with pytest.warns(SeparationWarning):
        fit = CommunityBayesClassifier(LogisticRegression(C=1e-3), n_communities=1).fit(x, y)
    assert fit.score(x, y) < 1.0 and fit.separable_.tolist() == [0]


# ------------------------------------------------------------------ tables


def test_names_frames_and_text_classes(three: Any) -> None:
    x, y, new = three
    names = [f"f{j}" for j in range(8)]
    frame, words = pd.DataFrame(x, columns=names), np.array(["c", "a", "b"])[y]
    fit = CommunityBayesClassifier(n_communities=2).fit(frame, words)
    assert fit.classes_.tolist() == ["a", "b", "c"]
    assert sorted(name for part in fit.communities_names_ for name in part) == names
    plain = CommunityBayesClassifier(n_communities=2).fit(x, words)
    assert plain.communities_names_[0][0] == "x0"
    np.testing.assert_array_equal(fit.predict(pd.DataFrame(new, columns=names)), plain.predict(new))
    with pytest.raises(ValueError, match="feature names"):
        fit.predict(pd.DataFrame(new, columns=names[::-1]))


def test_pipeline_grid_search_clone_and_pickle(three: Any) -> None:
    x, y, new = three
    model = make_pipeline(StandardScaler(), CommunityBayesClassifier(n_communities=2))
    grid = {"communitybayesclassifier__n_communities": [1, 3]}
    found = GridSearchCV(model, grid, cv=3).fit(x, y)
    assert found.best_params_["communitybayesclassifier__n_communities"] in (1, 3)
    fit = CommunityBayesClassifier(GaussianNB(), n_communities=2).fit(x, y)
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.predict_proba(new), fit.predict_proba(new))
    assert clone(fit).get_params()["n_communities"] == 2
    with pytest.raises(NotFittedError):
        clone(fit).predict(new)


def test_constant_and_duplicate_features() -> None:
    x, y = simulate_separate_groups(30, 2, rng=stream(6))
    x = np.column_stack([x, np.full(60, 7.3), np.where(y == 0, 1.5, x[:, 0]), x[:, 0]])
    fit = CommunityBayesClassifier(cv=3).fit(x, y)
    assert np.isfinite(fit.predict_log_proba(x)).all()
    same = next(part for part in cut(fit.tree_, 12) if len(part) > 1)
    assert same.tolist() == [0, 12]  # the first of all merges
    assert fit.similarity_[10, :10].max() == 0.0
    # constant in class 0: only class 1 speaks
    assert fit.similarity_[11, 0] == pytest.approx(30.0)


@pytest.mark.parametrize("cv", [5, 2])
def test_a_class_of_one_row(three: Any, cv: int) -> None:
    """Its fold does not know the class: an error there, and no crash."""
    x, y, new = three
    y = y.copy()
    y[0] = 3
    fit = CommunityBayesClassifier(cv=cv, scoring="log_loss").fit(x, y)
    assert fit.classes_.tolist() == [0, 1, 2, 3] and fit.priors_[3] == pytest.approx(1 / 60)
    assert len(fit.cv_results_["fold_rows"]) == 2
    assert np.isfinite(fit.cv_results_["log_loss"]).all()
    np.testing.assert_allclose(fit.predict_proba(new).sum(axis=1), 1.0)


def test_many_and_unbalanced_classes() -> None:
    made = community_classes("decreasing", rng=stream(7), n_features=24, n_classes=20, norm=6.0)
    x, y = made.draw(12, rng=stream(8))
    new, right = made.draw(20, rng=stream(9))
    fit = CommunityBayesClassifier(candidates=[1, 6], cv=3).fit(x, y)
    # the best possible error is about .02
    assert (fit.predict(new) != right).mean() < 0.15
    rare = community_classes("full", rng=stream(10), n_features=6, n_classes=2, norm=4.0)
    x, y = rare.draw([600, 6], rng=stream(11))
    fit = CommunityBayesClassifier().fit(x, y)
    assert fit.priors_[1] == pytest.approx(6 / 606)
    assert fit.score(*rare.draw([600, 6], rng=stream(12))) > 0.98


def test_more_features_than_rows() -> None:
    x, y = simulate_separate_groups(20, 60, rng=stream(13))
    fit = CommunityBayesClassifier(candidates=[1, 60], cv=2).fit(x, y)
    assert x.shape == (40, 300) and fit.cv_results_["error"].min() < 0.1


def test_a_base_that_says_zero_forbids_nothing() -> None:
    """Two trees that are sure of opposite classes: the posterior is a number."""
    x = np.array([[0.0, 0.0], [0.0, 0.1], [1.0, 1.0], [1.0, 1.1]] * 3)
    y = np.array([0, 0, 1, 1] * 3)
    fit = CommunityBayesClassifier(DecisionTreeClassifier(), n_communities=2).fit(x, y)
    np.testing.assert_allclose(fit.predict_proba([[0.0, 1.0]]), [[0.5, 0.5]])
    np.testing.assert_allclose(fit.predict_proba([[1.0, 1.0]]), [[0.0, 1.0]], atol=1e-12)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_communities": 0}, "from 1 to 8 features"),
        ({"n_communities": 9}, "from 1 to 8 features"),
        ({"n_communities": True}, "from 1 to 8 features"),
        ({"n_communities": 2.0}, "from 1 to 8 features"),
        ({"n_communities": "auto"}, '"cv" or a whole number'),
        ({"candidates": [1, 9]}, "from 1 to 8 features"),
        ({"candidates": []}, "one number of communities"),
        ({"candidates": 5}, "candidates must be a sequence of .* but 5 was given"),
        ({"linkage": "ward"}, "linkage must be one of"),
        ({"scoring": "auc"}, "scoring must be one of"),
        ({"cv": 1}, "at least 2 folds"),
        ({"cv": True}, "at least 2 folds"),
        ({"estimator": LinearSVC()}, "predict_proba"),
        ({"param_grid": 3}, "param_grid is not a grid"),
        ({"param_grid": {"C": [1.0]}}, "parameters of Pipeline, .* but 'C' was given"),
        (
            {"param_grid": [{"logisticregression__C": [1.0], "logisticregression__c": [1]}]},
            "parameters of Pipeline, .* but 'logisticregression__c' was given",
        ),
        ({"param_grid": {"c": [1, 2]}, "n_communities": 2}, "but 'c' was given"),
        ({"one_standard_error": True, "cv": PredefinedSplit([0] * 20 + [-1] * 40)}, "two folds"),
    ],
)
def test_settings_that_are_refused(three: Any, settings: Any, sentence: str) -> None:
    x, y, _ = three
    with pytest.raises(ParameterError, match=sentence) as caught:
        CommunityBayesClassifier(**settings).fit(x, y)
    assert "\n" not in str(caught.value)


def test_tables_that_are_refused(three: Any) -> None:
    x, y, _ = three
    model = CommunityBayesClassifier(n_communities=2)
    missing = x.copy()
    missing[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(missing, y)
    with pytest.raises(TypeError, match="Sparse"):
        model.fit(sparse.csr_matrix(x), y)
    with pytest.raises(DataError, match="one class only"):
        model.fit(x, np.zeros(60))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, y).predict(missing)
    parts = [(np.flatnonzero(y == 0), np.flatnonzero(y > 0)), (np.arange(40), np.arange(40, 60))]
    with pytest.raises(DataError, match=r"fold 1 .* one class only"):
        CommunityBayesClassifier(cv=parts).fit(x, y)
    with pytest.raises(DataError, match=r"fold 1 .* no rows"):
        CommunityBayesClassifier(cv=[(np.arange(60), np.arange(0))]).fit(x, y)

"""Community Bayes of one table, as a method."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from consilience.datasets.simulate_wide import simulate_separate_groups
from consilience.discriminant.estimators.community_bayes import CommunityBayesClassifier
from consilience.discriminant.one_table.community_bayes import (
    CommunityBayesStudy,
    CommunityBayesStudyResult,
)
from consilience.discriminant.one_table.messages import STAYS
from consilience.engines.federation import Run
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.protocol.method import Preparation
from tests.discriminant.one_table.one_table import federation, table

QUICK = CommunityBayesStudy(candidates=(1, 3, 5), cv=3)


@cache
def columns(n_per_class: int = 150, n_groups: int = 3, seed: int = 0) -> dict[str, Any]:
    """Two classes; features come in groups of five that are independent given the class."""
    x, y = simulate_separate_groups(n_per_class, n_groups, rng=np.random.default_rng(seed))
    order = np.random.default_rng(1).permutation(len(y))
    made: dict[str, Any] = {f"x{j}": x[order, j] for j in range(x.shape[1])}
    return {**made, "kind": np.array(["calm", "wild"])[np.unique(y, return_inverse=True)[1][order]]}


def run_of(given: dict[str, Any], method: CommunityBayesStudy = QUICK, **settings: Any) -> Run:
    return method.run(federation(given, **settings), seed=0)


def features(given: dict[str, Any]) -> np.ndarray:
    return np.column_stack([v for name, v in given.items() if name.startswith("x")])


@cache
def plain() -> Run:
    return run_of(columns())


def test_it_is_the_estimator_on_the_rows_that_are_not_held_out() -> None:
    given, run = columns(), plain()
    result, left = run.result, run.site("clinic")
    assert isinstance(result, CommunityBayesStudyResult)
    fitted = left.values("held_out") == 0
    x, y = features(given), given["kind"]
    wanted = CommunityBayesClassifier(candidates=[1, 3, 5], cv=3).fit(x[fitted], y[fitted])
    assert result.n_communities == wanted.n_communities_ and not result.fixed
    assert result.candidates.tolist() == [1, 3, 5]
    for found, known in zip(result.communities, wanted.communities_, strict=True):
        np.testing.assert_array_equal(found, known)
    np.testing.assert_array_equal(result.tree, wanted.tree_)
    errors = wanted.cv_results_["error"] * fitted.sum()
    told = ~np.isnan(result.cv_errors)
    np.testing.assert_allclose(result.cv_errors[told], errors[told])
    assert (np.rint(errors[~told]) < 10).all()
    np.testing.assert_allclose(result.cv_log_loss, wanted.cv_results_["log_loss"], rtol=0.05)
    np.testing.assert_array_equal(wanted.classes_[left.labels], wanted.predict(x))
    proba = left.predictor.predict_proba(x)
    np.testing.assert_allclose(proba, wanted.predict_proba(x), atol=1e-10)
    assert result.judged == (
        "community-bayes",
        "one community",
        "naive Bayes",
        "class frequencies",
    )


def test_groups_that_are_independent_are_found() -> None:
    result = run_of(columns(), CommunityBayesStudy(n_communities=3)).result
    assert [part.tolist() for part in result.communities] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
    ]
    assert "15 features are taken as 3 communities, as was given" in result.summary()
    assert "x0, x1, x2, x3 and 1 more" in result.summary()
    assert result.communities_names[1] == ("x5", "x6", "x7", "x8", "x9")
    assert result.fixed and len(result.cv_errors) == 0 and result.evidence.shape == (3,)


def test_evidence_of_the_communities_adds_up_to_the_log_loss() -> None:
    """With priors and the normalisation, which is what is left over, under a simulation."""
    given = columns()
    run = run_of(given, CommunityBayesStudy(n_communities=3), policy="simulation")
    left = run.site("clinic")
    held = left.values("held_out") == 1
    parts = left.predictor.contributions(features(given)[held])
    right = (given["kind"][held] == "wild").astype(int)
    wanted = parts[np.arange(held.sum()), :, right].mean(axis=0)
    np.testing.assert_allclose(run.result.evidence, wanted, atol=1e-10)
    assert (run.result.evidence_se > 0).all() and (run.result.evidence > 0).all()


def test_without_held_out_rows_there_is_no_evidence() -> None:
    result = run_of(columns(), CommunityBayesStudy(n_communities=2, holdout=0.0)).result
    assert np.isnan(result.evidence).all() and result.evidence.shape == (2,)


def test_tables_of_the_site() -> None:
    left, result = plain().site("clinic"), plain().result
    wanted = [(j, c + 1) for c, part in enumerate(result.communities) for j in part]
    communities = left.to_frame("communities")
    assert communities["feature"].tolist() == [f"x{j}" for j, _ in wanted]
    assert communities["community"].tolist() == [c for _, c in wanted]
    np.testing.assert_allclose(left.to_frame("tree")["height"], result.tree[:, 2])
    found = left.to_frame("candidates")
    assert found["n_communities"].tolist() == [1, 3, 5] and (found["C"] == 1.0).all()
    np.testing.assert_allclose(found["log_loss"], result.cv_log_loss, rtol=0.05)


def test_penalties_are_chosen_with_the_number() -> None:
    method = CommunityBayesStudy(candidates=(1, 3), penalties=(0.001, 1.0), cv=3)
    run = run_of(columns(), method)
    result = run.result
    assert result.C == 1.0  # a strong ridge shrinks what tells the classes apart
    assert result.candidates.tolist() == [1, 3]
    found = run.site("clinic").to_frame("candidates")
    assert found["C"].tolist() == [0.001, 0.001, 1.0, 1.0]
    own = found[found["C"] == 1.0]
    np.testing.assert_allclose(own["log_loss"], result.cv_log_loss, rtol=0.05)
    one = CommunityBayesStudy(n_communities=3, C=0.001)
    assert run_of(columns(), one).result.C == 0.001


def test_features_of_a_wide_table_stay_at_the_site() -> None:
    """A class needs twice as many rows as there are features; of so few none is held out."""
    given = {name: v[:50] for name, v in columns().items()}
    run = run_of(given, CommunityBayesStudy(n_communities=3))
    result = run.result
    assert result.model_stays == STAYS and result.communities == () and len(result.tree) == 0
    assert result.n_communities == 3
    assert "Which features belong together stays at the site" in result.summary()
    assert len(run.site("clinic").to_frame("communities")) == 15
    assert not run_of(
        given, CommunityBayesStudy(n_communities=3), policy="simulation"
    ).result.model_stays


def test_classes_that_can_be_told_apart_without_error_are_said() -> None:
    given = table(300, apart=30.0)
    there = federation(given)
    result = CommunityBayesStudy(n_communities=2).run(there, seed=0).result
    assert result.n_separable == 1
    assert "In 1 community the classes can be told apart without error" in result.summary()
    assert any("without error" in str(line.get("said")) for line in there.log("clinic"))


def test_levels_that_do_not_occur_are_never_predicted() -> None:
    given = columns()
    method = CommunityBayesStudy(n_communities=3)
    one = run_of(given, method)
    more = run_of(given, method, levels={"kind": ("calm", "mild", "wild")})
    assert more.result.n_by_class.tolist() == [150, 0, 150]
    np.testing.assert_array_equal(more.result.evidence, one.result.evidence)
    assert set(more.site("clinic").labels) == {0, 2}


def test_entities_stay_together() -> None:
    given = {**columns(), "person": np.arange(300) // 3}
    run = run_of(given, entity="person")
    fitted = run.site("clinic").values("held_out") == 0
    x, y = features(given)[fitted], given["kind"][fitted]
    wanted = CommunityBayesClassifier(candidates=[1, 3, 5], cv=3)
    wanted.fit(x, y, groups=given["person"][fitted])
    np.testing.assert_allclose(run.result.cv_log_loss, wanted.cv_results_["log_loss"], rtol=0.05)


def test_the_predictor_takes_columns_in_their_own_units() -> None:
    given = {**columns()}
    given["x2"] = np.where(np.arange(300) % 29 == 0, np.nan, 1000 * given["x2"] + 77)
    preparation = Preparation(missing="aggregated-mean", standardize="pooled")
    run = run_of(given, CommunityBayesStudy(n_communities=3), preparation=preparation)
    left = run.site("clinic")
    kinds = np.array(["calm", "wild"])
    np.testing.assert_array_equal(left.predictor.predict(features(given)), kinds[left.labels])
    assert left.predictor.feature_names_in_.tolist() == [f"x{j}" for j in range(15)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_communities": "all"}, "n_communities must be"),
        ({"n_communities": 0}, "n_communities must be"),
        ({"candidates": 3}, "candidates must be 0 to 100 values"),
        ({"candidates": (0,)}, "candidates must be"),
        ({"candidates": (1,) * 101}, "candidates must be 0 to 100 values"),
        ({"linkage": "ward"}, "linkage must be"),
        ({"scoring": "auc"}, "scoring must be"),
        ({"C": 0.0}, "C must be a number above 0"),
        ({"penalties": (1.0, -1.0)}, "penalties must be .* a number above 0"),
        ({"cv": 1}, "cv must be"),
        ({"one_standard_error": 1}, "one_standard_error must be"),
        ({"holdout": 0.9}, "holdout must be"),
    ],
)
def test_parameters_out_of_range(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        CommunityBayesStudy.from_parameters(settings)


@pytest.mark.parametrize("settings", [{"n_communities": 16}, {"candidates": (2, 16)}])
def test_more_communities_than_features(settings: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="16 communities of 15 features cannot be"):
        run_of(columns(), CommunityBayesStudy(**settings))


def test_a_class_that_folds_lose_is_refused_without_a_value() -> None:
    given = table(60)
    given["kind"] = np.where(np.arange(60) < 2, "calm", "wild")
    with pytest.raises(QuorumError, match=r"the site's own log says why|step 'fit' failed"):
        method = CommunityBayesStudy(cv=2, holdout=0.0, candidates=(1, 2))
        run_of(given, method, entity="person", policy="simulation")


def test_one_site_only() -> None:
    with pytest.raises(StudyError, match="use the method 'federated-community-bayes'"):
        run_of(columns(), sites=2)


def test_scores_of_the_frequencies_tell_of_no_small_class() -> None:
    """The entropy of the classes' shares gives the size of a small class away, if it takes part."""
    given = {**columns()}
    given["kind"] = np.where(np.arange(300) % 50 == 7, "rare", given["kind"])
    method = CommunityBayesStudy(n_communities=3)
    run = run_of(given, method)
    assert run.result.n_by_class[1] == 0 and run.result.n == 294
    without = {name: cells[given["kind"] != "rare"] for name, cells in given.items()}
    same = run_of(without, method, levels={"kind": run.result.levels}).result
    for scores in ("n", "n_by_class", "judged"):
        np.testing.assert_array_equal(getattr(run.result, scores), getattr(same, scores))
    open_ = run_of(given, method, policy="simulation").result
    assert open_.judged[-1] == "class frequencies" and open_.n_by_class[1] == 6

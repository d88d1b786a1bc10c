"""Sparse quadratic discriminants of one table, as a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.discriminant.estimators.sparse_qda import SparseQDA
from consilience.discriminant.one_table.sparse_qda import SparseQDAStudy, SparseQDAStudyResult
from consilience.engines.federation import Run
from consilience.exceptions import ParameterError, QuorumError, StudyError
from consilience.protocol.method import Preparation
from tests.discriminant.one_table.one_table import federation, table


def run_of(given: dict[str, Any], method: SparseQDAStudy | None = None, **settings: Any) -> Run:
    return (method or SparseQDAStudy(n_alphas=8)).run(federation(given, **settings), seed=0)


def features(given: dict[str, Any]) -> np.ndarray:
    return np.column_stack([v for name, v in given.items() if name.startswith("x")])


def three_classes(n: int = 360) -> dict[str, Any]:
    given = table(n)
    given["kind"] = np.where(np.arange(n) % 5 == 0, "new", given["kind"])
    return given


def test_it_is_the_estimator_on_the_rows_that_are_not_held_out() -> None:
    given = table(600)
    run = run_of(given)
    result, left = run.result, run.site("clinic")
    assert isinstance(result, SparseQDAStudyResult)
    fitted = left.values("held_out") == 0
    x, y = features(given), given["kind"]
    wanted = SparseQDA(n_alphas=8).fit(x[fitted], y[fitted])
    assert result.alpha == wanted.alpha_ and result.gap == wanted.gap_
    np.testing.assert_array_equal(result.candidates, wanted.path_.alphas)
    np.testing.assert_array_equal(result.cv_errors, wanted.path_.cv_wrong.sum(axis=0))
    np.testing.assert_array_equal(result.n_links, wanted.path_.n_links)
    np.testing.assert_array_equal(result.largest_block, wanted.path_.largest_block)
    np.testing.assert_array_equal(result.pairs, wanted.interactions_.pairs)
    np.testing.assert_array_equal(result.strength, wanted.interactions_.strength)
    np.testing.assert_array_equal(result.partial, wanted.interactions_.partial_correlation)
    np.testing.assert_array_equal(result.blocks[0], wanted.blocks_[0])
    np.testing.assert_array_equal(wanted.classes_[left.labels], wanted.predict(x))
    np.testing.assert_array_equal(left.predictor.predict_proba(x), wanted.predict_proba(x))
    assert (result.pairs[0] == [0, 1]).all()
    assert "The strongest: x0 with x1" in result.summary()
    # Quadratic rules see the pair, linear ones and naive Bayes do not.
    assert result.judged == ("sparse-qda", "naive Bayes", "QDA", "LDA with shrinkage")
    assert result.errors[0] < result.errors[1]


def test_tables_of_the_site() -> None:
    run = run_of(three_classes())
    left, result = run.site("clinic"), run.result
    interactions = left.to_frame("interactions")
    assert list(interactions.columns) == [
        "feature_1",
        "feature_2",
        "strength",
        *(f"precision_{level}" for level in result.levels),
        *(f"partial_correlation_{level}" for level in result.levels),
    ]
    told = result.interactions.to_frame()
    assert list(told.columns) == list(interactions.columns)
    np.testing.assert_allclose(interactions.iloc[:, 2:], told.iloc[:, 2:])
    assert (interactions.iloc[:, :2] == told.iloc[:, :2]).all().all()
    path = left.to_frame("path")
    np.testing.assert_allclose(path["alpha"], result.candidates)
    assert path["cv_wrong"].tolist() == result.cv_errors.tolist()


def test_levels_that_do_not_occur_are_never_predicted() -> None:
    given = table(400)
    plain = run_of(given).result
    more = run_of(given, levels={"kind": ("calm", "mild", "wild")})
    result = more.result
    assert result.n_by_class.tolist() == [200, 0, 200]
    assert np.isnan(result.partial[:, 1]).all()
    np.testing.assert_array_equal(result.partial[:, [0, 2]], plain.partial)
    assert (result.errors == plain.errors).all()
    assert set(more.site("clinic").labels) == {0, 2}


def test_order_of_levels_does_not_matter_to_the_fit() -> None:
    given = table(400)
    one = run_of(given, levels={"kind": ("calm", "wild")}).result
    other = run_of(given, levels={"kind": ("wild", "calm")}).result
    assert one.alpha == other.alpha
    np.testing.assert_array_equal(one.partial, other.partial[:, ::-1])
    np.testing.assert_array_equal(one.confusion, other.confusion[::-1, ::-1])


def test_priors_go_by_declared_level() -> None:
    given = table(400)
    method = SparseQDAStudy(alpha=0.1, priors=(0.99, 0.01))
    run = run_of(given, method, levels={"kind": ("wild", "calm")})
    assert (run.site("clinic").labels == 0).mean() > 0.9
    with pytest.raises(StudyError, match="priors has 3 numbers and the target 2 levels"):
        run_of(given, SparseQDAStudy(priors=(0.2, 0.2, 0.6)))


def test_a_given_penalty_is_not_chosen() -> None:
    result = run_of(table(300), SparseQDAStudy(alpha=0.08)).result
    assert result.fixed and result.alpha == 0.08 and len(result.cv_errors) == 0
    assert "At the penalty that was given, alpha = 0.08" in result.summary()
    grid = run_of(table(300), SparseQDAStudy(alphas=(0.3, 0.1, 0.0))).result
    assert grid.candidates.tolist() == [0.3, 0.1, 0.0] and not grid.fixed


def test_a_block_with_many_parameters_stays_at_the_site() -> None:
    given = table(160, p=12)
    rng = np.random.default_rng(3)
    common = rng.normal(size=160)
    for j in range(11):
        given[f"x{j}"] = given[f"x{j}"] + common
    run = run_of(given, SparseQDAStudy(alpha=0.01))
    assert run.result.model_stays and len(run.result.pairs) == 0 and run.result.blocks == ()
    assert len(run.site("clinic").to_frame("interactions")) > 20
    assert "stays at the site" in run.result.summary()
    assert run.result.n_links[0] > 20  # how many there are is told
    assert not run_of(given, SparseQDAStudy(alpha=0.01), policy="simulation").result.model_stays


def test_entities_stay_together_in_cross_validation() -> None:
    """Copies of a row in several folds make any rule look better than it is."""
    small = table(80, p=4, apart=0.5)
    given = {name: np.repeat(v, 6) for name, v in small.items()}
    rng = np.random.default_rng(4)
    for j in range(4):
        given[f"x{j}"] = given[f"x{j}"] + 0.05 * rng.normal(size=480)
    given["person"] = np.repeat(np.arange(80), 6)
    method = SparseQDAStudy(alphas=(0.01,), alpha="cv", holdout=0.0)
    together = SparseQDAStudy(alphas=(0.01, 0.001), holdout=0.0)
    by_person = run_of(given, together, entity="person").result
    from sklearn.model_selection import StratifiedGroupKFold

    x, y = features(given), given["kind"]
    cv = StratifiedGroupKFold(5)
    wanted = SparseQDA(alphas=[0.01, 0.001], cv=cv).fit(x, y, groups=given["person"])
    np.testing.assert_array_equal(by_person.cv_errors, wanted.path_.cv_wrong.sum(axis=0))
    assert len(run_of(given, method).result.candidates) == 1


def test_the_predictor_takes_columns_in_their_own_units() -> None:
    given = table(300)
    given["x2"] = 1000 * given["x2"] + 77
    method = SparseQDAStudy(alpha=0.05, standardize=False)
    run = run_of(given, method, preparation=Preparation(standardize="pooled"))
    left = run.site("clinic")
    x = features(given)
    kinds = np.array(["calm", "wild"])
    np.testing.assert_array_equal(left.predictor.predict(x), kinds[left.labels])
    assert left.predictor.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3"]
    again = left.predictor.predict(x[:, :4])
    assert set(again) == {"calm", "wild"}


def test_missing_cells_are_filled_by_the_predictor() -> None:
    given = table(300)
    given["x3"] = np.where(np.arange(300) % 17 == 0, np.nan, given["x3"])
    run = run_of(given, preparation=Preparation(missing="aggregated-mean"))
    left = run.site("clinic")
    kinds = np.array(["calm", "wild"])
    np.testing.assert_array_equal(left.predictor.predict(features(given)), kinds[left.labels])


def test_constant_and_repeated_columns_are_told_to_the_site() -> None:
    given = table(300)
    flat = np.where(given["kind"] == "calm", 1.0, given["x2"])
    given = {"x9": np.full(300, 3.0), "x8": given["x0"].copy(), "x7": flat, **given}
    there = federation(given)
    result = SparseQDAStudy(n_alphas=6).run(there, seed=0).result
    assert "QDA" not in result.judged  # a repeated column: no such fit
    said = [str(line.get("said")) for line in there.log("clinic")]
    assert "Column x9 holds one value only." in said
    assert any("their pooled variance" in text and text.endswith(": x7") for text in said)
    assert not any("no part" in text for text in said)


def test_more_columns_than_rows() -> None:
    given = table(120, p=150)
    result = run_of(given, SparseQDAStudy(n_alphas=6, smallest=0.3, max_block=60)).result
    assert "QDA" not in result.judged
    assert result.largest_block.max() <= 60
    assert result.gap < 1e-8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha": "best"}, "alpha must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"alphas": 0.1}, "alphas must be 0 to 100 values"),
        ({"alphas": (0.1,) * 101}, "alphas must be 0 to 100 values"),
        ({"n_alphas": 1}, "n_alphas must be"),
        ({"n_alphas": 1000}, "n_alphas must be"),
        ({"smallest": 2.0}, "smallest must be"),
        ({"cv": 1}, "cv must be"),
        ({"cv": True}, "cv must be"),
        ({"ties": "any"}, "ties must be"),
        ({"priors": (0.0, 1.0)}, "priors must be"),
        ({"standardize": "yes"}, "standardize must be"),
        ({"max_block": 1}, "max_block must be"),
        ({"tol": 0.0}, "tol must be"),
    ],
)
def test_parameters_out_of_range(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        SparseQDAStudy.from_parameters(settings)


def test_parameters_survive_a_study_file() -> None:
    given = {"alpha": 0.5, "alphas": [], "priors": [0.4, 0.6], "ties": "densest"}
    made = SparseQDAStudy.from_parameters(given)
    assert made == SparseQDAStudy(alpha=0.5, priors=(0.4, 0.6), ties="densest")


def test_a_penalty_that_links_too_much_is_refused() -> None:
    there = federation(table(300, p=6))
    with pytest.raises(QuorumError, match="the site's own log says why"):
        SparseQDAStudy(alpha=0.0, max_block=3).run(there, seed=0)
    assert any("max_block" in str(line.get("reason")) for line in there.log("clinic"))


def test_loading_the_method_loads_no_scikit_learn() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from consilience import SparseQDAStudy; "
        "SparseQDAStudy.from_parameters({'cv': 3}); print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

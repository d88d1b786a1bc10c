"""The number of classes of one table, as a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience import Columns, Federation, Preparation
from consilience.completion.estimators.entry_plans import plan_clusters
from consilience.completion.one_table.cluster_count import ClusterCountResult, ClusterCountStudy
from consilience.completion.one_table.matrix import Matrix
from consilience.engines.federation import Run
from consilience.exceptions import ConsilienceError, ParameterError, StudyError
from consilience.numerics.entries import Entries
from tests.granted import GRANTED, granted

CENTRES = np.random.default_rng(5).normal(size=(3, 5)) * 3


def rows(n: int = 120, *, missing: float = 0.1, seed: int = 0) -> np.ndarray:
    """Three classes in five columns, some cells empty."""
    rng = np.random.default_rng(seed)
    x = CENTRES[np.arange(n) % 3] + rng.normal(size=(n, 5))
    x[rng.random(x.shape) < missing] = np.nan
    return x


def federation_of(
    x: np.ndarray, *, policy: Any = "strict", standardize: Any = "pooled"
) -> Federation:
    names = tuple(f"x{j}" for j in range(x.shape[1]))
    table = {**dict(zip(names, x.T, strict=True)), "who": [f"p{i}" for i in range(len(x))]}
    return Federation.local(
        {"clinic": table},
        columns=Columns(features=names, id="who"),
        preparation=Preparation(missing="keep", standardize=standardize),
        policy=granted(policy),
    )


def run_of(
    x: np.ndarray, *, policy: Any = "strict", standardize: Any = "pooled", **parameters: Any
) -> Run:
    federation = federation_of(x, policy=policy, standardize=standardize)
    settings = {"n_clusters": range(1, 6), "n_init": 3, **parameters}
    run: Run = ClusterCountStudy(**settings).run(federation, seed=0)
    return run


def test_classes_are_counted_and_labelled() -> None:
    x = rows()
    run = run_of(x)
    result = run.result
    assert isinstance(result, ClusterCountResult)
    assert result.n_clusters == 3 and not result.at_edge and result.value == 3
    assert result.summary().startswith("3 classes in 120 rows of 5 columns: mean squared error")
    left = run.site("clinic")
    labels = left.labels
    assert len({tuple(sorted(set(labels[np.arange(120) % 3 == k]))) for k in range(3)}) == 3
    np.testing.assert_array_equal(result.sizes, np.bincount(labels))
    means = np.stack([np.nanmean(x[labels == k], axis=0) for k in range(3)])
    np.testing.assert_allclose(result.centers, means)
    np.testing.assert_array_equal(left.predictor.predict(x), labels)
    np.testing.assert_allclose(left.predictor.cluster_centers_, means)
    classes = left.to_frame("classes")
    np.testing.assert_allclose(classes[list(result.feature_names)], means)
    assert classes["rows"].tolist() == np.bincount(labels).tolist()


def test_the_curve_is_that_of_the_search() -> None:
    x = rows()
    run = run_of(x, policy="simulation")
    result, at_site = run.result, run.site("clinic").to_frame("curve")
    assert result.fold_errors.shape == (10, 5)
    assert result.fold_entries.sum() == (~np.isnan(x)).sum() == result.n_observed
    curve = result.curve()
    np.testing.assert_allclose(curve.mean, at_site["error"])
    np.testing.assert_allclose(curve.se, at_site["standard_error"])
    np.testing.assert_allclose(curve.errors.T, at_site[[f"fold_{f}" for f in range(10)]])
    assert curve.minimiser == result.minimiser and not curve.at_edge
    assert result.to_frame()["n_clusters"].tolist() == [1, 2, 3, 4, 5]
    # Errors of pooled standardised columns: one class predicts by the mean of a column.
    assert 0.9 < curve.mean[0] < 1.2


def test_protected_rows_the_same_search_with_fewer_lines() -> None:
    x = rows()
    result = run_of(x).result
    lines, a = result.fold_errors.shape
    assert lines * a <= 120 and result.fold_entries.sum() == (~np.isnan(x)).sum()
    wanted = run_of(x).site("clinic").to_frame("curve")
    np.testing.assert_allclose(result.curve().mean, wanted["error"])
    np.testing.assert_allclose(result.curve().se, wanted["standard_error"], rtol=0.06)
    # The same folds whenever they are asked for.
    np.testing.assert_array_equal(result.fold_errors, run_of(x).result.fold_errors)


def test_an_automatic_grid_goes_on_until_the_minimum_is_inside() -> None:
    rng = np.random.default_rng(8)
    centres = rng.normal(size=(12, 8)) * 6
    x = centres[np.arange(180) % 12] + rng.normal(size=(180, 8))
    result = run_of(x, n_clusters="auto", n_splits=5).result
    assert result.n_clusters == 12 and result.candidates[-1] > 12 and not result.at_edge


def test_a_minimum_at_the_end_of_the_grid_is_no_choice() -> None:
    run = run_of(rows(), n_clusters=(1, 2))
    assert run.result.at_edge and run.result.n_clusters == 2
    assert "choose no number of classes" in run.result.summary()
    assert any("this is no choice" in note for note in run.notes)


def test_noise_is_one_class_and_one_class_is_no_edge() -> None:
    x = np.random.default_rng(3).normal(size=(90, 6))
    run = run_of(x)
    assert run.result.n_clusters == 1 and not run.result.at_edge and not run.notes
    assert run.result.summary().startswith("1 class in 90 rows of 6 columns")


def test_other_criteria_stand_beside() -> None:
    result = run_of(rows(missing=0.02)).result
    names = {"calinski-harabasz", "silhouette", "krzanowski-lai", "hartigan", "jump", "gap"}
    assert set(result.criteria) == names == set(result.criteria_curves)
    assert result.criteria["silhouette"] == 3
    assert np.nanargmax(result.criteria_curves["silhouette"]) == 2
    assert np.isnan(result.criteria_curves["silhouette"][0])
    assert "Other criteria: calinski-harabasz 3" in result.summary()
    # With few complete rows they are not asked.
    few = run_of(rows(missing=0.4)).result
    assert few.criteria == {} and few.criteria_sentence() == ""


def test_small_classes_are_not_told() -> None:
    """Twelve rows far away make a class of their own; nine are too few to be told of."""
    rng = np.random.default_rng(2)
    for n_far, told in ((12, True), (9, False)):
        x = rows(90, missing=0.0)
        far = rng.normal(size=(n_far, 5)) + 40
        run = run_of(np.concatenate([x, far]))
        result = run.result
        assert result.n_clusters == 4
        assert (np.bincount(run.site("clinic").labels) == n_far).any()
        assert (result.sizes == n_far).any() == told
        assert np.isnan(result.centers).any() != told
        if not told:  # nor can it be taken off the total
            hidden = np.isnan(result.sizes)
            assert hidden.sum() >= 2
            # The mean over all rows may be known: that of the small class must not follow from it.
            assert np.isnan(result.centers[hidden]).all()


def test_few_values_of_a_column_in_a_class_hide_behind_another_class() -> None:
    x = rows(120, missing=0.0)
    x[0::3, 2] = np.nan
    x[0:12:3, 2] = CENTRES[0, 2]  # four of forty rows of a class have a value
    result = run_of(x, standardize="none").result
    assert result.n_clusters == 3
    hidden = np.isnan(result.centers)
    assert hidden[:, 2].sum() == 2 and not hidden[:, [0, 1, 3, 4]].any()


def test_kpod_and_the_sparing_rule() -> None:
    result = run_of(rows(), model="kpod", rule="one-standard-error").result
    assert result.model == "kpod" and result.n_clusters == 3
    assert result.chosen == result.one_standard_error


def test_the_search_is_the_one_of_the_estimators() -> None:
    """Without protection folds and starts follow from the public seed."""
    x = rows(60)
    entries = Entries.of(x)
    none = np.zeros((0, 2), dtype=np.int64)
    names = np.array([f"x{j}" for j in range(5)])
    ids = np.array([str(i) for i in range(60)])
    matrix = Matrix(
        entries, "columns", ids, names, none, np.stack([np.zeros(5), np.ones(5)]), entries.values
    )
    study = ClusterCountStudy(n_clusters=(1, 2, 3, 4), n_init=3)
    made = study.search_matrix(matrix, 17, None)  # type: ignore[arg-type]
    plan = plan_clusters(entries, n_clusters=(1, 2, 3, 4), seed=17, n_init=3)
    wanted, predictions = plan.predictions(entries, study.folds_of(entries, 17))
    np.testing.assert_array_equal(made.curve.errors, wanted.errors)
    np.testing.assert_array_equal(made.predictions, predictions)


def test_rows_and_columns_without_values_do_no_harm() -> None:
    x = rows(80, missing=0.05)
    x[4] = np.nan
    x[:, 2] = np.nan
    run = run_of(x, standardize="none")
    assert run.result.n_clusters == 3
    assert len(run.site("clinic").labels) == 80
    assert np.isnan(run.result.centers[:, 2]).all()


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"n_clusters": "many"}, "'auto', or 1 to 50 values, each a whole number from 1 to 100"),
        ({"n_clusters": (0, 1)}, "a whole number from 1 to 100"),
        ({"n_clusters": ()}, "a whole number from 1 to 100"),
        ({"model": "ward"}, "one of observed-kmeans, kpod"),
        ({"model": ["kpod"]}, "one of observed-kmeans, kpod"),
        ({"n_init": 0}, "n_init must be a whole number from 1 to 10000"),
        ({"n_splits": 1}, "n_splits must be a whole number from 2 to 20"),
        ({"rule": "elbow"}, "minimum"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ClusterCountStudy(**parameters).validate()


def test_tables_that_cannot_be_used_are_sentences() -> None:
    with pytest.raises(ConsilienceError, match="fewer rows than the policy"):
        run_of(rows(9), standardize="none")
    with pytest.raises(StudyError, match="name two columns or more as features"):
        run_of(rows()[:, :1], standardize="none")
    with pytest.raises(ConsilienceError, match="site's own log says why"):
        run_of(np.full((40, 3), np.nan), standardize="none")
    with pytest.raises(ConsilienceError, match="above what the table allows: ask for smaller"):
        run_of(rows(30), n_clusters=(1, 40))
    table = {"x0": np.arange(30.0), "y": np.arange(30.0)}
    federation = Federation.local(
        {"a": table}, columns=Columns(features=("x0",), target="y"), policy=GRANTED
    )
    with pytest.raises(StudyError, match="names features and target"):
        ClusterCountStudy().run(federation)


def test_few_rows_tell_no_grid() -> None:
    settings = {"n_clusters": range(1, 7), "n_init": 2, "n_splits": 3, "standardize": "none"}
    result = run_of(rows(12), **settings).result
    assert not len(result.candidates) and result.curve() is None
    assert "held-out entries" in result.summary() and "tried" not in result.summary()


def test_nothing_of_a_single_row_leaves() -> None:
    x = rows()
    x[7] = 1e6
    run = run_of(x, standardize="none")
    result = run.result
    # One row makes most of all sums: the curve stays, and so does its class of one.
    assert result.fold_errors.shape[0] == 0 and result.curve() is None
    assert any("The curve stays at site clinic" in note for note in run.notes)
    assert not (np.abs(np.nan_to_num(result.centers)) > 1e3).any()
    assert len(result.to_frame()) == 0 and "classes" in result.summary()


def test_one_long_class_that_was_cut_is_said_to_the_site() -> None:
    """Five columns with correlation .7; round classes beside it are not spoken against."""
    rng = np.random.default_rng(26)
    long = np.sqrt(0.7) * rng.normal(size=(100, 1)) + np.sqrt(0.3) * rng.normal(size=(100, 5))
    for x, expected in ((long, True), (rows(missing=0.0), False)):
        federation = federation_of(x)
        found = ClusterCountStudy(n_clusters=range(1, 7), n_init=3).run(federation, seed=0).result
        assert found.n_clusters > 1
        said = [str(line.get("said")) for line in federation.log("clinic")]
        assert (
            any("with correlated columns explains the table" in line for line in said) == expected
        )


def test_heavy_tails_within_classes_are_said_to_the_site() -> None:
    x = rows(missing=0.0)
    x += np.random.default_rng(26).standard_t(2, x.shape)
    federation = federation_of(x)
    ClusterCountStudy(n_clusters=range(1, 5), n_init=3).run(federation, seed=0)
    assert any("heavy tails" in str(line.get("said")) for line in federation.log("clinic"))

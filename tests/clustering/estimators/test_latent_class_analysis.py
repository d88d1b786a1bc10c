"""Latent class analysis as an estimator: tables in every form, gaps, criteria, arrays."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience.clustering.estimators.mixture import LatentClassAnalysis
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import FewerClustersWarning

CANARY = "ZZ-patient-4711"


def does_not_apply(estimator: Any) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": "rows of weight 0 make levels known, and "
        "the check asks for predictions of levels that occur nowhere else",
    }


@parametrize_with_checks([LatentClassAnalysis(n_init=3)], expected_failed_checks=does_not_apply)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def clinic(n: int = 400, seed: int = 0, gaps: float = 0.1) -> tuple[pd.DataFrame, np.ndarray]:
    """Three classes that five columns of text, numbers and yes or no tell apart."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(3, n, p=[0.5, 0.3, 0.2])

    def column(levels: list[Any], table: list[list[float]]) -> list[Any]:
        drawn = [rng.choice(len(levels), p=table[k]) for k in classes]
        return [None if rng.random() < gaps else levels[i] for i in drawn]

    sharp = [[0.85, 0.1, 0.05], [0.1, 0.85, 0.05], [0.05, 0.1, 0.85]]
    frame = pd.DataFrame(
        {
            "pain": column(["none", "mild", "severe"], sharp),
            "stage": column([1, 2, 3], sharp[::-1]),
            "smoker": column([True, False], [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]),
            "drug": column(["a", "b", "c"], sharp),
            "ward": column(["x", "y", "z"], sharp),
        }
    )
    return frame, classes


@pytest.fixture(scope="module")
def fitted() -> tuple[LatentClassAnalysis, pd.DataFrame, np.ndarray]:
    frame, classes = clinic()
    return LatentClassAnalysis(3, n_init=8, random_state=0).fit(frame), frame, classes


# ------------------------------------------------------------------ answers


def test_subtypes_are_found(fitted: Any) -> None:
    fit, _, classes = fitted
    assert adjusted_rand_score(classes, fit.labels_) > 0.8
    assert fit.n_classes_ == 3
    assert (np.diff(fit.proportions_) <= 0).all()
    # 400 rows: standard errors of the shares of at most .025, and a little for labels.
    np.testing.assert_allclose(fit.proportions_, [0.5, 0.3, 0.2], atol=0.08)
    assert [column.shape for column in fit.class_probabilities_] == [(3, 3)] * 2 + [(3, 2)] + [
        (3, 3)
    ] * 2
    for column in fit.class_probabilities_:
        np.testing.assert_allclose(column.sum(axis=1), 1.0)
    assert [known.tolist() for known in fit.levels_] == [
        ["mild", "none", "severe"],
        [1, 2, 3],
        [False, True],
        ["a", "b", "c"],
        ["x", "y", "z"],
    ]
    assert fit.converged_
    assert (np.diff(fit.trace_) >= -1e-9 * abs(fit.trace_[-1])).all()
    assert fit.trace_[-1] < fit.log_likelihood_
    assert len(fit.trace_) == fit.n_iter_ + 1
    assert fit.remarks_ == ()


def test_probabilities_labels_and_scores_agree(fitted: Any) -> None:
    fit, frame, _ = fitted
    shares = fit.predict_proba(frame)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.log(shares), fit.predict_log_proba(frame), atol=1e-12)
    np.testing.assert_array_equal(shares.argmax(axis=1), fit.labels_)
    np.testing.assert_array_equal(fit.predict(frame), fit.labels_)
    density = fit.score_samples(frame)
    assert density.sum() == pytest.approx(fit.log_likelihood_, rel=1e-12)
    assert fit.score(frame) == pytest.approx(density.mean())
    assert fit.n_parameters_ == 2 + 3 * (2 + 2 + 1 + 2 + 2)
    assert fit.bic_ == pytest.approx(-2 * fit.log_likelihood_ + 29 * np.log(400))
    assert fit.aic(frame) == pytest.approx(-2 * fit.log_likelihood_ + 2 * 29)
    assert fit.bic(frame) == pytest.approx(fit.bic_)
    assert {name: values.tolist() for name, values in fit.bic_curve_.items()} == {
        "n_classes": [3],
        "log_likelihood": [fit.log_likelihood_],
        "n_parameters": [29],
        "bic": [fit.bic_],
    }


def test_bic_finds_the_number_of_classes() -> None:
    frame, _ = clinic(600, seed=1)
    fit = LatentClassAnalysis("bic", max_classes=5, n_init=6, random_state=0).fit(frame)
    assert fit.n_classes_ == 3
    assert fit.bic_curve_["n_classes"].tolist() == [1, 2, 3, 4, 5]
    assert fit.bic_ == fit.bic_curve_["bic"].min() == fit.bic_curve_["bic"][2]
    rng = np.random.default_rng(3)
    alone = clinic(300, seed=2)[0].apply(lambda column: rng.permutation(column.to_numpy()))
    null = LatentClassAnalysis("bic", max_classes=3, n_init=6, random_state=0).fit(alone)
    assert null.n_classes_ == 1
    assert not null.labels_.any()


def test_forms_of_the_same_table(fitted: Any) -> None:
    fit, frame, _ = fitted
    cells = frame.astype(object).where(frame.notna(), None)
    for form in (
        cells.to_numpy(dtype=object),
        cells.to_numpy(dtype=object).tolist(),
        frame.astype(object).where(frame.notna(), np.nan),
        frame.astype({"pain": "string", "stage": "Int64", "smoker": "boolean", "drug": "category"}),
    ):
        again = LatentClassAnalysis(3, n_init=8, random_state=0).fit(form)
        assert again.log_likelihood_ == pytest.approx(fit.log_likelihood_, rel=1e-12)
        np.testing.assert_array_equal(again.labels_, fit.labels_)
    assert list(fit.feature_names_in_) == list(frame.columns)


def test_integer_codes() -> None:
    frame, _ = clinic(gaps=0.0)
    codes = np.stack([pd.Categorical(frame[name]).codes for name in frame], axis=1)
    coded = LatentClassAnalysis(3, n_init=4, random_state=0).fit(codes)
    named = LatentClassAnalysis(3, n_init=4, random_state=0).fit(frame)
    assert coded.log_likelihood_ == pytest.approx(named.log_likelihood_, rel=1e-12)
    floats = codes.astype(float)
    floats[0, 0] = np.nan
    np.testing.assert_array_equal(coded.predict(floats)[1:], coded.labels_[1:])


def test_a_row_without_entries_goes_to_the_largest_class(fitted: Any) -> None:
    fit, frame, _ = fitted
    nothing = pd.DataFrame({name: [None] for name in frame})
    assert fit.predict(nothing).tolist() == [0]
    np.testing.assert_allclose(fit.predict_proba(nothing)[0], fit.proportions_)


def test_weights_stand_for_rows() -> None:
    frame, _ = clinic(120, seed=4)
    times = np.random.default_rng(0).integers(0, 4, 120)
    weighted = LatentClassAnalysis(2, n_init=4, random_state=0).fit(frame, sample_weight=times)
    repeated = LatentClassAnalysis(2, n_init=4, random_state=0).fit(
        frame.loc[np.repeat(frame.index, times)]
    )
    assert weighted.log_likelihood_ == pytest.approx(repeated.log_likelihood_, rel=1e-6)
    assert weighted.bic_ == pytest.approx(repeated.bic_, rel=1e-6)
    labels = LatentClassAnalysis(2, n_init=4, random_state=0).fit_predict(
        frame, sample_weight=times
    )
    np.testing.assert_array_equal(labels, weighted.labels_)
    mean = weighted.score(frame, sample_weight=times)
    assert mean == pytest.approx(weighted.log_likelihood_ / times.sum())
    assert weighted.score(frame) == pytest.approx(weighted.score_samples(frame).mean())


def test_order_of_rows_does_not_matter() -> None:
    frame, _ = clinic(150, seed=9)
    order = np.random.default_rng(0).permutation(150)
    first = LatentClassAnalysis(3, n_init=4, random_state=0).fit(frame)
    second = LatentClassAnalysis(3, n_init=4, random_state=0).fit(frame.iloc[order])
    np.testing.assert_array_equal(first.proportions_, second.proportions_)
    np.testing.assert_array_equal(first.labels_[order], second.labels_)


def test_standard_errors_by_column(fitted: Any) -> None:
    fit, frame, _ = fitted
    shares, levels = fit.standard_errors(frame)
    assert shares.shape == (3,)
    assert [e.shape for e in levels] == [p.shape for p in fit.class_probabilities_]
    # Labels are nearly certain, so that errors are a little above those of known classes.
    p = fit.proportions_
    ratio = shares / np.sqrt(p * (1 - p) / 400)
    assert ((ratio > 0.9) & (ratio < 1.6)).all()
    twice, _ = fit.standard_errors(frame, sample_weight=np.full(400, 2.0))
    np.testing.assert_allclose(twice, shares / np.sqrt(2))


# ------------------------------------------------------------------ levels


def test_declared_levels_may_be_absent() -> None:
    frame, _ = clinic(200, seed=5)
    wide = LatentClassAnalysis(
        2, n_init=3, levels={"drug": ["a", "b", "c", "d"]}, random_state=0
    ).fit(frame)
    assert wide.levels_[3].tolist() == ["a", "b", "c", "d"]
    assert wide.class_probabilities_[3].shape == (2, 4)
    plain = LatentClassAnalysis(2, n_init=3, random_state=0).fit(frame)
    assert wide.n_parameters_ == plain.n_parameters_  # what never occurs is no parameter
    new = frame.iloc[:1].assign(drug="d")
    assert wide.predict(new).shape == (1,)
    listed = LatentClassAnalysis(
        2, n_init=3, levels=[None, None, None, ["a", "b", "c", "d"], None], random_state=0
    ).fit(frame)
    np.testing.assert_array_equal(listed.labels_, wide.labels_)
    categorical = frame.assign(drug=pd.Categorical(frame["drug"], categories=list("abcd")))
    own = LatentClassAnalysis(2, n_init=3, random_state=0).fit(categorical)
    np.testing.assert_array_equal(own.labels_, wide.labels_)


@pytest.mark.parametrize(
    "levels",
    [
        {"drug": ["a", "b"]},
        {"drug": []},
        {"drug": ["a", "b", "c", "c"]},
        {"dose": ["a"]},
        [None],
        3,
        "drug",
        {"drug": 3},
        {"drug": [["a"], ["b"]]},
    ],
)
def test_wrong_declared_levels(levels: Any) -> None:
    frame, _ = clinic(60, seed=6)
    with pytest.raises((DataError, ParameterError), match=r"drug|dose|levels"):
        LatentClassAnalysis(2, n_init=1, levels=levels).fit(frame)


def test_errors_name_the_column_and_never_a_value(fitted: Any) -> None:
    fit, frame, _ = fitted
    with pytest.raises(DataError, match="column ward") as caught:
        fit.predict(frame.assign(ward=CANARY))
    assert CANARY not in str(caught.value)
    mixed = frame.assign(ward=[CANARY, 7] * 200)
    with pytest.raises(DataError, match="column ward mixes") as caught:
        clone(fit).fit(mixed)
    assert CANARY not in str(caught.value)
    with pytest.raises(DataError, match="column ward has no entry"):
        clone(fit).fit(frame.assign(ward=None))
    declared = clone(fit).set_params(levels={"ward": ["x", "y", "z"]})
    declared.fit(frame.assign(ward=["x"] * 400))
    with pytest.raises(DataError, match="column ward holds a level") as caught:
        declared.fit(frame.assign(ward=[CANARY] * 400))
    assert CANARY not in str(caught.value)


# ------------------------------------------------------------------ edges


def test_identical_rows_and_one_row() -> None:
    rows = np.array([["a", "b"]] * 30, dtype=object)
    fit = LatentClassAnalysis("bic", max_classes=3, n_init=2, random_state=0).fit(rows)
    assert fit.n_classes_ == 1
    assert fit.bic_curve_["n_classes"].tolist() == [1]
    with pytest.warns(FewerClustersWarning, match="there is 1 distinct row: 1 of 3 classes"):
        three = LatentClassAnalysis(3, n_init=2, random_state=0).fit(rows)
    assert three.n_classes_ == 1
    assert "distinct row" in three.remarks_[0]
    with pytest.warns(FewerClustersWarning):
        one = LatentClassAnalysis(2, n_init=2, random_state=0).fit(rows[:1])
    assert one.predict(rows[:1]).tolist() == [0]
    nothing = LatentClassAnalysis(1, levels=[["a"], ["b"]]).fit(np.full((3, 2), None))
    assert nothing.log_likelihood_ == 0.0


def test_remarks_tell_of_measurements() -> None:
    frame, _ = clinic(60, seed=7)
    fit = LatentClassAnalysis(2, n_init=2, random_state=0).fit(frame.assign(weight=np.arange(60)))
    assert any("column weight has 60 levels" in remark for remark in fit.remarks_)


def test_a_fit_that_stops_early_says_so() -> None:
    frame, _ = clinic(100, seed=8)
    with pytest.warns(ConvergenceWarning, match="max_iter = 1"):
        fit = LatentClassAnalysis(3, n_init=2, n_init_iter=1, max_iter=1, random_state=0).fit(frame)
    assert not fit.converged_


def test_a_class_that_is_nobodys_most_probable_one_is_told() -> None:
    rows = 50 * [["a", "b"]] + [["a", "c"]]
    with pytest.warns(ConvergenceWarning, match="only 1 of 2 classes hold rows"):
        fit = LatentClassAnalysis(2, n_init=2, random_state=0).fit(rows)
    assert set(fit.labels_) == {0}
    assert sum("only 1 of 2 classes" in remark for remark in fit.remarks_) == 1


def test_weights_that_are_no_counts_are_told() -> None:
    frame, _ = clinic(60, seed=9)
    few = np.full(60, 1 / 60)
    fit = LatentClassAnalysis(1).fit(frame, sample_weight=few)
    assert any("sum to 1, which BIC takes for their number" in told for told in fit.remarks_)
    assert not any("sum to" in told for told in LatentClassAnalysis(1).fit(frame).remarks_)
    with pytest.raises(DataError, match=r"weights sum to 0\.5 .* number of rows"):
        LatentClassAnalysis("bic").fit(frame, sample_weight=few / 2)
    with pytest.raises(DataError, match="weights must hold numbers"):
        LatentClassAnalysis(1).fit(frame, sample_weight=["x"] * 60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_classes": 0},
        {"n_classes": "aic"},
        {"n_classes": 1.5},
        {"n_classes": "bic", "max_classes": 0},
        {"n_init": 0},
        {"pseudo_count": -1},
        {"tol": -1},
        {"max_iter": 0},
        {"n_final": 0},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=list(wrong)[-1]):
        LatentClassAnalysis(**wrong).fit([["a"], ["b"]])


def test_draws_look_like_the_table(fitted: Any) -> None:
    fit, _, _ = fitted
    rows, classes = fit.sample(4000)
    assert rows.shape == (4000, 5)
    np.testing.assert_allclose(np.bincount(classes) / 4000, fit.proportions_, atol=0.04)
    again = LatentClassAnalysis(3, n_init=4, random_state=0).fit(rows)
    # 800 rows and more a class: standard errors of at most .018.
    np.testing.assert_allclose(again.proportions_, fit.proportions_, atol=0.08)
    same, _ = fit.sample(4000)
    np.testing.assert_array_equal(rows, same)


# ------------------------------------------------------------------ copies


def test_copies(fitted: Any) -> None:
    fit, frame, _ = fitted
    with pytest.raises(NotFittedError):
        clone(fit).predict(frame)
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.predict_proba(frame), fit.predict_proba(frame))


def test_arrays_hold_the_fit_and_no_row(fitted: Any) -> None:
    fit, frame, _ = fitted
    arrays = fit.to_arrays()
    assert all(array.dtype.kind in "iuf" for array in arrays.values())
    assert all(len(frame) not in array.shape for array in arrays.values())
    again = LatentClassAnalysis.from_arrays(arrays)
    np.testing.assert_array_equal(again.predict_proba(frame), fit.predict_proba(frame))
    assert not hasattr(again, "labels_")
    assert again.bic(frame) == pytest.approx(fit.bic_)
    assert list(again.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"ward": "room"}))


@pytest.mark.parametrize(
    "broken",
    ["n_parameters", "n_levels", "levels_1", "levels_0_text", "proportions", "names_0_lengths"],
)
def test_broken_arrays_are_refused(fitted: Any, broken: str) -> None:
    arrays = fitted[0].to_arrays()
    with pytest.raises(DataError):
        LatentClassAnalysis.from_arrays({k: a for k, a in arrays.items() if k != broken})
    with pytest.raises(DataError):
        LatentClassAnalysis.from_arrays(arrays | {broken: arrays[broken][:-1]})


def test_levels_that_are_neither_numbers_nor_text_stay_here() -> None:
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")[:, None]
    fit = LatentClassAnalysis(1).fit(np.repeat(days, 5, axis=0))
    with pytest.raises(DataError, match="neither numbers nor text"):
        fit.to_arrays()


@pytest.mark.parametrize("flat", [["canary", "b"], np.array(["canary", "b"]), []])
def test_one_dimension_is_refused_without_its_values(flat: Any) -> None:
    with pytest.raises(DataError, match="Expected 2D array") as caught:
        LatentClassAnalysis().fit(flat)
    assert "canary" not in str(caught.value)

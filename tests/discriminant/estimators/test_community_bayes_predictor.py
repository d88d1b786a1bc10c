"""Community Bayes as arrays: the same answers, kept and read back, damaged arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from consilience import CommunityBayesClassifier
from consilience.datasets.simulate_wide import community_classes
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream

pytestmark = pytest.mark.filterwarnings(
    "ignore::consilience.discriminant.estimators.community_bayes_fit.SeparationWarning"
)

LABELS = {
    "numbers": np.array([3, 5, 8]),
    "texts": np.array(["a", "bé", "c"]),
    "objects": np.array(["a", "bé", "c"], dtype=object),
}


def fitted(labels: Any, base: Any = None, n_communities: int = 3, named: bool = False) -> Any:
    made = community_classes(
        "block", rng=stream(0), n_features=8, n_classes=len(labels), n_blocks=4
    )
    x, y = made.draw(25, rng=stream(1))
    x = 5.0 + 100.0 * x
    table = pd.DataFrame(x, columns=[f"f{j}" for j in range(8)]) if named else x
    fit = CommunityBayesClassifier(base, n_communities=n_communities).fit(table, labels[y])
    return fit, 5.0 + 100.0 * made.draw(30, rng=stream(2))[0]


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "base",
    [
        None,
        LogisticRegression(C=0.01),
        make_pipeline(StandardScaler(with_mean=False), LogisticRegression()),
        make_pipeline(StandardScaler(with_std=False), LogisticRegression(C=0.01)),
    ],
)
def test_the_same_answers(labels: Any, n_classes: int, base: Any) -> None:
    fit, new = fitted(labels[:n_classes], base)
    first = fit.to_predictor()
    again = CommunityBayesPredictor.from_arrays(first.to_arrays())
    for predictor in (first, again):
        np.testing.assert_allclose(predictor.predict_proba(new), fit.predict_proba(new), atol=1e-12)
        np.testing.assert_allclose(predictor.contributions(new), fit.contributions(new), atol=1e-10)
        assert predictor.predict(new).tolist() == fit.predict(new).tolist()
        np.testing.assert_allclose(
            predictor.decision_function(new), fit.decision_function(new), atol=1e-10
        )
        assert predictor.n_features_in_ == 8 and predictor.n_communities_ == 3
    np.testing.assert_array_equal(again.predict_proba(new), first.predict_proba(new))
    np.testing.assert_array_equal(again.predict_proba(new[:1]), first.predict_proba(new)[:1])


def test_true_and_false() -> None:
    fit, new = fitted(np.array([False, True]))
    again = CommunityBayesPredictor.from_arrays(fit.to_predictor().to_arrays())
    assert again.classes_.dtype == bool
    assert again.predict(new).tolist() == fit.predict(new).tolist()


def test_names_are_kept() -> None:
    fit, new = fitted(LABELS["texts"], named=True)
    again = CommunityBayesPredictor.from_arrays(fit.to_predictor().to_arrays())
    assert again.feature_names_in_.tolist() == [f"f{j}" for j in range(8)]
    frame = pd.DataFrame(new, columns=again.feature_names_in_)
    np.testing.assert_array_equal(again.predict_proba(frame), again.predict_proba(new))
    with pytest.raises(DataError, match="in this order"):
        again.predict(frame[frame.columns[::-1]])


def test_columns_that_a_study_prepared() -> None:
    fit, new = fitted(LABELS["numbers"])
    scaling = np.stack([np.arange(8.0), np.linspace(-3, 3, 8), np.linspace(0.5, 2, 8)])
    names = [f"g{j}" for j in range(8)]
    first = fit.to_predictor().with_names(names, scaling)
    raw = new * scaling[2] + scaling[1]
    raw[0, 3] = np.nan
    seen = new.copy()
    seen[0, 3] = (scaling[0, 3] - scaling[1, 3]) / scaling[2, 3]
    for predictor in (first, CommunityBayesPredictor.from_arrays(first.to_arrays())):
        np.testing.assert_allclose(
            predictor.predict_proba(pd.DataFrame(raw[:4], columns=names)),
            fit.predict_proba(seen[:4]),
            atol=1e-10,
        )
    # rows of which all lie far from the centre of such a scaling are in other units
    with pytest.raises(DataError, match="standard deviations from the centre"):
        first.predict_proba(pd.DataFrame(raw, columns=names))
    for wrong in (scaling[:2], scaling[:, :-1], scaling * [[1], [1], [0]], scaling * np.nan):
        with pytest.raises(DataError, match="scaling"):
            first.with_names(None, wrong)
    with pytest.raises(DataError, match="missing"):
        fit.to_predictor().predict(raw)


def test_only_logistic_regression() -> None:
    for base in (GaussianNB(), make_pipeline(MinMaxScaler(), LogisticRegression())):
        with pytest.raises(ParameterError, match="keep the classifier itself"):
            fitted(LABELS["numbers"], base)[0].to_predictor()


def test_arrays_hold_numbers_only() -> None:
    arrays = fitted(LABELS["texts"], named=True)[0].to_predictor().to_arrays()
    assert all(value.dtype.kind in "iuf" for value in arrays.values())


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.pop("sizes"),
        lambda a: a.pop("priors"),
        lambda a: a.pop("classes"),
        lambda a: a.update(features=np.zeros(8, dtype=np.int64)),
        lambda a: a.update(features=a["features"] + 1),
        lambda a: a.update(sizes=a["sizes"][:-1]),
        lambda a: a.update(sizes=np.array([8, 0, 0])),
        lambda a: a.update(sizes=np.array([-1, 5, 4])),
        lambda a: a.update(coefs=a["coefs"][:, :-1]),
        lambda a: a.update(coefs=a["coefs"][:-1]),
        lambda a: a.update(coefs=a["coefs"] * np.nan),
        lambda a: a.update(intercepts=a["intercepts"][:-1]),
        lambda a: a.update(priors=a["priors"] * 0),
        lambda a: a.update(classes=np.array([3, 3, 5])),
        lambda a: a.update(classes=np.array([3, 5])),
        lambda a: a.update(priors=np.float64(0.3)),
    ],
)
def test_damaged_arrays_are_refused(damage: Any) -> None:
    arrays = fitted(LABELS["numbers"])[0].to_predictor().to_arrays()
    damage(arrays)
    with pytest.raises(DataError):
        CommunityBayesPredictor.from_arrays(arrays)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (np.ones((2, 7)), "8 columns"),
        (np.ones(8), "8 columns"),
        (np.full((1, 8), np.nan), "missing or infinite"),
        ([["secret"] * 8], "must hold numbers"),
    ],
)
def test_rows_that_are_refused(rows: Any, sentence: str) -> None:
    predictor = fitted(LABELS["numbers"])[0].to_predictor()
    with pytest.raises(DataError, match=sentence) as error:
        predictor.predict(rows)
    assert "secret" not in str(error.value)

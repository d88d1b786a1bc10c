"""Predictions of several models together: weights, units, columns, keeping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPRegressor

from consilience.exceptions import DataError
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.wire.codec import pack
from consilience.wire.estimators import encode

RNG = np.random.default_rng(1)
X = RNG.normal(size=(80, 3))
Y = X @ [1.0, 2.0, -1.0] + 0.1 * RNG.normal(size=80)
NAMES = ("age", "dose", "größe")
FITS = [LinearRegression().fit(X[:40], Y[:40]), LinearRegression().fit(X[40:], Y[40:])]


def portable(fitted: Any, classes: Any = None) -> dict[str, Any]:
    return encode(fitted, n_features=3, classes=classes)


def predictor(fits: Any = FITS, sizes: Any = (10, 30), **settings: Any) -> CollaborativePredictor:
    return CollaborativePredictor(
        [portable(f) for f in fits], sizes, feature_names=NAMES, **settings
    )


def test_average_by_rows() -> None:
    expected = (10 * FITS[0].predict(X) + 30 * FITS[1].predict(X)) / 40
    np.testing.assert_allclose(predictor().predict(X), expected, rtol=1e-12)
    frame = pd.DataFrame(X, columns=list(NAMES))
    np.testing.assert_array_equal(predictor().predict(frame), predictor().predict(X))
    assert predictor().predict(X[:0]).shape == (0,)


def test_columns() -> None:
    frame = pd.DataFrame(X, columns=list(NAMES))
    for wrong in (
        frame[["dose", "age", "größe"]],
        frame.rename(columns={"age": "Age"}),
        frame[["age"]],
    ):
        with pytest.raises(DataError, match=r"must be age, dose, größe, in this order"):
            predictor().predict(wrong)
    for wrong in (X[:, :2], X[0], np.zeros((2, 3, 1))):
        with pytest.raises(DataError, match="3 columns"):
            predictor().predict(wrong)


def test_values_that_are_missing() -> None:
    holes = X.copy()
    holes[3, 1] = np.nan
    with pytest.raises(DataError, match="missing or infinite"):
        predictor().predict(holes)
    with pytest.raises(DataError, match="missing or infinite"):
        predictor().predict(np.full((1, 3), np.inf))
    scaling = np.array([[0.0, 7.0, 0.0], [1.0, 2.0, 3.0], [2.0, 4.0, 8.0]])
    filled = np.where(np.isnan(holes), 7.0, holes)
    scaled = (filled - scaling[1]) / scaling[2]
    np.testing.assert_allclose(
        predictor(scaling=scaling).predict(holes), predictor().predict(scaled), rtol=1e-12
    )


def test_standards_of_the_site() -> None:
    standards = np.array([[1.0, 2.0, 3.0, 100.0], [2.0, 4.0, 8.0, 50.0]])
    scaled = (X - standards[0, :3]) / standards[1, :3]
    np.testing.assert_allclose(
        predictor(standards=standards).predict(X), 100 + 50 * predictor().predict(scaled)
    )


def test_levels() -> None:
    y = np.where(Y > 0, "yes", "no")
    levels = ("no", "never seen", "yes")
    fits = [LogisticRegression().fit(X[i::2], y[i::2]) for i in range(2)]
    made = CollaborativePredictor(
        [portable(f, levels) for f in fits], (1, 1), feature_names=NAMES, levels=levels
    )
    chances = made.predict_proba(X)
    expected = np.mean([f.predict_proba(X) for f in fits], axis=0)
    np.testing.assert_allclose(chances[:, [0, 2]], expected, rtol=1e-12)
    assert (chances[:, 1] == 0).all()
    assert (made.predict(X) == y).mean() > 0.9
    assert made.classes_.tolist() == list(levels)
    with pytest.raises(DataError, match="use predict"):
        predictor().predict_proba(X)


def forms() -> dict[str, CollaborativePredictor]:
    net = MLPRegressor(hidden_layer_sizes=(3,), max_iter=30, solver="lbfgs", random_state=0).fit(
        X, Y
    )
    forest = RandomForestRegressor(4, max_depth=3, random_state=0).fit(X, Y)
    levels = ("a", "b")
    classes = LogisticRegression().fit(X, np.where(Y > 0, "b", "a"))
    return {
        "linear": predictor(),
        "all forms": predictor([FITS[0], forest, net], (1, 2, 3)),
        "scaled": predictor(scaling=np.ones((3, 3)), standards=np.ones((2, 4))),
        "levels": CollaborativePredictor(
            [portable(classes, levels)], [5], feature_names=NAMES, levels=levels
        ),
    }


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
@pytest.mark.parametrize("name", ["linear", "all forms", "scaled", "levels"])
def test_keeping(name: str) -> None:
    made = forms()[name]
    arrays = made.to_arrays()
    assert all(isinstance(a, np.ndarray) and a.dtype != object for a in arrays.values())
    again = CollaborativePredictor.from_arrays(arrays)
    np.testing.assert_array_equal(again.predict(X), made.predict(X))
    assert again.feature_names_in_.tolist() == list(NAMES)
    assert again.levels == made.levels
    if name == "all forms":
        _, forest, net = (m for m in made.models)
        assert {forest["form"], net["form"]} == {"trees", "skops"}


def test_arrays_that_are_no_predictor() -> None:
    arrays = predictor().to_arrays()
    for key in ("models", "sizes", "names", "name_lengths", "levels", "level_lengths"):
        with pytest.raises(DataError):
            CollaborativePredictor.from_arrays({k: v for k, v in arrays.items() if k != key})
    half = arrays["models"][: len(arrays["models"]) // 2]

    def packed(value: Any) -> np.ndarray:
        return np.frombuffer(pack(value), dtype=np.uint8)

    damaged: list[dict[str, Any]] = [
        {"models": half},
        {"models": packed(3)},
        {"models": packed((1, 2))},
        {"models": packed({"form": "linear"})},
        {"models": np.zeros(0, dtype=np.uint8)},
        {"sizes": np.ones(3)},
        {"sizes": np.array([1.0, -1.0])},
        {"sizes": np.array([1.0, np.nan])},
        {"scaling": np.ones((2, 3))},
        {"standards": np.ones((3, 4))},
        {"names": np.full(13, 255, dtype=np.uint8)},
        {"name_lengths": np.array([1, -1, 3])},
    ]
    for change in damaged:
        with pytest.raises(DataError):
            CollaborativePredictor.from_arrays({**arrays, **change}).predict(X)


def test_a_model_that_cannot_be_used() -> None:
    odd = {**portable(FITS[1]), "coef": np.ones((1, 4))}
    made = CollaborativePredictor([portable(FITS[0]), odd], (1, 1), feature_names=NAMES)
    with pytest.raises(
        DataError, match="model 2 of the group cannot be used: it expects 4 columns"
    ):
        made.predict(X)


def test_parts_that_do_not_fit() -> None:
    for fits, sizes in (([], []), (FITS, (1,)), (FITS, (0, 1)), (FITS, (-1, 1))):
        with pytest.raises(DataError, match="a predictor needs models"):
            predictor(fits, sizes)

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.exceptions import DataError
from consilience.latent_regression.estimators.latent_class_predictor import (
    LatentClassPredictor,
    Units,
    units_of,
)
from consilience.numerics.ids import as_ids, pair_codes, places
from consilience.wire.codec import pack, unpack

UNITS = Units(np.array([1.0, -2.0]), np.array([2.0, 0.5]), 10.0, 4.0, True)


def parts(**change: Any) -> dict[str, Any]:
    """Two classes, agents a (entities 1, 2) and b (entity 1)."""
    rng = np.random.default_rng(0)
    roots = 0.1 * rng.normal(size=(2, 3, 3))
    given: dict[str, Any] = {
        "mean": np.array([[0.0, 1.0, 0.0], [0.5, -1.0, 2.0]]),
        "covariance": roots @ roots.swapaxes(1, 2),
        "sigma2": 0.01,
        "base": np.array([0.75, 0.25]),
        "beta": 2.0,
        "units": UNITS,
        "agents": np.array(["a", "b"]),
        "agent_counts": np.array([[1.2, 0.8], [0.0, 1.0]]),
        "entities": np.array(["1", "2", "1"]),
        "entity_agents": np.array([0, 0, 1]),
        "probabilities": np.array([[1.0, 0.0], [0.2, 0.8], [0.0, 1.0]]),
        "feature_names": ["u", "v"],
    }
    return {**given, **change}


X = np.array([[1.0, -2.0], [3.0, -2.0], [3.0, -1.5], [-1.0, 0.0]])


def test_predictions_by_hand() -> None:
    predictor = LatentClassPredictor(**parts())
    found = predictor.predict(X, entity=["1", "2", "1", "9"], agent=["a", "a", "b", "b"])
    # standardised rows: (0, 0), (1, 0), (1, 1), (-1, 4); class means are 0, 1 / -.5, 1.5 / -1, 9.5
    shares = np.array([0.0 + 2 * 0.75, 1.0 + 2 * 0.25]) / 3
    expected = [0.0, 0.2 * 1.0 + 0.8 * -0.5, 1.5, shares @ [-1.0, 9.5]]
    np.testing.assert_allclose(found, 10 + 4 * np.array(expected))
    np.testing.assert_allclose(predictor.predict(X)[1], 10 + 4 * (0.75 * 1.0 + 0.25 * -0.5))


def test_arrays_and_back() -> None:
    predictor = LatentClassPredictor(**parts())
    numbers = LatentClassPredictor(**parts(entities=np.array([7, 8, 7]), feature_names=None))
    rng = np.random.default_rng(0)
    for one, ids in ((predictor, ["2", "2", "1", "x"]), (numbers, [7, 8, 7, 1])):
        arrays = unpack(pack(one.to_arrays()))
        again = LatentClassPredictor.from_arrays(arrays)
        given: dict[str, Any] = {"entity": ids, "agent": ["a", "b", "b", "b"]}
        given["observed"] = [1.0, 2.0, np.nan, 30.0]
        np.testing.assert_array_equal(again.predict(X, **given), one.predict(X, **given))
        np.testing.assert_array_equal(
            again.predict_interval(X, **given), one.predict_interval(X, **given)
        )
        assert again.sample(X, 3, rng=rng, **given).shape == (3, 4)
    assert again.n_features_in_ == 2 and not hasattr(again, "feature_names_in_")


@pytest.mark.parametrize("missing", ["mean", "flat", "centre", "agents_text", "entities_lengths"])
def test_arrays_that_are_incomplete(missing: str) -> None:
    arrays = LatentClassPredictor(**parts()).to_arrays()
    del arrays[missing]
    with pytest.raises(DataError, match="do not hold a predictor"):
        LatentClassPredictor.from_arrays(arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": np.zeros((2, 2))},
        {"covariance": np.zeros((2, 3, 2))},
        {"base": np.ones(3)},
        {"base": np.array([-1.0, 2.0])},
        {"sigma2": 0.0},
        {"sigma2": np.nan},
        {"beta": -1.0},
        {"probabilities": np.full((3, 2), np.nan)},
        {"entity_agents": np.array([0, 0, 2])},
        {"entity_agents": np.array([0, 1, 1])},
        {"agents": np.array(["b", "a"])},
        {"entities": np.array(["1", "1", "1"])},
        {"agent_counts": np.zeros((1, 2))},
        {"feature_names": ["u"]},
        {"units": Units(np.zeros(2), np.zeros(2), 0.0, 1.0, True)},
    ],
)
def test_parts_that_do_not_fit(change: dict[str, Any]) -> None:
    if "entity_agents" in change and change["entity_agents"][1] == 1:
        change = {**change, "entities": np.array(["1", "1", "1"])}
    with pytest.raises(DataError):
        LatentClassPredictor(**parts(**change))


def test_tables_that_do_not_fit() -> None:
    predictor = LatentClassPredictor(**parts())
    frame = pd.DataFrame(X, columns=["u", "v"])
    np.testing.assert_array_equal(predictor.predict(frame), predictor.predict(X))
    with pytest.raises(DataError, match="columns must be u, v"):
        predictor.predict(frame[["v", "u"]])
    with pytest.raises(DataError, match="2 columns"):
        predictor.predict(X[:, :1])
    with pytest.raises(DataError, match="missing or infinite"):
        predictor.predict(np.full((1, 2), np.nan))


def test_a_row_does_not_depend_on_the_others() -> None:
    predictor = LatentClassPredictor(**parts())
    many = np.random.default_rng(1).normal(size=(50, 2))
    together = predictor.predict_interval(many)
    alone = np.concatenate([predictor.predict_interval(row[None]) for row in many])
    np.testing.assert_array_equal(together, alone)


def test_a_class_that_is_hardly_known() -> None:
    """Wide covariances are kept: no pivot is raised to that of a prior of variance 1."""
    wide = np.stack([100.0 * np.eye(3), 1e-6 * np.eye(3)])
    predictor = LatentClassPredictor(**parts(covariance=wide, base=[1.0, 0.0], beta=1e9))
    ends = predictor.predict_interval(X[:1])
    # standardised row 0 with the intercept: variance 100 + .01
    np.testing.assert_allclose(np.diff(ends)[0, 0] / 4, 2 * 1.6448536 * np.sqrt(100.01), rtol=1e-6)


def test_raw_coefficients_give_the_same_predictions() -> None:
    one = parts()
    coefficients, intercepts, covariance = UNITS.raw(one["mean"], one["covariance"])
    design = UNITS.design(X)
    np.testing.assert_allclose(
        X @ coefficients.T + intercepts, UNITS.outcome(design @ one["mean"].T)
    )
    rows = np.column_stack([np.ones(4), X])
    np.testing.assert_allclose(
        np.einsum("nf,kfg,ng->nk", rows, covariance, rows),
        16 * np.einsum("nf,kfg,ng->nk", design, one["covariance"], design),
    )


def test_units_are_moments_of_the_weighted_rows() -> None:
    rng = np.random.default_rng(0)
    x, y, times = rng.normal(size=(30, 2)) * [1, 9], rng.normal(size=30), rng.integers(0, 4, 30)
    rows = np.repeat(np.arange(30), times)
    units = units_of(x, y, times.astype(float), standardize=True, intercept=True)
    np.testing.assert_allclose(units.centre, x[rows].mean(axis=0))
    np.testing.assert_allclose(units.scale, x[rows].std(axis=0))
    np.testing.assert_allclose(units.target_scale, y[rows].std())
    plain = units_of(x, y, np.ones(30), standardize=False, intercept=False)
    assert plain.target_centre == 0 and (plain.centre == 0).all()
    np.testing.assert_allclose(plain.scale, np.sqrt(np.mean(x * x, axis=0)).max())
    np.testing.assert_allclose(plain.target_scale, np.sqrt(np.mean(y * y)))


def test_ids() -> None:
    assert as_ids([1.0, 2.0], 2, "entity").dtype == np.int64
    assert as_ids([1.5, 2.0], 2, "entity").dtype.kind == "U"
    assert as_ids(np.array([1, 2], dtype=object), 2, "entity").dtype == np.int64
    assert as_ids([1, "b"], 2, "entity").tolist() == ["1", "b"]
    assert as_ids(np.array([2**64 - 1, 1], dtype=np.uint64), 2, "e").tolist() == [
        str(2**64 - 1),
        "1",
    ]
    assert as_ids(pd.Series(["x", "y"], dtype="category"), 2, "e").tolist() == ["x", "y"]
    days = pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"]))
    assert [text[:10] for text in as_ids(days, 2, "e").tolist()] == ["2020-01-01", "2020-01-02"]
    for gap in (
        pd.Series(["x", None]),
        pd.Series([1, None], dtype="Int64"),
        days.where(days.index == 0),
        np.array([1.0, np.nan]),
    ):
        with pytest.raises(DataError, match="without an id"):
            as_ids(gap, 2, "entity")
    known = np.array(["a", "c"])
    assert places(known, np.array(["c", "b", "zz", "a"]), "agent").tolist() == [1, -1, -1, 0]
    codes, first = pair_codes(np.array([1, 0, 1, 0]), np.array(["x", "x", "x", "w"]))
    assert codes.tolist() == [2, 1, 2, 0] and first.tolist() == [3, 1, 0]


def test_tables_of_text_are_refused_without_a_value() -> None:
    predictor = LatentClassPredictor(**parts())
    for given in ({"X": [["canary", 1.0]]}, {"X": X[:1], "observed": ["canary"]}):
        with pytest.raises(DataError, match="must hold numbers") as error:
            predictor.predict(given.pop("X"), **given)
        assert "canary" not in str(error.value)

"""Kernel of trees against scikit-learn (bit for bit) and against a walk node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeRegressor

from consilience.exceptions import WireError
from consilience.numerics.trees import apply_link, predict_trees
from consilience.wire.codec import pack, unpack
from consilience.wire.estimators import encode
from tests.reference import trees_naive as naive

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 5))
X[:, 4] = np.round(X[:, 4])  # ties at thresholds
Y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.1 * RNG.normal(size=90)
TWO = (Y > 0).astype(int)
THREE = TWO + (Y > 1)
NEW = np.vstack([X, RNG.normal(size=(40, 5)) * 3, np.zeros((1, 5))])

REGRESSORS: list[Any] = [
    DecisionTreeRegressor(max_depth=4),
    DecisionTreeRegressor(max_leaf_nodes=9),  # best first: other order of nodes
    DecisionTreeRegressor(max_depth=1),
    ExtraTreeRegressor(random_state=0),
    RandomForestRegressor(15, random_state=0),
    ExtraTreesRegressor(15, random_state=0, max_features=2),
    GradientBoostingRegressor(n_estimators=15, random_state=0),
    GradientBoostingRegressor(n_estimators=9, init="zero", subsample=0.6, random_state=0),
    GradientBoostingRegressor(n_estimators=9, loss="huber", random_state=0),
    GradientBoostingRegressor(n_estimators=9, loss="quantile", alpha=0.3, random_state=0),
]
CLASSIFIERS: list[Any] = [
    DecisionTreeClassifier(max_depth=3),
    RandomForestClassifier(15, random_state=0, class_weight="balanced"),
    ExtraTreesClassifier(15, random_state=0),
    GradientBoostingClassifier(n_estimators=9, random_state=0),
]


@pytest.fixture(autouse=True)
def one_worker() -> Iterator[None]:
    """Of several threads a forest adds its trees up in the order they come."""
    with joblib.parallel_config("sequential"):
        yield


@pytest.mark.parametrize("model", REGRESSORS, ids=str)
def test_regressors_to_the_last_bit(model: Any) -> None:
    fitted = model.fit(X, Y)
    portable = unpack(pack(encode(fitted, n_features=5, classes=None)))
    assert portable["form"] == "trees"
    np.testing.assert_array_equal(predict_trees(portable, NEW)[:, 0], fitted.predict(NEW))


@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_classifiers_to_the_last_bit(model: Any, y: np.ndarray) -> None:
    fitted = model.fit(X, y)
    portable = unpack(pack(encode(fitted, n_features=5, classes=[0, 1, 2])))
    assert portable["form"] == "trees"
    np.testing.assert_array_equal(predict_trees(portable, NEW), fitted.predict_proba(NEW))


def test_exponential_loss() -> None:
    model = GradientBoostingClassifier(n_estimators=9, loss="exponential", random_state=0)
    portable = encode(model.fit(X, TWO), n_features=5, classes=[0, 1])
    np.testing.assert_array_equal(predict_trees(portable, NEW), model.predict_proba(NEW))


def test_against_a_walk_node_by_node() -> None:
    forest = RandomForestRegressor(7, random_state=1).fit(X, Y)
    portable = encode(forest, n_features=5, classes=None)
    np.testing.assert_allclose(predict_trees(portable, NEW), naive.forest(forest, NEW), rtol=1e-14)
    tree = DecisionTreeClassifier(max_depth=4).fit(X, THREE)
    portable = encode(tree, n_features=5, classes=[0, 1, 2])
    np.testing.assert_array_equal(predict_trees(portable, NEW), naive.forest(tree, NEW))
    boosted = GradientBoostingRegressor(n_estimators=8, random_state=1).fit(X, Y)
    portable = encode(boosted, n_features=5, classes=None)
    wanted = naive.boosting(boosted, NEW, [float(Y.mean())])
    np.testing.assert_allclose(predict_trees(portable, NEW), wanted, rtol=1e-12)
    boosted = GradientBoostingClassifier(n_estimators=8, random_state=1).fit(X, TWO)
    portable = encode(boosted, n_features=5, classes=[0, 1])
    share = TWO.mean()
    raw = naive.boosting(boosted, NEW, [float(np.log(share / (1 - share)))])
    wanted = np.array([naive.logistic(value[0]) for value in raw])
    np.testing.assert_allclose(predict_trees(portable, NEW), wanted, rtol=1e-9)


def test_links() -> None:
    raw = np.array([[0.3, -2.0, 700.0], [1.0, 2.0, 3.0]])
    wanted = [naive.softmax(row) for row in raw]
    np.testing.assert_allclose(apply_link(raw, "softmax"), wanted, rtol=1e-13)
    wanted = [naive.logistic(row[0]) for row in raw]
    np.testing.assert_allclose(apply_link(raw[:, :1], "logistic"), wanted, rtol=1e-13)
    wanted = [naive.logistic(2 * row[0]) for row in raw]
    np.testing.assert_allclose(apply_link(raw[:, :1], "double-logistic"), wanted, rtol=1e-13)
    assert apply_link(raw, "identity") is raw


def test_a_tree_without_a_split_and_no_rows() -> None:
    stump = DecisionTreeRegressor().fit(X, np.full(90, 2.5))
    portable = encode(stump, n_features=5, classes=None)
    np.testing.assert_array_equal(predict_trees(portable, NEW), np.full((len(NEW), 1), 2.5))
    mixed = RandomForestRegressor(5, min_samples_leaf=40, random_state=2).fit(X, Y)
    assert min(part.tree_.node_count for part in mixed.estimators_) == 1
    portable = encode(mixed, n_features=5, classes=None)
    np.testing.assert_array_equal(predict_trees(portable, NEW)[:, 0], mixed.predict(NEW))
    assert predict_trees(portable, NEW[:0]).shape == (0, 1)


def test_boosting_that_starts_from_a_model_is_no_set_of_trees() -> None:
    model = GradientBoostingRegressor(n_estimators=3, init=Ridge()).fit(X, Y)
    assert encode(model, n_features=5, classes=None)["form"] == "skops"


@pytest.mark.parametrize(
    ("key", "place", "value"),
    [("children", (0, 0), 0), ("children", (0, 1), 30_000), ("feature", 0, 5)],
)
def test_damaged_arrays_never_reach_the_kernel(key: str, place: Any, value: int) -> None:
    portable = encode(DecisionTreeRegressor(max_depth=3).fit(X, Y), n_features=5, classes=None)
    portable[key][place] = value
    with pytest.raises(WireError, match="cannot be evaluated"):
        predict_trees(portable, NEW)

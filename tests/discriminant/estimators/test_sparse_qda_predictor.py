"""The predictor that sites keep: row by row against a formula, kept as arrays, broken arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import SparseQDA
from consilience.discriminant.estimators.predictors import SparseQDAPredictor
from consilience.exceptions import DataError
from tests.discriminant.estimators.sparse_qda_data import blocks_table, scores


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """Seven columns, one of them left out; blocks of 3 and 2, one single feature."""
    rng = np.random.default_rng(0)
    roots = [rng.normal(size=(2, q, q + 3)) for q in (3, 2)]
    return {
        "means": rng.normal(size=(2, 6)),
        "log_priors": np.log([0.3, 0.7]),
        "scale": np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0]),
        "kept": np.array([0, 1, 3, 4, 5, 6]),
        "diagonal": np.where(np.arange(6) == 2, [[0.5], [2.0]], np.nan),
        "blocks": [np.array([0, 3, 5]), np.array([1, 4])],
        "precisions": [root @ root.transpose(0, 2, 1) for root in roots],
        "classes": np.array(["no", "yes"]),
        "n_features": 7,
    }


def dense(parts: dict[str, Any]) -> np.ndarray:
    full = np.stack([np.diag(np.nan_to_num(row)) for row in parts["diagonal"]])
    for block, precision in zip(parts["blocks"], parts["precisions"]):
        full[:, block[:, None], block[None, :]] = precision
    return full


@pytest.fixture
def predictor(parts: dict[str, Any]) -> SparseQDAPredictor:
    return SparseQDAPredictor(**parts, feature_names=list("abcdefg"))


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(75, 7))


def test_scores_by_hand(parts: Any, predictor: Any, rows: Any) -> None:
    scale = parts["scale"]
    expected = scores(
        rows[:, parts["kept"]] / scale, parts["means"] / scale, dense(parts), np.array([0.3, 0.7])
    )
    np.testing.assert_allclose(predictor.scores(rows), expected, rtol=1e-11)
    np.testing.assert_allclose(predictor.decision_function(rows), expected @ [-1, 1], rtol=1e-9)
    odds = np.exp(expected - expected.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        predictor.predict_proba(rows), odds / odds.sum(axis=1, keepdims=True), rtol=1e-10
    )
    assert predictor.predict(rows).tolist() == np.array(["no", "yes"])[expected.argmax(1)].tolist()


def test_rows_do_not_depend_on_their_batch(predictor: Any, rows: Any) -> None:
    together = predictor.scores(rows)
    alone = np.concatenate([predictor.scores(rows[i : i + 1]) for i in range(len(rows))])
    np.testing.assert_array_equal(together, alone)
    assert predictor.scores(rows[:0]).shape == (0, 2)


def test_same_as_the_kernel(rows: Any) -> None:
    x, y = blocks_table([50, 40, 30], 7, seed=3)
    fit = SparseQDA(alpha=0.05).fit(x, y)
    scaled, means = rows / fit.scale_, fit.means_ / fit.scale_
    apart = scaled[:, None, :] - means
    distance = np.einsum("nki,kij,nkj->nk", apart, fit.precision_.dense(), apart)
    expected = 0.5 * fit.precision_.log_det - 0.5 * distance + np.log(fit.priors_)
    np.testing.assert_allclose(fit.predictor_.scores(rows), expected, rtol=1e-10, atol=1e-10)


def test_arrays_hold_the_whole(predictor: Any, rows: Any) -> None:
    arrays = predictor.to_arrays()
    assert all(array.dtype.kind in "iuf" for array in arrays.values())
    again = SparseQDAPredictor.from_arrays(arrays)
    np.testing.assert_array_equal(again.scores(rows), predictor.scores(rows))
    assert again.classes_.tolist() == ["no", "yes"]
    assert again.feature_names_in_.tolist() == list("abcdefg")
    assert again.n_features_in_ == 7


def test_arrays_without_blocks_or_names() -> None:
    x, y = blocks_table([20, 20], 3, seed=4)
    fit = SparseQDA(alpha=10.0).fit(x, y + 1.0)
    again = SparseQDAPredictor.from_arrays(fit.predictor_.to_arrays())
    np.testing.assert_array_equal(again.predict(x), fit.predict(x))
    assert again.classes_.tolist() == [1, 2]
    assert not hasattr(again, "feature_names_in_")


def test_scaling_of_a_study(predictor: Any, rows: Any) -> None:
    scaling = np.stack([np.arange(7.0), np.full(7, 0.5), np.full(7, 2.0)])
    scaled = predictor.with_names(list("tuvwxyz"), scaling)
    holed = rows.copy()
    holed[3, 1] = np.nan
    filled = np.where(np.isnan(holed), scaling[0], holed)
    np.testing.assert_array_equal(scaled.scores(holed), predictor.scores((filled - 0.5) / 2.0))
    again = SparseQDAPredictor.from_arrays(scaled.to_arrays())
    np.testing.assert_array_equal(again.scores(holed), scaled.scores(holed))
    assert again.feature_names_in_.tolist() == list("tuvwxyz")
    with pytest.raises(DataError, match="missing or infinite"):
        predictor.scores(holed)


def test_tables_that_do_not_fit(predictor: Any, rows: Any) -> None:
    frame = pd.DataFrame(rows, columns=list("abcdefg"))
    np.testing.assert_array_equal(predictor.scores(frame), predictor.scores(rows))
    with pytest.raises(DataError, match="in this order"):
        predictor.scores(frame[list("gfedcba")])
    with pytest.raises(DataError, match="must have 7 columns"):
        predictor.scores(rows[:, :6])
    with pytest.raises(DataError, match="must hold numbers"):
        predictor.scores([["secret"] * 7])


@pytest.mark.parametrize(
    "change",
    [
        {"means": np.full((2, 6), np.inf)},
        {"means": np.zeros(6)},
        {"log_priors": np.log([0.3, 0.3, 0.4])},
        {"scale": np.zeros(6)},
        {"kept": np.array([0, 1, 3, 4, 5, 7])},
        {"kept": np.array([1, 0, 3, 4, 5, 6])},
        {"kept": np.array([-1, 1, 3, 4, 5, 6])},
        {"diagonal": np.full((2, 6), np.nan)},
        {"diagonal": np.full((2, 6), -1.0)},
        {"blocks": [np.array([0, 3, 5]), np.array([1, 5])]},
        {"blocks": [np.array([0, 3, 9]), np.array([1, 4])]},
        {"blocks": [np.array([0, 3]), np.array([1, 4])]},
        {"blocks": [np.array([0, 3, 5])]},
        {"precisions": [-np.stack([np.eye(3)] * 2), np.stack([np.eye(2)] * 2)]},
        {"precisions": [np.full((2, 3, 3), np.nan), np.stack([np.eye(2)] * 2)]},
        {"classes": np.array(["one"])},
        {"feature_names": ["a"]},
        {"scaling": np.ones((2, 7))},
        {"scaling": np.zeros((3, 7))},
    ],
)
def test_parts_that_do_not_fit(parts: Any, change: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        SparseQDAPredictor(**{**parts, **change})


def test_broken_arrays(predictor: Any) -> None:
    arrays = predictor.to_arrays()
    for name in arrays:
        if name == "features_text":  # then there are no names
            continue
        with pytest.raises(DataError):
            SparseQDAPredictor.from_arrays({k: v for k, v in arrays.items() if k != name})
        with pytest.raises(DataError):
            SparseQDAPredictor.from_arrays({**arrays, name: arrays[name][:-1]})
    for sizes in ([4, 1], [-1, 6], [[3, 2]], [0, 5]):
        with pytest.raises(DataError):
            SparseQDAPredictor.from_arrays({**arrays, "sizes": np.array(sizes)})

"""Tables of pandas, pyarrow and libraries that speak Arrow, such as polars, at every estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import Ridge

import consilience
from consilience import Columns, Federation, MeanAndSD

N = 60
_rng = np.random.default_rng(0)
_shift = 2.0 * (np.arange(N) % 2)[:, None]
NUMBERS = pd.DataFrame(_rng.normal(size=(N, 4)) + _shift, columns=list("abcd"))
GAPS = NUMBERS.mask(_rng.random(NUMBERS.shape) < 0.1)
TEXTS = pd.DataFrame({name: _rng.choice(["u", "v", "w"], N) for name in "abc"})
TEXTS.loc[3, "b"] = None
CLASSES = np.where(np.arange(N) % 2, "yes", "no")
SLOPE = NUMBERS["a"].to_numpy() + _rng.normal(size=N)

RANDOM = {"random_state": 0}
ESTIMATORS: dict[str, tuple[dict[str, Any], pd.DataFrame, Any]] = {
    "CommunityBayesClassifier": ({}, NUMBERS, CLASSES),
    "SparseQDA": ({"alpha": 0.1}, NUMBERS, CLASSES),
    "ReferenceAveragingClassifier": (RANDOM, NUMBERS, CLASSES),
    "ReferenceAveragingRegressor": ({**RANDOM, "estimator": Ridge()}, NUMBERS, SLOPE),
    "LatentClassAnalysis": ({"n_classes": 2, **RANDOM}, TEXTS, None),
    "MarkovMixture": ({"n_classes": 2, **RANDOM}, TEXTS, None),
    "ObservedKMeans": ({"n_clusters": 2, **RANDOM}, GAPS, None),
    "KPOD": ({"n_clusters": 2, **RANDOM}, GAPS, None),
    "HardImpute": ({"rank": 2}, GAPS, None),
    "OptSpace": ({"rank": 2}, GAPS, None),
    "ProbabilisticPCA": ({"rank": 2}, GAPS, None),
    "SoftImpute": ({"alpha": 1.0}, GAPS, None),
    "RankCV": ({"ranks": 2, **RANDOM}, GAPS, None),
}
ANY_ARROW = ("ReferenceAveragingClassifier", "ReferenceAveragingRegressor", "LatentClassAnalysis",
             "MarkovMixture")  # fmt: skip
"""Whose fit reads columns by name, and takes what scikit-learn would not."""


class Foreign:
    """A table of which nothing is known but the interface of Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def answer(estimator: Any, X: Any, y: Any) -> tuple[Any, list[str]]:
    fitted = estimator.fit(X) if y is None else estimator.fit(X, y)
    find = fitted.predict if hasattr(fitted, "predict") else fitted.transform
    return np.asarray(find(X)), list(fitted.feature_names_in_)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_table_is_a_table(name: str) -> None:
    settings, frame, y = ESTIMATORS[name]
    made = getattr(consilience, name)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    known, names = answer(made(**settings), frame, y)
    assert names == list(frame.columns)
    for given in (table, Foreign(table))[: 1 + (name in ANY_ARROW)]:
        found, same = answer(made(**settings), given, y)
        np.testing.assert_array_equal(found, known)
        assert same == names


def test_sites_may_have_tables_of_different_libraries() -> None:
    table = pa.Table.from_pandas(NUMBERS, preserve_index=False)
    federation = Federation.local(
        {"a": NUMBERS, "b": table, "c": Foreign(table)}, columns=Columns(features=tuple("abcd"))
    )
    frame = MeanAndSD().run(federation, seed=0).result.to_frame()
    np.testing.assert_allclose(frame["mean"], NUMBERS.mean())

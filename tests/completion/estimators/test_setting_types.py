"""Settings and tables of another kind than estimators take: a sentence, and no endless loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from sklearn.decomposition import PCA

from consilience import (
    KPOD,
    EMLift,
    HardImpute,
    NuclearNormCV,
    ObservedKMeans,
    OptSpace,
    ProbabilisticPCA,
    SoftImpute,
)
from consilience.completion.estimators.entry_input import check_settings
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries

X = np.random.default_rng(0).normal(size=(12, 5))
X[0, 0] = X[3, 2] = np.nan
ALL: dict[str, Any] = {
    "hard": HardImpute(1),
    "soft": SoftImpute(1.0),
    "optspace": OptSpace(1),
    "ppca": ProbabilisticPCA(1),
    "kmeans": ObservedKMeans(2, n_init=1, random_state=0),
    "kpod": KPOD(2, n_init=1, random_state=0),
    "lift": EMLift(PCA(1)),
}
every = pytest.mark.parametrize("name", list(ALL))


def refused(name: str, **settings: Any) -> str:
    estimator = type(ALL[name])(**{**ALL[name].get_params(deep=False), **settings})
    with pytest.raises(ParameterError) as caught:
        estimator.fit(X)
    return str(caught.value)


@every
@pytest.mark.parametrize("value", [None, "x", [1], {}, np.array([1, 2]), 10**30, True, object()])
def test_a_tolerance_is_a_number(name: str, value: Any) -> None:
    assert refused(name, tol=value).startswith("tol must be a number")


@every
@pytest.mark.parametrize("value", [None, "x", 1.5, float("nan"), [1], np.array([1, 2]), 10**30])
def test_steps_are_a_whole_number(name: str, value: Any) -> None:
    assert refused(name, max_iter=value).startswith("max_iter must be a whole number")


@pytest.mark.parametrize("value", ["x", 1.5, float("nan"), float("inf"), [1], True])
def test_a_limit_on_the_rank_is_a_whole_number_or_none(value: Any) -> None:
    assert "max_rank must be None or a whole number" in refused("soft", max_rank=value)


def test_other_kinds() -> None:
    assert "n_init must be a whole number" in refused("kmeans", n_init=10**30)
    for value in ("x", -1, 1.5, np.random.default_rng(0)):
        assert "random_state must be None, a whole number" in refused("kpod", random_state=value)
    for name, setting in (("hard", "start"), ("soft", "center"), ("lift", "accelerate")):
        assert "must be a single value" in refused(name, **{setting: np.array([1, 2])})


def test_none_where_it_is_the_default() -> None:
    check_settings(SoftImpute(max_rank=None))
    check_settings(NuclearNormCV(max_iter=None))
    with pytest.raises(ParameterError, match="max_iter must be a whole number"):
        check_settings(NuclearNormCV(max_iter="x"))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="tol must be a number"):
        check_settings(NuclearNormCV(tol=None))  # type: ignore[arg-type]


@every
def test_numbers_of_numpy_are_settings(name: str) -> None:
    settings = {"tol": np.float32(1e-2), "max_iter": np.int64(50)}
    check_settings(type(ALL[name])(**{**ALL[name].get_params(deep=False), **settings}))


# --------------------------------------------------------------------------- tables


@pytest.mark.parametrize("name", ["hard", "kmeans", "lift"])
def test_values_whose_squares_overflow_in_every_form(name: str) -> None:
    large = X.copy()
    large[1, 1] = 1e170
    entries = Entries.of(large)
    for table in (large, entries, coo_array((entries.values, (entries.rows, entries.columns)))):
        with pytest.raises(DataError, match="above 1e\\+100 in absolute value"):
            ALL[name].fit(table)


@pytest.mark.parametrize("table", [{"a": [1, 2]}, {1, 2}])
def test_tables_that_are_none(table: Any) -> None:
    with pytest.raises(DataError, match=r"must be a matrix or a data frame, but a (dict|set)"):
        HardImpute(1).fit(table)

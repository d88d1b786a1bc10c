"""When a refit is kept, and what is warned of."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from consilience import ReferenceAveragingClassifier, ReferenceAveragingRegressor
from consilience.averaging.tall.passes import held_out
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from tests.averaging.tall.tables import regression


def test_forests_fall_back_to_averaging() -> None:
    x, y = regression(200)
    forest = RandomForestRegressor(n_estimators=5)
    fitted = ReferenceAveragingRegressor(forest, n_splits=3, random_state=0)
    with pytest.warns(UserWarning, match="not a sum of losses"):
        fitted.fit(x, y)
    assert (fitted.reason_, fitted.chosen_round_, fitted.kept_) == ("not-separable", 0, False)
    plain = ReferenceAveragingRegressor(
        forest, n_splits=3, max_rounds=0, guard=False, random_state=0
    ).fit(x, y)
    # Where joblib gives a forest several threads it adds its trees up in the order they come.
    np.testing.assert_allclose(fitted.predict(x), plain.predict(x), rtol=1e-12)


def test_a_wrong_convention_is_seen_by_the_probe() -> None:
    x, y = regression(300)
    fitted = ReferenceAveragingRegressor(
        Ridge(alpha=300), convention="normalised", n_splits=3, random_state=0
    )
    with pytest.warns(UserWarning, match="not a sum of losses"):
        fitted.fit(x, y)
    assert fitted.history_["probes"].shape == (3, 2)


def few_rows_a_column(n: int = 4000, p: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Logistic splits of about four rows a column, where averages are far from the fit of all."""
    rng = stream(5, "few rows", n, p)
    x = rng.normal(size=(n, p))
    eta = x @ rng.normal(size=p) * 2 / np.sqrt(p)
    return x, (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(int)


def test_a_clear_gain_is_kept() -> None:
    x, y = few_rows_a_column()
    fitted = ReferenceAveragingClassifier(
        LogisticRegression(C=100.0, max_iter=500), n_splits=10, max_rounds=8, random_state=0
    ).fit(x, y)
    gain, error = (fitted.history_[k][0, fitted.chosen_round_] for k in ("gains", "gain_errors"))
    assert fitted.kept_ and fitted.reason_ == "gain" and fitted.chosen_round_ > 0
    assert gain < -error


def test_sites_that_agree_need_no_rounds() -> None:
    """Many rows for each column: nothing to gain, and the trial ends early."""
    x, y = regression(2000, 3)
    fitted = ReferenceAveragingRegressor(Ridge(), n_splits=4, random_state=0).fit(x, y)
    assert fitted.reason_ == "no-gain" and fitted.chosen_round_ == 0


def test_a_grid_needs_rows_to_hold_out() -> None:
    x, y = regression(120)
    settings: dict[str, Any] = {"n_splits": 6, "holdout": 0.05, "random_state": 0}
    with pytest.raises(DataError, match="penalties cannot be compared: give one penalty"):
        ReferenceAveragingRegressor(penalties=[1.0, 10.0], **settings).fit(x, y)
    forest = ReferenceAveragingRegressor(RandomForestRegressor(n_estimators=5), **settings)
    with pytest.warns(UserWarning, match="not a sum of losses"):
        assert forest.fit(x, y).reason_ == "not-separable"


def test_held_out_rows_are_few_and_of_every_split() -> None:
    sizes = [1000, 1000, 500]
    held = held_out(sizes, 0.2, 20_000, 1, seed=0)
    assert [len(rows) for rows in held] == [200, 200, 100]
    assert all(len(set(rows)) == len(rows) for rows in held)
    assert all(rows.max() < size for rows, size in zip(held, sizes, strict=True))
    assert sum(len(rows) for rows in held_out([10**6] * 4, 0.2, 20_000, 4, seed=0)) == 20_000
    # A grid of 50 penalties with 10 classes on 64 splits: predictions stay within 256 MB.
    many = held_out([10**6] * 64, 0.2, 20_000, 50 * 64 * 10, seed=0)
    assert 64 * 10 < sum(map(len, many)) <= 1048
    assert [len(rows) for rows in held_out([2, 1], 0.9, 10, 1, seed=0)] == [1, 0]


def said(estimator: Any, x: np.ndarray, y: np.ndarray) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        estimator.fit(x, y)
    return [str(w.message) for w in found if issubclass(w.category, UserWarning)]


def test_what_keeps_the_rounds_from_the_fit_of_all_rows_is_said() -> None:
    x, y = regression(200, 12)
    settings: dict[str, Any] = {"n_splits": 4, "max_rounds": 1, "random_state": 0}
    assert said(ReferenceAveragingRegressor(Ridge(), **settings), x, y) == []
    few = said(ReferenceAveragingRegressor(Ridge(), n_reference=6, **settings), x, y)
    assert len(few) == 1 and "rank 6 and the columns need 12" in few[0]
    assert "fewer rows than columns" in few[0]
    flat = x.copy()
    flat[:, 4] = flat[:, 5]
    given = said(ReferenceAveragingRegressor(Ridge(), reference=flat, **settings), x, y)
    assert len(given) == 1 and "rank 11 and the columns need 12" in given[0]
    # The same columns in the data need no more than that.
    assert said(ReferenceAveragingRegressor(Ridge(), **settings), flat, y) == []
    near = x.copy()
    near[:, 4] = near[:, 5] + 1e-7 * near[:, 4]
    ill = said(ReferenceAveragingRegressor(Ridge(), reference=near, **settings), x, y)
    assert len(ill) == 1 and "nearly dependent" in ill[0]


def test_splits_of_fewer_rows_than_columns_are_said() -> None:
    x, y = regression(60, 20)
    settings: dict[str, Any] = {"n_splits": 5, "max_rounds": 1, "random_state": 0}
    without = said(ReferenceAveragingRegressor(LinearRegression(), **settings), x, y)
    assert [s for s in without if "as few as 12 rows for 20 columns" in s]
    assert not [
        s for s in said(ReferenceAveragingRegressor(Ridge(), **settings), x, y) if "as few as" in s
    ]
    zero = said(ReferenceAveragingRegressor(Ridge(alpha=0.0), **settings), x, y)
    assert [s for s in zero if "as few as" in s]


def test_reference_rows_from_moments() -> None:
    x, y = regression(300)
    fitted = ReferenceAveragingRegressor(
        Ridge(), reference="moments", n_reference=80, n_splits=3, max_rounds=1, random_state=0
    ).fit(x, y)
    a = fitted.reference_
    assert a.shape == (80, 6)
    np.testing.assert_allclose(a.mean(axis=0), x.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(np.cov(a.T, bias=True), np.cov(x.T, bias=True), rtol=1e-8)


def test_reference_rows_of_the_table() -> None:
    x, y = regression(300)
    fitted = ReferenceAveragingRegressor(n_splits=7, n_reference=50, max_rounds=1, random_state=0)
    rows = {tuple(row) for row in x}
    a = fitted.fit(x, y).reference_
    assert a.shape == (50, 6) and {tuple(row) for row in a} <= rows
    assert len({tuple(row) for row in a}) == 50

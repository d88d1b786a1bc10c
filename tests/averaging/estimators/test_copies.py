"""Copies of rows in place of weights: nobody's own row is left out, whatever the rest weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LassoLars, Ridge

from consilience.averaging.estimators.proximal_fit import MOST_COPIES, Learner, copies_of, separable
from consilience.averaging.tall.reference_averaging import ReferenceAveragingRegressor
from consilience.exceptions import DataError

RHOS = (0.1, 1.0, 15.0, 100.0)


@pytest.mark.parametrize(
    ("own", "pseudo", "wanted"),
    [
        ([1, 1, 1], [2, 2], ([1, 1, 1], [2, 2], 1.0)),
        ([1, 1, 1], [0.5, 0.5], ([2, 2, 2], [1, 1], 2.0)),
        ([1, 1], [1.5, 1.5], ([2, 2], [3, 3], 2.0)),
        ([2, 1, 0], [], ([2, 1, 0], [], 1.0)),
        ([0.5, 1.5], [1.0], ([1, 3], [2], 2.0)),
        ([1, 1.5, 0], [0.25], ([4, 6, 0], [1], 4.0)),
        ([0.1] * 3, [3.0, 4.1], ([1, 1, 1], [30, 41], 10.0)),
    ],
)
def test_copies_are_exact_where_weights_are_whole(own: Any, pseudo: Any, wanted: Any) -> None:
    found = copies_of(np.asarray(own, dtype=float), np.asarray(pseudo, dtype=float))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    assert found[2] == pytest.approx(wanted[2])


def test_copies_are_near_where_weights_are_not_whole() -> None:
    own, pseudo = np.ones(200), np.full(50, np.pi)
    ours, theirs, unit = copies_of(own, pseudo)
    assert theirs.sum() / ours.sum() == pytest.approx(np.pi / 4, rel=0.01)
    assert ours.sum() == pytest.approx(200 * unit)
    assert ours.sum() + theirs.sum() <= 8 * 250
    small = copies_of(own, np.full(50, 1e-3))
    assert small[1].sum() <= 1


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize(("n", "m"), [(1000, 400), (1000, 100), (30, 500)])
def test_every_own_row_stays(rho: float, n: int, m: int) -> None:
    rng = np.random.default_rng(1)
    cases = [np.ones(n)]
    if rho < 60:  # uneven weights are met by up to two copies of a row, and ask for twice as many
        cases.append(np.r_[np.zeros(3), rng.uniform(0.5, 1.0, size=n - 3)])
    for own in cases:
        pseudo = rho * own.sum() * rng.dirichlet(np.full(m, 5.0))
        ours, theirs, per_weight = copies_of(own, pseudo)
        assert (ours[own > 0] >= 1).all()
        assert (ours[own == 0] == 0).all()
        assert per_weight * own[own > 0].min() >= 1.0 - 1e-12
        assert ours.sum() == pytest.approx(per_weight * own.sum(), abs=8.0)
        assert (theirs[per_weight * pseudo >= 0.5] >= 1).all()
        assert np.abs(theirs - per_weight * pseudo).max() < 1.0 + 1e-9
        assert ours.sum() + theirs.sum() <= MOST_COPIES * (n + m)


def test_own_rows_weigh_the_same_against_each_other_in_every_fit() -> None:
    """Two answers must not differ by one row: own copies change by whole factors only."""
    rng = np.random.default_rng(2)
    for n, m in ((100, 20), (100, 500)):
        for own in (np.ones(n), rng.uniform(0.5, 2.0, size=n)):
            alone = copies_of(own, np.empty(0))[0]
            # Weights of pseudo-rows just off one own row's, where a row too many would be cheap.
            near = m / n / (1.0 + np.arange(1, 6) / n)
            for rho in (*near, *rng.uniform(0.01, 15.0, size=40)):
                ours = copies_of(own, np.full(m, rho * n / m))[0]
                np.testing.assert_array_equal(ours, ours[0] // alone[0] * alone)


def test_weights_that_rounding_brings_below_one_copy() -> None:
    for weight in (0.1, 1 / 3, 0.7, 1e-7, 3e5):
        ours, _, _ = copies_of(np.full(2000, weight), np.full(7, weight * 1.3))
        assert ours.min() == ours.max() >= 1


def test_totals_are_kept_where_pseudo_rows_weigh_little() -> None:
    """Predictions of many levels: most rows of a level weigh next to nothing."""
    own, pseudo = np.ones(50), np.r_[np.full(400, 0.05), np.full(10, 3.0)]
    _, theirs, per_weight = copies_of(own, pseudo)
    assert theirs.sum() == pytest.approx(per_weight * pseudo.sum(), abs=1.0)
    assert (theirs[400:] >= 3).all()


# --------------------------------------------------------------------------- bounds


def test_the_default_rounds_stay_below_the_cap() -> None:
    p = 5
    for n in (30, 100_000):
        pseudo = np.full(20 * p, 100**0.9 * n / (20 * p))
        ours, theirs, _ = copies_of(np.ones(n), pseudo)
        assert ours.min() == 1
        assert theirs.sum() == pytest.approx(pseudo.sum(), abs=1.0)


@pytest.mark.parametrize("rho", [799.0, 1e300, np.inf, np.nan])
def test_more_copies_than_the_cap(rho: float) -> None:
    with pytest.raises(DataError, match=r"too many copies.*smaller rho or fewer rounds, more"):
        copies_of(np.ones(500), np.full(100, rho * 5))
    # Memory is a multiple of the rows that go in: reference rows make room.
    if rho == 799.0:
        assert copies_of(np.ones(500), np.full(5000, rho / 10))[0].min() == 1


@pytest.mark.parametrize("least", [1e-3, 5e-324])
def test_own_weights_that_differ_too_much(least: float) -> None:
    with pytest.raises(DataError, match=r"too many copies of rows.*nearer to each other"):
        copies_of(np.r_[np.ones(500), least], np.ones(3))


def test_weights_that_are_all_zero() -> None:
    with pytest.raises(DataError, match="positive weight"):
        copies_of(np.zeros(3), np.ones(2))


# --------------------------------------------------------------------------- fits


class Plain(RegressorMixin, BaseEstimator):
    """A learner of somebody's own, without weights; it says how many rows it saw."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, x: Any, y: Any) -> Any:
        self.inner_, self.seen_ = Ridge(self.alpha).fit(x, y), x
        return self

    def predict(self, x: Any) -> Any:
        return self.inner_.predict(x)


_rng = np.random.default_rng(20)
N, P, M = 90, 3, 40
X, A = _rng.normal(size=(N, P)), 1.2 * _rng.normal(size=(M, P))
Y = X @ [1.0, -0.5, 0.2] + 0.7 + _rng.normal(size=N)
TARGET = (A @ [0.7, -0.2, 0.1] + 0.3)[:, None]
WEIGHT = _rng.integers(1, 4, size=N).astype(float)


def learner_of(estimator: Any) -> Learner:
    return Learner(
        estimator, task="regression", reference=A, n_total=400.0, convention="sum", seed=4
    )


def test_copies_stand_for_weights_in_a_fit() -> None:
    """A learner that takes no weights, against the same with them; rho makes copies whole."""
    rho = 2.0 * M / N
    with_weights = learner_of(Ridge(25.0)).fit(X, Y, target=TARGET, rho=rho)
    learner = learner_of(Plain(25.0))
    without = learner.fit(X, Y, target=TARGET, rho=rho)
    np.testing.assert_allclose(without.predict(A), with_weights.predict(A), atol=1e-10)
    plain = learner.fit(X, Y, weight=WEIGHT)
    weighted = learner_of(Ridge(25.0)).fit(X, Y, weight=WEIGHT)
    np.testing.assert_allclose(plain.predict(A), weighted.predict(A), atol=1e-10)
    change, permuted = learner.probe(X, Y, rng=np.random.default_rng(1))
    assert change < 1e-6
    assert separable(change, permuted)


@pytest.mark.parametrize("rho", RHOS)
def test_a_fit_sees_every_own_row(rho: float) -> None:
    fitted = learner_of(Plain()).fit(X, Y, target=TARGET, rho=rho)
    assert {tuple(row) for row in X} <= {tuple(row) for row in fitted.seen_}
    # Memory grows with the copies, (1 + rho) n and a little, and no faster.
    assert len(fitted.seen_) <= max(8 * (N + M), (1 + rho) * N + 1)


def test_rounds_come_closer_to_the_pooled_fit() -> None:
    """Copies as near as this do not keep a learner without weights from the fit of all rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3200, 10))
    y = x @ rng.normal(size=10) * 0.3 + 0.5 * x[:, 0] ** 2 + 3 * rng.normal(size=3200)
    lasso = LassoLars(alpha=0.02)
    pooled = lasso.fit(x, y).coef_
    distances = []
    for rounds in (0, 5, 20):
        found = ReferenceAveragingRegressor(
            lasso, n_splits=16, max_rounds=rounds, guard=False, random_state=0, n_reference=100
        ).fit(x, y)
        distances.append(np.linalg.norm(found.coef_ - pooled) / np.linalg.norm(pooled))
    assert distances[1] < 0.8 * distances[0]
    assert distances[2] < 0.7 * distances[1]

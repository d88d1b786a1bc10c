"""The rounds against the textbook, and against the other door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from consilience import (
    Columns,
    Federation,
    Preparation,
    ReferenceAveragingClassifier,
    ReferenceAveragingRegressor,
)
from consilience.averaging.estimators.proximal_fit import Learner
from consilience.averaging.protocol import ReferenceAveraging
from consilience.numerics.random import stream
from tests.averaging.tall.tables import classes, frame, regression
from tests.reference import reference_averaging as textbook

B = 4


def dealt(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The splits of a table in memory."""
    return [(x[b::B], y[b::B]) for b in range(B)]


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_ridge_is_the_textbook(rounds: int) -> None:
    x, y = regression(203)
    a = stream(3, "reference").normal(size=(30, 6)) * 2
    lam, rho = 0.1, 0.7
    found = ReferenceAveragingRegressor(
        Ridge(alpha=lam * len(x), fit_intercept=False),
        n_splits=B,
        reference=a,
        rho=rho,
        max_rounds=rounds,
        guard=False,
        random_state=0,
    ).fit(x, y)
    scale = float((x**2).sum() / len(x) / ((a**2).sum() / len(a)))
    rhos = textbook.adaptive_rhos(rounds, rho * scale)
    averages, fits = textbook.ridge_rounds(dealt(x, y), a, lam, rhos)
    np.testing.assert_allclose(found.coef_, averages[-1], rtol=1e-9)
    for model, beta in zip(found.estimators_, fits[-1], strict=True):
        np.testing.assert_allclose(model.coef_, beta, rtol=1e-8)


@pytest.mark.parametrize("schedule", ["fixed", "asynchronous"])
def test_fixed_weights_reach_the_fixed_point(schedule: str) -> None:
    x, y = regression(180)
    a = x[::3]
    lam, rho = 0.2, 0.5
    found = ReferenceAveragingRegressor(
        Ridge(alpha=lam * len(x), fit_intercept=False),
        n_splits=B,
        reference=a,
        schedule=schedule,
        rho=rho,
        exponent=0.0,
        max_rounds=400,
        guard=False,
        random_state=0,
    ).fit(x, y)
    scale = float((x**2).sum() / len(x) / ((a**2).sum() / len(a)))
    expected = textbook.ridge_fixed_point(dealt(x, y), a, rho * scale, lam)
    np.testing.assert_allclose(found.coef_, expected, rtol=1e-8)


def test_growing_weights_have_one_limit_whatever_the_paces() -> None:
    """Weights by each split's own count would leave slow splits with more say."""
    x, y = regression(120)
    pooled = Ridge(alpha=5).fit(x, y)
    settings: dict[str, Any] = {"n_splits": B, "guard": False, "random_state": 4}
    away = []
    for rounds in (0, 20, 300):
        found = ReferenceAveragingRegressor(
            Ridge(alpha=5), schedule="asynchronous", max_rounds=rounds, **settings
        ).fit(x, y)
        away.append(float(np.linalg.norm(found.coef_ - pooled.coef_)))
    # rho = 170 in round 300; with own counts the distance stays near that of averaging.
    assert away[2] < 0.05 * away[0] and away[2] < away[1]


def test_history_says_what_happened() -> None:
    x, y = regression(200)
    found = ReferenceAveragingRegressor(
        Ridge(), n_splits=B, max_rounds=6, guard=False, random_state=0
    ).fit(x, y)
    history = found.history_
    assert history["rhos"].shape == history["movement"].shape == (7,)
    assert history["influence"].shape == (7, B)
    assert history["rhos"][0] == 0
    np.testing.assert_allclose(history["rhos"][1:], history["rho_scale"] * np.arange(1, 7) ** 0.9)
    assert (np.diff(history["movement"][1:]) < 0).all()


def sites_of(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {f"s{b}": frame(*rows) for b, rows in enumerate(dealt(x, y))}


@pytest.mark.parametrize("rounds", [0, 3])
def test_both_doors_are_one_method(rounds: int) -> None:
    x, y = regression(400)
    a = stream(3, "reference").normal(size=(40, 6)) * 2
    settings: dict[str, Any] = {"max_rounds": rounds, "guard": False, "reference": a}
    tall = ReferenceAveragingRegressor(Ridge(alpha=20), n_splits=B, random_state=0, **settings)
    tall.fit(x, y)
    names = [f"x{j}" for j in range(6)]
    federation = Federation.local(
        sites_of(x, y),
        columns=Columns(features=names, target="y"),
        preparation=Preparation(standardize="none"),
        policy="simulation",
    )
    result = federation.run(
        ReferenceAveraging(estimator=Ridge(alpha=20), **settings), seed=0
    ).result
    np.testing.assert_allclose(np.ravel(result.slopes), tall.coef_, rtol=1e-10)
    np.testing.assert_allclose(np.ravel(result.intercepts), tall.intercept_, rtol=1e-10)


def test_both_doors_are_one_method_for_classes() -> None:
    x, y = classes(400)
    a = stream(3, "reference").normal(size=(40, 5))
    settings: dict[str, Any] = {"max_rounds": 3, "guard": False, "reference": a}
    # Quadratic steps: those of lbfgs end 1e-9 apart where memory is aligned in another way.
    learner = LogisticRegression(C=0.2, solver="newton-cholesky", tol=1e-12)
    tall = ReferenceAveragingClassifier(learner, n_splits=B, random_state=0, **settings).fit(x, y)
    names = [f"x{j}" for j in range(5)]
    federation = Federation.local(
        sites_of(x, y),
        columns=Columns(features=names, target="y", levels={"y": ["ash", "birch"]}),
        preparation=Preparation(standardize="none"),
        policy="simulation",
    )
    result = ReferenceAveraging(estimator=learner, **settings).run(federation, seed=0).result
    np.testing.assert_allclose(np.ravel(result.slopes)[-5:], np.ravel(tall.coef_), rtol=1e-10)


def federated(x: np.ndarray, y: np.ndarray, **settings: Any) -> Any:
    """Result of the method over the same splits."""
    federation = Federation.local(
        sites_of(x, y),
        columns=Columns(features=[f"x{j}" for j in range(x.shape[1])], target="y"),
        preparation=Preparation(standardize="none"),
        policy="simulation",
    )
    return federation.run(ReferenceAveraging(**settings), seed=0).result


def test_the_trial_has_the_penalty_of_the_rounds_on_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In both doors: of a penalty for each mean loss nothing depends on what is held out."""
    x, y = regression(400)
    true = Learner.fit
    seen: set[tuple[int, float]] = set()

    def fit(self: Learner, rows: Any, response: Any, **more: Any) -> Any:
        fitted = true(self, rows, response, **more)
        seen.add((len(rows), round(fitted.alpha / len(rows), 12)))
        return fitted

    monkeypatch.setattr(Learner, "fit", fit)
    settings: dict[str, Any] = {
        "estimator": Ridge(alpha=20),
        "reference": stream(3, "reference").normal(size=(40, 6)) * 2,
        "max_rounds": 2,
    }
    ReferenceAveragingRegressor(n_splits=B, random_state=0, **settings).fit(x, y)
    tall, seen = seen, set()
    federated(x, y, **settings)
    assert tall == seen == {(80, 0.05), (100, 0.05)}


def test_both_doors_keep_the_last_round_where_nothing_is_held_out() -> None:
    x, y = regression(400)
    settings: dict[str, Any] = {
        "estimator": Ridge(alpha=20),
        "reference": stream(3, "reference").normal(size=(40, 6)) * 2,
        "max_rounds": 3,
        "holdout": 0.005,  # of a hundred rows
    }
    tall = ReferenceAveragingRegressor(n_splits=B, random_state=0, **settings).fit(x, y)
    result = federated(x, y, **settings)
    assert tall.reason_ == result.reason == "not-measured"
    assert tall.chosen_round_ == result.chosen_round == 3
    assert tall.kept_ and result.kept
    assert tall.history_["probes"].shape == (3, 2)
    np.testing.assert_allclose(np.ravel(result.slopes), tall.coef_, rtol=1e-10)

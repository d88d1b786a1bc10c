"""Selection at one site: halves, refit, cross-fitting, and candidates that cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from consilience.collaborators import local_selection
from consilience.collaborators.local_selection import Selection, predict, select
from consilience.exceptions import ParameterError
from consilience.learners.candidates import as_text, constant_prediction, label, record_losses

RNG = np.random.default_rng(4)
X = RNG.normal(size=(61, 3))
Y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.5 * RNG.normal(size=61)
LEVELS = np.searchsorted([1.0, 5.0], Y).astype(float)


def accept_all(fitted: Any, x: np.ndarray) -> tuple[Any, str | None]:
    return ("form", len(x)), None


def chosen(
    candidates: tuple[str, ...], x: np.ndarray = X, y: np.ndarray = Y, **settings: Any
) -> Selection:
    given: dict[str, Any] = {
        "loss": "squared",
        "n_outputs": 1,
        "min_records": 1,
        "accept": accept_all,
        "rng": np.random.default_rng(11),
        "draws": np.random.default_rng(12),
        **settings,
    }
    return select(x, y, candidates=candidates, **given)


def test_halves_refit_and_folds() -> None:
    """One permutation of the stream for the halves (the odd row trains), one for the folds."""
    found = chosen(("linear(fit_intercept=False)", "linear"))
    rng = np.random.default_rng(11)
    order = rng.permutation(61)
    train, test = order[:31], order[31:]
    assert found.half_losses.shape == (30, 2)
    for c, model in enumerate((LinearRegression(fit_intercept=False), LinearRegression())):
        model.fit(X[train], Y[train])
        np.testing.assert_allclose(found.half_losses[:, c], (Y[test] - model.predict(X[test])) ** 2)
    assert found.chosen == 1
    np.testing.assert_allclose(found.fitted.coef_, LinearRegression().fit(X, Y).coef_)
    assert found.accepted == ("form", 61)
    own = np.empty(61)
    for fold in np.array_split(rng.permutation(61), 10):
        others = np.delete(np.arange(61), fold)
        model = LinearRegression().fit(X[others], Y[others])
        own[fold] = (Y[fold] - model.predict(X[fold])) ** 2
    np.testing.assert_allclose(found.own_losses, own)
    assert found.refused == {}


def test_no_row_is_cross_fitted_by_itself() -> None:
    """A tree that grows to single rows has no loss on rows that it saw."""
    found = chosen(("decision-tree(max_depth=None, min_samples_leaf=1)",))
    assert (found.fitted.predict(X) == Y).all()
    assert (found.own_losses > 0).all()


def test_ties_go_to_the_first() -> None:
    assert chosen(("linear", "linear(copy_X=False)")).chosen == 0
    assert chosen(("linear(copy_X=False)", "linear")).chosen == 0


def test_candidates_that_fail_are_named() -> None:
    found = chosen(("lasso(cv=1)", "random-forest(max_depth='deep')", "linear"))
    assert found.chosen == 2
    assert set(found.refused) == {"lasso(cv=1)", "random-forest(max_depth='deep')"}
    assert set(found.refused.values()) == {"it failed to fit on half of the rows"}
    assert np.isnan(found.half_losses[:, :2]).all()
    nobody = chosen(("lasso(cv=1)",))
    assert nobody.chosen == -1
    assert nobody.fitted is None
    assert np.isnan(nobody.own_losses).all()


class Wild(LinearRegression):
    """Not finite where it has not been fitted on all rows, or everywhere."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        found = super().predict(X)
        found[0] = np.inf
        return found


def with_builders(monkeypatch: pytest.MonkeyPatch, **made: Any) -> None:
    """Put estimators of a test in the place of names."""
    monkeypatch.setattr(local_selection, "build", lambda text, task, **_: made[text]())


def test_predictions_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    with_builders(monkeypatch, ridge=Wild, linear=LinearRegression)
    found = chosen(("ridge", "linear"))
    assert found.chosen == 1
    assert found.refused == {"ridge": "it predicted values that are not finite"}
    assert np.isnan(found.half_losses[:, 0]).all()


def test_failures_on_all_rows_leave_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moody(LinearRegression):
        def fit(self, X: np.ndarray, y: np.ndarray) -> Any:
            if len(X) > 40:
                raise ValueError("secret value 123.4")
            return super().fit(X, y)

    class Poor(LinearRegression):
        def predict(self, X: np.ndarray) -> np.ndarray:
            return super().predict(X) + 1.0

    with_builders(monkeypatch, ridge=Moody, linear=Poor)
    found = chosen(("ridge", "linear"))
    assert found.chosen == 1
    assert found.refused == {"ridge": "it failed to fit on all rows"}
    with_builders(monkeypatch, ridge=Moody)
    assert chosen(("ridge",)).chosen == -1


def test_a_fault_leaves_the_next_best() -> None:
    def accept(fitted: Any, x: np.ndarray) -> tuple[Any, str | None]:
        return None, "it is too good" if getattr(fitted, "fit_intercept", True) else None

    found = chosen(("linear", "linear(fit_intercept=False)"), accept=accept)
    assert found.chosen == 1
    assert found.refused == {"linear": "it is too good"}
    assert np.isfinite(found.half_losses).all()
    assert chosen(("linear",), accept=accept).chosen == -1


def test_known_refusals_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    with_builders(monkeypatch, linear=LinearRegression)
    found = chosen(("knn", "linear"), known={"knn": "it carries rows"})
    assert found.chosen == 1
    assert found.refused == {"knn": "it carries rows"}
    assert chosen(("knn",), known={"knn": "it carries rows"}).chosen == -1


def test_a_wrong_candidate_is_an_error_of_the_study() -> None:
    with pytest.raises(ParameterError, match="is not for regression"):
        chosen((as_text(LogisticRegression()),))


def test_draws_come_from_their_stream() -> None:
    text = "random-forest(n_estimators=3)"
    first, same = chosen((text,)), chosen((text,))
    other = chosen((text,), draws=np.random.default_rng(99))
    np.testing.assert_array_equal(first.own_losses, same.own_losses)
    assert not np.array_equal(first.own_losses, other.own_losses)
    assert first.fitted.random_state != other.fitted.random_state


def test_leaves_hold_the_records_of_the_site() -> None:
    forest = as_text(RandomForestRegressor(n_estimators=3, min_samples_leaf=1))
    found = chosen((forest,), min_records=12)
    assert found.fitted.min_samples_leaf == 12
    assert label(forest).startswith("RandomForestRegressor(")


def test_few_rows() -> None:
    for n in (2, 3, 5):
        found = chosen(("linear",), X[:n], Y[:n])
        assert found.chosen == 0
        assert np.isfinite(found.own_losses).all()
    assert chosen(("linear",), X[:1], Y[:1]).chosen == -1


@pytest.mark.parametrize("loss", ["brier", "log"])
def test_levels_that_training_rows_lack_have_no_chance(loss: str) -> None:
    y = LEVELS.copy()
    y[y == 1] = 2.0
    found = chosen(("linear", "decision-tree"), y=y, loss=loss, n_outputs=3)
    assert found.chosen >= 0
    chances = predict(found.fitted, X, 3)
    assert chances.shape == (61, 3)
    assert (chances[:, 1] == 0).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert np.isfinite(found.own_losses).all()


def test_losses() -> None:
    y = np.array([0.0, 2.0, 1.0])
    p = np.array([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    brier = [sum((p[i, k] - (k == y[i])) ** 2 for k in range(3)) for i in range(3)]
    np.testing.assert_allclose(record_losses("brier", y, p), brier)
    log = record_losses("log", y, p)
    np.testing.assert_allclose(log, -np.log((p[[0, 1, 2], [0, 2, 1]] + 0.005) / 1.015))
    assert np.isfinite(log).all()
    np.testing.assert_allclose(record_losses("squared", y, p[:, :1]), (y - p[:, 0]) ** 2)
    with pytest.raises(ParameterError, match="loss"):
        record_losses("hinge", y, p)
    np.testing.assert_allclose(constant_prediction(y, 3), np.full((3, 3), 1 / 3))
    np.testing.assert_allclose(constant_prediction(y, 1), np.ones((3, 1)))
    # The shares are the best constant under both proper losses.
    y = np.array([0.0, 0, 0, 1, 2])
    for loss in ("brier", "log"):
        best = record_losses(loss, y, constant_prediction(y, 3)).mean()
        for other in np.random.default_rng(0).dirichlet([6, 2, 2], size=50):
            # The log loss has a floor, by which its best constant is a little off the shares.
            assert best <= record_losses(loss, y, np.tile(other, (5, 1))).mean() + 1e-3

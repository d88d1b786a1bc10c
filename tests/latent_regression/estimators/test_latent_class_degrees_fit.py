"""Degrees inside classes of the estimator: recovery, the mixed model, predictions, what is kept."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as t_noise

from consilience import LatentClassRegressor
from consilience.exceptions import ParameterError
from consilience.latent_regression.estimators.latent_class_predictor import LatentClassPredictor
from consilience.numerics.random import stream

TRUE = np.array([[1.0, 0.5], [-1.0, -0.5], [0.0, 2.0]])
UNLIKE = (0.3, 0.6, 1.2)
"""Noise of three classes."""


def grouped(
    seed: int,
    n_classes: int,
    n_entities: int = 90,
    *,
    own: float = 0.7,
    df: float = np.inf,
    scale: Any = 0.5,
) -> dict[str, Any]:
    """Entities of six events in classes, with own intercepts and t noise, of one scale or more."""
    rng = stream(seed, "grouped")
    entity = np.repeat(np.arange(n_entities), 6)
    x = rng.standard_normal((len(entity), 2))
    kind = np.arange(n_entities) % n_classes
    intercepts = own * rng.standard_normal(n_entities)
    noise = rng.standard_normal(len(entity))
    if np.isfinite(df):
        noise /= np.sqrt(rng.chisquare(df, len(entity)) / df)
    noise *= np.broadcast_to(scale, n_classes)[kind][entity]
    y = 3.0 + (x * TRUE[kind][entity]).sum(axis=1) + intercepts[entity] + noise
    return {"x": x, "y": y, "entity": entity, "kind": kind, "noise": noise}


def fitted(t: dict[str, Any], n_classes: int | str = "auto", **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LatentClassRegressor(n_classes, random_state=0, **settings)
        return model.fit(t["x"], t["y"], entity=t["entity"])


@pytest.mark.parametrize(
    ("n_classes", "df", "settings"),
    [
        (1, np.inf, {"random_effects": "intercept"}),
        (1, 3.0, {"random_effects": "intercept", "noise": "t"}),
        (3, np.inf, {"random_effects": "intercept"}),
        (3, np.inf, {"random_effects": "slopes"}),
        (3, 3.0, {"random_effects": "intercept", "noise": "t"}),
    ],
)
def test_classes_are_found_where_plain_ones_are_split(
    n_classes: int, df: float, settings: dict[str, Any]
) -> None:
    """In both of two tables; classes without degrees are more in all of them."""
    for seed in range(2):
        t = grouped(seed, n_classes, df=df)
        model = fitted(t, **settings)
        assert model.n_classes_ == n_classes
        assert fitted(t, n_restarts=1).n_classes_ > n_classes
        if n_classes > 1:
            assert model.evidence_.verdict == "kinds"
            kinds = [np.bincount(t["kind"][model.labels_ == k]) for k in range(3)]
            assert sum(each.max() for each in kinds) >= 0.95 * 90
        if np.isfinite(df):
            # scale and degrees of freedom go up together: quartiles, beside those of true noise
            found = model.sigma_ * t_noise.ppf(0.75, model.noise_df_)
            nu, _, scale = t_noise.fit(t["noise"], floc=0)
            assert found == pytest.approx(scale * t_noise.ppf(0.75, nu), rel=0.15)
            assert model.noise_df_ < 10.0


def test_classes_with_noise_of_their_own_are_found() -> None:
    """In five of six tables at least (9 of 10 were measured), where one noise splits classes."""
    right = split = 0
    for seed in range(6):
        t = grouped(seed, 3, 120, own=0.0, scale=UNLIKE)
        model = fitted(t, noise_by_class=True, n_restarts=2)
        split += fitted(t, n_restarts=1).n_classes_ > 3
        if model.n_classes_ != 3:
            continue
        right += 1
        assert model.evidence_.verdict == "kinds"
        order = [np.argmax(model.labels_ == k) % 3 for k in range(3)]
        # of 240 events each: errors of 5%
        np.testing.assert_allclose(model.sigma_[np.argsort(order)], UNLIKE, rtol=0.2)
        assert (model.trace_["sigma"][-20:] < 1.0).all()
        kinds = [np.bincount(t["kind"][model.labels_ == k]) for k in range(3)]
        assert sum(each.max() for each in kinds) >= 0.95 * 120
    assert right >= 5
    assert split >= 5


def test_intervals_cover_in_classes_of_any_noise() -> None:
    """Of 90%, events that were left out, of each kind; one noise covers too much or too little."""
    t = grouped(11, 3, 300, own=0.0, scale=UNLIKE)
    known = np.tile(np.arange(6) < 4, 300)
    part = {name: t[name][known] for name in ("x", "y", "entity")}
    new = {"entity": t["entity"][~known]}
    covered = []
    for by_class in (True, False):
        model = fitted(part, 3, noise_by_class=by_class, n_restarts=1)
        low, high = model.predict_interval(t["x"][~known], **new).T
        inside = ((t["y"][~known] > low) & (t["y"][~known] < high)).reshape(-1, 2).mean(axis=1)
        covered.append([inside[t["kind"] == k].mean() for k in range(3)])
        if by_class:  # 200 events of each kind: errors of .021
            assert np.abs(np.array(covered[0]) - 0.9).max() < 0.065
            drawn = model.sample(t["x"][~known], 400, random_state=0, **new)
            below = (drawn < low).mean(axis=0).reshape(-1, 2).mean(axis=1)
            for k in range(3):
                assert below[t["kind"] == k].mean() == pytest.approx(0.05, abs=0.006)
    assert covered[1][0] > 0.98 and covered[1][2] < 0.8


def test_one_class_is_a_mixed_model() -> None:
    """Coefficients, their errors, both variances and own intercepts beside statsmodels."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    t = grouped(5, 1, 200)
    model = fitted(t, 1, random_effects="intercept", n_average=400, n_restarts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        design = np.column_stack([np.ones(len(t["y"])), t["x"]])
        other = MixedLM(t["y"], design, t["entity"]).fit(reml=True)
    found = np.concatenate([model.intercept_, model.coef_[0]])
    # the prior of coefficients shrinks by some 1/n; the average is over 400 draws
    np.testing.assert_allclose(found, other.fe_params, atol=0.1 * other.bse_fe.max())
    errors = np.sqrt(np.diagonal(model.coef_covariance_[0]))
    np.testing.assert_allclose(errors, other.bse_fe, rtol=0.05)
    assert model.sigma_ == pytest.approx(np.sqrt(other.scale), rel=0.01)
    between = model.random_covariance_
    assert between[0, 0] == pytest.approx(other.cov_re[0, 0], rel=0.06)
    assert not between[1:].any() and not between[:, 1:].any()
    blups = np.array([other.random_effects[e].iloc[0] for e in range(200)])
    np.testing.assert_allclose(model.random_effects_[:, 0], blups, atol=0.02)


def test_intervals_of_known_and_new_entities_cover() -> None:
    """Of 90%, events that were left out, with three standard errors over entities."""
    for df in (np.inf, 3.0):
        t = grouped(7, 3, 300, df=df)
        known = np.tile(np.arange(6) < 4, 300) & (t["entity"] < 200)
        part = {name: t[name][known] for name in ("x", "y", "entity")}
        noise = "normal" if np.isinf(df) else "t"
        model = fitted(part, 3, random_effects="intercept", noise=noise, n_restarts=2)
        observed = np.where(np.tile(np.arange(6) < 4, 300), t["y"], np.nan)
        given = {"entity": t["entity"], "observed": observed}
        low, high = model.predict_interval(t["x"], **given).T
        inside = (t["y"] > low) & (t["y"] < high)
        new = t["entity"] >= 200
        for rows in (~known & ~new, np.isnan(observed) & new):
            each = inside[rows].reshape(-1, 2).mean(axis=1)
            assert abs(each.mean() - 0.9) < 3 * each.std(ddof=1) / np.sqrt(len(each))
        # own intercepts of entities that were not in the fit are learned from their events
        rows = np.isnan(observed) & new
        error = model.predict(t["x"], **given)[rows] - t["y"][rows]
        none = model.predict(t["x"], entity=t["entity"])[rows] - t["y"][rows]
        assert np.mean(error**2) < 0.7 * np.mean(none**2)
        # quantiles of samples are those of intervals
        drawn = model.sample(t["x"], 400, random_state=0, **given)
        below = (drawn < low).mean(axis=0)
        assert below.mean() == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize(("noise", "by_class"), [("normal", False), ("t", False), ("t", True)])
def test_a_new_entity_is_predicted_like_the_same_one_in_the_fit(noise: str, by_class: bool) -> None:
    """Up to what the entity itself adds to classes of many."""
    t = grouped(8, 2, 200)
    model = fitted(
        t, 2, random_effects="slopes", noise=noise, noise_by_class=by_class, n_restarts=1
    )
    one = t["entity"] == 3
    seen = model.predict(t["x"][one], entity=t["entity"][one])
    new = model.predict(t["x"][one], entity=[999] * 6, observed=t["y"][one])
    np.testing.assert_allclose(new, seen, atol=0.1)


@pytest.mark.parametrize("by_class", [False, True])
def test_arrays_and_pickles_hold_degrees(by_class: bool) -> None:
    t = grouped(9, 2, 60)
    degrees = {"random_effects": "slopes", "noise": "t", "noise_by_class": by_class}
    model = fitted(t, 2, **degrees, n_restarts=1)
    assert np.shape(model.sigma_) == ((2,) if by_class else ())
    assert model.random_covariance_.shape == ((2, 3, 3) if by_class else (3, 3))
    given = {"entity": t["entity"]}
    expected = model.predict_interval(t["x"], **given)
    again = LatentClassPredictor.from_arrays(model.predictor_.to_arrays())
    np.testing.assert_array_equal(again.predict_interval(t["x"], **given), expected)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_interval(t["x"], **given), expected)
    assert copied.summary() == model.summary()


@pytest.mark.parametrize("by_class", [False, True])
def test_units_of_the_table_do_not_matter(by_class: bool) -> None:
    t = grouped(10, 2, 60)
    moved = t | {"x": t["x"] * [10.0, 0.1] + 4.0, "y": 50.0 * t["y"] - 7.0}
    settings = {"random_effects": "slopes", "noise": "t", "n_restarts": 1}
    settings |= {"noise_by_class": by_class}
    a, b = fitted(t, 2, **settings), fitted(moved, 2, **settings)
    np.testing.assert_allclose(b.coef_ * [10.0, 0.1] / 50.0, a.coef_, rtol=1e-6)
    own = np.column_stack(
        [b.random_effects_[:, 0] + b.random_effects_[:, 1:] @ [4.0, 4.0], b.random_effects_[:, 1:]]
    )
    np.testing.assert_allclose(own * [1.0, 10.0, 0.1] / 50.0, a.random_effects_, atol=1e-6)
    assert b.sigma_ == pytest.approx(50.0 * a.sigma_, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"random_effects": "some"}, "random_effects"),
        ({"noise": "cauchy"}, "noise"),
        ({"random_effects": "intercept", "schedule": "parallel"}, "schedule"),
        ({"noise": "t", "schedule": "parallel"}, "schedule"),
        ({"noise_by_class": True, "schedule": "parallel"}, "schedule"),
        ({"noise_by_class": True, "sigma": 0.5}, "sigma"),
        ({"noise_by_class": "yes"}, "noise_by_class"),
        ({"random_effects": "slopes", "fit_intercept": False}, "random_effects"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        fitted(grouped(0, 1, 20), 1, **settings)


def test_random_effects_need_entities() -> None:
    t = grouped(0, 1, 20)
    with pytest.raises(ParameterError, match="without entity"):
        LatentClassRegressor(1, random_effects="intercept").fit(t["x"], t["y"])

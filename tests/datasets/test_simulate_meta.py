"""Designs for meta clustering: moments, groups, tampering."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets.simulate_meta import simulate_fairness, simulate_functions, tamper
from consilience.exceptions import ParameterError
from consilience.numerics.random import stream
from replications.meta_clustering.simulate import simulate_friedman_groups, simulate_linear_groups


@pytest.mark.parametrize(
    ("design", "groups"),
    [
        ("homogeneous", [0, 0, 0, 0, 0]),
        ("two-groups", [0, 0, 0, 1, 1]),
        ("one-odd", [0, 0, 0, 0, 1]),
        ("unique", [0, 1, 2, 3, 4]),
    ],
)
def test_groups(design, groups):
    sim = simulate_functions([9] * 5, rng=stream(0), design=design)
    assert sim.groups.tolist() == groups
    assert simulate_functions([9], rng=stream(0), design=design).groups.tolist() == [0]


@pytest.mark.parametrize("shape", ["linear", "nonlinear"])
def test_functions_have_variance_one_and_their_separation(shape):
    sim = simulate_functions(
        [20000, 20000], rng=stream(1), design="two-groups", shape=shape, noise=4.0
    )
    for y, f in zip(sim.responses, sim.signals, strict=True):
        # The largest fourth moment of a piece is 15 (the square), so that a variance has a
        # standard error of at most .027, a mean one of .007; the error's variance .04.
        assert f.mean() == pytest.approx(0.0, abs=0.035)
        assert f.var() == pytest.approx(1.0, abs=0.13)
        assert (y - f).var() == pytest.approx(4.0, abs=0.2)
    x = np.concatenate(sim.features)
    assert x.mean() == pytest.approx(0.0, abs=0.012)  # standard error .0022
    coefficients = [
        np.linalg.lstsq(x, f, rcond=None)[0] for x, f in zip(sim.features, sim.signals, strict=True)
    ]
    if shape == "linear":
        assert np.square(coefficients[0] - coefficients[1]).sum() >= 1.0 - 1e-9


def test_one_function_means_one_function():
    sim = simulate_functions([50, 60, 70], rng=stream(2), noise=0.0)
    x, y = np.concatenate(sim.features), np.concatenate(sim.responses)
    b = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(x @ b, y, atol=1e-12)
    odd = simulate_functions([50, 60, 70], rng=stream(2), noise=0.0, design="one-odd")
    x, y = np.concatenate(odd.features), np.concatenate(odd.responses)
    assert np.square(y - x @ np.linalg.lstsq(x, y, rcond=None)[0]).mean() > 0.05


def test_t3_errors_are_heavy_and_drift_moves_the_predictors():
    sim = simulate_functions([2000] * 50, rng=stream(3), errors="t3", drift=1.0)
    e = np.concatenate(sim.responses) - np.concatenate(sim.signals)
    # P(|t3| > 4 sqrt 3) = .0062 per error against .00006 for a normal one; 100,000 errors, so its
    # standard error is .00025.
    assert (np.abs(e) > 4).mean() == pytest.approx(0.0062, abs=0.0013)
    spread = np.std([x.mean(axis=0) for x in sim.features])
    # 250 site means: standard error .045.
    assert spread == pytest.approx(1.0, abs=0.2)


def test_fairness():
    sim = simulate_fairness(3.0, rng=stream(4), n_rows=4000)
    assert len(sim.groups) == len(set(sim.groups.tolist())) == 50
    assert set(simulate_fairness(0.0, rng=stream(4)).groups.tolist()) == {0}
    for x, f, r in zip(sim.features, sim.signals, sim.hidden, strict=True):
        np.testing.assert_allclose(f, x @ [1, 2, -2, 2] + 3 * r)
    e = np.concatenate(sim.responses) - np.concatenate(sim.signals)
    assert e.var() == pytest.approx(1.0, abs=0.016)  # standard error .0032
    assert 0.5 < sim.hidden.std() < 1.5  # standard error .1


def test_linear_groups():
    sim = simulate_linear_groups(10, 20.0, rng=stream(5), n_rows=20000, standardize=False)
    assert sim.groups.tolist() == [0] * 10 + [1] * 10
    e = np.concatenate(sim.responses) - np.concatenate(sim.signals)
    assert e.var() == pytest.approx(100 / 20, abs=0.06)  # standard error .011
    plain = simulate_linear_groups(10, 20.0, rng=stream(5), standardize=False)
    scaled = simulate_linear_groups(10, 20.0, rng=stream(5))
    for a, b in zip(plain.responses, scaled.responses, strict=True):
        np.testing.assert_allclose((a - a.mean()) / a.std(), b)
    np.testing.assert_allclose(scaled.features[3].std(axis=0), 1.0)
    ratio = (plain.responses[0] - plain.signals[0]).std() / plain.responses[0].std()
    assert (scaled.responses[0] - scaled.signals[0]).std() == pytest.approx(ratio)


def test_friedman_groups():
    sim = simulate_friedman_groups([5000] * 4, rng=stream(6), n_features=6)
    assert sim.groups.tolist() == [0, 0, 1, 1]
    x = np.concatenate(sim.features)
    assert x[:, :4].min(axis=0) == pytest.approx([0, 40 * np.pi, 0, 1], abs=2)
    assert x[:, :4].max(axis=0) == pytest.approx([100, 560 * np.pi, 1, 11], abs=2)
    for i, (x, y, f) in enumerate(zip(sim.features, sim.responses, sim.signals, strict=True)):
        u = x[:, 1] * x[:, 2] - 1 / (x[:, 1] * x[:, 3])
        expected = np.sqrt(x[:, 0] ** 2 + u**2) if i < 2 else np.arctan(u / x[:, 0])
        np.testing.assert_allclose(f, expected)
        assert (y - f).var() == pytest.approx(0.01, abs=0.001)  # standard error .0002
    # the functions of scikit-learn's Friedman 2 and 3
    assert max(f.max() for f in sim.signals[2:]) <= np.pi / 2


def test_tables_name_sites_in_order():
    sim = simulate_functions([4] * 12, rng=stream(7), n_features=2)
    tables = sim.tables()
    assert list(tables) == sorted(tables)
    assert list(tables["site-01"]) == ["x1", "x2", "y"]
    np.testing.assert_array_equal(tables["site-12"]["y"], sim.responses[11])


def test_tampering():
    y = stream(8).normal(3.0, 2.0, 5000)
    rng = stream(9)
    np.testing.assert_array_equal(tamper(y, "sign", rng=rng), -y)
    np.testing.assert_allclose(tamper(y, "shift", amount=0.5, rng=rng), y + 0.5 * y.std())
    scaled = tamper(y, "scale", amount=2.0, rng=rng)
    np.testing.assert_allclose([scaled.mean(), scaled.std()], [y.mean(), 2 * y.std()])
    permuted = tamper(y, "permute", rng=rng)
    np.testing.assert_array_equal(np.sort(permuted), np.sort(y))
    noise = tamper(y, "noise", rng=rng)
    for changed in (permuted, noise):
        # standard error of a correlation of 5,000 rows .014
        assert abs(np.corrcoef(y, changed)[0, 1]) < 0.07
    # standard errors .028 (mean) and .02 (standard deviation)
    np.testing.assert_allclose([noise.mean(), noise.std()], [y.mean(), y.std()], atol=0.15)


def test_draws_repeat():
    a, b = (simulate_functions([5, 6], rng=stream(3)).responses[1] for _ in range(2))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": []},
        {"sizes": [5, 0]},
        {"design": "x"},
        {"shape": "x"},
        {"errors": "x"},
        {"noise": -1.0},
        {"drift": -1.0},
        {"separation": 3.0},
        {"shape": "nonlinear", "n_features": 4},
        {"sizes": [5] * 3, "design": "unique", "n_features": 1, "separation": 1.0},
    ],
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(ParameterError):
        simulate_functions(**{"sizes": [5, 5], "rng": stream(0), **options})


def test_wrong_settings_of_the_named_designs_are_refused():
    for call in (
        lambda: simulate_linear_groups(0, 1.0, rng=stream(0)),
        lambda: simulate_linear_groups(3, 0.0, rng=stream(0)),
        lambda: simulate_friedman_groups([9], rng=stream(0), n_features=3),
        lambda: simulate_friedman_groups([9], rng=stream(0), noise=-1.0),
        lambda: simulate_fairness(1.0, rng=stream(0), n_sites=0),
        lambda: tamper(np.ones(3), "x", rng=stream(0)),
        lambda: tamper(np.ones(3), "shift", amount=np.inf, rng=stream(0)),
    ):
        with pytest.raises(ParameterError):
            call()

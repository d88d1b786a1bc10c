"""Designs for assisted learning: who holds what, moments, responses."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets.simulate_assisted import draw_response, simulate_setting
from consilience.exceptions import ParameterError
from consilience.numerics.random import stream
from replications.assisted_glm.simulate import simulate_canonical, simulate_opposed, simulate_wide


@pytest.mark.parametrize(("setting", "own", "shared"), [(1, 6, 0), (2, 4, 4), (3, 2, 8)])
def test_settings_split_twelve_columns(setting, own, shared):
    data = simulate_setting(setting, 40, rng=stream(0))
    a, b = set(data.names["a"]), set(data.names["b"])
    assert (len(a - b), len(b - a), len(a & b)) == (own, own, shared)
    assert len(a | b) == 12
    for name in a & b:
        np.testing.assert_array_equal(
            data.columns["a"][:, data.names["a"].index(name)],
            data.columns["b"][:, data.names["b"].index(name)],
        )
    np.testing.assert_allclose(data.eta, data.pooled @ list(data.coefficients.values()))


@pytest.mark.parametrize("setting", [1, 2, 3])
@pytest.mark.parametrize(("family", "size"), [("binomial", 0.5), ("poisson", 0.1), ("normal", 0.5)])
def test_null_coefficients_leave_out_what_only_b_holds(setting, family, size):
    data = simulate_setting(setting, 5, rng=stream(1), family=family)
    for name, value in data.coefficients.items():
        assert value == (size if name in data.names["a"] else 0.0)


def test_power_coefficients_are_drawn():
    draws = {
        family: np.concatenate(
            [
                list(
                    simulate_setting(
                        1, 1, rng=stream(s, family), family=family, effects="power"
                    ).coefficients.values()
                )
                for s in range(200)
            ]
        )
        for family in ("binomial", "poisson")
    }
    # 2,400 normal draws each: relative standard error of a standard deviation .0144
    assert draws["binomial"].std() == pytest.approx(0.5, rel=0.06)
    assert draws["poisson"].std() == pytest.approx(0.1, rel=0.06)
    fixed = simulate_setting(2, 9, rng=stream(2), coefficients=np.arange(12.0))
    assert list(fixed.coefficients.values()) == list(range(12))


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.25])
def test_covariance_of_the_columns(rho):
    x = simulate_setting(1, 200_000, rng=stream(3), rho=rho).pooled
    place = np.arange(12)
    expected = rho ** np.abs(place[:, None] - place) / 12  # a uniform variable has variance 1/12
    # standard error of a covariance at most .0002; 144 entries
    np.testing.assert_allclose(np.cov(x.T), expected, atol=0.001)


def test_canonical_correlations():
    wanted = [0.97, 0.9, 0.5]
    data = simulate_canonical(100_000, wanted, rng=stream(4), n_columns=(5, 4), family="normal")
    q_a, q_b = (np.linalg.qr(x - x.mean(axis=0))[0] for x in data.columns.values())
    found = np.linalg.svd(q_a.T @ q_b, compute_uv=False)
    np.testing.assert_allclose(found, [*wanted, 0.0], atol=0.02)  # standard error .003, bias up
    assert [x.shape[1] for x in data.columns.values()] == [5, 4]
    np.testing.assert_allclose(data.pooled.std(axis=0), 1.0, atol=0.012)


def test_opposed_targets():
    data, targets = simulate_opposed(50_000, rng=stream(5), n_targets=7)
    np.testing.assert_array_equal(targets["a"], -targets["b"])
    assert targets["a"].shape == (7, 3)
    correlation = np.corrcoef(data.columns["a"][:, 1], data.columns["b"][:, 1])[0, 1]
    assert correlation == pytest.approx(0.9, abs=0.005)  # standard error .0009


def test_wide():
    data = simulate_wide(30, rng=stream(6), n_columns=(40, 50, 20), n_effects=3)
    assert {party: x.shape for party, x in data.columns.items()} == {"a": (30, 60), "b": (30, 70)}
    assert sum(value != 0 for value in data.coefficients.values()) == 9
    np.testing.assert_array_equal(data.columns["a"][:, 40:], data.columns["b"][:, 50:])
    np.testing.assert_allclose(data.eta, data.pooled @ list(data.coefficients.values()))


FAMILIES = {
    # mean and variance of the response at eta
    "binomial": (lambda e: 1 / (1 + np.exp(-e)), lambda m: m * (1 - m)),
    "poisson": (np.exp, lambda m: m),
    "gamma": (np.exp, lambda m: m**2 / 2),
    "tweedie": (np.exp, lambda m: m**1.5),
    "normal": (lambda e: e, lambda m: 1.0),
    "log-cosh": (lambda e: e, lambda m: 1.0),
    "pseudo-huber": (lambda e: e, lambda m: 1.0),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eta", [-0.7, 0.4])
def test_moments_of_the_responses(family, eta):
    mean, variance = FAMILIES[family]
    y = draw_response(family, np.full(200_000, eta), rng=stream(7, family))
    spread = np.sqrt(variance(mean(eta)))
    assert y.mean() == pytest.approx(mean(eta), abs=5 * spread / np.sqrt(200_000))
    # the largest kurtosis, of the Tweedie response at -.7, is about 8: standard error .006
    assert y.var() == pytest.approx(variance(mean(eta)), rel=0.035)
    if family == "tweedie":
        assert 0.05 < np.mean(y == 0) < 0.5


def test_t3_errors_have_variance_one_and_heavy_tails():
    y = draw_response("log-cosh", np.zeros(200_000), rng=stream(8), errors="t3")
    # P(|t3| > 4 sqrt 3) = .0062 against .00006; standard error .0002
    assert (np.abs(y) > 4).mean() == pytest.approx(0.0062, abs=0.001)


def test_rows_and_tables():
    data = simulate_setting(2, 12, rng=stream(9))
    some = data.rows([3, 1])
    np.testing.assert_array_equal(some.y, data.y[[3, 1]])
    np.testing.assert_array_equal(some.columns["b"], data.columns["b"][[3, 1]])
    np.testing.assert_array_equal(data.rows(slice(2, 5)).pooled, data.pooled[2:5])
    tables = data.tables()
    assert list(tables["a"].columns) == ["id", *data.names["a"], "y"]
    assert list(tables["b"].columns) == ["id", *data.names["b"]]
    assert tables["a"]["id"].tolist() == tables["b"]["id"].tolist()
    assert tables["a"]["id"].is_unique


def test_same_stream_same_data():
    one, two = (simulate_setting(3, 20, rng=stream(10), effects="power") for _ in range(2))
    np.testing.assert_array_equal(one.y, two.y)
    np.testing.assert_array_equal(one.pooled, two.pooled)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda r: simulate_setting(4, 9, rng=r), "setting"),
        (lambda r: simulate_setting(1, 0, rng=r), "n_records"),
        (lambda r: simulate_setting(1, 9, rng=r, rho=1.0), "rho"),
        (lambda r: simulate_setting(1, 9, rng=r, family="logit"), "family"),
        (lambda r: simulate_setting(1, 9, rng=r, effects="some"), "effects"),
        (lambda r: simulate_setting(1, 9, rng=r, coefficients=[1.0]), "coefficients"),
        (lambda r: simulate_setting(1, 9, rng=r, family="normal", errors="cauchy"), "errors"),
        (lambda r: simulate_canonical(9, [1.0], rng=r), "correlations"),
        (lambda r: simulate_canonical(9, [0.5, 0.5], rng=r, n_columns=(1, 2)), "n_columns"),
        (lambda r: simulate_wide(9, rng=r, n_columns=(0, 5, 0)), "n_columns"),
    ],
)
def test_settings_out_of_range(make, what):
    with pytest.raises(ParameterError, match=what):
        make(stream(0))

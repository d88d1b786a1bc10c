"""Generalised linear models against textbook optimisation, statsmodels and glum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from consilience.assisted.kernels.glm import Penalty, family, fit, independent_columns
from consilience.exceptions import DataError, ParameterError
from tests.numerics.family_data import CASES, MASKED, draw, of, plain
from tests.reference import glm as textbook

pytestmark = pytest.mark.filterwarnings("error")


def gradient(x, y, fam, found, weights):
    """Derivative of the weighted mean loss: slopes, constant."""
    s = weights * fam.score(y, found.eta) / weights.sum()
    return s @ x, float(s.sum())


@pytest.mark.parametrize("ridge", [0.0, 0.05])
@pytest.mark.parametrize("case", CASES)
def test_textbook_optimum(case: str, ridge: float) -> None:
    x, y, offset, weights = draw(case)
    kind = plain(case)
    expected = textbook.fit(kind.pop("name"), x, y, offset, weights, ridge=ridge, **kind)
    found = fit(x, y, of(case), offset=offset, weights=weights, penalty=Penalty(ridge))
    assert found.converged
    assert not found.separated
    assert np.allclose([found.intercept, *found.coef], expected, atol=1e-7)
    assert np.allclose(found.eta, found.intercept + x @ found.coef + offset, atol=1e-12)


@pytest.mark.parametrize("case", ["normal", "binomial", "poisson", "gamma", "tweedie"])
def test_statsmodels(case: str) -> None:
    import statsmodels.api as sm

    log = sm.families.links.Log()
    kind = {
        "normal": sm.families.Gaussian(),
        "binomial": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(log),
        "tweedie": sm.families.Tweedie(log, var_power=1.5),
    }[case]
    x, y, offset, weights = draw(case)
    model = sm.GLM(y, sm.add_constant(x), family=kind, offset=offset, freq_weights=weights)
    expected = model.fit(tol=1e-14, maxiter=200)
    found = fit(x, y, of(case), offset=offset, weights=weights)
    assert np.allclose([found.intercept, *found.coef], expected.params, atol=1e-10)
    assert found.deviance == pytest.approx(expected.deviance, rel=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradient_vanishes_from_far_away(case: str) -> None:
    x, y, offset, weights = draw(case)
    fam = of(case)
    near = fit(x, y, fam, offset=offset, weights=weights)
    far = fit(x, y, fam, offset=offset, weights=weights, start=(np.full(4, 60.0), -300.0))
    assert far.converged
    assert np.allclose(gradient(x, y, fam, far, weights)[0], 0, atol=1e-9)
    assert np.allclose(near.eta, far.eta, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_records_of_weight_zero_take_no_part(case: str) -> None:
    x, y, offset, weights = draw(case)
    out = weights == 0
    x[out] *= 50
    y = np.where(out, np.nan, y)
    found = fit(x, y, of(case), offset=offset, weights=weights)
    rows = ~out
    alone = fit(x[rows], y[rows], of(case), offset=offset[rows], weights=weights[rows])
    assert np.allclose(found.coef, alone.coef, atol=1e-12)
    assert found.deviance == pytest.approx(alone.deviance, rel=1e-12)
    assert np.allclose(found.eta, found.intercept + x @ found.coef + offset)


@pytest.mark.parametrize("case", CASES)
def test_doubled_weight_is_a_doubled_record(case: str) -> None:
    x, y, offset, weights = draw(case)
    again = np.repeat(np.arange(y.size), weights.astype(int))
    found = fit(x, y, of(case), offset=offset, weights=weights)
    repeated = fit(x[again], y[again], of(case), offset=offset[again])
    assert np.allclose(found.coef, repeated.coef, atol=1e-9)
    assert found.deviance == pytest.approx(repeated.deviance, rel=1e-9)


def test_separated_classes_are_flagged() -> None:
    x, y, _, _ = draw("binomial")
    perfect = fit(x, (x[:, 0] > 0.1).astype(float), family("binomial"))
    assert perfect.separated
    assert not perfect.converged
    assert perfect.deviance < 1e-2
    assert "separate" in perfect.note
    group = (np.arange(y.size) < 20).astype(float)
    rest = fit(x[20:], y[20:], family("binomial"))
    quasi = fit(np.column_stack([x, group]), np.where(group, 1.0, y), family("binomial"))
    assert quasi.separated
    # The other coefficients are those of the records outside the group.
    assert np.allclose(quasi.coef[:4], rest.coef, atol=1e-4)
    one = fit(x, np.ones(y.size), family("binomial"))
    assert one.separated


def test_separation_is_what_linear_programming_finds() -> None:
    # Separated: a direction in which no record is on the wrong side, and some are on the right.
    from scipy.optimize import linprog

    found = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(15, 60)), int(rng.integers(1, 5))
        x = rng.normal(size=(n, p))
        x[:, 0] = np.where(seed % 2, rng.uniform(size=n) < 0.15, x[:, 0])
        y = (rng.uniform(size=n) < expit(2 * x @ rng.normal(size=p))).astype(float)
        signed = np.column_stack([np.ones(n), x]) * (2 * y - 1)[:, None]
        best = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(n), bounds=[(-1, 1)])
        if np.ptp(x[:, 0]) == 0:
            continue
        fitted = fit(x, y, family("binomial"))
        assert fitted.separated == (best.fun < -1e-6)
        assert fitted.converged != fitted.separated
        found.append(fitted.separated)
    assert 20 < sum(found) < len(found) - 20


def test_separated_counts_are_flagged() -> None:
    x, y, _, _ = draw("poisson")
    group = (np.arange(y.size) < 20).astype(float)
    found = fit(np.column_stack([x, group]), np.where(group, 0.0, y), family("poisson"))
    assert found.separated
    assert np.allclose(found.coef[:4], fit(x[20:], y[20:], family("poisson")).coef, atol=1e-4)


def test_separated_masked_classes_are_flagged() -> None:
    # Half the flips that the mask stands for: no linear predictor makes a group so pure.
    x, y, _, _ = draw(MASKED)
    group = np.arange(y.size) < 60
    y = np.where(group, 1.0, y)
    found = fit(np.column_stack([x, group]), y, family("binomial", mask=0.2))
    assert found.separated


def test_large_values_in_one_record_are_no_separation() -> None:
    x, y, _, _ = draw("binomial")
    x[0, 0] = 1e6 if y[0] == (fit(x, y, family("binomial")).coef[0] > 0) else -1e6
    found = fit(x, y, family("binomial"))
    assert found.converged
    assert not found.separated
    # The record is fitted without doubt: the others alone give the same coefficients.
    assert np.allclose(found.coef, fit(x[1:], y[1:], family("binomial")).coef, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_dependent_columns_are_left_out_in_order(case: str) -> None:
    x, y, offset, weights = draw(case)
    rng = np.random.default_rng(5)
    noise = rng.normal(size=y.size)
    more = [x[:, 0] * 3 + 2, np.full(y.size, 7.0), x[:, 1] - x[:, 2] + 1e-10 * noise]
    wide = np.column_stack([x, *more])
    found = fit(wide, y, of(case), offset=offset, weights=weights)
    assert found.kept.tolist() == [True] * 4 + [False] * 3
    assert np.all(found.coef[4:] == 0)
    assert np.allclose(found.eta, fit(x, y, of(case), offset=offset, weights=weights).eta)


def test_columns_constant_where_weights_are_positive_are_left_out() -> None:
    x, y, _, weights = draw("normal")
    x[:, 3] = np.where(weights > 0, 1.0, x[:, 3])
    assert fit(x, y, family("normal"), weights=weights).kept.tolist() == [True] * 3 + [False]


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("case", CASES)
def test_nearly_dependent_columns_are_kept_and_exact(case: str, gap: float) -> None:
    x, y, _, _ = draw(case)
    noise = np.random.default_rng(6).normal(size=y.size)
    noise -= noise.mean()
    close = np.column_stack([x, x[:, 0] + gap * noise])
    found = fit(close, y, of(case))
    assert found.kept.all()
    assert found.converged
    expected = fit(np.column_stack([x, noise]), y, of(case))
    # Rounding of the column itself moves the direction by 1e-16 / gap.
    assert np.allclose(found.eta, expected.eta, atol=1e-8)


def test_independent_columns_of_a_wide_table() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(6, 6))
    kept, _ = independent_columns(np.column_stack([base[:, :3], base[:, 0], base, base]))
    assert kept.sum() == 6
    assert kept[:3].all()
    assert not kept[3]


def test_counts_that_overflow_a_full_step() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 3)) * np.array([1e3, 1.0, 1e-3])
    eta = np.clip(5 + 4 * x[:, 0] / 1e3, None, 18)
    y = rng.poisson(np.exp(eta)).astype(float)
    for offset in (None, np.full(300, -40.0), np.full(300, 40.0)):
        for start in (None, (np.array([1.0, 500.0, 0.0]), 700.0)):
            found = fit(x, y, family("poisson"), offset=offset, start=start)
            assert found.converged
            grad, constant = gradient(x, y, family("poisson"), found, np.ones(300))
            assert np.allclose(grad / np.abs(x).max(axis=0), 0, atol=1e-6 * y.mean())
            assert abs(constant) < 1e-8 * y.mean()


def test_scales_far_apart() -> None:
    rng = np.random.default_rng(4)
    for seed, case in enumerate(CASES * 3):
        x, y, offset, _ = draw(case, n=150, p=6, seed=seed)
        scale, shift = 10.0 ** rng.uniform(-4, 4, 6), 10.0 ** rng.uniform(-3, 2, 6)
        expected = fit(x, y, of(case), offset=offset)
        found = fit(x * scale + shift * scale, y, of(case), offset=offset)
        assert found.converged
        assert np.allclose(found.eta, expected.eta, atol=1e-7)
        assert np.allclose(found.coef * scale, expected.coef, atol=1e-7)


def test_warm_start_and_subsample() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(12_000, 5))
    y = (rng.uniform(size=12_000) < expit(x[:, 0] - 2)).astype(float)
    order = np.argsort(y)
    x, y = x[order], y[order]
    cold = fit(x, y, family("binomial"))
    grad, constant = gradient(x, y, family("binomial"), cold, np.ones(12_000))
    assert np.allclose([*grad, constant], 0, atol=1e-12)
    assert cold.n_iter <= 6
    assert fit(x, y, family("binomial"), start=(cold.coef, cold.intercept)).n_iter == 1
    near = fit(x, y, family("binomial"), start=(cold.coef + 0.01, cold.intercept))
    assert np.allclose(near.eta, cold.eta, atol=1e-10)


def violation(x, y, fam, found, weights, penalty) -> float:
    """Largest departure from the Karush-Kuhn-Tucker conditions of the elastic net."""
    grad, constant = gradient(x, y, fam, found, weights)
    grad = grad + penalty.alpha * (1 - penalty.l1_ratio) * found.coef
    lasso = penalty.alpha * penalty.l1_ratio
    on = np.abs(grad + lasso * np.sign(found.coef))
    off = np.maximum(np.abs(grad) - lasso, 0)
    return max(np.max(np.where(found.coef != 0, on, off)), abs(constant))


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("case", CASES)
def test_optimality_of_penalised_fits(case: str, l1_ratio: float) -> None:
    x, y, offset, weights = draw(case, n=200, p=8)
    penalty = Penalty(0.08, l1_ratio)
    found = fit(x, y, of(case), offset=offset, weights=weights, penalty=penalty)
    assert found.converged
    assert violation(x, y, of(case), found, weights, penalty) < 1e-7
    assert (l1_ratio < 1) or np.any(found.coef == 0)


@pytest.mark.parametrize("case", CASES)
def test_more_columns_than_records(case: str) -> None:
    x, y, _, _ = draw(case, n=60, p=100)
    for penalty in (Penalty(0.1, 1.0), Penalty(0.1, 0.0)):
        found = fit(x, y, of(case), penalty=penalty)
        assert found.converged
        assert found.kept.all()
        assert violation(x, y, of(case), found, np.ones(60), penalty) < 1e-6


@pytest.mark.parametrize("case", ["normal", "binomial", "poisson", "gamma"])
def test_elastic_net_equals_glum(case: str) -> None:
    from glum import GeneralizedLinearRegressor

    x, y, offset, weights = draw(case, n=200, p=8)
    link = "log" if case in ("poisson", "gamma") else "auto"
    for l1_ratio in (1.0, 0.3, 0.0):
        model = GeneralizedLinearRegressor(
            family=case, link=link, alpha=0.05, l1_ratio=l1_ratio, gradient_tol=1e-10, max_iter=1000
        )
        used = weights > 0
        model.fit(x[used], y[used], sample_weight=weights[used], offset=offset[used])
        found = fit(x, y, of(case), offset=offset, weights=weights, penalty=Penalty(0.05, l1_ratio))
        assert np.allclose(found.coef, model.coef_, atol=1e-7)
        assert found.intercept == pytest.approx(model.intercept_, abs=1e-7)


def test_heavy_penalty_leaves_the_constant() -> None:
    x, y, _, _ = draw("binomial")
    for l1_ratio in (0.0, 1.0):
        found = fit(x, y, family("binomial"), penalty=Penalty(1e6, l1_ratio))
        assert np.allclose(found.coef, 0, atol=1e-5)
        assert expit(found.intercept) == pytest.approx(y.mean(), abs=1e-5)


def test_no_covariates() -> None:
    _, y, _, _ = draw("poisson")
    found = fit(np.zeros((y.size, 0)), y, family("poisson"))
    assert found.converged
    assert np.exp(found.intercept) == pytest.approx(y.mean())


@pytest.mark.parametrize(
    ("name", "y", "phrase"),
    [
        ("binomial", [0, 1, 2], "0 or 1"),
        ("binomial", [1, 1, 1], "both classes"),
        ("poisson", [0, 1.5, 2], "whole numbers"),
        ("poisson", [-1, 1, 2], "at least 0"),
        ("poisson", [0, 0, 0], "above 0 in some record"),
        ("gamma", [0, 1, 2], "above 0"),
        ("tweedie", [-1, 1, 2], "at least 0"),
        ("normal", [np.nan, 1, 2], "finite"),
    ],
)
def test_responses_that_do_not_fit(name: str, y: list[float], phrase: str) -> None:
    said = family(name).check(np.asarray(y, dtype=float))
    assert said is not None
    assert phrase in said


@pytest.mark.parametrize("case", CASES)
def test_responses_that_fit(case: str) -> None:
    assert of(case).check(draw(case)[1]) is None


def test_wrong_inputs_are_refused() -> None:
    x, y, _, weights = draw("normal")
    normal = family("normal")
    for bad in (
        {"offset": np.zeros(3)},
        {"weights": -weights},
        {"weights": np.zeros(y.size)},
        {"weights": np.full(y.size, np.nan)},
        {"offset": np.full(y.size, np.inf)},
        {"start": (np.zeros(2), 0.0)},
    ):
        with pytest.raises(DataError):
            fit(x, y, normal, **bad)
    with pytest.raises(DataError):
        fit(x[:5], y, normal)
    with pytest.raises(DataError):
        fit(x, np.where(y > 0, np.nan, y), normal)
    for wrong in (
        lambda: family("probit"),
        lambda: family("tweedie", power=2.0),
        lambda: family("binomial", mask=0.5),
        lambda: family("poisson", mask=0.1),
        lambda: Penalty(-1.0),
        lambda: Penalty(1.0, 1.5),
    ):
        with pytest.raises(ParameterError):
            wrong()

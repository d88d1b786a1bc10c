"""Pooled regressions: the pooled fit, errors, tests, differences between sites, refusals."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from consilience import Columns, Federation, Policy, PooledRegression, Preparation
from consilience.exceptions import (
    ConsilienceError,
    DataError,
    ParameterError,
    QuorumError,
    StudyError,
)
from consilience.protocol.result import Result
from consilience.regression import kernels
from consilience.regression.estimators import RegressionPredictor
from consilience.regression.protocol.result import PooledRegressionResult
from tests.cli.workspace import call
from tests.docs.test_pages import check_printed
from tests.reference import pooled_regression as textbook

SITES = ("ash", "birch", "cedar")
NAMES = ("age", "dose", "ward")
BETA = np.array([0.5, -0.3, 0.4])
FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}


def draw(family: str, n: int, seed: int, *, shift: float = 0.0, apart: float = 0.0) -> pd.DataFrame:
    """Rows of one site: two numbers far from 0, a column of 0 and 1, a response."""
    rng = np.random.default_rng(seed)
    z = np.column_stack([rng.normal(size=(n, 2)), rng.random(n) < 0.4])
    eta = 0.2 + shift + z @ (BETA + np.array([0.0, apart, 0.0]))
    y = {
        "gaussian": lambda: eta + rng.normal(size=n),
        "binomial": lambda: (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "gamma": lambda: rng.gamma(2, np.exp(eta) / 2),
    }[family]()
    rows = z * [12.0, 0.01, 1.0] + [60.0, 0.0, 0.0]
    return pd.DataFrame(np.column_stack([rows, y]), columns=[*NAMES, "y"])


def tables_of(family: str, sizes: Any = (150, 190, 230), **more: Any) -> dict[str, pd.DataFrame]:
    drawn = (draw(family, n, seed, **more) for seed, n in enumerate(sizes))
    return dict(zip(SITES, drawn, strict=True))


def federation(tables: Any, policy: Any = "consortium", **more: Any) -> Federation:
    columns = more.pop("columns", Columns(features=NAMES, target="y"))
    return Federation.local(tables, columns=columns, policy=policy, **more)


def fitted(tables: Any, policy: Any = "consortium", seed: int = 0, **parameters: Any) -> Any:
    made = federation(tables, policy)
    return PooledRegression(**parameters).run(made, seed=seed).result


def stacked(tables: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = pd.concat(tables.values())
    sites = np.repeat(list(tables), [len(t) for t in tables.values()])
    return rows[list(NAMES)].to_numpy(), rows["y"].to_numpy(), sites


def design_of(x: np.ndarray, sites: np.ndarray, own: bool) -> np.ndarray:
    ones = (sites[:, None] == np.unique(sites)).astype(float) if own else np.ones((len(x), 1))
    return np.column_stack([ones, x])


# --------------------------------------------------------------------------- the pooled fit


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_fit_of_statsmodels_to_all_rows(family: str, own: bool) -> None:
    tables = tables_of(family)
    x, y, sites = stacked(tables)
    design = design_of(x, sites, own)
    result = fitted(tables, "simulation", family=family, site_effects=own)
    model = sm.GLM(y, design, family=FAMILIES[family])
    expected = model.fit(tol=1e-14, maxiter=300)
    np.testing.assert_allclose(result.estimate, expected.params, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(result.error, expected.bse, rtol=1e-8)
    assert result.deviance == pytest.approx(expected.deviance, rel=1e-9)
    assert result.log_likelihood == pytest.approx(expected.llf, rel=1e-9)
    assert result.aic == pytest.approx(expected.aic, rel=1e-9)
    assert result.scale == pytest.approx(expected.scale, rel=1e-9)
    smaller = sm.GLM(y, design[:, : result.n_constants], family=FAMILIES[family])
    null = smaller.fit(tol=1e-14)
    assert result.null_deviance == pytest.approx(null.deviance, rel=1e-9)
    assert result.rounds <= 8 and (family != "gaussian" or result.rounds == 1)
    if family in ("binomial", "poisson"):
        score = smaller.score_test(null.params, exog_extra=design[:, result.n_constants :])
        assert result.tests["score"][0] == pytest.approx(float(np.ravel(score[0])[0]), rel=1e-7)
    wald = expected.wald_test(np.eye(design.shape[1])[-3:], scalar=True, use_f=False)
    assert result.tests["Wald"][0] == pytest.approx(float(wald.statistic), rel=1e-7)


def test_gaussian_tables_are_those_of_least_squares() -> None:
    tables = tables_of("gaussian")
    x, y, sites = stacked(tables)
    result = fitted(tables, "strict", errors="model")
    expected = sm.OLS(y, design_of(x, sites, False)).fit()
    frame = result.to_frame()
    np.testing.assert_allclose(frame["statistic"], expected.tvalues, rtol=1e-8)
    np.testing.assert_allclose(frame["p_value"], expected.pvalues, rtol=1e-7)
    np.testing.assert_allclose(frame[["low", "high"]], expected.conf_int(), rtol=1e-7)
    ratio = expected.compare_lr_test(sm.OLS(y, np.ones(len(y))).fit())
    np.testing.assert_allclose(result.tests["likelihood ratio"], (ratio[0], 3, ratio[1]), rtol=1e-8)
    assert "std err" in result.to_text() and "AIC" in result.to_text()


@pytest.mark.parametrize("errors", kernels.ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_those_of_the_textbook(family: str, errors: str) -> None:
    tables = tables_of(family, (60, 70, 80))
    x, y, sites = stacked(tables)
    design = design_of(x / [12.0, 0.01, 1.0], sites, False)
    theta = textbook.fit(family, design, y)
    expected = textbook.covariance(family, design, y, theta, errors, sites)
    result = fitted(tables, "simulation", family=family, errors=errors)
    unit = np.array([1.0, 12.0, 0.01, 1.0])
    np.testing.assert_allclose(result.estimate * unit, theta, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(result.covariance * np.outer(unit, unit), expected, rtol=1e-6)
    assert result.df == (2 if errors == "cluster" else 206 if family == "gaussian" else math.inf)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_ridge_is_the_penalised_fit(family: str) -> None:
    tables = tables_of(family, (60, 70, 80))
    x, y, sites = stacked(tables)
    theta = textbook.fit(family, design_of(x, sites, False), y, ridge=[0.0, 3.0, 3.0, 3.0])
    result = fitted(tables, "simulation", family=family, ridge=3.0)
    np.testing.assert_allclose(result.estimate, theta, rtol=1e-7, atol=1e-9)
    assert result.tests == {} and any("ridge" in remark for remark in result.remarks)


def test_columns_in_other_units_give_the_same_answer() -> None:
    tables = tables_of("binomial")
    plain = fitted(tables, family="binomial")
    rules = Preparation(standardize="pooled")
    scaled = PooledRegression(family="binomial").run(federation(tables, preparation=rules), seed=0)
    np.testing.assert_allclose(scaled.result.statistic[1:], plain.statistic[1:], rtol=1e-7)
    row = tables["ash"].iloc[:5]
    first = scaled.site("ash").predictor.predict(row)
    np.testing.assert_allclose(first, scaled.site("ash").values("fitted")[:5], rtol=1e-12)
    x, y, sites = stacked(tables)
    expected = sm.GLM(y, design_of(x, sites, False), family=FAMILIES["binomial"]).fit(tol=1e-14)
    about = expected.get_prediction(design_of(x, sites, False)[:5])
    np.testing.assert_allclose(first, about.predicted, rtol=1e-8)
    limits = scaled.site("ash").predictor.limits(row)
    np.testing.assert_allclose(limits, about.conf_int(), rtol=1e-6)


def test_levels_of_the_response_and_of_columns() -> None:
    rng = np.random.default_rng(4)
    tables = {}
    for name in SITES:
        ward = rng.choice(["a", "b", "c"], size=240)
        x = rng.normal(size=240)
        eta = 0.8 * x + 0.7 * (ward == "b") - 0.5 * (ward == "c")
        cured = np.where(rng.random(240) < 1 / (1 + np.exp(-eta)), "yes", "no")
        tables[name] = pd.DataFrame({"x": x, "ward": ward, "cured": cured})
    columns = Columns(
        features=("x", "ward"),
        target="cured",
        levels={"ward": ("a", "b", "c"), "cured": ("no", "yes")},
    )
    made = federation(tables, columns=columns, preparation=Preparation(categorical="treatment"))
    result = PooledRegression(family="binomial").run(made, seed=0).result
    rows = pd.concat(tables.values())
    design = np.column_stack(
        [np.ones(len(rows)), rows["x"], rows["ward"] == "b", rows["ward"] == "c"]
    ).astype(float)
    y = (rows["cured"] == "yes").to_numpy(dtype=float)
    expected = sm.GLM(y, design, family=FAMILIES["binomial"]).fit(tol=1e-14)
    assert result.names == ("constant", "x", "ward=b", "ward=c")
    np.testing.assert_allclose(result.estimate, expected.params, rtol=1e-8)


def test_two_to_fifty_sites_and_sites_of_twelve_rows() -> None:
    for sizes in ((300, 12), (12,) * 50):
        tables = {f"s{i:02}": draw("binomial", n, i) for i, n in enumerate(sizes)}
        x, y, sites = stacked(tables)
        result = fitted(tables, "simulation", family="binomial")
        expected = sm.GLM(y, design_of(x, sites, False), family=FAMILIES["binomial"])
        np.testing.assert_allclose(result.estimate, expected.fit(tol=1e-14).params, rtol=1e-8)


# --------------------------------------------------------------------------- one shot


def distance(n: int, seed: int) -> float:
    """How far one shot of five sites is from the pooled fit."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5 * n, 2))
    y = (rng.random(5 * n) < 1 / (1 + np.exp(-1.0 - x @ [1.0, -0.5]))).astype(float)
    rows = [
        kernels.Rows(kernels.Design(x[own], np.zeros(2), np.ones(2)), y[own])
        for own in [*np.split(np.arange(5 * n), 5), slice(None)]
    ]
    *alone, whole = (kernels.fit_alone("binomial", own) for own in rows)
    pieces = tuple(piece for piece in alone if piece is not None)
    pool = kernels.Pool(tuple(p.at(np.zeros(3)) for p in pieces), False, np.zeros(2))
    assert whole is not None and len(pieces) == 5
    return float(np.abs(pool.step() - whole.theta).mean())


def test_the_distance_of_one_shot_is_of_the_order_of_one_over_the_rows_of_a_site() -> None:
    # 40 draws each: .040 and .011, a ratio of 3.5; 4 would be 1 / n.
    few, many = (np.mean([distance(n, seed) for seed in range(40)]) for n in (80, 320))
    assert 2.8 < few / many < 5.6


def test_one_shot_over_sites_that_grant_fits() -> None:
    tables = tables_of("binomial", (480, 480, 480))
    exact = fitted(tables, family="binomial")
    near = fitted(tables, Policy(foreign_models=True), family="binomial", fit="one-shot")
    assert near.fit == "one-shot" and near.rounds == 2
    assert (np.abs(near.estimate - exact.estimate) < 0.2 * exact.error).all()
    np.testing.assert_allclose(near.error, exact.error, rtol=0.05)
    # Of a site whose rows are separated no fit leaves; the others go on.
    separated = tables | {
        "cedar": tables["cedar"].assign(y=lambda t: (t["age"] > 60).astype(float))
    }
    with pytest.raises(QuorumError, match=r"the study needs 3 \(without one: cedar\)"):
        fitted(separated, Policy(foreign_models=True), family="binomial", fit="one-shot")
    less = PooledRegression(family="binomial", fit="one-shot").run(
        federation(separated, Policy(foreign_models=True), quorum=2), seed=0
    )
    assert less.result.sites == ("ash", "birch") and less.result.left_out == ("cedar",)
    two = {name: tables[name] for name in SITES[:2]}
    alone = fitted(two, Policy(foreign_models=True), family="binomial", fit="one-shot")
    np.testing.assert_allclose(less.result.estimate, alone.estimate, rtol=1e-8)
    np.testing.assert_allclose(less.result.error, alone.error, rtol=1e-8)


# --------------------------------------------------------------------------- how sites differ


@pytest.mark.parametrize("family", FAMILIES)
def test_differences_are_cochrans_q(family: str) -> None:
    tables = tables_of(family, (400, 500, 600))
    x, y, sites = stacked(tables)
    result = fitted(tables, family=family, site_effects=True)
    scaled = x / [12.0, 0.01, 1.0]
    estimates, errors, q = textbook.cochran(family, scaled, y, sites, result.scale)
    unit = np.array([12.0, 0.01, 1.0])
    exact = family == "gaussian"
    close = {"rtol": 1e-7} if exact else {"atol": 0.15 * errors.max()}
    np.testing.assert_allclose(result.site_estimates * unit, estimates, **close)
    np.testing.assert_allclose(result.site_errors * unit, errors, rtol=1e-7 if exact else 0.1)
    np.testing.assert_allclose(result.q, q, rtol=1e-6 if exact else 0.15, atol=0 if exact else 0.3)
    if exact:
        # interaction of site and columns, as a test of nested models, asks the same
        own = design_of(scaled, sites, True)
        cross = [scaled * (sites == name)[:, None] for name in SITES[1:]]
        small = sm.OLS(y, own).fit()
        large = sm.OLS(y, np.column_stack([own, *cross])).fit()
        statistic = (small.ssr - large.ssr) / result.scale
        assert result.heterogeneity[0] == pytest.approx(statistic, rel=1e-8)
        assert result.heterogeneity[1] == 6


def test_sites_that_differ_are_sent_to_meta_clustering() -> None:
    tables = tables_of("gaussian") | {"cedar": draw("gaussian", 230, 9, apart=1.0)}
    result = fitted(tables, "strict")
    assert result.sites_differ and "MetaClustering" in result.summary()
    assert result.to_frame("differences")["p_value"].idxmin() == "dose"
    same = fitted(tables_of("gaussian"), "strict")
    assert not same.sites_differ and "No sign" in same.summary()
    assert list(result.site_coefficients["site"].unique()) == list(SITES)


def test_constants_that_differ_neither_hide_nor_make_a_difference_of_slopes() -> None:
    # Constants 0, 4 and 8: about a common one the variance would be ten times as large.
    def moved(family: str, apart: float) -> dict[str, pd.DataFrame]:
        last = {"shift": 8.0, "apart": apart}
        changes = ({}, {"shift": 4.0}, last)
        drawn = (draw(family, 200, seed, **more) for seed, more in enumerate(changes))
        return dict(zip(SITES, drawn, strict=True))

    for apart in (0.0, 0.5):
        tables = moved("gaussian", apart)
        common, own = (fitted(tables, "strict", site_effects=e) for e in (False, True))
        assert common.sites_differ == own.sites_differ == (apart > 0)
        np.testing.assert_allclose(common.heterogeneity, own.heterogeneity, rtol=1e-8)
        np.testing.assert_allclose(common.site_errors, own.site_errors, rtol=1e-8)


def test_one_common_constant_of_other_families_tests_no_difference_between_sites() -> None:
    drawn = (draw("binomial", 300, i, shift=s) for i, s in enumerate((-2.0, 0.0, 1.0)))
    tables = dict(zip(SITES, drawn, strict=True))
    result = fitted(tables, family="binomial")
    assert not result.compares_sites and not result.sites_differ
    assert result.heterogeneity[1] == 0 and math.isnan(result.heterogeneity[2])
    assert np.isnan([result.q, result.q_p_values, result.i2]).all()
    assert np.isfinite(result.site_estimates).all()
    assert "site_effects = true only" in result.summary()
    asked = fitted(tables, family="binomial", site_effects=True)
    assert asked.heterogeneity[1] == 6 and "site_effects" not in asked.summary()


# --------------------------------------------------------------------------- what is refused


def test_errors_that_grow_with_a_column_are_no_difference_of_sites() -> None:
    """By the model's variances Q rejects in .44 of such tables, by squared scores in .03."""
    rng = np.random.default_rng(5)
    found = {"model": 0, "HC1": 0}
    for _ in range(25):
        tables = {}
        for b in range(6):
            x = rng.normal(size=(80, 2))
            y = x[:, 0] + rng.normal(size=80) * np.exp(0.6 * x[:, 0])
            tables[f"s{b}"] = pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "y": y})
        columns = Columns(features=("x0", "x1"), target="y")
        federation = Federation.local(tables, columns=columns, policy="simulation")
        for errors in found:
            method = PooledRegression(errors=errors, site_effects=True)
            result = method.run(federation, seed=0).result
            found[errors] += result.sites_differ
            supposes = "supposes the variances" in result.summary()
            assert supposes is (errors == "model" and result.sites_differ)
    assert found["HC1"] <= 4 < 7 <= found["model"]
    assert not PooledRegression(errors="HC1").run(federation, seed=0).result.compares_sites


def test_a_withheld_column_is_a_sentence_and_no_other_fit() -> None:
    tables = tables_of("gaussian")
    tables["birch"]["ward"] = (np.arange(190) < 4).astype(float)
    with pytest.raises(QuorumError, match="birch withholds ward"):
        fitted(tables, "strict")
    less = fitted(tables, "strict", when_withheld="without-column")
    assert less.columns == NAMES[:2] and "goes without" in " ".join(less.remarks)
    with pytest.raises(QuorumError, match="quorum"):
        fitted(tables, "strict", when_withheld="without-site")
    made = federation(tables, "strict", quorum=2)
    fewer = PooledRegression(when_withheld="without-site").run(made, seed=0).result
    assert fewer.sites == ("ash", "cedar") and fewer.left_out == ("birch",)
    alone = fitted({name: tables[name] for name in ("ash", "cedar")}, "strict")
    np.testing.assert_allclose(fewer.estimate, alone.estimate, rtol=1e-10)
    assert "birch" in fewer.summary()


def test_small_cells_with_the_response_are_withheld() -> None:
    # Of ward 1 nobody but three has y = 0: their number would follow from the products.
    tables = tables_of("binomial")
    rare = np.flatnonzero(tables["ash"]["ward"] == 1)
    tables["ash"].loc[rare, "y"] = 1.0
    tables["ash"].loc[rare[:3], "y"] = 0.0
    with pytest.raises(QuorumError, match="ash withholds ward"):
        fitted(tables, family="binomial")


def test_a_strict_site_tells_no_sums_at_chosen_coefficients() -> None:
    tables = tables_of("binomial")
    with pytest.raises(QuorumError, match=r"grants\s+them by per_record"):
        fitted(tables, "strict", family="binomial")
    with pytest.raises(QuorumError, match="foreign_models"):
        fitted(tables, "strict", family="binomial", fit="one-shot")
    with pytest.raises(QuorumError, match="per_record"):
        fitted(tables_of("gaussian"), "strict", errors="HC1")


def test_more_columns_than_a_strict_site_tells() -> None:
    rng = np.random.default_rng(1)
    names = tuple(f"x{j}" for j in range(12))
    tables = {s: pd.DataFrame(rng.normal(size=(90, 13)), columns=[*names, "y"]) for s in SITES}
    with pytest.raises(ConsilienceError, match="take fewer columns"):
        PooledRegression().run(
            federation(tables, "strict", columns=Columns(features=names, target="y")), seed=0
        )


def test_a_site_of_few_entities_tells_nothing() -> None:
    columns = Columns(features=NAMES, target="y", entity="patient")
    tables = {s: t.assign(patient=np.arange(len(t)) % 20) for s, t in tables_of("gaussian").items()}
    made = federation(tables, "strict", columns=columns)
    assert PooledRegression().run(made, seed=0).result.n == 570
    tables["ash"]["patient"] = np.arange(150) % 2
    with pytest.raises(QuorumError, match="more entities than it has"):
        PooledRegression().run(federation(tables, "strict", columns=columns), seed=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dose": lambda t: t["age"] * 2.0}, "dose follows from the columns before it"),
        ({"dose": lambda t: 1.0 + 0 * t["age"]}, "dose does not vary"),
        ({"y": lambda t: 0 * t["y"]}, "the response has one value"),
    ],
)
def test_columns_that_tell_nothing(change: Any, said: str) -> None:
    tables = {s: t.assign(**change) for s, t in tables_of("binomial").items()}
    with pytest.raises(StudyError, match=said):
        fitted(tables, "simulation", family="binomial")
    if "follows" in said:
        assert np.isfinite(
            fitted(tables, "simulation", family="binomial", ridge=1.0).estimate
        ).all()


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_separation_is_a_sentence(family: str) -> None:
    tables = {
        s: t.assign(y=np.where(t["ward"] == 1, 0.0, t["y"])) for s, t in tables_of(family).items()
    }
    with pytest.raises(QuorumError, match=r"runs away along ward.*separated"):
        fitted(tables, "simulation", family=family)
    assert fitted(tables, "simulation", family=family, ridge=1.0).estimate[3] < 0


@pytest.mark.parametrize(
    ("family", "value", "said"),
    [("binomial", 2.0, "0 or 1"), ("poisson", 0.5, "whole numbers"), ("gamma", -1.0, "above 0")],
)
def test_a_response_that_the_family_does_not_have(family: str, value: float, said: str) -> None:
    tables = tables_of(family)
    tables["ash"].loc[0, "y"] = value
    with pytest.raises(QuorumError, match=said):
        fitted(tables, "simulation", family=family)


def test_settings_that_do_not_go_together() -> None:
    tables = tables_of("gaussian")
    for wrong in ({"family": "probit"}, {"ridge": -1.0}, {"level": 1.0}, {"errors": "HC5"}):
        with pytest.raises(ParameterError):
            fitted(tables, **wrong)
    with pytest.raises(StudyError, match="name target"):
        PooledRegression().run(federation(tables, columns=Columns(features=NAMES)), seed=0)
    with pytest.raises(StudyError, match="neither weights nor an offset"):
        columns = Columns(features=NAMES[:2], target="y", offset="ward")
        one_shot = PooledRegression(family="binomial", fit="one-shot")
        one_shot.run(federation(tables, columns=columns), seed=0)
    with pytest.raises(StudyError, match="HC errors"):
        fitted(tables, family="poisson", fit="one-shot", errors="HC0")


# --------------------------------------------------------------------------- result, predictor


def test_tests_of_some_columns() -> None:
    tables = tables_of("binomial")
    full = fitted(tables, family="binomial")
    made = federation(tables, columns=Columns(features=("age",), target="y"))
    small = PooledRegression(family="binomial").run(made, seed=0).result
    x, y, sites = stacked(tables)
    design = design_of(x, sites, False)
    expected = sm.GLM(y, design, family=FAMILIES["binomial"]).fit(tol=1e-14)
    less = sm.GLM(y, design[:, :2], family=FAMILIES["binomial"]).fit(tol=1e-14)
    value, df, p = full.likelihood_ratio(small)
    assert (value, df) == (pytest.approx(less.deviance - expected.deviance, rel=1e-8), 2)
    wald = expected.wald_test(np.eye(4)[[2, 3]], scalar=True, use_f=False)
    assert full.wald_test(["dose", "ward"])[2] == pytest.approx(float(wald.pvalue), rel=1e-6)
    assert 0 < p < 1
    with pytest.raises(ParameterError):
        small.likelihood_ratio(full)
    with pytest.raises(ParameterError):
        full.wald_test(["height"])
    by_site = fitted(tables, family="binomial", errors="cluster")
    with pytest.raises(ParameterError, match="3 clusters"):
        by_site.wald_test(["age", "dose", "ward"])
    assert math.isnan(by_site.tests["Wald"][0])


def test_where_few_rows_have_a_count_the_tests_go_on_without_deviance() -> None:
    tables = tables_of("poisson")
    there, free = (
        fitted(tables, policy, family="poisson") for policy in ("consortium", "simulation")
    )
    made = federation(tables, columns=Columns(features=("age",), target="y"))
    small = PooledRegression(family="poisson").run(made, seed=0).result
    gone = (there.deviance, there.null_deviance, there.log_likelihood, there.aic)
    assert np.isnan(gone).all() and np.isfinite(free.deviance)
    assert "AIC not told" in there.to_text() and "AIC are not told" in " ".join(there.remarks)
    np.testing.assert_allclose(there.error, free.error, rtol=1e-9)
    for what, told in there.tests.items():
        np.testing.assert_allclose(told, free.tests[what], rtol=1e-8)
    x, y, sites = stacked(tables)
    design = design_of(x, sites, False)
    more, less = (sm.GLM(y, d, family=FAMILIES["poisson"]).fit() for d in (design, design[:, :2]))
    assert there.likelihood_ratio(small)[0] == pytest.approx(2 * (more.llf - less.llf), rel=1e-7)


def test_results_and_predictors_are_read_back() -> None:
    tables = tables_of("gamma")
    run = PooledRegression(family="gamma").run(federation(tables), seed=0)
    again: Result = PooledRegressionResult.from_files(run.result.to_files())
    assert again.to_files() == run.result.to_files()
    kept = run.site("birch").predictor
    copy = RegressionPredictor.from_arrays(kept.to_arrays())
    rows = tables["birch"]
    np.testing.assert_array_equal(copy.limits(rows), kept.limits(rows))
    assert (kept.limits(rows)[:, 0] < kept.predict(rows)).all()
    with pytest.raises(DataError, match="lacks column 'dose'"):
        kept.predict(rows[["age", "ward"]])
    with pytest.raises(DataError, match="finite numbers"):
        kept.predict(np.full((2, 3), np.nan))
    for name in kept.to_arrays():
        less = {k: v for k, v in kept.to_arrays().items() if k != name}
        with pytest.raises(DataError):
            RegressionPredictor.from_arrays(less)


def test_a_refusal_of_a_later_round_stops_the_run() -> None:
    # Its weight at the fit gives one record more than half of the curvature, and of no moment.
    rng = np.random.default_rng(3)
    tables = {}
    for name in SITES:
        x = rng.normal(size=(160, 2))
        x[0, 0] = 5.0 if name == "ash" else x[0, 0]
        y = rng.poisson(np.exp(0.5 * x[:, 0])).astype(float)
        y[0] = 12.0 if name == "ash" else y[0]
        tables[name] = pd.DataFrame(np.column_stack([x, y]), columns=["x0", "x1", "y"])
    made = federation(tables, columns=Columns(features=("x0", "x1"), target="y"))
    with pytest.raises(QuorumError, match=r"ash refused: .*one record"):
        PooledRegression(family="poisson").run(made, seed=0)


def test_a_study_file_and_its_page(tmp_path: Path) -> None:
    shown = call("demo", "pooled-regression", "--folder", tmp_path / "demo", "--quiet")
    assert shown.exit_code == 0, shown.output
    text = (tmp_path / "demo" / "pooled-regression.toml").read_text()
    assert 'method = "pooled-regression"' in text
    pages = list((tmp_path / "demo").rglob("report.html"))
    assert pages and "Do sites have the same coefficients?" in pages[0].read_text()


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "pooled-regression.md"


def test_python_of_the_guide_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_printed(GUIDE)
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "coefficients.svg",
        "dose-by-site.svg",
        "risks.svg",
    }


@pytest.mark.parametrize("seed", range(3))
def test_long_tails_that_mislead_the_start_are_no_separation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = {}
    for site in "abc":
        x = rng.lognormal(0, 1.5, (400, 2))
        mean = np.exp(np.clip(0.2 + 0.1 * x[:, 0] - 0.1 * x[:, 1], -5, 5))
        tables[site] = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "y": rng.poisson(mean)})
    columns = Columns(features=("u", "v"), target="y")
    federation = Federation.local(tables, columns=columns, policy="simulation")
    result = PooledRegression(family="poisson").run(federation, seed=0).result
    rows = pd.concat(tables.values())
    model = sm.GLM(rows["y"], sm.add_constant(rows[["u", "v"]]), family=sm.families.Poisson())
    np.testing.assert_allclose(result.estimate, model.fit(tol=1e-12).params, rtol=1e-8)
    assert result.rounds < 16


@pytest.mark.parametrize(
    ("family", "policy"),
    [("gaussian", "strict"), *itertools.product(FAMILIES, ("simulation", "consortium"))],
)
def test_long_tables_tell_the_same_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, family: str, policy: str
) -> None:
    def told() -> list[Any]:
        result = fitted(tables_of(family, sizes=(5000, 4500, 9000)), policy, family=family)
        return [result.estimate, result.error, result.covariance, result.deviance]

    whole = told()
    monkeypatch.setattr("consilience.regression.protocol.site._MANY", 4096)
    monkeypatch.setattr("consilience.sites.row_guard.AT_ONCE", 4096)
    for one, other in zip(told(), whole, strict=True):
        np.testing.assert_array_equal(one, other)

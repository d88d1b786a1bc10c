"""Pooled regressions with an offset and weights: the fit of statsmodels, and what may leave."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from consilience import Columns, Policy, PooledRegression
from consilience.exceptions import QuorumError, StudyError
from consilience.regression import kernels
from tests.reference import pooled_regression as textbook
from tests.regression.test_pooled_regression import (
    FAMILIES,
    NAMES,
    design_of,
    federation,
    fitted,
    stacked,
    tables_of,
)


def with_roles(family: str, *, whole: bool = False) -> dict[str, pd.DataFrame]:
    """Tables with an offset that belongs to the response, and weights."""
    rng = np.random.default_rng(11)
    tables = {}
    for name, table in tables_of(family).items():
        known = rng.normal(0, 0.7, len(table))
        weight = rng.integers(1, 4, len(table)) if whole else rng.uniform(0.4, 2.5, len(table))
        y = table["y"]
        if family == "gaussian":
            y = y + known
        elif family == "poisson":
            y = rng.poisson(np.exp(0.2 + 0.4 * table["ward"] + known)).astype(float)
        elif family == "gamma":
            y = y * np.exp(known)
        tables[name] = table.assign(y=y, known=known, weight=weight.astype(float))
    return tables


def run(tables: Any, policy: Any = "simulation", *, roles: Any, **parameters: Any) -> Any:
    made = federation(tables, policy, columns=Columns(features=NAMES, target="y", **roles))
    return PooledRegression(**parameters).run(made, seed=0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("weights", ["none", "precision", "frequency"])
@pytest.mark.parametrize("family", FAMILIES)
def test_offset_and_weights_are_those_of_statsmodels(family: str, weights: str, own: bool) -> None:
    tables = with_roles(family, whole=weights == "frequency")
    roles = {"offset": "known"} | ({} if weights == "none" else {"weight": "weight"})
    more = {} if weights == "none" else {"weights": weights}
    result = run(tables, roles=roles, family=family, site_effects=own, **more).result
    x, y, sites = stacked(tables)
    design = design_of(x, sites, own)
    rows = pd.concat(tables.values())
    given: dict[str, Any] = {"offset": rows["known"].to_numpy()}
    if weights != "none":
        kind = "var_weights" if weights == "precision" else "freq_weights"
        given[kind] = rows["weight"].to_numpy()
    expected = sm.GLM(y, design, family=FAMILIES[family], **given).fit(tol=1e-14, maxiter=300)
    null = sm.GLM(y, design[:, : result.n_constants], family=FAMILIES[family], **given)
    nothing = null.fit(tol=1e-14, maxiter=300)
    np.testing.assert_allclose(result.estimate, expected.params, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(result.error, expected.bse, rtol=1e-8)
    assert result.deviance == pytest.approx(expected.deviance, rel=1e-9)
    assert result.null_deviance == pytest.approx(nothing.deviance, rel=1e-9)
    assert result.scale == pytest.approx(expected.scale, rel=1e-9)
    if family == "gamma" and weights == "precision":
        assert math.isnan(result.aic) and "shape of its own" in result.summary()
    else:
        assert result.log_likelihood == pytest.approx(expected.llf, rel=1e-9)
        assert result.aic == pytest.approx(expected.aic, rel=1e-9)
    if family in ("binomial", "poisson"):
        ratio = nothing.deviance - expected.deviance
        assert result.tests["likelihood ratio"][0] == pytest.approx(ratio, rel=1e-7)
        if weights == "none":
            score = null.score_test(nothing.params, exog_extra=design[:, result.n_constants :])
            assert result.tests["score"][0] == pytest.approx(float(np.ravel(score[0])[0]), rel=1e-7)
    assert result.rounds <= 14


@pytest.mark.parametrize("errors", kernels.ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_frequency_are_rows_repeated(family: str, errors: str) -> None:
    tables = with_roles(family, whole=True)
    roles = {"weight": "weight", "offset": "known"}
    counted = run(tables, roles=roles, family=family, errors=errors, weights="frequency")
    long = {s: t.loc[t.index.repeat(t["weight"].astype(int))] for s, t in tables.items()}
    plain = run(long, roles={"offset": "known"}, family=family, errors=errors)
    assert counted.result.n == plain.result.n
    np.testing.assert_allclose(counted.result.estimate, plain.result.estimate, rtol=1e-9)
    np.testing.assert_allclose(counted.result.error, plain.result.error, rtol=1e-8)
    assert counted.result.aic == pytest.approx(plain.result.aic, rel=1e-10)
    for what, told in plain.result.tests.items():
        np.testing.assert_allclose(counted.result.tests[what], told, rtol=1e-7)
    if plain.result.compares_sites:
        np.testing.assert_allclose(counted.result.q, plain.result.q, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_robust_errors_by_precision_are_those_of_the_textbook(family: str) -> None:
    tables = with_roles(family)
    rows = pd.concat(tables.values())
    x, y, sites = stacked(tables)
    design = design_of(x / [12.0, 0.01, 1.0], sites, False)
    given = {"offset": rows["known"].to_numpy(), "weight": rows["weight"].to_numpy()}
    theta = textbook.fit(family, design, y, **given)
    for errors in kernels.ERRORS:
        roles = {"offset": "known", "weight": "weight"}
        result = run(tables, roles=roles, family=family, errors=errors).result
        expected = textbook.covariance(family, design, y, theta, errors, sites, **given)
        unit = np.array([1.0, 12.0, 0.01, 1.0])
        np.testing.assert_allclose(result.estimate * unit, theta, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(result.covariance * np.outer(unit, unit), expected, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_by_cluster_beside_a_ridge_leave_its_pull_out(family: str) -> None:
    """Scores of sites add up to minus the pull; each site bears its share by its rows."""
    tables = tables_of(family, (60, 70, 80))
    x, y, sites = stacked(tables)
    design = design_of(x / [12.0, 0.01, 1.0], sites, False)
    pull = 3.0 / np.array([np.inf, 12.0, 0.01, 1.0]) ** 2
    theta = textbook.fit(family, design, y, ridge=pull)
    expected = textbook.covariance(family, design, y, theta, "cluster", sites, ridge=pull)
    result = fitted(tables, "simulation", family=family, errors="cluster", ridge=3.0)
    unit = np.array([1.0, 12.0, 0.01, 1.0])
    np.testing.assert_allclose(result.covariance * np.outer(unit, unit), expected, rtol=1e-6)


def test_fitted_values_and_predictions_have_the_offset() -> None:
    tables = with_roles("poisson")
    done = run(tables, roles={"offset": "known"}, family="poisson", site_effects=True)
    kept, table = done.site("birch").predictor, tables["birch"]
    np.testing.assert_allclose(
        kept.predict(table, table["known"]), done.site("birch").values("fitted"), rtol=1e-12
    )
    np.testing.assert_allclose(
        kept.limits(table.iloc[:4], math.log(2)), 2 * kept.limits(table.iloc[:4]), rtol=1e-12
    )
    assert "offset known" in done.result.to_text()


def test_an_offset_of_a_gaussian_response_needs_no_grant_and_a_weight_does() -> None:
    tables = with_roles("gaussian")
    strict = run(tables, "strict", roles={"offset": "known"})
    free = run(tables, roles={"offset": "known"})
    assert strict.result.rounds == 1
    np.testing.assert_allclose(strict.result.estimate, free.result.estimate, rtol=1e-12)
    with pytest.raises(QuorumError, match="per_record"):
        run(tables, "strict", roles={"weight": "weight"})
    assert run(tables, "consortium", roles={"weight": "weight"}).result.rounds == 2


@pytest.mark.parametrize("role", ["offset", "weight"])
def test_a_weight_or_an_offset_of_few_rows_stays(role: str) -> None:
    """Sums with it and without would tell those of the few rows that have another one."""
    tables = with_roles("binomial")
    for table in tables.values():
        table["few"] = np.where(np.arange(len(table)) < 3, 2.0, 1.0)
    with pytest.raises(QuorumError, match="the offset or the weight may not be told"):
        run(tables, "consortium", roles={role: "few"}, family="binomial")
    run(tables, roles={role: "few"}, family="binomial")


def test_digits_of_a_weight_that_few_rows_have_do_not_count() -> None:
    tables = with_roles("gaussian", whole=True)
    odd = {s: t.assign(weight=t["weight"] + (t.index < 3) * 1e-3) for s, t in tables.items()}
    of = {"roles": {"weight": "weight"}, "family": "gaussian"}
    plain, there = (run(t, "consortium", **of).result for t in (tables, odd))
    np.testing.assert_array_equal(there.estimate, plain.estimate)
    assert (run(odd, **of).result.estimate != plain.estimate).all()
    # one that is near 0 beside the step of all others counts one step, and the site does answer
    small = {s: t.assign(weight=t["weight"].where(t.index > 0, 0.3)) for s, t in tables.items()}
    one = {s: t.assign(weight=t["weight"].where(t.index > 0, 1.0)) for s, t in tables.items()}
    for policy in ("consortium", Policy(per_record=True, foreign_models=True)):
        there, plain = (run(t, policy, **of).result for t in (small, one))
        np.testing.assert_array_equal(there.estimate, plain.estimate)


def test_a_likelihood_of_weights_of_which_some_are_rare_is_named() -> None:
    """Frequencies have no logarithm in it; of precisions the deviance is told all the same."""
    tables = with_roles("gaussian", whole=True)
    for table in tables.values():
        table["weight"] += 3.0 * (table.index % 2) + 3.0 * (table.index < 3)
    of: dict[str, Any] = {"roles": {"weight": "weight"}}
    counted = run(tables, "consortium", **of, weights="frequency").result
    free = run(tables, **of, weights="frequency").result
    assert counted.aic == pytest.approx(free.aic, rel=1e-12)
    precise, free = (run(tables, policy, **of).result for policy in ("consortium", "simulation"))
    assert math.isnan(precise.aic) and "value of the weight" in precise.summary()
    assert precise.deviance == pytest.approx(free.deviance, rel=1e-12)
    assert "log likelihood and AIC not told, deviance" in precise.to_text()


def test_weights_of_frequency_are_whole() -> None:
    with pytest.raises(QuorumError, match="weights of frequency must be whole numbers"):
        run(with_roles("binomial"), roles={"weight": "weight"}, weights="frequency")
    with pytest.raises(StudyError, match="meta-clustering knows no offset over rows"):
        from consilience import MetaClustering

        columns = Columns(features=NAMES[:2], target="y", offset="ward")
        MetaClustering().run(federation(tables_of("gaussian"), columns=columns), seed=0)


def test_a_likelihood_ratio_is_of_the_same_offset_and_weights() -> None:
    tables = with_roles("poisson")
    roles = {"offset": "known", "weight": "weight"}
    full = run(tables, roles=roles, family="poisson").result
    fewer = Columns(features=("ward",), target="y", **roles)
    small = PooledRegression(family="poisson").run(
        federation(tables, "simulation", columns=fewer), seed=0
    )
    assert full.likelihood_ratio(small.result)[1] == 2
    bare = Columns(features=("ward",), target="y")
    other = PooledRegression(family="poisson").run(
        federation(tables, "simulation", columns=bare), seed=0
    )
    with pytest.raises(Exception, match="the same rows"):
        full.likelihood_ratio(other.result)


@pytest.mark.parametrize("policy", ["consortium", "simulation"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_likelihood_ratio_needs_no_likelihood_that_is_told(family: str, policy: str) -> None:
    tables = tables_of(family)
    x, y, sites = stacked(tables)
    full, small = (
        PooledRegression(family=family)
        .run(federation(tables, policy, columns=Columns(features=f, target="y")), seed=0)
        .result
        for f in (NAMES, NAMES[:1])
    )
    value, df, _ = full.likelihood_ratio(small)
    fits = [
        sm.GLM(y, design_of(x[:, :m], sites, False), family=FAMILIES[family]).fit(tol=1e-14)
        for m in (3, 1)
    ]
    expected = (fits[1].deviance - fits[0].deviance) / fits[0].scale
    if family == "gaussian":
        expected = 2 * (fits[0].llf - fits[1].llf)
    assert value == pytest.approx(expected, rel=1e-7) and df == 2


def test_a_study_file_with_offset_and_weight(tmp_path: Path) -> None:
    from consilience.sites.study import Study

    text = (
        'name = "rates"\nmethod = "pooled-regression"\n[parameters]\nfamily = "poisson"\n'
        '[data]\nfeatures = ["age"]\ntarget = "y"\n{}[sites]\nnames = ["ash"]\n'
    )
    (tmp_path / "a.toml").write_text(text.format('offset = "log_years"\nweight = "w"\n'))
    (tmp_path / "b.toml").write_text(text.format(""))
    study, bare = (Study.load(tmp_path / name) for name in ("a.toml", "b.toml"))
    assert study.columns.offset == "log_years" and study.columns.weight == "w"
    assert Study.from_canonical(study.canonical()).columns == study.columns
    assert "offset" not in bare.canonical()  # it keeps the hash that it had


@pytest.mark.parametrize("family", [*FAMILIES, "negative-binomial"])
def test_sums_in_blocks_of_rows_are_those_of_the_textbook(family: str) -> None:
    """More rows than a block has, far from 0 in their own units, with an offset and weights."""
    rng = np.random.default_rng(8)
    n = 2100
    x = rng.normal([1e4, 0.0], [30.0, 0.01], size=(n, 2))
    centre, scale = np.array([9990.0, 0.001]), np.array([31.0, 0.012])
    offset, weight = rng.normal(0, 0.3, n), rng.uniform(0.5, 2.0, n)
    y = rng.normal(size=n) if family == "gaussian" else rng.poisson(1.0, n) + 0.0
    y = np.minimum(y, 1.0) if family == "binomial" else y + 0.5 * (family == "gamma")
    rows = kernels.Rows(kernels.Design(x, centre, scale), y, offset, weight)
    theta, alpha = np.array([0.2, -0.3, 0.4]), textbook.ALPHA
    piece, terms = kernels.summed(family, rows, theta, squares=True, alpha=alpha)
    design = np.column_stack([np.ones(n), (x - centre) / scale])
    score, observed, expected, squares = textbook.sums(
        family, design, y, theta, offset=offset, weight=weight
    )
    np.testing.assert_allclose(piece.score, score, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(piece.curvature, observed, rtol=1e-11)
    np.testing.assert_allclose(piece.information, expected, rtol=1e-11)
    np.testing.assert_allclose(piece.squares, squares, rtol=1e-11)
    np.testing.assert_allclose(rows.eta(theta), design @ theta + offset, rtol=1e-12)
    whole = kernels.terms_of(family, rows, rows.eta(theta), alpha)
    for name in ("score", "curvature", "expected", "squares", "pearson"):
        np.testing.assert_allclose(getattr(terms, name), getattr(whole, name), rtol=1e-11)
    np.testing.assert_allclose(design.T @ terms.score, score, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose((design.T * terms.squares) @ design, squares, rtol=1e-11)

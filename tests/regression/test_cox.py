"""Cox regressions over sites: the stratified fit to all rows, errors, tests, refusals."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import chi2

from consilience import Columns, Federation, Policy, PooledRegression, Preparation, report
from consilience.exceptions import (
    ConsilienceError,
    DataError,
    ParameterError,
    QuorumError,
    StudyError,
)
from consilience.regression import cox, performance
from consilience.regression.estimators import RegressionPredictor
from consilience.regression.kernels import Design, Rows
from consilience.regression.protocol.site import _pairs
from consilience.wire.disclosure import Limits
from tests.cli.workspace import call
from tests.reference import cox as textbook

NAMES = ("age", "dose", "ward")
SCALE = np.array([12.0, 0.01, 1.0])
SITES = ("ash", "birch", "cedar")


def draw(n: int, seed: int, *, rate: float = 1.0, apart: float = 0.0, tied: float = 0.0) -> Any:
    """Rows of one site; times in days are whole numbers where they are tied."""
    rng = np.random.default_rng(seed)
    z = np.column_stack([rng.normal(size=(n, 2)), rng.random(n) < 0.4])
    hazard = rate * np.exp(z @ [0.5, -0.3 + apart, 0.4])
    until, seen = rng.exponential(1 / hazard), rng.exponential(1.5, n)
    table = pd.DataFrame(z * SCALE + [60.0, 0.0, 0.0], columns=list(NAMES))
    table["years"] = np.minimum(until, seen) + 1e-3
    if tied:
        table["years"] = np.ceil(table["years"] * tied)
    return table.assign(died=(until <= seen).astype(float))


def tables_of(sizes: Any = (150, 190, 230), **more: Any) -> dict[str, pd.DataFrame]:
    names = SITES if len(sizes) == 3 else [f"s{i:02}" for i in range(len(sizes))]
    return {
        name: draw(n, seed, rate=0.6 + seed % 5 / 2, **more)
        for seed, (name, n) in enumerate(zip(names, sizes, strict=True))
    }


def fitted(tables: Any, policy: Any = "consortium", **parameters: Any) -> Any:
    more = {name: parameters.pop(name) for name in ("weight", "offset") if name in parameters}
    rules = parameters.pop("preparation", Preparation())
    columns = Columns(features=(*NAMES, "years"), target="died", **more)
    made = Federation.local(tables, columns=columns, policy=policy, preparation=rules)
    return PooledRegression(family="cox", time="years", **parameters).run(made, seed=0)


def stacked(
    tables: Any, least: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, pd.DataFrame]:
    """All rows; events with fewer than `least` people at risk at their site are not seen."""
    rows = pd.concat(tables.values())
    sites = np.repeat(list(tables), [len(t) for t in tables.values()])
    x = (rows[list(NAMES)].to_numpy() - [60.0, 0, 0]) / SCALE
    time, event = rows["years"].to_numpy(), rows["died"].to_numpy()
    return x, time, textbook.until_few(time, event, sites, least), sites, rows


@pytest.mark.parametrize("tied", [0.0, 16.0])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize(("policy", "least"), [("simulation", 1), ("consortium", 10)])
def test_it_is_the_stratified_fit_of_statsmodels_to_all_rows(
    ties: str, tied: float, policy: str, least: int
) -> None:
    """Where records are protected, to all rows until few are at risk at their site."""
    tables = tables_of(tied=tied)
    x, time, event, sites, _ = stacked(tables, least)
    assert 0 < event.sum() == sum(t["died"].sum() for t in tables.values()) or least > 1
    result = fitted(tables, policy, ties=ties).result
    model = sm.PHReg(time, x, status=event, strata=sites, ties=ties)
    expected = model.fit(tol=1e-14)
    np.testing.assert_allclose(result.estimate * SCALE, expected.params, rtol=1e-8)
    np.testing.assert_allclose(result.error * SCALE, expected.bse, rtol=1e-8)
    np.testing.assert_allclose(result.log_likelihood, expected.llf, rtol=1e-10)
    null = model.loglike(np.zeros(3))
    np.testing.assert_allclose(
        result.tests["likelihood ratio"][0], 2 * (expected.llf - null), rtol=1e-8
    )
    u, h = model.score(np.zeros(3)), -model.hessian(np.zeros(3))
    np.testing.assert_allclose(result.tests["score"][0], u @ np.linalg.solve(h, u), rtol=1e-8)
    wald = expected.params @ np.linalg.solve(expected.cov_params(), expected.params)
    np.testing.assert_allclose(result.tests["Wald"][0], wald, rtol=1e-8)
    assert result.names == NAMES and result.rounds <= 7 and math.isnan(result.deviance)
    assert result.aic == pytest.approx(-2 * expected.llf + 6)
    assert result.events.tolist() == [int(t["died"].sum()) for t in tables.values()]
    text = result.to_text()
    assert "Cox" in text and f"{result.events.sum()} events" in text and ties in text


@pytest.mark.parametrize("beside", ["", "offset", "precision", "frequency"])
def test_weights_offset_and_robust_errors_are_those_of_the_textbook(beside: str) -> None:
    tables = tables_of((60, 70, 80), tied=4.0)
    rng = np.random.default_rng(5)
    for name, table in tables.items():
        n = len(table)
        weight = rng.integers(1, 4, n) if beside == "frequency" else rng.uniform(0.5, 3, n)
        tables[name] = table.assign(w=weight.astype(float), o=rng.normal(size=n))
    x, time, event, sites, rows = stacked(tables)
    of: dict[str, Any] = {"errors": "HC0"}
    how: dict[str, Any] = {}
    weight = np.ones(len(x))
    if beside == "offset":
        of["offset"], how["offset"] = "o", rows["o"].to_numpy()
    elif beside:
        of |= {"weight": "w", "weights": beside}
        weight = rows["w"].to_numpy()
        if beside == "precision":
            how["weight"] = weight
    times = weight.astype(int) if beside == "frequency" else np.ones(len(x), dtype=int)
    x, time, event, sites = (np.repeat(one, times, axis=0) for one in (x, time, event, sites))
    theta = textbook.fit(x, time, event, strata=sites, **how)
    loss, _, curve, residual = textbook.sums(x, time, event, theta, strata=sites, **how)
    bread = np.linalg.inv(curve)
    meat = how.get("weight", np.ones(len(x)))[:, None] * residual
    result = fitted(tables, "simulation", **of).result
    assert result.n == len(x)
    assert result.events.tolist() == [int(event[sites == name].sum()) for name in SITES]
    np.testing.assert_allclose(result.estimate * SCALE, theta, rtol=1e-8)
    covariance = result.covariance * np.outer(SCALE, SCALE)
    np.testing.assert_allclose(covariance, bread @ meat.T @ meat @ bread, rtol=1e-7)
    np.testing.assert_allclose(result.log_likelihood, -loss, rtol=1e-10)
    plain = fitted(tables, "simulation", **of | {"errors": "model"}).result
    np.testing.assert_allclose(plain.covariance * np.outer(SCALE, SCALE), bread, rtol=1e-7)


def test_a_ridge_and_clusters_and_prepared_columns() -> None:
    tables = tables_of((60, 70, 80))
    x, time, event, sites, _ = stacked(tables)
    spread = x.std(axis=0)
    rules = Preparation(standardize="pooled")
    run = fitted(tables, "simulation", ridge=3.0, preparation=rules)
    scaled = textbook.fit(x / spread, time, event, penalty=3.0, strata=sites)
    ddof = np.sqrt(len(x) / (len(x) - 1))
    near = run.result.estimate / scaled
    assert (np.abs(near - 1) < ddof - 1 + 1e-3).all() and not run.result.tests
    cluster = fitted(tables, "simulation", errors="cluster").result
    theta = textbook.fit(x, time, event, strata=sites)
    scores = [
        textbook.sums(x[own], time[own], event[own], theta)[1]
        for own in (sites == name for name in SITES)
    ]
    bread = np.linalg.inv(textbook.sums(x, time, event, theta, strata=sites)[2])
    d = event.sum()
    expected = bread @ sum(np.outer(u, u) for u in scores) @ bread * (1.5 * (d - 1) / (d - 3))
    np.testing.assert_allclose(
        cluster.covariance * np.outer(SCALE, SCALE), expected, rtol=1e-6, atol=1e-12
    )
    assert cluster.df == 2


@pytest.mark.parametrize("sizes", [(300, 12), (12,) * 50])
def test_two_to_fifty_sites_and_sites_of_twelve_rows(sizes: Any) -> None:
    tables = tables_of(sizes)
    x, time, event, sites, _ = stacked(tables)
    result = fitted(tables, "simulation").result
    expected = sm.PHReg(time, x, status=event, strata=sites, ties="efron").fit(tol=1e-14)
    np.testing.assert_allclose(result.estimate * SCALE, expected.params, rtol=1e-8)
    np.testing.assert_allclose(result.error * SCALE, expected.bse, rtol=1e-8)


def test_rare_events() -> None:
    tables = {}
    for seed, name in enumerate(SITES):
        others, few = draw(1500, seed).query("died == 0"), draw(200, 9 + seed).query("died == 1")
        tables[name] = pd.concat([others.head(400), few.head(15)])
    x, time, event, sites, _ = stacked(tables)
    result = fitted(tables, "simulation").result
    expected = sm.PHReg(time, x, status=event, strata=sites, ties="efron").fit(tol=1e-14)
    np.testing.assert_allclose(result.estimate * SCALE, expected.params, rtol=1e-7)
    assert result.events.tolist() == [15, 15, 15]


def test_the_heart_transplants_of_a_library() -> None:
    """69 patients of Stanford, as statsmodels has them, at two made-up hospitals."""
    data = sm.datasets.heart.load_pandas().data
    table = pd.DataFrame(
        {"age": data["age"], "years": data["survival"] + 1, "died": data["censors"]}
    )
    tables = {"east": table.iloc[::2], "west": table.iloc[1::2]}
    columns = Columns(features=("age", "years"), target="died")
    strata = np.repeat(["east", "west"], [len(t) for t in tables.values()])
    rows = pd.concat(tables.values())
    time, died = rows["years"].to_numpy(), rows["died"].to_numpy()
    for policy, least in (("simulation", 1), ("consortium", 10)):
        made = Federation.local(tables, columns=columns, policy=policy)
        result = PooledRegression(family="cox", time="years").run(made, seed=0).result
        seen = textbook.until_few(time, died, strata, least)
        model = sm.PHReg(time, rows[["age"]], status=seen, strata=strata, ties="efron")
        np.testing.assert_allclose(result.estimate, model.fit(tol=1e-14).params, rtol=1e-8)


def test_own_fits_in_one_shot_are_near_and_need_their_grant() -> None:
    tables = tables_of((400, 420, 440))
    exact = fitted(tables).result
    near = fitted(tables, Policy(foreign_models=True), fit="one-shot").result
    assert near.fit == "one-shot" and near.rounds == 2
    assert (np.abs(near.estimate - exact.estimate) < 0.2 * exact.error).all()
    np.testing.assert_allclose(near.error, exact.error, rtol=0.05)
    assert set(near.tests) == {"Wald", "likelihood ratio"}
    ratios = [one.tests["likelihood ratio"][0] for one in (near, exact)]
    np.testing.assert_allclose(*ratios, rtol=0.05)
    own = [one.site_estimates * SCALE for one in (near, exact)]
    np.testing.assert_allclose(*own, atol=0.1)


def test_sites_that_differ_are_found_and_what_to_do_is_said() -> None:
    tables = tables_of((300, 320, 340))
    same = fitted(tables).result
    assert same.compares_sites and not same.sites_differ and same.heterogeneity[1] == 6
    other = fitted(tables | {"cedar": draw(340, 9, apart=1.2)}).result
    assert other.sites_differ and "MetaClustering" not in other.summary()
    assert other.differences["p_value"].idxmin() == "dose"


def test_sites_keep_a_predictor_and_martingale_residuals() -> None:
    tables = tables_of()
    run = fitted(tables)
    x, time, event, sites, rows = stacked(tables)
    site = run.site("ash")
    mean = rows[list(NAMES)].mean().to_frame().T
    np.testing.assert_allclose(site.predictor.predict(mean), [1.0], rtol=1e-10)
    other = mean.assign(age=mean["age"] + 10)
    ratio = math.exp(10 * run.result.estimate[0])
    np.testing.assert_allclose(site.predictor.predict(other), [ratio], rtol=1e-10)
    limits = np.exp(10 * np.array([run.result.low[0], run.result.high[0]]))
    np.testing.assert_allclose(site.predictor.limits(other), [limits], rtol=1e-6)
    breslow = fitted(tables, ties="breslow")
    residual = breslow.site("ash").values("residual")
    own = sites == "ash"
    risk = np.exp(x[own] @ (breslow.result.estimate * SCALE))
    steps = event[own] / np.array([risk[time[own] >= t].sum() for t in time[own]])
    hazard = risk * np.array([steps[time[own] <= t].sum() for t in time[own]])
    np.testing.assert_allclose(residual, event[own] - hazard, atol=1e-8)
    assert abs(residual.sum()) < 1e-9


@pytest.mark.parametrize("tied", [0.0, 16.0])
def test_survival_at_times_is_that_of_the_textbook_and_of_a_library(tied: float) -> None:
    tables = tables_of(tied=tied)
    run = fitted(tables)
    predictor, own = run.site("birch").predictor, tables["birch"]
    people = own[list(NAMES)].iloc[:3] * 1.1
    x, person = own[list(NAMES)].to_numpy(), people.to_numpy()
    time, event = own["years"].to_numpy(), own["died"].to_numpy()
    times = np.array([0.0, *np.quantile(time, [0.1, 0.5, 0.9])])
    found = predictor.predict_survival(people, times)
    for i, j in np.ndindex(3, 4):
        expected = textbook.survival(
            x, time, event, run.result.estimate, run.result.covariance, person[i], times[j]
        )
        assert found.share[i, j] == pytest.approx(expected[0], rel=1e-9)
        assert found.error[i, j] == pytest.approx(expected[1], rel=1e-5)
    inside = (found.low <= found.share) & (found.share <= found.high)
    assert inside.all() and (found.share[:, 0] == 1).all() and (found.error[:, 0] == 0).all()
    copy = type(predictor).from_arrays(predictor.to_arrays())
    np.testing.assert_array_equal(copy.predict_survival(people, times), found)
    late = predictor.predict_survival(people, time.max() * np.array([1.0, 1.01]))
    assert np.isfinite(late.share[:, 0]).all() and np.isnan(np.array(late)[..., 1]).all()
    # statsmodels has the hazard before each event time, of somebody whose columns are all 0
    model = sm.PHReg(time, x - x.mean(axis=0), status=event)
    at, hazard, _ = model.baseline_cumulative_hazard(run.result.estimate)[0]
    mean = own[list(NAMES)].mean().to_frame().T
    before = predictor.predict_survival(mean, at - 1e-9).share[0]
    np.testing.assert_allclose(before, np.exp(-hazard), rtol=1e-9)


def test_weights_and_offset_have_their_part_in_the_baseline() -> None:
    table = draw(80, 4, tied=8.0)
    x, times = table[list(NAMES)].to_numpy() / SCALE, np.arange(80) % 3 + 1
    own = (x, table["died"].to_numpy(), table["years"].to_numpy())
    theta = np.array([0.2, 0.4, -0.3, 0.1])

    def baseline(x: Any, y: Any, time: Any, beta: Any = theta, **how: Any) -> Any:
        return cox.baseline(Rows(Design(x, np.zeros(3), np.ones(3)), y, time=time, **how), beta)

    repeated = baseline(*(np.repeat(one, times, axis=0) for one in own))
    for frequency in (True, False):
        counted = baseline(*own, weight=times.astype(float), frequency=frequency)
        np.testing.assert_allclose(counted, repeated, rtol=1e-12)
    plain = baseline(*own)
    moved = baseline(*own, offset=0.3 + 0.5 * x[:, 0], beta=theta - [0.3, 0.5, 0, 0])
    np.testing.assert_allclose(moved, plain, rtol=1e-12)
    assert not np.allclose(plain[:, 1], repeated[:, 1])


def test_what_survival_is_asked_of_is_said() -> None:
    predictor = fitted(tables_of()).site("ash").predictor
    row = np.zeros((1, 3))
    for times, said in (([-1.0], "at least 0"), ([np.inf], "finite"), ("soon", "numbers")):
        with pytest.raises(DataError, match=said):
            predictor.predict_survival(row, times)
    for times in (["1"], [True], np.array([1], dtype="timedelta64[D]")):
        with pytest.raises(DataError, match="numbers"):
            predictor.predict_survival(row, times)
    certain = predictor.predict_survival(
        row, [0.0, 5.0], offset=800.0
    )  # a ratio beyond all numbers
    assert certain.share[0].tolist() == [1.0, 0.0]
    assert certain.error[0].tolist() == [0.0, 0.0]
    arrays = predictor.to_arrays()
    with pytest.raises(DataError, match="do not hold a predictor"):
        RegressionPredictor.from_arrays(arrays | {"baseline": arrays["baseline"][:, 1:]})
    del arrays["baseline"]
    with pytest.raises(DataError, match="run the study again"):
        RegressionPredictor.from_arrays(arrays).predict_survival(row, 1.0)


def test_limits_of_survival_hold_what_they_say() -> None:
    # Monte Carlo error of a coverage of .95 over 600 draws: .009
    person, until, held, narrow = np.array([[1.5]]), 0.5, 0, 0
    truth = math.exp(-until * math.exp(0.8 * 1.5))
    for seed in range(600):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(120, 1))
        life, seen = rng.exponential(np.exp(-0.8 * x[:, 0])), rng.exponential(2.0, 120)
        rows = Rows(
            Design(x, np.zeros(1), np.ones(1)),
            (life <= seen).astype(float),
            time=np.minimum(life, seen),
        )
        fit = cox.fit_alone(rows, "efron")
        assert fit is not None
        theta, covariance = np.append(0.0, fit.theta), np.zeros((2, 2))
        covariance[1, 1] = 1 / fit.curvature[0, 0]
        kept: dict[str, Any] = {"family": "cox", "names": np.array(["x"]), "df": np.inf}
        kept |= {"coefficients": theta, "level": 0.95, "baseline": cox.baseline(rows, theta)}
        for errors in (covariance, 0 * covariance):
            predictor = RegressionPredictor(**kept, covariance=errors)
            found = predictor.predict_survival(person, until)
            inside = bool(found.low[0, 0] <= truth <= found.high[0, 0])
            held, narrow = (held + inside, narrow) if errors.any() else (held, narrow + inside)
    assert abs(held / 600 - 0.95) < 0.027
    assert narrow / 600 < 0.9  # the control: without the coefficients' part they are too narrow


def test_of_many_times_a_predictor_keeps_some(monkeypatch: pytest.MonkeyPatch) -> None:
    table = draw(400, 3)
    x = table[list(NAMES)].to_numpy()
    rows = Rows(
        Design(x, np.zeros(3), np.ones(3)),
        table["died"].to_numpy(),
        time=table["years"].to_numpy(),
    )
    whole = cox.baseline(rows, np.zeros(4))
    monkeypatch.setattr(cox, "_MOST_LINES", 100)
    some = cox.baseline(rows, np.zeros(4))
    assert 50 < len(some) <= 101 and set(map(tuple, some)) <= set(map(tuple, whole))
    np.testing.assert_array_equal(some[-2:], whole[-2:])


def test_what_has_no_fit_is_refused_in_a_sentence() -> None:
    tables = tables_of()
    for change, said in (
        (lambda t: t.assign(dose=0.5), "dose does not vary within sites"),
        (lambda t: t.assign(dose=2 * t["age"] + 1), "dose follows from the columns before it"),
        (lambda t: t.assign(dose=t["died"] - t["years"] / 100), "runs away along dose"),
        (lambda t: t.assign(years=t["years"] - 0.5), "must be above 0"),
        (lambda t: t.assign(died=t["died"] * 2), "0 or 1"),
    ):
        changed = {name: change(table) for name, table in tables.items()}
        with pytest.raises(ConsilienceError, match=said):
            fitted(changed, "simulation")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"time": ""}, "needs time, a feature that is a number, one of age, dose, ward, years$"),
        ({"time": "died"}, "one of age, dose, ward, years, but 'died' was given"),
        ({"site_effects": True}, "leave site_effects out"),
        ({"errors": "HC1"}, "HC0"),
        ({"family": "poisson"}, "family = 'cox'"),
        ({"family": "binomial", "time": "", "ties": "breslow"}, "family = 'cox'"),
        ({"ties": "exact"}, "ties must be"),
    ],
)
def test_settings_that_do_not_go_together(parameters: dict[str, Any], said: str) -> None:
    columns = Columns(features=(*NAMES, "years"), target="died")
    made = Federation.local(tables_of(), columns=columns, policy="simulation")
    with pytest.raises((StudyError, ParameterError), match=said):
        PooledRegression(**{"family": "cox", "time": "years"} | parameters).run(made, seed=0)


def test_few_events_or_few_without_one_stay_at_a_protected_site() -> None:
    tables = tables_of()
    few = tables["ash"].assign(died=lambda t: (np.arange(len(t)) < 6).astype(float))
    with pytest.raises(QuorumError, match="response may not be told"):
        fitted(tables | {"ash": few})
    with pytest.raises(QuorumError, match="response may not be told"):
        fitted(tables | {"ash": few.assign(died=lambda t: 1 - t["died"])})
    with pytest.raises(QuorumError, match="tells no sums"):
        fitted(tables, "strict")
    # and where an order of events would follow from a likelihood, it stays
    small = fitted(tables_of((80, 200, 200))).result
    assert math.isnan(small.log_likelihood) and "in which order" in " ".join(small.remarks)
    assert math.isfinite(small.tests["likelihood ratio"][0])


def test_from_tables_to_a_report_at_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, table in tables_of().items():
        table.to_csv(f"{name}.csv", index=False)
    words = ["pooled-regression", *(f"{name}.csv" for name in SITES), "--target=died"]
    words += ["--set", "family=cox", "--set", "time=years", "--policy=consortium"]
    assert call("init", *words).exit_code == 0
    assert call("check", "pooled-regression/study.toml").exit_code == 0
    ended = call("run", "pooled-regression/study.toml", "--quiet", "--out", "runs/1")
    assert ended.exit_code == 0, ended.output
    folder = Path("runs/1")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for said in ("The hazard of died depends on", "hazard ratio", "stratified by site", "Efron"):
        assert said in " ".join(page.split())
    assert "MetaClustering" not in page and "site_effects = true does not" not in page
    assert "No study is proposed" in call("next", str(folder)).output


@pytest.mark.parametrize("tied", [False, True])
def test_pairs_in_order_are_those_of_the_textbook(tied: bool) -> None:
    rng = np.random.default_rng(int(tied))
    time, event, eta = rng.exponential(size=24), rng.random(24) < 0.6, rng.normal(size=24)
    if tied:
        time, eta = np.ceil(3 * time), eta.round()
    site = np.arange(24) % 2
    sums = [
        performance.pair_sums(*performance.pairs_of(time[one], event[one] * 1.0, eta[one]))
        for one in (site == 0, site == 1)
    ]
    expected = textbook.concordance(time, event, eta, site)
    assert performance.concordance(sum(sums)) == pytest.approx(expected, rel=1e-7)


def pairs_at(table: pd.DataFrame, slopes: np.ndarray) -> tuple[float, float]:
    """Pairs in order, and pairs that can be compared, one beside the other."""
    eta, time, event = table[list(NAMES)].to_numpy() @ slopes, table["years"], table["died"] == 1
    t, d = time.to_numpy(), event.to_numpy()
    known = d[:, None] & ((t[:, None] < t) | ((t[:, None] == t) & ~d))
    order = np.greater.outer(eta, eta) + np.equal.outer(eta, eta) / 2
    return float(order[known].sum()), float(known.sum())


@pytest.mark.parametrize("way", ["exact", "one-shot"])
def test_concordance_by_site_and_over_pairs_within_sites(way: str, tmp_path: Path) -> None:
    tables = tables_of(tied=16.0)
    policy = "consortium" if way == "exact" else Policy(foreign_models=True)
    plain, done = (fitted(tables, policy, fit=way, performance=asked) for asked in (False, True))
    result = done.result
    np.testing.assert_array_equal(result.estimate, plain.result.estimate)
    assert result.rounds == plain.result.rounds + 1 and not len(plain.result.concordance)
    seen, sites = stacked(tables, 10)[2:4]
    ended = [table.assign(died=seen[sites == name]) for name, table in tables.items()]
    pairs = np.array([pairs_at(table, result.estimate) for table in ended])
    shares = [*(pairs[:, 0] / pairs[:, 1]), pairs[:, 0].sum() / pairs[:, 1].sum()]
    np.testing.assert_allclose(result.concordance[:, 0], shares, rtol=1e-12)
    assert result.concordance[-1, 1] > 0 and (result.concordance[:-1, 1] < 0.05).all()
    frame = result.performance
    assert frame.loc["birch", "events"] == tables["birch"]["died"].sum()
    assert frame["concordance"].tolist() == result.concordance[:-1, 0].tolist()
    text = report.write(done, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Do those at higher risk have the event first?" in text and "all sites" in text
    assert type(result).from_files(result.to_files()).to_files() == result.to_files()


def test_the_error_of_concordance_covers() -> None:
    """Of 400 samples 95% limits hold the share of a large one: Monte Carlo error .011."""
    rng = np.random.default_rng(0)

    def found(n: int) -> tuple[float, float]:
        eta, seen = rng.normal(size=n), rng.exponential(1.5, n)
        until = rng.exponential(np.exp(-eta))
        pairs = performance.pairs_of(np.minimum(until, seen), (until <= seen) * 1.0, eta)
        return performance.concordance(performance.pair_sums(*pairs))

    truth = found(60_000)[0]
    drawn = np.array([found(150) for _ in range(400)])
    assert 0.92 < (np.abs(drawn[:, 0] - truth) < 1.96 * drawn[:, 1]).mean() < 0.98


@pytest.mark.parametrize(
    ("n", "events", "least", "told"),
    [(400, 9, 2, False), (40, 20, 10, False), (400, 60, 10, True), (400, 60, 61, False)],
)
def test_pairs_of_few_events_or_orders_stay(n: int, events: int, least: int, told: bool) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, 1)), (rng.permutation(n) < events) * 1.0
    rows = Rows(Design(x, np.zeros(1), np.ones(1)), y, time=rng.exponential(size=n))
    assert (_pairs(rows, x[:, 0], Limits(least)) is not None) == told
    assert _pairs(rows, x[:, 0], Limits(1)) is not None


@pytest.mark.parametrize("ties", cox.TIES)
@pytest.mark.parametrize("way", ["exact", "one-shot"])
def test_proportional_hazards_are_tested_as_the_textbook_does(ties: str, way: str) -> None:
    tables = tables_of((60, 70, 80), tied=6.0)
    x, time, event, sites, _ = stacked(tables)
    result = fitted(tables, "simulation", performance=True, ties=ties, fit=way).result
    beta = result.estimate * SCALE
    expected = textbook.proportional(x, time, event, beta, ties, sites)
    np.testing.assert_allclose(result.proportional[:, 0], expected, rtol=2e-4)
    assert result.proportional[:, 1].tolist() == [1, 1, 1, 3] and result.proportional_sites == 3
    p = [chi2.sf(value, df) for value, df in result.proportional[:, :2]]
    np.testing.assert_allclose(result.proportional[:, 2], p, rtol=1e-10)
    assert result.proportional_hazards.index.tolist() == [*NAMES, "all columns"]


def faded(life: Any, ratio: Any, end: float) -> np.ndarray:
    """Times of a hazard ratio that is 1 after `end`, from those where it is 1 throughout."""
    return np.where(life > end * ratio, life - end * ratio + end, life / ratio)


def test_of_sites_whose_hazard_ratios_fade_it_is_said(tmp_path: Path) -> None:
    tables = tables_of((300, 320, 340))
    plain = fitted(tables, performance=True)
    assert plain.result.proportional[-1, 2] > 0.05
    assert "change with time" not in plain.result.summary()
    page = report.write(plain, tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "There is no sign that one changes" in " ".join(page.split())
    for name, table in tables.items():
        rng = np.random.default_rng(len(table))
        life = faded(rng.exponential(size=len(table)), np.exp((table["age"] - 60) / 12), 0.3)
        died = (life <= 1.5).astype(float)
        tables[name] = table.assign(years=np.minimum(life, 1.5) + 1e-3, died=died)
    run = fitted(tables, performance=True)
    assert run.result.proportional[[0, -1], 2].max() < 1e-3
    assert "Hazard ratios change with time" in run.result.summary()
    page = report.write(run, tmp_path / "page.html").read_text(encoding="utf-8")
    for said in ("Are hazard ratios the same at all times?", "over 3 sites", "that changes is an"):
        assert said in " ".join(page.split())
    few = fitted(tables_of((80, 200, 200)), performance=True).result
    assert few.proportional_sites == 2  # of the first so few orders are possible that one shows


def test_size_and_power_of_the_test_of_proportional_hazards() -> None:
    """Two strata of 100 people; Monte Carlo error of a size of .05 over 600 draws: .009."""
    rejected = np.zeros((2, 3))
    for seed, fades in itertools.product(range(600), (False, True)):
        if fades and seed >= 100:
            continue
        rng = np.random.default_rng(seed)
        score, curvature, sites = np.zeros((2, 2)), np.zeros((3, 2, 2)), []
        for rate in (0.5, 2.0):
            x = rng.normal(size=(100, 2))
            life = rng.exponential(size=100) / rate
            ratio = np.exp(0.7 * x[:, 0])
            life = faded(life, ratio, 0.4 / rate) if fades else life / ratio
            seen = rng.exponential(2.0, 100)
            event, time = (life <= seen).astype(float), np.minimum(life, seen)
            sites.append(Rows(Design(x, np.zeros(2), np.ones(2)), event, time=time))
        theta = np.zeros(2)
        for _ in range(5):
            pieces = [cox.summed(rows, theta)[0] for rows in sites]
            gradient = sum(piece.score for piece in pieces)
            theta = theta - np.linalg.solve(sum(piece.curvature for piece in pieces), gradient)
        for rows in sites:
            told = [cox.summed(rows, theta, late=power)[0] for power in range(3)]
            score += [piece.score for piece in told[:2]]
            curvature += [piece.curvature for piece in told]
        rejected[int(fades)] += performance.proportional(score, curvature)[:, 2] < 0.05
    assert (np.abs(rejected[0] / 600 - 0.05) < 0.027).all()
    assert rejected[1, 0] > 80 and rejected[1, 1] < 20

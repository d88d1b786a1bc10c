"""The estimator as scikit-learn sees it, entities and agents, tables that are bad."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from consilience import LatentClassRegressor
from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.estimators.latent_class_regressor import convergence_of
from tests.latent_regression.estimators.latent_class_data import simulated

QUICK = {"n_sweeps": 20, "n_settle": 8, "n_average": 8, "n_restarts": 2, "random_state": 0}
FEW = {"n_sweeps": 4, "n_settle": 2, "n_average": 3, "n_restarts": 2}


@parametrize_with_checks([LatentClassRegressor(**FEW)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def sim() -> Any:
    return simulated(3, 4, new_entities=24, new_agents=24)


@pytest.fixture(scope="module")
def fitted(sim: Any) -> LatentClassRegressor:
    e = sim.events
    return LatentClassRegressor(3, **QUICK).fit(e.x, e.y, entity=e.entity, agent=e.agent)


def r2(y: np.ndarray, predicted: np.ndarray) -> float:
    return float(1 - np.mean((y - predicted) ** 2) / np.var(y))


# ------------------------------------------------------------------ what it finds


def test_coefficients_in_the_units_of_the_table(sim: Any) -> None:
    """True coefficients are found after columns and target were shifted and stretched."""
    e = sim.events
    scale, shift = np.array([1e-3, 1.0, 40.0]), np.array([5.0, 0.0, -2.0])
    x, y = e.x * scale + shift, 100.0 * e.y + 7.0
    fit = LatentClassRegressor(3, **QUICK).fit(x, y, entity=e.entity, agent=e.agent)
    coefficients = 100.0 * sim.weights[:, 1:] / scale
    intercepts = 100.0 * sim.weights[:, 0] + 7.0 - coefficients @ shift
    error = np.sqrt(fit.coef_covariance_[:, np.arange(4), np.arange(4)])
    for k in range(3):
        found = np.column_stack([fit.intercept_, fit.coef_])
        true = np.concatenate([[intercepts[k]], coefficients[k]])
        # the nearest class: within four standard errors in all of four coefficients
        assert (np.abs(found - true) < 4 * error).all(axis=1).any()
    assert fit.sigma_ == pytest.approx(30.0, rel=0.1)


def test_known_entities_new_entities_new_agents(sim: Any, fitted: Any) -> None:
    e = sim.events
    known = fitted.predict(e.x, entity=e.entity, agent=e.agent)
    assert r2(e.y, known) > 0.97
    assert fitted.score(e.x, e.y, entity=e.entity, agent=e.agent) == pytest.approx(r2(e.y, known))
    for group in (sim.new_entities, sim.new_agents):
        observed = np.where(group.event < 5, group.y, np.nan)
        rest = group.event >= 5
        ids = {"entity": group.entity, "agent": group.agent}
        blind = fitted.predict(group.x, **ids)
        told = fitted.predict(group.x, observed=observed, **ids)
        assert r2(group.y[rest], told[rest]) > 0.95 > r2(group.y[rest], blind[rest]) + 0.2
        shares = fitted.predict_proba(group.x, observed, **ids)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        # the same for all events of an entity
        by_entity = pd.DataFrame(shares).groupby(group.entity).nunique()
        assert (by_entity == 1).all().all()


def test_prior_weights_of_new_entities(fitted: Any, sim: Any) -> None:
    agent = str(fitted.predictor_.agents[0])
    x = sim.events.x[:1]
    counts = fitted.label_probabilities_[fitted.entities_["agent"] == agent].sum(axis=0)
    expected = (counts + fitted.beta_ * fitted.class_shares_) / (counts.sum() + fitted.beta_)
    found = fitted.predict_proba(x, entity=["never seen"], agent=[agent])
    np.testing.assert_allclose(found[0], expected)
    found = fitted.predict_proba(x, entity=["never seen"], agent=["nobody"])
    np.testing.assert_allclose(found[0], fitted.class_shares_)
    np.testing.assert_allclose(fitted.predict_proba(x)[0], fitted.class_shares_)


def test_posterior_of_a_new_entity_is_bayes_rule(fitted: Any) -> None:
    """One event: prior weights times normal densities, by hand."""
    x, y = np.array([[0.3, -0.2, 0.5], [1.0, 0.0, 0.0]]), np.array([0.4, np.nan])
    found = fitted.predict_proba(x, y, entity=["n", "n"], agent=["nobody", "nobody"])
    row = np.concatenate([[1.0], x[0]])
    mean = fitted.intercept_ + fitted.coef_ @ x[0]
    spread = fitted.sigma_**2 + np.einsum("f,kfg,g->k", row, fitted.coef_covariance_, row)
    density = np.exp(-0.5 * (y[0] - mean) ** 2 / spread) / np.sqrt(spread)
    expected = fitted.class_shares_ * density
    np.testing.assert_allclose(found[0], expected / expected.sum(), rtol=1e-6)
    np.testing.assert_array_equal(found[0], found[1])


def test_intervals_are_quantiles_of_samples(sim: Any, fitted: Any) -> None:
    group = sim.new_agents.take(sim.new_agents.event < 2)
    ids = {"entity": group.entity, "agent": group.agent}
    observed = np.where(group.event == 0, group.y, np.nan)
    ends = fitted.predict_interval(group.x, level=0.8, observed=observed, **ids)
    drawn = fitted.sample(group.x, 4000, observed=observed, random_state=1, **ids)
    assert drawn.shape == (4000, len(group))
    inside = ((drawn >= ends[:, 0]) & (drawn <= ends[:, 1])).mean(axis=0)
    # standard error of each share 0.0063; largest of 48
    assert np.abs(inside - 0.8).max() < 0.03
    np.testing.assert_allclose(
        drawn.mean(axis=0),
        fitted.predict(group.x, observed=observed, **ids),
        atol=5 * drawn.std(axis=0).max() / np.sqrt(4000),
    )
    with pytest.raises(ParameterError, match="level"):
        fitted.predict_interval(group.x, level=1.0)
    with pytest.raises(ParameterError, match="n_samples"):
        fitted.sample(group.x, 0)


def test_rows_of_an_entity_share_its_class_in_a_sample(fitted: Any) -> None:
    x = np.repeat([[1.0, 1.0, 1.0]], 2, axis=0)
    same = fitted.sample(x, 400, entity=["n", "n"], agent=["nobody"] * 2, random_state=0)
    other = fitted.sample(x, 400, entity=["n", "o"], agent=["nobody"] * 2, random_state=0)
    # two draws of one class differ by the noise alone, sd sqrt(2) sigma
    assert np.std(same[:, 0] - same[:, 1]) < 1.7 * fitted.sigma_ < np.std(other[:, 0] - other[:, 1])


@pytest.mark.parametrize("n_observed", [0, 1, 5])
def test_intervals_cover(n_observed: int) -> None:
    inside: dict[str, list[np.ndarray]] = {"seen": [], "entity": [], "agent": []}
    for seed in range(4):
        s = simulated(4, seed, n_agents=128, n_events=5, n_features=8, sigma=0.5,
                      new_entities=128, new_agents=128)  # fmt: skip
        test = s.events.fold == 0
        train, held = s.events.take(~test), s.events.take(test)
        fit = LatentClassRegressor(4, **QUICK)
        fit.fit(train.x, train.y, entity=train.entity, agent=train.agent)
        ends = fit.predict_interval(held.x, entity=held.entity, agent=held.agent)
        inside["seen"].append((held.y >= ends[:, 0]) & (held.y <= ends[:, 1]))
        for name, group in (("entity", s.new_entities), ("agent", s.new_agents)):
            observed = np.where(group.event < n_observed, group.y, np.nan)
            ends = fit.predict_interval(
                group.x, entity=group.entity, agent=group.agent, observed=observed
            )
            rest = group.event >= 5
            inside[name].append(((group.y >= ends[:, 0]) & (group.y <= ends[:, 1]))[rest])
    for parts in inside.values():
        # 512 entities and agents: standard error about 0.01 with the classes' dependence
        assert 0.87 <= np.concatenate(parts).mean() <= 0.93


# ------------------------------------------------------------------ chains


def degrees(seed: int, n_entities: int = 60, n_events: int = 30) -> tuple[np.ndarray, ...]:
    """Random intercepts and slopes around one regression: x, y and entity."""
    rng = np.random.default_rng(seed)
    entity = np.repeat(np.arange(n_entities), n_events)
    x = rng.normal(size=(len(entity), 2))
    own = 0.4 * rng.normal(size=(n_entities, 3))
    y = own[entity, 0] + (x * (own[entity, 1:] + 0.5)).sum(axis=1) + rng.normal(size=len(entity))
    return x, y, entity


def test_chains_that_disagree_are_the_first_remark() -> None:
    x, y, entity = degrees(0)
    with pytest.warns(ConvergenceWarning, match="chains disagree: of 4 starts [234] end in"):
        fit = LatentClassRegressor(6, random_state=0).fit(x, y, entity=entity)
    among = fit.agreement_[np.ix_(fit.likely_chains_, fit.likely_chains_)]
    assert among.min() < 0.9 and f"agree to {among.min():.2f} only" in fit.remarks_[0]
    assert fit.rhat_["prediction"] > 1.2


def test_chains_that_agree_are_no_remark(sim: Any) -> None:
    e = sim.events
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = LatentClassRegressor(3, random_state=0).fit(e.x, e.y, entity=e.entity, agent=e.agent)
    assert not any("chain" in said or "starts" in said for said in fit.remarks_)
    assert fit.likely_chains_.tolist() == [True] * 4 and fit.rhat_["prediction"] < 1.2


def test_one_chain_says_what_it_cannot_tell(sim: Any) -> None:
    e = sim.events
    fit = LatentClassRegressor(3, **{**QUICK, "n_restarts": 1}).fit(e.x, e.y, entity=e.entity)
    assert "one chain cannot tell" in fit.remarks_[0]
    one = LatentClassRegressor(1, **{**QUICK, "n_restarts": 1}).fit(e.x, e.y, entity=e.entity)
    assert not any("chain" in said for said in one.remarks_)


@pytest.mark.parametrize(
    ("likely", "agreement", "prediction", "words"),
    [
        ([True, True, False], 0.95, 1.0, None),
        ([True, True, False], 0.85, 1.0, "of 3 starts 2 end in classes about as likely"),
        ([True, False, False], 0.2, 1.0, "only one of 3 starts"),
        ([True, True, True], 0.95, 1.25, "have not settled on prediction (R-hat 1.25"),
    ],
)
def test_what_is_said_of_chains(
    likely: list[bool], agreement: float, prediction: float, words: str | None
) -> None:
    among = np.where(np.eye(3), 1.0, agreement)
    rhat = {"log_marginal": 1.2, "sigma": 1.2, "class_shares": 2.0, "prediction": prediction}
    found = SimpleNamespace(likely=np.array(likely), agreement=among, rhat=rhat, n_classes=2)
    said = list(convergence_of(found))
    assert (words is None and not said) or (words in said[0][0] and said[0][1])


# ------------------------------------------------------------------ kinds or degrees


def test_degrees_are_said_first_and_keep_their_classes() -> None:
    x, y, entity = degrees(1)
    with pytest.warns(ConvergenceWarning, match="chains disagree"):
        fit = LatentClassRegressor("auto", random_state=0).fit(x, y, entity=entity)
    said = fit.evidence_
    assert said.verdict == "degrees, not kinds" and said.n_classes == fit.n_classes_ > 1
    assert said.random == "intercepts and slopes" and not said.curved
    # what is left of an event by each, in the units of y: noise of variance 1
    assert 0.9 < said.error["mixed model"] < said.error["classes"] < said.error["one regression"]
    summary = fit.summary()
    assert summary.startswith("Degrees, not kinds: judged on the events of 60 entities")
    assert summary.index("but not clearly better than a mixed") < summary.index("Chains disagree")


@pytest.mark.parametrize("agents", [4, 30])
def test_agents_that_differ_by_degrees_are_no_kinds(agents: int) -> None:
    """Beside a mixed model of entities alone each table of 4 agents was called kinds."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        entity = np.repeat(np.arange(360), 3)
        agent = entity // (360 // agents)
        own = rng.normal(size=(agents, 2))[agent]
        x = rng.normal(size=(len(entity), 1))
        y = own[:, 0] + own[:, 1] * x[:, 0] + rng.normal(size=len(x))
        fit = LatentClassRegressor("auto", n_restarts=2, random_state=seed)
        fit.fit(x, y, entity=entity, agent=agent)
        said = fit.evidence_
        assert said.n_classes > 1 and said.to_one.clear
        assert said.verdict == "degrees, not kinds"
        assert said.random == "intercepts and slopes of entities and agents"


def degrees_of_agents(rng: np.random.Generator, sizes: tuple[float, float]) -> Any:
    """Ten agents of ten entities, with own intercepts and slopes: x, y, entity, agent."""
    entity = np.repeat(np.arange(100), 8)
    agent = entity // 10
    x = rng.normal(size=(len(entity), 3))
    y = 0.5 + x[:, :2] @ [0.8, -0.4] + sizes[0] * rng.normal(size=10)[agent]
    for j in range(3):
        y = y + sizes[1] * rng.normal(size=10)[agent] * x[:, j]
    return x, y, entity, agent


@pytest.mark.parametrize("seed", [8, 9])
def test_kinds_are_ahead_of_every_mixed_model(seed: int) -> None:
    """With t noise one class had the highest log density of these, and far more squared error."""
    rng = np.random.default_rng(seed)
    x, y, entity, agent = degrees_of_agents(rng, (0.7, 0.5))
    rng.standard_t(3, size=len(y))
    y = y + rng.standard_t(3, size=len(y))
    fit = LatentClassRegressor(
        "auto", noise="t", random_effects="slopes", n_restarts=2, random_state=seed
    )
    said = fit.fit(x, y, entity=entity, agent=agent).evidence_
    assert said.verdict == "degrees, not kinds"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", [6, 13])
def test_classes_that_predict_worse_than_one_regression_are_not_kept(seed: int) -> None:
    """Agents differ by degrees, and in noise: the mixed model alone is ahead of one regression."""
    rng = np.random.default_rng(seed)
    x, y, entity, agent = degrees_of_agents(rng, (1.0, 0.7))
    y = y + np.exp(rng.normal(size=10))[agent] * rng.normal(size=len(y))
    fit = LatentClassRegressor("auto", n_restarts=1, random_state=seed)
    said = fit.fit(x, y, entity=entity, agent=agent).evidence_
    assert said.verdict == "degrees, not kinds" and said.to_one.saved < 0
    assert fit.n_classes_ == 1 and "One class is fitted" in fit.summary()
    worse = said.to_one.saved < -said.to_one.saved_error
    assert ("classes predict worse than one regression" in fit.summary()) == worse


def test_kinds_at_few_agents_are_kinds() -> None:
    """Two classes at agents that have more or less of each: theirs cannot stand for them."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        entity = np.repeat(np.arange(120), 6)
        kind = rng.random(120) < np.repeat([0.2, 0.4, 0.6, 0.8], 30)
        x = rng.normal(size=(len(entity), 1))
        y = np.where(kind[entity], 1.0, -1.0) * x[:, 0] + 0.7 * rng.normal(size=len(x))
        fit = LatentClassRegressor("auto", n_restarts=2, random_state=seed)
        fit.fit(x, y, entity=entity, agent=entity // 30)
        assert fit.evidence_.verdict == "kinds" and fit.n_classes_ == 2


@pytest.mark.parametrize("noise", ["t3", "by entity"])
def test_odd_noise_is_one_class(noise: str) -> None:
    """Three data sets (100 of each in the tracked replication); mergers alone give more classes."""
    merged = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        entity = np.repeat(np.arange(100), 8)
        x = rng.normal(size=(800, 2))
        rest = rng.standard_t(3, size=800)
        if noise == "by entity":
            rest = rng.normal(size=800) * np.exp(0.7 * rng.normal(size=100))[entity]
        fit = LatentClassRegressor("auto", n_restarts=2, random_state=seed)
        fit.fit(x, x[:, 0] + rest, entity=entity)
        assert fit.n_classes_ == 1 and fit.evidence_.verdict == "no evidence of kinds"
        assert fit.summary().startswith("No evidence of kinds")
        merged.append(fit.evidence_.n_classes)
    assert max(merged) > 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("slope", [1.0, 0.0])
def test_few_entities_of_two_kinds_keep_them_without_evidence(slope: float) -> None:
    """Twelve tables of eight entities: what is fitted need not be beyond chance, what is said must.

    Error on new events, over that of the constant 0: 1.0 is that of one regression of two kinds.
    """
    kept = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        entity = np.repeat(np.arange(8), 12)
        x = rng.normal(size=(96, 1))
        y = np.where(entity % 2, slope, -slope) * x[:, 0] + rng.normal(size=96)
        new = np.arange(96) % 2 == 1
        fit = LatentClassRegressor("auto", n_restarts=2, random_state=seed)
        fit.fit(x[~new], y[~new], entity=entity[~new])
        said = fit.evidence_
        if said.verdict != "no evidence of kinds":
            continue
        ahead = said.n_classes > 1 and said.to_one.ahead
        assert (fit.n_classes_ > 1) == ahead and said.one_is_enough == (not ahead)
        if said.n_classes > 1:
            assert ("though by more than a standard error" in fit.summary()) == ahead
        if ahead:
            left = y[new] - fit.predict(x[new], entity=entity[new])
            kept.append((left**2).mean() / (y[new] ** 2).mean())
    # of 60 tables 14 are kept, with error .67; without differences one is
    assert len(kept) >= 1 and np.mean(kept) < 0.85 if slope else len(kept) <= 2


def test_kinds_are_kinds_in_the_units_of_the_table(sim: Any) -> None:
    e = sim.events
    ids = {"entity": e.entity, "agent": e.agent}
    one = LatentClassRegressor(3, **QUICK).fit(e.x, e.y, **ids).evidence_
    two = LatentClassRegressor(3, **QUICK).fit(e.x, 10.0 * e.y, **ids).evidence_
    assert one.verdict == "kinds" and one.to_one.clear and one.to_mixed.log_score > 0
    for model in ("one regression", "mixed model", "classes"):
        assert two.error[model] == pytest.approx(100.0 * one.error[model], rel=1e-6)
        assert two.log_score[model] == pytest.approx(one.log_score[model] - np.log(10), rel=1e-6)


def test_entities_of_one_event_tell_nothing_of_kinds() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    fit = LatentClassRegressor(2, **QUICK).fit(x, x[:, 0] + rng.normal(size=60))
    assert fit.evidence_ is None
    assert fit.summary().startswith("Whether there are kinds is not measured: too few entities")


# ------------------------------------------------------------------ ids, order, weights


def test_order_of_rows_does_not_matter(sim: Any, fitted: Any) -> None:
    e = sim.events.take(np.random.default_rng(0).permutation(len(sim.events)))
    again = LatentClassRegressor(3, **QUICK).fit(e.x, e.y, entity=e.entity, agent=e.agent)
    np.testing.assert_array_equal(again.labels_, fitted.labels_)
    np.testing.assert_array_equal(again.coef_, fitted.coef_)


def test_order_of_rows_with_equal_outcomes_does_not_matter() -> None:
    """Ratings: many rows of an entity have the same outcome, and other columns."""
    rng = np.random.default_rng(5)
    x, entity = rng.normal(size=(400, 3)), np.repeat(np.arange(20), 20)
    y = (x[:, 0] * np.where(entity % 2, 1, -1) > 0).astype(float)
    order = rng.permutation(400)
    one = LatentClassRegressor(2, **QUICK).fit(x, y, entity=entity)
    two = LatentClassRegressor(2, **QUICK).fit(x[order], y[order], entity=entity[order])
    np.testing.assert_array_equal(one.coef_, two.coef_)
    np.testing.assert_array_equal(one.label_probabilities_, two.label_probabilities_)


def test_an_entity_id_at_two_agents_is_two_entities() -> None:
    rng = np.random.default_rng(2)
    agent = np.repeat(["a", "b"], 60)
    entity = np.tile(np.repeat(np.arange(10), 6), 2)
    x = rng.normal(size=(120, 1))
    y = np.where(agent == "a", 2.0, -2.0) * x[:, 0] + 0.1 * rng.normal(size=120)
    fit = LatentClassRegressor(2, **QUICK).fit(x, y, entity=entity, agent=agent)
    assert len(fit.labels_) == 20
    labels = {
        (a, e): k for a, e, k in zip(*(fit.entities_[n] for n in ("agent", "entity", "label")))
    }
    assert labels["a", 3] != labels["b", 3]
    assert any("several agents" in sentence for sentence in fit.remarks_)
    one = fit.predict([[1.0], [1.0]], entity=[3, 3], agent=["a", "b"])
    np.testing.assert_allclose(one, [2.0, -2.0], atol=0.1)


def test_weights_are_numbers_of_events(sim: Any) -> None:
    e = sim.events.take(np.arange(200))
    times = np.random.default_rng(1).integers(0, 3, size=200)
    rows = np.repeat(np.arange(200), times)
    weighted = LatentClassRegressor(2, **QUICK)
    weighted.fit(e.x, e.y, entity=e.entity, agent=e.agent, sample_weight=times)
    repeated = LatentClassRegressor(2, **QUICK)
    repeated.fit(e.x[rows], e.y[rows], entity=e.entity[rows], agent=e.agent[rows])
    # An entity without a positive weight exists in the first fit only.
    at = np.isin(weighted.entities_["entity"], repeated.entities_["entity"])
    assert at.all()
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    np.testing.assert_array_equal(weighted.entities_["events"], repeated.entities_["events"])


def test_rows_without_entities() -> None:
    """A mixture of regressions: each row has its own class, and keeps its place."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 2))
    label = rng.integers(2, size=150)
    y = np.where(label == 0, 4.0, -4.0) + x[:, 0] + 0.1 * rng.normal(size=150)
    weight = np.ones(150)
    weight[7] = 0
    weight[8] = 3
    fit = LatentClassRegressor(2, **QUICK).fit(x, y, sample_weight=weight)
    assert fit.labels_.shape == (150,) and fit.class_sizes_.sum() == pytest.approx(151)
    used = weight > 0
    agree = (fit.labels_ == label)[used].mean()
    assert max(agree, 1 - agree) == 1.0
    assert fit.entities_["events"][[7, 8, 9]].tolist() == [0, 3, 1]
    assert fit.entities_["agent"].tolist() == [0] * 150
    assert not hasattr(fit, "predict_proba")
    with pytest.raises(AttributeError) as error:
        _ = fit.predict_proba
    assert "fitted with entity=" in str(error.value.__cause__)


def test_missing_outcomes_are_predicted(sim: Any, fitted: Any) -> None:
    e = sim.events
    y = e.y.copy()
    first = e.entity == e.entity[0]
    y[first] = np.nan
    y[::7] = np.nan
    fit = LatentClassRegressor(3, **QUICK).fit(e.x, y, entity=e.entity, agent=e.agent)
    assert len(fit.labels_) == len(fitted.labels_)
    events = dict(zip(fit.entities_["entity"], fit.entities_["events"], strict=True))
    assert events[e.entity[0]] == 0
    predicted = fit.predict(e.x, entity=e.entity, agent=e.agent)
    assert np.isfinite(predicted).all()
    hidden = np.isnan(y) & ~first
    assert r2(e.y[hidden], predicted[hidden]) > 0.95
    told = ~np.isnan(y)
    score = fit.score(e.x, y, entity=e.entity, agent=e.agent)
    assert score == pytest.approx(r2(y[told], predicted[told]))


def test_ids_that_cannot_be_used(sim: Any, fitted: Any) -> None:
    e = sim.events
    model = LatentClassRegressor(2, **QUICK)
    with pytest.raises(DataError, match="one id for each row"):
        model.fit(e.x, e.y, entity=e.entity[:-1])
    with pytest.raises(DataError, match="without an id"):
        model.fit(e.x, e.y, entity=[None, *e.entity[1:]])
    with pytest.raises(DataError, match="without an id"):
        model.fit(e.x, e.y, agent=np.where(np.arange(len(e)) == 0, np.nan, 1.0))
    with pytest.raises(DataError, match="give agent too"):
        fitted.predict(e.x, entity=e.entity)
    with pytest.raises(DataError, match="observed"):
        fitted.predict(e.x, entity=e.entity, agent=e.agent, observed=[1.0])


def test_numbers_are_found_among_texts(sim: Any) -> None:
    """Sites keep ids as texts; their tables may hold numbers."""
    e = sim.events
    entity = np.unique(e.entity, return_inverse=True)[1]
    agent = np.unique(e.agent, return_inverse=True)[1]
    texts = LatentClassRegressor(2, **QUICK).fit(
        e.x, e.y, entity=entity.astype(str), agent=agent.astype(str)
    )
    wanted = texts.predict(e.x, entity=entity.astype(str), agent=agent.astype(str))
    np.testing.assert_array_equal(texts.predict(e.x, entity=entity, agent=agent), wanted)
    assert not np.allclose(texts.predict(e.x), wanted)
    numbers = LatentClassRegressor(2, **QUICK).fit(e.x, e.y, entity=entity, agent=agent)
    with pytest.raises(DataError, match="entity must be whole numbers, as in the fit"):
        numbers.predict(e.x, entity=entity.astype(str), agent=agent)


# ------------------------------------------------------------------ scikit-learn


def test_clone_pickle_names_and_pipeline(sim: Any, fitted: Any) -> None:
    e = sim.events
    frame = pd.DataFrame(e.x, columns=["u", "v", "w"])
    model = LatentClassRegressor(3, **QUICK).fit(frame, e.y, entity=e.entity, agent=e.agent)
    assert model.feature_names_in_.tolist() == ["u", "v", "w"]
    ids = {"entity": e.entity, "agent": e.agent}
    expected = model.predict(frame, **ids)
    np.testing.assert_array_equal(expected, fitted.predict(e.x, **ids))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["v", "u", "w"]], **ids)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(frame, **ids), expected)
    fresh = clone(model).set_params(n_classes=2)
    assert fresh.n_classes == 2 and model.n_classes == 3
    with pytest.raises(NotFittedError):
        fresh.predict(frame)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = LatentClassRegressor(3, **QUICK).set_fit_request(entity=True, agent=True)
        routed.set_predict_request(entity=True, agent=True)
        pipe = make_pipeline(StandardScaler(), routed).fit(frame, e.y, **ids)
        np.testing.assert_allclose(pipe.predict(frame, **ids), expected, atol=0.1)


def test_grid_search_with_entities(sim: Any) -> None:
    e = sim.events
    with sklearn.config_context(enable_metadata_routing=True):
        model = LatentClassRegressor(**QUICK)
        for request in (model.set_fit_request, model.set_score_request):
            request(entity=True, agent=True)
        search = GridSearchCV(model, {"n_classes": [1, 3]}, cv=2)
        search.fit(e.x, e.y, entity=e.entity, agent=e.agent)
    assert search.best_params_ == {"n_classes": 3}


# ------------------------------------------------------------------ tables that are bad


def test_one_class_is_ridge_regression(sim: Any) -> None:
    e = sim.events
    fit = LatentClassRegressor(1, sigma=0.5, delta=2.0, n_start=1, **QUICK)
    fit.fit(e.x, e.y, entity=e.entity, agent=e.agent)
    z = (e.x - e.x.mean(axis=0)) / e.x.std(axis=0)
    ridge = Ridge(alpha=(0.5 / e.y.std() / 2.0) ** 2).fit(z, e.y)
    np.testing.assert_allclose(fit.coef_[0], ridge.coef_ / e.x.std(axis=0), rtol=1e-8)
    np.testing.assert_allclose(fit.predict(e.x), ridge.predict(z), rtol=1e-6, atol=1e-8)


def test_more_classes_than_entities() -> None:
    with pytest.raises(ParameterError, match="number of entities with events, 2"):
        LatentClassRegressor(3).fit(np.ones((6, 1)), np.arange(6.0), entity=[0, 0, 0, 1, 1, 1])


def test_classes_that_stay_empty_are_told(sim: Any) -> None:
    e = sim.events
    with pytest.warns(ConvergenceWarning, match="of 8 classes hold entities"):
        fit = LatentClassRegressor(8, **QUICK).fit(e.x, e.y, entity=e.entity, agent=e.agent)
    assert fit.n_classes_ < 8 and len(fit.coef_) == fit.n_classes_
    assert (fit.class_sizes_ > 0.5).all()


def test_weights_that_stand_for_too_many_entities() -> None:
    x, y = np.arange(4.0)[:, None], np.array([1.0, 2.0, 1.0, 3.0])
    with pytest.raises(DataError, match="10,000,000 entities of one event"):
        LatentClassRegressor(1).fit(x, y, sample_weight=[1e9, 1.0, 1.0, 1.0])
    fit = LatentClassRegressor(1, **QUICK)
    fit.fit(x, y, sample_weight=[1e9, 1.0, 1.0, 1.0], entity=[0, 0, 1, 1])
    assert np.isfinite(fit.predict(x)).all()


def test_noise_that_weights_hide_is_told(sim: Any) -> None:
    e = sim.events
    ids = {"entity": e.entity, "agent": e.agent}
    with pytest.warns(ConvergenceWarning, match="divide sample_weight"):
        LatentClassRegressor(3, **QUICK).fit(e.x, e.y, sample_weight=np.full(len(e), 1e12), **ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = LatentClassRegressor(3, **QUICK)
        fit.fit(e.x, e.y, sample_weight=np.full(len(e), 1e3), **ids)
    assert fit.sigma_ == pytest.approx(0.3, rel=0.1)


def test_a_constant_column_in_the_place_of_an_intercept(sim: Any) -> None:
    e = sim.events
    x = np.column_stack([np.full(len(e), 2.0), e.x])
    fit = LatentClassRegressor(3, fit_intercept=False, **QUICK)
    fit.fit(x, e.y, entity=e.entity, agent=e.agent)
    assert not any("constant" in s or "depend" in s for s in fit.remarks_)
    doubled = LatentClassRegressor(3, fit_intercept=False, **QUICK)
    doubled.fit(np.column_stack([x, x[:, 1]]), e.y, entity=e.entity, agent=e.agent)
    assert any("depend on one another" in s for s in doubled.remarks_)


def test_more_columns_than_events() -> None:
    rng = np.random.default_rng(0)
    x, entity = rng.normal(size=(30, 50)), np.repeat(np.arange(10), 3)
    y = x[:, 0] + 0.1 * rng.normal(size=30)
    fit = LatentClassRegressor(1, **QUICK).fit(x, y, entity=entity)
    assert np.isfinite(fit.coef_).all() and any("fewer events" in s for s in fit.remarks_)


def test_collinear_and_constant_columns(sim: Any) -> None:
    e = sim.events
    x = np.column_stack([e.x, e.x[:, 0], np.full(len(e), 3.0)])
    fit = LatentClassRegressor(3, **QUICK).fit(x, e.y, entity=e.entity, agent=e.agent)
    assert r2(e.y, fit.predict(x, entity=e.entity, agent=e.agent)) > 0.97
    np.testing.assert_allclose(fit.coef_[:, 0], fit.coef_[:, 3], atol=0.05)
    assert any("depend on one another" in s for s in fit.remarks_)
    assert any("constant (1)" in s for s in fit.remarks_)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("value", [0.0, -3.5, 1e12])
def test_constant_outcome(value: float, standardize: bool) -> None:
    rng = np.random.default_rng(0)
    x, entity = rng.normal(size=(40, 2)), np.repeat(np.arange(10), 4)
    fit = LatentClassRegressor("auto", standardize=standardize, **QUICK)
    fit.fit(x, np.full(40, value), entity=entity)
    assert fit.n_classes_ == 1 and any("y is constant" in s for s in fit.remarks_)
    ends = fit.predict_interval(x, entity=entity)
    tolerance = 0.05 * max(abs(value), 1.0)
    np.testing.assert_allclose(fit.predict(x, entity=entity), value, atol=tolerance)
    assert (ends[:, 0] <= value).all() and (ends[:, 1] >= value).all()


@pytest.mark.parametrize(("by_x", "by_y"), [(1e150, 1e-150), (1e-150, 1e150), (1e8, 1e-8)])
def test_huge_scales(by_x: float, by_y: float, sim: Any, fitted: Any) -> None:
    e = sim.events
    fit = LatentClassRegressor(3, **QUICK)
    fit.fit(e.x * by_x, e.y * by_y, entity=e.entity, agent=e.agent)
    np.testing.assert_array_equal(fit.labels_, fitted.labels_)
    predicted = fit.predict(e.x * by_x, entity=e.entity, agent=e.agent)
    assert r2(e.y, predicted / by_y) > 0.97


@pytest.mark.parametrize("standardize", [True, False])
def test_collinear_columns_of_other_sizes_with_heavy_weights(standardize: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) * [1e10, 1.0, 1e-7]
    x[:, 1] = 3e-9 * x[:, 0]
    y = 1e-10 * x[:, 0]
    entity = np.repeat(np.arange(10), 4)
    fit = LatentClassRegressor("auto", standardize=standardize, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of the noise: there is none
        fit.fit(x, y, entity=entity, sample_weight=np.full(40, 1e6))
    np.testing.assert_allclose(fit.predict(x, entity=entity), y, atol=1e-3)
    assert np.isfinite(fit.predict_interval(x, entity=entity)).all()


def test_fixed_noise_and_prior_are_in_their_units(sim: Any) -> None:
    e = sim.events
    ids = {"entity": e.entity, "agent": e.agent}
    fit = LatentClassRegressor(3, sigma=30.0, delta=0.02, standardize=False, **QUICK)
    fit.fit(50.0 * e.x, 100.0 * e.y, **ids)
    assert fit.sigma_ == pytest.approx(30.0) and fit.delta_ == pytest.approx(0.02)
    assert r2(100.0 * e.y, fit.predict(50.0 * e.x, **ids)) > 0.97


def test_far_from_zero(sim: Any, fitted: Any) -> None:
    """Years as a column: the mean is a thousand standard deviations away."""
    e = sim.events
    fit = LatentClassRegressor(3, **QUICK)
    fit.fit(e.x + 2000.0, e.y - 1e6, entity=e.entity, agent=e.agent)
    np.testing.assert_array_equal(fit.labels_, fitted.labels_)


def test_without_intercept_and_standardisation(sim: Any) -> None:
    e = sim.events
    x = np.column_stack([np.ones(len(e)), e.x])
    fit = LatentClassRegressor(3, fit_intercept=False, standardize=False, **QUICK)
    fit.fit(x, e.y, entity=e.entity, agent=e.agent)
    assert (fit.intercept_ == 0).all() and fit.coef_.shape == (3, 4)
    assert r2(e.y, fit.predict(x, entity=e.entity, agent=e.agent)) > 0.97


def test_one_agent_only(sim: Any) -> None:
    e = sim.events
    fit = LatentClassRegressor(3, **QUICK).fit(e.x, e.y, entity=e.entity)
    assert r2(e.y, fit.predict(e.x, entity=e.entity)) > 0.97
    assert any("one agent" in s for s in fit.remarks_)
    # no agent of the fit would be known, nor then its entities
    with pytest.raises(DataError, match="fitted without agent"):
        fit.predict(e.x, entity=e.entity, agent=e.agent)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y": [1.0, np.inf, 2.0, 3.0]}, "infinite"),
        ({"y": [np.nan] * 4}, "no number"),
        ({"y": ["a", "b", "c", "d"]}, "numbers"),
        ({"y": [1.0, 2.0]}, "one outcome for each"),
        ({"X": [[1.0], [np.nan], [2.0], [3.0]]}, "NaN"),
        ({"sample_weight": [0.0] * 4}, "non-zero"),
        ({"sample_weight": [0.0] * 4, "entity": [0, 0, 1, 1]}, "non-zero"),
        ({"sample_weight": [1.0, -1.0, 1.0, 1.0]}, "Negative values"),
    ],
)
def test_values_that_cannot_be_used(change: dict[str, Any], sentence: str) -> None:
    given = {"X": [[1.0], [2.0], [0.0], [3.0]], "y": [1.0, 2.0, 3.0, 1.0], **change}
    x, y = given.pop("X"), given.pop("y")
    with pytest.raises(ValueError, match=sentence):
        LatentClassRegressor(1).fit(x, y, **given)

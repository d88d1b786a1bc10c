"""Degrees inside classes: the textbook, the sampler's joint distribution, and the mixed model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consilience.latent_regression.estimators.latent_class_fit import Chain, Settings
from consilience.latent_regression.kernels import degrees as d
from consilience.latent_regression.kernels import evidence as ev
from consilience.latent_regression.kernels import marginal_likelihood as model
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    agent_key,
    block_log_likelihood,
    blocks_of,
    classes_of,
    totals_of,
)
from consilience.numerics.random import stream
from tests.reference import latent_degrees as reference


def made(
    seed: int, q: int, *, tails: bool = False, weighted: bool = False, n_entities: int = 12
) -> tuple[Blocks, d.Degrees, list[reference.Entity]]:
    """Entities of 1 to 5 events with three columns, and degrees of q of them."""
    rng = stream(seed, "degrees")
    entity = np.repeat(np.arange(n_entities), 1 + rng.integers(0, 5, n_entities))
    x = rng.standard_normal((len(entity), 3))
    x[:, 0] = 1.0
    weight = rng.integers(1, 4, len(entity)).astype(float) if weighted else np.ones(len(entity))
    blocks = blocks_of(x, rng.standard_normal(len(entity)), entity, entity // 6, weight)
    half = rng.standard_normal((q, q + 2))
    precision = rng.gamma(2.0, 0.5, len(entity)) if tails else None
    given = d.Degrees(np.arange(q), half @ half.T, np.ones(q), precision, 4.0 if tails else np.inf)
    root = np.sqrt(blocks.weight)
    rows = blocks.x / root[:, None], blocks.y / root, precision, blocks.weight
    entities = [
        reference.Entity(*(np.ones(b - a) if part is None else part[a:b] for part in rows))
        for a, b in zip(blocks.start[:-1], blocks.start[1:])
    ]
    return blocks, given, entities


CASES = [(1, False, False), (3, False, True), (0, True, True), (1, True, False), (3, True, True)]


@pytest.mark.parametrize("noise", [0.7, np.array([0.7, 0.2])])
@pytest.mark.parametrize(("q", "tails", "weighted"), CASES)
def test_densities_are_those_of_the_textbook(
    q: int, tails: bool, weighted: bool, noise: model.Noise
) -> None:
    """Of a class, and of each entity's label given all others."""
    each = np.broadcast_to(noise, 2)
    blocks, given, entities = made(q, q, tails=tails, weighted=weighted)
    labels = np.arange(12) % 2
    view = d.view_of(blocks, given)
    totals = totals_of(view.white, labels, 2)
    found = model.log_marginal(totals, noise, 1.3)
    for k in range(2):
        members = [e for e, z in zip(entities, labels) if z == k]
        expected = reference.class_log_density(members, given.ratio, each[k], 1.3)
        mine = found[k] - 0.5 * view.log_det[labels == k].sum()
        assert mine == pytest.approx(expected, rel=1e-11)
    own = np.zeros((12, 2))
    own[np.arange(12), labels] = 1.0
    fit = block_log_likelihood(view.white, classes_of(totals, noise, 1.3), own)
    for e in range(12):
        expected = reference.label_log_densities(
            entities, labels.tolist(), e, given.ratio, each, 1.3
        )
        np.testing.assert_allclose(fit[e] - 0.5 * view.log_det[e], expected, rtol=1e-10)


@pytest.mark.parametrize(("q", "tails", "weighted"), CASES[:2] + CASES[3:])
def test_own_coefficients_are_those_of_the_textbook(q: int, tails: bool, weighted: bool) -> None:
    blocks, given, entities = made(10 + q, q, tails=tails, weighted=weighted)
    own = d.own_of(d.view_of(blocks, given).scaled, given)
    w = np.array([0.3, -1.0, 0.5])
    for e, entity in enumerate(entities):
        mean, covariance = reference.own_posterior(entity, w, given.ratio, 0.4)
        np.testing.assert_allclose(own.mean[e] - own.felt[e] @ w, mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(0.4 * own.spread[e], covariance, rtol=1e-10, atol=1e-12)


def test_t_noise_is_a_mixture_over_weights_of_events() -> None:
    for residual in (0.0, 1.0, 6.0):
        found = d.row_log_density(np.array([residual**2 / 0.5]), np.ones(1), 3.0)[0]
        expected = reference.t_log_density(residual, 0.5, 3.0)
        assert found - 0.5 * np.log(0.5) == pytest.approx(expected, abs=1e-5)
    from scipy.stats import norm, t

    variances = d.tail_variances(5.0)
    inside = norm.cdf(t.ppf(0.95, 5) / np.sqrt(variances)).mean()
    assert inside == pytest.approx(0.95, abs=5e-4)
    assert d.tail_variances(np.inf).tolist() == [1.0]


# ------------------------------------------------------------------ one class is a mixed model


@pytest.mark.parametrize("q", [1, 2])
def test_one_class_has_the_restricted_likelihood_of_statsmodels(q: int) -> None:
    """With coefficients that are free the density of events is the restricted likelihood."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    rng = stream(q, "one class")
    entity = np.repeat(np.arange(40), 5)
    x = np.column_stack([np.ones(200), rng.standard_normal((200, 2))])
    own = rng.standard_normal((40, 2)) * [0.8, 0.5]
    y = (x[:, :2] * own[entity]).sum(axis=1) + 0.6 * rng.standard_normal(200)
    blocks = blocks_of(x, y, entity, np.zeros(200, dtype=int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = MixedLM(y, x, entity, exog_re=x[:, :q]).fit(reml=True)

    def density(g: np.ndarray, s: float) -> float:
        """Restricted log likelihood: a flat prior of the coefficients."""
        view = d.view_of(blocks, d.Degrees(np.arange(q), g, np.ones(q)))
        totals = totals_of(view.white, np.zeros(40, dtype=int), 1)
        free = 1.5 * np.log(2 * np.pi) + 1.5 * np.log(1e8)
        return float(model.log_marginal(totals, s, 1e8)[0] - 0.5 * view.log_det.sum() + free)

    g, s = other.cov_re / other.scale, float(other.scale)
    best = density(g, s)
    assert best == pytest.approx(other.llf, abs=1e-6)
    for change in (0.97, 1.03):  # and it is highest there
        assert density(g * change, s) < best and density(g, s * change) < best
    view = d.view_of(blocks, d.Degrees(np.arange(q), g, np.ones(q)))
    mean = classes_of(totals_of(view.white, np.zeros(40, dtype=int), 1), s, 1e8).mean[0]
    np.testing.assert_allclose(mean, other.fe_params, atol=1e-6)
    found = d.own_of(view.scaled, d.Degrees(np.arange(q), g, np.ones(q)))
    blups = found.mean - found.felt @ mean
    expected = np.array([other.random_effects[e] for e in range(40)])
    np.testing.assert_allclose(blups, expected, atol=1e-6)


# ------------------------------------------------------------------ the sampler


def joint_draws(settings: Settings, n_sweeps: int, seed: int) -> dict[str, np.ndarray]:
    """Geweke's successive-conditional simulator: a sweep, new events, a sweep, ..."""
    rng = stream(seed, "events")
    entity = np.repeat(np.arange(8), [1, 3, 2, 4, 3, 1, 4, 3])
    x = np.column_stack([np.ones(len(entity)), rng.standard_normal(len(entity))])
    agent = entity // 4
    blocks = blocks_of(x, rng.standard_normal(len(entity)), entity, agent)
    keys = np.array([agent_key(seed, a) for a in range(2)], dtype=np.uint64)
    chain = Chain(
        blocks, settings, keys, stream(seed, "chain"), first_round=0, n_start=settings.n_classes
    )
    kept: dict[str, list[float]] = {}
    chain.sweep()
    for _ in range(n_sweeps):
        s = np.broadcast_to(chain.sigma2, chain.n_classes)
        now, z = chain.degrees, chain.labels
        w = np.sqrt(chain.delta2) * rng.standard_normal((chain.n_classes, 2))
        own = np.zeros((8, 2))
        noise = rng.standard_normal((8, len(now.columns)))
        own[:, now.columns] = noise @ np.linalg.cholesky(now.ratio).T * np.sqrt(s[z])[:, None]
        precision = np.ones(len(x)) if now.precision is None else now.precision
        y = (x * (w[z] + own)[entity]).sum(axis=1)
        y += np.sqrt(s[z][entity] / precision) * rng.standard_normal(len(x))
        chain.plain = blocks_of(x, y, entity, agent)
        chain.look()
        chain.totals = totals_of(chain.blocks, z, chain.n_classes)
        chain.sweep()
        numbers = {f"log sigma2 {k}": np.log(v) for k, v in enumerate(np.ravel(chain.sigma2))}
        if chain.noise_scale is not None:
            numbers["log scale"] = np.log(chain.noise_scale)
        numbers["entropy"] = -float((chain.base * np.log(chain.base)).sum())
        numbers["together"] = float((z == z[0]).mean())
        now = chain.degrees
        for i in range(len(now.columns)):
            numbers[f"log G{i}"] = np.log(now.ratio[i, i])
        if len(now.columns) > 1:
            numbers["correlation"] = now.ratio[0, 1] / np.sqrt(np.diag(now.ratio).prod())
        if now.precision is not None:
            numbers["log nu"] = np.log(now.df)
            numbers["log l"] = np.log(now.precision[0])
            numbers["log l 2"] = np.log(now.precision[-1])
        for name, value in numbers.items():
            kept.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in kept.items()}


def prior_draws(settings: Settings, n: int, seed: int) -> dict[str, np.ndarray]:
    """Independent draws of the same numbers from the prior."""
    rng = stream(seed, "prior")
    k, kept = int(settings.n_classes), {}
    shape, rate = model.SIGMA2_PRIOR
    q = {"none": 0, "intercept": 1, "slopes": 2}[settings.random_effects]
    for _ in range(n):
        psi = rng.dirichlet(np.ones(k))
        labels = []
        for _ in range(2):
            theta = rng.dirichlet(float(settings.beta) * psi)
            labels.extend(rng.choice(k, 4, p=theta))
        if settings.noise_by_class:
            half = 0.5 * model.NOISE_DF
            scale = rng.gamma(model.SCALE_PRIOR[0]) / model.SCALE_PRIOR[1]
            noise = half * scale / rng.gamma(half, size=k)
            numbers = {f"log sigma2 {i}": np.log(noise[i]) for i in range(k)}
            numbers["log scale"] = np.log(scale)
        else:
            numbers = {"log sigma2 0": np.log(rate / rng.gamma(shape))}
        numbers["entropy"] = -float((psi * np.log(psi)).sum())
        numbers["together"] = float(np.mean([z == labels[0] for z in labels]))
        if q:
            g, _ = reference.draw_prior(rng, q, d.RATIO_DF, d.RATIO_PRIOR)
            numbers |= {f"log G{i}": np.log(g[i, i]) for i in range(q)}
        if q > 1:
            numbers["correlation"] = g[0, 1] / np.sqrt(g[0, 0] * g[1, 1])
        if settings.noise == "t":
            df = rng.choice(d.NOISE_DFS)
            numbers["log nu"] = np.log(df)
            numbers["log l"] = np.log(rng.gamma(df / 2, 2 / df))
            numbers["log l 2"] = np.log(rng.gamma(df / 2, 2 / df))
        for name, value in numbers.items():
            kept.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in kept.items()}


@pytest.mark.parametrize(
    "chosen",
    [
        {"random_effects": "intercept"},
        {"random_effects": "slopes", "noise": "t"},
        {"noise_by_class": True},
        {"random_effects": "intercept", "noise": "t", "noise_by_class": True},
    ],
)
def test_joint_distribution_of_the_sampler(chosen: dict[str, Any]) -> None:
    """Geweke (JASA 99, 2004): what is shared keeps its prior while events are drawn anew.

    Means and mean squares by batches; the largest of about twenty standardised differences of a
    correct sampler is below 4 but once in 800.
    """
    settings = Settings(n_classes=2, n_start=2, delta=1.0, beta=2.0, **chosen)
    found = joint_draws(settings, 4000, 5)
    expected = prior_draws(settings, 4000, 6)
    for name, values in found.items():
        for power in (1, 2):
            batches = (values[: 40 * (len(values) // 40)] ** power).reshape(40, -1).mean(axis=1)
            other = expected[name] ** power
            error = np.sqrt(batches.var(ddof=1) / 40 + other.var(ddof=1) / len(other))
            assert abs(batches.mean() - other.mean()) < 4 * error, (name, power)


def test_slice_sampler_keeps_a_density() -> None:
    rng, at, kept = stream(0, "slice"), 0.0, []
    for _ in range(20000):
        at = d.slice_step(lambda u: -0.5 * (u - 3.0) ** 2 / 4.0, at, rng)
        kept.append(at)
    batches = np.array(kept).reshape(50, -1)
    error = batches.mean(axis=1).std(ddof=1) / np.sqrt(50)
    assert abs(np.mean(kept) - 3.0) < 4 * error
    assert np.std(kept) == pytest.approx(2.0, rel=0.05)


# ------------------------------------------------------------------ what is left out


@pytest.mark.parametrize(("q", "noise"), [(1, 0.8), (3, np.array([0.8, 0.3]))])
def test_scores_of_events_left_out_are_those_of_the_textbook(q: int, noise: model.Noise) -> None:
    blocks, given, entities = made(20 + q, q, n_entities=20)
    rows = ev.Rows(blocks.x, blocks.y, blocks.entity, blocks.agent[blocks.entity], blocks.weight)
    u = stream(0, "halves").random(len(blocks.y))
    halves = ev.halves_of(rows, blocks, u)
    assert halves is not None
    rng = stream(1, "sweeps")
    base = np.array([0.4, 0.6])
    sweeps = [
        ev.Sweep(rng.integers(0, 2, 20), base, 1.5 + s, noise + s, 1.2, given) for s in range(2)
    ]
    found = ev.degree_scores(blocks, sweeps, halves, rng)
    for i, e in enumerate(halves.at):
        order = np.argsort(u[blocks.start[e] : blocks.start[e + 1]])
        known = np.zeros(len(order), dtype=bool)
        known[order[: (len(order) + 1) // 2]] = True
        score = error = 0.0
        for side in (known, ~known):
            logs, means = [], []
            for sweep in sweeps:
                parts = []
                for k, variance in enumerate(np.broadcast_to(sweep.sigma2, 2)):
                    others = [j for j in range(20) if sweep.labels[j] == k and j != e]
                    same = sum(blocks.agent[j] == blocks.agent[e] for j in others)
                    a, b = np.eye(3) / 1.2, np.zeros(3)
                    for j in others:
                        v = reference.own_covariance(entities[j], given.ratio, variance)
                        a += entities[j].x.T @ np.linalg.solve(v, entities[j].x)
                        b += entities[j].x.T @ np.linalg.solve(v, entities[j].y)
                    spread = np.linalg.inv(a)
                    shared = spread @ b, spread, given.ratio, variance
                    prior = np.log(same + sweep.beta * base[k])
                    parts.append((prior, *reference.left_out(entities[e], side, *shared)))
                prior, some, rest = (np.array([part[n] for part in parts]) for n in range(3))
                every = np.logaddexp.reduce(prior + some + rest)
                logs.append(every - np.logaddexp.reduce(prior + some))
                weights = np.exp(prior + some - np.logaddexp.reduce(prior + some))
                means.append(weights @ np.array([part[3] for part in parts]))
            odds = np.logaddexp.reduce(-np.array(logs))
            score += np.log(2) - odds
            predicted = np.exp(-np.array(logs) - odds) @ np.array(means)
            error += float(((entities[e].y[~side] - predicted) ** 2).sum())
        assert found.log_score[i] == pytest.approx(score, rel=1e-9)
        assert found.error[i] == pytest.approx(error, rel=1e-9)


def test_scores_under_t_noise_come_near_those_of_normal_noise() -> None:
    """With 1e6 degrees of freedom the average over draws is the density in closed form."""
    blocks, given, _ = made(31, 1, n_entities=20)
    rows = ev.Rows(blocks.x, blocks.y, blocks.entity, blocks.agent[blocks.entity], blocks.weight)
    halves = ev.halves_of(rows, blocks, stream(0, "halves").random(len(blocks.y)))
    assert halves is not None
    labels = np.arange(20) % 2
    plain = [ev.Sweep(labels, np.array([0.5, 0.5]), 2.0, 0.8, 1.0, given)]
    tails = replace(given, precision=np.ones(len(blocks.y)), df=1e6)
    near = [plain[0]._replace(degrees=tails)]
    exact = ev.degree_scores(blocks, plain, halves, stream(0, "draws"))
    found = ev.degree_scores(blocks, near, halves, stream(0, "draws"))
    np.testing.assert_allclose(found.error, exact.error, rtol=1e-9)
    apart = found.log_score - exact.log_score
    assert abs(apart.mean()) < 4 * apart.std(ddof=1) / np.sqrt(len(apart)) + 0.02
    assert np.abs(apart).max() < 1.0

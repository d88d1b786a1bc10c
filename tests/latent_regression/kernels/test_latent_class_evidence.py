"""Kinds or degrees: the mixed model, what is left out, and the verdict."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from consilience import LatentClassRegressor
from consilience.latent_regression.kernels import evidence as ev
from consilience.latent_regression.kernels.latent_class import Blocks, blocks_of
from consilience.numerics.random import stream
from tests.reference import latent_class as reference
from tests.reference import latent_degrees as degrees


def grouped(
    seed: int, n_entities: int = 30, events: int = 6, spread: Any = (0.7, 0.4, 0.0), f: int = 3
) -> ev.Rows:
    """Events of one regression with own coefficients of each entity around it."""
    rng = stream(seed, "grouped")
    entity = np.repeat(np.arange(n_entities), 2 + rng.poisson(events - 2, n_entities))
    x = rng.standard_normal((len(entity), f))
    x[:, 0] = 1.0
    own = rng.standard_normal((n_entities, f)) * np.asarray(spread)
    y = (x * (own[entity] + np.linspace(0.5, -0.5, f))).sum(axis=1)
    y += rng.standard_normal(len(y))
    return ev.Rows(x, y, entity, entity // 5, np.ones(len(y)))


def blocks(rows: ev.Rows) -> Blocks:
    return blocks_of(rows.x, rows.y, rows.entity, rows.agent, rows.weight)


def by_entity(part: Blocks) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(part.x[a:b], part.y[a:b]) for a, b in zip(part.start[:-1], part.start[1:])]


# ------------------------------------------------------------------ the mixed model


def of_agents(rows: ev.Rows, seed: int) -> ev.Rows:
    """The same events with own intercept and first slope of each agent."""
    own = stream(seed, "agents").standard_normal((rows.agent.max() + 1, 2))
    return rows._replace(y=rows.y + (rows.x[:, :2] * own[rows.agent]).sum(axis=1))


LEVELS = [([], []), ([0], []), ([0, 1, 2], []), ([], [0]), ([0], [0, 1]), ([0, 1], [0, 1])]


@pytest.mark.parametrize(("random", "between"), LEVELS)
def test_restricted_likelihood_is_that_of_the_textbook_and_highest(
    random: list[int], between: list[int]
) -> None:
    rows = of_agents(grouped(1, 50, spread=(0.7, 0.5, 0.6)), 1)
    fit = ev.mixed_model(blocks(rows), random, between)
    entities, agents = by_entity(blocks(rows)), blocks(rows).agent.tolist()

    def deviance(g: np.ndarray, sigma2: float, b: np.ndarray) -> float:
        return reference.restricted_deviance(entities, g, sigma2, agents, b)

    best = deviance(fit.ratio, fit.sigma2, fit.between)
    assert fit.deviance == pytest.approx(best, rel=1e-10)
    assert bool(random) == fit.ratio.any() and bool(between) == fit.between.any()
    # no step in any direction that leaves G nonnegative lowers it
    for scale in (0.98, 1.02):
        assert deviance(fit.ratio, fit.sigma2 * scale, fit.between) > best
        if random:
            assert deviance(fit.ratio * scale, fit.sigma2, fit.between) > best
        if between:
            assert deviance(fit.ratio, fit.sigma2, fit.between * scale) > best


@pytest.mark.parametrize("random", [[0], [0, 1]])
def test_mixed_model_is_that_of_statsmodels(random: list[int]) -> None:
    from statsmodels.regression.mixed_linear_model import MixedLM

    rows = grouped(2, 40)
    fit = ev.mixed_model(blocks(rows), random)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = MixedLM(rows.y, rows.x, rows.entity, exog_re=rows.x[:, random]).fit(reml=True)
    assert fit.deviance == pytest.approx(-2 * other.llf, abs=1e-6)
    np.testing.assert_allclose(fit.mean, other.fe_params, atol=1e-4)
    found = fit.sigma2 * fit.ratio[np.ix_(random, random)]
    np.testing.assert_allclose(found, other.cov_re, atol=2e-3)
    assert fit.sigma2 == pytest.approx(other.scale, rel=1e-3)


def test_no_variance_between_entities_is_found_as_none() -> None:
    rows = grouped(3, 60, spread=(0.0, 0.0, 0.0))
    centred = rows._replace(y=rows.y.copy())
    for e in range(60):  # means of the entities that differ by nothing: a variance below 0
        centred.y[rows.entity == e] -= rows.y[rows.entity == e].mean()
    fit = ev.mixed_model(blocks(centred), [0])
    one = ev.mixed_model(blocks(centred), [])
    assert fit.ratio[0, 0] == 0 and fit.deviance == one.deviance


def test_own_coefficients_like_classes_have_their_moments() -> None:
    mean, shares = np.array([[1.0, 0.0], [3.0, 1.0], [0.0, -2.0]]), np.array([2.0, 1.0, 1.0])
    centre, ratio = ev.like_classes(mean, shares, 0.5, 9.0)
    labels = [0, 0, 1, 2]
    np.testing.assert_allclose(centre, mean[labels].mean(axis=0))
    np.testing.assert_allclose(0.5 * ratio, np.cov(mean[labels].T, ddof=0))
    one, alone = ev.like_classes(mean[:1], shares[:1], 0.5, 9.0)
    np.testing.assert_array_equal(one, mean[0])
    np.testing.assert_array_equal(alone, 18.0 * np.eye(2))


def test_further_events_are_predicted_as_by_the_textbook() -> None:
    rows, mean, ratio = grouped(8, 20), np.array([0.5, 0.0, -0.5]), np.diag([0.5, 0.2, 0.0])
    ratio[0, 1] = ratio[1, 0] = 0.1
    x = stream(8, "further").normal(size=(40, 3))
    entity = np.repeat(np.arange(20), 2)
    found, variance = ev.own_predictions(mean, ratio, 1.3, blocks(rows), x, entity)
    for e, (known, y) in enumerate(by_entity(blocks(rows))):
        one = degrees.Entity(known, y, np.ones(len(y)), np.ones(len(y)))
        own, spread = degrees.own_posterior(one, mean, ratio, 1.3)
        for i in np.flatnonzero(entity == e):
            assert found[i] == pytest.approx(x[i] @ (mean + own), rel=1e-9)
            assert variance[i] == pytest.approx(1.3 + x[i] @ spread @ x[i], rel=1e-9)


def test_no_event_moves_the_predictions_of_another_entity() -> None:
    """A variance of the entities' own would tell the largest of them in everybody's figures."""
    rows, mean, ratio = grouped(9, 12), np.array([0.5, 0.0, -0.5]), np.eye(3)
    x, entity = np.ones((11, 3)), np.arange(1, 12)
    far = rows._replace(x=rows.x + 1e3 * (rows.entity == 0)[:, None], y=rows.y + (rows.entity == 0))
    for one, two in zip(
        ev.own_predictions(mean, ratio, 1.3, blocks(rows), x, entity),
        ev.own_predictions(mean, ratio, 1.3, blocks(far), x, entity),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


# ------------------------------------------------------------------ what is left out


@pytest.fixture(scope="module")
def left() -> tuple[ev.Rows, Blocks, ev.Halves]:
    rows = grouped(4, 12)
    found = ev.halves_of(rows, blocks(rows), stream(4, "halves").random(len(rows.y)))
    assert found is not None
    return rows, blocks(rows), found


def halved(halves: ev.Halves) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows, outcomes, and which of them are in the first half, by entity."""
    found = []
    for one, two in zip(by_entity(halves.first), by_entity(halves.second), strict=True):
        first = np.arange(len(one[1]) + len(two[1])) < len(one[1])
        found.append((np.vstack([one[0], two[0]]), np.concatenate([one[1], two[1]]), first))
    return found


def test_halves_hold_every_event_once(left: Any) -> None:
    rows, all_of_them, halves = left
    sizes = halves.first.n + halves.second.n
    np.testing.assert_array_equal(sizes, all_of_them.n[halves.at])
    assert (np.abs(halves.first.n - halves.second.n) <= 1).all()
    np.testing.assert_allclose(
        halves.first.products + halves.second.products, halves.whole.products
    )
    np.testing.assert_allclose(halves.whole.cross, all_of_them.cross[halves.at])
    few = rows._replace(y=np.where(rows.entity < 8, np.nan, rows.y))
    assert ev.halves_of(few, blocks(few), np.zeros(len(rows.y))) is None


@pytest.mark.parametrize(("random", "between"), LEVELS)
def test_mixed_scores_are_those_of_the_textbook(
    left: Any, random: list[int], between: list[int]
) -> None:
    rows, _, _ = left
    rows = of_agents(rows, 4)
    all_of_them = blocks(rows)
    halves = ev.halves_of(rows, all_of_them, stream(4, "halves").random(len(rows.y)))
    assert halves is not None
    fit = ev.mixed_model(all_of_them, random, between, penalty=0.7)
    assert not between or fit.between.any()
    found = ev.mixed_scores(fit, halves)
    entities, agents = by_entity(all_of_them), all_of_them.agent.tolist()
    for e, (x, y, first) in enumerate(halved(halves)):
        now = [*entities[:e], (x, y), *entities[e + 1 :]]
        given = (now, e), (fit.ratio, fit.sigma2, 0.7, agents, fit.between)
        both = [reference.mixed_left_out(*given[0], k, *given[1]) for k in (first, ~first)]
        log_score, error = np.sum(both, axis=0)
        assert found.log_score[e] == pytest.approx(log_score, rel=1e-9)
        assert found.error[e] == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("times", [1e4, 1e-3])
def test_a_column_in_other_units_has_the_same_own_coefficients(times: float) -> None:
    """A column ten thousand times as large had none: its variance was below what counts as none."""
    rows = of_agents(grouped(1, 50, spread=(0.7, 0.5, 0.6)), 1)
    other = rows._replace(x=rows.x * [1.0, times, 1.0])
    u = stream(4, "halves").random(len(rows.y))
    fits, scores = [], []
    for one in (rows, other):
        fits.append(ev.mixed_model(blocks(one), [0, 1], [0, 1]))
        halves = ev.halves_of(one, blocks(one), u)
        assert halves is not None
        scores.append(ev.mixed_scores(fits[-1], halves))
    np.testing.assert_allclose(scores[1].log_score, scores[0].log_score, rtol=1e-6)
    units = np.array([1.0, times, 1.0])
    assert fits[0].between[1, 1] > 0
    np.testing.assert_allclose(fits[1].between * units[:, None] * units, fits[0].between, rtol=1e-6)
    assert fits[1].deviance == pytest.approx(fits[0].deviance + 2 * np.log(times), abs=1e-6)


@pytest.mark.parametrize("noise", [2.0, np.array([0.5, 2.0, 0.9])])
def test_class_scores_are_those_of_the_textbook(left: Any, noise: Any) -> None:
    """Harmonic means over two sweeps, one of them with a class of a single entity."""
    _, all_of_them, halves = left
    rng = stream(5, "labels")
    sweeps = []
    for s in range(2):
        labels = rng.integers(2, size=12) + 1
        labels[3] = 0
        sweeps.append(ev.Sweep(labels, np.array([0.2, 0.5, 0.3]), 2.0 + s, noise * (1 + s), 0.6))
    found = ev.class_scores(all_of_them, sweeps, halves)
    entities, agents = by_entity(all_of_them), all_of_them.agent.tolist()
    for e, (x, y, first) in enumerate(halved(halves)):
        now = [*entities[:e], (x, y), *entities[e + 1 :]]
        log_score, error = 0.0, 0.0
        for known in (first, ~first):
            each = [reference.classes_left_out(now, agents, e, known, *s[:5]) for s in sweeps]
            inverse = np.exp(-np.array([value for value, _ in each]))
            log_score -= np.log(inverse.mean())
            predicted = sum(w * mean for w, (_, mean) in zip(inverse / inverse.sum(), each))
            error += ((y[~known] - predicted) ** 2).sum()
        assert found.log_score[e] == pytest.approx(log_score, rel=1e-8)
        assert found.error[e] == pytest.approx(error, rel=1e-8)


# ------------------------------------------------------------------ the verdict


def test_a_difference_is_a_ratio_over_entities_and_clear_in_both_figures(left: Any) -> None:
    halves = left[2]
    m, n = len(halves.at), halves.whole.n
    rng = stream(6, "scores")
    other = ev.Scores(rng.normal(size=m), 2.0 + rng.random(m))
    model = ev.Scores(other.log_score + 0.5 * n, 0.5 * other.error)
    sure = ev._difference(model, other, halves)
    assert sure == (
        pytest.approx(0.5),
        pytest.approx(0),
        pytest.approx(0.5),
        pytest.approx(0),
        True,
    )
    # log density alone, or squared error alone, is not enough
    assert not ev._difference(model._replace(error=other.error), other, halves).clear
    assert not ev._difference(model._replace(log_score=other.log_score), other, halves).clear
    wild = ev.Scores(other.log_score + rng.normal(size=m), other.error)
    found = ev._difference(wild, other, halves)
    gain = wild.log_score - other.log_score
    rest = gain - n * gain.sum() / n.sum()
    assert found.log_error == pytest.approx(np.sqrt(m / (m - 1) * (rest**2).sum()) / n.sum())


def difference(log_score: float, saved: float, clear: bool) -> ev.Difference:
    return ev.Difference(log_score, 0.01, saved, 0.02, clear)


@pytest.mark.parametrize(
    ("verdict", "k", "to_one", "mixed_to_one", "words"),
    [
        (
            ev.KINDS,
            2,
            True,
            True,
            "2 classes predict better than one regression (log density of an",
        ),
        (
            ev.DEGREES,
            3,
            True,
            True,
            "but not clearly better than a mixed model with random intercep",
        ),
        (ev.DEGREES, 3, False, True, "3 classes do not predict clearly better than one regression"),
        (
            ev.DEGREES,
            1,
            False,
            True,
            "a mixed model with random intercepts predicts better than one",
        ),
        (ev.NO_KINDS, 1, False, False, "does not predict clearly better than one regression"),
    ],
)
def test_sentences(verdict: str, k: int, to_one: bool, mixed_to_one: bool, words: str) -> None:
    found = ev.Evidence(
        verdict, k, k == 1, 50, k == 1, "intercepts", {}, {}, difference(0.2, 0.3, to_one),
        difference(0.1, 0.05, True), difference(0.12, 0.2, mixed_to_one),
    )  # fmt: skip
    said = found.sentence
    assert said.startswith(
        f"{verdict}: judged on the events of 50 entities, each left out in turn, "
    )
    assert words in said and ("squares of the columns" in said) == found.curved
    assert "+0.120 ± 0.010, squared error -20.0% ± 2.0%" in said or k > 1
    assert (", though by more than a standard error" in said) == (k > 1 and not to_one)


@pytest.mark.parametrize(
    ("columns", "intercept", "names"),
    [
        (3, True, {"intercepts": 1, "intercepts and slopes": 3}),
        (1, True, {"intercepts": 1}),
        (13, True, {"intercepts": 1}),
        (2, False, {"slopes": 2}),
        (13, False, {"slopes of the first column": 1}),
    ],
)
def test_own_coefficients_are_named_as_what_they_are(
    columns: int, intercept: bool, names: dict[str, int]
) -> None:
    own = ev.own_coefficients(columns, intercept)
    assert {name: len(j) for name, j in own.items()} == names
    assert all(j == tuple(range(len(j))) for j in own.values())


def test_without_an_intercept_no_random_intercepts_are_named() -> None:
    rng = stream(3, "slopes")
    entity = np.repeat(np.arange(40), 8)
    x = rng.standard_normal((len(entity), 2))
    y = (x * (1.0 + 0.8 * rng.standard_normal((40, 2))[entity])).sum(axis=1)
    y += 0.5 * rng.standard_normal(len(y))
    fit = LatentClassRegressor(2, fit_intercept=False, n_restarts=1, random_state=0)
    fit.fit(x, y, entity=entity, agent=entity // 4)
    assert fit.evidence_.random in ("slopes", "slopes of entities and agents")


def test_a_singular_system_is_of_one_entity_alone() -> None:
    rng = stream(4, "systems")
    half = rng.standard_normal((5, 3, 3))
    left = np.eye(3) + half @ np.swapaxes(half, 1, 2)
    right = rng.standard_normal((5, 3, 2))
    usual = ev._solve(left, right)
    left[2] = 1e20 * np.ones((3, 3))  # 1 and a nonnegative one, to rounding
    found = ev._solve(left, right)
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(usual, 2, 0))
    assert np.isfinite(found[2]).all()
    assert np.abs(found[2]).max() <= 3 * np.abs(right[2]).max()


def test_ahead_is_by_a_standard_error_in_both_figures() -> None:
    assert difference(0.011, 0.021, False).ahead
    assert not difference(0.009, 0.3, False).ahead and not difference(0.3, 0.019, False).ahead

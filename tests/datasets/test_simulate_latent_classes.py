"""The design for latent class regression: sizes, shares, noise, folds, oracle."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.datasets.simulate_latent_classes import simulate_latent_classes
from consilience.exceptions import ParameterError
from consilience.numerics.random import stream


def test_sizes_of_the_source():
    data = simulate_latent_classes(16, rng=stream(0), n_agents=2000, n_entities=4, n_events=5)
    events = data.events
    assert data.weights.shape == (16, 8)
    assert events.x.shape == (len(events), 7)
    agents, first = np.unique(events.entity, return_index=True)
    entities = np.unique(events.agent[first], return_counts=True)[1]
    each = np.unique(events.entity, return_counts=True)[1]
    assert len(entities) == 2000
    assert entities.min() == 1
    assert each.min() == 2
    # Poisson: standard errors sqrt(3 / 2000) = .039 and sqrt(3 / 8000) = .019
    assert entities.mean() == pytest.approx(4.0, abs=0.16)
    assert each.mean() == pytest.approx(5.0, abs=0.08)
    assert len(agents) == len(each)


def test_responses_are_those_of_the_classes():
    data = simulate_latent_classes(4, rng=stream(1), n_entities=16, sigma=0.5, delta=2.0)
    rest = data.events.y - data.expected(data.events)
    assert len(rest) > 35_000
    assert rest.std() == pytest.approx(0.5, rel=0.02)  # standard error .4%
    many = simulate_latent_classes(400, rng=stream(2), n_agents=1, delta=2.0, n_features=10)
    assert many.weights.std() == pytest.approx(2.0, rel=0.05)  # 4000 draws: 1.1%
    per_entity = {
        entity: set(data.events.label[data.events.entity == entity])
        for entity in np.unique(data.events.entity)[:50]
    }
    assert all(len(labels) == 1 for labels in per_entity.values())


def test_shares_vary_around_the_given_ones():
    wanted = np.array([0.6, 0.3, 0.1])
    data = simulate_latent_classes(3, rng=stream(3), n_agents=4000, shares=[6, 3, 1], beta=4.0)
    np.testing.assert_allclose(data.shares, wanted)
    # Dirichlet(4 psi): variance psi (1 - psi) / 5; standard error of the mean at most .0035
    np.testing.assert_allclose(data.theta.mean(axis=0), wanted, atol=0.014)
    np.testing.assert_allclose(data.theta.var(axis=0), wanted * (1 - wanted) / 5, rtol=0.15)
    first = np.unique(data.events.entity, return_index=True)[1]
    found = np.bincount(data.events.label[first], minlength=3) / len(first)
    np.testing.assert_allclose(found, wanted, atol=0.02)  # standard error at most .005


def test_no_fold_holds_all_events_of_an_entity():
    events = simulate_latent_classes(4, rng=stream(4), n_events=5).events
    held = np.bincount(events.fold, minlength=5) / len(events)
    np.testing.assert_allclose(held, 0.2, atol=0.03)  # about 2500 events: standard error .008
    for entity in np.unique(events.entity):
        folds = events.fold[events.entity == entity]
        most = np.bincount(folds).max()
        assert most < len(folds)
        assert most <= -(-len(folds) // 5)


def test_oracle_is_the_posterior_mean_and_nears_the_truth():
    data = simulate_latent_classes(3, rng=stream(5), n_entities=16, sigma=0.5, shares=[1, 1, 1])
    found = data.oracle()
    assert np.abs(found - data.weights).max() < 0.03  # standard error .5 / sqrt(13,000) = .0044
    train = data.events.fold != 0
    assert not np.array_equal(data.oracle(train), found)
    small = simulate_latent_classes(2, rng=stream(6), n_agents=1, n_entities=1, shares=[1, 1])
    unused = 1 - small.events.label[0]
    np.testing.assert_array_equal(small.oracle()[unused], 0.0)


def test_entities_and_agents_that_are_new():
    data = simulate_latent_classes(
        4, rng=stream(7), n_agents=10, new_entities=25, new_agents=30, new_events=7
    )
    known, entities = set(data.events.agent), set(data.events.entity)
    assert set(data.new_entities.agent) <= known
    assert not set(data.new_entities.entity) & entities
    assert not set(data.new_agents.agent) & known
    assert len(set(data.new_entities.entity)) == 25
    assert len(set(data.new_agents.agent)) == 30
    assert len(data.new_agents) == 210
    np.testing.assert_array_equal(np.bincount(data.new_entities.event), 25)
    rest = data.new_agents.y - data.expected(data.new_agents)
    assert rest.std() == pytest.approx(1.0, abs=0.2)  # 210 events: standard error .05


def test_unequal_agents_keep_the_mean_size():
    sizes = []
    for spread in (0.0, 1.0):
        rng = stream(8)
        data = simulate_latent_classes(2, rng=rng, n_agents=4000, n_events=2, spread=spread)
        first = np.unique(data.events.entity, return_index=True)[1]
        sizes.append(np.unique(data.events.agent[first], return_counts=True)[1])
    # log-normal with variance (e - 1) 9: standard error of the mean .07
    assert sizes[1].mean() == pytest.approx(4.0, abs=0.25)
    assert sizes[1].max() > 2 * sizes[0].max()


def test_same_stream_same_events():
    first, again, other = (
        simulate_latent_classes(4, rng=stream(seed), n_agents=5).events for seed in (9, 9, 10)
    )
    np.testing.assert_array_equal(first.y, again.y)
    np.testing.assert_array_equal(first.entity, again.entity)
    np.testing.assert_array_equal(first.fold, again.fold)
    assert not np.array_equal(first.y, other.y)


def test_table_of_events():
    events = simulate_latent_classes(2, rng=stream(11), n_agents=3, n_features=3).events
    frame = events.take(events.fold == 0).to_frame()
    assert list(frame.columns) == ["agent", "entity", "x1", "x2", "y"]
    np.testing.assert_array_equal(frame["x2"], events.x[events.fold == 0, 1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_agents": 0},
        {"n_entities": 0.5},
        {"n_events": 1.0},
        {"n_features": 0},
        {"sigma": -1.0},
        {"delta": 0.0},
        {"alpha": 0.0},
        {"beta": 0.0},
        {"spread": -1.0},
        {"shares": [1.0]},
        {"shares": [1.0, 0.0]},
        {"new_entities": -1},
        {"new_agents": -1},
        {"new_events": 0},
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ParameterError):
        simulate_latent_classes(2, rng=stream(0), **wrong)

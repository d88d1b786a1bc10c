from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Totals,
    agent_key,
    block_log_likelihood,
    blocks_of,
    classes_of,
    draw_uniform,
    totals_of,
)
from consilience.numerics.random import stream
from tests.reference import latent_class as reference

SIGMAS = (0.05, 0.3, 1.0, 5.0)


def rows(
    n_entities: int, n_features: int, events: int, seed: int, sigma: float = 1.0, n_agents: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Events of entities in three classes: features with an intercept, target, entity, agent."""
    rng = stream(seed, "rows")
    sizes = 1 + rng.poisson(events - 1, n_entities)
    entity = np.repeat(np.arange(n_entities), sizes)
    x = rng.standard_normal((entity.size, n_features))
    x[:, 0] = 1.0
    w = rng.standard_normal((3, n_features))
    y = (x * w[entity % 3]).sum(axis=1) + sigma * rng.standard_normal(entity.size)
    return x, y, entity, np.sort(rng.integers(n_agents, size=n_entities))[entity]


def of_entity(blocks: Blocks, e: int) -> tuple[np.ndarray, np.ndarray]:
    here = slice(blocks.start[e], blocks.start[e + 1])
    return blocks.x[here], blocks.y[here]


@pytest.mark.parametrize(("n_features", "events"), [(3, 4), (24, 3)])
def test_each_of_many_classes_has_its_own_noise(n_features: int, events: int) -> None:
    """Eleven classes side by side, of two groups of eight, are judged as each is alone."""
    blocks = blocks_of(*rows(33, n_features, events, 4))
    noise = np.geomspace(0.1, 4.0, 11)
    totals = totals_of(blocks, np.arange(33) % 11, 11)
    own = np.zeros((33, 11))
    own[np.arange(33), np.arange(33) % 11] = 1.0
    found = block_log_likelihood(blocks, classes_of(totals, noise, 2.0), own)
    for k in range(11):
        alone = classes_of(totals.take([k]), float(noise[k]), 2.0)
        np.testing.assert_allclose(
            found[:, [k]], block_log_likelihood(blocks, alone, own[:, [k]]), rtol=1e-12
        )


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1.0)).max())


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("n_features", "events"), [(1, 3), (8, 5), (8, 40), (32, 5), (20, 30)])
def test_likelihood_equals_the_product_over_events(
    sigma: float, n_features: int, events: int
) -> None:
    blocks = blocks_of(*rows(12, n_features, events, 1, sigma))
    totals = totals_of(blocks, np.arange(12) % 3, 4)  # the last class is empty
    classes = classes_of(totals, sigma**2, 2.0)
    found = block_log_likelihood(blocks, classes)
    wanted = np.empty_like(found)
    for e in range(12):
        for k in range(4):
            state = classes.precision[k], totals.cross[k] / sigma**2
            wanted[e, k] = reference.event_by_event(*of_entity(blocks, e), *state, sigma**2)
    assert relative(found, wanted) <= 1e-9


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_order_of_events_does_not_matter(sigma: float) -> None:
    x, y, entity, agent = rows(1, 3, 4, 5, sigma)
    totals = totals_of(blocks_of(*rows(9, 3, 6, 2, sigma)), np.arange(9) % 2, 2)
    classes = classes_of(totals, sigma**2, 1.0)
    blocks = blocks_of(x, y, entity, agent)
    found = block_log_likelihood(blocks, classes)
    for order in permutations(range(y.size)):
        o = list(order)
        again = block_log_likelihood(blocks_of(x[o], y[o], entity[o], agent[o]), classes)
        assert relative(again, found) <= 1e-9
        state = classes.precision[0], totals.cross[0] / sigma**2
        assert relative(found[:, 0], reference.event_by_event(x[o], y[o], *state, sigma**2)) <= 1e-9


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("n_features", "events"), [(6, 4), (6, 30), (24, 4)])
def test_own_events_are_taken_out_of_the_classes(
    sigma: float, share: float, n_features: int, events: int
) -> None:
    blocks = blocks_of(*rows(10, n_features, events, 3, sigma))
    labels = np.arange(10) % 3
    totals = totals_of(blocks, labels, 3)
    own = np.zeros((10, 3))
    own[np.arange(10), labels] = share
    found = block_log_likelihood(blocks, classes_of(totals, sigma**2, 1.0), own)
    for e in range(10):
        k = labels[e]
        x, y = of_entity(blocks, e)
        a = np.eye(n_features) + (totals.products[k] - share * x.T @ x) / sigma**2
        b = (totals.cross[k] - share * x.T @ y) / sigma**2
        assert relative(found[e, k], reference.event_by_event(x, y, a, b, sigma**2)) <= 1e-9
    rest = own == 0
    plain = block_log_likelihood(blocks, classes_of(totals, sigma**2, 1.0))
    assert np.array_equal(found[rest], plain[rest])


@pytest.mark.parametrize("seed", range(25))
def test_random_sizes_agree_with_the_textbook(seed: int) -> None:
    """Entities outside and inside of the classes; delta^2 from .01 to 100, also F > n."""
    rng = stream(seed, "sizes")
    n_features, events, n_classes = (int(rng.integers(1, top)) for top in (40, 60, 20))
    sigma2, delta2 = 10.0 ** rng.uniform(-2.6, 1.4), 10.0 ** rng.uniform(-2, 2)
    blocks = blocks_of(*rows(15, n_features, events, seed, float(np.sqrt(sigma2))))
    labels = rng.integers(n_classes, size=15)
    classes = classes_of(totals_of(blocks, labels, n_classes), sigma2, delta2)
    taken_out = block_log_likelihood(blocks, classes, np.eye(n_classes)[labels])
    for e in range(3):
        k = labels[e]
        totals = totals_of(blocks, np.where(np.arange(15) != e, labels, -1), n_classes)
        without = classes_of(totals, sigma2, delta2)
        wanted = reference.event_by_event(
            *of_entity(blocks, e), without.precision[k], without.linear[k], sigma2
        )
        assert relative(block_log_likelihood(blocks, without)[e, k], wanted) <= 1e-9
        assert relative(taken_out[e, k], wanted) <= 1e-9


@pytest.mark.parametrize("events", [2, 9])
@pytest.mark.parametrize("n_classes", [1, 7, 8, 9, 17])
def test_a_class_and_an_entity_are_judged_alike_alone_and_among_others(
    n_classes: int, events: int
) -> None:
    blocks = blocks_of(*rows(20, 7, events, 4))
    totals = totals_of(blocks, np.arange(20) % n_classes, n_classes)
    found = block_log_likelihood(blocks, classes_of(totals, 0.5, 1.0))
    for k in range(n_classes):
        alone = block_log_likelihood(blocks, classes_of(totals.take([k]), 0.5, 1.0))
        assert np.array_equal(alone[:, 0], found[:, k])
    x, y = of_entity(blocks, 3)
    alone = blocks_of(x, y, np.zeros(y.size), np.zeros(y.size))
    assert np.array_equal(block_log_likelihood(alone, classes_of(totals, 0.5, 1.0))[0], found[3])


def test_arrays_that_may_not_be_written_will_do() -> None:
    blocks = blocks_of(*rows(6, 3, 4, 0))
    totals = totals_of(blocks, np.arange(6) % 2, 2)
    own = np.eye(2)[np.arange(6) % 2]
    for array in (*totals.arrays, own, blocks.products, blocks.x, blocks.start, blocks.agent):
        array.flags.writeable = False
    found = block_log_likelihood(blocks, classes_of(totals, 1.0, 1.0), own)
    assert np.isfinite(found).all()


def test_drawn_numbers_depend_on_key_round_and_position() -> None:
    key = agent_key(1, "a")
    assert key == agent_key(1, "a")
    assert len({key, agent_key(1, "b"), agent_key(2, "a"), agent_key(1, 1), agent_key(1, "1")}) == 5
    u = draw_uniform(key, 3, np.arange(20_000))
    assert u.min() > 0.0 and u.max() < 1.0
    assert draw_uniform(key, 3, 17) == u[17]
    # Monte Carlo errors: mean .002, correlations .007
    assert abs(u.mean() - 0.5) < 0.01
    for other in (u[np.r_[1:20_000, 0]], draw_uniform(key, 4, np.arange(20_000))):
        assert abs(np.corrcoef(u, other)[0, 1]) < 0.03


def test_variances_are_checked() -> None:
    for sigma2, delta2, name in ((0.0, 1.0, "sigma2"), (1.0, np.inf, "delta2")):
        with pytest.raises(ParameterError, match=name):
            classes_of(Totals.zeros(2, 2), sigma2, delta2)
    classes = classes_of(Totals.zeros(2, 2), 1.0, 1.0)
    with pytest.raises(ParameterError, match="own"):
        block_log_likelihood(blocks_of(*rows(4, 2, 3, 0)), classes, np.ones((4, 3)))
    huge = blocks_of([[1e200]], [1.0], [0], [0])
    with pytest.raises(DataError, match="common scale"):
        classes_of(totals_of(huge, [0], 1), 1.0, 1.0)

from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class import (
    Totals,
    blocks_of,
    totals_of,
    tree_sum,
)
from consilience.numerics.random import stream


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Events of eleven entities under five agents in no order, agent 3 without any."""
    rng = stream(seed, "table")
    entity = rng.integers(11, size=n)
    agent = np.array([4, 0, 2, 1, 0, 0, 4, 2, 2, 1, 0])[entity]
    return rng.standard_normal((n, 4)), rng.standard_normal(n), entity, agent


def test_blocks_hold_the_sums_of_each_entity() -> None:
    x, y, entity, agent = table(60)
    y[[3, 17]] = np.nan
    weight = stream(1, "weight").integers(0, 3, 60).astype(float)
    blocks = blocks_of(x, y, entity, agent, weight)
    seen = list(dict.fromkeys(entity))  # by first appearance
    expected = sorted(seen, key=lambda e: (agent[entity == e][0], seen.index(e)))
    assert blocks.n_entities == len(expected)
    assert blocks.n_agents == 5
    assert list(np.diff(blocks.agent_start)) == [list(blocks.agent).count(i) for i in range(5)]
    for place, e in enumerate(expected):
        assert set(blocks.entity[entity == e]) == {place}
        rows = np.flatnonzero((entity == e) & ~np.isnan(y) & (weight > 0))
        here = slice(blocks.start[place], blocks.start[place + 1])
        assert list(blocks.order[here]) == list(rows)
        w = np.diag(weight[rows])
        np.testing.assert_allclose(blocks.products[place], x[rows].T @ w @ x[rows], atol=1e-13)
        np.testing.assert_allclose(blocks.cross[place], x[rows].T @ w @ y[rows], atol=1e-13)
        np.testing.assert_allclose(blocks.squares[place], y[rows] @ w @ y[rows])
        assert blocks.n[place] == weight[rows].sum()
        assert blocks.agent[place] == agent[entity == e][0]
        np.testing.assert_allclose(blocks.x[here].T @ blocks.y[here], blocks.cross[place])


def test_a_weight_is_a_number_of_equal_events() -> None:
    x, y, entity, agent = table(30)
    weight = stream(2, "weight").integers(1, 4, 30)
    weighted = blocks_of(x, y, entity, agent, weight)
    repeated = blocks_of(*(np.repeat(a, weight, axis=0) for a in (x, y, entity, agent)))
    for name in ("products", "cross", "squares", "n"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-12)


def test_an_entity_under_two_agents_is_two() -> None:
    blocks = blocks_of(np.ones((4, 1)), np.arange(4.0), [7, 7, 7, 7], [0, 1, 0, 1])
    assert list(blocks.agent) == [0, 1]
    assert list(blocks.squares) == [4.0, 10.0]
    assert list(blocks.entity) == [0, 1, 0, 1]


def test_no_events_are_no_blocks() -> None:
    blocks = blocks_of(np.zeros((0, 3)), np.zeros(0), [], [])
    assert blocks.n_entities == blocks.n_agents == 0
    assert totals_of(blocks, [], 2).counts.sum() == 0


def test_totals_are_the_tree_sum_over_agents() -> None:
    x, y, entity, agent = table(200)
    blocks = blocks_of(x, y, entity, agent)
    labels = stream(3, "labels").integers(-1, 3, blocks.n_entities)
    found = totals_of(blocks, labels, 3)
    parts = [totals_of(blocks, np.where(blocks.agent == i, labels, -1), 3) for i in range(5)]
    for i, name in enumerate(("products", "cross", "squares", "n")):
        for k in range(3):
            wanted = getattr(blocks, name)[labels == k].sum(axis=0)
            np.testing.assert_allclose(found.arrays[i][k], wanted, rtol=1e-12, atol=1e-12)
        assert np.array_equal(found.arrays[i], tree_sum([p.arrays[i] for p in parts]))
    assert list(found.counts) == [int((labels == k).sum()) for k in range(3)]


@pytest.mark.parametrize("n_agents", [1, 2, 3, 7, 8, 21])
def test_sites_of_neighbouring_agents_are_nodes_of_the_tree(n_agents: int) -> None:
    """Sites of four agents each: the sum of their sums has the same bytes as that of the agents."""
    rng = stream(n_agents, "agents")
    agent = np.sort(np.r_[np.arange(n_agents), rng.integers(n_agents, size=50)])
    blocks = blocks_of(
        rng.standard_normal((agent.size, 2)), rng.standard_normal(agent.size),
        np.arange(agent.size), agent,
    )  # fmt: skip
    labels = rng.integers(2, size=agent.size)
    sites = [
        totals_of(blocks, np.where((blocks.agent >= i) & (blocks.agent < i + 4), labels, -1), 2)
        for i in range(0, n_agents, 4)
    ]
    whole = totals_of(blocks, labels, 2)
    for i, array in enumerate(whole.arrays):
        assert np.array_equal(array, tree_sum([s.arrays[i] for s in sites]))


def test_tree_sum_adds_neighbours_first() -> None:
    a = [np.array(10.0**p) for p in (16, 0, 0, 0, -16)]
    assert tree_sum(a) == ((a[0] + a[1]) + (a[2] + a[3])) + a[4]
    assert tree_sum(a) != sum(a)
    assert tree_sum(a[:1]) == a[0]
    assert tree_sum(a[:1]) is not a[0]
    with pytest.raises(ParameterError):
        tree_sum([])


def test_totals_add_scale_and_merge() -> None:
    blocks = blocks_of(*table(80))
    labels = np.arange(blocks.n_entities) % 4
    totals = totals_of(blocks, labels, 4)
    mapping = np.array([1, 0, 1, -1])
    merged = totals.merged(mapping, 2)
    for a, b in zip(merged.arrays, totals_of(blocks, mapping[labels], 2).arrays):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    half = 0.5 * totals + totals * 0.5 + Totals.zeros(4, 4)
    for a, b in zip(half.arrays, totals.arrays):
        assert np.array_equal(a, b)
    assert np.array_equal(totals.take([2, 0]).cross, totals.cross[[2, 0]])
    with pytest.raises(ParameterError, match="mapping"):
        totals.merged([0, 1, 2, 2], 2)


def test_bad_tables_are_refused() -> None:
    x, y, entity, agent = table(20)
    with pytest.raises(DataError, match="target"):
        blocks_of(x, np.where(np.arange(20) == 1, np.inf, y), entity, agent)
    with pytest.raises(DataError, match="features"):
        blocks_of(np.where(np.arange(20)[:, None] == 1, np.nan, x), y, entity, agent)
    with pytest.raises(DataError, match="one row"):
        blocks_of(x, y[1:], entity[1:], agent[1:])
    with pytest.raises(DataError, match="one value"):
        blocks_of(x, y, entity[1:], agent)
    with pytest.raises(DataError, match="weights"):
        blocks_of(x, y, entity, agent, -np.ones(20))
    with pytest.raises(DataError, match="agents"):
        blocks_of(x, y, entity, agent - 1)
    with pytest.raises(ParameterError, match="labels"):
        totals_of(blocks_of(x, y, entity, agent), [0, 1], 2)

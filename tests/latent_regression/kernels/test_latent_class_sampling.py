from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Totals,
    agent_key,
    blocks_of,
    classes_of,
    draw_uniform,
    totals_of,
)
from consilience.latent_regression.kernels.sampling import (
    draw_labels,
    sweep,
    table_counts,
)
from consilience.numerics.random import stream
from tests.reference import latent_class as reference


def simulated(
    n_entities: int, n_features: int, n_agents: int, seed: int, sigma: float = 1.0
) -> Blocks:
    """Entities with 1 to 8 events in three classes, sorted by agent."""
    rng = stream(seed, "sampling")
    entity = np.repeat(np.arange(n_entities), rng.integers(1, 9, n_entities))
    x = rng.standard_normal((entity.size, n_features))
    w = rng.standard_normal((3, n_features))
    y = (x * w[entity % 3]).sum(axis=1) + sigma * rng.standard_normal(entity.size)
    return blocks_of(x, y, entity, np.sort(rng.integers(n_agents, size=n_entities))[entity])


def keys_of(blocks: Blocks, seed: int = 0) -> np.ndarray:
    return np.array([agent_key(seed, i) for i in range(blocks.n_agents)], dtype=np.uint64)


def entities_of(blocks: Blocks) -> list[tuple[np.ndarray, np.ndarray]]:
    cuts = blocks.start[1:-1]
    return list(zip(np.split(blocks.x, cuts), np.split(blocks.y, cuts)))


def uniforms_of(blocks: Blocks, keys: np.ndarray, round_number: int) -> np.ndarray:
    place = np.arange(blocks.n_entities) - blocks.agent_start[blocks.agent]
    return draw_uniform(keys[blocks.agent], round_number, place)


@pytest.mark.parametrize("how", ["exact", "shortcut"])
@pytest.mark.parametrize("sigma", [0.1, 1.0])
@pytest.mark.parametrize("n_features", [3, 15])  # n x n factorisations from 15 on
def test_a_sweep_draws_from_the_textbook_conditional(
    how: str, sigma: float, n_features: int
) -> None:
    blocks = simulated(14, n_features, 3, 1, sigma)
    entities, agents = entities_of(blocks), list(blocks.agent)
    labels = stream(2, "labels").integers(-1, 3, 14)
    base, alpha = np.array([0.5, 0.2, 0.3]), 3.0
    keys, beta, wanted = keys_of(blocks), 2.0, list(labels)
    for e, u in enumerate(uniforms_of(blocks, keys, 7)):
        given = {"base": base} if how == "exact" else {"alpha": alpha}
        p = reference.conditional(entities, agents, wanted, e, 3, sigma**2, 1.5, beta, **given)
        wanted[e] = int(np.searchsorted(np.cumsum(p), u))
    totals = totals_of(blocks, labels, 3)
    found, after, moved = sweep(
        blocks,
        labels,
        totals,
        sigma**2,
        1.5,
        base if how == "exact" else None,
        beta,
        keys,
        7,
        shortcut_alpha=None if how == "exact" else alpha,
    )
    assert list(found) == wanted
    assert moved == int((found != labels).sum())
    for a, b in zip(after.arrays, totals_of(blocks, wanted, 3).arrays):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_probabilities_equal_the_gibbs_conditional(sigma: float) -> None:
    """With the entity's whole weight as its own, a draw with fixed classes is the conditional."""
    blocks = simulated(12, 4, 12, 3, sigma)  # some agents have one entity: nobody moves before it
    labels = stream(4, "labels").integers(0, 3, 12)
    own = np.eye(3)[labels]
    base, keys = np.array([0.5, 0.2, 0.3]), keys_of(blocks)
    classes = classes_of(totals_of(blocks, labels, 3), sigma**2, 1.0)
    _, found, _ = draw_labels(blocks, classes, labels, own, base, 2.0, keys, 0)
    _, short, _ = draw_labels(
        blocks, classes, labels, own, None, 2.0, keys, 0,
        shortcut_counts=np.bincount(labels, minlength=3), alpha=3.0,
    )  # fmt: skip
    entities, agents = entities_of(blocks), list(blocks.agent)
    first = blocks.agent_start[:-1][np.diff(blocks.agent_start) > 0]
    assert first.size >= 6
    for e in first:
        given = entities, agents, list(labels), e, 3, sigma**2, 1.0, 2.0
        exact = reference.conditional(*given, base=base)
        np.testing.assert_allclose(found[e], exact, atol=1e-12, rtol=0)
        np.testing.assert_allclose(
            short[e], reference.conditional(*given, alpha=3.0), atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("share", [None, 0.4, 1.0])
def test_draws_with_fixed_classes_equal_the_textbook(share: float | None) -> None:
    blocks = simulated(15, 5, 3, 5)
    labels = stream(6, "labels").integers(-1, 3, 15)
    totals = totals_of(blocks, labels, 3) + 0.5 * totals_of(blocks, np.arange(15) % 3, 3)
    own = None if share is None else np.eye(4)[labels][:, :3] * share
    classes = classes_of(totals, 1.0, 2.0)
    base, keys = np.array([0.5, 0.2, 0.3]), keys_of(blocks, 9)
    wanted, rows = reference.parallel_draw(
        entities_of(blocks),
        list(blocks.agent),
        list(labels),
        classes.precision,
        totals.cross,
        1.0,
        own,
        base,
        2.0,
        uniforms_of(blocks, keys, 3),
    )
    found, probabilities, moved = draw_labels(blocks, classes, labels, own, base, 2.0, keys, 3)
    assert list(found) == wanted
    assert moved == int((found != labels).sum())
    np.testing.assert_allclose(probabilities, rows, atol=1e-12, rtol=0)


def test_sweeps_sample_the_posterior() -> None:
    """Frequencies of all labellings of five entities against their posterior by enumeration."""
    blocks = simulated(5, 2, 2, 7, sigma=3.0)
    base, sigma2, delta2, beta = np.array([0.6, 0.4]), 9.0, 1.0, 1.5
    given = entities_of(blocks), list(blocks.agent), sigma2, delta2
    posterior = reference.exact_posterior(*given, beta, base, n_classes=2)
    other = reference.exact_posterior(*given, 5.0, base, n_classes=2)
    labels, keys = np.zeros(5, dtype=np.int64), keys_of(blocks)
    totals, batches = totals_of(blocks, labels, 2), 40
    codes = np.empty((batches, 1000), dtype=np.int64)
    for r in range(codes.size):
        labels, totals, _ = sweep(blocks, labels, totals, sigma2, delta2, base, beta, keys, r)
        codes.flat[r] = labels @ (2 ** np.arange(4, -1, -1))
    shares = np.stack([np.bincount(c, minlength=32) / 1000 for c in codes])
    # means of batches, since sweeps depend on one another: Monte Carlo errors of .0001 to .004
    error = shares.std(axis=0, ddof=1) / np.sqrt(batches)
    distance, control = (
        np.abs(shares.mean(axis=0) - np.array(list(p.values()))) / error for p in (posterior, other)
    )
    assert error.max() < 0.005
    assert distance.max() <= 4.5  # 32 of them
    assert control.max() > 9.0  # another beta is told apart


def test_many_sweeps_leave_no_drift() -> None:
    """Well over 20,000 entities are taken out and put in elsewhere."""
    blocks = simulated(400, 4, 6, 9, sigma=0.05)
    labels = stream(3, "labels").integers(0, 6, 400)
    totals, keys = totals_of(blocks, labels, 6), keys_of(blocks)
    pairs, r = 0, 0
    while pairs < 25_000:  # a noise as large as this leaves labels free to move
        labels, totals, moved = sweep(
            blocks, labels, totals, 100.0, 1.0, np.full(6, 1 / 6), 50.0, keys, r
        )
        pairs, r = pairs + moved, r + 1
    fresh = totals_of(blocks, labels, 6)
    for a, b in zip(totals.arrays, fresh.arrays):
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max()
    drift = classes_of(totals, 0.01, 1.0).mean - classes_of(fresh, 0.01, 1.0).mean
    assert np.abs(drift).max() <= 1e-10


def test_an_agent_draws_alike_whoever_is_beside_it() -> None:
    """The answer of the agents 2, 3 and 4 alone is that of all agents together."""
    blocks = simulated(60, 4, 6, 11)
    labels = stream(3, "labels").integers(0, 3, 60)
    classes = classes_of(totals_of(blocks, labels, 3), 1.0, 1.0)
    base, keys = np.full(3, 1 / 3), keys_of(blocks)
    every, p, _ = draw_labels(blocks, classes, labels, None, base, 4.0, keys, 0)
    here = (blocks.agent >= 2) & (blocks.agent < 5)
    rows = np.repeat(here, np.diff(blocks.start))
    some = blocks_of(
        blocks.x[rows],
        blocks.y[rows],
        np.repeat(np.arange(60), np.diff(blocks.start))[rows],
        np.repeat(blocks.agent - 2, np.diff(blocks.start))[rows],
    )
    found, q, _ = draw_labels(some, classes, labels[here], None, base, 4.0, keys[2:5], 0)
    assert np.array_equal(found, every[here])
    assert np.array_equal(q, p[here])


def test_table_counts_have_the_mean_of_the_restaurant() -> None:
    counts = np.tile([40, 1, 0], (4000, 1))
    base, beta = np.array([0.25, 0.5, 0.25]), 4.0
    keys = np.array([agent_key(0, i) for i in range(4000)], dtype=np.uint64)
    tables = table_counts(counts, beta, base, keys, 0)
    assert (tables[:, 1] == 1).all()
    assert (tables[:, 2] == 0).all()
    seats = 1.0 / (1.0 + np.arange(40))  # c = beta base_0 = 1
    error = np.sqrt((seats * (1 - seats)).sum() / 4000)  # Monte Carlo error .026
    assert abs(tables[:, 0].mean() - seats.sum()) <= 4 * error
    assert not np.array_equal(tables, table_counts(counts, beta, base, keys, 1))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("n_features", [1, 5, 40])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_extreme_tables_go_through(scale: float, n_features: int, n_classes: int) -> None:
    """Any scale, more features than events, a column of zeros, an entity without an outcome."""
    rng = stream(0, "extreme")
    entity = np.repeat(np.arange(9), 4)
    x = rng.standard_normal((36, n_features)) * scale
    if n_features > 1:
        x[:, 1] = 0.0
    if n_features > 3:
        x[:, 3] = x[:, 2]
    y = rng.standard_normal(36) * scale
    y[entity == 4] = np.nan
    blocks = blocks_of(x, y, entity, entity // 5)
    assert blocks.n[4] == 0
    labels, keys = np.arange(9) % n_classes, keys_of(blocks)
    base = np.full(n_classes, 1 / n_classes)
    totals = totals_of(blocks, labels, n_classes)
    for r in range(3):
        labels, totals, _ = sweep(blocks, labels, totals, 1.0, 1.0, base, 1.0, keys, r)
        own = np.eye(n_classes)[labels]
        classes = classes_of(totals_of(blocks, labels, n_classes), 1.0, 1.0)
        labels, p, _ = draw_labels(blocks, classes, labels, own, base, 1.0, keys, r)
        totals = totals_of(blocks, labels, n_classes)
        np.testing.assert_allclose(p.sum(axis=1), 1.0)


def test_an_entity_without_events_follows_the_prior() -> None:
    blocks = blocks_of(
        [[1.0], [1.0], [1.0]], [3.0, np.nan, np.nan], [0, 1, 2], [0, 0, 1], [1.0, 1.0, 0.0]
    )
    classes = classes_of(totals_of(blocks, [1, -1, -1], 2), 1.0, 1.0)
    base, keys = np.array([0.3, 0.7]), keys_of(blocks)
    labels, p, _ = draw_labels(blocks, classes, [-1, -1, -1], None, base, 2.0, keys, 0)
    counts = np.eye(2)[labels[0]]
    np.testing.assert_allclose(p[1], (counts + 2.0 * base) / 3.0)
    np.testing.assert_allclose(p[2], base)


def test_numbers_out_of_range_are_named() -> None:
    blocks = blocks_of([[1e200], [1e200]], [1e200, 1.0], [0, 1], [0, 0])
    with pytest.raises(DataError, match="common scale"):
        sweep(blocks, [0, 0], Totals.zeros(1, 1), 1.0, 1.0, [1.0], 1.0, keys_of(blocks), 0)
    blocks = simulated(6, 2, 2, 0)
    classes, keys = classes_of(Totals.zeros(2, 2), 1.0, 1.0), keys_of(blocks)
    with pytest.raises(ParameterError, match="labels"):
        draw_labels(blocks, classes, [0, 1, 2, 0, 0, 0], None, [0.5, 0.5], 1.0, keys, 0)
    with pytest.raises(ParameterError, match="base"):
        draw_labels(blocks, classes, [0] * 6, None, [0.0, 0.0], 1.0, keys, 0)
    with pytest.raises(ParameterError, match="keys"):
        draw_labels(blocks, classes, [0] * 6, None, [0.5, 0.5], 1.0, keys[:-1], 0)


def test_one_negative_count_is_no_count() -> None:
    with pytest.raises(ParameterError, match="agent_counts"):
        table_counts(np.array([[3, 0], [2, -1]]), 1.0, np.full(2, 0.5), [1, 2], 1)

"""Mixtures of Markov chains: events, likelihood with gaps, EM, starts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from consilience.clustering.kernels import markov_mixture as mm
from consilience.clustering.kernels.mixtures import class_order, climb, information
from consilience.clustering.kernels.sequences import LONGEST_GAP, Sequences
from consilience.exceptions import DataError, ParameterError
from tests.reference import markov_mixture as textbook


def drawn_parameters(rng: np.random.Generator, k: int, s: int) -> mm.MarkovParameters:
    return mm.MarkovParameters(
        rng.dirichlet(np.ones(s), k), rng.dirichlet(np.ones(s), (k, s)), rng.dirichlet(np.ones(k))
    )


def drawn_sequences(rng: np.random.Generator, n: int, s: int, missing: float) -> Sequences:
    """Lengths 0 to 9, gaps everywhere, some sequences twice."""
    parts = [rng.integers(0, s, rng.integers(0, 10)) for _ in range(n)]
    parts = [np.where(rng.random(len(part)) < missing, -1, part) for part in parts]
    parts += parts[: n // 3]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    weights = rng.integers(0, 4, len(parts)).astype(float)
    return Sequences(np.concatenate(parts), offsets, s, weights)


def as_lists(sequences: Sequences) -> list[list[int]]:
    pieces = np.split(sequences.codes, sequences.offsets[1:-1])
    return [piece.tolist() for piece in pieces]


def start_of(parameters: mm.MarkovParameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return parameters.initial, parameters.transition, parameters.proportions


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
def test_em_is_that_of_the_textbook(missing: float) -> None:
    rng = np.random.default_rng(int(10 * missing))
    sequences = drawn_sequences(rng, 30, 3, missing)
    start = drawn_parameters(rng, 2, 3)
    events = mm.events_of(sequences)
    trace, *found = textbook.em(
        as_lists(sequences), sequences.weights, *start_of(start), pseudo_count=0.1, n_iter=8
    )
    fit = climb(mm.em_step(events, pseudo_count=0.1), start, tol=0.0, max_iter=8)
    for ours, theirs in zip(start_of(fit.parameters), found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    for n_iter in (0, 7):
        after = climb(mm.em_step(events, pseudo_count=0.1), start, tol=0.0, max_iter=n_iter)
        assert after.log_likelihood == pytest.approx(trace[n_iter], rel=1e-9)
    assert fit.n_iter == 8
    assert not fit.converged


def test_chance_of_a_gap_is_the_sum_over_what_could_have_been() -> None:
    rng = np.random.default_rng(1)
    p = drawn_parameters(rng, 2, 3)
    codes = np.array([[-1, -1, 0, -1, 2, 1, -1, -1, 0, -1]])
    holes = np.flatnonzero(codes[0, :9] < 0)
    expected = np.zeros(2)
    for filling in itertools.product(range(3), repeat=len(holes)):
        whole = codes[0, :9].copy()
        whole[holes] = filling
        steps = p.transition[:, whole[:-1], whole[1:]].prod(axis=1)
        expected += p.proportions * p.initial[:, whole[0]] * steps
    np.testing.assert_allclose(np.exp(p.log_joint(Sequences.of(codes, 3)))[0], expected)
    # Not seen at the end, or never: it says nothing.
    nothing = np.exp(p.log_joint(Sequences.of(np.full((1, 4), -1), 3)))
    np.testing.assert_allclose(nothing[0], p.proportions)


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 3),
    s=st.integers(1, 4),
    missing=st.sampled_from([0.0, 0.4]),
    pseudo_count=st.sampled_from([0.0, 0.1, 2.0]),
)
def test_the_objective_never_decreases(
    seed: int, k: int, s: int, missing: float, pseudo_count: float
) -> None:
    rng = np.random.default_rng(seed)
    events = mm.events_of(drawn_sequences(rng, 20, s, missing))
    start = drawn_parameters(rng, k, s)
    fit = climb(mm.em_step(events, pseudo_count=pseudo_count), start, tol=0.0, max_iter=15)
    rises = np.diff(fit.trace)
    assert (rises >= -1e-10 * (1 + abs(np.array(fit.trace[1:])))).all()


# ------------------------------------------------------------------ events


def test_events() -> None:
    sequences = Sequences.of(
        [[0, 1, 1, 0], [-1, 0, -1, 1], [0, 1, 1, 0], [-1, -1, -1, -1]], weights=[1, 2, 3, 4]
    )
    events = mm.events_of(sequences)
    assert events.n == 10
    assert len(events) == 3
    kinds = zip(events.gap.tolist(), events.source.tolist(), events.target.tolist(), strict=True)
    totals = dict(zip(kinds, events.totals().tolist(), strict=True))
    assert totals == {
        (0, -1, 0): 4.0,
        (0, 0, 1): 4.0,
        (0, 1, 1): 4.0,
        (0, 1, 0): 4.0,
        (1, -1, 0): 2.0,
        (1, 0, 1): 2.0,
    }
    assert events.inverse[0] == events.inverse[2]
    assert events.telling.sum() == 2


def test_sequences_with_the_same_counts_become_one() -> None:
    """Steps in another order: the likelihood cannot tell them apart."""
    sequences = Sequences.of([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 1]])
    events = mm.events_of(sequences)
    assert len(sequences.distinct()[0]) == 3
    assert len(events) == 2
    assert sorted(events.weights.tolist()) == [1.0, 2.0]


def test_the_order_of_sequences_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    sequences = drawn_sequences(rng, 40, 4, 0.3)
    order = rng.permutation(len(sequences))
    first, second = mm.events_of(sequences), mm.events_of(sequences.take(order))
    for name in ("gap", "source", "target", "indptr", "events", "counts", "weights"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.inverse[order], second.inverse)


def test_long_gaps() -> None:
    """A chain forgets: over a long gap the next state has the stationary chances."""
    p = drawn_parameters(np.random.default_rng(5), 1, 3)
    codes = np.full((1, LONGEST_GAP + 2), -1)
    codes[0, [0, -1]] = [1, 2]
    values, vectors = np.linalg.eig(p.transition[0].T)
    stationary = np.real(vectors[:, np.argmax(values.real)])
    stationary /= stationary.sum()
    expected = np.log(p.initial[0, 1]) + np.log(stationary[2])
    assert p.log_joint(Sequences.of(codes, 3))[0, 0] == pytest.approx(expected, rel=1e-9)
    step = mm.em_step(mm.events_of(Sequences.of(codes, 3)), pseudo_count=0.1)
    fit = climb(step, p, tol=0.0, max_iter=5)
    assert (np.diff(fit.trace) >= -1e-9).all()
    with pytest.raises(DataError, match="1,001 unseen time points in a row, more than 1,000"):
        mm.events_of(Sequences.of(np.insert(codes, 5, -1, axis=1), 3))


# ------------------------------------------------------------------ parameters


def test_order_of_classes() -> None:
    initial = np.array([[0.5, 0.5], [0.2, 0.8], [0.1, 0.9]])
    transition = np.full((3, 2, 2), 0.5)
    p = mm.MarkovParameters(initial, transition, np.array([0.25, 0.5, 0.25]))
    p = p.take(class_order(p.proportions, p.class_parameters))
    assert p.proportions.tolist() == [0.5, 0.25, 0.25]
    assert p.initial[:, 0].tolist() == [0.2, 0.1, 0.5]
    assert p.class_parameters.shape == (3, 6)
    np.testing.assert_allclose(p.take(np.array([0, 2])).proportions, [2 / 3, 1 / 3])


def test_parameters_that_are_refused() -> None:
    good = drawn_parameters(np.random.default_rng(0), 2, 3)
    for arrays in (
        (good.initial * 2, good.transition, good.proportions),
        (good.initial, -good.transition, good.proportions),
        (good.initial, good.transition[:1], good.proportions),
        (good.initial, good.transition, np.array(1.0)),
        (good.initial[0], good.transition, good.proportions),
        (good.initial * np.nan, good.transition, good.proportions),
    ):
        with pytest.raises(DataError, match="Markov mixture"):
            mm.MarkovParameters(*arrays)
    with pytest.raises(DataError, match="has 3 states, the sequences have 2"):
        good.log_joint(Sequences.of([[0, 1]]))


# ------------------------------------------------------------------ starts


def small(n: int = 60, seed: int = 6) -> mm.Events:
    return mm.events_of(drawn_sequences(np.random.default_rng(seed), n, 3, 0.1))


def test_more_starts_include_those_of_fewer() -> None:
    events = small()
    few = mm.fit_markov_mixture(events, 2, seed=1, n_init=3, n_final=3)
    many = mm.fit_markov_mixture(events, 2, seed=1, n_init=12, n_final=12)
    assert many.best.objective >= few.best.objective
    assert set(few.start_spread) <= set(many.start_spread)
    again = mm.fit_markov_mixture(events, 2, seed=1, n_init=3, n_final=3)
    np.testing.assert_array_equal(again.best.parameters.initial, few.best.parameters.initial)
    assert few.best.n_iter == len(few.best.trace) - 1
    assert (np.diff(few.best.trace) >= -1e-9).all()
    shares = few.best.parameters.proportions
    assert (np.diff(shares) <= 0).all()
    step = mm.em_step(events, pseudo_count=0.1)(few.best.parameters)
    assert few.best.log_likelihood == pytest.approx(step.log_likelihood, rel=1e-12)
    assert few.best.objective == pytest.approx(step.objective, rel=1e-12)


def test_an_empty_class_is_dropped() -> None:
    """Heavy pseudo-counts pull a small class to even chances, and its sequences leave it."""
    rng = np.random.default_rng(7)
    swing = np.tile([0, 1], 20) ^ rng.integers(0, 2, (12, 1))
    swing[np.arange(12), rng.integers(0, 40, 12)] ^= 1
    events = mm.events_of(Sequences.of(swing))
    found = mm.fit_markov_mixture(events, 3, seed=0, n_init=4, pseudo_count=20.0)
    assert found.n_dropped == 2
    assert found.best.parameters.n_classes == 1
    alone = mm.fit_markov_mixture(events, 1, seed=0, pseudo_count=20.0)
    np.testing.assert_allclose(
        found.best.parameters.transition, alone.best.parameters.transition, atol=1e-9
    )


def test_starts_that_cannot_be() -> None:
    for settings in ({"n_classes": 0}, {"n_init": 0}, {"pseudo_count": -1.0}, {"tol": -1.0}):
        events = mm.events_of(Sequences.of([[0, 1], [1, 0]]))
        with pytest.raises(ParameterError, match=next(iter(settings))):
            mm.fit_markov_mixture(events, **{"n_classes": 1, "seed": 0, **settings})
    nothing = Sequences.of([[-1, -1], [0, 1]], weights=[1.0, 0.0])
    with pytest.raises(DataError, match="no state was seen"):
        mm.fit_markov_mixture(mm.events_of(nothing), 1, seed=0)


def test_parameters_are_counted_where_sequences_tell_of_them() -> None:
    events = mm.events_of(Sequences.of([[0, 1, 2], [1, 2, -1]], 5))  # 3, 4 absent, 2 never left
    assert mm.parameter_count(events, 1) == 2 + 2 * 2
    assert mm.parameter_count(events, 3) == 2 + 3 * 6
    assert information(-10.0, 6, events.n)[1] == pytest.approx(20 + 6 * np.log(2))

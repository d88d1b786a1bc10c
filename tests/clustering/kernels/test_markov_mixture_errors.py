"""Standard errors of mixtures of Markov chains: scores by differences, counts, coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from consilience.clustering.kernels import markov_mixture as mm
from consilience.clustering.kernels.markov_mixture import expectations, markov_errors
from consilience.clustering.kernels.sequences import Sequences
from consilience.datasets.simulate_treatments import draw_chains
from tests.reference import markov_mixture as textbook

TRUTH = mm.MarkovParameters(
    np.array([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5]]),
    np.array(
        [
            [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.1, 0.6]],
            [[0.1, 0.4, 0.5], [0.6, 0.2, 0.2], [0.4, 0.4, 0.2]],
        ]
    ),
    np.array([0.6, 0.4]),
)


def drawn(n: int, seed: int, missing: float = 0.15) -> Sequences:
    rng = np.random.default_rng(seed)
    label = rng.choice(2, n, p=TRUTH.proportions)
    wide = draw_chains(TRUTH.initial, TRUTH.transition, label, rng.integers(8, 16, n), rng)
    wide[rng.random(wide.shape) < missing] = -1
    return Sequences.of(wide, 3)


def chances_of(logits: list[np.ndarray]) -> list[np.ndarray]:
    return [np.exp(row) / np.exp(row).sum() for row in logits]


def score(piece: list[int], step: float = 1e-5) -> np.ndarray:
    """Derivatives of a sequence's log density by each logit, by central differences."""
    blocks = [TRUTH.proportions, *TRUTH.class_parameters.reshape(-1, 3)]
    logits = [np.log(block) for block in blocks]

    def density() -> float:
        shares, *rest = chances_of(logits)
        classes = np.array(rest).reshape(2, 4, 3)
        return float(
            textbook.log_sum(
                np.array(
                    [
                        np.log(shares[c]) + textbook.log_chance(piece, own[0], own[1:])
                        for c, own in enumerate(classes)
                    ]
                )
            )
        )

    found = []
    for row in logits:
        for i in range(len(row)):
            row[i] += step
            up = density()
            row[i] -= 2 * step
            found.append((up - density()) / (2 * step))
            row[i] += step
    return np.array(found)


def test_errors_are_those_of_the_textbooks_scores() -> None:
    """Information from numerical scores, gaps included, the first logits as references."""
    sequences = drawn(40, 0, 0.3)
    pieces = np.split(sequences.codes, sequences.offsets[1:-1])
    scores = np.array([score(piece.tolist()) for piece in pieces])
    starts = np.cumsum([0, 2, *[3] * 8])
    free = np.setdiff1d(np.arange(starts[-1]), starts[:-1])
    inner = scores[:, free].T @ scores[:, free]
    p = np.concatenate([TRUTH.proportions, TRUTH.class_parameters.ravel()])
    jacobian = np.zeros((p.size, p.size))
    for begin, end in itertools.pairwise(starts):
        own = p[begin:end]
        jacobian[begin:end, begin:end] = np.diag(own) - np.outer(own, own)
    part = jacobian[:, free]
    expected = np.sqrt(np.diag(part @ np.linalg.inv(inner) @ part.T))
    found = markov_errors(TRUTH, mm.events_of(sequences))
    np.testing.assert_allclose(found.proportions, expected[:2], rtol=1e-5)
    cells = np.column_stack([found.initial, found.transition.reshape(2, -1)])
    np.testing.assert_allclose(cells.ravel(), expected[2:], rtol=1e-5)


def test_expectations_add_up_to_those_of_em() -> None:
    events = mm.events_of(drawn(50, 1, 0.5))
    given = np.random.default_rng(0).random((len(events.gap), 2))
    chances = mm.event_chances(TRUTH, events)
    initial, transition = mm.expected_counts(events, TRUTH, chances, given)
    summed = np.einsum("fk,fkc->kc", given, expectations(TRUTH, events))
    np.testing.assert_allclose(summed[:, :3], initial)
    np.testing.assert_allclose(summed[:, 3:], transition.reshape(2, -1))


def test_one_class_has_the_errors_of_shares() -> None:
    """First states only: the empirical information is that of a table of counts."""
    events = mm.events_of(Sequences.of(np.repeat([0, 1, 2], [10, 25, 15])[:, None], 4))
    fit = mm.fit_markov_mixture(events, 1, seed=0, pseudo_count=0.0).best.parameters
    found = markov_errors(fit, events)
    p = np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(found.initial[0, :3], np.sqrt(p * (1 - p) / 50))
    assert np.isnan(found.initial[0, 3])
    assert np.isnan(found.transition).all()
    assert found.proportions.tolist() == [0.0]


def test_classes_that_sequences_do_not_tell_apart_have_no_errors() -> None:
    events = mm.events_of(Sequences.of(np.repeat([0, 1], [30, 20])[:, None]))
    start = mm.MarkovParameters(
        np.array([[0.5, 0.5], [0.7, 0.3]]), np.full((2, 2, 2), 0.5), np.array([0.5, 0.5])
    )
    found = markov_errors(start, events)
    assert np.isnan(found.proportions).all()
    assert np.isnan(found.initial).all()


def test_intervals_cover() -> None:
    """95% intervals of 26 chances over 100 tables of 600 sequences.

    Chances of one table depend on each other; with 100 tables the standard error of the mean
    coverage is at most .022, and about .008 over the chances. Half of the errors would cover .67.
    """
    covered, halved = [], []
    for seed in range(100):
        events = mm.events_of(drawn(600, seed + 1))
        model = mm.fit_markov_mixture(events, 2, seed=0, n_init=3, tol=1e-9).best.parameters
        if model.initial[0, 0] < model.initial[1, 0]:
            model = model.take(np.array([1, 0]))
        errors = markov_errors(model, events)
        off = [
            np.abs(getattr(model, name) - getattr(TRUTH, name)) / getattr(errors, name)
            for name in ("proportions", "initial", "transition")
        ]
        ratios = np.concatenate([each.ravel() for each in off])
        covered.append(ratios < 1.96)
        halved.append(ratios < 0.98)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)
    assert np.mean(halved) < 0.75

"""Standard errors of latent classes: scores by differences, counts, coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from consilience.clustering.kernels.multinomial_mixture import (
    CategoryPatterns,
    MultinomialMixture,
    fit_multinomial_mixture,
    mixture_errors,
)
from tests.reference import latent_class_analysis as textbook

TRUTH = MultinomialMixture(
    np.array([0.6, 0.4]),
    np.array(
        [
            [0.8, 0.2, 0.7, 0.3, 0.2, 0.8, 0.6, 0.3, 0.1, 0.75, 0.25],
            [0.3, 0.7, 0.2, 0.8, 0.7, 0.3, 0.1, 0.3, 0.6, 0.2, 0.8],
        ]
    ),
    (2, 2, 2, 3, 2),
)


def drawn(n: int, seed: int) -> CategoryPatterns:
    rng = np.random.default_rng(seed)
    codes, _ = TRUTH.sample(n, rng)
    codes[rng.random(codes.shape) < 0.1] = -1
    return CategoryPatterns.of(codes, TRUTH.n_levels)


def test_errors_are_those_of_the_textbooks_scores() -> None:
    """Information from numerical scores with the first logits as references."""
    data = drawn(80, 0)
    rows = [[None if c < 0 else int(c) for c in row] for row in data.codes]
    probabilities = [[list(column[k]) for column in TRUTH.columns] for k in range(2)]
    scores = np.array([textbook.score(row, [0.6, 0.4], probabilities) for row in rows])
    sizes = [2, *TRUTH.n_levels, *TRUTH.n_levels]
    starts = np.cumsum([0, *sizes])
    free = np.setdiff1d(np.arange(starts[-1]), starts[:-1])
    inner = scores[:, free].T @ (data.weights[:, None] * scores[:, free])
    p = np.concatenate([TRUTH.proportions, TRUTH.probabilities.ravel()])
    jacobian = np.zeros((p.size, p.size))
    for begin, end in itertools.pairwise(starts):
        own = p[begin:end]
        jacobian[begin:end, begin:end] = np.diag(own) - np.outer(own, own)
    part = jacobian[:, free]
    expected = np.sqrt(np.diag(part @ np.linalg.inv(inner) @ part.T))
    found = mixture_errors(TRUTH, data)
    np.testing.assert_allclose(found.proportions, expected[:2], rtol=1e-5)
    np.testing.assert_allclose(found.probabilities.ravel(), expected[2:], rtol=1e-5)


def test_one_class_has_the_errors_of_shares() -> None:
    """Columns that are independent in the table too, since the information is empirical."""
    codes = np.array(list(itertools.product([0] * 6 + [1] * 4, [0, 1, 1, 2, -1])))
    data = CategoryPatterns.of(codes, (2, 4))
    model = fit_multinomial_mixture(data, 1, pseudo_count=0.0).best.parameters
    found = mixture_errors(model, data)
    p = np.array([0.6, 0.4])
    np.testing.assert_allclose(found.probabilities[0, :2], np.sqrt(p * (1 - p) / 50))
    p = np.array([0.25, 0.5, 0.25])
    np.testing.assert_allclose(found.probabilities[0, 2:5], np.sqrt(p * (1 - p) / 40))
    assert np.isnan(found.probabilities[0, 5])  # declared, and never seen
    assert found.proportions.tolist() == [0.0]


def test_classes_that_rows_do_not_tell_apart_have_no_errors() -> None:
    """Two binary columns have three free cells, two classes five parameters."""
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat([40, 10, 15, 35], axis=0)
    data = CategoryPatterns.of(codes, (2, 2))
    model = fit_multinomial_mixture(data, 2, n_init=3).best.parameters
    found = mixture_errors(model, data)
    assert np.isnan(found.proportions).all()
    assert np.isnan(found.probabilities).all()


def test_a_table_of_one_row_has_no_errors() -> None:
    data = CategoryPatterns.of(np.zeros((5, 2), dtype=int), (1, 1))
    model = fit_multinomial_mixture(data, 1).best.parameters
    np.testing.assert_array_equal(mixture_errors(model, data).probabilities, [[0.0, 0.0]])


def test_intervals_cover() -> None:
    """95% intervals of 22 probabilities and 2 shares over 120 tables of 1,000 rows.

    The probabilities of one table depend on each other; with 120 tables the standard error of the
    mean coverage is at most .02, and about .007 over the parameters. Half of the standard errors
    would cover .67.
    """
    covered, halved = [], []
    for seed in range(120):
        data = drawn(1000, seed + 1)
        model = fit_multinomial_mixture(data, 2, n_init=3, tol=1e-9).best.parameters
        if model.probabilities[0, 0] < model.probabilities[1, 0]:
            model = model.take([1, 0])
        errors = mixture_errors(model, data)
        off = np.concatenate(
            [
                np.abs(model.proportions - TRUTH.proportions) / errors.proportions,
                (np.abs(model.probabilities - TRUTH.probabilities) / errors.probabilities).ravel(),
            ]
        )
        covered.append(off < 1.96)
        halved.append(off < 0.98)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)
    assert np.mean(halved) < 0.75

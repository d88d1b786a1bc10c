"""Mixtures of products of multinomials against the textbook, row by row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from consilience.clustering.kernels.mixtures import climb
from consilience.clustering.kernels.multinomial_mixture import (
    CategoryPatterns,
    MultinomialMixture,
    em_step,
    fit_multinomial_mixture,
    parameter_count,
    random_start,
)
from consilience.exceptions import DataError, ParameterError
from tests.reference import latent_class_analysis as textbook

LEVELS = (2, 3, 4, 2, 3)


def some_model(k: int, seed: int, levels: tuple[int, ...] = LEVELS, spread: float = 0.6) -> Any:
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.full(size, spread), k) for size in levels]
    shares = rng.dirichlet(np.full(k, 5.0))
    return MultinomialMixture(shares, np.concatenate(parts, axis=1), levels)


def table(n: int, seed: int, k: int = 3, gaps: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes, _ = some_model(k, seed).sample(n, rng)
    codes[rng.random(codes.shape) < gaps] = -1
    return codes


def as_lists(codes: np.ndarray, model: Any) -> tuple[list, list, list]:
    rows = [[None if c < 0 else int(c) for c in row] for row in codes]
    probabilities = [[list(col[k]) for col in model.columns] for k in range(model.n_classes)]
    return rows, list(model.proportions), probabilities


# ------------------------------------------------------------------ patterns


def test_patterns_are_the_distinct_rows_in_order() -> None:
    codes = table(200, 0)
    weights = np.random.default_rng(1).integers(0, 4, 200).astype(float)
    data = CategoryPatterns.of(codes, LEVELS, weights)
    expected, inverse = np.unique(codes, axis=0, return_inverse=True)
    np.testing.assert_array_equal(data.codes, expected)
    np.testing.assert_array_equal(data.inverse, inverse.ravel())
    np.testing.assert_allclose(data.weights, np.bincount(inverse.ravel(), weights))
    assert data.n == weights.sum()


def test_patterns_of_more_columns_than_a_word_holds() -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(-1, 5, (30, 60))
    codes = few[rng.integers(0, 30, 400)]
    data = CategoryPatterns.of(codes, [5] * 60)
    np.testing.assert_array_equal(data.codes, np.unique(codes, axis=0))
    np.testing.assert_array_equal(data.codes[data.inverse], codes)


def test_levels_that_never_occur_are_no_parameters() -> None:
    codes = np.array([[0, 0], [1, 0], [-1, 2]])
    data = CategoryPatterns.of(codes, (2, 4))
    assert data.n_occurring == (2, 2)
    assert parameter_count(data, 3) == 2 + 3 * (1 + 1)
    light = CategoryPatterns.of(codes, (2, 4), [1.0, 1.0, 0.0])
    assert light.n_occurring == (2, 1)


@pytest.mark.parametrize(
    ("codes", "levels", "weights"),
    [
        ([[0, 2]], (2, 2), None),
        ([[-2, 0]], (2, 2), None),
        ([[0, 0]], (2,), None),
        ([[0.5, 0.0]], (2, 2), None),
        ([[0, 0]], (2, 0), None),
        (np.zeros((2, 0), dtype=int), (), None),
        ([[0, 0]], (2, 2), [-1.0]),
        ([[0, 0]], (2, 2), [np.nan]),
        ([[0, 0]], (2, 2), [0.0]),
        ([[0, 0]], (2, 2), [1.0, 1.0]),
    ],
)
def test_wrong_patterns_are_refused(codes: Any, levels: Any, weights: Any) -> None:
    with pytest.raises(DataError):
        CategoryPatterns.of(codes, levels, weights)


# ------------------------------------------------------------------ likelihood and EM


@pytest.mark.parametrize("pseudo_count", [0.0, 0.1, 2.0])
def test_em_is_the_textbooks(pseudo_count: float) -> None:
    """Fifty iterations from the same start, with gaps and weights."""
    codes = table(60, 3)
    weights = np.random.default_rng(4).uniform(0.2, 3.0, 60)
    data = CategoryPatterns.of(codes, LEVELS, weights)
    start = random_start(data, 3, np.random.default_rng(5), pseudo_count=pseudo_count)
    ours = climb(em_step(data, pseudo_count=pseudo_count), start, max_iter=50, tol=0.0)
    rows, shares, probabilities = as_lists(codes, start)
    shares, probabilities = textbook.em(
        rows, weights, shares, probabilities, pseudo_count, ours.n_iter
    )
    assert ours.n_iter == 50
    np.testing.assert_allclose(ours.parameters.proportions, shares, rtol=1e-9, atol=1e-12)
    theirs = [np.concatenate(of_class) for of_class in probabilities]
    np.testing.assert_allclose(ours.parameters.probabilities, theirs, rtol=1e-9, atol=1e-12)
    if pseudo_count:
        at_end = textbook.objective(rows, weights, shares, probabilities, pseudo_count)
        assert ours.objective == pytest.approx(at_end, rel=1e-12)
    likelihood = textbook.log_likelihood(rows, weights, shares, probabilities)
    assert ours.log_likelihood == pytest.approx(likelihood, rel=1e-12)


def test_posteriors_and_densities_are_the_textbooks() -> None:
    model, codes = some_model(3, 6), table(40, 7)
    log_posterior, density = model.log_posterior(codes)
    rows, shares, probabilities = as_lists(codes, model)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(
            np.exp(log_posterior[i]), textbook.posterior(row, shares, probabilities), rtol=1e-10
        )
        whole = textbook.by_completion(row, shares, probabilities)
        assert np.exp(density[i]) == pytest.approx(whole, rel=1e-10)
    np.testing.assert_array_equal(model.label(codes), log_posterior.argmax(axis=1))


def test_label_does_not_depend_on_other_rows() -> None:
    model, codes = some_model(4, 8), table(300, 9)
    together = model.log_joint(codes)
    alone = np.concatenate([model.log_joint(codes[i : i + 1]) for i in range(300)])
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_the_objective_never_falls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = tuple(rng.integers(1, 6, rng.integers(1, 7)).tolist())
    codes = np.stack([rng.integers(-1, size, 50) for size in levels], axis=1)
    data = CategoryPatterns.of(codes, levels, rng.exponential(size=50))
    pseudo_count = [0.0, 0.1, 1.0][seed % 3]
    start = random_start(data, 1 + seed % 5, rng, pseudo_count=pseudo_count)
    path = climb(em_step(data, pseudo_count=pseudo_count), start, max_iter=100, tol=0.0).trace
    assert np.isfinite(path).all()
    assert (np.diff(path) >= -1e-10 * np.abs(path[1:])).all()


def test_weights_stand_for_rows() -> None:
    codes = table(50, 10)
    times = np.random.default_rng(11).integers(0, 4, 50)
    weighted = CategoryPatterns.of(codes, LEVELS, times.astype(float))
    repeated = CategoryPatterns.of(np.repeat(codes, times, axis=0), LEVELS)
    start = some_model(2, 12)
    first, second = (
        climb(em_step(data, pseudo_count=0.1), start, max_iter=500, tol=1e-7)
        for data in (weighted, repeated)
    )
    np.testing.assert_allclose(first.trace, second.trace, rtol=1e-12)
    assert parameter_count(weighted, 2) == parameter_count(repeated, 2)


# ------------------------------------------------------------------ fits


def test_two_classes_of_a_published_table() -> None:
    """Role conflict, 216 respondents, four items (Stouffer and Toby 1951).

    Goodman (1974) and poLCA's manual give G2 = X2 = 2.720 and a larger class of .721 with
    probabilities .714, .330, .354, .132 against .993, .940, .927, .769.
    """
    codes = np.array(list(itertools.product([0, 1], repeat=4)))
    counts = np.array([42, 23, 6, 25, 6, 24, 7, 38, 1, 4, 1, 6, 2, 9, 2, 20.0])
    data = CategoryPatterns.of(codes, (2, 2, 2, 2), counts)
    found = fit_multinomial_mixture(data, 2, pseudo_count=0.0, n_init=10, tol=1e-13, max_iter=2000)
    model = found.best.parameters
    assert found.best.log_likelihood == pytest.approx(-504.4677, abs=5e-5)
    expected = 216 * np.exp(model.log_posterior(codes)[1])
    assert 2 * (counts * np.log(counts / expected)).sum() == pytest.approx(2.720, abs=5e-4)
    assert ((counts - expected) ** 2 / expected).sum() == pytest.approx(2.720, abs=5e-4)
    np.testing.assert_allclose(model.proportions, [0.721, 0.279], atol=5e-4)
    firsts = np.stack([column[:, 0] for column in model.columns], axis=1)
    np.testing.assert_allclose(firsts[0], [0.714, 0.330, 0.354, 0.132], atol=6e-4)
    np.testing.assert_allclose(firsts[1], [0.993, 0.940, 0.927, 0.769], atol=6e-4)


def test_classes_are_found_again() -> None:
    truth = some_model(3, 0, (3, 3, 4, 3, 4, 3, 3, 3), 0.3)
    codes, classes = truth.sample(1500, np.random.default_rng(1))
    codes[np.random.default_rng(2).random(codes.shape) < 0.1] = -1
    data = CategoryPatterns.of(codes, truth.n_levels)
    found = fit_multinomial_mixture(data, 3, n_init=10)
    model = found.best.parameters
    assert (np.diff(model.proportions) <= 0).all()
    order = [
        int(np.abs(model.probabilities[k] - truth.probabilities).sum(axis=1).argmin())
        for k in range(3)
    ]
    assert sorted(order) == [0, 1, 2]
    # Some 400 rows a class and more: a probability has a standard error of at most .025.
    np.testing.assert_allclose(model.probabilities, truth.probabilities[order], atol=0.1)
    right = (np.array(order)[model.label(codes)] == classes).mean()
    best = (truth.label(codes) == classes).mean()
    assert right >= best - 0.02
    reached = truth.log_posterior(data.codes)[1] @ data.weights
    assert found.best.log_likelihood > reached
    assert found.best.converged


def test_one_class_has_the_shares_of_the_levels() -> None:
    codes = table(80, 13)
    data = CategoryPatterns.of(codes, LEVELS)
    model = fit_multinomial_mixture(data, 1).best.parameters
    for j, column in enumerate(model.columns):
        counts = np.bincount(codes[codes[:, j] >= 0, j], minlength=LEVELS[j]) + 0.1
        np.testing.assert_allclose(column[0], counts / counts.sum())
    np.testing.assert_allclose(model.proportions, [1.0])


@pytest.mark.parametrize("pseudo_count", [0.0, 0.1])
def test_as_many_classes_as_kinds_of_rows(pseudo_count: float) -> None:
    kinds = np.array([[0, 1, 0], [1, 0, -1], [1, 1, 1]])
    codes = np.repeat(kinds, [30, 20, 10], axis=0)
    data = CategoryPatterns.of(codes, (2, 2, 2))
    assert data.n_distinct == 3
    found = fit_multinomial_mixture(data, 3, pseudo_count=pseudo_count)
    model = found.best.parameters
    assert np.isfinite(found.best.trace).all()
    assert np.isfinite(model.probabilities).all()
    assert model.proportions.sum() == pytest.approx(1.0)
    with pytest.raises(DataError, match="3 distinct rows"):
        fit_multinomial_mixture(data, 4)


def test_a_row_without_entries_or_weight_is_no_distinct_row() -> None:
    codes = np.array([[0, 0], [0, 1], [-1, -1], [1, 1]])
    assert CategoryPatterns.of(codes, (2, 2), [1.0, 1.0, 1.0, 0.0]).n_distinct == 2
    assert CategoryPatterns.of(codes[2:3], (2, 2)).n_distinct == 1


def test_a_row_without_entries_counts_for_the_shares_only() -> None:
    codes = np.concatenate([table(60, 14), np.full((20, 5), -1)])
    data = CategoryPatterns.of(codes, LEVELS)
    model = fit_multinomial_mixture(data, 2).best.parameters
    log_posterior, density = model.log_posterior(np.full((1, 5), -1))
    np.testing.assert_allclose(np.exp(log_posterior[0]), model.proportions)
    assert density[0] == pytest.approx(0.0, abs=1e-12)


def test_a_row_that_no_class_allows() -> None:
    model = MultinomialMixture(np.array([0.7, 0.3]), np.array([[1.0, 0.0], [1.0, 0.0]]), (2,))
    log_posterior, density = model.log_posterior([[1]])
    np.testing.assert_allclose(np.exp(log_posterior[0]), [0.7, 0.3])
    assert density[0] == -np.inf


def test_draws_have_the_models_shares() -> None:
    model = some_model(3, 15)
    codes, classes = model.sample(20_000, np.random.default_rng(0))
    # 20,000 draws: standard errors of shares of at most .0036, within a class at most .012.
    np.testing.assert_allclose(np.bincount(classes) / 20_000, model.proportions, atol=0.015)
    for k in range(3):
        for j, column in enumerate(model.columns):
            seen = np.bincount(codes[classes == k, j], minlength=LEVELS[j]) / (classes == k).sum()
            np.testing.assert_allclose(seen, column[k], atol=0.05)


def test_same_seed_same_bytes() -> None:
    data = CategoryPatterns.of(table(100, 16), LEVELS)
    first, second = (
        fit_multinomial_mixture(data, 3, n_init=5, seed=1).best.parameters for _ in range(2)
    )
    assert first.probabilities.tobytes() == second.probabilities.tobytes()


def test_wrong_settings_are_refused() -> None:
    data = CategoryPatterns.of(table(30, 17), LEVELS)
    for wrong in (
        {"n_classes": 0},
        {"n_classes": 2.0},
        {"pseudo_count": -1.0},
        {"pseudo_count": np.inf},
        {"n_init": 0},
        {"n_init_iter": -1},
        {"tol": -1.0},
        {"n_final": 0},
        {"max_iter": 0},
    ):
        settings: dict[str, Any] = {"n_classes": 2} | wrong
        with pytest.raises(ParameterError):
            fit_multinomial_mixture(data, **settings)


# ------------------------------------------------------------------ arrays


def test_arrays_and_back() -> None:
    model = some_model(3, 18)
    again = MultinomialMixture.from_arrays(model.to_arrays())
    assert again.probabilities.tobytes() == model.probabilities.tobytes()
    assert again.n_levels == model.n_levels
    assert again.class_parameters.shape == (3, sum(LEVELS))


@pytest.mark.parametrize(
    "broken",
    [
        {"proportions": np.array([0.5, 0.6, 0.1])},
        {"proportions": np.array([1.0])},
        {"proportions": np.array([1.5, -0.5, 0.0])},
        {"probabilities": np.full((3, sum(LEVELS)), np.nan)},
        {"probabilities": np.full((3, sum(LEVELS)), 0.5)},
        {"n_levels": np.array([2, 3, 4, 2, 4])},
        {"n_levels": np.array([2.0, 3, 4, 2, 3])},
        {"n_levels": np.array([14, 0])},
        {"extra": np.zeros(1)},
    ],
)
def test_broken_arrays_are_refused(broken: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError):
        MultinomialMixture.from_arrays(some_model(3, 18).to_arrays() | broken)

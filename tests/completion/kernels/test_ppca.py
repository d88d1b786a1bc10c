"""Probabilistic principal components: formula, conditional means, likelihood, missing entries."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from consilience.completion.kernels import ppca
from consilience.completion.kernels.ppca import (
    NOISE_FLOOR,
    PPCAModel,
    from_moments,
    nearest_covariance,
    path_from_moments,
    ppca_path,
    principal,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from tests.numerics.low_rank_data import gappy
from tests.reference import ppca as textbook


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(axis=0), np.cov(x.T, bias=True).reshape(x.shape[1], x.shape[1])


# ------------------------------------------------------------------ complete rows


@pytest.mark.parametrize("rank", range(7))
def test_formula(rank: int) -> None:
    x, _ = gappy(50, 8, 3)
    model = from_moments(*moments(x), 50, rank)
    mean, covariance, noise = textbook.maximum(x, rank)
    np.testing.assert_allclose(model.mean, mean)
    np.testing.assert_allclose(model.covariance(), covariance, atol=1e-12)
    np.testing.assert_allclose(model.precision(), np.linalg.inv(covariance), rtol=1e-8)
    assert model.noise == pytest.approx(noise)
    assert model.rank == rank
    w = model.loadings
    np.testing.assert_allclose(w @ w.T + noise * np.eye(8), covariance, atol=1e-12)
    np.testing.assert_allclose(model.directions.T @ model.directions, np.eye(rank), atol=1e-12)


def test_equals_scikit_learn_up_to_its_divisor() -> None:
    x, _ = gappy(50, 8, 3)
    mean, covariance = moments(x)
    model = from_moments(mean, covariance * 50 / 49, 50, 3)
    pca = PCA(3).fit(x)
    np.testing.assert_allclose(model.covariance(), pca.get_covariance(), atol=1e-10)
    np.testing.assert_allclose(model.directions.T, pca.components_, atol=1e-10)
    np.testing.assert_allclose(model.log_likelihood(x), pca.score_samples(x), rtol=1e-10)


def test_no_model_has_a_larger_likelihood() -> None:
    """Steps of any size in any direction lower it."""
    x, _ = gappy(40, 5, 2)
    model = from_moments(*moments(x), 40, 2)
    best = model.log_likelihood(x).sum()
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(20):
            w = model.loadings + size * rng.standard_normal((5, 2))
            mean = model.mean + size * rng.standard_normal(5)
            noise = model.noise * np.exp(size * rng.standard_normal())
            assert principal(mean, w, noise).log_likelihood(x).sum() < best


def test_path_is_one_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = gappy(50, 8, 3)
    calls = []
    decomposed = ppca._decomposed
    monkeypatch.setattr(ppca, "_decomposed", lambda *a: calls.append(1) or decomposed(*a))
    models = path_from_moments(*moments(x), 50, range(9))
    assert len(calls) == 1
    for rank, model in enumerate(models):
        single = from_moments(*moments(x), 50, rank)
        np.testing.assert_array_equal(model.covariance(), single.covariance())


def test_ranks_p_and_p_minus_1_give_the_sample_covariance() -> None:
    x, _ = gappy(50, 5, 2)
    mean, covariance = moments(x)
    for rank in (4, 5):
        model = from_moments(mean, covariance, 50, rank)
        np.testing.assert_allclose(model.covariance(), covariance, atol=1e-12)
        assert model.rank == rank


def test_fewer_rows_than_columns() -> None:
    """Nothing is left for the noise: conditional means are those of its limit."""
    x, _ = gappy(6, 15, 2)
    model = from_moments(*moments(x), 6, 5)
    assert model.noise == pytest.approx(NOISE_FLOOR * np.linalg.norm(model.covariance(), 2))
    np.testing.assert_allclose(model.reconstruct(x), x, atol=1e-6)
    gaps = x.copy()
    gaps[:, 3] = np.nan
    np.testing.assert_allclose(model.reconstruct(gaps), x, atol=1e-5)  # 14 columns fix 5 scores
    with pytest.raises(ParameterError, match="from 0 to 6, as there are 6 rows"):
        from_moments(*moments(x), 6, 7)


def test_no_variance() -> None:
    model = from_moments(np.ones(3), np.zeros((3, 3)), 10, 2)
    found = model.reconstruct(np.array([[1.0, np.nan, 1.0], [np.nan] * 3]))
    np.testing.assert_allclose(found, 1.0)
    assert np.isfinite(model.log_likelihood(np.ones((2, 3)))).all()


# ------------------------------------------------------------------ given what is observed


@pytest.mark.parametrize("rank", [0, 1, 3, 7, 8])
def test_conditional_means_and_densities(rank: int) -> None:
    x, gaps = gappy(50, 8, 3, missing=0.4)
    gaps[3] = np.nan
    model = from_moments(*moments(x), 50, rank)
    c = model.covariance()
    found = model.reconstruct(gaps)
    missing = np.isnan(gaps)
    wanted = textbook.filled(gaps, model.mean, c)
    np.testing.assert_allclose(found[missing], wanted[missing], atol=1e-10)
    np.testing.assert_allclose(found[3], model.mean)
    np.testing.assert_allclose(
        model.log_likelihood(gaps), textbook.log_likelihood(gaps, model.mean, c), rtol=1e-10
    )
    o = ~missing[0]
    density = multivariate_normal(model.mean[o], c[np.ix_(o, o)]).logpdf(gaps[0, o])
    assert model.log_likelihood(gaps)[0] == pytest.approx(density)
    np.testing.assert_allclose(found, model.mean + model.scores(gaps) @ model.directions.T)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, gaps = gappy(50, 8, 3)
    model = from_moments(*moments(x), 50, 3)
    whole = model.reconstruct(gaps), model.log_likelihood(gaps)
    monkeypatch.setattr(ppca, "_CELLS", 30)
    np.testing.assert_allclose(model.reconstruct(gaps), whole[0], atol=1e-12)
    np.testing.assert_allclose(model.log_likelihood(gaps), whole[1], rtol=1e-12)
    assert model.reconstruct(gaps[:0]).shape == (0, 8)
    assert model.log_likelihood(gaps[:0]).shape == (0,)


def test_other_columns_are_refused() -> None:
    model = PPCAModel(np.zeros(3), np.zeros((3, 0)), np.zeros(0), 1.0)
    with pytest.raises(DataError, match="the model's 3 columns"):
        model.scores(np.zeros((2, 4)))


def test_broken_moments() -> None:
    mean, covariance = np.zeros(2), np.eye(2)
    with pytest.raises(DataError, match="must be 2 x 2"):
        from_moments(mean, np.eye(3), 9, 1)
    with pytest.raises(DataError, match="not symmetric"):
        from_moments(mean, covariance + np.triu(np.full((2, 2), 0.1), 1), 9, 1)
    with pytest.raises(DataError, match="not finite"):
        from_moments(mean, covariance * np.nan, 9, 1)
    with pytest.raises(DataError, match="repair it first"):
        from_moments(mean, np.array([[1.0, 2.0], [2.0, 1.0]]), 9, 1)


def test_nearest_covariance() -> None:
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])  # eigenvalues 3 and -1
    repaired, share = nearest_covariance(matrix)
    np.testing.assert_allclose(repaired, np.full((2, 2), 1.5))
    assert share == pytest.approx(0.25)
    from_moments(np.zeros(2), repaired, 9, 1)
    kept, nothing = nearest_covariance(np.eye(2))
    assert nothing == 0.0
    np.testing.assert_array_equal(kept, np.eye(2))


# ------------------------------------------------------------------ missing entries


def test_complete_entries_are_the_formula() -> None:
    x, _ = gappy(30, 6, 2)
    for rank, fit in enumerate(ppca_path(Entries.of(x), range(7))):
        model = from_moments(*moments(x), 30, rank)
        np.testing.assert_allclose(fit.model.covariance(), model.covariance(), atol=1e-12)
        assert fit.log_likelihood == pytest.approx(model.log_likelihood(x).sum())
        i, j = np.indices(x.shape).reshape(2, -1)
        np.testing.assert_allclose(fit.at(i, j), model.reconstruct(x).ravel(), atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_steps_reach_the_formula(rank: int) -> None:
    """The steps for missing entries, on complete ones."""
    x, _ = gappy(60, 6, 2)
    (fit,) = ppca._path(Entries.of(x), [rank], 1e-13, 5000)
    mean, covariance, _ = textbook.maximum(x, rank)
    np.testing.assert_allclose(fit.model.mean, mean, atol=1e-5)
    np.testing.assert_allclose(fit.model.covariance(), covariance, atol=1e-4)


def test_no_plain_step_goes_higher() -> None:
    """The maximum is a fixed point of the textbook's steps, and steps aside go down."""
    _, x = gappy(40, 6, 2, missing=0.3)
    (fit,) = ppca_path(Entries.of(x), [2], tol=1e-13, max_iter=5000)
    model = fit.model
    mean, w, noise = textbook.em_step(x, model.mean, model.loadings, model.noise)
    np.testing.assert_allclose(mean, model.mean, atol=1e-5)
    np.testing.assert_allclose(w, model.loadings, atol=1e-5)
    assert noise == pytest.approx(model.noise, rel=1e-5)
    assert fit.log_likelihood == pytest.approx(
        textbook.log_likelihood(x, model.mean, model.covariance()).sum()
    )

    rng = np.random.default_rng(0)
    for size in (1e-2, 0.1, 1.0):
        for _ in range(10):
            other = w + size * rng.standard_normal(w.shape)
            c = other @ other.T + noise * np.exp(size * rng.standard_normal()) * np.eye(6)
            moved = mean + size * rng.standard_normal(6)
            assert textbook.log_likelihood(x, moved, c).sum() < fit.log_likelihood


@pytest.mark.parametrize("missing", [0.3, 0.85])
def test_likelihood_rises_in_every_step(missing: float) -> None:
    _, x = gappy(60, 30, 3, missing=missing)
    data = ppca._Data.of(Entries.of(x))
    assert isinstance(data.mask, np.ndarray) == (missing == 0.3)
    rng = np.random.default_rng(0)
    state = ppca._State(np.zeros(30), rng.standard_normal((30, 3)), 1.0)
    values = []
    for _ in range(30):
        model = principal(state.mean + data.centre, state.w, state.noise)
        state, value = ppca._step(data, state)
        assert value == pytest.approx(np.nansum(model.log_likelihood(x)), rel=1e-10)
        values.append(value)
    assert all(after >= before - 1e-8 for before, after in pairwise(values))


def test_expansion_is_faster_than_plain_steps() -> None:
    _, x = gappy(40, 6, 2, missing=0.3)
    (fit,) = ppca_path(Entries.of(x), [2])
    rng = np.random.default_rng(1)
    mean, w, noise = np.nanmean(x, axis=0), rng.standard_normal((6, 2)), 1.0
    for _ in range(fit.n_iter):
        mean, w, noise = textbook.em_step(x, mean, w, noise)
    plain = textbook.log_likelihood(x, mean, w @ w.T + noise * np.eye(6)).sum()
    assert fit.log_likelihood > plain


def test_paths_rise_with_the_rank() -> None:
    _, x = gappy(60, 12, 3)
    fits = list(ppca_path(Entries.of(x), range(6)))
    assert [fit.rank for fit in fits] == list(range(6))
    assert all(after.log_likelihood > before.log_likelihood for before, after in pairwise(fits))
    np.testing.assert_allclose(fits[0].model.mean, np.nanmean(x, axis=0))
    r = x - np.nanmean(x, axis=0)
    assert fits[0].model.noise == pytest.approx(np.nanmean(r**2))


def test_predicts_what_is_missing() -> None:
    """Error of the missing entries near the noise, 0.09, and far below that of column means."""
    full, x = gappy(200, 15, 3)
    i, j = np.nonzero(np.isnan(x))
    (fit,) = ppca_path(Entries.of(x), [3])
    error = ((fit.at(i, j) - full[i, j]) ** 2).mean()
    # About 600 entries: the error of a mean square is .09 sqrt(2 / 600) = .005. The scores of a row
    # rest on 12 entries: a third more than the noise.
    assert error < 1.5 * 0.09
    means = ((np.nanmean(x, axis=0)[j] - full[i, j]) ** 2).mean()
    assert error < 0.1 * means


def test_rows_and_columns_with_nothing_observed() -> None:
    _, x = gappy(30, 8, 2)
    x[4], x[:, 5] = np.nan, np.nan
    (fit,) = ppca_path(Entries.of(x), [2])
    mean = fit.model.mean
    np.testing.assert_allclose(fit.at(np.full(8, 4), np.arange(8)), mean)
    assert mean[5] == pytest.approx(np.nanmean(np.delete(x, 5, axis=1), axis=0).mean())
    np.testing.assert_allclose(fit.at(np.arange(30), np.full(30, 5)), mean[5])


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 4)])
def test_small_matrices(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    x.flat[1] = np.nan
    for fit in ppca_path(Entries.of(x), range(min(shape) + 1)):
        i, j = np.indices(shape).reshape(2, -1)
        assert np.isfinite(fit.at(i, j)).all()
        assert fit.model.noise > 0


def test_batches_of_steps_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    _, x = gappy(40, 8, 2)
    (whole,) = ppca_path(Entries.of(x), [2])
    monkeypatch.setattr(ppca, "_CELLS", 50)
    (parts,) = ppca_path(Entries.of(x), [2])
    np.testing.assert_allclose(parts.model.covariance(), whole.model.covariance(), atol=1e-9)


def test_refusals() -> None:
    entries = Entries.of(gappy(6, 4, 1)[1])
    with pytest.raises(ParameterError, match="from 0 to 4"):
        ppca_path(entries, [5])
    with pytest.raises(ParameterError, match="ranks must be increasing"):
        ppca_path(entries, [2, 1])
    with pytest.raises(ParameterError, match="tol must be"):
        ppca_path(entries, [1], tol=0.0)
    with pytest.raises(ParameterError, match="max_iter must be"):
        ppca_path(entries, [1], max_iter=0)

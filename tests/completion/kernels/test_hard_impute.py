"""Matrices of a rank: the textbook, both solvers, paths, gaps of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from consilience.completion.kernels.hard_impute import hard_path, optspace_path
from consilience.completion.kernels.low_rank import LowRankFit
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from tests.numerics.low_rank_data import gappy
from tests.reference import hard_impute as textbook

both = pytest.mark.parametrize("path", [hard_path, optspace_path], ids=["hard", "optspace"])


@pytest.mark.parametrize("solver", ["dense", "factored"])
@pytest.mark.parametrize(("n", "p"), [(30, 20), (15, 40)])
def test_equals_the_textbook(n: int, p: int, solver: str) -> None:
    _, x = gappy(n, p, 3, seed=n)
    entries, start = Entries.of(x), np.zeros((n, p))
    options = {"tol": 1e-9, "max_iter": 5000, "solver": solver}
    for fit in hard_path(entries, [1, 2, 3], warm=True, **options):
        start = textbook.fill_and_truncate(x, fit.rank, start)
        np.testing.assert_allclose(fit.dense(), start, atol=1e-6)
        assert fit.objective == pytest.approx(textbook.objective(x, start), rel=1e-9)
        assert fit.converged
        (cold,) = hard_path(entries, [fit.rank], **options)
        wanted = textbook.fill_and_truncate(x, fit.rank, np.zeros((n, p)))
        np.testing.assert_allclose(cold.dense(), wanted, atol=1e-6)


@pytest.mark.parametrize("missing", [0.2, 0.81])
def test_optspace_equals_the_textbook(missing: float) -> None:
    n, p, rank = (24, 18, 2) if missing < 0.5 else (80, 60, 1)  # whole and sparse products
    _, x = gappy(n, p, rank, seed=3, missing=missing)
    found = next(optspace_path(Entries.of(x), [rank], tol=1e-9))
    wanted = textbook.spaces_descent(x, rank, tol=1e-8)
    np.testing.assert_allclose(found.dense(), wanted, atol=1e-5)
    assert found.objective == pytest.approx(textbook.objective(x, wanted), rel=1e-8)


@both
@pytest.mark.parametrize(("n", "p"), [(60, 30), (50, 40)])
def test_a_table_without_noise_is_exact_at_the_default_tolerance(
    path: Callable[..., Iterator[LowRankFit]], n: int, p: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)) @ rng.normal(size=(3, p))
    seen = Entries.of(np.where(rng.random(x.shape) < 0.5, x, np.nan))
    (fit,) = path(seen, [3])
    assert np.linalg.norm(fit.dense() - x) <= 1e-6 * np.linalg.norm(x)
    # control: beside noise a fit stops early, as in the source's software
    noisy = seen.with_values(seen.values + rng.normal(size=seen.n_observed))
    (early,), (late,) = path(noisy, [3]), path(noisy, [3], tol=1e-6, max_iter=5000)
    assert early.n_iter < 20 and early.n_iter < late.n_iter / 2


@pytest.mark.parametrize("seed", range(8))
def test_optspace_keeps_residuals_of_exactly_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, size=(60, 40)).astype(float)
    seen = rng.random(x.shape) < 0.08
    seen[0] = rng.random(40) < 0.6  # a heavy rater, trimmed from the start: fits of exact zeros
    x[~seen] = np.nan
    for fit in optspace_path(Entries.of(x), [1, 2]):
        squares = np.nansum((x - fit.dense()) ** 2)
        assert fit.objective == pytest.approx(0.5 * squares, rel=1e-9)
        assert fit.objective < 0.5 * np.nansum(x**2)


@both
def test_ends_where_the_gradient_is_small(path: Callable) -> None:
    _, x = gappy(40, 25, 4)
    for fit in path(Entries.of(x), [2, 4, 7], tol=1e-7, max_iter=5000):
        assert fit.converged
        assert textbook.stationarity(x, fit.dense(), fit.rank) < 1e-5
        assert fit.objective == pytest.approx(textbook.objective(x, fit.dense()), rel=1e-8)


@both
@pytest.mark.parametrize(("n", "p"), [(12, 30), (30, 12), (13, 11)])
def test_complete_is_the_truncated_decomposition(path: Callable, n: int, p: int) -> None:
    x, _ = gappy(n, p, 3)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    for rank, fit in enumerate(path(Entries.of(x), range(min(n, p) + 1))):
        wanted = (u[:, :rank] * s[:rank]) @ vt[:rank]
        np.testing.assert_allclose(fit.dense(), wanted, atol=1e-10)
        np.testing.assert_allclose(fit.s, s[:rank], rtol=1e-10)
        assert fit.objective == pytest.approx(0.5 * (s[rank:] ** 2).sum(), abs=1e-8)
        assert fit.converged


def test_factored_solver_on_complete_entries() -> None:
    x, _ = gappy(30, 12, 3)
    fits = hard_path(Entries.of(x), [1, 3], tol=1e-10, max_iter=5000, solver="factored")
    for fit, wanted in zip(fits, hard_path(Entries.of(x), [1, 3]), strict=True):
        np.testing.assert_allclose(fit.dense(), wanted.dense(), atol=1e-7)


@both
def test_a_fit_is_singular_vectors(path: Callable) -> None:
    _, x = gappy(30, 20, 4)
    fit = next(path(Entries.of(x), [4]))
    np.testing.assert_allclose(fit.u.T @ fit.u, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(fit.v.T @ fit.v, np.eye(4), atol=1e-10)
    assert (np.diff(fit.s) < 0).all()
    assert (fit.v[np.abs(fit.v).argmax(axis=0), range(4)] > 0).all()


@both
def test_fits_better_with_every_rank(path: Callable) -> None:
    _, x = gappy(40, 25, 4)
    objectives = [fit.objective for fit in path(Entries.of(x), range(7))]
    assert all(after < before for before, after in pairwise(objectives))
    assert objectives[0] == pytest.approx(0.5 * np.nansum(x**2))


@both
@pytest.mark.parametrize("missing", [0.3, 0.7])
def test_finds_a_matrix_without_noise(path: Callable, missing: float) -> None:
    full, x = gappy(60, 50, 3, noise=0.0, missing=missing)
    fit = next(path(Entries.of(x), [3], tol=1e-9, max_iter=5000))
    np.testing.assert_allclose(fit.dense(), full, atol=1e-5)


def test_warm_paths_take_fewer_decompositions() -> None:
    _, x = gappy(60, 40, 6, noise=1.0)
    entries = Entries.of(x)
    warm = sum(fit.n_svd for fit in hard_path(entries, range(1, 7), warm=True))
    assert warm < sum(fit.n_svd for fit in hard_path(entries, range(1, 7)))


def test_ranks_of_a_cold_path_do_not_depend_on_one_another() -> None:
    _, x = gappy(40, 25, 4)
    entries = Entries.of(x)
    for fit in hard_path(entries, [0, 2, 5]):
        alone = next(hard_path(entries, [fit.rank]))
        np.testing.assert_array_equal(fit.dense(), alone.dense())


def test_start_is_taken_up() -> None:
    _, x = gappy(40, 25, 3)
    entries = Entries.of(x)
    fit = next(hard_path(entries, [3], tol=1e-8, max_iter=5000))
    again = next(hard_path(entries, [3], tol=1e-6, warm=True, start=fit))
    assert again.n_iter == 1
    np.testing.assert_allclose(again.dense(), fit.dense(), atol=1e-6)


def test_the_minimum_may_predict_worse_than_stopping_early() -> None:
    """Few factors carry the signal: the held-out error of the minimum is far above that of zeros.

    This is why the default tolerance is large, and why no tolerance is a substitute for choosing
    the rank.
    """
    rng = np.random.default_rng(5)
    full = (rng.standard_normal((50, 6)) * (rng.random((50, 6)) < 0.1)) @ (
        rng.standard_normal((6, 100)) * (rng.random((6, 100)) < 0.1)
    ) * 8.0 + rng.standard_normal((50, 100))
    seen = rng.random(full.shape) < 0.8
    entries = Entries.of(np.where(seen, full, np.nan))
    early = next(hard_path(entries, [10]))
    late = next(hard_path(entries, [10], tol=1e-6, max_iter=5000))
    assert late.objective < early.objective
    held = [((full - fit.dense())[~seen] ** 2).mean() for fit in (early, late)]
    assert held[1] > 2 * held[0]


@both
def test_rows_and_columns_with_nothing_observed(path: Callable) -> None:
    _, x = gappy(30, 20, 2)
    x[4], x[:, 7] = np.nan, np.nan
    fit = next(path(Entries.of(x), [2]))
    assert np.abs(fit.dense()[4]).max() == pytest.approx(0.0, abs=1e-12)
    assert np.abs(fit.dense()[:, 7]).max() == pytest.approx(0.0, abs=1e-12)
    others = np.delete(np.delete(x, 4, axis=0), 7, axis=1)
    alone = next(path(Entries.of(others), [2]))
    found = np.delete(np.delete(fit.dense(), 4, axis=0), 7, axis=1)
    np.testing.assert_allclose(found, alone.dense(), atol=0.05)


@both
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1, 1)])
def test_one_row_or_column(path: Callable, shape: tuple[int, int]) -> None:
    x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    np.testing.assert_allclose(next(path(Entries.of(x), [1])).dense(), x, atol=1e-10)
    if x.size > 1:
        x.flat[2] = np.nan
        found = next(path(Entries.of(x), [1])).dense()
        np.testing.assert_allclose(found[~np.isnan(x)], x[~np.isnan(x)], rtol=0.05)


@both
def test_zeros_and_largest_rank(path: Callable) -> None:
    zeros = np.zeros((5, 4))
    zeros[0, 0] = np.nan
    fit = next(path(Entries.of(zeros), [2]))
    assert fit.rank == 0
    assert fit.objective == 0.0
    _, x = gappy(8, 6, 2)
    fit = next(path(Entries.of(x), [6], max_iter=2000))
    np.testing.assert_allclose(np.nansum((fit.dense() - x) ** 2), 0.0, atol=1e-4)


@both
def test_integer_ratings(path: Callable) -> None:
    ratings = np.array([[5, 4, 1, 1], [4, 5, 1, 2], [1, 1, 5, 4], [2, 1, 4, 5]])
    fit = next(path(Entries.of(ratings), [2]))
    assert np.linalg.matrix_rank(fit.dense()) == 2


@both
def test_refusals(path: Callable) -> None:
    entries = Entries.of(gappy(6, 4, 1)[1])
    with pytest.raises(ParameterError, match="from 0 to 4, as there are 6 rows and 4 columns"):
        path(entries, [5])
    for ranks in ([-1], [1.5], [True]):
        with pytest.raises(ParameterError, match="rank must be a whole number"):
            path(entries, ranks)
    with pytest.raises(ParameterError, match="ranks must be increasing"):
        path(entries, [2, 2])
    for tol in (0.0, np.nan, np.inf):
        with pytest.raises(ParameterError, match="tol must be a number above 0"):
            path(entries, [1], tol=tol)
    with pytest.raises(ParameterError, match="max_iter must be"):
        path(entries, [1], max_iter=0)


def test_unknown_solver() -> None:
    with pytest.raises(ParameterError, match="solver must be"):
        hard_path(Entries.of(np.eye(3)), [1], solver="fast")


@both
def test_large_and_sparse(path: Callable) -> None:
    """943 x 1682 with 6% observed and signal of rank 5, never filled."""
    rng = np.random.default_rng(0)
    n, p, rank = 943, 1682, 5
    common = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p))
    places = rng.choice(n * p, 95_000, replace=False)
    i, j = places // p, places % p
    entries = Entries.from_triplets(i, j, common[i, j] + 0.3 * rng.standard_normal(len(i)), (n, p))
    fit = next(path(entries, [rank], tol=1e-4))
    assert fit.converged
    # 5 (n + p) free numbers from 95,000 entries: .3 sqrt(13,125 / 95,000) = .11
    assert np.sqrt(((fit.dense() - common) ** 2).mean()) < 0.15

"""Soft-impute: the textbook, certificates, paths, ranks, refitted singular values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from consilience.completion.kernels import soft_impute_solvers as als
from consilience.completion.kernels.low_rank import LowRankFit
from consilience.completion.kernels.soft_impute import (
    alpha_max,
    choose_solver,
    rank_path,
    soft_path,
    unshrink,
)
from consilience.completion.kernels.soft_impute_kernels import LANES, ridge_step
from consilience.completion.kernels.soft_impute_solvers import SparseSolver, relative_gap
from consilience.datasets.simulate_matrices import simulate_low_rank
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.random import stream
from tests.reference import soft_impute as textbook

SOLVERS = ("dense", "als")


def table(n: int = 24, p: int = 16, seed: int = 0, share: float = 0.7) -> np.ndarray:
    """Rank 3 with noise, some entries missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) @ rng.normal(size=(3, p)) + 0.3 * rng.normal(size=(n, p))
    x[rng.random((n, p)) > share] = np.nan
    return x


def one(x: np.ndarray, alpha: float, **settings: object) -> object:
    (fit,) = soft_path(Entries.of(x), [alpha], **settings)  # type: ignore[arg-type]
    return fit


def unshrunk(entries: Entries, ranks: Sequence[int], **settings: Any) -> Iterator[LowRankFit]:
    """SOFT-IMPUTE+ by rank."""
    return (unshrink(entries, fit) for fit in rank_path(entries, ranks, **settings))


# ------------------------------------------------------------------ one penalty


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", [(24, 16), (16, 24)])
def test_textbook(solver: str, shape: tuple[int, int]) -> None:
    x = table(*shape)
    for alpha in (6.0, 2.0):
        fit = one(x, alpha, solver=solver, tol=1e-12)
        np.testing.assert_allclose(fit.dense(), textbook.soft_impute(x, alpha), atol=1e-5)
        assert fit.converged


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_gap_is_a_certificate(solver: str) -> None:
    x = table(40, 30)
    for fit in soft_path(Entries.of(x), [8.0, 4.0, 2.0, 1.0], solver=solver):
        value = textbook.objective(x, fit.dense(), fit.alpha)
        best = textbook.objective(x, textbook.soft_impute(x, fit.alpha), fit.alpha)
        assert fit.gap <= 1e-6
        assert fit.objective == pytest.approx(value, rel=1e-10)
        assert (value - best) / value <= fit.gap + 1e-12
        assert textbook.gap(x, fit.dense(), fit.alpha) <= 2e-5  # at the plain multiple of it


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_fit_that_is_cut_short_says_so(solver: str) -> None:
    x = table(40, 30, share=0.4)
    fit = one(x, 0.5, solver=solver, max_iter=3)
    best = textbook.objective(x, textbook.soft_impute(x, 0.5), 0.5)
    assert not fit.converged
    assert fit.gap > 1e-6
    assert (fit.objective - best) / fit.objective <= fit.gap


def test_the_largest_penalty() -> None:
    entries = Entries.of(table())
    top = alpha_max(entries)
    above, below = soft_path(entries, [top * 1.000001, top * 0.999])
    assert (above.rank, below.rank) == (0, 1)
    assert top == pytest.approx(np.linalg.norm(np.nan_to_num(table()), 2), rel=1e-12)
    assert not above.dense().any()


def test_the_largest_penalty_of_a_large_matrix() -> None:
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 700, 9000), rng.integers(0, 600, 9000)
    entries = Entries.from_triplets(i, j, rng.normal(size=9000), (700, 600), duplicates="mean")
    exact = np.linalg.norm(np.nan_to_num(entries.dense()), 2)
    assert alpha_max(entries) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("solver", SOLVERS)
def test_blank_rows_and_columns_are_zero(solver: str) -> None:
    x = table()
    x[3], x[:, 5] = np.nan, np.nan
    dense = one(x, 1.0, solver=solver).dense()
    np.testing.assert_allclose(dense[3], 0.0, atol=1e-12)
    np.testing.assert_allclose(dense[:, 5], 0.0, atol=1e-12)
    assert np.abs(dense).max() > 1.0


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("x", [[[1.0, np.nan, 3.0]], [[1.0], [np.nan], [3.0]], [[2.0, np.nan]]])
def test_one_row_or_column(solver: str, x: list[list[float]]) -> None:
    full = np.array(x)
    np.testing.assert_allclose(
        one(full, 0.5, solver=solver, tol=1e-12).dense(),
        textbook.soft_impute(full, 0.5),
        atol=1e-6,
    )


def test_zeros_are_a_matrix_too() -> None:
    x = np.zeros((4, 3))
    x[0, 0] = np.nan
    fit = one(x, 1.0)
    assert (fit.rank, fit.objective, fit.gap) == (0, 0.0, 0.0)
    assert [f.rank for f in unshrunk(Entries.of(x), [0, 2])] == [0, 0]


def test_integers_are_ratings() -> None:
    rng = np.random.default_rng(0)
    entries = Entries.from_triplets(
        np.repeat(np.arange(9), 3), rng.integers(0, 7, 27), np.arange(27) % 5, duplicates="mean"
    )
    (fit,) = soft_path(entries, [0.5])
    assert fit.converged


def test_a_tiny_penalty_is_not_lost_in_the_gram_matrix() -> None:
    x = table(30, 8)
    fit = one(x, 1e-3, tol=1e-3, max_iter=20_000)
    assert fit.converged
    i, j = np.nonzero(~np.isnan(x))
    np.testing.assert_allclose(fit.at(i, j), x[i, j], atol=2e-3)


# ------------------------------------------------------------------ complete matrices


def test_complete_matrices_have_closed_forms() -> None:
    x = np.random.default_rng(0).normal(size=(20, 8))
    for fit in soft_path(Entries.of(x), [4.0, 1.0, 0.01]):
        np.testing.assert_allclose(fit.dense(), textbook.shrink(x, fit.alpha), atol=1e-12)
        value = textbook.objective(x, fit.dense(), fit.alpha)
        assert fit.objective == pytest.approx(value, rel=1e-12)
        assert fit.gap == 0.0


@pytest.mark.parametrize("shape", [(20, 8), (8, 20), (8, 8), (1, 3)])
def test_unshrunk_ranks_of_a_complete_matrix_are_truncations(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    ranks = range(min(shape) + 1)
    for k, fit in zip(ranks, unshrunk(Entries.of(x), ranks), strict=True):
        np.testing.assert_allclose(fit.dense(), (u[:, :k] * s[:k]) @ vt[:k], atol=1e-10)


def test_unshrunk_fits_of_a_complete_matrix_are_truncations() -> None:
    x = np.random.default_rng(0).normal(size=(20, 8))
    entries = Entries.of(x)
    (fit,) = soft_path(entries, [4.0])
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    k = fit.rank
    assert 0 < k < 8
    refitted = unshrink(entries, fit)
    np.testing.assert_allclose(refitted.dense(), (u[:, :k] * s[:k]) @ vt[:k], atol=1e-10)
    assert refitted.objective == pytest.approx(0.5 * (s[k:] ** 2).sum(), rel=1e-10)


def test_ties_do_not_hinder_a_rank() -> None:
    entries = Entries.of(np.diag([3.0, 2.0, 2.0, 1.0]))
    assert [fit.rank for fit in unshrunk(entries, range(5))] == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------ refitted singular values


@pytest.mark.parametrize("solver", SOLVERS)
def test_refitted_values(solver: str) -> None:
    x = table()
    fit = one(x, 2.0, solver=solver, tol=1e-12)
    found = unshrink(Entries.of(x), fit)
    expected = textbook.unshrink(x, textbook.soft_impute(x, 2.0))
    np.testing.assert_allclose(found.dense(), expected, atol=1e-4)
    i, j = np.nonzero(~np.isnan(x))
    assert found.objective == pytest.approx(0.5 * ((x - found.dense())[i, j] ** 2).sum(), rel=1e-9)
    assert (np.diff(found.s) <= 0).all()
    assert found.s.min() > 0


def test_a_negative_value_turns_its_left_vector() -> None:
    entries = Entries.of(table())
    (fit,) = soft_path(entries, [3.0])
    entries = entries.with_values(-entries.values)
    found = unshrink(entries, fit)
    assert found.s.min() > 0
    np.testing.assert_allclose(found.dense(), -unshrink(Entries.of(table()), fit).dense())
    order = [int(np.abs(fit.v.T @ v).argmax()) for v in found.v.T]
    np.testing.assert_array_equal(found.v, fit.v[:, order])


# ------------------------------------------------------------------ paths


@pytest.mark.parametrize("solver", SOLVERS)
def test_warm_paths_end_where_cold_fits_do(solver: str) -> None:
    entries = Entries.of(table(40, 30))
    alphas = alpha_max(entries) * np.geomspace(0.9, 0.05, 8)
    warm = list(soft_path(entries, alphas, solver=solver))
    cold = [next(soft_path(entries, [alpha], solver=solver)) for alpha in alphas]
    for a, b in zip(warm, cold, strict=True):
        assert a.objective == pytest.approx(b.objective, rel=2e-6)


def test_warm_paths_of_folds_take_65_percent_of_the_decompositions_of_cold_fits() -> None:
    entries = Entries.of(table(100, 60, share=0.6))
    alphas = alpha_max(entries) * np.geomspace(0.9, 0.03, 20)
    warm = sum(fit.n_svd for fit in soft_path(entries, alphas, tol=1e-4))
    cold = sum(next(soft_path(entries, [alpha], tol=1e-4)).n_svd for alpha in alphas)
    assert warm <= 0.65 * cold


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_is_used(solver: str) -> None:
    entries = Entries.of(table(40, 30))
    (first,) = soft_path(entries, [2.0], solver=solver, tol=1e-8)
    (again,) = soft_path(entries, [2.0], solver=solver, start=first)
    (cold,) = soft_path(entries, [2.0], solver=solver)
    assert again.n_iter < cold.n_iter
    assert again.objective == pytest.approx(first.objective, rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_rank_that_binds_is_said(solver: str) -> None:
    entries = Entries.of(table(40, 30))
    alphas = alpha_max(entries) * np.array([0.9, 0.05])
    free, bound = soft_path(entries, alphas, solver=solver, max_rank=2)
    assert not free.capped
    assert bound.capped
    assert bound.rank == 2
    assert bound.converged
    (none,) = soft_path(entries, [1.0], solver=solver, max_rank=0)
    assert none.capped
    assert none.rank == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_penalties_by_rank_are_the_smallest(solver: str) -> None:
    x = table()
    fits = list(rank_path(Entries.of(x), range(1, 5), solver=solver))
    assert [fit.rank for fit in fits] == [1, 2, 3, 4]
    for fit in fits:
        near = fit.alpha * np.array([1.01, 1.003, 0.997, 0.99])
        ranks = [int((one(x, a, tol=1e-10).s > 1e-6).sum()) for a in near]
        assert ranks[:2] == [fit.rank] * 2
        assert ranks[2:] == [fit.rank + 1] * 2
        assert fit.gap <= 1e-6


def test_penalties_by_rank_on_a_fine_grid() -> None:
    x = table(12, 9)
    (fit,) = rank_path(Entries.of(x), [3])
    grid = fit.alpha * np.geomspace(1.05, 0.95, 41)
    assert textbook.smallest_penalty(x, 3, grid) == pytest.approx(fit.alpha, rel=5e-3)


def test_both_solvers_agree_on_ranks_without_walking() -> None:
    entries = Entries.of(table(40, 30, share=0.5))
    (a,), (b,) = (list(rank_path(entries, [9], solver=s)) for s in SOLVERS)
    assert (a.rank, b.rank) == (9, 9)
    assert a.alpha == pytest.approx(b.alpha, rel=5e-3)


def test_a_rank_that_no_penalty_leaves() -> None:
    x = np.outer(np.arange(1.0, 7.0), np.arange(1.0, 6.0))
    x[0, 0] = x[3, 2] = np.nan
    for solver in SOLVERS:
        (fit,) = unshrunk(Entries.of(x), [4], solver=solver, tol=1e-4)
        assert fit.rank < 4
        assert fit.at(np.array([3]), np.array([2]))[0] == pytest.approx(12.0, rel=0.02)


def test_a_largest_rank_that_binds_leads_past_saddles() -> None:
    sweeps = 0
    for seed in range(8):
        x = simulate_low_rank(300, 200, rng=stream(seed, "half"), observed=0.2).x
        entries = Entries.of(x)
        path = alpha_max(entries) * np.geomspace(0.9, 0.02, 6)
        fits = list(soft_path(entries, path, max_rank=12, solver="als"))
        assert all(fit.converged for fit in fits)
        assert fits[-1].capped
        sweeps += sum(fit.n_iter for fit in fits)
    # Mixing is drawn to saddles: without longer steps beside them it takes 8,000 sweeps.
    assert sweeps < 5_000


def test_long_steps_have_a_limit() -> None:
    reach, b = als._Reach(), np.ones((2, 1))
    for _ in range(1_100):
        assert (reach.next(b, b) == b).all()


def test_a_refused_sweep_does_not_put_off_the_certificate() -> None:
    for seed in (140, 260, 268, 350):  # ran to the limit of sweeps, at a gap of 1e-16
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(30, 1))
        x[rng.random(x.shape) < 0.4] = np.nan
        entries = Entries.of(x)
        (fit,) = soft_path(entries, [0.1 * alpha_max(entries)], solver="als")
        assert fit.converged
        assert fit.n_iter < 20


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("unit", [2.0**-332, 2.0**249, 2.0**300])
def test_any_unit_gives_the_same_fit(solver: str, unit: float) -> None:
    x = table()
    fits = []
    for scale in (1.0, unit):
        entries = Entries.of(scale * x)
        path = alpha_max(entries) * np.array([0.5, 0.1])
        fits.append(list(soft_path(entries, path, solver=solver))[-1])
    one, other = fits
    assert other.converged
    assert other.rank == one.rank
    np.testing.assert_allclose(other.s / unit, one.s, rtol=1e-9)
    assert type(other.gap) is float
    assert type(other.capped) is bool


# ------------------------------------------------------------------ solvers and settings


def test_a_bracket_without_an_upper_end_gives_a_number() -> None:
    _ = np.nan
    x = [
        [_, _, 1, 2, _, _, _, _],
        [_, _, _, _, _, -2, 1, 1],
        [0, _, -2, 0, _, _, _, _],
        [_, _, 0, _, 1, _, _, 2],
        [_, _, 0, _, -2, _, _, _],
        [0, _, 0, 1, 0, _, _, _],
        [-2, _, -1, 1, _, 0, _, _],
        [_, _, _, 4, _, 0, _, _],
    ]  # the penalty of rank 1 rises on the way
    entries = Entries.of(np.array(x))
    found = {s: list(rank_path(entries, [0, 1], solver=s))[1] for s in ("dense", "als")}
    assert found["als"].rank == 1
    assert found["als"].alpha == pytest.approx(found["dense"].alpha, rel=1e-3)


def test_searches_without_a_column_count_as_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = iter(100.0 * 2.0 ** np.arange(40))  # a penalty that never settles: no column is left
    monkeypatch.setattr(SparseSolver, "_edge", lambda self, rank, floor: next(edges))
    fit = SparseSolver(Entries.of(np.eye(3))).solve(None, tol=1e-6, max_iter=20, rank=1)
    assert not fit.converged
    assert fit.n_iter == 20


def test_the_solver_goes_by_density_and_shape() -> None:
    rng = np.random.default_rng(0)

    def entries(n: int, p: int, m: int) -> Entries:
        chosen = rng.choice(n * p, m, replace=False)
        return Entries.from_triplets(chosen // p, chosen % p, np.ones(m), (n, p))

    assert choose_solver(entries(5000, 100, 363_000)) == "dense"
    assert choose_solver(entries(943, 1682, 90_000)) == "als"
    assert choose_solver(entries(300, 200, 12_000)) == "dense"
    assert choose_solver(entries(20_000, 5_000, 50_000)) == "als"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alphas": [1.0, 2.0]}, "alphas must be positive finite numbers, decreasing"),
        ({"alphas": [0.0]}, "alphas must be positive"),
        ({"alphas": []}, "alphas must be positive"),
        ({"alphas": [np.inf]}, "alphas must be positive"),
        ({"alphas": "many"}, "alphas must be positive"),
        ({"tol": 0.0}, "tol must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"max_rank": -1}, "max_rank must be"),
        ({"solver": "svd"}, "solver must be"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        soft_path(Entries.of(table()), **{"alphas": [1.0], **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [[-1], [17], [2, 1], [1.5], [True]])
def test_ranks_out_of_range(ranks: list[int]) -> None:
    with pytest.raises(ParameterError, match="rank"):
        unshrunk(Entries.of(table()), ranks)


def test_a_start_of_another_shape_is_refused() -> None:
    (fit,) = soft_path(Entries.of(table(10, 5)), [1.0])
    with pytest.raises(DataError, match="same shape"):
        soft_path(Entries.of(table()), [1.0], start=fit)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("k", "alpha"), [(1, 2.0), (5, 0.3), (30, 1.0), (3, 0.0)])
def test_ridge_regressions_of_rows(k: int, alpha: float, keep: bool) -> None:
    """More rows than are solved at once, rows longer than a block, and rows without entries."""
    rng = np.random.default_rng(k)
    counts = np.array([0, 70, 200, 33, 0] * 4 + [64, 65, 40])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    columns = rng.integers(90, size=indptr[-1])
    values, b = rng.normal(size=indptr[-1]), rng.normal(size=(90, k))
    nearby = b + 0.1 * rng.normal(size=b.shape)
    start = rng.normal(size=(len(counts), k))
    start[counts == 0] = 0.0
    groups = -(-len(counts) // LANES) if keep else 1
    factors = np.full((groups, k * (k + 1) // 2, LANES), np.nan)
    found, after = np.full_like(start, np.nan), np.full_like(start, np.nan)
    found_loss = ridge_step(indptr, columns, values, b, alpha, True, factors, start, found)
    expected, stale = np.zeros_like(found), np.zeros_like(found)
    loss = 0.0
    for i, (first, last) in enumerate(pairwise(indptr)):
        if first < last:
            own, near, x = b[columns[first:last]], nearby[columns[first:last]], values[first:last]
            curvature = own.T @ own + alpha * np.eye(k)
            expected[i] = np.linalg.solve(curvature, own.T @ x)
            gradient = near.T @ (x - near @ expected[i]) - alpha * expected[i]
            stale[i] = expected[i] + np.linalg.solve(curvature, gradient)
            rest = x - own @ start[i]
            loss += rest @ rest
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    if keep:  # the factors of b serve a step towards the regression on what is near b
        ridge_step(indptr, columns, values, nearby, alpha, False, factors, found, after)
        np.testing.assert_allclose(after, stale, rtol=1e-10, atol=1e-12)


def test_factors_that_have_no_room_are_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Entries.of(table(40, 30))
    alphas = alpha_max(entries) * np.array([0.5, 0.1])
    kept = list(soft_path(entries, alphas, solver="als"))
    monkeypatch.setattr(als, "_ROOM", 0)
    anew = list(soft_path(entries, alphas, solver="als"))
    for a, b in zip(kept, anew, strict=True):
        assert max(a.gap, b.gap) <= 1e-6
        assert a.objective == pytest.approx(b.objective, rel=2e-6)
        assert a.n_iter != b.n_iter or not np.array_equal(a.s, b.s)  # the other way was taken


@pytest.mark.parametrize("share", [1e-8, 1e-10, 1e-12])
def test_tiny_penalties_end(share: float) -> None:
    """Rows with fewer entries than columns have pivots that nothing but the ridge bounds."""
    for seed in range(8):
        entries = Entries.of(table(20 + 3 * seed, 15 + 2 * seed, seed, share=0.4))
        alpha = alpha_max(entries) * share
        (fit,) = soft_path(entries, [alpha], solver="als", max_iter=60)
        assert np.isfinite(fit.objective)
        assert fit.objective <= 0.5 * float(entries.values @ entries.values)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_of_a_higher_rank_is_cut(solver: str) -> None:
    entries = Entries.of(table(40, 30))
    (start,) = soft_path(entries, [0.3], solver=solver)
    assert start.rank > 2
    (fit,) = soft_path(entries, [0.2], solver=solver, max_rank=2, start=start)
    assert fit.rank == 2
    assert fit.capped


def test_a_bound_above_the_criterion_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanczos's method may settle on a value near the largest: the bound is then too high."""
    entries = Entries.of(table(40, 30))
    solver = als.SparseSolver(entries)
    asked: list[float] = []

    def norm(self: als.SparseRest, accuracy: float = 1e-8) -> float:
        asked.append(accuracy)
        return right(self, accuracy) * (1.0 if accuracy == 0.0 else 0.5)

    right = als.SparseRest.norm
    monkeypatch.setattr(als.SparseRest, "norm", norm)
    fit = solver.solve(0.2 * alpha_max(entries), tol=1e-6, max_iter=500)
    monkeypatch.undo()
    assert 0.0 in asked
    (exact,) = soft_path(entries, [fit.alpha], solver="dense", tol=1e-9)
    assert fit.objective <= exact.objective * (1.0 + 1e-6)
    assert fit.gap <= 1e-6


def test_a_criterion_of_zero_has_no_gap() -> None:
    assert relative_gap(0.0, 0.0) == 0.0
    assert relative_gap(2.0, 1.0) == 0.5

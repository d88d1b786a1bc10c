"""Reference averaging: weights, averages, reference rows, choice; rounds against the textbook."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from consilience.averaging.estimators.proximal_fit import Learner
from consilience.exceptions import ParameterError
from consilience.numerics import reference_average as kernel
from consilience.numerics.random import stream
from replications.reference_averaging.simulate import simulate_unlike_sites
from tests.reference import reference_averaging as textbook

# --------------------------------------------------------------------------- weights of rounds


def test_weights_of_the_schedules():
    for k in (1, 2, 7, 100):
        assert kernel.rho_of(k, schedule="fixed", rho=2.0, exponent=0.9, scale=3.0) == 6.0
        for schedule in ("adaptive", "asynchronous"):
            found = kernel.rho_of(k, schedule=schedule, rho=2.0, exponent=0.9, scale=3.0)
            assert found == pytest.approx(6.0 * k**0.9)
    each = [kernel.rho_of(k, schedule="adaptive", rho=1.0, exponent=0.9) for k in range(1, 200)]
    assert (np.diff(each) > 0).all()
    assert (np.diff(each, 2) < 0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "synchronous"},
        {"rho": 0.0},
        {"rho": -1.0},
        {"rho": float("nan")},
        {"rho": float("inf")},
        {"exponent": 1.0},
        {"exponent": -0.1},
        {"exponent": float("nan")},
    ],
)
def test_weights_out_of_range(wrong):
    with pytest.raises(ParameterError):
        kernel.rho_of(1, **{"schedule": "adaptive", "rho": 1.0, "exponent": 0.9, **wrong})


# --------------------------------------------------------------------------- averages


@given(st.integers(1, 12), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_average_is_weighted_by_rows(n_sites, seed):
    rng = np.random.default_rng(seed)
    predictions = [rng.standard_normal((5, 2)) for _ in range(n_sites)]
    sizes = rng.integers(1, 500, n_sites)
    found = kernel.averaged(predictions, sizes)
    np.testing.assert_allclose(found, np.average(predictions, axis=0, weights=sizes), atol=1e-13)
    site = int(rng.integers(n_sites))
    new = rng.standard_normal((5, 2))
    changed = [new if b == site else f for b, f in enumerate(predictions)]
    np.testing.assert_allclose(
        kernel.moved(found, new, predictions[site], sizes[site] / sizes.sum()),
        kernel.averaged(changed, sizes),
        atol=1e-12,
    )
    away = kernel.influences(predictions, sizes, found)
    for b in range(n_sites):
        inner = [found if c == b else f for c, f in enumerate(predictions)]
        shift = np.linalg.norm(kernel.averaged(inner, sizes) - found) / np.linalg.norm(found)
        assert away[b] == pytest.approx(shift, abs=1e-9)


@pytest.mark.parametrize(
    ("predictions", "sizes"),
    [([], []), ([np.ones(2)], [0]), ([np.ones(2)], [-1]), ([np.ones(2)] * 2, [1])],
)
def test_average_of_nothing(predictions, sizes):
    with pytest.raises(ParameterError):
        kernel.averaged(predictions, sizes)


def test_movement_is_relative():
    assert kernel.movement(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
    assert kernel.movement(np.zeros(2), np.zeros(2)) == 0.0


# --------------------------------------------------------------------------- reference rows


def test_facts_of_a_good_reference():
    facts = kernel.reference_facts(stream(0).standard_normal((200, 5)))
    assert (facts.n_rows, facts.n_columns, facts.rank, facts.needed_rank) == (200, 5, 5, 5)
    assert 1 < facts.condition < 2
    assert facts.remarks() == []


def test_reference_of_low_rank_is_remarked():
    rows = stream(1).standard_normal((200, 5))
    few = kernel.reference_facts(rows[:3])
    assert few.rank == 3
    assert "fewer rows than columns" in few.remarks()[0]
    rows[:, 4] = rows[:, 0] - 2 * rows[:, 1]
    dependent = kernel.reference_facts(rows)
    assert dependent.rank == 4
    assert "combinations" in dependent.remarks()[0]
    # units do not matter
    assert kernel.reference_facts(rows * [1e6, 1, 1e-6, 1, 1]).rank == 4


def test_directions_without_variation_need_no_reference():
    x = stream(2).standard_normal((300, 4)) * [1, 1, 1e3, 1e-3]
    x[:, 1] = x[:, 0]
    facts = kernel.reference_facts(x[:50], x.T @ x / 300)
    assert (facts.rank, facts.needed_rank) == (3, 3)
    assert facts.remarks() == []
    full = stream(3).standard_normal((300, 4))
    assert kernel.reference_facts(x[:50], full.T @ full / 300).remarks() != []


def test_facts_of_sparse_rows_are_those_of_the_same_rows_in_full():
    rows = stream(5).poisson(0.3, size=(150, 9)).astype(float) * np.geomspace(1e-3, 1e3, 9)
    rows[:, 4], rows[:, 5] = 0.0, rows[:, 0] - 2 * rows[:, 1]
    x = stream(6).poisson(0.3, size=(300, 9)).astype(float)
    for m, second in ((150, None), (150, x.T @ x / 300), (5, None)):
        full = kernel.reference_facts(rows[:m], second)
        found = kernel.reference_facts(sparse.csr_array(rows[:m]), second)
        assert (found.rank, found.needed_rank) == (full.rank, full.needed_rank)
        # by products a value of 0 is one to half the digits, whichever sign its rounding has
        assert (full.condition > 1e12, found.condition > 1e7) == (True, True)
        assert ("moments" in full.remarks()[0], "moments" in found.remarks()[0]) == (True, False)
    found, full = (kernel.reference_facts(part) for part in (sparse.csr_array(x), x))
    assert (found.rank, found.condition) == (9, pytest.approx(full.condition))
    assert kernel.scale_of(2.0, sparse.csr_array(rows)) == pytest.approx(kernel.scale_of(2.0, rows))
    # too many columns for their products: the most that the rank can be
    wide = sparse.csr_array((np.ones(4), ([0, 0, 1, 3], [7, 9, 7, 2100])), shape=(8, 2500))
    facts = kernel.reference_facts(wide)
    assert (facts.rank, facts.needed_rank, np.isnan(facts.condition)) == (3, 2500, True)


def test_nearly_dependent_columns_are_remarked():
    rows = stream(4).standard_normal((200, 3))
    rows[:, 2] = rows[:, 0] + 1e-6 * rows[:, 2]
    facts = kernel.reference_facts(rows)
    assert facts.rank == 3
    assert "nearly dependent" in facts.remarks()[0]


def test_scale_is_ratio_of_traces():
    x, a = stream(5).standard_normal((50, 3)) * 7, stream(6).standard_normal((20, 3))
    v, u = textbook.second_moment(x), textbook.second_moment(a)
    assert kernel.scale_of(np.trace(v), a) == pytest.approx(np.trace(v) / np.trace(u))
    assert kernel.scale_of(np.trace(v), 0 * a) == 1.0


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_pooled_moments_are_those_of_all_rows(n_sites, p, seed):
    rng = np.random.default_rng(seed)
    tables = [
        rng.standard_normal((int(rng.integers(3, 30)), p)) + rng.normal() for _ in range(n_sites)
    ]
    means = [x.mean(axis=0) for x in tables]
    products = [(x - m).T @ (x - m) for x, m in zip(tables, means, strict=True)]
    mean, covariance = kernel.pool_moments([len(x) for x in tables], means, products)
    pooled = np.concatenate(tables)
    np.testing.assert_allclose(mean, pooled.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(pooled.T, ddof=0).reshape(p, p), atol=1e-11)


def test_withheld_columns_come_from_the_others():
    rng = stream(7)
    tables = [rng.standard_normal((size, 3)) + size / 50 for size in (40, 60, 80)]
    means = [x.mean(axis=0) for x in tables]
    products = [(x - m).T @ (x - m) for x, m in zip(tables, means, strict=True)]
    means[0][1] = np.nan
    products[0][1, :] = products[0][:, 1] = np.nan
    mean, covariance = kernel.pool_moments([40, 60, 80], means, products)
    pooled, others = np.concatenate(tables), np.concatenate(tables[1:])
    np.testing.assert_allclose(mean[[0, 2]], pooled.mean(axis=0)[[0, 2]])
    assert mean[1] == pytest.approx(others[:, 1].mean())
    assert covariance[1, 1] == pytest.approx(others[:, 1].var())
    assert covariance[0, 2] == pytest.approx(np.cov(pooled.T, ddof=0)[0, 2])
    none = [None if b == 2 else one for b, one in enumerate(products)]
    assert np.isfinite(kernel.pool_moments([40, 60, 80], means, none)[1]).all()


def test_column_that_no_site_tells_is_zero():
    mean, covariance = kernel.pool_moments(
        [5, 6], [np.array([1.0, np.nan])] * 2, [np.diag([5.0, np.nan])] * 2
    )
    assert mean.tolist() == [1.0, 0.0]
    assert covariance[1].tolist() == [0.0, 0.0]


def test_cells_of_different_sites_give_a_semidefinite_matrix():
    """Pairs told by one site each, with correlations .9, .9 and -.9, which no rows can have."""
    found = np.full((3, 3, 3), np.nan)
    for b, (i, j, r) in enumerate(((0, 1, 0.9), (0, 2, 0.9), (1, 2, -0.9))):
        found[b, i, i] = found[b, j, j] = 10.0
        found[b, i, j] = found[b, j, i] = 10.0 * r
    _, covariance = kernel.pool_moments([10, 10, 10], [np.zeros(3)] * 3, list(found))
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    assert covariance[0, 1] > 0 > covariance[1, 2]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_generated_rows_have_the_moments_exactly(p, rank, seed):
    rng = np.random.default_rng(seed)
    rank = min(p, rank)
    root = rng.standard_normal((p, rank)) * np.exp(2 * rng.standard_normal((p, 1)))
    mean, covariance = 5 * rng.standard_normal(p), root @ root.T
    rows = kernel.normal_reference(mean, covariance, 20 * p, rng)
    unit = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((rows.mean(axis=0) - mean) / unit, 0.0, atol=1e-9)
    away = rows - rows.mean(axis=0)
    np.testing.assert_allclose(
        (away.T @ away / len(rows) - covariance) / np.outer(unit, unit), 0.0, atol=1e-9
    )


def test_generated_rows_look_normal():
    rows = kernel.normal_reference(np.zeros(2), np.eye(2), 4000, stream(8))
    # standard error of a fourth moment of 4,000 normal values: .15
    assert (rows**4).mean(axis=0) == pytest.approx([3.0, 3.0], abs=0.6)


def test_few_generated_rows_and_constant_columns():
    covariance = np.diag([1.0, 0.0, 4.0])
    rows = kernel.normal_reference(np.array([0.0, 7.0, 1.0]), covariance, 2, stream(9))
    assert rows.shape == (2, 3)
    assert rows[:, 1].tolist() == [7.0, 7.0]
    assert np.isfinite(kernel.normal_reference(np.zeros(3), 0 * covariance, 5, stream(9))).all()


# --------------------------------------------------------------------------- choice of a round


def test_pooled_gain_is_that_of_all_rows():
    rng = stream(10)
    losses = [rng.standard_normal(size) for size in (10, 25, 40)]
    means = np.array([one.mean() for one in losses])
    variances = np.array([one.var(ddof=1) / len(one) for one in losses])
    gain, error = kernel.pooled_gain(means, variances, [10, 25, 40])
    assert gain == pytest.approx(np.concatenate(losses).mean())
    shares = np.array([10, 25, 40]) / 75
    assert error == pytest.approx(np.sqrt((shares**2 * variances).sum()))
    means[1] = np.nan
    gain, _ = kernel.pooled_gain(means, variances, [10, 25, 40])
    assert gain == pytest.approx(np.concatenate([losses[0], losses[2]]).mean())
    assert np.isnan(kernel.pooled_gain(np.full(3, np.nan), variances, [1, 1, 1])[0])


def test_pooled_gain_of_several_rounds():
    means, variances = stream(11).standard_normal((3, 2, 4)), np.ones((3, 2, 4))
    gain, error = kernel.pooled_gain(means, variances, [1, 1, 2])
    np.testing.assert_allclose(gain, np.average(means, axis=0, weights=[1, 1, 2]))
    np.testing.assert_allclose(error, np.sqrt(6) / 4)


@pytest.mark.parametrize(
    ("gains", "goes_on"),
    [
        ([], True),
        ([np.nan, np.nan], True),
        ([0.0], True),
        ([0.0, -0.1], True),
        ([0.0, -0.1, -0.05], True),
        ([0.0, -0.1, -0.05, -0.07], False),
        ([0.0, 0.1, 0.1], True),
        ([0.0, 0.1, 0.1, 0.1], False),
        ([0.0, 0.037, 0.008], True),  # the first refit went too far, the second comes back
        ([0.0, 0.1, -0.01], True),
        ([0.0, np.nan, -0.1, np.nan], True),
    ],
)
def test_rounds_stop_after_two_without_gain(gains, goes_on):
    assert kernel.improving(np.array(gains), 2) is goes_on


def chosen(base, gains, errors):
    return kernel.choose(
        np.array(base), np.array(gains, dtype=float), np.array(errors, dtype=float)
    )


def test_best_round_is_kept_when_clear():
    found = chosen([1.0], [[0, -0.1, -0.3, -0.2]], [[0, 0.05, 0.05, 0.05]])
    assert found == kernel.Choice(0, 2, True, "gain")


@pytest.mark.parametrize(
    ("gains", "errors"),
    [([0, -0.04, -0.02], [0, 0.05, 0.01]), ([0, 0.1, 0.2], [0, 0.01, 0.01])],
)
def test_averaging_unless_one_standard_error_better(gains, errors):
    assert chosen([1.0], [gains], [errors]) == kernel.Choice(0, 0, False, "no-gain")


def test_choice_over_penalties():
    # the second track is better in itself, but not than averaging with the first
    found = chosen([1.0, 1.5], [[0, 0.1], [0, -0.4]], [[0, 0.01], [0, 0.01]])
    assert found == kernel.Choice(0, 0, False, "no-gain")
    found = chosen([1.0, 1.2], [[0, -0.1], [0, -0.4]], [[0, 0.01], [0, 0.01]])
    assert found == kernel.Choice(1, 1, True, "gain")


def test_choice_without_measurements():
    gains = [[0, np.nan], [0, np.nan]]
    assert chosen([2.0, 1.0], gains, gains) == kernel.Choice(1, 0, False, "not-measured")
    assert chosen([np.nan] * 2, gains, gains) == kernel.Choice(0, 0, False, "not-measured")
    partly = chosen([1.0], [[0, np.nan, -0.2]], [[0, np.nan, 0.1]])
    assert partly == kernel.Choice(0, 2, True, "gain")


# --------------------------------------------------------------------------- rounds of ridge


def ridge_learner(sites, reference, lam, *, intercept=False):
    from sklearn.linear_model import Ridge

    n = sum(len(y) for _, y in sites)
    estimator = Ridge(alpha=lam * n, fit_intercept=intercept, solver="cholesky")
    return Learner(estimator, task="regression", reference=reference, n_total=n)


def coefficients(fits, sizes):
    return kernel.averaged([np.append(f.intercept_, f.coef_) for f in fits], sizes)


def synchronous(learner, sites, rhos, *, tolerance=0.0):
    """Averaged coefficients after each round, the intercept first."""
    sizes = [len(y) for _, y in sites]
    fits = [learner.fit(x, y) for x, y in sites]
    found = [coefficients(fits, sizes)]
    for rho in rhos:
        average = kernel.averaged([learner.at_reference(fit) for fit in fits], sizes)
        fits = [learner.fit(x, y, target=average, rho=rho) for x, y in sites]
        found.append(coefficients(fits, sizes))
        if np.abs(found[-1] - found[-2]).max() < tolerance:
            break
    return found


def asynchronous(learner, sites, arrivals, rho, exponent):
    sizes = np.array([len(y) for _, y in sites], dtype=float)
    fits = [learner.fit(x, y) for x, y in sites]
    sent = [learner.at_reference(fit) for fit in fits]
    average, counts = kernel.averaged(sent, sizes), [0] * len(sites)
    found, still = [coefficients(fits, sizes)], [0] * len(sites)
    for b in arrivals:
        counts[b] += 1
        weight = kernel.rho_of(counts[b], schedule="asynchronous", rho=rho, exponent=exponent)
        fits[b] = learner.fit(*sites[b], target=average, rho=weight)
        new = learner.at_reference(fits[b])
        average = kernel.moved(average, new, sent[b], sizes[b] / sizes.sum())
        still[b] += 1
        if np.abs(new - sent[b]).max() > 1e-13:
            still = [0] * len(sites)
        sent[b] = new
        found.append(coefficients(fits, sizes))
        if min(still) >= 2:  # no site moves any more, the slowest included
            break
    return found


def unlike(n_sites, p, seed, *, shift=0.4):
    """Sites that differ in size, means, scales and coefficients, and rows of all their moments."""
    rng = np.random.default_rng(seed)
    data = simulate_unlike_sites(n_sites, p, rng=rng, sizes=(8, 40), shift=shift)
    pooled, _ = data.pooled
    n = 6 * p
    reference = kernel.normal_reference(pooled.mean(axis=0), np.cov(pooled.T).reshape(p, p), n, rng)
    return list(data.tables), reference


SITES = {"n_sites": st.integers(2, 4), "p": st.integers(1, 4), "seed": st.integers(0, 100_000)}
STRENGTHS = {"rho": st.sampled_from([0.1, 0.5, 1.0, 2.0]), "lam": st.sampled_from([0.05, 0.3, 1.0])}


@given(**SITES, **STRENGTHS)
@settings(max_examples=15, deadline=None)
def test_rounds_of_ridge_reach_the_closed_form(n_sites, p, seed, rho, lam):
    sites, reference = unlike(n_sites, p, seed)
    wanted = textbook.ridge_fixed_point(sites, reference, rho, lam)
    learner = ridge_learner(sites, reference, lam)
    found = synchronous(learner, sites, [rho] * 4000, tolerance=1e-13)[-1]
    np.testing.assert_allclose(found[1:], wanted, atol=1e-8 * max(1.0, np.abs(wanted).max()))


@given(**SITES, **STRENGTHS)
@settings(max_examples=10, deadline=None)
def test_asynchronous_rounds_of_ridge_reach_it_too(n_sites, p, seed, rho, lam):
    sites, reference = unlike(n_sites, p, seed)
    wanted = textbook.ridge_fixed_point(sites, reference, rho, lam)
    # sites of very different speed; a slow one keeps its last predictions in the average
    speed = np.random.default_rng(seed).dirichlet(np.ones(n_sites)) + 0.1
    order = np.random.default_rng(seed).choice(n_sites, size=20_000, p=speed / speed.sum())
    learner = ridge_learner(sites, reference, lam)
    found = asynchronous(learner, sites, order.tolist(), rho, 0.0)[-1]
    np.testing.assert_allclose(found[1:], wanted, atol=1e-8 * max(1.0, np.abs(wanted).max()))


@given(**SITES, **STRENGTHS)
@settings(max_examples=10, deadline=None)
def test_every_round_of_ridge_is_the_textbook_s(n_sites, p, seed, rho, lam):
    sites, reference = unlike(n_sites, p, seed, shift=1.0)
    rhos = [kernel.rho_of(k, schedule="adaptive", rho=rho, exponent=0.9) for k in range(1, 6)]
    np.testing.assert_allclose(rhos, textbook.adaptive_rhos(5, rho))
    learner = ridge_learner(sites, reference, lam)
    found = np.array(synchronous(learner, sites, rhos))
    np.testing.assert_allclose(found[:, 0], 0.0)
    wanted = np.array(textbook.ridge_rounds(sites, reference, lam, rhos)[0])
    np.testing.assert_allclose(found[:, 1:], wanted, atol=1e-9 * max(1.0, np.abs(wanted).max()))
    order = [b for b in (0, 1, 1, 0, 1, n_sites - 1)]
    found = np.array(asynchronous(learner, sites, order, rho, 0.9))
    wanted = np.array(textbook.ridge_asynchronous(sites, reference, lam, order, rho, 0.9))
    np.testing.assert_allclose(found[:, 1:], wanted, atol=1e-9 * max(1.0, np.abs(wanted).max()))


def test_an_intercept_is_a_column_without_penalty():
    sites, reference = unlike(3, 3, 5)
    lam, rho = np.array([0.0, 0.2, 0.2, 0.2]), 0.7
    with_ones = [(np.column_stack([np.ones(len(x)), x]), y) for x, y in sites]
    a = np.column_stack([np.ones(len(reference)), reference])
    learner = ridge_learner(sites, reference, 0.2, intercept=True)
    found = synchronous(learner, sites, [rho] * 4000, tolerance=1e-13)
    np.testing.assert_allclose(found[0], textbook.ridge_average(with_ones, lam), atol=1e-9)
    wanted = textbook.ridge_fixed_point(with_ones, a, rho, lam)
    np.testing.assert_allclose(found[-1], wanted, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_distance_times_rho_tends_to_a_constant(seed):
    sites, reference = unlike(4, 3, seed, shift=1.0)
    end = textbook.ridge_global(sites, 0.1)
    x, y = (np.concatenate(part) for part in zip(*sites, strict=True))
    np.testing.assert_allclose(end, textbook.ridge(x, y, 0.1), atol=1e-10)
    away = {
        rho: rho * np.linalg.norm(textbook.ridge_fixed_point(sites, reference, rho, 0.1) - end)
        for rho in (1e3, 1e4, 1e5)
    }
    assert away[1e4] == pytest.approx(away[1e5], rel=0.02)
    assert away[1e3] == pytest.approx(away[1e5], rel=0.2)


def away_after(rhos, seed):
    """Distance to the global fit after given rounds relative to that of averaging."""
    sites, reference = unlike(3, 3, seed)
    end = textbook.ridge_global(sites, 0.1)
    found = synchronous(ridge_learner(sites, reference, 0.1), sites, rhos)
    return np.linalg.norm(found[-1][1:] - end) / np.linalg.norm(found[0][1:] - end)


@pytest.mark.parametrize("seed", range(3))
def test_adaptive_rounds_come_close_to_the_global_fit(seed):
    adaptive = [
        kernel.rho_of(k, schedule="adaptive", rho=1.0, exponent=0.9) for k in range(1, 1001)
    ]
    assert away_after(adaptive, seed) < 0.06


def test_fixed_rounds_and_steep_weights_stay_away():
    """Negative controls: neither one fixed weight nor weights that grow too fast get there."""
    assert away_after([1.0] * 1000, 0) > 0.2
    assert away_after([k**2.0 for k in range(1, 1001)], 0) > 0.2


# --------------------------------------------------------------------------- rounds of others


def test_rounds_of_the_lasso_are_the_textbook_s():
    from sklearn.linear_model import Lasso

    rng = stream(12)
    sites = []
    for size in (9, 14):
        x = rng.standard_normal((size, 3))
        sites.append((x, x @ [1.0, 0.0, -0.5] + 0.3 * rng.standard_normal(size)))
    reference = rng.standard_normal((8, 3))
    learner = Learner(
        Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000),
        task="regression",
        reference=reference,
        n_total=23,
    )
    rhos = [1.0, 2.0, 3.0]
    found = synchronous(learner, sites, rhos)
    wanted = textbook.lasso_rounds(sites, reference, 0.1, rhos)
    np.testing.assert_allclose(np.array(found)[:, 1:], wanted, atol=1e-6)


def logistic_sites():
    rng = stream(13)
    sites = []
    for size in (30, 45):
        x = rng.standard_normal((size, 2))
        sites.append((x, (rng.uniform(size=size) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))) * 1.0))
    return sites, rng.standard_normal((12, 2))


def logistic_learner(reference, c):
    from sklearn.linear_model import LogisticRegression

    return Learner(
        LogisticRegression(C=c, fit_intercept=False, solver="newton-cholesky", tol=1e-12),
        task="classification",
        n_levels=2,
        reference=reference,
        n_total=75,
    )


def test_rounds_of_logistic_regression_are_the_textbook_s():
    """Probabilities are averaged; a reference row counts once for each level."""
    sites, reference = logistic_sites()
    lam = 0.02  # penalty of the mean loss, C = 1 / (75 lam) for the sum over all rows
    learner = logistic_learner(reference, 1 / (75 * lam))
    rhos = [1.0, 2.0, 3.0]
    chances, wanted = textbook.logistic_rounds(sites, reference, rhos, lam)
    sizes = [len(y) for _, y in sites]
    fits = [learner.fit(x, y) for x, y in sites]
    for k in itertools.count():
        average = kernel.averaged([learner.at_reference(fit) for fit in fits], sizes)
        np.testing.assert_allclose(average[:, 1], chances[k], atol=1e-8)
        np.testing.assert_allclose(average.sum(axis=1), 1.0)
        found = kernel.averaged([fit.coef_[0] for fit in fits], sizes)
        np.testing.assert_allclose(found, wanted[k], atol=1e-7)
        if k == len(rhos):
            break
        fits = [learner.fit(x, y, target=average, rho=rhos[k]) for x, y in sites]


def test_score_equation_holds_at_the_fixed_point_of_logistic_regression():
    """Where the rounds end, the sites' own scores cancel: sum_b w_b X_b'(y - p_b) / n_b = 0."""
    sites, reference = logistic_sites()
    learner = logistic_learner(reference, np.inf)
    sizes = np.array([len(y) for _, y in sites], dtype=float)
    fits = [learner.fit(x, y) for x, y in sites]
    average = kernel.averaged([learner.at_reference(fit) for fit in fits], sizes)
    for _ in range(3000):
        fits = [learner.fit(x, y, target=average, rho=1.0) for x, y in sites]
        new = kernel.averaged([learner.at_reference(fit) for fit in fits], sizes)
        done, average = kernel.movement(new, average) < 1e-13, new
        if done:
            break
    score = sum(
        x.T @ (y - fit.predict_proba(x)[:, 1]) for (x, y), fit in zip(sites, fits, strict=True)
    )
    np.testing.assert_allclose(score / sizes.sum(), 0.0, atol=1e-8)
    fits = [learner.fit(x, y) for x, y in sites]  # the sum at averaging is 0 site by site
    assert (
        kernel.movement(
            kernel.averaged([learner.at_reference(fit) for fit in fits], sizes), average
        )
        > 1e-4
    )


def test_a_weighted_mean_and_its_variance() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=40), rng.integers(0, 3, 40).astype(float)
    mean, variance = kernel.weighted_mean(values, weights)
    assert mean == pytest.approx(np.repeat(values, weights.astype(int)).mean(), rel=1e-12)
    # Ratio of sums of w v and w, by the spread of its linear part w (v - mean) / mean weight.
    counted = weights > 0
    part = weights[counted] * (values[counted] - mean) / weights[counted].mean()
    assert variance == pytest.approx(part.var(ddof=1) / counted.sum(), rel=1e-12)
    same, ordinary = kernel.weighted_mean(values, np.full(40, 2.0))
    assert (same, ordinary) == pytest.approx((values.mean(), values.var(ddof=1) / 40), rel=1e-12)
    assert np.isnan(kernel.weighted_mean(values, np.eye(40)[3])).all()

"""Standard errors of joint fits against the sandwich of the pooled design."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.assisted.kernels.glm import family
from consilience.assisted.kernels.joint_glm import (
    bounded_factor,
    contraction,
    enough_for,
    inflated,
    initiator_solution,
    largest_correlation,
    local_errors,
    partner_residual,
    ritz_values,
)
from consilience.datasets.simulate_assisted import simulate_setting
from consilience.exceptions import DataError, ParameterError
from replications.assisted_glm.in_one_process import fit_jointly
from replications.assisted_glm.simulate import simulate_canonical
from replications.assisted_glm.standard_errors import (
    coefficient_errors,
    initiator_design,
    joint_intervals,
    paper,
)
from tests.reference import assisted_glm as textbook

FAMILIES = ["binomial", "poisson", "normal", "log-cosh", "pseudo-huber"]


def _canonical(correlations, name, n=600, seed=1):
    data = simulate_canonical(n, list(correlations), rng=np.random.default_rng(seed), family=name)
    return data.columns["a"], data.columns["b"], data.y


def _oracle(blocks, y, eta, name, rows):
    """Textbook errors (model, sandwich) on the stacked columns, for targets with a constant."""
    x = textbook.with_constant(*blocks)
    s, w = textbook.score_weight(name, y, eta)
    return np.array([textbook.sandwich(x, w, s, row) for row in textbook.with_constant(*rows)]).T


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("setting", [1, 2, 3])
def test_certified_errors_are_the_pooled_sandwich(name, setting):
    rng = np.random.default_rng(setting)
    train, new = (
        simulate_setting(setting, n, rng=rng, family=name, effects="power", rho=0.25)
        for n in (500, 7)
    )
    a, b, y = train.columns["a"], train.columns["b"], train.y
    found = fit_jointly(a, [b], y, family(name))
    for m in (1, 7):
        rows = new.columns["a"][:m], new.columns["b"][:m]
        errors = joint_intervals(found, a, [b], y, family(name), rows[0], [rows[1]])
        model, sandwich = _oracle([a, b], y, found.eta, name, rows)
        assert set(errors.status) == {"identified"} and np.all(errors.relative <= 1e-8)
        assert np.allclose(errors.se_sandwich, sandwich, rtol=1e-8, atol=0)
        assert np.allclose(errors.se_model, model, rtol=1e-8, atol=0)
        rank = np.linalg.matrix_rank(textbook.with_constant(a, b))
        if errors.rank[0] == b.shape[1]:
            assert np.allclose(errors.se, sandwich * np.sqrt(500 / (500 - rank)), rtol=1e-8)
        assert np.allclose(errors.estimate, found.predict(rows[0], [rows[1]]))


@pytest.mark.parametrize("top", [0.9, 0.99])
def test_opposed_subjects_where_the_local_sandwich_fails(top):
    a, b, y = _canonical([top, top - 0.1, 0.3], "binomial")
    rows = a[:5], -b[:5]
    found = fit_jointly(a, [b], y, family("binomial"))
    errors = joint_intervals(found, a, [b], y, family("binomial"), rows[0], [rows[1]])
    _, sandwich = _oracle([a, b], y, found.eta, "binomial", rows)
    assert np.allclose(errors.se_sandwich, sandwich, rtol=1e-8, atol=0)
    s, w = textbook.score_weight("binomial", y, found.eta)
    centre = b.mean(axis=0)
    local_a = local_errors(a, w, s, rows[0], constant=True)[1]
    local_b = local_errors(b - centre, w, s, rows[1] - centre, constant=False)[1]
    ratio = np.sqrt(local_a + local_b) / sandwich  # the negative control
    assert np.all(ratio < 1) and np.median(ratio) < 0.8


def test_fewer_messages_than_targets_and_several_partners():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(500, 9)) @ np.linalg.cholesky(0.5 * np.eye(9) + 0.5)
    blocks = [x[:, 2:5], x[:, 4:7], x[:, 7:]]
    y = rng.poisson(np.exp(x @ rng.normal(0, 0.1, 9))).astype(float)
    found = fit_jointly(x[:, :2], blocks, y, family("poisson"))
    new = rng.normal(size=(40, 9))
    rows = new[:, :2], [new[:, 2:5], new[:, 4:7], new[:, 7:]]
    errors = joint_intervals(found, x[:, :2], blocks, y, family("poisson"), *rows)
    _, sandwich = _oracle([x], y, found.eta, "poisson", [new])
    assert np.allclose(errors.se_sandwich, sandwich, rtol=1e-8, atol=0)
    assert errors.rounds <= 8 and all(k <= b.shape[1] for k, b in zip(errors.rank, blocks))


@pytest.mark.parametrize("setting", [1, 2, 3])
def test_which_coefficients_are_identified(setting):
    rng = np.random.default_rng(setting)
    data = simulate_setting(setting, 400, rng=rng, family="binomial", effects="power", rho=0.1)
    a, b, y = data.columns["a"], data.columns["b"], data.y
    found = fit_jointly(a, [b], y, family("binomial"))
    errors = coefficient_errors(found, a, [b], y, family("binomial"))
    x = textbook.with_constant(a, b - b.mean(axis=0))
    targets = np.eye(x.shape[1])[: 1 + a.shape[1]]
    truth = [textbook.estimable(x, row) for row in targets]
    assert [word == "identified" for word in errors.status] == truth
    assert [word == "shared" for word in errors.status] == [not each for each in truth]
    common = {"a": data.names["a"], "b": data.names["b"]}
    shared = [name in common["b"] for name in common["a"]]
    assert [word == "shared" for word in errors.status[1:]] == shared
    s, w = textbook.score_weight("binomial", y, found.eta)
    for j, ok in enumerate(truth):
        if ok:
            expected = textbook.sandwich(x, w, s, targets[j])[1]
            assert errors.se_sandwich[j] == pytest.approx(expected, rel=1e-8)
        else:
            assert np.isnan(errors.se[j])
    cut = coefficient_errors(found, a, [b], y, family("binomial"), max_rank=found.rank[0])
    assert all(
        word in ("identified", "bounded") if ok else word in ("shared", "not certified")
        for word, ok in zip(cut.status, truth)
        if word != "not certified"
    )


def _random_design(i):
    rng = np.random.default_rng([7, i])
    p = int(rng.integers(3, 8))
    top = float(rng.choice([0.3, 0.6, 0.9, 0.97, 0.99]))
    a, b, y = _canonical(np.sort(rng.uniform(0, top, p))[::-1], "binomial", n=300, seed=i)
    rank = p - 1 if i % 2 else max(1, p // 2)
    rows = rng.normal(size=(4, p)), rng.normal(size=(4, p))
    rows[1][:2] = -rows[0][:2]
    return a, b, y, rank, rows


def test_bounds_hold_where_the_rank_budget_ends_the_exchange():
    fam = family("binomial")
    reported = failed = failed_bare = 0
    for i in range(60):
        a, b, y, rank, rows = _random_design(i)
        found = fit_jointly(a, [b], y, fam, max_rank=rank)
        model, _ = _oracle([a, b], y, found.eta, "binomial", rows)
        _, w = textbook.score_weight("binomial", y, found.eta)
        rho = textbook.canonical_correlations(a, b, w)[0]
        args = (found, a, [b], y, fam, rows[0], [rows[1]])
        known = joint_intervals(*args, max_rank=rank, rho=float(rho))
        assert known.rank[0] <= rank
        # With the true rho: a theorem, for every target.
        good = ~np.isnan(known.factor)
        assert np.all((known.factor * known.se_model)[good] >= model[good] * (1 - 1e-9))
        assert np.all(known.se_model <= model * (1 + 1e-9))
        # With the estimate: an assumption that rarely fails.
        guess = joint_intervals(*args, max_rank=rank)
        bounded = np.array(guess.status) == "bounded"
        reported += int(bounded.sum())
        failed += int(np.sum((guess.factor * guess.se_model < model * (1 - 1e-9))[bounded]))
        blocks = initiator_design(a, (b - found.centres[0]) @ found.directions[0])
        ritz = ritz_values(blocks, w, np.zeros(found.rank[0], dtype=int))
        assert ritz[0] >= (1 - rho**2) * (1 - 1e-9)  # Ritz values alone err on the unsafe side
        plain = largest_correlation(ritz, margin=1.0, most=1.0)
        assert plain <= rho + 1e-9
        loose = joint_intervals(*args, max_rank=rank, rho=plain)
        failed_bare += int(np.sum(loose.factor * loose.se_model < model * (1 - 1e-9)))
    assert reported >= 40
    assert failed == 0
    assert failed_bare >= 5  # the negative control


def test_rank_budget():
    a, b, y = _canonical([0.2, 0.4, 0.5, 0.6, 0.7], "binomial")
    fam = family("binomial")
    found = fit_jointly(a, [b], y, fam, max_rank=2)
    rows = a[:6] * 2, [b[::-1][:6]]
    ranks = [joint_intervals(found, a, [b], y, fam, *rows, max_rank=k).rank for k in (0, 2, 3, 4)]
    assert ranks == [[2], [2], [3], [4]]
    relative = [
        np.max(joint_intervals(found, a, [b], y, fam, *rows, max_rank=k).relative)
        for k in (2, 3, 4, 5)
    ]
    assert np.all(np.diff(relative) < 0) and relative[-1] < 1e-8 < relative[-2]


def test_rows_without_weight():
    a, b, y = _canonical([0.3, 0.6], "binomial")
    weights = (np.arange(600) < 500).astype(float)
    fam = family("binomial")
    found = fit_jointly(a, [b], y, fam, weights=weights)
    errors = joint_intervals(found, a, [b], y, fam, a[500:], [b[500:]], weights=weights)
    _, sandwich = _oracle(
        [a[:500], b[:500]], y[:500], found.eta[:500], "binomial", [a[500:], b[500:]]
    )
    assert np.allclose(errors.se_sandwich, sandwich, rtol=1e-8, atol=0)
    assert np.allclose(errors.se, sandwich * np.sqrt(500 / 495), rtol=1e-8)


def test_dependent_columns_within_a_partner():
    a, b, y = _canonical([0.3, 0.6], "binomial")
    wide = np.column_stack([b, b[:, 0] - b[:, 1]])
    fam = family("binomial")
    found = fit_jointly(a, [wide], y, fam)
    errors = joint_intervals(found, a, [wide], y, fam, a[:3], [wide[:3]])
    _, sandwich = _oracle([a, b], y, found.eta, "binomial", [a[:3], b[:3]])
    assert np.allclose(errors.se_sandwich, sandwich, rtol=1e-8, atol=0)
    astray = joint_intervals(found, a, [wide], y, fam, a[:3], [wide[:3] + np.eye(3)[2]])
    assert set(astray.status) == {"shared"} and np.all(np.isnan(astray.se))


def test_directions_are_orthonormal_and_leading_first():
    a, b, y = _canonical([0.2, 0.5, 0.8], "binomial")
    found = fit_jointly(a, [b], y, family("binomial"), max_rank=0)
    s, w = textbook.score_weight("binomial", y, found.eta)
    solution = initiator_solution(textbook.with_constant(a), w, s, textbook.with_constant(a[:9]))
    centred = b - b.mean(axis=0)
    answer = partner_residual(centred, w, solution.weighted, centred[:9], most=2)
    g = (centred - w @ centred / w.sum()).T @ (w[:, None] * (centred - w @ centred / w.sum()))
    assert answer.directions.shape == (3, 2) and answer.rank == 3
    assert np.allclose(answer.directions.T @ g @ answer.directions, np.eye(2), atol=1e-10)
    r = (centred[:9] - (w @ centred / w.sum())).T - (
        centred - w @ centred / w.sum()
    ).T @ solution.weighted
    assert np.allclose(answer.rest, np.einsum("ij,ij->j", r, np.linalg.solve(g, r)))
    assert np.allclose(answer.relative, np.sqrt(answer.rest) / solution.se_model)


def test_what_is_enough_is_left_and_no_direction_more_is_asked_for():
    a, b, y = _canonical([0.9, 0.7, 0.5, 0.3, 0.2, 0.1], "normal")
    centred, w = b - b.mean(axis=0), np.ones(len(y))
    targets = np.random.default_rng(2).normal(size=(9, a.shape[1] + 1))
    solution = initiator_solution(textbook.with_constant(a), w, y - y.mean(), targets)
    given = (centred, w, solution.weighted, centred[:9])
    whole = partner_residual(*given)
    size, r = whole.relative / np.sqrt(whole.rest), centred[:9].T - centred.T @ solution.weighted
    gram = centred.T @ centred
    counts = []
    for enough in (0.3, 0.1, 1e-3):
        found = partner_residual(*given, enough=enough)
        d, counts = found.directions, [*counts, found.directions.shape[1]]
        for k, fine in ((d.shape[1], True), (d.shape[1] - 1, False)):
            # directions are orthonormal in G: what is left of G^-1 r off them
            left = np.linalg.solve(gram, r) - d[:, :k] @ (d[:, :k].T @ r)
            relative = size * np.sqrt(np.einsum("ij,ij->j", left, gram @ left))
            assert (relative <= enough * (1 + 1e-9)).all() == fine
    assert counts[0] < counts[2] <= whole.directions.shape[1] == 6
    # So small that the factor is what was asked for.
    rho, se = 0.8, np.ones(1)
    for accuracy in (0.02, 0.3):
        rest = enough_for(accuracy, rho) ** 2 * se
        assert bounded_factor(se, rest, rho) == pytest.approx(1 + accuracy)


def test_inflated_covers_the_model_based_error_and_not_the_sandwich():
    a, b, y = _canonical([0.8, 0.6], "normal")
    found = fit_jointly(a, [b], y, family("normal"), acceleration="none", n_rounds=30, tol=1e-12)
    s, w = textbook.score_weight("normal", y, found.eta)
    rho = contraction(found.changes)
    assert rho == pytest.approx(textbook.canonical_correlations(a, b, w)[0], abs=1e-3)
    rows = a[:50], -b[:50]
    model, _ = _oracle([a, b], y, found.eta, "normal", rows)
    centre = b.mean(axis=0)
    local_a, paper_a = local_errors(a, w, s, rows[0], constant=True)
    local_b, paper_b = local_errors(b - centre, w, s, rows[1] - centre, constant=False)
    assert np.all(inflated(local_a, local_b, rho + 1e-3) >= model)
    assert not np.all(np.sqrt(local_a + local_b) >= model)  # without the inflation it fails
    assert paper(paper_a, paper_b, 0.95) == pytest.approx(
        2.2414 * (np.sqrt(paper_a) + np.sqrt(paper_b)), rel=1e-4
    )
    with pytest.raises(ParameterError, match="at least 5"):
        contraction(found.changes[:4])
    with pytest.raises(ParameterError, match="rho"):
        inflated(local_a, local_b, 1.0)
    with pytest.raises(ParameterError, match="level"):
        paper(local_a, local_b, 1.0)


def test_factors_that_are_not_reported():
    assert np.isnan(bounded_factor(np.ones(1), np.ones(1), float("nan")))[0]
    assert np.isnan(bounded_factor(np.ones(1), np.ones(1), 0.9))[0]
    assert bounded_factor(np.ones(1), np.array([0.19]), 0.9)[0] == pytest.approx(np.sqrt(2))
    assert np.isnan(largest_correlation(np.zeros(0)))


def test_refusals():
    with pytest.raises(DataError, match="target"):
        initiator_solution(np.ones((5, 2)), np.ones(5), np.ones(5), np.ones((1, 3)))
    with pytest.raises(DataError, match="target"):
        partner_residual(np.ones((5, 2)), np.ones(5), np.ones((5, 2)), np.ones((1, 2)))

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from consilience.discriminant.kernels import joint_precision_block
from consilience.discriminant.kernels.joint_precision import onward
from consilience.discriminant.kernels.joint_precision_block import (
    Anderson,
    Point,
    Problem,
    Support,
    admm_burst,
    alternate,
    dual_value,
    evaluate,
    gradient,
    inverse_of,
    is_small,
    off_diagonal,
    reach_of,
    solve_block,
    solve_compiled,
    solve_general,
)
from consilience.discriminant.kernels.joint_precision_kernels import (
    factorise,
    group_prox,
    invert,
    sweeps,
)
from consilience.numerics.random import stream
from tests.reference import joint_precision as textbook


def positive(rng: np.random.Generator, classes: int, q: int) -> np.ndarray:
    x = rng.standard_normal((classes, 3 * q, q))
    return np.einsum("kni,knj->kij", x, x) / (3 * q)


@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("spread", [0.0, 3.0, 8.0])
def test_group_prox_is_stationary(classes: int, spread: float) -> None:
    """``a z - b + lam z / |z| = 0``, and zero exactly where ``|b| <= lam``."""
    rng = stream(classes, "prox", int(spread))
    z = np.zeros(classes)
    for _ in range(200):
        a = np.exp(spread * rng.uniform(-1, 1, classes))
        b = np.exp(spread * rng.uniform(-1, 1)) * rng.standard_normal(classes)
        lam = np.exp(spread * rng.uniform(-1, 1)) * rng.uniform(0, 2)
        group_prox(a, b, lam, z)
        if np.linalg.norm(b) <= lam:
            assert (z == 0).all()
        else:
            residual = a * z - b + lam * z / np.linalg.norm(z)
            assert np.abs(residual).max() <= 1e-10 * np.linalg.norm(b)


def test_group_prox_minimises() -> None:
    a, b, lam, z = np.array([1.0, 5.0, 0.2]), np.array([2.0, -1.0, 0.7]), 0.8, np.zeros(3)
    group_prox(a, b, lam, z)
    found = minimize(
        lambda v: a @ v**2 / 2 - b @ v + lam * np.linalg.norm(v), np.ones(3), tol=1e-12
    )
    np.testing.assert_allclose(z, found.x, atol=1e-5)


def test_factors_and_inverses() -> None:
    matrix = positive(stream(0, "factor"), 1, 9)[0]
    lower, inverse = np.zeros((9, 9)), np.zeros((9, 9))
    assert factorise(matrix, lower) == pytest.approx(np.linalg.slogdet(matrix)[1])
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), atol=1e-13)
    invert(lower, inverse)
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-10)
    assert np.isnan(factorise(matrix - 5 * np.eye(9), lower))


def test_sweeps_minimise_the_quadratic_model() -> None:
    """Many sweeps on some pairs against a general minimiser of the model over the same pairs."""
    rng = stream(1, "sweeps")
    classes, q, lam = 2, 5, 3.0
    n = np.array([10.0, 25.0])
    w, t = positive(rng, classes, q), positive(rng, classes, q)
    g = 5 * positive(rng, classes, q)
    free = rng.random((q, q)) < 0.6
    free = free | free.T | np.eye(q, dtype=bool)
    rows, columns = np.nonzero(free)
    d = np.zeros((classes, q, q))
    start = np.searchsorted(rows, np.arange(q + 1))
    sweeps(g, w, t, n, lam, start, columns, 2000, 1, 0.0, d)
    i, j = np.nonzero(np.triu(free))

    def expand(v: np.ndarray) -> np.ndarray:
        out = np.zeros((classes, q, q))
        out[:, i, j] = out[:, j, i] = v.reshape(classes, -1)
        return out

    def model(v: np.ndarray) -> float:
        e = expand(v)
        norms = np.sqrt(((t + e) ** 2).sum(axis=0))
        curve = sum(n[k] * np.trace(w[k] @ e[k] @ w[k] @ e[k]) / 2 for k in range(classes))
        return float((g * e).sum() + curve + lam * (norms.sum() - np.trace(norms)))

    found = minimize(model, np.zeros(classes * len(i)), tol=1e-10, options={"maxiter": 5000})
    assert model(d[:, i, j].ravel()) <= found.fun + 1e-9 * abs(found.fun)
    assert (d[:, ~free] == 0).all()


def newton_setting() -> tuple[Problem, Support]:
    rng = stream(2, "newton")
    problem = Problem(positive(rng, 3, 8), np.array([20.0, 35.0, 9.0]), 2.0)
    t = positive(rng, 3, 8)
    gone = np.triu(rng.random((8, 8)) < 0.4, 1)
    t[:, gone | gone.T] = 0.0
    t[:, np.arange(8), np.arange(8)] += 1.0
    point = evaluate(problem, t)
    if point is None:
        raise ValueError("the start is not positive definite")
    return problem, Support(problem, point, gradient(problem, point))


def test_newton_by_elimination_and_by_conjugate_gradients_agree() -> None:
    _, support = newton_setting()
    direct = support.eliminate()
    iterated, steps = support.solve(1e-24, 0.0, 500)
    np.testing.assert_allclose(iterated, direct, atol=1e-9)
    assert steps < 200
    # The equations hold on the support.
    np.testing.assert_allclose(support.hessian(iterated), support.residual, atol=1e-8)


def test_gradient_and_curvature_are_derivatives() -> None:
    problem, support = newton_setting()
    rng = stream(3, "direction")
    d = positive(rng, 3, 8) * support.mask
    step = 1e-4
    values = []
    for sign in (-1, 0, 1):
        point = evaluate(problem, support.point.t + sign * step * d)
        values.append(np.nan if point is None else point.objective)
    slope = (values[2] - values[0]) / (2 * step)
    curve = (values[2] - 2 * values[1] + values[0]) / step**2
    assert slope == pytest.approx(-np.vdot(support.residual, d), rel=1e-5)
    assert curve == pytest.approx(np.vdot(d, support.hessian(d)), rel=1e-4)


def test_dual_value_is_below_every_value() -> None:
    problem, support = newton_setting()
    rng = stream(4, "points")
    values, bounds = [], []
    for scale in (0.0, 0.05, 0.2):
        noise = rng.standard_normal((3, 8, 8)) * scale
        point = evaluate(problem, support.point.t + noise + noise.transpose(0, 2, 1))
        if point is not None:
            values.append(point.objective)
            bounds.append(dual_value(problem, point))
    assert len(values) >= 2
    assert max(bounds) < min(values)


def test_alternating_directions_reach_the_same_minimum() -> None:
    problem, support = newton_setting()
    best = solve_block(problem, support.point.t, tol=1e-13, max_iter=100)
    point = admm_burst(problem, support.point, 2000)
    assert best.dual - 1e-9 <= point.objective <= best.objective + 1e-7 * problem.scale
    np.testing.assert_allclose(point.t, best.t, atol=1e-3)
    assert admm_burst(problem, point, 1).objective <= point.objective


def test_alternating_directions_help_where_newton_is_slow() -> None:
    """Ten rows for 30 features and a small penalty: precision matrices are nearly singular."""
    rng = stream(5, "hard")
    x = rng.standard_normal((3, 10, 30)) @ (np.eye(30) + 0.3 * rng.standard_normal((30, 30)))
    x -= x.mean(axis=1, keepdims=True)
    problem = Problem(np.einsum("kni,knj->kij", x, x) / 10, np.full(3, 10.0), 0.1)
    start = np.stack([np.diag(1 / np.diag(m)) for m in problem.s])
    found = solve_general(problem, start, tol=1e-8, max_iter=100)
    assert found.gap <= 1e-8 * problem.scale
    assert found.solvers["admm"] > 0


def dense_block(q: int) -> Problem:
    """Mixtures of 48 rows a class, at a penalty that links nearly all pairs."""
    rng = stream(6, "dense", q)
    x = rng.standard_normal((4, 48, q)) @ (np.eye(q) + 0.4 * rng.standard_normal((4, q, q)))
    x -= x.mean(axis=1, keepdims=True)
    return Problem(np.einsum("kni,knj->kij", x, x) / 48, np.full(4, 48.0), 0.5)


@pytest.mark.parametrize("q", [6, 10, 16])
def test_small_blocks_with_many_links_are_not_left_to_coordinate_descent(q: int) -> None:
    """The compiled loop took all of a path of such blocks, ten times as long."""
    problem = dense_block(q)
    start = np.stack([np.diag(1 / np.diag(m)) for m in problem.s])
    cold = solve_block(problem, start, tol=1e-8, max_iter=100)
    assert cold.gap <= 1e-8 * problem.scale
    assert "small" not in cold.solvers and cold.solvers["newton"] > 0  # handed over
    point = evaluate(problem, cold.t)
    assert point is not None and np.count_nonzero(point.norms) > 0.9 * q * q
    assert not is_small(point)
    warm = solve_block(Problem(problem.s, problem.n, 0.35), cold.t, tol=1e-8, max_iter=100)
    assert warm.gap <= 1e-8 * problem.scale and "small" not in warm.solvers


def test_small_blocks_with_few_links_stay_in_the_compiled_loop() -> None:
    problem = dense_block(10)
    norms = np.linalg.norm(problem.n[:, None, None] * problem.s, axis=0)
    sparse = Problem(problem.s, problem.n, 0.8 * np.triu(norms, 1).max())
    start = np.stack([np.diag(1 / np.diag(m)) for m in sparse.s])
    found = solve_block(sparse, start, tol=1e-8, max_iter=100)
    assert list(found.solvers) == ["small"] and found.gap <= 1e-8 * sparse.scale
    general = solve_general(sparse, start, tol=1e-8, max_iter=100)
    assert found.objective == pytest.approx(general.objective, abs=1e-8 * sparse.scale)
    early = solve_compiled(problem, start, tol=1e-8, max_iter=5)  # what is handed over
    assert early.gap > 1e-8 * problem.scale
    best = solve_general(problem, early.t, tol=1e-8, max_iter=100)
    assert early.dual <= best.objective <= early.objective


def dense_start(q: int) -> tuple[Problem, np.ndarray, np.ndarray]:
    problem = dense_block(q)
    # Other units: alternating directions take those of unit pooled variance.
    units = np.linspace(0.5, 3.0, q)
    problem = Problem(problem.s * np.outer(units, units), problem.n, 1.5)
    # As along a path, from the solution at a larger penalty.
    before = Problem(problem.s, problem.n, 2.0)
    cold = np.stack([np.diag(1 / np.diag(m)) for m in problem.s])
    start = solve_general(before, cold, tol=1e-9, max_iter=100).t
    return problem, start, off_diagonal(problem, np.linalg.inv(start))


def test_alternating_directions_are_those_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without acceleration, in units of unit pooled variance, where ``rho`` is the same."""
    monkeypatch.setattr(Anderson, "next", lambda self, residual, value: value.copy())
    problem = dense_block(8)
    sd = np.sqrt(np.diagonal(problem.s, axis1=1, axis2=2).mean(axis=0))
    problem = Problem(problem.s / np.outer(sd, sd), problem.n, problem.lam)
    start = np.stack([np.diag(1 / np.diag(m)) for m in problem.s])
    point = evaluate(problem, start)
    assert point is not None
    w = np.log(np.diagonal(problem.s, axis1=1, axis2=2)).mean()
    rho = joint_precision_block.REACH * 48 * np.exp(2 * w)  # nothing is linked at the start
    gamma = off_diagonal(problem, np.linalg.inv(start))
    # Its groups are on the sphere, so that the first shrinkage gives back the start.
    norms = np.sqrt((gamma**2).sum(axis=0))
    gamma *= problem.lam / np.where(norms > 0, norms, 1.0)
    all_z, all_gamma = textbook.alternating_directions(
        problem.s,
        problem.n,
        problem.lam,
        start,
        gamma,
        rho,
        over=joint_precision_block.OVER,
        steps=6,
    )
    for steps in (2, 5, 7):
        found = alternate(problem, point, start, gamma, target=-np.inf, most=steps)
        np.testing.assert_allclose(found.gamma, all_gamma[steps - 2], atol=1e-9 * 48)
        if found.point is not None and np.linalg.eigvalsh(all_z[steps - 2]).min() > 0:
            np.testing.assert_allclose(found.point.t, all_z[steps - 2], atol=1e-10)


def test_anderson_is_that_of_the_textbook() -> None:
    rng = stream(8, "anderson")
    a = np.diag(rng.uniform(0.2, 0.9, 20)) + 0.02 * rng.standard_normal((20, 20))
    b = rng.standard_normal(20)
    past, states, values = Anderson(20), [np.zeros(20)], []
    for step in range(9):
        values.append(a @ states[-1] + b)
        found = past.next(values[-1] - states[-1], values[-1])
        wanted = (
            textbook.anderson(states, values, joint_precision_block.MEMORY) if step else values[-1]
        )
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        states.append(wanted)
    # Far nearer to the fixed point than as many plain steps.
    fixed, plain = np.linalg.solve(np.eye(20) - a, b), np.zeros(20)
    for _ in range(9):
        plain = a @ plain + b
    assert np.linalg.norm(states[-1] - fixed) < 0.1 * np.linalg.norm(plain - fixed)
    same = Anderson(20)
    for _ in range(3):  # at the fixed point nothing moves, and nothing is divided by it
        np.testing.assert_array_equal(same.next(np.zeros(20), fixed), fixed)


def test_the_reach_is_half_of_the_way_to_the_least_bound() -> None:
    """``rho moved^2 + gamma_moved^2 / rho`` is least at ``base`` times the second of the ratios."""
    base = 40.0
    for moved, gamma_moved in ((0.3, 20.0), (2.0, 800.0), (1e-3, 0.2)):
        rhos = base * np.geomspace(1e-3, 1e3, 6001)
        least = rhos[np.argmin(rhos * moved**2 + gamma_moved**2 / rhos)] / base
        found = reach_of(moved, gamma_moved, base)
        assert found == pytest.approx(np.sqrt(joint_precision_block.REACH * least), rel=2e-3)
    low, high = joint_precision_block.REACHES
    assert reach_of(1.0, 1e-9, base) == low and reach_of(1e-9, 1.0, base) == high
    assert reach_of(0.0, 1.0, base) == reach_of(1.0, 0.0, base) == joint_precision_block.REACH


def test_a_start_goes_on_along_a_line_and_half_a_parabola() -> None:
    line, bend = np.array([[1.0, -2.0]]), np.array([[0.5, 3.0]])
    at = np.array([0.1, 0.4, 0.7, 1.0])

    def ahead(values: list[np.ndarray], places: np.ndarray = at) -> np.ndarray:
        return onward(places, values)

    straight = [3 + line * x for x in at]
    np.testing.assert_allclose(ahead(straight[1:2]), straight[1])
    for last in (3, 4):
        np.testing.assert_allclose(ahead(straight[1:last]), straight[0])
    curved = [3 + line * x + bend * x**2 for x in at]
    off = [ahead(curved[1:last]) - curved[0] for last in (3, 4)]
    np.testing.assert_allclose(off[0], -2 * bend * 0.3**2)
    np.testing.assert_allclose(off[1], 0.5 * off[0])
    # Never farther than the last step was: a long way is not foreseen.
    far = np.array([-2.0, *at[1:]])
    np.testing.assert_allclose(ahead(straight[1:], far), straight[0])


def test_the_gap_is_computed_late_but_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps go the same way; they end at most a few after the first that is near enough."""
    problem, start, gamma = dense_start(24)
    point = evaluate(problem, start)
    assert point is not None
    asked: list[int] = []

    def counted(problem: Problem, t: np.ndarray) -> Point | None:
        asked.append(1)
        return evaluate(problem, t)

    monkeypatch.setattr(joint_precision_block, "evaluate", counted)
    counts = {}
    for near in (joint_precision_block.NEAR_TARGET, np.inf):
        monkeypatch.setattr(joint_precision_block, "NEAR_TARGET", near)
        for tol in (1e-5, 1e-8):
            asked.clear()
            target = tol * problem.scale
            done = alternate(problem, point, start, gamma, target=target, most=500)
            assert done.point is not None and done.point.objective - done.dual <= target
            counts[near, tol] = done.n_steps, len(asked)
    often = counts[np.inf, 1e-8]
    assert often[0] == often[1]
    for tol in (1e-5, 1e-8):
        steps, checks = counts[min(near for near, _ in counts), tol]
        assert 0 <= steps - counts[np.inf, tol][0] <= 4
        assert checks <= 0.7 * counts[np.inf, tol][1]


@pytest.mark.parametrize("q", [6, 12, 24])
def test_alternating_directions_are_bounded_at_every_step(q: int) -> None:
    problem, start, gamma = dense_start(q)
    point = evaluate(problem, start)
    assert point is not None
    best = solve_general(problem, start, tol=1e-11, max_iter=100)
    assert best.gap <= 1e-11 * problem.scale
    open_gaps = 0
    for most in (1, 4, 8, 12):
        found = alternate(problem, point, start, gamma, target=0.0, most=most)
        assert found.dual <= best.objective + 1e-9
        if found.point is not None:
            assert found.point.objective >= best.dual - 1e-9
            open_gaps += found.point.objective - found.dual > 1e-6 * problem.scale
    assert open_gaps >= 1
    target = 1e-9 * problem.scale
    done = alternate(problem, point, start, gamma, target=target, most=500)
    assert done.point is not None and done.point.objective - done.dual <= target
    assert abs(done.point.objective - best.objective) <= target + best.gap
    np.testing.assert_allclose(done.point.t, best.t, atol=1e-3 * np.abs(best.t).max())
    # What it returns as Gamma is that of the optimum: of norm lam on the support, n_k (W_k - S_k).
    norms = np.sqrt((done.gamma**2).sum(axis=0))
    linked = done.point.norms * (1 - np.eye(q)) > 0
    assert norms.max() <= problem.lam * (1 + 1e-9)
    np.testing.assert_allclose(norms[linked], problem.lam, rtol=1e-9)
    gamma = off_diagonal(problem, inverse_of(done.point))
    np.testing.assert_allclose(done.gamma, gamma, atol=0.05 * problem.lam)

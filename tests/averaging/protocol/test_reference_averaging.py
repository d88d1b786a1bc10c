"""Reference averaging as a method: the textbook's numbers, fixed points, absence, choice, doors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import (
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from consilience import Columns, Federation, Run, load_run
from consilience.averaging.protocol import ReferenceAveraging
from consilience.averaging.protocol.messages import Settings
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.engines.local import LocalEngine
from consilience.exceptions import StudyError
from consilience.numerics.random import stream
from consilience.protocol.method import Preparation
from consilience.testing.fakes import members, scripted, with_fixed_secrets
from consilience.wire.envelope import Request
from tests.granted import granted
from tests.reference import reference_averaging as textbook

Array = NDArray[np.float64]
Tables = dict[str, pd.DataFrame]
Script = Mapping[tuple[int, str], Any]
RIDGE = "ridge(alpha=3.0, fit_intercept=False)"
LOGISTIC = "logistic(C=0.5, fit_intercept=False, solver='newton-cholesky', tol=1e-12)"
BARE: dict[str, Any] = {"guard": False, "holdout": 0.0}


# --------------------------------------------------------------------------- designs


def draw(
    sizes: Sequence[int],
    p: int = 3,
    *,
    seed: int = 0,
    shift: float = 0.0,
    apart: float = 0.0,
    noise: float = 1.0,
) -> Tables:
    """Sites of a linear model; `shift` moves means and scales of x apart, `apart` the slopes."""
    rng = np.random.default_rng([6, seed])
    beta = rng.normal(size=p)
    tables = {}
    for i, n in enumerate(sizes):
        mix = np.eye(p) + shift * rng.normal(size=(p, p))
        x = rng.normal(size=(n, p)) @ mix + shift * rng.normal(size=p)
        y = x @ (beta + apart * rng.normal(size=p)) + noise * rng.normal(size=n)
        names = [*(f"x{j}" for j in range(p)), "y"]
        tables[f"s{i}"] = pd.DataFrame(np.column_stack([x, y]), columns=names)
    return tables


def classes(
    sizes: Sequence[int], p: int = 2, *, seed: int = 0, levels: str = "ab", **design: Any
) -> Tables:
    """The same with levels a, b, ... of the response, cut at quantiles of all sites."""
    tables = draw(sizes, p, seed=seed, **design)
    together = np.concatenate([t["y"] for t in tables.values()])
    edges = np.quantile(together, np.arange(1, len(levels)) / len(levels))
    for table in tables.values():
        table["y"] = np.array(list(levels))[np.searchsorted(edges, table["y"])]
    return tables


def curved(sizes: Sequence[int], seed: int = 0) -> Tables:
    """Sites that each see another stretch of a curve: averages of lines are not the pooled line."""
    rng = np.random.default_rng([7, seed])
    tables = {}
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, 2)) * 0.7 + np.array([2.0 * i - len(sizes) + 1.0, 0.0])
        y = x[:, 0] ** 2 + x[:, 1] + 0.5 * rng.normal(size=n)
        tables[f"s{i}"] = pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "y": y})
    return tables


def federation_over(
    tables: Tables,
    policy: Any = "simulation",
    *,
    levels: Sequence[str] = (),
    weight: str | None = None,
    declared: Mapping[str, Sequence[str]] | None = None,
    quorum: int | None = None,
    preparation: Any = None,
) -> Federation:
    """Sites with secrets that can be repeated."""
    named = [c for c in next(iter(tables.values())).columns if c not in ("y", weight)]
    known = {k: tuple(v) for k, v in (declared or {}).items()}
    known |= {"y": tuple(levels)} if levels else {}
    columns = Columns(features=tuple(named), target="y", weight=weight, levels=known)
    federation = Federation.local(
        tables, columns=columns, policy=granted(policy), quorum=quorum, preparation=preparation
    )
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return federation


def study(
    tables: Tables,
    policy: Any = "simulation",
    *,
    seed: int = 1,
    script: Script | None = None,
    follows: Any = None,
    out: Any = None,
    parameters: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Run over tables in memory; settings that a federation knows go there."""
    of_data = ("levels", "weight", "declared", "quorum", "preparation")
    data = {k: settings.pop(k) for k in of_data if k in settings}
    federation = federation_over(tables, policy, **data)
    if script is not None:
        federation = scripted(federation, script)
    given = {"estimator": RIDGE, **settings, **(parameters or {})}
    return ReferenceAveraging(**given).run(federation, seed=seed, out=out, follows=follows)


def test_an_estimator_that_scales_in_place_overwrites_no_rows() -> None:
    """Rows serve all rounds: they would be scaled again in each."""
    tables = curved([120, 110, 100])
    for table in tables.values():
        table["z"] = 0.0  # too few ones: a copy of the columns, in which it is constant
        table.loc[:2, "z"] = 1.0
    grid = tables["s0"][["x0", "x1", "z"]].to_numpy()
    found = [
        study(tables, "strict", estimator=made, max_rounds=3).result.to_estimator().predict(grid)
        for made in (make_pipeline(StandardScaler(copy=copy), Ridge()) for copy in (True, False))
    ]
    np.testing.assert_array_equal(*found)


def sites_of(tables: Tables) -> list[textbook.Site]:
    """Plain arrays; levels as their positions."""
    found = []
    for t in tables.values():
        y = t["y"]
        numbers = y.to_numpy(float) if y.dtype.kind in "if" else (y == "b").to_numpy(float)
        found.append((t.drop(columns="y").to_numpy(float), numbers))
    return found


def spread_rows(m: int, p: int, seed: int = 3) -> Array:
    return np.random.default_rng([8, seed]).normal(size=(m, p)) @ (
        np.eye(p) + 0.3 * np.random.default_rng([9, seed]).normal(size=(p, p))
    )


def rounds_of(run: Run, step: str = "fit") -> list[int]:
    """Rounds of the exchange in which a step was asked."""
    return sorted({line.round for line in run.transcript if line.step == step})


def ridge_coefficients(result: ReferenceAveragingResult) -> list[Array]:
    return [np.ravel(model["coef"]) for model in result.models]


def pooled(tables: Tables) -> tuple[Array, Array]:
    sites = sites_of(tables)
    return np.vstack([x for x, _ in sites]), np.concatenate([y for _, y in sites])


# --------------------------------------------------------------------------- the textbook


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_ridge_rounds_are_those_of_the_textbook(schedule: str) -> None:
    """Every site's coefficients after each number of rounds, and the weight of the rounds."""
    tables, a = draw([31, 47, 80], shift=0.4), spread_rows(11, 3)
    sites = sites_of(tables)
    n = sum(len(y) for _, y in sites)
    for k in (0, 1, 4):
        run = study(tables, reference=a, schedule=schedule, max_rounds=k, rho=0.7, **BARE)
        result = run.result
        squares = [textbook.second_moment(x).trace() * len(x) / n for x, _ in sites]
        scale = sum(squares) / textbook.second_moment(a).trace()
        power = 0.0 if schedule == "fixed" else 0.9
        rhos = [scale * 0.7 * j**power for j in range(1, k + 1)]
        np.testing.assert_allclose(result.rhos, [0.0, *rhos], rtol=1e-12)
        averages, fits = textbook.ridge_rounds(sites, a, 3.0 / n, rhos)
        np.testing.assert_allclose(result.slopes[0], averages[-1], rtol=1e-8, atol=1e-10)
        for ours, theirs in zip(ridge_coefficients(result), fits[-1], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
        assert result.reason == "not-measured"
        at = [a @ average for average in averages]
        moved = [0.0] + [np.linalg.norm(v - u) / np.linalg.norm(u) for u, v in pairwise(at)]
        np.testing.assert_allclose(result.movement[0], moved, rtol=1e-6, atol=1e-12)
        pulls = [
            w * np.linalg.norm(a @ (f - averages[-1])) / np.linalg.norm(at[-1])
            for w, f in zip(textbook.shares(sites), fits[-1], strict=True)
        ]
        np.testing.assert_allclose(result.influence[0, -1], pulls, rtol=1e-6)


def test_logistic_rounds_are_those_of_the_textbook() -> None:
    tables, a = classes([40, 60, 50], shift=0.3), spread_rows(9, 2)
    sites = sites_of(tables)
    n = sum(len(y) for _, y in sites)
    run = study(tables, estimator=LOGISTIC, reference=a, levels="ab", max_rounds=3, **BARE)
    rhos = run.result.rhos[1:].tolist()
    chances, averages = textbook.logistic_rounds(sites, a, rhos, 1 / (0.5 * n))
    np.testing.assert_allclose(run.result.slopes[0], averages[-1], rtol=1e-8, atol=1e-8)
    mine = run.result.to_estimator().predict_proba(a)[:, 1]
    np.testing.assert_allclose(mine, chances[-1], rtol=1e-8, atol=1e-8)
    # Averages of probabilities, not probabilities of averages: the two differ here.
    other = textbook.probabilities(a, averages[-1])
    assert np.abs(other - chances[-1]).max() > 1e-5


def held_out(run: Run, tables: Tables, holdout: float) -> list[NDArray[np.int64]]:
    """Rows that the sites held out, by the streams that they drew from."""
    (round_,) = rounds_of(run, "offer")
    found = []
    for name, table in tables.items():
        rng = stream(run.info.seed, "site", name, round_, "offer")
        seed = int(rng.integers(2**63 - 1))
        order = stream(seed, "held out").permutation(len(table))
        found.append(np.sort(order[: int(holdout * len(table))]))
    return found


def slow_gains(
    sites: list[textbook.Site], held: list[NDArray[np.int64]], a: Array, alpha: float, rhos: Any
) -> tuple[float, Array, Array]:
    """Held-out squared loss of the average of each round: that of averaging, gains, errors."""
    n = sum(len(y) for _, y in sites)
    kept = [
        (np.delete(x, h, axis=0), np.delete(y, h)) for (x, y), h in zip(sites, held, strict=True)
    ]
    averages, _ = textbook.ridge_rounds(kept, a, alpha / n, list(rhos))
    losses = [
        [(y[h] - x[h] @ average) ** 2 for average in averages]
        for (x, y), h in zip(sites, held, strict=True)
    ]
    total = sum(len(h) for h in held)
    base = sum(each[0].sum() for each in losses) / total
    gains = [sum((e[k] - e[0]).sum() for e in losses) / total for k in range(len(averages))]
    variances = [
        sum(((d := e[k] - e[0]) - d.mean()) @ (d - d.mean()) for e in losses) / total**2
        for k in range(len(averages))
    ]
    return base, np.array(gains), np.sqrt(variances)


def test_held_out_losses_are_those_of_the_textbook() -> None:
    tables, a = draw([60, 75, 90], shift=0.6, noise=2.0), spread_rows(12, 3)
    sites = sites_of(tables)
    run = study(tables, reference=a, max_rounds=5, patience=5, holdout=0.3)
    result = run.result
    held = held_out(run, tables, 0.3)
    assert result.held.tolist() == [len(h) for h in held]
    base, gains, errors = slow_gains(sites, held, a, 3.0, result.rhos[1:])
    np.testing.assert_allclose(result.gains[0], gains, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result.gain_errors[0], errors, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result.base_loss[0], base, rtol=1e-9)
    # What is returned is fitted on all rows.
    n = sum(len(y) for _, y in sites)
    rhos = result.rhos[1 : result.chosen_round + 1].tolist()
    averages, _ = textbook.ridge_rounds(sites, a, 3.0 / n, rhos)
    np.testing.assert_allclose(result.slopes[0], averages[-1], rtol=1e-8)
    best = int(np.argmin(gains))
    expected = best if gains[best] + errors[best] < 0 else 0
    assert result.chosen_round == expected


def test_losses_of_a_site_are_those_of_its_own_rows() -> None:
    tables, a = draw([70, 90], shift=0.6, apart=0.3), spread_rows(12, 3)
    run = study(tables, reference=a, max_rounds=3, holdout=0.25)
    result = run.result
    sites, n = sites_of(tables), 160
    held = held_out(run, tables, 0.25)
    kept = [(np.delete(x, h, 0), np.delete(y, h)) for (x, y), h in zip(sites, held, strict=True)]
    rhos = result.rhos[1 : result.chosen_round + 1].tolist()
    averages, fits = textbook.ridge_rounds(kept, a, 3.0 / n, rhos)
    for b, ((x, y), h) in enumerate(zip(sites, held, strict=True)):
        ways = [(y[h] - x[h] @ f) ** 2 for f in (fits[0][b], averages[0], averages[-1])]
        np.testing.assert_allclose(result.local_losses[b], [w.mean() for w in ways], rtol=1e-8)
        for j in range(2):
            d = ways[j] - ways[2]
            np.testing.assert_allclose(result.local_differences[b, j], d.mean(), atol=1e-10)
            error = np.sqrt(((d - d.mean()) ** 2).sum()) / len(d)
            np.testing.assert_allclose(result.local_errors[b, j], error, atol=1e-9)


def test_penalty_and_round_are_those_of_a_slow_loop() -> None:
    tables, a = draw([45, 60, 50], p=8, shift=0.3, noise=4.0), spread_rows(40, 8)
    grid = (0.01, 10.0, 100.0, 3000.0)
    sites = sites_of(tables)
    run = study(
        tables,
        reference=a,
        penalties=grid,
        max_rounds=4,
        patience=4,
        holdout=0.4,
    )
    result = run.result
    held = held_out(run, tables, 0.4)
    found = [slow_gains(sites, held, a, alpha, result.rhos[1:]) for alpha in grid]
    total = np.array([base + gains for base, gains, _ in found])
    np.testing.assert_allclose(result.base_loss, [base for base, _, _ in found], rtol=1e-8)
    np.testing.assert_allclose(result.gains, [gains for _, gains, _ in found], atol=1e-8)
    track, best = np.unravel_index(int(np.argmin(total)), total.shape)
    gain, error = found[track][1][best], found[track][2][best]
    if not (best > 0 and gain + error < 0 and total[track, best] < total[:, 0].min()):
        track, best = int(np.argmin(total[:, 0])), 0
    assert (result.chosen_track, result.chosen_round) == (track, best)
    assert 0 < track < 3, "a grid whose end is best would not tell a choice from none"
    assert str(grid[track])[:2] in result.summary()


# --------------------------------------------------------------------------- where rounds end


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", ["fixed", "asynchronous"])
def test_fixed_weights_end_at_the_closed_form(schedule: str, seed: int) -> None:
    """Random unequal sites; the asynchronous schedule with a weight that does not grow."""
    rng = np.random.default_rng([21, seed])
    p = int(rng.integers(2, 5))
    tables = draw(
        rng.integers(p + 3, 60, size=int(rng.integers(2, 5))).tolist(),
        p,
        seed=seed,
        shift=0.5,
        apart=0.5,
    )
    a, sites = spread_rows(3 * p, p, seed), sites_of(tables)
    n = sum(len(y) for _, y in sites)
    settings: dict[str, Any] = {"exponent": 0.0} if schedule == "asynchronous" else {}
    settings |= {"estimator": "ridge(alpha=60.0, fit_intercept=False)", "rho": 0.1}
    run = study(tables, reference=a, schedule=schedule, max_rounds=40, **settings, **BARE)
    rho = float(run.result.rhos[-1])
    closed = textbook.ridge_fixed_point(sites, a, rho, 60.0 / n)
    np.testing.assert_allclose(run.result.slopes[0], closed, rtol=1e-8, atol=1e-8)
    # It is neither averaging nor the fit of all rows: a wrong end would be seen.
    for other in (textbook.ridge_average(sites, 60.0 / n), textbook.ridge_global(sites, 60.0 / n)):
        assert np.abs(closed - other).max() > 1e-4


class Slow(LocalEngine):
    """One site needs so many times as long as the others."""

    slow, factor = "s0", 12.0

    def _arrival_time(self, request: Request) -> float:
        before = self._clock.get((request.run, request.site), 0.0)
        time = super()._arrival_time(request)
        if request.site == self.slow:
            time = before + self.factor * (time - before)
            self._clock[(request.run, request.site)] = time
        return time


def asynchronous(tables: Tables, engine: type[LocalEngine], **settings: Any) -> Run:
    federation = federation_over(tables)
    slowed = dataclasses.replace(federation, engine=engine(members(federation).values()))
    given = {"estimator": RIDGE, "schedule": "asynchronous", **settings}
    return ReferenceAveraging(**given).run(slowed, seed=1)


@pytest.mark.parametrize("engine", [LocalEngine, Slow])
def test_asynchronous_rounds_tend_to_the_fit_of_all_rows(engine: type[LocalEngine]) -> None:
    """Also where one site is twelve times as slow: its rows count no less."""
    tables, a = draw([60, 40, 50], shift=0.5, apart=0.6), spread_rows(30, 3)
    sites = sites_of(tables)
    goal = textbook.ridge_global(sites, 3.0 / 150)
    run = asynchronous(tables, engine, reference=a, max_rounds=80, rho=0.3, **BARE)
    rhos = run.result.rhos[1:].tolist()
    averages, _ = textbook.ridge_rounds(sites, a, 3.0 / 150, rhos)
    start, synchronous = (np.linalg.norm(averages[k] - goal) for k in (0, -1))
    away = np.linalg.norm(run.result.slopes[0] - goal)
    assert away < 0.5 * start
    # As close as rounds in step come, or nearly so where one site answers once in four rounds.
    assert away < (3.0 if engine is Slow else 1.3) * synchronous, (away, synchronous, start)
    who = run.result.contributed[1:].mean(axis=0)
    if engine is Slow:
        assert who[0] < 0.4 < 0.7 < who[1:].min()


class Together(LocalEngine):
    """All replies that are ready come at once, as from a shared folder."""

    def collect(self, keys: Any, *, wait: str, deadline: float) -> Any:
        return super().collect(keys, wait="all", deadline=deadline)


@pytest.mark.parametrize("guard", [True, False])
def test_asynchronous_replies_that_come_together(guard: bool) -> None:
    tables = draw([60, 40, 50], shift=0.5, apart=0.6)
    result = asynchronous(tables, Together, max_rounds=5, guard=guard).result
    assert result.n_rounds == 5
    assert result.contributed.all()
    if guard:
        assert np.isfinite(result.gains[0, -1])


def test_asynchronous_rounds_one_by_one() -> None:
    """The average moves with each reply, in the order of the transcript."""
    tables, a = draw([30, 45, 25], shift=0.5, apart=0.5), spread_rows(10, 3)
    sites = sites_of(tables)
    run = study(tables, reference=a, schedule="asynchronous", max_rounds=4, rho=0.6, **BARE)
    lam, w = 3.0 / 100, textbook.shares(sites)
    betas = [textbook.ridge(x, y, lam) for x, y in sites]
    first = min(rounds_of(run))
    lines = [r for r in run.transcript if r.step == "fit" and r.round > first]
    asked: dict[tuple[str, int], Array] = {}
    rhos: dict[tuple[str, int], float] = {}
    average, answered = textbook.mean_coefficients(sites, betas), 0
    # The weight of a turn is set when it is asked, by the replies that there are so far.
    scale = float(run.result.rhos[1]) / 0.6
    seen: set[tuple[str, str, int]] = set()
    for line in lines:
        key, kind = (line.site, line.round), (line.direction, line.site, line.round)
        if kind in seen:
            continue
        seen.add(kind)
        b = int(line.site[1:])
        if line.direction in ("ask", "out", "to-site", "request"):
            asked[key] = average.copy()
            rhos[key] = scale * 0.6 * (1 + answered / 3) ** 0.9
        else:
            new = textbook.ridge_refit(sites[b], a, a @ asked[key], rhos[key], lam)
            average = average + w[b] * (new - betas[b])
            betas[b] = new
            answered += 1
    assert answered == 12
    np.testing.assert_allclose(run.result.slopes[0], average, rtol=1e-8, atol=1e-10)


def test_no_rounds_are_plain_averaging() -> None:
    tables = draw([30, 60], shift=0.5)
    sites = sites_of(tables)
    expected = textbook.ridge_average(sites, 3.0 / 90)
    for settings in (BARE, {}, {"schedule": "asynchronous"}):
        result = study(tables, max_rounds=0, **settings).result
        np.testing.assert_allclose(result.slopes[0], expected, rtol=1e-10)
        assert (result.chosen_round, result.kept) == (0, False)
        assert result.n_rounds == 0 and result.contributed.shape == (1, 2)
        assert "Averaging is returned" in result.summary()
        assert len(result.to_frame()) == 1


def test_penalties_mean_what_they_mean_for_all_rows() -> None:
    """With many rounds the lasso of the pooled table, whatever the sizes of the sites."""
    tables = draw([40, 90, 150], p=5, shift=0.2, noise=2.0)
    x, y = pooled(tables)
    for learner in (Lasso(0.3, tol=1e-12), Ridge(80.0), PoissonRegressor(alpha=0.5, tol=1e-9)):
        given = tables
        if isinstance(learner, PoissonRegressor):
            given = {s: t.assign(y=np.round(np.exp(t["y"] / 8))) for s, t in tables.items()}
            x, y = pooled(given)
        goal = learner.fit(x, y).predict(x)
        start, end = (
            study(given, estimator=learner, max_rounds=k, **BARE).result.to_estimator().predict(x)
            for k in (0, 60)
        )
        away = np.linalg.norm(end - goal)
        assert away < 0.1 * np.linalg.norm(start - goal), type(learner).__name__


# --------------------------------------------------------------------------- who takes part


def masked_rounds(
    sites: list[textbook.Site], a: Array, lam: float, rhos: Sequence[float], present: Any
) -> tuple[Array, list[Array | None]]:
    """Rounds in which only some sites answer; who never answered is not in the average."""
    betas: list[Array | None] = [None] * len(sites)
    average = np.zeros(a.shape[1])
    for k, who in enumerate(present):
        for b in who:
            x, y = sites[b]
            target = a @ average
            betas[b] = (
                textbook.ridge(x, y, lam)
                if k == 0
                else textbook.ridge_refit((x, y), a, target, rhos[k - 1], lam)
            )
        known = [b for b, beta in enumerate(betas) if beta is not None]
        total = sum(len(sites[b][1]) for b in known)
        average = sum(len(sites[b][1]) / total * betas[b] for b in known)  # type: ignore[operator]
    return average, betas


@pytest.mark.parametrize("how", ["returns", "late"])
@pytest.mark.parametrize("missed", [(0,), (2,), (1, 2), (0, 1, 3)])
def test_a_site_that_misses_rounds_keeps_its_last_predictions(
    how: str, missed: tuple[int, ...]
) -> None:
    tables, a = draw([40, 55, 30], shift=0.4, apart=0.4), spread_rows(10, 3)
    sites = sites_of(tables)
    settings = {"reference": a, "max_rounds": 3, **BARE}
    fits = rounds_of(study(tables, **settings))
    script = {(fits[k], "s1"): how for k in missed}
    result = study(tables, quorum=2, script=script, **settings).result
    present = [[b for b in range(3) if not (b == 1 and k in missed)] for k in range(4)]
    assert [np.flatnonzero(row).tolist() for row in result.contributed] == present
    average, betas = masked_rounds(sites, a, 3.0 / 125, result.rhos[1:].tolist(), present)
    np.testing.assert_allclose(result.slopes[0], average, rtol=1e-8, atol=1e-10)
    assert result.owners == ("s0", "s1", "s2")
    for ours, theirs in zip(ridge_coefficients(result), betas, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    assert np.isnan(result.influence[0, 0]).tolist() == [False, 0 in missed, False]


def test_a_site_that_never_fits_has_no_model_in_the_average() -> None:
    tables, a = draw([40, 55, 30], shift=0.4), spread_rows(10, 3)
    fits = rounds_of(study(tables, reference=a, max_rounds=2, **BARE))
    run = study(
        tables,
        reference=a,
        max_rounds=2,
        quorum=2,
        script={(fits[0], "s1"): "absent"},
        **BARE,
    )
    result = run.result
    assert result.owners == ("s0", "s2")
    np.testing.assert_allclose(result.shares, [4 / 7, 3 / 7])
    assert "no model of s1" in result.summary()
    assert not result.contributed[:, 1].any()


def test_a_site_that_is_gone_at_the_end_is_said() -> None:
    tables, a = draw([40, 55, 30], shift=0.4), spread_rows(10, 3)
    plain = study(tables, reference=a, max_rounds=2, **BARE)
    (last,) = rounds_of(plain, "conclude")
    run = study(
        tables, reference=a, max_rounds=2, quorum=2, script={(last, "s2"): "refused"}, **BARE
    )
    assert run.result.owners == ("s0", "s1")
    assert run.result.contributed.all()
    assert "no model of s2" in run.result.summary()
    assert len(run.site("s0").predictor.models) == 2


def test_a_site_that_misses_the_offer_is_left_out() -> None:
    tables, a = draw([40, 55, 30], shift=0.4), spread_rows(10, 3)
    (offer,) = rounds_of(study(tables, reference=a, max_rounds=2, **BARE), "offer")
    result = study(
        tables, reference=a, max_rounds=2, quorum=2, script={(offer, "s0"): "returns"}, **BARE
    ).result
    assert result.sites == ("s1", "s2")
    two = study({s: tables[s] for s in ("s1", "s2")}, reference=a, max_rounds=2, **BARE).result
    np.testing.assert_allclose(result.slopes, two.slopes, rtol=1e-12)


@pytest.mark.parametrize("schedule", ["adaptive", "asynchronous"])
@pytest.mark.parametrize("guard", [True, False])
def test_a_site_that_is_folded_in_late_while_rounds_are_measured(
    schedule: str, guard: bool
) -> None:
    tables, a = draw([60, 80, 70], shift=0.5, apart=0.2), spread_rows(20, 3)
    settings: dict[str, Any] = {"reference": a, "max_rounds": 5, "schedule": schedule}
    settings |= {"guard": guard}
    first = rounds_of(study(tables, **settings))[0]
    run = study(tables, quorum=2, script={(first, "s1"): "returns"}, **settings)
    result = run.result
    assert result.contributed[0].tolist() == [True, False, True]
    assert result.contributed[1:, 1].any()
    assert result.owners == ("s0", "s1", "s2")
    assert result.summary() and len(result.to_frame()) == result.n_rounds + 1
    if guard:
        assert np.isfinite(result.gains[0, 1:]).any()
        # It was not there to judge plain averaging, so it says nothing of gains: not that they
        # are zero.
        sent = {
            line.site: line.verdict
            for line in run.transcript
            if line.field == "differences" and line.direction == "to-coordinator"
        }
        assert np.isnan(result.local_differences[1]).all(), sent
        assert np.isfinite(result.local_differences[[0, 2]]).all()


def test_more_levels_than_a_site_can_hold_out_for_are_no_refusal() -> None:
    """Three levels of six columns have 21 parameters: 30 of 150 rows are too few for their fits."""
    tables = classes([150, 150, 150], p=6, levels="abc", shift=0.2)
    run = study(tables, "strict", levels="abc", estimator="logistic", max_rounds=2)
    assert run.result.held.tolist() == [0.0, 0.0, 0.0]
    assert run.result.reason == "not-measured"


def test_every_level_is_held_out_in_enough_rows_or_none_is() -> None:
    from consilience.averaging.protocol.site import held_rows
    from consilience.protocol.method import SiteData
    from consilience.wire.disclosure import Limits

    settings = Settings("", "auto", ("a", "b"), "log", (), 0.2, True, 3, "adaptive")
    for few, held in ((30, False), (120, True)):
        y = np.repeat(["a", "b"], [300 - few, few])
        data = SiteData(np.zeros((300, 2)), ("u", "v"), np.arange(300), target=y)
        data = dataclasses.replace(data, levels={"y": ("a", "b")}, target_name="y")
        assert bool(len(held_rows(data, settings, Limits()))) is held
        rows = held_rows(data, settings, Limits(min_records=1))
        assert (y[rows] == "a").sum() == (300 - few) // 5 and (y[rows] == "b").sum() == few // 5


def test_the_summary_says_where_own_fits_are_better() -> None:
    result = study(curved([120, 120, 120]), estimator=RIDGE).result
    worse = dataclasses.replace(
        result,
        local_differences=np.full((3, 2), -1.0),
        local_errors=np.full((3, 2), 0.1),
    )
    assert "the sites' own fits lose less, by 1 " in worse.summary()
    better = dataclasses.replace(worse, local_differences=np.full((3, 2), 1.0))
    assert "own fits lose less" not in better.summary()


def test_reference_rows_of_many_columns_are_fewer() -> None:
    names = [f"x{j}" for j in range(600)]
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.normal(size=(30, 600)), columns=names).assign(y=rng.normal(size=30))
    drawn = study({"s0": table, "s1": table + 1.0}, reference="normal", max_rounds=0, **BARE)
    assert drawn.result.n_reference == 4_000_000 // 600
    with pytest.raises(StudyError, match="too much to send"):
        study({"s0": table, "s1": table}, reference="normal", n_reference=60_000, **BARE)


@pytest.mark.parametrize("gone", ["absent", "refused"])
def test_a_site_that_leaves_an_asynchronous_run_does_not_use_up_the_turns_of_others(
    gone: str,
) -> None:
    """The others still come close to where they would come: its turns are not theirs."""
    tables, a = draw([60, 40, 50], shift=0.5, apart=0.6), spread_rows(30, 3)
    settings: dict[str, Any] = {"reference": a, "schedule": "asynchronous", "max_rounds": 10}
    plain = study(tables, **settings, **BARE)
    rounds = rounds_of(plain)
    script = {(r, "s1"): gone for r in range(rounds[1], rounds[1] + 200)}
    run = study(tables, quorum=2, script=script, **settings, **BARE)
    replies = [
        line.site
        for line in run.transcript
        if line.step == "fit" and line.field == "fits" and line.round >= rounds[1]
    ]
    # Ten turns each, as if the third had never been there.
    assert replies.count("s0") + replies.count("s2") >= 18
    assert replies.count("s1") == 0


def test_too_few_sites_end_a_run() -> None:
    from consilience.exceptions import QuorumError

    tables, a = draw([40, 55, 30]), spread_rows(10, 3)
    for schedule in ("adaptive", "asynchronous"):
        settings = {"reference": a, "max_rounds": 3, "schedule": schedule, **BARE}
        fits = rounds_of(study(tables, **settings))
        script = {(r, s): "returns" for r in range(fits[1], 200) for s in ("s0", "s1")}
        with pytest.raises(QuorumError, match="the study needs 2"):
            study(tables, quorum=2, script=script, **settings)


# --------------------------------------------------------------------------- the guard


@pytest.mark.parametrize(
    "learner",
    [
        RandomForestRegressor(n_estimators=20, min_samples_leaf=5),
        "gradient-boosting(n_estimators=20)",
        HuberRegressor(),
    ],
    ids=["forest", "boosting", "huber"],
)
def test_learners_that_do_not_keep_their_predictions_fall_back(learner: Any) -> None:
    """Huber's scale is estimated from all rows, pseudo-rows too: the probe says what becomes."""
    run = study(curved([90, 110, 100]), estimator=learner, max_rounds=4)
    result = run.result
    if isinstance(learner, HuberRegressor):
        assert np.isfinite(result.probes).all()
        return
    assert (result.reason, result.kept, result.chosen_round) == ("not-separable", False, 0)
    assert not result.separable
    assert result.n_rounds == 0, "rounds that lead away are not even made"
    assert (result.probes[:, 0] > 1e-2).all()
    assert "Averaging is returned" in result.summary()
    again = study(curved([90, 110, 100]), estimator=learner, max_rounds=0, **BARE).result
    grid = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(
        result.to_estimator().predict(grid), again.to_estimator().predict(grid), rtol=1e-12
    )


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize(
    "learner",
    [LinearRegression(), Ridge(1.0), Lasso(0.02), "elastic-net(alpha=0.05)"],
    ids=["linear", "ridge", "lasso", "elastic-net"],
)
def test_a_true_gain_is_kept(learner: Any, policy: str) -> None:
    """Lines through stretches of a parabola: the pooled line is far from the average of lines."""
    tables = curved([200, 260, 220])
    result = study(tables, policy, estimator=learner, max_rounds=15).result
    assert (result.reason, result.kept) == ("gain", True)
    assert (result.probes[:, 0] < 1e-2).all()
    x, y = pooled(tables)
    inner = Lasso(0.05) if isinstance(learner, str) else learner
    goal = inner.fit(x, y).predict(x)
    refit = result.to_estimator().predict(x)
    plain = study(tables, policy, estimator=learner, max_rounds=0, **BARE).result
    averaging = plain.to_estimator().predict(x)
    assert np.linalg.norm(refit - goal) < 0.5 * np.linalg.norm(averaging - goal)
    assert "held out" in result.summary() and "better" not in result.summary()


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_a_true_gain_of_a_classifier_is_kept(policy: str) -> None:
    """Sites elsewhere in x, with directions of which they see little: averages are blurred."""
    both = classes([400] * 4, 6, noise=3.0, shift=1.0)
    tables = {s: t.iloc[:200].reset_index(drop=True) for s, t in both.items()}
    x, y = pooled({s: t.iloc[200:] for s, t in both.items()})
    settings = {"estimator": "logistic(C=10)", "levels": "ab"}
    result = study(tables, policy, max_rounds=15, **settings).result
    assert (result.reason, result.kept, result.loss) == ("gain", True, "log")
    plain = study(tables, policy, max_rounds=0, **settings, **BARE).result
    log = []
    for found in (result, plain):
        chance = found.to_estimator().predict_proba(x)[:, 1]
        log.append(-np.mean(y * np.log(chance) + (1 - y) * np.log(1 - chance)))
    # Held out of the study altogether: the gain of .08 is five of its standard errors.
    assert log[0] < log[1] - 0.03


def test_what_is_kept_is_the_fit_of_the_chosen_round() -> None:
    """Also where the rounds ended early, one after those that patience waited for."""
    settings: dict[str, Any] = {"n_reference": 60, "rho": 2.0}
    for seed, patience in ((0, 1), (0, 2), (5, 2), (6, 3)):
        tables = draw([60] * 6, 10, seed=seed, noise=3.0, apart=0.6, shift=0.3)
        given = {**settings, "patience": patience}
        result = study(tables, max_rounds=12, holdout=0.4, **given).result
        assert 0 < result.chosen_round < result.n_rounds < 12, "it did not end early"
        # Rounds go the same way whether rows are held out or not.
        bare = study(tables, max_rounds=result.chosen_round, **given, **BARE).result
        np.testing.assert_allclose(result.slopes, bare.slopes, rtol=1e-9)


def test_rounds_that_change_nothing_are_not_kept() -> None:
    """One site, and sites with the same rows: rounding alone must not look like a gain."""
    one = draw([80], noise=1.0)
    twins = {f"s{i}": one["s0"] for i in range(3)}
    for tables in (one, twins):
        for estimator in (RIDGE, "linear", "lasso(alpha=0.1, tol=1e-10)"):
            # The held-out rows of twins differ, so holdout is what decides: none is better.
            result = study(tables, estimator=estimator, max_rounds=6).result
            if len(tables) == 1:
                assert (result.kept, result.reason) == (False, "no-gain"), estimator
            assert result.summary()


def test_where_averaging_is_as_good_little_is_changed() -> None:
    """Many rows of one model at each site: whatever is chosen lies within the noise of averaging.

    A round is kept where the best of a few gains exceeds one standard error of its own: by chance
    in some of the runs. What is kept then differs from averaging by less than a standard error of
    the fit of all rows.
    """
    for seed in range(8):
        tables = draw([300, 300, 300], seed=seed)
        result = study(tables, max_rounds=4).result
        sites = sites_of(tables)
        base = textbook.ridge_average(sites, 3.0 / 900)
        assert np.abs(result.slopes[0] - base).max() < 1 / np.sqrt(900)


WRONG: dict[str, tuple[Any, str, bool]] = {
    # A penalty that matters: refits with one's own predictions are shrunk again and again.
    "lasso as sum": (Lasso(0.3), "sum", True),
    "ridge as normalised": (Ridge(300.0), "normalised", True),
    # Weights of rows are not penalties: where the penalty is small, no convention can be wrong.
    "linear as normalised": (LinearRegression(), "normalised", False),
    "linear as rows": (LinearRegression(), "rows", False),
    "ridge without effect": (Ridge(1e-8), "normalised", False),
    "lasso without effect": (Lasso(1e-9), "sum", False),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_convention(name: str) -> None:
    learner, convention, caught = WRONG[name]
    tables = curved([90, 110, 100])
    result = study(tables, estimator=learner, convention=convention, max_rounds=5).result
    assert (result.reason == "not-separable") is caught, result.probes
    assert result.convention == convention
    right = study(tables, estimator=learner, max_rounds=5).result
    assert right.separable
    if not caught:
        np.testing.assert_allclose(result.slopes, right.slopes, rtol=1e-4)
    else:
        assert "convention" in result.summary()


# --------------------------------------------------------------------------- what sites hold


@pytest.mark.parametrize("policy", ["simulation", "strict"])
@pytest.mark.parametrize("guard", [True, False])
def test_sites_that_see_one_level_only(policy: str, guard: bool) -> None:
    """They learn of the other level through the pseudo-rows."""
    tables = classes([120, 150, 130], shift=0.0)
    tables["s1"] = tables["s1"].assign(y="a")
    run = study(tables, policy, estimator="logistic", levels="ab", max_rounds=6, guard=guard)
    result = run.result
    assert result.owners == ("s0", "s1", "s2")
    x = spread_rows(40, 2)
    chance = result.to_estimator().predict_proba(x)
    assert np.isfinite(chance).all()
    np.testing.assert_allclose(chance.sum(axis=1), 1.0)
    if not guard:
        one = result.models[1]
        assert one["form"] == "linear", "the site of one level has a model of both now"


@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_three_levels_each_missing_somewhere(policy: str) -> None:
    tables = classes([200, 200, 200], levels="abc")
    tables = {
        s: t[t["y"] != drop].reset_index(drop=True)
        for (s, t), drop in zip(tables.items(), "abc", strict=True)
    }
    run = study(tables, policy, estimator="logistic", levels="abc", max_rounds=8)
    chance = run.result.to_estimator().predict_proba(spread_rows(30, 2))
    assert chance.shape == (30, 3)
    assert (chance.mean(axis=0) > 0.1).all()
    assert run.result.levels == ("a", "b", "c")


def test_all_sites_see_the_same_one_level() -> None:
    tables = {s: t.assign(y="a") for s, t in classes([60, 70]).items()}
    for guard in (True, False):
        result = study(tables, estimator="logistic", levels="ab", max_rounds=3, guard=guard).result
        chance = result.to_estimator().predict_proba(spread_rows(10, 2))
        np.testing.assert_allclose(chance, [[1.0, 0.0]] * 10, atol=1e-9)


def test_rows_of_rare_levels_take_no_part_under_strict() -> None:
    tables = classes([150, 150], levels="ab")
    tables["s1"]["y"] = np.where(np.arange(150) < 6, "b", "a")
    strict = study(tables, "strict", estimator="logistic", levels="ab", max_rounds=2).result
    assert strict.sizes.tolist() == [150, 144]
    plain = study(tables, estimator="logistic", levels="ab", max_rounds=2).result
    assert plain.sizes.tolist() == [150, 150]


def test_thin_columns_have_no_weight_at_a_strict_site() -> None:
    """A column in which nine rows differ is constant there, and learned at the others."""
    tables = draw([120, 120, 120], p=3)
    for table in tables.values():
        table["x2"] = (np.arange(120) % 3 == 0).astype(float)
        table["y"] += 3 * table["x2"]
    tables["s1"]["x2"] = (np.arange(120) < 9).astype(float)
    result = study(tables, "strict", estimator="ridge", max_rounds=0, **BARE).result
    slopes = [float(m["coef"][0, 2]) for m in result.models]
    assert slopes[1] == pytest.approx(0.0, abs=1e-9)
    assert min(slopes[0], slopes[2]) > 1.0
    assert (
        abs(
            float(
                study(tables, estimator="ridge", max_rounds=0, **BARE).result.models[1]["coef"][
                    0, 2
                ]
            )
        )
        > 0.1
    )


def test_whole_weights_are_repeated_rows() -> None:
    tables = draw([40, 55], shift=0.4)
    rng = np.random.default_rng(5)
    weighted = {s: t.assign(w=rng.integers(1, 4, size=len(t))) for s, t in tables.items()}
    repeated = {
        s: t.loc[t.index.repeat(t["w"])].drop(columns="w").reset_index(drop=True)
        for s, t in weighted.items()
    }
    a = spread_rows(12, 3)
    for estimator in (RIDGE, "lasso(alpha=0.1, tol=1e-10)"):
        one = study(weighted, weight="w", estimator=estimator, reference=a, max_rounds=4, **BARE)
        other = study(repeated, estimator=estimator, reference=a, max_rounds=4, **BARE)
        np.testing.assert_allclose(one.result.slopes, other.result.slopes, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.result.shares, other.result.shares)
    plain = study(tables, reference=a, max_rounds=4, **BARE).result
    one = study(weighted, weight="w", reference=a, max_rounds=4, **BARE)
    assert np.abs(plain.slopes - one.result.slopes).max() > 1e-3


def test_weights_count_in_held_out_losses() -> None:
    """A site whose rows weigh a thousand times as much decides."""
    tables = draw([80, 80], apart=2.0)
    heavy = {s: t.assign(w=1000.0 if s == "s0" else 1.0) for s, t in tables.items()}
    result = study(heavy, weight="w", max_rounds=3, reference=spread_rows(20, 3)).result
    np.testing.assert_allclose(result.shares, [1000 / 1001, 1 / 1001])
    expected = float(result.local_losses[0, 1])
    assert result.base_loss[0] == pytest.approx(expected, rel=0.02)


# --------------------------------------------------------------------------- preparation


@pytest.mark.parametrize("reference", ["moments", "rows"])
def test_pooled_scales(reference: str) -> None:
    """On pooled scales nothing depends on the units of the columns."""
    tables = draw([60, 80, 70], shift=0.3)
    rows = spread_rows(25, 3)
    units = np.array([1.0, 1e4, 1e-3])
    other = {
        s: t.assign(**{f"x{j}": t[f"x{j}"] * units[j] for j in range(3)}) for s, t in tables.items()
    }
    prep = Preparation(standardize="pooled")
    found = []
    for given, scale in ((tables, np.ones(3)), (other, units)):
        a = rows * scale if reference == "rows" else reference
        run = study(given, preparation=prep, reference=a, estimator="ridge(alpha=5)", max_rounds=5)
        at = rows * scale
        found.append(run.result.to_estimator().predict(at))
        np.testing.assert_allclose(run.site("s1").predictor.predict(at), found[-1], rtol=1e-12)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-7)


def test_declared_levels_are_encoded() -> None:
    tables = draw([80, 90], p=2)
    rng = np.random.default_rng(2)
    for table in tables.values():
        table["colour"] = rng.choice(["red", "green", "blue"], size=len(table))
        table["y"] += table["colour"].map({"red": 0.0, "green": 2.0, "blue": -1.0})
    prep = Preparation(categorical="treatment", standardize="pooled")
    settings = {"declared": {"colour": ("red", "green", "blue")}, "preparation": prep}
    for policy in ("simulation", "strict"):
        run = study(tables, policy, estimator="linear", max_rounds=8, **settings)
        result = run.result
        assert len(result.feature_names) == 4
        # In the units of the columns: slopes on pooled scales over those scales.
        slopes = result.slopes[0] / result.scaling[2]
        np.testing.assert_allclose(slopes[2:], [2.0, -1.0], atol=0.6)
        encoded = np.array([[0.1, 0.2, 1.0, 0.0], [0.1, 0.2, 0.0, 0.0]])
        at = run.site("s0").predictor.predict(encoded)
        assert at[0] - at[1] == pytest.approx(slopes[2], rel=1e-9)


@pytest.mark.parametrize("rule", ["complete-rows", "aggregated-mean", "indicator"])
@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_missing_cells(rule: Any, policy: str) -> None:
    tables = draw([100, 120, 110])
    rng = np.random.default_rng(4)
    for table in tables.values():
        table.loc[rng.random(len(table)) < 0.25, "x1"] = np.nan
    run = study(
        tables, policy, estimator="ridge", preparation=Preparation(missing=rule), max_rounds=4
    )
    result = run.result
    if rule == "complete-rows":
        assert (result.sizes < [100, 120, 110]).all()
    predictor = result.to_estimator()
    width = len(result.feature_names)
    assert np.isfinite(predictor.predict(np.ones((3, width)))).all()


def test_public_rows_with_missing_cells_are_filled_as_the_study_does() -> None:
    tables = draw([100, 120])
    for table in tables.values():
        table.loc[table.index[::4], "x1"] = np.nan
    a = spread_rows(20, 3)
    a[3, 1] = np.nan
    run = study(
        tables, preparation=Preparation(missing="aggregated-mean"), reference=a, max_rounds=3
    )
    filled = a.copy()
    filled[3, 1] = run.result.scaling[0, 1]
    again = study(
        tables, preparation=Preparation(missing="aggregated-mean"), reference=filled, max_rounds=3
    )
    np.testing.assert_array_equal(run.result.slopes, again.result.slopes)


def test_a_pipeline_is_frozen_on_the_reference_rows() -> None:
    """Squares and products on common scales; the same transformer at every site."""
    tables = curved([150, 160, 140])
    made = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge(1e-3))
    result = study(tables, estimator=made, max_rounds=10, patience=10).result
    x, y = pooled(tables)
    found = result.to_estimator().predict(x)
    assert np.mean((y - found) ** 2) < 0.35  # the noise has a variance of .25
    scales = {str(np.round(np.asarray(m.get("coef", [])), 6).shape) for m in result.models}
    assert len(scales) == 1


# --------------------------------------------------------------------------- doors


def doors() -> list[tuple[str, Callable[[], Run]]]:
    return [
        ("ridge", lambda: study(curved([90, 80]), "strict", max_rounds=3)),
        (
            "logistic",
            lambda: study(
                classes([150, 140], levels="abc"),
                "strict",
                estimator="logistic",
                levels="abc",
                max_rounds=3,
            ),
        ),
        (
            "forest",
            lambda: study(
                curved([90, 80]), "strict", estimator="random-forest(n_estimators=5)", max_rounds=2
            ),
        ),
        (
            "pooled scales",
            lambda: study(
                curved([90, 80]), preparation=Preparation(standardize="pooled"), max_rounds=3
            ),
        ),
        ("grid", lambda: study(curved([90, 80]), penalties=(0.1, 1.0, 10.0), max_rounds=3)),
        (
            "asynchronous",
            lambda: study(curved([90, 80]), "strict", schedule="asynchronous", max_rounds=3),
        ),
        ("bare", lambda: study(curved([90, 80]), max_rounds=2, **BARE)),
    ]


@pytest.mark.parametrize(("name", "make"), doors(), ids=lambda v: v if isinstance(v, str) else "")
def test_result_and_sites_say_the_same(name: str, make: Callable[[], Run]) -> None:
    run = make()
    result = run.result
    rows = spread_rows(25, len(result.feature_names))
    ours = result.to_estimator()
    for site in result.sites:
        theirs = run.site(site).predictor
        np.testing.assert_array_equal(ours.predict(rows), theirs.predict(rows))
        if result.levels:
            np.testing.assert_array_equal(ours.predict_proba(rows), theirs.predict_proba(rows))
            assert set(ours.predict(rows)) <= set(result.levels)
    if result.slopes.size and not result.levels and not result.scaling.size:
        np.testing.assert_allclose(
            ours.predict(rows), rows @ result.slopes[0] + result.intercepts[0], rtol=1e-9
        )
    frame = result.to_frame()
    assert len(frame) == len(result.gains) * (result.n_rounds + 1)
    assert frame["kept"].sum() == 1


@pytest.mark.parametrize(("name", "make"), doors(), ids=lambda v: v if isinstance(v, str) else "")
def test_results_round_trip(name: str, make: Callable[[], Run]) -> None:
    result = make().result
    again = ReferenceAveragingResult.from_files(result.to_files())
    np.testing.assert_equal(dataclasses.asdict(again), dataclasses.asdict(result))
    assert again.summary() == result.summary()
    pd.testing.assert_frame_equal(again.to_frame(), result.to_frame())
    rows = spread_rows(9, len(result.feature_names))
    np.testing.assert_array_equal(
        again.to_estimator().predict(rows), result.to_estimator().predict(rows)
    )


def test_a_run_directory_is_read_again(tmp_path: Any) -> None:
    run = study(curved([90, 80]), "strict", max_rounds=3, out=tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert again.result.summary() == run.result.summary()
    np.testing.assert_array_equal(again.result.slopes, run.result.slopes)


def test_same_seed_same_result() -> None:
    for policy in ("simulation", "strict"):
        files = [study(curved([90, 80]), policy, max_rounds=3).result.to_files() for _ in range(2)]
        assert files[0] == files[1]


def test_names_objects_and_texts_are_the_same_learner() -> None:
    tables = curved([90, 80])
    found = [
        study(tables, estimator=e, max_rounds=2, **BARE).result
        for e in ("ridge(alpha=2.5)", Ridge(alpha=2.5), " ridge( alpha = 2.5 ) ")
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].slopes, other.slopes)
    assert found[0].estimator == "ridge(alpha=2.5)"


def test_a_classifier_is_judged_by_either_loss() -> None:
    tables = classes([150, 160], shift=0.3)
    for loss in ("log", "brier"):
        result = study(tables, estimator="logistic", levels="ab", loss=loss, max_rounds=2).result
        assert result.loss == loss
        assert 0 < result.base_loss[0] < (0.7 if loss == "log" else 0.51)


def test_levels_that_are_lost_in_held_out_rows() -> None:
    """A level with one row at a site: whichever side it falls on, the run goes on."""
    for seed in range(4):
        tables = classes([60, 70], seed=seed)
        tables["s0"]["y"] = np.where(np.arange(60) == 7, "b", "a")
        result = study(tables, estimator="logistic", levels="ab", max_rounds=2, seed=seed).result
        assert np.isfinite(result.to_estimator().predict_proba(spread_rows(5, 2))).all()


def test_logistic_predictions_are_averaged_not_coefficients() -> None:
    tables = classes([200, 180], shift=0.8, apart=1.0, seed=3)
    learner = "logistic(max_iter=10000, tol=1e-10)"
    result = study(tables, estimator=learner, levels="ab", max_rounds=0, **BARE).result
    rows = spread_rows(30, 2)
    parts = [
        LogisticRegression(C=m, max_iter=10000, tol=1e-10).fit(t.drop(columns="y"), t["y"])
        for m, t in ((380 / 200, tables["s0"]), (380 / 180, tables["s1"]))
    ]
    frame = pd.DataFrame(rows, columns=["x0", "x1"])
    expected = sum(
        w * part.predict_proba(frame) for w, part in zip((200 / 380, 180 / 380), parts, strict=True)
    )
    np.testing.assert_allclose(result.to_estimator().predict_proba(rows), expected, rtol=1e-6)

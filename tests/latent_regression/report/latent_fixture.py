"""Results of latent class regression as a run would make them, with made-up figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo
from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.wire.transcript import Line

METHOD = "latent-class-regression"


def result_of(
    n_classes: int = 4,
    n_sites: int = 4,
    p: int = 3,
    *,
    gain: float = 0.25,
    rounds: int = 45,
    merged_at: int = 25,
    seed: int = 0,
    **changes: Any,
) -> LatentClassRegressionResult:
    """A result; `gain` is the share of ridge's held-out error that the classes save."""
    rng = np.random.default_rng(seed)
    k, b = n_classes, n_sites
    r = np.arange(rounds + 1)  # the first is the beginning
    fade = np.exp(-r / 5.0)
    classes = np.where(r <= merged_at, 2 * k, k)
    shares = np.linspace(2.0, 1.0, k)
    shares = shares / shares.sum()
    entities = np.full(b, 300)
    counts = np.round(entities[:, None] * shares[None, :] * rng.uniform(0.7, 1.3, (b, k)))
    counts[0] = entities[0] * np.ones(k) / k
    moving = np.minimum(classes, np.round(classes * (1 - fade * 0.5)))[:, None]
    repeated = np.minimum(moving, rng.integers(0, 3, (rounds + 1, b)) * (r[:, None] > 10))
    withheld = np.where((r[:, None] < 8) & (np.arange(b) == b - 1), 1, 0)
    ridge = 2.0 + 0.1 * rng.normal(size=b)
    mse = np.column_stack([ridge, ridge * (1 - 0.6 * gain), ridge * (1 - gain), ridge * 2.4])
    mse = np.asarray(changes.pop("heldout_mse", mse))
    made = LatentClassRegressionResult(
        feature_names=tuple(f"x{j}" for j in range(p)),
        target_name="y",
        n_classes=k,
        chosen="given",
        slopes=rng.normal(size=(k, p)),
        intercepts=120 + 5 * rng.normal(size=k),
        coefficient_errors=np.full((k, p), 0.06),
        intercept_errors=np.full(k, 0.3),
        class_sizes=counts.sum(axis=0),
        class_shares=shares,
        class_events=10 * counts.sum(axis=0),
        sigma=1.1,
        delta=0.8,
        beta=4.0,
        alpha=float(k),
        concentration="exact",
        start="local",
        level=0.9,
        learning_rates=np.full(rounds, 0.5),
        participation=1.0,
        rounds_run=rounds,
        merged_at=merged_at,
        slowed=False,
        trace_sigma=1.1 + 0.9 * fade,
        trace_moved=np.where(r > 0, 0.7 * fade, np.nan),
        trace_log_marginal=-9000.0 - 1500 * fade + 10 * rng.normal(size=rounds + 1),
        trace_classes=classes.astype(float),
        merge_path=np.array([[j, 40.0 + j] for j in range(2 * k - 1, k - 1, -1)], dtype=float),
        sites=tuple(f"s{i:03d}" for i in range(b)),
        n_agents=np.full(b, 6.0),
        n_entities=entities.astype(float),
        n_events=10.0 * entities,
        reported=np.ones((rounds + 1, b), dtype=bool),
        released=(classes[:, None] - repeated - withheld).astype(np.int64),
        repeated=repeated.astype(np.int64),
        withheld=withheld.astype(np.int64),
        site_class_sizes=counts,
        heldout_weight=np.full(b, 2400.0),
        heldout_mse=mse,
        heldout_log_score=np.tile([-1.75, -1.75 + 0.3 * gain, -1.75 + 0.5 * gain], (b, 1)),
        coverage=np.full(b, 0.9) + 0.01 * rng.normal(size=b),
        interval_width=np.full(b, 4.1),
        heldout_gain=mse[:, 0] - mse[:, 2],
        heldout_gain_error=np.full(b, 0.04),
        heldout_effective=np.full(b, 500.0),
        heldout_ahead=np.full(b, 0.2 * gain),
        heldout_ahead_error=np.full(b, 0.01),
        mean=np.zeros((k, p + 1)),
        covariance=np.tile(np.eye(p + 1), (k, 1, 1)),
        centre=np.zeros(p + 1),
        scale=np.ones(p + 1),
        fit_intercept=True,
        scaling=np.empty((0, 0)),
    )
    return dataclasses.replace(made, **changes)


def one_class() -> LatentClassRegressionResult:
    return result_of(1, gain=0.0, merge_path=np.array([[2, 30.0], [1, 12.0]]))


def replaced() -> LatentClassRegressionResult:
    """One class in the place of six, which their intervals were of."""
    gone = np.full(4, np.nan)
    return result_of(1, gain=-0.05, n_replaced=6, coverage=gone, interval_width=gone)


def small_cells() -> LatentClassRegressionResult:
    """Small sites: some counts by class are kept back, one site takes no part in most rounds."""
    base = result_of()
    sizes = base.site_class_sizes.copy()
    sizes[1, 2:] = 0.0
    sizes[3] = np.nan  # it never had a part in the rounds
    reported = base.reported.copy()
    reported[::3, 2] = False
    reported[:, 3] = False
    withheld = base.withheld.copy()
    withheld[:, 1] = 2
    off = ~reported
    return dataclasses.replace(
        base,
        site_class_sizes=sizes,
        reported=reported,
        withheld=np.where(off, 0, withheld),
        released=np.where(off, 0, base.trace_classes[:, None] - withheld - base.repeated),
        repeated=np.where(off, 0, base.repeated),
    )


def not_held_out() -> LatentClassRegressionResult:
    base = result_of()
    gone = np.full(len(base.sites), np.nan)
    return dataclasses.replace(
        base,
        heldout_mse=np.full_like(base.heldout_mse, np.nan),
        heldout_log_score=np.full_like(base.heldout_log_score, np.nan),
        coverage=gone,
        interval_width=gone,
        heldout_gain=gone,
        heldout_gain_error=gone,
        heldout_effective=gone,
        heldout_ahead=gone,
        heldout_ahead_error=gone,
    )


def withheld_gain() -> LatentClassRegressionResult:
    """One site tells no error of its gain, another no number of held-out events."""
    base = result_of()
    base.heldout_gain_error[1] = np.nan
    base.heldout_effective[2] = np.nan
    return base


def jumping() -> LatentClassRegressionResult:
    """Labels that never settle, with a rate that was lowered for it."""
    base = result_of()
    rates = np.where(np.arange(45) < 12, 1.0, 0.5)
    moved = np.full(46, 0.6)
    moved[0] = np.nan
    return dataclasses.replace(
        base,
        learning_rates=rates,
        trace_moved=moved,
        slowed=True,
        remarks=("Labels jumped to and fro in round 12: the learning rate was lowered to 0.5.",),
    )


CASES: dict[str, Any] = {
    "gain": result_of,
    "no-gain": lambda: result_of(gain=-0.02),
    "mixed-models": lambda: result_of(
        heldout_mse=result_of().heldout_mse[:, [0, 2, 1, 3]], heldout_ahead=np.full(4, -0.05)
    ),
    "one-class": one_class,
    "replaced": replaced,
    "small-cells": small_cells,
    "not-held-out": not_held_out,
    "withheld-gain": withheld_gain,
    "jumping": jumping,
    "one-site": lambda: result_of(n_sites=1),
    "two-sites": lambda: result_of(n_sites=2),
    "many": lambda: result_of(16, 70, 60, rounds=80, merged_at=50),
    "without-intercept": lambda: result_of(fit_intercept=False),
    "auto": lambda: result_of(chosen="auto"),
    "short": lambda: result_of(rounds=2, merged_at=1),
    "no-merge": lambda: result_of(merged_at=-1, merge_path=np.empty((0, 2))),
}


def run_of(result: Any, transcript: tuple[Line, ...] = (), **parameters: Any) -> Run:
    """A run around a result."""
    info = RunInfo(
        run="r",
        name="study",
        study="hash",
        method=METHOD,
        method_version=1,
        parameters=parameters,
        release="0",
        libraries={},
        seed=1,
        sites=result.sites,
        engine="local",
    )
    return Run(info=info, result=result, transcript=transcript, notes=())

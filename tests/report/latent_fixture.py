"""Results of latent class regression as a run would make them, with made-up figures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.engines.federation import Run
from consilience.engines.rundir import RunInfo
from consilience.methods.result import Result
from consilience.wire.transcript import Line

METHOD = "latent-class-regression"


@dataclass(frozen=True, eq=False)
class LatentClassRegressionResult(Result):
    feature_names: tuple[str, ...]
    target_name: str
    n_classes: int
    coefficients: NDArray[np.float64]
    intercepts: NDArray[np.float64]
    coefficient_errors: NDArray[np.float64]
    intercept_errors: NDArray[np.float64]
    class_sizes: NDArray[np.float64]
    class_shares: NDArray[np.float64]
    class_events: NDArray[np.float64]
    sigma: float
    delta: float
    beta: float
    alpha: float
    concentration: str
    level: float
    learning_rates: NDArray[np.float64]
    rounds_run: int
    trace_sigma: NDArray[np.float64]
    trace_moved: NDArray[np.float64]
    trace_log_marginal: NDArray[np.float64]
    trace_classes: NDArray[np.int64]
    merge_path: NDArray[np.float64]
    sites: tuple[str, ...]
    n_agents: NDArray[np.int64]
    n_entities: NDArray[np.int64]
    n_events: NDArray[np.int64]
    reported: NDArray[np.bool_]
    released: NDArray[np.int64]
    repeated: NDArray[np.int64]
    withheld: NDArray[np.int64]
    site_class_sizes: NDArray[np.float64]
    heldout_events: NDArray[np.float64]
    heldout_mse: NDArray[np.float64]
    heldout_log_score: NDArray[np.float64]
    coverage: NDArray[np.float64]
    interval_width: NDArray[np.float64]
    remarks: tuple[str, ...]

    def summary(self) -> str:
        return f"{self.n_classes} classes."


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
    r = np.arange(rounds)
    fade = np.exp(-r / 5.0)
    classes = np.where(r < merged_at, 2 * k, k)
    shares = np.linspace(2.0, 1.0, k)
    shares = shares / shares.sum()
    entities = np.full(b, 300)
    counts = np.round(entities[:, None] * shares[None, :] * rng.uniform(0.7, 1.3, (b, k)))
    counts[0] = entities[0] * np.ones(k) / k
    moving = np.minimum(classes, np.round(classes * (1 - fade * 0.5)))[:, None]
    repeated = np.minimum(moving, rng.integers(0, 3, (rounds, b)) * (r[:, None] > 10))
    withheld = np.where((r[:, None] < 8) & (np.arange(b) == b - 1), 1, 0)
    ridge = 2.0 + 0.1 * rng.normal(size=b)
    made = LatentClassRegressionResult(
        feature_names=tuple(f"x{j}" for j in range(p)),
        target_name="y",
        n_classes=k,
        coefficients=rng.normal(size=(k, p)),
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
        level=0.9,
        learning_rates=np.full(rounds, 0.5),
        rounds_run=rounds,
        trace_sigma=1.1 + 0.9 * fade,
        trace_moved=0.7 * fade,
        trace_log_marginal=-9000.0 - 1500 * fade + 10 * rng.normal(size=rounds),
        trace_classes=classes.astype(np.int64),
        merge_path=np.array([[j, 40.0 + j] for j in range(2 * k - 1, k - 1, -1)], dtype=float),
        sites=tuple(f"s{i:03d}" for i in range(b)),
        n_agents=np.full(b, 6),
        n_entities=entities,
        n_events=10 * entities,
        reported=np.ones((rounds, b), dtype=bool),
        released=(classes[:, None] - repeated - withheld).astype(np.int64),
        repeated=repeated.astype(np.int64),
        withheld=withheld.astype(np.int64),
        site_class_sizes=counts,
        heldout_events=np.full(b, 600.0),
        heldout_mse=np.column_stack(
            [ridge, ridge * (1 - 0.6 * gain), ridge * (1 - gain), ridge * 2.4]
        ),
        heldout_log_score=np.tile([-1.75, -1.75 + 0.5 * gain], (b, 1)),
        coverage=np.full(b, 0.9) + 0.01 * rng.normal(size=b),
        interval_width=np.full(b, 4.1),
        remarks=(),
    )
    return dataclasses.replace(made, **changes)


def one_class() -> LatentClassRegressionResult:
    return result_of(1, gain=0.0, merge_path=np.array([[2, 30.0], [1, 12.0]]))


def small_cells() -> LatentClassRegressionResult:
    """Small sites: some counts by class are kept back, one site takes no part in most rounds."""
    base = result_of()
    sizes = base.site_class_sizes.copy()
    sizes[1, 2:] = np.nan
    sizes[3] = np.nan
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
        heldout_events=np.zeros(len(base.sites)),
        heldout_mse=np.full_like(base.heldout_mse, np.nan),
        heldout_log_score=np.full_like(base.heldout_log_score, np.nan),
        coverage=gone,
        interval_width=gone,
    )


def jumping() -> LatentClassRegressionResult:
    """Labels that never settle, with a rate that was lowered for it."""
    base = result_of()
    rates = np.where(np.arange(45) < 12, 1.0, 0.5)
    return dataclasses.replace(
        base,
        learning_rates=rates,
        trace_moved=np.full(45, 0.6),
        remarks=("Labels jumped to and fro in round 12: the learning rate was lowered to 0.5.",),
    )


CASES: dict[str, Any] = {
    "gain": result_of,
    "no-gain": lambda: result_of(gain=-0.02),
    "mixed-models": lambda: dataclasses.replace(
        result_of(), heldout_mse=result_of().heldout_mse[:, [0, 2, 1, 3]]
    ),
    "one-class": one_class,
    "small-cells": small_cells,
    "not-held-out": not_held_out,
    "jumping": jumping,
    "one-site": lambda: result_of(n_sites=1),
    "many": lambda: result_of(16, 70, 60, rounds=80, merged_at=50),
    "without-intercept": lambda: result_of(intercepts=np.zeros(4), intercept_errors=np.zeros(4)),
    "short": lambda: result_of(rounds=2, merged_at=1),
    "no-merge": lambda: result_of(merged_at=0, merge_path=np.empty((0, 2))),
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

"""Logistic regression on split rows: distance of the averaged coefficients to the global fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.averaging.estimators.proximal_fit import Learner  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.reference_averaging.simulate import simulate_split_rows  # noqa: E402
from replications.reference_averaging.study import (  # noqa: E402
    ADAPTIVE,
    FIXED,
    Results,
    Round,
    Weights,
    coefficients,
    distance,
    mean,
    options,
    rounds,
)

HERE = Path(__file__).parent
N, P = 100_000, 180
ROUNDS, SHOWN = 20, (0, 1, 2, 5, 10, 20)
SCHEDULES = {weights.name: weights for weights in (*FIXED.values(), ADAPTIVE)}
MAIN = ("rho 1", "k^0.9")
LINES: dict[str, tuple[int, float, tuple[str, ...], int]] = {
    "50 sites, m = p": (50, 1.0, tuple(SCHEDULES), 10),
    "25 sites, m = p": (25, 1.0, MAIN, 3),
    "10 sites, m = p": (10, 1.0, MAIN, 3),
    "50 sites, m = p / 4": (50, 0.25, MAIN, 3),
    "50 sites, m = p / 2": (50, 0.5, MAIN, 3),
    "50 sites, m = 3 p / 2": (50, 1.5, MAIN, 3),
}
"""Sites, reference rows for each column, schedules, replicates."""


def learner_of(n: int, reference: Any, seed: int) -> Learner:
    """Logistic regression without penalty or intercept, to a fixed precision."""
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression(
        C=np.inf, fit_intercept=False, solver="newton-cholesky", tol=1e-8, max_iter=200
    )
    return Learner(
        estimator,
        task="classification",
        n_levels=2,
        reference=reference,
        n_total=n,
        seed=seed,
    )


def one(
    n: int, p: int, sites: int, per_column: float, schedules: dict[str, Weights], seed: int
) -> dict[tuple[str, int], float]:
    """Distances by schedule and round for one data set."""
    rng = stream(seed, "logistic", sites)
    data = simulate_split_rows(n, p, sites, rng=rng, response="logistic")
    reference = stream(seed, "reference", sites).standard_normal((round(per_column * p), p))
    learner = learner_of(n, reference, seed)
    wanted = coefficients([learner.fit(*data.pooled)], [1.0])
    found: dict[tuple[str, int], float] = {}
    first: Round | None = None
    for name, weights in schedules.items():
        for step in rounds(learner, data.tables, weights, ROUNDS, first=first):
            first = step if step.k == 0 else first
            found[name, step.k] = distance(coefficients(step.fits, data.sizes), wanted)
    found["truth", 0] = distance(data.coef, wanted[1:])
    return found


def row(data: list[dict[tuple[str, int], float]], name: str, head: dict[str, Any]) -> Any:
    made = {**head, "schedule": name}
    for k in SHOWN:
        made |= mean((each[name, k] for each in data), f"round_{k}")
    made |= mean((each["truth", 0] for each in data), "truth")
    return made


def main() -> None:
    table = Results(HERE, options(__doc__), list(LINES))
    for line, (sites, per_column, names, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        schedules = {name: SCHEDULES[name] for name in names}
        with threadpool_limits(1):
            data = [
                one(N, P, sites, per_column, schedules, seed) for seed in table.seeds(replicates)
            ]
        head = {"sites": sites, "m": round(per_column * P), "replicates": len(data)}
        table.add(line, [row(data, name, head) for name in names])


if __name__ == "__main__":
    main()

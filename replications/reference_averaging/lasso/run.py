"""Lasso with a grid of penalties on split rows: share of the gap in the best R2 that is closed."""

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
from replications.reference_averaging.lasso.by_moments import curves  # noqa: E402
from replications.reference_averaging.simulate import SplitRows, simulate_split_rows  # noqa: E402
from replications.reference_averaging.study import (  # noqa: E402
    ADAPTIVE,
    FIXED,
    FloatArray,
    Results,
    Round,
    Weights,
    coefficients,
    mean,
    options,
    rounds,
)

HERE = Path(__file__).parent
N, P = 100_000, 600
PENALTIES = tuple(np.geomspace(0.012, 0.0005, 8).tolist())
ROUNDS, SHOWN = 20, (1, 2, 5, 10, 20)
SCHEDULES = {weights.name: weights for weights in (FIXED[1.0], ADAPTIVE)}
LINES = {"50 sites": (50, 8), "10 sites": (10, 4)}
"""Sites and replicates."""


def one(
    n: int,
    p: int,
    sites: int,
    schedules: dict[str, Weights],
    penalties: tuple[float, ...],
    seed: int,
) -> dict[str, FloatArray]:
    """R2 of the pooled fit (g,), and of the average by schedule: (g, rounds + 1)."""
    from sklearn.linear_model import Lasso

    data = simulate_split_rows(n, p, sites, rng=stream(seed, "lasso", sites))
    reference = stream(seed, "reference", sites).standard_normal((p, p))
    found: dict[str, list[Any]] = {"global": [], **{name: [] for name in schedules}}
    for penalty in penalties:
        estimator = Lasso(alpha=penalty, fit_intercept=False, tol=1e-5, max_iter=10_000)
        learner = Learner(estimator, task="regression", reference=reference, n_total=n, seed=seed)
        found["global"].append(data.r2(learner.fit(*data.pooled).coef_))
        first: Round | None = None
        for name, weights in schedules.items():
            curve = []
            for step in rounds(learner, data.tables, weights, ROUNDS, first=first):
                first = step if step.k == 0 else first
                curve.append(r2(data, step))
            found[name].append(curve)
    return {name: np.array(values) for name, values in found.items()}


def by_moments(sites: int, seed: int) -> dict[str, FloatArray]:
    """What `one` gives at full size, from second moments."""
    data = simulate_split_rows(N, P, sites, rng=stream(seed, "lasso", sites))
    reference = stream(seed, "reference", sites).standard_normal((P, P))
    return curves(data, reference, SCHEDULES, PENALTIES, ROUNDS)


def r2(data: SplitRows, step: Round) -> float:
    return data.r2(coefficients(step.fits, data.sizes)[1:])


def closed(found: dict[str, FloatArray], name: str, k: int) -> float:
    """Share of the way from the best of averaging to the best of the pooled fits."""
    best, start, end = found[name][:, k].max(), found[name][:, 0].max(), found["global"].max()
    return float((best - start) / (end - start))


def inside(values: FloatArray) -> float:
    return float(0 < int(values.argmax()) < len(values) - 1)


def rows(data: list[dict[str, FloatArray]], head: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for name in SCHEDULES:
        row: dict[str, Any] = {**head, "schedule": name}
        row |= mean((each[name][:, 0].max() for each in data), "averaging", ".5f")
        row |= mean((each[name][:, -1].max() for each in data), "last", ".5f")
        row |= mean((each["global"].max() for each in data), "global", ".5f")
        for k in SHOWN:
            row |= mean((closed(each, name, k) for each in data), f"closed_{k}", ".3f")
        ends = [values for each in data for values in (*each[name].T, each["global"])]
        row["inside"] = f"{np.mean([inside(values) for values in ends]):.2f}"
        made.append(row)
    return made


def main() -> None:
    table = Results(HERE, options(__doc__), list(LINES))
    for line, (sites, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            data = []
            for seed in table.seeds(replicates):
                data.append(by_moments(sites, seed))
                head = {"sites": sites, "replicates": len(data)}
                table.add(line, rows(data, head))  # what there is so far


if __name__ == "__main__":
    main()

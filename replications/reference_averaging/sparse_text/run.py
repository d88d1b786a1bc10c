"""Lasso and ridge on sparse word counts: time of an iteration and R2, against the pooled fit."""

from __future__ import annotations

import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.averaging.estimators.proximal_fit import Learner  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.reference_averaging.simulate import simulate_texts, split_evenly  # noqa: E402
from replications.reference_averaging.study import (  # noqa: E402
    ADAPTIVE,
    Results,
    coefficients,
    options,
    rounds,
)

HERE = Path(__file__).parent
FRESH, ROUNDS = 10_000, 5
LINES: dict[str, dict[str, Any]] = {
    "ridge, 30,000 texts": {"n": 30_000, "p": 20_000, "m": 3000, "sites": 10},
    "ridge, 400,000 texts": {"n": 400_000, "p": 200_000, "m": 20_000, "sites": 40},
    "lasso, 30,000 texts": {"n": 30_000, "p": 20_000, "m": 3000, "sites": 10},
    "lasso, 100,000 texts": {"n": 100_000, "p": 50_000, "m": 5000, "sites": 20},
}
PENALTIES: dict[str, tuple[float, ...]] = {
    "lasso, 30,000 texts": (1e-4, 5e-5),
    "lasso, 100,000 texts": (5e-5,),
    "ridge, 30,000 texts": (3.0, 1.0, 0.3, 0.1, 0.03),
    "ridge, 400,000 texts": (3.0, 1.0, 0.3, 0.1, 0.03),
}
"""For ratings of variance 1: of the mean loss (lasso), of the sum over rows (ridge)."""


def estimator_of(name: str, penalty: float) -> Any:
    from sklearn.linear_model import Lasso, Ridge

    if name == "lasso":
        return Lasso(alpha=penalty, tol=1e-3, max_iter=2000)
    return Ridge(alpha=penalty, solver="lsqr", tol=1e-5)


def one(line: str, n: int, p: int, m: int, sites: int, seed: int) -> list[dict[str, Any]]:
    """Figures of one data set by penalty."""
    name = line.split(",")[0]
    made = simulate_texts(n + m + FRESH, p, rng=stream(seed, "texts", n))
    y = made.y / made.y[:n].std()
    x, far, answers = made.x[:n], made.x[n + m :], y[n + m :]
    reference = made.x[n : n + m]
    tables = [(x[part], y[:n][part]) for part in split_evenly(n, sites)]
    sizes = [len(values) for _, values in tables]

    def r2(coef: Any) -> float:
        lost = answers - coef[0] - far @ coef[1:]
        return float(1.0 - (lost**2).mean() / answers.var())

    found = []
    for penalty in PENALTIES[line]:
        learner = Learner(
            estimator_of(name, penalty),
            task="regression",
            reference=reference,
            n_total=n,
            seed=seed,
        )
        begin = time.process_time()
        pooled = learner.fit(x, y[:n])
        row: dict[str, Any] = {"penalty": penalty, "pooled_seconds": time.process_time() - begin}
        row["r2_pooled"] = r2(coefficients([pooled], [1.0]))
        begin = time.process_time()
        for step in rounds(learner, tables, ADAPTIVE, ROUNDS):
            seconds = time.process_time() - begin
            row[f"seconds_{step.k}"] = seconds / sites
            row[f"r2_{step.k}"] = r2(coefficients(step.fits, sizes))
            begin = time.process_time()
        found.append(row)
        print(line, row, flush=True)
    return found


def rows(found: list[dict[str, Any]], head: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for row in found:
        late = [row[f"seconds_{k}"] for k in range(1, ROUNDS + 1)]
        shown = {name: f"{value:.4f}" for name, value in row.items() if name.startswith("r2")}
        made.append(
            {
                **head,
                "replicates": 1,
                "penalty": f"{row['penalty']:g}",
                "pooled_seconds": f"{row['pooled_seconds']:.1f}",
                "site_seconds_0": f"{row['seconds_0']:.2f}",
                "site_seconds": f"{np.mean(late):.2f}",
                **shown,
            }
        )
    for key in ("r2_pooled", *(f"r2_{k}" for k in range(ROUNDS + 1))):
        best = max(range(len(found)), key=lambda i: found[i][key])
        made[best][f"best_{key}"] = "1"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return [{**row, "peak_gib": f"{peak:.2f}"} for row in made]


def line_of(line: str, seed: int) -> list[dict[str, Any]]:
    """The rows of a line, with the peak memory of the process that computes them."""
    sizes = LINES[line]
    with threadpool_limits(1):
        found = one(line, **sizes, seed=seed)
    return rows(found, {"learner": line.split(",")[0], **sizes})


def main() -> None:
    table = Results(HERE, options(__doc__), list(LINES))
    for line in LINES:
        if not table.wanted(line, 1):
            continue
        # A process of its own for each line: its peak of memory is that of the line.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            table.add(line, alone.submit(line_of, line, table.chosen.seed).result())


if __name__ == "__main__":
    main()

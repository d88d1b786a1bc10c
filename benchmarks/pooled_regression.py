"""What a regression over ten sites costs beside glum's fit to all rows in one table.

``PYTHONPATH=. python benchmarks/pooled_regression.py`` writes results/pooled_regression.json: a
logistic regression of a million rows on 50 columns, local engine, processor seconds of one thread
(set OMP_NUM_THREADS=1), least of four turns. ``simulation`` protects nothing; under ``consortium``
every product of columns is judged before it leaves. The textbook version has one table of fewer
rows, which ten sites fit once more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.ensemble_patterns import machine
from consilience import Columns, Federation, PooledRegression
from tests.reference import pooled_regression as textbook

RESULTS = Path(__file__).parent / "results"
ROWS, COLUMNS, SITES = 1_000_000, 50, 10
FEW = 5000


def seconds_of(
    works: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]], times: int = 3
) -> dict[str, tuple[float, Any]]:
    """Least processor seconds of each, and what was made.

    They take turns, so that a busy machine is as slow for all. What the first function of each
    gives, outside of what is measured, is new each time.
    """
    found: dict[str, tuple[float, Any]] = {}
    for _ in range(times):
        for name, (before, work) in works.items():
            given = before()
            began = time.process_time()
            made = work(given)
            took = time.process_time() - began
            found[name] = min(took, found.get(name, (took,))[0]), made
            del given
    return found


def run_of(federation: Federation) -> Any:
    return PooledRegression(family="binomial").run(federation, seed=0)


def main() -> None:
    from glum import GeneralizedLinearRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS))
    eta = 0.3 + x @ rng.normal(0, 0.1, COLUMNS)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(float)
    found: dict[str, Any] = {
        "machine": machine() | {"load": round(os.getloadavg()[0], 1)},
        "rows": ROWS,
        "columns": COLUMNS,
        "sites": SITES,
    }

    def federation(rows: int, policy: str) -> Federation:
        names = [f"x{j}" for j in range(COLUMNS)]
        parts = np.array_split(np.column_stack([x[:rows], y[:rows]]), SITES)
        tables = {f"s{k}": pd.DataFrame(p, columns=[*names, "y"]) for k, p in enumerate(parts)}
        columns = Columns(features=names, target="y")
        return Federation.local(tables, columns=columns, policy=policy)

    # Of much less than this gradient glum's line search finds no way down.
    glum = GeneralizedLinearRegressor(family="binomial", alpha=0, gradient_tol=1e-6)
    took = seconds_of(
        {
            "glum": (tuple, lambda _: glum.fit(x, y)),
            "simulation": (partial(federation, ROWS, "simulation"), run_of),
            "consortium": (partial(federation, ROWS, "consortium"), run_of),
        },
        times=4,
    )
    seconds, pooled = took["glum"]
    found |= {"glum_seconds": round(seconds, 2), "glum_iterations": int(pooled.n_iter_)}
    for policy in ("simulation", "consortium"):
        own, run = took[policy]
        sent = [line.bytes for line in run.transcript if line.direction == "from-site"]
        found[policy] = {
            "seconds": round(own, 2),
            "over_glum": round(own / seconds, 2),
            "rounds": run.result.rounds,
            "bytes_a_site": sum(sent) // SITES,
            "largest_difference": float(np.abs(run.result.estimate[1:] - pooled.coef_).max()),
        }
        print(policy, found[policy], flush=True)
    design = np.column_stack([np.ones(FEW), x[:FEW]])
    few = seconds_of(
        {
            "textbook": (tuple, lambda _: textbook.fit("binomial", design, y[:FEW])),
            "ours": (partial(federation, FEW, "consortium"), run_of),
        },
        times=2,
    )
    (slow, theta), (own, run) = few["textbook"], few["ours"]
    found["textbook"] = {
        "rows": FEW,
        "seconds": round(slow, 2),
        "ours_over_it": round(own / slow, 3),
        "largest_difference": float(np.abs(run.result.estimate - theta).max()),
    }
    print(found["textbook"])
    RESULTS.joinpath("pooled_regression.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

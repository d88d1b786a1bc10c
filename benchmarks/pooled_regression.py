"""What a regression over ten sites costs beside glum's fit to all rows in one table.

``PYTHONPATH=. python benchmarks/pooled_regression.py`` writes results/pooled_regression.json: a
logistic regression of a million rows on 50 columns, local engine, processor seconds of one thread
(set OMP_NUM_THREADS=1). ``simulation`` protects nothing; under ``consortium`` every product of
columns is judged before it leaves.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.ensemble_patterns import machine
from consilience import Columns, Federation, PooledRegression

RESULTS = Path(__file__).parent / "results"
ROWS, COLUMNS, SITES = 1_000_000, 50, 10


def main() -> None:
    from glum import GeneralizedLinearRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS))
    eta = 0.3 + x @ rng.normal(0, 0.1, COLUMNS)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(float)
    began = time.process_time()
    pooled = GeneralizedLinearRegressor(family="binomial", alpha=0, gradient_tol=1e-6).fit(x, y)
    seconds = time.process_time() - began
    found: dict[str, Any] = {
        "machine": machine(),
        "rows": ROWS,
        "columns": COLUMNS,
        "sites": SITES,
        "glum_seconds": round(seconds, 2),
        "glum_iterations": int(pooled.n_iter_),
    }
    names = [f"x{j}" for j in range(COLUMNS)]
    parts = np.array_split(np.column_stack([x, y]), SITES)
    tables = {f"s{k}": pd.DataFrame(part, columns=[*names, "y"]) for k, part in enumerate(parts)}
    for policy in ("simulation", "consortium"):
        columns = Columns(features=names, target="y")
        federation = Federation.local(tables, columns=columns, policy=policy)
        began = time.process_time()
        run = PooledRegression(family="binomial").run(federation, seed=0)
        took = time.process_time() - began
        sent = [line.bytes for line in run.transcript if line.direction == "from-site"]
        found[policy] = {
            "seconds": round(took, 2),
            "over_glum": round(took / seconds, 2),
            "rounds": run.result.rounds,
            "bytes_a_site": sum(sent) // SITES,
            "largest_difference": float(np.abs(run.result.estimate[1:] - pooled.coef_).max()),
        }
        print(policy, found[policy], flush=True)
    RESULTS.joinpath("pooled_regression.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Agents that report in part of the rounds: the average of rounds 51 to 80."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.latent_class_regression.study import (  # noqa: E402
    design,
    federated,
    parts,
    to_oracle,
)

HERE = Path(__file__).parent
N_CLASSES, DESIGN = 8, {"n_entities": 16, "n_events": 10, "sigma": 0.5}
SITES = 128
"""Each agent is a site."""
SETTINGS: dict[str, Any] = {
    "start": "random",
    "rounds": 40,
    "settle_rounds": 10,
    "average_rounds": 30,
    "adapt_rate": False,
}
"""Classes and probabilities are averaged over rounds 51 to 80."""
LINES: dict[str, tuple[float, dict[str, Any], int]] = {
    "5 %, gamma 0.2": (0.05, {"learning_rate": 0.2}, 2),
    "15 %, gamma 0.1": (0.15, {"learning_rate": 0.1}, 2),
    "15 %, gamma 0.2": (0.15, {"learning_rate": 0.2}, 10),
    "15 %, gamma 0.5": (0.15, {"learning_rate": 0.5}, 2),
    "15 %, gamma 1": (0.15, {"learning_rate": 1.0}, 2),
    "15 %, gamma 0.2, last sums kept": (0.15, {"learning_rate": 0.2, "server_cache": True}, 2),
    "15 %, default gamma": (0.15, {"adapt_rate": True}, 2),
    "50 %, gamma 0.5": (0.5, {"learning_rate": 0.5}, 2),
}
"""Share that reports, settings of the method, data sets."""


def one(line: str, seed: int) -> dict[str, float]:
    """Relative error in one data set."""
    share, settings, _ = LINES[line]
    data = design(N_CLASSES, seed, "participation", **DESIGN)
    train, test = parts(data, seed)
    settings = SETTINGS | settings | {"participation": share}
    run, predict = federated(train, N_CLASSES, seed, n_sites=SITES, **settings)
    return {
        "error": to_oracle(data, test, predict(test)),
        "sigma": run.result.sigma / data.sigma,
        "reported": float(np.mean(run.result.reported)),
        "rate": float(run.result.learning_rates[-1]),
        "rounds": float(run.result.rounds_run),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (share, _, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        row: dict[str, Any] = {"share": share, "replicates": len(sets)}
        row |= mean((each["error"] for each in sets), "error", ".3f")
        row["error_most"] = f"{max(each['error'] for each in sets):.3f}"
        for figure in ("sigma", "reported", "rate", "rounds"):
            row[figure] = f"{np.mean([each[figure] for each in sets]):.3g}"
        table.add(line, [row])


if __name__ == "__main__":
    main()

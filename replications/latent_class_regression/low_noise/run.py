"""Low noise: every data set within a twentieth of the oracle, and what rate 1 does."""

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
    central,
    design,
    federated,
    parts,
    to_oracle,
)

HERE = Path(__file__).parent
REPLICATES = 10
SITES = 8
N_CLASSES, DESIGN = 16, {"n_entities": 4, "n_events": 20, "sigma": 0.1}
BARE = {"start": "random", "n_start": N_CLASSES}
"""As in the source: as many classes from the start as are wanted, and no good start."""
LESS = 0.05
KNOWN = BARE | {"noise": LESS}
"""With less noise, which is known: labels are as certain as they get from the first round."""
LINES: dict[str, dict[str, Any]] = {
    "central": {},
    "federated": {},
    "federated, random start": {"start": "random"},
    "gamma 1": {"start": "random", "learning_rate": 1.0, "adapt_rate": False},
    "K classes from the start, gamma 1": BARE | {"learning_rate": 1.0, "adapt_rate": False},
    "K classes from the start, gamma 1, lowered": BARE | {"learning_rate": 1.0},
    "K classes from the start, gamma 0.5": BARE | {"learning_rate": 0.5, "adapt_rate": False},
    "sigma known, gamma 1": KNOWN | {"learning_rate": 1.0, "adapt_rate": False},
    "sigma known, gamma 1, lowered": KNOWN | {"learning_rate": 1.0},
}
BOUND = 1.05


def one(line: str, seed: int) -> dict[str, float]:
    """Relative error and moving labels in one data set."""
    less = {"sigma": LESS} if "sigma known" in line else {}
    data = design(N_CLASSES, seed, "low noise", **(DESIGN | less))
    train, test = parts(data, seed)
    if line == "central":
        model = central(train, N_CLASSES, seed)
        predicted = model.predict(test.x, entity=test.entity, agent=test.agent)
        return {"error": to_oracle(data, test, predicted)}
    run, predict = federated(train, N_CLASSES, seed, n_sites=SITES, **LINES[line])
    return {
        "error": to_oracle(data, test, predict(test)),
        "moved": float(np.mean(run.result.trace_moved[-5:])),
        "rate": float(run.result.learning_rates[-1]),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        errors = [each["error"] for each in sets]
        row: dict[str, Any] = {
            "replicates": len(sets),
            **mean(errors, "error", ".3f"),
            "error_least": f"{min(errors):.3f}",
            "error_most": f"{max(errors):.3f}",
            "within": sum(error <= BOUND for error in errors),
        }
        for figure in ("moved", "rate"):
            if figure in sets[0]:
                row[figure] = f"{np.mean([each[figure] for each in sets]):.3f}"
        table.add(line, [row])


if __name__ == "__main__":
    main()

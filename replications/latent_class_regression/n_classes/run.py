"""The number of classes found by merging, and the noise beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.latent_class_regression.study import central, design, federated  # noqa: E402

HERE = Path(__file__).parent
SIGMA = 0.5
UNEQUAL = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
LINES: dict[str, tuple[str, int, dict[str, Any], int]] = {
    "equal": ("central", 6, {"shares": (1.0,) * 6}, 50),
    "unequal": ("central", 6, {"shares": UNEQUAL}, 50),
    "one class": ("central", 1, {}, 50),
    "equal, many short entities": (
        "central",
        6,
        {"shares": (1.0,) * 6, "n_entities": 16, "n_events": 5},
        4,
    ),
    "equal, federated": ("federated", 6, {"shares": (1.0,) * 6}, 4),
    "one class, federated": ("federated", 1, {}, 4),
}
"""Where it is fitted, true classes, design, data sets."""
SITES = 8


def one(line: str, seed: int) -> dict[str, float]:
    """Classes found and the estimated noise in one data set."""
    where, n_classes, settings, _ = LINES[line]
    data = design(n_classes, seed, "n_classes", line, sigma=SIGMA, **settings)
    if where == "central":
        model = central(data.events, "auto", seed)
        found, sigma = len(model.class_sizes_), model.sigma_
    else:
        run, _ = federated(data.events, "auto", seed, n_sites=SITES)
        found, sigma = run.result.n_classes, run.result.sigma
    # a class of the design may have no entity; it cannot be found
    present = len(np.unique(data.events.label))
    return {"found": float(found), "right": float(found == present), "sigma": sigma / SIGMA}


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (where, n_classes, _, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        table.add(
            line,
            [
                {
                    "fitted": where,
                    "n_classes": n_classes,
                    "replicates": len(sets),
                    "right": sum(int(each["right"]) for each in sets),
                    "fewest": f"{min(each['found'] for each in sets):.0f}",
                    "most": f"{max(each['found'] for each in sets):.0f}",
                    **mean((each["sigma"] for each in sets), "sigma"),
                    "sigma_least": f"{min(each['sigma'] for each in sets):.4f}",
                    "sigma_most": f"{max(each['sigma'] for each in sets):.4f}",
                }
            ],
        )


if __name__ == "__main__":
    main()

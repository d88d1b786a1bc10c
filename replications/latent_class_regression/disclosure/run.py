"""What the rules for class sums cost, by policy, start and number of agents at a site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.exceptions import ConsilienceError  # noqa: E402
from replications.assisted_glm.study import (  # noqa: E402
    Table,
    crossed,
    mean,
    options,
    replicate,
)
from replications.latent_class_regression.study import (  # noqa: E402
    design,
    federated,
    parts,
    to_oracle,
)

HERE = Path(__file__).parent
AGENTS = 128
N_CLASSES, DESIGN = 8, {"n_entities": 16, "n_events": 10, "sigma": 0.5, "n_agents": AGENTS}
REPLICATES = 10
LINES = [
    *crossed((2, 4, 16, 64), ("local",), ("simulation", "strict")),
    (4, "local", "consortium"),
    *((4, "random", policy) for policy in ("simulation", "strict")),
]
"""The rules for class sums are the same in a consortium; one start shows it."""


def one(per_site: int, start: str, policy: str, seed: int) -> dict[str, float]:
    """Relative error and what was released in one data set."""
    data = design(N_CLASSES, seed, "disclosure", **DESIGN)
    train, test = parts(data, seed)
    try:
        run, predict = federated(
            train, N_CLASSES, seed, n_sites=AGENTS // per_site, policy=policy, start=start
        )
    except ConsilienceError:
        return {"error": np.nan, "released": np.nan, "repeated": np.nan, "withheld": np.nan}
    found = run.result
    sums = found.released + found.repeated + found.withheld
    return {
        "error": to_oracle(data, test, predict(test)),
        **{
            name: float(getattr(found, name).sum() / sums.sum())
            for name in ("released", "repeated", "withheld")
        },
    }


def main() -> None:
    names = [f"{a} agents a site, start {s}, {p}" for a, s, p in LINES]
    chosen = options(__doc__)
    table = Table(HERE, chosen, names)
    for name, line in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, *line, replicates=REPLICATES, chosen=chosen)
        keys = ("agents_a_site", "start", "policy")
        row: dict[str, Any] = {**dict(zip(keys, line, strict=True)), "replicates": len(sets)}
        row["refused"] = sum(np.isnan(each["error"]) for each in sets)
        for figure in sets[0]:
            row |= mean((each[figure] for each in sets), figure, ".3f")
        table.add(name, [row])


if __name__ == "__main__":
    main()

"""Kinds or degrees over sites: what is said of data with one true class, and of two and four."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_latent_classes import LatentClassEvents  # noqa: E402
from consilience.latent_regression.protocol.result import MIXED, RIDGE, lead, saved  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate  # noqa: E402
from replications.latent_class_regression.kinds.run import ONE_CLASS, drawn  # noqa: E402
from replications.latent_class_regression.study import design, federated  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 100
SITES = 4
CLASSES = {"two classes": 2, "four classes": 4}
STRICT = ("t3", "random intercepts", "random slopes", "x^2, x by entity", *CLASSES)
LINES = (*ONE_CLASS, *CLASSES, *(f"{line}, strict" for line in STRICT))


def events_of(line: str, seed: int) -> LatentClassEvents:
    """Data of "kinds", as a table of its agents and entities."""
    if line in CLASSES:
        return design(CLASSES[line], seed, "kinds", line, sigma=0.5).events
    x, y, entity, agent = drawn(line, seed)
    n = len(y)

    def named(numbers: np.ndarray) -> np.ndarray:
        return np.char.zfill(numbers.astype(str), 6)

    return LatentClassEvents(
        agent=named(agent),
        entity=named(entity),
        x=x,
        y=y,
        label=np.zeros(n, dtype=np.int64),
        event=np.arange(n),
        fold=np.zeros(n, dtype=np.int64),
    )


def one(line: str, seed: int) -> dict[str, float]:
    """What the result says of one data set."""
    kind = line.removesuffix(", strict")
    preset = "strict" if line.endswith(", strict") else "simulation"
    data = events_of(kind, seed)
    run, _ = federated(data, "auto", seed, n_sites=SITES, holdout=0.2, policy=preset)
    result = run.result
    mse = result.pooled_mse
    said = str(result.verdict)
    return {
        "right": float(result.n_classes == len(np.unique(data.label))),
        "not_kinds": float(said != "kinds"),
        "degrees": float(said.startswith("degrees")),
        "no_evidence": float(said.startswith("no")),
        "saved": saved(result).share,
        "mixed_saved": 1 - mse[MIXED] / mse[RIDGE],
        "lead": lead(result).share,
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        row = {"replicates": len(sets)}
        for name in ("not_kinds", "degrees", "no_evidence", "right"):
            row[name] = int(sum(each[name] for each in sets))
        share = row["not_kinds"] / len(sets)
        row["not_kinds_se"] = f"{np.sqrt(share * (1 - share) / len(sets)):.3f}"
        for name in ("saved", "mixed_saved", "lead"):
            row[name] = f"{np.nanmean([each[name] for each in sets]):.4f}"
        table.add(line, [row])


if __name__ == "__main__":
    main()

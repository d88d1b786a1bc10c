"""Numbers of clusters chosen by held-out entries and by other criteria: four designs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.completion.kernels.cluster_criteria import all_criteria  # noqa: E402
from consilience.datasets.simulate_matrices import (  # noqa: E402
    ClusterDesign,
    simulate_clusters,
)
from consilience.numerics.entries import Entries  # noqa: E402
from consilience.numerics.entry_folds import entry_folds  # noqa: E402
from consilience.numerics.held_out_entries import (  # noqa: E402
    KMeansPath,
    KPODPath,
    held_out_errors,
)
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 100
N_FOLDS, LARGEST, STARTS = 10, 10, 10
LINES = get_args(ClusterDesign)
OBSERVED = "observed coordinates"
PATHS: dict[str, tuple[type[KMeansPath], int]] = {
    OBSERVED: (KMeansPath, STARTS),
    "k-POD": (KPODPath, STARTS),
    "k-POD, one start": (KPODPath, 1),
}
SOURCE = {"plane": -1.00, "line": 0.05, "correlated": 0.20, "heavy": 0.15}
"""Chosen number less 5, of the source's cross-validated k-POD: means of 20 tables."""


def one(line: ClusterDesign, seed: int) -> dict[str, int]:
    """Number that each way chooses; LARGEST where a criterion is best at the end of its grid."""
    table = simulate_clusters(line, rng=stream(seed, "clusters", line))
    entries = Entries.of(table.x)
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    numbers = list(range(1, LARGEST + 1))
    found: dict[str, int] = {}
    for name, (kind, n_init) in PATHS.items():
        curve = held_out_errors(entries, kind(parameters=numbers, seed=seed, n_init=n_init), folds)
        found[name] = int(curve.best)
        if name == OBSERVED:
            found[f"{name}, one standard error"] = int(curve.best_one_standard_error)
    rng = stream(seed, "criteria", line)
    criteria = all_criteria(table.x, LARGEST, rng=rng, n_init=STARTS)
    # None: the grid ends before the rule holds
    return found | {name: result.choice or LARGEST for name, result in criteria.items()}


def rows_of(line: str, sets: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
    """One row for each way to choose."""
    made = []
    for name in sets[0]:
        chosen = [figures[name] for figures in sets]
        row: dict[str, Any] = {"design": line, "model": name, "replicates": len(sets)}
        row |= mean((k - 5.0 for k in chosen), "off", ".2f")
        row |= share((float(k == 5) for k in chosen), "five", 3)
        row |= share((float(k == 1) for k in chosen), "one", 3)
        row["source"] = f"{SOURCE[line]:.2f}" if name.startswith("k-POD") else ""
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        table.add(line, rows_of(line, sets))


if __name__ == "__main__":
    main()

"""Ranks chosen by HARD-IMPUTE whose fits stop sooner or later, in the designs of the rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.completion.estimators.entry_plans import HardPath  # noqa: E402
from consilience.datasets.simulate_matrices import (  # noqa: E402
    Factors,
    Noise,
    simulate_low_rank,
)
from consilience.numerics.entries import Entries  # noqa: E402
from consilience.numerics.entry_folds import entry_folds  # noqa: E402
from consilience.numerics.held_out_entries import held_out_errors  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, crossed, options, replicate  # noqa: E402
from replications.unsupervised_selection.study import (  # noqa: E402
    N_FOLDS,
    RANKS,
    best_rank,
    rows_of_ranks,
)

HERE = Path(__file__).parent
REPLICATES = 100
STOPS = {"stops at .003": 3e-3, "stops at .001": 1e-3}
"""Change of the matrix over its norm at which a fit ends."""
LINES: dict[str, tuple[Factors, Noise]] = {
    f"{factors} factors, {noise} noise": (factors, noise)
    for factors, noise in crossed(get_args(Factors), get_args(Noise))
}
SOURCE = {
    ("gaussian", "white"): 0.0,
    ("gaussian", "coloured"): -0.24,
    ("gaussian", "heavy"): -0.03,
    ("sparse", "white"): -1.16,
    ("sparse", "coloured"): -1.66,
    ("sparse", "heavy"): -1.32,
}
"""Chosen rank less the best one of HARD: means of 100 tables."""


def one(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one table, that of the same seed in the table of ranks, by when fits stop."""
    factors, noise = LINES[line]
    table = simulate_low_rank(
        rng=stream(seed, "rank", factors, noise), factors=factors, noise=noise
    )
    entries = Entries.of(table.x)
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    ranks = list(RANKS)
    best = best_rank(table, HardPath(parameters=ranks))
    found = {}
    for name, tol in STOPS.items():
        rank = held_out_errors(entries, HardPath(parameters=ranks, tol=tol), folds).best
        found[name] = {"off": rank - best, "best": best, "hit": float(rank == table.rank)}
    return found


def spread(sets: list[dict[str, dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """Of each stop in how many tables the rank is two or more below and above the best."""
    for name in STOPS:
        off = np.array([figures[name]["off"] for figures in sets])
        yield {"below": int((off <= -2).sum()), "above": int((off >= 2).sum())}


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (factors, noise) in LINES.items():
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        rows = rows_of_ranks(sets, dict.fromkeys(STOPS, SOURCE[factors, noise]))
        table.add(
            line,
            [
                {"factors": factors, "noise": noise, **row, **more}
                for row, more in zip(rows, spread(sets), strict=True)
            ],
        )


if __name__ == "__main__":
    main()

"""Standard errors of held-out errors beside how much these differ from table to table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.completion.estimators.entry_plans import HardPath  # noqa: E402
from consilience.datasets.simulate_matrices import Noise, simulate_low_rank  # noqa: E402
from consilience.numerics.entries import Entries  # noqa: E402
from consilience.numerics.entry_folds import entry_folds  # noqa: E402
from consilience.numerics.held_out_entries import held_out_errors  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate  # noqa: E402

FloatArray = NDArray[np.float64]
HERE = Path(__file__).parent
REPLICATES = 200
N_FOLDS = 5
VALUES = (6.0, 5.0, 4.0)  # singular values of the signal: the true rank is 3
RANKS = [0, 1, 2, 3, 4]
LINES: dict[str, tuple[int, int, Noise]] = {
    "50 x 40, white noise": (50, 40, "white"),
    "50 x 40, heavy noise": (50, 40, "heavy"),
    "200 x 20, white noise": (200, 20, "white"),
}


def one(line: str, seed: int) -> FloatArray:
    """Of one table, by rank: mean error, its standard errors by folds and by rows and columns."""
    n, p, noise = LINES[line]
    rng = stream(seed, "standard errors", line)
    table = simulate_low_rank(n, p, rng=rng, singular_values=VALUES, noise=noise, observed=0.8)
    entries = Entries.of(table.x)
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    curve = held_out_errors(entries, HardPath(parameters=RANKS), folds)
    assert curve.table_se is not None
    return np.stack([curve.mean, curve.se, curve.table_se])


def ratios(sets: list[FloatArray]) -> Iterator[dict[str, Any]]:
    """Root mean squares of standard errors over the standard deviation of errors over tables."""
    means, *errors = np.stack(sets, axis=1)
    spread = means.std(axis=0, ddof=1)
    for place, rank in enumerate(RANKS):
        row: dict[str, Any] = {"model": f"rank {rank}", "replicates": len(sets)}
        row["spread"] = f"{spread[place]:.4f}"
        for name, found in zip(("by_folds", "by_table"), errors, strict=True):
            ratio = np.sqrt((found[:, place] ** 2).mean()) / spread[place]
            # of a standard deviation of normal figures; that of the numerator is smaller
            row |= {name: f"{ratio:.3f}", f"{name}_se": f"{ratio / np.sqrt(2 * len(sets)):.3f}"}
        yield row


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if table.wanted(line, REPLICATES):
            with threadpool_limits(1):
                sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
            table.add(line, list(ratios(sets)))


if __name__ == "__main__":
    main()

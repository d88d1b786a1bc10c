"""Ranks chosen by held-out entries in tables of low rank: the source's table of six designs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.completion.kernels.low_rank import LowRankFit  # noqa: E402
from consilience.completion.kernels.soft_impute import alpha_max, soft_path, unshrink  # noqa: E402
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
    chosen_ranks,
    rows_of_ranks,
)

HERE = Path(__file__).parent
REPLICATES = 100
LINES: dict[str, tuple[Factors, Noise]] = {
    f"{factors} factors, {noise} noise": (factors, noise)
    for factors, noise in crossed(get_args(Factors), get_args(Noise))
}
SOURCE = {
    ("gaussian", "white"): {"HARD": 0.0, "SOFT+": 0.0},
    ("gaussian", "coloured"): {"HARD": -0.24, "SOFT+": 1.26},
    ("gaussian", "heavy"): {"HARD": -0.03, "SOFT+": 0.53},
    ("sparse", "white"): {"HARD": -1.16, "SOFT+": 0.02},
    ("sparse", "coloured"): {"HARD": -1.66, "SOFT+": 2.02},
    ("sparse", "heavy"): {"HARD": -1.32, "SOFT+": 0.71},
}
"""Chosen rank less the best one: means of 100 tables."""


ON_A_GRID = "SOFT+, 20 penalties"
N_ALPHAS, SMALLEST = 20, 0.03


@dataclass(frozen=True)
class GridPath:
    """Ranks of SOFT+ from a short path: the last of its penalties whose solution has that rank.

    Where none has it, the nearest lower rank.
    """

    parameters: Sequence[int]

    def predictions(
        self, train: Entries, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Iterator[NDArray[np.float64]]:
        """Predictions of held-out entries by rank."""
        alphas = np.geomspace(1.0, SMALLEST, N_ALPHAS) * alpha_max(train)
        last: dict[int, LowRankFit] = {}
        for fit in soft_path(train, alphas, tol=1e-5):
            if fit.rank > max(self.parameters):
                break
            last[fit.rank] = fit
        found = np.zeros(len(rows))
        for rank in self.parameters:
            if rank in last:
                found = unshrink(train, last[rank]).at(rows, columns)
            yield found


def one(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one table by model."""
    factors, noise = LINES[line]
    rng = stream(seed, "rank", factors, noise)
    table = simulate_low_rank(rng=rng, factors=factors, noise=noise)
    found = chosen_ranks(table, seed=seed)
    entries = Entries.of(table.x)
    folds = entry_folds(entries, N_FOLDS, stream(seed, "folds"))
    rank = int(held_out_errors(entries, GridPath(RANKS), folds).best)
    best = found["SOFT+"]["best"]
    found[ON_A_GRID] = {"off": rank - best, "best": best, "hit": float(rank == table.rank)}
    return found


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (factors, noise) in LINES.items():
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        source = SOURCE[factors, noise]
        rows = rows_of_ranks(sets, {**source, ON_A_GRID: source["SOFT+"]})
        table.add(line, [{"factors": factors, "noise": noise, **row} for row in rows])


if __name__ == "__main__":
    main()

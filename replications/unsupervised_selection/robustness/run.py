"""Ranks chosen by held-out entries in other tables: equal values, low signal, shapes, gaps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_matrices import (  # noqa: E402
    SINGULAR_VALUES,
    Factors,
    simulate_low_rank,
)
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, crossed, options, replicate  # noqa: E402
from replications.unsupervised_selection.study import chosen_ranks, rows_of_ranks  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 100
D = np.array(SINGULAR_VALUES)
SETTINGS: dict[str, dict[str, Any]] = {
    "n = p = 20, equal values": {
        "n_rows": 20,
        "n_columns": 20,
        "singular_values": np.full(6, D.mean()),
    },
    "rank 9": {"singular_values": np.linspace(D.max(), D.min(), 9)},
    "low signal": {"singular_values": D / 3.0},
    "n = 20, p = 100": {"n_rows": 20},
    "60 % observed": {"observed": 0.6},
}
"""What differs from 50 x 100, complete, values 10 to 5; noise is white everywhere."""
LINES: dict[str, tuple[str, Factors]] = {
    f"{setting}, {factors} factors": (setting, factors)
    for setting, factors in crossed(SETTINGS, get_args(Factors))
}


def one(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one table by model."""
    setting, factors = LINES[line]
    rng = stream(seed, "robustness", setting, factors)
    return chosen_ranks(simulate_low_rank(rng=rng, factors=factors, **SETTINGS[setting]), seed=seed)


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (setting, factors) in LINES.items():
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        rows = rows_of_ranks(sets)
        table.add(line, [{"setting": setting, "factors": factors, **row} for row in rows])


if __name__ == "__main__":
    main()

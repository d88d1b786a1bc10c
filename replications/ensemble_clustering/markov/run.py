"""Two sites with sequences of states: the ensemble beside local, ported and pooled fits."""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.numerics.random import stream  # noqa: E402
from replications.ensemble_clustering.coded_sites import (  # noqa: E402
    CodedSites,
    one_data_set,
    summary,
)
from replications.ensemble_clustering.simulate_sequences import (  # noqa: E402
    LONG,
    SHORT,
    TWO_SITES,
    SimulatedSequences,
    simulate_sequences,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
K, S = 4, 5
REPEATS, PROCESSES = 20, 2
LENGTHS = {"20-40": LONG, "4-16": SHORT}
CONCENTRATIONS = (1.0, 3.0)
SHARES: dict[str, float | None] = {"equal": None, "by site": 1.0}


def simulated(
    lengths: str, concentration: float, shares: str, seed: int, sizes: tuple[int, ...] = TWO_SITES
) -> tuple[CodedSites, SimulatedSequences]:
    sim = simulate_sequences(
        rng=stream(seed, "sequences", lengths, repr(concentration), shares),
        sizes=sizes,
        n_classes=K,
        n_states=S,
        lengths=LENGTHS[lengths],
        proportions=SHARES[shares],
        concentration=concentration,
    )
    together = np.bincount(sim.site) @ sim.proportions / len(sim.site)
    for_all = SimulatedSequences(
        sim.wide,
        np.zeros_like(sim.site),
        sim.label,
        sim.initial,
        sim.transition,
        together[None],
    )

    def split(values: Any) -> tuple[Any, ...]:
        return tuple(values[sim.site == m] for m in range(sim.n_sites))

    sites = CodedSites(
        "markov-mixture",
        (S,),
        split(sim.wide),
        split(sim.label),
        split(sim.oracle()),
        split(for_all.oracle()),
    )
    return sites, sim


def one(lengths: str, concentration: float, shares: str, seed: int) -> dict[str, float]:
    """Figures of one data set."""
    with threadpool_limits(1):
        sites, _ = simulated(lengths, concentration, shares, seed)
        return one_data_set(sites, K, seed=seed)


def main() -> None:
    stamp = table_hash(HERE)
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for lengths in LENGTHS:
            for concentration in CONCENTRATIONS:
                for shares in SHARES:
                    of_seed = partial(one, lengths, concentration, shares)
                    sets = list(pool.map(of_seed, range(REPEATS)))
                    row: dict[str, object] = {
                        "lengths": lengths,
                        "concentration": concentration,
                        "shares": shares,
                        "replicates": len(sets),
                    }
                    rows.append(row | summary(sets) | {"code_hash": stamp})
                    print(*rows[-1].values(), flush=True)
                    write(rows)


def write(rows: list[dict[str, object]]) -> None:
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

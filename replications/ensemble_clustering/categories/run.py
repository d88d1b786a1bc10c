"""Five sites with a small table of categories: the ensemble of latent classes and its rivals."""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.clustering.kernels.multinomial_mixture import MultinomialMixture  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.ensemble_clustering.coded_sites import (  # noqa: E402
    CodedSites,
    one_data_set,
    summary,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
K, M = 3, 5
LEVELS = (2, 3, 3, 4, 2, 3, 3, 4)
ROWS = {"100-300": (100, 300), "500-1500": (500, 1500)}
REPEATS, PROCESSES = 20, 1
SHARES: dict[str, float | None] = {"equal": None, "by site": 1.0}
MISSING = 0.1


def simulated(rows: str, shares: str, seed: int) -> CodedSites:
    """Classes whose chances of the levels are Dirichlet(1); a tenth of the entries is missing."""
    rng = stream(seed, "categories", rows, shares)
    chances = np.concatenate([rng.dirichlet(np.ones(size), K) for size in LEVELS], axis=1)
    sizes = rng.integers(ROWS[rows][0], ROWS[rows][1] + 1, size=M)
    concentration = SHARES[shares]
    proportions = (
        np.full((M, K), 1.0 / K)
        if concentration is None
        else rng.dirichlet(np.full(K, concentration), M)
    )
    overall = MultinomialMixture(sizes @ proportions / sizes.sum(), chances, LEVELS)
    codes, truth, oracle, shared_oracle = [], [], [], []
    for size, own in zip(sizes, proportions, strict=True):
        mixture = MultinomialMixture(own, chances, LEVELS)
        table, classes = mixture.sample(int(size), rng)
        table = np.where(rng.random(table.shape) < MISSING, -1, table)
        codes.append(table)
        truth.append(classes)
        oracle.append(mixture.label(table))
        shared_oracle.append(overall.label(table))
    return CodedSites(
        "latent-class", LEVELS, tuple(codes), tuple(truth), tuple(oracle), tuple(shared_oracle)
    )


def one(rows: str, shares: str, min_records: int, seed: int) -> dict[str, float]:
    """Figures of one data set."""
    with threadpool_limits(1):
        return one_data_set(simulated(rows, shares, seed), K, seed=seed, min_records=min_records)


def main() -> None:
    stamp = table_hash(HERE)
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for size, shares, min_records in product(ROWS, SHARES, (1, 10)):
            sets = list(pool.map(partial(one, size, shares, min_records), range(REPEATS)))
            row: dict[str, object] = {
                "rows": size,
                "shares": shares,
                "min_records": min_records,
                "replicates": len(sets),
            }
            rows.append(row | summary(sets) | {"code_hash": stamp})
            print(*rows[-1].values(), flush=True)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

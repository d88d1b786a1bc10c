"""Number of classes of sequences by the vote of two sites, each by its own BIC."""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.ensemble_clustering.coded_sites import (  # noqa: E402
    cells,
    mean_and_error,
    vote,
)
from replications.ensemble_clustering.markov.run import (  # noqa: E402
    LENGTHS,
    SHARES,
    K,
    simulated,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
REPEATS, PROCESSES = 10, 1
CONCENTRATION = 1.0


def one(lengths: str, concentration: float, shares: str, seed: int) -> dict[str, float]:
    """Votes and the plurality: ties go to the smaller, so of two sites the smaller vote."""
    with threadpool_limits(1):
        sites, _ = simulated(lengths, concentration, shares, seed)
        votes = vote(sites, seed=seed)
    chosen = min(votes)
    return {
        "chosen": chosen,
        "right": float(chosen == K),
        "fewer": float(chosen < K),
        "more": float(chosen > K),
        "alike": float(len(set(votes)) == 1),
        "right_vote": sum(v == K for v in votes) / len(votes),
    }


def main() -> None:
    stamp = table_hash(HERE)
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for lengths, shares in product(LENGTHS, SHARES):
            sets = list(pool.map(partial(one, lengths, CONCENTRATION, shares), range(REPEATS)))
            row: dict[str, object] = {
                "lengths": lengths,
                "concentration": CONCENTRATION,
                "shares": shares,
                "replicates": len(sets),
            }
            figures = {n: mean_and_error([s[n] for s in sets]) for n in sets[0]}
            rows.append(row | cells(figures) | {"code_hash": stamp})
            print(*rows[-1].values(), flush=True)
            write(rows)


def write(rows: list[dict[str, object]]) -> None:
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

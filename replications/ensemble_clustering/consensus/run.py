"""Ensemble against consensus, data set by data set, where the main table leaves it open."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.ensemble_clustering.study import one_data_set  # noqa: E402
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
PARTS = {"of the main table": range(100), "further": range(100, 300), "all": range(300)}
WEIGHTS = {"spectral": "ensemble", "centred": "ensemble_centred"}


def main() -> None:
    sets = [
        one_data_set("outliers", 5, 0.05, seed, min_records=10, trim="others")
        for seed in range(300)
    ]
    rows = []
    for part, seeds in PARTS.items():
        for weights, column in WEIGHTS.items():
            ours, theirs = (np.array([sets[s][c] for s in seeds]) for c in (column, "consensus"))
            difference = ours - theirs
            rows.append(
                {
                    "data_sets": part,
                    "number": len(difference),
                    "weights": weights,
                    "ensemble": f"{ours.mean():.4f}",
                    "consensus": f"{theirs.mean():.4f}",
                    "difference": f"{difference.mean():.4f}",
                    "paired_se": f"{difference.std(ddof=1) / np.sqrt(len(difference)):.4f}",
                    "code_hash": table_hash(HERE),
                }
            )
            print(*list(rows[-1].values())[:-1], flush=True)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

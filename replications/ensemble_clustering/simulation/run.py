"""Adjusted Rand index of ensemble clustering and its rivals in the three designs of the source."""

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
REPEATS = {5: 100, 10: 60, 50: 12}
FIGURES = ("ensemble", "ensemble_centred", "local", "best_local", "consensus", "k_fed", "pooled")
OTHERS = ("regular_trimmed", "outlying_trimmed", "weight_accuracy_correlation")


def cells():
    for design in ("homogeneous", "imbalanced"):
        for n_sites in REPEATS:
            for variance in (0.05, 0.1, 0.3):
                for min_records in (1, 10):
                    yield design, n_sites, variance, min_records, "none"
    for n_sites in (5, 10):
        for variance in (0.05, 0.1, 0.3):
            for min_records in (1, 10):
                for trim in ("none", "own", "others"):
                    yield "outliers", n_sites, variance, min_records, trim


def mean_and_error(values: list[float]) -> tuple[float, float]:
    known = np.array([v for v in values if not np.isnan(v)])
    if known.size < 2:
        return float("nan"), float("nan")
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(known.size))


def main() -> None:
    stamp = table_hash(HERE)
    rows = []
    for design, n_sites, variance, min_records, trim in cells():
        sets = [
            one_data_set(design, n_sites, variance, seed, min_records=min_records, trim=trim)
            for seed in range(REPEATS[n_sites])
        ]
        row: dict[str, object] = {
            "design": design,
            "sites": n_sites,
            "variance": variance,
            "min_records": min_records,
            "trim": trim,
            "data_sets": len(sets),
        }
        for name in (*FIGURES, *OTHERS):
            value, error = mean_and_error([s[name] for s in sets])
            row[name] = "" if np.isnan(value) else f"{value:.4f}"
            if name in FIGURES:
                row[f"{name}_se"] = f"{error:.4f}"
        row["code_hash"] = stamp
        rows.append(row)
        print(*list(row.values())[:-1], flush=True)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

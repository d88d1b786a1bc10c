"""Which weighting is better, and when: spectral, centred or equal."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.ensemble_clustering.study import (  # noqa: E402
    SCENARIOS,
    one_weighting_data_set,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
DATA_SETS = 60


def main() -> None:
    stamp = table_hash(HERE)
    rows = []
    for scenario in SCENARIOS:
        for min_records in (1, 10):
            sets = [
                one_weighting_data_set(scenario, seed, min_records=min_records)
                for seed in range(DATA_SETS)
            ]
            row: dict[str, object] = {
                "scenario": scenario,
                "min_records": min_records,
                "data_sets": DATA_SETS,
            }
            values = {name: np.array([s[name] for s in sets]) for name in sets[0]}
            for name, v in values.items():
                row[name] = f"{v.mean():.4f}"
            for other in ("centred", "equal"):
                gain = values[f"ari_{other}"] - values["ari_spectral"]
                row[f"{other}_minus_spectral"] = f"{gain.mean():.4f}"
                row[f"{other}_minus_spectral_se"] = f"{gain.std(ddof=1) / len(gain) ** 0.5:.4f}"
            row["code_hash"] = stamp
            rows.append(row)
            print(*list(row.values())[:-1], flush=True)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

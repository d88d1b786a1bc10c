"""What ensemble clustering sends: bytes and rounds, as sites and rows grow.

``PYTHONPATH=. python benchmarks/exchange.py`` writes results/exchange.json. Bytes are those of the
transcript (values as encoded); "labels" is what a label for every row under every model would take,
one byte each, which is what sites would send if they did not count label tuples.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.ensemble_patterns import machine
from consilience import Columns, EnsembleClustering, Federation
from consilience.datasets.simulate import simulate_gaussian_sites
from consilience.numerics.random import stream

RESULTS = Path(__file__).parent / "results"
FEATURES = tuple(f"x{j}" for j in range(10))


def case(n_sites: int, rows: int, pairs: int) -> dict[str, Any]:
    """Run one federation and add up its transcript."""
    drawn = simulate_gaussian_sites(
        n_sites,
        rng=stream(1, "exchange", n_sites, rows),
        design="imbalanced",
        variance=0.3,
        sizes=(rows, rows),
    )
    tables = {
        f"s{i:02d}": pd.DataFrame(x, columns=list(FEATURES)) for i, x in enumerate(drawn.tables)
    }
    federation = Federation.local(tables, columns=Columns(features=FEATURES))
    started = time.perf_counter()
    run = EnsembleClustering(n_clusters=5, stability_pairs=pairs).run(federation, seed=1)
    took = time.perf_counter() - started
    out = [line for line in run.transcript if line.direction == "from-site"]
    into = [line for line in run.transcript if line.direction == "to-site"]
    by_step = {
        step: round(sum(line.bytes for line in out if line.step == step) / n_sites)
        for step in ("fit", "count", "label")
    }
    return {
        "sites": n_sites,
        "rows_per_site": rows,
        "stability_pairs": pairs,
        "rounds": max(line.round for line in run.transcript),
        "patterns": run.result.n_patterns,
        "bytes_from_a_site": round(sum(line.bytes for line in out) / n_sites),
        "bytes_from_a_site_by_step": by_step,
        "bytes_to_a_site": round(sum(line.bytes for line in into) / n_sites),
        "bytes_of_labels": n_sites * rows,
        "seconds": round(took, 2),
    }


def main() -> None:
    cases = [case(5, rows, 0) for rows in (200, 2_000, 20_000)]
    cases += [case(m, 400, 0) for m in (10, 20, 50)]
    cases += [case(5, 400, pairs) for pairs in (0, 5, 20)]
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine(), "cases": cases}
    (RESULTS / "exchange.json").write_text(json.dumps(content, indent=1) + "\n")
    for row in cases:
        print(row)


if __name__ == "__main__":
    main()

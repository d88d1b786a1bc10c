"""What a tampering needs to be found: rows of each site, and how well x predicts y.

Six simulated sites with one function; the response of one of them is tampered with. A data set
counts as found where that site is alone in a group and the others are together. About ten
minutes; writes ``needs.csv``.

    python examples/tampered/needs.py
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from consilience import Columns, Federation, MetaClustering
from consilience.datasets.simulate_meta import simulate_functions, tamper
from consilience.numerics.random import stream

HERE = Path(__file__).parent
N_SITES, N_FEATURES = 6, 5
TAMPERINGS = (
    ("none", 0.0),
    ("scale", -1.0),
    ("scale", 1.5),
    ("scale", 2.0),
    ("shift", 0.5),
    ("shift", 1.0),
    ("permute", 0.0),
    ("noise", 0.0),
)
"""``scale`` by -1 flips the sign around the mean."""
LINES = (
    ("linear", 50, 0.5, 20),
    ("linear", 50, 0.8, 20),
    ("linear", 100, 0.5, 20),
    ("linear", 100, 0.8, 20),
    ("linear", 200, 0.2, 20),
    ("linear", 200, 0.5, 20),
    ("random-forest", 200, 0.8, 5),
)
"""Candidate, rows of each site, share of the variance that the function explains, data sets."""


def found(candidate: str, rows: int, r2: float, how: str, amount: float, seed: int) -> bool:
    """Draw sites, tamper with the last one, and see whether it is found; of "none": kept."""
    drawn = simulate_functions(
        [rows] * N_SITES,
        rng=stream(seed, "tampered", rows, str(r2)),
        shape="linear" if candidate == "linear" else "nonlinear",
        n_features=N_FEATURES,
        noise=1 / r2 - 1,
    )
    tables = drawn.tables()
    last = drawn.names[-1]
    if how != "none":
        y = tables[last]["y"].to_numpy()
        tables[last]["y"] = tamper(y, how, amount=amount, rng=stream(seed, "how", how))
    federation = Federation.local(
        tables, columns=Columns(features=drawn.feature_names, target="y"), policy="simulation"
    )
    method = MetaClustering(candidates=candidate, gain_folds=0, stability_runs=0)
    groups = method.run(federation, seed=seed).result.groups
    return len(groups) == 1 if how == "none" else groups == (drawn.names[:-1], (last,))


def lines() -> Iterator[dict[str, object]]:
    """Yield one line for each setting: shares of the data sets."""
    for candidate, rows, r2, sets in LINES:
        line: dict[str, object] = {"candidate": candidate, "rows": rows, "r2": r2, "sets": sets}
        for how, amount in TAMPERINGS:
            shares = [found(candidate, rows, r2, how, amount, seed) for seed in range(sets)]
            line[f"{how} {amount:g}" if amount else how] = f"{np.mean(shares):.2f}"
        yield line


def main() -> None:
    """Write the table."""
    with (HERE / "needs.csv").open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for line in lines():
            if writer is None:
                writer = csv.DictWriter(file, list(line), lineterminator="\n")
                writer.writeheader()
            writer.writerow(line)
            file.flush()
            print(line)


if __name__ == "__main__":
    main()

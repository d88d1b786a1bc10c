"""Two groups of non-linear learners, by set of candidates: grouping and prediction (Table 2)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.numerics.random import stream  # noqa: E402
from replications.meta_clustering.simulate import simulate_friedman_groups  # noqa: E402
from replications.meta_clustering.study import (  # noqa: E402
    Table,
    average_model,
    figures,
    labels_of,
    options,
    replicate,
    run,
    same_partition,
    squared_error,
)

HERE = Path(__file__).parent
N_SITES, N_ROWS, N_TEST = 20, 100, 1000
METHODS = (
    "gradient-boosting",
    "random-forest",
    "lasso(cv=2, alphas=30)",
    "ridge",
    "decision-tree",
    "elastic-net(cv=2, alphas=30)",
    "extra-trees",
    "bagging",
    "ada-boost",
)
LINES = ((1, 10), (3, 20), (5, 5), (7, 5), (9, 5))
"""Number of candidates, replicates."""
FIRST = {"norm": 0, "angle": N_SITES // 2}
"""First learner of each group."""


def one(n_methods: int, seed: int) -> dict[str, float]:
    sizes = [N_ROWS + N_TEST * (i in FIRST.values()) for i in range(N_SITES)]
    sites = simulate_friedman_groups(sizes, rng=stream(seed, "friedman"))
    tables = {name: table.iloc[:N_ROWS] for name, table in sites.tables().items()}
    result = run(tables, seed=seed, candidates=METHODS[:n_methods]).result
    found = labels_of(result, sites.names)
    scores = {
        "exact": float(same_partition(found, sites.groups)),
        "clusters": float(result.n_clusters),
    }
    for group, i in FIRST.items():
        x, y = sites.features[i][N_ROWS:], sites.responses[i][N_ROWS:]
        members = [name for name, k in zip(sites.names, found, strict=True) if k == found[i]]
        # One learner's own error depends on which method it happened to choose: the mean over the
        # learners of its cluster, on the same new rows, is what a learner must expect alone.
        alone = float(
            np.mean([squared_error(y, average_model(result, [m]).predict(x)) for m in members])
        )
        together = squared_error(y, average_model(result, members).predict(x))
        # in units of the variance of the response, which differs a millionfold by group
        unit = float(np.var(y))
        scores[f"{group}_alone"] = alone / unit
        scores[f"{group}_together"] = together / unit
        scores[f"{group}_difference"] = (alone - together) / unit
    return scores


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)
    for n_methods, replicates in LINES:
        if chosen.only not in f"methods={n_methods}":
            continue
        sets = replicate(one, n_methods, replicates=replicates, chosen=chosen)
        # of the means: a single learner's own error can be close to 0
        saved = {f"{group}_saved": f"{1 - ratio(sets, group):.3f}" for group in FIRST}
        table.add({"methods": n_methods, "replicates": len(sets), **figures(sets), **saved})


def ratio(sets: list[dict[str, float]], group: str) -> float:
    """Error together by error alone."""
    together, alone = (
        sum(one[f"{group}_{kind}"] for one in sets) for kind in ("together", "alone")
    )
    return together / alone


if __name__ == "__main__":
    main()

"""Two groups of linear learners: share of replications with every label right (Simulation 1)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.numerics.random import stream  # noqa: E402
from replications.meta_clustering.simulate import simulate_linear_groups  # noqa: E402
from replications.meta_clustering.study import (  # noqa: E402
    Table,
    figures,
    labels_of,
    options,
    replicate,
    run,
    same_partition,
)

HERE = Path(__file__).parent
CANDIDATES = ("lasso(cv=2, alphas=30)", "random-forest(n_estimators=50, max_depth=3)")
RATIOS = (1, 2, 4, 8, 16, 32, 64, 128)
REPLICATES = 40
FEW = 8
"""Replicates of the cells that no bound is about."""


def is_bound(n_features: int, snr: int) -> bool:
    return (n_features == 5 and snr in (16, 32)) or (
        n_features > 5 and snr >= {10: 16, 20: 32}[n_features]
    )


def one(n_features: int, snr: int, rule: str, seed: int) -> dict[str, float]:
    sites = simulate_linear_groups(n_features, snr, rng=stream(seed, "two", n_features, snr))
    result = run(sites.tables(), seed=seed, candidates=CANDIDATES, rule=rule).result
    found = labels_of(result, sites.names)
    return {
        "exact": float(same_partition(found, sites.groups)),
        "right_number": float(result.n_clusters == 2),
        "clusters": float(result.n_clusters),
        "linear_chosen": sum("lasso" in name for name in result.chosen) / len(sites.names),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)
    for n_features in (5, 10, 20):
        for snr in RATIOS:
            for rule in ("pairwise", "spectral"):
                if not re.search(chosen.only, f"p={n_features} snr={snr} {rule}"):
                    continue
                if rule == "spectral" and not is_bound(n_features, snr):
                    continue
                many = rule == "pairwise" and is_bound(n_features, snr)
                sets = replicate(
                    one,
                    n_features,
                    snr,
                    rule,
                    replicates=REPLICATES if many else FEW,
                    chosen=chosen,
                )
                head = {"p": n_features, "snr": snr, "rule": rule, "replicates": len(sets)}
                table.add({**head, **figures(sets)})


if __name__ == "__main__":
    main()

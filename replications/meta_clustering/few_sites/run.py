"""Few sites: all the same, two groups, one odd, all different; and false splits of equal sites."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_meta import simulate_functions  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
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
KINDS = {
    # shape of the functions, rows of each site, variance of the errors, candidates, replicates
    "linear": ("linear", 100, 1.0, ("linear",), 100),
    "trees": ("nonlinear", 200, 0.25, ("random-forest",), 40),
}
SITES = (2, 3, 5, 8, 20)
DESIGNS = ("homogeneous", "two-groups", "one-odd", "unique")
EQUAL = {
    # candidates of the data sets of equal sites, their number, largest site, most sites
    "linear": (("linear",), 100, 2000, 50),
    "ridge, lasso": (("ridge", "lasso(cv=2, alphas=30)"), 50, 1000, 20),
    "forest": (("random-forest",), 50, 500, 8),
    "boosting": (("gradient-boosting",), 50, 500, 8),
    "linear, forest": (("linear", "random-forest"), 50, 500, 8),
}


def one(kind: str, design: str, n_sites: int, rule: str, seed: int) -> dict[str, float]:
    shape, n_rows, noise, candidates, _ = KINDS[kind]
    sites = simulate_functions(
        [n_rows] * n_sites,
        rng=stream(seed, "few", kind, design, n_sites),
        design=design,
        shape=shape,
        noise=noise,
        # so many functions cannot all be far from one another
        separation=1.0 if design != "unique" or n_sites <= 5 else 0.25,
    )
    result = run(sites.tables(), seed=seed, candidates=candidates, rule=rule).result
    return scores(result, sites)


def one_equal(kind: str, seed: int) -> dict[str, float]:
    """Equal functions at sites of any number, size and noise."""
    candidates, _, largest, most = EQUAL[kind]
    rng = stream(seed, "equal", kind)
    n_sites = int(rng.choice([n for n in (*SITES, 50) if n <= most]))
    sizes = np.exp(rng.uniform(np.log(50), np.log(largest), n_sites)).astype(int)
    sites = simulate_functions(
        sizes.tolist(),
        rng=rng,
        shape=str(rng.choice(["linear", "nonlinear"])),
        noise=float(rng.choice([0.1, 1.0, 4.0, 10.0])),
        errors=str(rng.choice(["normal", "t3"])),
    )
    return scores(run(sites.tables(), seed=seed, candidates=candidates).result, sites)


def scores(result, sites) -> dict[str, float]:
    found = labels_of(result, sites.names)
    return {
        "exact": float(same_partition(found, sites.groups)),
        "clusters": float(result.n_clusters),
        "left_out": float(len(result.left_out)),
        "undecided": float(len(result.undecided)),
        "too_few_rows": float(result.status == "too-few-rows"),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)
    for kind, (_, n_rows, noise, candidates, replicates) in KINDS.items():
        for design in DESIGNS:
            for n_sites in SITES:
                if (design == "one-odd" and n_sites == 2) or (design == "unique" and n_sites > 8):
                    continue  # the same as two groups; far more functions than can be told apart
                for rule in ("pairwise", "spectral") if kind == "linear" else ("pairwise",):
                    if chosen.only not in f"{kind} {design} {n_sites} {rule}":
                        continue
                    sets = replicate(
                        one, kind, design, n_sites, rule, replicates=replicates, chosen=chosen
                    )
                    head = {
                        "design": design,
                        "sites": n_sites,
                        "candidates": ", ".join(candidates),
                        "rule": rule,
                        "rows": n_rows,
                        "noise": noise,
                        "replicates": len(sets),
                    }
                    table.add({**head, **figures(sets)})
    for kind, (_, replicates, largest, most) in EQUAL.items():
        if chosen.only not in f"equal {kind}":
            continue
        sets = replicate(one_equal, kind, replicates=replicates, chosen=chosen)
        head = {
            "design": "homogeneous, any size and noise",
            "sites": f"2 to {most}",
            "candidates": kind,
            "rule": "pairwise",
            "rows": f"50 to {largest}",
            "noise": "0.1 to 10",
            "replicates": len(sets),
        }
        table.add({**head, **figures(sets)})


if __name__ == "__main__":
    main()

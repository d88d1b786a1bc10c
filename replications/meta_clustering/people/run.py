"""Evidence before groups: equal sites, two groups, one odd site, and 42 people as sites."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.collaborators.kernels import cluster  # noqa: E402
from consilience.datasets.simulate_meta import simulate_functions  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.meta_clustering.few_sites.run import EQUAL, one_equal  # noqa: E402
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
SITES = (3, 8, 20)
PEOPLE, COLUMNS, FRESH = 42, 16, 400
SETS = {"linear": 120, "ridge, lasso": 40, "boosting": 20, "forest": 20}
LARGEST = 2.0  # times the better of own model and constant that a loss may reach


def people(seed: int) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Rows of each person, and fresh ones: voice columns and a score of motor function.

    Three latent traits of the voice move within a person, around a place of its own; sixteen
    columns follow them on a logarithmic scale, in two families of nearly equal ones. The score has
    a level for each person (standard deviation 8) and moves little within one (1.6), of which the
    voice explains a tenth to a fifth, with common weights for most and other ones for some.
    """
    rng = stream(seed, "people")
    loadings = rng.normal(size=(3, COLUMNS))
    # jitter and shimmer: families of columns that say almost the same
    loadings[:, 1:5] = loadings[:, :1] + 0.05 * rng.normal(size=(3, 4))
    loadings[:, 6:11] = loadings[:, 5:6] + 0.05 * rng.normal(size=(3, 5))
    common = rng.normal(size=3)
    made = []
    for _ in range(PEOPLE):
        n = int(rng.integers(20, 151))
        place, level = rng.normal(size=3), 8.0 * rng.normal()
        weights = common if rng.random() < 0.7 else rng.normal(size=3)
        traits = place + 0.7 * rng.standard_t(5, size=(n + FRESH, 3))
        noise = 0.15 * rng.normal(size=(n + FRESH, COLUMNS))
        x = np.exp(0.5 * (traits @ loadings) / np.sqrt(3) + noise)
        signal = 0.6 * (traits - place) @ weights / np.linalg.norm(weights)
        y = 20.0 + level + signal + 1.6 * rng.normal(size=n + FRESH)
        table = pd.DataFrame(x, columns=[f"voice_{k}" for k in range(COLUMNS)]).assign(score=y)
        made.append((table.iloc[:n], table.iloc[n:]))
    return made


def losses(predict, fresh: pd.DataFrame) -> float:
    return squared_error(fresh["score"].to_numpy(), predict(fresh.drop(columns="score")))


def one_cohort(candidates: tuple[str, ...], seed: int) -> dict[str, float]:
    """Held-out loss of every person, against the better of its own model and a constant."""
    made = people(seed)
    tables = {f"person-{i:02d}": rows for i, (rows, _) in enumerate(made)}
    done = run(tables, seed=seed, candidates=candidates, gain_folds=3)
    result = done.result
    # the rule without evidence, and everybody with the average of the group
    before = cluster(result.z).labels
    kept, averaged, old = [], [], []
    for i, site in enumerate(result.sites):
        rows, fresh = made[int(site.split("-")[1])]
        own = losses(average_model(result, [site]).predict, fresh)
        constant = squared_error(fresh["score"].to_numpy(), np.full(FRESH, rows["score"].mean()))
        best = min(own, constant)
        kept.append(losses(done.site(site).predictor.predict, fresh) / best)
        for labels, found in ((result.labels, averaged), (before, old)):
            members = [s for s, k in zip(result.sites, labels, strict=True) if k == labels[i]]
            found.append(losses(average_model(result, members).predict, fresh) / best)
    above = np.triu_indices(len(result.sites), 1)
    return {
        "worst": max(kept),
        "beyond": float(np.sum(np.array(kept) > LARGEST)),
        "median": float(np.median(kept)),
        "worst_average": max(averaged),
        "worst_before": max(old),
        "beyond_before": float(np.sum(np.array(old) > LARGEST)),
        "clusters": float(result.n_clusters),
        "clusters_before": float(before.max() + 1),
        "undecided": float(len(result.undecided)),
        "losing": float(len(result.losing)),
        "left_out": float(len(result.left_out)),
        "not_comparable": 1.0 - float(np.isfinite(result.z[above]).mean()),
    }


def one_design(design: str, n_sites: int, seed: int) -> dict[str, float]:
    """Groups with and without evidence on the same data: 100 rows, as much noise as signal."""
    rng = stream(seed, "evidence", design, n_sites)
    sites = simulate_functions([100] * n_sites, rng=rng, design=design, noise=1.0)
    result = run(sites.tables(), seed=seed, candidates=("linear",)).result
    return {
        "exact": float(same_partition(labels_of(result, sites.names), sites.groups)),
        "exact_before": float(same_partition(cluster(result.z).labels, sites.groups)),
        "undecided": float(len(result.undecided)),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen)

    def line(name, sites, candidates, function, *arguments, replicates: int) -> None:
        if chosen.only not in f"{name} {candidates}":
            return
        sets = replicate(function, *arguments, replicates=replicates, chosen=chosen)
        head = {"design": name, "sites": sites, "candidates": candidates, "replicates": len(sets)}
        table.add({**head, **figures(sets)})

    for candidates, replicates in ((("linear",), 10),):
        names = ", ".join(candidates)
        line("people", str(PEOPLE), names, one_cohort, candidates, replicates=replicates)
    for kind, replicates in SETS.items():
        most = EQUAL[kind][3]
        line("equal sites", f"2 to {most}", kind, one_equal, kind, replicates=replicates)
    for design in ("two-groups", "one-odd"):
        for n_sites in SITES:
            head = (design, str(n_sites), "linear")
            line(*head, one_design, design, n_sites, replicates=40)


if __name__ == "__main__":
    main()

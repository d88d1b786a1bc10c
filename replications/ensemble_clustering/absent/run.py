"""Classes that some sites lack: models before and after they get the classes of other sites."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.clustering.estimators.completed_models import (  # noqa: E402
    classes_of_all,
    completed_models,
)
from consilience.clustering.estimators.local_models import (  # noqa: E402
    LocalFit,
    bic,
    fit_cluster_model,
)
from consilience.numerics.random import stream  # noqa: E402
from consilience.numerics.two_way_tables import adjusted_rand_index  # noqa: E402
from replications.ensemble_clustering import baselines  # noqa: E402
from replications.ensemble_clustering.pipeline import cluster  # noqa: E402
from replications.ensemble_clustering.simulate import (  # noqa: E402
    SimulatedSites,
    simulate_gaussian_sites,
)
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
K = 5
MOST = 8
"""Numbers of classes that sites vote on."""
SETS = {"given": 24, "vote": 10}
FIGURES = ("before", "after", "k_fed", "pooled")
Tables = Sequence[NDArray[np.float64]]


def absent_classes(
    n_sites: int, held: tuple[int, int], variance: float, rng: np.random.Generator
) -> SimulatedSites:
    """Sites that hold some of five classes in ten columns, in equal shares; none holds all.

    Class means are distinct, with entries -1 or 1; a site has 50 to 500 rows and `held` classes.
    """
    means = rng.choice([-1.0, 1.0], size=(K, 10))
    while len(np.unique(means, axis=0)) < K:
        means = rng.choice([-1.0, 1.0], size=(K, 10))
    sets: list[NDArray[np.int64]] = []
    while len(np.unique(np.concatenate([*sets, []]))) < K:
        amounts = rng.integers(held[0], held[1] + 1, size=n_sites)
        sets = [rng.choice(K, size=n, replace=False) for n in amounts]
    tables, classes = [], []
    for here in sets:
        truth = rng.choice(here, size=int(rng.integers(50, 501))).astype(np.int64)
        tables.append(means[truth] + np.sqrt(variance) * rng.standard_normal((len(truth), 10)))
        classes.append(truth)
    return SimulatedSites(tuple(tables), tuple(classes), means)


def fitted(tables: Tables, numbers: Sequence[int], seed: int, min_records: int) -> list[LocalFit]:
    """One model a site, of as many classes as it is told."""
    return [
        fit_cluster_model(
            rows, n_clusters=k, rng=stream(seed, "fit", i), min_records=min_records, n_init=10
        )
        for i, (rows, k) in enumerate(zip(tables, numbers, strict=True))
    ]


def votes(tables: Tables, seed: int, min_records: int) -> list[int]:
    """Each site's number by BIC, of those whose classes are large enough."""
    found = []
    for i, rows in enumerate(tables):
        scores = [bic(rows, 1, rng=stream(seed, "bic", i))]
        for k in range(2, MOST + 1):
            (fit,) = fitted([rows], [k], seed, min_records)
            fine = fit.model is not None and fit.model.n_classes == k
            score = bic(rows, k, rng=stream(seed, "bic", i), n_init=5) if fine else np.inf
            scores.append(score)
        found.append(1 + int(np.argmin(scores)))
    return found


def one(sim: SimulatedSites, number: str, seed: int, min_records: int) -> dict[str, float]:
    """Adjusted Rand index over the regular rows, before and after, and of what it is held to."""
    truth = np.concatenate(sim.classes)
    regular = truth >= 0
    n = len(sim.tables)

    def score(parts: Sequence[NDArray[np.int64]]) -> float:
        return adjusted_rand_index(np.concatenate(parts)[regular], truth[regular])

    def of_models(fits: list[LocalFit], k: int, *, complete: bool) -> float:
        models = [fit.model for fit in fits if fit.model is not None]
        if complete:
            given = number == "given"
            models = completed_models(models, range(len(models)), k, given=given).models
        options = {"seed": seed, "min_records": min_records, "weighting": "centred"}
        return score(cluster(sim.tables, k, models=models, **options).classes)

    found = {"classes_before": float(K), "classes_after": float(K)}
    if number == "given":
        fits = fitted(sim.tables, [K] * n, seed, min_records)
        models = [fit.model for fit in fits if fit.model is not None]
        whole = completed_models(models, range(len(models)), K).models
        found["completed"] = float(any(a is not b for a, b in zip(models, whole, strict=True)))
        found["before"] = of_models(fits, K, complete=False)
        found["after"] = (
            of_models(fits, K, complete=True) if found["completed"] else found["before"]
        )
    else:
        cast = votes(sim.tables, seed, min_records)
        numbers, counts = np.unique(cast, return_counts=True)
        k = winner = int(numbers[counts.argmax()])
        before = fitted(sim.tables, [max(2, winner)] * n, seed, min_records)
        after = before
        if len(numbers) > 1:
            after = fitted(sim.tables, [max(2, vote) for vote in cast], seed, min_records)
            models = [fit.model for fit in after if fit.model is not None]
            k = classes_of_all(models, range(len(models)), winner, MOST) or winner
        found |= {"classes_before": float(winner), "classes_after": float(k)}
        found["completed"] = float(k > winner)
        found["before"] = of_models(before, winner, complete=False)
        found["after"] = of_models(after, k, complete=True)
    true_numbers = [len(np.unique(z)) for z in sim.classes]
    fits = fitted(sim.tables, [max(2, k) for k in true_numbers], seed, min_records)
    _, groups = baselines.k_fed([f.model.means for f in fits if f.model is not None], K)
    remaining = iter(groups)
    found["k_fed"] = score(
        [
            next(remaining)[fit.labels] if fit.model is not None else np.zeros_like(fit.labels)
            for fit in fits
        ]
    )
    pooled = baselines.pooled(sim.tables, K, rng=stream(seed, "pooled"), n_init=10)
    found["pooled"] = score(pooled)
    return found


def data_set(design: str, n_sites: int, variance: float, seed: int) -> SimulatedSites:
    """Sites that lack classes, or those of the source."""
    rng = stream(seed, "absent", design, n_sites, repr(variance))
    held = {"2 or 3 of 5": (2, 3), "3 or 4 of 5": (3, 4)}
    if design in held:
        return absent_classes(n_sites, held[design], variance, rng)
    return simulate_gaussian_sites(n_sites, rng=rng, design=design, variance=variance)  # type: ignore[arg-type]


def cells():
    """Designs: where classes are absent, and the source's."""
    for design in ("2 or 3 of 5", "3 or 4 of 5"):
        for variance in (0.1, 0.3, 0.5, 1.0):
            for min_records in (1, 10):
                yield "given", design, 8, variance, min_records, SETS["given"]
    for design in ("homogeneous", "imbalanced", "outliers"):
        for n_sites in (5, 10):
            for variance in (0.1, 0.3):
                yield "given", design, n_sites, variance, 10, SETS["given"]
    for variance in (0.1, 0.5, 1.0):
        yield "vote", "2 or 3 of 5", 8, variance, 10, SETS["vote"]
    for design in ("homogeneous", "imbalanced", "outliers"):
        yield "vote", design, 5, 0.3, 10, SETS["vote"]


def line(cell: tuple[str, str, int, float, int, int]) -> dict[str, object]:
    """Means over the data sets of a cell, and paired differences with standard errors."""
    number, design, n_sites, variance, min_records, n = cell
    sets = [
        one(data_set(design, n_sites, variance, seed), number, seed, min_records)
        for seed in range(n)
    ]
    row: dict[str, object] = {
        "number": number,
        "design": design,
        "sites": n_sites,
        "variance": variance,
        "min_records": min_records,
        "data_sets": n,
    }
    values = {name: np.array([s[name] for s in sets]) for name in sets[0]}
    for name in (*FIGURES, "completed", "classes_before", "classes_after"):
        row[name] = f"{values[name].mean():.4f}"
    for other in ("before", "k_fed", "pooled"):
        gain = values["after"] - values[other]
        row[f"after_minus_{other}"] = f"{gain.mean():.4f}"
        row[f"after_minus_{other}_se"] = f"{gain.std(ddof=1) / n**0.5:.4f}"
    return row


def main() -> None:
    stamp = table_hash(HERE)
    rows = []
    for row in Parallel(n_jobs=2, return_as="generator")(delayed(line)(cell) for cell in cells()):
        rows.append({**row, "code_hash": stamp})
        print(*row.values(), flush=True)
    with (HERE / "result.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

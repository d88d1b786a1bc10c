"""Simulated data sets of the source, scored for every method: one row of figures each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.clustering.estimators.local_models import KMeansModel
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering import baselines
from replications.ensemble_clustering.pipeline import cluster, fit_sites
from replications.ensemble_clustering.simulate import Design, simulate_gaussian_sites

K = 5


def one_data_set(
    design: Design,
    n_sites: int,
    variance: float,
    seed: int,
    *,
    min_records: int,
    trim: str = "none",
) -> dict[str, float]:
    """Adjusted Rand index over the regular rows, by method."""
    sim = simulate_gaussian_sites(
        n_sites,
        rng=stream(seed, "data", design, n_sites, repr(variance)),
        design=design,
        variance=variance,
    )
    truth = np.concatenate(sim.classes)
    regular = truth >= 0

    def score(parts: Sequence[NDArray[np.int64]]) -> float:
        return adjusted_rand_index(np.concatenate(parts)[regular], truth[regular])

    fits = fit_sites(
        sim.tables, K, seed=seed, min_records=min_records, trim=6.0 if trim == "own" else None
    )
    options = {"seed": seed, "min_records": min_records, "fits": fits}
    found = cluster(sim.tables, K, trim_others=6.0 if trim == "others" else None, **options)
    centred = cluster(
        sim.tables,
        K,
        weighting="centred",
        trim_others=6.0 if trim == "others" else None,
        **options,
    )
    local = [score([z[:, m] for z in found.labels]) for m in range(len(found.models))]
    by_consensus = baselines.consensus(found.table, found.labels, K, rng=stream(seed, "consensus"))
    _, groups = baselines.k_fed([m.means for m in found.models], K)
    remaining = iter(groups)
    by_k_fed = [
        np.where(fit.labels >= 0, next(remaining)[fit.labels], -1)
        if fit.model is not None
        else np.zeros(fit.labels.size, dtype=np.int64)
        for fit in fits
    ]
    # a trimmed row has no class in any method that can leave it out
    trimmed = [classes < 0 for classes in found.classes]
    by_consensus = [np.where(t, -1, c) for t, c in zip(trimmed, by_consensus, strict=True)]
    return {
        "ensemble": score(found.classes),
        "ensemble_centred": score(centred.classes),
        "local": float(np.mean(local)),
        "best_local": max(local),
        "consensus": score(by_consensus),
        "k_fed": score(by_k_fed),
        "pooled": score(baselines.pooled(sim.tables, K, rng=stream(seed, "pooled"))),
        "regular_trimmed": float(np.concatenate(trimmed)[regular].mean()),
        "outlying_trimmed": float(np.concatenate(trimmed)[~regular].mean())
        if not regular.all()
        else float("nan"),
        "weight_accuracy_correlation": _correlation(found.ensemble.weights, local),
    }


def one_weighting_data_set(scenario: str, seed: int, *, min_records: int) -> dict[str, float]:
    """Adjusted Rand index by weighting, and the share of weight on models without information.

    Rows get three columns of pure noise. A noise model has random class means in those columns
    and none elsewhere, so its labels say nothing about the classes; "nuisance" models all split
    the same noise column and agree with one another.
    """
    design, n_sites, variance, n_noise, n_nuisance = SCENARIOS[scenario]
    sim = simulate_gaussian_sites(
        n_sites, rng=stream(seed, "weighting", scenario), design=design, variance=variance
    )
    rng = stream(seed, "noise", scenario)
    tables = [np.column_stack([x, rng.standard_normal((len(x), 3))]) for x in sim.tables]
    truth = np.concatenate(sim.classes)
    regular = truth >= 0
    fits = fit_sites(sim.tables, K, seed=seed, min_records=min_records)
    padded = [_padded(fit.model.means) for fit in fits if fit.model is not None]
    uninformative = []
    for i in range(n_noise + n_nuisance):
        means = np.zeros((K, sim.means.shape[1] + 3))
        if i < n_noise:
            means[:, -3:] = 1.5 * rng.standard_normal((K, 3))
        else:
            means[:, -1] = np.linspace(-1.5, 1.5, K) + 0.05 * rng.standard_normal(K)
        uninformative.append(KMeansModel(means))
    models = [*padded, *uninformative]
    result = {}
    for weighting in ("spectral", "centred", "equal"):
        found = cluster(
            tables, K, seed=seed, min_records=min_records, weighting=weighting, models=models
        )
        classes = np.concatenate(found.classes)
        result[f"ari_{weighting}"] = adjusted_rand_index(classes[regular], truth[regular])
        squares = found.ensemble.weights**2
        result[f"uninformative_weight_{weighting}"] = float(squares[len(padded) :].sum())
    return result


SCENARIOS: dict[str, tuple[Design, int, float, int, int]] = {
    # design, sites, variance, noise models, models that agree on a nuisance column
    "clean, 10 sites": ("imbalanced", 10, 0.3, 0, 0),
    "clean, 5 sites": ("imbalanced", 5, 0.3, 0, 0),
    "outlying rows kept, 5 sites": ("outliers", 5, 0.05, 0, 0),
    "4 sites, 4 noise models": ("homogeneous", 4, 0.1, 4, 0),
    "5 imbalanced sites, 5 noise models": ("imbalanced", 5, 0.3, 5, 0),
    "5 imbalanced sites, 15 noise models": ("imbalanced", 5, 0.3, 15, 0),
    "10 imbalanced sites, 4 nuisance models": ("imbalanced", 10, 0.3, 0, 4),
    "6 imbalanced sites, 6 nuisance models": ("imbalanced", 6, 0.3, 0, 6),
}


def _padded(means: NDArray[np.float64]) -> KMeansModel:
    return KMeansModel(np.column_stack([means, np.zeros((len(means), 3))]))


def _correlation(weights: NDArray[np.float64], accuracy: Sequence[float]) -> float:
    if np.ptp(weights) < 1e-9 or np.ptp(accuracy) < 1e-9:
        return float("nan")
    return float(np.corrcoef(weights, accuracy)[0, 1])

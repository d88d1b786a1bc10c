"""Ensemble clustering on label patterns: against the N x N form, and how it grows.

``PYTHONPATH=. python benchmarks/ensemble_patterns.py`` writes results/ensemble_patterns.json.
Times are CPU seconds of one thread.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from consilience.clustering.estimators.local_models import fit_cluster_model
from consilience.clustering.kernels.ensemble import (
    assign,
    build_ensemble,
    distinct_patterns,
    pattern_features,
)
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering.simulate import simulate_gaussian_sites
from tests.reference import ensemble_naive as naive

RESULTS = Path(__file__).parent / "results"
K, RESTARTS, VARIANCE = 5, 20, 0.3


def labelled(n: int, m: int, seed: int, fitted_rows: int) -> dict[str, Any]:
    """Imbalanced sites of equal size; each model is fitted on ``fitted_rows`` rows of its site."""
    size = n // m
    sim = simulate_gaussian_sites(
        m, rng=stream(seed, "benchmark"), design="imbalanced", variance=VARIANCE, sizes=(size, size)
    )
    fits = [
        fit_cluster_model(x[:fitted_rows], n_clusters=K, rng=stream(seed, "fit", i))
        for i, x in enumerate(sim.tables)
    ]
    models = [fit.model for fit in fits if fit.model is not None]
    started = time.process_time()
    labels = np.concatenate(
        [np.stack([f.label(x).astype(np.uint8) for f in models], axis=1) for x in sim.tables]
    )
    return {
        "labels": labels,
        "truth": np.concatenate(sim.classes),
        "beta": [f.class_parameters for f in models],
        "n_classes": [f.n_classes for f in models],
        "model_label_seconds": time.process_time() - started,
    }


def growth_case(n: int, m: int, seed: int, fitted_rows: int) -> dict[str, Any]:
    case = labelled(n, m, seed, fitted_rows)
    t = [time.process_time()]
    table, _ = distinct_patterns(case["labels"], case["n_classes"])
    t.append(time.process_time())
    ensemble = build_ensemble(table, case["beta"], weighting="spectral")
    phi = pattern_features(ensemble.features, table)
    t.append(time.process_time())
    final = weighted_kmeans(phi, table.counts, K, rng=stream(seed, "final"), n_init=RESTARTS)
    t.append(time.process_time())
    classes = assign(case["labels"], table.n_classes, ensemble.features, final.centres)
    t.append(time.process_time())
    steps = np.diff(t)
    return {
        "subjects": n,
        "models": m,
        "rows_per_fit": fitted_rows,
        "patterns": int(table.counts.size),
        "count_seconds": round(float(steps[0]), 3),
        "weights_seconds": round(float(steps[1]), 3),
        "k_means_seconds": round(float(steps[2]), 3),
        "weights_and_k_means_seconds": round(float(steps[1] + steps[2]), 3),
        "assign_seconds": round(float(steps[3]), 3),
        "labels_of_all_models_seconds": round(case["model_label_seconds"], 3),
        "adjusted_rand": round(adjusted_rand_index(classes, case["truth"]), 4),
        "peak_gigabytes": round(peak_gigabytes(), 2),
    }


def against_naive(n: int = 2000, m: int = 10, seed: int = 0) -> dict[str, Any]:
    """Same labels, same K-means code, same starts on both sides."""
    case = labelled(n, m, seed, n // m)
    labels, beta = case["labels"], case["beta"]
    chosen = [stream(seed, "start", r).choice(n, size=K, replace=False) for r in range(RESTARTS)]
    started = time.process_time()
    matrices = [naive.co_distance_by_matrix(labels[:, s], beta[s]) for s in range(m)]
    stacked = np.stack([d.ravel() for d in matrices])
    products = stacked @ stacked.T  # not pair by pair: the rival gets BLAS here as well
    norms = np.sqrt(np.diag(products))
    weights = np.abs(np.linalg.eigh(products / np.outer(norms, norms))[1][:, -1])
    distance = ((weights / norms) @ stacked).reshape(n, n)
    starts = np.stack([distance[c] for c in chosen])
    by_row = weighted_kmeans(distance, np.ones(n), K, starts=starts)
    naive_seconds = time.process_time() - started

    repeats = 10
    started = time.process_time()
    for _ in range(repeats):
        table, inverse = distinct_patterns(labels, case["n_classes"])
        ensemble = build_ensemble(table, beta, weighting="spectral")
        phi = pattern_features(ensemble.features, table)
        starts = np.stack([phi[inverse[c]] for c in chosen])
        by_pattern = weighted_kmeans(phi, table.counts, K, starts=starts)
        classes = by_pattern.labels[inverse]
    pattern_seconds = (time.process_time() - started) / repeats
    return {
        "subjects": n,
        "models": m,
        "patterns": int(table.counts.size),
        "restarts": RESTARTS,
        "naive_seconds": round(naive_seconds, 3),
        "pattern_seconds": round(pattern_seconds, 5),
        "ratio": round(naive_seconds / pattern_seconds, 1),
        "adjusted_rand_of_the_two": adjusted_rand_index(classes, by_row.labels),
        "largest_weight_difference": float(np.abs(weights - ensemble.weights).max()),
    }


def exponent(cases: list[dict[str, Any]], size: str, seconds: str) -> float:
    x = np.log([c[size] for c in cases])
    y = np.log([c[seconds] for c in cases])
    return round(float(np.polyfit(x, y, 1)[0]), 2)


def peak_gigabytes() -> float:
    """Peak resident memory of this process; getrusage would report a parent's larger peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def in_own_process(*arguments: int) -> dict[str, Any]:
    """Peak memory is that of a process, so every case gets one."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    against_naive(n=500)  # warms up both sides: first calls load libraries
    comparison = [against_naive(seed=seed) for seed in range(10)]
    by_n = [in_own_process(n, 50, 0, 60) for n in (30_000, 100_000, 300_000, 1_000_000)]
    by_m = [in_own_process(100_000, m, 0, 60) for m in (12, 25, 50, 100)]
    large = [
        in_own_process(1_000_000, 50, seed, rows) for seed in (0, 1, 2) for rows in (40, 60, 500)
    ]
    report = {
        "machine": machine(),
        "naive": comparison,
        "by_subjects": by_n,
        "by_models": by_m,
        "million_subjects": large,
        "exponents": {
            f"{size}: {seconds}": exponent(cases, size, seconds)
            for size, cases in (("subjects", by_n), ("models", by_m))
            for seconds in ("count_seconds", "weights_and_k_means_seconds", "patterns")
        },
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(report, indent=1)
    (RESULTS / "ensemble_patterns.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with threadpool_limits(1):
        if len(sys.argv) > 1:
            print(json.dumps(growth_case(*map(int, sys.argv[1:]))))
        else:
            main()

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from consilience.clustering.kernels.ensemble import distinct_patterns, one_hot
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering import baselines, study
from replications.ensemble_clustering.pipeline import cluster
from replications.ensemble_clustering.simulate import simulate_gaussian_sites
from tests.granted import granted


def test_consensus_by_patterns_equals_k_means_on_the_rows_of_z():
    labels = stream(0, "z").integers(0, 3, size=(200, 4))
    labels[:, 1:] = np.where(stream(1).random((200, 3)) < 0.8, labels[:, :1], labels[:, 1:])
    table, _ = distinct_patterns(labels, [3] * 4)
    z = one_hot(labels, [3] * 4) / 2.0
    by_rows = weighted_kmeans(z, np.ones(200), 3, rng=stream(2))
    (found,) = baselines.consensus(table, [labels], 3, rng=stream(2))
    assert adjusted_rand_index(found, by_rows.labels) == 1.0


def test_k_fed_groups_local_centres():
    truth = np.array([[0.0, 0], [10, 0], [0, 10]])
    sites = [truth[[0, 1]] + 0.1, truth, truth[[2]] - 0.1]
    centres, groups = baselines.k_fed(sites, 3)
    assert groups[0][0] == groups[1][0]
    assert groups[0][1] == groups[1][1]
    assert groups[2][0] == groups[1][2]
    np.testing.assert_allclose(centres, truth, atol=0.1)  # in the order of the seeds
    only_two = baselines.k_fed([truth[:2], truth[1:]], 3)[1]  # seeds by farthest point
    assert only_two[0][1] == only_two[1][0]
    assert len({*only_two[0], *only_two[1]}) == 3


def test_pooled_sees_all_rows():
    sim = simulate_gaussian_sites(3, rng=stream(0), variance=0.05)
    found = baselines.pooled(sim.tables, 5, rng=stream(0))
    assert adjusted_rand_index(np.concatenate(found), np.concatenate(sim.classes)) == 1.0


@pytest.mark.replication
@pytest.mark.parametrize("min_records", [1, 10])
def test_slice_of_the_simulation(min_records):
    # 8 data sets; over 100, M = 10, sigma^2 = .1, the ensemble's mean is .999 and local's .89
    ensemble, local = [], []
    for seed in range(8):
        row = study.one_data_set("imbalanced", 10, 0.1, seed, min_records=min_records)
        ensemble.append(row["ensemble"])
        local.append(row["local"])
    assert np.mean(ensemble) >= 0.96
    assert np.mean(ensemble) - np.mean(local) >= 0.02


def test_shuffled_rows_agree_with_nothing():
    # negative control: the classes of shuffled rows say nothing about the unshuffled truth
    sim = simulate_gaussian_sites(6, rng=stream(1), variance=0.1)
    truth = np.concatenate(sim.classes)
    real = cluster(sim.tables, 5, seed=0)
    assert adjusted_rand_index(np.concatenate(real.classes), truth) > 0.99
    shuffled = [stream(2, i).permutation(rows) for i, rows in enumerate(sim.tables)]
    null = cluster(shuffled, 5, seed=0)
    assert abs(adjusted_rand_index(np.concatenate(null.classes), truth)) < 0.05


def rows_of(name: str) -> list[dict[str, str]]:
    folder = Path(study.__file__).parent / "simulation"
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# The consensus of sites is .991 here (standard error .004), the ensemble .985 (.005): docs/methods
# says so. A bound that is missed stays; if one more is missed, or this one met, look at it.
MISSED = {("outliers", "5", "0.05", "10", "others", "ensemble - consensus")}


def test_tracked_figures_reach_their_bounds():
    keys = ("design", "sites", "variance", "min_records", "trim")
    results = {tuple(row[k] for k in keys): row for row in rows_of("result.csv")}
    missed = []
    for row in rows_of("expected.csv"):
        found = results[tuple(row[k] for k in keys)]
        plus, _, minus = row["figure"].partition(" - ")
        value = float(found[plus]) - (float(found[minus]) if minus else 0.0)
        if value < float(row["at_least"]):
            missed.append((*(row[k] for k in keys), row["figure"]))
    assert set(missed) == MISSED


@pytest.mark.parametrize("min_records", [1, 10])
@pytest.mark.parametrize("weighting", ["spectral", "centred"])
def test_the_replications_compute_what_the_method_does(min_records: int, weighting: str) -> None:
    """`pipeline.cluster` on arrays and `EnsembleClustering` over sites: same classes."""
    import pandas as pd

    from consilience import Columns, EnsembleClustering, Federation, Policy
    from consilience.clustering.estimators.local_models import local_model_from_arrays

    sim = simulate_gaussian_sites(
        6, rng=stream(4, "pipeline"), design="imbalanced", variance=0.1, sizes=(120, 250)
    )
    names = [f"x{j}" for j in range(sim.tables[0].shape[1])]
    tables = {f"s{i}": pd.DataFrame(x, columns=names) for i, x in enumerate(sim.tables)}
    federation = Federation.local(
        tables,
        columns=Columns(features=tuple(names)),
        policy=granted(Policy(min_records=min_records)),
    )
    method = EnsembleClustering(n_clusters=5, stability_pairs=0, weighting=weighting)
    run = method.run(federation, seed=1)
    models = [local_model_from_arrays(m) for m in run.result.models]
    found = cluster(
        sim.tables, 5, seed=1, min_records=min_records, weighting=weighting, models=models
    )
    np.testing.assert_allclose(found.ensemble.weights, run.result.weights, atol=1e-12)
    by_method = np.concatenate([run.site(name).labels for name in tables])
    by_pipeline = np.concatenate(found.classes)
    assert adjusted_rand_index(by_method, by_pipeline) == 1.0

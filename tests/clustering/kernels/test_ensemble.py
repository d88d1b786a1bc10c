from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.estimators.local_models import KMeansModel, fit_cluster_model
from consilience.clustering.kernels import ensemble as en
from consilience.clustering.kernels.ensemble import distinct_patterns
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import weighted_kmeans
from consilience.numerics.random import stream
from replications.ensemble_clustering.simulate import simulate_gaussian_sites
from tests.reference import ensemble_naive as naive


def random_case(seed: int, n: int, m: int):
    rng = stream(seed, "case")
    sizes = rng.integers(1, 7, size=m)  # unequal K_m; K_m = 1 is degenerate
    sizes[0] = 3
    beta = [rng.standard_normal((k, 4)) * rng.uniform(0.1, 10) for k in sizes]
    common = rng.integers(0, 6, size=n)
    own = np.stack([rng.integers(0, k, size=n) for k in sizes], axis=1)
    labels = np.where(rng.random((n, m)) < 0.7, common[:, None] % sizes, own)
    if m > 2:
        labels[:, m - 1] = 0  # all subjects in one class
    return labels, beta


CASES = [(0, 60, 3), (1, 40, 8), (2, 25, 30), (3, 50, 2), (4, 30, 1)]


@pytest.mark.parametrize(("seed", "n", "m"), [*CASES, (5, 500, 30)])
def test_pattern_form_equals_the_n_by_n_form(seed, n, m):
    labels, beta = random_case(seed, n, m)
    table, inverse = distinct_patterns(labels, [len(b) for b in beta])
    matrices = [naive.co_distance(labels[:, s], beta[s]) for s in range(m)]
    found = en.build_ensemble(table, beta, weighting="spectral")
    valid = np.array([d.any() for d in matrices])

    norms = [np.linalg.norm(d) for d in matrices]
    np.testing.assert_allclose(found.norms, norms, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(found.norms == 0, ~valid)
    np.testing.assert_allclose(found.agreement, naive.agreement(matrices), atol=1e-10)
    centred = en.build_ensemble(table, beta, weighting="centred")
    expected = naive.agreement(matrices, centred=True)
    np.testing.assert_allclose(centred.agreement, expected, atol=1e-10)
    weights = naive.spectral_weights([d for d in matrices if d.any()])
    np.testing.assert_allclose(found.weights[valid], weights, atol=1e-10)
    assert (found.weights[~valid] == 0).all()
    assert np.sum(found.weights**2) == pytest.approx(1.0, abs=1e-12)

    distance = naive.ensemble_distance(matrices, found.weights)
    phi = en.pattern_features(found.features, table)[inverse]
    gram = distance @ distance.T
    np.testing.assert_allclose(phi @ phi.T, gram, atol=1e-10 * max(1.0, np.abs(gram).max()))
    exact = np.linalg.eigvalsh(distance)
    exact = exact[np.argsort(-np.abs(exact))]
    count = min(exact.size, found.eigenvalues.size)
    np.testing.assert_allclose(
        np.sort(found.eigenvalues[:count]), np.sort(exact[:count]), atol=1e-7 * abs(exact[0])
    )


def test_larger_case_with_matrix_distances():
    labels, beta = random_case(11, 500, 30)
    table, inverse = distinct_patterns(labels, [len(b) for b in beta])
    matrices = [
        np.array([np.linalg.norm(b - row, axis=1) for row in b])[labels[:, s]][:, labels[:, s]]
        for s, b in enumerate(beta)
    ]
    found = en.build_ensemble(table, beta, weighting="spectral")
    np.testing.assert_allclose(found.agreement, naive.agreement(matrices), atol=1e-10)
    distance = naive.ensemble_distance(matrices, found.weights)
    phi = en.pattern_features(found.features, table)[inverse]
    np.testing.assert_allclose(phi @ phi.T, distance @ distance.T, atol=1e-10)
    rank = sum(len(b) - 1 for b in beta) + 1
    assert found.features.shape[1] <= rank


def test_identical_labels_from_identical_starts():
    sim = simulate_gaussian_sites(
        5, rng=stream(3, "starts"), design="imbalanced", variance=0.3, sizes=(40, 80)
    )
    fits = [fit_cluster_model(x, n_clusters=5, rng=stream(0, i)) for i, x in enumerate(sim.tables)]
    models = [f.model for f in fits if f.model is not None]
    rows = np.concatenate(sim.tables)
    labels = np.stack([m.label(rows) for m in models], axis=1)
    beta = [m.class_parameters for m in models]
    table, inverse = distinct_patterns(labels, [len(b) for b in beta])
    found = en.build_ensemble(table, beta, weighting="spectral")
    phi = en.pattern_features(found.features, table)
    matrices = [naive.co_distance(labels[:, s], beta[s]) for s in range(len(beta))]
    distance = naive.ensemble_distance(matrices, naive.spectral_weights(matrices))
    # five random rows often have the same tuple: then classes are empty and seeded again
    for restart in range(20):
        chosen = stream(restart, "rows").choice(len(rows), size=5, replace=False)
        by_pattern = weighted_kmeans(phi, table.counts, 5, starts=phi[inverse[chosen]][None])
        by_row = weighted_kmeans(distance, np.ones(len(rows)), 5, starts=distance[chosen][None])
        assert by_pattern.inertia == pytest.approx(by_row.inertia, rel=1e-9)
        # classes are numbered by size: equal partitions may still swap classes of equal size
        pairs = set(zip(by_pattern.labels[inverse].tolist(), by_row.labels.tolist(), strict=True))
        assert len(pairs) == 5
        rows_first = en.assign(labels, table.n_classes, found.features, by_pattern.centres)
        np.testing.assert_array_equal(rows_first, by_pattern.labels[inverse])


def test_weights_do_not_depend_on_class_numbers():
    labels, beta = random_case(5, 200, 6)
    first, _ = distinct_patterns(labels, [len(b) for b in beta])
    rng = stream(9, "switch")
    orders = [rng.permutation(len(b)) for b in beta]
    switched = np.stack([np.argsort(o)[labels[:, s]] for s, o in enumerate(orders)], axis=1)
    second, _ = distinct_patterns(switched, [len(b) for b in beta])
    a = en.build_ensemble(first, beta, weighting="spectral")
    again = [x[o] for x, o in zip(beta, orders, strict=True)]
    b = en.build_ensemble(second, again, weighting="spectral")
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-12)
    np.testing.assert_allclose(np.abs(a.eigenvalues), np.abs(b.eigenvalues), atol=1e-10)


def test_centred_weights_set_disagreement_to_zero():
    g = np.array(
        [[1.0, 0.8, 0.8, -0.5], [0.8, 1, 0.8, -0.5], [0.8, 0.8, 1, -0.5], [-0.5] * 3 + [1]]
    )
    weights = en.model_weights(g, np.ones(4, dtype=bool), "centred")
    assert weights[3] == 0.0
    np.testing.assert_allclose(weights[:3], 1 / np.sqrt(3))


@pytest.mark.parametrize("weighting", ["spectral", "centred", "equal"])
def test_two_models_weigh_the_same(weighting):
    g = np.array([[1.0, -0.3], [-0.3, 1.0]])
    weights = en.model_weights(g, np.ones(2, dtype=bool), weighting)
    np.testing.assert_allclose(weights, np.sqrt(0.5))


def test_assign_does_not_depend_on_the_batch():
    labels, beta = random_case(7, 300, 9)
    sizes = [len(b) for b in beta]
    table, _ = distinct_patterns(labels, sizes)
    found = en.build_ensemble(table, beta, weighting="spectral")
    centres = found.features[:4] * 3
    whole = en.assign(labels, sizes, found.features, centres)
    single = [en.assign(labels[i : i + 1], sizes, found.features, centres)[0] for i in range(300)]
    np.testing.assert_array_equal(whole, single)


def test_number_of_classes_from_eigenvalues():
    assert en.n_clusters_by_eigenvalues(np.array([10.0, -5, -4, -3, -0.01, 1e-9]), 6) == 4
    assert en.n_clusters_by_eigenvalues(np.array([10.0, -9.0]), 6) == 2
    hits = 0
    for seed in range(5):
        sim = simulate_gaussian_sites(8, rng=stream(seed, "k"), variance=0.1)
        models = [
            fit_cluster_model(x, n_clusters=6, rng=stream(seed, i), n_init=5).model
            for i, x in enumerate(sim.tables)
        ]
        rows = np.concatenate(sim.tables)
        labels = np.stack([m.label(rows) for m in models], axis=1)
        beta = [m.class_parameters for m in models]
        table, _ = distinct_patterns(labels, [len(b) for b in beta])
        found = en.build_ensemble(table, beta, weighting="spectral")
        hits += en.n_clusters_by_eigenvalues(found.eigenvalues, 10) == 5
    assert hits >= 4  # 100% of 25 data sets of this design; chance alone would give 1 in 9


def test_errors_say_what_is_wrong():
    labels, beta = random_case(0, 20, 3)
    table, _ = distinct_patterns(labels, [len(b) for b in beta])
    with pytest.raises(ParameterError, match="weighting"):
        en.build_ensemble(table, beta, weighting="other")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="classes of the models"):
        en.build_ensemble(table, beta[:2])
    with pytest.raises(DataError):
        en.class_distances(np.array([[np.nan, 1.0]]))


def test_every_model_degenerate_gives_one_class():
    models = [KMeansModel(np.ones((2, 3))), KMeansModel(np.zeros((2, 3)))]
    table, _ = distinct_patterns(np.array([[0, 1], [1, 0], [0, 0]]), [2, 2])
    found = en.build_ensemble(table, [m.class_parameters for m in models])
    assert (found.weights == 0).all()
    assert found.features.shape[1] == 0

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.clustering.kernels import ensemble as lp
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 60))
def test_distinct_tuples_with_counts(seed, m, n):
    rng = stream(seed, "labels")
    sizes = rng.integers(1, 9, size=m).tolist()  # 40 models of 8 classes need two words
    labels = np.stack([rng.integers(0, k, size=n) for k in sizes], axis=1) // 3
    table, inverse = lp.distinct_patterns(labels, sizes)
    expected, counts = np.unique(labels, axis=0, return_counts=True)
    np.testing.assert_array_equal(table.patterns, expected)
    np.testing.assert_array_equal(table.counts, counts)
    np.testing.assert_array_equal(table.patterns[inverse], labels)


def test_very_many_models_and_classes():
    rng = stream(1, "wide")
    labels = rng.integers(0, 70000, size=(200, 30))
    labels[100:] = labels[:100]
    table, _ = lp.distinct_patterns(labels, [70000] * 30)
    assert table.counts.tolist() == [2] * 100


def test_rows_and_sites_in_any_order_give_the_same_table():
    rng = stream(2, "order")
    labels = rng.integers(0, 3, size=(500, 4))
    whole, _ = lp.distinct_patterns(labels, [3] * 4)
    parts = [lp.distinct_patterns(p, [3] * 4)[0] for p in (labels[300:], labels[:300])]
    merged = lp.merge_tables(parts)
    np.testing.assert_array_equal(merged.patterns, whole.patterns)
    np.testing.assert_array_equal(merged.counts, whole.counts)


def test_co_occurrence_is_z_transpose_z():
    rng = stream(3, "gamma")
    sizes = [2, 5, 1, 3]
    labels = np.stack([rng.integers(0, k, size=300) for k in sizes], axis=1)
    z = lp.one_hot(labels, sizes)
    table, _ = lp.distinct_patterns(labels, sizes)
    np.testing.assert_array_equal(lp.co_occurrence(table), z.T @ z)


def nearest_by_loops(table, distances, min_records):
    norms = [np.linalg.norm(b) for b in distances]
    frequent = [i for i, c in enumerate(table.counts) if c >= min_records]
    counts = {i: 0 for i in frequent}
    for i, pattern in enumerate(table.patterns):
        if i in counts:
            counts[i] += table.counts[i]
            continue
        gaps = []
        for j in frequent:
            other = table.patterns[j]
            gap = sum(
                b[a, c] / norm
                for b, norm, a, c in zip(distances, norms, pattern, other, strict=True)
                if norm > 0
            )
            gaps.append(round(float(gap), 9))
        counts[frequent[int(np.argmin(gaps))]] += table.counts[i]
    return table.patterns[frequent], [counts[i] for i in frequent]


@pytest.mark.parametrize("seed", range(5))
def test_rare_tuples_join_the_nearest_frequent_one(seed):
    rng = stream(seed, "rare")
    sizes = [3, 4, 2, 2]
    labels = np.stack([rng.choice(k, size=250, p=rng.dirichlet(np.ones(k))) for k in sizes], axis=1)
    beta = [rng.standard_normal((k, 3)) for k in sizes]
    beta[3] = np.ones((2, 3))  # classes coincide: contributes nothing
    distances = [lp.class_distances(b) for b in beta]
    table, _ = lp.distinct_patterns(labels, sizes)
    merged, target = lp.merge_rare(table, distances, 10)
    patterns, counts = nearest_by_loops(table, distances, 10)
    np.testing.assert_array_equal(merged.patterns, patterns)
    assert merged.counts.tolist() == counts
    assert merged.counts.sum() == 250
    assert (merged.counts >= 10).all()
    assert (target >= 0).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [8, 30, 120, 400])
def test_no_site_sends_a_small_count(seed, n):
    rng = stream(seed, "site", n)
    sizes = [4] * 9
    labels = rng.integers(0, 4, size=(n, 9))
    beta = [rng.standard_normal((4, 3)) for _ in sizes]
    summary = lp.summarise_site(labels, beta, 10)
    assert (summary.table.counts >= 10).all()
    assert summary.table.n_subjects == (0 if summary.how == "none" else n)
    largest_cell = np.bincount(labels[:, 0]).max()  # the coarsest prefix: the first model alone
    assert summary.how == ("none" if largest_cell < 10 else "coarsened")
    counted = np.bincount(summary.cells[summary.cells >= 0], minlength=summary.table.counts.size)
    np.testing.assert_array_equal(counted, summary.table.counts)


def test_coarse_tuples_are_completed_from_the_models_alone():
    beta = [np.array([[0.0], [10.0]]), np.array([[9.0], [1.0]]), np.array([[0.0], [4.0], [11.0]])]
    completed = lp.complete_prefixes(np.array([[0], [1]]), beta)
    assert completed.tolist() == [[0, 1, 0], [1, 0, 2]]
    # two data sets with the same counts of first labels and different other labels
    first = np.repeat([0, 1], 15)
    other = stream(0, "rest").integers(0, 2, size=(2, 30))
    sent = []
    for o in other:
        labels = np.stack([first, o, np.arange(30) % 3], axis=1)
        sent.append(lp.coarsen(lp.distinct_patterns(labels, [2, 2, 3])[0], beta, 12).table)
    np.testing.assert_array_equal(sent[0].patterns, sent[1].patterns)
    np.testing.assert_array_equal(sent[0].counts, sent[1].counts)


def test_min_records_one_sends_the_exact_table():
    labels = stream(4, "exact").integers(0, 3, size=(40, 5))
    beta = [np.arange(3.0)[:, None]] * 5
    summary = lp.summarise_site(labels, beta, 1)
    assert summary.how == "exact"
    table, _ = lp.distinct_patterns(labels, [3] * 5)
    np.testing.assert_array_equal(summary.table.counts, table.counts)


def test_wrong_labels_are_refused():
    with pytest.raises(DataError, match="outside"):
        lp.distinct_patterns(np.array([[3]]), [3])
    with pytest.raises(DataError, match="one column"):
        lp.distinct_patterns(np.array([[0, 0]]), [3])
    with pytest.raises(DataError, match="integers"):
        lp.distinct_patterns(np.array([[0.5]]), [3])
    with pytest.raises(ParameterError, match="min_records"):
        lp.summarise_site(np.array([[0]]), [np.ones((1, 1))], 0)


def test_all_labels_stay_where_their_tuples_are_frequent():
    beta = [10.0 * np.arange(k, dtype=float)[:, None] for k in (2, 3, 4)]
    often = np.repeat([[0, 0, 0], [0, 1, 0], [1, 2, 3]], 12, axis=0)
    table, _ = lp.distinct_patterns(often, [2, 3, 4])
    coarse = lp.coarsen(table, beta, 10)
    assert coarse.prefix_length == 3
    np.testing.assert_array_equal(coarse.table.patterns, table.patterns)

from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.observed_kmeans import FewerClustersWarning, weighted_kmeans
from consilience.numerics.random import stream


def blobs(seed: int = 0):
    rng = stream(seed, "blobs")
    centres = np.array([[0.0, 0], [6, 0], [0, 6]])
    return np.concatenate([c + rng.standard_normal((40, 2)) for c in centres])


def test_weights_count_as_repetitions():
    points = blobs()
    weights = stream(1, "w").integers(1, 5, size=len(points))
    starts = points[[0, 50, 100]][None]
    repeated = np.repeat(points, weights, axis=0)
    a = weighted_kmeans(points, weights, 3, starts=starts)
    b = weighted_kmeans(repeated, np.ones(len(repeated)), 3, starts=starts)
    np.testing.assert_array_equal(np.repeat(a.labels, weights), b.labels)
    np.testing.assert_allclose(a.centres, b.centres, atol=1e-10)
    assert a.inertia == pytest.approx(b.inertia)


def test_same_seed_same_classes_in_order_of_size():
    points = blobs()
    weights = np.repeat([1, 5, 3], 40)
    a = weighted_kmeans(points, weights, 3, rng=stream(5))
    b = weighted_kmeans(points, weights, 3, rng=stream(5))
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.sizes.tolist() == [200.0, 120.0, 40.0]


def test_an_empty_class_is_seeded_again():
    points = blobs()
    starts = np.array([[[0.0, 0], [6, 0], [1000, 1000]]])
    found = weighted_kmeans(points, np.ones(len(points)), 3, starts=starts)
    assert found.sizes.tolist() == [40.0, 40.0, 40.0]


def test_fewer_distinct_points_than_classes():
    points = np.repeat(np.array([[0.0, 1], [2, 3]]), 10, axis=0)
    with pytest.warns(FewerClustersWarning, match="2 distinct"):
        found = weighted_kmeans(points, np.ones(20), 4, rng=stream(0))
    assert len(found.centres) == 2
    assert found.inertia == 0.0
    with pytest.warns(FewerClustersWarning):
        empty = weighted_kmeans(np.zeros((5, 0)), np.ones(5), 2, rng=stream(0))
    assert empty.labels.tolist() == [0] * 5


def test_points_that_differ_by_rounding_end():
    # far from the origin, steps of 1e-7 are above the tolerance of "distinct", yet the squares of
    # distances drown in rounding
    points = 1e2 + 3e-7 * np.arange(12.0)[:, None] * np.ones((1, 2))
    points = np.concatenate([points, [[0.0, 0.0], [50.0, 0.0]]])
    weights = np.ones(len(points))
    starts = np.repeat(points[:1], 6, axis=0)[None]
    with pytest.warns(FewerClustersWarning):
        found = weighted_kmeans(points, weights, 6, starts=starts)
    assert found.sizes.sum() == 14


def test_wrong_input_is_refused():
    with pytest.raises(DataError):
        weighted_kmeans(np.ones((3, 1)), [1, 0, 1], 2, rng=stream(0))
    with pytest.raises(ParameterError):
        weighted_kmeans(np.ones((3, 1)), [1, 1, 1], 0, rng=stream(0))
    with pytest.raises(ParameterError):
        weighted_kmeans(np.ones((3, 1)), [1, 1, 1], 2)

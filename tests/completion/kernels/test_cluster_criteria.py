"""Criteria for the number of classes: the textbook, clear and absent classes, ends of the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import calinski_harabasz_score, silhouette_score

from consilience.completion.kernels import cluster_criteria as criteria
from consilience.completion.kernels.cluster_criteria import Partitions, all_criteria
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from tests.reference import observed_kmeans as textbook

CHOOSE = [
    criteria.calinski_harabasz,
    criteria.silhouette,
    criteria.krzanowski_lai,
    criteria.hartigan,
    criteria.jump,
    lambda found: criteria.gap(found, rng=stream(1), n_references=10),
]


def clouds(k: int, apart: float, seed: int = 0, n: int = 20, p: int = 6) -> np.ndarray:
    """Classes at corners that are equally far from one another."""
    rng = np.random.default_rng(seed)
    middles = apart * np.eye(k, p)
    return np.vstack([rng.normal(size=(n, p)) + middle for middle in middles])


@pytest.fixture(scope="module")
def found() -> Partitions:
    return Partitions.of(clouds(4, 6.0), 8, rng=stream(0))


def test_partitions_are_k_means(found: Partitions) -> None:
    for k, labels, w in zip(found.n_clusters, found.labels, found.dispersions, strict=True):
        theirs = KMeans(int(k), n_init=20, random_state=0).fit(found.x)
        assert w == pytest.approx(textbook.dispersion(found.x, labels), rel=1e-10)
        assert w <= theirs.inertia_ * 1.03
    assert (np.diff(found.dispersions) < 0).all()


def test_textbook(found: Partitions) -> None:
    n, p = found.x.shape
    w = {
        int(k): textbook.dispersion(found.x, labels)
        for k, labels in zip(found.n_clusters, found.labels, strict=True)
    }
    lai, first = criteria.krzanowski_lai(found), criteria.hartigan(found)
    jumps = criteria.jump(found)
    scale = (w[8] / (n * p)) ** (-p / 2)
    for k in range(2, 8):
        assert lai.values[k - 1] == pytest.approx(textbook.krzanowski_lai_slowly(w, p, k), rel=1e-9)
    for k in range(1, 8):
        assert first.values[k - 1] == pytest.approx(textbook.hartigan_slowly(w, n, k), rel=1e-9)
    for k in range(1, 9):
        expected = textbook.jump_slowly(w, n, p, k) / scale
        assert jumps.values[k - 1] == pytest.approx(expected, rel=1e-9)
    assert np.isnan(lai.values[[0, 7]]).all()
    assert np.isnan(first.values[7])


def test_scores_are_those_of_scikit_learn(found: Partitions) -> None:
    harabasz, shadow = criteria.calinski_harabasz(found), criteria.silhouette(found)
    for k in range(2, 9):
        labels = found.labels[k - 1]
        assert harabasz.values[k - 1] == calinski_harabasz_score(found.x, labels)
        assert shadow.values[k - 1] == silhouette_score(found.x, labels)
    assert np.isnan(harabasz.values[0])  # a division of rounding errors otherwise
    assert np.isnan(shadow.values[0])


def test_gap_by_hand() -> None:
    """The same draws, one by one; the box is a product of ranges."""
    x = clouds(2, 5.0, n=15, p=2)
    found = Partitions.of(x, 3, rng=stream(0))
    result = criteria.gap(found, rng=stream(3), n_references=4, n_init=2, reference="box")
    rng, logs = stream(3), []
    low, high = (x - x.mean(axis=0)).min(axis=0), (x - x.mean(axis=0)).max(axis=0)
    for _ in range(4):
        table = low + (high - low) * rng.random(x.shape)
        none = Partitions.of(table, 3, rng=rng, n_init=2)
        logs.append([np.log(textbook.dispersion(table, labels)) for labels in none.labels])
    expected = np.mean(logs, axis=0) - np.log(found.dispersions)
    np.testing.assert_allclose(result.values, expected, atol=1e-10)
    assert result.se is not None
    np.testing.assert_allclose(result.se, np.std(logs, axis=0) * np.sqrt(1.25), atol=1e-10)
    holds = [k for k in (1, 2) if expected[k - 1] >= expected[k] - result.se[k]]
    assert result.choice == min(holds)


@pytest.mark.parametrize("choose", CHOOSE)
def test_clear_classes(found: Partitions, choose: Any) -> None:
    assert choose(found).choice == 4


def test_one_class() -> None:
    """The three that can say so do; the others must name two or more, or nothing."""
    x = np.random.default_rng(0).normal(size=(80, 2))
    found = all_criteria(x, 6, rng=stream(0), n_references=10)
    assert found["gap"].choice == 1
    for name in ("calinski-harabasz", "silhouette", "krzanowski-lai"):
        assert found[name].choice is None or found[name].choice >= 2


@pytest.mark.parametrize("choose", CHOOSE)
def test_end_of_the_grid_is_no_choice(choose: Any) -> None:
    """Two classes, and a grid that ends there: whether a third is worth it, nobody can say."""
    assert choose(Partitions.of(clouds(2, 12.0), 2, rng=stream(0))).choice is None


def test_many_columns_and_no_overflow() -> None:
    x = clouds(3, 80.0, n=8, p=3000)
    found = all_criteria(x, 6, rng=stream(0), n_init=2, n_references=3)
    for result in found.values():
        assert not np.isinf(result.values).any()
    assert found["silhouette"].choice == 3


def test_repeated_rows() -> None:
    """Classes without any spread: no division by zero, and the choice is their number."""
    x = np.repeat(np.array([[0.0, 0.0], [4.0, 1.0], [9.0, 5.0]]), 6, axis=0)
    with np.errstate(all="raise"):
        found = all_criteria(x, 6, rng=stream(0), n_references=3)
    assert found["hartigan"].choice == 3
    assert found["jump"].choice == 3


def test_refusals(found: Partitions) -> None:
    gaps = found.x.copy()
    gaps[0, 0] = np.nan
    with pytest.raises(DataError, match="complete"):
        Partitions.of(gaps, 3, rng=stream(0))
    for k in (0, len(found.x)):
        with pytest.raises(ParameterError, match="max_clusters"):
            Partitions.of(found.x, k, rng=stream(0))
    with pytest.raises(ParameterError, match="n_references"):
        criteria.gap(found, rng=stream(0), n_references=1)
    with pytest.raises(ParameterError, match="reference"):
        criteria.gap(found, rng=stream(0), reference="ball")

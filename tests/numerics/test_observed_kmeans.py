"""K-means over observed coordinates, k-POD: the textbook, all partitions, tables that are bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import (
    column_means,
    kpod,
    nearest_centres,
    observed_kmeans,
    observed_kmeans_path,
)
from consilience.numerics.random import stream
from tests.reference import observed_kmeans as textbook


def clouds(
    seed: int, n: int = 60, p: int = 4, k: int = 3, missing: float = 0.25, apart: float = 3.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in k classes with gaps; every row has an entry."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    x = rng.normal(size=(n, p)) + apart * rng.normal(size=(k, p))[labels]
    gaps = rng.random((n, p)) < missing
    gaps[np.arange(n), rng.integers(p, size=n)] = False
    x[gaps] = np.nan
    return x, labels


def same_classes(a: Any, b: Any) -> bool:
    pairs = set(zip(np.asarray(a).tolist(), np.asarray(b).tolist(), strict=True))
    return len(pairs) == len({i for i, _ in pairs}) == len({j for _, j in pairs})


def rows_as_starts(x: np.ndarray, rows: list[int]) -> np.ndarray:
    return np.where(np.isnan(x), textbook.column_means(x), x)[rows]


# ------------------------------------------------------------------ the textbook


@pytest.mark.parametrize("seed", range(6))
def test_textbook_from_the_same_start(seed: int) -> None:
    x, _ = clouds(seed)
    start = rows_as_starts(x, [0, 1, 2])
    fit = observed_kmeans(Entries.of(x), 3, rng=stream(0), n_init=0, starts=[start])
    centres, labels, inertia = textbook.lloyd_slowly(x, start)
    assert same_classes(fit.labels, labels)
    np.testing.assert_allclose(fit.centres[fit.labels], centres[labels], atol=1e-12)
    assert fit.inertia == pytest.approx(inertia, rel=1e-12)
    assert fit.converged


@pytest.mark.parametrize("seed", range(4))
def test_kpod_textbook_from_the_same_start(seed: int) -> None:
    x, _ = clouds(seed)
    start = rows_as_starts(x, [0, 1, 2])
    fit = kpod(Entries.of(x), 3, rng=stream(0), n_init=0, starts=[start], max_iter=5000)
    centres, labels, inertia = textbook.kpod_slowly(x, start)
    assert same_classes(fit.labels, labels)
    np.testing.assert_allclose(fit.centres[fit.labels], centres[labels], atol=1e-9)
    assert fit.inertia == pytest.approx(inertia, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_best_of_all_partitions(seed: int) -> None:
    x, _ = clouds(seed, n=9, p=3, k=2, missing=0.2, apart=1.0)
    fit = observed_kmeans(Entries.of(x), 2, rng=stream(0), n_init=50)
    assert fit.inertia == pytest.approx(textbook.best_partition(x, 2), rel=1e-10)
    assert kpod(Entries.of(x), 2, rng=stream(0), n_init=50).inertia >= fit.inertia * (1 - 1e-10)


def test_complete_table_is_k_means() -> None:
    x, _ = clouds(0, missing=0.0)
    theirs = KMeans(3, n_init=20, random_state=0).fit(x)
    for found in (observed_kmeans, kpod):
        fit = found(Entries.of(x), 3, rng=stream(0), n_init=20)
        assert same_classes(fit.labels, theirs.labels_)
        assert fit.inertia == pytest.approx(theirs.inertia_, rel=1e-10)


def test_observed_coordinates_optimise_better() -> None:
    """Over 20 tables with half of the entries missing, at equal starts, one start each."""
    gains = []
    for seed in range(20):
        x, _ = clouds(seed, missing=0.5, apart=2.0)
        ours, theirs = (
            f(Entries.of(x), 3, rng=stream(seed), n_init=1) for f in (observed_kmeans, kpod)
        )
        gains.append(theirs.inertia - ours.inertia)
    assert np.mean(gains) > 2 * np.std(gains) / np.sqrt(len(gains))


# ------------------------------------------------------------------ what holds of every fit


@pytest.mark.parametrize("found", [observed_kmeans, kpod])
def test_same_draws_same_fit(found: Any) -> None:
    x, _ = clouds(1)
    first, second = (found(Entries.of(x), 4, rng=stream(5), n_init=3) for _ in range(2))
    assert first.centres.tobytes() == second.centres.tobytes()
    assert first.labels.tobytes() == second.labels.tobytes()


def test_largest_class_first_and_labels_are_nearest() -> None:
    x, _ = clouds(2)
    entries = Entries.of(x)
    fit = observed_kmeans(entries, 4, rng=stream(0))
    assert (np.diff(fit.sizes) <= 0).all()
    np.testing.assert_array_equal(fit.sizes, np.bincount(fit.labels, minlength=4))
    labels, squares = nearest_centres(entries, fit.centres, fit.column_means)
    np.testing.assert_array_equal(labels, fit.labels)
    assert squares.min(axis=1).sum() == pytest.approx(fit.inertia, rel=1e-12)
    expected = [[textbook.cost(row, centre) for centre in fit.centres] for row in x]
    np.testing.assert_allclose(squares, expected, atol=1e-10)


def test_class_of_a_row_does_not_depend_on_the_batch() -> None:
    x, _ = clouds(3)
    fit = observed_kmeans(Entries.of(x), 3, rng=stream(0))
    whole = nearest_centres(Entries.of(x), fit.centres, fit.column_means)[1]
    for i in range(0, len(x), 7):
        one = nearest_centres(Entries.of(x[i : i + 1]), fit.centres, fit.column_means)[1]
        assert one[0].tobytes() == whole[i].tobytes()


def test_path_never_rises_and_starts_warm() -> None:
    x, _ = clouds(4, apart=0.5)
    fits = list(observed_kmeans_path(Entries.of(x), range(1, 13), rng=stream(0), n_init=1))
    inertias = [fit.inertia for fit in fits]
    assert [fit.n_clusters for fit in fits] == list(range(1, 13))
    assert (np.diff(inertias) <= 1e-9).all()
    np.testing.assert_allclose(fits[0].centres[0], textbook.column_means(x))


def test_offset_changes_nothing() -> None:
    """A table far from the origin: sums of squares keep their digits."""
    x, _ = clouds(5)
    near = observed_kmeans(Entries.of(x), 3, rng=stream(0))
    far = observed_kmeans(Entries.of(x + 1e7), 3, rng=stream(0))
    assert same_classes(near.labels, far.labels)
    assert far.inertia == pytest.approx(near.inertia, rel=1e-6)


def test_predictions_at_places() -> None:
    x, _ = clouds(6)
    x[7] = np.nan
    fit = observed_kmeans(Entries.of(x), 3, rng=stream(0))
    rows, columns = np.nonzero(np.isnan(x))
    np.testing.assert_array_equal(fit.at(rows, columns), fit.dense()[rows, columns])
    np.testing.assert_array_equal(fit.dense()[7], fit.column_means)
    others = np.arange(len(x)) != 7
    np.testing.assert_array_equal(fit.dense()[others], fit.centres[fit.labels[others]])


# ------------------------------------------------------------------ gaps at their worst


@pytest.mark.parametrize("found", [observed_kmeans, kpod])
def test_empty_row_and_column(found: Any) -> None:
    x, _ = clouds(7)
    x[3], x[:, 2] = np.nan, np.nan
    fit = found(Entries.of(x), 3, rng=stream(0))
    assert not fit.seen[3]
    assert fit.sizes.sum() == len(x) - 1
    to_means = ((fit.centres - fit.column_means) ** 2).sum(axis=1)
    assert fit.labels[3] == to_means.argmin()
    np.testing.assert_allclose(fit.centres[:, 2], np.nanmean(x))
    without = found(Entries.of(np.delete(x, 3, axis=0)), 3, rng=stream(0))
    assert fit.inertia == pytest.approx(without.inertia, rel=1e-12)


def test_coordinate_that_no_row_of_a_class_has() -> None:
    x = np.array([[0.0, 1.0], [0.1, 2.0], [0.2, 3.0], [9.0, np.nan], [9.1, np.nan]])
    fit = observed_kmeans(Entries.of(x), 2, rng=stream(0))
    np.testing.assert_allclose(fit.centres, [[0.1, 2.0], [9.05, 2.0]])


@pytest.mark.parametrize("found", [observed_kmeans, kpod])
def test_class_that_loses_its_rows_gets_the_worst_off(found: Any) -> None:
    x = np.array([[0.0], [0.1], [0.2], [50.0], [100.0], [100.1]])
    far = np.array([[0.0], [0.1], [1000.0]])
    fit = found(Entries.of(x), 3, rng=stream(0), n_init=0, starts=[far])
    assert (fit.sizes > 0).all()
    best = textbook.best_partition(x, 3)
    assert fit.inertia == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("found", [observed_kmeans, kpod])
def test_fewer_distinct_rows_than_classes(found: Any) -> None:
    x = np.repeat([[0.0, 1.0], [5.0, np.nan]], 5, axis=0)
    fit = found(Entries.of(x), 4, rng=stream(0))
    assert fit.inertia == pytest.approx(0.0, abs=1e-20)
    np.testing.assert_array_equal(fit.sizes, [5, 5, 0, 0])
    np.testing.assert_array_equal(fit.centres[2], fit.centres[0])


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("found", [observed_kmeans, kpod])
def test_one_row_or_column(found: Any, shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=float).reshape(shape)
    fit = found(Entries.of(x), shape[0], rng=stream(0))
    np.testing.assert_allclose(fit.dense(), x)


def test_limit_is_said() -> None:
    x, _ = clouds(8, n=300, apart=0.3)
    assert not observed_kmeans(Entries.of(x), 6, rng=stream(0), n_init=1, max_iter=2).converged
    loose = observed_kmeans(Entries.of(x), 6, rng=stream(0), n_init=1, tol=0.5)
    tight = observed_kmeans(Entries.of(x), 6, rng=stream(0), n_init=1)
    assert loose.converged
    assert loose.n_iter < tight.n_iter
    assert not kpod(Entries.of(x), 6, rng=stream(0), n_init=1, max_iter=1).converged


@pytest.mark.parametrize("found", [observed_kmeans, kpod])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_clusters", 0),
        ("n_clusters", 2.5),
        ("n_clusters", True),
        ("n_init", 0),
        ("n_init", "auto"),
        ("max_iter", 0),
        ("tol", -1e-3),
        ("tol", np.nan),
        ("starts", [np.zeros((1, 9))]),
        ("starts", [np.zeros((3, 4))]),
    ],
)
def test_settings_out_of_range(found: Any, name: str, value: Any) -> None:
    settings = {"n_clusters": 2} | {name: value}
    with pytest.raises(ParameterError, match=name):
        found(Entries.of(clouds(0)[0]), rng=stream(0), **settings)


def test_more_classes_than_rows_with_an_entry() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, np.nan]])
    with pytest.raises(DataError, match="n_clusters = 3"):
        observed_kmeans(Entries.of(x), 3, rng=stream(0))
    with pytest.raises(ParameterError, match="increasing"):
        list(observed_kmeans_path(Entries.of(x), [2, 1], rng=stream(0)))


def test_column_means() -> None:
    x = clouds(9)[0]
    x[:, 1] = np.nan
    np.testing.assert_allclose(column_means(Entries.of(x)), textbook.column_means(x))

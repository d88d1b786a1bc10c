from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from consilience.clustering.estimators import local_models as cm
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering.simulate import simulate_gaussian_sites

KINDS = [("kmeans", "diag")] + [
    ("gaussian_mixture", kind) for kind in ("diag", "full", "spherical", "tied")
]


def rows_of(seed=0, n=300, variance=0.2, k=3, p=4):
    sim = simulate_gaussian_sites(
        1,
        rng=stream(seed, "rows"),
        variance=variance,
        n_classes=k,
        n_features=p,
        sizes=(n, n),
    )
    return sim.tables[0], sim.classes[0]


def fitted(kind, covariance, rows, **options):
    return cm.fit_cluster_model(
        rows,
        model=kind,
        covariance_type=covariance,
        **{"n_clusters": 3, "rng": stream(0, "fit"), "n_init": 3, **options},
    )


@pytest.mark.parametrize(("kind", "covariance"), KINDS)
def test_finds_classes_and_labels_rows_one_by_one(kind, covariance):
    rows, truth = rows_of()
    fit = fitted(kind, covariance, rows)
    assert adjusted_rand_index(fit.labels, truth) > 0.9
    model = fit.model
    np.testing.assert_array_equal(model.label(rows), fit.labels)
    big = np.concatenate([rows] * 20)  # more than one block
    order = stream(1, "order").permutation(len(big))
    expected = np.tile(fit.labels, 20)
    np.testing.assert_array_equal(model.label(big[order]), expected[order])
    np.testing.assert_array_equal(model.label(np.asfortranarray(rows)), fit.labels)
    np.testing.assert_array_equal(
        [model.label(rows[i : i + 1])[0] for i in range(50)], fit.labels[:50]
    )
    means = model.means
    assert (np.lexsort(means.T[::-1]) == np.arange(3)).all()


@pytest.mark.parametrize("covariance", ["diag", "full", "spherical", "tied"])
def test_mixture_labels_equal_textbook_posteriors(covariance):
    rows, _ = rows_of(variance=0.6)
    model = fitted("gaussian_mixture", covariance, rows).model
    d = rows.shape[1]
    joint = []
    for k in range(3):
        c = model.covariances if covariance == "tied" else model.covariances[k]
        full = {"diag": np.diag, "spherical": lambda v: v * np.eye(d)}.get(covariance, lambda v: v)(
            c
        )
        joint.append(
            np.log(model.proportions[k]) + multivariate_normal(model.means[k], full).logpdf(rows)
        )
    np.testing.assert_array_equal(model.label(rows), np.argmax(joint, axis=0))


@pytest.mark.parametrize("covariance", ["diag", "full", "spherical"])
def test_euclidean_parameter_distance_is_frobenius(covariance):
    rows, _ = rows_of()
    model = fitted("gaussian_mixture", covariance, rows).model
    d = rows.shape[1]
    as_matrix = {"diag": np.diag, "full": lambda v: v, "spherical": lambda v: v * np.eye(d)}
    a, b = (as_matrix[covariance](model.covariances[k]) for k in (0, 1))
    beta = model.class_parameters
    expected = ((model.means[0] - model.means[1]) ** 2).sum() + ((a - b) ** 2).sum()
    assert ((beta[0] - beta[1]) ** 2).sum() == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "covariance"), KINDS)
def test_arrays_hold_the_model(kind, covariance):
    rows, _ = rows_of()
    model = fitted(kind, covariance, rows).model
    arrays = model.to_arrays()
    assert all(a.dtype.kind in "if" for a in arrays.values())
    again = cm.local_model_from_arrays(arrays)
    np.testing.assert_array_equal(again.label(rows), model.label(rows))
    broken = [
        {**arrays, "means": np.full_like(model.means, np.nan)},
        {**arrays, "extra": model.means},
        {**arrays, "means": np.zeros(3)},
    ]
    if kind == "gaussian_mixture":
        broken += [
            {**arrays, "covariances": -model.covariances},
            {**arrays, "covariance_type": np.array([9])},
            {**arrays, "proportions": np.zeros(3)},
        ]
    for bad in broken:
        with pytest.raises(DataError):
            cm.local_model_from_arrays(bad)


@pytest.mark.parametrize("kind", ["kmeans", "gaussian_mixture"])
def test_small_classes_make_the_site_fit_fewer(kind):
    rng = stream(0, "small")
    sizes = {0.0: 60, 8.0: 60, 16.0: 4}
    rows = np.concatenate([m + 0.3 * rng.standard_normal((n, 2)) for m, n in sizes.items()])
    loose = fitted(kind, "diag", rows, min_records=1)
    strict = fitted(kind, "diag", rows, min_records=10)
    assert loose.model.n_classes == 3
    assert strict.model.n_classes == 2
    assert np.bincount(strict.labels).min() >= 10
    none = fitted(kind, "diag", rows[:15], min_records=10)
    assert none.model is None
    assert none.labels.tolist() == [0] * 15


@pytest.mark.parametrize("kind", ["kmeans", "gaussian_mixture"])
def test_few_or_equal_rows(kind):
    two = np.array([[0.0, 1], [5, 1]])
    assert fitted(kind, "diag", two).model.n_classes == 2
    equal = fitted(kind, "diag", np.ones((20, 2)))
    assert equal.model is None
    repeated = fitted(kind, "diag", np.repeat(two, 10, axis=0))
    assert repeated.model.n_classes == 2
    assert fitted(kind, "diag", np.zeros((0, 2))).model is None
    rows, _ = rows_of()
    constant = np.column_stack([rows, np.full(len(rows), 7.0)])
    assert fitted(kind, "diag", constant).model.n_classes == 3


def test_trim_removes_scattered_rows():
    rows, truth = rows_of(variance=0.05)
    direction = stream(3, "far").standard_normal((6, 4))
    far = rows[:6] + 3.0 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    fit = fitted("kmeans", "diag", np.concatenate([rows, far]), trim=6.0)
    assert (fit.labels[300:] == -1).all()
    assert (fit.labels[:300] == -1).sum() <= 3
    kept = fit.labels[:300] >= 0
    assert adjusted_rand_index(fit.labels[:300][kept], truth[kept]) == 1.0
    with pytest.raises(ParameterError, match="trim"):
        fitted("kmeans", "diag", rows, trim=0.0)


def test_groups_of_outlying_rows_are_known_by_the_other_models():
    sim = simulate_gaussian_sites(5, rng=stream(7, "o"), design="outliers", variance=0.05)
    models = [fitted("kmeans", "diag", x, n_clusters=5, n_init=10).model for x in sim.tables]
    for own, (rows, truth) in enumerate(zip(sim.tables, sim.classes, strict=True)):
        flagged = cm.outlying_rows(rows, models, own=own, trim=6.0)
        assert (flagged[truth < 0]).all()
        # 10^-4 of the regular rows over 60 data sets
        assert flagged[truth >= 0].mean() < 0.02


def test_bic_finds_the_number_of_classes():
    def vote(rows, largest, **options):
        rng = stream(0)
        return np.argmin([cm.bic(rows, k, rng=rng, **options) for k in range(1, largest + 1)]) + 1

    rows, _ = rows_of(variance=0.1)
    assert vote(rows, 6, n_init=5) == 3
    assert vote(rows, 5, model="gaussian_mixture", n_init=2) == 3
    noise = stream(5).standard_normal((200, 4))
    assert vote(noise, 4, n_init=5) == 1
    assert vote(np.ones((5, 2)), 3) == 1


def test_bic_of_one_class_is_that_of_one_gaussian():
    rows, _ = rows_of()
    n, d = rows.shape
    variance = ((rows - rows.mean(axis=0)) ** 2).mean()
    likelihood = multivariate_normal(rows.mean(axis=0), variance * np.eye(d)).logpdf(rows).sum()
    expected = -2 * likelihood + (d + 1) * np.log(n)
    assert cm.bic(rows, 1, rng=stream(0)) == pytest.approx(expected)


def test_same_stream_same_model_and_errors():
    rows, _ = rows_of()
    a, b = (fitted("kmeans", "diag", rows).model.means for _ in range(2))
    np.testing.assert_array_equal(a, b)
    with pytest.raises(DataError, match="missing"):
        fitted("kmeans", "diag", np.array([[np.nan, 1.0]]))
    with pytest.raises(ParameterError, match="n_clusters"):
        fitted("kmeans", "diag", rows, n_clusters=0)
    with pytest.raises(ParameterError, match="model"):
        fitted("other", "diag", rows)
    with pytest.raises(DataError, match="features"):
        cm.KMeansModel(np.ones((2, 3))).label(np.ones((4, 2)))


def test_the_only_model_is_asked_about_its_own_site() -> None:
    rows = np.random.default_rng(2).normal(size=(60, 2))
    rows[0] = 80.0
    models = [fitted("kmeans", "diag", rows[1:]).model]
    flagged = cm.outlying_rows(rows, models, own=0, trim=6.0)
    assert flagged[0] and flagged.sum() < 10

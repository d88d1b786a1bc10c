"""Classes of different sites' models: which are the same, and which a model lacks."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.estimators.completed_models import (
    COMPACT,
    EXPECTED,
    classes_of_all,
    completed_models,
    match_classes,
)
from consilience.clustering.estimators.local_models import (
    GaussianMixtureModel,
    KMeansModel,
    local_model_from_arrays,
)
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering.absent.run import K, data_set
from tests.reference import absent_classes as reference

CORNERS = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 5.0], [5.0, 6.0]])


def near(corners: list[int], rng: np.random.Generator, spread: float = 0.1) -> KMeansModel:
    means = CORNERS[corners] + spread * rng.standard_normal((len(corners), 2))
    return KMeansModel(means[np.lexsort(means.T[::-1])])


@pytest.mark.parametrize("seed", range(30))
def test_groups_are_those_of_the_textbook(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=rng.integers(2, 6))
    centres = [rng.standard_normal((size, 3)) for size in sizes]
    least = int(rng.integers(1, sum(sizes)))
    most = least + int(rng.integers(0, 4))
    found = match_classes(centres, range(len(centres)), least, most)
    groups, ratio = reference.match(centres, least, most)
    assert found is not None
    assert found.ratio == pytest.approx(ratio, abs=1e-8)
    mine = [
        [(m, k) for m, each in enumerate(found.groups) for k in np.flatnonzero(each == g)]
        for g in range(len(found.centres))
    ]
    assert sorted(map(sorted, groups)) == sorted(mine)
    assert found.exact == (len(groups) == least)


@pytest.mark.parametrize("seed", range(20))
def test_models_are_completed_as_in_the_textbook(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners = ["a", "b", "b", "c", "d"]
    held = [rng.choice(4, size=rng.integers(1, 4), replace=False).tolist() for _ in owners]
    held[0] = [0, 1, 2, 3][: rng.integers(2, 5)]
    models = [near(each, rng, spread=0.3) for each in held]
    k = len({c for each in held for c in each})
    found = completed_models(models, owners, k)
    wanted = reference.completed(
        [m.means for m in models], owners, k, bound=COMPACT, exact_bound=EXPECTED
    )
    for model, means in zip(found.models, wanted, strict=True):
        np.testing.assert_allclose(model.class_parameters, means, rtol=1e-12, atol=1e-12)


def test_models_that_lack_nothing_stay_what_they_are() -> None:
    rng = np.random.default_rng(0)
    models = [near([0, 1, 2, 3], rng) for _ in range(4)]
    found = completed_models(models, "abcd", 4)
    assert all(a is b for a, b in zip(models, found.models, strict=True))


def test_centres_that_form_no_groups_complete_nothing() -> None:
    """Corners of a simplex, all about as far from one another: no cut is better than others."""
    corners = np.eye(8) * (1 + 0.001 * np.arange(8))[:, None]
    models = [KMeansModel(corners[i : i + 2]) for i in range(0, 8, 2)]
    whole = match_classes([m.means for m in models], "abcd", 2, 6)
    assert whole is not None
    assert whole.ratio > EXPECTED
    assert completed_models(models, "abcd", 2).models == tuple(models)
    assert classes_of_all(models, "abcd", 1, 8) == 0


def test_as_many_groups_as_were_asked_for_may_overlap_more() -> None:
    rng = np.random.default_rng(0)
    held = ([0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3])
    models = [near(each, rng, spread=0.8) for each in held]
    whole = match_classes([m.means for m in models], "abcd", 4, 8)
    assert whole is not None and whole.exact and COMPACT < whole.ratio <= EXPECTED
    assert [m.n_classes for m in completed_models(models, "abcd", 4).models] == [4] * 4
    assert completed_models(models, "abcd", 4, given=False).models == tuple(models)
    assert classes_of_all(models, "abcd", 3, 8) == 0
    # The same groups, of which one fewer was asked for.
    more = match_classes([m.means for m in models], "abcd", 3, 7)
    assert more is not None and not more.exact and more.ratio == whole.ratio
    assert completed_models(models, "abcd", 3).models == tuple(models)


def test_a_group_of_outlying_rows_is_no_class_of_others() -> None:
    rng = np.random.default_rng(2)
    models = [near([0, 1, 2, 3], rng) for _ in range(4)]
    with_outliers = np.concatenate([models[0].means, [[30.0, 30.0]]])
    models[0] = KMeansModel(with_outliers)
    found = completed_models(models, range(4), 4)
    assert all(a is b for a, b in zip(models, found.models, strict=True))


def test_a_class_of_one_site_is_a_class_where_the_number_is_given() -> None:
    rng = np.random.default_rng(3)
    models = [near([0, 1], rng), near([1, 2], rng), near([0, 2, 3], rng)]
    assert [m.n_classes for m in completed_models(models, "abc", 4).models] == [4, 4, 4]
    open_ = completed_models(models, "abc", 4, given=False)
    assert [m.n_classes for m in open_.models] == [3, 3, 4]


def test_split_classes_are_one_group() -> None:
    rng = np.random.default_rng(4)
    split = np.concatenate([near([0, 1], rng).means, near([0, 1], rng).means])
    models = [KMeansModel(split), near([0, 1, 2, 3], rng), near([1, 2, 3], rng)]
    found = completed_models(models, "abc", 4).models
    assert [m.n_classes for m in found] == [6, 4, 4]
    assert np.abs(found[0].class_parameters[-2:] - CORNERS[[1, 3]]).max() < 4


def test_sites_of_some_classes_have_more_together() -> None:
    rng = np.random.default_rng(5)
    models = [near([0, 1], rng), near([1, 2], rng), near([0, 2, 3], rng), near([3, 1], rng)]
    assert classes_of_all(models, "abcd", 2, 8) == 4
    assert classes_of_all(models, "abcd", 2, 3) == 0, "more than are considered"
    assert classes_of_all(models, "abcd", 4, 8) == 0, "no more than most sites prefer"
    assert classes_of_all(models, "aaaa", 2, 8) == 0, "one site alone"


@pytest.mark.parametrize("kind", ["diag", "full", "spherical", "tied"])
def test_components_of_mixtures(kind: str) -> None:
    rng = np.random.default_rng(6)

    def mixture(corners: list[int], shares: list[float], scale: float) -> GaussianMixtureModel:
        means, k = near(corners, rng).means, len(corners)
        whole = {
            "diag": np.full((k, 2), scale),
            "full": np.tile(scale * np.eye(2), (k, 1, 1)),
            "spherical": np.full(k, scale),
            "tied": scale * np.eye(2),
        }
        return GaussianMixtureModel(means, whole[kind], np.array(shares), kind)  # type: ignore[arg-type]

    models = [
        mixture([0, 1], [0.5, 0.5], 0.1),
        mixture([0, 2], [0.4, 0.6], 0.2),
        mixture([1, 2, 3], [0.2, 0.3, 0.5], 0.3),
        mixture([2, 3], [0.1, 0.9], 0.4),
    ]
    found = completed_models(models, "abcd", 4).models
    for model in found:
        assert model.n_classes == 4
        assert model.to_arrays()["proportions"].sum() == pytest.approx(1.0)
        again = local_model_from_arrays(model.to_arrays())
        np.testing.assert_array_equal(again.class_parameters, model.class_parameters)
    first = found[0].to_arrays()
    order = [int(np.abs(first["means"] - corner).sum(axis=1).argmin()) for corner in CORNERS]
    # Means are in lexicographic order: class 2, at (1, 5), is second of b, first of c and d; class
    # 3 is last. The mean share is over all four sites, 0 where a site has none.
    shares = np.array([0.5, 0.5, (0.6 + 0.2 + 0.1) / 4, (0.5 + 0.9) / 4])
    np.testing.assert_allclose(first["proportions"][order], shares / shares.sum())
    if kind != "tied":
        # The covariance is that of the largest: of b for class 2, of d for class 3.
        sizes = np.asarray(first["covariances"]).reshape(4, -1).max(axis=1)
        assert sizes[order].tolist() == [0.1, 0.1, 0.2, 0.4]


@pytest.mark.parametrize(("variance", "short"), [(0.3, False), (1.0, True)])
def test_nearest_of_all_classes_falls_short_where_classes_overlap(
    variance: float, short: bool
) -> None:
    """With the true centres: what knowing which classes a site holds adds to the index.

    24 data sets of the replication: .0016 and .077, standard errors .0004 and .005. At variance 1
    no rule that gives each row the nearest of all classes is within .03 of one that knows.
    """
    added = []
    for seed in range(24):
        sim = data_set("2 or 3 of 5", 8, variance, seed)
        held = np.stack([np.isin(np.arange(K), truth) for truth in sim.classes])
        sizes = [len(rows) for rows in sim.tables]
        rows, truth = np.concatenate(sim.tables), np.concatenate(sim.classes)
        distance = ((rows[:, None] - sim.means) ** 2).sum(axis=2)
        of_all = adjusted_rand_index(distance.argmin(axis=1), truth)
        distance[~np.repeat(held, sizes, axis=0)] = np.inf
        added.append(adjusted_rand_index(distance.argmin(axis=1), truth) - of_all)
    assert (np.mean(added) > 0.03) == short

"""Ensemble clustering as a method: exact against the textbook form, recovery, hard cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from consilience import Columns, EnsembleClustering, Federation, Policy, Preparation, Run
from consilience.clustering.estimators.local_models import local_model_from_arrays
from consilience.clustering.protocol.messages import (
    FitRequest,
    LocalModels,
    PatternCounts,
    Settings,
)
from consilience.clustering.protocol.site import profiled_classes
from consilience.exceptions import ParameterError, QuorumError, WireError
from consilience.parameters import plain
from consilience.testing.fakes import members, with_fixed_secrets
from consilience.wire.codec import decode_message, pack
from consilience.wire.disclosure import Limits
from consilience.wire.message import message_type
from tests.granted import GRANTED, granted
from tests.reference import ensemble_naive as naive

Tables = dict[str, pd.DataFrame]


def draw(
    sizes: Mapping[str, int], *, k: int = 4, p: int = 6, sigma: float = 0.3, seed: int = 0
) -> tuple[Tables, dict[str, np.ndarray]]:
    """Rows of k Gaussian classes with means of entries -1 and 1, shares differing by site."""
    rng = np.random.default_rng(seed)
    means = rng.choice([-1.0, 1.0], size=(k, p))
    tables, truth = {}, {}
    for site, n in sizes.items():
        z = rng.choice(k, size=n, p=rng.dirichlet(2 * np.ones(k)))
        rows = means[z] + sigma * rng.standard_normal((n, p))
        tables[site] = pd.DataFrame(rows, columns=[f"x{j}" for j in range(p)])
        truth[site] = z
    return tables, truth


def cluster(tables: Tables, policy: Any = "strict", *, seed: int = 3, **parameters: Any) -> Run:
    """Run over tables in memory."""
    settings = {"stability_pairs": 0, **parameters}
    federation = Federation.local(
        tables,
        columns=Columns(features=tuple(next(iter(tables.values())).columns)),
        policy=granted(policy),
    )
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    run: Run = EnsembleClustering(**settings).run(federation, seed=seed)
    return run


def labels(run: Run, sites: Any) -> np.ndarray:
    return np.concatenate([run.site(site).labels for site in sorted(sites)])


SIZES = {"a": 80, "b": 130, "c": 60, "d": 110}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_a_smallest_cell_it_is_the_textbook_form(seed: int) -> None:
    """Weights, agreement and classes equal those of the N x N matrices, written separately."""
    tables, _ = draw(SIZES, sigma=0.7, seed=seed)
    run = cluster(tables, "simulation", n_clusters=4, weighting="spectral")
    models = [local_model_from_arrays(m) for m in run.result.models]
    rows = np.concatenate([tables[s].to_numpy() for s in sorted(tables)])
    matrices = [naive.co_distance_by_matrix(m.label(rows), m.class_parameters) for m in models]
    assert np.allclose(naive.agreement(matrices), run.result.agreement, atol=1e-10)
    weights = naive.spectral_weights(matrices)
    assert np.allclose(weights, run.result.weights, atol=1e-10)
    distance = naive.ensemble_distance(matrices, weights)
    textbook = KMeans(4, n_init=50, random_state=0, tol=0.0).fit(distance)
    found = labels(run, tables)
    # K-means has many local optima: ours must be at least as good by the textbook's own objective.
    inertia = sum(
        ((distance[found == k] - distance[found == k].mean(axis=0)) ** 2).sum() for k in range(4)
    )
    assert inertia <= textbook.inertia_ * (1 + 1e-9)
    if inertia >= textbook.inertia_ * (1 - 1e-9):
        assert adjusted_rand_score(found, textbook.labels_) == 1.0


def test_classes_are_found_and_labels_are_in_input_order() -> None:
    tables, truth = draw(SIZES)
    run = cluster(tables, n_clusters=4)
    for site in tables:
        assert len(run.site(site).labels) == len(tables[site])
    everything = np.concatenate([truth[s] for s in sorted(tables)])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.99
    assert run.result.class_sizes.sum() == sum(SIZES.values())
    assert list(run.result.class_sizes) == sorted(run.result.class_sizes, reverse=True)


def test_merging_rare_tuples_hardly_changes_the_classes() -> None:
    """With the same local models: merged counts against the textbook form on all true tuples."""
    agreements = []
    for seed in range(8):
        tables, _ = draw({s: 150 for s in "abcdef"}, p=10, sigma=0.7, seed=seed)
        run = cluster(tables, "strict", n_clusters=4, weighting="spectral")
        assert "merged" in run.result.counted.values()
        models = [local_model_from_arrays(m) for m in run.result.models]
        rows = np.concatenate([tables[s].to_numpy() for s in sorted(tables)])
        matrices = [naive.co_distance_by_matrix(m.label(rows), m.class_parameters) for m in models]
        distance = naive.ensemble_distance(matrices, naive.spectral_weights(matrices))
        exact = KMeans(4, n_init=20, random_state=0).fit_predict(distance)
        agreements.append(adjusted_rand_score(exact, labels(run, tables)))
    assert np.mean(agreements) >= 0.99, agreements


def released(
    tables: Tables, kind: type, *, secrets: bool = True, **parameters: Any
) -> dict[str, list[Any]]:
    """Messages of one kind as they left the sites."""
    columns = Columns(features=tuple(next(iter(tables.values())).columns))
    federation = Federation.local(tables, columns=columns, policy=GRANTED)
    left: dict[str, list[Any]] = {site: [] for site in tables}

    def watch(site: str) -> Any:
        def confirm(request: Any, message: Any, verdicts: Any) -> bool:
            if isinstance(message, kind):
                left[site].append(message)
            return True

        return confirm

    for name, site in members(federation).items():
        site.confirm = watch(name)
        if secrets:
            with_fixed_secrets(site, 1)
    EnsembleClustering(**parameters).run(federation, seed=7)
    return left


def test_no_small_count_leaves_a_site_and_no_label_does() -> None:
    tables, _ = draw(SIZES, sigma=0.8, seed=2)
    for messages in released(tables, PatternCounts, n_clusters=4, stability_pairs=3).values():
        assert len(messages) == 1
        for table in messages[0].counts.value:
            assert (np.asarray(table["counts"]) >= 10).all()
    run = cluster(tables, n_clusters=4)
    n = set(SIZES.values())
    for line in run.transcript:
        assert line.disclosure not in ("per-record", "noised")
        assert not n & {
            int(d) for part in line.shape.split() for d in part.split("x") if d.isdigit()
        }


def test_halves_and_resamples_do_not_follow_from_the_public_seed() -> None:
    """Known halves would make class means equations in the rows; the main model stays public."""
    rng = np.random.default_rng(0)
    centres = np.array([[-3.0, -3.0], [3.0, 3.0]])
    tables = {
        site: pd.DataFrame(
            centres[np.arange(200) % 2] + rng.normal(size=(200, 2)), columns=["u", "v"]
        )
        for site in "ab"
    }

    def twice(**parameters: Any) -> list[tuple[Any, Any]]:
        first, second = (
            released(tables, LocalModels, secrets=False, n_clusters=2, **parameters)
            for _ in range(2)
        )
        return [(first[s][0].models.value, second[s][0].models.value) for s in tables]

    for first, second in twice(stability_pairs=2):
        assert np.array_equal(first[0][0]["means"], second[0][0]["means"])
        for half in (1, 2, 3, 4):
            assert not np.array_equal(first[half][0]["means"], second[half][0]["means"])
    for first, second in twice(stability_pairs=0, n_resamples=2):
        assert not np.array_equal(first[0][0]["means"], second[0][0]["means"])


@pytest.mark.parametrize("seed", range(30))
def test_no_difference_of_released_means_rests_on_few_rows(seed: int) -> None:
    """Groups of rows by own class and class shown: all that moments, models and profile add up."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 150))
    own = rng.choice(3, size=n, p=rng.dirichlet(np.ones(3)))
    own[np.isin(own, np.flatnonzero(np.bincount(own, minlength=3) < 10))] = own[0]
    if np.bincount(own, minlength=3)[own[0]] < 10:
        own[:] = 0
    labels = np.where(rng.random(n) < 0.8, own, rng.integers(-1, 4, size=n))
    shown = profiled_classes(own, labels, Limits())
    groups = np.unique(np.stack([own, shown]), axis=1, return_counts=True)[1]
    assert (groups >= 10).all()
    enough = np.bincount(labels[labels >= 0], minlength=4) >= 40
    for k in np.flatnonzero(enough):
        assert (shown == k).any(), "a large class stays"


def test_one_row_in_a_class_cannot_be_taken_off_the_totals() -> None:
    """One row of a site lies in a class of its own: it is shown with another class."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    tables = {}
    for site, classes in {"a": [30, 30, 30], "b": [30, 29, 1]}.items():
        z = np.repeat(np.arange(3), classes)
        tables[site] = pd.DataFrame(
            centres[z] + 0.3 * rng.normal(size=(len(z), 2)), columns=["u", "v"]
        )
    run = cluster(tables, n_clusters=3)
    assert np.bincount(run.site("b").labels).min() == 1
    means = {
        line.site: line for line in run.transcript if line.field == "means" and line.step == "label"
    }
    assert means["b"].verdict == "withheld"
    shown = profiled_classes(np.repeat([0, 1], [30, 30]), run.site("b").labels, Limits())
    assert set(np.unique(shown, return_counts=True)[1]) == {30}


def test_a_rare_case_among_the_targets_of_a_class_is_withheld() -> None:
    """Means of a 0/1 target are counts of cases: 30 rows with one case say nothing of it."""
    tables, truth = draw({"a": 120, "b": 150}, k=2, sigma=0.2, seed=3)
    for site, table in tables.items():
        table["sick"] = (truth[site] == 0).astype(float)
        table.loc[np.flatnonzero(truth[site] == 1)[:1], "sick"] = 1.0
    columns = Columns(features=tuple(f"x{j}" for j in range(6)), target="sick")
    run = EnsembleClustering(n_clusters=2, stability_pairs=0).run(
        Federation.local(tables, columns=columns, policy=GRANTED), seed=1
    )
    for means in run.result.target_means_by_site.values():
        assert np.isnan(means).any(), "one case in the other class"


@pytest.mark.parametrize("weighting", ["spectral", "centred", "equal"])
@pytest.mark.parametrize("model", ["kmeans", "gaussian-mixture"])
def test_models_and_weightings(model: str, weighting: str) -> None:
    tables, truth = draw(SIZES)
    run = cluster(tables, n_clusters=4, model=model, weighting=weighting)
    everything = np.concatenate([truth[s] for s in sorted(tables)])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.98
    assert np.isclose((run.result.weights**2).sum(), 1.0)


@pytest.mark.parametrize("covariance_type", ["diag", "full", "spherical", "tied"])
def test_covariances_of_mixtures(covariance_type: str) -> None:
    tables, truth = draw(SIZES, p=3, k=3, sigma=0.2, seed=1)
    run = cluster(tables, n_clusters=3, model="gaussian-mixture", covariance_type=covariance_type)
    everything = np.concatenate([truth[s] for s in sorted(tables)])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.9


def test_resampled_models_have_names_and_weights() -> None:
    tables, truth = draw({"a": 200, "b": 150}, k=2)
    run = cluster(tables, n_clusters=2, n_resamples=4)
    assert run.result.model_names == tuple(f"{s}/{i}" for s in "ab" for i in range(1, 5))
    assert len(run.result.weights) == 8
    everything = np.concatenate([truth[s] for s in "ab"])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.98


def test_the_vote_finds_the_number_of_separated_classes() -> None:
    tables, _ = draw({s: 300 for s in "abcde"}, sigma=0.2, seed=4)
    run = cluster(tables, n_clusters="vote")
    assert run.result.n_clusters == 4
    assert run.result.chosen_by == "vote"
    assert set(run.result.votes) == set(tables)
    assert all(len(v) == 6 for v in run.result.vote_scores.values())


def test_the_spectrum_finds_the_number_of_separated_classes() -> None:
    tables, _ = draw({s: 300 for s in "abcde"}, sigma=0.2, seed=4)
    run = cluster(tables, n_clusters="eigenvalues")
    assert run.result.n_clusters == 4


def test_one_blob_is_voted_one_class() -> None:
    rng = np.random.default_rng(0)
    tables = {s: pd.DataFrame(rng.normal(size=(150, 3)), columns=list("uvw")) for s in "abc"}
    run = cluster(tables, n_clusters="vote", stability_pairs=3)
    assert run.result.n_clusters == 1
    assert set(labels(run, tables)) == {0}
    assert run.result.stability_figures["n_clusters"] >= 2
    assert "One class only" in run.result.summary()


def test_outlying_rows_get_class_minus_one_and_are_not_counted() -> None:
    tables, truth = draw({s: 150 for s in "abcde"}, sigma=0.2)
    strange = pd.DataFrame(np.full((30, 6), 6.0), columns=tables["a"].columns)
    strange += 0.2 * np.random.default_rng(1).standard_normal(strange.shape)
    tables["a"] = pd.concat([tables["a"], strange], ignore_index=True)
    run = cluster(tables, n_clusters=4, trim=6.0)
    own = run.site("a").labels
    assert (own[150:] == -1).all()
    assert (own[:150] >= 0).mean() >= 0.98
    counted = sum(int(v.sum()) for v in run.result.class_sizes_by_site.values())
    assert counted == sum((run.site(s).labels >= 0).sum() for s in tables)
    assert adjusted_rand_score(truth["a"][own[:150] >= 0], own[:150][own[:150] >= 0]) >= 0.98


def test_classes_are_more_than_one_cloud() -> None:
    tables, _ = draw({s: 200 for s in "abc"}, sigma=0.3)
    result = cluster(tables, n_clusters=4, stability_pairs=6).result
    s = result.stability_figures
    assert s["pairs"] == 6
    assert s["mean"] >= 0.95
    assert result.evidence == "classes"
    assert set(s["apart_by_site"]) == set("abc")
    assert s["between"] <= 0.02 < s["cloud_between"]
    assert "more clearly than one cloud of rows" in result.summary()


def test_a_correlated_cloud_is_called_a_gradient() -> None:
    """How often it is not: replications/ensemble_clustering/one_cloud."""
    rng = np.random.default_rng(0)
    tables = {
        s: pd.DataFrame(
            rng.multivariate_normal(np.zeros(4), 0.5 + 0.5 * np.eye(4), size=150),
            columns=list("uvwx"),
        )
        for s in "abc"
    }
    result = cluster(tables, n_clusters=3, stability_pairs=5).result
    assert result.evidence == "gradient"
    assert "the classes divide a gradient" in result.summary()


def test_one_class_too_many_is_told_less_surely_than_one_fewer() -> None:
    tables, _ = draw({s: 150 for s in "ab"}, sigma=0.1)
    many = cluster(tables, n_clusters=5, stability_pairs=1, n_init=2).result
    assert many.stability_figures["strength"] < 0.8 < many.stability_figures["fewer_strength"]
    assert "with 4 classes" in many.summary() and "4 are told more surely than 5." in many.summary()


def test_as_many_classes_as_there_are_need_no_fewer() -> None:
    tables, _ = draw({s: 200 for s in "abc"}, sigma=0.3)
    right = cluster(tables, n_clusters=4, stability_pairs=3).result
    assert right.stability_figures["strength"] > 0.9
    assert "together in the other half's classes too" in right.summary()
    assert "more surely" not in right.summary()
    two = cluster(tables, n_clusters=2, stability_pairs=3).result
    assert np.isnan(two.stability_figures["fewer_strength"]), "one class is found again by itself"
    assert "together in the other half" not in two.summary()


def test_one_column_alone_says_nothing_of_classes() -> None:
    """Two peaks are in the margin, which draws of one cloud have too."""
    rng = np.random.default_rng(0)
    tables = {
        s: pd.DataFrame({"u": rng.normal(size=100) + 6.0 * (rng.random(100) < 0.5)}) for s in "ab"
    }
    result = cluster(tables, n_clusters=2, stability_pairs=5).result
    assert result.evidence == "unknown"
    assert "cannot be said" in result.summary()


def test_a_later_run_labels_a_site_that_joins_late() -> None:
    tables, truth = draw({**SIZES, "late": 70})
    late = {"late": tables.pop("late")}
    features = tuple(late["late"].columns)
    scaled = Preparation(standardize="pooled")
    columns = Columns(features=features)
    method = EnsembleClustering(n_clusters=4, stability_pairs=0)
    first = method.run(
        Federation.local(tables, columns=columns, preparation=scaled, policy=GRANTED), seed=1
    )
    joined = Federation.local(
        {**tables, **late}, columns=columns, preparation=scaled, policy=GRANTED
    )
    second = method.run(joined, seed=2, follows=first)
    for site in tables:
        assert (second.site(site).labels == first.site(site).labels).all()
    found = second.site("late").labels
    assert adjusted_rand_score(truth["late"], found) >= 0.98
    predictor = first.site("a").predictor
    assert (predictor.predict(late["late"]) == found).all()
    assert not [line for line in second.transcript if line.step in ("fit", "moments.sums")]


def test_a_saved_predictor_labels_its_own_rows_alike() -> None:
    tables, _ = draw(SIZES)
    run = cluster(tables, n_clusters=4)
    for site, table in tables.items():
        assert (run.site(site).predictor.predict(table) == run.site(site).labels).all()


# --------------------------------------------------------------------------- hard cases


def test_a_site_smaller_than_a_cell_is_labelled_only() -> None:
    tables, truth = draw({**SIZES, "tiny": 6})
    run = cluster(tables, n_clusters=4, stability_pairs=2)
    assert run.result.counted["tiny"] == "none"
    assert "tiny" not in run.result.class_sizes_by_site
    assert len(run.site("tiny").labels) == 6
    assert any("tiny" in note for note in run.notes)
    assert adjusted_rand_score(truth["tiny"], run.site("tiny").labels) >= 0.9


def test_a_site_with_fewer_rows_than_classes_in_a_vote_abstains() -> None:
    tables, _ = draw({**SIZES, "tiny": 3})
    run = cluster(tables, n_clusters="vote")
    assert run.result.votes["tiny"] == 0


def test_a_class_that_a_site_does_not_have() -> None:
    tables, truth = draw(SIZES, seed=8)
    tables["a"] = tables["a"][truth["a"] != 1].reset_index(drop=True)
    truth["a"] = truth["a"][truth["a"] != 1]
    run = cluster(tables, n_clusters=4)
    everything = np.concatenate([truth[s] for s in sorted(tables)])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.98


def test_constant_and_duplicate_columns_do_no_harm() -> None:
    tables, truth = draw(SIZES)
    for table in tables.values():
        table["constant"] = 3.0
        table["copy"] = table["x0"]
    federation = Federation.local(
        tables,
        columns=Columns(features=tuple(tables["a"].columns)),
        preparation=Preparation(standardize="pooled"),
        policy=GRANTED,
    )
    run = EnsembleClustering(n_clusters=4, stability_pairs=0).run(federation, seed=1)
    everything = np.concatenate([truth[s] for s in sorted(tables)])
    assert adjusted_rand_score(everything, labels(run, tables)) >= 0.99
    assert any("constant" in note for note in run.notes)


def test_one_site_alone_keeps_its_own_classes() -> None:
    tables, _ = draw({"only": 400})
    run = cluster(tables, n_clusters=4)
    own = local_model_from_arrays(run.result.models[0]).label(tables["only"].to_numpy())
    assert adjusted_rand_score(own, run.site("only").labels) == 1.0


def test_identical_rows_only() -> None:
    tables = {s: pd.DataFrame({"u": np.ones(40), "v": np.zeros(40)}) for s in "ab"}
    with pytest.raises(QuorumError, match="no site found two classes"):
        cluster(tables, n_clusters=3)


def test_all_sites_too_small() -> None:
    tables, _ = draw({"a": 8, "b": 9})
    with pytest.raises(QuorumError, match="larger sites"):
        cluster(tables, n_clusters=3)


def test_more_classes_than_tuples_gives_those_there_are() -> None:
    tables, _ = draw({s: 200 for s in "ab"}, k=2, sigma=0.05, seed=1)
    run = cluster(tables, Policy(min_records=60), n_clusters=9)
    assert run.result.n_clusters < 9
    assert any("different label tuples" in note for note in run.notes)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 2.5}, "n_clusters"),
        ({"n_clusters": "guess"}, "n_clusters"),
        ({"n_clusters": True}, "n_clusters"),
        ({"model": "dbscan"}, "model"),
        ({"weighting": "best"}, "weighting"),
        ({"covariance_type": "round"}, "covariance_type"),
        ({"max_clusters": 1}, "max_clusters"),
        ({"n_init": 0}, "n_init"),
        ({"n_resamples": 0}, "n_resamples"),
        ({"trim": -1.0}, "trim"),
        ({"trim": float("nan")}, "trim"),
        ({"stability_pairs": -1}, "stability_pairs"),
        ({"stability_pairs": 101}, "stability_pairs"),
        ({"n_resamples": 21}, "n_resamples"),
        ({"n_cluster": 3}, "no parameter 'n_cluster'"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        EnsembleClustering.from_parameters(parameters)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pairs", 101, "from 0 to 100"),
        ("pairs", -1, "from 0 to 100"),
        ("n_resamples", 21, "from 1 to 20"),
        ("n_resamples", 2.0, "from 1 to 20"),
        ("n_init", 10_001, "from 1 to 10000"),
        ("max_clusters", 10**9, "from 2 to 100"),
        ("n_clusters", 0, "at least 1"),
        ("model", "kmeans++", "one of"),
        ("covariance_type", "round", "one of"),
        ("trim", -1.0, "above 0"),
    ],
)
def test_a_site_answers_for_so_many_views_only(name: str, value: Any, said: str) -> None:
    """A coordinator that skips the check of parameters is refused by the sites."""
    settings = plain(Settings("kmeans", "diag", 2, 6, 20, 1, None, 5))
    kind = message_type(FitRequest)
    sent = {"m": kind.name, "v": kind.version, "f": {"settings": settings}}
    assert decode_message(pack(sent)).settings.pairs == 5
    settings[name] = value
    with pytest.raises(WireError, match=f"{name}: it must be .*{said}"):
        decode_message(pack(sent))

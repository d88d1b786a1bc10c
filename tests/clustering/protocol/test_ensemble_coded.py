"""Ensemble clustering of sequences and of tables of categories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from consilience import Columns, EnsembleClustering, Federation, Preparation
from consilience.clustering.estimators.local_models import (
    coded_bic,
    drawn_rows,
    fit_coded_model,
    local_model_from_arrays,
    models_each,
)
from consilience.exceptions import DataError, ParameterError, QuorumError, StudyError
from consilience.protocol.result import Result
from tests.clustering.protocol.coded import categories, columns_of, federation, sequences
from tests.granted import GRANTED

KINDS = {"markov-mixture": sequences, "latent-class": categories}
each_kind = pytest.mark.parametrize("kind", KINDS)


def run_of(tables: Any, kind: str, policy: Any = "strict", *, seed: int = 1, **given: Any) -> Any:
    settings = {"n_clusters": 2, "stability_pairs": 0, "n_init": 4, "max_clusters": 3, **given}
    target = "y" if "y" in next(iter(tables.values())) else None
    return EnsembleClustering(model=kind, **settings).run(
        federation(tables, kind, policy, target=target), seed=seed
    )


@each_kind
def test_classes_are_found_told_and_predicted(kind: str) -> None:
    tables, truth = KINDS[kind]()
    for table, labels in zip(tables.values(), truth.values(), strict=True):
        rng = np.random.default_rng(len(table))
        table["y"] = (rng.random(len(table)) < np.where(labels == 0, 0.25, 0.75)).astype(float)
    run = run_of(tables, kind, n_clusters="vote")
    result = run.result
    found = np.concatenate([run.site(s).labels for s in tables])
    assert adjusted_rand_score(np.concatenate(list(truth.values())), found) > 0.85
    assert result.n_clusters == 2
    assert set(result.votes) == set(tables)
    assert result.model == kind
    assert set(result.start_spread) == set(tables)
    # Outcome by class and site: a quarter and three quarters, from some 75 rows each (error .07).
    frame = result.to_frame()
    assert {"mean y", "mean y at s0", "mean y at s1"} <= set(frame.columns)
    assert np.ptp(frame["mean y at s0"]) > 0.25
    rows = tables["s0"].drop(columns="y")
    predictor = run.site("s0").predictor
    assert (predictor.predict(rows) == run.site("s0").labels).all()
    again = type(predictor).from_arrays(predictor.to_arrays())
    assert (again.predict(rows.iloc[5:9]) == run.site("s0").labels[5:9]).all()
    # Cells without names: a shorter sequence is a sequence, fewer columns are another table.
    fewer = rows.to_numpy()[:, :-1]
    if kind == "markov-mixture":
        assert len(predictor.predict(fewer)) == len(rows)
    else:
        with pytest.raises(DataError, match=f"must have {fewer.shape[1] + 1} columns"):
            predictor.predict(fewer)
    wrong = rows.copy()
    wrong.iloc[0, 0] = "CANARY"
    with pytest.raises(DataError, match="not one of the") as refused:
        predictor.predict(wrong)
    assert "CANARY" not in str(refused.value)
    again_result = type(result).from_files(result.to_files())
    assert isinstance(again_result, Result)
    assert again_result.summary() == result.summary()


def test_what_the_result_tells_of_sequences() -> None:
    tables, _ = sequences((260, 300), lengths=(20, 20))
    result = run_of(tables, "markov-mixture").result
    shares = result.state_distribution()
    assert shares.shape == (2, 20, 5)
    assert np.allclose(shares.sum(axis=2), 1, atol=0.02)
    found = result.differences
    assert found["parts"] == ("initial", "transition")
    assert found["pairs"] == (("s0", "s1"),)
    assert found["ensemble"].shape == found["local"].shape == (2, 1, 2)
    for name in ("ensemble", "local"):
        assert (found[f"{name}_low"] <= found[f"{name}_high"]).all()
    # The two sites have the same classes: no more than chance gives, about.
    assert (found["ensemble_mean"] < 2 * found["chance"]).all()
    assert (found["ensemble_low"] < 0.02).all()


def test_sites_whose_classes_differ_are_seen_to() -> None:
    """The control: another transition in one class of one site, beyond the interval of equals."""
    tables, truth = sequences((400, 400), lengths=(20, 20))
    table = tables["s1"]
    cells = table.to_numpy(dtype=object)
    rows = np.flatnonzero(truth["s1"] == 0)
    moved = cells[rows]
    moved[:, 2::3] = moved[:, 1::3][:, : moved[:, 2::3].shape[1]]  # every third step stays
    cells[rows] = moved
    tables["s1"] = pd.DataFrame(cells, columns=table.columns)
    found = run_of(tables, "markov-mixture").result.differences
    assert found["ensemble_mean"][1] > 1.5 * found["chance"][1]
    assert found["ensemble_low"][1] > 0


@each_kind
def test_where_nothing_is_protected_tables_are_those_of_the_labels(kind: str) -> None:
    tables, _ = KINDS[kind]((120, 130))
    run = run_of(tables, kind, "simulation")
    labels = run.site("s0").labels
    table = tables["s0"]
    chances, k = run.result.site_chances["s0"], int(np.bincount(labels).argmax())
    rows = table[labels == k]
    if kind == "markov-mixture":
        first = rows.iloc[:, 0].value_counts(normalize=True)
        expected = [first.get(state, 0.0) for state in "abcde"]
        assert np.allclose(chances[k, :5], expected)
    else:
        level = rows["q0"].value_counts(normalize=True)
        assert np.allclose(chances[k, :3], [level.get(x, 0.0) for x in ("low", "mid", "high")])
        assert run.result.feature_names[:3] == ("q0=low", "q0=mid", "q0=high")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trim": 6.0}, "leave trim out"),
        ({"n_clusters": "cv"}, 'choose "vote"'),
        ({"n_resamples": 0}, "n_resamples"),
    ],
)
@each_kind
def test_what_does_not_go_with_these_models_is_one_sentence(
    kind: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        EnsembleClustering(model=kind, **given).validate()


@pytest.mark.parametrize(
    ("kind", "columns", "preparation", "words"),
    [
        ("markov-mixture", {"features": ["q0"]}, {}, "needs sequence columns"),
        ("markov-mixture", {"features": ["q1"], "sequence": ["q0"]}, {}, "leave features out"),
        ("markov-mixture", {"sequence": ["q0"]}, {"standardize": "pooled"}, "no scales"),
        ("markov-mixture", {"sequence": ["q0"]}, {"missing": "indicator"}, "fills no cells"),
        ("latent-class", {"features": ["q0", "q1"]}, {}, "'q1' has none"),
        ("latent-class", {"features": ["q0"]}, {"categorical": "treatment"}, '"onehot"'),
        ("kmeans", {"features": ["q1"]}, {"missing": "keep"}, "keeps missing ones"),
        ("kmeans", {"features": ["q1"], "weight": "w"}, {}, r"leave out \[data\] weight"),
        ("markov-mixture", {"sequence": ["q0"], "weight": "w"}, {}, r"leave out \[data\] weight"),
        ("latent-class", {"features": ["q0"], "weight": "w"}, {}, r"leave out \[data\] weight"),
    ],
)
def test_a_study_that_does_not_fit_is_one_sentence(
    kind: str, columns: dict[str, Any], preparation: dict[str, Any], words: str
) -> None:
    table = {"q0": ["low", "mid"] * 20, "q1": [0.0, 1.0] * 20, "w": [1.0] * 40}
    levels = {"levels": {"q0": ("low", "mid", "high")}} if "q0" in str(columns) else {}
    coding = {} if "q0" not in str(columns.get("features")) else {"categorical": "onehot"}
    made = Federation.local(
        {"s0": table},
        columns=Columns(**columns, **levels),
        preparation=Preparation(**{**coding, **preparation}),
        policy=GRANTED,
    )
    with pytest.raises(StudyError, match=words):
        EnsembleClustering(model=kind, n_clusters=2).run(made)


@pytest.mark.parametrize(
    ("kind", "role", "coding"),
    [("markov-mixture", "sequence", "refuse"), ("latent-class", "features", "onehot")],
)
def test_a_column_of_one_level_is_named(kind: str, role: str, coding: Any) -> None:
    made = Federation.local(
        {"s0": {"q0": ["low"] * 40}},
        columns=Columns(**{role: ["q0"]}, levels={"q0": ("low",)}),
        preparation=Preparation(categorical=coding),
        policy=GRANTED,
    )
    with pytest.raises(StudyError, match=r"'q0' must be at least two .* leave it out"):
        EnsembleClustering(model=kind, n_clusters=2).run(made)


def _kinds_of_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    missing = np.full((60, 2), -1)
    return {
        "two columns": rng.integers(0, 2, (150, 2)),
        "one column": rng.integers(0, 2, (150, 1)),
        "alike": np.tile([0, 1], (60, 1)),
        "nothing": missing,
        "nothing but one kind": np.where(np.arange(60)[:, None] < 30, [[0, 1]], missing),
    }


@each_kind
@pytest.mark.parametrize("name", _kinds_of_rows())
def test_fewer_distinct_rows_than_classes_are_no_error(kind: str, name: str) -> None:
    """So many classes cannot be fitted: they have no criterion, and fewer are, or none."""
    rows, rng = _kinds_of_rows()[name], np.random.default_rng(1)
    sizes = (2,) if kind == "markov-mixture" else (2,) * rows.shape[1]
    settings: Any = {"model": kind, "n_init": 2, "min_records": 10}
    kinds = len(np.unique(rows[(rows >= 0).any(axis=1)], axis=0))
    assert np.isnan(coded_bic(rows, sizes, max(kinds, 1) + 1, rng=rng, **settings))
    if kinds:
        assert np.isfinite(coded_bic(rows, sizes, 1, rng=rng, **settings))
    found = fit_coded_model(rows, sizes, n_clusters=6, rng=rng, **settings)
    assert len(found.labels) == len(rows)
    if kinds < 2:
        assert found.model is None


@pytest.mark.parametrize("asked", [1, "vote"])
def test_where_no_site_finds_two_classes_the_sentence_says_so(asked: Any) -> None:
    tables, _ = sequences((18, 18))
    alike = {s: pd.DataFrame([["a"] * 10] * 30).rename(columns="t{}".format) for s in tables}
    for given in (tables, alike):
        with pytest.raises(QuorumError, match="no site found two classes") as caught:
            run_of(given, "markov-mixture", n_clusters=asked, n_init=1, n_resamples=1)
        assert "fewer classes" not in str(caught.value)  # there are none


def test_a_state_that_was_not_declared_is_a_difference_of_the_site() -> None:
    tables, _ = sequences((40, 40))
    tables["s1"].iloc[:10, 0] = "CANARY"
    with pytest.raises(
        StudyError, match="column t0: values outside the declared levels at s1"
    ) as e:
        run_of(tables, "markov-mixture")
    assert "CANARY" not in str(e.value)


def test_hard_sites_are_handled() -> None:
    """Sequences of one state or none, all alike, a state absent, one site, one class, few rows."""
    tables, _ = sequences((60, 70))
    tables["s0"].iloc[:3, 1:] = None  # of length one
    tables["s0"].iloc[3] = None  # nothing seen
    tables["s1"] = tables["s1"].replace({"e": "d"})  # a state that this site does not know
    tables["s2"] = tables["s0"].iloc[:8]  # too few rows to tell anything
    tables["s3"] = pd.DataFrame([["a"] * tables["s0"].shape[1]] * 30, columns=tables["s0"].columns)
    run = run_of(tables, "markov-mixture")
    assert all(len(run.site(s).labels) == len(tables[s]) for s in tables)
    assert np.isnan(run.result.site_chances["s2"]).all()
    alone = run_of({"s0": tables["s0"]}, "markov-mixture")
    assert alone.result.differences == {}
    one = run_of(tables, "markov-mixture", n_clusters=1)
    assert one.result.n_clusters == 1


def test_sites_of_single_states_and_of_one_that_is_never_left() -> None:
    tables, _ = sequences((60, 70))
    single = tables["s0"].copy()
    single.iloc[:, 1:] = None
    tables["s2"] = single
    kept = tables["s1"].copy()
    first = (kept == "a").to_numpy().argmax(axis=1)
    for i, j in enumerate(first):
        if kept.iloc[i, j] == "a":
            kept.iloc[i, j:] = "a"
    tables["s3"] = kept
    run = run_of(tables, "markov-mixture")
    assert run.result.n_records == sum(map(len, tables.values()))
    for site, table in tables.items():
        labels = run.site(site).labels
        assert len(labels) == len(table)
        assert set(labels) <= {0, 1}
    found = [m["transition"] for m, o in zip(run.result.models, run.result.owners) if o == "s3"]
    assert found
    assert all(transition[k, 0, 0] > 0.9 for transition in found for k in range(len(transition)))


def test_a_run_that_follows_labels_other_rows_the_same_way() -> None:
    tables, _ = sequences((120, 130))
    run = run_of(tables, "markov-mixture")
    later = EnsembleClustering(model="markov-mixture", n_clusters=2).run(
        federation(tables, "markov-mixture"), seed=3, follows=run
    )
    assert (later.site("s0").labels == run.site("s0").labels).all()
    assert set(later.result.site_chances) == set(tables), "sites tell what the classes look like"
    with pytest.raises(ParameterError, match="set the same one"):
        EnsembleClustering(model="latent-class", n_clusters=2).run(
            federation(categories((60, 60))[0], "latent-class"), seed=3, follows=run
        )


@pytest.mark.parametrize(
    ("n_sites", "expected"), [(1, 4), (2, 4), (3, 3), (4, 2), (5, 2), (7, 2), (8, 1), (50, 1)]
)
def test_models_of_all_sites_are_about_eight(n_sites: int, expected: int) -> None:
    assert models_each(n_sites) == expected
    for kind, models in (("markov-mixture", expected), ("latent-class", expected), ("kmeans", 1)):
        assert EnsembleClustering(model=kind)._settings(1, n_sites=n_sites).n_resamples == models
        assert EnsembleClustering(model=kind, n_resamples=3)._settings(1).n_resamples == 3


@each_kind
def test_more_sites_fit_fewer_models_each(kind: str) -> None:
    """Four at two sites, two at five; one where the study says so, and a run may follow it."""
    tables, truth = KINDS[kind]((90,) * 5)
    many = run_of(tables, kind)
    assert [many.result.owners.count(s) for s in tables] == [2] * 5
    two = {name: tables[name] for name in ("s0", "s1")}
    few = run_of(two, kind)
    assert [few.result.owners.count(s) for s in two] == [4, 4]
    one = run_of(tables, kind, n_resamples=1)
    assert one.result.owners == tuple(tables)
    found = np.concatenate([one.site(s).labels for s in tables])
    assert adjusted_rand_score(np.concatenate(list(truth.values())), found) > 0.5
    later = EnsembleClustering(model=kind, n_clusters=2).run(
        federation(two, kind), seed=3, follows=one
    )
    assert (later.site("s1").labels == one.site("s1").labels).all()


def test_a_model_sees_four_fifths_of_the_rows_once() -> None:
    drawn = drawn_rows(103, np.random.default_rng(0))
    assert set(drawn) == {0, 1} and drawn.sum() == 82
    again = drawn_rows(103, np.random.default_rng(1))
    assert (drawn != again).any(), "another draw"
    assert drawn_rows(0, np.random.default_rng(0)).shape == (0,)


@each_kind
def test_models_are_rebuilt_from_arrays_and_refuse_others(kind: str) -> None:
    codes = np.random.default_rng(0).integers(3, size=(200, 8))
    sizes = (3,) if kind == "markov-mixture" else (3,) * 8
    fitted = fit_coded_model(
        codes, sizes, model=kind, n_clusters=2, rng=np.random.default_rng(1), n_init=2
    ).model
    assert fitted is not None
    arrays = fitted.to_arrays()
    again = local_model_from_arrays(arrays)
    assert (again.label(codes) == fitted.label(codes)).all()
    for name in arrays:
        with pytest.raises(DataError):
            local_model_from_arrays({**arrays, name: -1.0 - np.asarray(arrays[name])})
        with pytest.raises(DataError):
            local_model_from_arrays({key: x for key, x in arrays.items() if key != name})


def test_a_label_does_not_depend_on_other_rows() -> None:
    tables, _ = sequences((60, 60))
    assert columns_of(tables, "markov-mixture").sequence[0] == "t0"
    codes = np.random.default_rng(0).integers(-1, 5, size=(80, 9))
    model = fit_coded_model(
        codes, (5,), model="markov-mixture", n_clusters=3, rng=np.random.default_rng(1), n_init=2
    ).model
    assert model is not None
    whole = model.label(codes)
    assert all(model.label(codes[[i]])[0] == whole[i] for i in range(80))
    assert replace(model) is not model

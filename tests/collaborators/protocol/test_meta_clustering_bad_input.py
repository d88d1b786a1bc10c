"""Meta clustering on tables, models, parameters and texts that are not as they should be."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPRegressor

from consilience import Columns, Federation, MetaClustering, Policy, Run
from consilience.exceptions import ConsilienceError, ParameterError, QuorumError, StudyError
from consilience.wire.estimators import encode
from tests.collaborators.protocol.test_meta_clustering import (
    Tables,
    classes,
    draw,
    federation_over,
    partition,
    study,
)
from tests.protocol.recalling import RUN, Change, altered


def is_one_sentence(error: BaseException) -> bool:
    text = str(error)
    return "Traceback" not in text and "\n" not in text and 20 < len(text) < 900


# --------------------------------------------------------------------------- tables


def test_a_site_with_four_rows() -> None:
    tables = draw([0, 0, 0], [100, 4, 100])
    for policy in ("strict", "simulation"):
        run = study(tables, policy, gain_folds=2, stability_runs=1)
        assert run.result.sites == ("s0", "s2")
        assert run.result.left_out == {"s1": "it has too few rows"}
        assert "Not placed: s1: it has too few rows." in run.result.summary()


def test_all_sites_too_small() -> None:
    with pytest.raises(QuorumError, match="too few rows") as caught:
        study(draw([0, 0], 8))
    assert is_one_sentence(caught.value)


def test_a_site_whose_response_is_constant() -> None:
    tables = draw([0, 0, 0])
    tables["s1"]["y"] = 3.25
    for policy in ("strict", "simulation"):
        result = study(tables, policy, gain_folds=2).result
        assert result.sites == ("s0", "s2")
        assert result.left_out == {
            "s1": "its response takes one value only, but for a few rows at most"
        }
    with pytest.raises(QuorumError, match="takes one value only"):
        study({s: t.assign(y=1.0) for s, t in tables.items()})


def test_one_class_only() -> None:
    tables = classes([0, 0, 0], 100)
    tables["s2"]["y"] = "a"
    result = study(tables, "strict", levels=("a", "b")).result
    assert "too few of its rows, or none, have one of the levels" in result.left_out["s2"]


@pytest.mark.parametrize("policy", ["strict", "simulation"])
def test_a_rare_level(policy: str) -> None:
    """Three rows of a level: a strict site cannot tell its losses, and is told why."""
    tables = classes([0, 0, 0], 100)
    y = np.where(np.arange(100) < 3, "b", "a")
    tables["s2"]["y"] = y
    result = study(tables, policy, levels=("a", "b"), candidates=("linear", "decision-tree")).result
    if policy == "strict":
        assert list(result.left_out) == ["s2"]
        assert "too few of its rows, or none, have one of the levels" in result.left_out["s2"]
        assert result.sites == ("s0", "s1")
    else:
        assert result.sites == ("s0", "s1", "s2")


@pytest.mark.parametrize("policy", ["strict", "simulation"])
@pytest.mark.parametrize("rule", ["pairwise", "spectral"])
def test_constant_and_duplicate_columns(policy: str, rule: str) -> None:
    tables = draw([0, 0, 1], 120)
    for i, table in enumerate(tables.values()):
        table.insert(0, "same", 7.1)
        table.insert(1, "twice", table["x0"])
        table.insert(2, "by_site", float(i))
    result = study(tables, policy, rule=rule, gain_folds=2).result
    assert len(result.sites) == 3
    if rule == "pairwise":
        assert partition(result.labels) == {frozenset({0, 1}), frozenset({2})}
        assert np.isfinite(result.z).all()


@pytest.mark.parametrize("policy", ["strict", "simulation"])
def test_more_columns_than_half_the_rows(policy: str) -> None:
    """Least squares does not leave a strict site then; lasso does, with few coefficients."""
    slopes = np.zeros((1, 25))
    slopes[0, :2] = 3.0
    tables = draw([0, 0, 0], 44, p=25, slopes=slopes)
    run = study(tables, policy, candidates=("linear", "lasso(cv=2)"))
    assert set(run.result.chosen) == {"lasso(cv=2)"}
    assert run.result.n_clusters == 1
    if policy == "strict":
        with pytest.raises(QuorumError, match="none of the candidates could be used") as caught:
            study(tables, policy, candidates="linear")
        assert is_one_sentence(caught.value)
        assert "twice as many rows as parameters" in str(caught.value)


def test_missing_target() -> None:
    tables = draw([0, 0, 0])
    tables["s1"].loc[3, "y"] = np.nan
    with pytest.raises(QuorumError, match=r"s1 refused: column y") as caught:
        study(tables)
    assert is_one_sentence(caught.value)
    result = study(tables, quorum=2).result
    assert result.sites == ("s0", "s2")


def test_binary_columns_with_few_ones() -> None:
    tables = draw([0, 0, 1], 150)
    rng = np.random.default_rng(0)
    for table in tables.values():
        table["x0"] = (rng.random(150) < 0.5).astype(float)
    tables["s1"]["x0"] = (np.arange(150) < 4).astype(float)
    run = study(tables, "strict", gain_folds=2, stability_runs=2)
    assert partition(run.result.labels) == {frozenset({0, 1}), frozenset({2})}
    assert any("Means of some columns were withheld by s1" in note for note in run.notes)


def test_no_target_and_no_features() -> None:
    tables = draw([0, 0], 50)
    granted = Policy(foreign_models=True)
    bare = Federation.local(tables, columns=Columns(features=("x0", "x1")), policy=granted)
    with pytest.raises(StudyError, match="name it in"):
        MetaClustering(candidates="linear").run(bare)
    with pytest.raises(ConsilienceError, match="feature") as caught:
        bare = Federation.local(tables, columns=Columns(features=(), target="y"), policy=granted)
        MetaClustering(candidates="linear").run(bare)
    assert is_one_sentence(caught.value)


def test_loss_and_target_do_not_fit() -> None:
    with pytest.raises(ParameterError, match="no declared levels"):
        study(draw([0, 0]), loss="brier")
    with pytest.raises(ParameterError, match="declared levels: use brier or log"):
        study(classes([0, 0]), loss="squared", levels=("a", "b"))
    with pytest.raises(ConsilienceError, match="kernel-ridge"):
        study(
            classes([0, 0]),
            candidates="kernel-ridge",
            levels=("a", "b"),
            exchange="reference",
            rule="spectral",
        )


def test_disjoint_predictors() -> None:
    """One site lives elsewhere in x: it is not placed, and the reason names the overlap."""
    tables = draw([0, 0, 0], 100)
    tables["s2"][["x0", "x1"]] += 40.0
    for policy in ("strict", "simulation"):
        result = study(tables, policy, gain_folds=2, stability_runs=1).result
        assert result.sites == ("s0", "s1")
        assert "no other site can be compared with it" in result.left_out["s2"]
        # Its model, far off where the others are, is not counted among "all sites".
        two = study({s: tables[s] for s in ("s0", "s1")}, policy, gain_folds=2).result
        np.testing.assert_allclose(result.gain["all"], two.gain["all"], rtol=0.2)
        assert np.isnan(result.gain["shifted"]).all()
        assert "intercept" not in result.summary()


@pytest.mark.parametrize("size", [2, 3])
def test_nobody_is_comparable(size: int) -> None:
    tables = draw([0] * size, 100)
    for i, table in enumerate(tables.values()):
        table[["x0", "x1"]] += 40.0 * i
    result = study(tables, "strict", gain_folds=2, stability_runs=1).result
    assert result.n_clusters == size
    assert not result.comparable[np.triu_indices(size, 1)].any()
    text = result.summary()
    assert "could not be compared" in text
    assert "fall into" not in text, "that is no finding: " + text
    assert "On held-out rows" not in text


def test_extreme_values() -> None:
    """Huge numbers and an outlier at one site: it is left out at most, the others are grouped."""
    tables = draw([0, 0, 0, 1])
    tables["s2"].loc[0, "y"] = 1e12
    for policy in ("strict", "simulation"):
        result = study(tables, policy, gain_folds=2).result
        at = {s: result.labels[i] for i, s in enumerate(result.sites)}
        assert at["s0"] == at["s1"] != at["s3"]
        assert result.summary()
    huge = {s: t * 1e150 for s, t in draw([0, 0]).items()}
    try:
        assert study(huge).result.summary()
    except ConsilienceError as error:
        assert is_one_sentence(error)


def test_candidates_that_fail_are_named() -> None:
    """Twenty neighbours of a leaf at 40 rows; a polynomial of nothing."""
    tables = draw([0, 0], 60, p=3)
    run = study(tables, "strict", candidates=("decision-tree(min_samples_leaf=1)", "linear"))
    assert set(run.result.chosen) <= {"decision-tree(min_samples_leaf=1)", "linear"}
    run = study(tables, candidates=("lasso(cv=1)", "linear"))
    assert set(run.result.chosen) == {"linear"}
    assert "it failed to fit" in run.result.refused_candidates["s0"]


def test_a_reason_of_many_sites_is_said_once() -> None:
    tables = draw([0] * 13, 60, p=3)
    run = study(tables, candidates=("knn", "linear"))
    note = next(note for note in run.notes if "left out" in note)
    assert note.count("it carries training rows") == 1
    assert "s0, s1, s10, " in note
    assert "and 3 more: knn" in note
    with pytest.raises(QuorumError, match=r"and 3 more: it has too few rows$"):
        study({s: t.iloc[:15] for s, t in tables.items()})


# --------------------------------------------------------------------------- models from one site


def with_altered(
    tables: Tables,
    name: str,
    change: Change,
    *,
    step: str = "select",
    quorum: int | None = None,
    policy: str = "strict",
    **settings: Any,
) -> Run:
    federation = altered(federation_over(tables, policy), tables, name, step, change, quorum=quorum)
    parameters = {"candidates": "linear", "gain_folds": 2, "stability_runs": 1, **settings}
    return MetaClustering(**parameters).run(federation, seed=0, run_id=RUN)


def model_instead(model: Any) -> Change:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "models": tuple(model for _ in fields["models"])}

    return change


def linear(p: int = 5, value: float = 1.0) -> dict[str, Any]:
    return {
        "form": "linear",
        "coef": np.full((1, p), value),
        "intercept": np.zeros(1),
        "link": "identity",
    }


def archive(files: dict[str, bytes], p: int = 5) -> dict[str, Any]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return {"form": "skops", "data": buffer.getvalue(), "columns": p}


def untrusted() -> dict[str, Any]:
    schema = (
        b'{"__class__": "system", "__module__": "os", "__loader__": "FunctionNode", '
        b'"content": "touch", "protocol": 2, "_skops_version": "0.13"}'
    )
    return archive({"schema.json": schema})


def deep() -> dict[str, Any]:
    return archive({"schema.json": b'{"content":' * 5000 + b"1" + b"}" * 5000})


def bomb() -> dict[str, Any]:
    return archive({"schema.json": b"{}", "1.npy": bytes(300 << 20)})


def nan_on_some_rows() -> dict[str, Any]:
    """A sound archive whose predictions are not finite far from the origin."""
    x = np.random.default_rng(0).normal(size=(50, 5))
    net = MLPRegressor(hidden_layer_sizes=(2,), activation="relu", max_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(x, x[:, 0])
    net.coefs_[0][:] = 0.0
    net.coefs_[0][0, 0] = 1e200
    net.coefs_[1][:] = 1e200  # a product that overflows wherever the first column is positive
    return encode(net, n_features=5, classes=None)


def cyclic_tree() -> dict[str, Any]:
    from sklearn.tree import DecisionTreeRegressor

    x = np.random.default_rng(0).normal(size=(50, 5))
    tree = encode(DecisionTreeRegressor(max_depth=2).fit(x, x[:, 0]), n_features=5, classes=None)
    return {**tree, "children": np.zeros_like(tree["children"])}


def of_a_classifier() -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(50, 5))
    return encode(LogisticRegression().fit(x, x[:, 0] > 0), n_features=5, classes=[False, True])


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "columns": (lambda: linear(4), "4 columns"),
    "NaN coefficients": (lambda: linear(value=np.nan), "not finite"),
    "infinite coefficients": (lambda: linear(value=np.inf), "not finite"),
    "predictions overflow": (lambda: linear(value=1e308), "too large"),
    "untrusted type": (untrusted, ""),
    "zip bomb": (bomb, ""),
    "deep archive": (deep, ""),
    "not an archive": (lambda: {"form": "skops", "data": b"PK\x03\x04 no", "columns": 5}, ""),
    "huge bytes": (lambda: {"form": "skops", "data": bytes(65 << 20), "columns": 5}, ""),
    "NaN on some rows": (nan_on_some_rows, "finite"),
    "cycle in a tree": (cyclic_tree, ""),
    "classifier": (of_a_classifier, ""),
    "no form": (lambda: {"coef": np.ones(5)}, "form"),
    "text": (lambda: "a model", "form"),
    "nothing": (lambda: None, "form"),
    "nested": (lambda: {"form": {"form": "linear"}, "coef": (1, 2)}, "form"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_fails_its_site_only(name: str) -> None:
    make, word = HOSTILE[name]
    model = make()
    tables = draw([0, 0, 1, 0], 80)
    run = with_altered(tables, "s3", model_instead(model), quorum=3)
    result = run.result
    assert result.sites == ("s0", "s1", "s2")
    assert partition(result.labels) == {frozenset({0, 1}), frozenset({2})}
    assert list(result.left_out) == ["s3"]
    assert word in result.left_out["s3"]
    assert "Not placed: s3" in result.summary()
    assert np.isfinite(result.gain["group"]).all()
    with pytest.raises(QuorumError, match=r"s3(:| was absent)") as caught:
        with_altered(tables, "s3", model_instead(model), gain_folds=0, stability_runs=0)
    assert is_one_sentence(caught.value)
    assert "the study needs 4" in str(caught.value)


def altered_field(**changes: Any) -> Change:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            **fields,
            **{k: v(fields[k]) if callable(v) else v for k, v in changes.items()},
        }

    return change


ODD_SELECTED: dict[str, dict[str, Any]] = {
    "no models": {"models": ()},
    "one model too few": {"models": lambda m: m[:-1]},
    "one model too many": {"models": lambda m: (*m, m[0])},
    "models that are no tuple": {"models": 3.0},
    "chosen out of range": {"chosen": lambda c: tuple(99 for _ in c)},
    "chosen negative": {"chosen": lambda c: tuple(-1 for _ in c)},
    "chosen empty": {"chosen": ()},
    "chosen a text": {"chosen": "linear"},
    "no rows": {"n": 0},
    "negative rows": {"n": -5},
    "too many rows": {"n": 2**62},
    "losses of other views": {"own": np.ones(1), "own_error": np.ones(1)},
    "no losses": {"own": np.ones(0), "own_error": np.ones(0)},
    "losses of other candidates": {"losses": np.ones(7)},
    "negative variance": {"variance": np.array([-1.0])},
    "infinite variance": {"variance": np.array([np.inf])},
    "negative error": {"own_error": lambda e: -np.asarray(e)},
    "unknown status": {"status": "splendid"},
    "odd refusals": {"refused": (1, 2, 3)},
    "refusals of numbers": {"refused": ((1, 2), (3, 4))},
}


@pytest.mark.parametrize("name", ODD_SELECTED)
def test_an_odd_selection_fails_its_site_at_most(name: str) -> None:
    tables = draw([0, 0, 1, 0], 80)
    result = with_altered(tables, "s3", altered_field(**ODD_SELECTED[name]), quorum=3).result
    at = dict(zip(result.sites, result.labels, strict=True))
    assert at["s0"] == at["s1"] != at["s2"]
    assert "s3" in result.left_out or name in ("odd refusals", "refusals of numbers")
    assert result.summary()
    assert result.to_frame() is not None
    result.to_files()


@pytest.mark.parametrize("variance", [0.0, 1e-200])
def test_a_response_that_does_not_vary_is_no_fit(variance: float) -> None:
    change = altered_field(variance=np.full(1, variance))
    result = with_altered(draw([0, 0, 1, 0], 80), "s3", change, quorum=3).result
    assert "a response that does not vary" in result.left_out["s3"]


ODD_LOSSES: dict[str, dict[str, Any]] = {
    "other views": {
        k: (lambda a: np.asarray(a)[:1]) for k in ("excess", "variance", "effective", "raw")
    },
    "other sites": {
        k: (lambda a: np.asarray(a)[:, :2]) for k in ("excess", "variance", "effective", "raw")
    },
    "all infinite": {
        k: (lambda a: np.full_like(a, np.inf)) for k in ("excess", "variance", "effective", "raw")
    },
    "negative variance": {"variance": lambda a: -np.asarray(a)},
    "odd failures": {"failed": (1, 2)},
    "everybody fails": {"failed": tuple((f"s{i}", "I do not like it") for i in range(4))},
    "unknown site fails": {"failed": (("zz", "who"),)},
    "no shift": {"shift": np.ones((0, 1)), "shift_error": np.ones((0, 1))},
    "infinite shift": {"shift": lambda a: np.full_like(a, np.inf)},
}


@pytest.mark.parametrize("name", ODD_LOSSES)
def test_odd_losses_fail_their_site_at_most(name: str) -> None:
    tables = draw([0, 0, 1, 0], 80)
    result = with_altered(
        tables, "s3", altered_field(**ODD_LOSSES[name]), step="exchange", quorum=3
    ).result
    at = dict(zip(result.sites, result.labels, strict=True))
    assert at["s0"] == at["s1"] != at["s2"]
    assert np.isfinite(result.gain["all"][:3]).all()
    assert result.summary()


def test_odd_gains_fail_their_site_at_most() -> None:
    tables = draw([0, 0, 1, 0], 80)
    change = altered_field(means=np.ones(2), errors=-np.ones(2))
    result = with_altered(tables, "s3", change, step="use", quorum=3).result
    assert result.sites == ("s0", "s1", "s2", "s3")
    assert np.isfinite(result.gain["group"][:3]).all()
    assert np.isnan(result.gain["group"][3])


@pytest.mark.parametrize(
    "losses", [np.ones(7), np.zeros((0,)), -np.ones(4)], ids=["others", "none", "negative"]
)
def test_odd_held_out_losses_count_for_nothing(losses: np.ndarray) -> None:
    tables = draw([0, 0, 1, 0], 80)
    run = with_altered(
        tables, "s3", altered_field(losses=losses), step="score", quorum=3, n_clusters="cv"
    )
    assert partition(run.result.labels) == {frozenset({0, 1, 3}), frozenset({2})}
    if len(losses) != 4:
        assert run.result.cv_losses.shape == (4,)
        assert np.isfinite(run.result.cv_losses).all()


@pytest.mark.parametrize(
    "products",
    [np.eye(3), np.zeros((7, 7)), np.eye(7), np.full((7, 7), 1e300)],
    ids=["other columns", "zero", "other rows", "huge"],
)
def test_odd_products_leave_the_average(products: np.ndarray) -> None:
    tables = draw([0, 0, 1, 0], 80)
    run = with_altered(
        tables,
        "s3",
        altered_field(products=products),
        step="pool-moments",
        quorum=3,
        prediction="pooled",
    )
    assert any("Group 0 has no pooled refit" in note for note in run.notes)
    assert len(run.site("s0").predictor.models) == 3
    assert len(run.site("s2").predictor.models) == 1


@pytest.mark.parametrize(
    "rows", [np.ones((80, 3)), np.ones((5, 6)), np.zeros((0, 6))], ids=["columns", "few", "none"]
)
def test_odd_rows_leave_the_average(rows: np.ndarray) -> None:
    run = with_altered(
        draw([0, 0, 0], 80),
        "s2",
        altered_field(rows=rows),
        step="pool-rows",
        policy="simulation",
        candidates="decision-tree",
        prediction="pooled",
    )
    assert any("no pooled refit" in note for note in run.notes)
    assert len(run.site("s0").predictor.models) == 3


@pytest.mark.parametrize(
    "made",
    [(), (np.ones((300, 1)),), (np.ones((2, 1)),) * 2, (np.ones((300, 2)),) * 2, 7, ("a", "b")],
    ids=["none", "too few", "other points", "other outputs", "number", "texts"],
)
def test_odd_predictions_by_reference(made: Any) -> None:
    tables = draw([0, 0, 0, 1, 1, 1], 80, noise=0.3)
    run = with_altered(
        tables,
        "s2",
        altered_field(predictions=made),
        quorum=5,
        exchange="reference",
        rule="spectral",
        gain_folds=0,
    )
    assert list(run.result.left_out) == ["s2"]
    assert "its reply was not accepted" in run.result.left_out["s2"]
    assert len(run.result.sites) == 5


def test_a_newcomer_that_nobody_can_be_compared_with() -> None:
    tables = draw([0, 0, 0, 0], 100)
    tables["s3"][["x0", "x1"]] += 40.0
    first = study({s: tables[s] for s in ("s0", "s1")})
    both = study({s: tables[s] for s in ("s0", "s1", "s2", "s3")}, follows=first).result
    assert both.sites == ("s0", "s1", "s2")
    assert both.labels.tolist() == [0, 0, 0]
    assert "no other site can be compared with it" in both.left_out["s3"]
    alone = study({"s3": tables["s3"]}, follows=first).result
    assert alone.sites == ("s0", "s1")
    assert alone.status == first.result.status
    assert "s3" in alone.left_out


def test_a_broken_newcomer() -> None:
    tables = draw([0, 0, 0, 0], 100)
    first = study({s: tables[s] for s in ("s0", "s1")})
    tables["s3"] = tables["s3"].iloc[:4]
    again = study({s: tables[s] for s in ("s2", "s3")}, follows=first).result
    assert again.sites == ("s0", "s1", "s2")
    assert again.left_out == {"s3": "it has too few rows"}
    # A site that has its group keeps it, even if it brings hardly a row this time.
    tables["s0"] = tables["s0"].iloc[:4]
    again = study({s: tables[s] for s in ("s0", "s1", "s2")}, follows=first).result
    assert again.sites == ("s0", "s1", "s2")
    assert again.left_out == {}


def test_the_only_partner_has_too_few_rows() -> None:
    result = study(draw([0, 0], [100, 4]), "strict", gain_folds=2).result
    assert result.status == "one-site"
    assert "Only s0 could be used" in result.summary()
    assert "s1: it has too few rows" in result.summary()


def test_folds_that_are_too_small_for_a_model_are_not_left_out() -> None:
    """Sixty rows are enough for 26 coefficients, a third of them is not: no gain is measured."""
    tables = draw([0, 0], 60, p=25)
    result = study(tables, "strict", gain_folds=2).result
    assert result.sites == ("s0", "s1")
    assert np.isnan(result.gain["own"]).all()


@pytest.mark.parametrize("value", [1e3, 1e100, 1e153, 1e300])
@pytest.mark.parametrize(
    "settings", [{}, {"n_clusters": "cv"}, {"rule": "spectral"}], ids=["rule", "cv", "spectral"]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_that_is_wild_is_not_that_of_its_rows(
    value: float, settings: dict[str, Any]
) -> None:
    """Sound in form, absurd in content, up to predictions whose squares are infinite."""
    tables = draw([0, 0, 1, 0], 80)
    run = with_altered(tables, "s3", model_instead(linear(value=value)), quorum=3, **settings)
    assert run.result.sites == ("s0", "s1", "s2")
    assert "s3" in run.result.left_out
    if value < 1e100:
        assert "far off on the rows that it was fitted on" in run.result.left_out["s3"]
    if settings != {"rule": "spectral"}:  # which cannot tell groups of three sites
        assert partition(run.result.labels) == {frozenset({0, 1}), frozenset({2})}
        assert np.isfinite(run.result.gain["group"]).all()
    assert run.result.summary()


def test_levels_that_are_not_declared_at_the_site() -> None:
    tables = classes([0, 0], 100)
    tables["s1"]["y"] = "zebra"
    with pytest.raises(StudyError, match="outside the declared levels at s1") as caught:
        study(tables, levels=("a", "b"))
    assert "zebra" not in str(caught.value)


@pytest.mark.parametrize("offset", [1e6, -1e9])
def test_a_far_level_of_the_response(offset: float) -> None:
    tables = draw([0, 0, 1], 100)
    first = study(tables, "strict").result
    again = study({s: t.assign(y=t["y"] + offset) for s, t in tables.items()}, "strict").result
    assert again.labels.tolist() == first.labels.tolist()


# --------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"rule": "kmeans"}, "rule"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": "three"}, "n_clusters"),
        ({"n_clusters": 2.0}, "n_clusters"),
        ({"n_clusters": True}, "n_clusters"),
        ({"max_clusters": 0}, "max_clusters"),
        ({"max_clusters": "2"}, "max_clusters"),
        ({"margin": -0.1}, "margin"),
        ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"margin": None}, "margin"),
        ({"scale": 0.0}, "scale"),
        ({"scale": "auto"}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": float("inf")}, "scale"),
        ({"exchange": "rows"}, "exchange"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": ["squared"]}, "loss"),
        ({"standardize": 1}, "standardize"),
        ({"prediction": "best"}, "prediction"),
        ({"gain_folds": 1}, "gain_folds"),
        ({"gain_folds": 11}, "gain_folds"),
        ({"gain_folds": -1}, "gain_folds"),
        ({"gain_folds": 2.5}, "gain_folds"),
        ({"stability_runs": -1}, "stability_runs"),
        ({"stability_runs": 100}, "stability_runs"),
        ({"stability_runs": "ten"}, "stability_runs"),
        ({"candidates": ()}, "candidates"),
        ({"candidates": ("linear", "linear")}, "candidates"),
        ({"candidates": ("linear", LinearRegression(), LinearRegression())}, "candidates"),
        ({"candidates": [f"ridge(cv={k + 2})" for k in range(21)]}, "candidates"),
        ({"candidates": "quadratic"}, "candidates"),
        ({"candidates": None}, "candidates"),
        ({"candidates": 3}, "candidates"),
        ({"candidates": LinearRegression}, "candidates"),
        ({"candidates": [{"max_depth": 3}]}, "candidates"),
        ({"candidates": "linear(__import__('os'))"}, "candidates"),
        ({"candidates": "linear(fit_intercept=__import__('os').getcwd())"}, "candidates"),
        ({"candidates": "linear(fit_intercept=True)(fit_intercept=False)"}, "candidates"),
        ({"candidates": "linear(fit_intercept=True"}, "candidates"),
        ({"candidates": "linear(**{'fit_intercept': True})"}, "candidates"),
        ({"candidates": "linear(True)"}, "candidates"),
        ({"candidates": "linear() or ridge()"}, "candidates"),
        ({"candidates": "linear(a=" + "[" * 5000 + "]" * 5000 + ")"}, "candidates"),
        ({"candidates": "linear(a=" + "9" * 100_000 + ")"}, "candidates"),
        ({"candidates": "linear(fit_intercept=lambda: 1)"}, "candidates"),
        ({"candidates": "object:LinearRegression:AAAA"}, "candidate"),
        ({"candidates": "object:LinearRegression"}, "candidate"),
        ({"exchange": "reference"}, "needs rule = 'spectral'"),
        ({"exchange": "reference", "rule": "spectral", "n_clusters": "cv"}, "neither"),
        ({"exchange": "reference", "rule": "spectral", "prediction": "pooled"}, "neither"),
        ({"n_clusters": "cv", "gain_folds": 0}, "held-out rows"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_parameters_out_of_range(parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError) as caught:
        MetaClustering(**parameters).validate()
    assert word in str(caught.value)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 1500, len(text)


@pytest.mark.parametrize(
    ("candidate", "levels", "word"),
    [
        ("linear(n_neighbours=3)", (), "does not know"),
        (LogisticRegression(), (), "is not for regression"),
        (LinearRegression(), ("a", "b"), "is not for classification"),
        ("random-forest(max_depth='deep')", (), ""),
    ],
    ids=str,
)
def test_candidates_that_do_not_fit_the_study(candidate: Any, levels: Any, word: str) -> None:
    """One sentence, whoever finds out."""
    tables = classes([0, 0]) if levels else draw([0, 0])
    with pytest.raises(ConsilienceError) as caught:
        study(tables, candidates=candidate, levels=levels)
    assert word in str(caught.value)
    assert is_one_sentence(caught.value)


def test_pipelines_are_different_candidates() -> None:
    from sklearn.linear_model import Lasso, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    made = [make_pipeline(StandardScaler(), m) for m in (Ridge(), Lasso(0.1))]
    result = study(draw([0, 0], 60), candidates=made).result
    assert len(set(result.candidates)) == 2
    assert all("Pipeline" in name for name in result.candidates)


def test_a_policy_that_lets_nothing_out() -> None:
    with pytest.raises(QuorumError) as caught:
        study(draw([0, 0], 60), Policy(min_records=40))
    assert is_one_sentence(caught.value)


def test_a_strict_site_lets_no_model_of_others_in() -> None:
    """A model that is made up asks about single rows, so that a steward grants it or not."""
    tables = draw([0, 0, 0], 60)
    columns = Columns(features=("x0", "x1", "x2"), target="y")
    method = MetaClustering(candidates="linear", gain_folds=0, stability_runs=0)
    policy = {"s0": "strict", "s1": Policy(foreign_models=True), "s2": "consortium"}
    federation = Federation.local(tables, columns=columns, policy=policy, quorum=2)
    run = method.run(federation, seed=0)
    assert any("Site s0 refused" in note and "foreign_models" in note for note in run.notes)
    assert {line.verdict for line in run.transcript if line.site == "s0"} == {"sent", "refused"}
    assert not any(
        line.bytes for line in run.transcript if line.direction == "from-site" and line.site == "s0"
    )
    federation = Federation.local(tables, columns=columns)
    with pytest.raises(QuorumError, match="its steward grants it by foreign_models"):
        method.run(federation, seed=0)


def test_error_of_one_site_names_no_value() -> None:
    tables = draw([0, 0, 0], 60)
    tables["s1"]["y"] = tables["s1"]["y"].astype(str)
    tables["s1"].loc[7, "y"] = "CANARY-1234"
    with pytest.raises(QuorumError, match="s1 refused") as caught:
        study(tables)
    assert "CANARY" not in str(caught.value)


def test_frames_with_other_columns() -> None:
    tables = draw([0, 0, 0], 60)
    tables["s1"] = tables["s1"].drop(columns="x2")
    with pytest.raises(QuorumError, match=r"s1 refused: .*x2"):
        study(tables)
    assert study(tables, quorum=2).result.sites == ("s0", "s2")
    assert isinstance(tables["s0"], pd.DataFrame)

"""Components over sites: exact on pooled rows, what leaves, gaps, groups, choices, edges."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.completion.estimators.low_rank import ProbabilisticPCA
from consilience.completion.estimators.predictors import ComponentsPredictor
from consilience.completion.federated_pca import FederatedPCA
from consilience.completion.federated_pca.coordinator import folds_of, pool_of
from consilience.completion.federated_pca.messages import (
    LEVELS,
    Moments,
    Settings,
    Told,
    arrays_of,
    model_of,
)
from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.completion.federated_pca.site import groups_of, leaves_of, merged
from consilience.completion.kernels.ppca import from_moments
from consilience.engines.federation import load_run
from consilience.exceptions import DataError, ParameterError, ProtocolError, QuorumError, StudyError
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.sites.policy import Policy
from consilience.testing.fakes import FakeEngine, federation_of, rows_of, scripted
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.envelope import Reply
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.reference.rest_of_row import squared_errors
from tests.wire.replies import refusal

P, RANK = 15, 4
SIMULATION = Policy(preset="simulation")


def draw(n: int = 300, p: int = P, rank: int = RANK, sites: str = "abc", seed: int = 0) -> Any:
    """Rows of some sites that have `rank` directions in common."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(rank, p))
    return {s: rng.normal(size=(n, rank)) @ mix + rng.normal(size=(n, p)) + 5.0 for s in sites}


TABLES = draw()
POOLED = np.concatenate(list(TABLES.values()))


def holes(tables: Any, share: float, seed: int = 9) -> Any:
    rng = np.random.default_rng(seed)
    return {s: np.where(rng.random(x.shape) < share, np.nan, x) for s, x in tables.items()}


def run(tables: Any = TABLES, *, method: Any = None, **settings: Any) -> Any:
    settings = {"policy": GRANTED, **settings}
    return (method or FederatedPCA()).run(federation_of(tables, **settings), seed=0)


def keeping(standardize: Any = "none") -> Preparation:
    return Preparation(missing="keep", standardize=standardize)


def told(federation: Any, method: Any = None) -> dict[str, Told]:
    """What each site told of its groups."""
    scripted_ = scripted(federation)
    (method or FederatedPCA()).run(scripted_, seed=0)
    engine = scripted_.engine
    assert isinstance(engine, FakeEngine)
    return {
        site: decode_message(Reply.from_bytes(raw).message)
        for (_, site), raw in engine.replies.items()
        if b"federated-pca/told" in raw
    }


# --------------------------------------------------------------------------- exact


def test_the_model_is_that_of_the_pooled_rows() -> None:
    """Sites of 300 rows and 15 columns, five groups each."""
    found = run().result
    assert found.rank == RANK and found.groups_by_site.tolist() == [5, 5, 5]
    wanted = ProbabilisticPCA(RANK).fit(POOLED)
    made = found.to_estimator()
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(made, name), getattr(wanted, name), atol=1e-10)
    assert made.noise_variance_ == pytest.approx(wanted.noise_variance_, abs=1e-10)
    frame = pd.DataFrame(POOLED[:9], columns=list(found.feature_names))
    np.testing.assert_allclose(made.transform(frame), wanted.transform(POOLED[:9]), atol=1e-10)
    np.testing.assert_allclose(found.explained_variance, wanted.explained_variance_, atol=1e-10)


def test_scaled_rows() -> None:
    finished = run(preparation=Preparation(standardize="pooled"))
    z = (POOLED - POOLED.mean(axis=0)) / POOLED.std(axis=0)
    wanted = ProbabilisticPCA(RANK).fit(z)
    np.testing.assert_allclose(finished.result.components, wanted.components_, atol=1e-10)
    predictor = finished.site("b").predictor
    np.testing.assert_allclose(predictor.transform(POOLED[:5]), wanted.transform(z[:5]), atol=1e-9)
    made, frame = (
        finished.result.to_estimator(),
        pd.DataFrame(POOLED, columns=list(finished.result.feature_names)),
    )
    # rows in their own units, prepared inside
    np.testing.assert_allclose(made.transform(frame), wanted.transform(z), atol=1e-8)
    np.testing.assert_allclose(made.reconstruct(frame), predictor.reconstruct(frame), atol=1e-8)
    np.testing.assert_allclose(made.mean_, POOLED.mean(axis=0))
    scores = made.transform(frame)
    np.testing.assert_allclose(made.inverse_transform(scores), made.reconstruct(frame), atol=1e-8)
    density = wanted.score_samples(z) - np.log(POOLED.std(axis=0)).sum()
    np.testing.assert_allclose(made.score_samples(frame), density, atol=1e-7)
    scales = np.outer(POOLED.std(axis=0), POOLED.std(axis=0))
    np.testing.assert_allclose(made.get_covariance(), wanted.get_covariance() * scales, atol=1e-8)
    np.testing.assert_allclose(made.get_precision(), wanted.get_precision() / scales, atol=1e-8)
    with pytest.raises(DataError, match=r"looks prepared already|over 20 standard deviations"):
        made.transform(1000 * frame)
    with pytest.raises(ValueError, match="feature names"):
        made.transform(frame[frame.columns[::-1]])
    same = finished.result.predictor()
    np.testing.assert_allclose(same.reconstruct(POOLED[:5]), predictor.reconstruct(POOLED[:5]))


def partition(federation: Any, n_splits: int) -> dict[str, np.ndarray]:
    """Group of each row, as the sites draw it."""
    site = SimpleNamespace(limits=GRANTED.limits)
    found = {}
    for name, data in rows_of(federation).items():
        found[name] = groups_of(data, n_splits, site).of  # type: ignore[arg-type]
    return found


def test_errors_are_those_of_rows_that_were_left_out() -> None:
    """Every entry of every row, predicted by least squares under the directions of other folds."""
    tables = {s: x[:, :5] for s, x in draw(120, 5, 2).items()}
    federation = federation_of(tables, policy=GRANTED)
    found = FederatedPCA().run(federation, seed=0).result
    groups = partition(federation, 5)
    for fold in range(5):
        others = np.concatenate([tables[s][groups[s] != fold] for s in tables])
        for rank in range(5):
            sums = [
                squared_errors(others, tables[s][groups[s] == fold], rank).sum() for s in tables
            ]
            assert found.fold_errors[fold, rank] == pytest.approx(sum(sums), rel=1e-9)
    np.testing.assert_allclose(found.fold_errors.sum(axis=0), found.site_errors.sum(axis=0))
    assert found.fold_entries.sum() == found.site_entries.sum() == 3 * 120 * 5
    curve = found.curve()
    assert curve.minimiser == found.minimiser == found.chosen == found.rank
    np.testing.assert_allclose(curve.mean, found.fold_errors.sum(axis=0) / (3 * 120 * 5))


def test_what_sites_tell_is_the_groups() -> None:
    federation = federation_of(TABLES, policy=GRANTED)
    groups = partition(federation, 5)
    for site, reply in told(federation).items():
        for g in range(5):
            rows = TABLES[site][groups[site] == g]
            assert reply.counts.value[g] == len(rows) == 60
            np.testing.assert_allclose(reply.means.value[g], rows.mean(axis=0))
            centred = rows - rows.mean(axis=0)
            upper = (centred.T @ centred)[np.triu_indices(P)]
            np.testing.assert_allclose(reply.products.value[g], upper, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------- the choice


def test_rank_of_sites_on_one_scale() -> None:
    """Four directions of variance 9, noise of .5 to 1.5 by column; sites of 120 rows, 20 studies.

    A Monte Carlo error of a share near 1 is at most .05.
    """
    found = []
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        mix = 3.0 * np.linalg.qr(rng.normal(size=(12, RANK)))[0].T
        noise = np.linspace(0.5, 1.5, 12)
        tables = {
            s: rng.normal(size=(120, RANK)) @ mix + noise * rng.normal(size=(120, 12))
            for s in "abc"
        }
        done = run(tables, preparation=Preparation(standardize="pooled"))
        found.append(done.result.rank)
    assert found.count(RANK) >= 19, found


def test_rows_without_anything_in_common() -> None:
    rng = np.random.default_rng(2)
    found = run({s: rng.normal(size=(200, 6)) for s in "ab"})
    assert found.result.rank == 0 and found.result.components.shape == (0, 6)
    assert found.site("a").predictor.transform(np.zeros((2, 6))).shape == (2, 0)
    said = found.result.summary()
    assert "share 0 components" in said and "column means predict an entry" in said


def test_rules() -> None:
    simple = run(method=FederatedPCA(rule="one-standard-error")).result
    assert simple.rank <= RANK and simple.chosen == simple.one_standard_error
    assert "This rank is the smallest within one standard error" in simple.summary()


def test_a_rank_that_is_given() -> None:
    found = run(method=FederatedPCA(rank=2)).result
    assert found.fixed and found.rank == 2 and found.rule == "given"
    assert found.chosen == 2 and found.minimiser == RANK
    assert "The rank was given: by 2 components of other rows an entry" in found.summary()


def test_an_artificial_edge_is_said() -> None:
    found = run(method=FederatedPCA(max_rank=2)).result
    assert found.at_edge and found.rank == 2
    assert "this is no choice, raise max_rank" in found.summary()
    assert not run().result.at_edge


# --------------------------------------------------------------------------- groups


def test_groups_of_fewer_are_unions() -> None:
    leaves = np.arange(10)
    for more, fewer in pairwise(LEVELS):
        fine, coarse = merged(leaves, more), merged(leaves, fewer)
        assert len(set(fine)) == more and len(set(coarse)) == fewer
        for group in range(more):
            assert len(set(coarse[fine == group])) == 1


def stub(least: int = 10) -> Any:
    limits = Limits() if least > 1 else Policy(preset="simulation").limits
    return SimpleNamespace(limits=limits, rng=np.random.default_rng(0))


def data_of(x: np.ndarray, **more: Any) -> SiteData:
    given = {"n_read": len(x), "content_hash": "t", **more}
    return SiteData(x, tuple(f"x{j}" for j in range(x.shape[1])), np.arange(len(x)), **given)


def test_groups_do_not_depend_on_the_columns_that_are_asked_for() -> None:
    data = data_of(TABLES["a"])
    leaves = leaves_of(data, stub())
    assert np.bincount(leaves).tolist() == [30] * 10
    fewer = data.with_features(data.features[:, :3], ("x0", "x1", "x2"))
    np.testing.assert_array_equal(leaves_of(fewer, stub()), leaves)
    some = np.flatnonzero(np.arange(300) % 7 > 0)
    for other, same in (
        (leaves_of(dataclasses.replace(data, content_hash="u"), stub()), leaves),
        (leaves_of(data.take(some), stub()), leaves[some]),
    ):
        assert (other != same).mean() > 0.8


def test_rows_of_an_entity_stay_together() -> None:
    entity = np.array([f"e{i % 50}" for i in range(300)])
    data = data_of(TABLES["a"], entity=entity)
    groups = groups_of(data, 5, stub())
    for name in set(entity.tolist()):
        assert len(set(groups.of[entity == name].tolist())) == 1
    few = data_of(TABLES["a"], entity=np.array([f"e{i % 5}" for i in range(300)]))
    assert groups_of(few, 5, stub()).number == 1


@pytest.mark.parametrize(("n", "number"), [(300, 5), (160, 5), (140, 2), (76, 2), (60, 1), (30, 1)])
def test_too_few_rows_for_all_groups(n: int, number: int) -> None:
    """Twice as many rows as columns in each; two groups are of three and two fifths."""
    assert groups_of(data_of(TABLES["a"][:n]), 5, stub()).number == number
    assert groups_of(data_of(TABLES["a"][:n]), 5, stub(1)).number == 5


@pytest.mark.parametrize(
    ("p", "numbers"),
    [(6, (10, 5, 2)), (7, (5, 5, 2)), (10, (5, 5, 2)), (14, (2, 2, 2)), (15, (1, 1, 1))],
)
def test_a_record_does_not_show_in_the_groups_of_a_strict_site(p: int, numbers: Any) -> None:
    """Columns that 300 rows may tell of in groups: by `Limits.columns_for`."""
    site = SimpleNamespace(limits=Policy().limits)
    data = data_of(TABLES["a"][:, :p])
    assert tuple(groups_of(data, n, site).number for n in (10, 5, 2)) == numbers  # type: ignore[arg-type]
    assert groups_of(data, 10, stub()).number == 10


def test_a_site_with_too_few_rows_says_what_to_do() -> None:
    tables = {**TABLES, "d": TABLES["a"][:29]}
    with pytest.raises(QuorumError, match=r"d refused.*take fewer columns, or leave this site out"):
        run(tables)
    found = run(tables, quorum=3)
    assert found.result.sites == ("a", "b", "c")
    np.testing.assert_allclose(found.result.components, run().result.components, atol=1e-12)


def test_sites_with_fewer_groups() -> None:
    found = run({"a": TABLES["a"], "b": TABLES["b"][:80], "c": TABLES["c"][:40]}).result
    assert found.groups_by_site.tolist() == [5, 2, 1] and found.n_by_site.tolist() == [300, 80, 40]
    assert "could be told by b (2), c (1)" in found.summary()
    assert found.fold_errors.shape == (5, P) and found.rank == RANK


def test_sites_that_are_folds() -> None:
    found = run({s: x[:31] for s, x in TABLES.items()}).result
    assert found.fold_errors.shape[0] == 3 and found.rank in (RANK, RANK - 1)
    with pytest.raises(QuorumError, match=r"only one group can be told.*give rank"):
        run({"a": TABLES["a"][:31]})
    alone = run({"a": TABLES["a"][:31]}, method=FederatedPCA(rank=3))
    assert alone.result.curve() is None and "The rank was given." in alone.result.summary()
    assert alone.result.to_frame().empty


def test_one_site() -> None:
    found = run({"a": TABLES["a"]}).result
    wanted = ProbabilisticPCA(RANK).fit(TABLES["a"])
    np.testing.assert_allclose(found.components, wanted.components_, atol=1e-10)
    assert "rows at 1 site share" in found.summary()


# --------------------------------------------------------------------------- columns that stay


def rare(x: np.ndarray, ones: int) -> np.ndarray:
    return np.c_[x[:, :5], np.arange(len(x)) < ones]


def test_a_column_that_a_site_withholds_is_in_no_model() -> None:
    tables = {s: rare(x, 4 if s == "b" else 150) for s, x in TABLES.items()}
    found = run(tables).result
    assert found.withheld == ("x5",) and found.feature_names == tuple(f"x{j}" for j in range(5))
    assert "Site b withholds x5" in found.summary()
    wanted = ProbabilisticPCA(found.rank).fit(POOLED[:, :5])
    np.testing.assert_allclose(found.components, wanted.components_, atol=1e-10)


def test_a_site_that_withholds_many_columns_gives_way() -> None:
    tables = {s: x[:, :6].copy() for s, x in TABLES.items()}
    tables["d"] = np.where(np.arange(60)[:, None] < 3, 1.0, np.zeros((60, 6)))
    tables["d"][:, :2] = TABLES["a"][:60, :2]
    found = run(tables, quorum=3).result
    assert found.sites == ("a", "b", "c") and len(found.feature_names) == 6
    assert "Site d withholds" in found.summary() and "it is not in the model" in found.summary()
    with pytest.raises(QuorumError, match="take fewer columns"):
        run(tables)


def test_fewer_groups_rather_than_fewer_columns() -> None:
    """Thirty ones among 300 rows: some fifth has fewer than ten of them."""
    tables = {s: rare(x, 30) for s, x in TABLES.items()}
    found = run(tables).result
    assert not found.withheld and (found.groups_by_site < 5).all()


def test_simulation_protects_nothing() -> None:
    tables = draw(8, 12)
    found = run(tables, policy=SIMULATION).result
    wanted = ProbabilisticPCA(found.rank).fit(np.concatenate(list(tables.values())))
    np.testing.assert_allclose(found.components, wanted.components_, atol=1e-9)
    assert found.groups_by_site.tolist() == [5, 5, 5]


# --------------------------------------------------------------------------- gaps


def test_rows_with_gaps() -> None:
    """A tenth of the cells is missing: the components are nearly those of all cells."""
    tables = holes(TABLES, 0.1)
    finished = run(tables, preparation=keeping(), policy=GRANTED)
    found, whole = finished.result, run().result
    assert found.rank == RANK and found.missing_kept
    angles = np.linalg.svd(found.components @ whole.components.T)[1]
    assert angles.min() > 0.995
    np.testing.assert_allclose(found.mean, whole.mean, atol=0.15)
    assert "missing at random" in found.summary()
    output = finished.site("a")
    completed = output.to_frame("completed")
    full = completed[list(found.feature_names)].to_numpy()
    there = ~np.isnan(tables["a"])
    np.testing.assert_allclose(full[there], tables["a"][there], rtol=1e-12)
    error = np.sqrt(np.mean((full - TABLES["a"])[~there] ** 2))
    assert error < 0.7 * TABLES["a"].std(axis=0).mean()
    np.testing.assert_allclose(output.predictor.complete(tables["a"]), full, rtol=1e-9)
    np.testing.assert_allclose(
        output.values("component_1"), output.predictor.transform(tables["a"])[:, 0]
    )
    assert (output.values("residual") > 0).all()


def test_gaps_on_one_scale_and_empty_rows() -> None:
    tables = holes(TABLES, 0.1)
    tables["b"][:3] = np.nan
    finished = run(tables, preparation=keeping("pooled"), policy=GRANTED)
    assert finished.result.rank == RANK
    scores = finished.site("b").values("component_2")
    assert (scores[:3] == 0).all() and np.isnan(finished.site("b").values("residual")[:3]).all()
    completed = finished.site("b").to_frame("completed")
    there = ~np.isnan(tables["b"])
    full = completed[list(finished.result.feature_names)].to_numpy()
    np.testing.assert_allclose(full[there], tables["b"][there], rtol=1e-9)
    np.testing.assert_allclose(full[0], finished.site("b").predictor.mean_)


def test_gaps_nobody_may_count() -> None:
    """A single missing cell changes what leaves by one row at most, and no number tells of it."""
    tables = {s: x.copy() for s, x in TABLES.items()}
    tables["a"][7, 3] = np.nan
    federation = federation_of(tables, preparation=keeping(), policy=GRANTED)
    reply = told(federation)["a"]
    assert reply.counts.value.tolist() == [60] * 5
    assert np.isfinite(reply.means.value).all() and np.isfinite(reply.products.value).all()


def test_columns_with_few_values() -> None:
    """Fifteen columns ask for thirty values of each in a group."""
    tables = {s: x.copy() for s, x in TABLES.items()}
    tables["c"][:160, 2] = np.nan
    found = run(tables, preparation=keeping(), policy=GRANTED).result
    assert found.groups_by_site.tolist()[:2] == [5, 5] and found.groups_by_site[2] < 5
    tables["c"][:295, 2] = np.nan
    found = run(tables, preparation=keeping(), policy=GRANTED).result
    assert found.withheld == ("x2",)


def test_pairs_that_are_never_observed_together() -> None:
    x = TABLES["a"].copy()
    x[:150, 0], x[150:, 1] = np.nan, np.nan
    groups = groups_of(data_of(x), 5, stub())
    assert not {0, 1} <= set(groups.columns.tolist()) and len(groups.columns) == P - 1


def test_gaps_without_the_rule() -> None:
    federation = federation_of(TABLES)
    assert federation.preparation.missing == "refuse" and FederatedPCA.accepts_missing
    frame = pd.DataFrame(holes(TABLES, 0.1)["a"], columns=[f"x{j}" for j in range(P)])
    from consilience import Federation

    columns = Columns(features=tuple(frame.columns))
    with pytest.raises(QuorumError, match="missing values, which the study refuses"):
        FederatedPCA().run(Federation.local({"a": frame}, columns=columns), seed=0)


# --------------------------------------------------------------------------- what does not go


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": -1}, "rank"),
        ({"rank": True}, "rank"),
        ({"max_rank": 0}, "max_rank"),
        ({"n_splits": 3}, "2, 5 or 10"),
        ({"n_splits": 1}, "2, 5 or 10"),
        ({"rule": "elbow"}, "minimum, one-standard-error"),
    ],
)
def test_parameters(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        FederatedPCA.from_parameters(given)


def test_studies_that_cannot_be() -> None:
    with pytest.raises(ParameterError, match="below the number of columns, 15"):
        run(method=FederatedPCA(rank=15))
    with pytest.raises(StudyError, match="two columns or more"):
        run({s: x[:, :1] for s, x in TABLES.items()})
    with pytest.raises(StudyError, match="one scale"):
        run(preparation=Preparation(standardize="site"))
    weighed = dataclasses.replace(
        federation_of(TABLES), columns=Columns(features=("x0", "x1"), weight="w")
    )
    with pytest.raises(StudyError, match="knows no weights"):
        FederatedPCA().run(weighed, seed=0)
    wrong = {s: x.copy() for s, x in TABLES.items()}
    wrong["a"][0, 0] = np.inf
    with pytest.raises(QuorumError, match="infinite"):
        run(wrong)


def test_columns_that_do_not_vary_or_on_other_scales() -> None:
    tables = {s: np.c_[x[:, :6], np.full(len(x), 3.0)] for s, x in TABLES.items()}
    found = run(tables, policy=SIMULATION).result
    assert "Columns that do not vary: x6" in found.summary()
    wide = run({s: x * np.r_[100.0, np.ones(P - 1)] for s, x in TABLES.items()}).result
    assert 'standardize to "pooled"' in wide.summary()


@pytest.mark.parametrize("level", [0.0, 7.0, 0.1, 1e-20])
def test_nothing_varies(level: float) -> None:
    with pytest.raises(StudyError, match="no column varies, so there are no components"):
        run({s: np.full((60, 4), level) for s in "abc"}, policy=SIMULATION)


@pytest.mark.parametrize("unit", [1e-24, 1e-16, 1e16, 1e44])
def test_units_do_not_matter(unit: float) -> None:
    tables = {s: x[:, :6] for s, x in TABLES.items()}
    found = run({s: unit * x for s, x in tables.items()})
    usual = run(tables).result
    assert found.result.rank == usual.rank
    np.testing.assert_allclose(found.result.components, usual.components, atol=1e-8)
    kept = found.site("a").predictor  # no site refuses the model
    np.testing.assert_allclose(
        kept.transform(unit * TABLES["a"][:5, :6]) / unit,
        run(tables).site("a").predictor.transform(TABLES["a"][:5, :6]),
        atol=1e-8,
    )


@pytest.mark.parametrize(
    ("unit", "error", "words"),
    [(1e-40, StudyError, "too small"), (1e80, QuorumError, "too large")],
)
def test_units_that_no_model_can_have(unit: float, error: type, words: str) -> None:
    with pytest.raises(error, match=f'{words} for a model.*standardize to "pooled"'):
        run({s: unit * x[:, :6] for s, x in TABLES.items()})


def test_a_site_in_units_that_no_model_can_have_is_left_out() -> None:
    tables = {s: x[:, :6] * (1e80 if s == "b" else 1.0) for s, x in TABLES.items()}
    found = FederatedPCA().run(federation_of(tables, quorum=2), seed=0)
    assert found.result.sites == ("a", "c")
    assert any("b was absent" in note and "too large for a model" in note for note in found.notes)


# --------------------------------------------------------------------------- what came cannot be


def reply_of(counts: Any, means: Any, products: Any) -> Told:
    def of(value: Any) -> Any:
        return relayed(np.asarray(value), Disclosure.AGGREGATE)

    return Told(counts=of(counts), means=of(means), products=of(products))


GOOD = ([20, 30], [[0.0, 1.0], [2.0, 3.0]], [[4.0, 1.0, 4.0], [4.0, -1.0, 4.0]])


@pytest.mark.parametrize(
    "wrong",
    [
        ([20, 30, 40], GOOD[1], GOOD[2]),
        ([20, 0], GOOD[1], GOOD[2]),
        (GOOD[0], [[0.0], [1.0]], GOOD[2]),
        (GOOD[0], [[0.0, np.nan], [2.0, 3.0]], GOOD[2]),
        (GOOD[0], [[0.0, np.inf], [2.0, 3.0]], GOOD[2]),
        (GOOD[0], GOOD[1], [[4.0, 1.0], [4.0, 1.0]]),
        (GOOD[0], GOOD[1], [[4.0, 9.0, 4.0], [4.0, -1.0, 4.0]]),
        (GOOD[0], GOOD[1], [[-4.0, 0.0, 4.0], [4.0, -1.0, 4.0]]),
        (GOOD[0], GOOD[1], [[4.0, np.nan, 4.0], [4.0, -1.0, 4.0]]),
        (GOOD[0], [[0.0, 1e200], [2.0, 3.0]], GOOD[2]),
        (GOOD[0], GOOD[1], [[1e300, 0.0, 4.0], [4.0, -1.0, 4.0]]),
    ],
)
def test_moments_of_no_rows(wrong: Any) -> None:
    def judged(*moments: Any, n_splits: int = 2) -> str:
        names = ("counts", "means", "products")
        fields = {name: np.asarray(value) for name, value in zip(names, moments, strict=True)}
        request = Moments(settings=Settings(n_splits))
        return refusal(Told, fields, request, {"p": 2})

    assert judged(*GOOD) == ""
    assert "number of groups" in judged(*GOOD, n_splits=1)
    assert judged(*wrong).startswith("federated-pca/told")
    assert pool_of({"a": reply_of(*GOOD)}).together().n == 50


def test_folds_are_even_and_apart() -> None:
    def groups(g: int, n: int) -> Told:
        return reply_of([n] * g, np.zeros((g, 2)), np.tile([1.0, 0.0, 1.0], (g, 1)))

    pool = pool_of({"a": groups(1, 50), "b": groups(2, 40), "c": groups(5, 30)})
    folds = folds_of(pool, 5)
    assert folds["c"] == (0, 1, 2, 3, 4) and len(set(folds["b"])) == 2
    assert set(folds["a"]).isdisjoint(folds["b"])
    alone = folds_of(pool_of({"a": groups(1, 50), "b": groups(2, 40)}), 5)
    assert sorted(f for of in alone.values() for f in of) == [0, 1, 2]


MODEL = arrays_of(from_moments(np.zeros(3), np.diag([3.0, 2.0, 1.0]), 50, 2), np.array([0, 1, 3]))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {"mean": np.zeros(2)},
        {"directions": np.eye(3)},
        {"directions": 2 * MODEL["directions"]},
        {"variances": np.array([1.0, -1.0])},
        {"variances": np.array([1e20, 1.0])},
        {"noise": np.array([0.0])},
        {"noise": np.array([np.nan])},
        {"columns": np.array([0, 1, 4])},
        {"columns": np.array([1, 0, 3])},
        {"columns": np.array([-1, 0, 3])},
        {"mean": np.array([np.inf, 0.0, 0.0])},
        {"mean": np.array(["a", "b", "c"])},
    ],
)
def test_models_that_are_none(wrong: Any) -> None:
    assert model_of(MODEL, 4)[0].rank == 2
    with pytest.raises(ProtocolError) as caught:
        model_of(wrong if wrong is None else {**MODEL, **wrong}, 4)
    assert caught.value.public == "the model cannot be used"


# --------------------------------------------------------------------------- after the run


def test_absent_sites() -> None:
    federation = federation_of(TABLES, quorum=2)
    found = FederatedPCA().run(scripted(federation, {(2, "c"): "absent"}), seed=0).result
    wanted = ProbabilisticPCA(RANK).fit(np.concatenate([TABLES["a"], TABLES["b"]]))
    np.testing.assert_allclose(found.components, wanted.components_, atol=1e-10)
    late = FederatedPCA().run(scripted(federation, {(3, "c"): "absent"}), seed=0)
    np.testing.assert_allclose(late.result.components, run().result.components, atol=1e-12)
    assert any("absent in one round" in note for note in late.notes)


def test_result_and_predictor_come_back(tmp_path: Any) -> None:
    federation = federation_of(TABLES)
    finished = FederatedPCA().run(federation, seed=0, out=tmp_path / "run")
    again = load_run(tmp_path / "run").result
    assert isinstance(again, FederatedPCAResult)
    assert again.to_files() == finished.result.to_files()
    frame = again.to_frame()
    assert frame["rank"].tolist() == list(range(P)) and frame["chosen"].sum() == 1
    assert frame["explained"].is_monotonic_increasing
    predictor = finished.site("a").predictor
    assert isinstance(predictor, ComponentsPredictor)
    same = ComponentsPredictor.from_arrays(predictor.to_arrays())
    table = pd.DataFrame(TABLES["a"][:6], columns=[f"x{j}" for j in range(P)])
    table["more"] = 1.0
    np.testing.assert_array_equal(same.transform(table), predictor.transform(TABLES["a"][:6]))
    density = ProbabilisticPCA(RANK).fit(POOLED).score_samples(TABLES["a"][:6])
    np.testing.assert_allclose(same.score_samples(table), density, rtol=1e-9)
    with pytest.raises(DataError, match="columns"):
        same.transform(TABLES["a"][:6, :3])
    for damaged in ({}, {**same.to_arrays(), "directions": np.eye(2)}):
        with pytest.raises(DataError, match="do not hold a predictor"):
            ComponentsPredictor.from_arrays(damaged)


def test_values_whose_squares_overflow_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(100, 6)) * 1e200
    with pytest.raises(QuorumError, match="whose squares overflow: take other units"):
        run({"a": x, "b": x})


def test_digits_are_those_of_a_column_in_its_own_units() -> None:
    """Scaled rows have all digits; what leaves is of the rows as they were."""
    x = np.random.default_rng(1).integers(45, 110, (300, 3)).astype(float)
    x[:15, 0] += 0.25
    site = SimpleNamespace(limits=Policy().limits)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scaled = data_of(
        (x - centre) / scale, unscaled=x, scaling=np.stack([np.ones(3), centre, scale])
    )
    for data, limits, number in ((scaled, site, 1), (scaled, stub(), 5), (data_of(x), site, 1)):
        assert groups_of(data, 5, limits).number == number  # type: ignore[arg-type]


def test_units_of_others_do_not_decide_which_columns_leave() -> None:
    """A scale near 1 moves numbers above some value off their steps: whose they are was told."""
    x = np.random.default_rng(1).integers(45, 110, (300, 3)).astype(float)
    centre, scale = np.zeros(3), np.full(3, 1 / (1 - 1e-6 / 105))
    scaled = data_of(
        (x - centre) / scale, unscaled=x, scaling=np.stack([np.ones(3), centre, scale])
    )
    site: Any = SimpleNamespace(limits=Policy().limits)
    for limits in (site, stub()):
        assert groups_of(scaled, 5, limits).columns.tolist() == [0, 1, 2]

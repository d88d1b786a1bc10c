"""Paths and grids of searches over held-out entries."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.completion.estimators import entry_plans
from consilience.completion.estimators.entry_plans import (
    HardPath,
    OptSpacePath,
    PPCAPath,
    SoftPath,
    UnshrunkRankPath,
    plan_alphas,
    plan_clusters,
    plan_estimator,
    plan_ranks,
)
from consilience.completion.estimators.low_rank import HardImpute
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.held_out_entries import (
    EntryCurve,
    EstimatorPath,
    KMeansPath,
    KPODPath,
    path_of,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(16, 2)) @ rng.normal(size=(2, 7)) + 0.2 * rng.normal(size=(16, 7)) + 1.0
X[rng.random(X.shape) < 0.1] = np.nan
ENTRIES = Entries.of(X)
FOLDS = entry_folds(ENTRIES, 4, np.random.default_rng(1))
PATHS: list[Any] = [
    SoftPath(parameters=[8.0, 4.0, 2.0], center="columns"),
    SoftPath(parameters=[8.0, 4.0, 2.0], center="rows-and-columns", unshrink=True),
    UnshrunkRankPath(parameters=[0, 1, 2], center="columns"),
    HardPath(parameters=[0, 1, 2], center="rows-and-columns"),
    OptSpacePath(parameters=[0, 1, 2], center="columns"),
    PPCAPath(parameters=[0, 1, 2]),
    KMeansPath(parameters=[1, 2, 3], seed=0, n_init=2),
    KPODPath(parameters=[1, 2, 3], seed=0, n_init=2),
    EstimatorPath(estimator=HardImpute(), name="rank", parameters=[0, 1, 2]),
]


def predicted(path: Any, train: Entries, held: Entries) -> Any:
    return np.stack(list(path.predictions(train, held.rows, held.columns)))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: type(path).__name__)
def test_held_out_values_are_never_looked_at(path: Any) -> None:
    out = FOLDS == 0
    first = predicted(path, ENTRIES.take(~out), ENTRIES.take(out))
    assert first.shape == (3, out.sum()) and np.isfinite(first).all()
    spoilt = ENTRIES.with_values(np.where(out, 1e6, ENTRIES.values))
    np.testing.assert_array_equal(predicted(path, spoilt.take(~out), spoilt.take(out)), first)
    # the control: training values do matter
    moved = ENTRIES.with_values(np.where(out, ENTRIES.values, ENTRIES.values + 1.0))
    assert np.abs(predicted(path, moved.take(~out), moved.take(out)) - first).max() > 0.1


@pytest.mark.parametrize("path", PATHS[:4], ids=lambda path: type(path).__name__)
def test_rank_zero_or_the_largest_penalty_is_the_centre(path: Any) -> None:
    from consilience.numerics.entries import centre_of

    top = [1e4] if isinstance(path, SoftPath) else [0]
    alone = type(path)(parameters=top, center=path.center)
    found = predicted(alone, ENTRIES, ENTRIES)[0]
    centre = centre_of(ENTRIES, path.center).at(ENTRIES.rows, ENTRIES.columns)
    np.testing.assert_allclose(found, centre, atol=1e-9)


def test_estimators_and_paths_agree() -> None:
    train, held = ENTRIES.take(FOLDS > 0), ENTRIES.take(FOLDS == 0)
    ours = predicted(PATHS[-1], train, held)
    alone = HardImpute(2).fit(train.dense()).reconstruct()[held.rows, held.columns]
    np.testing.assert_allclose(ours[2], alone)


def test_what_is_a_path_already_stays() -> None:
    assert path_of(PATHS[0]) is PATHS[0]


# ------------------------------------------------------------------ grids


def curve_with_minimum(plan: Any, place: int) -> EntryCurve:
    parameters = np.asarray(plan.path.parameters)
    errors = np.abs(np.arange(len(parameters)) - place) + 1.0
    ends = plan.natural(parameters[0], parameters[-1])
    return EntryCurve("rank", parameters, errors[None], np.array([9]), ends)


def test_auto_ranks_stay_below_what_the_entries_can_tell() -> None:
    plan = plan_ranks(ENTRIES, FOLDS)
    left = ENTRIES.n_observed - np.bincount(FOLDS).max()
    tried = np.array(plan.path.parameters)
    assert tried[0] == 0
    assert (tried * (16 + 7 - tried) <= left).all()
    assert (tried[-1] + 1) * (16 + 7 - tried[-1] - 1) > left
    assert plan.grow is not None and not plan.grow(curve_with_minimum(plan, len(tried) - 1))
    assert curve_with_minimum(plan, len(tried) - 1).at_edge


def test_auto_ranks_grow_in_steps_until_the_minimum_is_inside() -> None:
    full = Entries.of(np.ones((60, 50)))
    plan = plan_ranks(full, entry_folds(full, 5, np.random.default_rng(0)))
    assert list(plan.path.parameters) == list(range(11))
    assert plan.grow is not None
    assert not plan.grow(curve_with_minimum(plan, 8))
    assert list(plan.grow(curve_with_minimum(plan, 9))) == list(range(11, 16))


def test_natural_edges_of_ranks() -> None:
    plan = plan_ranks(ENTRIES, FOLDS, ranks=range(8))
    # full rank fits every table: the problem ends before it
    assert plan.path.parameters == list(range(7))
    assert plan.remarks == (
        "rank 7, full rank, was left out: it fits every table and predicts nothing",
    )
    assert plan.natural(0, 6) == (True, True)
    assert plan.natural(1, 5) == (False, False)
    assert plan.grow is None
    with pytest.raises(ParameterError, match="ranks must be below 7, full rank"):
        plan_ranks(ENTRIES, FOLDS, ranks=[7])
    x = X.copy()
    x[:, 3] = np.nan
    empty = Entries.of(x)
    folds = entry_folds(empty, 3, np.random.default_rng(0))
    assert plan_ranks(empty, folds).natural(0, 5) == (True, True)


def test_one_number_means_all_up_to_it() -> None:
    assert plan_ranks(ENTRIES, FOLDS, ranks=3).path.parameters == [0, 1, 2, 3]
    assert plan_clusters(ENTRIES, n_clusters=3, seed=0).path.parameters == [1, 2, 3]
    assert plan_ranks(ENTRIES, FOLDS, ranks=[4, 1, 1]).path.parameters == [1, 4]


def test_natural_edges_of_classes() -> None:
    plan = plan_clusters(ENTRIES, seed=0)
    assert plan.path.parameters == list(range(1, 11))
    assert plan.natural(1, 10) == (True, False)
    assert plan.natural(2, 16) == (False, True)
    assert plan.grow is not None
    assert list(plan.grow(curve_with_minimum(plan, 9))) == []  # a quarter of the rows is less


def test_penalties_begin_where_nothing_is_left() -> None:
    plan = plan_alphas(ENTRIES, center="columns")
    alphas = list(plan.path.parameters)
    assert plan.natural(alphas[0], alphas[-1]) == (True, False)
    assert plan.natural(alphas[1], alphas[-1]) == (False, False)
    assert plan.grow is not None
    assert not plan.grow(curve_with_minimum(plan, 8))
    more = plan.grow(curve_with_minimum(plan, 9))
    np.testing.assert_allclose(np.array(more) / alphas[-1], 10 ** (-np.arange(1, 5) / 6))


def test_a_grid_of_penalties_comes_to_an_end() -> None:
    plan = plan_alphas(ENTRIES)
    assert plan.grow is not None
    alphas = list(plan.path.parameters)
    for _ in range(20):
        errors = 1.0 / np.arange(1, len(alphas) + 1)  # falls for ever
        curve = EntryCurve("alpha", np.array(alphas), errors[None], np.array([9]))
        alphas += plan.grow(curve)
    assert alphas[-1] == pytest.approx(1e-4 * alphas[0])


def test_costly_grids_start_short_and_end_where_the_error_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = plan_alphas(ENTRIES).path.parameters
    monkeypatch.setattr(entry_plans, "_COSTLY", 0.0)
    assert plan_alphas(ENTRIES).path.parameters == usual  # the dense solver costs little
    monkeypatch.setattr(entry_plans, "choose_solver", lambda entries: "als")
    plan = plan_alphas(ENTRIES)
    assert plan.path.parameters == usual[:4]

    def grown(errors: list[float]) -> list[float]:
        alphas = np.array(usual[: len(errors)])
        curve = EntryCurve("alpha", alphas, np.array([errors]), np.array([9]), (True, False))
        assert plan.grow is not None
        return list(plan.grow(curve))

    np.testing.assert_allclose(grown([9.0, 8.0, 7.0, 6.0]), usual[4:6])
    assert grown([9.0, 8.0, 7.0, 7.5]) == []
    # noise may come in first: nothing is decided before the tenth penalty
    np.testing.assert_allclose(grown([9.0, 9.0, 9.0, 9.0]), usual[4:6])
    assert len(grown([9.0] + 7 * [9.5])) == 2 and grown([9.0] + 9 * [9.5]) == []


def test_a_flat_curve_ends_a_grid_of_penalties() -> None:
    plan = plan_alphas(ENTRIES)
    alphas = np.array(plan.path.parameters)
    errors = np.array([9.0, 5.0, 3.0, 2.0, 1.0, 1.0, 0.99999, 0.99998, 0.99997, 0.99996])
    curve = EntryCurve("alpha", alphas, errors[None], np.array([9]), (True, False))
    assert plan.grow is not None and plan.grow(curve) == [] and curve.at_edge
    errors[-1] = 0.99
    assert len(plan.grow(EntryCurve("alpha", alphas, errors[None], np.array([9])))) == 4


def test_names_are_checked() -> None:
    with pytest.raises(ParameterError, match="model must be one of hard"):
        plan_ranks(ENTRIES, FOLDS, model="pca")
    with pytest.raises(ParameterError, match="model must be one of observed-kmeans"):
        plan_clusters(ENTRIES, model="kmeans", seed=0)
    with pytest.raises(ParameterError, match="no parameter 'k'"):
        plan_estimator(ENTRIES, FOLDS, HardImpute(), "k")


def test_penalties_end_where_nothing_changes_any_more() -> None:
    """Below the penalty at which fits have full rank, the fitted matrix is the same: no edge."""
    x = np.random.default_rng(4).normal(size=(60, 4)) @ np.diag([5.0, 4.0, 4.0, 3.0])
    mixed = x @ np.linalg.qr(np.random.default_rng(5).normal(size=(4, 4)))[0]
    mixed[np.random.default_rng(6).random(mixed.shape) < 0.05] = np.nan
    entries = Entries.of(mixed)
    folds = entry_folds(entries, 4, np.random.default_rng(1))
    plan = plan_alphas(entries, tol=1e-8)
    curve, predictions = plan.predictions(entries, folds)
    assert curve.natural == (True, True) and not curve.at_edge
    assert predictions.shape[1] == len(curve.parameters) == len(plan.errors(entries, folds).mean)
    # Smaller penalties than the last one change nothing; and without the rule they are an edge.
    last = float(curve.parameters[-1])
    given = plan_alphas(entries, alphas=[last, last / 3, last / 10], tol=1e-8)
    same = given.errors(entries, folds)
    assert len(same.mean) == 3 and same.natural[1]
    np.testing.assert_allclose(same.mean, same.mean[0], rtol=1e-6)
    assert not dataclasses.replace(given, ends_flat=None).errors(entries, folds).natural[1]
    # Where errors still change, or nothing is fitted at all, there is no such end.
    largest = float(curve.parameters[0])
    for alphas in ([0.4 * largest, 0.3 * largest], [9 * largest, 8 * largest]):
        early = plan_alphas(entries, alphas=alphas, tol=1e-8).errors(entries, folds)
        assert not early.natural[1]


@pytest.mark.parametrize(
    ("value", "center", "said"),
    [(0.0, "none", "all observed entries are 0"), (3.0, "columns", "'columns' explains every")],
)
def test_a_table_without_anything_to_choose(value: float, center: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        plan_alphas(Entries.of(np.full((8, 5), value)), center=center)

"""Completion of one table, as a method: columns with gaps and triplets."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from consilience import Columns, Federation, Preparation
from consilience.completion.estimators.entry_plans import plan_ranks
from consilience.completion.estimators.low_rank import HardImpute
from consilience.completion.estimators.predictors import CompletionPredictor
from consilience.completion.one_table.entry_study import _figures
from consilience.completion.one_table.matrix import COLUMNS, Matrix
from consilience.completion.one_table.matrix_completion import (
    MODELS,
    RULES,
    MatrixCompletionResult,
    MatrixCompletionStudy,
)
from consilience.engines.federation import Run
from consilience.exceptions import ConsilienceError, ParameterError, StudyError
from consilience.numerics.entries import Entries, centre_of
from consilience.numerics.entry_folds import held_out_part
from consilience.numerics.random import stream
from consilience.protocol.method import Method
from consilience.wire.disclosure import Limits
from tests.completion.one_table import test_cluster_count_study as classes
from tests.granted import GRANTED, granted

N, P = 80, 12


@cache
def given(missing: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of rank 2 with noise, with and without its gaps."""
    rng = np.random.default_rng(seed)
    full = 3 + 2 * rng.normal(size=(N, 2)) @ rng.normal(size=(2, P)) + 0.3 * rng.normal(size=(N, P))
    return full, np.where(rng.random(full.shape) < missing, np.nan, full)


def columns_of(x: np.ndarray, policy: Any = "strict", standardize: Any = "none") -> Federation:
    names = tuple(f"x{j}" for j in range(x.shape[1]))
    table = {**dict(zip(names, x.T, strict=True)), "who": [f"p{i}" for i in range(len(x))]}
    return Federation.local(
        {"clinic": table},
        columns=Columns(features=names, id="who"),
        preparation=Preparation(missing="keep", standardize=standardize),
        policy=granted(policy),
    )


def lines_of(x: np.ndarray) -> dict[str, Any]:
    """The same as triplets, in another order."""
    i, j = np.nonzero(~np.isnan(x))
    order = np.random.default_rng(1).permutation(len(i))
    i, j = i[order], j[order]
    return {
        "user": [f"u{a:03d}" for a in i],
        "item": [f"m{b:02d}" for b in j],
        "stars": x[i, j],
    }


def triplets_of(lines: dict[str, Any], policy: Any = "strict") -> Federation:
    columns = Columns(agent="user", entity="item", target="stars")
    return Federation.local({"clinic": lines}, columns=columns, policy=granted(policy))


def stars(missing: float = 0.6) -> np.ndarray:
    """Ratings from 1 to 5 with levels of rows and of columns."""
    rng = np.random.default_rng(3)
    level = rng.normal(size=(N, 1)) + rng.normal(size=P)
    x = np.clip(np.round(3 + level + 0.5 * rng.normal(size=(N, P))), 1, 5)
    return np.where(rng.random(x.shape) < missing, np.nan, x)


SMALL: dict[str, Any] = {"model": "hard", "grid": (0, 1, 2, 3, 4)}


def run_of(federation: Federation, **parameters: Any) -> Run:
    method: Method = MatrixCompletionStudy(**{**SMALL, **parameters})
    run: Run = method.run(federation, seed=0)
    return run


def test_the_rank_is_chosen_and_gaps_are_filled() -> None:
    full, x = given()
    run = run_of(columns_of(x))
    result = run.result
    assert isinstance(result, MatrixCompletionResult)
    assert result.rank == 2 == result.value and not result.at_edge and np.isnan(result.alpha)
    assert result.shape == (N, P) and result.n_observed == (~np.isnan(x)).sum()
    filled = run.site("clinic").to_frame("completed")
    assert filled["who"].tolist() == [f"p{i}" for i in range(N)]
    values = filled[[f"x{j}" for j in range(P)]].to_numpy()
    there = ~np.isnan(x)
    np.testing.assert_array_equal(values[there], x[there])
    # Noise of .3 in each value; the fit of 960 cells by some 190 numbers adds a little.
    assert np.sqrt(np.mean((values - full)[~there] ** 2)) < 0.6
    assert result.summary().startswith("Held-out entries choose rank 2 for a matrix of 80 x 12")
    assert 0.3 < np.sqrt(result.final_error) < 0.6 < 2 < np.sqrt(result.baseline_error)
    best = min((1, 2), key=lambda rule: result.final_errors[rule])
    assert f", of {RULES[best]} " in result.summary()


def test_the_search_is_the_one_of_the_estimators() -> None:
    _, x = given()
    entries = Entries.of(x)
    none = np.zeros((0, 2), dtype=np.int64)
    names = np.array([f"x{j}" for j in range(P)])
    ids = np.array([str(i) for i in range(N)])
    matrix = Matrix(
        entries, COLUMNS, ids, names, none, np.stack([np.zeros(P), np.ones(P)]), entries.values
    )
    study = MatrixCompletionStudy(model="hard", grid=(0, 1, 2, 3))
    made = study.search_matrix(matrix, 5, _Open())  # type: ignore[arg-type]
    held = held_out_part(entries, 0.1, stream(5, "last part"))
    train, last = entries.take(~held), entries.take(held)
    folds = study.folds_of(train, 5)
    plan = plan_ranks(train, folds, model="hard", ranks=(0, 1, 2, 3), center="columns")
    np.testing.assert_array_equal(made.curve.errors, plan.errors(train, folds).errors)
    # The last part is judged by a fit without it, and is part of the fit that is kept.
    judged = HardImpute(2, center="columns").fit(train).predict_entries(last.rows, last.columns)
    assert np.nansum(made.final[:, 0]) == pytest.approx(((judged - last.values) ** 2).sum())
    means = centre_of(train, "rows-and-columns").at(last.rows, last.columns)
    assert np.nansum(made.final[:, 1]) == pytest.approx(((means - last.values) ** 2).sum())
    assert made.final_counts.sum() == held.sum() == round(0.1 * entries.n_observed)
    kept = HardImpute(2, center="columns").fit(entries)
    np.testing.assert_allclose(made.predictor.reconstruct(x), kept.reconstruct(x))


class _Open:
    """A site that protects no record."""

    limits = Limits(min_records=1, max_share=1.0)


def test_triplets_are_the_same_matrix() -> None:
    _, x = given()
    by_columns = run_of(columns_of(x)).result
    run = run_of(triplets_of(lines_of(x)))
    result, left = run.result, run.site("clinic")
    # The seed of the folds is a digest of the values, which are the same in the same order.
    np.testing.assert_array_equal(result.fold_errors, by_columns.fold_errors)
    np.testing.assert_array_equal(result.singular_values, by_columns.singular_values)
    assert result.form == "triplets" and result.row_name == "user"
    assert by_columns.form == "columns" and by_columns.row_name == "who"
    cells = left.to_frame("completed")
    assert list(cells.columns) == ["user", "item", "stars", "observed"] and len(cells) == N * P
    lines = lines_of(x)
    known = cells[cells["observed"] == 1].set_index(["user", "item"])["stars"]
    for user, item, stars in list(zip(*lines.values(), strict=True))[:50]:
        assert known[(user, item)] == stars
    # Values by line are in the order of the lines.
    asked = left.predictor.predict_entries(lines["user"], lines["item"])
    np.testing.assert_allclose(left.values("fitted"), asked)
    assert left.values("set_aside").sum() == result.n_final
    assert result.feature_names == ()


def test_repeated_triplets_are_refused_or_averaged() -> None:
    _, x = given()
    lines = lines_of(x)
    twice = {name: [*values[:3], *values] for name, values in lines.items()}
    with pytest.raises(ConsilienceError) as said:
        run_of(triplets_of(twice))
    assert 'average them with duplicates = "mean"' in str(said.value)
    twice["stars"][0] += 2.0
    run = run_of(triplets_of(twice), duplicates="mean")
    cells = run.site("clinic").to_frame("completed").set_index(["user", "item"])["stars"]
    place = (lines["user"][0], lines["item"][0])
    assert cells[place] == pytest.approx(lines["stars"][0] + 1.0)
    assert len(run.site("clinic").values("fitted")) == len(twice["stars"])


@pytest.mark.parametrize("model", MODELS)
def test_every_model(model: str) -> None:
    _, x = given()
    grid: Any = (0, 1, 2, 3) if model != "soft" else (30.0, 10.0, 3.0, 1.0)
    run = run_of(columns_of(x), model=model, grid=grid)
    result, left = run.result, run.site("clinic")
    assert result.parameter == ("alpha" if model == "soft" else "rank")
    assert result.model == model and np.sqrt(result.final_error) < np.sqrt(result.baseline_error)
    if model == "soft":
        assert result.alpha in grid and 0 <= result.gap <= 1e-6
    elif model == "soft-unshrunk":
        assert result.rank in (2, 3)  # its directions come from a fit that is shrunken
    else:
        assert result.rank == 2
    # The predictor gives the fitted rows again. Least-squares scores of rows with few values are
    # what a fit by turns comes to last, so that some cells are not there yet where it stops.
    filled = left.to_frame("completed")[[f"x{j}" for j in range(P)]].to_numpy()
    apart = np.abs(left.predictor.complete(x) - filled)[np.isnan(x)]
    assert np.median(apart) < 0.01 and np.quantile(apart, 0.9) < 0.1 and apart.max() < 0.5
    assert len(left.to_frame("scores")) == N and len(left.to_frame("loadings")) == P
    assert len(result.singular_values) == result.rank


def test_the_same_curve_with_protected_rows_in_fewer_lines() -> None:
    _, x = given()
    run, open_run = run_of(columns_of(x)), run_of(columns_of(x, "simulation"))
    result = run.result
    assert open_run.result.fold_errors.shape == (5, 5)
    lines, a = result.fold_errors.shape
    assert lines * a <= N
    at_site = run.site("clinic").to_frame("curve")
    np.testing.assert_allclose(result.curve().mean, at_site["error"])
    np.testing.assert_allclose(result.curve().se, at_site["standard_error"], rtol=0.06)
    assert result.fold_entries.sum() == result.n_observed - result.n_final


def test_a_minimum_at_the_end_of_the_grid_is_no_choice() -> None:
    _, x = given()
    run = run_of(columns_of(x), grid=(0, 1))
    assert run.result.at_edge and run.result.rank == 1
    assert "Held-out entries choose no rank" in run.result.summary()
    assert any("this is no choice" in note for note in run.notes)
    # Rank 0 is where the problem begins: noise alone chooses it.
    noise = run_of(columns_of(np.random.default_rng(4).normal(size=(60, 8)))).result
    assert noise.rank == 0 and not noise.at_edge
    assert noise.singular_values.shape == (0,)


def test_without_a_last_part_nothing_judges_anew() -> None:
    _, x = given()
    result = run_of(columns_of(x), holdout=0.0).result
    assert result.n_final == 0 and np.isnan(result.final_error)
    assert "nothing judges the choice anew" in result.summary()
    assert result.fold_entries.sum() == result.n_observed
    # Too few cells to rest anything on are not set aside.
    few = run_of(columns_of(x[:14, :6]), holdout=0.05).result
    assert few.n_final == 0


def test_units_are_those_of_the_table() -> None:
    _, x = given()
    far = x * 100 + 5000
    run = run_of(columns_of(far, standardize="pooled"))
    filled = run.site("clinic").to_frame("completed")[[f"x{j}" for j in range(P)]].to_numpy()
    there = ~np.isnan(x)
    np.testing.assert_allclose(filled[there], far[there])
    # Up to where the fit stopped: a twentieth of the columns' spread, in rows with few values.
    np.testing.assert_allclose(run.site("clinic").predictor.complete(far), filled, atol=30)
    assert 4000 < filled[~there].min() < filled.max() < 7500


def test_a_complete_table_is_a_low_rank_table_too() -> None:
    full, _ = given()
    result = run_of(columns_of(full)).result
    assert result.rank == 2 and result.n_observed == N * P


def test_few_missing_cells_are_not_counted() -> None:
    full, _ = given()
    few = full.copy()
    few[0, :3] = np.nan
    result = run_of(columns_of(few)).result
    assert result.n_observed == N * P
    assert result.fold_entries.sum() + result.n_final == N * P
    assert run_of(columns_of(few, "simulation")).result.n_observed == N * P - 3


def test_empty_rows_and_columns_are_filled_by_the_centre() -> None:
    _, x = given()
    gaps = x.copy()
    gaps[3] = np.nan
    gaps[:, 5] = np.nan
    run = run_of(columns_of(gaps))
    filled = run.site("clinic").to_frame("completed")[[f"x{j}" for j in range(P)]].to_numpy()
    assert np.isfinite(filled).all() and run.result.rank == 2


def test_one_row_that_makes_most_of_the_errors_is_not_told() -> None:
    _, x = given()
    wild = x.copy()
    wild[7] = 1e6 * np.random.default_rng(0).normal(size=P)
    result = run_of(columns_of(wild)).result
    assert result.curve() is None and np.isnan(result.final_errors).any()
    assert "stay at the site" in result.final_sentence()


def test_integer_ratings_of_few_levels() -> None:
    rng = np.random.default_rng(3)
    x = np.clip(np.round(3 + rng.normal(size=(60, 1)) + rng.normal(size=(60, 8))), 1, 5)
    lines = lines_of(np.where(rng.random(x.shape) < 0.3, np.nan, x))
    lines["stars"] = lines["stars"].astype(int)
    result = run_of(triplets_of(lines), grid="auto", center="rows-and-columns").result
    assert result.grid == "auto" and result.final_error > 0


@pytest.mark.parametrize("standardize", ["none", "pooled", "site"])
def test_tables_like_ratings_are_centred_by_rows_and_columns(standardize: str) -> None:
    x = stars()
    federation = columns_of(x, standardize=standardize)
    run = run_of(federation)
    given = run_of(columns_of(x, standardize=standardize), center="rows-and-columns")
    assert run.result.center == "rows-and-columns"
    np.testing.assert_array_equal(run.result.final_errors, given.result.final_errors)
    np.testing.assert_array_equal(run.result.fold_errors, given.result.fold_errors)
    said = "The table looks like ratings"
    assert any(note.startswith(said) for note in run.notes)
    assert any(said in str(line.get("said")) for line in federation.log("clinic"))
    assert not any(said in note for note in given.notes)
    assert run_of(columns_of(x), model="ppca").result.center == "columns"


@pytest.mark.parametrize("table", ["numbers", "small numbers", "few missing", "one value"])
def test_other_tables_are_centred_by_columns(table: str) -> None:
    x = given(0.6)[1] if "numbers" in table else stars(0.3 if table == "few missing" else 0.6)
    x = np.where(np.isnan(x), np.nan, 4.0) if table == "one value" else x
    x = 1e-9 * x if table == "small numbers" else x
    run = run_of(columns_of(x))
    other = run_of(columns_of(x), center="columns")
    assert run.result.center == "columns" and run.notes == other.notes
    np.testing.assert_array_equal(run.result.final_errors, other.result.final_errors)


def test_few_rows_tell_single_numbers_first() -> None:
    _, x = given()
    for n, parameters in ((12, {}), (10, {"model": "hard"}), (10, {"model": "soft-unshrunk"})):
        run = run_of(columns_of(x[:n]), **parameters)
        told = run.result
        assert told.rank == len(run.site("clinic").predictor.factors.components)
        assert f"rank {told.rank}" in told.summary() and told.curve() is None
        assert not len(told.singular_values) or len(told.singular_values) <= n
    alone = dataclasses.replace(told, rank=-1, alpha=float("nan"))
    assert "choose a rank that stays at the site for" in alone.summary()


def test_no_more_figures_than_rows() -> None:
    given = {"one": 1.0, "grid": np.arange(4.0), "two": 2.0, "three": np.arange(3.0)}
    few, many = Limits(min_records=5), Limits(min_records=1)
    for n in range(12):
        told = _figures(given, n, few).value
        assert sum(np.size(value) for value in told.values()) <= n
    assert list(_figures(given, 4, few).value) == ["one", "two"]  # a list not told costs nothing
    assert list(_figures(given, 0, many).value) == list(given)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"model": "svd"}, "one of soft, hard, soft-unshrunk, optspace, ppca"),
        ({"center": "mean"}, "one of auto, none, columns, rows-and-columns"),
        ({"duplicates": "first"}, "one of refuse, mean"),
        ({"holdout": 0.6}, "holdout must be a number from 0 to 0.5"),
        ({"grid": "all"}, "'auto', or 1 to 100 values, each a number above 0"),
        ({"grid": (0.0, 1.0)}, "each a number above 0"),
        ({"grid": (float("inf"), 1.0)}, "each a number above 0"),
        ({"grid": (10**400, 1.0)}, "each a number above 0"),
        ({"model": "hard", "grid": (1.5,)}, "each a whole number of at least 0"),
        ({"model": "hard", "max_rank": 3}, "max_rank is for the model 'soft'"),
        ({"n_splits": 100}, "from 2 to 20"),
        ({"rule": "elbow"}, "one-standard-error"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        MatrixCompletionStudy(**parameters).validate()


def test_studies_that_name_no_matrix_are_sentences() -> None:
    table = {"x0": np.arange(30.0), "x1": np.arange(30.0), "a": ["q"] * 30, "y": np.arange(30.0)}
    for columns, said in (
        (Columns(features=("x0", "x1"), target="y"), "names features and target"),
        (Columns(agent="a", target="y"), r"agent \(row\), entity \(column\) and target \(value\)"),
        (Columns(features=("x0", "x1"), weight="y"), "leave weight and sequence out"),
    ):
        federation = Federation.local({"one": table}, columns=columns, policy=GRANTED)
        with pytest.raises(StudyError, match=said):
            MatrixCompletionStudy().run(federation)


def test_ranks_above_the_smaller_side_and_single_columns_are_sentences() -> None:
    _, x = given()
    with pytest.raises(StudyError, match="name two columns or more as features"):
        run_of(columns_of(x[:, :1]))
    with pytest.raises(ConsilienceError, match="site's own log says why"):
        run_of(columns_of(np.full((30, 4), np.nan)))
    with pytest.raises(StudyError, match="ranks up to the number of columns, 12, but 13"):
        run_of(columns_of(x), grid=(0, 13))
    for federation in (columns_of(x[:11]), triplets_of(lines_of(x))):
        grid = (0, 12 if federation.columns.features else 13)
        with pytest.raises(ConsilienceError, match="above what the table allows: ask for smaller"):
            run_of(federation, grid=grid)
    with pytest.raises(ConsilienceError, match="fewer rows than the policy"):
        run_of(columns_of(x[:9]))


def test_a_saved_predictor_is_the_same_and_names_what_it_does_not_know() -> None:
    _, x = given()
    for center in ("none", "rows-and-columns"):
        left = run_of(columns_of(x), center=center).site("clinic").predictor
        again = CompletionPredictor.from_arrays(left.to_arrays())
        np.testing.assert_array_equal(again.reconstruct(x), left.reconstruct(x))
        asked = again.predict_entries(["p3", "p40"], ["x2", "x0"])
        np.testing.assert_allclose(asked, left.reconstruct(x)[[3, 40], [2, 0]], atol=1e-2)
    with pytest.raises(ConsilienceError, match="1 of the rows that are asked for"):
        left.predict_entries(["p3", "nobody"], ["x2", "x0"])
    with pytest.raises(ConsilienceError, match="must have 12 columns"):
        left.transform(x[:, :3])
    with pytest.raises(ConsilienceError, match="do not hold a predictor"):
        CompletionPredictor.from_arrays({})


def test_the_table_of_classes_and_that_of_ranks_take_the_same_columns() -> None:
    """Both studies read one study file's [data]; neither needs the other's parameters."""
    x = classes.rows(60)
    federation = columns_of(x)
    assert run_of(federation, grid=(0, 1, 2)).result.shape == (60, 5)


def test_noise_that_breaks_the_choice_is_said_to_the_site() -> None:
    """Along the columns, or of heavy tails; white noise is not spoken against."""
    rng, p = np.random.default_rng(26), 30
    signal, white = 2 * rng.normal(size=(N, 2)) @ rng.normal(size=(2, p)), rng.normal(size=(N, p))
    along = np.linalg.cholesky(0.6 ** np.abs(np.subtract.outer(np.arange(p), np.arange(p))))
    tables = {
        "neighbouring columns": signal + white @ along.T,
        "heavy tails": signal + rng.standard_t(2, (N, p)),
        "": signal + white,
    }
    for word, x in tables.items():
        federation = columns_of(x)
        run_of(federation, grid=(2,))
        said = " ".join(str(line.get("said")) for line in federation.log("clinic"))
        found = {other for other in tables if other and other in said}
        assert found == {word} - {""}

"""Sparse quadratic discriminant analysis over sites: the fit of pooled rows, and who chooses."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import LeaveOneGroupOut

from consilience import Columns, Federation, Preparation, load_run
from consilience.discriminant import federated_sparse_qda
from consilience.discriminant.estimators import sparse_qda_fit
from consilience.discriminant.estimators.sparse_qda import SparseQDA
from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA
from consilience.discriminant.federated_sparse_qda.messages import Moments, Products, Settings
from consilience.exceptions import DataError, ParameterError, QuorumError, StudyError
from consilience.numerics.progress import shown_by
from consilience.protocol.method import SiteData
from consilience.sites.policy import Policy
from consilience.testing.fakes import scripted
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.discriminant.estimators.sparse_qda_data import in_one_block
from tests.discriminant.federated_sparse_qda.sparse_qda import (
    draw,
    federation_over,
    labels,
    names,
    rows,
)
from tests.granted import granted
from tests.numerics.test_progress import Noted
from tests.wire.replies import refusal

EXACT: dict[str, Any] = {"holdout": 0.0, "tol": 1e-13}


def central(x: np.ndarray, y: np.ndarray, **settings: Any) -> SparseQDA:
    return SparseQDA(tol=1e-13, **settings).fit(x, y)


def dense(result: Any) -> np.ndarray:
    """Precision matrices of a result over the columns that take part."""
    m = len(result.columns)
    place = {int(j): i for i, j in enumerate(result.columns)}
    full = np.zeros((len(result.levels), m, m))
    at = np.arange(m)
    full[:, at, at] = result.diagonal
    for block, precision in zip(result.blocks, result.precisions, strict=True):
        inside = np.array([place[int(j)] for j in block])
        full[:, inside[:, None], inside[None, :]] = precision
    return full


def same_fit(result: Any, fitted: SparseQDA, x: np.ndarray, rtol: float = 1e-8) -> None:
    """Units, matrices and scores, relative to their size."""
    kept = result.columns
    np.testing.assert_allclose(result.scale, fitted.scale_[kept], rtol=1e-10)
    np.testing.assert_allclose(result.means[:, kept], fitted.means_[:, kept], 1e-8, 1e-10)
    wanted = fitted.precision_.dense()
    np.testing.assert_allclose(dense(result), wanted, rtol=0, atol=rtol * np.abs(wanted).max())
    ours, theirs = result.predictor().scores(x), fitted.predictor_.scores(x)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=rtol * np.abs(theirs).max())


# Fits of a path start from each other: two fits of a relative gap of 1e-13 differ by its root.
ALONG_A_PATH = 1e-6


# --------------------------------------------------------------------------- the pooled fit


@pytest.mark.parametrize(
    ("sizes", "p", "n_classes", "alpha"),
    [
        ([40, 60, 50], 6, 2, 0.1),
        ([40, 60, 50], 6, 2, 0.0),
        ([90, 30], 5, 3, 0.05),
        ([30, 31, 32, 33, 34], 12, 2, 0.3),
        ([30, 40, 35], 6, 2, 1.0),
    ],
)
def test_it_is_the_fit_of_the_pooled_rows(
    sizes: list[int], p: int, n_classes: int, alpha: float
) -> None:
    tables = draw(sizes, p, n_classes=n_classes)
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alpha=alpha, **EXACT).run(
        federation_over(tables, n_classes=n_classes), seed=0
    )
    fitted = central(x, y, alpha=alpha)
    same_fit(run.result, fitted, x)
    np.testing.assert_array_equal(run.result.pairs, fitted.interactions_.pairs)
    np.testing.assert_allclose(run.result.strength, fitted.interactions_.strength, rtol=1e-6)
    if alpha == 1.0:
        assert run.result.n_links[0] == 0


def test_means_far_from_zero_lose_no_digits() -> None:
    tables = draw([40, 60, 50], 5)
    for table in tables.values():
        table[names(5)] += 1e6
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation_over(tables), seed=0)
    wanted = central(x - 1e6, y, alpha=0.1).precision_.dense()
    np.testing.assert_allclose(dense(run.result), wanted, rtol=1e-7, atol=1e-7)


def test_sites_that_lack_a_class() -> None:
    tables = draw([60, 60, 60], 5, n_classes=3)
    tables["s0"] = tables["s0"][tables["s0"]["y"] != "c2"]
    tables["s1"] = tables["s1"][tables["s1"]["y"] == "c2"]
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation_over(tables, n_classes=3), seed=0)
    same_fit(run.result, central(x, y, alpha=0.1), x)
    assert any("s0" in note and "c2" in note for note in run.notes)


def test_columns_that_are_constant() -> None:
    """Everywhere: left out. Within a class: a variance by the estimator's own rule."""
    tables = draw([60, 50], 5)
    for table in tables.values():
        table["x3"] = 7.0
        table.loc[table["y"] == "c0", "x4"] = 2.0
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation_over(tables), seed=0)
    with pytest.warns(UserWarning, match="constant"):
        fitted = central(x, y, alpha=0.1)
    assert run.result.columns.tolist() == [0, 1, 2, 4]
    same_fit(run.result, fitted, x)
    notes = " ".join(run.notes)
    assert "Constant everywhere: x3" in notes and "x4" in notes


@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_preparation_does_not_change_the_fit(standardize: Any) -> None:
    tables = draw([40, 60, 50], 5)
    x, y, _ = rows(tables)
    federation = federation_over(tables, preparation=Preparation(standardize=standardize))
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation, seed=0)
    fitted = central(x, y, alpha=0.1)
    np.testing.assert_allclose(dense(run.result), fitted.precision_.dense(), rtol=1e-7, atol=1e-8)
    # The sites' predictor and the result's take rows in their own units.
    kept = run.site("s1").predictor
    np.testing.assert_array_equal(kept.predict(x), run.result.predictor().predict(x))
    np.testing.assert_array_equal(kept.predict(x), fitted.predict(x))


def test_priors_are_those_that_were_given() -> None:
    tables = draw([40, 60], 4)
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alpha=0.1, priors=(0.9, 0.1), **EXACT).run(
        federation_over(tables), seed=0
    )
    same_fit(run.result, central(x, y, alpha=0.1, priors=[0.9, 0.1]), x)


# --------------------------------------------------------------------------- the choice


def test_sites_choose_as_folds_of_sites_do() -> None:
    """Errors and alpha are those of cross-validation by site on the pooled rows."""
    tables = draw([60, 70, 80], 6)
    x, y, sites = rows(tables)
    grid = (0.5, 0.2, 0.1, 0.03, 0.0)
    run = FederatedSparseQDA(alphas=grid, **EXACT).run(federation_over(tables), seed=0)
    fitted = SparseQDA(alphas=list(grid), cv=LeaveOneGroupOut(), tol=1e-13).fit(x, y, groups=sites)
    result = run.result
    np.testing.assert_array_equal(result.cv_wrong, fitted.path_.cv_wrong)
    assert result.alpha == fitted.alpha_ and result.choice == "sites"
    assert result.judges == ("s0", "s1", "s2")
    assert len(set(result.cv_errors.tolist())) > 2
    same_fit(result, fitted, x)
    np.testing.assert_allclose(result.relative_penalties, fitted.path_.relative_penalties, 1e-6)


def test_the_grid_is_that_of_the_estimator() -> None:
    tables = draw([60, 70, 80], 6)
    x, y, sites = rows(tables)
    run = FederatedSparseQDA(n_alphas=4, **EXACT).run(federation_over(tables), seed=0)
    fitted = SparseQDA(n_alphas=4, cv=LeaveOneGroupOut(), tol=1e-13).fit(x, y, groups=sites)
    np.testing.assert_allclose(run.result.candidates, fitted.path_.alphas, rtol=1e-10)
    np.testing.assert_array_equal(run.result.cv_wrong, fitted.path_.cv_wrong)


@pytest.mark.parametrize("ties", ["sparsest", "densest", "middle"])
def test_ties_are_decided_as_asked(ties: str) -> None:
    tables = draw([60, 70, 80], 4, apart=3.0)
    run = FederatedSparseQDA(n_alphas=7, ties=ties, **EXACT).run(federation_over(tables), seed=0)
    errors = run.result.cv_errors
    best = np.flatnonzero(errors == errors.min())
    assert len(best) > 2
    wanted = {"sparsest": best[0], "densest": best[-1], "middle": best[(len(best) - 1) // 2]}
    assert run.result.chosen == wanted[ties]


@pytest.mark.parametrize("policy", ["simulation", "consortium"])
def test_held_out_rows_choose_where_there_are_two_sites(policy: str) -> None:
    tables = draw([200, 160], 5)
    method = FederatedSparseQDA(n_alphas=5, choose="holdout")
    result = method.run(federation_over(tables, policy), seed=0).result
    assert np.isnan(result.candidate_loss).all()
    assert result.choice == "holdout" and result.judges == ("s0", "s1")
    if policy == "simulation":
        assert result.held_by_site.tolist() == [[20, 20], [16, 16]]
    assert np.abs(result.held_by_site.sum(axis=1) - [40, 32]).max() <= 2  # a fifth of each table
    assert (result.n_by_site + result.held_by_site).tolist() == [[100, 100], [80, 80]]
    assert result.cv_rows.tolist() == result.held_by_site.sum(axis=1).tolist()
    assert "the rows that chose alpha" in result.summary()


@pytest.mark.parametrize("screening", [False, True])
def test_densities_of_sites_that_are_left_out(screening: bool) -> None:
    """What moments give is the mean negative log density of the rows under models of the others."""
    from scipy.stats import multivariate_normal

    tables = draw([60, 70, 80], 6, rho=0.9)
    grid = (0.5, 0.4, 0.3)
    run = FederatedSparseQDA(alphas=grid, choose="likelihood", screening=screening, **EXACT).run(
        federation_over(tables), seed=0
    )
    result = run.result
    assert result.choice == "likelihood" and result.judges == ("s0", "s1", "s2")
    assert result.screened == screening
    x, y, sites = rows(tables)
    wanted = np.zeros(len(grid))
    for name in tables:
        mine = sites == name
        for i, alpha in enumerate(grid):
            fitted = central(x[~mine], y[~mine], alpha=alpha)
            precision = fitted.precision_.dense()
            for k, level in enumerate(labels(2)):
                covariance = np.linalg.inv(precision[k]) * np.outer(fitted.scale_, fitted.scale_)
                density = multivariate_normal(fitted.means_[k], covariance)
                wanted[i] -= density.logpdf(x[mine & (y == level)]).sum()
    np.testing.assert_allclose(result.candidate_loss, wanted / len(x), rtol=1e-7)
    assert result.chosen == int(np.argmin(wanted))
    assert "density of each site's rows" in result.summary()


def test_densities_ask_the_sites_nothing() -> None:
    tables = draw([100, 100], 4)
    run = FederatedSparseQDA(n_alphas=5).run(federation_over(tables, "strict"), seed=0)
    assert run.result.choice == "likelihood"
    assert "judge" not in {line.step for line in run.transcript}
    assert np.isnan(run.result.cv_errors).all() and np.isfinite(run.result.candidate_loss).all()


def test_the_time_of_the_paths_is_foreseen_and_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without each of three sites a path, of twice a fold's steps, beside the one on all rows."""
    monkeypatch.setattr(sparse_qda_fit, "TINY", 0)
    monkeypatch.setattr(sparse_qda_fit, "eigen_seconds", lambda q: 60.0)
    tables, method = draw([40, 60, 50], 6), FederatedSparseQDA(n_alphas=4)
    x, y, _ = rows(tables)
    some = np.arange(len(x))
    gap = np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)
    data = SiteData(features=gap, feature_names=tuple(names(6)), rows=some, target=y.astype(str))
    steps = {n: sparse_qda_fit.FOLD_STEPS * 2 * n + sparse_qda_fit.FINAL_STEPS for n in (0, 1, 3)}
    told = {
        3: method.expected_seconds(data, 3),
        1: dataclasses.replace(method, choose="holdout").expected_seconds(data, 3),
        0: dataclasses.replace(method, alphas=(0.1, 0.05), alpha=0.05).expected_seconds(data, 3),
    }
    assert told[3] / told[1] == pytest.approx(steps[3] / steps[1])
    assert 0 < told[0] < told[1]
    one_class = dataclasses.replace(data, target=np.full(len(x), "a"))
    assert method.expected_seconds(one_class, 3) == 0.0
    live = Noted()
    with shown_by(live):
        method.run(federation_over(tables), seed=0)
    assert [text.split(":")[0] for text in live.said] == ["sparse QDA, 4 penalties, 3 sites"]
    assert ["penalties", 4, 4] in live.tasks.values()


def test_consent_lets_sites_count_errors() -> None:
    """Rounded to five rows, and the same for models that few rows tell apart."""
    tables = draw([150, 160, 170], 5)
    method = FederatedSparseQDA(n_alphas=8, choose="sites")
    result = method.run(federation_over(tables, "consortium"), seed=0).result
    assert result.choice == "sites" and result.judges == ("s0", "s1", "s2")
    assert (result.cv_wrong % 5 == 0).all()
    auto = FederatedSparseQDA(n_alphas=8).run(federation_over(tables, "consortium"), seed=0)
    assert auto.result.choice == "likelihood"
    assert "coarsely" in result.summary()


def test_held_out_rows_judge_the_end() -> None:
    tables = draw([300, 300, 300], 5)
    run = FederatedSparseQDA(n_alphas=4).run(federation_over(tables), seed=0)
    result = run.result
    assert result.n_held == 180 and result.judged == ("sparse-qda", "naive Bayes")
    np.testing.assert_allclose(
        result.errors, (result.site_held[:, None] * result.site_errors).sum(0)
    )
    assert result.errors[0] < result.errors[1]
    assert result.log_loss_gain[1] > 3 * result.log_loss_gain_se[1]
    # Rows that are held out are in no sum: the fit is that of the others.
    assert result.n_by_class.tolist() == [360, 360]


def test_a_site_that_alone_has_a_class_does_not_choose() -> None:
    tables = draw([90, 90, 90, 90], 4, n_classes=3)
    for name in ("s1", "s2", "s3"):
        tables[name] = tables[name][tables[name]["y"] != "c2"]
    run = FederatedSparseQDA(n_alphas=3).run(federation_over(tables, n_classes=3), seed=0)
    assert run.result.judges == ("s1", "s2", "s3")
    assert any("s0 does not take part in the choice" in note for note in run.notes)


# --------------------------------------------------------------------------- blocks


def sparse_tables(seed: int = 1, p: int = 40, sizes: Any = (80, 90, 100)) -> dict[str, Any]:
    return draw(list(sizes), p, seed=seed, shift=0.1, rho=0.9)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policy", ["simulation", "strict"])
def test_screened_fits_are_those_of_the_pooled_rows(seed: int, policy: str) -> None:
    """Down to the penalty that the blocks allow, in sites with fewer rows than columns a class."""
    tables = sparse_tables(seed)
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(screening=True, smallest=0.15, n_alphas=12, **EXACT).run(
        federation_over(tables, policy), seed=0
    )
    result = run.result
    assert result.screened and 1 <= result.n_questions <= 6
    smallest = float(result.candidates[-1])
    fitted = central(x, y, alpha=smallest)
    told = {int(j): i for i, block in enumerate(result.screened_blocks) for j in block}
    for block in fitted.blocks_:
        assert len({told.get(int(j), -1 - int(j)) for j in block}) == 1
    assert result.n_links[-1] == fitted.precision_.n_links > 0
    at_chosen = central(x, y, alpha=result.alpha)
    if not any("withheld the moments" in note for note in run.notes):
        same_fit(result, at_chosen, x, ALONG_A_PATH)


def test_auto_asks_only_where_rows_are_few() -> None:
    plenty = FederatedSparseQDA(alpha=0.2).run(federation_over(draw([60, 60], 6), "strict"), seed=0)
    assert not plenty.result.screened and plenty.result.n_questions == 0
    few = FederatedSparseQDA(alpha=0.6).run(federation_over(sparse_tables(), "strict"), seed=0)
    assert few.result.screened and few.result.n_questions == 1
    steps = {line.step for line in plenty.transcript}
    assert "links" not in steps and "moments" in steps


def test_a_penalty_whose_blocks_cannot_leave() -> None:
    tables = sparse_tables()
    for settings in ({"alpha": 0.01}, {"alphas": (0.02, 0.01)}):
        method = FederatedSparseQDA(screening=True, **settings)
        with pytest.raises(QuorumError, match="raise the smallest alpha"):
            method.run(federation_over(tables, "strict"), seed=0)
    run = FederatedSparseQDA(screening=True, smallest=0.01).run(
        federation_over(tables, "strict"), seed=0
    )
    assert run.result.candidates[-1] > 0.1
    assert any("The path ends at alpha" in note for note in run.notes)


def test_without_screening_too_few_rows_stop_the_run() -> None:
    with pytest.raises(QuorumError, match="twice as many rows"):
        FederatedSparseQDA(screening=False).run(federation_over(sparse_tables(), "strict"), seed=0)


def test_classes_of_too_few_rows_for_a_block_come_from_the_others() -> None:
    """Thirteen columns ask for 26 rows of a class: 24 are two too few."""
    tables = draw([48, 200, 220], 13)
    run = FederatedSparseQDA(alpha=0.1, screening=False, **EXACT).run(
        federation_over(tables, "strict"), seed=0
    )
    assert any("s0 withheld the moments of class c0, c1" in note for note in run.notes)
    big = {name: tables[name] for name in ("s1", "s2")}
    x, y, _ = rows(big)
    whole_y = rows(tables)[1]
    # Matrices are those of the larger sites, on the scale and with the weights of all.
    covariances = []
    for k in labels(2):
        deviations = x[y == k] - x[y == k].mean(axis=0)
        covariances.append(deviations.T @ deviations / len(deviations))
    from consilience.discriminant.kernels.joint_precision import fit_precisions

    scale = run.result.scale
    n = np.array([(whole_y == k).sum() for k in labels(2)], dtype=float)
    scaled = np.array(covariances) / np.outer(scale, scale)
    moments = in_one_block(n, scaled)
    wanted = fit_precisions(moments, 0.1 * n.sum(), tol=1e-13).dense()
    np.testing.assert_allclose(dense(run.result), wanted, rtol=1e-8, atol=1e-8)


# --------------------------------------------------------------------------- what gives way


def test_a_column_that_few_rows_have_takes_no_part() -> None:
    tables = draw([120, 120, 120], 4)
    for table in tables.values():
        table["x3"] = 0.0
    tables["s1"].loc[tables["s1"].index[:5], "x3"] = 3.0
    tables["s2"]["x3"] = np.random.default_rng(0).normal(size=120)
    run = FederatedSparseQDA(alpha=0.1).run(federation_over(tables, "strict"), seed=0)
    assert run.result.columns.tolist() == [0, 1, 2]
    assert any("left out: x3" in note for note in run.notes)
    predicted = run.site("s0").predictor.predict(tables["s0"][names(4)])
    assert np.isin(predicted, labels(2)).all()


def test_a_class_of_a_site_gives_way_where_it_withholds_much() -> None:
    """Six columns of s0's c1 are each ruled by one row: its rows go, the columns stay."""
    tables = draw([60, 300, 300], 6)
    at = np.flatnonzero(tables["s0"]["y"] == "c1")
    for j in range(6):
        tables["s0"].iloc[at[j], j] = 1e5
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation_over(tables, "strict"), seed=0)
    assert run.result.columns.tolist() == list(range(6))
    assert run.result.used.tolist() == [[True, False], [True, True], [True, True]]
    assert any("class c1 at site s0 are not in the moments" in r for r in run.result.remarks)
    assert set(run.notes) <= set(run.result.remarks) and run.further_notes == ()
    # every class count is known, so priors are the shares of all rows
    everybody = pd.concat(tables.values())["y"].value_counts(normalize=True).sort_index()
    np.testing.assert_allclose(run.result.priors, everybody)
    assert abs(run.result.n_by_class[1] / run.result.n_by_class.sum() - everybody["c1"]) > 0.02
    np.testing.assert_allclose(run.result.to_estimator().priors_, everybody)
    np.testing.assert_allclose(np.exp(run.site("s1").predictor.log_priors), everybody)
    rest = {**tables, "s0": tables["s0"][tables["s0"]["y"] == "c0"]}
    x, y, _ = rows(rest)
    same_fit(run.result, central(x, y, alpha=0.1, priors=everybody.to_numpy()), x)


def test_small_classes_count_as_empty() -> None:
    tables = draw([100, 100, 100], 4)
    first = tables["s0"]
    tables["s0"] = pd.concat([first[first["y"] == "c0"], first[first["y"] == "c1"].head(9)])
    run = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation_over(tables, "strict"), seed=0)
    assert run.result.n_by_site[0].tolist() == [50, 0]
    assert any("s0 has no rows, or too few to tell of, in class c1" in n for n in run.notes)


def test_a_class_that_nobody_can_tell() -> None:
    tables = {
        name: pd.concat([rows[rows["y"] != "c0"], rows[rows["y"] == "c0"].iloc[:5]])
        for name, rows in draw([60, 60], 3).items()
    }
    with pytest.raises(QuorumError, match="class 'c0'"):
        FederatedSparseQDA(alpha=0.1).run(federation_over(tables, "strict"), seed=0)


# --------------------------------------------------------------------------- absence


@pytest.mark.parametrize("step", ["links", "moments"])
def test_a_missing_site_leaves_penalties_that_are_proven(step: str) -> None:
    """The fit is that of the sites that are left, at penalties no smaller than they can prove."""
    tables = draw([150, 150, 150, 60], 12, shift=0.05, rho=0.9)
    method = FederatedSparseQDA(alphas=(0.6, 0.5, 0.4, 0.3, 0.25), screening=True, **EXACT)
    federation = dataclasses.replace(federation_over(tables), quorum=3)
    plain = method.run(federation, seed=0)
    round_ = next(line.round for line in plain.transcript if line.step == step)
    script = {(round_, "s3"): "absent"}
    run = method.run(
        dataclasses.replace(scripted(federation_over(tables), script), quorum=3), seed=0
    )
    result = run.result
    assert result.sites == ("s0", "s1", "s2")
    assert any("s3 was absent" in note for note in run.notes)
    x, y, _ = rows({name: tables[name] for name in result.sites})
    same_fit(result, central(x, y, alpha=result.alpha), x, ALONG_A_PATH)
    smallest = central(x, y, alpha=float(result.candidates[-1]))
    assert result.n_links[-1] == smallest.precision_.n_links


# --------------------------------------------------------------------------- results


def test_result_is_saved_and_read_again(tmp_path: Any) -> None:
    tables = draw([100, 110, 120], 5)
    run = FederatedSparseQDA(n_alphas=4).run(federation_over(tables), seed=0, out=tmp_path / "run")
    again = load_run(tmp_path / "run").result
    assert again.to_files() == run.result.to_files()
    assert again.summary() == run.result.summary()
    frame = again.to_frame()
    assert list(frame["alpha"]) == sorted(frame["alpha"], reverse=True)
    assert frame["chosen"].sum() == 1


def test_the_estimator_of_a_result() -> None:
    tables = draw([100, 110, 120], 5)
    x, y, _ = rows(tables)
    run = FederatedSparseQDA(alphas=(0.3, 0.1, 0.03), **EXACT).run(federation_over(tables), seed=0)
    made = run.result.to_estimator()
    assert isinstance(made, SparseQDA)
    frame = pd.concat(list(tables.values()))[names(5)]
    np.testing.assert_array_equal(made.predict(frame), run.result.predictor().predict(x))
    assert made.alpha_ == run.result.alpha
    assert made.classes_.tolist() == list(labels(2))
    assert len(made.interactions_.to_frame()) == run.result.n_links[run.result.chosen]
    assert made.score(frame, y) > 0.6


@pytest.mark.parametrize("standardize", ["pooled", "none"])
def test_the_estimator_takes_rows_in_their_own_units(standardize: Any) -> None:
    tables = draw([100, 110, 120], 5)
    for table in tables.values():
        table[names(5)] = 50.0 + 8.0 * table[names(5)]
    x, y, _ = rows(tables)
    federation = federation_over(tables, preparation=Preparation(standardize=standardize))
    made = FederatedSparseQDA(alpha=0.1, **EXACT).run(federation, seed=0).result.to_estimator()
    frame = pd.concat(list(tables.values()))[names(5)]
    prepared = (x - x.mean(axis=0)) / x.std(axis=0)
    wanted = central(x, y, alpha=0.1)
    np.testing.assert_allclose(made.predict_proba(frame), wanted.predict_proba(x), atol=1e-9)
    np.testing.assert_allclose(made.means_, wanted.means_, rtol=1e-10)
    np.testing.assert_allclose(made.scale_, wanted.scale_, rtol=1e-10)
    with pytest.raises(DataError, match="column x0, x1, x2, x3, x4: give rows in the units"):
        made.predict(1000.0 * frame)
    with pytest.raises(DataError, match="looks prepared already"):
        made.predict(pd.DataFrame(prepared, columns=names(5)))
    with pytest.raises(ValueError, match="feature names"):
        made.predict(frame[names(5)[::-1]])
    # single rows may be unusual; missing cells are filled as the preparation says
    assert len(made.predict(frame.iloc[:1] + 1000.0)) == 1
    if standardize == "pooled":
        gap, filled = frame.iloc[:3].copy(), frame.iloc[:3].copy()
        gap.iloc[0, 1], filled.iloc[0, 1] = np.nan, frame["x1"].mean()
        np.testing.assert_allclose(made.predict_proba(gap), made.predict_proba(filled), atol=1e-9)


def test_words_of_the_summary() -> None:
    tables = draw([100, 110, 120], 5)
    run = FederatedSparseQDA(n_alphas=6).run(federation_over(tables), seed=0)
    said = run.result.summary()
    assert "2 classes are told apart by 5 columns in 264 rows at 3 sites" in said
    assert "each site judged models of the others" in said
    assert "naive Bayes" in said and "strongest interaction is that of x" in said


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 2}, "alpha"),
        ({"alphas": (0.1, 0.1)}, "alphas"),
        ({"alphas": tuple(np.linspace(0.1, 0.9, 51))}, "alphas"),
        ({"n_alphas": 1}, "n_alphas"),
        ({"n_alphas": 51}, "n_alphas"),
        ({"smallest": 0}, "smallest"),
        ({"choose": "cv"}, "choose"),
        ({"ties": "none"}, "ties"),
        ({"screening": "yes"}, "screening"),
        ({"holdout": 0.6}, "holdout"),
        ({"choose": "holdout", "holdout": 0}, "holdout"),
        ({"max_block": 1}, "max_block"),
        ({"tol": 0}, "tol"),
        ({"priors": (0.5, 0.6)}, "priors"),
        ({"priors": (1.0, 0.0)}, "priors"),
    ],
)
def test_parameters_out_of_range(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        FederatedSparseQDA(**settings).validate()


def test_studies_that_do_not_go_together() -> None:
    tables = draw([60, 60], 3)
    method = FederatedSparseQDA(alpha=0.1)
    plain = federation_over(tables)
    no_levels = dataclasses.replace(plain, columns=Columns(features=names(3), target="y"))
    with pytest.raises(StudyError, match="declare the levels"):
        method.run(no_levels, seed=0)
    own = dataclasses.replace(plain, preparation=Preparation(standardize="site"))
    with pytest.raises(StudyError, match="on one scale"):
        method.run(own, seed=0)
    with pytest.raises(StudyError, match="of which two or more are needed"):
        FederatedSparseQDA(choose="sites").run(federation_over(tables), seed=0)
    with pytest.raises(ParameterError, match="2 shares"):
        FederatedSparseQDA(alpha=0.1, priors=(0.2, 0.3, 0.5)).run(plain, seed=0)


def test_nobody_can_choose() -> None:
    tables = draw([60, 60, 60], 3)
    with pytest.raises(QuorumError, match="give alpha"):
        FederatedSparseQDA(choose="sites").run(federation_over(tables, "strict"), seed=0)
    with pytest.raises(QuorumError, match="give alpha"):
        FederatedSparseQDA(choose="holdout").run(federation_over(tables, "strict"), seed=0)
    apart = {
        "s0": tables["s0"][tables["s0"]["y"] == "c0"],
        "s1": tables["s1"][tables["s1"]["y"] == "c1"],
    }
    with pytest.raises(QuorumError, match="no site can be left out"):
        FederatedSparseQDA().run(federation_over(apart, "strict"), seed=0)
    run = FederatedSparseQDA(alpha=0.2).run(federation_over(apart, "strict"), seed=0)
    assert run.result.fixed and "Alpha was given." in run.result.summary()


def test_missing_values_are_refused_by_the_preparation() -> None:
    tables = draw([60, 60], 3)
    tables["s0"].loc[3:12, "x0"] = np.nan
    with pytest.raises(QuorumError, match="s0"):
        FederatedSparseQDA(alpha=0.1).run(
            Federation.local(
                tables,
                columns=Columns(features=names(3), target="y", levels={"y": labels(2)}),
                policy=granted(Policy()),
            ),
            seed=0,
        )


def test_a_thousand_columns() -> None:
    """Nothing of the size of a matrix of all columns crosses, and the linked columns are found."""
    tables = draw([300, 300, 300], 1000, seed=1, shift=0.05, rho=0.9)
    run = FederatedSparseQDA(n_alphas=4).run(federation_over(tables, "strict"), seed=0)
    result = run.result
    assert [block.tolist() for block in result.blocks] == [[0, 1, 2, 3]]
    assert {tuple(pair) for pair in result.pairs.tolist()} == {
        (i, j) for i in range(4) for j in range(i + 1, 4)
    }
    sent = sum(line.bytes for line in run.transcript if line.direction == "from-site")
    assert 10_000 < sent < 1000**2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[2.0, 0.5, 1.0], [2.0, 0.5, 1.0]], ""),
        ([[2.0, np.nan, 1.0], [np.nan] * 3], ""),
        ([[2.0, 0.5, 1.0], [2.0, 0.5, -1.0]], "no rows have"),
        ([[2.0, 1.5, 1.0], [2.0, 0.5, 1.0]], "no rows have"),
        ([[2.0, 0.5, 1.0], [2.0, 0.5, 1.1]], "other rows than the spreads"),
        ([[2.0, 0.5], [2.0, 0.5]], "not what was declared"),
    ],
)
def test_products_that_rows_of_the_spreads_have_not(values: Any, words: str) -> None:
    request = Moments(
        settings=Settings(labels(2), 0.2),
        features=np.array([True, False, True]),
        classes=np.ones(2, dtype=bool),
        labels=relayed(np.ones(2, dtype=np.int64), Disclosure.AGGREGATE),
    )
    squares = np.array([[2.0, 9.0, 1.0], [2.0, 9.0, 1.0]])
    known = {"K": 2, "squares": squares, "sizes": 2 * squares}
    found = refusal(Products, {"products": np.array(values)}, request, known)
    assert words in found and bool(words) == bool(found)


def test_the_gap_of_a_path_is_the_largest_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = [SimpleNamespace(relative_gap=gap) for gap in (1e-9, 3e-5, 2e-7)]
    monkeypatch.setattr(sparse_qda_fit, "precision_path", lambda *_, stop: iter(fits))
    method: Any = FederatedSparseQDA()
    nothing: Any = None
    choice = federated_sparse_qda.Choice(
        method, nothing, "", nothing, nothing, nothing, np.ones(3), nothing
    )
    models, gap = choice._path(nothing, lambda prepared, precision: precision)
    assert gap == 3e-5 and models == fits

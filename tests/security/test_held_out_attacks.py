"""What a coordinator may try to learn of one row from errors of held-out entries, with controls."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from consilience import Columns, Federation, Preparation
from consilience.clustering.protocol import EnsembleClustering
from consilience.completion.one_table.cluster_count import ClusterCountStudy
from consilience.completion.one_table.matrix_completion import MatrixCompletionStudy
from consilience.exceptions import QuorumError
from consilience.testing.fakes import members, with_fixed_secrets
from tests.granted import granted

N, P = 120, 5
NAMES = tuple(f"x{j}" for j in range(P))


def table(outlying: float, seed: int = 0) -> np.ndarray:
    """Rows without structure, one of which lies far from the others."""
    x = np.random.default_rng(seed).normal(size=(N, P))
    x[17] = outlying
    return x


def run_of(
    x: np.ndarray,
    policy: str,
    method: Any,
    *,
    seed: int = 0,
    sites: int = 1,
    preparation: Preparation | None = None,
) -> Any:
    given = dict(zip(NAMES, x.T, strict=True))
    tables = {f"clinic-{i}": given for i in range(sites)}
    federation = Federation.local(
        tables,
        columns=Columns(features=NAMES),
        preparation=preparation or Preparation(),
        policy=granted(policy),
    )
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return method.run(federation, seed=seed).result


def size_of_the_row(fold_errors: np.ndarray) -> float:
    """The attack: what is left of all folds' sums over one class, once a row's share is taken off.

    Under one class entries are predicted by means of columns, so other rows add about 1 an entry.
    """
    return float(np.sqrt(max(fold_errors[:, 0].sum() - (N - 1) * P, 0.0) / P))


def ladder(method: str) -> Any:
    if method == "cluster-count":
        return ClusterCountStudy(n_clusters=(1, 2), n_init=2, n_splits=20)
    return MatrixCompletionStudy(model="hard", grid=(0, 1), n_splits=20, holdout=0.0)


@pytest.mark.parametrize("method", ["cluster-count", "matrix-completion"])
def test_the_size_of_an_outlying_row_follows_only_where_rows_are_not_protected(method: str) -> None:
    for size in (40.0, 300.0):
        open_one = run_of(table(size), "simulation", ladder(method))
        # The control: where nothing is protected the attack finds the row's size.
        assert size_of_the_row(open_one.fold_errors) == pytest.approx(size, rel=0.1)
        guarded = run_of(table(size), "strict", ladder(method))
        assert len(guarded.fold_errors) == 0 and guarded.curve() is None
    # Rows that make less than half of the errors are in the sums, with all the others.
    assert len(run_of(table(1.0), "strict", ladder(method)).fold_errors) > 0


def test_over_sites_such_a_site_says_nothing() -> None:
    asked = EnsembleClustering(n_clusters="cv", n_init=2, max_clusters=3, stability_pairs=0)
    open_one = run_of(table(300.0), "simulation", asked, sites=2)
    found = size_of_the_row(open_one.cv_site_errors["clinic-0"][None])
    assert found == pytest.approx(300.0, rel=0.1)
    with pytest.raises(QuorumError, match="no site could judge"):
        run_of(table(300.0), "strict", asked, sites=2)


def test_asking_again_under_other_seeds_draws_no_other_folds() -> None:
    """Sums over other draws of the same cells would be further equations in them."""
    x = table(0.0)
    method = ClusterCountStudy(n_clusters=(1, 2, 3), n_init=2)
    guarded = [run_of(x, "strict", method, seed=seed).fold_errors for seed in range(4)]
    assert all(np.array_equal(guarded[0], one) for one in guarded)
    # The control: where nothing is protected every seed draws anew.
    drawn = [run_of(x, "simulation", method, seed=seed).fold_errors for seed in range(4)]
    assert not any(np.array_equal(drawn[0], one) for one in drawn[1:])


def test_other_candidates_do_not_cut_the_folds_otherwise() -> None:
    """Lines of a longer list are unions of those of a shorter one: nothing to subtract."""
    x = table(3.0)
    lines = [
        run_of(x, "strict", ClusterCountStudy(n_clusters=range(1, k + 1), n_init=2)).fold_errors
        for k in (1, 4, 8, 20)
    ]
    assert len({len(one) for one in lines}) > 1
    for fine, coarse in itertools.pairwise(lines):
        sums = fine[:, 0]
        for value in coarse[:, 0]:
            ends = np.cumsum(sums)
            place = int(np.argmin(np.abs(ends - value)))
            assert ends[place] == pytest.approx(value)
            sums = sums[place + 1 :]
        assert not len(sums)


def test_two_last_parts_of_nearly_one_size_do_not_differ_by_one_cell() -> None:
    """At rank 0 without a centre the sums of all folds are of the squares of the other cells."""
    x = table(1.0)
    cells = x.size

    def left(share: float, policy: str) -> float:
        method = MatrixCompletionStudy(
            model="hard", grid=(0, 1), center="none", n_splits=2, holdout=share
        )
        return float(run_of(x, policy, method).fold_errors[:, 0].sum())

    def nearest_cell(policy: str) -> float:
        told = left(120 / cells, policy) - left(121 / cells, policy)
        return float(np.abs(x**2 - told).min())

    # The control: one part is in the other, and the square of a single cell is told to all digits.
    assert nearest_cell("simulation") < 1e-9
    # Else some 200 cells are in one part alone; no cell is so near to their sums by accident (the
    # differences of sums spread by sqrt(2 * 200), and 600 squares lie between 0 and 12).
    assert nearest_cell("strict") > 1e-9


@pytest.mark.parametrize("model", ["soft", "soft-unshrunk", "hard", "ppca"])
def test_what_tells_of_sizes_stays_where_one_row_makes_most_of_them(model: str) -> None:
    """The largest singular value, and the penalty at which a grid begins, are nearly its size."""
    told = ("singular_values", "candidates") if model == "soft" else ("singular_values",)
    grid = "auto" if model == "soft" else (1, 2)
    asked = MatrixCompletionStudy(model=model, grid=grid, holdout=0.0)
    size = 300.0 * np.sqrt(P)
    open_one, guarded = (run_of(table(300.0), policy, asked) for policy in ("simulation", "strict"))
    for name in told:
        # The control: where nothing is protected the attack finds the row's size.
        assert getattr(open_one, name)[0] == pytest.approx(size, rel=0.15), name
        assert not len(getattr(guarded, name)), name
    assert np.isnan(guarded.alpha) and "nan" not in guarded.summary()
    # Where no row does, all of it leaves.
    usual = run_of(table(1.0), "strict", asked)
    assert all(len(getattr(usual, name)) for name in told if usual.rank)


def test_criteria_that_know_sizes_stay_too() -> None:
    asked = ClusterCountStudy(n_clusters=(1, 2, 3), n_init=2)
    assert len(run_of(table(300.0), "simulation", asked).criteria_curves)
    guarded = run_of(table(300.0), "strict", asked)
    assert not guarded.criteria_curves and guarded.criteria
    assert len(run_of(table(1.0), "strict", asked).criteria_curves)


def test_whether_a_table_looks_like_ratings_is_no_matter_of_few_rows() -> None:
    """The attack: columns of 25 values, where one more value tells of the row that has it."""
    rng = np.random.default_rng(2)
    x = np.where(rng.random((N, P)) < 0.6, np.nan, rng.integers(1, 6, (N, P)).astype(float))
    x[:70, 0], x[:70, 1] = np.arange(70) % 5 + 1, np.nan
    method = MatrixCompletionStudy(model="hard", grid=(0, 1), n_splits=2)

    def told(odd: int, policy: str, scaled: Any = "none", first: float = 100.0) -> str:
        given = x.copy()
        given[:odd, 0] = first + np.arange(odd)  # values of their own
        gaps = Preparation(missing="keep", standardize=scaled)
        return str(run_of(given, policy, method, preparation=gaps).center)

    assert [told(odd, "strict") for odd in (0, 1, 9)] == ["rows-and-columns"] * 3
    assert told(10, "strict") == "columns"
    # The control: where rows are not protected 21 values more are told from 20, which is one row.
    assert [told(odd, "simulation") for odd in (20, 21)] == ["rows-and-columns", "columns"]
    # One row moves centre and scale so far that the values of others come back rounded.
    for odd in (0, 1):
        for scaled in ("site", "pooled"):
            assert told(odd, "strict", scaled, 1e9) == "rows-and-columns"


GAP_STUDY = MatrixCompletionStudy(model="hard", grid=(0,), center="none", holdout=0.0)


def gap_federation(policy: str, missing: Any = "keep") -> Federation:
    """A table with one gap, of which one run keeps the row and another drops it."""
    x = table(1.0)
    x[17, 4] = np.nan
    given = dict(zip(NAMES, x.T, strict=True))
    return Federation.local(
        {"clinic-0": given},
        columns=Columns(features=NAMES),
        preparation=Preparation(missing=missing),
        policy=granted(policy),
    )


def kept_or_dropped(policy: str, missing: Any) -> Any:
    return GAP_STUDY.run(gap_federation(policy, missing), seed=0).result


def test_a_dropped_row_is_not_the_difference_of_two_runs() -> None:
    """Under rank 0 and no centre the error of an entry is its square."""
    kept = kept_or_dropped("simulation", "keep")
    dropped = kept_or_dropped("simulation", "complete-rows")
    # The control: both runs together tell the squares of the row that one of them left out.
    assert kept.fold_errors.sum() - dropped.fold_errors.sum() == pytest.approx(4 * 1.0**2)
    for missing in ("keep", "complete-rows"):
        assert kept_or_dropped("strict", missing).n_observed > 0
    federation = gap_federation("strict")
    runs = [
        GAP_STUDY.run(
            dataclasses.replace(federation, preparation=Preparation(missing=missing)), seed=0
        ).result
        for missing in ("keep", "complete-rows")
    ]
    # Rows that are whole have as many entries as there are columns.
    assert runs[0].n_observed - runs[1].n_observed >= 10 * len(NAMES) - 1

"""Small slices of the replications of held-out entries: the same code, fewer tables.

The tables themselves, with their Monte Carlo errors, are in
``replications/unsupervised_selection``. Bounds here are wide enough for a few tables and still fail
where folds, fits or the choice among them are wrong.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.completion.kernels.soft_impute import alpha_max, soft_path
from consilience.datasets.simulate_matrices import simulate_low_rank
from consilience.numerics.entries import Entries, centre_of
from consilience.numerics.entry_folds import entry_folds
from consilience.numerics.random import stream
from replications.unsupervised_selection.clusters.run import OBSERVED
from replications.unsupervised_selection.clusters.run import one as clusters
from replications.unsupervised_selection.rank.run import LINES, N_ALPHAS, SMALLEST
from replications.unsupervised_selection.rank.run import one as rank
from replications.unsupervised_selection.real.run import GAUGE, jester, ratings
from replications.unsupervised_selection.robustness.run import one as robustness
from replications.unsupervised_selection.stopping.run import one as stopping
from tests.stored_figures import check_stored_figures

pytestmark = pytest.mark.replication
ROOT = Path(__file__).parents[2] / "replications" / "unsupervised_selection"
TABLES = sorted(path.parent.name for path in ROOT.glob("*/expected.csv"))
SEED = 1000
Data = Callable[[str], Path]


def test_every_table_has_bounds() -> None:
    assert TABLES == [
        "assumptions",
        "clusters",
        "rank",
        "real",
        "robustness",
        "standard_errors",
        "stopping",
    ]


@pytest.mark.parametrize("table", TABLES)
def test_stored_figures_are_those_expected(table: str) -> None:
    check_stored_figures(ROOT / table)


def test_the_table_of_stops_is_of_the_same_tables() -> None:
    """Its first rows are those of HARD in the table of ranks."""
    stored = [
        {
            row["line"]: (row["off"], row["off_se"], row["true_rank"], row["best"])
            for row in csv.DictReader((ROOT / table / "result.csv").open(encoding="utf-8"))
            if row["model"] == model
        }
        for table, model in (("rank", "HARD"), ("stopping", "stops at .003"))
    ]
    assert stored[0] == stored[1]
    assert len(stored[0]) == len(LINES)


def test_fits_that_stop_later_choose_too_low_a_rank_in_a_few_tables() -> None:
    """Two of the three tables behind the mean that is that of the source."""
    for seed in (15, 19):
        found = stopping("gaussian factors, coloured noise", seed)
        assert found["stops at .003"]["off"] == 0.0
        assert found["stops at .001"]["off"] <= -2.0


def test_the_rank_is_found_where_factors_are_dense_and_noise_is_white() -> None:
    """All hundred tables behind the tracked figure give rank 6."""
    for seed in range(SEED, SEED + 4):
        found = rank("gaussian factors, white noise", seed)
        for model in ("HARD", "SOFT+"):
            assert found[model]["hit"] == 1.0, (seed, model)
            assert found[model]["off"] == 0.0, (seed, model)


def test_sparse_factors_cost_truncation_more_than_refitting() -> None:
    """Eight tables: standard deviations of 2 and .5 each, so that .7 and .2 remain of means."""
    sets = [rank("sparse factors, white noise", SEED + i) for i in range(8)]
    hard, soft = (np.mean([found[model]["off"] for found in sets]) for model in ("HARD", "SOFT+"))
    assert abs(soft) < 0.8
    assert hard < soft + 0.2
    exact, printed = (
        np.mean([abs(found[f"one step, {way}"]["off"]) for found in sets])
        for way in ("exact", "as printed")
    )
    # the slip of the source's formula acts as a penalty
    assert printed < exact


def test_noise_whose_variance_differs_by_row_and_column_chooses_too_many() -> None:
    """Coloured noise: eight tables, each off by one or two on average."""
    off = [rank("gaussian factors, coloured noise", SEED + i)["SOFT+"]["off"] for i in range(8)]
    assert np.mean(off) > 0.2


def test_entries_that_are_missing_from_the_start() -> None:
    found = [robustness("60 % observed, gaussian factors", SEED + i) for i in range(3)]
    assert all(abs(figures["SOFT+"]["off"]) <= 1 for figures in found)
    assert all("one step, exact" not in figures for figures in found)


@pytest.mark.parametrize("design", ["line", "heavy"])
def test_number_of_clusters(design: str) -> None:
    """Ten tables; in the tracked figures nearly every one has five clusters."""
    found = [clusters(design, SEED + i) for i in range(10)]  # type: ignore[arg-type]
    chosen = np.array([figures[OBSERVED] for figures in found])
    assert (chosen == 5).mean() >= 0.8
    assert abs(chosen.mean() - 5) <= 0.3
    for criterion in (OBSERVED, "k-POD", "calinski-harabasz"):
        assert all(figures[criterion] > 1 for figures in found), criterion


def test_ratings_of_jokes(data_dir: Data) -> None:
    data_dir("matrix")
    found = jester(SEED)
    assert found["SOFT"]["rmse"] == pytest.approx(4.0, abs=0.05)
    assert found["row + column means"]["above"] >= 0.28
    assert found["truncated SVD of the filled matrix"]["above"] >= 0.02
    assert found["SOFT"]["gap"] <= 1e-6
    assert found["SOFT"]["at_edge"] == 0.0


def decompositions(entries: Entries, n_alphas: int, smallest: float, tol: float) -> tuple[int, int]:
    """Singular value decompositions of a warm path, and of a fit from zero for each penalty."""
    alphas = np.geomspace(1.0, smallest, n_alphas) * alpha_max(entries)
    cold = sum(next(soft_path(entries, [alpha], tol=tol)).n_svd for alpha in alphas)
    return sum(fit.n_svd for fit in soft_path(entries, alphas, tol=tol)), cold


@pytest.mark.parametrize(("tol", "single"), [(1e-4, 0.65), (1e-5, 0.75)])
def test_warm_paths_of_the_tables_take_65_percent_of_the_decompositions_of_cold_fits(
    tol: float, single: float
) -> None:
    """All six designs, a table and a fold of each: together, and at the tolerance of folds each."""
    counts = []
    for factors, noise in LINES.values():
        rng = stream(SEED, "rank", factors, noise)
        entries = Entries.of(simulate_low_rank(rng=rng, factors=factors, noise=noise).x)
        train = entries.take(entry_folds(entries, 5, stream(SEED, "folds")) != 0)
        counts.append(decompositions(train, N_ALPHAS, SMALLEST, tol))
    warm, cold = np.array(counts).T
    assert warm.sum() <= 0.65 * cold.sum()
    assert (warm <= single * cold).all()


def test_a_warm_path_of_the_jokes_takes_65_percent_too(data_dir: Data) -> None:
    data_dir("matrix")
    entries = ratings()
    train = entries.take(entry_folds(entries, 5, stream(SEED, "folds")) != 0)
    rest = centre_of(train, "rows-and-columns").removed(train)
    warm, cold = decompositions(rest, 9, 0.1, 1e-4)
    assert warm <= 0.65 * cold


def test_ten_jokes_tell_of_a_new_user(data_dir: Data) -> None:
    """Nearly everybody rated them; half of the jokes only by fewer than nine in ten."""
    data_dir("matrix")
    shares = np.isfinite(ratings().dense()).mean(axis=0)
    assert shares[GAUGE].min() > 0.999 and np.median(shares) < 0.9

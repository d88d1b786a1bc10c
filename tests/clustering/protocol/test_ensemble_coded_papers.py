"""Small slices of the replications on sequences and categories: the same code on few data sets.

The tables themselves, with their Monte Carlo errors, are in ``replications/ensemble_clustering``.
Bounds here are wide enough for few data sets and still fail where the classes are not found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import EnsembleClustering, Policy
from consilience.clustering.estimators.local_models import local_model_from_arrays
from consilience.numerics.two_way_tables import adjusted_rand_index
from replications.ensemble_clustering.categories.run import one as categories
from replications.ensemble_clustering.categories.run import simulated as simulated_categories
from replications.ensemble_clustering.coded_sites import (
    CodedSites,
    final_classes,
    gaps,
    ratio_and_error,
)
from replications.ensemble_clustering.markov.run import K, one, simulated
from replications.ensemble_clustering.markov_votes.run import one as votes
from tests.granted import granted
from tests.protocol.own_lists import with_own_lists
from tests.stored_figures import check_stored_figures

TABLES = Path(__file__).parents[3] / "replications" / "ensemble_clustering"


@pytest.mark.parametrize("table", ["markov", "markov_votes", "markov_mvad", "categories"])
def test_stored_figures_are_those_expected(table: str) -> None:
    check_stored_figures(TABLES / table)


def test_gaps_are_frobenius_differences_of_counted_steps() -> None:
    """Two sites, two classes by hand; rows of few records are left out."""
    kept, moved = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 0, 1])
    first = np.repeat([kept, moved], [20, 20], axis=0)
    second = np.repeat([kept, moved, kept], [20, 17, 3], axis=0)
    sites = CodedSites("markov-mixture", (2,), (first, second))
    label = np.repeat([0, 1], [20, 20])
    between, own = gaps(sites, (label, label), (label, label), 2)
    # class 2: no step stays at the first site; 6 of 60 and 6 of 40 do at the second
    expected = np.sqrt(2 * 0.1**2 + 2 * 0.15**2)
    assert between == own == pytest.approx(expected / 2)
    small = np.repeat([0, 1], [9, 31])
    shared, _ = gaps(sites, (small, label), (small, label), 2)
    # class 1 is not known at the first site; class 2 has 11 + 20 of its own there
    assert shared == pytest.approx(np.hypot(22 / 93 - 0.1, 22 / 62 - 0.15) * np.sqrt(2))


def test_error_of_a_ratio_of_means() -> None:
    """Jackknife against the delta method, which it approaches in many draws."""
    rng = np.random.default_rng(0)
    below = rng.gamma(50, 1, size=4000)
    above = 0.5 * below + rng.normal(size=4000)
    ratio, error = ratio_and_error(above, below)
    assert ratio == pytest.approx(0.5, abs=0.002)  # error .0003
    assert error == pytest.approx(1 / 50 / np.sqrt(4000), rel=0.05)


# ------------------------------------------------------------------------------ slices of tables


@pytest.mark.replication
@pytest.mark.parametrize("shares", ["equal", "by site"])
def test_long_sequences_are_told_as_well_as_by_the_true_parameters(shares: str) -> None:
    found = [one("20-40", 1.0, shares, seed) for seed in range(2)]
    over = np.mean([f["ensemble"] - f["oracle"] for f in found])
    assert over >= (-0.02 if shares == "equal" else -0.1)
    assert all(f["oracle"] > 0.8 for f in found)


@pytest.mark.replication
def test_sites_are_closer_in_shared_classes_where_sequences_are_short() -> None:
    found = [one("4-16", 3.0, "by site", seed) for seed in range(3)]
    assert np.mean([f["gap_ensemble"] for f in found]) < np.mean([f["gap_local"] for f in found])


@pytest.mark.replication
def test_votes_on_long_sequences() -> None:
    assert votes("20-40", 1.0, "equal", 0)["chosen"] == K


@pytest.mark.replication
def test_categories_at_sites_of_many_rows() -> None:
    found = [categories("500-1500", "equal", 1, seed) for seed in range(3)]
    assert np.mean([f["ensemble"] - f["oracle"] for f in found]) > -0.1


@pytest.mark.replication
def test_regions_of_mvad(data_dir: Callable[[str], Path]) -> None:
    """BIC says one class everywhere; three classes differ less by region than those found alone."""
    folder = data_dir("sequences")
    from replications.ensemble_clustering.markov_mvad import run as mvad

    tables, months = mvad.regions(folder)
    sites = mvad.coded(tables)
    assert sum(len(rows) for rows in sites.codes) == 712
    found = mvad.one(sites, tables, months, 0)
    assert found["gap_over_local_told"] < 1
    assert found["site_share_over_local"] <= 0.5
    chosen = mvad.federated(tables, months, 0, "vote").result
    assert set(chosen.votes.values()) == {1}


@pytest.mark.replication
@pytest.mark.parametrize("kind", ["markov-mixture", "latent-class"])
def test_the_replications_compute_what_the_method_does(kind: str) -> None:
    """`coded_sites.final_classes` on arrays and `EnsembleClustering` over sites: same classes."""
    if kind == "markov-mixture":
        sites, drawn = simulated("20-40", 1.0, "equal", 0, sizes=(300, 400))
        names = [f"t{t}" for t in range(drawn.wide.shape[1])]
    else:
        sites = simulated_categories("100-300", "equal", 0)
        names = [f"q{j}" for j in range(len(sites.sizes))]
    k = 4 if kind == "markov-mixture" else 3
    run = _federated(sites, names, k)
    models: Any = [local_model_from_arrays(m) for m in run.result.models]
    found = final_classes(sites, models, run.result.owners, k, seed=1)
    by_method = [np.asarray(run.site(f"s{m}").labels) for m in range(len(sites.codes))]
    assert adjusted_rand_index(np.concatenate(by_method), np.concatenate(found)) == 1.0


def _federated(sites: CodedSites, names: list[str], k: int) -> Any:
    import pandas as pd

    from consilience import Columns, Federation, Preparation

    letters = np.array([*"abcdefgh", None], dtype=object)
    tables = {f"s{m}": pd.DataFrame(letters[x], columns=names) for m, x in enumerate(sites.codes)}
    if sites.kind == "markov-mixture":
        levels = {names[0]: tuple("abcdefgh"[: sites.sizes[0]])}
        columns = Columns(sequence=tuple(names), levels=levels)
        preparation = Preparation(missing="keep")
    else:
        levels = {n: tuple("abcdefgh"[:s]) for n, s in zip(names, sites.sizes, strict=True)}
        columns = Columns(features=tuple(names), levels=levels)
        preparation = Preparation(missing="keep", categorical="onehot")
    policy = Policy(min_records=10)
    federation = Federation.local(
        tables, columns=columns, preparation=preparation, policy=granted(policy)
    )
    if sites.kind == "latent-class":  # else levels that few rows of a site have are not there
        federation = with_own_lists(federation, tables, policy)
    method = EnsembleClustering(n_clusters=k, model=sites.kind, stability_pairs=0)
    return method.run(federation, seed=1)

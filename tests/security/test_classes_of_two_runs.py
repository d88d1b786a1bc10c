"""Class means of ensembles over several runs: no difference of them is about few rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, EnsembleClustering, Federation
from consilience.clustering.protocol import site as at_site
from consilience.clustering.protocol.messages import AllModels, FitRequest, Map
from consilience.clustering.protocol.site import ClassHistory
from consilience.testing.fakes import members
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.security.test_ensemble_repeated_questions import SETTINGS, forgetful
from tests.security.test_federated_pca_attacks import Villain

FEATURES = ("age", "lab", "u", "v")
TARGET = "y"


def table_of(seed: int, n: int = 150) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(n, 4)) @ (np.eye(4) + 0.3), columns=list(FEATURES))
    table["age"] = (50 + 12 * table["age"]).round(1)
    return table.assign(y=rng.normal(size=n))


def site_of(table: pd.DataFrame) -> Any:
    columns = Columns(features=FEATURES, target=TARGET)
    return members(Federation.local({"s": table}, columns=columns, policy=GRANTED))["s"]


def opened(site: Any, run: str, features: Any = FEATURES) -> Villain:
    rule = {"missing": "complete-rows"}
    return Villain(site, run, features, method="ensemble-clustering", target=TARGET, **rule)


def her_place(known: Any, p: int = 4) -> dict[str, Any]:
    """A mixture with a class of those who have two known values, and one of all others."""
    means = np.zeros((2, p))
    means[:, :2] = [known, np.add(known, (1e-9, 0.0))]
    tight, wide = np.full(p, 1e6), np.full(p, 1e6)
    tight[:2] = 0.05**2, 0.005**2
    shares, kind = np.array([0.5, 0.5]), np.array([0])
    spreads = np.stack([tight, wide])
    return {
        "means": means,
        "covariances": spreads,
        "proportions": shares,
        "covariance_type": kind,
    }


def told(villain: Villain, models: Any, features: Any) -> np.ndarray:
    """Class means of the features and the target under made-up models and a made-up map."""
    sent = relayed((models,), Disclosure.MODEL)
    owners = (tuple("xz"[: len(models)]),)
    villain.ask("count", AllModels(settings=SETTINGS, models=sent, owners=owners))
    space, centres = (relayed((x,), Disclosure.MODEL) for x in (features, np.eye(2)))
    none = relayed((), Disclosure.MODEL)
    profile = villain.ask("label", Map(features=space, centres=centres, fewer=none))
    return np.c_[profile.means.value, profile.target_means.value]


def halves_and_her(site: Any, run: str, known: Any, to: int, cut: Any = None) -> np.ndarray:
    """Two halves of the table, and her put into one of them."""
    means = np.array([[20.0, 5.0, 0, 0], [80.0, 5.0, 0, 0]]) if cut is None else cut
    features = np.zeros((4, 2))
    features[0, 0] = features[1, 1] = 1
    features[2, to] = 10
    return told(opened(site, run), ({"means": means}, her_place(known)), features)


def nearest(first: np.ndarray, second: np.ndarray, row: np.ndarray) -> float:
    """How near n * mean - (n - 1) * mean comes to a row, whatever n is."""
    sizes = np.arange(2, 151)[:, None]
    found = [sizes * a - (sizes - 1) * b for a, b in ((first, second), (second, first))]
    return float(np.nanmin([np.abs(f - row).max(axis=1).min() for f in found]))


@pytest.mark.parametrize("seed", range(3))
def test_two_runs_with_other_maps_do_not_tell_the_row_between_them(seed: int) -> None:
    """The attack found the row, all digits, in 30 of 30 tables."""

    def distance() -> float:
        site = site_of(table)
        a, b = (halves_and_her(site, f"r{to}", row[:2], to) for to in (0, 1))
        return nearest(a[0], b[0], row)

    table = table_of(seed)
    row = table.iloc[17].to_numpy(float)
    with forgetful():
        assert distance() < 1e-9  # the control
    assert distance() > 0.01


def test_a_run_repeats_classes_that_differ_by_one_row() -> None:
    site, row = site_of(table_of(0)), table_of(0).iloc[17].to_numpy(float)
    first, second, other = (halves_and_her(site, f"r{i}", row[:2], i % 2) for i in range(3))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, other)


def test_own_classes_of_a_run_count_as_told() -> None:
    """The attack: own class means of one run, and in the next the same classes without her."""
    table = table_of(1)
    row = table.iloc[17].to_numpy(float)

    def distance() -> float:
        site = site_of(table)
        own = opened(site, "r0").ask("fit", FitRequest(settings=SETTINGS))
        means = own.models.value[0][0]["means"]
        mine = int(((row[:4] - means) ** 2).sum(axis=1).argmin())
        without = halves_and_her(site, "r1", row[:2], 1 - mine, means)
        return nearest(means[mine], without[mine, :4], row[:4])

    with forgetful():
        assert distance() < 1e-9  # the control
    assert distance() > 0.01


def test_own_classes_that_nearly_are_earlier_ones_are_told_as_these() -> None:
    """The other way round: her class is told first, then the site finds its own."""
    table = table_of(1)
    settings = FitRequest(settings=SETTINGS)
    own = opened(site_of(table), "r0").ask("fit", settings).models.value[0][0]["means"]
    row = table.iloc[17].to_numpy(float)
    mine = int(((row[:4] - own) ** 2).sum(axis=1).argmin())
    site = site_of(table)
    without = halves_and_her(site, "r0", row[:2], 1 - mine, own)
    again = opened(site, "r1").ask("fit", settings).models.value[0][0]["means"]
    assert nearest(own[mine], without[mine, :4], row[:4]) < 1e-9  # the control
    assert np.abs(again - own).max() > 0
    np.testing.assert_allclose(again, without[:, :4], rtol=1e-12)


def test_a_repeated_study_tells_the_same() -> None:
    """Honest runs: the same classes again, and another number of classes after them."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    rows = {s: centres[np.arange(120) % 3] + rng.normal(size=(120, 2)) for s in "ab"}
    tables = {s: pd.DataFrame(x, columns=["u", "v"]) for s, x in rows.items()}
    federation = Federation.local(tables, columns=Columns(features=("u", "v")), policy=GRANTED)
    method = EnsembleClustering(n_clusters=3, stability_pairs=0)
    results = [method.run(federation, seed=seed).result for seed in (1, 1, 2)]
    for one in results[1:]:
        order = [np.lexsort(r.class_means.T[::-1]) for r in (results[0], one)]
        np.testing.assert_allclose(
            results[0].class_means[order[0]], one.class_means[order[1]], rtol=1e-9
        )
    two = EnsembleClustering(n_clusters=2, stability_pairs=0).run(federation, seed=1).result
    assert np.isfinite(two.class_means).all()


@pytest.mark.parametrize("seed", range(20))
def test_released_classes_of_all_runs_part_the_rows_into_many_each(seed: int) -> None:
    """Whatever is asked, and though some rows are missing in some runs.

    Rows that are in the same released classes are told together by every sum of differences.
    """
    rng = np.random.default_rng(seed)
    n, least = 200, 10
    marks = rng.permutation(1 << 20)[:n].astype(np.uint64)
    history, released = ClassHistory(), []
    labels = rng.integers(0, 3, size=n)
    for _ in range(8):
        moved = rng.random(n) < rng.choice([0.01, 0.05, 0.5])
        labels = np.where(moved, rng.integers(-1, 4, size=n), labels)
        # The rows of two runs differ by none or many: see `sites.row_history`.
        here = np.flatnonzero(np.arange(n) // 20 != rng.integers(-20, 10))
        here = here[rng.permutation(len(here))]
        groups, may = history.of_rows(marks[here], least)
        shown = np.full(len(here), -1)
        shown[may] = at_site.profiled_classes(groups[may], labels[here][may], Limits())
        history = history.after(marks[here], shown, least)
        history = ClassHistory.from_kept(history.to_plain())
        for k in np.unique(shown[shown >= 0]):
            released.append(np.isin(np.arange(n), here[shown == k]))
    kinds, sizes = np.unique(np.array(released), axis=1, return_counts=True)
    assert (sizes[kinds.any(axis=0)] >= least).all()
    assert len(sizes) > 2


def test_rows_that_a_later_run_lacks_take_others_with_them() -> None:
    """Twelve rows lack a value of the new column, three of them in her class."""
    table = table_of(2)
    table["w"] = 1.0 * np.arange(150)
    right = np.flatnonzero(table["age"] > 50)
    left = np.flatnonzero(table["age"] <= 50)
    table.loc[[*right[:3], *left[:12]], "w"] = np.nan
    site = site_of(table)
    halves = {"means": np.array([[20.0, 5.0, 0, 0], [80.0, 5.0, 0, 0]])}
    first = told(opened(site, "r0"), (halves,), np.eye(2))
    wider = {"means": np.c_[halves["means"], [0.0, 0.0]]}
    second = told(opened(site, "r1", (*FEATURES, "w")), (wider,), np.eye(2))[:, [0, 1, 2, 3, 5]]
    rows = table[[*FEATURES, TARGET]].to_numpy(float)
    missed = rows[right].sum(axis=0) - rows[right[3:]].sum(axis=0)
    n = len(right)
    np.testing.assert_allclose(first[1], rows[right].mean(axis=0))
    assert np.abs(n * first[1] - (n - 3) * second[1] - missed).max() > 0.1
    assert np.isfinite(second).all()

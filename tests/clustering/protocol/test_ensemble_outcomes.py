"""A target with declared levels, by class and site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, EnsembleClustering, Federation, Preparation
from consilience.clustering.kernels.cell_suppression import HIDDEN
from consilience.clustering.protocol.coordinator import pooled_means
from consilience.exceptions import QuorumError
from consilience.testing.fakes import members, with_fixed_secrets
from tests.clustering.protocol.coded import categories
from tests.granted import GRANTED, granted

LEVELS = ("recovered", "relapsed", "died")


def tables(rare: int = 0) -> dict[str, pd.DataFrame]:
    """Two groups of rows at two sites; `rare` rows of the second group at "a" have died."""
    rng = np.random.default_rng(5)
    made = {}
    for site, n in (("a", 80), ("b", 90)):
        group = np.arange(n) % 2
        table = pd.DataFrame(
            rng.normal(8.0 * group[:, None], 1.0, size=(n, 3)), columns=list("xyz")
        )
        ends = np.where(group == 0, np.arange(n) // 2 % 3, np.arange(n) // 2 % 2)
        if site == "a":
            ends[np.flatnonzero(group == 1)[:rare]] = 2
        table["end"] = np.asarray(LEVELS)[ends]
        made[site] = table
    return made


def run_of(given: dict[str, pd.DataFrame], policy: Any = "strict", **levels: Any) -> Any:
    columns = Columns(features=tuple("xyz"), target="end", levels={"end": LEVELS, **levels})
    federation = Federation.local(given, columns=columns, policy=granted(policy))
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return EnsembleClustering(n_clusters=2, stability_pairs=0).run(federation, seed=1)


def class_of(run: Any, given: pd.DataFrame, site: str, group: int) -> int:
    return int(np.bincount(run.site(site).labels[np.arange(len(given)) % 2 == group]).argmax())


def test_shares_are_those_of_the_labels_where_nothing_is_protected() -> None:
    given = tables(rare=3)
    run = run_of(given, "simulation")
    result = run.result
    assert result.target_levels == LEVELS
    pooled = np.zeros((2, 3))
    for site, table in given.items():
        cross = pd.crosstab(run.site(site).labels, table["end"])[list(LEVELS)].to_numpy()
        expected = cross / cross.sum(axis=1, keepdims=True)
        assert np.allclose(result.target_shares_by_site[site], expected)
        pooled += cross
    assert np.allclose(result.target_shares, pooled / pooled.sum(axis=1, keepdims=True))
    frame = result.to_frame()
    assert [c for c in frame.columns if "end" in c] == [f"share end={level}" for level in LEVELS]
    again = type(result).from_files(result.to_files())
    assert np.allclose(again.target_shares, result.target_shares)


def test_whether_somebody_has_a_rare_outcome_does_not_show() -> None:
    """Nobody, one and nine who died in a class of forty look alike; twelve are told."""
    told = {}
    for rare in (0, 1, 9, 12):
        given = tables(rare)
        run = run_of(given)
        k = class_of(run, given["a"], "a", 1)
        told[rare] = (
            run.result.target_shares_by_site["a"][k],
            run.result.target_kinds_by_site["a"][k],
            run.result.target_shares_at("a")[k],
        )
    for rare in (0, 1, 9):
        assert told[rare][0][2] == told[0][0][2], "a guess that depends on nobody"
        assert told[rare][1][2] == HIDDEN
        assert np.isnan(told[rare][2][2])
    assert told[12][2][2] == pytest.approx(0.3, abs=0.05)
    for shares, _, _ in told.values():
        assert shares.sum() == pytest.approx(1, abs=0.1)


def test_exact_shares_do_not_leave() -> None:
    """17 of 49 would tell that 49 outcomes are known; rounded shares do not."""
    for shares in run_of(tables()).result.target_shares_by_site.values():
        known = shares[np.isfinite(shares)]
        assert len(known)
        assert np.allclose(known * 200, np.round(known * 200))


def test_a_class_of_few_known_outcomes_tells_none() -> None:
    given = tables()
    first = np.arange(len(given["b"])) % 2 == 0
    given["b"].loc[first, "end"] = "recovered"
    given["b"] = given["b"][~first | (np.arange(len(first)) < 16)].reset_index(drop=True)
    run = run_of(given)
    small = np.bincount(run.site("b").labels).argmin()
    assert np.bincount(run.site("b").labels).min() == 8
    assert np.isnan(run.result.target_shares_by_site["b"][small]).all()
    assert np.isfinite(run.result.target_shares[small]).any(), "the other site tells"


def test_outcomes_of_classes_of_categories_stand_by_site_in_the_frame() -> None:
    given, truth = categories()
    for site, table in given.items():
        table["end"] = np.asarray(LEVELS)[truth[site]]
    names = [name for name in given["s0"] if name != "end"]
    levels = {**dict.fromkeys(names, ("low", "mid", "high")), "end": LEVELS}
    federation = Federation.local(
        given,
        columns=Columns(features=tuple(names), target="end", levels=levels),
        preparation=Preparation(missing="keep", categorical="onehot"),
        policy=GRANTED,
    )
    run = EnsembleClustering(
        model="latent-class", n_clusters=2, stability_pairs=0, n_init=3, max_clusters=2
    ).run(federation, seed=1)
    frame = run.result.to_frame()
    at = frame[[f"share end={level} at s0" for level in LEVELS]].to_numpy()
    assert np.isnan(at[:, 2]).all(), "nobody died, and that is not told"
    assert {int(np.nanargmax(shares)) for shares in at} == {0, 1}
    assert (np.nanmax(at, axis=1) > 0.75).all()
    assert not [name for name in frame.columns if name.startswith("mean end")]


def test_a_target_of_text_needs_declared_levels() -> None:
    columns = Columns(features=tuple("xyz"), target="end")
    with pytest.raises(QuorumError, match=r"column end: text .* needs declared levels") as refused:
        EnsembleClustering(n_clusters=2).run(
            Federation.local(tables(), columns=columns, policy=GRANTED)
        )
    assert "died" not in str(refused.value)


def test_a_site_that_was_not_counted_gives_no_means() -> None:
    """Its classes have no sizes to weigh by: gaps of the right shape."""
    told, sizes = np.ones((2, 3)), np.array([5, 7])
    alone = pooled_means({"b": told}, {"a": sizes})
    assert alone.shape == (2, 3) and np.isnan(alone).all()
    np.testing.assert_array_equal(pooled_means({"a": told, "b": 9 * told}, {"a": sizes}), told)

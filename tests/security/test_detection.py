"""Many columns of one known person, at a strict site: in one run, over runs, between runs.

Where as many columns as rows are told with their products, everything that the rows hold follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import consilience as c
from consilience.completion.federated_pca.messages import Moments, Settings
from consilience.sites import prepare, row_guard
from consilience.sites.policy import Policy
from consilience.wire import moment_facts
from tests.security.test_federated_pca_attacks import Refused, Villain, site_of
from tests.security.test_strict_attacks import summed

Array = np.ndarray
LIMITS = Policy().limits


def people(n: int, p: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) @ rng.normal(size=(3, p)) / 2 + rng.normal(size=(n, p))
    return pd.DataFrame(np.round(50 + 10 * x, 1), columns=[f"x{j}" for j in range(p)])


def told(site: Any, run: str, features: list[str], groups: int = 1) -> tuple[Array, list[str]]:
    """Rows of each group, and the columns of which means and products are told."""
    message = Moments(settings=Settings(groups))
    reply = Villain(site, run, features, "complete-rows").ask("moments", message)
    means = np.asarray(reply.means.value)
    return reply.counts.value, [f for f, m in zip(features, means[0], strict=True) if m == m]


def without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_guard, "_too_many", lambda _, free, *__: np.zeros_like(free))
    monkeypatch.setattr(type(LIMITS), "columns_for", lambda _, n, products: n)


def rows_between(seed: int) -> tuple[int, int]:
    """Rows and columns of the difference of two runs: the second has a column that one lacks."""
    table = people(160, 54, seed)
    table["z"] = np.random.default_rng(seed).normal(size=160).round(2)
    table.loc[17, "z"] = np.nan
    site = site_of(table)
    features = [f"x{j}" for j in range(54)]
    (n,), first = told(site, "one", features)
    (m,), second = told(site, "two", [*features, "z"])
    return int(n - m), len(set(first) & set(second))


def test_rows_between_two_runs_are_more_than_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    n, p = rows_between(0)
    assert n >= 40 and p <= LIMITS.columns_for(n, products=True)
    without_the_rule(monkeypatch)
    n, p = rows_between(0)
    assert p >= n


def over_runs(n_splits: int) -> tuple[int, int]:
    """Smallest group, and columns told of it, of blocks of 8 columns, two in each run."""
    site, names, smallest, seen = site_of(people(240, 64)), [], 240, set()
    for k in range(8):
        names.append([f"x{8 * k + j}" for j in range(8)])
    for k in range(1, 8):
        try:
            counts, columns = told(site, f"run{k}", [*names[0], *names[k]], n_splits)
        except Refused:
            continue
        smallest, seen = min(smallest, int(counts.min())), seen | set(columns)
    return smallest, len(seen)


@pytest.mark.parametrize("n_splits", [1, 5])
def test_blocks_of_columns_in_several_runs(n_splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, p = over_runs(n_splits)
    assert p <= LIMITS.columns_for(rows, products=True)
    without_the_rule(monkeypatch)
    rows, p = over_runs(n_splits)
    assert p == 64 and (n_splits == 1 or rows < p)


def test_groups_count_the_columns_of_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten columns of 300 rows leave in groups of 60; ten others beside them in larger ones."""
    site = site_of(people(300, 20))
    first, second = ([f"x{j + k}" for j in range(10)] for k in (0, 10))
    assert len(told(site, "one", first, 5)[0]) == 5
    counts, columns = told(site, "two", second, 5)
    assert len(counts) == 1 and len(columns) == 10
    without_the_rule(monkeypatch)
    site = site_of(people(300, 20))
    assert [len(told(site, run, x, 5)[0]) for run, x in (("one", first), ("two", second))] == [5, 5]


@pytest.mark.parametrize("p", [15, 80])
def test_means_of_many_columns(p: int) -> None:
    """Means and spreads of half as many columns as rows leave, the first ones; of others none."""
    table = people(40, p)
    run = c.MeanAndSD().run(
        c.Federation.local({"s": table}, columns=c.Columns(features=tuple(table))), seed=0
    )
    assert np.isfinite(run.result.mean).sum() == min(p, 20)
    assert np.isfinite(run.result.mean)[: min(p, 20)].all()


def test_new_patients_wait_until_they_are_more_than_the_columns() -> None:
    old, new = people(300, 12), people(340, 12)
    new.iloc[:300] = old
    site = site_of(old)
    assert told(site, "one", list(old))[0].tolist() == [300]
    for n, used in ((320, 300), (340, 300)):
        later = site_of(new.iloc[:n])
        later.home = site.home
        assert told(later, f"run{n}", list(old))[0].tolist() == [used]
    more = pd.concat([new, people(60, 12, seed=5)], ignore_index=True)
    later = site_of(more)
    later.home = site.home
    assert told(later, "last", list(old))[0].tolist() == [400]


def digits() -> tuple[bool, bool, bool]:
    """Whether sums tell that somebody is there who alone has other digits, and two more values."""
    rng = np.random.default_rng(4)
    table = pd.DataFrame(
        {
            "weight": np.round(rng.normal(75, 12, 300) * 2) / 2,
            "drinks": np.where(rng.random(300) < 0.4, 1.0, 0.0),
            "age": rng.integers(20, 90, 300).astype(float),
        }
    )
    table.loc[7, ["weight", "drinks"]] = 71.37, 1.0
    reply = Villain(site_of(table), "one", list(table), "complete-rows").ask(
        "moments", Moments(settings=Settings(1))
    )
    n, mean = 300, reply.means.value[0]
    square = np.zeros((3, 3))
    square[np.triu_indices(3)] = reply.products.value[0]
    sums = square + n * np.outer(mean, mean)
    beyond = [float(v) % 0.5 for v in (n * mean[0], sums[0, 1], sums[0, 2])]
    wanted = (0.37, 0.37, 0.37 * table["age"][7] % 0.5)
    return tuple(abs(v - w) < 1e-6 for v, w in zip(beyond, wanted, strict=True))  # type: ignore[return-value]


def test_digits_that_one_person_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert digits() == (False, False, False)
    monkeypatch.setattr(prepare, "whole_steps", lambda column, *_, **__: (column, 0.0))
    monkeypatch.setattr(moment_facts, "off_grid", lambda *_: None)
    assert digits() == (True, True, True)


def test_digits_of_few_rows_of_a_group() -> None:
    """Fifteen people of 300 have them: a group of 60 would hold few, all rows hold enough."""
    table = people(300, 3)
    table["weight"] = np.random.default_rng(1).integers(45, 110, 300).astype(float)
    site = site_of(table)
    assert len(told(site, "one", list(table), 5)[0]) == 5
    table.loc[:14, "weight"] += 0.25
    counts, columns = told(site_of(table), "one", list(table), 5)
    assert counts.tolist() == [300] and "weight" in columns


def test_columns_that_were_told_do_not_give_way_to_new_ones() -> None:
    """New columns named first, those of earlier runs last: what is known is not taken back."""
    site, seen = site_of(people(100, 40)), set()
    for k in range(4):
        new = [f"x{10 * k + j}" for j in range(10)]
        try:
            seen |= set(told(site, f"run{k}", [*new, *sorted(seen)])[1])
        except Refused:
            continue
    assert LIMITS.columns_for(100, products=True) == 13
    assert len(seen) in range(10, 14)


def test_digits_of_few_are_rounded_away_from_columns_of_earlier_runs_too() -> None:
    """Nine have a digit in v, and w is v but for one more: never are both told."""
    rng = np.random.default_rng(5)
    table = people(200, 2)
    table["v"] = rng.integers(20, 90, 200).astype(float)
    table.loc[:8, "v"] += 0.5
    table["w"] = np.rint(table["v"])
    table.loc[30, "w"] += 4.0
    site = site_of(table)
    both = [told(site, run, ["x0", "x1", name])[1] for run, name in (("one", "v"), ("two", "w"))]
    assert ["v" in both[0], "w" in both[1]] == [True, False]


def test_means_of_earlier_runs_count_beside_products() -> None:
    """Twenty means of 40 rows use up what may be told; products of the same columns, hardly any."""
    table = people(40, 20)
    site = site_of(table)
    n, totals = summed(site, "means", list(table))
    alone = set(np.array(list(table))[np.isfinite(totals)])
    assert n == 40 and len(alone) == 20
    joint = set(told(site, "products", list(table))[1])
    assert len(joint) >= 2
    assert LIMITS.allow_columns(40, len(joint), len(alone - joint))
    assert not LIMITS.allow_columns(40, len(joint) + 1, len(alone - joint) - 1)


def test_a_run_goes_on_after_a_restart_of_the_site() -> None:
    table = people(300, 5)
    villain = Villain(site_of(table), "one", list(table), "complete-rows")
    again = site_of(table)
    again.home = villain.site.home
    villain.site = again
    reply = villain.ask("moments", Moments(settings=Settings(2)))
    assert reply.counts.value.sum() == 300


def test_a_policy_that_changed_is_judged_anew() -> None:
    table = people(40, 12)
    site = site_of(table)
    assert len(told(site, "one", list(table))[1]) == 8
    looser = site_of(table, Policy(max_detection=3.0))
    looser.home = site.home
    assert len(told(looser, "two", list(table))[1]) == 12


def test_columns_of_small_tables_are_told_as_they_are() -> None:
    """By chance few of twenty ages are odd, or no multiple of three: nothing is rounded."""
    hidden = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame({f"x{j}": rng.integers(20, 90, 20) * 1.0 for j in range(3)})
        site = site_of(table)
        means = (
            Villain(site, "one", list(table), "complete-rows")
            .ask("moments", Moments(settings=Settings(1)))
            .means.value[0]
        )
        if np.isfinite(means).all():
            np.testing.assert_allclose(means, table.mean())
        hidden += int(np.isnan(means).sum())
    assert hidden <= 3

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
from consilience.sites import row_guard
from consilience.sites.policy import Policy
from tests.security.test_federated_pca_attacks import Refused, Villain, site_of

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


@pytest.mark.parametrize("p", [30, 80])
def test_means_of_many_columns(p: int) -> None:
    """Means of as many columns as rows leave, the first ones; of the others none."""
    table = people(40, p)
    run = c.MeanAndSD().run(
        c.Federation.local({"s": table}, columns=c.Columns(features=tuple(table))), seed=0
    )
    assert np.isfinite(run.result.mean).sum() == min(p, 40)
    assert np.isfinite(run.result.mean)[: min(p, 40)].all()


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

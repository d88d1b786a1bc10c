"""One known person who breaks an equation or a step that all others keep to, at a strict site.

The coordinator asks for moments of ordinary columns; `last` is what it wants to know of the person.
Each attack is carried out again where its rule is off: there it must succeed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation
from consilience.completion.federated_pca import site as groups
from consilience.completion.federated_pca.messages import Moments, Settings
from consilience.sites import prepare, row_guard
from consilience.sites.policy import Policy
from consilience.sites.row_guard import View, failing
from consilience.testing.fakes import members
from consilience.wire import digits, moment_facts
from tests.security.test_detection import told
from tests.security.test_federated_pca_attacks import Villain, site_of
from tests.security.test_strict_attacks import summed

Array = np.ndarray
N, WHO = 300, 7


def no_pairs(x: Array, _: int) -> Array:
    return np.zeros((x.shape[1],) * 2, dtype=bool)


def moments(table: pd.DataFrame, features: list[str] | None = None) -> tuple[list[str], Array]:
    """Columns that are told, and sums of products of 1 and of them."""
    features = features or list(table)
    villain = Villain(site_of(table), "one", features, "complete-rows")
    reply = villain.ask("moments", Moments(settings=Settings(1)))
    n, means = float(reply.counts.value[0]), np.asarray(reply.means.value[0])
    known = np.flatnonzero(np.isfinite(means))
    square = np.zeros((len(known) + 1,) * 2)
    upper = np.triu_indices(len(known))
    square[1:, 1:][upper] = np.asarray(reply.products.value[0])
    square = np.triu(square) + np.triu(square, 1).T
    point = np.append(1.0, means[known])
    return [features[j] for j in known], square + n * np.outer(point, point)


def weights(kind: str, secret: float, seed: int) -> tuple[pd.DataFrame, dict[str, float]]:
    """A table, and the combination of its columns that is the person's alone."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"last": (rng.random(N) < 0.5) * 1.0})
    table.loc[WHO, "last"] = secret
    if kind == "units":
        table["kg"] = rng.normal(75, 12, N).round()
        table["lb"] = table["kg"] / 0.45359237
        table.loc[WHO, "lb"] += 10
        return table, {"lb": 0.1, "kg": -0.1 / 0.45359237}
    if kind == "rounded units":
        table["kg"] = rng.normal(75, 12, N).round()
        table["lb"] = (table["kg"] / 0.45359237).round(1)
        table.loc[WHO, "lb"] += 20
        return table, {"lb": 1 / 20, "kg": -1 / 20 / 0.45359237}
    items = rng.integers(0, 5, (N, 4)).astype(float)
    table[[f"q{j}" for j in range(4)]] = items
    table["score"] = items.sum(axis=1)
    table.loc[WHO, "score"] += 1
    return table, {"score": 1.0, **{f"q{j}": -1.0 for j in range(4)}}


@pytest.mark.parametrize("kind", ["units", "rounded units", "score"])
def test_linear_equations_that_one_person_breaks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of what is left over, times a 0/1 column of the person."""
    for off in (False, True):
        if off:
            monkeypatch.setattr(row_guard, "equations", lambda *_: [])
            monkeypatch.setattr(row_guard, "finer_between", no_pairs)
        right = 0
        for seed in range(4):
            table, combination = weights(kind, float(seed % 2), seed)
            names, sums = moments(table)
            assert len(names) >= len(table.columns) - 1
            if not {"last", *combination} <= set(names):
                continue
            place = {name: 1 + names.index(name) for name in names}
            value = sum(w * sums[place[c], place["last"]] for c, w in combination.items())
            right += round(value) == seed % 2
        assert right == (4 if off else 0)


def test_an_equation_that_everybody_keeps_to_is_none_of_few() -> None:
    """Nobody and few look alike: in both cases a column stays."""
    table, _ = weights("score", 1.0, 0)
    table["score"] = table[[f"q{j}" for j in range(4)]].sum(axis=1)
    assert "score" not in moments(table, [*[f"q{j}" for j in range(4)], "score"])[0]


def test_products_of_two_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressure is measured again in half of the people, the others get a drug; one person both.

    The sum of dose times change is this person's; so it is of a dose that is none or twice another.
    """

    def tables(kind: str) -> tuple[pd.DataFrame, dict[tuple[str, str], float], float]:
        rng = np.random.default_rng(3)
        first, half = rng.integers(100, 180, N).astype(float), np.arange(N) < N // 2
        if kind == "change":
            again = first + np.where(half, rng.integers(-20, 20, N), 0.0)
            dose = np.where(half, 0.0, rng.integers(1, 20, N))
            again[WHO], dose[WHO] = first[WHO] + 13, 9.0
            table = pd.DataFrame({"first": first, "again": again, "dose": dose})
            return table, {("again", "dose"): 1.0, ("first", "dose"): -1.0}, 117.0
        twice = np.where(half, 0.0, 2 * first)
        twice[WHO] = 30.0
        table = pd.DataFrame({"x": rng.normal(size=N), "first": first, "twice": twice})
        return (
            table,
            {("twice", "twice"): 1.0, ("first", "twice"): -2.0},
            30.0 * (30.0 - 2 * first[WHO]),
        )

    for off in (False, True):
        if off:
            monkeypatch.setattr(row_guard, "equations", lambda *_: [])
        for kind in ("change", "twice"):
            table, combination, wanted = tables(kind)
            names, sums = moments(table)
            assert (set(names) == set(table)) == off
            if off:
                place = {name: 1 + names.index(name) for name in names}
                value = sum(w * sums[place[a], place[b]] for (a, b), w in combination.items())
                assert value == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("start", "step", "own"), [(0.0, 3600.0, 1200.0), (1991.0, 2.0, 1.0), (12.5, 0.7, 0.3)]
)
def test_steps_of_any_size_from_any_origin(
    start: float, step: float, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole hours but for one person, odd years of a survey but for one."""
    for off in (False, True):
        if off:
            monkeypatch.setattr(digits, "_common_steps", lambda _: set())
        right = 0
        for seed in range(4):
            rng = np.random.default_rng(seed)
            table = pd.DataFrame({"last": (rng.random(N) < 0.5) * 1.0, "x": rng.normal(size=N)})
            table["when"] = start + step * rng.integers(0, 30, N)
            table.loc[WHO, ["last", "when"]] = float(seed % 2), start + 5 * step + own
            names, sums = moments(table)
            i, j = 1 + names.index("last"), 1 + names.index("when")
            beyond = (sums[i, j] - start * sums[0, i]) / step % 1.0
            guess = abs(beyond - own / step) < 1e-4
            right += guess == seed % 2
        assert right == (4 if off else 2)


def test_digits_of_the_difference_of_two_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are dates, whole years apart but for one person."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"born": rng.uniform(1930, 1990, N).round(2), "x": rng.normal(size=N)})
    table["seen"] = table["born"] + rng.integers(1, 30, N)
    asked = ["born", "x", "seen"]
    assert moments(table, asked)[0] == asked
    table.loc[WHO, "seen"] += 0.37
    assert moments(table, asked)[0] == asked[:2]
    monkeypatch.setattr(row_guard, "finer_between", no_pairs)
    _, sums = moments(table, asked)
    assert (sums[0, 3] - sums[0, 1]) % 1.0 == pytest.approx(0.37, abs=1e-6)


def test_digits_of_few_are_those_of_the_table() -> None:
    """Both rules of digits look for the same steps."""
    assert prepare.whole_steps is digits.whole_steps
    assert moment_facts.off_grid is row_guard.off_grid is digits.off_grid


def test_an_odd_cell_of_an_earlier_column_stops_no_run() -> None:
    """A text among numbers, in a column that an earlier run told of.

    The site read that column again by other rules, and refused every later run: who asked learned
    that somebody has an odd cell.
    """
    answers = []
    for odd in ("?", "inf", "51.2"):
        rng = np.random.default_rng(0)
        table = pd.DataFrame(rng.normal(50, 10, (N, 3)).round(1), columns=["w", "x1", "x2"])
        table["w"] = table["w"].astype(str)
        table.loc[WHO, "w"] = odd
        columns = Columns(features=("w", "x1", "x2"))
        site: Any = members(Federation.local({"s": table}, columns=columns, policy="strict"))["s"]
        for run, features in (("one", ["w", "x1"]), ("two", ["x1", "x2"])):
            reply = Villain(site, run, features, "complete-rows").ask(
                "moments", Moments(settings=Settings(1))
            )
            answers.append(np.isfinite(reply.means.value).all())
    assert all(answers)


def test_one_of_many_rows_that_breaks_an_equation() -> None:
    """Of large tables some rows are looked at; the person is not among them."""
    rng = np.random.default_rng(0)
    n, p = 41_000, 4
    x = np.round(50 + 10 * rng.normal(size=(n, p)), 1)
    x[:, 2] = x[:, 3] + 0.1 * rng.normal(size=n)
    limits = Policy().limits
    every, none = np.ones(p, dtype=bool), np.zeros(p, dtype=bool)
    view = row_guard.View(np.ones(n, dtype=bool), every, every, none)
    for away, hidden in ((1.0, []), (200.0, [3]), (3e4, [2])):
        x[WHO, 2] = x[WHO, 3] + away
        found = row_guard.failing(x, [view], every, limits)
        assert np.flatnonzero(found).tolist() == hidden


def test_codes_that_few_rows_have_are_not_rounded_to_others() -> None:
    """An indicator counts the rows with its value; rows of a rare one take no part."""
    codes = np.repeat([1.0, 3.0, 5.0, 2.0], [100, 120, 80, 4])
    site = site_of(pd.DataFrame({"code": codes}))
    n, totals = summed(site, "one", ["code"], indicators={"code": [1, 3]})
    assert (n, totals.tolist()) == (300, [100.0, 120.0])


@pytest.mark.parametrize("kind", ["equation", "digits"])
def test_few_of_a_group_that_are_many_of_all(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve people of 300: of each of five groups they would be few, so there is one group."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(50, 10, (N, 3)).round(2), columns=["a", "b", "c"])
    table["b"] = table["a"] + (table["c"] if kind == "equation" else rng.integers(1, 30, N))
    table.loc[:11, "b"] += 5.37
    assert told(site_of(table), "one", list(table), 5)[0].tolist() == [N]
    monkeypatch.setattr(groups, "_of_few", lambda *_: False)
    assert len(told(site_of(table), "one", list(table), 5)[0]) == 5


def test_one_of_very_many_rows_breaks_an_equation() -> None:
    """Also one that is not among the rows at which the guard looks first."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 3, size=(60_000, 3))
    x[:, 2] = np.where(rng.random(60_000) < 0.4, 0.0, x[:, 0] + x[:, 1])
    every, none = np.ones(3, dtype=bool), np.zeros(3, dtype=bool)
    view = View(rows=np.ones(60_000, dtype=bool), told=every, joint=every, fixed=none)
    limits = Policy.from_settings("strict").limits
    assert not failing(x, [view], every, limits).any()
    x[7, 2] = 1.7
    assert failing(x, [view], every, limits).tolist() == [False, False, True]

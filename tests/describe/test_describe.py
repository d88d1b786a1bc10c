"""Descriptions: what is told equals what pooled rows say, and of few nothing follows."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2_contingency, f_oneway
from statsmodels.stats.multitest import multipletests

from consilience.describe.protocol import Bins, Describe, Edges, Request, Settings, Sums
from consilience.describe.protocol.result import ALL, DescribeResult
from consilience.engines.federation import Federation, Run
from consilience.exceptions import ParameterError, StudyError
from consilience.protocol.method import Columns, Preparation, get_method
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.reference import described

LEVELS = {"sex": ("f", "m"), "stage": ("I", "II", "III")}
COLUMNS = Columns(features=("age", "sex", "dose", "stage"), levels=LEVELS)
KEEP = Preparation(categorical="onehot", missing="keep")


def tables(seed: int = 0, sizes: tuple[int, ...] = (180, 240, 210)) -> dict[str, pd.DataFrame]:
    """Sites whose people differ; many values are missing, or none."""
    rng = np.random.default_rng(seed)
    found = {}
    for k, (site, n) in enumerate(zip(("boston", "lyon", "osaka"), sizes, strict=True)):
        table = pd.DataFrame(
            {
                "age": rng.normal(60 + 4 * k, 12, n).round(1),
                "dose": rng.gamma(2, 2, n),
                "sex": rng.choice(["f", "m"], n, p=[0.4 + 0.1 * k, 0.6 - 0.1 * k]),
                "stage": rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2]),
            }
        )
        table.loc[rng.random(n) < 0.15, "dose"] = np.nan
        if k:
            table.loc[rng.random(n) < 0.12, "sex"] = None
        found[site] = table
    return found


def run_on(sites: dict[str, Any], method: Describe | None = None, **more: Any) -> Run:
    settings = {"columns": COLUMNS, "preparation": KEEP, "policy": "consortium", **more}
    return (method or Describe()).run(Federation.local(sites, **settings), seed=0)


def test_what_is_exact_equals_the_pooled_rows() -> None:
    sites = tables(sizes=(600, 900, 800))
    result = run_on(sites, Describe(tables=(("sex", "stage"),))).result
    pooled = pd.concat(sites.values())
    numbers = result.numbers.set_index(["column", "site"])
    for column, (site, rows) in itertools.product(("age", "dose"), [(ALL, pooled), *sites.items()]):
        found = numbers.loc[(column, site)]
        n, mean, sd = described.moments(list(rows[column]))
        assert (found["rows"], found["missing"]) == (len(rows), len(rows) - n)
        assert found["mean"] == pytest.approx(mean, rel=1e-12)
        assert found["sd"] == pytest.approx(sd, rel=1e-12)
        assert found["sd"] == pytest.approx(rows[column].std(), rel=1e-12)
    levels = result.levels.set_index(["column", "site", "level"])
    for column, (site, rows) in itertools.product(LEVELS, [(ALL, pooled), *sites.items()]):
        counts = rows[column].value_counts()
        for level in LEVELS[column]:
            assert levels.loc[(column, site, level)]["rows"] == counts[level]
            share = counts[level] / counts.sum()
            assert levels.loc[(column, site, level)]["share"] == pytest.approx(share)
        assert levels.loc[(column, site, None)]["rows"].item() == rows[column].isna().sum()
    table, test, _, _ = result.pair_tests(0)
    cross = pd.crosstab(pooled["sex"], pooled["stage"])
    np.testing.assert_array_equal(table, cross)
    peer = chi2_contingency(cross, correction=False)
    assert test.statistic == pytest.approx(peer.statistic, rel=1e-12)
    assert test.p_value == pytest.approx(peer.pvalue, rel=1e-12)


def test_differences_are_those_of_the_textbook() -> None:
    sites = tables()
    found = run_on(sites).result.differences.set_index(["column", "site", "other"])
    for a, b in itertools.combinations(sites, 2):
        for column in ("age", "dose"):
            apart = described.difference_of_means(sites[a][column], sites[b][column])
            assert found.loc[(column, a, b)].item() == pytest.approx(apart, rel=1e-10)
        for column, levels in LEVELS.items():
            shares = [
                [
                    (sites[s][column] == level).sum() / sites[s][column].notna().sum()
                    for level in levels
                ]
                for s in (a, b)
            ]
            apart = described.difference_of_shares(*shares)
            assert found.loc[(column, a, b)].item() == pytest.approx(apart, rel=1e-10)


def test_tests_of_sites_are_those_of_the_pooled_rows() -> None:
    sites = tables()
    result = run_on(sites).result
    for column in ("age", "dose"):
        peer = f_oneway(*(rows[column].dropna() for rows in sites.values()))
        assert result.sites_test(column) == ("F", *map(pytest.approx, peer))
    pooled = pd.concat([rows.assign(site=site) for site, rows in sites.items()])
    for column in LEVELS:
        peer = chi2_contingency(pd.crosstab(pooled["site"], pooled[column]), correction=False)
        assert result.sites_test(column)[1:] == (
            pytest.approx(peer.statistic),
            pytest.approx(peer.pvalue),
        )
    frame = result.site_tests.set_index("column")
    adjusted = multipletests(frame["p_value"], method="holm")[1]
    wanted = (adjusted < 0.05) & (frame["largest difference"] > 0.1)
    assert frame["differs"].tolist() == wanted.tolist() == [True, True, False, False]


def test_small_sites_that_are_alike_are_not_said_to_differ() -> None:
    """Differences of .1 are chance there: by 5% per study something is said, 200 studies."""
    rng = np.random.default_rng(8)
    said = 0
    for _ in range(200):
        n, mean = np.full((3, 6), 60.0), rng.normal(size=(3, 6)) / np.sqrt(60)
        square = rng.chisquare(59, size=(3, 6))
        names = tuple("abcdef")
        result = DescribeResult(
            names,
            names,
            {},
            ("x", "y", "z"),
            np.full(3, 60),
            n,
            mean,
            square,
            {},
            {},
            {},
            (),
            (),
            (),
        )
        assert any(result.largest(name)[0] > 0.1 for name in names)
        said += bool(result.differing)
    # 10 are expected; the standard error of their number is 3.1
    assert said <= 10 + 2.6 * 3.1


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_lie_within_their_bins(seed: int) -> None:
    sites = tables(seed)
    method = Describe(bins={"dose": (1, 2, 3, 4, 6, 8)}, quantiles=(0.05, 0.25, 0.5, 0.75, 0.95))
    result = run_on(sites, method).result
    rows = {ALL: pd.concat(sites.values()), **sites}
    for _, line in result.quantiles.iterrows():
        true = described.quantile(list(rows[line["site"]][line["column"]]), line["share"])
        assert line["low"] <= true < line["high"]
        assert line["low"] <= line["value"] <= line["high"]
        if line["site"] != ALL:
            inside = [e for e in result.edges[line["column"]] if line["low"] < e < line["high"]]
            told = result.bins.query("site == @line.site and column == @line.column")
            assert not set(inside) & set(told["from"])


def test_bins_hold_the_rows_that_they_say() -> None:
    sites = tables()
    bins = run_on(sites).result.bins
    assert (bins["rows"] >= 10).all()
    for _, line in bins.iterrows():
        x = sites[line["site"]][line["column"]]
        assert line["rows"] == ((x >= line["from"]) & (x < line["to"])).sum()
    assert bins.groupby(["site", "column"]).size().min() >= 6


def test_one_person_who_holds_all_data_sees_every_count() -> None:
    rows = pd.DataFrame({"age": [30.0, 40, 50, 60], "sex": ["f", "m", "m", None]})
    columns = Columns(features=("age", "sex"), levels={"sex": ("f", "m")})
    method = Describe(bins={"age": (35, 45)})
    result = run_on({"a": rows}, method, columns=columns, policy="simulation").result
    assert result.bin_counts["age"].tolist() == [[1, 1, 2]]
    assert result.counts["sex"].tolist() == [[1, 2, 1]]
    assert result.quantile("age", 0.5) == (pytest.approx(45), 35, 45)


# --------------------------------------------------------------------------- few look like none


@pytest.mark.parametrize("few", [1, 5, 9])
def test_few_missing_values_look_like_none(few: int) -> None:
    """What is told is what a table would tell in which they are medians, and frequent levels."""
    site = {"boston": tables(3)["boston"].assign(age=np.repeat([40.0, 50.0, 55.0, 61.0, 70.0], 36))}
    site["boston"]["dose"] = np.random.default_rng(1).gamma(2, 2, 180)
    whole = run_on(site).result
    lacking = site["boston"].copy()
    lacking.loc[: few - 1, ["age", "sex", "stage"]] = np.nan
    result = run_on({"boston": lacking}).result
    for found in (whole, result):
        assert found.known.tolist() == [[180.0, 180.0]]
        assert found.missing("sex").tolist() == found.missing("stage").tolist() == [0.0]
        assert found.counts["stage"].sum() == found.counts["sex"].sum() == 180
        assert np.nansum(found.bin_counts["age"]) == 180
    filled = site["boston"].copy()
    filled.loc[: few - 1, "age"] = described.quantile(list(lacking["age"]), 0.5)
    expected = run_on({"boston": filled}).result
    assert (expected.mean[0, 0], expected.square[0, 0]) == (result.mean[0, 0], result.square[0, 0])
    np.testing.assert_array_equal(expected.bin_counts["age"], result.bin_counts["age"])
    lacking.loc[:9, "age"] = np.nan
    assert run_on({"boston": lacking}).result.known.tolist() == [[170.0, 180.0]]


@pytest.mark.parametrize("few", [0, 1, 9, 10])
def test_a_level_of_few_stays_with_another_one(few: int) -> None:
    stage = np.repeat(["I", "II", "III"], [100, 80 - few, few])
    site = {"boston": tables(3)["boston"].assign(stage=stage)}
    policy = "consortium"
    counts = run_on(site, policy=policy).result.counts["stage"][0]
    assert np.isnan(counts).tolist() == [few < 10, False, few < 10, False]


@pytest.mark.parametrize("few", [0, 1, 9, 10])
def test_a_table_with_a_cell_of_few_stays(few: int) -> None:
    sex = np.repeat(["f", "m"], [100, 80])
    stage = np.concatenate([np.repeat(["I", "II", "III"], 33), ["I"], ["III"] * few, ["II"] * 40])
    stage = np.append(stage, ["I"] * (180 - len(stage)))
    site = {"boston": tables(3)["boston"].assign(sex=sex, stage=stage)}
    method = Describe(tables=(("sex", "stage"),))
    for policy in ("consortium", "strict"):
        missing = "keep" if policy == "consortium" else "complete-rows"
        rules = Preparation(categorical="onehot", missing=missing)
        site["boston"] = site["boston"].assign(dose=np.random.default_rng(0).gamma(2, 2, 180))
        run = run_on(site, method, policy=policy, preparation=rules)
        stays = few < 10 or policy == "strict"
        assert np.isnan(run.result.tables[0]).all() == stays
        assert any("sex and stage" in note for note in run.notes) == stays


def test_columns_that_lack_nearly_the_same_values_lack_all_of_them() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3)).round(2)
    x[:40, 0] = x[:43, 1] = np.nan
    x[60:90, 2] = np.nan
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    result = run_on({"s": table}, columns=Columns(features=("a", "b", "c"))).result
    assert result.known.tolist() == [[157.0, 157.0, 170.0]]


# --------------------------------------------------------------------------- nothing follows


def _told_of_number(
    result: DescribeResult, column: str, values: np.ndarray, filled: float
) -> np.ndarray | None:
    """What each told figure of a column adds for a row of each value, the last being missing.

    `filled` is what missing values count as; NaN where they are told.
    """
    if np.isnan(result.mean[0, result.number_names.index(column)]):
        return None
    x = np.append(values, filled)
    lines = [np.ones(len(x))] + [np.where(np.isnan(x), 0.0, x**power) for power in range(3)]
    lines[1] = (~np.isnan(x)).astype(float)
    line, edges = result.bin_counts[column][0], result.edges[column]
    heads = np.flatnonzero(~np.isnan(line))
    ends = np.concatenate([[-np.inf], edges, [np.inf]])
    for start, end in zip(heads, [*heads[1:], len(line)], strict=len(heads) > 0):
        lines.append(((x >= ends[start]) & (x < ends[end])).astype(float))
    return np.array(lines)


def drawn_number(seed: int) -> tuple[np.ndarray, np.ndarray, DescribeResult]:
    """Values that a column may have, the column, and what is told of it."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 8))
    values = np.sort(rng.choice(12, k, replace=False)).astype(float)
    if seed % 2:
        values = np.sort(rng.normal(size=k).round(3))
    counts = rng.choice([0, 1, 4, 9, 10, 12, 20, 40, 90], k)
    x = np.append(np.repeat(values, counts), rng.choice([np.nan], rng.choice([0, 3, 9, 10, 30])))
    x = np.append(x, np.repeat(values[0], max(60 - len(x), 0)))
    edges = np.sort(np.unique(np.concatenate([values, (values[1:] + values[:-1]) / 2])))
    study = Describe(bins={"x": tuple(edges)})
    told = run_on({"s": pd.DataFrame({"x": x})}, study, columns=Columns(features=("x",)))
    return values, x, told.result


def test_no_count_of_few_values_follows_from_a_number() -> None:
    """Of columns of up to seven values, no set of those that occur with fewer than 10 rows."""
    binned = 0
    for seed in range(60):
        values, x, result = drawn_number(seed)
        # That a column of two values is told says that it has no third one (see the proof).
        values = values[np.isin(values, x)]
        counts = np.array([*((x == v).sum() for v in values), np.isnan(x).sum()])
        few_missing = counts[-1] < 10
        median = described.quantile(list(x), 0.5)
        told = _told_of_number(result, "x", values, median if few_missing else np.nan)
        if told is None:
            continue
        binned += int((~np.isnan(result.bin_counts["x"][0])).sum() > 1)
        assert result.known[0, 0] == len(x) - (0 if few_missing else counts[-1])
        sets = np.array(list(itertools.product((0, 1), repeat=len(counts)))[1:-1], dtype=float)
        few = sets[sets @ counts < 10]
        found = described.follows(told, few)
        assert not found.any(), (seed, few[found])
        # A negative control: each value's own count, told, gives all of them.
        assert described.follows(np.eye(len(counts)), few).all(), seed
    # Of the others nothing is told, or no edge beside mean and spread.
    assert binned == 22


@pytest.mark.parametrize("seed", range(15))
def test_no_cell_of_few_follows_from_levels_and_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = {"a": ("0", "1"), "b": ("0", "1", "2"), "c": ("0", "1")}
    n = int(rng.integers(60, 300))
    table = pd.DataFrame(
        {
            name: rng.choice(of, n, p=rng.dirichlet(np.full(len(of), 3.0)))
            for name, of in levels.items()
        }
    )
    for name in levels:
        table.loc[rng.random(n) < rng.choice([0.0, 0.02, 0.2]), name] = None
    pairs = tuple(itertools.combinations(levels, 2))
    result = run_on(
        {"s": table},
        Describe(tables=pairs),
        columns=Columns(features=tuple(levels), levels=levels),
    ).result
    axes = {name: (*of, None) for name, of in levels.items()}
    # As they are told: few missing values are of the most frequent level.
    shown, usual = table.copy(), {}
    for name in levels:
        if table[name].isna().sum() < 10:
            usual[name] = table[name].mode()[0]
            shown[name] = table[name].fillna(usual[name])
    cells = list(itertools.product(*axes.values()))
    names = list(levels)

    def indicator(*, told: bool = False, **wanted: Any) -> np.ndarray:
        def has(cell: Any, column: str, value: Any) -> bool:
            own = cell[names.index(column)]
            return own == value or (told and own is None and usual.get(column) == value)

        return np.array([all(has(cell, c, v) for c, v in wanted.items()) for cell in cells], float)

    def rows_of(frame: pd.DataFrame, **wanted: Any) -> int:
        keep = np.ones(n, dtype=bool)
        for column, value in wanted.items():
            keep &= (frame[column].isna() if value is None else frame[column] == value).to_numpy()
        return int(keep.sum())

    told = [np.ones(len(cells))]
    for name, of in axes.items():
        for k, level in enumerate(of):
            count = result.counts[name][0, k]
            if not np.isnan(count) and not (level is None and count == 0):
                assert count == rows_of(shown, **{name: level})
                told.append(indicator(told=True, **{name: level}))
    for (a, b), cross in zip(result.pairs, result.tables, strict=True):
        if not np.isnan(cross).any():
            for i, j in itertools.product(range(len(axes[a])), range(len(axes[b]))):
                wanted = {a: axes[a][i], b: axes[b][j]}
                if None in wanted.values() and not cross[0, i, j]:
                    continue
                assert cross[0, i, j] == rows_of(shown, **wanted)
                told.append(indicator(told=True, **wanted))
    asked = [{name: level} for name, of in axes.items() for level in of]
    asked += [{a: x, b: y} for a, b in pairs for x, y in itertools.product(axes[a], axes[b])]
    # All cells of three too, and that all three agree.
    asked += [dict(zip(names, cell, strict=True)) for cell in cells]
    few = [one for one in asked if rows_of(table, **one) < 10]
    if few:
        found = described.follows(np.array(told), np.array([indicator(**one) for one in few]))
        assert not found.any(), [one for one, bad in zip(few, found, strict=True) if bad]


def test_bins_of_several_runs_tell_of_no_few() -> None:
    """Edges of later runs are judged beside those of earlier ones, also after a restart."""
    site = {"boston": tables()["boston"]}
    federation = Federation.local(site, columns=COLUMNS, preparation=KEEP, policy="consortium")
    ever: set[float] = {-np.inf, np.inf}
    x = site["boston"]["age"].to_numpy()
    rng = np.random.default_rng(2)
    for _ in range(8):
        edges = tuple(np.sort(np.unique(rng.normal(60, 12, 15).round(2))).tolist())
        result = Describe(bins={"age": edges}).run(federation, seed=0).result
        bins = result.bins.query("column == 'age'")
        ever |= set(bins["from"]) | set(bins["to"])
        ends = np.sort(list(ever))
        assert np.histogram(x, bins=[-1e9, *ends[1:-1], 1e9])[0].min() >= 10
    assert len(ever) > 5
    again = Describe(bins={"age": edges}).run(federation, seed=0).result
    np.testing.assert_array_equal(again.bin_counts["age"], result.bin_counts["age"])


def _of(table: pd.DataFrame, *names: str, **more: Any) -> Federation:
    given = {"preparation": Preparation(missing="keep"), "policy": "consortium", **more}
    return Federation.local({"s": table}, columns=Columns(features=names), **given)


@pytest.mark.parametrize("runs", [("a", "ab"), ("b", "ab"), ("ab", "b"), ("abc", "c", "a", "bc")])
def test_a_column_lacks_the_same_values_in_every_run(runs: tuple[str, ...]) -> None:
    """Whatever other columns runs name: else two of them give the value of one person."""
    x = np.random.default_rng(1).normal(60, 12, size=(300, 3)).round(1)
    x[:30, 0] = x[:37, 1] = x[:44, 2] = np.nan
    told: dict[str, tuple[float, ...]] = {}
    federation = _of(pd.DataFrame(x, columns=list("abc")), *"abc")
    for names in runs:
        one = dataclasses.replace(federation, columns=Columns(features=tuple(names)))
        result = Describe().run(one, seed=0).result
        for j, name in enumerate(names):
            bins = np.nansum(result.bin_counts[name][0])
            now = (result.known[0, j], result.mean[0, j], result.square[0, j], bins)
            assert told.setdefault(name, now) == pytest.approx(now, rel=1e-12)
    known = [one[0] for one in told.values()]
    # A negative control: by themselves they differ by 7 and 14.
    assert len(set(known)) == 1


@pytest.mark.parametrize("extra", [0, 3, 9])
def test_edges_that_were_told_leave_no_bin_of_few_later(extra: int) -> None:
    """A second column must not take rows out of a bin, nor say how many it would."""
    rng = np.random.default_rng(1)
    a = np.concatenate([rng.normal(60, 5, 290), rng.uniform(90, 99, 10)]).round(1)
    table = pd.DataFrame({"a": a, "b": rng.normal(0, 1, 300).round(2)})
    table.loc[:29, ["a", "b"]] = np.nan
    table.loc[290 : 289 + extra, "b"] = np.nan
    federation, method = _of(table, "a"), Describe(bins={"a": (60.0, 85.0)})
    first = method.run(federation, seed=0).result
    both = dataclasses.replace(federation, columns=Columns(features=("a", "b")))
    second = method.run(both, seed=0).result
    assert first.bin_counts["a"][0].min() == second.bin_counts["a"][0].min() == 10
    assert first.known[0].tolist() == [270.0] and second.known[0].tolist() == [270.0, 270.0]


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_bins_and_rows_of_other_runs_tell_of_no_few(extra: int) -> None:
    """Who lacks y is below 60, but for few: complete rows beside a bin would tell of them."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(60, 12, 400).round(1), rng.normal(size=400).round(2)
    y[x < 60] = y[np.flatnonzero(x >= 60)[:extra]] = np.nan
    table, complete = pd.DataFrame({"x": x, "y": y}), Preparation(missing="complete-rows")
    describe, means = Describe(bins={"x": (60.0,)}), get_method("mean-and-sd")()
    for bins_first in (False, True):
        federation = _of(table, "x", preparation=complete, policy="strict")
        both = dataclasses.replace(federation, columns=Columns(features=("x", "y")))
        first = describe.run(federation, seed=0).result if bins_first else None
        n_complete = int(np.sum(means.run(both, seed=0).result.n))
        again = describe.run(federation, seed=0)
        if first is None:
            assert n_complete == np.isfinite(y).sum()
            # A negative control: with bins this would be n_complete - extra.
            assert again.result.n.tolist() == [400]
            assert np.isnan(again.result.bin_counts["x"]).all()
        else:
            # Rows stay out whatever they hold, by a secret draw: 41 to 61 in 36 runs, also where
            # nobody of these lacks y. So the numbers give no difference.
            assert first.bin_counts["x"][0, 1] - n_complete > 20
            np.testing.assert_array_equal(again.result.bin_counts["x"], first.bin_counts["x"])
            more = Describe(bins={"x": (50.0, 60.0)}).run(federation, seed=0)
            assert np.isnan(more.result.bin_counts["x"][0]).tolist() == [False, True, False]


def test_edges_of_all_runs_count_as_columns() -> None:
    """Of 100 rows a strict site tells 50 columns, edges being columns, in whatever order."""
    names = [f"c{i}" for i in range(60)]
    table = pd.DataFrame(np.random.default_rng(1).normal(60, 12, (100, 60)).round(1), columns=names)
    rules = Preparation(missing="complete-rows")
    federation = _of(table, *names, preparation=rules, policy="strict")
    edges = 0
    for name in names[:12]:
        one = dataclasses.replace(federation, columns=Columns(features=(name,)))
        line = Describe().run(one, seed=0).result.bin_counts[name][0]
        edges += max(int((~np.isnan(line)).sum()) - 1, 0)
    assert edges == 25
    result = get_method("mean-and-sd")().run(federation, seed=0).result
    assert edges + len(result.to_frame().dropna()) == 50


def test_edges_cannot_feel_for_a_value() -> None:
    """A site answers for edges a tenth of a standard deviation apart, over all runs."""
    site = {"boston": tables()["boston"]}
    federation = Federation.local(site, columns=COLUMNS, preparation=KEEP, policy="consortium")
    x = np.sort(site["boston"]["age"].to_numpy())
    near = tuple(np.linspace(x[9] - 0.4, x[9] + 0.4, 41))
    for edges in (near, near[20:], near[1::2]):
        bins = Describe(bins={"age": edges}).run(federation, seed=0).result.bins
        told = set(bins.query("column == 'age'")["from"]) - {-np.inf}
        assert len(told) <= 1
        assert not told or abs(min(told) - near[0]) < 1e-9


def test_other_rows_get_no_bins() -> None:
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"x": rng.normal(size=300), "y": rng.normal(size=300)})
    table.loc[:59, "y"] = np.nan
    rules = Preparation(missing="complete-rows")
    columns = Columns(features=("x", "y"))
    federation = Federation.local({"s": table}, columns=columns, preparation=rules)
    first = Describe().run(federation, seed=0).result
    assert not np.isnan(first.bin_counts["x"]).all()
    alone = dataclasses.replace(federation, columns=Columns(features=("x",)))
    second = Describe().run(alone, seed=0)
    assert second.result.n.tolist() != first.n.tolist()
    assert np.isnan(second.result.bin_counts["x"]).all()
    assert any("No bins of x" in note for note in second.notes)


# --------------------------------------------------------------------------- tables and words


def test_table_one_in_four_forms() -> None:
    sites = tables()
    sites["osaka"] = sites["osaka"].assign(stage="I")
    run = run_on(sites, Describe(tables=(("sex", "stage"),)))
    frame = run.result.to_frame()
    assert list(frame.columns) == [ALL, "boston", "lyon", "osaka", "difference", "p"]
    assert frame.loc["rows"].tolist() == ["630", "180", "240", "210", "", ""]
    age = sites["osaka"]["age"]
    assert frame.loc["age, mean (SD)", "osaka"] == f"{age.mean():.1f} ({age.std():.1f})"
    assert frame.loc["  III", "osaka"] == "withheld"
    assert frame.loc["stage, n (%)", ALL] == "2 of 3 sites"
    text = run.result.to_text()
    assert "median [quartiles]" in text and "known within a bin" in text
    assert run.result.to_csv().startswith(",all sites,boston")
    assert r"sex, n (\%)" in run.result.to_latex() and r"\toprule" in run.result.to_latex()
    assert "<table" in run.result.to_html()
    assert "most in age: boston and osaka" in run.result.summary()
    assert "within sites p" in run.result.summary()
    assert "Some levels of stage, or all, are withheld by osaka." in run.notes
    with pytest.raises(ParameterError, match="table must be one of"):
        run.result.to_frame("nothing")
    with pytest.raises(ParameterError, match="column must be one of age, dose"):
        run.result.quantile("sex", 0.5)
    again = DescribeResult.from_files(run.result.to_files())
    pd.testing.assert_frame_equal(again.to_frame(), frame)


def made(
    mean: Any, sd: Any = 1.0, counts: Any = (), bins: Any = (), tables: Any = ()
) -> DescribeResult:
    """Three sites of 100 rows: a number x (edges 0 and 1), categories c and d (levels I and II)."""
    mean = np.array(mean, dtype=float)[:, None]
    square = 99 * np.broadcast_to(sd, 3).astype(float)[:, None] ** 2
    return DescribeResult(
        columns=("x", *(("c", "d") if len(counts) else ())),
        number_names=("x",),
        level_names={name: ("I", "II") for name in "cd" if len(counts)},
        sites=("lima", "oslo", "rome"),
        n=np.full(3, 100),
        known=np.where(np.isnan(mean), np.nan, 100.0),
        mean=mean,
        square=np.where(np.isnan(mean), np.nan, square),
        counts={name: np.array(counts, dtype=float) for name in "cd" if len(counts)},
        edges={"x": np.array([0.0, 1.0])} if len(bins) else {},
        bin_counts={"x": np.array(bins, dtype=float)} if len(bins) else {},
        pairs=(("c", "d"),) if len(tables) else (),
        tables=(np.array(tables, dtype=float),) if len(tables) else (),
        shares=(0.5,),
    )


NAN = float("nan")


def test_pooled_levels_are_over_sites_that_tell_all_of_them() -> None:
    """Else each level is of other rows: shares do not add up, and may say what no site has."""
    counts = [[60, 20, 20], [NAN, 30, 20], [10, 90, 0]]
    bins = [[20, 50, 30], [NAN, NAN, NAN], [20, 50, 30]]
    result = made([1, NAN, 3], counts=counts, bins=bins)
    frame = result.to_frame()
    assert frame.loc["c, n (%)", ALL] == "2 of 3 sites"
    levels = result.levels.query("site == @ALL and column == 'c'").set_index("level")
    assert levels.loc[["I", "II"], "rows"].tolist() == [70, 110]
    assert levels.loc[["I", "II"], "share"].sum() == pytest.approx(1)
    assert frame[ALL].iloc[[1, 2]].str.endswith(", 2 of 3 sites").all()
    assert "number is given" in result.to_text()
    none = made([1, 2, 3], counts=[[NAN, 50, 50], [NAN, NAN, 50], [NAN, NAN, NAN]])
    assert none.to_frame().loc[["  I", "  II"], ALL].eq("withheld").all(axis=None)
    told = none.levels.query("site == @ALL and level in ('I', 'II')")
    assert told[["rows", "share"]].isna().all(axis=None)
    assert none.to_frame()[ALL].str.contains("sites").sum() == 2  # missing values of c and of d


def test_of_what_no_site_tells_nothing_is_known() -> None:
    counts, tables = np.full((3, 3), NAN), np.full((3, 3, 3), NAN)
    result = made([1, 2, 3], counts=counts, tables=tables)
    levels = result.levels.query("site == @ALL")
    assert levels[["rows", "share"]].isna().all(axis=None)
    assert result.tests[["rows", "statistic", "p_value"]].isna().all(axis=None)
    tables[1] = [[20, 30, 0], [20, 30, 0], [0, 0, 0]]
    tests = made([1, 2, 3], counts=counts, tables=tables).tests
    assert (tests["rows"].tolist(), tests["p_value"].tolist()) == ([100, 100], [1.0, 1.0])


def test_a_pooled_median_that_no_edge_bounds_is_not_withheld() -> None:
    bins = [[100, NAN, NAN], [50, 50, NAN], [NAN, NAN, NAN]]
    row = made([1, 2, 3], bins=bins).to_frame().loc["  median [quartiles]"]
    assert (row[ALL], row["rome"]) == ("not known", "withheld")


def test_means_that_differ_without_spread_within_sites() -> None:
    for means, expected in (([1, 2, 2], (np.inf, 0.0)), ([0.1, 0.1, 0.1], (0.0, 1.0))):
        assert made(means, 0.0).sites_test("x")[1:] == expected
    # Sums of rows round: .3 is no other value than .1 + .2.
    assert made([0.3, 0.1 + 0.2, 0.3], 0.0).sites_test("x")[1:] == (0.0, 1.0)


def test_rare_levels_are_said_to_be_among_the_missing() -> None:
    stage = np.repeat(["I", "II", "III", "IV", "V"], [100, 53, 9, 9, 9])
    levels = {"stage": ("I", "II", "III", "IV", "V")}
    columns = Columns(features=("stage",), levels=levels)
    result = run_on({"boston": pd.DataFrame({"stage": stage})}, columns=columns).result
    assert result.to_frame().loc["  missing or rare, n (%)", "boston"] == "27 (15.0)"


@pytest.mark.parametrize(
    ("mean", "sd", "cell"),
    [
        (252_912.4, 65_132.0, "252,912 (65,132)"),
        (62.684, 12.24, "62.7 (12.2)"),
        (0.012345, 0.00123, "0.01235 (0.00123)"),
        (-1e-9, 1.1, "0.00 (1.10)"),
        (0.5, 0.0, "0.500 (0.000)"),
        (0.0, 0.0, "0 (0)"),
        (-62.684, 12.24, "\N{MINUS SIGN}62.7 (12.2)"),
        (3e-20, 1.1e-20, "3e\N{MINUS SIGN}20 (1.1e\N{MINUS SIGN}20)"),
    ],
)
def test_figures_have_the_decimals_of_their_spread(mean: float, sd: float, cell: str) -> None:
    assert made([mean] * 3, sd).to_frame().loc["x, mean (SD)", "oslo"] == cell


def test_a_site_in_other_units_keeps_two_digits() -> None:
    frame = made([1200, 1.2, 1100], [300, 0.31, 280]).to_frame()
    assert frame.loc["x, mean (SD)", ["lima", "oslo", "rome"]].tolist() == [
        "1,200 (300)",
        "1.20 (0.31)",
        "1,100 (280)",
    ]


def test_names_are_no_latex() -> None:
    table = pd.DataFrame({"a_b&c": np.random.default_rng(0).normal(size=50)})
    result = run_on({"s_1": table}, columns=Columns(features=("a_b&c",))).result
    assert r"a\_b\&c, mean (SD)" in result.to_latex() and r"s\_1" in result.to_latex()
    assert "difference" not in result.to_frame()
    table = table.set_axis(['=a>b|"'], axis=1)
    result = run_on({"s": table}, columns=Columns(features=tuple(table))).result
    assert r"=a$>$b$|$\textquotedblright{}, mean (SD)" in result.to_latex()
    assert result.to_csv().startswith(",all sites,s\n")
    assert """\n"'=a>b|"", mean (SD)",""" in result.to_csv()


def test_html_keeps_lines_indented_below_one_head() -> None:
    page = made([1, 2, 3], counts=[[50, 50, 0]] * 3).to_html()
    assert "<th>&emsp;II</th>" in page
    assert page.partition("</thead>")[0].count("<tr") == 1
    table = pd.DataFrame({"<b>&": np.random.default_rng(0).normal(size=50)})
    result = run_on({"s": table}, columns=Columns(features=("<b>&",))).result
    assert "<th>&lt;b&gt;&amp;, mean (SD)</th>" in result.to_html()


@pytest.mark.parametrize(
    ("method", "more", "says"),
    [
        (Describe(bins={"sex": (1,)}), {}, "bins are given for 'sex', which is no feature without"),
        (Describe(tables=(("age", "sex"),)), {}, "tables name 'age', which is no feature with"),
        (
            Describe(),
            {"preparation": Preparation(categorical="treatment")},
            "set \\[preparation\\] categorical to 'onehot'",
        ),
        (
            Describe(),
            {"preparation": Preparation(categorical="onehot", standardize="pooled")},
            "set standardize to 'none'",
        ),
        (
            Describe(),
            {"preparation": Preparation(categorical="onehot", missing="aggregated-mean")},
            "set \\[preparation\\] missing to",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(method: Describe, more: Any, says: str) -> None:
    with pytest.raises(StudyError, match=says):
        run_on(tables(), method, **more)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bins": {"age": [3, 2]}}, "bins must be for each column 1 to 200 ascending numbers"),
        ({"bins": [1, 2]}, "bins must be for each column"),
        ({"tables": [["sex", "sex"]]}, "tables must be a list of pairs of different columns"),
        ({"tables": [["sex", "stage"], ["stage", "sex"]]}, "tables must be different pairs"),
        ({"quantiles": [0, 0.5]}, "quantiles must be"),
    ],
)
def test_parameters(given: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        Describe.from_parameters(given)


# --------------------------------------------------------------------------- replies


def _aggregate(*values: float) -> Any:
    return relayed(np.array(values, dtype=float), Disclosure.AGGREGATE)


def _sums(**other: Any) -> Sums:
    given = {
        "n": relayed(100, Disclosure.AGGREGATE),
        "known": _aggregate(90),
        "means": _aggregate(1),
        "spreads": _aggregate(2),
        "levels": _aggregate(60, 40, 0, 50, 30, 20),
        "tables": _aggregate(30, 20, 10, 20, 10, 10, 0, 0, 0),
    }
    return Sums(**{**given, **other})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, None),
        ({"means": _aggregate(np.nan)}, "a column of which something is withheld"),
        ({"known": _aggregate(101)}, "more rows with a value than there are"),
        ({"levels": _aggregate(60, 40, 0, 50, 30, 30)}, "category 2 has levels of other rows"),
        ({"levels": _aggregate(60, 39.5, 0, 50, 30, 20)}, "category 1 has levels of other rows"),
        ({"tables": _aggregate(30, 20, np.nan, 20, 10, 10, 0, 0, 0)}, "table 1 has some cells"),
        ({"tables": _aggregate(30, 20, 9, 20, 10, 10, 0, 0, 0)}, "table 1 is of other rows"),
    ],
)
def test_replies_are_judged(other: Any, says: str | None) -> None:
    asked = Request(
        settings=Settings(bins={}, tables=(("a", "b"),), curves=()),
        numbers=("x",),
        categories=("a", "b"),
        sizes=np.array([2, 2]),
    )
    assert asked.lengths() == {"v": 6, "c": 9}
    found = _sums(**other).check(asked, {})
    assert (found is None) if says is None else says in str(found)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((10, np.nan, 80), None),
        ((np.nan, np.nan, np.nan), None),
        ((np.nan, 10, 80), "column 1 has bins of other rows"),
        ((10, 10, 80), "column 1 has bins of other rows"),
    ],
)
def test_replies_of_bins_are_judged(counts: Any, says: str | None) -> None:
    asked = Edges(
        settings=Settings(bins={}, tables=(), curves=()),
        numbers=("w", "x"),
        sizes=np.array([0, 2]),
        groups=np.array([], dtype=int),
        edges=_aggregate(1, 2),
    )
    assert asked.lengths() == {"b": 3, "h": 0}
    found = Bins(counts=_aggregate(*counts), ended=_aggregate()).check(
        asked, {"rows": np.array([5.0, 90.0])}
    )
    assert found == says

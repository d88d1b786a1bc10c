"""Studies of one's choice at a strict site with all defaults, over several runs.

Each attack told something of one person, or of a few, before there was a rule; without its rule it
still does.
"""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience import Columns, Federation
from consilience.completion.federated_pca import site as pca_site
from consilience.completion.federated_pca.messages import Moments, Settings
from consilience.protocol.mean_and_sd import MeanAndSD, SumsRequest
from consilience.protocol.method import ROLES, SiteData
from consilience.protocol.phases import standardise
from consilience.sites import encoding, row_guard
from consilience.sites.loaders import memory_site
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from consilience.sites.row_guard import RowGuard
from consilience.sites.site import Site
from consilience.testing.fakes import members
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.granted import GRANTED
from tests.security.test_federated_pca_attacks import (
    Refused,
    Villain,
    in_units_as_sent,
    site_of,
)

N = 300


def people(seed: int = 3, n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"age": rng.normal(50, 12, n).round(1), "lab": rng.normal(5, 1, n).round(2)}
    )


def summed(site: Any, run: str, features: Any, **settings: Any) -> tuple[int, np.ndarray]:
    """Rows and totals of a run of mean and standard deviation."""
    asked = Villain(site, run, features, "complete-rows", method="mean-and-sd", **settings)
    reply = asked.ask("sums", SumsRequest())
    return int(reply.n.value), np.asarray(reply.totals.value)


def test_a_run_is_opened_for_what_the_sites_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over columns rows are not guarded, over rows they are not filled without a grant.

    *Control*: opened as a study over columns, a method over rows told one person's row.
    """
    table = people().assign(id=[f"p{i}" for i in range(N)], tag=[f"t{i}" for i in range(N)])
    table.loc[17, "tag"] = None
    other = pd.DataFrame({"id": table["id"], "z": table["age"] ** 2, "y": table["lab"]})
    columns = {
        "s": Columns(id="id", features=("age", "lab")),
        "b": Columns(id="id", features=("z",), target="y"),
    }
    site = members(Federation.local({"s": table, "b": other}, columns=columns))["s"]
    with pytest.raises(Refused, match="is for studies over rows"):
        summed(site, "one", [], partition="columns", id="id")
    with pytest.raises(Refused, match="is for studies over columns"):
        Villain(site_of(people()), "one", ["lab"], "indicator", method="assisted-glm")
    monkeypatch.setattr(MeanAndSD, "partition", "columns")
    (n, whole), (less, without) = (
        summed(site, f"by-{name}", [], partition="columns", id=name) for name in ("id", "tag")
    )
    assert n - less == 1
    np.testing.assert_allclose(whole - without, table.loc[17, ["age", "lab"]].astype(float))


@pytest.mark.parametrize("kind", ["two columns", "with and without"])
def test_groups_of_other_entities_are_one_group(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups by two columns of entities that differ for one child differed by this child.

    *Control*: without the rule they do.
    """
    table = people()
    ward = np.array([f"w{i:03d}" for i in np.random.default_rng(1).integers(0, 150, N)])
    now = ward.copy()
    now[123] = "w007" if ward[123] != "w007" else "w008"
    if kind == "with and without":
        ward = np.array([f"p{i:03d}" for i in range(N)])
        now = ward.copy()
        now[[57, 58]] = now[[58, 57]]
    table = table.assign(ward=ward, now=now)
    first = None if kind == "with and without" else "ward"

    def differences() -> set[int]:
        site = site_of(table)
        asked = [
            Villain(site, run, ["age", "lab"], entity=entity).moments(10)[1]
            for run, entity in (("one", first), ("two", "now"))
        ]
        found = [
            a[1:3] - b[1:3]
            for a in asked[0]
            for b in asked[1]
            if abs(a[0] - b[0]) < 10 and len(asked[1]) > 1
        ]
        return {int(np.abs(d).max() < 100) for d in found if np.abs(d).max() > 1e-6}

    assert not differences()
    monkeypatch.setattr(pca_site, "n_splits_of", lambda settings, data, site: settings.n_splits)
    assert 1 in differences()


def test_few_entities_are_one_group() -> None:
    """Two deals of eight wards, over rows that differ by ten, are often alike but for few rows."""
    wards = np.arange(N) % 8
    table = people().assign(ward=[f"w{i}" for i in wards])
    counts, _ = Villain(site_of(table), "one", ["age", "lab"], entity="ward").moments(10)
    assert counts.tolist() == [N]
    table["ward"] = [f"w{i}" for i in np.arange(N) % 30]
    counts, _ = Villain(site_of(table), "one", ["age", "lab"], entity="ward").moments(10)
    assert len(counts) == 2


@pytest.mark.parametrize("few", [1, 3])
@pytest.mark.parametrize("levels", [None, ("m", "f"), ("m", "f", "d")])
def test_one_indicator_after_the_other_leaves_nobody_over(
    few: int, levels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has neither of two values is counted by none of two runs, also where both are answered.

    *Control*: without the rule, runs with one indicator each count them and sum over them.
    """
    monkeypatch.setattr("consilience.sites.accounting.hold_coding", lambda *_: None)
    table = people().assign(sex=np.repeat(["m", "f", "d"], [160, N - 160 - few, few]))
    settings = {} if levels is None else {"levels": {"sex": levels}}

    def left_over() -> float:
        site = site_of(table)
        n, totals = zip(
            *(
                summed(site, value, ["sex", "age"], indicators={"sex": (value,)}, **settings)
                for value in ("m", "f")
            ),
            strict=True,
        )
        assert n[0] == n[1]
        return float(n[0] - totals[0][0] - totals[1][0])

    assert left_over() == 0
    monkeypatch.setattr(encoding, "of_few", lambda value, unknown, least: np.zeros_like(unknown))
    if levels is None:
        assert left_over() == few


def listed(table: pd.DataFrame, **offered: Any) -> Site:
    return memory_site("s", table, own=SiteColumns(offered={"age": "number", **offered}))


def coded(*levels: str, **more: Any) -> dict[str, Any]:
    return {"levels": {"sex": levels}, "categorical": "onehot", **more}


CODINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "order of levels": (coded("m", "f", "d"), coded("f", "m", "d")),
    "onehot, then treatment": (coded("m", "f", "d"), coded("m", "f", "d", categorical="treatment")),
    "levels, then an indicator": (
        coded("m", "f", "d"),
        coded("m", "f", "d", indicators={"sex": ("m",)}),
    ),
    "one indicator, then another": (
        coded("m", "f", "d", indicators={"sex": ("m",)}),
        coded("m", "f", "d", indicators={"sex": ("f",)}),
    ),
}


@pytest.mark.parametrize("kind", CODINGS)
def test_a_column_is_coded_in_one_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list with a rare level another level gives way, by the order that a study declares.

    *Control*: without the rule two runs tell the number of the only two people of the third one.
    """
    table = people().assign(sex=np.repeat(["m", "f", "d"], [160, N - 162, 2]))
    first, second = CODINGS[kind]

    def of_a_level(site: Site, run: str, coding: dict[str, Any]) -> float:
        """Rows of the first level that leaves."""
        asked = Villain(site, run, ["sex", "age", "lab"], "complete-rows", **coding)
        reply = asked.ask("moments", Moments(settings=Settings(1)))
        means = reply.means.value[0]
        return float(reply.counts.value[0] * means[np.isfinite(means)][0])

    site = listed(table, lab="number", sex=("m", "f", "d"))
    before = of_a_level(site, "one", first)
    assert of_a_level(site, "two", first) == before
    with pytest.raises(Refused, match="column sex was coded otherwise in an earlier run"):
        of_a_level(site, "three", second)
    assert summed(site, "four", ["age"])[0] >= N - 2
    if kind == "order of levels":
        monkeypatch.setattr("consilience.sites.accounting.hold_coding", lambda *_: None)
        monkeypatch.setattr(RowGuard, "hide_columns", lambda *_: None)
        monkeypatch.setattr(RowGuard, "_varied", lambda self, wanted, *_: wanted)
        assert N - before - of_a_level(site, "five", second) == pytest.approx(2.0)


def test_a_coding_is_kept_once_something_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that stops for its levels may be corrected; a steward's grant frees codings."""
    table = people().assign(sex=np.repeat(["m", "f"], N // 2))
    site = listed(table, sex=("m", "f"))
    with pytest.raises(Refused, match="outside its declared levels"):
        summed(site, "one", ["sex", "age"], **coded("m", "x"))
    assert summed(site, "two", ["sex", "age"], **coded("m", "f"))[0] == N
    free = site_of(table, GRANTED)
    for run, value in (("one", "m"), ("two", "f")):
        assert summed(free, run, ["sex", "age"], indicators={"sex": (value,)})[0] == N


@pytest.mark.parametrize("few", [0, 1, 9])
@pytest.mark.parametrize("kind", ["two runs", "one run", "turned around", "numbers"])
def test_of_two_columns_that_hardly_differ_one_is_told(
    kind: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smoker and ever smoker, each with age, told the ages of those in whom they differ.

    Equal columns look like these. *Control*: without the rule the difference is these people's sum.
    """
    rng = np.random.default_rng(6)
    smoker = (rng.random(N) < 0.4).astype(float) if kind != "numbers" else rng.normal(5, 1, N)
    ever = smoker.copy()
    who = np.flatnonzero(smoker == 0)[:few] if kind != "numbers" else np.arange(few)
    ever[who] = 1.0 if kind != "numbers" else 7.0
    table = people().assign(smoker=smoker, ever=1 - ever if kind == "turned around" else ever)

    def told(site: Site, run: str, *features: str) -> dict[str, float]:
        """Sums of products with age, by column; nothing where it is withheld."""
        asked = Villain(site, run, [*features, "lab"])
        reply = asked.ask("moments", Moments(settings=Settings(1)))
        means, n = reply.means.value[0], reply.counts.value[0]
        kept = [c for c, mean in zip((*features, "lab"), means, strict=True) if np.isfinite(mean)]
        mean = means[np.isfinite(means)]
        at = kept.index("age")
        square = np.zeros((len(kept),) * 2)
        square[np.triu_indices(len(kept))] = reply.products.value[0]
        square = square + np.triu(square, 1).T
        return {c: square[i, at] + n * mean[i] * mean[at] for i, c in enumerate(kept)}

    def both() -> tuple[dict[str, float], dict[str, float]]:
        site = site_of(table)
        if kind == "one run":
            found = told(site, "one", "smoker", "ever", "age")
            return found, found
        return told(site, "one", "smoker", "age"), told(site, "two", "ever", "age")

    first, second = both()
    assert "smoker" in first and "ever" not in second
    if kind == "one run":
        return
    monkeypatch.setattr(RowGuard, "hide_columns", lambda *_: None)
    first, second = both()
    of_ever = second["ever"]
    if kind == "turned around":
        of_ever = table["age"].sum() - of_ever
    truth = ((ever - smoker) * table["age"]).sum()
    assert of_ever - first["smoker"] == pytest.approx(truth, abs=1e-6)


def test_columns_of_their_own_are_told() -> None:
    """Of 20 columns of 0 and 1 over 1,000 rows, or of numbers over 40, none stands for another."""
    rng = np.random.default_rng(2)
    for x in ((rng.random((1000, 20)) < 0.4).astype(float), rng.normal(size=(40, 20))):
        every = np.ones(20, dtype=bool)
        view = row_guard.View(np.ones(len(x), dtype=bool), every, ~every, ~every)
        assert not row_guard.failing(x, [view], every, Policy().limits).any()


@pytest.mark.parametrize("few", [0, 1, 3])
def test_a_spelling_is_no_gap_that_stays(few: int) -> None:
    """`4.0` among cells `4` is the level 4, or a missing value, however levels are declared."""
    stage = np.array(["4", "5"] * (N // 2), dtype=object)
    stage[: 2 * few : 2] = "4.0"
    site = listed(people().assign(stage=stage), stage=(4, 5))
    levels = {"levels": {"stage": ("4", "5", "z")}, "categorical": "onehot"}
    asked = Villain(site, "one", ["stage", "age"], "complete-rows", **levels)
    reply = asked.ask("moments", Moments(settings=Settings(1)))
    assert reply.counts.value[0] == N - few


@pytest.mark.parametrize("few", [0, 1, 4, 9])
def test_columns_of_roles_without_use_are_not_read(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that is not positive, a state, a class: a study could ask whether anybody has it.

    *Control*: where such columns are read the number of rows tells whether somebody is at 0, and
    roughly how many.
    """
    z = np.random.default_rng(4).normal(50, 5, N).round(1)
    z[:few] = 0.0
    table = people().assign(z=z)

    def rows() -> tuple[int, int]:
        site = site_of(table)
        return (
            summed(site, "as-feature", ["age", "z"])[0],
            summed(site, "as-weight", ["age"], weight="z")[0],
        )

    assert rows() == (N, N)
    monkeypatch.setattr(MeanAndSD, "roles", ROLES)
    assert (rows() == (N, N)) is (few == 0)


@pytest.mark.parametrize("lacking", [1, 4, 9])
def test_as_many_rows_stay_out_for_one_person_as_for_nine(lacking: int) -> None:
    """Where nothing is told by parts of the table, their number says no more than that.

    A quarter of all, and ten besides.

    *Control*: with a grant, as many tens as there are parts in which somebody lacks a value.
    """
    rows = {}
    for policy in (Policy(), GRANTED):
        table = people()
        table.loc[np.random.default_rng(5).permutation(N)[:lacking], "lab"] = np.nan
        site = site_of(table, policy)
        assert summed(site, "all", ["age"])[0] == N
        rows[policy.foreign_models] = summed(site, "some", ["age", "lab"])[0]
    assert rows[False] == N - N // 4 - 10
    assert (rows[True] < N - 10) is (lacking > 1)


# ------------------------------------------------------------------- rows by which two runs differ

FOUR = ["age", "lab", "sex", "smoker"]


def patients(seed: int, lacking: int) -> pd.DataFrame:
    """People of whom some were not scanned; one in seven is of the rarer sex."""
    rng = np.random.default_rng(seed)
    table = people(seed, 400).assign(
        sex=(rng.random(400) < 0.15) * 1.0,
        smoker=(rng.random(400) < 0.4) * 1.0,
        scan=rng.normal(size=400),
    )
    table.loc[rng.permutation(400)[:lacking], "scan"] = np.nan
    return table


def moments(site: Any, run: str, features: list[str]) -> tuple[float, np.ndarray]:
    """Rows and sums of products about nought; NaN of columns that are withheld."""
    asked = Villain(site, run, features, "complete-rows")
    reply = asked.ask("moments", Moments(settings=Settings(1)))
    n, mean = float(reply.counts.value.sum()), np.asarray(reply.means.value)[0]
    told = np.flatnonzero(np.isfinite(mean))
    square = np.zeros((len(told), len(told)))
    square[np.triu_indices(len(told))] = reply.products.value[0]
    square += np.triu(square, 1).T + n * np.outer(mean[told], mean[told])
    found = np.full((len(features), len(features)), np.nan)
    found[np.ix_(told, told)] = square
    return n, found


def counts_between(one: Any, other: Any) -> np.ndarray:
    """Cells of sex and smoker among the rows of one run that the other one lacks."""
    n, d = one[0] - other[0], one[1][:4, :4] - other[1][:4, :4]
    women, smokers, both = d[2, 2], d[3, 3], d[2, 3]
    cells = (women, n - women, smokers, n - smokers)
    inside = (both, women - both, smokers - both, n - women - smokers + both)
    return np.array([*cells, *inside])


@pytest.mark.parametrize("lacking", [1, 9, 25, 60])
def test_rows_between_two_runs_are_told_of_like_a_release(
    lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums with and without a column that some lack: those over the rows between are of many.

    *Control*: without the rule counts of one to nine follow in each of six tables, and with them
    the age of the only woman among those rows.
    """

    def fewest(seed: int) -> float:
        site = site_of(patients(seed, lacking))
        first = moments(site, "first", FOUR)
        try:
            second = moments(site, "second", [*FOUR, "scan"])
        except Refused:
            return float(N)  # by the luck of the draw: nothing is told
        with contextlib.suppress(Refused):  # by the same luck nothing is told again
            assert moments(site, "again", [*FOUR, "scan"])[0] == second[0]
        assert first[0] - second[0] <= max(lacking, 10) + 100, "a quarter stays out"
        # Of columns that are told again: by the luck of the draw there may be none.
        return float(np.nanmin([*counts_between(first, second), N]))

    assert all(fewest(seed) > 9.5 for seed in range(6))
    monkeypatch.setattr(RowGuard, "_varied", lambda self, wanted, *_: wanted)
    monkeypatch.setattr(row_guard, "failing", lambda x, views, asked, *_: asked & False)
    assert all(fewest(seed) < 9.5 for seed in range(6))


def test_rows_that_come_wait_until_they_may_be_told_of() -> None:
    """Twelve new people of whom few are women do not enter; with four hundred more all do."""
    table = patients(0, 0)
    site = site_of(table[:388])
    first = moments(site, "first", FOUR)
    for n, come in ((400, False), (800, True)):
        more = pd.concat([table, patients(9, 0)], ignore_index=True)[:n]
        grown = site_of(more)
        grown.home = site.home
        later = moments(grown, f"with-{n}", FOUR)
        assert (later[0] == n) is come
        if come:
            assert np.nanmin([*counts_between(later, first), N]) > 9.5
        else:
            assert later[0] == first[0]


def test_a_corrected_table_tells_of_many() -> None:
    """Two people of an earlier run are others now; with many more they are not in the new one.

    Nor are twelve new people.
    """
    table = patients(1, 0)
    site = site_of(table)
    first = moments(site, "first", FOUR)
    table.loc[[5, 9], "age"] += 1.0
    after = site_of(pd.concat([table, patients(7, 0)[:12]], ignore_index=True))
    after.home = site.home
    later = moments(after, "later", FOUR)
    assert later[0] <= 398 - 398 // 4 - 9
    between = counts_between(first, later)
    assert not (between < 9.5).any(), "of columns that are told again"
    assert np.isfinite(later[1]).sum() >= 4, "at least two of four columns are"


def test_studies_rest_on_the_rows_that_all_listed_columns_share() -> None:
    """Who lacks a value of a listed column that few lack is in no study: nothing is between two.

    At most a tenth of the rows is left out so.
    """
    table = patients(2, 3)
    own = SiteColumns(offered={name: "number" for name in table})
    site = memory_site("s", table, own=own)
    first, second = (moments(site, f"of-{len(f)}", f) for f in (FOUR, [*FOUR, "scan"]))
    assert first[0] == second[0] == 397
    np.testing.assert_allclose(first[1][:4, :4], second[1][:4, :4], rtol=1e-12)
    for j in range(6):  # 54 people of 400, nine by nine
        table[f"x{j}"] = np.where(np.arange(400) // 9 == j, np.nan, table["lab"])
    own = SiteColumns(offered={name: "number" for name in table if name != "scan"})
    n, _ = moments(memory_site("s", table, own=own), "many", FOUR)
    assert n == 400 - 36
    assert moments(memory_site("s", table, GRANTED, own=own), "granted", FOUR)[0] == 400


def rounded_otherwise(seed: int) -> tuple[float, float]:
    """What two runs with far centres tell of the few whom they round otherwise, and what is true.

    `x` has all its digits, as computed columns do. Both centres are whole multiples of the grid of
    numbers near them; scaled, boundaries of rounding lie a hundredth of a grid step apart.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(75, 12, 100).round(1) / rng.normal(1.7, 0.1, 100).round(2) ** 2
    lab = rng.normal(5, 1, 100).round(2)
    site = site_of(pd.DataFrame({"x": x, "lab": lab}))
    top = 2.0 ** int(np.floor(np.log2(2**20 * x.std())) - 1)
    grid, scale = 2.0**-52 * top, 1.8512345678901
    first = np.round(-(top * 1.9) / grid) * grid

    def place(centre: float) -> float:
        value = Fraction(-centre) / Fraction(scale)
        return float(value / Fraction(2) ** (int(np.floor(np.log2(float(value)))) - 52) % 1)

    steps = np.array([(place(first - k * grid) - place(first)) % 1 for k in range(1, 2000)])
    best = int(np.argmin(np.abs(steps - 0.01))) + 1
    centres = (first, first - best * grid)
    told = []
    for run, centre in enumerate(centres):
        asked = Villain(site, f"run-{run}", ["x", "lab"])
        units = np.array([[0.0, 0.0], [centre, 0.0], [scale, 1.0]])
        values = (relayed(line, Disclosure.AGGREGATE) for line in units)
        asked.ask("standardise.apply", standardise.Scale(False, *values))
        reply = asked.ask("moments", Moments(settings=Settings(1)))
        told.append(float(reply.products.value[0][1]))  # about the means
    step = 2.0 ** (np.floor(np.log2(top * 1.9 / scale)) - 52)
    moved = np.rint(((x - centres[1]) / scale - (x - centres[0]) / scale) / step)
    truth = ((moved - np.median(moved)) * (lab - lab.mean())).sum()
    return (told[1] - told[0]) / step, float(truth)


def test_rounding_far_away_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are taken in the site's own units, and moved: no row is rounded as somebody chooses.

    *Control*: sums over scaled rows told the lab value of who is rounded otherwise.
    """
    seeds = [s for s in range(10) if rounded_otherwise(s)[1] != 0]
    assert seeds, "somebody is rounded otherwise"
    noise = [abs(rounded_otherwise(s)[0] - rounded_otherwise(s)[1]) for s in seeds]
    monkeypatch.setattr(SiteData, "in_own_units", in_units_as_sent)
    told = [abs(rounded_otherwise(s)[0] - rounded_otherwise(s)[1]) for s in seeds]
    assert max(told) < 1e-3 < min(noise)

"""Contingency tables: statistics, what leaves, attacks, command line."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2, chi2_contingency
from statsmodels.stats.contingency_tables import StratifiedTable

from consilience.contingency.protocol import ContingencyTable, Levels, Table
from consilience.engines.federation import Federation
from consilience.exceptions import DataError, QuorumError, StudyError
from consilience.numerics.two_way_tables import cramers_v, pearson, within_strata
from consilience.protocol.method import Columns, Preparation
from consilience.testing.fakes import array_loader
from consilience.wire.disclosure import Limits, relayed
from consilience.wire.message import Disclosure
from consilience.wire.moment_facts import Coded
from tests.cli.workspace import call
from tests.reference import contingency

LEVELS = {"sex": ("m", "f"), "admitted": ("yes", "no")}
ONEHOT = Preparation(categorical="onehot")
# Admissions to Berkeley in six departments, 1973 (Bickel, Hammel and O'Connell, Science 187, 1975):
# men and women, admitted and not.
BERKELEY = {
    "a": ((512, 313), (89, 19)),
    "b": ((353, 207), (17, 8)),
    "c": ((120, 205), (202, 391)),
    "d": ((138, 279), (131, 244)),
    "e": ((53, 138), (94, 299)),
    "f": ((22, 351), (24, 317)),
}


def rows_of(table: Any, levels: Any = LEVELS) -> pd.DataFrame:
    """One row for each person of a table."""
    places = np.indices(np.shape(table)).reshape(2, -1).repeat(np.ravel(table), axis=1)
    columns = zip(levels, places, strict=True)
    return pd.DataFrame({name: np.array(levels[name])[place] for name, place in columns})


def run_on(tables: Any, levels: Any = LEVELS, *, policy: Any = "consortium", **more: Any) -> Any:
    sites = {name: rows_of(table, levels) for name, table in tables.items()}
    columns = Columns(features=tuple(levels), levels=levels)
    settings = {"columns": columns, "preparation": ONEHOT, "policy": policy, **more}
    return ContingencyTable().run(Federation.local(sites, **settings), seed=0)


def test_the_pooled_test_is_that_of_all_rows() -> None:
    rng = np.random.default_rng(1)
    levels = {"x": ("a", "b", "c"), "y": ("1", "2", "3", "4")}
    tables = {s: rng.integers(10, 60, size=(3, 4)) for s in ("ash", "birch", "cedar")}
    run = run_on(tables, levels)
    pooled = pd.concat([rows_of(table, levels) for table in tables.values()])
    table = pd.crosstab(pooled["x"], pooled["y"])
    found = chi2_contingency(table, correction=False)
    np.testing.assert_array_equal(run.result.table, table)
    np.testing.assert_allclose(run.result.expected, found.expected_freq, rtol=1e-12)
    assert run.result.statistic == pytest.approx(found.statistic, rel=1e-12)
    assert run.result.statistic == pytest.approx(contingency.pearson(table.to_numpy()), rel=1e-12)
    assert run.result.p_value == pytest.approx(found.pvalue, rel=1e-12)
    assert run.result.df == found.dof == run.result.within_df == 6
    assert run.result.cramers_v == pytest.approx(
        np.sqrt(found.statistic / table.to_numpy().sum() / 2)
    )
    textbook = contingency.general_association(np.stack(list(tables.values())))
    assert run.result.within_statistic == pytest.approx(textbook, rel=1e-12)
    pd.testing.assert_frame_equal(run.result.to_frame(), table, check_dtype=False)


def test_admissions_to_berkeley_hang_on_sex_only_in_the_pooled_table() -> None:
    """Without a limit on cells, as statsmodels computes it without a correction."""
    run = run_on(BERKELEY, policy="simulation")
    strata = [np.array(table) for table in BERKELEY.values()]
    peer = StratifiedTable(strata).test_null_odds(correction=False)
    assert run.result.within_statistic == pytest.approx(peer.statistic, rel=1e-12)
    assert run.result.within_p_value == pytest.approx(peer.pvalue, rel=1e-12)
    assert run.result.within_statistic == pytest.approx(1.5246, abs=5e-5)
    assert run.result.statistic == pytest.approx(92.2053, abs=5e-5)
    assert run.result.verdicts() == (True, False)
    assert "The tests disagree: the pooled association does not show" in run.result.summary()


def test_an_association_within_sites_may_be_hidden_in_the_pooled_table() -> None:
    # The second level is ahead by .2 at both sites, and mostly where the first is rare.
    tables = {"ash": ((140, 60), (90, 10)), "birch": ((10, 90), (60, 140))}
    result = run_on(tables).result
    assert result.statistic == 0.0
    assert result.verdicts() == (False, True)
    assert "does not show in the pooled table" in result.summary()


def test_empty_levels_take_no_part() -> None:
    table = np.array([[20, 30, 0], [25, 10, 0], [0, 0, 0]])
    assert pearson(table) == pearson(table[:2, :2])
    assert cramers_v(table) == cramers_v(table[:2, :2])
    assert within_strata(table[None]) == pytest.approx(within_strata(table[None, :2, :2]))
    for degenerate in (table[:1], table[:, 2:]):
        assert pearson(degenerate) == within_strata(degenerate[None]) == (0.0, 0, 1.0)
        assert np.isnan(cramers_v(degenerate))


def test_sites_without_a_level_in_common_show_nothing_within() -> None:
    apart = np.zeros((2, 2, 2))
    apart[0, 0], apart[1, 1] = (30, 40), (40, 30)
    assert within_strata(apart) == (0.0, 0, 1.0)
    assert pearson(apart.sum(axis=0)).df == 1


@pytest.mark.parametrize(("cell", "told"), [(0, False), (1, False), (9, False), (10, True)])
def test_a_table_with_a_small_cell_stays_as_a_whole(cell: int, told: bool) -> None:
    tables = {"ash": ((30, 20), (25, 40)), "birch": ((50, cell), (30, 20))}
    run = run_on(tables)
    assert run.result.sites == (("ash", "birch") if told else ("ash",))
    assert run.result.withheld == (() if told else ("birch",))
    assert run.result.n == 115 + told * (100 + cell)
    assert any("Tables withheld" in note and "birch" in note for note in run.notes) != told
    if not told:
        with pytest.raises(QuorumError, match="no site tells its table"):
            run_on({"birch": tables["birch"]})


def test_presets() -> None:
    """Strict sites tell tables of large cells; where no record is protected all are told."""
    large = ((60, 40), (50, 70))
    for cell, told in ((0, ()), (3, ()), (40, ("birch",))):
        tables = {"ash": large, "birch": ((60, cell), (50, 70))}
        assert run_on(tables, policy="strict").result.sites == ("ash", *told)
        assert run_on(tables, policy="simulation").result.sites == ("ash", "birch")
    levels = {"x": ("a", "b", "c"), "y": ("1", "2")}
    for cell in (40, 9):
        table = {"ash": np.array([[40, 41], [42, 43], [cell, 44]])}
        if cell < 10:
            with pytest.raises(QuorumError, match="no site tells its table"):
                run_on(table, levels, policy="strict")
        else:
            assert run_on(table, levels, policy="strict").result.sites == ("ash",)


# --- attacks


def unknown_cells(withheld: np.ndarray, told: np.ndarray) -> bool:
    """Whether the totals of a table with the told cells leave each withheld one open."""
    cells = withheld.size
    margins = [np.kron(np.eye(len(withheld)), np.ones(withheld.shape[1]))]
    margins += [np.kron(np.ones(len(withheld)), np.eye(withheld.shape[1]))]
    known = np.vstack([*margins, np.eye(cells)[told.ravel()]])
    rank = np.linalg.matrix_rank(known)
    return all(np.linalg.matrix_rank(np.vstack([known, row])) > rank for row in np.eye(cells))


def test_totals_from_elsewhere_do_not_tell_a_withheld_cell() -> None:
    """The attacker knows every total of the site's rows; *control*: one cell withheld by itself."""
    small = np.array([[40, 4, 30], [25, 35, 20]])
    levels = {"x": ("a", "b"), "y": ("1", "2", "3")}
    run = run_on({"ash": small + 40, "birch": small}, levels)
    left = [line for line in run.transcript if line.site == "birch" and line.field == "counts"]
    assert left and all("withheld" in line.verdict for line in left)
    assert run.result.withheld == ("birch",) and len(run.result.tables) == 1
    assert unknown_cells(small, np.zeros(small.shape, dtype=bool))
    assert not unknown_cells(small, small != 4)


def test_two_runs_do_not_tell_few_people_by_nearly_equal_columns() -> None:
    """A strict site: current smokers and ever smokers differ in three people.

    *Control*: under "consortium", which grants more than such counts, both tables leave.
    """
    rng = np.random.default_rng(3)
    n = 300
    ever = np.where(rng.random(n) < 0.4, "yes", "no")
    now = ever.copy()
    now[np.flatnonzero(ever == "yes")[:3]] = "no"
    sites = {"ash": {"sex": np.where(rng.random(n) < 0.5, "f", "m"), "ever": ever, "now": now}}
    for policy, blocked in (("strict", True), ("consortium", False)):
        federation = Federation.local(sites, columns=Columns(), preparation=ONEHOT, policy=policy)
        found = []
        for column in ("ever", "now"):
            levels = {"sex": ("f", "m"), column: ("no", "yes")}
            asked = Columns(features=("sex", column), levels=levels)
            try:
                run = ContingencyTable().run(dataclasses.replace(federation, columns=asked), seed=0)
            except QuorumError:
                continue
            found.append(run.result.table[:, 1].sum())
        assert len(found) == (1 if blocked else 2)
        assert blocked or found[0] - found[1] == 3


def test_a_coordinator_that_codes_otherwise_gets_no_table() -> None:
    """Three columns, or levels that are not all: a cell would be a rest of the others."""
    first, second = np.eye(2)[np.arange(60) % 2], np.eye(2)[np.arange(60) // 2 % 2]
    message = Levels(rows=("a", "b"), columns=("c", "d"))
    step = ContingencyTable.steps[0]
    said: list[str] = []
    limits: Any = SimpleNamespace(limits=Limits(), note=said.append)
    whole = (Coded((0, 1), True), Coded((2, 3), True))
    data = array_loader(np.hstack([first, second]), coded=whole)(Columns(), ONEHOT)
    table = step(message, data, {}, limits)[0].counts.value
    np.testing.assert_array_equal(table, [15, 15, 15, 15])
    blanked = data.without_content(["x1"])
    assert np.isnan(step(message, blanked, {}, limits)[0].counts.value).all()
    assert "some rows have none of the declared levels" in said[0]
    # A masked run asks twice, and its log says it once.
    (parts,) = (one for one in ContingencyTable.steps if one.name == "parts")
    assert np.isnan(parts(message, blanked, {}, limits)[0].counts.value).all() and len(said) == 1
    for coded in (whole[:1], (*whole, whole[0]), (whole[0], Coded((2, 3), False))):
        with pytest.raises(DataError, match="not all levels of two columns"):
            step(message, dataclasses.replace(data, coded=coded), {}, limits)


def test_a_reply_is_a_whole_table_of_whole_numbers() -> None:
    request = Levels(rows=("a", "b"), columns=("c",))
    for counts, fault in (
        ([20.0, 30.0], None),
        ([np.nan, np.nan], None),
        ([np.nan, 30.0], "some cells"),
        ([20.5, 30.0], "no whole number"),
    ):
        said = Table(counts=relayed(np.array(counts), Disclosure.AGGREGATE)).check(request, {})
        assert said == fault or (fault and fault in str(said))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": Columns(features=("sex",), levels={"sex": ("m", "f")})}, "two features"),
        ({"preparation": Preparation(categorical="treatment")}, "categorical to 'onehot'"),
        ({"preparation": dataclasses.replace(ONEHOT, missing="aggregated-mean")}, "known levels"),
    ],
)
def test_studies_that_do_not_fit_are_refused(change: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        run_on(BERKELEY, **change)


# --- command line


STUDY = """\
name = "admissions"
method = "contingency-table"
seed = 1
[data]
features = ["sex", "admitted"]
levels = { sex = ["m", "f"], admitted = ["yes", "no"] }
[preparation]
categorical = "onehot"
[sites]
names = ["c", "d"]
"""
SITE = """\
name = "SITE"
home = "../homes/SITE"
[source]
path = "../SITE.csv"
[columns.offered]
sex = ["m", "f"]
admitted = ["yes", "no"]
"""


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sites").mkdir()
    Path("study.toml").write_text(STUDY, encoding="utf-8")
    for site in ("c", "d"):
        rows_of(BERKELEY[site]).to_csv(f"{site}.csv", index=False)
        Path(f"sites/{site}.toml").write_text(SITE.replace("SITE", site), encoding="utf-8")
    for words in (("check", "study.toml"), ("run", "study.toml", "--out", "run", "--quiet")):
        called = call(*words)
        assert called.exit_code == 0, called.output
    assert "1,710 rows of c, d" in re.sub(r"\s+", " ", call("show", "run").output)
    assert "count: Levels" in call("methods", "contingency-table").output
    # What a run would refuse at once, the check refuses too.
    one = STUDY.replace('["sex", "admitted"]', '["sex"]')
    one = one.replace(', admitted = ["yes", "no"] }', " }")
    Path("one.toml").write_text(one, encoding="utf-8")
    said = [call("check", "one.toml"), call("run", "one.toml", "--out", "other")]
    assert [done.exit_code for done in said] == [2, 2]
    assert all("needs two features" in re.sub(r"\s+", " ", done.output) for done in said)


def test_masked_sums_give_the_pooled_test_without_a_table_of_a_site() -> None:
    small = {**BERKELEY, "g": ((30, 20), (5, 20))}
    plain, masked = run_on(small), run_on(small, sums="secure")
    assert masked.result.sites == plain.result.sites == ("a", "c", "d", "e", "f")
    assert masked.result.withheld == plain.result.withheld == ("b", "g")
    np.testing.assert_array_equal(masked.result.table, plain.result.table)
    assert masked.result.tables.shape == (0, 2, 2) and masked.result.site_counts.empty
    for name in ("statistic", "p_value", "cramers_v"):
        wanted = pytest.approx(getattr(plain.result, name), rel=1e-12)
        assert getattr(masked.result, name) == wanted
    # Within sites: each site's statistic, of no more digits than a p-value needs.
    sizes = plain.result.tables.sum(axis=(1, 2))
    own = [contingency.pearson(table) for table in plain.result.tables]
    each = [round(64 * x * (n - 1) / n) / 64 for x, n in zip(own, sizes, strict=True)]
    assert masked.result.within_statistic == sum(each) and masked.result.within_df == 5
    assert masked.result.within_p_value == pytest.approx(chi2.sf(sum(each), 5), rel=1e-12)
    page = " ".join(masked.report().html.split())
    assert "which is all that masked sums tell, tests within sites" in page
    assert "Cochran-Mantel" in plain.report().html and "Cochran-Mantel" not in page
    assert "what was seen is the table of all sites that tell theirs" in page
    assert "Rows by site" not in page
    left = {line.disclosure for line in masked.transcript if line.direction == "from-site"}
    assert left == {"masked", "public"}


def test_a_weak_test_within_sites_is_not_said_to_tell_sites_apart() -> None:
    alike = {f"s{i}": ((35, 25), (25, 35)) for i in range(12)}
    plain, masked = run_on(alike), run_on(alike, sums="secure")
    assert plain.result.verdicts() == (True, True)
    assert masked.result.verdicts()[0]
    weak = {f"s{i}": ((32, 28), (28, 32)) for i in range(14)}
    masked = run_on(weak, sums="secure")
    assert masked.result.verdicts() == (True, False)
    assert "differences between" not in masked.result.summary() + masked.report().html
    assert "it is weak" in masked.result.summary()


def test_masked_sums_where_every_table_is_withheld_stop_with_a_sentence() -> None:
    tables = {name: ((30, 20), (5, 20)) for name in ("ash", "birch", "cedar")}
    with pytest.raises(QuorumError, match="0 of 3 sites can tell their tables"):
        run_on(tables, sums="secure")


@pytest.mark.parametrize("tellers", [1, 2, 3])
def test_a_masked_table_is_that_of_three_sites_or_of_none(tellers: int) -> None:
    """The total over one of four sites would be that site's own, in an honest run."""
    names = ("ash", "birch", "cedar", "doum")
    told = {s: ((30 + i, 20), (15, 20)) for i, s in enumerate(names[:tellers])}
    tables = told | {s: ((30, 20), (5, 20)) for s in names[tellers:]}
    assert run_on(tables).result.sites == names[:tellers]
    steps = []

    def note(kind: str, facts: Any) -> None:
        steps.append(facts.get("step"))

    sites = {name: rows_of(table) for name, table in tables.items()}
    settings = {"preparation": ONEHOT, "policy": "consortium", "sums": "secure"}
    federation = Federation.local(
        sites, columns=Columns(features=tuple(LEVELS), levels=LEVELS), **settings
    )
    if tellers < 3:
        with pytest.raises(QuorumError, match=f"{tellers} of 4 sites can tell their tables"):
            ContingencyTable().run(federation, seed=0, on_event=note)
    else:
        result = ContingencyTable().run(federation, seed=0, on_event=note).result
        assert result.sites == names[:3] and result.withheld == names[3:]
        np.testing.assert_array_equal(result.table, np.sum(list(told.values()), axis=0))
    assert "possible" in steps and ("parts" in steps) == (tellers == 3)

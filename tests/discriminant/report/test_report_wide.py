"""Reports of wide classification: each outcome is told as it is, gaps are shown as gaps."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from consilience import report as room
from consilience.discriminant import report as wide
from consilience.report import charts
from consilience.report.sections import Block, Headline, MethodReport, report_of
from tests.discriminant.one_table import one_table
from tests.discriminant.report import wide_fixture
from tests.discriminant.report.wide_fixture import CASES, run_of
from tests.report.told import check_told, drawn, spoken

LINKS = "Columns that are associated within the classes"
METHODS = (
    "sparse-qda",
    "community-bayes",
    "federated-sparse-qda",
    "federated-community-bayes",
)


def report(result: Any) -> MethodReport:
    return report_of(wide_fixture.NAMES[type(result)])


def headline(result: Any, preset: str = "strict") -> Headline:
    return report(result).headline(run_of(result, preset))


def blocks(result: Any, preset: str = "strict") -> dict[str, Block]:
    return {b.title: b for b in report(result).evidence(run_of(result, preset))}


@functools.cache
def blocks_of(case: str) -> dict[str, Block]:
    """Blocks of a case, to be read only."""
    return blocks(CASES[case]())


# --- every outcome --------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["strict", "simulation"])
@pytest.mark.parametrize("case", CASES)
def test_every_outcome_can_be_told(case: str, preset: str) -> None:
    result = CASES[case]()
    check_told(report(result), run_of(result, preset), limits=5, draws=preset == "strict")


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("qda", "good", "5.0% of 200 held-out rows are misclassified (95% interval"),
        ("qda-useless", "caution", "50.0% of 200"),
        ("qda-worse", "plain", "20.0% of 200"),
        ("qda-loose", "plain", "5.0% of 200"),
        ("qda-not-held-out", "caution", "Not measured"),
        ("qda-withheld", "good", "Too few of the 200 held-out rows are misclassified"),
        ("qda-sites-holdout", "plain", "held-out rows"),
        ("cb", "good", "6.0% of 200 held-out rows"),
        ("cb-harm", "plain", "10.0% of 200"),
        ("cb-not-held-out", "caution", "Not measured"),
    ],
)
def test_headline_says_which_outcome_came(case: str, tone: str, text: str) -> None:
    said = headline(CASES[case]())
    assert said.tone == tone
    assert text in said.text


def test_what_stands_beside_is_said_by_the_probabilities() -> None:
    more = " ".join(headline(CASES["qda"]()).more)
    assert "clearly better than those of naive Bayes, QDA and LDA with shrinkage" in more
    more = " ".join(headline(CASES["qda-worse"]()).more)
    assert "Its probabilities are clearly worse than those of naive Bayes." in more
    assert "do not clearly differ in quality from those of QDA and LDA with shrinkage" in more
    useless = blocks_of("qda-useless")["Held-out rows"]
    assert "largest class misclassifies 50.0%" in useless.warning
    assert not blocks_of("qda")["Held-out rows"].warning


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cb", "Communities help"),
        ("cb-no-help", "no sign that communities help"),
        ("cb-harm", "Communities do harm"),
    ],
)
def test_whether_communities_help_is_said(case: str, words: str) -> None:
    assert any(words in s for s in headline(CASES[case]()).more)
    one = headline(CASES["cb-one"]())
    assert not any("Communities" in s or "communities help" in s for s in one.more)
    assert any("without error" in s for s in one.more)


def test_fits_that_had_not_converged_are_said_to() -> None:
    assert any("had not converged" in s for s in headline(CASES["qda-loose"]()).more)
    assert not any("had not converged" in s for s in headline(CASES["qda"]()).more)


# --- figures and tables ---------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "n"), [(0, 20), (3, 40), (10, 200), (200, 200)])
def test_intervals_of_shares_are_those_of_wilson(wrong: int, n: int) -> None:
    low, high = proportion_confint(wrong, n, method="wilson")
    shares, rows = np.array([wrong / n, np.nan, 0.5]), np.array([n, n, 0.0])
    ends = np.column_stack(charts.wilson(shares, rows))
    assert ends[0] == pytest.approx((low, high), abs=1e-4) and np.isnan(ends[1:]).all()


def test_numbers_that_sites_rounded_have_no_interval() -> None:
    result = CASES["qda-sites"]()
    said = headline(result)
    assert said.text.startswith("About 5.3% of 150") and "rounded" in said.text
    told = blocks(result)["Held-out rows"]
    assert "round the number of misclassified rows" in spoken(told)
    assert "95% interval" not in told.tables[0].head
    assert told.picture is not None and "95%" not in drawn(told.picture.figure)
    free = headline(result, "simulation")
    assert "95% interval" in free.text and "rounded" not in free.text
    assert "95% interval" in blocks(result, "simulation")["Held-out rows"].tables[0].head
    # The site itself tells its counts as they are.
    assert "95% interval" in headline(CASES["qda"]()).text


def test_zeros_that_sites_rounded_to_are_no_errors_of_0() -> None:
    result = CASES["qda-sites"]()
    result = dataclasses.replace(result, errors=np.zeros(len(result.judged)))
    said = headline(result)
    assert said.text.startswith("Few of 150 held-out rows are misclassified, or none")
    assert "0.0%" not in said.text and "to 0" in said.text
    told = blocks(result)["Held-out rows"]
    assert told.picture is None and told.tables[0].rows[0][1] == "few or none"
    zeros = dataclasses.replace(result, site_errors=np.zeros_like(result.site_errors, dtype=float))
    (by_site,) = (t for t in blocks(zeros)["Held-out rows"].folded if "by site" in t.caption)
    assert set(by_site.rows[0][2:]) == {"few or none"}
    assert headline(result, "simulation").text.startswith("0.0% of 150")


def test_held_out_rows_of_which_nothing_is_told_were_held_out() -> None:
    result = CASES["cb-sites"]()
    gone = {f: np.full(len(result.judged), np.nan) for f in ("errors", "log_loss")}
    said = headline(dataclasses.replace(result, **gone))
    assert said.tone == "caution" and said.text.startswith("Not known:")
    assert "rows were held out" in said.text and "no held-out rows" not in said.text


def test_a_rounded_share_near_that_of_guessing_shows_nothing() -> None:
    """Rounded shares have an error of chance, too: 44% of 150 rows may be half of them."""
    result = CASES["qda-sites"]()
    errors = np.full(len(result.judged), 66.0)
    result = dataclasses.replace(result, errors=errors, n_by_class=np.array([300.0, 300.0]))
    said = headline(result)
    assert said.tone == "caution" and "no evidence that the columns" in " ".join(said.more)


def test_errors_of_sites_are_shares_of_the_rows_that_tell_them() -> None:
    result = CASES["cb-sites"]()
    changed = dataclasses.replace(result, error_rows=90)
    assert wide.Rules(changed).rates[0] == pytest.approx(result.errors[0] / 90)
    (table,) = (t for t in blocks(result)["Held-out rows"].folded if "by site" in t.caption)
    assert [row[0] for row in table.rows] == list(result.sites)
    assert table.rows[0][1] == "60" and table.rows[0][2] == "4.0%"


def test_rows_of_a_class_that_is_not_told_are_a_gap() -> None:
    told = blocks_of("qda-withheld")
    rows = told["The rows"].tables[0].rows
    assert rows[0][1:] == ("\N{EN DASH}", "\N{EN DASH}") and rows[1][1] == "500"
    assert "are not released" in spoken(told["The rows"])
    captions = [t.caption for t in told["Held-out rows"].tables]
    assert captions == ["Rules on held-out rows"], "no table of classes where nothing is told"
    assert len(blocks_of("qda")["Held-out rows"].tables) == 2


def test_links_are_listed_from_the_strongest() -> None:
    result = CASES["qda"]()
    told = blocks(result)[LINKS]
    assert "9 of 28 pairs of columns (32.1%) are linked" in spoken(told)
    rows = told.tables[0].rows
    a, b = result.pairs[0]
    assert rows[0][0] == f"x{a}, x{b}"
    values = [float(cell.replace("\N{MINUS SIGN}", "-")) for cell in rows[0][2:]]
    np.testing.assert_allclose(values, result.partial[0], atol=0.005)
    assert told.tables[0].head[2:] == ("in kind 0", "in kind 1")
    many = blocks_of("qda-many-classes")[LINKS].tables[0]
    assert many.head[2:] == ("largest partial correlation", "class")
    assert "80 strongest of 1,500" in spoken(blocks_of("qda-dense")[LINKS])


@pytest.mark.parametrize(
    ("case", "title", "words"),
    [
        ("qda-stays", LINKS, "stays at the site"),
        ("qda-naive", LINKS, "no two columns are linked"),
        ("qda-untold", LINKS, "was not released"),
        ("cb-stays", "The communities", "stays at the site"),
    ],
)
def test_a_model_that_stays_is_no_empty_picture(case: str, title: str, words: str) -> None:
    told = blocks_of(case)[title]
    assert words in spoken(told)
    assert told.picture is None and not told.tables


def test_where_nothing_was_chosen_there_is_no_curve() -> None:
    for case in ("qda-given", "qda-untold", "cb-given", "cb-sites-gaps"):
        titles = blocks_of(case)
        assert "How the penalty was chosen" not in titles, case
        assert "How many communities" not in titles, case
    told = blocks_of("qda")["How the penalty was chosen"]
    assert any("(chosen)" in row[0] for row in told.folded[0].rows)
    last = wide_fixture.sparse_qda(chosen=11)
    assert "smallest penalty of the grid" in spoken(blocks(last)["How the penalty was chosen"])


def test_communities_are_listed_with_what_they_say() -> None:
    result = CASES["cb"]()
    (table,) = blocks(result)["The communities"].tables
    assert len(table.rows) == 3
    assert sum(int(row[1]) for row in table.rows) == 12
    assert table.rows[0][-1] == "0.500 ± 0.020"
    sites = blocks_of("cb-sites")
    table = sites["The communities"].tables[0]
    assert table.head == ("community", "columns", "which", "alike", "rows behind it")
    assert table.rows[0][-1] == "600"
    (slopes,) = sites["The communities"].folded
    assert len(slopes.rows) == 12 and slopes.head[-1] == "for kind 1"
    curve = sites["How many communities"].folded[0]
    assert curve.head[-1] == "better than 1 by" and curve.rows[2][0] == "3 (chosen)"
    wide = blocks_of("cb-wide")["The communities"]
    assert len(wide.tables[0].rows) == 20 and len(wide.folded[0].rows) == 40


def test_how_fits_were_joined_is_said() -> None:
    assert "not equal to it" in spoken(blocks_of("cb-sites")["How the fits were joined"])
    exact = blocks_of("cb-sites-exact")["How the fit was made"]
    assert "6 rounds" in spoken(exact) and "consents" in spoken(exact)


def test_what_sites_did_not_tell_is_named() -> None:
    run = run_of(CASES["qda-sites-holdout"]())
    own = report(run.result)
    assert "s001 (kind 1)" in " ".join(own.handling(run))
    more = " ".join(own.headline(run).more)
    assert "also used to choose the penalty" in more and "Site s001 told no class." in more
    run = run_of(CASES["cb-sites-gaps"]())
    assert "s001 told no rank" in " ".join(report(run.result).handling(run))
    told = blocks_of("qda-sites")["Which columns were considered together"]
    assert "2 questions led to 1 block of 4 columns" in spoken(told)
    assert "Which columns were considered together" not in blocks_of("qda-sites-holdout")


def test_a_choice_by_densities_is_said_to_be_one() -> None:
    told = blocks_of("qda-sites-density")["How the penalty was chosen"]
    assert "follows from the moments alone" in spoken(told)
    assert "minus log density" in told.folded[0].head and "wrong" not in told.folded[0].head
    assert "minus log density" in drawn(told.picture.figure) if told.picture else False
    assert "density" not in spoken(blocks_of("qda-sites")["How the penalty was chosen"])


@pytest.mark.parametrize("policy", ["strict", "simulation"])
@pytest.mark.parametrize("name", METHODS)
def test_report_of_a_real_run(name: str, policy: str, tmp_path: Path) -> None:
    from consilience.protocol.method import get_method

    settings = {"alpha": 0.1} if "sparse" in name else {"n_communities": 2}
    given = one_table.table(400, p=5, apart=2.0)
    several = 3 if name.startswith("federated") else 1
    sites = one_table.federation(given, policy=policy, sites=several)
    run = get_method(name).from_parameters(settings).run(sites, seed=0)
    page = room.write(run, tmp_path).read_text(encoding="utf-8")
    own = LINKS if "sparse" in name else "The communities"
    for heading in ("Question", "Answer in a sentence", "Evidence", "What left each site"):
        assert f"<h2>{heading}</h2>" in page
    for block in ("Held-out rows", own, "The rows"):
        assert f"<h3>{block}</h3>" in page


@pytest.mark.parametrize("name", METHODS)
def test_report_refuses_the_result_of_another_method(name: str) -> None:
    other = CASES["cb-sites" if name != "federated-community-bayes" else "cb"]()
    with pytest.raises(TypeError, match="the result of the run is no "):
        report_of(name).headline(run_of(other))

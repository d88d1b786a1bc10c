"""Reports on held-out entries: each outcome is told as it is, edges are no choices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.clustering.protocol.result import EnsembleClusteringResult
from consilience.clustering.report import ensemble_clustering
from consilience.report import html
from consilience.report.sections import Block, Headline, MethodReport, report_of
from tests.report import selection_fixture
from tests.report.selection_fixture import CASES, completion, components, count, ranks, run_of
from tests.report.told import answered, check_told, spoken


def report(result: Any) -> MethodReport:
    return report_of(selection_fixture.NAMES[type(result)])


def headline(result: Any) -> Headline:
    return report(result).headline(run_of(result))


def blocks(result: Any, standardize: str = "none") -> dict[str, Block]:
    run = run_of(result, standardize=standardize)
    return {b.title: b for b in report(result).evidence(run)}


@pytest.mark.parametrize("case", CASES)
def test_every_outcome_can_be_told(case: str) -> None:
    result = CASES[case]()
    check_told(report(result), run_of(result), limits=4)


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("completion", "good", "206 held-out cells are predicted"),
        ("completion-useless", "caution", "of no use here"),
        ("completion-unclear", "plain", "no clear difference"),
        ("completion-stays", "caution", "Not measured"),
        ("completion-capped", "caution", "206 held-out cells"),
        ("completion-baseline-stays", "plain", "206 held-out cells"),
        ("ranks", "plain", "Rank 4 was chosen by held-out entries"),
        ("ranks-edge", "caution", "choose no rank"),
        ("count", "good", "3 classes predict held-out entries best"),
        ("count-flat", "plain", "3 classes predict held-out entries best"),
        ("count-one", "plain", "One class only"),
        ("count-edge", "caution", "choose no number of classes"),
        ("count-stays", "plain", "3 classes"),
        ("components", "good", "6 columns of 178 rows at 3 sites share 3 components"),
        ("components-flat", "plain", "share 3 components"),
        ("components-none", "plain", "share no component"),
        ("components-fixed", "plain", "The number was given"),
        ("components-not-judged", "plain", "given and not judged"),
        ("components-edge", "caution", "No number of components was chosen"),
    ],
)
def test_headline_says_which_outcome_came(case: str, tone: str, text: str) -> None:
    said = headline(CASES[case]())
    assert said.tone == tone, said
    assert text in answered(said)


@pytest.mark.parametrize("case", ["ranks-edge", "count-edge", "components-edge"])
def test_an_edge_is_told_with_the_curve_and_nothing_is_called_chosen(case: str) -> None:
    result = CASES[case]()
    block = next(b for b in blocks(result).values() if "end of the grid" in b.warning)
    assert "this is no choice" in block.warning
    (table,) = [t for t in block.folded if t.caption == "Error by candidate"]
    marks = [row[-1] for row in table.rows]
    assert marks.count("smallest") == 1 and "chosen" not in marks


def test_what_stays_at_the_site_is_said_to_stay() -> None:
    found = blocks(CASES["completion-stays"]())
    assert "stayed at the site" in spoken(found["Which penalty?"])
    assert found["Which penalty?"].picture is None
    small = spoken(blocks(CASES["count-small"]())["What the classes look like"])
    assert "too few rows to be told" in small


def test_errors_have_their_unit() -> None:
    title = "How well are missing cells predicted?"
    assert "standard deviations" not in spoken(blocks(completion())[title])
    assert "standard deviations" in spoken(blocks(completion(), "site")[title])
    for standardize, told in (("none", True), ("site", False)):
        run = run_of(completion(), standardize=standardize)
        limits = " ".join(report(completion()).limits(run))
        assert ("common scale" in limits) == told
    # One column of values in one unit.
    triplets = CASES["completion-triplets"]()
    assert "common scale" not in " ".join(report(triplets).limits(run_of(triplets)))


def test_differences_on_cells_that_took_no_part() -> None:
    block = blocks(completion())["How well are missing cells predicted?"]
    (table,) = block.tables
    assert [row[0] for row in table.rows] == ["model", "row + column means", "column means"]
    assert table.rows[0][1] == "0.81" and table.rows[1][3].startswith("0.42")


@pytest.mark.parametrize(
    ("center", "words"),
    [
        ("rows-and-columns", "The means of rows and columns were subtracted first."),
        ("auto", "the site's own log says whether those of rows were, too."),
    ],
    ids=["ratings", "untold"],
)
def test_the_report_says_what_was_subtracted(center: str, words: str) -> None:
    assert words in spoken(blocks(completion(center=center))["The fitted matrix"])


def test_components_and_sites_are_told() -> None:
    found = blocks(components())
    (carried,) = found["What they carry"].folded
    assert carried.rows[2] == ("3", "1.00", "15.2%", "90.9%")
    sites = spoken(found["The sites"])
    assert "70.0%" in sites and "one group had too few rows" in sites
    choice = found["How many components?"]
    assert any(t.caption == "Errors by site" for t in choice.folded)
    assert "variance carried" in spoken(choice)
    none = blocks(CASES["components-none"]())
    assert "What the components are made of" not in none
    fixed = headline(CASES["components-fixed"]())
    assert "would choose" not in fixed.text
    other = components(2, fixed=True, rule="given", chosen=1)
    assert "left out would choose rank 2" in headline(other).text


def test_classes_are_shown_with_other_criteria_beside() -> None:
    found = blocks(count())
    said = spoken(found["What other criteria say"])
    assert "held-out entries 3" in said and "gap none" in said and "\N{EN DASH}" in said
    means = found["What the classes look like"]
    assert means.picture is not None and means.tables[0].rows[0][1:] == ("60", "55", "50")
    assert "class 2" in spoken(means)


def test_long_names_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "<script>alert(1)</script>" + "n" * 90
    result = completion(form="triplets", row_name=evil, column_name=evil)
    said = " ".join(spoken(b) for b in blocks(result).values())
    assert "n" * 60 not in said
    drawn = components(feature_names=(evil, *"bcdef"))
    picture = blocks(drawn)["What the components are made of"].picture
    assert picture is not None
    svg = str(html.inline_svg(picture.figure, "x", "y"))
    assert "<script>" not in svg


# --- ensemble clustering ---------------------------------------------------------------------


def ensemble(**changes: Any) -> EnsembleClusteringResult:
    fields = dataclasses.fields(EnsembleClusteringResult)
    empty: dict[str, Any] = {f.name: None for f in fields if not f.name.startswith("cv_")}
    k = np.arange(1, 7)
    errors = np.array([10.0, 8.0, 6.0, 7.0, 7.2, 7.5])
    known: dict[str, Any] = {
        "n_clusters": 3,
        "chosen_by": "cv",
        "n_records": 178,
        "votes": {"a": 3, "b": 4},
        "vote_scores": {"a": np.arange(6.0), "b": np.arange(6.0)},
        "vote_share": 0.5,
        "n_clusters_by_eigenvalues": 3,
        "class_sizes_by_site": {"a": np.ones(3), "b": np.ones(3)},
        "stability_figures": {},
        "cv_candidates": k,
        "cv_fold_errors": np.tile(errors, (2, 1)),
        "cv_fold_entries": np.array([10, 10]),
        "cv_curve_se": np.full(6, 0.02),
        "cv_site_errors": {"a": errors, "b": np.full(6, np.nan)},
        "cv_site_entries": {"a": 10, "b": 10},
        "cv_minimiser": 2,
        "cv_one_standard_error": 2,
        "cv_chosen": 2,
        "cv_rule": "minimum",
    }
    return EnsembleClusteringResult(**{**empty, **known, **changes})


def told(slot: str, result: EnsembleClusteringResult) -> Block:
    """One part of the page."""
    run = dataclasses.replace(run_of(count()), result=result)
    (block,) = ensemble_clustering.REPORT()._collect(slot, run)
    return block


def test_number_of_classes_by_held_out_entries_stands_beside_votes() -> None:
    block = told("held_out", ensemble())
    assert "3 clusters" in spoken(block) and block.picture is not None
    assert not block.warning
    (table,) = [t for t in block.folded if t.caption == "Errors by site"]
    assert table.rows[1][-1] == "\N{EN DASH}"
    votes = told("votes", ensemble())
    assert not votes.warning and "was not chosen by them" in spoken(votes)
    chosen = told("votes", ensemble(chosen_by="vote"))
    assert "disagree" in chosen.warning


def test_a_falling_error_chooses_no_number_of_classes() -> None:
    falling = np.arange(12.0, 6.0, -1.0)
    edge = ensemble(
        n_clusters=6,
        cv_fold_errors=np.tile(falling, (2, 1)),
        cv_minimiser=5,
        cv_one_standard_error=5,
        cv_chosen=5,
        cv_at_edge=True,
    )
    assert "this is no choice" in told("held_out", edge).warning


def test_ranks_with_one_site_name_what_was_set_aside() -> None:
    said = headline(ranks())
    assert "No cells were held out for a final test" in " ".join(said.more)


def test_very_many_columns_are_not_all_named_in_the_question() -> None:
    few, many = [f"x{j}" for j in range(60)], [f"x{j}" for j in range(256)]
    assert html._named(few) == ", ".join(few)
    assert html._named(many) == f"{', '.join(many[:24])} and 232 more"
    assert html._named("target") == "target"

"""Report of latent class regression: each outcome is told as it is, gaps are shown as gaps."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from consilience import Columns, Federation, LatentClassRegression, LatentClassRegressor
from consilience import report as room
from consilience.datasets.simulate_wards import FEATURES, simulate_wards
from consilience.latent_regression.protocol.result import (
    MIXED,
    LatentClassRegressionResult,
    Saved,
)
from consilience.latent_regression.report import figures_latent
from consilience.latent_regression.report import latent_class_regression as words
from consilience.protocol.mean_and_sd import MeanAndSDResult
from consilience.protocol.next_study import Asked
from consilience.report.sections import Block, Headline
from tests.granted import GRANTED
from tests.latent_regression.report.latent_fixture import CASES, result_of, run_of
from tests.report.told import answered, check_told, drawn, letters, spoken

REPORT = words.LatentClassRegressionReport()
PLOTS = (
    room.plot_latent_coefficients,
    room.plot_latent_held_out,
    room.plot_latent_members,
    room.plot_latent_releases,
    room.plot_latent_traces,
)
COLUMNS = Columns(features=["x0", "x1", "x2"], target="y", entity="e")
HELD_OUT = "Held-out error compared with simpler models"
WANTED = (("1.25", "0.61"), ("2.00", "0.59"), ("1.00", "0.78"))
"""Saved with half of an interval: (2 + 3) / 4, then by site; 1.96 times .309, .3 and .4."""


def headline(result: Any) -> Headline:
    return REPORT.headline(run_of(result))


def blocks(result: Any) -> dict[str, Block]:
    return {block.title: block for block in REPORT.evidence(run_of(result))}


@functools.cache
def blocks_of(case: str) -> dict[str, Block]:
    """Blocks of a case, to be read only."""
    return blocks(CASES[case]())


# --- every outcome --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_outcome_can_be_told(case: str) -> None:
    check_told(REPORT, run_of(CASES[case](), average_rounds=10), limits=7)


@pytest.mark.parametrize(
    ("case", "tone", "text"),
    [
        ("gain", "good", "4 regressions describe y of 1,200 entities at 4 sites. On held-out"),
        ("no-gain", "caution", "predict held-out events no better than one ridge"),
        ("mixed-models", "plain", "15.0% below that of one ridge"),
        ("one-class", "plain", "no further class was found"),
        (
            "replaced",
            "plain",
            "The rounds found 6 classes, which predict held-out events worse",
        ),
        ("not-held-out", "caution", "Not measured"),
        ("jumping", "plain", "25.0% below"),
        ("one-site", "good", "at 1 site"),
    ],
)
def test_headline_says_which_outcome_came(case: str, tone: str, text: str) -> None:
    said = headline(CASES[case]())
    assert said.tone == tone
    assert text in answered(said)


def test_a_mixed_model_that_predicts_better_is_not_hidden() -> None:
    (said,) = (s for s in headline(CASES["mixed-models"]()).more if "by degrees rather" in s)
    assert "A mixed model predicts better" in said
    number = r"(\N{MINUS SIGN}?\d+(?:\.\d+)?)"
    below, low, high = (
        float(v.replace("\N{MINUS SIGN}", "-"))
        for v in re.findall(rf"{number} lower than under it .* {number} to {number}\)", said)[0]
    )
    assert low < -below < high
    assert any("mixed model predicts worse" in s for s in headline(result_of()).more)
    unsure = result_of(heldout_ahead_error=np.full(4, 0.1))
    assert headline(unsure).tone == "plain"
    assert any("no clear difference from a mixed" in s for s in headline(unsure).more)
    # A site of one entity tells no error: the interval is then over sites.
    ahead = np.array([0.04, 0.06, 0.05, 0.05])
    single = result_of(
        heldout_ahead=ahead, heldout_ahead_error=np.array([0.01, 0.01, np.nan, 0.01])
    )
    assert words.lead(single).among == "sites" and single.verdict == "kinds"
    two = result_of(n_sites=2, heldout_ahead_error=np.full(2, np.nan))
    assert np.isnan(words.lead(two).half) and two.verdict == "kinds or degrees"


def test_two_measures_that_disagree_beside_a_mixed_model_are_said_to() -> None:
    split = result_of()
    split.heldout_mse[:, MIXED] = 0.7 * split.heldout_mse[:, 0]
    assert words.lead(split).clear == 1 and split.verdict == "degrees, not kinds"
    (said,) = (s for s in headline(split).more if "log density" in s)
    assert "the two measures disagree" in said and "no clear" not in said


def test_what_to_do_next_says_what_is_known_of_kinds() -> None:
    withheld = result_of(heldout_mse=np.full((4, 4), np.nan), heldout_gain=np.full(4, np.nan))
    split = result_of(heldout_mse=np.tile([2.0, 1.4, 1.5, 4.0], (4, 1)))
    worse = dataclasses.replace(split, heldout_ahead=np.full(4, -0.05))
    for result, wanted in (
        (CASES["not-held-out"](), "No events were held out"),
        (withheld, "Sites withhold"),
        (split, "is no method here."),
        (worse, "fits as well or better."),
    ):
        first = next(result.next_studies(Asked("latent-class-regression", {}, COLUMNS, ())))
        assert isinstance(first, str) and wanted in first


def test_intervals_that_miss_what_they_promise_are_said_to() -> None:
    narrow = result_of(coverage=np.full(4, 0.7))
    assert headline(narrow).tone == "plain"
    assert any("do not have their nominal coverage" in s for s in headline(narrow).more)
    assert "nominal coverage" in blocks(narrow)[HELD_OUT].warning
    assert not blocks_of("gain")[HELD_OUT].warning
    # 40 events: 84 of 100 is within what chance allows; 400 events: it is not.
    few, many = (
        result_of(coverage=np.full(4, 0.84), heldout_effective=np.full(4, n)) for n in (10.0, 100.0)
    )
    assert not blocks(few)[HELD_OUT].warning
    assert blocks(many)[HELD_OUT].warning


def test_models_that_are_no_better_than_the_mean_are_said_to_be() -> None:
    result = result_of()
    result.heldout_mse[:, 3] = 0.5
    assert any("better than the mean alone" in s for s in headline(result).more)


def test_labels_that_never_settle_are_said_to() -> None:
    told = blocks_of("jumping")["How the rounds went"]
    assert "60% of the entities" in told.warning
    assert "from 1 to 0.5" in spoken(told)
    assert any("had not converged" in s for s in headline(CASES["jumping"]()).more)
    assert not blocks_of("gain")["How the rounds went"].warning


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "kinds", "4 classes is 25.0% below that of one ridge (± 1.0%), and"),
        ({"gain": -0.09}, "no evidence of kinds", "n_classes = 1"),
        ({"heldout_gain_error": np.full(4, 0.6)}, "no evidence of kinds", "n_classes = 1"),
        (
            {"heldout_log_score": np.full((4, 3), -1.7) - [0, 0.1, 0.1]},
            "no evidence of kinds",
            "again",
        ),
        ({"mixed": 0.7}, "degrees, not kinds", "7.1% above that of a mixed"),
        ({"heldout_ahead_error": np.full(4, 0.1)}, "degrees, not kinds", "higher by 0.050 ± 0.050"),
        ({"heldout_ahead": np.full(4, -0.05)}, "degrees, not kinds", "lower by 0.050 ± 0.005"),
        (
            {"heldout_ahead": np.full(4, np.nan)},
            "kinds or degrees",
            "too little to tell kinds",
        ),
        ({"mixed": 0.7, "gain": -0.09}, "degrees, not kinds", "9.0% above that of one ridge ("),
        (
            {"mixed": 0.7, "n_classes": 1, "gain": 0.0},
            "degrees, not kinds",
            "error of one class is 0.0% below",
        ),
        ({"n_classes": 1, "gain": 0.0}, "no evidence of kinds", "error of one class is 0.0% below"),
    ],
)
def test_kinds_or_degrees_come_first(changes: dict[str, Any], verdict: str, words: str) -> None:
    """`mixed`: error of the mixed model in shares of one ridge's, 1.1 unless given."""
    given = dict(changes)
    mixed = given.pop("mixed", 1.1)
    result = result_of(**given)
    result.heldout_mse[:, MIXED] = mixed * result.heldout_mse[:, 0]
    assert result.verdict == verdict
    said = result.summary().split(". ")[0] + "."
    assert said.lower().startswith(f"{verdict}: on held-out events")
    assert words in result.summary()
    assert headline(result).text.startswith(
        "Kinds, not" if verdict == "kinds" else f"{verdict.capitalize()}: "
    )


def test_one_class_is_kept_in_the_place_of_others() -> None:
    result = CASES["replaced"]()
    assert "error of 6 classes is 5.0% above that of one ridge" in result.summary()
    assert "One class is kept in their place." in result.summary()
    assert "of the 6 classes that the rounds found" in spoken(blocks(result)[HELD_OUT])
    assert not any("reduction" in name for name, _ in REPORT.facts(run_of(result)))


def replaced_with(**changes: Any) -> LatentClassRegressionResult:
    return dataclasses.replace(CASES["replaced"](), **changes)


def test_why_one_class_is_kept_is_what_held_out_events_say() -> None:
    worse = replaced_with()
    assert words.saved(worse).clear == -1
    assert "predict held-out events worse (5.0% more squared error)" in answered(headline(worse))
    unsure = replaced_with(heldout_gain_error=np.full(4, 1.0))
    assert "held-out events not clearly better (5.0% more squared error)" in answered(
        headline(unsure)
    )
    lower = replaced_with(
        heldout_gain=result_of().heldout_gain,
        heldout_mse=result_of().heldout_mse,
        heldout_log_score=np.full((4, 3), -1.7) - [0, 0.1, 0.1],
    )
    assert words.saved(lower).clear == 1
    assert "(25.0%) but the lower log score; it is kept" in answered(headline(lower))
    assert lower.summary().count("Their log score is lower, though.") == 1


def test_a_mixed_model_that_predicts_better_is_told_beside_one_class_too() -> None:
    kept = replaced_with(heldout_ahead=np.full(4, -0.05))
    kept.heldout_mse[:, MIXED] = 0.7 * kept.heldout_mse[:, 0]
    assert kept.verdict == "degrees, not kinds"
    (said,) = (s for s in headline(kept).more if "log density" in s)
    assert "A mixed model predicts better" in said and "under the classes is 0.05" in said
    alone = result_of(1, gain=0.0, heldout_ahead=np.full(4, -0.05))
    alone.heldout_mse[:, MIXED] = 0.7 * alone.heldout_mse[:, 0]
    assert any("under the class is 0.05" in s for s in headline(alone).more)
    assert not any("mixed model" in s for s in headline(CASES["one-class"]()).more)


def test_a_curve_that_predicts_as_well_is_said_first_and_its_figures_below() -> None:
    error = np.full((4, 4), 0.001)
    bent = result_of(heldout_curve=np.tile([-0.2, -0.05, 0.1, 0.02], (4, 1)))
    bent = dataclasses.replace(bent, heldout_curve_error=error, curve_sites=("s000", "s002"))
    assert bent.verdict == "no evidence of kinds" and bent.curve_is_enough
    assert any("squares of the columns predicts better" in s for s in headline(bent).more)
    unit = float(bent.pooled(bent.heldout_mse[:, :1])[0])
    said = spoken(blocks(bent)[HELD_OUT])
    assert f"squared error is higher by {0.2 / unit:.1%} of the error of one ridge" in said
    assert f"squared error is lower by {0.1 / unit:.1%} of the error of one ridge" in said
    assert "lower by 0.0500" in said and "higher by 0.0200" in said
    assert "The curve rests on s000 and s002" in said
    told = dataclasses.replace(bent, heldout_curve=np.full((4, 4), 0.1), curve_sites=bent.sites)
    assert told.verdict == "kinds" and "kept their sums" not in spoken(blocks(told)[HELD_OUT])
    assert any("ahead of one regression with squares" in s for s in headline(told).more)
    assert "squares" not in spoken(blocks_of("gain")[HELD_OUT])
    assert any("not compared with a curve" in s for s in headline(result_of()).more)


@pytest.mark.parametrize(
    ("figures", "errors", "verdict", "words"),
    [
        ([0.4, 0.1, 0.2, 0.1], 0.01, "kinds", "ahead of one regression with squares"),
        ([0.4, 0.1, 0.0, 0.1], 0.01, "kinds", "ahead of one"),  # figures are rounded
        # log density alone, and squared error alone, are not ahead of the curve
        ([0.4, -0.1, 0.4, 0.1], 0.01, "no evidence of kinds", "not clearly ahead of one regress"),
        ([-0.4, 0.1, 0.2, 0.1], 0.01, "no evidence of kinds", "squares of the columns predicts b"),
        ([0.0, 0.1, 0.2, 0.1], 0.01, "no evidence of kinds", "squares of the columns predicts as"),
        # own coefficients about the curve
        ([0.4, 0.1, -0.2, 0.1], 0.01, "degrees, not kinds", "about a curve predict about as well"),
        ([0.4, 0.1, 0.2, -0.1], 0.01, "degrees, not kinds", "about a curve predict about as well"),
        ([0.2, 0.1, -0.3, 0.1], 0.5, "degrees, not kinds", "squares of the columns predicts as"),
        # one site without an error: the interval is over sites
        ([0.4, 0.1, 0.2, 0.1], np.nan, "kinds", "ahead of one regression with squares"),
    ],
)
def test_kinds_are_ahead_of_a_curve_and_of_own_coefficients_about_it(
    figures: list[float], errors: float, verdict: str, words: str
) -> None:
    error = np.full((4, 4), 0.01)
    error[0] = errors
    if not np.isnan(errors):
        error[:] = errors
    result = result_of(heldout_curve=np.tile(figures, (4, 1)), heldout_curve_error=error)
    result = dataclasses.replace(result, curve_sites=result.sites)
    assert result.verdict == verdict
    assert words in result.summary() and words in " ".join(headline(result).more)


def test_a_curve_of_a_minority_is_not_compared() -> None:
    figures = np.full((4, 4), np.nan)
    figures[0] = [-0.4, -0.1, -0.2, -0.1]
    result = result_of(heldout_curve=figures, heldout_curve_error=np.abs(figures) / 10)
    assert result.verdict == "kinds" and "not compared with a curve" in result.summary()
    two = result_of(2, 2, heldout_curve=np.full((2, 4), 0.1))
    two = dataclasses.replace(two, heldout_curve_error=np.full((2, 4), np.nan))
    assert two.verdict == "kinds or degrees"


def test_one_class_has_no_mixtures_of_agents() -> None:
    told = blocks_of("replaced")["Entities of each site"]
    assert "mixtures" not in spoken(told) and "itself knows their class" not in spoken(told)
    assert told.picture is None
    assert "mixtures" in spoken(blocks_of("gain")["Which entities belong to which class"])


@pytest.mark.parametrize(
    ("changes", "enough"),
    [
        ({"gain": -0.09}, True),
        ({}, False),  # kinds
        ({"gain": 0.0, "n_classes": 1}, False),  # it is one
        ({"gain": -0.09, "mixed": 0.7}, True),  # degrees: the mixed model alone is ahead
        ({"mixed": 0.7}, False),  # degrees, and the classes are ahead
        # half a unit saved, beyond chance from .26 on: one standard error and less
        ({"heldout_gain_error": np.full(4, 0.9)}, False),
        ({"heldout_gain_error": np.full(4, 1.1)}, True),
        (
            {
                "heldout_gain_error": np.full(4, 0.9),
                "heldout_log_score": np.full((4, 3), -1.7) - [0, 0.1, 0.1],
            },
            True,
        ),
    ],
)
def test_one_class_is_enough_unless_classes_are_a_standard_error_ahead(
    changes: dict[str, Any], enough: bool
) -> None:
    given = dict(changes)
    mixed = given.pop("mixed", 1.1)
    result = result_of(**given)
    result.heldout_mse[:, MIXED] = mixed * result.heldout_mse[:, 0]
    assert result.one_is_enough == enough
    verdict = "no evidence of kinds" if mixed > 1 else "degrees, not kinds"
    assert not enough or result.verdict == verdict


def test_without_held_out_events_kinds_are_not_measured() -> None:
    result = CASES["not-held-out"]()
    assert result.verdict is None
    assert result.summary().startswith("No events were held out, so nothing measures")
    assert headline(result).text.startswith("4 regressions")


# --- figures and tables ---------------------------------------------------------------------


def test_what_is_saved_is_weighted_by_events_with_the_errors_that_sites_tell() -> None:
    result = result_of(
        n_sites=2,
        heldout_mse=np.array([[4.0, 2, 2.0, 8], [2.0, 2, 1.0, 8]]),
        heldout_gain_error=np.array([0.3, 0.4]),
        heldout_weight=np.array([100.0, 300.0]),
    )
    gain = words.saved(result)
    assert gain.share == pytest.approx((2.0 + 3 * 1.0) / (4.0 + 3 * 2.0))
    error = np.hypot(0.25 * 0.3, 0.75 * 0.4) / 2.5
    assert gain.half == pytest.approx(1.96 * error, abs=1e-4)
    assert (gain.clear, gain.among) == (1, "entities")
    said = headline(result)
    assert said.tone == "good"
    assert "50.0% below" in answered(said)
    assert "(95% interval over entities 25.8% to 74" in answered(said)
    (table,) = blocks(result)[HELD_OUT].tables
    at = table.head.index("reduction against one ridge")
    assert [row[at] for row in table.rows] == [f"{v} ± {h}" for v, h in WANTED]
    # What a site withholds is in neither sum.
    result.heldout_gain[1] = result.heldout_gain_error[1] = np.nan
    gain = words.saved(result)
    assert (gain.share, gain.half) == pytest.approx((0.5, 1.96 * 0.3 / 4.0), abs=1e-4)
    unsure = result_of(heldout_gain_error=np.full(4, 0.6))
    assert headline(unsure).tone == "plain" and words.saved(unsure).clear == 0
    assert "may be chance" in answered(headline(unsure)) and "chance" not in answered(said)


def test_no_interval_says_that_more_than_all_of_an_error_is_saved() -> None:
    better = result_of(heldout_gain_error=np.full(4, 2.5))
    assert words.saved(better).share + words.saved(better).half > 1.0
    assert "to 100.0%)" in answered(headline(better))
    assert Saved(-0.2, 1.5).ends == (-1.7, 1.0)


def test_without_errors_of_sites_the_interval_is_over_sites() -> None:
    withheld = CASES["withheld-gain"]()
    assert words.saved(withheld).among == "sites"
    assert "interval over sites" in answered(headline(withheld))
    # A single entity tells no error.
    single = result_of(heldout_gain_error=np.full(4, np.nan))
    assert words.saved(single).among == "sites"
    two = result_of(
        n_sites=2, heldout_gain_error=np.full(2, np.nan), heldout_ahead_error=np.full(2, np.nan)
    )
    assert np.isnan(words.saved(two).half) and "95% interval" not in answered(headline(two))


def test_what_is_saved_over_a_mixed_model_has_an_interval_over_sites() -> None:
    mse = np.array([[1, 4.0, 2.0, 8], [1, 4.0, 3.0, 8], [1, 4.0, 1.0, 8], [1, 1.0, 0.0, 8]])
    held = np.array([10.0, 10.0, 20.0, 0.0])
    result = result_of(heldout_mse=mse, heldout_weight=held)
    own = words.saved_over(result, MIXED)
    shares = np.array([0.5, 0.25, 0.75])
    weight = np.array([0.25, 0.25, 0.5])
    assert own.share == pytest.approx(float(weight @ shares))
    spread = np.sqrt(1.5 * ((weight * (shares - weight @ shares)) ** 2).sum())
    # Student's distribution with 2 degrees of freedom.
    assert own.half == pytest.approx(4.3027 * spread, rel=1e-4)
    assert words.n_telling(result) == 3
    two = words.saved_over(result_of(n_sites=2), MIXED)
    assert np.isfinite(two.share) and np.isnan(two.half) and two.clear == 0


def test_chance_of_coverage_follows_from_the_held_out_events_of_each_site() -> None:
    half = figures_latent.chance(result_of(heldout_effective=np.array([100.0, 300, 100, 400])))
    n = np.array([900.0, 100, 300, 100, 400])
    np.testing.assert_allclose(half, 1.96 * np.sqrt(0.09 / n), rtol=1e-4)
    half = figures_latent.chance(CASES["withheld-gain"]())
    assert np.isnan(half).tolist() == [False, False, False, True, False]
    assert half[0] == pytest.approx(1.96 * np.sqrt(0.09 / 1500), rel=1e-4)


def test_coefficients_and_intervals_are_in_the_table() -> None:
    result = result_of()
    tables = blocks(result)["The classes"].tables
    assert [t.caption for t in tables] == ["Size of the classes", "Coefficients by class"]
    rows = {row[0]: row[1:] for row in tables[1].rows}
    assert list(rows) == ["intercept", "x0", "x1", "x2"]
    value, half = rows["x0"][2].split(" \N{PLUS-MINUS SIGN} ")
    assert float(value) == pytest.approx(result.slopes[2, 0], abs=5e-3)
    assert float(half) == pytest.approx(1.645 * 0.06, abs=5e-3)
    plain = {t.caption: t for t in blocks_of("without-intercept")["The classes"].tables}
    assert plain["Coefficients by class"].rows[0][0] == "x0"


def test_classes_that_nothing_tells_apart_are_named() -> None:
    result = result_of()
    result.slopes[3] = result.slopes[1] + 0.05
    result.intercepts[3] = result.intercepts[1]
    warning = blocks(result)["The classes"].warning
    assert "class 2 and class 4" in warning
    assert not blocks_of("gain")["The classes"].warning


def test_of_many_coefficients_those_that_differ_most_are_drawn() -> None:
    result = result_of(p=30)
    result.slopes[:] = 0.3
    result.slopes[:, 17] = [1.0, -1.0, 2.0, 0.0]
    classes = figures_latent.fitted_classes(result)
    shown = figures_latent.most_telling(classes)
    assert len(shown) == figures_latent.MOST_PANELS
    assert {"intercept", "x17"} <= {classes.names[j] for j in shown}
    assert figures_latent.most_telling(classes, 2).tolist() == [0, 18]
    assert "those 12 of 31 coefficients" in spoken(blocks(result)["The classes"])


def test_counts_that_stay_at_a_site_are_gaps_and_not_zeros() -> None:
    result = CASES["small-cells"]()
    told = blocks(result)["Which entities belong to which class"]
    assert "For some classes s001 sent no sum" in spoken(told)
    assert "No count came from s003" in spoken(told)
    (table,) = told.folded
    assert table.rows[1][-2:] == ("\N{EN DASH}", "\N{EN DASH}")
    shares = figures_latent.site_shares(result)
    assert np.isnan(shares[1, 2:]).all() and np.isnan(shares[3]).all()
    assert shares[0].sum() == pytest.approx(1.0)
    assert shares[1, :2].sum() < 1, "shares are of all entities of the site"
    size = blocks(result)["The classes"].tables[0]
    assert [row[-1] for row in size.rows] == ["3 of 4", "3 of 4", "2 of 4", "2 of 4"]


def test_sites_that_tell_of_no_entities_are_not_counted_with_them() -> None:
    silent = result_of(n_entities=np.array([300.0, 300.0, 300.0, np.nan]))
    assert "of 900 entities at 3 sites" in answered(headline(silent))


def test_where_labels_are_is_said_with_the_run() -> None:
    assert "consilience site outputs" in spoken(
        blocks_of("gain")["Which entities belong to which class"]
    )


def test_sums_are_counted_and_a_site_that_sent_none_is_named() -> None:
    result = CASES["small-cells"]()
    told = blocks(result)["Which class sums were sent anew"]
    assert "s003 released no class sum at all" in told.warning
    (table,) = told.tables
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["s003"] == ("0 of 46", "0", "0", "0", "\N{EN DASH}")
    assert rows["s002"][0] == "30 of 46"
    for i, site in enumerate(result.sites):
        found = [int(v.replace(",", "")) for v in rows[site][1:4]]
        wanted = [getattr(result, n)[:, i].sum() for n in ("released", "repeated", "withheld")]
        assert found == wanted
    shares = figures_latent.release_shares(result)
    assert np.isnan(shares["released"][:, 3]).all()
    total = np.sum(list(shares.values()), axis=0)
    np.testing.assert_allclose(total[np.isfinite(total)], 1.0)
    total_sent = int(words.release_counts(result).sum())
    assert any(f"Of {total_sent:,} class sums" in s for s in REPORT.handling(run_of(result)))


def test_entities_that_are_in_no_sum_are_counted() -> None:
    result = result_of(class_sizes=np.array([400.0, 300.0, 200.0, 60.0]))
    told = spoken(blocks(result)["Which class sums were sent anew"])
    assert "Of 1,200 entities, 960 on average (80.0%) were in the sums of the last rounds" in told
    assert "do not add up to 100%" in spoken(blocks(result)["Which entities belong to which class"])
    everyone = result_of(class_sizes=np.full(4, 300.0))
    assert "were in the sums of the last rounds" not in spoken(
        blocks(everyone)["Which class sums were sent anew"]
    )
    silent = result_of(n_entities=np.array([300.0, 300.0, 300.0, np.nan]))
    assert "were in the sums of the last rounds" not in spoken(
        blocks(silent)["Which class sums were sent anew"]
    )


def test_the_round_of_the_merge_is_marked() -> None:
    assert figures_latent.merge_round(result_of()) == 25.5
    assert figures_latent.merge_round(CASES["no-merge"]()) is None
    svg = letters(drawn(room.plot_latent_traces(result_of())))
    assert "classes merged" in svg and "that moved" in svg and "learning rate" in svg
    assert "classes merged" not in letters(drawn(room.plot_latent_traces(CASES["no-merge"]())))
    told = spoken(blocks_of("gain")["How the rounds went"])
    assert "began with 8 classes" in told and "down to 4" in told
    # Classes that emptied by themselves leave nothing to merge.
    emptied = result_of(merge_path=np.empty((0, 2)))
    told = spoken(blocks(emptied)["How the rounds went"])
    assert "began with entities in 8 classes" in told and "merged" not in told
    assert "The rounds began" not in spoken(blocks_of("no-merge")["How the rounds went"])


def test_merges_that_cost_likelihood_say_how_many_classes_there_may_be() -> None:
    path = np.array([[7, 30.0], [6, 12.0], [5, -40.0], [4, -90.0]])
    told = spoken(blocks(result_of(merge_path=path))["How the rounds went"])
    assert "they may support 6 classes, but 4 were asked for" in told
    assert "they may support" not in spoken(blocks_of("gain")["How the rounds went"])


def test_held_out_totals_are_means_over_events() -> None:
    result = result_of(heldout_weight=np.array([100.0, 300.0, 100.0, 100.0]))
    (table,) = blocks(result)[HELD_OUT].tables
    total = dict(zip(table.head, table.rows[0], strict=True))
    assert total["site"] == "all sites" and total["held-out events"] == "2,000"
    wanted = np.average(result.heldout_mse[:, 2], weights=result.heldout_weight)
    assert float(total["classes"]) == pytest.approx(wanted, abs=5e-3)
    shares = figures_latent.unexplained(result)
    assert shares.shape == (5, 4)
    np.testing.assert_allclose(shares[:, 3], 1.0)
    assert HELD_OUT not in blocks_of("not-held-out")


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (16, 80), (40, 3)])
def test_figures_of_any_size(plot: Any, k: int, n: int) -> None:
    figure = plot(result_of(k, n, 25))
    check_size(figure, drawn(figure))


def check_size(figure: Any, svg: str) -> None:
    assert isinstance(figure, Figure)
    assert "nan" not in svg.lower().replace("dominant", "")
    assert figure.get_figheight() < 22


@pytest.mark.parametrize("plot", PLOTS)
def test_names_of_others_are_never_markup_or_mathematics(plot: Any) -> None:
    evil = ("<script>alert(1)</script>", "a$x_1$b", "n" * 90)
    figure = plot(result_of(n_sites=3, sites=evil, feature_names=evil))
    svg = drawn(figure)
    check_size(figure, svg)  # of 4 classes
    assert "<script" not in svg
    assert "n" * 40 not in svg


@pytest.fixture(scope="module")
def visits() -> dict[str, Any]:
    return {
        name: table.drop(columns="kind") for name, table in simulate_wards(1, n_wards=5).items()
    }


def test_figures_of_a_fitted_estimator(visits: dict[str, Any]) -> None:
    table = visits["aspen"]
    for intercept in (True, False):
        model = LatentClassRegressor(2, n_restarts=1, fit_intercept=intercept, random_state=0)
        model.fit(
            table[list(FEATURES)], table["pressure"], entity=table["patient"], agent=table["ward"]
        )
        svg = letters(drawn(room.plot_latent_coefficients(model)))
        assert "dose" in svg and "class 0" in svg and "class 2" not in svg
        assert ("intercept" in svg) == intercept
        assert "95% interval" in svg
        traces = letters(drawn(room.plot_latent_traces(model)))
        assert "sweep" in traces and "moved" in traces and "classes merged" in traces
    bare = LatentClassRegressor(2, n_restarts=1, random_state=0).fit(
        table[list(FEATURES)].to_numpy(), table["pressure"], entity=table["patient"]
    )
    assert "x0" in letters(drawn(room.plot_latent_coefficients(bare)))


def test_report_of_a_real_run(visits: dict[str, Any], tmp_path: Path) -> None:
    federation = Federation.local(
        visits,
        columns=Columns(features=FEATURES, target="pressure", agent="ward", entity="patient"),
        policy=GRANTED,
    )
    run = LatentClassRegression(n_classes=2, average_rounds=4, settle_rounds=4).run(
        federation, seed=0
    )
    page = room.write(run, tmp_path).read_text(encoding="utf-8")
    for heading in ("Question", "Answer in a sentence", "Evidence", "What left each site"):
        assert f"<h2>{heading}</h2>" in page
    for block in (
        "The classes",
        "Which entities belong to which class",
        HELD_OUT,
        "How the rounds went",
    ):
        assert f"<h3>{block}</h3>" in page
    # Neither an entity nor an agent is named outside its site.
    for table in visits.values():
        assert not any(f">{who}<" in page for who in (*table["patient"], *table["ward"]))
        assert not any(who in page for who in table["patient"])
    counts = words.release_counts(run.result)
    assert counts.sum() > 0
    assert run.result.reported.shape == run.result.released.shape
    assert len(figures_latent.traces(run.result)["moved"]) == run.result.rounds_run + 1


def test_report_refuses_the_result_of_another_method() -> None:
    run = dataclasses.replace(run_of(result_of()), result=object.__new__(MeanAndSDResult))
    with pytest.raises(TypeError, match="LatentClassRegressionResult"):
        REPORT.headline(run)

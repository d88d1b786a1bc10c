"""The guide of reference averaging: its code prints what it shows, its names are all there are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from consilience.averaging.estimators.proximal_fit import LARGEST_CHANGE
from consilience.averaging.protocol import LEARNERS, REFERENCES, ReferenceAveraging
from consilience.averaging.protocol.result import ReferenceAveragingResult
from consilience.numerics.reference_average import SCHEDULES
from consilience.report import __all__ as figures_of_reports
from tests.docs.test_pages import check_printed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "reference-averaging.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_python_of_the_guide_prints_what_it_shows() -> None:
    check_printed(PAGE)


def test_every_learner_schedule_and_kind_of_reference_is_in_the_guide() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", TEXT, re.MULTILINE)
    named = {name.strip('"') for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert set(LEARNERS) | set(SCHEDULES) | set(REFERENCES) <= named


def test_every_outcome_is_in_the_guide() -> None:
    for reason in ("gain", "no-gain", "not-separable", "not-measured"):
        assert f"| `{reason}` |" in TEXT


def test_defaults_that_the_guide_names() -> None:
    method = ReferenceAveraging(estimator="ridge")
    words = " ".join(TEXT.split())
    assert f"`max_rounds` ({method.max_rounds})" in words
    assert f"`patience` ({method.patience}) rounds" in words
    assert f"`exponent` {method.exponent}" in words
    assert method.holdout == 0.2, "the guide says a fifth"
    assert LARGEST_CHANGE == 0.01, "the guide says 1%"


def test_fields_that_the_guide_names_exist() -> None:
    section = TEXT[TEXT.index("## Reading the result") : TEXT.index("## What leaves a site")]
    known = {f.name for f in dataclasses.fields(ReferenceAveragingResult)}
    listed = set(re.findall(r"^- ([^:.]*?)[:.(]", section, re.MULTILINE))
    named = {name for text in listed for name in re.findall(r"`(\w+)`", text)}
    assert {"gains", "gain_errors", "local_losses", "movement", "influence"} <= named
    assert named <= known
    plots = [name for name in figures_of_reports if name.startswith("plot_reference_")]
    assert len(plots) == 6
    for name in plots:
        short = name.removeprefix("plot_reference_")
        assert f"`{name}`" in section or f"`..._{short}`" in section or f"{name}(" in section

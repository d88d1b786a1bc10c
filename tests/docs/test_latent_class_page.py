"""The guide of latent class regression: its code prints what it shows, its names exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from consilience.datasets.simulate_wards import CENTRES, SLOPES
from consilience.latent_regression.protocol import (
    AUTO_START,
    MOST_ROUNDS,
    LatentClassRegression,
)
from consilience.latent_regression.protocol.coordinator import LEAST_ROUNDS, default_rate
from consilience.latent_regression.protocol.result import LatentClassRegressionResult
from consilience.protocol.phases.holdout import PARTS
from consilience.report import __all__ as figures_of_reports
from consilience.sites.study import Study
from tests.docs.test_pages import blocks, figures, python_of, words

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "latent-class-regression.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_python_of_the_guide_prints_what_it_shows() -> None:
    printed, shown = python_of(PAGE), " ".join(blocks(PAGE, "text"))
    assert figures(shown), "the guide shows no output"
    assert words(printed) == words(shown), printed
    # Under protection the chain starts from keys and digests of the rows: with another last digit,
    # on another kind of processor, it is another chain and tells the same story.
    said, stands = figures(printed), figures(shown)
    free = len(figures(" ".join(blocks(PAGE, "text")[:-2])))
    assert said[:free] == stands[:free], printed
    for one, other in zip(said, stands, strict=True):
        bound = max(0.3, 0.5 * abs(float(other)))
        assert abs(float(one) - float(other)) <= bound, printed


def test_study_of_the_guide_is_one(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "toml")
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    study = Study.load(tmp_path / "study.toml")
    assert study.method == LatentClassRegression.name
    assert (study.data.agent, study.data.entity) == ("ward", "patient")
    LatentClassRegression(**study.parameters).validate()


def test_parameters_that_the_guide_names() -> None:
    method = LatentClassRegression()
    assert (LEAST_ROUNDS, MOST_ROUNDS) == (6, 25) and "from 6 to 25" in WORDS
    assert '`"random"` (25 rounds)' in WORDS
    assert default_rate(1.0) == 0.5 and ".5 if all sites report" in WORDS
    assert default_rate(0.25) == 0.2 and ".2 if a quarter or fewer do" in WORDS
    assert AUTO_START == 18 and "starts with 18" in WORDS
    assert PARTS == 5, "the guide says a fifth"
    assert method.start == "local" and method.concentration == "exact" and method.adapt_rate
    for word in ("local", "random", "exact", "shortcut"):
        assert f'"{word}"' in WORDS
    fields = {f.name for f in dataclasses.fields(LatentClassRegression)}
    rounds = TEXT[TEXT.index("\n## Rounds") : TEXT.index("\n## Masked sums")]
    named = set(re.findall(r"`(\w+)(?: = [^`]+)?`", rounds))
    assert {"start", "learning_rate", "participation", "server_cache", "adapt_rate"} <= named
    assert named <= fields


def test_fields_that_the_guide_names_exist() -> None:
    section = TEXT[TEXT.index("## Reading the result") : TEXT.index("### Binary targets")]
    known = {f.name for f in dataclasses.fields(LatentClassRegressionResult)}
    known |= {n for n in dir(LatentClassRegressionResult) if n.startswith("pooled")}
    known |= {"LatentClassRegressor", "verdict"}
    items = section[section.index("- `slopes`") : section.index("`consilience.report")]
    named = set(re.findall(r"`(\w+)`", items))
    assert {"slopes", "class_shares", "heldout_mse", "trace_moved", "withheld"} <= named
    assert named <= known
    plots = [name for name in figures_of_reports if name.startswith("plot_latent_")]
    assert len(plots) == 5
    for name in plots:
        assert f"`{name}`" in section or f"{name}(" in section


def test_links_to_sections_and_numbers_of_the_demo() -> None:
    assert "[30.0, 9.0, 8.0]" in TEXT and CENTRES.tolist() == [30.0, 9.0, 8.0]
    assert len(SLOPES) == 4

"""Jokes, and the rank of threes: what the pages say, from their own study files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.engines.study_check import check_sites
from consilience.engines.study_run import method_of, read_site_files
from consilience.report.sections import report_of
from consilience.sites.study import Study
from examples.digits import make_tables as digits_tables
from examples.jester import compare as jester_compare
from examples.jester import make_tables as jester_tables
from tests.examples.running import run_workspace

EXAMPLES = Path(__file__).parents[2] / "examples"


def workspace(name: str, to: Path) -> Path:
    """An example in a fresh place."""
    for study in (EXAMPLES / name).glob("*.toml"):
        shutil.copy(study, to)
    shutil.copytree(EXAMPLES / name / "sites", to / "sites")
    return to


@pytest.fixture(scope="module")
def jester(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = workspace("jester", tmp_path_factory.mktemp("jester"))
    jester_tables.write_table(data_dir("matrix"), place / "tables")
    return place


@pytest.fixture(scope="module")
def digits(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = workspace("digits", tmp_path_factory.mktemp("digits"))
    digits_tables.write_tables(data_dir("esl"), place / "tables")
    return place


def words(name: str) -> str:
    return " ".join((EXAMPLES / name / "README.md").read_text(encoding="utf-8").split())


def check(study: Path) -> None:
    read = Study.load(study)
    files = read_site_files(read)
    assert tuple(files) == read.sites.names
    assert [found.error for found in check_sites(read, files, method_of(read))] == [None]


def test_ratings_are_triplets_once_each(jester: Path) -> None:
    ratings = jester_tables.read_ratings(jester / "tables" / "ratings.csv")
    assert len(ratings) == 363_209 and list(ratings) == ["person", "joke", "rating"]
    assert not ratings.duplicated(["person", "joke"]).any()
    assert (ratings["person"].nunique(), ratings["joke"].nunique()) == (5000, 100)
    assert "363,209 ratings, 27% missing" in words("jester")
    check(jester / "study.toml")


def test_studies_of_threes_can_run(digits: Path) -> None:
    for name in ("rank", "rank-soft"):
        check(digits / f"{name}.toml")
    read = Study.load(digits / "rank.toml")
    assert read.columns.features == digits_tables.PIXELS
    assert read.parameters["grid"] == list(range(61))


def test_errors_of_ratings_that_took_no_part(jester: Path) -> None:
    """Errors as the page shows them, and the bounds that the method is held to."""
    run: Any = run_workspace(jester)
    table = jester_compare.compare(run, jester / "homes", jester / "tables")["error"].to_dict()
    page = (EXAMPLES / "jester" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^([a-z][^\n]*?)\s{2,}(\d\.\d{3})$", page, re.MULTILINE)
    shown = {name: float(error) for name, error in lines}
    plain = {re.sub(r" rank \d+", " rank", name): error for name, error in table.items()}
    assert {re.sub(r" rank \d+", " rank", name) for name in shown} == set(plain)
    for name, error in shown.items():
        assert plain[re.sub(r" rank \d+", " rank", name)] == pytest.approx(error, abs=0.02), name
    fitted = table["matrix-completion, this run"]
    assert fitted == pytest.approx(4.0, abs=0.05)
    assert fitted < table["row + column means"] - 0.28
    (svd,) = [error for name, error in table.items() if "then SVD" in name]
    assert fitted < svd - 0.02
    # It is the error of the same ratings that the report tells of.
    assert run.result.n_final == pytest.approx(36_321, abs=5)


def test_rank_of_threes_and_an_edge_that_is_none(digits: Path) -> None:
    found: dict[str, Any] = {
        name: run_workspace(digits, f"{name}.toml") for name in ("rank", "rank-soft")
    }
    hard, soft = (found[name].result for name in ("rank", "rank-soft"))
    page = words("digits")
    shown = re.search(r"after the rank \| (\d+), within a standard error (\d+) \| \.(\d+) \|", page)
    assert shown is not None
    curve = hard.curve()
    assert curve.best == pytest.approx(49, abs=4) and not hard.at_edge
    assert curve.best == pytest.approx(int(shown[1]), abs=2)
    assert curve.best_one_standard_error == pytest.approx(int(shown[2]), abs=2)
    assert curve.mean.min() == pytest.approx(0.101, abs=0.002)
    assert curve.mean.min() == pytest.approx(float(f"0.{shown[3]}"), abs=0.001)
    assert soft.at_edge and "falls to the end of the grid | .084 at 60" in page
    assert soft.curve().mean[-1] == pytest.approx(0.084, abs=0.002)
    assert np.argmin(soft.curve().mean) == 60
    said = report_of("matrix-completion").headline(found["rank-soft"])
    assert said.tone == "caution" and "choose no rank" in said.text

"""The page of a `Describe` has Table 1, says where sites differ, and what is withheld."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from consilience import report
from consilience.describe.protocol import Describe
from consilience.describe.report import describe as figures
from consilience.describe.report.describe import REPORT
from consilience.protocol.method import Columns
from tests.describe.test_curves import BY_ARM, patients
from tests.describe.test_curves import run_on as run_on_times
from tests.describe.test_describe import run_on, tables


def test_page(tmp_path: Path) -> None:
    sites = tables(sizes=(600, 900, 800))
    sites["osaka"] = sites["osaka"].assign(stage="I")
    run = run_on(sites, Describe(tables=(("sex", "stage"),)))
    page = report.write(run, tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"[ \n]+", " ", page)
    for words in (
        "2,300 rows of 3 sites",
        "The sites differ in 2 of 4 columns, most of all in age",
        "age, mean (SD)",
        "\N{EM SPACE}III",
        "sex, stage",
        "known within a bin only",
        "How the numbers are distributed",
        "Where do sites differ?",
        "Rows without a value",
        "Cochran-Mantel-Haenszel",
        "Some levels of stage, or all, are withheld by osaka.",
    ):
        assert words in text, words
    # Stage is told by two sites of three. What only one tells is compared with nothing.
    assert "Sites differ in 2 of 4 columns" in run.result.summary()
    few = {site: t if site == "osaka" else t.assign(dose=1.0) for site, t in tables().items()}
    alone = run_on(few, Describe())
    page = report.write(alone, tmp_path / "alone.html").read_text(encoding="utf-8")
    for text in (re.sub(r"[ \n]+", " ", page), alone.result.summary()):
        assert re.search(r"ites differ in \d of 3 columns", text)
    assert page.count("<svg") >= 2


def test_nothing_to_compare_or_to_draw() -> None:
    table = pd.DataFrame({"x": np.repeat([0.0, 1.0], 30)})
    run = run_on({"s": table}, columns=Columns(features=("x",)))
    headline = REPORT().headline(run)
    assert headline.tone == "plain" and "Nothing can be compared" in headline.more[0]
    assert [block.title for block in REPORT().evidence(run)] == ["Table 1"]
    assert not figures.binned(run.result)
    figures.plot_distributions(run.result)


def test_pairs_of_many_sites_have_no_mark_each() -> None:
    rng = np.random.default_rng(5)
    sites = {f"s{i:02d}": {"c": rng.normal(size=20)} for i in range(26)}
    run = run_on(sites, columns=Columns(features=("c",)))
    marks = sum(
        len(line.get_xdata()) for line in figures.plot_differences(run.result).axes[0].lines
    )
    assert marks < 30
    (block,) = (b for b in REPORT().evidence(run) if b.title == "Where do sites differ?")
    assert block.picture is not None and "325 pairs" in block.picture.caption


def test_sites_that_are_alike_and_many_of_them() -> None:
    rng = np.random.default_rng(3)
    sites = {f"site-{i:02d}-{'n' * 50}": {"c" * 200: rng.normal(size=60)} for i in range(12)}
    run = run_on(sites, columns=Columns(features=("c" * 200,)))
    page = REPORT()
    assert page.headline(run).tone == "plain" and "clearly differ" in page.headline(run).more[0]
    blocks = page.evidence(run)
    assert blocks[0].tables[0].head == ("", "all sites", "difference", "p")
    cells = [
        cell for block in blocks for table in block.tables for row in table.rows for cell in row
    ]
    assert max(map(len, cells)) <= 60


def test_the_pooled_histogram_is_over_edges_that_all_sites_tell() -> None:
    sites = tables()
    edges, rows = figures.common_bins(run_on(sites).result, "age")
    x = pd.concat(sites.values())["age"]
    assert rows.tolist() == np.histogram(x, bins=[-1e9, *edges, 1e9])[0].tolist()


def test_curves_of_times_stand_in_the_answer_and_in_a_block(tmp_path: Path) -> None:
    sites = patients(0)
    run = run_on_times(sites, BY_ARM)
    page = report.write(run, tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"[ \n]+", " ", page)
    for words in (
        "Median months until died, arm a:",
        "Log-rank test of arm within sites: chi-square",
        "Times until an event",
        "Median times",
        "arm within sites",
        "sites, within arm",
        "The bounds are of the Kaplan-Meier curve of the rows",
    ):
        assert words in text, words
    figure = figures.plot_curves(run.result)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["died: share without it, by arm"]
    both = run_on_times(sites, ("months", "died"), BY_ARM, policy="simulation")
    titles = [ax.get_title(loc="left") for ax in figures.plot_curves(both.result).axes]
    assert titles == ["died: share without it", "died: share without it, by arm"]
    empty = run_on_times({"lyon": sites["lyon"].head(30)}, BY_ARM)
    page = report.write(empty, tmp_path / "empty.html").read_text(encoding="utf-8")
    assert "The curve of months and died and arm is withheld by lyon" in page
    assert "Log-rank tests" not in page
    figures.plot_curves(empty.result)

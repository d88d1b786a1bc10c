"""The page of a `ContingencyTable` says what both tests say, and which sites are not in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from consilience import report
from consilience.contingency.report.contingency_table import REPORT
from tests.contingency.test_contingency_table import BERKELEY, run_on

EQUAL = ((40, 40), (40, 40))
APART = ((60, 20), (20, 60))
FEW = {"a": ((10, 800), (10, 50)), "b": ((30, 3), (20, 40))}
MIRRORED = {"a": ((140, 60), (90, 10)), "b": ((10, 90), (60, 140))}


def test_page(tmp_path: Path) -> None:
    for tables, said in (
        (BERKELEY, ("differences between sites may have made it", "Not in them: b,")),
        (FEW, ("an expected count below 5", "(1.4)")),
    ):
        text = report.write(run_on(tables), tmp_path / "page.html").read_text(encoding="utf-8")
        text = re.sub(r"\s+", " ", text)
        for sentence in (*said, "Cochran-Mantel-Haenszel", "Nothing was told by b"):
            assert sentence in text, sentence


@pytest.mark.parametrize(
    ("tables", "said", "tone"),
    [
        ({"a": APART, "b": APART}, "are associated, over all sites and within them", "good"),
        ({"a": EQUAL, "b": EQUAL}, "do not show an association", "plain"),
        (MIRRORED, "the pooled table does not show it", "caution"),
        (BERKELEY, "but this does not show within sites", "caution"),
    ],
)
def test_headline(tables: dict[str, object], said: str, tone: str) -> None:
    headline = REPORT().headline(run_on(tables))
    assert said in headline.text and headline.tone == tone


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"a": ((60, 0), (40, 0)), "b": ((50, 0), (70, 0))}, "Nothing can be tested"),
        ({"a": ((60, 20), (0, 0)), "b": ((0, 0), (20, 60))}, "within sites nothing can be tested"),
    ],
)
def test_what_cannot_be_tested_is_not_called_no_association(tables: Any, said: str) -> None:
    run = run_on(tables, policy="simulation")
    headline = REPORT().headline(run)
    assert said in headline.text and headline.tone == "caution"
    assert "can be tested" in run.result.summary() and "nan" not in run.result.summary()


def test_long_names_are_cut() -> None:
    levels = {"a" * 200: ("x" * 200, "y"), "b" * 200: ("z" * 200, "w")}
    page = REPORT()
    blocks = page.evidence(run_on({"s": APART}, levels))
    cells = [
        cell for block in blocks for table in block.tables for row in table.rows for cell in row
    ]
    assert max(map(len, cells)) <= 40

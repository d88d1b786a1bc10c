"""The guides of meta clustering: their code runs, their figures are those of the examples."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from consilience.collaborators.kernels import cluster, pairwise_tests
from consilience.learners.candidates import NAMES
from examples.tampered.needs import LINES, TAMPERINGS, found
from tests.docs.test_pages import blocks, figures, printed_by, python_of, words

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guide"
NEEDS = ROOT / "examples" / "tampered" / "needs.csv"

_OUTPUT = re.compile(
    r"<!-- output: (?P<path>\S+) -->\n```text\n(?P<text>.*?)```\n<!-- end output -->", re.DOTALL
)
_TABLE = re.compile(r"<!-- table: (?P<path>\S+) -->\n(?P<text>.*?)<!-- end table -->", re.DOTALL)


_WHOLE = re.compile(r"(\d)\.(?=[\s\]])")  # of an array, printed without its 0


def check_chancy(said: str, shown: str) -> None:
    """Check every word, and figures to what chance may do: another one on another processor.

    Losses are rounded up or down by chances from a digest of rows and models, last digits included.
    """
    said, shown = (_WHOLE.sub(r"\1.0", text) for text in (said, shown))
    assert words(said) == words(shown), said
    found, stands = figures(said), figures(shown)
    apart = np.abs(np.subtract(np.array(found, dtype=float), np.array(stands, dtype=float)))
    assert (apart <= [0.25 if "." in figure else 1.0 for figure in stands]).all(), said


@pytest.mark.parametrize("name", ["fairness", "tampered-sites"])
def test_printed_figures_are_those_of_the_example(name: str) -> None:
    text = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    (shown,) = _OUTPUT.finditer(text)
    script = ROOT / shown["path"]
    said = printed_by(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert said.strip(), "the example prints nothing"
    check_chancy(said, shown["text"])


def test_python_of_the_guide_prints_what_it_shows() -> None:
    page = GUIDES / "meta-clustering.md"
    printed, shown = python_of(page), " ".join(blocks(page, "text"))
    assert figures(shown), "the guide shows no output"
    check_chancy(printed, shown)
    assert shown.splitlines()[0] in printed, "the groups"


def test_every_candidate_is_in_the_guide() -> None:
    text = (GUIDES / "meta-clustering.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert set(NAMES) <= named


def table_of(path: Path) -> str:
    """A CSV file as the guide shows it."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *lines = list(csv.reader(file))
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n".replace("| --- ", "|---") for row in rows)


def test_the_table_of_needs_is_that_of_the_file() -> None:
    text = (GUIDES / "tampered-sites.md").read_text(encoding="utf-8")
    (shown,) = _TABLE.finditer(text)
    assert shown["text"] == table_of(ROOT / shown["path"])


def test_the_file_of_needs_has_a_line_for_each_setting() -> None:
    with NEEDS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    settings = [(r["candidate"], int(r["rows"]), float(r["r2"]), int(r["sets"])) for r in rows]
    assert settings == list(LINES)
    assert len(rows[0]) == 4 + len(TAMPERINGS)


@pytest.mark.parametrize(("how", "amount"), [("scale", -1.0), ("none", 0.0)])
def test_one_data_set_of_the_file_of_needs(how: str, amount: float) -> None:
    """Both columns hold 1.00 in the file, so any data set will do."""
    assert found("linear", 100, 0.8, how, amount, 3)


def test_a_site_can_lie_its_way_into_a_group() -> None:
    """The guide says so; excess[i, j] is what j reports of the model of i."""
    rng = np.random.default_rng(0)
    excess = rng.normal(0.0, 0.02, size=(5, 5))
    excess[4, :4] += 0.5  # honest sites on the model of the tampered one
    excess[:4, 4] += 0.5  # its own honest report
    variance, effective = np.full((5, 5), 0.001), np.full((5, 5), 100.0)

    def groups(reported: np.ndarray) -> int:
        z = pairwise_tests(reported, variance, effective, [100] * 5, np.ones(5)).z
        return int(cluster(z).labels.max()) + 1

    assert groups(excess) == 2
    lying = excess.copy()
    lying[:4, 4] = -0.5
    assert groups(lying) == 1
    assert (lying[4, :4] > 0.4).all(), "what the others report of its model is still there"

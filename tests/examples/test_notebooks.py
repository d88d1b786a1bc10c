"""The notebooks in examples show what their cells give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_pages import figures, words
from tools import notebooks

FILES = sorted(notebooks.EXAMPLES.glob("*.ipynb"))
CHANCY = ("four_hospitals",)
"""Meta-clustering rounds losses up or down by chances from a digest of rows and models, last digits
included: on another kind of processor they are others."""


def check_shown(said: str, shown: str, source: str, chancy: bool) -> None:
    """Check every word; figures with a point to a tenth, where they are left to chance."""
    if not chancy:
        assert said == shown, source
        return
    assert words(said) == words(shown), source
    for figure, stands in zip(figures(said), figures(shown), strict=True):
        near = 0.05 + 0.1 * abs(float(stands)) if "." in stands else 0.0
        assert float(figure) == pytest.approx(float(stands), abs=near), source


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_shows_what_its_cells_give(path: Path) -> None:
    notebook = notebooks.read(path)
    for cell, outputs in zip(
        notebooks.code_cells(notebook), notebooks.execute(notebook), strict=True
    ):
        stored, source = cell["outputs"], "".join(cell["source"])
        told = zip(notebooks.texts(outputs), notebooks.texts(stored), strict=True)
        for said, shown in told:
            check_shown(said, shown, source, path.stem in CHANCY)
        assert [set(one.get("data", ())) for one in outputs] == [
            set(one.get("data", ())) for one in stored
        ]


def test_a_notebook_as_a_page() -> None:
    page = notebooks.page(notebooks.EXAMPLES / "four_hospitals.ipynb")
    assert page.startswith("# Four hospitals") and "```python\nimport numpy" in page
    assert page.count("data:image/png;base64,") == 1 and "/work/" not in page


def test_figures_left_to_chance_are_near_and_words_are_the_same() -> None:
    check_shown("z 19.31 of 4", "z 18.92 of 4", "", chancy=True)
    for said in ("z 19.31 of 5", "z 9.31 of 4", "y 19.31 of 4"):
        with pytest.raises(AssertionError):
            check_shown(said, "z 18.92 of 4", "", chancy=True)
    with pytest.raises(AssertionError):
        check_shown("z 19.31", "z 18.92", "", chancy=False)

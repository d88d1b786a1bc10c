"""The notebooks in examples show what their cells give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import notebooks

FILES = sorted(notebooks.EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_shows_what_its_cells_give(path: Path) -> None:
    notebook = notebooks.read(path)
    for cell, outputs in zip(
        notebooks.code_cells(notebook), notebooks.execute(notebook), strict=True
    ):
        stored = cell["outputs"]
        assert notebooks.texts(outputs) == notebooks.texts(stored), "".join(cell["source"])
        assert [set(one.get("data", ())) for one in outputs] == [
            set(one.get("data", ())) for one in stored
        ]


def test_a_notebook_as_a_page() -> None:
    page = notebooks.page(notebooks.EXAMPLES / "four_hospitals.ipynb")
    assert page.startswith("# Four hospitals") and "```python\nimport numpy" in page
    assert page.count("data:image/png;base64,") == 1 and "/work/" not in page

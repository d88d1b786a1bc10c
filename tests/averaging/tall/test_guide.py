"""The page on tall tables: its first example runs and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from consilience import ReferenceAveragingRegressor

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "tall-tables.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_example_prints_what_the_page_shows() -> None:
    blocks = [(m[1], m[2]) for m in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    (first, code), (second, shown) = blocks[:2]
    assert (first, second) == ("python", "text")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    assert said.getvalue() == shown


def test_names_of_the_page_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    known = ReferenceAveragingRegressor().get_params(deep=False)
    for name in re.findall(r"`(\w+)=", text):
        assert name in {*known, "columns", "sample_weight", "row_group_size", "tol"}, name

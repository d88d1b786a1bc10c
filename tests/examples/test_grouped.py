"""sleepstudy and Exam: what the page of the example says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from examples.grouped.run import DATA, MODELS, Grouped, compare_often

PAGE = Path(__file__).parents[2] / "examples" / "grouped" / "README.md"


@pytest.fixture(scope="module")
def grouped(data_dir: Callable[[str], Path]) -> dict[str, Grouped]:
    return {name: read(data_dir("grouped")) for name, read in DATA.items()}


def test_rows_and_columns(grouped: dict[str, Grouped]) -> None:
    found = {
        name: (len(data.y), data.entity.max() + 1, data.x.shape[1])
        for name, data in grouped.items()
    }
    assert found == {"sleepstudy": (180, 18, 1), "Exam": (4059, 65, 7)}
    for data in grouped.values():
        assert np.isfinite(data.x.to_numpy()).all()
        full = np.column_stack([np.ones(len(data.y)), data.x])
        assert np.linalg.matrix_rank(full) == full.shape[1]


def printed(page: str) -> dict[str, dict[str, float]]:
    """Errors by data set and model in the block of the page that shows what ``run.py`` prints."""
    found: dict[str, dict[str, float]] = {}
    for line in page.partition("```\nsleepstudy: ")[2].partition("```")[0].splitlines():
        parts = re.split(r"\s{2,}", line.strip())
        if line.startswith("Exam"):
            found["Exam"] = {}
        elif len(parts) > 1 and parts[0] in MODELS:
            found.setdefault("sleepstudy", {})
            found[list(found)[-1]][parts[0]] = float(parts[1])
    return found


@pytest.mark.parametrize("name", DATA)
def test_the_mixed_model_is_ahead(grouped: dict[str, Grouped], name: str) -> None:
    """As the page shows it, with its seeds."""
    found = compare_often(grouped[name], 2)
    error = found["error"]
    shown = printed((PAGE).read_text(encoding="utf-8"))[name]
    assert list(shown) == list(MODELS)
    for model, value in shown.items():
        spread = {"sleepstudy": 0.03, "Exam": 0.004}[name] if model == "classes" else 0.001
        assert error[model] == pytest.approx(value, abs=spread), model
    assert error["mixed model"] < error["classes"] < 0.95 * error["ridge"]
    assert (error["classes"] < error["ridge of each group"]) == (name == "Exam")
    assert 0.87 <= found["coverage"]["classes"] <= 0.97

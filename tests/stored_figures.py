"""Tracked tables beside what was expected of them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from tools.measured_bounds import NOT_KEYS


def check_stored_figures(table: Path) -> None:
    """Every row of ``expected.csv``: a figure of a line of ``result.csv``, within its bounds.

    What is marked as missed there is discussed in the README of the table.
    """
    with (table / "expected.csv").open(encoding="utf-8", newline="") as file:
        expected = list(csv.DictReader(file))
    with (table / "result.csv").open(encoding="utf-8", newline="") as file:
        stored = list(csv.DictReader(file))
    assert expected
    for wanted in expected:
        if wanted.get("missed"):
            continue
        keys = [name for name in wanted if name in stored[0] and name not in NOT_KEYS]
        rows = [
            row
            for row in stored
            if all(row[name] == wanted[name] for name in keys if wanted[name])
            and row[wanted["figure"]] != ""
        ]
        assert rows, wanted
        for row in rows:
            value = float(row[wanted["figure"]])
            assert float(wanted["at_least"] or -math.inf) <= value, (wanted, value)
            assert value <= float(wanted["at_most"] or math.inf), (wanted, value)

"""Bounds of the replications of a paper beside what was measured, as lines of a table.

A line of ``expected.csv`` names a figure of ``result.csv`` (or a test, whose column it is), where
it holds (one value in a column, commas aside; "each", "every d" or nothing for all of them; "every
d from 1"; "3 and 5"; "setting 1 to 3" for all values that begin with one of these), the source's
value if it has one, and our bounds; a bound may be "min(rank; 20)" of the line. "300 data sets
together" takes the mean of the lines by their replicates.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Row = dict[str, str]
NOT_KEYS = ("figure", "source", "at_least", "at_most", "missed")
SMALLER_OF = re.compile(r"min\((\w+); (\d+)\)")
TOGETHER = "together"
ENOUGH, ENOUGH_FOLDS = 10, 5
"""Data sets, or parts of one table held out in turn, below which a bound does not count as met."""


class Judged(NamedTuple):
    """A bound beside what was measured; cells of a table, as text."""

    case: str
    figure: str
    source: str
    wanted: str
    seen: str
    error: str
    sets: str
    verdict: str
    beside: str = ""


class Claim(NamedTuple):
    """A sentence, what was wanted, what was seen, how many bounds are met, and the proof."""

    says: str
    wanted: str
    seen: str
    bounds: str
    proof: str


COLUMNS = {
    "case": "case",
    "figure": "figure",
    "source": "source",
    "wanted": "wanted",
    "seen": "measured",
    "error": "standard error",
    "beside": "",
    "sets": "data sets",
    "verdict": "",
}


def judged(root: Path, table: str) -> list[Judged]:
    """Return the bounds of a table of `replications/` ("paper/table")."""
    folder = root / "replications" / table
    found = rows_of(folder / "result.csv")
    return [Judged(*_cells(wanted, found)) for wanted in rows_of(folder / "expected.csv")]


def lines(bounds: list[Judged], beside: str = "") -> Iterator[str]:
    """Yield bounds as lines of a table, without the columns in which nothing stands."""
    used = [name for name in COLUMNS if any(getattr(bound, name) for bound in bounds)]
    heads = [beside if name == "beside" else COLUMNS[name] for name in used]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(used) + "|"
    for bound in bounds:
        yield f"| {' | '.join(getattr(bound, name) for name in used)} |"


def claim(says: str, bounds: list[Judged], proof: str) -> Claim:
    """Put what was wanted and seen, over all bounds on one figure, beside a sentence."""
    judged_ones = [bound for bound in bounds if bound.verdict]
    if len({bound.figure for bound in judged_ones}) > 1:
        return Claim(says, "by figure", "by figure", tally(bounds), proof)
    limits = list(dict.fromkeys(bound.wanted for bound in judged_ones))
    seen = [end for bound in judged_ones for end in bound.seen.split(" to ") if end]
    ends = (min(seen, key=float), max(seen, key=float)) if seen else ("", "")
    return Claim(says, _limits(limits), _span(list(ends)), tally(bounds), proof)


def _limits(limits: list[str]) -> str:
    """One text for the bounds of several cases."""
    if len(limits) < 3:
        return "; ".join(limits)
    for side in ("at least ", "at most "):
        if all(limit.startswith(side) for limit in limits):
            numbers = sorted((limit.removeprefix(side) for limit in limits), key=float)
            return f"{side}{numbers[0]} to {numbers[-1]}, by case"
    return "by case"


def tally(bounds: list[Judged]) -> str:
    """Return how many bounds are met, missed and open."""
    verdicts = [bound.verdict for bound in bounds if bound.verdict]
    missed = sum("missed" in verdict for verdict in verdicts)
    met = sum(verdict == "met" for verdict in verdicts)
    text = f"{met} of {len(verdicts)} met"
    text += f", **{missed} missed**" if missed else ""
    rest = len(verdicts) - met - missed
    return f"{text}, {rest} open" if rest else text


def rows_of(path: Path) -> list[Row]:
    """Lines of a table; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cells(wanted: Row, found: list[Row]) -> tuple[str, ...]:
    if "figure" not in wanted:
        wanted = {k: v for k, v in wanted.items() if k != "test"} | {"figure": wanted["test"]}
    keys = {k: v for k, v in wanted.items() if k not in NOT_KEYS and v}
    case = ", ".join(f"{k} {v}" for k, v in keys.items())
    source = wanted.get("source") or ""
    low, high = wanted.get("at_least") or "", wanted.get("at_most") or ""
    bound = _span([low, high]) if low and high else f"at least {low}" if low else ""
    bound = bound or (f"at most {high}" if high else "")
    head = (case, wanted["figure"], source, bound)
    rows = [row for row in found if matches(keys, row)]
    rows = [row for row in rows if row.get(wanted["figure"])]
    if not rows:
        return (*head, "", "", "", "not measured")
    values, error = _values(rows, wanted["figure"], together=TOGETHER in " ".join(keys.values()))
    shown = _span([f"{v:.4g}" for v in (min(values), max(values))])
    sets = _span([str(v) for v in _extremes([int(r["replicates"]) for r in rows])])
    folds = [int(r.get("folds") or 0) for r in rows]
    sets += f" in {_span([str(v) for v in _extremes(folds)])} folds" if any(folds) else ""
    highest = max(v - most for v, most in zip(values, _most(high, rows), strict=False))
    met = min(values) >= float(low or "-inf") and highest <= 0
    verdict = ("met" if met else "**missed**") if bound else ""
    few = any(
        int(r["replicates"]) < ENOUGH and f < ENOUGH_FOLDS for r, f in zip(rows, folds, strict=True)
    )
    if verdict and few:
        verdict = "too few data sets yet" if met else "**missed** (few data sets)"
    return (*head, shown, error, sets, verdict)


def _most(high: str, rows: list[Row]) -> list[float]:
    """The upper bound of each line."""
    smaller = SMALLER_OF.fullmatch(high)
    if smaller:
        return [min(float(row[smaller[1]]), float(smaller[2])) for row in rows]
    return [float(high or "inf")] * len(rows)


def _values(rows: list[Row], figure: str, *, together: bool) -> tuple[list[float], str]:
    """Figures of the lines, and the standard error where there is one line."""
    values = [float(row[figure]) for row in rows]
    if together:
        weights = [int(row["replicates"]) for row in rows]
        mean = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
        return [mean], ""
    errors = [row.get(f"{figure}_se") or "" for row in rows]
    return values, errors[0] if len(errors) == 1 else ""


def matches(keys: Row, row: Row) -> bool:
    """Whether a line of the results is one that a bound speaks of."""
    return all(_fits(wanted, row[key]) for key, wanted in keys.items() if key in row)


def _fits(wanted: str, value: str) -> bool:
    same = wanted.replace(",", "") == value.replace(",", "")
    if same or wanted == "each" or TOGETHER in wanted:
        return True
    every = re.fullmatch(r"every \w+(?: from (\d+))?", wanted)
    if every:
        return int(value) >= int(every[1] or 0)
    several = re.fullmatch(r"(.+) (\d+) to (\d+)", wanted)
    if several:
        begun = (f"{several[1]} {k}" for k in range(int(several[2]), int(several[3]) + 1))
        return any(value == one or value.startswith(f"{one} ") for one in begun)
    if " and " in wanted:
        return value in wanted.split(" and ")
    try:
        return float(wanted) == float(value)
    except ValueError:
        return False


def _extremes(values: list[int]) -> tuple[int, int]:
    return min(values), max(values)


def _span(ends: list[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"

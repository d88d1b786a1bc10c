"""What the replications of reference averaging share: the rounds, and rows that are kept."""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.averaging.estimators.proximal_fit import Learner
from consilience.numerics.reference_average import averaged, moved, rho_of
from tools.stale_results import table_hash

FloatArray = NDArray[np.float64]
Table = Sequence[tuple[Any, FloatArray]]

# --------------------------------------------------------------------------- rounds


@dataclass(frozen=True)
class Weights:
    """How much the pseudo-rows weigh in each round: one schedule."""

    name: str
    schedule: str
    rho: float = 1.0
    exponent: float = 0.9

    def rho_of(self, k: int, scale: float = 1.0) -> float:
        return rho_of(k, schedule=self.schedule, rho=self.rho, exponent=self.exponent, scale=scale)


FIXED = {rho: Weights(f"rho {rho:g}", "fixed", rho) for rho in (0.1, 1.0, 5.0)}
ADAPTIVE = Weights("k^0.9", "adaptive")


@dataclass(frozen=True)
class Round:
    """What there is after one round: fits of the sites, and their average at the reference."""

    k: int
    fits: Sequence[Any]
    average: FloatArray


def rounds(
    learner: Learner,
    tables: Table,
    weights: Weights,
    n_rounds: int,
    *,
    scale: float = 1.0,
    first: Round | None = None,
) -> Iterator[Round]:
    """Averaging (round 0), then refits of all sites in turn, until `n_rounds`.

    `first` is a round 0 that is there already.
    """
    sizes = np.array([len(y) for _, y in tables], dtype=float)
    if first is None:
        fits = [learner.fit(x, y) for x, y in tables]
        first = Round(0, fits, averaged([learner.at_reference(fit) for fit in fits], sizes))
    yield first
    fits, average = list(first.fits), first.average
    for k in range(1, n_rounds + 1):
        rho = weights.rho_of(k, scale)
        fits = [
            learner.fit(x, y, target=average, rho=rho, start=learner.start_of(fit))
            for (x, y), fit in zip(tables, fits, strict=True)
        ]
        average = averaged([learner.at_reference(fit) for fit in fits], sizes)
        yield Round(k, fits, average)


def arrivals(
    learner: Learner,
    tables: Table,
    weights: Weights,
    order: Iterable[int],
    *,
    scale: float = 1.0,
    common: bool = False,
) -> Iterator[Round]:
    """One site at a time in a given order; the others' last predictions stay in the average.

    The weight follows a site's own count of rounds, or the `common` one: arrivals over sites.
    """
    sizes = np.array([len(y) for _, y in tables], dtype=float)
    fits = [learner.fit(x, y) for x, y in tables]
    sent = [learner.at_reference(fit) for fit in fits]
    average = averaged(sent, sizes)
    counts = [0] * len(tables)
    yield Round(0, fits, average)
    for arrived, b in enumerate(order):
        counts[b] += 1
        x, y = tables[b]
        rho = weights.rho_of(1 + arrived // len(tables) if common else counts[b], scale)
        fits[b] = learner.fit(x, y, target=average, rho=rho, start=learner.start_of(fits[b]))
        new = learner.at_reference(fits[b])
        average = moved(average, new, sent[b], sizes[b] / sizes.sum())
        sent[b] = new
        yield Round(counts[b], list(fits), average)


def coefficients(fits: Sequence[Any], sizes: Sequence[float] | FloatArray) -> FloatArray:
    """Average of linear fits: the intercept, then the coefficients."""
    each = [np.append(np.ravel(fit.intercept_)[:1], np.ravel(fit.coef_)) for fit in fits]
    return averaged(each, sizes)


def distance(found: FloatArray, wanted: FloatArray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# --------------------------------------------------------------------------- running a table


def options(description: str | None) -> argparse.Namespace:
    """Command line of every ``run.py``."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--replicates", type=int, help="in place of those of each line")
    parser.add_argument("--seed", type=int, default=0, help="of the first replicate")
    parser.add_argument("--only", default="", help="lines whose name matches this expression")
    parser.add_argument("--again", action="store_true", help="also lines that are up to date")
    parser.add_argument("--out", type=Path, help="in place of result.csv")
    return parser.parse_args()


class Results:
    """Rows of ``result.csv``, each with the hash of the code it came from.

    The file is written after every line; a line that is up to date, with as many replicates, is
    not computed again.
    """

    def __init__(self, here: Path, chosen: argparse.Namespace, lines: Sequence[str]) -> None:
        self.path = chosen.out or here / "result.csv"
        self.stamp = table_hash(here)
        self.chosen = chosen
        self.order = {line: place for place, line in enumerate(lines)}
        self._started = time.perf_counter()

    def seeds(self, replicates: int) -> range:
        return range(self.chosen.seed, self.chosen.seed + (self.chosen.replicates or replicates))

    def wanted(self, line: str, replicates: int) -> bool:
        """Whether a line was asked for and is not there yet."""
        if not re.search(self.chosen.only, line):
            return False
        self._started = time.perf_counter()
        rows = [row for row in self._read() if row["line"] == line]
        count = len(self.seeds(replicates))
        current = all(
            row["code_hash"] == self.stamp and int(row["replicates"]) >= count for row in rows
        )
        return self.chosen.again or not rows or not current

    def add(self, line: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put the rows of one line in the place of older ones, with the minutes they took."""
        minutes = f"{(time.perf_counter() - self._started) / 60:.1f}"
        made = [{"line": line, **row, "minutes": minutes, "code_hash": self.stamp} for row in rows]
        kept: list[Mapping[str, Any]] = [row for row in self._read() if row["line"] != line]
        merged = sorted([*kept, *made], key=lambda row: self.order.get(row["line"], 10**6))
        names = list(dict.fromkeys(name for row in merged for name in row))
        names = [name for name in names if name not in ("minutes", "code_hash")]
        partial = self.path.with_suffix(".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, [*names, "minutes", "code_hash"], restval="", lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(merged)
        partial.replace(self.path)
        for row in made:
            print(*(f"{k}={v}" for k, v in row.items() if k != "code_hash" and v != ""), flush=True)

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


# --------------------------------------------------------------------------- figures


def mean(values: Iterable[float], name: str, form: str = ".4f") -> dict[str, str]:
    """Mean and its standard error over replicates."""
    known = np.array([v for v in values if not np.isnan(v)], dtype=float)
    if known.size == 0:
        return {name: "", f"{name}_se": ""}
    error = f"{known.std(ddof=1) / np.sqrt(known.size):{form}}" if known.size > 1 else ""
    return {name: f"{known.mean():{form}}", f"{name}_se": error}


def share(values: Iterable[float], name: str) -> dict[str, str]:
    """Share of successes and its standard error, which is not 0 at 0 or 1."""
    known = np.array([float(v) for v in values if not np.isnan(v)])
    if known.size == 0:
        return {name: "", f"{name}_se": ""}
    inner = (known.sum() + 0.5) / (known.size + 1.0)
    error = np.sqrt(inner * (1.0 - inner) / known.size)
    return {name: f"{known.mean():.3f}", f"{name}_se": f"{error:.3f}"}

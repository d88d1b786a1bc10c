"""What the replications of assisted learning share: rows that are kept, and figures."""

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from tools.stale_results import table_hash

FloatArray = NDArray[np.float64]

# --------------------------------------------------------------------------- running a table


def options(description: str | None) -> argparse.Namespace:
    """Command line of every ``run.py``."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--replicates", type=int, help="in place of those of each line")
    parser.add_argument("--seed", type=int, default=0, help="of the first replicate")
    parser.add_argument("--jobs", type=int, default=1, help="replicates computed at a time")
    parser.add_argument("--only", default="", help="lines whose name matches this expression")
    parser.add_argument("--again", action="store_true", help="also lines that are up to date")
    parser.add_argument("--out", type=Path, help="in place of result.csv")
    return parser.parse_args()


def replicate(
    function: Callable[..., Any], *arguments: Any, replicates: int, chosen: argparse.Namespace
) -> list[Any]:
    """Return what ``function(*arguments, seed)`` gives for the seeds of one line."""
    count = chosen.replicates or replicates
    seeds = range(chosen.seed, chosen.seed + count)
    if chosen.jobs == 1:
        return [function(*arguments, seed) for seed in seeds]
    return list(
        joblib.Parallel(n_jobs=chosen.jobs, batch_size="auto")(
            joblib.delayed(function)(*arguments, seed) for seed in seeds
        )
    )


class Table:
    """Rows of ``result.csv``, each with the hash of the code it came from.

    Rows that are there already are kept; a line that is up to date, with as many replicates, is
    not computed again. The file is read and written under a lock, so that several processes can
    fill one table.
    """

    def __init__(
        self, here: Path, chosen: argparse.Namespace, lines: Iterable[str] | None = None
    ) -> None:
        self.path = chosen.out or here / "result.csv"
        self.stamp = table_hash(here)
        self.chosen = chosen
        self.order = {line: place for place, line in enumerate(lines or ())}
        self._started = time.perf_counter()

    def wanted(self, line: str, replicates: int) -> bool:
        """Whether a line was asked for and is not there yet."""
        if not re.search(self.chosen.only, line):
            return False
        count = self.chosen.replicates or replicates
        rows = [row for row in self._read() if row["line"] == line]
        current = all(
            row["code_hash"] == self.stamp and int(row["replicates"] or 0) >= count for row in rows
        )
        return self.chosen.again or not rows or not current

    def add(self, line: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put the rows of one line in the place of older ones."""
        stamped = [{"line": line, **row, "code_hash": self.stamp} for row in rows]
        with locked(self.path.parent):
            kept = [row for row in self._read() if row["line"] != line]
            merged: list[Mapping[str, Any]] = [*kept, *stamped]
            if self.order:
                merged.sort(key=lambda row: self.order.get(row["line"], len(self.order)))
            self._write(merged)
        minutes = (time.perf_counter() - self._started) / 60
        for row in stamped:
            shown = [f"{k}={v}" for k, v in row.items() if k != "code_hash" and v != ""]
            print(f"{minutes:6.1f} min ", *shown, flush=True)

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row if name != "code_hash"))
        partial = self.path.with_suffix(".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*names, "code_hash"], restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self.path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold other processes back from the tables in a folder; nothing is left behind in it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# --------------------------------------------------------------------------- figures


def share(values: Iterable[float], name: str, digits: int = 4) -> dict[str, str]:
    """Mean of zeros and ones (or of shares, one a replicate) and its Monte Carlo error.

    Replicates without a value do not count. The error of a share at 0 or 1 counts half a success
    and half a failure more, so that it is not 0.
    """
    known = np.array([v for v in values if not np.isnan(v)], dtype=float)
    if known.size == 0:
        return {name: "", f"{name}_se": ""}
    inner = (known.sum() + 0.5) / (known.size + 1.0)
    error = known.std(ddof=1) / np.sqrt(known.size) if known.size > 1 else 0.0
    if error == 0.0:
        error = np.sqrt(inner * (1.0 - inner) / known.size)
    return {name: f"{known.mean():.{digits}f}", f"{name}_se": f"{error:.{digits}f}"}


def mean(values: Iterable[float], name: str, form: str = ".4f") -> dict[str, str]:
    """Mean and its standard error over replicates."""
    known = np.array([v for v in values if not np.isnan(v)], dtype=float)
    if known.size == 0:
        return {name: "", f"{name}_se": ""}
    error = known.std(ddof=1) / np.sqrt(known.size) if known.size > 1 else float("nan")
    return {name: f"{known.mean():{form}}", f"{name}_se": f"{error:{form}}"}


def crossed(*axes: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Every combination, the last axis fastest."""
    return product(*axes)

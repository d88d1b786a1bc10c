"""What the replications of meta clustering share: runs, models, scores, tables."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from consilience import MetaClustering
from consilience.collaborators.protocol.result import travelling
from consilience.engines.federation import Federation, Run
from consilience.learners.collaborative_predictor import CollaborativePredictor
from consilience.protocol.method import Columns, Preparation
from consilience.testing.fakes import members, with_fixed_secrets
from tools.stale_results import table_hash

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


# --------------------------------------------------------------------------- runs


def run(
    tables: Mapping[str, pd.DataFrame],
    *,
    seed: int,
    columns: Columns | None = None,
    preparation: Preparation | None = None,
    **parameters: Any,
) -> Run:
    """Run the method over tables in memory, with fixed secrets, so that it can be repeated.

    All columns but the last, which is the response, are features unless `columns` says otherwise.
    """
    if columns is None:
        *features, target = next(iter(tables.values())).columns
        columns = Columns(features=tuple(features), target=target)
    federation = Federation.local(
        tables, columns=columns, preparation=preparation, policy="simulation", n_jobs=1
    )
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, 1000 * seed + i)
    settings = {"rule": "pairwise", "exchange": "models", "gain_folds": 0, "stability_runs": 0}
    return MetaClustering(**{**settings, **parameters}).run(federation, seed=seed)


def labels_of(result: Any, names: Sequence[str]) -> IntArray:
    """Group of each site; sites that were left out are -1, -2, ..., each alone."""
    known = dict(zip(result.sites, np.asarray(result.labels).tolist(), strict=True))
    missing = iter(range(-1, -len(names) - 1, -1))
    return np.array([known[name] if name in known else next(missing) for name in names])


def average_model(result: Any, sites: Iterable[str]) -> CollaborativePredictor:
    """Average of some sites' models, weighted by their rows."""
    place = [result.sites.index(site) for site in sites]
    return CollaborativePredictor(
        [travelling(result.models[i]) for i in place],
        np.asarray(result.n_records)[place],
        feature_names=result.feature_names,
    )


# --------------------------------------------------------------------------- scores


def same_partition(found: ArrayLike, truth: ArrayLike) -> bool:
    """Whether two labellings put the same sites together."""
    found, truth = np.asarray(found), np.asarray(truth)
    pairs = set(zip(found.tolist(), truth.tolist(), strict=True))
    return len(pairs) == len(set(found.tolist())) == len(set(truth.tolist()))


def squared_error(y: FloatArray, prediction: FloatArray) -> float:
    return float(np.square(y - prediction).mean())


SHARES = frozenset({"exact", "group_exact", "one_cluster", "right_number", "too_few_rows"})
"""Figures that are 0 or 1 in every replicate."""


def mean_and_error(values: Iterable[float], *, share: bool = False) -> tuple[float, float]:
    """Mean and its Monte Carlo standard error.

    The error of a share counts half a success and half a failure more, so that it is not 0 at the
    ends.
    """
    known = np.array([v for v in values if not np.isnan(v)], dtype=float)
    if known.size == 0:
        return float("nan"), float("nan")
    if share:
        inner = (known.sum() + 0.5) / (known.size + 1.0)
        return float(known.mean()), float(np.sqrt(inner * (1 - inner) / known.size))
    if known.size == 1:
        return float(known[0]), float("nan")
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(known.size))


def figures(sets: Sequence[Mapping[str, float]], digits: int = 4) -> dict[str, str]:
    """Mean and standard error of every figure over replicates."""
    row = {}
    for name in sets[0]:
        value, error = mean_and_error([one[name] for one in sets], share=name in SHARES)
        row[name] = "" if np.isnan(value) else f"{value:.{digits}f}"
        row[f"{name}_se"] = "" if np.isnan(error) else f"{error:.{digits}f}"
    return row


# --------------------------------------------------------------------------- running a table


def options(description: str | None) -> argparse.Namespace:
    """Command line of every ``run.py``."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--replicates", type=int, help="in place of those of each line")
    parser.add_argument("--seed", type=int, default=0, help="of the first replicate")
    parser.add_argument("--jobs", type=int, default=2, help="replicates computed at a time")
    parser.add_argument("--only", default="", help="lines whose name contains this text")
    parser.add_argument("--out", type=Path, help="in place of result.csv")
    return parser.parse_args()


def replicate(
    function: Callable[..., dict[str, float]],
    *arguments: Any,
    replicates: int,
    chosen: argparse.Namespace,
) -> list[dict[str, float]]:
    """Figures of all replicates of one line: ``function(*arguments, seed)``."""
    count = chosen.replicates or replicates
    seeds = range(chosen.seed, chosen.seed + count)
    return list(
        joblib.Parallel(n_jobs=chosen.jobs)(
            joblib.delayed(function)(*arguments, seed) for seed in seeds
        )
    )


class Table:
    """Rows of ``result.csv``, each with the hash of the code it came from.

    The file is written after every row; its columns are those of all rows.
    """

    def __init__(self, here: Path, chosen: argparse.Namespace) -> None:
        self.path = chosen.out or here / "result.csv"
        self.stamp = table_hash(here)
        self.rows: list[dict[str, Any]] = []
        self._started = time.perf_counter()

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append({**row, "code_hash": self.stamp})
        minutes = (time.perf_counter() - self._started) / 60
        print(f"{minutes:6.1f} min ", *row.values(), flush=True)
        names = list(
            dict.fromkeys(name for one in self.rows for name in one if name != "code_hash")
        )
        with self.path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*names, "code_hash"], restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def data_folder(name: str) -> Path:
    """A folder of the real data; the program ends with one sentence where it is missing."""
    path = Path(os.environ.get("CONSILIENCE_DATA", "")) / name
    if not os.environ.get("CONSILIENCE_DATA") or not path.is_dir():
        raise SystemExit(f"set CONSILIENCE_DATA to the folder that holds {name}")
    return path


@cache
def grid() -> pd.DataFrame:
    """Electrical grid stability: twelve columns and the response `stab`, 10,000 rows."""
    table = pd.read_csv(data_folder("grid_stability") / "Data_for_UCI_named.csv.gz", sep=";")
    return table.drop(columns=[c for c in table if c.startswith("stabf")]).astype(float)

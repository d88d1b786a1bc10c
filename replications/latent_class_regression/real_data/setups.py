"""Rows, entities and peers of each data set: what is learnt from, and what is predicted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from examples.grouped.run import DATA, Grouped
from examples.grouped_peers import folds_of
from examples.inst_eval.make_tables import department_means, read_ratings, shrunken_mean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BASE = ("service", "semester", "terms_ago")


@dataclass(frozen=True, eq=False)
class Split:
    """One fold of one data set.

    Attributes
    ----------
    x : (n, p) array
        All rows; columns may depend on what is known in this fold.
    y : (n,) array
    train, new : int arrays
        Places of rows.
    codes : dict of str to (n,) int array
        ``entity``, and where there are such: ``agent``, ``student``, ``lecturer`` and
        ``lecturer at home`` (a lecturer for the students of one department).
    columns : tuple of str
    """

    x: FloatArray
    y: FloatArray
    train: IntArray
    new: IntArray
    codes: dict[str, IntArray]
    columns: tuple[str, ...]

    def place(self, column: str) -> int:
        return self.columns.index(column)


def folder() -> Path:
    path = Path(os.environ.get("CONSILIENCE_DATA", "")) / "grouped"
    if not os.environ.get("CONSILIENCE_DATA") or not path.is_dir():
        raise SystemExit("set CONSILIENCE_DATA to the folder that holds grouped")
    return path


def _splits(fold: IntArray) -> Iterator[tuple[NDArray[np.bool_], IntArray, IntArray]]:
    for k in range(int(fold.max()) + 1):
        known = fold != k
        yield known, np.flatnonzero(known), np.flatnonzero(~known)


def ratings_splits(kind: str, seed: int) -> Iterator[Split]:
    """InstEval with the mean of the lecturer (of all, or of the student's department), or raw."""
    rows = read_ratings(folder())
    y = rows["rating"].to_numpy(dtype=float)
    names = {
        "student": rows["student"].to_numpy(),
        "lecturer": rows["lecturer"].to_numpy(),
        "lecturer at home": rows["lecturer"].to_numpy() * 100 + rows["home"].to_numpy(),
    }
    names["entity"] = names["lecturer" if kind == "raw" else "student"]
    if kind != "mean of all":
        names["agent"] = rows["department" if kind == "raw" else "home"].to_numpy()
    codes = {name: pd.factorize(values)[0] for name, values in names.items()}
    base = rows[list(BASE)].to_numpy(dtype=float)
    for known, train, new in _splits(folds_of(codes["student"], np.random.default_rng(seed))):
        if kind == "raw":
            yield Split(base, y, train, new, codes, BASE)
            continue
        mean = (
            shrunken_mean(y, codes["lecturer"], known)
            if kind == "mean of all"
            else department_means(rows, known)
        )
        x = np.column_stack([mean, base])
        yield Split(x, y, train, new, codes, ("lecturer_mean", *BASE))


def grouped_splits(name: str, seed: int) -> Iterator[Split]:
    """sleepstudy, Exam."""
    data: Grouped = DATA[name](folder())
    x, codes = data.x.to_numpy(dtype=float), {"entity": data.entity}
    for _, train, new in _splits(folds_of(data.entity, np.random.default_rng(seed))):
        yield Split(x, data.y, train, new, codes, tuple(data.x))

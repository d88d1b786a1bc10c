"""Tables for the tests of tall estimators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from consilience.numerics.random import stream


def regression(n: int = 600, p: int = 6, key: str = "regression") -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns away from the origin, a linear response."""
    rng = stream(1, key, n, p)
    x = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) + 2 * rng.normal(size=p)
    return x, x @ rng.normal(size=p) + 3 + 2 * rng.normal(size=n)


def classes(n: int = 900, p: int = 5, q: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Classes by a linear predictor with noise, as words."""
    rng = stream(2, "classes", n, p, q)
    x = rng.normal(size=(n, p))
    scores = x @ rng.normal(size=(p, q)) + rng.gumbel(size=(n, q))
    return x, np.array(["ash", "birch", "cedar"])[np.argmax(scores, axis=1)]


def frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])]).assign(y=y)


def write(folder: Path, table: pd.DataFrame, files: int = 3, group: int = 70) -> Path:
    """A data set of several files with small row groups, in the order of the rows."""
    folder.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(table)), files)):
        part = table.iloc[rows]
        part.to_parquet(folder / f"part-{i}.parquet", row_group_size=group, index=False)
    return folder

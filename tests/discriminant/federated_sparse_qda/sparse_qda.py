"""Tables of classes over sites for tests of sparse quadratic discriminant analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from consilience import Columns, Federation
from consilience.sites.policy import Policy
from tests.granted import granted

Tables = dict[str, pd.DataFrame]


def draw(
    sizes: Sequence[int],
    p: int,
    *,
    n_classes: int = 2,
    seed: int = 0,
    shift: float = 0.3,
    block: int = 4,
    rho: float = 0.8,
    apart: float = 0.4,
) -> Tables:
    """Normal rows of classes in turn; in the last class the first columns are correlated.

    Sites are shifted against each other, columns have other scales.
    """
    rng = np.random.default_rng(seed)
    means = apart * rng.normal(size=(n_classes, p))
    scales = 10.0 ** rng.uniform(-1, 1, size=p)
    tables = {}
    for b, n in enumerate(sizes):
        y = np.arange(n) % n_classes
        x = rng.normal(size=(n, p))
        common = rng.normal(size=n)[:, None]
        linked = np.sqrt(rho) * common + np.sqrt(1 - rho) * x[:, :block]
        x[:, :block] = np.where((y == n_classes - 1)[:, None], linked, x[:, :block])
        x = (x + means[y] + shift * rng.normal(size=p)) * scales
        frame = pd.DataFrame(x, columns=names(p))
        frame["y"] = np.array(labels(n_classes))[y]
        tables[f"s{b}"] = frame
    return tables


def names(p: int) -> list[str]:
    return [f"x{j}" for j in range(p)]


def labels(n_classes: int) -> tuple[str, ...]:
    return tuple(f"c{k}" for k in range(n_classes))


def federation_over(
    tables: Mapping[str, pd.DataFrame],
    policy: str | Policy = "simulation",
    *,
    n_classes: int = 2,
    **settings: Any,
) -> Federation:
    first = next(iter(tables.values()))
    columns = Columns(
        features=[c for c in first.columns if c.startswith("x")],
        target="y",
        levels={"y": labels(n_classes)},
    )
    return Federation.local(tables, columns=columns, policy=granted(policy), **settings)


def rows(tables: Mapping[str, pd.DataFrame]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows together: features, classes, sites."""
    whole = pd.concat(list(tables.values()))
    x = whole[[c for c in whole.columns if c.startswith("x")]].to_numpy(float)
    sites = np.concatenate([np.full(len(t), name) for name, t in tables.items()])
    return x, whole["y"].to_numpy(str), sites

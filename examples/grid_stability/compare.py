"""What a run says of new grids, beside averaging and the fit of all tables.

Nobody has all tables in earnest: this is how the example knows how far the run has come.

    python examples/grid_stability/compare.py runs/grid
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from consilience import load_run

HERE = Path(__file__).resolve().parent
ALPHA = 1e-4
"""As in the study file."""


def read_tables(folder: Path) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Tables of the sites, and the new grids."""
    sites = {path.stem: pd.read_csv(path) for path in sorted(folder.glob("area-*.csv"))}
    return sites, pd.read_csv(folder / "new.csv")


def r2(truth: pd.Series, predicted: np.ndarray) -> float:
    """Share of the variance of new rows that is explained."""
    return float(1.0 - np.mean((truth - predicted) ** 2) / np.var(truth))


def compare(
    result: Any, sites: Mapping[str, pd.DataFrame], new: pd.DataFrame, alpha: float = ALPHA
) -> dict[str, float]:
    """R2 on new rows of the pooled fit, of averaging, and of a result.

    Returns
    -------
    dict
        ``averaging``, ``kept``, ``pooled``, and ``share``: how much of the way from averaging to
        the pooled fit the result has come.
    """
    from sklearn.linear_model import Lasso

    pooled = pd.concat(sites.values())
    names = [name for name in pooled if name != "stab"]
    centre, scale = pooled[names].mean(), pooled[names].std(ddof=0)

    def fit(table: pd.DataFrame) -> Any:
        model = Lasso(alpha=alpha, max_iter=100_000)
        return model.fit(((table[names] - centre) / scale).to_numpy(), table["stab"])

    at_new = ((new[names] - centre) / scale).to_numpy()
    n = [len(table) for table in sites.values()]
    apart = np.average([fit(t).predict(at_new) for t in sites.values()], axis=0, weights=n)
    found = {
        "averaging": r2(new["stab"], apart),
        "kept": r2(new["stab"], result.to_estimator().predict(new[names])),
        "pooled": r2(new["stab"], fit(pooled).predict(at_new)),
    }
    gap = found["pooled"] - found["averaging"]
    return {**found, "share": (found["kept"] - found["averaging"]) / gap}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="R2 on new grids.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    sites, new = read_tables(options.tables)
    for name, value in compare(load_run(options.run).result, sites, new).items():
        print(f"{name:10} {value:.3f}")


if __name__ == "__main__":
    main()

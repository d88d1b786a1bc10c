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


def without_rounds(
    sites: Mapping[str, pd.DataFrame], new: pd.DataFrame, alpha: float = ALPHA
) -> dict[str, float]:
    """R2 on new rows of ``averaging`` of the sites' own fits, and of the ``pooled`` fit."""
    from sklearn.linear_model import Lasso

    pooled = pd.concat(sites.values())
    names = [name for name in pooled if name != "stab"]
    centre, scale = pooled[names].mean(), pooled[names].std(ddof=0)

    def predicted(table: pd.DataFrame) -> np.ndarray:
        model = Lasso(alpha=alpha, tol=1e-6, max_iter=100_000)
        model.fit(((table[names] - centre) / scale).to_numpy(), table["stab"])
        return np.asarray(model.predict(((new[names] - centre) / scale).to_numpy()))

    n = [len(table) for table in sites.values()]
    apart = np.average([predicted(table) for table in sites.values()], axis=0, weights=n)
    return {
        "averaging": r2(new["stab"], apart),
        "pooled": r2(new["stab"], predicted(pooled)),
    }


def compare(result: Any, sites: Mapping[str, pd.DataFrame], new: pd.DataFrame) -> dict[str, float]:
    """The same, what a result ``kept``, and which ``share`` of the gap that is."""
    found = without_rounds(sites, new)
    names = [name for name in new if name != "stab"]
    kept = r2(new["stab"], result.to_estimator().predict(new[names]))
    share = (kept - found["averaging"]) / (found["pooled"] - found["averaging"])
    return {
        "averaging": found["averaging"],
        "kept": kept,
        "pooled": found["pooled"],
        "share": share,
    }


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

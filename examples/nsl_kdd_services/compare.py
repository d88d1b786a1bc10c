"""What a run says of new connections, beside averaging and the fit of all tables.

Nobody has all tables in earnest: this is how the example knows how far the run has come.

    python examples/nsl_kdd_services/compare.py runs/services
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


def read_tables(folder: Path) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Tables of the sites, and the new connections."""
    sites = {
        path.stem: pd.read_csv(path)
        for path in sorted(folder.glob("*.csv"))
        if path.stem not in ("public", "new")
    }
    return sites, pd.read_csv(folder / "new.csv")


def log_loss(truth: pd.Series, chance: np.ndarray) -> float:
    """Mean log loss; `chance` is the predicted probability of an attack."""
    right = np.where(truth == "yes", chance, 1.0 - chance)
    return float(-np.log(np.maximum(right, 1e-15)).mean())


def without_rounds(sites: Mapping[str, pd.DataFrame], new: pd.DataFrame) -> dict[str, float]:
    """Log loss on new rows of ``averaging`` of the sites' own fits, and of the ``pooled`` fit."""
    from sklearn.linear_model import LogisticRegression

    pooled = pd.concat(sites.values())
    names = [name for name in pooled if name != "dos"]
    centre, scale = pooled[names].mean(), pooled[names].std(ddof=0)

    def chances(table: pd.DataFrame) -> np.ndarray:
        # A penalty of 1 on all rows is n/N at a site with n of them.
        penalty = len(table) / len(pooled)
        model = LogisticRegression(C=1.0 / penalty, tol=1e-6, max_iter=10_000)
        model.fit(((table[names] - centre) / scale).to_numpy(), table["dos"] == "yes")
        return np.asarray(model.predict_proba(((new[names] - centre) / scale).to_numpy())[:, 1])

    n = [len(table) for table in sites.values()]
    apart = np.average([chances(table) for table in sites.values()], axis=0, weights=n)
    return {
        "averaging": log_loss(new["dos"], apart),
        "pooled": log_loss(new["dos"], chances(pooled)),
    }


def compare(result: Any, sites: Mapping[str, pd.DataFrame], new: pd.DataFrame) -> dict[str, float]:
    """The same, what a result ``kept``, and which ``share`` of the gap that is."""
    found = without_rounds(sites, new)
    predictor = result.to_estimator()
    yes = list(predictor.classes_).index("yes")
    names = [name for name in new if name != "dos"]
    kept = log_loss(new["dos"], predictor.predict_proba(new[names])[:, yes])
    share = (found["averaging"] - kept) / (found["averaging"] - found["pooled"])
    return {
        "averaging": found["averaging"],
        "kept": kept,
        "pooled": found["pooled"],
        "share": share,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Log loss on new connections.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    options = parser.parse_args()
    sites, new = read_tables(options.tables)
    for name, value in compare(load_run(options.run).result, sites, new).items():
        print(f"{name:10} {value:.4f}")


if __name__ == "__main__":
    main()

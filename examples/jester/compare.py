"""How far predictions of ratings that took no part are off, by rule.

python examples/jester/compare.py runs/jester
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

from consilience import RankCV, Run, load_run
from consilience.numerics.entries import Entries
from consilience.sites.outputs import SiteOutput
from consilience.sites.site_store import DiskStore

HERE = Path(__file__).resolve().parent
RANKS = range(16)


def compare(run: Run, homes: Path, tables: Path) -> pd.DataFrame:
    """Root mean squared errors of ratings that the run set aside."""
    left = SiteOutput(DiskStore(homes / run.info.sites[0]), run.info.run)
    aside = np.asarray(left.values("set_aside")).astype(bool)
    ratings = pd.read_csv(tables / "ratings.csv")
    codes = [pd.factorize(ratings[name], sort=True)[0] for name in ("person", "joke")]
    value = ratings["rating"].to_numpy()
    shape = (int(codes[0].max()) + 1, int(codes[1].max()) + 1)
    rows, columns = (code[~aside] for code in codes)
    known = Entries.from_triplets(rows, columns, value[~aside], shape)
    at, truth = tuple(code[aside] for code in codes), value[aside]
    result = run.result
    found = dict(
        zip(
            ("matrix-completion, this run", "row + column means", "column means"),
            np.sqrt(result.final_errors),  # type: ignore[attr-defined]
            strict=True,
        )
    )
    filled = filled_svd(known)
    errors = {k: rmse(fit[at], truth) for k, fit in filled.items()}
    best = min(errors, key=errors.__getitem__)
    found[f"column means, then SVD of rank {best} (the best of them)"] = errors[best]
    hard = RankCV("hard", ranks=range(11), center="rows-and-columns", random_state=0).fit(known)
    found[f"hard-impute, rank {hard.rank_} by held-out entries"] = rmse(
        hard.predict_entries(*at), truth
    )
    table = pd.DataFrame({"error": found})
    return table.sort_values("error")


def filled_svd(known: Entries) -> dict[int, NDArray[np.float64]]:
    """Gaps filled by column means, then the singular value decomposition cut after each rank."""
    x = known.dense()
    means = np.nanmean(x, axis=0)
    filled = np.where(np.isnan(x), means, x) - means
    u, s, v = randomized_svd(filled, max(RANKS), random_state=0)
    return {k: (u[:, :k] * s[:k]) @ v[:k] + means for k in RANKS}


def rmse(fitted: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((fitted - truth) ** 2)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Errors of ratings that took no part.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--tables", type=Path, default=HERE / "tables")
    parser.add_argument("--homes", type=Path, default=HERE / "homes")
    options = parser.parse_args()
    table = compare(load_run(options.run), options.homes, options.tables)
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()

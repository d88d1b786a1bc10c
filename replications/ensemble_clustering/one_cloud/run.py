"""Does the test against one cloud hold its level without classes, and does it find classes?

The whole method runs, with its defaults, at sites in memory. Each row of ``result.csv`` is a
design: how often the run says "classes" at the level .05, with its standard error, and how often
the columns are found to be related. Rows that are there by the present code are kept, so that a
long run can go on, and others until theirs is computed. ``python run.py RUNS`` makes fewer runs of
each design than the 400 that a bound of .03 to .07 asks for; ``python run.py RUNS ROWS N_CLUSTERS``
those of some designs only, "*" standing for anything.
"""

from __future__ import annotations

import csv
import sys
import warnings
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import Columns, EnsembleClustering, Federation, Preparation  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from tools.stale_results import table_hash  # noqa: E402

HERE = Path(__file__).parent
P = 5
ROWS = 100
RUNS = 400
LAGGED = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.2, 0.6]])


@dataclass(frozen=True)
class Design:
    """What is simulated, and how the method is asked."""

    rows: str
    n_sites: int = 3
    n_clusters: int | str = 2
    pooled: bool = False  # all rows at one site


NULLS = (
    "correlation 0",
    "correlation 0.3",
    "correlation 0.5",
    "correlation 0.8",
    "lognormal",
    "two levels",
    "four levels",
    "skewed, outliers",
    "one factor",
    "shifted means",
    "gamma frailty",
    "log-linear",
    "Markov chain",
)
DESIGNS = (
    *(Design(rows) for rows in NULLS[:-2]),
    Design("correlation 0.5", n_clusters=3),
    Design("correlation 0.5", n_sites=8),
    Design("lognormal", n_sites=8),
    Design("correlation 0.5", n_clusters="vote"),
    Design("correlation 0.5", n_clusters="bic"),
    Design("correlation 0.5", n_clusters="cv"),
    Design("lognormal", n_clusters="vote"),
    *(
        Design(f"{number} {apart}", n_clusters=k, pooled=pooled)
        for number, k in (("two", 2), ("three", 3))
        for apart in (1.5, 2.0, 2.5)
        for pooled in (False, True)
    ),
    *(Design(rows) for rows in NULLS[-2:]),  # these take three and ten times as long
)


def simulated(design: Design, rng: np.random.Generator) -> np.ndarray:
    """Rows of one site, (n, p)."""
    n, kind = ROWS * (design.n_sites if design.pooled else 1), design.rows

    def normal(r: float, mean: object = 0.0) -> np.ndarray:
        covariance = np.full((P, P), r) + (1 - r) * np.eye(P)
        return rng.multivariate_normal(np.broadcast_to(mean, P), covariance, size=n)

    word, _, number = kind.partition(" ")
    if word == "correlation":
        return normal(float(number))
    if kind == "lognormal":
        return np.exp(normal(0.3))
    if kind in ("two levels", "four levels"):
        cuts = [0] if kind == "two levels" else [-1, 0, 1]
        return np.digitize(normal(0.5), cuts).astype(float)
    if kind == "skewed, outliers":
        x = normal(0.4)
        x = x * np.abs(x) + np.maximum(x, 0)
        x[rng.random(n) < 0.03] *= 5
        return x
    if kind == "one factor":
        loading = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
        return rng.standard_normal((n, 1)) * loading + rng.standard_normal((n, P)) * np.sqrt(
            1 - loading**2
        )
    if kind == "shifted means":
        return normal(0.5, 2 * rng.standard_normal(P))
    if kind == "gamma frailty":
        return rng.poisson(2 * rng.gamma(2, 0.5, size=(n, 1)), size=(n, P)).astype(float)
    if kind == "Markov chain":
        x = np.empty((n, 8), dtype=int)
        x[:, 0] = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
        for t in range(1, 8):
            x[:, t] = (rng.random(n)[:, None] > LAGGED[x[:, t - 1]].cumsum(axis=1)).sum(axis=1)
        return x
    if kind == "log-linear":  # two-way terms of every pair, by Gibbs sampling
        x = rng.integers(2, size=(n, P))
        for _ in range(60):
            for j in range(P):
                others = np.delete(x, j, axis=1)
                x[:, j] = rng.random(n) < 1 / (1 + np.exp(-0.35 * (2 * others - 1).sum(axis=1)))
        return x
    apart = float(number)
    x = rng.standard_normal((n, P))
    if word == "two":
        x[rng.random(n) < 0.4] += apart / np.sqrt(P)
    else:
        means = np.zeros((3, P))
        means[1, :2] = means[2, 2:4] = apart / np.sqrt(2)
        x += means[rng.integers(3, size=n)]
    return x


def one_run(design: Design, seed: int) -> tuple[float, float, float]:
    """p-values against one cloud and unrelated columns, and the score."""
    rng = stream(seed, "one cloud", design.rows, design.n_sites, str(design.n_clusters))
    tables, options, roles = {}, {}, {}
    preparation = Preparation(standardize="site")
    for i in range(1 if design.pooled else design.n_sites):
        x = simulated(design, rng)
        names = [f"x{j}" for j in range(x.shape[1])]
        tables[f"site{i}"] = pd.DataFrame(x, columns=names)
    roles = {"features": names}
    if design.rows == "Markov chain":
        tables = {s: t.astype(str) for s, t in tables.items()}
        roles = {"sequence": names, "levels": {names[0]: ("0", "1", "2")}}
        options = {"model": "markov-mixture"}
        preparation = Preparation(standardize="none")
    if design.rows == "log-linear":
        tables = {s: t.astype(str) for s, t in tables.items()}
        roles |= {"levels": {name: ("0", "1") for name in names}}
        options = {"model": "latent-class"}
        preparation = Preparation(standardize="none", categorical="onehot")
    sites = Federation.local(
        tables, columns=Columns(**roles), preparation=preparation, policy="simulation", n_jobs=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = sites.run(EnsembleClustering(n_clusters=design.n_clusters, **options), seed=seed)
    result = run.result
    return (
        result.p_value("apart"),
        result.p_value("related"),
        result.stability_figures.get("apart", np.nan),
    )


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    chosen_rows, chosen_k = (*sys.argv[2:4], "*", "*")[:2]
    path = HERE / "result.csv"
    stamp = table_hash(HERE)
    kept = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    rows = {(r["rows"], r["n_sites"], r["n_clusters"], r["where"]): r for r in kept}
    keys = {}
    for design in DESIGNS:
        where = "one site with all rows" if design.pooled else "sites"
        keys[design.rows, str(design.n_sites), str(design.n_clusters), where] = design
    for key, design in keys.items():
        if not fnmatch(design.rows, chosen_rows) or not fnmatch(str(design.n_clusters), chosen_k):
            continue
        if key in rows and rows[key]["code_hash"] == stamp:
            continue
        each = Parallel(n_jobs=-1)(delayed(one_run)(design, seed) for seed in range(runs))
        found = np.array(each)
        said = found[~np.isnan(found[:, 0])]
        share = float((said[:, 0] <= 0.05).mean())
        figures = {
            "runs": len(found),
            "said_nothing": len(found) - len(said),
            "classes": f"{share:.3f}",
            "se": f"{(share * (1 - share) / max(len(said), 1)) ** 0.5:.3f}",
            "related": f"{(said[:, 1] <= 0.05).mean():.3f}",
            "mean_score": f"{said[:, 2].mean():.2f}",
            "sd_score": f"{said[:, 2].std():.2f}",
            "code_hash": stamp,
        }
        names = ("rows", "n_sites", "n_clusters", "where")
        rows[key] = dict(zip(names, key, strict=True)) | figures
        print(*list(rows[key].values())[:-1], flush=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[key]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[k] for k in keys if k in rows)


if __name__ == "__main__":
    main()

"""Grid stability by areas and attacks by service: how near the pooled fit the rounds come.

Needs the data of ``examples/grid_stability`` and ``examples/nsl_kdd_services`` in the folder that
``CONSILIENCE_DATA`` names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.averaging.estimators.proximal_fit import Learner  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from consilience.numerics.reference_average import (  # noqa: E402
    averaged,
    normal_reference,
    scale_of,
)
from examples.grid_stability import make_tables as grid  # noqa: E402
from examples.nsl_kdd_services import make_tables as services  # noqa: E402
from replications.reference_averaging.study import (  # noqa: E402
    ADAPTIVE,
    FloatArray,
    Results,
    mean,
    options,
    rounds,
)

HERE = Path(__file__).parent
REPLICATES = 10
SHOWN = (1, 5, 20, 100)


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes
    ----------
    data : {"grid stability", "NSL-KDD"}
    sites : {"sorted", "random"}
    columns : str
    reference : {"moments", "design", "public rows"}
    penalty : float
        ``alpha`` of the lasso, ``C`` of logistic regression, as for all rows together.
    n_rounds : int
    """

    data: str
    sites: str
    columns: str
    reference: str
    penalty: float
    n_rounds: int

    @property
    def name(self) -> str:
        return f"{self.data}, {self.sites} sites, {self.columns}, {self.reference}, {self.penalty}"


def grid_line(sites: str, columns: str, reference: str, penalty: float = 1e-4) -> Line:
    return Line("grid stability", sites, columns, reference, penalty, 20)


def service_line(sites: str, reference: str, penalty: float = 1.0) -> Line:
    return Line("NSL-KDD", sites, "19 figures", reference, penalty, 100)


LINES = (
    grid_line("sorted", "centred products", "moments"),
    grid_line("sorted", "centred products", "moments", 3e-5),
    grid_line("sorted", "centred products", "moments", 3e-4),
    grid_line("sorted", "centred products", "design"),
    grid_line("sorted", "raw products", "moments"),
    grid_line("random", "centred products", "moments"),
    grid_line("random", "12 inputs", "moments"),
    service_line("sorted", "public rows"),
    service_line("sorted", "public rows", 0.1),
    service_line("sorted", "public rows", 10.0),
    service_line("sorted", "moments"),
    service_line("random", "public rows"),
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Tables of the sites on the pooled scale, rows for the test, and reference rows.

    Attributes
    ----------
    tables : sequence of pairs of (n, p) and (n,) arrays
    new : pair of arrays
    owner : (n,) int array or None
        Place of the site to which each new row belongs.
    reference : (m, p) array
    learner : Learner
    figure : callable
        Loss of predictions (q columns) of the new rows: 1 - R2, or log loss.
    """

    tables: Sequence[tuple[FloatArray, FloatArray]]
    new: tuple[FloatArray, FloatArray]
    owner: np.ndarray | None
    reference: FloatArray
    learner: Learner
    figure: Callable[[FloatArray, FloatArray], float]


def folder(name: str) -> Path:
    path = Path(os.environ.get("CONSILIENCE_DATA", "")) / name
    if not os.environ.get("CONSILIENCE_DATA") or not path.is_dir():
        raise SystemExit(f"set CONSILIENCE_DATA to the folder that holds {name}")
    return path


# --------------------------------------------------------------------------- the two data sets


def missing_r2(y: FloatArray, predicted: FloatArray) -> float:
    return float(np.mean((y - predicted[:, 0]) ** 2) / np.var(y))


def log_loss(y: FloatArray, chances: FloatArray) -> float:
    right = chances[np.arange(len(y)), y.astype(int)]
    return float(-np.log(np.maximum(right, 1e-15)).mean())


def drawn(x: FloatArray, n_rows: int, rng: np.random.Generator) -> FloatArray:
    """Normal rows with the means and covariances of all rows."""
    return normal_reference(x.mean(axis=0), np.cov(x.T, bias=True), n_rows, rng)


def design_rows(n_rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Inputs drawn as the simulation of the source drew them; no row of anybody is needed."""
    rows = {name: rng.uniform(low, high, n_rows) for name, (low, high) in grid.RANGES.items()}
    rows["p1"] = -(rows["p2"] + rows["p3"] + rows["p4"])
    return pd.DataFrame(rows)


def grid_problem(line: Line, seed: int) -> Problem:
    from sklearn.linear_model import Lasso

    rng = stream(seed, "grid stability", line.reference)
    sites, new = grid.site_tables(
        grid.read_grids(folder("grid_stability")),
        seed,
        by_tau1=line.sites == "sorted",
        centred=line.columns != "raw products",
    )
    names = list(grid.INPUTS if line.columns == "12 inputs" else grid.feature_names())
    whole = pd.concat(sites.values())
    centre, scale = whole[names].mean(), whole[names].std(ddof=0)

    def scaled(table: pd.DataFrame) -> FloatArray:
        return np.ascontiguousarray(((table[names] - centre) / scale).to_numpy())

    m = 20 * len(names)
    if line.reference == "design":
        reference = scaled(grid.with_products(design_rows(m, rng)))
    else:
        reference = drawn(scaled(whole), m, rng)
    estimator = Lasso(alpha=line.penalty, max_iter=100_000)
    edges = [table["tau1"].max() for table in list(sites.values())[:-1]]
    return Problem(
        [(scaled(table), table["stab"].to_numpy()) for table in sites.values()],
        (scaled(new), new["stab"].to_numpy()),
        np.searchsorted(edges, new["tau1"]) if line.sites == "sorted" else None,
        reference,
        Learner(estimator, task="regression", reference=reference, n_total=len(whole)),
        missing_r2,
    )


def service_problem(line: Line, seed: int) -> Problem:
    from sklearn.linear_model import LogisticRegression

    rows = services.connections(folder("nsl_kdd"))
    sites, public, new = services.site_tables(rows, seed, by_service=line.sites == "sorted")
    names = list(public)
    whole = pd.concat(sites.values())
    centre, scale = whole[names].mean(), whole[names].std(ddof=0)

    def scaled(table: pd.DataFrame) -> FloatArray:
        return np.ascontiguousarray(((table[names] - centre) / scale).to_numpy())

    def answer(table: pd.DataFrame) -> FloatArray:
        return (table["dos"] == "yes").to_numpy(dtype=float)

    reference = scaled(public)
    if line.reference == "moments":
        rng = stream(seed, "NSL-KDD", line.reference)
        reference = drawn(scaled(whole), len(public), rng)
    estimator = LogisticRegression(C=line.penalty, tol=1e-6, max_iter=10_000)
    owner = services.sites_of(rows).loc[new.index].map({name: i for i, name in enumerate(sites)})
    return Problem(
        [(scaled(table), answer(table)) for table in sites.values()],
        (scaled(new), answer(new)),
        owner.to_numpy() if line.sites == "sorted" else None,
        reference,
        Learner(
            estimator,
            task="classification",
            n_levels=2,
            reference=reference,
            n_total=len(whole),
        ),
        log_loss,
    )


PROBLEMS = {"grid stability": grid_problem, "NSL-KDD": service_problem}

# --------------------------------------------------------------------------- figures


def one(line: Line, seed: int) -> dict[str, float]:
    """Losses on new rows: of averaging, after rounds, of the pooled fit, of the sites' own fits."""
    problem = PROBLEMS[line.data](line, seed)
    learner, (x, y) = problem.learner, problem.new
    sizes = np.array([len(own) for _, own in problem.tables], dtype=float)
    squares = [float((rows**2).sum()) for rows, _ in problem.tables]
    scale = scale_of(sum(squares) / sizes.sum(), problem.reference)
    found: dict[str, float] = {}
    for step in rounds(learner, problem.tables, ADAPTIVE, line.n_rounds, scale=scale):
        if step.k not in (0, *SHOWN):
            continue
        each = [learner.predict(fit, x) for fit in step.fits]
        found[f"after_{step.k}"] = problem.figure(y, averaged(each, sizes))
        if step.k == 0 and problem.owner is not None:
            found["own"] = problem.figure(y, np.stack(each)[problem.owner, np.arange(len(y))])
    whole = tuple(np.concatenate(parts) for parts in zip(*problem.tables, strict=True))
    found["pooled"] = problem.figure(y, learner.predict(learner.fit(*whole), x))
    return found


def closed(found: Mapping[str, float], k: int) -> float:
    """Share of the way from averaging to the pooled fit."""
    gap = found["after_0"] - found["pooled"]
    return (found["after_0"] - found.get(f"after_{k}", np.nan)) / gap


def row(line: Line, sets: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Figures over data sets; R2 where that is what the source shows."""
    regression = line.data == "grid stability"
    made: dict[str, Any] = {
        "data": line.data,
        "sites": line.sites,
        "columns": line.columns,
        "reference": line.reference,
        "penalty": line.penalty,
        "replicates": len(sets),
        "figure": "R2" if regression else "log loss",
    }

    def shown(values: Sequence[float], name: str) -> dict[str, str]:
        return mean([1.0 - v for v in values] if regression else values, name)

    made |= shown([s.get("own", np.nan) for s in sets], "own")
    made |= shown([s["after_0"] for s in sets], "averaging")
    for k in SHOWN:
        made |= shown([s.get(f"after_{k}", np.nan) for s in sets], f"round_{k}")
    made |= shown([s["pooled"] for s in sets], "pooled")
    made |= mean([s["pooled"] - s["after_0"] for s in sets], "averaging_ahead", ".5f")
    if line.sites == "sorted":  # otherwise there is hardly a gap to close
        for k in SHOWN:
            shares = [closed(s, k) for s in sets]
            made |= mean(shares, f"closed_{k}", ".3f")
            made[f"closed_{k}_least"] = "" if np.isnan(shares).all() else f"{min(shares):.3f}"
    return made


def main() -> None:
    table = Results(HERE, options(__doc__), [line.name for line in LINES])
    for line in LINES:
        if not table.wanted(line.name, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = [one(line, seed) for seed in table.seeds(REPLICATES)]
        table.add(line.name, [row(line, sets)])


if __name__ == "__main__":
    main()

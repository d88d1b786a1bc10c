"""Size of tests and coverage of limits of Cox regressions, stratified by site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scipy.stats import t as student  # noqa: E402

from consilience.numerics.random import stream  # noqa: E402
from consilience.regression import cox, kernels  # noqa: E402
from consilience.regression.kernels import COX, Pool  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 2000
LEVEL = 0.05
ERRORS = ("model", "HC0", "cluster")
LINES = (
    ("null", 10, 100),
    ("independent", 10, 100),
    ("few", 10, 100),
    ("heterogeneous", 30, 40),
    ("clustered", 30, 40),
)
SLOPES = np.array([0.3, -0.2, 0.4])


def draw(design: str, n_sites: int, n: int, seed: int) -> tuple[Any, ...]:
    """Columns (the last is 0 or 1), times, events and sites; hazards of sites differ."""
    rng = stream(seed, "hazards", design, n_sites, n)
    site = np.repeat(np.arange(n_sites), n)
    x = np.column_stack([rng.normal(size=(len(site), 2)), rng.random(len(site)) < 0.5])
    slopes = np.tile(np.zeros(3) if design == "null" else SLOPES, (n_sites, 1))
    if design == "heterogeneous":
        slopes = slopes + 0.3 * rng.normal(size=slopes.shape)
    frailty = np.zeros(len(site))
    if design == "clustered":
        # four rows of a person share the first column and a random factor
        person = np.arange(len(site)) // 4
        x[:, 0] = rng.normal(size=len(site))[person]
        frailty = 0.8 * rng.normal(size=len(site))[person]
    hazard = np.exp(rng.normal(0, 0.5, n_sites)[site] + (x * slopes[site]).sum(axis=1) + frailty)
    until, seen = (
        rng.exponential(1 / hazard),
        rng.exponential(0.15 if design == "few" else 1.5, len(site)),
    )
    return x, np.ceil(20 * np.minimum(until, seen)), (until <= seen).astype(float), site


def pools_of(x: Any, time: Any, event: Any, site: Any) -> tuple[Pool, Pool]:
    """Without columns, and at the fit, from what sites tell."""
    design = kernels.Design(x, x.mean(axis=0), x.std(axis=0))
    rows = [
        kernels.Rows(
            kernels.Design(x[own], design.centre, design.scale), event[own], time=time[own]
        )
        for own in (site == s for s in np.unique(site))
    ]

    def at(theta: Any) -> Pool:
        told = tuple(cox.summed(own, theta, squares=True)[0] for own in rows if own.y.any())
        return Pool(told, False, np.zeros(x.shape[1]), bare=True)

    null = full = at(np.zeros(x.shape[1]))
    for _ in range(20):
        step = full.step()
        if np.abs(step).max() < 1e-9:
            break
        full = at(full.theta + step)
    return null, full


def one(design: str, n_sites: int, n: int, seed: int) -> dict[str, float]:
    x, time, event, site = draw(design, n_sites, n, seed)
    null, full = pools_of(x, time, event, site)
    truth, unit = (np.zeros(3) if design == "null" else SLOPES), x.std(axis=0)
    found: dict[str, float] = {}
    for errors in ERRORS:
        fit = kernels.conclude(COX, full, errors)
        half = student.ppf(1 - LEVEL / 2, fit.df) * np.sqrt(np.diag(fit.covariance)) / unit
        found[f"covers_{errors}"] = float((np.abs(fit.theta / unit - truth) <= half)[0])
    fit = kernels.conclude(COX, full, "model")
    for name, (_, _, p) in kernels.slope_tests(COX, null, full, fit).items():
        found[name.replace(" ", "_").lower()] = float(p < LEVEL)
    apart = kernels.heterogeneity(full, fit.scale)
    found["sites_differ"] = float(apart.p_value < LEVEL)
    found["column_differs"] = float(apart.p_values[1] < LEVEL)
    found["events"] = full.n
    return found


def main() -> None:
    chosen = options(__doc__)
    names = [f"{design} {s} sites of {n}" for design, s, n in LINES]
    table = Table(HERE, chosen, names)
    for name, (design, n_sites, n) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, design, n_sites, n, replicates=REPLICATES, chosen=chosen)
        row: dict[str, Any] = {"design": design, "sites": n_sites, "rows": n}
        row["replicates"] = len(sets)
        row["events"] = f"{np.mean([found.pop('events') for found in sets]):.0f}"
        for figure in sets[0]:
            row |= share([found[figure] for found in sets], figure)
        table.add(name, [row])


if __name__ == "__main__":
    main()

"""Ridge regression over sites that differ: fixed point, distance times rho, adaptive rounds."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.averaging.estimators.proximal_fit import Learner  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from consilience.numerics.reference_average import normal_reference, scale_of  # noqa: E402
from replications.reference_averaging.simulate import SplitRows, simulate_unlike_sites  # noqa: E402
from replications.reference_averaging.study import (  # noqa: E402
    FloatArray,
    Results,
    Round,
    Weights,
    arrivals,
    coefficients,
    distance,
    mean,
    options,
    rounds,
)

HERE = Path(__file__).parent
P, SITES, PENALTY, REPLICATES = 6, 5, 0.1, 10
DESIGNS: dict[str, dict[str, float]] = {
    "alike": {"shift": 0.0, "heterogeneity": 0.0},
    "unlike": {"shift": 0.5, "heterogeneity": 0.5},
    "unlike, collinear": {"shift": 0.5, "heterogeneity": 0.5, "collinearity": 0.9},
    "far apart": {"shift": 1.5, "heterogeneity": 0.5},
}
REFERENCES = ("moments", "independent")
"""Rows of the pooled means and covariances, or of the pooled means and variances alone."""
FIXED_RHO, MOST, LATE = 1.0, 20_000, 1000
SHOWN, EARLY = (20, 100, LATE), 200
PACES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""How often the sites come relative to one another, in the lines on unequal paces."""
LARGE = (1e2, 1e3, 1e4, 1e5)


def reference_of(data: SplitRows, kind: str, rng: np.random.Generator) -> FloatArray:
    x, _ = data.pooled
    covariance = np.cov(x.T, ddof=0)
    if kind == "independent":
        covariance = np.diag(np.diagonal(covariance))
    return normal_reference(x.mean(axis=0), covariance, 20 * x.shape[1], rng)


def closed_form(data: SplitRows, a: FloatArray, rho: float) -> FloatArray:
    """Fixed point ``Q^-1 sum_b w_b Q_b beta_b``; the pooled fit where rho is infinite."""
    p, u = a.shape[1], a.T @ a / len(a)
    left, right = np.zeros((p, p)), np.zeros(p)
    for (x, y), w in zip(data.tables, data.sizes / data.sizes.sum(), strict=True):
        v, c = x.T @ x / len(y) + PENALTY * np.eye(p), x.T @ y / len(y)
        if np.isfinite(rho):
            left += w * np.linalg.solve(v + rho * u, v)
            right += w * np.linalg.solve(v + rho * u, c)
        else:
            left, right = left + w * v, right + w * c
    return np.linalg.solve(left, right)


def slopes(step: Round, data: SplitRows) -> FloatArray:
    return coefficients(step.fits, data.sizes)[1:]


def settled(steps: Any, data: SplitRows, patience: int) -> FloatArray:
    """Coefficients where they no longer move over some steps."""
    last, still = np.full(P, np.inf), 0
    for step in steps:
        new = slopes(step, data)
        still = still + 1 if np.abs(new - last).max() < 1e-13 else 0
        last = new
        if still >= patience:
            break
    return last


def one(design: str, kind: str, seed: int) -> dict[str, float]:
    """Figures of one data set."""
    from sklearn.linear_model import Ridge

    rng = stream(seed, "ridge", design)
    data = simulate_unlike_sites(SITES, P, rng=rng, **DESIGNS[design])  # type: ignore[arg-type]
    a = reference_of(data, kind, rng)
    x, _ = data.pooled
    scale = scale_of(float((x**2).sum() / len(x)), a)
    n = len(x)
    estimator = Ridge(alpha=PENALTY * n, fit_intercept=False, solver="cholesky")
    learner = Learner(estimator, task="regression", reference=a, n_total=n)
    wanted, end = closed_form(data, a, FIXED_RHO * scale), closed_form(data, a, np.inf)
    size = np.abs(wanted).max()
    fixed = Weights("fixed", "fixed", FIXED_RHO)
    steady = Weights("steady", "asynchronous", FIXED_RHO, 0.0)
    growing = Weights("k^0.9", "adaptive")
    together = settled(rounds(learner, data.tables, fixed, MOST, scale=scale), data, 3)
    order = rng.integers(SITES, size=SITES * MOST)
    apart = settled(arrivals(learner, data.tables, steady, order, scale=scale), data, 100)
    found = {
        "synchronous": float(np.abs(together - wanted).max() / size),
        "asynchronous": float(np.abs(apart - wanted).max() / size),
        "fixed_point": distance(wanted, end),
    }
    for step in rounds(learner, data.tables, growing, LATE, scale=scale):
        if step.k == 0:
            found["averaging"] = distance(slopes(step, data), end)
        if step.k in SHOWN:
            found[f"adaptive_{step.k}"] = distance(slopes(step, data), end) / found["averaging"]
    found["fixed_point"] /= found["averaging"]
    order = rng.choice(SITES, size=SITES * EARLY, p=np.array(PACES) / sum(PACES))
    own = Weights("k^0.9", "asynchronous")
    for common in (False, True):
        steps = arrivals(learner, data.tables, own, order, scale=scale, common=common)
        name = "common_count" if common else "own_count"
        found[name] = distance(slopes(deque(steps, maxlen=1)[0], data), end) / found["averaging"]
    products = [rho * distance(closed_form(data, a, rho * scale), end) for rho in LARGE]
    for rho, product in zip(LARGE[:-1], products[:-1], strict=True):
        found[f"product_{rho:g}"] = product / products[-1]
    return found


def main() -> None:
    lines = {f"{design}, {kind}": (design, kind) for design in DESIGNS for kind in REFERENCES}
    table = Results(HERE, options(__doc__), list(lines))
    for line, (design, kind) in lines.items():
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            data = [one(design, kind, seed) for seed in table.seeds(REPLICATES)]
        row: dict[str, Any] = {"design": design, "reference": kind, "replicates": len(data)}
        for name in data[0]:
            row |= mean((each[name] for each in data), name, ".3g")
            row[f"{name}_most"] = f"{max(each[name] for each in data):.3g}"
        table.add(line, [row])


if __name__ == "__main__":
    main()

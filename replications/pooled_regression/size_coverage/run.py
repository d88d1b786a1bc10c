"""Size of tests and coverage of limits of pooled regressions, also where sites differ."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scipy.stats import t as student  # noqa: E402

from consilience.numerics.random import stream  # noqa: E402
from consilience.regression import kernels  # noqa: E402
from consilience.regression.kernels import Pool  # noqa: E402
from replications.assisted_glm.study import Table, crossed, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 2000
LEVEL = 0.05
ERRORS = ("model", "HC1", "cluster")
FEW, MANY = (10, 100), (30, 40)
"""Sites and rows of each."""
FAMILIES = ("gaussian", "binomial", "poisson", "gamma", "negative-binomial")
ALPHA = 0.7
LINES: tuple[tuple[str, str, tuple[int, int]], ...] = (
    *crossed(("null", "independent"), FAMILIES, (FEW,)),
    *crossed(("spread",), ("gaussian", "poisson"), (FEW,)),
    *crossed(("heterogeneous", "clustered"), ("gaussian", "binomial"), (MANY,)),
)
SLOPES = np.array([0.3, -0.2, 0.4])


def draw(design: str, family: str, n_sites: int, n: int, seed: int) -> tuple[Any, ...]:
    """Columns (the last is 0 or 1), responses and sites.

    "spread": errors grow with the size of the first column (gaussian), or with a random factor of
    each row. "heterogeneous": slopes of sites are normal about the common ones (standard deviation
    .3). "clustered": the first column is one number for a site, and so is a random constant
    (standard deviation .5).
    """
    rng = stream(seed, "size and coverage", design, family, n_sites, n)
    site = np.repeat(np.arange(n_sites), n)
    x = np.column_stack([rng.normal(size=(len(site), 2)), rng.random(len(site)) < 0.5])
    slopes = np.tile(np.zeros(3) if design == "null" else SLOPES, (n_sites, 1))
    constant = np.zeros(n_sites)
    if design == "heterogeneous":
        slopes = slopes + 0.3 * rng.normal(size=slopes.shape)
    if design == "clustered":
        x[:, 0] = rng.normal(size=n_sites)[site]
        constant = 0.5 * rng.normal(size=n_sites)
    eta = 0.2 + constant[site] + (x * slopes[site]).sum(axis=1)
    if family == "gaussian":
        size = 0.3 + np.abs(x[:, 0]) if design == "spread" else 1.0
        y = eta + size * rng.normal(size=len(eta))
    elif family == "binomial":
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        more = rng.gamma(2.0, 0.5, size=len(eta)) if design == "spread" else 1.0
        mean = np.exp(eta) * more
        if family == "negative-binomial":
            mean = rng.gamma(1 / ALPHA, ALPHA * mean)
        y = rng.gamma(2, mean / 2) if family == "gamma" else rng.poisson(mean).astype(float)
    return x, y, site


def pool_of(family: str, x: Any, y: Any, site: Any) -> tuple[Pool, Pool, str]:
    """The null model, the pooled fit, from what sites tell, and how alpha was estimated."""
    estimate, alpha = ("likelihood" if family == "negative-binomial" else ""), 1.0
    centre, scale = x.mean(axis=0), x.std(axis=0)
    parts = [(x[site == s], y[site == s]) for s in np.unique(site)]
    start = kernels.start_of(family, float(y.mean()))

    def null_at(alpha: float) -> Pool:
        pieces = []
        for own, response in parts:
            z = np.column_stack([own, response])
            mean = z.mean(axis=0)
            moments = (float(len(z)), mean, (z - mean).T @ (z - mean))
            pieces.append(kernels.piece_from_moments(family, *moments, centre, scale, start, alpha))
        return Pool(tuple(pieces), False, np.zeros(x.shape[1]))

    null = null_at(alpha)
    theta = null.theta + null.step()
    for _ in range(30):
        told = []
        for (own, response), first in zip(parts, null.pieces, strict=True):
            rows = kernels.Rows(kernels.Design(own, centre, scale), response)
            piece = kernels.piece_of(
                family, rows, theta, squares=True, alpha=alpha, estimate=estimate
            )
            expected = first.curvature if family == "gamma" else piece.expected
            told.append(dataclasses.replace(piece, expected=expected))
        full = Pool(tuple(told), False, null.penalty)
        step, other = full.step(), alpha
        if estimate:  # Newton's step of both together
            value, bend, turn = full.shape
            drag = np.linalg.solve(full.curvature, turn)
            other = alpha - (value + turn @ step) / (bend - turn @ drag)
            other = float(np.clip(other, alpha / 2, 2 * alpha))
            step = step - drag * (other - alpha)
        theta, moved, alpha = theta + step, abs(other - alpha), other
        if max(np.abs(step).max(), moved) < 1e-9:
            break
    return (null_at(alpha) if estimate else null), full.at(theta), estimate


def one(design: str, family: str, shape: tuple[int, int], seed: int) -> dict[str, float]:
    x, y, site = draw(design, family, *shape, seed)
    null, full, estimate = pool_of(family, x, y, site)
    truth = np.zeros(3) if design == "null" else SLOPES
    unit = x.std(axis=0)
    found: dict[str, float] = {}
    for errors in ERRORS:
        fit = kernels.conclude(family, full, errors, estimate)
        half = student.ppf(1 - LEVEL / 2, fit.df) * np.sqrt(np.diag(fit.covariance))[1:] / unit
        inside = np.abs(fit.theta[1:] / unit - truth) <= half
        found[f"covers_{errors}"] = float(inside[0])
    fit = kernels.conclude(family, full, "model", estimate)
    for name, (_, _, p) in kernels.slope_tests(family, null, full, fit).items():
        found[name.replace(" ", "_").lower()] = float(p < LEVEL)
    apart = kernels.heterogeneity(full, fit.scale)
    found["sites_differ"] = float(apart.p_value < LEVEL)
    found["column_differs"] = float(apart.p_values[1] < LEVEL)
    return found


def main() -> None:
    chosen = options(__doc__)
    names = [f"{design} {family} {s} sites of {n}" for design, family, (s, n) in LINES]
    table = Table(HERE, chosen, names)
    for name, line in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, *line, replicates=REPLICATES, chosen=chosen)
        design, family, (n_sites, n) = line
        row: dict[str, Any] = {"design": design, "family": family, "sites": n_sites, "rows": n}
        row["replicates"] = len(sets)
        for figure in sets[0]:
            row |= share([found[figure] for found in sets], figure)
        table.add(name, [row])


if __name__ == "__main__":
    main()

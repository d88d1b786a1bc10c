"""What tests of rows in one table find of slopes that differ by site, beside the one made here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scipy.stats import chi2  # noqa: E402

from consilience.numerics.random import stream  # noqa: E402
from consilience.regression import kernels  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate, share  # noqa: E402
from replications.pooled_regression.size_coverage import run as size_coverage  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 2000
LEVEL = 0.05
SITES, ROWS = 30, 40
DESIGNS = ("alike", "heterogeneous")
TESTS = ("q", "likelihood_ratio", "variance")


def draw(design: str, seed: int) -> tuple[Any, ...]:
    """The data sets of `size_coverage`, and such ones whose sites are alike."""
    if design == "heterogeneous":
        return size_coverage.draw(design, "binomial", SITES, ROWS, seed)
    rng = stream(seed, "differences", design, SITES, ROWS)
    site = np.repeat(np.arange(SITES), ROWS)
    x = np.column_stack([rng.normal(size=(len(site), 2)), rng.random(len(site)) < 0.5])
    risk = 1 / (1 + np.exp(-0.2 - x @ size_coverage.SLOPES))
    return x, (rng.random(len(site)) < risk).astype(float), site


def fit(x: Any, y: Any) -> tuple[Any, float]:
    """Risks and log likelihood of a logistic regression; also near it where rows are separated."""
    theta = np.zeros(x.shape[1])
    for _ in range(60):
        risk = 1 / (1 + np.exp(-x @ theta))
        curvature = (x * (risk * (1 - risk) + 1e-12)[:, None]).T @ x
        step = np.linalg.lstsq(curvature, x.T @ (y - risk), rcond=None)[0]
        theta = theta + step * min(1.0, 5 / np.abs(step).max())
        if np.abs(step).max() < 1e-8:
            break
    eta = x @ theta
    return 1 / (1 + np.exp(-eta)), float((y * eta - np.logaddexp(0, eta)).sum())


def one(design: str, seed: int) -> dict[str, float]:
    """Statistics, large where sites differ, and whether tests reject by their chi-squared laws."""
    x, y, site = draw(design, seed)
    _, full, _ = size_coverage.pool_of("binomial", x, y, site)
    apart = kernels.heterogeneity(full, kernels.conclude("binomial", full, "model").scale)
    ones = np.ones((len(y), 1))
    _, common = fit(np.column_stack([np.eye(SITES)[site], x]), y)
    each = sum(fit(np.column_stack([ones, x])[own], y[own])[1] for own in np.eye(SITES)[site].T > 0)
    ratio = 2 * (each - common)
    # Score test of a variance of the slopes: squared scores of sites less what they are by chance.
    risk, _ = fit(np.column_stack([ones, x]), y)
    scores = np.eye(SITES)[site].T @ (x * (y - risk)[:, None])
    chance = (x**2 * (risk * (1 - risk))[:, None]).sum()
    return {
        "q": 1 - apart.p_value,
        "likelihood_ratio": ratio,
        "variance": float((scores**2).sum() - chance),
        "q_rejects": float(apart.p_value < LEVEL),
        "likelihood_ratio_rejects": float(chi2.sf(ratio, (SITES - 1) * x.shape[1]) < LEVEL),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, DESIGNS)
    if not any(table.wanted(design, REPLICATES) for design in DESIGNS):
        return
    sets = {d: replicate(one, d, replicates=REPLICATES, chosen=chosen) for d in DESIGNS}
    # Each test at the value that it exceeds in 5% of the data sets whose sites are alike.
    cut = {t: np.quantile([found[t] for found in sets["alike"]], 1 - LEVEL) for t in TESTS}
    for design, found in sets.items():
        row: dict[str, Any] = {"design": design, "sites": SITES, "rows": ROWS}
        row["replicates"] = len(found)
        for figure in ("q_rejects", "likelihood_ratio_rejects"):
            row |= share([line[figure] for line in found], figure)
        for test in TESTS:
            row |= share([float(line[test] > cut[test]) for line in found], f"{test}_of_size")
        for test in TESTS[1:]:
            power = [float(row[f"{name}_of_size"]) for name in ("q", test)]
            row[f"q_less_{test}"] = f"{power[0] - power[1]:.4f}"
        table.add(design, [row])


if __name__ == "__main__":
    main()

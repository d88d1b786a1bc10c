"""Whether limits by cluster hold what a Cox regression of rows that are correlated estimates."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scipy.stats import t as student  # noqa: E402

from consilience.regression import kernels  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate, share  # noqa: E402
from replications.pooled_regression.hazards.run import LEVEL, SLOPES, draw, pools_of  # noqa: E402

HERE = Path(__file__).parent
REPLICATES = 2000
DESIGNS, SITES, ROWS = ("clustered", "heterogeneous"), 30, 40
LARGE, DRAWS = 3000, 40
"""Sites of a large sample, and how many of them: none is of the seeds of a data set."""


def slopes(design: str, n_sites: int, seed: int) -> tuple[NDArray[Any], kernels.Pool, Any]:
    x, time, event, site = draw(design, n_sites, ROWS, seed)
    _, full = pools_of(x, time, event, site)
    return full.theta / x.std(axis=0), full, x.std(axis=0)


@functools.cache
def limit(design: str) -> tuple[float, float]:
    """What the first slope of the fit tends to with many sites, and its error."""
    found = [slopes(design, LARGE, 100_000 + k)[0][0] for k in range(DRAWS)]
    return float(np.mean(found)), float(np.std(found, ddof=1) / DRAWS**0.5)


def one(design: str, truth: float, seed: int) -> dict[str, float]:
    estimate, full, unit = slopes(design, SITES, seed)
    found = {"estimate": float(estimate[0])}
    for errors in ("model", "cluster"):
        fit = kernels.conclude(kernels.COX, full, errors)
        error = float(np.sqrt(np.diag(fit.covariance))[0] / unit[0])
        half = student.ppf(1 - LEVEL / 2, fit.df) * error
        found[f"covers_{errors}"] = float(abs(estimate[0] - truth) <= half)
        if errors == "cluster":
            found["covers_given_factor"] = float(abs(estimate[0] - SLOPES[0]) <= half)
            found["error"] = error
    return found


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, DESIGNS)
    for design in DESIGNS:
        if not table.wanted(design, REPLICATES):
            continue
        truth, error = limit(design)
        sets = replicate(one, design, truth, replicates=REPLICATES, chosen=chosen)
        row: dict[str, Any] = {"design": design, "sites": SITES, "rows": ROWS}
        row |= {"replicates": len(sets), "limit": f"{truth:.4f}", "limit_se": f"{error:.4f}"}
        estimates = [found.pop("estimate") for found in sets]
        errors = [found.pop("error") for found in sets]
        row |= {"mean": f"{np.mean(estimates):.4f}", "deviation": f"{np.std(estimates):.4f}"}
        row["error"] = f"{np.mean(errors):.4f}"
        for figure in sets[0]:
            row |= share([found[figure] for found in sets], figure)
        table.add(design, [row])


if __name__ == "__main__":
    main()

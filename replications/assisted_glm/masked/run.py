"""Intervals after a masked binary response: the right link, and the plain logit as printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.glm import family  # noqa: E402
from consilience.datasets.simulate_assisted import SplitColumns, simulate_setting  # noqa: E402
from consilience.exceptions import ConsilienceError  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.in_one_process import fit_jointly  # noqa: E402
from replications.assisted_glm.simulate import simulate_canonical  # noqa: E402
from replications.assisted_glm.standard_errors import joint_intervals  # noqa: E402
from replications.assisted_glm.study import (  # noqa: E402
    Table,
    crossed,
    mean,
    options,
    replicate,
    share,
)

HERE = Path(__file__).parent
REPLICATES = {2000: 2000, 20_000: 500}
N_NEW = 5
QUANTILE = float(norm.ppf(0.975))
LINES: tuple[tuple[str, float, int], ...] = tuple(
    crossed(("setting 1", "strong"), (0.1, 0.2, 0.3), (2000, 20_000))
)
LINKS = ("right link", "as printed", "unmasked", "a alone")
FloatArray = NDArray[np.float64]


def one(design: str, flip: float, n: int, seed: int) -> dict[str, dict[str, float]]:
    """How each way predicts five new subjects' probabilities."""
    rng = stream(seed, "masked", design, str(flip), n)
    made = drawn(design, n + N_NEW, rng)
    data, new = made.rows(slice(0, n)), made.rows(slice(n, None))
    masked = np.where(rng.uniform(size=n) < flip, 1.0 - data.y, data.y)
    true = expit(new.eta)
    x_a, x_b = data.columns["a"], data.columns["b"]
    nobody = np.zeros((n, 0)), np.zeros((N_NEW, 0))
    found = {}
    for link in LINKS:
        y = masked if link in ("right link", "as printed") else data.y
        model = family("binomial", mask=flip if link == "right link" else 0.0)
        partner, of_new = nobody if link == "a alone" else (x_b, new.columns["b"])
        try:
            trained = fit_jointly(x_a, [partner], y, model)
            errors = joint_intervals(trained, x_a, [partner], y, model, new.columns["a"], [of_new])
        except ConsilienceError:
            found[link] = dict.fromkeys(("covered", "error", "width", "none"), float("nan"))
            found[link]["none"] = 1.0
            continue
        at = np.stack([errors.estimate + sign * QUANTILE * errors.se for sign in (-1, 0, 1)])
        low, middle, high = expit(at)
        if link == "as printed":
            low, middle, high = (
                np.clip((p - flip) / (1.0 - 2.0 * flip), 0.0, 1.0) for p in (low, middle, high)
            )
        known = np.isfinite(errors.se)
        inside = ((low <= true) & (true <= high))[known]
        found[link] = {
            "covered": float(inside.mean()) if known.any() else float("nan"),
            "error": float(np.sqrt(np.square(middle - true).mean())),
            "width": float((high - low)[known].mean()) if known.any() else float("nan"),
            "none": float(1.0 - known.mean()),
        }
    return found


def drawn(design: str, n: int, rng: np.random.Generator) -> SplitColumns:
    """Setting 1 of the source; or six normal columns each and a predictor of deviation 2."""
    if design == "setting 1":
        return simulate_setting(1, n, rng=rng, effects="power")
    return simulate_canonical(n, [0.5] * 6, rng=rng, signal=2.0)


def main() -> None:
    chosen = options(__doc__)
    names = [f"{design} q {flip} n {n}" for design, flip, n in LINES]
    table = Table(HERE, chosen, names)
    for name, (design, flip, n) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES[n]):
            continue
        sets = replicate(one, design, flip, n, replicates=REPLICATES[n], chosen=chosen)
        rows: list[dict[str, Any]] = []
        for link in LINKS:
            row: dict[str, Any] = {
                "design": design,
                "flip": flip,
                "n": n,
                "way": link,
                "replicates": len(sets),
                **share((figures[link]["covered"] for figures in sets), "coverage"),
                **mean((figures[link]["error"] for figures in sets), "error"),
                **mean((figures[link]["width"] for figures in sets), "width"),
                "no_interval": f"{np.mean([figures[link]['none'] for figures in sets]):.4f}",
            }
            rows.append(row)
        table.add(name, rows)


if __name__ == "__main__":
    main()

"""Size and power of the tests of a sketch: three settings and families, with and without noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.assistance import draw_directions, sketch_test  # noqa: E402
from consilience.assisted.kernels.glm import family  # noqa: E402
from consilience.datasets.simulate_assisted import simulate_setting  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import (  # noqa: E402
    Table,
    crossed,
    mean,
    options,
    replicate,
    share,
)

HERE = Path(__file__).parent
LEVEL = 0.05
REPLICATES = 2000
NOISE = (0.0, 0.1, 0.5)
DIRECTIONS = (1, 2, 3, 4, 5)
TESTS = ("wald", "score", "wald_hc3", "lr")
LINES: tuple[tuple[str, str, int, int, float], ...] = (
    *crossed(("null", "power"), ("binomial", "poisson", "normal"), (1, 2, 3), (2000, 300), (0.0,)),
    *crossed(("null", "power"), ("binomial",), (1, 2, 3), (2000, 300), (0.1, 0.25)),
)
Figures = dict[tuple[float, int], dict[str, float]]


def one(effects: str, kind: str, setting: int, n: int, rho: float, seed: int) -> Figures:
    """P-values of one data set, for every noise and number of directions.

    Directions and noise are nested (t = 2 adds a column to t = 1, noise .5 is five times noise .1),
    so that the cells of a line can be compared; each cell by itself is a test with t fixed before.
    """
    rng = stream(seed, "test", effects, kind, setting, n, str(rho))
    data = simulate_setting(setting, n, rng=rng, family=kind, effects=effects, rho=rho)
    x_a, x_b = data.columns["a"], data.columns["b"]
    u = x_b @ draw_directions(x_b.shape[1], max(DIRECTIONS), rng)
    unit = rng.laplace(size=u.shape)
    found = {}
    for noise in NOISE:
        for t in DIRECTIONS:
            test = sketch_test(x_a, (u + noise * unit)[:, :t], data.y, family(kind))
            found[noise, t] = {
                **{name: float(getattr(test, f"p_{name}")) for name in TESTS},
                "df": float(test.df),
                "minority": float(test.minority_per_parameter),
            }
    return found


def rows(sets: list[Figures], head: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for noise, t in crossed(NOISE, DIRECTIONS):
        cells = [one_set[noise, t] for one_set in sets]
        row: dict[str, Any] = {**head, "noise": noise, "t": t}
        for name in TESTS:
            rejected = [
                float(cell[name] < LEVEL) if np.isfinite(cell[name]) else np.nan for cell in cells
            ]
            row |= share(rejected, name)
        row["no_value"] = sum(not np.isfinite(cell["wald"]) for cell in cells)
        row["df"] = mean((cell["df"] for cell in cells), "df")["df"]
        row["minority"] = mean((cell["minority"] for cell in cells), "minority", ".1f")["minority"]
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    names = [f"{e} {f} setting {s} n {n} rho {r}" for e, f, s, n, r in LINES]
    table = Table(HERE, chosen, names)
    for name, line in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, *line, replicates=REPLICATES, chosen=chosen)
        effects, kind, setting, n, rho = line
        head = {
            "effects": effects,
            "family": kind,
            "setting": setting,
            "n": n,
            "rho": rho,
            "replicates": len(sets),
        }
        table.add(name, rows(sets, head))


if __name__ == "__main__":
    main()

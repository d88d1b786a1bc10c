"""Three classes, 16 features, 20 rows a class: logistic regression by community, and at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_wide import community_classes  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.community_bayes.study import (  # noqa: E402
    ALMOST_NONE,
    RIDGES,
    Judged,
    validated,
)

HERE = Path(__file__).parent
ROWS, TEST = 20, 3334
"""Rows of a class: for training, and once more for validation; for testing."""
DESIGNS: dict[str, dict[str, Any]] = {
    "full": {"structure": "full"},
    "decreasing": {"structure": "decreasing"},
    **{f"{q} blocks": {"structure": "block", "n_blocks": q} for q in (2, 4, 8)},
}
TRANSFORMS = {"example 1": None, "example 2": ("none", "power", "cdf")}
SHORT, LONGER = 1.0, 1.6
"""Lengths of the means beside 1.5: too small for the source's table, and nearer to its levels."""
LINES: dict[str, tuple[dict[str, Any], int]] = {
    **{
        f"{example}, {name}": (
            {**design, "transforms": transforms},
            40 if transforms is None else 20,
        )
        for example, transforms in TRANSFORMS.items()
        for name, design in DESIGNS.items()
    },
    "example 1, 4 blocks, means of length 1": ({**DESIGNS["4 blocks"], "norm": SHORT}, 10),
    **{
        f"example 1, {name}, means of length 1.6": ({**DESIGNS[name], "norm": LONGER}, 40)
        for name in ("decreasing", "4 blocks")
    },
}
"""Design and data sets."""
BASES = {"almost no penalty": ALMOST_NONE, "ridge 1": 1.0}


def one(line: str, seed: int) -> dict[tuple[str, str], dict[str, float]]:
    """Figures of one data set by base and model."""
    settings, _ = LINES[line]
    rng = stream(seed, "communities", line.split(", ")[1])  # equal means and rows in both examples
    design = community_classes(rng=rng, **settings)
    x, y = design.draw(ROWS, rng=rng)
    x_valid, y_valid = design.draw(ROWS, rng=rng)
    rows, truth = design.draw(TEST, rng=rng)
    candidates = range(1, design.n_features + 1)
    judged = {
        ridge: validated(x, y, x_valid, y_valid, rows, truth, candidates, ridge) for ridge in RIDGES
    }
    found: dict[tuple[str, str], dict[str, float]] = {}
    for base, ridge in BASES.items():
        found |= pair(base, judged[ridge], judged[ridge])
    chosen = min(judged.values(), key=lambda each: float(each.choosing[each.best]))
    alone = min(judged.values(), key=lambda each: float(each.choosing[0]))
    found |= pair("chosen ridge", chosen, alone)
    found["", "best possible"] = {"error": float((design.predict(rows) != truth).mean())}
    return found


def pair(base: str, judged: Judged, alone: Judged) -> dict[tuple[str, str], dict[str, float]]:
    """Communities, and the base alone."""
    error, other = float(judged.test[judged.best]), float(alone.test[0])
    number = float(judged.candidates[judged.best])
    return {
        (base, "communities"): {"error": error, "communities": number},
        (base, "base alone"): {"error": other, "above": other - error},
    }


def rows_of(
    sets: Sequence[dict[tuple[str, str], dict[str, float]]],
) -> list[dict[str, Any]]:
    """One row for each base and model."""
    made = []
    for base, model in sets[0]:
        each = [figures[base, model] for figures in sets]
        row: dict[str, Any] = {"base": base, "model": model, "replicates": len(sets)}
        row |= mean((figures["error"] for figures in each), "error")
        row |= mean((figures.get("above", np.nan) for figures in each), "above")
        row |= mean((figures.get("communities", np.nan) for figures in each), "communities", ".1f")
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (_, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        table.add(line, rows_of(sets))


if __name__ == "__main__":
    main()

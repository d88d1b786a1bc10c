"""Two classes whose precision matrices differ in one block of four features."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_wide import sparse_precision_classes  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.sparse_qda.study import (  # noqa: E402
    choose_share,
    shrunken_labels,
    validated_path,
)

HERE = Path(__file__).parent
BLOCK = 4
TEST = 10_000
"""Test rows of a class."""
SIZES = {8: 50, 20: 200, 40: 800, 100: 1500}
"""Rows of a class by the number of features, for training and once more for validation."""
LINES: dict[str, tuple[int, float, str, int]] = {
    **{f"p {p}": (p, 1.0, "anywhere", 20) for p in SIZES},
    "p 20, means 1.1 times as long": (20, 1.1, "anywhere", 20),
    "p 20, means 1.2 times as long": (20, 1.2, "anywhere", 20),
    "p 100, means within the block": (100, 1.0, "within the block", 10),
}
"""Features, factor of the means' length, where their directions lie, data sets."""
MODELS = ("sparse QDA", "DRDA", "QDA", "naive Bayes", "LDA", "best possible")


def one(line: str, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one data set by model."""
    p, factor, where, _ = LINES[line]
    # the same directions and rows for every factor
    rng = stream(seed, "block", p)
    design = sparse_precision_classes(p, rng=rng, block=BLOCK)
    means = factor * design.means
    if where == "within the block":
        lengths = np.linalg.norm(means, axis=1)
        turned, _ = np.linalg.qr(rng.standard_normal((BLOCK, len(means))))
        means = np.zeros_like(means)
        means[:, :BLOCK] = lengths[:, None] * turned.T
    design = replace(design, means=means)
    x, y = design.draw(SIZES[p], rng=rng)
    x_valid, y_valid = design.draw(SIZES[p], rng=rng)
    rows, truth = design.draw(TEST, rng=rng)
    both = np.concatenate([x, x_valid])
    labels = np.concatenate([y, y_valid])
    fold = (np.arange(len(x)), np.arange(len(x), len(both)))
    share, _ = choose_share(both, labels, [fold])
    path = validated_path(x, y, x_valid, y_valid, rows)
    inside = int((path.links < BLOCK).all(axis=1).sum())
    found = {
        "sparse QDA": path.labels,
        "DRDA": shrunken_labels(x, y, rows, share),
        "QDA": shrunken_labels(x, y, rows, 0.0),
        "naive Bayes": shrunken_labels(x, y, rows, 1.0),
        "LDA": shrunken_labels(x, y, rows, 0.0, common=True),
        "best possible": design.predict(rows),
    }
    least = float((path.labels != truth).mean())
    figures = {}
    for name, given in found.items():
        error = float((given != truth).mean())
        figures[name] = {"error": error, "above": error - least}
    figures["sparse QDA"] |= {
        "links": float(len(path.links)),
        "found": inside / (BLOCK * (BLOCK - 1) / 2),
        "gap": path.gap,
    }
    return figures


def rows_of(line: str, sets: Sequence[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """One row for each model."""
    p = LINES[line][0]
    made = []
    for model in MODELS:
        each = [figures[model] for figures in sets]
        row: dict[str, Any] = {"p": p, "n": SIZES[p], "model": model, "replicates": len(sets)}
        row |= mean((figures["error"] for figures in each), "error")
        if model != "sparse QDA":
            row |= mean((figures["above"] for figures in each), "above")
        else:
            row |= {"above": "", "above_se": ""}
            row |= mean((figures["links"] for figures in each), "links", ".1f")
            row |= mean((figures["found"] for figures in each), "found", ".3f")
            row["largest_gap"] = f"{max(figures['gap'] for figures in each):.1e}"
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line, (_, _, _, replicates) in LINES.items():
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        table.add(line, rows_of(line, sets))


if __name__ == "__main__":
    main()

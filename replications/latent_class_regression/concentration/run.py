"""Where the prior of an agent's classes comes from: table counts, entity counts, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.datasets.simulate_latent_classes import LatentClasses  # noqa: E402
from consilience.latent_regression.kernels.latent_class import (  # noqa: E402
    agent_key,
    blocks_of,
    classes_of,
    totals_of,
)
from consilience.latent_regression.kernels.sampling import sweep, table_counts  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate  # noqa: E402
from replications.latent_class_regression.study import design, parts, to_oracle  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
KINDS = ("exact", "shortcut", "left out")
ROUNDS, KEPT = 60, 40
LINES: dict[str, dict[str, Any]] = {
    "unequal agents": {
        "n_classes": 8,
        "n_entities": 16,
        "n_events": 5,
        "sigma": 1.0,
        "beta": 2.0,
        "spread": 1.5,
    },
    "equal agents": {"n_classes": 8, "n_entities": 16, "n_events": 5, "sigma": 1.0, "beta": 2.0},
    **{
        f"N* {n_entities}, sigma {sigma:g}": {
            "n_classes": 16,
            "n_entities": n_entities,
            "n_events": 5,
            "sigma": sigma,
        }
        for n_entities, sigma in ((4, 0.3), (4, 0.5), (4, 1.0), (16, 0.5))
    },
}
MANY, FEW = 30, 10
"""Data sets of lines with small agents, and of the others."""


def chain(
    data: LatentClasses, train: Any, test: Any, kind: str, beta: float, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Sweeps from the true labels, with the true sigma, delta and beta: the prior alone differs.

    Returns the predictions of the test events and the shares of the classes, both averaged over
    the last sweeps.
    """
    k = data.n_classes
    names, entity = np.unique(train.entity, return_inverse=True)
    agents, agent = np.unique(train.agent, return_inverse=True)
    x = np.column_stack([np.ones(len(train)), train.x])
    blocks = blocks_of(x, train.y, entity, agent)
    keys = np.array([agent_key(seed, str(name)) for name in agents], dtype=np.uint64)
    labels = np.empty(len(names), dtype=np.int64)
    labels[blocks.entity] = train.label
    block_of = np.empty(len(names), dtype=np.int64)
    block_of[entity] = blocks.entity
    tested = block_of[np.searchsorted(names, test.entity)]
    totals = totals_of(blocks, labels, k)
    base, alpha = data.shares.copy(), float(k)
    rng = stream(seed, "shares", kind)
    design_of = np.column_stack([np.ones(len(test)), test.x])
    predicted, shares = np.zeros(len(test)), np.zeros(k)
    for number in range(ROUNDS):
        if kind == "left out":
            base = np.full(k, 1.0 / k)
        labels, totals, _ = sweep(
            blocks,
            labels,
            totals,
            data.sigma**2,
            data.delta**2,
            base,
            beta,
            keys,
            number,
            shortcut_alpha=alpha if kind == "shortcut" else None,
        )
        counts = np.zeros((len(agents), k), dtype=np.int64)
        np.add.at(counts, (blocks.agent, labels), 1)
        if kind == "exact":
            tables = table_counts(counts, beta, base, keys, number).sum(axis=0)
            base = rng.dirichlet(alpha / k + tables)
            base = np.maximum(base, 1e-12)
        elif kind == "shortcut":
            base = (counts.sum(axis=0) + alpha / k) / (counts.sum() + alpha)
        if number >= ROUNDS - KEPT:
            mean_of = classes_of(totals, data.sigma**2, data.delta**2).mean
            predicted += (design_of * mean_of[labels[tested]]).sum(axis=1) / KEPT
            shares += base / KEPT
    return predicted, shares


def one(line: str, seed: int) -> dict[str, float]:
    """Relative errors, and how far the shares are from the true ones, in one data set."""
    settings = dict(LINES[line])
    data = design(settings.pop("n_classes"), seed, "concentration", line, **settings)
    train, test = parts(data, seed)
    beta = float(settings.get("beta", 4.0))
    first = np.unique(data.events.entity, return_index=True)[1]
    of_entities = np.bincount(data.events.label[first], minlength=data.n_classes) / len(first)
    away = of_entities - data.shares
    found: dict[str, float] = {}
    for kind in KINDS:
        predicted, shares = chain(data, train, test, kind, beta, seed)
        found[f"{kind} error"] = to_oracle(data, test, predicted)
        found[f"{kind} distance"] = float(np.abs(shares - data.shares).sum() / 2)
        # 0: the true shares, 1: the shares among all entities, in which large agents count more
        found[f"{kind} towards_entities"] = float((shares - data.shares) @ away / (away @ away))
    for kind in KINDS:
        found[f"{kind} cost"] = found[f"{kind} error"] / found["exact error"] - 1.0
    return found


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        replicates = MANY if LINES[line]["n_entities"] == 4 else FEW
        if not table.wanted(line, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=replicates, chosen=chosen)
        rows: list[dict[str, Any]] = []
        for kind in KINDS:
            row: dict[str, Any] = {"counts": kind, "replicates": len(sets)}
            for figure in ("error", "cost", "distance", "towards_entities"):
                row |= mean((each[f"{kind} {figure}"] for each in sets), figure)
            rows.append(row)
        table.add(line, rows)


if __name__ == "__main__":
    main()

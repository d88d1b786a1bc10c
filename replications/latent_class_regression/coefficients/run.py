"""Coverage of 90% intervals for coefficients of classes, by how far classes are apart."""

from __future__ import annotations

import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm, t
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import LatentClassRegressor  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
REPLICATES = 100
CLASSES, COLUMNS, AGENTS, ENTITIES, EVENTS = 3, 3, 20, 6, 4
LEVEL = 0.9
LINES = {f"distance {gap}": gap for gap in (0.5, 1.0, 2.0)}
"""Least distance of coefficients between two of the classes, in units of the noise."""


def drawn(line: str, seed: int) -> tuple[FloatArray, ...]:
    """Coefficients of the classes, and label, columns, outcome, entity and agent of each event."""
    rng = stream(seed, "coefficients of classes", line)
    w = rng.normal(size=(CLASSES, COLUMNS))
    w *= LINES[line] / min(np.linalg.norm(a - b) for a, b in itertools.combinations(w, 2))
    agent = np.repeat(np.arange(AGENTS), ENTITIES)
    shares = rng.dirichlet(np.ones(CLASSES), size=AGENTS)
    label = np.array([rng.choice(CLASSES, p=shares[a]) for a in agent])
    entity = np.repeat(np.arange(len(agent)), EVENTS)
    x = rng.normal(size=(len(entity), COLUMNS))
    x[:, 0] = 1.0
    y = (x * w[label[entity]]).sum(axis=1) + rng.normal(size=len(entity))
    return w, label[entity], x, y, entity, agent[entity]


def with_labels(w: FloatArray, label: FloatArray, x: FloatArray, y: FloatArray) -> float:
    """Coverage of least squares in each class, as if labels were known."""
    inside = []
    for k in np.unique(label):
        rows, outcome = x[label == k], y[label == k]
        inverse = np.linalg.inv(rows.T @ rows)
        found = inverse @ rows.T @ outcome
        free = len(rows) - COLUMNS
        noise = ((outcome - rows @ found) ** 2).sum() / free
        width = t.isf((1 - LEVEL) / 2, free) * np.sqrt(noise * np.diag(inverse))
        inside.append(np.abs(found - w[k]) < width)
    return float(np.mean(inside))


def one(line: str, seed: int) -> dict[str, float]:
    """Coverage in one data set; true classes have the names that make distances least."""
    w, label, x, y, entity, agent = drawn(line, seed)
    model = LatentClassRegressor(CLASSES, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[:, 1:], y, entity=entity, agent=agent)
    found = np.column_stack([model.intercept_, model.coef_])
    error = np.sqrt(np.diagonal(model.coef_covariance_, axis1=1, axis2=2))
    true, mine = linear_sum_assignment(((w[:, None] - found) ** 2).sum(axis=2))
    width = float(norm.ppf((1 + LEVEL) / 2)) * error[mine]
    return {
        "coverage": float((np.abs(w[true] - found[mine]) < width).mean()),
        "labels_known": with_labels(w, label, x, y),
        "probability": float(model.label_probabilities_.max(axis=1).mean()),
        "agreement": float(model.agreement_.min()),
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        row = {"replicates": len(sets)}
        for name in ("coverage", "labels_known"):
            row |= share((each[name] for each in sets), name)
        for name in ("probability", "agreement"):
            row |= mean((each[name] for each in sets), name, ".3f")
        table.add(line, [row])


if __name__ == "__main__":
    main()

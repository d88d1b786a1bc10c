"""Squared error relative to ridge regression with the true labels, over the grid of the source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from replications.assisted_glm.study import Table, crossed, mean, options, replicate  # noqa: E402
from replications.latent_class_regression.study import (  # noqa: E402
    central,
    design,
    federated,
    known_classes,
    own_ridge,
    parts,
    pooled_ridge,
    to_oracle,
)

HERE = Path(__file__).parent
SIGMAS = (0.1, 0.3, 1.0, 4.0)
LINES = list(crossed((4, 16), (5, 20), (4, 16), SIGMAS))
FIGURE = (16, 20, 16, 1.0)
"""Entities of an agent, events of an entity, classes and sigma of the line with a bound."""
MANY, FEW = 10, 2
SITES, FEDERATED = 8, 1.0
"""Sites over which the method runs, at one of the sigmas."""


def one(
    n_entities: int, n_events: int, n_classes: int, sigma: float, seed: int
) -> dict[str, float]:
    """Relative errors in one data set."""
    settings = {"n_entities": n_entities, "n_events": n_events, "sigma": sigma}
    data = design(n_classes, seed, n_entities, n_events, f"{sigma}", **settings)
    train, test = parts(data, seed)
    model = central(train, n_classes, seed)
    predicted = {
        "central": model.predict(test.x, entity=test.entity, agent=test.agent),
        "known_classes": known_classes(data, train, test),
        "own_ridge": own_ridge(data, train, test),
        "ridge": pooled_ridge(train, test),
    }
    if sigma == FEDERATED:
        predicted["federated"] = federated(train, n_classes, seed, n_sites=SITES)[1](test)
    return {name: to_oracle(data, test, values) for name, values in predicted.items()}


def main() -> None:
    names = [f"N* {a}, N** {b}, K {k}, sigma {s:g}" for a, b, k, s in LINES]
    chosen = options(__doc__)
    table = Table(HERE, chosen, names)
    for name, line in zip(names, LINES, strict=True):
        replicates = MANY if line == FIGURE else FEW
        if not table.wanted(name, replicates):
            continue
        with threadpool_limits(1):
            sets = replicate(one, *line, replicates=replicates, chosen=chosen)
        keys = ("n_entities", "n_events", "n_classes", "sigma")
        row: dict[str, Any] = {**dict(zip(keys, line, strict=True)), "replicates": len(sets)}
        for figure in sets[0]:
            row |= mean((each[figure] for each in sets), figure, ".3f")
        for figure in sorted({"central", "federated"} & set(sets[0])):
            row[f"{figure}_most"] = f"{max(each[figure] for each in sets):.3f}"
        table.add(name, [row])


if __name__ == "__main__":
    main()

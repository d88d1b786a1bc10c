"""Kinds or degrees: what is said of data with one true class, and of two and four."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate  # noqa: E402
from replications.latent_class_regression.study import central, design  # noqa: E402

HERE = Path(__file__).parent
FloatArray = NDArray[np.float64]
REPLICATES = 100
SIZES = ((4, 15), (30, 4), (300, 1))
"""Agents and entities of each: data sets have them in turn."""
EVENTS = 8
ONE_CLASS = (
    "normal",
    "t3",
    "noise by entity",
    "random intercepts",
    "random slopes",
    "x^2",
    "x^2, x by entity",
    "skewed",
)
AGENTS = {
    f"{own} of {agents} agents{more}": (agents, each)
    for own, more in (("intercepts", ""), ("slopes", ""), ("slopes", " and entities"))
    for agents, each in SIZES[:2]
}
"""Data in which agents differ by degrees, and entities within agents in the last two."""
CLASSES = {"two classes": 2, "four classes": 4, "two classes, 4 agents": 2}
BY_CLASS = "noise by entity, noise by class"
"""Data of "noise by entity", fitted with ``noise_by_class``."""
LINES = (*ONE_CLASS, BY_CLASS, *AGENTS, *CLASSES)


def drawn(line: str, seed: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Columns, outcome, entity and agent of a data set with one true class."""
    rng = stream(seed, "kinds", line)
    agents, each = AGENTS.get(line, SIZES[seed % len(SIZES)])
    n = agents * each
    entity = np.repeat(np.arange(n), EVENTS)
    x = rng.normal(size=(len(entity), 3))
    if line == "x^2, x by entity":
        x += rng.normal(size=(n, 3))[entity]
    y = 0.5 + x @ np.array([0.8, -0.4, 0.0])
    noise = rng.normal(size=len(entity))
    if line == "t3":
        noise = rng.standard_t(3, size=len(entity))
    elif line == "noise by entity":
        noise *= np.exp(0.7 * rng.normal(size=n))[entity]
    elif line == "skewed":
        noise = rng.exponential(size=len(entity)) - 1.0
    elif line == "random intercepts":
        y += 0.7 * rng.normal(size=n)[entity]
    elif line == "random slopes" or line.endswith("and entities"):
        y += (0.5 * rng.normal(size=(n, 3))[entity] * x).sum(axis=1)
    elif line.startswith("x^2"):
        y += 0.6 * x[:, 0] ** 2
    agent = entity // each
    if line in AGENTS:
        y += 0.7 * rng.normal(size=agents)[agent]
        if line.startswith("slopes"):
            y += (0.5 * rng.normal(size=(agents, 3))[agent] * x).sum(axis=1)
    return x, y + noise, entity, agent


def one(line: str, seed: int) -> dict[str, float]:
    """What the fit says of one data set."""
    if line in CLASSES:
        few = {"n_agents": 4, "n_entities": 15, "n_events": 8, "shares": (0.5, 0.5)}
        chosen = few if line.endswith("agents") else {}
        data = design(CLASSES[line], seed, "kinds", line, sigma=0.5, **chosen)
        model = central(data.events, "auto", seed)
        true = len(np.unique(data.events.label))
    else:
        by_class = line == BY_CLASS
        x, y, entity, agent = drawn("noise by entity" if by_class else line, seed)
        from consilience import LatentClassRegressor

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LatentClassRegressor("auto", random_state=seed, noise_by_class=by_class)
            model.fit(x, y, entity=entity, agent=agent)
        true = 1
    said = model.evidence_
    return {
        "right": float(model.n_classes_ == true),
        "merged_right": float(said.n_classes == true),
        "not_kinds": float(model.n_classes_ == 1 or said.verdict != "kinds"),
        "degrees": float(said.verdict.startswith("degrees")),
        "no_evidence": float(said.verdict.startswith("no")),
        "log_score": said.to_one.log_score,
        "to_mixed": said.to_mixed.log_score,
    }


def main() -> None:
    chosen = options(__doc__)
    table = Table(HERE, chosen, list(LINES))
    for line in LINES:
        if not table.wanted(line, REPLICATES):
            continue
        with threadpool_limits(1):
            sets = replicate(one, line, replicates=REPLICATES, chosen=chosen)
        counted = ("not_kinds", "degrees", "no_evidence", "right", "merged_right")
        row = {"replicates": len(sets)}
        row |= {name: int(sum(each[name] for each in sets)) for name in counted}
        share = row["not_kinds"] / len(sets)
        row["not_kinds_se"] = f"{np.sqrt(share * (1 - share) / len(sets)):.3f}"
        for name in ("log_score", "to_mixed"):
            row[name] = f"{np.mean([each[name] for each in sets]):.4f}"
        table.add(line, [row])


if __name__ == "__main__":
    main()

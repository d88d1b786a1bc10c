"""Few full local fits against many first-order rounds: deviance gap, AUC and numbers sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.glm import family, fit  # noqa: E402
from consilience.datasets.simulate_assisted import SplitColumns, simulate_setting  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.baselines import (  # noqa: E402
    Parties,
    auc,
    loss,
    standardised,
    tune,
)
from replications.assisted_glm.joint import extended, train_jointly  # noqa: E402
from replications.assisted_glm.study import Table, crossed, mean, options, replicate  # noqa: E402

HERE = Path(__file__).parent
N, N_FRESH = 2000, 10_000
REPLICATES = 50
ROUNDS = (0, 1, 2, 3, 5, 10, 20, 50)
LAST = 50
JOINT = {"plain": "none", "span": "span"}
BASELINES = tuple(crossed(("FedSGD", "FedBCD"), ("as they are", "standardised")))
LINES = tuple(crossed(("binomial", "poisson", "normal"), (1, 2, 3)))
FloatArray = NDArray[np.float64]


def with_constant(x: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(x)), x])


def one(kind: str, setting: int, seed: int) -> dict[str, Any]:
    """Gaps to the pooled fit and AUC on fresh data, by method and round."""
    rng = stream(seed, "first order", kind, setting)
    made = simulate_setting(setting, 2 * N + N_FRESH, rng=rng, family=kind, effects="power")
    train, tuning, fresh = (
        made.rows(slice(start, stop))
        for start, stop in ((0, N), (N, 2 * N), (2 * N, 2 * N + N_FRESH))
    )
    pooled = fit(train.pooled, train.y, family(kind))
    least = float(loss(train.y, pooled.eta, kind))

    def figures(eta: FloatArray, eta_fresh: FloatArray, numbers: int) -> dict[str, float]:
        return {
            "gap": 2.0 * (float(loss(train.y, eta, kind)) - least),
            "fresh": 2.0 * float(loss(fresh.y, eta_fresh, kind)),
            "auc": auc(fresh.y, eta_fresh) if kind == "binomial" else float("nan"),
            "numbers": float(numbers),
        }

    found: dict[str, Any] = {
        "pooled": figures(pooled.eta, pooled.intercept + fresh.pooled @ pooled.coef, 0)
    }
    for name, acceleration in JOINT.items():
        for k in ROUNDS:
            found[name, k] = figures(*jointly(train, fresh, kind, acceleration, k))
    start = fit(train.columns["a"], train.y, family(kind))
    for name, scale in BASELINES:
        parts = [parties(train, data, kind, scale) for data in (train, tuning, fresh)]
        begin = np.array([start.intercept, *start.coef])
        if scale == "standardised":
            x_a = train.columns["a"]
            begin = np.array(
                [start.intercept + x_a.mean(axis=0) @ start.coef, *(start.coef * x_a.std(axis=0))]
            )
        tuned = tune(name, parts[0], parts[1], begin, rounds=LAST, rng=rng)
        for k in ROUNDS:
            found[f"{name}, {scale}", k] = {
                **figures(tuned.eta(parts[0], k), tuned.eta(parts[2], k), int(tuned.numbers[k])),
                "best": 2.0 * (tuned.best_loss - least),
                "inside": float(tuned.inside),
            }
    return found


def jointly(
    train: SplitColumns, fresh: SplitColumns, kind: str, acceleration: str, rounds: int
) -> tuple[FloatArray, FloatArray, int]:
    """Linear predictors after some rounds, and the numbers sent until then."""
    eta = train_jointly(train, acceleration, rounds).eta
    sent = len(train.y) * (2 * rounds + (rounds > 0))
    return eta, extended(train, eta, fresh), sent


def parties(train: SplitColumns, data: SplitColumns, kind: str, scale: str) -> Parties:
    x_a, x_b = data.columns["a"], data.columns["b"]
    if scale == "standardised":
        x_a = standardised(train.columns["a"], x_a)
        x_b = standardised(train.columns["b"], x_b)
    return Parties(with_constant(x_a), x_b, data.y, kind)


def rows(sets: list[dict[Any, Any]], head: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    methods = dict.fromkeys(key[0] for key in sets[0] if key != "pooled")
    for method, k in crossed(methods, ROUNDS):
        each = [one_set[method, k] for one_set in sets]
        row: dict[str, Any] = {**head, "method": method, "round": k}
        row["numbers"] = f"{np.mean([figures['numbers'] for figures in each]):.0f}"
        row |= mean((figures["gap"] for figures in each), "gap", ".2e")
        excess = [
            figures["fresh"] - one_set["pooled"]["fresh"]
            for figures, one_set in zip(each, sets, strict=True)
        ]
        row |= mean(excess, "excess", ".2e")
        row |= mean((figures["auc"] for figures in each), "auc")
        if k == LAST and "best" in each[0]:
            for name in JOINT:
                wins = [one_set[name, 1]["gap"] < one_set[method, k]["gap"] for one_set in sets]
                row[f"{name}_1_better"] = f"{np.mean(wins):.2f}"
                wins = [one_set[name, 1]["gap"] < one_set[method, k]["best"] for one_set in sets]
                row[f"{name}_1_below_best"] = f"{np.mean(wins):.2f}"
            row |= mean((figures["best"] for figures in each), "best", ".2e")
            row["inside"] = f"{np.mean([figures['inside'] for figures in each]):.2f}"
        made.append(row)
    auc_pooled = mean((one_set["pooled"]["auc"] for one_set in sets), "auc")
    made.append({**head, "method": "pooled", **auc_pooled})
    return made


def main() -> None:
    chosen = options(__doc__)
    names = [f"{kind} setting {setting}" for kind, setting in LINES]
    table = Table(HERE, chosen, names)
    for name, (kind, setting) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, kind, setting, replicates=REPLICATES, chosen=chosen)
        head = {"family": kind, "setting": setting, "replicates": len(sets)}
        table.add(name, rows(sets, head))


if __name__ == "__main__":
    main()

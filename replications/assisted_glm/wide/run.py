"""More columns than records: joint training under an L1 penalty, the pooled fit, and a alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.glm import Family, Fit, Penalty, family, fit  # noqa: E402
from consilience.assisted.kernels.joint_glm import Alternation, Partner  # noqa: E402
from consilience.datasets.simulate_assisted import SplitColumns  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.baselines import auc, loss  # noqa: E402
from replications.assisted_glm.simulate import simulate_wide  # noqa: E402
from replications.assisted_glm.study import (  # noqa: E402
    Table,
    crossed,
    mean,
    options,
    replicate,
    share,
)

HERE = Path(__file__).parent
N, N_FRESH = 100, 2000
REPLICATES = {"normal": 20, "binomial": 40}
DESIGNS = {
    "200 + 200": (200, 200, 0),
    "300 + 300": (300, 300, 0),
    "200 + 200 + 100": (200, 200, 100),
}
"""Columns of a alone, b alone, and both."""
PENALTIES = {"lasso": 1.0, "elastic net": 0.5}
SHARES = tuple(np.logspace(0.0, -2.0, 17).tolist())
"""Strengths tried, as shares of the least one with which the pooled fit has no column."""
ROUNDS = {"plain": 200, "Anderson": 100}
"""Rounds after which one stops looking; a figure beyond counts as this number plus 1."""
DEPTH = {"plain": 0, "Anderson": 6}
ERRORS = (1e-2, 1e-4, 1e-6)
TINY = 1e-9
SHOWN = (1, 2, 5, 10)
"""Rounds after which held-out figures are given, besides the last."""
LINES = tuple(crossed(REPLICATES, DESIGNS, PENALTIES))
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Course:
    """Linear predictors of training and fresh records after each round, and objectives."""

    eta: FloatArray  # (rounds + 1, n)
    fresh: FloatArray  # (rounds + 1, n_fresh)
    objectives: FloatArray  # (rounds + 1,)


def train(
    data: SplitColumns, fresh: SplitColumns, model: Family, penalty: Penalty, way: str, rounds: int
) -> Course:
    """Alternate for a number of rounds, each side with its own columns only.

    What ``fit_jointly`` does, but with what there is after each round.
    """
    x_a, x_b = data.columns["a"], data.columns["b"]
    centre = x_b.mean(axis=0)
    a = Alternation(x_a, data.y, model, 1, penalty=penalty, depth=DEPTH[way])
    b = Partner(x_b - centre, data.y, model, penalty=penalty)
    beta = np.zeros(x_b.shape[1])
    found: list[tuple[FloatArray, FloatArray, float]] = []
    for k in range(rounds + 1):
        if k:
            answer = b.respond(a.offset_for(0))
            a.receive(answer.message, 0, answer.penalty)
            beta = answer.beta if a.accepted else beta
        new = a.intercept + fresh.columns["a"] @ a.coef_a + (fresh.columns["b"] - centre) @ beta
        found.append((a.eta, new, a.objective))
    etas, news, objectives = zip(*found, strict=True)
    return Course(np.stack(etas), np.stack(news), np.array(objectives))


def one(
    kind: Literal["normal", "binomial"], design: str, name: str, seed: int
) -> dict[str, dict[str, float]]:
    """Held-out figures, rounds and distances to the pooled fit of one data set, by way."""
    rng = stream(seed, "wide", kind, design)
    made = simulate_wide(2 * N + N_FRESH, rng=rng, family=kind, n_columns=DESIGNS[design])
    data, tuning, fresh = (
        made.rows(slice(*ends)) for ends in ((0, N), (N, 2 * N), (2 * N, 2 * N + N_FRESH))
    )
    model, ratio = family(kind), PENALTIES[name]
    strengths = np.array(SHARES) * largest(stacked(data), data.y, model) / ratio

    def figures(eta: FloatArray) -> dict[str, float]:
        return {
            "fresh": 2.0 * float(loss(fresh.y, eta, kind)),
            "auc": auc(fresh.y, eta) if kind == "binomial" else float("nan"),
        }

    found: dict[str, dict[str, float]] = {}
    best, place = choose(stacked(data), data.y, stacked(tuning), tuning.y, model, strengths, ratio)
    penalty = Penalty(float(strengths[place]), ratio)
    found["pooled"] = {
        **figures(best.intercept + stacked(fresh) @ best.coef),
        "columns": float(np.sum(best.coef != 0)),
        "inside": float(0 < place < len(strengths) - 1),
    }
    once = fit(data.pooled, data.y, model, penalty=penalty)
    found["pooled"]["distance"] = relative(once.eta, best.eta)
    x_a = (data.columns["a"], tuning.columns["a"])
    alone, place = choose(x_a[0], data.y, x_a[1], tuning.y, model, strengths, ratio)
    found["alone"] = {
        **figures(alone.intercept + fresh.columns["a"] @ alone.coef),
        "columns": float(np.sum(alone.coef != 0)),
        "distance": relative(alone.eta, best.eta),
        "inside": float(0 < place < len(strengths) - 1),
    }
    least = model.deviance(data.y, best.eta) + 2.0 * N * penalty.value(best.coef)
    for way, rounds in ROUNDS.items():
        course = train(data, fresh, model, penalty, way, rounds)
        errors = np.array([relative(eta, best.eta) for eta in course.eta])
        found[way] = {
            **{f"to_{e:g}": first_below(errors, e) for e in ERRORS},
            **figures(course.fresh[-1]),
            **{f"fresh_{k}": figures(course.fresh[k])["fresh"] for k in SHOWN},
            "distance": float(errors[-1]),
            "gap": (float(course.objectives[-1]) - least) / N,
            "rises": float(np.sum(np.diff(course.objectives) > 1e-9 * (1 + least))),
        }
    return found


def stacked(data: SplitColumns) -> FloatArray:
    """Columns of a, then of b; what both hold is there twice, as it is in joint training."""
    return np.column_stack([data.columns["a"], data.columns["b"]])


def largest(x: FloatArray, y: FloatArray, model: Family) -> float:
    """Least strength of an L1 penalty that leaves no column in the fit."""
    score = model.score(y, np.full(len(y), model.start(y)))
    return float(np.abs(x.T @ score).max()) / len(y)


def choose(
    x: FloatArray,
    y: FloatArray,
    x_tuning: FloatArray,
    y_tuning: FloatArray,
    model: Family,
    strengths: FloatArray,
    ratio: float,
) -> tuple[Fit, int]:
    """Fit with the strength that predicts other records best."""
    fits: list[Fit] = []
    for strength in strengths:
        start = (fits[-1].coef, fits[-1].intercept) if fits else None
        fits.append(fit(x, y, model, start=start, penalty=Penalty(float(strength), ratio)))
    losses = [loss(y_tuning, f.intercept + x_tuning @ f.coef, model.name) for f in fits]
    place = int(np.argmin(losses))
    return fits[place], place


def relative(eta: FloatArray, other: FloatArray) -> float:
    """Distance beside the size of `other`; the distance itself where that is 0.

    With as many ones as zeros, a fit without columns has a predictor of 0.
    """
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(eta - other)) / (size if size > TINY else 1.0)


def first_below(errors: FloatArray, error: float) -> float:
    """First round from which the error stays below."""
    above = np.flatnonzero(errors > error)
    return float(above[-1] + 1) if above.size else 0.0


def rows(sets: list[dict[str, dict[str, float]]], head: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for way in ("alone", *ROUNDS, "pooled"):
        each = [one_set[way] for one_set in sets]
        row: dict[str, Any] = {**head, "way": way}
        row |= mean((f["fresh"] for f in each), "fresh")
        excess = [f["fresh"] - s["pooled"]["fresh"] for f, s in zip(each, sets, strict=True)]
        row |= mean(excess, "excess", ".2e")
        gain = [s["alone"]["fresh"] - f["fresh"] for f, s in zip(each, sets, strict=True)]
        row |= mean(gain, "gain")
        if way != "alone":
            row |= share((float(g > 0) for g in gain), "better", 2)
        row |= mean((f["auc"] for f in each), "auc")
        row["distance"] = f"{np.median([f['distance'] for f in each]):.1e}"
        row["distance_most"] = f"{max(f['distance'] for f in each):.1e}"
        if way in ROUNDS:
            for e in ERRORS:
                values = [f[f"to_{e:g}"] for f in each]
                row |= mean(values, f"to_{e:g}", ".1f")
                row[f"to_{e:g}_most"] = f"{max(values):.0f}"
            reached = (float(f[f"to_{ERRORS[-1]:g}"] <= ROUNDS[way]) for f in each)
            row |= share(reached, "reached", 2)
            for k in SHOWN:
                row |= mean(
                    (
                        f[f"fresh_{k}"] - s["pooled"]["fresh"]
                        for f, s in zip(each, sets, strict=True)
                    ),
                    f"excess_{k}",
                    ".1e",
                )
            row["gap"] = f"{max(f['gap'] for f in each):.1e}"
            row["rises"] = f"{sum(f['rises'] for f in each):.0f}"
        else:
            row |= mean((f["columns"] for f in each), "columns", ".1f")
            row |= share((f["inside"] for f in each), "inside", 2)
        made.append(row)
    return made


def main() -> None:
    chosen = options(__doc__)
    names = [f"{kind} {design} {name}" for kind, design, name in LINES]
    table = Table(HERE, chosen, names)
    for line, (kind, design, name) in zip(names, LINES, strict=True):
        if not table.wanted(line, REPLICATES[kind]):
            continue
        sets = replicate(one, kind, design, name, replicates=REPLICATES[kind], chosen=chosen)
        head = {"family": kind, "columns_held": design, "penalty": name, "replicates": len(sets)}
        table.add(line, rows(sets, head))


if __name__ == "__main__":
    main()

"""The guard: probes of six learners, what unguarded rounds do, and what guarded ones keep."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.averaging.estimators.proximal_fit import Learner, separable  # noqa: E402
from consilience.averaging.tall.reference_averaging import (  # noqa: E402
    ReferenceAveragingClassifier,
    ReferenceAveragingRegressor,
)
from consilience.numerics.random import stream  # noqa: E402
from consilience.numerics.reference_average import averaged  # noqa: E402
from replications.reference_averaging.simulate import (  # noqa: E402
    simulate_curved_rows,
    simulate_split_rows,
    split_evenly,
)
from replications.reference_averaging.study import (  # noqa: E402
    ADAPTIVE,
    FIXED,
    FloatArray,
    Results,
    mean,
    options,
    rounds,
    share,
)

HERE = Path(__file__).parent
FRESH = 20_000
ROUNDS, SHOWN = 10, (0, 1, 2, 5, 10)
SEPARABLE = ("ridge", "lasso", "logistic")
OTHERS = ("tree", "forest", "boosting")
REPLICATES = {"probe": 10, "unguarded": 4, "separable": 10, "others": 10}


def estimator_of(name: str, *, tight: bool = False) -> Any:
    """Make a learner with usual settings; `tight` is a solver tolerance of 1e-10."""
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import Lasso, LogisticRegression, Ridge
    from sklearn.tree import DecisionTreeRegressor

    precise = {"tol": 1e-10, "max_iter": 100_000} if tight else {}
    made: dict[str, Callable[[], Any]] = {
        "ridge": lambda: Ridge(alpha=1.0),
        "lasso": lambda: Lasso(alpha=0.01, **precise),
        "logistic": lambda: LogisticRegression(C=1.0, **precise),
        "tree": lambda: DecisionTreeRegressor(min_samples_leaf=5),
        "forest": lambda: RandomForestRegressor(n_estimators=30, min_samples_leaf=5),
        "boosting": lambda: GradientBoostingRegressor(n_estimators=50),
    }
    return made[name]()


# --------------------------------------------------------------------------- probes


def probe(name: str, tight: bool, seed: int) -> dict[str, float]:
    """Probe of one site of 400 rows: curved for trees, the source's design for the others."""
    rng = stream(seed, "guard", name)
    classes = name == "logistic"
    if name in OTHERS:
        x, y = simulate_curved_rows(400, 10, rng=rng)
        reference = rng.uniform(size=(200, 10))
    else:
        kind = "logistic" if classes else "linear"
        ((x, y),) = simulate_split_rows(400, 10, 1, rng=rng, response=kind).tables
        reference = rng.standard_normal((200, 10))
    learner = Learner(
        estimator_of(name, tight=tight),
        task="classification" if classes else "regression",
        n_levels=2 if classes else 1,
        reference=reference,
        n_total=2000,
        seed=seed,
    )
    change, permuted = learner.probe(x, y, rng=rng)
    return {"change": change, "permuted": permuted, "separable": separable(change, permuted)}


# --------------------------------------------------------------------------- unguarded


def unguarded(name: str, seed: int) -> dict[str, float]:
    """R2 on fresh rows by round, five sites of 400 rows, without a guard."""
    rng = stream(seed, "unguarded", name)
    x, y = simulate_curved_rows(2000 + FRESH, 10, rng=rng)
    reference = rng.uniform(size=(200, 10))
    learner = Learner(
        estimator_of(name), task="regression", reference=reference, n_total=2000, seed=seed
    )
    tables = [(x[part], y[part]) for part in split_evenly(2000, 5)]
    far, answers = x[2000:], y[2000:]
    found = {}
    for weights in (FIXED[1.0], ADAPTIVE):
        for step in rounds(learner, tables, weights, ROUNDS):
            if step.k in SHOWN:
                average = averaged([learner.predict(f, far)[:, 0] for f in step.fits], [1] * 5)
                found[f"{weights.name}/{step.k}"] = r2(answers, average)
    pooled = learner.predict(learner.fit(x[:2000], y[:2000]), far)[:, 0]
    found["global"] = r2(answers, pooled)
    return found


def r2(y: FloatArray, prediction: FloatArray) -> float:
    return float(1.0 - ((y - prediction) ** 2).mean() / y.var())


# --------------------------------------------------------------------------- guarded

DESIGNS: dict[str, tuple[int, int, int]] = {
    # columns, rows of a split, splits
    "few columns": (20, 400, 10),
    "some columns": (60, 400, 10),
    "many columns": (120, 400, 10),
    "sorted, slightly": (20, 400, 10),
    "sorted": (20, 400, 10),
}
CURVES = {"sorted, slightly": 0.1, "sorted": 0.5}
"""Effect of the sorting column. "sorted" splits hold consecutive values of one column, whose
square belongs to the response and not to the learner."""


def draw(
    design: str, name: str, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Rows in the order in which the estimator deals them to the splits, and fresh rows."""
    p, size, splits = DESIGNS[design]
    n = size * splits
    x = rng.standard_normal((n + FRESH, p))
    coef = np.zeros(p)
    coef[: p // 5] = np.sqrt(2.0 * np.log(p) / size)
    eta = x @ coef
    if design in CURVES:
        eta = eta + CURVES[design] * (x[:, 0] + 0.5 * (x[:, 0] ** 2 - 1.0))
        order = np.argsort(x[:n, 0]).reshape(splits, size).T.ravel()
        x[:n], eta[:n] = x[order], eta[order]
    if name == "logistic":
        y = (rng.uniform(size=len(eta)) * (1 + np.exp(-2 * eta)) < 1).astype(float)
    else:
        y = eta + np.sqrt(2.0 * (coef**2).sum()) * rng.standard_normal(len(eta))
    return x[:n], y[:n], x[n:], y[n:]


def fitted(name: str, design: str, x: FloatArray, y: FloatArray, **settings: Any) -> Any:
    kind = ReferenceAveragingClassifier if name == "logistic" else ReferenceAveragingRegressor
    splits = DESIGNS[design][2] if design in DESIGNS else 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind(estimator_of(name), n_splits=splits, **settings).fit(x, y)


def losses(model: Any, x: FloatArray, y: FloatArray) -> FloatArray:
    """Loss of each row: squared error, or log loss."""
    if hasattr(model, "classes_"):
        chances = np.clip(model.predict_proba(x), 1e-15, 1.0)
        return np.asarray(-np.log(chances[np.arange(len(y)), y.astype(int)]))
    return np.asarray((y - model.predict(x)) ** 2)


def explained(loss: FloatArray, y: FloatArray, classes: bool) -> float:
    """R2, or the share of the deviance that is explained."""
    share_of_ones = y.mean()
    null = (
        -(share_of_ones * np.log(share_of_ones) + (1 - share_of_ones) * np.log(1 - share_of_ones))
        if classes
        else y.var()
    )
    return float(1.0 - loss.mean() / null)


def guarded(name: str, design: str, seed: int) -> dict[str, float]:
    """One table with the guard, and what averaging and the rounds without it would give.

    The true gain is that of the round which held-out loss points to, on fresh rows; its two
    standard errors are those of the run's own held-out gain.
    """
    rng = stream(seed, "guarded", name, design)
    if name in OTHERS:
        x, y = simulate_curved_rows(2000 + FRESH, 10, rng=rng)
        x, y, far, answers = x[:2000], y[:2000], x[2000:], y[2000:]
    else:
        x, y, far, answers = draw(design, name, rng)
    classes = name == "logistic"
    run = fitted(name, design, x, y, random_state=seed, max_rounds=ROUNDS)
    base = losses(fitted(name, design, x, y, random_state=seed, max_rounds=0), far, answers)
    kept = losses(run, far, answers)
    found = {
        "kept": float(run.kept_),
        "drop": explained(base, answers, classes) - explained(kept, answers, classes),
        "averaging": explained(base, answers, classes),
        "chosen": explained(kept, answers, classes),
        "round": float(run.chosen_round_),
        "judged": float(run.reason_ == "not-separable"),
    }
    if name in OTHERS:
        return found
    gains, errors = run.history_["gains"][0], run.history_["gain_errors"][0]
    if len(gains) < 2 or np.isnan(gains[1:]).all():
        return found | {"beyond": 0.0, "true_gain": float("nan")}
    best = 1 + int(np.nanargmin(gains[1:]))
    there = run
    if run.chosen_round_ != best:
        there = fitted(name, design, x, y, random_state=seed, max_rounds=best, guard=False)
    true_gain = float((base - losses(there, far, answers)).mean())
    return found | {
        "beyond": float(true_gain > 2.0 * errors[best]),
        "true_gain": true_gain,
        "ratio": true_gain / errors[best],
    }


# --------------------------------------------------------------------------- the table


def guarded_row(data: list[dict[str, float]], head: dict[str, Any]) -> dict[str, Any]:
    row = {**head, "replicates": len(data)}
    row |= mean((each["averaging"] for each in data), "averaging")
    row |= mean((each["chosen"] for each in data), "chosen")
    row["largest_drop"] = f"{max(each['drop'] for each in data):.4f}"
    row |= share((each["kept"] for each in data), "kept")
    row |= mean((each["round"] for each in data), "round", ".1f")
    row |= share((each["judged"] for each in data), "not_separable")
    if "beyond" in data[0]:
        clear = [each["kept"] for each in data if each["beyond"]]
        row["beyond"] = str(len(clear))
        row |= share(clear, "kept_beyond")
        row |= mean((each["true_gain"] for each in data), "true_gain", ".5f")
    return row


def probe_row(data: list[dict[str, float]], head: dict[str, Any]) -> dict[str, Any]:
    row = {**head, "replicates": len(data)}
    for name in ("change", "permuted"):
        row |= mean((each[name] for each in data), name, ".2e")
        values = [each[name] for each in data]
        row |= {f"{name}_least": f"{min(values):.2e}", f"{name}_most": f"{max(values):.2e}"}
    return row | share((1.0 - each["separable"] for each in data), "not_separable")


def unguarded_row(data: list[dict[str, float]], head: dict[str, Any]) -> dict[str, Any]:
    row = {**head, "replicates": len(data)}
    for k in SHOWN:
        row |= mean((each[f"{head['schedule']}/{k}"] for each in data), f"r2_{k}")
    return row | mean((each["global"] for each in data), "r2_global")


def main() -> None:
    lines = {f"probe: {name}": ("probe", name) for name in (*SEPARABLE, *OTHERS)}
    lines |= {f"unguarded: {name}": ("unguarded", name) for name in OTHERS}
    lines |= {f"guarded: {name}": ("guarded", name) for name in (*SEPARABLE, *OTHERS)}
    table = Results(HERE, options(__doc__), list(lines))
    with threadpool_limits(1):
        for line, (part, name) in lines.items():
            count = REPLICATES.get(part, REPLICATES["others" if name in OTHERS else "separable"])
            if table.wanted(line, count):
                table.add(line, rows(part, name, table.seeds(count)))


def rows(part: str, name: str, seeds: range) -> list[dict[str, Any]]:
    if part == "probe":
        precisions = ("1e-10", "default") if name in ("lasso", "logistic") else ("default",)
        return [
            probe_row(
                [probe(name, tolerance == "1e-10", seed) for seed in seeds],
                {"learner": name, "tolerance": tolerance},
            )
            for tolerance in precisions
        ]
    if part == "unguarded":
        data = [unguarded(name, seed) for seed in seeds]
        return [
            unguarded_row(data, {"learner": name, "schedule": weights.name})
            for weights in (FIXED[1.0], ADAPTIVE)
        ]
    designs = ("curved",) if name in OTHERS else tuple(DESIGNS)
    made = []
    for design in designs:
        data = [guarded(name, design, seed) for seed in seeds]
        made.append(guarded_row(data, {"learner": name, "design": design}))
    return made


if __name__ == "__main__":
    main()

"""Coverage of intervals for new subjects: joint, from local parts, and inflated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.glm import Family, family, fit  # noqa: E402
from consilience.assisted.kernels.joint_glm import contraction, inflated, local_errors  # noqa: E402
from consilience.datasets.simulate_assisted import SplitColumns, simulate_setting  # noqa: E402
from consilience.exceptions import ParameterError  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.in_one_process import fit_jointly  # noqa: E402
from replications.assisted_glm.joint import train_jointly  # noqa: E402
from replications.assisted_glm.simulate import simulate_opposed  # noqa: E402
from replications.assisted_glm.standard_errors import joint_intervals, paper  # noqa: E402
from replications.assisted_glm.study import (  # noqa: E402
    Table,
    crossed,
    mean,
    options,
    replicate,
    share,
)

HERE = Path(__file__).parent
REPLICATES = 2000
N_NEW = 5
LEVEL = 0.95
QUANTILE = float(norm.ppf((1 + LEVEL) / 2))
ALTERNATIONS = 5
"""Rounds of plain alternation from which the inflated interval takes its correlation."""
OPPOSED = "opposed"
LINES: tuple[tuple[str, str, int], ...] = tuple(
    crossed(
        ("binomial", "poisson", "normal"),
        ("setting 1", "setting 2", "setting 3", OPPOSED),
        (300, 2000),
    )
)
KINDS = ("joint", "budget", "local", "paper", "inflated")
FloatArray = NDArray[np.float64]


def one(kind: str, design: str, n: int, seed: int) -> dict[str, float]:
    """Shares of new subjects that each interval covers, and its width by the pooled sandwich's."""
    data, new, true = with_new(kind, design, n, stream(seed, "coverage", kind, design, n))
    model = family(kind)
    x_a, x_b, y = data.columns["a"], data.columns["b"], data.y
    trained = fit_jointly(x_a, [x_b], y, model)
    given = (x_a, [x_b], y, model, new["a"], [new["b"]])
    joint = joint_intervals(trained, *given)
    limit = int(np.linalg.matrix_rank(x_b - x_b.mean(axis=0))) - 1
    short = joint_intervals(train_jointly(data, "span", 50, max_rank=limit), *given, max_rank=limit)
    estimate, oracle = pooled_errors(data, new, model)

    w, s = model.weight(y, trained.eta), model.score(y, trained.eta)
    centre = x_b.mean(axis=0)
    parts = (
        local_errors(x_a, w, s, new["a"], constant=True),
        local_errors(x_b - centre, w, s, new["b"] - centre, constant=False),
    )
    bounded = np.array([word == "bounded" for word in short.status])
    half = {
        "joint": QUANTILE * joint.se,
        # what the model-based error has to be multiplied by where only a bound is known
        "budget": QUANTILE * np.where(bounded, short.factor * short.se_model, short.se),
        "local": QUANTILE * np.sqrt(parts[0][1] + parts[1][1]),
        "paper": paper(parts[0][1], parts[1][1], LEVEL),
        "inflated": np.full(N_NEW, np.nan),
    }
    changes = train_jointly(data, "none", ALTERNATIONS).changes
    try:
        rho = contraction(changes)
        half["inflated"] = QUANTILE * inflated(parts[0][0], parts[1][0], rho)
    except ParameterError:
        pass  # alternation has ended in rounding error: there is no interval
    centres = {name: joint.estimate for name in half} | {"budget": short.estimate}
    found: dict[str, float] = {}
    for name, each in half.items():
        known = np.isfinite(each)
        inside = np.abs(centres[name] - true)[known] <= each[known]
        found[name] = float(inside.mean()) if known.any() else float("nan")
        found[f"{name}_none"] = float(1.0 - known.mean())
        ratio = each[known] / (QUANTILE * oracle[known])
        found[f"{name}_width"] = float(ratio.mean()) if known.any() else float("nan")
    # without the factor for small samples: where not all of b is sent, nobody knows the joint rank
    # and shared columns count twice in it, which the width shows
    small = np.sqrt(n / (n - data.pooled.shape[1] - 1))
    found["to_oracle"] = float(np.max(np.abs(small * joint.se_sandwich / oracle - 1.0)))
    found["estimate_to_oracle"] = float(np.max(np.abs(joint.estimate - estimate) / oracle))
    found["certified"] = float(np.mean([word == "identified" for word in joint.status]))
    return found


def with_new(
    kind: str, design: str, n: int, rng: np.random.Generator
) -> tuple[SplitColumns, dict[str, FloatArray], FloatArray]:
    """Training records, new subjects' columns by party, and their true linear predictors."""
    if design == OPPOSED:
        data, new = simulate_opposed(n, rng=rng, n_targets=N_NEW, family=kind)
        # no column is shared here
        eta = np.column_stack([new["a"], new["b"]]) @ list(data.coefficients.values())
        return data, new, eta
    setting = int(design.removeprefix("setting "))
    made = simulate_setting(setting, n + N_NEW, rng=rng, family=kind, effects="power")
    fresh = made.rows(slice(n, None))
    return made.rows(slice(0, n)), dict(fresh.columns), fresh.eta


def pooled_errors(
    data: SplitColumns, new: dict[str, FloatArray], model: Family
) -> tuple[FloatArray, FloatArray]:
    """Linear predictors of new subjects and their HC1 sandwich errors, from the pooled columns."""
    fitted = fit(data.pooled, data.y, model, tol=1e-13)
    held = {
        name: column
        for party, names in data.names.items()
        for name, column in zip(names, new[party].T, strict=True)
    }
    ones = np.ones(len(new["a"]))
    x_new = np.column_stack([ones, *(held[name] for name in data.coefficients)])
    x = np.column_stack([np.ones(len(data.y)), data.pooled])
    w, s = model.weight(data.y, fitted.eta), model.score(data.y, fitted.eta)
    c = x @ np.linalg.solve(x.T @ (w[:, None] * x), x_new.T)
    error = np.sqrt(np.square(c).T @ np.square(s) * len(x) / (len(x) - x.shape[1]))
    return x_new @ np.array([fitted.intercept, *fitted.coef]), error


def main() -> None:
    chosen = options(__doc__)
    names = [f"{kind} {design} n {n}" for kind, design, n in LINES]
    table = Table(HERE, chosen, names)
    for name, (kind, design, n) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, kind, design, n, replicates=REPLICATES, chosen=chosen)
        rows: list[dict[str, Any]] = []
        for interval in KINDS:
            row: dict[str, Any] = {
                "family": kind,
                "design": design,
                "n": n,
                "interval": interval,
                "replicates": len(sets),
                **share((figures[interval] for figures in sets), "coverage"),
                **mean((figures[f"{interval}_width"] for figures in sets), "width", ".3f"),
                "no_interval": f"{np.mean([figures[f'{interval}_none'] for figures in sets]):.4f}",
            }
            if interval == "joint":
                for figure in ("to_oracle", "estimate_to_oracle"):
                    row[figure] = f"{max(figures[figure] for figures in sets):.1e}"
                row["certified"] = f"{np.mean([figures['certified'] for figures in sets]):.4f}"
            rows.append(row)
        table.add(name, rows)


if __name__ == "__main__":
    main()

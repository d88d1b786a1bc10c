"""Coefficients at default policies: limits by what is thought possible of hidden columns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import expit
from scipy.stats import norm
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience import AssistedGLM, Columns, Federation, Policy  # noqa: E402
from consilience.assisted.kernels import glm  # noqa: E402
from consilience.assisted.kernels.sandwich import sandwich  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, mean, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
N, DRAWS = 800, 300
POLICY = {
    "a": Policy(preset="consortium", share_response=True),
    "b": Policy(preset="consortium"),
    "c": Policy(preset="consortium"),
}
FloatArray = NDArray[np.float64]
LINES: list[tuple[Any, ...]] = [
    ("normal", "factor", 0.36, 3, 3),
    ("normal", "factor", 0.36, 15, 15),
    ("normal", "pairs", 0.6, 3, 4),
    ("normal", "pairs", 0.9, 3, 3),
    ("normal", "pairs", 0.6, 10, 10),
    ("binomial", "pairs", 0.6, 3, 4),
    ("binomial", "pairs", 0.9, 3, 3),
    ("binomial", "factor", 0.36, 15, 15),
    ("poisson", "pairs", 0.6, 10, 10),
    ("gamma", "pairs", 0.6, 10, 10),
    ("normal", "pairs", 0.5, 20, 10, 10),
    ("binomial", "pairs", 0.5, 20, 10, 10),
]
"""Family, how columns are related and how much, columns of the initiator and of each partner."""

FIGURES = (
    *("pooled", "at_0", "at_met", "at_hidden", "closer"),
    *("known", "met", "hidden", "width_at_0", "width_at_met", "width_at_hidden"),
)


def drawn(
    kind: str, shape: str, size: float, p: int, q: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Columns of the initiator and of partners, a response by all, the initiator's coefficients."""
    if shape == "factor":
        x = np.sqrt(size) * rng.normal(size=(N, 1))
        x = x + np.sqrt(1 - size) * rng.normal(size=(N, p + q))
    else:
        x, few = rng.normal(size=(N, p + q)), min(p, q)
        x[:, p : p + few] = size * x[:, :few] + np.sqrt(1 - size**2) * x[:, p : p + few]
    own, theirs = np.resize([0.4, -0.3, 0.2, 0.0], p), np.resize([0.3, 0.2, -0.4, 0.1], q)
    if kind in ("poisson", "gamma"):
        own, theirs = own / 3, theirs / 3
    eta = 0.2 + x[:, :p] @ own + x[:, p:] @ theirs * (0.4 if shape == "factor" else 1.0)
    y = eta + rng.normal(size=N)
    if kind == "binomial":
        y = (rng.random(N) < expit(eta)).astype(np.float64)
    elif kind == "poisson":
        y = rng.poisson(np.exp(eta)).astype(np.float64)
    elif kind == "gamma":
        y = rng.gamma(2.0, np.exp(eta) / 2)
    return x[:, :p], x[:, p:], y, own


def pooled(
    kind: str, a: FloatArray, b: FloatArray, y: FloatArray, directions: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Coefficients and errors by all columns; correlation of the own with the hidden ones."""
    fam, one = glm.family(kind), np.ones((len(y), 1))
    design = np.hstack([one, a, b])
    found = glm.fit(design[:, 1:], y, fam)
    errors = np.sqrt(np.diag(sandwich(design, y, found.eta, fam).covariance))
    root = np.sqrt(fam.weight(y, found.eta))[:, None]
    known = root * np.hstack([one, b @ directions])

    def off(x: FloatArray) -> FloatArray:
        left, size, _ = np.linalg.svd(
            root * x - known @ np.linalg.lstsq(known, root * x, rcond=None)[0], full_matrices=False
        )
        return np.asarray(left[:, size > 1e-8 * size.max()])

    hidden = float(np.linalg.svd(off(a).T @ off(b), compute_uv=False)[0])
    p = a.shape[1]
    return found.coef[:p], errors[1 : 1 + p], hidden


def one(kind: str, shape: str, size: float, p: int, *of: int) -> dict[str, Any]:
    """Fit at default policies; whether limits have the true coefficients, and their width."""
    *widths, seed = of
    rng = stream(seed, "hidden", kind, shape, f"{size}", p, *widths)
    a, b, y, truth = drawn(kind, shape, size, p, sum(widths), rng)
    ids = np.array([f"p{i:05d}" for i in range(N)])
    sites = {"a": a, **dict(zip("bc", np.split(b, np.cumsum(widths)[:-1], axis=1), strict=False))}
    names = {site: [f"{site}{j}" for j in range(x.shape[1])] for site, x in sites.items()}
    tables = {s: pd.DataFrame(x, columns=names[s]).assign(id=ids) for s, x in sites.items()}
    tables["a"]["y"] = y
    columns = {
        s: Columns(id="id", features=names[s], target="y" if s == "a" else None) for s in sites
    }
    policy = {site: POLICY[site] for site in sites}
    federation = Federation.local(tables, columns=columns, policy=policy)
    run = AssistedGLM(family=kind, response="share", holdout=0.0).run(federation, seed=seed)
    partners = run.result.partners
    directions = block_diag(*(run.site(site).predictor.directions for site in partners))
    estimate, error, hidden = pooled(kind, a, b, y, directions)
    reach = norm.ppf(0.975) * error
    if not run.result.bounded:  # several partners that could still gain: a refusal
        return dict.fromkeys(FIGURES, np.nan) | {"settled": 0.0}
    told: dict[str, Any] = {
        "settled": 1.0,
        "known": sum(run.result.revealed[site][0] for site in partners) / sum(widths),
        "met": run.result.correlation,
        "hidden": hidden,
        "closer": float(hidden > run.result.correlation),
        "pooled": float(np.mean(np.abs(truth - estimate) <= reach)),
    }
    ways = {"at_0": 0.0, "at_met": run.result.correlation, "at_hidden": min(hidden, 1 - 1e-9)}
    for way, correlation in ways.items():
        limits = run.result.limits_if(correlation).iloc[1:]
        low, high = limits["lower"].to_numpy(), limits["upper"].to_numpy()
        told[way] = float(np.mean((low <= truth) & (truth <= high)))
        told[f"width_{way}"] = float(np.mean((high - low) / (2 * reach)))
    return told


def main() -> None:
    chosen = options(__doc__)
    names = [
        f"{kind} {shape} {size:g} {p} and {' + '.join(map(str, widths))}"
        for kind, shape, size, p, *widths in LINES
    ]
    table = Table(HERE, chosen, names)
    for name, line in zip(names, LINES, strict=True):
        if not table.wanted(name, DRAWS):
            continue
        with threadpool_limits(1):
            sets = replicate(one, *line, replicates=DRAWS, chosen=chosen)
        row: dict[str, Any] = {"replicates": len(sets)}
        for figure in FIGURES[:5]:
            row |= share((each[figure] for each in sets), figure)
        for figure in FIGURES[5:]:
            row |= mean((each[figure] for each in sets), figure, ".3f")
        row["settled"] = f"{np.mean([each['settled'] for each in sets]):.3f}"
        table.add(name, [row])


if __name__ == "__main__":
    main()

"""Coverage with HC3 and by clusters, where HC1 is too small; size of the score test by clusters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.assistance import draw_directions, sketch_test  # noqa: E402
from consilience.assisted.kernels.glm import family, fit  # noqa: E402
from consilience.assisted.kernels.sandwich import quantile, sandwich  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
LEVEL = 0.05
REPLICATES = 2000
CONTROLS = 500
"""Data sets in which the score test is also done as if records were independent."""
COLUMNS, N_NEW, IN_CLUSTER = 6, 5, 10
KINDS = ("hc1", "hc3", "hc1 by clusters", "hc3 by clusters")
LINES = (
    ("coverage", "heavy tails", "normal", 300),
    ("coverage", "heavy tails", "poisson", 300),
    ("coverage", "few records", "normal", 50),
    ("coverage", "few records", "binomial", 100),
    ("coverage", "clusters", "normal", 200),
    ("coverage", "clusters", "poisson", 300),
    ("coverage", "clusters", "binomial", 500),
    ("size", "clusters", "normal", 200),
    ("size", "clusters", "normal", 300),
    ("size", "clusters", "poisson", 300),
    ("size", "clusters", "binomial", 500),
)
FloatArray = NDArray[np.float64]


def drawn(
    design: str, kind: str, n: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.int64]]:
    """Columns of both parties, response, coefficients (constant first), clusters of ten.

    Heavy tails: columns of t with three degrees of freedom, the response as the model says but for
    normal ones, whose errors have the size of the first column. Clusters: half of the variance of
    columns is that of the cluster, and the linear predictor has an effect of it.
    """
    of = np.arange(n) // IN_CLUSTER
    x = rng.normal(size=(n, COLUMNS))
    if design == "heavy tails":
        x = rng.standard_t(3, size=(n, COLUMNS))
    if design == "clusters":
        x = np.sqrt(0.5) * (x + rng.normal(size=(of[-1] + 1, COLUMNS))[of])
    beta = np.array([0.2, *np.resize([0.2, -0.15, 0.1], COLUMNS)])
    eta = beta[0] + x @ beta[1:]
    if design == "clusters":
        # with a log link the mean of the effect on the scale of the response is e^(s2/2)
        spread = 0.5 if kind == "poisson" else 0.7
        effect = spread * rng.normal(size=of[-1] + 1)[of]
        eta = eta + effect - (spread**2 / 2 if kind == "poisson" else 0.0)
    noise = np.sqrt(0.5 + x[:, 0] ** 2 / 2) if design == "heavy tails" else 1.0
    y = {
        "normal": lambda: eta + noise * rng.normal(size=n),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "binomial": lambda: (rng.uniform(size=n) < expit(eta)).astype(float),
    }[kind]()
    return x, y, beta, of


def covered(design: str, kind: str, n: int, seed: int) -> dict[str, dict[str, float]]:
    """Share of coefficients, and of predictors of new people, within their limits, by errors."""
    rng = stream(seed, "robust", design, kind, n)
    x, y, beta, of = drawn(design, kind, n, rng)
    if design == "clusters" and kind == "binomial":
        # what a logistic model without the effect of clusters estimates
        beta = attenuated()
    new = np.column_stack([np.ones(N_NEW), drawn(design, kind, n, rng)[0][:N_NEW]])
    fitted = fit(x, y, family(kind), tol=1e-12)
    found, d = np.append(fitted.intercept, fitted.coef), np.column_stack([np.ones(n), x])
    shares: dict[str, dict[str, float]] = {}
    for errors in KINDS[: 4 if design == "clusters" else 2]:
        cluster = of if "clusters" in errors else None
        of_fit = sandwich(d, y, fitted.eta, family(kind), None, errors[:3], cluster)
        reach = quantile(1 - LEVEL, of_fit.n_clusters)
        for name, targets in (("coefficients", np.eye(len(beta))[1:]), ("people", new)):
            inside = np.abs(targets @ (found - beta)) <= reach * np.sqrt(of_fit.variance(targets))
            shares.setdefault(errors, {})[name] = float(inside.mean())
    return shares


def attenuated(n: int = 2_000_000) -> FloatArray:
    """Coefficients of the logistic model whose means are those of the clusters' mixture."""
    if not _ATTENUATED:
        rng = stream(0, "robust", "attenuated")
        x, y, _, _ = drawn("clusters", "binomial", n, rng)
        found = fit(x, y, family("binomial"))
        _ATTENUATED.append(np.append(found.intercept, found.coef))
    return _ATTENUATED[0]


_ATTENUATED: list[FloatArray] = []


def rejected(design: str, kind: str, n: int, seed: int) -> dict[str, dict[str, float]]:
    """Whether tests of three columns that add nothing reject: by clusters, and as if alone."""
    rng = stream(seed, "robust size", design, kind, n)
    x, y, _, of = drawn(design, kind, n, rng)
    z = drawn(design, kind, n, rng)[0] @ draw_directions(COLUMNS, 3, rng)
    found = {}
    by = sketch_test(x, z, y, family(kind), cluster=of)
    for test in ("score", "wald", "wald_hc3"):
        found[test] = float(getattr(by, f"p_{test}") < LEVEL)
    found["score_alone"] = np.nan
    if seed < CONTROLS:
        found["score_alone"] = float(sketch_test(x, z, y, family(kind)).p_score < LEVEL)
    return {"tests": found}


def main() -> None:
    chosen = options(__doc__)
    names = [f"{what} {design} {kind} n {n}" for what, design, kind, n in LINES]
    table = Table(HERE, chosen, names)
    for name, (what, design, kind, n) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        function = covered if what == "coverage" else rejected
        sets = replicate(function, design, kind, n, replicates=REPLICATES, chosen=chosen)
        rows = []
        for errors in sets[0]:
            row = {"design": design, "family": kind, "n": n, "errors": errors}
            row["replicates"] = len(sets)
            for figure in sets[0][errors]:
                row |= share((each[errors][figure] for each in sets), figure)
            rows.append(row)
        table.add(name, rows)


if __name__ == "__main__":
    main()

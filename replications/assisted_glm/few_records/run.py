"""Size of the score test of a sketch with few records a parameter of the initiator's own model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.special import expit

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from consilience.assisted.kernels.assistance import sketch_test  # noqa: E402
from consilience.assisted.kernels.glm import family  # noqa: E402
from consilience.numerics.random import stream  # noqa: E402
from replications.assisted_glm.study import Table, options, replicate, share  # noqa: E402

HERE = Path(__file__).parent
LEVEL = 0.05
REPLICATES = 2000
DIRECTIONS = (1, 3)
TESTS = ("wald", "score", "wald_hc3", "lr")
LINES = (
    ("normal", 100, 34),
    ("normal", 100, 25),
    ("binomial", 100, 24),
    ("normal", 50, 12),
    ("normal", 300, 44),
    ("gamma", 100, 9),
    ("poisson", 100, 9),
    ("heavy tails", 50, 12),
)


def one(kind: str, n: int, parameters: int, seed: int) -> dict[tuple[int, str], float]:
    """P-values of one data set by number of directions and test; the partner's columns add nothing.

    Heavy tails are those of t with three degrees of freedom, the family is normal.
    """
    rng = stream(seed, "few records", kind, n, parameters)
    x_a = rng.normal(size=(n, parameters - 1))
    z = rng.normal(size=(n, max(DIRECTIONS))) + 0.3 * x_a[:, :1]
    eta = (0.15 if kind in ("gamma", "poisson") else 0.3) * x_a[:, :3].sum(axis=1)
    y = {
        "normal": lambda: eta + rng.normal(size=n),
        "heavy tails": lambda: eta + rng.standard_t(3, size=n),
        "binomial": lambda: (rng.uniform(size=n) < expit(eta)).astype(float),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "gamma": lambda: rng.gamma(2, np.exp(eta) / 2),
    }[kind]()
    name = "normal" if kind == "heavy tails" else kind
    tests = {t: sketch_test(x_a, z[:, :t], y, family(name)) for t in DIRECTIONS}
    return {
        (t, test): float(getattr(found, f"p_{test}"))
        for t, found in tests.items()
        for test in TESTS
    }


def main() -> None:
    chosen = options(__doc__)
    names = [f"{kind} n {n} parameters {p}" for kind, n, p in LINES]
    table = Table(HERE, chosen, names)
    for name, (kind, n, p) in zip(names, LINES, strict=True):
        if not table.wanted(name, REPLICATES):
            continue
        sets = replicate(one, kind, n, p, replicates=REPLICATES, chosen=chosen)
        rows = []
        for t in DIRECTIONS:
            head = {"family": kind, "n": n, "parameters": p, "replicates": len(sets), "t": t}
            for test in TESTS:
                found = [each[t, test] for each in sets]
                head |= share([v < LEVEL if np.isfinite(v) else np.nan for v in found], test)
            rows.append(head)
        table.add(name, rows)


if __name__ == "__main__":
    main()

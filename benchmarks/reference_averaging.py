"""Reference averaging over a federation: what the exchange costs, and beside it the alternatives.

``PYTHONPATH=. python benchmarks/reference_averaging.py`` writes results/reference_averaging.json,
all in one run on one thread (``... reference_averaging.py cost``: only that); CPU seconds.

* ``cost``: a run on the local engine (every message through gate, codec and journal) against the
  same fits in a plain loop, and the bytes that cross.
* ``alternatives``: distance to the pooled logistic fit by round, for reference averaging and for
  the surrogate likelihood of Jordan, Lee and Yang (2019), which sends gradients and takes a step on
  one site's rows, from an averaged start. It sends p numbers a site and round each way, reference
  averaging 2 m for two levels.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine
from consilience import Columns, Federation, Policy, ReferenceAveraging
from consilience.averaging.estimators.proximal_fit import Learner
from consilience.numerics.random import stream
from consilience.numerics.reference_average import averaged, normal_reference, rho_of
from consilience.sites.site_store import DiskStore
from replications.reference_averaging.simulate import SplitRows, simulate_split_rows

RESULTS = Path(__file__).parent / "results"
ROUNDS = 20
PENALTY = 1e-3
"""Of the mean loss; the pooled fit has the same."""


def draw(n_sites: int, rows: int, p: int) -> SplitRows:
    return simulate_split_rows(
        n_sites * rows,
        p,
        n_sites,
        rng=stream(5, "benchmark", n_sites, rows, p),
        response="logistic",
    )


def learner_for(drawn: SplitRows, reference: np.ndarray) -> Learner:
    total = float(drawn.sizes.sum())
    estimator = LogisticRegression(C=1 / (PENALTY * total), tol=1e-8, max_iter=1000)
    return Learner(estimator, task="classification", n_levels=2, reference=reference, n_total=total)


def pooled_fit(drawn: SplitRows) -> np.ndarray:
    x, y = drawn.pooled
    fitted = LogisticRegression(C=1 / (PENALTY * len(y)), tol=1e-10, max_iter=5000).fit(x, y)
    return np.append(fitted.coef_[0], fitted.intercept_)


# --------------------------------------------------------------------------- in a plain loop


def by_rounds(drawn: SplitRows, reference: np.ndarray) -> list[np.ndarray]:
    """Averaged coefficients after each round."""
    learner = learner_for(drawn, reference)
    starts: list[Any] = [None] * len(drawn.tables)
    target, path = None, []
    for k in range(ROUNDS + 1):
        rho = rho_of(k, schedule="adaptive", rho=1.0, exponent=0.9) if k else 0.0
        at, coefs = [], []
        for b, (x, y) in enumerate(drawn.tables):
            fitted = learner.fit(x, y, target=target, rho=rho, start=starts[b])
            starts[b] = learner.start_of(fitted)
            at.append(learner.at_reference(fitted))
            coefs.append(np.append(fitted.coef_[0], fitted.intercept_))
        target = averaged(at, drawn.sizes)
        path.append(np.average(coefs, axis=0, weights=drawn.sizes))
    return path


def surrogate(drawn: SplitRows, start: np.ndarray, steps: int) -> list[np.ndarray]:
    """Surrogate likelihood: the first site's loss, corrected by the gradient of all."""
    tables = [(np.column_stack([x, np.ones(len(y))]), y) for x, y in drawn.tables]
    ridge = np.append(np.full(tables[0][0].shape[1] - 1, PENALTY), 0.0)
    shares = drawn.sizes / drawn.sizes.sum()

    def gradient(x: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return x.T @ (expit(x @ theta) - y) / len(y) + ridge * theta

    x1, y1 = tables[0]
    theta, path = start, [start]
    for _ in range(steps):
        whole = sum(w * gradient(x, y, theta) for w, (x, y) in zip(shares, tables, strict=True))
        shift = gradient(x1, y1, theta) - whole

        def loss(t: np.ndarray, shift: np.ndarray = shift) -> tuple[float, np.ndarray]:
            eta = x1 @ t
            value = float(np.mean(np.logaddexp(0, eta) - y1 * eta) + 0.5 * ridge @ t**2)
            return value - float(shift @ t), gradient(x1, y1, t) - shift

        theta = minimize(loss, theta, jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x
        path.append(theta)
    return path


def alternatives() -> list[dict[str, Any]]:
    found = []
    for n_sites, rows, p in ((10, 2000, 50), (50, 2000, 50), (10, 200, 50), (50, 200, 50)):
        drawn = draw(n_sites, rows, p)
        best = pooled_fit(drawn)
        x = drawn.pooled[0]
        covariance = np.cov(x.T, bias=True)
        reference = normal_reference(x.mean(axis=0), covariance, 20 * p, stream(5, "reference", p))

        def away(theta: np.ndarray, best: np.ndarray = best) -> float:
            return float(np.linalg.norm(theta - best) / np.linalg.norm(best))

        rounds = by_rounds(drawn, reference)
        steps = surrogate(drawn, rounds[0], 5)
        found.append(
            {
                "sites": n_sites,
                "rows a site": rows,
                "columns": p,
                "averaging": away(rounds[0]),
                **{f"reference averaging, round {k}": away(rounds[k]) for k in (1, 5, 20)},
                **{f"surrogate likelihood, step {k}": away(steps[k]) for k in (1, 2, 5)},
            }
        )
        print(found[-1])
    return found


# --------------------------------------------------------------------------- on the engine


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    value = function()
    return time.process_time() - begin, value


def cost() -> list[dict[str, Any]]:
    found = []
    for n_sites, rows, p in ((3, 200, 5), (10, 5000, 50), (50, 2000, 50)):
        drawn = draw(n_sites, rows, p)
        names = [f"x{j}" for j in range(p)]
        tables = {}
        for b, (x, y) in enumerate(drawn.tables):
            columns = dict(zip(names, x.T, strict=True))
            tables[f"site-{b:02d}"] = {**columns, "y": np.where(y > 0, "yes", "no")}
        federation = Federation.local(
            tables,
            columns=Columns(features=names, target="y", levels={"y": ("no", "yes")}),
            policy=Policy(foreign_models=True),
        )
        total = float(drawn.sizes.sum())
        estimator = LogisticRegression(C=1 / (PENALTY * total), tol=1e-8, max_iter=1000)
        method = ReferenceAveraging(estimator=estimator, max_rounds=ROUNDS, guard=False)
        run_seconds, run = seconds(lambda m=method, f=federation: m.run(f, seed=1))
        with tempfile.TemporaryDirectory() as folder:
            for name, site in federation.engine.members.items():
                site.home = DiskStore(Path(folder) / name)
            out = Path(folder) / "run"
            disk_seconds, _ = seconds(lambda m=method, f=federation, o=out: m.run(f, seed=1, out=o))
        x = drawn.pooled[0]
        reference = normal_reference(
            x.mean(axis=0), np.cov(x.T, bias=True), 20 * p, stream(5, "reference", p)
        )
        loop_seconds, path = seconds(lambda d=drawn, r=reference: by_rounds(d, r))
        best = pooled_fit(drawn)
        at = np.append(run.result.slopes[0], run.result.intercepts)
        up = sum(line.bytes for line in run.transcript if line.direction != "to-site")
        down = sum(line.bytes for line in run.transcript if line.direction == "to-site")
        found.append(
            {
                "sites": n_sites,
                "rows a site": rows,
                "columns": p,
                "reference rows": int(run.result.n_reference),
                "seconds of the run": run_seconds,
                "seconds with records on disk": disk_seconds,
                "seconds of the same fits in a loop": loop_seconds,
                "ratio": run_seconds / loop_seconds,
                "ratio with records on disk": disk_seconds / loop_seconds,
                "kilobytes a site and round, from it": up / n_sites / (ROUNDS + 1) / 1e3,
                "kilobytes a site and round, to it": down / n_sites / (ROUNDS + 1) / 1e3,
                "distance to the pooled fit": float(
                    np.linalg.norm(at - best) / np.linalg.norm(best)
                ),
                "distance in the loop": float(
                    np.linalg.norm(path[-1] - best) / np.linalg.norm(best)
                ),
            }
        )
        print(found[-1])
    return found[1:]  # in the first one libraries are loaded


def main() -> None:
    path = RESULTS / "reference_averaging.json"
    with threadpool_limits(1):
        found = {"machine": machine(), "cost": cost()}
        known = json.loads(path.read_text()) if "cost" in sys.argv else {}
        found["alternatives"] = known["alternatives"] if known else alternatives()
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

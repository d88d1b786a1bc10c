"""Assisted learning: a joint GLM against the pooled fit, and a test against statsmodels.

``PYTHONPATH=. python benchmarks/assisted_glm.py`` writes results/assisted_glm.json. All in one run,
on one thread, in CPU seconds. The joint fit runs on the local engine with everything that goes with
it (hashes of ids, encryption, ledgers, journal), each time on tables of which no earlier run told
anything; the pooled fits get the columns of both parties at once.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine, peak_gigabytes
from consilience import AssistedGLM, Columns, Federation, Policy
from consilience.assisted.kernels import assistance, glm
from consilience.assisted.kernels.sandwich import sandwich
from consilience.numerics.random import stream
from replications.assisted_glm.in_one_process import fit_jointly

RESULTS = Path(__file__).parent / "results"
SIZES = [(10_000, 20), (100_000, 20), (100_000, 50)]
CORRELATION = 0.5
REPEATS = 3


def draw(n: int, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of both parties, each correlated with one of the other's, and a binary response."""
    rng = stream(4, "assisted benchmark", n, p)
    a = rng.normal(size=(n, p))
    b = CORRELATION * a + np.sqrt(1 - CORRELATION**2) * rng.normal(size=(n, p))
    eta = a @ rng.normal(size=p) * 0.15 + b @ rng.normal(size=p) * 0.15
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(float)
    return a, b, y


def seconds(work: Callable[..., Any], fresh: Callable[[], tuple[Any, ...]] = tuple) -> float:
    """Least CPU time of some repeats, without what `fresh` takes to make each one's arguments."""
    times = []
    for _ in range(REPEATS):
        given = fresh()
        start = time.process_time()
        work(*given)
        times.append(time.process_time() - start)
    return min(times)


def federation(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> Federation:
    """Both parties on the local engine, all directions granted."""
    ids = np.arange(len(y)).astype(str)
    names = {s: [f"{s}{j}" for j in range(a.shape[1])] for s in "ab"}
    tables = {
        "a": pd.DataFrame(a, columns=names["a"]).assign(id=ids, y=y),
        "b": pd.DataFrame(b, columns=names["b"]).assign(id=ids),
    }
    policy = Policy(
        preset="consortium", share_response=True, max_revealed_rank="full", max_runs=1000
    )
    return Federation.local(
        tables,
        columns={
            "a": Columns(id="id", features=names["a"], target="y"),
            "b": Columns(id="id", features=names["b"]),
        },
        policy=policy,
    )


def stages(asked: list[tuple[str, float]]) -> dict[str, float]:
    """Seconds from the first question of a stage to that of the next.

    The rows are put in the matched order when the first question after the matching is answered:
    that counts as training here.
    """
    firsts = {
        "reading and hashing": "opening.read",
        "matching": "align_ids.hash",
        "training": "share",
        "last directions": "settle",
        "fit, errors and outputs": "conclude",
        "end": "end",
    }
    begin = {stage: next(t for step, t in asked if step == name) for stage, name in firsts.items()}
    names = list(firsts)
    return {one: begin[two] - begin[one] for one, two in pairwise(names)}


def joint(n: int, p: int) -> dict[str, Any]:
    """One size: whole runs, the training alone, and pooled fits."""
    import glum

    a, b, y = draw(n, p)
    pooled = np.column_stack([a, b])
    fam = glm.family("binomial")
    taken: list[dict[str, float]] = []

    def fresh() -> tuple[Any, ...]:
        return (federation(a, b, y),)

    def run(sites: Federation, **settings: Any) -> Any:
        asked: list[tuple[str, float]] = []
        how = {"exchange": "turns", **settings}
        method = AssistedGLM(response="share", holdout=0.0, **how)

        def note(kind: str, facts: dict[str, Any]) -> None:
            if kind in ("ask", "done"):
                asked.append((facts.get("step", "end"), time.process_time()))

        done = sites.run(method, seed=1, on_event=note)
        if method.exchange == "turns":
            taken.append(stages(asked))
        return done

    def errors(eta: np.ndarray) -> None:
        sandwich(np.column_stack([np.ones(n), pooled]), y, eta, fam)

    with_intervals = seconds(run, fresh)
    without = seconds(lambda sites: run(sites, interval="none"), fresh)
    done = run(*fresh(), interval="none")
    by_glum = glum.GeneralizedLinearRegressor(
        family="binomial", alpha=0, fit_intercept=True, gradient_tol=1e-10
    )
    row = {
        "n": n,
        "p": p,
        "rounds": done.result.rounds,
        "run": with_intervals,
        "run without intervals": without,
        "run with one message": seconds(lambda sites: run(sites, exchange="auto"), fresh),
        "training on the engine": min(each["training"] for each in taken),
        # Of whole runs with intervals.
        "stages": {k: min(each[k] for each in taken[:REPEATS]) for k in taken[0]},
        "training in process": seconds(lambda: fit_jointly(a, [b], y, fam)),
        "pooled fit": seconds(lambda: glm.fit(pooled, y, fam)),
        "pooled fit with sandwich": seconds(lambda: errors(glm.fit(pooled, y, fam).eta)),
        "pooled fit by glum": seconds(lambda: by_glum.fit(pooled, y)),
        "pooled fit by glum with sandwich": seconds(
            lambda: errors(by_glum.fit(pooled, y).linear_predictor(pooled))
        ),
    }
    eta = done.site("a").values("linear_predictor")
    order = np.argsort(done.site("a").rows)
    exact = glm.fit(pooled, y, fam).eta
    row["largest difference of eta"] = float(np.abs(eta[order] - exact).max())
    return row


def test_speed(n: int = 2000) -> dict[str, float]:
    """Score and Wald tests of five directions against statsmodels' robust Wald test."""
    import statsmodels.api as sm

    a, b, y = draw(n, 6)
    z = b @ assistance.draw_directions(6, 5, stream(1, "directions"))
    fam = glm.family("binomial")
    design = np.column_stack([np.ones(n), a, z])

    def by_statsmodels() -> float:
        fitted = sm.GLM(y, design, family=sm.families.Binomial()).fit(cov_type="HC0")
        matrix = np.eye(design.shape[1])[-5:]
        return float(fitted.wald_test(matrix, scalar=True).statistic)

    ours = assistance.sketch_test(a, z, y, fam)
    return {
        "all four tests": seconds(lambda: assistance.sketch_test(a, z, y, fam)),
        "statsmodels Wald HC0": seconds(by_statsmodels),
        "difference of the statistic": abs(ours.wald - by_statsmodels()),
    }


def main() -> None:
    """Run and write."""
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        rows = [joint(n, p) for n, p in SIZES]
        tests = test_speed()
    found = {"machine": machine(), "joint": rows, "test": tests, "peak GB": peak_gigabytes()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    (RESULTS / "assisted_glm.json").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""Joint precision matrices: time to the same certified gap as gglasso, and how it grows.

``PYTHONPATH=. python benchmarks/joint_precision.py PEER`` writes results/joint_precision.json;
PEER is the python of an environment that has gglasso and threadpoolctl (``uv venv peer``, ``uv pip
install --python peer/bin/python gglasso threadpoolctl``); without it only our side runs. Names of
cases after PEER run these only, and put them into the results that are there.

Both sides minimise the same function (gglasso's lambda1, which must be positive, is 1e-9), start
from the solution of the penalty before (the first from the diagonal), run on one thread in turn,
and stop when the same certificate says that the value is at most 1e-6 p sum n_k above the minimum.
gglasso cannot stop at a gap: its tolerance is lowered from .1 by factors of 10^.5, and only the
first run that is exact enough counts, so that choosing the tolerance costs it nothing. Its ADMM and
its proximal point algorithm are both tried, the faster one counts. Compilation is left out on both
sides. Seconds are CPU seconds.

The last section has default fits of ``SparseQDA``, with the choice of the penalty, where most pairs
of features are linked; no peer has this choice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).parent / "results" / "joint_precision.json"
GAP = 1e-6
BUDGET = 60
"""CPU seconds after which an algorithm of the other side is given up in a case."""
SOLO = (1_000, 300), (5_000, 300)
CASES = {
    "chain, p = 200, .6 of the largest penalty": ("chain", 200, 300, 2, [0.6]),
    "chain, p = 100, path": ("chain", 100, 300, 2, list(np.geomspace(0.95, 0.01, 20))),
    "chain, p = 100, 60 rows, path": ("chain", 100, 60, 2, list(np.geomspace(0.95, 0.02, 20))),
    "chain, p = 200, path": ("chain", 200, 300, 2, list(np.geomspace(0.95, 0.01, 20))),
    "block, p = 100, path": ("block", 100, 1500, 2, list(np.geomspace(0.95, 0.01, 20))),
    "dense, p = 10, path": ("dense", 10, 48, 4, list(np.geomspace(0.95, 0.01, 20))),
}
FITS = "breast cancer, 30 columns", "200 genes, 7 classes", "256 log-periodograms, 5 classes"


def dense_rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and classes of a default fit.

    Genes share ten strong factors, 30 rows a class. Log-periodograms have a level, three peaks
    whose places depend on the class, and logarithms of exponential variables as noise; 3,000 rows.
    """
    from consilience.numerics.random import stream

    if name.startswith("breast"):
        from sklearn.datasets import load_breast_cancer

        x, codes = load_breast_cancer(return_X_y=True)
        return x, codes
    rng = stream(0, "benchmark", name)
    if name.startswith("200"):
        factors = 0.5 * rng.standard_normal((7, 10, 200))
        rows = [
            0.5 * rng.standard_normal(200)
            + rng.standard_normal((30, 10)) @ (0.6 * factors[0] + 0.4 * factor)
            + rng.standard_normal((30, 200))
            for factor in factors
        ]
        return np.concatenate(rows), np.repeat(np.arange(7), 30)
    codes, at = rng.integers(0, 5, 3_000), np.linspace(0, 1, 256)
    x = 12 - 6 * at + rng.standard_normal((3_000, 1))
    for peak in range(3):
        centre = 0.08 + 0.05 * codes + 0.22 * peak + 0.03 * rng.standard_normal(3_000)
        height, width = 4 - peak + 0.6 * rng.standard_normal(3_000), 0.04 + 0.01 * codes
        x = x + height[:, None] * np.exp(-(((at - centre[:, None]) / width[:, None]) ** 2))
    return x + np.log(rng.exponential(size=x.shape)), codes


def default_fit(name: str) -> dict[str, Any]:
    """CPU seconds of a default fit, with what it found."""
    from consilience import SparseQDA

    x, y = dense_rows(name)
    SparseQDA(smallest=0.01).fit(x[:, :16], y)  # compiles
    started = time.process_time()
    fitted = SparseQDA().fit(x, y)
    return {
        "seconds": round(time.process_time() - started, 2),
        "links": fitted.path_.n_links.tolist(),
        "wrong": fitted.path_.cv_wrong.sum(axis=0).tolist(),
        "alpha": fitted.alpha_,
        "gap": fitted.gap_,
    }


def simulate(design: str, p: int, n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and classes: bands of varied strength, a block of four in class 2, or mixtures.

    The mixtures ("dense"), few features that are all linked at most penalties, have the size of
    four vowels.
    """
    from consilience.numerics.random import stream

    rng = stream(0, "benchmark", design, p, n)
    rows = []
    for k in range(classes):
        if design == "dense":
            mixing = np.eye(p) + 0.4 * rng.standard_normal((p, p))
            rows.append(rng.standard_normal((n, p)) @ mixing)
            continue
        precision = np.eye(p)
        if design == "block":
            precision[:4, :4] = 0.8 * k + (1 - 0.8 * k) * np.eye(4)
        else:
            for offset in (1, 2, 3):
                band = np.diag(0.3 * rng.uniform(0.5, 1, p - offset), offset)
                precision += band + band.T
            lowest = np.linalg.eigvalsh(precision)[0]
            precision += max(0.0, 0.1 - lowest) * np.eye(p)
        factor = np.linalg.cholesky(precision)
        rows.append(np.linalg.solve(factor.T, rng.standard_normal((p, n))).T)
    return np.concatenate(rows), np.repeat(np.arange(classes), n)


def ours(case: tuple[str, int, int, int, list[float]]) -> dict[str, Any]:
    """CPU seconds at each penalty, from the rows."""
    from consilience.discriminant.kernels.joint_precision import (
        RowMoments,
        fit_precisions,
        largest_penalty,
    )

    design, p, n, classes, ratios = case
    x, codes = simulate(design, p, n, classes)
    lam_max = largest_penalty(RowMoments.of(x, codes, classes))
    for compiling, ratio in ((min(p, 12), 0.9), (min(p, 40), 0.1)):
        few = RowMoments.of(x[:, :compiling], codes, classes)
        last = fit_precisions(few, ratio * largest_penalty(few))
        fit_precisions(few, 0.05 * largest_penalty(few), start=last)
    seconds, gaps, links, last = [], [], [], None
    for ratio in ratios:
        started = time.process_time()
        last = fit_precisions(
            RowMoments.of(x, codes, classes), ratio * lam_max, start=last, tol=GAP
        )
        seconds.append(time.process_time() - started)
        gaps.append(last.relative_gap)
        links.append(last.n_links)
    return {"seconds": seconds, "gaps": gaps, "links": links, "lam_max": lam_max}


def alone(p: int, n: int) -> dict[str, Any]:
    """CPU seconds of one fit from the rows at .6 of the largest penalty."""
    from consilience.discriminant.kernels.joint_precision import (
        RowMoments,
        fit_precisions,
        largest_penalty,
    )

    x, codes = simulate("chain", p, n, 2)
    started = time.process_time()
    moments = RowMoments.of(x, codes, 2)
    lam_max = largest_penalty(moments)
    middle = time.process_time()
    fitted = fit_precisions(moments, 0.6 * lam_max)
    return {
        "features": p,
        "rows_per_class": n,
        "largest_penalty_seconds": round(middle - started, 3),
        "fit_seconds": round(time.process_time() - middle, 3),
        "largest_block": max((len(block) for block in fitted.blocks), default=1),
        "links": fitted.n_links,
        "relative_gap": fitted.relative_gap,
    }


def certified(s: np.ndarray, n: np.ndarray, lam: float, found: list[np.ndarray]) -> float:
    """Relative gap of the best primal and the best dual point among candidates."""
    from consilience.discriminant.kernels.joint_precision_block import (
        Problem,
        dual_value,
        evaluate,
    )

    problem = Problem(s, n, lam)
    points = [evaluate(problem, 0.5 * (t + t.transpose(0, 2, 1))) for t in found]
    valid = [point for point in points if point is not None]
    if not valid:
        return float("inf")
    dual = max(dual_value(problem, point) for point in valid)
    return (min(point.objective for point in valid) - dual) / problem.scale


def peer(folder: Path) -> None:
    """gglasso on the covariances in a folder; runs in its own environment."""
    from gglasso.solver.admm_solver import ADMM_MGL  # type: ignore[import-not-found]
    from gglasso.solver.ppdna_solver import warmPPDNA  # type: ignore[import-not-found]

    task = np.load(folder / "task.npz")
    s, n, lams = task["s"], task["n"], task["lams"]
    if not (n == n[0]).all():
        raise ValueError("gglasso's objective gives every class the same weight")

    def admm(lam: float, start: dict[str, Any], tol: float) -> dict[str, Any]:
        return ADMM_MGL(
            s, 1e-9, lam / n[0], "GGL", start["Omega"], start["Theta"], start["X"],
            tol=tol * 1e-3, rtol=tol, max_iter=20_000,
        )[0]  # fmt: skip

    def proximal(lam: float, start: dict[str, Any], tol: float) -> dict[str, Any]:
        return warmPPDNA(
            s, 1e-9, lam / n[0], "GGL", start["Omega"], start["Theta"], start["X"], eps=tol
        )[0]  # fmt: skip

    def give_up(*_: Any) -> None:
        raise TimeoutError(f"not compiled and solved within {BUDGET // 2} CPU seconds")

    signal.signal(signal.SIGPROF, give_up)
    out: dict[str, Any] = {}
    for name, solver in (("admm", admm), ("ppdna", proximal)):
        eye = np.stack([np.diag(1.0 / np.diag(m)) for m in s])
        last = {"Omega": eye, "Theta": eye.copy(), "X": np.zeros_like(eye)}
        try:
            signal.setitimer(signal.ITIMER_PROF, BUDGET / 2)  # it may never reach its tolerance
            solver(float(lams[len(lams) // 2]), last, 1e-5)  # compiles
            signal.setitimer(signal.ITIMER_PROF, 0)
        except Exception as error:  # noqa: BLE001
            out[name] = {"error": repr(error)}
            continue
        rows, begun = [], time.process_time()
        for lam in lams:
            row = {"seconds": float("inf"), "gap": float("inf"), "tol": 0.0}
            if time.process_time() - begun > BUDGET:
                rows.append(row)
                continue
            for tol in 10.0 ** -np.arange(1, 9.5, 0.5):
                started = time.process_time()
                found = solver(float(lam), last, float(tol))
                seconds = time.process_time() - started
                gap = certified(s, n, float(lam), [found["Theta"], found["Omega"]])
                row = {"seconds": seconds, "gap": gap, "tol": float(tol)}
                if gap <= GAP:
                    break
            last = {key: found[key].copy() for key in ("Omega", "Theta", "X")}
            rows.append(row)
            print(name, lam, row, file=sys.stderr, flush=True)
        out[name] = {key: [row[key] for row in rows] for key in ("seconds", "gap", "tol")}
    (folder / "result.json").write_text(json.dumps(out))


def ask_peer(python: str, case: tuple[str, int, int, int, list[float]], lam_max: float) -> Any:
    """Run gglasso in its environment."""
    design, p, n, classes, ratios = case
    x, codes = simulate(design, p, n, classes)
    s = np.stack([np.cov(x[codes == k], rowvar=False, bias=True) for k in range(classes)])
    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder) / "task.npz",
            s=s, n=np.full(classes, float(n)), lams=np.array(ratios) * lam_max,
        )  # fmt: skip
        source = str(Path(__file__).parents[1] / "src")
        subprocess.run(
            [python, __file__, "--peer", folder],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": source},
        )
        return json.loads((Path(folder) / "result.json").read_text())


def summary(mine: dict[str, Any], theirs: Any) -> dict[str, Any]:
    """Both sides, and the ratios of the faster algorithm of the other side."""
    out = {
        "links": mine["links"],
        "our_seconds": [round(v, 4) for v in mine["seconds"]],
        "our_largest_gap": max(mine["gaps"]),
        "our_total": round(sum(mine["seconds"]), 3),
    }
    if theirs is not None:
        usable = {name: r for name, r in theirs.items() if "seconds" in r}
        best = np.min([r["seconds"] for r in usable.values()], axis=0)
        out |= {
            "gglasso": theirs,
            "gglasso_total": round(float(best.sum()), 3),
            "ratio_total": round(float(best.sum()) / sum(mine["seconds"]), 1),
            "ratio_smallest": round(float(np.min(best / np.array(mine["seconds"]))), 2),
        }
    return out


def main(python: str | None, names: list[str]) -> None:
    from benchmarks.ensemble_patterns import machine

    result: dict[str, Any] = {"machine": machine(), "gap": GAP, "cases": {}, "alone": []}
    if names:
        result = json.loads(RESULTS.read_text())
    for name in [n for n in names or CASES if n not in FITS]:
        case = CASES[name]
        mine = ours(case)
        theirs = ask_peer(python, case, mine["lam_max"]) if python else None
        result["cases"][name] = summary(mine, theirs)
        short = ("our_total", "our_largest_gap", "gglasso_total", "ratio_total", "ratio_smallest")
        print(name, {key: result["cases"][name].get(key) for key in short}, flush=True)
    result.setdefault("fits", {})
    for name in [n for n in names or FITS if n in FITS]:
        result["fits"][name] = default_fit(name)
        print(name, result["fits"][name], flush=True)
    for p, n in () if names else SOLO:
        result["alone"].append(alone(p, n))
        print(result["alone"][-1], flush=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    with threadpool_limits(1):
        if sys.argv[1:2] == ["--peer"]:
            peer(Path(sys.argv[2]))
        else:
            main(sys.argv[1] if len(sys.argv) > 1 else None, sys.argv[2:])

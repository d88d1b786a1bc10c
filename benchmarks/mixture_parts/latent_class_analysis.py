"""Latent class analysis against StepMix: the same iterations from the same start, and whole fits.

Both sides run without pseudo-counts. ``seconds`` are CPU seconds on one thread, ours with coding
and collecting distinct rows; compilation and loading are left out on both sides.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from consilience.clustering.kernels.multinomial_mixture import (
    CategoryPatterns,
    MultinomialMixture,
    em_step,
    fit_multinomial_mixture,
)
from consilience.numerics.random import stream

PEER = Path(__file__).parent / "stepmix_fits.py"
TOL = 1e-8
CASES: dict[str, dict[str, Any]] = {
    "10,000 x 10, two levels, complete": {"n": 10_000, "levels": (2,) * 10, "k": 3, "starts": 20},
    "10,000 x 10, two to five levels, a tenth missing": {
        "n": 10_000,
        "levels": (2, 3, 4, 5, 3, 2, 3, 4, 2, 3),
        "k": 4,
        "gaps": 0.1,
        "starts": 20,
    },
    "20,000 x 30, two levels, complete": {
        "n": 20_000,
        "levels": (2,) * 30,
        "k": 4,
        "starts": 5,
    },
    "100,000 x 10, two to five levels, a tenth missing": {
        "n": 100_000,
        "levels": (2, 3, 4, 5, 3, 2, 3, 4, 2, 3),
        "k": 4,
        "gaps": 0.1,
        "starts": 0,
    },
}
STEPS = 50


def drawn(n: int, levels: tuple[int, ...], k: int, gaps: float) -> np.ndarray:
    rng = stream(0, "latent-class-analysis", n, len(levels))
    tables = [rng.dirichlet(np.ones(size), k) for size in levels]
    truth = MultinomialMixture(rng.dirichlet(np.full(k, 5.0)), np.concatenate(tables, 1), levels)
    codes, _ = truth.sample(n, rng)
    codes[rng.random(codes.shape) < gaps] = -1
    return codes


def start_of(codes: np.ndarray, levels: tuple[int, ...], given: np.ndarray) -> MultinomialMixture:
    """Equal shares, and the level probabilities that responsibilities give."""
    tables = []
    for j, size in enumerate(levels):
        seen = codes[:, j] >= 0
        table = np.stack([given[seen & (codes[:, j] == a)].sum(axis=0) for a in range(size)], 1)
        tables.append(table / table.sum(axis=1, keepdims=True))
    k = given.shape[1]
    return MultinomialMixture(np.full(k, 1 / k), np.concatenate(tables, axis=1), levels)


def ours(codes: np.ndarray, levels: tuple[int, ...], given: np.ndarray, starts: int) -> Any:
    k = given.shape[1]
    start = start_of(codes, levels, given)
    em_step(CategoryPatterns.of(codes[:500], levels), pseudo_count=0.0)(start)  # compiles
    begin = time.process_time()
    data = CategoryPatterns.of(codes, levels)
    collected = time.process_time() - begin
    step, model = em_step(data, pseudo_count=0.0), start
    for _ in range(STEPS):
        model = step(model).next
    found: dict[str, Any] = {"model": model, "log_likelihood": step(model).log_likelihood}
    found |= {"seconds": time.process_time() - begin, "collecting": collected}
    found["patterns"] = len(data.codes)
    for name, short in (("fit", 15), ("fit, all starts to the end", 1000)):
        if starts:
            begin = time.process_time()
            fit = fit_multinomial_mixture(
                CategoryPatterns.of(codes, levels),
                k,
                pseudo_count=0.0,
                n_init=starts,
                n_init_iter=short,
                max_iter=1000,
                tol=TOL,
            )
            seconds = round(time.process_time() - begin, 3)
            found[name] = {"log_likelihood": fit.best.log_likelihood, "seconds": seconds}
    return found


def theirs(codes: np.ndarray, measurement: str, given: np.ndarray, starts: int) -> Any:
    python = os.environ.get("STEPMIX_PYTHON")
    if not python:
        return None
    x = codes.astype(np.float64)
    x[codes < 0] = np.nan
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "in.npz", Path(place) / "out.npz"
        settings: dict[str, Any] = {"measurement": measurement, "steps": STEPS}
        np.savez(source, x=x, start=given, starts=starts, tol=TOL, **settings)
        subprocess.run([python, str(PEER), str(source), str(target)], check=True)
        with np.load(target) as arrays:
            return {key: arrays[key] for key in arrays.files}


def same_levels(model: MultinomialMixture, levels: np.ndarray, measurement: str) -> float:
    """Largest difference to StepMix's probabilities, which pad columns or give those of 1."""
    if measurement == "binary":
        return float(np.abs(model.probabilities[:, 1::2] - levels).max())
    width = max(model.n_levels)
    padded = levels.reshape(levels.shape[0], -1, width)
    return max(
        float(np.abs(column - padded[:, j, : column.shape[1]]).max())
        for j, column in enumerate(model.columns)
    )


def case(n: int, levels: tuple[int, ...], k: int, starts: int, gaps: float = 0.0) -> dict[str, Any]:
    codes = drawn(n, levels, k, gaps)
    binary = max(levels) == 2 and not gaps
    measurement = "binary" if binary else "categorical_nan" if gaps else "categorical"
    given = stream(1, "responsibilities", n).dirichlet(np.ones(k), size=n)
    a, b = ours(codes, levels, given, starts), theirs(codes, measurement, given, starts)
    found = {
        "distinct_rows": a["patterns"],
        "collecting_seconds": round(a["collecting"], 4),
        "iterations": STEPS,
        "seconds": {"ours": round(a["seconds"], 4)},
        "fits": {name: found for name, found in a.items() if name.startswith("fit")},
    }
    if b is None:
        return found | {"stepmix": "skipped: STEPMIX_PYTHON names no interpreter"}
    found["seconds"] |= {
        "stepmix": round(float(b["seconds"]), 3),
        "ratio": round(float(b["seconds"]) / a["seconds"], 1),
    }
    found["largest_differences"] = {
        "shares": float(np.abs(a["model"].proportions - b["shares"]).max()),
        "levels": same_levels(a["model"], b["levels"], measurement),
        "log_likelihood": abs(a["log_likelihood"] - float(b["log_likelihood"])),
    }
    if starts:
        seconds = round(float(b["fit_seconds"]), 2)
        found["fits"]["stepmix"] = {
            "log_likelihood": float(b["fit_log_likelihood"]),
            "seconds": seconds,
        }
        found["fits"]["starts"] = starts
    return found


def measured() -> dict[str, Any]:
    """Every case."""
    found = {}
    for name, settings in CASES.items():
        found[name] = case(**settings)
        print(name, found[name], flush=True)
    return found

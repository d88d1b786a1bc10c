"""Regression in latent classes: the kernel against the textbook, whole fits beside their rivals.

``PYTHONPATH=. python benchmarks/latent_class.py`` writes results/latent_class.json, all in one run
on one thread. ``kernel`` or ``fits`` as an argument runs one half and keeps the other.

* ``kernel``: entities a second, 16 classes, for a round with fixed classes (``draw_labels``, with
  and without taking each entity out of its class) and a sequential sweep, from the true labels and
  from random ones; the textbook judges the same entities event by event, once in numpy and once
  compiled. Seconds are CPU seconds, the best of several passes.
* ``fits``: ``LatentClassRegressor``, R's flexmix (EM, same K, no class dropped) and mixed models
  with all coefficients random (statsmodels, R's lme4) on equal data, every fifth event held out.
  The rivals of R need the Debian packages ``r-base-core r-cran-flexmix r-cran-lme4``; without
  Rscript they are skipped and the result says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine
from consilience.datasets.simulate_latent_classes import LatentClasses, simulate_latent_classes
from consilience.latent_regression.estimators.latent_class_regressor import LatentClassRegressor
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    Classes,
    agent_key,
    block_log_likelihood,
    blocks_of,
    classes_of,
    totals_of,
)
from consilience.latent_regression.kernels.sampling import draw_labels, sweep
from consilience.numerics.random import stream
from consilience.numerics.two_way_tables import adjusted_rand_index
from tests.reference.latent_class import event_by_event

RESULTS = Path(__file__).parent / "results" / "latent_class.json"
N_CLASSES, N_AGENTS = 16, 128
KERNELS = ((8, 5, 20_000, 150_000), (32, 5, 6_000, 25_000), (32, 40, 3_000, 12_000))
"""Features, events, entities, and entities a second that are asked for."""
TEXTBOOK_ENTITIES = 40
PASSES = 7


def blocks_for(f: int, events: int, n: int, sigma: float) -> tuple[Blocks, np.ndarray]:
    """Entities of classes with standard normal coefficients, and their classes."""
    rng = stream(0, "benchmark", f, events)
    label = rng.integers(N_CLASSES, size=n)
    entity = np.repeat(np.arange(n), events)
    x = rng.standard_normal((entity.size, f))
    x[:, 0] = 1.0
    w = rng.standard_normal((N_CLASSES, f))
    y = (x * w[label[entity]]).sum(axis=1) + sigma * rng.standard_normal(entity.size)
    agent = np.sort(rng.integers(N_AGENTS, size=n))
    return blocks_of(x, y, entity, agent[entity]), label


def rate(function: Callable[[int], Any], n: int, passes: int = PASSES) -> int:
    """Entities a CPU second in the best pass; the first one loads compiled code."""
    function(0)
    best = np.inf
    for i in range(1, passes + 1):
        started = time.process_time()
        function(i)
        best = min(best, time.process_time() - started)
    return round(n / best)


def judge_all(blocks: Blocks, classes: Classes, n: int, judge: Callable[..., float]) -> np.ndarray:
    """Log densities of the first entities, event by event."""
    out = np.empty((n, classes.n_classes))
    for e in range(n):
        rows = slice(blocks.start[e], blocks.start[e + 1])
        for k in range(classes.n_classes):
            out[e, k] = judge(
                blocks.x[rows],
                blocks.y[rows],
                classes.precision[k],
                classes.linear[k],
                classes.sigma2,
            )
    return out


@cache
def compiled_textbook() -> Callable[..., np.ndarray]:
    """The textbook's loop, compiled: it starts from the inverses, which each class has once."""
    from numba import njit

    def judge(x: Any, y: Any, start: Any, inverses: Any, means: Any, sigma2: Any, n: Any) -> Any:
        k, f = means.shape
        out = np.zeros((n, k))
        inverse, mean, spread = np.empty((f, f)), np.empty(f), np.empty(f)
        for e in range(n):
            for c in range(k):
                inverse[:], mean[:] = inverses[c], means[c]
                for row in range(start[e], start[e + 1]):
                    variance, error = sigma2, y[row]
                    for i in range(f):
                        spread[i] = 0.0
                        for j in range(f):
                            spread[i] += inverse[i, j] * x[row, j]
                        variance += spread[i] * x[row, i]
                        error -= mean[i] * x[row, i]
                    out[e, c] -= 0.5 * (np.log(2 * np.pi * variance) + error * error / variance)
                    for i in range(f):
                        gain = spread[i] / variance
                        mean[i] += gain * error
                        for j in range(f):
                            inverse[i, j] -= gain * spread[j]
        return out

    compiled: Callable[..., np.ndarray] = njit(fastmath=True)(judge)
    return compiled


def kernel_case(f: int, events: int, n: int, wanted: int) -> dict[str, Any]:
    blocks, label = blocks_for(f, events, n, 1.0)
    totals = totals_of(blocks, label, N_CLASSES)
    classes = classes_of(totals, 1.0, 1.0)
    own = np.eye(N_CLASSES)[label]
    base, keys = (
        np.full(N_CLASSES, 1 / N_CLASSES),
        np.array([agent_key(0, i) for i in range(blocks.n_agents)], dtype=np.uint64),
    )
    wrong = stream(1, "labels").integers(N_CLASSES, size=n)
    wrong_totals = totals_of(blocks, wrong, N_CLASSES)

    def draw(own_weights: np.ndarray | None) -> Callable[[int], Any]:
        return lambda r: draw_labels(blocks, classes, label, own_weights, base, 4.0, keys, r)

    def swept(labels: np.ndarray, given: Any) -> Callable[[int], Any]:
        return lambda r: sweep(blocks, labels, given, 1.0, 1.0, base, 4.0, keys, r)

    few = TEXTBOOK_ENTITIES
    found = block_log_likelihood(blocks, classes)[:few]
    exact = judge_all(blocks, classes, few, event_by_event)
    difference = np.abs(found - exact) / np.abs(exact)
    inverses = np.linalg.inv(classes.precision)
    textbook = compiled_textbook()
    some = min(n, 1000)
    speeds = {
        "draw_labels": rate(draw(None), n),
        "draw_labels_own_removed": rate(draw(own), n),
        "sweep_settled": rate(swept(label, totals), n),
        "sweep_random_labels": rate(swept(wrong, wrong_totals), n),
        "textbook_numpy": rate(
            lambda r: judge_all(blocks, classes, few, lambda *a: event_by_event(*a, exact=False)),
            few,
            2,
        ),
        "textbook_compiled": rate(
            lambda r: textbook(blocks.x, blocks.y, blocks.start, inverses, classes.mean, 1.0, some),
            some,
            3,
        ),
    }
    return {
        "features": f,
        "events": events,
        "classes": N_CLASSES,
        "entities": n,
        "entities_per_second": speeds,
        "entities_per_second_wanted": wanted,
        "ratio_to_numpy_textbook": round(speeds["draw_labels"] / speeds["textbook_numpy"], 1),
        "ratio_to_compiled_textbook": round(speeds["draw_labels"] / speeds["textbook_compiled"], 1),
        "largest_relative_difference": float(difference.max()),
    }


def accuracy() -> list[dict[str, Any]]:
    """Largest relative difference to the textbook in wide arithmetic, by noise."""
    rows = []
    for sigma in (0.05, 0.2, 1.0, 5.0):
        worst = 0.0
        for f, events, _, _ in KERNELS:
            blocks, label = blocks_for(f, events, 320, sigma)
            classes = classes_of(totals_of(blocks, label, N_CLASSES), sigma**2, 1.0)
            found = block_log_likelihood(blocks, classes)[:15]
            exact = judge_all(blocks, classes, 15, event_by_event)
            worst = max(worst, float((np.abs(found - exact) / np.abs(exact)).max()))
        rows.append({"sigma": sigma, "largest_relative_difference": worst})
    return rows


def fit_case(
    k: int, f: int, agents: int, events: int, seed: int, *, mixed: bool, repeats: int
) -> dict[str, Any]:
    """One simulated table, every model on the same training events."""
    drawn = simulate_latent_classes(
        k,
        rng=stream(seed, "benchmark fits", k, f),
        n_agents=agents,
        n_entities=10,
        n_events=events,
        n_features=f,
        sigma=0.5,
    )
    train = drawn.events.fold != 0
    models = {"latent_class_regressor": ours(drawn, train, k, seed)}
    if mixed:
        models["statsmodels_mixed"] = statsmodels_mixed(drawn, train)
    models |= from_r(drawn, train, k, repeats, mixed)
    oracle = squared_error(drawn, train, drawn.expected(drawn.events, drawn.oracle(train)))
    for model in models.values():
        if "mse" in model:
            model["mse_relative_to_oracle"] = round(model.pop("mse") / oracle, 4)
    return {
        "classes": k,
        "features": f,
        "entities": len(set(drawn.events.entity)),
        "training_events": int(train.sum()),
        "seed": seed,
        "models": models,
    }


def squared_error(drawn: LatentClasses, train: np.ndarray, predicted: np.ndarray) -> float:
    return float(((drawn.events.y - predicted)[~train] ** 2).mean())


def ours(drawn: LatentClasses, train: np.ndarray, k: int, seed: int) -> dict[str, Any]:
    events, part = drawn.events, drawn.events.take(train)
    model = LatentClassRegressor(k, random_state=seed)
    started = time.perf_counter()
    model.fit(part.x, part.y, entity=part.entity, agent=part.agent)
    seconds = time.perf_counter() - started
    predicted = model.predict(events.x, entity=events.entity, agent=events.agent)
    classes = model.predict_proba(events.x, entity=events.entity, agent=events.agent)
    return {
        "seconds": round(seconds, 3),
        "mse": squared_error(drawn, train, predicted),
        "adjusted_rand": round(adjusted_rand_index(classes.argmax(axis=1), events.label), 4),
        "restarts": len(model.log_marginals_),
    }


def statsmodels_mixed(drawn: LatentClasses, train: np.ndarray) -> dict[str, Any]:
    """All coefficients random by entity, restricted maximum likelihood."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    events = drawn.events
    design = np.column_stack([np.ones(len(events)), events.x])
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedLM(
            events.y[train], design[train], groups=events.entity[train], exog_re=design[train]
        ).fit()
    seconds = time.perf_counter() - started
    effects = np.array([np.asarray(fitted.random_effects[e]) for e in events.entity])
    predicted = (design * (np.asarray(fitted.fe_params) + effects)).sum(axis=1)
    return {
        "seconds": round(seconds, 3),
        "mse": squared_error(drawn, train, predicted),
        "converged": bool(fitted.converged),
    }


def from_r(
    drawn: LatentClasses, train: np.ndarray, k: int, repeats: int, mixed: bool
) -> dict[str, Any]:
    """Fits of R on the same events; a reason instead where R is not installed."""
    if shutil.which("Rscript") is None:
        reason = "Rscript is not installed (Debian: r-base-core r-cran-flexmix r-cran-lme4)"
        return {"flexmix": {"skipped": reason}}
    events = drawn.events
    frame = events.to_frame().drop(columns="agent").assign(train=train.astype(int))
    with tempfile.TemporaryDirectory() as folder:
        table, answer = Path(folder) / "table.csv", Path(folder) / "answer.csv"
        frame.to_csv(table, index=False)
        done = subprocess.run(
            [
                "Rscript",
                str(Path(__file__).with_suffix(".R")),
                *(str(table), str(answer), str(k), str(repeats), "mixed" if mixed else "no"),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        found = pd.read_csv(answer)
    said = [line.split() for line in done.stdout.splitlines() if line.strip()]
    models: dict[str, Any] = {}
    for name, seconds, *extra in (words for words in said if words[0] in found):
        models[name] = {
            "seconds": round(float(seconds), 3),
            "mse": squared_error(drawn, train, found[name].to_numpy()),
        }
        label = f"{name}_label"
        if label in found:
            rand = adjusted_rand_index(found[label].to_numpy(), events.label)
            models[name] |= {"adjusted_rand": round(rand, 4)}
            models[name]["starts" if name == "flexmix_best" else "iterations"] = int(extra[0])
    return models


def r_versions() -> str | None:
    """Versions of R, flexmix and lme4; None without R."""
    if shutil.which("Rscript") is None:
        return None
    said = "cat(R.version.string, ', flexmix ', as.character(packageVersion('flexmix')), "
    said += "', lme4 ', as.character(packageVersion('lme4')), sep = '')"
    done = subprocess.run(["Rscript", "-e", said], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def fits() -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_case(2, 3, 10, 5, 0, mixed=False, repeats=1)  # loads libraries
        return [
            *(fit_case(4, 4, 40, 10, seed, mixed=True, repeats=5) for seed in range(3)),
            *(fit_case(8, 8, 100, 20, seed, mixed=False, repeats=5) for seed in range(3)),
        ]


def main(parts: list[str]) -> None:
    report = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    report["machine"] = machine() | {"r": r_versions()}
    if "kernel" in parts:
        report["kernel"] = [kernel_case(*case) for case in KERNELS]
        report["accuracy"] = accuracy()
    if "fits" in parts:
        report["fits"] = fits()
    text = json.dumps(report, indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1:] or ["kernel", "fits"])

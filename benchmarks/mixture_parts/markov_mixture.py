"""Mixtures of Markov chains beside a textbook EM and hmmlearn: the same steps from the same start.

All sides run without pseudo-counts. The model of the peers is the same: hmmlearn's hidden Markov
model of K S states in K blocks, with certain emissions, is what seqHMM (Helske and Helske 2019)
fits as a mixture of Markov models, by forward and backward recursions over every time point.
``dense`` is the step that counts of each sequence allow without looking at which are zero: two
matrix products by BLAS. ``textbook`` goes through a few of the sequences one by one.
``seconds`` are CPU seconds on one thread, ours with counting; compilation is left out.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from consilience.clustering.kernels.markov_mixture import (
    MarkovParameters,
    em_step,
    events_of,
    fit_markov_mixture,
)
from consilience.clustering.kernels.mixtures import climb
from consilience.clustering.kernels.sequences import Sequences
from consilience.numerics.random import stream
from replications.ensemble_clustering.simulate_sequences import LONG, SHORT, simulate_sequences
from tests.reference import markov_mixture as textbook

PEER = Path(__file__).parent / "hmm_fits.py"
TEXTBOOK = 100
CASES: dict[str, dict[str, Any]] = {
    "5,322 of length 20 to 40, 5 states, 4 classes": {"steps": 20},
    "5,322 of length 4 to 16, 5 states, 4 classes": {"steps": 20, "lengths": SHORT},
    "100,000 of length 30, 10 states, 6 classes": {
        "steps": 10,
        "sizes": (100_000,),
        "lengths": (30, 30),
        "n_states": 10,
        "n_classes": 6,
        "peer": 5_000,
        "fit": True,
    },
}


def drawn_start(k: int, s: int) -> MarkovParameters:
    rng = stream(1, "start", k, s)
    return MarkovParameters(
        rng.dirichlet(np.ones(s), k), rng.dirichlet(np.ones(s), (k, s)), np.full(k, 1 / k)
    )


def dense(wide: np.ndarray, start: MarkovParameters, steps: int) -> tuple[float, float]:
    """Log likelihood before the last step, and seconds of all steps (without counting)."""
    k, s = start.initial.shape
    n = len(wide)
    table = np.zeros((n, s + s * s))
    table[np.arange(n), wide[:, 0]] = 1.0
    for t in range(1, wide.shape[1]):
        rows = np.flatnonzero(wide[:, t] >= 0)
        np.add.at(table, (rows, s + wide[rows, t - 1] * s + wide[rows, t]), 1.0)
    u, big, shares = start.initial, start.transition, start.proportions
    likelihood = 0.0
    begin = time.process_time()
    for _ in range(steps):
        chances = np.log(np.column_stack([u, big.reshape(k, -1)]))
        joint = table @ chances.T + np.log(shares)
        top = joint.max(axis=1, keepdims=True)
        weights = np.exp(joint - top)
        total = weights.sum(axis=1, keepdims=True)
        likelihood = float((top + np.log(total)).sum())
        weights /= total
        counts = weights.T @ table
        u = counts[:, :s] / counts[:, :s].sum(axis=1, keepdims=True)
        big = counts[:, s:].reshape(k, s, s)
        big = big / big.sum(axis=2, keepdims=True)
        shares = weights.mean(axis=0)
    return likelihood, time.process_time() - begin


def theirs(sequences: Sequences, start: MarkovParameters, steps: int) -> Any:
    python = os.environ.get("HMMLEARN_PYTHON")
    if not python:
        return None
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "in.npz", Path(place) / "out.npz"
        np.savez(
            source,
            codes=sequences.codes,
            lengths=sequences.lengths,
            initial=start.initial,
            transition=start.transition,
            shares=start.proportions,
            n_iter=steps,
        )
        subprocess.run([python, str(PEER), str(source), str(target)], check=True)
        with np.load(target) as arrays:
            return {key: arrays[key] for key in arrays.files}


def ours(sequences: Sequences, start: MarkovParameters, steps: int) -> tuple[Any, float, float]:
    begin = time.process_time()
    events = events_of(sequences)
    counting = time.process_time() - begin
    found = climb(em_step(events, pseudo_count=0.0), start, max_iter=steps, tol=0.0)
    return found, counting, time.process_time() - begin


def against_textbook(sequences: Sequences, start: MarkovParameters) -> dict[str, Any]:
    """Two steps over the first few sequences."""
    few = sequences.take(np.arange(TEXTBOOK))
    pieces = [piece.tolist() for piece in np.split(few.codes, few.offsets[1:-1])]
    parameters = (start.initial, start.transition, start.proportions)
    begin = time.process_time()
    trace, *after = textbook.em(pieces, [1.0] * len(few), *parameters, pseudo_count=0.0, n_iter=2)
    seconds = time.process_time() - begin
    found, _, own = ours(few, start, 2)
    differences = [
        float(np.abs(a - b).max())
        for a, b in zip(
            (found.parameters.initial, found.parameters.transition, found.parameters.proportions),
            after,
            strict=True,
        )
    ]
    return {
        "sequences": len(few),
        "seconds": {"ours": round(own, 5), "textbook": round(seconds, 3)},
        "ratio": round(seconds / own),
        "largest_difference": max(differences),
        "log_likelihood_difference": float(np.abs(np.array(trace) - found.trace[:2]).max()),
    }


def against_hmmlearn(
    sequences: Sequences, start: MarkovParameters, steps: int
) -> dict[str, Any] | str:
    peer = theirs(sequences, start, steps)
    if peer is None:
        return "skipped: HMMLEARN_PYTHON names no interpreter"
    found, _, own = ours(sequences, start, steps)
    quickest = min(float(peer["log_seconds"]), float(peer["scaling_seconds"]))
    differences = [
        float(np.abs(peer["log_" + name] - value).max())
        for name, value in (
            ("initial", found.parameters.initial),
            ("transition", found.parameters.transition),
            ("shares", found.parameters.proportions),
        )
    ]
    return {
        "sequences": len(sequences),
        "steps": steps,
        "seconds": {
            "ours": round(own, 4),
            "hmmlearn, log": round(float(peer["log_seconds"]), 3),
            "hmmlearn, scaling": round(float(peer["scaling_seconds"]), 3),
        },
        "ratio": round(quickest / own, 1),
        "largest_difference": max(differences),
        "log_likelihood_difference": float(np.abs(peer["log_history"] - found.trace[:-1]).max()),
    }


def case(steps: int, peer: int | None = None, fit: bool = False, **design: Any) -> dict[str, Any]:
    data = simulate_sequences(rng=stream(0, "sequences"), **{"lengths": LONG, **design})
    sequences = Sequences.of(data.wide, data.n_states)
    start = drawn_start(len(data.initial), data.n_states)
    ours(sequences.take(np.arange(50)), start, 1)  # compiles
    found, counting, seconds = ours(sequences, start, steps)
    likelihood, dense_seconds = dense(data.wide, start, steps)
    few = sequences if peer is None else sequences.take(np.arange(peer))
    answer: dict[str, Any] = {
        "distinct_counts": len(events_of(sequences)),
        "steps": steps,
        "counting_seconds": round(counting, 4),
        # The step at which EM ends is computed too.
        "seconds_a_step": {
            "ours": round((seconds - counting) / (steps + 1), 5),
            "dense": round(dense_seconds / steps, 5),
        },
        "dense_log_likelihood_difference": abs(likelihood - float(found.trace[-2])),
        "hmmlearn": against_hmmlearn(few, start, steps if peer is None else 3),
        "textbook": against_textbook(sequences, start),
    }
    if fit:
        begin = time.process_time()
        whole = fit_markov_mixture(events_of(sequences), start.n_classes, seed=0)
        answer["fit of 40 starts, seconds"] = round(time.process_time() - begin, 2)
        answer["start_spread"] = whole.start_spread.tolist()
    return answer


def measured() -> dict[str, Any]:
    """Every case."""
    found = {}
    for name, settings in CASES.items():
        found[name] = case(**settings)
        print(name, found[name], flush=True)
    return found

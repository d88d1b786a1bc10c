"""What is measured of subtypes in sequences and in tables of categories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_SECONDS = 1.0
"""Seconds of one iteration on 100,000 sequences of length 30, 10 states and 6 classes."""
LARGEST = "100,000 of length 30, 10 states, 6 classes"
PEERS = ("textbook", "hmmlearn")

TEXT = """\
Sequences and categories: mixtures of Markov chains (Duan et al., arXiv 2409.08396, sequence data)
and latent classes, as local models of ensemble clustering. Bounds are ours; each table's page says
what its figures are and why one is missed. "ensemble_minus_oracle": adjusted Rand index less that
under the true parameters; "ensemble_over_local": differences between sites of the classes'
transition matrices, over those of two separate local fits.
"""
SPEED = """\
## Speed of EM on sequences and categories

From `benchmarks/mixtures.py`: the same iterations from the same start, CPU seconds on one thread.
Ratios are of times on the same sequences: as many as stand in brackets, where that is not all.
"""


def ratio(name: str, found: dict[str, Any]) -> str:
    """Return how many times longer a peer takes, and on how many sequences if not on all."""
    n = f"{found['sequences']:,}"
    part = "" if name.startswith(f"{n} ") else f" ({n})"
    return f"{found['ratio']:,.0f}{part}"


def speed(root: Path) -> Iterator[str]:
    """Yield figures of the benchmark, if there is one."""
    path = root / "benchmarks/results/mixtures.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    chains, classes = found.get("markov_mixture"), found.get("latent_class_analysis")
    if not chains or not classes:
        yield "Not measured yet."
        return
    machine = found["machine"]
    yield f"Machine: {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}."
    yield ""
    yield "| sequences | seconds of an iteration | wanted | textbook / ours | hmmlearn / ours | |"
    yield "|---|---|---|---|---|---|"
    for name, case in chains.items():
        seconds = case["seconds_a_step"]["ours"]
        bound = f"at most {MOST_SECONDS:g}" if name == LARGEST else ""
        verdict = ("met" if seconds <= MOST_SECONDS else "**missed**") if bound else ""
        times = [ratio(name, case[peer]) if peer in case else "" for peer in PEERS]
        yield f"| {name} | {seconds:.4f} | {bound} | {' | '.join(times)} | {verdict} |"
    yield ""
    yield "| rows of categories | seconds of all iterations | StepMix / ours |"
    yield "|---|---|---|"
    for name, case in classes.items():
        taken = case["seconds"]
        times_ours = f"{taken['ratio']:,.0f}" if "ratio" in taken else ""
        yield f"| {name} | {taken['ours']:.4f} | {times_ours} |"

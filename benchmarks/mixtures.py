"""Mixtures of discrete data beside their peers, in one run on one thread.

``PYTHONPATH=. python benchmarks/mixtures.py [PART ...]`` writes results/mixtures.json; parts that
are named replace those of an earlier run. A part is a module
``benchmarks/mixture_parts/<part>.py`` with ``measured() -> dict``.

* ``latent_class_analysis``: `LatentClassAnalysis` against StepMix, which lives in an environment of
  its own: ``python -m venv PLACE && PLACE/bin/pip install stepmix threadpoolctl``, then
  ``STEPMIX_PYTHON=PLACE/bin/python``.
* ``markov_mixture``: `MarkovMixture` against a textbook EM and hmmlearn, in an environment of its
  own too: ``hmmlearn threadpoolctl``, then ``HMMLEARN_PYTHON=PLACE/bin/python``.

Without the peer a part is left as an earlier run with the peer wrote it: ratios are of one run, so
figures of two runs are never put side by side. Where there is no earlier run, the part says that
the peer is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine

RESULTS = Path(__file__).parent / "results" / "mixtures.json"
PARTS = {"latent_class_analysis": "STEPMIX_PYTHON", "markov_mixture": "HMMLEARN_PYTHON"}
"""Parts, and the variables that name the interpreters of their peers."""


def kept(part: str, report: dict[str, Any], environment: Mapping[str, str]) -> str:
    """Say why a part is not measured: it would overwrite a peer's figures by none; else ""."""
    if environment.get(PARTS[part]) or part not in report:
        return ""
    if "skipped: " in json.dumps(report[part]):
        return ""
    return (
        f"{part}: {PARTS[part]} names no interpreter, so the figures of the run with the peer are "
        "kept as they are; name one, or remove the part from the file, to measure again"
    )


def main(names: list[str]) -> None:
    report = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for part in names or PARTS:
        why = kept(part, report, os.environ)
        print(why or part, flush=True)
        if why:
            continue
        report["machine"] = machine()
        report[part] = importlib.import_module(f"benchmarks.mixture_parts.{part}").measured()
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1:])

"""Mixtures of discrete data beside their peers, in one run on one thread.

``PYTHONPATH=. python benchmarks/mixtures.py [PART ...]`` writes results/mixtures.json; parts that
are named replace those of an earlier run. A part is a module
``benchmarks/mixture_parts/<part>.py`` with ``measured() -> dict``.

* ``latent_class_analysis``: `LatentClassAnalysis` against StepMix, which lives in an environment of
  its own: ``python -m venv PLACE && PLACE/bin/pip install stepmix threadpoolctl``, then
  ``STEPMIX_PYTHON=PLACE/bin/python``. Without it the part says that the peer is missing.
* ``markov_mixture``: `MarkovMixture` against a textbook EM and hmmlearn, in an environment of its
  own too: ``hmmlearn threadpoolctl``, then ``HMMLEARN_PYTHON=PLACE/bin/python``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine

RESULTS = Path(__file__).parent / "results" / "mixtures.json"
PARTS = ("latent_class_analysis", "markov_mixture")


def main(names: list[str]) -> None:
    report = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    report["machine"] = machine()
    for part in names or PARTS:
        print(part, flush=True)
        report[part] = importlib.import_module(f"benchmarks.mixture_parts.{part}").measured()
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1:])

"""How long ``import consilience`` takes, beside the interpreter alone and the heavy libraries.

``PYTHONPATH=. python benchmarks/import_time.py`` writes results/import_time.json: wall seconds of
whole processes, median and range of ten, taken in turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.ensemble_patterns import machine

RESULTS = Path(__file__).parent / "results"
RUNS = 10
PROGRAMS = {
    "interpreter alone": "pass",
    "import consilience": "import consilience",
    "consilience --help": "import sys; sys.argv = ['consilience', '--help']; "
    "from consilience.cli.main import app; app(standalone_mode=False)",
    "first public name (Federation)": "from consilience import Federation",
    "import sklearn.cluster": "import sklearn.cluster",
}


def seconds(program: str) -> float:
    """Wall time of one process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    for program in PROGRAMS.values():
        seconds(program)
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(RUNS):
        for name, program in PROGRAMS.items():
            times[name].append(seconds(program))
    rows = {
        name: {
            "median_seconds": round(statistics.median(t), 3),
            "lowest": round(min(t), 3),
            "highest": round(max(t), 3),
        }
        for name, t in times.items()
    }
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine(), "processes": rows}
    (RESULTS / "import_time.json").write_text(json.dumps(content, indent=1) + "\n")
    for name, row in rows.items():
        print(f"{name:32} {row['median_seconds']:.3f} s ({row['lowest']:.3f}-{row['highest']:.3f})")


if __name__ == "__main__":
    main()

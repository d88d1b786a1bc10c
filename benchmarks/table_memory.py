"""Peak memory and CPU seconds of a run over one table in a file, under each preset.

``PYTHONPATH=. python benchmarks/table_memory.py`` writes results/table_memory.json. Each run is a
process of its own; peaks are of the whole process, with Python and its libraries. "whole" is the
same with the file read as a whole, as small files are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "table_memory.json"
ROWS, COLUMNS = 1_000_000, 10
TALL = 10_000_000, 20
NAMES = [f"x{j}" for j in range(COLUMNS)]


def write(path: Path) -> None:
    """A CSV file of normal numbers, as pandas writes them."""
    import pandas as pd

    rng = np.random.default_rng(0)
    for start in range(0, ROWS, ROWS // 20):
        some = pd.DataFrame(rng.normal(size=(ROWS // 20, COLUMNS)), columns=NAMES)
        some.to_csv(path, mode="a", header=not start, index=False)


def write_tall(path: Path) -> None:
    """A Parquet file of normal numbers, never in memory as a whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(TALL[1])]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for _ in range(40):
            x = rng.normal(size=(TALL[0] // 40, TALL[1]))
            file.write_table(pa.table(list(x.T.copy()), schema=schema))


def measure(path: str, policy: str, large: str, columns: str = str(COLUMNS)) -> None:
    """What the process of its own does: mean and deviation, or nothing but libraries."""
    import pyarrow.compute
    import pyarrow.csv  # noqa: F401

    from consilience import Columns, Federation, MeanAndSD
    from consilience.sites import source_blocks
    from consilience.sites.source import read_source

    source_blocks.LARGE = int(large)
    begun = time.process_time()
    if policy == "reading":
        read_source(path)
    elif policy != "nothing":
        features = [f"x{j}" for j in range(int(columns))]
        federation = Federation.local(
            {"a": path}, columns=Columns(features=features), policy=policy
        )
        MeanAndSD().run(federation, seed=0)
    # Of this process alone; what getrusage says begins with the parent's.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    print(json.dumps({"MB": int(peak) // 1024, "cpu_s": round(time.process_time() - begun, 2)}))


def alone(*arguments: str) -> Any:
    """The same in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    from benchmarks.ensemble_patterns import machine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path)
        found: dict[str, Any] = {"rows": ROWS, "columns": COLUMNS}
        found["table_MB"] = ROWS * COLUMNS * 8 // 2**20
        found["file_MB"] = path.stat().st_size // 2**20
        for what in ("nothing", "reading", "simulation", "consortium", "strict"):
            found[what] = {"blocks": alone(str(path), what, "0")}
            found[what]["whole"] = alone(str(path), what, str(1 << 60))
        write_tall(tall := Path(folder) / "tall.parquet")
        found["tall"] = {"rows": TALL[0], "columns": TALL[1]}
        for what in ("simulation", "consortium"):
            found["tall"][what] = alone(str(tall), what, "0", str(TALL[1]))
    content = {"machine": machine(), **found}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) > 1 else main()

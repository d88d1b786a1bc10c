"""How a run grows with its sites and columns, and how often it waits for the disk.

``PYTHONPATH=. python benchmarks/growth.py`` writes results/growth.json: CPU seconds of runs on the
local engine with records in memory, the exponents of their growth, and with every site's home in a
directory the ``fsync`` calls of sites and coordinator by site and round. Of columns a thousand rows
of normal numbers at one site that protects them strictly, from memory and from a CSV file.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from benchmarks.ensemble_patterns import machine
from consilience import Columns, Federation, MeanAndSD, Policy, ReferenceAveraging, Run
from consilience.numerics.random import stream
from consilience.protocol.method import Method
from consilience.sites.site_store import DiskStore

RESULTS = Path(__file__).parent / "results"
ROWS, NAMES = 60, ("a", "b", "c")
METHODS: dict[str, tuple[Callable[[], Method[Any]], tuple[int, ...], int]] = {
    "mean-and-sd": (MeanAndSD, (3, 10, 30, 100, 300, 1000), 300),
    "reference-averaging": (
        lambda: ReferenceAveraging(estimator=Ridge(), max_rounds=10, guard=False),
        (3, 10, 30, 100, 300),
        50,
    ),
}
"""Sites of the runs in memory, and of the one on disk."""


def federation_of(n_sites: int) -> Federation:
    tables = {}
    for i in range(n_sites):
        x = stream(3, "growth", i).normal(size=(ROWS, 4))
        columns = dict(zip(NAMES, x.T, strict=False))
        tables[f"site-{i:04d}"] = {**columns, "y": x[:, 3] + x[:, 0]}
    columns = Columns(features=NAMES, target="y")
    return Federation.local(tables, columns=columns, policy=Policy(foreign_models=True))


def measured(federation: Federation, method: Method[Any], out: Path | None = None) -> Any:
    begin = time.process_time()
    run: Run[Any] = method.run(federation, seed=1, out=out)
    return time.process_time() - begin, max(line.round for line in run.transcript)


def waits(n_sites: int, method: Method[Any]) -> dict[str, Any]:
    """Count waits for the disk of a site and round, at the sites and at the coordinator."""
    counted, plain = {"sites": 0, "coordinator": 0}, os.fsync
    with tempfile.TemporaryDirectory() as folder:
        federation = federation_of(n_sites)
        homes = os.path.realpath(folder) + "/homes"
        for name, site in federation.engine.members.items():  # type: ignore[attr-defined]
            site.home = DiskStore(Path(homes) / name)

        def fsync(handle: int) -> None:
            at = os.readlink(f"/proc/self/fd/{handle}").startswith(homes)
            counted["sites" if at else "coordinator"] += 1
            plain(handle)

        os.fsync = fsync
        found: dict[str, Any] = {"sites": n_sites}
        try:
            for which in ("first run", "run over the same rows"):
                counted.update(sites=0, coordinator=0)
                took, rounds = measured(federation, method, Path(folder) / which)
                each = {f"waits of {who}": n / n_sites / rounds for who, n in counted.items()}
                found |= {which: {"cpu_seconds": took, **each}, "rounds": rounds}
        finally:
            os.fsync = plain
    return found


def by_columns(folder: Path) -> dict[str, dict[int, float]]:
    """CPU seconds of mean and deviation, with reading."""
    took: dict[str, dict[int, float]] = {"from memory": {}, "from CSV": {}}
    for p in (10, 100, 1_000, 10_000):
        names = [f"x{j}" for j in range(p)]
        table = pd.DataFrame(stream(3, "columns", p).normal(size=(1_000, p)), columns=names)
        table.to_csv(path := folder / "table.csv", index=False)
        for how, source in (("from memory", table), ("from CSV", str(path))):
            begin = time.process_time()
            columns = Columns(features=names)
            federation = Federation.local({"a": source}, columns=columns, policy="strict")
            MeanAndSD().run(federation, seed=1)
            took[how][p] = time.process_time() - begin
    return took


def main() -> None:
    found: dict[str, Any] = {"machine": machine()}
    with threadpool_limits(1):
        for name, (method, numbers, on_disk) in METHODS.items():
            measured(federation_of(3), method())  # libraries are loaded
            cpu = {n: measured(federation_of(n), method())[0] for n in numbers}
            large = [n for n in numbers if n >= 30]
            slope = np.polyfit(np.log(large), np.log([cpu[n] for n in large]), 1)[0]
            found[name] = {
                "cpu_seconds by sites": cpu,
                "exponent from 30 sites": float(slope),
                "on disk": waits(on_disk, method()),
            }
            print(name, found[name], flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found["columns"] = by_columns(Path(folder))
    (RESULTS / "growth.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What the guard over runs costs: time of a release, and what is kept of 1,000 of them.

``PYTHONPATH=. python benchmarks/row_guard.py`` writes results/row_guard.json. A table of a million
rows is asked 1,000 times for the complete rows of three to eight of its 30 columns, which lack
three values in a million up to a tenth of them, for a target of two classes. `choose` is the own
work of the guard (`RowHistory.admit`, and what the home keeps, in bytes and back); `know` is once
for each table: what is in its rows, of so many columns, and of a fifth of these as texts, which a
CSV file has. `compare` is what a release of so many columns over 1,000 rows takes under strict.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.ensemble_patterns import machine
from consilience.sites.policy import Policy
from consilience.sites.row_guard import View, failing
from consilience.sites.row_history import RowHistory, row_content, row_keys
from consilience.sites.source import read_source
from consilience.wire.codec import pack, unpack

RESULTS = Path(__file__).parent / "results"
ROWS, RELEASES, LEAST = 1_000_000, 1_000, 10
COLUMNS, N_LACKING = 20, 30


def ms(began: float) -> float:
    """Processor time since then: other jobs run beside it."""
    return 1000 * (time.process_time() - began)


def knowing() -> dict[str, float]:
    """A table's rows, by what is in them."""
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.normal(size=ROWS) for j in range(COLUMNS - 2)}
    columns["kind"] = np.array(["one", "two", "three"])[rng.integers(3, size=ROWS)]
    columns["count"] = rng.poisson(3, ROWS)
    table = read_source(pa.table(columns))
    began = time.process_time()
    content = row_content(table, table.names)
    read = ms(began)
    began = time.process_time()
    row_keys(content, os.urandom(16))
    keyed = ms(began)
    texts = {f"x{j}": columns[f"x{j}"].astype(str) for j in range(COLUMNS // 5)}
    table = read_source(pa.table(texts))
    began = time.process_time()
    row_content(table, table.names)
    return {
        "columns": COLUMNS,
        "know_ms": round(read),
        "know_texts_ms": round(ms(began)),
        "keys_ms": round(keyed),
    }


def comparing() -> dict[str, dict[str, int]]:
    """Columns of which not all may be told, in pairs."""
    rng = np.random.default_rng(2)
    took = {}
    for p in (100, 500, 2_000, 10_000):
        x, every = rng.normal(size=(1_000, p)), np.ones(p, dtype=bool)
        view = View(np.ones(len(x), dtype=bool), every, ~every, ~every)
        began = time.process_time()
        failing(x, [view], every, Policy.from_settings("strict").limits)
        took[str(p)] = round(ms(began))
    return {"compare_ms": took}


def releases() -> dict[str, float]:
    """Releases one after the other."""
    rng = np.random.default_rng(1)
    keys = row_keys(rng.integers(1 << 63, size=ROWS).astype(np.uint64), os.urandom(16))
    cells = (rng.integers(2, size=ROWS), np.minimum(rng.integers(5, size=ROWS), 3))
    history, places = RowHistory(), np.full(ROWS, -1)
    took: list[float] = []
    used: list[int] = []
    kept = pack(history.to_plain())
    has = [rng.random(ROWS) >= share for share in np.geomspace(3e-6, 0.1, N_LACKING)]
    for k in range(RELEASES):
        asked = rng.choice(N_LACKING, size=rng.integers(3, 9), replace=False) if k else []
        wanted = np.all([has[j] for j in asked] or [np.ones(ROWS, dtype=bool)], axis=0)
        began = time.process_time()
        history = RowHistory.from_plain(unpack(kept, max_bytes=1 << 30))
        chosen, after = history.admit(keys, wanted, cells, least=LEAST, places=places)
        kept = pack(after.to_plain())
        took.append(ms(began))
        used.append(int(wanted.sum() - chosen.sum()))
        if not k:
            places = after.places(keys)
    atoms = np.bincount(after.atoms)[1:]
    return {
        "releases": RELEASES,
        "choose_ms": round(statistics.median(took), 1),
        "choose_ms_longest": round(max(took[1:]), 1),
        "kept_bytes": len(kept),
        "atoms": int((atoms > 0).sum()),
        "smallest_atom": int(atoms[atoms > 0].min()),
        "rows_left_out_median": statistics.median(used),
        "rows_left_out_most": max(used),
    }


def main() -> None:
    content = {"machine": machine(), "rows": ROWS, "least": LEAST, **knowing(), **releases()}
    content |= comparing()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "row_guard.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()

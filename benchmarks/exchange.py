"""What ensemble clustering sends: bytes and rounds, as sites and rows grow.

``PYTHONPATH=. python benchmarks/exchange.py`` writes results/exchange.json, and results/folder.json
for what the folder engine takes in time and memory (``... exchange.py folder``: only that). Bytes
are those of the transcript (values as encoded); "labels" is what a label for every row under every
model would take, one byte each, which is what sites would send if they did not count label tuples.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from benchmarks.ensemble_patterns import machine
from consilience import Columns, EnsembleClustering, Federation
from consilience.engines.folder import FolderEngine, watch
from consilience.engines.local import LocalEngine
from consilience.numerics.random import stream
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.result import Result
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire.message import Public, message
from consilience.wire.signing import SigningKey
from replications.ensemble_clustering.simulate import simulate_gaussian_sites

RESULTS = Path(__file__).parent / "results"
FEATURES = tuple(f"x{j}" for j in range(10))


def case(n_sites: int, rows: int, pairs: int) -> dict[str, Any]:
    """Run one federation and add up its transcript."""
    drawn = simulate_gaussian_sites(
        n_sites,
        rng=stream(1, "exchange", n_sites, rows),
        design="imbalanced",
        variance=0.3,
        sizes=(rows, rows),
    )
    tables = {
        f"s{i:02d}": pd.DataFrame(x, columns=list(FEATURES)) for i, x in enumerate(drawn.tables)
    }
    columns = Columns(features=FEATURES)
    federation = Federation.local(tables, columns=columns, policy=Policy(foreign_models=True))
    started = time.perf_counter()
    run = EnsembleClustering(n_clusters=5, stability_pairs=pairs).run(federation, seed=1)
    took = time.perf_counter() - started
    out = [line for line in run.transcript if line.direction == "from-site"]
    into = [line for line in run.transcript if line.direction == "to-site"]
    by_step = {
        step: round(sum(line.bytes for line in out if line.step == step) / n_sites)
        for step in ("fit", "count", "label")
    }
    return {
        "sites": n_sites,
        "rows_per_site": rows,
        "stability_pairs": pairs,
        "rounds": max(line.round for line in run.transcript),
        "patterns": run.result.n_patterns,
        "bytes_from_a_site": round(sum(line.bytes for line in out) / n_sites),
        "bytes_from_a_site_by_step": by_step,
        "bytes_to_a_site": round(sum(line.bytes for line in into) / n_sites),
        "bytes_of_labels": n_sites * rows,
        "seconds": round(took, 2),
    }


# ------------------------------------------------------------------ through a folder


@message("echo/echo", version=1)
class Echo:
    content: np.ndarray = Public("n")


@step("echo")
def echo(message: Echo, data: SiteData, state: State, site: SiteContext) -> tuple[Echo, State]:
    """Say the same again, after a look at every row."""
    if not np.isfinite(data.features.sum()):
        raise ValueError("rows that are not finite")
    return Echo(content=message.content), {}


@dataclass(frozen=True, eq=False)
class Times(Result):
    seconds: np.ndarray


@register
@dataclass(frozen=True, kw_only=True)
class EchoMethod(Method):
    """Questions without a computation: what is left is the exchange."""

    name: ClassVar[str] = "echo"
    title: ClassVar[str] = "How long does a question take?"
    steps = (echo,)
    absence: ClassVar[str] = "All sites are needed."
    leakage: ClassVar[str] = "Nothing of the data."
    Result = Times
    rounds: int = 1
    length: int = 1

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        seconds, content = [], np.ones(self.length)
        for _ in range(self.rounds):
            began = time.perf_counter()
            ctx.require((yield Ask("echo", Echo(content=content))), at_least=len(ctx.sites))
            seconds.append(time.perf_counter() - began)
        return Times(np.array(seconds))


def site_of(name: str, rows: int, home: Path | None = None) -> Site:
    """A site with 16 columns of numbers, which it makes when they are read."""

    def load(columns: Columns, preparation: Preparation, partition: str = "rows") -> SiteData:
        x = np.ones((rows, 16))
        return SiteData(x, FEATURES + tuple("abcdef"), np.arange(rows), n_read=rows,
                        content_hash=name)  # fmt: skip

    policy = Policy(preset="simulation", max_message_bytes=1 << 30)
    return Site(name, load, policy=policy, home=None if home is None else DiskStore(home))


def serve(root: Path, name: str, rows: int, ready: Any, peaks: Any) -> None:
    """The process of a site; says at its end how much memory it has ever had."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    key = SigningKey.load(root / f"keys-{name}")
    trusted = [SigningKey.load(root / "keys").public]
    site = site_of(name, rows, root / f"home-{name}")
    ready.set()
    watch(site, root / "shared", key=key, coordinators=trusted, stop=stop)
    peaks.put(own_peak())


def own_peak() -> float:
    """Peak memory in MB; that of `getrusage` begins with what the parent had when it started us."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def through_folder(method: EchoMethod, sites: int, rows: int) -> tuple[np.ndarray, float]:
    """Seconds of each round, and the largest peak of a site's memory in MB; default settings."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "shared").mkdir()
        names = [f"s{i}" for i in range(sites)]
        SigningKey.generate().save(root / "keys")
        public = {}
        for name in names:
            SigningKey.generate().save(root / f"keys-{name}")
            public[name] = SigningKey.load(root / f"keys-{name}").public
        peaks, members = context.Queue(), []
        for name in names:
            ready = context.Event()
            members.append(context.Process(target=serve, args=(root, name, rows, ready, peaks)))
            members[-1].start()
            ready.wait(60)
        engine = FolderEngine(root / "shared", names, SigningKey.load(root / "keys"), public)
        federation = Federation(engine, Columns(), Preparation())
        run = method.run(federation, seed=1, out=root / "run")
        for member in members:
            os.kill(int(member.pid or 0), signal.SIGTERM)
        peak = max(peaks.get(timeout=60) for _ in members)
        for member in members:
            member.join()
        return run.result.seconds, peak


def round_trips(sites: int, length: int, rounds: int = 60) -> dict[str, Any]:
    """One question to all sites and their replies, from signing to the journal."""
    method = EchoMethod(rounds=rounds, length=length)
    seconds, _ = through_folder(method, sites, 1000)
    here = Federation(
        LocalEngine([site_of(f"s{i}", 1000) for i in range(sites)]), Columns(), Preparation()
    )
    local = method.run(here, seed=1).result.seconds
    return {
        "sites": sites,
        "kB": round(8 * length / 1000),
        "rounds": rounds,
        "median_ms": round(1000 * statistics.median(seconds), 1),
        "95_percent_ms": round(1000 * float(np.quantile(seconds, 0.95)), 1),
        "in_one_process_median_ms": round(1000 * statistics.median(local), 1),
        "load": round(os.getloadavg()[0], 1),
    }


def memory(rows: int, length: int) -> dict[str, Any]:
    """Peak memory of a site's process against its table and the length of a message."""
    _, peak = through_folder(EchoMethod(rounds=3, length=length), 1, rows)
    table, size = rows * 16 * 8 / 2**20, length * 8 / 2**20
    return {"table_MB": round(table), "message_MB": round(size), "peak_MB": round(peak)}


def folder() -> dict[str, Any]:
    """What the folder engine takes."""
    trips = [round_trips(1, 10), round_trips(2, 10), round_trips(5, 10), round_trips(2, 12_500)]
    per_mb = 2**17
    grid = [(1000, 10), (10 * 2**13, 10), (20 * 2**13, 10), (40 * 2**13, 10)]
    grid += [(1000, mb * per_mb) for mb in (8, 16, 32)] + [(20 * 2**13, 16 * per_mb)]
    found = [memory(rows, length) for rows, length in grid]
    design = np.array([[1, c["table_MB"], c["message_MB"]] for c in found], dtype=float)
    fit = np.linalg.lstsq(design, np.array([c["peak_MB"] for c in found], dtype=float))[0]
    return {
        "machine": machine(),
        "round_trips": trips,
        "memory": found,
        "peak_MB_is_about": dict(zip(("base", "per_table_MB", "per_message_MB"),
                                     np.round(fit, 1).tolist(), strict=True)),
    }  # fmt: skip


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    if sys.argv[1:] != ["folder"]:
        patterns()
    content = folder()
    (RESULTS / "folder.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


def patterns() -> None:
    cases = [case(5, rows, 0) for rows in (200, 2_000, 20_000)]
    cases += [case(m, 400, 0) for m in (10, 20, 50)]
    cases += [case(5, 400, pairs) for pairs in (0, 5, 20)]
    content = {"machine": machine(), "cases": cases}
    (RESULTS / "exchange.json").write_text(json.dumps(content, indent=1) + "\n")
    for row in cases:
        print(row)


if __name__ == "__main__":
    main()

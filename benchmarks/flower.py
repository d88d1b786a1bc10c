"""Round trips of the engine over Flower, against bare Flower, on one machine in one run.

``PYTHONPATH=. python benchmarks/flower.py`` writes results/flower.json. *Ours*: a SuperLink with
TLS, node authentication and its database on disk, the node in a process of its own, from the ask of
a step to its accepted reply (signatures, gate, codec and records included). *Bare*: a stock
SuperLink in memory and a stock SuperNode, both in plaintext, an app of a few lines that returns
what it gets, submitted by ``flwr run``, and Flower's own ``send_and_receive``: what many use, and
the quicker side of every choice; most of it is fixed sleeps of three seconds. *Transport*: the same
server and the same kind of node as ours, with nothing of ours on top (no signatures, gate, codec or
records): bytes there and back. The bound is 1.1 times bare Flower. Memory is that of our node's
process, before, at most, and after messages of 50 MB there and back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ensemble_patterns import machine
from consilience.engines.federation import Federation
from consilience.engines.flower import Desk, FlowerEngine
from consilience.engines.flower._flwr import Server
from consilience.engines.flower.grid import GridLink, read_secret
from consilience.engines.flower.handler import Content
from consilience.engines.flower.keys import make_federation
from consilience.engines.flower.node import FlowerNode
from consilience.engines.flower.server import SuperLink, environment
from consilience.engines.signed import pause
from consilience.protocol.method import Columns, Preparation
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.testing.fakes import Echo, array_loader
from consilience.wire.signing import SigningKey

RESULTS = Path(__file__).parent / "results"
BIN = Path(sys.executable).parent
SIZES = {"0 B": 0, "1 MB": 1_000_000, "50 MB": 50_000_000}
TIMES = {"0 B": 7, "1 MB": 7, "50 MB": 3}
BOUND = 1.1
SITE, RAW = "ash", "raw"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "echo"
version = "1.0.0"
description = "echo"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["echo"]
[tool.flwr.app]
publisher = "consilience"
[tool.flwr.app.components]
serverapp = "echo.app:server"
clientapp = "echo.app:client"
[tool.flwr.app.config]
"""
APP = """\
import json, os, time
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query("echo")
def echo(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    while not list(grid.get_node_ids()):
        time.sleep(0.5)
    (node,) = grid.get_node_ids()
    found = {{}}
    for name, size, times in {plan}:
        found[name] = []
        for _ in range(times + 1):
            load = os.urandom(size)
            array = Array("uint8", (size,), "raw", load)
            content = RecordDict({{"load": ArrayRecord({{"load": array}})}})
            began = time.perf_counter()
            asked = Message(content, dst_node_id=node, message_type="query.echo")
            (reply,) = grid.send_and_receive([asked])
            found[name].append(time.perf_counter() - began)
            assert reply.content["load"]["load"].data == load
        del found[name][0]
    with open({out!r} + ".part", "w") as file:
        json.dump(found, file)
    os.rename({out!r} + ".part", {out!r})
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def processes(*commands: list[str], env: dict[str, str], folder: Path) -> Iterator[list[int]]:
    """Run programs meanwhile, each with its children."""
    started = []
    try:
        for number, words in enumerate(commands):
            with open(folder / f"program-{number}.log", "ab") as log:
                started.append(
                    subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
                )
        yield [one.pid for one in started]
    finally:
        for one in started:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGTERM)
        for one in started:
            with suppress(subprocess.TimeoutExpired):
                one.wait(8)
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


# --------------------------------------------------------------------------- bare Flower


def bare(folder: Path) -> dict[str, list[float]]:
    """Seconds of each round trip with stock programs."""
    app, out, port = folder / "app", folder / "bare.json", free_port()
    (app / "echo").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "echo/__init__.py").write_text("")
    plan = [(name, size, TIMES[name]) for name, size in SIZES.items()]
    (app / "echo/app.py").write_text(APP.format(plan=plan, out=str(out)))
    home, address = folder / "flwr", f"127.0.0.1:{port}"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    env = {**environment(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    link = [str(BIN / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    link.append("--disable-runtime-dependency-installation")
    node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", address]
    node += ["--port", str(free_port())]
    with processes(link, node, env=env, folder=folder):
        submit = [str(BIN / "flwr"), "run", str(app), "here"]
        for _ in range(20):
            done = subprocess.run(submit, env=env, capture_output=True, text=True)
            if done.returncode == 0:
                break
            time.sleep(1.0)
        else:
            raise SystemExit(f"'flwr run' fails: {done.stdout}{done.stderr}")
        end = time.monotonic() + 900
        while not out.exists():
            if time.monotonic() > end:
                raise SystemExit(f"bare Flower did not answer: see {folder}")
            time.sleep(0.5)
    found: dict[str, list[float]] = json.loads(out.read_text())
    return found


# --------------------------------------------------------------------------- ours


def serve(folder: Path, address: str, coordinator: str, name: str) -> None:
    """Be the node (in a process of its own) until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    keys = folder / "keys/sites" / name
    if name == RAW:
        node = FlowerNode(Server(address, keys / "ca.crt"), keys / "node.key", returned)
        node.serve(over.is_set)
        return
    x = np.random.default_rng(1).normal(size=(100, 2))
    site = Site(SITE, array_loader(x), home=DiskStore(folder / "home"))
    desk = Desk(site, SigningKey.load(keys), [coordinator])
    server = Server(address, keys / "ca.crt")
    FlowerNode(server, keys / "node.key", desk.handle).serve(over.is_set)


def returned(content: Mapping[str, object]) -> Content:
    """The bytes that came, and nothing else."""
    load = content["load"]
    return {"load": load} if isinstance(load, bytes) else {}


def memory(pid: int) -> dict[str, float]:
    """Resident megabytes of a process, now and at most."""
    text = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: round(int(lines[name].split()[0]) / 1024, 1) for name in ("VmRSS", "VmHWM")}


def ours(folder: Path) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, Any]]:
    """Seconds of each round trip, of the transport alone, and the memory of the node."""
    keys, port = folder / "keys", free_port()
    public = make_federation(keys, [SITE, RAW])
    own = keys / "coordinator"
    link = SuperLink(own, "127.0.0.1", port, folder / "superlink", insecure=False)
    address = link.server.address
    node = [sys.executable, __file__, "node", str(folder), address, public["coordinator"], SITE]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    found: dict[str, list[float]] = {}
    used: dict[str, Any] = {}
    try:
        with processes(node, env=env, folder=folder) as (pid,):
            engine = FlowerEngine(
                lambda: GridLink(link.server, read_secret(own / "executor.secret"), own / ".turn"),
                [SITE],
                SigningKey.load(own),
                public,
            )
            for name, size in SIZES.items():
                round_trip(engine, size)  # to get warm: the first one waits for the node
                if name == "50 MB":
                    Path(f"/proc/{pid}/clear_refs").write_text("5")
                used[f"before {name}"] = memory(pid)
                found[name] = [round_trip(engine, size) for _ in range(TIMES[name])]
                used[f"after {name}"] = memory(pid)
            engine.close()
        with processes([*node[:-1], RAW], env=env, folder=folder):
            transport = raw_trips(link.server, own, link.nodes[RAW])
    finally:
        link.stop()
    return found, transport, used


def raw_trips(server: Server, own: Path, node: int) -> dict[str, list[float]]:
    """Seconds of each round trip of bytes, looked for as often as the engine does."""
    link = GridLink(server, read_secret(own / "executor.secret"), own / ".turn")
    while node not in link.nodes():
        time.sleep(0.1)
    found: dict[str, list[float]] = {}
    for name, size in SIZES.items():
        found[name] = []
        for _ in range(TIMES[name] + 1):
            load = os.urandom(max(8, size))
            began, waited = time.perf_counter(), time.monotonic()
            asked = link.push(node, {"load": load}, seconds=600.0)
            while not (came := link.pull([asked])):
                time.sleep(pause(waited, 0.5))
            found[name].append(time.perf_counter() - began)
            if came[0].content != {"load": load}:
                raise SystemExit("the transport altered a message")
        del found[name][0]
    link.close(well=True)
    return found


def round_trip(engine: FlowerEngine, size: int) -> float:
    """Seconds from the ask of one step to its accepted reply."""
    at: dict[str, float] = {}

    def note(kind: str, facts: dict[str, Any]) -> None:
        at[f"{kind} {facts.get('round', '')}"] = time.perf_counter()

    federation = Federation(engine, Columns(features=("x0", "x1")), Preparation(), deadline=600.0)
    run = Echo(size=max(1, size // 8)).run(federation, seed=1, on_event=note)
    last = max(line.round for line in run.transcript)
    return at[f"arrived {last}"] - at[f"ask {last}"]


def main() -> None:
    """Measure both, and say whether the bound holds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end what was started
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("bare", "ours"):
            (folder / one).mkdir()
        theirs = bare(folder / "bare")
        mine, transport, used = ours(folder / "ours")
    rows = []
    for name in SIZES:
        medians = statistics.median(mine[name]), statistics.median(theirs[name])
        alone = statistics.median(transport[name])
        rows.append(
            {
                "message": name,
                "ours_seconds": round(medians[0], 3),
                "bare_seconds": round(medians[1], 3),
                "ratio": round(medians[0] / medians[1], 3),
                "transport_seconds": round(alone, 3),
                "ours_over_transport": round(medians[0] / alone, 3),
                "ours_all": [round(t, 3) for t in mine[name]],
                "bare_all": [round(t, 3) for t in theirs[name]],
                "transport_all": [round(t, 3) for t in transport[name]],
            }
        )
    held = all(row["ratio"] <= BOUND for row in rows)  # type: ignore[operator]
    content = {
        "machine": machine(),
        "bound": f"ours at most {BOUND} times bare Flower",
        "held": held,
        "round_trips": rows,
        "node_megabytes": used,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "flower.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
    if not held:
        raise SystemExit("a round trip takes more than the bound")


if __name__ == "__main__":
    if sys.argv[1:2] == ["node"]:
        serve(Path(sys.argv[2]), *sys.argv[3:6])
    else:
        main()

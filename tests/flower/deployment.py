"""A federation over a real SuperLink on loopback: keys, server, nodes in threads, programs.

Everything that is started here is ended by `Deployment.close`, whatever happened in between.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from consilience.engines.flower import Desk, FlowerEngine
from consilience.engines.flower._flwr import Server
from consilience.engines.flower.grid import GridLink, read_secret
from consilience.engines.flower.handler import Link
from consilience.engines.flower.keys import make_federation
from consilience.engines.flower.node import FlowerNode
from consilience.engines.flower.server import SuperLink
from consilience.sites.site import Site
from consilience.wire.signing import SigningKey

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def until(holds: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something; what it gave, or an error that names it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:g} s in vain for: {what}")


class Programs:
    """Processes of a test, and what each of them wrote."""

    def __init__(self, root: Path) -> None:
        self._root, self._started = root, list[tuple[subprocess.Popen[bytes], IO[bytes]]]()

    def start(
        self, words: Sequence[object], *, cwd: Path | None = None, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start one in a session of its own; its lines go to `said`."""
        log = open(self._root / f"program-{len(self._started)}.log", "wb")  # noqa: SIM115
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=cwd or self._root,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append((process, log))
        return process

    def consilience(self, *words: object, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        return self.start([BIN / "consilience", *words], cwd=cwd)

    def doomed(self, *words: object, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a command that dies or stops at a moment; see ``tests/flower/doomed.py``."""
        python = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        return self.start(
            [sys.executable, "-m", "tests.flower.doomed", *words], cwd=cwd, PYTHONPATH=python
        )

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """All that a program wrote so far."""
        for number, (known, _) in enumerate(self._started):
            if known is process:
                return (self._root / f"program-{number}.log").read_text(errors="replace")
        raise KeyError("not started here")

    def close(self) -> None:
        """End every process group that was started here."""
        for process, _ in self._started:
            for number in (signal.SIGCONT, signal.SIGTERM):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
        for process, log in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(8)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.close()


class Deployment:
    """A SuperLink with TLS and node authentication, and sites that may connect to it.

    Attributes
    ----------
    keys : Path
        As ``consilience flower keys`` makes them.
    public : dict of str to str
        Public keys that sign messages, by site and for ``"coordinator"``.
    """

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self.root, self.names = root, tuple(names)
        self.keys = root / "keys"
        self.public = make_federation(self.keys, self.names)
        self.port = free_port()
        self.programs = Programs(root)
        self._superlink: SuperLink | None = None
        self.home = root / "superlink"
        self.up()

    # ------------------------------------------------------------------ the server

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def own(self) -> Path:
        """The coordinator's keys."""
        return self.keys / "coordinator"

    @property
    def server(self) -> Server:
        return Server(self.address, self.own / "ca.crt")

    @property
    def secret(self) -> bytes:
        return read_secret(self.own / "executor.secret")

    def up(self) -> None:
        self._superlink = SuperLink(self.own, HOST, self.port, self.home, insecure=False)

    def kill_server(self) -> None:
        """SIGKILL."""
        assert self._superlink is not None
        self._superlink._process.kill()
        self._superlink._process.wait()

    def number(self, name: str) -> int:
        """Under which the server knows the node of a site."""
        assert self._superlink is not None
        return self._superlink.nodes[name]

    def forget(self) -> None:
        """Lose the server's database."""
        for path in self.home.glob("superlink.db*"):
            path.unlink()

    def close(self) -> None:
        self.programs.close()
        if self._superlink is not None:
            self._superlink.stop()

    # ------------------------------------------------------------------ in this process

    def site_keys(self, name: str) -> Path:
        return self.keys / "sites" / name

    def open_link(self) -> GridLink:
        return GridLink(self.server, self.secret, self.own / ".turn")

    def engine(self, *sites: str, **settings: Any) -> FlowerEngine:
        names = sites or self.names
        given: dict[str, Any] = {"poll": 0.05, **settings}
        opened: Callable[[], Link] = given.pop("open_link", self.open_link)
        return FlowerEngine(opened, names, SigningKey.load(self.own), self.public, **given)

    @contextmanager
    def nodes(self, *sites: Site, **settings: Any) -> Iterator[list[tuple[str, str, Any]]]:
        """Let sites be nodes, each in a thread; gives what they tell, as it comes."""
        told: list[tuple[str, str, Any]] = []
        over = threading.Event()
        threads = []
        for site in sites:
            note = _note(told, site.name)
            key = SigningKey.load(self.site_keys(site.name))
            desk = Desk(site, key, [self.public["coordinator"]], on_event=note)
            node = FlowerNode(
                settings.get("server", self.server),
                settings.get("node_key", self.site_keys(site.name) / "node.key"),
                settings.get("handle", desk.handle),
                note,
                memory=self.root / f"number-{site.name}",
            )
            threads.append(
                threading.Thread(
                    target=node.serve, args=(over.is_set,), kwargs={"poll": 0.05}, daemon=True
                )
            )
        for thread in threads:
            thread.start()
        try:
            yield told
        finally:
            over.set()
            for thread in threads:
                thread.join(30)

    @contextmanager
    def serving(self, sites: Sequence[Site]) -> Iterator[FlowerEngine]:
        """Engine over sites: the factory of ``consilience.testing.check_engine``."""
        with self.nodes(*sites) as told:
            connected = {site.name for site in sites}
            until(lambda: connected == _connected(told), 60, "the nodes to connect")
            engine = self.engine(*[site.name for site in sites])
            try:
                yield engine
            finally:
                engine.close()


def _connected(told: list[tuple[str, str, Any]]) -> set[str]:
    return {name for name, kind, _ in told if kind == "connected"}


def _note(told: list[tuple[str, str, Any]], name: str) -> Callable[[str, dict[str, Any]], None]:
    return lambda kind, facts: told.append((name, kind, facts))


def stock(name: str) -> str:
    """One of Flower's own programs."""
    found = BIN / name
    return str(found) if found.is_file() else str(shutil.which(name))

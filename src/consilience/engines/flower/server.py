"""The SuperLink as a child of our command: safe defaults, known nodes, a clean end.

What is switched on or off, and why:

============================================ ======================================================
``--ssl-...`` and ``--enable-supernode-auth`` TLS, and only nodes whose key was registered
``--isolation process`` and a secret          runs are served by a coordinator's own process, which
                                              shows the secret; the server starts no app
``--database``                                a restart forgets nothing
``--disable-runtime-dependency-installation`` no app installs anything
telemetry, update checks                      off (environment)
============================================ ======================================================

Flower's control interface knows no accounts: whoever reaches the port may begin runs and register
nodes. Runs that are begun so get no answer (sites hear only signed asks), but the port is best
reachable for the sites' ``/v1/fleet/`` paths alone; see the guide on deployment.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from consilience.engines.flower._flwr import Server, check_release, client, losses
from consilience.engines.flower.handler import LinkLost
from consilience.engines.flower.keys import (
    CA,
    NODES,
    SECRET,
    SERVER,
    SERVER_KEY,
    days_left,
    is_signed_by,
    make_secret,
    require_directory,
)
from consilience.exceptions import EngineError, StudyError

# isort: split
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

_START = 60.0
_PR_SET_PDEATHSIG = 1
_STOP = 10.0


def environment(home: Path) -> dict[str, str]:
    """Environment of Flower's programs: nothing is reported home, nothing is looked up."""
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
    }


def superlink_command(
    keys: Path, host: str, port: int, database: Path, *, insecure: bool
) -> list[str]:
    """Command line of the SuperLink.

    Raises
    ------
    StudyError
        A file is missing, or the certificate is not the authority's or has ended.
    """
    if not insecure:
        _check_certificate(keys)
    # Not by PATH first: that could be the program of another release.
    beside = Path(sys.executable).parent / "flower-superlink"
    found = str(beside) if beside.is_file() else shutil.which("flower-superlink")
    if found is None:
        raise EngineError(
            f"the program flower-superlink is not beside {sys.executable}: install Flower again"
        )
    words = [
        found,
        *("--host", host, "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(make_secret(keys))),
        *("--database", str(database), "--disable-runtime-dependency-installation"),
    ]
    if insecure:
        return [*words, "--insecure"]
    return [
        *words,
        *("--ssl-certfile", str(keys / SERVER), "--ssl-keyfile", str(keys / SERVER_KEY)),
        *("--ssl-ca-certfile", str(keys / CA), "--enable-supernode-auth"),
    ]


def _check_certificate(keys: Path) -> None:
    """Check what TLS needs before anything is written or started."""
    require_directory(keys)
    for name in (CA, SERVER, SERVER_KEY):
        if not (keys / name).is_file():
            raise StudyError(
                f"there is no {keys / name}: put certificate and key of the server there, make "
                "them for a trial with 'consilience flower keys DIR', or type --insecure"
            )
    if days_left(keys / SERVER) <= 0:
        raise StudyError(f"the certificate {keys / SERVER} has expired: make a new one")
    if not is_signed_by(keys / SERVER, keys / CA):
        raise StudyError(f"{keys / SERVER} is not signed by {keys / CA}: put the right pair there")


class SuperLink:
    """A SuperLink that this process started.

    Parameters
    ----------
    keys : Path
        The coordinator's directory (`consilience.engines.flower.keys`).
    host, port : str, int
        Where to listen.
    home : Path
        For the database and Flower's own files.
    insecure : bool
        Plaintext, and any node: for trials on one machine.
    log : Path, optional
        Where the server's lines go; `home`/superlink.log unless given.

    Raises
    ------
    StudyError, EngineError
        A file is missing; the port is taken; the server does not start.
    """

    def __init__(
        self,
        keys: Path,
        host: str,
        port: int,
        home: Path,
        *,
        insecure: bool,
        log: Path | None = None,
    ) -> None:
        check_release()
        # Files are checked before the port and the process: nothing is half started.
        command = superlink_command(keys, host, port, home / "superlink.db", insecure=insecure)
        _require_free(host, port)
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        self.log = home / "superlink.log" if log is None else log
        # The address of all interfaces is one to listen at, not one to call.
        inside = "127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host
        self.server = Server(f"{inside}:{port}", None if insecure else keys / CA)
        self.nodes: dict[str, int] = {}
        with open(self.log, "ab") as sink:
            self._process = subprocess.Popen(
                command,
                env=environment(home / "flwr"),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_parent(),
            )
        try:
            self._wait_until_up(port)
            if not insecure:
                self.nodes = register(self.server, sorted((keys / NODES).glob("*.pub")))
        except BaseException:
            self.stop()
            raise

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Return when told to stop.

        Raises
        ------
        EngineError
            The server ended by itself.
        """
        while not is_over():
            if self._process.poll() is not None:
                raise EngineError(
                    f"the SuperLink ended by itself (code {self._process.returncode}): see the end "
                    f"of {self.log}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """End the server."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _wait_until_up(self, port: int) -> None:
        end = time.monotonic() + _START
        while time.monotonic() < end and self._process.poll() is None:
            try:
                known_nodes(self.server)
                return
            except LinkLost:
                time.sleep(0.1)
        raise EngineError(
            f"the SuperLink did not start on port {port}: the end of {self.log} says why"
        )


def register(server: Server, public_keys: Iterable[Path]) -> dict[str, int]:
    """Let nodes in; those that are known already stay as they are.

    Returns
    -------
    dict of str to int
        Number of each node, by the name of its file.

    Raises
    ------
    StudyError
        A file holds no public key of a node.
    LinkLost
        The server cannot be reached.
    """
    known = known_nodes(server)
    found = {}
    for path in public_keys:
        try:
            key: Any = load_ssh_public_key(path.read_bytes())
            raw = bytes(public_key_to_bytes(key))
        except (OSError, ValueError, AttributeError, UnsupportedAlgorithm):
            raise StudyError(
                f"{path} holds no public key of a node: it is the line in the site's node.pub"
            ) from None
        if raw not in known:
            with losses(f"registering the node {path.stem}"):
                control = client(ControlHttpClient, server, "flwr CLI")
                request = RegisterNodeRequest(public_key=raw, name=path.stem)
                known[raw] = int(control.RegisterNode(request).node_id)
                control.close()
        found[path.stem] = known[raw]
    return found


def known_nodes(server: Server) -> dict[bytes, int]:
    """Registered nodes by their public keys; `LinkLost` where the server does not answer."""
    with losses("asking the SuperLink for its nodes"):
        control = client(ControlHttpClient, server, "flwr CLI")
        try:
            answer: Any = control.ListNodes(ListNodesRequest())
        finally:
            control.close()
    known = [node for node in answer.nodes_info if node.status != "unregistered"]
    return {node.public_key: int(node.node_id) for node in known}


def _require_free(host: str, port: int) -> None:
    """Refuse a port that is taken; another SuperLink there would answer in place of ours."""
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((name, port))
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise EngineError(
                f"port {port} of {host} is taken by another process: stop it, or name another port"
            ) from None
        why = getattr(error, "strerror", None) or "no such port or host"
        raise EngineError(
            f"nothing can listen on port {port} of {host} ({why}): name an address of this machine "
            "by --host and a port by --port"
        ) from None


def _ends_with_parent() -> Callable[[], None] | None:
    """Where the system can (Linux): end the server when this process is killed."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


__all__ = ["SECRET", "SuperLink", "environment", "known_nodes", "register"]

"""What both ends need of Flower: clients that never retry or stop the process on their own.

Flower's own retry helper answers some errors by a signal to the process that uses it. Ours is a
person's command or a site's service, so clients here raise, and who called decides.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import logging
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from consilience.engines.flower.handler import Content, LinkLost
from consilience.exceptions import EngineError, MissingExtraError, StudyError

# Before Flower is imported, which reads them then; whatever the surroundings say.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

try:
    import httpx
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
    )
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import ProtobufClient
except ImportError as error:
    raise MissingExtraError("flower", "The engine over Flower") from error

logging.getLogger("flwr").setLevel(logging.WARNING)

APP = Path(__file__).parent / "app"
SERIES = "1.41."
"""Release series of Flower on whose inner interfaces these modules rest."""

MESSAGE_TYPE = "query.consilience"
RECORD = "consilience"
_LONG = 1 << 18
_UPLOAD = 180.0
"""Seconds for which the server keeps a message whose parts are still being sent."""

C = TypeVar("C", bound=ProtobufClient)


@dataclass(frozen=True)
class Server:
    """Where a SuperLink is, and how its certificate is checked.

    Attributes
    ----------
    address : str
        ``host:port``.
    certificate : Path or None
        Certificate of the authority that signed the server's; None for a plaintext connection.
    """

    address: str
    certificate: Path | None

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise StudyError(
                f"the address of a SuperLink is HOST:PORT, but {self.address[:80]!r} was given"
            )

    def root(self) -> bytes | None:
        """Text of the certificate.

        Raises
        ------
        StudyError
        """
        if self.certificate is None:
            return None
        try:
            return self.certificate.read_bytes()
        except OSError as error:
            raise StudyError(
                f"the certificate {self.certificate} cannot be read: {error.strerror}"
            ) from None


def check_release() -> None:
    """Refuse releases of Flower that were not tried.

    Raises
    ------
    MissingExtraError
    """
    found = importlib.metadata.version("flwr")
    if not found.startswith(SERIES):
        raise MissingExtraError(
            "flower",
            f"Flower {found} is installed, but {SERIES}x was tried: the engine over Flower",
        )


def client(kind: type[C], server: Server, component: str, *interceptors: Any) -> C:
    """Build a client of one of Flower's interfaces."""
    return kind.from_server_address(
        server.address,
        server.certificate is None,
        server.root(),
        [RuntimeVersionHttpInterceptor(component_name=component), *interceptors],
        retry_invoker=None,
    )


def executor_interceptor(secret: bytes) -> Any:
    """Show the server that this process may take tasks."""
    methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)


@contextmanager
def losses(what: str) -> Iterator[None]:
    """Turn Flower's and the network's errors into `LinkLost`, without their texts."""
    try:
        yield
    except (httpx.HTTPStatusError, httpx.TransportError) as error:
        raise LinkLost(f"{what} failed: {describe(error)}") from None
    except EngineError:  # ours, whose text may be shown
        raise
    except Exception as error:  # Flower raises many classes; their texts may come from anybody.
        raise LinkLost(f"{what} failed ({type(error).__name__})") from error


_KNOWN = {
    401: "the server does not know this key or token (HTTP 401)",
    403: "the server does not allow it (HTTP 403)",
    404: "the server has no such interface: is it a SuperLink of the same release (404)?",
    1001: "the server runs another release of Flower",
    2001: "the server lets in registered nodes only: use the node's key",
    2004: (
        "the server does not let this node's key in: it is not registered there (nodes/ of the "
        "coordinator's keys), or another process is connected with it"
    ),
}
"""What an HTTP status, or Flower's own code in the answer, means for who has to mend it."""


def _flower_code(response: httpx.Response) -> int:
    """Flower's number for an error; 0 where there is none. Its text may come from anybody."""
    try:
        found = response.json()["code"]
    except (httpx.StreamError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    # Smaller ones are HTTP's own, which mean something else.
    return found if isinstance(found, int) and not 0 < found < 1000 else 0


def describe(error: Exception) -> str:
    """Say what happened to a connection, in words for the person who has to mend it."""
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        by_status = f"the server answers with HTTP {code}"
        return _KNOWN.get(_flower_code(error.response)) or _KNOWN.get(code, by_status)
    text = str(error).lower()
    if "certificate has expired" in text:
        return "the server's certificate has expired: who runs it must make a new one"
    if "certificate is not yet valid" in text:
        return "the server's certificate is not valid yet: compare the clocks"
    if "mismatch" in text or "not valid for" in text:
        return "the server's certificate is for another host: use the name that it was made for"
    if "certificate" in text:
        return "the server's certificate is not signed by the authority that was given"
    if any(word in text for word in ("wrong_version", "wrong version", "ssl", "tls")):
        return "the server does not speak TLS, or speaks it otherwise"
    if isinstance(error, httpx.ConnectError):
        return "nobody answers at that address"
    if isinstance(error, httpx.TimeoutException):
        return "the server does not answer in time"
    return "the connection broke"


@cache
def own_app() -> tuple[bytes, str]:
    """The one app of this release as Flower packs it, and its hash, which all sites must agree on.

    Nothing is compressed: other builds of zlib give other bytes.
    """
    stored = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP))) as built,
        zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as plain,
    ):
        for name in built.namelist():
            # Without times and rights of this machine: all sites must find the same hash.
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            plain.writestr(entry, built.read(name))
    return stored.getvalue(), hashlib.sha256(stored.getvalue()).hexdigest()


class TooLarge(Exception):
    """The parts of a message are more than whoever fetches them takes."""


def whole(message_id: str, tree: Any, pull: Callable[[str], bytes], *, most: int) -> Message:
    """Fetch the parts of a message and put them together.

    A message is announced before all its parts are there; Flower's own waiting begins at a second.

    Raises
    ------
    TooLarge
        There are more than `most` bytes; what was fetched until then is dropped.
    LinkLost
        It is not a message.
    """
    ids = [part.object_id for part in iterate_object_tree(tree)]
    size = 0

    def counted(one: str) -> bytes:
        nonlocal size
        if size > most:
            raise TooLarge
        part = pull(one)
        size += len(part)
        return part

    contents = pull_objects(
        ids,
        pull_object_fn=counted,
        max_time=_UPLOAD,
        max_tries_per_object=None,
        initial_backoff=0.01,
        backoff_cap=0.5,
    )
    if size > most:
        raise TooLarge
    message = inflate_object_from_contents(tree.object_id, contents)
    if not isinstance(message, Message):
        raise LinkLost("the server sent something that is no message")
    message.metadata.__dict__["_message_id"] = message_id
    return message


def packed(content: Content) -> RecordDict:
    """Put a message's content into Flower's records; long bytes go as an array, in pieces."""
    short = {k: v for k, v in content.items() if not isinstance(v, bytes) or len(v) < _LONG}
    records = RecordDict({RECORD: ConfigRecord(dict(short))})
    for name in content.keys() - short.keys():
        value = content[name]
        if isinstance(value, bytes):
            array = Array("uint8", (len(value),), "raw", value)
            records[f"{RECORD}.{name}"] = ArrayRecord({name: array})
    return records


def unpacked(message: Message) -> dict[str, object] | None:
    """Content of a message; None where it is not one of ours."""
    if message.has_error() or RECORD not in message.content:
        return None
    found: dict[str, object] = {}
    for title, record in message.content.items():
        if title == RECORD and isinstance(record, ConfigRecord):
            found.update(dict(record))
        elif title.startswith(f"{RECORD}.") and isinstance(record, ArrayRecord):
            found.update({str(name): array.data for name, array in record.items()})
    return found


class Beats:
    """Says every few seconds that this process is alive; errors are left to the next real call."""

    def __init__(self, beat: Callable[[], object], every: float = 20.0) -> None:
        self._beat, self._every = beat, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001  a later call says it to who can act
                logging.getLogger(__name__).debug("a heartbeat failed (%s)", type(error).__name__)

"""A site as a node of a SuperLink: Flower's messages, our answers, and nobody else's code.

A stock SuperNode fetches the run's app from the server and starts it in a new process for every
message. This node speaks the same interface (with Flower's own client, so TLS and the node's key
work as there) but hands each message to the `Desk` of the installed package, in one process that
keeps prepared rows in memory. **No code that a coordinator submits is ever run here**: an app with
its gate taken out changes nothing, because no app is loaded. The node still looks at what was
submitted, and answers no run whose app is not the one of its own release.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from consilience.engines.flower._flwr import (
    MESSAGE_TYPE,
    Beats,
    Server,
    TooLarge,
    check_release,
    client,
    losses,
    own_app,
    packed,
    unpacked,
    whole,
)
from consilience.engines.flower.handler import FOREIGN_APP, NOT_OURS, TOO_LARGE, Content, LinkLost
from consilience.exceptions import StudyError
from consilience.wire.codec import MAX_BYTES
from consilience.wire.files import atomic_write

# isort: split
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto import fleet_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import push_objects
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

_log = logging.getLogger(__name__)

Handle = Callable[[dict[str, object]], Content]
_AGAIN_FIRST, _AGAIN_LAST = 0.5, 30.0
_SLACK = 1 << 20


class FlowerNode:
    """One node.

    Parameters
    ----------
    server : Server
    key : Path or None
        The node's private key; None draws one for this process, which only a server without node
        authentication accepts.
    handle : callable
        ``handle(content) -> content``; it never raises.
    on_event : callable, optional
        ``on_event(kind, facts)``: "connected", "waiting", "disconnected", "refused app".

    memory : Path, optional
        File for the number under which the server knows the node: a node that was killed counts as
        connected for a minute, and takes its place again at once by saying goodbye first.

    most : int
        Largest message that is fetched, in bytes.

    Raises
    ------
    StudyError
        The key cannot be read.
    """

    def __init__(
        self,
        server: Server,
        key: Path | None,
        handle: Handle,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        *,
        memory: Path | None = None,
        most: int = MAX_BYTES,
    ) -> None:
        check_release()
        self._most = most + _SLACK
        self._memory = memory
        self._server, self._handle = server, handle
        self._keys = generate_key_pairs() if key is None else _read_key(key)
        self._registers = key is None
        self._on_event = on_event
        self._runs: dict[int, bool] = {}

    def serve(self, is_over: Callable[[], bool], *, poll: float = 0.2) -> None:
        """Answer until told to stop; a server that is away is waited for."""
        patience, said = _AGAIN_FIRST, ""
        while not is_over():
            try:
                with losses("connecting to the SuperLink"):
                    connection = self._connect()
            except LinkLost as lost:
                if str(lost) != said:
                    self._tell("waiting", reason=str(lost))
                said = str(lost)
                patience = _sleep(patience, is_over)
                continue
            patience, said = _AGAIN_FIRST, ""
            self._tell("connected", server=self._server.address)
            try:
                self._answer(connection, is_over, poll)
            except LinkLost as lost:
                self._tell("disconnected", reason=str(lost))
                patience = _sleep(patience, is_over)
            finally:
                connection.close()

    def _connect(self) -> _Connection:
        known = None
        if self._memory is not None and self._memory.is_file():
            text = self._memory.read_text(encoding="ascii", errors="replace").strip()
            known = int(text) if text.isdigit() else None
        connection = _Connection(self._server, self._keys, self._registers, known, self._most)
        if self._memory is not None and connection.node_id != known:
            atomic_write(self._memory, str(connection.node_id).encode())
        return connection

    def _answer(self, connection: _Connection, is_over: Callable[[], bool], poll: float) -> None:
        while not is_over():
            with losses("looking for messages"):
                message = connection.receive()
            if message is None:
                time.sleep(poll)
                continue
            content = self._content(connection, message)
            # After the site has recorded it: a reply that is lost here is repeated from the record.
            with losses("sending a reply"):
                connection.send(message, content)

    def _content(self, connection: _Connection, message: Message) -> Content:
        run = message.metadata.run_id
        if run not in self._runs:
            # Asked once for each run: what was submitted with it does not change.
            with losses("asking for the run's app"):
                self._runs[run] = connection.app_of(run) == own_app()[1]
            if not self._runs[run]:
                self._tell("refused app", run=run, reason=FOREIGN_APP)
        if not self._runs[run]:
            return {"status": "ignored", "reason": FOREIGN_APP}
        if not message.has_content():
            return {"status": "ignored", "reason": TOO_LARGE}
        content = unpacked(message)
        if content is None or message.metadata.message_type != MESSAGE_TYPE:
            return {"status": "ignored", "reason": NOT_OURS}
        return self._handle(content)

    def _tell(self, kind: str, **facts: Any) -> None:
        _log.info("%s: %s", kind, facts)
        if self._on_event is not None:
            self._on_event(kind, facts)


class _Connection:
    """A node that is activated at the server."""

    def __init__(
        self, server: Server, keys: tuple[Any, Any], registers: bool, known: int | None, most: int
    ) -> None:
        self._most = most
        self._client = client(FleetHttpClient, server, "SuperNode", NodeAuthHttpInterceptor(*keys))
        public = public_key_to_bytes(keys[1])
        try:
            if registers:
                self._client.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=public))
            if known is not None:
                with suppress(LinkLost), losses("saying goodbye for the process before this one"):
                    self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=known))
            every = HEARTBEAT_DEFAULT_INTERVAL
            activated = self._client.ActivateNode(
                fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=every)
            )
        except BaseException:
            self._client.close()
            raise
        self.node_id = int(activated.node_id)
        self._node = NodeProto(node_id=self.node_id)
        beat = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=every)
        self._beats = Beats(lambda: self._client.SendNodeHeartbeat(beat), every=every / 2)

    def receive(self) -> Message | None:
        """Take the next message; it is confirmed, because we answer repetitions ourselves."""
        response = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        head = message_from_proto(response.messages_list[0])
        tree = response.message_object_trees[0]
        run = head.metadata.run_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        try:
            message = whole(head.metadata.message_id, tree, pull, most=self._most)
        except TooLarge:
            message = head  # without its content
        confirm = make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, self._node, run
        )
        confirm(head.metadata.message_id)
        return message

    def send(self, asked: Message, content: Content) -> None:
        """Answer a message."""
        # A reply in every case, never one of Flower's errors: their texts may hold anything.
        reply = Message(packed(content), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = asked.metadata.run_id
        with no_object_id_recompute():
            tree = get_object_tree(reply)
            answer = self._client.PushMessages(
                fleet_pb2.PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, run, answer.session_id
            )
            wanted = set(answer.objects_to_push)
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=wanted)

    def app_of(self, run: int) -> str:
        """Hash of the app that was submitted with a run."""
        answer = self._client.GetRun(GetRunRequest(node=self._node, run_id=run))
        return str(run_from_proto(answer.run).fab_hash)

    def close(self) -> None:
        """Say goodbye, if the server still listens."""
        self._beats.stop()
        try:
            with losses("leaving"):
                self._client.DeactivateNode(
                    fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id)
                )
        except LinkLost as lost:
            _log.debug("%s", lost)
        self._client.close()


def _read_key(path: Path) -> tuple[Any, Any]:
    try:
        if path.stat().st_mode & 0o077:
            raise StudyError(f"other users of this machine may read {path}: run 'chmod 600 {path}'")
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise StudyError(
            f"the node's key {path} cannot be read ({error.strerror}): make one with "
            "'consilience flower node-key'"
        ) from None
    except (ValueError, TypeError):
        raise StudyError(
            f"{path} is not a node's key: make one with 'consilience flower node-key'"
        ) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise StudyError(f"{path} is not a node's key (ECDSA, P-384): use the file node.key")
    return key, key.public_key()


def _sleep(patience: float, is_over: Callable[[], bool]) -> float:
    """Wait, in small pieces; returns how long to wait the next time."""
    end = time.monotonic() + patience
    while time.monotonic() < end and not is_over():
        time.sleep(0.05)
    return min(2 * patience, _AGAIN_LAST)

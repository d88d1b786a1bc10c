"""A coordinator's link over a real SuperLink.

The coordinator is not an app that the server runs: it stays the command that a person started, on
that person's machine, with journal and results in that person's run directory. To Flower it is the
process that serves the run's ServerApp task, which a SuperLink started with ``--isolation process``
hands to whoever holds its executor secret. So the run directory is where it belongs from the first
byte on, and a coordinator that is restarted opens a new run of Flower and goes on with its own.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from consilience.engines.flower._flwr import (
    MESSAGE_TYPE,
    Beats,
    Server,
    check_release,
    client,
    executor_interceptor,
    losses,
    own_app,
    packed,
    unpacked,
    whole,
)
from consilience.engines.flower.handler import Content, Delivered, LinkLost
from consilience.exceptions import StudyError
from consilience.wire.codec import MAX_BYTES

# isort: split
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto import runtime_pb2
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

_MOST = 2 * MAX_BYTES
_TAKE = 10.0
"""Seconds until a run that was submitted must be ours to serve."""
_TRIES = 3
"""Runs that are submitted: a coordinator elsewhere may take one for abandoned and end it."""


class GridLink:
    """Serves one run of Flower; see `consilience.engines.flower.handler.Link`.

    Parameters
    ----------
    server : Server
    secret : bytes
        The server's executor secret.
    lock : Path
        File by which coordinators on one machine take turns in taking their tasks.

    Raises
    ------
    LinkLost
        The server cannot be reached, or does not let this coordinator in.
    """

    def __init__(self, server: Server, secret: bytes, lock: Path) -> None:
        check_release()
        self._beats: Beats | None = None
        self._grid: HttpGrid | None = None
        with losses("beginning a run at the SuperLink"), _alone(lock):
            self.flower_run, token = _begun(server, secret)
        with losses("joining the run at the SuperLink"):
            self._client = client(
                RuntimeHttpClient, server, "flwr-serverapp", RuntimeTokenHttpInterceptor(token)
            )
            given = self._client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
            # Flower reads from here whose messages these are.
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            self._grid = HttpGrid(server.address, server.certificate is None, token=token)
            # Its own client would answer some errors by stopping this process.
            self._grid._client = self._client
            self._grid.set_run(run_from_proto(given.run))
        request = runtime_pb2.SendTaskHeartbeatRequest()
        self._beats = Beats(lambda: self._client.SendTaskHeartbeat(request))

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that are connected now."""
        with losses("looking for connected sites"):
            return tuple(sorted(self._open.get_node_ids()))

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        """Hand over a message; empty where the server refused it."""
        message = Message(packed(content), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=seconds)
        with losses("sending a message"):
            ids = list(self._open.push_messages([message]))
        return str(ids[0]) if ids and ids[0] else ""

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        """Return what has come back."""
        with losses("fetching replies"):
            request = runtime_pb2.PullAppMessagesRequest(message_ids=list(ids))
            answer = self._client.PullMessages(request)
            pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
            found = []
            for message in (self._whole(head, tree) for head, tree in pairs):
                failed = message.has_error()
                content = None if failed else unpacked(message) or {}
                fault = f"error {int(message.error.code)}" if failed else ""
                found.append(Delivered(message.metadata.reply_to_message_id, content, fault))
            return found

    def close(self, *, well: bool) -> None:
        """Tell the server that this run of Flower is over, if it still listens."""
        if self._beats is not None:
            self._beats.stop()
        status = SubStatus.COMPLETED if well else SubStatus.FAILED
        with suppress(LinkLost), losses("ending the run"):
            self._client.PushTaskOutput(
                runtime_pb2.PushTaskOutputRequest(sub_status=status, details="")
            )
        self._grid = None
        self._client.close()

    def _whole(self, head: Any, tree: Any) -> Message:
        run, node = self._open.run.run_id, self._open.node
        pull = make_pull_object_fn_protobuf(self._client.PullObject, node, run)
        message = whole(head.metadata.message_id, tree, pull, most=_MOST)
        confirm = make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, node, run
        )
        confirm(head.metadata.message_id)
        return message

    @property
    def _open(self) -> HttpGrid:
        if self._grid is None:
            raise LinkLost("the link is closed")
        return self._grid


def read_secret(path: Path) -> bytes:
    """Read the server's executor secret.

    Raises
    ------
    StudyError
        It is missing, or others may read it.
    """
    try:
        # Whoever reads it may take runs from this coordinator.
        mode = path.stat().st_mode
        text = path.read_bytes().strip()
    except OSError as error:
        raise StudyError(
            f"the server's executor secret {path} cannot be read ({error.strerror}): it is made by "
            "'consilience flower keys' or 'consilience flower coordinator'"
        ) from None
    if mode & 0o077:
        raise StudyError(f"other users of this machine may read {path}: run 'chmod 600 {path}'")
    if len(text) < 32:
        raise StudyError(f"{path} holds no executor secret of at least 32 characters")
    return text


def _begun(server: Server, secret: bytes) -> tuple[int, str]:
    """A run of Flower and the token of its task."""
    for left in range(_TRIES - 1, -1, -1):
        run = _submit(server)
        try:
            return run, _take(server, secret, run)
        except LinkLost:
            if not left:
                raise
    raise LinkLost("the SuperLink did not begin a run")


def _submit(server: Server) -> int:
    """Begin a run of Flower with the one app there is."""
    packed, hashed = own_app()
    control = client(ControlHttpClient, server, "flwr CLI")
    try:
        answer = control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(hashed, packed, {}))))
    finally:
        control.close()
    if not answer.HasField("run_id"):
        raise LinkLost("the SuperLink did not begin a run")
    return int(answer.run_id)


def _take(server: Server, secret: bytes, run: int) -> str:
    """Token of our run's task; tasks of runs that somebody left behind are ended."""
    runtime = client(RuntimeHttpClient, server, "flwr-serverapp", executor_interceptor(secret))
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    end = time.monotonic() + _TAKE
    try:
        while time.monotonic() < end:
            # The server hands out tasks in its own order: those left behind come first, and are
            # ended.
            answer = runtime.AcquireTask(request)
            if not answer.HasField("task") or not answer.token:
                time.sleep(0.1)
            elif answer.task.run_id == run:
                return str(answer.token)
            else:
                _end(server, answer.token)
    finally:
        runtime.close()
    raise LinkLost(
        "the SuperLink gave the run to nobody or to another process: start it with "
        "'consilience flower coordinator' (--isolation process)"
    )


def _end(server: Server, token: str) -> None:
    runtime = client(
        RuntimeHttpClient, server, "flwr-serverapp", RuntimeTokenHttpInterceptor(token)
    )
    with suppress(LinkLost), losses("ending an abandoned run"):
        runtime.PullTaskInput(runtime_pb2.PullTaskInputRequest())
        runtime.PushTaskOutput(
            runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="")
        )
    runtime.close()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Take turns with other coordinators of this machine."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StudyError(f"{path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

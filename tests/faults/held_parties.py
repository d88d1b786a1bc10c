"""Processes around a release queue that die, or find the disk full, at a chosen boundary.

The only ways to make anything durable are a rename in ``consilience.wire.files`` and
`AppendLog.append`; their calls, numbered from 1, are the boundaries of a process. `Fate` notes each
in a trace, and beside each message that the site puts into the folder what its job said then.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any, Literal

from consilience.engines.folder import watch
from consilience.exceptions import ConsilienceError
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire import files
from consilience.wire.signing import SigningKey
from tests.faults.cases import SITES, loader
from tests.faults.zygote import in_directory

ASH = SITES[0]
POLICY = Policy(max_runs=None)
POLL = 0.02
REASON = "the table of ward 7 is not final, says Dr Quill"
Action = Literal["kill", "after", "full", ""]


class Fate:
    """The module ``os`` as ``wire.files`` sees it, and the end that a process comes to."""

    def __init__(self, root: Path, trace: str, action: Action, at: int) -> None:
        self._root, self._action, self._at, self._count = root, action, at, 0
        self._trace = os.open(root / trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._append = files.AppendLog.append
        fate = self

        def append(log: files.AppendLog, *parts: bytes) -> None:
            fate.append(log, *parts)

        files.os = self  # type: ignore[assignment]
        files.AppendLog.append = append  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def replace(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        path = Path(in_directory(dst_dir_fd, target))
        self._comes("kill", path)
        os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._comes("after", path)

    def append(self, log: files.AppendLog, *parts: bytes) -> None:
        if log.path is None:
            return
        self._comes("kill", log.path)
        self._append(log, *parts)
        self._comes("after", log.path)

    def _comes(self, moment: Action, path: Path) -> None:
        name = os.path.relpath(path, self._root)
        if moment == "kill":
            self._count += 1
            self._note(name)
        if self._count != self._at:
            return
        if self._action == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == "full" and moment == "kill":
            raise files.explain(OSError(errno.ENOSPC, "no space"), "write", path)

    def _note(self, name: str) -> None:
        said = "-"
        if name.endswith(f"-{ASH}.msg"):
            run, job = name.split("/")[-3], name.split("/")[-1].removesuffix(f"-{ASH}.msg")
            path = self._root / f"home-{ASH}" / "jobs" / run / f"{job}.json"
            said = json.loads(path.read_bytes())["state"] if path.is_file() else "no job"
        os.write(self._trace, f"{self._count} {name} {said.replace(' ', '-')}\n".encode())


def keep_watch(root: Path, trace: str, action: Action = "", at: int = 0) -> None:
    """Be the site that holds every reply, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Fate(root, trace, action, at)
    try:
        watch(
            Site(ASH, loader(ASH), policy=POLICY, home=DiskStore(root / f"home-{ASH}"), hold="all"),
            root / "shared",
            key=SigningKey.load(root / f"keys-{ASH}"),
            coordinators=[SigningKey.load(root / "keys").public],
            stop=stop,
            poll=POLL,
        )
    except ConsilienceError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(error.exit_code)


def decide(root: Path, job: tuple[str, int, int], how: str, action: Action, at: int) -> None:
    """Be the steward's command; ends with 0 if this one has decided, with 3 if another had."""
    Fate(root, f"trace-{how}", action, at)
    jobs = DiskStore(root / f"home-{ASH}").jobs
    try:
        done = jobs.release(*job) if how == "release" else jobs.refuse(*job, REASON)
    except ConsilienceError as error:
        os._exit(error.exit_code)
    os._exit(0 if done else 3)

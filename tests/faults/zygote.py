"""Starts coordinators and sites as processes of their own, and lets them die at chosen moments.

The package is imported once; every process is a fork, so a hundred crashes take seconds. Nothing of
this is in the package: the child replaces ``os`` in ``consilience.wire.files`` by an object that
counts, and wraps ``AppendLog.append``. Those two are the only ways to make anything durable, so
their calls, numbered from 1, are all the *boundaries* of a process.

At boundary `at` the child does one thing:

========  =========================================================================================
kill      SIGKILL before the rename, or before anything of the record is written
torn      SIGKILL with half of the record in the file (appended records only)
after     SIGKILL when file or record are durable
stop      SIGSTOP there; somebody else continues it
full      the disk is full: a few bytes short, then ENOSPC
========  =========================================================================================

With ``at = 0`` it does so once at *each* boundary: what was acted on is noted in the file ``seen``,
so that a process that is started again comes one boundary further. Boundaries are then told apart
by name and content before, and files that only tell of times count once.

`damage` is done to each message in the folder when it is first written, before anybody can see it
whole; what its writer puts there later stays, except with ``always``. ``"by turns"`` does the next
kind of damage to the next message, beginning with that of ``turn``. ``shift`` is a list of hours
by which the clock of the process is wrong, one after the other at each boundary; files in the
folder get such times too.

Commands come as one line of JSON each; see `main`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from consilience.engines import rundir
from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, watch
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.sites import site as site_module
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire import files
from consilience.wire.envelope import Request
from consilience.wire.signing import SigningKey
from tests.faults.cases import CASES, PARTNER_KEY, SITES, loader

POLL = 0.02
DAMAGES = ("truncated", "altered", "duplicated", "reordered")
TELL_OF_TIMES = ("events.jsonl", "state.json", "log.jsonl")
_TIME = time.time


class Fate:
    """Counts boundaries, notes them in the process's trace, and acts at one of them."""

    def __init__(self, root: Path, spec: dict[str, Any]) -> None:
        self._root, self._action, self._at = root, spec.get("action", ""), spec.get("at", 0)
        self._trace = _to_append(root / spec["trace"])
        self._count = 0
        self._depth = 0
        self._name = ""
        self._damage, self._shift = spec.get("damage", ""), spec.get("shift", [])
        self._always, self._turn = spec.get("always", False), spec.get("turn", 0)
        self._sent: dict[str, bytes] = {}
        self._seen: set[str] = set()
        self._times: Counter[str] = Counter()
        self._noted = -1
        if "seen" in spec:
            path = root / spec["seen"]
            for line in path.read_text().splitlines() if path.exists() else []:
                kind, key = line.split(" ", 1)
                if kind == "done":
                    self._times[key] += 1
                else:
                    self._seen.add(key)
            self._noted = _to_append(path)
        if self._shift:
            self._set_clock()

    def note(self, *words: object) -> None:
        os.write(self._trace, (" ".join(str(word) for word in words) + "\n").encode())

    def install(self) -> None:
        files.os = _Os(self)  # type: ignore[assignment]
        self._append = files.AppendLog.append
        fate = self

        def append(log: files.AppendLog, *parts: bytes) -> None:
            fate.append(log, b"".join(parts))

        files.AppendLog.append = append  # type: ignore[method-assign]

    def replace(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        source, target = in_directory(src_dir_fd, source), in_directory(dst_dir_fd, target)
        name = self._begin(Path(target))
        data = Path(source).read_bytes()
        self._die_if("kill", "torn")
        if self._at == 0 and self._is_due("full"):
            os.truncate(source, max(0, len(data) - 3))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not self._damaged(name, Path(source), Path(target), data):
            os.replace(source, target)
            self._misdate(name, Path(target))
        self._done(name)
        self.note("file", self._count, name, hashlib.sha256(data).hexdigest()[:16])
        self._die_if("after")

    def append(self, log: files.AppendLog, record: bytes) -> None:
        if log.path is None:
            return
        if not log.durable:  # nobody waits for it: no boundary
            self._append(log, record)
            return
        name = self._begin(log.path)
        self._die_if("kill")
        if self._is_due("torn"):
            with open(log.path, "ab") as file:
                file.write(record[: len(record) // 2])
                file.flush()
                os.fsync(file.fileno())
            self._die_if("torn")
        if self._at == 0 and self._is_due("full"):
            with open(log.path, "ab") as file:
                file.write(record[:-3])
            raise files.explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "write", log.path)
        self._depth += 1
        self._append(log, record)
        self._depth -= 1
        self._done(name)
        self.note("append", self._count, name)
        self._die_if("after")

    def fsync(self, handle: int) -> None:
        # A file is flushed before its boundary is counted (by the rename), a record after.
        number = self._count if self._depth else self._count + 1
        if (
            self._action == "full"
            and 0 < self._at == number
            and stat.S_ISREG(os.fstat(handle).st_mode)
        ):
            os.ftruncate(handle, max(0, os.fstat(handle).st_size - 3))
            self._at = -1
            self._depth = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)

    def _begin(self, path: Path) -> str:
        self._count += 1
        self._name = name = os.path.relpath(path, self._root)
        self.note("begin", self._count, name)
        if self._is_due("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return name

    def _is_due(self, *actions: str) -> bool:
        if self._action not in actions:
            return False
        if self._at:
            return self._count == self._at
        if self._noted < 0:
            return True
        # A step writes all its outputs again: meeting the fault at every repetition of each of k
        # files would take 2^k starts, so every output meets it once.
        often = not self._name.endswith(TELL_OF_TIMES) and "/outputs/" not in self._name
        key = f"{self._name}#{self._times[self._name] if often else 0}"
        if key in self._seen:
            return False
        self._seen.add(key)
        os.write(self._noted, f"seen {key}\n".encode())
        self.note("fault", self._count, self._name, self._action)
        return True

    def _done(self, name: str) -> None:
        if self._noted >= 0:
            self._times[name] += 1
            os.write(self._noted, f"done {name}\n".encode())

    # ---------------------------------------------------------------- messages and clocks

    def _damaged(self, name: str, source: Path, target: Path, data: bytes) -> bool:
        """Damage a message that is written for the first time; whether that was done."""
        is_message = name.startswith("shared/runs/") and name.endswith(".msg")
        if not self._damage or not is_message or (name in self._sent and not self._always):
            return False
        earlier = [sent for other, sent in self._sent.items() if other != name][-1:]
        damage = self._damage
        if damage == "by turns":
            damage = DAMAGES[(len(self._sent) + self._turn) % len(DAMAGES)]
        self._sent[name] = data
        self.note("fault", self._count, name, damage)
        place = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
        if damage == "duplicated":
            os.replace(source, target)
            self._misdate(name, target)
            _duplicate(target, data)
            return True
        if damage == "reordered" and not earlier:
            source.unlink()  # The first comes last: its writer has to write it again.
            return True
        at = place % len(data)
        wrong = {
            "truncated": data[:at],
            "altered": data[:at] + bytes([data[at] ^ 1 << place % 8]) + data[at + 1 :],
            "reordered": b"".join(earlier),
        }
        source.write_bytes(wrong[damage])
        os.replace(source, target)
        return True

    def _hours(self) -> float:
        return float(self._shift[self._count % len(self._shift)])

    def _misdate(self, name: str, path: Path) -> None:
        if self._shift and name.startswith("shared/"):
            wrong = _TIME() + 3600 * self._hours()
            os.utime(path, (wrong, wrong))
            self.note("fault", self._count, name, "skewed")

    def _set_clock(self) -> None:
        """Put the wall clock wrong; the clock that only measures (monotonic) goes on."""
        plain = {name: getattr(time, name) for name in ("gmtime", "localtime", "ctime")}
        time.time = lambda: _TIME() + 3600 * self._hours()  # type: ignore[assignment]
        time.time_ns = lambda: int(time.time() * 1e9)  # type: ignore[assignment]
        for name, real in plain.items():
            setattr(time, name, _told(real))

    def _die_if(self, *actions: str) -> None:
        if self._is_due(*actions):
            os.kill(os.getpid(), signal.SIGKILL)


def _told(real: Callable[[float], Any]) -> Callable[..., Any]:
    return lambda seconds=None: real(time.time() if seconds is None else seconds)


def in_directory(handle: int, name: str) -> str:
    """Path of a name in an open directory."""
    return os.path.join(os.readlink(f"/proc/self/fd/{handle}"), name)


def _to_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _duplicate(target: Path, data: bytes) -> None:
    """Put copies of a message wherever one could be taken for another message."""
    round_, attempt, site = target.stem.split("-", 2)
    other = {"asks": "replies", "replies": "asks"}[target.parent.name]
    names = [
        target.with_name(f"{target.stem} (conflicted copy 2026-11-21).msg"),
        target.with_name(f"{target.stem}.sync-conflict-20261121-101010-ABCDEFG.msg"),
        target.with_name(f"{target.name}~"),
        target.with_name(f"{int(round_) + 1}-{attempt}-{site}.msg"),
        target.with_name(f"{round_}-{int(attempt) + 1}-{site}.msg"),
        *(target.with_name(f"{round_}-{attempt}-{s}.msg") for s in SITES if s != site),
        target.parent.parent / other / target.name,
    ]
    for path in names:
        try:
            with open(path, "xb") as file:
                file.write(data)
        except OSError:
            continue  # There is something already, or the run is closed.


class _Os:
    """The module ``os`` as ``wire.files`` sees it."""

    def __init__(self, fate: Fate) -> None:
        self.replace, self.fsync = fate.replace, fate.fsync

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


# --------------------------------------------------------------------------- roles


def coordinator(spec: dict[str, Any], root: Path) -> None:
    """Run or resume a study through the folder."""
    rundir.secrets = SimpleNamespace(token_bytes=lambda n: b"s" * n)  # type: ignore[attr-defined]
    case = CASES[spec["case"]]
    keys = {site: SigningKey.load(root / f"keys-{site}").public for site in case.sites}
    engine = FolderEngine(root / "shared", case.sites, SigningKey.load(root / "keys"), keys, POLL)
    federation = Federation(
        engine,
        case.columns,
        case.preparation,
        quorum=spec.get("quorum"),
        deadline=spec.get("deadline", 90.0),
        **case.settings,
    )
    # Before the first file there is nothing to go on with: a person begins again.
    resume = spec.get("resume", False) and (root / spec["run"] / "run.json").exists()
    federation.run(
        case.method(),
        seed=None if resume else 5,
        out=root / spec["run"],
        resume=resume,
        retry_refused=spec.get("retry_refused", False),
        run_id=spec["run"],
    )


def site(spec: dict[str, Any], root: Path, fate: Fate) -> None:
    """Watch the folder until SIGTERM."""
    name = spec["site"]
    real = site_module.compute

    def compute(work: site_module.Work) -> site_module.Outcome:
        r: Request = work.request
        fate.note("compute", r.run, r.round, r.attempt, r.step)
        return real(work)

    site_module.compute = compute
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    watch(
        member(name, home=DiskStore(root / f"home-{name}")),
        root / "shared",
        key=SigningKey.load(root / f"keys-{name}"),
        coordinators=[SigningKey.load(root / "keys").public],
        stop=stop,
        poll=POLL,
    )


def member(name: str, **settings: Any) -> Site:
    policy = Policy(
        preset="consortium", share_response=True, max_revealed_rank="full", max_runs=None
    )
    return Site(name, loader(name), policy=policy, partner_key=PARTNER_KEY, **settings)


def _child(spec: dict[str, Any]) -> int:
    root = Path(spec["root"])
    sink = os.open(root / spec["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    logging.disable(logging.CRITICAL)
    fate = Fate(root, spec)
    fate.install()
    try:
        if spec["role"] == "coordinator":
            coordinator(spec, root)
        else:
            site(spec, root, fate)
    except ConsilienceError as error:
        print(error, flush=True)
        return error.exit_code
    return 0


# --------------------------------------------------------------------------- commands


def _warm_up() -> None:
    """Import and compile what the cases need, once for all forks."""
    for case in CASES.values():
        engine = LocalEngine([member(name) for name in case.sites])
        federation = Federation(engine, case.columns, case.preparation, **case.settings)
        federation.run(case.method(), seed=5)


def _start(spec: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(0)
        status = _child(spec)
    except BaseException:  # noqa: BLE001  whatever it is, it must not return into the parent's loop
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, seconds: float, options: int = 0) -> int | str | None:
    """Exit code, minus the signal that killed it, ``"stopped"``, or None when time is up."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | options)
        if found:
            return "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def main() -> None:
    """Read commands: start, wait (until a process ends or, with "stopped", is stopped)."""
    # A child that is told to end before it listens must not die of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _warm_up()
    living: set[int] = set()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "start":
            answer: object = _start(command)
            living.add(int(str(answer)))
        else:
            options = os.WUNTRACED if command.get("stopped") else 0
            answer = _wait(command["pid"], command["seconds"], options)
            if isinstance(answer, int):
                living.discard(command["pid"])
        print(json.dumps(answer), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

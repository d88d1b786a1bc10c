"""The run directory: everything that a run leaves at the coordinator.

::

    <run>/
      run.json           schema, release and versions, method, study, seed
      journal/log        asks, replies and order of delivery; journal/salt
      transcript.jsonl   what crossed, chained by hashes
      result.json, result.npz
      context.json       notes, the scaling that was applied, where the transcript ended
      events.jsonl       times and retries, outside the chain
      state.json         begun, running, finished, failed or stopped
      report.html
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from consilience.exceptions import ConsilienceError, RunError
from consilience.protocol.result import Result
from consilience.wire.files import (
    AppendLog,
    StateFile,
    atomic_write,
    explain,
    make_directory,
    write_json,
)
from consilience.wire.transcript import Journal, Line, Transcript, read_transcript

RUN_SCHEMA = 1
BEGUN, RUNNING, FINISHED, FAILED, STOPPED = "begun", "running", "finished", "failed", "stopped"
STATES = {
    BEGUN: (RUNNING,),
    # Again: another process goes on where one has died.
    RUNNING: (RUNNING, FINISHED, FAILED, STOPPED),
    STOPPED: (RUNNING,),
    FAILED: (RUNNING,),
    FINISHED: (RUNNING,),
}
_SHOWN = 1000
_NUMERIC = ("numpy", "scipy", "scikit-learn", "numba", "threadpoolctl")


@dataclass(frozen=True)
class RunInfo:
    """What ``run.json`` says.

    Attributes
    ----------
    run, name, study : str
        Run id, name of the study, hash of the study.
    method : str
    method_version : int
    parameters : dict
    release : str
        Package version.
    libraries : dict
        Versions on which the bytes of results depend, and ``lock``, their hash.
    seed : int
    sites : tuple of str
    engine : str
    settings : dict
        Columns, preparation, quorum, deadline, roles.
    follows : str
        Id of the run that this one follows, or "".
    study_file : str
        Where the study file was, seen from the run directory; "" without one.
    """

    run: str
    name: str
    study: str
    method: str
    method_version: int
    parameters: dict[str, Any]
    release: str
    libraries: dict[str, str]
    seed: int
    sites: tuple[str, ...]
    engine: str
    settings: dict[str, Any] = field(default_factory=dict)
    schema: int = RUN_SCHEMA
    follows: str = ""
    study_file: str = ""


def libraries() -> dict[str, str]:
    """Return versions of the numerical libraries and their hash."""
    found = {name: _version(name) for name in _NUMERIC}
    found["lock"] = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    return found


@cache
def _version(name: str) -> str:
    """Version of a library; looked up once, since a whole search path is read for it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


class RunStore:
    """Journal, transcript and files of one run, on disk or in memory.

    Parameters
    ----------
    info : RunInfo
    path : Path or None
        ``None`` keeps everything in memory.
    """

    def __init__(self, info: RunInfo, path: Path | None) -> None:
        self.info, self.path = info, path
        # Before anything is read: another coordinator could be writing it.
        self._lock = None if path is None else _lock(path)
        self.journal = Journal(None if path is None else path / "journal" / "log")
        salt = secrets.token_bytes(16)
        if path is not None:
            # The digests of a run that goes on are made with the salt that it began with.
            kept = path / "journal" / "salt"
            if not kept.exists():
                atomic_write(kept, salt)
            salt = kept.read_bytes()
        lines = None if path is None else path / "transcript.jsonl"
        self.transcript = Transcript(lines, info.run, salt)
        self._events = _events(path)
        self._state = state_file(path)

    @classmethod
    def create(cls, info: RunInfo, path: Path | None) -> RunStore:
        """Start a run; `RunError` where the directory already holds one."""
        if path is not None:
            make_directory(path)
            if (path / "run.json").exists():
                raise RunError(
                    f"{path} already holds a run: go on with it by --resume, or choose another "
                    "directory by --out"
                )
            write_json(path / "run.json", info.__dict__)
        return cls(info, path)

    def event(self, kind: str, **facts: Any) -> None:
        """Note a time or a retry, outside the chain."""
        _note(self._events, kind, **facts)

    def write_result(self, result: Result, context: dict[str, Any]) -> None:
        """Write the result; ``result.json`` comes last and marks the run as finished."""
        if self.path is None:
            return
        files = result.to_files()
        context = {**context, "transcript": _end_of(tuple(self.transcript.lines))}
        write_json(self.path / "context.json", context)
        # The arrays before the text: where result.json is, all of it is.
        atomic_write(self.path / "result.npz", files["result.npz"])
        atomic_write(self.path / "result.json", files["result.json"])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Note that the run is running, and then how that ended: finished, failed or stopped."""
        self._state.move(self._state.read(), RUNNING, since=round(time.time(), 3), reason="")
        try:
            yield
        except BaseException as error:
            failed = isinstance(error, Exception)
            said = str(error) if isinstance(error, ConsilienceError) else type(error).__name__
            # Where this cannot be written either, the state says running and the lock is free:
            # that is how the run of a process that died is known too.
            with suppress(RunError):
                self._state.move(RUNNING, FAILED if failed else STOPPED, reason=said)
            raise
        self._state.move(RUNNING, FINISHED)

    def close(self) -> None:
        """Let another process have the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_info(path: Path) -> RunInfo:
    """Read ``run.json``.

    Raises
    ------
    RunError
        It is missing, damaged, or of another schema.
    """
    try:
        raw = json.loads((path / "run.json").read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} holds no run: there is no run.json in it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"run.json in {path} cannot be read ({type(error).__name__})") from None
    if not isinstance(raw, dict) or raw.get("schema") != RUN_SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else None
        raise RunError(
            f"the run in {path} has schema {found!r} and this release reads {RUN_SCHEMA}: use the "
            "release that made it"
        )
    try:
        return RunInfo(**{**raw, "sites": tuple(raw["sites"])})
    except (TypeError, KeyError):
        raise RunError(f"run.json in {path} is damaged") from None


def read_lines(path: Path) -> tuple[Line, ...]:
    """Read the transcript of a run and verify its chain, and its end once the run has ended.

    Raises
    ------
    RunError
        A line is missing, altered or unreadable.
    """
    lines = read_transcript(path / "transcript.jsonl")
    if (path / "result.json").exists():
        try:
            ended = json.loads((path / "context.json").read_bytes())["transcript"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise RunError(f"context.json in {path} is damaged: restore it from a copy") from None
        # The chain alone does not show that its last lines were cut off.
        if ended != _end_of(lines):
            raise RunError(
                f"the transcript in {path} does not end as the run left it: lines at its end were "
                "taken away or added"
            )
    return lines


def _end_of(lines: tuple[Line, ...]) -> dict[str, Any]:
    return {"lines": len(lines), "chain": lines[-1].chain if lines else ""}


def check_resumable(path: Path, found: RunInfo, wanted: RunInfo) -> None:
    """Refuse to go on with a run that other code or another study has begun."""
    for what, old, new in (
        ("release", found.release, wanted.release),
        ("method", found.method, wanted.method),
        ("method version", found.method_version, wanted.method_version),
        ("study", found.study, wanted.study),
        ("parameters", found.parameters, wanted.parameters),
        ("numerical libraries", found.libraries, wanted.libraries),
    ):
        # As text: a missing cell in reference rows is NaN, which equals nothing.
        if json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):
            raise RunError(
                f"the run in {path} was begun with {what} {_short(old)} and now it is "
                f"{_short(new)}: it cannot be resumed; start a new run"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def new_run_id(name: str) -> str:
    """Return a run id that nobody has used: study name, time, random letters."""
    # Readable and sorted by time; the random letters keep two runs of one second apart.
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{name[:40]}-{stamp}-{secrets.token_hex(3)}"


def state_file(path: Path | None) -> StateFile:
    """Return the state of a run; only who holds the directory moves it."""
    return StateFile(None if path is None else path / "state.json", STATES, BEGUN)


def purge(path: Path) -> bool:
    """Drop the payloads of a run (journal and salt); transcript, result and report stay.

    Returns whether there were any; that they were dropped is noted in the run's events.

    Raises
    ------
    RunError
        There is no run, a coordinator is at work on it, or it cannot be removed.
    """
    import shutil

    read_info(path)
    if not (path / "journal").is_dir():
        return False
    # A run that is going on still needs its payloads.
    with _lock(path):
        # Noted first: a purge that is interrupted has happened.
        _note(_events(path, durable=True), "purged")
        try:
            shutil.rmtree(path / "journal", ignore_errors=False)
        except OSError as error:
            raise explain(error, "remove", path / "journal") from error
    return True


def _events(path: Path | None, *, durable: bool = False) -> AppendLog:
    events = None if path is None else path / "events.jsonl"
    # Times and retries are only told: nothing waits until they are on disk.
    return AppendLog(events, lambda data: data.rfind(b"\n") + 1, durable=durable)


def _note(events: AppendLog, kind: str, **facts: Any) -> None:
    line = json.dumps({"time": round(time.time(), 3), "event": kind, **facts}, sort_keys=True)
    events.append(line.encode() + b"\n")


def _lock(path: Path) -> IO[bytes]:
    """Hold the directory for one coordinator; the lock goes with the process."""
    make_directory(path)
    try:
        file = open(path / ".lock", "wb")  # noqa: SIM115  held until close()
    except OSError as error:
        raise explain(error, "write", path / ".lock") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(
            f"another coordinator is at work in {path}: wait until it has ended"
        ) from None
    # A child that outlives the coordinator would hold the lock.
    os.set_inheritable(file.fileno(), False)
    return file

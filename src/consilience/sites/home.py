"""Where a site keeps what must outlive a process: records, outputs, ledger, log.

::

    <home>/
      runs/<run id>/<round>-<attempt>.record   state and reply, written in one atomic rename
      runs/<run id>/series.bin                 last releases of repeated sums, whoever asked
      outputs/<run id>/                        what stays at the site: labels, predictor, provenance
      ledger/<data id>.json                    runs opened, epsilon spent, directions revealed: kept
                                               outside run folders
      kept/<data id>/<name>.bin                what was drawn once for the data, with its noise
      jobs/<run id>/<round>-<attempt>.json     replies that are held, and the steward's decisions
      log.jsonl                                the site's own log

`MemoryHome` keeps the same in memory, for a federation that lives in one process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.exceptions import RunError, WireError
from consilience.wire.codec import digest, pack, unpack
from consilience.wire.files import AppendLog, atomic_write, explain, make_directory

if TYPE_CHECKING:
    from consilience.sites.jobs import Jobs

_OLD = 3600.0
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Record:
    """What a site keeps of one answered question.

    Attributes
    ----------
    round, attempt : int
    request_digest : str
        Recognises a repeated question.
    reply : bytes
        Encoded reply envelope, repeated as it is.
    state : dict
        The method's state after the step.
    transforms : tuple of (str, bytes)
        Preparing steps so far with their messages, applied to the rows in order.
    opening : bytes
        Message with which the run was opened here, so that rows can be read again.
    study, method : str
        What the run was opened for.
    held_after : tuple of int
        Empty unless the reply waits for the steward: then round and attempt of the answer to whose
        state the site goes back if the reply is refused (0, 0 for none).
    """

    round: int
    attempt: int
    request_digest: str
    reply: bytes
    state: dict[str, Any] = field(default_factory=dict)
    transforms: tuple[tuple[str, bytes], ...] = ()
    opening: bytes = b""
    study: str = ""
    method: str = ""
    held_after: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack(self.__dict__)

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """Decode."""
        try:
            return cls(**unpack(data, max_bytes=1 << 40))
        except (WireError, TypeError):
            raise RunError(
                "a record of this site is damaged: restore its home from a copy, or purge the run"
            ) from None


class Home(ABC):
    """Interface of both homes."""

    @property
    @abstractmethod
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""

    @abstractmethod
    def record(self, run: str, round_: int, attempt: int) -> Record | None:
        """Return the record of one answered question, if there is one."""

    @abstractmethod
    def commit(self, run: str, record: Record) -> None:
        """Keep a record; afterwards the reply may leave."""

    @abstractmethod
    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""

    @abstractmethod
    def series(self, run: str) -> dict[str, Any]:
        """Last releases of a run's repeated sums, over all lines of questions."""

    @abstractmethod
    def write_series(self, run: str, series: dict[str, Any]) -> None:
        """Keep them; before the reply that they describe is committed."""

    @abstractmethod
    def write_outputs(self, run: str, outputs: dict[str, bytes]) -> None:
        """Keep files of a run at the site."""

    @abstractmethod
    def read_output(self, run: str, name: str) -> bytes:
        """Read one of them; `RunError` where it does not exist."""

    @abstractmethod
    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""

    @abstractmethod
    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""

    @abstractmethod
    def ledger(self, data_id: str) -> dict[str, Any]:
        """Read the ledger of a data set."""

    @abstractmethod
    def write_ledger(self, data_id: str, ledger: dict[str, Any]) -> None:
        """Write it, durably."""

    @abstractmethod
    def kept(self, data_id: str, name: str) -> dict[str, Any] | None:
        """Read what was drawn once for a data set, if it was."""

    @abstractmethod
    def write_kept(self, data_id: str, name: str, value: dict[str, Any]) -> None:
        """Keep it, durably; before the reply that shows it is committed."""

    @abstractmethod
    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the site's own log."""

    @abstractmethod
    def read_log(self) -> tuple[dict[str, Any], ...]:
        """Return the lines of the site's own log."""

    @abstractmethod
    def purge(self, run: str) -> None:
        """Drop a run's records; outputs and ledger stay."""


def is_run_id(run: str) -> bool:
    """Whether a name may be a run's."""
    return _RUN_ID.fullmatch(run) is not None and ".." not in run


def check_run_id(run: str) -> str:
    """Refuse run ids that could leave the home's directory."""
    if not is_run_id(run):
        raise RunError("a run id with characters that are not allowed was refused")
    return run


def _output_name(name: str) -> str:
    """Refuse names of outputs that are not plain names of files."""
    if not name or name.startswith(".") or "\0" in name or name != os.path.basename(name):
        raise RunError("an output with a name that is not allowed was refused")
    return name


class MemoryHome(Home):
    """Home of a site that lives in this process."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int, int], bytes] = {}
        self._written: dict[str, float] = {}
        self._series: dict[str, bytes] = {}
        self._outputs: dict[str, dict[str, bytes]] = {}
        self._ledgers: dict[str, dict[str, Any]] = {}
        self._kept: dict[tuple[str, str], bytes] = {}
        self.lines: list[dict[str, Any]] = []

    @cached_property
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""
        from consilience.sites.jobs import Jobs

        return Jobs(None)

    def record(self, run: str, round_: int, attempt: int) -> Record | None:
        """Return the record of one answered question, if there is one."""
        data = self._records.get((run, round_, attempt))
        return None if data is None else Record.from_bytes(data)

    def commit(self, run: str, record: Record) -> None:
        """Keep a record; afterwards the reply may leave."""
        self._records[(run, record.round, record.attempt)] = record.to_bytes()
        self._written[run] = time.time()

    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""
        return dict(self._written)

    def series(self, run: str) -> dict[str, Any]:
        """Last releases of a run's repeated sums, over all lines of questions."""
        return dict(unpack(self._series[run])) if run in self._series else {}

    def write_series(self, run: str, series: dict[str, Any]) -> None:
        """Keep them; before the reply that they describe is committed."""
        self._series[run] = pack(series)

    def write_outputs(self, run: str, outputs: dict[str, bytes]) -> None:
        """Keep files of a run at the site."""
        self._outputs.setdefault(run, {}).update(outputs)

    def read_output(self, run: str, name: str) -> bytes:
        """Read one of them; `RunError` where it does not exist."""
        if name not in self._outputs.get(run, {}):
            raise RunError(f"no output {name!r} of run {run} is kept here")
        return self._outputs[run][name]

    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""
        return tuple(sorted(self._outputs.get(run, {})))

    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""
        return tuple(sorted(self._outputs))

    def ledger(self, data_id: str) -> dict[str, Any]:
        """Read the ledger of a data set."""
        return dict(self._ledgers.get(data_id, {}))

    def write_ledger(self, data_id: str, ledger: dict[str, Any]) -> None:
        """Write it, durably."""
        self._ledgers[data_id] = dict(ledger)

    def kept(self, data_id: str, name: str) -> dict[str, Any] | None:
        """Read what was drawn once for a data set, if it was."""
        data = self._kept.get((data_id, name))
        return None if data is None else dict(unpack(data, max_bytes=1 << 40))

    def write_kept(self, data_id: str, name: str, value: dict[str, Any]) -> None:
        """Keep it."""
        self._kept[(data_id, name)] = pack(value)

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the site's own log."""
        self.lines.append({"event": event, **facts})

    def read_log(self) -> tuple[dict[str, Any], ...]:
        """Return the lines of the site's own log."""
        return tuple(self.lines)

    def purge(self, run: str) -> None:
        """Drop a run's records; outputs and ledger stay."""
        self._records = {key: data for key, data in self._records.items() if key[0] != run}
        self._written.pop(run, None)
        self.jobs.purge(run)


class DiskHome(Home):
    """Home in a directory.

    Parameters
    ----------
    path : Path
        Created if missing.

    Raises
    ------
    RunError
        The directory cannot be created or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = make_directory(path, mode=0o700)

    @cached_property
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""
        from consilience.sites.jobs import Jobs

        return Jobs(self.path / "jobs")

    @cached_property
    def _log(self) -> AppendLog:
        # Opened on use: opening repairs the file, which only the process that writes it may do.
        return AppendLog(self.path / "log.jsonl", lambda data: data.rfind(b"\n") + 1)

    def _record_path(self, run: str, round_: int, attempt: int) -> Path:
        return self.path / "runs" / check_run_id(run) / f"{round_:06d}-{attempt:03d}.record"

    def record(self, run: str, round_: int, attempt: int) -> Record | None:
        """Return the record of one answered question, if there is one."""
        path = self._record_path(run, round_, attempt)
        if not path.exists():
            return None
        return Record.from_bytes(_read(path))

    def commit(self, run: str, record: Record) -> None:
        """Keep a record; afterwards the reply may leave."""
        atomic_write(self._record_path(run, record.round, record.attempt), record.to_bytes())

    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""
        try:
            return {
                folder.name: max(p.stat().st_mtime for p in (folder, *folder.glob("*.record")))
                for folder in (self.path / "runs").glob("[!.]*")
                if folder.is_dir() and is_run_id(folder.name)
            }
        except OSError as error:
            raise explain(error, "read", self.path / "runs") from error

    def series(self, run: str) -> dict[str, Any]:
        """Last releases of a run's repeated sums, over all lines of questions."""
        path = self.path / "runs" / check_run_id(run) / "series.bin"
        if not path.exists():
            return {}
        try:
            return dict(unpack(_read(path), max_bytes=1 << 40))
        except (WireError, TypeError, ValueError):
            raise RunError(f"{path} is damaged: restore it before the run goes on") from None

    def write_series(self, run: str, series: dict[str, Any]) -> None:
        """Keep them; before the reply that they describe is committed."""
        atomic_write(self.path / "runs" / check_run_id(run) / "series.bin", pack(series))

    def write_outputs(self, run: str, outputs: dict[str, bytes]) -> None:
        """Keep files of a run at the site."""
        for name, data in sorted(outputs.items()):
            atomic_write(self.path / "outputs" / check_run_id(run) / _output_name(name), data)

    def read_output(self, run: str, name: str) -> bytes:
        """Read one of them; `RunError` where it does not exist."""
        path = self.path / "outputs" / check_run_id(run) / _output_name(name)
        if not path.is_file():
            raise RunError(f"no output {name!r} of run {run} is kept in {self.path}")
        return _read(path)

    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""
        folder = self.path / "outputs" / check_run_id(run)
        return tuple(sorted(p.name for p in folder.glob("[!.]*"))) if folder.is_dir() else ()

    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""
        folder = self.path / "outputs"
        return tuple(sorted(p.name for p in folder.glob("[!.]*"))) if folder.is_dir() else ()

    def ledger(self, data_id: str) -> dict[str, Any]:
        """Read the ledger of a data set."""
        path = self.path / "ledger" / f"{data_id}.json"
        if not path.exists():
            return {}
        try:
            read = json.loads(_read(path))
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise RunError(f"the ledger {path} is damaged: restore it before anything else runs")
        return read

    def write_ledger(self, data_id: str, ledger: dict[str, Any]) -> None:
        """Write it, durably."""
        text = json.dumps(ledger, indent=1, sort_keys=True) + "\n"
        atomic_write(self.path / "ledger" / f"{data_id}.json", text.encode())

    def _kept_path(self, data_id: str, name: str) -> Path:
        return self.path / "kept" / data_id / f"{digest(name.encode())[:32]}.bin"

    def kept(self, data_id: str, name: str) -> dict[str, Any] | None:
        """Read what was drawn once for a data set, if it was."""
        path = self._kept_path(data_id, name)
        if not path.exists():
            return None
        try:
            return dict(unpack(_read(path), max_bytes=1 << 40))
        except (WireError, TypeError, ValueError):
            raise RunError(
                f"{path} is damaged: restore it, because it cannot be drawn again without a new "
                "price"
            ) from None

    def write_kept(self, data_id: str, name: str, value: dict[str, Any]) -> None:
        """Keep it, durably."""
        atomic_write(self._kept_path(data_id, name), pack(value))

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the site's own log."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": stamp, "event": event, **facts}, sort_keys=True)
        self._log.append(line.encode() + b"\n")

    def read_log(self) -> tuple[dict[str, Any], ...]:
        """Return the lines of the site's own log."""
        path = self.path / "log.jsonl"
        lines = _read(path).decode("utf-8", "replace").splitlines() if path.exists() else []
        return tuple(json.loads(line) for line in lines)

    def purge(self, run: str) -> None:
        """Drop a run's records; outputs and ledger stay."""
        import shutil

        folder = self.path / "runs" / check_run_id(run)
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            raise explain(error, "remove", folder) from error
        # Last: without its job a held reply is held still.
        self.jobs.purge(run)


@contextmanager
def sole(home: Home) -> Iterator[None]:
    """Hold a home for this process; the lock goes with the process.

    Raises
    ------
    RunError
        Another process holds it, or it cannot be written.
    """
    if not isinstance(home, DiskHome):
        yield
        return
    path = home.path / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise explain(error, "write", path) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another process serves the home {home.path}: stop it, or wait until it ends"
            ) from None
        _sweep(home.path)
        yield
    finally:
        os.close(handle)


def _sweep(home: Path) -> None:
    """Remove what a killed process had begun to write."""
    for folder in ("runs", "outputs"):
        for part in (home / folder).glob("*/.*.part"):
            part.unlink(missing_ok=True)
    for part in (home / "jobs").glob("*/.*.part"):
        # Another process may be writing there: only what is old was left by a dead one.
        with suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > _OLD:
                part.unlink()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise explain(error, "read", path) from error

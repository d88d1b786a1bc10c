"""Where a site keeps what must outlive a process: records, outputs, ledger, log.

::

    <home>/
      runs/<run id>/<round>-<attempt>.record   state and reply, with the last releases of the run's
                                               repeated sums: one write, which is waited for
      outputs/<run id>/                        what stays at the site: labels, predictor, provenance
      ledger/<data id>.json                    runs opened, epsilon spent, directions revealed: kept
                                               outside run folders
      kept/<data id>/<name>.bin                what was drawn once for the data, with its noise
      jobs/<run id>/<round>-<attempt>.json     replies that are held, and the steward's decisions
      log.jsonl                                the site's own log: each line has the digest of the
                                               one before it in its own

`MemoryStore` keeps the same in memory, for a federation that lives in one process.

A file that is not as it was written is a `DamageError` that names it. Records, jobs and
outputs concern one run, ledger and kept draws a data set: what does not need the file goes on.

Replies that wait for the steward are the jobs of a site. A question is a job, named by run, round
and attempt::

    computed -> sent                            nothing is held: no file, its record is all there is
    computed -> held -> released -> sent        the steward lets the reply leave
                held -> refused  -> sent        a refusal leaves instead

The record (`Record.held_after`) says that a reply is held, written in the rename that keeps the
reply itself: at no moment is there a reply that may leave by mistake. The job's file
(``jobs/<run>/<round>-<attempt>.json``) has what the steward decided, by compare-and-set, so that
two decisions cannot both be made; a held reply without a file is computed, and still held.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from consilience.exceptions import DamageError, ParameterError, RunError, WireError
from consilience.protocol.phases.opening import Heard
from consilience.wire.codec import decode_message, digest, pack, pack_parts, plain_fields, unpack
from consilience.wire.envelope import Reply
from consilience.wire.files import (
    Beneath,
    StateFile,
    atomic_write,
    explain,
    explained,
    keep_names,
    make_directory,
)
from consilience.wire.message import Disclosure, iterate_fields
from consilience.wire.transcript import describe_shape

T = TypeVar("T")
File = bytes | Callable[[], bytes]
"""Bytes of a file, or what makes them."""

_OLD = 3600.0
_CHECKSUM = 32
_LONG, _MOST_LONG = 1 << 14, 8
"""Bytes from which on an array of the state is written once, and how many are at hand."""
_DATA_IS_DAMAGED = (
    "what the site keeps of this data set is damaged: nothing is answered on it before its steward "
    "has restored it"
)
_NO_FILE_OF_OURS = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP, errno.ENXIO}
    | {errno.EACCES, errno.EPERM, errno.EIO}
)
"""Faults of one file or directory; others, such as a full disk, concern the whole home."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RECORD = re.compile(r"(\d{6,})-(\d{3,})\.record")


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
    series : dict
        Last releases of the run's repeated sums, whoever asked, where this answer changed them.
    changes : int
        How many answers of the run have changed them, this one included.
    elsewhere : dict
        Long arrays of the state that are as they were in an earlier record: its round and attempt.
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
    series: dict[str, Any] = field(default_factory=dict)
    changes: int = 0
    elsewhere: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Record:
        """Decode; `DamageError` where the bytes are no record."""
        try:
            return cls(**_plain(data))
        except (WireError, TypeError, ValueError):
            raise DamageError(
                "a record of this site is damaged: restore its home from a copy, or purge the run"
            ) from None


def _plain(body: bytes | memoryview) -> dict[str, Any]:
    return dict(unpack(body, max_bytes=1 << 40))


class SiteStore(ABC):
    """A home of a site: what must outlive a process, in memory or in a directory.

    Raises
    ------
    DamageError
        From everything that reads: what is kept is not as it was written.
    RunError
        The home as a whole cannot be read or written.
    """

    _place = "here"

    def __init__(self) -> None:
        self._series: dict[str, tuple[set[tuple[int, int]], int, dict[str, Any]]] = {}
        self._long: dict[tuple[str, int, int, str], Any] = {}

    def where(self, *parts: str) -> str:
        """What a file of the home is called towards the steward."""
        return "/".join(parts)

    def damaged(self, *parts: str, why: str = "is damaged") -> DamageError:
        """Error about a file of the home: what to do, and what others are told."""
        what, kind = self.where(*parts), parts[0]
        copy = "restore it from a copy of the home"
        if kind == "ledger":
            return DamageError(
                f"{what} {why}: {copy}, the newest there is: what was spent is counted in it",
                public=_DATA_IS_DAMAGED,
            )
        if kind == "kept":
            return DamageError(
                f"{what} {why}: {copy}, because it cannot be drawn again without a new price",
                public=_DATA_IS_DAMAGED,
            )
        if kind == "outputs":
            return DamageError(f"{what} {why}: {copy}, or remove it")
        return DamageError(f"{what} {why}: {copy}, or purge run {parts[1]}")

    def _write_checked(self, value: dict[str, Any], *parts: str) -> None:
        """Write with a checksum first: what a disk alters is a fault and not another answer."""
        packed, found = pack_parts(value), hashlib.sha256()
        for part in packed:
            found.update(part)
        self._write(b"".join([found.digest(), *packed]), *parts)

    def _decoded(self, decode: Callable[[bytes | memoryview], T], data: bytes, *parts: str) -> T:
        """Decode what a file of the home has after its checksum."""
        # A checksum is no seal against people: it tells a disk's fault from an answer.
        seal, body = data[:_CHECKSUM], memoryview(data)[_CHECKSUM:]
        try:
            if hashlib.sha256(body).digest() == seal:
                return decode(body)
        except (WireError, DamageError, TypeError, ValueError):
            pass
        raise self.damaged(*parts)

    @property
    @abstractmethod
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""

    @abstractmethod
    def _read(self, *parts: str) -> bytes | None:
        """Content of a file, None where there is nothing."""

    @abstractmethod
    def _write(self, data: bytes, *parts: str) -> None:
        """Write a file, whole or not at all, and durably."""

    def _kept_value(self, *parts: str) -> dict[str, Any] | None:
        """Value of a file with a checksum, None where there is nothing."""
        data = self._read(*parts)
        return None if data is None else self._decoded(_plain, data, *parts)

    def record(self, run: str, round_: int, attempt: int) -> Record | None:
        """Return the record of one answered question, if there is one."""
        parts = _record_parts(run, round_, attempt)
        data = self._read(*parts)
        if data is None:
            return None
        record = self._decoded(Record.from_bytes, data, *parts)
        for name, at in record.elsewhere.items():
            key = (run, *at, name)
            if key not in self._long:
                earlier = self.record(run, *at)
                if earlier is None or earlier.state.get(name) is None:
                    raise self.damaged(*_record_parts(run, *at), why="lacks what a later one needs")
                self._keep_long((run, *at), name, earlier.state[name])
            record.state[name] = self._long[key]
        return record

    def commit(self, run: str, record: Record, prior: Record | None = None) -> None:
        """Keep a record; afterwards the reply may leave.

        Parameters
        ----------
        prior : Record, optional
            The one whose state it goes on from.
        """
        place = record.round, record.attempt
        seen, changes, series = self._newest(run) if record.series else self._seen(run)
        change = (record.changes or changes + 1) if record.series else 0
        before = {} if prior is None else prior.state
        elsewhere = {
            name: prior.elsewhere.get(name, (prior.round, prior.attempt))
            for name, value in record.state.items()
            # The very array that the step was given, which nobody can write to.
            if prior and getattr(value, "nbytes", 0) >= _LONG and value is before.get(name)
        }
        for name, at in elsewhere.items():
            self._keep_long((run, *at), name, before[name])
        about = {
            "state": record.state | dict.fromkeys(elsewhere),
            "elsewhere": elsewhere,
            "changes": change,
        }
        self._write_checked({**record.__dict__, **about}, *_record_parts(run, *place))
        last = (change, record.series) if change > changes else (changes, series)
        self._series[run] = ({*seen, place}, *last)

    def _keep_long(self, place: tuple[str, int, int], name: str, array: Any) -> None:
        """Have a long array at hand, of the last few."""
        self._long.pop((*place, name), None)
        while len(self._long) >= _MOST_LONG:
            del self._long[next(iter(self._long))]
        self._long[*place, name] = array

    @abstractmethod
    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""

    @abstractmethod
    def _record_names(self, run: str) -> list[str]:
        """Names of the files that records of a run may be in."""

    def answered(self, run: str) -> tuple[tuple[int, int], ...]:
        """Round and attempt of each question of a run that has a record, in order."""
        found = map(_RECORD.fullmatch, self._record_names(check_run_id(run)))
        return tuple(sorted((int(m[1]), int(m[2])) for m in found if m is not None))

    def series(self, run: str) -> dict[str, Any]:
        """Last releases of a run's repeated sums, over all lines of questions."""
        return self._newest(check_run_id(run))[2]

    def _seen(self, run: str) -> tuple[set[tuple[int, int]], int, dict[str, Any]]:
        """Answers that were looked at, how many have changed the series, and what the last left."""
        return self._series.get(run, (set(), 0, {}))

    def _newest(self, run: str) -> tuple[set[tuple[int, int]], int, dict[str, Any]]:
        """The same of all answers of a run."""
        seen, changes, series = self._seen(run)
        answered = set(self.answered(run))
        for place in sorted(answered - seen):
            record = self.record(run, *place)
            if record is not None and record.changes > changes:
                changes, series = record.changes, record.series
        self._series[run] = answered, changes, series
        return self._series[run]

    def _forget(self, run: str) -> None:
        self._series.pop(run, None)
        self._long = {place: found for place, found in self._long.items() if place[0] != run}

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Write at the end what is written and logged inside: each file and directory once.

        What is noted counts whatever becomes of the question: also where an error ends it.
        """

    @abstractmethod
    def write_copy(self, run: str, name: str, data: bytes) -> None:
        """Keep an output of which the log says as much: a power cut may take the file."""

    def write_outputs(self, run: str, outputs: Mapping[str, File]) -> None:
        """Keep files of a run at the site; one that is a function is what it gives."""
        for name, data in sorted(outputs.items()):
            whole = data if isinstance(data, bytes) else self._made(data)
            self._write(whole, "outputs", check_run_id(run), _output_name(name))

    def _made(self, data: Callable[[], bytes]) -> Any:
        return data()

    def read_output(self, run: str, name: str) -> bytes:
        """Read one of them; `RunError` where it does not exist."""
        data = self._read("outputs", check_run_id(run), _output_name(name))
        if data is None:
            raise RunError(f"no output {name!r} of run {run} is kept {self._place}")
        return data

    @abstractmethod
    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""

    @abstractmethod
    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""

    def ledger(self, data_id: str) -> dict[str, Any]:
        """Read the ledger of a data set."""
        data = self._read("ledger", f"{data_id}.json")
        if data is None:
            return {}
        read = _json(data)
        if read is None:
            raise self.damaged("ledger", f"{data_id}.json")
        return read

    def write_ledger(self, data_id: str, ledger: dict[str, Any]) -> None:
        """Write it, durably."""
        # JSON in lines: a steward may look at a ledger, and compare two copies of one.
        text = json.dumps(ledger, indent=1, sort_keys=True) + "\n"
        self._write(text.encode(), "ledger", f"{data_id}.json")

    def kept(self, data_id: str, name: str) -> dict[str, Any] | None:
        """Read what was drawn once for a data set, if it was."""
        return self._kept_value(*_kept_parts(data_id, name))

    def write_kept(self, data_id: str, name: str, value: dict[str, Any]) -> None:
        """Keep it, durably; before the reply that shows it is committed."""
        self._write_checked(value, *_kept_parts(data_id, name))

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


class MemoryStore(SiteStore):
    """Home of a site that lives in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[tuple[str, ...], Any] = {}
        self._own: dict[tuple[str, ...], bytes] = {}
        self._written: dict[str, float] = {}
        self.lines: list[dict[str, Any]] = []

    @cached_property
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""
        return Jobs(None)

    def _read(self, *parts: str) -> bytes | None:
        found = self.files.get(parts)
        if callable(found):
            self.files[parts] = found = found()
        return found

    def _write(self, data: bytes, *parts: str) -> None:
        self.files[parts] = data

    def together(self) -> AbstractContextManager[None]:
        """Nothing waits here."""
        return nullcontext()

    def write_copy(self, run: str, name: str, data: bytes) -> None:
        """Keep it as other outputs."""
        self.write_outputs(run, {name: data})

    def _made(self, data: Callable[[], bytes]) -> Any:
        return data  # when somebody reads it: few do, and texts of numbers take long

    def _write_checked(self, value: dict[str, Any], *parts: str) -> None:
        # Memory is no disk: that bytes are the very ones that were written needs no checksum.
        self.files[parts] = self._own[parts] = pack(value)

    def _decoded(self, decode: Callable[[bytes | memoryview], T], data: bytes, *parts: str) -> T:
        if data is not self._own.get(parts):
            raise self.damaged(*parts)
        return decode(data)

    def commit(self, run: str, record: Record, prior: Record | None = None) -> None:
        """Keep a record; afterwards the reply may leave."""
        super().commit(run, record, prior)
        self._written[run] = time.time()

    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""
        return dict(self._written)

    def _record_names(self, run: str) -> list[str]:
        return [parts[2] for parts in self.files if parts[:2] == ("runs", run)]

    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""
        return tuple(sorted(parts[2] for parts in self.files if parts[:2] == ("outputs", run)))

    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""
        return tuple(sorted({parts[1] for parts in self.files if parts[0] == "outputs"}))

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the site's own log."""
        self.lines.append({"event": event, **facts})

    def read_log(self) -> tuple[dict[str, Any], ...]:
        """Return the lines of the site's own log."""
        return tuple(self.lines)

    def purge(self, run: str) -> None:
        """Drop a run's records; outputs and ledger stay."""
        # Of a run only its records: outputs and ledgers are what the next run builds on.
        self.files = {p: data for p, data in self.files.items() if p[:2] != ("runs", run)}
        self._own = {p: data for p, data in self._own.items() if p in self.files}
        self._written.pop(run, None)
        self._forget(run)
        self.jobs.purge(run)


class DiskStore(SiteStore):
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
        super().__init__()
        self.path = make_directory(path, mode=0o700)
        self._place = f"in {self.path}"
        self._staged: dict[tuple[str, ...], bytes] | None = None
        self._lines: list[dict[str, Any]] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write at the end what is written and logged inside: each file and directory once."""
        if self._staged is not None:
            yield  # the outer one writes
            return
        staged: dict[tuple[str, ...], bytes] = {}
        self._staged, self._lines = staged, []  # lines of a question that came to nothing
        try:
            yield
        except Exception:  # what was noted counts, whatever became of the question
            self._staged = None
            self._write_all(staged)
            raise
        finally:
            self._staged = None
        self._write_all(staged)

    def _write_all(self, files: Mapping[tuple[str, ...], bytes]) -> None:
        # Whoever asks again finds what is there and does not write it once more: so it has its name
        # before anything else is written, and also where the next file fails.
        for above in dict.fromkeys(parts[:-1] for parts in files):
            folder = self.path.joinpath(*above)
            try:
                for parts in (parts for parts in files if parts[:-1] == above):
                    self._write(files[parts], *parts, named=False)
            except BaseException:
                with suppress(RunError):
                    keep_names(folder)
                raise
            keep_names(folder)
        if self._lines:
            self._add_lines(self._lines)
            self._lines = []

    @cached_property
    def jobs(self) -> Jobs:
        """Replies that were held, and what the steward decided."""
        return Jobs(self.path / "jobs")

    def where(self, *parts: str) -> str:
        """Path of a file."""
        return str(self.path.joinpath(*parts))

    def _read(self, *parts: str) -> bytes | None:
        """Content of a file, None where there is nothing."""
        if self._staged and parts in self._staged:
            return self._staged[parts]
        path = self.path.joinpath(*parts)
        try:
            # A pipe that somebody put here must not stop the site: it is opened without waiting,
            # and refused.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise self.damaged(*parts, why="is no file")
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._fault(error, "read", *parts) from error

    def _write(self, data: bytes, *parts: str, named: bool = True) -> None:
        """Write a file; what is in its way alone is damage."""
        if self._staged is not None:
            self._staged[parts] = data
        else:
            self._put(data, parts, named=named)

    def _put(self, data: bytes, parts: tuple[str, ...], **how: bool) -> None:
        try:
            atomic_write(self.path.joinpath(*parts), data, **how)
        except RunError as error:
            if isinstance(error.__cause__, OSError):
                raise self._fault(error.__cause__, "written", *parts) from error
            raise

    def _fault(self, error: OSError, verb: str, *parts: str) -> RunError:
        # One bad file stops what needs it, a bad disk everything: the two are told apart here.
        if error.errno in _NO_FILE_OF_OURS:
            return self.damaged(*parts, why=f"cannot be {verb} ({error.strerror})")
        return explain(error, {"written": "write"}.get(verb, verb), self.path.joinpath(*parts))

    def write_copy(self, run: str, name: str, data: bytes) -> None:
        """Keep an output of which the log says as much: a power cut may take the file."""
        parts = "outputs", check_run_id(run), _output_name(name)
        self._put(data, parts, named=False, kept=False)

    def recorded(self) -> dict[str, float]:
        """Runs with records, and when the last one was written (seconds since 1970)."""
        try:
            # Names that are no run's are somebody else's files: they are neither listed nor purged.
            names = [name for name in os.listdir(self.path / "runs") if is_run_id(name)]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise explain(error, "read", self.path / "runs") from error
        folders = [self.path / "runs" / name for name in sorted(names)]
        return {folder.name: _last_written(folder) for folder in folders if folder.is_dir()}

    def _record_names(self, run: str) -> list[str]:
        folder = self.path / "runs" / run
        with explained("read", folder):
            return os.listdir(folder) if folder.is_dir() else []

    def output_names(self, run: str) -> tuple[str, ...]:
        """Names of the files kept for a run."""
        staged = [parts[2] for parts in self._staged or () if parts[:2] == ("outputs", run)]
        return self._names(check_run_id(run), staged)

    def runs(self) -> tuple[str, ...]:
        """Runs that left outputs."""
        staged = [parts[1] for parts in self._staged or () if parts[0] == "outputs"]
        return tuple(name for name in self._names("", staged) if is_run_id(name))

    def _names(self, below: str, staged: Iterable[str]) -> tuple[str, ...]:
        folder = self.path / "outputs" / below  # a missing one has no names
        return tuple(sorted({*staged, *(p.name for p in folder.glob("[!.]*"))}))

    def log(self, event: str, **facts: Any) -> None:
        """Add a line to the site's own log."""
        # Universal time, so that logs of several sites can be laid side by side.
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": stamp, "event": event, **facts}
        if self._staged is None:
            self._add_lines([line])
        else:
            self._lines.append(line)

    def _add_lines(self, lines: Sequence[dict[str, Any]]) -> None:
        """Add lines to the log, all at once."""
        path = self.path / "log.jsonl"
        with explained("write", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            handle = os.open(path, flags, 0o600)
            try:
                # A watch and a command of the steward may both write: each goes on from the last
                # line that is there, and not from the last one of its own.
                fcntl.flock(handle, fcntl.LOCK_EX)
                size, before = _end_of_chain(handle)
                chained = []
                for said in lines:
                    chained.append(_chained(said, before) + b"\n")
                    before = _chain_of(chained[-1])
                _add_whole(handle, size, b"".join(chained))
            finally:
                os.close(handle)

    def read_log(self) -> tuple[dict[str, Any], ...]:
        """Return the lines of the site's own log."""
        # What stands behind the last end of a line is being written, or was never finished.
        return _log_lines((self._read("log.jsonl") or b"").rpartition(b"\n")[0])

    def checked_log(self) -> tuple[tuple[dict[str, Any], ...], LogChain]:
        """Return the lines of the site's own log, and whether each goes on from the one before."""
        data = (self._read("log.jsonl") or b"").rpartition(b"\n")[0]
        return _log_lines(data), _check_chain(data)

    def read_log_end(self, most: int) -> tuple[bool, tuple[dict[str, Any], ...]]:
        """Return whole lines from the last `most` bytes of the log, and whether these are all."""
        try:
            with open(self.path / "log.jsonl", "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - most, 0))
                data = file.read(most)
        except FileNotFoundError:
            return True, ()
        except OSError as error:
            raise RunError(f"{self.where('log.jsonl')} cannot be read: {error.strerror}") from None
        # What stands before the first end of a line is the rest of one.
        return size <= most, _log_lines(data if size <= most else data.partition(b"\n")[2])

    def purge(self, run: str) -> None:
        """Drop a run's records; outputs and ledger stay."""
        with explained("remove", self.path / "runs" / run):
            Beneath(self.path).remove("runs", check_run_id(run))
        self._forget(run)
        # Last: without its job a held reply is held still.
        self.jobs.purge(run)


def _log_lines(data: bytes) -> tuple[dict[str, Any], ...]:
    lines = data.splitlines()
    return tuple(_json(line) or {"event": "a line that cannot be read"} for line in lines)


@dataclass(frozen=True)
class LogChain:
    """What the chain of a log says.

    A chain shows a line that was changed, dropped, moved or put in, to whoever did not write all
    that follows anew. Lines that were cut off at the end are seen beside an earlier audit bundle.

    Attributes
    ----------
    n_lines : int
    n_unchained : int
        Lines at the beginning from before logs were chained: changes of them are seen since then.
    broken : int
        First line that does not go on from the one before it; 0 where there is none.
    """

    n_lines: int
    n_unchained: int
    broken: int

    def __str__(self) -> str:
        if self.broken:
            return (
                f"the log of the site breaks at line {self.broken} of {self.n_lines}: it, or one "
                "before it, was changed, dropped or put in"
            )
        if not self.n_lines:
            return "the log of the site has no lines"
        if self.n_unchained:
            return (
                f"the log of the site is unchained up to line {self.n_unchained} of {self.n_lines}"
            )
        return f"the log of the site is chained from its first line to line {self.n_lines}"


def _chained(said: dict[str, Any], before: str) -> bytes:
    """A line of the log, with the digest of what it says and of the digest before it."""
    text = json.dumps(said, sort_keys=True)
    chain = hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
    return json.dumps({**said, "chain": chain}, sort_keys=True).encode()


def _chain_of(line: bytes) -> str:
    """The digest that a line names; empty where it has none."""
    return str((_json(line) or {}).get("chain", ""))


def _check_chain(data: bytes) -> LogChain:
    lines = data.split(b"\n") if data else []
    first = next((n for n, line in enumerate(lines) if _chain_of(line)), len(lines))
    before = hashlib.sha256(b"".join(line + b"\n" for line in lines[:first])).hexdigest()
    for number, line in enumerate(lines[first:], start=first + 1):
        said = _json(line) or {}
        chain = str(said.pop("chain", ""))
        if not chain or _chained(said, before) != line:
            return LogChain(len(lines), first, number)
        before = chain
    return LogChain(len(lines), first, 0)


def _end_of_chain(handle: int) -> tuple[int, str]:
    """Bytes of the whole lines of a log, and the digest from which its next line goes on."""
    size = os.fstat(handle).st_size
    most = 0
    while True:
        most = min(4 * most + 4096, size)
        data = os.pread(handle, most, size - most)
        # What stands behind the last end of a line was never finished: it is written over.
        body, end, _ = data.rpartition(b"\n")
        if most == size or b"\n" in body:
            break
    whole = size - most + len(body) + len(end)
    chain = _chain_of(body.rpartition(b"\n")[2])
    if not chain:
        # A log from before there was a chain: its first digest is of all that is there.
        found = hashlib.sha256()
        for start in range(0, whole, 1 << 20):
            found.update(os.pread(handle, min(1 << 20, whole - start), start))
        chain = found.hexdigest()
    return whole, chain


def _add_whole(handle: int, size: int, line: bytes) -> None:
    """Write behind the first bytes of a file, durably; on a fault these alone are left."""
    os.ftruncate(handle, size)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise


def _record_parts(run: str, round_: int, attempt: int) -> tuple[str, ...]:
    return "runs", check_run_id(run), f"{round_:06d}-{attempt:03d}.record"


def _kept_parts(data_id: str, name: str) -> tuple[str, ...]:
    return "kept", data_id, f"{digest(name.encode())[:32]}.bin"


def _last_written(folder: Path) -> float:
    """Time of the newest record; the folder's own while there is none."""
    # A record may go away while it is looked at: another process purges.
    last = 0.0
    for path in (folder, *folder.glob("*.record")):
        with suppress(OSError):
            last = max(last, path.lstat().st_mtime)
    return last


def _json(data: bytes) -> dict[str, Any] | None:
    """Read an object; None where the bytes are none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def sole(home: SiteStore) -> Iterator[None]:
    """Hold a home for this process; the lock goes with the process.

    Raises
    ------
    RunError
        Another process holds it, or it cannot be written.
    """
    if not isinstance(home, DiskStore):
        yield
        return
    path = home.path / ".lock"
    with explained("write", path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
            with suppress(OSError):
                part.unlink()
    for part in (home / "jobs").glob("*/.*.part"):
        # Another process may be writing there: only what is old was left by a dead one.
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _OLD:
                part.unlink()


# --------------------------------------------------------------- replies that wait for the steward

COMPUTED, HELD, RELEASED, REFUSED, SENT = "computed", "held", "released", "refused", "sent"
TABLE = {
    COMPUTED: (HELD, SENT),
    HELD: (RELEASED, REFUSED),
    RELEASED: (SENT,),
    REFUSED: (SENT,),
    SENT: (),
}
NOT_RELEASED = "the steward did not release the reply"
"""All that a coordinator reads of a refusal: the steward's reason may tell of the data."""
_MOST_REASON = 300
_FACTS = {"method", "step", "since", "bytes", "fields"}
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Hold = Literal["none", "per-record", "all"]


@dataclass(frozen=True)
class Held:
    """Instead of a reply: it is computed and kept, and waits for the steward.

    Asking the same question again is how to learn of the decision.
    """

    run: str
    round: int
    attempt: int
    step: str


@dataclass(frozen=True)
class Job:
    """A job as it stood when it was read.

    Attributes
    ----------
    run : str
    round, attempt : int
    state : str
    facts : dict
        ``method``, ``step``, ``since`` (seconds since 1970), ``fields`` (name, class, shape),
        ``bytes``; after a decision ``decided`` (when) and, of a refusal, ``reason``.
    """

    run: str
    round: int
    attempt: int
    state: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the steward calls it: ``<run>/<round>-<attempt>``."""
        return f"{self.run}/{self.round}-{self.attempt}"


class Jobs:
    """The jobs of a site that were ever held.

    Parameters
    ----------
    folder : Path or None
        ``jobs/`` in the site's home; ``None`` keeps them in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[tuple[str, int, int], StateFile] = {}

    def state(self, run: str, round_: int, attempt: int) -> StateFile:
        """Return the state of one job."""
        if self._folder is not None:
            # int: round and attempt come from whoever asks, and are part of a path.
            path = self._folder / check_run_id(run) / f"{int(round_)}-{int(attempt)}.json"
            return StateFile(path, TABLE, COMPUTED)
        key = (check_run_id(run), round_, attempt)
        return self._memory.setdefault(key, StateFile(None, TABLE, COMPUTED))

    def stamp(self, run: str, round_: int, attempt: int) -> object:
        """What changes with every move of a job, at the price of one look at the disk."""
        state = self.state(run, round_, attempt)
        if state.path is None:
            return state.read().version
        try:
            found = state.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def all(self) -> list[Job]:
        """All jobs in order, except damaged ones: one stops no other.

        Raises
        ------
        RunError
            The home cannot be read.
        """
        return self._read()[0]

    def damages(self) -> list[DamageError]:
        """What is damaged among the jobs; `RunError` as in `all`."""
        return self._read()[1]

    def _read(self) -> tuple[list[Job], list[DamageError]]:
        found, damages = [], []
        for key in sorted(self._keys()):
            state = self.state(*key)
            try:
                name, version, facts = state.read()
            except DamageError as error:
                damages.append(error)
                continue
            # A file without all facts was not written by this package, or not to its end.
            if version and not facts.keys() >= _FACTS:
                damages.append(state.damaged())
            elif version:
                found.append(Job(*key, name, facts))
        return found, damages

    def waiting(self) -> list[Job]:
        """Jobs that are held, in order."""
        return [job for job in self.all() if job.state == HELD]

    def release(self, run: str, round_: int, attempt: int) -> bool:
        """Let a held reply leave; False where it is not held (any more)."""
        return self.state(run, round_, attempt).move(HELD, RELEASED, decided=time.time())

    def refuse(self, run: str, round_: int, attempt: int, reason: str = "") -> bool:
        """Let a refusal leave instead of a held reply; False where it is not held (any more).

        Parameters
        ----------
        reason : str
            For the steward's own records: it stays in the home.

        Raises
        ------
        ParameterError
            The reason is too long.
        """
        # It is printed later: no control characters, which could hide or fake a line.
        said = "".join(c if c.isprintable() else " " for c in reason).strip()
        if len(said) > _MOST_REASON:
            raise ParameterError.of("reason", f"at most {_MOST_REASON} characters", f"{len(said)}")
        # An empty reason is one too: it is by this entry that a refusal is known.
        facts = {"decided": time.time(), "reason": said}
        return self.state(run, round_, attempt).move(HELD, REFUSED, **facts)

    def is_held(self, run: str) -> bool:
        """Whether a reply of a run waits for the steward; `DamageError` where that is not known."""
        keys = [key for key in self._keys() if key[0] == run]
        return any(self.state(*key).read().state == HELD for key in keys)

    def purge(self, run: str) -> None:
        """Drop the jobs of a run."""
        for key in [key for key in self._memory if key[0] == run]:
            del self._memory[key]
        if self._folder is None:
            return
        try:
            Beneath(self._folder).remove(check_run_id(run))
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain(error, "remove", self._folder / run) from error

    def _keys(self) -> Iterator[tuple[str, int, int]]:
        yield from list(self._memory)
        if self._folder is None:
            return
        with explained("read", self._folder):
            for path in self._folder.glob("[!.]*/[!.]*.json"):
                round_, _, attempt = path.stem.partition("-")
                run = path.parent.name
                if is_run_id(run) and _NUMBER.fullmatch(round_) and _NUMBER.fullmatch(attempt):
                    yield run, int(round_), int(attempt)


def holds(hold: Hold, content: object) -> bool:
    """Whether a reply waits for the steward; a refusal has no content and does not.

    Nor does a word that was heard, which says nothing and for which nobody waits.
    """
    if hold == "none" or content is None or isinstance(content, Heard):
        return False
    # What is noised is mostly a value for each record, and never less than a value with a price.
    kinds = {spec.disclosure for _, spec, _ in iterate_fields(content)}
    return hold == "all" or bool(kinds & {Disclosure.PER_RECORD, Disclosure.NOISED})


def waiting_facts(record: Record) -> dict[str, Any]:
    """What the list of held replies shows of a record: never a value."""
    reply = Reply.from_bytes(record.reply)
    message = decode_message(reply.message)
    plain = plain_fields(message)
    fields = [
        {"field": name, "class": spec.disclosure.value, "shape": describe_shape(plain[name])}
        for name, spec, _ in iterate_fields(message)
    ]
    return {
        "method": record.method,
        "step": reply.step,
        "since": time.time(),
        "bytes": len(record.reply),
        "fields": fields,
    }

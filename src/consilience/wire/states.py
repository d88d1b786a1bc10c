"""A state that several processes change: a file, a table of moves, and compare-and-set.

Whoever moves a state names the one that it believes to be there. If another process was quicker,
nothing happens and the mover is told so: of two people who decide on one thing, one decides.

The file is written whole or not at all (`wire.files.atomic_write`) while a lock on a file beside it
is held; the lock goes with the process. So after a crash at any moment, or on a full disk, the
state is the one before or the one after. Reading needs no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from consilience.exceptions import DamageError, ProtocolError, RunError
from consilience.wire.files import atomic_write, explain, make_directory

Table = Mapping[str, Collection[str]]

_PATIENCE = 10.0
_PAUSE = 0.005
_MOST_BYTES = 1 << 22


class Snapshot(NamedTuple):
    """A state as it was read.

    Attributes
    ----------
    state : str
    version : int
        Number of moves so far: 0 where there is no file yet.
    facts : dict
        What the moves have noted.
    """

    state: str
    version: int
    facts: dict[str, Any]


class StateFile:
    """One state with its moves.

    Parameters
    ----------
    path : Path or None
        A JSON file; ``None`` keeps the state in memory, for the threads of one process.
    table : mapping of str to collection of str
        For each state, those that may follow it.
    initial : str
        The state where there is no file.

    Raises
    ------
    ProtocolError
        The table names a state that has no entry of its own.
    """

    def __init__(self, path: Path | None, table: Table, initial: str) -> None:
        for state in (initial, *(to for targets in table.values() for to in targets)):
            if state not in table:
                raise ProtocolError(f"the table of states has no entry for {state!r}")
        self.path, self.initial = path, initial
        self._table = {state: frozenset(targets) for state, targets in table.items()}
        self._thread = threading.Lock()
        self._memory = Snapshot(initial, 0, {})

    def read(self) -> Snapshot:
        """Return state, version and facts.

        Raises
        ------
        RunError
            The file cannot be read; `DamageError` where it alone is at fault.
        """
        if self.path is None:
            return self._memory
        try:
            with open(self.path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return Snapshot(self.initial, 0, {})
        except (IsADirectoryError, NotADirectoryError, PermissionError):
            raise self.damaged() from None
        except OSError as error:
            raise explain(error, "read", self.path) from error
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict) or set(raw) != {"state", "version", "facts"}:
            raise self.damaged()
        state, version, facts = raw["state"], raw["version"], raw["facts"]
        if not (isinstance(state, str) and state in self._table and isinstance(facts, dict)):
            raise self.damaged()
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self.damaged()
        return Snapshot(state, version, facts)

    def move(self, expected: str | Snapshot, to: str, **facts: Any) -> bool:
        """Move from one state to another, unless somebody else has moved it meanwhile.

        Parameters
        ----------
        expected : str or Snapshot
            The state that is believed to be there; a snapshot stands for its version too.
        to : str
        **facts
            Values for JSON, added to those that are there.

        Returns
        -------
        bool
            Whether it was moved. After an error either may be so: read again.

        Raises
        ------
        ProtocolError
            The table has no such move.
        RunError
            The file is damaged or cannot be written, or another process does not let go of it.
        """
        wanted = expected.state if isinstance(expected, Snapshot) else expected
        if to not in self._table.get(wanted, ()):
            raise ProtocolError(f"no move leads from state {wanted!r} to {to!r}")
        if not self._is(expected, self.read()):
            return False  # Without a lock, so that nothing is made where nothing is to be done.
        with self._alone():
            now = self.read()
            if not self._is(expected, now):
                return False
            self._write(Snapshot(to, now.version + 1, {**now.facts, **facts}))
        return True

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _is(expected: str | Snapshot, now: Snapshot) -> bool:
        if isinstance(expected, Snapshot):
            return (expected.state, expected.version) == (now.state, now.version)
        return expected == now.state

    def _write(self, snapshot: Snapshot) -> None:
        if self.path is None:
            self._memory = snapshot
            return
        text = json.dumps(snapshot._asdict(), indent=1, sort_keys=True) + "\n"
        atomic_write(self.path, text.encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes and threads from moving the state."""
        if self.path is None:
            with self._thread:
                yield
            return
        handle = _locked(make_directory(self.path.parent) / f".{self.path.name}.lock")
        try:
            yield
        finally:
            os.close(handle)

    def damaged(self) -> DamageError:
        """Error that names the file and what to do."""
        return DamageError(f"{self.path} is damaged: restore it from a copy, or remove it")


def _locked(path: Path) -> int:
    """Open a lock file and lock it; it is not removed, except with the directory around it."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise explain(error, "write", path) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (os.fstat(handle).st_dev, os.fstat(handle).st_ino):
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass  # held by another, or removed with its directory: once more
        except OSError as error:
            os.close(handle)
            raise explain(error, "lock", path) from error
        os.close(handle)
        if time.monotonic() > end:
            raise RunError(
                f"another process holds {path} and does not let go: end it, then try again"
            )
        time.sleep(_PAUSE)

"""Files that are either whole or absent: the one place that writes what must survive a crash.

`Beneath` does so in a directory into which others write too: no link that they put there is
followed, whichever part of a path it takes the place of.

`StateFile` is a state that several processes change: a file, a table of moves, compare-and-set.
Whoever moves a state names the one that it believes to be there. If another process was quicker,
nothing happens and the mover is told so: of two people who decide on one thing, one decides.

Its file is written whole or not at all (`atomic_write`) while a lock on a file beside it is held;
the lock goes with the process. So after a crash at any moment, or on a full disk, the state is the
one before or the one after. Reading needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from consilience.exceptions import DamageError, ProtocolError, RunError

REMOVE = "find out who put it there, and remove it"
LINK = f"a link is in the way: {REMOVE}"


_SPACE = "free some space and start it again (a run with --resume)"


def explain(error: OSError, what: str, where: Path) -> RunError:
    """Turn an operating-system error into one sentence."""
    remedies = {
        errno.ENOSPC: f"the disk is full: {_SPACE}",
        errno.EDQUOT: f"the disk quota is used up: {_SPACE}",
        errno.EACCES: "permission was denied: choose a directory that you may write to",
        errno.EPERM: "permission was denied: choose a directory that you may write to",
        errno.EROFS: "the file system is read-only: choose another directory",
        errno.ENOTDIR: "a part of the path is a file: choose another directory",
        errno.EEXIST: "a file is in the way: choose another directory",
        errno.EISDIR: "a directory is in the way: remove it",
        errno.ELOOP: LINK,
    }
    reason = remedies.get(error.errno or 0, error.strerror or type(error).__name__)
    return RunError(f"cannot {what} {where}: {reason}")


@contextmanager
def explained(what: str, where: Path) -> Iterator[None]:
    """Turn whatever the operating system refuses inside into one sentence."""
    try:
        yield
    except OSError as error:
        raise explain(error, what, where) from error


def atomic_write(
    path: Path, data: bytes, *, mode: int = 0o600, named: bool = True, kept: bool = True
) -> None:
    """Write a file so that readers see all of it or none, even after a power cut.

    Parameters
    ----------
    path : Path
    data : bytes
    mode : int
        Permissions, less those that the umask takes away; only the owner's by default.
    named : bool
        Whether to wait until the name leads to the new file after a power cut, too; otherwise
        `keep_names` does so, once for all files of a directory.
    kept : bool
        Whether to wait until the content is on disk; without it a power cut may take the file.

    Raises
    ------
    RunError
        The file cannot be written; nothing half-written is left behind.
    """
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _write_whole(above, path.name, data, mode, named=named, kept=kept)
        finally:
            os.close(above)


def keep_names(folder: Path) -> None:
    """Wait until all names in a directory are on disk."""
    with explained("write", folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_whole(
    above: int, name: str, data: bytes, mode: int, *, named: bool = True, kept: bool = True
) -> None:
    """Write a file in an open directory, by a rename that is durable."""
    temporary = f".{secrets.token_hex(8)}.part"
    handle = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=above
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if kept:
                file.flush()
                os.fsync(file.fileno())
        # After a power cut the name leads to the old file or to the new one; the directory is
        # synced so that it stays with the new one.
        os.replace(temporary, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=above)
        raise
    if named:
        os.fsync(above)


def write_json(path: Path, value: object) -> None:
    """Write JSON with sorted keys as `atomic_write` does."""
    atomic_write(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def create_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, durably; one that is there already stays as it is.

    Raises
    ------
    RunError
        There is such a file (its cause is a `FileExistsError`), or it cannot be written.
    """
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL also refuses a link in this place, whatever it points to.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


class Beneath:
    """Files of a directory into which others write: links in it are not followed.

    Each part of a path is opened by itself, as a directory and not as a link, from the descriptor
    of the one before (``openat``); so whoever exchanges a directory for a link, be it at the worst
    moment, sends nobody elsewhere. The directory itself is its owner's choice and may be a link.

    Parameters
    ----------
    root : Path
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def directory(self, *parts: str, make: bool = False) -> Iterator[int]:
        """Open a directory; `make` those on the way that are not there.

        Raises
        ------
        OSError
            There is none; a link has `errno.ELOOP`.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        handle = os.open(self.root, flags)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                deeper = _deeper(handle, part, flags | os.O_NOFOLLOW)
                os.close(handle)
                handle = deeper
            yield handle
        finally:
            os.close(handle)

    def make(self, *parts: str) -> None:
        """Make a directory with those above it; `RunError` where that is not possible."""
        with explained("create", self.root.joinpath(*parts)), self.directory(*parts, make=True):
            pass

    def names(self, *parts: str) -> list[str]:
        """Names in a directory, none where there is no directory; `OSError` as in `directory`."""
        try:
            with self.directory(*parts) as handle:
                return os.listdir(handle)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def found(self, *parts: str) -> os.stat_result | None:
        """What there is, without following a link, if anything; `OSError` as in `directory`."""
        try:
            with self.directory(*parts[:-1]) as handle:
                return os.stat(parts[-1], dir_fd=handle, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def opened(self, *parts: str) -> Iterator[int]:
        """Open a file for reading: a pipe does not block, and a link has `errno.ELOOP`."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.directory(*parts[:-1]) as above:
            handle = os.open(parts[-1], flags, dir_fd=above)
        try:
            yield handle
        finally:
            os.close(handle)

    def write(self, *parts: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file as `atomic_write` does.

        Raises
        ------
        RunError
            The file cannot be written; nothing half-written is left behind.
        """
        above = self.directory(*parts[:-1], make=True)
        with explained("write", self.root.joinpath(*parts)), above as handle:
            _write_whole(handle, parts[-1], data, mode)

    def rename(self, parts: tuple[str, ...], name: str) -> None:
        """Give what there is another name in its directory; `OSError` where it does not take it."""
        with self.directory(*parts[:-1]) as above:
            os.rename(parts[-1], name, src_dir_fd=above, dst_dir_fd=above)

    def remove(self, *parts: str) -> bool:
        """Remove what there is, a directory with all that is in it; returns whether there was any.

        Raises
        ------
        OSError
            It cannot be removed.
        """
        try:
            with self.directory(*parts[:-1]) as above:
                found = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(parts[-1], dir_fd=above)
                else:
                    os.unlink(parts[-1], dir_fd=above)
        except FileNotFoundError:
            return False
        return True


def _deeper(above: int, name: str, flags: int) -> int:
    """Open a directory in a directory; a link has `errno.ELOOP` on every system."""
    try:
        return os.open(name, flags, dir_fd=above)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def make_directory(path: Path, *, mode: int = 0o777) -> Path:
    """Create a directory with its parents; `RunError` where that is not possible.

    Parameters
    ----------
    path : Path
    mode : int
        Permissions of a new one, less those that the umask takes away: 0o700 where whoever could
        put a file in place of another would decide for its owner.
    """
    with explained("create", path):
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    return path


class AppendLog:
    """A file that only grows, by records of one `append` each; only its owner may read it.

    Parameters
    ----------
    path : Path or None
        ``None`` keeps the records in memory only.
    whole : callable
        ``whole(data) -> n`` says how many leading bytes are complete records; a torn tail (from a
        crash while writing) is cut off when the log is opened.
    durable : bool
        Whether `append` waits for the disk; otherwise a power cut may take the last records.
    """

    def __init__(
        self, path: Path | None, whole: Callable[[bytes], int], *, durable: bool = True
    ) -> None:
        self.path, self.durable = path, durable
        self.content = b""
        if path is None:
            return
        make_directory(path.parent)
        with explained("open", path):
            if path.exists():
                data = path.read_bytes()
                self.content = data[: whole(data)]
                # A torn record was never answered for: whoever wrote it did not get as far as using
                # it.
                if len(self.content) < len(data):
                    os.truncate(path, len(self.content))

    def append(self, *parts: bytes) -> None:
        """Add records, given whole or in parts, and wait until they are on disk."""
        if self.path is None:
            return
        with explained("write", self.path):
            # One that is new is its owner's alone, whatever the umask.
            handle = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(handle, "ab") as file:
                file.writelines(parts)
                file.flush()
                if self.durable:
                    os.fsync(file.fileno())


# ------------------------------------------------------------ states that several processes change

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
                # A state is short: a file that somebody blew up must not fill the memory.
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
        # True is an int, and a version that compares equal to 1.
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
            moved = Snapshot(to, now.version + 1, {**now.facts, **facts})
            if self.path is None:
                self._memory = moved
            else:
                write_json(self.path, moved._asdict())
        return True

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _is(expected: str | Snapshot, now: Snapshot) -> bool:
        if isinstance(expected, Snapshot):
            return (expected.state, expected.version) == (now.state, now.version)
        return expected == now.state

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
        with explained("write", path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock may be on a file that was removed meanwhile: others would lock a new one.
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

"""Files that are either whole or absent: the one place that writes what must survive a crash."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from consilience.exceptions import RunError


def explain(error: OSError, what: str, where: Path) -> RunError:
    """Turn an operating-system error into one sentence."""
    remedies = {
        errno.ENOSPC: "the disk is full: free some space and run again with --resume",
        errno.EDQUOT: "the disk quota is used up: free some space and run again with --resume",
        errno.EACCES: "permission was denied: choose a directory that you may write to",
        errno.EPERM: "permission was denied: choose a directory that you may write to",
        errno.EROFS: "the file system is read-only: choose another directory",
        errno.ENOTDIR: "a part of the path is a file: choose another directory",
        errno.EEXIST: "a file is in the way: choose another directory",
    }
    reason = remedies.get(error.errno or 0, error.strerror or type(error).__name__)
    return RunError(f"cannot {what} {where}: {reason}")


def atomic_write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file so that readers see all of it or none, even after a power cut.

    Parameters
    ----------
    path : Path
    data : bytes
    mode : int
        Permissions, less those that the umask takes away; only the owner's by default.

    Raises
    ------
    RunError
        The file cannot be written; nothing half-written is left behind.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = os.path.join(path.parent, f".{secrets.token_hex(8)}.part")
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        temporary = name
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_directory(path.parent)
    except OSError as error:
        raise explain(error, "write", path) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path, *, mode: int = 0o777) -> Path:
    """Create a directory with its parents; `RunError` where that is not possible.

    Parameters
    ----------
    path : Path
    mode : int
        Permissions of a new one, less those that the umask takes away: 0o700 where whoever could
        put a file in place of another would decide for its owner.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, "create", path) from error
    return path


def _private(path: str, flags: int) -> int:
    """Open a file; one that is new is its owner's alone, whatever the umask."""
    return os.open(path, flags, 0o600)


class AppendLog:
    """A file that only grows, by records of one `append` each; only its owner may read it.

    Parameters
    ----------
    path : Path or None
        ``None`` keeps the records in memory only.
    whole : callable
        ``whole(data) -> n`` says how many leading bytes are complete records; a torn tail (from a
        crash while writing) is cut off when the log is opened.
    """

    def __init__(self, path: Path | None, whole: Callable[[bytes], int]) -> None:
        self.path = path
        self.content = b""
        if path is None:
            return
        make_directory(path.parent)
        try:
            if path.exists():
                data = path.read_bytes()
                self.content = data[: whole(data)]
                if len(self.content) < len(data):
                    os.truncate(path, len(self.content))
        except OSError as error:
            raise explain(error, "open", path) from error

    def append(self, *parts: bytes) -> None:
        """Add a record, given whole or in parts, and wait until it is on disk."""
        if self.path is None:
            return
        try:
            with open(self.path, "ab", opener=_private) as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise explain(error, "write", self.path) from error

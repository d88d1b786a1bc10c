"""Heartbeats in the shared folder: ``health/<site>.msg``, signed with the site's key.

The envelope is bound to a run that cannot be (its name is no run id) and to the site: no message
of a run is taken for a heartbeat, and no heartbeat for one.

Clocks are compared through the folder. Who writes a file knows its own time, and the file gets the
time of whoever stores it. Where that is one file server, the difference of both for a site's
heartbeat, less the same difference for a file that the coordinator writes, is how far the clocks
of the two are apart. A synchroniser may carry the writer's time along instead; the measure is then
0, and only a heartbeat from the future shows a clock that is wrong.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from consilience.engines.health import (
    EVERY,
    MAX_BYTES,
    Heartbeat,
    SiteHealth,
    State,
    heartbeat_of,
    judged,
)
from consilience.engines.signed import OnNote, check_site
from consilience.exceptions import EngineError, ParameterError, RunError, SignatureError, WireError
from consilience.sites.site import Site
from consilience.wire.files import Beneath
from consilience.wire.keys import KeyList
from consilience.wire.signing import OVERHEAD, Context, SigningKey, unseal

FOLDER = "health"
_NO_RUN = ":heartbeat"
_ANYBODY = ":anybody"


def path_of(folder: Path, site: str) -> Path:
    """Return the file of a site's heartbeat."""
    return folder.joinpath(*_parts(site))


def _parts(site: str) -> tuple[str, str]:
    return FOLDER, f"{check_site(site)}.msg"


def _context(site: str) -> Context:
    return Context(_NO_RUN, 0, 0, "reply", site, _ANYBODY)


def write(folder: Path, beat: Heartbeat, key: SigningKey) -> None:
    """Write a site's heartbeat.

    Raises
    ------
    RunError
        The folder cannot be written.
    """
    sealed = key.seal(_context(beat.site), beat.to_bytes())
    Beneath(folder).write(*_parts(beat.site), data=sealed, mode=0o666)


def read(folder: Path, site: str, keys: KeyList) -> tuple[Heartbeat, float] | None:
    """Return a site's heartbeat and the time of its file, if there is one.

    Raises
    ------
    WireError
        What lies there is no heartbeat of this site.
    """
    try:
        with Beneath(folder).opened(*_parts(site)) as handle:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise WireError("its heartbeat cannot be read: what lies there is no file")
            stored = found.st_mtime
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + OVERHEAD + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WireError(f"its heartbeat cannot be read: {error.strerror}") from None
    for public in keys.valid():
        try:
            beat = Heartbeat.from_bytes(unseal(data, public=public, context=_context(site)))
        except SignatureError:
            continue
        if beat.site != site:
            raise WireError("its heartbeat is another site's")
        return beat, stored
    raise SignatureError("its heartbeat is not signed with a key that the study lists")


def health(folder: Path, keys: Mapping[str, KeyList], method: str) -> list[SiteHealth]:
    """Read and judge the heartbeats of a study's sites.

    Parameters
    ----------
    folder : Path
        The shared folder.
    keys : mapping of site to KeyList
    method : str
        Name of the study's method.

    Raises
    ------
    EngineError
        There is no such folder.
    """
    if not folder.is_dir():
        raise EngineError(
            f"there is no folder {folder}: create the shared folder, or check that it is mounted"
        )
    behind = _storage_clock(folder)
    found = []
    for site in sorted(keys):
        try:
            seen = read(folder, site, keys[site])
        except WireError as error:
            found.append(judged(site, None, method=method, fault=str(error)))
            continue
        if seen is None:
            fault = "there is no heartbeat of it: ask its steward to start 'consilience site watch'"
            found.append(judged(site, None, method=method, fault=fault))
            continue
        beat, stored = seen
        skew = None if behind is None else (beat.time - stored) - behind
        found.append(judged(site, beat, method=method, skew=skew))
    return found


def _storage_clock(folder: Path) -> float | None:
    """Seconds by which this machine's clock is ahead of the folder's, None where not writable.

    The directory is made by the first site, with the permissions that its steward wants.
    """
    name = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with Beneath(folder).directory(FOLDER) as above:
            own = time.time()
            handle = os.open(name, flags, 0o666, dir_fd=above)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(b"\n")
                stored = os.stat(name, dir_fd=above, follow_symlinks=False).st_mtime
            finally:
                os.unlink(name, dir_fd=above)
    except OSError:
        return None
    return own - stored


class Heart:
    """Writes the heartbeats of a watch, also while it computes: a context of the watch.

    Parameters
    ----------
    site : Site
    folder : Path
    key : SigningKey
    every : float or None
        Seconds between two; None writes none.
    on_event : callable, optional
        Told from the watch's own thread, by `look`.
    """

    def __init__(
        self,
        site: Site,
        folder: Path,
        key: SigningKey,
        every: float | None = EVERY,
        on_event: OnNote | None = None,
    ) -> None:
        if every is not None and not every > 0:
            raise ParameterError.of("heartbeat", "a number of seconds above 0", every)
        self._site, self._folder, self._key, self._every = site, folder, key, every
        self._on_event = on_event
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._began: float | None = None
        self._unsent = 0
        self._fault = self._told = ""

    def __enter__(self) -> Heart:
        if self._every is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._every is not None:
            self._is_over.set()
            self._thread.join()
            self._beat("stopped", self._every)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Say of the time inside that the site is at work."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    def look(self, unsent: int) -> None:
        """Take note of the replies that could not be written; tell of a fault, once."""
        self._unsent = unsent
        fault = self._fault
        if fault and fault != self._told and self._on_event is not None:
            self._on_event("unsent", {"file": "the heartbeat", "reason": fault})
        self._told = fault

    def _go_on(self) -> None:
        every = self._every or EVERY
        self._beat("watching", every)
        while not self._is_over.wait(every):
            self._beat("watching", every)

    def _beat(self, state: State, every: float) -> None:
        """Write one; a folder that does not take it is tried again with the next."""
        began = self._began
        busy = 0.0 if began is None else time.monotonic() - began
        beat = heartbeat_of(self._site, state, every=every, busy=busy, unsent=self._unsent)
        try:
            write(self._folder, beat, self._key)
            self._fault = ""
        except RunError as error:
            self._fault = str(error)

"""Health of a federation: what sites say of themselves, and what a coordinator makes of it.

A site's *heartbeat* says that it is there, with which release and methods, how many replies wait
and how much disk is free; it says nothing of the data, and nothing of any run. How it travels is
the engine's matter; it is signed with the site's key and judged here.

In a shared folder heartbeats are files ``health/<site>.msg``, signed with the site's key. The
envelope is bound to a run that cannot be (its name is no run id) and to the site: no message
of a run is taken for a heartbeat, and no heartbeat for one.

Clocks are compared through the folder. Who writes a file knows its own time, and the file gets the
time of whoever stores it. Where that is one file server, the difference of both for a site's
heartbeat, less the same difference for a file that the coordinator writes, is how far the clocks
of the two are apart. A synchroniser may carry the writer's time along instead; the measure is then
0, and only a heartbeat from the future shows a clock that is wrong.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from consilience.engines.signed import OnNote, check_site, existing
from consilience.exceptions import ParameterError, RunError, SignatureError, WireError
from consilience.protocol.method import method_names
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire.files import Beneath
from consilience.wire.keys import KeyList
from consilience.wire.signing import OVERHEAD, Context, SigningKey, unseal

EVERY = 60.0
"""Seconds between two heartbeats."""
MISSED = 3
"""Heartbeats that may be missing before a site counts as silent."""
SKEW = 60.0
"""Largest difference between two clocks, in seconds, that is no trouble."""
LITTLE_DISK = 1 << 30
"""Free bytes below which a home's disk is trouble."""
MAX_BYTES = 1 << 16
_STEP = 1 << 26
_LARGEST = 1 << 60
"""Larger numbers are none of a clock, a queue or a disk, and some could not be printed."""

State = Literal["watching", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What a site says of itself.

    Attributes
    ----------
    site : str
    time : float
        By the site's clock, in seconds since 1970.
    state : {"watching", "stopped"}
    release : str
        Package version.
    methods : tuple of str
        Names of the methods that are installed.
    every : float
        Seconds until the next one.
    busy : float
        Seconds for which the site has been at work on its present answer; 0 when it waits.
    held : int
        Replies that wait for the steward, -1 where that cannot be read.
    unsent : int
        Replies that the folder or network did not take.
    free : int
        Free bytes on the disk of its home, in steps of 64 MB; -1 where that is not known.
    """

    site: str
    time: float
    state: State
    release: str
    methods: tuple[str, ...]
    every: float = EVERY
    busy: float = 0.0
    held: int = 0
    unsent: int = 0
    free: int = -1

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Heartbeat:
        """Decode.

        Raises
        ------
        WireError
            The bytes are no heartbeat.
        """
        # Before it is parsed: anybody may have put it there.
        if len(data) > MAX_BYTES:
            raise WireError("a heartbeat that is too long")
        try:
            raw: dict[str, Any] = dict(json.loads(data))
            found = cls(**{**raw, "methods": tuple(str(one) for one in raw["methods"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise WireError("bytes that are no heartbeat") from None
        texts = (found.site, found.release)
        numbers = (found.time, found.every, found.busy)
        whole = (found.held, found.unsent, found.free)
        if (
            not all(isinstance(one, str) for one in texts)
            or not all(type(x) in (int, float) and math.isfinite(float(str(x))) for x in numbers)
            or not all(type(one) is int for one in whole)
            or found.state not in ("watching", "stopped")
            or found.every <= 0
            or max(map(abs, (*numbers, *whole))) > _LARGEST
        ):
            raise WireError("bytes that are no heartbeat")
        return found


def heartbeat_of(
    site: Site, state: State, *, every: float = EVERY, busy: float = 0.0, unsent: int = 0
) -> Heartbeat:
    """What a site says of itself now."""
    from consilience import __version__

    return Heartbeat(
        site=site.name,
        time=round(time.time(), 3),
        state=state,
        release=__version__,
        methods=method_names(),
        every=every,
        busy=round(busy, 1),
        held=held_at(site),
        unsent=unsent,
        free=free_at(site),
    )


def held_at(site: Site) -> int:
    """Replies of a site that wait for its steward; -1 where that cannot be read, or not wholly."""
    try:
        return -1 if site.home.jobs.damages() else len(site.home.jobs.waiting())
    except RunError:
        return -1  # the watch itself says why; a heartbeat goes on


def free_at(site: Site) -> int:
    """Free bytes on the disk of a site's home; -1 where that is not known."""
    if not isinstance(site.home, DiskStore):
        return -1
    try:
        # To the byte it would tell of the size of what a run has just left there.
        return shutil.disk_usage(site.home.path).free // _STEP * _STEP
    except OSError:
        return -1


@dataclass(frozen=True)
class SiteHealth:
    """How a site is, as the coordinator sees it.

    Attributes
    ----------
    site : str
    state : {"watching", "stopped", "silent", "unknown"}
        "unknown" where there is no heartbeat that can be trusted.
    age : float or None
        Seconds since its last heartbeat.
    release : str
    skew : float or None
        Seconds by which its clock is ahead of the coordinator's.
    held, unsent : int
    free : int
    troubles : tuple of str
        What is wrong, each with what to do; empty where nothing is.
    """

    site: str
    state: Literal["watching", "stopped", "silent", "unknown"]
    age: float | None = None
    release: str = ""
    skew: float | None = None
    held: int = 0
    unsent: int = 0
    free: int = -1
    troubles: tuple[str, ...] = ()


def judged(
    site: str,
    beat: Heartbeat | None,
    *,
    method: str,
    skew: float | None = None,
    fault: str = "",
    now: float | None = None,
) -> SiteHealth:
    """Judge what a site said of itself.

    Parameters
    ----------
    site : str
    beat : Heartbeat or None
        Its last one, verified; None where there is none.
    method : str
        Name of the study's method.
    skew : float, optional
        Seconds by which its clock is ahead, where that was measured.
    fault : str
        Why there is none.
    now : float, optional
        The coordinator's time.
    """
    from consilience import __version__

    if beat is None:
        return SiteHealth(site, "unknown", troubles=(fault or "it has not been heard of",))
    now = time.time() if now is None else now
    troubles: list[str] = []
    # By the coordinator's clock; without the skew a slow clock would look like silence.
    age = now - beat.time + (skew or 0.0)
    state: Literal["watching", "stopped", "silent"] = beat.state
    if skew is None and age < -SKEW:
        skew = -age  # at least: a heartbeat cannot come from the future
    if state == "watching" and age > MISSED * beat.every:
        state = "silent"
        troubles.append("it is silent: look whether its watch runs and its folder is copied")
    if state == "stopped":
        troubles.append("its watch was stopped: ask its steward to start it")
    if beat.release != __version__:
        troubles.append(
            f"it has release {beat.release[:40]} and this is {__version__}: install the same one"
        )
    # Of another release the methods are not comparable by name, so that comes first.
    elif method not in beat.methods:
        troubles.append(f"it lacks method {method}: install what brings it")
    if skew is not None and abs(skew) > SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        troubles.append(f"its clock is {abs(skew):.0f} s {ahead} this one: synchronise the clocks")
    if beat.held < 0:
        troubles.append(
            "its queue of replies cannot be read, or not wholly: 'consilience site queue' there "
            "says why"
        )
    elif beat.held:
        waiting = "1 reply waits" if beat.held == 1 else f"{beat.held} replies wait"
        troubles.append(f"{waiting} for its steward: 'consilience site queue' there")
    if beat.unsent:
        troubles.append(f"{beat.unsent} of its replies cannot be written: look at its log")
    if 0 <= beat.free < LITTLE_DISK:
        troubles.append(f"its disk has {beat.free >> 20} MB left: free some space")
    left = beat.held, beat.unsent, beat.free
    return SiteHealth(site, state, max(age, 0.0), beat.release, skew, *left, tuple(troubles))


# ----------------------------------------------------------------- heartbeats in the shared folder

FOLDER = "health"
_NO_RUN = ":heartbeat"
_ANYBODY = ":anybody"


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
    # All keys that count today: a site may be changing from one to the next.
    for public in keys.valid():
        try:
            beat = Heartbeat.from_bytes(unseal(data, public=public, context=_context(site)))
        except SignatureError:
            continue
        # The key of one site must not speak for another, even where a study lists it twice.
        if beat.site != site:
            raise WireError("its heartbeat is another site's")
        return beat, stored
    raise SignatureError(
        "its heartbeat is not signed with a key that the study lists: compare the public line of "
        "its key with [sites.keys] of the study"
    )


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
    behind = _storage_clock(existing(folder))
    found = []
    for site in sorted(keys):
        beat, skew = None, None
        fault = "there is no heartbeat of it: ask its steward to start 'consilience site watch'"
        try:
            if (seen := read(folder, site, keys[site])) is not None:
                beat, stored = seen
                skew = None if behind is None else (beat.time - stored) - behind
        except WireError as error:
            fault = str(error)
        found.append(judged(site, beat, method=method, skew=skew, fault=fault))
    return found


def _storage_clock(folder: Path) -> float | None:
    """Seconds by which this machine's clock is ahead of the folder's, None where not writable.

    The directory is made by the first site, with the permissions that its steward wants.
    """
    name = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with Beneath(folder).directory(FOLDER) as above:
            # As close to the write as can be: what lies between counts as skew.
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
            # The last one says that silence from now on is meant.
            self._beat("stopped")

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
        # A plain assignment: the thread that writes may see the old one once more, no half of it.
        self._unsent = unsent
        fault = self._fault
        if fault and fault != self._told and self._on_event is not None:
            self._on_event("unsent", {"file": "the heartbeat", "reason": fault})
        self._told = fault

    def _go_on(self) -> None:
        self._beat("watching")
        while not self._is_over.wait(self._every):
            self._beat("watching")

    def _beat(self, state: State) -> None:
        """Write one; a folder that does not take it is tried again with the next."""
        began = self._began
        busy = 0.0 if began is None else time.monotonic() - began
        every = self._every or EVERY
        beat = heartbeat_of(self._site, state, every=every, busy=busy, unsent=self._unsent)
        try:
            write(self._folder, beat, self._key)
            self._fault = ""
        except RunError as error:
            self._fault = str(error)

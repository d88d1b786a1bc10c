"""One end of the exchange through a folder, whichever: what both the coordinator and a site do.

`Schedule` says when a file is written again that a synchroniser has lost or shows nobody,
`Allowance` how often something is told.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from consilience.engines.signed import Direction, Place
from consilience.exceptions import SignatureError, WireError
from consilience.sites.site_store import is_run_id
from consilience.wire.codec import MAX_BYTES, digest
from consilience.wire.files import LINK, REMOVE, Beneath
from consilience.wire.signing import OVERHEAD, SigningKey, check_sealed

Stamp = tuple[int, int, int, int]

COPY = "a synchroniser's copy of a message: it is not read, and may be removed"
RUNS = "runs"
FOLDERS: dict[Direction, str] = {"ask": "asks", "reply": "replies"}
_OTHER: dict[Direction, Direction] = {"ask": "reply", "reply": "ask"}
_NUMBERS = r"([1-9]\d{0,8})-([1-9]\d{0,8})"
_ENVELOPE_SLACK = 1 << 16
_BLOCKED: Stamp = (-1, -1, -1, -1)
"""Stamp of what cannot be looked at, for instance behind a link: whoever reads it learns why."""
_TRUST = 0.05
_MOST_TRUST = 60.0


class Taken(NamedTuple):
    """A message of the other end: what it says, the key that signed it, digest of the whole."""

    body: bytes
    public: str
    digest: str


class Mailbox:
    """One end of the exchange, whichever.

    Whoever may write into the folder may put anything anywhere in it: nothing is read or written
    through a link (`wire.files.Beneath`).

    Parameters
    ----------
    folder : Path
        The shared folder.
    key : SigningKey
        Own private key.
    writes : {"ask", "reply"}
        What this end writes; it reads the other.
    max_bytes : int
        Largest message that is read.

    Attributes
    ----------
    unreadable : dict of str to str
        Runs that the last `places` could not look into, and why; the others are not touched by it.
    """

    def __init__(
        self, folder: Path, key: SigningKey, writes: Direction, *, max_bytes: int = MAX_BYTES
    ) -> None:
        self.within = Beneath(folder)
        self._key, self.writes, self.reads = key, writes, _OTHER[writes]
        self._max_bytes = max_bytes + _ENVELOPE_SLACK + OVERHEAD
        self.unreadable: dict[str, str] = {}

    def path(self, place: Place, direction: Direction) -> Path:
        """Return the file of one direction at a place."""
        return self.within.root.joinpath(*_parts(place, direction))

    def put(
        self,
        place: Place,
        coordinator: str,
        body: bytes,
        *,
        readers: Collection[str],
        about: str = "",
    ) -> bool:
        """Write a message unless it is there already; returns whether it was written.

        Parameters
        ----------
        readers : collection of str
            Public keys of the other end, which alone can open it.

        Raises
        ------
        RunError
            The folder cannot be written.
        """
        return self.write(place, self.seal(place, coordinator, body, readers=readers, about=about))

    def seal(
        self,
        place: Place,
        coordinator: str,
        body: bytes,
        *,
        readers: Collection[str],
        about: str = "",
    ) -> bytes:
        """Return the envelope of a message; the arguments are those of `put`."""
        context = place.context(self.writes, coordinator, about)
        return self._key.seal(context, body, readers=readers)

    def write(self, place: Place, envelope: bytes, *, anew: bool = False) -> bool:
        """Write an envelope unless it is there already; returns whether it was written.

        Parameters
        ----------
        anew : bool
            Write the same bytes again, so that a synchroniser copies them once more.

        Raises
        ------
        RunError
            The folder cannot be written.
        """
        parts = _parts(place, self.writes)
        try:
            if not anew and self._read(parts) == envelope:
                return False
        except WireError:
            pass  # What lies there is not a message: it is replaced.
        # The umask says who else may read: the other party is often another user.
        self.within.write(*parts, data=envelope, mode=0o666)
        return True

    def take(
        self, place: Place, coordinator: str, publics: Collection[str], *, about: str = ""
    ) -> Taken | None:
        """Return the other end's message at a place, if there is one.

        Parameters
        ----------
        publics : collection of str
            Keys of the other end: one of them must have signed.

        Raises
        ------
        WireError
            The file is no message for this place; SignatureError says that none of them signed,
            `OtherReaderError` that one did, but not for this end's key.
        """
        data = self._read(_parts(place, self.reads))
        if data is None:
            return None
        # Of where the file lies, never of what it says: a file that was moved fails here.
        context = place.context(self.reads, coordinator, about)
        # Any of the keys may have signed; where none has, the last refusal is told.
        refusal: SignatureError | None = None
        for public in publics:
            try:
                body = self._key.unseal(data, public=public, context=context)
            except SignatureError as error:
                refusal = error
                continue
            return Taken(body, public, digest(data))
        raise refusal or SignatureError("nobody is trusted here")

    def digest(self, place: Place) -> str:
        """Digest of what lies at a place for this end, empty where there is nothing."""
        data = self._read(_parts(place, self.reads))
        return "" if data is None else digest(data)

    def own(self, place: Place, coordinator: str, *, about: str) -> bytes | None:
        """Return the envelope that this end wrote at a place, verified like any other one."""
        data = self._read(_parts(place, self.writes))
        if data is not None:
            context = place.context(self.writes, coordinator, about)
            # Anybody may have put something in the place of what this end wrote.
            check_sealed(data, public=self._key.public, context=context)
        return data

    def stamp(self, place: Place, direction: Direction) -> Stamp | None:
        """Return what changes whenever a file is replaced or altered."""
        try:
            found = self.within.found(*_parts(place, direction))
        except OSError:
            return _BLOCKED
        if found is None:
            return None
        # The time of change too, which whoever alters a file cannot set back.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def runs(self) -> list[str]:
        """Names of the runs in the folder, in order.

        Raises
        ------
        OSError
            The folder cannot be read.
        """
        return sorted(name for name in self.within.names(RUNS) if is_run_id(name))

    def has_folder(self, place: Place) -> bool:
        """Whether there is something where messages of this end go; a write says if it is wrong."""
        try:
            return self.within.found(*_parts(place, self.writes)[:-1]) is not None
        except OSError:
            return True

    def places(self, site: str, runs: Iterable[str] | None = None) -> list[Place]:
        """List the places at which a site finds a message of the other end, in order.

        Parameters
        ----------
        runs : iterable of str, optional
            Those to look into; all of them unless given.

        Raises
        ------
        OSError
            The folder cannot be read.
        """
        pattern = re.compile(f"{_NUMBERS}-{re.escape(site)}\\.msg", re.IGNORECASE)
        found: set[Place] = set()
        self.unreadable = {}
        for run in self.runs() if runs is None else runs:
            try:
                names = self.within.names(RUNS, run, FOLDERS[self.reads])
            except OSError as error:  # Whoever may write here could stop all runs by one of them.
                self.unreadable[run] = reason_of(error)
                continue
            for name in names:
                match = pattern.fullmatch(name)
                if match is None:
                    continue
                place = Place(run, int(match[1]), int(match[2]), site)
                # Other capitals are the same file where the file system says so, and only there.
                if name == place.file or self.stamp(place, self.reads) is not None:
                    found.add(place)
        return sorted(found)

    def conflicts(self, run: str, sites: Collection[str]) -> list[str]:
        """Names that synchronisers gave to copies of messages of these sites; never read."""
        # The longest first: the name of one site may begin that of another.
        either = "|".join(re.escape(site) for site in sorted(sites, key=len, reverse=True))
        pattern = re.compile(f"({_NUMBERS}-({either}))(.*)", re.IGNORECASE | re.DOTALL)
        found = []
        for folder in FOLDERS.values():
            try:
                names = sorted(self.within.names(RUNS, run, folder))
            except OSError:  # a link or a lock in its place: no reason to look no further
                continue
            for name in names:
                match = pattern.fullmatch(name)
                if match is None:
                    continue
                rest = match[5]
                copied = "conflict" in rest.lower() or rest.endswith(("~", ".tmp"))
                # A name that ends like a message's is one, unless its site has other capitals.
                if rest.lower() == ".msg":
                    copied = not any(name.endswith(f"-{site}.msg") for site in sites)
                if copied:
                    found.append(f"{folder}/{name}")
        return found

    def _read(self, parts: tuple[str, ...]) -> bytes | None:
        """Read a file that anybody may have put there: no link, no pipe, no endless one."""
        try:
            with self.within.opened(*parts) as handle:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    raise WireError("what lies there is no file", public="it is no file")
                # Looked at before it is read: a file without end would fill the memory.
                if found.st_size > self._max_bytes:
                    raise WireError(
                        f"a file of more than {self._max_bytes} bytes was refused",
                        public="it is larger than messages may be",
                    )
                with os.fdopen(handle, "rb", closefd=False) as file:
                    return file.read(self._max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            said, public = f"it cannot be read: {reason_of(error)}", "it cannot be read"
            if error.errno == errno.ELOOP:
                said, public = f"what lies there is a link: {REMOVE}", "it is no file, but a link"
            raise WireError(said, public=public) from None


class Looked:
    """Which files were looked at already and need no second look.

    The clock of a file system is coarse (some milliseconds): a file that is altered in the tick in
    which it was written looks unchanged. So a look is trusted only for a while, which doubles every
    time the file turns out to be the same.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[object, float, float]] = {}

    def holds(self, key: object, stamp: object) -> bool:
        """Whether the last look at `key` saw this stamp and is still trusted."""
        known, _, until = self._known.get(key, (None, 0.0, 0.0))
        return known == stamp and time.monotonic() < until

    def note(self, key: object, stamp: object) -> bool:
        """Note a look; returns whether the stamp is another one than before."""
        known, trust, _ = self._known.get(key, (None, 0.0, 0.0))
        trust = min(_MOST_TRUST, 2 * trust) if known == stamp and trust else _TRUST
        self._known[key] = (stamp, trust, time.monotonic() + trust)
        return known != stamp

    def keep(self, keys: Collection[object]) -> None:
        """Forget all other keys."""
        self._known = {key: known for key, known in self._known.items() if key in keys}


def _parts(place: Place, direction: Direction) -> tuple[str, ...]:
    return RUNS, place.run, FOLDERS[direction], place.file


def reason_of(error: OSError) -> str:
    """Why something in the folder cannot be reached, in a few words."""
    return LINK if error.errno == errno.ELOOP else error.strerror or type(error).__name__


def printable(name: str) -> str:
    """A name from elsewhere, fit for a log: short, on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in name)[:120]


# ------------------------------------------------------------------------------------ when to look

UNSEEN = 30.0
"""Seconds after which a file that nobody answers is written again, the first time.

The time doubles without an upper bound worth the name: a synchroniser begins to copy a file anew
whenever it is written, so a fixed time shorter than one copy takes would never let it end.
"""
SPOILT = 0.5
"""Seconds between repairs of a file that is altered or removed again and again."""
_MOST_UNSEEN = 4 * 3600.0
_TIMES_UNSEEN = 50  # more than a week: a run that nobody closed is not written about for ever
_MOST_SPOILT = 60.0
_FREE = 3


class Allowance:
    """How often something may be said: so often at once, and once more after each wait.

    Parameters
    ----------
    free : int
    every : float
        Seconds.
    """

    def __init__(self, free: int, every: float) -> None:
        self._free, self._every = free, every
        self._left, self._at = float(free), time.monotonic()

    def take(self) -> bool:
        """Whether it may be said now; counted if so."""
        now = time.monotonic()
        self._left = min(self._free, self._left + (now - self._at) / self._every)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Schedule:
    """Times for each file: some at once, then after waits that double.

    Parameters
    ----------
    first : float
        First wait in seconds.
    most : float
        Longest one.
    free : int
        How many times are due at once.
    times : int, optional
        How many times there are at all.
    """

    def __init__(self, first: float, most: float, free: int = 0, times: int | None = None) -> None:
        self._first, self._most, self._free, self._times = first, most, free, times
        self._known: dict[object, tuple[int, float]] = {}

    @classmethod
    def for_unseen(cls, first: float) -> Schedule:
        """For files that are there but have no effect."""
        return cls(first, max(first, _MOST_UNSEEN), times=_TIMES_UNSEEN)

    @classmethod
    def for_spoilt(cls) -> Schedule:
        """For files that are not as they were written."""
        return cls(SPOILT, _MOST_SPOILT, _FREE)

    def start(self, key: object) -> None:
        """Count from now, unless it counts already."""
        self._known.setdefault(key, (0, time.monotonic() + self._wait(0)))

    def is_due(self, key: object) -> bool:
        """Whether it is time; what was never started is due only where some are due at once."""
        if key not in self._known:
            return self._free > 0
        count, at = self._known[key]
        return time.monotonic() >= at and (self._times is None or count < self._times)

    def done(self, key: object) -> None:
        """Note that it was written again."""
        count = self._known.get(key, (0, 0.0))[0] + 1
        self._known[key] = (count, time.monotonic() + self._wait(count))

    def keep(self, keys: Collection[object]) -> None:
        """Forget all other keys."""
        self._known = {key: known for key, known in self._known.items() if key in keys}

    def _wait(self, count: int) -> float:
        if count < self._free:
            return 0.0
        return min(self._most, self._first * 2.0 ** min(count - self._free, 60))

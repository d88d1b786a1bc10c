"""Health of a federation: what sites say of themselves, and what a coordinator makes of it.

A site's *heartbeat* says that it is there, with which release and methods, how many replies wait
and how much disk is free; it says nothing of the data, and nothing of any run. How it travels is
the engine's matter (for the folder: ``engines/folder/heartbeat.py``); it is signed with the site's
key and judged here.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from consilience.exceptions import RunError, WireError
from consilience.protocol.method import method_names
from consilience.sites.home import DiskHome
from consilience.sites.site import Site

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
            or not all(_is_number(one) for one in numbers)
            or not all(type(one) is int for one in whole)
            or found.state not in ("watching", "stopped")
            or found.every <= 0
            or max(map(abs, (*numbers, *whole))) > _LARGEST
        ):
            raise WireError("bytes that are no heartbeat")
        return found


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(float(str(value)))


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
    if not isinstance(site.home, DiskHome):
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
    return SiteHealth(
        site,
        state,
        max(age, 0.0),
        beat.release,
        skew,
        beat.held,
        beat.unsent,
        beat.free,
        tuple(troubles),
    )

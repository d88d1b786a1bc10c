"""When a file is written again that a synchroniser has lost or shows nobody; how often to tell."""

from __future__ import annotations

import time
from collections.abc import Collection

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

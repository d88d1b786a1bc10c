"""A synchroniser between a coordinator's folder and one of each site, as bad as they come.

Every party has a folder of its own. A thread copies what changes, with delays of random length, so
that files appear out of order; it loses changes until the file changes again, stops in the middle
of a file, writes a conflicting copy in place of the file, takes files away and brings them back,
and copies no empty folders.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

FAULTS = ("loss", "part", "part for good", "conflict", "vanish", "twice")
Link = tuple[Path, Path]


def conflicting(name: str, rng: random.Random) -> str:
    """Name of a conflicting copy, as various programs give them."""
    stem = name.removesuffix(".msg")
    return rng.choice(
        [
            f"{stem} (conflicted copy 2026-11-21).msg",
            f"{stem}.sync-conflict-20261121-101500-ABCDEFG.msg",
            f"{name}~",
            f"{name}.tmp",
            f"{stem.upper()}.msg",
        ]
    )


class Synchroniser(threading.Thread):
    """Copies between a hub and other folders until stopped.

    Parameters
    ----------
    hub : Path
        The coordinator's folder.
    others : list of Path
        One folder for each site.
    seed : int
        Which fault meets which change; the times are the machine's own.
    rate : float
        Probability of each kind of fault, for each change.
    delay : float
        Longest delay of a copy, seconds.
    """

    def __init__(
        self, hub: Path, others: list[Path], *, seed: int, rate: float, delay: float = 0.05
    ) -> None:
        super().__init__(daemon=True)
        self.links: list[Link] = [pair for o in others for pair in ((hub, o), (o, hub))]
        self.rng = random.Random(seed)
        self.rate, self.delay = rate, delay
        self.stopped = threading.Event()
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._seen: dict[tuple[Link, str], tuple[int, int, int]] = {}
        self._queue: list[tuple[float, Link, str, str]] = []

    def run(self) -> None:
        try:
            while not self.stopped.wait(0.005):
                for link in self.links:
                    self._notice(link)
                self._deliver()
        except BaseException as error:
            self.failure = error
            raise

    def __enter__(self) -> Synchroniser:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()
        assert self.failure is None

    def _notice(self, link: Link) -> None:
        source, target = link
        there: set[str] = set()
        found = (Path(folder) / f for folder, _, files in os.walk(source / "runs") for f in files)
        for path in found:
            name = str(path.relative_to(source))
            stamp = _stamp(path)
            if stamp is None or path.name.startswith("."):
                continue
            there.add(name)
            if self._seen.get((link, name)) != stamp:
                self._seen[link, name] = stamp
                if self._is_copy_of(path, target / name):
                    continue
                self._plan(link, name)
        for seen_link, name in list(self._seen):
            if seen_link == link and name not in there:
                del self._seen[seen_link, name]
                self._later(link, name, "remove")

    def _plan(self, link: Link, name: str) -> None:
        drawn = self.rng.random()
        kind = next((f for i, f in enumerate(FAULTS) if drawn < (i + 1) * self.rate), "copy")
        self.done[kind] += 1
        if kind == "loss":
            return
        self._later(link, name, kind)
        if kind in ("part", "twice"):
            self._later(link, name, "copy")

    def _later(self, link: Link, name: str, kind: str) -> None:
        at = time.monotonic() + self.rng.uniform(0.0, self.delay)
        self._queue.append((at, link, name, kind))

    def _deliver(self) -> None:
        now = time.monotonic()
        due = sorted(job for job in self._queue if job[0] <= now)
        self._queue = [job for job in self._queue if job[0] > now]
        for _, (source, target), name, kind in due:
            self._apply((source, target), name, kind)

    def _apply(self, link: Link, name: str, kind: str) -> None:
        source, target = link
        to = target / name
        back = (target, source)
        if kind == "remove":
            if not (source / name).exists():
                to.unlink(missing_ok=True)
                self._seen.pop((back, name), None)
                with contextlib.suppress(OSError):  # other files are still in it
                    to.parent.rmdir()
            return
        try:
            data = (source / name).read_bytes()
        except FileNotFoundError:
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        if kind == "conflict":
            to = to.with_name(conflicting(to.name, self.rng))
        elif kind.startswith("part"):
            data = data[: self.rng.randrange(len(data))]
        to.write_bytes(data)  # in place: readers see it grow
        # What it wrote itself is no change to be copied back.
        stamp = _stamp(to)
        if stamp is not None:
            self._seen[back, str(to.relative_to(target))] = stamp
        if kind == "vanish":
            to.unlink(missing_ok=True)
            self._seen.pop((back, name), None)
            if self.rng.random() < 0.5:
                self._later(link, name, "copy")

    def _is_copy_of(self, path: Path, other: Path) -> bool:
        try:
            return path.read_bytes() == other.read_bytes()
        except OSError:
            return False


class LosesFirst(Synchroniser):
    """Loses every file the first time, and is faultless else."""

    def __init__(self, hub: Path, others: list[Path]) -> None:
        super().__init__(hub, others, seed=0, rate=0.0)
        self._lost: set[tuple[Link, str]] = set()

    def _plan(self, link: Link, name: str) -> None:
        if (link, name) in self._lost:
            self._later(link, name, "copy")
        self._lost.add((link, name))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

"""A site's end of the exchange through a folder.

Whoever may write into the folder may put any number of runs and messages there that nobody trusted
has signed. What they cost is bounded for each look: runs that a trusted coordinator is known to
have begun come first and are looked into every time; of the others, and of messages that were not
verified yet, a number takes its turn, those first that were never looked at, and small ones before
large ones.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from consilience.engines import signed
from consilience.engines.folder.mailbox import (
    COPY,
    UNSEEN,
    Allowance,
    Looked,
    Mailbox,
    Schedule,
    Stamp,
    printable,
    reason_of,
)
from consilience.engines.health import Heart
from consilience.engines.signed import OnNote, Place, TrustedCoordinators
from consilience.exceptions import DamageError, RunError, SignatureError, WireError
from consilience.sites.site import Site
from consilience.sites.site_store import Held, sole
from consilience.sites.steward import DAY, purge_old
from consilience.wire.keys import KeyList
from consilience.wire.signing import OtherReaderError, SigningKey

_WAIT_FOR_FOLDER = 5.0
_LIST_EVERY = 5.0
_MOST_LOOKS = 1000
_MOST_CONFLICTS = 1000
MOST_NEW = 200
"""Runs of nobody known, and messages that nobody is known to have signed, in one look."""
MOST_NEW_BYTES = 1 << 26
"""Bytes of such messages after which a look reads no further one."""
NAMED, NAMED_EVERY = 50, 60.0
"""Ignored files that are named at once, and seconds until one more may be."""
MANY = "more files that nobody known has signed than are named here: see who writes into the folder"


class Stop(Protocol):
    """Says when a watch is to end."""

    def is_set(self) -> bool:
        """Whether it is to end."""


def _never() -> bool:
    return False


class Watcher:
    """A site's end: answers the asks that it finds.

    Parameters
    ----------
    site : Site
    folder : Path
    key : SigningKey
        The site's private key.
    coordinators : collection of KeyList or str
        Public keys of the coordinators that may ask, a list for each.
    on_event : callable, optional
        ``on_event(kind, facts)``: "answered", "held", "ignored", "unsent", "unreachable",
        "conflict", "damaged".
    again : float
        Seconds after which a reply that leads to nothing new is written again; the wait doubles.
    """

    def __init__(
        self,
        site: Site,
        folder: Path,
        key: SigningKey,
        coordinators: Collection[KeyList | str],
        on_event: OnNote | None = None,
        *,
        again: float = UNSEEN,
    ) -> None:
        self._site, self._trusted = site, TrustedCoordinators(site, coordinators)
        site.identity = key
        limit = site.policy.max_message_bytes
        self._box = Mailbox(signed.existing(folder), key, "reply", max_bytes=limit)
        self._on_event = on_event
        self._looked = Looked()
        self._faults: dict[Place, tuple[Stamp | None, str]] = {}
        self._reachable = True
        self._unreadable: dict[str, str] = {}
        self._unseen, self._spoilt = Schedule.for_unseen(again), Schedule.for_spoilt()
        self._wait_for_folder = min(again, _WAIT_FOR_FOLDER)
        self._no_folder: dict[Place, float] = {}
        self._answered: dict[Place, Stamp | None] = {}
        self._latest: set[Place] = set()
        self._held: dict[Place, object] = {}
        self._conflicts: set[str] = set()
        self._listed = 0.0
        self._begun = self._trusted.begun()
        self._verified: set[Place] = set()
        self._seen: dict[str, list[Place]] = {}
        self._turns: dict[str | Place, int] = {}
        self._turn = 0
        self._runs: list[str] = []
        self._named, self._is_told = Allowance(NAMED, NAMED_EVERY), False
        self.unsent: dict[Place, str] = {}

    @property
    def is_behind(self) -> bool:
        """Whether there is something in the folder that no look has come to yet."""
        if not self._reachable:
            return False
        places = {place for places in self._seen.values() for place in places}
        runs = set(self._runs)
        return bool((places - self._verified | runs - self._begun) - self._turns.keys())

    def once(self, stop: Callable[[], bool] = _never) -> int:
        """Answer what is there; returns how many replies were written.

        Raises
        ------
        RunError
            The site's home cannot be written. (A reply that the folder does not take is kept in the
            home and tried again at the next look; `unsent` says why.)
        """
        try:
            places = self._listed_now()
        except OSError as error:
            if self._reachable:
                self._tell("unreachable", reason=reason_of(error))
            self._reachable = False
            return 0
        self._reachable = True
        # Places are sorted: the last one of each run stays in the dictionary.
        self._latest = set({place.run: place for place in places}.values())
        self._forget()
        written = read = 0
        for place in self._in_turn(places):
            if stop():
                break
            ask = self._box.stamp(place, "ask")
            stamps = (ask, self._box.stamp(place, "reply"))
            if (
                self._looked.holds(place, stamps)
                and not self._unseen.is_due(place)
                # The steward may have decided on a reply since the last look.
                and not (place in self._held and self._held[place] != self._decision(place))
            ):
                continue
            if place not in self._verified:
                if read >= MOST_NEW_BYTES:
                    del self._turns[place]
                    continue
                read += 0 if ask is None else ask[1]
            written += self._handle(place)
            self._tell_damages()
            if place not in self.unsent:
                self._looked.note(place, (ask, self._box.stamp(place, "reply")))
        return written

    def _listed_now(self) -> list[Place]:
        """Places in the runs that this look goes into, in order."""
        self._turn += 1
        self._runs = self._box.runs()
        own = [run for run in self._runs if run in self._begun]
        others = [run for run in self._runs if run not in self._begun]
        # Those that waited longest first, so that a flood of new ones cannot keep one out.
        others = heapq.nsmallest(MOST_NEW, others, key=lambda run: (self._turns.get(run, 0), run))
        self._turns.update(dict.fromkeys(others, self._turn))
        places = self._box.places(self._site.name, sorted([*own, *others]))
        found: dict[str, list[Place]] = {run: [] for run in (*own, *others)}
        for place in places:
            found[place.run].append(place)
        self._seen = {run: self._seen[run] for run in self._runs if run in self._seen} | found
        for run, reason in self._box.unreadable.items():
            if self._unreadable.get(run) != reason and self._may_name():
                self._tell("unreachable", run=run, reason=reason)
        unread = {r: why for r, why in self._unreadable.items() if r not in found}
        unread |= self._box.unreadable
        self._unreadable = {run: unread[run] for run in self._runs if run in unread}
        self._name_conflicts(found)
        return places

    def _in_turn(self, places: list[Place]) -> list[Place]:
        """Places to look at now: all that were verified, and some others."""
        new = [place for place in places if place not in self._verified]
        if len(new) > MOST_NEW:
            new = heapq.nsmallest(MOST_NEW, new, key=lambda p: (self._turns.get(p, 0), p))
        smallest: dict[str, int] = {}
        for place in new:
            stamp = self._box.stamp(place, "ask")
            size = 0 if stamp is None else stamp[1]
            # By the smallest of a run: large files of a stranger wait behind small ones of all
            # others.
            smallest[place.run] = min(size, smallest.get(place.run, size))
        self._turns.update(dict.fromkeys(new, self._turn))
        first = [place for place in places if place in self._verified]
        return first + sorted(new, key=lambda place: (smallest[place.run], place))

    def _forget(self) -> None:
        """Drop what is known of places that are gone."""
        places = {place for places in self._seen.values() for place in places}
        for known in (self._looked, self._unseen, self._spoilt):
            known.keep(places)
        self._verified &= places
        keys = places.union(self._runs)
        self._turns = {key: turn for key, turn in self._turns.items() if key in keys}
        by_place: list[dict[Place, Any]] = [self._answered, self._no_folder, self._held]
        for facts in (*by_place, self._faults, self.unsent):
            for gone in facts.keys() - places:
                del facts[gone]

    def purge(self, days: int) -> None:
        """Purge what the retention of the site file lets go; name what is damaged."""

        def left(run: str, error: RunError) -> None:
            self._tell("damaged", run=run, reason=str(error))

        for error in self._site.home.jobs.damages():
            self._tell("damaged", reason=str(error))
        for run, age in purge_old(self._site, days, on_error=left).items():
            self._tell("purged", run=run, reason=f"last asked {age:.0f} days ago")

    def _handle(self, place: Place) -> bool:
        try:
            coordinator, body, about, damage = self._asked(place)
            if self._is_answered(place, coordinator, about):
                self._say_again(place, coordinator, about)
                return False
            if place in self._answered and not self._spoilt.is_due(place):
                return False
            decision = self._decision(place)
            reply = self._site.answer(body) if damage is None else self._site.refuse(body, damage)
            self._tell_damages()
            if isinstance(reply, Held):
                if place not in self._held:
                    self._tell("held", run=reply.run, round=reply.round, step=reply.step)
                self._held[place] = decision
                return False
        except WireError as error:
            if self._box.stamp(place, "ask") is not None:  # otherwise the run was closed meanwhile
                self._ignore(place, str(error), damaged=not isinstance(error, SignatureError))
            return False
        if not self._has_folder(place):
            self._ignore(place, "the coordinator has closed the run, or its folder is not here yet")
            return False
        try:
            self._box.put(place, coordinator, reply, readers=(coordinator,), about=about)
        except RunError as error:
            if self.unsent.get(place) != str(error):
                self._tell("unsent", run=place.run, file=place.file, reason=str(error))
            self.unsent[place] = str(error)
            return False
        self.unsent.pop(place, None)
        self._held.pop(place, None)
        self._site.sent(place.run, place.round, place.attempt)
        if place in self._answered:
            self._spoilt.done(place)
        self._answered[place] = self._box.stamp(place, "ask")
        self._unseen.start(place)
        self._tell("answered", **signed.answered(place, reply))
        return True

    def _decision(self, place: Place) -> object:
        """What changes when the steward decides."""
        return self._site.home.jobs.stamp(place.run, place.round, place.attempt)

    def _asked(self, place: Place) -> tuple[str, bytes, str, DamageError | None]:
        """Return the coordinator's key, its ask at a place, what a reply is about, and damage.

        The last one as in `TrustedCoordinators.ask`.
        """
        about = ""

        def take(public: str) -> bytes | None:
            nonlocal about
            try:
                found = self._box.take(place, public, (public,))
            except OtherReaderError:
                # An empty reply lets the coordinator see by which key this site goes.
                if self._has_folder(place):
                    with suppress(RunError):  # It is tried again with the next look at the ask.
                        sealed_for = self._box.digest(place)
                        self._box.put(place, public, b"", readers=(public,), about=sealed_for)
                raise
            if found is None:
                return None
            about = found.digest
            return found.body

        coordinator, body, damage = self._trusted.ask(place, take)
        # From here on it is looked at every time, whatever else lies in the folder.
        self._verified.add(place)
        self._begun.add(place.run)
        return coordinator, body, about, damage

    def _is_answered(self, place: Place, coordinator: str, about: str) -> bool:
        """Whether this site's own reply to this very ask lies there."""
        try:
            return self._box.own(place, coordinator, about=about) is not None
        except WireError:
            return False

    def _say_again(self, place: Place, coordinator: str, about: str) -> None:
        """Write a reply again that may not have reached the coordinator.

        That is so for the last one of a run, and for one that was asked for anew.
        """
        ask = self._box.stamp(place, "ask")
        if place not in self._answered:
            self._answered[place] = ask  # written by an earlier process
            self._site.sent(place.run, place.round, place.attempt)
        self._unseen.start(place)
        if not self._unseen.is_due(place):
            return
        self._unseen.done(place)
        if place not in self._latest and self._answered[place] == ask:
            return
        self._answered[place] = ask
        envelope = self._box.own(place, coordinator, about=about)
        if envelope is not None and self._box.has_folder(place):
            with suppress(RunError):  # What lies there is whole: it is tried again later.
                self._box.write(place, envelope, anew=True)

    def _has_folder(self, place: Place) -> bool:
        """Whether there is a folder for the reply; it is made when the ask stays for a while.

        Some synchronisers copy no empty folders. A run that is closed loses its asks first.
        """
        if self._box.has_folder(place):
            self._no_folder.pop(place, None)
            return True
        since = self._no_folder.setdefault(place, time.monotonic())
        # A closed run loses its asks a moment before its folder: no folder is made for it.
        waited = time.monotonic() - since >= self._wait_for_folder
        return waited and self._box.stamp(place, "ask") is not None

    def _name_conflicts(self, runs: Collection[str]) -> None:
        """Note, once for each name, what a synchroniser has put beside this site's messages."""
        if time.monotonic() - self._listed < _LIST_EVERY:
            return
        self._listed = time.monotonic()
        for run in sorted(runs):
            for name in self._box.conflicts(run, (self._site.name,)):
                if f"{run}/{name}" in self._conflicts or len(self._conflicts) >= _MOST_CONFLICTS:
                    continue
                self._conflicts.add(f"{run}/{name}")
                file = printable(name)
                self._site.home.log("conflict", run=run, file=file, reason=COPY)
                self._tell("conflict", run=run, file=file, reason=COPY)

    def _ignore(self, place: Place, reason: str, *, damaged: bool = False) -> None:
        # Once for each alteration; a file that is being copied changes all the time.
        fault = (None if damaged else self._box.stamp(place, "ask"), reason)
        if self._faults.get(place) == fault:
            return
        self._faults[place] = fault
        if not self._may_name():
            return
        self._site.home.log("ignored", run=place.run, file=place.file, reason=reason)
        self._tell("ignored", run=place.run, file=place.file, reason=reason)

    def _tell_damages(self) -> None:
        for run, reason in self._site.take_damages():
            self._tell("damaged", run=run, reason=reason)

    def _may_name(self) -> bool:
        """Whether one more file or run of the folder may be named; says once that it may not."""
        may = self._named.take()
        if not may and not self._is_told:
            self._site.home.log("ignored", reason=MANY)
            self._tell("ignored", reason=MANY)
        self._is_told = not may
        return may

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._on_event is not None:
            self._on_event(kind, facts)


def watch(
    site: Site,
    folder: str | Path,
    *,
    key: SigningKey,
    coordinators: Collection[KeyList | str],
    once: bool = False,
    stop: Stop | None = None,
    poll: float = 0.5,
    on_event: OnNote | None = None,
    again: float = UNSEEN,
    retention: int | None = None,
    heartbeat: float | None = None,
) -> int:
    """Answer the asks to a site until told to stop.

    Parameters
    ----------
    site : Site
    folder : path
    key : SigningKey
        The site's private key.
    coordinators : collection of KeyList or str
        Public keys of the coordinators that may ask, a list for each.
    once : bool
        Answer what is there and return.
    stop : object with ``is_set()``, optional
        Ends the watch after the answer in hand, for instance a ``threading.Event``. It is asked,
        never waited for: waiting would hold the lock that a signal handler needs to set it.
    poll : float
        Longest time in seconds between two looks into the folder.
    on_event : callable, optional
    again : float
        Seconds after which a reply that leads to nothing new is written again; the wait doubles.
    retention : int, optional
        Days for which records of a run are kept after its last question: older ones are purged now
        and once a day.
    heartbeat : float, optional
        Seconds between two heartbeats in the folder; none are written unless given.

    Returns
    -------
    int
        Number of replies written.

    Raises
    ------
    RunError
        Another process serves this home, or it cannot be written; with `once`, also where the
        folder cannot be written.
    EngineError
        There is no such folder.
    StudyError
        No coordinator is trusted, or a key is malformed.
    """
    signed.check_poll(poll)
    is_over = _never if stop is None else stop.is_set
    watcher = Watcher(site, Path(folder), key, coordinators, on_event, again=again)
    written = 0
    heart = Heart(site, Path(folder), key, heartbeat, on_event)
    # One process for each home: records and budgets are read, changed and written.
    with sole(site.home), heart:
        began = time.monotonic()
        purged, looks = -DAY, 0
        while not is_over():
            if retention is not None and time.monotonic() - purged >= DAY:
                watcher.purge(retention)
                purged = time.monotonic()
            with heart.working():
                found = watcher.once(is_over)
            heart.look(len(watcher.unsent))
            written += found
            looks += 1
            # One look reads only so much of what nobody has signed: it goes on until all had a
            # turn.
            if once and watcher.is_behind and looks < _MOST_LOOKS:
                continue
            if once:
                for reason in watcher.unsent.values():
                    raise RunError(reason)
                break
            if found or watcher.is_behind:
                began = time.monotonic()
            time.sleep(signed.pause(began, poll))
    return written

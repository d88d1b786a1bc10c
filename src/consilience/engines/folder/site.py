"""A site's end of the exchange through a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from consilience.engines.folder.heartbeat import Heart
from consilience.engines.folder.mailbox import (
    COPY,
    Looked,
    Mailbox,
    Stamp,
    existing,
    printable,
)
from consilience.engines.folder.schedule import UNSEEN, Schedule
from consilience.engines.signed import OnNote, Place, TrustedCoordinators, check_poll, pause
from consilience.exceptions import RunError, SignatureError, WireError
from consilience.sites.home import sole
from consilience.sites.jobs import Held
from consilience.sites.retention import DAY, purge_old
from consilience.sites.site import Site
from consilience.wire.envelope import Reply
from consilience.wire.keys import KeyList
from consilience.wire.signing import OtherReaderError, SigningKey

_WAIT_FOR_FOLDER = 5.0
_LIST_EVERY = 5.0
_MOST_CONFLICTS = 1000


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
        "conflict".
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
        limit = site.policy.max_message_bytes
        self._box = Mailbox(existing(folder), key, "reply", max_bytes=limit)
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
        self.unsent: dict[Place, str] = {}

    def once(self, stop: Callable[[], bool] = _never) -> int:
        """Answer what is there; returns how many replies were written.

        Raises
        ------
        RunError
            The site's home cannot be written. (A reply that the folder does not take is kept in the
            home and tried again at the next look; `unsent` says why.)
        """
        try:
            places = self._box.places(self._site.name)
            self._name_conflicts({place.run for place in places})
        except OSError as error:
            if self._reachable:
                self._tell("unreachable", reason=error.strerror or type(error).__name__)
            self._reachable = False
            return 0
        self._reachable = True
        for run, reason in self._box.unreadable.items():
            if self._unreadable.get(run) != reason:
                self._tell("unreachable", run=run, reason=reason)
        self._unreadable = self._box.unreadable
        self._latest = set({place.run: place for place in places}.values())
        for known in (self._looked, self._unseen, self._spoilt):
            known.keep(set(places))
        self._answered = {p: self._answered[p] for p in places if p in self._answered}
        self._no_folder = {p: self._no_folder[p] for p in places if p in self._no_folder}
        self._held = {p: self._held[p] for p in places if p in self._held}
        self._faults = {place: self._faults[place] for place in places if place in self._faults}
        self.unsent = {place: self.unsent[place] for place in places if place in self.unsent}
        written = 0
        for place in places:
            if stop():
                break
            ask = self._box.stamp(place, "ask")
            stamps = (ask, self._box.stamp(place, "reply"))
            if (
                self._looked.holds(place, stamps)
                and not self._unseen.is_due(place)
                and not self._is_decided(place)
            ):
                continue
            written += self._handle(place)
            if place not in self.unsent:
                self._looked.note(place, (ask, self._box.stamp(place, "reply")))
        return written

    def purge(self, days: int) -> None:
        """Purge what the retention of the site file lets go."""
        for run, age in purge_old(self._site, days).items():
            self._tell("purged", run=run, reason=f"last asked {age:.0f} days ago")

    def _handle(self, place: Place) -> bool:
        try:
            coordinator, body, about = self._verified(place)
            if self._is_answered(place, coordinator, about):
                self._say_again(place, coordinator, about)
                return False
            if place in self._answered and not self._spoilt.is_due(place):
                return False
            decision = self._decision(place)
            reply = self._site.answer(body)
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
        said = Reply.from_bytes(reply)
        self._tell(
            "answered",
            run=place.run,
            round=place.round,
            step=said.step,
            outcome=said.status,
            reason=said.reason,
            bytes=len(reply),
        )
        return True

    def _is_decided(self, place: Place) -> bool:
        """Whether the steward may have decided on a reply since the last look."""
        return place in self._held and self._held[place] != self._decision(place)

    def _decision(self, place: Place) -> object:
        """What changes when the steward decides."""
        return self._site.home.jobs.stamp(place.run, place.round, place.attempt)

    def _verified(self, place: Place) -> tuple[str, bytes, str]:
        """Return the coordinator's key, its ask at a place, and what a reply is about."""
        about = ""

        def take(public: str) -> bytes | None:
            nonlocal about
            try:
                found = self._box.take(place, public, (public,))
            except OtherReaderError:
                self._say_unread(place, public)
                raise
            if found is None:
                return None
            about = found.digest
            return found.body

        coordinator, body = self._trusted.ask(place, take)
        return coordinator, body, about

    def _say_unread(self, place: Place, coordinator: str) -> None:
        """Let the coordinator see by which key this site goes: its ask is for another one."""
        if self._has_folder(place):
            with suppress(RunError):  # It is tried again with the next look at the ask.
                about = self._box.digest(place)
                self._box.put(place, coordinator, b"", readers=(coordinator,), about=about)

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
        if envelope is not None and self._box.path(place, "reply").parent.is_dir():
            with suppress(RunError):  # What lies there is whole: it is tried again later.
                self._box.write(place, envelope, anew=True)

    def _has_folder(self, place: Place) -> bool:
        """Whether there is a folder for the reply; it is made when the ask stays for a while.

        Some synchronisers copy no empty folders. A run that is closed loses its asks first.
        """
        if self._box.path(place, "reply").parent.is_dir():
            self._no_folder.pop(place, None)
            return True
        since = self._no_folder.setdefault(place, time.monotonic())
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
        self._site.home.log("ignored", run=place.run, file=place.file, reason=reason)
        self._tell("ignored", run=place.run, file=place.file, reason=reason)

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
    check_poll(poll)
    is_over = _never if stop is None else stop.is_set
    watcher = Watcher(site, Path(folder), key, coordinators, on_event, again=again)
    written = 0
    heart = Heart(site, Path(folder), key, heartbeat, on_event)
    with sole(site.home), heart:
        began = time.monotonic()
        purged = -DAY
        while not is_over():
            if retention is not None and time.monotonic() - purged >= DAY:
                watcher.purge(retention)
                purged = time.monotonic()
            with heart.working():
                found = watcher.once(is_over)
            heart.look(len(watcher.unsent))
            written += found
            if once:
                for reason in watcher.unsent.values():
                    raise RunError(reason)
                break
            if found:
                began = time.monotonic()
            time.sleep(pause(began, poll))
    return written

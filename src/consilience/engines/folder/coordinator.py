"""The coordinator's end of the exchange through a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from consilience.engines.base import Arrival, Key
from consilience.engines.folder.mailbox import (
    COPY,
    FOLDERS,
    RUNS,
    UNSEEN,
    Looked,
    Mailbox,
    Schedule,
    printable,
)
from consilience.engines.signed import IN_STUDY, OnNote, Place, SignedEngine, existing, pause
from consilience.exceptions import EngineError, RunError, SignatureError, WireError
from consilience.sites.site_store import check_run_id
from consilience.wire.codec import digest
from consilience.wire.envelope import Request
from consilience.wire.files import Beneath, explain
from consilience.wire.keys import KeyList
from consilience.wire.signing import SigningKey

_LIST_EVERY = 1.0
_MOST_CONFLICTS = 20


@dataclass
class _Open:
    """An ask without its reply yet."""

    place: Place
    envelope: bytes
    about: str
    sent: float
    fault: str = ""
    unsent: str = ""


class FolderEngine(SignedEngine):
    """Engine over sites that watch a shared folder.

    Parameters
    ----------
    folder : path
        Shared or synchronised; it must exist.
    sites : iterable of str
    coordinator_key : SigningKey
        Private key of this coordinator.
    site_public_keys : mapping of site to KeyList, or to public key
    poll : float
        Longest time in seconds between two looks into the folder.
    on_note : callable, optional
        ``on_note(kind, facts)`` for files that were set aside; they also go to the log.
    keep_files : bool
        Leave the run's files in the folder when the run has ended.
    again : float
        Seconds after which an ask without reply is written again; the wait doubles each time.

    Attributes
    ----------
    notes : list of str
        Why files were set aside.

    Raises
    ------
    StudyError
        A site has no public key, every key of a site has ended, or a name or key is malformed.
    EngineError
        There is no such folder.
    """

    name, log_level = "folder", logging.WARNING

    def __init__(
        self,
        folder: str | Path,
        sites: Iterable[str],
        coordinator_key: SigningKey,
        site_public_keys: Mapping[str, KeyList | str],
        poll: float = 0.5,
        *,
        on_note: OnNote | None = None,
        keep_files: bool = False,
        again: float = UNSEEN,
    ) -> None:
        super().__init__(sites, coordinator_key, site_public_keys, poll, on_note)
        self._public, self._keep_files = coordinator_key.public, keep_files
        self._box = Mailbox(existing(Path(folder)), coordinator_key, "ask")
        self._waiting: dict[Key, _Open] = {}
        self._looked = Looked()
        self._unseen, self._spoilt = Schedule.for_unseen(again), Schedule.for_spoilt()
        self._run = ""
        self._conflicts: set[str] = set()
        self._listed = 0.0

    def open_run(self, run: str) -> None:
        """Make the run's two directories."""
        self._run = check_run_id(run)
        for name in FOLDERS.values():
            self._box.within.make(RUNS, run, name)

    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Write asks; those that are there already stay as they are."""
        for key, data in requests.items():
            request = Request.from_bytes(data)
            place = Place(request.run, key[0], request.attempt, key[1])
            readers = self._keys.readers(place.site)
            envelope = self._box.seal(place, self._public, data, readers=readers)
            self._box.write(place, envelope)
            self._looked.note((place, "ask"), self._box.stamp(place, "ask"))
            self._unseen.start(place)
            # The envelope is kept: signatures are deterministic, so what is written again is the
            # same.
            self._waiting[key] = _Open(place, envelope, digest(envelope), time.monotonic())

    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Look for replies until all (or any) are there or past their deadline."""
        arrivals: list[Arrival] = []
        left = sorted(keys)
        began = time.monotonic()
        while True:
            for key in list(left):
                arrival = self._look(key, deadline)
                if arrival is not None:
                    arrivals.append(arrival)
                    left.remove(key)
                    del self._waiting[key]
                    began = time.monotonic()
            if not left or (arrivals and wait == "any"):
                return arrivals
            self._name_conflicts()
            time.sleep(pause(began, self._poll))

    def close_run(self, run: str) -> None:
        """Remove the run's files: the journal and the sites' records have what they said."""
        self._waiting.clear()
        # Of this engine's runs one follows another: nothing of the last one may stay.
        for known in (self._looked, self._unseen, self._spoilt):
            known.keep(())
        self._name_conflicts(at_once=True)
        if self._keep_files:
            return
        try:
            remove_files(self._box.within.root, run)
        except RunError as error:
            self._note("left", run=run, reason=str(error))

    def _look(self, key: Key, deadline: float) -> Arrival | None:
        """One look at one place. The file comes first: a process may have slept past a deadline."""
        if key not in self._waiting:
            raise EngineError(f"round {key[0]} was not put to site {key[1]!r} by this process")
        ask = self._waiting[key]
        stamp = self._box.stamp(ask.place, "reply")
        if stamp is not None and not self._looked.holds(ask.place, stamp):
            try:
                body = self._reply(ask)
            except WireError as error:
                self._looked.note(ask.place, stamp)
                # Once for each reason: a file that grows while it is copied changes all the time.
                if error.public != ask.fault:
                    self._note("set aside", round=key[0], site=key[1], reason=error.public)
                ask.fault = error.public
            else:
                if body is not None:
                    return Arrival(key, body)
        if time.monotonic() - ask.sent < deadline:
            self._repair(ask)
            return None
        # The last fault goes along: it often says what the person has to mend.
        reason = "no reply within the deadline"
        if ask.fault:
            reason += f", except one set aside: {ask.fault}"
        if ask.unsent:
            reason += "; the question was altered or removed and could not be written again"
        return Arrival(key, None, reason)

    def _reply(self, ask: _Open) -> bytes | None:
        """Return the reply to an ask, signed with a key of the site that counts today."""
        site = ask.place.site
        publics = self._keys.publics(site)
        try:
            found = self._box.take(ask.place, self._public, publics, about=ask.about)
        except SignatureError as error:
            sentence = f"{error.public}; if its key has changed, add the new one to {IN_STUDY}"
            raise SignatureError.shared(sentence) from None
        if found is None:
            return None
        self._keys.require_current(site, found.public)
        return found.body

    def _repair(self, ask: _Open) -> None:
        """Write an ask again that was altered or removed, or that nobody seems to see."""
        place, stamp = ask.place, self._box.stamp(ask.place, "ask")
        unseen = self._unseen.is_due(place)
        spoilt = not self._looked.holds((place, "ask"), stamp) and self._spoilt.is_due(place)
        if not unseen and not spoilt:
            return
        try:
            # A repair that nobody needed does not count against the next one.
            if self._box.write(place, ask.envelope, anew=unseen) and not unseen:
                self._spoilt.done(place)
            ask.unsent = ""
        except RunError as error:
            self._spoilt.done(place)
            if str(error) != ask.unsent:
                self._note("unsent", round=place.round, site=place.site, reason=str(error))
            ask.unsent = str(error)
        if unseen:
            self._unseen.done(place)
        self._looked.note((place, "ask"), self._box.stamp(place, "ask"))

    def _name_conflicts(self, *, at_once: bool = False) -> None:
        """Note, once for each name, what a synchroniser has put beside the messages."""
        if not at_once and time.monotonic() - self._listed < _LIST_EVERY:
            return
        self._listed = time.monotonic()
        try:
            found = self._box.conflicts(self._run, self.sites) if self._run else []
        except OSError:
            return  # The looks at the messages themselves say what is wrong with the folder.
        for name in found:
            if name not in self._conflicts and len(self._conflicts) < _MOST_CONFLICTS:
                self._conflicts.add(name)
                self._note("conflicting copy", run=self._run, file=printable(name), reason=COPY)


def remove_files(folder: Path, run: str) -> bool:
    """Remove what a run has left in a shared folder; returns whether there was something.

    Raises
    ------
    RunError
        Something there cannot be removed.
    """
    within, gone = Beneath(folder), f".{check_run_id(run)}.closed"
    try:
        found = within.remove(RUNS, gone)  # left by a process that was killed here, or brought back
        try:
            # Out of the sites' sight first, so that nobody answers what is being removed.
            within.rename((RUNS, run), gone)
        except FileNotFoundError:
            return found
        return within.remove(RUNS, gone)
    except OSError as error:
        raise explain(error, "remove", folder / RUNS / run) from error

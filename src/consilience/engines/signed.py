"""Who may say what, where: what engines between organisations check of signed messages.

A *place* (run, round, attempt, site) names one question; its ask and its reply are envelopes that
are bound to it and sealed for its two parties (`wire.signing`). The coordinator knows the sites by
the keys that the study lists (`SiteKeys`), a site knows coordinators by those that its own file
trusts (`TrustedCoordinators`). Both lists come from files that a person wrote; nothing that arrives
changes them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from consilience.engines.base import Engine
from consilience.exceptions import (
    DamageError,
    EngineError,
    ParameterError,
    SignatureError,
    StudyError,
    WireError,
)
from consilience.protocol.phases import opening
from consilience.sites.site import COORDINATORS, Site
from consilience.sites.site_store import check_run_id
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply, Request
from consilience.wire.keys import KeyList, parties, remedy
from consilience.wire.signing import Context, SigningKey

Direction = Literal["ask", "reply"]
OnNote = Callable[[str, dict[str, Any]], None]

IN_STUDY = "[sites.keys] of the study"
IN_SITE_FILE = "[trust] of the site file"
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, order=True)
class Place:
    """One question to one site: where its two messages are and what their signatures name."""

    run: str
    round: int
    attempt: int
    site: str

    def __post_init__(self) -> None:
        check_run_id(self.run)
        check_site(self.site)

    @property
    def file(self) -> str:
        """Name of both files in a shared folder."""
        return f"{self.round}-{self.attempt}-{self.site}.msg"

    def context(self, direction: Direction, coordinator: str, about: str) -> Context:
        """What the envelope at this place is bound to."""
        # Both parties are named: a message that is sent back to its sender is none.
        sender, recipient = coordinator, self.site
        if direction == "reply":
            sender, recipient = recipient, sender
        return Context(
            self.run, self.round, self.attempt, direction, sender, recipient, about=about
        )

    @classmethod
    def of(cls, request: Request) -> Place:
        """Place at which a request belongs."""
        return cls(request.run, request.round, request.attempt, request.site)


class SiteKeys:
    """The sites of a study, by the keys under which a coordinator knows them.

    Parameters
    ----------
    sites : iterable of str
    public_keys : mapping of site to KeyList, or to public key

    Attributes
    ----------
    sites : tuple of str
        In order of name.

    Raises
    ------
    StudyError
        A site has no public key, every key of a site has ended, or a name or key is malformed.
    """

    def __init__(self, sites: Iterable[str], public_keys: Mapping[str, KeyList | str]) -> None:
        self.sites = tuple(sorted(check_site(site) for site in sites))
        for site in self.sites:
            if site not in public_keys:
                raise StudyError(
                    f"the study has no public key of site {site!r}: ask its steward for the line "
                    "that 'consilience site keys' prints and add it to [sites.keys]"
                )
        self._keys = {site: KeyList.of(public_keys[site]) for site in self.sites}
        for site, keys in self._keys.items():
            keys.require_valid(f"site {site!r}", IN_STUDY)

    def publics(self, site: str) -> tuple[str, ...]:
        """Every key of a site, whether it counts today or not."""
        return self._keys[site].publics

    def readers(self, site: str) -> tuple[str, ...]:
        """Keys of a site for which an ask is sealed: those that count today.

        Which of several the site has in hand, nobody else can know.
        """
        return self._keys[site].valid()

    def require_current(self, site: str, public: str) -> None:
        """Refuse what a key has signed that has ended.

        Raises
        ------
        SignatureError
        """
        # After the signature was found good: the person learns whose key it was.
        ended = self._keys[site].ended(public)
        if ended is not None:
            sentence = f"the key of site {site!r} has ended on {ended}: {remedy(site, IN_STUDY)}"
            raise SignatureError.shared(sentence)


class SignedEngine(Engine):
    """What engines share that carry sealed messages between organisations.

    Parameters
    ----------
    sites, coordinator_key, site_public_keys, poll, on_note
        As of the engine.

    Attributes
    ----------
    notes : list of str
        What was set aside, lost or held.
    log_level : int
        At which notes go to the log.
    """

    seals, apart = True, True
    log_level = logging.INFO

    def __init__(
        self,
        sites: Iterable[str],
        coordinator_key: SigningKey,
        site_public_keys: Mapping[str, KeyList | str],
        poll: float,
        on_note: OnNote | None,
    ) -> None:
        self._keys, self._key = SiteKeys(sites, site_public_keys), coordinator_key
        self.sites = self._keys.sites
        self._poll, self._on_note = check_poll(poll), on_note
        self.notes: list[str] = []

    def _note(self, kind: str, **facts: Any) -> None:
        said = f"{kind}: " + ", ".join(f"{name} {value}" for name, value in facts.items())
        self.notes.append(said)
        logging.getLogger(type(self).__module__).log(self.log_level, "%s: %s", self.name, said)
        if self._on_note is not None:
            self._on_note(kind, facts)


class TrustedCoordinators:
    """The coordinators whose asks a site answers.

    Parameters
    ----------
    site : Site
    coordinators : collection of KeyList or str
        A list of keys for each.

    Raises
    ------
    StudyError
        There is none, every key of all of them has ended, or a key is malformed.
    """

    def __init__(self, site: Site, coordinators: Collection[KeyList | str]) -> None:
        if not coordinators:
            raise StudyError(
                f"site {site.name!r} trusts no coordinator: add the study's coordinator key to "
                "coordinators in [trust] of the site file"
            )
        check_site(site.name)
        self._site, self._parties = site, parties(tuple(coordinators))
        if not any(party.valid() for party in self._parties):
            self._parties[0].require_valid("the coordinator", IN_SITE_FILE)

    def begun(self) -> set[str]:
        """Runs that a trusted coordinator is known to have begun here."""
        publics = {public for party in self._parties for public in party.publics}
        try:
            known = self._site.home.ledger(COORDINATORS)
        except DamageError:
            return set()  # Whoever asks is told.
        return {run for run, public in known.items() if public in publics}

    def signed(self, take: Callable[[str], bytes | None]) -> tuple[KeyList, str, bytes | None]:
        """Return who signed a message (party and key), and the message.

        Parameters
        ----------
        take : callable
            ``take(public)`` returns the body if that key signed it, None if there is nothing;
            otherwise it raises `SignatureError`.

        Raises
        ------
        SignatureError
            Nobody of the list has signed it, or the key has ended.
        WireError
            From `take`.
        """
        # By coordinator, then key: a run belongs to a party, whichever of its keys has signed.
        for party in self._parties:
            for public in party.publics:
                try:
                    body = take(public)
                except SignatureError:
                    continue
                ended = party.ended(public)
                if ended is not None:
                    said = remedy("the coordinator", IN_SITE_FILE)
                    raise SignatureError(f"the coordinator's key has ended on {ended}: {said}")
                return party, public, body
        raise SignatureError(
            "no coordinator that this site trusts has signed it for this place; if the "
            f"coordinator's key has changed, add the new one to {IN_SITE_FILE}"
        )

    def ask(
        self, place: Place, take: Callable[[str], bytes | None]
    ) -> tuple[str, bytes, DamageError | None]:
        """Return the coordinator's key and its ask at a place, and bind the run to it.

        Returns
        -------
        public : str
        body : bytes
        damage : DamageError or None
            Why the run can be bound to nobody; then the ask may be refused and nothing else.

        Raises
        ------
        WireError
            There is none, or it is for another place; `SignatureError` as in `signed`, or another
            coordinator began the run.
        """
        party, public, body = self.signed(take)
        if body is None:
            raise WireError("the ask is gone")
        request = Request.from_bytes(body)
        if Place.of(request) != place:
            raise WireError("the ask is for another place")
        try:
            self._bind(place.run, party, public)
            self._may_follow(request, party)
        except DamageError as error:
            return public, body, error
        return public, body, None

    def _may_follow(self, request: Request, party: KeyList) -> None:
        """Check that a run follows no run of another coordinator: it would use what that one left.

        A run that no coordinator is known to have begun was made on the site's own machine.
        """
        if request.step != opening.NAME:
            return
        try:
            message = decode_message(request.message, max_bytes=self._site.policy.max_message_bytes)
        except WireError:
            return  # The site itself refuses it, and says so.
        followed = message.follows if isinstance(message, opening.Open) else ""
        # A run that follows another may use its labels and scaling: those stay with who began it.
        known = self._site.home.ledger(COORDINATORS).get(followed)
        if known is not None and known not in party.publics:
            raise SignatureError("another coordinator began this run, or the one that it follows")

    def _bind(self, run: str, party: KeyList, public: str) -> None:
        """Note who began a run, or check that it is the same one, be it under a later key."""
        known = self._site.home.ledger(COORDINATORS)
        if run not in known:
            self._site.home.write_ledger(COORDINATORS, {**known, run: public})
        elif known[run] not in party.publics:
            raise SignatureError(
                "another coordinator began this run, or the same one under a key that is no longer "
                f"listed: list all keys of one coordinator together in {IN_SITE_FILE}"
            )


def check_site(site: str) -> str:
    """Refuse names of sites that could leave the folder."""
    # The name becomes part of a path on machines of other people.
    if not _SITE.fullmatch(site) or ".." in site:
        raise StudyError(
            f"site name {site[:80]!r} is not allowed: use 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return site


def existing(folder: Path) -> Path:
    """Return the shared folder; `EngineError` where there is none."""
    if not folder.is_dir():
        raise EngineError(
            f"there is no folder {folder}: create the shared folder, or check that it is mounted"
        )
    return folder


def answered(place: Place, reply: bytes) -> dict[str, Any]:
    """What the person at a site is told of a reply."""
    said = Reply.from_bytes(reply)
    outcome = {"step": said.step, "outcome": said.status, "reason": said.reason}
    return {"run": place.run, "round": place.round, **outcome, "bytes": len(reply)}


def pause(since: float, poll: float, now: float | None = None) -> float:
    """Seconds until the next look: a tenth of the time waited so far, at least 2 ms."""
    # Short looks at first, when an answer is near; long ones for sites that take hours.
    waited = (time.monotonic() if now is None else now) - since
    return min(poll, max(0.002, 0.1 * waited))


def check_poll(poll: float) -> float:
    """Check the longest time between two looks."""
    if not poll > 0:
        raise ParameterError.of("poll", "a number of seconds above 0", poll)
    return poll

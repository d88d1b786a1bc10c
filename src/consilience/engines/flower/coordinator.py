"""The coordinator's end of the exchange through Flower."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from consilience.engines.base import Arrival, Key
from consilience.engines.flower.handler import (
    IGNORED,
    Content,
    Delivered,
    Link,
    LinkLost,
    query_context,
)
from consilience.engines.signed import OnNote, Place, SignedEngine, pause
from consilience.exceptions import EngineError, SignatureError, WireError
from consilience.wire.codec import digest
from consilience.wire.envelope import Request
from consilience.wire.keys import KeyList
from consilience.wire.signing import Context, SigningKey

HELLO_AGAIN = 2.0
"""Seconds between two looks for sites that are not connected."""
HELLO_REPEAT, HELLO_LIFE = 20.0, 60.0
"""Seconds after which a node is greeted again, and for which a greeting is of use."""
STRANGER_FIRST, STRANGER_LAST = 10.0, 300.0
"""Seconds until a node that answered for no site is greeted again; they double. What it said may
have been altered on the way, and a site's trust may be mended while a run waits for it."""
HELD_FIRST, HELD_LAST = 2.0, 60.0
"""Seconds until a held reply is asked for again; they double."""
AGAIN_FIRST, AGAIN_LAST = 0.5, 30.0
"""Seconds until a message that failed is sent again, and until a lost link is opened again."""
REPEAT_FIRST, REPEAT_LAST = 20.0, 300.0
"""Seconds of silence after which an ask is sent again: a node that died with a message in hand is
not given it a second time. A site that is still computing answers both, from one record."""
LIFE = 24 * 3600.0
"""Seconds for which the SuperLink keeps a message for a site that is away."""


class Clock(Protocol):
    """What the engine needs of the module `time`."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


@dataclass(frozen=True)
class _Hello:
    """A greeting that is out."""

    node: int
    query: str
    about: str
    sent: float


@dataclass
class _Open:
    """An ask without its reply yet."""

    place: Place
    about: str
    content: Content
    sent: float
    due: float
    again: float = AGAIN_FIRST
    ids: list[str] = field(default_factory=list)
    node: int = 0
    repeat: float = REPEAT_FIRST
    fault: str = ""


@dataclass(frozen=True)
class Answer:
    """What a site said, and signed, to a question of no run.

    Attributes
    ----------
    said : dict
    asked, arrived : float
        By the coordinator's clock, in seconds since 1970.
    """

    said: dict[str, Any]
    asked: float
    arrived: float


class FlowerEngine(SignedEngine):
    """Engine over sites that are nodes of a SuperLink.

    Parameters
    ----------
    open_link : callable
        ``open_link() -> Link``; called again when the link was lost.
    sites : iterable of str
    coordinator_key : SigningKey
        Private key of this coordinator.
    site_public_keys : mapping of site to KeyList, or to public key
    poll : float
        Longest time in seconds between two looks for replies.
    on_note : callable, optional
        ``on_note(kind, facts)`` for what was set aside, lost or held; it also goes to the log.
    clock : Clock, optional
        The module `time` unless given.

    Attributes
    ----------
    notes : list of str

    Raises
    ------
    StudyError
        A site has no public key, every key of a site has ended, or a name or key is malformed.
    """

    name = "flower"

    def __init__(
        self,
        open_link: Callable[[], Link],
        sites: Iterable[str],
        coordinator_key: SigningKey,
        site_public_keys: Mapping[str, KeyList | str],
        *,
        poll: float = 0.5,
        on_note: OnNote | None = None,
        clock: Clock = time,
    ) -> None:
        super().__init__(sites, coordinator_key, site_public_keys, poll, on_note)
        self._link: Link | None = None
        self._open_link, self._clock = open_link, clock
        self._waiting: dict[Key, _Open] = {}
        self._nodes: dict[str, int] = {}
        self._strangers: dict[int, tuple[float, float]] = {}
        self._doubles: dict[int, str] = {}
        self._hellos: dict[str, _Hello] = {}
        self._next_hello = self._next_link = 0.0
        self._patience = AGAIN_FIRST

    # ------------------------------------------------------------------ the engine

    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Put asks in line; they go as soon as their site is connected."""
        now = self._clock.monotonic()
        for key, data in requests.items():
            request = Request.from_bytes(data)
            place = Place.of(request)
            context = place.context("ask", self._key.public, "")
            envelope = self._key.seal(context, data, readers=self._keys.readers(place.site))
            content: Content = {"kind": "ask", **asdict(place), "envelope": envelope}
            # Nothing is sent here: which node is the site may not be known yet.
            self._waiting[key] = _Open(place, digest(envelope), content, now, now)

    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Send what is in line and look for replies until all (or any) are there or late."""
        unknown = [key for key in keys if key not in self._waiting]
        if unknown:
            raise EngineError(f"round {unknown[0][0]} was not put to site {unknown[0][1]!r}")
        arrivals: list[Arrival] = []
        began = self._clock.monotonic()
        while True:
            found = self._turn(keys)
            for key in sorted(keys & self._waiting.keys()):
                ask, now = self._waiting[key], self._clock.monotonic()
                arrival = found.get(key)
                if arrival is None and now >= ask.sent + deadline:
                    why = f" ({ask.fault})" if ask.fault else ""
                    arrival = Arrival(key, None, f"no reply within {deadline:g} seconds{why}")
                if arrival is not None:
                    del self._waiting[key]
                    arrivals.append(arrival)
                    began = now
            if not keys & self._waiting.keys() or (arrivals and wait == "any"):
                return arrivals
            self._clock.sleep(pause(began, self._poll, self._clock.monotonic()))

    def close_run(self, run: str) -> None:
        """End Flower's run."""
        self._waiting.clear()
        self._close(well=True)

    def ask_everyone(
        self, kind: str, body: Mapping[str, Any], *, seconds: float
    ) -> dict[str, Answer | None]:
        """Put a question that belongs to no run to every site that is connected.

        Every node is greeted; other questions go only to those that have answered as a site, for
        whoever may register a node would read them.

        Parameters
        ----------
        kind : {"hello", "check"}
        body : dict
            Of texts and numbers.
        seconds : float
            How long to wait.

        Returns
        -------
        dict
            By site: its `Answer`, or None.
        """
        found: dict[str, Answer | None] = dict.fromkeys(self.sites)
        if kind != "hello" and not self._nodes:
            self.ask_everyone("hello", {}, seconds=seconds / 3)
        asked: dict[str, tuple[str, str, float, int]] = {}
        tried: set[int] = set()
        # Who was not there for the greeting is not waited for.
        wanted = set(found) if kind == "hello" else set(self._nodes)
        end = self._clock.monotonic() + seconds
        while self._clock.monotonic() < end and any(found[site] is None for site in wanted):
            try:
                link = self._linked()
                if link is not None:
                    known = set(self._nodes.values())
                    for node in {n for n in link.nodes() if kind == "hello" or n in known} - tried:
                        tried.add(node)
                        query, content, about = self._query(kind, body)
                        sent = link.push(node, content, seconds=seconds)
                        if sent:
                            asked[sent] = (query, about, time.time(), node)
                    for delivered in link.pull(list(asked)) if asked else ():
                        query, about, when, node = asked.pop(delivered.id, ("", "", 0.0, 0))
                        site, said = self._answered(delivered, query, about)
                        # Whoever signed as the site is the site; which node the server names counts
                        # for nothing.
                        if site and said is not None:
                            self._nodes[site] = node
                            found[site] = Answer(said, when, time.time())
            except LinkLost as lost:
                self._lost(lost)
                tried.clear()
                asked.clear()
            self._clock.sleep(0.05)
        return found

    def require_link(self) -> None:
        """Open the link, or say why that cannot be done.

        Raises
        ------
        LinkLost
        """
        if self._link is None:
            self._link = self._open_link()

    def close(self) -> None:
        """Let the connection go without having finished."""
        self._close(well=False)

    # ------------------------------------------------------------------ one turn

    def _turn(self, keys: Collection[Key]) -> dict[Key, Arrival]:
        """Greet, send, fetch once; a lost link leaves everything to be sent again."""
        try:
            link = self._linked()
            if link is None:
                return {}
            self._greet(link)
            self._push(link)
            return self._pull(link, keys)
        except LinkLost as lost:
            self._lost(lost)
            return {}

    def _linked(self) -> Link | None:
        if self._link is None and self._clock.monotonic() >= self._next_link:
            try:
                self._link = self._open_link()
            except LinkLost as lost:
                self._lost(lost)
        return self._link

    def _lost(self, lost: LinkLost) -> None:
        """Forget what was sent through a link; our own reply caches make sending again harmless."""
        self._note("link lost", reason=str(lost))
        self._close(well=False)
        for ask in self._waiting.values():
            ask.fault = str(lost)
        self._next_link = self._clock.monotonic() + self._patience
        # A server that restarts needs time: attempts become rarer.
        self._patience = min(2 * self._patience, AGAIN_LAST)

    def _close(self, *, well: bool) -> None:
        link, self._link = self._link, None
        for ask in self._waiting.values():
            ask.ids, ask.due = [], 0.0
        self._nodes.clear()
        self._strangers.clear()
        self._doubles.clear()
        self._hellos.clear()
        self._next_hello = 0.0
        if link is not None:
            link.close(well=well)

    def _greet(self, link: Link) -> None:
        """Find out which node is which site, as long as a site is missing or silent."""
        now, asks = self._clock.monotonic(), self._waiting.values()
        wanted = {ask.place.site for ask in asks} - self._nodes.keys()
        if not wanted and all(ask.ids and ask.due > now for ask in asks):
            return
        if now >= self._next_hello:
            self._next_hello = now + HELLO_AGAIN
            for node in self._ungreeted(link.nodes(), now):
                query, content, about = self._query("hello", {})
                sent = link.push(node, content, seconds=HELLO_LIFE)
                if sent:
                    self._hellos[sent] = _Hello(node, query, about, now)
        for delivered in link.pull(list(self._hellos)) if self._hellos else ():
            hello = self._hellos.pop(delivered.id, None)
            if hello is not None:
                self._greeted(hello, delivered, now)

    def _ungreeted(self, listed: Collection[int], now: float) -> list[int]:
        """Nodes of which it is not known which site they are; what has left is forgotten."""
        # What is gone may come back as another site: nothing is remembered of it.
        present = set(listed)
        self._nodes = {site: node for site, node in self._nodes.items() if node in present}
        self._strangers = {n: when for n, when in self._strangers.items() if n in present}
        self._doubles = {
            n: s for n, s in self._doubles.items() if n in present and s in self._nodes
        }
        self._hellos = {i: h for i, h in self._hellos.items() if now < h.sent + HELLO_LIFE + 10.0}
        known = {*self._nodes.values(), *self._doubles}
        known |= {node for node, (due, _) in self._strangers.items() if now < due}
        known |= {h.node for h in self._hellos.values() if now < h.sent + HELLO_REPEAT}
        return sorted(present - known)

    def _greeted(self, hello: _Hello, delivered: Delivered, now: float) -> None:
        """Note which site a node is. Of two nodes with one site's key, the newer one counts."""
        site, _ = self._answered(delivered, hello.query, hello.about)
        if hello.node in self._doubles:
            return
        if site:
            before = self._nodes.get(site, hello.node)
            if before != hello.node:
                self._doubles[before] = site
                self._note("double", site=site, reason="two nodes answer for it")
            self._nodes[site] = hello.node
            self._strangers.pop(hello.node, None)
        elif delivered.content is not None and hello.node not in self._nodes.values():
            if hello.node not in self._strangers:
                said = _known_words(delivered.content)
                why = f"it set the greeting aside: {said}" if said else "it answers for no site"
                self._note("stranger", node=hello.node, reason=why)
            _, wait = self._strangers.get(hello.node, (0.0, STRANGER_FIRST))
            self._strangers[hello.node] = (now + wait, min(2 * wait, STRANGER_LAST))

    def _push(self, link: Link) -> None:
        now = self._clock.monotonic()
        for ask in self._waiting.values():
            node = self._nodes.get(ask.place.site)
            if node is None:
                ask.fault = "it is not connected to the SuperLink"
                if self._strangers:
                    ask.fault += ", or is a node there that answers for no site of the study"
                continue
            # The site came back as another node, which does not know of the message.
            if ask.ids and ask.node != node:
                ask.due = now
            if ask.due > now:
                continue
            sent = link.push(node, ask.content, seconds=LIFE)
            if not sent:
                self._again(ask, "the SuperLink did not take the message")
                continue
            ask.ids.append(sent)
            ask.node, ask.due = node, now + ask.repeat
            # A site that computes for hours is not to be asked every minute.
            ask.repeat = min(2 * ask.repeat, REPEAT_LAST)

    def _pull(self, link: Link, keys: Collection[Key]) -> dict[Key, Arrival]:
        by_id = {one: key for key in keys if key in self._waiting for one in self._waiting[key].ids}
        found: dict[Key, Arrival] = {}
        for delivered in link.pull(list(by_id)) if by_id else ():
            key = by_id.get(delivered.id)
            if key is None or key in found or delivered.id not in self._waiting[key].ids:
                continue
            # Each message is answered once; what is asked again has a number of its own.
            self._waiting[key].ids.remove(delivered.id)
            body = self._opened(key, delivered)
            if body is not None:
                found[key] = Arrival(key, body)
                self._patience = AGAIN_FIRST
        return found

    def _opened(self, key: Key, delivered: Delivered) -> bytes | None:
        """The reply in what came back; anything else is noted, and asked for again."""
        ask = self._waiting[key]
        content = delivered.content
        if content is None:
            self._again(ask, f"Flower reports {delivered.fault}")
            return None
        status, envelope = content.get("status"), content.get("envelope")
        if status == "held":
            ask.fault = "its reply waits for the steward's release"
            self._note("held", round=key[0], site=key[1], reason=ask.fault)
            ask.again = min(2 * max(ask.again, HELD_FIRST / 2), HELD_LAST)
            ask.due = self._clock.monotonic() + ask.again
            return None
        if status != "reply" or not isinstance(envelope, bytes):
            known = _known_words(content) or "it was not understood"
            self._again(ask, f"the site set the message aside: {known}")
            return None
        context = ask.place.context("reply", self._key.public, ask.about)
        try:
            return self._unsealed(key[1], envelope, context)
        except WireError as error:
            self._again(ask, error.public)
            return None

    def _unsealed(self, site: str, envelope: bytes, context: Context) -> bytes:
        """What a site has signed with a key that counts today."""
        fault: WireError = WireError("a site without keys")
        for public in self._keys.publics(site):
            try:
                body = self._key.unseal(envelope, public=public, context=context)
            except SignatureError as error:
                fault = error
                continue
            self._keys.require_current(site, public)
            return body
        raise fault

    def _again(self, ask: _Open, reason: str) -> None:
        if ask.fault != reason:
            self._note("again", round=ask.place.round, site=ask.place.site, reason=reason)
        ask.fault = reason
        ask.due = self._clock.monotonic() + ask.again
        ask.again = min(2 * ask.again, AGAIN_LAST)

    # ------------------------------------------------------------------ questions of no run

    def _query(self, kind: str, body: Mapping[str, Any]) -> tuple[str, Content, str]:
        query = secrets.token_hex(16)
        text = json.dumps({"kind": kind, **body}, sort_keys=True).encode()
        context = query_context(query, "ask", self._key.public)
        # Who is greeted is not known yet; other questions only the sites of the study may read.
        readers = None
        if kind != "hello":
            readers = [public for site in self.sites for public in self._keys.readers(site)]
        envelope = self._key.seal(context, text, readers=readers)
        return query, {"kind": kind, "query": query, "envelope": envelope}, digest(text)

    def _answered(
        self, delivered: Delivered, query: str, about: str
    ) -> tuple[str, dict[str, Any] | None]:
        """Site that signed an answer, and what it says; no site where no key of the study fits."""
        content = delivered.content or {}
        envelope, site = content.get("envelope"), content.get("site")
        if not isinstance(envelope, bytes) or not isinstance(site, str) or site not in self.sites:
            return "", None
        context = query_context(query, "reply", self._key.public, about)
        try:
            said = json.loads(self._unsealed(site, envelope, context))
        except (WireError, ValueError, RecursionError):
            return "", None
        if not isinstance(said, dict) or said.get("site") != site:
            return "", None
        return site, said


def _known_words(content: Mapping[str, object]) -> str:
    """Why a site set a message aside, in words of this package; others are not repeated."""
    said = content.get("reason")
    return said if isinstance(said, str) and said in IGNORED else ""

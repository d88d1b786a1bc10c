"""A site's end of the exchange through Flower: one message in, one message out.

Nothing that arrives is trusted for where it came from: an ask is an envelope that a coordinator on
the site's own list has signed and sealed for this site, run, round and attempt, like a file in a
shared folder (`engines.signed`); Flower's authentication only says which machine is connected. And
nothing but our own sentences leaves: whatever is raised in here becomes a refusal or one of a few
words.

======= ============================================ ===========================================
kind    asks                                         answer
======= ============================================ ===========================================
hello   who are you, are you well?                   a heartbeat (`engines.health`)
check   could this study run on your table?          yes, or why not
ask     a request of a run                           the reply, or that it waits for the steward
======= ============================================ ===========================================

`Link` and `Delivered` are the seam between the exchange and Flower: what either end needs of a
connection, and no more. `FlowerEngine` speaks with a `Link`, a site's `Desk` is called by a node;
neither imports Flower. ``grid.py`` and ``node.py`` have both over a real SuperLink;
``tests/engines/fake_link.py`` has both in one process, with losses, delays and repetitions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from consilience.engines.health import heartbeat_of
from consilience.engines.signed import OnNote, Place, TrustedCoordinators, answered
from consilience.exceptions import (
    ConsilienceError,
    EngineError,
    RunError,
    SignatureError,
    WireError,
)
from consilience.sites.site import Site
from consilience.sites.site_store import Held
from consilience.wire.codec import digest
from consilience.wire.keys import KeyList
from consilience.wire.signing import OVERHEAD, Context, OtherReaderError, SigningKey, unseal

_log = logging.getLogger(__name__)

Checker = Callable[[str], Mapping[str, Any]]

ANY_SITE = "any site"
NOT_OURS = "it is not a message of this package"
NOT_TRUSTED = "no coordinator that this site trusts has signed it for this place"
OTHER_KEY = "it is sealed for another key than this site's"
OTHER_COORDINATOR = "another coordinator began this run"
TOO_LARGE = "it is larger than messages may be"
HOME_FAILED = "the site could not keep its record"
FOREIGN_APP = "the run's app is not the one of this release"
UNFORESEEN = "the site stopped with an error; its own log says why"
IGNORED = frozenset(
    {NOT_OURS, NOT_TRUSTED, OTHER_KEY, OTHER_COORDINATOR}
    | {TOO_LARGE, HOME_FAILED, FOREIGN_APP, UNFORESEEN}
)
"""All that a site ever says of a message that it sets aside."""

_MOST_LOGGED = 1000
_MOST_SAID = 1000
_QUERY = 32
_SLACK = 1 << 16


def query_context(
    query: str, direction: Literal["ask", "reply"], coordinator: str, about: str = ""
) -> Context:
    """What hello and check are bound to: a number that the coordinator drew, and no run."""
    sender, recipient = coordinator, ANY_SITE
    if direction == "reply":
        sender, recipient = recipient, sender
    return Context(f"query {query}", 0, 0, direction, sender, recipient, about=about)


class Desk:
    """Answers what a node hands in.

    Parameters
    ----------
    site : Site
    key : SigningKey
        The site's private key.
    coordinators : collection of KeyList or str
        Public keys of the coordinators that may ask.
    check : callable, optional
        ``check(study text) -> {"able": bool, "said": [...]}`` for the kind "check".
    on_event : callable, optional
        ``on_event(kind, facts)``: "answered", "ignored", "held", "damaged", "greeted", "checked".
    """

    def __init__(
        self,
        site: Site,
        key: SigningKey,
        coordinators: Collection[KeyList | str],
        *,
        check: Checker | None = None,
        on_event: OnNote | None = None,
    ) -> None:
        self._site, self._key, self._check = site, key, check
        site.identity = key
        self._trusted = TrustedCoordinators(site, coordinators)
        self._on_event = on_event
        self._logged: set[str] = set()
        self._waits: set[Place] = set()
        self._said: dict[tuple[str, str], Content] = {}
        self._most = site.policy.max_message_bytes + OVERHEAD + _SLACK

    def handle(self, content: Mapping[str, object]) -> Content:
        """Answer one message; never raises, and says nothing that is not meant to leave."""
        try:
            if not isinstance(content, Mapping):
                raise WireError("a message without content")
            kind, envelope = content.get("kind"), content.get("envelope")
            if not isinstance(envelope, bytes):
                raise WireError("a message without an envelope")
            # Before it is unsealed: the limit is the site's own, whatever the server lets through.
            if len(envelope) > self._most:
                return self._ignored(TOO_LARGE, None)
            if kind == "ask":
                return self._ask(content, envelope)
            if kind in ("hello", "check"):
                return self._query(str(kind), content, envelope)
            raise WireError("a message of no known kind")
        except SignatureError as error:
            other = OTHER_COORDINATOR in str(error)
            return self._ignored(OTHER_COORDINATOR if other else NOT_TRUSTED, error)
        except OtherReaderError as error:
            return self._ignored(OTHER_KEY, error)
        except WireError as error:
            return self._ignored(NOT_OURS, error)
        except RunError as error:
            return self._ignored(HOME_FAILED, error)
        except Exception as error:  # noqa: BLE001  its text may hold a value and stays here
            return self._ignored(UNFORESEEN, error)

    def _ask(self, content: Mapping[str, object], envelope: bytes) -> Content:
        place = _place(content)
        if place.site != self._site.name:
            raise WireError("a message for another site")

        def take(public: str) -> bytes:
            context = place.context("ask", public, "")
            return self._key.unseal(envelope, public=public, context=context)

        # Binds the run to who began it; a damaged record may be refused, and nothing else.
        coordinator, body, damage = self._trusted.ask(place, take)
        reply = self._site.answer(body) if damage is None else self._site.refuse(body, damage)
        if isinstance(reply, bytes):
            # Here is where it leaves: whoever asked comes again if it was lost on the way.
            self._site.sent(place.run, place.round, place.attempt)
        for run, reason in self._site.take_damages():
            self._tell("damaged", run=run, reason=reason)
        if isinstance(reply, Held):
            # That it waits is all that leaves: nothing of what the reply is.
            if place not in self._waits:
                if len(self._waits) >= _MOST_LOGGED:
                    self._waits.clear()
                self._waits.add(place)
                self._tell("held", run=place.run, round=place.round, step=reply.step)
            return {"status": "held"}
        context = place.context("reply", coordinator, digest(envelope))
        self._tell("answered", **answered(place, reply))
        sealed = self._key.seal(context, reply, readers=(coordinator,))
        return {"status": "reply", "envelope": sealed}

    def _query(self, kind: str, content: Mapping[str, object], envelope: bytes) -> Content:
        query = content.get("query")
        # It becomes part of what is signed: nothing but the letters of a hexadecimal number.
        if not isinstance(query, str) or len(query) != _QUERY or not query.isalnum():
            raise WireError("a question without its number")

        def take(public: str) -> bytes:
            context = query_context(query, "ask", public)
            if kind == "hello":  # Who asks does not know yet whom.
                return unseal(envelope, public=public, context=context)
            return self._key.unseal(envelope, public=public, context=context)

        _, coordinator, body = self._trusted.signed(take)
        # Whoever carries messages could ask again and again, and be told what is new.
        again = self._said.get((query, digest(envelope)))
        if again is not None:
            return again
        try:
            asked = json.loads(body or b"")
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise WireError("a question that cannot be read")
        if asked.get("kind") != kind:
            raise WireError("a question of another kind")
        hello = kind == "hello"
        said = self._hello() if hello else self._checked(asked)
        text = json.dumps({**said, "site": self._site.name}, sort_keys=True).encode()
        context = query_context(query, "reply", coordinator, digest(body or b""))
        self._tell("greeted" if hello else "checked")
        answer: Content = {
            "status": "reply",
            "site": self._site.name,
            "envelope": self._key.seal(context, text, readers=(coordinator,)),
        }
        # The oldest go first: a flood of questions must not fill the memory.
        while len(self._said) >= _MOST_SAID:
            del self._said[next(iter(self._said))]
        self._said[query, digest(envelope)] = answer
        return answer

    def _hello(self) -> dict[str, Any]:
        return asdict(heartbeat_of(self._site, "watching"))

    def _checked(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        text = asked.get("study")
        if self._check is None or not isinstance(text, str):
            raise WireError("a check without a study")
        try:
            return dict(self._check(text))
        except ConsilienceError as error:
            self._site.home.log("check", reason=str(error))
            return {"able": False, "said": [error.public]}

    def _ignored(self, reason: str, error: Exception | None) -> Content:
        said = reason if error is None else str(error) or type(error).__name__
        if reason == UNFORESEEN:
            said = f"{type(error).__name__}: {said}"
        # Once for each sentence: whoever runs the server could fill the disk otherwise.
        if said not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(said)
            try:
                self._site.home.log("ignored", reason=said)
            except Exception as failed:  # noqa: BLE001  the answer goes out all the same
                _log.error("the site's own log cannot be written: %s", failed)
        self._tell("ignored", reason=reason)
        return {"status": "ignored", "reason": reason}

    def _tell(self, kind: str, **facts: Any) -> None:
        """Tell the person at the site; what goes wrong there must not keep a reply back."""
        if self._on_event is None:
            return
        try:
            self._on_event(kind, facts)
        except Exception:  # noqa: BLE001  such as a terminal that is gone
            _log.exception("telling of %r failed", kind)


def _place(content: Mapping[str, object]) -> Place:
    run, site = content.get("run"), content.get("site")
    round_, attempt = content.get("round"), content.get("attempt")
    if not (isinstance(run, str) and isinstance(site, str)):
        raise WireError("a message without its place")
    # A bool is an int to Python, and no number of a round.
    for number in (round_, attempt):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 10**9:
            raise WireError("a message without its place")
    try:
        return Place(run, int(str(round_)), int(str(attempt)), site)
    except ConsilienceError as error:
        raise WireError(f"a message with an impossible place: {error}") from None


# ---------------------------------------------------------------------------------------- the seam

Value = str | int | bytes
Content = dict[str, Value]


class LinkLost(EngineError):
    """The connection, or Flower's run behind it, is gone: a new one may be opened."""


@dataclass(frozen=True)
class Delivered:
    """What came back for one message.

    Attributes
    ----------
    id : str
        Of the message that it answers.
    content : dict or None
        None where Flower has an error instead.
    fault : str
        Flower's kind of error. Its text may come from anybody and is not kept.
    """

    id: str
    content: Mapping[str, object] | None
    fault: str = ""


class Link(Protocol):
    """A coordinator's connection to the nodes of one SuperLink."""

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that are connected now; `LinkLost` where that cannot be known."""

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        """Hand over a message that is of use for so long; returns its id, empty if not taken."""

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        """Return what has come back for these messages, each at most once."""

    def close(self, *, well: bool) -> None:
        """End Flower's run behind the link."""

"""A SuperLink in one process: nodes that call a `Desk`, and messages that meet with trouble.

`FakeSuperLink` keeps the promises of Flower's server that `FlowerEngine` rests on: a message is
handed to a node once, an answer to the coordinator once, and what is too old becomes an error. Its
`Clock` goes forward only when somebody waits, so that minutes of silence cost no time. It does its
work inside `FakeLink.pull`, without threads: the same seed gives the same order of events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from consilience.engines.flower.coordinator import FlowerEngine
from consilience.engines.flower.handler import Content, Delivered, Desk, LinkLost
from consilience.sites.site import Site
from consilience.wire.signing import SigningKey

Handle = Callable[[Mapping[str, object]], Content]

MISSED = 60.0
"""Seconds for which a node that is gone still counts as connected."""


class Clock:
    """Time that passes when somebody sleeps.

    Attributes
    ----------
    now : float
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """Let time pass at once."""
        self.now += max(seconds, 0.001)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to messages on their way, in either direction.

    Parameters
    ----------
    lose, delay, repeat, alter : float
        Probabilities of each.
    longest : float
        Longest delay, seconds.
    reorder : bool
        Messages for a node, and answers, come in any order.
    seed : int
    """

    lose: float = 0.0
    delay: float = 0.0
    repeat: float = 0.0
    alter: float = 0.0
    longest: float = 5.0
    reorder: bool = False
    seed: int = 0


@dataclass
class FakeNode:
    """A node of a `FakeSuperLink`.

    Attributes
    ----------
    id : int
    handle : callable
        ``Desk.handle``, or anything that answers.
    dies : bool
        It dies with the next message in hand, unanswered.
    back_after : float or None
        Seconds after which a dead node is back under the same number; it stays away without.
    """

    id: int
    handle: Handle
    dies: bool = False
    back_after: float | None = None
    died: float | None = None

    def is_up(self, now: float) -> bool:
        """Whether it takes messages."""
        if self.died is None:
            return True
        if self.back_after is None or now < self.died + self.back_after:
            return False
        self.died = None
        return True

    def is_listed(self, now: float) -> bool:
        """Whether the server counts it as connected."""
        return self.is_up(now) or (self.died is not None and now < self.died + MISSED)


@dataclass
class _Message:
    id: str
    node: int
    content: Content
    ready: float
    expires: float
    answers: list[tuple[float, Content]] = field(default_factory=list)


class FakeSuperLink:
    """A SuperLink with its nodes.

    Parameters
    ----------
    trouble : Trouble, optional
    clock : Clock, optional

    Attributes
    ----------
    nodes : dict of int to FakeNode
    handled : list of (int, str)
        Node and kind of every message that a node was given.
    opened : int
        Runs of Flower that were begun.
    ended : list of bool
        Whether each run that is over ended well.
    """

    def __init__(self, trouble: Trouble | None = None, clock: Clock | None = None) -> None:
        self.trouble = trouble or Trouble()
        self.clock = clock or Clock()
        self.nodes: dict[int, FakeNode] = {}
        self.handled: list[tuple[int, str]] = []
        self.opened = 0
        self.ended: list[bool] = []
        self._random = random.Random(self.trouble.seed)
        self._lost = self._refused = 0

    def connect(self, handle: Handle, **settings: Any) -> FakeNode:
        """Let a node connect."""
        node = FakeNode(100 + len(self.nodes), handle, **settings)
        self.nodes[node.id] = node
        return node

    def disconnect(self, node: FakeNode) -> None:
        """Let a node say goodbye."""
        del self.nodes[node.id]

    def open(self) -> FakeLink:
        """Begin a run of Flower: the ``open_link`` of `FlowerEngine`."""
        if self._refused:
            self._refused -= 1
            raise LinkLost("the SuperLink is not there")
        self.opened += 1
        return FakeLink(self)

    def lost(self, *, refusing: int = 0) -> None:
        """Make the next call raise `LinkLost`, and so many attempts to begin a run after it."""
        self._lost, self._refused = 1, refusing

    # ------------------------------------------------------------------ for its links

    def lose_if_due(self) -> None:
        """Raise what was ordered by `lost`."""
        if self._lost:
            self._lost = 0
            raise LinkLost("the SuperLink is gone")

    def fates(self, content: Content) -> list[tuple[float, Content]]:
        """When and as what a message arrives: not at all, once or twice."""
        rule, draw, now = self.trouble, self._random, self.clock.now
        if draw.random() < rule.lose:
            return []
        found = []
        for _ in range(2 if draw.random() < rule.repeat else 1):
            wait = draw.uniform(0.0, rule.longest) if draw.random() < rule.delay else 0.0
            changed = self._altered(content) if draw.random() < rule.alter else content
            found.append((now + wait, changed))
        return found

    def shuffle(self, things: list[Any]) -> None:
        """Put into another order if there is trouble of that kind."""
        if self.trouble.reorder:
            self._random.shuffle(things)

    def _altered(self, content: Content) -> Content:
        """One entry is gone, is of another type, or has another byte."""
        name = self._random.choice(sorted(content))
        value, rest = content[name], {k: v for k, v in content.items() if k != name}
        if isinstance(value, bytes) and value and self._random.random() < 0.8:
            at = self._random.randrange(len(value))
            return {**rest, name: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]}
        return rest if self._random.random() < 0.5 else {**rest, name: -1}


class FakeLink:
    """A coordinator's link to a `FakeSuperLink`: one run of Flower.

    Parameters
    ----------
    server : FakeSuperLink
    """

    def __init__(self, server: FakeSuperLink) -> None:
        self._server = server
        self._is_open = True
        self._sent = 0
        self._queue: list[_Message] = []
        self._messages: dict[str, _Message] = {}

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that count as connected."""
        self._require_open()
        now = self._server.clock.now
        return tuple(node.id for node in self._server.nodes.values() if node.is_listed(now))

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        """Take a message; empty where there is no such node."""
        self._require_open()
        if node not in self.nodes():
            return ""
        self._sent += 1
        name, end = f"{self._server.opened}-{self._sent}", self._server.clock.now + seconds
        self._messages[name] = _Message(name, node, content, 0.0, end)
        for ready, arriving in self._server.fates(content):
            self._queue.append(_Message(name, node, arriving, ready, end))
        return name

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        """Let the nodes work, and return what is there for these messages."""
        self._require_open()
        self._work()
        now, found = self._server.clock.now, []
        for name in ids:
            message = self._messages.get(name)
            if message is None:
                found.append(Delivered(name, None, "error 3"))
                continue
            ready = [content for when, content in message.answers if when <= now]
            found += [Delivered(name, content) for content in ready]
            if not ready and now >= message.expires:
                found.append(Delivered(name, None, "error 3"))
            if ready or now >= message.expires:
                del self._messages[name]
        self._server.shuffle(found)
        return found

    def close(self, *, well: bool) -> None:
        """End the run; what is in line is forgotten."""
        if self._is_open:
            self._server.ended.append(well)
        self._is_open = False

    def _work(self) -> None:
        now = self._server.clock.now
        due = [m for m in self._queue if m.ready <= now]
        self._queue = [m for m in self._queue if m.ready > now]
        self._server.shuffle(due)
        for message in due:
            node = self._server.nodes.get(message.node)
            if node is None or now >= message.expires:
                continue
            if not node.is_up(now):
                self._queue.append(message)
                continue
            self._server.handled.append((node.id, str(message.content.get("kind"))))
            if node.dies:
                node.dies, node.died = False, now
                continue
            answer = node.handle(message.content)
            if message.id in self._messages:
                self._messages[message.id].answers += self._server.fates(answer)

    def _require_open(self) -> None:
        self._server.lose_if_due()
        if not self._is_open:
            raise LinkLost("the link is closed")


@contextmanager
def fake_flower(
    sites: Iterable[Site],
    server: FakeSuperLink | None = None,
    own: Mapping[str, SigningKey] | None = None,
    **settings: Any,
) -> Iterator[FlowerEngine]:
    """Give a `FlowerEngine` over sites, each with a key and a node of its own.

    Parameters
    ----------
    sites : iterable of Site
    server : FakeSuperLink, optional
    own : mapping of site to SigningKey, optional
        Fresh keys unless given.
    **settings
        Other parameters of `FlowerEngine`.
    """
    link, coordinator = server or FakeSuperLink(), SigningKey.generate()
    keys = {}
    for site in sites:
        keys[site.name] = SigningKey.generate() if own is None else own[site.name]
        link.connect(Desk(site, keys[site.name], [coordinator.public]).handle)
    public = {name: key.public for name, key in keys.items()}
    given = {"clock": link.clock, "poll": 0.5, **settings}
    engine = FlowerEngine(link.open, keys, coordinator, public, **given)
    try:
        yield engine
    finally:
        engine.close()

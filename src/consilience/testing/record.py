"""The undisturbed run of a method, made once and asked often.

Checks of a method look at what it sends, at what sites say, at its result and its transcript: one
run answers them all. A factory that is `Remembering` keeps it; `record_of` makes one, or finds it.

`Attack` and `Outcome` say what an attack is, and what became of it.
"""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from consilience.engines.base import Arrival, Key
from consilience.engines.federation import Federation, Run
from consilience.protocol.method import Method
from consilience.protocol.phases import opening
from consilience.sites.site import Site
from consilience.sites.site_store import MemoryStore, SiteStore
from consilience.testing import expect
from consilience.testing.fakes import Factory, FakeEngine, Script, members, scripted
from consilience.wire.envelope import Request

SEED = 20240601


@dataclass(frozen=True)
class Record:
    """What crossed in an undisturbed run, and what came of it.

    Attributes
    ----------
    run : Run
    federation : Federation
        Its sites are as the run left them: take a `site`, do not use them.
    requests, replies : dict of (round, site) to bytes
    events : tuple of (kind, facts)
        What the coordinator told of its progress.
    """

    run: Run
    federation: Federation
    requests: Mapping[Key, bytes]
    replies: Mapping[Key, bytes]
    events: tuple[tuple[str, dict[str, Any]], ...]

    @property
    def asynchronous(self) -> bool:
        """Whether the method asks with ``wait="any"``: then its bytes follow the journal alone."""
        return any(facts.get("wait") == "any" for _, facts in self.events)

    def site(self, name: str) -> Site:
        """Return a copy of a site as the run left it; both read the same rows."""
        site = copy.copy(members(self.federation)[name])
        # answers count in budgets and ledgers: those of the record stay as they are
        site.home = copied_home(site.home)
        site._prepared = dict(site._prepared)
        return site

    def replayed(self, script: Script) -> Federation:
        """Return the federation behind an engine that repeats the replies, but for the script.

        A run over it must have the record's run id and seed; sites compute nothing. Questions are
        compared but for their messages, which a coordinator may have to seal anew.
        """
        return dataclasses.replace(self.federation, engine=_Repeating(self, script))


class _Repeating(FakeEngine):
    """Answers what was asked before as it was answered before."""

    def __init__(self, record: Record, script: Script) -> None:
        super().__init__(members(record.federation).values(), script)
        self._record = record
        _detach(record.federation)

    def send(self, requests: Mapping[Key, bytes]) -> None:
        for key, data in requests.items():
            if Request.from_bytes(data).step == opening.TOLD:
                continue  # that a reply was not accepted: nobody is there to hear it
            before = self._record.requests.get(key)
            # otherwise a recorded answer would stand for one to something else
            same = before is not None and _question(before) == _question(data)
            expect(same, f"round {key[0]}, site {key[1]}: another question than the recorded one")
        super().send(requests)

    def _compute(self) -> None:
        """Find replies instead."""
        queue, self._queue = self._queue, {}
        for key, data in queue.items():
            request = Request.from_bytes(data)
            if request.step != opening.TOLD:
                arrival = Arrival(key, self._record.replies[key])
                self._arrived[key] = (self._arrival_time(request), arrival)


def _question(data: bytes) -> Request:
    """Return a request without its message, which a coordinator may have to seal anew."""
    return dataclasses.replace(Request.from_bytes(data), message=b"")


class Remembering:
    """A factory of federations that keeps the record of each method that it was used with."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._records: list[tuple[Method, Record]] = []

    def __call__(self) -> Federation:
        """Return a fresh federation."""
        return self._factory()

    def record(self, method: Method) -> Record:
        """Return the record of this very method, made when first asked for."""
        for known, record in self._records:
            if known is method:
                return record
        made = _make(method, self._factory)
        self._records.append((method, made))
        return made


def record_of(method: Method, factory: Factory) -> Record:
    """Return the record that a factory keeps, or a new one."""
    if isinstance(factory, Remembering):
        return factory.record(method)
    return _make(method, factory)


def _make(method: Method, factory: Factory) -> Record:
    events: list[tuple[str, dict[str, Any]]] = []
    federation = scripted(factory())
    run = method.run(
        federation, seed=SEED, on_event=lambda kind, facts: events.append((kind, dict(facts)))
    )
    _detach(federation)
    engine: Any = federation.engine
    return Record(run, federation, engine.requests, engine.replies, tuple(events))


def _detach(federation: Federation) -> None:
    """Take away the hook through which a scripted engine refuses: copies would carry it along."""
    for site in members(federation).values():
        site.confirm = None


def copied_home(home: SiteStore) -> MemoryStore:
    """Return a home with the same content, of which no reply waits for a steward."""
    made = MemoryStore()
    content = {name: value for name, value in vars(home).items() if name != "jobs"}
    vars(made).update(copy.deepcopy(content))
    return made


@dataclass(frozen=True)
class Outcome:
    """What became of an attack.

    Attributes
    ----------
    verdict : {"blocked", "accounted", "open"}
    evidence : str
        One sentence.
    """

    verdict: Literal["blocked", "accounted", "open"]
    evidence: str


Attacking = Callable[[Method, Factory], Outcome]
Concern = Literal["core", "method"]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    name : str
    tries : str
        What it tries, as a phrase.
    function : callable
        ``function(method, factory) -> Outcome``.
    concerns : {"core", "method"}
        Where the fault lies if it works.
    """

    name: str
    tries: str
    function: Attacking
    concerns: Concern = "core"

    def run(self, method: Method, factory: Factory) -> Outcome:
        """Try it; an error that is not this package's own leaves the attack open.

        The evidence of an open attack says whether it concerns the method or the core.
        """
        concerns: str = self.concerns
        try:
            outcome = self.function(method, factory)
        except Exception as error:  # noqa: BLE001  a foreign error is the finding
            # the method is at fault if the error passed through its module
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            own = type(method).__module__
            if any(frame.f_globals.get("__name__") == own for frame in frames):
                concerns = "method"
            where = frames[-1].f_code.co_name
            sentence = f"{type(error).__name__} escaped from {where}: {str(error)[:200]}"
            outcome = Outcome("open", sentence)
        if outcome.verdict != "open":
            return outcome
        whose = "the method" if concerns == "method" else "the core, not the method"
        return Outcome("open", f"{outcome.evidence} (this concerns {whose})")


def attack(name: str, tries: str, concerns: Concern = "core") -> Callable[[Attacking], Attack]:
    """Make a function an attack of this name."""
    return lambda function: Attack(name, tries, function, concerns)

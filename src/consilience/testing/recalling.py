"""Sites that recall what they answered, so that a study can be run often with one thing altered.

Alterations of encoded messages make others from bytes that a method really sends. Only what follows
an altered reply is computed anew. All runs over such sites have one id, `RUN`, or no two questions
would be the same.

The undisturbed run of a method, made once and asked often.

Checks of a method look at what it sends, at what sites say, at its result and its transcript: one
run answers them all. A factory that is `Remembering` keeps it; `record_of` makes one, or finds it.

`Attack` and `Outcome` say what an attack is, and what became of it.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.engines.base import Arrival, Key
from consilience.engines.federation import Federation, Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.protocol.method import Method
from consilience.protocol.phases import opening
from consilience.sites.site import Site
from consilience.sites.site_store import MemoryStore, SiteStore
from consilience.testing import expect
from consilience.testing.fakes import Factory, FakeEngine, Script, members, scripted
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Sealed, message_type

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


_HUGE = {"$": "array", "d": "<f8", "s": [1 << 29, 1], "b": b"12345678"}
_OBJECTS = {"$": "array", "d": "|O8", "s": [1], "b": b"12345678"}


def _raw(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data, raw=False)


def _packed(raw: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(raw, use_bin_type=True))


def every_field(value: Any) -> Callable[[bytes], bytes | None]:
    """Put one value into every field."""

    def mutate(data: bytes) -> bytes | None:
        raw = _raw(data)
        raw["f"] = dict.fromkeys(raw["f"], value)
        return _packed(raw) if raw["f"] else None

    return mutate


def _every_array(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[[bytes], bytes | None]:
    """Alter every array of floating-point numbers: put other entries into what describes it."""

    def mutate(data: bytes) -> bytes | None:
        raw, touched = _raw(data), []

        def visit(value: Any) -> None:
            if isinstance(value, dict) and value.get("$") == "array":
                if value["d"] == "<f8" and value["b"]:
                    value |= change(value)
                    touched.append(value)
            elif isinstance(value, dict | list):
                for item in value.values() if isinstance(value, dict) else value:
                    visit(item)

        visit(raw["f"])
        return _packed(raw) if touched else None

    return mutate


def _filled(number: float) -> Callable[[bytes], bytes | None]:
    return _every_array(lambda array: {"b": np.full(len(array["b"]) // 8, number).tobytes()})


def _twice(data: bytes) -> bytes:
    """Repeat the key of the fields, once with nothing in it."""
    raw = _raw(data)
    # without the byte that says how many entries there are
    entry = _packed({"f": {}})[1:]
    # 0x84: a map of four entries, where a message has three
    return bytes([0x84]) + _packed(raw)[1:] + entry


def _extension(data: bytes) -> bytes | None:
    import msgpack

    return every_field(msgpack.ExtType(42, b"\x80\x04."))(data)


MUTATIONS: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "truncated": ("a message that stops half way", lambda data: data[: len(data) // 2]),
    "last byte missing": ("a message without its last byte", lambda data: data[:-1]),
    "trailing bytes": ("something after the message", lambda data: data + b"\x00"),
    "deeply nested": (
        "a value nested a hundred times",
        every_field(json.loads("[" * 99 + "]" * 99)),
    ),
    "nested without end": (
        "brackets until the reader's stack ends",
        lambda data: b"\x91" * 200_000 + b"\xc0",
    ),
    "wrong dtype": (
        "small whole numbers in place of others",
        _every_array(lambda array: {"d": "|i1", "b": bytes(len(array["b"]) // 8)}),
    ),
    "wrong shape": ("a dimension too many", _every_array(lambda array: {"s": [1, *array["s"]]})),
    "NaN": ("arrays filled with NaN", _filled(np.nan)),
    "infinity": ("arrays filled with infinity", _filled(np.inf)),
    "object array": ("an array of objects", every_field(_OBJECTS)),
    "extension type": ("a value of an extension type", _extension),
    "huge shape": ("a shape of four gigabytes over eight bytes", every_field(_HUGE)),
    "repeated key": ("a key that appears twice", _twice),
    "field missing": ("a message without fields", lambda d: _packed({**_raw(d), "f": {"zz": 1}})),
    "unknown message": (
        "a message of another name",
        lambda d: _packed({**_raw(d), "m": "no/such"}),
    ),
    "other version": ("a message of another version", lambda d: _packed({**_raw(d), "v": 10**6})),
    "array as version": ("an array as version", lambda d: _packed({**_raw(d), "v": _OBJECTS})),
    "empty": ("no bytes at all", lambda data: b""),
}
"""Name, what it tries, and a function from a message to an altered one (None: does not apply)."""

_MAY_BE_ALLOWED = {"NaN", "wrong dtype", "wrong shape", "infinity"}


def leaves_room(data: bytes, name: str) -> bool:
    """Whether the declaration of a message leaves room for an alteration."""
    specs = message_type(_raw(data)["m"]).fields.values()
    # what is in a nest, or of any kind, is for the method to judge
    nests = any(isinstance(s.shape, str) or s.many or s.kind == "any" for s in specs)
    gaps = any(s.gaps for s in specs)
    return name in _MAY_BE_ALLOWED and (nests or (gaps and name == "NaN"))


# --------------------------------------------------------------------------- one value of a message

_REAL = (np.nan, np.inf, -1.0, 0.0, 1e20, 1e308)
_WHOLE = (-1, 0, 1000, 1 << 62)


def altered_values(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Alter each value of a message by turns, one at a time: what it is, how much, how long.

    Yields
    ------
    str, bytes
        Field and what was done to it, and the message.
    """
    raw = unpack(data)
    for field, value in raw["f"].items():
        for done, other in _others(value):
            yield f"{field}: {done}", pack({**raw, "f": {**raw["f"], field: other}})


def _others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values to put in place of another one."""
    if isinstance(value, bool):
        yield "the other", not value
    elif isinstance(value, int):
        yield from ((f"{other}", other) for other in _WHOLE if other != value)
        yield "a real number", float(value)
    elif isinstance(value, float):
        yield from ((f"{other}", other) for other in _REAL if other != value)
    elif isinstance(value, str | bytes):
        yield "another", "other" if isinstance(value, str) else b"other"
        yield "empty", value[:0]
    elif isinstance(value, Sealed):
        yield (
            "other data",
            dataclasses.replace(value, data=bytes([value.data[0] ^ 1]) + value.data[1:]),
        )
        yield "another sender", dataclasses.replace(value, sender="nobody")
        yield "unsealed", np.zeros(3)
        yield "another recipient", dataclasses.replace(value, recipient="nobody")
    elif isinstance(value, np.ndarray):
        yield from _other_shapes(value)
        yield from _other_numbers(value)
        yield "a text", "other"
    elif isinstance(value, dict):
        yield "an entry more", {**value, "other": 0.0}
        yield "a number", 0.0
        for key, item in value.items():
            yield f"without {key}", {k: v for k, v in value.items() if k != key}
            for done, other in _others(item):
                yield f"{key}: {done}", {**value, key: other}
    elif isinstance(value, tuple):
        yield "an item more", (*value, value[-1] if value else 0.0)
        yield "a number", 0.0
        if value:
            yield "an item less", value[:-1]
        if len(value) > 1:
            yield "none", ()
            yield "turned", value[::-1]
        for place in _places(len(value)):
            for done, other in _others(value[place]):
                yield f"[{place}] {done}", (*value[:place], other, *value[place + 1 :])
    else:
        yield "a number", 0


def _places(n: int) -> Iterable[int]:
    """Some places among n."""
    return sorted({0, n // 2, n - 1}) if n else ()


def _other_shapes(array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "a dimension more", array[None]
    for axis, n in enumerate(array.shape):
        more = [1 if i == axis else k for i, k in enumerate(array.shape)]
        added = np.take(array, [0], axis=axis) if n else np.zeros(more, dtype=array.dtype)
        yield f"longer along {axis}", np.concatenate([array, added], axis=axis)
        if n:
            yield f"shorter along {axis}", np.take(array, range(n - 1), axis=axis)
        if n > 1:
            yield f"nothing along {axis}", np.take(array, [], axis=axis)
    if array.ndim == 2:
        yield "transposed", np.ascontiguousarray(array.T)
    if array.ndim > 1:
        yield "flat", array.ravel()
    if array.size > 1:
        yield "turned", np.ascontiguousarray(array.ravel()[::-1].reshape(array.shape))


def _other_numbers(array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    pools: dict[str, tuple[Any, ...]] = {"f": _REAL, "i": _WHOLE, "u": (0, 1), "b": (True, False)}
    for other in pools[array.dtype.kind]:
        for place in _places(array.size):
            changed = np.array(array)
            changed.flat[place] = other
            if not np.array_equal(changed, array, equal_nan=array.dtype.kind == "f"):
                yield f"[{place}] {other}", changed
        if array.size:
            yield f"all {other}", np.full_like(array, other)


RUN = "recalled"
Memory = dict[bytes, tuple[bytes, SiteStore]]
Alter = Callable[[Reply], Reply]


class Recalling(Site):
    """A site that computes what it is asked unless it did so before: after the same questions too.

    ``path`` stands for its rows, its policy, its secrets and all that it was asked; `memory` holds
    replies and homes by path. What it says passes through ``alter``, after its gate.
    """

    path = b""
    memory: Memory
    alter: Alter | None = None

    def begin(self, data: bytes) -> Any:
        """Recall the reply, or begin to compute it."""
        # the questions before this one count too: a state may hang on them
        self.path = hashlib.sha256(self.path + data).digest()
        if self.path not in self.memory:
            found = super().begin(data)
            return self._altered(found) if isinstance(found, bytes) else found
        reply, home = self.memory[self.path]
        self.home = copied_home(home)
        return self._altered(reply)

    def finish(self, work: Any, outcome: Any) -> Any:
        """Compute the reply, and keep it."""
        reply = super().finish(work, outcome)
        self.memory[self.path] = reply, copied_home(self.home)  # type: ignore[assignment]
        return self._altered(reply)  # type: ignore[arg-type]

    def _altered(self, data: bytes) -> bytes:
        return data if self.alter is None else self.alter(Reply.from_bytes(data)).to_bytes()


def recalling(site: Site, memory: Memory, root: bytes, alter: Alter | None = None) -> Recalling:
    """Return a fresh site with the same rows, policy and secrets that recalls.

    Parameters
    ----------
    site : Site
    memory : dict
        Shared by the runs that recall one another.
    root : bytes
        Stands for rows, policy and secrets.
    alter : callable, optional
    """
    made = Recalling(site.name, site._loader, policy=site.policy, partner_key=site._partner_key)
    made._secret_seed = site._secret_seed
    made.path, made.memory, made.alter = root, memory, alter
    return made


@dataclass(frozen=True)
class Attempt:
    """What came of a run with an altered reply.

    Attributes
    ----------
    run : Run or None
    error : Exception or None
    accepted : bool
        Whether the coordinator took the reply.
    """

    run: Run | None
    error: Exception | None
    accepted: bool


class Rehearsal:
    """A study that was run once, and can be run again with one reply altered.

    Parameters
    ----------
    method : Method
    factory : callable
        ``factory()`` gives a fresh federation on a `LocalEngine`.
    quorum : int, optional
        In place of the federation's.

    Attributes
    ----------
    run : Run
        Undisturbed.
    replies : dict of (round, site) to Reply
        What the sites said in it.
    """

    def __init__(self, method: Method, factory: Factory, quorum: int | None = None) -> None:
        self._method, self._federation, self._quorum = method, factory(), quorum
        self._memory: Memory = {}
        self._absent: dict[Key, Attempt] = {}
        self.run = self._over(self._sites())
        said = (Reply.from_bytes(data) for data, _ in self._memory.values())
        self.replies = {(reply.round, reply.site): reply for reply in said}
        self._known = dict(self._memory)

    def altered_values(self) -> Iterator[tuple[Key, str, bytes]]:
        """Altered messages of a site in each round: each value by turns, one at a time.

        Yields
        ------
        key, str, bytes
            Round and site, what was done, and the message in place of the site's own.
        """
        first = {round_: (round_, site) for round_, site in sorted(self.replies, reverse=True)}
        for key in sorted(first.values()):
            reply = self.replies[key]
            if reply.status == "reply":
                for done, message in altered_values(reply.message):
                    yield key, f"{reply.step}, {done}", message

    def fault(self, key: Key, message: bytes) -> str:
        """Say what is wrong with a run in which a site sends another message; empty if nothing is.

        A reply that is not accepted has to cost what its site's absence costs, and its site has to
        be named. Whatever is sent, only errors of this package may end the run, and no number of
        the result may be endless that was not.
        """
        found = self.again(key, lambda reply: dataclasses.replace(reply, message=message))
        if found.error is not None and not isinstance(found.error, ConsilienceError):
            return f"{type(found.error).__name__} escaped: {found.error}"
        if found.accepted:
            if found.run is not None and _endless(found.run) - _endless(self.run):
                return "the result has a number without end"
            return ""
        if key not in self._absent:
            # a reply of another run is never accepted
            self._absent[key] = self.again(key, lambda reply: dataclasses.replace(reply, run="x"))
        gone = self._absent[key]
        if found.run is None or gone.run is None:
            if type(found.error) is not type(gone.error):
                return f"not accepted, and not as if the site was absent: {found.error}"
            return "" if key[1] in str(found.error) else f"the site is not named: {found.error}"
        if not np.array_equal(_numbers(found.run), _numbers(gone.run), equal_nan=True):
            return "not accepted, and other numbers than where the site is absent"
        said = " ".join([*found.run.notes, found.run.result.summary()])
        return "" if key[1] in said else "not accepted, and its site is not named"

    def again(self, key: Key, alter: Alter) -> Attempt:
        """Run with the reply of a round and site altered."""
        taken = True

        def heard(kind: str, facts: dict[str, Any]) -> None:
            nonlocal taken
            if kind == "arrived" and (facts["round"], facts["site"]) == key:
                taken = facts["outcome"] != "absent"

        def only_this(reply: Reply) -> Reply:
            return alter(reply) if (reply.round, reply.site) == key else reply

        # what an altered run computed belongs to no other
        self._memory.clear()
        self._memory.update(self._known)
        try:
            return Attempt(self._over(self._sites(key[1], only_this), heard), None, taken)
        except Exception as error:  # noqa: BLE001  who asks judges it
            return Attempt(None, error, taken)

    def _sites(self, name: str = "", alter: Alter | None = None) -> list[Recalling]:
        return [
            recalling(site, self._memory, own.encode(), alter if own == name else None)
            for own, site in members(self._federation).items()
        ]

    def _over(self, sites: list[Recalling], on_event: Any = None) -> Run:
        quorum = self._federation.quorum if self._quorum is None else self._quorum
        federation: Federation = dataclasses.replace(
            self._federation, engine=LocalEngine(sites), quorum=quorum
        )
        return self._method.run(federation, seed=SEED, run_id=RUN, on_event=on_event)


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Numbers of a result, or of what leaves a site, by place."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{where}.{name}")
    elif isinstance(value, np.ndarray | float | int) and np.asarray(value).dtype.kind in "fiub":
        yield where, np.asarray(value, dtype=float).ravel()


def _numbers(run: Run) -> np.ndarray:
    return np.concatenate([np.empty(0), *(numbers for _, numbers in leaves(run.result))])


def _endless(run: Run) -> set[str]:
    return {where for where, numbers in leaves(run.result) if np.isinf(numbers).any()}

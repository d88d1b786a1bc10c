"""Sites that recall what they answered, so that a study can be run often with one thing altered.

Only what follows an altered reply is computed anew. All runs over such sites have one id, `RUN`, or
no two questions would be the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.engines.base import Key
from consilience.engines.federation import Federation, Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.protocol.method import Method
from consilience.sites.home import Home
from consilience.sites.site import Site
from consilience.testing.alterations import altered_values
from consilience.testing.fakes import Factory, members
from consilience.testing.record import SEED, copied_home
from consilience.wire.envelope import Reply

RUN = "recalled"
Memory = dict[bytes, tuple[bytes, Home]]
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


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Numbers of a result by place."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{where}.{name}")
    elif isinstance(value, np.ndarray | float | int) and np.asarray(value).dtype.kind in "fiu":
        yield where, np.asarray(value, dtype=float).ravel()


def _numbers(run: Run) -> np.ndarray:
    return np.concatenate([np.empty(0), *(numbers for _, numbers in _leaves(run.result))])


def _endless(run: Run) -> set[str]:
    return {where for where, numbers in _leaves(run.result) if np.isinf(numbers).any()}

"""Sites that recall what they answered in an earlier test, and sites whose replies are altered.

Tests of hostile replies run one study many times; only what follows an altered reply is computed
anew. They give all runs one id, `RUN`, or no two questions would be the same.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.sites.home import Home
from consilience.sites.site import Site
from consilience.testing.fakes import members
from consilience.testing.record import copied_home
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply

Change = Callable[[dict[str, Any]], dict[str, Any]]
RUN = "recalled"

_KNOWN: dict[bytes, tuple[bytes, Home]] = {}


class Recalling(Site):
    """A site that computes what it is asked unless it did so before: after the same questions too.

    ``path`` stands for its rows, its policy, its secrets and all that it was asked.
    """

    path = b""

    def begin(self, data: bytes) -> Any:
        self.path = hashlib.sha256(self.path + data).digest()
        if self.path not in _KNOWN:
            return super().begin(data)
        reply, home = _KNOWN[self.path]
        self.home = copied_home(home)
        return reply

    def finish(self, work: Any, outcome: Any) -> Any:
        reply = super().finish(work, outcome)
        _KNOWN[self.path] = reply, copied_home(self.home)
        return reply


class Altering(Recalling):
    """A site whose reply to one step is altered after its gate."""

    change: Change
    step = "select"

    def begin(self, data: bytes) -> Any:
        found = super().begin(data)
        return self._altered(found) if isinstance(found, bytes) else found

    def finish(self, work: Any, outcome: Any) -> Any:
        return self._altered(super().finish(work, outcome))

    def _altered(self, data: bytes) -> bytes:
        reply = Reply.from_bytes(data)
        if reply.step != self.step or reply.status != "reply":
            return data
        message = unpack(reply.message)
        message["f"] = self.change(dict(message["f"]))
        return Reply(
            reply.run,
            reply.round,
            reply.attempt,
            reply.step,
            reply.site,
            reply.status,
            pack(message),
            reply.reason,
            reply.verdicts,
        ).to_bytes()


def altered(
    federation: Federation,
    rows: Mapping[str, Any],
    name: str,
    step: str,
    change: Change,
    *,
    quorum: int | None = None,
) -> Federation:
    """Return the federation with sites that recall, one of which has its replies altered.

    Parameters
    ----------
    rows : mapping of site to anything that can be pickled
        What the sites' rows were made of: all else that is theirs is policy and secrets.
    """
    sites = []
    for site in members(federation).values():
        if site.name != name:
            sites.append(recalling(site, rows[site.name]))
            continue
        made = recalling(site, rows[name], Altering)
        made.change = change  # type: ignore[method-assign]
        made.step = step
        sites.append(made)
    return Federation(LocalEngine(sites), federation.columns, federation.preparation, quorum=quorum)


def recalling(site: Site, rows: Any, kind: type[Any] = Recalling) -> Any:
    """Return a fresh site with the same rows, policy and secrets that recalls."""
    made = kind(site.name, site._loader, policy=site.policy)
    made._secret_seed = site._secret_seed
    own = (site.name, site.policy, site._secret_seed, rows)
    made.path = hashlib.sha256(pickle.dumps(own)).digest()
    return made

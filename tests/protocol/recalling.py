"""Sites that recall what they answered in an earlier test, one of which has its replies altered."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.sites.site import Site
from consilience.testing import recalling as recall
from consilience.testing.fakes import members
from consilience.testing.recalling import RUN, Alter, Memory, Recalling
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply

__all__ = ["RUN", "Change", "altered", "recalling"]

Change = Callable[[dict[str, Any]], dict[str, Any]]

_KNOWN: Memory = {}


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

    def alter(reply: Reply) -> Reply:
        if reply.step != step or reply.status != "reply":
            return reply
        message = unpack(reply.message)
        message["f"] = change(dict(message["f"]))
        return dataclasses.replace(reply, message=pack(message))

    sites = [
        recalling(site, rows[site.name], alter if site.name == name else None)
        for site in members(federation).values()
    ]
    return Federation(LocalEngine(sites), federation.columns, federation.preparation, quorum=quorum)


def recalling(site: Site, rows: Any, alter: Alter | None = None) -> Recalling:
    """Return a fresh site with the same rows, policy and secrets that recalls."""
    own = (site.name, site.policy, site._secret_seed, rows)
    return recall.recalling(site, _KNOWN, hashlib.sha256(pickle.dumps(own)).digest(), alter)

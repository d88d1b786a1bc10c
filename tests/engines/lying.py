"""Sites that say something else than their gate let pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from consilience.sites.site import Site
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply


def altered(step: str, **fields: Any) -> Callable[[bytes], bytes]:
    """Return a function that puts other fields into replies to a step."""

    def alter(data: bytes) -> bytes:
        reply = Reply.from_bytes(data)
        if reply.step != step or reply.status != "reply":
            return data
        message = unpack(reply.message)
        message["f"] |= fields
        return dataclasses.replace(reply, message=pack(message)).to_bytes()

    return alter


def lie(site: Site, step: str, **fields: Any) -> Site:
    """Have a site put other fields into its replies to a step."""
    plain, alter = site.finish, altered(step, **fields)

    def finish(work: Any, outcome: Any) -> Any:
        said = plain(work, outcome)
        return alter(said) if isinstance(said, bytes) else said

    site.finish = finish  # type: ignore[method-assign]
    return site


def heard(site: Site) -> list[str]:
    """What a site wrote down of replies that were not accepted."""
    said = [str(line.get("said", "")) for line in site.home.read_log()]
    return [line for line in said if "did not accept" in line]

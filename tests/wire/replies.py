"""Replies as a coordinator judges them: any fields, whatever their site would have sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.exceptions import WireError
from consilience.wire.codec import decode_reply, pack
from consilience.wire.message import message_type


def refusal(
    reply: type, fields: Mapping[str, Any], request: object, known: Mapping[str, Any] | None = None
) -> str:
    """Why a reply with these plain fields is not accepted; empty where it is."""
    kind = message_type(reply)
    data = pack({"m": kind.name, "v": kind.version, "f": dict(fields)})
    try:
        decode_reply(data, request, known or {}, site="a", roles={})
    except WireError as error:
        return error.public
    return ""

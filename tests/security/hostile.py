"""A coordinator with questions of its own reads whatever comes."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import pytest

from consilience.engines import driver
from consilience.parameters import plain
from consilience.wire.codec import decode_message, pack
from consilience.wire.message import iterate_fields, message_type


def reads_all(patch: pytest.MonkeyPatch) -> None:
    """Have replies judged by nobody: what the sites' gates let leave is all that counts."""

    def read(data: bytes, request: object, known: Any, **settings: Any) -> Any:
        return decode_message(data)

    patch.setattr(driver, "decode_reply", read)


def unchecked(message: object) -> bytes:
    """Bytes of a message whose settings nobody checked, as a hostile coordinator may send them."""
    kind = message_type(type(message))
    fields = {}
    for name, spec, value in iterate_fields(message):
        if spec.record is None:
            fields[name] = getattr(value, "value", value)
        else:
            fields[name] = plain(value) if is_dataclass(value) else value
    return pack({"m": kind.name, "v": kind.version, "f": fields})

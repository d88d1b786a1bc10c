"""Alterations of encoded messages: from bytes that a method really sends to others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from consilience.wire.message import message_type

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


def _every_array(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes | None]:
    """Alter every array of floating-point numbers."""

    def mutate(data: bytes) -> bytes | None:
        raw, touched = _raw(data), []

        def visit(value: Any) -> None:
            if isinstance(value, dict) and value.get("$") == "array":
                if value["d"] == "<f8" and value["b"]:
                    change(value)
                    touched.append(value)
            elif isinstance(value, dict | list):
                for item in value.values() if isinstance(value, dict) else value:
                    visit(item)

        visit(raw["f"])
        return _packed(raw) if touched else None

    return mutate


def _fill(number: float) -> Callable[[dict[str, Any]], None]:
    def change(array: dict[str, Any]) -> None:
        array["b"] = np.full(len(array["b"]) // 8, number).tobytes()

    return change


def _small_integers(array: dict[str, Any]) -> None:
    array["d"], array["b"] = "|i1", bytes(len(array["b"]) // 8)


def _more_dimensions(array: dict[str, Any]) -> None:
    array["s"] = [1, *array["s"]]


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


def _twice(data: bytes) -> bytes:
    """Repeat the key of the fields, once with nothing in it."""
    raw = _raw(data)
    entry = _packed({"f": {}})[1:]
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
    "nested without end": ("brackets until the reader's stack ends", lambda data: _nested(200_000)),
    "wrong dtype": ("small whole numbers in place of others", _every_array(_small_integers)),
    "wrong shape": ("a dimension too many", _every_array(_more_dimensions)),
    "NaN": ("arrays filled with NaN", _every_array(_fill(np.nan))),
    "infinity": ("arrays filled with infinity", _every_array(_fill(np.inf))),
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
    nests = any(isinstance(s.shape, str) or s.many or s.kind == "any" for s in specs)
    gaps = any(s.gaps for s in specs)
    return name in _MAY_BE_ALLOWED and (nests or (gaps and name == "NaN"))

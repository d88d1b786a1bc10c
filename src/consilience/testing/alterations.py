"""Alterations of encoded messages: from bytes that a method really sends to others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.wire.codec import pack, unpack
from consilience.wire.message import Sealed, message_type

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

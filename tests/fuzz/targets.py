"""What is fuzzed: each reader of bytes that somebody else, or a crash, may have written.

An input is one byte that chooses the reader and the bytes for it. A reader returns a value or
raises an error of this package; anything else is a defect, and so is a value that does not come
back the same from its own bytes.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from consilience.engines.health import Heartbeat
from consilience.exceptions import ConsilienceError
from consilience.protocol.method import method_names
from consilience.sites.site_store import Record
from consilience.sites.study import Study
from consilience.wire import signing
from consilience.wire.codec import decode_message, encode_message, pack, unpack
from consilience.wire.envelope import Reply, Request
from consilience.wire.files import StateFile
from consilience.wire.signing import OVERHEAD, Context, SigningKey, unseal
from consilience.wire.transcript import Journal, Transcript, read_transcript

method_names()  # Registers every method, and so every message.

CONTEXT = Context("run", 1, 1, "reply", "ash", "coordinator", about="digest")
KEY, READER = SigningKey.generate(), SigningKey.generate()
_FOLDER = tempfile.TemporaryDirectory(prefix="consilience-fuzz-")
_FILE = Path(_FOLDER.name) / "file"


def value(data: bytes) -> None:
    """A value that was read is written and read the same; sealed ones and arrays included."""
    again = pack(unpack(data))
    if pack(unpack(again)) != again:
        raise AssertionError("a value does not come back from its own bytes")


def message(data: bytes) -> None:
    """A message that was decoded is one that may be sent."""
    again = encode_message(decode_message(data))
    if encode_message(decode_message(again)) != again:
        raise AssertionError("a message does not come back from its own bytes")


def envelope(kind: type[Request] | type[Reply]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        if kind.from_bytes(data) != kind.from_bytes(kind.from_bytes(data).to_bytes()):
            raise AssertionError("an envelope does not come back from its own bytes")

    return read


def signed(data: bytes) -> None:
    """Bytes of an envelope, with a right checksum or without one; nobody has signed them."""
    magic = KEY.seal(CONTEXT, b"")[: OVERHEAD - 96]
    for whole in (data, magic + data, magic + hashlib.sha256(data).digest() + data):
        try:
            unseal(whole, public=KEY.public, context=CONTEXT)
        except ConsilienceError:
            continue
        raise AssertionError("an envelope that nobody signed was opened")


class Hostile(SigningKey):
    """Signs any bytes as if it had sealed them."""

    def _closed(self, context: Context, body: bytes, readers: object) -> bytes:
        return body


def sealed(data: bytes) -> None:
    """Bytes in place of a sealed body, then in place of what opens: its rightful sender signed."""
    hostile, bound = Hostile(KEY._private), signing._bound(CONTEXT)
    slot = KEY._closed(CONTEXT, b"", [READER.public])[: 2 + signing._KEY + signing._TAG]
    content = signing._derived(KEY._private.private_bytes_raw(), [signing._CONTENT, bound])
    within = slot + signing.AESSIV(content).encrypt(data or b"\0", [bound])
    with suppress(ConsilienceError):
        READER.unseal(hostile.seal(CONTEXT, data, readers=()), public=KEY.public, context=CONTEXT)
    opened = hostile.seal(CONTEXT, within, readers=())
    body = READER.unseal(opened, public=KEY.public, context=CONTEXT)
    if len(data) != signing._padded(len(body)) or body not in data:
        raise AssertionError("a body that was not sealed was opened")


def record(data: bytes) -> None:
    Record.from_bytes(data)


def journal(data: bytes) -> None:
    """A file of any bytes, and one whose record has a right length and checksum."""
    _FILE.write_bytes(data)
    Journal(_FILE)
    _FILE.write_bytes(struct.pack("<II", len(data), zlib.crc32(data)) + data)
    Journal(_FILE)


def transcript(data: bytes) -> None:
    """A file of any bytes, then with lines whose chain is right."""
    _FILE.write_bytes(data)
    with suppress(ConsilienceError):
        read_transcript(_FILE)
    _FILE.write_bytes(b"".join(_chained(data)))
    for line in read_transcript(_FILE):
        if not isinstance(line.round, int):
            raise AssertionError("a line with a round that is no number")
    Transcript(_FILE, "run", b"salt")


def _chained(data: bytes) -> list[bytes]:
    previous, lines = "0" * 64, []
    for encoded in data.splitlines():
        try:
            body = json.loads(encoded)
        except (ValueError, RecursionError):
            lines.append(encoded + b"\n")
            continue
        if isinstance(body, dict):
            body.pop("chain", None)
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
            previous = hashlib.sha256(previous.encode() + text.encode()).hexdigest()
            body["chain"] = previous
        lines.append(json.dumps(body).encode() + b"\n")
    return lines


def state(data: bytes) -> None:
    _FILE.write_bytes(data)
    StateFile(_FILE, {"begun": ("ended",), "ended": ()}, "begun").read()


def heartbeat(data: bytes) -> None:
    Heartbeat.from_bytes(data)


def study(data: bytes) -> None:
    Study.from_canonical(data.decode("utf-8", "replace"))


TARGETS: tuple[tuple[str, Callable[[bytes], None]], ...] = (
    ("value", value),
    ("message", message),
    ("request", envelope(Request)),
    ("reply", envelope(Reply)),
    ("signed", signed),
    ("record", record),
    ("journal", journal),
    ("transcript", transcript),
    ("state", state),
    ("heartbeat", heartbeat),
    ("study", study),
    ("sealed", sealed),
)
NAMES = tuple(name for name, _ in TARGETS)


def run_one(data: bytes) -> None:
    """Give an input to the reader that its first byte names."""
    if not data:
        return
    try:
        TARGETS[data[0] % len(TARGETS)][1](data[1:])
    except ConsilienceError as error:
        said = str(error)
        if "\n" in said or len(said) > 1000:
            raise AssertionError("an error of more than one sentence") from error


def chosen(name: str, data: bytes) -> bytes:
    """Input for a reader by name."""
    return bytes([NAMES.index(name)]) + data


# --------------------------------------------------------------------------- inputs


_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "../../x",
    "$",
    "\0",
    b"",
    [],
    {},
    [[[[[]]]]],
    {"$": "array", "d": "<f8", "s": [0, 1 << 30, 1 << 30], "b": b""},
    {"$": "array", "d": "<f8", "s": [-1], "b": b"12345678"},
    {"$": "array", "d": "|O8", "s": [1], "b": b"12345678"},
    {"$": "array", "d": "<f8", "s": [1], "b": b"\0\0\0\0\0\0\xf8\x7f"},
    {"$": "sealed", "f": "ash", "t": "birch", "b": bytes(20)},
)


def altered(data: bytes, rng: random.Random) -> bytes:
    """Alter one value of a structure, and leave it one; bytes that are none are altered anyhow."""
    body = data[1:]
    try:
        raw, read = msgpack.unpackb(body, strict_map_key=False), msgpack.packb
    except Exception:  # noqa: BLE001  whatever it is, it is not msgpack
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError):
            return data[:1] + _bytes_altered(body, rng)

        def read(value: Any) -> bytes:
            return json.dumps(value, default=repr).encode()

    try:
        return data[:1] + bytes(read(_replaced(raw, rng)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return data[:1] + _bytes_altered(body, rng)


def _replaced(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.1:
            return {**value, str(rng.choice(_ODD)): rng.choice(_ODD)}
        return {**value, key: _replaced(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _replaced(value[at], rng), *value[at + 1 :]]
    if isinstance(value, bytes) and value and rng.random() < 0.7:
        if rng.random() < 0.5:
            return altered(b"x" + value, rng)[1:]  # a message inside an envelope
        return _bytes_altered(value, rng)
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1))
    return rng.choice(_ODD)


def _bytes_altered(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    cut = (at, min(len(data), at + rng.randrange(4)))
    return data[: cut[0]] + rng.randbytes(rng.randrange(4)) + data[cut[1] :]


def seeds() -> dict[str, bytes]:
    """One good input for each reader, and for each kind of message that a small study sends."""
    from consilience.engines.federation import Federation
    from consilience.engines.local import LocalEngine
    from consilience.testing.fakes import scripted
    from tests.faults import cases
    from tests.faults.zygote import member

    found: dict[str, bytes] = {}
    for case in cases.CASES.values():
        engine = LocalEngine([member(site) for site in cases.SITES])
        federation = scripted(Federation(engine, case.columns, case.preparation, **case.settings))
        case.method().run(federation, seed=5)
        log: Any = federation.engine
        for kind, cls, sent in (("request", Request, log.requests), ("reply", Reply, log.replies)):
            for data in sent.values():
                inside = cls.from_bytes(data)
                said = unpack(inside.message)["m"] if inside.message else "refused"
                if len(data) > 6000:
                    continue
                found.setdefault(f"{kind}-{inside.step}", chosen(kind, data))
                if inside.message:
                    found.setdefault(f"message-{said}", chosen("message", inside.message))
    nest = {"a": (1, 2.5, None, "x", b"y"), "b": np.arange(6.0).reshape(2, 3)}
    found["value"] = chosen("value", pack(nest))
    found["signed"] = chosen("signed", KEY.seal(CONTEXT, b"body")[OVERHEAD - 64 :] + b"more")
    padded = signing._LENGTH.pack(4) + b"body" + bytes(signing.BLOCK - 12)
    found["sealed"] = chosen("sealed", padded)
    slots = KEY._closed(CONTEXT, b"body", [KEY.public, READER.public])
    found["sealed-slots"] = chosen("sealed", slots)
    found["record"] = chosen("record", Record(1, 1, "d", b"r", {"s": 1}).to_bytes())
    for entry in (
        {"k": "ask", "r": 1, "step": "s", "to": ("ash",), "wait": "all", "digest": "d"},
        {"k": "reply", "r": 1, "site": "ash", "data": b"reply"},
        {"k": "absent", "r": 1, "site": "ash", "reason": "late"},
        {"k": "deliver", "r": 1, "keys": ((1, "ash"),)},
        {"k": "retry", "r": 1},
    ):
        found[f"journal-{entry['k']}"] = chosen("journal", pack(entry))
    line = Transcript(_FILE.with_name("lines"), "run", b"salt")
    line.absence(round_=1, step="s", site="ash", verdict="absent", reason="late")
    line.asked_again(1)
    found["transcript"] = chosen("transcript", _FILE.with_name("lines").read_bytes())
    found["state"] = chosen("state", b'{"state": "ended", "version": 1, "facts": {}}')
    beat = {
        "site": "ash", "release": "0", "state": "watching", "time": 1.0, "every": 60.0,
        "busy": 0.0, "held": 0, "unsent": 0, "free": 1, "methods": ["mean-and-sd"],
    }  # fmt: skip
    found["heartbeat"] = chosen("heartbeat", json.dumps(beat).encode())
    given: dict[str, Any] = {
        "name": "s", "method": "mean-and-sd", "seed": 3, "data": {"features": ["a"]},
        "sites": {"names": ["east", "west"]},
    }  # fmt: skip
    text = Study.from_settings(given).canonical()
    found["study"] = chosen("study", text.encode())
    return found

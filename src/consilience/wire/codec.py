"""Bytes of messages: msgpack for structure, raw little-endian buffers for arrays.

Layout of a message: a map ``{"m": name, "v": version, "f": {field: value}}``. A value is None,
bool, int, float, str, bytes, a list (a tuple in Python), a map with text keys, or an array, which
is the map ``{"$": "array", "d": dtype, "s": shape, "b": buffer}``, or a value sealed for another
site, ``{"$": "sealed", "f": sender, "t": recipient, "b": ciphertext}``. Nothing in it can be
executed: there are no extension types and no object arrays. Whatever cannot be read raises
:class:`~consilience.exceptions.WireError`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from consilience.exceptions import ParameterError, ProtocolError, WireError
from consilience.parameters import plain
from consilience.wire.disclosure import Released, received
from consilience.wire.message import (
    Disclosure,
    FieldSpec,
    Sealed,
    check_shape,
    fault,
    iterate_fields,
    lengths_of,
    message_type,
)

MAX_BYTES = 1 << 30
MAX_DEPTH = 24
MAX_ITEMS = 1_000_000
MAX_TOTAL = 4 * MAX_ITEMS
"""Lists, maps and what is in them, altogether: an item takes one byte of a message and fifty to a
hundred of memory."""
MAX_EMPTY = 1 << 26
"""Bytes that an array without entries may seem to span by its other dimensions."""
MAX_SITE_NAME = 100
SEAL_OVERHEAD = 16
"""Bytes by which a sealed value is longer than what is in it."""
_ATOMS = frozenset((type(None), bool, int, float, str))
"""Values without parts, which are on the wire as they are."""
_NESTED, _ARRAY = (dict, list, tuple), frozenset("$dsb")
_DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
}


def pack(value: Any) -> bytes:
    """Encode a plain value; equal values give equal bytes.

    Raises
    ------
    ProtocolError
        For a type that does not cross the wire.
    """
    return b"".join(pack_parts(value))


def pack_parts(value: Any) -> list[bytes | memoryview]:
    """Return parts whose concatenation is `pack` of a value: long buffers are not copied.

    Raises
    ------
    ProtocolError
        For a type that does not cross the wire.
    """
    long: list[Any] = []
    try:
        raw = _to_wire(value, 0, long)
        return _around_long(raw) if long else [_packed(raw)]
    except (ValueError, OverflowError) as error:
        # Whole numbers over 64 bits, texts that are not Unicode, more bytes than a length may say.
        raise ProtocolError(f"a value does not cross the wire ({type(error).__name__})") from None


_LONG = 1 << 16
_HEADS: dict[type, tuple[int, int, int | None, int, int]] = {
    # First byte of few items (and how many are few), then those of lengths of 1, 2 and 4 bytes.
    dict: (0x80, 15, None, 0xDE, 0xDF),
    list: (0x90, 15, None, 0xDC, 0xDD),
    bytes: (0, -1, 0xC4, 0xC5, 0xC6),
}


def _around_long(raw: Any) -> list[bytes | memoryview]:
    """Encode as msgpack does, leaving long buffers where they are; nothing where there is none."""
    if isinstance(raw, bytes | memoryview):
        return [_head(bytes, len(raw)), raw] if len(raw) >= _LONG else []
    if not isinstance(raw, dict | list):
        return []
    items = raw.values() if isinstance(raw, dict) else raw
    inside = [[] if type(item) in _ATOMS else _around_long(item) for item in items]
    if not any(inside):
        return []
    parts: list[bytes | memoryview] = [_head(type(raw), len(raw))]
    for key, item, cut in zip(raw, items, inside, strict=True):
        if isinstance(raw, dict):
            parts.append(_packed(key))
        parts += cut or [_packed(item)]
    return parts


def _packed(raw: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(raw, use_bin_type=True))


def _head(kind: type, length: int) -> bytes:
    """Encode the type and the length of what follows, in the shortest form."""
    first, few, one, two, four = _HEADS[kind]
    if length <= few:
        return bytes([first | length])
    for code, size in ((one, 1), (two, 2), (four, 4)):
        if code is not None and length < 1 << 8 * size:
            return bytes([code]) + length.to_bytes(size, "big")
    raise ValueError("too long")


def unpack(data: bytes | memoryview, *, max_bytes: int = MAX_BYTES) -> Any:
    """Decode what :func:`pack` made.

    Raises
    ------
    WireError
        Truncated, oversized, too deep, or not of the layout above.
    """
    import msgpack

    if len(data) > max_bytes:
        raise WireError(f"a message of more than {max_bytes} bytes was refused")
    # No structure has more items than bytes: a declared length alone never claims memory.
    items = min(MAX_ITEMS, len(data))
    counted = _Counted()
    try:
        raw = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=counted.of_map,
            list_hook=counted.of_list,
            max_str_len=items,
            max_array_len=items,
            max_map_len=items,
            max_ext_len=0,
            max_bin_len=max_bytes,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, MemoryError) as error:
        raise WireError(f"bytes that are not a message ({type(error).__name__})") from None
    return _from_wire(raw, 0)


def encode_message(msg: object) -> bytes:
    """Encode a message after checking every field against its declaration.

    Raises
    ------
    ProtocolError
        A field that is not PUBLIC holds something other than a Released value of its class.
    WireError
        A value does not have the declared shape or type.
    """
    kind = message_type(type(msg))
    return pack({"m": kind.name, "v": kind.version, "f": plain_fields(msg)})


def plain_fields(msg: object) -> dict[str, Any]:
    """Open the Released values of a message and check declarations (see `encode_message`)."""
    dims: dict[str, int] = {}
    fields: dict[str, Any] = {}
    name_of_message = message_type(type(msg)).name
    for name, spec, content in iterate_fields(msg):
        where = f"{name_of_message}.{name}"
        if spec.disclosure is Disclosure.PUBLIC:
            if isinstance(content, Released):
                raise ProtocolError(f"{where} is declared public but holds a released value")
            if spec.record is not None and type(content) is not spec.record:
                raise ProtocolError(f"{where} must hold {spec.record.__name__}")
            value = content if spec.record is None else plain(content)
        else:
            if not isinstance(content, Released) or content.disclosure is not spec.disclosure:
                raise ProtocolError(
                    f"{where} must hold a value released as {spec.disclosure.value}"
                )
            value = content.value
        check_shape(where, spec, value, dims)
        fields[name] = value
    return fields


def misfit(what: str, error: WireError) -> ProtocolError:
    """Error about a message of one's own: its declaration may be told, its content may not."""
    field = str(error).split(":", 1)[0].rsplit(".", 1)[-1]
    return ProtocolError(
        f"{what} does not fit its declaration: {error}",
        public=f"the reply does not fit its declaration of field {field!r}",
    )


def decode_message(
    data: bytes, *, max_bytes: int = MAX_BYTES, lengths: Mapping[str, int] | None = None
) -> Any:
    """Decode a message into its registered class; fields are checked against the declaration.

    Parameters
    ----------
    lengths : mapping, optional
        What names of dimensions stand for, as far as that is known beforehand.
    """
    known = dict(lengths or {})
    raw = unpack(data, max_bytes=max_bytes)
    if not isinstance(raw, dict) or set(raw) != {"m", "v", "f"} or not isinstance(raw["m"], str):
        raise WireError("bytes that are not a message of this package")
    kind = message_type(raw["m"])
    # True is an int to isinstance, and True == 1.
    found = raw["v"] if type(raw["v"]) is int else None
    if found != kind.version:
        raise WireError(
            f"message {kind.name} has version {found}, here it is {kind.version}: "
            "install the same release of consilience everywhere"
        )
    fields = raw["f"]
    if not isinstance(fields, dict) or set(fields) != set(kind.fields):
        raise WireError(f"message {kind.name} does not have its declared fields")
    # What this message binds is its own: `known` stays as the run has it, for the next of `many`.
    dims = dict(known)
    content: dict[str, Any] = {}
    for name, spec in kind.fields.items():
        where = f"{kind.name}.{name}"
        check_shape(where, spec, fields[name], dims, known)
        if spec.record is not None:
            try:
                content[name] = spec.record(**fields[name])
            except (ParameterError, TypeError, ValueError):
                raise fault(where, "settings that do not go together") from None
        elif spec.disclosure is Disclosure.PUBLIC:
            content[name] = fields[name]
        else:
            content[name] = received(fields[name], spec.disclosure)
    return kind.cls(**content)


_UNDER_WAY: WeakValueDictionary[tuple[bytes, int], Any] = WeakValueDictionary()


def decode_question(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Decode a message to a site; the same object as long as somebody has it from here.

    One message may go to many sites of a process, and each looks at it more than once.
    """
    found = _UNDER_WAY.get((data, max_bytes))
    if found is None:
        found = _UNDER_WAY[data, max_bytes] = decode_message(data, max_bytes=max_bytes)
    return found


LARGEST = 1e100
"""A number of a reply is no larger where no bound is declared: its square is a number too."""
MOST = 1 << 50
"""No whole number of a reply is larger: sums of them are exact."""
LONGEST = 2000
"""Characters of a text of a reply: a name or a sentence."""


def decode_reply(
    data: bytes, request: object, known: Mapping[str, Any], *, site: str, roles: Mapping[str, str]
) -> Any:
    """Decode a reply and judge it by its declaration, for all methods alike.

    Parameters
    ----------
    data : bytes
    request : message
        What it answers: dimensions that both declare have one length.
    known : mapping
        What the run knows: lengths, by name of a dimension, and whatever else `check` looks up.
    site : str
        Whose reply it is.
    roles : mapping of site to role
        A field for a role is sealed by the site for one that has the role.

    Raises
    ------
    WireError
        The sentence names the message, the field and the rule, and no value.
    """
    known = {**lengths_of(request), **known}
    lengths = {name: length for name, length in known.items() if isinstance(length, int)}
    reply = decode_message(data, lengths=lengths)
    name = message_type(type(reply)).name
    for field, spec, content in iterate_fields(reply):
        value = content.value if isinstance(content, Released) else content
        if spec.for_role:
            for item in value if spec.many else (value,):
                sealed = isinstance(item, Sealed) and item.sender == site
                if not sealed or roles.get(item.recipient) != spec.audience:
                    sentence = f"what is not sealed by its site for {spec.audience!r}"
                    raise fault(f"{name}.{field}", sentence)
        elif not _within_reason(value, spec):
            raise fault(f"{name}.{field}", "numbers that are too large, or texts too long")
    check = getattr(reply, "check", None)
    if check is None:
        return reply
    try:
        with np.errstate(all="ignore"):
            wrong = check(request, {**lengths_of(reply), **known})
    except Exception:  # noqa: BLE001  what a check stumbles over is none of what it was written for
        wrong = "not what was declared"
    if wrong:
        raise fault(name, wrong)
    return reply


def _within_reason(value: Any, spec: FieldSpec) -> bool:
    """Whether sums and squares of all numbers in a value are numbers, as far as none is bounded."""
    if isinstance(value, dict):
        pairs = [(key, item, spec.parts.get(key, spec)) for key, item in value.items()]
        return all(len(key) <= LONGEST and _within_reason(item, own) for key, item, own in pairs)
    if isinstance(value, tuple):
        return all(_within_reason(item, spec) for item in value)
    if isinstance(value, str):
        return len(value) <= LONGEST
    if not isinstance(value, np.ndarray | int | float):
        return True
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return True
    # A bound of the declaration goes first: it may be wider, where a method has a reason for it.
    most = MOST if array.dtype.kind in "iu" else LARGEST
    low = spec.low if math.isfinite(spec.low) else -most
    high = spec.high if math.isfinite(spec.high) else most
    return not ((array > high) | (array < low)).any()


def digest(*data: bytes | memoryview, salt: bytes = b"") -> str:
    """Hexadecimal SHA-256 of salt and bytes; of several parts as of their concatenation."""
    found = hashlib.sha256(len(salt).to_bytes(4, "big") + salt)
    for part in data:
        # Not joined before: parts of a large message are views of arrays that nobody copies.
        found.update(part)
    return found.hexdigest()


def _to_wire(value: Any, depth: int, long: list[Any]) -> Any:
    """What msgpack is given for a value; long buffers in it are put into `long`."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, np.ndarray):
        return _array_to_wire(value, long)
    if isinstance(value, _NESTED) and depth + bool(value) > MAX_DEPTH:
        raise ProtocolError(f"a value is nested deeper than {MAX_DEPTH} levels")
    # Most items have no parts: of these nothing more is asked.
    if isinstance(value, dict):
        if not all([isinstance(key, str) and key[:1] != "$" for key in value]):
            raise ProtocolError("keys of a map on the wire are texts that do not start with $")
        return {
            key: v if type(v) in _ATOMS else _to_wire(v, depth + 1, long)
            for key, v in value.items()
        }
    if isinstance(value, _NESTED):
        return [v if type(v) in _ATOMS else _to_wire(v, depth + 1, long) for v in value]
    if isinstance(value, bytes):
        if len(value) >= _LONG:
            long.append(value)
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Sealed):
        raw = {"$": "sealed", "f": value.sender, "t": value.recipient, "b": value.data}
        if not _is_sealed(raw):
            raise ProtocolError("a sealed value lacks its sites or its ciphertext")
        return {**raw, "b": _to_wire(value.data, depth, long)}
    raise ProtocolError(f"{type(value).__name__} does not cross the wire")


def _array_to_wire(array: np.ndarray, long: list[Any]) -> dict[str, Any]:
    little = array
    if array.dtype.str not in _DTYPES or not array.flags.c_contiguous:
        # On the wire numbers have one byte order, so that equal arrays are equal bytes everywhere.
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if little.dtype.str not in _DTYPES:
            raise ProtocolError(f"arrays of dtype {array.dtype} do not cross the wire")
    # A view, since a copy is made where the parts are put together; empty ones have none.
    buffer = little.reshape(-1).view(np.uint8).data if little.size else b""
    if len(buffer) >= _LONG:
        long.append(buffer)
    return {"$": "array", "d": little.dtype.str, "s": list(array.shape), "b": buffer}


def _is_sealed(raw: dict[str, Any]) -> bool:
    names = (raw["f"], raw["t"])
    fine = all(isinstance(name, str) and 0 < len(name) <= MAX_SITE_NAME for name in names)
    return fine and isinstance(raw["b"], bytes) and len(raw["b"]) > SEAL_OVERHEAD


class _Counted:
    """Makes lists and maps of one message, as long as they are not too many."""

    def __init__(self) -> None:
        self._left = MAX_TOTAL

    def of_list(self, items: list[Any]) -> list[Any]:
        self._take(1 + len(items))
        return items

    def of_map(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._take(1 + 2 * len(pairs))
        found = dict(pairs)
        if len(found) < len(pairs):  # it would mean different things to different readers
            raise WireError("a map with a repeated key")
        return found

    def _take(self, n: int) -> None:
        self._left -= n
        if self._left < 0:
            raise WireError(f"a message of more than {MAX_TOTAL} items was refused")


def _from_wire(raw: Any, depth: int) -> Any:
    if type(raw) in _ATOMS or isinstance(raw, bytes):
        return raw
    if isinstance(raw, dict) and "$" in raw:
        if raw["$"] != "sealed":
            return _array_from_wire(raw)
        if set(raw) != {"$", "f", "t", "b"} or not _is_sealed(raw):
            raise WireError("a malformed sealed value")
        return Sealed(raw["f"], raw["t"], raw["b"])
    if isinstance(raw, _NESTED) and depth + bool(raw) > MAX_DEPTH:
        raise WireError(f"a message nested deeper than {MAX_DEPTH} levels was refused")
    if isinstance(raw, list):
        return tuple([v if type(v) in _ATOMS else _from_wire(v, depth + 1) for v in raw])
    if isinstance(raw, dict):
        if not all([isinstance(key, str) for key in raw]):
            raise WireError("a map with keys that are not texts")
        return {k: v if type(v) in _ATOMS else _from_wire(v, depth + 1) for k, v in raw.items()}
    raise WireError(f"{type(raw).__name__} where a value was expected")


def _array_from_wire(raw: dict[str, Any]) -> np.ndarray:
    if raw.keys() != _ARRAY or raw["$"] != "array":
        raise WireError("a malformed array")
    shape, buffer = raw["s"], raw["b"]
    dtype = _DTYPES.get(raw["d"]) if isinstance(raw["d"], str) else None
    if dtype is None:
        raise WireError("an array of a dtype that does not cross the wire")
    whole = isinstance(shape, list) and len(shape) <= 8
    if not whole or not all([type(n) is int and 0 <= n <= MAX_BYTES for n in shape]):
        raise WireError("an array of a malformed shape")
    expected = math.prod(shape) * dtype.itemsize
    if not isinstance(buffer, bytes) or len(buffer) != expected:
        raise WireError("an array whose bytes do not match its shape")
    # (0, 2**30) has no bytes, but its sum over the first dimension would have many.
    if not expected and math.prod(n or 1 for n in shape) * dtype.itemsize > MAX_EMPTY:
        raise WireError("an array without entries of a shape that is too large")
    # frombuffer gives a read-only view: received arrays cannot be changed in place by accident.
    return np.frombuffer(buffer, dtype=dtype).reshape(shape)

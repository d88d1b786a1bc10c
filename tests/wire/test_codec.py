from __future__ import annotations

import math
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consilience.exceptions import ProtocolError, WireError
from consilience.protocol.phases.moments import Sums
from consilience.testing.recalling import MUTATIONS
from consilience.wire.codec import (
    MAX_DEPTH,
    decode_message,
    digest,
    encode_message,
    pack,
    pack_parts,
    unpack,
)
from consilience.wire.disclosure import aggregate

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", ">i4", ">f8"]

arrays = st.sampled_from(DTYPES).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
keys = st.text(max_size=8).filter(lambda k: not k.startswith("$"))
nests = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.shape == b.shape
            and a.dtype.newbyteorder("<") == b.dtype.newbyteorder("<")
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


@given(nests)
@settings(max_examples=150)
def test_any_nest_survives_the_round_trip(value: Any) -> None:
    data = pack(value)
    back = unpack(data)
    assert same(value, back)
    assert pack(back) == data


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    try:
        value = unpack(data)
    except WireError:
        value = None
    try:
        decode_message(data)
    except WireError:
        return
    raise AssertionError(f"random bytes passed as a message: {value!r}")


MESSAGE = encode_message(
    Sums(
        n=aggregate(np.ones((20, 2))),
        means=aggregate(np.arange(40.0).reshape(20, 2), mean=True),
        spreads=aggregate(np.arange(40.0).reshape(20, 2) ** 2, mean=True),
    )
)


@given(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255))
@settings(max_examples=300)
def test_a_changed_byte_is_another_message_or_a_wire_error(place: int, byte: int) -> None:
    altered = MESSAGE[:place] + bytes([byte]) + MESSAGE[place + 1 :]
    try:
        assert isinstance(decode_message(altered), Sums)
    except WireError:
        return


@pytest.mark.parametrize("name", [None, 5, b"sums", (), {}])
def test_a_name_of_a_message_is_a_text(name: Any) -> None:
    with pytest.raises(WireError, match="not a message of this package"):
        decode_message(pack({"m": name, "v": 1, "f": {}}))


def test_no_prefix_of_a_message_is_a_message() -> None:
    assert isinstance(decode_message(MESSAGE), Sums)
    for cut in range(len(MESSAGE)):
        with pytest.raises(WireError):
            decode_message(MESSAGE[:cut])


@pytest.mark.parametrize("name", MUTATIONS)
def test_alterations_are_wire_errors(name: str) -> None:
    altered = MUTATIONS[name][1](MESSAGE)
    assert altered is not None
    if name == "NaN":  # this message declares gaps
        assert np.isnan(decode_message(altered).n.value).all()
        return
    with pytest.raises(WireError):
        decode_message(altered)


def test_received_arrays_are_read_only() -> None:
    back = unpack(pack(np.ones(3)))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 2.0


def test_equal_values_give_equal_bytes() -> None:
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert pack(fortran) == pack(np.ascontiguousarray(fortran))
    assert pack(fortran[:, ::2]) == pack(fortran[:, ::2].copy())
    assert pack(np.arange(3, dtype=">i4")) == pack(np.arange(3, dtype="<i4"))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: 2},
        {"$": 1},
        2**64,
        -(2**63) - 1,
        "\ud800",
        np.array([object()]),
        np.array(["text"]),
        np.array([1j]),
        np.array(["2020"], dtype="M8[D]"),
        {1, 2},
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_what_does_not_cross_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ProtocolError):
        pack(value)


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = (value,)
    return value


def test_depth() -> None:
    assert unpack(pack(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(ProtocolError, match="deeper"):
        pack(nested(MAX_DEPTH + 1))
    with pytest.raises(WireError, match="deeper"):
        unpack(b"\x91" * (MAX_DEPTH + 1) + b"\xc0")
    with pytest.raises(WireError):
        unpack(b"\x91" * 1_000_000 + b"\xc0")


def test_size() -> None:
    data = pack("x" * 100)
    assert unpack(data, max_bytes=len(data)) == "x" * 100
    with pytest.raises(WireError, match=f"more than {len(data) - 1} bytes"):
        unpack(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_a_declared_length_alone_claims_no_memory(head: bytes) -> None:
    with pytest.raises(WireError):
        unpack((head + struct.pack(">I", 2**31)) * 50)
    with pytest.raises(WireError):
        unpack((head + struct.pack(">I", 900_000)) * 50)


def array_of(**changes: Any) -> bytes:
    raw = {"$": "array", "d": "<f8", "s": [2], "b": bytes(16), **changes}
    return bytes(msgpack.packb({k: v for k, v in raw.items() if v is not None}))


@pytest.mark.parametrize(
    "data",
    [
        array_of(d="|O8"),
        array_of(d="<M8[s]"),
        array_of(d="<c16"),
        array_of(d=8),
        array_of(d=["<f8"]),
        array_of(s=[3]),
        array_of(s=[-2]),
        array_of(s=[2.0]),
        array_of(s=[True, 2]),
        array_of(s=2),
        array_of(s=[2] * 9),
        array_of(s=[2**40, 2**40]),
        array_of(s=[1 << 29]),
        array_of(b="text"),
        array_of(b=bytes(15)),
        array_of(b=None),
        array_of(x=1),
        array_of(**{"$": "estimator"}),
    ],
)
def test_malformed_arrays(data: bytes) -> None:
    assert isinstance(unpack(array_of()), np.ndarray)
    with pytest.raises(WireError):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1a\x01\xa1a\x02",  # {"a": 1, "a": 2}
        b"\x81\xc4\x01a\x01",  # {b"a": 1}
        b"\x81\x01\x01",  # {1: 1}
        b"\x81\x90\x01",  # {[]: 1}
        b"\xc1",  # never used by msgpack
        b"\xa1\xff",  # not UTF-8
        b"\xd4\x2a\x00",  # extension type 42
        b"\xd6\xff\x00\x00\x00\x00",  # a time stamp
        b"\xc7\x00\x05",  # an empty extension
        b"\x01\x02",  # two values
        b"",
    ],
)
def test_what_msgpack_allows_and_we_do_not(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


@pytest.mark.parametrize("version", [2, 0, True, 1.0, None, "1", [1], {"a": 1}])
def test_other_versions(version: Any) -> None:
    raw = msgpack.unpackb(MESSAGE)
    raw["v"] = version
    with pytest.raises(WireError, match="version"):
        decode_message(msgpack.packb(raw))


def test_digests_depend_on_the_salt() -> None:
    assert digest(b"a") == digest(b"a") != digest(b"a", salt=b"s")
    assert digest(b"bc", salt=b"a") != digest(b"c", salt=b"ab")


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize(
    ("n", "length"),
    [
        *((n, k) for n in (15, 16) for k in range(6)),
        *((n, k) for n in (65535, 65536) for k in (0, 5)),
    ],
)
def test_long_buffers_are_encoded_as_msgpack_does(n: int, length: int, as_map: bool) -> None:
    long = bytes(1 << 14) + bytes(range(251, 251 + length))
    array = np.arange(5000.0)
    raw = {"$": "array", "d": "<f8", "s": [5000], "b": array.tobytes()}
    items: list[Any] = [1] * (n - 2)
    mine: Any = [*items, long, array]
    plain: Any = [*items, long, raw]
    if as_map:
        mine, plain = ({str(i): v for i, v in enumerate(each)} for each in (mine, plain))
    whole = {"nest": (mine, "x"), "short": b"y"}
    expected = msgpack.packb({"nest": [plain, "x"], "short": b"y"}, use_bin_type=True)
    assert pack(whole) == expected
    assert b"".join(pack_parts(whole)) == expected


def test_digest_of_parts_is_that_of_the_whole() -> None:
    parts = pack_parts({"x": np.arange(9000.0), "y": "z"})
    assert len(parts) > 2
    assert digest(*parts, salt=b"s") == digest(b"".join(parts), salt=b"s")

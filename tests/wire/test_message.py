from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import ProtocolError, WireError
from consilience.wire import disclosure
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.message import (
    Aggregate,
    Disclosure,
    FieldSpec,
    Public,
    check_shape,
    iterate_fields,
    message,
    message_type,
)


@message("test-message/pair", version=3)
class Pair:
    left: Any = Public("n p")
    right: Any = Public("p")


def spec(shape: Any = (), **rest: Any) -> FieldSpec:
    return FieldSpec(Disclosure.PUBLIC, shape, **rest)


def check(declared: FieldSpec, value: Any) -> None:
    check_shape("m.f", declared, value, {})


def test_a_message_is_frozen_and_registered() -> None:
    pair = Pair(left=np.ones((2, 3)), right=np.ones(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        pair.left = 1
    assert message_type(Pair) is message_type("test-message/pair")
    assert message_type(Pair).version == 3
    assert [name for name, _, _ in iterate_fields(pair)] == ["left", "right"]


@pytest.mark.parametrize("name", ["Upper/case", "noslash", "a/b/c", "a b/c", "/x", "x/", "1a/b"])
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="not of the form"):
        message(name, version=1)


def test_a_field_without_declaration_is_refused() -> None:
    with pytest.raises(ProtocolError, match="declares nothing"):

        @message("test-message/bare", version=1)
        class Bare:
            x: int = 3


def test_two_messages_of_one_name_are_refused() -> None:
    with pytest.raises(ProtocolError, match="two messages"):

        @message("test-message/pair", version=3)
        class Other:
            """Not the same class."""


def test_unknown_messages() -> None:
    with pytest.raises(WireError, match="unknown message"):
        message_type("no/such")
    with pytest.raises(ProtocolError, match="not a registered message"):
        message_type(int)


def test_dimensions_bind_within_a_message() -> None:
    encode_message(Pair(left=np.ones((2, 3)), right=np.ones(3)))
    with pytest.raises(WireError, match="dimension 'p' has another length than was declared"):
        encode_message(Pair(left=np.ones((2, 3)), right=np.ones(4)))
    with pytest.raises(WireError, match="1 dimensions where 2"):
        encode_message(Pair(left=np.ones(3), right=np.ones(3)))


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (spec(kind="int"), 3, True),
        (spec(kind="int"), -1, 1.0),
        (spec(kind="float"), 2.5, "2.5"),
        (spec(kind="float"), 2, False),
        (spec(kind="bool"), True, 1),
        (spec(kind="str"), "x", b"x"),
        (spec(("n",)), np.ones(2), [1.0, 1.0]),
        (spec(("n",)), np.ones(2), np.ones(2, dtype=int)),
        (spec(("n",), kind="int"), np.ones(2, dtype=np.uint8), np.ones(2)),
        (spec(("n",), kind="bool"), np.ones(2, dtype=bool), np.ones(2, dtype=int)),
        (spec((2,)), np.ones(2), np.ones(3)),
        (spec(("n",)), np.ones(0), np.array([np.nan])),
        (spec(("n",), gaps=True), np.array([np.nan, 1.0]), np.array([np.inf])),
        (spec(("n",), kind="any"), np.ones(1, dtype=bool), np.array([np.nan])),
        (spec(("n",), kind="str"), ("a", "b"), ("a", 1)),
        (spec(("n",), many=True), (np.ones(1), np.ones(2)), np.ones(1)),
        (spec("a nest"), {"a": (1.0, np.ones(2))}, {"a": (1.0, np.array([np.nan]))}),
        (spec("a nest"), (), (float("inf"),)),
        (spec(()), 1.0, float("nan")),
    ],
)
def test_kinds(declared: FieldSpec, good: Any, bad: Any) -> None:
    check(declared, good)
    with pytest.raises(WireError, match=r"m\.f"):
        check(declared, bad)


def test_only_released_values_in_fields_that_are_not_public() -> None:
    @message("test-message/sum", version=1)
    class Sum:
        total: Any = Aggregate("p")
        note: Any = Public("", kind="str")

    rows = np.arange(20.0).reshape(10, 2)
    data = encode_message(Sum(total=disclosure.aggregate(rows), note="x"))
    back = decode_message(data)
    assert back.total.evidence is None
    np.testing.assert_array_equal(back.total.value, rows.sum(axis=0))
    with pytest.raises(ProtocolError, match="must hold a value released as aggregate"):
        encode_message(Sum(total=rows.sum(axis=0), note="x"))
    with pytest.raises(ProtocolError, match="must hold a value released as aggregate"):
        wrong = disclosure.model(rows.sum(axis=0), kind="summary", n_records=10)
        encode_message(Sum(total=wrong, note="x"))
    with pytest.raises(ProtocolError, match="declared public but holds"):
        encode_message(Sum(total=disclosure.aggregate(rows), note=disclosure.count(10)))

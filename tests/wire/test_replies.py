"""Replies are judged by their declaration: every rule, and an honest reply beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import WireError
from consilience.protocol.phases.align_ids import Hashed, HashRequest
from consilience.wire.codec import LARGEST, LONGEST, MOST, decode_reply, pack
from consilience.wire.message import (
    Disclosure,
    Public,
    Sealed,
    is_gram,
    lengths_of,
    message,
    message_type,
    part,
)
from tests.wire.replies import refusal

PUBLIC = Disclosure.PUBLIC


@message("test-replies/asked", version=1)
class Asked:
    weights: Any = Public("m")
    names: Any = Public("c", kind="str")
    items: Any = Public("q", many="items")
    text: Any = Public("", kind="str")

    def lengths(self) -> dict[str, int]:
        """What follows from the text."""
        return {"t": len(self.text)}


@message("test-replies/answer", version=1)
class Answer:
    share: Any = Public("", low=0, high=1)
    n: Any = Public("", kind="int", low=0)
    counts: Any = Public("m", kind="int", low=1, high=9)
    means: Any = Public("c p", gaps=True, low=-2)
    products: Any = Public("p p", gaps=True, empty=True, gram=True)
    each: Any = Public("p", many="items", empty=True)
    texts: Any = Public("t", kind="str", choices=("yes", "no"))
    word: Any = Public("", kind="str", choices=("a", "b"))
    any_word: Any = Public("", kind="str")
    table: Any = Public(
        "*a dict",
        parts={
            "size": part(kind="int", low=1),
            "values": part(("m",), gaps=True, high=5),
            "more": part(("k",), optional=True, many=True),
        },
    )
    open: Any = Public("*a dict", parts={"size": part(low=1)}, others=True)
    big: Any = Public("", high=1e250, low=0)

    def check(self, request: Asked, known: Mapping[str, Any]) -> str | None:
        """Stumble over a word, or find fault with one."""
        if self.any_word == "stumble":
            raise RuntimeError("12345.678")
        if self.any_word == "unknown":
            return str(known["nothing"])
        return "an odd word" if self.any_word == known.get("odd") else None


REQUEST = Asked(weights=np.ones(3), names=("x", "y"), items=(np.ones(2), np.ones(5)), text="ab")
KNOWN = {"p": 2, "odd": "odd"}
GOOD: dict[str, Any] = {
    "share": 1.0,
    "n": 0,
    "counts": np.array([1, 9, 5]),
    "means": np.array([[-2.0, np.nan], [3.0, 1e99]]),
    "products": np.array([[4.0, 2.0], [2.0, 1.0]]),
    "each": (np.zeros(2), np.zeros(0)),
    "texts": ("yes", "no"),
    "word": "b",
    "any_word": "",
    "table": {"size": 1, "values": np.array([5.0, np.nan, -7.0])},
    "open": {"size": 1.0, "other": np.ones(7)},
    "big": 1e249,
}


def judged(**changes: Any) -> str:
    return refusal(Answer, {**GOOD, **changes}, REQUEST, KNOWN)


def test_an_honest_reply_is_taken() -> None:
    assert judged() == ""
    assert judged(products=np.zeros((0, 5)), each=(np.zeros(0), np.zeros(2))) == ""
    assert judged(table={**GOOD["table"], "more": (np.ones(1), np.ones(4))}) == ""
    assert judged(big=1e250, share=0, open={"size": 2}) == ""


def test_lengths_are_those_of_the_request() -> None:
    assert lengths_of(REQUEST) == {"t": 2, "m": 3, "c": 2, "items": 2}


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("share", [1.1, -0.1], "between 0 and 1"),
        ("share", [np.nan, np.inf], "not finite"),
        ("share", [True, "1", np.ones(1)], "where float was declared"),
        ("n", [-1], "at 0 or above"),
        ("n", [1.0, True, None], "where int was declared"),
        ("n", [MOST + 1, 1 << 63], "too large"),
        ("counts", [np.array([0, 1, 1]), np.array([1, 1, 10])], "between 1 and 9"),
        ("counts", [np.array([1, 1, 10], dtype=np.uint8)], "between 1 and 9"),
        ("counts", [np.ones(2, dtype=int), np.ones(4, dtype=int)], "dimension 'm'"),
        ("counts", [np.ones((1, 3), dtype=int)], "2 dimensions where 1"),
        ("counts", [np.ones(3)], "where int was declared"),
        ("means", [np.full((2, 2), -2.1)], "at -2 or above"),
        ("means", [np.full((2, 2), np.inf)], "not finite"),
        ("means", [np.full((2, 2), 2 * LARGEST)], "too large"),
        ("means", [np.zeros((3, 2))], "dimension 'c'"),
        ("means", [np.zeros((2, 3)), np.zeros((2, 0))], "dimension 'p'"),
        ("products", [np.zeros((2, 3)), np.zeros(4)], "dimension"),
        ("products", [np.array([[1.0, 1.1], [1.1, 1.0]])], "no rows have"),
        ("products", [np.array([[-1.0, 0.0], [0.0, 1.0]])], "no rows have"),
        ("each", [(np.zeros(2),), (np.zeros(2),) * 3], "dimension 'items'"),
        ("each", [(np.zeros(2), np.zeros(3))], "dimension 'p'"),
        ("each", [np.zeros((2, 2)), 1.0], "a tuple was declared"),
        ("texts", [("yes",), ("yes", "no", "no")], "dimension 't'"),
        ("texts", [("yes", "maybe")], "none of 'yes', 'no'"),
        ("word", ["c", ""], "none of 'a', 'b'"),
        ("any_word", ["x" * (LONGEST + 1)], "too long"),
        ("any_word", ["odd"], "an odd word"),
        ("any_word", ["stumble", "unknown"], "not what was declared"),
        ("table", [{}, {"size": 1}], "no entry"),
        ("table", [{**GOOD["table"], "other": 1.0}], "not declared"),
        ("table", [1.0, ()], "a dict was declared"),
        ("table", [{**GOOD["table"], "size": 0}], "table.size: numbers that do not lie"),
        ("table", [{**GOOD["table"], "values": np.zeros(2)}], "table.values: dimension 'm'"),
        ("table", [{**GOOD["table"], "values": np.full(3, 5.1)}], "at 5 or below"),
        ("table", [{**GOOD["table"], "values": np.full(3, -2 * LARGEST)}], "too large"),
        ("table", [{**GOOD["table"], "more": (np.ones((1, 1)),)}], "table.more: 2 dimensions"),
        ("open", [{"size": 0.5}], "open.size"),
        ("open", [{"size": 1.0, "other": np.array([np.inf])}], "not finite"),
        ("open", [{"size": 1.0, "other": 1e101}, {"size": 1.0, "o": {"p": 1e101}}], "too large"),
        ("open", [{"size": 1.0, "x" * (LONGEST + 1): 1.0}], "too long"),
        ("big", [1.1e250], "between 0 and 1e+250"),
    ],
)
def test_every_rule(field: str, values: list[Any], words: str) -> None:
    for value in values:
        found = judged(**{field: value})
        assert words in found, (value, found)
        assert found.startswith("test-replies/answer")
        assert "12345" not in found, "no value, whatever a check says when it stumbles"


def test_no_value_is_shown() -> None:
    for field, value in (
        ("share", 7351.25),
        ("n", -7351),
        ("counts", np.full(3, 7351)),
        ("word", "7351"),
        ("means", np.zeros((7351, 2))),
        ("table", {**GOOD["table"], "size": -7351}),
    ):
        assert "7351" not in judged(**{field: value})


@pytest.mark.parametrize(
    ("matrix", "fine"),
    [
        (np.eye(3), True),
        (np.zeros((3, 3)), True),
        (np.ones((2, 2)), True),  # of rank one
        (1e90 * np.ones((2, 2)), True),
        (np.array([[1.0, 1.0 + 1e-8], [1.0 + 1e-8, 1.0]]), True),  # rounded
        (np.array([[1.0, 1.0 + 1e-4], [1.0 + 1e-4, 1.0]]), False),
        (np.array([[1.0, 0.5], [0.4, 1.0]]), False),
        (np.array([[0.0, 1e-9], [1e-9, 1.0]]), True),  # of a spread that rounds to none
        (np.array([[0.0, 2.0], [2.0, 1.0]]), False),
        (np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]]), False),
        (np.array([[1.0, 0.9, np.nan], [0.9, 1.0, 0.9], [np.nan, 0.9, 1.0]]), True),
        (np.array([[1.0, np.nan], [0.5, 1.0]]), False),
        (np.array([[1.0, 9.0, np.nan], [9.0, 1.0, 0.0], [np.nan, 0.0, 1.0]]), False),
        (np.array([[-1.0]]), False),
        (np.zeros((2, 3)), False),
        (np.zeros(4), False),
        (np.zeros((0, 0)), True),
        (np.stack([np.eye(2), np.full((2, 2), np.nan), np.ones((2, 2))]), True),  # of several
        (np.stack([np.eye(2), np.array([[1.0, 1.01], [1.01, 1.0]])]), False),
        (np.stack([np.eye(3), np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])]), False),
        (np.zeros((0, 3, 3)), True),
    ],
)
def test_products_that_rows_have(matrix: np.ndarray, fine: bool) -> None:
    assert is_gram(matrix) is fine


def test_what_the_run_knows_goes_before_the_request() -> None:
    fields = {**GOOD, "counts": np.ones(4, dtype=int)}
    fields["table"] = {"size": 1, "values": np.zeros(4)}
    assert refusal(Answer, fields, REQUEST, {**KNOWN, "m": 4}) == ""
    assert refusal(Answer, fields, REQUEST, {**KNOWN, "m": 3})


def test_order() -> None:
    """Hashes of ids are sorted and distinct."""

    def of(hashes: Any) -> str:
        rows = np.zeros((len(hashes), 16), dtype=np.uint8)
        rows[:, 0] = hashes
        fields = {"hashes": rows, "public": bytes(32), "tag": bytes(32)}
        return refusal(Hashed, fields, HashRequest())

    assert of([]) == of([3]) == of([1, 2, 9]) == ""
    assert "not sorted, or repeat" in of([2, 1]) and "repeat" in of([1, 1])
    short = {"hashes": np.zeros((0, 16), dtype=np.uint8), "public": bytes(31), "tag": bytes(32)}
    assert "no introduction" in refusal(Hashed, short, HashRequest())


@message("test-replies/sealed", version=1)
class ForARole:
    one: Any = Public("n", to="partner")
    some: Any = Public("n", to="partner", many=True)


@pytest.mark.parametrize(
    ("sender", "recipient", "fine"),
    [("a", "b", True), ("c", "b", False), ("a", "i", False), ("a", "x", False)],
)
def test_what_is_for_a_role_is_sealed_by_its_site(sender: str, recipient: str, fine: bool) -> None:
    roles = {"i": "initiator", "a": "partner", "b": "partner"}
    good, other = Sealed("a", "b", bytes(40)), Sealed(sender, recipient, bytes(40))
    kind = message_type(ForARole)

    def read(**fields: Any) -> None:
        data = pack({"m": kind.name, "v": kind.version, "f": fields})
        decode_reply(data, HashRequest(), {}, site="a", roles=roles)

    read(one=good, some=(good, good))
    for fields in ({"one": other, "some": ()}, {"one": good, "some": (good, other)}):
        if fine:
            read(**fields)
            continue
        with pytest.raises(WireError, match="not sealed by its site for 'partner'"):
            read(**fields)
    for plain in ({"one": np.zeros(3), "some": ()}, {"one": good, "some": (np.zeros(3),)}):
        with pytest.raises(WireError, match="not sealed"):
            read(**plain)

"""Rules of parameters: what they allow, what they say, and settings that cross the wire."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import ParameterError, ProtocolError, WireError
from consilience.parameters import (
    FLAG,
    LEFT_OUT,
    Allowed,
    allows,
    check,
    just,
    number,
    one_of,
    plain,
    several,
    whole,
)
from consilience.wire.codec import decode_message, encode_message, pack, unpack
from consilience.wire.message import message, states


@pytest.mark.parametrize(
    ("rule", "fine", "wrong", "words"),
    [
        (whole(1), [1, 7, np.int64(3)], [0, True, 1.0, "1", None], "a whole number of at least 1"),
        (whole(1, 9), [1, 9], [10], "a whole number from 1 to 9"),
        (number(0, below=1), [0, 0.5, np.float64(0.1)], [1, -1, math.nan, False, "0"], None),
        (number(above=0), [1e-9, 3], [0, math.inf], "a number above 0"),
        (number(0, 0.5), [0, 0.5], [0.6], "a number from 0 to 0.5"),
        (number(), [-3.0], [math.inf], "a finite number"),
        (one_of("a", "b"), ["a"], ["c", ["a"], None], "one of a, b"),
        (just(2, 5, 10), [2, 10], [3, 2.0, True], "2, 5 or 10"),
        (just(1), [1], [True], "1"),
        (whole(0) | LEFT_OUT, [0, None], [-1], "a whole number of at least 0, or left out"),
        (FLAG, [True, np.bool_(False)], [0, None], "true or false"),
        (several(whole(1), 1, 2), [(1,), [2, 3]], [(), (1, 1), (1, 2, 3), 1, (0,)], None),
        (several(whole(1), different=False), [(), (1, 1)], [{1}], None),
        (whole(0).but(lambda v: v % 2 == 0, ", even"), [0, 2], [1, -2], None),
    ],
)
def test_a_rule_holds_and_says_what_it_wants(
    rule: Allowed, fine: list[Any], wrong: list[Any], words: str | None
) -> None:
    assert all(rule.holds(value) for value in fine)
    assert not any(rule.holds(value) for value in wrong)
    assert words is None or rule.words == words


def test_words_of_bounds() -> None:
    assert number(0, below=1).words == "a number of at least 0 and below 1"
    assert several(whole(1), 1, 2).words == "1 to 2 different values, each " + whole(1).words
    assert whole(0).but(bool, ", not 0").words == "a whole number of at least 0, not 0"


def test_the_first_that_is_wrong_is_said() -> None:
    rules = {"a": whole(1), "b": whole(1)}
    check(rules, {"a": 1, "b": 1, "c": "of no rule"})
    with pytest.raises(ParameterError, match=r"^b must be a whole number of at least 1, but 0 was"):
        check(rules, {"a": 1, "b": 0})


@dataclasses.dataclass(frozen=True)
class Terms:
    """Settings of a test."""

    depth: int = allows(whole(1, 5))
    levels: tuple[str, ...] = ()
    share: float = allows(number(0, 1), default=0.5)

    def __post_init__(self) -> None:
        if self.depth == 5 and self.share == 0:
            raise ParameterError("depth 5 needs a share")


@message("tests/terms", version=1)
class Asked:
    """Settings alone."""

    settings: Terms = states(Terms)


def altered(**fields: Any) -> bytes:
    raw = unpack(encode_message(Asked(Terms(2))))
    raw["f"]["settings"] |= fields
    return pack(raw)


def test_settings_cross_the_wire_as_an_object() -> None:
    sent = Terms(3, ("a", "b"), 0.25)
    assert decode_message(encode_message(Asked(sent))).settings == sent
    assert plain(sent) == {"depth": 3, "levels": ("a", "b"), "share": 0.25}


@pytest.mark.parametrize("wrong", [{"depth": 6}, {"depth": True}, {"more": 1}, {"share": math.nan}])
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=r"tests/terms\.settings"):
        decode_message(altered(**wrong))


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(WireError, match="do not go together"):
        decode_message(altered(depth=5, share=0.0))
    with pytest.raises(ProtocolError, match="must hold Terms"):
        encode_message(Asked({"depth": 2}))  # type: ignore[arg-type]

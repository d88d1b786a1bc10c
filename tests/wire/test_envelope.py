from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import WireError
from consilience.wire.codec import pack, unpack
from consilience.wire.envelope import Reply, Request, Verdict

REQUEST = Request("r", "s", "m", 1, "0", 2, 1, 1, 1, "step", "a", 7, b"message")
VERDICTS = Reply.verdicts_to_wire(
    (
        Verdict("n", "count", "released"),
        Verdict("eta", "projection", "released", 0.5, "3 of 6"),
    )
)
REPLY = Reply("r", 2, 1, "step", "a", "reply", b"message", "", VERDICTS)


@pytest.mark.parametrize("envelope", [REQUEST, REPLY])
def test_round_trip(envelope: Any) -> None:
    data = envelope.to_bytes()
    back = type(envelope).from_bytes(data)
    assert back == envelope
    assert back.to_bytes() == data


def test_one_kind_is_not_the_other() -> None:
    with pytest.raises(WireError, match="not a reply"):
        Reply.from_bytes(REQUEST.to_bytes())
    with pytest.raises(WireError, match="not a request"):
        Request.from_bytes(REPLY.to_bytes())


@pytest.mark.parametrize("envelope", [REQUEST, REPLY])
def test_no_prefix_is_an_envelope(envelope: Any) -> None:
    data = envelope.to_bytes()
    for cut in range(len(data)):
        with pytest.raises(WireError):
            type(envelope).from_bytes(data[:cut])


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Request)])
@pytest.mark.parametrize("value", [None, True, 1.0, (), {}, np.arange(3)], ids=repr)
def test_every_field_of_a_request_is_checked(field: str, value: Any) -> None:
    raw = {**unpack(REQUEST.to_bytes()), field: value}
    with pytest.raises(WireError):
        Request.from_bytes(pack(raw))


@pytest.mark.parametrize("field", ["round", "attempt", "after_round", "after_attempt"])
def test_a_negative_number_is_no_place_in_a_run(field: str) -> None:
    """A site would not find what it answered there, and forget that it did."""
    with pytest.raises(WireError, match=f"request.{field} is negative"):
        Request.from_bytes(dataclasses.replace(REQUEST, **{field: -1}).to_bytes())  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["kind", "schema", "status", "verdicts", "message", "reason"])
@pytest.mark.parametrize("value", [None, 2, (1,), ({},), np.arange(3)], ids=repr)
def test_fields_of_a_reply_are_checked(field: str, value: Any) -> None:
    raw = {**unpack(REPLY.to_bytes()), field: value}
    with pytest.raises(WireError):
        Reply.from_bytes(pack(raw))


def test_more_or_fewer_fields() -> None:
    raw = unpack(REQUEST.to_bytes())
    with pytest.raises(WireError, match="declared fields"):
        Request.from_bytes(pack({**raw, "policy": "simulation"}))
    with pytest.raises(WireError, match="declared fields"):
        Request.from_bytes(pack({k: v for k, v in raw.items() if k != "seed"}))
    with pytest.raises(WireError, match="wire schema 2"):
        Request.from_bytes(pack({**raw, "schema": 2}))


@pytest.mark.parametrize(
    "verdict",
    [
        {k: v for k, v in VERDICTS[1].items() if k != "epsilon"},
        {k: v for k, v in VERDICTS[1].items() if k != "revealed"},
        {**VERDICTS[1], "policy": "simulation"},
        {**VERDICTS[1], "epsilon": 1},
        *({**VERDICTS[1], "epsilon": e} for e in (-0.5, float("nan"), float("inf"))),
        *({**VERDICTS[1], "verdict": v} for v in ("asked-again", "sent", "refused", "", "x")),
        {**VERDICTS[1], "field": "n" * 200},
        {**VERDICTS[1], "field": 1},
        *({**VERDICTS[1], "revealed": r} for r in (3, None, "3", "3 of", "-1 of 6", "3 of 6 ")),
        {**VERDICTS[1], "revealed": "1" * 10 + " of 6"},
        "released",
    ],
)
def test_malformed_verdicts(verdict: Any) -> None:
    with pytest.raises(WireError, match="verdict"):
        Reply.from_bytes(dataclasses.replace(REPLY, verdicts=(verdict,)).to_bytes())


def test_oversized_reason() -> None:
    Reply.from_bytes(dataclasses.replace(REPLY, reason="x" * 2000).to_bytes())
    with pytest.raises(WireError, match="oversized"):
        Reply.from_bytes(dataclasses.replace(REPLY, reason="x" * 2001).to_bytes())

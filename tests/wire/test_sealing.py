from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.exceptions import DataError, ProtocolError, StudyError, WireError
from consilience.testing.recalling import MUTATIONS
from consilience.wire import sealing
from consilience.wire.codec import decode_message, encode_message, pack, unpack
from consilience.wire.disclosure import Released, count, per_record, received
from consilience.wire.message import (
    Aggregate,
    Disclosure,
    FieldSpec,
    PerRecord,
    Public,
    Sealed,
    check_shape,
    message,
)
from consilience.wire.sealing import (
    Keyring,
    check_peers,
    common_ids,
    hashed_ids,
    introduce,
    open_message,
    positions,
    seal_message,
    senders,
)
from consilience.wire.transcript import Transcript, describe_shape, read_transcript

PARTNER_KEY = bytes(range(32))
RUN = "run-1"
SITES = ("a", "b", "c")
PRIVATE = {site: bytes([i + 1]) * 32 for i, site in enumerate(SITES)}
PREDICTOR = np.random.default_rng(3).normal(size=12)
RESPONSE = np.arange(12, dtype=float)


@message("sealing-test/fit", version=1)
class Fit:
    n: Released = Aggregate("", "rows", kind="int")
    predictor: Released = PerRecord("n", to="initiator")
    response: Released = PerRecord("n", to="initiator")
    partner: str = Public("", kind="str")


@message("sealing-test/asked", version=1)
class Asked:
    predictor: Released = PerRecord("n", to="initiator", origin="sealing-test/fit")
    weights: np.ndarray = Public("n", to="site")


@message("sealing-test/several", version=1)
class Several:
    predictor: Released = PerRecord("n", to="initiator", many=True, origin="sealing-test/fit")


@message("sealing-test/nest", version=1)
class Nest:
    predictor: Released = PerRecord("*by partner", to="initiator", origin="sealing-test/fit")


@message("sealing-test/refit", version=1)
class Refit:
    """Another step's message with a field of the same name."""

    predictor: Released = PerRecord("n", to="initiator")


@message("sealing-test/told", version=1)
class Told:
    advice: tuple[str, ...] = Public("k", kind="str", to="partner")


@message("sealing-test/plain", version=1)
class Plain:
    predictor: Released = PerRecord("n")
    anything: Any = Public("", kind="any")


def introductions(run: str = RUN, key: bytes = PARTNER_KEY) -> dict[str, tuple[bytes, bytes]]:
    return {site: introduce(PRIVATE[site], key, run, site) for site in SITES}


def keyring(site: str, run: str = RUN, key: bytes = PARTNER_KEY) -> Keyring:
    peers = check_peers(key, run, introductions(run, key))
    return Keyring(PRIVATE[site], key, run, site, peers)


def fit(predictor: np.ndarray = PREDICTOR, response: np.ndarray = RESPONSE) -> Fit:
    return Fit(
        n=count(12),
        predictor=per_record(predictor),
        response=per_record(response),
        partner="b",
    )


def sealed_fit(sender: str = "b", to: str = "a", run: str = RUN, **values: np.ndarray) -> Fit:
    return seal_message(fit(**values), keyring(sender, run), {"predictor": to, "response": to})


def asked(sealed: Any) -> Asked:
    """What the coordinator passes on."""
    message = Asked(received(sealed, Disclosure.PER_RECORD), np.ones(12))
    return decode_message(encode_message(message))


# --- round trips ----------------------------------------------------------------------------


def test_a_sealed_field_crosses_and_is_opened() -> None:
    at_coordinator = decode_message(encode_message(sealed_fit()))
    assert isinstance(at_coordinator.predictor.value, Sealed)
    assert at_coordinator.predictor.disclosure is Disclosure.PER_RECORD
    assert at_coordinator.n.value == 12 and at_coordinator.partner == "b"
    assert senders(at_coordinator) == {"predictor": ("b",), "response": ("b",)}
    opened = open_message(asked(at_coordinator.predictor.value), keyring("a"))
    assert np.array_equal(opened.predictor.value, PREDICTOR)
    assert opened.predictor.disclosure is Disclosure.PER_RECORD
    assert senders(opened) == {}


def test_no_value_is_in_the_bytes() -> None:
    data = encode_message(sealed_fit())
    clear = encode_message(fit())
    for number in (*PREDICTOR, *RESPONSE[1:]):
        assert np.float64(number).tobytes() in clear
        assert np.float64(number).tobytes() not in data


def test_a_message_without_sealed_fields_stays_as_it_is() -> None:
    plain = Plain(per_record(PREDICTOR), 1)
    assert seal_message(plain, keyring("b"), {}) is plain
    assert open_message(plain, keyring("b")) is plain


def test_public_fields_for_a_role_may_be_sealed() -> None:
    sealed = seal_message(Told(("x", "y")), keyring("a"), {"advice": "c"})
    opened = open_message(decode_message(encode_message(sealed)), keyring("c"))
    assert opened.advice == ("x", "y")
    plain = Told(("x", "y"))
    assert open_message(seal_message(plain, keyring("a"), {}), keyring("c")) is plain


def test_values_of_several_senders_stand_side_by_side() -> None:
    items = tuple(sealed_fit(site).predictor.value for site in ("c", "b"))
    sent = decode_message(encode_message(Several(received(items, Disclosure.PER_RECORD))))
    assert senders(sent) == {"predictor": ("c", "b")}
    opened = open_message(sent, keyring("a")).predictor.value
    assert len(opened) == 2 and all(np.array_equal(v, PREDICTOR) for v in opened)


def test_a_whole_tuple_may_be_sealed() -> None:
    content = received((PREDICTOR, RESPONSE[:3]), Disclosure.PER_RECORD)
    sealed = seal_message(Several(content), keyring("b"), {"predictor": "a"})
    opened = open_message(decode_message(encode_message(sealed)), keyring("a")).predictor.value
    assert np.array_equal(opened[0], PREDICTOR) and np.array_equal(opened[1], RESPONSE[:3])


def test_the_same_value_has_the_same_bytes() -> None:
    assert encode_message(sealed_fit()) == encode_message(sealed_fit())


def test_each_field_direction_recipient_and_run_has_other_bytes() -> None:
    same = {"predictor": PREDICTOR, "response": PREDICTOR}
    seen = Counter()
    for sender, to, run in (("b", "a", RUN), ("a", "b", RUN), ("b", "c", RUN), ("b", "a", "run-2")):
        sealed = sealed_fit(sender, to, run, **same)
        seen.update((sealed.predictor.value.data, sealed.response.value.data))
    assert len(seen) == 8


def test_keys_do_not_show() -> None:
    shown = repr(keyring("a"))
    assert repr(PRIVATE["a"]) not in shown and repr(PARTNER_KEY) not in shown
    assert repr(sealed_fit().predictor.value) == "Sealed(sender='b', recipient='a')"


# --- who may not read, and what may not be altered ------------------------------------------


def refused(message: Any, reader: Keyring) -> str:
    with pytest.raises(WireError) as caught:
        open_message(message, reader)
    assert caught.value.public != WireError.default_public
    return caught.value.public


def test_a_value_for_another_site_is_refused() -> None:
    sealed = sealed_fit().predictor.value
    assert "is sealed for another site" in refused(asked(sealed), keyring("c"))
    assert "is sealed for another site" in refused(asked(sealed), keyring("b"))


@pytest.mark.parametrize("change", [{"recipient": "c"}, {"sender": "c"}])
def test_a_relabelled_value_is_refused(change: dict[str, str]) -> None:
    sealed = dataclasses.replace(sealed_fit().predictor.value, **change)
    assert "damaged" in refused(asked(sealed), keyring(change.get("recipient", "a")))


def test_a_value_turned_back_on_its_sender_is_refused() -> None:
    sealed = dataclasses.replace(sealed_fit().predictor.value, sender="a", recipient="b")
    assert "damaged" in refused(asked(sealed), keyring("b"))


def test_exchanged_fields_are_refused() -> None:
    sealed = sealed_fit()
    assert "another field" in refused(asked(sealed.response.value), keyring("a"))
    exchanged = dataclasses.replace(sealed, predictor=sealed.response, response=sealed.predictor)
    assert "another field" in refused(exchanged, keyring("a"))


def test_a_value_of_another_run_is_refused() -> None:
    sealed = sealed_fit(run="run-2").predictor.value
    assert "run" in refused(asked(sealed), keyring("a"))


def test_a_reader_without_the_partner_key_is_refused() -> None:
    """Even one who has the private key of the recipient, and the right public keys."""
    reader = dataclasses.replace(keyring("a"), partner_key=b"another partner key")
    assert "damaged" in refused(asked(sealed_fit().predictor.value), reader)


def test_an_unknown_sender_is_refused() -> None:
    sealed = dataclasses.replace(sealed_fit().predictor.value, sender="z")
    assert "without a key" in refused(asked(sealed), keyring("a"))


@pytest.mark.parametrize("weak", [bytes(32), b"\x01" + bytes(31)])
def test_public_keys_that_give_no_secret_are_refused(weak: bytes) -> None:
    reader = dataclasses.replace(keyring("a"), peers={"b": weak})
    assert "without a key" in refused(asked(sealed_fit().predictor.value), reader)


def test_every_changed_byte_is_noticed() -> None:
    sealed = sealed_fit().predictor.value
    reader = keyring("a")
    for place in range(len(sealed.data)):
        data = bytearray(sealed.data)
        data[place] ^= 1 << (place % 8)
        altered = dataclasses.replace(sealed, data=bytes(data))
        assert "damaged" in refused(asked(altered), reader)
    for data in (sealed.data[:-1], sealed.data + b"\0", sealed.data[:17], sealed.data[1:]):
        assert "damaged" in refused(asked(dataclasses.replace(sealed, data=data)), reader)
    for data in (b"", sealed.data[:15]):  # not even as long as a tag: also without a codec before
        short = received(dataclasses.replace(sealed, data=data), Disclosure.PER_RECORD)
        assert "damaged" in refused(Asked(short, np.ones(12)), reader)


def test_a_value_of_another_step_is_refused() -> None:
    """A coordinator answers one step's question with what was sealed in another, same field."""
    reader = keyring("a")
    refit = seal_message(Refit(per_record(PREDICTOR)), keyring("b"), {"predictor": "a"})
    assert "in another message" in refused(asked(refit.predictor.value), reader)
    assert np.array_equal(open_message(refit, reader).predictor.value, PREDICTOR)
    in_fit = dataclasses.replace(sealed_fit(), predictor=refit.predictor)
    assert "in another message" in refused(in_fit, reader)
    several = Several(received((sealed_fit().predictor.value,), Disclosure.PER_RECORD))
    assert np.array_equal(open_message(several, reader).predictor.value[0], PREDICTOR)
    mixed = received((sealed_fit().predictor.value, refit.predictor.value), Disclosure.PER_RECORD)
    assert "in another message" in refused(Several(mixed), reader)


def forged(value: Any, name: str = "predictor") -> Sealed:
    """What a partner that has the keys can make with other code than ours."""
    from consilience.wire import sealing

    cipher = sealing.cipher(keyring("b"), "a", "b", "a")
    where = (RUN, "b", "a", "sealing-test/fit", name)
    return Sealed("b", "a", cipher.encrypt(value, [sealing._bound(*where)]))


INSIDE = Sealed("b", "a", bytes(40))


@pytest.mark.parametrize(
    "value",
    [
        b"\xc1",
        b"\x93\x01",
        pack("a text"),
        pack(PREDICTOR[:5]),
        pack(PREDICTOR[None]),
        pack(np.full(12, np.nan)),
        pack(np.arange(12)),
        pack(None),
        pack({"x": PREDICTOR}),
        pack(INSIDE),
        pack((INSIDE,)),
    ],
)
def test_what_a_hostile_partner_seals_is_checked(value: bytes) -> None:
    """Five numbers are refused because another field of the question says n = 12."""
    with pytest.raises(WireError):
        open_message(asked(forged(value)), keyring("a"))


@pytest.mark.parametrize("value", [INSIDE, (INSIDE,), (PREDICTOR, INSIDE)])
def test_a_sealed_value_inside_a_sealed_one_is_refused(value: Any) -> None:
    sent = Several(received(forged(pack(value)), Disclosure.PER_RECORD))
    with pytest.raises(WireError):
        open_message(sent, keyring("a"))


def test_values_that_were_not_sealed_are_refused() -> None:
    """Otherwise a coordinator that cannot read a predictor could send one of its own choice."""
    assert "not sealed" in refused(asked(PREDICTOR), keyring("a"))
    mixed = (sealed_fit().predictor.value, PREDICTOR)
    for value in (mixed, (PREDICTOR,)):
        sent = Several(received(value, Disclosure.PER_RECORD))
        assert "not sealed" in refused(sent, keyring("a"))
    for nothing in ((), (np.zeros(0),)):
        sent = Several(received(nothing, Disclosure.PER_RECORD))
        assert len(open_message(sent, keyring("a")).predictor.value) == len(nothing)
    nest = Nest(received({"b": PREDICTOR}, Disclosure.PER_RECORD))
    assert "not sealed" in refused(nest, keyring("a"))
    sealed = seal_message(nest, keyring("b"), {"predictor": "a"})
    opened = open_message(decode_message(encode_message(sealed)), keyring("a"))
    assert np.array_equal(opened.predictor.value["b"], PREDICTOR)


# --- introductions --------------------------------------------------------------------------


def test_peers_are_the_public_keys() -> None:
    peers = check_peers(PARTNER_KEY, RUN, introductions())
    assert list(peers) == list(SITES)
    assert len(set(peers.values())) == 3


def swapped(how: str) -> dict[str, tuple[bytes, bytes]]:
    found: dict[str, Any] = introductions()
    own = introduce(bytes([77]) * 32, b"the coordinator's own key", RUN, "b")
    if how == "two sites exchanged":
        found["b"], found["c"] = found["c"], found["b"]
    elif how == "the coordinator's own":
        found["b"] = own
    elif how == "its key under another's tag":
        found["b"] = (own[0], found["b"][1])
    elif how == "of another run":
        found["b"] = introductions("run-2")["b"]
    elif how == "under another name":
        found["d"] = found["b"]
    elif how == "short":
        found["b"] = (found["b"][0][:31], found["b"][1])
    elif how == "no tag":
        found["b"] = (found["b"][0], b"")
    elif how == "no pair":
        found["b"] = found["b"][0]
    elif how == "texts":
        found["b"] = ("x" * 32, "y" * 32)
    return found


@pytest.mark.parametrize(
    "how",
    [
        "two sites exchanged",
        "the coordinator's own",
        "its key under another's tag",
        "of another run",
        "under another name",
        "short",
        "no tag",
        "no pair",
        "texts",
    ],
)
def test_introductions_that_a_coordinator_altered_are_refused(how: str) -> None:
    with pytest.raises(WireError) as caught:
        check_peers(PARTNER_KEY, RUN, swapped(how))
    assert caught.value.public == "a party's key was not made with the partner key"


def test_sites_with_different_partner_keys_do_not_meet() -> None:
    with pytest.raises(WireError, match="compare the partner keys"):
        check_peers(bytes(32), RUN, introductions())


def test_short_keys_are_refused() -> None:
    with pytest.raises(StudyError, match="partner key"):
        introduce(PRIVATE["a"], b"secret", RUN, "a")
    with pytest.raises(StudyError, match="partner key"):
        hashed_ids(["x"], b"secret", RUN)
    with pytest.raises(ProtocolError, match="32 bytes"):
        introduce(b"short", PARTNER_KEY, RUN, "a")


# --- declarations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipients", "sentence"),
    [
        ({"predictor": "a", "response": "a", "n": "a"}, "audience is no role"),
        ({"predictor": "a", "response": "a", "nothing": "a"}, "audience is no role"),
        ({"predictor": "a"}, "no site is named"),
    ],
)
def test_seals_and_roles_belong_together(recipients: dict[str, str], sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        seal_message(fit(), keyring("b"), recipients)


def test_what_does_not_fit_is_not_sealed() -> None:
    with pytest.raises(ProtocolError) as caught:
        seal_message(fit(np.full(12, np.inf)), keyring("b"), {"predictor": "a", "response": "a"})
    assert caught.value.public == "the reply does not fit its declaration of field 'predictor'"
    with pytest.raises(ProtocolError, match="sealed already"):
        seal_message(sealed_fit(), keyring("b"), {"predictor": "a", "response": "a"})
    with pytest.raises(WireError, match="no usable key"):
        seal_message(fit(), keyring("b"), {"predictor": "z", "response": "z"})


@pytest.mark.parametrize("audience", ["coordinator", "all", "site"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [((), "any"), ((), "str"), (("n",), "float"), (("n",), "str"), ("nest", "any")],
)
def test_a_sealed_value_for_the_coordinator_is_refused(
    audience: str, many: bool, shape: Any, kind: Any
) -> None:
    sealed = sealed_fit().predictor.value
    spec = FieldSpec(Disclosure.PUBLIC, shape, kind, audience, many)
    for value in (sealed, (sealed,), ({"x": (sealed,)},), {"x": sealed}):
        with pytest.raises(WireError):
            check_shape("m.f", spec, value, {})


def test_a_sealed_value_is_the_whole_field_or_an_item() -> None:
    sealed = sealed_fit().predictor.value
    role = FieldSpec(Disclosure.PUBLIC, "nest", "any", "initiator")
    check_shape("m.f", role, sealed, {})
    check_shape("m.f", dataclasses.replace(role, many=True), (sealed, sealed), {})
    for value in ((sealed,), {"x": sealed}, {"x": (1.0, (sealed,))}):
        with pytest.raises(WireError, match="inside"):
            check_shape("m.f", role, value, {})


def test_a_sealed_value_in_a_plain_field_does_not_cross() -> None:
    sealed = sealed_fit().predictor.value
    with pytest.raises(WireError, match="for 'coordinator'"):
        encode_message(Plain(received(sealed, Disclosure.PER_RECORD), 1))
    with pytest.raises(WireError, match="for 'coordinator'"):
        encode_message(Plain(per_record(PREDICTOR), sealed))
    clear = unpack(encode_message(Plain(per_record(PREDICTOR), 1)))
    for fields in ({"predictor": sealed}, {"anything": sealed}, {"anything": (sealed,)}):
        with pytest.raises(WireError):
            decode_message(pack({**clear, "f": {**clear["f"], **fields}}))


# --- bytes ----------------------------------------------------------------------------------

RAW = {"$": "sealed", "f": "b", "t": "a", "b": bytes(40)}


def test_the_layout_is_read() -> None:
    assert unpack(msgpack.packb(RAW)) == Sealed("b", "a", bytes(40))
    assert pack(Sealed("b", "a", bytes(40))) == msgpack.packb(RAW)


@pytest.mark.parametrize(
    "raw",
    [
        {**RAW, "b": b""},
        {**RAW, "b": bytes(16)},
        {**RAW, "b": "x" * 40},
        {**RAW, "b": None},
        {**RAW, "f": ""},
        {**RAW, "f": "x" * 101},
        {**RAW, "f": b"b"},
        {**RAW, "t": 1},
        {**RAW, "t": ["a"]},
        {**RAW, "x": 1},
        {**RAW, "$": "Sealed"},
        {**RAW, "$": ["sealed"]},
        {**RAW, "$": None},
        {"$": "sealed"},
        {"$": "sealed", "f": "b", "t": "a"},
        {"$": "sealed", "d": "<f8", "s": [0], "b": b""},
    ],
)
def test_malformed_sealed_values_are_refused(raw: dict[str, Any]) -> None:
    for packed in (msgpack.packb(raw), msgpack.packb([raw]), msgpack.packb({"x": raw})):
        with pytest.raises(WireError):
            unpack(packed)


@pytest.mark.parametrize(
    "sealed",
    [Sealed("", "a", bytes(40)), Sealed("b", "a", b""), Sealed("b", "a", "x" * 40)],  # type: ignore[arg-type]
)
def test_malformed_sealed_values_are_not_written(sealed: Sealed) -> None:
    with pytest.raises(ProtocolError):
        pack(sealed)


def test_truncated_messages_are_refused() -> None:
    data = encode_message(sealed_fit())
    for cut in range(len(data)):
        with pytest.raises(WireError):
            decode_message(data[:cut])


def test_altered_bytes_never_give_another_value() -> None:
    """Whatever is done to the bytes: an error, or the values that were sealed."""
    data = encode_message(sealed_fit())
    reader = keyring("a")
    rng = np.random.default_rng(5)
    named = [alter(data) for _, alter in MUTATIONS.values()]
    flipped = []
    for _ in range(600):
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        flipped.append(bytes(changed))
    refusals = 0
    for altered in (*named, *flipped):
        if altered is None:
            continue
        try:
            opened = open_message(decode_message(altered), reader)
        except WireError:
            refusals += 1
            continue
        assert np.array_equal(opened.predictor.value, PREDICTOR)
        assert np.array_equal(opened.response.value, RESPONSE)
    assert refusals > 500, "nearly all of the bytes are ciphertext or structure"


# --- transcript -----------------------------------------------------------------------------


def test_the_transcript_shows_that_a_value_was_sealed(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    transcript = Transcript(path, RUN, b"salt")
    said = {"field": "predictor", "rule": "projection", "verdict": "released", "epsilon": 0.0}
    transcript.message(
        sealed_fit(),
        round_=1,
        step="s",
        site="b",
        direction="from-site",
        verdicts=({**said, "revealed": "3 of 6"},),
        sealed=True,
    )
    transcript.commit()
    lines = {line.field: line for line in read_transcript(path)}
    assert lines["predictor"].shape == "sealed"
    assert lines["predictor"].audience == "initiator"
    assert lines["predictor"].revealed == "3 of 6"
    assert lines["predictor"].protection == "sealed to a", "its own reader, inside the other seal"
    assert lines["n"].protection == "sealed to coordinator"
    assert lines["n"].revealed == "" and lines["response"].revealed == ""
    assert describe_shape((Sealed("b", "a", bytes(40)),) * 2) == "2 of [sealed]"
    altered = path.read_text().replace("3 of 6", "1 of 6")
    assert json.loads(altered.splitlines()[1])["revealed"] == "1 of 6"
    path.write_text(altered)
    with pytest.raises(Exception, match="altered"):
        read_transcript(path)


# --- ids ------------------------------------------------------------------------------------

names = st.text(st.sampled_from("abé1 "), min_size=1, max_size=3)


@settings(max_examples=150)
@given(st.lists(st.lists(names, max_size=15), min_size=1, max_size=4))
def test_ids_match_as_sets_do(sites: list[list[str]]) -> None:
    """Matched ids are those that every site has exactly once, and rows point at them."""
    hashes = [hashed_ids(ids, PARTNER_KEY, RUN) for ids in sites]
    once = [{each for each, k in Counter(ids).items() if k == 1} for ids in sites]
    common = common_ids(hashes)
    assert common.shape == (len(set.intersection(*once)), 16) and common.dtype == np.uint8
    rows = [positions(h, common) for h in hashes]
    matched = [[ids[i] for i in at] for ids, at in zip(sites, rows, strict=True)]
    assert all(each == matched[0] for each in matched)
    assert set(matched[0]) == set.intersection(*once)
    assert np.array_equal(common, common_ids(hashes[::-1]))
    assert [bytes(row) for row in common] == sorted(bytes(row) for row in common)


def test_hashes_depend_on_key_run_and_id() -> None:
    ids = np.array(["x", "y", "1", "1 ", "01", "é", "e\u0301"])
    found = [
        hashed_ids(ids, PARTNER_KEY, RUN),
        hashed_ids(ids, PARTNER_KEY, "run-2"),
        hashed_ids(ids, PARTNER_KEY[::-1], RUN),
    ]
    assert all(h.shape == (7, 16) and h.dtype == np.uint8 for h in found)
    assert len({bytes(row) for h in found for row in h}) == 21
    assert np.array_equal(found[0], hashed_ids(ids.astype(object), PARTNER_KEY, RUN))


def test_order_is_byte_by_byte() -> None:
    """Zeros at the end and bytes above 127 count like any other."""
    rows = np.zeros((4, 16), dtype=np.uint8)
    rows[0, 0], rows[1, 0], rows[2, 15] = 255, 127, 1
    assert np.array_equal(common_ids([rows, rows[::-1]]), rows[[3, 2, 1, 0]])
    assert positions(rows, rows[[3, 2, 1, 0]]).tolist() == [3, 2, 1, 0]


def test_no_common_ids() -> None:
    none = hashed_ids([], PARTNER_KEY, RUN)
    some = hashed_ids(["x"], PARTNER_KEY, RUN)
    assert none.shape == common_ids([]).shape == common_ids([some, none]).shape == (0, 16)
    assert common_ids([none, some]).shape == (0, 16)
    assert positions(some, none).shape == positions(none, none).shape == (0,)


@pytest.mark.parametrize("bad", ["", None, 1, float("nan"), b"x"])
def test_missing_ids_are_refused(bad: Any) -> None:
    with pytest.raises(DataError, match="missing"):
        hashed_ids(["x", bad], PARTNER_KEY, RUN)


def test_common_ids_of_a_hostile_coordinator_are_refused() -> None:
    own = hashed_ids(["x", "y", "z", "z"], PARTNER_KEY, RUN)
    common = common_ids([own])
    assert len(common) == 2
    foreign = hashed_ids(["w"], PARTNER_KEY, RUN)
    twice = own[[2]]
    for wrong in (
        common[::-1],
        np.repeat(common, 2, axis=0),
        foreign,
        twice,
        common[:, :15],
        common.astype(np.int64),
        common.ravel(),
        common.tobytes(),
    ):
        with pytest.raises(WireError) as caught:
            positions(own, wrong)  # type: ignore[arg-type]
        assert caught.value.public != WireError.default_public
    with pytest.raises(WireError):
        positions(hashed_ids([], PARTNER_KEY, RUN), common)
    with pytest.raises(WireError):
        common_ids([own, own[:, :8]])


def test_importing_the_module_does_not_load_cryptography() -> None:
    code = (
        "import sys, consilience.wire.sealing; "
        "sys.exit(any(m.split('.')[0] == 'cryptography' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


AWKWARD = [
    "7",
    "007",
    "7.0",
    "é",
    "e\u0301",
    "日本",
    " x ",
    "None",
    "nan",
    "\ud800",
    "a" * 500,
    "\x01",
]


def test_ids_are_hashed_one_by_one_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.cmac import CMAC

    key = hmac.digest(PARTNER_KEY, pack([sealing._IDS, RUN]), "sha256")

    def plain(text: str) -> bytes:
        one = CMAC(AES(key))
        one.update(text.encode("utf-8", "surrogatepass"))
        return one.finalize()

    monkeypatch.setattr(sealing, "_CHUNK", 5)
    some = [*AWKWARD, *("b" * n for n in (15, 16, 17, 31, 32, 33))]
    for ids in (some, np.array(some), np.array(some, dtype=object), iter(some)):
        assert hashed_ids(ids, PARTNER_KEY, RUN).tobytes() == b"".join(map(plain, some))


@pytest.mark.parametrize("wrong", [7, 7.0, None, "", b"x", float("nan")])
def test_what_is_no_text_is_no_id(wrong: object) -> None:
    with pytest.raises(DataError, match="missing or not a text"):
        hashed_ids(np.array(["a", wrong], dtype=object), PARTNER_KEY, RUN)


def test_positions_where_first_halves_agree() -> None:
    rng = np.random.default_rng(5)
    hashes = rng.integers(0, 256, size=(400, 16), dtype=np.uint8)
    hashes[:, :8] = hashes[:8].repeat(50, axis=0)[:, :8]  # eight first halves for 400 rows
    common = common_ids([hashes])
    assert len(common) == 400
    assert [bytes(h) for h in common] == sorted(bytes(h) for h in hashes)
    assert (hashes[positions(hashes, common)] == common).all()
    for wrong in (common[::-1], np.concatenate([common[:1], common])):
        with pytest.raises(WireError, match="increasing"):
            positions(hashes, wrong)

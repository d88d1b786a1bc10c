"""Keys and envelopes: what one key signed for one place is worth nothing anywhere else."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from hypothesis import given
from hypothesis import strategies as st

from consilience.exceptions import ConsilienceError, RunError, SignatureError, StudyError, WireError
from consilience.wire import signing
from consilience.wire.signing import (
    BLOCK,
    OVERHEAD,
    Context,
    OtherReaderError,
    SigningKey,
    check_sealed,
    public_key,
    unseal,
)

KEY = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
CONTEXT = Context("run-1", 2, 1, "ask", KEY.public, "boston", about="")


def test_public_form_is_that_of_rfc_8032() -> None:
    # RFC 8032, section 7.1, test 1.
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    key = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(secret))
    assert key.public == "ed25519:" + base64.b64encode(public).decode()
    assert key.public in repr(key)
    assert secret.hex() not in repr(key)


@given(st.binary(max_size=300))
def test_round_trip_and_same_bytes(body: bytes) -> None:
    sealed = KEY.seal(CONTEXT, body)
    assert sealed == KEY.seal(CONTEXT, body)
    assert len(sealed) == len(body) + OVERHEAD
    assert unseal(sealed, public=KEY.public, context=CONTEXT) == body


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"round": 3},
        {"attempt": 2},
        {"direction": "reply"},
        {"sender": "boston"},
        {"recipient": "leeds"},
        {"about": "00"},
        {"sender": "boston", "recipient": KEY.public, "direction": "reply"},
    ],
)
def test_another_context_is_refused(change: dict[str, str]) -> None:
    sealed = KEY.seal(CONTEXT, b"body")
    with pytest.raises(SignatureError, match="not signed by"):
        unseal(sealed, public=KEY.public, context=dataclasses.replace(CONTEXT, **change))


def test_neighbouring_fields_do_not_run_into_each_other() -> None:
    sealed = KEY.seal(dataclasses.replace(CONTEXT, sender="ab", recipient="c"), b"body")
    with pytest.raises(SignatureError):
        other = dataclasses.replace(CONTEXT, sender="a", recipient="bc")
        unseal(sealed, public=KEY.public, context=other)


def test_another_key_is_refused() -> None:
    with pytest.raises(SignatureError):
        unseal(KEY.seal(CONTEXT, b"x"), public=SigningKey.generate().public, context=CONTEXT)


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    sealed = KEY.seal(CONTEXT, b"a body")
    for position in range(len(sealed)):
        for data in (
            sealed[:position],
            sealed[:position] + bytes([sealed[position] ^ 0x40]) + sealed[position + 1 :],
        ):
            with pytest.raises(WireError):
                unseal(data, public=KEY.public, context=CONTEXT)


@given(st.binary(max_size=400))
def test_no_bytes_do_worse_than_a_wire_error(data: bytes) -> None:
    for candidate in (data, KEY.seal(CONTEXT, b"")[:21] + data):
        with pytest.raises(WireError):
            unseal(candidate, public=KEY.public, context=CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        KEY.public[8:],
        KEY.public[:-4],
        KEY.public + "AAAA",
        "ed25519:" + "*" * 44,
        "rsa:" + KEY.public[8:],
        "ed25519:" + "é" * 44,
    ],
)
def test_malformed_public_keys(text: str) -> None:
    with pytest.raises(StudyError, match="is not a public key"):
        public_key(text)


def test_key_files(tmp_path: Path) -> None:
    key = SigningKey.generate()
    before = os.umask(0)
    try:
        path = key.save(tmp_path / "new" / "keys")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (path.parent / "consilience.pub").read_text() == key.public + "\n"
    assert SigningKey.load(path).public == SigningKey.load(path.parent).public == key.public
    private = path.read_bytes()
    with pytest.raises(StudyError, match="exists already"):
        SigningKey.generate().save(path.parent)
    assert path.read_bytes() == private
    path.unlink()
    with pytest.raises(StudyError, match=r"consilience\.pub exists already"):
        SigningKey.generate().save(path.parent)


def test_key_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = SigningKey.generate().save(tmp_path)
    path.chmod(0o640)
    with pytest.raises(StudyError, match="other users"):
        SigningKey.load(path)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StudyError, match="is not a private key"):
        SigningKey.load(path)
    other = x25519.X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(other)
    with pytest.raises(StudyError, match="is not a private key"):
        SigningKey.load(path)
    with pytest.raises(StudyError, match="no key file"):
        SigningKey.load(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError):
        SigningKey.generate().save(tmp_path / "file" / "keys")


def test_errors_show_no_key(tmp_path: Path) -> None:
    path = SigningKey.generate().save(tmp_path)
    secret = path.read_text().splitlines()[1]
    path.write_text(path.read_text().replace("BEGIN", "END"))
    with pytest.raises(ConsilienceError) as caught:
        SigningKey.load(path)
    assert secret not in str(caught.value) + caught.value.public


# ------------------------------------------------------------------ sealed to readers

READER, OTHER = SigningKey.generate(), SigningKey.generate()


def test_the_form_for_sealing_is_the_one_that_others_compute() -> None:
    """A pair of Ed25519 and its X25519 form from the tests of libsodium (ed25519_convert)."""
    seed = bytes.fromhex("421151a459faeade3d247115f94aedae42318124095afabe4d1451a559faedee")
    key = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(seed))
    wanted = "f1814f0e8ff1043d8a44d25babff3cedcae6c22c3edaa48f857ae70de2baae50"
    assert signing._exchange_key(key.public).public_bytes_raw().hex() == wanted
    assert key._exchange.public_key().public_bytes_raw().hex() == wanted


@given(st.binary(max_size=3000), st.integers(1, 3))
def test_readers_open_and_the_bytes_are_the_same_again(body: bytes, n: int) -> None:
    keys = [SigningKey.generate() for _ in range(n)]
    readers = [key.public for key in keys]
    sealed = KEY.seal(CONTEXT, body, readers=readers)
    assert sealed == KEY.seal(CONTEXT, body, readers=readers)
    for key in keys:
        assert key.unseal(sealed, public=KEY.public, context=CONTEXT) == body
    whole = len(sealed) - OVERHEAD - 2 - 80 * n - 16
    assert whole % BLOCK == 0 and 8 <= whole - len(body) <= BLOCK + 7
    check_sealed(sealed, public=KEY.public, context=CONTEXT)


def test_nobody_else_opens_it() -> None:
    body = bytes(range(200))
    sealed = KEY.seal(CONTEXT, body, readers=[READER.public])
    for stranger in (OTHER, SigningKey.generate()):
        with pytest.raises(OtherReaderError, match="not sealed for this party's key") as caught:
            stranger.unseal(sealed, public=KEY.public, context=CONTEXT)
        assert "\n" not in caught.value.public
    with pytest.raises(OtherReaderError):
        READER.unseal(KEY.seal(CONTEXT, body, readers=[]), public=KEY.public, context=CONTEXT)
    # Nothing in it follows from the body alone: no part of it, and nothing to try guesses on.
    assert not any(body[at : at + 8] in sealed for at in range(len(body) - 8))
    assert hashlib.sha256(body).digest() not in sealed
    for guess in (sealed[OVERHEAD - 64 : OVERHEAD] + body, body):
        assert hashlib.sha256(guess).digest() != sealed[OVERHEAD - 96 : OVERHEAD - 64]
    again = KEY.seal(dataclasses.replace(CONTEXT, round=3), body, readers=[READER.public])
    assert len({sealed[at : at + 16] for at in range(OVERHEAD, len(sealed))}
               & {again[at : at + 16] for at in range(OVERHEAD, len(again))}) == 0  # fmt: skip


def test_sealed_and_open_are_not_taken_for_one_another() -> None:
    sealed, plain = KEY.seal(CONTEXT, b"x", readers=[READER.public]), KEY.seal(CONTEXT, b"x")
    with pytest.raises(WireError, match="it is not sealed"):
        READER.unseal(plain, public=KEY.public, context=CONTEXT)
    with pytest.raises(WireError, match="it is not sealed"):
        check_sealed(plain, public=KEY.public, context=CONTEXT)
    with pytest.raises(WireError, match="it is sealed"):
        unseal(sealed, public=KEY.public, context=CONTEXT)
    # Nor by another first line: it is what is signed.
    turned = sealed[: OVERHEAD - 96].replace(b"sealed", b"signed") + sealed[OVERHEAD - 96 :]
    with pytest.raises(SignatureError):
        unseal(turned, public=KEY.public, context=CONTEXT)


def test_every_flipped_bit_and_every_cut_of_a_sealed_one_is_refused() -> None:
    sealed = KEY.seal(CONTEXT, b"a body", readers=[READER.public])
    for position in range(0, len(sealed), 3):
        for data in (
            sealed[:position],
            sealed[:position] + bytes([sealed[position] ^ 0x40]) + sealed[position + 1 :],
        ):
            with pytest.raises(WireError):
                READER.unseal(data, public=KEY.public, context=CONTEXT)


class Hostile(SigningKey):
    """Signs any bytes as if it had sealed them: a party that lies about its own messages."""

    def _closed(self, context: Context, body: bytes, readers: object) -> bytes:
        return body


def carried(key: SigningKey, context: Context, body: bytes = b"a body") -> bytes:
    """What a sealed envelope carries."""
    return key.seal(context, body, readers=[READER.public])[OVERHEAD:]


@pytest.mark.parametrize(
    "change",
    [{"run": "run-2"}, {"round": 3}, {"attempt": 2}, {"direction": "reply"}, {"sender": "boston"},
     {"recipient": "leeds"}, {"about": "00"}],
)  # fmt: skip
def test_what_was_sealed_for_elsewhere_does_not_open_here(change: dict[str, str]) -> None:
    """Also where who sealed it signs it anew for here."""
    there = carried(KEY, dataclasses.replace(CONTEXT, **change))
    moved = Hostile(KEY._private).seal(CONTEXT, there, readers=())
    with pytest.raises(WireError, match="not sealed for this party's key at this place"):
        READER.unseal(moved, public=KEY.public, context=CONTEXT)


def test_no_party_passes_on_as_its_own_what_another_sealed() -> None:
    taken = Hostile(OTHER._private).seal(CONTEXT, carried(KEY, CONTEXT), readers=())
    with pytest.raises(OtherReaderError):
        READER.unseal(taken, public=OTHER.public, context=CONTEXT)


def test_a_body_under_a_slot_of_another_message_does_not_open() -> None:
    there = carried(KEY, dataclasses.replace(CONTEXT, round=3))
    mixed = carried(KEY, CONTEXT)[:82] + there[82:]
    sealed = Hostile(KEY._private).seal(CONTEXT, mixed, readers=())
    with pytest.raises(WireError, match="sealed for another place, or is damaged"):
        READER.unseal(sealed, public=KEY.public, context=CONTEXT)


@pytest.mark.parametrize(
    "padded",
    [b"", b"x", bytes(7), bytes(8), bytes(BLOCK - 1), bytes(BLOCK + 1), bytes(2 * BLOCK),
     (BLOCK - 7).to_bytes(8, "little") + bytes(BLOCK - 8), b"\xff" * BLOCK],
)  # fmt: skip
def test_what_opens_and_was_not_padded_so_is_refused(padded: bytes) -> None:
    content = signing._derived(
        KEY._private.private_bytes_raw(), [signing._CONTENT, signing._bound(CONTEXT)]
    )
    closed = signing.AESSIV(content).encrypt(padded or b"\0", [signing._bound(CONTEXT)])
    sealed = Hostile(KEY._private).seal(CONTEXT, carried(KEY, CONTEXT)[:82] + closed, readers=())
    with pytest.raises(WireError, match="or is damaged"):
        READER.unseal(sealed, public=KEY.public, context=CONTEXT)


@pytest.mark.parametrize("y", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18])
def test_nothing_is_sealed_for_a_key_that_nobody_holds(y: int) -> None:
    """Points of small order: everybody would know the secret."""
    public = "ed25519:" + base64.b64encode(y.to_bytes(32, "little")).decode()
    with pytest.raises(StudyError, match="nothing can be sealed for"):
        KEY.seal(CONTEXT, b"x", readers=[public])

"""Keys and envelopes: what one key signed for one place is worth nothing anywhere else."""

from __future__ import annotations

import base64
import dataclasses
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from hypothesis import given
from hypothesis import strategies as st

from consilience.exceptions import ConsilienceError, RunError, SignatureError, StudyError, WireError
from consilience.wire.signing import OVERHEAD, Context, SigningKey, public_key, unseal

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

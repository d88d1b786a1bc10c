"""Signed envelopes: who says what, to whom, as the answer to which question.

An envelope binds its body to a *context*: run, round, attempt, direction, sender and recipient. The
reader builds the context that it expects from what it already knows (never from the envelope) and
verifies with the key that it already trusts, so that an envelope which was moved to another run,
round, site or direction, or turned back on its sender, is refused like a forged one.

Layout::

    magic  SHA-256 (32 bytes)  Ed25519 signature (64 bytes)  body

The checksum covers signature and body: it tells a file that is damaged, or not yet wholly copied by
a synchronised folder, from one that somebody else has signed. The signature covers the magic, the
context and the SHA-256 of the body. Ed25519 is deterministic (RFC 8032, section 5.1.6): the same
key, context and body give the same bytes, so sending again changes nothing.

A key may endorse the one that follows it (`SigningKey.endorse`): the same kind of signature, over a
statement that no envelope can make, because it begins with another magic.

A public key is written ``ed25519:`` and the base64 of its 32 bytes; a private key is a PEM file
(PKCS #8) that only its owner may read.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.exceptions import SignatureError, StudyError, WireError
from consilience.wire.codec import pack
from consilience.wire.files import explain, make_directory

PREFIX = "ed25519:"
PRIVATE_FILE = "consilience.key"
PUBLIC_FILE = "consilience.pub"

_MAGIC = b"consilience-signed-1\n"
_ENDORSES = b"consilience-endorses-1\n"
_CHECKSUM = 32
_SIGNATURE = 64
OVERHEAD = len(_MAGIC) + _CHECKSUM + _SIGNATURE


@dataclass(frozen=True)
class Context:
    """What an envelope is bound to.

    Attributes
    ----------
    run : str
    round, attempt : int
    direction : {"ask", "reply"}
    sender, recipient : str
        Name of the site, or public key of the coordinator.
    about : str
        Digest of the ask that a reply answers.
    """

    run: str
    round: int
    attempt: int
    direction: Literal["ask", "reply"]
    sender: str
    recipient: str
    about: str = ""


class SigningKey:
    """A private key and its public form.

    Attributes
    ----------
    public : str
        ``"ed25519:<base64>"``.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        raw = private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        self.public = PREFIX + base64.b64encode(raw).decode()

    def __repr__(self) -> str:
        return f"<SigningKey {self.public}>"

    @classmethod
    def generate(cls) -> SigningKey:
        """Draw a new key from the operating system's entropy."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Read a private key from its file, or from the directory that `save` wrote.

        Raises
        ------
        StudyError
            There is no such file, it is no Ed25519 key, or others may read it.
        """
        path = Path(path)
        path = path / PRIVATE_FILE if path.is_dir() else path
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(1 << 16)
        except FileNotFoundError:
            raise StudyError(
                f"there is no key file {path}: make one with 'consilience site keys DIR'"
            ) from None
        except OSError as error:
            raise StudyError(f"the key file {path} cannot be read: {error.strerror}") from None
        if stat.S_IMODE(mode) & 0o077:
            raise StudyError(
                f"other users of this machine may read the key file {path}: "
                f"run 'chmod 600 {path}', or make a new key"
            )
        try:
            private: object = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise StudyError(
                f"{path} is not a private key of this package: "
                "make one with 'consilience site keys DIR'"
            )
        return cls(private)

    def save(self, directory: str | Path) -> Path:
        """Write both halves of the key into a directory; returns the path of the private one.

        Raises
        ------
        StudyError
            There is a key already: it is never overwritten.
        RunError
            The directory cannot be written.
        """
        directory = make_directory(Path(directory), mode=0o700)
        private, public = directory / PRIVATE_FILE, directory / PUBLIC_FILE
        for path in (private, public):
            if path.exists() or path.is_symlink():
                raise StudyError(
                    f"{path} exists already and is not overwritten: use that key, or choose "
                    "another directory"
                )
        pem = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _create(private, pem, 0o600)
        _create(public, self.public.encode() + b"\n", 0o644)
        return private

    def seal(self, context: Context, body: bytes) -> bytes:
        """Sign a body for one context."""
        signature = self._private.sign(_statement(context, body))
        checksum = hashlib.sha256(signature)
        checksum.update(body)
        return b"".join((_MAGIC, checksum.digest(), signature, body))

    def endorse(self, public: str) -> str:
        """Sign that another key follows this one; base64 text, the same every time.

        Raises
        ------
        StudyError
            `public` is no public key, or this one.
        """
        public_key(public)
        if public == self.public:
            raise StudyError("a key does not endorse itself: make a new one")
        return base64.b64encode(self._private.sign(_succession(self.public, public))).decode()


def unseal(data: bytes, *, public: str, context: Context) -> bytes:
    """Return the body of an envelope that `public` signed for exactly this context.

    Raises
    ------
    WireError
        The bytes are no whole envelope.
    SignatureError
        Another key signed it, or it was signed for another context.
    """
    if not data.startswith(_MAGIC):
        raise WireError("bytes that are not a signed message", public="it is not a signed message")
    checksum = data[len(_MAGIC) : len(_MAGIC) + _CHECKSUM]
    rest = memoryview(data)[len(_MAGIC) + _CHECKSUM :]  # A message may be large: no more copies.
    if len(rest) < _SIGNATURE or hashlib.sha256(rest).digest() != checksum:
        raise WireError(
            "a signed message that is damaged or not complete",
            public="the message is damaged or not complete",
        )
    body = bytes(rest[_SIGNATURE:])
    try:
        public_key(public).verify(bytes(rest[:_SIGNATURE]), _statement(context, body))
    except InvalidSignature:
        sentence = (
            f"it is not signed by {context.sender} as the {context.direction} to "
            f"{context.recipient} in round {context.round}"
        )
        raise SignatureError(sentence, public=sentence) from None
    return body


def is_endorsed(public: str, *, by: str, endorsement: str) -> bool:
    """Whether `endorsement` is the signature of key `by` over key `public`."""
    try:
        signature = base64.b64decode(endorsement, validate=True)
        public_key(public)
        public_key(by).verify(signature, _succession(by, public))
    except (binascii.Error, ValueError, StudyError, InvalidSignature):
        return False
    return public != by


def public_key(text: str) -> Ed25519PublicKey:
    """Read a public key.

    Raises
    ------
    StudyError
        The text is not ``ed25519:`` and the base64 of 32 bytes.
    """
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(PREFIX) or len(raw) != 32:
        raise StudyError(
            f"{text[:80]!r} is not a public key: it is 'ed25519:' and 44 characters of base64; "
            "copy the whole line again"
        )
    return Ed25519PublicKey.from_public_bytes(raw)


def _statement(context: Context, body: bytes) -> bytes:
    """What is signed: packed with lengths, so that no two contexts give the same bytes."""
    return _MAGIC + pack({**dataclasses.asdict(context), "body": hashlib.sha256(body).digest()})


def _succession(old: str, new: str) -> bytes:
    return _ENDORSES + pack({"old": old, "new": new})


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a new file; one that exists is an error."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise explain(error, "write", path) from error

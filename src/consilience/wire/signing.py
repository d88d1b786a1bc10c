"""Envelopes: who says what, to whom, as the answer to which question, and for whose eyes.

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

An envelope with *readers* is sealed: the sender and they can open its body, and nobody who carries
or keeps it. What is signed is then the sealed body, so a signature tells nothing about what is
inside::

    number of readers (2 bytes)  a slot of 80 bytes for each  AES-SIV of the padded body

1. **The keys are the identity keys.** Each Ed25519 key has an X25519 form (RFC 7748, section 4.1:
   ``u = (1 + y) / (1 - y)``; the private one is the scalar of RFC 8032), so parties who know each
   other's public lines need nothing more. Ed25519 and X25519 may share a key where both hash their
   input apart from one another (Thormarker, "On using the same key pair for Ed25519 and an X25519
   based KEM", ePrint 2021/509).
2. **A content key for each context**, HKDF-SHA256 (RFC 5869) of the sender's private key and the
   context; a slot is that key under AES-256-SIV (RFC 5297), with HKDF-SHA256 of the X25519 secret,
   both public keys and the context. Several readers are the keys of one party that follow one
   another: who seals cannot know which of them signs today.
3. **The body** with AES-256-SIV under the content key, padded to whole blocks of `BLOCK` bytes. SIV
   is deterministic, as the signature is: the same key, context, readers and body give the same
   bytes.

Every key is a function of the context, so what is taken from another run, round, attempt, site or
direction does not open, also where its rightful sender has signed it anew. What sealing leaves to
see: who, to whom, when, and how many blocks. Whoever steals a private key later opens what was
sealed by it or for it; a key that was retired is gone.

A key may endorse the one that follows it (`SigningKey.endorse`): the same kind of signature, over a
statement that no envelope can make, because it begins with another magic.

A public key is written ``ed25519:`` and the base64 of its 32 bytes; a private key is a PEM file
(PKCS #8) that only its owner may read.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import os
import stat
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from consilience.exceptions import SignatureError, StudyError, WireError
from consilience.wire.codec import pack
from consilience.wire.files import create_file, make_directory

PREFIX = "ed25519:"
PRIVATE_FILE = "consilience.key"
PUBLIC_FILE = "consilience.pub"

_MAGIC = b"consilience-signed-1\n"
_SEALED = b"consilience-sealed-1\n"
_ENDORSES = b"consilience-endorses-1\n"
_CHECKSUM = 32
_SIGNATURE = 64
OVERHEAD = len(_MAGIC) + _CHECKSUM + _SIGNATURE
BLOCK = 1024
"""Bytes of which a sealed body is a multiple: sizes tell whether it is small, not what it says."""

_CONTENT, _SLOT = "consilience-content-key-1", "consilience-slot-key-1"
_KEY = 64
_TAG = 16
_READERS = struct.Struct("<H")
_LENGTH = struct.Struct("<Q")
_P = 2**255 - 19


class OtherReaderError(WireError):
    """An envelope that its sender has signed and sealed for another key than the reader's."""


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
        # RFC 8032, section 5.1.5: the scalar is the first half of the hash (clamped on use).
        scalar = hashlib.sha512(private.private_bytes_raw()).digest()[:32]
        self._exchange = X25519PrivateKey.from_private_bytes(scalar)
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
        # Of the open file, not of its path: what was looked at is what is read.
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
        create_file(private, pem)
        create_file(public, self.public.encode() + b"\n", mode=0o644)
        return private

    def seal(
        self, context: Context, body: bytes, *, readers: Collection[str] | None = None
    ) -> bytes:
        """Sign a body for one context.

        Parameters
        ----------
        readers : collection of str, optional
            Public keys that alone can open it, beside this one; without it anybody reads the body.

        Raises
        ------
        StudyError
            A public key is malformed, or nothing can be sealed for it.
        """
        magic = _MAGIC
        if readers is not None:
            magic, body = _SEALED, self._closed(context, body, readers)
        signature = self._private.sign(_statement(magic, context, body))
        checksum = hashlib.sha256(signature)
        checksum.update(body)
        return b"".join((magic, checksum.digest(), signature, body))

    def unseal(self, data: bytes, *, public: str, context: Context) -> bytes:
        """Return the body of an envelope that `public` signed and sealed for this key.

        Raises
        ------
        WireError
            The bytes are no whole envelope, it is not sealed, or it does not open in this context;
            `OtherReaderError`: it is sealed for other keys only.
        SignatureError
            Another key signed it, or it was signed for another context.
        """
        closed = _verified(_SEALED, data, public, context)
        # The number of slots is the sender's word: the loop below ends with the bytes that are
        # there.
        known = _READERS.unpack_from(closed)[0] if len(closed) >= _READERS.size else 0
        start, bound = _READERS.size + known * (_KEY + _TAG), _bound(context)
        wrapping = self._wrapping(public, public, self.public, context)
        for at in range(_READERS.size, min(start, len(closed)), _KEY + _TAG):
            with contextlib.suppress(InvalidTag, ValueError):
                content = wrapping.decrypt(closed[at : at + _KEY + _TAG], [bound])
                break
        else:
            raise OtherReaderError.shared(
                "it is not sealed for this party's key at this place: if the key has changed, have "
                "the new public line listed wherever the old one is"
            )
        try:
            padded = AESSIV(content).decrypt(memoryview(closed)[start:], [bound])
            (length,) = _LENGTH.unpack_from(padded)
            if len(padded) != _padded(length):
                raise ValueError("padded otherwise")
        except (InvalidTag, ValueError, struct.error):
            raise WireError.shared("it was sealed for another place, or is damaged") from None
        return bytes(memoryview(padded)[_LENGTH.size : _LENGTH.size + length])

    def _closed(self, context: Context, body: bytes, readers: Iterable[str]) -> bytes:
        """Seal a body so that `readers` can open it."""
        bound = _bound(context)
        # The same context gives the same key: sealing again after a crash gives the same bytes.
        content = _derived(self._private.private_bytes_raw(), [_CONTENT, bound])
        slots = [
            self._wrapping(reader, self.public, reader, context).encrypt(content, [bound])
            for reader in readers
        ]
        # Zeros, so that the same body always gives the same bytes; they are sealed with it.
        filler = bytes(_padded(len(body)) - len(body) - _LENGTH.size)
        padded = b"".join((_LENGTH.pack(len(body)), body, filler))
        closed = AESSIV(content).encrypt(padded, [bound])
        return b"".join((_READERS.pack(len(slots)), *slots, closed))

    def _wrapping(self, other: str, sender: str, reader: str, context: Context) -> AESSIV:
        """What a slot from `sender` to `reader` is sealed with; `other` is the one of the two."""
        secret = self._exchange.exchange(_exchange_key(other))
        return AESSIV(_derived(secret, [_SLOT, sender, reader, _bound(context)]))

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
    """Return the body of an envelope without readers that `public` signed for just this context.

    Raises
    ------
    WireError
        The bytes are no whole envelope, or it is sealed.
    SignatureError
        Another key signed it, or it was signed for another context.
    """
    return _verified(_MAGIC, data, public, context)


def check_sealed(data: bytes, *, public: str, context: Context) -> None:
    """Check what can be checked of a sealed envelope without opening it.

    Raises
    ------
    WireError
        As `SigningKey.unseal`, before it looks inside.
    """
    _verified(_SEALED, data, public, context)


def _verified(magic: bytes, data: bytes, public: str, context: Context) -> bytes:
    """What an envelope of one of both kinds carries, once signature and context are checked."""
    if not data.startswith(magic):
        if data.startswith((_MAGIC, _SEALED)):
            kind = "not sealed" if magic == _SEALED else "sealed"
            raise WireError.shared(
                f"it is {kind}, where the reader expects otherwise: install the same release of "
                "consilience everywhere"
            )
        raise WireError("bytes that are not a signed message", public="it is not a signed message")
    checksum = data[len(magic) : len(magic) + _CHECKSUM]
    rest = memoryview(data)[len(magic) + _CHECKSUM :]  # A message may be large: no more copies.
    if len(rest) < _SIGNATURE or hashlib.sha256(rest).digest() != checksum:
        raise WireError(
            "a signed message that is damaged or not complete",
            public="the message is damaged or not complete",
        )
    body = bytes(rest[_SIGNATURE:])
    try:
        public_key(public).verify(bytes(rest[:_SIGNATURE]), _statement(magic, context, body))
    except InvalidSignature:
        raise SignatureError.shared(
            f"it is not signed by {context.sender} as the {context.direction} to "
            f"{context.recipient} in round {context.round}"
        ) from None
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


def _exchange_key(public: str) -> X25519PublicKey:
    """The X25519 form of a public key (RFC 7748, section 4.1).

    Raises
    ------
    StudyError
        The key has none.
    """
    # RFC 7748, section 4.1: u = (1 + y) / (1 - y) mod p; the highest bit is the sign of x.
    y = int.from_bytes(public_key(public).public_bytes_raw(), "little") & (2**255 - 1)
    try:
        u = (1 + y) * pow(1 - y, -1, _P) % _P
        found = X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
        X25519PrivateKey.from_private_bytes(bytes(32)).exchange(found)  # refuses small orders
    except ValueError:
        raise StudyError(
            f"nothing can be sealed for {public[:80]!r}: nobody holds its private half; copy the "
            "whole line again"
        ) from None
    return found


def _derived(secret: bytes, info: list[object]) -> bytes:
    return HKDF(SHA256(), _KEY, salt=None, info=pack(info)).derive(secret)


def _bound(context: Context) -> bytes:
    """A context, packed with lengths, so that no two give the same bytes."""
    return pack(dataclasses.asdict(context))


def _padded(length: int) -> int:
    """Length of a body with its filler: whole blocks."""
    return -(-(length + _LENGTH.size) // BLOCK) * BLOCK


def _statement(magic: bytes, context: Context, body: bytes) -> bytes:
    """What is signed: packed with lengths, so that no two contexts give the same bytes."""
    return magic + pack({**dataclasses.asdict(context), "body": hashlib.sha256(body).digest()})


def _succession(old: str, new: str) -> bytes:
    return _ENDORSES + pack({"old": old, "new": new})

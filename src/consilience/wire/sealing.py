"""Fields for another site's eyes: encrypted end to end, so that a coordinator only passes them on.

Who may read what is said by the audience of a field. Where that is a role, the sending site seals
the value and the receiving one opens it; in between, the bytes of the message hold a
:class:`~consilience.wire.message.Sealed` value.

1. **Introductions.** Each site draws an X25519 key pair for the run (RFC 7748) and sends the public
   half with a tag, an HMAC-SHA256 (RFC 2104) of run, site and public key under the *partner key*: a
   secret that the parties agreed on beforehand and a third-party coordinator lacks. The coordinator
   passes the introductions on; one that it made or exchanged itself has no valid tag.
2. **Keys.** The key from one site to another is HKDF-SHA256 (RFC 5869) of the X25519 secret and the
   partner key, bound to run, sender and recipient. Each direction has its own.
3. **Values.** AES-256-SIV (RFC 5297) of the packed value; run, sender, recipient, message and field
   name are authenticated with it. It is deterministic: a repeated answer has the same bytes, and no
   nonce can be used twice by mistake after a crash.

A field that is passed on says in which message its value was sealed (its ``origin``), so no value
is opened in another step than the one it was made for. The round is not bound: a coordinator can
pass an older value of the *same message and field* on again, or none. It learns nothing from that.
What it sees all the same: sizes, and that two values of one field are equal.

Ids are matched by their AES-256-CMAC (NIST SP 800-38B) under a key that is the HMAC of the run
under the partner key, so that they cannot be compared with guessed ids, or between runs, by anybody
who lacks the partner key.
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError, ProtocolError, StudyError, WireError
from consilience.parameters import plain
from consilience.wire.codec import misfit, pack, plain_fields, unpack
from consilience.wire.disclosure import Released, received
from consilience.wire.message import (
    Disclosure,
    FieldSpec,
    Sealed,
    check_shape,
    holds_sealed,
    iterate_fields,
    message_type,
)

KEY_BYTES = 32
HASH_BYTES = 16
MIN_PARTNER_KEY = 16

_SEAL = "consilience-sealed-2"
_KEY = "consilience-seal-key-1"
_INTRODUCTION = "consilience-introduction-1"
_IDS = "consilience-ids-2"
_CHUNK = 1 << 14  # ids hashed together

M = TypeVar("M")


# --------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class Keyring:
    """What a site needs to seal and to open in one run.

    Attributes
    ----------
    private : bytes
        32 bytes, this site's X25519 key for the run.
    partner_key : bytes
        Secret of the parties.
    run, site : str
    peers : mapping of str to bytes
        Public key of each site, as `check_peers` returns them.
    """

    private: bytes = dataclasses.field(repr=False)
    partner_key: bytes = dataclasses.field(repr=False)
    run: str
    site: str
    peers: Mapping[str, bytes]


def introduce(private: bytes, partner_key: bytes, run: str, site: str) -> tuple[bytes, bytes]:
    """Make what a site tells the others about itself.

    Parameters
    ----------
    private : bytes
        32 bytes from the operating system's entropy, kept for this run.
    partner_key : bytes
        At least 16 bytes: the tag lets whoever reads it try guesses of a shorter one.
    run, site : str

    Returns
    -------
    public : bytes
        32 bytes.
    tag : bytes
        32 bytes.

    Raises
    ------
    StudyError
        The partner key is too short.
    ProtocolError
        The private key does not have 32 bytes.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if len(private) != KEY_BYTES:
        raise ProtocolError(f"a private key for a run has {KEY_BYTES} bytes")
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return public, _tag(partner_key, run, site, public)


def check_peers(
    partner_key: bytes, run: str, introductions: Mapping[str, tuple[bytes, bytes]]
) -> dict[str, bytes]:
    """Check the introductions of all sites, as the coordinator passed them on.

    Parameters
    ----------
    partner_key : bytes
    run : str
    introductions : mapping of site to (public, tag)

    Returns
    -------
    dict
        Public key of each site, in the order of their names.

    Raises
    ------
    WireError
        A tag was not made with the partner key for this run, site and public key.
    """
    peers = {}
    for site in sorted(introductions):
        introduction = introductions[site]
        fine = isinstance(introduction, tuple) and len(introduction) == 2
        fine = fine and all(type(part) is bytes and len(part) == KEY_BYTES for part in introduction)
        if fine:
            public, tag = introduction
            fine = hmac.compare_digest(tag, _tag(partner_key, run, site, public))
        if not fine:
            raise WireError(
                f"the key of site {site[:60]!r} was not made with the partner key of this site: "
                "compare the partner keys of both sites, by another way than the coordinator",
                public="a party's key was not made with the partner key",
            )
        peers[site] = public
    return peers


def _tag(partner_key: bytes, run: str, site: str, public: bytes) -> bytes:
    return _hmac(partner_key, pack([_INTRODUCTION, run, site, public]))


def _hmac(partner_key: bytes, data: bytes) -> bytes:
    if len(partner_key) < MIN_PARTNER_KEY:
        sentence = (
            f"the partner key has fewer than {MIN_PARTNER_KEY} bytes: make a new one at random and "
            "give it to every party, but not to the coordinator"
        )
        raise StudyError(sentence)
    return hmac.digest(partner_key, data, "sha256")


@lru_cache(maxsize=1 << 10)
def _own_key(private: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


@lru_cache(maxsize=1 << 14)
def exchanged(private: bytes, public: bytes) -> bytes:
    """Secret of two parties (X25519), which is asked for again and again in one run.

    Raises
    ------
    ValueError
        The public key gives none: it is of small order (RFC 7748, section 6.1).
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return bytes(_own_key(private).exchange(X25519PublicKey.from_public_bytes(public)))


def cipher(keyring: Keyring, peer: str, sender: str, recipient: str) -> Any:
    """AES-256-SIV under the key from `sender` to `recipient`, one of whom is `peer`.

    Raises
    ------
    WireError
        The peer is not known, or its public key gives no secret (RFC 7748, section 6.1).
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if peer not in keyring.peers:
        raise _unknown(peer)
    try:
        secret = exchanged(keyring.private, keyring.peers[peer])
    except ValueError:
        raise _unknown(peer) from None
    info = pack([_KEY, keyring.run, sender, recipient])
    # The partner key goes in too: a coordinator in the middle of the exchange of keys lacks it.
    derived = HKDF(SHA256(), 64, salt=None, info=info).derive(secret + keyring.partner_key)
    return AESSIV(derived)


def _unknown(peer: str) -> WireError:
    return WireError(
        f"site {peer[:60]!r} has no usable key in this run",
        public="a value is sealed by or for a site without a key in this run",
    )


# --------------------------------------------------------------------------- messages


def senders(msg: object) -> dict[str, tuple[str, ...]]:
    """Return who is said to have sealed what in a message, in the order of the items of a field.

    The names are proven once `open_message` has returned; nothing else ties a value to its sender.
    """
    found = {}
    for name, _, content in iterate_fields(msg):
        value = _value(content)
        items = value if isinstance(value, tuple) else (value,)
        sealed = tuple(item.sender for item in items if isinstance(item, Sealed))
        if sealed:
            found[name] = sealed
    return found


def seal_message(msg: M, keyring: Keyring, recipients: Mapping[str, str]) -> M:
    """Encrypt the fields of a message that another site is to read.

    Parameters
    ----------
    msg : object
        Message as the gate has let it pass.
    keyring : Keyring
    recipients : mapping of field to site

    Returns
    -------
    object
        The message with a `Sealed` value in each of these fields; classes of disclosure stay.

    Raises
    ------
    ProtocolError
        A field whose audience is not a role has a recipient, one that is not public and whose
        audience is a role has none, a value does not fit its declaration, or is sealed already.
    WireError
        There is no key for a recipient.
    """
    kind = message_type(type(msg))
    try:
        # Once they are sealed, nobody on the way can check the values.
        plain = plain_fields(msg)
    except WireError as error:
        raise misfit(f"message {kind.name}", error) from None
    for name in recipients:
        if name not in kind.fields or not kind.fields[name].for_role:
            raise ProtocolError(f"{kind.name}.{name} has a recipient, but its audience is no role")
    changes: dict[str, Any] = {}
    for name, spec in kind.fields.items():
        where = f"{kind.name}.{name}"
        if name not in recipients:
            if spec.for_role and spec.disclosure is not Disclosure.PUBLIC:
                raise ProtocolError(f"{where} is for {spec.audience!r}, but no site is named")
            continue
        if holds_sealed(plain[name]):
            raise ProtocolError(f"{where} is sealed already")
        recipient = recipients[name]
        sealing = cipher(keyring, recipient, keyring.site, recipient)
        bound = _bound(keyring.run, keyring.site, recipient, _origin(kind.name, spec), name)
        data = sealing.encrypt(pack(plain[name]), [bound])
        changes[name] = _content(spec, Sealed(keyring.site, recipient, data))
    return _changed(msg, changes)


def open_message(msg: M, keyring: Keyring) -> M:
    """Decrypt the sealed fields of a message, all of which must be for this site.

    What is for a role and not public must have been sealed: a coordinator cannot put values of its
    own there. It can only leave a field empty.

    Parameters
    ----------
    msg : object
        Message as `decode_message` returned it.
    keyring : Keyring

    Returns
    -------
    object
        The message with plain values, checked against the whole declaration.

    Raises
    ------
    WireError
        A value is for another site, was sealed for another field or run or by somebody else, was
        not sealed, is damaged, or does not fit its declaration.
    """
    kind = message_type(type(msg))
    changes: dict[str, Any] = {}
    dims: dict[str, int] = {}
    for name, spec, content in iterate_fields(msg):
        value = plain(content) if spec.record else _value(content)
        if spec.for_role and spec.disclosure is not Disclosure.PUBLIC:
            for item in value if spec.many and isinstance(value, tuple) else (value,):
                empty = item is None or (isinstance(item, np.ndarray) and not item.size)
                if not isinstance(item, Sealed) and not empty:
                    sentence = f"field {name!r} was not sealed by the site that it comes from"
                    raise WireError.shared(sentence)
        if isinstance(value, Sealed):
            value = _opened(_origin(kind.name, spec), name, value, keyring)
            changes[name] = _content(spec, value)
        elif spec.many and holds_sealed(value):
            origin = _origin(kind.name, spec)
            value = tuple(
                _opened(origin, name, item, keyring) if isinstance(item, Sealed) else item
                for item in value
            )
            changes[name] = _content(spec, value)
        try:
            if holds_sealed(value):
                raise WireError(f"{kind.name}.{name}: a sealed value inside another one")
            check_shape(f"{kind.name}.{name}", spec, value, dims)
        except WireError as error:
            sentence = f"what was sealed in field {name!r} does not fit its declaration"
            raise WireError(str(error), public=sentence) from None
    return _changed(msg, changes)


def _origin(message: str, spec: FieldSpec) -> str:
    """Message in which a field's value is sealed: its own, unless it is passed on from another."""
    return spec.origin or message


def _opened(origin: str, name: str, sealed: Sealed, keyring: Keyring) -> Any:
    from cryptography.exceptions import InvalidTag

    if sealed.recipient != keyring.site:
        raise WireError.shared(f"field {name!r} is sealed for another site")
    sealing = cipher(keyring, sealed.sender, sealed.sender, sealed.recipient)
    bound = _bound(keyring.run, sealed.sender, sealed.recipient, origin, name)
    try:
        packed = sealing.decrypt(sealed.data, [bound])
    except (InvalidTag, ValueError):
        raise WireError.shared(
            f"field {name!r} was sealed for another field or run, in another message, by another "
            "site, or is damaged"
        ) from None
    return unpack(packed)


def _bound(run: str, sender: str, recipient: str, origin: str, name: str) -> bytes:
    """What a ciphertext is bound to: packed with lengths, so that no two cases look alike."""
    return pack([_SEAL, run, sender, recipient, origin, name])


def _value(content: Any) -> Any:
    return content.value if isinstance(content, Released) else content


def _content(spec: FieldSpec, value: Any) -> Any:
    return value if spec.disclosure is Disclosure.PUBLIC else received(value, spec.disclosure)


def _changed(msg: M, changes: dict[str, Any]) -> M:
    return dataclasses.replace(msg, **changes) if changes else msg  # type: ignore[type-var]


# --------------------------------------------------------------------------- ids


def hashed_ids(ids: Iterable[str], partner_key: bytes, run: str) -> NDArray[np.uint8]:
    """Hash ids so that parties with the same partner key can match them within a run.

    Parameters
    ----------
    ids : (n,) texts
        As they are read: neither case nor spaces nor forms of Unicode are made alike.
    partner_key : bytes
    run : str

    Returns
    -------
    (n, 16) uint8 array
        AES-256-CMAC: two of 10^9 different ids meet with a probability below 10^-20.

    Raises
    ------
    DataError
        An id is empty or not a text: rows without one are left out before.
    StudyError
        The partner key is too short.
    """
    key = _hmac(partner_key, pack([_IDS, run]))
    texts: list[Any] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if not all(isinstance(each, str) and each for each in texts):
        raise DataError(
            "an id is missing or not a text: leave such rows out before ids are matched",
            public="an id is missing or not a text",
        )
    found = np.empty((len(texts), HASH_BYTES), dtype=np.uint8)
    for start in range(0, len(texts), _CHUNK):
        some = [each.encode("utf-8", "surrogatepass") for each in texts[start : start + _CHUNK]]
        found[start : start + _CHUNK] = _cmacs(key, some)
    return found


def _cmacs(key: bytes, texts: list[bytes]) -> NDArray[np.uint8]:
    """AES-CMAC (NIST SP 800-38B) of each of some texts, block by block of all of them at once.

    One by one, as a library offers it, takes eight times as long.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # the block cipher itself

    def doubled(value: bytes) -> bytes:
        """Twice a number of GF(2^128)."""
        number = int.from_bytes(value, "big") << 1
        return ((number & ((1 << 128) - 1)) ^ (0x87 * (number >> 128))).to_bytes(16, "big")

    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    n_blocks = np.maximum(-(-lengths // 16), 1)
    firsts, starts = np.cumsum(n_blocks) - n_blocks, np.cumsum(lengths) - lengths
    padded = np.zeros(16 * int(n_blocks.sum()), dtype=np.uint8)
    place = np.arange(int(lengths.sum())) + np.repeat(16 * firsts - starts, lengths)
    padded[place] = np.frombuffer(b"".join(texts), dtype=np.uint8)
    whole = lengths == 16 * n_blocks
    padded[(16 * firsts + lengths)[~whole]] = 0x80
    blocks = padded.reshape(-1, 16)
    full = doubled(aes.update(bytes(16)))
    last = np.frombuffer(full + doubled(full), dtype=np.uint8).reshape(2, 16)
    blocks[firsts + n_blocks - 1] ^= last[np.where(whole, 0, 1)]
    # The longest first: those that have a block left are the first ones.
    order = np.argsort(-n_blocks, kind="stable")
    state = np.zeros((len(texts), 16), dtype=np.uint8)
    for j in range(int(n_blocks.max())):
        left = order[: int((n_blocks > j).sum())]
        chained = state[left] ^ blocks[firsts[left] + j]
        state[left] = np.frombuffer(aes.update(chained.tobytes()), dtype=np.uint8).reshape(-1, 16)
    return state


def common_ids(hashes: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Find the ids that every site has exactly once.

    Parameters
    ----------
    hashes : sequence of (n, 16) uint8 arrays
        One array for each site, in any order of rows.

    Returns
    -------
    (m, 16) uint8 array
        In increasing order. An id that occurs twice at a site is left out: which of its rows were
        meant cannot be told.

    Raises
    ------
    WireError
        An array is not one of hashed ids.
    """
    common: NDArray[Any] | None = None
    for each in hashes:
        found, counts = np.unique(_keys(each), return_counts=True)
        # Of a repeated id nobody knows which row was meant.
        once = found[counts == 1]
        common = once if common is None else common[_places(once, common) >= 0]
    if common is None:
        return np.zeros((0, HASH_BYTES), dtype=np.uint8)
    return common.view(np.uint8).reshape(-1, HASH_BYTES)


def positions(hashes: NDArray[np.uint8], common: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Find the rows of a site that belong to the common ids.

    Parameters
    ----------
    hashes : (n, 16) uint8 array
        Hashed ids of the site's rows.
    common : (m, 16) uint8 array
        As `common_ids` returned them.

    Returns
    -------
    (m,) int64 array
        Row of each common id, in the order of `common`.

    Raises
    ------
    WireError
        The common ids are not in strictly increasing order (then two sites could be given other
        orders), one of them is not among this site's, or belongs to several rows.
    """
    keys, wanted = _keys(hashes), _keys(common)
    if not ascending(common):
        raise WireError.shared("the common ids are not in increasing order")
    first = _halves(hashes)[0]
    order = np.argsort(first)
    if (first[order][1:] == first[order][:-1]).any():
        # Rows with the same hash stay in their order.
        order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    places = _places(ordered, wanted)
    if (places < 0).any():
        raise WireError.shared("a common id is not among the ids of this site")
    following = ordered[np.minimum(places + 1, len(ordered) - 1)]
    if ((following == wanted) & (places + 1 < len(ordered))).any():
        raise WireError.shared("a common id belongs to several rows of this site")
    return np.asarray(order[places], dtype=np.int64)


def _halves(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """First and second eight bytes of each hash as whole numbers of the same order, (2, n)."""
    return np.ascontiguousarray(hashes).view(">u8").T.astype(np.uint64)


def ascending(hashes: NDArray[np.uint8]) -> bool:
    """Whether hashes, a (n, 16) uint8 array, are in strictly increasing order."""
    first, second = _halves(hashes)
    further = first[1:] > first[:-1]
    return bool((further | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))).all())


def _keys(hashes: NDArray[np.uint8]) -> NDArray[Any]:
    """One element for each hash, compared byte by byte."""
    fine = isinstance(hashes, np.ndarray) and hashes.ndim == 2 and hashes.dtype == np.uint8
    if not fine or hashes.shape[1] != HASH_BYTES:
        raise WireError.shared("an array that does not hold hashed ids")
    return np.ascontiguousarray(hashes).view(f"V{HASH_BYTES}").ravel()


def _places(ordered: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """First place of each wanted key among ordered ones, -1 where it is not there."""
    if not len(ordered):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.searchsorted(ordered, wanted)
    found = ordered[np.minimum(places, len(ordered) - 1)] == wanted
    return np.where(found, places, -1)

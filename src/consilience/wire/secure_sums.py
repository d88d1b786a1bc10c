"""Sums of which nobody learns a part: masks between sites that cancel in the total.

Each site adds random numbers to what it contributes. Those that two sites share cancel in the sum;
one more of each site's own is taken out with the help of the others, once it is settled who has
contributed. The construction is that of Bonawitz and others ("Practical secure aggregation for
privacy-preserving machine learning", CCS 2017, section 4; the sparse graph past `COMPLETE` sites is
that of Bell and others, "Secure single-server aggregation with (poly)logarithmic overhead", CCS
2020), for many sums in a row with one introduction:

==============================  ==================================================
coordinator                     site i
==============================  ==================================================
introductions of all        ->  of each site: a key for the run, a first key for masks
                            <-  shares of the first private key for masks, a blob a neighbour

sum e, question q           ->  masked = value + own(e, q) + sum over j > i of pair(i, j, e, q)
                                - sum over j < i of pair(i, j, e, q)
                            <-  masked, commitment to own(e, q), next public key for masks,
                                shares of own(e, q) and of the next private key, a blob a neighbour
who contributed, blobs      ->
                            <-  shares of own(e, q) of those who did, of the private key for masks
                                of sum e of those who did not
==============================  ==================================================

Values are fixed-point numbers modulo 2^192, cut at `RESOLUTION`, 2^-80: sums are exact to it and do
not depend on order. Whatever the size of a contribution it is masked: a site that refused large
ones would say where its sums begin to be large. The coordinator refuses totals above `MOST`.
``own`` and ``pair`` are key streams (AES-256 in counter mode). Every key follows from the site's
secret of the run, the sum's number e and the question q (its step, round and bytes, and all
questions before it), that of ``own`` from the value too: a repeated answer has the same bytes,
another answer another mask, and the masks of sites that were asked different questions do not
cancel. Private keys and ``own`` are shared by Shamir's scheme over the integers modulo 2^256 + 297:
`threshold`, some two thirds, of the neighbours that were introduced give them back, however many
are left, and a sum is opened where as many contributed.

What a site gives of another one for a sum is either a share of its ``own`` or one of its private
key, never both, and once (the step that answers sees to it). Proof and limits:
``docs/proofs/secure-sums.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.exceptions import WireError
from consilience.wire.codec import digest, pack, unpack
from consilience.wire.sealing import Keyring, cipher, exchanged

Limbs = NDArray[np.uint64]
"""(c, `LIMBS`): c numbers modulo 2^192, by 64 bits, the lowest ones first."""
LIMBS = 3

LEAST_SITES = 3
"""Of fewer contributions a sum tells each of two sites what the other's is."""
MOST_SITES = 1 << 12
MOST = 2.0**80
"""Largest total, far below half the modulus: what wrapped around is above it but by chance."""
RESOLUTION = 2.0**-80
COMPLETE = 50
"""Up to so many sites each one shares masks with every other; beyond, with `COMPLETE` - 2."""

KEY = 32
"""Bytes of a key."""

_PRIME = 2**256 + 297
_SHARE = 33
_LABEL = "consilience-secure-sums-2"
_MOST_SUBSETS = 300


# --------------------------------------------------------------------------- numbers modulo 2^192


def encoded(values: FloatArray) -> Limbs:
    """Fixed-point form of numbers of any size.

    Parameters
    ----------
    values : (c,) array
        Finite; cut towards 0 to a multiple of `RESOLUTION`.
    """
    values = np.asarray(values, dtype=float)
    # Cut limb by limb, from the top: each step is exact.
    rest = np.abs(values) * (2.0 ** (64 * (1 - LIMBS)) / RESOLUTION)
    limbs: list[FloatArray] = []
    for _ in range(LIMBS):
        whole = np.trunc(rest)
        limbs.insert(0, whole)
        rest = (rest - whole) * 2.0**64
    if (limbs[-1] >= 2.0**64).any():
        limbs[-1] = np.fmod(limbs[-1], 2.0**64)
    found = np.stack(limbs, axis=1).astype(np.uint64)
    return np.where((values < 0)[:, None], negated(found), found)


def decoded(limbs: Limbs) -> FloatArray:
    """Numbers of fixed-point forms, the upper half of which stands for negative ones."""
    negative = limbs[:, -1] >> np.uint64(63) == 1
    size = np.where(negative[:, None], negated(limbs), limbs).astype(float)
    value = sum(size[:, j] * (RESOLUTION * 2.0 ** (64 * j)) for j in reversed(range(LIMBS)))
    return np.where(negative, -value, value)


def added(first: Limbs, second: Limbs) -> Limbs:
    """Sum modulo 2^192."""
    found, carry = np.empty_like(first), np.zeros(len(first), dtype=np.uint64)
    for j in range(LIMBS):
        part = first[:, j] + second[:, j]
        found[:, j] = part + carry
        carry = ((part < first[:, j]) | (found[:, j] < part)).astype(np.uint64)
    return found


def negated(limbs: Limbs) -> Limbs:
    """The negative modulo 2^192."""
    one = np.zeros_like(limbs)
    one[:, 0] = 1
    return added(~limbs, one)


def summed(terms: Iterable[tuple[Limbs, bool]]) -> Limbs:
    """Sum modulo 2^192 of numbers that are added or, where it says False, taken away."""
    total: Any = None
    for limbs, plus in terms:
        # In halves of limbs, which some 2^30 terms do not overflow: one carry in the end.
        halves = np.ascontiguousarray(limbs, dtype="<u8").view("<u4")
        if total is None:
            total = np.zeros(halves.shape, dtype=np.int64)
        (np.add if plus else np.subtract)(total, halves, out=total)
    carry = np.zeros(len(total), dtype=np.int64)
    for half in total.T:
        half += carry
        carry = half >> 32
    found: Limbs = (total & 0xFFFFFFFF).astype("<u4").view("<u8")
    return found


def stream(key: bytes, cells: int) -> Limbs:
    """Numbers that look uniform to whoever lacks the key (32 bytes)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # Each key is used for one stream: a counter that starts at 0 repeats nothing.
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.frombuffer(encryptor.update(bytes(8 * LIMBS * cells)), dtype="<u8")
    return drawn.reshape(cells, LIMBS)


# --------------------------------------------------------------------------- shares (Shamir 1979)


def threshold(holders: int) -> int:
    """How many of so many holders find a secret: two thirds, of three all.

    Two groups of so many have a third of the holders in common, or more.
    """
    return max(min(holders, LEAST_SITES), math.ceil(2 * holders / 3))


def split(secret: bytes, places: Collection[int], source: bytes, least: int) -> dict[int, bytes]:
    """Shares of a secret: values of a polynomial whose value at 0 it is.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    places : collection of int
        Of the holders, from 1.
    source : bytes
        Key from which the other coefficients follow.
    least : int
        How many find the secret.
    """
    degree = least - 1
    others = (hmac.digest(source, j.to_bytes(4, "big"), "sha256") for j in range(degree))
    coefficients = [int.from_bytes(x, "big") for x in (secret, *others)]
    shares = {}
    for place in places:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * place + coefficient) % _PRIME
        shares[place] = value.to_bytes(_SHARE, "big")
    return shares


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares, by Lagrange's formula; wrong ones give another one, or none (b"")."""
    secret = 0
    for place, share in shares.items():
        weight = 1
        for other in shares:
            if other != place:
                weight = weight * other * pow(other - place, -1, _PRIME) % _PRIME
        secret += weight * int.from_bytes(share, "big")
    secret %= _PRIME
    return secret.to_bytes(KEY, "big") if secret < 1 << 256 else b""


def found(
    shares: Mapping[int, bytes], least: int, proof: bytes, prove: Callable[[bytes], bytes]
) -> bytes:
    """The secret of at least so many shares, some of which may be wrong, by what is known of it.

    Parameters
    ----------
    shares : mapping of int to bytes
    least : int
    proof : bytes
    prove : callable
        ``prove(secret)`` is `proof` for the right secret.

    Returns
    -------
    bytes
        Empty where too few shares are there, or too many are wrong.
    """
    for subset in _subsets(sorted(shares), least):
        secret = joined({place: shares[place] for place in subset})
        if secret and hmac.compare_digest(prove(secret), proof):
            return secret
    return b""


def _subsets(places: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """All subsets of a size, or some that leave each place out often."""
    if math.comb(len(places), size) <= _MOST_SUBSETS:
        yield from itertools.combinations(places, size)
        return
    for j in range(_MOST_SUBSETS):
        # In order of name, one place would be in all of the first ones.
        yield tuple(sorted(places, key=lambda at: hashlib.sha256(pack([j, at])).digest())[:size])


# --------------------------------------------------------------------------- who shares with whom


def graph_seed(introductions: Mapping[str, bytes]) -> str:
    """What decides who shares masks with whom: all introductions.

    Who is introduced last can draw keys until it likes the graph.
    """
    return digest(pack({site: introductions[site] for site in sorted(introductions)}))


def neighbours(site: str, sites: Collection[str], seed: str) -> tuple[str, ...]:
    """Sites with which a site shares masks, in order of name; the relation is mutual."""
    if len(sites) <= COMPLETE:
        return tuple(sorted(other for other in sites if other != site))
    ring = _ring(tuple(sites), seed)
    at, reach = ring.index(site), COMPLETE // 2 - 1
    steps = (*range(-reach, 0), *range(1, reach + 1))
    return tuple(sorted(ring[(at + step) % len(ring)] for step in steps))


@lru_cache(maxsize=4)
def _ring(sites: tuple[str, ...], seed: str) -> tuple[str, ...]:
    """Sites in an order that nobody chose."""
    return tuple(sorted(sites, key=lambda name: hashlib.sha256(pack([seed, name])).digest()))


# --------------------------------------------------------------------------- one site's end


@dataclass(frozen=True)
class Masked:
    """What a site gives for a sum.

    Attributes
    ----------
    limbs : (c, `LIMBS`) array
    commitment : bytes
        SHA-256 of the key of its own mask.
    next_key : bytes
        Its public key for the masks of the next sum.
    blobs : dict of site to bytes
        For each neighbour, sealed to it: a share of its own mask's key and of the next private key.
    """

    limbs: Limbs
    commitment: bytes
    next_key: bytes
    blobs: dict[str, bytes]


@dataclass(frozen=True)
class Party:
    """A site's end.

    Attributes
    ----------
    run, site : str
    root : bytes
        32 secret bytes, drawn for the run: everything else follows from them.
    channels : mapping of site to bytes
        Public keys of all sites that were introduced, this one among them.
    graph : str
        `graph_seed` of the introductions.
    epoch : int
        Number of the next sum.
    current : mapping of site to bytes
        Public keys for its masks: of the sites that contributed to all sums so far, as far as this
        site has them from their owners.
    roster : tuple of str
        Sites that contributed to all sums so far.
    """

    run: str
    site: str
    root: bytes = dataclasses.field(repr=False)
    channels: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    graph: str = ""
    epoch: int = 0
    current: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    roster: tuple[str, ...] = ()

    # ---- keys

    def _secret(self, *what: str | int) -> bytes:
        return hmac.digest(self.root, pack([_LABEL, self.run, self.site, *what]), "sha256")

    def introduction(self) -> bytes:
        """What the others are told: both first public keys, 64 bytes."""
        return public(self._secret("channel")) + public(self._secret("masks", 0))

    def met(self, introductions: Mapping[str, bytes]) -> Party:
        """The same, once all have been introduced.

        Raises
        ------
        WireError
            Too few or too many sites, this one not among them as it is, or no keys.
        """
        if not LEAST_SITES <= len(introductions) <= MOST_SITES:
            raise _wrong(f"a masked sum needs {LEAST_SITES} to {MOST_SITES} sites")
        if introductions.get(self.site) != self.introduction():
            raise _wrong("the site was introduced to the others as somebody else")
        if not all(type(x) is bytes and len(x) == 2 * KEY for x in introductions.values()):
            raise _wrong("an introduction without its keys")
        keys = {site: introductions[site] for site in sorted(introductions)}
        if len(set(keys.values())) < len(keys):
            raise _wrong("two sites were introduced by the same keys")
        return dataclasses.replace(
            self,
            channels={site: key[:KEY] for site, key in keys.items()},
            current={site: key[KEY:] for site, key in keys.items()},
            roster=tuple(keys),
            graph=graph_seed(keys),
        )

    @property
    def around(self) -> tuple[str, ...]:
        """Neighbours that contributed to all sums so far."""
        mutual = neighbours(self.site, self.channels, self.graph)
        return tuple(site for site in mutual if site in self.roster)

    @property
    def least(self) -> int:
        """Neighbours that contribute to each sum, and that give a secret back.

        Of those that were introduced: were it of those that are left, sites that were told
        different things of who is left could give back both secrets of another one.
        """
        return threshold(len(neighbours(self.site, self.channels, self.graph)))

    def _blobs(self, question: str, own: bytes, next_key: bytes) -> dict[str, bytes]:
        """Shares for the neighbours: of the next private key, and of `own` if there is one."""
        places = {site: place_of(site, self.channels) for site in self.around}
        if len(places) < self.least:
            raise _wrong("too few sites are left for another masked sum")
        after = self.epoch if not own else self.epoch + 1
        secrets = [self._secret("masks", after), *([own] if own else [])]
        shares = [
            split(
                secret,
                places.values(),
                self._secret("shares", kind, after, digest(secret)),
                self.least,
            )
            for kind, secret in enumerate(secrets)
        ]
        return {
            peer: self._cipher(peer, self.site, peer).encrypt(
                pack([share[place] for share in shares]),
                [self._bound(self.site, peer, question, next_key)],
            )
            for peer, place in places.items()
        }

    def _bound(self, sender: str, recipient: str, question: str, next_key: bytes) -> bytes:
        # The next public key is authenticated with the shares: nobody on the way exchanges it.
        return pack([_LABEL, self.run, sender, recipient, question, next_key])

    def _cipher(self, peer: str, sender: str, recipient: str) -> Any:
        ring = Keyring(self._secret("channel"), b"", self.run, self.site, self.channels)
        return cipher(ring, peer, sender, recipient)

    def _opened(self, sender: str, blob: bytes, question: str, next_key: bytes) -> list[bytes]:
        from cryptography.exceptions import InvalidTag

        bound = self._bound(sender, self.site, question, next_key)
        try:
            shares = unpack(self._cipher(sender, sender, self.site).decrypt(blob, [bound]))
        except (InvalidTag, ValueError):
            raise _wrong(f"shares that site {sender!r} has not sealed for this sum") from None
        whole = isinstance(shares, tuple) and len(shares) == (2 if question else 1)
        if not whole or not all(type(one) is bytes and len(one) == _SHARE for one in shares):
            raise _wrong(f"shares of another form, from site {sender!r}")
        return list(shares)

    # ---- answers

    def first_blobs(self) -> dict[str, bytes]:
        """Shares of the private key for the masks of the first sum, by neighbour."""
        return self._blobs("", b"", self.current[self.site])

    def mask(self, values: FloatArray, question: str) -> Masked:
        """Mask what this site contributes.

        Parameters
        ----------
        values : (c,) array
        question : str
            Digest of what was asked.
        """
        limbs = encoded(values)
        # By what is masked, too: two contributions to one question never have one mask.
        own = self._secret("own", self.epoch, question, digest(limbs.tobytes()))
        private, cells = self._secret("masks", self.epoch), len(limbs)
        shared = (
            (pair_key(private, self.current[peer], self._pair(peer), question), self.site < peer)
            for peer in self.around
        )
        masks = ((stream(key, cells), plus) for key, plus in shared)
        masked = summed(itertools.chain([(limbs, True), (stream(own, cells), True)], masks))
        next_key = public(self._secret("masks", self.epoch + 1))
        return Masked(masked, commitment(own), next_key, self._blobs(question, own, next_key))

    def _pair(self, peer: str) -> tuple[str, str, str, int]:
        return pair_of(self.run, self.site, peer, self.epoch)

    def open(
        self,
        question: str,
        next_keys: Mapping[str, bytes],
        blobs: Mapping[str, bytes],
        earlier: Mapping[str, tuple[str, bytes]],
    ) -> tuple[dict[str, bytes], dict[str, bytes], Party]:
        """Give what takes the masks of a sum out of its total, and go on to the next sum.

        Parameters
        ----------
        question : str
        next_keys : mapping of site to bytes
            The sites that contributed, with their keys for the next masks.
        blobs : mapping of site to bytes
            What contributing neighbours sealed for this site with their contribution.
        earlier : mapping of site to (str, bytes)
            Of neighbours that did not: the question of the sum before, and their blob of it.

        Returns
        -------
        own : dict of site to bytes
            Shares of the own masks of those who contributed.
        keys : dict of site to bytes
            Shares of the private keys of those who did not.
        Party

        Raises
        ------
        WireError
            Sites or shares are not those of this sum.
        """
        present = tuple(sorted(next_keys))
        ours = public(self._secret("masks", self.epoch + 1))
        if not set(present) <= set(self.roster) or next_keys.get(self.site) != ours:
            raise _wrong("the sum is said to be of other sites than those that were asked")
        if len(present) < LEAST_SITES:
            raise _wrong(f"a masked sum is opened for {LEAST_SITES} sites at least")
        there = {peer for peer in self.around if peer in next_keys}
        gone = set(self.around) - there
        # Were three sites enough, each one could be told of others, and their answers together
        # would take all masks out of what one site gave.
        if len(there) < self.least:
            raise _wrong("a masked sum is opened where two thirds of the sites contributed")
        if set(blobs) != there or set(earlier) != gone:
            raise _wrong("the shares are not those of this site's neighbours")
        # First the share of a private key, then that of an own mask.
        own = {
            peer: self._opened(peer, blobs[peer], question, next_keys[peer])[1]
            for peer in sorted(there)
        }
        keys = {
            peer: self._opened(peer, earlier[peer][1], earlier[peer][0], self.current[peer])[0]
            for peer in sorted(gone)
        }
        after = dataclasses.replace(
            self,
            epoch=self.epoch + 1,
            roster=present,
            current={peer: next_keys[peer] for peer in sorted({*there, self.site})},
        )
        return own, keys, after


# --------------------------------------------------------------------------- the coordinator's end


def unmasked(
    masked: Mapping[str, Limbs],
    pads: Mapping[str, bytes],
    gone: Mapping[str, bytes],
    current: Mapping[str, bytes],
    graph: tuple[str, Collection[str]],
    run: str,
    epoch: int,
    question: str,
) -> Limbs:
    """Total of what sites contributed.

    Parameters
    ----------
    masked : mapping of site to (c, `LIMBS`) array
    pads : mapping of site to bytes
        Keys of their own masks.
    gone : mapping of site to bytes
        Private keys for the masks of this sum, of those who did not contribute.
    current : mapping of site to bytes
        Public keys for the masks of this sum.
    graph : (str, collection of str)
        Seed of who shares with whom, and all sites that were introduced.
    run, epoch, question
        As at the sites.
    """

    def terms() -> Iterator[tuple[Limbs, bool]]:
        for site, limbs in masked.items():
            yield limbs, True
            yield stream(pads[site], len(limbs)), False
        for absent in gone:
            for peer in neighbours(absent, graph[1], graph[0]):
                if peer in masked:
                    pair = pair_of(run, peer, absent, epoch)
                    key = pair_key(gone[absent], current[peer], pair, question)
                    # What the peer added is taken away.
                    yield stream(key, len(masked[peer])), not peer < absent

    return summed(terms())


def public(private: bytes) -> bytes:
    """Public half of a private key (X25519, RFC 7748)."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(own: bytes) -> bytes:
    """What is known of the key of an own mask before it is opened."""
    return hashlib.sha256(pack([_LABEL, own])).digest()


def pair_of(run: str, one: str, other: str, epoch: int) -> tuple[str, str, str, int]:
    """What names the masks of two sites for one sum."""
    return (run, *sorted((one, other)), epoch)  # type: ignore[return-value]


def pair_key(private: bytes, peer: bytes, pair: tuple[str, str, str, int], question: str) -> bytes:
    """Key of the masks of two sites, by the private half of one and the public half of the other.

    Raises
    ------
    WireError
        The public key gives no secret (RFC 7748, section 6.1).
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        secret = exchanged(private, peer)
    except ValueError:
        raise _wrong("a key for masks that gives no secret") from None
    info = pack([_LABEL, *pair, question])
    return HKDF(SHA256(), KEY, salt=None, info=info).derive(secret)


def place_of(site: str, sites: Collection[str]) -> int:
    """Place of a site among all that were introduced, from 1: where its shares are."""
    return sorted(sites).index(site) + 1


def question_digest(step: str, round_: int, message: bytes, about: Iterable[bytes] = ()) -> str:
    """Digest of what was asked: of sites that were asked anything else, masks do not cancel.

    Parameters
    ----------
    step : str
    round_ : int
    message : bytes
    about : iterable of bytes
        How the table was read, all questions that were answered before, and the seed.
    """
    return digest(pack([_LABEL, step, round_, digest(message), [digest(one) for one in about]]))


def _wrong(sentence: str) -> WireError:
    return WireError.shared(sentence)

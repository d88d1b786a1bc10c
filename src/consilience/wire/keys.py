"""Public keys of one party: one key, or several that follow one another.

A study file, and a site's own file, list keys like this::

    north = "ed25519:AAA..."
    south = ["ed25519:BBB...", { key = "ed25519:CCC...", endorsement = "..." }]
    west = [{ key = "ed25519:DDD...", until = 2027-01-31 }, "ed25519:EEE..."]

``until`` is the last day (UTC) on which a key counts. ``endorsement`` is the signature of an
earlier key of the same list over the new one: whoever was trusted before says who follows.

Keys come into a list only by the hand of whoever writes the file: nothing that is read from a
shared folder adds one. What an endorsement changes is the *identity* of the party, which is what
others have approved: a key that an earlier one endorses, and a date, which only takes trust away,
leave it as it was; a key that nobody endorsed makes it another.

`rotate` and `retire` keep a directory with the key of a party, and for a while with the one that
follows it::

    <dir>/
      consilience.key, consilience.pub     the key that signs
      next/consilience.key, .pub           made by `rotate`, signs after `retire`
      endorsements.txt                     one line for each key that followed, public

Between the two steps everybody who lists the old key adds the new one. Both steps may be killed
anywhere and are then done again.

The partner key is a secret that the parties of a study over columns share, and a third-party
coordinator lacks. Ids are matched by hashes under it, and keys for fields of one site's eyes only
are made with it.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from consilience.exceptions import RunError, StudyError
from consilience.wire.files import atomic_write, create_file, explained
from consilience.wire.signing import PRIVATE_FILE, PUBLIC_FILE, SigningKey, is_endorsed, public_key

SOON = 30
"""Days before the end of a last key in which a check says so."""
_KNOWN = ("key", "until", "endorsement")


def today() -> date:
    """Return the day by which keys end: the UTC one, the same for all parties."""
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class ListedKey:
    """A public key as a file lists it.

    Attributes
    ----------
    public : str
    until : date or None
        Last day on which it counts.
    endorsement : str
        Signature of an earlier key; empty for a key that stands by itself.
    """

    public: str
    until: date | None = None
    endorsement: str = ""


@dataclass(frozen=True)
class KeyList:
    """Keys of one party, oldest first.

    Attributes
    ----------
    keys : tuple of ListedKey
    """

    keys: tuple[ListedKey, ...]

    @classmethod
    def of(cls, value: object) -> KeyList:
        """Read what a file says: a key, a table, or a list of either.

        Raises
        ------
        StudyError
            A key is malformed or listed twice, or its endorsement is not by an earlier one.
        """
        if isinstance(value, KeyList):
            return value
        listed = [_listed(one) for one in _several(value)]
        if not listed:
            raise StudyError("a list of keys is empty: name a key, or leave it out")
        for position, one in enumerate(listed):
            earlier = [other.public for other in listed[:position]]
            if one.public in earlier:
                raise StudyError(f"the key {one.public} is listed twice: keep one of them")
            # Only an earlier key of the list may say who follows: an endorsement from elsewhere
            # proves nothing.
            if one.endorsement and not _by_one_of(earlier, one):
                raise StudyError(
                    f"the endorsement of the key {one.public} is not by a key listed before it: "
                    "copy both again as 'consilience site keys DIR --rotate' prints them"
                )
        return cls(tuple(listed))

    @property
    def publics(self) -> tuple[str, ...]:
        """All keys, whether they count today or not."""
        return tuple(one.public for one in self.keys)

    @property
    def identity(self) -> str | list[str]:
        """What others approve: the keys that no earlier one endorses, without their dates."""
        # Approvals outlive a rotation of keys: docs/adr/0022-keys-that-follow.md.
        own = [one.public for one in self.keys if not one.endorsement]
        return own[0] if len(own) == 1 else own

    def ended(self, public: str, on: date | None = None) -> date | None:
        """Return the last day of a key where it has passed, otherwise None."""
        on = today() if on is None else on
        for one in self.keys:
            if one.public == public and one.until is not None and one.until < on:
                return one.until
        return None

    def valid(self, on: date | None = None) -> tuple[str, ...]:
        """Keys that count today."""
        return tuple(public for public in self.publics if self.ended(public, on) is None)

    def require_valid(self, whose: str, where: str, on: date | None = None) -> None:
        """Refuse a party whose every key has ended.

        Raises
        ------
        StudyError
        """
        if not self.valid(on):
            last = max(one.until for one in self.keys if one.until is not None)
            raise StudyError(
                f"every key of {whose} has ended, the last one on {last}: {remedy(whose, where)}"
            )

    def remark(self, whose: str, where: str, on: date | None = None) -> str | None:
        """Say that no key counts, or that the last one will end within a month."""
        on = today() if on is None else on
        if not self.valid(on):
            return f"every key of {whose} has ended: {remedy(whose, where)}"
        days = [one.until for one in self.keys if one.public in self.valid(on)]
        known = [day for day in days if day is not None]
        if len(known) < len(days) or (max(known) - on).days > SOON:
            return None
        return f"the last key of {whose} ends on {max(known)}: {remedy(whose, where)}"


def remedy(whose: str, where: str) -> str:
    """What to do about a key that has ended."""
    return (
        f"have {whose} make a new one ('consilience site keys DIR --rotate') and add it to {where}"
    )


def parties(value: object) -> tuple[KeyList, ...]:
    """Read the coordinators that a site trusts: for each a key, a table, or a list of its keys.

    A table with an endorsement belongs to the party whose key endorses it.

    Raises
    ------
    StudyError
        As for `KeyList.of`; or two parties share a key.
    """
    found: list[list[ListedKey]] = []
    for one in _several(value):
        if isinstance(one, KeyList):
            found.append(list(one.keys))
            continue
        if isinstance(one, Sequence) and not isinstance(one, str):
            found.append(list(KeyList.of(one).keys))
            continue
        listed = _listed(one)
        after = [party for party in found if _by_one_of([k.public for k in party], listed)]
        if listed.endorsement and after:
            after[0].append(listed)
        else:
            found.append(list(KeyList.of(one).keys))
    lists = tuple(KeyList(tuple(party)) for party in found)
    publics = [public for party in lists for public in party.publics]
    for public in publics:
        # One key in two lists would let one party ask in the name of two.
        if publics.count(public) > 1:
            raise StudyError(f"the key {public} is listed twice: keep one of them")
    return lists


def _several(value: object) -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    return [value]


def _by_one_of(earlier: Sequence[str], one: ListedKey) -> bool:
    return any(is_endorsed(one.public, by=old, endorsement=one.endorsement) for old in earlier)


def _listed(value: object) -> ListedKey:
    if isinstance(value, ListedKey):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if name not in _KNOWN:
                raise StudyError(
                    f"a key is a text, or a table of {', '.join(_KNOWN)}: {str(name)[:40]!r} is "
                    "not known there"
                )
        public, until = value.get("key"), value.get("until")
        endorsement = value.get("endorsement", "")
        if not isinstance(endorsement, str):
            raise StudyError("an endorsement is a text: copy the whole line again")
        return ListedKey(_valid_key(public), _day(until), endorsement)
    return ListedKey(_valid_key(value))


def _valid_key(value: object) -> str:
    if not isinstance(value, str):
        raise StudyError("a key is a text, 'ed25519:...', or a table with one: correct it")
    public_key(value)
    return value


def _day(value: object) -> date | None:
    if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise StudyError(
            "until of a key is the last day on which it counts, such as 2027-01-31: correct it"
        ) from None


# ------------------------------------------------------------------------------ a party's own keys

NEXT = "next"
ENDORSEMENTS = "endorsements.txt"


@dataclass(frozen=True)
class Retired:
    """What `retire` did.

    Attributes
    ----------
    old, new : str
        Public keys: the one that is gone and the one that signs now.
    entry : str
        The new one as it is listed after the old one.
    """

    old: str
    new: str
    entry: str


def entry(public: str, endorsement: str) -> str:
    """The line that goes into a list of keys of a study file or a site file (TOML)."""
    return f'{{ key = "{public}", endorsement = "{endorsement}" }}'


def rotate(directory: Path) -> str:
    """Make the key that follows the one in a directory; returns its endorsed `entry`.

    A key that waits already is not replaced: its entry is returned again.

    Raises
    ------
    StudyError
        There is no key to follow, or others may read one of them.
    RunError
        The directory cannot be written.
    """
    old = SigningKey.load(_existing(directory))
    place = directory / NEXT
    if (place / PRIVATE_FILE).exists() and (place / PUBLIC_FILE).exists():
        new = SigningKey.load(place)
    else:
        # Half of a key is left by a process that was killed: nobody was told of it.
        for name in (PRIVATE_FILE, PUBLIC_FILE):
            (place / name).unlink(missing_ok=True)
        # It signs nothing before everybody lists it: until `retire` the old key goes on.
        new = SigningKey.generate()
        new.save(place)
    return entry(new.public, old.endorse(new.public))


def retire(directory: Path) -> Retired:
    """Sign with the key that follows, and remove the old one.

    Raises
    ------
    StudyError
        No key follows.
    RunError
        The directory cannot be written.
    """
    old = SigningKey.load(_existing(directory))
    place = directory / NEXT
    if not (place / PRIVATE_FILE).exists():
        last = _last(directory)
        if last is not None and last.new == old.public:
            _tidy(directory, old)  # killed after the exchange of keys
            return last
        raise StudyError(
            f"no key follows the one in {directory}: make one with 'consilience site keys "
            f"{directory} --rotate', and have it listed first"
        )
    new = SigningKey.load(place)
    # Once the old key is gone nobody can make its endorsement again.
    line = f"{old.public} {new.public} {old.endorse(new.public)}"
    lines = _lines(directory / ENDORSEMENTS)
    if line not in lines:
        noted = "".join(f"{one}\n" for one in [*lines, line])
        atomic_write(directory / ENDORSEMENTS, noted.encode())
    with explained("replace", directory / PRIVATE_FILE):
        os.replace(place / PRIVATE_FILE, directory / PRIVATE_FILE)
    _tidy(directory, new)
    return Retired(old.public, new.public, entry(new.public, old.endorse(new.public)))


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise StudyError(f"{directory} is not a directory with a key: make one without an option")
    return directory


def _last(directory: Path) -> Retired | None:
    """What was retired last, as its endorsement says."""
    lines = _lines(directory / ENDORSEMENTS)
    old, new, endorsement = (*(lines[-1].split() if lines else ()), "", "", "")[:3]
    if not is_endorsed(new, by=old, endorsement=endorsement):
        return None
    return Retired(old, new, entry(new, endorsement))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        raise RunError(f"{path} cannot be read: move it away, or restore it") from None


def _tidy(directory: Path, key: SigningKey) -> None:
    """Bring the public file in line with the private one."""
    atomic_write(directory / PUBLIC_FILE, key.public.encode() + b"\n", mode=0o644)
    place = directory / NEXT
    with explained("remove", place):
        (place / PUBLIC_FILE).unlink(missing_ok=True)
        if place.is_dir():
            place.rmdir()


# ----------------------------------------------------------------------------- the key of partners

PREFIX = "partner-key:"
_BYTES = 32


def new_partner_key() -> bytes:
    """Draw a key."""
    return secrets.token_bytes(_BYTES)


def save_partner_key(path: Path, key: bytes) -> None:
    """Write a key to a new file that only its owner may read.

    Raises
    ------
    StudyError
        There is such a file: it is never overwritten.
    RunError
        The file cannot be written.
    """
    try:
        create_file(path, f"{PREFIX}{base64.b64encode(key).decode()}\n".encode())
    except RunError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
        raise StudyError(
            f"{path} exists already and is not overwritten: use that key, or name another file"
        ) from None


def load_partner_key(path: Path) -> bytes:
    """Read a key.

    Raises
    ------
    StudyError
        There is no such file, other users may read it, or it holds no partner key.
    """
    try:
        # Before the text is looked at: a key that others may have read is no secret, whatever is in
        # it.
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StudyError(
            f"the partner key {path} cannot be read ({error.strerror}): make one with 'consilience "
            "site partner-key FILE' and give every party of the study the same one"
        ) from None
    except UnicodeDecodeError:
        text, mode = "", 0
    if stat.S_IMODE(mode) & 0o077:
        raise StudyError(
            f"other users of this machine may read the partner key {path}: run 'chmod 600 {path}'"
        )
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or len(key) != _BYTES:
        raise StudyError(
            f"{path} holds no partner key: make one with 'consilience site partner-key FILE'"
        )
    return key

"""A directory with the key of a party, and for a while with the one that follows it.

::

    <dir>/
      consilience.key, consilience.pub     the key that signs
      next/consilience.key, .pub           made by `rotate`, signs after `retire`
      endorsements.txt                     one line for each key that followed, public

Between the two steps everybody who lists the old key adds the new one. Both steps may be killed
anywhere and are then done again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from consilience.exceptions import RunError, StudyError
from consilience.wire.files import atomic_write, explain
from consilience.wire.signing import PRIVATE_FILE, PUBLIC_FILE, SigningKey, is_endorsed

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
    _note(directory, old, new.public)
    try:
        os.replace(place / PRIVATE_FILE, directory / PRIVATE_FILE)
    except OSError as error:
        raise explain(error, "replace", directory / PRIVATE_FILE) from error
    _tidy(directory, new)
    return Retired(old.public, new.public, entry(new.public, old.endorse(new.public)))


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise StudyError(f"{directory} is not a directory with a key: make one without an option")
    return directory


def _note(directory: Path, old: SigningKey, new: str) -> None:
    """Keep the endorsement: once the old key is gone nobody can make it again."""
    path = directory / ENDORSEMENTS
    line = f"{old.public} {new} {old.endorse(new)}"
    lines = _lines(path)
    if line not in lines:
        atomic_write(path, "".join(f"{one}\n" for one in [*lines, line]).encode())


def _last(directory: Path) -> Retired | None:
    for line in reversed(_lines(directory / ENDORSEMENTS)):
        old, new, endorsement = (*line.split(), "", "", "")[:3]
        if is_endorsed(new, by=old, endorsement=endorsement):
            return Retired(old, new, entry(new, endorsement))
        return None
    return None


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
    try:
        (place / PUBLIC_FILE).unlink(missing_ok=True)
        if place.is_dir():
            place.rmdir()
    except OSError as error:
        raise explain(error, "remove", place) from error

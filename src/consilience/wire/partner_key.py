"""The secret that the parties of a study over columns share, and a third-party coordinator lacks.

Ids are matched by hashes under it, and keys for fields of one site's eyes only are made with it.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path

from consilience.exceptions import StudyError
from consilience.wire.files import explain

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
    text = PREFIX + base64.b64encode(key).decode() + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise StudyError(
            f"{path} exists already and is not overwritten: use that key, or name another file"
        ) from None
    except OSError as error:
        raise explain(error, "write", path) from error


def load_partner_key(path: Path) -> bytes:
    """Read a key.

    Raises
    ------
    StudyError
        There is no such file, other users may read it, or it holds no partner key.
    """
    try:
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

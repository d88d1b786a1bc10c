"""An audit bundle: what a site's log, account, policy and decisions say, signed by its key.

A bundle is a zip file with ``manifest.json``, which has the digest of each other file, and with
``manifest.signed``, the same bytes under the site's signature; one without a key has none, and says
so. The lines of the log are chained by hashes as they are written (`site_store.LogChain`), and the
manifest has what that chain says. In the bundle, where words are left out, they are chained once
more. What the site has answered is told field by field, of runs whose records it keeps. The log
only grows, so the chain of an earlier bundle is the beginning of that of a later one: who keeps
bundles sees whether a line was changed, dropped or put in between. Nothing in a
bundle is a value of the data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import DamageError, SignatureError, WireError
from consilience.sites.policy import Policy
from consilience.sites.site_store import DiskStore, LogChain
from consilience.sites.steward import account, answers
from consilience.wire.signing import Context, SigningKey, unseal

MANIFEST, SIGNED, LOG = "manifest.json", "manifest.signed", "log.jsonl"
LEFT = "left.json"
_ALWAYS = frozenset({LOG, "account.json", "policy.json", "decisions.json"})
_NAMES = _ALWAYS | {MANIFEST, SIGNED, LEFT}
_MOST = 1 << 30
"""Bytes of a file of a bundle that are read at the most: a small zip may hold any number."""
_START = "consilience-audit-1"

TOLD = (
    *("time", "event", "run", "round", "attempt", "study", "method", "step"),
    *("told", "outcome", "file", "bytes", "digest"),
)
"""What is shown of a line of the site's log. Its own words (reasons, traces, what was said of a
table) may quote a cell or name a level, and stay in the home."""


def told(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the site's log without words that may quote a cell."""
    return {key: line[key] for key in TOLD if key in line}


def bundle(site: str, home: DiskStore, policy: Policy, key: SigningKey | None) -> bytes:
    """Make a bundle; without a key it is not signed."""
    read, kept = home.checked_log()
    lines, chain = _chained(told(line) for line in read)
    decided = [{"job": job.name, "state": job.state, **job.facts} for job in home.jobs.all()]
    contents = {
        LOG: "".join(_line(line) + "\n" for line in lines).encode(),
        "account.json": _readable(vars(account(home, policy))),
        "policy.json": _readable(vars(policy)),
        "decisions.json": _readable(decided),
        LEFT: _readable([dataclasses.asdict(answer) for answer in answers(home)]),
    }
    manifest = _readable(
        {
            "site": site,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "key": "" if key is None else key.public,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
            "log": {"lines": len(lines), "chain": chain},
            "kept": vars(kept),
        }
    )
    contents[MANIFEST] = manifest
    if key is not None:
        contents[SIGNED] = key.seal(_context(site), manifest)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in contents.items():
            made.writestr(name, data)
    return packed.getvalue()


@dataclass(frozen=True)
class Verified:
    """What a bundle says of itself, once it was verified.

    Attributes
    ----------
    site, made : str
    key : str
        By which it is signed; empty where it is not.
    n_lines : int
        Of the log.
    chain : str
        Of the whole log.
    links : tuple of str
        The chain after each line.
    kept : LogChain or None
        What the site says of the chain of its own log, whose words are not in the bundle; None in
        bundles from before there was one.
    """

    site: str
    made: str
    key: str
    n_lines: int
    chain: str
    links: tuple[str, ...]
    kept: LogChain | None

    def begins_with(self, earlier: Verified) -> bool:
        """Whether the log of an earlier bundle is the beginning of this one's."""
        if earlier.site != self.site or earlier.n_lines > self.n_lines:
            return False
        # digests that were there do not go
        if earlier.kept and (self.kept is None or self.kept.n_unchained > earlier.kept.n_unchained):
            return False
        return (_START, *self.links)[earlier.n_lines] == earlier.chain


def verify(data: bytes, public: str = "") -> Verified:
    """Verify digests, chain and signature of a bundle.

    Parameters
    ----------
    data : bytes
    public : str
        The site's public key; the one that the bundle names unless given.

    Raises
    ------
    DamageError
        It is no bundle, or a file or line in it was changed.
    SignatureError
        It is not signed by that key.
    """
    contents = _unpacked(data)
    try:
        manifest = json.loads(contents[MANIFEST])
        site, made, key = (str(manifest[name]) for name in ("site", "made", "key"))
        digests, log = dict(manifest["files"]), dict(manifest["log"])
        lines = [dict(json.loads(line)) for line in contents[LOG].splitlines()]
        kept = LogChain(**manifest["kept"]) if "kept" in manifest else None
        if kept is not None and not all(
            type(one) is int and one >= 0 for one in vars(kept).values()
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DamageError("the bundle has no manifest or log that can be read") from None
    # Bundles from before there was one have no list of what left.
    if set(digests) | {LEFT} != _ALWAYS | {LEFT}:
        raise DamageError("the manifest of the bundle names other files than a bundle has")
    for name, digest in digests.items():
        if hashlib.sha256(contents.get(name, b"")).hexdigest() != digest:
            raise DamageError(f"{name} in the bundle is not the file that its manifest describes")
    again, chain = _chained(lines)
    for number, (line, whole) in enumerate(zip(lines, again, strict=True), start=1):
        if line != whole:
            raise DamageError(f"the chain of the log breaks at line {number}")
    if log != {"lines": len(lines), "chain": chain} or (kept and kept.n_lines != len(lines)):
        raise DamageError("the log of the bundle ends elsewhere than its manifest says")
    # One that names a key says that it is signed: it must be.
    if SIGNED in contents or public or key:
        _check_signature(contents, site, public or key)
    return Verified(
        site,
        made,
        public or key,
        len(lines),
        chain,
        tuple(str(one["chain"]) for one in again),
        kept,
    )


def _check_signature(contents: Mapping[str, bytes], site: str, public: str) -> None:
    if SIGNED not in contents:
        raise SignatureError("the bundle is not signed: ask for one that was made with --key")
    try:
        signed = unseal(contents[SIGNED], public=public, context=_context(site))
    except SignatureError:
        raise SignatureError(f"the bundle is not signed by the key {public}") from None
    except WireError:
        raise DamageError("the signature of the bundle is damaged") from None
    if signed != contents[MANIFEST]:
        raise SignatureError("the signature of the bundle is that of another manifest")


def _unpacked(data: bytes) -> dict[str, bytes]:
    """Files of a bundle, none of which has another name or is endless."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            files = packed.infolist()
            names = [one.filename for one in files]
            if len(set(names)) < len(names) or not set(names) <= _NAMES:
                raise DamageError("it is no audit bundle: it holds other files")
            if any(one.file_size > _MOST for one in files):
                raise DamageError("a file in the bundle is larger than any that is made")
            if not _is_bare(files, len(data)):
                raise DamageError(
                    "the bundle holds more than its files, as one does that was packed again: take "
                    "the one that 'consilience site audit' wrote"
                )
            return {one.filename: packed.read(one) for one in files}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError):
        raise DamageError("it is no audit bundle, or not a whole one: copy it again") from None
    except Exception as error:
        if isinstance(error, DamageError):
            raise
        raise DamageError("the bundle cannot be unpacked: copy it again") from None


def _is_bare(files: Iterable[zipfile.ZipInfo], size: int) -> bool:
    """Whether no byte of a zip file is beside its files: before, between, after, in a comment.

    A file has 30 bytes and its name before it, and 46 and its name in the list, which 22 bytes end.
    """
    return size == 22 + sum(76 + 2 * len(one.filename) + one.compress_size for one in files)


def _chained(lines: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Lines with a chain: each one's digest is of the one before it, and of what it says."""
    chain, found = _START, []
    for line in lines:
        said = {key: value for key, value in line.items() if key != "chain"}
        chain = hashlib.sha256(f"{chain}\n{_line(said)}".encode()).hexdigest()
        found.append({**said, "chain": chain})
    return found, chain


def _line(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def _readable(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _context(site: str) -> Context:
    # No run has such a name: what is signed here can be no message of one.
    return Context(".audit", 0, 0, "reply", site, "auditor")

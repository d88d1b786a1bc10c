"""The transcript: one line for each field of each message, chained by hashes, for a data steward.

Each line holds run, round, step, site, direction, audience, field, class, shape, bytes, a salted
digest of the content, the gate's verdict and epsilon, the rank of what the site has revealed of its
columns so far ("3 of 6"), who alone could open the field on its way ("sealed to coordinator";
"open" where whoever carried it could), and ``chain``: the SHA-256 of the previous line's chain and
this line.
Changing, dropping or reordering a line breaks the chain from there on.
The salt stays with the run's payloads: without it a digest cannot be tried against guessed values.

Lines are on disk when `commit` says so: those of a round's questions before any of them is sent.

When refused questions are asked again, a line says from which round on; what crossed before stays,
and that round and the rest follow anew.

The journal of a run: every ask, every reply and the order of delivery, before they are used.

A run is a generator that asks; replaying the journal into a fresh generator brings it to the same
point, so nothing else has to be saved. Records are appended to one file, each with its length and
checksum; a record torn by a crash is cut off on opening and its question asked again. Asks are on
disk before they are sent, and what came when `commit` says so, before it is used. What was
delivered follows from what came: it is on disk with the next ask.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from consilience.exceptions import RunError, WireError
from consilience.parameters import plain
from consilience.wire.codec import digest, pack, pack_parts, unpack
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply
from consilience.wire.files import AppendLog
from consilience.wire.message import Sealed, holds_sealed, iterate_fields

_HEAD = struct.Struct("<II")

Key = tuple[int, str]


@dataclass(frozen=True)
class JournaledAsk:
    """An ask as it was made: step, addressed sites, mode of waiting, digest of its message."""

    step: str
    to: tuple[str, ...]
    wait: str
    digest: str


@dataclass(frozen=True)
class JournaledReply:
    """What came for a question: ``kind`` "reply" with bytes, or "absent" with a reason.

    `sealed` says whether only the coordinator could open the bytes on their way; here they are
    open.
    """

    kind: str
    data: bytes
    reason: str
    sealed: bool = False


class Journal:
    """Journal of one run.

    Parameters
    ----------
    path : Path or None
        File to append to; ``None`` keeps it in memory.

    Attributes
    ----------
    asks : dict of int to JournaledAsk
    replies : dict of (round, site) to JournaledReply
    delivered : dict of int to tuple of (round, site)
        What the generator received at each ask, in order.
    attempt : int
        How often refused questions were asked again, plus one.

    Raises
    ------
    RunError
        A whole record is none that this release writes.
    """

    def __init__(self, path: Path | None) -> None:
        self._log = AppendLog(path, _whole)
        self._pending: list[bytes] = []
        self.asks: dict[int, JournaledAsk] = {}
        self.replies: dict[Key, JournaledReply] = {}
        self.delivered: dict[int, tuple[Key, ...]] = {}
        self.attempt = 1
        position = 0
        data = self._log.content
        while position < len(data):
            length, _ = _HEAD.unpack_from(data, position)
            position += _HEAD.size
            try:
                self._apply(unpack(data[position : position + length]))
            except (WireError, TypeError, ValueError, KeyError, IndexError):
                raise RunError(
                    f"the journal {path} holds a record that this release does not know: it was "
                    "altered, or another release wrote it; start a new run"
                ) from None
            position += length
        # The records are in the dicts now; a long run has gigabytes of replies.
        self._log.content = b""

    def ask(self, round_: int, ask: JournaledAsk) -> None:
        """Note an ask; on replay, check that it is the same one.

        Raises
        ------
        RunError
            The method asks something else than it did when the journal was written.
        """
        known = self.asks.get(round_)
        if known is None:
            self._append({"k": "ask", "r": round_, **vars(ask)})
            self.commit()
        elif known != ask:
            raise RunError(
                f"round {round_} asks something else than the journal says: the run was made by "
                "other code or another study; start a new run"
            )

    def reply(self, key: Key, data: bytes, *, sealed: bool = False) -> None:
        """Note a reply, as it came or as it was opened."""
        facts = {"site": key[1], "data": data, "sealed": sealed}
        self._append({"k": "reply", "r": key[0], **facts})

    def absent(self, key: Key, reason: str) -> None:
        """Note that a site did not answer in time."""
        self._append({"k": "absent", "r": key[0], "site": key[1], "reason": reason})

    def deliver(self, round_: int, keys: tuple[Key, ...]) -> None:
        """Note what the generator is about to receive at an ask."""
        self._append({"k": "deliver", "r": round_, "keys": tuple((r, s) for r, s in keys)})

    def retry_from(self, round_: int) -> None:
        """Forget everything from a round on, except good replies of that round."""
        self._append({"k": "retry", "r": round_})
        self.commit()

    def commit(self) -> None:
        """Wait until all that was noted is on disk."""
        if self._pending:
            self._log.append(*self._pending)
            self._pending.clear()

    def _append(self, record: dict[str, object]) -> None:
        if self._log.path is not None:
            # A checksum for each record: a crash tears the last one, a disk may alter any.
            body = pack(record)
            self._pending += (_HEAD.pack(len(body), zlib.crc32(body)), body)
        self._apply(record)

    def _apply(self, record: dict[str, object]) -> None:
        match record:
            case {"k": "ask", "r": int(r), "step": str(step), "to": tuple(to), **rest}:
                self.asks[r] = JournaledAsk(step, to, str(rest["wait"]), str(rest["digest"]))
            case {"k": "reply", "r": int(r), "site": str(site), "data": bytes(data), **rest}:
                self.replies[(r, site)] = JournaledReply(
                    "reply", data, "", rest.get("sealed") is True
                )
            case {"k": "absent", "r": int(r), "site": str(site), "reason": str(reason)}:
                self.replies[(r, site)] = JournaledReply("absent", b"", reason)
            case {"k": "deliver", "r": int(r), "keys": tuple(keys)}:
                self.delivered[r] = tuple((int(k[0]), str(k[1])) for k in keys)
            case {"k": "retry", "r": int(r)}:
                # Later rounds go whole, and of this one what was not a good reply.
                self.attempt += 1
                self.asks = {k: ask for k, ask in self.asks.items() if k <= r}
                self.delivered = {k: keys for k, keys in self.delivered.items() if k < r}
                self.replies = {
                    key: reply
                    for key, reply in self.replies.items()
                    if key[0] < r or (key[0] == r and _is_good(reply))
                }
            case _:
                raise WireError("the journal holds a record that this release does not know")


def _is_good(reply: JournaledReply) -> bool:
    from consilience.wire.envelope import Reply

    return reply.kind == "reply" and Reply.from_bytes(reply.data).status == "reply"


def _whole(data: bytes) -> int:
    """Length of the leading part that consists of whole records with a right checksum."""
    position = 0
    while position + _HEAD.size <= len(data):
        # What follows a broken record cannot be trusted to be one: everything from there on is cut
        # off.
        length, checksum = _HEAD.unpack_from(data, position)
        body = data[position + _HEAD.size : position + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            break
        position += _HEAD.size + length
    return position


OPEN = "open"
_START = "0" * 64
_AGAIN = "asked-again"
_AFTER = b',"digest":'
"""What stands behind the chain where names are in order."""
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def sealed_to(*readers: str) -> str:
    """How `Line.protection` says that only these can open a field on its way."""
    return f"sealed to {', '.join(readers)}"


@dataclass(frozen=True)
class Line:
    """One field of one message, as the steward reads it.

    `protection` is "open" where whoever carried the field could read it, and otherwise "sealed to"
    who alone can open it; it is empty where nothing was carried.
    """

    run: str
    round: int
    step: str
    site: str
    direction: str
    audience: str
    field: str
    disclosure: str
    shape: str
    bytes: int
    digest: str
    verdict: str
    rule: str
    epsilon: float
    revealed: str = ""
    protection: str = ""
    chain: str = ""


_NOTHING = {"disclosure": "public", "shape": "", "bytes": 0, "digest": "", "field": ""}
_NOTHING |= {"rule": "", "epsilon": 0.0}
_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (float, int)}
_TYPES = {f.name: _KINDS[str(f.type)] for f in fields(Line)}


class Transcript:
    """Transcript of one run.

    Parameters
    ----------
    path : Path or None
        ``transcript.jsonl``, or ``None`` to keep it in memory.
    run : str
    salt : bytes

    Notes
    -----
    On resume the run is replayed, and so is its transcript: lines that are already there must be
    the same ones, otherwise somebody has altered the file. How a field was protected when it was
    carried stays as it was written then: the run may go on by another engine.
    """

    def __init__(self, path: Path | None, run: str, salt: bytes) -> None:
        self._log = AppendLog(path, lambda data: data.rfind(b"\n") + 1)
        self._run, self._salt = run, salt
        self._pending: list[bytes] = []
        self._described: tuple[object, list[tuple[dict[str, Any], list[str]]]] = None, []
        self.lines = _parsed(self._log.content, str(path))
        # Places of the lines that a replay is going to write once more, in this order.
        self._expected = list(range(len(self.lines)))
        for position, line in enumerate(self.lines):
            if line.verdict == _AGAIN:
                self._forget(line.round, position + 1)

    def message(
        self,
        msg: object,
        *,
        round_: int,
        step: str,
        site: str,
        direction: str,
        verdicts: tuple[dict[str, Any], ...] = (),
        sealed: bool = False,
    ) -> None:
        """Record every field of a message; one line without a field where it has none.

        Parameters
        ----------
        sealed : bool
            The whole message was sealed to its recipient on the way.
        """
        carried = OPEN
        if sealed:
            carried = sealed_to("coordinator" if direction == "from-site" else site)
        said = {v["field"]: v for v in verdicts}
        # What goes to all sites is one object: it is encoded and hashed once.
        if msg is not self._described[0]:
            self._described = msg, self._facts(msg)
        facts = self._described[1]
        if not facts:
            self._add(self._line(round_, step, site, direction, "sent", protection=carried))
        for about, readers in facts:
            verdict = said.get(about["field"], {})
            self._add(
                self._line(
                    round_,
                    step,
                    site,
                    direction,
                    str(verdict.get("verdict", "sent")),
                    **about,
                    rule=str(verdict.get("rule", "")),
                    epsilon=float(verdict.get("epsilon", 0.0)),
                    revealed=str(verdict.get("revealed", "")),
                    protection=sealed_to(*readers) if readers else carried,
                )
            )

    def _facts(self, msg: object) -> list[tuple[dict[str, Any], list[str]]]:
        """What lines say of a message's fields, and for whom they are sealed by themselves."""
        found = []
        for name, spec, content in iterate_fields(msg):
            value = content.value if isinstance(content, Released) else content
            value = value if spec.record is None else plain(value)
            encoded = pack_parts(value)
            about = {
                "audience": spec.audience,
                "field": name,
                "disclosure": spec.disclosure.value,
                "shape": describe_shape(value),
                "bytes": sum(len(part) for part in encoded),
                "digest": digest(*encoded, salt=self._salt),
            }
            found.append((about, _readers(value)))
        return found

    def absence(
        self, *, round_: int, step: str, site: str, verdict: str, reason: str, sealed: bool = False
    ) -> None:
        """Record that a site refused, in a reply that was sealed or not, or did not answer."""
        carried = "" if verdict == "absent" else OPEN
        if sealed:
            carried = sealed_to("coordinator")
        facts = {"rule": reason, "protection": carried}
        self._add(self._line(round_, step, site, "from-site", verdict, **facts))

    def _line(
        self, round_: int, step: str, site: str, direction: str, verdict: str, **facts: Any
    ) -> Line:
        """A line; what is not among `facts` is that of something without content."""
        audience = "coordinator" if direction == "from-site" else "site"
        bare = {"audience": audience, **_NOTHING, **facts}
        return Line(self._run, round_, step, site, direction, verdict=verdict, **bare)

    def reply(self, reply: Reply, msg: object, *, sealed: bool = False) -> None:
        """Record a reply with the verdicts that came with it."""
        self.message(
            msg,
            round_=reply.round,
            step=reply.step,
            site=reply.site,
            direction="from-site",
            verdicts=reply.verdicts,
            sealed=sealed,
        )

    def asked_again(self, round_: int) -> None:
        """Record that this round and later ones are asked again of those who did not answer."""
        rule = "from this round on the run goes on anew"
        self._append(self._line(round_, "", "", "to-site", _AGAIN, rule=rule))
        self.commit()
        self._forget(round_, len(self.lines))

    def commit(self) -> None:
        """Wait until all lines are on disk."""
        if self._pending:
            self._log.append(*self._pending)
            self._pending.clear()
        self._described = None, []  # its arrays may be others when it is asked again

    def _forget(self, round_: int, until: int) -> None:
        """Among the lines before place `until`, expect only those that precede a round."""
        before = takewhile(
            lambda place: place < until and self.lines[place].round < round_, self._expected
        )
        self._expected = [*before, *range(until, len(self.lines))]

    def _add(self, line: Line) -> None:
        if not self._expected:
            self._append(line)
            return
        # A replay writes the same lines again: any difference is somebody's change of the file.
        place = self._expected.pop(0)
        known = self.lines[place]
        if replace(known, chain="") != replace(line, protection=known.protection):
            raise RunError(
                f"line {place + 1} of the transcript {self._log.path} is not what this run wrote "
                "there: the file was altered; start a new run"
            )

    def _append(self, line: Line) -> None:
        # Flat: a line holds texts and numbers only.
        body = dict(vars(line))
        del body["chain"]
        encoded = _encode(body)
        chain = _chained(self.lines[-1].chain if self.lines else _START, encoded)
        if self._log.path is not None:
            place = encoded.index(_AFTER)  # in no text: quotes within one are escaped
            linked = b',"chain":"%b"' % chain.encode()
            self._pending += (encoded[:place], linked, encoded[place:], b"\n")
        vars(line)["chain"] = chain  # nobody else has it yet
        self.lines.append(line)


def _readers(value: Any) -> list[str]:
    """For whom a value is sealed itself; models of several sites may have one reader each."""
    if not holds_sealed(value):
        return []
    items = value if isinstance(value, tuple) else (value,)
    return sorted({x.recipient for x in items if isinstance(x, Sealed)})


def describe_shape(value: Any) -> str:
    """Short description of a plain value's structure, without any of its content."""
    if isinstance(value, Sealed):
        return "sealed"
    if isinstance(value, np.ndarray):
        return "x".join(str(n) for n in value.shape) or "scalar"
    if isinstance(value, tuple):
        # Different shapes once each, at most three: a transcript is read by people.
        inner = sorted({describe_shape(item) for item in value})
        return f"{len(value)} of [{'; '.join(inner[:3])}{'; ...' if len(inner) > 3 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe_shape(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bytes):
        return "bytes"
    return "scalar"


def _encode(body: dict[str, Any]) -> bytes:
    return _JSON.encode(body).encode()


def _chained(previous: str, encoded: bytes) -> str:
    return hashlib.sha256(previous.encode() + encoded).hexdigest()


def read_transcript(path: Path) -> tuple[Line, ...]:
    """Read a transcript and verify its chain.

    Raises
    ------
    RunError
        A line is missing, altered or unreadable.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read the transcript {path}: {error.strerror}") from None
    return tuple(_parsed(data, str(path)))


def _parsed(data: bytes, where: str) -> list[Line]:
    """Read lines and verify their chain."""
    lines: list[Line] = []
    previous = _START
    for number, encoded in enumerate(data.splitlines(), start=1):
        try:
            body = json.loads(encoded)
            line = Line(**body)
            # A line is flat and typed: what people and tables read later is checked here once.
            whole = all(isinstance(getattr(line, name), kind) for name, kind in _TYPES.items())
        except (ValueError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise RunError(f"line {number} of the transcript {where} cannot be read")
        # The chain is over all of a line but itself.
        unchained = {key: value for key, value in body.items() if key != "chain"}
        if line.chain != _chained(previous, _encode(unchained)):
            raise RunError(
                f"the chain of the transcript {where} breaks at line {number}: the file was altered"
            )
        previous = line.chain
        lines.append(line)
    return lines

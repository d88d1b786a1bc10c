"""The journal of a run: every ask, every reply and the order of delivery, before they are used.

A run is a generator that asks; replaying the journal into a fresh generator brings it to the same
point, so nothing else has to be saved. Records are appended to one file, each with its length and
checksum; a record torn by a crash is cut off on opening and its question asked again. Asks are on
disk before they are sent, and what came when `commit` says so, before it is used. What was
delivered follows from what came: it is on disk with the next ask.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from consilience.exceptions import RunError, WireError
from consilience.wire.codec import pack, unpack
from consilience.wire.files import AppendLog

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

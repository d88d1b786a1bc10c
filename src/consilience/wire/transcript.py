"""The transcript: one line for each field of each message, chained by hashes, for a data steward.

Each line holds run, round, step, site, direction, audience, field, class, shape, bytes, a salted
digest of the content, the gate's verdict and epsilon, and ``chain``: the SHA-256 of the previous
line's chain and this line. Changing, dropping or reordering a line breaks the chain from there on.
The salt stays with the run's payloads: without it a digest cannot be tried against guessed values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.exceptions import RunError
from consilience.wire.codec import digest, pack, plain_fields
from consilience.wire.envelope import Reply
from consilience.wire.files import AppendLog
from consilience.wire.message import iterate_fields

_START = "0" * 64


@dataclass(frozen=True)
class Line:
    """One field of one message, as the steward reads it."""

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
    chain: str = ""


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
    the same ones, otherwise somebody has altered the file.
    """

    def __init__(self, path: Path | None, run: str, salt: bytes) -> None:
        self._log = AppendLog(path, lambda data: data.rfind(b"\n") + 1)
        self._run, self._salt = run, salt
        self._known = self._log.content.splitlines()
        self.lines: list[Line] = []

    def message(
        self,
        msg: object,
        *,
        round_: int,
        step: str,
        site: str,
        direction: str,
        verdicts: tuple[dict[str, Any], ...] = (),
    ) -> None:
        """Record every field of a message."""
        said = {v["field"]: v for v in verdicts}
        plain = plain_fields(msg)
        for name, spec, _ in iterate_fields(msg):
            encoded = pack(plain[name])
            verdict = said.get(name, {})
            self._add(
                Line(
                    run=self._run,
                    round=round_,
                    step=step,
                    site=site,
                    direction=direction,
                    audience=spec.audience,
                    field=name,
                    disclosure=spec.disclosure.value,
                    shape=describe_shape(plain[name]),
                    bytes=len(encoded),
                    digest=digest(encoded, salt=self._salt),
                    verdict=str(verdict.get("verdict", "sent")),
                    rule=str(verdict.get("rule", "")),
                    epsilon=float(verdict.get("epsilon", 0.0)),
                )
            )

    def absence(self, *, round_: int, step: str, site: str, verdict: str, reason: str) -> None:
        """Record that a site refused or did not answer."""
        self._add(
            Line(
                run=self._run,
                round=round_,
                step=step,
                site=site,
                direction="from-site",
                audience="coordinator",
                field="",
                disclosure="public",
                shape="",
                bytes=0,
                digest="",
                verdict=verdict,
                rule=reason,
                epsilon=0.0,
            )
        )

    def reply(self, reply: Reply, msg: object) -> None:
        """Record a reply with the verdicts that came with it."""
        self.message(
            msg,
            round_=reply.round,
            step=reply.step,
            site=reply.site,
            direction="from-site",
            verdicts=reply.verdicts,
        )

    def _add(self, line: Line) -> None:
        previous = self.lines[-1].chain if self.lines else _START
        body = asdict(line)
        body["chain"] = _link(previous, body)
        encoded = _encode(body)
        position = len(self.lines)
        if position < len(self._known):
            if self._known[position] != encoded:
                raise RunError(
                    f"line {position + 1} of the transcript {self._log.path} is not what this run "
                    "wrote there: the file was altered; start a new run"
                )
        else:
            self._log.append(encoded + b"\n")
        self.lines.append(Line(**body))


def describe_shape(value: Any) -> str:
    """Short description of a plain value's structure, without any of its content."""
    if isinstance(value, np.ndarray):
        return "x".join(str(n) for n in value.shape) or "scalar"
    if isinstance(value, tuple):
        inner = sorted({describe_shape(item) for item in value})
        return f"{len(value)} of [{'; '.join(inner[:3])}{'; ...' if len(inner) > 3 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe_shape(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bytes):
        return "bytes"
    return "scalar"


def _encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _link(previous: str, body: dict[str, Any]) -> str:
    unchained = {key: value for key, value in body.items() if key != "chain"}
    return hashlib.sha256(previous.encode() + _encode(unchained)).hexdigest()


def read_transcript(path: Path) -> tuple[Line, ...]:
    """Read a transcript and verify its chain.

    Raises
    ------
    RunError
        A line is missing, altered or unreadable.
    """
    return tuple(_verified(path))


def _verified(path: Path) -> Iterator[Line]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RunError(f"cannot read the transcript {path}: {error.strerror}") from None
    previous = _START
    for number, text in enumerate(lines, start=1):
        try:
            body = json.loads(text)
            line = Line(**body)
        except (ValueError, TypeError):
            raise RunError(f"line {number} of the transcript {path} cannot be read") from None
        if line.chain != _link(previous, body):
            raise RunError(f"the chain of the transcript {path} breaks at line {number}")
        previous = line.chain
        yield line

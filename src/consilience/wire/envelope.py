"""What travels around a message: a request to a site and the site's reply.

Both name the run, the round and the attempt, so that a repeated question is recognised and gets the
same bytes again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from consilience.exceptions import WireError
from consilience.wire.codec import pack, unpack

WIRE_SCHEMA = 1
E = TypeVar("E", bound="_Envelope")


@dataclass(frozen=True)
class _Envelope:
    def to_bytes(self) -> bytes:
        """Encode; equal envelopes give equal bytes."""
        return pack({"schema": WIRE_SCHEMA, "kind": type(self).__name__, **vars(self)})

    @classmethod
    def from_bytes(cls: type[E], data: bytes) -> E:
        """Decode and check every type; `WireError` for anything else."""
        raw = unpack(data)
        kind = raw.pop("kind", None) if isinstance(raw, dict) else None
        if not isinstance(kind, str) or kind != cls.__name__:
            raise WireError(f"bytes that are not a {cls.__name__.lower()}")
        schema = raw.pop("schema", None)
        # What is told of it stands in an error: only a number may.
        schema = schema if type(schema) is int else None
        if schema != WIRE_SCHEMA:
            raise WireError(
                f"an envelope of wire schema {schema}, here it is {WIRE_SCHEMA}: "
                "install the same release of consilience everywhere"
            )
        if set(raw) != set(cls.__annotations__):
            raise WireError(f"a {cls.__name__.lower()} without its declared fields")
        known = {"str": str, "int": int, "bytes": bytes}
        for name, declared in cls.__annotations__.items():
            # Exact types: True would pass for a round, and a subclass for what it is not.
            if type(raw[name]) is not known.get(declared, type(raw[name])):
                raise WireError(f"{cls.__name__.lower()}.{name} has the wrong type")
            # The site finds its records of a run again by these numbers, as digits.
            if name.endswith(("round", "attempt")) and raw[name] < 0:
                raise WireError(f"{cls.__name__.lower()}.{name} is negative")
        return cls(**raw)


@dataclass(frozen=True)
class Request(_Envelope):
    """One question to one site.

    Attributes
    ----------
    run, study : str
        Run id and hash of the study.
    method, method_version, release : str, int, str
        Which code must answer; `release` is the package version.
    round, attempt : int
        Position in the run; `attempt` rises when refused questions are asked again.
    after_round, after_attempt : int
        Which of the site's own earlier answers this one follows (0, 0 for none): the site goes on
        from the state that it kept with that answer.
    step, site : str
    seed : int
        Seed of the run's public streams.
    message : bytes
        Encoded message.
    """

    run: str
    study: str
    method: str
    method_version: int
    release: str
    round: int
    attempt: int
    after_round: int
    after_attempt: int
    step: str
    site: str
    seed: int
    message: bytes


@dataclass(frozen=True)
class Verdict:
    """What the gate said of one field of a reply.

    Attributes
    ----------
    field, rule, verdict : str
    epsilon : float
        Price of its noise.
    revealed : str
        ``"3 of 6"``: directions of the site's columns that are known after this field, and their
        rank; empty where the field tells none.
    """

    field: str
    rule: str
    verdict: Literal["released", "withheld", "repeated", "public"]
    epsilon: float = 0.0
    revealed: str = ""


_VERDICTS = ("released", "withheld", "repeated", "public")
_VERDICT_KEYS = {f.name for f in dataclasses.fields(Verdict)}
_VERDICT_TEXTS = _VERDICT_KEYS - {"epsilon"}
_REVEALED = re.compile(r"([0-9]{1,9} of [0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True)
class Reply(_Envelope):
    """A site's answer.

    Attributes
    ----------
    status : str
        ``"reply"`` or ``"refused"``.
    message : bytes
        Encoded message, empty for a refusal.
    reason : str
        Why it was refused: a sentence without any value of the data.
    verdicts : tuple of dict
        The gate's verdict on each field.
    """

    run: str
    round: int
    attempt: int
    step: str
    site: str
    status: str
    message: bytes
    reason: str
    verdicts: Any = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> Reply:
        """Decode and check, verdicts included."""
        reply = super().from_bytes(data)
        if reply.status not in ("reply", "refused"):
            raise WireError("a reply with an unknown status")
        if not isinstance(reply.verdicts, tuple):
            raise WireError("a reply without its verdicts")
        for item in reply.verdicts:
            fine = (
                isinstance(item, dict)
                and set(item) == _VERDICT_KEYS
                and isinstance(item["epsilon"], float)
                and 0.0 <= item["epsilon"] < math.inf
                and all(isinstance(item[k], str) and len(item[k]) < 100 for k in _VERDICT_TEXTS)
                # Other words stand for what only a coordinator writes into the transcript.
                and item["verdict"] in _VERDICTS
                and _REVEALED.fullmatch(item["revealed"])
            )
            if not fine:
                raise WireError("a malformed verdict")
        # A reason is shown to people and kept in the transcript: nobody fills either with it.
        if len(reply.reason) > 2000:
            raise WireError("a reply with an oversized reason")
        return reply

    @staticmethod
    def verdicts_to_wire(verdicts: tuple[Verdict, ...]) -> tuple[dict[str, Any], ...]:
        """Plain form of the gate's verdicts."""
        return tuple(dict(vars(v)) for v in verdicts)

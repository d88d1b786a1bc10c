"""Logs of long-running commands: lines for people, or one JSON object a line for programs.

Engines tell what happens as events, ``(kind, facts)``; this module alone decides what of them is
logged. A JSON line has the keys of `KEYS` and no others. Names and numbers are checked for their
form, and of a sentence only its code is kept (`code_of`): what other parties or a table's cells
might have put into a sentence does not reach the machines that collect logs. The sentences are in
the site's own log and in the run directory.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import IO, Annotated, Any

import typer

from consilience.cli.console import clean
from consilience.exceptions import ConsilienceError, QuorumError


class LogFormat(StrEnum):
    """How events are written."""

    text = "text"
    json = "json"


class LogLevel(StrEnum):
    """The least that is written."""

    info = "info"
    warning = "warning"
    error = "error"


Format = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Lines for people, or one JSON object a line."),
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="The least that is logged.")]

KEYS = (
    "time", "level", "event", "run", "round", "step", "site", "outcome", "code", "bytes", "sites",
    "rounds", "exit", "message",
)  # fmt: skip
"""Keys of a JSON line, in order; those that an event does not have are left out."""

CODES: tuple[tuple[str, str], ...] = (
    (r"^steward-refused$|steward (said no|did not release|refused)", "steward-refused"),
    (r"budget|max_epsilon|number of runs", "budget"),
    (r"approved", "not-approved"),
    (r"purged|last asked", "purged"),
    (r"certificate", "certificate"),
    (r"no TLS", "no-tls"),
    (r"connection|connect|unreachable|SuperLink", "connection"),
    (r"same release|has release", "release-differs"),
    (r"has ended on", "key-ended"),
    (r"another coordinator", "other-coordinator"),
    (r"signed|signature", "not-signed"),
    (r"damaged|not complete|no file|not a signed|larger than|cannot be read as", "damaged"),
    (r"disk is full|quota", "disk-full"),
    (r"permission was denied|read-only", "no-permission"),
    (r"synchroniser's copy", "conflicting-copy"),
    (r"closed the run|is gone", "closed"),
    (r"deadline|does not answer|no answer", "no-answer"),
    (r"table|column", "table"),
    (r"policy|records|gate|rows|share", "policy"),
)
"""Patterns in the sentence of a reason, and the code that stands for it; the first counts."""

INTERRUPTED = 130
OTHER = "other"
"""Code of a reason that has none of its own: the site's own log has the sentence."""

_USUAL = frozenset(
    {"answered", "ask", "arrived", "done", "purged", "watching", "stopped", "connected"}
    | {"greeted", "checked"}
)
_ORDER = list(LogLevel)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SECRETS = ((re.compile(r"ed25519:\S+"), "ed25519:..."), (re.compile(r"://\S*@"), "://...@"))


def code_of(reason: str) -> str:
    """Return the code that stands for the sentence of a reason; `OTHER` where none does."""
    # In order: a sentence about a certificate may also speak of the connection.
    for pattern, code in CODES:
        if re.search(pattern, reason, re.IGNORECASE):
            return code
    return OTHER


def level_of(kind: str, facts: dict[str, Any]) -> LogLevel:
    """Level of an event: what went as it should is for information."""
    if kind == "failed":
        return LogLevel.error
    fine = facts.get("outcome", "reply") == "reply"
    return LogLevel.info if kind in _USUAL and fine else LogLevel.warning


class EventLog:
    """Writes events.

    Parameters
    ----------
    format : LogFormat
    level : LogLevel
        The least that is written.
    words : callable
        ``words(kind, facts)`` is the line for people; nothing where it is empty.
    stream : file, optional
        Standard output unless given.
    always : dict, optional
        Facts of every JSON line, for instance the site; more may be added.
    """

    def __init__(
        self,
        format: LogFormat,
        level: LogLevel,
        words: Callable[[str, dict[str, Any]], str],
        *,
        stream: IO[str] | None = None,
        always: dict[str, Any] | None = None,
    ) -> None:
        self.format, self._least, self._words = format, _ORDER.index(level), words
        self._stream = stream
        self.always = dict(always or {})

    @property
    def is_json(self) -> bool:
        """Whether lines are for programs."""
        return self.format is LogFormat.json

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write an event, if its level is asked for."""
        level = level_of(kind, facts)
        # By order, not by name: "error" alone leaves out warnings.
        if _ORDER.index(level) < self._least:
            return
        line = as_line(kind, level, {**self.always, **facts}) if self.is_json else ""
        line = line or self._words(kind, facts)
        if line:
            typer.echo(line if self.is_json else clean(line), file=self._stream or sys.stdout)
            (self._stream or sys.stdout).flush()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End with a JSON line where an error ends the command, and otherwise as every command."""
        try:
            yield
        except typer.Exit as ended:
            if self.is_json and ended.exit_code == INTERRUPTED:
                self.event("interrupted", {})
            raise
        except ConsilienceError as error:
            if not self.is_json:
                raise
            # The reasons of other parties stay in the run directory.
            # Its sentence holds what each site said, of which only a code may be logged.
            many = isinstance(error, QuorumError)
            said = "too few sites answered: 'consilience status' names them" if many else str(error)
            # ``QuorumError`` is ``quorum``, as in the table of exit codes.
            name = type(error).__name__.removesuffix("Error")
            code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
            facts = {"exit": error.exit_code, "message": said, "code": code}
            self.event("failed", facts)
            raise typer.Exit(error.exit_code) from None


def as_line(kind: str, level: LogLevel, facts: dict[str, Any]) -> str:
    """One event as JSON: only known keys, only values of the right form."""
    now = time.time()  # written as in RFC 3339, in UTC
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    shown: dict[str, Any] = {
        "time": f"{second}.{int(now * 1000) % 1000:03d}Z",
        "level": level.value,
        "event": kind.replace(" ", "-"),
    }
    for key in ("run", "round", "step", "site", "outcome", "bytes", "sites", "rounds", "exit"):
        value = facts.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            shown[key] = value
        elif isinstance(value, str) and value:
            # A site or run of another party could be called anything: its form is checked, not its
            # origin.
            shown[key] = value if _NAME.fullmatch(value) else "?"
    if facts.get("reason"):
        # The sentence about a damaged file names its path, in which any word may stand.
        shown["code"] = kind if kind == "damaged" else code_of(str(facts["reason"]))
    if kind == "failed":
        sentence = str(facts["message"])
        for pattern, instead in _SECRETS:
            sentence = pattern.sub(instead, sentence)
        shown |= {"code": facts["code"], "message": sentence}
    return json.dumps({key: shown[key] for key in KEYS if key in shown}, ensure_ascii=True)

"""Replies that wait for the steward: the jobs of a site.

A question is a job, named by run, round and attempt::

    computed -> sent                            nothing is held: no file, its record is all there is
    computed -> held -> released -> sent        the steward lets the reply leave
                held -> refused  -> sent        a refusal leaves instead

The record (`Record.held_after`) says that a reply is held, written in the rename that keeps the
reply itself: at no moment is there a reply that may leave by mistake. The job's file
(``jobs/<run>/<round>-<attempt>.json``) has what the steward decided, by compare-and-set, so that
two decisions cannot both be made; a held reply without a file is computed, and still held.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from consilience.exceptions import DamageError, ParameterError
from consilience.protocol.phases.opening import Heard
from consilience.sites.home import Record, check_run_id, is_run_id
from consilience.wire.codec import decode_message, plain_fields
from consilience.wire.envelope import Reply
from consilience.wire.files import Beneath, explain
from consilience.wire.message import Disclosure, iterate_fields
from consilience.wire.states import Snapshot, StateFile
from consilience.wire.transcript import describe_shape

COMPUTED, HELD, RELEASED, REFUSED, SENT = "computed", "held", "released", "refused", "sent"
TABLE = {
    COMPUTED: (HELD, SENT),
    HELD: (RELEASED, REFUSED),
    RELEASED: (SENT,),
    REFUSED: (SENT,),
    SENT: (),
}
NOT_RELEASED = "the steward did not release the reply"
"""All that a coordinator reads of a refusal: the steward's reason may tell of the data."""
_MOST_REASON = 300
_FACTS = {"method", "step", "since", "bytes", "fields"}
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Hold = Literal["none", "per-record", "all"]


@dataclass(frozen=True)
class Held:
    """Instead of a reply: it is computed and kept, and waits for the steward.

    Asking the same question again is how to learn of the decision.
    """

    run: str
    round: int
    attempt: int
    step: str


@dataclass(frozen=True)
class Job:
    """A job as it stood when it was read.

    Attributes
    ----------
    run : str
    round, attempt : int
    state : str
    facts : dict
        ``method``, ``step``, ``since`` (seconds since 1970), ``fields`` (name, class, shape),
        ``bytes``; after a decision ``decided`` (when) and, of a refusal, ``reason``.
    """

    run: str
    round: int
    attempt: int
    state: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the steward calls it: ``<run>/<round>-<attempt>``."""
        return f"{self.run}/{self.round}-{self.attempt}"


class Jobs:
    """The jobs of a site that were ever held.

    Parameters
    ----------
    folder : Path or None
        ``jobs/`` in the site's home; ``None`` keeps them in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[tuple[str, int, int], StateFile] = {}

    def state(self, run: str, round_: int, attempt: int) -> StateFile:
        """Return the state of one job."""
        if self._folder is not None:
            path = self._folder / check_run_id(run) / f"{int(round_)}-{int(attempt)}.json"
            return StateFile(path, TABLE, COMPUTED)
        key = (check_run_id(run), round_, attempt)
        return self._memory.setdefault(key, StateFile(None, TABLE, COMPUTED))

    def stamp(self, run: str, round_: int, attempt: int) -> object:
        """What changes with every move of a job, at the price of one look at the disk."""
        state = self.state(run, round_, attempt)
        if state.path is None:
            return state.read().version
        try:
            found = state.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def all(self) -> list[Job]:
        """All jobs in order, except damaged ones: one stops no other.

        Raises
        ------
        RunError
            The home cannot be read.
        """
        return self._read()[0]

    def damages(self) -> list[DamageError]:
        """What is damaged among the jobs; `RunError` as in `all`."""
        return self._read()[1]

    def _read(self) -> tuple[list[Job], list[DamageError]]:
        found, damages = [], []
        for key in sorted(self._keys()):
            state = self.state(*key)
            try:
                name, version, facts = state.read()
            except DamageError as error:
                damages.append(error)
                continue
            if version and not facts.keys() >= _FACTS:
                damages.append(state.damaged())
            elif version:
                found.append(Job(*key, name, facts))
        return found, damages

    def waiting(self) -> list[Job]:
        """Jobs that are held, in order."""
        return [job for job in self.all() if job.state == HELD]

    def release(self, run: str, round_: int, attempt: int) -> bool:
        """Let a held reply leave; False where it is not held (any more)."""
        return self.state(run, round_, attempt).move(HELD, RELEASED, decided=time.time())

    def refuse(self, run: str, round_: int, attempt: int, reason: str = "") -> bool:
        """Let a refusal leave instead of a held reply; False where it is not held (any more).

        Parameters
        ----------
        reason : str
            For the steward's own records: it stays in the home.

        Raises
        ------
        ParameterError
            The reason is too long.
        """
        said = "".join(c if c.isprintable() else " " for c in reason).strip()
        if len(said) > _MOST_REASON:
            raise ParameterError.of("reason", f"at most {_MOST_REASON} characters", f"{len(said)}")
        facts = {"decided": time.time(), "reason": said}
        return self.state(run, round_, attempt).move(HELD, REFUSED, **facts)

    def is_held(self, run: str) -> bool:
        """Whether a reply of a run waits for the steward; `DamageError` where that is not known."""
        keys = [key for key in self._keys() if key[0] == run]
        return any(self.state(*key).read().state == HELD for key in keys)

    def purge(self, run: str) -> None:
        """Drop the jobs of a run."""
        for key in [key for key in self._memory if key[0] == run]:
            del self._memory[key]
        if self._folder is None:
            return
        try:
            Beneath(self._folder).remove(check_run_id(run))
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain(error, "remove", self._folder / run) from error

    def _keys(self) -> Iterator[tuple[str, int, int]]:
        yield from list(self._memory)
        if self._folder is None:
            return
        try:
            for path in self._folder.glob("[!.]*/[!.]*.json"):
                round_, _, attempt = path.stem.partition("-")
                run = path.parent.name
                if is_run_id(run) and _NUMBER.fullmatch(round_) and _NUMBER.fullmatch(attempt):
                    yield run, int(round_), int(attempt)
        except OSError as error:
            raise explain(error, "read", self._folder) from error


def holds(hold: Hold, content: object) -> bool:
    """Whether a reply waits for the steward; a refusal has no content and does not.

    Nor does a word that was heard, which says nothing and for which nobody waits.
    """
    if hold == "none" or content is None or isinstance(content, Heard):
        return False
    # What is noised is mostly a value for each record, and never less than a value with a price.
    kinds = {spec.disclosure for _, spec, _ in iterate_fields(content)}
    return hold == "all" or bool(kinds & {Disclosure.PER_RECORD, Disclosure.NOISED})


def waiting_facts(record: Record) -> dict[str, Any]:
    """What the list of held replies shows of a record: never a value."""
    reply = Reply.from_bytes(record.reply)
    message = decode_message(reply.message)
    plain = plain_fields(message)
    fields = [
        {"field": name, "class": spec.disclosure.value, "shape": describe_shape(plain[name])}
        for name, spec, _ in iterate_fields(message)
    ]
    return {
        "method": record.method,
        "step": reply.step,
        "since": time.time(),
        "bytes": len(record.reply),
        "fields": fields,
    }


def was_refused(job: Snapshot) -> bool:
    """Whether the steward decided against a reply, whether or not the refusal has left."""
    return "reason" in job.facts

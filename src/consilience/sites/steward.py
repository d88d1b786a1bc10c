"""What a steward sees of a site's home and decides, for the command line and the desk alike.

Nothing here shows a value of the data: fields are told by name, class, shape and size.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import ConsilienceError, DamageError, RunError, StudyError, WireError
from consilience.protocol.method import Method, get_method
from consilience.sites.accounting import Budget
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank
from consilience.sites.site import APPROVED, COORDINATORS
from consilience.sites.site_store import (
    NOT_RELEASED,
    SENT,
    DiskStore,
    Job,
    Record,
    SiteStore,
)
from consilience.sites.study import SiteFile, Study
from consilience.wire.codec import decode_message, pack, plain_fields
from consilience.wire.envelope import Reply
from consilience.wire.message import iterate_fields
from consilience.wire.transcript import describe_shape


@dataclass(frozen=True)
class Told:
    """One field of a reply, and what the gate said of it.

    Attributes
    ----------
    field, doc, disclosure, audience, shape : str
    bytes : int
        As it is packed for the wire.
    rule, verdict : str
    epsilon : float
    revealed : str
        "3 of 6": directions of the site's columns that are known after it.
    """

    field: str
    doc: str
    disclosure: str
    audience: str
    shape: str
    bytes: int
    rule: str
    verdict: str
    epsilon: float
    revealed: str


def told(message: object, verdicts: tuple[dict[str, Any], ...]) -> Iterator[Told]:
    """Describe a reply field by field.

    Parameters
    ----------
    message : object
        The reply before it is encoded, or as it was decoded.
    verdicts : tuple of dict
        What the gate said of each field.
    """
    said, plain = {verdict["field"]: verdict for verdict in verdicts}, plain_fields(message)
    for name, spec, _ in iterate_fields(message):
        verdict = said.get(name, {})
        yield Told(
            name,
            spec.doc,
            spec.disclosure.value,
            spec.audience,
            describe_shape(plain[name]),
            len(pack(plain[name])),
            str(verdict.get("rule") or "-"),
            str(verdict.get("verdict", "-")),
            float(verdict.get("epsilon", 0.0)),
            str(verdict.get("revealed", "")),
        )


@dataclass(frozen=True)
class Answer:
    """A reply of the site, as it left or waits to leave.

    Attributes
    ----------
    run : str
    round, attempt : int
    study, method, step : str
        The study by its hash.
    outcome : {"left", "refused", "waits", "damaged"}
        "refused": a refusal leaves in its place, and `reason` is its sentence. "waits": for the
        steward, or to be sent. "damaged": its record cannot be read, so what left is not known.
    reason : str
    bytes : int
    digest : str
        SHA-256 of the reply as it left.
    fields : tuple of Told
    """

    run: str
    round: int
    attempt: int
    study: str = ""
    method: str = ""
    step: str = ""
    outcome: str = "damaged"
    reason: str = ""
    bytes: int = 0
    digest: str = ""
    fields: tuple[Told, ...] = ()


def answers(
    home: SiteStore, *, run: str = "", method: str = "", step: str = ""
) -> Iterator[Answer]:
    """What the site has answered, field by field, from the records that it keeps to answer again.

    Parameters
    ----------
    home : SiteStore
    run, method, step : str
        Only those of this run, method or step, and damaged ones; empty for all.

    Yields
    ------
    Answer
        The last run first, each in the order of its rounds. Of a run whose records were purged
        there is nothing left.
    """
    written = home.recorded()
    for name in sorted(written, key=lambda one: (-written[one], one)):
        if run in ("", name):
            for round_, attempt in home.answered(name):
                found = _answer(home, name, round_, attempt)
                # of a damaged one nobody knows the method: it may be what is looked for
                fits = method in ("", found.method) and step in ("", found.step)
                if fits or found.outcome == "damaged":
                    yield found


def _answer(home: SiteStore, run: str, round_: int, attempt: int) -> Answer:
    unknown = Answer(run, round_, attempt)
    try:
        record = home.record(run, round_, attempt)
        if record is None:
            return unknown
        reply = Reply.from_bytes(record.reply)
        outcome, reason = "refused" if reply.status == "refused" else "left", reply.reason
        if record.held_after:
            job = home.jobs.state(run, round_, attempt).read()
            if "reason" in job.facts:  # the steward's refusal takes its place when it is asked for
                outcome, reason = "refused", NOT_RELEASED
            elif job.state != SENT:
                outcome = "waits"
    except (DamageError, WireError):
        return unknown
    fields: tuple[Told, ...] = ()
    if reply.message and outcome != "refused":
        try:
            get_method(record.method)  # it declares the message
            fields = tuple(told(decode_message(reply.message), reply.verdicts))
        except ConsilienceError:  # of a method that is not installed any more
            fields = tuple(
                Told(v["field"], "", "", "", "", 0, v["rule"], v["verdict"], v["epsilon"], "")
                for v in reply.verdicts
            )
    return Answer(
        run,
        round_,
        attempt,
        record.study,
        record.method,
        reply.step,
        outcome,
        reason,
        len(record.reply),
        hashlib.sha256(record.reply).hexdigest(),
        fields,
    )


@dataclass(frozen=True)
class Waiting:
    """A reply that is held: of which method, the message as it would leave, and who asks what."""

    method: type[Method]
    reply: Reply
    message: object
    asked: Mapping[str, str]


def home_of(file: SiteFile) -> DiskStore:
    """The site's home; a watch may be at work in it. `RunError` where nothing ran yet."""
    if not file.home_path.is_dir():
        raise RunError(f"site {file.name!r} has no home {file.home_path} yet: nothing ran here")
    return DiskStore(file.home_path)


def waiting(home: SiteStore, job: Job) -> Waiting:
    """Read a held reply; `RunError` where the records of its run were purged."""
    record = home.record(job.run, job.round, job.attempt)
    if record is None:
        raise RunError(f"the records of run {job.run} were purged: nothing can leave any more")
    # Messages are known by the method that declares them: it must be loaded first.
    method = get_method(str(job.facts["method"]))
    reply = Reply.from_bytes(record.reply)
    return Waiting(method, reply, decode_message(reply.message), _asked(home, job.run, record))


def _asked(home: SiteStore, run: str, record: Record) -> dict[str, str]:
    """By whom a run was opened, for which study and of which columns, in words."""
    by = home.ledger(COORDINATORS).get(run)
    found = {"coordinator": str(by)} if by else {}
    if not record.opening:
        return found
    opening: Any = decode_message(record.opening)
    if record.study:
        # The text is the coordinator's word; its hash says whether it is of this study.
        known = hashlib.sha256(opening.study.encode()).hexdigest() == record.study
        name = f"{Study.from_canonical(opening.study).name}, " if known else ""
        found["study"] = f"{name}hash {record.study}"
    columns, _ = opening.settings()
    for role in dataclasses.fields(columns):
        named = getattr(columns, role.name)
        if named and role.name != "levels":
            found[role.name] = named if isinstance(named, str) else ", ".join(named)
    return found


def approve(file: SiteFile, study: Study, where: object) -> None:
    """Let a study run at the site; once one is approved, no other runs.

    Parameters
    ----------
    file : SiteFile
    study : Study
    where : object
        What the study is called in the sentence of an error.

    Raises
    ------
    StudyError
        The study does not name the site.
    """
    if file.name not in study.sites.names:
        raise StudyError(
            f"{where} does not name site {file.name!r} in [sites]: "
            "approve the study file that its coordinator sent you"
        )
    home = DiskStore(file.home_path)
    # Added, never replaced: an earlier approval holds until the steward takes it back.
    noted = home.ledger(APPROVED)
    hashes = list(noted.get("studies", []))
    if study.hash() not in hashes:
        names = {**noted.get("names", {}), study.hash(): study.name}
        home.write_ledger(APPROVED, {"studies": [*hashes, study.hash()], "names": names})


@dataclass(frozen=True)
class Account:
    """What runs have used of what the policy allows on a data set, and how much that is.

    Attributes
    ----------
    runs : tuple of str
        Those that were opened, in order.
    max_runs : int or None
    epsilon, max_epsilon : float
    models : int
        Models of others that were asked about, or averages of them.
    directions : int
        Directions of the site's columns that are known.
    approved : dict of str to str
        Studies that the policy or the steward has approved: their names, where known, by hash.
    asks_approval : bool
        Whether only approved studies run.
    """

    runs: tuple[str, ...]
    max_runs: int | None
    epsilon: float
    max_epsilon: float
    models: int
    directions: int
    approved: dict[str, str]
    asks_approval: bool


def account(home: SiteStore, policy: Policy) -> Account:
    """Read the ledger of the policy's data set; `RunError` where it is damaged."""
    ledger, approvals = home.ledger(policy.data_id), home.ledger(APPROVED)
    noted, names = approvals.get("studies"), dict(approvals.get("names", {}))
    return Account(
        tuple(ledger.get("runs", ())),
        policy.max_runs,
        Budget.read(ledger).spent,
        policy.max_epsilon,
        sum(dict(ledger.get("models", {})).values()),
        RevealedRank.from_ledger(ledger).directions.shape[1],
        {h: str(names.get(h, "")) for h in (*(policy.approved_studies or ()), *(noted or ()))},
        policy.approved_studies is not None or noted is not None,
    )

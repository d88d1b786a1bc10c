"""What a steward sees of a site's home and decides, for the command line and the desk alike.

Nothing here shows a value of the data: fields are told by name, class, shape and size.

How long a site keeps what it needs only to answer again.

Records hold answers and the secret draws that they rest on. Outputs, ledgers and budgets are not
touched: they are what the steward, and the next run, build on. Each purge is noted in the home's
log before it happens, with what the site had answered, field by field.

An audit bundle: what a site's log, account, policy and decisions say, signed by its key.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from consilience.exceptions import (
    ConsilienceError,
    DamageError,
    ParameterError,
    RunError,
    SignatureError,
    StudyError,
    WireError,
)
from consilience.protocol.method import Method, get_method
from consilience.sites.accounting import Budget
from consilience.sites.loaders import purge_prepared
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank
from consilience.sites.site import APPROVED, COORDINATORS, Site
from consilience.sites.site_store import (
    NOT_RELEASED,
    SENT,
    DiskStore,
    Job,
    LogChain,
    Record,
    SiteStore,
)
from consilience.sites.study import SiteFile, Study
from consilience.wire.codec import decode_message, pack, plain_fields
from consilience.wire.envelope import Reply
from consilience.wire.message import iterate_fields
from consilience.wire.signing import Context, SigningKey, unseal
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


DAY = 86400.0


def old_runs(home: SiteStore, days: float, *, now: float | None = None) -> dict[str, float]:
    """Return runs whose last question is more than `days` days ago, with their age in days.

    Runs with a reply that waits for the steward, or of which that is not known, are not among them.

    Raises
    ------
    ParameterError
        `days` is negative.
    RunError
        The home cannot be read.
    """
    if not days >= 0:
        raise ParameterError.of("days", "0 or a number above", days)
    # Given in tests; the clock of the machine is the site's own affair.
    now = time.time() if now is None else now
    ages = {run: (now - last) / DAY for run, last in home.recorded().items()}
    old = {run: age for run, age in sorted(ages.items()) if age > days}
    return {run: age for run, age in old.items() if not _may_wait(home, run)}


def _may_wait(home: SiteStore, run: str) -> bool:
    try:
        return home.jobs.is_held(run)
    except DamageError:
        return True


def purge_run(site: Site, run: str, why: str) -> None:
    """Purge a run, and note it in the home's log before it happens.

    Raises
    ------
    RunError
        The run id is not allowed, or the home cannot be written.
    """
    # First the notes: after a crash in between, the log says more than was done, never less.
    site.home.log("purged", run=run[:100], reason=why)
    for answer in answers(site.home, run=run):
        site.home.log(
            "answered",
            run=run,
            round=answer.round,
            attempt=answer.attempt,
            study=answer.study,
            method=answer.method,
            step=answer.step,
            outcome=answer.outcome,
            bytes=answer.bytes,
            digest=answer.digest,
            told=[
                f"{f.field}: {f.disclosure} for {f.audience}, {f.shape}, {f.verdict} by {f.rule}"
                for f in answer.fields
            ],
        )
    site.purge(run)


def purge_old(
    site: Site,
    days: float,
    *,
    now: float | None = None,
    why: str = "retention",
    on_error: Callable[[str, RunError], None] | None = None,
) -> dict[str, float]:
    """Purge runs that were not asked for some days; returns their ages in days.

    Parameters
    ----------
    on_error : callable, optional
        ``on_error(run, error)`` for a run that cannot be purged; the others are. Without it the
        first such error is raised when all others are purged.

    Raises
    ------
    ParameterError, RunError
        As `old_runs` and `purge_run`.
    """
    found, errors = old_runs(site.home, days, now=now), []
    for run, age in list(found.items()):
        try:
            purge_run(site, run, f"{why}: last asked {age:.1f} days ago, kept for {days:g}")
        except RunError as error:
            del found[run]
            errors.append(error)
            if on_error is not None:
                on_error(run, error)
    if isinstance(site.home, DiskStore):
        purge_prepared(site.home.path, older_than=days)
    if errors and on_error is None:
        raise errors[0]
    return found


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


def public(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the site's log without words that may quote a cell."""
    return {key: line[key] for key in TOLD if key in line}


def bundle(site: str, home: DiskStore, policy: Policy, key: SigningKey | None) -> bytes:
    """Make a bundle; without a key it is not signed."""
    read, kept = home.checked_log()
    lines, chain = _chained(public(line) for line in read)
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

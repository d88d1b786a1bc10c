"""What a site computes: a step and the gate's review, as a pure function of a `Work`.

It may run in another process: everything that it needs is in the work, and everything that it gives
is in the `Outcome`, which ``sites.site`` writes before anything leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from consilience.exceptions import (
    ConsilienceError,
    DisclosureError,
    ProtocolError,
    SignatureError,
    WireError,
    shortened,
)
from consilience.numerics.parallel import one_thread
from consilience.numerics.random import stream
from consilience.protocol.method import MASKED_SUMS, SiteData, Step, get_method
from consilience.protocol.phases import opening, secure_sums
from consilience.protocol.phases.prepare import steps_of
from consilience.sites import gate, outputs
from consilience.sites.policy import Policy
from consilience.sites.revealed_rank import RevealedRank, rank_of
from consilience.sites.site_store import File, Record
from consilience.wire.codec import decode_question, digest, encode_message, pack_parts
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply, Request, Verdict
from consilience.wire.message import Disclosure, iterate_fields, message_type
from consilience.wire.sealing import Keyring, open_message, seal_message, senders
from consilience.wire.secure_sums import question_digest

if TYPE_CHECKING:
    from consilience.wire.signing import Context, SigningKey

KEYS = "_keys"
"""Entry of a record's state in which the house keeps keys; steps do not see it there."""
_ASKED = "asked"
"""Entry of a run's series: digest of all questions answered in it, whatever line they came in."""


class StepContext:
    """What a step may use (see `protocol.method.SiteContext`), and what it gives beside its reply.

    Parameters
    ----------
    work : Work
    state : mapping
        Of the method, with the keys that the house keeps in it.
    """

    def __init__(self, work: Work, state: Mapping[str, Any]) -> None:
        r, self.policy = work.request, work.policy
        self.site, self.run, self.step, self.round, self.seed = (
            r.site,
            r.run,
            r.step,
            r.round,
            r.seed,
        )
        # Fixed secrets (tests only) do not depend on the attempt, so that runs can be compared.
        self._entropy = None if work.secret_seed is None else [work.secret_seed, r.round]
        self.limits = self.policy.limits
        self.preset: str = self.policy.preset
        self.per_record, self.share_names = self.policy.per_record, self.policy.share_names
        self.share_response = self.policy.share_response
        self.foreign_models = self.policy.foreign_models
        self.ledger = RevealedRank.from_ledger(work.ledger)
        self.keys: dict[str, Any] = dict(state.get(KEYS, {}))
        self.partner_key, self._identity = work.partner_key, work.identity
        self._approved = work.approved
        opened = None
        if work.prior is not None and work.prior.opening:
            opened = decode_question(work.prior.opening)
        self.preparation = "" if opened is None else opened.preparation
        self._study = "" if opened is None else opened.study
        # No federation of one process has a study's text: what its steward asks for holds then.
        self._insists = (
            opened is not None and opened.partition == "rows" and self.policy.masked_sums
        )
        self.kept, self.followed = work.kept, work.followed
        self.series: Mapping[str, Any] = MappingProxyType(work.series)
        self.senders: dict[str, tuple[str, ...]] = {}
        self.outputs: dict[str, Any] = {}
        self.tables: dict[str, Mapping[str, Any]] = {}
        self.notes: list[str] = []
        self.keeping: dict[str, Any] | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """Public stream of site, round and step."""
        return stream(self.seed, "site", self.site, self.round, self.step)

    @cached_property
    def secret_rng(self) -> np.random.Generator:
        """Secret stream."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self._entropy)))

    @property
    def masks_sums(self) -> bool:
        """Whether sums leave masked: study or steward say so, or the sites have met to do it."""
        met = secure_sums.KEYS in self.keys
        return met or self._insists or sums_of(self._study) == secure_sums.SECURE

    @property
    def quorum(self) -> int:
        """Sites that must answer, by the study."""
        sites = json.loads(self._study).get("sites", {}) if self._study else {}
        least = sites.get("quorum")
        return len(sites.get("names", ())) if least is None else int(least)

    def sign(self, data: bytes) -> bytes:
        """Sign for the other sites of the run."""
        if self._identity is None:
            return b""
        return self._identity.seal(introduced(self.run, self.site), data)

    def require_signed(self, site: str, data: bytes, signed: bytes) -> None:
        """Check what another site has signed, by its keys in the study that was opened here."""
        if self._identity is None:
            return  # all sites are in one process
        if not self._approved:
            # A coordinator that writes the study writes its keys, too.
            sentence = (
                "masked sums rest on the keys that a study names: the steward approves the study "
                "first ('consilience site approve')"
            )
            raise DisclosureError.shared(sentence)
        from consilience.wire.signing import unseal

        listed = json.loads(self._study)["sites"]["keys"].get(site, []) if self._study else []
        for public in [listed] if isinstance(listed, str) else listed:
            with contextlib.suppress(WireError, SignatureError):
                if unseal(signed, public=public, context=introduced(self.run, site)) == data:
                    return
        sentence = f"site {site[:60]!r} has not signed its keys by one that the study names"
        raise WireError.shared(sentence)

    def stream(self, *key: str | int) -> np.random.Generator:
        """Public stream by key, round and step, whatever site asks."""
        return stream(self.seed, "agent", *key, self.round, self.step)

    def output(self, name: str, value: Any) -> None:
        """Keep something at the site."""
        self.outputs[name] = value

    def table(self, name: str, columns: Mapping[str, Any]) -> None:
        """Keep a table at the site."""
        self.tables[name] = columns

    def note(self, sentence: str) -> None:
        """Say something to the site's own people."""
        self.notes.append(sentence)

    def keep(self, value: dict[str, Any]) -> None:
        """Keep what this step drew."""
        self.keeping = value

    def role(self, site: str) -> str:
        """Role of a site, as the parties were told when ids were matched."""
        return str(self.keys.get("roles", {}).get(site, ""))

    def revealed(
        self, factor: np.ndarray, names: tuple[str, ...], directions: np.ndarray
    ) -> tuple[int, int, bool]:
        """Count what a release of ``x @ directions`` would make known of these columns."""
        span = (self.ledger.columns, _frozen(self.ledger.scales), _frozen(self.ledger.directions))
        known, rank = _counted(span, names, _frozen(factor), _frozen(directions))
        return known, rank, known <= self.policy.revealed_limit(rank)

    def known_along(self, names: tuple[str, ...]) -> np.ndarray:
        """Directions (p, k) of these columns that are known, over all runs."""
        return self.ledger.along(names)


@lru_cache(maxsize=8)
def sums_of(study: str) -> str:
    """How a study sums, by its canonical text; of one without a text nothing is known."""
    return str(json.loads(study).get("sums", "plain")) if study else ""


def introduced(run: str, site: str) -> Context:
    """What a site's signature over its first keys for masked sums is bound to."""
    from consilience.wire.signing import Context

    return Context(run, 0, 0, "reply", site, "all sites", about="masked sums")


Frozen = tuple[tuple[int, ...], bytes]


def _frozen(array: np.ndarray) -> Frozen:
    return array.shape, np.ascontiguousarray(array, dtype=float).tobytes()


def _thawed(frozen: Frozen) -> np.ndarray:
    # An empty buffer is no buffer to numpy.
    flat = np.frombuffer(frozen[1]) if frozen[1] else np.empty(0)
    return flat.reshape(frozen[0])


@lru_cache(maxsize=16)
def _counted(
    span: tuple[tuple[str, ...], Frozen, Frozen],
    names: tuple[str, ...],
    factor: Frozen,
    directions: Frozen,
) -> tuple[int, int]:
    """Directions known after a release, and the rank: an exchange asks the same many times."""
    columns = _thawed(factor)
    ledger = RevealedRank(span[0], _thawed(span[1]), _thawed(span[2]))
    known = ledger.after(names, _thawed(directions), columns)
    return known.count(columns, names), rank_of(columns)


@dataclass(frozen=True)
class Work:
    """Everything a step needs, so that it can be computed in another process."""

    request: Request
    request_digest: str
    data: SiteData
    prior: Record | None
    earlier_outputs: dict[str, Any]
    policy: Policy
    secret_seed: int | None
    release: str
    epsilon: float = 0.0
    series: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    partner_key: bytes = b""
    ledger: dict[str, Any] = field(default_factory=dict)
    kept_name: str = ""
    kept: dict[str, Any] | None = None
    followed: outputs.Left | None = None
    identity: SigningKey | None = None
    approved: bool = False
    read: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """All but what was read of the question and of the opening: another process reads anew."""
        return {**vars(self), "read": ()}


@dataclass(frozen=True)
class Outcome:
    """What a step gave: a record to keep, files to write, lines for the site's own log.

    ``content`` is the reply before encoding, for the steward's preview; it stays in this process.
    ``series`` are the last releases of repeated sums, ``revealed`` the directions known of the
    columns, this reply included; ``keeping`` is what the step drew once for the data.
    """

    record: Record
    files: dict[str, File]
    log: tuple[dict[str, Any], ...]
    content: object = None
    series: dict[str, Any] = field(default_factory=dict)
    revealed: RevealedRank | None = None
    keeping: dict[str, Any] | None = None


def compute(work: Work) -> Outcome:
    """Run a step and the gate; never raises for what a step or a message does wrong."""
    asked: dict[str, Any] = {}
    try:
        with one_thread():
            return _answered(work, asked)
    except ConsilienceError as error:
        return refused(work, error.public, error, asked)
    except Exception as error:  # noqa: BLE001  a step's own failure must not show a value
        reason = f"step {work.request.step!r} failed at the site; its own log says how"
        return refused(work, reason, error, asked)


def _answered(work: Work, counted: dict[str, Any]) -> Outcome:
    """The answer; `counted` receives what is remembered of the question if it is refused, too."""
    request = work.request
    if work.module:
        importlib.import_module(work.module)  # registers the method where this is another process
    step = step_of(request)
    prior = work.prior or Record(0, 0, "", b"")
    context = StepContext(work, prior.state)
    ring = _keyring(context)
    message = decode_question(request.message, max_bytes=work.policy.max_message_bytes)
    # A message of another step could carry what this step's author never looked for.
    if type(message) is not step.request:
        raise WireError(
            f"step {step.name!r} was asked with another message",
            public="the step was asked with a message that is not its own",
        )
    context.senders = senders(message)
    message = _opened(message, ring)
    masks = context.masks_sums and step not in secure_sums.STEPS
    if masks and not _is_public(step.reply):
        _require_masks(step, context)
    asked = _asked_once(step, prior, context, work)
    asked |= _counted_up(step, message, work, context)
    if step.summed:
        # That a sum is refused may hang on the rows: else it could be tried until it is not.
        counted |= asked
    # Keys for other sites' eyes are the house's: no step can write or leak them.
    state = {name: value for name, value in prior.state.items() if name != KEYS}
    reply, state = step(message, work.data, state, context)
    # The gate judges by declaration: only the declared message may go there.
    if type(reply) is not step.reply:
        raise ProtocolError(f"step {step.name!r} replied with {type(reply).__name__}")
    reviewed = gate.review(
        reply,
        work.policy,
        work.series,
        epsilon_spent=work.epsilon,
        revealed=context.ledger,
        seal=lambda content: _sealed(content, context),
    )
    said, leaving, content = reviewed.verdicts, reviewed.message, reviewed.content
    outside = (*secure_sums.STEPS, opening.read, opening.told)
    if step not in outside and (masks or not context._study):
        # An answer depends on all questions before it, of whatever line, and on the seed: of sites
        # that were asked others the masks do not cancel. Without a study's text they may meet yet.
        chain = work.series.get(_ASKED, {"digest": ""})["digest"]
        before = (prior.opening, chain.encode(), str(request.seed).encode())
        line = question_digest(request.step, request.round, request.message, before)
        asked[_ASKED] = {"digest": line}
        if masks and not _is_public(step.reply):
            said, leaving, content = _masked(step, reviewed, context, line)
    verdicts = Reply.verdicts_to_wire(said)
    envelope = _envelope(work, "reply", leaving, "", verdicts)
    transforms = prior.transforms
    if step.transform is not None:
        transforms = (*transforms, (step.name, request.message))
    record = Record(
        round=request.round,
        attempt=request.attempt,
        request_digest=work.request_digest,
        reply=envelope.to_bytes(),
        state={**state, KEYS: context.keys} if context.keys else state,
        transforms=transforms,
        opening=request.message if step.name == opening.NAME else prior.opening,
        study=request.study,
        method=request.method,
    )
    files = {}
    if context.outputs:
        files = outputs.encode_outputs(context.outputs, work.earlier_outputs, work.data)
    for name, columns in context.tables.items():
        files |= outputs.encode_table(name, columns)
    log = tuple({"event": "note", "run": request.run, "said": said} for said in context.notes)
    return Outcome(
        record,
        files,
        log,
        content,
        {**reviewed.series, **asked},
        reviewed.revealed,
        context.keeping,
    )


def _opened(message: Any, ring: Keyring | None) -> Any:
    """Message with what was encrypted to this site decrypted."""
    if ring is not None:
        return open_message(message, ring)
    for name, spec, _ in iterate_fields(message):
        if spec.for_role and spec.disclosure is not Disclosure.PUBLIC:
            sentence = f"field {name!r} is for one site's eyes, before the sites were introduced"
            raise WireError.shared(sentence)
    return message


def _sealed(content: Any, context: StepContext) -> Any:
    """Reply with the fields that are for one site's eyes encrypted to it.

    Raises
    ------
    DisclosureError
        The role of a recipient is not the declared audience.
    """
    recipients = {}
    for name, spec, value in iterate_fields(content):
        evidence = value.evidence if isinstance(value, Released) else None
        if evidence is None or not evidence.recipient:
            continue
        if context.role(evidence.recipient) != spec.audience:
            sentence = f"field {name!r} is for a {spec.audience}, which its recipient is not"
            raise DisclosureError.shared(sentence)
        recipients[name] = evidence.recipient
    if not recipients:
        return content
    ring = _keyring(context)
    if ring is None:
        raise ProtocolError("a field for another site's eyes, before the sites were introduced")
    return seal_message(content, ring, recipients)


def _is_public(reply: type) -> bool:
    """Whether a reply tells nothing of rows."""
    return all(f.disclosure is Disclosure.PUBLIC for f in message_type(reply).fields.values())


def _require_masks(step: Step, context: StepContext) -> None:
    """Check that the reply will be a part of a sum, before anything is computed.

    What is computed could be refused, or not, for what the rows are.

    Raises
    ------
    DisclosureError
        It would tell more, or the sites have not met.
    """
    if secure_sums.KEYS not in context.keys:
        context.policy.check_sums(sums_of(context._study))
    if not step.summed:
        raise DisclosureError.shared(
            f"the study masks sums, and step {step.name!r} tells what is this site's alone"
        )
    if secure_sums.party_of(context) is None:
        raise DisclosureError.shared("the study masks sums, and the sites have not met")


def _masked(
    step: Step, reviewed: gate.Reviewed, context: StepContext, question: str
) -> tuple[tuple[Verdict, ...], bytes, Any]:
    """Verdicts, bytes and content of a reply as it leaves in a study with masked sums."""
    reply = secure_sums.concealed(reviewed.content, step, question, context)
    gaps = any(verdict.verdict == "withheld" for verdict in reviewed.verdicts)
    outcome: Literal["released", "withheld"] = "withheld" if gaps else "released"
    said = tuple(
        Verdict(name, "", "public")
        if spec.disclosure is Disclosure.PUBLIC
        else Verdict(name, "masked", outcome)
        for name, spec, _ in iterate_fields(reply)
    )
    return said, encode_message(reply), reply


def _keyring(context: StepContext) -> Keyring | None:
    """Keys for fields of one site's eyes, once the sites were introduced to each other."""
    if "peers" not in context.keys:
        return None
    return Keyring(
        private=context.keys["private"],
        partner_key=context.partner_key,
        run=context.run,
        site=context.site,
        peers=context.keys["peers"],
    )


def _asked_once(step: Step, prior: Record, context: StepContext, work: Work) -> dict[str, Any]:
    """What is remembered of a step that is answered once in a run.

    Raises
    ------
    DisclosureError
        Another message of this step was answered before, in this line of questions or in another,
        or the same one after other answers or on rows in other units, on which the reply to it may
        depend.
    """
    if not step.once or (step.once == MASKED_SUMS and not context.masks_sums):
        return {}
    name = f"once {step.name}"
    if isinstance(step.once, str) and step.once != MASKED_SUMS:
        name = " ".join((name, *context.senders.get(step.once, ())))
    # Rows in other units give other sums: the same question on them is another question.
    units = [message for _, message in prior.transforms]
    # State and message together: an answer may depend on both.
    seed = str(work.request.seed).encode()
    sealed = digest(work.request.message, seed, *pack_parts(prior.state), *units)
    if work.series.get(name, {"message": sealed})["message"] != sealed:
        sentence = f"step {step.name!r} is answered once in a run: start another run"
        raise DisclosureError.shared(sentence)
    return {name: {"message": sealed}}


def _counted_up(step: Step, message: Any, work: Work, context: StepContext) -> dict[str, Any]:
    """Numbers of what a step answers so often in a run, this message included.

    Raises
    ------
    DisclosureError
        One of them is used up.
    """
    if step.tally is None:
        return {}
    found, limits = {}, work.policy.limits
    if step.summed and context.masks_sums:
        # Masks protect a site of one person, too: there what is refused would tell of that one.
        limits = dataclasses.replace(limits, min_records=max(2, limits.min_records))
    for name, (asked, most) in step.tally(message, work.data, limits).items():
        # Over all lines of questions of the run: who begins again does not begin at 0.
        total = work.series.get(f"tally {name}", {"asked": 0})["asked"] + asked
        if asked and total > most:
            sentence = f"more questions on the same rows than a site answers in a run ({name})"
            raise DisclosureError.shared(sentence)
        found[f"tally {name}"] = {"asked": total}
    return found


def refused(
    work: Work, reason: str, error: Exception, asked: Mapping[str, Any] = MappingProxyType({})
) -> Outcome:
    """Return the outcome of a refusal: its public reason, and the trace for the site's own log.

    ``asked`` is what is remembered of the question all the same.
    """
    prior = work.prior or Record(0, 0, "", b"")
    envelope = _envelope(work, "refused", b"", shortened(reason), ())
    record = dataclasses.replace(
        prior,
        round=work.request.round,
        attempt=work.request.attempt,
        request_digest=work.request_digest,
        reply=envelope.to_bytes(),
    )
    # The trace is for the site's own log: others read the reason alone.
    line: dict[str, Any] = {
        "event": "refused",
        "run": work.request.run,
        "step": work.request.step,
        "reason": str(error) or type(error).__name__,
        "told": shortened(reason),
        "trace": "".join(traceback.format_exception(error)),
    }
    if not isinstance(error, ConsilienceError):
        line["foreign"] = True  # its sentence may quote values: no other log repeats it
    return Outcome(record, {}, (line,), series={**work.series, **asked} if asked else {})


def _envelope(
    work: Work, status: str, message: bytes, reason: str, verdicts: tuple[dict[str, Any], ...]
) -> Reply:
    r = work.request
    return Reply(r.run, r.round, r.attempt, r.step, r.site, status, message, reason, verdicts)


def step_of(request: Request) -> Step:
    """Return the step that a request names; `WireError` where the method has none of that name."""
    steps = steps_of(get_method(request.method))
    if request.step not in steps:
        raise WireError(
            f"method {request.method!r} has no step {request.step[:60]!r}",
            public="the method has no step of that name here",
        )
    return steps[request.step]

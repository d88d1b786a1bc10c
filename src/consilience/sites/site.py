"""A site: reads its own rows, answers questions, and keeps what it answered.

`Site.answer` takes the bytes of a request and returns the bytes of a reply. In between, in order:

1. A repeated question gets the bytes it got before.
2. ``opening.read`` loads the table as the study says; other steps receive the rows that it gave,
   after the preparing steps so far.
3. The step computes (`compute`: a pure function of a `Work`, which may run in another process).
4. The gate reviews the reply; outputs, state and reply are written; then the reply leaves.
5. Where replies are held it does not leave before the steward has released it (``site_store.py``):
   until then the answer is `Held`, and asking again gives the reply, or a refusal.

Whatever goes wrong becomes a refusal whose reason names no value; the site's own log has the rest.
Where a file of the home is damaged, what needs it is refused too, but nothing is kept of that: once
the file is restored, the question is answered as if nothing had been.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.exceptions import (
    BudgetError,
    ConsilienceError,
    DamageError,
    DataError,
    DisclosureError,
    ProtocolError,
    RunError,
    WireError,
)
from consilience.numerics.parallel import one_thread
from consilience.protocol.method import Method, SiteData, get_method
from consilience.protocol.phases import opening, secure_sums
from consilience.protocol.phases.prepare import CONFIRM, HOUSE_STEPS, check_missing
from consilience.sites import accounting, outputs
from consilience.sites.policy import Policy
from consilience.sites.prepare import AllRows, Loaded
from consilience.sites.revealed_rank import RevealedRank
from consilience.sites.row_guard import RowGuard
from consilience.sites.site_store import (
    COMPUTED,
    HELD,
    NOT_RELEASED,
    REFUSED,
    RELEASED,
    SENT,
    Held,
    Hold,
    MemoryStore,
    Record,
    SiteStore,
    check_run_id,
    holds,
    waiting_facts,
)
from consilience.sites.step_runner import (
    KEYS,
    Outcome,
    Work,
    compute,
    refused,
    step_of,
    sums_of,
)
from consilience.wire.codec import MAX_BYTES, decode_message, decode_question, digest
from consilience.wire.envelope import Reply, Request
from consilience.wire.sealing import hashed_ids

if TYPE_CHECKING:
    from consilience.wire.signing import SigningKey

APPROVED = "_approved"
"""Ledger of the studies that the steward has approved beside the policy (no data id begins so)."""
COORDINATORS = "_coordinators"
"""Ledger of which coordinator began which run."""
TABLES = "_tables"
"""Ledger of the tables with which runs were opened, by the hash of their content, before it was in
that of the data."""
PURGED = "_purged"
"""Ledger of the runs whose records were dropped."""

Transforms = tuple[tuple[str, bytes], ...]
Loader = Callable[..., "SiteData | Loaded"]
Confirm = Callable[[Request, object, tuple[dict[str, Any], ...]], bool]


class Site:
    """One party of a federation.

    Parameters
    ----------
    name : str
    loader : callable
        ``loader(columns, preparation) -> SiteData or Loaded``; reads the table anew. Over columns
        it gets ``partition="columns"`` too.
    policy : Policy
    home : SiteStore, optional
        In memory unless given.
    confirm : callable, optional
        Shown every reply before it leaves (request, message, verdicts); False refuses it.
    partner_key : bytes
        Secret that the parties of studies over columns share.
    hold : {"none", "per-record", "all"}
        Which replies wait for the steward: those with values for each record, or all. Refusals
        leave at once.

    Attributes
    ----------
    identity : SigningKey or None
        The site's own key, where its messages are signed.
    """

    def __init__(
        self,
        name: str,
        loader: Loader,
        *,
        policy: Policy | None = None,
        home: SiteStore | None = None,
        confirm: Confirm | None = None,
        partner_key: bytes = b"",
        hold: Hold = "none",
    ) -> None:
        self.name = name
        self.policy = Policy() if policy is None else policy
        self.home = MemoryStore() if home is None else home
        self.confirm = confirm
        self.hold: Hold = hold
        self._loader = loader
        self._partner_key = partner_key
        self._prepared: dict[str, tuple[bytes, Transforms, SiteData]] = {}
        self._secret_seed: int | None = None
        self.identity: SigningKey | None = None
        self.computed = 0
        self._damages: dict[str, str] = {}
        self._row_guard = RowGuard(self.policy)

    def answer(self, request: bytes) -> bytes | Held:
        """Answer one question; see the module's text for what happens.

        Returns
        -------
        bytes or Held
            The reply, or that it waits for the steward: then the same question is asked again.

        Raises
        ------
        WireError, RunError
            As `begin`; nothing may leave.
        """
        work = self.begin(request)
        return self.finish(work, compute(work)) if isinstance(work, Work) else work

    def begin(self, data: bytes) -> bytes | Held | Work:
        """Read a request: return the stored reply, or the work to be computed.

        Raises
        ------
        WireError
            The bytes are not a request to this site.
        RunError
            The home cannot be read or written.
        """
        request = Request.from_bytes(data)
        if request.site != self.name:
            raise WireError(f"a request to {request.site[:60]!r} reached site {self.name!r}")
        check_run_id(request.run)
        work = self._asked(request, digest(data))
        try:
            known = self.home.record(request.run, request.round, request.attempt)
            if known is not None and known.request_digest == work.request_digest:
                return self._leaving(request.run, known)
        except DamageError as error:
            return self._refused_for(work, error)
        try:
            if known is not None:
                raise WireError.shared("this round was already answered to another question")
            with self.home.together():
                work = self._complete(work)
            again = self._answered_before(work)
            if again is not None:
                return again
        except DamageError as error:
            return self._refused_for(work, error)
        except RunError:
            raise  # The home failed, not the question: it may be asked again.
        except ConsilienceError as error:
            refusal = refused(work, error.public, error)
            if known is not None:
                self._log(refusal)
                return refusal.record.reply
            return self.finish(work, refusal)
        except Exception as error:  # noqa: BLE001  reading a table must not show a value
            return self.finish(work, refused(work, ConsilienceError.default_public, error))
        return work

    def _answered_before(self, work: Work) -> bytes | Held | None:
        """The answer that was given to the very same question under another attempt number.

        In a run with masked sums an answer that came too late is asked for again. Computed anew it
        would rest on one question more than those of the other sites, and the masks not cancel.
        """
        request, prior = work.request, work.prior
        if prior is None or secure_sums.KEYS not in prior.state.get(KEYS, {}):
            return None
        for round_, attempt in self.home.answered(request.run):
            if round_ != request.round:
                continue
            record = self.home.record(request.run, round_, attempt)
            same = dataclasses.replace(request, attempt=attempt).to_bytes()
            if record is None or record.request_digest != digest(same):
                continue
            reply = Reply.from_bytes(record.reply)
            if reply.status == "reply":
                renamed = dataclasses.replace(
                    record,
                    attempt=request.attempt,
                    request_digest=work.request_digest,
                    reply=dataclasses.replace(reply, attempt=request.attempt).to_bytes(),
                    series={},
                    changes=0,
                )
                self.home.commit(request.run, renamed, record)
                return self._leaving(request.run, renamed)
        return None

    def finish(self, work: Work, outcome: Outcome) -> bytes | Held:
        """Keep what a step gave and return the reply; nothing leaves before it is written."""
        try:
            return self._finished(work, outcome)
        except DamageError as error:
            return self._refused_for(work, error)

    @property
    def over_columns(self) -> bool:
        """Whether the site can take part in studies over columns: it has a partner key."""
        return bool(self._partner_key)

    def refuse(self, data: bytes, error: DamageError) -> bytes:
        """Refuse a request because a file that it needs is damaged; nothing is kept of that."""
        return self._refused_for(self._asked(Request.from_bytes(data), digest(data)), error)

    def note_damage(self, run: str, error: DamageError) -> None:
        """Note what is damaged where the steward finds it."""
        self.home.log("damaged", run=run, reason=str(error))
        self._damages[run] = str(error)

    def take_damages(self) -> list[tuple[str, str]]:
        """Take, for the steward, what was found damaged since the last time: run and sentence."""
        found, self._damages = sorted(self._damages.items()), {}
        return found

    def _refused_for(self, work: Work, error: DamageError) -> bytes:
        self.note_damage(work.request.run, error)
        return refused(work, error.public, error).record.reply

    def _asked(self, request: Request, request_digest: str) -> Work:
        from consilience import __version__

        seed = self._secret_seed
        return Work(request, request_digest, _NO_ROWS, None, {}, self.policy, seed, __version__)

    def _finished(self, work: Work, outcome: Outcome) -> bytes | Held:
        self.computed += 1
        if self.confirm is not None and outcome.content is not None:
            verdicts = Reply.from_bytes(outcome.record.reply).verdicts
            if not self.confirm(work.request, outcome.content, verdicts):
                error = DisclosureError.shared(NOT_RELEASED)
                outcome = refused(work, NOT_RELEASED, error)
        run = work.request.run
        with self.home.together():
            self._log(outcome)
            if outcome.files:
                provenance = json.dumps(self._provenance(work), indent=1, sort_keys=True)
                files = {**outcome.files, outputs.PROVENANCE: (provenance + "\n").encode()}
                self.home.write_outputs(run, files)
            if outcome.revealed is not None and outcome.revealed.directions.size:
                # Another run may have added to it meanwhile.
                ledger = self.home.ledger(self.policy.data_id)
                both = RevealedRank.from_ledger(ledger).union(outcome.revealed)
                self.home.write_ledger(self.policy.data_id, {**ledger, **both.to_ledger()})
            if outcome.keeping is not None:
                self.home.write_kept(self.policy.data_id, work.kept_name, outcome.keeping)
        # In the record: a release that never left does no harm here, one that left and was
        # forgotten would. The run has one memory, however many lines of questions there are.
        changed = any(last is not work.series.get(name) for name, last in outcome.series.items())
        series = outcome.series if changed else {}
        record = dataclasses.replace(outcome.record, series=series, changes=0)
        if holds(self.hold, outcome.content):
            after = (work.request.after_round, work.request.after_attempt)
            record = dataclasses.replace(record, held_after=after)
        self.home.commit(run, record, work.prior)
        return self._leaving(run, record)

    def sent(self, run: str, round_: int, attempt: int) -> None:
        """Note that a reply has been handed over; nothing to do where it was never held.

        Raises
        ------
        RunError
            The home cannot be written.
        """
        state = self.home.jobs.state(run, round_, attempt)
        try:
            job = state.read()
            if job.state in (RELEASED, REFUSED) and state.move(job, SENT, sent=time.time()):
                self.home.log("sent", run=run, round=round_, attempt=attempt, outcome=job.state)
        except DamageError as error:
            self.note_damage(run, error)  # The reply has left: it is only not noted that it has.

    def _leaving(self, run: str, record: Record) -> bytes | Held:
        """Return the reply of a record as far as the steward lets it leave."""
        if not record.held_after:
            return record.reply
        state = self.home.jobs.state(run, record.round, record.attempt)
        job = state.read()
        if job.state == COMPUTED:
            # Just now, or a crash came between record and job.
            state.move(COMPUTED, HELD, **waiting_facts(record))
            job = state.read()
        if "reason" in job.facts:  # the steward decided against it, whether the refusal has left
            return self._withdrawn(run, record).reply
        if job.state in (RELEASED, SENT):
            return record.reply
        reply = Reply.from_bytes(record.reply)
        return Held(run, record.round, record.attempt, reply.step)

    def _withdrawn(self, run: str, record: Record) -> Record:
        """Put a refusal in the place of a reply that never left; the state goes back."""
        prior = self.home.record(run, *record.held_after) or Record(0, 0, "", b"")
        reply = Reply.from_bytes(record.reply)
        refusal = dataclasses.replace(
            reply, status="refused", message=b"", reason=NOT_RELEASED, verdicts=()
        )
        withdrawn = dataclasses.replace(
            prior,
            round=record.round,
            attempt=record.attempt,
            request_digest=record.request_digest,
            reply=refusal.to_bytes(),
            held_after=(),
            series=record.series,
            changes=record.changes,
        )
        self.home.commit(run, withdrawn, prior)
        return withdrawn

    def approves(self, study: str) -> bool:
        """Whether a study may run: any, until the policy or the steward has approved one."""
        approved = self._approved()
        return approved is None or study in approved

    def has_approved(self, study: str) -> bool:
        """Whether the policy or the steward has approved just this study."""
        return study in (self._approved() or ())

    def _approved(self) -> tuple[str, ...] | None:
        """Hashes of the approved studies; None where the steward does not approve one by one."""
        listed = self.policy.approved_studies
        noted = self.home.ledger(APPROVED).get("studies")
        if listed is None and noted is None:
            return None
        return (*(listed or ()), *(noted or ()))

    def purge(self, run: str) -> None:
        """Drop what was kept to answer again in a run; outputs and ledgers stay.

        A purged run is never answered again: its random numbers could only be drawn anew.
        """
        # Noted first: a run of which half is gone must not be answered from the rest.
        purged = list(self.home.ledger(PURGED).get("runs", []))
        if run not in purged:
            self.home.write_ledger(PURGED, {"runs": [*purged, check_run_id(run)]})
        self._prepared.pop(run, None)
        self.home.purge(run)

    def output(self, run: str) -> outputs.SiteOutput:
        """Return the outputs that a run left here."""
        return outputs.SiteOutput(self.home, run)

    # ------------------------------------------------------------------ inside

    def _complete(self, work: Work) -> Work:
        """Check that the question may be asked and find the rows and the state it builds on."""
        r = work.request
        method = get_method(r.method)
        if r.method_version != method.version or r.release != work.release:
            raise WireError.shared(
                f"this site has release {work.release} with version {method.version} of method "
                f"{r.method!r}: install the same release everywhere"
            )
        # Where this site has the method from; a request cannot name a module.
        work = dataclasses.replace(work, module=method.__module__)
        self.policy.check_method(method)
        if r.step == opening.NAME:
            self._admit(r)
            return dataclasses.replace(work, data=self._open(r))
        prior = self.home.record(r.run, r.after_round, r.after_attempt)
        if prior is None:
            sentence = "the run was not opened at this site, or its records were purged"
            raise WireError.shared(sentence)
        if prior.held_after:
            # What rests on a reply that has not left could tell of it.
            if isinstance(self._leaving(r.run, prior), Held):
                sentence = "the answer that this question follows waits for the steward"
                raise WireError.shared(sentence)
            prior = self.home.record(r.run, r.after_round, r.after_attempt) or prior
            prior = dataclasses.replace(prior, held_after=())
        if prior.opening and (prior.study, prior.method) != (r.study, r.method):
            sentence = "the run was opened at this site for another study or method"
            raise DisclosureError.shared(sentence)
        if prior.opening and self._approved() is not None:
            self._check_settings(r, prior)
        # What is read here is at hand for this question, and for those of other sites beside it.
        read: list[Any] = []
        for encoded, most in (
            (r.message, self.policy.max_message_bytes),
            (prior.opening, MAX_BYTES),
        ):
            with suppress(ConsilienceError):  # whoever needs it says what is wrong with it
                read.append(decode_question(encoded, max_bytes=most))
        earlier: dict[str, Any] = {}
        if outputs.ROWS in self.home.output_names(r.run):
            earlier = self.output(r.run)._rows()["columns"]
        data = self._rows(r.run, prior)
        if data.foreign_levels and r.step != CONFIRM:
            sentence = "a column holds values outside its declared levels"
            raise DataError(f"{sentence}: {', '.join(data.foreign_levels)}", public=sentence)
        if r.step != CONFIRM:
            accounting.hold_coding(decode_question(prior.opening), method, self.policy, self.home)
        name = self._kept_name(r, data)
        if name:  # not of a moment ago: other runs may have been told of these rows since
            others = self._row_guard.other_runs(r.run, self.home)
            if others != data.other_runs:  # the very rows else: models may stay with them
                data = dataclasses.replace(data, other_runs=others)
        accounting.count_models(r, data, self.policy, self.home)
        return dataclasses.replace(
            work,
            data=data,
            prior=prior,
            earlier_outputs=earlier,
            epsilon=accounting.charge(r, name, self.policy, self.home),
            series=self.home.series(r.run),
            partner_key=self._partner_key,
            identity=self.identity,
            approved=self.has_approved(r.study),
            ledger=self.home.ledger(self.policy.data_id),
            kept_name=name,
            kept=self.home.kept(self.policy.data_id, name) if name else None,
            followed=self._left_by_followed(r, prior),
            read=tuple(read),
        )

    def _left_by_followed(self, request: Request, prior: Record) -> outputs.Left | None:
        """What the run that this one follows left here, if the method may follow it."""
        followed = decode_question(prior.opening).follows if prior.opening else ""
        if not followed or outputs.PREDICTOR not in self.home.output_names(followed):
            return None
        left = self.output(followed).left()
        method = get_method(request.method)
        return left if left.method in (method.name, *method.follows) else None

    def _kept_name(self, request: Request, data: SiteData) -> str:
        """Name of what a step draws once for the data; empty where it draws nothing to keep."""
        keeps = step_of(request).keeps
        if keeps is None:
            return ""
        message = decode_question(request.message, max_bytes=self.policy.max_message_bytes)
        return keeps(message, data) or ""

    def _admit(self, request: Request) -> None:
        """Check approval and the number of runs, and note the run in the ledger."""
        if not self.approves(request.study):
            sentence = "the study is not among those that the steward has approved"
            raise DisclosureError.shared(sentence)
        if self._approved() is not None:
            self._check_study(request)
        if request.run in self.home.ledger(PURGED).get("runs", []):
            sentence = "the records of this run were purged here, so it cannot go on"
            raise DisclosureError.shared(sentence)
        ledger = self.home.ledger(self.policy.data_id)
        runs = list(ledger.get("runs", []))
        # Opening is counted once, so the same run id must not open other columns or another study.
        terms = digest(request.message, salt=f"{request.study} {request.method}".encode())
        opened = dict(ledger.get("opened", {}))
        if request.run in runs:
            if opened.get(request.run, terms) != terms:
                sentence = "the run was opened here before with other columns or another study"
                raise DisclosureError.shared(sentence)
            return
        if self.policy.max_runs is not None and len(runs) >= self.policy.max_runs:
            raise BudgetError(
                f"{len(runs)} runs were opened on data {self.policy.data_id!r} and the policy "
                f"allows {self.policy.max_runs}: the steward may raise max_runs",
                public="the number of runs that the steward allows on this data is used up",
            )
        noted = {"runs": [*runs, request.run], "opened": {**opened, request.run: terms}}
        self.home.write_ledger(self.policy.data_id, {**ledger, **noted})

    def _check_study(self, request: Request) -> None:
        """Check that what is asked is what the approved study says, not only that its hash is.

        Raises
        ------
        DisclosureError
            The study's text does not have the hash, or has another method, columns or preparation.
        """
        from consilience.sites.study import Study

        message = decode_question(request.message, max_bytes=self.policy.max_message_bytes)
        same = isinstance(message, opening.Open)
        same = same and hashlib.sha256(message.study.encode()).hexdigest() == request.study
        if same:
            study = Study.from_canonical(message.study)
            asked = (request.method, *message.settings())
            same = (study.method, study.columns, study.preparation) == asked
            same &= study.partition == message.partition
        if not same:
            raise DisclosureError.shared(_NOT_APPROVED)

    def _check_settings(self, request: Request, prior: Record) -> None:
        """Check that what a question states of parameters is what the approved study says.

        Raises
        ------
        DisclosureError
            A parameter has another value.
        """
        from consilience.sites.study import Study

        message = decode_question(request.message, max_bytes=self.policy.max_message_bytes)
        study = Study.from_canonical(decode_question(prior.opening).study)
        approved = get_method(study.method).from_parameters(study.parameters)
        if approved.contradicted(message):
            raise DisclosureError.shared(_NOT_APPROVED)

    def _open(self, request: Request) -> SiteData:
        message = decode_question(request.message, max_bytes=self.policy.max_message_bytes)
        if not isinstance(message, opening.Open):
            raise WireError("a run was opened with another message")
        method, (_, preparation) = get_method(request.method), message.settings()
        if message.partition != method.partition:  # or rules of the other kind would hold
            sentence = f"method {method.name!r} is for studies over {method.partition}"
            raise DisclosureError.shared(sentence)
        check_missing(method, preparation)
        self.policy.check_method(method, preparation)
        if message.partition == "rows" and message.study:
            self.policy.check_sums(sums_of(message.study))
        data = self._load(message, request.run, method, opens=True)
        self._keep(request.run, request.message, (), data)
        return data

    def _keep(self, run: str, opened: bytes, done: Transforms, data: SiteData) -> None:
        """Keep the rows of the runs that were asked last; those of others are read again."""
        self._prepared.pop(run, None)
        while len(self._prepared) >= _MOST_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        self._prepared[run] = (opened, done, data)

    def _load(
        self, message: opening.Open, run: str, method: type[Method], *, opens: bool = False
    ) -> SiteData:
        """Read the table; what became of its rows is for the site's own eyes."""
        if message.partition == "columns":
            if set(message.settings()[0].used()) - {message.settings()[0].id}:
                # Whoever asks must not choose what this site offers.
                sentence = "a study over columns names the id only: each site names its own columns"
                raise DisclosureError.shared(sentence)
            loaded = self._loader(*message.settings(), partition="columns")
        else:
            columns, preparation = message.settings()
            loaded = self._loader(columns.only(method.roles), preparation)
        if isinstance(loaded, SiteData):
            return self._hashed(self._same_rows(loaded, None, run, method, opens), message, run)
        data = self._same_rows(loaded.data, loaded.everyone, run, method, opens)
        said, left_out = loaded.report.sentences(), loaded.data.n_rows - data.n_rows
        if left_out:
            said += (
                f"{left_out} rows are not used, so that no difference to an earlier run is about "
                f"fewer than {self.policy.min_records} rows.",
            )
        for sentence in said:
            self.home.log("read", run=run, said=sentence)
        facts = {**loaded.report.to_dict(), "rows_left_out": left_out}
        text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
        self.home.write_copy(run, outputs.READING, text.encode())
        return self._hashed(data, message, run)

    def _same_rows(
        self, data: SiteData, everyone: AllRows | None, run: str, method: type[Method], opens: bool
    ) -> SiteData:
        """The rows that a run uses: the same ones as long as it goes on, of the same table."""
        noted = self.home.ledger(self.policy.data_id).get("tables", {})
        known = noted.get(run, self.home.ledger(TABLES).get(run))
        same = known in (None, data.content_hash)
        if not same:  # an opening is counted once, so it is of one table
            sentence = "the site's table is not the one with which the run was opened"
            raise DataError(f"{sentence}: put it back, or start another run", public=sentence)
        used = None
        noted_rows = outputs.USED in self.home.output_names(run)
        if known is not None and noted_rows:
            packed = np.frombuffer(self.home.read_output(run, outputs.USED), dtype=np.uint8)
            used = np.unpackbits(packed, count=data.n_read).astype(bool)
        elif opens and everyone is not None and not data.foreign_levels:
            used = self._row_guard.rows_to_use(method, data, everyone, self.home)
            self._row_guard.hide_columns(run, method, data, everyone, self.home, used)
            if noted_rows or not used[data.rows].all():  # a crash may have left those of before
                self.home.write_outputs(run, {outputs.USED: np.packbits(used).tobytes()})
        if known is None:
            ledger = self.home.ledger(self.policy.data_id)  # with what was noted meanwhile
            tables = {**ledger.get("tables", {}), run: data.content_hash}
            self.home.write_ledger(self.policy.data_id, {**ledger, "tables": tables})
        marked = method.tells == "moments" or method.remembers_rows
        if everyone is not None and not data.foreign_levels and marked:
            rows = np.isin(np.arange(data.n_read), data.rows) if used is None else used
            marks = self._row_guard.marks(data, everyone, self.home)
            beside = self._row_guard.beside(run, data, everyone, self.home, rows)
            data = dataclasses.replace(data, beside=beside, marks=marks[data.rows])
        data = data.without_content(self._row_guard.hidden(run, self.home))
        if used is None or used[data.rows].all():
            return data
        return data.take(np.flatnonzero(used[data.rows]))

    def _hashed(self, data: SiteData, message: opening.Open, run: str) -> SiteData:
        """Over columns, put the keyed hashes of the ids beside the rows."""
        if message.partition != "columns" or data.id is None or not self._partner_key:
            return data
        return dataclasses.replace(data, hashes=hashed_ids(data.id, self._partner_key, run))

    def _rows(self, run: str, prior: Record) -> SiteData:
        """Rows after the preparing steps so far; read again after a restart."""
        if not prior.opening:
            raise WireError.shared("the run was not opened at this site")
        opened, done, data = self._prepared.get(run, (b"", (), _NO_ROWS))
        # Questions that were asked again may have led to other rows than those at hand.
        if opened != prior.opening or done != prior.transforms[: len(done)]:
            method = get_method(prior.method)
            data, done = self._load(decode_question(prior.opening), run, method), ()
        transforms = {s.name: s.transform for s in HOUSE_STEPS}
        for name, encoded in prior.transforms[len(done) :]:
            transform = transforms.get(name)
            if transform is None:
                raise ProtocolError(f"no preparing step is called {name!r}")
            with one_thread():
                data = transform(decode_message(encoded), data)
        self._keep(run, prior.opening, prior.transforms, data)
        return data

    def _provenance(self, work: Work) -> dict[str, Any]:
        r, data = work.request, work.data
        return {
            "run": r.run,
            "study": r.study,
            "method": r.method,
            "method_version": r.method_version,
            "release": r.release,
            "site": r.site,
            "rows_read": data.n_read,
            "rows_kept": data.n_rows,
            "features": list(data.feature_names),
            "content_hash": data.content_hash,
        }

    def _log(self, outcome: Outcome) -> None:
        for line in outcome.log:
            facts = dict(line)
            self.home.log(str(facts.pop("event")), **facts)


_NOT_APPROVED = "what is asked is not what the approved study says"
_MOST_PREPARED = 2
"""Runs whose rows stay in memory: a coordinator may open many."""
_NO_ROWS = SiteData(np.empty((0, 0)), (), np.empty(0, dtype=np.int64))

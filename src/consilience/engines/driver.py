"""Drives a method: advances its generator, sends its asks, records what comes, and can do so again.

The driver is deterministic given the journal. Every ask and every reply is journaled before it is
used, so a run that was killed is brought back by replaying the journal into a fresh generator; the
first ask without all its replies is put to the sites again, and they repeat what they said. What
comes at once is journaled in one durable write, and so are the lines of a round's questions or
answers in the transcript: what a round costs on disk does not depend on how many sites there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from consilience.engines.base import Arrival, Engine, Key
from consilience.engines.rundir import RunStore
from consilience.exceptions import ConsilienceError, ProtocolError, RunError, WireError
from consilience.numerics.parallel import one_thread
from consilience.protocol.method import Absent, Ask, CoordinatorContext, Method, Refused, Replies
from consilience.protocol.phases import opening
from consilience.protocol.phases.prepare import exchange, steps_of
from consilience.protocol.phases.secure_sums import Concealed, open_sum
from consilience.protocol.result import Result
from consilience.sites.encoding import feature_names
from consilience.wire.codec import decode_message, decode_reply, digest, encode_message
from consilience.wire.envelope import Reply, Request
from consilience.wire.transcript import JournaledAsk

_TOLD = 10**8
"""Beyond all rounds: where sites are told that a reply was not accepted."""

OnEvent = Callable[[str, dict[str, Any]], None]


class Driver:
    """One execution of a method.

    Parameters
    ----------
    method : Method
    ctx : CoordinatorContext
    engine : Engine
    store : RunStore
    deadline : float
        Seconds that a site has for a reply.
    on_event : callable, optional
        ``on_event(kind, facts)`` for progress.
    """

    def __init__(
        self,
        method: Method,
        ctx: CoordinatorContext,
        engine: Engine,
        store: RunStore,
        *,
        deadline: float,
        on_event: OnEvent | None = None,
    ) -> None:
        self._method, self._ctx, self._engine, self._store = method, ctx, engine, store
        self._journal, self._transcript = store.journal, store.transcript
        self._deadline = deadline
        self._on_event = on_event
        self._steps = steps_of(type(method))
        self._round = 0
        self._open: dict[Key, bytes] = {}
        # What was read of requests and replies that are under way, to read long ones once.
        self._asked: dict[Key, tuple[Request, Any, Mapping[str, Any]]] = {}
        self._read: dict[Key, tuple[Reply, Any]] = {}
        self._sent: set[Key] = set()
        self._step_of: dict[int, str] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def run(self) -> Result:
        """Run to the end and return the result."""
        # Also while sites compute: threads of the local engine cannot set limits of their own.
        with one_thread():
            generator = exchange(self._method, self._ctx)
            received: Replies | None = None
            while True:
                try:
                    ask = generator.send(received)  # type: ignore[arg-type]
                except StopIteration as stop:
                    result = stop.value
                    self._journal.commit()
                    break
                received = self._answer(ask)
        if not isinstance(result, self._method.Result):
            raise ProtocolError(f"method {self._method.name!r} returned {type(result).__name__}")
        self._tell("done", rounds=self._round)
        return result

    def retry_refused(self) -> int | None:
        """Forget from the first round on in which a site refused or was absent.

        Where sums are masked, from the last total on that was opened: with sites that are not in
        it another one would tell what they add.

        Returns
        -------
        int or None
            That round, or None where there is none.

        Raises
        ------
        RunError
            There is none after it.
        """
        asks, replies = self._journal.asks, self._journal.replies
        silent = {
            at
            for at, known in replies.items()
            if known.kind == "absent" or Reply.from_bytes(known.data).status == "refused"
        }
        opened = [k for k, s in replies if asks[k].step == open_sum.name and (k, s) not in silent]
        # Who did not help to open the last total is in it all the same.
        again = sorted(at for at in silent if at[0] >= max(opened, default=0))
        if again:
            self._transcript.asked_again(again[0][0])
            self._journal.retry_from(again[0][0])
            return again[0][0]
        for round_, site in sorted(silent):
            raise RunError(
                f"masked sums of this run were opened without site {site!r}, which did not answer "
                f"in round {round_}, and sites open no others: resume the run without asking "
                "again, or start another one"
            )
        return None

    # ------------------------------------------------------------------ one ask

    def _answer(self, ask: Ask) -> Replies:
        self._round += 1
        messages = self._addressed(ask)
        # A message that goes to all sites is one object: it is encoded and hashed once.
        distinct = {id(m): m for m in messages.values()}
        bytes_of = {key: encode_message(m) for key, m in distinct.items()}
        encoded = {site: bytes_of[id(m)] for site, m in messages.items()}
        hashed = {key: digest(data).encode() for key, data in bytes_of.items()}
        sealed = digest(b"".join(hashed[id(m)] for _, m in sorted(messages.items())))
        to, info = tuple(sorted(messages)), self._store.info
        # Before anything is sent: a resumed run must put the same question, or say that it differs.
        self._journal.ask(self._round, JournaledAsk(ask.step, to, ask.wait, sealed))
        # Replies may arrive rounds later, when another step is being asked.
        self._step_of[self._round] = ask.step
        self._tell("ask", round=self._round, step=ask.step, sites=len(to), wait=ask.wait)
        for site in to:
            self._transcript.message(
                messages[site],
                round_=self._round,
                step=ask.step,
                site=site,
                direction="to-site",
                sealed=self._engine.seals,
            )
            known = self._journal.replies.get((self._round, site))
            attempt = self._journal.attempt
            if known is not None and known.kind == "reply":
                attempt = Reply.from_bytes(known.data).attempt
            after_round, after_attempt = self._last.get(site, (0, 0))
            request = Request(
                run=info.run,
                study=info.study,
                method=info.method,
                method_version=info.method_version,
                release=info.release,
                round=self._round,
                attempt=attempt,
                after_round=after_round,
                after_attempt=after_attempt,
                step=ask.step,
                site=site,
                seed=info.seed,
                message=encoded[site],
            )
            self._asked[(self._round, site)] = request, messages[site], ask.known.get(site, {})
            self._open[(self._round, site)] = request.to_bytes()
        self._transcript.commit()
        if self._round not in self._journal.delivered:
            self._journal.deliver(self._round, self._gather(ask))
        return self._deliver(self._journal.delivered[self._round])

    def _addressed(self, ask: Ask) -> dict[str, Any]:
        """Messages by site, after checking step, recipients and types."""
        step = self._steps.get(ask.step)
        if step is None:
            raise ProtocolError(f"method {self._method.name!r} asks for unknown step {ask.step!r}")
        to = self._ctx.sites if ask.to is None else ask.to
        if isinstance(ask.message, Mapping):
            messages = {site: ask.message[site] for site in to}
        else:
            messages = {site: ask.message for site in to}
        # A site keeps one reply under way: two questions at once would race for its state.
        busy = {site for _, site in self._open}
        for site, message in messages.items():
            if type(message) is not step.request:
                raise ProtocolError(f"step {ask.step!r} is asked with {type(message).__name__}")
            if site in busy:
                raise ProtocolError(f"site {site!r} is asked while it still owes a reply")
        if not messages and not self._open:
            raise ProtocolError(f"step {ask.step!r} is asked of no site")
        return messages

    def _gather(self, ask: Ask) -> tuple[Key, ...]:
        """Wait for what this ask waits for; returns the keys to deliver, in order."""
        if ask.wait == "all":
            keys = [key for key in self._open if key[0] == self._round]
        else:
            # Also replies to earlier asks: under "any" whoever comes first moves the run on.
            keys = list(self._open)
        # In the order in which they came, which a resumed run finds again in the journal.
        ready = [key for key in self._journal.replies if key in keys]
        while len(ready) < (len(keys) if ask.wait == "all" else 1):
            unsent = {k: d for k, d in self._open.items() if k not in self._sent}
            # Of a resumed run the journal has replies: only what is still open goes out again.
            unsent = {k: d for k, d in unsent.items() if k not in self._journal.replies}
            if unsent:
                self._engine.send(unsent)
                self._sent.update(unsent)
            waiting = frozenset(k for k in keys if k not in self._journal.replies)
            came = []
            # Also where all are waited for: who has answered shows at once, and outlives a crash.
            wait = "any" if self._engine.apart else ask.wait
            for arrival in self._engine.collect(waiting, wait=wait, deadline=self._deadline):
                # An engine may deliver twice: only the first counts.
                if arrival.key in waiting and arrival.key not in self._journal.replies:
                    self._accept(arrival)
                    came.append(arrival.key)
                    if self._engine.apart:  # one by one, however many came at the same time
                        self._journal.commit()
            # Before anybody is told: whoever stops the run there finds them again.
            self._journal.commit()
            for key in came:
                read = self._read.get(key)
                refused = read is not None and read[0].status == "refused"
                kind = "refused" if refused else self._journal.replies[key].kind
                self._tell("arrived", round=key[0], site=key[1], outcome=kind)
            ready += came
        return tuple(sorted(ready, key=lambda k: k[1]) if ask.wait == "all" else ready[:1])

    def _accept(self, arrival: Arrival) -> None:
        """Check and journal an arrival; bytes that do not answer the question count as absence."""
        round_, site = arrival.key
        if arrival.data is None:
            self._journal.absent(arrival.key, arrival.reason)
        else:
            try:
                self._check(arrival)
                self._journal.reply(arrival.key, arrival.data, sealed=self._engine.seals)
            except WireError as error:
                self._journal.absent(arrival.key, f"its reply was not accepted: {error.public}")
                self._store.event("rejected", round=round_, site=site, reason=str(error))
                self._tell_site(arrival.key, error.public)

    def _check(self, arrival: Arrival) -> None:
        """Judge a reply by its envelope, and its message by what that declares (`decode_reply`)."""
        round_, site = arrival.key
        reply = Reply.from_bytes(arrival.data or b"")
        request, question, known = self._asked[arrival.key]
        # Of the question that was put, never of the reply: a site could answer for another round.
        expected = (request.run, round_, request.attempt, request.step, site)
        if (reply.run, reply.round, reply.attempt, reply.step, reply.site) != expected:
            raise WireError("a reply to another question")
        message = None
        if reply.status == "reply":
            # What the method knows of this ask goes over what every run knows.
            known = {**self._known(reply.step), **known}
            roles = self._ctx.roles
            message = decode_reply(reply.message, question, known, site=site, roles=roles)
            step = self._steps[reply.step]
            if type(message) is not (Concealed if step.summed and self._ctx.secure else step.reply):
                raise WireError("a reply with another message than the step's")
        self._read[arrival.key] = (reply, message)

    def _known(self, step: str) -> dict[str, Any]:
        """What every run over rows knows of replies; see ``wire.message``."""
        ctx, columns = self._ctx, self._ctx.columns
        if ctx.partition == "columns":
            return {}
        if step == opening.NAME:
            return {"names": feature_names(columns, ctx.preparation)}
        found = {"p": len(ctx.feature_names), "F": len(columns.features)}
        for name, column in (("K", columns.target), ("S", next(iter(columns.sequence), ""))):
            if column is not None and column in columns.levels:
                found[name] = len(columns.levels[column])
        return found

    def _tell_site(self, key: Key, reason: str) -> None:
        """Have a site write down why its reply was not accepted; nobody waits for its answer.

        The question follows the reply that it is about, in a round of its own that no ask has.
        """
        request, *_ = self._asked[key]
        # Beyond all rounds, so that it is never taken for a question of the method.
        place = (_TOLD + request.round, request.site)
        told = opening.NotAccepted(round=request.round, step=request.step, reason=reason)
        word = dataclasses.replace(
            request,
            round=place[0],
            after_round=request.round,
            after_attempt=request.attempt,
            step=opening.TOLD,
            message=encode_message(told),
        )
        try:
            self._engine.send({place: word.to_bytes()})
            self._engine.collect(frozenset({place}), wait="any", deadline=0.0)
        except ConsilienceError as error:
            self._store.event("not told", round=request.round, site=request.site, reason=str(error))

    def _deliver(self, keys: tuple[Key, ...]) -> Replies:
        """Turn journaled replies into what the generator receives, and record them."""
        content: dict[str, Any] = {}
        rounds: dict[str, int] = {}
        for key in keys:
            round_, site = key
            self._open.pop(key, None)
            self._asked.pop(key, None)
            read = self._read.pop(key, None)
            known = self._journal.replies[key]
            rounds[site] = round_
            step = self._step_of[round_]
            silent = partial(self._transcript.absence, round_=round_, step=step, site=site)
            if known.kind == "absent":
                # Absence is content, too: the method decides what it means, and the transcript has
                # it.
                content[site] = Absent(known.reason)
                silent(verdict="absent", reason=known.reason)
                continue
            reply = Reply.from_bytes(known.data) if read is None else read[0]
            self._last[site] = (reply.round, reply.attempt)
            if reply.status == "refused":
                content[site] = Refused(reply.reason)
                silent(verdict="refused", reason=reply.reason, sealed=known.sealed)
            else:
                content[site] = decode_message(reply.message) if read is None else read[1]
                self._transcript.reply(reply, content[site], sealed=known.sealed)
        self._transcript.commit()
        return Replies(content, rounds)

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._on_event is not None:
            self._on_event(kind, facts)
        self._store.event(kind, **facts)

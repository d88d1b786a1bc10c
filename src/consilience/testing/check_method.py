"""Does a method keep the promises that every method makes? One function for each promise.

Each takes the method and a *factory*: a function without arguments that returns a fresh
`Federation` on a `LocalEngine` (`fakes.federation_of` makes one from arrays), of at least two sites
unless the method takes the table of one. `check_method` runs all of them.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from consilience.engines.federation import Federation, Run
from consilience.engines.local import LocalEngine
from consilience.exceptions import QuorumError, WireError
from consilience.protocol.method import Method, SiteData
from consilience.protocol.phases.prepare import steps_of
from consilience.testing import attacks, expect
from consilience.testing.fakes import Action, Factory, members, rows_of, scripted
from consilience.testing.recalling import SEED, Attack, Record, Remembering, record_of
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import FieldSpec, message_type
from consilience.wire.transcript import Line

ABSENCES: tuple[Action, ...] = ("absent", "refused", "late", "returns")
Backends = Mapping[str, Callable[[], AbstractContextManager[Any]]]
Oracle = Callable[[Mapping[str, SiteData]], Mapping[str, Any]]


def check_method(
    method: Method,
    factory: Factory,
    *,
    oracle: Oracle | None = None,
    backends: Backends | None = None,
    rtol: float = 1e-9,
) -> None:
    """Check every promise; see the functions below, each of which may be used alone.

    Parameters
    ----------
    method : Method
    factory : callable
        ``factory() -> Federation``, fresh each time, on a `LocalEngine`.
    oracle : callable, optional
        For exact methods: ``oracle(rows by site) -> fields of the result``, from pooled rows.
    backends : mapping of str to callable, optional
        Context managers under which sites are computed, such as ``joblib.parallel_config``.
    rtol : float
        Of the comparison with the oracle.

    Raises
    ------
    CheckFailed
        A promise is broken; the sentence says which.
    """
    factory = Remembering(factory)
    check_declaration(method, factory)
    check_stated(method, factory)
    check_codec(method, factory)
    check_same_seed(method, factory)
    check_order(method, factory, backends=backends)
    check_absence(method, factory)
    check_resume(method, factory)
    check_attacks(method, factory)
    if oracle is not None:
        check_oracle(method, factory, oracle, rtol=rtol)


# --------------------------------------------------------------------------- declared equals sent


def check_declaration(method: Method, factory: Factory) -> None:
    """Every line of the transcript is a declared field, with its class, audience and shape."""
    run = record_of(method, factory).run
    steps = steps_of(type(method))
    exchanged: dict[tuple[int, str, str], list[Line]] = {}
    for line in run.transcript:
        if line.verdict not in ("absent", "refused"):
            exchanged.setdefault((line.round, line.site, line.direction), []).append(line)
    for (round_, site, direction), lines in exchanged.items():
        step = steps.get(lines[0].step)
        where = f"round {round_}, site {site}, {direction}"
        expect(step is not None, f"{where}: step {lines[0].step!r} is not one of the method's")
        if step is None:
            continue
        declared = message_type(step.request if direction == "to-site" else step.reply).fields
        sent = [line.field for line in lines if line.field]
        expect(
            sorted(sent) == sorted(declared),
            f"{where}: fields {sorted(sent)} were sent, {sorted(declared)} are declared",
        )
        # a name of a dimension is one length within a message
        dims: dict[str, int] = {}
        for line in (line for line in lines if line.field):
            _check_line(f"{where}, field {line.field}", line, declared[line.field], dims)


def _check_line(where: str, line: Line, spec: FieldSpec, dims: dict[str, int]) -> None:
    expect(
        line.disclosure == spec.disclosure.value,
        f"{where}: sent as {line.disclosure}, declared as {spec.disclosure.value}",
    )
    expect(line.audience == spec.audience, f"{where}: audience {line.audience!r} is not declared")
    # no single shape is declared for these
    if spec.record or spec.many or isinstance(spec.shape, str) or spec.kind == "str":
        return
    if line.shape == "sealed":
        expect(spec.for_role, f"{where}: sealed, and its audience {spec.audience!r} is no role")
        return
    if line.shape == "bytes":
        expect(spec.kind == "any", f"{where}: bytes, declared as {spec.kind}")
        return
    found = [] if line.shape == "scalar" else [int(n) for n in line.shape.split("x")]
    expect(len(found) == len(spec.shape), f"{where}: shape {line.shape}, declared {spec.shape}")
    if spec.empty and 0 in found:
        return
    for want, length in zip(spec.shape, found, strict=True):
        bound = want if isinstance(want, int) else dims.setdefault(want, length)
        expect(bound == length, f"{where}: dimension {want!r} is {length} here and {bound} before")


# --------------------------------------------------------------------------- codec


def check_stated(method: Method, factory: Factory) -> None:
    """Questions state the parameters of the study, by which sites know an approved one."""
    for (round_, site), data in record_of(method, factory).requests.items():
        request = Request.from_bytes(data)
        other = method.contradicted(decode_message(request.message))
        where = f"round {round_}, request {request.step!r} to {site}"
        expect(not other, f"{where}: it states another {', '.join(other)} than the study")


def check_codec(method: Method, factory: Factory, *, cuts: int = 25) -> None:
    """Every message gives the same bytes after a round trip; no part of one is a message."""
    record = record_of(method, factory)
    messages: dict[str, bytes] = {}
    for (round_, site), data in record.requests.items():
        request = Request.from_bytes(data)
        messages[f"round {round_}, request {request.step!r} to {site}"] = request.message
    for (round_, site), data in record.replies.items():
        reply = Reply.from_bytes(data)
        if reply.status == "reply":
            messages[f"round {round_}, reply {reply.step!r} of {site}"] = reply.message
    for where, data in messages.items():
        again = encode_message(decode_message(data))
        expect(again == data, f"{where}: other bytes after decoding and encoding again")
        # not at every byte: messages may be long
        for cut in np.unique(np.linspace(0, len(data) - 1, cuts).astype(int)):
            try:
                decode_message(data[: int(cut)])
            except WireError:
                continue
            expect(False, f"{where}: the first {cut} of {len(data)} bytes passed as a message")


# --------------------------------------------------------------------------- same again


def check_same_seed(method: Method, factory: Factory) -> None:
    """Two runs of one seed agree in the result, byte by byte, and in what crossed."""
    first = record_of(method, factory)
    second = method.run(factory(), seed=SEED)
    # an asynchronous method follows the order of arrival, which no seed fixes
    if not first.asynchronous:
        _expect_same(first.run, second, "a second run of the same seed")


def check_order(method: Method, factory: Factory, *, backends: Backends | None = None) -> None:
    """Order of sites, order of arrival, number of workers and backend do not matter."""
    record = record_of(method, factory)
    if record.asynchronous:
        return
    first = record.run
    backwards = factory()
    reversed_ = LocalEngine(list(members(backwards).values())[::-1])
    ways: dict[str, tuple[Federation, AbstractContextManager[Any]]] = {
        "sites in reversed order": (
            dataclasses.replace(backwards, engine=reversed_),
            nullcontext(),
        ),
        "replies in reversed order": (scripted(factory(), reverse=True), nullcontext()),
        "two workers": (scripted(factory(), n_jobs=2), nullcontext()),
    }
    for name, backend in (backends or {}).items():
        ways[f"backend {name}"] = (factory(), backend())
    for name, (federation, context) in ways.items():
        with context:
            _expect_same(first, method.run(federation, seed=SEED), name)


def _expect_same(first: Run, second: Run, what: str) -> None:
    expect(
        first.result.to_files() == second.result.to_files(),
        f"{what}: the result has other bytes",
    )
    one, two = (
        [{**dataclasses.asdict(line), "run": "", "digest": "", "chain": ""} for line in transcript]
        for transcript in (first.transcript, second.transcript)
    )
    expect(one == two, f"{what}: something else crossed")


# --------------------------------------------------------------------------- absence


def check_absence(
    method: Method,
    factory: Factory,
    *,
    actions: Iterable[Action] = ABSENCES,
    sites: Iterable[str] | None = None,
    turn: int | None = None,
) -> None:
    """Each round x each site x {absent, refused, late, returns} ends as `tolerates` says.

    Over columns nobody can be missing where ids are matched, and the initiator nowhere. A step that
    tolerates ``"quorum"`` lets the run end with a result and a note that names the
    site; where the quorum is everybody, or the step needs ``"all"``, the run stops with a
    `QuorumError` that names the site. A step that tolerates ``"any"`` lets the run end whoever is
    missing. A run that stopped ends as if nothing had happened when its missing sites are asked
    again.

    With a `turn`, each action meets one round: of the rounds that ask the same step one of the
    first two and the last, another one in the next turn.
    """
    record = record_of(method, factory)
    names = record.federation.engine.sites
    steps = sorted({(line.round, line.step) for line in record.run.transcript})
    by_step: dict[str, list[int]] = {}
    for round_, step in steps:
        by_step.setdefault(step, []).append(round_)
    # rounds between these are in the state of their neighbours
    telling = sorted({r for found in by_step.values() for r in (*found[:2], found[-1])})
    for number, action in enumerate(actions):
        place = 0 if turn is None else (turn + number) % len(telling)
        for round_ in range(1, steps[-1][0] + 1) if turn is None else telling[place : place + 1]:
            for site in names if sites is None else sites:
                where = f"round {round_}, site {site} {action}"
                _check_one_absence(where, method, factory, (round_, site), action)
                if action in ("late", "refused"):  # asked again, the others are no different
                    _check_below_quorum(where, method, factory, (round_, site), action, record)


def _check_one_absence(
    where: str, method: Method, factory: Factory, key: tuple[int, str], action: Action
) -> None:
    federation = factory()
    n_sites = len(federation.engine.sites)
    # one site may be missing
    quorum = max(n_sites - 1, 1)
    federation = dataclasses.replace(scripted(federation, {key: action}), quorum=quorum)
    engine: Any = federation.engine
    try:
        run: Run | None = method.run(federation, seed=SEED)
        stopped = ""
    except QuorumError as error:
        run, stopped = None, str(error)
    rules = {
        step: _tolerates(method, federation, step, key[1], action) for _, step, _ in engine.missed
    }
    # Of one site nobody is left over.
    strict = [step for step, rule in rules.items() if rule == "all" or n_sites == 1]
    if strict:
        expect(bool(stopped), f"{where}: step {strict[0]!r} needs all sites, yet the run went on")
        expect(key[1] in stopped, f"{where}: the error does not name the site: {stopped}")
        return
    expect(not stopped, f"{where}: the run stopped although a quorum is enough: {stopped}")
    if run is not None and rules:
        # a result with a gap has to be one that can be kept
        run.result.to_files()
        noted = any(key[1] in note for note in run.notes)
        expect(noted, f"{where}: no note of the run names the site")


def _tolerates(method: Method, federation: Federation, step: str, site: str, action: Action) -> str:
    """Who must answer a step: rows of a study over columns are matched by all, or not at all."""
    several, rule = len(federation.roles) > 2, method.tolerates.get(step, "quorum")
    if several and rule == "any" and action == "refused":
        return rule  # what concerns one partner may be declined by the initiator, too
    indispensable = federation.partition == "columns" and (
        # of one partner nobody is left over
        step.startswith("align_ids.") or federation.roles[site] == "initiator" or not several
    )
    return "all" if indispensable else rule


def _check_below_quorum(
    where: str,
    method: Method,
    factory: Factory,
    key: tuple[int, str],
    action: Action,
    record: Record,
) -> None:
    """With a quorum of everybody the run stops, and ends well when it is asked again."""
    federation = scripted(factory(), {key: action})
    engine: Any = federation.engine
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            method.run(federation, seed=SEED, out=out, run_id="check")
        except QuorumError as error:
            expect(key[1] in str(error), f"{where}: the error does not name the site: {error}")
        else:
            rules = {
                _tolerates(method, federation, step, key[1], action) for _, step, _ in engine.missed
            }
            expect(rules <= {"any"}, f"{where}: the run ended with a site below its quorum")
            return
        # the missing site is back
        engine.script = {}
        again = _restarted(federation)
        run = method.run(again, out=out, resume=True, retry_refused=True)
        if not record.asynchronous:
            expect(
                run.result.to_files() == record.run.result.to_files(),
                f"{where}: asked again, the run ends with another result",
            )


# --------------------------------------------------------------------------- resume


class _Killed(Exception):
    """The coordinator dies here."""


def check_resume(method: Method, factory: Factory, *, turn: int | None = None) -> None:
    """A run ends with the same bytes, wherever its coordinator was killed or its journal cut.

    With a `turn` it is killed and cut at two places only, at others in the next turn.
    """
    record = record_of(method, factory)
    undisturbed, events, asynchronous = record.run, record.events, record.asynchronous
    for position in _places(len(events), turn):
        with tempfile.TemporaryDirectory() as folder:
            federation, out = factory(), Path(folder) / "run"
            left = iter(range(position))

            def count_down(kind: str, facts: dict[str, Any]) -> None:
                if next(left, None) is None:  # noqa: B023
                    raise _Killed

            with suppress(_Killed):
                method.run(federation, seed=SEED, out=out, on_event=count_down)
            resumed = method.run(_restarted(federation), out=out, resume=True)
            where = f"killed at event {position + 1} of {len(events)} and resumed"
            if not asynchronous:
                _expect_same(undisturbed, resumed, where)
            _check_replay(method, federation, out, resumed, where)
    if not asynchronous:
        _check_cut_journals(method, factory(), turn)


def _restarted(federation: Federation) -> Federation:
    """Return the same sites behind a fresh engine."""
    return dataclasses.replace(federation, engine=LocalEngine(members(federation).values()))


def _check_replay(method: Method, federation: Federation, out: Path, run: Run, where: str) -> None:
    """A finished run, replayed from its journal, gives the same bytes and the same chain."""
    (out / "result.json").unlink()
    again = method.run(_restarted(federation), out=out, resume=True)
    _expect_same(run, again, f"{where}, then replayed")
    chains = [[line.chain for line in r.transcript] for r in (run, again)]
    expect(chains[0] == chains[1], f"{where}, then replayed: the transcript is chained otherwise")


def _places(n: int, turn: int | None) -> list[int]:
    """All of n places, or two that are half of them apart."""
    return list(range(n)) if turn is None else sorted({turn % n, (turn + n // 2) % n})


def _check_cut_journals(method: Method, federation: Federation, turn: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        run = method.run(federation, seed=SEED, out=whole)
        log = (whole / "journal" / "log").read_bytes()
        # Each record of the journal has its length in front, and a checksum.
        ends = [0]
        while ends[-1] < len(log):
            ends.append(ends[-1] + 8 + int.from_bytes(log[ends[-1] : ends[-1] + 4], "little"))
        for number in _places(len(ends), turn):
            out = Path(folder) / f"cut-{number}"
            shutil.copytree(whole, out)
            (out / "journal" / "log").write_bytes(log[: ends[number]])
            _check_replay(method, federation, out, run, f"journal cut after record {number}")


# --------------------------------------------------------------------------- attacks and oracle


def check_attacks(
    method: Method, factory: Factory, *, suite: Iterable[Attack] = attacks.SUITE
) -> None:
    """Every attack is blocked or accounted for."""
    for attack in suite:
        outcome = attack.run(method, factory)
        expect(
            outcome.verdict in ("blocked", "accounted"),
            f"attack {attack.name!r} ({attack.tries}) is {outcome.verdict}: {outcome.evidence}",
        )


def check_oracle(
    method: Method, factory: Factory, oracle: Oracle, *, rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    """The result equals what the pooled rows give."""
    record = record_of(method, factory)
    result = record.run.result
    for name, wanted in oracle(rows_of(record.federation)).items():
        found = getattr(result, name)
        close = np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
        expect(bool(close), f"result field {name!r} differs from the pooled oracle")

"""Attacks on a method, its sites and its coordinator; each is blocked, or accounted for.

An `Attack` has a name, a phrase for what it tries, and ``run(method, factory)``; ``factory()``
gives a fresh `Federation` on a `LocalEngine` (see `check_method`). Its `Outcome` is

``"blocked"``
    nothing left, nothing was believed, and the error was one of this package's own;
``"accounted"``
    the sites' policies or the declaration of the message allow it, and it is recorded as such;
``"open"``
    it worked: the evidence says how.

`SUITE` holds them all; those of `table_attacks` concern a few people in a site's table. Wire
attacks alter messages that the method really sends (`MUTATIONS`), on their way to a site and on
their way to the coordinator. Attacks for which the method does not matter bring their own method
and, where they compare values, their own continuous rows under the sites' policies: among sums of
0/1 columns some difference equals a row by chance.

`Canary`: an unusual value planted at a site, and the search for it everywhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.engines.federation import Federation, Run
from consilience.exceptions import ConsilienceError, QuorumError
from consilience.protocol.method import Method, SiteData
from consilience.protocol.phases import opening
from consilience.sites.site import Site
from consilience.sites.site_store import Held
from consilience.testing.fakes import (
    ClassSums,
    Factory,
    Failing,
    Rows,
    federation_of,
    members,
    rows_of,
    scripted,
    subset,
    with_data,
    with_policy,
)
from consilience.testing.recalling import (
    MUTATIONS,
    SEED,
    Attack,
    Outcome,
    Record,
    Rehearsal,
    attack,
    every_field,
    leaves,
    leaves_room,
    record_of,
)
from consilience.testing.table_attacks import TABLE_ATTACKS
from consilience.wire.codec import decode_message, pack, unpack
from consilience.wire.disclosure import Released
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import iterate_fields

CANARY_SEED = 20240604


@dataclass(frozen=True)
class Canary:
    """A planted value and the forms in which it might appear."""

    name: str
    forms: tuple[bytes, ...]


def number_canary(name: str, value: float) -> Canary:
    """Forms of a number: raw bytes in both precisions and widths, and printed digits."""
    # a file or a library may hold numbers in either order of bytes
    raw = [np.array(value, dtype=kind).tobytes() for kind in ("<f8", ">f8")]
    texts = {repr(float(value)), f"{value:.9e}"} | {f"{value:.{n}g}" for n in range(7, 13)}
    return Canary(name, (*raw, *(text.encode() for text in sorted(texts))))


def plant(data: SiteData) -> tuple[SiteData, list[Canary]]:
    """Put an unusual value into every column of a site's rows.

    Columns of whole numbers (codes, 0 and 1) stay as they are: any number of them is common.
    """
    x = np.array(data.features)
    canaries = []
    for j, name in enumerate(data.feature_names):
        column = x[:, j][~np.isnan(x[:, j])]
        if not len(column) or (column == np.round(column)).all():
            continue
        # another row for each column: no row is odd in all of them
        row = (3 + j) % len(x)
        x[row, j] = np.median(column) + column.std() * (0.1234567891011 + 0.0011122233344 * j)
        canaries.append(number_canary(f"column {name}", x[row, j]))
    changes: dict[str, Any] = {"features": x}
    for role in ("id", "agent", "entity"):
        values = getattr(data, role)
        if values is not None:
            text = f"canary-{role}-9f27c1"
            changes[role] = np.array([text, *values[1:].tolist()])
            canaries.append(Canary(role, (text.encode(),)))
    return dataclasses.replace(data, **changes), canaries


def find_canaries(canaries: list[Canary], places: Mapping[str, bytes]) -> list[str]:
    """Return one sentence for each canary in each place where it was found."""
    return [
        f"{canary.name} was found in {place}"
        for place, content in places.items()
        for canary in canaries
        if any(form in content for form in canary.forms)
    ]


def canaries_after(
    method: Method, federation: Federation, canaries: list[Canary]
) -> tuple[Run | None, list[str]]:
    """Run, and search for canaries wherever the coordinator or a stranger could look.

    Searched are the run directory, every message, printed output, the log, and the error with its
    causes.
    """
    printed, logged = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    watched = scripted(federation)
    engine: Any = watched.engine
    error: BaseException | None = None
    run = None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                run = method.run(watched, seed=CANARY_SEED, out=out)
        except Exception as caught:  # noqa: BLE001  whatever it is, its text is searched
            error = caught
        finally:
            logging.getLogger().removeHandler(handler)
        files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    if run is not None and run.scaling is not None:
        canaries = [*canaries, *_scaled(canaries, run.scaling)]
    sent = {f"a request of round {r}": d for (r, _), d in engine.requests.items()}
    came = {f"a reply of round {r}": d for (r, _), d in engine.replies.items()}
    said = "" if error is None else "".join(traceback.format_exception(error))
    summary = "" if run is None else run.result.summary() + run.result.to_frame().to_csv()
    texts = {
        "output": printed.getvalue(),
        "log": logged.getvalue(),
        "error": said,
        "summary": summary,
    }
    places = {**files, **sent, **came, **{k: v.encode() for k, v in texts.items()}}
    return run, find_canaries(canaries, places)


def _scaled(canaries: list[Canary], scaling: FloatArray) -> list[Canary]:
    """Canaries as the later steps see them, in pooled units."""
    numbers = [c for c in canaries if c.name.startswith("column ")]
    # columns that were left alone have no canary, and so no place in the scaling
    if len(numbers) != scaling.shape[1]:
        return []
    values = [float(np.frombuffer(c.forms[0], dtype="<f8")[0]) for c in numbers]
    return [
        number_canary(f"{c.name} (scaled)", (v - centre) / scale)
        for c, v, centre, scale in zip(numbers, values, *scaling[1:], strict=True)
    ]


_VALUES = 12
"""Values that are altered, so that an attack takes seconds."""


def _try_run(
    method: Method, federation: Federation, **settings: Any
) -> tuple[Run | None, ConsilienceError | None]:
    try:
        return method.run(federation, seed=SEED, **settings), None
    except ConsilienceError as error:
        return None, error


def _continuous(factory: Factory) -> Federation:
    """Sites with the names and the first policy of the method's own, and rows of normal numbers."""
    federation = factory()
    policy = next(iter(members(federation).values())).policy
    rng = np.random.default_rng(SEED)
    # enough for three classes of which each may be told, with room to move edges
    n = 9 * max(policy.min_records, 10)
    tables = {name: rng.normal(size=(n, 3)) for name in federation.engine.sites}
    roles = {
        name: {
            "id": np.array([f"{name}-{i}" for i in range(n)]),
            # two records each: an entity is more than a record
            "entity": np.array([f"{name}-e{i // 2}" for i in range(n)]),
        }
        for name in tables
    }
    return federation_of(tables, policy=policy, roles=roles)


# --------------------------------------------------------------------------- small and dominated


def released_values(engine: Any, site: str) -> Iterator[tuple[str, FloatArray]]:
    """Numbers that left a site other than as public fields, by round and field."""
    for (round_, name), data in engine.replies.items():
        reply = Reply.from_bytes(data)
        if name != site or reply.status != "reply":
            continue
        for field, _, content in iterate_fields(decode_message(reply.message)):
            if isinstance(content, Released):
                for _, leaf in leaves(content.value):
                    # a gap tells nothing
                    yield f"round {round_}, field {field}", leaf[~np.isnan(leaf)]


@attack("small site", "learn from a site of too few rows", "method")
def small_site(method: Method, factory: Factory) -> Outcome:
    """Take all rows but a few away from a site."""
    federation = factory()
    name = federation.engine.sites[0]
    least = members(federation)[name].policy.min_records
    if least == 1:
        return Outcome("accounted", "the policy protects no record: it is one for simulation")
    fewer = np.arange(least - 1)
    small = scripted(with_data(federation, name, lambda data: subset(data, fewer)))
    _try_run(method, small)
    for where, values in released_values(small.engine, name):
        if values.any():
            return Outcome("open", f"{least - 1} rows, and numbers left in {where}")
    return Outcome("blocked", f"nothing but zeros and gaps left a site of {least - 1} rows")


@attack("dominance", "read one record that outweighs all others", "method")
def dominating(method: Method, factory: Factory) -> Outcome:
    """Put a giant into every column, and look for it and for its square."""
    federation = factory()
    name = federation.engine.sites[0]
    if members(federation)[name].policy.max_share >= 1:
        return Outcome("accounted", "the policy lets one record be all of a sum")
    # far above all other values: any sum that holds one is near it
    giants = 1e7 * np.arange(3, 3 + rows_of(federation)[name].features.shape[1])

    def plant(data: SiteData) -> SiteData:
        x = np.array(data.features)
        x[0] = giants
        return data.with_features(x)

    planted = scripted(with_data(federation, name, plant))
    _try_run(method, planted)
    # sums of products hold squares
    wanted = np.concatenate([giants, giants**2])
    for where, values in released_values(planted.engine, name):
        near = np.abs(values[:, None] - wanted) <= 0.01 * wanted
        if near.any():
            return Outcome("open", f"a value of one record can be read from {where}")
    return Outcome("blocked", "no number that left was near the planted ones or their squares")


# --------------------------------------------------------------------------- differencing, classes


def recovers(releases: FloatArray, record: FloatArray, rtol: float = 1e-6) -> bool:
    """Whether a record is a sum of releases with weights -1, 0 and 1.

    Parameters
    ----------
    releases : (m, p) array
        Rows with NaN are left out.
    record : (p,) array
    """
    known = releases[~np.isnan(releases).any(axis=1)]
    for weights in itertools.product((-1, 0, 1), repeat=len(known)):
        if np.allclose(np.asarray(weights) @ known, record, rtol=rtol, atol=1e-9):
            return True
    return False


def _difference(edges_of: Callable[[FloatArray, int], tuple[Any, Any, int]]) -> Any:
    def tried(method: Method, factory: Factory) -> Outcome:
        federation = _continuous(factory)
        name = federation.engine.sites[0]
        site = members(federation)[name]
        if site.policy.min_records == 1:
            return Outcome("accounted", "the policy protects no record: it is one for simulation")
        x = rows_of(federation)[name].features
        # `ClassSums` makes classes of the first column
        first, second, victim = edges_of(x[:, 0], site.policy.min_records)
        run, error = _try_run(ClassSums(edges=(first, second)), federation)
        if run is None:
            return Outcome("blocked", f"the run stopped: {error}")
        releases = np.concatenate([run.result.found[f"{r}/{name}"] for r in (0, 1)])  # type: ignore[attr-defined]
        if recovers(releases, x[victim]):
            return Outcome("open", "a record is the difference of released sums")
        return Outcome("blocked", "no combination of the released sums gives the record")

    return tried


def _one_moves(x: FloatArray, least: int) -> tuple[Any, Any, int]:
    """Move the edge over one record."""
    order = np.argsort(x)
    middle = len(x) // 2
    return (x[order[middle]],), (x[order[middle + 1]],), int(order[middle])


def _one_moves_among_others(x: FloatArray, least: int) -> tuple[Any, Any, int]:
    """Three classes: one record joins the middle class, enough others join it from above."""
    order = np.argsort(x)
    low = len(x) // 3
    high = min(low + least + 1, len(x) - 2 * least)
    first = (x[order[low]], x[order[high]])
    second = (x[order[low - 1]], x[order[high + least]])
    return first, second, int(order[low - 1])


@attack("forbidden class", "ask for a value of each record")
def forbidden_class(method: Method, factory: Factory) -> Outcome:
    """Run a method that asks for nothing else."""
    run, error = _try_run(Rows(), factory())
    if run is None:
        return Outcome("blocked", f"values for each record were refused: {error}")
    lines = [line for line in run.transcript if line.disclosure == "per-record"]
    # a policy may allow it; what must not be is that nobody can read so afterwards
    if lines and all(line.rule == "per-record" for line in lines):
        return Outcome("accounted", "the policies allow values for each record; it is recorded")
    return Outcome("open", "values for each record left without a line that says so")


# --------------------------------------------------------------------------- forged requests


def _recorded(method: Method, factory: Factory) -> tuple[Site, list[Request]]:
    """Return a site after an undisturbed run, and the requests that it really got."""
    record = record_of(method, factory)
    name = record.federation.engine.sites[0]
    asked = (Request.from_bytes(d) for (_, s), d in sorted(record.requests.items()) if s == name)
    return record.site(name), list(asked)


def _put(site: Site, data: bytes) -> tuple[bool, str]:
    """Put a request to a site: whether it was declined, and how."""
    try:
        said = site.answer(data)
    except ConsilienceError as error:
        return True, error.public
    # a steward may still refuse it: nothing has left
    if isinstance(said, Held):
        return True, "the reply waits for the steward"
    reply = Reply.from_bytes(said)
    return reply.status == "refused", reply.reason


def _forge(change: Callable[[Request], bytes]) -> Callable[[Method, Factory], Outcome]:
    def tried(method: Method, factory: Factory) -> Outcome:
        site, requests = _recorded(method, factory)
        for request in requests:
            declined, how = _put(site, change(request))
            if not declined:
                return Outcome("open", f"the site answered in round {request.round}")
        return Outcome("blocked", f"the site declined: {how}")

    return tried


@attack("replayed request", "ask the same question again")
def replay(method: Method, factory: Factory) -> Outcome:
    """Ask for the very bytes of an undisturbed run."""
    site, requests = _recorded(method, factory)
    # a counter of steps: the same bytes alone could have been computed twice
    computed = site.computed
    for request in requests:
        data = request.to_bytes()
        if site.answer(data) != site.answer(data) or site.computed != computed:
            return Outcome("open", f"round {request.round} was computed anew")
    return Outcome("blocked", "the site repeated what it had said and computed nothing")


@attack("unopened run", "ask a step before the run is opened")
def unopened(method: Method, factory: Factory) -> Outcome:
    """Put each question to a site that has heard nothing."""
    _, requests = _recorded(method, factory)
    for request in requests:
        fresh = members(factory())[request.site]
        # the opening itself may be answered
        if request.step != opening.NAME and not _put(fresh, request.to_bytes())[0]:
            return Outcome("open", f"step {request.step!r} was answered before the run was opened")
    return Outcome("blocked", "nothing was answered before the run was opened")


@attack("relaxed opening", "send limits among the settings")
def relaxed_opening(method: Method, factory: Factory) -> Outcome:
    """Put limits wherever the opening has room for settings."""
    site, requests = _recorded(method, factory)
    first = requests[0]
    message = decode_message(first.message)
    limits = {"min_records": 1, "per_record": True, "preset": "simulation", "policy": "simulation"}
    before = site.policy
    for name in ("columns", "preparation"):
        for settings in (limits, {"policy": limits}, {"limits": limits}):
            text = json.dumps({**json.loads(getattr(message, name)), **settings})
            raw = unpack(first.message)
            forged = pack({**raw, "f": {**raw["f"], name: text}})
            # another run: in the same one a second opening is refused for that alone
            asked = dataclasses.replace(first, run="relaxed", message=forged)
            declined, _ = _put(site, asked.to_bytes())
            if not declined or site.policy != before:
                return Outcome("open", f"the site took limits from {name!r}")
    return Outcome("blocked", "the site refused settings that are not its coordinator's")


# --------------------------------------------------------------------------- altered messages


def _altered(name: str, mutate: Callable[[bytes], bytes | None]) -> Any:
    def tried(method: Method, factory: Factory) -> Outcome:
        site, requests = _recorded(method, factory)
        accounted = False
        for request in requests:
            altered = mutate(request.message)
            if altered is None:
                continue
            # a fresh attempt: an answered one would be repeated from memory
            asked = dataclasses.replace(request, attempt=99, message=altered)
            declined, _ = _put(site, asked.to_bytes())
            if not declined and not leaves_room(request.message, name):
                return Outcome("open", f"the site answered it in round {request.round}")
            accounted |= not declined
        outcome = _to_coordinator(method, factory, name, mutate)
        return Outcome("accounted", "its declaration allows it") if accounted else outcome

    return tried


def _to_coordinator(
    method: Method, factory: Factory, name: str, mutate: Callable[[bytes], bytes | None]
) -> Outcome:
    """Alter the last reply of a site on its way; the others are those of the undisturbed run."""
    record = record_of(method, factory)
    site = record.federation.engine.sites[0]
    # of the last one nothing follows that would have to be computed anew
    last = max(r for r, s in record.replies if s == site)
    message = Reply.from_bytes(record.replies[last, site]).message
    if mutate(message) is None:
        return Outcome("blocked", "no message has a place for it; sites declined")

    def tamper(data: bytes) -> bytes:
        reply = Reply.from_bytes(data)
        return dataclasses.replace(reply, message=mutate(reply.message) or b"").to_bytes()

    replayed = record.replayed({(last, site): tamper})
    run, error = _try_run(method, replayed, run_id=record.run.info.run)
    return _judged(run, error, loose=leaves_room(message, name))


def _judged(run: Run | None, error: ConsilienceError | None, *, loose: bool) -> Outcome:
    if loose:
        return Outcome("accounted", "the declaration of the reply allows it")
    said = [str(error)] if run is None else [line.rule for line in run.transcript]
    if any("not accepted" in text for text in said) and isinstance(error, QuorumError | None):
        return Outcome("blocked", "sites declined, and the coordinator did not accept the reply")
    return Outcome("open", f"the coordinator took the reply: {error or 'a result'}")


@attack("altered value", "send another value in one place", "method")
def altered_value(method: Method, factory: Factory) -> Outcome:
    """Alter some of the values of a site's replies, one in each run."""
    rehearsal = Rehearsal(method, factory)
    altered = list(rehearsal.altered_values())
    # evenly over the rounds and fields
    for key, done, message in altered[:: max(len(altered) // _VALUES, 1)]:
        fault = rehearsal.fault(key, message)
        if fault:
            return Outcome("open", f"{done}: {fault}")
    return Outcome("blocked", "each was taken for a value, or its site for absent")


def _forged_reply(change: Callable[[bytes, Record], bytes]) -> Any:
    """Alter the envelope of each reply of a site in turn."""

    def tried(method: Method, factory: Factory) -> Outcome:
        record = record_of(method, factory)
        site = record.federation.engine.sites[0]
        outcome = Outcome("blocked", "there was no reply")
        for round_ in sorted(r for r, s in record.replies if s == site):
            tamper = {(round_, site): lambda data: change(data, record)}
            run, error = _try_run(method, scripted(factory(), tamper))
            outcome = _judged(run, error, loose=False)
            if outcome.verdict == "open":
                return outcome
        return outcome

    return tried


def _reply_with(**changes: Any) -> Any:
    return lambda data, record: dataclasses.replace(Reply.from_bytes(data), **changes).to_bytes()


def _earlier(data: bytes, record: Record) -> bytes:
    """Another run's reply to the same question."""
    reply = Reply.from_bytes(data)
    return record.replies[reply.round, reply.site]


@attack("oversized message", "send more than the site's limit")
def oversized(method: Method, factory: Factory) -> Outcome:
    """Put blanks behind the columns of the opening."""
    federation = factory()
    site = next(iter(members(federation).values()))
    # the site's own limit, below that of the engine
    policy = dataclasses.replace(site.policy, max_message_bytes=2048)
    narrow = next(iter(members(with_policy(federation, policy)).values()))
    _, requests = _recorded(method, factory)
    message = decode_message(requests[0].message)
    raw = unpack(requests[0].message)
    large = pack({**raw, "f": {**raw["f"], "columns": message.columns + " " * 5000}})
    asked = dataclasses.replace(requests[0], run="oversized", message=large)
    declined, how = _put(narrow, asked.to_bytes())
    if not declined:
        return Outcome("open", "a message over the site's own limit was read")
    return Outcome("blocked", f"the site declined: {how}")


@attack("pickle", "have a message unpickled")
def pickled(method: Method, factory: Factory) -> Outcome:
    """Bytes that would make a directory if anything unpickled them."""
    with tempfile.TemporaryDirectory() as folder:
        trap = Path(folder) / "unpickled"
        # protocol 0 of pickle: call os.mkdir with the text
        program = f"cos\nmkdir\n(V{trap}\ntR.".encode()
        site, requests = _recorded(method, factory)
        for request in requests:
            for mutate in (lambda data: program, every_field(program)):
                message = mutate(request.message) or program
                asked = dataclasses.replace(request, attempt=98, message=message)
                declined, _ = _put(site, asked.to_bytes())
                if not declined:
                    return Outcome("open", "the site answered a pickle")
        if not _put(site, program)[0]:
            return Outcome("open", "the site answered a pickle without an envelope")
        outcome = _forged_reply(lambda data, record: program)(method, factory)
        if trap.exists():
            return Outcome("open", "a pickle was executed")
        return Outcome(outcome.verdict, "neither a site nor the coordinator unpickled anything")


# --------------------------------------------------------------------------- canaries


def _planted(method: Method, federation: Federation) -> Outcome:
    planted: list[Canary] = []
    for name in federation.engine.sites:
        planted += plant(rows_of(federation)[name])[1]
        federation = with_data(federation, name, lambda data: plant(data)[0])
    run, found = canaries_after(method, federation, planted)
    if found:
        return Outcome("open", "; ".join(found[:3]))
    ended = "the run ended well" if run is not None else "the run stopped"
    return Outcome("blocked", f"none of {len(planted)} planted values was found; {ended}")


@attack("canaries", "find planted values outside the sites", "method")
def canaries(method: Method, factory: Factory) -> Outcome:
    """Search after a run of the method."""
    return _planted(method, factory())


@attack("canaries in errors", "find planted values after an error that quotes them")
def canaries_in_errors(method: Method, factory: Factory) -> Outcome:
    """Search after a run that fails."""
    return _planted(Failing(), _continuous(factory))


SUITE: tuple[Attack, ...] = (
    small_site,
    dominating,
    *TABLE_ATTACKS,
    Attack("differencing", "subtract two sums that differ by one record", _difference(_one_moves)),
    Attack(
        "differencing among classes",
        "hide one moving record behind many others",
        _difference(_one_moves_among_others),
    ),
    forbidden_class,
    Attack(
        "relaxed envelope",
        "send limits along with a request",
        _forge(
            lambda r: pack(
                {**unpack(r.to_bytes()), "policy": {"preset": "simulation", "min_records": 1}}
            )
        ),
    ),
    relaxed_opening,
    Attack(
        "request of another run",
        "ask a question of a run that was not opened",
        _forge(lambda r: dataclasses.replace(r, run=r.run + "-x", step=r.step + "x").to_bytes()),
    ),
    Attack(
        "request of another round",
        "put an answered round's number on another question",
        _forge(lambda r: dataclasses.replace(r, seed=r.seed + 1).to_bytes()),
    ),
    Attack(
        "request to another site",
        "deliver a request to a site that it does not name",
        _forge(lambda r: dataclasses.replace(r, site=r.site + "x").to_bytes()),
    ),
    Attack(
        "request of another study",
        "go on with a run under the name of another study",
        _forge(lambda r: dataclasses.replace(r, study="other", attempt=97).to_bytes()),
    ),
    unopened,
    replay,
    Attack("reply of another run", "answer for another run", _forged_reply(_reply_with(run="x"))),
    Attack(
        "reply of another round", "answer for another round", _forged_reply(_reply_with(round=77))
    ),
    Attack(
        "reply of another site", "answer for another site", _forged_reply(_reply_with(site="x"))
    ),
    Attack("replayed reply", "answer with the reply of an earlier run", _forged_reply(_earlier)),
    Attack(
        "truncated envelope",
        "answer with half a reply",
        _forged_reply(lambda data, record: data[: len(data) // 2]),
    ),
    *(
        Attack(f"message: {name}", tries, _altered(name, mutate))
        for name, (tries, mutate) in MUTATIONS.items()
    ),
    altered_value,
    oversized,
    pickled,
    canaries,
    canaries_in_errors,
)
"""All attacks."""

"""Does an engine keep the promises that every engine makes? One function for each promise.

Each takes an *engine factory*: ``engine_factory(sites)`` gets a list of `Site` and returns a
context manager whose value is the `Engine` over them. An engine that needs no tidying is wrapped by
``contextlib.nullcontext``. Some of the sites are `SilentSite`: their disk fails, so they never
answer, and the engine must tell the coordinator so once the deadline has passed.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from consilience.engines.base import Arrival, Engine, Key
from consilience.engines.federation import Federation, Run
from consilience.exceptions import QuorumError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Method, Preparation
from consilience.sites.site import Site
from consilience.testing import expect
from consilience.testing.fakes import (
    Asynchronous,
    Echo,
    Failing,
    FakeEngine,
    SilentSite,
    array_loader,
)
from consilience.wire.envelope import Request

EngineFactory = Callable[[Sequence[Site]], AbstractContextManager[Engine]]
NAMES = ("a", "b", "c")
SEED = 20240603
DEADLINE = 5.0


def check_engine(engine_factory: EngineFactory, *, deadline: float = DEADLINE) -> None:
    """Check every promise; see the functions below, each of which may be used alone.

    Parameters
    ----------
    engine_factory : callable
    deadline : float
        Seconds after which a silent site counts as absent.

    Raises
    ------
    CheckFailed
        A promise is broken; the sentence says which.
    """
    check_round_trip(engine_factory)
    check_order(engine_factory)
    check_repeated_asks(engine_factory)
    check_silent_sites(engine_factory, deadline=deadline)
    check_waiting_for_any(engine_factory)
    check_large_messages(engine_factory)
    check_refusals(engine_factory)
    check_errors(engine_factory)


def sites_for_tests(*, silent: str = "", small: str = "", n: int = 40) -> list[Site]:
    """Return three sites with rows of their own; one may be silent, one too small to answer."""
    sites = []
    for number, name in enumerate(NAMES):
        # fewer than the default policy lets pass; unlike sizes, so that no site stands for another
        rows = 5 if name == small else n + number
        x = np.random.default_rng(number).normal(size=(rows, 2))
        kind = SilentSite if name == silent else Site
        sites.append(kind(name, array_loader(x)))
    return sites


def _run(method: Method, engine: Engine, *, quorum: int | None = None, **settings: Any) -> Run:
    deadline = settings.pop("deadline", 60.0)
    columns = Columns(features=("x0", "x1"))
    preparation = Preparation(standardize="pooled")
    federation = Federation(engine, columns, preparation, quorum=quorum, deadline=deadline)
    return method.run(federation, **{"seed": SEED, **settings})  # type: ignore[no-any-return]


def check_round_trip(engine_factory: EngineFactory) -> None:
    """A method gives the same bytes as on the local engine."""
    wanted = _run(MeanAndSD(), FakeEngine(sites_for_tests()))
    with engine_factory(sites_for_tests()) as engine:
        expect(tuple(engine.sites) == NAMES, "engine.sites are not the sites in name order")
        found = _run(MeanAndSD(), engine)
    expect(
        found.result.to_files() == wanted.result.to_files(),
        "the result has other bytes than on the local engine",
    )


def _opening() -> dict[Key, bytes]:
    """Real requests of a first round."""
    engine = FakeEngine(sites_for_tests())
    _run(MeanAndSD(), engine, run_id="asked-by-hand")
    return {key: data for key, data in engine.requests.items() if key[0] == 1}


def _ask(engine: Engine, requests: dict[Key, bytes], deadline: float) -> dict[Key, Arrival]:
    engine.open_run(Request.from_bytes(next(iter(requests.values()))).run)
    engine.send(requests)
    found: dict[Key, Arrival] = {}
    # an engine may give replies in several parts
    while len(found) < len(requests):
        waiting = frozenset(set(requests) - set(found))
        arrivals = engine.collect(waiting, wait="all", deadline=deadline)
        for arrival in arrivals:
            expect(arrival.key in requests, f"{arrival.key} arrived and was not asked for")
            found[arrival.key] = arrival
        expect(bool(arrivals), "collect returned nothing although questions are open")
    return found


def _expect_same(first: dict[Key, Arrival], second: dict[Key, Arrival], sentence: str) -> None:
    for key, arrival in first.items():
        same = arrival.data is not None and arrival.data == second[key].data
        expect(same, sentence.format(key[1]))


def check_order(engine_factory: EngineFactory) -> None:
    """Replies do not depend on the order in which requests are handed over."""
    requests = _opening()
    replies = []
    # a mapping keeps the order in which it was made
    for way in (requests, dict(reversed(requests.items()))):
        with engine_factory(sites_for_tests()) as engine:
            replies.append(_ask(engine, way, 60.0))
    _expect_same(replies[0], replies[1], "the reply of site {} depends on the order of requests")


def check_repeated_asks(engine_factory: EngineFactory) -> None:
    """A question that is sent again gets the same bytes."""
    requests = _opening()
    with engine_factory(sites_for_tests()) as engine:
        first, second = (_ask(engine, requests, 60.0) for _ in range(2))
    _expect_same(first, second, "site {} gave other bytes when it was asked again")


def check_silent_sites(engine_factory: EngineFactory, *, deadline: float = DEADLINE) -> None:
    """A silent site is absent, with a reason; the others answer; below the quorum the run stops."""
    with engine_factory(sites_for_tests(silent="b")) as engine:
        found = _ask(engine, _opening(), deadline)
        expect(found[1, "b"].data is None, "a silent site gave a reply")
        expect(bool(found[1, "b"].reason), "a silent site is absent without a reason")
        others = [found[1, name].data for name in ("a", "c")]
        expect(None not in others, "one silent site keeps the others from answering")
    with engine_factory(sites_for_tests(silent="b")) as engine:
        # two of three are enough: the run goes on without the silent site
        run = _run(MeanAndSD(), engine, quorum=2, deadline=deadline)
        expect(any("b" in note for note in run.notes), "no note of the run names the silent site")
    with engine_factory(sites_for_tests(silent="b")) as engine:
        try:
            _run(MeanAndSD(), engine, deadline=deadline)
        except QuorumError as error:
            expect("b was absent" in str(error), f"the error does not name the site: {error}")
        else:
            expect(False, "the run went on below its quorum")


def check_waiting_for_any(engine_factory: EngineFactory) -> None:
    """With ``wait="any"`` one reply arrives at a time, and a replay gives the same bytes."""
    with engine_factory(sites_for_tests()) as engine:
        requests = _opening()
        engine.open_run(Request.from_bytes(next(iter(requests.values()))).run)
        engine.send(requests)
        arrivals = engine.collect(frozenset(requests), wait="any", deadline=60.0)
        expect(len(arrivals) >= 1, "waiting for any reply returned none")
    with tempfile.TemporaryDirectory() as folder:
        out, sites = Path(folder) / "run", sites_for_tests()
        with engine_factory(sites) as engine:
            first = _run(Asynchronous(), engine, out=out)
        # a finished run would be read, not replayed
        (out / "result.json").unlink()
        with engine_factory(sites) as engine:
            again = _run(Asynchronous(), engine, out=out, resume=True)
    expect(
        first.result.to_files() == again.result.to_files()
        and [line.chain for line in first.transcript] == [line.chain for line in again.transcript],
        "a replay of an asynchronous run gives something else",
    )


def check_large_messages(engine_factory: EngineFactory, *, size: int = 20_000_000) -> None:
    """A message of 20 MB arrives there and back."""
    with engine_factory(sites_for_tests()) as engine:
        found = _run(Echo(size=size // 8), engine).result.found  # type: ignore[attr-defined]
    # numbers of eight bytes
    wanted = 2 * np.arange(size // 8, dtype=float)
    for name in NAMES:
        expect(np.array_equal(found[name], wanted), f"a large message of site {name} was altered")


def check_refusals(engine_factory: EngineFactory) -> None:
    """What a gate says arrives word for word."""
    with engine_factory(sites_for_tests(small="c")) as engine:
        run = _run(MeanAndSD(), engine, quorum=2)
    said = [line.rule for line in run.transcript if line.verdict == "refused"]
    wanted = "the gate refused field 'n': a cell rests on fewer than 10 records"
    expect(said == [wanted], f"the site refused otherwise than its gate says: {said}")


def check_errors(engine_factory: EngineFactory) -> None:
    """Nothing of an error in a step leaves the site but that it happened."""
    sites = sites_for_tests()
    with engine_factory(sites) as engine:
        try:
            _run(Failing(), engine)
        except QuorumError as error:
            # causes and contexts too: these are what a careless caller prints
            said = "".join(traceback.format_exception(error))
        else:
            said = ""
    expect("failed at the site" in said, "a failing step is not told as one")
    values = [repr(float(v)) for s in sites for v in s._loader(*_SETTINGS).features.ravel()]  # type: ignore[union-attr]
    expect(not any(v in said for v in values), "an error at a site tells a value of its rows")


_SETTINGS = (Columns(features=("x0", "x1")), Preparation())

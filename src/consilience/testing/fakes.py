"""Scripted engines, simple loaders, sites with fixed secrets, and small methods for tests.

The methods are `ClassSums` (sums of the same classes over rounds), `Asynchronous` (``wait="any"``),
`Echo` (messages of any size), `Failing` (an error that quotes a value) and `Rows` (a value for each
record).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.engines.base import Arrival, Key
from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine
from consilience.exceptions import ParameterError, RunError, StudyError
from consilience.protocol.method import (
    Ask,
    Columns,
    CoordinatorContext,
    Exchange,
    Method,
    Preparation,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.result import Frame, Result, lines
from consilience.sites.policy import Policy
from consilience.sites.prepare import Loaded
from consilience.sites.site import Loader, Site
from consilience.sites.site_store import MemoryStore
from consilience.sites.step_runner import Work
from consilience.wire.disclosure import Released, aggregate, count, per_record, relayed
from consilience.wire.envelope import Request
from consilience.wire.message import (
    Aggregate,
    Disclosure,
    PerRecord,
    Public,
    message,
)

if TYPE_CHECKING:
    import pandas as pd

Action = Literal["absent", "returns", "late", "refused", "duplicate"] | Callable[[bytes], bytes]
Script = Mapping[Key, Action]
Factory = Callable[[], Federation]

NO_ANSWER = "no answer within the deadline"


def array_loader(
    features: NDArray[Any],
    names: Sequence[str] | None = None,
    **roles: Any,
) -> Loader:
    """Return a loader that gives arrays as they are, in the study's order of columns.

    Parameters
    ----------
    features : (n, p) array
    names : sequence of str, optional
        Names of the columns; ``x0``, ``x1``, ... unless given.
    **roles
        Other fields of `SiteData`, such as `id`, `entity` or `target`.
    """
    # a copy: the caller's rows may change later
    x = np.array(features, dtype=float)
    known = [f"x{j}" for j in range(x.shape[1])] if names is None else list(names)

    def load(columns: Columns, preparation: Preparation, partition: str = "rows") -> SiteData:
        wanted = columns.features or tuple(known)
        for name in wanted:
            if name not in known:
                raise StudyError(f"no column is called {name!r}", public="a column is missing")
        chosen = x[:, [known.index(name) for name in wanted]]
        given = {"n_read": len(x), **roles}
        return SiteData(chosen, tuple(wanted), np.arange(len(x)), **given)

    return load


def federation_of(
    tables: Mapping[str, NDArray[Any]],
    *,
    names: Sequence[str] | None = None,
    policy: Policy | None = None,
    preparation: Preparation | None = None,
    quorum: int | None = None,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Federation:
    """Return a federation over arrays, one site for each, with homes in memory.

    Parameters
    ----------
    tables : mapping of str to (n, p) array
    names : sequence of str, optional
        Names of the columns, the same at all sites.
    policy, preparation, quorum
        As in `Federation`.
    roles : mapping of str to mapping, optional
        Other fields of each site's `SiteData`.
    """
    first = next(iter(tables.values()))
    known = [f"x{j}" for j in range(first.shape[1])] if names is None else list(names)
    sites = [
        Site(name, array_loader(x, known, **(roles or {}).get(name, {})), policy=policy)
        for name, x in tables.items()
    ]
    columns = Columns(features=tuple(known))
    return Federation(LocalEngine(sites), columns, preparation or Preparation(), quorum=quorum)


def members(federation: Federation) -> dict[str, Site]:
    """Sites of a federation that lives in this process.

    Raises
    ------
    ParameterError
        Its engine is not a `LocalEngine`.
    """
    if not isinstance(federation.engine, LocalEngine):
        raise ParameterError("checks of methods need a federation on a LocalEngine")
    return federation.engine.members


def with_fixed_secrets(site: Site, seed: int) -> Site:
    """Make a site draw its secrets from a seed, so that tests can repeat them.

    This is the only way: no study, request or site file reaches it.
    """
    site._secret_seed = int(seed)
    return site


def with_data(
    federation: Federation, name: str, change: Callable[[SiteData], SiteData]
) -> Federation:
    """Return a federation whose sites are new, one of them with changed rows."""
    plain = members(federation)[name]._loader

    def load(columns: Columns, preparation: Preparation, **more: Any) -> SiteData | Loaded:
        loaded = plain(columns, preparation, **more)
        if isinstance(loaded, SiteData):
            return change(loaded)
        return dataclasses.replace(loaded, data=change(loaded.data))

    return _renewed(federation, {name: load}, None)


def with_policy(federation: Federation, policy: Policy) -> Federation:
    """Return a federation whose sites are new and have another policy."""
    return _renewed(federation, {}, policy)


def _renewed(
    federation: Federation, loaders: Mapping[str, Loader], policy: Policy | None
) -> Federation:
    sites = []
    for name, site in members(federation).items():
        fresh = Site(
            name,
            loaders.get(name, site._loader),
            policy=policy or site.policy,
            home=MemoryStore(),
            partner_key=site._partner_key,
        )
        # otherwise two federations to compare would differ by their secrets
        fresh._secret_seed = site._secret_seed
        sites.append(fresh)
    return dataclasses.replace(federation, engine=LocalEngine(sites))


def rows_of(federation: Federation) -> dict[str, SiteData]:
    """Rows of every site as the study prepares them at the site, for pooled oracles."""
    found = {}
    more = {} if federation.partition == "rows" else {"partition": federation.partition}
    for name, site in members(federation).items():
        loaded = site._loader(federation.columns, federation.preparation, **more)
        found[name] = loaded if isinstance(loaded, SiteData) else loaded.data
    return found


def subset(data: SiteData, rows: NDArray[np.int64]) -> SiteData:
    """Return some of a site's rows."""
    parts = {
        f.name: getattr(data, f.name)[rows]
        for f in dataclasses.fields(data)
        if f.name != "scaling"
        and isinstance(getattr(data, f.name), np.ndarray)
        and len(getattr(data, f.name)) == data.n_rows
    }
    return dataclasses.replace(data, **parts)


class SilentSite(Site):
    """A site whose disk fails: nothing may leave it, so it never answers."""

    def begin(self, data: bytes) -> bytes | Work:
        """Fail."""
        raise RunError("the disk of this site is full")


class FakeEngine(LocalEngine):
    """Local engine that loses, refuses, doubles, alters and reorders what a script says.

    Parameters
    ----------
    sites : iterable of Site
    script : mapping of (round, site) to action
        ``"absent"``: the site is gone from that round on; ``"returns"``: gone for that round only;
        ``"late"``: it answers, but its reply is lost; ``"refused"``: its steward refuses;
        ``"duplicate"``: its reply comes twice; a function: alters the bytes of the reply.
    reverse : bool
        Deliver in reversed order.

    Attributes
    ----------
    requests, replies : dict of (round, site) to bytes
        All that was sent and all that came back.
    missed : list of (int, str, str)
        Round, step and site of every question that the script left without an answer.
    """

    name = "local"

    def __init__(
        self,
        sites: Iterable[Site],
        script: Script | None = None,
        *,
        reverse: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(sites, n_jobs=n_jobs)
        self.script = dict(script or {})
        self.reverse = reverse
        self.requests: dict[Key, bytes] = {}
        self.replies: dict[Key, bytes] = {}
        self.missed: list[tuple[int, str, str]] = []
        for site in self.members.values():
            site.confirm = self._confirm

    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Hand on what the script lets through."""
        self.requests.update(requests)
        for key, data in requests.items():
            if self._action(key) in ("absent", "returns", "late", "refused"):
                self.missed.append((key[0], Request.from_bytes(data).step, key[1]))
        # late and refused ones are computed: the site did hear the question
        super().send({k: d for k, d in requests.items() if not self._is_silent(k)})

    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Collect, and do to the replies what the script says."""
        silent = sorted(key for key in keys if self._is_silent(key))
        arrivals = [Arrival(key, None, NO_ANSWER) for key in silent]
        heard = keys - set(silent)
        # whoever waits for any is told of an absence at once
        if heard and (wait == "all" or not arrivals):
            for arrival in super().collect(frozenset(heard), wait=wait, deadline=deadline):
                arrivals += self._altered(arrival)
        if wait == "any":
            return arrivals[:1]
        return arrivals[::-1] if self.reverse else arrivals

    def _altered(self, arrival: Arrival) -> list[Arrival]:
        action = self._action(arrival.key)
        if arrival.data is None:
            return [arrival]
        self.replies[arrival.key] = arrival.data
        if action == "late":
            return [Arrival(arrival.key, None, NO_ANSWER)]
        if callable(action):
            return [Arrival(arrival.key, action(arrival.data))]
        return [arrival, arrival] if action == "duplicate" else [arrival]

    def _action(self, key: Key) -> Action | None:
        # who is absent once never comes back
        gone = [r for (r, s), a in self.script.items() if s == key[1] and a == "absent"]
        return "absent" if gone and key[0] >= min(gone) else self.script.get(key)

    def _is_silent(self, key: Key) -> bool:
        return self._action(key) in ("absent", "returns")

    def _confirm(self, request: Request, message: object, verdicts: object) -> bool:
        return self._action((request.round, request.site)) != "refused"


def scripted(federation: Federation, script: Script | None = None, **settings: Any) -> Federation:
    """Return the federation with its sites behind a `FakeEngine`."""
    engine = FakeEngine(members(federation).values(), script, **settings)
    return dataclasses.replace(federation, engine=engine)


# --------------------------------------------------------------------------- small methods


@dataclass(frozen=True, eq=False)
class Findings(Result):
    """Arrays by round and site.

    Attributes
    ----------
    found : dict of str to array
        By ``"<round>/<site>"``.
    """

    found: dict[str, NDArray[Any]]

    def summary(self) -> str:
        """Return how many answers there are."""
        return f"{len(self.found)} answers."

    @Frame
    def answers(self) -> pd.DataFrame:
        """Names of the answers."""
        return lines({"answer": list(self.found)})


@message("testing/edges", version=1)
class Edges:
    """Where the classes of the first column end."""

    edges: NDArray[np.float64] = Public("k", to="site")

    def lengths(self) -> dict[str, int]:
        """Classes between them."""
        return {"c": len(self.edges) + 1}


@message("testing/class-sums", version=1)
class Sums:
    """Column sums in each class; NaN where the site withholds them."""

    sums: Released = Aggregate("c p", gaps=True)


@step("testing.class-sums")
def class_sums(
    message: Edges, data: SiteData, state: State, site: SiteContext
) -> tuple[Sums, State]:
    """Sum the columns by class of the first one, under one series."""
    cells = np.searchsorted(message.edges, data.features[:, 0], side="right").astype(np.int64)
    released = aggregate(
        data.features,
        cells=cells,
        n_cells=len(message.edges) + 1,
        entities=data.entity,
        series="class-sums",
    )
    return Sums(sums=released.withhold_unsafe(site.limits)), state


@register
@dataclass(frozen=True, kw_only=True)
class ClassSums(Method):
    """Sums of the same classes again and again, with the edges of each round as given.

    Parameters
    ----------
    edges : tuple of tuple of float
        Edges of the classes in each round.
    """

    edges: tuple[tuple[float, ...], ...] = ((0.0,),)

    name: ClassVar[str] = "testing-class-sums"
    title: ClassVar[str] = "What do differences of class sums tell?"
    steps = (class_sums,)
    absence: ClassVar[str] = "A site that misses a round is missing there, down to the quorum."
    leakage: ClassVar[str] = "The coordinator knows the sums of classes of at least min_records."
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once for each set of edges."""
        found: dict[str, NDArray[Any]] = {}
        for round_, edges in enumerate(self.edges):
            asked = Ask("testing.class-sums", Edges(edges=np.array(edges, dtype=float)))
            for site, reply in ctx.require((yield asked)).items():
                found[f"{round_}/{site}"] = reply.sums.value
        return Findings(found)


@message("testing/guess", version=1)
class Guess:
    """The coordinator's current guess."""

    guess: Released = Aggregate("p", to="all")


@message("testing/pull", version=1)
class Pull:
    """How far a site's rows lie from the guess."""

    n: Released = Aggregate("", kind="int", low=1)
    distance: Released = Aggregate("p")


@step("testing.pull")
def pull(message: Guess, data: SiteData, state: State, site: SiteContext) -> tuple[Pull, State]:
    """Sum the distances."""
    distance = aggregate(data.features - message.guess.value, columns=data.features)
    return Pull(n=count(data.n_rows), distance=distance), state


@register
@dataclass(frozen=True, kw_only=True)
class Asynchronous(Method):
    """Move a guess towards every site that answers, in whatever order they do.

    Parameters
    ----------
    turns : int
        Answers that each site gives.
    """

    turns: int = 3

    name: ClassVar[str] = "testing-asynchronous"
    title: ClassVar[str] = "Where does a guess come to rest?"
    steps = (pull,)
    absence: ClassVar[str] = "A site that misses a turn is not asked again, down to the quorum."
    leakage: ClassVar[str] = "The coordinator knows each site's column means."
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask everybody, then each site again as soon as it has answered."""
        guess = np.zeros(len(ctx.feature_names))
        left = dict.fromkeys(ctx.sites, self.turns)
        lost: set[str] = set()
        to: tuple[str, ...] = ctx.sites
        while any(left.values()):
            asked = Guess(guess=relayed(guess, Disclosure.AGGREGATE))
            replies = yield Ask("testing.pull", {site: asked for site in to}, to=to, wait="any")
            to = ()
            for site in replies:
                left[site] = 0 if site in replies.missing else left[site] - 1
                lost.update(replies.missing)
                to = (site,) if left[site] else ()
            if len(ctx.sites) - len(lost) < ctx.quorum:
                # raises, and names who is missing
                ctx.require(replies, at_least=ctx.quorum)
            for reply in ctx.require(replies, at_least=0).values():
                guess = guess + 0.5 * reply.distance.value / reply.n.value
        return Findings({"guess": guess})


@message("testing/load", version=1)
class Load:
    """Something large."""

    load: NDArray[np.float64] = Public("n", to="site")


@message("testing/echo", version=1)
class Echoed:
    """The same, doubled."""

    load: NDArray[np.float64] = Public("n")


@step("testing.echo")
def echo(message: Load, data: SiteData, state: State, site: SiteContext) -> tuple[Echoed, State]:
    """Double what came."""
    return Echoed(load=2 * message.load), state


@register
@dataclass(frozen=True, kw_only=True)
class Echo(Method):
    """Send something large there and back.

    Parameters
    ----------
    size : int
        Numbers of eight bytes.
    """

    size: int = 1000

    name: ClassVar[str] = "testing-echo"
    title: ClassVar[str] = "Do large messages arrive?"
    steps = (echo,)
    absence: ClassVar[str] = "A silent site is missing in the result, down to the quorum."
    leakage: ClassVar[str] = "Nothing."
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once."""
        sent = np.arange(self.size, dtype=float)
        replies = ctx.require((yield Ask("testing.echo", Load(load=sent))))
        return Findings({site: reply.load for site, reply in replies.items()})


@message("testing/question", version=1)
class Question:
    """Nothing but a question."""


@message("testing/rows", version=1)
class RowsReply:
    """A value for each record."""

    values: Released = PerRecord("n")


@step("testing.rows")
def rows(
    message: Question, data: SiteData, state: State, site: SiteContext
) -> tuple[RowsReply, State]:
    """Send the first column."""
    return RowsReply(values=per_record(data.features[:, 0])), state


@step("testing.fail")
def fail(
    message: Question, data: SiteData, state: State, site: SiteContext
) -> tuple[RowsReply, State]:
    """Fail with an error that quotes values."""
    quoted = [float(v) for v in data.features.ravel()]
    raise ValueError(f"cannot go on with {quoted}, {data.id}, {data.entity}")


class _OneQuestion(Method):
    """Ask all sites once."""

    absence: ClassVar[str] = "A silent site is missing in the result, down to the quorum."
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        replies = ctx.require((yield Ask(self.steps[0].name, Question())))
        return Findings({site: reply.values.value for site, reply in replies.items()})


@register
@dataclass(frozen=True, kw_only=True)
class Rows(_OneQuestion):
    """Ask for a value of each record."""

    name: ClassVar[str] = "testing-rows"
    title: ClassVar[str] = "What does the policy say to a value for each record?"
    steps = (rows,)
    leakage: ClassVar[str] = "The coordinator knows the first column."


@register
@dataclass(frozen=True, kw_only=True)
class Failing(_OneQuestion):
    """Ask for what makes the sites fail."""

    name: ClassVar[str] = "testing-failing"
    title: ClassVar[str] = "What does an error tell?"
    steps = (fail,)
    leakage: ClassVar[str] = "Nothing."

"""Local engine: every site in this process's care, computed through joblib.

Requests and replies pass through encode, gate and decode like anywhere else. Steps run wherever
``joblib.parallel_config`` says (threads, processes, dask, ray); records and outputs are kept here.

A reply that waits for its site's steward is asked for again and again, until the deadline.

The reason of a refusal, as the site's own log has it, goes to Python's log too: whoever has all the
sites in one process need not look for it.

Under ``wait="any"`` replies come in the order of a virtual clock: each site's delays are drawn from
the run's seed, so an asynchronous run is the same every time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from consilience.engines.base import Arrival, Engine, Key
from consilience.exceptions import ConsilienceError, StudyError
from consilience.numerics.parallel import ordered_map
from consilience.numerics.random import stream
from consilience.sites.loaders import file_site
from consilience.sites.site import Site
from consilience.sites.site_store import Held
from consilience.sites.step_runner import Work, compute
from consilience.sites.study import SiteFile, Study
from consilience.wire.envelope import Reply, Request

_POLL = 0.1
_LONGEST = 1 << 14
"""No refusal is longer: it has a sentence and no message."""
_LOG = logging.getLogger(__name__)


class LocalEngine(Engine):
    """Engine over sites in this process.

    Parameters
    ----------
    sites : iterable of Site
    n_jobs : int, optional
        As in joblib; ``None`` follows ``joblib.parallel_config``.
    """

    name = "local"

    def __init__(self, sites: Iterable[Site], *, n_jobs: int | None = None) -> None:
        listed = list(sites)
        self.members = {site.name: site for site in sorted(listed, key=lambda s: s.name)}
        if len(self.members) < len(listed):
            names = [site.name for site in listed]
            twice = next(name for name in names if names.count(name) > 1)
            raise StudyError(f"two sites are called {twice!r}: give each site its own name")
        self.sites = tuple(self.members)
        self.n_jobs = n_jobs
        self._queue: dict[Key, bytes] = {}
        self._arrived: dict[Key, tuple[float, Arrival]] = {}
        self._held: dict[Key, tuple[bytes, float]] = {}
        self._clock: dict[tuple[str, str], float] = {}

    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Queue requests; they are computed when somebody waits for them."""
        self._queue.update(requests)

    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Compute what is queued and return it in the order of the virtual clock."""
        self._compute()
        while left := [key for key in keys if key in self._held]:
            for key in left:
                self._ask_again(key, deadline)
            if (wait == "any" and not keys.isdisjoint(self._arrived)) or not self._held:
                break
            time.sleep(_POLL)
        ready = sorted((k for k in keys if k in self._arrived), key=lambda k: self._arrived[k][0])
        chosen = ready if wait == "all" else ready[:1]
        return [self._arrived.pop(key)[1] for key in chosen]

    def _compute(self) -> None:
        # Taken out first: a site that fails is answered below, not computed again.
        queue, self._queue = self._queue, {}
        begun: dict[Key, bytes | Held | Work] = {}
        failed: dict[Key, str] = {}
        for key, data in queue.items():
            try:
                begun[key] = self.members[key[1]].begin(data)
            except ConsilienceError as error:
                # No request to this site, or a home that cannot be read: nothing can leave it.
                failed[key] = error.public
                self._tell(key, "cannot answer", str(error))
        works = {key: item for key, item in begun.items() if isinstance(item, Work)}
        outcomes = dict(
            zip(works, ordered_map(compute, works.values(), n_jobs=self.n_jobs), strict=True)
        )
        for key, data in queue.items():
            item = begun.get(key)
            request = item.request if isinstance(item, Work) else Request.from_bytes(data)
            if item is None:
                arrival: Arrival | None = Arrival(key, None, failed[key])
            elif isinstance(item, Work):
                finish = partial(self.members[key[1]].finish, item, outcomes[key])
                arrival = self._arrival(key, request, finish)
            else:
                arrival = self._arrival(key, request, lambda said=item: said)  # type: ignore[misc]
            if arrival is None:
                self._held[key] = (data, time.monotonic())
            else:
                self._arrived[key] = (self._arrival_time(request), arrival)

    def _arrival(
        self, key: Key, request: Request, answer: Callable[[], bytes | Held]
    ) -> Arrival | None:
        """A reply that arrives, unless it waits for the site's steward."""
        try:
            reply = answer()
            if isinstance(reply, Held):
                return None
            self.members[key[1]].sent(request.run, request.round, request.attempt)
        except ConsilienceError as error:
            # The site could not keep its record: nothing may leave it, so it counts as absent.
            self._tell(key, "cannot answer", str(error))
            return Arrival(key, None, error.public)
        self._tell_refusal(key, reply)
        return Arrival(key, reply)

    def _tell_refusal(self, key: Key, data: bytes) -> None:
        """Say why a site refused, as its own log has it.

        What it told the others, where it has columns of its own (their names are its own affair),
        and where the sentence is that of a foreign exception, which may quote values.
        """
        if len(data) > _LONGEST:
            return
        try:
            reply = Reply.from_bytes(data)
            if reply.status != "refused":
                return
            lines = self.members[key[1]].home.read_log()
        except ConsilienceError:
            return  # Bytes that are no reply, or a log that cannot be read: others say so.
        asked = {"run": reply.run, "step": reply.step}
        why = [
            str(line["reason"])
            for line in lines
            if line.get("event") == "refused" and asked.items() <= line.items()
            if "foreign" not in line and not self.members[key[1]].over_columns
        ]
        self._tell(key, f"refused step {reply.step!r}", why[-1] if why else reply.reason)

    def _tell(self, key: Key, what: str, why: str) -> None:
        _LOG.warning("site %s %s: %s", key[1], what, why)

    def _ask_again(self, key: Key, deadline: float) -> None:
        """See what the steward has decided on a reply; past the deadline its site is absent."""
        data, since = self._held[key]
        request = Request.from_bytes(data)
        arrival = self._arrival(key, request, partial(self.members[key[1]].answer, data))
        if arrival is None:
            if time.monotonic() - since < deadline:
                return
            reason = "no reply within the deadline: it waits for the site's steward"
            arrival = Arrival(key, None, reason)
        del self._held[key]
        self._arrived[key] = (self._arrival_time(request), arrival)

    def _arrival_time(self, request: Request) -> float:
        """Virtual time: a site's previous arrival plus a delay drawn from seed, site and round."""
        # Drawn from the seed, so that an asynchronous run on one machine can be repeated.
        delay = stream(request.seed, "delay", request.site, request.round).exponential()
        clock = (request.run, request.site)
        # A site computes one thing after another: its arrivals never overtake each other.
        self._clock[clock] = self._clock.get(clock, 0.0) + float(delay)
        return self._clock[clock]


def check_site_files(study: Study, files: Mapping[str, SiteFile]) -> None:
    """Check that there is one file for each site, with its name and a home of its own.

    Raises
    ------
    StudyError
    """
    homes: dict[Path, str] = {}
    for name in study.sites.names:
        if name not in files:
            raise StudyError(f"site {name!r} of the study has no site file: add it")
        file = files[name]
        if file.name != name:
            raise StudyError(
                f"the site file of {name!r} says that its name is {file.name!r}: make them agree"
            )
        home = file.home_path.resolve()
        # Two sites in one home would share budgets, records and outputs.
        if home in homes:
            raise StudyError(
                f"sites {homes[home]!r} and {name!r} have the same home {file.home!r}: give each "
                "its own"
            )
        homes[home] = name


def local_engine(study: Study, files: Mapping[str, SiteFile]) -> LocalEngine:
    """Build the engine over sites of this machine, each with its home on disk."""
    check_site_files(study, files)
    return LocalEngine([file_site(files[name]) for name in study.sites.names])

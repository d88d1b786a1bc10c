"""Local engine: every site in this process's care, computed through joblib.

Requests and replies pass through encode, gate and decode like anywhere else. Steps run wherever
``joblib.parallel_config`` says (threads, processes, dask, ray); records and outputs are kept here.

Under ``wait="any"`` replies come in the order of a virtual clock: each site's delays are drawn from
the run's seed, so an asynchronous run is the same every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consilience.engines.base import Arrival, Engine, Key
from consilience.exceptions import ConsilienceError, StudyError
from consilience.numerics.parallel import ordered_map
from consilience.numerics.random import stream
from consilience.sites.computing import Work, compute
from consilience.sites.site import Site
from consilience.wire.envelope import Request


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
        self._clock: dict[tuple[str, str], float] = {}

    def send(self, requests: Mapping[Key, bytes]) -> None:
        """Queue requests; they are computed when somebody waits for them."""
        self._queue.update(requests)

    def collect(self, keys: frozenset[Key], *, wait: str, deadline: float) -> list[Arrival]:
        """Compute what is queued and return it in the order of the virtual clock."""
        self._compute()
        ready = sorted((k for k in keys if k in self._arrived), key=lambda k: self._arrived[k][0])
        chosen = ready if wait == "all" else ready[:1]
        return [self._arrived.pop(key)[1] for key in chosen]

    def _compute(self) -> None:
        queue, self._queue = self._queue, {}
        begun: dict[Key, bytes | Work] = {}
        failed: dict[Key, str] = {}
        for key, data in queue.items():
            try:
                begun[key] = self.members[key[1]].begin(data)
            except ConsilienceError as error:
                # No request to this site, or a home that cannot be read: nothing can leave it.
                failed[key] = error.public
        works = {key: item for key, item in begun.items() if isinstance(item, Work)}
        outcomes = dict(
            zip(works, ordered_map(compute, works.values(), n_jobs=self.n_jobs), strict=True)
        )
        for key, data in queue.items():
            item = begun.get(key)
            request = item.request if isinstance(item, Work) else Request.from_bytes(data)
            if item is None:
                arrival = Arrival(key, None, failed[key])
            elif isinstance(item, Work):
                arrival = self._finished(key, item, outcomes[key])
            else:
                arrival = Arrival(key, item)
            self._arrived[key] = (self._arrival_time(request), arrival)

    def _finished(self, key: Key, work: Work, outcome: object) -> Arrival:
        try:
            return Arrival(key, self.members[key[1]].finish(work, outcome))  # type: ignore[arg-type]
        except ConsilienceError as error:
            # The site could not keep its record: nothing may leave it, so it counts as absent.
            return Arrival(key, None, error.public)

    def _arrival_time(self, request: Request) -> float:
        """Virtual time: a site's previous arrival plus a delay drawn from seed, site and round."""
        delay = stream(request.seed, "delay", request.site, request.round).exponential()
        clock = (request.run, request.site)
        self._clock[clock] = self._clock.get(clock, 0.0) + float(delay)
        return self._clock[clock]

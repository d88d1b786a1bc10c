"""One ordered map over joblib, and one way to keep numerical libraries on one thread.

On dask the map is that of `cluster`, which does not lose what a lost worker held.

Results come in the order of the items, whoever computed them, and do not depend on how many threads
a library would use: sums over threads differ in their last bits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from consilience.numerics.cluster import PATIENCE, Cluster
from consilience.numerics.progress import task

T = TypeVar("T")
R = TypeVar("R")

_lock = threading.Lock()
_limits: list[Any] = []
_inside = 0
_here = threading.local()
_found: tuple[int, Any] | None = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep numerical libraries on one thread, however many threads of ours are inside.

    A library with a thread pool for the whole process obeys one thread of ours at a time, and
    threadpoolctl's own context restores what it found: of two that overlap in different threads,
    the first to leave would let the library loose under the second. Here the last one restores.
    A run holds this context from beginning to end, in the thread that called it.
    """
    global _inside
    if getattr(_here, "limited", 0) == len(sys.modules):
        yield  # this thread is inside already, and no library has come since
        return
    before, _here.limited = getattr(_here, "limited", 0), len(sys.modules)
    with _lock:
        _limits.append(_controller().limit(limits=1))
        _inside += 1
    try:
        yield
    finally:
        if not before:
            _here.limited = 0
        with _lock:
            _inside -= 1
            while _inside == 0 and _limits:
                _limits.pop().restore_original_limits()


def _controller() -> Any:
    """Libraries with threads of their own, looked for again where something was imported since."""
    from threadpoolctl import ThreadpoolController

    global _found
    # A library that is imported later brings its own pool; looking is slow, so it is done only
    # where something was imported.
    if _found is None or _found[0] != len(sys.modules):
        controller = ThreadpoolController()
        _found = (len(sys.modules), controller)
    return _found[1]


def ordered_map(
    function: Callable[[T], R],
    items: Collection[T],
    *,
    n_jobs: int | None = None,
    what: str = "",
) -> list[R]:
    """Apply `function` to every item.

    Parameters
    ----------
    function : callable
        Picklable where the backend uses processes.
    items : collection
    n_jobs : int, optional
        As in joblib; ``None`` follows ``joblib.parallel_config``, which also chooses the backend
        (threads, processes, dask, ray).
    what : str
        What the items are, where progress is shown.
    """
    import joblib

    if (cluster := _active_cluster()) is not None:
        with task(what, len(items)) if what else nullcontext(lambda: None) as done:
            return _in_order(cluster.map(function, list(items)), len(items), lambda _: done())
    tasks = (joblib.delayed(function)(item) for item in items)
    if not what:
        return list(joblib.Parallel(n_jobs=n_jobs)(tasks))
    found = []
    with task(what, len(items)) as done:
        for result in _as_they_come(n_jobs)(tasks):
            found.append(result)
            done()
    return found


def at_a_time(n_jobs: int | None = None) -> int:
    """How many items a map works on at a time, 1 or more."""
    import joblib

    return max(1, int(joblib.effective_n_jobs(n_jobs)))


def _active_cluster() -> Cluster | None:
    """The dask cluster that ``joblib.parallel_config`` has chosen, if it has chosen one."""
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    client = getattr(backend, "client", None)
    if client is None or not type(client).__module__.startswith("distributed."):
        return None
    return Cluster(client, max(PATIENCE, backend.wait_for_workers_timeout or 0.0))


def _as_they_come(n_jobs: int | None) -> Any:
    """Results in order, each when it is there; of a backend that cannot do that, all at once."""
    import joblib

    try:
        return joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    except ValueError:
        return joblib.Parallel(n_jobs=n_jobs)


class Workers:
    """Workers that are kept over several maps, as a context.

    Large arrays that are handed over again and again are mapped or sent once, where the backend
    can do that: keep the same array object.

    Parameters
    ----------
    n_jobs : int, optional
        As in joblib, see :func:`ordered_map`.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        import joblib

        self._cluster = _active_cluster()
        self._parallel: Any = nullcontext()
        if self._cluster is not None:
            return
        try:
            self._parallel = joblib.Parallel(
                n_jobs=n_jobs, return_as="generator_unordered", batch_size=1
            )
        except ValueError:  # the backend hands back all results at once
            self._parallel = joblib.Parallel(n_jobs=n_jobs, batch_size=1)

    def __enter__(self) -> Workers:
        self._parallel.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._parallel.__exit__(*error)

    def map(
        self,
        function: Callable[..., R],
        items: Sequence[T],
        *shared: object,
        done: Callable[[int], None] | None = None,
    ) -> list[R]:
        """Apply ``function(item, *shared)`` to every item; results in the order of the items.

        Parameters
        ----------
        function : callable
        items : sequence
        *shared : objects
            Sent once rather than with each item, where the backend can do that and the object's
            ``__sizeof__`` says that it is large.
        done : callable, optional
            Told the place of each item as its result arrives, in any order.
        """
        import joblib

        if self._cluster is not None:
            return _in_order(self._cluster.map(function, items, *shared), len(items), done)
        tasks = (joblib.delayed(_placed)(i, function, x, *shared) for i, x in enumerate(items))
        return _in_order(self._parallel(tasks), len(items), done)


def _in_order(
    results: Iterable[tuple[int, R]], n: int, done: Callable[[int], None] | None
) -> list[R]:
    """Put results that come in any order where their item stands."""
    found: dict[int, R] = {}
    for place, result in results:
        found[place] = result
        if done is not None:
            done(place)
    return [found[place] for place in range(n)]


def _placed(place: int, function: Callable[..., R], item: Any, *shared: object) -> tuple[int, R]:
    return place, function(item, *shared)

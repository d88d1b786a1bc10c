"""One ordered map over joblib, and one way to keep numerical libraries on one thread.

Results come in the order of the items, whoever computed them, and do not depend on how many threads
a library would use: sums over threads differ in their last bits.

On dask the map is that of `Cluster`, of whose workers some may be lost, be added or be slow:
joblib's own map sends large arguments to the workers ahead of the tasks. A worker that is lost
takes them with it, and dask cannot make them again: tasks that need them end in an error of dask's,
or never. Here whoever asked still has the arguments, and hands such tasks out again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from consilience.exceptions import EngineError
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
        for result in _parallel(n_jobs, "generator")(tasks):
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


def _parallel(n_jobs: int | None, return_as: str, **settings: Any) -> Any:
    """Joblib's map that hands back results as they come, or all at once where it cannot."""
    import joblib

    try:
        return joblib.Parallel(n_jobs=n_jobs, return_as=return_as, **settings)
    except ValueError:
        return joblib.Parallel(n_jobs=n_jobs, **settings)


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
        self._cluster = _active_cluster()
        self._parallel: Any = nullcontext()
        if self._cluster is None:
            self._parallel = _parallel(n_jobs, "generator_unordered", batch_size=1)

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


PATIENCE = 60.0
"""Seconds without any worker after which a map ends, unless joblib is told to wait longer."""
_REPEATS = 5
"""Times that a task is handed out again before its map ends; dask itself repeats some, too."""
_LARGE = 1000
"""Bytes above which an argument is sent to a worker by itself, as joblib does."""
_LOOK = 1.0


class Cluster:
    """Workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client
    patience : float
        Seconds without any worker after which a map ends.
    """

    def __init__(self, client: Any, patience: float = PATIENCE) -> None:
        self._client, self._patience = client, patience

    def map(
        self, function: Callable[..., R], items: Sequence[T], *shared: object
    ) -> Iterator[tuple[int, R]]:
        """Apply ``function(item, *shared)`` to every item, where there are workers.

        Yields
        ------
        place : int
            Of the item. Items come in any order.
        result : R

        Raises
        ------
        EngineError
            The cluster has no workers left, its scheduler is gone, or workers are lost wherever
            some task is computed.
        """
        with _outside_of_tasks():
            yield from self._map(function, items, shared)

    def _map(
        self, function: Callable[..., R], items: Sequence[T], shared: tuple[object, ...]
    ) -> Iterator[tuple[int, R]]:
        import distributed

        due, repeats = deque(range(len(items))), Counter[int]()
        # What was sent ahead is kept as long as a task needs it.
        sent: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        common: tuple[Any, ...] | None = None
        width = 2 * self._threads()
        looked = time.monotonic()
        while due or sent:
            while due and len(sent) < width:
                place = due.popleft()
                common = self._sent(shared) if common is None else common
                arguments = (*self._sent((items[place],)), *common)
                future = self._asked(self._client.submit, function, *arguments, pure=False)
                sent[future] = place, arguments
            # What became of each is asked below.
            with suppress(TimeoutError, distributed.CancelledError):
                distributed.wait(list(sent), timeout=_LOOK, return_when="FIRST_COMPLETED")
            for future in [future for future in sent if future.status != "pending"]:
                place, _ = sent.pop(future)
                try:
                    result = future.result(timeout=self._patience)
                except (distributed.CancelledError, TimeoutError) as error:
                    if future.status == "error":  # The task's own, not one of the cluster.
                        raise
                    # Lost, and perhaps what all tasks share with it.
                    common = None
                    due.append(place)
                    repeats[place] += 1
                    if repeats[place] > _REPEATS:
                        raise _deadly(place) from error
                except distributed.KilledWorker as error:
                    raise _deadly(place) from error
                else:
                    yield place, result
            if time.monotonic() > looked + _LOOK:  # Workers come and go.
                width, looked = 2 * self._threads(), time.monotonic()

    def _sent(self, arguments: tuple[object, ...]) -> tuple[Any, ...]:
        """Arguments, the large ones as references to what some worker has got."""
        from dask.sizeof import sizeof

        return tuple(
            self._asked(self._client.scatter, [a], hash=False)[0] if sizeof(a) > _LARGE else a
            for a in arguments
        )

    def _threads(self) -> int:
        """Tasks that are computed at the same time; waits until there is a worker."""
        since = time.monotonic()
        while not (found := sum(self._asked(self._client.nthreads).values())):
            if time.monotonic() > since + self._patience:
                raise EngineError(
                    f"the dask cluster has had no worker for {self._patience:g} seconds: start "
                    "workers, and do it again"
                )
            time.sleep(_LOOK / 10)
        return int(found)

    def _asked(self, ask: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """What the scheduler says; workers may be lost while it sends something to them."""
        since = time.monotonic()
        while True:
            try:
                return ask(*arguments, **more)
            except Exception as error:
                gone = self._client.status != "running"
                # A scheduler that notes what a worker was sent does not know one that is lost.
                unknown = isinstance(error, KeyError) and "://" in str(error)
                if not (gone or unknown or isinstance(error, OSError | TimeoutError)):
                    raise
                if gone or time.monotonic() > since + self._patience:
                    raise EngineError(
                        "the scheduler of the dask cluster, or its workers, cannot be reached: "
                        "start the cluster again, connect a new client, and do it again"
                    ) from error
                time.sleep(_LOOK / 10)


def _deadly(place: int) -> EngineError:
    return EngineError(
        f"workers of the dask cluster were lost again and again while they computed piece "
        f"{place + 1}: give workers more memory, or cut the work into more pieces"
    )


@contextmanager
def _outside_of_tasks() -> Iterator[None]:
    """Give the thread back to its worker where a task of the cluster itself waits for others."""
    from distributed import get_worker, rejoin, secede

    try:
        get_worker()
    except ValueError:  # No task.
        yield
        return
    secede()
    try:
        yield
    finally:
        rejoin()

"""A map over the workers of a dask cluster, of which some may be lost, be added or be slow.

joblib's own map sends large arguments to the workers ahead of the tasks. A worker that is lost
takes them with it, and dask cannot make them again: tasks that need them end in an error of dask's,
or never. Here whoever asked still has the arguments, and hands such tasks out again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from consilience.exceptions import EngineError

T = TypeVar("T")
R = TypeVar("R")

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
                if not gone and not isinstance(error, OSError | TimeoutError):
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

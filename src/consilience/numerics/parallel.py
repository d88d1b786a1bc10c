"""One ordered map over joblib, and one way to keep numerical libraries on one thread.

Results come in the order of the items, whoever computed them, and do not depend on how many threads
a library would use: sums over threads differ in their last bits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_lock = threading.Lock()
_limits: list[Any] = []
_inside = 0
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
    with _lock:
        _limits.append(_controller().limit(limits=1))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            while _inside == 0 and _limits:
                _limits.pop().restore_original_limits()


def _controller() -> Any:
    """Libraries with threads of their own, looked for again where something was imported since."""
    from threadpoolctl import ThreadpoolController

    global _found
    if _found is None or _found[0] != len(sys.modules):
        controller = ThreadpoolController()
        _found = (len(sys.modules), controller)
    return _found[1]


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], *, n_jobs: int | None = None
) -> list[R]:
    """Apply `function` to every item.

    Parameters
    ----------
    function : callable
        Picklable where the backend uses processes.
    items : iterable
    n_jobs : int, optional
        As in joblib; ``None`` follows ``joblib.parallel_config``, which also chooses the backend
        (threads, processes, dask, ray).
    """
    import joblib

    return list(joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(function)(item) for item in items))

"""One ordered map over joblib: results come in the order of the items, whoever computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


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
